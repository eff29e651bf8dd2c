#include "await.h"
#include "tests/lib/unit.h"

#include <fcntl.h>
#include <nghttp2/nghttp2.h>
#include <sys/socket.h>

#include "http/client.h"
#include "http/devca.h"
#include "http/h2-flood.h"
#include "http/h2.h"
#include "http/tls.h"
#include "unit/http-app.h"

/* The app behind TLS and HTTP/2, asked by curl and h2load; and, for what good clients never do, by nghttp2 itself. */
static struct http_world w;
static struct tls_server *tls;
static struct err err;
static char dir[64], base[64], resolve[64], ca[96];
static int dirfd_ = -1;

static int start(void **state)
{
    (void)state;
    char cert[96], key[96];
    (void)snprintf(dir, sizeof dir, "/tmp/hutch-test-h2-XXXXXX");
    if (!mkdtemp(dir) || (dirfd_ = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC)) < 0)
        return -1;
    (void)snprintf(cert, sizeof cert, "%s/" DEVCA_CERT, dir);
    (void)snprintf(key, sizeof key, "%s/" DEVCA_KEY, dir);
    (void)snprintf(ca, sizeof ca, "%s/" DEVCA_CA_CERT, dir);
    if (devca_ensure(dirfd_, "e2b.localhost", time(NULL), &err) < 0 || tls_server_new(cert, key, true, &tls, &err) < 0)
        return -1;
    http_world_start(&w, tls_server_accept, tls);
    http_server_set_h2(w.server, h2_serve);
    (void)snprintf(base, sizeof base, "https://api.e2b.localhost:%d", w.port);
    (void)snprintf(resolve, sizeof resolve, "api.e2b.localhost:%d:127.0.0.1", w.port);
    return 0;
}

static int stop(void **state)
{
    (void)state;
    static const char *const names[] = {DEVCA_CA_CERT, DEVCA_CA_KEY, DEVCA_CERT, DEVCA_KEY};
    http_world_stop(&w);
    tls_server_free(tls);
    for (size_t i = 0; i < ARRAY_LEN(names); i++)
        (void)unlinkat(dirfd_, names[i], 0);
    (void)close(dirfd_);
    return rmdir(dir);
}

static int curl(struct buf *out, const char *path, const char *const *more)
{
    char url[128];
    const char *argv[24] = {"curl", "-sS", "--max-time", "20", "--http2", "--cacert", ca, "--resolve", resolve, url};
    size_t n = 10;
    (void)snprintf(url, sizeof url, "%s%s", base, path);
    for (; more && *more; more++)
        argv[n++] = *more;
    return http_world_run(&w, out, argv);
}
#define CURL(out, path, ...) curl(out, path, (const char *const[]){__VA_ARGS__ __VA_OPT__(, ) NULL})

static void curl_verifies_the_chain_and_speaks_http_2(void **state)
{
    (void)state;
    _cleanup_buf_ struct buf b = {0}, c = {0};
    int code = CURL(&b, "/hello", "-w", "%{http_version} %{ssl_verify_result}");
    if (code != 0)
        fail_msg("curl: %d %s", code, buf_str(&b));
    assert_string_equal(buf_str(&b), "hello\n2 0");
    assert_int_equal(CURL(&c, "/hello", "--http1.1", "-w", "%{http_version}"), 0);
    assert_string_equal(buf_str(&c), "hello\n1.1");
}

static void the_request_is_the_same_as_in_http_1(void **state)
{
    (void)state;
    _cleanup_buf_ struct buf b = {0}, c = {0}, d = {0};
    assert_int_equal(CURL(&b, "/who?x=%2F", "-H", "cookie: a=1", "-H", "x-one: 1", "-H", "x-one: 2", "-i"), 0);
    assert_non_null(strstr(buf_str(&b), "HTTP/2 200"));
    assert_non_null(strstr(buf_str(&b), "x-request-id: "));
    assert_non_null(strstr(buf_str(&b), "date: "));
    assert_non_null(strstr(buf_str(&b), "GET /who x=%2F authority=api.e2b.localhost:"));
    assert_non_null(strstr(buf_str(&b), "x-one: 1\nx-one: 2\n"));
    assert_non_null(strstr(buf_str(&b), "cookie: a=1\n"));
    assert_int_equal(CURL(&c, "/status/204", "-i"), 0);
    assert_non_null(strstr(buf_str(&c), "HTTP/2 204"));
    assert_non_null(strstr(buf_str(&c), "set-cookie: a=1\r\nset-cookie: b=2"));
    assert_int_equal(CURL(&d, "/bytes/777", "-I"), 0);
    assert_non_null(strstr(buf_str(&d), "content-length: 777"));
}

