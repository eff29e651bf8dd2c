/* Stacks and who names them: captures, what is dropped when, and the comparison of front's rows with what stock has. */
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/log.h"
#include "base/map.h"
#include "base/mem.h"
#include "base/num.h"
#include "front/boxes-int.h"
#include "front/state.h"
#include "front/volumes.h"
#include "sandbox/stockc.h"

enum {
    UNNAMED_S = 60,
    MEET_EVERY_MS = 600 * 1000,
    MEET_SOON_MS = (UNNAMED_S + 5) * 1000,
    FLATTEN_MAX = 1024,
    FOREIGN_TOLD = 16,
    WAITING_MAX = 8, /* of one tenant, for stock */
};

/* --- holding and dropping ------------------------------------------------------------------------------------------ */

void state_hold_for(struct front *f, const char *stack, const struct tenant *t)
{
    struct state_held *h = map_get(&f->boxes->held, stack);
    if (!h) {
        h = xcalloc(1, sizeof *h);
        (void)memccpy(h->stack, stack, 0, sizeof h->stack - 1);
        (void)map_put(&f->boxes->held, h->stack, h);
    }
    h->n++;
    if (t)
        h->tenant = t;
}

void state_hold(struct front *f, const char *stack) { state_hold_for(f, stack, NULL); }

void state_release(struct front *f, const char *stack)
{
    struct state_held *h = map_get(&f->boxes->held, stack);
    if (!h || --h->n > 0)
        return;
    (void)map_del(&f->boxes->held, stack);
    free(h);
}

void state_held_free(struct front *f)
{
    size_t at = 0;
    for (struct state_held *h; (h = map_next(&f->boxes->held, &at));)
        free(h);
    map_done(&f->boxes->held);
    strv_done(&f->boxes->to_flatten);
    state_layers_free(f);
}

struct namer {
    const char *stack;
    bool found;
};

static void tmpl_names(void *arg, const struct tmpl *t)
{
    struct namer *n = arg;
    for (size_t i = 0; i < t->ntags && !n->found; i++)
        n->found = strcmp(t->tags[i].stack, n->stack) == 0;
}

/* By what is in memory, where rows are before they are in the store; and by the store, which also has the rows of others. */
static bool is_named(struct front *f, const char *stack)
{
    struct namer n = {.stack = stack};
    size_t at = 0;
    if (map_get(&f->boxes->held, stack))
        return true;
    for (struct box *b; (b = map_next(&f->boxes->by_id, &at));)
        if (strcmp(b->stack, stack) == 0)
            return true;
    tmpl_each(f, NULL, tmpl_names, &n);
    return n.found || store_stack_named(f->store, stack);
}

static void meet_again(void *arg)
{
    struct front *f = arg;
    f->boxes->meet_timer = 0;
    state_meet(f);
}

static void meet_in(struct front *f, uint64_t ms)
{
    loop_timer_del(f->loop, f->boxes->meet_timer);
    f->boxes->meet_at_ms = loop_now(f->loop) + ms;
    f->boxes->meet_timer = loop_timer(f->loop, ms, meet_again, f);
}

/* Something is there that nobody seems to need: the front before us may have died just before it dropped that. */
static void meet_soon(struct front *f)
{
    if (f->boxes->meet_at_ms > loop_now(f->loop) + MEET_SOON_MS)
        meet_in(f, MEET_SOON_MS);
}

static void dropped(void *arg, const struct stock_reply *r, int fd)
{
    struct front *f = arg;
    if (fd >= 0)
        (void)close(fd);
    if (f->boxes)
        f->boxes->dropping--;
    if (r->error == STOCK_OK)
        return;
    log_text(LOG_LEVEL_WARN, "a stack could not be dropped (%s); it is tried again later", r->text);
    if (f->boxes)
        meet_soon(f);
}

static void drop(struct front *f, const char *stack)
{
    struct stock_request q = stockc_request(STOCK_DROP);
    (void)memccpy(q.stack, stack, 0, sizeof q.stack - 1);
    state_layers_forget(f, stack);
    f->boxes->dropping++;
    (void)stockc_ask(f->stock, &q, NULL, 0, NULL, dropped, f);
}

