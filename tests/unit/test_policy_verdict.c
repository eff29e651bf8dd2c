/* What follows from a merged policy: verdicts, explanations, the environment, and `show`. */
#include <sys/stat.h>

#include "policy-harness.h"
#include "policy/run/explain.h"
#include "policy/run/syscalls.h"

static void defaults_hide_secrets_and_leave_the_rest(void **state)
{
    static const char *const hidden[] = {"/home/u/.ssh/id_rsa",
                                         "/home/u/.aws/credentials",
                                         "/home/u/.netrc",
                                         "/home/u/.bash_history",
                                         "/etc/shadow",
                                         "/etc/ssh/ssh_host_rsa_key",
                                         "/home/u/.mozilla/x",
                                         "/home/u/work/.env",
                                         "/home/u/work/.env.production",
                                         "/home/u/.config/gh/hosts.yml",
                                         "/home/u/.claude/.credentials.json"};
    static const char *const shown[] = {"/etc/passwd",
                                        "/home/u/work/.env.example",
                                        "/home/u/.gitconfig",
                                        "/home/u/.sshx",
                                        "/etc/ssh/ssh_host_rsa_key.pub",
                                        "/home/u/.config/hutch/policy.yaml",
                                        "/"};
    (void)state;
    _cleanup_policy_ struct policy *p = accepted_at(LEVEL_USER, "");
    for (size_t i = 0; i < ARRAY_LEN(hidden); i++)
        if (policy_may_read(p, hidden[i], NULL))
            fail_msg("%s is readable", hidden[i]);
    for (size_t i = 0; i < ARRAY_LEN(shown); i++)
        if (!policy_may_read(p, shown[i], NULL))
            fail_msg("%s is not readable", shown[i]);
}

static void defaults_let_the_workspace_be_written_but_not_what_the_host_runs(void **state)
{
    static const char *const writable[] = {"/home/u/work",
                                           "/home/u/work/a/b",
                                           "/tmp/x",
                                           "/var/tmp",
                                           "/home/u/work/.git/index",
                                           "/home/u/work/.github/x",
                                           "/home/u/work/sub/.bashrc",
                                           "/home/u/work/.bashrc",
                                           "/home/u/work/.npmrc"};
    static const char *const fixed[] = {"/etc/x",
                                        "/home/u/x",
                                        "/home/u/workx",
                                        "/home/u/work/.git/hooks",
                                        "/home/u/work/.git/hooks/pre-commit",
                                        "/home/u/work/.git/config",
                                        "/home/u/work/deep/repo/.git/hooks/x",
                                        "/home/u/work/.vimrc",
                                        "/home/u/work/.vscode/tasks.json",
                                        "/home/u/work/.mcp.json",
                                        "/home/u/work/.hutch.yaml",
                                        "/"};
    (void)state;
    _cleanup_policy_ struct policy *p = accepted_at(LEVEL_USER, "");
    for (size_t i = 0; i < ARRAY_LEN(writable); i++)
        if (!policy_may_write(p, writable[i], NULL, NULL))
            fail_msg("%s is not writable", writable[i]);
    for (size_t i = 0; i < ARRAY_LEN(fixed); i++)
        if (policy_may_write(p, fixed[i], NULL, NULL))
            fail_msg("%s is writable", fixed[i]);
}

static void the_working_directory_is_not_opened_where_that_means_too_much(void **state)
{
    static const char *const places[] = {"/", "/tmp", "/proc/1", "/run/x", "/home/u/.ssh", "/home/u/.config/hutch"};
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(places); i++) {
        const struct policy_where where = {.cwd = places[i], .home = "/home/u"};
        _cleanup_policy_ struct policy *p = policy_new();
        policy_add_defaults(&where, p);
        assert_null(rule_at(p, FILE_ALLOW_WRITE, places[i]));
    }
    const struct policy_where none = {.cwd = "/w", .home = "/home/u", .no_workspace = true};
    _cleanup_policy_ struct policy *p = policy_new();
    policy_add_defaults(&none, p);
    assert_false(policy_may_write(p, "/w/x", NULL, NULL));
}

static void a_home_directory_as_workspace_keeps_its_start_up_files(void **state)
{
    static const char *const fixed[] = {"/home/u/.bashrc", "/home/u/.config/hutch/policy.yaml", "/home/u/.local/bin/ls",
                                        "/home/u/.local/state/hutch/trusted", "/home/u/.config/autostart/x"};
    const struct policy_where where = {.cwd = "/home/u", .home = "/home/u"};
    (void)state;
    _cleanup_policy_ struct policy *p = policy_new();
    policy_add_defaults(&where, p);
    assert_true(policy_may_write(p, "/home/u/notes", NULL, NULL));
    for (size_t i = 0; i < ARRAY_LEN(fixed); i++)
        if (policy_may_write(p, fixed[i], NULL, NULL))
            fail_msg("%s is writable", fixed[i]);
}

