/* Members of JSON objects: what is there, what is absent, and what is said about the wrong ones. */
#include <string.h>

#include "base/fields.h"
#include "tests/lib/unit.h"

static json_t *root;

static int set_up(void **state)
{
    (void)state;
    root = json_loads("{\"s\":\"text\",\"nul\":\"a\\u0000b\",\"yes\":true,\"n\":7,\"f\":1.5,\"o\":{},\"a\":[],"
                      "\"none\":null}",
                      JSON_ALLOW_NUL, NULL);
    return root ? 0 : -1;
}
static int tear_down(void **state)
{
    (void)state;
    json_decref(root);
    return 0;
}

static void what_is_there_is_read(void **state)
{
    const char *s = NULL;
    bool yes = false;
    int64_t n = 0;
    json_t *v = NULL;
    struct err err;
    (void)state;
    assert_int_equal(field_str(root, "s", &s, &err), 1);
    assert_string_equal(s, "text");
    assert_int_equal(field_bool(root, "yes", &yes, &err), 1);
    assert_true(yes);
    assert_int_equal(field_int(root, "n", 7, 7, &n, &err), 1);
    assert_int_equal(n, 7);
    assert_int_equal(field_obj(root, "o", &v, &err), 1);
    assert_ptr_equal(v, json_object_get(root, "o"));
    assert_int_equal(field_arr(root, "a", &v, &err), 1);
    assert_ptr_equal(v, json_object_get(root, "a"));
}

static void what_is_absent_or_null_changes_nothing(void **state)
{
    static const char *const names[] = {"none", "nothing"};
    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const char *s = "before";
        bool yes = true;
        int64_t n = 5;
        json_t *v = root;
        struct err err;
        assert_int_equal(field_str(root, names[i], &s, &err), 0);
        assert_int_equal(field_bool(root, names[i], &yes, &err), 0);
        assert_int_equal(field_int(root, names[i], 0, 1, &n, &err), 0);
        assert_int_equal(field_obj(root, names[i], &v, &err), 0);
        assert_int_equal(field_arr(root, names[i], &v, &err), 0);
        assert_string_equal(s, "before");
        assert_true(yes);
        assert_int_equal(n, 5);
        assert_ptr_equal(v, root);
    }
}

static void what_is_wrong_is_named(void **state)
{
    const char *s;
    bool yes;
    int64_t n;
    json_t *v;
    struct err err;
    (void)state;
    assert_int_equal(field_str(root, "n", &s, &err), -1);
    assert_string_equal(err.msg, "field 'n' must be a string, not a whole number");
    assert_int_equal(field_str(root, "nul", &s, &err), -1);
    assert_string_equal(err.msg, "field 'nul' must not contain NUL");
    assert_int_equal(field_bool(root, "s", &yes, &err), -1);
    assert_string_equal(err.msg, "field 's' must be a boolean, not a string");
    assert_int_equal(field_int(root, "f", 0, 9, &n, &err), -1);
    assert_string_equal(err.msg, "field 'f' must be a whole number, not a number with a fraction");
    assert_int_equal(field_int(root, "n", 8, 9, &n, &err), -1);
    assert_string_equal(err.msg, "field 'n' must be from 8 to 9, not 7");
    assert_int_equal(field_obj(root, "a", &v, &err), -1);
    assert_string_equal(err.msg, "field 'a' must be an object, not an array");
    assert_int_equal(field_arr(root, "o", &v, &err), -1);
    assert_string_equal(err.msg, "field 'o' must be an array, not an object");
}

static void lenient_readers_take_what_fits(void **state)
{
    (void)state;
    assert_string_equal(field_text(root, "s"), "text");
    assert_string_equal(field_text(root, "n"), "");
    assert_string_equal(field_text(NULL, "s"), "");
    assert_int_equal(field_number(root, "n"), 7);
    assert_int_equal(field_number(root, "s"), 0);
}

static void unknown_names_are_refused(void **state)
{
    static const char *const all[] = {"s", "nul", "yes", "n", "f", "o", "a", "none", NULL}, *const some[] = {"s", NULL};
    struct err err;
    (void)state;
    assert_int_equal(fields_check_known(root, "this route", all, &err), 0);
    assert_int_equal(fields_check_known(root, "this route", some, &err), -1);
    assert_non_null(strstr(err.msg, "this route knows no field '"));
}

static void a_body_is_an_object_or_absent(void **state)
{
    struct err err;
    json_t *tmp = root, *list = json_array();
    (void)state;
    assert_ptr_equal(fields_root(root, &tmp, &err), root);
    assert_null(tmp);
    assert_int_equal(json_object_size(fields_root(NULL, &tmp, &err)), 0);
    assert_non_null(tmp);
    json_decref(tmp);
    assert_null(fields_root(list, &tmp, &err));
    assert_string_equal(err.msg, "the body must be an object, not an array");
    json_decref(list);
}

static void a_text_is_measured_before_it_is_parsed(void **state)
{
    static const char nested[] = "{\"a\":[[1,2],[3]]}", quoted[] = "[\"[[[,,,\\\"[[,,\\\\\",1]";
    (void)state;
    assert_true(fields_text_is_small(nested, strlen(nested), 6, 3));
    assert_false(fields_text_is_small(nested, strlen(nested), 5, 3));
    assert_false(fields_text_is_small(nested, strlen(nested), 6, 2));
    assert_true(fields_text_is_small(quoted, strlen(quoted), 2, 1));
    assert_false(fields_text_is_small(quoted, strlen(quoted), 1, 1));
    assert_true(fields_text_is_small("]]]\"\\", 5, 0, 0));
    assert_true(fields_text_is_small("", 0, 0, 0));
}

#define T(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
int main(void)
{
    const struct CMUnitTest tests[] = {
        T(what_is_there_is_read),
        T(what_is_absent_or_null_changes_nothing),
        T(what_is_wrong_is_named),
        T(lenient_readers_take_what_fits),
        T(unknown_names_are_refused),
        T(a_body_is_an_object_or_absent),
        T(a_text_is_measured_before_it_is_parsed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
