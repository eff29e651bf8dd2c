/* One document: what it may say, and how precisely it is told what is wrong. */
#include <sys/stat.h>

#include "policy-harness.h"

static void every_key_of_a_full_document_is_read(void **state)
{
    (void)state;
    _cleanup_policy_ struct policy *p = accepted_at(
        LEVEL_FLAGS,
        "version: 1\n"
        "files:\n"
        "  deny_read: [~/.secrets]\n"
        "  allow_read: ['$HOME/.ssh/known_hosts']\n"
        "  allow_write: [./out, '/srv/a:/data']\n"
        "  deny_write: [out/lock]\n"
        "  read_only: ['/opt/m:/models', /opt/deps]\n"
        "  tmpfs: [/scratch]\n"
        "  sockets: [/run/x.sock]\n"
        "  devices: [/dev/fuse]\n"
        "  protect: [.tool/, conf]\n"
        "  search_depth: 5\n"
        "limits: {cpu: 1.5, memory: 512M, pids: 100, disk: 2G, inodes: 1000, open_files: 64, wall_time: 30s,\n"
        "         cpu_time: 5m, output_bytes: 10M}\n"
        "syscalls: {profile: debugger, allow: [ptrace], deny: [uname]}\n"
        "network: host\n"
        "privilege: computer\n"
        "env: {pass: [FOO], set: {A: 'b c'}, deny: [CI]}\n"
        "enforcement: best-effort\n"
        "on_denial: {after: 3, do: kill}\n");
    assert_non_null(rule_at(p, FILE_DENY_READ, "/home/u/.secrets"));
    assert_non_null(rule_at(p, FILE_ALLOW_READ, "/home/u/.ssh/known_hosts"));
    assert_non_null(rule_at(p, FILE_ALLOW_WRITE, "/home/u/work/out"));
    assert_string_equal(rule_at(p, FILE_ALLOW_WRITE, "/data")->src, "/srv/a");
    assert_non_null(rule_at(p, FILE_DENY_WRITE, "/home/u/work/out/lock"));
    assert_string_equal(rule_at(p, FILE_READ_ONLY, "/models")->src, "/opt/m");
    assert_null(rule_at(p, FILE_READ_ONLY, "/opt/deps")->src);
    assert_non_null(rule_at(p, FILE_TMPFS, "/scratch"));
    assert_non_null(rule_at(p, FILE_SOCKET, "/run/x.sock"));
    assert_non_null(rule_at(p, FILE_DEVICE, "/dev/fuse"));
    assert_int_equal(p->search_depth, 5);
    assert_int_equal(p->limits[LIMIT_CPU].value, 1500);
    assert_int_equal(p->limits[LIMIT_MEMORY].value, 512 << 20);
    assert_int_equal(p->limits[LIMIT_WALL_TIME].value, 30000);
    assert_true(p->limits[LIMIT_PIDS].typed);
    assert_string_equal(p->profile, "debugger");
    assert_int_equal(p->nsyscalls, 2);
    assert_int_equal(p->network, NETWORK_HOST);
    assert_int_equal(p->privilege, PRIVILEGE_COMPUTER);
    assert_int_equal(p->enforcement, ENFORCE_BEST_EFFORT);
    assert_int_equal(p->on_denial.after, 3);
    assert_int_equal(p->on_denial.action, DENIAL_KILL);
    assert_true(p->names[p->nnames - 2].is_dir);
    assert_false(p->names[p->nnames - 1].is_dir);
}

static void every_value_knows_its_line(void **state)
{
    (void)state;
    _cleanup_policy_ struct policy *p =
        accepted_at(LEVEL_USER, "files:\n  deny_read:\n    - /a\n    - /b\nlimits:\n  memory: 1G\n");
    assert_int_equal(rule_at(p, FILE_DENY_READ, "/a")->origin.line, 3);
    assert_int_equal(rule_at(p, FILE_DENY_READ, "/b")->origin.line, 4);
    assert_string_equal(rule_at(p, FILE_DENY_READ, "/b")->id, "files.deny_read[1]");
    assert_int_equal(p->limits[LIMIT_MEMORY].origin.line, 6);
    assert_string_equal(p->limits[LIMIT_MEMORY].origin.file, "p.yaml");
}

static void json_is_a_policy_too(void **state)
{
    (void)state;
    _cleanup_policy_ struct policy *p =
        accepted_at(LEVEL_USER, "{\"files\": {\"deny_read\": [\"/a\\/b\"]},\n\t\"limits\": {\"pids\": 5}}");
    assert_non_null(rule_at(p, FILE_DENY_READ, "/a/b"));
    assert_int_equal(p->limits[LIMIT_PIDS].value, 5);
}

