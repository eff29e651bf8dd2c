#include "config/config.h"

#include <unistd.h>

#include "tests/lib/unit.h"

static int load(struct config *c, const char *text, struct err *err)
{
    config_start(c);
    int rc = config_text(c, text, strlen(text), "c.yaml", err);
    return rc < 0 ? rc : config_finish(c, err);
}

static void test_defaults(void **state)
{
    (void)state;
    struct config c;
    struct err err = {0};
    assert_int_equal(load(&c, "state: /s\nrun: /r\n", &err), 0);
    assert_string_equal(c.listen, "127.0.0.1:7070");
    assert_string_equal(c.domain, "hutch.localhost:7070");
    assert_string_equal(c.templates, "/s/templates");
    assert_null(c.listen_tls);
    assert_int_equal(c.default_cpu_milli, 2000);
    assert_true(c.default_memory == 2ULL << 30);
    assert_true(c.default_disk == 1ULL << 30);
    assert_int_equal(c.default_pids, 512);
    assert_int_equal(c.default_timeout_s, 300);
    assert_int_equal(c.max_timeout_s, CONFIG_UNTIL_KILLED_S);
    assert_int_equal(c.max_sandboxes, 1000);
    assert_string_equal(c.build_base, "auto");
    assert_false(c.strict);
    assert_false(c.best_effort);
    config_done(&c);
}

static void test_values(void **state)
{
    (void)state;
    struct config c;
    struct err err = {0};
    assert_int_equal(
        load(&c,
             "state: /s\nrun: /r//x/\nlisten: '[::1]:80'\ntls:\n  dev: true\nsandboxes:\n  cpu: 0.5\n  memory: 512MiB\n"
             "  timeout: 15m\n  privilege: strict\n  enforcement: best-effort\ntemplates: {base: off}\nlog: {level: "
             "debug}\n",
             &err),
        0);
    assert_string_equal(c.run, "/r/x");
    assert_string_equal(c.listen_tls, "[::1]:7443");
    assert_string_equal(c.domain, "hutch.localhost:7443");
    assert_int_equal(c.default_cpu_milli, 500);
    assert_int_equal(c.default_memory, 512 << 20);
    assert_int_equal(c.default_timeout_s, 900);
    assert_true(c.strict && c.best_effort);
    assert_string_equal(c.build_base, "off");
    assert_string_equal(c.log_level, "debug");
    config_done(&c);
}

static void test_the_way_out(void **state)
{
    (void)state;
    struct config c;
    struct err err = {0};
    assert_int_equal(load(&c, "state: /s\nrun: /r\n", &err), 0);
    assert_true(c.egress);
    assert_false(c.audit_drop);
    assert_string_equal(c.egress_user, "hutch-egress");
    assert_null(c.network);
    config_done(&c);
    assert_int_equal(
        load(&c,
             "state: /s\nrun: /r\nsandboxes: {network: /etc/hutch//net.yaml}\negress:\n  infra: 10.0.0.0/8,  "
             "fd00::/8\n  resolvers: '[::1]:53'\n  audit_on_full: drop\n  audit_sync: each\n",
             &err),
        0);
    assert_string_equal(c.network, "/etc/hutch/net.yaml");
    assert_string_equal(c.infra, "10.0.0.0/8,fd00::/8");
    assert_string_equal(c.resolvers, "[::1]:53");
    assert_true(c.audit_drop);
    assert_string_equal(c.audit_sync, "each");
    config_done(&c);
}

static void test_older_words(void **state)
{
    (void)state;
    static const char *const texts[] = {"files: reflink\n", "sandboxes: {driver: reflink}\n", "files: layers\n"};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        struct config c;
        struct err err = {0};
        assert_int_equal(load(&c, texts[i], &err), 0);
        assert_string_equal(c.files, "layers");
        config_done(&c);
    }
}

