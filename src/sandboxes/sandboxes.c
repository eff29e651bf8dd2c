#include "sandboxes/sandboxes.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/json.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/random.h"
#include "sandboxes/events.h"
#include "sandboxes/idseal.h"
#include "sandboxes/metrics.h"
#include "sandboxes/sandboxes-int.h"

enum {
    EXPIRE_EVERY_MS = 600 * 1000,
    CLOCK_SET_MS = 1000, /* a larger difference means that the wall clock was set; a smaller one is drift */
};

uint64_t sandbox_end_unix_ms(const struct sandbox *b)
{
    uint64_t end = clock_unix_ms() + ((const struct sandbox_own *)b)->end_boot_ms - clock_boot_ms();
    uint64_t off = end > b->end_unix_ms ? end - b->end_unix_ms : b->end_unix_ms - end;
    return off > CLOCK_SET_MS ? end : b->end_unix_ms;
}

/* --- the table ---------------------------------------------------------------------------------------------------- */

struct sandbox_own *sandbox_new(struct sandboxes *sb, struct tenant *t, const char *id)
{
    struct sandbox_own *o = xcalloc(1, sizeof *o);
    o->sandboxes = sb;
    o->b.tenant = t;
    (void)snprintf(o->b.id, sizeof o->b.id, "%s", id);
    o->round = sb->round;
    (void)map_put(&sb->by_id, o->b.id, o);
    return o;
}

const struct life_cell *sandbox_step(struct sandbox *b, enum life_event e)
{
    struct sandboxes *sb = sandbox_own(b)->sandboxes;
    const struct life_cell *c = life_step(b->state, e);
    enum sandbox_state was = b->state;
    b->state = c->next;
    for (size_t i = 0; was != b->state && i < sb->nchanges; i++)
        sb->changes[i].fn(sb->changes[i].arg, b, was);
    return c;
}

bool sandbox_may_ask(const struct sandbox *b, enum life_event e, struct state_failure *why)
{
    const struct life_cell *c = life_step(b->state, e);
    if (c->action == LIFE_REFUSE)
        state_fail(why, c->status, "%s", c->text);
    return c->action != LIFE_REFUSE;
}

struct tenant_need sandbox_need(const struct sandbox *b)
{
    return (struct tenant_need){.cpu_milli = b->desc.cpu_milli, .memory = b->desc.memory, .disk = b->desc.disk};
}

struct sandbox *sandbox_find(struct sandboxes *sb, const char *id)
{
    /* Do not search for ids that this node did not make. */
    return idseal_check(sb->ids, id, NULL) ? map_get(&sb->by_id, id) : NULL;
}

struct sandbox *sandbox_lookup(struct sandboxes *sb, const char *id) { return map_get(&sb->by_id, id); }

struct sandbox *sandbox_of(struct sandboxes *sb, const struct principal *p, const char *id)
{
    struct sandbox *b = sandbox_find(sb, id);
    return b && b->tenant == p->tenant && sandbox_is_there(b) && !b->desc.hidden ? b : NULL;
}

size_t sandboxes_count(const struct sandboxes *sb) { return sb->by_id.n - sb->nstored; }

void sandboxes_each(struct sandboxes *sb, sandbox_each_fn *fn, void *arg)
{
    size_t at = 0;
    for (struct sandbox *b; (b = map_next(&sb->by_id, &at));)
        fn(arg, b);
}

void sandboxes_on_end(struct sandboxes *sb, sandbox_ended_fn *fn, void *arg)
{
    if (sb->nends == ARRAY_LEN(sb->ends))
        abort(); /* the array has one place per caller in the program */
    sb->ends[sb->nends++] = (struct end_fn){fn, arg};
}

void sandboxes_on_pause(struct sandboxes *sb, sandbox_pausing_fn *fn, void *arg)
{
    if (sb->npauses == ARRAY_LEN(sb->pauses))
        abort();
    sb->pauses[sb->npauses++] = (struct pause_fn){fn, arg};
}

void sandboxes_on_change(struct sandboxes *sb, sandbox_changed_fn *fn, void *arg)
{
    if (sb->nchanges == ARRAY_LEN(sb->changes))
        abort();
    sb->changes[sb->nchanges++] = (struct change_fn){fn, arg};
}

static void sandbox_write_row(struct sandboxes *sb, const struct sandbox *b, uint32_t state, const struct db_idem *idem,
                              db_done *done, void *arg)
{
    _cleanup_strv_ struct strv texts = {0};
    struct db_sandbox row;
    sandbox_row_encode(b, state, &texts, &row);
    db_sandbox_put(sb->db, &row, idem, done, arg);
}