static void a_container_has_neither_workspace_nor_deny_list(void **state)
{
    const struct policy_where where = {.cwd = "/home/u/work", .home = "/home/u", .container = true};
    (void)state;
    _cleanup_policy_ struct policy *p = policy_new();
    policy_add_defaults(&where, p);
    assert_int_equal(p->nfiles, 1);
    assert_non_null(rule_at(p, FILE_TMPFS, "/tmp"));
}

static void the_longer_path_wins_and_globs_reach_below(void **state)
{
    const struct file_rule *rule;
    (void)state;
    _cleanup_policy_ struct policy *p = accepted_at(
        LEVEL_USER,
        "files:\n  deny_read: [/a, /a/b/c, '/srv/**/secret', '/srv/x/*.key']\n  allow_read: [/a/b, /srv/x/pub.key]\n"
        "  allow_write: [/srv, /srv/ro/rw]\n  deny_write: [/srv/ro]\n");
    assert_false(policy_may_read(p, "/a", NULL));
    assert_false(policy_may_read(p, "/a/x", NULL));
    assert_true(policy_may_read(p, "/a/b", NULL));
    assert_true(policy_may_read(p, "/a/b/x", NULL));
    assert_false(policy_may_read(p, "/a/b/c/d", &rule));
    assert_string_equal(rule->id, "files.deny_read[1]");
    assert_true(policy_may_read(p, "/ab", &rule));
    assert_null(rule);
    assert_false(policy_may_read(p, "/srv/p/q/secret", NULL));
    assert_false(policy_may_read(p, "/srv/secret/below/it", NULL));
    assert_true(policy_may_read(p, "/srv/secrets", NULL));
    assert_false(policy_may_read(p, "/srv/x/a.key", NULL));
    assert_true(policy_may_read(p, "/srv/x/pub.key", NULL));
    assert_false(policy_may_write(p, "/srv/p/secret", NULL, NULL));
    assert_false(policy_may_write(p, "/srv/ro/x", NULL, NULL));
    assert_true(policy_may_write(p, "/srv/ro/rw/x", NULL, NULL));
}

static void a_grant_for_a_protected_name_opens_it_and_nothing_beside(void **state)
{
    const struct protected_name *name;
    (void)state;
    _cleanup_policy_ struct policy *p = accepted_at(LEVEL_FLAGS, "files: {allow_write: [.vscode, .git/config]}\n");
    assert_true(policy_may_write(p, "/home/u/work/.vscode/tasks.json", NULL, NULL));
    assert_true(policy_may_write(p, "/home/u/work/.git/config", NULL, NULL));
    assert_false(policy_may_write(p, "/home/u/work/.git/hooks/x", NULL, &name));
    assert_string_equal(name->id, "builtin.git-hooks");
    assert_false(policy_may_write(p, "/home/u/work/.idea", NULL, &name));
}

static void names_are_protected_in_repositories_that_exist(void **state)
{
    struct scratch s;
    (void)state;
    scratch_make(&s);
    _cleanup_free_ char *repo = xasprintf("%s/a/repo", s.work),
                        *make = xasprintf("mkdir -p '%s/.git' '%s/.vscode'", repo, repo);
    _cleanup_free_ char *in = xasprintf("%s/.vscode/x", repo), *out = xasprintf("%s/a/.vscode/x", s.work);
    _cleanup_free_ char *absent = xasprintf("%s/.idea/x", repo), *hook = xasprintf("%s/.git/hooks/x", repo);
    _cleanup_free_ char *at_root = xasprintf("%s/.idea/x", s.work);
    assert_int_equal(system(make), 0);
    _cleanup_policy_ struct policy *p = policy_new();
    policy_add_defaults(&s.where, p);
    bool inside = policy_may_write(p, in, NULL, NULL), beside = policy_may_write(p, out, NULL, NULL);
    bool makes = policy_may_write(p, absent, NULL, NULL), git = policy_may_write(p, hook, NULL, NULL);
    bool root = policy_may_write(p, at_root, NULL, NULL);
    scratch_done(&s);
    assert_false(inside);
    assert_true(beside);
    assert_true(makes); /* not git's, absent, and not at a writable root: only listed after the run */
    assert_false(git);
    assert_false(root);
}

