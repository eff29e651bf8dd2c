/* The making of a box that was asked for (boxes-ask.c). */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/cleanup.h"
#include "base/json.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/random.h"
#include "front/boxes-creation.h"
#include "front/boxes-int.h"
#include "front/events.h"
#include "front/idseal.h"
#include "front/nets.h"

enum {
    CREATE_MS = 30 * 1000,
    BUSY_RETRY_S = 5,
};

static void unlink_creation(struct creation *c)
{
    *c->link = c->next;
    if (c->next)
        c->next->link = c->link;
}

static void free_creation(void *arg)
{
    struct creation *c = arg;
    strv_done(&c->spec.metadata);
    strv_done(&c->spec.env);
    box_source_done(&c->from);
    free(c->mounts);
    free(c->template);
    free(c->mask_host);
    free(c->idem_key);
    net_doc_done(&c->net);
    free(c);
}

void creation_drop(struct creation *c)
{
    loop_timer_del(c->front->loop, c->timer);
    start_cancel(c->start);
    for (struct asker *a = c->askers, *next; a; a = next) {
        next = a->next;
        free(a);
    }
    unlink_creation(c);
    free_creation(c);
}

void creation_tell(struct creation *c, struct box *b, const struct box_failure *failure)
{
    c->over = true;
    loop_timer_del(c->front->loop, c->timer);
    for (struct asker *a = c->askers, *next; a; a = next) {
        next = a->next;
        a->done(a->arg, b, failure);
        free(a);
    }
    c->askers = NULL;
    /* Calls to the store, keeper and init may still be under way; they look at `over`, the last one frees. */
}

static bool calls_pending(const struct creation *c)
{
    return c->box && (!c->row_done || c->net_pending || (c->at_keeper && !c->bound));
}