void sandbox_write(struct sandboxes *sb, const struct sandbox *b, const struct db_idem *idem, db_done *done, void *arg)
{
    /* During a change the row keeps the state that was written last. */
    uint32_t state = sandbox_is_being_made(b)      ? DB_SANDBOX_CREATING
                     : b->state == SANDBOX_RUNNING ? DB_SANDBOX_RUNNING
                                                   : ((const struct sandbox_own *)b)->row_state;
    sandbox_write_row(sb, b, state, idem, done, arg);
}

void sandbox_write_as(struct sandboxes *sb, struct sandbox *b, uint32_t state, db_done *done, void *arg)
{
    sandbox_own(b)->row_state = state;
    sandbox_write_row(sb, b, state, NULL, done, arg);
}

uint64_t sandbox_deadline(const struct sandbox *b)
{
    const struct sandbox_own *o = (const struct sandbox_own *)b;
    return b->desc.life.auto_pause ? clock_boot_ms() + SANDBOX_FAR_S * 1000ULL : o->end_boot_ms;
}

/* --- ends --------------------------------------------------------------------------------------------------------- */

static void sandbox_free(void *arg)
{
    struct sandbox_own *o = arg;
    sandbox_desc_done(&o->b.desc);
    if (o->sandboxes->network)
        o->sandboxes->network->detach(&o->b);
    metrics_forget(&o->b);
    free(o);
}

static void sandbox_add_usage(struct json *j, const struct keeper_usage *u)
{
    if (!u || !u->have)
        return;
    json_obj(j, "usage");
    json_u64(j, "cpu_us", u->cpu_user_us + u->cpu_system_us);
    json_u64(j, "memory_peak", u->memory_peak);
    json_u64(j, "pids_peak", u->pids_peak);
    json_u64(j, "oom_kills", u->oom_kills);
    json_end_obj(j);
}

static void sandbox_publish_end(struct sandboxes *sb, const struct sandbox *b, const char *type, const char *cause,
                                const struct keeper_usage *u)
{
    _cleanup_buf_ struct buf text = {0};
    struct json j;
    if (b->desc.hidden)
        return;
    json_start(&j, &text);
    json_obj(&j, NULL);
    json_str(&j, "cause", cause);
    json_u64(&j, "alive_ms", clock_boot_ms() - ((const struct sandbox_own *)b)->started_boot_ms);
    sandbox_add_usage(&j, u);
    json_end_obj(&j);
    events_publish(sb->events, b->id, b->tenant->id, type, buf_str(&text));
    events_end(sb->events, b->id);
    struct log_line l;
    if (log_start(&l, LOG_LEVEL_INFO, "sandbox ended")) {
        log_str(&l, "sandbox", b->id);
        log_str(&l, "tenant", b->tenant->id);
        log_str(&l, "cause", cause);
        log_end(&l);
    }
}

static void sandbox_on_row_written(void *arg, const struct err *err)
{
    (void)arg;
    /* The next front finds a row without a sandbox and removes it. */
    if (err)
        log_text(LOG_LEVEL_ERROR, "%s", err->msg);
}

/* Takes the sandbox out of the table, gives its quota back and deletes its row. Publishes nothing. */
static void sandbox_take_out(struct sandboxes *sb, struct sandbox_own *o, bool ran)
{
    struct tenant_need need = sandbox_need(&o->b);
    sandbox_change_ended(o); /* first: it may change o->stored */
    (void)map_del(&sb->by_id, o->b.id);
    if (o->stored)
        sandbox_count_stored(sb, &o->b, false);
    else if (!o->b.desc.hidden || o->b.desc.counted)
        tenant_give_back(sb->tenants, o->b.tenant, &need, ran);
    (void)sandbox_step(&o->b, LIFE_ON_GONE);
    if (!o->b.desc.hidden)
        db_sandbox_del(sb->db, o->b.id, sandbox_on_row_written, NULL);
    state_drop(sb->stacks, o->b.desc.stack);
    links_gone(sb->peers->links, o->b.id);
    sb->network->gone(sb->networks, &o->b);
    loop_defer(sb->loop, sandbox_free, o);
}

static void sandbox_tell_killers(struct sandbox_own *o, bool ok)
{
    struct waiter *w = o->killers;
    o->killers = NULL;
    for (struct waiter *next; w; w = next) {
        next = w->next;
        if (w->done)
            w->done(w->arg, ok);
        free(w);
    }
}

