/* Breadth first, so that what is found is shortest. A state is 128 bits without loss: nothing depends on a hash. */
#include "once-world.h"

static const char asked[] = "5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03";

/* All of a struct once that later steps depend on, and what else there is. Revisions are 0 (absent), CURRENT or OLD: none
 * comes again. */
enum { CURRENT = 1, OLD = 2 };
struct actor {
    bool runs, decided; /* `decided`: what it is about to write */
    uint8_t next, id, revision, tried;
};
struct world {
    struct actor actor[WORLD_ACTORS_MAX];
    uint8_t state, id; /* of the record */
    uint8_t life[WORLD_IDS_MAX], node[WORLD_IDS_MAX];
    uint8_t late_make, late_confirm;    /* messages on their way, by id */
    uint8_t late_pending, late_decided; /* changes on their way that would still hold */
    uint8_t answered;                   /* the id that clients were told */
};
struct key {
    uint64_t a, b;
};
struct search {
    unsigned actors, ids, nodes;
    enum world_mutant mutant;
    struct key *seen; /* in the order in which they were found */
    uint32_t *parent, *slots;
    size_t n, cap, n_slots;
    uint32_t at;
    struct world_result *ret;
};

/* --- a state as a number -------------------------------------------------------------------------------------------- */

static uint64_t actor_pack(const struct actor *a)
{
    if (!a->runs)
        return 0;
    return 1 | (uint64_t)a->decided << 1 | (uint64_t)a->next << 2 | (uint64_t)a->id << 5 | (uint64_t)a->revision << 8 |
           (uint64_t)a->tried << 10;
}
static struct actor actor_unpack(uint64_t x)
{
    return (struct actor){.runs = x & 1,
                          .decided = x >> 1 & 1,
                          .next = x >> 2 & 7,
                          .id = x >> 5 & 7,
                          .revision = x >> 8 & 3,
                          .tried = x >> 10 & 3};
}

/* Orchestrators are alike: their order does not matter. */
static struct key world_pack(const struct world *w)
{
    uint64_t a[WORLD_ACTORS_MAX];
    for (int i = 0; i < WORLD_ACTORS_MAX; i++) {
        a[i] = actor_pack(w->actor + i);
        for (int j = i; j > 0 && a[j] > a[j - 1]; j--) {
            uint64_t t = a[j];
            a[j] = a[j - 1];
            a[j - 1] = t;
        }
    }
    struct key k = {a[0] | a[1] << 12 | a[2] << 24 | (uint64_t)w->state << 36 | (uint64_t)w->id << 38 |
                        (uint64_t)w->answered << 41 | (uint64_t)w->late_make << 44 | (uint64_t)w->late_confirm << 48,
                    w->late_pending | (uint64_t)w->late_decided << 4};
    for (int i = 0; i < WORLD_IDS_MAX; i++)
        k.b |= ((uint64_t)w->life[i] | (uint64_t)w->node[i] << 3) << (8 + 4 * i);
    return k;
}
static struct world world_unpack(struct key k)
{
    struct world w = {.state = k.a >> 36 & 3,
                      .id = k.a >> 38 & 7,
                      .answered = k.a >> 41 & 7,
                      .late_make = k.a >> 44 & 15,
                      .late_confirm = k.a >> 48 & 15,
                      .late_pending = k.b & 15,
                      .late_decided = k.b >> 4 & 15};
    for (int i = 0; i < WORLD_ACTORS_MAX; i++)
        w.actor[i] = actor_unpack(k.a >> (12 * i) & 4095);
    for (int i = 0; i < WORLD_IDS_MAX; i++) {
        w.life[i] = k.b >> (8 + 4 * i) & 7;
        w.node[i] = k.b >> (11 + 4 * i) & 1;
    }
    return w;
}

static bool world_refers(const struct world *w, uint8_t id)
{
    for (int i = 0; i < WORLD_ACTORS_MAX; i++)
        if (w->actor[i].runs && w->actor[i].id == id)
            return true;
    return (w->state && w->id == id) || w->answered == id || w->life[id] == ONCE_LIFE_TRIAL ||
           w->life[id] == ONCE_LIFE_CONFIRMED ||
           ((w->late_make | w->late_confirm | w->late_pending | w->late_decided) >> id & 1);
}

