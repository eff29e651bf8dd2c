/* Pause, connect, snapshots, forks and waking as clients see them. */
#include "api-world.h"
#include "peers/layersc.h"
#include "tests/lib/unit.h"

static void expect(const char *method, const char *target, const char *body, unsigned status, const char *text)
{
    struct asked *a = ask_api(KEY_A, method, target, body);
    asked_end(a);
    if (a->status != status || (text && !strstr(buf_str(&a->body), text)))
        fail_msg("%s %s %s: expected %u \"%s\", got %u %s", method, target, body ? body : "", status, text ? text : "",
                 a->status, buf_str(&a->body));
    if (status >= 400) {
        char code[24];
        (void)snprintf(code, sizeof code, "\"code\":%u", status);
        assert_non_null(strstr(buf_str(&a->body), code)); /* clients look there */
    }
    asked_free(a);
}

static void test_pause_connect_and_resume(void **state)
{
    (void)state;
    struct sandbox *b = world_sandbox("i0box", 0, 1000);
    (void)world_sandbox("i0other", 1, 1000);
    expect("POST", "/sandboxes/i0box/pause", "{}", 204, NULL);
    assert_int_equal(b->state, SANDBOX_FROZEN);
    expect("GET", "/sandboxes/i0box", NULL, 200, "\"state\":\"paused\"");
    expect("GET", "/v2/sandboxes?state=running", NULL, 200, "[]");
    expect("GET", "/v2/sandboxes?state=paused", NULL, 200, "i0box");
    expect("GET", "/sandboxes", NULL, 200, "[]");
    expect("POST", "/sandboxes/i0box/timeout", "{\"timeout\":9}", 409, "paused");
    expect("POST", "/v2/sandboxes/i0box/connect", "{}", 201, "i0box");
    assert_int_equal(b->desc.timeout_s, 300);
    expect("POST", "/v2/sandboxes/i0box/connect", "{}", 200, "i0box");
    expect("POST", "/sandboxes/i0box/connect", "{}", 400, "timeout");
    expect("POST", "/sandboxes/i0box/resume", "{}", 409, "running already");
    expect("POST", "/sandboxes/i0box/pause", "{\"memory\":false}", 204, NULL);
    assert_int_equal(b->state, SANDBOX_STORED);
    expect("POST", "/sandboxes/i0box/resume", "{\"timeout\":60,\"autoPause\":true}", 201, "i0box");
    assert_int_equal(b->desc.timeout_s, 60);
    assert_true(b->desc.life.auto_pause);
    expect("POST", "/sandboxes/i0other/pause", "{}", 404, NULL);
    expect("POST", "/sandboxes/i0box/pause", "{\"memory\":1}", 400, "memory");
    world.pause_error = KEEPER_HOST;
    expect("POST", "/sandboxes/i0box/pause", "{}", 501, "because");
    world.pause_error = KEEPER_FAILED;
    expect("POST", "/sandboxes/i0box/pause", NULL, 500, "because");
}

static void test_what_is_being_killed_is_not_connected_to(void **state)
{
    (void)state;
    struct sandbox *b = world_sandbox("i0box", 0, 1000), *other = world_sandbox("i0other", 1, 1000);
    b->state = other->state = SANDBOX_KILLING;
    expect("POST", "/v2/sandboxes/i0box/connect", "{}", 409, "is being killed");
    expect("POST", "/sandboxes/i0box/connect", "{\"timeout\":9}", 409, "is being killed");
    expect("POST", "/sandboxes/i0box/resume", "{}", 409, "is being killed");
    expect("POST", "/v2/sandboxes/i0other/connect", "{}", 404, "doesn't exist");
    expect("POST", "/v2/sandboxes/i0none/connect", "{}", 404, "doesn't exist");
    expect("POST", "/sandboxes/i0box/pause", "{}", 404, "doesn't exist");
    assert_int_equal(world.resumes, 0);
}

static void test_connect_can_ignore_the_memory(void **state)
{
    (void)state;
    struct sandbox *b = world_sandbox("i0box", 0, 1000);
    b->state = SANDBOX_FROZEN;
    expect("POST", "/v2/sandboxes/i0box/connect", "{\"memory\":false}", 201, NULL);
    assert_int_equal(world.captures, 1); /* its files are kept, and it begins anew */
    assert_int_equal(world.creates, 1);
    assert_int_equal(world.resumes, 0);
    expect("POST", "/v2/sandboxes/i0box/connect", "{\"memory\":false}", 200, NULL);
    assert_int_equal(world.captures, 1);
}

