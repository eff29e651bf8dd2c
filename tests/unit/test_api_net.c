/* The network, secrets and approvals as the HTTP side speaks of them, in both dialects. */
#include <string.h>

#include "api-world.h"
#include "base/clock.h"
#include "egress/secrets/secrets.h"
#include "tests/lib/unit.h"

static void expect(struct asked *a, unsigned status, const char *body)
{
    asked_end(a);
    if (!a->ended || a->status != status || (body && strcmp(buf_str(&a->body), body) != 0))
        fail_msg("%s: status %u, body %s; wanted %u %s", a->path, a->status, buf_str(&a->body), status,
                 body ? body : "");
    asked_free(a);
}

/* The message contains this. */
static void expect_text(struct asked *a, unsigned status, const char *text)
{
    asked_end(a);
    json_t *root = asked_json(a);
    const char *message = json_string_value(json_object_get(root, "message"));
    if (a->status != status || !message || !strstr(message, text))
        fail_msg("%s: status %u, body %s; wanted %u with '%s'", a->path, a->status, buf_str(&a->body), status, text);
    json_decref(root);
    asked_free(a);
}

/* What the detail of a sandbox says about its network, in E2B's words. */
static json_t *e2b_network(const char *id)
{
    char path[64];
    (void)snprintf(path, sizeof path, "/sandboxes/%s", id);
    struct asked *a = ask_api(KEY_A, "GET", path, NULL);
    json_t *all = asked_json(a), *net = json_incref(json_object_get(all, "network"));
    json_decref(all);
    asked_free(a);
    return net;
}

static void test_e2b_fields_become_a_document_and_are_shown_again(void **state)
{
    (void)state;
    world_egress_make_key();
    expect(ask_api(KEY_A, "POST", "/secrets", "{\"name\":\"key\",\"value\":\"v\"}"), 201, NULL);
    expect(ask_api(KEY_A, "POST", "/v2/sandboxes",
                   "{\"templateID\":\"base\",\"network\":{\"allowOut\":[\"a.test\",\"*.b.test\"],"
                   "\"denyOut\":[\"0.0.0.0/0\"],\"rules\":{\"x.b.test\":[{\"transform\":{\"headers\":"
                   "{\"Authorization\":\"Bearer ${e2b.secrets.Key}\"}}}]}}}"),
           201, NULL);
    const struct net_doc *doc = &world_find("i0new")->net->doc;
    assert_int_equal(doc->nheaders, 1);
    assert_string_equal(doc->headers[0].host, "x.b.test");
    assert_string_equal(doc->headers[0].secrets.v[0], "key");
    assert_non_null(strstr(doc->effective, doc->headers[0].name));
    json_t *net = e2b_network("i0new");
    assert_string_equal(json_string_value(json_array_get(json_object_get(net, "allowOut"), 1)), "*.b.test");
    assert_non_null(json_object_get(json_object_get(net, "rules"), "x.b.test"));
    json_decref(net);
}

static void test_an_e2b_put_replaces_everything(void **state)
{
    (void)state;
    struct sandbox *b = world_sandbox("i0box", 0, 1000);
    expect(ask_api(KEY_A, "PUT", "/sandboxes/i0box/network",
                   "{\"allowOut\":[\"a.test\"],\"denyOut\":[\"0.0.0.0/0\"],\"rules\":{\"a.test\":[{\"transform\":"
                   "{\"headers\":{\"X\":\"1\"}}}]}}"),
           204, "");
    assert_int_equal(b->net->doc.nheaders, 1);
    expect(ask_api(KEY_A, "PUT", "/sandboxes/i0box/network", "{\"denyOut\":[\"0.0.0.0/0\"]}"), 204, "");
    json_t *net = e2b_network("i0box");
    assert_null(json_object_get(net, "allowOut"));
    assert_null(json_object_get(net, "rules"));
    json_decref(net);
    assert_int_equal(b->net->doc.nheaders, 0);
    expect_text(ask_api(KEY_A, "PUT", "/sandboxes/i0box/network", "{\"allowIn\":[]}"), 400,
                "'allowIn' is not supported");
    expect_text(ask_api(KEY_B, "PUT", "/sandboxes/i0box/network", "{}"), 404, "doesn't exist");
    expect_text(ask_api(KEY_READ, "PUT", "/sandboxes/i0box/network", "{}"), 403, "only read");
}

