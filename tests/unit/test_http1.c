/* The HTTP/1 codec: what is refused, what is accepted, and that neither depends on how the bytes were cut. */
#include "tests/lib/unit.h"

#include "base/mem.h"
#include "http/http1.h"
#include "http1-messages.h"

struct outcome {
    unsigned status; /* 0: accepted, 1: more is needed */
    char *text;      /* what was understood */
    size_t used;
};

static void describe(struct buf *b, const struct http1_head *h)
{
    if (h->method)
        buf_addf(b, "%s %s ? %s @ %s", h->method, h->path, h->query ? h->query : "-",
                 h->authority ? h->authority : "-");
    buf_addf(b, " %u %u %s %d %llu %d%d%d\n", h->status, h->version, h->reason ? h->reason : "", (int)h->framing,
             (unsigned long long)h->length, h->keep_alive, h->upgrade, h->expect_continue);
    for (size_t i = 0; i < h->fields.n; i++)
        buf_addf(b, "%s=%s\n", h->fields.v[i].name, h->fields.v[i].value);
}

/* Feeds `step` bytes at a time. `method` NULL: a request, else an answer to that method. */
static struct outcome feed(const char *p, size_t n, size_t step, const char *method)
{
    struct outcome o = {.status = 1};
    struct http1_bad bad = {0};
    struct http1_head h;
    _cleanup_buf_ struct buf text = {0};
    size_t have = 0, scan = 0;
    ssize_t len = 0;
    while (len == 0 && have < n) {
        have = have + step < n ? have + step : n;
        len = http1_head_end(p, have, &scan, &bad);
    }
    if (len <= 0) {
        o.status = len < 0 ? bad.status : 1;
        o.text = xstrdup(len < 0 ? bad.why : "");
        return o;
    }
    _cleanup_free_ char *head = xmalloc((size_t)len);
    _cleanup_free_ struct http_field *fields = xcalloc(http1_count_fields(p, (size_t)len), sizeof *fields);
    memcpy(head, p, (size_t)len);
    int r = method ? http1_parse_response(head, (size_t)len, method, fields, &h, &bad)
                   : http1_parse_request(head, (size_t)len, fields, &h, &bad);
    if (r < 0) {
        o.status = bad.status;
        o.text = xstrdup(bad.why);
        return o;
    }
    describe(&text, &h);
    struct http1_body body;
    http1_body_start(&body, &h);
    o.used = (size_t)len;
    while (!body.done && o.used < n) {
        size_t some = step < n - o.used ? step : n - o.used, data_n;
        const char *data;
        ssize_t used = http1_body_next(&body, p + o.used, some, &data, &data_n);
        if (used < 0) {
            o.status = 400;
            o.text = xstrdup("body");
            return o;
        }
        assert_true(used > 0);
        buf_add(&text, data, data_n);
        o.used += (size_t)used;
    }
    o.status = body.done || h.framing == HTTP1_CLOSE || h.framing == HTTP1_TUNNEL ? 0 : 1;
    o.text = xstrdup(buf_str(&text));
    return o;
}

static void same_however_cut(const struct message *m, const char *method)
{
    struct outcome whole = feed(m->text, m->n, m->n, method);
    if (whole.status != m->status)
        fail_msg("%s: got %u (%s), want %u", m->name, whole.status, whole.text, m->status);
    for (size_t step = 1; step < m->n; step = step < 8 ? step + 1 : step * 2) {
        struct outcome cut = feed(m->text, m->n, step, method);
        if (cut.status != whole.status || (cut.status == 0 && cut.used != whole.used) ||
            strcmp(cut.text, whole.text) != 0)
            fail_msg("%s: in steps of %zu: %u (%s) instead of %u (%s)", m->name, step, cut.status, cut.text,
                     whole.status, whole.text);
        free(cut.text);
    }
    free(whole.text);
}

static void malformed_requests_are_refused(void **state)
{
    (void)state;
    assert_true(ARRAY_LEN(malformed) >= 59);
    for (size_t i = 0; i < ARRAY_LEN(malformed); i++)
        same_however_cut(&malformed[i], NULL);
}

static void wellformed_requests_are_accepted(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(wellformed); i++)
        same_however_cut(&wellformed[i], NULL);
}

