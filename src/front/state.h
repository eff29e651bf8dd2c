/* state.h - what outlives a running sandbox: pauses, snapshots, forks, templates made here, generations.
 *
 * Everything is a row that names a stack of the store (docs/internals/stock.md). A row is written after its stack is
 * whole; a stack without a row is dropped when front and stock meet (state_meet). Nothing here touches files.
 */
#ifndef HUTCH_FRONT_STATE_H
#define HUTCH_FRONT_STATE_H

#include <string.h>

#include "base/sha256.h"
#include "front/boxes.h"
#include "front/front.h"
#include "stock/proto.h"

/* What an operation on state answers with; status 0: done. */
struct state_failure {
    unsigned status;
    const char *error_code; /* static; or NULL */
    char text[512];
};
void state_fail(struct state_failure *ret, unsigned status, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* `what` could not be written to the store: 507 if the disk is full, else 503. */
void state_fail_write(struct state_failure *ret, const struct err *err, const char *what);
#define STATE_DISK_FULL "disk_full" /* the error_code of a 507 */

/* --- stacks: state-meet.c ------------------------------------------------------------------------------------------- */
typedef void state_captured(void *arg, const struct stock_reply *r);
/* STOCK_CAPTURE of a box into a new stack, which is held (see below) from now on. freeze: it runs. */
void state_capture(struct front *f, const char *box, const char stack[STACK_ID_MAX], bool freeze, state_captured *done,
                   void *arg);
/* The same; `earlier`: a stack of the same box that it may share with, or "". */
void state_capture_after(struct front *f, const char *box, const char stack[STACK_ID_MAX], const char *earlier,
                         bool freeze, state_captured *done, void *arg);
/* Beside enum stock_error: it was made, but the tenant's quota does not hold it. The stack is dropped. */
enum { STATE_NO_ROOM = 1000 };
/* What a refusal of stock means to whoever asked for `what` ("the snapshot"). */
void state_stock_failure(const struct stock_reply *r, const char *what, struct state_failure *ret);
/* A stack that no row names yet must not be taken for one that nobody needs. Counted. */
void state_hold(struct front *f, const char *stack);
/* It counts for the tenant (may be NULL) until it is released. */
void state_hold_for(struct front *f, const char *stack, const struct tenant *t);
void state_release(struct front *f, const char *stack);
/* Drops it, if no row and no holder names it. */
void state_drop(struct front *f, const char *stack);
/* Some are still on their way. */
bool state_dropping(const struct front *f);
/* Stacks with many layers are flattened in the background, one at a time. */
void state_flatten(struct front *f, const char *stack);
/* --- quotas: state-quota.c ------------------------------------------------------------------------------------------ */
struct state_size {
    uint64_t bytes, entries; /* entries: files, directories, links */
};
struct state_kept {
    uint64_t count; /* snapshots and paused sandboxes */
    struct state_size size;
};
struct state_kept state_kept(struct front *f, const struct tenant *t);
/* Its size, with these stacks. */
struct state_size state_kept_with(struct front *f, const struct tenant *t, const char *const *stacks, size_t n);
/* May the tenant keep so much more? STATE_SOME: nobody knows yet how much; it is refused if there is no room at all. */
#define STATE_NOTHING ((struct state_size){0, 0})
#define STATE_SOME    ((struct state_size){1, 1})
bool state_room(struct front *f, const struct tenant *t, unsigned count, struct state_size more,
                struct state_failure *ret);
bool state_room_count(struct front *f, const struct tenant *t, unsigned count, struct state_failure *ret);
/* In force for a tenant: its quota's, or else the node's; 0: none. */
struct state_size state_limit(const struct front *f, const struct tenant *t);
bool state_within(struct state_size size, struct state_size limit);
/* With what the tenant (may be NULL) holds of `stack`, which is there by now: is it within the quota? */
bool state_fits(struct front *f, const struct tenant *t, const char *stack, struct state_failure *ret);
/* Asks stock for the layers of a stack, "": of all; done() when they are counted. The call, as of stockc_ask(). */
uint64_t state_layers_ask(struct front *f, const char *stack, void (*done)(void *arg), void *arg);
/* True, and why (429): so much of this tenant waits for stock that nothing more is taken. */
bool state_crowded(struct front *f, const struct tenant *t, struct state_failure *ret);
/* A box that shall be paused by itself will be kept: is there room, if that is new to it? */
bool box_life_room(struct front *f, const struct box *b, const struct box_life *life, struct state_failure *ret);

/* --- pause and resume: boxes-pause.c ---------------------------------------------------------------------------- */
typedef void box_paused(void *arg, const struct state_failure *failure);
/* memory: by freezing (pids, servers, memory stay; nothing survives the node's reboot). Else the files are captured and the
 * sandbox ends; its id, token, metadata, environment, network and ports stay, and resuming starts it anew. 409 paused
 * already, 503 busy with another change, 429 no room for its files in the tenant's quota. */
void box_pause(struct front *f, struct box *b, bool memory, box_paused *done, void *arg);
/* A box that is frozen lets go of its memory: its files are captured, and it is stored. */
void box_unload(struct front *f, struct box *b, box_paused *done, void *arg);
/* What this host can do, as far as it is known by now. */
struct state_ability {
    int freeze;                                /* 1 yes, 0 no, -1 nobody has tried yet */
    char driver[KEEPER_DRIVER_MAX], quota[24]; /* of the uppers; "" not known yet */
};
struct state_ability state_ability(const struct front *f);
/* done gets ok with the box running. Requests while it is under way share it. timeout_s 0: as it was. */
void box_resume(struct front *f, struct box *b, uint64_t timeout_s, box_paused *done, void *arg);
/* Traffic for a box: runs `done` at once if it runs, after waking it if it is paused and may be woken (auto_resume or
 * an API call with a key), else with a failure. */
void box_awake(struct front *f, struct box *b, bool traffic, box_paused *done, void *arg);

/* --- snapshots and forks: snapshots.c ----------------------------------------------------------------------------- */
enum { SNAPSHOTS_PER_TENANT = 10000, FORK_MAX = 100 };
struct tmpl; /* templates-rows.c */
struct state_cost {
    uint64_t frozen_us, bytes; /* how long the sandbox stood still; what was captured */
};
typedef void snapshot_done(void *arg, const struct tmpl *t, const struct state_cost *cost,
                           const struct state_failure *failure);
void box_snapshot(struct front *f, struct box *b, const char *name /* NULL: none */, snapshot_done *done, void *arg);
/* count children, each told by its own call of `child`, in any order; index 0..count-1. */
typedef void fork_child(void *arg, unsigned index, struct box *b, const struct state_cost *cost,
                        const struct box_failure *failure);
void box_fork(struct front *f, struct box *b, unsigned count, uint32_t timeout_s, fork_child *child, void *arg);

/* --- templates as rows: templates-rows.c, templates-change.c ------------------------------------------------------ */
enum tmpl_kind { TMPL_BUILT = 1, TMPL_IMPORTED, TMPL_SNAPSHOT };
enum { TMPL_TAGS_MAX = 64, TMPL_TAG_MAX = 64, TMPL_NAME_MAX = 64, TMPL_CONFIG_MAX = 256 << 10 };
enum {
    TMPL_CONFIGS_MAX = 4 << 20,
    TMPL_CONFIGS_TENANT_MAX = 64 << 20
}; /* of all tags of a template, of a tenant, as text */
/* What a sandbox made from it starts with. Owned by the row. */
struct tmpl_config {
    char *user, *workdir; /* NULL: "user" if there is one, else root; its home */
    struct strv env;      /* "K=V" */
    char *start, *ready;  /* commands; NULL */
    uint32_t cpu_milli;   /* 0: the node's default */
    uint64_t memory, disk;
    bool history; /* every exec opens a generation */
};
/* How a build came to be. Shared by its tags, counted; never changed. */
struct tmpl_origin {
    unsigned holders;
    char *image; /* what it was fetched as, in full (struct build_image); NULL: it was built, or came as a file */
    char manifest[SHA256_HEX]; /* digest of the image's; "": not known */
    enum tmpl_kind kind;       /* 0: not known */
    bool with_config;
    struct tmpl_config config; /* but for `history`, which is a setting of the template */
    size_t bytes;              /* of the configuration, as text */
};
struct tmpl_tag {
    char tag[TMPL_TAG_MAX];
    char build[40];
    char stack[STACK_ID_MAX];
    uint64_t created_unix_ms;
    uint64_t bytes;             /* of its own layers; 0: not known */
    bool given;                 /* by somebody, not by the image: what it was fetched as is only to be shown */
    struct tmpl_origin *origin; /* held; NULL: not known */
};
struct tmpl {
    char id[40];              /* what the API calls templateID */
    char name[TMPL_NAME_MAX]; /* "" for a snapshot without a name */
    struct tenant *tenant;    /* owner; NULL: the node's own (imported by the operator), for everybody */
    enum tmpl_kind kind;      /* of the newest build; tmpl_kind_of() has that of a tag */
    bool public;
    char source[SANDBOX_ID_MAX]; /* of the newest snapshot: the sandbox */
    struct tmpl_config config;   /* of the newest build; sandboxes get that of their tag, tmpl_config_of() */
    struct tmpl_tag *tags;       /* at most TMPL_TAGS_MAX; the first is the newest. Owned */
    size_t ntags;
    uint64_t created_unix_ms, updated_unix_ms, spawned, builds, last_spawned_unix_ms;
    uint64_t bytes; /* of its own layers, of the newest build */
};
/* Finds by id (of what the tenant may see), name, name:tag, team/name[:tag]. A name without a team is the tenant's own,
 * then the node's; what others made public is found by id and team/name only. NULL: none (then look at
 * template_resolve). tag (may be NULL) gets the one named, else "default"; NULL if the row has no such tag. */
const struct tmpl *tmpl_find(struct front *f, const struct tenant *t, const char *name, const struct tmpl_tag **tag);
/* Adds a build under a tag (a new row if there is none of that name); the stack it replaces under that tag is dropped if no
 * other tag has it. done when it is on disk. */
struct tmpl_new {
    const char *id, *name, *tag, *build, *stack, *source;
    struct tenant *tenant;
    enum tmpl_kind kind;
    const struct tmpl_config *config;
    const char *image, *manifest; /* as in struct tmpl_origin; NULL: none */
    bool given;                   /* as in struct tmpl_tag */
    uint64_t bytes;
};
typedef void tmpl_done(void *arg, const struct tmpl *t, const struct state_failure *failure);
/* May the tenant (NULL: the node) have a template of this name? If not, why: 429. Asked again, exactly, when it is put. */
bool tmpl_room(struct front *f, const struct tenant *t, const char *name, struct state_failure *ret);
void tmpl_put(struct front *f, const struct tmpl_new *n, tmpl_done *done, void *arg);
void tmpl_remove(struct front *f, const struct tmpl *t, const char *tag /* NULL: all of it */, tmpl_done *done,
                 void *arg);
/* What it was fetched as, in full; "": it was built, or came as a file. */
static inline const char *tmpl_fetched(const struct tmpl_tag *tag)
{
    return tag->origin && tag->origin->image ? tag->origin->image : "";
}
/* The image that the tag stands for, likewise; "": none, also if somebody named it so. */
static inline const char *tmpl_image(const struct tmpl_tag *tag) { return tag->given ? "" : tmpl_fetched(tag); }
static inline enum tmpl_kind tmpl_kind_of(const struct tmpl *t, const struct tmpl_tag *tag)
{
    return tag->origin && tag->origin->kind ? tag->origin->kind : t->kind;
}
/* A build under another tag makes a template of what was a snapshot, which is still one. */
static inline bool tmpl_only_snapshots(const struct tmpl *t)
{
    bool only = t->ntags || t->kind == TMPL_SNAPSHOT;
    for (size_t i = 0; i < t->ntags; i++)
        only &= tmpl_kind_of(t, &t->tags[i]) == TMPL_SNAPSHOT;
    return only;
}
/* What a sandbox of this tag starts with, but for `history`: that is the template's. */
static inline const struct tmpl_config *tmpl_config_of(const struct tmpl *t, const struct tmpl_tag *tag)
{
    return tag->origin && tag->origin->with_config ? &tag->origin->config : &t->config;
}
/* The same as JSON, with it. */
char *tmpl_config_text(const struct tmpl *t, const struct tmpl_tag *tag);
void tmpl_tag(struct front *f, const struct tmpl *t, const struct tmpl_tag *from, const char *tag, tmpl_done *done,
              void *arg);
void tmpl_spawned(struct front *f, const char *id); /* a sandbox was made from it */
/* Its settings, which a later build leaves as they are. TMPL_AS_IT_IS: not changed. */
enum tmpl_switch { TMPL_AS_IT_IS = 0, TMPL_OFF, TMPL_ON };
struct tmpl_settings {
    enum tmpl_switch public, history;
};
void tmpl_set(struct front *f, const struct tmpl *t, const struct tmpl_settings *s, tmpl_done *done, void *arg);
typedef void tmpl_each_fn(void *arg, const struct tmpl *t);
void tmpl_each(struct front *f, const struct tenant *t /* NULL: all */, tmpl_each_fn *fn, void *arg);
void tmpl_config_copy(struct tmpl_config *to, const struct tmpl_config *from);
void tmpl_config_done(struct tmpl_config *c);
/* JSON as it stands in the row, and back. */
char *tmpl_config_json(const struct tmpl_config *c);
int tmpl_config_parse(const char *json, struct tmpl_config *ret, struct err *err);
int tmpls_load(struct front *f, struct err *err);
void tmpls_free(struct front *f);
void tmpls_tenant_gone(struct front *f, const struct tenant *t);
/* Random ids as clients expect them: of a template, of a build (a UUID). */
void tmpl_id_new(char ret[40]);
/* Nobody may call something like an id: it would be found in place of what has it. */
enum { TMPL_ID_CHARS = 20 };
#define TMPL_ID_SHAPED_TEXT "'%.40s' looks like the id of a template (20 letters and digits); take another name"
static inline bool tmpl_id_shaped(const char *name)
{
    return strlen(name) == TMPL_ID_CHARS && strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789") == TMPL_ID_CHARS;
}
void tmpl_build_new(char ret[40]);
void state_meet(struct front *f); /* stock is there (again) */

/* --- the command a template starts with: start-command.c ------------------------------------------------------------ */
enum { START_READY_S = 60 };
struct start_run;
/* Runs config->start in the background, then config->ready until it succeeds; done once, from the loop, with "" or what
 * went wrong. Either may be NULL, not both. */
typedef void start_done(void *arg, const char *failure);
struct start_run *start_command(struct front *f, const struct box *b, start_done *done, void *arg);
void start_cancel(struct start_run *s); /* no callback any more */

#endif