static void test_errors(void **state)
{
    (void)state;
    static const struct {
        const char *text, *expect;
    } cases[] = {
        {"stat: /x\n", "c.yaml:1: unknown key \"stat\"; did you mean \"state\"?"},
        {"\nsandboxes:\n  memroy: 1\n", "c.yaml:3: unknown key \"memroy\" in sandboxes; did you mean \"memory\"?"},
        {"sandboxes.memory: 1GiB\n", "unknown key"},
        {"zzz: 1\n", "see docs/config.md"},
        {"state: x/y\n", "c.yaml:1: state must be an absolute path, not \"x/y\""},
        {"listen: 127.0.0.1\n", "listen must be ADDR:PORT"},
        {"listen: 127.0.0.1:0\n", "listen must be ADDR:PORT"},
        {"listen: ::1:80\n", "listen must be ADDR:PORT"},
        {"domain: Hutch.Example\n", "domain must be NAME"},
        {"domain: a..b\n", "domain must be NAME"},
        {"user: 'root;x'\n", "user must be the name of a user"},
        {"files: image\n", "files: \"image\" is gone: a sandbox has no image of its own any more. Write \"pool\""},
        {"sandboxes: {driver: image}\n", "files: \"image\" is gone"},
        {"files: floppy\n", "files must be auto, pool, tmpfs, btrfs or layers, not \"floppy\""},
        {"sandboxes: {memory: lots}\n", "sandboxes.memory must be a size such as"},
        {"sandboxes: {memory: 1KiB}\n", "sandboxes.memory must be between 16MiB and 16TiB, not \"1KiB\""},
        {"sandboxes: {max: 99999999999999999999}\n", "whole number"},
        {"sandboxes: {max: -1}\n", "whole number"},
        {"sandboxes: {network: policy.yaml}\n", "sandboxes.network must be public, off or the absolute path"},
        {"egress: {resolvers: ns.example}\n", "egress.resolvers must be ADDR:PORT such as"},
        {"egress: {infra: 10.0.0.0/33}\n", "egress.infra must be ADDR/BITS such as"},
        {"approvals: {webhook: hooks.example}\n", "approvals.webhook must be http://HOST"},
        {"approvals: {timeout: 10m}\n", "approvals.timeout must be between 1s and 60s"},
        {"egress: {audit_sync: always}\n", "egress.audit_sync must be off, interval or each"},
        {"egress: {audit_on_full: stop}\n", "egress.audit_on_full must be block or drop"},
        {"sandboxes: {cpu: 0}\n", "sandboxes.cpu must be between 0.010 and 1000"},
        {"sandboxes: {pids: [1]}\n", "sandboxes.pids must be a plain value"},
        {"sandboxes: 3\n", "sandboxes must be a mapping"},
        {"sandboxes: {privilege: root}\n", "must be computer or strict, not \"root\""},
        {"tls: {dev: yes}\n", "tls.dev must be true or false"},
        {"tls: {cert: /a}\n", "tls.key is missing"},
        {"tls: {cert: /a, key: /b, dev: true}\n", "exclude each other"},
        {"listen_tls: 1.2.3.4:5\n", "listen_tls needs a certificate"},
        {"sandboxes: {timeout: 2h, max_timeout: 1h}\n", "longer than"},
        {"- a\n", "must be a mapping"},
        {"a: &x 1\n", "c.yaml:1"},
        {"listen: \"\\x1b[31m\"\n", "\\x1b"},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct config c;
        struct err err = {0};
        char text[400];
        (void)snprintf(text, sizeof text, "%s", cases[i].text);
        setenv("XDG_RUNTIME_DIR", "/r", 1);
        setenv("HOME", "/h", 1);
        if (load(&c, text, &err) == 0)
            fail_msg("accepted: %s", text);
        if (!strstr(err.msg, cases[i].expect) || strchr(err.msg, '\x1b'))
            fail_msg("expected \"%s\" in: %s", cases[i].expect, err.msg);
        config_done(&c);
    }
}

/* A session without XDG_RUNTIME_DIR keeps its sockets in the state directory. */
static void test_run_without_runtime_dir(void **state)
{
    (void)state;
    struct config c;
    struct err err = {0};
    uid_t own = geteuid();
    if (own == 0)
        assert_int_equal(seteuid(65534), 0);
    setenv("HOME", "/h", 1);
    unsetenv("XDG_STATE_HOME");
    unsetenv("XDG_RUNTIME_DIR");
    int rc = load(&c, "listen: 127.0.0.1:7070\n", &err);
    assert_int_equal(seteuid(own), 0);
    assert_int_equal(rc, 0);
    assert_string_equal(c.run, "/h/.local/state/hutch/run");
    config_done(&c);
}