/* The grant, taken at its word, must change the verdict. */
static void the_grant_that_is_offered_works(void **state)
{
    static const struct {
        const char *path;
        bool write;
    } cases[] = {
        {"/home/u/.ssh/id_rsa", false},       {"/home/u/.netrc", false},        {"/srv/new/file", true},
        {"/home/u/work/.vimrc", true},        {"/home/u/work/.env.[x]", false}, {"/home/u/work/.git/hooks/a b", true},
        {"/home/u/it's a \"name\" # x", true}};
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        _cleanup_buf_ struct buf line = {0}, flag = {0}, origin = {0};
        const char *rule;
        _cleanup_policy_ struct policy *before = accepted_at(LEVEL_USER, "");
        policy_grant_for_path(before, cases[i].path, cases[i].write, &line, &flag, &rule, &origin);
        assert_true(line.n > 0 && flag.n > 0 && origin.n > 0 && rule);
        _cleanup_policy_ struct policy *after = accepted_at(LEVEL_USER, buf_str(&line));
        bool ok = cases[i].write ? policy_may_write(after, cases[i].path, NULL, NULL)
                                 : policy_may_read(after, cases[i].path, NULL);
        if (!ok)
            fail_msg("%s does not open %s", buf_str(&line), cases[i].path);
    }
}

static void explanations_say_verdict_rule_origin_and_grant(void **state)
{
    (void)state;
    _cleanup_buf_ struct buf out = {0};
    _cleanup_policy_ struct policy *p =
        accepted_at(LEVEL_USER, "files:\n  deny_read:\n    - /srv/k\nceiling:\n  files:\n    deny_read: [/srv/top]\n");
    assert_false(policy_explain_path(p, "/srv/k/x", false, &out));
    assert_string_equal(buf_str(&out), "read /srv/k/x: denied\n  rule    files.deny_read[0]: deny_read /srv/k\n"
                                       "  from    p.yaml:3\n  grant   files: {allow_read: [/srv/k/x]}\n"
                                       "  flag    --allow-read /srv/k/x\n");
    buf_done(&out);
    assert_true(policy_explain_path(p, "/home/u/work/x", true, &out));
    assert_non_null(strstr(buf_str(&out), "builtin.workspace"));
    buf_done(&out);
    assert_false(policy_explain_host(p, "api.test", &out));
    assert_non_null(strstr(buf_str(&out), "network: {allow: [api.test]}"));
    buf_done(&out);
    assert_false(policy_explain_path(p, "/a\x1b[31m", true, &out));
    assert_null(strchr(buf_str(&out), '\x1b'));
    assert_non_null(strstr(buf_str(&out), "no grant possible"));
}

static void requests_are_explained_by_rule_and_reason(void **state)
{
    _cleanup_buf_ struct buf out = {0};
    (void)state;
    _cleanup_policy_ struct policy *p = accepted_at(
        LEVEL_USER, "network:\n  rules:\n  - {id: llm, hosts: [api.test], http: [{methods: [POST], paths: [/v1/**]}]}\n"
                    "  deny: [bad.test]\n");
    assert_true(policy_explain_request(p, "POST", "https://api.test/v1/x", NULL, &out));
    assert_string_equal(buf_str(&out), "POST https://api.test/v1/x: allowed\n  rule    llm\n  from    p.yaml:2\n");
    buf_done(&out);
    assert_false(policy_explain_request(p, "GET", "https://api.test/v1/x", NULL, &out));
    assert_string_equal(
        buf_str(&out),
        "GET https://api.test/v1/x: denied\n  rule    llm\n  reason  method_not_allowed\n  from    p.yaml:2\n"
        "  grant   network: {rules: [{\"hosts\":[\"api.test\"],\"http\":[{\"methods\":[\"GET\"],\"paths\":"
        "[\"/v1/x\"]}]}]}\n  flag    --allow-host api.test\n");
    buf_done(&out);
    assert_false(policy_explain_host(p, "bad.test", &out));
    assert_non_null(strstr(buf_str(&out), "reason  denied_by_rule"));
    assert_non_null(strstr(buf_str(&out), "no grant possible"));
    buf_done(&out);
    assert_false(policy_explain_request(p, "GET", "http://169.254.169.254/latest", NULL, &out));
    assert_non_null(strstr(buf_str(&out), "reason  private_address"));
    buf_done(&out);
    assert_false(policy_explain_request(p, "GET", "https://api.test/..", NULL, &out));
    assert_non_null(strstr(buf_str(&out), "malformed: the path goes above the root"));
}