static void test_wrong_e2b_fields_are_named(void **state)
{
    static const struct {
        const char *network, *text;
    } cases[] = {
        {"{\"allowOut\":[\"http://x\"]}", "'network.allowOut[0]' must be"},
        {"{\"allowOut\":\"x\"}", "'network.allowOut' must be an array"},
        {"{\"denyOut\":[\"a.test\"]}", "hosts stand in allowOut"},
        {"{\"allowOut\":[\"a.test\"]}", "'network.denyOut' must have 0.0.0.0/0"},
        {"{\"rules\":{\"a.test:80\":[]}}", "without a port"},
        {"{\"rules\":{\"a.test\":[{\"transform\":{\"query\":{}}}]}}", "must be a list of one rule"},
        {"{\"rules\":{\"a.test\":[{\"transform\":{\"headers\":{\"X\":\"${e2b.identity.tokens.a}\"}}}]}}",
         "only ${e2b.secrets.NAME}"},
        {"{\"rules\":{\"a.test\":[{\"transform\":{\"headers\":{\"X\":\"a\\nb\"}}}]}}", "control character"},
        {"{\"egressProxy\":{\"address\":\"p.test:1080\",\"password\":\"x\"}}",
         "'network.egressProxy'.password needs a username"},
        {"{\"egressProxy\":{\"address\":\"p.test:1080\",\"username\":\"u\",\"password\":7}}",
         "must be a text of 1 to 255"},
        {"{\"egressProxy\":{\"address\":\"p.test:1080\",\"username\":\"u\",\"password_sealed\":\"AAAA\"}}",
         "'network.egressProxy.password_sealed' is not supported"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char body[400];
        (void)snprintf(body, sizeof body, "{\"templateID\":\"base\",\"network\":%s}", cases[i].network);
        expect_text(ask_api(KEY_A, "POST", "/v2/sandboxes", body), 400, cases[i].text);
    }
}

static void test_a_password_without_a_key_is_not_taken(void **state)
{
    (void)state;
    static const char body[] = "{\"templateID\":\"base\",\"network\":{\"egressProxy\":{\"address\":\"p.test:1080\","
                               "\"username\":\"u\",\"password\":\"x\"}}}";
    expect_text(ask_api(KEY_A, "POST", "/v2/sandboxes", body), 503, "would be sealed for is not there");
}

static void test_a_node_without_egress_says_so(void **state)
{
    (void)state;
    expect_text(
        ask_api(KEY_A, "POST", "/v2/sandboxes", "{\"templateID\":\"base\",\"network\":{\"denyOut\":[\"10.0.0.0/8\"]}}"),
        400, "this node has no network");
    expect(ask_api(KEY_A, "POST", "/v2/sandboxes", "{\"templateID\":\"base\",\"allow_internet_access\":false}"), 201,
           NULL);
    struct asked *a = ask_api(KEY_A, "GET", "/v1/capabilities", NULL);
    assert_non_null(strstr(buf_str(&a->body), "\"internet\":false"));
    asked_free(a);
}

static void test_a_native_sandbox_is_closed_unless_asked(void **state)
{
    (void)state;
    expect(ask_api(KEY_A, "POST", "/v1/sandboxes", "{\"template\":\"base\"}"), 201, NULL);
    const struct sandbox *b = world_find("i0new");
    assert_false(b->desc.allow_public_traffic);
    assert_string_equal(b->net->doc.document, "\"off\"");
    expect_text(ask_api(KEY_A, "POST", "/v1/sandboxes", "{\"templateID\":\"base\"}"), 400, "'templateID'");
}

static bool says_open(const char *id)
{
    char path[64];
    (void)snprintf(path, sizeof path, "/sandboxes/%s", id);
    struct asked *a = ask_api(KEY_A, "GET", path, NULL);
    json_t *all = asked_json(a);
    bool open = json_is_true(json_object_get(all, "allowInternetAccess"));
    json_decref(all);
    asked_free(a);
    return open;
}

static void test_whether_the_internet_is_open_is_what_the_document_in_force_says(void **state)
{
    const char *path = "/v1/sandboxes/i0box/network";
    (void)state;
    (void)world_sandbox("i0box", 0, 1000);
    assert_false(says_open("i0box"));
    expect(ask_api(KEY_A, "PUT", path, "{\"policy\":\"public\"}"), 200, NULL);
    assert_true(says_open("i0box"));
    expect(ask_api(KEY_A, "PUT", path, "{\"policy\":{\"allow\":[\"a.test\"]}}"), 200, NULL);
    assert_false(says_open("i0box"));
    expect(ask_api(KEY_A, "PUT", "/sandboxes/i0box/network", "{}"), 204, NULL);
    assert_true(says_open("i0box"));
    expect(ask_api(KEY_A, "PUT", "/sandboxes/i0box/network", "{\"denyOut\":[\"0.0.0.0/0\"]}"), 204, NULL);
    assert_false(says_open("i0box"));
    expect(ask_api(KEY_A, "POST", "/v1/sandboxes",
                   "{\"template\":\"base\",\"network\":{\"rules\":[{\"hosts\":[\"a.test\"]}]}}"),
           201, NULL);
    assert_false(says_open("i0new"));
}

static void test_documents_are_put_and_changed_with_epochs(void **state)
{
    (void)state;
    const struct sandbox *b = world_sandbox("i0box", 0, 1000);
    const char *path = "/v1/sandboxes/i0box/network";
    struct asked *a = ask_api(KEY_A, "PUT", path,
                              "{\"policy\":{\"version\":1,\"default\":\"deny\",\"rules\":[{\"id\":\"r\",\"hosts\":"
                              "[\"a.test\"]}]},\"expected_epoch\":1}");
    json_t *j = asked_json(a);
    assert_int_equal(json_integer_value(json_object_get(j, "epoch")), 2);
    json_decref(j);
    expect(a, 200, NULL);
    expect_text(ask_api(KEY_A, "PUT", path, "{\"policy\":\"off\",\"expected_epoch\":1}"), 409, "epoch");
    expect_text(ask_api(KEY_A, "PUT", path, "{\"rulez\":[]}"), 400, "rulez");
    expect_text(ask_api(KEY_A, "PUT", path, "{\"policy\":{\"rules\":[{\"id\":\"r\",\"hosts\":[\"1.2.3.4.5\"]}]}}"), 400,
                "rules[0].hosts[0]");
    expect_text(ask_api(KEY_A, "PATCH", path, "{\"remove\":[\"nothing\"]}"), 400, "no rule with the id");
    expect(ask_api(KEY_A, "PATCH", path, "{\"add\":[{\"id\":\"s\",\"hosts\":[\"b.test\"]}],\"remove\":[\"r\"]}"), 200,
           NULL);
    assert_non_null(strstr(b->net->doc.effective, "b.test"));
    assert_null(strstr(b->net->doc.effective, "a.test"));
    world.net_error = "because";
    expect_text(ask_api(KEY_A, "PUT", path, "{\"policy\":\"off\"}"), 503, "egress has not confirmed it yet");
}

static void test_only_ones_own_part_of_the_counters_is_shown(void **state)
{
    (void)state;
    (void)world_sandbox("i0box", 0, 1000);
    expect_text(ask_api(KEY_A, "GET", "/v1/sandboxes/i0box/network/denials", NULL), 503, "does not answer");
    world.net_answer = json_pack("{s:s, s:i, s:[{s:s, s:i}, {s:s, s:i}]}", "type", "stats", "request", 1, "sandboxes",
                                 "sandbox", "i0other", "requests", 7, "sandbox", "i0box", "requests", 3);
    expect(ask_api(KEY_A, "GET", "/v1/sandboxes/i0box/network/stats", NULL), 200,
           "{\"sandbox\":\"i0box\",\"requests\":3}");
    expect_text(ask_api(KEY_B, "GET", "/v1/sandboxes/i0box/network/stats", NULL), 404, "doesn't exist");
    expect_text(ask_api(KEY_A, "GET", "/v1/sandboxes/i0box/network/denials?since=x", NULL), 400, "'since' must be");
    asked_free(ask_api(KEY_A, "POST", "/v1/sandboxes/i0box/network/check", "{\"url\":\"https://a.test/\"}"));
    assert_string_equal(json_string_value(json_object_get(world.net_asked, "method")), "GET");
}

static void test_a_wrong_question_is_the_askers_fault(void **state)
{
    (void)state;
    (void)world_sandbox("i0box", 0, 1000);
    world.net_answer = json_pack("{s:s, s:i, s:s}", "type", "check", "request", 1, "wrong", "url must be http://HOST");
    expect_text(ask_api(KEY_A, "POST", "/v1/sandboxes/i0box/network/check", "{\"url\":\"\"}"), 400, "url must be");
}

static void test_a_number_that_cannot_be_told_to_egress_is_refused(void **state)
{
    (void)state;
    (void)world_sandbox("i0box", 0, 1000);
    expect_text(ask_api(KEY_A, "GET", "/v1/sandboxes/i0box/network/denials?since=9223372036854775808", NULL), 400,
                "'since' must be");
    expect_text(ask_api(KEY_A, "GET", "/v1/sandboxes/i0box/network/denials?since=-1", NULL), 400, "'since' must be");
    assert_null(world.net_asked);
    world.net_answer = json_pack("{s:s, s:i, s:[]}", "type", "denials", "request", 1, "denials");
    expect(ask_api(KEY_A, "GET", "/v1/sandboxes/i0box/network/denials?since=9223372036854775807", NULL), 200, NULL);
    json_decref(world.net_answer);
    world.net_answer = NULL;
}

static void test_a_tenant_sees_what_it_used_itself(void **state)
{
    (void)state;
    world.net_answer = json_pack("{s:s, s:i, s:s, s:i}", "type", "tenant", "request", 3, "tenant", "a", "requests", 12);
    expect(ask_api(KEY_A, "GET", "/v1/network/usage", NULL), 200, "{\"tenant\":\"a\",\"requests\":12}");
    assert_string_equal(json_string_value(json_object_get(world.net_asked, "tenant")), "a");
    expect(ask_api(KEY_B, "GET", "/v1/network/usage", NULL), 200, NULL);
    assert_string_equal(json_string_value(json_object_get(world.net_asked, "tenant")), "b");
    json_decref(world.net_answer);
    world.net_answer = NULL;
    expect_text(ask_api(KEY_A, "GET", "/v1/network/usage", NULL), 503, "egress does not answer");
}

static void test_approvals_are_listed_and_decided(void **state)
{
    (void)state;
    const struct sandbox *b = world_sandbox("i0box", 0, 1000);
    expect(ask_api(KEY_A, "PUT", "/v1/sandboxes/i0box/network", "{\"policy\":{\"allow\":[\"b.test\"]}}"), 200, NULL);
    world_egress_event("ask", json_pack("{s:s, s:s, s:s, s:s, s:i}", "type", "ask", "sandbox", "i0box", "id", "ask1",
                                        "host", "a.test", "port", 443));
    struct asked *a = ask_api(KEY_A, "GET", "/v1/approvals", NULL);
    assert_non_null(strstr(buf_str(&a->body), "\"host\":\"a.test\""));
    asked_free(a);
    expect(ask_api(KEY_B, "GET", "/v1/approvals", NULL), 200, "{\"approvals\":[]}");
    expect_text(ask_api(KEY_A, "POST", "/v1/approvals/ask1", "{\"decision\":\"yes\"}"), 400, "allow_once");
    expect_text(ask_api(KEY_A, "POST", "/v1/approvals/ask1", "{\"decision\":\"deny\",\"minutes\":5}"), 400,
                "'minutes'");
    expect_text(ask_api(KEY_B, "POST", "/v1/approvals/ask1", "{\"decision\":\"deny\"}"), 404, "no such question");
    uint64_t since = clock_unix_ms() / 1000;
    expect(ask_api(KEY_A, "POST", "/v1/approvals/ask1", "{\"decision\":\"allow_minutes\",\"minutes\":5}"), 200,
           "{\"id\":\"ask1\",\"decision\":\"allow_minutes\"}");
    json_t *policy = json_loads(b->net->doc.effective, 0, NULL), *rule = NULL, *one;
    size_t i;
    json_array_foreach(json_object_get(policy, "rules"), i,
                       one) if (strcmp(json_string_value(json_object_get(one, "id")), "grant-ask1") == 0) rule = one;
    assert_in_range(json_integer_value(json_object_get(rule, "expires")), since + 300, clock_unix_ms() / 1000 + 300);
    json_decref(policy);
    expect_text(ask_api(KEY_READ, "POST", "/v1/approvals/ask1", "{\"decision\":\"deny\"}"), 403, "only read");
}

static void test_e2b_secrets_have_versions_and_pages_and_no_values(void **state)
{
    (void)state;
    world_egress_make_key();
    struct asked *a = ask_api(KEY_A, "POST", "/secrets", "{\"name\":\"MyKey\",\"value\":\"hush-hush\"}");
    asked_end(a);
    assert_null(strstr(buf_str(&a->body), "hush"));
    assert_non_null(strstr(buf_str(&a->body), "\"name\":\"mykey\""));
    expect(a, 201, NULL);
    _cleanup_free_ char *context = secret_context("a", "mykey");
    _cleanup_buf_ struct buf opened = {0};
    json_t *told = json_array_get(world.egress_told, json_array_size(world.egress_told) - 1);
    world_egress_open(context, json_string_value(json_object_get(told, "sealed")), &opened);
    assert_string_equal(buf_str(&opened), "hush-hush");
    expect_text(ask_api(KEY_A, "POST", "/secrets", "{\"name\":\"mykey\",\"value\":\"x\"}"), 409, "already");
    expect_text(ask_api(KEY_A, "POST", "/secrets", "{\"name\":\"other\"}"), 400, "'value' is required");
    a = ask_api(KEY_A, "POST", "/secrets/mykey", "{\"value\":\"newer\"}");
    asked_end(a);
    assert_non_null(strstr(buf_str(&a->body), "\"currentVersion\":2"));
    asked_free(a);
    a = ask_api(KEY_A, "GET", "/secrets?limit=1", NULL);
    assert_null(asked_field(a, "x-next-token"));
    asked_free(a);
    expect(ask_api(KEY_A, "POST", "/secrets", "{\"name\":\"zzz\",\"value\":\"x\"}"), 201, NULL);
    a = ask_api(KEY_A, "GET", "/secrets?limit=1", NULL);
    char path[128];
    (void)snprintf(path, sizeof path, "/secrets?limit=1&nextToken=%s", asked_field(a, "x-next-token"));
    asked_free(a);
    a = ask_api(KEY_A, "GET", path, NULL);
    assert_non_null(strstr(buf_str(&a->body), "zzz"));
    assert_null(strstr(buf_str(&a->body), "mykey"));
    asked_free(a);
    expect_text(ask_api(KEY_B, "GET", "/secrets/mykey", NULL), 404, "doesn't exist");
    expect(ask_api(KEY_B, "GET", "/secrets", NULL), 200, "[]");
    expect(ask_api(KEY_A, "DELETE", "/secrets/mykey", NULL), 204, "");
    expect_text(ask_api(KEY_A, "DELETE", "/secrets/mykey", NULL), 404, "doesn't exist");
}

static void test_a_named_secret_makes_its_own_rules(void **state)
{
    (void)state;
    world_egress_make_key();
    struct asked *a = ask_api(KEY_A, "PUT", "/v1/secrets/llm",
                              "{\"value\":\"v\",\"spec\":{\"bind\":[{\"hosts\":[\"bound.test\"]}]}}");
    assert_null(strstr(buf_str(&a->body), "value"));
    expect(a, 200, NULL);
    expect(ask_api(KEY_A, "POST", "/v1/secrets", "{\"name\":\"bare\",\"value\":\"v\"}"), 200, NULL);
    expect_text(ask_api(KEY_A, "POST", "/v1/secrets", "{\"value\":\"v\"}"), 400, "'name' is required");
    expect_text(ask_api(KEY_A, "POST", "/v1/sandboxes", "{\"secrets\":[\"none\"]}"), 400, "there is no secret 'none'");
    expect_text(ask_api(KEY_A, "POST", "/v1/sandboxes", "{\"secrets\":[\"bare\"]}"), 400, "bound to no host");
    expect(ask_api(KEY_A, "POST", "/v1/sandboxes", "{\"secrets\":[\"llm\"]}"), 201, NULL);
    const struct net_doc *doc = &world_find("i0new")->net->doc;
    assert_non_null(strstr(doc->effective, "bound.test"));
    assert_string_equal(doc->secrets.v[0], "llm");
    expect(ask_api(KEY_A, "DELETE", "/v1/secrets/llm", NULL), 204, "");
}

int main(void)
{
#define WORLD(f) cmocka_unit_test_setup_teardown(f, world_start, world_end)
    const struct CMUnitTest tests[] = {
        WORLD(test_e2b_fields_become_a_document_and_are_shown_again),
        WORLD(test_an_e2b_put_replaces_everything),
        WORLD(test_wrong_e2b_fields_are_named),
        WORLD(test_a_password_without_a_key_is_not_taken),
        cmocka_unit_test_setup_teardown(test_a_node_without_egress_says_so, world_start_without_egress, world_end),
        WORLD(test_a_native_sandbox_is_closed_unless_asked),
        WORLD(test_whether_the_internet_is_open_is_what_the_document_in_force_says),
        WORLD(test_documents_are_put_and_changed_with_epochs),
        WORLD(test_only_ones_own_part_of_the_counters_is_shown),
        WORLD(test_a_wrong_question_is_the_askers_fault),
        WORLD(test_a_number_that_cannot_be_told_to_egress_is_refused),
        WORLD(test_a_tenant_sees_what_it_used_itself),
        WORLD(test_approvals_are_listed_and_decided),
        WORLD(test_e2b_secrets_have_versions_and_pages_and_no_values),
        WORLD(test_a_named_secret_makes_its_own_rules),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
