/* Makes a sandbox that ask.c has checked: quotas, rows, keeper, binding, network, start command. */
#include <stdarg.h>
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
#include "sandboxes/creation.h"
#include "sandboxes/events.h"
#include "sandboxes/idseal.h"
#include "sandboxes/sandboxes-int.h"

enum {
    CREATE_MS = 30 * 1000,
    BUSY_RETRY_S = 5,
};

static void creation_unlink(struct creation *c)
{
    *c->link = c->next;
    if (c->next)
        c->next->link = c->link;
}

static void creation_free(void *arg)
{
    struct creation *c = arg;
    sandbox_desc_done(&c->desc);
    free(c->template);
    free(c->idem_key);
    net_doc_done(&c->net);
    free(c);
}

void creation_drop(struct creation *c)
{
    loop_timer_del(c->sandboxes->loop, c->timer);
    start_cancel(c->start);
    for (struct asker *a = c->askers, *next; a; a = next) {
        next = a->next;
        free(a);
    }
    creation_unlink(c);
    creation_free(c);
}

void creation_tell(struct creation *c, struct sandbox *b, const struct sandbox_failure *failure)
{
    c->over = true;
    loop_timer_del(c->sandboxes->loop, c->timer);
    for (struct asker *a = c->askers, *next; a; a = next) {
        next = a->next;
        a->done(a->arg, b, failure);
        free(a);
    }
    c->askers = NULL;
    /* Calls to the database, keeper and init may still be under way; they check `over`, and the last one frees. */
}

static bool creation_has_calls(const struct creation *c) { return c->awaits != 0; }

void creation_maybe_free(struct creation *c)
{
    if (!c->over || creation_has_calls(c) || c->freeing)
        return;
    c->freeing = true;
    creation_unlink(c);
    loop_defer(c->sandboxes->loop, creation_free, c);
}

void creation_refuse(struct creation *c, unsigned status, unsigned retry, const char *code, const char *fmt, ...)
{
    va_list ap;
    c->failure.status = status;
    c->failure.retry_after = retry;
    c->failure.error_code = code;
    va_start(ap, fmt);
    (void)vsnprintf(c->failure.text, sizeof c->failure.text, fmt, ap);
    va_end(ap);
}

/* Undoes all steps so far and answers with c->failure. */
static void creation_undo_and_answer(struct creation *c)
{
    struct sandboxes *sb = c->sandboxes;
    struct sandbox_own *o = c->sandbox;
    struct log_line l;
    c->over = true; /* calls may return while the sandbox is being removed */
    start_cancel(c->start);
    c->start = NULL;
    if (log_start(&l, c->failure.status >= 500 ? LOG_LEVEL_WARN : LOG_LEVEL_INFO, "sandbox refused")) {
        log_str(&l, "tenant", c->tenant->id);
        log_str(&l, "why", c->failure.text);
        log_u64(&l, "status", c->failure.status);
        log_end(&l);
    }
    if (o && sandbox_step(&o->b, LIFE_ON_FAILED)->action == LIFE_END) {
        o->creation = NULL;
        keeperc_kill(sb->peers->keeper, o->b.id, NULL, NULL);
        if (c->idem_key)
            idem_forget(sb, c->tenant->id, c->idem_key);
        sandbox_discard(sb, o);
    }
    creation_tell(c, NULL, &c->failure);
}

void creation_fail(void *arg)
{
    struct creation *c = arg;
    creation_undo_and_answer(c);
    creation_maybe_free(c);
}

static void creation_publish(struct sandboxes *sb, const struct sandbox *b)
{
    _cleanup_buf_ struct buf text = {0};
    struct json j;
    if (b->desc.hidden)
        return;
    json_start(&j, &text);
    json_obj(&j, NULL);
    json_str(&j, "template", b->desc.template);
    if (b->desc.parent[0])
        json_str(&j, "parent", b->desc.parent);
    json_str(&j, "tier", b->desc.tier);
    if (*b->degraded)
        json_str(&j, "degraded", b->degraded);
    json_u64(&j, "ends_unix_ms", b->end_unix_ms);
    json_end_obj(&j);
    events_publish(sb->events, b->id, b->tenant->id, "created", buf_str(&text));
}

static void creation_maybe_finish(struct creation *c);
static void creation_on_timeout(void *arg);

static void creation_on_started(void *arg, const char *failure)
{
    struct creation *c = arg;
    c->start = NULL;
    if (*failure) {
        creation_refuse(c, 500, 0, "start_command_failed", "%s", failure);
        creation_undo_and_answer(c);
    }
    creation_maybe_finish(c);
    creation_maybe_free(c);
}

