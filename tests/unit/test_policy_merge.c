/* Several levels: who wins, what a ceiling holds, what a project document may not do, and trust. */
#include <sys/stat.h>
#include <unistd.h>

#include "policy-harness.h"
#include "policy/run/explain.h"
#include "policy/run/trust.h"

static int load(const struct scratch *s, const struct policy_flag *flags, size_t n, struct policy **ret,
                struct err *err)
{
    *err = (struct err){0};
    return policy_load(&s->where, NULL, NULL, flags, n, ret, err);
}

static void loads(const struct scratch *s, const struct policy_flag *flags, size_t n, struct policy **ret)
{
    struct err err;
    if (load(s, flags, n, ret, &err) < 0)
        fail_msg("refused: %s", err.msg);
}

static void refuses(const struct scratch *s, const struct policy_flag *flags, size_t n, int code, const char *want)
{
    struct err err;
    struct policy *p;
    if (load(s, flags, n, &p, &err) == 0)
        fail_msg("accepted, but should be refused with \"%s\"", want);
    if (!strstr(err.msg, want) || err.code != code)
        fail_msg("message is  \"%s\" (%d)\nand lacks   \"%s\" (%d)", err.msg, err.code, want, code);
}

static int make(void **state)
{
    struct scratch *s = xcalloc(1, sizeof *s);
    scratch_make(s);
    *state = s;
    return 0;
}

static int unmake(void **state)
{
    scratch_done(*state);
    free(*state);
    return 0;
}

static void write_project(const struct scratch *s, const char *text)
{
    _cleanup_free_ char *path = xasprintf("%s/.hutch.yaml", s->work);
    write_file(path, text);
}

static void later_levels_win_and_lists_add_up(void **state)
{
    const struct scratch *s = *state;
    const struct policy_flag flags[] = {{"limits.memory", "3G", "--memory 3G", 0}};
    _cleanup_policy_ struct policy *p = NULL;
    write_file(s->system, "limits: {memory: 1G, pids: 50}\nfiles: {deny_read: [/srv/a]}\nprivilege: computer\n");
    write_file(s->user, "limits: {memory: 2G, pids: unlimited}\nfiles: {deny_read: [/srv/b]}\n");
    loads(s, flags, 1, &p);
    assert_int_equal(p->limits[LIMIT_MEMORY].value, 3ULL << 30);
    assert_string_equal(p->limits[LIMIT_MEMORY].origin.file, "--memory 3G");
    assert_false(p->limits[LIMIT_PIDS].set);
    assert_int_equal(p->privilege, PRIVILEGE_COMPUTER);
    assert_non_null(rule_at(p, FILE_DENY_READ, "/srv/a"));
    assert_non_null(rule_at(p, FILE_DENY_READ, "/srv/b"));
    assert_int_equal(p->sources.n, 2);
}

static void a_later_rule_for_the_same_path_replaces_the_earlier_one(void **state)
{
    const struct scratch *s = *state;
    _cleanup_free_ char *netrc = xasprintf("%s/.netrc", s->home);
    const struct policy_flag flags[] = {{"files.allow_read", "~/.netrc", "--allow-read ~/.netrc", 0},
                                        {"files.deny_write", ".", "--protect .", 0}};
    _cleanup_policy_ struct policy *before = NULL, *after = NULL;
    loads(s, NULL, 0, &before);
    assert_false(policy_may_read(before, netrc, NULL));
    assert_true(policy_may_write(before, s->work, NULL, NULL));
    loads(s, flags, 2, &after);
    assert_true(policy_may_read(after, netrc, NULL));
    assert_false(policy_may_write(after, s->work, NULL, NULL));
}

