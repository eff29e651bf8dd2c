/* How much a tenant keeps. There are no running totals: each question counts all layers that the tenant's rows reach,
 * each layer once. The layer store reports the layers of a stack with every capture, and those of all stacks when
 * front and it connect. So shared, dropped, flattened and expired stacks are always counted correctly.
 *
 * Layers of the node's own templates count for no tenant. Layers of a public template count for its owner only; if
 * several public templates share a layer, for the owner of the oldest. So making a template public does not change what
 * other tenants count.
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
#include "peers/layersc.h"
#include "stacks/stacks-int.h"

enum { AT_ONCE = 256 };

struct layer {
    char name[SHA256_HEX]; /* its digest; if the layer store has not listed it yet, the stack's id */
    struct state_size size;
    unsigned stacks;             /* how many stacks have it */
    uint64_t node, public, seen; /* the round of counting in which it was marked so */
    /* in the round `public`: whose it is, by the oldest public template that has it */
    const struct tenant *of;
    uint64_t of_created_ms;
    char of_id[40];
};
struct layered {
    char stack[STACK_ID_MAX];
    bool told; /* the layer store listed it; else a guess from the row */
    size_t n;
    struct layer *v[];
};
struct layers {
    struct map stacks, layers;
    uint64_t round;
};

/* --- what the layer store told ------------------------------------------------------------------------------------ */

static struct layers *layers_of(struct stacks *st)
{
    if (!st->layers)
        st->layers = xcalloc(1, sizeof *st->layers);
    return st->layers;
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

void state_layers_forget(struct stacks *st, const char *stack)
{
    struct layers *ls = layers_of(st);
    layered_free(ls, map_del(&ls->stacks, stack));
}

void state_layers_free(struct stacks *st)
{
    struct layers *ls = st->layers;
    size_t at = 0;
    if (!ls)
        return;
    for (struct layered *s; (s = map_next(&ls->stacks, &at));)
        layered_free(ls, s);
    map_done(&ls->stacks);
    map_done(&ls->layers);
    free(ls);
    st->layers = NULL;
}

static void layers_put(struct layers *ls, const struct stack_layer *v, size_t n)
{
    static const uint8_t none[SHA256_BYTES];
    struct layered *s = xcalloc(1, sizeof *s + n * sizeof s->v[0]);
    char name[SHA256_HEX];
    (void)memccpy(s->stack, v[0].stack, 0, sizeof s->stack - 1);
    s->told = true;
    for (size_t i = 0; i < n; i++) {
        if (memcmp(v[i].name, none, sizeof none) == 0)
            continue;
        sha256_text(v[i].name, name);
        s->v[s->n++] = layer_take(ls, name, (struct state_size){v[i].bytes, v[i].entries});
    }
    /* Free the old list after the new one is complete, so that shared layers stay. */
    layered_free(ls, map_del(&ls->stacks, s->stack));
    (void)map_put(&ls->stacks, s->stack, s);
}

/* The records of a stack are contiguous, but one read may end between them. */
void state_layers_read(struct stacks *st, int fd)
{
    struct layers *ls = layers_of(st);
    struct stack_layer in[AT_ONCE], of[STACK_LAYERS_MAX];
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
                layers_put(ls, of, n);
                n = 0;
            }
            of[n++] = in[i];
        }
    }
    if (n)
        layers_put(ls, of, n);
}

struct asking {
    struct stacks *stacks;
    char stack[STACK_ID_MAX];
    void (*done)(void *arg);
    void *arg;
};

static void layers_on_reply(void *arg, const struct layers_reply *r, int fd)
{
    _cleanup_free_ struct asking *a = arg;
    _cleanup_close_ int own = fd;
    if (r->error == LAYERS_OK && own >= 0)
        state_layers_read(a->stacks, own);
    else if (r->error == LAYERS_NOT_FOUND)
        state_layers_forget(a->stacks, a->stack);
    else
        log_text(LOG_LEVEL_WARN, "the layer store cannot tell which layers it has: %s", r->text);
    if (a->done)
        a->done(a->arg);
}

uint64_t state_layers_ask(struct stacks *st, const char *stack, void (*done)(void *arg), void *arg)
{
    struct asking *a = xcalloc(1, sizeof *a);
    *a = (struct asking){.stacks = st, .done = done, .arg = arg};
    (void)memccpy(a->stack, stack, 0, sizeof a->stack - 1);
    return layersc_of_stacks(st->peers->layers, &(struct layersc_to){.done = layers_on_reply, .arg = a}, stack);
}

