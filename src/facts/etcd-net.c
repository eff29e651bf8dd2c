/* etcd-net.c - connections to etcd and the calls on them: which endpoint, how often, and what an answer that does not come
 * means. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/fields.h"
#include "base/json.h"
#include "base/mem.h"
#include "facts/etcd-int.h"

struct etcd_conn {
    struct etcd_conn *next;
    struct etcd *e;
    size_t endpoint;
    struct connecting *dial;     /* while it is being made */
    struct client *client;       /* NULL: not yet */
    const struct transport *tls; /* the client's, if it speaks TLS */
    bool known;                  /* it belongs to our cluster; until then it carries no call of others */
    struct etcd_call *call;      /* under way; NULL: none, or our question for the cluster */
    loop_id timer;
    unsigned status;
    struct buf answer;
    bool long_answer; /* more than ETCD_ANSWER_MAX */
};

static void etcd_pump(struct etcd *e);
static void etcd_wake(struct etcd *e, uint64_t after_ms);

/* --- calls ---------------------------------------------------------------------------------------------------------- */

struct etcd_call *etcd_call_new(const char *path, bool changes, struct facts_call_in in, etcd_parse_fn *parse)
{
    struct etcd_call *c = xcalloc(1, sizeof *c);
    c->path = path;
    c->changes = changes;
    c->in = in;
    c->parse = parse;
    return c;
}

static void etcd_call_free(struct etcd_call *c)
{
    buf_done(&c->body);
    buf_done(&c->why);
    facts_rows_done(&c->rows);
    free((char *)(uintptr_t)c->page.prefix);
    free((char *)(uintptr_t)c->page.after);
    free(c);
}

/* Answers it. The callback may make further calls. */
static void etcd_call_end(struct etcd *e, struct etcd_call *c)
{
    _cleanup_buf_ struct buf why = {0};
    if (c->result != FACTS_OK) {
        buf_addf(&why, "%s: %s", e->head.engine, buf_str(&c->why));
        facts_rows_done(&c->rows);
    }
    const struct facts_answer a = {.result = c->result,
                                   .why = buf_str(&why),
                                   .revision = c->revision,
                                   .v = c->rows.v,
                                   .n = c->rows.n,
                                   .more = c->more,
                                   .lease = c->lease,
                                   .ttl_s = c->ttl_s};
    e->ncalls--;
    if (c->own)
        c->own(e, &a);
    else
        c->in.done(c->in.arg, &a);
    etcd_call_free(c);
}

static void etcd_call_fail(struct etcd *e, struct etcd_call *c, enum facts_result result, const char *why)
{
    c->result = result;
    c->why.n = 0;
    buf_adds(&c->why, why);
    etcd_call_end(e, c);
}

static void etcd_queue(struct etcd *e, struct etcd_call *c, bool in_front)
{
    if (in_front) { /* but behind the one that asks for a token, if there is one */
        struct etcd_call **at = e->first && e->first->auth ? &e->first->next : &e->first;
        c->next = *at;
        *at = c;
        if (!c->next)
            e->last = &c->next;
    } else {
        c->next = NULL;
        *e->last = c;
        e->last = &c->next;
    }
}

static struct etcd_call *etcd_take_first(struct etcd *e)
{
    struct etcd_call *c = e->first;
    e->first = c->next;
    if (!e->first)
        e->last = &e->first;
    c->next = NULL;
    return c;
}

void etcd_send(struct etcd *e, struct etcd_call *c)
{
    if (e->ncalls >= FACTS_CALLS_MAX && c->in.done) {
        facts_answer_later(&e->head, FACTS_DOWN, "this process waits for as many answers as it may", c->in);
        etcd_call_free(c);
        return;
    }
    e->ncalls++;
    c->until = loop_now(e->head.loop) + ETCD_TOTAL_MS;
    c->failures = e->failures;
    etcd_queue(e, c, c->auth);
    etcd_wake(e, 0);
}