static void flags_are_told_what_is_wrong_by_their_own_text(void **state)
{
    const struct scratch *s = *state;
    const struct policy_flag bad_limit[] = {{"limits.memory", "much", "--memory much", 0}};
    const struct policy_flag glob[] = {{"files.allow_write", "*.c", "--rw *.c", 0}};
    const struct policy_flag both[] = {{"files.allow_write", "x", "--rw x", 0},
                                       {"files.read_only", "./x", "--ro ./x", 0}};
    const struct policy_flag env[] = {{"env.set", "=v", "--env =v", 0}};
    refuses(s, bad_limit, 1, ERR_USAGE, "--memory much: memory must be a size");
    refuses(s, glob, 1, ERR_USAGE, "--rw *.c: allow_write: \"*.c\" is a glob");
    refuses(s, both, 2, ERR_POLICY, "--ro ./x: read_only");
    refuses(s, both, 2, ERR_POLICY, "contradicts allow_write of the same path in --rw x");
    refuses(s, env, 1, ERR_USAGE, "--env =v: env.set: \"\" is not a variable's name");
}

static void no_character_of_a_literal_flag_is_special(void **state)
{
    const struct scratch *s = *state;
    static const char *const paths[] = {"/srv/a[prod]/token", "/srv/b\\c/token", "/srv/*?/x:/y"};
    for (size_t i = 0; i < ARRAY_LEN(paths); i++) {
        const struct policy_flag flags[] = {{"files.deny_read", paths[i], "--secret-file", FILE_LITERAL},
                                            {"files.deny_write", paths[i], "--audit", FILE_LITERAL}};
        _cleanup_policy_ struct policy *p = NULL;
        loads(s, flags, 2, &p);
        assert_non_null(rule_at(p, FILE_DENY_READ, paths[i]));
        assert_false(rule_at(p, FILE_DENY_READ, paths[i])->is_glob);
        assert_false(policy_may_read(p, paths[i], NULL));
        assert_non_null(rule_at(p, FILE_DENY_WRITE, paths[i]));
    }
}

static void try_flags_reach_the_rule(void **state)
{
    const struct scratch *s = *state;
    const struct policy_flag flags[] = {{"files.allow_write", "maybe", "--rw maybe", FILE_TRY}};
    _cleanup_policy_ struct policy *p = NULL;
    _cleanup_free_ char *path = xasprintf("%s/maybe", s->work);
    loads(s, flags, 1, &p);
    assert_int_equal(rule_at(p, FILE_ALLOW_WRITE, path)->flags, FILE_TRY);
    assert_string_equal(rule_at(p, FILE_ALLOW_WRITE, path)->id, "flag.allow_write[0]");
}

static void a_project_document_may_narrow(void **state)
{
    const struct scratch *s = *state;
    _cleanup_policy_ struct policy *p = NULL;
    write_project(s, "files: {deny_read: [secret], deny_write: ['*.lock'], protect: [ci.yml], protect_builtin: true}\n"
                     "limits: {pids: 10, memory: 1G}\n"
                     "syscalls: {deny: [uname], profile: no-unix}\n"
                     "env: {deny: [CI]}\nenforcement: required\nnetwork: off\non_denial: {after: 5, do: kill}\n");
    loads(s, NULL, 0, &p);
    assert_int_equal(p->limits[LIMIT_PIDS].value, 10);
    _cleanup_free_ char *secret = xasprintf("%s/secret/x", s->work), *lock = xasprintf("%s/a.lock", s->work);
    assert_false(policy_may_read(p, secret, NULL));
    assert_false(policy_may_write(p, lock, NULL, NULL));
}

