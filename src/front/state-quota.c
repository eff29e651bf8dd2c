/* How much a tenant keeps. Nothing is added up as it comes and goes: whenever somebody asks, the layers that the tenant's rows
 * reach are counted, each once. Which layers a stack has is told by stock, with every capture and for all of them whenever
 * front and stock meet; so what is shared, dropped, flattened or pushed out of a history is counted for what it is.
 *
 * Layers of the node's own templates are nobody's. Those of a template that a tenant made public are that tenant's; if several
 * have one, of the oldest: what was built on it stays as cheap as it was when it is made public, too.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/num.h"
#include "front/boxes-int.h"
#include "front/generations.h"
#include "front/transactions.h"
#include "front/volumes.h"
#include "sandbox/stockc.h"

enum { AT_ONCE = 256 };

struct layer {
    char name[SHA256_HEX]; /* its digest; of what stock has not told yet, the stack's id */
    struct state_size size;
    unsigned stacks;             /* that have it */
    uint64_t node, public, seen; /* the round in which it was marked so */
    const struct tmpl *of;       /* in that round: the oldest public template that has it */
};
struct layered {
    char stack[STACK_ID_MAX];
    bool told; /* by stock; else a guess, by the row */
    size_t n;
    struct layer *v[];
};
struct layers {
    struct map stacks, layers;
    uint64_t round;
};

/* --- what stock told ----------------------------------------------------------------------------------------------- */

static struct layers *layers_of(struct front *f)
{
    if (!f->boxes->layers)
        f->boxes->layers = xcalloc(1, sizeof *f->boxes->layers);
    return f->boxes->layers;
}

static struct layer *layer_take(struct layers *ls, const char *name, struct state_size size)
{
    struct layer *l = map_get(&ls->layers, name);
    if (!l) {
        l = xcalloc(1, sizeof *l);
        (void)memccpy(l->name, name, 0, sizeof l->name - 1);
        (void)map_put(&ls->layers, l->name, l);
    }
    l->size = size;
    l->stacks++;
    return l;
}

static void layered_free(struct layers *ls, struct layered *s)
{
    if (!s)
        return;
    for (size_t i = 0; i < s->n; i++)
        if (--s->v[i]->stacks == 0) {
            (void)map_del(&ls->layers, s->v[i]->name);
            free(s->v[i]);
        }
    free(s);
}

void state_layers_forget(struct front *f, const char *stack)
{
    struct layers *ls = layers_of(f);
    layered_free(ls, map_del(&ls->stacks, stack));
}

void state_layers_free(struct front *f)
{
    struct layers *ls = f->boxes->layers;
    size_t at = 0;
    if (!ls)
        return;
    for (struct layered *s; (s = map_next(&ls->stacks, &at));)
        layered_free(ls, s);
    map_done(&ls->stacks);
    map_done(&ls->layers);
    free(ls);
    f->boxes->layers = NULL;
}

static void put(struct layers *ls, const struct stock_layer *v, size_t n)
{
    static const uint8_t none[SHA256_BYTES];
    struct layered *s = xcalloc(1, sizeof *s + n * sizeof s->v[0]);
    char name[SHA256_HEX];
    (void)memccpy(s->stack, v[0].stack, 0, sizeof s->stack - 1);
    s->told = true;
    for (size_t i = 0; i < n; i++) {
        if (memcmp(v[i].digest, none, sizeof none) == 0)
            continue;
        sha256_text(v[i].digest, name);
        s->v[s->n++] = layer_take(ls, name, (struct state_size){v[i].bytes, v[i].entries});
    }
    /* The new ones first: a layer that both have stays. */
    layered_free(ls, map_del(&ls->stacks, s->stack));
    (void)map_put(&ls->stacks, s->stack, s);
}

/* The records of a stack stand together, but a read may end between them. */
void state_layers_read(struct front *f, int fd)
{
    struct layers *ls = layers_of(f);
    struct stock_layer in[AT_ONCE], of[STACK_LAYERS_MAX];
    size_t n = 0;
    for (;;) {
        ssize_t got = read(fd, in, sizeof in);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            break;
        for (size_t i = 0; i < (size_t)got / sizeof in[0]; i++) {
            in[i].stack[sizeof in[i].stack - 1] = '\0';
            if (n && (n == STACK_LAYERS_MAX || strcmp(of[0].stack, in[i].stack) != 0)) {
                put(ls, of, n);
                n = 0;
            }
            of[n++] = in[i];
        }
    }
    if (n)
        put(ls, of, n);
}

struct asking {
    struct front *front;
    char stack[STACK_ID_MAX];
    void (*done)(void *arg);
    void *arg;
};

static void told(void *arg, const struct stock_reply *r, int fd)
{
    _cleanup_free_ struct asking *a = arg;
    _cleanup_close_ int own = fd;
    if (!a->front->boxes)
        return;
    if (r->error == STOCK_OK && own >= 0)
        state_layers_read(a->front, own);
    else if (r->error == STOCK_NOT_FOUND)
        state_layers_forget(a->front, a->stack);
    else
        log_text(LOG_LEVEL_WARN, "stock cannot tell the layers of what it has: %s", r->text);
    if (a->done)
        a->done(a->arg);
}

