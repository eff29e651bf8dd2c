#include "tests/lib/unit.h"

#include "http/multipart.h"

static struct err err;

/* Everything that was called back, as text: [name|filename|type]content/ ... end. */
struct seen {
    struct buf text;
    bool refuse;
};

static int begin(void *arg, const struct multipart_part *part, struct err *e)
{
    struct seen *s = arg;
    if (s->refuse)
        return err_set(e, ERR_USAGE, 0, "not this one");
    buf_addf(&s->text, "[%s|%s|%s|%zu]", part->name, part->filename ? part->filename : "-",
             part->content_type ? part->content_type : "-", part->fields.n);
    return 0;
}
static int data(void *arg, const void *p, size_t n, struct err *e)
{
    (void)e;
    assert_true(n > 0);
    buf_add(&((struct seen *)arg)->text, p, n);
    return 0;
}
static int part_end(void *arg, struct err *e)
{
    (void)e;
    buf_addc(&((struct seen *)arg)->text, '/');
    return 0;
}
static int end(void *arg, struct err *e)
{
    (void)e;
    buf_adds(&((struct seen *)arg)->text, "end");
    return 0;
}
static const struct multipart_events events = {begin, data, part_end, end};

/* Feeds the body in pieces of `step`. */
static int parse(const char *type, const char *body, size_t n, size_t step, struct seen *s)
{
    struct multipart *m;
    int status = 0;
    if (multipart_new(type, &events, s, &m, &err) < 0)
        return -1;
    for (size_t i = 0; i < n && status == 0; i += step) {
        size_t take = n - i < step ? n - i : step;
        _cleanup_free_ char *exact = malloc(take);
        memcpy(exact, body + i, take);
        status = multipart_feed(m, exact, take, &err);
    }
    if (status == 0)
        status = multipart_finish(m, &err);
    multipart_free(m);
    return status;
}

#define TYPE "multipart/form-data; boundary=XYZ"

static void expect(const char *type, const char *body, const char *want)
{
    size_t n = strlen(body);
    for (size_t step = 1; step <= n; step++) {
        struct seen s = {0};
        if (parse(type, body, n, step, &s) < 0)
            fail_msg("step %zu: %s", step, err.msg);
        assert_string_equal(buf_str(&s.text), want);
        buf_done(&s.text);
    }
}

static void expect_error(const char *body, const char *want)
{
    size_t n = strlen(body);
    for (size_t step = 1; step <= n; step++) {
        struct seen s = {0};
        assert_int_equal(parse(TYPE, body, n, step, &s), -1);
        assert_string_equal(err.msg, want);
        assert_int_equal(err.code, ERR_USAGE);
        buf_done(&s.text);
    }
}

static void parts_come_out_whole_however_they_are_cut(void **state)
{
    (void)state;
    expect(TYPE,
           "--XYZ\r\nContent-Disposition: form-data; name=\"file\"; filename=\"dir/a.txt\"\r\nContent-Type: "
           "text/plain\r\n\r\n"
           "hello\r\n--XYZ\r\ncontent-disposition:form-data;name=b\r\n\r\n\r\n--XYZ--\r\nignored",
           "[file|dir/a.txt|text/plain|2]hello/[b|-|-|1]/end");
}

static void near_misses_of_the_boundary_are_content(void **state)
{
    (void)state;
    expect(
        TYPE,
        "preamble\r\n--XYZ \t\r\nContent-Disposition: form-data; name=f\r\n\r\n\r\r\n\r\n-\r\n--XY\r\n--X\r\r\n--XYZ--",
        "[f|-|-|1]\r\r\n\r\n-\r\n--XY\r\n--X\r/end");
    expect(TYPE, "--XYZ--", "end");
}

