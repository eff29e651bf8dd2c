#include "tests/lib/unit.h"

#include "http/body.h"
#include "http/rpc.h"
#include "unit/carrier.h"

static struct err err;

static int note(void *arg, unsigned flags, const char *p, size_t n, struct err *e)
{
    (void)e;
    assert_int_equal(p[n], 0);
    buf_addf(arg, "%u:%.*s;", flags, (int)n, p);
    return 0;
}

static void envelopes_come_out_whole_however_they_are_cut(void **state)
{
    (void)state;
    _cleanup_buf_ struct buf wire = {0};
    rpc_envelope(&wire, 0, "{\"a\":1}", 7);
    rpc_envelope(&wire, 0, "", 0);
    rpc_envelope(&wire, RPC_FLAG_END, "{}", 2);
    assert_memory_equal(wire.p + wire.n - 7, "\x02\x00\x00\x00\x02{}", 7);
    for (size_t step = 1; step <= wire.n; step++) {
        struct rpc_reader r = {0};
        _cleanup_buf_ struct buf seen = {0};
        for (size_t i = 0; i < wire.n; i += step)
            assert_int_equal(rpc_read(&r, wire.p + i, wire.n - i < step ? wire.n - i : step, note, &seen, &err), 0);
        assert_int_equal(rpc_read_end(&r, &err), 0);
        assert_string_equal(buf_str(&seen), "0:{\"a\":1};0:;2:{};");
        rpc_reader_done(&r);
    }
}

static void bad_envelopes_are_refused_precisely(void **state)
{
    (void)state;
    static const struct {
        const char *bytes, *want;
    } bad[] = {
        {"\x01\0\0\0\x01", "the message is compressed, which was not agreed; send it as it is (flags 0)"},
        {"\x80\0\0\0\x01", "unknown envelope flags 0x80; expected 0x00 or 0x02"},
        {"\0\0\x40\0\x01", "a message of 4194305 bytes; at most 4194304 are taken"},
    };
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        struct rpc_reader r = {0};
        assert_int_equal(rpc_read(&r, bad[i].bytes, 5, note, NULL, &err), -1);
        assert_string_equal(err.msg, bad[i].want);
        rpc_reader_done(&r);
    }
    struct rpc_reader r = {0};
    assert_int_equal(rpc_read(&r, "\0\0\0", 3, note, NULL, &err), 0);
    assert_int_equal(rpc_read_end(&r, &err), -1);
    assert_string_equal(err.msg, "the body ended after 3 of the 5 bytes of an envelope's head");
    assert_int_equal(rpc_read(&r, "\0\x09{}", 4, note, NULL, &err), 0);
    assert_int_equal(rpc_read_end(&r, &err), -1);
    assert_string_equal(err.msg, "the body ended after 2 of the 9 bytes of a message");
    rpc_reader_done(&r);
}

static void codes_have_names_and_statuses(void **state)
{
    (void)state;
    for (unsigned i = RPC_CANCELED; i <= RPC_UNAUTHENTICATED; i++) {
        for (unsigned k = RPC_CANCELED; k < i; k++)
            assert_string_not_equal(rpc_code_name((enum rpc_code)i), rpc_code_name((enum rpc_code)k));
        assert_in_range(rpc_code_status((enum rpc_code)i), 400, 599);
    }
    assert_int_equal(rpc_code_status(RPC_CANCELED), 499);
    assert_int_equal(rpc_code_status(RPC_NOT_FOUND), 404);
    assert_int_equal(rpc_code_status(RPC_ALREADY_EXISTS), 409);
    assert_int_equal(rpc_code_status(RPC_UNKNOWN), 500);
}

static void unary_answers_are_plain_json(void **state)
{
    (void)state;
    struct carrier c;
    carrier_start(&c);
    rpc_error(&c.r, RPC_NOT_FOUND, "no \"x\"");
    assert_int_equal(c.status, 404);
    assert_true(c.ended);
    assert_string_equal(buf_str(&c.fields), "content-type: application/json\n");
    assert_string_equal(buf_str(&c.body), "{\"code\":\"not_found\",\"message\":\"no \\\"x\\\"\"}");
    carrier_done(&c);
    carrier_start(&c);
    rpc_reply(&c.r, "{}", 2);
    assert_int_equal(c.status, 200);
    assert_int_equal(c.length, 2);
    carrier_done(&c);
}

