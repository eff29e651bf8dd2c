/* keeper-int.h - shared by the files of keeper/ only.
 *
 * Everything about sandboxes and clients lives in one mapping (struct keeper) that the kernel leaves out of a clone
 * (MADV_DONTFORK): no sandbox's init has a copy of another one's data. What a child needs is in struct keeper_common.
 */
#ifndef HUTCH_KEEPER_KEEPER_INT_H
#define HUTCH_KEEPER_KEEPER_INT_H

#include <linux/filter.h>

#include "init/init.h"
#include "keeper/attach.h"
#include "keeper/journal.h"
#include "keeper/keeper.h"
#include "keeper/keepsake.h"
#include "keeper/outer.h"
#include "keeper/place.h"
#include "keeper/proto.h"
#include "keeper/request.h"
#include "keeper/tier.h"
#include "os/cgroup.h"
#include "os/upper.h"
#include "rpc/channel.h"
#include "wall/sandbox.h"

#define KEEPER_GROUP "hutch" /* the cgroup around all sandboxes */

enum {
    KEEPER_CONNS = 80,        /* front, and one of each job of the layer store that holds a sandbox */
    KEEPER_OUT = 1 << 20,     /* bytes waiting for one client; one that lets more pile up is dropped */
    KEEPER_WAITERS = 4,       /* requests that wait for the end of one sandbox */
    KEEPER_STARTING_MAX = 32, /* creates under way; further requests wait in their sockets */
    KEEPER_STARTING_RESUME = 24,
    KEEPER_START_MS = 10000, /* a create that takes longer is given up */
    KEEPER_CHECK_MS =
        40000, /* so much longer if an image must be made or checked first; the layer store knows (REFS_GRACE_S) */
    KEEPER_CHECKS_MAX = 64,  /* creates that wait for that; more are refused */
    KEEPER_CHECKS_SAME = 16, /* of them for one volume that another process holds */
    KEEPER_CHECKS_AT_ONCE = 4,
    KEEPER_CHECK_ROUNDS = 16, /* checks of one create, which loses an image again while it waits for the rest */
    KEEPER_END_MS = 20000,    /* a kill that takes longer is answered with what is left, and goes on */
    KEEPER_PLACES_MAX = 40,
    KEEPER_BUCKETS = 8192,
    KEEPER_TRUST_MAX = 64,  /* templates whose layer is remembered */
    EGRESS_GONE_MAX = 1024, /* ended sandboxes that egress was not yet told of */
};

/* Made once; the same in every child. */
struct keeper_common {
    struct wall_sandbox_world world;
    struct layers_place layers;        /* in our own mount namespace */
    struct cgroup_info cgroups;        /* `own` is the group all sandboxes are in */
    struct cgroup_info cgroups_around; /* where that group is */
    char boot[JOURNAL_BOOT];
    struct keepsake_node node;
    const struct sock_filter *filter[2]; /* [strict] */
    size_t nfilter[2];
    unsigned filter_flags[2];
    struct init_place host_places[KEEPER_PLACES_MAX], own_places[4];
    size_t nhost_places, nown_places;
    bool landlock;
};

enum life { LIFE_NONE, LIFE_STARTING, LIFE_LIVE, LIFE_ENDING, LIFE_DEAD };

struct waiter {
    uint32_t conn, conn_gen; /* conn + 1; 0: no client */
    uint64_t request;
};

/* A process that holds the sandbox still. */
struct holder {
    struct waiter asker; /* without a client: the process held it before this keeper began */
    uint64_t pid, start; /* pid 0: free */
    int pidfd;           /* of a process without a client; else -1 */
    bool told;           /* that it stands still */
    uint64_t since_us;   /* CLOCK_MONOTONIC, when it was asked to; 0: it stood still already */
};

