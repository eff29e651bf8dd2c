/* Hosts, routes, the control plane of E2B and our own API, in a world without a network. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "api-world.h"
#include "api/api.h"
#include "api/e2b/e2b.h"
#include "api/native/openapi.h"
#include "api/reply.h"
#include "api/sandbox-json.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/mem.h"

static void classify(const char *host, const char *id, const char *port, const char *path, const char *query,
                     struct api_target *t)
{
    struct http_field v[2];
    struct http_req r = {.method = "GET", .path = path, .query = query, .authority = host};
    size_t n = 0;
    if (id)
        v[n++] = (struct http_field){"e2b-sandbox-id", id};
    if (port)
        v[n++] = (struct http_field){"e2b-sandbox-port", port};
    r.fields = (struct http_fields){v, n};
    api_classify("hutch.test:7443", &r, t);
}

static void test_classify(void **state)
{
    static const struct {
        const char *host, *id, *port, *path, *query;
        enum api_kind kind;
        const char *sandbox;
        uint32_t number;
    } v[] = {
        {"localhost:7070", NULL, NULL, "/", NULL, API_CONTROL, "", 0},
        {"127.0.0.1", NULL, NULL, "/", NULL, API_CONTROL, "", 0},
        {"[::1]:7070", NULL, NULL, "/", NULL, API_CONTROL, "", 0},
        {"hutch.test:7443", NULL, NULL, "/", NULL, API_CONTROL, "", 0},
        {"API.hutch.TEST", NULL, NULL, "/", NULL, API_CONTROL, "", 0},
        {"hutch.test.", NULL, NULL, "/", NULL, API_CONTROL, "", 0},
        {"49983-i0abc.hutch.test:7443", NULL, NULL, "/", NULL, API_SANDBOX, "i0abc", 49983},
        {"3000-i0abc-client.hutch.test", NULL, NULL, "/", NULL, API_SANDBOX, "i0abc", 3000},
        {"localhost", "i0abc", "49999", "/", NULL, API_SANDBOX, "i0abc", 49999},
        {"sandbox.hutch.test", "i0abc", "49983", "/files", "signature=x", API_SANDBOX, "i0abc", 49983},
        {"localhost", "i0abc", NULL, "/", NULL, API_BAD_TARGET, "", 0},
        {"localhost", NULL, "80", "/", NULL, API_BAD_TARGET, "", 80},
        {"localhost", "i0abc", "0", "/", NULL, API_BAD_TARGET, "", 0},
        {"localhost", "i0abc", "65536", "/", NULL, API_BAD_TARGET, "", 0},
        {"localhost", "../x", "80", "/", NULL, API_BAD_TARGET, "", 80},
        {"localhost", "I0ABC", "80", "/", NULL, API_BAD_TARGET, "", 80},
        {"localhost", "a0123456789012345678901234567890123456789", "80", "/", NULL, API_BAD_TARGET, "", 80},
        {"nonsense.hutch.test", NULL, NULL, "/", NULL, API_BAD_TARGET, "", 0},
        {"x-i0abc.hutch.test", NULL, NULL, "/", NULL, API_BAD_TARGET, "", 0},
        {"3000-i0.evil.hutch.test", NULL, NULL, "/", NULL, API_BAD_TARGET, "", 0},
        {"evil.example", NULL, NULL, "/", NULL, API_MISDIRECTED, "", 0},
        {"hutch.test.evil.example", NULL, NULL, "/", NULL, API_MISDIRECTED, "", 0},
        {"nothutch.test", NULL, NULL, "/", NULL, API_MISDIRECTED, "", 0},
        /* routing headers on a host that names a sandbox itself do not count */
        {"3000-i0abc.hutch.test", "i0other", "49983", "/", NULL, API_SANDBOX, "i0abc", 3000},
        {"localhost", NULL, NULL, "/files", "path=a&signature=v1_x", API_SIGNED, "", 0},
        {"localhost", NULL, NULL, "/files", "path=a", API_CONTROL, "", 0},
        {"localhost", NULL, NULL, "/files", "xsignature=a", API_CONTROL, "", 0},
        {"", NULL, NULL, "/", NULL, API_BAD_TARGET, "", 0},
        {"[::1", NULL, NULL, "/", NULL, API_BAD_TARGET, "", 0},
    };
    (void)state;
    for (size_t i = 0; i < sizeof v / sizeof *v; i++) {
        struct api_target t;
        classify(v[i].host, v[i].id, v[i].port, v[i].path, v[i].query, &t);
        if (t.kind != v[i].kind ||
            (t.kind == API_SANDBOX && (strcmp(t.sandbox, v[i].sandbox) || t.port != v[i].number)))
            fail_msg("case %zu (%s): kind %d, sandbox '%s', port %u", i, v[i].host, t.kind, t.sandbox, t.port);
    }
}

