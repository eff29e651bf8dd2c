/* Every route of the table, asked by those who may not: each is answered once, whatever the body is, and the call is not used
 * after its answer (a sanitizer build stops there). What each scope of a key may. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "api-world.h"
#include "api/api.h"
#include "api/native/openapi.h"
#include "base/cleanup.h"

/* ---- asking ---- */

/* The pattern with its parameters filled in. */
static void fill_path(const char *pattern, const char *id, struct buf *out)
{
    out->n = 0;
    for (const char *p = pattern; *p; p++) {
        if (*p != '{') {
            buf_addc(out, *p);
            continue;
        }
        buf_adds(out, id);
        p = strchr(p, '}');
    }
}

/* The status of a request that is answered, with one field more if name is not NULL; 0: it waits, and its client leaves. */
static unsigned status_for(const struct api_route *route, const char *id, const char *name, const char *value,
                           const char *body)
{
    _cleanup_buf_ struct buf path = {0};
    const char *fields[] = {"content-type", "application/json", name, value, NULL};
    fill_path(route->pattern, id, &path);
    struct asked *a = ask(route->method, buf_str(&path), fields, body, body ? strlen(body) : 0);
    unsigned status = a->ended ? a->status : 0;
    asked_free(a);
    return status;
}

static const char *const bodies[] = {NULL, "", "x", "{", "[]", "{}", "null", "{\"a\":{\"a\":[[[]]]}}", "\"\\u0000\""};

static void test_without_a_key(void **state)
{
    const struct api_route **routes = world.api.routes;
    size_t n = world.api.nroutes;
    (void)state;
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < sizeof bodies / sizeof *bodies; k++) {
            unsigned none = status_for(routes[i], "vol-1", NULL, NULL, bodies[k]);
            unsigned wrong = status_for(routes[i], "vol-1", "x-api-key", "e2b_wrong", bodies[k]);
            bool open = routes[i]->flags & API_OPEN, contents = strncmp(routes[i]->pattern, "/volumecontent", 14) == 0;
            if (none == 0 || wrong == 0 || (!open && (none != 401 || wrong != 401)) ||
                (contents && (none != 401 || wrong != 404)))
                fail_msg("%s %s, body %zu: %u without a key, %u with a wrong one", routes[i]->method,
                         routes[i]->pattern, k, none, wrong);
        }
    assert_int_equal(world.creates, 0); /* no volume was opened */
}

/* A sandbox and a volume of another tenant, and ones that never were. Routes without a parameter are not about those. */
static void test_with_a_foreign_key(void **state)
{
    static const char *const ids[] = {"i0abc", "vol-1", "nothing"};
    const struct api_route **routes = world.api.routes;
    size_t n = world.api.nroutes;
    (void)state;
    world_sandbox("i0abc", 0, 1000);
    for (size_t i = 0; i < n; i++) {
        bool content = strncmp(routes[i]->pattern, "/volumecontent/", 15) == 0;
        bool sandbox = strncmp(routes[i]->pattern, "/v1/sandboxes/{", 15) == 0 && !(routes[i]->flags & API_CHANGES);
        for (size_t k = 0; (content || sandbox) && k < sizeof ids / sizeof *ids; k++) {
            unsigned status = status_for(routes[i], ids[k], "x-api-key", KEY_B, NULL);
            if (status != 404 && status != 400)
                fail_msg("%s %s of '%s': %u", routes[i]->method, routes[i]->pattern, ids[k], status);
        }
    }
    assert_int_equal(world.creates, 0); /* no volume was opened */
}

/* ---- scopes ---- */

static const char *const readers[] = {KEY_READ, KEY_READ_ALL, KEY_READ_ROOT};

/* What is not GET changes something. These look only, ask for a signature of their own, or (/mcp) check each tool's scope
 * themselves: tests/integration/test_mcp.py walks all tools. */
static bool changes_nothing(const struct api_route *r)
{
    static const char *const known[] = {"/v1/sandboxes/{id}/network/check", "/v1/store/verify", "/v1/uploads/{name}",
                                        "/mcp"};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strcmp(r->pattern, known[i]) == 0)
            return true;
    return strcmp(r->method, "GET") == 0;
}