/* Runs the template's start command, if there is one. True: it is under way, and the answer waits for it. */
static bool creation_run_start(struct creation *c)
{
    const struct sandbox *b = &c->sandbox->b;
    if (c->start)
        return true;
    if (c->started || b->desc.hidden || !b->desc.config || (!b->desc.config->start && !b->desc.config->ready))
        return false;
    c->started = true;
    loop_timer_del(c->sandboxes->loop, c->timer);
    c->timer = loop_timer(c->sandboxes->loop, CREATE_MS + START_READY_S * 1000ULL, creation_on_timeout, c);
    c->start = start_command(c->sandboxes, b, creation_on_started, c);
    return true;
}

/* Finishes when the row is written, init has taken its binding and egress has applied the network. */
static void creation_maybe_finish(struct creation *c)
{
    if (c->over || c->awaits || c->sandbox->b.state == SANDBOX_KILLING)
        return;
    bool lost = sandbox_step(&c->sandbox->b, LIFE_ON_READY)->action == LIFE_FAIL;
    if (!lost && creation_run_start(c))
        return;
    if (sandbox_step(&c->sandbox->b, LIFE_ON_STARTED)->action != LIFE_FINISH) {
        creation_refuse(c, 503, 1, NULL, "the sandbox ended while it was being made; try again");
        creation_undo_and_answer(c);
        return;
    }
    struct sandboxes *sb = c->sandboxes;
    struct sandbox *b = &c->sandbox->b;
    c->sandbox->creation = NULL;
    c->sandbox->row_state = DB_SANDBOX_RUNNING;
    b->used_ms = loop_now(sb->loop);
    if (!b->desc.hidden) {
        sandbox_write(sb, b, NULL, NULL, NULL); /* if this write is lost, the next front asks init */
        template_spawned(sb->templates, b->desc.template);
        template_row_spawned(sb->templates, b->desc.template);
    }
    if (b->desc.life.auto_pause || b->desc.life.idle_s)
        sandboxes_idle_look(sb, 0);
    creation_publish(sb, b);
    struct log_line l;
    if (log_start(&l, LOG_LEVEL_INFO, "sandbox created")) {
        log_str(&l, "sandbox", b->id);
        log_str(&l, "tenant", b->tenant->id);
        log_str(&l, "template", b->desc.template);
        log_u64(&l, "ms", clock_boot_ms() - c->sandbox->started_boot_ms);
        log_end(&l);
    }
    creation_tell(c, b, NULL);
}

void creation_killed(struct creation *c)
{
    creation_refuse(c, 503, 1, NULL, "the sandbox was ended while it was being made");
    creation_fail(c);
}

void creation_go_on(struct creation *c)
{
    creation_maybe_finish(c);
    creation_maybe_free(c);
}

static void creation_on_row_stored(void *arg, const struct err *err)
{
    struct creation *c = arg;
    c->awaits &= ~(unsigned)SANDBOX_AWAITS_ROW;
    if (err && !c->over) {
        struct state_failure why = {0};
        state_fail_write(&why, err, "the node cannot record a sandbox");
        creation_refuse(c, why.status, why.status == 503 ? BUSY_RETRY_S : 0, why.error_code, "%s", why.text);
        creation_undo_and_answer(c);
    }
    creation_maybe_finish(c);
    creation_maybe_free(c);
}

static void creation_on_bound(void *arg, const struct link_status *st)
{
    struct creation *c = arg;
    c->awaits &= ~(unsigned)SANDBOX_AWAITS_BINDING;
    if (!c->over)
        (void)sandbox_step(&c->sandbox->b, LIFE_ON_BOUND);
    if ((st->code == LINK_GONE || st->code == LINK_TIMEOUT) && !c->over) {
        creation_refuse(c, 503, 1, NULL, "the sandbox ended while it was being made; try again");
        creation_undo_and_answer(c);
    } else if (st->code != LINK_OK && !c->over) {
        creation_refuse(c, 500, 0, NULL, "the sandbox was made but its init did not take the binding: %s", st->text);
        creation_undo_and_answer(c);
    }
    creation_maybe_finish(c);
    creation_maybe_free(c);
}

static void creation_on_net_applied(void *arg, json_t *answer, const char *error)
{
    struct creation *c = arg;
    (void)answer;
    c->awaits &= ~(unsigned)SANDBOX_AWAITS_NETWORK;
    if (error && !c->over) {
        creation_refuse(c, 503, 1, NULL, "the network of the sandbox could not be set up: %s", error);
        creation_undo_and_answer(c);
    }
    creation_maybe_finish(c);
    creation_maybe_free(c);
}