/* Ids are alike, too: they are renamed in the order of what is known of them. */
static void world_sort(struct world *w, unsigned ids)
{
    struct world was = *w;
    uint32_t order[WORLD_IDS_MAX];
    uint8_t name[WORLD_NO_ID + 1] = {[WORLD_NO_ID] = WORLD_NO_ID};
    for (uint8_t id = 0; id < ids; id++) {
        uint32_t mine = (w->state && w->id == id) | (uint32_t)(w->answered == id) << 1 |
                        (uint32_t)(w->late_make >> id & 1) << 2 | (uint32_t)(w->late_confirm >> id & 1) << 3 |
                        (uint32_t)(w->late_pending >> id & 1) << 4 | (uint32_t)(w->late_decided >> id & 1) << 5 |
                        (uint32_t)w->life[id] << 6 | (uint32_t)w->node[id] << 9;
        for (int i = 0; i < WORLD_ACTORS_MAX; i++)
            mine += w->actor[i].runs && w->actor[i].id == id ? 1U << (10 + 3 * w->actor[i].next) : 0;
        int at = id;
        for (; at > 0 && order[at - 1] >> 2 < mine; at--)
            order[at] = order[at - 1];
        order[at] = mine << 2 | id;
    }
    w->late_make = w->late_confirm = w->late_pending = w->late_decided = 0;
    for (uint8_t to = 0; to < ids; to++) {
        uint8_t from = order[to] & 3;
        name[from] = to;
        w->life[to] = was.life[from];
        w->node[to] = was.node[from];
        w->late_make |= (uint8_t)((was.late_make >> from & 1) << to);
        w->late_confirm |= (uint8_t)((was.late_confirm >> from & 1) << to);
        w->late_pending |= (uint8_t)((was.late_pending >> from & 1) << to);
        w->late_decided |= (uint8_t)((was.late_decided >> from & 1) << to);
    }
    w->id = w->state ? name[w->id] : 0;
    w->answered = name[w->answered];
    for (int i = 0; i < WORLD_ACTORS_MAX; i++)
        w->actor[i].id = w->actor[i].runs ? name[w->actor[i].id] : 0;
}

static void search_grow(struct search *s)
{
    s->cap = s->cap ? s->cap * 2 : 1 << 16;
    s->seen = realloc(s->seen, s->cap * sizeof *s->seen);
    s->parent = realloc(s->parent, s->cap * sizeof *s->parent);
    free(s->slots);
    s->n_slots = s->cap * 2;
    s->slots = calloc(s->n_slots, sizeof *s->slots);
    assert_true(s->seen && s->parent && s->slots);
    for (size_t i = 0; i < s->n; i++) {
        size_t h = (s->seen[i].a * 0x9e3779b97f4a7c15 ^ s->seen[i].b * 0xbf58476d1ce4e5b9) >> 20 & (s->n_slots - 1);
        while (s->slots[h])
            h = (h + 1) & (s->n_slots - 1);
        s->slots[h] = (uint32_t)i + 1;
    }
}

/* A state was reached: kept, if it is new. */
static void search_add(struct search *s, struct world *w)
{
    s->ret->steps++;
    for (uint8_t id = 0; id < s->ids; id++)
        if (!world_refers(w, id))
            w->life[id] = w->node[id] = 0;
    world_sort(w, s->ids);
    struct key k = world_pack(w);
    if (s->n == s->cap)
        search_grow(s);
    size_t h = (k.a * 0x9e3779b97f4a7c15 ^ k.b * 0xbf58476d1ce4e5b9) >> 20 & (s->n_slots - 1);
    for (; s->slots[h]; h = (h + 1) & (s->n_slots - 1)) {
        const struct key *other = s->seen + s->slots[h] - 1;
        if (other->a == k.a && other->b == k.b)
            return;
    }
    s->seen[s->n] = k;
    s->parent[s->n] = s->at;
    s->slots[h] = (uint32_t)++s->n;
}

