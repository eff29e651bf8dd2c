/* link-call.c - calls: their slots, deadlines and messages, and the queue in front of the socket. */
#include <errno.h>
#include <fcntl.h>
#include <linux/memfd.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "base/mem.h"
#include "peers/link-conn.h"

enum { WORKING_MAX = 32 /* helpers inside at once; further requests are held here */, QUEUE_MAX = 4096 };
enum { STREAM_QUEUE_MAX = 16 << 20 }; /* bytes after which a stream takes no further requests */
/* Files being written at once; fewer than init allows, because its helpers end a little later than the sinks here. */
enum { SINKS_MAX = INIT_RECEIVERS_MAX - 16 };

static struct call *link_slot_new(struct links *ls)
{
    size_t at = ls->free_hint;
    while (at < ls->nslots && ls->slots[at].call)
        at++;
    if (at == ls->nslots) {
        MEM_GROW(ls->slots, ls->nslots, ls->cap_slots);
        ls->slots[ls->nslots++] = (struct slot){0};
    }
    ls->free_hint = at + 1;
    struct call *c = xcalloc(1, sizeof *c);
    ls->slots[at].call = c;
    c->ls = ls;
    c->id = (uint64_t)++ls->slots[at].gen << 32 | (at + 1);
    return c;
}

struct call *link_call_get(const struct links *ls, uint64_t id)
{
    size_t at = (size_t)(id & 0xffffffff);
    if (at == 0 || at > ls->nslots)
        return NULL;
    struct call *c = ls->slots[at - 1].call;
    return c && c->id == id ? c : NULL;
}

static void link_release_held(struct link *l);

void link_call_stop_working(struct call *c)
{
    if (c->working && c->link) {
        c->link->working--;
        c->working = false;
        link_release_held(c->link);
    }
}

/* Removes the call from its link, if it has one. */
static void link_call_leave_link(struct call *c)
{
    struct link *l = c->link;
    if (!l)
        return;
    link_call_stop_working(c);
    if (c->sinking) {
        c->sinking = false;
        l->sinks--;
        link_release_held(l);
    }
    for (struct out *o = l->held.first; o; o = o->next)
        if (o->call == c)
            o->call = NULL; /* link_release_held() frees it */
    if (c->prev)
        c->prev->next = c->next;
    else
        l->calls = c->next;
    if (c->next)
        c->next->prev = c->prev;
    c->prev = c->next = NULL;
    if (!c->zombie && --l->live == 0)
        link_idle_later(l);
    c->link = NULL;
}

void link_call_free(struct call *c)
{
    struct links *ls = c->ls;
    size_t at = (size_t)(c->id & 0xffffffff) - 1;
    link_call_leave_link(c);
    loop_timer_del(ls->loop, c->timer);
    link_take_free(c->take);
    ls->slots[at].call = NULL;
    if (at < ls->free_hint)
        ls->free_hint = at;
    free(c->owned);
    free(c);
}

void link_call_fail(struct call *c, const struct link_status *st)
{
    struct link_status copy = *st;
    link_call_leave_link(c);
    if (c->in_message) { /* link_give_message() reports it when the callback has returned */
        c->lost = true;
        c->st = copy;
        return;
    }
    if (!c->zombie) {
        c->zombie = true;
        c->failed(c, &copy);
    }
    link_call_free(c);
}

void link_call_make_zombie(struct call *c)
{
    if (c->zombie)
        return;
    c->zombie = true;
    loop_timer_del(c->ls->loop, c->timer);
    c->timer = 0;
    if (!c->link) {
        link_call_free(c);
        return;
    }
    if (--c->link->live == 0)
        link_idle_later(c->link);
    if (c->take) /* init has answered: nothing more comes */
        link_call_free(c);
}

static void link_call_on_deadline(void *arg)
{
    struct call *c = arg;
    struct link_status st;
    c->timer = 0;
    if (!c->link) {
        link_call_fail(c, &c->st);
        return;
    }
    link_status_set(&st, LINK_TIMEOUT, "the sandbox did not answer in time");
    uint16_t closing = c->type == INIT_WATCH ? INIT_UNWATCH : INIT_DETACH;
    bool stream = c->stream;
    call_failed *failed = c->failed;
    struct call copy = *c; /* for `failed`; its id can no longer be cancelled */
    if (stream)
        link_call_drop(c, closing, NULL, NULL);
    else
        link_call_make_zombie(c);
    copy.zombie = true;
    failed(&copy, &st);
}

static uint64_t link_call_time_limit(const struct call *c)
{
    if (c->rooted)
        return LINK_ROOTED_MS;
    switch (c->type) {
    case INIT_OPEN:
    case INIT_CREATE: /* may have to wait for other files */
    case INIT_LIST_DIR:
    case INIT_REMOVE:
    case INIT_MOVE:
    case INIT_COMPOSE:
        return 65000;
    case INIT_INPUT: /* the process may read whenever it likes */
        return 0;
    case INIT_HELLO:
        return 2000;
    case INIT_DIAL:
        return 10000;
    default:
        return 15000;
    }
}

