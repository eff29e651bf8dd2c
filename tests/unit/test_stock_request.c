/* Messages of front to stock: what is taken, what is refused and how it is said. */
#include "stock/request.h"
#include "tests/lib/unit.h"

static struct stock_request ask(uint32_t type)
{
    return (struct stock_request){.version = STOCK_VERSION, .type = type, .request = 7};
}

#define TEXT(field, text) (void)snprintf((field), sizeof(field), "%s", (text))
#define STACK             "st-abcdefgh"
#define OTHER             "st-12345678"
#define BLOB              "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

static void taken(const struct stock_request *q, size_t nfds)
{
    struct stock_request got;
    struct err err = {0};
    if (stock_request_parse(q, sizeof *q, nfds, &got, &err) < 0)
        fail_msg("refused: %s", err.msg);
    assert_int_equal(got.request, 7);
}

/* `says`: a part of the message, which names the field. */
static void refused(const struct stock_request *q, size_t nfds, const char *says)
{
    struct stock_request got;
    struct err err = {0};
    assert_int_equal(stock_request_parse(q, sizeof *q, nfds, &got, &err), -1);
    assert_int_equal(err.code, ERR_USAGE);
    assert_int_equal(got.request, 7);
    if (!strstr(err.msg, says))
        fail_msg("\"%s\" does not say \"%s\"", err.msg, says);
}

/* The smallest right request of each type. */
static struct stock_request right(uint32_t type, size_t *nfds)
{
    struct stock_request q = ask(type);
    *nfds = type == STOCK_IMPORT || type == STOCK_CONVERT || type == STOCK_RESTORE;
    switch (type) {
    case STOCK_CAPTURE:
    case STOCK_APPLY:
        TEXT(q.box, "box-1");
        TEXT(q.stack, STACK);
        TEXT(q.other, type == STOCK_APPLY ? OTHER : "");
        break;
    case STOCK_DIFF:
        TEXT(q.stack, STACK);
        TEXT(q.other, OTHER);
        break;
    case STOCK_OPEN:
        TEXT(q.stack, STACK);
        TEXT(q.path, "etc/hosts");
        break;
    case STOCK_CONVERT:
    case STOCK_BLOB:
        TEXT(q.blob, BLOB);
        break;
    case STOCK_DROP:
    case STOCK_IMPORT:
    case STOCK_EXPORT:
    case STOCK_RESTORE:
    case STOCK_FLATTEN:
    case STOCK_USAGE:
        TEXT(q.stack, STACK);
        break;
    case STOCK_VOLUME_MAKE:
    case STOCK_VOLUME_DROP:
    case STOCK_VOLUME_STAT:
    case STOCK_VOLUME_RESIZE:
        TEXT(q.volume, "vol-abcdefgh");
        break;
    case STOCK_CANCEL:
        q.cancel = 5;
        break;
    default:
        break;
    }
    return q;
}

static void test_every_type_has_a_right_form(void **state)
{
    (void)state;
    for (uint32_t type = STOCK_CAPTURE; type <= STOCK_VOLUME_RESIZE; type++) {
        size_t nfds;
        struct stock_request q = right(type, &nfds);
        taken(&q, nfds);
    }
}

static void test_every_type_refuses_descriptors_it_does_not_take(void **state)
{
    (void)state;
    for (uint32_t type = STOCK_CAPTURE; type <= STOCK_VOLUME_RESIZE; type++) {
        size_t nfds;
        struct stock_request q = right(type, &nfds);
        refused(&q, nfds + 1, "descriptors");
        if (nfds > 0)
            refused(&q, 0, type == STOCK_IMPORT ? "ref:" : "descriptors");
    }
}

static void test_every_type_refuses_fields_that_mean_nothing_with_it(void **state)
{
    (void)state;
    for (uint32_t type = STOCK_CAPTURE; type <= STOCK_VOLUME_RESIZE; type++) {
        size_t nfds;
        struct stock_request q = right(type, &nfds);
        q.flags = 0x80;
        refused(&q, nfds, "flags:");
        q = right(type, &nfds);
        if (type != STOCK_CANCEL) {
            q.cancel = 1;
            refused(&q, nfds, "cancel:");
        }
        q = right(type, &nfds);
        q.zero = 1;
        refused(&q, nfds, "zero:");
        q = right(type, &nfds);
        if (!q.volume[0]) {
            TEXT(q.volume, "vol-abcdefgh");
            refused(&q, nfds, "volume: means nothing");
        }
        q = right(type, &nfds);
        if (!q.blob[0]) {
            TEXT(q.blob, BLOB);
            refused(&q, nfds, "blob: means nothing");
        }
    }
}

static void test_a_missing_field_is_named(void **state)
{
    (void)state;
    static const struct {
        uint32_t type;
        size_t nfds;
        const char *says;
    } cases[] = {{STOCK_CAPTURE, 0, "box: must be given"},  {STOCK_DROP, 0, "stack: must be given"},
                 {STOCK_IMPORT, 1, "stack: must be given"}, {STOCK_CONVERT, 1, "blob: must be given"},
                 {STOCK_OPEN, 0, "stack: must be given"},   {STOCK_VOLUME_MAKE, 0, "volume: must be given"},
                 {STOCK_CANCEL, 0, "cancel: must be given"}};
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct stock_request q = ask(cases[i].type);
        refused(&q, cases[i].nfds, cases[i].says);
    }
}