static void search_fail(struct search *s, const char *wrong)
{
    if (!s->ret->wrong)
        s->ret->wrong = wrong;
}

/* --- the program under test ----------------------------------------------------------------------------------------- */

static struct once_place place_of(const struct world *w, uint8_t id)
{
    struct once_place p = {.node = id < WORLD_IDS_MAX ? w->node[id] : 0};
    p.id[0] = (char)('a' + id);
    return p;
}
static struct once_record record_of(const struct world *w)
{
    struct once_record r = {.state = w->state, .at = place_of(w, w->id), .revision = CURRENT};
    memcpy(r.request, asked, sizeof r.request);
    return r;
}

/* As the orchestrator would have it: made anew from what the state keeps. */
static struct once once_of(const struct world *w, const struct actor *a)
{
    struct once o;
    once_start(&o, asked, 1000);
    o.next = a->next;
    o.record.revision = a->revision;
    o.at = o.write.at = place_of(w, a->id);
    o.write.state = a->decided ? ONCE_DECIDED : ONCE_PENDING;
    o.write.revision = a->revision;
    for (uint8_t n = 0; n < WORLD_NODES_MAX; n++)
        if (a->tried >> n & 1)
            o.tried[o.n_tried++] = n;
    return o;
}

/* What a client is told, and what is left of the orchestrator's memory. */
static void actor_take(struct search *s, struct world *w, struct actor *a, const struct once *o)
{
    *a = (struct actor){.runs = o->next != ONCE_ANSWER, .next = (uint8_t)o->next, .id = WORLD_NO_ID};
    uint8_t at = (uint8_t)(o->at.id[0] - 'a');
    if (o->next == ONCE_ANSWER) {
        *a = (struct actor){0};
        if (o->answer == ONCE_MADE || o->answer == ONCE_OVER) {
            if (w->answered != WORLD_NO_ID && w->answered != at)
                search_fail(s, "two sandboxes were answered for one key");
            w->answered = at;
        }
        return;
    }
    for (uint32_t i = 0; i < o->n_tried; i++)
        a->tried |= (uint8_t)(1 << o->tried[i]);
    if (o->next == ONCE_WRITE) {
        a->decided = o->write.state == ONCE_DECIDED;
        a->id = (uint8_t)(o->write.at.id[0] - 'a');
    } else if (o->next == ONCE_MAKE || o->next == ONCE_CONFIRM) {
        a->id = at;
    }
    if (o->next != ONCE_READ)
        a->revision = (uint8_t)o->record.revision;
}

/* --- steps ---------------------------------------------------------------------------------------------------------- */

static bool may_write(const struct search *s, const struct world *w, uint8_t revision)
{
    return s->mutant == WORLD_UNTESTED || revision == (w->state ? CURRENT : 0);
}

/* The record changes: what was read before is old, and changes that are on their way do not hold any more. */
static void world_write(const struct search *s, struct world *w, bool decided, uint8_t id)
{
    w->state = decided ? ONCE_DECIDED : ONCE_PENDING;
    w->id = id;
    for (int i = 0; i < WORLD_ACTORS_MAX; i++)
        if (w->actor[i].runs && w->actor[i].next != ONCE_READ)
            w->actor[i].revision = OLD;
    if (s->mutant != WORLD_UNTESTED)
        w->late_pending = w->late_decided = 0;
}

static enum once_said world_node(const struct search *s, struct world *w, uint8_t id, enum once_life_event event)
{
    enum once_life life = w->life[id];
    enum once_said said = once_life_step(&life, event);
    if (s->mutant == WORLD_NO_TOMBSTONES && life == ONCE_LIFE_REAPED)
        life = ONCE_LIFE_NONE;
    w->life[id] = (uint8_t)life;
    return said;
}

static void step_said(struct search *s, const struct world *w, int i, enum once_said said)
{
    struct world to = *w;
    struct once o = once_of(w, w->actor + i);
    if (s->mutant == WORLD_SILENCE_IS_REAPED && o.next == ONCE_CONFIRM && said == ONCE_SAID_NO_LEASE)
        said = ONCE_SAID_REAPED;
    once_on_node(&o, said);
    actor_take(s, &to, to.actor + i, &o);
    search_add(s, &to);
}

