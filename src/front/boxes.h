/* boxes.h - the sandboxes of this node as front knows them, and their lives: create, bind, prolong, kill, die.
 *
 * A box is `creating` until keeper made it and init took its binding. Order of a create: admission (quota, limits) -> row
 * `creating`, which is committed while keeper works -> keeper -> bind -> answer, once the row is on disk too; the row turns
 * `running` afterwards. Whatever dies in between is found when front and keeper meet again: a row without a sandbox is
 * removed, a sandbox without a row is killed, and of a row still `creating` init says whether it was bound (then nobody can
 * have been told otherwise, and it lives) or not.
 */
#ifndef HUTCH_FRONT_BOXES_H
#define HUTCH_FRONT_BOXES_H

#include "base/strv.h"
#include "front/front.h"
#include "front/tenants.h"
#include "keeper/place.h"

struct box_net;
struct net_doc;
struct tmpl_config; /* state.h */

/* Paused ones: FROZEN in memory by keeper, or STORED as files, when nothing of it lives. PAUSING, RESUMING: on the way. */
enum box_state { BOX_CREATING, BOX_RUNNING, BOX_KILLING, BOX_PAUSING, BOX_FROZEN, BOX_STORED, BOX_RESUMING };

/* A volume inside. */
enum { BOX_MOUNTS_MAX = KEEPER_VOLUMES_MAX, BOX_MOUNT_NAME_MAX = 128 };
struct box_mount {
    char volume[KEEPER_ID_MAX];    /* "vol-..." or "host-..." */
    char name[BOX_MOUNT_NAME_MAX]; /* as the tenant calls it */
    char place[KEEPER_PLACE_MAX];
    uint32_t flags; /* KEEPER_VOLUME_* */
};

/* What was said about single ports. Those that are not listed follow the sandbox as a whole. */
enum { BOX_PORTS_MAX = 32 };
enum {
    BOX_PORT_PUBLIC = 1,    /* open to everybody, although the sandbox is private */
    BOX_PORT_LOCALHOST = 2, /* the service is asked as localhost:PORT, whatever name the visitor used */
};
struct box_port {
    uint32_t port, flags;
};
struct box_ports {
    struct box_port v[BOX_PORTS_MAX];
    size_t n;
    uint64_t links; /* generation: links and cookies of earlier ones are refused */
};

struct box {
    char id[SANDBOX_ID_MAX];
    struct tenant *tenant;
    enum box_state state;
    char template[72];      /* as resolved: "base", "host", or the id of a row */
    char token[64];         /* envd access token; "" if the sandbox is not secured (v1 without secure) */
    char traffic_token[64]; /* "" unless allow_public_traffic is false */
    bool allow_public_traffic;
    bool hidden;             /* of a build: see box_spec.build */
    bool allow_internet;     /* as asked for in E2B's words */
    char mask_host[256];     /* Host sent to services inside; "" = as the client sent it */
    uint32_t https_ports[8]; /* services that speak TLS themselves */
    size_t nhttps_ports;
    struct box_ports ports;
    struct strv metadata;                  /* k, v, k, v ... */
    struct strv env;                       /* "K=V" */
    uint64_t started_unix_ms, end_unix_ms; /* by the wall clock as it was when they were set; see box_end_unix_ms */
    uint32_t cpu_milli, pids;
    uint64_t memory, disk;
    bool wished; /* cpu_milli and memory are what the build asked for */
    char tier[16], degraded[200];
    /* what outlives it */
    bool auto_pause;             /* at its end it is paused, not killed */
    bool auto_pause_files;       /* and without memory */
    bool auto_resume;            /* by traffic */
    bool history;                /* every exec opens a generation */
    uint32_t idle_s;             /* paused after so long without traffic; 0: never */
    uint64_t timeout_s;          /* as asked for last */
    char stack[STACK_ID_MAX];    /* what it was made from, or, STORED, what it is; "": a template's directory */
    char parent[SANDBOX_ID_MAX]; /* of a fork, or "" */
    uint64_t state_bytes;        /* STORED: of its own layer */
    struct tmpl_config *config;  /* owned; NULL: nothing said */
    struct box_mount *mounts;    /* owned */
    size_t nmounts;
    const char *busy; /* its files are being read or changed as a whole: what is done; NULL: nothing. See box_begin() */
    bool busy_waits;  /* busy, but only waits for its next try: may be resumed */
    unsigned users;   /* requests of its data plane that are open */
    uint64_t used_ms; /* loop time of the last one's beginning or end */
    struct box_net *net; /* nets.h */
    void *events;        /* events.c: subscribers and history */
    void *metrics;       /* metrics.c: ring of samples */
    void *procs;         /* e2b: per-sandbox state of the dialect (watchers) */
};