uint64_t state_layers_ask(struct front *f, const char *stack, void (*done)(void *arg), void *arg)
{
    struct stock_request q = stockc_request(STOCK_LAYERS);
    struct asking *a = xcalloc(1, sizeof *a);
    *a = (struct asking){.front = f, .done = done, .arg = arg};
    (void)memccpy(a->stack, stack, 0, sizeof a->stack - 1);
    (void)memccpy(q.stack, stack, 0, sizeof q.stack - 1);
    return stockc_ask(f->stock, &q, NULL, 0, NULL, told, a);
}

/* Until stock has told, what the row says. */
static const struct layered *layers_guess(struct front *f, const char *stack, uint64_t bytes)
{
    struct layers *ls = layers_of(f);
    struct layered *s = map_get(&ls->stacks, stack);
    if (s && (s->told || s->v[0]->size.bytes >= bytes))
        return s;
    layered_free(ls, map_del(&ls->stacks, stack));
    s = xcalloc(1, sizeof *s + sizeof s->v[0]);
    (void)memccpy(s->stack, stack, 0, sizeof s->stack - 1);
    s->v[s->n++] = layer_take(ls, s->stack, (struct state_size){bytes, stock_volume_entries(bytes)});
    (void)map_put(&ls->stacks, s->stack, s);
    return s;
}

void state_layers_guess(struct front *f, const char *stack, uint64_t bytes) { (void)layers_guess(f, stack, bytes); }

/* --- counting ------------------------------------------------------------------------------------------------------ */

struct counting {
    struct front *front;
    struct layers *layers;
    const struct tenant *tenant;
    struct state_kept kept;
};

static void add_size(struct state_size *to, struct state_size more)
{
    to->bytes += more.bytes;
    to->entries += more.entries;
}

static void add_stack(struct counting *n, const char *stack, uint64_t bytes)
{
    if (!stack_id_valid(stack))
        return; /* a directory of the templates */
    const struct layered *s = layers_guess(n->front, stack, bytes);
    uint64_t round = n->layers->round;
    for (size_t i = 0; i < s->n; i++) {
        struct layer *l = s->v[i];
        if (l->seen == round || l->node == round || (l->public == round && l->of->tenant != n->tenant))
            continue;
        l->seen = round;
        add_size(&n->kept.size, l->size);
    }
}

static bool is_older(const struct tmpl *a, const struct tmpl *b)
{
    return a->created_unix_ms == b->created_unix_ms ? strcmp(a->id, b->id) < 0
                                                    : a->created_unix_ms < b->created_unix_ms;
}

static void mark_tmpl(void *arg, const struct tmpl *t)
{
    struct counting *n = arg;
    uint64_t round = n->layers->round;
    if (t->tenant && !t->public)
        return;
    for (size_t i = 0; i < t->ntags; i++) {
        const struct layered *s = map_get(&n->layers->stacks, t->tags[i].stack);
        for (size_t k = 0; s && k < s->n; k++) {
            struct layer *l = s->v[k];
            if (!t->tenant) {
                l->node = round;
            } else if (l->public != round || is_older(t, l->of)) {
                l->public = round;
                l->of = t;
            }
        }
    }
}

static void count_generation(void *arg, const struct generation *g) { add_stack(arg, g->stack, g->bytes); }

static void count_box(void *arg, struct box *b)
{
    struct counting *n = arg;
    if (b->tenant != n->tenant)
        return;
    n->kept.count += box_is_paused(b);
    add_stack(n, b->stack, b->state_bytes);
    if (n->front->generations)
        generations_each(n->front, b->id, count_generation, n);
}

static void count_tmpl(void *arg, const struct tmpl *t)
{
    struct counting *n = arg;
    if (t->tenant != n->tenant)
        return;
    for (size_t i = 0; i < t->ntags; i++) {
        n->kept.count += tmpl_kind_of(t, &t->tags[i]) == TMPL_SNAPSHOT;
        add_stack(n, t->tags[i].stack, t->tags[i].bytes);
    }
}

static struct counting count(struct front *f, const struct tenant *t)
{
    struct counting n = {.front = f, .layers = layers_of(f), .tenant = t};
    size_t at = 0;
    n.layers->round++;
    tmpl_each(f, NULL, mark_tmpl, &n);
    boxes_each(f, count_box, &n);
    tmpl_each(f, t, count_tmpl, &n);
    /* On the way to a row, or of a transaction. */
    for (struct state_held *h; (h = map_next(&f->boxes->held, &at));)
        if (h->tenant == t)
            add_stack(&n, h->stack, 0);
    add_size(&n.kept.size, volumes_size(f, t));
    n.kept.size.bytes += transactions_bytes(f, t);
    return n;
}