/* Whether a call has waited long enough: its time is over, or no endpoint could be reached for a while. */
static bool etcd_gives_up(const struct etcd *e, const struct etcd_call *c)
{
    uint64_t now = loop_now(e->head.loop);
    return now >= c->until ||
           (e->failures - c->failures >= 2 * e->nendpoints && now + ETCD_TOTAL_MS >= c->until + ETCD_DOWN_MS);
}

/* Calls that no connection took in time are answered. Looks at all of them, so not at each turn. */
static void etcd_end_late(struct etcd *e)
{
    struct etcd_call *late = NULL, **end = &late, **at = &e->first;
    uint64_t now = loop_now(e->head.loop);
    if (now < e->swept_ms + ETCD_AGAIN_MS)
        return;
    e->swept_ms = now;
    while (*at) {
        struct etcd_call *c = *at;
        if (!etcd_gives_up(e, c)) {
            at = &c->next;
            continue;
        }
        *at = c->next;
        c->next = NULL;
        *end = c;
        end = &c->next;
    }
    e->last = at;
    while (late) { /* the callbacks may make calls */
        struct etcd_call *c = late;
        late = c->next;
        etcd_call_fail(e, c, FACTS_DOWN, e->trouble ? e->trouble : "no connection was free in time");
    }
}

/* It was not sent, or changes nothing: it waits for another try, if it may. */
static void etcd_again(struct etcd *e, struct etcd_call *c, const char *why)
{
    if (etcd_gives_up(e, c))
        etcd_call_fail(e, c, FACTS_DOWN, why);
    else
        etcd_queue(e, c, true);
}

/* --- connections ---------------------------------------------------------------------------------------------------- */

static void etcd_conn_free(struct etcd_conn *k)
{
    struct etcd *e = k->e;
    for (struct etcd_conn **at = &e->conns; *at; at = &(*at)->next)
        if (*at == k) {
            *at = k->next;
            break;
        }
    e->nconns--;
    loop_timer_del(e->head.loop, k->timer);
    connecting_free(k->dial);
    client_free(k->client);
    buf_done(&k->answer);
    free(k);
}

void etcd_next_endpoint(struct etcd *e, size_t failed)
{
    if (failed != e->current) /* it was left already */
        return;
    e->current = (e->current + 1) % e->nendpoints;
    etcd_follows_move(e);
}

/* The connection is of no use any more. sent: a call of it may have arrived. */
static void etcd_conn_fail(struct etcd_conn *k, bool sent, const char *text)
{
    struct etcd *e = k->e;
    struct etcd_call *c = k->call;
    _cleanup_free_ char *why = xasprintf("%s: %s", e->endpoint[k->endpoint].authority, text);
    size_t endpoint = k->endpoint;
    etcd_conn_free(k);
    free(e->trouble);
    e->trouble = xstrdup(why);
    e->failures += endpoint == e->current;
    etcd_next_endpoint(e, endpoint);
    if (c && c->changes && sent)
        etcd_call_fail(e, c, FACTS_UNKNOWN, why);
    else if (c)
        etcd_again(e, c, why);
    else if (e->first &&
             (e->failures - e->first->failures >= 2 * e->nendpoints || loop_now(e->head.loop) >= e->first->until))
        etcd_call_fail(e, etcd_take_first(e), FACTS_DOWN, why);
    etcd_wake(e, ETCD_AGAIN_MS);
}

static void etcd_conn_on_late(void *arg)
{
    struct etcd_conn *k = arg;
    k->timer = 0;
    etcd_conn_fail(k, true, "no answer in time");
}

static void etcd_on_head(void *arg, unsigned status, const struct http_fields *fields, uint64_t length)
{
    struct etcd_conn *k = arg;
    (void)fields;
    k->status = status;
    k->long_answer = length != HTTP_UNKNOWN && length > ETCD_ANSWER_MAX;
}