static void test_openapi(void **state)
{
    const struct api_route **routes = world.api.routes;
    size_t n = world.api.nroutes, documented = 0;
    json_t *doc = json_loadb(openapi_json, openapi_json_size, JSON_REJECT_DUPLICATES, NULL), *paths, *methods;
    const char *path;
    (void)state;
    assert_non_null(doc);
    paths = json_object_get(doc, "paths");
    for (size_t i = 0; i < n; i++) {
        char method[8] = "";
        for (size_t k = 0; routes[i]->method[k]; k++)
            method[k] = (char)(routes[i]->method[k] | 0x20);
        if (!json_object_get(json_object_get(paths, routes[i]->pattern), method))
            fail_msg("docs/openapi.json lacks %s %s", routes[i]->method, routes[i]->pattern);
    }
    json_object_foreach(paths, path, methods) documented += json_object_size(methods);
    assert_int_equal(documented, n);
    json_decref(doc);
}

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
    if (a->status != status || !message || !strstr(message, text) ||
        json_integer_value(json_object_get(root, "code")) != (json_int_t)status)
        fail_msg("%s: status %u, body %s; wanted %u with '%s'", a->path, a->status, buf_str(&a->body), status, text);
    json_decref(root);
    asked_free(a);
}

static void test_edges(void **state)
{
    (void)state;
    expect(ask_api(NULL, "GET", "/health", NULL), 204, "");
    expect_text(ask_api(NULL, "GET", "/sandboxes", NULL), 401, "API key");
    expect_text(ask_api("e2b_no", "GET", "/sandboxes", NULL), 401, "API key");
    expect_text(ask_api(KEY_A, "GET", "/nowhere", NULL), 404, "no such route");
    expect_text(ask_api(KEY_A, "GET", "/sandboxes/%zz", NULL), 400, "escape");
    struct asked *a = ask_api(KEY_A, "PATCH", "/sandboxes", NULL);
    assert_non_null(strstr(asked_field(a, "allow"), "POST"));
    assert_string_equal(asked_field(a, "x-request-id"), "req1");
    expect_text(a, 405, "GET");
    expect_text(ask_api(KEY_A, "POST", "/volumes", "{}"), 400, "'name'");
    expect_text(ask_api(KEY_READ, "POST", "/sandboxes", "{}"), 403, "only read");
    expect_text(ask_api(KEY_A, "GET", "/v1/tenants", NULL), 403, "admin");
    const char *evil[] = {"host", "evil.example", "x-api-key", KEY_A, NULL};
    expect_text(ask("GET", "/sandboxes", evil, NULL, 0), 421, "does not answer");
    const char *page[] = {"origin", "https://evil.example", "x-api-key", KEY_A, NULL};
    expect_text(ask("GET", "/sandboxes", page, NULL, 0), 403, "origin");
    const char *own[] = {"origin", "https://hutch.test:7443", "x-api-key", KEY_A, NULL};
    expect(ask("GET", "/sandboxes", own, NULL, 0), 200, "[]");
    world.tenant[0]->quota.requests_per_second = world.tenant[0]->quota.burst = 1;
    world.tenant[0]->tat_us = loop_now(world.loop) * 1000 + 3900000; /* asked for much already: free again in 2.9 s */
    a = ask_api(KEY_A, "GET", "/sandboxes", NULL);
    assert_string_equal(asked_field(a, "retry-after"), "3");
    expect_text(a, 429, "too many");
    world.tenant[0]->quota.requests_per_second = 0;
}

