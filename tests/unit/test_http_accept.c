/* Accepting: limits per address, running out of descriptors, handshakes, and transports that hold bytes back as TLS does. */
#include "tests/lib/unit.h"

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <sys/resource.h>

#include "base/mem.h"
#include "http-world.h"

#define GET "GET / HTTP/1.1\r\nHost: a\r\n\r\n"

static struct http_req *parked;
static size_t got;

static void on_data(struct http_req *r, const void *p, size_t n)
{
    (void)p;
    if (got / 1000 != (got + n) / 1000)
        http_pause(r);
    got += n;
}

static void on_end(struct http_req *r) { http_reply(r, 200, "text/plain", r->peer, strlen(r->peer)); }

static void handler(void *ctx, struct http_req *r)
{
    (void)ctx;
    parked = r;
    r->on_data = on_data;
    r->on_end = on_end;
}

static struct sockaddr_in where;
static int kept_alive, idle_s;

static struct transport *look(void *ctx, int fd)
{
    socklen_t n = sizeof kept_alive;
    (void)ctx;
    assert_int_equal(getsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &kept_alive, &n), 0);
    assert_int_equal(getsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, &n), 0);
    return transport_plain(fd);
}

static int listening(void)
{
    struct err err = {0};
    socklen_t n = sizeof where;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    where = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    assert_int_equal(bind(fd, (struct sockaddr *)&where, n), 0);
    assert_int_equal(listen(fd, 64), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&where, &n), 0);
    assert_int_equal(http_server_listen(world_server, fd, look, NULL, &err), 0);
    return fd;
}

static int dial(void)
{
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&where, sizeof where), 0);
    (void)fcntl(fd, F_SETFL, O_NONBLOCK);
    struct err err = {0};
    for (int i = 0; i < 10; i++) /* a busy kernel hands it over a moment later */
        assert_int_equal(loop_step(world_loop, 1, &err), 0);
    turn();
    return fd;
}

static void a_client_that_vanishes_is_asked_for(void **state)
{
    (void)state;
    world_start(&(struct http_limits){.connections = 10, .head_ms = 100, .idle_ms = 100}, handler);
    int listener = listening(), fd = dial();
    assert_int_equal(kept_alive, 1);
    assert_int_equal(idle_s, 60);
    (void)close(fd);
    (void)close(listener);
    world_stop();
}

static void each_address_has_its_share(void **state)
{
    (void)state;
    world_start(&(struct http_limits){.connections = 10, .connections_per_peer = 2, .head_ms = 100, .idle_ms = 100},
                handler);
    int listener = listening(), fd[3];
    for (int i = 0; i < 3; i++)
        fd[i] = dial();
    assert_int_equal(http_server_connections(world_server), 2);
    expect(fd[2], "", true);
    say(fd[0], GET);
    expect(fd[0], "\r\n\r\n127.0.0.1", false);
    (void)close(fd[0]);
    turn();
    (void)close(fd[2]);
    fd[2] = dial();
    say(fd[2], GET);
    expect(fd[2], "127.0.0.1", false);
    (void)close(fd[1]);
    (void)close(fd[2]);
    world_stop();
    (void)close(listener);
}

static void running_out_of_descriptors_is_survived(void **state)
{
    (void)state;
    struct rlimit old, few;
    world_start(NULL, handler);
    int listener = listening(), served = dial();
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &old), 0);
    int client_fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    few = (struct rlimit){.rlim_cur = (rlim_t)client_fd + 1, .rlim_max = old.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
    assert_int_equal(connect(client_fd, (struct sockaddr *)&where, sizeof where), 0);
    (void)fcntl(client_fd, F_SETFL, O_NONBLOCK);
    expect(client_fd, "", true);
    /* Those that were there go on, and so does accepting, later. */
    say(served, GET);
    expect(served, "200 OK", false);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &old), 0);
    (void)close(client_fd);
    pass(101);
    client_fd = dial();
    say(client_fd, GET);
    expect(client_fd, "200 OK", false);
    (void)close(client_fd);
    (void)close(served);
    world_stop();
    (void)close(listener);
}

/* A transport that takes all the kernel has and gives it out in small pieces; its handshake is one byte each way. */
struct lumpy {
    struct transport t;
    char held[65536];
    size_t from, to;
    bool shaken;
    const char *protocol;
};

