/* Messages of front to the layer store: what is taken, what is refused and how it is said. */
#include "layers-wire.h"

static struct layers_request ask(uint32_t type)
{
    return (struct layers_request){.version = LAYERS_VERSION, .type = type, .request = 7};
}

#define TEXT(field, text) (void)snprintf((field), sizeof(field), "%s", (text))
#define STACK             "st-abcdefgh"
#define OTHER             "st-12345678"
#define BLOB              "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

static void taken(const struct layers_request *q, size_t nfds)
{
    const struct layers_wire w = layers_wire_of(q);
    struct layers_request got;
    struct err err = {0};
    if (layers_request_parse(&w.m, w.n, nfds, &got, &err) < 0)
        fail_msg("refused: %s", err.msg);
    assert_memory_equal(&got, q, sizeof got);
}

/* `says`: a part of the message, which names the field. */
static void refused_message(const struct layers_wire *w, size_t nfds, const char *says)
{
    struct layers_request got;
    struct err err = {0};
    assert_int_equal(layers_request_parse(&w->m, w->n, nfds, &got, &err), -1);
    assert_int_equal(err.code, ERR_USAGE);
    assert_int_equal(got.request, 7);
    if (!strstr(err.msg, says))
        fail_msg("\"%s\" does not say \"%s\"", err.msg, says);
}

static void refused(const struct layers_request *q, size_t nfds, const char *says)
{
    const struct layers_wire w = layers_wire_of(q);
    refused_message(&w, nfds, says);
}

/* The smallest right request of each type. */
static struct layers_request right(uint32_t type, size_t *nfds)
{
    struct layers_request q = ask(type);
    *nfds = type == LAYERS_IMPORT || type == LAYERS_CONVERT || type == LAYERS_RESTORE;
    switch (type) {
    case LAYERS_CAPTURE:
    case LAYERS_APPLY:
        TEXT(q.sandbox, "box-1");
        TEXT(q.stack, STACK);
        TEXT(q.other, type == LAYERS_APPLY ? OTHER : "");
        break;
    case LAYERS_DIFF:
        TEXT(q.stack, STACK);
        TEXT(q.other, OTHER);
        break;
    case LAYERS_OPEN:
        TEXT(q.stack, STACK);
        TEXT(q.path, "etc/hosts");
        break;
    case LAYERS_CONVERT:
    case LAYERS_BLOB:
        TEXT(q.blob, BLOB);
        break;
    case LAYERS_DROP:
    case LAYERS_IMPORT:
    case LAYERS_EXPORT:
    case LAYERS_RESTORE:
    case LAYERS_FLATTEN:
    case LAYERS_USAGE:
        TEXT(q.stack, STACK);
        break;
    case LAYERS_VOLUME_MAKE:
    case LAYERS_VOLUME_DROP:
    case LAYERS_VOLUME_STAT:
    case LAYERS_VOLUME_RESIZE:
        TEXT(q.volume, "vol-abcdefgh");
        break;
    case LAYERS_CANCEL:
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
    for (uint32_t type = LAYERS_CAPTURE; type <= LAYERS_DIGEST; type++) {
        size_t nfds;
        struct layers_request q = right(type, &nfds);
        taken(&q, nfds);
    }
}

static void test_every_type_refuses_descriptors_it_does_not_take(void **state)
{
    (void)state;
    for (uint32_t type = LAYERS_CAPTURE; type <= LAYERS_DIGEST; type++) {
        size_t nfds;
        struct layers_request q = right(type, &nfds);
        refused(&q, nfds + 1, "descriptors");
        if (nfds > 0)
            refused(&q, 0, type == LAYERS_IMPORT ? "ref:" : "descriptors");
    }
}

static void test_every_type_refuses_what_means_nothing_with_it(void **state)
{
    (void)state;
    for (uint32_t type = LAYERS_CAPTURE; type <= LAYERS_DIGEST; type++) {
        size_t nfds;
        struct layers_request q = right(type, &nfds);
        q.flags = 0x80;
        refused(&q, nfds, "flags:");
        q = right(type, &nfds);
        struct layers_wire w = layers_wire_of(&q);
        w.m.head.zero = 1;
        refused_message(&w, nfds, "zero:");
    }
    size_t n;
    struct layers_request q = right(LAYERS_VOLUME_STAT, &n);
    q.bytes = 1;
    refused(&q, 0, "bytes: means nothing");
}

static void test_every_type_has_one_length(void **state)
{
    (void)state;
    for (uint32_t type = LAYERS_CAPTURE; type <= LAYERS_VOLUME_RESIZE; type++) {
        size_t nfds;
        struct layers_request q = right(type, &nfds);
        struct layers_wire w = layers_wire_of(&q);
        w.n--;
        refused_message(&w, nfds, "bytes, not");
        w.n += 2;
        refused_message(&w, nfds, "bytes, not");
    }
}

static void test_a_trace_is_carried(void **state)
{
    (void)state;
    size_t n;
    struct layers_request q = right(LAYERS_DROP, &n);
    q.trace = UINT64_C(0x123456789abcdef0);
    taken(&q, 0);
}

static void test_a_missing_field_is_named(void **state)
{
    (void)state;
    static const struct {
        uint32_t type;
        size_t nfds;
        const char *says;
    } cases[] = {{LAYERS_CAPTURE, 0, "box: must be given"},  {LAYERS_DROP, 0, "stack: must be given"},
                 {LAYERS_IMPORT, 1, "stack: must be given"}, {LAYERS_CONVERT, 1, "blob: must be given"},
                 {LAYERS_OPEN, 0, "stack: must be given"},   {LAYERS_VOLUME_MAKE, 0, "volume: must be given"},
                 {LAYERS_CANCEL, 0, "cancel: must be given"}};
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct layers_request q = ask(cases[i].type);
        refused(&q, cases[i].nfds, cases[i].says);
    }
}

