/* Stacks: captures them, drops them when no row names them, and compares front's rows with what the layer store has. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/log.h"
#include "base/map.h"
#include "base/mem.h"
#include "base/num.h"
#include "peers/layersc.h"
#include "stacks/stacks-int.h"

enum {
    UNNAMED_S = 60,
    MEET_EVERY_MS = 600 * 1000,
    MEET_SOON_MS = (UNNAMED_S + 5) * 1000,
    FLATTEN_MAX = 1024,
    FOREIGN_TOLD = 16,
    WAITING_MAX = 8, /* of one tenant, for the layer store */
};

/* --- holding and dropping ----------------------------------------------------------------------------------------- */

void state_hold_for(struct stacks *st, const char *stack, const struct tenant *t)
{
    struct state_held *h = map_get(&st->held, stack);
    if (!h) {
        h = xcalloc(1, sizeof *h);
        (void)memccpy(h->stack, stack, 0, sizeof h->stack - 1);
        (void)map_put(&st->held, h->stack, h);
    }
    h->n++;
    if (t)
        h->tenant = t;
}

void state_hold(struct stacks *st, const char *stack) { state_hold_for(st, stack, NULL); }

void state_release(struct stacks *st, const char *stack)
{
    struct state_held *h = map_get(&st->held, stack);
    if (!h || --h->n > 0)
        return;
    (void)map_del(&st->held, stack);
    free(h);
}

struct stacks *stacks_new(const struct stacks_deps *d)
{
    struct stacks *st = xcalloc(1, sizeof *st);
    st->loop = d->loop;
    st->config = d->config;
    st->db = d->db;
    st->peers = d->peers;
    return st;
}

void stacks_free(struct stacks *st)
{
    if (!st)
        return;
    size_t at = 0;
    for (struct state_held *h; (h = map_next(&st->held, &at));)
        free(h);
    map_done(&st->held);
    strv_done(&st->to_flatten);
    state_layers_free(st);
    loop_timer_del(st->loop, st->meet_timer);
    free(st);
}

void stacks_add_owner(struct stacks *st, const struct stack_owner *owner, void *ctx)
{
    assert(st->nowners < STACK_OWNERS_MAX);
    st->owners[st->nowners].owner = owner;
    st->owners[st->nowners++].ctx = ctx;
}

void stacks_each_use(struct stacks *st, stack_use_fn *fn, void *arg)
{
    for (size_t i = 0; i < st->nowners; i++)
        if (st->owners[i].owner->each)
            st->owners[i].owner->each(st->owners[i].ctx, fn, arg);
}

struct namer {
    const char *stack;
    bool found;
};

static void stack_use_names(void *arg, const struct stack_use *u)
{
    struct namer *n = arg;
    n->found |= !u->counted_only && strcmp(u->stack, n->stack) == 0;
}

/* Looks in memory, where rows are before they are in the database, and in the database, which also has rows that are
 * not in memory. */
static bool stack_is_named(struct stacks *st, const char *stack)
{
    struct namer n = {.stack = stack};
    if (map_get(&st->held, stack))
        return true;
    stacks_each_use(st, stack_use_names, &n);
    return n.found || db_stack_named(st->db, stack);
}

static void state_on_meet_timer(void *arg)
{
    struct stacks *st = arg;
    st->meet_timer = 0;
    state_meet(st);
}

static void state_meet_in(struct stacks *st, uint64_t ms)
{
    loop_timer_del(st->loop, st->meet_timer);
    st->meet_at_ms = loop_now(st->loop) + ms;
    st->meet_timer = loop_timer(st->loop, ms, state_on_meet_timer, st);
}

/* Compares again soon: some stacks are unnamed but too young to be dropped; a previous front may have left them. */
static void state_meet_soon(struct stacks *st)
{
    if (st->meet_at_ms > loop_now(st->loop) + MEET_SOON_MS)
        state_meet_in(st, MEET_SOON_MS);
}

static void state_on_dropped(void *arg, const struct layers_reply *r, int fd)
{
    struct stacks *st = arg;
    if (fd >= 0)
        (void)close(fd);
    st->dropping--;
    if (r->error == LAYERS_OK)
        return;
    log_text(LOG_LEVEL_WARN, "a stack could not be dropped (%s); it is tried again later", r->text);
    state_meet_soon(st);
}

static void state_drop_stack(struct stacks *st, const char *stack)
{
    state_layers_forget(st, stack);
    st->dropping++;
    (void)layersc_drop(st->peers->layers, &(struct layersc_to){.done = state_on_dropped, .arg = st}, stack);
}

