/* The ClientHello reader. */
#include "egress/hello.h"
#include "tests/lib/unit.h"

static void put16(struct buf *b, size_t v)
{
    buf_addc(b, (char)(v >> 8));
    buf_addc(b, (char)v);
}

static void add_extension(struct buf *b, unsigned type, const void *p, size_t n)
{
    put16(b, type);
    put16(b, n);
    buf_add(b, p, n);
}

static void add_sni(struct buf *b, const char *name, size_t n)
{
    _cleanup_buf_ struct buf e = {0};
    put16(&e, n + 3);
    buf_addc(&e, 0);
    put16(&e, n);
    buf_add(&e, name, n);
    add_extension(b, 0, e.p, e.n);
}

/* The handshake message around extensions. */
static void message(struct buf *ret, const struct buf *extensions)
{
    _cleanup_buf_ struct buf b = {0};
    put16(&b, 0x0303);
    for (int i = 0; i < 32; i++)
        buf_addc(&b, (char)i);
    buf_addc(&b, 0);
    put16(&b, 2);
    put16(&b, 0x1301);
    buf_add(&b, "\x01\x00", 2);
    put16(&b, extensions->n);
    buf_add(&b, extensions->p, extensions->n);
    buf_add(ret, "\x01\x00", 2);
    put16(ret, b.n);
    buf_add(ret, b.p, b.n);
}

static void records(struct buf *ret, const struct buf *m, size_t size)
{
    for (size_t at = 0; at < m->n; at += size) {
        size_t n = m->n - at < size ? m->n - at : size;
        buf_add(ret, "\x16\x03\x01", 3);
        put16(ret, n);
        buf_add(ret, m->p + at, n);
    }
}

static unsigned char scratch[HELLO_MAX];
static struct hello h;

static int parse_extensions(const struct buf *extensions, size_t record)
{
    _cleanup_buf_ struct buf m = {0}, r = {0};
    message(&m, extensions);
    records(&r, &m, record);
    return hello_parse(r.p, r.n, scratch, &h);
}

static void test_a_name_is_found_whatever_stands_before_it(void **state)
{
    _cleanup_buf_ struct buf e = {0};
    char big[8000];
    (void)state;
    memset(big, 0, sizeof big);
    add_extension(&e, 51, big, sizeof big);
    add_sni(&e, "Api.Example.", 12);
    assert_int_equal(parse_extensions(&e, 16384), 1);
    assert_true(h.has_sni && !h.ech && !h.has_alpn);
    assert_string_equal(h.sni, "Api.Example.");
}

static void test_a_hello_may_come_byte_by_byte_and_in_many_records(void **state)
{
    _cleanup_buf_ struct buf e = {0}, m = {0}, r = {0};
    (void)state;
    add_sni(&e, "a.example", 9);
    message(&m, &e);
    records(&r, &m, 3);
    size_t asked = 0;
    for (size_t n = 0; n < r.n; n++) {
        if (n < h.need)
            continue;
        asked++;
        assert_int_equal(hello_parse(r.p, n, scratch, &h), 0);
        assert_true(h.need > n && h.need <= r.n);
    }
    assert_true(asked < r.n / 2);
    assert_int_equal(hello_parse(r.p, r.n, scratch, &h), 1);
    assert_string_equal(h.sni, "a.example");
}

static void test_protocols_and_versions_are_listed(void **state)
{
    _cleanup_buf_ struct buf e = {0};
    (void)state;
    add_extension(&e, 16, "\x00\x0c\x02h2\x08http/1.1", 14);
    add_extension(&e, 43, "\x04\x03\x04\x03\x03", 5);
    add_extension(&e, 0xfe0d, "x", 1);
    assert_int_equal(parse_extensions(&e, 16384), 1);
    assert_true(h.has_alpn && h.alpn_http && h.tls12 && h.tls13 && h.ech && !h.has_sni);
    assert_int_equal(h.nalpn, 2);
    assert_memory_equal(h.alpn[0].p, "h2", 2);
}

static void test_a_protocol_that_is_not_http_is_told_apart(void **state)
{
    _cleanup_buf_ struct buf e = {0};
    (void)state;
    add_extension(&e, 16, "\x00\x05\x04smtp", 7);
    assert_int_equal(parse_extensions(&e, 16384), 1);
    assert_true(h.has_alpn && !h.alpn_http);
}

static void test_two_names_are_refused(void **state)
{
    _cleanup_buf_ struct buf twice = {0}, list = {0};
    (void)state;
    add_sni(&twice, "a.example", 9);
    add_sni(&twice, "b.example", 9);
    assert_int_equal(parse_extensions(&twice, 16384), -1);
    assert_string_equal(h.why, "an extension occurs twice");
    add_extension(&list, 0,
                  "\x00\x08\x00\x00\x01"
                  "a\x00\x00\x01"
                  "b",
                  10);
    assert_int_equal(parse_extensions(&list, 16384), -1);
    assert_string_equal(h.why, "the server_name extension holds more than one name");
}

static void test_a_name_with_a_nul_is_no_name(void **state)
{
    _cleanup_buf_ struct buf e = {0};
    (void)state;
    add_sni(&e, "a.example\0.b", 12);
    assert_int_equal(parse_extensions(&e, 16384), 1);
    assert_true(h.has_sni);
    assert_string_equal(h.sni, "");
}

static void test_lengths_that_do_not_add_up_are_refused(void **state)
{
    _cleanup_buf_ struct buf e = {0}, m = {0}, r = {0};
    (void)state;
    add_extension(&e, 16, "\x00\x0c\x02h2", 5);
    assert_int_equal(parse_extensions(&e, 16384), -1);
    buf_done(&e);
    add_sni(&e, "a.example", 9);
    message(&m, &e);
    m.p[3]++; /* one byte more than there is: more is waited for */
    records(&r, &m, 16384);
    assert_int_equal(hello_parse(r.p, r.n, scratch, &h), 0);
    m.p[3] = (char)(m.p[3] - 2);
    buf_done(&r);
    records(&r, &m, 16384);
    assert_int_equal(hello_parse(r.p, r.n, scratch, &h), -1);
}

static void test_what_is_too_long_or_another_message_is_refused_at_once(void **state)
{
    (void)state;
    assert_int_equal(hello_parse("\x16\x03\x01\x00\x04\x01\x00\x40\x01", 9, scratch, &h), -1);
    assert_string_equal(h.why, "the message is longer than 16 KiB");
    assert_int_equal(hello_parse("\x16\x03\x01\x00\x04\x02\x00\x00\x01", 9, scratch, &h), -1);
    assert_string_equal(h.why, "the first message is not a ClientHello");
    assert_int_equal(hello_parse("\x16\x03\x01\x00\x00", 5, scratch, &h), -1);
    assert_int_equal(hello_parse("\x17\x03\x01\x00\x01", 5, scratch, &h), -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_name_is_found_whatever_stands_before_it),
        cmocka_unit_test(test_a_hello_may_come_byte_by_byte_and_in_many_records),
        cmocka_unit_test(test_protocols_and_versions_are_listed),
        cmocka_unit_test(test_a_protocol_that_is_not_http_is_told_apart),
        cmocka_unit_test(test_two_names_are_refused),
        cmocka_unit_test(test_a_name_with_a_nul_is_no_name),
        cmocka_unit_test(test_lengths_that_do_not_add_up_are_refused),
        cmocka_unit_test(test_what_is_too_long_or_another_message_is_refused_at_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