static void test_foreign(void **state)
{
    (void)state;
    world_sandbox("i0mine", 0, 1000);
    static const struct {
        const char *method, *path, *body;
    } v[] = {{"GET", "/sandboxes/%s", NULL},
             {"DELETE", "/sandboxes/%s", NULL},
             {"POST", "/sandboxes/%s/timeout", "{\"timeout\":5}"},
             {"POST", "/sandboxes/%s/refreshes", "{}"},
             {"POST", "/sandboxes/%s/connect", "{\"timeout\":5}"},
             {"POST", "/v2/sandboxes/%s/connect", "{}"},
             {"GET", "/sandboxes/%s/metrics", NULL},
             {"GET", "/sandboxes/%s/logs", NULL},
             {"GET", "/v2/sandboxes/%s/logs", NULL},
             {"GET", "/v1/sandboxes/%s/events", NULL}};
    for (size_t i = 0; i < sizeof v / sizeof *v; i++) {
        char mine[64], none[64];
        (void)snprintf(mine, sizeof mine, v[i].path, "i0mine");
        (void)snprintf(none, sizeof none, v[i].path, "i0none");
        struct asked *a = ask_api(KEY_B, v[i].method, mine, v[i].body),
                     *b = ask_api(KEY_B, v[i].method, none, v[i].body);
        char *at = strstr(a->body.p, "i0mine");
        assert_non_null(at);
        memcpy(at, "i0none", 6);
        assert_int_equal(a->status, 404);
        assert_int_equal(b->status, 404);
        assert_string_equal(a->body.p, b->body.p);
        asked_free(b);
        expect_text(a, 404, "doesn't exist");
    }
    assert_int_equal(world_find("i0mine")->state, SANDBOX_RUNNING);
}

static void test_create(void **state)
{
    (void)state;
    struct asked *a =
        ask_api(KEY_A, "POST", "/v2/sandboxes",
                "{\"templateID\":\"base\",\"metadata\":{\"k\":\"v\"},\"envVars\":{\"A\":\"b=c\"},\"strange\":1,"
                "\"network\":{\"allowPublicTraffic\":false,\"odd\\r\\n\":2}}");
    json_t *root = asked_json(a);
    assert_int_equal(a->status, 201);
    assert_string_equal(json_string_value(json_object_get(root, "sandboxID")), "i0new");
    assert_string_equal(json_string_value(json_object_get(root, "envdVersion")), API_ENVD_VERSION);
    assert_string_equal(json_string_value(json_object_get(root, "domain")), "hutch.test:7443");
    assert_string_equal(json_string_value(json_object_get(root, "trafficAccessToken")),
                        world_find("i0new")->traffic_token);
    assert_non_null(json_object_get(root, "envdAccessToken"));
    assert_non_null(json_object_get(root, "clientID"));
    const char *ignored = asked_field(a, "hutch-ignored-fields");
    assert_non_null(strstr(ignored, "strange"));
    assert_non_null(strstr(ignored, "network.odd??"));
    const struct sandbox *b = world_find("i0new");
    assert_string_equal(b->desc.env.v[0], "A=b=c");
    assert_int_equal(b->end_unix_ms - b->started_unix_ms, 300000);
    json_decref(root);
    asked_free(a);
    a = ask_api(KEY_A, "POST", "/sandboxes", "{\"templateID\":\"base\"}");
    root = asked_json(a);
    assert_null(json_object_get(root, "envdAccessToken"));
    assert_true(json_is_null(json_object_get(root, "trafficAccessToken")));
    b = world_find("i0new2");
    assert_int_equal(b->end_unix_ms - b->started_unix_ms, 15000);
    json_decref(root);
    asked_free(a);
    world.config->max_sandboxes = 2;
    a = ask_api(KEY_A, "POST", "/v2/sandboxes", "{\"templateID\":\"base\"}");
    asked_end(a);
    assert_string_equal(asked_field(a, "retry-after"), "5");
    expect(a, 503,
           "{\"code\":503,\"message\":\"this node is full: 2 of 2 sandboxes are running\","
           "\"error_code\":\"sandbox_capacity_unavailable\"}");
}

