/* ask.c - requests that need approval from outside.
 *
 * A request ("ask") is one host, port, method and path. Equal requests share one ask. It is told to front once. The
 * decision comes back as a new policy, under which every pending ask is judged again, or as ask_denied(). A connection
 * waits for at most the policy's hold time and is then refused as pending; the ask itself stays open for ASK_LIFE_MS,
 * so that a refused client can look at its state and try again.
 *
 * Each waiter is called back once, always from the loop and never from inside a call into this file. A decided ask
 * can be read until its place is needed for another.
 */
#include "egress/deny.h"

#include <arpa/inet.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/random.h"
#include "egress/deny-int.h"

enum {
    ASKS_MAX = 128,        /* kept, decided ones included */
    ASKS_PENDING_MAX = 64, /* of them undecided */
    ASK_WAITERS_MAX = 256, /* of a sandbox */
    ASK_LIFE_MS = 60 * 60 * 1000,
    ASK_DENIED_MS = 60 * 1000, /* how long a denial holds for equal requests without asking again */
    ASK_PATH_MAX = 1024,
    ASK_WHY_MAX = 500,
};

enum ask_state { ASK_PENDING, ASK_ALLOWED, ASK_DENIED, ASK_EXPIRED, ASK_DROPPED };
static const char *const state_names[] = {"pending", "allowed", "denied", "expired", "too_many"};

struct ask {
    char id[24];
    enum ask_state state;
    bool asked;  /* the policy said ask; else the sandbox asked for access itself */
    bool stream; /* an opaque stream; false and no path: the host as such */
    uint64_t made_ms, decided_ms;
    char host[NETPOL_NAME_MAX]; /* "": addr */
    struct in6_addr addr;
    uint16_t port;
    bool tls;
    char method[32];  /* "": no request */
    char *path, *why; /* path NULL with no request; why NULL: a connection asked */
    char rule[NETPOL_ID_MAX];
};

struct waiter {
    struct waiter *next;
    uint64_t number;
    struct asks *of;
    char id[24];
    ask_decided *decided; /* one of the two is set */
    ask_changed *changed;
    void *arg;
    loop_id timer;
    bool due;
    enum netpol_reason reason; /* when due */
};

struct asks {
    struct esb *s;
    struct ask *v[ASKS_MAX]; /* NULL: free */
    struct waiter *waiters;
    size_t nwaiters;
    uint64_t last;
    loop_id deliver;
    bool *gone; /* set when freed in a callback */
};

static struct asks *asks_of(struct esb *s)
{
    if (!s->asks) {
        struct asks *k = xcalloc(1, sizeof *k);
        k->s = s;
        s->asks = k;
    }
    return s->asks;
}

static void ask_free(struct ask *a)
{
    free(a->path);
    free(a->why);
    free(a);
}

/* --- waiting
 * -------------------------------------------------------------------------------------------------------- */

static struct waiter *waiter_take(struct asks *k, struct waiter **at)
{
    struct waiter *w = *at;
    *at = w->next;
    k->nwaiters--;
    loop_timer_del(k->s->g->loop, w->timer);
    return w;
}

static void ask_deliver_due(void *arg)
{
    struct asks *k = arg;
    bool gone = false;
    k->deliver = 0;
    k->gone = &gone;
    for (struct waiter **at = &k->waiters; *at;) {
        if (!(*at)->due) {
            at = &(*at)->next;
            continue;
        }
        struct waiter *w = waiter_take(k, at);
        if (w->decided)
            w->decided(w->arg, w->reason, w->id);
        else
            w->changed(w->arg);
        free(w);
        if (gone)
            return;
        at = &k->waiters; /* anything may have changed meanwhile */
    }
    k->gone = NULL;
}

static void waiter_make_due(struct asks *k, struct waiter *w, enum netpol_reason reason)
{
    if (w->due)
        return;
    w->due = true;
    w->reason = reason;
    if (!k->deliver)
        k->deliver = loop_timer(k->s->g->loop, 0, ask_deliver_due, k);
}

static void ask_on_hold_over(void *arg)
{
    struct waiter *w = arg;
    w->timer = 0;
    waiter_make_due(w->of, w, NETPOL_R_APPROVAL_PENDING);
}

static struct waiter *waiter_add(struct asks *k, const struct ask *a, uint64_t wait_ms)
{
    struct waiter *w = xcalloc(1, sizeof *w);
    w->of = k;
    w->number = ++k->last;
    memcpy(w->id, a->id, sizeof w->id);
    w->timer = loop_timer(k->s->g->loop, wait_ms, ask_on_hold_over, w);
    w->next = k->waiters;
    k->waiters = w;
    k->nwaiters++;
    return w;
}