static void bodies_pass_whole_in_both_directions(void **state)
{
    (void)state;
    _cleanup_buf_ struct buf b = {0}, c = {0}, d = {0}, e = {0};
    char path[] = "/tmp/hutch-test-h2-body-XXXXXX", from[64];
    int fd = mkostemp(path, O_CLOEXEC);
    enum { SIZE = 6000000 };
    _cleanup_free_ char *bytes = malloc(SIZE);
    for (size_t i = 0; i < SIZE; i++)
        bytes[i] = http_app_byte(i);
    assert_int_equal(write(fd, bytes, SIZE), SIZE);
    (void)close(fd);
    (void)snprintf(from, sizeof from, "@%s", path);
    w.app.held_most = 0;
    assert_int_equal(CURL(&b, "/bytes/6000000"), 0);
    assert_int_equal(b.n, SIZE);
    assert_memory_equal(b.p, bytes, SIZE);
    assert_true(w.app.held_most <= HTTP_HIGH_WATER + 16384);
    assert_int_equal(CURL(&c, "/echo", "--data-binary", from), 0);
    assert_int_equal(c.n, SIZE);
    assert_memory_equal(c.p, bytes, SIZE);
    assert_int_equal(CURL(&d, "/slowecho", "-T", path, "-X", "POST"), 0);
    assert_int_equal(d.n, SIZE);
    assert_memory_equal(d.p, bytes, SIZE);
    assert_int_equal(CURL(&e, "/refuse", "-T", path, "-X", "POST", "-w", "%{http_code}"), 0);
    assert_string_equal(buf_str(&e), "too much\n413");
    (void)unlink(path);
}

static void streams_events_and_cuts_behave(void **state)
{
    (void)state;
    _cleanup_buf_ struct buf b = {0}, c = {0}, d = {0};
    assert_int_equal(CURL(&b, "/events", "-N"), 0);
    assert_string_equal(buf_str(&b), "data: 0\n\ndata: 1\n\ndata: 2\n\n");
    assert_int_equal(CURL(&c, "/cut"), 92); /* HTTP/2 stream error */
    assert_int_equal(CURL(&d, "/ws", "-w", "%{http_code}"), 0);
    assert_string_equal(buf_str(&d), "upgrade, please\n426");
}

static void a_client_that_goes_away_is_noticed(void **state)
{
    (void)state;
    _cleanup_buf_ struct buf b = {0};
    bool never = false;
    unsigned before = w.app.closed;
    assert_int_equal(CURL(&b, "/silent", "--max-time", "1"), 28);
    AWAIT (w.app.closed != before && w.app.open == 0)
        (void)http_world_until(&w, &never, 5);
    assert_int_equal(w.app.closed, before + 1);
    assert_int_equal(w.app.open, 0);
}

static void h2load_finds_every_answer(void **state)
{
    (void)state;
    _cleanup_buf_ struct buf b = {0};
    char url[64], connect_to[64];
    (void)snprintf(url, sizeof url, "https://localhost:%d/hello", w.port);
    (void)snprintf(connect_to, sizeof connect_to, "--connect-to=127.0.0.1:%d", w.port);
    const char *argv[] = {"h2load", "-n", "4000", "-c", "8", "-m", "32", connect_to, url, NULL};
    int code = http_world_run(&w, &b, argv);
    if (code == 127)
        skip();
    assert_int_equal(code, 0);
    if (!strstr(buf_str(&b), "4000 succeeded, 0 failed"))
        fail_msg("%s", buf_str(&b));
    (void)snprintf(url, sizeof url, "https://localhost:%d/bytes/100000", w.port);
    const char *large[] = {"h2load", "-n", "300", "-c", "3", "-m", "50", connect_to, url, NULL};
    buf_done(&b);
    assert_int_equal(http_world_run(&w, &b, large), 0);
    assert_non_null(strstr(buf_str(&b), "300 succeeded, 0 failed"));
}

/* ---- our own client over TLS ---- */

