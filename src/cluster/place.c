/* The decision. */
#include "cluster/place-int.h"

#include "cluster/draw.h"

/* What the parts of a score weigh. The share of the fullest resource counts 1, so a node without the template is as good as
 * one that is fuller by a third. */
#define SCORE_COLD     0.35
#define SCORE_WARM     0.10 /* taken off */
#define SCORE_STARTING 0.25 /* all start slots taken */
#define SCORE_BUSY     0.25 /* all processors busy */
#define SCORE_PRESSURE 0.50 /* everything waits */
#define SCORE_TOGETHER 0.10 /* for each that belongs together */
#define LOAD_HOME_MAX  0.90 /* a fuller home is passed over while others have room */
#define SCORE_PACK_MAX 0.70 /* packing fills nodes up to here */

struct place_candidate {
    const struct place_node *node;
    double score, load;
};
/* The best candidate so far. */
struct place_pick {
    struct place_candidate best;
    bool pack;
};
struct place_search {
    struct place *p;
    const struct place_request *r;
    struct place_answer *answer;
    struct draw draw;
    struct place_pick pick;
    const struct place_node *seen[PLACE_FROM_HOMES + PLACE_FROM_ALL];
    uint32_t n_seen;
};

enum place_lack place_lacks_kind(const struct place *p, const struct place_node *n, const struct place_request *r)
{
    if (r->labels & ~n->info.labels)
        return PLACE_LACKS_LABEL;
    if (r->features & ~n->info.features)
        return PLACE_LACKS_FEATURE;
    if (n->info.protocol < p->rules.protocol_min)
        return PLACE_LACKS_PROTOCOL;
    if (n->info.tenant && n->info.tenant != r->tenant)
        return PLACE_LACKS_TENANT;
    return PLACE_LACKS_NOTHING;
}

static const enum place_lack lack_of[AMOUNT_N] = {[AMOUNT_SANDBOXES] = PLACE_LACKS_SANDBOXES,
                                                  [AMOUNT_CPU_MILLI] = PLACE_LACKS_CPU,
                                                  [AMOUNT_MEMORY] = PLACE_LACKS_MEMORY,
                                                  [AMOUNT_DISK] = PLACE_LACKS_DISK};

/* In the order of the enum, so that memory is named before processors. */
static const enum amount_of fit_order[AMOUNT_N] = {AMOUNT_SANDBOXES, AMOUNT_MEMORY, AMOUNT_CPU_MILLI, AMOUNT_DISK};

static enum place_lack place_lacks_room(const struct place_node *n, const struct place_request *r)
{
    for (int i = 0; i < AMOUNT_N; i++) {
        enum amount_of k = fit_order[i];
        if (n->report.used.of[k] + n->pending.of[k] + r->need.of[k] > n->limit.of[k])
            return lack_of[k];
    }
    return PLACE_LACKS_NOTHING;
}

static bool place_is_too_small(const struct place_node *n, const struct place_request *r)
{
    for (int k = 0; k < AMOUNT_N; k++)
        if (r->need.of[k] > n->limit.of[k])
            return true;
    return n->info.start_max == 0;
}

static uint32_t place_count_together(const struct place_request *r, uint32_t node)
{
    size_t low = 0, high = r->n_together;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (r->together[middle].node < node)
            low = middle + 1;
        else
            high = middle;
    }
    return low < r->n_together && r->together[low].node == node ? r->together[low].n : 0;
}

static enum place_lack place_lacks_state(const struct place_node *n)
{
    switch (n->state) {
    case PLACE_READY:
        return n->silent ? PLACE_LACKS_VOICE : PLACE_LACKS_NOTHING;
    case PLACE_CORDONED:
        return PLACE_LACKS_LEAVE;
    case PLACE_DRAINING:
        return PLACE_LACKS_STAY;
    case PLACE_LOST:
        break;
    }
    return PLACE_LACKS_LIFE;
}

/* What this request met at this node, beside the node's room. */
static enum place_lack place_lacks_turn(const struct place_node *n, const struct place_request *r)
{
    for (uint32_t i = 0; i < r->n_tried; i++)
        if (r->tried[i] == n->info.node)
            return PLACE_LACKS_TURN;
    if (r->together_max && place_count_together(r, n->info.node) >= r->together_max)
        return PLACE_LACKS_DISTANCE;
    return PLACE_LACKS_NOTHING;
}

enum place_lack place_lacks(const struct place *p, const struct place_node *n, const struct place_request *r)
{
    enum place_lack lack = place_lacks_kind(p, n, r);
    if (lack)
        return lack;
    if (r->only != PLACE_NONE && r->only != n->info.node)
        return PLACE_LACKS_VOLUME;
    if (place_is_too_small(n, r))
        return PLACE_LACKS_SIZE;
    if ((lack = place_lacks_state(n)) || (lack = place_lacks_turn(n, r)) || (lack = place_lacks_room(n, r)))
        return lack;
    if ((uint64_t)n->report.starting + n->pending_starts >= n->info.start_max)
        return PLACE_LACKS_START;
    return n->report.pressure > p->rules.pressure_max ? PLACE_LACKS_CALM : PLACE_LACKS_NOTHING;
}