void sandbox_discard(struct sandboxes *sb, struct sandbox_own *o)
{
    if (o->b.state == SANDBOX_ENDED)
        return;
    sandbox_take_out(sb, o, false);
    sandbox_tell_killers(o, true); /* kills that came while it was being made */
}

void sandbox_end(struct sandboxes *sb, struct sandbox_own *o, const char *type, const char *cause,
                 const struct keeper_usage *u)
{
    if (o->b.state == SANDBOX_ENDED)
        return;
    sandbox_take_out(sb, o, true);
    if (type)
        sandbox_publish_end(sb, &o->b, type, cause, u);
    for (size_t i = 0; i < sb->nends; i++)
        sb->ends[i].fn(sb->ends[i].arg, &o->b, cause, u);
    sandbox_tell_killers(o, true);
}

struct kill_call {
    struct sandboxes *sandboxes;
    bool was_pausing;
    char id[SANDBOX_ID_MAX];
};

static void sandbox_on_killed(void *arg, const struct keeper_reply *r)
{
    struct kill_call *k = arg;
    struct sandboxes *sb = k->sandboxes;
    struct sandbox_own *o = map_get(&sb->by_id, k->id);
    bool was_pausing = k->was_pausing;
    free(k);
    if (!o || o->b.state != SANDBOX_KILLING)
        return;
    bool gone = r->error == KEEPER_OK || r->error == KEEPER_NO_SANDBOX;
    if (gone && o->creation) { /* answers the creates; the sandbox never existed for a client */
        creation_killed(o->creation);
        return;
    }
    if (gone) {
        sandbox_end(sb, o, "killed", o->why, r->error == KEEPER_OK ? &r->usage : NULL);
        return;
    }
    log_text(LOG_LEVEL_ERROR, "sandbox %s cannot be killed: %s", o->b.id, r->text);
    sandbox_not_killed(sb, o, was_pausing);
    sandbox_tell_killers(o, false);
    if (o->creation)
        creation_go_on(o->creation);
}

/* Completes the kill of a sandbox that exists as files only. */
static void sandbox_on_nothing_to_kill(void *arg)
{
    struct keeper_reply r = {.error = KEEPER_NO_SANDBOX};
    sandbox_on_killed(arg, &r);
}

void sandbox_kill(struct sandboxes *sb, struct sandbox *b, const char *why, sandbox_done *done, void *arg)
{
    struct sandbox_own *o = sandbox_own(b);
    struct waiter *w = xcalloc(1, sizeof *w);
    *w = (struct waiter){.next = o->killers, .done = done, .arg = arg};
    o->killers = w;
    if (life_step(b->state, LIFE_ASK_KILL)->action != LIFE_KILL)
        return;
    sandbox_change_ended(o);
    bool dead = o->stored && !o->leftover, was_pausing = sandbox_is_pausing(b);
    (void)sandbox_step(b, LIFE_ASK_KILL);
    o->why = why;
    struct kill_call *k = xcalloc(1, sizeof *k);
    k->sandboxes = sb;
    k->was_pausing = was_pausing;
    memcpy(k->id, b->id, sizeof k->id);
    if (dead)
        loop_defer(sb->loop, sandbox_on_nothing_to_kill, k);
    else
        keeperc_kill(sb->peers->keeper, b->id, sandbox_on_killed, k);
}

/* --- timeouts ----------------------------------------------------------------------------------------------------- */

struct timeout_call {
    struct sandboxes *sandboxes;
    char id[SANDBOX_ID_MAX];
    uint64_t end_unix_ms, end_boot_ms, seconds;
    bool ok; /* the answer when keeper is not asked */
    sandbox_done *done;
    void *arg;
};

static void timeout_on_deadline_set(void *arg, const struct keeper_reply *r)
{
    struct timeout_call *t = arg;
    struct sandboxes *sb = t->sandboxes;
    struct sandbox *b = map_get(&sb->by_id, t->id);
    bool ok = r->error == KEEPER_OK && b;
    if (ok) {
        char text[64];
        b->end_unix_ms = t->end_unix_ms;
        b->desc.timeout_s = (uint32_t)t->seconds;
        sandbox_own(b)->end_boot_ms = t->end_boot_ms;
        db_sandbox_end_at(sb->db, b->id, b->end_unix_ms, sandbox_on_row_written, NULL);
        if (b->desc.life.auto_pause)
            sandboxes_idle_look(sb, t->seconds * 1000);
        (void)snprintf(text, sizeof text, "{\"ends_unix_ms\":%llu}", (unsigned long long)b->end_unix_ms);
        events_publish(sb->events, b->id, b->tenant->id, "timeout_changed", text);
    }
    if (t->done)
        t->done(t->arg, ok);
    free(t);
}