static void etcd_on_data(void *arg, const void *p, size_t n)
{
    struct etcd_conn *k = arg;
    k->long_answer |= k->answer.n + n > ETCD_ANSWER_MAX;
    if (!k->long_answer)
        buf_add(&k->answer, p, n);
}

/* Whether the answer is of the cluster that the first answer was of. */
static bool etcd_is_ours(struct etcd *e, const json_t *body)
{
    uint64_t id = etcd_id(json_object_get(body, "header"), "cluster_id");
    if (!e->cluster)
        e->cluster = id;
    return !id || id == e->cluster;
}

/* The answer to our question for the cluster; etcd that wants credentials for it says so later. */
static void etcd_conn_on_known(struct etcd_conn *k, const json_t *body)
{
    struct etcd *e = k->e;
    if (etcd_is_ours(e, body)) {
        k->known = true;
        free(e->trouble);
        e->trouble = NULL;
        etcd_wake(e, 0);
        return;
    }
    _cleanup_free_ char *why = xasprintf("it is a member of another cluster (id %llu, not %llu)",
                                         (unsigned long long)etcd_id(json_object_get(body, "header"), "cluster_id"),
                                         (unsigned long long)e->cluster);
    if (e->nendpoints == 1 && e->first)
        etcd_call_fail(e, etcd_take_first(e), FACTS_DENIED, why);
    etcd_conn_fail(k, false, why);
}

/* A token has a time; a call that came with an old one was not made. */
static bool etcd_token_is_old(struct etcd *e, const struct etcd_call *c, const json_t *body)
{
    const json_t *inner = json_object_get(body, "error"), *o = json_is_object(inner) ? inner : body;
    bool old = e->user && !c->auth && e->token && e->token[0] &&
               (etcd_number(o, "code") == 16 || etcd_number(o, "grpc_code") == 16) && loop_now(e->head.loop) < c->until;
    if (old) {
        free(e->token);
        e->token = NULL;
    }
    return old;
}

/* A page whose values are too long together is asked for in smaller ones. */
static bool etcd_asks_for_less(struct etcd *e, struct etcd_call *c)
{
    if (c->limit <= 1)
        return false;
    c->limit = (c->limit + 3) / 4;
    etcd_json_range(e, c);
    return true;
}

/* Reads the answer of a call that was sent. */
static void etcd_take_answer(struct etcd *e, struct etcd_call *c, unsigned status, const struct buf *text,
                             bool too_long)
{
    _cleanup_json_ json_t *body = too_long ? NULL : json_loadb(buf_str(text), text->n, JSON_DISABLE_EOF_CHECK, NULL);
    if (too_long && etcd_asks_for_less(e, c)) {
        etcd_queue(e, c, true);
        return;
    }
    if (etcd_token_is_old(e, c, body)) {
        etcd_queue(e, c, true);
        return;
    }
    if (!json_is_object(body)) {
        c->result = c->changes ? FACTS_UNKNOWN : FACTS_DOWN;
        buf_addf(&c->why, too_long ? "its answer is too long" : "it answered %u, and not in JSON", status);
    } else if (status != 200 || json_object_get(body, "error")) {
        etcd_parse_error(c, body, status);
        if (c->result == FACTS_DOWN && !c->changes && loop_now(e->head.loop) < c->until) {
            c->result = FACTS_OK;
            etcd_next_endpoint(e, e->current);
            etcd_queue(e, c, true);
            etcd_wake(e, ETCD_AGAIN_MS);
            return;
        }
    } else {
        c->revision = etcd_number(json_object_get(body, "header"), "revision");
        c->parse(e, c, body);
        if (c->again && loop_now(e->head.loop) < c->until) {
            c->again = false;
            etcd_queue(e, c, true);
            return;
        }
        if (c->again) {
            c->result = FACTS_DOWN;
            buf_adds(&c->why, "its answers have no fact of ours, and no end");
        }
    }
    etcd_call_end(e, c);
}

