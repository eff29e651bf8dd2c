/* Template builds over HTTP, in a made-up world. */
#include <fcntl.h>
#include <unistd.h>

#include "api-world.h"
#include "base/mem.h"
#include "builds/builds.h"
#include "tests/lib/unit.h"

/* The last promise. */
static char template[40], build[40];

#define HASH "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"

static int start(void **state)
{
    int rc = world_start(state);
    world.config->build_upload_max = 1000;
    return rc;
}

/* The body of the answer, which must have this status. */
static json_t *answer(struct asked *a, unsigned status)
{
    asked_end(a);
    if (!a->ended || a->status != status)
        fail_msg("%s: status %u, body %s; wanted %u", a->path, a->status, buf_str(&a->body), status);
    json_t *j = a->body.n ? json_loadb(a->body.p, a->body.n, 0, NULL) : NULL;
    asked_free(a);
    return j;
}
static void refused(struct asked *a, unsigned status, const char *text)
{
    json_t *j = answer(a, status);
    const char *message = json_string_value(json_object_get(j, "message"));
    assert_int_equal(json_integer_value(json_object_get(j, "code")), status);
    if (!message || !strstr(message, text))
        fail_msg("'%s' lacks '%s'", message ? message : "", text);
    json_decref(j);
}
static void promise(void)
{
    json_t *j = answer(ask_api(KEY_A, "POST", "/v3/templates", "{\"name\":\"x:v1\"}"), 202);
    (void)snprintf(template, sizeof template, "%s", json_string_value(json_object_get(j, "templateID")));
    (void)snprintf(build, sizeof build, "%s", json_string_value(json_object_get(j, "buildID")));
    json_decref(j);
}
/* A path whose first "%s" is the promised template and whose second one is the build. */
static const char *about(const char *path)
{
    static char made[400];
    (void)snprintf(made, sizeof made, path, template, build);
    return made;
}
/* Tenant a keeps the files of a sandbox, and its quota of storage is smaller than they are; or it has none again. */
static void use_up_storage(bool on)
{
    if (!world_find("i0kept")) {
        (void)world_sandbox("i0kept", 0, 1000);
        json_decref(answer(ask_api(KEY_A, "POST", "/sandboxes/i0kept/snapshots", "{}"), 201));
    }
    world.tenant[0]->quota.state_bytes = on ? 1 : 0;
}
static struct build *promised(void)
{
    return (struct build *)build_find(world.api.builds, world.tenant[0], template, build);
}

static void a_build_is_promised_with_its_names_and_tags(void **state)
{
    (void)state;
    json_t *j =
        answer(ask_api(KEY_A, "POST", "/v3/templates", "{\"name\":\"My-T:v1\",\"cpuCount\":2,\"memoryMB\":512}"), 202);
    assert_non_null(build_find(world.api.builds, world.tenant[0], json_string_value(json_object_get(j, "templateID")),
                               json_string_value(json_object_get(j, "buildID"))));
    assert_string_equal(json_string_value(json_array_get(json_object_get(j, "names"), 0)), "my-t");
    assert_string_equal(json_string_value(json_array_get(json_object_get(j, "tags"), 0)), "v1");
    assert_true(json_is_false(json_object_get(j, "public")));
    json_decref(j);
    json_decref(answer(ask_api(KEY_A, "POST", "/v2/templates", "{\"alias\":\"old\"}"), 202));
}

static void wrong_requests_are_refused(void **state)
{
    (void)state;
    refused(ask_api(KEY_A, "POST", "/v3/templates", "{}"), 400, "field 'name' is required");
    refused(ask_api(KEY_A, "POST", "/v3/templates", "{\"name\":\"x:\"}"), 400, "is no tag");
    refused(ask_api(KEY_A, "POST", "/v3/templates", "{\"name\":\"x\",\"memoryMB\":5}"), 400, "memoryMB");
    refused(ask_api(KEY_A, "POST", "/v3/templates", "{\"name\":\"x\",\"tags\":[1]}"), 400, "tags[0]");
    refused(ask_api(KEY_READ, "POST", "/v3/templates", "{\"name\":\"x\"}"), 403, "");
    refused(ask_api(KEY_A, "POST", "/templates", "{\"dockerfile\":\"FROM x\"}"), 400, "POST /v3/templates");
    promise();
    refused(ask_api(KEY_A, "POST", about("/v2/templates/%s/builds/%s"), "{\"steps\":1}"), 400,
            "'steps' must be an array");
    refused(ask_api(KEY_A, "POST", about("/v2/templates/%s/builds/other"), "{}"), 404, "not found");
    refused(ask_api(KEY_B, "POST", about("/v2/templates/%s/builds/%s"), "{}"), 403, "lacks the scope");
}

