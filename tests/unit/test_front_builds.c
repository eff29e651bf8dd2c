/* Template builds over HTTP, in a made-up world. */
#include <fcntl.h>
#include <unistd.h>

#include "front-world.h"
#include "tests/lib/unit.h"

void world_builds_log(const char *text);
void world_builds_fail(const char *reason);
void world_builds_end(void);
void world_stock_answer(void);

#define BUILD "11111111-2222-4333-8444-555555555555"
#define HASH  "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"

static int dir = -1;

static int start(void **state)
{
    int rc = world_start(state);
    world.front.stock = (struct stockc *)&world;
    world.config.build_upload_max = 1000;
    world.front.own_dir = dir = open("/tmp", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    return rc;
}
static int end(void **state)
{
    world_builds_end();
    (void)close(dir);
    return world_end(state);
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
static void promise(void) { json_decref(answer(ask_api(KEY_A, "POST", "/v3/templates", "{\"name\":\"x:v1\"}"), 202)); }

static void a_build_is_promised_with_its_names_and_tags(void **state)
{
    (void)state;
    json_t *j =
        answer(ask_api(KEY_A, "POST", "/v3/templates", "{\"name\":\"My-T:v1\",\"cpuCount\":2,\"memoryMB\":512}"), 202);
    assert_string_equal(json_string_value(json_object_get(j, "templateID")), "tmplone");
    assert_string_equal(json_string_value(json_object_get(j, "buildID")), BUILD);
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
    refused(ask_api(KEY_A, "POST", "/v2/templates/tmplone/builds/" BUILD, "{\"steps\":1}"), 400,
            "'steps' must be an array");
    refused(ask_api(KEY_A, "POST", "/v2/templates/tmplone/builds/other", "{}"), 404, "not found");
    refused(ask_api(KEY_B, "POST", "/v2/templates/tmplone/builds/" BUILD, "{}"), 403, "lacks the scope");
}

static void a_started_build_answers_with_an_empty_body(void **state)
{
    (void)state;
    promise();
    struct asked *a = ask_api(KEY_A, "POST", "/v2/templates/tmplone/builds/" BUILD, "{\"fromImage\":\"e2bdev/base\"}");
    assert_int_equal(a->body.n, 0);
    assert_null(answer(a, 202));
}

static void the_status_has_a_page_of_the_log(void **state)
{
    (void)state;
    promise();
    for (int i = 0; i < 130; i++) {
        char text[16];
        (void)snprintf(text, sizeof text, "line %d", i);
        world_builds_log(text);
    }
    json_t *j = answer(ask_api(KEY_A, "GET", "/templates/tmplone/builds/" BUILD "/status?logsOffset=0", NULL), 200);
    assert_string_equal(json_string_value(json_object_get(j, "status")), "waiting");
    assert_int_equal(json_array_size(json_object_get(j, "logEntries")), 100);
    assert_null(json_object_get(j, "reason"));
    json_decref(j);
    world_builds_fail("it broke");
    j = answer(ask_api(KEY_A, "GET", "/templates/tmplone/builds/" BUILD "/status?logsOffset=100", NULL), 200);
    const json_t *log = json_object_get(j, "logEntries"), *reason = json_object_get(j, "reason");
    assert_int_equal(json_array_size(log), 30);
    assert_string_equal(json_string_value(json_object_get(json_array_get(log, 0), "message")), "line 100");
    assert_string_equal(json_string_value(json_object_get(j, "status")), "error");
    assert_string_equal(json_string_value(json_object_get(reason, "message")), "it broke");
    assert_string_equal(json_string_value(json_object_get(reason, "step")), "1");
    json_decref(j);
    j = answer(ask_api(KEY_A, "GET", "/templates/tmplone/builds/" BUILD "/status?logsOffset=130", NULL), 200);
    assert_int_equal(json_array_size(json_object_get(j, "logEntries")), 0);
    json_decref(j);
    j = answer(ask_api(KEY_A, "GET", "/templates/tmplone/builds/" BUILD "/logs?limit=5&direction=backward", NULL), 200);
    log = json_object_get(j, "logs");
    assert_int_equal(json_array_size(log), 5);
    assert_string_equal(json_string_value(json_object_get(json_array_get(log, 0), "message")), "line 129");
    json_decref(j);
    refused(ask_api(KEY_A, "GET", "/templates/tmplone/builds/" BUILD "/status?logsOffset=x", NULL), 400, "logsOffset");
}

static void a_build_that_was_interrupted_says_so(void **state)
{
    (void)state;
    json_t *j =
        answer(ask_api(KEY_A, "GET", "/templates/t/builds/00000000-0000-4000-8000-000000000000/status", NULL), 200);
    assert_string_equal(json_string_value(json_object_get(j, "status")), "error");
    assert_string_equal(json_string_value(json_object_get(json_object_get(j, "reason"), "message")),
                        "interrupted by a restart of the node");
    json_decref(j);
    refused(ask_api(KEY_A, "GET", "/templates/t/builds/99999999-0000-4000-8000-000000000000/status", NULL), 404,
            "not found");
    /* It was not: what it made lies under another id, as the name was taken meanwhile. */
    struct tmpl *t = (struct tmpl *)world_tmpl("other", "x", 0);
    (void)snprintf(t->tags[0].build, sizeof t->tags[0].build, "00000000-0000-4000-8000-000000000000");
    j = answer(ask_api(KEY_A, "GET", "/templates/t/builds/00000000-0000-4000-8000-000000000000/status", NULL), 200);
    assert_string_equal(json_string_value(json_object_get(j, "status")), "ready");
    json_decref(j);
}

static void an_upload_needs_an_address_of_ours_and_is_kept(void **state)
{
    (void)state;
    static const char *const plain[] = {"content-type", "application/octet-stream", NULL};
    promise();
    refused(ask_api(KEY_A, "GET", "/templates/other/files/" HASH, NULL), 404, "not found");
    refused(ask_api(KEY_A, "GET", "/templates/tmplone/files/xyz", NULL), 400, "64 hexadecimal digits");
    refused(ask_api(KEY_B, "GET", "/templates/tmplone/files/" HASH, NULL), 403, "lacks the scope");
    json_t *j = answer(ask_api(KEY_A, "GET", "/templates/tmplone/files/" HASH, NULL), 201);
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
    refused(ask("PUT", good, plain, "no tar", 6), 503, "cannot be used");
    assert_null(answer(ask("PUT", good, plain, "a tar", 5), 200));
    j = answer(ask_api(KEY_A, "GET", "/templates/tmplone/files/" HASH, NULL), 201);
    assert_true(json_is_true(json_object_get(j, "present")));
    json_decref(j);
    char large[1200];
    memset(large, 'x', sizeof large);
    refused(ask("PUT", good, plain, large, sizeof large), 413, "1000 bytes");
}

/* Each holds a file until stock has taken it in, and stock takes one of a tenant at a time. */
static void uploads_that_wait_are_bounded_in_bytes(void **state)
{
    (void)state;
    static const char *const plain[] = {"content-type", "application/octet-stream", NULL},
                             *const sized[] = {"content-length", "501", NULL},
                             *const archive[] = {"content-type", "application/x-tar", "x-api-key", KEY_A, NULL};
    char body[1000], good[400];
    memset(body, 'x', sizeof body);
    world.config.uploads_bytes = 1500;
    promise();
    json_t *j = answer(ask_api(KEY_A, "GET", "/templates/tmplone/files/" HASH, NULL), 201);
    (void)snprintf(good, sizeof good, "%s", strstr(json_string_value(json_object_get(j, "url")), "/v1/uploads/"));
    json_decref(j);
    world.stock_holds = true;
    struct asked *first = ask("PUT", good, plain, body, 1000);
    assert_int_equal(world.nheld, 1);
    refused(ask("PUT", good, plain, body, 501), 503, "builds.uploads_bytes");
    refused(ask("PUT", good, sized, body, 0), 503, "builds.uploads_bytes");
    refused(ask("POST", "/v1/templates/import?name=x", archive, body, 501), 503, "builds.uploads_bytes");
    struct asked *second = ask("PUT", good, plain, body, 500);
    assert_int_equal(world.nheld, 2);
    asked_leave(second); /* its file waits on */
    refused(ask("PUT", good, plain, body, 1), 503, "builds.uploads_bytes");
    world_stock_answer();
    assert_null(answer(first, 200));
    asked_free(second);
    world.stock_holds = false;
    for (int i = 0; i < 2; i++) { /* what an import was refused for leaves nothing */
        world.state_status = 429;
        json_decref(answer(ask("POST", "/v1/templates/import?name=x", archive, body, 1000), 429));
    }
    assert_null(answer(ask("PUT", good, plain, "a tar", 5), 200));
}

static void keys_that_only_read_get_no_address_to_upload_to(void **state)
{
    (void)state;
    promise();
    json_t *j = answer(ask_api(KEY_READ, "GET", "/templates/tmplone/files/" HASH, NULL), 201);
    assert_true(json_is_false(json_object_get(j, "present")));
    assert_null(json_object_get(j, "url"));
    json_decref(j);
    assert_string_equal(world.stock_owner, "a"); /* a tenant that asks for many takes no turn of others */
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
    world.state_status = 429;
    quota(ask_api(KEY_A, "POST", "/v2/templates/tmplone/builds/" BUILD, "{}"));
    world.state_status = 429;
    quota(ask("POST", "/v1/templates/import?name=x", archive, "a tar", 5));
    refused(ask("POST", "/v1/templates/import?name=abcdefghij0123456789", archive, "a tar", 5), 400,
            "looks like the id");
    quota(ask_api(KEY_A, "POST", "/v3/templates", "{\"name\":\"toomany:v1\"}"));
    quota(ask("POST", "/v1/templates/import?name=toomany", archive, "a tar", 5));
}

static void without_the_scope_only_snapshots_are_removed(void **state)
{
    (void)state;
    ((struct tmpl *)world_tmpl("rowone", "mine", 1))->kind = TMPL_BUILT;
    (void)world_tmpl("rowtwo", "snap", 1);
    refused(ask_api(KEY_B, "DELETE", "/templates/mine", NULL), 403, "lacks the scope templates");
    assert_null(answer(ask_api(KEY_B, "DELETE", "/templates/snap", NULL), 204));
}

/* Built under the name of a snapshot: each is listed, counted and removed as what it is. */
static void a_row_can_be_a_snapshot_and_a_template(void **state)
{
    (void)state;
    static struct tmpl_origin origin[] = {{.kind = TMPL_BUILT}, {.kind = TMPL_SNAPSHOT}};
    static struct tmpl_tag tags[] = {{.tag = "v1", .origin = &origin[0]}, {.tag = "default", .origin = &origin[1]}};
    struct tmpl *t = (struct tmpl *)world_tmpl("rowone", "mine", 1);
    t->kind = TMPL_BUILT;
    t->tags = tags;
    t->ntags = 2;
    json_t *j = answer(ask_api(KEY_B, "GET", "/snapshots", NULL), 200);
    assert_int_equal(json_array_size(j), 1);
    assert_string_equal(json_string_value(json_object_get(json_array_get(j, 0), "snapshotID")), "b/mine:default");
    json_decref(j);
    refused(ask_api(KEY_B, "DELETE", "/templates/mine", NULL), 403, "lacks the scope templates");
    t->tags = &tags[1];
    t->ntags = 1;
    assert_null(answer(ask_api(KEY_B, "DELETE", "/templates/mine%3Adefault", NULL), 204));
}

static void templates_that_are_rows_stand_in_lists(void **state)
{
    (void)state;
    ((struct tmpl *)world_tmpl("rowone", "mine", 0))->kind = TMPL_BUILT;
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
        cmocka_unit_test_setup_teardown(a_build_is_promised_with_its_names_and_tags, start, end),
        cmocka_unit_test_setup_teardown(wrong_requests_are_refused, start, end),
        cmocka_unit_test_setup_teardown(a_started_build_answers_with_an_empty_body, start, end),
        cmocka_unit_test_setup_teardown(the_status_has_a_page_of_the_log, start, end),
        cmocka_unit_test_setup_teardown(a_build_that_was_interrupted_says_so, start, end),
        cmocka_unit_test_setup_teardown(an_upload_needs_an_address_of_ours_and_is_kept, start, end),
        cmocka_unit_test_setup_teardown(uploads_that_wait_are_bounded_in_bytes, start, end),
        cmocka_unit_test_setup_teardown(keys_that_only_read_get_no_address_to_upload_to, start, end),
        cmocka_unit_test_setup_teardown(builds_and_imports_need_room, start, end),
        cmocka_unit_test_setup_teardown(without_the_scope_only_snapshots_are_removed, start, end),
        cmocka_unit_test_setup_teardown(a_row_can_be_a_snapshot_and_a_template, start, end),
        cmocka_unit_test_setup_teardown(templates_that_are_rows_stand_in_lists, start, end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
