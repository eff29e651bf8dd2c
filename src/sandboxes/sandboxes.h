/* sandboxes.h - the sandboxes of this node as front knows them, and their lives: create, bind, prolong, kill, die.
 *
 * A sandbox is `creating` until keeper has made it and init has taken its binding. Order of a create: admission (quota,
 * limits), row `creating` (committed while keeper works), keeper, bind, answer once the row is on disk; then the row
 * becomes `running`. If a process dies in between, the next comparison of front with keeper repairs it: a row without a
 * sandbox is removed, a sandbox without a row is killed, and for a row still `creating` front asks init: a bound
 * sandbox lives on, because its client may have been answered, others are killed. Which event means what in which state
 * is in life.h. Nothing here knows an API dialect.
 */
#ifndef HUTCH_SANDBOXES_SANDBOXES_H
#define HUTCH_SANDBOXES_SANDBOXES_H

#include "peers/egressc.h"
#include "peers/keeperc.h"
#include "peers/link.h"
#include "peers/peers.h"
#include "sandboxes/desc.h"
#include "sandboxes/events.h"
#include "sandboxes/life.h"
#include "templates/templates.h"
#include "tenants/tenants.h"

struct sandbox_net;
struct net_doc;
struct json;

struct sandbox {
    char id[SANDBOX_ID_MAX];
    struct tenant *tenant;
    enum sandbox_state state;
    struct sandbox_desc desc;
    char token[64];                        /* envd access token; "" if the sandbox is not secured */
    char traffic_token[64];                /* "" unless desc.allow_public_traffic is or was false */
    uint64_t started_unix_ms, end_unix_ms; /* by the wall clock as it was when they were set; see sandbox_end_unix_ms */
    char degraded[200];                    /* what keeper could not enforce */
    uint64_t state_bytes;                  /* STORED: size of its own layer */
    /* operation on all of its files (capture, apply) that is under way; NULL: none. See sandbox_begin() */
    const char *busy;
    bool busy_waits;         /* busy, but waits for its next try: the sandbox may be resumed */
    unsigned users;          /* open requests of its data plane */
    uint64_t used_ms;        /* loop time when the last of them began or ended */
    struct sandbox_net *net; /* network/networks.h */
    void *events;            /* events.c: subscribers and history */
    void *metrics;           /* metrics.c: ring of samples */
    /* watchers.c */
    struct watcher *watchers;
};

/* What a create asks for. Borrowed: sandbox_create() copies it. */
struct sandbox_spec {
    struct sandbox_desc desc;
    const struct net_doc *net;   /* NULL: off */
    const char *idempotency_key; /* NULL: none. The same key and tenant again gives the same sandbox (for 24 h) */
    const char *unique; /* a literal; NULL: none. No two sandboxes of the tenant get the same label of this key */
};

/* What a failed create answers with. */
struct sandbox_failure {
    unsigned status;        /* HTTP */
    unsigned retry_after;   /* seconds, 0 = none */
    const char *error_code; /* e.g. "sandbox_capacity_unavailable", or NULL */
    char text[512];
};