static void test_read_changes_nothing(void **state)
{
    const struct api_route **routes = world.api.routes;
    size_t n = world.api.nroutes;
    (void)state;
    for (size_t i = 0; i < n; i++) {
        if ((routes[i]->flags & API_CHANGES) == 0 && !changes_nothing(routes[i]))
            fail_msg("%s %s does not say that it changes something", routes[i]->method, routes[i]->pattern);
        for (size_t k = 0; (routes[i]->flags & API_CHANGES) && k < sizeof readers / sizeof *readers; k++) {
            unsigned status = status_for(routes[i], "vol-1", "x-api-key", readers[k], "{}");
            if (status != 403)
                fail_msg("%s %s with the key %s: %u", routes[i]->method, routes[i]->pattern, readers[k], status);
        }
    }
    assert_int_equal(world.creates, 0); /* no volume was opened */
}

static void test_read_sees_no_contents(void **state)
{
    static const char *const contents[] = {
        "/sandboxes/{id}/logs",      "/v2/sandboxes/{id}/logs",         "/templates/{id}/builds/{build}/logs",
        "/volumecontent/{id}/path",  "/volumecontent/{id}/dir",         "/volumecontent/{id}/file",
        "/v1/templates/{id}/export", "/v1/sandboxes/{id}/history/diff", "/v1/sandboxes/{id}/history/{number}/file",
        "/v1/sandboxes/{id}/tx/{tx}"};
    const struct api_route **routes = world.api.routes;
    size_t n = world.api.nroutes, seen = 0;
    (void)state;
    for (size_t i = 0; i < n; i++) {
        bool wanted = false;
        for (size_t k = 0; k < sizeof contents / sizeof *contents && strcmp(routes[i]->method, "GET") == 0; k++)
            wanted |= strcmp(routes[i]->pattern, contents[k]) == 0;
        assert_int_equal(wanted, (routes[i]->flags & API_CONTENTS) != 0);
        seen += wanted;
        for (size_t k = 0; wanted && k < sizeof readers / sizeof *readers; k++) {
            unsigned status = status_for(routes[i], "vol-1", "x-api-key", readers[k], NULL);
            if (status != 403)
                fail_msg("GET %s with the key %s: %u", routes[i]->pattern, readers[k], status);
        }
    }
    assert_int_equal(seen, sizeof contents / sizeof *contents);
    assert_int_equal(world.creates, 0); /* no volume was opened */
}

static void test_scopes(void **state)
{
    enum { SB = SCOPE_SANDBOXES, T = SCOPE_TEMPLATES, R = SCOPE_READ, F = SCOPE_FILES, A = SCOPE_ADMIN };
    static const struct {
        unsigned scopes;
        bool look, contents, change, admin_look, admin_change; /* at a route of SCOPE_SANDBOXES, of SCOPE_ADMIN */
    } v[] = {{SB, true, true, true, false, false},       {SB | T, true, true, true, false, false},
             {T, false, false, false, false, false},     {R, true, false, false, false, false},
             {SB | R, true, false, false, false, false}, {SB | T | R, true, false, false, false, false},
             {R | F, true, true, false, false, false},   {SB | R | F, true, true, false, false, false},
             {F, false, true, false, false, false},      {SB | F, true, true, true, false, false},
             {A, true, true, true, true, true},          {A | R, true, false, false, true, false},
             {A | R | F, true, true, false, true, false}};
    (void)state;
    for (size_t i = 0; i < sizeof v / sizeof *v; i++) {
        assert_int_equal(!api_scope_lacking(v[i].scopes, SB, 0), v[i].look);
        assert_int_equal(!api_scope_lacking(v[i].scopes, SB, API_CONTENTS), v[i].contents);
        assert_int_equal(!api_scope_lacking(v[i].scopes, SB, API_CHANGES), v[i].change);
        assert_int_equal(!api_scope_lacking(v[i].scopes, A, 0), v[i].admin_look);
        assert_int_equal(!api_scope_lacking(v[i].scopes, A, API_CHANGES), v[i].admin_change);
        assert_null(api_scope_lacking(v[i].scopes, 0, 0));
    }
}