struct drop_later {
    struct stacks *stacks;
    char stack[STACK_ID_MAX];
};

static void state_drop_free(struct drop_later *d)
{
    d->stacks->dropping--;
    free(d);
}

static bool state_drop_may_go(const struct drop_later *d)
{
    return d->stacks->peers->layers && !stack_is_named(d->stacks, d->stack);
}

/* Ignores a failed sync: on a full disk dropping stacks is what frees space. */
static void state_drop_on_synced(void *arg, const struct err *err)
{
    struct drop_later *d = arg;
    (void)err;
    if (state_drop_may_go(d))
        state_drop_stack(d->stacks, d->stack);
    state_drop_free(d);
}

/* The deletion of the last row that named the stack is committed by now. Sync before the drop: the layer store
 * deletes for good, and a power cut must not bring back a row that names the stack. */
static void state_drop_on_barrier(void *arg, const struct err *err)
{
    struct drop_later *d = arg;
    (void)err;
    if (state_drop_may_go(d))
        db_sync(d->stacks->db, state_drop_on_synced, d);
    else
        state_drop_free(d);
}

void state_drop(struct stacks *st, const char *stack)
{
    if (!stack[0] || !st->peers->layers)
        return;
    struct drop_later *d = xcalloc(1, sizeof *d);
    d->stacks = st;
    st->dropping++;
    (void)memccpy(d->stack, stack, 0, sizeof d->stack - 1);
    db_barrier(st->db, state_drop_on_barrier, d);
}

bool state_dropping(const struct stacks *st) { return st->dropping > 0; }

/* --- captures ----------------------------------------------------------------------------------------------------- */

struct capture {
    struct stacks *stacks;
    const struct tenant *tenant; /* NULL: the sandbox had ended before */
    char stack[STACK_ID_MAX];
    state_captured *done;
    void *arg;
};

/* Replaces the layer store's answer by STATE_NO_ROOM if the captured stack exceeds the tenant's quota; the caller
 * then drops it. */
static bool capture_exceeds_quota(const struct capture *c, struct layers_reply *r)
{
    struct state_failure full = {0};
    if (state_fits(c->stacks, c->tenant, c->stack, &full))
        return false;
    r->error = STATE_NO_ROOM;
    (void)snprintf(r->text, sizeof r->text, "%.*s", (int)sizeof r->text - 1, full.text);
    return true;
}

static void capture_on_reply(void *arg, const struct layers_reply *r, int fd)
{
    struct capture *c = arg;
    struct stacks *st = c->stacks;
    struct layers_reply answer = *r;
    bool full = false;
    if (r->error == LAYERS_OK) {
        if (fd >= 0)
            state_layers_read(st, fd);
        else
            state_layers_guess(st, c->stack, r->bytes);
        full = capture_exceeds_quota(c, &answer);
    }
    if (fd >= 0)
        (void)close(fd);
    if (answer.error == LAYERS_OK && r->entries2 > STACK_FLATTEN_AT)
        state_flatten(st, c->stack);
    c->done(c->arg, &answer);
    if (full)
        state_drop(st, c->stack);
    free(c);
}

static void capture_on_no_layers(void *arg)
{
    struct layers_reply r = {.error = LAYERS_BUSY};
    (void)memccpy(r.text, "the process that keeps files is not there", 0, sizeof r.text - 1);
    capture_on_reply(arg, &r, -1);
}

static void capture_ask(struct stacks *st, const char *sandbox, const struct tenant *t, const char stack[STACK_ID_MAX],
                        const char *earlier, uint32_t flags, state_captured *done, void *arg)
{
    struct capture *c = xcalloc(1, sizeof *c);
    *c = (struct capture){.stacks = st, .tenant = t, .done = done, .arg = arg};
    (void)memccpy(c->stack, stack, 0, sizeof c->stack - 1);
    state_hold_for(st, stack, c->tenant);
    if (!st->peers->layers) {
        loop_defer(st->loop, capture_on_no_layers, c);
        return;
    }
    const struct layersc_to to = {.owner = t ? t->id : NULL, .done = capture_on_reply, .arg = c};
    (void)layersc_capture(st->peers->layers, &to, sandbox, stack, earlier, flags);
}

void state_capture(struct stacks *st, const char *sandbox, const struct tenant *t, const char stack[STACK_ID_MAX],
                   bool freeze, state_captured *done, void *arg)
{
    capture_ask(st, sandbox, t, stack, "", freeze ? LAYERS_FREEZE : 0, done, arg);
}