static void an_empty_document_changes_nothing(void **state)
{
    static const char *const texts[] = {"", "# only a comment\n", "---\n", "files:\nlimits:\nenv:\n", "{}"};
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(texts); i++) {
        _cleanup_policy_ struct policy *p = accepted_at(LEVEL_PROJECT, texts[i]);
        assert_int_equal(p->network, NETWORK_OFF);
        assert_int_equal(p->limits[LIMIT_PIDS].value, 1024);
    }
}

static void wrong_documents_get_one_precise_line(void **state)
{
    static const struct {
        const char *text, *want;
    } cases[] = {
        {"files:\n  alow_write: [x]\n", "p.yaml:2: unknown key \"alow_write\" in files; did you mean \"allow_write\"?"},
        {"fils: {}\n", "p.yaml:1: unknown key \"fils\"; did you mean \"files\"?"},
        {"zzzzzzzzzz: 1\n", "p.yaml:1: unknown key \"zzzzzzzzzz\""},
        {"limits: {memroy: 1G}\n", "unknown key \"memroy\" in limits; did you mean \"memory\"?"},
        {"network: off\n\nnetwork: host\n", "p.yaml:3: key \"network\" is given twice, first in line 1"},
        {"network: on\n", "p.yaml:1: network must be off, host or public, not \"on\""},
        {"network: [a]\n", "network must be off, host, public, or a mapping"},
        {"network: {allow: ['a b']}\n", "p.yaml:1: network.allow[0]: \"a b\": not a host name"},
        {"network:\n  rules:\n    - hosts: [a.test]\n      prots: [1]\n",
         "p.yaml:4: network.rules[0]: unknown key \"prots\""},
        {"network:\n  presets: [no-such]\n", "p.yaml:2: network.presets[0]: there is no preset \"no-such\""},
        {"privilege: root\n", "privilege must be strict or computer, not \"root\""},
        {"enforcement: bestefort\n", "did you mean \"best-effort\"?"},
        {"limits: {memory: lots}\n", "memory must be a size from 1M to 1024T, like 512M, or unlimited, not \"lots\""},
        {"limits: {memory: 1}\n", "memory must be a size from 1M"},
        {"limits: {memory: 99999999999999999999T}\n", "memory must be"},
        {"limits: {pids: 0}\n", "pids must be a number from 1 to 4194304"},
        {"limits: {pids: -1}\n", "pids must be"},
        {"limits: {pids: 1.5}\n", "pids must be"},
        {"limits: {cpu: 0}\n", "cpu must be a number of CPUs"},
        {"limits: {wall_time: 30x}\n", "wall_time must be a time"},
        {"limits: {pids: [1]}\n", "pids: expected a plain value here"},
        {"limits: [1]\n", "limits must be a mapping"},
        {"files: {deny_read: {a: b}}\n", "deny_read must be a list"},
        {"files: {deny_read: [[a]]}\n", "deny_read: expected a plain value"},
        {"files: {deny_read: ['']}\n", "deny_read is empty"},
        {"files: {protect_builtin: yes}\n", "protect_builtin must be true or false, not \"yes\""},
        {"files: {protect_builtin: 'true'}\n", "must be true or false"},
        {"files: {search_depth: 11}\n", "search_depth must be a number from 1 to 10"},
        {"files: {protect: [../x]}\n", "must be a name below a writable directory"},
        {"files: {protect: [/x]}\n", "must be a name below a writable directory"},
        {"files: {protect: ['a*']}\n", "must be a name below a writable directory"},
        {"syscalls: {deny: [opn]}\n", "unknown syscall \"opn\"; did you mean \"open\"?"},
        {"syscalls: {profile: debuger}\n", "did you mean \"debugger\"?"},
        {"env: {pass: ['A=B']}\n", "env.pass: \"A=B\" is not a variable's name"},
        {"env: {set: {'A*': b}}\n", "env.set: \"A*\" is not a variable's name"},
        {"env: {set: [a]}\n", "env.set must be a mapping"},
        {"env: {set: {A: [b]}}\n", "the value of \"A\" must be text"},
        {"on_denial: {after: many}\n", "on_denial.after must be a number"},
        {"on_denial: {do: die}\n", "on_denial.do must be report, freeze or kill"},
        {"version: 2\n", "version must be 1"},
        {"- a\n", "p.yaml:1: the document must be a mapping"},
        {"text\n", "the document must be a mapping"},
        {"? [a]\n: b\n", "a key must be a word"},
    };
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++)
        refused_at(LEVEL_USER, cases[i].text, cases[i].want);
}

