#include "tests/lib/unit.h"

#include "base/path.h"

static void clean_resolves_dots_and_never_leaves_the_root(void **state)
{
    (void)state;
    static const struct {
        const char *base, *path, *want;
    } cases[] = {
        {"/w", "a/b", "/w/a/b"},
        {"/w", "/a//b/./c/", "/a/b/c"},
        {"/w", "..", "/"},
        {"/w", "../../../x", "/x"},
        {"/w", "", "/w"},
        {"/w", "/", "/"},
        {"/w", ".", "/w"},
        {"/w", "a/../../b", "/b"},
        {"/w/v", "...", "/w/v/..."},
        {"/", "a", "/a"},
        {"/w", "/..a/b..", "/..a/b.."},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        _cleanup_free_ char *got = path_clean(cases[i].base, cases[i].path);
        assert_string_equal(got, cases[i].want);
    }
}

static void under_compares_whole_components(void **state)
{
    (void)state;
    assert_true(path_under("/a/b", "/a"));
    assert_true(path_under("/a", "/a"));
    assert_true(path_under("/a", "/"));
    assert_false(path_under("/ab", "/a"));
    assert_false(path_under("/a", "/a/b"));
}

static void parts_of_a_path(void **state)
{
    (void)state;
    _cleanup_free_ char *p1 = path_parent("/a/b"), *p2 = path_parent("/a"), *p3 = path_parent("/");
    _cleanup_free_ char *j1 = path_join("/", "x"), *j2 = path_join("/a", "x");
    assert_string_equal(p1, "/a");
    assert_string_equal(p2, "/");
    assert_string_equal(p3, "/");
    assert_string_equal(j1, "/x");
    assert_string_equal(j2, "/a/x");
    assert_string_equal(path_name("/a/b"), "b");
    assert_string_equal(path_name("/"), "");
    assert_int_equal(path_depth("/"), 0);
    assert_int_equal(path_depth("/a/b"), 2);
}

static void globs_match_by_component(void **state)
{
    (void)state;
    static const struct {
        const char *glob, *path;
        bool want;
    } cases[] = {
        {"/a/*", "/a/b", true},          {"/a/*", "/a/b/c", false},    {"/a/**", "/a/b/c", true},
        {"/**/.env", "/x/y/.env", true}, {"/**/.env", "/.env", true},  {"/**/.env", "/x/.envrc", false},
        {"/a/?.c", "/a/x.c", true},      {"/a/?.c", "/a/xy.c", false}, {"/a/[a-c]", "/a/b", true},
        {"/a/[a-c]", "/a/d", false},     {"/a/**/z", "/a/z", true},    {"/a/**/z", "/a/b/c/z", true},
        {"/a/**/z", "/a/b/c", false},    {"/a", "/a/b", false},        {"/a/*", "/a", false},
        {"/a/b*d", "/a/b/d", false},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++)
        if (path_match(cases[i].glob, cases[i].path) != cases[i].want)
            fail_msg("path_match(\"%s\", \"%s\")", cases[i].glob, cases[i].path);
    assert_true(path_is_glob("/a/*") && path_is_glob("/a/?") && path_is_glob("/[x]"));
    assert_false(path_is_glob("/a/b"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(clean_resolves_dots_and_never_leaves_the_root),
        cmocka_unit_test(under_compares_whole_components),
        cmocka_unit_test(parts_of_a_path),
        cmocka_unit_test(globs_match_by_component),
    };
    return cmocka_run_group_tests_name("base/path", tests, NULL, NULL);
}