static void timeout_finish(void *arg)
{
    struct timeout_call *t = arg;
    if (t->done)
        t->done(t->arg, t->ok);
    free(t);
}

/* A sandbox that is paused at its end keeps keeper's far deadline, unless that setting was changed at the same
 * moment. */
static void timeout_set_own(void *arg)
{
    struct timeout_call *t = arg;
    const struct sandbox *b = map_get(&t->sandboxes->by_id, t->id);
    if (b && !b->desc.life.auto_pause)
        keeperc_deadline(t->sandboxes->peers->keeper, t->id, t->end_boot_ms, timeout_on_deadline_set, t);
    else
        timeout_on_deadline_set(t, &(struct keeper_reply){0});
}

void sandbox_set_timeout(struct sandboxes *sb, struct sandbox *b, uint64_t seconds, bool extend_only,
                         sandbox_done *done, void *arg)
{
    struct timeout_call *t = xcalloc(1, sizeof *t);
    *t = (struct timeout_call){.sandboxes = sb, .done = done, .arg = arg};
    memcpy(t->id, b->id, sizeof t->id);
    if (seconds > sb->config->max_timeout_s)
        seconds = sb->config->max_timeout_s;
    if (b->tenant->quota.max_timeout_s && seconds > b->tenant->quota.max_timeout_s)
        seconds = b->tenant->quota.max_timeout_s;
    t->seconds = seconds;
    t->end_unix_ms = clock_unix_ms() + seconds * 1000;
    t->end_boot_ms = clock_boot_ms() + seconds * 1000;
    t->ok = b->state == SANDBOX_RUNNING;
    if (!t->ok || (extend_only && t->end_boot_ms <= sandbox_own(b)->end_boot_ms))
        loop_defer(sb->loop, timeout_finish, t);
    else if (b->desc.life.auto_pause)
        loop_defer(sb->loop, timeout_set_own, t);
    else
        keeperc_deadline(sb->peers->keeper, b->id, t->end_boot_ms, timeout_on_deadline_set, t);
}

/* --- ports -------------------------------------------------------------------------------------------------------- */

/* A setting of the description, which is in force before it is stored. */
struct setting_call {
    sandbox_done *done;
    void *arg;
};

static void setting_on_row_stored(void *arg, const struct err *err)
{
    struct setting_call *p = arg;
    if (err)
        log_text(LOG_LEVEL_ERROR, "%s", err->msg);
    p->done(p->arg, !err);
    free(p);
}

static void setting_store(struct sandboxes *sb, const struct sandbox *b, sandbox_done *done, void *arg)
{
    struct setting_call *p = xcalloc(1, sizeof *p);
    *p = (struct setting_call){.done = done, .arg = arg};
    sandbox_write(sb, b, NULL, setting_on_row_stored, p);
}

void sandbox_set_ports(struct sandboxes *sb, struct sandbox *b, const struct sandbox_ports *ports, bool public_traffic,
                       sandbox_done *done, void *arg)
{
    b->desc.ports = *ports;
    b->desc.allow_public_traffic = public_traffic;
    if (!public_traffic && !b->traffic_token[0])
        random_hex(b->traffic_token, 20);
    setting_store(sb, b, done, arg);
}

void sandbox_set_metadata(struct sandboxes *sb, struct sandbox *b, struct strv *metadata, sandbox_done *done, void *arg)
{
    strv_done(&b->desc.metadata);
    b->desc.metadata = *metadata;
    *metadata = (struct strv){0};
    setting_store(sb, b, done, arg);
}

/* --- loading ------------------------------------------------------------------------------------------------------ */

static void sandbox_load_times(struct sandbox_own *o)
{
    struct sandbox *b = &o->b;
    uint64_t now = clock_unix_ms(), boot = clock_boot_ms();
    o->started_boot_ms =
        boot - (now > b->started_unix_ms && now - b->started_unix_ms < boot ? now - b->started_unix_ms : 0);
    o->end_boot_ms = boot + (b->end_unix_ms > now ? b->end_unix_ms - now : 0); /* until keeper says it */
    b->used_ms = loop_now(o->sandboxes->loop);
}

