#include "await.h"
#include "tests/lib/unit.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <sys/socket.h>

#include "base/mem.h"
#include "http/client.h"
#include "http/devca.h"
#include "http/h2.h"
#include "http/proxy.h"
#include "http/tls.h"
#include "unit/http-app.h"

/* The app is the upstream; in front of it, on the same loop, stands a gateway that proxies everything to it. */
static struct http_world w;
static struct http_server *gateway;
static int gateway_fd = -1;
static char base[64], base_h2[64], dir[64];
static struct tls_server *tls;
static int tls_fd = -1, dirfd_ = -1;
static bool over_h2; /* how curl asks the gateway */
static struct {
    struct proxy_result last;
    unsigned done, failures;
    struct client *kept; /* one connection is used again */
    bool dead;           /* dial where nobody listens */
    unsigned answer_ms;
    unsigned unwanted; /* answers with this status are not passed on; 0: all are */
} g;

static bool is_unwanted(void *arg, unsigned status, const struct http_fields *f)
{
    (void)arg;
    return http_field(f, "set-cookie") && status == g.unwanted;
}

static void failed(void *arg, struct http_req *r, unsigned status, enum client_failure failure, const char *why)
{
    (void)arg;
    char text[256];
    g.failures++;
    (void)snprintf(text, sizeof text, "{\"code\":%u,\"failure\":%d,\"message\":\"%s\"}\n", status, failure, why);
    http_reply(r, status, "application/json", text, strlen(text));
}

static void done(void *arg, const struct proxy_result *result, struct client *again)
{
    (void)arg;
    g.last = *result;
    g.done++;
    if (again && g.kept)
        client_free(again);
    else if (again)
        g.kept = again;
}

static int dial_nobody(void)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK), .sin_port = htons(1)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    (void)connect(fd, (struct sockaddr *)&a, sizeof a);
    return fd;
}

static void begin(struct http_req *r)
{
    static const char *const drop[] = {"x-secret", NULL};
    static const struct http_field add[] = {{"x-added", "yes"}};
    struct client *c = TAKE_PTR(g.kept);
    if (c && !client_reusable(c)) {
        client_free(c);
        c = NULL;
    }
    if (!c)
        c = client_new(w.loop, transport_plain(g.dead ? dial_nobody() : http_world_dial(&w)));
    struct proxy_options o = {
        .host = "masked.test",
        .forwarded = true,
        .answer_ms = g.answer_ms,
        .drop = drop,
        .add = {add, 1},
        .unwanted = g.unwanted ? is_unwanted : NULL,
        .on_failure = failed,
        .on_done = done,
    };
    proxy_start(r, c, &o);
}

/* Dialling takes time in life, so it does here. */
static void dialled(void *arg)
{
    struct http_req *r = arg;
    begin(r);
}

static void handler(void *ctx, struct http_req *r)
{
    (void)ctx;
    http_pause(r);
    (void)loop_timer(r->loop, 1, dialled, r);
}

static int listen_on(int *port)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof a;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (bind(fd, (struct sockaddr *)&a, sizeof a) < 0 || listen(fd, 16) < 0 ||
        getsockname(fd, (struct sockaddr *)&a, &n) < 0)
        abort();
    *port = ntohs(a.sin_port);
    return fd;
}

static int start(void **state)
{
    (void)state;
    struct err err;
    char cert[96], key[96];
    int port, tls_port;
    http_world_start(&w, NULL, NULL);
    gateway_fd = listen_on(&port);
    tls_fd = listen_on(&tls_port);
    (void)snprintf(dir, sizeof dir, "/tmp/hutch-test-proxy-XXXXXX");
    if (!mkdtemp(dir) || (dirfd_ = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC)) < 0)
        return -1;
    (void)snprintf(cert, sizeof cert, "%s/" DEVCA_CERT, dir);
    (void)snprintf(key, sizeof key, "%s/" DEVCA_KEY, dir);
    if (devca_ensure(dirfd_, "e2b.localhost", time(NULL), &err) < 0 ||
        tls_server_new(cert, key, true, &tls, &err) < 0 ||
        http_server_new(w.loop, &http_default_limits, handler, NULL, &gateway, &err) < 0 ||
        http_server_listen(gateway, gateway_fd, NULL, NULL, &err) < 0 ||
        http_server_listen(gateway, tls_fd, tls_server_accept, tls, &err) < 0)
        return -1;
    http_server_set_h2(gateway, h2_serve);
    (void)snprintf(base, sizeof base, "http://127.0.0.1:%d", port);
    (void)snprintf(base_h2, sizeof base_h2, "https://127.0.0.1:%d", tls_port);
    return 0;
}