struct answer {
    struct client *c;
    uint64_t got;
    unsigned status, pauses;
    bool done, failed;
};
static void resume(void *arg) { client_resume(((struct answer *)arg)->c); }
static void a_head(void *arg, unsigned status, const struct http_fields *f, uint64_t length)
{
    (void)f, (void)length;
    ((struct answer *)arg)->status = status;
}
static void a_data(void *arg, const void *p, size_t n)
{
    struct answer *a = arg;
    for (size_t i = 0; i < n; i++)
        if (((const char *)p)[i] != http_app_byte(a->got + i))
            fail_msg("byte %llu is wrong", (unsigned long long)(a->got + i));
    a->got += n;
    if (a->got / 500000 > a->pauses && a->got < 4000000) {
        a->pauses++;
        client_pause(a->c);
        (void)loop_timer(w.loop, 1, resume, a);
    }
}
static void a_end(void *arg) { ((struct answer *)arg)->done = true; }
static void a_writable(void *arg) { (void)arg; }
static void a_error(void *arg, enum client_failure failure, const char *text)
{
    (void)failure;
    print_message("%s\n", text);
    ((struct answer *)arg)->done = ((struct answer *)arg)->failed = true;
}

static void our_client_speaks_tls_to_an_upstream(void **state)
{
    (void)state;
    static const struct client_events events = {a_head, a_data, a_end, a_writable, a_error};
    struct client_request q = {.method = "GET", .target = "/bytes/4000000", .host = "x"};
    struct tls_client *tc;
    struct answer a = {0};
    assert_int_equal(tls_client_new(&tc, &err), 0);
    a.c = client_new(w.loop, tls_client_connect(tc, http_world_dial(&w), "api.e2b.localhost"));
    for (int i = 0; i < 2; i++) {
        client_start(a.c, &q, &events, &a);
        assert_true(http_world_until(&w, &a.done, AWAIT_MS));
        assert_false(a.failed);
        assert_int_equal(a.got, 4000000);
        assert_true(client_reusable(a.c));
        a = (struct answer){.c = a.c};
    }
    client_free(a.c);
    /* A port that speaks no TLS. */
    int fds[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds), 0);
    a.c = client_new(w.loop, tls_client_connect(tc, fds[0], NULL));
    client_start(a.c, &q, &events, &a);
    assert_int_equal(write(fds[1], "HTTP/1.1 400 Bad Request\r\n\r\n", 28), 28);
    assert_true(http_world_until(&w, &a.done, AWAIT_MS));
    assert_true(a.failed);
    client_free(a.c);
    (void)close(fds[1]);
    tls_client_free(tc);
}

/* ---- a client of our own, in clear over a socket pair ---- */

struct peer {
    nghttp2_session *session;
    int fd;
    bool closed;
    unsigned refused, ok;
    uint32_t goaway;
    bool goaway_seen;
    size_t data;
    char status[4];
};

static int p_header(nghttp2_session *s, const nghttp2_frame *f, const uint8_t *name, size_t name_n,
                    const uint8_t *value, size_t value_n, uint8_t flags, void *arg)
{
    (void)s, (void)f, (void)flags;
    if (name_n == 7 && memcmp(name, ":status", 7) == 0 && value_n == 3)
        memcpy(((struct peer *)arg)->status, value, 3);
    return 0;
}

static int p_stream_close(nghttp2_session *s, int32_t id, uint32_t code, void *arg)
{
    (void)s;
    (void)id;
    struct peer *p = arg;
    p->refused += code == NGHTTP2_REFUSED_STREAM;
    p->ok += code == NGHTTP2_NO_ERROR;
    return 0;
}
static int p_frame(nghttp2_session *s, const nghttp2_frame *f, void *arg)
{
    (void)s;
    struct peer *p = arg;
    if (f->hd.type == NGHTTP2_GOAWAY) {
        p->goaway_seen = true;
        p->goaway = f->goaway.error_code;
    }
    return 0;
}
static int p_data(nghttp2_session *s, uint8_t flags, int32_t id, const uint8_t *bytes, size_t n, void *arg)
{
    (void)s, (void)flags, (void)id, (void)bytes;
    ((struct peer *)arg)->data += n;
    return 0;
}