static void no_grant_is_offered_below_a_ceiling(void **state)
{
    static const char system_text[] =
        "ceiling:\n  files:\n    deny_read: [/srv/top]\n    allow_write: [/srv]\n  network: off\n"
        "  syscalls: {allow: []}\n";
    struct scratch s;
    struct err err;
    _cleanup_policy_ struct policy *p = NULL;
    _cleanup_buf_ struct buf out = {0};
    (void)state;
    scratch_make(&s);
    write_file(s.system, system_text);
    int r = policy_load(&s.where, NULL, NULL, NULL, 0, &p, &err);
    scratch_done(&s);
    assert_int_equal(r, 0);
    (void)policy_explain_path(p, "/srv/top/x", false, &out);
    assert_non_null(strstr(buf_str(&out), "no grant possible: ceiling "));
    assert_non_null(strstr(buf_str(&out), "system.yaml:3"));
    buf_done(&out);
    (void)policy_explain_path(p, "/opt/x", true, &out);
    assert_non_null(strstr(buf_str(&out), "system.yaml:4"));
    buf_done(&out);
    (void)policy_explain_host(p, "a.test", &out);
    assert_non_null(strstr(buf_str(&out), "system.yaml:5"));
    buf_done(&out);
    (void)policy_explain_syscall(p, syscall_number("ptrace"), &out);
    assert_non_null(strstr(buf_str(&out), "system.yaml:6"));
}

static void system_calls_are_explained(void **state)
{
    (void)state;
    _cleanup_buf_ struct buf out = {0}, line = {0};
    _cleanup_policy_ struct policy *p = accepted_at(LEVEL_USER, "syscalls: {deny: [uname]}\n");
    assert_true(policy_explain_syscall(p, syscall_number("read"), &out));
    buf_done(&out);
    assert_false(policy_explain_syscall(p, syscall_number("uname"), &out));
    assert_non_null(strstr(buf_str(&out), "syscalls.deny"));
    assert_non_null(strstr(buf_str(&out), "p.yaml:1"));
    buf_done(&out);
    assert_false(policy_explain_syscall(p, syscall_number("mount"), &out));
    assert_non_null(strstr(buf_str(&out), "no grant possible"));
    policy_grant_for_syscall(p, syscall_number("ptrace"), NULL, &line, NULL, NULL, NULL);
    assert_string_equal(buf_str(&line), "syscalls: {allow: [ptrace]}");
}

/* --- environment -------------------------------------------------------------------------------------------------- */

static void environment_of(const char *text, char *const *environment, struct strv *ret, struct strv *dropped)
{
    _cleanup_policy_ struct policy *p = accepted_at(LEVEL_USER, text);
    assert_int_equal(policy_environment(p, environment, ret, dropped), 0);
}

#define VAR(s) ((char *)(uintptr_t)(s))

static char *const some[] = {VAR("PATH=/bin"),
                             VAR("LC_ALL=C"),
                             VAR("FOO=1"),
                             VAR("GITHUB_TOKEN=t"),
                             VAR("LD_PRELOAD=x"),
                             VAR("AWS_X=y"),
                             VAR("noequals"),
                             VAR("=odd"),
                             VAR("MY_API_KEY=k"),
                             VAR("EMPTY="),
                             NULL};

static void only_listed_variables_pass(void **state)
{
    (void)state;
    _cleanup_strv_ struct strv env = {0}, dropped = {0};
    environment_of("", some, &env, &dropped);
    assert_int_equal(env.n, 2);
    assert_true(strv_has(&env, "PATH=/bin") && strv_has(&env, "LC_ALL=C"));
    assert_true(strv_has(&dropped, "GITHUB_TOKEN"));
    assert_int_equal(dropped.n, 8);
}

static void passing_everything_still_keeps_secrets_outside(void **state)
{
    (void)state;
    _cleanup_strv_ struct strv env = {0}, dropped = {0};
    environment_of("env: {pass: ['*']}\n", some, &env, &dropped);
    assert_true(strv_has(&env, "FOO=1") && strv_has(&env, "EMPTY="));
    assert_int_equal(env.n, 4);
    assert_true(strv_has(&dropped, "LD_PRELOAD") && strv_has(&dropped, "AWS_X") && strv_has(&dropped, "MY_API_KEY"));
}

static void a_secret_passes_only_by_its_own_name(void **state)
{
    (void)state;
    _cleanup_strv_ struct strv env = {0};
    environment_of("env: {pass: [GITHUB_TOKEN]}\n", some, &env, NULL);
    assert_true(strv_has(&env, "GITHUB_TOKEN=t"));
}

