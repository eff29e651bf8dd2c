/* The nodes as this orchestrator knows them. */
#include "cluster/place-int.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "cluster/draw.h"

struct place *place_new(const struct place_rules *rules)
{
    struct place *p = xcalloc(1, sizeof *p);
    p->rules = *rules;
    p->epoch = 1;
    p->active = 1;
    p->sets = xcalloc(PLACE_GROUPS * PLACE_GROUP, sizeof *p->sets);
    return p;
}

static void place_node_free(struct place_node *n)
{
    free(n->cached);
    free(n);
}

void place_free(struct place *p)
{
    if (!p)
        return;
    for (size_t i = 0; i < p->n_nodes; i++)
        place_node_free(p->nodes[i]);
    free(p->nodes);
    free(p->sets);
    free(p);
}

/* Where the number stands or would stand. */
static size_t place_seek(const struct place *p, int64_t node)
{
    size_t low = 0, high = p->n_nodes;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (p->nodes[middle]->info.node < node)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

struct place_node *place_find(const struct place *p, int64_t node)
{
    size_t i = place_seek(p, node);
    return i < p->n_nodes && p->nodes[i]->info.node == node ? p->nodes[i] : NULL;
}

/* Home sets depend on what nodes are, not on how they are: only here they are forgotten. */
static void place_forget_sets(struct place *p)
{
    if (++p->epoch == 0) {
        memset(p->sets, 0, PLACE_GROUPS * PLACE_GROUP * sizeof *p->sets);
        p->epoch = 1;
    }
}

static void place_set_info(struct place *p, struct place_node *n, const struct place_info *info)
{
    p->cache_slots -= n->info.cache_slots;
    p->n_kept -= n->info.tenant != 0;
    n->info = *info;
    p->n_kept += n->info.tenant != 0;
    amount_cut(&n->info.capacity);
    if (n->info.cache_slots > PLACE_CACHED_MAX)
        n->info.cache_slots = PLACE_CACHED_MAX;
    p->cache_slots += n->info.cache_slots;
    n->rank = draw_mix(info->node + 0x9e3779b97f4a7c15);
    n->limit = n->info.capacity;
    n->limit.of[AMOUNT_CPU_MILLI] = n->limit.of[AMOUNT_CPU_MILLI] * p->rules.cpu_percent / 100;
    n->limit.of[AMOUNT_MEMORY] = n->limit.of[AMOUNT_MEMORY] * p->rules.memory_percent / 100;
}

/* Whether a node with these facts has the same place in every home set. */
static bool place_same_kind(const struct place_info *a, const struct place_info *b)
{
    return a->labels == b->labels && a->features == b->features && a->tenant == b->tenant && a->protocol == b->protocol;
}

bool place_join(struct place *p, const struct place_info *info)
{
    size_t i = place_seek(p, info->node);
    if (i < p->n_nodes && p->nodes[i]->info.node == info->node) {
        if (!place_same_kind(&p->nodes[i]->info, info))
            place_forget_sets(p);
        place_set_info(p, p->nodes[i], info);
        return true;
    }
    if (p->n_nodes >= PLACE_NODES_MAX)
        return false;
    struct place_node *n = xcalloc(1, sizeof *n);
    place_set_info(p, n, info);
    MEM_GROW(p->nodes, p->n_nodes, p->cap_nodes);
    memmove(p->nodes + i + 1, p->nodes + i, (p->n_nodes - i) * sizeof(struct place_node *));
    p->nodes[i] = n;
    p->n_nodes++;
    place_forget_sets(p);
    return true;
}

void place_leave(struct place *p, uint32_t node)
{
    size_t i = place_seek(p, node);
    if (i >= p->n_nodes || p->nodes[i]->info.node != node)
        return;
    p->cache_slots -= p->nodes[i]->info.cache_slots;
    p->n_kept -= p->nodes[i]->info.tenant != 0;
    place_node_free(p->nodes[i]);
    p->n_nodes--;
    memmove(p->nodes + i, p->nodes + i + 1, (p->n_nodes - i) * sizeof(struct place_node *));
    place_forget_sets(p);
}

void place_set_state(struct place *p, uint32_t node, enum place_state state)
{
    struct place_node *n = place_find(p, node);
    if (n)
        n->state = state;
}

void place_set_silent(struct place *p, uint32_t node, bool silent)
{
    struct place_node *n = place_find(p, node);
    if (n)
        n->silent = silent;
}

void place_report(struct place *p, uint32_t node, const struct place_report *report)
{
    struct place_node *n = place_find(p, node);
    if (!n)
        return;
    n->report = *report;
    amount_cut(&n->report.used);
}

/* Where the template stands or would stand among those of the node. */
static uint32_t place_seek_cached(const struct place_node *n, uint32_t template)
{
    uint32_t low = 0, high = n->n_cached;
    while (low < high) {
        uint32_t middle = (low + high) / 2;
        if (n->cached[middle].template <template)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

const struct place_template *place_find_cached(const struct place_node *n, uint32_t template)
{
    uint32_t i = place_seek_cached(n, template);
    return i < n->n_cached && n->cached[i].template == template ? &n->cached[i] : NULL;
}

void place_cached(struct place *p, uint32_t node, uint32_t template, uint32_t warm)
{
    struct place_node *n = place_find(p, node);
    if (!n)
        return;
    uint32_t i = place_seek_cached(n, template);
    if (i < n->n_cached && n->cached[i].template == template) {
        n->cached[i].warm = warm;
        return;
    }
    if (n->n_cached >= PLACE_CACHED_MAX)
        return;
    MEM_GROW(n->cached, n->n_cached, n->cap_cached);
    memmove(n->cached + i + 1, n->cached + i, (n->n_cached - i) * sizeof *n->cached);
    n->cached[i] = (struct place_template){template, warm};
    n->n_cached++;
}

void place_uncached(struct place *p, uint32_t node, uint32_t template)
{
    struct place_node *n = place_find(p, node);
    if (!n)
        return;
    uint32_t i = place_seek_cached(n, template);
    if (i >= n->n_cached || n->cached[i].template != template)
        return;
    n->n_cached--;
    memmove(n->cached + i, n->cached + i + 1, (n->n_cached - i) * sizeof *n->cached);
}

void place_set_templates(struct place *p, uint32_t active) { p->active = active ? active : 1; }

void place_sent(struct place *p, uint32_t node, const struct amount *need)
{
    struct place_node *n = place_find(p, node);
    if (!n)
        return;
    amount_add(&n->pending, need);
    n->pending_starts++;
}

void place_settled(struct place *p, uint32_t node, const struct amount *need)
{
    struct place_node *n = place_find(p, node);
    if (!n)
        return;
    amount_take(&n->pending, need);
    n->pending_starts -= n->pending_starts > 0;
}

size_t place_count_nodes(const struct place *p) { return p->n_nodes; }

static bool place_show(const struct place_node *n, struct place_seen *ret)
{
    if (!n)
        return false;
    *ret = (struct place_seen){n->info, n->report, n->pending, n->state, n->silent, n->n_cached};
    return true;
}

bool place_look(const struct place *p, uint32_t node, struct place_seen *ret)
{
    return place_show(place_find(p, node), ret);
}

bool place_look_at(const struct place *p, size_t i, struct place_seen *ret)
{
    return place_show(i < p->n_nodes ? p->nodes[i] : NULL, ret);
}