static void p_open(struct peer *p)
{
    int fds[2];
    nghttp2_session_callbacks *cb;
    *p = (struct peer){0};
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds), 0);
    assert_int_equal(h2_serve(w.server, transport_plain(fds[0]), "test"), 0);
    p->fd = fds[1];
    assert_int_equal(nghttp2_session_callbacks_new(&cb), 0);
    nghttp2_session_callbacks_set_on_stream_close_callback(cb, p_stream_close);
    nghttp2_session_callbacks_set_on_frame_recv_callback(cb, p_frame);
    nghttp2_session_callbacks_set_on_data_chunk_recv_callback(cb, p_data);
    nghttp2_session_callbacks_set_on_header_callback(cb, p_header);
    assert_int_equal(nghttp2_session_client_new(&p->session, cb, p), 0);
    nghttp2_session_callbacks_del(cb);
    (void)nghttp2_submit_settings(p->session, NGHTTP2_FLAG_NONE, NULL, 0);
}

static void p_turn(struct peer *p, int turns)
{
    const uint8_t *out;
    uint8_t in[65536];
    while (turns-- > 0) {
        for (ssize_t n; (n = nghttp2_session_mem_send(p->session, &out)) > 0;)
            if (send(p->fd, out, (size_t)n, MSG_NOSIGNAL) < 0)
                p->closed = true;
        assert_int_equal(loop_step(w.loop, 1, &err), 0);
        ssize_t n = recv(p->fd, in, sizeof in, 0);
        if (n > 0)
            (void)nghttp2_session_mem_recv(p->session, in, (size_t)n);
        if (n == 0)
            p->closed = true;
    }
}

/* Turns until it is so. */
#define P_UNTIL(peer_, condition) \
    do {                          \
        AWAIT (condition)         \
            p_turn(peer_, 1);     \
    } while (0)

static int32_t p_ask(struct peer *p, const char *path, const nghttp2_data_provider *body)
{
#define NV(name, value)                                                                             \
    {                                                                                               \
        (uint8_t *)(uintptr_t)(name), (uint8_t *)(uintptr_t)(value), strlen(name), strlen(value), 0 \
    }
    const nghttp2_nv nv[] = {NV(":method", body ? "POST" : "GET"),
                             NV(":scheme", "http"),
                             NV(":path", path),
                             NV(":authority", "x"),
                             NV("cookie", "a=1"),
                             NV("cookie", "b=2")};
    return nghttp2_submit_request(p->session, NULL, nv, ARRAY_LEN(nv), body, NULL);
}

static void p_done(struct peer *p)
{
    nghttp2_session_del(p->session);
    (void)close(p->fd);
    AWAIT (w.app.open == 0)
        assert_int_equal(loop_step(w.loop, 1, &err), 0);
    assert_int_equal(w.app.open, 0);
}

static void a_head_that_is_too_large_is_431(void **state)
{
    (void)state;
    static const struct {
        size_t fields, size;
        const char *status;
    } cases[] = {{90, 100, "200"}, {90, 700, "431"}, {110, 1, "431"}};
    struct peer p;
    for (size_t k = 0; k < ARRAY_LEN(cases); k++) {
        nghttp2_nv nv[128] = {NV(":method", "GET"), NV(":scheme", "http"), NV(":path", "/hello"),
                              NV(":authority", "x")};
        char value[701] = {0};
        memset(value, 'v', cases[k].size);
        p_open(&p);
        for (size_t i = 0; i < cases[k].fields; i++)
            nv[4 + i] = (nghttp2_nv)NV("x-f", value);
        (void)nghttp2_submit_request(p.session, NULL, nv, 4 + cases[k].fields, NULL, NULL);
        P_UNTIL(&p, p.ok || p.closed);
        assert_string_equal(p.status, cases[k].status);
        assert_int_equal(p.ok, 1);
        p_done(&p);
    }
}

static void a_client_that_sends_frames_of_no_use_without_end_is_told_to_be_calm(void **state)
{
    (void)state;
    for (int kind = 0; kind < 2; kind++) {
        struct peer p;
        p_open(&p);
        (void)p_ask(&p, "/hello", NULL);
        P_UNTIL(&p, p.ok || p.closed);
        assert_int_equal(p.ok, 1);
        for (int i = 0; i < 3 * H2_IDLE_FRAMES && !p.goaway_seen && !p.closed; i++) {
            if (kind == 0)
                (void)nghttp2_submit_ping(p.session, NGHTTP2_FLAG_NONE, NULL);
            else
                (void)nghttp2_submit_settings(p.session, NGHTTP2_FLAG_NONE, NULL, 0);
            p_turn(&p, 1);
            if (i == H2_IDLE_FRAMES / 2)
                assert_false(p.goaway_seen);
        }
        P_UNTIL(&p, p.goaway_seen || p.closed);
        assert_true(p.goaway_seen);
        assert_int_equal(p.goaway, NGHTTP2_ENHANCE_YOUR_CALM);
        p_done(&p);
    }
}