static int stop(void **state)
{
    (void)state;
    static const char *const names[] = {DEVCA_CA_CERT, DEVCA_CA_KEY, DEVCA_CERT, DEVCA_KEY};
    http_server_free(gateway);
    client_free(g.kept);
    http_world_stop(&w);
    tls_server_free(tls);
    for (size_t i = 0; i < ARRAY_LEN(names); i++)
        (void)unlinkat(dirfd_, names[i], 0);
    (void)close(dirfd_);
    (void)close(tls_fd);
    (void)close(gateway_fd);
    return rmdir(dir);
}

static int curl(struct buf *out, const char *path, const char *const *more)
{
    char url[128];
    const char *argv[24] = {"curl", "-sS", "--max-time", "20", over_h2 ? "--http2" : "--http1.1", "-k", url};
    size_t n = 7;
    (void)snprintf(url, sizeof url, "%s%s", over_h2 ? base_h2 : base, path);
    for (; more && *more; more++)
        argv[n++] = *more;
    return http_world_run(&w, out, argv);
}
#define CURL(out, path, ...) curl(out, path, (const char *const[]){__VA_ARGS__ __VA_OPT__(, ) NULL})

static void the_request_arrives_with_its_fields_and_a_masked_host(void **state)
{
    (void)state;
    _cleanup_buf_ struct buf b = {0};
    assert_int_equal(CURL(&b, "/who?a=%20b", "-H", "x-secret: no", "-H", "x-forwarded-for: 1.2.3.4", "-H",
                          "cookie: k=v", "-H", "connection: x-hop", "-H", "x-hop: 1", "-H", "te: trailers", "-H",
                          "x-added: forged"),
                     0);
    assert_non_null(strstr(buf_str(&b), "GET /who a=%20b authority=masked.test\n"));
    assert_non_null(strstr(buf_str(&b), "cookie: k=v\n"));
    assert_non_null(strstr(buf_str(&b), "x-forwarded-for: 127.0.0.1\n"));
    assert_non_null(strstr(buf_str(&b), "x-forwarded-proto: http\n"));
    assert_non_null(strstr(buf_str(&b), "x-forwarded-host: 127.0.0.1:"));
    assert_non_null(strstr(buf_str(&b), "x-forwarded-port: "));
    assert_non_null(strstr(buf_str(&b), "forwarded: for=127.0.0.1;host=\"127.0.0.1:"));
    assert_non_null(strstr(buf_str(&b), "x-added: yes\n"));
    assert_null(strstr(buf_str(&b), "x-secret"));
    assert_null(strstr(buf_str(&b), "x-hop"));
    assert_null(strstr(buf_str(&b), "te:"));
    assert_null(strstr(buf_str(&b), "forged"));
    assert_null(strstr(buf_str(&b), "1.2.3.4"));
}

static void statuses_and_repeated_fields_pass(void **state)
{
    (void)state;
    _cleanup_buf_ struct buf b = {0}, c = {0}, d = {0};
    assert_int_equal(CURL(&b, "/status/204", "-i"), 0);
    assert_non_null(strstr(buf_str(&b), "HTTP/1.1 204 "));
    assert_non_null(strstr(buf_str(&b), "set-cookie: a=1\r\nset-cookie: b=2\r\n"));
    assert_int_equal(CURL(&c, "/status/503", "-i"), 0);
    assert_non_null(strstr(buf_str(&c), "HTTP/1.1 503 "));
    assert_non_null(strstr(buf_str(&c), "content-length: 0\r\n"));
    assert_int_equal(CURL(&d, "/bytes/1234", "-I"), 0);
    assert_non_null(strstr(buf_str(&d), "content-length: 1234\r\n"));
}

