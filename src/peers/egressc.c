#include "peers/egressc.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/log.h"
#include "base/mem.h"
#include "egress/core/proto.h"
#include "rpc/caller.h"

enum { HELLO_MS = 5000, CA_MAX = 65536 };
#define AWAY_TEXT "egress is not there; try again"

/* A call that waits for an answer: to a policy (sandbox and epoch), or to a request (its number). */
struct call {
    struct call *next, **prev;
    struct egressc *client;
    char sandbox[EGRESS_ID_MAX]; /* "": a request */
    uint64_t number;             /* epoch, or number of the request */
    egressc_done *done;
    void *arg;
    loop_id timer;
    char *error; /* the call has failed already; reported from the loop */
};

struct egressc {
    struct loop *loop;
    struct caller *caller;
    loop_id hello; /* the time in which egress must greet */
    const struct egressc_ops *ops;
    void *arg;
    bool greeted, syncing;
    struct call *calls;
    size_t ncalls;
    unsigned char key[EGRESSC_KEY];
    bool has_key;
};

/* --- calls -------------------------------------------------------------------------------------------------------- */

static void egressc_call_unlink(struct call *c)
{
    *c->prev = c->next;
    if (c->next)
        c->next->prev = c->prev;
    c->client->ncalls--;
    loop_timer_del(c->client->loop, c->timer);
}

static void egressc_call_end(struct call *c, json_t *answer, const char *error)
{
    egressc_call_unlink(c);
    c->done(c->arg, answer, error);
    free(c->error);
    free(c);
}

static void egressc_call_on_timeout(void *arg)
{
    struct call *c = arg;
    c->timer = 0;
    const char *silent = c->client->greeted ? "egress does not answer" : AWAY_TEXT;
    egressc_call_end(c, NULL, c->error ? c->error : silent);
}

static struct call *egressc_call_new(struct egressc *e, const char *sandbox, uint64_t number, uint64_t wait_ms,
                                     egressc_done *done, void *arg)
{
    struct call *c = xcalloc(1, sizeof *c);
    c->client = e;
    (void)snprintf(c->sandbox, sizeof c->sandbox, "%s", sandbox);
    c->number = number;
    c->done = done;
    c->arg = arg;
    c->next = e->calls;
    c->prev = &e->calls;
    if (c->next)
        c->next->prev = &c->next;
    e->calls = c;
    if (++e->ncalls > EGRESSC_CALLS_MAX) {
        c->error = xstrdup("too many requests wait for egress");
        wait_ms = 0;
    }
    c->timer = loop_timer(e->loop, wait_ms, egressc_call_on_timeout, c);
    return c;
}

/* Fails all requests, because only the old egress could answer them. Policies keep waiting: they are sent to the
 * next egress. */
static void egressc_drop_requests(struct egressc *e)
{
    for (bool again = true; again;) {
        again = false;
        for (struct call *c = e->calls; c; c = c->next)
            if (!*c->sandbox && !c->error) {
                again = true; /* start over: the callback may have changed the list */
                egressc_call_end(c, NULL, "egress was started again; try again");
                break;
            }
    }
}

/* --- the connection ----------------------------------------------------------------------------------------------- */

static void egressc_on_down(void *arg, const char *why)
{
    struct egressc *e = arg;
    log_text(LOG_LEVEL_WARN, "the connection to egress is gone (%s); it is made again", why);
    loop_timer_del(e->loop, e->hello);
    e->hello = 0;
    bool was_up = e->greeted;
    e->greeted = e->syncing = false;
    egressc_drop_requests(e);
    if (was_up)
        e->ops->down(e->arg);
}

static void egressc_queue(struct egressc *e, const json_t *message)
{
    char *text = json_dumps(message, JSON_COMPACT);
    size_t n = text ? strlen(text) : 0;
    if (n == 0 || n > EGRESS_JSON_MAX)
        log_text(LOG_LEVEL_ERROR, "a message for egress is too large and was not sent");
    else
        caller_post(e->caller, text, n);
    if (text)
        explicit_bzero(text, n);
    free(text);
}