void ask_cancel(struct esb *s, uint64_t waiter)
{
    struct asks *k = s->asks;
    for (struct waiter **at = k ? &k->waiters : NULL; at && *at; at = &(*at)->next)
        if ((*at)->number == waiter) {
            free(waiter_take(k, at));
            return;
        }
}

void asks_free(struct esb *s)
{
    struct asks *k = s->asks;
    if (!k)
        return;
    s->asks = NULL;
    if (k->gone)
        *k->gone = true;
    loop_timer_del(s->g->loop, k->deliver);
    while (k->waiters)
        free(waiter_take(k, &k->waiters));
    for (size_t i = 0; i < ASKS_MAX; i++)
        if (k->v[i])
            ask_free(k->v[i]);
    free(k);
}

/* --- asks
 * ----------------------------------------------------------------------------------------------------------- */

static struct ask *ask_find(const struct asks *k, const char *id)
{
    for (size_t i = 0; k && i < ASKS_MAX; i++)
        if (k->v[i] && strcmp(k->v[i]->id, id) == 0)
            return k->v[i];
    return NULL;
}

static void ask_settle(struct asks *k, struct ask *a, enum ask_state state)
{
    static const enum netpol_reason reasons[] = {NETPOL_R_APPROVAL_PENDING, NETPOL_R_NONE, NETPOL_R_APPROVAL_DENIED,
                                                 NETPOL_R_APPROVAL_PENDING, NETPOL_R_RATE};
    _cleanup_buf_ struct buf out = {0};
    a->state = state;
    a->decided_ms = loop_now(k->s->g->loop);
    for (struct waiter *w = k->waiters; w; w = w->next)
        if (strcmp(w->id, a->id) == 0)
            waiter_make_due(k, w, reasons[state]);
    (void)ask_status(k->s, a->id, &out);
    internal_events_say(k->s, "decided", &out);
}

/* Expires asks that were not decided within ASK_LIFE_MS. */
static void ask_expire_old(struct asks *k)
{
    uint64_t now = loop_now(k->s->g->loop);
    for (size_t i = 0; i < ASKS_MAX; i++)
        if (k->v[i] && k->v[i]->state == ASK_PENDING && now - k->v[i]->made_ms >= ASK_LIFE_MS)
            ask_settle(k, k->v[i], ASK_EXPIRED);
}

static size_t ask_path_len(const struct netpol_request *q)
{
    return !q ? 0 : q->target->path_len < ASK_PATH_MAX ? q->target->path_len : ASK_PATH_MAX;
}

static bool ask_is_equal(const struct ask *a, const struct netpol_flow *f, const struct netpol_request *q, bool stream)
{
    size_t n = ask_path_len(q);
    if (a->stream != stream || a->port != f->port || strcmp(a->host, f->host ? f->host : "") != 0 ||
        (q == NULL) != (a->path == NULL))
        return false;
    if (!f->host && memcmp(&a->addr, &f->addr, sizeof a->addr) != 0)
        return false;
    return !q ||
           (strcmp(a->method, q->method) == 0 && strlen(a->path) == n && memcmp(a->path, q->target->text, n) == 0);
}

/* A pending equal ask, or one that was denied within ASK_DENIED_MS: its answer still holds. */
static struct ask *ask_find_equal(struct asks *k, const struct netpol_flow *f, const struct netpol_request *q,
                                  bool stream)
{
    uint64_t now = loop_now(k->s->g->loop);
    for (size_t i = 0; i < ASKS_MAX; i++) {
        struct ask *a = k->v[i];
        if (a && ask_is_equal(a, f, q, stream) &&
            (a->state == ASK_PENDING || (a->state == ASK_DENIED && now - a->decided_ms < ASK_DENIED_MS)))
            return a;
    }
    return NULL;
}

/* A free place; if there is none, frees that of the ask that was decided first. NULL: too many are pending. */
static struct ask **ask_find_place(struct asks *k)
{
    struct ask **free_at = NULL, **oldest = NULL;
    size_t pending = 0;
    for (size_t i = 0; i < ASKS_MAX; i++) {
        struct ask *a = k->v[i];
        pending += a && a->state == ASK_PENDING;
        if (!a)
            free_at = &k->v[i];
        else if (a->state != ASK_PENDING && (!oldest || a->decided_ms < (*oldest)->decided_ms))
            oldest = &k->v[i];
    }
    if (pending >= ASKS_PENDING_MAX)
        return NULL;
    if (!free_at) {
        ask_free(*oldest);
        *oldest = NULL;
    }
    return free_at ? free_at : oldest;
}