/* What is shown reads back as the same, with and without comments. */
static void test_show_reads_back(void **state)
{
    (void)state;
    static const char text[] =
        "state: '/s with: # odd'\nrun: /r\ndomain: x.example\nlisten: 0.0.0.0:81\nsandboxes: {memory: 1537MiB, cpu: "
        "1.25, timeout: 3601s}\nhttp: {max_upload: 12345}\n";
    struct config a, b;
    struct err err = {0};
    for (int comments = 0; comments < 2; comments++) {
        _cleanup_buf_ struct buf first = {0}, second = {0};
        assert_int_equal(load(&a, text, &err), 0);
        config_show(&a, comments, &first);
        if (load(&b, buf_str(&first), &err) < 0)
            fail_msg("%s in\n%s", err.msg, buf_str(&first));
        config_show(&b, comments, &second);
        assert_string_equal(buf_str(&first), buf_str(&second));
        assert_string_equal(b.state, "/s with: # odd");
        assert_int_equal(b.default_cpu_milli, 1250);
        assert_true(b.default_memory == 1537ULL << 20);
        assert_int_equal(b.default_timeout_s, 3601);
        assert_int_equal(b.max_upload, 12345);
        config_done(&a);
        config_done(&b);
    }
}

static void test_flags_win(void **state)
{
    (void)state;
    struct config c;
    struct err err = {0};
    config_start(&c);
    assert_int_equal(config_set(&c, "listen", "127.0.0.1:9", "--listen", &err), 0);
    assert_int_equal(config_set(&c, "state", "/s", "--state", &err), 0);
    assert_int_equal(config_set(&c, "run", "/r", "--run", &err), 0);
    assert_int_equal(config_set(&c, "listen", "x", "--listen", &err), -1);
    assert_non_null(strstr(err.msg, "--listen: listen must be"));
    assert_int_equal(config_finish(&c, &err), 0);
    assert_string_equal(c.domain, "hutch.localhost:9");
    config_done(&c);
}

static void test_addresses(void **state)
{
    (void)state;
    char host[64];
    uint16_t port;
    assert_true(config_address(":80", host, &port));
    assert_string_equal(host, "0.0.0.0");
    assert_true(config_address("81", host, &port));
    assert_string_equal(host, "127.0.0.1");
    assert_int_equal(port, 81);
    assert_true(config_address("[fe80::1]:82", host, &port));
    assert_string_equal(host, "fe80::1");
    assert_true(config_address("localhost:83", host, &port));
    assert_false(config_address("a b:80", host, &port));
    assert_false(config_address("1.2.3.4:65536", host, &port));
    assert_false(config_address("", host, &port));
}

/* The page lists every key with what the program says about it. */
static void test_docs(void **state)
{
    (void)state;
    _cleanup_buf_ struct buf table = {0};
    _cleanup_free_ char *page = NULL;
    size_t n = 0;
    const char *top = getenv("HUTCH_TOP");
    char path[1024];
    (void)snprintf(path, sizeof path, "%s/docs/config.md", top ? top : HUTCH_SOURCE);
    FILE *f = fopen(path, "r");
    if (!f)
        fail_msg("cannot open %s", path);
    (void)getdelim(&page, &n, '\0', f);
    (void)fclose(f);
    config_docs(&table);
    if (!strstr(page, buf_str(&table)))
        fail_msg("docs/config.md: its table is not that of `hutch config docs`");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_defaults),
        cmocka_unit_test(test_values),
        cmocka_unit_test(test_the_way_out),
        cmocka_unit_test(test_older_words),
        cmocka_unit_test(test_errors),
        cmocka_unit_test(test_show_reads_back),
        cmocka_unit_test(test_run_without_runtime_dir),
        cmocka_unit_test(test_flags_win),
        cmocka_unit_test(test_addresses),
        cmocka_unit_test(test_docs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