static double place_ratio(uint64_t part, uint64_t whole) { return whole ? (double)part / (double)whole : 0; }

/* How full the node would be. The number of sandboxes is a limit, not a load. */
static double place_load(const struct place_node *n, const struct place_request *r)
{
    double load = 0;
    for (int k = AMOUNT_CPU_MILLI; k < AMOUNT_N; k++) {
        double share = place_ratio(n->report.used.of[k] + n->pending.of[k] + r->need.of[k], n->limit.of[k]);
        if (share > load)
            load = share;
    }
    return load;
}

static struct place_candidate place_score(const struct place_node *n, const struct place_request *r)
{
    const struct place_template *cached = place_find_cached(n, r->template);
    double load = place_load(n, r), score = load;
    score += SCORE_STARTING * place_ratio((uint64_t)n->report.starting + n->pending_starts, n->info.start_max);
    score += SCORE_BUSY * place_ratio(n->report.cpu_busy_milli, n->info.capacity.of[AMOUNT_CPU_MILLI]);
    score += SCORE_PRESSURE * place_ratio(n->report.pressure, 1000);
    score += SCORE_TOGETHER * place_count_together(r, n->info.node);
    score += !cached ? SCORE_COLD : cached->warm ? -SCORE_WARM : 0;
    return (struct place_candidate){n, score, load};
}

/* Whether a is better than b. Packing wants the fullest of the nodes that are not too full. */
static bool place_is_better(const struct place_pick *pick, const struct place_candidate *a)
{
    const struct place_candidate *b = &pick->best;
    if (!b->node)
        return true;
    if (pick->pack && (a->score < SCORE_PACK_MAX || b->score < SCORE_PACK_MAX))
        return a->score < SCORE_PACK_MAX && (b->score >= SCORE_PACK_MAX || a->score > b->score);
    return a->score < b->score;
}

static void place_offer(struct place_pick *pick, const struct place_candidate *c)
{
    if (place_is_better(pick, c))
        pick->best = *c;
}

/* Whether the node can take the request and was not considered yet. */
static bool place_examine(struct place_search *s, const struct place_node *n)
{
    s->answer->examined++;
    for (uint32_t i = 0; i < s->n_seen; i++)
        if (s->seen[i] == n)
            return false;
    return place_lacks(s->p, n, s->r) == PLACE_LACKS_NOTHING;
}

static void place_consider(struct place_search *s, const struct place_candidate *c)
{
    s->seen[s->n_seen++] = c->node;
    place_offer(&s->pick, c);
}

/* Walks the home set from a random place: a fixed order would fill the first home of each template and leave the last cold.
 * Returns the best of the homes that are too full, which is better than searching all nodes. */
static struct place_candidate place_try_homes(struct place_search *s)
{
    const struct place_set *set = place_set_of(s->p, s->r);
    uint32_t h = place_home_count(s->p);
    if (h > set->n)
        h = set->n;
    struct place_pick full = {.pack = false};
    uint32_t start = h ? draw_below(&s->draw, h) : 0;
    for (uint32_t i = 0; i < h && s->n_seen < PLACE_FROM_HOMES; i++) {
        const struct place_node *n = s->p->nodes[set->at[(start + i) % h]];
        if (!place_examine(s, n))
            continue;
        struct place_candidate c = place_score(n, s->r);
        if (c.load <= LOAD_HOME_MAX)
            place_consider(s, &c);
        else
            place_offer(&full, &c);
    }
    return full.best;
}

static void place_try_others(struct place_search *s)
{
    if (s->p->n_nodes == 0)
        return;
    uint32_t found = 0;
    for (int i = 0; i < PLACE_DRAWS && found < PLACE_FROM_ALL; i++) {
        const struct place_node *n = s->p->nodes[draw_below(&s->draw, (uint32_t)s->p->n_nodes)];
        if (!place_examine(s, n))
            continue;
        struct place_candidate c = place_score(n, s->r);
        place_consider(s, &c);
        found++;
    }
}

/* Nearly everything is full: looks at all nodes from a random one on, until a few have room. What the others lack is
 * counted, and said if nothing is found. */