static void a_scheme_that_is_not_http_is_400(void **state)
{
    static const struct {
        const char *scheme, *status;
    } cases[] = {{"http", "200"}, {"https", "200"}, {"ftp", "400"}, {"file", "400"}, {"HTTP", "400"}};
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct peer p;
        const nghttp2_nv nv[] = {NV(":method", "GET"), NV(":scheme", cases[i].scheme), NV(":path", "/hello"),
                                 NV(":authority", "x")};
        p_open(&p);
        (void)nghttp2_submit_request(p.session, NULL, nv, ARRAY_LEN(nv), NULL, NULL);
        P_UNTIL(&p, p.status[0] || p.closed);
        assert_string_equal(p.status, cases[i].status);
        p_done(&p);
    }
}

static void requests_that_no_handler_should_see_are_400(void **state)
{
    (void)state;
    static const char *const paths[] = {"/a#b", "/\xc3\xa4"};
    for (size_t k = 0; k < ARRAY_LEN(paths); k++) {
        struct peer p;
        p_open(&p);
        (void)p_ask(&p, paths[k], NULL);
        P_UNTIL(&p, p.status[0] || p.closed);
        assert_string_equal(p.status, "400");
        p_done(&p);
    }
    struct peer p;
    p_open(&p);
    const nghttp2_nv nv[] = {NV(":method", "GET"), NV(":scheme", "http"), NV(":path", "/hello"), NV(":authority", "x"),
                             NV("host", "y")};
    (void)nghttp2_submit_request(p.session, NULL, nv, ARRAY_LEN(nv), NULL, NULL);
    P_UNTIL(&p, p.status[0] || p.closed);
    assert_string_equal(p.status, "400");
    p_done(&p);
}

static void rapid_resets_end_the_connection(void **state)
{
    (void)state;
    struct peer p;
    p_open(&p);
    p_turn(&p, 3);
    for (int i = 0; i < 400 && !p.closed; i++) {
        int32_t id = p_ask(&p, "/silent", NULL);
        p_turn(&p, 1);
        (void)nghttp2_submit_rst_stream(p.session, 0, id, NGHTTP2_CANCEL);
        p_turn(&p, 1);
    }
    P_UNTIL(&p, p.closed);
    assert_true(p.goaway_seen);
    assert_int_equal(p.goaway, NGHTTP2_ENHANCE_YOUR_CALM);
    assert_true(p.closed);
    p_done(&p);
}

static void streams_above_the_limit_are_refused(void **state)
{
    (void)state;
    struct peer p;
    p_open(&p);
    for (int i = 0; i < 100; i++) /* before the peer has seen our settings nghttp2 lets in 100 */
        (void)p_ask(&p, "/silent", NULL);
    p_turn(&p, 5);
    for (int i = 0; i < 100; i++)
        (void)p_ask(&p, "/silent", NULL);
    P_UNTIL(&p, w.app.open >= 100);
    p_turn(&p, 10);
    assert_true(w.app.open <= H2_STREAMS);
    assert_true(w.app.open >= 100);
    p_done(&p);
}

/* The client's side never says more than its window allows, so all it could send is what one paused request holds. */
static ssize_t endless(nghttp2_session *s, int32_t id, uint8_t *p, size_t n, uint32_t *flags, nghttp2_data_source *src,
                       void *arg)
{
    (void)s, (void)id, (void)flags, (void)arg;
    memset(p, 'x', n);
    *(size_t *)src->ptr += n;
    return (ssize_t)n;
}

static void paused_once(struct http_req *r, const void *p, size_t n)
{
    (void)p;
    *(size_t *)r->user += n;
}

static size_t taken;
static struct http_req *paused_req;
static void paused_closed(struct http_req *r)
{
    (void)r;
    paused_req = NULL;
}
static void paused_handler(void *ctx, struct http_req *r)
{
    (void)ctx;
    r->user = &taken;
    r->on_data = paused_once;
    r->on_closed = paused_closed;
    paused_req = r;
    http_pause(r);
}