static void a_project_document_may_not_widen(void **state)
{
    const struct scratch *s = *state;
    static const char *const texts[] = {
        "files: {allow_write: [/srv]}\n",
        "files: {allow_read: [~/.ssh/id]}\n",
        "files: {read_only: ['/a:/b']}\n",
        "files: {tmpfs: [/x]}\n",
        "files: {sockets: [/run/x]}\n",
        "files: {devices: [/dev/kvm]}\n",
        "files: {protect_builtin: false}\n",
        "files: {search_depth: 1}\n",
        "limits: {pids: 2000}\n",
        "limits: {disk: unlimited}\n",
        "syscalls: {allow: [ptrace]}\n",
        "syscalls: {profile: debugger}\n",
        "network: host\n",
        "network: {allow: [a.test]}\n",
        "privilege: computer\n",
        "env: {pass: [AWS_PROFILE]}\n",
        "env: {set: {A: b}}\n",
        "enforcement: best-effort\n",
    };
    for (size_t i = 0; i < ARRAY_LEN(texts); i++) {
        write_project(s, texts[i]);
        refuses(s, NULL, 0, ERR_POLICY, "/.hutch.yaml:1: ");
        refuses(s, NULL, 0, ERR_POLICY,
                "would widen the policy, which a project document may do only once you trust it");
        refuses(s, NULL, 0, ERR_POLICY, "`hutch policy trust`");
    }
}

static void trust_holds_for_one_text_at_one_path(void **state)
{
    const struct scratch *s = *state;
    static const char text[] = "files: {allow_write: [/srv/x]}\n";
    struct err err;
    struct stat st;
    bool found;
    _cleanup_policy_ struct policy *p = NULL;
    _cleanup_strv_ struct strv lines = {0};
    _cleanup_free_ char *path = xasprintf("%s/.hutch.yaml", s->work), *dir = xasprintf("%s/state/hutch", s->home);
    write_project(s, text);
    refuses(s, NULL, 0, ERR_POLICY, "widen");
    assert_int_equal(trust_add(s->trust, path, text, strlen(text), &err), 0);
    loads(s, NULL, 0, &p);
    assert_true(policy_may_write(p, "/srv/x/y", NULL, NULL));
    assert_int_equal(stat(s->trust, &st), 0);
    assert_int_equal(st.st_mode & 07777, 0600);
    assert_int_equal(stat(dir, &st), 0);
    assert_int_equal(st.st_mode & 07777, 0700);

    write_project(s, "files: {allow_write: [/srv/y]}\n");
    refuses(s, NULL, 0, ERR_POLICY, "widen");
    write_project(s, text);
    assert_int_equal(trust_add(s->trust, "/elsewhere/.hutch.yaml", text, strlen(text), &err), 0);
    assert_int_equal(trust_add(s->trust, path, text, strlen(text), &err), 0);
    assert_int_equal(trust_list(s->trust, &lines, &err), 0);
    assert_int_equal(lines.n, 2);
    assert_int_equal(trust_revoke(s->trust, path, &found, &err), 0);
    assert_true(found);
    refuses(s, NULL, 0, ERR_POLICY, "widen");
    assert_int_equal(trust_revoke(s->trust, path, &found, &err), 0);
    assert_false(found);
}

static void a_trust_file_that_others_can_write_is_refused(void **state)
{
    const struct scratch *s = *state;
    struct err err;
    assert_int_equal(trust_add(s->trust, "/a", "x", 1, &err), 0);
    write_project(s, "files: {deny_read: [x]}\n");
    assert_int_equal(chmod(s->trust, 0666), 0);
    refuses(s, NULL, 0, ERR_POLICY, "only you can write");
    assert_int_equal(chmod(s->trust, 0600), 0);
    write_file(s->trust, "not a line\n");
    refuses(s, NULL, 0, ERR_POLICY, "trusted:1: not a line of");
}

static const char bounds[] = "ceiling:\n"
                             "  limits: {memory: 1G, pids: 100}\n"
                             "  files:\n"
                             "    allow_write: [/srv]\n"
                             "    deny_read: [/srv/keys, '/srv/*/token']\n"
                             "  network: off\n"
                             "  privilege: strict\n"
                             "  syscalls: {allow: [ptrace]}\n"
                             "  enforcement: required\n";