/* A message to a node: it comes and is answered, or the answer is lost, or it is lost or late. */
static void step_node(struct search *s, const struct world *w, int i)
{
    const struct actor *a = w->actor + i;
    bool make = a->next == ONCE_MAKE;
    struct world come = *w, late = *w;
    enum once_said said;
    if (s->mutant == WORLD_NO_CONFIRM && !make) {
        step_said(s, w, i, ONCE_SAID_YES);
        return;
    }
    said = world_node(s, &come, a->id, make ? ONCE_LIFE_MAKE : ONCE_LIFE_CONFIRM);
    step_said(s, &come, i, said);
    step_said(s, &come, i, ONCE_SAID_NOTHING);
    step_said(s, &come, i, ONCE_SAID_NO_LEASE);
    if (make)
        late.late_make |= (uint8_t)(1 << a->id);
    else
        late.late_confirm |= (uint8_t)(1 << a->id);
    step_said(s, &late, i, ONCE_SAID_NOTHING);
    step_said(s, &late, i, ONCE_SAID_NO_LEASE);
    if (!make || w->life[a->id] == ONCE_LIFE_NONE)
        step_said(s, w, i, ONCE_SAID_REFUSED);
}

static void step_written(struct search *s, const struct world *w, int i, const struct actor *before,
                         enum once_engine said)
{
    struct world to = *w;
    struct once o = once_of(w, before);
    if (s->mutant == WORLD_UNKNOWN_IS_DONE && said == ONCE_ENGINE_UNKNOWN)
        said = ONCE_ENGINE_OK;
    once_on_written(&o, said, w->state ? CURRENT : 0);
    actor_take(s, &to, to.actor + i, &o);
    search_add(s, &to);
}

static void step_write(struct search *s, const struct world *w, int i)
{
    struct actor a = w->actor[i];
    if (s->mutant == WORLD_NO_FENCE && a.decided) {
        step_written(s, w, i, &a, ONCE_ENGINE_OK);
        return;
    }
    if (!may_write(s, w, a.revision)) {
        step_written(s, w, i, &a, ONCE_ENGINE_DIFFERS);
        step_written(s, w, i, &a, ONCE_ENGINE_UNKNOWN);
        return;
    }
    struct world done = *w, late = *w;
    world_write(s, &done, a.decided, a.id);
    step_written(s, &done, i, &a, ONCE_ENGINE_OK);
    step_written(s, &done, i, &a, ONCE_ENGINE_UNKNOWN);
    if (a.decided)
        late.late_decided |= (uint8_t)(1 << a.id);
    else
        late.late_pending |= (uint8_t)(1 << a.id);
    step_written(s, &late, i, &a, ONCE_ENGINE_UNKNOWN);
}

static void step_choose(struct search *s, const struct world *w, int i)
{
    uint8_t id = 0;
    while (id < s->ids && world_refers(w, id))
        id++;
    for (uint8_t node = 0; node < s->nodes; node++) {
        struct once o = once_of(w, w->actor + i);
        struct world to = *w;
        if (id == s->ids || w->actor[i].tried >> node & 1) {
            once_on_full(&o);
        } else {
            to.node[id] = node;
            once_on_chosen(&o, place_of(&to, id).id, node);
        }
        actor_take(s, &to, to.actor + i, &o);
        search_add(s, &to);
    }
}

static void step_actor(struct search *s, const struct world *w, int i)
{
    struct world to = *w;
    if (!w->actor[i].runs) { /* a client asks; asks again */
        struct once o;
        once_start(&o, asked, 1000);
        actor_take(s, &to, to.actor + i, &o);
        search_add(s, &to);
        return;
    }
    to.actor[i] = (struct actor){0}; /* it dies, or its time is over */
    search_add(s, &to);
    to = *w;
    struct once o = once_of(w, w->actor + i);
    struct once_record r = record_of(w);
    switch (o.next) {
    case ONCE_READ:
        once_on_read(&o, ONCE_ENGINE_OK, w->state ? &r : NULL);
        actor_take(s, &to, to.actor + i, &o);
        search_add(s, &to);
        return;
    case ONCE_CHOOSE:
        step_choose(s, w, i);
        return;
    case ONCE_WRITE:
        step_write(s, w, i);
        return;
    case ONCE_MAKE:
    case ONCE_CONFIRM:
        step_node(s, w, i);
        return;
    case ONCE_ANSWER:
        return;
    }
}