static void check_text(const char *text, const char *method, const char *want)
{
    struct outcome o = feed(text, strlen(text), 3, method);
    assert_string_equal(o.text, want);
    free(o.text);
}

static void a_request_is_taken_apart(void **state)
{
    (void)state;
    check_text("GET /a%2Fb?x=1 HTTP/1.1\r\nHOST: Example:80\r\nX-Y:  a b\t\r\nConnection: close, Upgrade\r\n"
               "Upgrade: websocket\r\n\r\n",
               NULL,
               "GET /a%2Fb ? x=1 @ Example:80 0 11  0 0 010\nhost=Example:80\nx-y=a b\nconnection=close, Upgrade\n"
               "upgrade=websocket\n");
    check_text("POST http://a:1/b?c HTTP/1.1\r\nHost: a:1\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\nabc",
               NULL, "POST /b ? c @ a:1 0 11  1 3 101\nhost=a:1\nexpect=100-continue\ncontent-length=3\nabc");
    check_text("CONNECT a.b:443 HTTP/1.1\r\nHost: a.b:443\r\n\r\n", NULL,
               "CONNECT  ? - @ a.b:443 0 11  0 0 100\nhost=a.b:443\n");
    check_text("GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", NULL,
               "GET / ? - @ - 0 10  0 0 100\nconnection=keep-alive\n");
}

static void answers_are_framed(void **state)
{
    static const struct {
        const char *method, *text;
        enum http1_framing framing;
        bool keep;
    } cases[] = {
        {"GET", "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n", HTTP1_LENGTH, true},
        {"GET", "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", HTTP1_NONE, true},
        {"GET", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", HTTP1_CHUNKED, true},
        {"GET", "HTTP/1.1 200\r\n\r\n", HTTP1_CLOSE, false},
        {"GET", "HTTP/1.0 200 OK\r\nContent-Length: 3\r\n\r\n", HTTP1_LENGTH, false},
        {"GET", "HTTP/1.0 200 OK\r\nContent-Length: 3\r\nConnection: Keep-Alive\r\n\r\n", HTTP1_LENGTH, true},
        {"HEAD", "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n", HTTP1_NONE, true},
        {"HEAD", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", HTTP1_NONE, true},
        {"GET", "HTTP/1.1 304 Not Modified\r\nContent-Length: 3\r\n\r\n", HTTP1_NONE, true},
        {"GET", "HTTP/1.1 204 No Content\r\n\r\n", HTTP1_NONE, true},
        {"GET", "HTTP/1.1 204 No Content\r\nContent-Length: 3\r\n\r\n", HTTP1_NONE, false},
        {"GET", "HTTP/1.1 100 Continue\r\n\r\n", HTTP1_NONE, true},
        {"GET", "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n", HTTP1_TUNNEL, false},
        {"CONNECT", "HTTP/1.1 200 OK\r\n\r\n", HTTP1_TUNNEL, false},
        {"CONNECT", "HTTP/1.1 403 No\r\nContent-Length: 1\r\n\r\n", HTTP1_LENGTH, true},
    };
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct http_field fields[8];
        struct http1_head h;
        struct http1_bad bad = {0};
        _cleanup_free_ char *copy = xstrdup(cases[i].text);
        if (http1_parse_response(copy, strlen(cases[i].text), cases[i].method, fields, &h, &bad) < 0)
            fail_msg("%s: %s", cases[i].text, bad.why);
        if (h.framing != cases[i].framing || h.keep_alive != cases[i].keep)
            fail_msg("%s %s: framing %d, keep-alive %d", cases[i].method, cases[i].text, (int)h.framing, h.keep_alive);
    }
}

static void bad_answers_are_refused(void **state)
{
    static const struct message bad[] = {
        MSG("no status", "HTTP/1.1 \r\n\r\n", 502),
        MSG("two digits", "HTTP/1.1 20 OK\r\n\r\n", 502),
        MSG("four digits", "HTTP/1.1 2000 OK\r\n\r\n", 502),
        MSG("status 600", "HTTP/1.1 600 OK\r\n\r\n", 502),
        MSG("status 099", "HTTP/1.1 099 OK\r\n\r\n", 502),
        MSG("version 2", "HTTP/2.0 200 OK\r\n\r\n", 502),
        MSG("two spaces", "HTTP/1.1  200 OK\r\n\r\n", 502),
        MSG("control character in the reason", "HTTP/1.1 200 O\x01K\r\n\r\n", 502),
        MSG("length and chunked", "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", 502),
        MSG("two lengths", "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\n", 502),
        MSG("gzip", "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n", 502),
        MSG("chunked in HTTP/1.0", "HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", 502),
        MSG("space before colon", "HTTP/1.1 200 OK\r\nX : 1\r\n\r\n", 502),
    };
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(bad); i++)
        same_however_cut(&bad[i], "GET");
}