static void an_unwanted_answer_leaves_the_request_to_its_handler(void **state)
{
    (void)state;
    _cleanup_buf_ struct buf b = {0}, c = {0};
    g.unwanted = 503;
    assert_int_equal(CURL(&b, "/status/503", "-w", "%{http_code}"), 0);
    assert_string_equal(buf_str(&b), "{\"code\":503,\"failure\":3,\"message\":\"the answer is not passed on\"}\n503");
    assert_int_equal(CURL(&c, "/status/404", "-w", "%{http_code}"), 0);
    g.unwanted = 0;
    assert_non_null(strstr(buf_str(&c), "404"));
    assert_null(strstr(buf_str(&c), "passed on"));
}

static void the_upstream_connection_is_used_again(void **state)
{
    (void)state;
    size_t before = http_server_connections(w.server);
    for (int i = 0; i < 5; i++) {
        _cleanup_buf_ struct buf b = {0};
        assert_int_equal(CURL(&b, "/hello"), 0);
        assert_string_equal(buf_str(&b), "hello\n");
        assert_true(g.last.whole);
    }
    assert_true(http_server_connections(w.server) <= (before ? before : 1));
}

static void large_bodies_pass_in_both_directions(void **state)
{
    (void)state;
    _cleanup_buf_ struct buf b = {0}, c = {0}, d = {0};
    char path[] = "/tmp/hutch-test-proxy-XXXXXX", from[64];
    int fd = mkostemp(path, O_CLOEXEC);
    enum { SIZE = 8000000 };
    _cleanup_free_ char *bytes = malloc(SIZE);
    for (size_t i = 0; i < SIZE; i++)
        bytes[i] = http_app_byte(i);
    assert_int_equal(write(fd, bytes, SIZE), SIZE);
    (void)close(fd);
    (void)snprintf(from, sizeof from, "@%s", path);
    assert_int_equal(CURL(&b, "/bytes/8000000"), 0);
    assert_int_equal(b.n, SIZE);
    assert_memory_equal(b.p, bytes, SIZE);
    assert_int_equal(CURL(&c, "/echo", "--data-binary", from, "-H", "expect:"), 0);
    assert_int_equal(c.n, SIZE);
    assert_memory_equal(c.p, bytes, SIZE);
    /* Chunked, with curl's own Expect, through an upstream that is slow. */
    assert_int_equal(CURL(&d, "/slowecho", "-T", path, "-X", "POST", "-H", "transfer-encoding: chunked"), 0);
    assert_int_equal(d.n, SIZE);
    assert_memory_equal(d.p, bytes, SIZE);
    assert_int_equal(g.last.up, SIZE);
    assert_int_equal(g.last.down, SIZE);
    (void)unlink(path);
}

static void a_client_that_stops_reading_stops_the_upstream(void **state)
{
    (void)state;
    bool never = false;
    char request[128], piece[65536];
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof a;
    (void)getsockname(gateway_fd, (struct sockaddr *)&a, &n);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&a, sizeof a), 0);
    int len = snprintf(request, sizeof request, "GET /bytes/200000000 HTTP/1.1\r\nhost: x\r\n\r\n");
    assert_int_equal(write(fd, request, (size_t)len), len);
    w.app.held_most = 0;
    (void)http_world_until(&w, &never, 300);
    assert_true(g.last.down < 200000000);
    assert_true(w.app.held_most <= HTTP_HIGH_WATER + 16384);
    /* It reads a little and goes: both sides are let go. */
    assert_true(read(fd, piece, sizeof piece) > 0);
    unsigned before = g.done;
    (void)close(fd);
    AWAIT (g.done != before && w.app.open == 0)
        (void)http_world_until(&w, &never, 10);
    assert_int_equal(g.done, before + 1);
    assert_false(g.last.whole);
    assert_true(g.last.down < 50000000);
    assert_int_equal(w.app.open, 0);
}