static void yaml_that_hides_something_is_refused(void **state)
{
    static const struct {
        const char *text, *want;
    } cases[] = {
        {"files: &a {deny_read: [/a]}\n", "p.yaml:1: anchors, aliases and tags"},
        {"network: off\nprivilege: *x\n", "p.yaml:2:"},
        {"network: !!str off\n", "anchors, aliases and tags"},
        {"<<: {network: off}\n", "merge keys"},
        {"network: off\n---\nnetwork: host\n", "p.yaml:2: a second document"},
        {"%YAML 1.1\n---\nnetwork: off\n", "directives"},
        {"files: {deny_read: [/a", "not valid YAML"},
        {"files:\n\tdeny_read: [/a]\n", "p.yaml:2: not valid YAML"},
        {"network: \"a\\0b\"\n", "NUL byte"},
        {"network: \"\xff\"\n", "not valid YAML"},
        {"files: {deny_read: [\"/a\\nb\"]}\n", "control character in path \"/a\\nb\""},
        {"\"\\e[31m\": 1\n", "unknown key \"\\x1b[31m\""},
    };
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++)
        refused_at(LEVEL_USER, cases[i].text, cases[i].want);
}

static void paths_are_checked_for_what_they_can_mean(void **state)
{
    static const struct {
        const char *text, *want;
    } cases[] = {
        {"files: {allow_write: ['/a/*']}\n", "is a glob, which only deny rules may be"},
        {"files: {allow_write: ['/a:/b*']}\n", "is a glob"},
        {"files: {deny_read: ['/**/*.pem']}\n", "must start with a fixed directory"},
        {"files: {deny_read: ['/a/**/b/**/c/**']}\n", "more than 2 \"**\""},
        {"files: {allow_write: [/]}\n", "\"/\" as a whole"},
        {"files: {deny_read: [/a/..]}\n", "\"/\" as a whole"},
        {"files: {allow_write: [/proc/sys]}\n", "kernel's own file system"},
        {"files: {read_only: ['/a:/sys/x']}\n", "kernel's own file system"},
        {"files: {tmpfs: [/dev/x]}\n", "lies in /dev"},
        {"files: {devices: [/etc/passwd]}\n", "is not below /dev"},
        {"files: {deny_read: [~other/x]}\n", "only ~ and $HOME are replaced"},
        {"files: {deny_read: [$XDG/x]}\n", "only ~ and $HOME are replaced"},
        {"files: {deny_read: [a]}\n", "is relative; this document needs absolute paths"},
        {"files: {deny_read: ['/a\\']}\n", "must stand before the character it protects"},
    };
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++)
        refused_at(LEVEL_SYSTEM, cases[i].text, cases[i].want);
}

static void a_backslash_makes_a_glob_character_an_ordinary_one(void **state)
{
    (void)state;
    _cleanup_policy_ struct policy *p =
        accepted_at(LEVEL_USER, "files: {allow_write: ['/app/\\[id\\]'], deny_read: ['/app/\\*', '/app/\\**']}\n");
    assert_non_null(rule_at(p, FILE_ALLOW_WRITE, "/app/[id]"));
    assert_false(rule_at(p, FILE_DENY_READ, "/app/*")->is_glob);
    assert_true(rule_at(p, FILE_DENY_READ, "/app/\\**")->is_glob);
}

static void a_working_directory_with_glob_characters_stays_itself(void **state)
{
    static const struct policy_where odd = {.cwd = "/w/[id]", .home = "/home/u"};
    static const char text[] = "files: {deny_read: ['*.pem']}\n";
    struct err err;
    (void)state;
    _cleanup_policy_ struct policy *p = policy_new();
    policy_add_defaults(&odd, p);
    assert_int_equal(policy_parse(text, strlen(text), "p", LEVEL_FLAGS, &odd, p, &err), 0);
    assert_false(policy_may_read(p, "/w/[id]/a.pem", NULL));
    assert_true(policy_may_read(p, "/w/i/a.pem", NULL));
    assert_false(policy_may_read(p, "/w/[id]/.env.local", NULL));
    assert_true(policy_may_write(p, "/w/[id]/x", NULL, NULL));
}

