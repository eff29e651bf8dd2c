/* test_webhook.c - what the webhook for approvals may answer, how its requests are signed, and what URL it may have. The calls
 * themselves are tried with a real server, in tests/integration/test_network_webhook.py. */
#include "network/webhook.h"

#include "tests/lib/unit.h"

static void answers_that_are_decisions_are_read(void **state)
{
    static const struct {
        const char *text;
        enum approval_decision decision;
        unsigned minutes;
    } cases[] = {
        {"{\"decision\":\"allow\"}", APPROVAL_ONCE, 0},
        {"{\"decision\":\"allow\",\"scope\":\"once\"}", APPROVAL_ONCE, 0},
        {"{\"decision\":\"allow\",\"scope\":\"sandbox\",\"more\":1}", APPROVAL_SANDBOX, 0},
        {"{\"decision\":\"allow\",\"scope\":\"time\",\"ttl\":1}", APPROVAL_MINUTES, 1},
        {"{\"decision\":\"allow\",\"scope\":\"time\",\"ttl\":61}", APPROVAL_MINUTES, 2},
        {"{\"decision\":\"allow\",\"scope\":\"time\",\"ttl\":604800}", APPROVAL_MINUTES, 7 * 24 * 60},
        {"{\"decision\":\"deny\"}", APPROVAL_DENY, 0},
    };
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct webhook_decision d;
        struct err err = {0};
        if (webhook_answer(cases[i].text, strlen(cases[i].text), &d, &err) != 1)
            fail_msg("%s: %s", cases[i].text, err.msg);
        assert_int_equal(d.decision, cases[i].decision);
        assert_int_equal(d.minutes, cases[i].minutes);
    }
}

static void an_answer_without_a_decision_is_none(void **state)
{
    static const char *const texts[] = {
        "", "ok", "<html>", "{}", "[]", "{\"decision\":null}", "{\"result\":\"queued\"}", "{\"decision\":\"allow\"",
    };
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(texts); i++) {
        struct webhook_decision d;
        struct err err = {0};
        assert_int_equal(webhook_answer(texts[i], strlen(texts[i]), &d, &err), 0);
    }
}

static void a_decision_that_cannot_be_meant_is_refused(void **state)
{
    static const struct {
        const char *text, *want;
    } cases[] = {
        {"{\"decision\":\"yes\"}", "must be allow or deny"},
        {"{\"decision\":true}", "must be allow or deny"},
        {"{\"decision\":\"allow\",\"scope\":\"all\"}", "must be once, time or sandbox"},
        {"{\"decision\":\"allow\",\"scope\":3}", "must be once, time or sandbox"},
        {"{\"decision\":\"allow\",\"scope\":\"time\"}", "needs \"ttl\""},
        {"{\"decision\":\"allow\",\"scope\":\"time\",\"ttl\":0}", "from 1 to 604800"},
        {"{\"decision\":\"allow\",\"scope\":\"time\",\"ttl\":604801}", "from 1 to 604800"},
        {"{\"decision\":\"allow\",\"scope\":\"time\",\"ttl\":\"60\"}", "needs \"ttl\""},
        {"{\"decision\":\"allow\",\"ttl\":60}", "belongs to scope \"time\""},
    };
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct webhook_decision d;
        struct err err = {0};
        assert_int_equal(webhook_answer(cases[i].text, strlen(cases[i].text), &d, &err), -1);
        if (!strstr(err.msg, cases[i].want))
            fail_msg("%s: %s", cases[i].text, err.msg);
    }
}

/* Made with: printf '1700000000.{"a":1}' | openssl dgst -sha256 -hmac 0123456789abcdef */
static void the_signature_is_that_of_others(void **state)
{
    char text[WEBHOOK_SIGNATURE];
    (void)state;
    webhook_sign("0123456789abcdef", 1700000000, "{\"a\":1}", 7, text);
    assert_string_equal(text, "t=1700000000,v1=9eb18f493f8ec135d9eb2dad817c369bb4e9cbfa818657897a7437c1cd8c3a23");
}

static void urls_are_http_or_https_and_nothing_else(void **state)
{
    static const char *const wrong[] = {
        "",
        "ftp://a/",
        "//a/",
        "http://",
        "http:///x",
        "http://a b/",
        "http://u@a/",
        "http://a/#x",
        "http://a:",
        "http://a:0/",
        "http://a:99999/",
        "http://[::1/",
        "http://0x7f.1/",
        "HTTP://a/",
    };
    struct config_url u;
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(wrong); i++)
        if (config_url(wrong[i], &u))
            fail_msg("taken: %s", wrong[i]);
    assert_true(config_url("https://Hooks.Example/a?b=c", &u));
    assert_true(u.tls && u.port == 443 && !u.is_literal);
    assert_string_equal(u.host, "hooks.example");
    assert_string_equal(u.target, "/a?b=c");
    assert_true(config_url("http://[::1]:8080", &u));
    assert_true(!u.tls && u.port == 8080 && u.is_literal);
    assert_string_equal(u.host, "::1");
    assert_string_equal(u.authority, "[::1]:8080");
    assert_string_equal(u.target, "/");
    assert_true(config_url("http://127.0.0.1?x", &u));
    assert_string_equal(u.host, "127.0.0.1");
    assert_string_equal(u.target, "/?x");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(answers_that_are_decisions_are_read),
        cmocka_unit_test(an_answer_without_a_decision_is_none),
        cmocka_unit_test(a_decision_that_cannot_be_meant_is_refused),
        cmocka_unit_test(the_signature_is_that_of_others),
        cmocka_unit_test(urls_are_http_or_https_and_nothing_else),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