static void test_names_are_checked_letter_by_letter(void **state)
{
    (void)state;
    size_t n;
    struct layers_request q = right(LAYERS_CAPTURE, &n);
    TEXT(q.sandbox, "../box");
    refused(&q, 0, "box: must be");
    q = right(LAYERS_CAPTURE, &n);
    TEXT(q.sandbox, "stock");
    refused(&q, 0, "box: must be");
    q = right(LAYERS_DROP, &n);
    TEXT(q.stack, "st-short");
    q.stack[7] = '\0';
    refused(&q, 0, "stack: must be");
    q = right(LAYERS_DIFF, &n);
    TEXT(q.other, "st-ABCDEFGH");
    refused(&q, 0, "other: must be");
    q = right(LAYERS_BLOB, &n);
    q.blob[3] = 'G';
    refused(&q, 0, "blob: must be");
    q = right(LAYERS_BLOB, &n);
    q.blob[63] = '\0';
    refused(&q, 0, "blob: must be");
    q = right(LAYERS_VOLUME_STAT, &n);
    TEXT(q.volume, "vol-a/bcdefgh");
    refused(&q, 0, "volume: must be");
    q = right(LAYERS_IMPORT, &n);
    TEXT(q.ref, "docker.io/library/a b");
    refused(&q, 0, "ref: must be");
}

static void test_a_text_without_an_end_is_refused(void **state)
{
    (void)state;
    size_t n;
    struct layers_request q = right(LAYERS_CAPTURE, &n);
    memset(q.sandbox, 'a', sizeof q.sandbox);
    refused(&q, 0, "box: is not ended");
    q = right(LAYERS_OPEN, &n);
    memset(q.path, 'a', sizeof q.path);
    refused(&q, 0, "path: is not ended");
    q = right(LAYERS_IMPORT, &n);
    memset(q.ref, 'a', sizeof q.ref);
    refused(&q, n, "ref: is not ended");
}

static void test_what_stands_behind_the_end_of_a_text_is_wiped(void **state)
{
    (void)state;
    size_t n;
    struct layers_request q = right(LAYERS_OPEN, &n), got;
    struct err err = {0};
    q.path[1000] = 'x';
    const struct layers_wire w = layers_wire_of(&q);
    assert_int_equal(layers_request_parse(&w.m, w.n, 0, &got, &err), 0);
    assert_int_equal(got.path[1000], 0);
}

static void test_an_import_has_an_archive_or_a_reference(void **state)
{
    (void)state;
    struct layers_request q = ask(LAYERS_IMPORT);
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
    struct layers_request q = ask(LAYERS_DIFF);
    TEXT(q.stack, STACK);
    refused(&q, 0, "other: must be given");
    TEXT(q.sandbox, "box");
    taken(&q, 0);
    TEXT(q.other, OTHER);
    refused(&q, 0, "other: must be given");
}

static void test_a_capture_is_not_its_own_predecessor(void **state)
{
    (void)state;
    size_t n;
    struct layers_request q = right(LAYERS_CAPTURE, &n);
    q.flags = LAYERS_FREEZE;
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
    struct layers_request q = right(LAYERS_VOLUME_MAKE, &n);
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
    struct layers_request q = ask(LAYERS_LIST), got;
    struct err err = {0};
    struct layers_wire w = layers_wire_of(&q);
    assert_int_equal(layers_request_parse(&w.m, 15, 0, &got, &err), -1);
    assert_int_equal(got.request, 0);
    q.version = LAYERS_VERSION - 1;
    refused(&q, 0, "version: 1 is not 2; front and the layer store must come from one installation");
    static const uint32_t types[] = {0, LAYERS_DIGEST + 1, LAYERS_REPLY, LAYERS_ITEMS, UINT32_MAX};
    for (size_t i = 0; i < ARRAY_LEN(types); i++) {
        q = ask(types[i]);
        refused(&q, 0, "type:");
    }
    q = ask(LAYERS_LIST);
    q.request = 0;
    w = layers_wire_of(&q);
    assert_int_equal(layers_request_parse(&w.m, w.n, 0, &got, &err), -1);
    assert_non_null(strstr(err.msg, "request:"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_type_has_a_right_form),
        cmocka_unit_test(test_every_type_refuses_descriptors_it_does_not_take),
        cmocka_unit_test(test_every_type_refuses_what_means_nothing_with_it),
        cmocka_unit_test(test_every_type_has_one_length),
        cmocka_unit_test(test_a_trace_is_carried),
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