struct drop_later {
    struct front *front;
    char stack[STACK_ID_MAX];
};

static void free_later(struct drop_later *d)
{
    if (d->front->boxes)
        d->front->boxes->dropping--;
    free(d);
}

static bool may_go(const struct drop_later *d)
{
    return d->front->boxes && d->front->stock && !is_named(d->front, d->stack);
}

/* On a full disk that fails, and what it takes has to go all the same. */
static void drop_now(void *arg, const struct err *err)
{
    struct drop_later *d = arg;
    (void)err;
    if (may_go(d))
        drop(d->front, d->stack);
    free_later(d);
}

/* The row that named it last is deleted by now, or its deletion stands in the queue before this. Stock lets it go for good: a
 * row that comes back with a power cut must not name it. */
static void drop_soon(void *arg, const struct err *err)
{
    struct drop_later *d = arg;
    (void)err;
    if (may_go(d))
        store_sync(d->front->store, drop_now, d);
    else
        free_later(d);
}

void state_drop(struct front *f, const char *stack)
{
    if (!stack[0] || !f->stock || !f->boxes)
        return;
    struct drop_later *d = xcalloc(1, sizeof *d);
    d->front = f;
    f->boxes->dropping++;
    (void)memccpy(d->stack, stack, 0, sizeof d->stack - 1);
    store_barrier(f->store, drop_soon, d);
}

bool state_dropping(const struct front *f) { return f->boxes && f->boxes->dropping > 0; }

/* --- captures ------------------------------------------------------------------------------------------------------ */

struct capture {
    struct front *front;
    const struct tenant *tenant; /* NULL: the sandbox was gone already */
    char stack[STACK_ID_MAX];
    state_captured *done;
    void *arg;
};

/* What is there by now is too much: whoever asked is told so, in place of stock's answer, and lets it go. */
static bool too_much(const struct capture *c, struct stock_reply *r)
{
    struct state_failure full = {0};
    if (state_fits(c->front, c->tenant, c->stack, &full))
        return false;
    r->error = STATE_NO_ROOM;
    (void)snprintf(r->text, sizeof r->text, "%.*s", (int)sizeof r->text - 1, full.text);
    return true;
}

static void captured(void *arg, const struct stock_reply *r, int fd)
{
    struct capture *c = arg;
    struct front *f = c->front;
    struct stock_reply answer = *r;
    bool full = false;
    if (r->error == STOCK_OK && f->boxes) {
        if (fd >= 0)
            state_layers_read(f, fd);
        else
            state_layers_guess(f, c->stack, r->bytes);
        full = too_much(c, &answer);
    }
    if (fd >= 0)
        (void)close(fd);
    if (answer.error == STOCK_OK && r->entries2 > STACK_FLATTEN_AT)
        state_flatten(f, c->stack);
    c->done(c->arg, &answer);
    if (full)
        state_drop(f, c->stack);
    free(c);
}

static void no_stock(void *arg)
{
    struct stock_reply r = {.error = STOCK_BUSY};
    (void)memccpy(r.text, "the process that keeps files is not there", 0, sizeof r.text - 1);
    captured(arg, &r, -1);
}

void state_capture(struct front *f, const char *box, const char stack[STACK_ID_MAX], bool freeze, state_captured *done,
                   void *arg)
{
    state_capture_after(f, box, stack, "", freeze, done, arg);
}

void state_capture_after(struct front *f, const char *box, const char stack[STACK_ID_MAX], const char *earlier,
                         bool freeze, state_captured *done, void *arg)
{
    const struct box *b = box_find(f, box);
    struct capture *c = xcalloc(1, sizeof *c);
    *c = (struct capture){.front = f, .tenant = b ? b->tenant : NULL, .done = done, .arg = arg};
    (void)memccpy(c->stack, stack, 0, sizeof c->stack - 1);
    state_hold_for(f, stack, c->tenant);
    if (!f->stock) {
        loop_defer(f->loop, no_stock, c);
        return;
    }
    struct stock_request q = stockc_request(STOCK_CAPTURE);
    q.flags = freeze ? STOCK_FREEZE : 0;
    (void)memccpy(q.box, box, 0, sizeof q.box - 1);
    (void)memccpy(q.stack, stack, 0, sizeof q.stack - 1);
    (void)memccpy(q.other, earlier, 0, sizeof q.other - 1);
    (void)stockc_ask_for(f->stock, b ? b->tenant->id : "", &q, NULL, 0, NULL, captured, c);
}

