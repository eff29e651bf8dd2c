/* The cache of build steps: the stack that a step made, by the digest of all its inputs. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/cleanup.h"
#include "base/log.h"
#include "base/mem.h"
#include "builds/builds-int.h"
#include "db/db.h"

enum { TOUCH_EVERY_S = 3600 /* precision of the stored time of last use */ };

static void build_cached_free(struct build_cached *c)
{
    if (c)
        free(c->name);
    free(c);
}

static struct build_cached *build_cache_get(struct builds *bs, const char *tenant, const char *key)
{
    _cleanup_free_ char *name = xasprintf("%s/%s", tenant, key);
    return map_get(&bs->cache, name);
}

static void build_cache_insert(struct builds *bs, const char *tenant, const char *key, const char *stack, uint64_t used)
{
    struct build_cached *c = xcalloc(1, sizeof *c);
    c->name = xasprintf("%s/%s", tenant, key);
    (void)snprintf(c->tenant, sizeof c->tenant, "%s", tenant);
    (void)snprintf(c->key, sizeof c->key, "%s", key);
    (void)snprintf(c->stack, sizeof c->stack, "%s", stack);
    c->used_unix = used;
    /* Delete the old entry first: the map borrows its name. */
    build_cached_free(map_del(&bs->cache, c->name));
    (void)map_put(&bs->cache, c->name, c);
}

static void build_cache_load_row(void *arg, const struct db_step *x)
{
    struct builds *bs = arg;
    if (!stack_id_valid(x->stack) || strlen(x->key) != SHA256_HEX - 1) {
        db_step_del(bs->db, x->tenant, x->key, NULL, NULL);
        return;
    }
    build_cache_insert(bs, x->tenant, x->key, x->stack, x->used_unix);
}

int build_cache_load(struct builds *bs, struct err *err) { return db_steps(bs->db, build_cache_load_row, bs, err); }

void build_cache_free(struct builds *bs)
{
    size_t at = 0;
    for (struct build_cached *c; (c = map_next(&bs->cache, &at));)
        build_cached_free(c);
    map_done(&bs->cache);
}

/* A row that is being written or removed. */
struct writing {
    struct builds *builds;
    char stack[STACK_ID_MAX];
    char before[STACK_ID_MAX]; /* the stack that the row named before, or "" */
};

static struct writing *build_cache_writing_new(struct builds *bs, const char *stack)
{
    struct writing *w = xcalloc(1, sizeof *w);
    w->builds = bs;
    (void)snprintf(w->stack, sizeof w->stack, "%s", stack);
    return w;
}

static void build_cache_on_row_stored(void *arg, const struct err *err)
{
    struct writing *w = arg;
    if (err) /* harmless: the step is run again next time */
        log_text(LOG_LEVEL_WARN, "the cache of build steps: %s", err->msg);
    state_release(w->builds->stacks, w->stack);
    if (!err && w->before[0] && strcmp(w->before, w->stack) != 0)
        state_drop(w->builds->stacks, w->before);
    free(w);
}

static void build_cache_on_row_removed(void *arg, const struct err *err)
{
    struct writing *w = arg;
    if (err)
        log_text(LOG_LEVEL_WARN, "the cache of build steps: %s", err->msg);
    else
        state_drop(w->builds->stacks, w->stack);
    free(w);
}

static void build_cache_write(struct builds *bs, const struct build_cached *c, const char *before)
{
    struct db_step x = {.tenant = c->tenant, .key = c->key, .stack = c->stack, .used_unix = c->used_unix};
    struct writing *w = build_cache_writing_new(bs, c->stack);
    (void)snprintf(w->before, sizeof w->before, "%s", before);
    state_hold(bs->stacks, c->stack);
    db_step_put(bs->db, &x, build_cache_on_row_stored, w);
}

const struct build_cached *build_cache_find(struct builds *bs, const struct tenant *t, const char *key)
{
    struct build_cached *c = build_cache_get(bs, t->id, key);
    uint64_t now = (uint64_t)time(NULL);
    if (c && c->used_unix + TOUCH_EVERY_S < now) {
        c->used_unix = now;
        build_cache_write(bs, c, "");
    }
    return c;
}

