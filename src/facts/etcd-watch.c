/* etcd-watch.c - follows of changes: each is a connection on which etcd sends a line of JSON for every group of whole
 * revisions. A follow that is cut goes on at the next endpoint where it stood.
 *
 * A member that was cut off from the others keeps its connections and says nothing. So every few seconds one read that needs
 * the majority goes to the endpoint that the follows hang on; if it fails, they move.
 */
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "base/cleanup.h"
#include "base/fields.h"
#include "base/mem.h"
#include "facts/etcd-int.h"

enum { WATCH_LINE_MAX = ETCD_ANSWER_MAX, WATCH_SILENCE_MS = 15 * 1000 };

struct etcd_follow {
    struct etcd_follow *next;
    struct etcd *e;
    char *prefix;
    uint64_t at; /* the first revision that was not told */
    const struct facts_follow_events *events;
    void *arg;
    size_t endpoint;
    struct connecting *dial;
    struct client *client;
    unsigned status;
    struct buf line;
    loop_id timer;
    bool created, lost;
    enum { IN_TIME, AHEAD, AHEAD_ASKED } position; /* AHEAD: of what the member has; a pulse tells whether of all */
    unsigned busy;                                 /* calls under way */
    bool dead;
};

static void follow_begin(struct etcd_follow *w);

static void follow_free(struct etcd_follow *w)
{
    buf_done(&w->line);
    free(w->prefix);
    free(w);
}

static void follow_cut(struct etcd_follow *w)
{
    loop_timer_del(w->e->head.loop, w->timer);
    w->timer = 0;
    connecting_free(w->dial);
    client_free(w->client);
    w->dial = NULL;
    w->client = NULL;
    w->position = IN_TIME;
    w->created = false;
    w->line.n = 0;
}

static void follow_on_timer(void *arg)
{
    struct etcd_follow *w = arg;
    w->timer = 0;
    follow_begin(w);
}

static void follow_again(struct etcd_follow *w, uint64_t after_ms)
{
    follow_cut(w);
    w->timer = loop_timer(w->e->head.loop, after_ms, follow_on_timer, w);
}

static void follow_trouble(struct etcd_follow *w, const char *why)
{
    w->busy++;
    follow_again(w, ETCD_AGAIN_MS);
    etcd_next_endpoint(w->e, w->endpoint);
    w->events->on_trouble(w->arg, why);
    w->busy--;
    if (w->dead && w->busy == 0)
        follow_free(w);
}

/* --- lines ---------------------------------------------------------------------------------------------------------- */

static void follow_lost(struct etcd_follow *w)
{
    w->lost = true;
    follow_cut(w);
    w->events->on_lost(w->arg);
}

static void follow_take_events(struct etcd_follow *w, json_t *events)
{
    struct facts_rows rows = {0};
    uint64_t last = 0;
    size_t i;
    json_t *event;
    json_array_foreach(events, i, event)
    {
        const json_t *kv = json_object_get(event, "kv"), *type = json_object_get(event, "type");
        bool removed = json_is_string(type) && strcmp(json_string_value(type), "DELETE") == 0;
        uint64_t revision = etcd_number(kv, "mod_revision");
        last = revision > last ? revision : last;
        if (revision >= w->at)
            etcd_add_fact(w->e, &rows, kv, removed);
    }
    if (last >= w->at) {
        w->at = last + 1;
        w->events->on_changes(w->arg, &rows, last);
    }
    facts_rows_done(&rows);
}

static void follow_pulse(struct etcd *e);

/* The first line. A position that this member has not reached may be known to the others; one that all have not reached is that
 * of an earlier life of the engine. */
static void follow_take_created(struct etcd_follow *w, const json_t *result)
{
    uint64_t now = etcd_number(json_object_get(result, "header"), "revision");
    loop_timer_del(w->e->head.loop, w->timer);
    w->timer = 0;
    w->created = true;
    if (now == 0)
        follow_trouble(w, "a watch was answered without a revision");
    else if (w->at > now + 1) {
        w->position = AHEAD;
        if (!w->e->pulsing)
            follow_pulse(w->e);
    } else
        w->events->on_changes(w->arg, &(struct facts_rows){0}, w->at - 1); /* it can be heard */
}

