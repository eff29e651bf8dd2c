#include "peers/layersc.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/log.h"
#include "base/mem.h"
#include "rpc/caller.h"

enum {
    CALLS_MAX = 1024,
    OWNER_CALLS_MAX = CALLS_MAX / 16, /* of one tenant, once half of CALLS_MAX is taken */
    /* Sent at once: never more than the layer store accepts; long ones leave room for the others. */
    SENT_MAX = LAYERS_JOBS_MAX - 8,
    HEAVY_SENT_MAX = 16,
    OWNER_SENT_MAX = 4, /* of one tenant, without transfers */
    DOWN_MS = 30000,    /* without a connection for so long: pending calls fail */
    LISTED_MAX = 1 << 18,
    OWNER_MAX = 64,
};

struct call {
    struct caller_call call;
    enum layers_type type;
    int fd;   /* ours until the answer, to be sent again; -1: none */
    off_t at; /* its file position; -1: a pipe, which cannot be read twice */
    layersc_progress *progress;
    layersc_done *done; /* NULL with `listed`, and for a cancel */
    layersc_listed *listed;
    void *arg;
    char owner[OWNER_MAX]; /* "": the node itself */
    struct layers_item *items;
    size_t nitems;
    struct layers_head m[]; /* the message */
};

struct layersc {
    struct caller *caller;
    void (*up)(void *arg);
    void *arg;
    size_t nsent, nlong[2]; /* sent: all; transfers, upkeep */
};

/* The kinds of long jobs, as the layer store separates them (job_class). */
enum kind { TRANSFER, UPKEEP, SHORT };
static enum kind layersc_kind_of(enum layers_type type)
{
    switch (type) {
    case LAYERS_IMPORT:
    case LAYERS_CONVERT:
    case LAYERS_EXPORT:
    case LAYERS_RESTORE:
        return TRANSFER;
    case LAYERS_FLATTEN:
    case LAYERS_VERIFY:
        return UPKEEP;
    default:
        return SHORT;
    }
}

/* --- calls -------------------------------------------------------------------------------------------------------- */

static struct call *layersc_find_call(const struct layersc *s, uint64_t request)
{
    return (struct call *)caller_find(s->caller, request);
}

static struct call *layersc_take_call(struct layersc *s, uint64_t request)
{
    return (struct call *)caller_take(s->caller, request);
}

static const struct call *layersc_next_call(const struct call *c) { return (const struct call *)c->call.next; }

static const struct call *layersc_first_call(const struct layersc *s)
{
    return (const struct call *)caller_first(s->caller);
}

static void layersc_free_call(struct call *c)
{
    if (c->fd >= 0)
        (void)close(c->fd);
    free(c->items);
    free(c);
}

static void layersc_fail_call(struct call *c, enum layers_error error, const char *text)
{
    struct layers_reply r = {
        .version = LAYERS_VERSION, .type = LAYERS_REPLY, .request = c->call.request, .error = (uint32_t)error};
    (void)snprintf(r.text, sizeof r.text, "%s", text);
    if (c->done)
        c->done(c->arg, &r, -1);
    else if (c->listed)
        c->listed(c->arg, NULL, 0, &r);
    layersc_free_call(c);
}

static void layersc_on_failed(void *arg, struct caller_call *call)
{
    (void)arg;
    enum caller_why why = call->why;
    layersc_fail_call((struct call *)call, why == CALLER_SPENT ? LAYERS_FAILED : LAYERS_BUSY,
                      why == CALLER_SPENT  ? "the store restarted while it worked on this request"
                      : why == CALLER_FULL ? "too many requests wait for the store"
                                           : "the store does not answer");
}

/* Counts what is under way. */
static void layersc_on_marked(void *arg, struct caller_call *call)
{
    struct layersc *s = arg;
    struct call *c = (struct call *)call;
    enum kind kind = layersc_kind_of(c->type);
    s->nsent += call->sent ? 1 : (size_t)-1;
    if (kind != SHORT)
        s->nlong[kind] += call->sent ? 1 : (size_t)-1;
    if (call->sent)
        c->nitems = 0;
}

/* A cancelled job died with the layer store, and a pipe's bytes are gone. */
static bool layersc_may_repeat(void *arg, const struct caller_call *call)
{
    const struct call *c = (const struct call *)call;
    (void)arg;
    return c->type != LAYERS_CANCEL && (c->fd < 0 || c->at >= 0);
}