static void ask_host_text(const struct ask *a, char ret[NETPOL_NAME_MAX])
{
    bool v4 = IN6_IS_ADDR_V4MAPPED(&a->addr);
    if (a->host[0])
        memcpy(ret, a->host, NETPOL_NAME_MAX);
    else if (!inet_ntop(v4 ? AF_INET : AF_INET6, v4 ? a->addr.s6_addr + 12 : a->addr.s6_addr, ret, NETPOL_NAME_MAX))
        ret[0] = '\0';
}

static void ask_add_fields(struct json *j, const struct ask *a)
{
    char host[NETPOL_NAME_MAX];
    ask_host_text(a, host);
    json_str(j, "id", a->id);
    json_str(j, "host", host);
    json_u64(j, "port", a->port);
    json_str(j, "method", a->method[0] ? a->method : NULL);
    json_str(j, "path", a->path);
    json_str(j, "rule", a->rule[0] ? a->rule : NULL);
    json_bool(j, "tls", a->tls);
}

static void ask_tell_front(struct asks *k, const struct ask *a)
{
    _cleanup_buf_ struct buf out = {0};
    uint64_t age = loop_now(k->s->g->loop) - a->made_ms;
    struct json j;
    json_start(&j, &out);
    json_obj(&j, NULL);
    json_str(&j, "type", "ask");
    json_str(&j, "sandbox", k->s->id);
    ask_add_fields(&j, a);
    json_str(&j, "why", a->why);
    json_u64(&j, "expires", egress_now() + (age < ASK_LIFE_MS ? ASK_LIFE_MS - age : 0) / 1000);
    json_end_obj(&j);
    control_tell(k->s->g, &out);
}

static struct ask *ask_make_new(struct asks *k, const struct netpol_flow *f, const struct netpol_request *q,
                                const char *rule, const char *why)
{
    struct ask **at = ask_find_place(k);
    if (!at)
        return NULL;
    struct ask *a = *at = xcalloc(1, sizeof *a);
    memcpy(a->id, "ap_", 3);
    random_hex(a->id + 3, 8);
    a->made_ms = loop_now(k->s->g->loop);
    a->stream = !why && !q;
    (void)snprintf(a->host, sizeof a->host, "%s", f->host ? f->host : "");
    a->addr = f->addr;
    a->port = f->port;
    a->tls = f->tls;
    if (q) {
        (void)snprintf(a->method, sizeof a->method, "%s", q->method);
        a->path = xstrndup(q->target->text, ask_path_len(q));
    }
    if (why)
        a->why = xstrndup(why, strnlen(why, ASK_WHY_MAX));
    (void)snprintf(a->rule, sizeof a->rule, "%s", rule ? rule : "");
    ask_tell_front(k, a);
    return a;
}

const char *ask_start(struct esb *s, const struct netpol_flow *f, const struct netpol_request *q, const char *rule,
                      ask_decided *decided, void *arg, uint64_t *ret_waiter)
{
    struct asks *k = asks_of(s);
    uint32_t hold = s->policy ? netpol_settings(s->policy)->ask_hold_s : 0;
    ask_expire_old(k);
    if (k->nwaiters >= ASK_WAITERS_MAX)
        return NULL;
    struct ask *a = ask_find_equal(k, f, q, !q);
    if (!a)
        a = ask_make_new(k, f, q, rule, NULL);
    if (!a)
        return NULL;
    a->asked = true;
    struct waiter *w = waiter_add(k, a, (uint64_t)hold * 1000);
    w->decided = decided;
    w->arg = arg;
    if (a->state == ASK_DENIED)
        waiter_make_due(k, w, NETPOL_R_APPROVAL_DENIED);
    *ret_waiter = w->number;
    return a->id;
}

bool ask_watch(struct esb *s, const char *id, uint64_t wait_ms, ask_changed *changed, void *arg, uint64_t *ret_waiter)
{
    struct asks *k = s->asks;
    struct ask *a = ask_find(k, id);
    if (!a || a->state != ASK_PENDING || k->nwaiters >= ASK_WAITERS_MAX)
        return false;
    struct waiter *w = waiter_add(k, a, wait_ms);
    w->changed = changed;
    w->arg = arg;
    *ret_waiter = w->number;
    return true;
}

/* --- decisions
 * ------------------------------------------------------------------------------------------------------ */