static void a_started_build_answers_with_an_empty_body(void **state)
{
    (void)state;
    promise();
    struct asked *a = ask_api(KEY_A, "POST", about("/v2/templates/%s/builds/%s"), "{\"fromImage\":\"e2bdev/base\"}");
    assert_int_equal(a->body.n, 0);
    assert_null(answer(a, 202));
}

static void the_status_has_a_page_of_the_log(void **state)
{
    (void)state;
    promise();
    for (int i = 0; i < 130; i++)
        build_log_add(&promised()->log, "1", BUILD_INFO, "line %d", i);
    json_t *j = answer(ask_api(KEY_A, "GET", about("/templates/%s/builds/%s/status?logsOffset=0"), NULL), 200);
    assert_string_equal(json_string_value(json_object_get(j, "status")), "waiting");
    assert_int_equal(json_array_size(json_object_get(j, "logEntries")), 100);
    assert_null(json_object_get(j, "reason"));
    json_decref(j);
    promised()->status = BUILD_FAILED;
    promised()->reason = strdup("it broke");
    (void)snprintf(promised()->reason_step, sizeof promised()->reason_step, "1");
    j = answer(ask_api(KEY_A, "GET", about("/templates/%s/builds/%s/status?logsOffset=100"), NULL), 200);
    const json_t *log = json_object_get(j, "logEntries"), *reason = json_object_get(j, "reason");
    assert_int_equal(json_array_size(log), 30);
    assert_string_equal(json_string_value(json_object_get(json_array_get(log, 0), "message")), "line 100");
    assert_string_equal(json_string_value(json_object_get(j, "status")), "error");
    assert_string_equal(json_string_value(json_object_get(reason, "message")), "it broke");
    assert_string_equal(json_string_value(json_object_get(reason, "step")), "1");
    json_decref(j);
    j = answer(ask_api(KEY_A, "GET", about("/templates/%s/builds/%s/status?logsOffset=130"), NULL), 200);
    assert_int_equal(json_array_size(json_object_get(j, "logEntries")), 0);
    json_decref(j);
    j = answer(ask_api(KEY_A, "GET", about("/templates/%s/builds/%s/logs?limit=5&direction=backward"), NULL), 200);
    log = json_object_get(j, "logs");
    assert_int_equal(json_array_size(log), 5);
    assert_string_equal(json_string_value(json_object_get(json_array_get(log, 0), "message")), "line 129");
    json_decref(j);
    refused(ask_api(KEY_A, "GET", about("/templates/%s/builds/%s/status?logsOffset=x"), NULL), 400, "logsOffset");
}

static void a_build_that_was_interrupted_says_so(void **state)
{
    (void)state;
    promise();
    world_restart_builds();
    json_t *j = answer(ask_api(KEY_A, "GET", about("/templates/%s/builds/%s/status"), NULL), 200);
    assert_string_equal(json_string_value(json_object_get(j, "status")), "error");
    assert_string_equal(json_string_value(json_object_get(json_object_get(j, "reason"), "message")),
                        "interrupted by a restart of the node");
    json_decref(j);
    refused(ask_api(KEY_A, "GET", "/templates/t/builds/99999999-0000-4000-8000-000000000000/status", NULL), 404,
            "not found");
    /* It was not: what it made lies under another id, as the name was taken meanwhile. */
    struct template *t = (struct template *)world_template("other", "x", 0);
    (void)snprintf(t->tags[0].build, sizeof t->tags[0].build, "%s", build);
    j = answer(ask_api(KEY_A, "GET", about("/templates/%s/builds/%s/status"), NULL), 200);
    assert_string_equal(json_string_value(json_object_get(j, "status")), "ready");
    json_decref(j);
}