static void test_a_create_reads_how_it_ends(void **state)
{
    (void)state;
    expect("POST", "/v2/sandboxes",
           "{\"templateID\":\"base\",\"autoPause\":true,\"autoResume\":{\"enabled\":true},"
           "\"volumeMounts\":[{\"name\":\"data\",\"path\":\"/data\"}]}",
           201, "i0new");
    const struct sandbox *b = world_find("i0new");
    assert_true(b->desc.life.auto_pause && b->desc.life.auto_resume && !b->desc.life.auto_pause_files);
    assert_int_equal(b->desc.nmounts, 1);
    assert_string_equal(b->desc.mounts[0].volume, "vol-1");
    expect("GET", "/sandboxes/i0new", NULL, 200, "\"lifecycle\":{\"autoResume\":true,\"onTimeout\":\"pause\"}");
    expect("POST", "/v2/sandboxes", "{\"templateID\":\"base\",\"autoPauseMemory\":false}", 400, "autoPause");
    expect("POST", "/v2/sandboxes",
           "{\"templateID\":\"base\",\"autoPause\":true,\"autoPauseMemory\":false,\"autoResume\":{\"enabled\":true}}",
           400, "autoResume");
    expect("POST", "/v2/sandboxes", "{\"templateID\":\"base\",\"volumeMounts\":[{\"name\":\"x\",\"path\":\"/x\"}]}",
           404, "volume 'x'");
    expect("POST", "/v2/sandboxes", "{\"templateID\":\"base\",\"volumeMounts\":[{\"name\":\"data\",\"path\":\"x\"}]}",
           400, "volumeMounts[0].path");
    expect("POST", "/v1/sandboxes", "{\"idleTimeout\":30,\"onTimeout\":\"pause-files\",\"autoResume\":false}", 201,
           NULL);
    b = world_find("i0new2");
    assert_true(b->desc.life.auto_pause_files);
    assert_false(b->desc.life.auto_resume);
    assert_int_equal(b->desc.life.idle_s, 30);
    expect("POST", "/v1/sandboxes", "{\"idleTimeout\":30}", 201, NULL);
    assert_true(world_find("i0new3")->desc.life.auto_resume);
    expect("POST", "/v1/sandboxes", "{\"onTimeout\":\"sleep\"}", 400, "onTimeout");
}

static void test_the_life_of_a_sandbox_can_be_changed(void **state)
{
    (void)state;
    struct sandbox *b = world_sandbox("i0box", 0, 1000);
    expect("GET", "/v1/sandboxes/i0box/lifecycle", NULL, 200, "\"onTimeout\":\"kill\"");
    expect("PATCH", "/v1/sandboxes/i0box/lifecycle", "{\"onTimeout\":\"pause\",\"idleTimeout\":60}", 200,
           "\"idleTimeout\":60");
    assert_true(b->desc.life.auto_pause && b->desc.life.auto_resume);
    b->desc.life.auto_pause = false;
    b->desc.life.idle_s = 0;
    (void)world_template("s0", "", 0);
    world.tenant[0]->quota.snapshots = 1;
    expect("PATCH", "/v1/sandboxes/i0box/lifecycle", "{\"onTimeout\":\"pause\"}", 429, "quota_exceeded");
    assert_false(b->desc.life.auto_pause);
    b->state = SANDBOX_FROZEN; /* a paused one has its place among what is kept */
    expect("POST", "/sandboxes/i0box/resume", "{\"autoPause\":true}", 201, "i0box");
    assert_true(b->desc.life.auto_pause);
    world.tenant[0]->quota.snapshots = 0;
    expect("PATCH", "/v1/sandboxes/i0box/lifecycle", "{\"idle\":60}", 400, "idle");
    expect("PATCH", "/v1/sandboxes/i0none/lifecycle", "{}", 404, NULL);
}