static void exceeding_a_ceiling_names_both_places(void **state)
{
    const struct scratch *s = *state;
    static const struct {
        struct policy_flag flag;
        const char *here, *there;
    } cases[] = {
        {{"limits.memory", "2G", "--memory 2G", 0}, "--memory 2G: memory: 2 GiB exceeds", "system.yaml:2"},
        {{"limits.pids", "unlimited", "--pids unlimited", 0}, "pids: unlimited exceeds", "system.yaml:2"},
        {{"files.allow_write", "/opt", "--rw /opt", 0}, "--rw /opt: allow_write /opt exceeds", "system.yaml:4"},
        {{"files.allow_write", "/opt:/srv/x", "--rw", 0}, "allow_write /opt exceeds", "system.yaml:4"},
        {{"files.allow_read", "/srv/keys/a", "--allow-read", 0}, "allow_read /srv/keys/a exceeds", "system.yaml:5"},
        {{"files.read_only", "/srv/keys:/mnt", "--ro", 0}, "read_only /srv/keys exceeds", "system.yaml:5"},
        {{"files.allow_write", "/srv/a/token", "--rw", 0}, "allow_write /srv/a/token exceeds", "system.yaml:5"},
        {{"network", "host", "--network host", 0}, "--network host: network exceeds", "system.yaml:6"},
        {{"privilege", "computer", "--privilege computer", 0}, "privilege: computer exceeds", "system.yaml:7"},
        {{"syscalls.allow", "bpf", "--allow-syscall bpf", 0}, "syscalls.allow bpf exceeds", "system.yaml:8"},
        {{"syscalls.profile", "debugger", "--profile debugger", 0},
         "syscalls.profile debugger exceeds",
         "system.yaml:8"},
        {{"enforcement", "best-effort", "--enforcement", 0}, "enforcement: best-effort exceeds", "system.yaml:9"},
    };
    write_file(s->system, bounds);
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        refuses(s, &cases[i].flag, 1, ERR_POLICY, cases[i].here);
        refuses(s, &cases[i].flag, 1, ERR_POLICY, cases[i].there);
    }
    write_file(s->user, "limits:\n  memory: 8G\n");
    refuses(s, NULL, 0, ERR_POLICY, "user.yaml:2: memory: 8 GiB exceeds the ceiling in ");
}

static void a_ceiling_lowers_defaults_and_denies_by_itself(void **state)
{
    const struct scratch *s = *state;
    const struct policy_flag flags[] = {{"files.allow_write", "/srv/x", "--rw /srv/x", 0},
                                        {"syscalls.allow", "ptrace", "--allow-syscall ptrace", 0}};
    _cleanup_policy_ struct policy *p = NULL;
    write_file(s->system, bounds);
    loads(s, flags, 2, &p);
    assert_int_equal(p->limits[LIMIT_MEMORY].value, 1ULL << 30);
    assert_int_equal(p->limits[LIMIT_PIDS].value, 100);
    assert_null(rule_at(p, FILE_ALLOW_WRITE, s->work));
    assert_true(policy_may_write(p, "/srv/x", NULL, NULL));
    assert_false(policy_may_read(p, "/srv/keys/a", NULL));
    assert_false(policy_may_read(p, "/srv/b/token", NULL));
}

static void a_ceiling_reaches_through_a_second_name(void **state)
{
    const struct scratch *s = *state;
    const struct policy_flag alias[] = {{"files.read_only", "/srv:/mnt", "--ro /srv:/mnt", 0}};
    const struct policy_flag reopened[] = {{"files.read_only", "/srv:/mnt", "--ro /srv:/mnt", 0},
                                           {"files.allow_read", "/mnt/keys", "--allow-read /mnt/keys", 0}};
    _cleanup_policy_ struct policy *p = NULL;
    write_file(s->system, bounds);
    loads(s, alias, 1, &p);
    assert_false(policy_may_read(p, "/mnt/keys/a", NULL));
    assert_false(policy_may_read(p, "/mnt/b/token", NULL));
    assert_true(policy_may_read(p, "/mnt/b/other", NULL));
    refuses(s, reopened, 2, ERR_POLICY, "--allow-read /mnt/keys: allow_read /mnt/keys exceeds");
}

