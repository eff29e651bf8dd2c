/* One heap of events, three kinds of things that happen: a create comes, a sandbox has started, a sandbox ends; and a tick
 * every 50 ms, in which queues are served and, once a second, nodes report. Between reports the views are old, but for what
 * answers bring along. */
#include "sim.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "cluster/admit.h"
#include "cluster/draw.h"
#include "cluster/place.h"
#include "cluster/queue.h"

#define GIB (1ULL << 30)
enum {
    CACHED = 24,
    STARTS = 8,
    TICK_US = 50000,
    REPORT_TICKS = 20,
    WARM_US = 120000,
    COLD_US = 1500000, /* and up to one second more */
    NO_ANSWER_US = 1000000,
    SILENT_TICKS = 60, /* until a view notices that a node does not answer */
    BOOT_TICKS = 2400, /* two minutes until a new node is there */
    LIFE_SHORT_S = 60,
    LIFE_LONG_S = 1800, /* of one in five */
    NODE_GIB = 256,
};
enum event_kind { COMES, STARTED, ENDS, TICK };

struct event {
    uint64_t at_us, order;
    enum event_kind kind;
    uint32_t sandbox;
};
enum stage { FREE, WAITS, STARTS_NOW, LIVES, DEAD };
struct sandbox {
    struct queue_item item; /* first: an item of the queue is its sandbox */
    enum stage stage;
    uint32_t tenant, template, node, by, next_free;
    uint64_t came_us, life_us, lost_us;
    bool warm;
};
struct node {
    bool there, dead, draining;
    uint32_t boots; /* ticks until it is there; 0: not on its way */
    struct amount used;
    uint32_t starting, n_cached, cached[CACHED];
    uint64_t cached_us[CACHED];
};
struct orchestrator {
    struct place *view;
    struct queue queue;
    struct queue_line line[SIM_TENANTS_MAX];
    struct admit admit[SIM_TENANTS_MAX];
};
struct sim {
    const struct sim_spec *spec;
    struct sim_result *ret;
    struct draw draw;
    uint64_t now_us, order, ticks, ended, ended_life_s;
    struct event *heap;
    size_t n_heap, cap_heap;
    struct sandbox *sandbox;
    uint32_t max, first_free, live, running[SIM_TENANTS_MAX];
    struct node *node; /* by number - 1 */
    struct orchestrator *by;
    struct escrow escrow[SIM_TENANTS_MAX];
    struct admit_limits limits;
    struct demand demand;
    struct amount came;
    double *popular, *asks; /* sums that grow to 1 */
    uint32_t lost_tick;
    bool over;
};

/* --- numbers -------------------------------------------------------------------------------------------------------- */

static double sim_share(struct sim *s) { return ((double)(draw_next(&s->draw) >> 11) + 0.5) / 9007199254740992.0; }

/* The natural logarithm, without libm. */
static double sim_log(double x)
{
    double twos = 0;
    for (; x > 1.5; x /= 2)
        twos++;
    for (; x < 0.75; x *= 2)
        twos--;
    double y = (x - 1) / (x + 1), z = y * y, sum = 0, power = y;
    for (int i = 1; i < 30; i += 2, power *= z)
        sum += power / i;
    return 2 * sum + twos * 0.6931471805599453;
}
static double sim_exponential(struct sim *s, double mean) { return -mean * sim_log(sim_share(s)); }