struct box_spec {
    const char *template;
    uint32_t timeout_s;
    struct strv metadata, env;
    bool secure, allow_public_traffic, allow_internet;
    const char *mask_host;
    const uint32_t *https_ports;
    size_t nhttps_ports;
    struct box_ports ports;
    const struct net_doc *net;   /* borrowed; NULL: off */
    const char *idempotency_key; /* NULL: none. The same key and tenant again gives the same box (for 24 h) */
    /* A box of a template build (builds.h): no row (a restart of front ends it), no quota, no events, in no list, our tools at
     * /.hutch inside, commands run as root unless they say otherwise. `template` may be the id of a stack. */
    bool build;
    bool counted; /* with `build`: it counts in the quotas of sandboxes all the same */
    uint32_t
        cpu_milli; /* with `build`: wishes, which a host that cannot enforce them drops, and says so; 0: the node's */
    uint64_t memory;
    bool auto_pause, auto_pause_files, auto_resume, history;
    bool no_history; /* none, whatever the template says */
    uint32_t idle_s;
    const struct box_mount *mounts; /* borrowed */
    size_t nmounts;
    /* A fork: template, limits, configuration and history are those of this box (borrowed for the call), its files those of
     * the stack. */
    const struct box *parent;
    const char *stack;
};

/* What a failed create answers with. */
struct box_failure {
    unsigned status;        /* HTTP */
    unsigned retry_after;   /* seconds, 0 = none */
    const char *error_code; /* e.g. "sandbox_capacity_unavailable", or NULL */
    char text[512];
};

int boxes_load(struct front *f, struct err *err);
void boxes_free(struct front *f);
/* What keeperc_ops of this process must call. */
void boxes_keeper_up(struct front *f);
void boxes_keeper_down(struct front *f);
void boxes_keeper_died(struct front *f, const struct keeper_death *d);
size_t boxes_count(const struct front *f); /* all but those that are stored */
struct box *box_find(struct front *f, const char *id);
/* There for its owner: it runs or is paused. */
static inline bool box_is_there(const struct box *b) { return b->state != BOX_CREATING && b->state != BOX_KILLING; }
static inline bool box_is_paused(const struct box *b) { return box_is_there(b) && b->state != BOX_RUNNING; }
/* Only if it is the principal's own and there; NULL otherwise, without telling which. */
struct box *box_of(struct front *f, const struct principal *p, const char *id);
typedef void box_each_fn(void *arg, struct box *b);
void boxes_each(struct front *f, box_each_fn *fn, void *arg);

/* done: from the loop, once. The request that asked may be gone by then; the box then lives on until its TTL. */
typedef void box_created(void *arg, struct box *b, const struct box_failure *failure);
void box_create(struct front *f, const struct principal *p, const struct box_spec *spec, box_created *done, void *arg);
typedef void box_done(void *arg, bool ok);
void box_kill(struct front *f, struct box *b, const char *why, box_done *done, void *arg);
/* Sets the end to now + seconds; with extend_only never earlier than it is. Not ok: it does not run. */
void box_set_timeout(struct front *f, struct box *b, uint64_t seconds, bool extend_only, box_done *done, void *arg);
/* What is in b->ports and allow_public_traffic holds from now on; a private sandbox without a traffic token gets one. Told
 * when it is stored; not ok: it holds until the next restart only. */
void box_set_ports(struct front *f, struct box *b, const struct box_ports *ports, bool public_traffic, box_done *done,
                   void *arg);

/* Fills in the volume that this tenant calls m->name. False: it has none. */
bool box_mount_find(struct front *f, const struct tenant *t, struct box_mount *m);
bool box_mount_there(struct front *f, const struct box_mount *m);

/* What happens to it by itself. */
struct box_life {
    bool auto_pause, auto_pause_files, auto_resume;
    uint32_t idle_s;
};
struct box_life box_life(const struct box *b);
/* Told when it is stored and in force. */
void box_set_life(struct front *f, struct box *b, const struct box_life *life, box_done *done, void *arg);

/* When it will end by the wall clock as it is now: a clock that was set moves the time of day, not what is left. */
uint64_t box_end_unix_ms(const struct box *b);

/* Called for every box that ends, however it does, before it is freed. */
typedef void box_ended_fn(void *arg, struct box *b, const char *cause, const struct keeper_usage *u);
void boxes_on_end(struct front *f, box_ended_fn *fn, void *arg);
/* Called for every box that is about to be paused. */
typedef void box_pausing_fn(void *arg, struct box *b);
void boxes_on_pause(struct front *f, box_pausing_fn *fn, void *arg);

/* Traffic: from here on it is in use; box_unused() by id, for the box may be gone by then. */
void box_in_use(struct front *f, struct box *b);
void box_unused(struct front *f, const char *id);
/* Whoever reads or changes a box's files as a whole (capture, apply) says so meanwhile: false, something else does already
 * (b->busy says what) or it is on its way between states. */
bool box_begin(struct box *b, const char *what);
void box_finish(struct front *f, const char *id);

/* Templates this node can start now. */
struct template_info {
    char name[72];
    char state[16]; /* "ready", "building", "error", "missing" */
    char text[200]; /* progress or error */
    uint32_t cpu_milli;
    uint64_t memory, disk, created_unix;
    uint64_t spawned; /* sandboxes made from it */
};
void templates_each(struct front *f, void (*each)(void *arg, const struct template_info *t), void *arg);
/* Accepts "name", "name:default", "team/name", "e2bdev/base". False: no such template. */
bool template_resolve(struct front *f, const char *name, struct template_info *ret);
/* dir: of the templates, borrowed. */
void templates_open(struct front *f, int dir);
void templates_free(struct front *f);
void template_spawned(struct front *f, const char *name);

#endif