static void etcd_on_end(void *arg)
{
    struct etcd_conn *k = arg;
    struct etcd *e = k->e;
    struct etcd_call *c = k->call;
    struct buf text = k->answer;
    unsigned status = k->status;
    bool too_long = k->long_answer;
    loop_timer_del(e->head.loop, k->timer);
    k->timer = 0;
    k->answer = (struct buf){0};
    k->call = NULL;
    bool keep = client_reusable(k->client);
    if (!keep && !c) /* it cannot say whose it is and carry a call */
        etcd_conn_fail(k, false, "it closes its connections after one answer");
    else if (!c) {
        json_t *body = json_loadb(buf_str(&text), text.n, 0, NULL);
        etcd_conn_on_known(k, body);
        json_decref(body);
    } else {
        if (!keep)
            etcd_conn_free(k);
        etcd_take_answer(e, c, status, &text, too_long);
        etcd_wake(e, 0);
    }
    buf_done(&text);
}

static void etcd_on_writable(void *arg) { (void)arg; }

static void etcd_on_error(void *arg, enum client_failure failure, const char *text)
{
    const struct etcd_conn *k = arg;
    const char *refused = k->tls ? tls_peer_trouble(k->tls) : NULL;
    _cleanup_free_ char *why = refused ? xasprintf("its certificate is refused: %s", refused) : xstrdup(text);
    etcd_conn_fail(arg, failure != CLIENT_UNREACHED, why);
}

static const struct client_events conn_events = {etcd_on_head, etcd_on_data, etcd_on_end, etcd_on_writable,
                                                 etcd_on_error};

size_t etcd_fields(const struct etcd *e, struct http_field *v)
{
    size_t n = 0;
    v[n++] = (struct http_field){"content-type", "application/json"};
    v[n++] = (struct http_field){"user-agent", "hutch/" HUTCH_VERSION};
    if (e->token && e->token[0])
        v[n++] = (struct http_field){"authorization", e->token};
    return n;
}

static void etcd_conn_post(struct etcd_conn *k, const char *path, const void *p, size_t n, uint64_t ms)
{
    struct etcd *e = k->e;
    struct http_field fields[3];
    const struct client_request q = {.method = "POST",
                                     .target = path,
                                     .host = e->endpoint[k->endpoint].authority,
                                     .fields = {fields, etcd_fields(e, fields)},
                                     .length = n,
                                     .secret = true};
    k->status = 0;
    k->long_answer = false;
    k->timer = loop_timer(e->head.loop, ms, etcd_conn_on_late, k);
    client_start(k->client, &q, &conn_events, k);
    (void)client_write(k->client, p, n);
    client_end(k->client);
}

struct transport *etcd_transport(struct etcd *e, size_t endpoint, int fd)
{
    return e->endpoint[endpoint].tls ? tls_peer_connect(e->tls, fd, e->endpoint[endpoint].host) : transport_plain(fd);
}

static void etcd_conn_on_dialed(void *arg, int fd, const char *why)
{
    struct etcd_conn *k = arg;
    struct transport *t = fd >= 0 ? etcd_transport(k->e, k->endpoint, fd) : NULL;
    k->dial = NULL;
    if (!t) {
        etcd_conn_fail(k, false, why ? why : "TLS cannot be set up for this host");
        return;
    }
    k->tls = k->e->tls ? t : NULL;
    k->client = client_new(k->e->head.loop, t);
    etcd_conn_post(k, "/v3/maintenance/status", "{}", 2, ETCD_READ_MS);
}

static void etcd_conn_open(struct etcd *e)
{
    struct etcd_conn *k = xcalloc(1, sizeof *k);
    *k = (struct etcd_conn){.next = e->conns, .e = e, .endpoint = e->current};
    e->conns = k;
    e->nconns++;
    const struct config_url *u = &e->endpoint[k->endpoint];
    k->dial = connecting_start(e->head.loop, u->host, u->port, ETCD_DIAL_MS, etcd_conn_on_dialed, k);
}