/* Files of a volume: the token and the owner's keys open them, a reader's only with `files`, and all count for the rate.
 * Bytes would wait for a sandbox with the volume, which keeper never makes here. */
static void test_volume_contents(void **state)
{
    const struct api_route r = {"GET", "/volumecontent/{id}/file?path=/a", NULL, 0, 0}, *read = &r;
    const struct api_route w = {"PUT", "/volumecontent/{id}/file?path=/a", NULL, 0, 0}, *write = &w;
    (void)state;
    world.hold_creates = true;
    assert_int_equal(status_for(read, "vol-1", "x-api-key", KEY_A, NULL), 0);
    assert_int_equal(status_for(read, "vol-1", "x-api-key", KEY_READ_FILES, NULL), 0);
    assert_int_equal(status_for(read, "vol-1", "authorization", "Bearer " WORLD_VOLUME_TOKEN, NULL), 0);
    assert_int_equal(status_for(write, "vol-1", "x-api-key", KEY_A, NULL), 0);
    assert_int_equal(status_for(write, "vol-1", "authorization", "Bearer " WORLD_VOLUME_TOKEN, NULL), 0);
    assert_int_equal(world.creates, 1); /* for all of them */
    assert_int_equal(status_for(write, "vol-1", "x-api-key", KEY_READ_FILES, "bytes"), 403);
    world.tenant[0]->quota.requests_per_second = world.tenant[0]->quota.burst = 1;
    world.tenant[0]->tat_us = UINT64_MAX / 2; /* it has asked for much */
    assert_int_equal(status_for(read, "vol-1", "x-api-key", KEY_A, NULL), 429);
    assert_int_equal(status_for(write, "vol-1", "authorization", "Bearer " WORLD_VOLUME_TOKEN, "bytes"), 429);
    assert_int_equal(status_for(read, "vol-1", "authorization", "Bearer wrong", NULL), 404);
    assert_int_equal(world.creates, 1); /* for all of them */
}

/* What the description says about scopes is what the table says. */
static void test_openapi_scopes(void **state)
{
    static const struct {
        const char *name;
        unsigned bit;
    } names[] = {{"sandboxes", SCOPE_SANDBOXES}, {"templates", SCOPE_TEMPLATES}, {"admin", SCOPE_ADMIN}};
    const struct api_route **routes = world.api.routes;
    size_t n = world.api.nroutes;
    json_t *doc = json_loadb(openapi_json, openapi_json_size, 0, NULL), *paths = json_object_get(doc, "paths");
    (void)state;
    for (size_t i = 0; i < n; i++) {
        char method[8] = "";
        for (size_t k = 0; routes[i]->method[k]; k++)
            method[k] = (char)(routes[i]->method[k] | 0x20);
        json_t *op = json_object_get(json_object_get(paths, routes[i]->pattern), method);
        const char *access = json_string_value(json_object_get(op, "x-hutch-access"));
        json_t *scopes = json_object_get(op, "x-hutch-scopes");
        unsigned bits = 0;
        for (size_t k = 0; k < json_array_size(scopes); k++)
            for (size_t m = 0; m < sizeof names / sizeof *names; m++)
                if (strcmp(json_string_value(json_array_get(scopes, k)), names[m].name) == 0)
                    bits |= names[m].bit;
        const char *wanted = routes[i]->flags & API_CHANGES    ? "change"
                             : routes[i]->flags & API_CONTENTS ? "contents"
                                                               : "metadata";
        if (!access || strcmp(access, wanted) != 0 || bits != routes[i]->scope)
            fail_msg("docs/openapi.json: %s %s should say %s", routes[i]->method, routes[i]->pattern, wanted);
    }
    json_decref(doc);
}

#define WALK(name) cmocka_unit_test_setup_teardown(name, world_start, world_end)

int main(void)
{
    const struct CMUnitTest tests[] = {
        WALK(test_without_a_key),
        WALK(test_with_a_foreign_key),
        WALK(test_read_changes_nothing),
        WALK(test_read_sees_no_contents),
        WALK(test_scopes),
        WALK(test_volume_contents),
        WALK(test_openapi_scopes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