struct entry {
    enum life life;
    uint32_t gen, next; /* next: index + 1 in its bucket or in the free list */
    char id[KEEPER_ID_MAX];
    const struct tier *tier;
    pid_t pid;
    int pidfd;
    bool child;      /* ours to reap */
    bool asked;      /* ENDING: by a request; nothing is kept of it */
    bool gone;       /* ENDING: init is gone */
    bool reaped;     /* ENDING: its status is known or never will be; the rest is being removed */
    bool told_late;  /* ENDING: waiters were told that it takes long */
    bool waiting;    /* STARTING: for a network namespace or a check; nothing is taken yet */
    bool checking;   /* STARTING: for a check (checks.c) */
    uint8_t checked; /* STARTING: how many there were */
    bool adopted;    /* from the keeper before us */
    bool net;        /* has a way out, if egress serves it */
    bool attached;   /* LIVE: egress was told */
    bool paused;     /* LIVE: by a client */
    bool still;      /* LIVE: everything in it stands still */
    bool freezing;   /* LIVE: not yet everything */
    bool thaw_late;  /* LIVE: it should run again, and the thaw failed */
    bool limited;    /* LIVE: commands in it may have groups of their own */
    uint32_t range;
    uint32_t cause;
    int32_t status;
    uint64_t deadline_ms, since_ms, at_unix_ms;
    struct keeper_usage usage;
    struct waiter waiters[KEEPER_WAITERS];
    struct waiter pausers[KEEPER_WAITERS]; /* of those that wait for it to stand still */
    struct holder holders[KEEPER_HOLDERS];
    uint64_t freeze_ms; /* since when it should */
    char driver[KEEPER_DRIVER_MAX], quota[24];
    /* STARTING */
    struct wall_sandbox sandbox;
    struct waiter creator;
    char degraded[200];
    char failure[KEEPER_TEXT_MAX];
    uint32_t failure_code;
    bool own_root;
};

struct conn {
    struct channel channel; /* fd -1: free */
    uint32_t gen;
    uint32_t untold; /* while `telling`: the first entry whose death was not put in yet */
    bool blocked;    /* waits for room in its socket */
    bool telling;    /* new client that still gets the deaths; no request is read from it yet */
    bool holds;      /* has asked for a hold: it is told no deaths, and its requests never wait for creates */
    unsigned char out[KEEPER_OUT]; /* of the channel */
};

/* A create that waits for a network namespace. */
struct pending {
    uint32_t index;
    struct keeper_create ask;
};

/* A create that waits until its images are ready, or a check whose create was given up. */
struct check { /* checks.c */
    bool used, wanted;
    pid_t pid; /* 0: not yet started */
    int pidfd, said;
    uint32_t index;    /* of the entry, if it is `wanted` */
    uint64_t retry_ms; /* not to be started before */
    struct keeper_create ask;
};

struct pool { /* pool.c */
    int sock; /* -1: its process is to be started again */
    pid_t pid;
    uint32_t asked; /* namespaces that are in the socket or being made */
    uint64_t started_ms;
};

struct link {     /* attach.c */
    int fd;       /* -1: not connected */
    bool blocked; /* waits for room */
    bool unsaid;  /* some live sandbox is not attached */
    uint64_t retry_ms, since_ms;
    uint32_t ngone;
    char gone[EGRESS_GONE_MAX][KEEPER_ID_MAX];
};

struct trust { /* trust.c: which layer goes over which template */
    char template[KEEPER_TEMPLATE_MAX];
    char name[40]; /* "" : free */
    uint64_t checked_ms, ca[4];
    unsigned left;
};

struct keeper {
    const struct keeper_config *config;
    struct keeper_common *common;
    int epoll, timer, journal, ranges;
    uint64_t timer_at;
    bool paused;  /* no request is read until some creates are done */
    bool limited; /* some entry is */
    uint64_t limit_sweep_ms;
    uint32_t nlive, nstarting, nending, ndead;
    uint32_t nchecking; /* of those that are starting */
    uint32_t free_list, buckets[KEEPER_BUCKETS];
    uint32_t nentries; /* entries ever used */
    struct pool pool;
    struct link egress;
    struct trust trust[KEEPER_TRUST_MAX];
    uint32_t ntrust, npending;
    struct pending pending[KEEPER_STARTING_MAX + KEEPER_CHECKS_MAX];
    struct check checks[KEEPER_CHECKS_MAX];
    struct conn conns[KEEPER_CONNS];
    struct entry entries[2 * KEEPER_SANDBOXES_MAX];
};

