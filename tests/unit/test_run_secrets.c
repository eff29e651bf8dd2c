/* test_run_secrets.c - what `hutch run --secret` refuses, what it hides, and what stays of a value in memory. */
#include <errno.h>
#include <sys/stat.h>
#include <unistd.h>

#include "policy-harness.h"

#include "cli/run/run-secrets.h"
#include "policy/run/plan.h"

static char root[32];

static int set_up(void **state)
{
    (void)state;
    (void)snprintf(root, sizeof root, "/opt/secrets.XXXXXX"); /* not in /tmp, which nobody inside sees */
    assert_non_null(mkdtemp(root));
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    _cleanup_free_ char *rm = xasprintf("rm -rf -- '%s'", root);
    return system(rm) == 0 ? 0 : -1;
}

static char *put(const char *dir, const char *name)
{
    _cleanup_free_ char *full = xasprintf("%s/%s", root, dir);
    char *path = xasprintf("%s/%s", full, name);
    assert_int_equal(mkdir(full, 0755), 0);
    write_file(path, "0123456789abcdef\n");
    return path;
}

/* The run's plan, with the rules of the secret or without. */
static void plan_for(struct run_secrets *s, bool rules, struct policy **ret_policy, struct plan **ret)
{
    struct policy_where where = {.cwd = root, .system_file = "/nonexistent", .project_file = "/nonexistent"};
    struct plan_caller who = {.uid = geteuid(), .gid = getegid(), .cwd = root};
    struct policy_flag flags[8];
    struct err err = {0};
    size_t n = 0;
    assert_true(run_secrets_nflags(s) <= ARRAY_LEN(flags));
    if (rules)
        run_secrets_flags(s, flags, &n);
    if (policy_load(&where, NULL, NULL, flags, n, ret_policy, &err) < 0 ||
        plan_make(*ret_policy, &who, &plan_host_facts, ret, &err) < 0)
        fail_msg("%s", err.msg);
}

static void done(struct run_secrets *s)
{
    run_secrets_forget(s);
    for (size_t i = 0; i < s->n; i++) {
        strv_done(&s->v[i].hosts);
        free(s->v[i].file);
    }
    strv_done(&s->rules);
}

static int parse(const char *file, struct policy_flag *flag, struct run_secrets *s, struct err *err)
{
    struct run_args a = {.flags = flag, .nflags = flag ? 1 : 0};
    strv_add(&a.secrets, "KEY=api.test");
    if (file)
        strv_take(&a.secret_files, xasprintf("KEY=%s", file));
    int r = run_secrets_parse(&a, s, err);
    strv_done(&a.secrets);
    strv_done(&a.secret_files);
    return r;
}

static void a_file_is_hidden_whatever_its_name(void **state)
{
    (void)state;
    static const char *const dirs[] = {"plain", "a[prod]", "b\\c", "d*?", "e:"};
    static char word[] = "true";
    char *command[] = {word, NULL};
    for (size_t i = 0; i < ARRAY_LEN(dirs); i++) {
        _cleanup_free_ char *path = put(dirs[i], "token");
        for (int rules = 0; rules < 2; rules++) {
            struct run_secrets s = {0};
            struct err err = {0};
            _cleanup_policy_ struct policy *p = NULL;
            _cleanup_strv_ struct strv env = {0}, notes = {0};
            struct plan *plan = NULL;
            assert_int_equal(parse(path, NULL, &s, &err), 0);
            plan_for(&s, rules, &p, &plan);
            const struct plan_op *op = plan_op_for(plan, path);
            if (rules && (!op || op->kind != OP_MASK || strcmp(op->path, path) != 0))
                fail_msg("%s is not hidden", path);
            int r = run_secrets_take(&s, p, plan, command, &env, &notes, &err);
            if (r != (rules ? 0 : -1))
                fail_msg("%s %d: %s", path, rules, err.msg);
            assert_true(rules || strstr(err.msg, "cannot be hidden"));
            plan_free(plan);
            done(&s);
        }
    }
}

static void what_cannot_hold_is_refused(void **state)
{
    (void)state;
    struct run_secrets s[5] = {0};
    struct err err = {0};
    _cleanup_free_ char *path = put("links", "token"), *other = xasprintf("%s/links/other", root);
    assert_int_equal(link(path, other), 0);
    assert_int_equal(parse(path, NULL, &s[0], &err), -1);
    assert_non_null(strstr(err.msg, "hard links"));
    assert_int_equal(parse("/nonexistent", NULL, &s[1], &err), -1);
    assert_int_equal(err.eno, ENOENT);
    struct policy_flag off = {"network", "off", "--network off", 0}, host = {"network", "host", "--network host", 0},
                       all = {"network", "public", "--network public", 0};
    assert_int_equal(parse(NULL, &off, &s[2], &err), -1);
    assert_non_null(strstr(err.msg, "--network off"));
    assert_int_equal(parse(NULL, &host, &s[3], &err), -1);
    assert_int_equal(parse(NULL, &all, &s[4], &err), 0);
    for (size_t i = 0; i < ARRAY_LEN(s); i++)
        done(&s[i]);
}

/* A buffer that moves leaves what it held behind. */
static void a_message_does_not_move_with_the_value_in_it(void **state)
{
    (void)state;
    static const size_t sizes[] = {8, 100, 4096, RUN_SECRET_MAX};
    for (size_t i = 0; i < ARRAY_LEN(sizes); i++) {
        struct run_secret one = {.name = "KEY"};
        _cleanup_buf_ struct buf out = {0};
        for (size_t k = 0; k < sizes[i]; k++)
            buf_addc(&one.value, 'x');
        for (int k = 0; k < RUN_SECRET_HOSTS_MAX; k++)
            strv_add(&one.hosts, "some-host-with-a-long-name.test");
        run_secrets_message(&one, "local", &out);
        const char *value = strstr(buf_str(&out), "\"value\":\"eHh4eHh4");
        assert_non_null(value);
        assert_null(strchr(value, ',')); /* last: nothing is added behind it */
        strv_done(&one.hosts);
        buf_done(&one.value);
    }
    struct buf b = {0};
    buf_reserve(&b, 1000);
    const char *before = b.p;
    for (int k = 0; k < 1000; k++)
        buf_addc(&b, 'x');
    assert_ptr_equal(b.p, before);
    buf_done(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_file_is_hidden_whatever_its_name, set_up, tear_down),
        cmocka_unit_test_setup_teardown(what_cannot_hold_is_refused, set_up, tear_down),
        cmocka_unit_test(a_message_does_not_move_with_the_value_in_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