/* --- which call goes where ------------------------------------------------------------------------------------------ */

static void etcd_own_token(struct etcd *e, const struct facts_answer *a)
{
    e->asking = false;
    if (a->result == FACTS_DENIED || a->result == FACTS_REFUSED) {
        for (size_t n = e->ncalls; n > 0 && e->first; n--) /* not those that are made meanwhile */
            etcd_call_fail(e, etcd_take_first(e), FACTS_DENIED, a->why + strlen(e->head.engine) + 2);
    }
    etcd_wake(e, a->result == FACTS_OK ? 0 : ETCD_AGAIN_MS);
}

static void etcd_ask_token(struct etcd *e)
{
    struct etcd_call *c = etcd_call_new("/v3/auth/authenticate", false, (struct facts_call_in){0}, etcd_parse_token);
    struct json j;
    c->auth = true;
    c->own = etcd_own_token;
    json_start(&j, &c->body);
    json_obj(&j, NULL);
    json_str(&j, "name", e->user);
    json_str(&j, "password", e->password);
    json_end_obj(&j);
    e->asking = true;
    etcd_send(e, c);
}

/* A connection to the endpoint of now that waits for a call. Those to others are closed. */
static struct etcd_conn *etcd_idle_conn(struct etcd *e, size_t *ret_opening)
{
    struct etcd_conn *found = NULL;
    *ret_opening = 0;
    for (struct etcd_conn *k = e->conns, *next; k; k = next) {
        next = k->next;
        bool idle = k->known && !k->call;
        if (idle && (k->endpoint != e->current || !client_reusable(k->client)))
            etcd_conn_free(k);
        else if (idle)
            found = k;
        else
            *ret_opening += !k->known && k->endpoint == e->current;
    }
    return found;
}

static size_t etcd_waiting(const struct etcd *e)
{
    size_t n = 0;
    for (const struct etcd_call *c = e->first; c && n < ETCD_CONNS_MAX; c = c->next)
        n++;
    return n;
}

static void etcd_pump(struct etcd *e)
{
    size_t opening = 0;
    struct etcd_conn *k;
    etcd_end_late(e);
    if (e->user && !e->token && !e->asking && e->first)
        etcd_ask_token(e);
    while (e->first && (!e->user || e->token || e->first->auth) && (k = etcd_idle_conn(e, &opening))) {
        k->call = etcd_take_first(e);
        etcd_conn_post(k, k->call->path, k->call->body.p, k->call->body.n,
                       k->call->changes ? ETCD_CHANGE_MS : ETCD_READ_MS);
    }
    if (!e->first)
        return;
    (void)etcd_idle_conn(e, &opening);
    while (opening < etcd_waiting(e) && e->nconns < ETCD_CONNS_MAX) {
        etcd_conn_open(e);
        opening++;
    }
    etcd_wake(e, ETCD_AGAIN_MS); /* to end what waits too long */
}

static void etcd_on_wake(void *arg)
{
    struct etcd *e = arg;
    e->timer = 0;
    etcd_pump(e);
}

static void etcd_wake(struct etcd *e, uint64_t after_ms)
{
    if (after_ms == 0) {
        loop_timer_del(e->head.loop, e->timer);
        e->timer = 0;
    }
    if (!e->timer)
        e->timer = loop_timer(e->head.loop, after_ms, etcd_on_wake, e);
}

void etcd_net_close(struct etcd *e)
{
    while (e->conns) {
        if (e->conns->call)
            etcd_call_free(e->conns->call);
        etcd_conn_free(e->conns);
    }
    while (e->first)
        etcd_call_free(etcd_take_first(e));
    loop_timer_del(e->head.loop, e->timer);
}
