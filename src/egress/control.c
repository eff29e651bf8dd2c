/* control.c - connections of keeper (SEQPACKET) and of front (STREAM): accepted, read, written. The newest
 * front is the front. */
#include "egress/control.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/json.h"
#include "base/log.h"
#include "base/mem.h"
#include "os/netns.h"
#include "rpc/channel.h"

enum { GOODBYE_MS = 1000, AT_ONCE = 64 };

static const struct channel_limits keeper_limits = {.message_max = sizeof(struct egress_attach) + 1,
                                                    .fds_max = FD_MSG_MAX};
static const struct channel_limits front_limits = {
    .kind = CHANNEL_STREAM, .message_max = EGRESS_JSON_MAX, .queue_max = CONTROL_QUEUE_MAX};

struct keeper_conn {
    struct control *c;
    struct channel channel; /* fd -1: free */
    uint64_t number;
    loop_id watch;
};

struct front_conn {
    struct control *c;
    struct channel channel;
    loop_id watch, goodbye;
    bool hello;
    bool ending;  /* closes when everything is written */
    bool dropped; /* closes at once: it does not read */
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
        if (c->keepers[i].channel.fd >= 0 && c->keepers[i].number == connection)
            return true;
    return false;
}

static void keeper_end(struct keeper_conn *k)
{
    loop_fd_del(k->c->g->loop, k->watch);
    channel_close(&k->channel);
    k->number = 0;
}

static void on_keeper(void *arg, int fd, unsigned events)
{
    struct keeper_conn *k = arg;
    struct channel_message m;
    (void)fd, (void)events;
    for (;;) {
        enum channel_got got = channel_recv(&k->channel, &m);
        if (got == CHANNEL_NONE)
            return;
        if (got != CHANNEL_MESSAGE || control_attach(k->c->g, k->number, m.p, m.n, m.fds, m.nfds) < 0) {
            keeper_end(k);
            return;
        }
    }
}

static int keeper_add(struct control *c, int fd)
{
    for (size_t i = 0; i < CONTROL_KEEPERS_MAX; i++) {
        struct keeper_conn *k = &c->keepers[i];
        if (k->channel.fd >= 0)
            continue;
        channel_open(&k->channel, fd);
        k->number = ++c->numbers;
        k->watch = loop_fd_add(c->g->loop, fd, LOOP_IN, on_keeper, k);
        if (k->watch)
            return 0;
        channel_close(&k->channel);
        return -1;
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
    channel_close(&f->channel);
    if (c->front == f)
        c->front = NULL;
    free(f);
    if (c->g->config.run && !c->front)
        loop_stop(c->g->loop); /* the run that started us is gone */
}

/* -1: the connection is over. */
static int front_flush(struct front_conn *f)
{
    if (channel_flush(&f->channel) < 0)
        return -1;
    bool waits = channel_waits(&f->channel);
    if (f->ending && !waits)
        return -1;
    loop_fd_set(f->c->g->loop, f->watch, (f->ending ? 0 : LOOP_IN) | (waits ? LOOP_OUT : 0));
    return 0;
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
    (void)channel_queue(&f->channel, out.p, out.n, NULL, 0);
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
        /* Written later, from the loop: the caller may be handling a message of this very connection. */
        if (channel_queue(&f->channel, json->p, json->n, NULL, 0) < 0) {
            log_text(LOG_LEVEL_ERROR, "front does not read its messages; closing its connection");
            f->ending = f->dropped = true;
        }
        loop_fd_set(g->loop, f->watch, LOOP_IN | LOOP_OUT);
    }
    buf_done(json);
}

bool control_busy(const struct egress *g)
{
    const struct control *c = g->control;
    const struct front_conn *f = c ? c->front : NULL;
    return !f || !f->hello || f->ending || channel_queued(&f->channel) > CONTROL_QUEUE_MAX / 4;
}

/* -1: the connection is over, or says goodbye. */
static int front_read(struct front_conn *f)
{
    struct channel_message m;
    struct err err = {0};
    for (int i = 0; !f->ending && (i < AT_ONCE || channel_is_ready(&f->channel)); i++) {
        enum channel_got got = channel_recv(&f->channel, &m);
        if (got == CHANNEL_NONE)
            break;
        if (got == CHANNEL_ENDED) {
            front_end(f);
            return -1;
        }
        if (got == CHANNEL_BROKEN) {
            front_refuse(f, errno == EMSGSIZE ? "a message is longer than 4 MiB" : "what came is no message");
            return -1;
        }
        if (control_message(f->c->g, f->c->key, &f->hello, (const char *)m.p, m.n, &err) < 0) {
            front_refuse(f, err.msg);
            return -1;
        }
    }
    return 0;
}

static void on_front(void *arg, int fd, unsigned events)
{
    struct front_conn *f = arg;
    (void)fd;
    if ((events & (LOOP_IN | LOOP_HUP)) && !f->ending && front_read(f) < 0)
        return;
    if (f->dropped || front_flush(f) < 0)
        front_end(f);
}

static void front_add(struct control *c, int fd)
{
    struct front_conn *f = xcalloc(1, sizeof *f), *old = c->front;
    f->c = c;
    channel_init(&f->channel, &front_limits, NULL, NULL);
    channel_open(&f->channel, fd);
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
    for (size_t i = 0; i < CONTROL_KEEPERS_MAX; i++) {
        c->keepers[i].c = c;
        channel_init(&c->keepers[i].channel, &keeper_limits, NULL, NULL);
    }
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
        if (c->keepers[i].channel.fd >= 0)
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