/* Queues more of what egress must know while there is room, and at last the message "synced". */
static void egressc_on_drained(void *arg)
{
    struct egressc *e = arg;
    while (e->syncing && caller_queued(e->caller) < EGRESSC_QUEUE_LOW)
        if (!e->ops->next(e->arg)) {
            json_t *end = json_pack("{s:s}", "type", "synced");
            e->syncing = false;
            egressc_queue(e, end);
            json_decref(end);
        }
}

void egressc_send(struct egressc *e, json_t *message)
{
    if (e->greeted)
        egressc_queue(e, message);
    json_decref(message);
}

/* --- what egress says --------------------------------------------------------------------------------------------- */

static bool egressc_read_key(const char *hex, unsigned char ret[EGRESSC_KEY])
{
    if (!hex || strlen(hex) != 2 * EGRESSC_KEY || strspn(hex, "0123456789abcdef") != 2 * EGRESSC_KEY)
        return false;
    for (size_t i = 0; i < EGRESSC_KEY; i++) {
        unsigned v;
        if (sscanf(hex + 2 * i, "%2x", &v) != 1)
            return false;
        ret[i] = (unsigned char)v;
    }
    return true;
}

static bool egressc_on_hello(struct egressc *e, const json_t *m)
{
    const char *ca = json_string_value(json_object_get(m, "ca"));
    if (json_integer_value(json_object_get(m, "version")) != EGRESS_VERSION ||
        !egressc_read_key(json_string_value(json_object_get(m, "key")), e->key) || (ca && strlen(ca) > CA_MAX) ||
        e->greeted)
        return false;
    e->has_key = true;
    e->greeted = e->syncing = true;
    loop_timer_del(e->loop, e->hello);
    e->hello = 0;
    e->ops->up(e->arg);
    return true;
}

static void egressc_on_applied(struct egressc *e, json_t *m)
{
    const char *sandbox = json_string_value(json_object_get(m, "sandbox"));
    json_t *error = json_object_get(m, "error");
    uint64_t epoch = (uint64_t)json_integer_value(json_object_get(m, "epoch"));
    _cleanup_free_ char *text = NULL;
    if (error && !json_is_null(error)) {
        const char *path = json_string_value(json_object_get(error, "path")),
                   *what = json_string_value(json_object_get(error, "text"));
        text = xasprintf("%s%s%s", path ? path : "", path && *path ? ": " : "", what ? what : "egress refused it");
    }
    if (!sandbox)
        return;
    for (bool again = true; again;) {
        again = false;
        for (struct call *c = e->calls; c; c = c->next)
            /* A later epoch includes earlier ones that were replaced before they were sent. */
            if (strcmp(c->sandbox, sandbox) == 0 && !c->error && (text ? c->number == epoch : c->number <= epoch)) {
                again = true; /* the callback may have changed the list */
                egressc_call_end(c, m, text);
                break;
            }
    }
}

static void egressc_on_answer(struct egressc *e, json_t *m)
{
    uint64_t number = (uint64_t)json_integer_value(json_object_get(m, "request"));
    const char *error = json_string_value(json_object_get(m, "error"));
    for (struct call *c = e->calls; c; c = c->next)
        if (!*c->sandbox && c->number == number && !c->error) {
            egressc_call_end(c, m, error);
            return;
        }
}

/* False: a message that egress must not send; we disconnect. */
static bool egressc_on_json(struct egressc *e, json_t *m)
{
    const char *type = json_string_value(json_object_get(m, "type"));
    if (!type)
        return false;
    if (strcmp(type, "hello") == 0)
        return egressc_on_hello(e, m);
    if (strcmp(type, "error") == 0) {
        const char *text = json_string_value(json_object_get(m, "text"));
        log_text(LOG_LEVEL_ERROR, "egress refuses what front says: %s", text ? text : "?");
        return false;
    }
    if (strcmp(type, "applied") == 0)
        egressc_on_applied(e, m);
    else if (json_object_get(m, "request"))
        egressc_on_answer(e, m);
    else
        e->ops->event(e->arg, type, m);
    return true;
}