/* Limits what is under way in all and per tenant, so that a tenant with many requests does not delay the others. */
static bool layersc_must_wait(const struct layersc *s, const struct call *c)
{
    enum kind kind = layersc_kind_of(c->type);
    if (s->nsent >= SENT_MAX && c->type != LAYERS_CANCEL)
        return true;
    if (kind != SHORT && s->nlong[kind] >= HEAVY_SENT_MAX)
        return true;
    if (!c->owner[0])
        return false;
    size_t n = 0, most = kind == TRANSFER ? 1 : OWNER_SENT_MAX;
    for (const struct call *o = layersc_first_call(s); o && n < most; o = layersc_next_call(o))
        n += o->call.sent && (layersc_kind_of(o->type) == TRANSFER) == (kind == TRANSFER) &&
             strcmp(o->owner, c->owner) == 0;
    return n >= most;
}

static bool layersc_may_send(void *arg, const struct caller_call *call)
{
    const struct call *c = (const struct call *)call;
    if (layersc_must_wait(arg, c))
        return false;
    /* An earlier job may have moved the file position, which it shares with us: restore it. */
    if (c->fd >= 0 && c->at >= 0)
        (void)lseek(c->fd, c->at, SEEK_SET);
    return true;
}

/* --- answers ------------------------------------------------------------------------------------------------------ */

static void layersc_on_reply(struct layersc *s, struct layers_reply *r, int fd)
{
    r->text[sizeof r->text - 1] = r->layer[sizeof r->layer - 1] = '\0';
    if (r->type == LAYERS_PROGRESS) {
        struct call *c = layersc_find_call(s, r->request);
        if (c && c->progress)
            c->progress(c->arg, r);
        if (fd >= 0)
            (void)close(fd);
        return;
    }
    struct call *c = layersc_take_call(s, r->request);
    if (c && c->done) {
        c->done(c->arg, r, fd);
        layersc_free_call(c);
        return;
    }
    if (fd >= 0) /* the call was cancelled, or takes no descriptor */
        (void)close(fd);
    if (c && c->listed)
        c->listed(c->arg, NULL, 0, r);
    if (c)
        layersc_free_call(c);
}

static bool layersc_on_items(struct layersc *s, const struct layers_items *m)
{
    struct call *c = layersc_find_call(s, m->request);
    if (m->n > LAYERS_LIST_MAX)
        return false;
    if (!c || !c->listed)
        return true;
    if (c->nitems + m->n > LISTED_MAX)
        return false;
    c->items = xreallocarray(c->items, c->nitems + m->n + 1, sizeof *c->items);
    memcpy(c->items + c->nitems, m->item, m->n * sizeof *m->item);
    for (size_t i = c->nitems; i < c->nitems + m->n; i++)
        c->items[i].id[STACK_ID_MAX - 1] = '\0';
    c->nitems += m->n;
    if (m->more)
        return true;
    c = layersc_take_call(s, c->call.request);
    c->listed(c->arg, c->items, c->nitems, NULL);
    layersc_free_call(c);
    return true;
}

static bool layersc_on_message(void *arg, struct channel_message *m)
{
    static union {
        struct layers_reply reply;
        struct layers_items items;
    } in;
    if (m->n > sizeof in)
        return false;
    memcpy(&in, m->p, m->n);
    bool reply = m->n == sizeof in.reply && (in.reply.type == LAYERS_REPLY || in.reply.type == LAYERS_PROGRESS);
    bool items = m->n == sizeof in.items && in.items.type == LAYERS_ITEMS;
    if (reply && in.reply.version != LAYERS_VERSION) {
        in.reply.text[sizeof in.reply.text - 1] = '\0';
        log_text(LOG_LEVEL_ERROR, "the layer store speaks version %u, front %d; start the node again (%s)",
                 in.reply.version, LAYERS_VERSION, in.reply.text);
    }
    if ((!reply && !items) || in.reply.version != LAYERS_VERSION)
        return false;
    if (items)
        return layersc_on_items(arg, &in.items);
    layersc_on_reply(arg, &in.reply, m->nfds ? TAKE_FD(m->fds[0]) : -1);
    return true;
}

static void layersc_on_up(void *arg)
{
    struct layersc *s = arg;
    if (s->up)
        s->up(s->arg);
}

