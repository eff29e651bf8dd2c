/* The making of a box. */
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
#include "front/boxes-int.h"
#include "front/events.h"
#include "front/idseal.h"
#include "front/nets.h"

enum {
    TEMPLATE_WAIT_MS = 55 * 1000, /* for a template that is being built */
    TEMPLATE_POLL_MS = 500,
    CREATE_MS = 30 * 1000,
    TEMPLATE_WAITERS_MAX = 256,
    BUSY_RETRY_S = 5,
    IDEM_KEY_MAX = 255,
};

struct asker {
    struct asker *next;
    box_created *done;
    void *arg;
};
struct creation {
    struct creation *next, **link; /* among all */
    struct front *front;
    struct tenant *tenant;
    struct box_own *box;  /* NULL until it is admitted */
    struct box_spec spec; /* strings owned */
    char *template, *mask_host, *idem_key;
    struct box_source from;
    char parent[SANDBOX_ID_MAX];
    struct box_mount *mounts; /* owned until the box has it */
    struct start_run *start;
    struct net_doc net; /* document NULL: off */
    uint32_t https_ports[8];
    char digest[72];
    struct asker *askers;
    uint64_t wait_until;
    loop_id timer;
    bool row_done, bound, at_keeper, over, freeing;
    bool forked, started;       /* nothing is to be resolved; the start command has been run */
    bool net_pending;           /* egress has not said yet that the network is in force */
    struct box_failure failure; /* status 0: none */
};

static unsigned waiting_for_template; /* of this process */

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

static void tell(struct creation *c, struct box *b, const struct box_failure *failure)
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

static void maybe_free(struct creation *c)
{
    if (!c->over || calls_pending(c) || c->freeing)
        return;
    c->freeing = true;
    unlink_creation(c);
    loop_defer(c->front->loop, free_creation, c);
}

__attribute__((format(printf, 5, 6))) static void set_failure(struct creation *c, unsigned status, unsigned retry,
                                                              const char *code, const char *fmt, ...)
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
        if (c->idem_key) {
            idem_forget(f, c->tenant->id, c->idem_key);
            store_idem_del(f->store, c->tenant->id, c->idem_key);
        }
        box_discard(f, o);
    }
    tell(c, NULL, &c->failure);
}

static void fail_later(void *arg)
{
    struct creation *c = arg;
    fail(c);
    maybe_free(c);
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
        set_failure(c, 500, 0, "start_command_failed", "%s", failure);
        fail(c);
    }
    maybe_finish(c);
    maybe_free(c);
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
    if (c->over || !c->row_done || !c->bound || c->net_pending)
        return;
    if (c->box->died) {
        set_failure(c, 503, 1, NULL, "the sandbox ended while it was being made; try again");
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
    tell(c, b, NULL);
}

static void row_written(void *arg, const struct err *err)
{
    struct creation *c = arg;
    c->row_done = true;
    if (err && !c->over) {
        set_failure(c, 503, BUSY_RETRY_S, NULL, "the node cannot record a sandbox: %s", err->msg);
        fail(c);
    }
    maybe_finish(c);
    maybe_free(c);
}

static void bound(void *arg, const struct link_status *st)
{
    struct creation *c = arg;
    c->bound = true;
    if ((st->code == LINK_GONE || st->code == LINK_TIMEOUT) && !c->over) {
        set_failure(c, 503, 1, NULL, "the sandbox ended while it was being made; try again");
        fail(c);
    } else if (st->code != LINK_OK && !c->over) {
        set_failure(c, 500, 0, NULL, "the sandbox was made but its init did not take the binding: %s", st->text);
        fail(c);
    }
    maybe_finish(c);
    maybe_free(c);
}

static void net_applied(void *arg, json_t *answer, const char *error)
{
    struct creation *c = arg;
    (void)answer;
    c->net_pending = false;
    if (error && !c->over) {
        set_failure(c, 503, 1, NULL, "the network of the sandbox could not be set up: %s", error);
        fail(c);
    }
    maybe_finish(c);
    maybe_free(c);
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
        set_failure(c, 503, 1, NULL, "keeper was started again while the sandbox was made; try again");
        fail(c);
        return;
    }
    switch (r->error) {
    case KEEPER_CAPACITY:
        set_failure(c, 503, BUSY_RETRY_S, "sandbox_capacity_unavailable", "this node has no room for a sandbox: %s",
                    r->text);
        break;
    case KEEPER_NO_TEMPLATE:
        set_failure(c, 404, 0, NULL, "template '%s' cannot be started: %s", c->template, r->text);
        break;
    case KEEPER_BAD_REQUEST:
        set_failure(c, 400, 0, NULL, "the sandbox cannot be made: %s", r->text);
        break;
    default:
        set_failure(c, 500, 0, NULL, "the sandbox cannot be made: %s", r->text);
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
        maybe_free(c);
        return;
    }
    box_kept(c->front, &c->box->b, r);
    bind_box(c);
}