static void events_pass_one_by_one(void **state)
{
    (void)state;
    _cleanup_buf_ struct buf b = {0};
    assert_int_equal(CURL(&b, "/events", "-N", "-i"), 0);
    assert_non_null(strstr(buf_str(&b), "content-type: text/event-stream"));
    assert_non_null(strstr(buf_str(&b), "data: 0\n\ndata: 1\n\ndata: 2\n\n"));
}

static void an_upstream_that_dies_cuts_the_client(void **state)
{
    (void)state;
    _cleanup_buf_ struct buf b = {0};
    int code = CURL(&b, "/cut");
    assert_true(code == 18 || code == 56); /* partial transfer, or a reset */
    assert_false(g.last.whole);
}

static void an_upstream_that_is_not_there_is_502(void **state)
{
    (void)state;
    _cleanup_buf_ struct buf b = {0};
    client_free(TAKE_PTR(g.kept));
    g.dead = true;
    assert_int_equal(CURL(&b, "/count", "--data", "abc", "-w", "%{http_code}"), 0);
    g.dead = false;
    assert_string_equal(buf_str(&b), "{\"code\":502,\"failure\":0,\"message\":\"the connection could not be made: "
                                     "Connection refused\"}\n502");
}

static void an_upstream_that_is_silent_is_504(void **state)
{
    (void)state;
    _cleanup_buf_ struct buf b = {0};
    bool never = false;
    g.answer_ms = 50;
    assert_int_equal(CURL(&b, "/silent", "-w", "%{http_code}"), 0);
    g.answer_ms = 0;
    assert_string_equal(buf_str(&b), "{\"code\":504,\"failure\":1,\"message\":\"no answer in time\"}\n504");
    AWAIT (w.app.open == 0)
        (void)http_world_until(&w, &never, 5);
    assert_int_equal(w.app.open, 0);
}

static void an_early_refusal_reaches_the_client(void **state)
{
    (void)state;
    _cleanup_buf_ struct buf b = {0};
    char path[] = "/tmp/hutch-test-proxy-XXXXXX";
    int fd = mkostemp(path, O_CLOEXEC);
    assert_int_equal(ftruncate(fd, 3000000), 0);
    (void)close(fd);
    (void)CURL(&b, "/refuse", "-T", path, "-X", "POST", "-w", "%{http_code}");
    assert_non_null(strstr(buf_str(&b), "413"));
    (void)unlink(path);
}

static void all_of_it_works_for_clients_that_speak_http_2(void **state)
{
    _cleanup_buf_ struct buf b = {0}, c = {0};
    over_h2 = true;
    assert_int_equal(CURL(&b, "/who", "-H", "cookie: k=v", "-w", "%{http_version}"), 0);
    assert_non_null(strstr(buf_str(&b), "authority=masked.test\n"));
    assert_non_null(strstr(buf_str(&b), "x-forwarded-proto: https\n"));
    assert_non_null(strstr(buf_str(&b), "x-forwarded-host: 127.0.0.1:"));
    assert_non_null(strstr(buf_str(&b), "cookie: k=v\n"));
    assert_int_equal(b.p[b.n - 1], '2');
    assert_int_equal(CURL(&c, "/cut"), 92);
    assert_false(g.last.whole);
    large_bodies_pass_in_both_directions(state);
    events_pass_one_by_one(state);
    an_upstream_that_is_not_there_is_502(state);
    an_upstream_that_is_silent_is_504(state);
    an_early_refusal_reaches_the_client(state);
    over_h2 = false;
}

/* ---- tunnels ---- */