static void test_snapshots(void **state)
{
    (void)state;
    (void)world_sandbox("i0box", 0, 1000);
    expect("POST", "/sandboxes/i0box/snapshots", "{}", 201, ":default\",\"names\":[]");
    expect("POST", "/sandboxes/i0box/snapshots", "{\"name\":\"Mine\"}", 201,
           "\"snapshotID\":\"a/mine:default\",\"names\":[\"a/mine:default\"],"
           "\"hutch\":{\"memory\":false,\"frozenUs\":1500,\"bytes\":4096}");
    expect("POST", "/sandboxes/i0box/snapshots", "{\"name\":\"a b\"}", 400, "name");
    expect("POST", "/sandboxes/i0box/snapshots", "{\"name\":\"Abcdefghij0123456789\"}", 400, "looks like the id");
    expect("POST", "/sandboxes/i0box/snapshots", "{\"name\":\"base\"}", 409, "name of a template");
    world.capture_error = LAYERS_FAILED;
    expect("POST", "/sandboxes/i0box/snapshots", "{}", 500, "because");
    expect("GET", "/snapshots?name=a%2Fmine", NULL, 200, "mine");
    expect("GET", "/snapshots?name=nothing", NULL, 200, "[]");
    expect("GET", "/snapshots?sandboxID=i0nobody", NULL, 200, "[]");
    expect("GET", "/snapshots?limit=0", NULL, 400, "limit");
    expect("DELETE", "/templates/a%2Fmine%3Adefault", NULL, 204, NULL);
    expect("DELETE", "/templates/a%2Fmine%3Adefault", NULL, 404, NULL);
    expect("DELETE", "/templates/base", NULL, 403, "is this node's own");
}

static void test_snapshots_are_paged_newest_first(void **state)
{
    (void)state;
    static const char *const ids[] = {"s0", "s1", "s2"};
    for (size_t i = 0; i < ARRAY_LEN(ids); i++)
        (void)world_template(ids[i], "", 0);
    (void)world_template("s9", "", 1);
    struct asked *a = ask_api(KEY_A, "GET", "/snapshots?limit=2", NULL);
    char target[200];
    assert_non_null(strstr(buf_str(&a->body), "s2:default"));
    assert_null(strstr(buf_str(&a->body), "s0:default"));
    (void)snprintf(target, sizeof target, "/snapshots?limit=2&nextToken=%s", asked_field(a, "x-next-token"));
    asked_free(a);
    a = ask_api(KEY_A, "GET", target, NULL);
    assert_non_null(strstr(buf_str(&a->body), "s0:default"));
    assert_null(strstr(buf_str(&a->body), "s1:default"));
    assert_null(asked_field(a, "x-next-token"));
    asked_free(a);
}

static void test_forks_answer_one_by_one(void **state)
{
    (void)state;
    struct sandbox *b = world_sandbox("i0box", 0, 1000);
    world.create_fails = 2;
    world.create_error = KEEPER_CAPACITY;
    struct asked *a = ask_api(KEY_A, "POST", "/sandboxes/i0box/fork", "{\"count\":3,\"timeout\":60}");
    asked_end(a);
    json_t *v = asked_json(a);
    assert_int_equal(a->status, 201);
    assert_int_equal(json_array_size(v), 3);
    assert_non_null(json_object_get(json_object_get(json_array_get(v, 0), "sandbox"), "sandboxID"));
    assert_int_equal(json_integer_value(json_object_get(json_object_get(json_array_get(v, 1), "error"), "code")), 503);
    assert_true(json_is_false(json_object_get(json_object_get(json_array_get(v, 2), "hutch"), "memory")));
    json_decref(v);
    asked_free(a);
    assert_int_equal(world_find("i0new")->desc.timeout_s, 60);
    expect("POST", "/sandboxes/i0box/fork", "{\"count\":2}", 201, "i0new5");
    world.capture_error = LAYERS_FAILED; /* there is nothing to fork from, so there are no children */
    expect("POST", "/sandboxes/i0box/fork", "{\"count\":1}", 500, "because");
    expect("POST", "/sandboxes/i0box/fork", "{\"count\":101}", 400, "count");
    expect("POST", "/sandboxes/i0box/fork", "{\"count\":0}", 400, "count");
    b->state = SANDBOX_FROZEN;
    expect("POST", "/sandboxes/i0box/fork", "{}", 409, "paused");
    expect("POST", "/sandboxes/i0none/fork", "{}", 404, NULL);
}

static void test_traffic_to_a_paused_sandbox_is_answered_as_if_there_were_none(void **state)
{
    (void)state;
    struct sandbox *b = world_sandbox("i0box", 0, 1000);
    b->state = SANDBOX_FROZEN;
    struct asked *a = ask_envd(b, "GET", "/health", NULL, NULL, 0);
    assert_int_equal(a->status, 502);
    assert_non_null(strstr(buf_str(&a->body), "The sandbox was not found"));
    asked_free(a);
    a = ask_envd(b, "GET", "/envs", NULL, NULL, 0);
    assert_int_equal(a->status, 502);
    asked_free(a);
    assert_int_equal(world.resumes, 0);
}