static uint32_t sim_pick(struct sim *s, const double *sums, uint32_t n)
{
    double x = sim_share(s);
    uint32_t low = 0, high = n - 1;
    while (low < high) {
        uint32_t middle = (low + high) / 2;
        if (sums[middle] < x)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static void scale_add(struct sim_scale *scale, uint64_t value)
{
    double i = sim_log((double)value + 1) * 100.49917; /* 1 / log(1.01) */
    scale->at[i < SIM_STEPS - 1 ? (int)i : SIM_STEPS - 1]++;
    scale->n++;
}
double sim_percentile(const struct sim_scale *s, double share)
{
    uint64_t seen = 0;
    double value = 1;
    for (int i = 0; i < SIM_STEPS; i++, value *= 1.01) {
        seen += s->at[i];
        if ((double)seen >= share * (double)s->n && seen > 0)
            return value;
    }
    return value;
}

static void sim_fail(struct sim *s, const char *wrong)
{
    if (!s->ret->wrong)
        s->ret->wrong = wrong;
}
static uint64_t sim_ms(const struct sim *s) { return s->now_us / 1000 + 1; }
static bool sim_counts(const struct sim *s) { return !s->over && sim_ms(s) >= s->spec->warm_up_ms; }
static struct sim_minute *sim_minute(struct sim *s)
{
    uint64_t m = s->now_us / 60000000;
    return s->ret->minute + (m < SIM_MINUTES_MAX ? m : SIM_MINUTES_MAX - 1);
}

/* --- events --------------------------------------------------------------------------------------------------------- */

static bool event_before(const struct event *a, const struct event *b)
{
    return a->at_us != b->at_us ? a->at_us < b->at_us : a->order < b->order;
}
static void sim_push(struct sim *s, uint64_t in_us, enum event_kind kind, uint32_t sandbox)
{
    struct event e = {s->now_us + in_us, s->order++, kind, sandbox};
    MEM_GROW(s->heap, s->n_heap, s->cap_heap);
    size_t i = s->n_heap++;
    for (; i > 0 && event_before(&e, s->heap + (i - 1) / 2); i = (i - 1) / 2)
        s->heap[i] = s->heap[(i - 1) / 2];
    s->heap[i] = e;
}
static struct event sim_pop(struct sim *s)
{
    struct event first = s->heap[0], last = s->heap[--s->n_heap];
    size_t i = 0;
    for (size_t child; (child = 2 * i + 1) < s->n_heap; i = child) {
        if (child + 1 < s->n_heap && event_before(s->heap + child + 1, s->heap + child))
            child++;
        if (!event_before(s->heap + child, &last))
            break;
        s->heap[i] = s->heap[child];
    }
    s->heap[i] = last;
    return first;
}

/* --- nodes ---------------------------------------------------------------------------------------------------------- */

static const struct place_info node_info = {
    .protocol = 1, .capacity = {{1000, 64000, NODE_GIB *GIB, 4096 * GIB}}, .start_max = STARTS, .cache_slots = CACHED};

static void node_join(struct sim *s, uint32_t number)
{
    struct place_info info = node_info;
    info.node = number;
    s->node[number - 1] = (struct node){.there = true};
    for (uint32_t o = 0; o < s->spec->orchestrators; o++) {
        place_join(s->by[o].view, &info);
        place_set_state(s->by[o].view, number, PLACE_READY);
    }
}

static void node_report(struct sim *s, struct place *view, uint32_t number)
{
    const struct node *n = s->node + number - 1;
    struct place_report r = {.used = n->used, .starting = n->starting};
    r.cpu_busy_milli = (uint32_t)(n->used.of[AMOUNT_CPU_MILLI] / 4);
    place_report(view, number, &r);
}

/* The node begins to keep a template ready and forgets the one that was used longest ago. True: it was there. */
static bool node_cache(struct sim *s, uint32_t number, uint32_t template)
{
    struct node *n = s->node + number - 1;
    uint32_t oldest = 0;
    for (uint32_t i = 0; i < n->n_cached; i++) {
        if (n->cached[i] == template) {
            n->cached_us[i] = s->now_us;
            return true;
        }
        if (n->cached_us[i] < n->cached_us[oldest])
            oldest = i;
    }
    uint32_t at = n->n_cached < CACHED ? n->n_cached++ : oldest;
    for (uint32_t o = 0; o < s->spec->orchestrators; o++) {
        if (at == oldest && n->cached_us[at])
            place_uncached(s->by[o].view, number, n->cached[at]);
        place_cached(s->by[o].view, number, template, 0);
    }
    n->cached[at] = template;
    n->cached_us[at] = s->now_us + 1;
    return false;
}

static bool node_has_room(const struct node *n, const struct amount *need)
{
    for (int k = 0; k < AMOUNT_N; k++) {
        uint64_t limit = node_info.capacity.of[k] * (k == AMOUNT_CPU_MILLI ? 4 : 1);
        if (n->used.of[k] + need->of[k] > limit)
            return false;
    }
    return n->starting < STARTS && !n->draining;
}

/* --- creates -------------------------------------------------------------------------------------------------------- */

static void sandbox_free(struct sim *s, struct sandbox *b, bool ended)
{
    struct orchestrator *o = s->by + b->by;
    struct amount back;
    admit_give_back(o->admit + b->tenant, &b->item.need, ended, sim_ms(s));
    if (s->spec->quota && admit_surplus(o->admit + b->tenant, sim_ms(s), &back)) {
        struct amount was = o->admit[b->tenant].granted;
        amount_add(&was, &back);
        escrow_return(s->escrow + b->tenant, &was, &o->admit[b->tenant].granted);
    }
    s->running[b->tenant]--;
    b->stage = FREE;
    b->next_free = s->first_free;
    s->first_free = (uint32_t)(b - s->sandbox);
}

static void sandbox_refuse(struct sim *s, struct sandbox *b)
{
    if (sim_counts(s))
        s->ret->full++;
    sim_minute(s)->refused++;
    sandbox_free(s, b, false);
}

static struct place_answer sim_choose(struct sim *s, struct place *view, const struct place_request *r)
{
    uint64_t random = draw_next(&s->draw), began = s->spec->clock_ns ? s->spec->clock_ns() : 0;
    struct place_answer a = place_choose(view, r, random);
    if (s->spec->clock_ns && sim_counts(s))
        scale_add(&s->ret->place_ns, s->spec->clock_ns() - began);
    return a;
}

/* The node has taken it. */
static void sandbox_start(struct sim *s, struct sandbox *b, uint32_t number, uint64_t lost_us)
{
    struct node *n = s->node + number - 1;
    amount_add(&n->used, &b->item.need);
    n->starting++;
    b->node = number;
    b->stage = STARTS_NOW;
    b->lost_us = lost_us;
    b->warm = node_cache(s, number, b->template);
    uint64_t takes = WARM_US + (b->warm ? 0 : COLD_US + (uint64_t)(sim_share(s) * 1e6));
    sim_push(s, lost_us + takes, STARTED, (uint32_t)(b - s->sandbox));
    s->live++;
    if (s->live > s->ret->live_max)
        s->ret->live_max = s->live;
}

/* False: no node takes it now. */
static bool sandbox_place(struct sim *s, struct sandbox *b)
{
    struct place *view = s->by[b->by].view;
    struct place_request r = {
        .template = b->template, .tenant = b->tenant + 1, .need = b->item.need, .only = PLACE_NONE, .near = PLACE_NONE};
    uint64_t lost_us = 0;
    while (r.n_tried < PLACE_TRIED_MAX) {
        struct place_answer a = sim_choose(s, view, &r);
        if (a.code != PLACE_FOUND)
            return false;
        struct node *n = s->node + a.node - 1;
        place_sent(view, a.node, &b->item.need);
        if (!n->dead && node_has_room(n, &b->item.need)) {
            sandbox_start(s, b, a.node, lost_us);
            return true;
        }
        lost_us += n->dead ? NO_ANSWER_US : 0;
        place_settled(view, a.node, &b->item.need);
        if (!n->dead)
            node_report(s, view, a.node);
        r.tried[r.n_tried++] = a.node;
        s->ret->asked_again++;
    }
    return false;
}

static bool sandbox_admit(struct sim *s, struct sandbox *b)
{
    struct admit *a = s->by[b->by].admit + b->tenant;
    struct admit_answer answer = admit_take(a, &b->item.need, false, sim_ms(s));
    if (answer.code == ADMIT_ASK) {
        struct amount given = escrow_grant(s->escrow + b->tenant, &s->limits.most, &answer);
        amount_add(&a->granted, &given);
        answer = admit_take(a, &b->item.need, true, sim_ms(s));
    }
    return answer.code == ADMIT_OK;
}

static double sim_rate(const struct sim *s)
{
    double day = (double)(s->now_us % 86400000000ULL) / 86400e6, half = day < 0.5 ? day * 2 : day * 2 - 1;
    double wave = 4 * half * (1 - half) * (day < 0.5 ? -1 : 1); /* night first; nearly a sine */
    double mean_s = 0.8 * LIFE_SHORT_S + 0.2 * LIFE_LONG_S, room = s->spec->nodes * (NODE_GIB / 2.0);
    return s->spec->load * (1 + s->spec->swing * wave) * room / mean_s;
}

static void sim_on_come(struct sim *s)
{
    if (s->over)
        return;
    sim_push(s, (uint64_t)sim_exponential(s, 1e6 / sim_rate(s)) + 1, COMES, 0);
    uint32_t i = s->first_free;
    if (i == UINT32_MAX) {
        sim_fail(s, "the simulator has no room for more sandboxes");
        return;
    }
    struct sandbox *b = s->sandbox + i;
    s->first_free = b->next_free;
    *b = (struct sandbox){.stage = WAITS, .came_us = s->now_us};
    b->tenant = sim_pick(s, s->asks, s->spec->tenants);
    b->template = sim_pick(s, s->popular, s->spec->templates) + 1;
    b->by = draw_below(&s->draw, s->spec->orchestrators);
    b->life_us = (uint64_t)(sim_exponential(s, draw_below(&s->draw, 5) ? LIFE_SHORT_S : LIFE_LONG_S) * 1e6) + 1;
    b->item.need = amount_make(1, 1000, (1 + draw_below(&s->draw, 3)) * GIB, GIB);
    b->item.remaining_ms = 30000;
    amount_add(&s->came, &b->item.need);
    s->ret->creates += sim_counts(s);
    s->ret->tenant_asked[b->tenant] += sim_counts(s);
    s->running[b->tenant]++;
    struct orchestrator *o = s->by + b->by;
    if (!sandbox_admit(s, b)) {
        s->ret->quota += sim_counts(s);
        s->running[b->tenant]--;
        b->stage = FREE;
        b->next_free = s->first_free;
        s->first_free = i;
        return;
    }
    if (s->running[b->tenant] > s->ret->tenant_most[b->tenant])
        s->ret->tenant_most[b->tenant] = s->running[b->tenant];
    if (s->spec->quota && s->running[b->tenant] > s->spec->quota)
        sim_fail(s, "a tenant has more than its quota");
    if (o->queue.n_items == 0 && sandbox_place(s, b))
        queue_charge(&o->queue, o->line + b->tenant, &b->item.need);
    else if (!queue_push(&o->queue, o->line + b->tenant, &b->item, sim_ms(s)))
        sandbox_refuse(s, b);
}

static void sim_on_started(struct sim *s, struct sandbox *b)
{
    struct node *n = s->node + b->node - 1;
    place_settled(s->by[b->by].view, b->node, &b->item.need);
    if (b->stage == STARTS_NOW) {
        n->starting--;
        node_report(s, s->by[b->by].view, b->node);
        b->stage = LIVES;
        sim_push(s, b->life_us, ENDS, (uint32_t)(b - s->sandbox));
        struct sim_minute *m = sim_minute(s);
        m->started++;
        m->warm += b->warm;
        if (sim_counts(s)) {
            s->ret->started++;
            s->ret->warm += b->warm;
            s->ret->tenant_started[b->tenant]++;
            s->ret->tenant_live_ms[b->tenant] += b->life_us / 1000;
            scale_add(&s->ret->start_us, s->now_us - b->came_us);
        }
    } else {
        sim_push(s, 0, ENDS, (uint32_t)(b - s->sandbox));
    }
}

static void sim_on_end(struct sim *s, struct sandbox *b)
{
    struct node *n = s->node + b->node - 1;
    queue_release(&s->by[b->by].queue, s->by[b->by].line + b->tenant, &b->item.need);
    if (b->stage == LIVES) {
        for (int k = 0; k < AMOUNT_N; k++)
            if (n->used.of[k] < b->item.need.of[k])
                sim_fail(s, "more ended on a node than was there");
        amount_take(&n->used, &b->item.need);
        s->live--;
    }
    s->ended++;
    s->ended_life_s += b->life_us / 1000000;
    sandbox_free(s, b, true);
}

/* --- time passes ---------------------------------------------------------------------------------------------------- */

static void sim_serve(struct sim *s, struct orchestrator *o)
{
    struct queue_item *item;
    bool late;
    while ((item = queue_overdue(&o->queue, sim_ms(s))))
        sandbox_refuse(s, (struct sandbox *)item);
    queue_round(&o->queue);
    while ((item = queue_next(&o->queue, sim_ms(s), &late))) {
        struct sandbox *b = (struct sandbox *)item;
        if (late) {
            sandbox_refuse(s, b);
        } else if (!sandbox_place(s, b)) {
            queue_put_back(&o->queue, o->line + b->tenant, item);
        } else if (sim_counts(s)) {
            scale_add(&s->ret->wait_us, s->now_us - b->came_us);
        }
    }
}

/* Nodes die, and what is on them. The views learn it later. */
static void sim_lose(struct sim *s)
{
    uint32_t n = s->spec->nodes * s->spec->lose_percent / 100;
    for (uint32_t i = 0; i < n; i++)
        s->node[i].dead = true;
    for (uint32_t i = 0; i < s->max; i++) {
        struct sandbox *b = s->sandbox + i;
        if ((b->stage != LIVES && b->stage != STARTS_NOW) || !s->node[b->node - 1].dead)
            continue;
        b->stage = DEAD; /* its event is on its way and gives back what it had */
        s->live--;
        s->ret->lost++;
    }
    s->lost_tick = (uint32_t)s->ticks;
}

static void sim_scale(struct sim *s)
{
    struct demand_sample sample = {.came = s->came, .ended = s->ended, .ended_life_s = s->ended_life_s};
    uint32_t there = 0, leaving[64];
    for (uint32_t i = 0; i < s->spec->nodes; i++) {
        amount_add(&sample.used, &s->node[i].used);
        there += (s->node[i].there && !s->node[i].draining) || s->node[i].boots;
    }
    s->came = (struct amount){0};
    s->ended = s->ended_life_s = 0;
    demand_observe(&s->demand, sim_ms(s), &sample);
    struct amount each = node_info.capacity;
    each.of[AMOUNT_CPU_MILLI] *= 4;
    struct demand_answer want = demand_decide(&s->demand, sim_ms(s), there, &each);
    for (uint32_t i = 0; i < s->spec->nodes && there < want.nodes; i++)
        if (!s->node[i].there && !s->node[i].boots) {
            s->node[i].boots = BOOT_TICKS;
            there++;
        }
    size_t less = there > want.nodes ? there - want.nodes : 0, drains = 0;
    for (uint32_t i = 0; i < s->spec->nodes; i++)
        drains += s->node[i].draining;
    size_t n = demand_leaving(s->by[0].view, less + drains < 64 ? less + drains : 64, leaving);
    for (size_t i = 0; i < n && less > 0; i++)
        if (!s->node[leaving[i] - 1].draining) {
            s->node[leaving[i] - 1].draining = true;
            less--;
            for (uint32_t o = 0; o < s->spec->orchestrators; o++)
                place_set_state(s->by[o].view, leaving[i], PLACE_DRAINING);
        }
}

static void sim_on_tick(struct sim *s)
{
    s->ticks++;
    if (s->spec->lose_ms && s->ticks == s->spec->lose_ms * 1000 / TICK_US)
        sim_lose(s);
    uint32_t there = 0;
    for (uint32_t i = 0; i < s->spec->nodes; i++) {
        struct node *n = s->node + i;
        if (n->boots && --n->boots == 0)
            node_join(s, i + 1);
        if (n->draining && n->used.of[AMOUNT_SANDBOXES] == 0) {
            *n = (struct node){0};
            for (uint32_t o = 0; o < s->spec->orchestrators; o++)
                place_leave(s->by[o].view, i + 1);
        }
        there += (n->there || n->boots) && !n->dead;
    }
    s->ret->node_ms += sim_counts(s) ? there * (uint64_t)(TICK_US / 1000) : 0;
    for (uint32_t o = 0; o < s->spec->orchestrators; o++) {
        for (uint32_t i = 0; i < s->spec->nodes && s->ticks % REPORT_TICKS == 0; i++)
            if (s->node[i].dead && s->ticks > s->lost_tick + SILENT_TICKS)
                place_set_state(s->by[o].view, i + 1, PLACE_LOST);
            else if (s->node[i].there && !s->node[i].dead)
                node_report(s, s->by[o].view, i + 1);
        sim_serve(s, s->by + o);
    }
    if (s->spec->scale && s->ticks % (10 * REPORT_TICKS) == 0 && !s->over)
        sim_scale(s);
    if (!s->over) {
        sim_minute(s)->live = s->live;
        sim_minute(s)->nodes = there;
    }
    if (!s->over || s->n_heap > 0)
        sim_push(s, TICK_US, TICK, 0);
}

/* --- begin and end -------------------------------------------------------------------------------------------------- */

static void sim_begin(struct sim *s)
{
    const struct sim_spec *spec = s->spec;
    s->draw.at = spec->seed;
    s->limits.most.of[AMOUNT_SANDBOXES] = spec->quota;
    s->max = spec->nodes * 300;
    s->sandbox = xcalloc(s->max, sizeof *s->sandbox);
    for (uint32_t i = 0; i < s->max; i++)
        s->sandbox[i].next_free = i + 1 < s->max ? i + 1 : UINT32_MAX;
    s->node = xcalloc(spec->nodes, sizeof *s->node);
    s->by = xcalloc(spec->orchestrators, sizeof *s->by);
    struct amount all = node_info.capacity;
    for (int k = 0; k < AMOUNT_N; k++)
        all.of[k] *= spec->nodes;
    for (uint32_t o = 0; o < spec->orchestrators; o++) {
        s->by[o].view = place_new(&PLACE_RULES);
        place_set_templates(s->by[o].view, spec->templates);
        queue_start(&s->by[o].queue, 2 * STARTS * spec->nodes / spec->orchestrators, &all);
        for (uint32_t t = 0; t < spec->tenants; t++) {
            s->by[o].line[t].weight = 1;
            admit_start(s->by[o].admit + t, &s->limits, spec->orchestrators);
        }
    }
    for (uint32_t i = 0; i < spec->nodes; i++)
        node_join(s, i + 1);
    if (spec->scale)
        demand_start(&s->demand, spec->scale);
    s->popular = xcalloc(spec->templates, sizeof *s->popular);
    s->asks = xcalloc(spec->tenants, sizeof *s->asks);
    double sum = 0, harmonic = 0, asks = spec->tenants - 1 + (spec->flood > 0 ? spec->flood : 1);
    for (uint32_t i = 0; i < spec->templates; i++)
        harmonic += 1.0 / (i + 1);
    for (uint32_t i = 0; i < spec->templates; i++)
        s->popular[i] = sum += 1.0 / (i + 1) / harmonic;
    sum = 0;
    for (uint32_t t = 0; t < spec->tenants; t++)
        s->asks[t] = sum += (t == 0 && spec->flood > 0 ? spec->flood : 1) / asks;
}

/* Nothing comes any more and everything has ended: nothing may be left in any account. */
static void sim_check_empty(struct sim *s)
{
    for (uint32_t i = 0; i < s->spec->nodes; i++)
        if (!s->node[i].dead && (s->node[i].used.of[AMOUNT_SANDBOXES] || s->node[i].starting))
            sim_fail(s, "a node has sandboxes that have ended");
    for (uint32_t o = 0; o < s->spec->orchestrators; o++) {
        for (uint32_t t = 0; t < s->spec->tenants; t++)
            if (s->by[o].admit[t].used.of[AMOUNT_SANDBOXES] || s->by[o].line[t].held.of[AMOUNT_SANDBOXES])
                sim_fail(s, "a tenant is charged for sandboxes that have ended");
        for (size_t i = 0; i < place_count_nodes(s->by[o].view); i++) {
            struct place_seen seen;
            if (place_look_at(s->by[o].view, i, &seen) && seen.pending.of[AMOUNT_SANDBOXES])
                sim_fail(s, "a view has something on its way that has arrived");
        }
    }
    if (s->live)
        sim_fail(s, "sandboxes live on");
}

static void sim_end(struct sim *s)
{
    for (uint32_t o = 0; o < s->spec->orchestrators; o++) {
        place_free(s->by[o].view);
        queue_done(&s->by[o].queue);
    }
    free(s->by);
    free(s->node);
    free(s->sandbox);
    free(s->popular);
    free(s->asks);
    free(s->heap);
}

static void sim_stop_arrivals(struct sim *s)
{
    double sum = 0, most = 0;
    uint32_t n = 0;
    for (uint32_t i = 0; i < s->spec->nodes; i++)
        if (s->node[i].there && !s->node[i].dead) {
            double memory = (double)s->node[i].used.of[AMOUNT_MEMORY];
            sum += memory;
            most = memory > most ? memory : most;
            n++;
        }
    s->ret->fullest = sum > 0 ? most * n / sum : 0;
    s->over = true;
}

void sim_run(const struct sim_spec *spec, struct sim_result *ret)
{
    struct sim s = {.spec = spec, .ret = ret};
    memset(ret, 0, sizeof *ret);
    sim_begin(&s);
    sim_push(&s, 1, COMES, 0);
    sim_push(&s, TICK_US, TICK, 0);
    while (s.n_heap > 0) {
        struct event e = sim_pop(&s);
        s.now_us = e.at_us;
        ret->events++;
        if (!s.over && sim_ms(&s) > spec->length_ms)
            sim_stop_arrivals(&s);
        if (e.kind == COMES)
            sim_on_come(&s);
        else if (e.kind == STARTED)
            sim_on_started(&s, s.sandbox + e.sandbox);
        else if (e.kind == ENDS)
            sim_on_end(&s, s.sandbox + e.sandbox);
        else
            sim_on_tick(&s);
    }
    sim_check_empty(&s);
    sim_end(&s);
}
