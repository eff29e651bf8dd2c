#include "http/server.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/mem.h"
#include "http/conn.h"
#include "http/peers.h"

enum { ACCEPT_BUDGET = 64, ACCEPT_BACK_OFF_MS = 100 };

const struct http_limits http_default_limits = {
    .connections = 10000,
    .connections_per_peer = 0,
    .head_ms = 10 * 1000,
    .idle_ms = 60 * 1000,
    .requests = 0,
};

struct listener {
    struct listener *next;
    struct http_server *server;
    int fd;
    loop_id watch, timer;
    http_accept_fn *accept;
    void *accept_ctx;
};

struct http_server {
    struct loop *loop;
    struct http_limits limits;
    http_handler *handler;
    void *ctx;
    http_h2_fn *h2;

    struct listener *listeners;
    struct http_link *links;
    size_t nlinks;
    struct peers *peers;
    bool draining;

    struct http_owner *coming; /* of the connection that is attached next */

    uint64_t id_base, id_next;
    int spare_fd; /* given up for a moment when descriptors have run out, to accept and close */
    struct buf scratch;
    time_t date_at;
    char date[32];
    char *buffer;
};

int http_server_new(struct loop *l, const struct http_limits *limits, http_handler *handler, void *ctx,
                    struct http_server **ret, struct err *err)
{
    int spare = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (spare < 0)
        return err_set(err, ERR_INTERNAL, errno, "open /dev/null");
    struct http_server *s = xcalloc(1, sizeof *s);
    s->loop = l;
    s->limits = limits ? *limits : http_default_limits;
    s->handler = handler;
    s->ctx = ctx;
    s->spare_fd = spare;
    s->peers = peers_new();
    s->buffer = xmalloc(HTTP_READ_BUFFER);
    (void)!getrandom(&s->id_base, sizeof s->id_base, GRND_NONBLOCK);
    *ret = s;
    return 0;
}

struct loop *http_server_loop(const struct http_server *s) { return s->loop; }
const struct http_limits *http_server_limits(const struct http_server *s) { return &s->limits; }
bool http_server_draining(const struct http_server *s) { return s->draining; }
void *http_server_buffer(struct http_server *s) { return s->buffer; }
http_h2_fn *http_server_h2(const struct http_server *s) { return s->h2; }
void http_server_set_h2(struct http_server *s, http_h2_fn *fn) { s->h2 = fn; }
size_t http_server_connections(const struct http_server *s) { return s->nlinks; }
struct buf *http_server_scratch(struct http_server *s)
{
    s->scratch.n = 0;
    return &s->scratch;
}

const char *http_server_date(struct http_server *s)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_REALTIME_COARSE, &now);
    if (now.tv_sec != s->date_at) {
        struct tm tm;
        s->date_at = now.tv_sec;
        (void)strftime(s->date, sizeof s->date, "%a, %d %b %Y %H:%M:%S GMT", gmtime_r(&now.tv_sec, &tm));
    }
    return s->date;
}

void http_server_dispatch(struct http_server *s, struct http_req *r)
{
    (void)snprintf(r->id, sizeof r->id, "%08x-%010llx", (unsigned)s->id_base, (unsigned long long)s->id_next++);
    r->loop = s->loop;
    s->handler(s->ctx, r);
}

void http_server_attach(struct http_server *s, struct http_link *link, const char *peer)
{
    link->server = s;
    link->owner = s->coming;
    s->coming = NULL;
    if (link->owner)
        link->owner->link = link;
    (void)snprintf(link->peer, sizeof link->peer, "%s", peer);
    link->prev = NULL;
    link->next = s->links;
    if (s->links)
        s->links->prev = link;
    s->links = link;
    s->nlinks++;
    peers_add(s->peers, link->peer);
}

void http_server_detach(struct http_link *link)
{
    struct http_server *s = link->server;
    if (link->prev)
        link->prev->next = link->next;
    else
        s->links = link->next;
    if (link->next)
        link->next->prev = link->prev;
    link->prev = link->next = NULL;
    s->nlinks--;
    peers_remove(s->peers, link->peer);
}

static void server_peer_text(const struct sockaddr_storage *a, char *ret, size_t n)
{
    const struct sockaddr_in *v4 = (const void *)a;
    const struct sockaddr_in6 *v6 = (const void *)a;
    (void)snprintf(ret, n, "%s", a->ss_family == AF_UNIX ? "unix" : "unknown");
    if (a->ss_family == AF_INET)
        (void)inet_ntop(AF_INET, &v4->sin_addr, ret, (socklen_t)n);
    else if (a->ss_family == AF_INET6 && IN6_IS_ADDR_V4MAPPED(&v6->sin6_addr))
        (void)inet_ntop(AF_INET, v6->sin6_addr.s6_addr + 12, ret, (socklen_t)n);
    else if (a->ss_family == AF_INET6)
        (void)inet_ntop(AF_INET6, &v6->sin6_addr, ret, (socklen_t)n);
}

static bool server_is_full(const struct http_server *s, const char *peer)
{
    return s->nlinks >= s->limits.connections || (s->limits.connections_per_peer && strcmp(peer, "unix") != 0 &&
                                                  peers_count(s->peers, peer) >= s->limits.connections_per_peer);
}