void state_stock_failure(const struct stock_reply *r, const char *what, struct state_failure *ret)
{
    static const unsigned status[] = {
        [STOCK_BAD_REQUEST] = 400, [STOCK_NOT_FOUND] = 404, [STOCK_BUSY] = 503,     [STOCK_HOST] = 501,
        [STOCK_BAD_DATA] = 500,    [STOCK_TOO_LARGE] = 413, [STOCK_NO_SPACE] = 507, [STOCK_CONFLICT] = 409,
        [STOCK_DENIED] = 403,      [STOCK_CANCELLED] = 503, [STOCK_FAILED] = 500,
    };
    if (r->error == STATE_NO_ROOM) {
        state_fail(ret, 429, "%s could not be kept: %.*s", what, (int)sizeof r->text, r->text);
        ret->error_code = "quota_exceeded";
        return;
    }
    unsigned code = r->error < ARRAY_LEN(status) && status[r->error] ? status[r->error] : 500;
    state_fail(ret, code, "%s could not be made: %.*s", what, (int)sizeof r->text, r->text);
}

/* --- flattening ---------------------------------------------------------------------------------------------------- */

static void flatten_next(struct front *f);

static void flattened(void *arg, const struct stock_reply *r, int fd)
{
    struct front *f = arg;
    if (fd >= 0)
        (void)close(fd);
    if (!f->boxes)
        return;
    f->boxes->flattening = false;
    if (r->error == STOCK_OK && f->stock && f->boxes->flat[0])
        (void)state_layers_ask(f, f->boxes->flat, NULL, NULL);
    if (r->error != STOCK_OK && r->error != STOCK_NOT_FOUND)
        log_text(LOG_LEVEL_WARN, "a stack could not be made into one layer: %s", r->text);
    flatten_next(f);
}

static void flatten_next(struct front *f)
{
    struct boxes *bs = f->boxes;
    if (bs->flattening || !bs->to_flatten.n || !f->stock)
        return;
    struct stock_request q = stockc_request(STOCK_FLATTEN);
    char *stack = bs->to_flatten.v[--bs->to_flatten.n];
    bs->to_flatten.v[bs->to_flatten.n] = NULL;
    (void)memccpy(q.stack, stack, 0, sizeof q.stack - 1);
    memcpy(bs->flat, q.stack, sizeof bs->flat);
    free(stack);
    bs->flattening = true;
    (void)stockc_ask(f->stock, &q, NULL, 0, NULL, flattened, f);
}

void state_flatten(struct front *f, const char *stack)
{
    if (f->boxes->to_flatten.n < FLATTEN_MAX && !strv_has(&f->boxes->to_flatten, stack))
        strv_add(&f->boxes->to_flatten, stack);
    flatten_next(f);
}

/* --- quotas -------------------------------------------------------------------------------------------------------- */

bool state_crowded(struct front *f, const struct tenant *t, struct state_failure *ret)
{
    if (!f->stock || stockc_waiting(f->stock, t->id) < WAITING_MAX)
        return false;
    state_fail(ret, 429, "%d operations of this tenant wait for the store already; try again", WAITING_MAX);
    return true;
}

/* --- front and stock meet ------------------------------------------------------------------------------------------ */

static void add_tags(void *arg, const struct tmpl *t)
{
    for (size_t i = 0; i < t->ntags; i++)
        (void)map_put(arg, t->tags[i].stack, (void *)t);
}

/* Everything that rows in memory name: looked up one by one it would take the square of their number. */
static void collect_named(struct front *f, struct map *named)
{
    size_t at = 0;
    for (struct box *b; (b = map_next(&f->boxes->by_id, &at));)
        if (b->stack[0])
            (void)map_put(named, b->stack, b);
    tmpl_each(f, NULL, add_tags, named);
    at = 0;
    for (struct state_held *h; (h = map_next(&f->boxes->held, &at));)
        (void)map_put(named, h->stack, h);
}

