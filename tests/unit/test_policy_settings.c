/* Settings files of sandbox-runtime: what is mapped, and that nothing is dropped. */
#include <sys/stat.h>

#include "policy-harness.h"

#include "policy/run/explain.h"

static struct policy *takes(const char *text)
{
    struct err err = {0};
    struct policy *p = policy_new();
    policy_add_defaults(&place, p);
    if (policy_parse_settings(text, strlen(text), "s.json", &place, p, &err) < 0)
        fail_msg("refused: %s", err.msg);
    return p;
}

static void refuses(const char *text, const char *want)
{
    struct err err = {0};
    _cleanup_policy_ struct policy *p = policy_new();
    policy_add_defaults(&place, p);
    if (policy_parse_settings(text, strlen(text), "s.json", &place, p, &err) == 0)
        fail_msg("accepted, but should be refused with \"%s\":\n%s", want, text);
    if (!strstr(err.msg, want))
        fail_msg("message is  \"%s\"\nand lacks   \"%s\"", err.msg, want);
    assert_int_equal(err.code, ERR_POLICY);
}

static void file_lists_become_rules_and_the_default_workspace_goes(void **state)
{
    (void)state;
    _cleanup_policy_ struct policy *p =
        takes("{\"network\": {\"allowedDomains\": [], \"deniedDomains\": [\"a.test\"]},\n"
              " \"filesystem\": {\"denyRead\": [\"/home\", \"~/**/*.pem\"],\n"
              "  \"allowRead\": [\".\"], \"allowWrite\": [\"src/**\", \"/tmp\"],\n"
              "  \"denyWrite\": [\"src/secret/**\"]}}");
    assert_true(policy_may_write(p, "/home/u/work/src/a", NULL, NULL));
    assert_false(policy_may_write(p, "/home/u/work/other", NULL, NULL));
    assert_false(policy_may_write(p, "/home/u/work/src/secret/x", NULL, NULL));
    assert_false(policy_may_read(p, "/home/other", NULL));
    assert_true(policy_may_read(p, "/home/u/work/x", NULL));
    assert_false(policy_may_read(p, "/home/u/work/x.pem", NULL));
    assert_int_equal(rule_at(p, FILE_ALLOW_WRITE, "/home/u/work/src")->flags, FILE_TRY);
    assert_int_equal(rule_at(p, FILE_ALLOW_WRITE, "/home/u/work/src")->origin.line, 3);
    assert_string_equal(rule_at(p, FILE_ALLOW_WRITE, "/home/u/work/src")->id, "filesystem.allowWrite[0]");
    assert_null(rule_at(p, FILE_TMPFS, "/tmp"));
}

static void literal_entries_are_never_globs(void **state)
{
    (void)state;
    _cleanup_policy_ struct policy *p =
        takes("{\"filesystem\": {\"denyRead\": [{\"path\": \"/w/*.env\", \"literal\": true}],"
              "\"allowWrite\": [{\"path\": \"/w/[id]\", \"literal\": true}]}}");
    assert_false(rule_at(p, FILE_DENY_READ, "/w/*.env")->is_glob);
    assert_non_null(rule_at(p, FILE_ALLOW_WRITE, "/w/[id]"));
    refuses("{\"filesystem\": {\"denyRead\": [{\"path\": \"/w\", \"literal\": false}]}}", "\"literal\": true");
    refuses("{\"filesystem\": {\"denyRead\": [{\"path\": \"/w\"}]}}", "\"literal\": true");
}

static void unix_sockets_are_blocked_unless_all_are_allowed(void **state)
{
    (void)state;
    _cleanup_policy_ struct policy *p = takes("{}"), *q = takes("{\"network\": {\"allowAllUnixSockets\": true,"
                                                                "\"allowUnixSockets\": [\"/run/a.sock\"]}}");
    assert_string_equal(p->profile, "no-unix");
    assert_string_equal(q->profile, "default");
    assert_non_null(rule_at(q, FILE_SOCKET, "/run/a.sock"));
    refuses("{\"network\": {\"allowUnixSockets\": [\"/run/a.sock\"]}}", "allowUnixSockets cannot be enforced");
}

