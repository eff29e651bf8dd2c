/* link-take.c - exchanges tickets: over a byte stream an answer cannot bring a descriptor, so it brings a ticket, and a
 * connection of its own becomes what the ticket stands for. The call gets its answer when that is there, within its own time
 * limit; the other end is as little trusted as any init. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/mem.h"
#include "peers/link-conn.h"

enum { TAKE_RETRY_MS = 20 };

struct take {
    struct call *call;
    int fd; /* -1: not connected yet */
    loop_id watch, timer;
    struct init_head head; /* of the answer */
    unsigned char *body;   /* of it, without the ticket; or the memory that the ticket stands for */
    size_t nbody, got;     /* got: bytes of that memory that have come */
    struct init_ticket ticket;
    bool taken; /* raw bytes follow */
    size_t nanswer;
    unsigned char answer[FRAME_HEAD + sizeof(struct init_head) + INIT_TEXT_MAX + 16];
};

void link_take_free(struct take *t)
{
    if (!t)
        return;
    struct loop *loop = links_loop(t->call->ls);
    loop_fd_del(loop, t->watch);
    loop_timer_del(loop, t->timer);
    if (t->fd >= 0)
        (void)close(t->fd);
    t->call->take = NULL;
    free(t->body);
    free(t);
}

static void take_fail(struct take *t, enum link_code code, const char *text)
{
    struct link_status st;
    struct call *c = t->call;
    link_status_set(&st, code, "%s", text);
    link_take_free(t);
    link_call_fail(c, &st);
}

/* The call gets its answer. */
static void take_finish(struct take *t)
{
    struct call *c = t->call;
    struct link *l = c->link;
    bool memory = t->ticket.kind == INIT_TICKET_MEMORY;
    _cleanup_free_ unsigned char *body = t->body;
    struct init_head h = t->head;
    int fds[1] = {memory ? -1 : t->fd};
    struct link_msg m = {.type = INIT_REPLY,
                         .in = {.p = body, .n = t->nbody},
                         .fds = fds,
                         .nfds = memory ? 0 : 1,
                         .relay = memory ? 0 : t->ticket.kind};
    loop_fd_del(links_loop(c->ls), t->watch);
    t->watch = 0;
    t->body = NULL;
    if (!memory)
        t->fd = -1;
    link_take_free(t);
    link_give_taken(l, &h, &m);
    if (fds[0] >= 0)
        (void)close(fds[0]);
}

/* Reads as much as belongs to the answer, and not a byte behind it. 1: it is complete, 0: not yet, -1: it is none. */
static int take_read_answer(struct take *t)
{
    size_t want = FRAME_HEAD;
    for (;;) {
        if (t->nanswer >= FRAME_HEAD) {
            const unsigned char *p = t->answer;
            want = FRAME_HEAD + ((size_t)p[0] | (size_t)p[1] << 8 | (size_t)p[2] << 16 | (size_t)p[3] << 24);
        }
        if (want > sizeof t->answer)
            return -1;
        if (t->nanswer == want && want > FRAME_HEAD)
            return 1;
        ssize_t n = recv(t->fd, t->answer + t->nanswer, want - t->nanswer, MSG_DONTWAIT);
        if (n < 0 && (errno == EAGAIN || errno == EINTR))
            return 0;
        if (n <= 0)
            return -1;
        t->nanswer += (size_t)n;
    }
}

/* False: the take has ended. */
static bool take_check_answer(struct take *t)
{
    struct init_head h;
    struct link_status st;
    struct wire_in in = {.p = t->answer + FRAME_HEAD + sizeof h, .n = t->nanswer - FRAME_HEAD - sizeof h};
    if (t->nanswer >= FRAME_HEAD + sizeof h) {
        memcpy(&h, t->answer + FRAME_HEAD, sizeof h);
        if (h.version == INIT_VERSION && h.type == INIT_REPLY && h.request == t->head.request && h.flags == 0 &&
            h.zero == 0 && h.length == in.n && link_call_status(&in, &st) && wire_done(&in)) {
            t->taken = st.code == LINK_OK;
            if (!t->taken)
                take_fail(t, st.code, st.text);
            return t->taken;
        }
    }
    take_fail(t, LINK_BROKEN, "the sandbox's init sent a malformed message");
    return false;
}