static void file_names_are_decoded_as_browsers_write_them(void **state)
{
    (void)state;
    expect(TYPE,
           "--XYZ\r\nContent-Disposition: form-data; name=\"a%22b\"; "
           "filename=\"/home/x/a%22b%0D%0ac%41;d=\\\"e\\\\f\\g\"\r\n\r\n"
           "\r\n--XYZ--",
           "[a\"b|/home/x/a\"b\r\nc%41;d=\"e\\f\\g|-|1]/end");
    expect(TYPE,
           "--XYZ\r\nContent-Disposition: form-data; name=f; filename=\"_.txt\"; "
           "filename*=UTF-8''%C3%A4.txt\r\n\r\nx\r\n--XYZ--",
           "[f|\xc3\xa4.txt|-|1]x/end");
    expect(TYPE, "--XYZ\r\nContent-Disposition: form-data; name=f; filename=\"\"\r\n\r\nx\r\n--XYZ--", "[f||-|1]x/end");
}

static void the_boundary_comes_from_the_content_type(void **state)
{
    (void)state;
    struct seen s = {0};
    static const char part[] = "\r\nContent-Disposition: form-data; name=f\r\n\r\nx\r\n";
    _cleanup_buf_ struct buf body = {0};
    buf_addf(&body, "--a b:c%s--a b:c--", part);
    expect("Multipart/Form-Data; charset=utf-8; Boundary=\"a b:c\"", body.p, "[f|-|-|1]x/end");
    assert_int_equal(parse("multipart/form-data", "x", 1, 1, &s), -1);
    assert_string_equal(err.msg, "content-type: multipart/form-data without a boundary");
    assert_int_equal(parse("multipart/mixed; boundary=a", "x", 1, 1, &s), -1);
    assert_int_equal(parse(NULL, "x", 1, 1, &s), -1);
    assert_int_equal(parse("multipart/form-data; boundary=\"a\tb\"", "x", 1, 1, &s), -1);
    assert_int_equal(parse("multipart/form-data; boundary=\"\"", "x", 1, 1, &s), -1);
    assert_int_equal(parse("multipart/form-data; boundary=\"abc", "x", 1, 1, &s), -1);
    assert_int_equal(parse("multipart/form-data; boundary="
                           "0123456789012345678901234567890123456789012345678901234567890123456789X",
                           "x", 1, 1, &s),
                     -1);
}

static void errors_say_what_is_wrong(void **state)
{
    (void)state;
    expect_error("--XYZ\r\n\r\nx\r\n--XYZ--", "multipart body, part 1: no content-disposition");
    expect_error("--XYZ\r\nContent-Disposition: form-data\r\n\r\nx",
                 "multipart body, part 1: content-disposition without a name");
    expect_error("--XYZ\r\nContent-Disposition: attachment; name=x\r\n\r\nx",
                 "multipart body, part 1: content-disposition must be form-data");
    expect_error("--XYZ\r\nContent-Disposition: form-data; name=\"x\r\n\r\nx",
                 "multipart body, part 1: content-disposition has a parameter that is not well formed; expected ; "
                 "name=\"value\"");
    expect_error("--XYZ\r\nContent-Disposition: form-data; name=x; name=y\r\n\r\nx",
                 "multipart body, part 1: content-disposition gives name or filename twice");
    expect_error("--XYZ\nContent",
                 "multipart body: the boundary after part 0 is followed by byte 0x0a; expected CR LF or \"--\"");
    expect_error("--XYZ\r\nContent-Disposition: form-data; name=x\n\nx",
                 "multipart body, part 1: a header line ends with a bare LF; line ends are CR LF");
    expect_error("--XYZ\r\nContent-Disposition: form-data;\r\n name=x\r\n\r\nx",
                 "multipart body, part 1: content-disposition without a name");
    expect_error("--XYZ\r\nContent-Disposition: form-data; name=x\r\n folded\r\n\r\nx",
                 "multipart body, part 1: a header line begins without a field name (folded lines are not taken)");
    expect_error("--XYZ\r\nContent-Disposition: form-data; name=x\r\n\r\nhello",
                 "multipart body, part 1: the body ended before the closing boundary");
    expect_error("--XYZ\r\nContent-Disposition: form-data; name=x\r\n\r\nhello\r\n--XYZ-",
                 "multipart body, part 1: the body ended before the closing boundary");
    expect_error("no boundary here", "multipart body: it ended before the first boundary");
    expect_error("--XYZ\r\nContent-Disposition: form-data; name=x\r\n\r\nhello\r\n--XYZW",
                 "multipart body: the boundary after part 1 is followed by byte 0x57; expected CR LF or \"--\"");
}