static void credentials_can_be_denied_but_not_masked(void **state)
{
    (void)state;
    _cleanup_policy_ struct policy *p = takes("{\"credentials\": {\"files\": [{\"path\": \"~/x\", \"mode\": \"deny\"}],"
                                              "\"envVars\": [{\"name\": \"PATH\", \"mode\": \"deny\"}]}}");
    char *const environment[] = {(char *)(uintptr_t) "PATH=/bin", NULL};
    _cleanup_strv_ struct strv env = {0}, dropped = {0};
    assert_non_null(rule_at(p, FILE_DENY_READ, "/home/u/x"));
    assert_int_equal(policy_environment(p, environment, &env, &dropped), 0);
    assert_int_equal(env.n, 0);
    assert_true(strv_has(&dropped, "PATH"));
    refuses("{\"credentials\": {\"files\": [{\"path\": \"~/x\", \"mode\": \"mask\"}]}}",
            "masking needs a network proxy");
    refuses("{\"credentials\": {\"files\": [{\"path\": \"~/x\", \"mode\": \"deny\", \"extract\": \"a\"}]}}",
            "\"extract\"");
    refuses("{\"credentials\": {\"awsPairs\": [{}]}}", "awsPairs cannot be enforced");
}

static void other_keys_are_mapped(void **state)
{
    (void)state;
    _cleanup_policy_ struct policy *p = takes("{\"mandatoryDenySearchDepth\": 7, \"allowPty\": true,"
                                              "\"filesystem\": {\"allowGitConfig\": true, \"allowWrite\": [\".\"]}}");
    assert_int_equal(p->search_depth, 7);
    assert_true(policy_may_write(p, "/home/u/work/.git/config", NULL, NULL));
    assert_false(policy_may_write(p, "/home/u/work/.git/hooks/x", NULL, NULL));
}

static void what_cannot_be_enforced_is_an_error_that_names_the_key(void **state)
{
    static const struct {
        const char *text, *want;
    } cases[] = {
        {"{\"network\": {\"allowedDomains\": [\"9.9.9.9\", \"github.com\",\n\"*.com\"]}}",
         "s.json:2: network.allowedDomains[2]: \"*.com\": anyone can register a name below"},
        {"{\"network\": {\"allowedDomains\": [\"https://github.com\"]}}", "not a host name"},
        {"{\"network\": {\"httpProxyPort\": 8080}}", "httpProxyPort cannot be enforced"},
        {"{\"network\": {\"socksProxyPort\": 8080}}", "socksProxyPort cannot"},
        {"{\"network\": {\"mitmProxy\": {}}}", "mitmProxy cannot"},
        {"{\"network\": {\"parentProxy\": {}}}", "parentProxy cannot"},
        {"{\"network\": {\"tlsTerminate\": {}}}", "tlsTerminate cannot"},
        {"{\"network\": {\"allowMachLookup\": [\"x\"]}}",
         "allowMachLookup cannot be enforced: it is a permission of macOS"},
        {"{\"filesystem\": {\"disabled\": true}}", "disabled cannot be enforced"},
        {"{\"filesystem\": {\"allowWrite\": [\"src/*.c\"]}}", "is a glob"},
        {"{\"filesystem\": {\"denyRead\": [\"/**/x\"]}}", "must start with a fixed directory"},
        {"{\"enableWeakerNestedSandbox\": true}", "enableWeakerNestedSandbox cannot be enforced"},
        {"{\"allowNestedUserNamespaces\": true}", "allowNestedUserNamespaces cannot"},
        {"{\"enableWeakerNetworkIsolation\": true}", "enableWeakerNetworkIsolation cannot"},
        {"{\"allowAppleEvents\": true}", "allowAppleEvents cannot"},
        {"{\"ignoreViolations\": {\"*\": [\"/a\"]}}", "ignoreViolations cannot"},
        {"{\"ripgrep\": {\"command\": \"rg\"}}", "ripgrep cannot"},
        {"{\"seccomp\": {}}", "seccomp cannot"},
        {"{\"bwrapPath\": \"/x\"}", "bwrapPath cannot"},
        {"{\"windows\": {}}", "windows cannot"},
        {"{\"git\": {}}", "git cannot"},
        {"{\"netwrok\": {}}", "unknown key \"netwrok\"; did you mean \"network\"?"},
        {"{\"network\": {\"allowedDomain\": []}}", "unknown key \"allowedDomain\" in network; did you mean"},
        {"{\"allowPty\": true,\n\"allowPty\": true}", "s.json:2: key \"allowPty\" is given twice"},
        {"{\"mandatoryDenySearchDepth\": 11}", "mandatoryDenySearchDepth must be a number from 1 to 10"},
        {"{\"allowPty\": \"true\"}", "allowPty must be true or false"},
        {"{\"filesystem\": {\"denyRead\": \"/a\"}}", "denyRead must be a list"},
        {"{\"filesystem\": {\"denyRead\": [1]}}", "expected a string"},
        {"{\"filesystem\": {\"denyRead\": [~/.ssh]}}", "not valid JSON"},
        {"network: {}\n", "not valid JSON"},
        {"{'network': {}}", "not valid JSON"},
        {"{network: {}}", "not valid JSON"},
        {"[]", "must be a mapping"},
        {"{\"filesystem\": {\"denyRead\": [\"/a\\u0000b\"]}}", "NUL"},
    };
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++)
        refuses(cases[i].text, cases[i].want);
}

