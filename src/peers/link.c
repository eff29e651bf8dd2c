#include "peers/link.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/mem.h"
#include "peers/link-conn.h"

enum {
    CONNECT_MS = 1000,
    CONNECT_RETRY_MS = 20,
    IDLE_MS = 5000,
    ROUND_MAX = 64, /* messages of one sandbox before another has its turn */
};

_Static_assert((int)LINK_IO == (int)INIT_IO && (int)LINK_STATE == (int)INIT_STATE && (int)LINK_LIMIT == (int)INIT_LIMIT,
               "codes of init and of links are the same numbers");

void link_status_set(struct link_status *st, enum link_code code, const char *fmt, ...)
{
    va_list ap;
    st->code = code;
    va_start(ap, fmt);
    (void)vsnprintf(st->text, sizeof st->text, fmt, ap);
    va_end(ap);
}

static void link_free(struct link *l)
{
    if (l->busy > 0)
        return; /* its event handler frees it later */
    loop_timer_del(l->ls->loop, l->timer);
    channel_close(&l->channel);
    loop_timer_del(l->ls->loop, l->turn);
    queue_clear(&l->held);
    queue_clear(&l->early);
    free(l);
}

static void link_drop(struct link *l, const struct link_status *st)
{
    struct links *ls = l->ls;
    struct link_status copy = *st;
    if (l->dead)
        return;
    l->dead = true;
    l->busy++;
    (void)map_del(&ls->map, l->id); /* a new call from a callback gets a new link */
    if (l->channel.fd >= 0)
        loop_fd_del(ls->loop, l->watch);
    channel_close(&l->channel);
    while (l->calls)
        link_call_fail(l->calls, &copy);
    l->busy--;
    link_free(l);
}

static void link_on_idle(void *arg)
{
    struct link *l = arg;
    struct link_status st;
    l->timer = 0;
    link_status_set(&st, LINK_GONE, "the link was idle");
    if (l->live == 0)
        link_drop(l, &st);
}

static void link_on_drop_later(void *arg)
{
    struct link *l = arg;
    l->timer = 0;
    link_drop(l, &l->why);
}

void link_drop_later(struct link *l, enum link_code code, const char *text)
{
    link_status_set(&l->why, code, "%s", text);
    l->doomed = true;
    loop_timer_del(l->ls->loop, l->timer);
    l->timer = loop_timer(l->ls->loop, 0, link_on_drop_later, l);
}

void link_idle_later(struct link *l)
{
    if (l->dead || l->doomed || l->channel.fd < 0)
        return;
    loop_timer_del(l->ls->loop, l->timer);
    l->timer = loop_timer(l->ls->loop, IDLE_MS, link_on_idle, l);
}

static bool link_fd_has_seals(int fd)
{
    int seals = fcntl(fd, F_GET_SEALS);
    return seals >= 0 && (seals & (F_SEAL_GROW | F_SEAL_SHRINK)) == (F_SEAL_GROW | F_SEAL_SHRINK);
}

bool link_fd_is_memory(int fd, uint64_t size)
{
    struct stat st;
    return link_fd_has_seals(fd) && fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && (uint64_t)st.st_size == size;
}

bool link_call_status(struct wire_in *in, struct link_status *ret)
{
    uint32_t code = wire_u32(in);
    const char *text = wire_str(in, INIT_TEXT_MAX - 1);
    if (in->bad || code >= INIT_CODE_MAX || code == INIT_GONE)
        return false;
    ret->code = (enum link_code)code;
    (void)snprintf(ret->text, sizeof ret->text, "%s", code == INIT_OK ? "" : text);
    for (char *p = ret->text; *p; p++)
        if ((unsigned char)*p < 0x20 || *p == 0x7f)
            *p = '?';
    return true;
}

enum call_next link_call_message_done(struct call *c, struct link_msg *m)
{
    struct link_status st;
    if (m->type != INIT_REPLY || m->nfds || !link_call_status(&m->in, &st) || !wire_done(&m->in))
        return CALL_BROKEN;
    ((link_done *)c->fn)(c->arg, &st);
    return CALL_DONE;
}

void link_call_failed_done(struct call *c, const struct link_status *st) { ((link_done *)c->fn)(c->arg, st); }