static void ask_judge(const struct esb *s, const struct netpol_flow *f, const struct netpol_request *q, bool stream,
                      struct netpol_decision *ret)
{
    if (q)
        netpol_request(s->policy, f, q, egress_now(), ret);
    else if (stream)
        netpol_relay(s->policy, f, egress_now(), ret);
    else
        netpol_connect(s->policy, f, egress_now(), ret);
}

static void ask_judge_again(struct asks *k, struct ask *a)
{
    struct netpol_flow f = {.host = a->host[0] ? a->host : NULL, .addr = a->addr, .port = a->port, .tls = a->tls};
    struct netpol_target t = {0};
    struct netpol_request q = {.method = a->method, .target = &t};
    struct netpol_decision d = {0};
    const char *why;
    if (a->path && !netpol_target(a->path, NULL, &t, &why)) {
        ask_settle(k, a, ASK_DENIED);
        return;
    }
    ask_judge(k->s, &f, a->path ? &q : NULL, a->stream, &d);
    netpol_target_done(&t);
    if (d.verdict == NETPOL_ALLOW)
        ask_settle(k, a, ASK_ALLOWED);
    else if (d.verdict == NETPOL_DENY && (a->asked || d.reason == NETPOL_R_DENY_RULE))
        ask_settle(k, a, ASK_DENIED); /* the new policy denies it without asking */
}

void ask_policy_changed(struct esb *s)
{
    struct asks *k = s->asks;
    if (!k || !s->policy)
        return;
    ask_expire_old(k);
    for (size_t i = 0; i < ASKS_MAX; i++)
        if (k->v[i] && k->v[i]->state == ASK_PENDING)
            ask_judge_again(k, k->v[i]);
}

void ask_denied(struct esb *s, const char *id)
{
    struct ask *a = ask_find(s->asks, id);
    if (a && a->state == ASK_PENDING)
        ask_settle(s->asks, a, ASK_DENIED);
}

void ask_dropped(struct esb *s, const char *id)
{
    struct ask *a = ask_find(s->asks, id);
    if (a && a->state == ASK_PENDING)
        ask_settle(s->asks, a, ASK_DROPPED);
}

void asks_tell(struct esb *s)
{
    struct asks *k = s->asks;
    for (size_t i = 0; k && i < ASKS_MAX; i++)
        if (k->v[i] && k->v[i]->state == ASK_PENDING)
            ask_tell_front(k, k->v[i]);
}

/* --- from inside
 * ---------------------------------------------------------------------------------------------------- */

static void ask_add_status(const struct ask *a, const char *status, enum netpol_reason reason, struct buf *out)
{
    struct json j;
    json_start(&j, out);
    json_obj(&j, NULL);
    if (a)
        ask_add_fields(&j, a);
    json_str(&j, "status", status);
    if (reason != NETPOL_R_NONE)
        json_str(&j, "reason", netpol_reason_name(reason));
    if (a && a->state == ASK_PENDING) {
        char url[128];
        (void)snprintf(url, sizeof url, "http://sandbox.internal/v1/egress/requests/%s?wait=60", a->id);
        json_str(&j, "status_url", url);
    }
    json_end_obj(&j);
}

unsigned ask_from_inside(struct esb *s, const struct netpol_flow *f, const struct netpol_request *q, const char *why,
                         struct buf *out)
{
    struct asks *k = asks_of(s);
    struct netpol_decision d = {0};
    ask_expire_old(k);
    ask_judge(s, f, q, false, &d);
    if (d.verdict == NETPOL_ALLOW) {
        ask_add_status(NULL, "allowed", NETPOL_R_NONE, out);
        return 200;
    }
    if (d.verdict == NETPOL_DENY && !deny_may_ask(d.reason)) {
        ask_add_status(NULL, "refused", d.reason, out);
        return 403;
    }
    struct ask *a = ask_find_equal(k, f, q, false);
    if (!a)
        a = ask_make_new(k, f, q, d.rule ? d.rule->id : NULL, why ? why : "");
    if (!a) {
        ask_add_status(NULL, "too_many", NETPOL_R_APPROVAL_PENDING, out);
        return 429;
    }
    ask_add_status(a, state_names[a->state], NETPOL_R_NONE, out);
    return a->state == ASK_PENDING ? 202 : 403;
}

bool ask_status(struct esb *s, const char *id, struct buf *out)
{
    struct asks *k = s->asks;
    struct ask *a = ask_find(k, id);
    if (!a)
        return false;
    if (a->state == ASK_PENDING && loop_now(s->g->loop) - a->made_ms >= ASK_LIFE_MS)
        ask_settle(k, a, ASK_EXPIRED);
    ask_add_status(a, state_names[a->state], NETPOL_R_NONE, out);
    return true;
}