static void take_read_memory(struct take *t)
{
    while (t->got < t->nbody) {
        ssize_t n = recv(t->fd, t->body + t->got, t->nbody - t->got, MSG_DONTWAIT);
        if (n < 0 && (errno == EAGAIN || errno == EINTR))
            return;
        if (n <= 0) {
            take_fail(t, LINK_IO, "the answer of the sandbox was cut off");
            return;
        }
        t->got += (size_t)n;
    }
    take_finish(t);
}

static void take_on_event(void *arg, int fd, unsigned events)
{
    struct take *t = arg;
    (void)fd;
    (void)events;
    if (!t->taken) {
        int r = take_read_answer(t);
        if (r == 0)
            return;
        if (r < 0) {
            take_fail(t, LINK_GONE, "the sandbox is gone");
            return;
        }
        if (!take_check_answer(t))
            return;
    }
    if (t->ticket.kind == INIT_TICKET_MEMORY)
        take_read_memory(t);
    else
        take_finish(t);
}

static void take_connect(void *arg)
{
    struct take *t = arg;
    struct loop *loop = links_loop(t->call->ls);
    char name[SANDBOX_ID_MAX + sizeof ".sock"];
    struct init_head h = {
        .version = INIT_VERSION, .type = INIT_TAKE, .request = t->head.request, .length = INIT_SECRET_BYTES};
    unsigned char msg[FRAME_HEAD + sizeof h + INIT_SECRET_BYTES];
    t->timer = 0;
    (void)snprintf(name, sizeof name, "%s.sock", t->call->link->id);
    t->fd = channel_dial(t->call->ls->run_dir, name, CHANNEL_STREAM);
    if (t->fd < 0 && errno == EAGAIN) { /* until the call's own time is over */
        t->timer = loop_timer(loop, TAKE_RETRY_MS, take_connect, t);
        return;
    }
    frame_put_head(msg, sizeof msg - FRAME_HEAD);
    memcpy(msg + FRAME_HEAD, &h, sizeof h);
    memcpy(msg + FRAME_HEAD + sizeof h, t->ticket.secret, INIT_SECRET_BYTES);
    if (t->fd >= 0 && send(t->fd, msg, sizeof msg, MSG_NOSIGNAL) == (ssize_t)sizeof msg)
        t->watch = loop_fd_add(loop, t->fd, LOOP_IN, take_on_event, t);
    if (!t->watch)
        take_fail(t, LINK_GONE, "the sandbox cannot be connected to");
}

/* Whether a call of this type can be answered by such a ticket. */
static bool take_kind_ok(const struct call *c, const struct init_head *h, const struct init_ticket *t)
{
    bool memory = t->kind == INIT_TICKET_MEMORY;
    if (t->zero != 0 || memory != (t->size != 0) || t->size > INIT_BIG_REPLY || memory != !!(h->flags & INIT_F_MEMFD))
        return false;
    if (c->type == INIT_LIST || c->type == INIT_LIST_DIR)
        return memory;
    if (c->type == INIT_CREATE || c->type == INIT_DIAL)
        return t->kind == INIT_TICKET_SOCKET;
    return c->type == INIT_OPEN && (t->kind == INIT_TICKET_FILE || t->kind == INIT_TICKET_PIPE);
}

bool link_take_begin(struct link *l, struct call *c, const struct init_head *h, const unsigned char *p, size_t n)
{
    struct init_ticket ticket;
    if (n < sizeof ticket)
        return false;
    n -= sizeof ticket;
    memcpy(&ticket, p + n, sizeof ticket);
    if (!take_kind_ok(c, h, &ticket) || (ticket.kind == INIT_TICKET_MEMORY && n != 0))
        return false;
    struct take *t = xcalloc(1, sizeof *t);
    *t = (struct take){.call = c, .fd = -1, .head = *h, .ticket = ticket};
    t->nbody = ticket.kind == INIT_TICKET_MEMORY ? (size_t)ticket.size : n;
    t->body = xmalloc(t->nbody ? t->nbody : 1);
    if (ticket.kind != INIT_TICKET_MEMORY)
        memcpy(t->body, p, n);
    c->take = t;
    /* From the loop: a failure must not end the call inside the link's own event. */
    t->timer = loop_timer(l->ls->loop, 0, take_connect, t);
    return true;
}