void creation_maybe_free(struct creation *c)
{
    if (!c->over || calls_pending(c) || c->freeing)
        return;
    c->freeing = true;
    unlink_creation(c);
    loop_defer(c->front->loop, free_creation, c);
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

/* Undoes what was done so far and answers with c->failure. */
static void fail(struct creation *c)
{
    struct front *f = c->front;
    struct box_own *o = c->box;
    struct log_line l;
    c->over = true; /* calls under way may come back while the box is taken apart */
    start_cancel(c->start);
    c->start = NULL;
    if (log_start(&l, c->failure.status >= 500 ? LOG_LEVEL_WARN : LOG_LEVEL_INFO, "sandbox refused")) {
        log_str(&l, "tenant", c->tenant->id);
        log_str(&l, "why", c->failure.text);
        log_u64(&l, "status", c->failure.status);
        log_end(&l);
    }
    if (o) {
        o->creation = NULL;
        keeperc_kill(f->keeper, o->b.id, NULL, NULL);
        if (c->idem_key)
            idem_forget(f, c->tenant->id, c->idem_key);
        box_discard(f, o);
    }
    creation_tell(c, NULL, &c->failure);
}

void creation_fail(void *arg)
{
    struct creation *c = arg;
    fail(c);
    creation_maybe_free(c);
}

static void publish_created(struct front *f, const struct box *b)
{
    _cleanup_buf_ struct buf text = {0};
    struct json j;
    if (b->hidden)
        return;
    json_start(&j, &text);
    json_obj(&j, NULL);
    json_str(&j, "template", b->template);
    if (b->parent[0])
        json_str(&j, "parent", b->parent);
    json_str(&j, "tier", b->tier);
    if (*b->degraded)
        json_str(&j, "degraded", b->degraded);
    json_u64(&j, "ends_unix_ms", b->end_unix_ms);
    json_end_obj(&j);
    events_publish(f, b->id, b->tenant->id, "created", buf_str(&text));
}

static void maybe_finish(struct creation *c);
static void too_late(void *arg);

static void start_over(void *arg, const char *failure)
{
    struct creation *c = arg;
    c->start = NULL;
    if (*failure) {
        creation_refuse(c, 500, 0, "start_command_failed", "%s", failure);
        fail(c);
    }
    maybe_finish(c);
    creation_maybe_free(c);
}

/* True: its template's command is being started, and the answer waits for it. */
static bool starting(struct creation *c)
{
    const struct box *b = &c->box->b;
    if (c->start)
        return true;
    if (c->started || b->hidden || !b->config || (!b->config->start && !b->config->ready))
        return false;
    c->started = true;
    loop_timer_del(c->front->loop, c->timer);
    c->timer = loop_timer(c->front->loop, CREATE_MS + START_READY_S * 1000ULL, too_late, c);
    c->start = start_command(c->front, b, start_over, c);
    return true;
}

/* The row is written, init took its binding and egress the network: the box is real. */
static void maybe_finish(struct creation *c)
{
    if (c->over || !c->row_done || !c->bound || c->net_pending || c->box->b.state == BOX_KILLING)
        return;
    if (c->box->died) {
        creation_refuse(c, 503, 1, NULL, "the sandbox ended while it was being made; try again");
        fail(c);
        return;
    }
    if (starting(c))
        return;
    struct front *f = c->front;
    struct box *b = &c->box->b;
    c->box->creation = NULL;
    b->state = BOX_RUNNING;
    c->box->row_state = STORE_BOX_RUNNING;
    b->used_ms = loop_now(f->loop);
    if (!b->hidden) {
        box_write(f, b, NULL, NULL, NULL); /* if this is lost init tells at the next start */
        template_spawned(f, b->template);
        tmpl_spawned(f, b->template);
    }
    if (b->auto_pause || b->idle_s)
        boxes_idle_look(f, 0);
    publish_created(f, b);
    struct log_line l;
    if (log_start(&l, LOG_LEVEL_INFO, "sandbox created")) {
        log_str(&l, "sandbox", b->id);
        log_str(&l, "tenant", b->tenant->id);
        log_str(&l, "template", b->template);
        log_u64(&l, "ms", boxes_boot_ms() - c->box->started_boot_ms);
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
    maybe_finish(c);
    creation_maybe_free(c);
}

static void row_written(void *arg, const struct err *err)
{
    struct creation *c = arg;
    c->row_done = true;
    if (err && !c->over) {
        struct state_failure why = {0};
        state_fail_write(&why, err, "the node cannot record a sandbox");
        creation_refuse(c, why.status, why.status == 503 ? BUSY_RETRY_S : 0, why.error_code, "%s", why.text);
        fail(c);
    }
    maybe_finish(c);
    creation_maybe_free(c);
}

static void bound(void *arg, const struct link_status *st)
{
    struct creation *c = arg;
    c->bound = true;
    if ((st->code == LINK_GONE || st->code == LINK_TIMEOUT) && !c->over) {
        creation_refuse(c, 503, 1, NULL, "the sandbox ended while it was being made; try again");
        fail(c);
    } else if (st->code != LINK_OK && !c->over) {
        creation_refuse(c, 500, 0, NULL, "the sandbox was made but its init did not take the binding: %s", st->text);
        fail(c);
    }
    maybe_finish(c);
    creation_maybe_free(c);
}

static void net_applied(void *arg, json_t *answer, const char *error)
{
    struct creation *c = arg;
    (void)answer;
    c->net_pending = false;
    if (error && !c->over) {
        creation_refuse(c, 503, 1, NULL, "the network of the sandbox could not be set up: %s", error);
        fail(c);
    }
    maybe_finish(c);
    creation_maybe_free(c);
}

static void bind_box(struct creation *c)
{
    const struct box *b = &c->box->b;
    _cleanup_strv_ struct strv env = {0};
    struct link_bind bind;
    box_binding(c->front, b, &env, &bind);
    (void)link_bind(c->front->links, b->id, &bind, bound, c);
}

static void keeper_refused(struct creation *c, const struct keeper_reply *r)
{
    if (r->error == KEEPER_FAILED && c->box->round != c->front->boxes->round) {
        /* keeper died over it and its successor swept what was half made. */
        creation_refuse(c, 503, 1, NULL, "keeper was started again while the sandbox was made; try again");
        fail(c);
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
    fail(c);
}

static void kept(void *arg, const struct keeper_reply *r)
{
    struct creation *c = arg;
    if (c->over || (r->error != KEEPER_OK && r->error != KEEPER_EXISTS)) {
        c->bound = true; /* nothing is pending there any more */
        if (!c->over)
            keeper_refused(c, r);
        creation_maybe_free(c);
        return;
    }
    box_kept(c->front, &c->box->b, r);
    bind_box(c);
}

static void too_late(void *arg)
{
    struct creation *c = arg;
    c->timer = 0;
    creation_refuse(c, 503, BUSY_RETRY_S, NULL, "the sandbox was not ready after %d s", CREATE_MS / 1000);
    fail(c);
    creation_maybe_free(c);
}

static void ask_keeper(struct creation *c)
{
    struct keeper_create k;
    box_keeper_request(c->front, &c->box->b, &k);
    c->at_keeper = true;
    keeperc_create(c->front->keeper, &k, kept, c);
}

static void give_life(struct creation *c, struct box *b)
{
    b->hidden = c->spec.build;
    b->auto_pause = c->spec.auto_pause;
    b->auto_pause_files = c->spec.auto_pause_files;
    b->auto_resume = c->spec.auto_resume;
    b->idle_s = c->spec.idle_s;
    b->timeout_s = c->spec.timeout_s;
    memcpy(b->stack, c->from.stack, sizeof b->stack);
    memcpy(b->parent, c->parent, sizeof b->parent);
    b->config = c->from.config;
    b->mounts = c->mounts;
    b->nmounts = c->spec.nmounts;
    b->history = c->spec.history || (!c->spec.no_history && c->from.config && c->from.config->history);
    c->from.config = NULL;
    c->mounts = NULL;
}

/* The box as it was asked for; its numbers are counted by now. */
static void make_box(struct creation *c)
{
    struct front *f = c->front;
    char id[ID_TEXT + 1];
    idseal_make(f->ids, id);
    struct box_own *o = c->box = box_new(f, c->tenant, id);
    struct box *b = &o->b;
    o->creation = c;
    o->counted = c->spec.counted;
    b->state = BOX_CREATING;
    (void)snprintf(b->template, sizeof b->template, "%s", c->from.info.name);
    if (c->spec.secure)
        random_hex(b->token, 20);
    if (!c->spec.allow_public_traffic)
        random_hex(b->traffic_token, 20);
    b->allow_public_traffic = c->spec.allow_public_traffic;
    b->allow_internet = c->spec.allow_internet;
    if (c->mask_host)
        (void)snprintf(b->mask_host, sizeof b->mask_host, "%s", c->mask_host);
    memcpy(b->https_ports, c->https_ports, sizeof b->https_ports);
    b->nhttps_ports = c->spec.nhttps_ports;
    b->ports = c->spec.ports;
    b->metadata = c->spec.metadata;
    b->env = c->spec.env;
    c->spec.metadata = c->spec.env = (struct strv){0};
    b->started_unix_ms = boxes_unix_ms();
    b->end_unix_ms = b->started_unix_ms + (uint64_t)c->spec.timeout_s * 1000;
    o->started_boot_ms = boxes_boot_ms();
    o->end_boot_ms = o->started_boot_ms + (uint64_t)c->spec.timeout_s * 1000;
    b->wished = c->spec.build && (c->spec.cpu_milli || c->spec.memory);
    b->cpu_milli = c->from.info.cpu_milli;
    b->memory = c->from.info.memory;
    b->disk = c->from.info.disk;
    b->pids = f->config->default_pids;
    give_life(c, b);
}

/* Until now nobody saw that it wants them: they may have been removed while its template was waited for. */
static bool mounts_there(struct creation *c)
{
    for (size_t i = 0; i < c->spec.nmounts && c->failure.status == 0; i++)
        if (!box_mount_there(c->front, &c->mounts[i]))
            creation_refuse(c, 404, 0, NULL, "volume '%s' was removed", c->mounts[i].name);
    return c->failure.status == 0;
}

/* Quotas and the node's room; counts the box if it fits. */
static bool admit(struct creation *c)
{
    struct front *f = c->front;
    struct tenant_need need = {
        .cpu_milli = c->from.info.cpu_milli, .memory = c->from.info.memory, .disk = c->from.info.disk};
    struct state_failure full = {0};
    char why[200];
    if (!mounts_there(c))
        return false;
    if (c->spec.build && !c->spec.counted)
        return true;
    /* At its end it will be kept, whatever there is by then; so there must be a place for it now. Not room for its files: if
     * there is none by then, its memory is kept. */
    if ((c->spec.auto_pause || c->spec.idle_s) && !state_room_count(f, c->tenant, 1, &full)) {
        creation_refuse(c, full.status, 30, full.error_code, "%s", full.text);
        return false;
    }
    if (boxes_count(f) >= f->config->max_sandboxes) {
        creation_refuse(c, 503, BUSY_RETRY_S, "sandbox_capacity_unavailable", "this node runs its %u sandboxes",
                        f->config->max_sandboxes);
        return false;
    }
    unsigned retry = tenant_take(f, c->tenant, &need, why);
    if (retry)
        creation_refuse(c, 429, retry, "quota_exceeded", "%s", why);
    return retry == 0;
}

void creation_start(struct creation *c)
{
    struct front *f = c->front;
    if (!admit(c)) {
        creation_fail(c);
        return;
    }
    make_box(c);
    struct err err;
    if (net_attach(f, &c->box->b, c->net.document ? &c->net : NULL, &err) < 0) {
        c->row_done = true; /* nothing was begun */
        bool share = err.code == ERR_LIMIT;
        creation_refuse(c, share ? 429 : 400, 0, share ? "quota_exceeded" : NULL, "%s", err.msg);
        creation_fail(c);
        return;
    }
    struct store_idem idem = {.tenant = c->tenant->id,
                              .key = c->idem_key,
                              .digest = c->digest,
                              .sandbox = c->box->b.id,
                              .created_unix = idem_now(f)};
    if (c->idem_key)
        idem_add(f, c->tenant->id, c->idem_key, c->digest, c->box->b.id, idem.created_unix);
    c->timer = loop_timer(f->loop, CREATE_MS, too_late, c);
    c->row_done = c->spec.build;
    if (!c->row_done) {
        net_write(f, &c->box->b); /* before the sandbox's own row: whoever finds that finds this */
        box_write(f, &c->box->b, c->idem_key ? &idem : NULL, row_written, c);
    }
    if ((c->net_pending = nets_on(f)))
        net_tell(f, &c->box->b, net_applied, c);
    ask_keeper(c);
}