/* Gives a message to its call. False: malformed. */
static bool link_give_message(struct link *l, const struct init_head *h, struct link_msg *m)
{
    struct call *c = link_call_get(l->ls, h->request);
    uint64_t id = h->request;
    if (!c || c->link != l)
        return h->type == INIT_CLOSED; /* answers our close, which crossed the command's end */
    bool last = h->type == INIT_CLOSED || h->type == INIT_WATCH_FAILED || (h->type == INIT_REPLY && !c->stream);
    if (h->type == INIT_CLOSED && !(c->stream && c->zombie))
        return false;
    if (c->zombie) {
        if (last)
            link_call_free(c);
        return true;
    }
    if (h->type == INIT_REPLY) {
        link_call_stop_working(c);
        loop_timer_del(l->ls->loop, c->timer);
        c->timer = 0;
    }
    c->in_message = true;
    enum call_next next = c->message(c, m);
    c = link_call_get(l->ls, id); /* the callback may have dropped it */
    if (c)
        c->in_message = false;
    if (c && next == CALL_DONE)
        link_call_free(c);
    else if (c && c->lost) /* its link was dropped meanwhile */
        link_call_fail(c, &c->st);
    return next != CALL_BROKEN;
}

static bool link_give_big(struct link *l, const struct init_head *h, struct link_msg *m)
{
    struct call *c = link_call_get(l->ls, h->request);
    if (!c || (c->type != INIT_LIST && c->type != INIT_LIST_DIR) || h->type != INIT_REPLY || h->length == 0 ||
        h->length > INIT_BIG_REPLY || !link_fd_is_memory(m->fds[0], h->length))
        return false;
    _cleanup_free_ unsigned char *p = xmalloc(h->length);
    size_t got = 0;
    while (got < h->length) {
        ssize_t r = pread(m->fds[0], p + got, h->length - got, (off_t)got);
        if (r <= 0)
            return false;
        got += (size_t)r;
    }
    (void)close(TAKE_FD(m->fds[0]));
    m->nfds = 0;
    m->in = (struct wire_in){.p = p, .n = h->length};
    return link_give_message(l, h, m);
}

/* An answer with a ticket waits for what that stands for. False: malformed. */
static bool link_give_ticket(struct link *l, const struct init_head *h, const unsigned char *p, size_t n)
{
    struct call *c = link_call_get(l->ls, h->request);
    if (!c || c->link != l || c->take || c->stream || h->type != INIT_REPLY || !(h->flags & INIT_F_TICKET))
        return false;
    if (!c->zombie)
        return link_take_begin(l, c, h, p, n);
    link_call_free(c);
    return true;
}

static bool link_handle_message(struct link *l, const unsigned char *p, size_t n, struct link_msg *m)
{
    struct init_head h;
    if (n < sizeof h)
        return false;
    memcpy(&h, p, sizeof h);
    uint32_t known = link_is_stream(l) ? INIT_F_MEMFD | INIT_F_TICKET : INIT_F_MEMFD;
    if (h.version != INIT_VERSION || h.zero != 0 || (h.flags & ~known) || h.type < INIT_REPLY)
        return false;
    m->type = h.type;
    if (link_is_stream(l) && h.flags)
        return h.length == n - sizeof h && link_give_ticket(l, &h, p + sizeof h, n - sizeof h);
    if (h.flags & INIT_F_MEMFD)
        return m->nfds == 1 && n == sizeof h && link_give_big(l, &h, m);
    if (h.length != n - sizeof h)
        return false;
    m->in = (struct wire_in){.p = p + sizeof h, .n = n - sizeof h};
    return link_give_message(l, &h, m);
}

/* Receives one message. False: no more now. */
static bool link_receive(struct link *l)
{
    struct channel_message in;
    struct link_status st;
    enum channel_got got = channel_recv(&l->channel, &in);
    if (got == CHANNEL_NONE)
        return false;
    if (got == CHANNEL_ENDED) {
        link_status_set(&st, LINK_GONE, "the sandbox is gone");
        link_drop(l, &st);
        return false;
    }
    struct link_msg m = {.fds = in.fds, .nfds = in.nfds};
    bool ok = got == CHANNEL_MESSAGE && in.n <= INIT_MSG_MAX;
    if (ok && link_is_stream(l)) { /* a callback may close the channel, and with it the memory of its reader */
        static unsigned char copy[INIT_MSG_MAX];
        memcpy(copy, in.p, in.n);
        in.p = copy;
    }
    ok = ok && link_handle_message(l, in.p, in.n, &m);
    channel_message_done(&in);
    if (!ok) {
        link_status_set(&st, LINK_BROKEN, "the sandbox's init sent a malformed message");
        link_drop(l, &st);
    }
    return !l->dead;
}

static void link_on_turn(void *arg);

static void link_receive_some(struct link *l)
{
    for (int i = 0; i < ROUND_MAX && !l->dead && link_receive(l); i++)
        ;
    if (!l->dead && link_is_stream(l) && !l->turn && channel_is_ready(&l->channel))
        l->turn = loop_timer(l->ls->loop, 0, link_on_turn, l);
}

static void link_on_event(void *arg, int fd, unsigned events)
{
    struct link *l = arg;
    (void)fd;
    l->busy++;
    if (events & LOOP_OUT)
        link_flush(l);
    link_receive_some(l);
    l->busy--;
    if (l->dead)
        link_free(l);
}

