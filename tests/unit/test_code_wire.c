#include "tests/lib/unit.h"

#include "guest/code/wire.h"

static const char key[] = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

static struct wire_part part_of(const char *s) { return (struct wire_part){s, strlen(s)}; }

/* A message with these four frames, signed. */
static void fill(struct wire_part parts[7], char signature[65], const char *header, const char *parent,
                 const char *content)
{
    parts[0] = part_of("topic");
    parts[1] = part_of("<IDS|MSG>");
    parts[3] = part_of(header);
    parts[4] = part_of(parent);
    parts[5] = part_of("{}");
    parts[6] = part_of(content);
    wire_sign(key, &parts[3], signature);
    parts[2] = part_of(signature);
}

static void a_signature_is_hmac_sha256_of_the_four_frames(void **state)
{
    (void)state;
    char text[65];
    /* RFC 4231, case 2, whose text is spread over the frames. */
    const struct wire_part parts[4] = {part_of("what do ya "), part_of("want "), part_of("for "), part_of("nothing?")};
    wire_sign("Jefe", parts, text);
    assert_string_equal(text, "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
}

static void a_message_is_read(void **state)
{
    (void)state;
    struct wire_part parts[7];
    struct wire_msg m;
    struct err err;
    char signature[65];
    fill(parts, signature, "{\"msg_type\":\"stream\"}", "{\"msg_id\":\"abc\"}", "{\"text\":\"hi\"}");
    assert_int_equal(wire_decode(key, parts, 7, &m, &err), 0);
    assert_string_equal(m.type, "stream");
    assert_string_equal(m.parent_id, "abc");
    assert_string_equal(json_string_value(json_object_get(m.content, "text")), "hi");
    wire_msg_done(&m);
    assert_true(wire_has_parent(parts, 7, "abc"));
    assert_false(wire_has_parent(parts, 7, "abd") || wire_has_parent(parts, 7, "") || wire_has_parent(parts, 6, "abc"));
}

static void what_we_send_can_be_read(void **state)
{
    (void)state;
    struct wire_out out;
    struct wire_msg m;
    struct err err;
    wire_encode(key, "session", "id", "execute_request", json_pack("{ss}", "code", "1"), &out);
    struct wire_part parts[6] = {part_of("<IDS|MSG>"), part_of(out.signature)};
    for (int i = 0; i < 4; i++)
        parts[i + 2] = (struct wire_part){buf_str(&out.frame[i]), out.frame[i].n};
    assert_int_equal(wire_decode(key, parts, 6, &m, &err), 0);
    assert_string_equal(m.type, "execute_request");
    assert_string_equal(m.parent_id, "");
    wire_msg_done(&m);
    wire_out_done(&out);
}

static void a_message_that_is_not_signed_or_not_whole_is_refused(void **state)
{
    (void)state;
    struct wire_part parts[7];
    struct wire_msg m;
    struct err err;
    char signature[65];
    const char *const good[3] = {"{\"msg_type\":\"stream\"}", "{}", "{}"};
    fill(parts, signature, good[0], good[1], good[2]);
    for (size_t n = 0; n < 7; n++)
        assert_int_equal(wire_decode(key, parts, n, &m, &err), -1);
    signature[5] ^= 1;
    assert_int_equal(wire_decode(key, parts, 7, &m, &err), -1);
    assert_non_null(strstr(err.msg, "signature"));
    parts[2].n = 10;
    assert_int_equal(wire_decode(key, parts, 7, &m, &err), -1);
    static const char *const bad[][3] = {{"{}", "{}", "{}"},
                                         {"[]", "{}", "{}"},
                                         {"{\"msg_type\":1}", "{}", "{}"},
                                         {"{\"msg_type\":\"x\"}", "null", "{}"},
                                         {"{\"msg_type\":\"x\"}", "{}", "{\"a\":}"},
                                         {"{\"msg_type\":\"x\"}", "{}", ""}};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        fill(parts, signature, bad[i][0], bad[i][1], bad[i][2]);
        assert_int_equal(wire_decode(key, parts, 7, &m, &err), -1);
        assert_null(m.header);
    }
}

static void an_output_above_the_limit_keeps_its_head(void **state)
{
    (void)state;
    size_t n = WIRE_BYTES_MAX + 1;
    char *large = malloc(n + 1), signature[65];
    struct wire_part parts[7];
    struct wire_msg m;
    struct err err;
    assert_non_null(large);
    memset(large, ' ', n);
    large[0] = '{';
    large[n - 1] = '}';
    large[n] = '\0';
    fill(parts, signature, "{\"msg_type\":\"stream\"}", "{\"msg_id\":\"abc\"}", large);
    assert_int_equal(wire_decode(key, parts, 7, &m, &err), -1);
    assert_int_equal(err.code, ERR_LIMIT);
    assert_string_equal(m.parent_id, "abc");
    assert_null(m.content);
    wire_msg_done(&m);
    free(large);
}

static void check_clean(const char *in, const char *out)
{
    _cleanup_buf_ struct buf b = {0};
    wire_add_clean(&b, in, strlen(in));
    assert_string_equal(buf_str(&b), out);
}

static void what_is_not_text_becomes_a_replacement_character(void **state)
{
    (void)state;
    check_clean("plain \xc3\xa4 \xf0\x9f\x90\x87 \\u00e4 \\\\ \\n", "plain \xc3\xa4 \xf0\x9f\x90\x87 \\u00e4 \\\\ \\n");
    check_clean("a\xff"
                "b\xc3",
                "a\xef\xbf\xbd"
                "b\xef\xbf\xbd");
    check_clean("\xed\xa0\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd");
    check_clean("\\ud83d\\udc07", "\\ud83d\\udc07");
    check_clean("\\ud83d!", "\xef\xbf\xbd!");
    check_clean("\\udc07\\ud83d", "\xef\xbf\xbd\xef\xbf\xbd");
    check_clean("\\\\ud83d", "\\\\ud83d");
    check_clean("\\", "\\");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_signature_is_hmac_sha256_of_the_four_frames),
        cmocka_unit_test(a_message_is_read),
        cmocka_unit_test(what_we_send_can_be_read),
        cmocka_unit_test(a_message_that_is_not_signed_or_not_whole_is_refused),
        cmocka_unit_test(an_output_above_the_limit_keeps_its_head),
        cmocka_unit_test(what_is_not_text_becomes_a_replacement_character),
    };
    return cmocka_run_group_tests_name("code/wire", tests, NULL, NULL);
}