/* Until the layer store has listed the layers, assume one layer of the size that the row says. */
static const struct layered *layers_guess(struct stacks *st, const char *stack, uint64_t bytes)
{
    struct layers *ls = layers_of(st);
    struct layered *s = map_get(&ls->stacks, stack);
    if (s && (s->told || s->v[0]->size.bytes >= bytes))
        return s;
    layered_free(ls, map_del(&ls->stacks, stack));
    s = xcalloc(1, sizeof *s + sizeof s->v[0]);
    (void)memccpy(s->stack, stack, 0, sizeof s->stack - 1);
    s->v[s->n++] = layer_take(ls, s->stack, (struct state_size){bytes, layers_volume_entries(bytes)});
    (void)map_put(&ls->stacks, s->stack, s);
    return s;
}

void state_layers_guess(struct stacks *st, const char *stack, uint64_t bytes) { (void)layers_guess(st, stack, bytes); }

/* --- counting ----------------------------------------------------------------------------------------------------- */

struct counting {
    struct stacks *stacks;
    struct layers *layers;
    const struct tenant *tenant;
    struct state_kept kept;
};

static void state_size_add(struct state_size *to, struct state_size more)
{
    to->bytes += more.bytes;
    to->entries += more.entries;
}

static void count_add_stack(struct counting *n, const char *stack, uint64_t bytes)
{
    if (!stack_id_valid(stack))
        return; /* a directory of the templates */
    const struct layered *s = layers_guess(n->stacks, stack, bytes);
    uint64_t round = n->layers->round;
    for (size_t i = 0; i < s->n; i++) {
        struct layer *l = s->v[i];
        if (l->seen == round || l->node == round || (l->public == round && l->of != n->tenant))
            continue;
        l->seen = round;
        state_size_add(&n->kept.size, l->size);
    }
}

static bool layer_use_is_older(const struct stack_use *u, const struct layer *l)
{
    return u->created_unix_ms == l->of_created_ms ? strcmp(u->id, l->of_id) < 0 : u->created_unix_ms < l->of_created_ms;
}

/* Layers of the node's own templates, and of those that their tenants made public. */
static void count_mark_shared(void *arg, const struct stack_use *u)
{
    struct counting *n = arg;
    uint64_t round = n->layers->round;
    if (u->tenant && !u->public)
        return;
    const struct layered *s = map_get(&n->layers->stacks, u->stack);
    for (size_t k = 0; s && k < s->n; k++) {
        struct layer *l = s->v[k];
        if (!u->tenant) {
            l->node = round;
        } else if (l->public != round || layer_use_is_older(u, l)) {
            l->public = round;
            l->of = u->tenant;
            l->of_created_ms = u->created_unix_ms;
            (void)snprintf(l->of_id, sizeof l->of_id, "%s", u->id);
        }
    }
}

static void count_own(void *arg, const struct stack_use *u)
{
    struct counting *n = arg;
    if (u->tenant != n->tenant)
        return;
    n->kept.count += u->kept;
    count_add_stack(n, u->stack, u->bytes);
}

static struct counting count_kept(struct stacks *st, const struct tenant *t)
{
    struct counting n = {.stacks = st, .layers = layers_of(st), .tenant = t};
    size_t at = 0;
    n.layers->round++;
    stacks_each_use(st, count_mark_shared, &n);
    stacks_each_use(st, count_own, &n);
    /* Stacks without a row yet, and those of transactions. */
    for (struct state_held *h; (h = map_next(&st->held, &at));)
        if (h->tenant == t)
            count_add_stack(&n, h->stack, 0);
    for (size_t i = 0; i < st->nowners; i++)
        if (st->owners[i].owner->size)
            state_size_add(&n.kept.size, st->owners[i].owner->size(st->owners[i].ctx, t));
    return n;
}

struct state_kept state_kept(struct stacks *st, const struct tenant *t) { return count_kept(st, t).kept; }

struct state_size state_kept_with(struct stacks *st, const struct tenant *t, const char *const *stacks, size_t nstacks)
{
    struct counting n = count_kept(st, t);
    for (size_t i = 0; i < nstacks; i++)
        count_add_stack(&n, stacks[i], 0);
    return n.kept.size;
}

/* --- quotas ------------------------------------------------------------------------------------------------------- */