static bool egressc_on_message(void *arg, struct channel_message *in)
{
    json_t *m = json_loadb((const char *)in->p, in->n, JSON_REJECT_DUPLICATES, NULL);
    bool good = json_is_object(m) && egressc_on_json(arg, m);
    json_decref(m);
    return good;
}

/* --- making it ---------------------------------------------------------------------------------------------------- */

static void egressc_on_no_hello(void *arg)
{
    struct egressc *e = arg;
    e->hello = 0;
    caller_drop(e->caller, "it does not say hello");
}

static void egressc_on_connected(void *arg)
{
    struct egressc *e = arg;
    e->hello = loop_timer(e->loop, HELLO_MS, egressc_on_no_hello, e);
    json_t *hello = json_pack("{s:s, s:i}", "type", "hello", "version", EGRESS_VERSION);
    egressc_queue(e, hello);
    json_decref(hello);
}

/* Its calls are policies and requests in JSON, which it matches itself: none of the caller's. */
static const struct caller_spec egressc_spec = {
    .socket = EGRESS_SOCKET,
    .limits = {.kind = CHANNEL_STREAM, .message_max = EGRESS_JSON_MAX, .queue_max = EGRESSC_QUEUE_MAX},
    .queue_low = EGRESSC_QUEUE_LOW,
    .ops = {.up = egressc_on_connected,
            .down = egressc_on_down,
            .message = egressc_on_message,
            .drained = egressc_on_drained},
};

int egressc_new(struct loop *l, int run_dir, const struct egressc_ops *ops, void *arg, struct egressc **ret,
                struct err *err)
{
    struct egressc *e = xcalloc(1, sizeof *e);
    (void)err;
    *e = (struct egressc){.loop = l, .ops = ops, .arg = arg};
    e->caller = caller_new(l, &egressc_spec, run_dir, e);
    *ret = e;
    return 0;
}

void egressc_free(struct egressc *e)
{
    if (!e)
        return;
    while (e->calls) {
        struct call *c = e->calls;
        egressc_call_unlink(c);
        free(c->error);
        free(c);
    }
    loop_timer_del(e->loop, e->hello);
    caller_free(e->caller);
    free(e);
}

bool egressc_key(const struct egressc *e, unsigned char ret[EGRESSC_KEY])
{
    if (e->has_key)
        memcpy(ret, e->key, EGRESSC_KEY);
    return e->has_key;
}

bool egressc_is_up(const struct egressc *e) { return e->greeted; }

void egressc_policy(struct egressc *e, json_t *message, uint64_t wait_ms, egressc_done *done, void *arg)
{
    const char *sandbox = json_string_value(json_object_get(message, "sandbox"));
    uint64_t epoch = (uint64_t)json_integer_value(json_object_get(message, "epoch"));
    if (!e->greeted && wait_ms > EGRESSC_AWAY_MS)
        wait_ms = EGRESSC_AWAY_MS;
    if (done)
        (void)egressc_call_new(e, sandbox ? sandbox : "?", epoch, wait_ms, done, arg);
    egressc_send(e, message);
}

void egressc_ask(struct egressc *e, json_t *message, uint64_t wait_ms, egressc_done *done, void *arg)
{
    uint64_t number = caller_number(e->caller);
    struct call *c = egressc_call_new(e, "", number, e->greeted ? wait_ms : 0, done, arg);
    if (!e->greeted && !c->error)
        c->error = xstrdup(AWAY_TEXT);
    (void)json_object_set_new(message, "request", json_integer((json_int_t)number));
    egressc_send(e, message);
}
