/* control.c - connections of keeper (SEQPACKET) and of front (STREAM): accepted, read, written. The newest
 * front is the front. */
#include "egress/control.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "base/json.h"
#include "base/log.h"
#include "base/mem.h"
#include "os/netns.h"

enum { LENGTH = 4, READ = 64 * 1024, GOODBYE_MS = 1000 };

struct keeper_conn {
    struct control *c;
    int fd; /* -1: free */
    uint64_t number;
    loop_id watch;
};

struct front_conn {
    struct control *c;
    int fd;
    loop_id watch, goodbye;
    struct buf in, out;
    size_t sent;
    bool hello, ending; /* ending: closes when everything is written */
};

struct control {
    struct egress *g;
    int keeper_fd, front_fd;
    loop_id keeper_watch, front_watch, usage;
    struct keeper_conn keepers[CONTROL_KEEPERS_MAX];
    uint64_t numbers;
    struct front_conn *front;
    char key[65];
};

/* --- keeper ------------------------------------------------------------------------------------------------------- */

bool control_id_is_valid(const char *id)
{
    size_t n = strnlen(id, EGRESS_ID_MAX);
    if (n == 0 || n == EGRESS_ID_MAX)
        return false;
    return strspn(id, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.") == n;
}

static void control_attach_sockets(struct egress *g, uint64_t connection, const struct egress_attach *a, int tcp,
                                   int udp)
{
    if (!netns_is_tcp(tcp, a->ns_cookie, a->tcp_cookie) || !netns_is_udp(udp, a->ns_cookie, a->udp_cookie)) {
        struct log_line l;
        if (log_start(&l, LOG_LEVEL_WARN,
                      "the sockets that came for a sandbox are not those of its namespace; it is not served")) {
            log_str(&l, "sandbox", a->id);
            log_end(&l);
        }
        (void)close(tcp);
        (void)close(udp);
        return;
    }
    struct esb *s = esb_get(g, a->id);
    esb_attach(s, tcp, udp);
    s->keeper = connection;
}

int control_attach(struct egress *g, uint64_t connection, const void *p, size_t n, const int *fds, size_t nfds)
{
    struct egress_attach a;
    bool whole = n == sizeof a;
    if (whole)
        memcpy(&a, p, sizeof a);
    if (whole && a.version == EGRESS_VERSION && control_id_is_valid(a.id) && a.type == EGRESS_ATTACH && nfds == 2) {
        control_attach_sockets(g, connection, &a, fds[0], fds[1]);
        return 0;
    }
    for (size_t i = 0; i < nfds; i++)
        (void)close(fds[i]);
    if (whole && a.version == EGRESS_VERSION && control_id_is_valid(a.id) && a.type == EGRESS_DETACH && nfds == 0) {
        struct esb *s = esb_find(g, a.id);
        if (s) {
            esb_detach(s);
            esb_drop_if_unused(s);
        }
        return 0;
    }
    log_text(LOG_LEVEL_WARN,
             "a message of keeper is not understood (%zu bytes, version %u, type %u, %zu descriptors); its "
             "connection is closed",
             n, whole ? a.version : 0, whole ? a.type : 0, nfds);
    return -1;
}

bool control_keeper_there(const struct egress *g, uint64_t connection)
{
    const struct control *c = g->control;
    for (size_t i = 0; c && i < CONTROL_KEEPERS_MAX; i++)
        if (c->keepers[i].fd >= 0 && c->keepers[i].number == connection)
            return true;
    return false;
}

static void keeper_end(struct keeper_conn *k)
{
    loop_fd_del(k->c->g->loop, k->watch);
    (void)close(k->fd);
    k->fd = -1;
    k->number = 0;
}

static void on_keeper(void *arg, int fd, unsigned events)
{
    struct keeper_conn *k = arg;
    (void)events;
    for (;;) {
        char bytes[sizeof(struct egress_attach) + 1];
        int fds[FD_MSG_MAX];
        size_t nfds = FD_MSG_MAX;
        ssize_t n = fd_recv(fd, bytes, sizeof bytes, fds, &nfds);
        if (n < 0 && (errno == EAGAIN || errno == EINTR))
            return;
        if (n <= 0 || control_attach(k->c->g, k->number, bytes, (size_t)n, fds, nfds) < 0) {
            keeper_end(k);
            return;
        }
    }
}

static int keeper_add(struct control *c, int fd)
{
    for (size_t i = 0; i < CONTROL_KEEPERS_MAX; i++) {
        struct keeper_conn *k = &c->keepers[i];
        if (k->fd >= 0)
            continue;
        *k = (struct keeper_conn){.c = c, .fd = fd, .number = ++c->numbers};
        k->watch = loop_fd_add(c->g->loop, fd, LOOP_IN, on_keeper, k);
        if (k->watch)
            return 0;
        k->fd = -1;
        break;
    }
    log_text(LOG_LEVEL_WARN, "too many connections of keeper");
    (void)close(fd);
    return -1;
}

static void on_keeper_listener(void *arg, int fd, unsigned events)
{
    (void)events;
    int conn = accept4(fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (conn >= 0)
        (void)keeper_add(arg, conn);
}

/* --- front -------------------------------------------------------------------------------------------------------- */

static void front_end(struct front_conn *f)
{
    struct control *c = f->c;
    loop_fd_del(c->g->loop, f->watch);
    loop_timer_del(c->g->loop, f->goodbye);
    (void)close(f->fd);
    buf_done(&f->in);
    buf_done(&f->out);
    if (c->front == f)
        c->front = NULL;
    free(f);
    if (c->g->config.run && !c->front)
        loop_stop(c->g->loop); /* the run that started us is gone */
}

/* -1: the connection is over. */
static int front_flush(struct front_conn *f)
{
    while (f->sent < f->out.n) {
        ssize_t n = send(f->fd, f->out.p + f->sent, f->out.n - f->sent, MSG_NOSIGNAL);
        if (n < 0 && (errno == EAGAIN || errno == EINTR))
            break;
        if (n < 0)
            return -1;
        f->sent += (size_t)n;
    }
    if (f->sent == f->out.n)
        f->out.n = f->sent = 0;
    else if (f->sent > CONTROL_QUEUE_MAX / 2) {
        memmove(f->out.p, f->out.p + f->sent, f->out.n - f->sent);
        f->out.n -= f->sent;
        f->sent = 0;
    }
    if (f->ending && !f->out.n)
        return -1;
    loop_fd_set(f->c->g->loop, f->watch, (f->ending ? 0 : LOOP_IN) | (f->out.n ? LOOP_OUT : 0));
    return 0;
}

static void front_put(struct front_conn *f, const struct buf *json)
{
    const unsigned char length[LENGTH] = {(unsigned char)json->n, (unsigned char)(json->n >> 8),
                                          (unsigned char)(json->n >> 16), (unsigned char)(json->n >> 24)};
    buf_add(&f->out, length, LENGTH);
    buf_add(&f->out, json->p, json->n);
}

static void front_on_goodbye_late(void *arg)
{
    struct front_conn *f = arg;
    f->goodbye = 0;
    front_end(f);
}

/* Says why and closes. */
static void front_refuse(struct front_conn *f, const char *why)
{
    _cleanup_buf_ struct buf out = {0};
    struct json j;
    log_text(LOG_LEVEL_WARN, "the connection of front ends: %s", why);
    json_start(&j, &out);
    json_obj(&j, NULL);
    json_str(&j, "type", "error");
    json_str(&j, "text", why);
    json_end_obj(&j);
    front_put(f, &out);
    f->ending = true;
    f->goodbye = loop_timer(f->c->g->loop, GOODBYE_MS, front_on_goodbye_late, f);
    if (front_flush(f) < 0)
        front_end(f);
}

void control_tell(struct egress *g, struct buf *json)
{
    struct control *c = g->control;
    struct front_conn *f = c ? c->front : NULL;
    if (f && f->hello && !f->ending && json->n <= EGRESS_JSON_MAX) {
        front_put(f, json);
        /* Written later, from the loop: the caller may be handling a message of this very connection. */
        if (f->out.n - f->sent > CONTROL_QUEUE_MAX) {
            log_text(LOG_LEVEL_ERROR, "front does not read its messages; closing its connection");
            f->ending = true;
            f->out.n = f->sent = 0;
        }
        loop_fd_set(g->loop, f->watch, LOOP_IN | LOOP_OUT);
    }
    buf_done(json);
}

bool control_busy(const struct egress *g)
{
    const struct control *c = g->control;
    const struct front_conn *f = c ? c->front : NULL;
    return !f || !f->hello || f->ending || f->out.n - f->sent > CONTROL_QUEUE_MAX / 4;
}

/* Takes whole messages out of f->in. -1: over. */
static int front_messages(struct front_conn *f)
{
    size_t at = 0;
    struct err err = {0};
    while (f->in.n - at >= LENGTH) {
        const unsigned char *p = (const unsigned char *)f->in.p + at;
        size_t n = (size_t)p[0] | (size_t)p[1] << 8 | (size_t)p[2] << 16 | (size_t)p[3] << 24;
        if (n > EGRESS_JSON_MAX) {
            front_refuse(f, "a message is longer than 4 MiB");
            return -1;
        }
        if (f->in.n - at - LENGTH < n)
            break;
        if (control_message(f->c->g, f->c->key, &f->hello, (const char *)p + LENGTH, n, &err) < 0) {
            front_refuse(f, err.msg);
            return -1;
        }
        at += LENGTH + n;
    }
    if (at) {
        memmove(f->in.p, f->in.p + at, f->in.n - at);
        f->in.n -= at;
        explicit_bzero(f->in.p + f->in.n, at); /* it may have held a secret */
    }
    return 0;
}

static void on_front(void *arg, int fd, unsigned events)
{
    struct front_conn *f = arg;
    static char bytes[READ];
    if ((events & (LOOP_IN | LOOP_HUP)) && !f->ending) {
        ssize_t n = recv(fd, bytes, sizeof bytes, 0);
        if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) {
            front_end(f);
            return;
        }
        if (n > 0)
            buf_add(&f->in, bytes, (size_t)n);
        if (front_messages(f) < 0)
            return;
    }
    if (front_flush(f) < 0)
        front_end(f);
}

static void front_add(struct control *c, int fd)
{
    struct front_conn *f = xcalloc(1, sizeof *f), *old = c->front;
    f->c = c;
    f->fd = fd;
    c->front = f;
    f->watch = loop_fd_add(c->g->loop, fd, LOOP_IN, on_front, f);
    if (old) {
        log_text(LOG_LEVEL_INFO, "a newer front has connected");
        front_end(old);
    }
    if (!f->watch)
        front_end(f);
}

static void on_front_listener(void *arg, int fd, unsigned events)
{
    (void)events;
    int conn = accept4(fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (conn >= 0)
        front_add(arg, conn);
}

static void on_usage(void *arg)
{
    struct control *c = arg;
    size_t at = 0;
    /* Stops when front is busy; the next round tells the rest. */
    for (struct esb *s; !control_busy(c->g) && (s = map_next(&c->g->sandboxes, &at));)
        usage_tell(s);
    usage_tell_tenants(c->g, NULL);
    c->usage = loop_timer(c->g->loop, CONTROL_USAGE_MS, on_usage, c);
}

/* --- life --------------------------------------------------------------------------------------------------------- */

static bool is_listening(int fd)
{
    int on = 0;
    socklen_t n = sizeof on;
    return getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &on, &n) == 0 && on;
}

int control_start(struct egress *g, int keeper_fd, int front_fd, const char *key_hex, struct err *err)
{
    struct control *c = xcalloc(1, sizeof *c);
    c->g = g;
    c->keeper_fd = c->front_fd = -1;
    (void)strncpy(c->key, key_hex, sizeof c->key - 1);
    for (size_t i = 0; i < CONTROL_KEEPERS_MAX; i++)
        c->keepers[i].fd = -1;
    g->control = c;
    c->usage = loop_timer(g->loop, CONTROL_USAGE_MS, on_usage, c);
    bool ok = true;
    if (keeper_fd >= 0 && is_listening(keeper_fd)) {
        c->keeper_fd = keeper_fd;
        c->keeper_watch = loop_fd_add(g->loop, keeper_fd, LOOP_IN, on_keeper_listener, c);
        ok = c->keeper_watch != 0;
    } else if (keeper_fd >= 0) {
        ok = keeper_add(c, keeper_fd) == 0;
    }
    if (front_fd >= 0 && is_listening(front_fd)) {
        c->front_fd = front_fd;
        c->front_watch = loop_fd_add(g->loop, front_fd, LOOP_IN, on_front_listener, c);
        ok = ok && c->front_watch != 0;
    } else if (front_fd >= 0) {
        front_add(c, front_fd);
        ok = ok && c->front;
    }
    if (ok)
        return 0;
    control_stop(g);
    return err_set(err, ERR_SETUP, errno, "cannot watch the control sockets");
}

void control_stop(struct egress *g)
{
    struct control *c = g->control;
    if (!c)
        return;
    for (size_t i = 0; i < CONTROL_KEEPERS_MAX; i++)
        if (c->keepers[i].fd >= 0)
            keeper_end(&c->keepers[i]);
    if (c->front)
        front_end(c->front);
    loop_fd_del(g->loop, c->keeper_watch);
    loop_fd_del(g->loop, c->front_watch);
    loop_timer_del(g->loop, c->usage);
    if (c->keeper_fd >= 0)
        (void)close(c->keeper_fd);
    if (c->front_fd >= 0)
        (void)close(c->front_fd);
    free(c);
    g->control = NULL;
}