/* What was on its way arrives; time passes on the nodes. */
static void step_world(struct search *s, const struct world *w, uint8_t id)
{
    uint8_t bit = (uint8_t)(1 << id);
    struct world to = *w;
    if (w->late_make & bit) {
        to.late_make &= (uint8_t)~bit;
        world_node(s, &to, id, ONCE_LIFE_MAKE);
        search_add(s, &to);
    }
    to = *w;
    if (w->late_confirm & bit) {
        to.late_confirm &= (uint8_t)~bit;
        world_node(s, &to, id, ONCE_LIFE_CONFIRM);
        search_add(s, &to);
    }
    for (int decided = 0; decided < 2; decided++) {
        to = *w;
        if (!((decided ? w->late_decided : w->late_pending) & bit))
            continue;
        to.late_decided &= (uint8_t)(decided ? ~bit : 255);
        to.late_pending &= (uint8_t)(decided ? 255 : ~bit);
        world_write(s, &to, decided, id);
        search_add(s, &to);
    }
    to = *w;
    if (w->life[id] == ONCE_LIFE_CONFIRMED || (w->life[id] == ONCE_LIFE_TRIAL && s->mutant != WORLD_NO_REAPER)) {
        world_node(s, &to, id, w->life[id] == ONCE_LIFE_TRIAL ? ONCE_LIFE_OVERDUE : ONCE_LIFE_END);
        search_add(s, &to);
    }
}

/* --- what must hold ------------------------------------------------------------------------------------------------- */

static void check_state(struct search *s, const struct world *w)
{
    if (w->answered != WORLD_NO_ID) {
        s->ret->answered++;
        if (w->life[w->answered] != ONCE_LIFE_CONFIRMED && w->life[w->answered] != ONCE_LIFE_ENDED)
            search_fail(s, "a sandbox that was answered is not there");
        else if (w->state != ONCE_DECIDED || w->id != w->answered)
            search_fail(s, "the record does not name the sandbox that was answered");
    }
    for (uint8_t id = 0; id < s->ids; id++)
        if (w->life[id] == ONCE_LIFE_CONFIRMED && (w->state != ONCE_DECIDED || w->id != id))
            search_fail(s, "a sandbox is confirmed and in no record: it would live for ever");
}

/* Here all orchestrators die, what is on its way arrives, and nothing fails any more: one more request is answered with a
 * sandbox, and nothing is left beside it. */
