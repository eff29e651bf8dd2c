#include "await.h"
#include "tests/lib/unit.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/socket.h>

#include "http/client.h"
#include "unit/http-app.h"

static struct http_world w;

static int start(void **state)
{
    (void)state;
    http_world_start(&w, NULL, NULL);
    return 0;
}
static int stop(void **state)
{
    (void)state;
    http_world_stop(&w);
    return 0;
}

struct answer {
    struct client *c;
    struct buf body, fields;
    uint64_t length, got;
    unsigned status;
    enum client_failure failure;
    char error[160];
    uint64_t upload; /* bytes still to be written */
    bool check, hold, done, failed, writable, free_in_head;
    size_t queued_most;
};

static void on_head(void *arg, unsigned status, const struct http_fields *f, uint64_t length)
{
    struct answer *a = arg;
    assert_int_equal(a->status, 0);
    a->status = status;
    a->length = length;
    for (size_t i = 0; i < f->n; i++)
        buf_addf(&a->fields, "%s: %s\n", f->v[i].name, f->v[i].value);
    if (a->hold)
        client_pause(a->c);
    if (a->free_in_head) {
        client_free(a->c);
        a->done = true;
    }
}
static void on_data(void *arg, const void *p, size_t n)
{
    struct answer *a = arg;
    assert_false(a->hold);
    assert_false(a->free_in_head);
    if (!a->check)
        buf_add(&a->body, p, n);
    for (size_t i = 0; a->check && i < n; i++)
        if (((const char *)p)[i] != http_app_byte(a->got + i))
            fail_msg("byte %llu is wrong", (unsigned long long)(a->got + i));
    a->got += n;
}
static void on_end(void *arg) { ((struct answer *)arg)->done = true; }

static void upload(struct answer *a)
{
    char piece[10000];
    bool more = true;
    while (a->upload > 0 && more) {
        size_t n = a->upload < sizeof piece ? (size_t)a->upload : sizeof piece;
        for (size_t i = 0; i < n; i++)
            piece[i] = http_app_byte(i);
        more = client_write(a->c, piece, n);
        a->upload -= n;
        if (client_queued(a->c) > a->queued_most)
            a->queued_most = client_queued(a->c);
    }
    if (a->upload == 0)
        client_end(a->c);
}
static void on_writable(void *arg)
{
    struct answer *a = arg;
    a->writable = true;
    upload(a);
}
static void on_error(void *arg, enum client_failure failure, const char *text)
{
    struct answer *a = arg;
    a->failed = a->done = true;
    a->failure = failure;
    (void)snprintf(a->error, sizeof a->error, "%s", text);
}
static const struct client_events events = {on_head, on_data, on_end, on_writable, on_error};

static void ask(struct answer *a, const char *method, const char *target, uint64_t length)
{
    struct client_request q = {.method = method, .target = target, .host = "test", .length = length};
    struct client *c = a->c ? a->c : client_new(w.loop, transport_plain(http_world_dial(&w)));
    buf_done(&a->body);
    buf_done(&a->fields);
    *a = (struct answer){.c = c, .hold = a->hold, .check = a->check, .free_in_head = a->free_in_head};
    client_start(c, &q, &events, a);
}

static void drop(struct answer *a)
{
    client_free(a->c);
    buf_done(&a->body);
    buf_done(&a->fields);
    *a = (struct answer){0};
}

static void one_connection_serves_several_exchanges(void **state)
{
    (void)state;
    struct answer a = {0};
    for (int i = 0; i < 3; i++) {
        ask(&a, "GET", "/hello", 0);
        assert_false(client_reusable(a.c));
        assert_true(http_world_until(&w, &a.done, AWAIT_MS));
        assert_int_equal(a.status, 200);
        assert_int_equal(a.length, 6);
        assert_string_equal(buf_str(&a.body), "hello\n");
        assert_true(client_reusable(a.c));
    }
    assert_int_equal(http_server_connections(w.server), 1);
    ask(&a, "HEAD", "/bytes/1000", 0);
    assert_true(http_world_until(&w, &a.done, AWAIT_MS));
    assert_int_equal(a.length, 1000);
    assert_int_equal(a.body.n, 0);
    ask(&a, "GET", "/status/204", 0);
    assert_true(http_world_until(&w, &a.done, AWAIT_MS));
    assert_int_equal(a.status, 204);
    ask(&a, "POST", "/count", 0);
    assert_true(http_world_until(&w, &a.done, AWAIT_MS));
    assert_string_equal(buf_str(&a.body), "0\n");
    assert_true(client_reusable(a.c));
    drop(&a);
}

static void a_large_answer_comes_whole(void **state)
{
    (void)state;
    struct answer a = {.check = true};
    ask(&a, "GET", "/bytes/20000000", 0);
    assert_true(http_world_until(&w, &a.done, AWAIT_MS));
    assert_false(a.failed);
    assert_int_equal(a.got, 20000000);
    assert_true(w.app.held_most < HTTP_HIGH_WATER + 16384);
    drop(&a);
}