static void server_on_accepted(struct listener *l, int fd, const struct sockaddr_storage *from)
{
    static const int one = 1;
    char peer[64];
    server_peer_text(from, peer, sizeof peer);
    if (server_is_full(l->server, peer)) {
        (void)close(fd);
        return;
    }
    if (from->ss_family != AF_UNIX)
        (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    struct transport *t = l->accept ? l->accept(l->accept_ctx, fd) : transport_plain(fd);
    if (t)
        conn_serve(l->server, t, peer);
}

static void server_on_accept_again(void *arg)
{
    struct listener *l = arg;
    l->timer = 0;
    loop_fd_set(l->server->loop, l->watch, LOOP_IN);
}

/* Out of descriptors: uses the spare one to accept and close the waiting client at once, which is clearer to it than
 * silence; then stops accepting for a moment. */
static void server_out_of_descriptors(struct listener *l)
{
    struct http_server *s = l->server;
    if (s->spare_fd >= 0) {
        (void)close(s->spare_fd);
        int fd = accept4(l->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd >= 0)
            (void)close(fd);
    }
    s->spare_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    loop_fd_set(s->loop, l->watch, 0);
    if (l->timer == 0)
        l->timer = loop_timer(s->loop, ACCEPT_BACK_OFF_MS, server_on_accept_again, l);
}

static void server_on_acceptable(void *arg, int fd, unsigned events)
{
    struct listener *l = arg;
    (void)events;
    for (int i = 0; i < ACCEPT_BUDGET; i++) {
        struct sockaddr_storage from = {0};
        socklen_t len = sizeof from;
        int client = accept4(fd, (struct sockaddr *)&from, &len, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (client >= 0) {
            server_on_accepted(l, client, &from);
            continue;
        }
        if (errno == EINTR || errno == ECONNABORTED)
            continue;
        if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM)
            server_out_of_descriptors(l);
        return;
    }
}

/* A client that vanishes without a word, in the middle of a tunnel or of an answer that waits, is found in two minutes. What is
 * accepted inherits it; other sockets than TCP's refuse. */
static void server_keep_alive(int listen_fd)
{
    static const int on = 1, idle_s = 60, interval_s = 15, count = 4;
    (void)setsockopt(listen_fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    (void)setsockopt(listen_fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof idle_s);
    (void)setsockopt(listen_fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval_s, sizeof interval_s);
    (void)setsockopt(listen_fd, IPPROTO_TCP, TCP_KEEPCNT, &count, sizeof count);
}

int http_server_listen(struct http_server *s, int listen_fd, http_accept_fn *accept, void *accept_ctx, struct err *err)
{
    struct listener *l = xcalloc(1, sizeof *l);
    *l = (struct listener){
        .next = s->listeners, .server = s, .fd = listen_fd, .accept = accept, .accept_ctx = accept_ctx};
    server_keep_alive(listen_fd);
    l->watch = loop_fd_add(s->loop, listen_fd, LOOP_IN, server_on_acceptable, l);
    if (l->watch == 0) {
        free(l);
        return err_set(err, ERR_INTERNAL, errno, "watch the listening socket");
    }
    s->listeners = l;
    return 0;
}

void http_server_serve(struct http_server *s, struct transport *t, const char *peer)
{
    if (s->draining || server_is_full(s, peer))
        t->ops->free(t);
    else
        conn_serve(s, t, peer);
}

void http_server_gone(struct http_link *link)
{
    struct http_owner *o = link->owner;
    link->owner = NULL;
    if (!o)
        return;
    o->link = NULL;
    if (o->gone)
        o->gone(o);
}

/* The connection could not be attached: tells its owner. */
static void server_drop_coming(struct http_server *s)
{
    struct http_owner *o = s->coming;
    s->coming = NULL;
    if (!o)
        return;
    o->link = NULL;
    if (o->gone)
        o->gone(o);
}

void http_server_hand_over(struct http_server *s, http_h2_fn *h2, struct transport *t, const char *peer,
                           struct http_owner *owner)
{
    s->coming = owner;
    (void)h2(s, t, peer);
    server_drop_coming(s);
}

void http_server_serve_for(struct http_server *s, struct transport *t, const char *peer, struct http_owner *o)
{
    s->coming = o;
    http_server_serve(s, t, peer);
    server_drop_coming(s);
}

void http_owner_cut(struct http_owner *o)
{
    o->gone = NULL;
    if (o->link)
        o->link->kill(o->link);
}

static void server_stop_listening(struct http_server *s)
{
    while (s->listeners) {
        struct listener *l = s->listeners;
        s->listeners = l->next;
        loop_timer_del(s->loop, l->timer);
        loop_fd_del(s->loop, l->watch);
        free(l);
    }
}

void http_server_drain(struct http_server *s)
{
    s->draining = true;
    server_stop_listening(s);
    for (struct http_link *link = s->links, *next; link; link = next) {
        next = link->next;
        link->drain(link);
    }
}

/* Runs after what connections have deferred. */
static void server_on_free(void *arg)
{
    struct http_server *s = arg;
    peers_free(s->peers);
    buf_done(&s->scratch);
    free(s->buffer);
    free(s);
}

void http_server_free(struct http_server *s)
{
    if (!s)
        return;
    s->draining = true;
    server_stop_listening(s);
    while (s->links)
        s->links->kill(s->links);
    if (s->spare_fd >= 0)
        (void)close(s->spare_fd);
    loop_defer(s->loop, server_on_free, s);
}
