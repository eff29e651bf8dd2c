#include "peers/keeperc.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "rpc/caller.h"

enum {
    CALLS_MAX = 8192,
    CALL_MS = 60000, /* keeper itself limits a create to 10 s and a kill to 20 s */
};

struct call {
    struct caller_call call;
    union {
        struct keeper_head head;
        struct keeper_create create;
        struct keeper_simple simple;
        struct keeper_deadline deadline;
        struct keeper_limit limit;
    } m;
    keeperc_done *done;
    keeperc_listed *listed;
    void *arg;
    struct keeper_item *items; /* LIST: what came so far */
    size_t nitems;
};

struct keeperc {
    struct loop *loop;
    struct caller *caller;
    const struct keeperc_ops *ops;
    void *arg;
};

static struct call *keeperc_take_call(struct keeperc *k, uint64_t request)
{
    return (struct call *)caller_take(k->caller, request);
}

static void keeperc_free_call(struct call *c)
{
    free(c->items);
    free(c);
}

static void keeperc_fail_call(struct call *c, const char *text)
{
    struct keeper_reply r = {.error = KEEPER_FAILED};
    (void)snprintf(r.text, sizeof r.text, "%s", text);
    if (c->done)
        c->done(c->arg, &r);
    else if (c->listed)
        c->listed(c->arg, NULL, 0);
    keeperc_free_call(c);
}

static bool keeperc_on_reply(struct keeperc *k, const void *p)
{
    struct keeper_reply r;
    memcpy(&r, p, sizeof r);
    r.text[sizeof r.text - 1] = r.tier[sizeof r.tier - 1] = r.degraded[sizeof r.degraded - 1] = '\0';
    r.driver[sizeof r.driver - 1] = r.quota[sizeof r.quota - 1] = '\0';
    struct call *c = keeperc_take_call(k, r.head.request);
    if (!c)
        return true; /* it timed out before */
    if (!c->done)
        keeperc_fail_call(c, ""); /* a refused list */
    else {
        c->done(c->arg, &r);
        keeperc_free_call(c);
    }
    return true;
}

static bool keeperc_on_items(struct keeperc *k, const void *p)
{
    static struct keeper_items m;
    memcpy(&m, p, sizeof m);
    struct call *c = (struct call *)caller_find(k->caller, m.head.request);
    if (m.n > KEEPER_LIST_MAX)
        return false;
    if (!c || !c->listed)
        return true;
    c->items = xreallocarray(c->items, c->nitems + m.n + 1, sizeof *c->items);
    memcpy(c->items + c->nitems, m.item, m.n * sizeof *m.item);
    for (size_t i = c->nitems; i < c->nitems + m.n; i++)
        c->items[i].id[KEEPER_ID_MAX - 1] = '\0';
    c->nitems += m.n;
    if (m.more)
        return true;
    c = keeperc_take_call(k, c->call.request);
    c->listed(c->arg, c->items, c->nitems);
    keeperc_free_call(c);
    return true;
}

static bool keeperc_on_message(void *arg, struct channel_message *m)
{
    struct keeperc *k = arg;
    struct keeper_head head;
    if (m->n < sizeof head)
        return false;
    memcpy(&head, m->p, sizeof head);
    if (head.version != KEEPER_VERSION)
        return false;
    if (head.type == KEEPER_REPLY && m->n == sizeof(struct keeper_reply))
        return keeperc_on_reply(k, m->p);
    if (head.type == KEEPER_ITEMS && m->n == sizeof(struct keeper_items))
        return keeperc_on_items(k, m->p);
    if (head.type == KEEPER_DIED && m->n == sizeof(struct keeper_death)) {
        struct keeper_death d;
        memcpy(&d, m->p, sizeof d);
        d.id[sizeof d.id - 1] = '\0';
        k->ops->died(k->arg, &d);
        return true;
    }
    return false;
}

static void keeperc_on_up(void *arg) { ((struct keeperc *)arg)->ops->up(((struct keeperc *)arg)->arg); }

static void keeperc_on_down(void *arg, const char *why)
{
    struct keeperc *k = arg;
    (void)why;
    k->ops->down(k->arg);
}

static void keeperc_on_failed(void *arg, struct caller_call *call)
{
    (void)arg;
    keeperc_fail_call((struct call *)call,
                      call->why == CALLER_FULL ? "too many requests wait for keeper" : "keeper does not answer");
}

/* A list that is asked for again begins again. */
static void keeperc_on_marked(void *arg, struct caller_call *call)
{
    (void)arg;
    if (call->sent)
        ((struct call *)call)->nitems = 0;
}