static const struct caller_spec layersc_spec = {
    .socket = LAYERS_SOCKET,
    .limits = {.message_max = CHANNEL_PACKET_MAX, .queue_max = 1 << 20, .fds_max = 1},
    .calls_max = CALLS_MAX,
    .away_ms = DOWN_MS,
    .ops = {.up = layersc_on_up,
            .message = layersc_on_message,
            .failed = layersc_on_failed,
            .may_send = layersc_may_send,
            .may_repeat = layersc_may_repeat,
            .marked = layersc_on_marked},
};

/* --- for callers -------------------------------------------------------------------------------------------------- */

int layersc_new(struct loop *l, int run_dir, void (*up)(void *arg), void *arg, struct layersc **ret, struct err *err)
{
    (void)err;
    struct layersc *s = xcalloc(1, sizeof *s);
    *s = (struct layersc){.up = up, .arg = arg};
    s->caller = caller_new(l, &layersc_spec, run_dir, s);
    *ret = s;
    return 0;
}

void layersc_free(struct layersc *s)
{
    if (!s)
        return;
    for (struct caller_call *c; (c = caller_first(s->caller));)
        layersc_free_call(layersc_take_call(s, c->request));
    caller_free(s->caller);
    free(s);
}

bool layersc_is_up(const struct layersc *s) { return caller_is_up(s->caller); }

static struct call *layersc_new_call(struct layersc *s, const struct layers_head *m, size_t size, int fd)
{
    struct call *c = xcalloc(1, sizeof *c + size);
    c->type = m->type;
    c->fd = fd;
    c->at = fd >= 0 ? lseek(fd, 0, SEEK_CUR) : 0;
    memcpy(c->m, m, size);
    c->m->version = LAYERS_VERSION;
    c->m->request = caller_number(s->caller);
    c->call =
        (struct caller_call){.message = c->m, .size = size, .fds = &c->fd, .nfds = fd >= 0, .request = c->m->request};
    return c;
}

static bool layersc_is_full(const struct layersc *s, const struct call *c)
{
    size_t own = 0;
    bool roomy = caller_count(s->caller) < CALLS_MAX / 2 || !c->owner[0];
    for (const struct call *o = roomy ? NULL : layersc_first_call(s); o; o = layersc_next_call(o))
        own += strcmp(o->owner, c->owner) == 0;
    return own >= OWNER_CALLS_MAX;
}

static layersc_call layersc_add_call(struct layersc *s, struct call *c)
{
    if (layersc_is_full(s, c))
        caller_refuse(s->caller, &c->call, CALLER_FULL);
    caller_add(s->caller, &c->call);
    return c->call.request;
}

layersc_call layersc_ask(struct layersc *s, const struct layersc_to *to, const struct layers_head *m, size_t size,
                         int fd)
{
    struct call *c = layersc_new_call(s, m, size, fd);
    c->m->trace = to->trace;
    (void)snprintf(c->owner, sizeof c->owner, "%s", to->owner ? to->owner : "");
    c->progress = to->progress;
    c->done = to->done;
    c->arg = to->arg;
    return layersc_add_call(s, c);
}

size_t layersc_waiting(const struct layersc *s, const char *owner)
{
    size_t n = 0;
    for (const struct call *c = layersc_first_call(s); c; c = layersc_next_call(c))
        n += !c->call.sent && layersc_kind_of(c->type) != TRANSFER && strcmp(c->owner, owner) == 0;
    return n;
}

void layersc_cancel(struct layersc *s, layersc_call request)
{
    struct call *c = request ? layersc_find_call(s, request) : NULL;
    if (!c)
        return;
    bool sent = c->call.sent;
    layersc_free_call(layersc_take_call(s, request));
    if (!sent)
        return;
    struct layers_cancel q = {.head = {.type = LAYERS_CANCEL}, .cancel = request};
    (void)layersc_add_call(s, layersc_new_call(s, &q.head, sizeof q, -1));
}

void layersc_list(struct layersc *s, layersc_listed *done, void *arg)
{
    struct layers_simple q = {.head = {.type = LAYERS_LIST}};
    struct call *c = layersc_new_call(s, &q.head, sizeof q, -1);
    c->listed = done;
    c->arg = arg;
    (void)layersc_add_call(s, c);
}
