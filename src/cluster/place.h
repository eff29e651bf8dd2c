/* place.h - the scheduler: which node gets a new sandbox. A view of the nodes and a request go in; a node comes out, or why
 * there is none. It does no I/O, has no clock and draws no random numbers of its own: the same view, request and random
 * word give the same node.
 *
 * Concepts
 *   home set    The nodes on which a template is kept ready. Each node has a rank for each template (rendezvous hashing),
 *               and the first h of that order are its homes, so all orchestrators know the same homes without talking, and
 *               a node that joins or leaves changes one home of few templates. h is as large as the nodes' caches allow
 *               (place_home_count()).
 *   pending     What this orchestrator has sent to a node and has no answer for. It counts as used, so that a burst does
 *               not land on the node that looked best when it began.
 *   lack        Why a node cannot take a request. A node counts for the first lack that it has, in the order of enum
 *               place_lack.
 *
 * Invariants
 *   1. The node of an answer lacks nothing for that request in this view.
 *   2. A request is refused only if each node of the view lacks something; the counts of the answer then add up to all
 *      nodes.
 *   3. A decision looks at PLACE_HOMES_MAX + PLACE_DRAWS + 1 nodes at most while one of them has room. All nodes are looked
 *      at only if none has.
 *
 * Names (templates, tenants, labels, features) are numbers and bits here, which the caller hands out.
 */
#ifndef HUTCH_CLUSTER_PLACE_H
#define HUTCH_CLUSTER_PLACE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "cluster/amount.h"

enum {
    PLACE_HOMES_MIN = 3,
    PLACE_HOMES_MAX = 64,
    PLACE_FROM_HOMES = 4,    /* homes that are compared */
    PLACE_FROM_ALL = 2,      /* and nodes drawn from all */
    PLACE_DRAWS = 8,         /* draws for these */
    PLACE_SCAN_KEEP = 8,     /* nodes with room that a scan of all compares */
    PLACE_TRIED_MAX = 4,     /* nodes that are asked for one request */
    PLACE_NODES_MAX = 16384, /* of one view */
    PLACE_CACHED_MAX = 1024, /* templates that are remembered of one node; what it says beyond is ignored */
    PLACE_NONE = -1,
};

enum place_state {
    PLACE_READY,
    PLACE_CORDONED, /* keeps what it has, takes nothing new */
    PLACE_DRAINING, /* and is to be emptied */
    PLACE_LOST,     /* declared dead */
};

/* What does not change while a node is a member. */
struct place_info {
    uint32_t node;          /* its number (base/ids.h) */
    uint32_t tenant;        /* kept for this tenant; 0: for all */
    uint32_t protocol;      /* version that it speaks */
    uint64_t labels;        /* its pool, zone and so on, one bit each */
    uint64_t features;      /* architecture, baseline of the processor, abilities, one bit each */
    struct amount capacity; /* AMOUNT_SANDBOXES: how many it runs at most */
    uint32_t start_max;     /* sandboxes that it starts at a time */
    uint32_t cache_slots;   /* templates that it keeps ready */
};
/* What it reports about itself, in its stream and with each answer. */
struct place_report {
    struct amount used; /* promised to its sandboxes */
    uint32_t starting;
    uint32_t cpu_busy_milli; /* really in use */
    uint32_t pressure;       /* per mille of the last 10 s in which something waited for memory or I/O */
};
/* How far nodes are filled, and how. PLACE_RULES has what is right when nothing is known. */
struct place_rules {
    uint32_t cpu_percent;    /* of its processors a node promises so much; AMOUNT_CPU_MILLI times this */
    uint32_t memory_percent; /* more than 100 only where memory can be taken back */
    uint32_t pressure_max;   /* per mille; a node above takes nothing new */
    uint32_t protocol_min;   /* nodes that speak less are not asked */
    bool pack;               /* fills nodes instead of spreading, so that others become empty */
};
#define PLACE_RULES ((struct place_rules){.cpu_percent = 400, .memory_percent = 100, .pressure_max = 100})

struct place_count {
    uint32_t node, n;
};
struct place_request {
    uint32_t template;
    uint32_t tenant;
    uint64_t labels, features; /* all of them are needed */
    struct amount need;
    int64_t only; /* the node that holds its volume, or PLACE_NONE */
    int64_t near; /* taken if it has room: where its parent or its snapshot is; or PLACE_NONE */
    /* Sandboxes that belong together (a run's, a tenant's) are spread: how many of them each node has. Borrowed, by
     * node. */
    const struct place_count *together;
    size_t n_together;
    uint32_t together_max;           /* on one node; 0: any number */
    uint32_t tried[PLACE_TRIED_MAX]; /* nodes that refused this request or did not answer */
    uint32_t n_tried;
};

