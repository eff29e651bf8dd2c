#include "tests/lib/unit.h"

#include <stdio.h>
#include <string.h>

#include "cli/run/gitconfig.h"

static struct gitconfig read_text(const char *text)
{
    struct gitconfig g = {0};
    gitconfig_read(text, strlen(text), &g);
    return g;
}

static void one_hooks_path(const char *text, const char *want)
{
    struct gitconfig g = read_text(text);
    assert_int_equal(g.hooks.n, 1);
    assert_string_equal(g.hooks.v[0], want);
    gitconfig_done(&g);
}

static void nothing(const char *text)
{
    struct gitconfig g = read_text(text);
    assert_int_equal(g.hooks.n, 0);
    assert_int_equal(g.includes.n, 0);
    gitconfig_done(&g);
}

static void hooks_path_is_found_however_it_is_written(void **state)
{
    (void)state;
    one_hooks_path("[core]\n\thooksPath = .githooks\n", ".githooks");
    one_hooks_path("[CORE] HOOKSPATH=.githooks # mine", ".githooks");
    one_hooks_path("\xef\xbb\xbf[core]\r\n\thookspath = a b \r\n", "a b");
    one_hooks_path("[core]\nhookspath = \"  a;b\" c ; d\n", "  a;b c");
    one_hooks_path("[core]\nhookspath = a\\\nb\n", "ab");
    one_hooks_path("[core]\nhookspath = a\\\\b\\\"\n", "a\\b\"");
    one_hooks_path("[user]\nname = x\\\n[alias]\n[core]\nhooksPath = h\n", "h");
}

static void includes_are_found_with_and_without_a_condition(void **state)
{
    (void)state;
    struct gitconfig g =
        read_text("[include]\npath = a\n[includeIf \"gitdir:~/]x/\"]\n\tpath = b\n[include]path=~/c\n");
    assert_int_equal(g.includes.n, 3);
    assert_string_equal(g.includes.v[0], "a");
    assert_string_equal(g.includes.v[1], "b");
    assert_string_equal(g.includes.v[2], "~/c");
    gitconfig_done(&g);
}

static void other_variables_are_not(void **state)
{
    (void)state;
    nothing("");
    nothing("[core]\nhooksPath\n");
    nothing("[core]\nhooksPath = \n");
    nothing("[core]\n# hooksPath = a\n");
    nothing("[core \"x\"]\nhooksPath = a\n[user]\nhooksPath = a\npath = b\n");
    nothing("[alias]\nx = y\\\nhooksPath = a\n");
    nothing("hooksPath = a\n[core");
}

static void too_many_and_too_long_values_are_left_out(void **state)
{
    (void)state;
    static char text[64 * 1024], long_value[5000];
    size_t n = 0;
    memset(long_value, 'x', sizeof long_value - 1);
    n += (size_t)snprintf(text, sizeof text, "[core]\nhooksPath = %s\n", long_value);
    for (int i = 0; i < 100; i++)
        n += (size_t)snprintf(text + n, sizeof text - n, "hooksPath = h%d\n", i);
    struct gitconfig g = read_text(text);
    assert_int_equal(g.hooks.n, GITCONFIG_VALUES_MAX);
    assert_string_equal(g.hooks.v[0], "h0");
    gitconfig_done(&g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hooks_path_is_found_however_it_is_written),
        cmocka_unit_test(includes_are_found_with_and_without_a_condition),
        cmocka_unit_test(other_variables_are_not),
        cmocka_unit_test(too_many_and_too_long_values_are_left_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