static void an_upload_needs_an_address_of_ours_and_is_kept(void **state)
{
    (void)state;
    static const char *const plain[] = {"content-type", "application/octet-stream", NULL};
    promise();
    refused(ask_api(KEY_A, "GET", "/templates/other/files/" HASH, NULL), 404, "not found");
    refused(ask_api(KEY_A, "GET", about("/templates/%s/files/xyz"), NULL), 400, "64 hexadecimal digits");
    refused(ask_api(KEY_B, "GET", about("/templates/%s/files/" HASH), NULL), 403, "lacks the scope");
    json_t *j = answer(ask_api(KEY_A, "GET", about("/templates/%s/files/" HASH), NULL), 201);
    assert_true(json_is_false(json_object_get(j, "present")));
    const char *url = json_string_value(json_object_get(j, "url")), *path = strstr(url, "/v1/uploads/");
    assert_non_null(path);
    char good[400], bad[400];
    (void)snprintf(good, sizeof good, "%s", path);
    json_decref(j);
    (void)snprintf(bad, sizeof bad, "%s", good);
    bad[strlen(bad) - 1] = bad[strlen(bad) - 1] == '0' ? '1' : '0';
    refused(ask("PUT", bad, plain, "a tar", 5), 403, "not given by this node");
    refused(ask("PUT", "/v1/uploads/" HASH, plain, "a tar", 5), 403, "not given by this node");
    refused(ask("PUT", good, plain, "no tar", 6), 400, "cannot be used");
    assert_null(answer(ask("PUT", good, plain, "a tar", 5), 200));
    j = answer(ask_api(KEY_A, "GET", about("/templates/%s/files/" HASH), NULL), 201);
    assert_true(json_is_true(json_object_get(j, "present")));
    json_decref(j);
    char large[1200];
    memset(large, 'x', sizeof large);
    refused(ask("PUT", good, plain, large, sizeof large), 413, "1000 bytes");
}

/* Each holds a file until the layer store has taken it in, and the layer store takes one of a tenant at a time. */
static void uploads_that_wait_are_bounded_in_bytes(void **state)
{
    (void)state;
    static const char *const plain[] = {"content-type", "application/octet-stream", NULL},
                             *const sized[] = {"content-length", "501", NULL},
                             *const archive[] = {"content-type", "application/x-tar", "x-api-key", KEY_A, NULL};
    char body[1000], good[400];
    memset(body, 'x', sizeof body);
    world.config->uploads_bytes = 1500;
    promise();
    json_t *j = answer(ask_api(KEY_A, "GET", about("/templates/%s/files/" HASH), NULL), 201);
    (void)snprintf(good, sizeof good, "%s", strstr(json_string_value(json_object_get(j, "url")), "/v1/uploads/"));
    json_decref(j);
    world.layers_holds = true;
    struct asked *first = ask("PUT", good, plain, body, 1000);
    assert_int_equal(world.nheld, 1);
    refused(ask("PUT", good, plain, body, 501), 503, "builds.uploads_bytes");
    refused(ask("PUT", good, sized, body, 0), 503, "builds.uploads_bytes");
    refused(ask("POST", "/v1/templates/import?name=x", archive, body, 501), 503, "builds.uploads_bytes");
    struct asked *second = ask("PUT", good, plain, body, 500);
    assert_int_equal(world.nheld, 2);
    asked_leave(second); /* its file waits on */
    refused(ask("PUT", good, plain, body, 1), 503, "builds.uploads_bytes");
    world_layers_answer();
    assert_null(answer(first, 200));
    asked_free(second);
    world.layers_holds = false;
    use_up_storage(true);
    for (int i = 0; i < 2; i++) /* what an import was refused for leaves nothing */
        json_decref(answer(ask("POST", "/v1/templates/import?name=x", archive, body, 1000), 429));
    assert_null(answer(ask("PUT", good, plain, "a tar", 5), 200));
}

static void keys_that_only_read_get_no_address_to_upload_to(void **state)
{
    (void)state;
    promise();
    json_t *j = answer(ask_api(KEY_READ, "GET", about("/templates/%s/files/" HASH), NULL), 201);
    assert_true(json_is_false(json_object_get(j, "present")));
    assert_null(json_object_get(j, "url"));
    json_decref(j);
    assert_string_equal(world.layers_owner, "a"); /* a tenant that asks for many takes no turn of others */
}

static void quota(struct asked *a)
{
    json_t *j = answer(a, 429);
    assert_string_equal(json_string_value(json_object_get(j, "error_code")), "quota_exceeded");
    json_decref(j);
}

static void builds_and_imports_need_room(void **state)
{
    (void)state;
    static const char *const archive[] = {"content-type", "application/x-tar", "x-api-key", KEY_A, NULL};
    promise();
    use_up_storage(true);
    quota(ask_api(KEY_A, "POST", about("/v2/templates/%s/builds/%s"), "{}"));
    quota(ask("POST", "/v1/templates/import?name=x", archive, "a tar", 5));
    refused(ask("POST", "/v1/templates/import?name=abcdefghij0123456789", archive, "a tar", 5), 400,
            "looks like the id");
    use_up_storage(false);
    world.config->templates_per_tenant = 0;
    quota(ask_api(KEY_A, "POST", "/v3/templates", "{\"name\":\"toomany:v1\"}"));
    quota(ask("POST", "/v1/templates/import?name=toomany", archive, "a tar", 5));
}