static void a_stream_carries_its_error_in_the_end_envelope(void **state)
{
    (void)state;
    struct carrier c;
    struct rpc_reader r = {0};
    _cleanup_buf_ struct buf seen = {0};
    carrier_start(&c);
    rpc_stream_start(&c.r);
    assert_int_equal(c.status, 200);
    assert_int_equal(c.length, HTTP_UNKNOWN);
    assert_string_equal(buf_str(&c.fields), "content-type: application/connect+json\n");
    assert_true(rpc_stream_send(&c.r, "{\"n\":1}", 7));
    rpc_stream_error(&c.r, RPC_UNAVAILABLE, "gone");
    assert_true(c.ended);
    assert_int_equal(rpc_read(&r, c.body.p, c.body.n, note, &seen, &err), 0);
    assert_string_equal(buf_str(&seen), "0:{\"n\":1};2:{\"error\":{\"code\":\"unavailable\",\"message\":\"gone\"}};");
    carrier_done(&c);
    carrier_start(&c);
    rpc_stream_start(&c.r);
    rpc_stream_end(&c.r);
    assert_int_equal(c.body.n, 7);
    assert_memory_equal(c.body.p, "\x02\0\0\0\x02{}", 7);
    carrier_done(&c);
}

static void timeouts_and_keepalives_are_read_from_fields(void **state)
{
    (void)state;
    struct http_field f[] = {{"connect-timeout-ms", "60000"}, {"keepalive-ping-interval", "50"}};
    struct http_fields fields = {f, 2}, none = {NULL, 0};
    uint64_t ms = 0;
    assert_int_equal(rpc_timeout(&fields, &ms, &err), 1);
    assert_int_equal(ms, 60000);
    assert_int_equal(rpc_keepalive_ms(&fields), 50000);
    assert_int_equal(rpc_timeout(&none, &ms, &err), 0);
    assert_int_equal(rpc_keepalive_ms(&none), 90000);
    f[0].value = "12345678901";
    f[1].value = "999999999999";
    assert_int_equal(rpc_timeout(&fields, &ms, &err), -1);
    assert_int_equal(rpc_keepalive_ms(&fields), 3600000);
    f[0].value = "-1";
    f[1].value = "0";
    assert_int_equal(rpc_timeout(&fields, &ms, &err), -1);
    assert_int_equal(rpc_keepalive_ms(&fields), 90000);
}

/* ---- body.h ---- */

static struct loop *loop; /* for deadlines; it does not turn */

struct got {
    int calls, closed;
    unsigned status;
    char error[256];
    char *text;
};

static void done(struct http_req *r, json_t *root, unsigned status, const char *error)
{
    struct got *g = r->user;
    g->calls++;
    g->status = status;
    (void)snprintf(g->error, sizeof g->error, "%s", error ? error : "");
    g->text = root ? json_dumps(root, JSON_COMPACT) : NULL;
}
static void was_closed(struct http_req *r) { ((struct got *)r->user)->closed++; }

static struct got try_body(const char *p, size_t n, size_t step, size_t max, bool envelope)
{
    struct carrier c;
    struct got g = {0};
    carrier_start(&c);
    c.r.loop = loop;
    c.r.user = &g;
    c.r.on_closed = was_closed;
    (envelope ? body_envelope : body_json)(&c.r, max, done);
    for (size_t i = 0; i < n && c.r.on_data; i += step)
        c.r.on_data(&c.r, p + i, n - i < step ? n - i : step);
    if (c.r.on_end)
        c.r.on_end(&c.r);
    assert_int_equal(g.calls, 1);
    assert_ptr_equal(c.r.user, &g);
    assert_ptr_equal(c.r.on_closed, was_closed);
    carrier_done(&c);
    return g;
}