/* A question to stock, and which stacks were those of paused boxes when it was asked. */
struct state_meeting {
    struct front *front;
    struct strv stacks;
};

/* A box that was paused after the question was asked need not be in the answer. */
static void warn_missing(struct front *f, const struct strv *asked, const struct map *there)
{
    struct map before = {0};
    size_t at = 0;
    for (size_t i = 0; i < asked->n; i++)
        (void)map_put(&before, asked->v[i], asked->v[i]);
    for (struct box *b; (b = map_next(&f->boxes->by_id, &at));)
        if (b->state == BOX_STORED && map_get(&before, b->stack) && !map_get(there, b->stack))
            log_text(LOG_LEVEL_ERROR, "the files of the paused sandbox %s (stack %s) are not in the store", b->id,
                     b->stack);
    map_done(&before);
}

static int64_t newest_of(const struct stock_item *v, size_t n)
{
    int64_t newest = 0;
    for (size_t i = 0; i < n; i++)
        newest = v[i].created_unix > newest ? v[i].created_unix : newest;
    return newest;
}

static void tell_foreign(const struct front *f, const struct strv *ids)
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
        ids->n, f->config->state, buf_str(&names));
}

static void compare_listed(struct front *f, const struct strv *asked, const struct stock_item *v, size_t n)
{
    struct map there = {0}, named = {0};
    int64_t now = (int64_t)time(NULL);
    size_t gone = 0, young = 0;
    _cleanup_strv_ struct strv foreign = {0};
    int64_t born = store_born(f->store, newest_of(v, n));
    collect_named(f, &named);
    for (size_t i = 0; i < n; i++) {
        if (!stack_id_valid(v[i].id))
            continue; /* a volume */
        (void)map_put(&there, v[i].id, (void *)&v[i]);
        bool unnamed = !map_get(&named, v[i].id) && !store_stack_named(f->store, v[i].id);
        if (unnamed && v[i].created_unix + UNNAMED_S >= now) {
            young++;
        } else if (unnamed && v[i].created_unix < born) {
            strv_add(&foreign, v[i].id);
        } else if (unnamed) {
            drop(f, v[i].id);
            gone++;
        } else if (v[i].nlayers > STACK_FLATTEN_AT)
            state_flatten(f, v[i].id);
    }
    warn_missing(f, asked, &there);
    young += volumes_meet(f, v, n, born, &foreign);
    if (young)
        meet_soon(f);
    if (foreign.n)
        tell_foreign(f, &foreign);
    map_done(&there);
    map_done(&named);
    struct log_line l;
    if (log_start(&l, LOG_LEVEL_INFO, "met stock")) {
        log_u64(&l, "stacks", n);
        log_u64(&l, "dropped", gone);
        log_end(&l);
    }
}

static void listed(void *arg, const struct stock_item *v, size_t n, const struct stock_reply *failed)
{
    struct state_meeting *m = arg;
    if (failed)
        log_text(LOG_LEVEL_WARN, "stock cannot tell what it has: %s", failed->text);
    else if (m->front->boxes)
        compare_listed(m->front, &m->stacks, v, n);
    strv_done(&m->stacks);
    free(m);
}

static void ask_for_list(struct front *f)
{
    struct state_meeting *m = xcalloc(1, sizeof *m);
    size_t at = 0;
    m->front = f;
    for (struct box *b; (b = map_next(&f->boxes->by_id, &at));)
        if (b->state == BOX_STORED)
            strv_add(&m->stacks, b->stack);
    stockc_list(f->stock, listed, m);
}

void state_meet(struct front *f)
{
    if (!f->boxes || !f->stock)
        return;
    f->boxes->flattening = false; /* one that was under way is sent again by itself; a second does no harm */
    meet_in(f, MEET_EVERY_MS);
    ask_for_list(f);
    (void)state_layers_ask(f, "", NULL, NULL);
}