static void built_in_denials_hold_under_a_second_name(void **state)
{
    const struct scratch *s = *state;
    const struct policy_flag flags[] = {{"files.read_only", "~:/mnt", "--ro ~:/mnt", 0}};
    _cleanup_policy_ struct policy *p = NULL;
    loads(s, flags, 1, &p);
    assert_true(policy_may_read(p, "/mnt/file", NULL));
    assert_false(policy_may_read(p, "/mnt/.ssh/id", NULL));
}

static void ceilings_stand_only_where_they_may(void **state)
{
    (void)state;
    refused_at(LEVEL_PROJECT, "ceiling: {network: off}\n", "only in the system and the user document");
    refused_at(LEVEL_FLAGS, "ceiling: {network: off}\n", "only in the system and the user document");
    refused_at(LEVEL_USER, "ceiling: {env: {}}\n", "unknown key \"env\" in ceiling");
    refused_at(LEVEL_USER, "ceiling: {files: {tmpfs: [/a]}}\n", "unknown key \"tmpfs\" in ceiling.files");
    refused_at(LEVEL_USER, "ceiling: {limits: {pids: unlimited}}\n", "pids must be a number");
}

static void documents_that_cannot_be_read_are_errors(void **state)
{
    const struct scratch *s = *state;
    struct err err;
    struct policy *p;
    const char *const missing[] = {"/nonexistent/x.yaml", NULL};
    assert_int_equal(policy_load(&s->where, missing, NULL, NULL, 0, &p, &err), -1);
    assert_non_null(strstr(err.msg, "cannot read policy /nonexistent/x.yaml"));
    assert_int_equal(policy_load(&s->where, NULL, "/nonexistent.json", NULL, 0, &p, &err), -1);
    assert_int_equal(mkdir(s->user, 0700), 0);
    refuses(s, NULL, 0, ERR_POLICY, "is not a regular file");
    assert_int_equal(rmdir(s->user), 0);
    write_file(s->user, "network: off\n");
    assert_int_equal(chmod(s->user, 0646), 0);
    refuses(s, NULL, 0, ERR_POLICY, "can be written by everyone");
}

/* Behind a directory that the caller may not enter, the system's document must not vanish with its ceiling; the user's and
 * the project's cannot be meant for this caller. */
static void a_hidden_system_document_is_an_error_and_a_hidden_user_document_is_not(void **state)
{
    const struct scratch *s = *state;
    struct policy_where outside = s->where;
    struct policy *p = NULL;
    struct err err = {0}, unused;
    bool root = geteuid() == 0;
    write_file(s->system, "ceiling: {network: off}\n");
    outside.system_file = "/nonexistent/policy.yaml";
    assert_int_equal(chmod(s->dir, 0), 0);
    assert_true(!root || seteuid(65534) == 0);
    int hidden = policy_load(&s->where, NULL, NULL, NULL, 0, &p, &err);
    int absent = policy_load(&outside, NULL, NULL, NULL, 0, &p, &unused);
    assert_true(!root || seteuid(0) == 0);
    assert_int_equal(chmod(s->dir, 0700), 0);
    assert_int_equal(hidden, -1);
    assert_non_null(strstr(err.msg, "cannot read policy"));
    assert_int_equal(absent, 0);
    policy_free(p);
}

/* --- network ------------------------------------------------------------------------------------------------------ */

static bool reaches(const struct policy *p, const char *host)
{
    _cleanup_buf_ struct buf out = {0};
    return policy_explain_host(p, host, &out);
}

