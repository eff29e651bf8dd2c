/* Home sets by rendezvous hashing. */
#include "cluster/place-int.h"

#include <string.h>

#include "cluster/draw.h"

/* Requests of the same kind have the same homes, and the tenant matters only if some node is kept for one. Two kinds with
 * one key would only share them: whether a node can take a request is always asked of the node. */
static uint64_t place_kind_key(const struct place *p, const struct place_request *r)
{
    uint64_t key = draw_mix(r->template + 1ULL);
    key = draw_mix(key ^ r->labels);
    key = draw_mix(key + r->features);
    return p->n_kept ? draw_mix(key ^ r->tenant) : key;
}

/* The first PLACE_HOMES_MAX nodes in the order of their rank for this kind, found in one pass: most nodes rank behind the
 * last of those that are there already. */
static void place_rank_nodes(const struct place *p, const struct place_request *r, struct place_set *set)
{
    uint64_t rank[PLACE_HOMES_MAX];
    uint64_t of_template =
        draw_mix(r->template + 1ULL); /* alone, so that requests with other labels share nodes where they can */
    set->n = 0;
    for (uint32_t i = 0; i < p->n_nodes; i++) {
        const struct place_node *n = p->nodes[i];
        uint64_t mine = draw_mix(n->rank ^ of_template);
        if (set->n == PLACE_HOMES_MAX && mine <= rank[PLACE_HOMES_MAX - 1])
            continue;
        if (place_lacks_kind(p, n, r))
            continue;
        uint32_t at = set->n < PLACE_HOMES_MAX ? set->n++ : PLACE_HOMES_MAX - 1;
        for (; at > 0 && rank[at - 1] < mine; at--) {
            rank[at] = rank[at - 1];
            set->at[at] = set->at[at - 1];
        }
        rank[at] = mine;
        set->at[at] = i;
    }
}

const struct place_set *place_set_of(struct place *p, const struct place_request *r)
{
    uint64_t key = place_kind_key(p, r);
    struct place_set *group = p->sets + (key % PLACE_GROUPS) * PLACE_GROUP, *oldest = group;
    p->asked++;
    for (struct place_set *s = group; s < group + PLACE_GROUP; s++) {
        if (s->epoch == p->epoch && s->key == key) {
            s->used = p->asked;
            return s;
        }
        if (oldest->epoch == p->epoch && (s->epoch != p->epoch || p->asked - s->used > p->asked - oldest->used))
            oldest = s;
    }
    place_rank_nodes(p, r, oldest);
    oldest->key = key;
    oldest->epoch = p->epoch;
    oldest->used = p->asked;
    return oldest;
}

uint32_t place_home_count(const struct place *p)
{
    uint64_t h = p->cache_slots / p->active;
    return h < PLACE_HOMES_MIN ? PLACE_HOMES_MIN : h > PLACE_HOMES_MAX ? PLACE_HOMES_MAX : (uint32_t)h;
}

size_t place_homes(struct place *p, const struct place_request *r, uint32_t ret[PLACE_HOMES_MAX])
{
    const struct place_set *set = place_set_of(p, r);
    size_t n = place_home_count(p);
    if (n > set->n)
        n = set->n;
    for (size_t i = 0; i < n; i++)
        ret[i] = p->nodes[set->at[i]]->info.node;
    return n;
}