static void set_wins_over_passed_and_deny_over_defaults(void **state)
{
    (void)state;
    _cleanup_strv_ struct strv env = {0};
    environment_of("env: {set: {PATH: '/opt bin', NEW: ''}, deny: ['LC_*']}\n", some, &env, NULL);
    assert_int_equal(env.n, 2);
    assert_true(strv_has(&env, "PATH=/opt bin") && strv_has(&env, "NEW="));
}

static void the_environment_is_bounded(void **state)
{
    static char big[300 * 1024];
    (void)state;
    memset(big, 'x', sizeof big - 1);
    big[0] = 'A';
    big[1] = '=';
    char *const environment[] = {big, big, big, big, big, NULL};
    _cleanup_strv_ struct strv env = {0}, dropped = {0};
    environment_of("env: {pass: [A]}\n", environment, &env, &dropped);
    assert_int_equal(env.n, 3);
    assert_int_equal(dropped.n, 2);
}

/* --- show --------------------------------------------------------------------------------------------------------- */

static void what_is_shown_is_a_document_that_says_the_same(void **state)
{
    static const char text[] =
        "files: {allow_write: ['/a/\\[x\\]', '/s:/d'], deny_read: ['/b/*', '/c d'], protect: [n/]}\n"
        "limits: {cpu: 1.25, memory: 1537K, wall_time: 1500ms}\nsyscalls: {allow: [ptrace], deny: [uname]}\n"
        "network: {allow: ['*.a.test'], deny: [b.test]}\nenv: {set: {A: \"x: # \\\"\"}, pass: ['Q*']}\n"
        "on_denial: {after: 2, do: freeze}\n";
    (void)state;
    _cleanup_buf_ struct buf first = {0}, second = {0};
    _cleanup_policy_ struct policy *p = accepted_at(LEVEL_FLAGS, text), *q = policy_new();
    struct err err = {0};
    policy_show(p, &first);
    if (policy_parse(buf_str(&first), first.n, "p.yaml", LEVEL_FLAGS, &place, q, &err) < 0)
        fail_msg("%s\n%s", err.msg, buf_str(&first));
    assert_int_equal(p->nfiles, q->nfiles);
    assert_int_equal(p->nnames, q->nnames);
    assert_int_equal(p->nenv, q->nenv);
    assert_int_equal(p->limits[LIMIT_MEMORY].value, q->limits[LIMIT_MEMORY].value);
    assert_int_equal(p->limits[LIMIT_CPU].value, q->limits[LIMIT_CPU].value);
    assert_string_equal(p->network_text, q->network_text);
    assert_string_equal(rule_at(q, FILE_ALLOW_WRITE, "/d")->src, "/s");
    assert_non_null(rule_at(q, FILE_ALLOW_WRITE, "/a/[x]"));
    assert_non_null(strstr(buf_str(&first), "- \"/c d\"  # files.deny_read[1], p.yaml:1\n"));
    policy_show_json(p, &second);
    assert_non_null(strstr(buf_str(&second), "\"cpu\":{\"value\":1.250,\"origin\":\"p.yaml:2\"}"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(defaults_hide_secrets_and_leave_the_rest),
        cmocka_unit_test(defaults_let_the_workspace_be_written_but_not_what_the_host_runs),
        cmocka_unit_test(the_working_directory_is_not_opened_where_that_means_too_much),
        cmocka_unit_test(a_home_directory_as_workspace_keeps_its_start_up_files),
        cmocka_unit_test(a_container_has_neither_workspace_nor_deny_list),
        cmocka_unit_test(the_longer_path_wins_and_globs_reach_below),
        cmocka_unit_test(a_grant_for_a_protected_name_opens_it_and_nothing_beside),
        cmocka_unit_test(names_are_protected_in_repositories_that_exist),
        cmocka_unit_test(the_grant_that_is_offered_works),
        cmocka_unit_test(explanations_say_verdict_rule_origin_and_grant),
        cmocka_unit_test(requests_are_explained_by_rule_and_reason),
        cmocka_unit_test(no_grant_is_offered_below_a_ceiling),
        cmocka_unit_test(system_calls_are_explained),
        cmocka_unit_test(only_listed_variables_pass),
        cmocka_unit_test(passing_everything_still_keeps_secrets_outside),
        cmocka_unit_test(a_secret_passes_only_by_its_own_name),
        cmocka_unit_test(set_wins_over_passed_and_deny_over_defaults),
        cmocka_unit_test(the_environment_is_bounded),
        cmocka_unit_test(what_is_shown_is_a_document_that_says_the_same),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
