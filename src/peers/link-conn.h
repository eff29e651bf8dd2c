/* link-conn.h - the inner state of connections and their calls, for link.c, link-call.c and watch.c only. */
#ifndef HUTCH_PEERS_LINK_CONN_H
#define HUTCH_PEERS_LINK_CONN_H

#include "base/map.h"
#include "peers/link-int.h"
#include "rpc/channel.h"

/* A message that waits for a free helper. */
struct out {
    struct out *next;
    struct call *call; /* NULL: it has gone */
    int fd;
    size_t n;
    unsigned char bytes[];
};
struct queue {
    struct out *first, **last;
    size_t n;
};

struct link {
    struct links *ls;
    char id[SANDBOX_ID_MAX + 1];
    struct channel channel; /* fd -1: not connected yet */
    loop_id watch, timer;
    loop_id turn; /* messages of a stream were read that no event tells of */
    uint64_t since_ms;
    bool dead, doomed /* will be dropped by its timer */, out_asked;
    unsigned busy, working, sinks;
    size_t live; /* calls that are no zombies */
    struct call *calls;
    struct queue held;
    struct queue early;     /* until it is connected, and known whether to packets or to a stream */
    struct link_status why; /* doomed: the status for its calls */
};

/* A call's id consists of its slot's index and of how often that slot was used. */
struct slot {
    struct call *call; /* NULL: free */
    uint32_t gen;
};

struct links {
    struct loop *loop;
    int run_dir;
    struct map map; /* of struct link, by id */
    struct slot *slots;
    size_t nslots, cap_slots, free_hint;
    bool leaving; /* links_leave() */
};

/* link-call.c */
struct call *link_call_get(const struct links *ls, uint64_t id);
void link_call_free(struct call *c);
/* Reports the failure, unless the call is a zombie, and frees it. */
void link_call_fail(struct call *c, const struct link_status *st);
/* No callback comes any more; the slot stays until init's last message about it. */
void link_call_make_zombie(struct call *c);
/* Its helper inside has ended: sends a held request. */
void link_call_stop_working(struct call *c);
void queue_clear(struct queue *q);
/* It is connected: sends what waited for that. */
void link_send_early(struct link *l);
/* Sends what the socket takes. Never calls back. */
void link_flush(struct link *l);
extern const struct channel_limits link_packet_limits, link_stream_limits;
static inline bool link_is_stream(const struct link *l) { return l->channel.limits->kind == CHANNEL_STREAM; }
/* link-take.c */
/* Exchanges the ticket at the end of the answer, of n bytes at p, before the call gets it. False: malformed. */
bool link_take_begin(struct link *l, struct call *c, const struct init_head *h, const unsigned char *p, size_t n);
void link_take_free(struct take *t);
/* link.c */
/* Gives an answer to its call, from an event that is not the link's. */
void link_give_taken(struct link *l, const struct init_head *h, struct link_msg *m);
struct link *link_for(struct links *ls, const char *id);
void link_idle_later(struct link *l);
/* Drops the link from the loop: callbacks must not run inside a call of the user. */
void link_drop_later(struct link *l, enum link_code code, const char *text);

#endif