static void contradictions_name_both_lines(void **state)
{
    static const struct {
        const char *text, *want;
    } cases[] = {
        {"files:\n  allow_write: [/a]\n  deny_write: [/a/]\n",
         "p.yaml:3: deny_write /a contradicts allow_write of the same path in p.yaml:2"},
        {"files:\n  read_only: [/a]\n  allow_write: [/a]\n", "p.yaml:3: allow_write /a contradicts read_only"},
        {"files:\n  deny_read: [/a]\n  allow_read: [/a/b/..]\n", "p.yaml:3: allow_read /a contradicts deny_read"},
        {"files:\n  tmpfs: [/a]\n  allow_write: [/a]\n", "contradicts tmpfs"},
        {"files: {read_only: ['/x:/a', '/y:/a']}\n", "read_only /a contradicts read_only"},
        {"syscalls:\n  allow: [ptrace]\n  deny: [ptrace]\n", "p.yaml:3: syscall ptrace is both allowed and denied; the "
                                                             "other line is p.yaml:2"},
        {"env:\n  pass: [A]\n  deny: [A]\n", "p.yaml:3: env.deny A contradicts env.pass of p.yaml:2"},
        {"env:\n  set: {A: b}\n  deny: [A]\n", "contradicts env.set"},
    };
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++)
        refused_at(LEVEL_USER, cases[i].text, cases[i].want);
}

/* A list of n entries "/d<i>". */
static char *long_list(unsigned n)
{
    struct buf b = {0};
    buf_adds(&b, "files:\n  deny_read:\n");
    for (unsigned i = 0; i < n; i++)
        buf_addf(&b, "    - /d%u\n", i);
    return b.p;
}

static void every_limit_of_the_document_holds(void **state)
{
    (void)state;
    _cleanup_free_ char *list = long_list(4097), *rules = long_list(4096);
    refused_at(LEVEL_USER, list, "more than 4096 entries");
    refused_at(LEVEL_USER, rules, "more than 4096 file rules in all");
    refused_at(LEVEL_USER, "files: {deny_read: [[[[[[[[[a]]]]]]]]]}\n", "nested deeper than 8 levels");

    _cleanup_free_ char *big = xmalloc((1 << 20) + 2);
    memset(big, '#', (1 << 20) + 1);
    big[(1 << 20) + 1] = '\0';
    refused_at(LEVEL_USER, big, "larger than 1 MiB");

    _cleanup_free_ char *value = xmalloc(40000);
    int n = snprintf(value, 40000, "env: {set: {A: ");
    memset(value + n, 'x', 32769);
    (void)snprintf(value + n + 32769, 4, "}}");
    refused_at(LEVEL_USER, value, "longer than 32768 bytes");

    _cleanup_free_ char *path = xmalloc(6000);
    n = snprintf(path, 6000, "files: {deny_read: [/");
    memset(path + n, 'x', 4096);
    (void)snprintf(path + n + 4096, 4, "]}");
    refused_at(LEVEL_USER, path, "at most 4095 are possible");
}

static void every_sum_over_the_document_is_bounded(void **state)
{
    static const char *const keys[] = {"deny_read", "allow_read", "allow_write", "deny_write", "read_only",
                                       "tmpfs",     "sockets",    "devices",     "protect"};
    _cleanup_buf_ struct buf values = {0}, names = {0}, env = {0};
    (void)state;
    buf_adds(&values, "files:\n");
    for (size_t k = 0; k < ARRAY_LEN(keys); k++) {
        buf_addf(&values, "  %s: [", keys[k]);
        for (unsigned i = 0; i < 4000; i++)
            buf_addf(&values, "/%zu%u,", k, i);
        buf_adds(&values, "]\n");
    }
    refused_at(LEVEL_USER, buf_str(&values), "more than 32768 values in the document");

    buf_adds(&names, "files: {protect: [");
    for (unsigned i = 0; i < 257; i++)
        buf_addf(&names, "n%u,", i);
    buf_adds(&names, "]}\n");
    refused_at(LEVEL_USER, buf_str(&names), "more than 256 protected names");

    buf_adds(&env, "env: {pass: [");
    for (unsigned i = 0; i < 4096; i++)
        buf_addf(&env, "N%u,", i);
    buf_adds(&env, "]}\n");
    refused_at(LEVEL_USER, buf_str(&env), "more than 4096 rules for the environment");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_key_of_a_full_document_is_read),
        cmocka_unit_test(every_value_knows_its_line),
        cmocka_unit_test(json_is_a_policy_too),
        cmocka_unit_test(an_empty_document_changes_nothing),
        cmocka_unit_test(wrong_documents_get_one_precise_line),
        cmocka_unit_test(yaml_that_hides_something_is_refused),
        cmocka_unit_test(paths_are_checked_for_what_they_can_mean),
        cmocka_unit_test(a_backslash_makes_a_glob_character_an_ordinary_one),
        cmocka_unit_test(a_working_directory_with_glob_characters_stays_itself),
        cmocka_unit_test(contradictions_name_both_lines),
        cmocka_unit_test(every_limit_of_the_document_holds),
        cmocka_unit_test(every_sum_over_the_document_is_bounded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