static void sandbox_load(void *arg, const struct db_sandbox *row)
{
    struct sandboxes *sb = arg;
    struct tenant *t = tenants_find(sb->tenants, row->tenant);
    bool sealed_here = idseal_check(sb->ids, row->id, NULL);
    if (t && !sealed_here && row->state == DB_SANDBOX_STORED) {
        /* Keep the row: only it names the files of the sandbox. */
        log_text(
            LOG_LEVEL_ERROR,
            "the id of the paused sandbox %.40s of %s was not made with this id.key: it is kept in the store, and can "
            "be resumed once the key that it was made with is put back",
            row->id, row->tenant);
        return;
    }
    if (!t || !sealed_here) {
        /* keeper will report the sandbox, if it lives; without a row it is killed. */
        log_text(LOG_LEVEL_WARN, "the store holds a sandbox of an unknown tenant or id; it is forgotten");
        db_sandbox_del(sb->db, row->id, NULL, NULL);
        return;
    }
    struct sandbox_own *o = sandbox_new(sb, t, row->id);
    struct sandbox *b = &o->b;
    o->row_state = row->state;
    o->met = row->state == DB_SANDBOX_CREATING ? SANDBOX_UNSURE
             : row->state == DB_SANDBOX_STORED ? SANDBOX_MET
                                               : SANDBOX_UNMET;
    (void)sandbox_step(b, row->state == DB_SANDBOX_FROZEN     ? LIFE_ROW_FROZEN
                          : row->state == DB_SANDBOX_STORED   ? LIFE_ROW_STORED
                          : row->state == DB_SANDBOX_CREATING ? LIFE_ROW_CREATING
                                                              : LIFE_ROW_RUNNING);
    sandbox_row_decode(row, b);
    sandbox_load_times(o);
    struct tenant_need need = sandbox_need(b);
    if (b->state == SANDBOX_STORED) {
        sandbox_count_stored(sb, b, true);
        o->leftover = true; /* until keeper says otherwise */
    } else
        tenant_count(t, &need);
}

/* What its files are made from, or, STORED, what they are. */
static void sandbox_each_use(void *ctx, stack_use_fn *fn, void *arg)
{
    struct sandboxes *sb = ctx;
    size_t at = 0;
    for (const struct sandbox *b; (b = map_next(&sb->by_id, &at));)
        fn(arg, &(struct stack_use){.stack = b->desc.stack,
                                    .bytes = b->state_bytes,
                                    .tenant = b->tenant,
                                    .kept = sandbox_is_paused(b),
                                    .files_of = b->state == SANDBOX_STORED ? b->id : NULL});
}

static const struct stack_owner sandbox_stacks = {.each = sandbox_each_use};

static void sandboxes_on_expire_timer(void *arg)
{
    struct sandboxes *sb = arg;
    idems_expire(sb);
    sb->timer = loop_timer(sb->loop, EXPIRE_EVERY_MS, sandboxes_on_expire_timer, sb);
}

struct sandboxes *sandboxes_new(const struct sandboxes_deps *d)
{
    struct sandboxes *sb = xcalloc(1, sizeof *sb);
    sb->loop = d->loop;
    sb->config = d->config;
    sb->db = d->db;
    sb->peers = d->peers;
    sb->tenants = d->tenants;
    sb->stacks = d->stacks;
    sb->templates = d->templates;
    sb->events = d->events;
    sb->ids = d->ids;
    sb->boot_unix_ms = clock_unix_ms() - clock_boot_ms();
    sb->ability.freeze = -1;
    stacks_add_owner(sb->stacks, &sandbox_stacks, sb);
    return sb;
}

void sandboxes_set_network(struct sandboxes *sb, const struct sandbox_network *ops, struct networks *nw)
{
    sb->network = ops;
    sb->networks = nw;
}

void sandboxes_set_mounts(struct sandboxes *sb, sandbox_mount_fn *exists, void *arg)
{
    sb->mount_exists = exists;
    sb->mount_arg = arg;
}

int sandboxes_load(struct sandboxes *sb, struct err *err)
{
    if (idems_load(sb, err) < 0 || db_sandboxes(sb->db, sandbox_load, sb, err) < 0)
        return -1;
    sb->timer = loop_timer(sb->loop, 1000, sandboxes_on_expire_timer, sb);
    sandboxes_idle_look(sb, 0);
    return 0;
}

void sandboxes_free(struct sandboxes *sb)
{
    if (!sb)
        return;
    size_t at = 0;
    for (struct sandbox_own *o; (o = map_next(&sb->by_id, &at));) {
        for (struct waiter *w = o->killers, *next; w; w = next) {
            next = w->next;
            free(w);
        }
        sandbox_change_drop(o);
        sandbox_free(o);
    }
    while (sb->creations)
        creation_drop(sb->creations);
    map_done(&sb->by_id);
    idems_free(sb);
    sandboxes_idle_free(sb);
    loop_timer_del(sb->loop, sb->timer);
    free(sb);
}