static void test_names_are_checked_letter_by_letter(void **state)
{
    (void)state;
    size_t n;
    struct stock_request q = right(STOCK_CAPTURE, &n);
    TEXT(q.box, "../box");
    refused(&q, 0, "box: must be");
    q = right(STOCK_CAPTURE, &n);
    TEXT(q.box, "stock");
    refused(&q, 0, "box: must be");
    q = right(STOCK_DROP, &n);
    TEXT(q.stack, "st-short");
    q.stack[7] = '\0';
    refused(&q, 0, "stack: must be");
    q = right(STOCK_DIFF, &n);
    TEXT(q.other, "st-ABCDEFGH");
    refused(&q, 0, "other: must be");
    q = right(STOCK_BLOB, &n);
    q.blob[3] = 'G';
    refused(&q, 0, "blob: must be");
    q = right(STOCK_BLOB, &n);
    q.blob[63] = '\0';
    refused(&q, 0, "blob: must be");
    q = right(STOCK_VOLUME_STAT, &n);
    TEXT(q.volume, "vol-a/bcdefgh");
    refused(&q, 0, "volume: must be");
    q = right(STOCK_IMPORT, &n);
    TEXT(q.ref, "docker.io/library/a b");
    refused(&q, 0, "ref: must be");
}

static void test_a_text_without_an_end_is_refused(void **state)
{
    (void)state;
    size_t n;
    struct stock_request q = right(STOCK_CAPTURE, &n);
    memset(q.box, 'a', sizeof q.box);
    refused(&q, 0, "box: is not ended");
    q = right(STOCK_OPEN, &n);
    memset(q.path, 'a', sizeof q.path);
    refused(&q, 0, "path: is not ended");
    q = right(STOCK_LIST, &n);
    memset(q.ref, 'a', sizeof q.ref);
    refused(&q, 0, "ref: is not ended");
}

static void test_what_stands_behind_the_end_of_a_text_is_wiped(void **state)
{
    (void)state;
    size_t n;
    struct stock_request q = right(STOCK_OPEN, &n), got;
    struct err err = {0};
    q.path[1000] = 'x';
    assert_int_equal(stock_request_parse(&q, sizeof q, 0, &got, &err), 0);
    assert_int_equal(got.path[1000], 0);
}

static void test_an_import_has_an_archive_or_a_reference(void **state)
{
    (void)state;
    struct stock_request q = ask(STOCK_IMPORT);
    TEXT(q.stack, STACK);
    refused(&q, 0, "ref: must be given");
    taken(&q, 1);
    TEXT(q.ref, "docker.io/library/alpine:3");
    taken(&q, 0);
    taken(&q, 1); /* credentials */
    TEXT(q.path, "linux/arm64");
    taken(&q, 0);
}

static void test_a_diff_has_one_other_side(void **state)
{
    (void)state;
    struct stock_request q = ask(STOCK_DIFF);
    TEXT(q.stack, STACK);
    refused(&q, 0, "other: must be given");
    TEXT(q.box, "box");
    taken(&q, 0);
    TEXT(q.other, OTHER);
    refused(&q, 0, "other: must be given");
}

static void test_a_capture_is_not_its_own_predecessor(void **state)
{
    (void)state;
    size_t n;
    struct stock_request q = right(STOCK_CAPTURE, &n);
    q.flags = STOCK_FREEZE;
    q.bytes = 1 << 20;
    TEXT(q.other, OTHER);
    taken(&q, 0);
    TEXT(q.other, STACK);
    refused(&q, 0, "other:");
}

static void test_sizes_have_limits(void **state)
{
    (void)state;
    size_t n;
    struct stock_request q = right(STOCK_VOLUME_MAKE, &n);
    q.bytes = UINT64_C(1) << 50;
    q.entries = 1 << 30;
    taken(&q, 0);
    q.bytes++;
    refused(&q, 0, "bytes:");
    q.bytes = 0;
    q.entries++;
    refused(&q, 0, "entries:");
}

static void test_what_is_no_request_is_refused(void **state)
{
    (void)state;
    struct stock_request q = ask(STOCK_LIST), got;
    struct err err = {0};
    assert_int_equal(stock_request_parse(&q, 15, 0, &got, &err), -1);
    assert_int_equal(got.request, 0);
    assert_int_equal(stock_request_parse(&q, sizeof q - 1, 0, &got, &err), -1);
    assert_int_equal(got.request, 7);
    q.version = 2;
    refused(&q, 0, "version:");
    static const uint32_t types[] = {0, STOCK_VOLUME_RESIZE + 1, STOCK_REPLY, STOCK_ITEMS, UINT32_MAX};
    for (size_t i = 0; i < ARRAY_LEN(types); i++) {
        q = ask(types[i]);
        refused(&q, 0, "type:");
    }
    q = ask(STOCK_LIST);
    q.request = 0;
    assert_int_equal(stock_request_parse(&q, sizeof q, 0, &got, &err), -1);
    assert_non_null(strstr(err.msg, "request:"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_type_has_a_right_form),
        cmocka_unit_test(test_every_type_refuses_descriptors_it_does_not_take),
        cmocka_unit_test(test_every_type_refuses_fields_that_mean_nothing_with_it),
        cmocka_unit_test(test_a_missing_field_is_named),
        cmocka_unit_test(test_names_are_checked_letter_by_letter),
        cmocka_unit_test(test_a_text_without_an_end_is_refused),
        cmocka_unit_test(test_what_stands_behind_the_end_of_a_text_is_wiped),
        cmocka_unit_test(test_an_import_has_an_archive_or_a_reference),
        cmocka_unit_test(test_a_diff_has_one_other_side),
        cmocka_unit_test(test_a_capture_is_not_its_own_predecessor),
        cmocka_unit_test(test_sizes_have_limits),
        cmocka_unit_test(test_what_is_no_request_is_refused),
    };
    return cmocka_run_group_tests_name("stock request", tests, NULL, NULL);
}