void state_capture_after(struct stacks *st, const char *sandbox, const struct tenant *t, const char stack[STACK_ID_MAX],
                         const char *earlier, bool freeze, state_captured *done, void *arg)
{
    capture_ask(st, sandbox, t, stack, earlier, freeze ? LAYERS_FREEZE : 0, done, arg);
}

void state_layers_failure(const struct layers_reply *r, const char *what, struct state_failure *ret)
{
    static const unsigned status[] = {
        [LAYERS_BAD_REQUEST] = 400, [LAYERS_NOT_FOUND] = 404, [LAYERS_BUSY] = 503,     [LAYERS_HOST] = 501,
        [LAYERS_BAD_DATA] = 500,    [LAYERS_TOO_LARGE] = 413, [LAYERS_NO_SPACE] = 507, [LAYERS_CONFLICT] = 409,
        [LAYERS_DENIED] = 403,      [LAYERS_CANCELLED] = 503, [LAYERS_FAILED] = 500,   [LAYERS_HALF] = 507,
    };
    if (r->error == STATE_NO_ROOM) {
        state_fail(ret, 429, "%s could not be kept: %.*s", what, (int)sizeof r->text, r->text);
        ret->error_code = "quota_exceeded";
        return;
    }
    unsigned code = r->error < ARRAY_LEN(status) && status[r->error] ? status[r->error] : 500;
    state_fail(ret, code, "%s could not be made: %.*s", what, (int)sizeof r->text, r->text);
}

/* --- flattening --------------------------------------------------------------------------------------------------- */

static void state_flatten_next(struct stacks *st);

static void state_on_flattened(void *arg, const struct layers_reply *r, int fd)
{
    struct stacks *st = arg;
    if (fd >= 0)
        (void)close(fd);
    st->flattening = false;
    if (r->error == LAYERS_OK && st->peers->layers && st->flat[0])
        (void)state_layers_ask(st, st->flat, NULL, NULL);
    if (r->error != LAYERS_OK && r->error != LAYERS_NOT_FOUND)
        log_text(LOG_LEVEL_WARN, "a stack could not be made into one layer: %s", r->text);
    state_flatten_next(st);
}

static void state_flatten_next(struct stacks *st)
{
    if (st->flattening || !st->to_flatten.n || !st->peers->layers)
        return;
    char *stack = st->to_flatten.v[--st->to_flatten.n];
    st->to_flatten.v[st->to_flatten.n] = NULL;
    (void)snprintf(st->flat, sizeof st->flat, "%s", stack);
    free(stack);
    st->flattening = true;
    (void)layersc_flatten(st->peers->layers, &(struct layersc_to){.done = state_on_flattened, .arg = st}, st->flat);
}

void state_flatten(struct stacks *st, const char *stack)
{
    if (st->to_flatten.n < FLATTEN_MAX && !strv_has(&st->to_flatten, stack))
        strv_add(&st->to_flatten, stack);
    state_flatten_next(st);
}

/* --- quotas ------------------------------------------------------------------------------------------------------- */

bool state_crowded(struct stacks *st, const struct tenant *t, struct state_failure *ret)
{
    if (!st->peers->layers || layersc_waiting(st->peers->layers, t->id) < WAITING_MAX)
        return false;
    state_fail(ret, 429, "%d operations of this tenant wait for the store already; try again", WAITING_MAX);
    return true;
}

/* --- front and the layer store meet ------------------------------------------------------------------------------- */

static void stack_use_add(void *arg, const struct stack_use *u)
{
    if (u->stack[0] && !u->counted_only)
        (void)map_put(arg, u->stack, (void *)u->stack);
}

/* Collects all stacks that rows in memory name, because single lookups would take quadratic time. */
static void state_collect_named(struct stacks *st, struct map *named)
{
    size_t at = 0;
    stacks_each_use(st, stack_use_add, named);
    for (struct state_held *h; (h = map_next(&st->held, &at));)
        (void)map_put(named, h->stack, h);
}

/* A list requested from the layer store, and the stacks of paused sandboxes at that time. */
struct state_meeting {
    struct stacks *stacks;
    struct strv files;
};

struct missing {
    const struct map *before, *there;
};

static void stack_use_warn_missing(void *arg, const struct stack_use *u)
{
    const struct missing *m = arg;
    if (u->files_of && map_get(m->before, u->stack) && !map_get(m->there, u->stack))
        log_text(LOG_LEVEL_ERROR, "the files of the paused sandbox %s (stack %s) are not in the store", u->files_of,
                 u->stack);
}