static void creation_bind(struct creation *c)
{
    const struct sandbox *b = &c->sandbox->b;
    _cleanup_strv_ struct strv env = {0};
    struct link_bind bind;
    sandbox_binding(c->sandboxes, b, &env, &bind);
    (void)link_bind(c->sandboxes->peers->links, b->id, &bind, creation_on_bound, c);
}

static void creation_on_keeper_refusal(struct creation *c, const struct keeper_reply *r)
{
    if (r->error == KEEPER_FAILED && c->sandbox->round != c->sandboxes->round) {
        /* keeper died during the create; the next keeper removed the partial sandbox. */
        creation_refuse(c, 503, 1, NULL, "keeper was started again while the sandbox was made; try again");
        creation_undo_and_answer(c);
        return;
    }
    switch (r->error) {
    case KEEPER_CAPACITY:
        creation_refuse(c, 503, BUSY_RETRY_S, "sandbox_capacity_unavailable", "this node has no room for a sandbox: %s",
                        r->text);
        break;
    case KEEPER_NO_TEMPLATE:
        creation_refuse(c, 404, 0, NULL, "template '%s' cannot be started: %s", c->template, r->text);
        break;
    case KEEPER_BAD_REQUEST:
        creation_refuse(c, 400, 0, NULL, "the sandbox cannot be made: %s", r->text);
        break;
    default:
        creation_refuse(c, 500, 0, NULL, "the sandbox cannot be made: %s", r->text);
    }
    creation_undo_and_answer(c);
}

static void creation_on_keeper_reply(void *arg, const struct keeper_reply *r)
{
    struct creation *c = arg;
    if (c->over || (r->error != KEEPER_OK && r->error != KEEPER_EXISTS)) {
        c->awaits &= ~(unsigned)SANDBOX_AWAITS_BINDING; /* no binding will follow */
        if (!c->over)
            creation_on_keeper_refusal(c, r);
        creation_maybe_free(c);
        return;
    }
    (void)sandbox_step(&c->sandbox->b, LIFE_ON_PARKED);
    sandbox_kept(c->sandboxes, &c->sandbox->b, r);
    creation_bind(c); /* also while it is being killed: the kill may fail */
}

static void creation_on_timeout(void *arg)
{
    struct creation *c = arg;
    c->timer = 0;
    creation_refuse(c, 503, BUSY_RETRY_S, NULL, "the sandbox was not ready after %d s", CREATE_MS / 1000);
    creation_undo_and_answer(c);
    creation_maybe_free(c);
}

static void creation_ask_keeper(struct creation *c)
{
    struct keeper_create k;
    sandbox_keeper_request(c->sandboxes, &c->sandbox->b, &k);
    keeperc_create(c->sandboxes->peers->keeper, &k, creation_on_keeper_reply, c);
}

/* Settles what neither the request nor the template said, and what they said both. */
static void creation_settle(struct creation *c)
{
    struct sandbox_desc *d = &c->desc;
    (void)snprintf(d->template, sizeof d->template, "%s", c->info.name);
    d->wished = d->hidden && (d->cpu_milli || d->memory);
    if (!d->parent[0]) { /* a fork has those of its parent */
        d->cpu_milli = d->cpu_milli ? d->cpu_milli : c->info.cpu_milli;
        d->memory = d->memory ? d->memory : c->info.memory;
        d->disk = d->disk ? d->disk : c->info.disk;
    }
    d->pids = c->sandboxes->config->default_pids;
    d->history = d->history || (!d->no_history && d->config && d->config->history);
}

/* Makes the sandbox from the request; its quota is already counted. */
static void creation_make_sandbox(struct creation *c)
{
    struct sandboxes *sb = c->sandboxes;
    char id[ID_TEXT + 1];
    idseal_make(sb->ids, id);
    struct sandbox_own *o = c->sandbox = sandbox_new(sb, c->tenant, id);
    struct sandbox *b = &o->b;
    o->creation = c;
    (void)sandbox_step(b, LIFE_ASK_CREATE);
    b->desc = c->desc;
    c->desc = (struct sandbox_desc){0};
    if (b->desc.secure)
        random_hex(b->token, 20);
    if (!b->desc.allow_public_traffic)
        random_hex(b->traffic_token, 20);
    b->started_unix_ms = clock_unix_ms();
    b->end_unix_ms = b->started_unix_ms + b->desc.timeout_s * 1000ULL;
    o->started_boot_ms = clock_boot_ms();
    o->end_boot_ms = o->started_boot_ms + b->desc.timeout_s * 1000ULL;
}

