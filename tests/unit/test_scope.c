/* When a run starts again in a scope of the user's systemd, and with which command line. */
#include "tests/lib/unit.h"

#include "cli/run/scope.h"

static void a_scope_is_wanted_only_where_it_helps(void **state)
{
    static const struct cgroup_info all = {.can_memory = true, .can_cpu = true, .can_pids = true}, none = {0},
                                    no_cpu = {.can_memory = true, .can_pids = true};
    static const struct cgroup_limits nothing = {0}, memory = {.memory = 1}, cpu = {.cpu_milli = 1}, pids = {.pids = 1};
    static const struct {
        const char *name;
        struct scope_facts f;
        bool want;
    } rows[] = {
        {"memory", {.available = true, .want = &memory, .have = &none}, true},
        {"cpu", {.available = true, .want = &cpu, .have = &none}, true},
        {"processes", {.available = true, .want = &pids, .have = &none}, true},
        {"processor time", {.available = true, .cpu_time = true, .want = &nothing, .have = &none}, true},
        {"cpu is not delegated", {.available = true, .want = &cpu, .have = &no_cpu}, true},
        {"cpu is not needed", {.available = true, .want = &memory, .have = &no_cpu}, false},
        {"no limits", {.available = true, .want = &nothing, .have = &none}, false},
        {"delegated already", {.available = true, .want = &memory, .have = &all}, false},
        {"no systemd", {.want = &memory, .have = &none}, false},
        {"root", {.root = true, .available = true, .want = &memory, .have = &none}, false},
        {"in a sandbox", {.nested = true, .available = true, .want = &memory, .have = &none}, false},
        {"the second start", {.tried = true, .available = true, .want = &memory, .have = &none}, false},
    };
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(rows); i++)
        if (scope_wanted(&rows[i].f) != rows[i].want)
            fail_msg("%s: want %d", rows[i].name, rows[i].want);
}

static void the_command_line_is_passed_on_word_by_word(void **state)
{
    static const char *const want[] = {"systemd-run", "--user",       "--scope", "--quiet",  "--collect",
                                       "-p",          "Delegate=yes", "--",      "/x/hutch", "run",
                                       "--",          "echo",         "",        "a $b %c"};
    char *argv[] = {(char *)"hutch", (char *)"run", (char *)"--", (char *)"echo", (char *)"", (char *)"a $b %c", NULL};
    _cleanup_strv_ struct strv got = {0};
    (void)state;
    scope_argv("/x/hutch", argv, &got);
    assert_int_equal(got.n, ARRAY_LEN(want));
    for (size_t i = 0; i < got.n; i++)
        assert_string_equal(got.v[i], want[i]);
    assert_null(got.v[got.n]);
}

static void the_variable_is_seen_once(void **state)
{
    (void)state;
    assert_int_equal(setenv(SCOPE_VARIABLE, "1", 1), 0);
    assert_true(scope_tried());
    assert_false(scope_tried());
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_scope_is_wanted_only_where_it_helps),
        cmocka_unit_test(the_command_line_is_passed_on_word_by_word),
        cmocka_unit_test(the_variable_is_seen_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