/* --- the room ----------------------------------------------------------------------------------------------------- */
struct db;
struct idseal;
struct networks;
struct sandboxes;
struct sandboxes_deps { /* borrowed, for as long as the sandboxes */
    struct loop *loop;
    const struct config *config;
    struct db *db;
    const struct peers *peers;
    struct tenants *tenants;
    struct stacks *stacks;
    struct templates *templates;
    struct events *events;
    struct idseal *ids;
};
struct sandboxes *sandboxes_new(const struct sandboxes_deps *d);
/* What a sandbox needs of its network; the room network has it. */
struct sandbox_network {
    bool (*is_on)(const struct networks *nw); /* there is a way out */
    int (*attach)(struct networks *nw, struct sandbox *b, const struct net_doc *doc, struct err *err);
    void (*write)(struct networks *nw, const struct sandbox *b);
    void (*tell)(struct networks *nw, struct sandbox *b, egressc_done *done, void *arg);
    void (*environment)(struct networks *nw, const struct sandbox *b, struct strv *env);
    void (*gone)(struct networks *nw, struct sandbox *b);
    void (*detach)(struct sandbox *b); /* frees b->net */
    /* Adds the refusals since that loop time to the open array (j NULL: only counts); returns how many. */
    size_t (*denials)(const struct sandbox *b, uint64_t since_ms, struct json *j);
};
void sandboxes_set_network(struct sandboxes *sb, const struct sandbox_network *ops, struct networks *nw);
/* Whether a volume that a mount names is still there; the room volumes has it. */
typedef bool sandbox_mount_fn(void *arg, const struct sandbox_mount *m);
void sandboxes_set_mounts(struct sandboxes *sb, sandbox_mount_fn *exists, void *arg);
int sandboxes_load(struct sandboxes *sb, struct err *err);
void sandboxes_free(struct sandboxes *sb);
/* The callbacks for keeperc_ops. */
void sandboxes_keeper_up(struct sandboxes *sb);
void sandboxes_keeper_down(struct sandboxes *sb);
void sandboxes_keeper_died(struct sandboxes *sb, const struct keeper_death *d);
size_t sandboxes_count(const struct sandboxes *sb); /* without stored ones */
/* By an id that a client named, which may be any text; by one that a row or a message of ours named. NULL: there is
 * none. */
struct sandbox *sandbox_find(struct sandboxes *sb, const char *id);
struct sandbox *sandbox_lookup(struct sandboxes *sb, const char *id);
/* The owner can use it: it runs or is paused. */
static inline bool sandbox_is_there(const struct sandbox *b)
{
    return b->state >= SANDBOX_RUNNING && b->state <= SANDBOX_RESTORE_UNDOING;
}
static inline bool sandbox_is_paused(const struct sandbox *b)
{
    return sandbox_is_there(b) && b->state != SANDBOX_RUNNING;
}
static inline bool sandbox_is_pausing(const struct sandbox *b)
{
    return b->state >= SANDBOX_FREEZING && b->state <= SANDBOX_UNLOAD_ENDING;
}
static inline bool sandbox_is_resuming(const struct sandbox *b)
{
    return b->state >= SANDBOX_THAWING && b->state <= SANDBOX_RESTORE_UNDOING;
}
static inline bool sandbox_is_being_made(const struct sandbox *b)
{
    return b->state >= SANDBOX_CREATING && b->state <= SANDBOX_LOST;
}
/* NULL if it does not exist, is hidden or belongs to another tenant: the caller cannot tell which. */
struct sandbox *sandbox_of(struct sandboxes *sb, const struct principal *p, const char *id);
typedef void sandbox_each_fn(void *arg, struct sandbox *b);
void sandboxes_each(struct sandboxes *sb, sandbox_each_fn *fn, void *arg);

/* done: once, from the loop. If the client has left by then, the sandbox lives on until its timeout. */
typedef void sandbox_created(void *arg, struct sandbox *b, const struct sandbox_failure *failure);
void sandbox_create(struct sandboxes *sb, const struct principal *p, const struct sandbox_spec *spec,
                    sandbox_created *done, void *arg);
typedef void sandbox_done(void *arg, bool ok);
void sandbox_kill(struct sandboxes *sb, struct sandbox *b, const char *why, sandbox_done *done, void *arg);
/* Sets the end to now + seconds; extend_only: never earlier than the present end. Not ok: the sandbox does not run. */
void sandbox_set_timeout(struct sandboxes *sb, struct sandbox *b, uint64_t seconds, bool extend_only,
                         sandbox_done *done, void *arg);
/* The settings are in force at once; a private sandbox without a traffic token gets one. done when they are stored;
 * not ok: they are lost at the next restart. */
void sandbox_set_ports(struct sandboxes *sb, struct sandbox *b, const struct sandbox_ports *ports, bool public_traffic,
                       sandbox_done *done, void *arg);
/* The same for the labels; takes them over. */
void sandbox_set_metadata(struct sandboxes *sb, struct sandbox *b, struct strv *metadata, sandbox_done *done,
                          void *arg);

/* done when it is stored and in force. */
void sandbox_set_life(struct sandboxes *sb, struct sandbox *b, const struct sandbox_life *life, sandbox_done *done,
                      void *arg);