static void place_scan(struct place_search *s)
{
    size_t n_nodes = s->p->n_nodes;
    uint32_t start = n_nodes ? draw_below(&s->draw, (uint32_t)n_nodes) : 0, found = 0;
    for (size_t i = 0; i < n_nodes && found < PLACE_SCAN_KEEP; i++) {
        const struct place_node *n = s->p->nodes[(start + i) % n_nodes];
        enum place_lack lack = place_lacks(s->p, n, s->r);
        s->answer->examined++;
        s->answer->lacks[lack]++;
        if (lack)
            continue;
        struct place_candidate c = place_score(n, s->r);
        place_offer(&s->pick, &c);
        found++;
    }
}

/* Nothing was found: waiting helps if any node lacks only what passes, or if the one with the volume may come back. */
static enum place_code place_refusal(const struct place_search *s)
{
    uint32_t forever = 0;
    for (int lack = PLACE_LACKS_NOTHING + 1; lack <= PLACE_LACKS_FOREVER; lack++)
        forever += s->answer->lacks[lack];
    bool volume_away = s->r->only != PLACE_NONE && !place_find(s->p, s->r->only);
    return forever == s->answer->nodes && s->answer->nodes > 0 && !volume_away ? PLACE_NEVER : PLACE_FULL;
}

static void place_search_all(struct place_search *s)
{
    struct place_candidate full = place_try_homes(s);
    place_try_others(s);
    if (!s->pick.best.node && full.node)
        s->pick.best = full;
    if (!s->pick.best.node)
        place_scan(s);
}

struct place_answer place_choose(struct place *p, const struct place_request *r, uint64_t random)
{
    struct place_answer a = {.nodes = (uint32_t)p->n_nodes};
    struct place_search s = {.p = p, .r = r, .answer = &a, .draw = {random}, .pick = {.pack = p->rules.pack}};
    int64_t named = r->only != PLACE_NONE ? r->only : r->near;
    const struct place_node *n = named != PLACE_NONE ? place_find(p, named) : NULL;
    if (n && place_examine(&s, n))
        s.pick.best = place_score(n, r);
    else if (r->only != PLACE_NONE)
        place_scan(&s); /* only the reasons are left to find */
    else
        place_search_all(&s);
    n = s.pick.best.node;
    if (!n) {
        a.code = place_refusal(&s);
        return a;
    }
    const struct place_template *cached = place_find_cached(n, r->template);
    a.node = n->info.node;
    a.cached = cached;
    a.warm = cached && cached->warm;
    for (int lack = 0; lack < PLACE_LACKS_N; lack++)
        a.lacks[lack] = 0;
    return a;
}

/* What is said of one node and of several. */
static const char *const lack_text[PLACE_LACKS_N][2] = {
    [PLACE_LACKS_LABEL] = {"has not the labels", "have not the labels"},
    [PLACE_LACKS_FEATURE] = {"has not the features", "have not the features"},
    [PLACE_LACKS_PROTOCOL] = {"is too old", "are too old"},
    [PLACE_LACKS_TENANT] = {"is kept for another tenant", "are kept for other tenants"},
    [PLACE_LACKS_VOLUME] = {"does not hold the volume", "do not hold the volume"},
    [PLACE_LACKS_SIZE] = {"is too small", "are too small"},
    [PLACE_LACKS_LIFE] = {"is lost", "are lost"},
    [PLACE_LACKS_VOICE] = {"does not answer", "do not answer"},
    [PLACE_LACKS_STAY] = {"is draining", "are draining"},
    [PLACE_LACKS_LEAVE] = {"is cordoned", "are cordoned"},
    [PLACE_LACKS_TURN] = {"has refused", "have refused"},
    [PLACE_LACKS_DISTANCE] = {"has enough of the group", "have enough of the group"},
    [PLACE_LACKS_SANDBOXES] = {"runs as many sandboxes as it may", "run as many sandboxes as they may"},
    [PLACE_LACKS_MEMORY] = {"lacks memory", "lack memory"},
    [PLACE_LACKS_CPU] = {"lacks processors", "lack processors"},
    [PLACE_LACKS_DISK] = {"lacks disk", "lack disk"},
    [PLACE_LACKS_START] = {"has no start slot free", "have no start slot free"},
    [PLACE_LACKS_CALM] = {"is under pressure", "are under pressure"},
};

void place_say(const struct place_answer *a, struct buf *b)
{
    if (a->code == PLACE_FOUND) {
        buf_addf(b, "node %u", a->node);
        return;
    }
    if (a->nodes == 0) {
        buf_adds(b, "no node has joined the cluster");
        return;
    }
    buf_addf(b, a->code == PLACE_NEVER ? "no node can ever take it: of %u" : "no node has room: of %u", a->nodes);
    const char *between = a->nodes == 1 ? " node " : " nodes ";
    for (int lack = 1; lack < PLACE_LACKS_N; lack++)
        if (a->lacks[lack]) {
            buf_addf(b, "%s%u %s", between, a->lacks[lack], lack_text[lack][a->lacks[lack] > 1]);
            between = ", ";
        }
}