struct tunnel {
    struct client *c;
    struct buf in;
    unsigned status;
    bool ended, failed;
};
static void t_head(void *arg, unsigned status, const struct http_fields *f, uint64_t length)
{
    (void)f;
    (void)length;
    ((struct tunnel *)arg)->status = status;
}
static void t_data(void *arg, const void *p, size_t n) { buf_add(&((struct tunnel *)arg)->in, p, n); }
static void t_end(void *arg) { ((struct tunnel *)arg)->ended = true; }
static void t_writable(void *arg) { (void)arg; }
static void t_error(void *arg, enum client_failure failure, const char *text)
{
    (void)failure;
    (void)text;
    ((struct tunnel *)arg)->ended = ((struct tunnel *)arg)->failed = true;
}

static void open_tunnel(struct tunnel *t)
{
    static const struct client_events events = {t_head, t_data, t_end, t_writable, t_error};
    static const struct http_field f[] = {{"connection", "keep-alive, Upgrade"}, {"upgrade", "websocket"}};
    struct client_request q = {.method = "GET", .target = "/ws", .host = "x", .fields = {f, 2}, .upgrade = true};
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof a;
    bool never = false;
    (void)getsockname(gateway_fd, (struct sockaddr *)&a, &n);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&a, sizeof a), 0);
    (void)fcntl(fd, F_SETFL, O_NONBLOCK);
    t->c = client_new(w.loop, transport_plain(fd));
    client_start(t->c, &q, &events, t);
    AWAIT (t->status != 0)
        (void)http_world_until(&w, &never, 5);
    assert_int_equal(t->status, 101);
}

static void an_upgrade_passes_and_both_ends_close_in_turn(void **state)
{
    (void)state;
    struct tunnel t = {0};
    bool never = false;
    open_tunnel(&t);
    (void)client_write(t.c, "ping", 4);
    AWAIT (t.in.n >= 4)
        (void)http_world_until(&w, &never, 5);
    assert_string_equal(buf_str(&t.in), "ping");
    unsigned before = g.done;
    client_end(t.c);
    assert_true(http_world_until(&w, &t.ended, AWAIT_MS));
    assert_false(t.failed);
    assert_string_equal(buf_str(&t.in), "ping[end]");
    AWAIT (g.done != before)
        (void)http_world_until(&w, &never, 5);
    assert_int_equal(g.done, before + 1);
    assert_true(g.last.whole && g.last.upgraded);
    client_free(t.c);
    buf_done(&t.in);
}

static void a_tunnel_that_is_cut_is_cut_on_both_sides(void **state)
{
    (void)state;
    struct tunnel t = {0};
    bool never = false;
    open_tunnel(&t);
    unsigned before = g.done;
    client_free(t.c);
    AWAIT (g.done != before)
        (void)http_world_until(&w, &never, 10);
    assert_int_equal(g.done, before + 1);
    AWAIT (w.app.open == 0)
        (void)http_world_until(&w, &never, 5);
    assert_int_equal(w.app.open, 0);
    buf_done(&t.in);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_request_arrives_with_its_fields_and_a_masked_host),
        cmocka_unit_test(statuses_and_repeated_fields_pass),
        cmocka_unit_test(an_unwanted_answer_leaves_the_request_to_its_handler),
        cmocka_unit_test(the_upstream_connection_is_used_again),
        cmocka_unit_test(large_bodies_pass_in_both_directions),
        cmocka_unit_test(a_client_that_stops_reading_stops_the_upstream),
        cmocka_unit_test(events_pass_one_by_one),
        cmocka_unit_test(an_upstream_that_dies_cuts_the_client),
        cmocka_unit_test(an_upstream_that_is_not_there_is_502),
        cmocka_unit_test(an_upstream_that_is_silent_is_504),
        cmocka_unit_test(an_early_refusal_reaches_the_client),
        cmocka_unit_test(all_of_it_works_for_clients_that_speak_http_2),
        cmocka_unit_test(an_upgrade_passes_and_both_ends_close_in_turn),
        cmocka_unit_test(a_tunnel_that_is_cut_is_cut_on_both_sides),
    };
    return cmocka_run_group_tests_name("http/proxy", tests, start, stop);
}