/* Its end by the present wall clock. Setting the clock moves this time, not the time that is left. */
uint64_t sandbox_end_unix_ms(const struct sandbox *b);

/* Called for every sandbox that ends, for any reason, before it is freed. */
typedef void sandbox_ended_fn(void *arg, struct sandbox *b, const char *cause, const struct keeper_usage *u);
void sandboxes_on_end(struct sandboxes *sb, sandbox_ended_fn *fn, void *arg);
/* Called for every sandbox that is about to be paused. */
typedef void sandbox_pausing_fn(void *arg, struct sandbox *b);
void sandboxes_on_pause(struct sandboxes *sb, sandbox_pausing_fn *fn, void *arg);
/* Called after every change of a sandbox's state, in the middle of what changes it: it may look, and must change nothing. */
typedef void sandbox_changed_fn(void *arg, const struct sandbox *b, enum sandbox_state was);
void sandboxes_on_change(struct sandboxes *sb, sandbox_changed_fn *fn, void *arg);

/* Traffic begins and ends. sandbox_unused() takes the id, because the sandbox may be gone by then. */
void sandbox_in_use(struct sandboxes *sb, struct sandbox *b);
void sandbox_unused(struct sandboxes *sb, const char *id);
/* Brackets an operation on all files of a sandbox (capture, apply). False: another one is under way (b->busy names
 * it), or the sandbox is changing its state. */
bool sandbox_begin(struct sandbox *b, const char *what);
void sandbox_finish(struct sandboxes *sb, const char *id);
/* Whether it is on its way between two states. */
bool sandbox_is_changing(const struct sandbox *b);
/* Appends the sandbox's own variables and those of its template. */
void sandbox_variables(const struct sandbox *b, struct strv *env);

/* Whether the tenant's quota has room for the pause that `life` will cause, if the sandbox had no automatic pause
 * before. */
bool sandbox_life_room(struct sandboxes *sb, const struct sandbox *b, const struct sandbox_life *life,
                       struct state_failure *ret);

/* --- pause and resume: pause.c ---------------------------------------------------------------------------- */
typedef void sandbox_paused(void *arg, const struct state_failure *failure);
/* memory: freezes the sandbox (pids, servers and memory stay; a reboot of the machine loses it). Else captures the
 * files and ends the sandbox; its id, token, metadata, environment, network and ports stay, and resuming starts it
 * anew. 409: already paused, 503: busy with another change, 429: no room for its files in the tenant's quota. */
void sandbox_pause(struct sandboxes *sb, struct sandbox *b, bool memory, sandbox_paused *done, void *arg);
/* Turns a frozen sandbox into a stored one: captures its files and ends its processes. */
void sandbox_unload(struct sandboxes *sb, struct sandbox *b, sandbox_paused *done, void *arg);
/* What this host can do, as far as it is known by now. */
struct state_ability {
    int freeze;                                /* 1 yes, 0 no, -1 not tried yet */
    char driver[KEEPER_DRIVER_MAX], quota[24]; /* of the writable layers; "": not known yet */
};
struct state_ability state_ability(const struct sandboxes *sb);
/* Calls done without a failure when the sandbox runs. Requests during a resume share it. timeout_s 0: as before. */
void sandbox_resume(struct sandboxes *sb, struct sandbox *b, uint64_t timeout_s, sandbox_paused *done, void *arg);
/* Calls `done` at once if the sandbox runs; resumes it first if it is paused and auto_resume or a key (not
 * `traffic`) allows that; else fails. */
void sandbox_awake(struct sandboxes *sb, struct sandbox *b, bool traffic, sandbox_paused *done, void *arg);

/* --- the command a template starts with: start-command.c ---------------------------------------------------------- */
enum { START_READY_S = 60 };
struct start_run;
/* Runs config->start in the background, then config->ready until it succeeds; done once, from the loop, with "" or
 * the error. Either may be NULL, but not both. */
typedef void start_done(void *arg, const char *failure);
struct start_run *start_command(struct sandboxes *sb, const struct sandbox *b, start_done *done, void *arg);
void start_cancel(struct start_run *s); /* no callback any more */

#endif