static void test_create_refused(void **state)
{
    static const struct {
        unsigned status;
        const char *body, *text;
    } v[] = {
        {400, "", "object"},
        {400, "[]", "object"},
        {400, "{", "JSON"},
        {400, "{}", "'templateID' is required"},
        {400, "{\"templateID\":5}", "'templateID' must be a string, not a whole number"},
        {404, "{\"templateID\":\"none\"}", "template 'none' not found"},
        {400, "{\"templateID\":\"base\",\"timeout\":\"5\"}", "'timeout' must be a whole number, not a string"},
        {400, "{\"templateID\":\"base\",\"timeout\":1.5}", "'timeout' must be a whole number"},
        {400, "{\"templateID\":\"base\",\"timeout\":0}", "positive"},
        {400, "{\"templateID\":\"base\",\"timeout\":-9223372036854775808}", "positive"},
        {400, "{\"templateID\":\"base\",\"timeout\":3601}", "at most 3600"},
        {400, "{\"templateID\":\"base\",\"metadata\":{\"a\":1}}", "'a' must be a string"},
        {400, "{\"templateID\":\"base\",\"envVars\":{\"A=B\":\"x\"}}", "'A=B'"},
        {400, "{\"templateID\":\"base\",\"envVars\":{\"\":\"x\"}}", "variable"},
        {400, "{\"templateID\":\"base\",\"envVars\":{\"A\":\"x\\u0000y\"}}", "JSON"},
        {400, "{\"templateID\":\"base\",\"autoPause\":1}", "'autoPause' must be a boolean"},
        {400, "{\"templateID\":\"base\",\"autoResume\":{\"enabled\":1}}", "'enabled' must be a boolean"},
        {400, "{\"templateID\":\"base\",\"mcp\":[]}", "'mcp' must be an object"},
        {400, "{\"templateID\":\"base\",\"iam\":{\"x\":{}}}", "'iam' is not supported"},
        {400, "{\"templateID\":\"base\",\"network\":{\"refusals\":\"no\"}}", "'network.refusals' must be \"readable\""},
        {400, "{\"templateID\":\"base\",\"volumeMounts\":[{}]}", "'volumeMounts[0].name'"},
        {400, "{\"templateID\":\"base\",\"network\":{\"allowOut\":[7]}}", "'network.allowOut[0]' must be"},
        {400, "{\"templateID\":\"base\",\"network\":{\"httpsPorts\":[0]}}", "httpsPorts[0]"},
        {400, "{\"templateID\":\"base\",\"network\":{\"maskRequestHost\":\"a b\"}}", "maskRequestHost"},
        {400, "{\"templateID\":\"base\",\"allow_internet_access\":\"no\"}",
         "'allow_internet_access' must be a boolean"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof v / sizeof *v; i++)
        expect_text(ask_api(KEY_A, "POST", "/v2/sandboxes", v[i].body), v[i].status, v[i].text);
    assert_int_equal(sandboxes_count(world.api.sandboxes), 0);
    /* saying what happens anyway is fine */
    struct asked *a =
        ask_api(KEY_A, "POST", "/v2/sandboxes",
                "{\"templateID\":\"base\",\"autoPause\":false,\"autoResume\":{\"enabled\":false},\"mcp\":null,"
                "\"volumeMounts\":[],\"network\":{\"allowOut\":[],\"rules\":{}},\"allow_internet_access\":false}");
    assert_null(asked_field(a, "hutch-ignored-fields"));
    expect(a, 201, NULL);
    const char *key[] = {"x-api-key", KEY_A, "idempotency-key", "has space", NULL};
    expect_text(ask("POST", "/v2/sandboxes", key, "{\"templateID\":\"base\"}", 21), 400, "Idempotency-Key");
    /* What was asked for before is looked for first, by whoever knows it; its template may be gone. */
    static const char gone[] = "{\"templateID\":\"gone\"}";
    key[3] = "once";
    world_template_dir("gone", true);
    expect(ask("POST", "/v2/sandboxes", key, gone, sizeof gone - 1), 201, NULL);
    world_template_dir("gone", false);
    expect(ask("POST", "/v2/sandboxes", key, gone, sizeof gone - 1), 201, NULL);
    assert_int_equal(sandboxes_count(world.api.sandboxes), 2);
    expect_text(ask_api(KEY_A, "POST", "/v2/sandboxes", gone), 404, "template 'gone' not found");
    struct buf many = {0};
    buf_adds(&many, "{\"templateID\":\"base\",\"metadata\":{");
    for (int i = 0; i < 65; i++)
        buf_addf(&many, "%s\"k%d\":\"v\"", i ? "," : "", i);
    buf_adds(&many, "}}");
    expect_text(ask_api(KEY_A, "POST", "/v2/sandboxes", many.p), 400, "at most 64");
    buf_done(&many);
}

static size_t count(json_t *a, const char *first)
{
    size_t n = json_array_size(a);
    if (first)
        assert_string_equal(json_string_value(json_object_get(json_array_get(a, 0), "sandboxID")), first);
    json_decref(a);
    return n;
}

static void test_list(void **state)
{
    char id[16], path[256];
    (void)state;
    for (int i = 0; i < 250; i++) {
        (void)snprintf(id, sizeof id, "i%03d", i);
        struct sandbox *b = world_sandbox(id, i % 5 == 4, 1000u * (unsigned)(i / 2));
        strv_add(&b->desc.metadata, "a b");
        strv_add(&b->desc.metadata, i % 2 ? "c&d" : "x");
        strv_add(&b->desc.metadata, "e");
        strv_add(&b->desc.metadata, "f");
    }
    /* 200 of tenant a, in pages of 70, each exactly once */
    char seen[250] = {0};
    size_t pages = 0;
    (void)snprintf(path, sizeof path, "%s", "/v2/sandboxes?limit=70");
    for (;;) {
        struct asked *a = ask_api(KEY_A, "GET", path, NULL);
        json_t *root = asked_json(a), *one;
        size_t i;
        assert_int_equal(a->status, 200);
        assert_string_equal(asked_field(a, "x-total-running"), "200");
        json_array_foreach(root, i, one)
            seen[strtoul(json_string_value(json_object_get(one, "sandboxID")) + 1, NULL, 10)]++;
        json_decref(root);
        pages++;
        const char *next = asked_field(a, "x-next-token");
        if (next)
            (void)snprintf(path, sizeof path, "/v2/sandboxes?limit=70&nextToken=%s", next);
        asked_free(a);
        if (!next)
            break;
        assert_true(pages < 10);
    }
    assert_int_equal(pages, 3);
    for (int i = 0; i < 250; i++)
        assert_int_equal(seen[i], i % 5 != 4);
    struct asked *a =
        ask_api(KEY_A, "GET", "/v2/sandboxes?metadata=a%252520b%3Dc%252526d%26e%3Df&limit=100&order=asc", NULL);
    assert_int_equal(count(asked_json(a), "i001"), 100);
    assert_null(asked_field(a, "x-next-token"));
    asked_free(a);
    a = ask_api(KEY_A, "GET", "/v2/sandboxes?state=paused", NULL);
    assert_null(asked_field(a, "x-total-running"));
    assert_null(asked_field(a, "x-next-token"));
    expect(a, 200, "[]");
    expect(ask_api(KEY_A, "GET", "/v2/sandboxes?template=none", NULL), 200, "[]");
    a = ask_api(KEY_A, "GET", "/v2/sandboxes?state=running,paused&startedAfter=1970-01-01T00:02:04Z", NULL);
    assert_int_equal(count(asked_json(a), "i248"), 1);
    asked_free(a);
    expect_text(ask_api(KEY_A, "GET", "/v2/sandboxes?limit=0", NULL), 400, "limit");
    expect_text(ask_api(KEY_A, "GET", "/v2/sandboxes?limit=101", NULL), 400, "limit");
    expect_text(ask_api(KEY_A, "GET", "/v2/sandboxes?nextToken=AAAA", NULL), 400, "nextToken");
    expect_text(ask_api(KEY_A, "GET", "/v2/sandboxes?state=dead", NULL), 400, "state");
    expect_text(ask_api(KEY_A, "GET", "/v2/sandboxes?startedAfter=yesterday", NULL), 400, "startedAfter");
    expect_text(ask_api(KEY_A, "GET", "/v2/sandboxes?metadata=%zz", NULL), 400, "metadata");
}

static void test_cursor(void **state)
{
    struct e2b_cursor c = {.started_ms = 1234567890123, .id = "i0abcdef", .asc = true}, d;
    struct buf token = {0};
    (void)state;
    e2b_cursor_write(&c, &token);
    assert_null(strpbrk(token.p, "+/= "));
    assert_true(e2b_cursor_read(token.p, &d));
    assert_int_equal(d.started_ms, c.started_ms);
    assert_string_equal(d.id, c.id);
    assert_true(d.asc);
    static const char *const bad[] = {"", "x", "MTIz", "MV8uLl9h", "MV9pMF94", "LTFfaTBfYQ", "MV9pMC14X2E", "%%%"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        if (e2b_cursor_read(bad[i], &d))
            fail_msg("accepted %s", bad[i]);
    buf_done(&token);
}

/* Its end was set after `since`, to so many seconds from then. */
static void ends_in(const struct sandbox *b, uint64_t since, uint64_t seconds)
{
    assert_in_range(b->end_unix_ms, since + seconds * 1000, clock_unix_ms() + seconds * 1000);
}

static void test_life(void **state)
{
    (void)state;
    struct sandbox *b = world_sandbox("i0", 0, 1000);
    uint64_t since = clock_unix_ms();
    expect(ask_api(KEY_A, "POST", "/sandboxes/i0/timeout", "{\"timeout\":10}"), 204, "");
    ends_in(b, since, 10);
    expect(ask_api(KEY_A, "POST", "/sandboxes/i0/timeout", "{\"timeout\":-5}"), 204, "");
    ends_in(b, since, 0);
    expect_text(ask_api(KEY_A, "POST", "/sandboxes/i0/timeout", "{}"), 400, "required");
    expect_text(ask_api(KEY_A, "POST", "/sandboxes/i0/timeout", "{\"timeout\":4000}"), 400, "at most 3600");
    expect(ask_api(KEY_A, "POST", "/sandboxes/i0/refreshes", NULL), 204, "");
    ends_in(b, since, 15);
    expect_text(ask_api(KEY_A, "POST", "/sandboxes/i0/refreshes", "{\"duration\":3601}"), 400, "3600");
    expect(ask_api(KEY_A, "POST", "/v2/sandboxes/i0/connect", "{}"), 200, NULL);
    ends_in(b, since, 300);
    uint64_t end = b->end_unix_ms;
    expect(ask_api(KEY_A, "POST", "/sandboxes/i0-client/connect", "{\"timeout\":1}"), 200, NULL);
    assert_int_equal(b->end_unix_ms, end); /* never shorter */
    expect_text(ask_api(KEY_A, "POST", "/sandboxes/i0/connect", "{}"), 400, "required");
    expect(ask_api(KEY_A, "DELETE", "/sandboxes/i0", NULL), 204, "");
    expect_text(ask_api(KEY_A, "DELETE", "/sandboxes/i0", NULL), 404, "ended 0 s ago: it was killed through the API");
    expect_text(ask_api(KEY_B, "DELETE", "/sandboxes/i0", NULL), 404, "doesn't exist");
    expect_text(ask_api(KEY_A, "GET", "/sandboxes/..%2Fx", NULL), 404, "doesn't exist");
}

static void test_keys_that_only_read_get_no_token_of_a_sandbox(void **state)
{
    (void)state;
    static const struct {
        const char *key;
        bool token;
    } asked[] = {{KEY_A, true}, {KEY_ROOT, true}, {KEY_READ, false}};
    struct sandbox *b = world_sandbox("i0", 0, 1000);
    (void)snprintf(b->token, sizeof b->token, "secret-of-i0");
    for (size_t i = 0; i < ARRAY_LEN(asked); i++) {
        struct asked *a = ask_api(asked[i].key, "GET", "/sandboxes/i0", NULL);
        assert_int_equal(a->status, 200);
        assert_int_equal(strstr(buf_str(&a->body), "secret-of-i0") != NULL, asked[i].token);
        asked_free(a);
    }
}

static void test_observe(void **state)
{
    (void)state;
    world_sandbox("i0", 0, 1000);
    events_publish(world.api.events, "i0", "a", "died", "{\"cause\":\"oom\"}");
    world_measure(2);
    struct asked *a = ask_api(KEY_A, "GET", "/sandboxes/i0/metrics", NULL);
    json_t *root = asked_json(a), *m = json_array_get(root, json_array_size(root) - 1);
    assert_float_equal(json_number_value(json_object_get(m, "cpuUsedPct")), 25.0, 0.01);
    assert_int_equal(json_integer_value(json_object_get(m, "cpuCount")), 2);
    json_decref(root);
    asked_free(a);
    expect(ask_api(KEY_A, "GET", "/sandboxes/i0/metrics?start=0&end=1", NULL), 200, "[]");
    expect_text(ask_api(KEY_A, "GET", "/sandboxes/i0/metrics?start=-1", NULL), 400, "start");
    expect(ask_api(KEY_A, "GET", "/sandboxes/metrics?sandbox_ids=i0,i1", NULL), 200, NULL);
    a = ask_api(KEY_A, "GET", "/sandboxes/i0/logs", NULL);
    root = asked_json(a);
    const char *line = json_string_value(json_object_get(json_array_get(json_object_get(root, "logs"), 1), "line"));
    json_t *parsed = json_loads(line, 0, NULL);
    assert_string_equal(json_string_value(json_object_get(parsed, "level")), "error");
    json_decref(parsed);
    json_decref(root);
    asked_free(a);
    a = ask_api(KEY_A, "GET", "/v2/sandboxes/i0/logs?level=error", NULL);
    root = asked_json(a);
    assert_int_equal(json_array_size(json_object_get(root, "logs")), 1);
    json_decref(root);
    asked_free(a);
    a = ask_api(KEY_A, "GET", "/v1/sandboxes/i0/events?after=1", NULL);
    assert_int_equal(a->status, 200);
    assert_non_null(strstr(a->body.p, "id: 2\nevent: died\ndata: {"));
    assert_null(strstr(a->body.p, "id: 1\n"));
    assert_false(a->ended);
    asked_free(a);
    expect(ask_api(KEY_A, "GET", "/templates", NULL), 200, NULL);
    expect(ask_api(KEY_A, "GET", "/templates/aliases/base", NULL), 200, "{\"templateID\":\"base\",\"public\":true}");
    expect_text(ask_api(KEY_A, "GET", "/templates/aliases/none", NULL), 404, "not found");
    expect(ask_api(KEY_A, "GET", "/templates/team%2Fbase%3Adefault/tags", NULL), 200, NULL);
    expect(ask_api(KEY_A, "GET", "/v1/capabilities", NULL), 200, NULL);
    expect(ask_api(NULL, "GET", "/v1/openapi.json", NULL), 200, NULL);
    expect(ask_api(KEY_A, "GET", "/teams", NULL), 200,
           "[{\"teamID\":\"a\",\"name\":\"A\",\"apiKey\":\"" KEY_A "\",\"isDefault\":true}]");
}

static void test_admin(void **state)
{
    (void)state;
    world_sandbox("i0", 0, 1000);
    world_sandbox("i1", 1, 1000);
    expect(ask_api(KEY_ROOT, "GET", "/v1/node", NULL), 200, NULL);
    struct asked *all = ask_api(KEY_ROOT, "GET", "/v1/tenants", NULL);
    json_t *listed = asked_json(all), *first = json_array_get(json_object_get(listed, "tenants"), 0);
    assert_non_null(json_object_get(json_object_get(first, "used"), "sandboxes"));
    assert_null(json_object_get(json_object_get(first, "used"), "storageEntries")); /* not counted for all at once */
    json_decref(listed);
    expect(all, 200, NULL);
    expect(ask_api(KEY_ROOT, "POST", "/v1/tenants", "{\"id\":\"b\",\"quota\":{\"sandboxes\":3}}"), 201,
           "{\"id\":\"b\"}");
    assert_int_equal(world.tenant[1]->quota.sandboxes, 3);
    /* What a change does not name stays. */
    expect(ask_api(KEY_ROOT, "PATCH", "/v1/tenants/b", "{\"quota\":{\"storageBytes\":4096}}"), 204, NULL);
    expect(ask_api(KEY_ROOT, "PATCH", "/v1/tenants/b", "{\"quota\":{\"storageEntries\":77}}"), 204, NULL);
    assert_int_equal(world.tenant[1]->quota.sandboxes, 3);
    assert_int_equal(world.tenant[1]->quota.state_bytes, 4096);
    struct asked *shown = ask_api(KEY_ROOT, "GET", "/v1/tenants/b", NULL);
    assert_non_null(strstr(buf_str(&shown->body), "\"limits\":{\"storageBytes\":4096,\"storageEntries\":77}"));
    assert_non_null(strstr(buf_str(&shown->body), "\"storageBytes\":0,\"storageEntries\":0}"));
    expect(shown, 200, NULL);
    expect(ask_api(KEY_ROOT, "GET", "/v1/tenants/nobody", NULL), 404, NULL);
    expect(ask_api(KEY_ROOT, "PATCH", "/v1/tenants/nobody", "{}"), 404, NULL);
    expect_text(ask_api(KEY_ROOT, "PATCH", "/v1/tenants/b", "{\"id\":\"c\"}"), 400, "id");
    expect_text(ask_api(KEY_ROOT, "POST", "/v1/tenants", "{\"id\":\"b\",\"quota\":{\"sandboxs\":3}}"), 400, "sandboxs");
    expect_text(ask_api(KEY_ROOT, "POST", "/v1/tenants", "{\"id\":\"b\",\"quota\":{\"sandboxes\":-3}}"), 400,
                "sandboxes");
    struct asked *made = ask_api(KEY_ROOT, "POST", "/v1/keys", "{\"tenant\":\"b\",\"scopes\":[\"read\"]}");
    asked_end(made);
    json_t *key = asked_json(made);
    char path[64];
    assert_string_equal(json_string_value(json_object_get(key, "tenant")), "b");
    assert_int_equal(strlen(json_string_value(json_object_get(key, "key"))), strlen(KEY_A));
    assert_string_equal(json_string_value(json_array_get(json_object_get(key, "scopes"), 0)), "read");
    (void)snprintf(path, sizeof path, "/v1/keys/%s", json_string_value(json_object_get(key, "id")));
    json_decref(key);
    expect(made, 201, NULL);
    expect_text(ask_api(KEY_ROOT, "POST", "/v1/keys", "{\"tenant\":\"b\",\"scopes\":[\"all\"]}"), 400, "scopes[0]");
    expect(ask_api(KEY_ROOT, "DELETE", path, NULL), 204, "");
    expect(ask_api(KEY_ROOT, "POST", "/v1/stop-all", NULL), 200, "{\"stopped\":2,\"failed\":0}");
}

static void test_times(void **state)
{
    char text[REPLY_TIME_MAX];
    uint64_t ms;
    (void)state;
    reply_time(1767323045678, text);
    assert_string_equal(text, "2026-01-02T03:04:05.678Z");
    assert_true(reply_time_parse("2026-01-02T03:04:05.678Z", &ms));
    assert_int_equal(ms, 1767323045678);
    assert_true(reply_time_parse("2026-01-02T04:04:05.678901+01:00", &ms));
    assert_int_equal(ms, 1767323045678);
    assert_true(reply_time_parse("2026-01-02", &ms));
    static const char *const bad[] = {"", "2026", "2026-13-01", "2026-01-02T25:00:00Z", "2026-01-02T03:04:05Q", "x"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_false(reply_time_parse(bad[i], &ms));
}

int main(void)
{
#define WORLD(f) cmocka_unit_test_setup_teardown(f, world_start, world_end)
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_classify),
        WORLD(test_openapi),
        cmocka_unit_test(test_cursor),
        cmocka_unit_test(test_times),
        WORLD(test_edges),
        WORLD(test_foreign),
        WORLD(test_create),
        WORLD(test_create_refused),
        WORLD(test_list),
        WORLD(test_life),
        WORLD(test_keys_that_only_read_get_no_token_of_a_sandbox),
        WORLD(test_observe),
        WORLD(test_admin),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