static void a_body_is_collected_and_parsed(void **state)
{
    (void)state;
    struct got g = try_body("{\"a\": [1, 2]}", 13, 3, 0, false);
    assert_string_equal(g.error, "");
    assert_string_equal(g.text, "{\"a\":[1,2]}");
    free(g.text);
    g = try_body("", 0, 1, 0, false);
    assert_int_equal(g.status, 0);
    assert_null(g.text);
    g = try_body("\0\0\0\0\x02{}", 7, 2, 0, true);
    assert_string_equal(g.text, "{}");
    free(g.text);
    g = try_body("\0\0\0\0\x02{}\x02\0\0\0\0", 12, 12, 0, true);
    assert_string_equal(g.text, "{}");
    free(g.text);
}

static void a_bad_body_gets_a_status_and_a_reason(void **state)
{
    (void)state;
    static const char dup[] = "{\"a\":1,\"a\":2}";
    char deep[200] = {0};
    struct got g = try_body("{\"a\":", 5, 5, 0, false);
    assert_int_equal(g.status, 400);
    assert_non_null(strstr(g.error, "not valid JSON, line 1 column"));
    g = try_body(dup, sizeof dup - 1, 5, 0, false);
    assert_int_equal(g.status, 400);
    assert_non_null(strstr(g.error, "duplicate"));
    memset(deep, '[', 65);
    memset(deep + 65, ']', 65);
    g = try_body(deep, 130, 50, 0, false);
    assert_string_equal(g.error, "JSON nested deeper than 64 levels at byte 64");
    g = try_body("[\"[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[\\\"[[[\"]", 75, 75, 0, false);
    assert_int_equal(g.status, 0);
    free(g.text);
    g = try_body("[1,2,3,4]", 9, 4, 8, false);
    assert_int_equal(g.status, 413);
    assert_string_equal(g.error, "the body is longer than 8 bytes");
    g = try_body("\0\0\0\0\x02{}\0\0\0\0\x02{}", 14, 14, 0, true);
    assert_string_equal(g.error, "expected exactly one message, got another");
    g = try_body("\0\0\0\0\x03{}", 7, 7, 0, true);
    assert_string_equal(g.error, "the body ended after 2 of the 3 bytes of a message");
    g = try_body("", 0, 1, 0, true);
    assert_int_equal(g.status, 400);
}

static void a_declared_length_is_refused_before_a_byte_was_read(void **state)
{
    (void)state;
    struct carrier c;
    struct got g = {0};
    carrier_start(&c);
    c.r.loop = loop;
    c.r.user = &g;
    c.r.length = BODY_MAX + 1;
    body_json(&c.r, 0, done);
    assert_int_equal(g.status, 413);
    carrier_done(&c);
}

static void a_client_that_leaves_early_is_reported_as_closed(void **state)
{
    (void)state;
    struct carrier c;
    struct got g = {0};
    carrier_start(&c);
    c.r.loop = loop;
    c.r.user = &g;
    c.r.on_closed = was_closed;
    body_json(&c.r, 0, done);
    c.r.on_data(&c.r, "[1", 2);
    c.r.on_closed(&c.r);
    assert_int_equal(g.closed, 1);
    assert_int_equal(g.calls, 0);
    carrier_done(&c);
}

int main(void)
{
    if (loop_new(&loop, &err) < 0)
        return 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(envelopes_come_out_whole_however_they_are_cut),
        cmocka_unit_test(bad_envelopes_are_refused_precisely),
        cmocka_unit_test(codes_have_names_and_statuses),
        cmocka_unit_test(unary_answers_are_plain_json),
        cmocka_unit_test(a_stream_carries_its_error_in_the_end_envelope),
        cmocka_unit_test(timeouts_and_keepalives_are_read_from_fields),
        cmocka_unit_test(a_body_is_collected_and_parsed),
        cmocka_unit_test(a_bad_body_gets_a_status_and_a_reason),
        cmocka_unit_test(a_declared_length_is_refused_before_a_byte_was_read),
        cmocka_unit_test(a_client_that_leaves_early_is_reported_as_closed),
    };
    int failed = cmocka_run_group_tests_name("http/rpc", tests, NULL, NULL);
    loop_free(loop);
    return failed;
}