static void a_body_goes_out_with_back_pressure(void **state)
{
    (void)state;
    struct answer a = {0};
    for (int chunked = 0; chunked < 2; chunked++) {
        ask(&a, "POST", "/count", chunked ? HTTP_UNKNOWN : 20000000);
        a.upload = 20000000;
        upload(&a);
        assert_true(http_world_until(&w, &a.done, AWAIT_MS));
        assert_string_equal(buf_str(&a.body), "20000000\n");
        assert_true(a.writable);
        assert_true(a.queued_most > HTTP_LOW_WATER && a.queued_most < HTTP_HIGH_WATER + 20000);
        assert_true(client_reusable(a.c));
    }
    drop(&a);
}

static void a_paused_answer_waits_and_goes_on(void **state)
{
    (void)state;
    struct answer a = {.hold = true, .check = true};
    bool never = false;
    ask(&a, "GET", "/bytes/3000000", 0);
    AWAIT (a.status != 0)
        (void)http_world_until(&w, &never, 5);
    (void)http_world_until(&w, &never, 50);
    assert_int_equal(a.status, 200);
    assert_int_equal(a.got, 0);
    a.hold = false;
    client_resume(a.c);
    assert_true(http_world_until(&w, &a.done, AWAIT_MS));
    assert_int_equal(a.got, 3000000);
    drop(&a);
}

static void a_refusal_before_the_end_of_the_body_is_read(void **state)
{
    (void)state;
    struct answer a = {0};
    ask(&a, "POST", "/refuse", 30000000);
    a.upload = 30000000;
    upload(&a);
    assert_true(http_world_until(&w, &a.done, AWAIT_MS));
    assert_int_equal(a.status, 413);
    assert_false(client_reusable(a.c));
    drop(&a);
}

static void a_cut_answer_is_an_error(void **state)
{
    (void)state;
    struct answer a = {0};
    ask(&a, "GET", "/cut", 0);
    assert_true(http_world_until(&w, &a.done, AWAIT_MS));
    assert_true(a.failed);
    assert_int_equal(a.failure, CLIENT_BROKEN);
    assert_string_equal(buf_str(&a.body), "half");
    assert_non_null(strstr(a.error, "the answer was cut short"));
    drop(&a);
}

static void a_closed_port_is_an_error_of_its_own(void **state)
{
    (void)state;
    struct answer a = {0};
    struct http_world other;
    http_world_start(&other, NULL, NULL);
    other.loop = (http_world_stop(&other), NULL);
    a.c = client_new(w.loop, transport_plain(http_world_dial(&other)));
    ask(&a, "GET", "/hello", 0);
    assert_true(http_world_until(&w, &a.done, AWAIT_MS));
    assert_int_equal(a.failure, CLIENT_UNREACHED);
    assert_string_equal(a.error, "the connection could not be made: Connection refused");
    drop(&a);
}

static void a_client_may_be_freed_in_its_own_callback(void **state)
{
    (void)state;
    struct answer a = {.free_in_head = true};
    ask(&a, "GET", "/bytes/100000", 0);
    assert_true(http_world_until(&w, &a.done, AWAIT_MS));
    a.c = NULL;
    drop(&a);
    ask(&a, "GET", "/silent", 0);
    drop(&a); /* before anything happened */
}

/* ---- against bytes that no good server would send ---- */

static void raw(const char *bytes, struct answer *a)
{
    int fds[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds), 0);
    a->c = client_new(w.loop, transport_plain(fds[0]));
    ask(a, "GET", "/", 0);
    assert_int_equal(write(fds[1], bytes, strlen(bytes)), strlen(bytes));
    (void)shutdown(fds[1], SHUT_WR);
    assert_true(http_world_until(&w, &a->done, AWAIT_MS));
    (void)close(fds[1]);
}

static void bad_answers_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *bytes;
        enum client_failure failure;
    } bad[] = {
        {"", CLIENT_UNANSWERED},
        {"HTTP/1.1 200 OK\r\ncontent-le", CLIENT_BROKEN},
        {"SSH-2.0-OpenSSH_9.2\r\n\r\n", CLIENT_BROKEN},
        {"HTTP/1.1 200 OK\ncontent-length: 1\n\nx", CLIENT_BROKEN},
        {"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nx", CLIENT_BROKEN},
        {"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nabc", CLIENT_BROKEN},
        {"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabcd", CLIENT_BROKEN},
        {"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n", CLIENT_BROKEN},
        {"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n", CLIENT_BROKEN},
    };
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        struct answer a = {0};
        raw(bad[i].bytes, &a);
        if (!a.failed || a.failure != bad[i].failure)
            fail_msg("case %zu: failed %d as %d: %s", i, a.failed, a.failure, a.error);
        drop(&a);
    }
}