enum event_kind {
    EVENT_LISTENER = 1,
    EVENT_TIMER,
    EVENT_CONN,
    EVENT_PIDFD,
    EVENT_SYNC,
    EVENT_POOL,
    EVENT_EGRESS,
    EVENT_CHECK,
    EVENT_HOLDER
};

/* setup.c */
int setup_process(const struct keeper_config *c, struct err *err); /* sealed copy, outer namespace, lock; may exec */
int setup_common(const struct keeper_config *c, struct keeper_common *ret, struct err *err);

/* loop.c */
uint64_t keeper_now_ms(void); /* CLOCK_BOOTTIME */
int keeper_watch(struct keeper *k, int fd, uint32_t events, enum event_kind kind, uint32_t gen, uint32_t index);
/* Releases what only the start of a sandbox needed. */
void keeper_settle(struct keeper *k, struct entry *e);
void keeper_wake_at(struct keeper *k, uint64_t at_ms);
void keeper_wake_in_us(struct keeper *k, uint32_t us); /* below a millisecond; whatever was due before comes with it */

/* table.c */
struct entry *entry_find(struct keeper *k, const char *id);
struct entry *entry_new(struct keeper *k, const char *id); /* NULL: full */
void entry_free(struct keeper *k, struct entry *e);
void entry_set(struct keeper *k, struct entry *e, enum life life); /* keeps the counts */
static inline uint32_t entry_index(const struct keeper *k, const struct entry *e) { return (uint32_t)(e - k->entries); }
/* When a starting sandbox is given up. */
static inline uint64_t entry_start_end(const struct entry *e)
{
    return e->since_ms + (e->checked ? KEEPER_CHECK_MS : 0U) + (e->checking ? 0U : KEEPER_START_MS);
}

/* asker.c */
void asker_begin(struct keeper *k);
void asker_accept(struct keeper *k);
void asker_event(struct keeper *k, uint32_t index, uint32_t events);
void asker_pause(struct keeper *k, bool on);
bool asker_waits(const struct keeper *k, const struct waiter *w); /* false: its process is gone, or went on without */
bool asker_is_connected(const struct keeper *k, const struct waiter *w);
pid_t asker_pid(const struct keeper *k, const struct waiter *w); /* of the process that connected; 0 */
void asker_answer(struct keeper *k, const struct waiter *w, struct keeper_reply *r);
void asker_refuse(struct keeper *k, const struct waiter *w, enum keeper_error error, const char *text);
void asker_tell_death(struct keeper *k, const struct entry *e);
void asker_handle(struct keeper *k, uint32_t index, const void *p, size_t n);

/* create.c */
void create_begin(struct keeper *k, const struct keeper_create *c, const struct waiter *w);
void create_sync(struct keeper *k, struct entry *e);
/* Continues waiting creates as far as namespaces are ready; drops the ones that are no longer wanted. */
void create_resume(struct keeper *k);
void create_forget(struct keeper *k, struct entry *e);

/* The images of a waiting create are ready, or failed (err). */
void create_checked(struct keeper *k, struct entry *e, const struct keeper_create *c, const struct err *err);

/* checks.c */
bool checks_needed(const struct keeper *k, const struct keeper_create *c);
bool checks_begin(struct keeper *k, struct entry *e, const struct keeper_create *c); /* false: there are too many */
void checks_forget(struct keeper *k, struct entry *e);
void checks_event(struct keeper *k, uint32_t index);
uint64_t checks_tick(struct keeper *k); /* when to come again (UINT64_MAX: no need) */