static bool quota_holds_count(struct stacks *st, const struct tenant *t, const struct state_kept *kept, unsigned count,
                              struct state_failure *ret)
{
    uint64_t most = t->quota.snapshots ? t->quota.snapshots : st->config->state_snapshots;
    most = most && most < STATE_KEPT_MAX ? most : STATE_KEPT_MAX;
    if (!count || kept->count + count <= most)
        return true;
    state_fail(ret, 429, "the tenant's quota of snapshots and paused sandboxes is used up: %llu of %llu are kept",
               (unsigned long long)kept->count, (unsigned long long)most);
    ret->error_code = "quota_exceeded";
    return false;
}

bool state_room_count(struct stacks *st, const struct tenant *t, unsigned count, struct state_failure *ret)
{
    struct state_kept kept = state_kept(st, t);
    return quota_holds_count(st, t, &kept, count, ret);
}

struct state_size state_limit(const struct stacks *st, const struct tenant *t)
{
    const struct quota *q = &t->quota;
    return (struct state_size){.bytes = q->state_bytes ? q->state_bytes : st->config->state_bytes,
                               .entries = q->state_entries ? q->state_entries : st->config->state_entries};
}

bool state_within(struct state_size size, struct state_size limit)
{
    return (!limit.bytes || size.bytes <= limit.bytes) && (!limit.entries || size.entries <= limit.entries);
}

static void quota_fail_bytes(uint64_t kept, uint64_t more, uint64_t room, struct state_failure *ret)
{
    _cleanup_buf_ struct buf used = {0}, limit = {0}, want = {0};
    num_add_size(&used, kept);
    num_add_size(&limit, room);
    num_add_size(&want, more);
    state_fail(ret, 429, "the tenant's quota of storage is used up: %s of %s are kept, and this needs %s%s",
               buf_str(&used), buf_str(&limit), more > 1 ? "" : "some ", more > 1 ? buf_str(&want) : "more");
    ret->error_code = "quota_exceeded";
}

static void quota_fail_entries(uint64_t kept, uint64_t more, uint64_t room, struct state_failure *ret)
{
    char want[32] = "some more";
    if (more > 1)
        (void)snprintf(want, sizeof want, "%llu", (unsigned long long)more);
    state_fail(ret, 429, "the tenant's quota of files in storage is used up: %llu of %llu are kept, and this needs %s",
               (unsigned long long)kept, (unsigned long long)room, want);
    ret->error_code = "quota_exceeded";
}

/* begins: something of unknown size will be kept; it needs at least some room. */
static bool quota_holds(uint64_t kept, uint64_t more, uint64_t room, bool begins)
{
    if (!room || (!more && !begins))
        return true;
    return kept <= room && more <= room - kept && (kept < room || !begins);
}

bool state_room(struct stacks *st, const struct tenant *t, unsigned count, struct state_size more,
                struct state_failure *ret)
{
    struct state_size room = state_limit(st, t);
    struct state_kept kept = state_kept(st, t);
    if (!quota_holds_count(st, t, &kept, count, ret))
        return false;
    if (!quota_holds(kept.size.bytes, more.bytes, room.bytes, count > 0))
        quota_fail_bytes(kept.size.bytes, more.bytes, room.bytes, ret);
    else if (!quota_holds(kept.size.entries, more.entries, room.entries, count > 0))
        quota_fail_entries(kept.size.entries, more.entries, room.entries, ret);
    else
        return true;
    return false;
}

/* Refuses only growth: what exceeded the quota before, and shrinking, is always allowed. */
static bool quota_is_exceeded_by(uint64_t with, uint64_t without, uint64_t room)
{
    return room && with > room && with > without;
}

bool state_fits(struct stacks *st, const struct tenant *t, const char *stack, struct state_failure *ret)
{
    struct state_size room = t ? state_limit(st, t) : STATE_NOTHING;
    if (!room.bytes && !room.entries)
        return true;
    struct state_size with = state_kept(st, t).size;
    if (state_within(with, room))
        return true;
    struct state_held *h = map_get(&st->held, stack);
    const struct tenant *holder = h ? h->tenant : NULL;
    if (h)
        h->tenant = NULL;
    struct state_size without = state_kept(st, t).size;
    if (h)
        h->tenant = holder;
    if (quota_is_exceeded_by(with.bytes, without.bytes, room.bytes))
        quota_fail_bytes(without.bytes, with.bytes - without.bytes, room.bytes, ret);
    else if (quota_is_exceeded_by(with.entries, without.entries, room.entries))
        quota_fail_entries(without.entries, with.entries - without.entries, room.entries, ret);
    else
        return true;
    return false;
}