/* Logs paused sandboxes whose stack is missing, except those paused after the list was requested. */
static void state_warn_missing(struct stacks *st, const struct strv *asked, const struct map *there)
{
    struct map before = {0};
    for (size_t i = 0; i < asked->n; i++)
        (void)map_put(&before, asked->v[i], asked->v[i]);
    stacks_each_use(st, stack_use_warn_missing, &(struct missing){&before, there});
    map_done(&before);
}

static int64_t state_newest_item(const struct layers_item *v, size_t n)
{
    int64_t newest = 0;
    for (size_t i = 0; i < n; i++)
        newest = v[i].created_unix > newest ? v[i].created_unix : newest;
    return newest;
}

static void state_tell_foreign(const struct stacks *st, const struct strv *ids)
{
    _cleanup_buf_ struct buf names = {0};
    for (size_t i = 0; i < ids->n && i < FOREIGN_TOLD; i++)
        buf_addf(&names, "%s%s", i ? ", " : "", ids->v[i]);
    if (ids->n > FOREIGN_TOLD)
        buf_addf(&names, " and %zu more", ids->n - FOREIGN_TOLD);
    log_text(
        LOG_LEVEL_ERROR,
        "%zu stacks and volumes in %s/stock are kept although store.db names none of them, because they are older than "
        "it, or than its being put back from a copy: %s; to take them back, put the store.db back that names them; to "
        "get rid of them, see 'Backup' in docs/node.md",
        ids->n, st->config->state, buf_str(&names));
}

static void state_compare_listed(struct stacks *st, const struct strv *asked, const struct layers_item *v, size_t n)
{
    struct map there = {0}, named = {0};
    int64_t now = (int64_t)time(NULL);
    size_t gone = 0, young = 0;
    _cleanup_strv_ struct strv foreign = {0};
    int64_t born = db_born(st->db, state_newest_item(v, n));
    state_collect_named(st, &named);
    for (size_t i = 0; i < n; i++) {
        if (!stack_id_valid(v[i].id))
            continue; /* a volume */
        (void)map_put(&there, v[i].id, (void *)&v[i]);
        bool unnamed = !map_get(&named, v[i].id) && !db_stack_named(st->db, v[i].id);
        if (unnamed && v[i].created_unix + UNNAMED_S >= now) {
            young++;
        } else if (unnamed && v[i].created_unix < born) {
            strv_add(&foreign, v[i].id);
        } else if (unnamed) {
            state_drop_stack(st, v[i].id);
            gone++;
        } else if (v[i].nlayers > STACK_FLATTEN_AT)
            state_flatten(st, v[i].id);
    }
    state_warn_missing(st, asked, &there);
    for (size_t i = 0; i < st->nowners; i++)
        if (st->owners[i].owner->meet)
            young += st->owners[i].owner->meet(st->owners[i].ctx, v, n, born, &foreign);
    if (young)
        state_meet_soon(st);
    if (foreign.n)
        state_tell_foreign(st, &foreign);
    map_done(&there);
    map_done(&named);
    struct log_line l;
    if (log_start(&l, LOG_LEVEL_INFO, "met the layer store")) {
        log_u64(&l, "stacks", n);
        log_u64(&l, "dropped", gone);
        log_end(&l);
    }
}

static void state_on_list(void *arg, const struct layers_item *v, size_t n, const struct layers_reply *failed)
{
    struct state_meeting *m = arg;
    if (failed)
        log_text(LOG_LEVEL_WARN, "the layer store cannot tell what it has: %s", failed->text);
    else
        state_compare_listed(m->stacks, &m->files, v, n);
    strv_done(&m->files);
    free(m);
}

static void stack_use_add_files(void *arg, const struct stack_use *u)
{
    if (u->files_of)
        strv_add(arg, u->stack);
}

static void state_ask_list(struct stacks *st)
{
    struct state_meeting *m = xcalloc(1, sizeof *m);
    m->stacks = st;
    stacks_each_use(st, stack_use_add_files, &m->files);
    layersc_list(st->peers->layers, state_on_list, m);
}

void state_meet(struct stacks *st)
{
    if (!st->peers->layers)
        return;
    st->flattening = false; /* a pending request is sent again automatically; doing it twice is harmless */
    state_meet_in(st, MEET_EVERY_MS);
    state_ask_list(st);
    (void)state_layers_ask(st, "", NULL, NULL);
}