/* control.c: RUN/ID.sock. */
/* Descriptor of the listening socket, or -1. */
int control_make(const struct keeper *k, const char *id, struct err *err);
void control_remove(const char *id);
/* Makes the name again if it is gone, and gives init the new socket. 1: done; 0: nothing was to be done; -1: it is not to be
 * had, and nothing can reach this init. */
int control_restore(const struct keeper *k, const struct entry *e, struct err *err);
/* The sandbox on whose socket the process listens. */
bool control_id_of(int pidfd, char ret[KEEPER_ID_MAX]);

/* Gives init the group for one command. */
int control_give_group(const struct entry *e, const struct keeper_limit *q, const struct cgroup_sub *s,
                       struct err *err);

/* limit.c */
void limit_command(struct keeper *k, struct entry *e, const struct keeper_limit *q, const struct waiter *w);
/* Removes the groups of commands that have ended. */
uint64_t limit_tick(struct keeper *k);

/* keepsake.c: more in keepsake.h. */
/* What init gets: descriptor, read-only. */
int keepsake_make(const struct keeper *k, const struct journal_record *r, struct err *err);
/* Tells init what the journal says, or is about to say; nothing if it is of a version that keeps none. */
int keepsake_put(const struct keeper *k, const struct entry *e, const struct journal_record *r, struct err *err);

/* pool.c */
int pool_start(struct keeper *k, struct err *err);
/* 1: *ret is the caller's; 0: none is there at the moment; -1: none can be made. */
int pool_take_netns(struct keeper *k, struct netns *ret, struct err *err);
void pool_watch(struct keeper *k); /* after k->npending changed */
void pool_event(struct keeper *k, uint32_t events);
uint64_t pool_tick(struct keeper *k);

/* attach.c */
void attach_begin(struct keeper *k);
void attach_live(struct keeper *k, struct entry *e);
void attach_gone(struct keeper *k, struct entry *e);
void attach_event(struct keeper *k, uint32_t events);
uint64_t attach_tick(struct keeper *k);

/* roots.c: the directories that a root is made of. */
struct root {
    int layer[WALL_SANDBOX_LAYERS_MAX]; /* uppermost first */
    size_t n;                           /* 0: the host's tree */
    bool fixed;                         /* nothing in it ever changes */
};
/* On failure the caller closes what is open. */
int root_open(const struct keeper *k, const char *template, bool tools, struct root *ret, struct err *err);
void root_close(struct root *r);
/* All layers merged into one directory, for reading; ids as stored. */
int root_merged(const struct keeper *k, const struct root *r, struct err *err);
/* Only while no sandbox lives. */
void root_sweep_tools(void);

/* uppers.c */
/* driver "": keeper's own choice. */
int uppers_probe(const struct keeper *k, const char *driver, struct upper_info *ret, struct err *err);
int uppers_take(const struct keeper *k, const struct upper_info *info, const struct keeper_create *c,
                const struct root *root, struct upper *ret, struct err *err);
void uppers_drop(const struct keeper *k, const char *id, const char *driver);
/* False: unknown without walking the tree. */
bool uppers_usage(const struct keeper_common *m, const struct journal_record *r, struct upper_usage *ret);
void uppers_sweep(struct keeper *k);

/* volumes.c */
struct volumes {
    struct wall_sandbox_volume v[WALL_SANDBOX_VOLUMES_MAX];
    size_t n;
};
/* Places are borrowed from *c. On failure the caller closes what is open. */
int volumes_open(const struct keeper *k, const struct keeper_create *c, bool host, struct volumes *ret,
                 struct err *err);
void volumes_close(struct volumes *v);