static void a_paused_request_keeps_the_clients_window_shut(void **state)
{
    (void)state;
    struct http_server *s;
    struct peer p;
    size_t sent = 0;
    assert_int_equal(http_server_new(w.loop, &http_default_limits, paused_handler, NULL, &s, &err), 0);
    struct http_server *app = w.server;
    w.server = s;
    p_open(&p);
    w.server = app;
    p_turn(&p, 3);
    nghttp2_data_provider body = {.source.ptr = &sent, .read_callback = endless};
    (void)p_ask(&p, "/x", &body);
    P_UNTIL(&p, paused_req);
    p_turn(&p, 100);
    assert_non_null(paused_req);
    assert_int_equal(taken, 0);
    assert_true(sent <= H2_WINDOW);
    assert_string_equal(http_field(&paused_req->fields, "cookie"), "a=1; b=2");
    http_resume(paused_req);
    P_UNTIL(&p, taken > H2_WINDOW);
    assert_true(taken > H2_WINDOW);
    http_pause(paused_req);
    p_turn(&p, 50);
    size_t at = taken;
    p_turn(&p, 20);
    assert_int_equal(taken, at);
    assert_true(sent - taken <= H2_WINDOW);
    http_server_free(s);
    assert_null(paused_req);
    p_done(&p);
}

static void an_answer_waits_for_the_clients_window(void **state)
{
    (void)state;
    struct peer p;
    p_open(&p);
    w.app.held_most = 0;
    nghttp2_session *s = p.session;
    (void)p_ask(&p, "/bytes/5000000", NULL);
    p_turn(&p, 3);
    /* Not fed back to nghttp2, no window update goes out: the server has to stop. */
    p.session = NULL;
    for (int i = 0; i < 50; i++)
        assert_int_equal(loop_step(w.loop, 1, &err), 0);
    p.session = s;
    assert_true(w.app.held_most <= HTTP_HIGH_WATER + 16384);
    P_UNTIL(&p, p.ok || p.closed);
    assert_int_equal(p.data, 5000000);
    assert_int_equal(p.ok, 1);
    p_done(&p);
}

static void noise_is_not_http_2(void **state)
{
    (void)state;
    struct peer p;
    p_open(&p);
    static const char noise[] = "GET / HTTP/1.1\r\nhost: x\r\n\r\n";
    assert_int_equal(write(p.fd, noise, sizeof noise - 1), sizeof noise - 1);
    uint8_t in[1024];
    ssize_t n = -1;
    AWAIT (n == 0) {
        assert_int_equal(loop_step(w.loop, 1, &err), 0);
        n = recv(p.fd, in, sizeof in, 0);
    }
    assert_int_equal(n, 0);
    p_done(&p);
}

static void a_drained_connection_finishes_and_says_goodbye(void **state)
{
    (void)state;
    struct peer p;
    p_open(&p);
    (void)p_ask(&p, "/events", NULL);
    P_UNTIL(&p, w.app.open > 0);
    http_server_drain(w.server); /* the last test: nothing is accepted afterwards */
    P_UNTIL(&p, p.goaway_seen || p.closed);
    assert_true(p.goaway_seen);
    assert_int_equal(p.goaway, NGHTTP2_NO_ERROR);
    assert_false(p.closed);
    P_UNTIL(&p, p.closed);
    assert_int_equal(p.data, 27);
    assert_true(p.closed);
    p_done(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(curl_verifies_the_chain_and_speaks_http_2),
        cmocka_unit_test(the_request_is_the_same_as_in_http_1),
        cmocka_unit_test(bodies_pass_whole_in_both_directions),
        cmocka_unit_test(streams_events_and_cuts_behave),
        cmocka_unit_test(a_client_that_goes_away_is_noticed),
        cmocka_unit_test(h2load_finds_every_answer),
        cmocka_unit_test(our_client_speaks_tls_to_an_upstream),
        cmocka_unit_test(a_head_that_is_too_large_is_431),
        cmocka_unit_test(a_client_that_sends_frames_of_no_use_without_end_is_told_to_be_calm),
        cmocka_unit_test(a_scheme_that_is_not_http_is_400),
        cmocka_unit_test(requests_that_no_handler_should_see_are_400),
        cmocka_unit_test(rapid_resets_end_the_connection),
        cmocka_unit_test(streams_above_the_limit_are_refused),
        cmocka_unit_test(a_paused_request_keeps_the_clients_window_shut),
        cmocka_unit_test(an_answer_waits_for_the_clients_window),
        cmocka_unit_test(noise_is_not_http_2),
        cmocka_unit_test(a_drained_connection_finishes_and_says_goodbye),
    };
    return cmocka_run_group_tests_name("http/h2", tests, start, stop);
}