static void limits_hold(void **state)
{
    (void)state;
    _cleanup_buf_ struct buf many = {0}, exact = {0}, line = {0}, ext = {0}, trailers = {0};
    buf_adds(&many, "GET / HTTP/1.1\r\nHost: a\r\n");
    for (int i = 0; i < HTTP_FIELDS_MAX - 1; i++)
        buf_addf(&many, "x%d: y\r\n", i);
    buf_add(&exact, many.p, many.n);
    buf_adds(&exact, "\r\n");
    buf_adds(&many, "one: more\r\n\r\n");
    same_however_cut(&(struct message){"100 fields", exact.p, exact.n, 0}, NULL);
    same_however_cut(&(struct message){"101 fields", many.p, many.n, 431}, NULL);
    buf_adds(&line, "GET / HTTP/1.1\r\nHost: a\r\nX: ");
    while (line.n <= HTTP_HEAD_MAX)
        buf_addc(&line, 'x');
    same_however_cut(&(struct message){"endless field", line.p, line.n, 431}, NULL);
    line.n = 0;
    buf_adds(&line, "GET /");
    while (line.n <= HTTP_HEAD_MAX)
        buf_addc(&line, 'x');
    same_however_cut(&(struct message){"endless target", line.p, line.n, 414}, NULL);
    line.n = 5;
    while (line.n <= HTTP1_TARGET_MAX + 5)
        buf_addc(&line, 'x');
    buf_adds(&line, " HTTP/1.1\r\nHost: a\r\n\r\n");
    same_however_cut(&(struct message){"long target", line.p, line.n, 414}, NULL);
    buf_adds(&ext, "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3;");
    buf_add(&trailers, ext.p, ext.n - 2);
    for (int i = 0; i <= HTTP1_CHUNK_EXT_MAX; i++)
        buf_addc(&ext, 'e');
    buf_adds(&ext, "\r\nabc\r\n0\r\n\r\n");
    same_however_cut(&(struct message){"long extension", ext.p, ext.n, 400}, NULL);
    buf_adds(&trailers, "0\r\nx: ");
    for (int i = 0; i < HTTP1_TRAILERS_MAX; i++)
        buf_addc(&trailers, 't');
    buf_adds(&trailers, "\r\n\r\n");
    same_however_cut(&(struct message){"long trailers", trailers.p, trailers.n, 400}, NULL);
}

static void heads_are_written_anew(void **state)
{
    (void)state;
    _cleanup_buf_ struct buf b = {0};
    http1_add_request(&b, "GET", "/p?q", "new");
    http1_add_field(&b, "x-a", "1");
    http1_add_field(&b, "x-b", "");
    http1_add_framing(&b, HTTP1_LENGTH, 12);
    http1_add_end(&b);
    assert_string_equal(b.p, "GET /p?q HTTP/1.1\r\nhost: new\r\nx-a: 1\r\nx-b: \r\ncontent-length: 12\r\n\r\n");
    b.n = 0;
    http1_add_status(&b, 404);
    http1_add_framing(&b, HTTP1_CHUNKED, 0);
    assert_string_equal(b.p, "HTTP/1.1 404 Not Found\r\ntransfer-encoding: chunked\r\n");
    char line[HTTP1_CHUNK_LINE];
    assert_int_equal(http1_chunk_line(line, 0x1f40), 6);
    assert_memory_equal(line, "1f40\r\n", 6);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(malformed_requests_are_refused), cmocka_unit_test(wellformed_requests_are_accepted),
        cmocka_unit_test(a_request_is_taken_apart),       cmocka_unit_test(answers_are_framed),
        cmocka_unit_test(bad_answers_are_refused),        cmocka_unit_test(limits_hold),
        cmocka_unit_test(heads_are_written_anew),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