static void build_cache_remove(struct builds *bs, struct build_cached *c)
{
    (void)map_del(&bs->cache, c->name);
    db_step_del(bs->db, c->tenant, c->key, build_cache_on_row_removed, build_cache_writing_new(bs, c->stack));
    build_cached_free(c);
}

/* Removes the least recently used step of a tenant that has too many. */
static void build_cache_make_room(struct builds *bs, const char *tenant)
{
    struct build_cached *oldest = NULL;
    size_t at = 0, n = 0;
    for (struct build_cached *c; (c = map_next(&bs->cache, &at));)
        if (strcmp(c->tenant, tenant) == 0) {
            n++;
            if (!oldest || c->used_unix < oldest->used_unix)
                oldest = c;
        }
    if (n >= BUILD_CACHE_PER_TENANT)
        build_cache_remove(bs, oldest);
}

static int build_cached_by_use(const void *a, const void *b)
{
    const struct build_cached *x = *(struct build_cached *const *)a, *y = *(struct build_cached *const *)b;
    return (x->used_unix > y->used_unix) - (x->used_unix < y->used_unix);
}

/* Cached steps may use only what the tenant's quota leaves free: removes the least recently used ones until the rest
 * fits. The `last` one stays, because its capture has already checked that it fits. */
static void build_cache_make_fit(struct builds *bs, const struct tenant *t, const struct build_cached *last)
{
    struct state_size room = state_limit(bs->stacks, t);
    size_t at = 0, n = 0;
    if (!room.bytes && !room.entries)
        return;
    struct build_cached **v = xcalloc(bs->cache.n + 1, sizeof *v);
    const char **stacks = xcalloc(bs->cache.n + 1, sizeof *stacks);
    for (struct build_cached *c; (c = map_next(&bs->cache, &at));)
        if (c != last && strcmp(c->tenant, t->id) == 0)
            v[n++] = c;
    qsort(v, n, sizeof *v, build_cached_by_use);
    for (size_t i = 0; i < n; i++)
        stacks[i] = v[i]->stack;
    stacks[n] = last->stack;
    size_t go = 0, most = n;
    if (state_within(state_kept_with(bs->stacks, t, stacks, n + 1), room))
        most = 0;
    while (go < most) { /* binary search, because counting is slow */
        size_t mid = (go + most) / 2;
        if (!state_within(state_kept_with(bs->stacks, t, stacks + mid, n + 1 - mid), room))
            go = mid + 1;
        else
            most = mid;
    }
    for (size_t i = 0; i < go; i++)
        build_cache_remove(bs, v[i]);
    free(v);
    free(stacks);
}

void build_cache_put(struct builds *bs, const struct tenant *t, const char *key, const char *stack)
{
    char before[STACK_ID_MAX] = "";
    const struct build_cached *old = build_cache_get(bs, t->id, key);
    if (old)
        (void)snprintf(before, sizeof before, "%s", old->stack);
    else
        build_cache_make_room(bs, t->id);
    build_cache_insert(bs, t->id, key, stack, (uint64_t)time(NULL));
    const struct build_cached *c = build_cache_get(bs, t->id, key);
    build_cache_write(bs, c, before);
    build_cache_make_fit(bs, t, c);
}

void build_cache_del(struct builds *bs, const struct tenant *t, const char *key)
{
    struct build_cached *c = build_cache_get(bs, t->id, key);
    if (c)
        build_cache_remove(bs, c);
}

/* Finds one step of a removed tenant; one at a time, because its removal changes the map. */
static struct build_cached *build_cache_find_orphan(struct builds *bs)
{
    size_t at = 0;
    for (struct build_cached *c; (c = map_next(&bs->cache, &at));)
        if (!tenants_find(bs->tenants, c->tenant))
            return c;
    return NULL;
}

void build_cache_sweep(struct builds *bs)
{
    for (struct build_cached *c; (c = build_cache_find_orphan(bs));)
        build_cache_remove(bs, c);
}