static void too_late(void *arg)
{
    struct creation *c = arg;
    c->timer = 0;
    set_failure(c, 503, BUSY_RETRY_S, NULL, "the sandbox was not ready after %d s", CREATE_MS / 1000);
    fail(c);
    maybe_free(c);
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
    b->history = c->spec.history || (c->from.config && c->from.config->history);
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

/* Quotas and the node's room; counts the box if it fits. */
static bool admit(struct creation *c)
{
    struct front *f = c->front;
    struct tenant_need need = {
        .cpu_milli = c->from.info.cpu_milli, .memory = c->from.info.memory, .disk = c->from.info.disk};
    struct state_failure full = {0};
    char why[200];
    if (c->spec.build && !c->spec.counted)
        return true;
    /* At its end it will be kept, whatever there is by then; so there must be a place for it now. Not room for its files: if
     * there is none by then, its memory is kept. */
    if ((c->spec.auto_pause || c->spec.idle_s) && !state_room_count(f, c->tenant, 1, &full)) {
        set_failure(c, full.status, 30, full.error_code, "%s", full.text);
        return false;
    }
    if (boxes_count(f) >= f->config->max_sandboxes) {
        set_failure(c, 503, BUSY_RETRY_S, "sandbox_capacity_unavailable", "this node runs its %u sandboxes",
                    f->config->max_sandboxes);
        return false;
    }
    unsigned retry = tenant_take(f, c->tenant, &need, why);
    if (retry)
        set_failure(c, 429, retry, "quota_exceeded", "%s", why);
    return retry == 0;
}

static void start(struct creation *c)
{
    struct front *f = c->front;
    if (!admit(c)) {
        fail_later(c);
        return;
    }
    make_box(c);
    struct err err;
    if (net_attach(f, &c->box->b, c->net.document ? &c->net : NULL, &err) < 0) {
        c->row_done = true; /* nothing was begun */
        bool share = err.code == ERR_LIMIT;
        set_failure(c, share ? 429 : 400, 0, share ? "quota_exceeded" : NULL, "%s", err.msg);
        fail_later(c);
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

static void poll_template(void *arg)
{
    struct creation *c = arg;
    c->timer = 0;
    bool known = template_resolve(c->front, c->template, &c->from.info);
    if (known && strcmp(c->from.info.state, "building") == 0 && loop_now(c->front->loop) < c->wait_until) {
        c->timer = loop_timer(c->front->loop, TEMPLATE_POLL_MS, poll_template, c);
        return;
    }
    waiting_for_template--;
    if (known && strcmp(c->from.info.state, "ready") == 0) {
        start(c);
        return;
    }
    set_failure(c, 503, known ? 10 : 0, NULL, "template '%s' is not ready: %s", c->template, c->from.info.text);
    fail_later(c);
}

/* Puts the ask on a create that is under way, answers with the box of an earlier one, or refuses. True: dealt with. */
static bool answer_again(struct creation *c)
{
    struct front *f = c->front;
    struct idem *i = c->idem_key ? idem_find(f, c->tenant->id, c->idem_key) : NULL;
    if (!i)
        return false;
    if (strcmp(i->digest, c->digest) != 0)
        set_failure(c, 422, 0, "idempotency_key_reused", "this idempotency key was used for a different request");
    else {
        struct box_own *o = map_get(&f->boxes->by_id, i->sandbox);
        if (o && o->creation) {
            struct asker *a = c->askers;
            a->next = o->creation->askers;
            o->creation->askers = a;
            c->askers = NULL;
            c->over = true;
            maybe_free(c);
            return true;
        }
        if (o && box_is_there(&o->b)) {
            tell(c, &o->b, NULL);
            maybe_free(c);
            return true;
        }
        set_failure(c, 409, 0, "sandbox_ended", "the sandbox of this idempotency key, %s, has ended", i->sandbox);
    }
    fail_later(c);
    return true;
}

static bool check_spec(struct creation *c)
{
    const struct config *cfg = c->front->config;
    uint32_t longest = cfg->max_timeout_s;
    if (c->tenant->quota.max_timeout_s && c->tenant->quota.max_timeout_s < longest)
        longest = c->tenant->quota.max_timeout_s;
    if (c->spec.timeout_s == 0 || (c->spec.timeout_s > longest && !c->spec.build))
        set_failure(c, 400, 0, NULL, "timeout must be between 1 and %u seconds, not %u", longest, c->spec.timeout_s);
    else if (c->idem_key && (!*c->idem_key || strlen(c->idem_key) > IDEM_KEY_MAX))
        set_failure(c, 400, 0, NULL, "an idempotency key has 1 to %d bytes", IDEM_KEY_MAX);
    else if (!c->forked && !box_source_find(c->front, c->tenant, c->template, c->spec.build, &c->from))
        set_failure(c, 404, 0, NULL, "template '%.100s' not found", c->template);
    else if (strcmp(c->from.info.state, "error") == 0 || strcmp(c->from.info.state, "missing") == 0)
        set_failure(c, 503, 0, NULL, "template '%s' is not ready: %s", c->from.info.name, c->from.info.text);
    if (c->spec.build && c->spec.cpu_milli)
        c->from.info.cpu_milli = c->spec.cpu_milli;
    if (c->spec.build && c->spec.memory)
        c->from.info.memory = c->spec.memory;
    return c->failure.status == 0;
}

/* Called from the loop, so that nobody is answered before box_create() has returned. */
static void begin(void *arg)
{
    struct creation *c = arg;
    if (!check_spec(c)) {
        fail_later(c);
        return;
    }
    if (answer_again(c))
        return;
    if (strcmp(c->from.info.state, "ready") == 0) {
        start(c);
        return;
    }
    if (waiting_for_template >= TEMPLATE_WAITERS_MAX) {
        set_failure(c, 503, 10, NULL, "template '%s' is not ready: %s", c->from.info.name, c->from.info.text);
        fail_later(c);
        return;
    }
    waiting_for_template++;
    c->wait_until = loop_now(c->front->loop) + TEMPLATE_WAIT_MS;
    poll_template(c);
}

static void copy_life(struct creation *c, const struct box_spec *spec)
{
    const struct box *from = spec->parent;
    c->spec.nmounts = spec->nmounts < BOX_MOUNTS_MAX ? spec->nmounts : BOX_MOUNTS_MAX;
    if (c->spec.nmounts) {
        c->mounts = xcalloc(c->spec.nmounts, sizeof *c->mounts);
        memcpy(c->mounts, spec->mounts, c->spec.nmounts * sizeof *c->mounts);
    }
    c->spec.parent = NULL;
    c->spec.stack = NULL;
    if (!from)
        return;
    c->forked = true;
    (void)snprintf(c->parent, sizeof c->parent, "%s", from->id);
    box_source_fork(from, spec->stack, &c->from);
}

void box_create(struct front *f, const struct principal *p, const struct box_spec *spec, box_created *done, void *arg)
{
    struct creation *c = xcalloc(1, sizeof *c);
    struct asker *a = xcalloc(1, sizeof *a);
    *a = (struct asker){.done = done, .arg = arg};
    c->front = f;
    c->link = &f->boxes->creations;
    c->next = f->boxes->creations;
    if (c->next)
        c->next->link = &c->next;
    f->boxes->creations = c;
    c->tenant = p->tenant;
    c->askers = a;
    c->spec = *spec;
    c->spec.metadata = c->spec.env = (struct strv){0};
    for (size_t i = 0; i < spec->metadata.n; i++)
        strv_add(&c->spec.metadata, spec->metadata.v[i]);
    for (size_t i = 0; i < spec->env.n; i++)
        strv_add(&c->spec.env, spec->env.v[i]);
    c->template = xstrdup(spec->template ? spec->template : "base");
    c->mask_host = spec->mask_host ? xstrdup(spec->mask_host) : NULL;
    c->idem_key = spec->idempotency_key ? xstrdup(spec->idempotency_key) : NULL;
    if (c->spec.nhttps_ports > ARRAY_LEN(c->https_ports))
        c->spec.nhttps_ports = ARRAY_LEN(c->https_ports);
    for (size_t i = 0; i < c->spec.nhttps_ports; i++)
        c->https_ports[i] = spec->https_ports[i];
    if (spec->net)
        net_doc_copy(&c->net, spec->net);
    c->spec.net = NULL;
    copy_life(c, spec);
    idem_digest(spec, c->digest);
    loop_defer(f->loop, begin, c);
}