struct state_kept state_kept(struct front *f, const struct tenant *t) { return count(f, t).kept; }

struct state_size state_kept_with(struct front *f, const struct tenant *t, const char *const *stacks, size_t nstacks)
{
    struct counting n = count(f, t);
    for (size_t i = 0; i < nstacks; i++)
        add_stack(&n, stacks[i], 0);
    return n.kept.size;
}

/* --- quotas -------------------------------------------------------------------------------------------------------- */

static bool count_room(struct front *f, const struct tenant *t, const struct state_kept *kept, unsigned count,
                       struct state_failure *ret)
{
    uint64_t most = t->quota.snapshots ? t->quota.snapshots : f->config->state_snapshots;
    most = most && most < SNAPSHOTS_PER_TENANT ? most : SNAPSHOTS_PER_TENANT;
    if (!count || kept->count + count <= most)
        return true;
    state_fail(ret, 429, "the tenant's quota of snapshots and paused sandboxes is used up: %llu of %llu are kept",
               (unsigned long long)kept->count, (unsigned long long)most);
    ret->error_code = "quota_exceeded";
    return false;
}

bool state_room_count(struct front *f, const struct tenant *t, unsigned count, struct state_failure *ret)
{
    struct state_kept kept = state_kept(f, t);
    return count_room(f, t, &kept, count, ret);
}

struct state_size state_limit(const struct front *f, const struct tenant *t)
{
    const struct quota *q = &t->quota;
    return (struct state_size){.bytes = q->state_bytes ? q->state_bytes : f->config->state_bytes,
                               .entries = q->state_entries ? q->state_entries : f->config->state_entries};
}

bool state_within(struct state_size size, struct state_size limit)
{
    return (!limit.bytes || size.bytes <= limit.bytes) && (!limit.entries || size.entries <= limit.entries);
}

static void bytes_failure(uint64_t kept, uint64_t more, uint64_t room, struct state_failure *ret)
{
    _cleanup_buf_ struct buf used = {0}, limit = {0}, want = {0};
    num_add_size(&used, kept);
    num_add_size(&limit, room);
    num_add_size(&want, more);
    state_fail(ret, 429, "the tenant's quota of storage is used up: %s of %s are kept, and this needs %s%s",
               buf_str(&used), buf_str(&limit), more > 1 ? "" : "some ", more > 1 ? buf_str(&want) : "more");
    ret->error_code = "quota_exceeded";
}

static void entries_failure(uint64_t kept, uint64_t more, uint64_t room, struct state_failure *ret)
{
    char want[32] = "some more";
    if (more > 1)
        (void)snprintf(want, sizeof want, "%llu", (unsigned long long)more);
    state_fail(ret, 429, "the tenant's quota of files in storage is used up: %llu of %llu are kept, and this needs %s",
               (unsigned long long)kept, (unsigned long long)room, want);
    ret->error_code = "quota_exceeded";
}

/* begins: something new is about to be kept, and that it will need something is all that is known of it. */
static bool holds(uint64_t kept, uint64_t more, uint64_t room, bool begins)
{
    if (!room || (!more && !begins))
        return true;
    return kept <= room && more <= room - kept && (kept < room || !begins);
}

bool state_room(struct front *f, const struct tenant *t, unsigned count, struct state_size more,
                struct state_failure *ret)
{
    struct state_size room = state_limit(f, t);
    struct state_kept kept = state_kept(f, t);
    if (!count_room(f, t, &kept, count, ret))
        return false;
    if (!holds(kept.size.bytes, more.bytes, room.bytes, count > 0))
        bytes_failure(kept.size.bytes, more.bytes, room.bytes, ret);
    else if (!holds(kept.size.entries, more.entries, room.entries, count > 0))
        entries_failure(kept.size.entries, more.entries, room.entries, ret);
    else
        return true;
    return false;
}

/* What it adds is refused, not what was too much before: less than before is never refused. */
static bool adds_too_much(uint64_t with, uint64_t without, uint64_t room)
{
    return room && with > room && with > without;
}

bool state_fits(struct front *f, const struct tenant *t, const char *stack, struct state_failure *ret)
{
    struct state_size room = t ? state_limit(f, t) : STATE_NOTHING;
    if (!room.bytes && !room.entries)
        return true;
    struct state_size with = state_kept(f, t).size;
    if (state_within(with, room))
        return true;
    struct state_held *h = map_get(&f->boxes->held, stack);
    const struct tenant *holder = h ? h->tenant : NULL;
    if (h)
        h->tenant = NULL;
    struct state_size without = state_kept(f, t).size;
    if (h)
        h->tenant = holder;
    if (adds_too_much(with.bytes, without.bytes, room.bytes))
        bytes_failure(without.bytes, with.bytes - without.bytes, room.bytes, ret);
    else if (adds_too_much(with.entries, without.entries, room.entries))
        entries_failure(without.entries, with.entries - without.entries, room.entries, ret);
    else
        return true;
    return false;
}