static const struct caller_spec keeperc_spec = {
    .socket = KEEPER_SOCKET,
    .limits = {.message_max = sizeof(struct keeper_items), .queue_max = 1 << 20},
    .calls_max = CALLS_MAX,
    .ops = {.up = keeperc_on_up,
            .down = keeperc_on_down,
            .message = keeperc_on_message,
            .failed = keeperc_on_failed,
            .marked = keeperc_on_marked},
};

int keeperc_new(struct loop *l, int run_dir, const struct keeperc_ops *ops, void *arg, struct keeperc **ret,
                struct err *err)
{
    (void)err;
    struct keeperc *k = xcalloc(1, sizeof *k);
    *k = (struct keeperc){.loop = l, .ops = ops, .arg = arg};
    k->caller = caller_new(l, &keeperc_spec, run_dir, k);
    *ret = k;
    return 0;
}

void keeperc_free(struct keeperc *k)
{
    if (!k)
        return;
    for (struct caller_call *c; (c = caller_first(k->caller));)
        keeperc_free_call(keeperc_take_call(k, c->request));
    caller_free(k->caller);
    free(k);
}

static struct call *keeperc_new_call(struct keeperc *k, uint32_t type, size_t size, void *arg)
{
    struct call *c = xcalloc(1, sizeof *c);
    c->call = (struct caller_call){
        .message = &c->m, .size = size, .due_ms = loop_now(k->loop) + CALL_MS, .request = caller_number(k->caller)};
    c->arg = arg;
    c->m.head = (struct keeper_head){.version = KEEPER_VERSION, .type = type, .request = c->call.request};
    return c;
}

static void keeperc_put_id(char to[KEEPER_ID_MAX], const char *id)
{
    (void)snprintf(to, KEEPER_ID_MAX, "%s", id); /* one that is too long is refused by keeper as unknown */
}

void keeperc_create(struct keeperc *k, const struct keeper_create *create, keeperc_done *done, void *arg)
{
    struct call *c = keeperc_new_call(k, KEEPER_CREATE, sizeof c->m.create, arg);
    struct keeper_head head = c->m.head;
    c->m.create = *create;
    c->m.create.head = head;
    c->done = done;
    caller_add(k->caller, &c->call);
}

static void keeperc_ask(struct keeperc *k, uint32_t type, const char *id, keeperc_done *done, void *arg)
{
    struct call *c = keeperc_new_call(k, type, sizeof c->m.simple, arg);
    keeperc_put_id(c->m.simple.id, id);
    c->done = done;
    caller_add(k->caller, &c->call);
}

void keeperc_kill(struct keeperc *k, const char *id, keeperc_done *done, void *arg)
{
    keeperc_ask(k, KEEPER_KILL, id, done, arg);
}

void keeperc_pause(struct keeperc *k, const char *id, keeperc_done *done, void *arg)
{
    keeperc_ask(k, KEEPER_PAUSE, id, done, arg);
}

void keeperc_resume(struct keeperc *k, const char *id, keeperc_done *done, void *arg)
{
    keeperc_ask(k, KEEPER_RESUME, id, done, arg);
}

void keeperc_usage(struct keeperc *k, const char *id, keeperc_done *done, void *arg)
{
    keeperc_ask(k, KEEPER_USAGE, id, done, arg);
}

void keeperc_deadline(struct keeperc *k, const char *id, uint64_t boottime_ms, keeperc_done *done, void *arg)
{
    struct call *c = keeperc_new_call(k, KEEPER_DEADLINE, sizeof c->m.deadline, arg);
    keeperc_put_id(c->m.deadline.id, id);
    c->m.deadline.deadline_ms = boottime_ms;
    c->done = done;
    caller_add(k->caller, &c->call);
}

void keeperc_limit(struct keeperc *k, const char *id, uint64_t number, uint64_t memory, keeperc_done *done, void *arg)
{
    struct call *c = keeperc_new_call(k, KEEPER_LIMIT, sizeof c->m.limit, arg);
    keeperc_put_id(c->m.limit.id, id);
    c->m.limit.number = number;
    c->m.limit.memory = memory;
    c->done = done;
    caller_add(k->caller, &c->call);
}

void keeperc_list(struct keeperc *k, keeperc_listed *done, void *arg)
{
    struct call *c = keeperc_new_call(k, KEEPER_LIST, sizeof c->m.simple, arg);
    c->listed = done;
    caller_add(k->caller, &c->call);
}

void keeperc_forget(struct keeperc *k, const char *id)
{
    struct keeper_simple m = {
        .head = {.version = KEEPER_VERSION, .type = KEEPER_FORGET, .request = caller_number(k->caller)}};
    keeperc_put_id(m.id, id);
    caller_post(k->caller, &m, sizeof m); /* if the message is lost, keeper reports the death again */
}