/* freeze.c */
void freeze_pause(struct keeper *k, struct entry *e, const struct waiter *w);
void freeze_resume(struct keeper *k, struct entry *e, const struct waiter *w);
void freeze_hold(struct keeper *k, struct entry *e, const struct waiter *w);
void freeze_release(struct keeper *k, struct entry *e, const struct waiter *w);
/* Goes on with the pause and the holds in its record. */
void freeze_adopt(struct keeper *k, struct entry *e, const struct journal_record *r);
void freeze_forget(struct keeper *k, struct entry *e); /* it is about to end */
void freeze_leave(struct keeper *k);                   /* this keeper ends: thaws what is only held */
/* Once, after an upgrade: thaws what a layer store of an older version had frozen by itself. */
void freeze_take_markers(struct keeper *k);
uint64_t freeze_tick(struct keeper *k);

/* trust.c: what makes programs in a sandbox trust the installation's roots, STATE/egress/trusted.crt. */
/* The certificate; empty if there is none. */
int trust_ca(struct buf *ret, struct err *err);
struct trust_made {
    int fd;        /* directory over the root of the template, O_PATH; -1 if there is no certificate */
    unsigned left; /* bundles that are too large and stay as they are */
};
/* Gives the sandbox its layer and marks it used until trust_unuse(). */
int trust_layer(struct keeper *k, const char *id, const char *template, const struct root *root, struct trust_made *ret,
                struct err *err);
void trust_unuse(const char *id);
/* Removes a directory of ours with everything in it. */
void keeper_remove_tree(int dir, const char *name);
/* Removes all layers; call only while no sandbox lives. */
void trust_sweep(void);

/* end.c */
void end_begin(struct keeper *k, struct entry *e, enum keeper_cause cause);
void end_pidfd(struct keeper *k, struct entry *e);
bool end_is_overdue(const struct keeper *k, uint64_t deadline_ms);
/* Retries unfinished removals; returns when to call again (UINT64_MAX: no need). */
uint64_t end_tick(struct keeper *k);
void end_wait(struct keeper *k, struct entry *e, const struct waiter *w);
void end_forget(struct keeper *k, struct entry *e);

/* Bits of keeper_usage.have, in the order of its fields. */
enum have {
    HAVE_CPU_USER = 1 << 0,
    HAVE_CPU_SYSTEM = 1 << 1,
    HAVE_MEMORY = 1 << 2,
    HAVE_MEMORY_PEAK = 1 << 3,
    HAVE_MEMORY_LIMIT = 1 << 4,
    HAVE_DISK_USED = 1 << 5,
    HAVE_DISK_LIMIT = 1 << 6,
    HAVE_INODES_USED = 1 << 7,
    HAVE_PIDS = 1 << 8,
    HAVE_PIDS_PEAK = 1 << 9,
    HAVE_OOM_KILLS = 1 << 10,
    HAVE_THROTTLED = 1 << 11,
    HAVE_CPU_MILLI = 1 << 12,
};

/* usage.c */
void usage_answer(struct keeper *k, const struct entry *e, const struct waiter *w);
void usage_read(const struct keeper *k, const struct journal_record *r, bool alive, struct keeper_usage *ret);

/* claims.c: one lock description of keeper's own besides each init's; shared locks, so that both hold. */
int claims_open(struct err *err);
int claims_hold(int ranges, const struct idrange *taken, uint32_t base);
void claims_drop(int ranges, uint32_t base);

/* recover.c: adopts live sandboxes whose journal record was removed or damaged (`damaged`: their names) by what their
 * init keeps, or ends them; logs either. */
void recover_all(struct keeper *k, const struct strv *damaged);
/* Whether every cgroup in a record's text is the one that the process is in. */
bool recover_groups_are_true(pid_t pid, const char *text);

/* adopt.c */
/* Adopts a sandbox of the journal. */
void adopt_record(struct keeper *k, const struct journal_record *r);
int adopt_all(struct keeper *k, struct err *err);
/* Whether this is the name of a sandbox's cgroup whose keeper (in our pid namespace) is dead. */
bool keeper_leaf_orphaned(const char *name);
/* Whether a process listens on that socket. */
bool keeper_socket_alive(int dir, const char *name);

#endif