static void good_answers_of_all_framings_are_taken(void **state)
{
    (void)state;
    static const struct {
        const char *bytes, *body;
    } good[] = {
        {"HTTP/1.1 200 OK\r\n\r\nuntil the end", "until the end"},
        {"HTTP/1.0 200 OK\r\n\r\n", ""},
        {"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: "
         "2\r\n\r\nok",
         "ok"},
        {"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\na\r\n2;x=y\r\nbc\r\n0\r\nt: v\r\n\r\n", "abc"},
        {"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok, and more", "ok"},
        {"HTTP/1.1 304 Not Modified\r\ncontent-length: 20\r\n\r\n", ""},
    };
    for (size_t i = 0; i < ARRAY_LEN(good); i++) {
        struct answer a = {0};
        raw(good[i].bytes, &a);
        if (a.failed || strcmp(buf_str(&a.body), good[i].body) != 0)
            fail_msg("case %zu: '%s' %s", i, buf_str(&a.body), a.error);
        assert_false(client_reusable(a.c));
        drop(&a);
    }
}

static void an_endless_head_is_refused(void **state)
{
    (void)state;
    struct answer a = {0};
    _cleanup_buf_ struct buf bytes = {0};
    buf_adds(&bytes, "HTTP/1.1 200 OK\r\nx: ");
    while (bytes.n < HTTP_HEAD_MAX + 100)
        buf_adds(&bytes, "aaaaaaaaaaaaaaaa");
    raw(buf_str(&bytes), &a);
    assert_int_equal(a.failure, CLIENT_BROKEN);
    drop(&a);
    buf_done(&bytes);
    for (int i = 0; i < 40; i++)
        buf_adds(&bytes, "HTTP/1.1 100 Continue\r\n\r\n");
    raw(buf_str(&bytes), &a);
    assert_string_equal(a.error, "too many interim answers");
    drop(&a);
}

static void a_body_shorter_than_announced_is_the_callers_error(void **state)
{
    (void)state;
    struct answer a = {0};
    ask(&a, "POST", "/count", 100);
    (void)client_write(a.c, "abc", 3);
    client_end(a.c);
    assert_true(http_world_until(&w, &a.done, AWAIT_MS));
    assert_string_equal(a.error, "the request's body ended before its announced length");
    drop(&a);
}

static void an_upgrade_is_a_tunnel_with_two_ends(void **state)
{
    (void)state;
    struct answer a = {0};
    static const struct http_field fields[] = {{"connection", "upgrade"}, {"upgrade", "websocket"}};
    struct client_request q = {
        .method = "GET", .target = "/ws", .host = "test", .fields = {fields, 2}, .upgrade = true};
    bool never = false;
    a.c = client_new(w.loop, transport_plain(http_world_dial(&w)));
    client_start(a.c, &q, &events, &a);
    AWAIT (a.status != 0)
        (void)http_world_until(&w, &never, 5);
    assert_int_equal(a.status, 101);
    assert_non_null(strstr(buf_str(&a.fields), "upgrade: websocket"));
    (void)client_write(a.c, "ping", 4);
    AWAIT (a.body.n >= 4)
        (void)http_world_until(&w, &never, 5);
    assert_string_equal(buf_str(&a.body), "ping");
    client_end(a.c);
    assert_true(http_world_until(&w, &a.done, AWAIT_MS));
    assert_string_equal(buf_str(&a.body), "ping[end]");
    assert_false(client_reusable(a.c));
    drop(&a);
}

static void nothing_is_left_open(void **state)
{
    (void)state;
    bool never = false;
    AWAIT (w.app.open == 0)
        (void)http_world_until(&w, &never, 5);
    assert_int_equal(w.app.open, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_connection_serves_several_exchanges),
        cmocka_unit_test(a_large_answer_comes_whole),
        cmocka_unit_test(a_body_goes_out_with_back_pressure),
        cmocka_unit_test(a_paused_answer_waits_and_goes_on),
        cmocka_unit_test(a_refusal_before_the_end_of_the_body_is_read),
        cmocka_unit_test(a_cut_answer_is_an_error),
        cmocka_unit_test(a_closed_port_is_an_error_of_its_own),
        cmocka_unit_test(a_client_may_be_freed_in_its_own_callback),
        cmocka_unit_test(bad_answers_are_refused),
        cmocka_unit_test(good_answers_of_all_framings_are_taken),
        cmocka_unit_test(an_endless_head_is_refused),
        cmocka_unit_test(a_body_shorter_than_announced_is_the_callers_error),
        cmocka_unit_test(an_upgrade_is_a_tunnel_with_two_ends),
        cmocka_unit_test(nothing_is_left_open),
    };
    return cmocka_run_group_tests_name("http/client", tests, start, stop);
}