static void link_call_start_timer(struct call *c)
{
    uint64_t ms = link_call_time_limit(c);
    loop_timer_del(c->ls->loop, c->timer);
    c->timer = ms ? loop_timer(c->ls->loop, ms, link_call_on_deadline, c) : 0;
}

/* --- sending ------------------------------------------------------------------------------------------------------ */

const struct channel_limits link_packet_limits = {
    .kind = CHANNEL_PACKET, .message_max = INIT_MSG_MAX, .queue_max = (size_t)QUEUE_MAX * INIT_MSG_MAX, .fds_max = 3};
const struct channel_limits link_stream_limits = {.kind = CHANNEL_STREAM,
                                                  .message_max = sizeof(struct init_head) + INIT_BIG_MAX,
                                                  .queue_max = (size_t)QUEUE_MAX * INIT_MSG_MAX};

static void out_message_free(struct out *o)
{
    if (o->fd >= 0)
        (void)close(o->fd);
    free(o);
}

static void link_watch(struct link *l)
{
    bool want = channel_waits(&l->channel);
    if (l->channel.fd >= 0 && want != l->out_asked) {
        l->out_asked = want;
        loop_fd_set(l->ls->loop, l->watch, LOOP_IN | (want ? LOOP_OUT : 0U));
    }
}

void link_flush(struct link *l)
{
    if (!l->doomed && channel_flush(&l->channel) < 0)
        link_drop_later(l, LINK_GONE, "the sandbox is gone");
    link_watch(l);
}

static void queue_add(struct queue *q, struct out *o)
{
    if (!q->first)
        q->last = &q->first;
    *q->last = o;
    q->last = &o->next;
    q->n++;
}

/* A stream takes the body of any length behind its head, where it still is. */
static void out_message_unfold(struct out *o)
{
    struct init_head h;
    if (o->fd < 0)
        return;
    (void)close(TAKE_FD(o->fd));
    memcpy(&h, o->bytes, sizeof h);
    h.flags = 0;
    memcpy(o->bytes, &h, sizeof h);
    o->n = sizeof h + h.length;
}

/* Takes the message. */
static void link_send(struct link *l, struct out *o)
{
    if (!l->doomed && l->channel.fd < 0) {
        queue_add(&l->early, o);
        return;
    }
    if (link_is_stream(l))
        out_message_unfold(o);
    if (!l->doomed && channel_send(&l->channel, o->bytes, o->n, &o->fd, o->fd >= 0) < 0)
        link_drop_later(l, LINK_GONE, "the sandbox is gone");
    out_message_free(o);
    link_watch(l);
}

void link_send_early(struct link *l)
{
    struct out *o = l->early.first;
    l->early = (struct queue){0};
    for (struct out *next; o; o = next) {
        next = o->next;
        o->next = NULL;
        link_send(l, o);
    }
}

static bool link_may_send(const struct link *l, uint16_t type)
{
    return l->working < WORKING_MAX && (type != INIT_CREATE || l->sinks < SINKS_MAX);
}

static void link_count_work(struct link *l, struct call *c, uint16_t type)
{
    c->working = true;
    l->working++;
    if (type == INIT_CREATE) {
        c->sinking = true;
        l->sinks++;
    }
}

/* Sends held requests in order; an INIT_CREATE that must wait holds up no others. */
static void link_release_held(struct link *l)
{
    for (struct out **at = &l->held.first, *o; (o = *at) && l->working < WORKING_MAX;) {
        struct call *c = o->call;
        bool wanted = c && !c->zombie;
        if (wanted && !link_may_send(l, c->type)) {
            at = &o->next;
            continue;
        }
        *at = o->next;
        if (!o->next)
            l->held.last = at;
        l->held.n--;
        if (!wanted) { /* cancelled before it was sent */
            out_message_free(o);
            if (c)
                link_call_free(c);
            continue;
        }
        o->call = NULL;
        link_count_work(l, c, c->type);
        link_call_start_timer(c);
        link_send(l, o);
    }
}

void queue_clear(struct queue *q)
{
    for (struct out *o; (o = q->first);) {
        q->first = o->next;
        out_message_free(o);
    }
    q->n = 0;
}

static int link_call_big_body(const unsigned char *p, size_t n)
{
    _cleanup_close_ int fd = memfd_create("request", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0 || fd_write_all(fd, p, n) < 0)
        return -1;
    (void)fcntl(fd, F_ADD_SEALS, F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_WRITE | F_SEAL_SEAL);
    return TAKE_FD(fd);
}