/* The volumes may have been removed while the create waited for its template. */
static bool creation_mounts_exist(struct creation *c)
{
    for (size_t i = 0; i < c->desc.nmounts && c->failure.status == 0; i++)
        if (c->sandboxes->mount_exists && !c->sandboxes->mount_exists(c->sandboxes->mount_arg, &c->desc.mounts[i]))
            creation_refuse(c, 404, 0, NULL, "volume '%s' was removed", c->desc.mounts[i].name);
    return c->failure.status == 0;
}

/* Asked in the same turn of the loop in which the sandbox is made, so that of two creates one sees the other. */
static bool creation_is_unique(struct creation *c)
{
    const char *value = c->unique ? sandbox_desc_label(&c->desc, c->unique) : NULL;
    size_t at = 0;
    for (const struct sandbox *b; value && (b = map_next(&c->sandboxes->by_id, &at));) {
        bool counts = b->tenant == c->tenant && !b->desc.hidden && (sandbox_is_there(b) || sandbox_is_being_made(b));
        const char *other = counts ? sandbox_desc_label(&b->desc, c->unique) : NULL;
        if (other && strcmp(other, value) == 0)
            creation_refuse(c, 409, 0, NULL,
                            "the %s '%.100s' is taken by sandbox %s; end that one first, or choose another", c->unique,
                            value, b->id);
    }
    return c->failure.status == 0;
}

/* Checks quotas and the node's limits; counts the sandbox if it fits. */
static bool creation_admit(struct creation *c)
{
    struct sandboxes *sb = c->sandboxes;
    const struct sandbox_desc *d = &c->desc;
    struct tenant_need need = {.cpu_milli = d->cpu_milli, .memory = d->memory, .disk = d->disk};
    struct state_failure full = {0};
    char why[200];
    if (!creation_mounts_exist(c) || !creation_is_unique(c))
        return false;
    if (d->hidden && !d->counted)
        return true;
    /* It will be paused at its end, so the quota must have a place for one more paused sandbox now. Room for its
     * files is not needed: without it the sandbox will be paused with its memory. */
    if ((d->life.auto_pause || d->life.idle_s) && !state_room_count(sb->stacks, c->tenant, 1, &full)) {
        creation_refuse(c, full.status, 30, full.error_code, "%s", full.text);
        return false;
    }
    if (sandboxes_count(sb) >= sb->config->max_sandboxes) {
        creation_refuse(c, 503, BUSY_RETRY_S, "sandbox_capacity_unavailable",
                        "this node is full: %zu of %u sandboxes are running", sandboxes_count(sb),
                        sb->config->max_sandboxes);
        return false;
    }
    unsigned retry = tenant_take(sb->tenants, c->tenant, &need, why);
    if (retry)
        creation_refuse(c, 429, retry, "quota_exceeded", "%s", why);
    return retry == 0;
}

void creation_start(struct creation *c)
{
    struct sandboxes *sb = c->sandboxes;
    creation_settle(c);
    if (!creation_admit(c)) {
        creation_fail(c);
        return;
    }
    creation_make_sandbox(c);
    struct err err;
    if (sb->network->attach(sb->networks, &c->sandbox->b, c->net.document ? &c->net : NULL, &err) < 0) {
        bool share = err.code == ERR_LIMIT;
        creation_refuse(c, share ? 429 : 400, 0, share ? "quota_exceeded" : NULL, "%s", err.msg);
        creation_fail(c);
        return;
    }
    struct db_idem idem = {.tenant = c->tenant->id,
                           .key = c->idem_key,
                           .digest = c->digest,
                           .sandbox = c->sandbox->b.id,
                           .created_unix = idem_now(sb)};
    if (c->idem_key)
        idem_add(sb, c->tenant->id, c->idem_key, c->digest, c->sandbox->b.id, idem.created_unix);
    c->timer = loop_timer(sb->loop, CREATE_MS, creation_on_timeout, c);
    bool row = !c->sandbox->b.desc.hidden, net = sb->network->is_on(sb->networks);
    c->awaits = SANDBOX_AWAITS_BINDING | (row ? SANDBOX_AWAITS_ROW : 0U) | (net ? SANDBOX_AWAITS_NETWORK : 0U);
    if (row) {
        sb->network->write(sb->networks,
                           &c->sandbox->b); /* before the sandbox's own row, so that every such row has a network */
        sandbox_write(sb, &c->sandbox->b, c->idem_key ? &idem : NULL, creation_on_row_stored, c);
    }
    if (net)
        sb->network->tell(sb->networks, &c->sandbox->b, creation_on_net_applied, c);
    creation_ask_keeper(c);
}