static void link_on_turn(void *arg)
{
    struct link *l = arg;
    l->turn = 0;
    link_on_event(l, l->channel.fd, 0);
}

void link_give_taken(struct link *l, const struct init_head *h, struct link_msg *m)
{
    struct link_status st;
    l->busy++;
    if (!link_give_message(l, h, m)) {
        link_status_set(&st, LINK_BROKEN, "the sandbox's init sent a malformed message");
        link_drop(l, &st);
    }
    l->busy--;
    if (l->dead)
        link_free(l);
}

static void link_on_connect(void *arg)
{
    struct link *l = arg;
    struct loop *loop = l->ls->loop;
    struct link_status st;
    l->timer = 0;
    char name[sizeof l->id + sizeof ".sock"];
    (void)snprintf(name, sizeof name, "%s.sock", l->id);
    int fd = channel_dial(l->ls->run_dir, name, CHANNEL_PACKET);
    if (fd < 0 && errno == EPROTOTYPE) { /* its init speaks over byte streams */
        fd = channel_dial(l->ls->run_dir, name, CHANNEL_STREAM);
        channel_init(&l->channel, &link_stream_limits, NULL, NULL);
    }
    channel_open(&l->channel, fd);
    if (l->channel.fd < 0 && errno == EAGAIN && loop_now(loop) - l->since_ms < CONNECT_MS) {
        l->timer = loop_timer(loop, CONNECT_RETRY_MS, link_on_connect, l);
        return;
    }
    if (l->channel.fd >= 0)
        l->watch = loop_fd_add(loop, l->channel.fd, LOOP_IN, link_on_event, l);
    if (l->channel.fd < 0 || !l->watch) {
        if (errno == EAGAIN)
            link_status_set(&st, LINK_TIMEOUT, "the sandbox does not accept connections");
        else if (errno == EMFILE || errno == ENFILE)
            link_status_set(&st, LINK_LIMIT, "this node has no descriptor left for a connection to the sandbox");
        else
            link_status_set(&st, LINK_GONE, "the sandbox is gone");
        link_drop(l, &st);
        return;
    }
    link_send_early(l);
    link_flush(l);
    if (l->live == 0)
        link_idle_later(l);
}

struct link *link_for(struct links *ls, const char *id)
{
    struct link *l = map_get(&ls->map, id);
    if (l) {
        if (l->channel.fd >= 0 && l->live == 0 && !l->doomed) { /* no longer idle */
            loop_timer_del(ls->loop, l->timer);
            l->timer = 0;
        }
        return l;
    }
    l = xcalloc(1, sizeof *l);
    l->ls = ls;
    channel_init(&l->channel, &link_packet_limits, NULL, NULL);
    (void)snprintf(l->id, sizeof l->id, "%s", id);
    (void)map_put(&ls->map, l->id, l);
    l->since_ms = loop_now(ls->loop);
    l->timer = loop_timer(ls->loop, 0, link_on_connect, l);
    return l;
}

/* --- public ------------------------------------------------------------------------------------------------------- */

struct loop *links_loop(const struct links *ls) { return ls->loop; }

int links_new(struct loop *l, int run_dir, struct links **ret, struct err *err)
{
    (void)err;
    struct links *ls = xcalloc(1, sizeof *ls);
    ls->loop = l;
    ls->run_dir = run_dir;
    *ret = ls;
    return 0;
}

void links_leave(struct links *ls) { ls->leaving = true; }

void links_free(struct links *ls)
{
    size_t at = 0;
    if (!ls)
        return;
    for (size_t i = 0; i < ls->nslots; i++) {
        struct call *c = ls->slots[i].call;
        if (c && !c->link) {
            loop_timer_del(ls->loop, c->timer);
            free(c->owned);
            free(c);
            ls->slots[i].call = NULL;
        }
    }
    for (struct link *l; (l = map_next(&ls->map, &at));) {
        l->dead = true;
        if (l->channel.fd >= 0)
            loop_fd_del(ls->loop, l->watch);
        channel_close(&l->channel);
        while (l->calls)
            link_call_free(l->calls);
        link_free(l);
    }
    map_done(&ls->map);
    free(ls->slots);
    free(ls);
}

void link_cancel(struct links *ls, link_call c)
{
    struct call *call = c ? link_call_get(ls, c) : NULL;
    if (call && !call->stream)
        link_call_make_zombie(call);
}

void links_paused(struct links *ls, const char *id)
{
    struct link *l = map_get(&ls->map, id);
    struct link_status st;
    link_status_set(&st, LINK_PAUSED, "the sandbox was paused");
    if (l)
        link_drop(l, &st);
}

void links_gone(struct links *ls, const char *id)
{
    struct link *l = map_get(&ls->map, id);
    struct link_status st;
    link_status_set(&st, LINK_GONE, "the sandbox is gone");
    if (l)
        link_drop(l, &st);
}