static void without_the_scope_only_snapshots_are_removed(void **state)
{
    (void)state;
    ((struct template *)world_template("rowone", "mine", 1))->kind = TEMPLATE_BUILT;
    (void)world_template("rowtwo", "snap", 1);
    refused(ask_api(KEY_B, "DELETE", "/templates/mine", NULL), 403, "lacks the scope templates");
    assert_null(answer(ask_api(KEY_B, "DELETE", "/templates/snap", NULL), 204));
}

/* Built under the name of a snapshot: each is listed, counted and removed as what it is. */
static void a_row_can_be_a_snapshot_and_a_template(void **state)
{
    (void)state;
    static const enum template_kind kinds[] = {TEMPLATE_BUILT, TEMPLATE_SNAPSHOT};
    struct template *t = (struct template *)world_template("rowone", "mine", 1);
    t->kind = TEMPLATE_BUILT;
    t->tags = xreallocarray(t->tags, 2, sizeof *t->tags);
    t->tags[1] = t->tags[0];
    t->ntags = 2;
    (void)snprintf(t->tags[0].tag, sizeof t->tags[0].tag, "v1");
    for (size_t i = 0; i < ARRAY_LEN(kinds); i++) {
        t->tags[i].origin = xcalloc(1, sizeof *t->tags[i].origin);
        t->tags[i].origin->holders = 1;
        t->tags[i].origin->kind = kinds[i];
    }
    json_t *j = answer(ask_api(KEY_B, "GET", "/snapshots", NULL), 200);
    assert_int_equal(json_array_size(j), 1);
    assert_string_equal(json_string_value(json_object_get(json_array_get(j, 0), "snapshotID")), "b/mine:default");
    json_decref(j);
    refused(ask_api(KEY_B, "DELETE", "/templates/mine", NULL), 403, "lacks the scope templates");
    free(t->tags[0].origin);
    t->tags[0] = t->tags[1];
    t->ntags = 1;
    assert_null(answer(ask_api(KEY_B, "DELETE", "/templates/mine%3Adefault", NULL), 204));
}

static void templates_that_are_rows_stand_in_lists(void **state)
{
    (void)state;
    ((struct template *)world_template("rowone", "mine", 0))->kind = TEMPLATE_BUILT;
    json_t *j = answer(ask_api(KEY_A, "GET", "/templates", NULL), 200);
    bool found = false;
    for (size_t i = 0; i < json_array_size(j); i++)
        found |= strcmp(json_string_value(json_object_get(json_array_get(j, i), "templateID")), "rowone") == 0;
    assert_true(found);
    json_decref(j);
    j = answer(ask_api(KEY_A, "GET", "/templates/aliases/mine", NULL), 200);
    assert_string_equal(json_string_value(json_object_get(j, "templateID")), "rowone");
    json_decref(j);
    j = answer(ask_api(KEY_A, "GET", "/templates/mine/tags", NULL), 200);
    assert_string_equal(json_string_value(json_object_get(json_array_get(j, 0), "tag")), "default");
    json_decref(j);
    refused(ask_api(KEY_B, "GET", "/templates/aliases/mine", NULL), 404, "not found");
    refused(ask_api(KEY_A, "POST", "/templates/tags", "{\"target\":\"mine\",\"tags\":[\"a:b\"]}"), 400,
            "must be a tag");
    refused(ask_api(KEY_A, "DELETE", "/templates/tags", "{\"name\":\"mine\",\"tags\":[\"zz\"]}"), 404,
            "has no tag 'zz'");
    refused(ask_api(KEY_B, "PATCH", "/v2/templates/mine", "{\"public\":true}"), 403, "lacks the scope");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_build_is_promised_with_its_names_and_tags, start, world_end),
        cmocka_unit_test_setup_teardown(wrong_requests_are_refused, start, world_end),
        cmocka_unit_test_setup_teardown(a_started_build_answers_with_an_empty_body, start, world_end),
        cmocka_unit_test_setup_teardown(the_status_has_a_page_of_the_log, start, world_end),
        cmocka_unit_test_setup_teardown(a_build_that_was_interrupted_says_so, start, world_end),
        cmocka_unit_test_setup_teardown(an_upload_needs_an_address_of_ours_and_is_kept, start, world_end),
        cmocka_unit_test_setup_teardown(uploads_that_wait_are_bounded_in_bytes, start, world_end),
        cmocka_unit_test_setup_teardown(keys_that_only_read_get_no_address_to_upload_to, start, world_end),
        cmocka_unit_test_setup_teardown(builds_and_imports_need_room, start, world_end),
        cmocka_unit_test_setup_teardown(without_the_scope_only_snapshots_are_removed, start, world_end),
        cmocka_unit_test_setup_teardown(a_row_can_be_a_snapshot_and_a_template, start, world_end),
        cmocka_unit_test_setup_teardown(templates_that_are_rows_stand_in_lists, start, world_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
