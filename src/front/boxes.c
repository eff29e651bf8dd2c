#include "front/boxes.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/cleanup.h"
#include "base/json.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/random.h"
#include "front/boxes-int.h"
#include "front/events.h"
#include "front/idseal.h"
#include "front/metrics.h"
#include "front/nets.h"
#include "front/vault.h"

enum {
    EXPIRE_EVERY_MS = 600 * 1000,
    CLOCK_SET_MS = 1000, /* a larger difference is a wall clock that was set, not one that runs a little differently */
};

uint64_t boxes_unix_ms(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_REALTIME, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

uint64_t boxes_boot_ms(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_BOOTTIME, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

uint64_t box_end_unix_ms(const struct box *b)
{
    uint64_t end = boxes_unix_ms() + ((const struct box_own *)b)->end_boot_ms - boxes_boot_ms();
    uint64_t off = end > b->end_unix_ms ? end - b->end_unix_ms : b->end_unix_ms - end;
    return off > CLOCK_SET_MS ? end : b->end_unix_ms;
}

/* --- the table ---------------------------------------------------------------------------------------------------- */

struct box_own *box_new(struct front *f, struct tenant *t, const char *id)
{
    struct box_own *o = xcalloc(1, sizeof *o);
    o->front = f;
    o->b.tenant = t;
    (void)snprintf(o->b.id, sizeof o->b.id, "%s", id);
    o->round = f->boxes->round;
    (void)map_put(&f->boxes->by_id, o->b.id, o);
    return o;
}

struct tenant_need box_need(const struct box *b)
{
    return (struct tenant_need){.cpu_milli = b->cpu_milli, .memory = b->memory, .disk = b->disk};
}

struct box *box_find(struct front *f, const char *id)
{
    /* What nobody here can have named is not looked for. */
    return idseal_check(f->ids, id, NULL) ? map_get(&f->boxes->by_id, id) : NULL;
}

struct box *box_of(struct front *f, const struct principal *p, const char *id)
{
    struct box *b = box_find(f, id);
    return b && b->tenant == p->tenant && box_is_there(b) && !b->hidden ? b : NULL;
}

size_t boxes_count(const struct front *f) { return f->boxes->by_id.n - f->boxes->nstored; }

void boxes_each(struct front *f, box_each_fn *fn, void *arg)
{
    size_t at = 0;
    for (struct box *b; (b = map_next(&f->boxes->by_id, &at));)
        fn(arg, b);
}

void boxes_on_end(struct front *f, box_ended_fn *fn, void *arg)
{
    if (f->boxes->nends == ARRAY_LEN(f->boxes->ends))
        abort(); /* as many as there are callers in the program */
    f->boxes->ends[f->boxes->nends++] = (struct end_fn){fn, arg};
}

void boxes_on_pause(struct front *f, box_pausing_fn *fn, void *arg)
{
    if (f->boxes->npauses == ARRAY_LEN(f->boxes->pauses))
        abort();
    f->boxes->pauses[f->boxes->npauses++] = (struct pause_fn){fn, arg};
}

static uint32_t row_flags(const struct box *b)
{
    return (b->allow_public_traffic ? STORE_BOX_PUBLIC : 0U) | (b->allow_internet ? STORE_BOX_INTERNET : 0U) |
           (b->auto_pause ? STORE_BOX_AUTO_PAUSE : 0U) | (b->auto_pause_files ? STORE_BOX_AUTO_PAUSE_FILES : 0U) |
           (b->auto_resume ? STORE_BOX_AUTO_RESUME : 0U) | (b->history ? STORE_BOX_HISTORY : 0U);
}

static void write_row(struct front *f, const struct box *b, uint32_t state, const struct store_idem *idem,
                      store_done *done, void *arg)
{
    _cleanup_free_ char *config = b->config ? tmpl_config_json(b->config) : NULL;
    struct store_box row = {.id = b->id,
                            .tenant = b->tenant->id,
                            .template = b->template,
                            .token = b->token,
                            .traffic_token = b->traffic_token,
                            .mask_host = b->mask_host,
                            .tier = b->tier,
                            .degraded = b->degraded,
                            .state = state,
                            .flags = row_flags(b),
                            .nhttps_ports = b->nhttps_ports,
                            .nports = b->ports.n,
                            .links = b->ports.links,
                            .metadata = b->metadata,
                            .env = b->env,
                            .started_unix_ms = b->started_unix_ms,
                            .end_unix_ms = b->end_unix_ms,
                            .cpu_milli = b->cpu_milli,
                            .pids = b->pids,
                            .memory = b->memory,
                            .disk = b->disk,
                            .stack = b->stack,
                            .parent = b->parent,
                            .idle_s = b->idle_s,
                            .timeout_s = b->timeout_s,
                            .nmounts = b->nmounts,
                            .config = config,
                            .state_bytes = b->state_bytes};
    _Static_assert((int)STORE_VOLUMES_MAX == (int)BOX_MOUNTS_MAX, "all of them fit");
    for (size_t i = 0; i < b->nmounts; i++)
        row.mounts[i] = (struct store_mount){.volume = b->mounts[i].volume,
                                             .name = b->mounts[i].name,
                                             .place = b->mounts[i].place,
                                             .flags = b->mounts[i].flags};
    _Static_assert(sizeof row.https_ports == sizeof b->https_ports, "copied as a whole");
    _Static_assert(sizeof row.ports == sizeof b->ports.v, "copied as a whole");
    memcpy(row.https_ports, b->https_ports, sizeof row.https_ports);
    memcpy(row.ports, b->ports.v, sizeof row.ports);
    store_box_put(f->store, &row, idem, done, arg);
}

void box_write(struct front *f, const struct box *b, const struct store_idem *idem, store_done *done, void *arg)
{
    /* On the way from one state to another it is still what was written last. */
    uint32_t state = b->state == BOX_CREATING  ? STORE_BOX_CREATING
                     : b->state == BOX_RUNNING ? STORE_BOX_RUNNING
                                               : ((const struct box_own *)b)->row_state;
    write_row(f, b, state, idem, done, arg);
}

void box_write_as(struct front *f, struct box *b, uint32_t state, store_done *done, void *arg)
{
    box_own(b)->row_state = state;
    write_row(f, b, state, NULL, done, arg);
}

uint64_t box_deadline(const struct box *b)
{
    const struct box_own *o = (const struct box_own *)b;
    return b->auto_pause ? boxes_boot_ms() + BOX_FAR_S * 1000ULL : o->end_boot_ms;
}

/* --- ends --------------------------------------------------------------------------------------------------------- */

static void free_box(void *arg)
{
    struct box_own *o = arg;
    strv_done(&o->b.metadata);
    strv_done(&o->b.env);
    if (o->b.config)
        tmpl_config_done(o->b.config);
    free(o->b.config);
    free(o->b.mounts);
    net_detach(&o->b);
    metrics_forget(&o->b);
    free(o);
}

static void add_usage(struct json *j, const struct keeper_usage *u)
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

static void publish_end(struct front *f, const struct box *b, const char *type, const char *cause,
                        const struct keeper_usage *u)
{
    _cleanup_buf_ struct buf text = {0};
    struct json j;
    if (b->hidden)
        return;
    json_start(&j, &text);
    json_obj(&j, NULL);
    json_str(&j, "cause", cause);
    json_u64(&j, "alive_ms", boxes_boot_ms() - ((const struct box_own *)b)->started_boot_ms);
    add_usage(&j, u);
    json_end_obj(&j);
    events_publish(f, b->id, b->tenant->id, type, buf_str(&text));
    events_end(f, b->id);
    struct log_line l;
    if (log_start(&l, LOG_LEVEL_INFO, "sandbox ended")) {
        log_str(&l, "sandbox", b->id);
        log_str(&l, "tenant", b->tenant->id);
        log_str(&l, "cause", cause);
        log_end(&l);
    }
}

static void row_is_gone(void *arg, const struct err *err)
{
    (void)arg;
    /* The row is found without a sandbox at the next start and removed then. */
    if (err)
        log_text(LOG_LEVEL_ERROR, "%s", err->msg);
}

/* Everything but telling: out of the table, quota back, row deleted. */
static void take_out(struct front *f, struct box_own *o, bool ran)
{
    struct tenant_need need = box_need(&o->b);
    box_change_ended(o); /* may find it stored or counted still */
    o->ended = true;
    (void)map_del(&f->boxes->by_id, o->b.id);
    if (o->stored)
        box_count_stored(f, &o->b, false);
    else if (!o->b.hidden || o->counted)
        tenant_give_back(f, o->b.tenant, &need, ran);
    o->b.state = BOX_KILLING;
    if (!o->b.hidden)
        store_box_del(f->store, o->b.id, row_is_gone, NULL);
    state_drop(f, o->b.stack);
    links_gone(f->links, o->b.id);
    net_gone(f, &o->b);
    loop_defer(f->loop, free_box, o);
}

static void tell_killers(struct box_own *o, bool ok)
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

void box_discard(struct front *f, struct box_own *o)
{
    if (o->ended)
        return;
    take_out(f, o, false);
    tell_killers(o, true); /* those who wanted it to end while it was being made */
}

void box_end(struct front *f, struct box_own *o, const char *type, const char *cause, const struct keeper_usage *u)
{
    if (o->ended)
        return;
    take_out(f, o, true);
    if (type)
        publish_end(f, &o->b, type, cause, u);
    for (size_t i = 0; i < f->boxes->nends; i++)
        f->boxes->ends[i].fn(f->boxes->ends[i].arg, &o->b, cause, u);
    tell_killers(o, true);
}

struct kill_call {
    struct front *front;
    enum box_state before;
    char id[SANDBOX_ID_MAX];
};

static void killed(void *arg, const struct keeper_reply *r)
{
    struct kill_call *k = arg;
    struct front *f = k->front;
    struct box_own *o = map_get(&f->boxes->by_id, k->id);
    enum box_state before = k->before;
    free(k);
    if (!o || o->b.state != BOX_KILLING)
        return;
    bool gone = r->error == KEEPER_OK || r->error == KEEPER_NO_SANDBOX;
    if (gone && o->creation) { /* whoever waits for it is told, and it was never there */
        creation_killed(o->creation);
        return;
    }
    if (gone) {
        box_end(f, o, "killed", o->why, r->error == KEEPER_OK ? &r->usage : NULL);
        return;
    }
    log_text(LOG_LEVEL_ERROR, "sandbox %s cannot be killed: %s", o->b.id, r->text);
    o->b.state = o->creation ? before : box_not_killed(f, o, before);
    tell_killers(o, false);
    if (o->creation)
        creation_go_on(o->creation);
}

/* Of a box that exists as files only. */
static void nothing_lives(void *arg)
{
    struct keeper_reply r = {.error = KEEPER_NO_SANDBOX};
    killed(arg, &r);
}

void box_kill(struct front *f, struct box *b, const char *why, box_done *done, void *arg)
{
    struct box_own *o = box_own(b);
    struct waiter *w = xcalloc(1, sizeof *w);
    *w = (struct waiter){.next = o->killers, .done = done, .arg = arg};
    o->killers = w;
    if (b->state == BOX_KILLING)
        return;
    box_change_ended(o);
    bool dead = o->stored && !o->leftover;
    enum box_state before = b->state;
    b->state = BOX_KILLING;
    o->why = why;
    struct kill_call *k = xcalloc(1, sizeof *k);
    k->front = f;
    k->before = before;
    memcpy(k->id, b->id, sizeof k->id);
    if (dead)
        loop_defer(f->loop, nothing_lives, k);
    else
        keeperc_kill(f->keeper, b->id, killed, k);
}

/* --- timeouts ----------------------------------------------------------------------------------------------------- */

struct timeout_call {
    struct front *front;
    char id[SANDBOX_ID_MAX];
    uint64_t end_unix_ms, end_boot_ms, seconds;
    bool ok; /* of one that keeper is not asked about */
    box_done *done;
    void *arg;
};

static void deadline_set(void *arg, const struct keeper_reply *r)
{
    struct timeout_call *t = arg;
    struct front *f = t->front;
    struct box *b = map_get(&f->boxes->by_id, t->id);
    bool ok = r->error == KEEPER_OK && b;
    if (ok) {
        char text[64];
        b->end_unix_ms = t->end_unix_ms;
        b->timeout_s = t->seconds;
        box_own(b)->end_boot_ms = t->end_boot_ms;
        store_box_end_at(f->store, b->id, b->end_unix_ms, row_is_gone, NULL);
        if (b->auto_pause)
            boxes_idle_look(f, t->seconds * 1000);
        (void)snprintf(text, sizeof text, "{\"ends_unix_ms\":%llu}", (unsigned long long)b->end_unix_ms);
        events_publish(f, b->id, b->tenant->id, "timeout_changed", text);
    }
    if (t->done)
        t->done(t->arg, ok);
    free(t);
}

static void timeout_same(void *arg)
{
    struct timeout_call *t = arg;
    if (t->done)
        t->done(t->arg, t->ok);
    free(t);
}

/* keeper's deadline of a box that is paused at its end is far away and stays so, unless that was changed in the same moment. */
static void deadline_ours(void *arg)
{
    struct timeout_call *t = arg;
    const struct box *b = map_get(&t->front->boxes->by_id, t->id);
    if (b && !b->auto_pause)
        keeperc_deadline(t->front->keeper, t->id, t->end_boot_ms, deadline_set, t);
    else
        deadline_set(t, &(struct keeper_reply){0});
}

void box_set_timeout(struct front *f, struct box *b, uint64_t seconds, bool extend_only, box_done *done, void *arg)
{
    struct timeout_call *t = xcalloc(1, sizeof *t);
    *t = (struct timeout_call){.front = f, .done = done, .arg = arg};
    memcpy(t->id, b->id, sizeof t->id);
    if (seconds > f->config->max_timeout_s)
        seconds = f->config->max_timeout_s;
    if (b->tenant->quota.max_timeout_s && seconds > b->tenant->quota.max_timeout_s)
        seconds = b->tenant->quota.max_timeout_s;
    t->seconds = seconds;
    t->end_unix_ms = boxes_unix_ms() + seconds * 1000;
    t->end_boot_ms = boxes_boot_ms() + seconds * 1000;
    t->ok = b->state == BOX_RUNNING;
    if (!t->ok || (extend_only && t->end_boot_ms <= box_own(b)->end_boot_ms))
        loop_defer(f->loop, timeout_same, t);
    else if (b->auto_pause)
        loop_defer(f->loop, deadline_ours, t);
    else
        keeperc_deadline(f->keeper, b->id, t->end_boot_ms, deadline_set, t);
}

/* --- ports -------------------------------------------------------------------------------------------------------- */

struct ports_call {
    box_done *done;
    void *arg;
};

static void ports_written(void *arg, const struct err *err)
{
    struct ports_call *p = arg;
    if (err)
        log_text(LOG_LEVEL_ERROR, "%s", err->msg);
    p->done(p->arg, !err);
    free(p);
}

void box_set_ports(struct front *f, struct box *b, const struct box_ports *ports, bool public_traffic, box_done *done,
                   void *arg)
{
    struct ports_call *p = xcalloc(1, sizeof *p);
    *p = (struct ports_call){.done = done, .arg = arg};
    b->ports = *ports;
    b->allow_public_traffic = public_traffic;
    if (!public_traffic && !b->traffic_token[0])
        random_hex(b->traffic_token, 20);
    box_write(f, b, NULL, ports_written, p);
}

/* --- loading ------------------------------------------------------------------------------------------------------ */

static void load_config(struct box *b, const char *json)
{
    struct err err;
    if (!*json)
        return;
    b->config = xcalloc(1, sizeof *b->config);
    if (tmpl_config_parse(json, b->config, &err) < 0)
        log_text(LOG_LEVEL_ERROR, "sandbox %s: %s; it is resumed as one without", b->id, err.msg);
}

static void load_life(struct box *b, const struct store_box *row)
{
    b->auto_pause = row->flags & STORE_BOX_AUTO_PAUSE;
    b->auto_pause_files = row->flags & STORE_BOX_AUTO_PAUSE_FILES;
    b->auto_resume = row->flags & STORE_BOX_AUTO_RESUME;
    b->history = row->flags & STORE_BOX_HISTORY;
    b->idle_s = row->idle_s;
    b->timeout_s = row->timeout_s;
    b->state_bytes = row->state_bytes;
    (void)snprintf(b->stack, sizeof b->stack, "%s", row->stack);
    (void)snprintf(b->parent, sizeof b->parent, "%s", row->parent);
    load_config(b, row->config);
    b->nmounts = row->nmounts;
    b->mounts = row->nmounts ? xcalloc(row->nmounts, sizeof *b->mounts) : NULL;
    for (size_t i = 0; i < row->nmounts; i++) {
        (void)snprintf(b->mounts[i].volume, sizeof b->mounts[i].volume, "%s", row->mounts[i].volume);
        (void)snprintf(b->mounts[i].name, sizeof b->mounts[i].name, "%s", row->mounts[i].name);
        (void)snprintf(b->mounts[i].place, sizeof b->mounts[i].place, "%s", row->mounts[i].place);
        b->mounts[i].flags = row->mounts[i].flags;
    }
}

static void load_ports(struct box *b, const struct store_box *row)
{
    b->allow_public_traffic = row->flags & STORE_BOX_PUBLIC;
    b->allow_internet = row->flags & STORE_BOX_INTERNET;
    memcpy(b->https_ports, row->https_ports, sizeof b->https_ports);
    b->nhttps_ports = row->nhttps_ports;
    memcpy(b->ports.v, row->ports, sizeof b->ports.v);
    b->ports.n = row->nports;
    b->ports.links = row->links;
}

static void load_times(struct box_own *o, const struct store_box *row)
{
    struct box *b = &o->b;
    uint64_t now = boxes_unix_ms(), boot = boxes_boot_ms();
    b->started_unix_ms = row->started_unix_ms;
    b->end_unix_ms = row->end_unix_ms;
    o->started_boot_ms =
        boot - (now > b->started_unix_ms && now - b->started_unix_ms < boot ? now - b->started_unix_ms : 0);
    o->end_boot_ms = boot + (b->end_unix_ms > now ? b->end_unix_ms - now : 0); /* until keeper says it */
    b->used_ms = loop_now(o->front->loop);
}

static void load_one(void *arg, const struct store_box *row)
{
    struct front *f = arg;
    struct tenant *t = tenants_find(f, row->tenant);
    bool sealed_here = idseal_check(f->ids, row->id, NULL);
    if (t && !sealed_here && row->state == STORE_BOX_STORED) {
        /* The row is all there is of it, and what names its files. */
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
        store_box_del(f->store, row->id, NULL, NULL);
        return;
    }
    struct box_own *o = box_new(f, t, row->id);
    struct box *b = &o->b;
    o->row_state = row->state;
    o->unsure = row->state == STORE_BOX_CREATING;
    o->unmet = row->state != STORE_BOX_STORED;
    b->state = row->state == STORE_BOX_FROZEN ? BOX_FROZEN : row->state == STORE_BOX_STORED ? BOX_STORED : BOX_RUNNING;
    (void)snprintf(b->template, sizeof b->template, "%s", row->template);
    (void)snprintf(b->token, sizeof b->token, "%s", row->token);
    (void)snprintf(b->traffic_token, sizeof b->traffic_token, "%s", row->traffic_token);
    (void)snprintf(b->mask_host, sizeof b->mask_host, "%s", row->mask_host);
    (void)snprintf(b->tier, sizeof b->tier, "%s", row->tier);
    (void)snprintf(b->degraded, sizeof b->degraded, "%s", row->degraded);
    load_ports(b, row);
    for (size_t i = 0; i < row->metadata.n; i++)
        strv_add(&b->metadata, row->metadata.v[i]);
    for (size_t i = 0; i < row->env.n; i++)
        strv_add(&b->env, row->env.v[i]);
    load_times(o, row);
    b->cpu_milli = row->cpu_milli;
    b->pids = row->pids;
    b->memory = row->memory;
    b->disk = row->disk;
    load_life(b, row);
    struct tenant_need need = box_need(b);
    if (b->state == BOX_STORED) {
        box_count_stored(f, b, true);
        o->leftover = true; /* for all we know */
    } else
        tenant_count(t, &need);
}

static void expire(void *arg)
{
    struct front *f = arg;
    idems_expire(f);
    f->boxes->timer = loop_timer(f->loop, EXPIRE_EVERY_MS, expire, f);
}

int boxes_load(struct front *f, struct err *err)
{
    f->boxes = xcalloc(1, sizeof *f->boxes);
    f->boxes->boot_unix_ms = boxes_unix_ms() - boxes_boot_ms();
    f->boxes->ability.freeze = -1;
    if (vault_load(f, err) < 0 || idems_load(f, err) < 0 || tmpls_load(f, err) < 0 ||
        store_boxes(f->store, load_one, f, err) < 0 || nets_load(f, err) < 0)
        return -1;
    f->boxes->timer = loop_timer(f->loop, 1000, expire, f);
    boxes_idle_look(f, 0);
    return 0;
}

void boxes_free(struct front *f)
{
    if (!f->boxes)
        return;
    nets_free(f);
    vault_free(f);
    size_t at = 0;
    for (struct box_own *o; (o = map_next(&f->boxes->by_id, &at));) {
        for (struct waiter *w = o->killers, *next; w; w = next) {
            next = w->next;
            free(w);
        }
        box_change_drop(o);
        free_box(o);
    }
    while (f->boxes->creations)
        creation_drop(f->boxes->creations);
    map_done(&f->boxes->by_id);
    idems_free(f);
    state_held_free(f);
    tmpls_free(f);
    boxes_idle_free(f);
    loop_timer_del(f->loop, f->boxes->meet_timer);
    loop_timer_del(f->loop, f->boxes->timer);
    free(f->boxes);
    f->boxes = NULL;
}