static struct out *link_call_build_message(uint16_t type, uint64_t request, call_put *put, const void *arg)
{
    struct wire_out o = {0};
    struct init_head h = {.version = INIT_VERSION, .type = type, .request = request};
    if (put)
        put(&o, arg);
    if (o.n > INIT_BIG_MAX || o.bad)
        return NULL;
    bool big = o.n > INIT_MSG_MAX - sizeof h;
    size_t n = o.n;
    h.length = (uint32_t)n;
    h.flags = big ? INIT_F_MEMFD : 0;
    struct out *m = xmalloc(sizeof *m + sizeof h + n);
    *m = (struct out){.fd = -1, .n = sizeof h + (big ? 0 : n)};
    memcpy(m->bytes, &h, sizeof h);
    o = (struct wire_out){.p = m->bytes + sizeof h, .cap = n};
    if (put)
        put(&o, arg);
    if (big) {
        m->fd = link_call_big_body(m->bytes + sizeof h, n);
        if (m->fd < 0) {
            free(m);
            return NULL;
        }
    }
    return m;
}

static bool link_call_is_work(uint16_t type)
{
    return type == INIT_SET || (type >= INIT_OPEN && type <= INIT_DIAL && type != INIT_WATCH && type != INIT_UNWATCH);
}

static void link_call_send(struct link *l, struct call *c, uint16_t type, struct out *m)
{
    /* While there is room for helpers, only INIT_CREATE can be held. */
    if (link_call_is_work(type) && (!link_may_send(l, type) || (type == INIT_CREATE && l->held.first))) {
        m->call = c;
        queue_add(&l->held, m);
        return;
    }
    if (link_call_is_work(type))
        link_count_work(l, c, type);
    link_send(l, m);
}

static bool link_id_is_valid(const char *id)
{
    size_t n = strlen(id);
    return n >= 1 && n <= SANDBOX_ID_MAX &&
           strspn(id, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_") == n;
}

/* --- for exec.c, files.c, watch.c --------------------------------------------------------------------------------- */

static struct call *link_call_fail_soon(struct call *c, enum link_code code, const char *text)
{
    link_status_set(&c->st, code, "%s", text);
    c->timer = loop_timer(c->ls->loop, 0, link_call_on_deadline, c);
    return c;
}

/* Whether messages follow the answer. */
static bool link_call_streams(uint16_t type)
{
    return type == INIT_SPAWN || type == INIT_SPAWN_RIGHTS || type == INIT_SPAWN_LIMITED || type == INIT_ATTACH ||
           type == INIT_WATCH;
}

struct call *link_call_new(struct links *ls, const char *id, uint16_t type, call_put *put, const void *arg)
{
    struct call *c = link_slot_new(ls);
    c->type = type;
    c->stream = link_call_streams(type);
    if (!link_id_is_valid(id))
        return link_call_fail_soon(c, LINK_GONE, "this is not the id of a sandbox");
    struct out *m = link_call_build_message(type, c->id, put, arg);
    if (!m)
        return link_call_fail_soon(c, LINK_LIMIT, "the request is longer than 2 MiB");
    struct link *l = link_for(ls, id);
    size_t waiting = l->channel.npackets + l->early.n + l->held.n;
    if (waiting >= QUEUE_MAX || (link_is_stream(l) && channel_queued(&l->channel) >= STREAM_QUEUE_MAX)) {
        out_message_free(m);
        return link_call_fail_soon(c, LINK_LIMIT, "too many requests wait for this sandbox");
    }
    c->link = l;
    c->next = l->calls;
    if (c->next)
        c->next->prev = c;
    l->calls = c;
    l->live++;
    link_call_start_timer(c);
    link_call_send(l, c, type, m);
    return c;
}

void link_call_set_rooted(struct call *c)
{
    c->rooted = true;
    if (c->link)
        link_call_start_timer(c);
}

struct call *link_call_refused(struct links *ls, uint16_t type, enum link_code code, const char *text)
{
    struct call *c = link_slot_new(ls);
    c->type = type;
    c->stream = link_call_streams(type);
    return link_call_fail_soon(c, code, text);
}

bool link_call_is_stream(const struct call *c) { return c->link && link_is_stream(c->link); }

void link_call_end(struct call *c) { link_call_free(c); }

void link_call_again(struct call *c, uint16_t type, call_put *put, const void *arg)
{
    struct out *m = c->link ? link_call_build_message(type, c->id, put, arg) : NULL;
    if (!m)
        return;
    link_call_start_timer(c);
    link_call_send(c->link, c, type, m);
}

void link_call_note(struct call *c, uint16_t type, call_put *put, const void *arg)
{
    struct out *m = c->link && !c->link->dead ? link_call_build_message(type, c->id, put, arg) : NULL;
    if (!m)
        return;
    link_send(c->link, m);
}

void link_call_drop(struct call *c, uint16_t closing, call_put *put, const void *arg)
{
    if (c->zombie)
        return;
    if (c->stream && c->link && !c->ls->leaving)
        link_call_note(c, closing, put, arg);
    link_call_make_zombie(c);
}