static void domains_become_network_rules(void **state)
{
    _cleanup_buf_ struct buf out = {0};
    (void)state;
    _cleanup_policy_ struct policy *p =
        takes("{\"network\": {\"allowedDomains\": [\"github.com\", \"*.npmjs.org\", \"bad.test\"],\n"
              " \"deniedDomains\": [\"bad.test\"], \"deniedResolvedAddresses\": [\"9.9.9.0/24\"]}}");
    assert_int_equal(p->network, NETWORK_RULES);
    assert_non_null(p->netpol);
    assert_true(policy_explain_host(p, "github.com", &out));
    assert_true(policy_explain_host(p, "github.com:22", &out));
    assert_true(policy_explain_host(p, "https://registry.npmjs.org/x", &out));
    assert_false(policy_explain_host(p, "npmjs.org", &out));
    assert_false(policy_explain_host(p, "bad.test", &out));
    assert_non_null(strstr(p->network_text, "\"cidrs\":[\"9.9.9.0/24\"]"));
    assert_int_equal(p->network_origin.line, 1);
}

static void domains_are_moot_when_the_network_is_switched_off(void **state)
{
    static const struct policy_flag off = {"network", "off", "--network off", 0};
    struct scratch s;
    struct err err = {0};
    (void)state;
    scratch_make(&s);
    _cleanup_policy_ struct policy *p = NULL;
    _cleanup_free_ char *file = xasprintf("%s/s.json", s.dir);
    write_file(file, "{\"network\": {\"allowedDomains\": [\"github.com\"], \"httpProxyPort\": 80}}");
    int without = policy_load(&s.where, NULL, file, NULL, 0, &p, &err);
    int with = policy_load(&s.where, NULL, file, &off, 1, &p, &err);
    scratch_done(&s);
    assert_int_equal(without, -1);
    assert_int_equal(with, 0);
    assert_int_equal(p->network, NETWORK_OFF);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(file_lists_become_rules_and_the_default_workspace_goes),
        cmocka_unit_test(literal_entries_are_never_globs),
        cmocka_unit_test(unix_sockets_are_blocked_unless_all_are_allowed),
        cmocka_unit_test(credentials_can_be_denied_but_not_masked),
        cmocka_unit_test(other_keys_are_mapped),
        cmocka_unit_test(what_cannot_be_enforced_is_an_error_that_names_the_key),
        cmocka_unit_test(domains_become_network_rules),
        cmocka_unit_test(domains_are_moot_when_the_network_is_switched_off),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