static void follow_take_line(struct etcd_follow *w, const char *text, size_t n)
{
    _cleanup_json_ json_t *body = json_loadb(text, n, 0, NULL);
    const json_t *result = json_object_get(body, "result");
    if (!json_is_object(result))
        follow_trouble(w, "a watch was refused");
    else if (json_is_true(json_object_get(result, "canceled"))) {
        if (etcd_number(result, "compact_revision"))
            follow_lost(w);
        else
            follow_trouble(w, "a watch was ended");
    } else if (json_is_true(json_object_get(result, "created")))
        follow_take_created(w, result);
    else
        follow_take_events(w, json_object_get(result, "events"));
}

/* --- the connection ------------------------------------------------------------------------------------------------- */

static void follow_on_head(void *arg, unsigned status, const struct http_fields *fields, uint64_t length)
{
    (void)fields, (void)length;
    ((struct etcd_follow *)arg)->status = status;
}

static void follow_on_data(void *arg, const void *p, size_t n)
{
    struct etcd_follow *w = arg;
    struct buf line;
    const char *at = p, *end = at + n, *nl;
    const struct client *client = w->client;
    w->busy++;
    while (at < end && !w->dead && w->client == client) {
        nl = memchr(at, '\n', (size_t)(end - at));
        buf_add(&w->line, at, (size_t)((nl ? nl : end) - at));
        at = nl ? nl + 1 : end;
        if (w->line.n > WATCH_LINE_MAX) { /* what is so large is read page by page */
            follow_lost(w);
            break;
        }
        if (!nl || w->line.n == 0)
            continue;
        line = w->line;
        w->line = (struct buf){0};
        follow_take_line(w, buf_str(&line), line.n);
        buf_done(&line);
    }
    w->busy--;
    if (w->dead && w->busy == 0)
        follow_free(w);
}

/* etcd's token of before may be too old: it is asked for anew with the next call, and the pulse is one. */
static void follow_on_end(void *arg)
{
    struct etcd_follow *w = arg;
    struct etcd *e = w->e;
    if (e->user && w->status == 401 && !e->asking) {
        free(e->token);
        e->token = NULL;
    }
    follow_trouble(w, "a watch was cut");
}

static void follow_on_writable(void *arg) { (void)arg; }

static void follow_on_error(void *arg, enum client_failure failure, const char *text)
{
    (void)failure;
    follow_trouble(arg, text);
}

/* A machine that vanishes says nothing: the kernel asks it. */
static void follow_keep_alive(int fd)
{
    int on = 1, idle = 5, interval = 2, count = 3, timeout = WATCH_SILENCE_MS;
    (void)setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof interval);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &count, sizeof count);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &timeout, sizeof timeout);
}

static void follow_on_silent(void *arg)
{
    struct etcd_follow *w = arg;
    w->timer = 0;
    follow_trouble(w, "a watch was not answered");
}

static void follow_on_dialed(void *arg, int fd, const char *why)
{
    static const struct client_events events = {follow_on_head, follow_on_data, follow_on_end, follow_on_writable,
                                                follow_on_error};
    struct etcd_follow *w = arg;
    struct etcd *e = w->e;
    struct http_field fields[3];
    _cleanup_buf_ struct buf body = {0};
    w->dial = NULL;
    if (fd >= 0)
        follow_keep_alive(fd);
    struct transport *t = fd >= 0 ? etcd_transport(e, w->endpoint, fd) : NULL;
    if (!t) {
        follow_trouble(w, why ? why : "TLS cannot be set up for this host");
        return;
    }
    etcd_json_watch(e, w->prefix, w->at, &body);
    w->client = client_new(e->head.loop, t);
    const struct client_request q = {.method = "POST",
                                     .target = "/v3/watch",
                                     .host = e->endpoint[w->endpoint].authority,
                                     .fields = {fields, etcd_fields(e, fields)},
                                     .length = body.n,
                                     .secret = true};
    w->timer = loop_timer(e->head.loop, ETCD_CHANGE_MS, follow_on_silent, w); /* until it is created */
    client_start(w->client, &q, &events, w);
    (void)client_write(w->client, body.p, body.n);
    client_end(w->client);
}