static ssize_t lumpy_read(struct transport *t, void *p, size_t n)
{
    struct lumpy *l = (struct lumpy *)t;
    if (l->from == l->to) {
        ssize_t r = recv(t->fd, l->held, sizeof l->held, 0);
        if (r <= 0)
            return r;
        l->from = 0;
        l->to = (size_t)r;
    }
    size_t some = l->to - l->from < 100 ? l->to - l->from : 100;
    some = some < n ? some : n;
    memcpy(p, l->held + l->from, some);
    l->from += some;
    return (ssize_t)some;
}
static ssize_t lumpy_writev(struct transport *t, const struct iovec *v, int n)
{
    (void)n;
    return send(t->fd, v->iov_base, v->iov_len < 50 ? v->iov_len : 50, MSG_NOSIGNAL);
}
static unsigned lumpy_in(const struct transport *t) { return t->fd >= 0 ? LOOP_IN : 0; }
static unsigned lumpy_out(const struct transport *t) { return ((const struct lumpy *)t)->shaken ? LOOP_OUT : 0; }
static bool lumpy_pending(const struct transport *t)
{
    return ((const struct lumpy *)t)->from < ((const struct lumpy *)t)->to;
}
static void lumpy_shutdown(struct transport *t) { (void)shutdown(t->fd, SHUT_WR); }
static void lumpy_free(struct transport *t)
{
    (void)close(t->fd);
    free(t);
}
static const char *lumpy_protocol(const struct transport *t) { return ((const struct lumpy *)t)->protocol; }
static int lumpy_handshake(struct transport *t)
{
    char c;
    struct lumpy *l = (struct lumpy *)t;
    ssize_t n = recv(t->fd, &c, 1, 0);
    l->shaken = n == 1 && c == 'H';
    return n == 1 ? (l->shaken ? 1 : -1) : n < 0 && errno == EAGAIN ? 0 : -1;
}

static int lumpy_client(const char *protocol)
{
    static const struct transport_ops ops = {lumpy_read, lumpy_writev,   lumpy_in,
                                             lumpy_out,  lumpy_pending,  lumpy_shutdown,
                                             lumpy_free, lumpy_protocol, lumpy_handshake};
    int sv[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, sv), 0);
    struct lumpy *l = xcalloc(1, sizeof *l);
    l->t = (struct transport){&ops, sv[0]};
    l->protocol = protocol;
    http_server_serve(world_server, &l->t, "lumpy");
    return sv[1];
}

static void bytes_held_by_the_transport_are_not_forgotten(void **state)
{
    (void)state;
    _cleanup_free_ char *body = xcalloc(1, 60001);
    world_start(NULL, handler);
    int fd = lumpy_client("http/1.1");
    got = 0;
    say(fd, "HPOST / HTTP/1.1\r\nHost: a\r\nContent-Length: 60000\r\n\r\n");
    memset(body, 'b', 60000);
    say(fd, body);
    /* Everything is inside the transport now; no event of the descriptor will ever tell. */
    for (int i = 0; i < 200 && got < 60000; i++) {
        http_resume(parked);
        turn();
    }
    assert_int_equal(got, 60000);
    http_resume(parked);
    expect(fd, "\r\n\r\nlumpy", false);
    say(fd, GET GET);
    expect(fd, "\r\n\r\nlumpy", false);
    assert_int_equal(heard_count, 2);
    (void)close(fd);
    world_stop();
}

static int h2_calls;
static int serve_h2(struct http_server *s, struct transport *t, const char *peer)
{
    (void)s;
    h2_calls++;
    assert_string_equal(peer, "lumpy");
    assert_int_equal(send(t->fd, "h2", 2, MSG_NOSIGNAL), 2);
    t->ops->free(t);
    return 0;
}

static void handshakes_choose_the_protocol_or_fail(void **state)
{
    (void)state;
    world_start(NULL, handler);
    int fd = lumpy_client("h2");
    say(fd, "H");
    expect(fd, "", true); /* nobody speaks it */
    (void)close(fd);
    http_server_set_h2(world_server, serve_h2);
    fd = lumpy_client("h2");
    say(fd, "H");
    expect(fd, "h2", true);
    assert_int_equal(h2_calls, 1);
    (void)close(fd);
    fd = lumpy_client("http/1.1");
    say(fd, "X");
    expect(fd, "", true);
    (void)close(fd);
    fd = lumpy_client("http/1.1");
    pass(http_default_limits.head_ms - 1);
    expect(fd, "", false);
    pass(1);
    expect(fd, "", true);
    (void)close(fd);
    assert_int_equal(http_server_connections(world_server), 0);
    world_stop();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_client_that_vanishes_is_asked_for),
        cmocka_unit_test(each_address_has_its_share),
        cmocka_unit_test(running_out_of_descriptors_is_survived),
        cmocka_unit_test(bytes_held_by_the_transport_are_not_forgotten),
        cmocka_unit_test(handshakes_choose_the_protocol_or_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