static void test_traffic_wakes_a_sandbox_that_may_be_woken_and_is_served_then(void **state)
{
    (void)state;
    struct sandbox *b = world_sandbox("i0box", 0, 1000);
    const char *wrong[] = {"e2b-sandbox-id", b->id, "e2b-sandbox-port", "49983", "x-access-token", "no", NULL};
    b->desc.life.auto_resume = true;
    b->state = SANDBOX_FROZEN;
    struct asked *a = ask("GET", "/envs", wrong, NULL, 0);
    assert_int_equal(a->status, 502); /* a stranger does not wake it */
    asked_free(a);
    a = ask_envd(b, "GET", "/health", NULL, NULL, 0);
    assert_int_equal(a->status, 502); /* nor does a mere look */
    asked_free(a);
    assert_int_equal(world.resumes, 0);
    a = ask_envd(b, "GET", "/envs", NULL, NULL, 0);
    asked_end(a);
    assert_int_equal(a->status, 200);
    asked_free(a);
    assert_int_equal(world.resumes, 1);
    assert_int_equal(b->users, 0);
    b->state = SANDBOX_FROZEN;
    world.resume_error = KEEPER_FAILED;
    a = ask_envd(b, "GET", "/envs", NULL, NULL, 0);
    asked_end(a);
    assert_int_equal(a->status, 500);
    asked_free(a);
    /* A port of it. */
    const char *port[] = {"e2b-sandbox-id", b->id, "e2b-sandbox-port", "3000", NULL};
    b->state = SANDBOX_FROZEN;
    a = ask("GET", "/", port, NULL, 0);
    asked_end(a);
    assert_int_equal(a->status, 502);
    assert_non_null(strstr(buf_str(&a->body), "port is not open")); /* it runs again; nothing listens */
    asked_free(a);
    b->state = SANDBOX_FROZEN;
    b->desc.allow_public_traffic = false;
    a = ask("GET", "/", port, NULL, 0);
    asked_end(a);
    assert_non_null(strstr(buf_str(&a->body), "not found"));
    asked_free(a);
    assert_int_equal(world.resumes, 3);
}

static void test_a_request_to_a_port_that_a_pause_catches_is_served_after_it(void **state)
{
    (void)state;
    struct sandbox *b = world_sandbox("i0box", 0, 1000);
    const char *port[] = {"e2b-sandbox-id", b->id, "e2b-sandbox-port", "3000", NULL};
    b->desc.life.auto_resume = true;
    world.dial_paused = true;
    struct asked *a = ask("GET", "/", port, NULL, 0);
    asked_end(a);
    assert_int_equal(world.resumes, 1);
    assert_non_null(strstr(buf_str(&a->body), "port is not open")); /* asked once more, when it runs again */
    asked_free(a);
    assert_int_equal(b->users, 0);
    b->desc.life.auto_resume = false;
    world.dial_paused = true;
    a = ask("GET", "/", port, NULL, 0);
    asked_end(a);
    assert_int_equal(world.resumes, 1);
    assert_non_null(strstr(buf_str(&a->body), "not found"));
    asked_free(a);
    assert_int_equal(b->users, 0);
}

static void test_capabilities_say_what_can_be_kept(void **state)
{
    (void)state;
    expect("GET", "/v1/capabilities", NULL, 200, "\"state\":{\"freeze\":null,"); /* unknown until one is tried */
    expect("POST", "/v1/sandboxes", "{}", 201, "i0new");
    expect("POST", "/sandboxes/i0new/pause", "{}", 204, NULL);
    expect("GET", "/v1/capabilities", NULL, 200, "\"state\":{\"freeze\":true,\"driver\":\"tmpfs\",\"quota\":\"size\"");
    expect("GET", "/v1/capabilities", NULL, 200, "\"pause\":true");
}

#define T(name) cmocka_unit_test_setup_teardown(name, world_start, world_end)
int main(void)
{
    const struct CMUnitTest tests[] = {
        T(test_pause_connect_and_resume),
        T(test_what_is_being_killed_is_not_connected_to),
        T(test_connect_can_ignore_the_memory),
        T(test_a_create_reads_how_it_ends),
        T(test_the_life_of_a_sandbox_can_be_changed),
        T(test_snapshots),
        T(test_snapshots_are_paged_newest_first),
        T(test_forks_answer_one_by_one),
        T(test_traffic_to_a_paused_sandbox_is_answered_as_if_there_were_none),
        T(test_traffic_wakes_a_sandbox_that_may_be_woken_and_is_served_then),
        T(test_a_request_to_a_port_that_a_pause_catches_is_served_after_it),
        T(test_capabilities_say_what_can_be_kept),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