static void follow_begin(struct etcd_follow *w)
{
    struct etcd *e = w->e;
    if (e->user && !e->token) { /* the pulse asks for it */
        w->timer = loop_timer(e->head.loop, ETCD_AGAIN_MS, follow_on_timer, w);
        return;
    }
    w->endpoint = e->current;
    w->status = 0;
    const struct config_url *u = &e->endpoint[w->endpoint];
    w->dial = connecting_start(e->head.loop, u->host, u->port, ETCD_DIAL_MS, follow_on_dialed, w);
}

/* --- the pulse ------------------------------------------------------------------------------------------------------ */

static void follow_on_pulse_timer(void *arg);

/* revision: what the majority has. */
static void follow_judge_ahead(struct etcd *e, uint64_t revision)
{
    bool more = false;
    for (struct etcd_follow *w = e->follows; w; w = w->next) {
        bool asked = w->position == AHEAD_ASKED;
        more |= w->position == AHEAD; /* since the pulse was sent */
        if (!asked)
            continue;
        w->position = IN_TIME;
        if (w->at > revision + 1)
            follow_lost(w);
    }
    if (more)
        follow_pulse(e);
}

static void follow_on_pulse(struct etcd *e, const struct facts_answer *a)
{
    e->pulsing = false;
    if (a->result != FACTS_OK) /* the call has tried all endpoints */
        etcd_follows_move(e);
    else
        follow_judge_ahead(e, a->revision);
}

/* A read of one key that needs the majority; that it is tried elsewhere moves the follows (etcd_next_endpoint). */
static void follow_pulse(struct etcd *e)
{
    struct etcd_call *c = etcd_call_new("/v3/kv/range", false, (struct facts_call_in){0}, etcd_parse_nothing);
    c->page.prefix = xstrdup("pulse");
    c->own = follow_on_pulse;
    for (struct etcd_follow *w = e->follows; w; w = w->next)
        w->position = w->position == AHEAD ? AHEAD_ASKED : w->position;
    etcd_json_range(e, c);
    e->pulsing = true;
    etcd_send(e, c);
}

static void follow_on_pulse_timer(void *arg)
{
    struct etcd *e = arg;
    e->pulse_timer = e->follows ? loop_timer(e->head.loop, ETCD_PULSE_MS, follow_on_pulse_timer, e) : 0;
    if (e->follows && !e->pulsing)
        follow_pulse(e);
}

void etcd_follows_move(struct etcd *e)
{
    for (struct etcd_follow *w = e->follows; w; w = w->next)
        if (!w->lost && (w->client || w->dial)) {
            follow_again(w, ETCD_AGAIN_MS);
            w->events->on_trouble(w->arg, "the engine is being tried elsewhere");
        }
}

/* --- life ----------------------------------------------------------------------------------------------------------- */

void *etcd_follow(struct facts *f, const char *prefix, uint64_t from, const struct facts_follow_events *events,
                  void *arg)
{
    struct etcd *e = (struct etcd *)f;
    struct etcd_follow *w = xcalloc(1, sizeof *w);
    *w = (struct etcd_follow){
        .next = e->follows, .e = e, .prefix = xstrdup(prefix), .at = from, .events = events, .arg = arg};
    e->follows = w;
    w->timer = loop_timer(f->loop, 0, follow_on_timer, w);
    if (!e->pulse_timer)
        e->pulse_timer = loop_timer(f->loop, e->user ? 0 : ETCD_PULSE_MS, follow_on_pulse_timer, e);
    return w;
}

void etcd_unfollow(struct facts *f, void *follow)
{
    struct etcd *e = (struct etcd *)f;
    struct etcd_follow *w = follow;
    for (struct etcd_follow **at = &e->follows; *at; at = &(*at)->next)
        if (*at == w) {
            *at = w->next;
            break;
        }
    follow_cut(w);
    w->dead = true;
    if (w->busy == 0)
        follow_free(w);
}
