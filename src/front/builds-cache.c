/* Which stack a step made, by the digest of everything that went into it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/cleanup.h"
#include "base/log.h"
#include "base/mem.h"
#include "front/builds-int.h"
#include "store/store.h"

enum { TOUCH_EVERY_S = 3600 /* how exactly it is written down when a step was used last */ };

static void cached_free(struct build_cached *c)
{
    if (c)
        free(c->name);
    free(c);
}

static struct build_cached *find(struct front *f, const char *tenant, const char *key)
{
    _cleanup_free_ char *name = xasprintf("%s/%s", tenant, key);
    return map_get(&f->builds->cache, name);
}

static void put(struct front *f, const char *tenant, const char *key, const char *stack, uint64_t used)
{
    struct build_cached *c = xcalloc(1, sizeof *c);
    c->name = xasprintf("%s/%s", tenant, key);
    (void)snprintf(c->tenant, sizeof c->tenant, "%s", tenant);
    (void)snprintf(c->key, sizeof c->key, "%s", key);
    (void)snprintf(c->stack, sizeof c->stack, "%s", stack);
    c->used_unix = used;
    /* Taken out first: the map borrows the name of what is in it. */
    cached_free(map_del(&f->builds->cache, c->name));
    (void)map_put(&f->builds->cache, c->name, c);
}

static void load_one(void *arg, const struct store_step *x)
{
    struct front *f = arg;
    if (!stack_id_valid(x->stack) || strlen(x->key) != SHA256_HEX - 1) {
        store_step_del(f->store, x->tenant, x->key, NULL, NULL);
        return;
    }
    put(f, x->tenant, x->key, x->stack, x->used_unix);
}

int build_cache_load(struct front *f, struct err *err) { return store_steps(f->store, load_one, f, err); }

void build_cache_free(struct front *f)
{
    size_t at = 0;
    for (struct build_cached *c; (c = map_next(&f->builds->cache, &at));)
        cached_free(c);
    map_done(&f->builds->cache);
}

/* A row on its way. */
struct writing {
    struct front *front;
    char stack[STACK_ID_MAX];
    char before[STACK_ID_MAX]; /* what the row named until now, or "" */
};

static struct writing *writing(struct front *f, const char *stack)
{
    struct writing *w = xcalloc(1, sizeof *w);
    w->front = f;
    (void)snprintf(w->stack, sizeof w->stack, "%s", stack);
    return w;
}

static void written(void *arg, const struct err *err)
{
    struct writing *w = arg;
    if (err) /* the step is run again another time */
        log_text(LOG_LEVEL_WARN, "the cache of build steps: %s", err->msg);
    state_release(w->front, w->stack);
    if (!err && w->before[0] && strcmp(w->before, w->stack) != 0)
        state_drop(w->front, w->before);
    free(w);
}

static void removed(void *arg, const struct err *err)
{
    struct writing *w = arg;
    if (err)
        log_text(LOG_LEVEL_WARN, "the cache of build steps: %s", err->msg);
    else
        state_drop(w->front, w->stack);
    free(w);
}

static void store(struct front *f, const struct build_cached *c, const char *before)
{
    struct store_step x = {.tenant = c->tenant, .key = c->key, .stack = c->stack, .used_unix = c->used_unix};
    struct writing *w = writing(f, c->stack);
    (void)snprintf(w->before, sizeof w->before, "%s", before);
    state_hold(f, c->stack);
    store_step_put(f->store, &x, written, w);
}

const struct build_cached *build_cache_find(struct front *f, const struct tenant *t, const char *key)
{
    struct build_cached *c = find(f, t->id, key);
    uint64_t now = (uint64_t)time(NULL);
    if (c && c->used_unix + TOUCH_EVERY_S < now) {
        c->used_unix = now;
        store(f, c, "");
    }
    return c;
}

static void remove_one(struct front *f, struct build_cached *c)
{
    (void)map_del(&f->builds->cache, c->name);
    store_step_del(f->store, c->tenant, c->key, removed, writing(f, c->stack));
    cached_free(c);
}

/* The least recently used of a tenant with too many. */
static void make_room(struct front *f, const char *tenant)
{
    struct build_cached *oldest = NULL;
    size_t at = 0, n = 0;
    for (struct build_cached *c; (c = map_next(&f->builds->cache, &at));)
        if (strcmp(c->tenant, tenant) == 0) {
            n++;
            if (!oldest || c->used_unix < oldest->used_unix)
                oldest = c;
        }
    if (n >= BUILD_CACHE_PER_TENANT)
        remove_one(f, oldest);
}

static int by_use(const void *a, const void *b)
{
    const struct build_cached *x = *(struct build_cached *const *)a, *y = *(struct build_cached *const *)b;
    return (x->used_unix > y->used_unix) - (x->used_unix < y->used_unix);
}

/* Steps are kept in the room that the tenant's quota has beside all else: the least recently used ones go until they fit. The
 * last one stays, because that it fits was seen when it was captured. */
static void make_fit(struct front *f, const struct tenant *t, const struct build_cached *last)
{
    struct state_size room = state_limit(f, t);
    size_t at = 0, n = 0;
    if (!room.bytes && !room.entries)
        return;
    struct build_cached **v = xcalloc(f->builds->cache.n + 1, sizeof *v);
    const char **stacks = xcalloc(f->builds->cache.n + 1, sizeof *stacks);
    for (struct build_cached *c; (c = map_next(&f->builds->cache, &at));)
        if (c != last && strcmp(c->tenant, t->id) == 0)
            v[n++] = c;
    qsort(v, n, sizeof *v, by_use);
    for (size_t i = 0; i < n; i++)
        stacks[i] = v[i]->stack;
    stacks[n] = last->stack;
    size_t go = 0, most = n;
    if (state_within(state_kept_with(f, t, stacks, n + 1), room))
        most = 0;
    while (go < most) { /* counting is long work: as few times as possible */
        size_t mid = (go + most) / 2;
        if (!state_within(state_kept_with(f, t, stacks + mid, n + 1 - mid), room))
            go = mid + 1;
        else
            most = mid;
    }
    for (size_t i = 0; i < go; i++)
        remove_one(f, v[i]);
    free(v);
    free(stacks);
}

void build_cache_put(struct front *f, const struct tenant *t, const char *key, const char *stack)
{
    char before[STACK_ID_MAX] = "";
    const struct build_cached *old = find(f, t->id, key);
    if (old)
        (void)snprintf(before, sizeof before, "%s", old->stack);
    else
        make_room(f, t->id);
    put(f, t->id, key, stack, (uint64_t)time(NULL));
    const struct build_cached *c = find(f, t->id, key);
    store(f, c, before);
    make_fit(f, t, c);
}

void build_cache_del(struct front *f, const struct tenant *t, const char *key)
{
    struct build_cached *c = find(f, t->id, key);
    if (c)
        remove_one(f, c);
}

/* One row at a time: taking it out changes the map. */
static struct build_cached *orphan(struct front *f)
{
    size_t at = 0;
    for (struct build_cached *c; (c = map_next(&f->builds->cache, &at));)
        if (!tenants_find(f, c->tenant))
            return c;
    return NULL;
}

void build_cache_sweep(struct front *f)
{
    for (struct build_cached *c; (c = orphan(f));)
        remove_one(f, c);
}