static void a_later_network_replaces_the_earlier_one_and_flags_add(void **state)
{
    const struct scratch *s = *state;
    static const struct policy_flag flags[] = {{"network.allow", "c.test:8443", "--allow-host c.test:8443", 0},
                                               {"network.allow", "d.test", "--allow-host d.test", 0},
                                               {"network.deny", "x.b.test", "--deny-host x.b.test", 0}};
    _cleanup_policy_ struct policy *p = NULL, *q = NULL, *r = NULL;
    write_file(s->system, "network: {allow: [a.test]}\n");
    write_file(s->user, "network:\n  allow: ['*.b.test']\n");
    loads(s, NULL, 0, &p);
    assert_int_equal(p->network, NETWORK_RULES);
    assert_true(reaches(p, "x.b.test") && !reaches(p, "a.test"));
    assert_int_equal(p->network_origin.line, 2);
    loads(s, flags, 3, &q);
    assert_true(reaches(q, "y.b.test") && reaches(q, "c.test:8443") && reaches(q, "d.test"));
    assert_false(reaches(q, "x.b.test") || reaches(q, "c.test"));
    static const struct policy_flag off = {"network", "off", "--network off", 0};
    loads(s, &off, 1, &r);
    assert_int_equal(r->network, NETWORK_OFF);
    assert_null(r->netpol);
    assert_null(r->network_text);
}

static void a_host_flag_that_is_none_is_told_so(void **state)
{
    const struct scratch *s = *state;
    static const struct policy_flag bad = {"network.allow", "http://a", "--allow-host http://a", 0};
    refuses(s, &bad, 1, ERR_USAGE, "--allow-host http://a: network: \"http://a\"");
}

static void a_project_may_switch_the_network_off_and_rules_need_trust(void **state)
{
    const struct scratch *s = *state;
    _cleanup_policy_ struct policy *p = NULL;
    write_file(s->user, "network: {allow: [a.test, b.test]}\n");
    write_project(s, "network: off\n");
    loads(s, NULL, 0, &p);
    assert_int_equal(p->network, NETWORK_OFF);
    write_project(s, "network: {allow: [a.test]}\n"); /* narrower, but that is not for a list to decide */
    refuses(s, NULL, 0, ERR_POLICY, "would widen the policy");
    write_project(s, "network: public\n");
    refuses(s, NULL, 0, ERR_POLICY, "would widen the policy");
}

static void a_ceiling_of_rules_leaves_nothing_of_the_host_s_network(void **state)
{
    const struct scratch *s = *state;
    static const struct policy_flag host = {"network", "host", "--network host", 0},
                                    one = {"network.allow", "a.test", "--allow-host a.test", 0};
    _cleanup_policy_ struct policy *p = NULL, *q = NULL;
    write_file(s->system, "network: host\n");
    write_file(s->user, "ceiling: {network: rules}\n");
    loads(s, NULL, 0, &p);
    assert_int_equal(p->network, NETWORK_RULES);
    assert_false(reaches(p, "a.test"));
    refuses(s, &host, 1, ERR_POLICY, "network exceeds the ceiling");
    loads(s, &one, 1, &q);
    assert_true(reaches(q, "a.test"));
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, make, unmake)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(later_levels_win_and_lists_add_up),
        TEST(a_later_rule_for_the_same_path_replaces_the_earlier_one),
        TEST(flags_are_told_what_is_wrong_by_their_own_text),
        TEST(try_flags_reach_the_rule),
        TEST(no_character_of_a_literal_flag_is_special),
        TEST(a_project_document_may_narrow),
        TEST(a_project_document_may_not_widen),
        TEST(trust_holds_for_one_text_at_one_path),
        TEST(a_trust_file_that_others_can_write_is_refused),
        TEST(exceeding_a_ceiling_names_both_places),
        TEST(a_ceiling_lowers_defaults_and_denies_by_itself),
        TEST(a_ceiling_reaches_through_a_second_name),
        TEST(built_in_denials_hold_under_a_second_name),
        TEST(ceilings_stand_only_where_they_may),
        TEST(documents_that_cannot_be_read_are_errors),
        TEST(a_hidden_system_document_is_an_error_and_a_hidden_user_document_is_not),
        TEST(a_later_network_replaces_the_earlier_one_and_flags_add),
        TEST(a_host_flag_that_is_none_is_told_so),
        TEST(a_project_may_switch_the_network_off_and_rules_need_trust),
        TEST(a_ceiling_of_rules_leaves_nothing_of_the_host_s_network),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