/* The first group no waiting changes, the second passes. */
enum place_lack {
    PLACE_LACKS_NOTHING,
    PLACE_LACKS_LABEL,
    PLACE_LACKS_FEATURE,
    PLACE_LACKS_PROTOCOL,
    PLACE_LACKS_TENANT, /* is kept for another */
    PLACE_LACKS_VOLUME, /* which is on another node */
    PLACE_LACKS_SIZE,   /* would be too small if it were empty */
    PLACE_LACKS_FOREVER = PLACE_LACKS_SIZE,
    PLACE_LACKS_LIFE,     /* is lost */
    PLACE_LACKS_VOICE,    /* has been silent */
    PLACE_LACKS_STAY,     /* is draining */
    PLACE_LACKS_LEAVE,    /* is cordoned */
    PLACE_LACKS_TURN,     /* refused this request before */
    PLACE_LACKS_DISTANCE, /* has as many of those that belong together as may be on one node */
    PLACE_LACKS_SANDBOXES,
    PLACE_LACKS_MEMORY,
    PLACE_LACKS_CPU,
    PLACE_LACKS_DISK,
    PLACE_LACKS_START, /* starts as many as it can */
    PLACE_LACKS_CALM,  /* is under pressure */
    PLACE_LACKS_N,
};
enum place_code {
    PLACE_FOUND,
    PLACE_FULL,  /* 503 capacity_unavailable: some node could take it later */
    PLACE_NEVER, /* 422 no_compatible_node: no node could, if it were empty */
};
struct place_answer {
    enum place_code code;
    uint32_t node;
    bool cached, warm;             /* whether the node has the template, and a sandbox of it that waits */
    uint32_t examined;             /* how many nodes were looked at */
    uint32_t nodes;                /* of the view */
    uint32_t lacks[PLACE_LACKS_N]; /* how many nodes lack what; only if none was found */
};

struct place;
struct place *place_new(const struct place_rules *rules);
void place_free(struct place *p); /* may be NULL */

/* A node joins, or says again what it is; what was known of it otherwise is kept. False: PLACE_NODES_MAX are there. */
bool place_join(struct place *p, const struct place_info *info);
void place_leave(struct place *p, uint32_t node);
/* Changes of a node that is not there are ignored: it has just left. */
void place_set_state(struct place *p, uint32_t node, enum place_state state);
void place_set_silent(struct place *p, uint32_t node, bool silent);
void place_report(struct place *p, uint32_t node, const struct place_report *report);
/* The node has the template ready, and `warm` sandboxes of it that wait; or has it no longer. */
void place_cached(struct place *p, uint32_t node, uint32_t template, uint32_t warm);
void place_uncached(struct place *p, uint32_t node, uint32_t template);
/* How many templates are in use: their homes share the nodes' caches. */
void place_set_templates(struct place *p, uint32_t active);

/* The decision. `random` is an unpredictable word (draw.h). Changes nothing that a later decision depends on. */
struct place_answer place_choose(struct place *p, const struct place_request *r, uint64_t random);
/* The request is on its way to the node / is answered, whatever the answer was. The report that comes with an answer is
 * given to place_report() before. */
void place_sent(struct place *p, uint32_t node, const struct amount *need);
void place_settled(struct place *p, uint32_t node, const struct amount *need);

/* "no node has room: of 12 nodes 7 lack memory, 3 are draining" */
void place_say(const struct place_answer *a, struct buf *b);

/* What the view holds: for lists, sums and the prefetch of templates. */
struct place_seen {
    struct place_info info;
    struct place_report report;
    struct amount pending;
    enum place_state state;
    bool silent;
    uint32_t n_cached;
};
size_t place_count_nodes(const struct place *p);
bool place_look(const struct place *p, uint32_t node, struct place_seen *ret);
bool place_look_at(const struct place *p, size_t i, struct place_seen *ret); /* in the order of their numbers */
/* The homes of a template for requests with these labels, features and tenant, nearest first; how many. */
size_t place_homes(struct place *p, const struct place_request *r, uint32_t ret[PLACE_HOMES_MAX]);
uint32_t place_home_count(const struct place *p);

#endif