static void sizes_are_bounded(void **state)
{
    (void)state;
    struct seen s = {0};
    _cleanup_buf_ struct buf body = {0};
    buf_adds(&body, "--XYZ\r\nContent-Disposition: form-data; name=x\r\nx-long: ");
    while (body.n < MULTIPART_HEADER_MAX + 20)
        buf_addc(&body, 'a');
    assert_int_equal(parse(TYPE, body.p, body.n, 4096, &s), -1);
    assert_string_equal(err.msg, "multipart body, part 1: the header is longer than 8192 bytes");
    buf_done(&body);
    while (body.n < MULTIPART_PREAMBLE_MAX + 10)
        buf_addc(&body, 'a');
    assert_int_equal(parse(TYPE, body.p, body.n, 4096, &s), -1);
    buf_done(&body);
    buf_adds(&body, "--XYZ\r\nContent-Disposition: form-data; name=x\r\n");
    for (int i = 0; i < MULTIPART_FIELDS_MAX; i++)
        buf_adds(&body, "a: b\r\n");
    buf_adds(&body, "\r\nx\r\n--XYZ--");
    assert_int_equal(parse(TYPE, body.p, body.n, 4096, &s), -1);
    assert_string_equal(err.msg, "multipart body, part 1: too many header fields");
    buf_done(&body);
    for (int i = 0; i <= MULTIPART_PARTS_MAX; i++)
        buf_adds(&body, "--XYZ\r\nContent-Disposition: form-data; name=x\r\n\r\n\r\n");
    assert_int_equal(parse(TYPE, body.p, body.n, 65536, &s), -1);
    assert_string_equal(err.msg, "multipart body: more than 10000 parts");
    buf_done(&s.text);
}

static void a_callback_can_refuse_a_part(void **state)
{
    (void)state;
    struct seen s = {.refuse = true};
    static const char body[] = "--XYZ\r\nContent-Disposition: form-data; name=x\r\n\r\nx\r\n--XYZ--";
    assert_int_equal(parse(TYPE, body, sizeof body - 1, 7, &s), -1);
    assert_string_equal(err.msg, "not this one");
}

static void megabytes_of_carriage_returns_are_content(void **state)
{
    (void)state;
    struct seen s = {0};
    _cleanup_buf_ struct buf body = {0};
    buf_adds(&body, "--XYZ\r\nContent-Disposition: form-data; name=x\r\n\r\n");
    size_t head = body.n;
    for (int i = 0; i < 300000; i++)
        buf_add(&body, "\r\n\r-", 4);
    buf_adds(&body, "\r\n--XYZ--");
    assert_int_equal(parse(TYPE, body.p, body.n, 65536, &s), 0);
    assert_int_equal(s.text.n, strlen("[x|-|-|1]") + 1200000 + strlen("/end"));
    assert_memory_equal(s.text.p + 9, body.p + head, 1200000);
    buf_done(&s.text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parts_come_out_whole_however_they_are_cut),
        cmocka_unit_test(near_misses_of_the_boundary_are_content),
        cmocka_unit_test(file_names_are_decoded_as_browsers_write_them),
        cmocka_unit_test(the_boundary_comes_from_the_content_type),
        cmocka_unit_test(errors_say_what_is_wrong),
        cmocka_unit_test(sizes_are_bounded),
        cmocka_unit_test(a_callback_can_refuse_a_part),
        cmocka_unit_test(megabytes_of_carriage_returns_are_content),
    };
    return cmocka_run_group_tests_name("http/multipart", tests, NULL, NULL);
}