static void check_recovers(struct search *s, struct world w)
{
    for (uint8_t id = 0; id < s->ids; id++) {
        if (w.late_make >> id & 1)
            world_node(s, &w, id, ONCE_LIFE_MAKE);
        if (w.late_confirm >> id & 1)
            world_node(s, &w, id, ONCE_LIFE_CONFIRM);
        if (w.life[id] == ONCE_LIFE_TRIAL && s->mutant != WORLD_NO_REAPER)
            world_node(s, &w, id, ONCE_LIFE_OVERDUE);
    }
    memset(w.actor, 0, sizeof w.actor);
    w.late_make = w.late_confirm = w.late_pending = w.late_decided = 0;
    uint8_t fresh = 0;
    while (fresh < s->ids && world_refers(&w, fresh))
        fresh++;
    struct once o;
    once_start(&o, asked, 1000);
    for (int steps = 0; o.next != ONCE_ANSWER && steps < 12 && fresh < s->ids; steps++) {
        struct once_record r = record_of(&w);
        uint8_t at = (uint8_t)(o.at.id[0] - 'a');
        if (o.next == ONCE_READ)
            once_on_read(&o, ONCE_ENGINE_OK, w.state ? &r : NULL);
        else if (o.next == ONCE_CHOOSE) {
            w.life[fresh] = ONCE_LIFE_NONE;
            once_on_chosen(&o, place_of(&w, fresh).id, 0);
        } else if (o.next == ONCE_WRITE) {
            w.state = (uint8_t)o.write.state;
            w.id = (uint8_t)(o.write.at.id[0] - 'a');
            once_on_written(&o, ONCE_ENGINE_OK, CURRENT);
        } else
            once_on_node(&o, world_node(s, &w, at, o.next == ONCE_MAKE ? ONCE_LIFE_MAKE : ONCE_LIFE_CONFIRM));
    }
    if (fresh == s->ids)
        return;
    uint8_t at = (uint8_t)(o.at.id[0] - 'a');
    if (o.next != ONCE_ANSWER || (o.answer != ONCE_MADE && o.answer != ONCE_OVER))
        search_fail(s, "a request without failures is not answered with a sandbox");
    else if (w.answered != WORLD_NO_ID && w.answered != at)
        search_fail(s, "a request that comes later is answered with another sandbox");
    for (uint8_t id = 0; id < s->ids; id++)
        if ((w.life[id] == ONCE_LIFE_TRIAL || w.life[id] == ONCE_LIFE_CONFIRMED) && id != at)
            search_fail(s, "a sandbox is left that no request was answered with");
}

static void world_print(const struct world *w, struct buf *b)
{
    static const char *const next[] = {"read", "choose", "write", "make", "confirm", "answer"};
    static const char *const life[] = {"", "trial", "confirmed", "reaped", "ended"};
    buf_addf(b, "  record %s", w->state == ONCE_ABSENT ? "none" : w->state == ONCE_PENDING ? "pending " : "decided ");
    if (w->state)
        buf_addc(b, (char)('a' + w->id));
    for (int i = 0; i < WORLD_ACTORS_MAX; i++)
        if (w->actor[i].runs)
            buf_addf(b, " | %s%s %c%s", next[w->actor[i].next], w->actor[i].decided ? " decided" : "",
                     w->actor[i].id == WORLD_NO_ID ? '-' : 'a' + w->actor[i].id,
                     w->actor[i].revision == OLD ? " (old)" : "");
    for (int i = 0; i < WORLD_IDS_MAX; i++)
        if (w->life[i])
            buf_addf(b, " | %c is %s", 'a' + i, life[w->life[i]]);
    if (w->answered != WORLD_NO_ID)
        buf_addf(b, " | %c was answered", 'a' + w->answered);
    buf_addc(b, '\n');
}

static void search_tell(const struct search *s)
{
    uint32_t path[64], n = 0;
    for (uint32_t at = s->at; n < 64; at = s->parent[at]) {
        path[n++] = at;
        if (at == 0)
            break;
    }
    _cleanup_buf_ struct buf b = {0};
    while (n > 0) {
        struct world w = world_unpack(s->seen[path[--n]]);
        world_print(&w, &b);
    }
    snprintf(s->ret->trace, sizeof s->ret->trace, "%s", buf_str(&b));
}

void world_explore(struct world_size size, enum world_mutant mutant, struct world_result *ret)
{
    memset(ret, 0, sizeof *ret);
    struct search s = {.actors = size.actors, .ids = size.ids, .nodes = size.nodes, .mutant = mutant, .ret = ret};
    struct world first = {.answered = WORLD_NO_ID};
    search_add(&s, &first);
    for (; s.at < s.n; s.at++) {
        struct world w = world_unpack(s.seen[s.at]);
        check_state(&s, &w);
        check_recovers(&s, w);
        if (!ret->wrong)
            for (int i = 0; i < (int)s.actors; i++)
                step_actor(&s, &w, i);
        for (uint8_t id = 0; id < s.ids && !ret->wrong; id++)
            step_world(&s, &w, id);
        if (ret->wrong) {
            search_tell(&s);
            break;
        }
    }
    ret->states = s.n;
    free(s.seen);
    free(s.parent);
    free(s.slots);
}
