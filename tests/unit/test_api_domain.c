/* The routes of both dialects on another table of operations than a node's: that of a made-up orchestrator, which knows
 * sandboxes of several nodes and passes on what names one of them. Nothing of it touches this node's own rooms. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "api-world.h"
#include "api/reply.h"
#include "base/mem.h"

/* What the orchestrator has in place of a node's rooms; routes pass it through without looking inside. */
static struct cluster {
    struct sandbox sandbox[4]; /* not a node's: there is nothing behind them */
    size_t n;
    unsigned next; /* the node of the next one: "i1...", "i2..." */
    char template[72];
    uint32_t timeout_s;
    struct template row;
    struct template_tag tag;
    char secret[32], volume[128];
    char forwarded[2][80]; /* "METHOD path", and the sandbox */
    bool body_untouched;
} cluster;

static struct cluster *cluster_of(void *room)
{
    assert_ptr_equal(room, &cluster);
    return room;
}

struct answer {
    sandbox_created *done;
    void *arg;
};
static void answer_create(void *arg)
{
    struct answer a = *(struct answer *)arg;
    free(arg);
    a.done(a.arg, &cluster.sandbox[cluster.n - 1], NULL);
}
static void cluster_create(struct sandboxes *sb, const struct principal *p, const struct sandbox_spec *spec,
                           sandbox_created *done, void *arg)
{
    struct cluster *c = cluster_of(sb);
    struct sandbox *b = &c->sandbox[c->n++];
    struct answer *a = xcalloc(1, sizeof *a);
    *b = (struct sandbox){.tenant = p->tenant, .state = SANDBOX_RUNNING, .started_unix_ms = 1000 * c->n};
    (void)snprintf(b->id, sizeof b->id, "i%uaaaa", ++c->next);
    (void)snprintf(b->desc.template, sizeof b->desc.template, "%s", spec->desc.template);
    c->timeout_s = spec->desc.timeout_s;
    *a = (struct answer){done, arg};
    loop_defer(world.loop, answer_create, a);
}
static void cluster_each(struct sandboxes *sb, sandbox_each_fn *fn, void *arg)
{
    struct cluster *c = cluster_of(sb);
    for (size_t i = 0; i < c->n; i++)
        fn(arg, &c->sandbox[i]);
}
static struct sandbox *cluster_find(struct sandboxes *sb, const struct principal *p, const char *id)
{
    struct cluster *c = cluster_of(sb);
    for (size_t i = 0; i < c->n; i++)
        if (strcmp(c->sandbox[i].id, id) == 0 && c->sandbox[i].tenant == p->tenant)
            return &c->sandbox[i];
    return NULL;
}
static bool cluster_last_metric(const struct sandbox *b, struct metric *ret)
{
    *ret = (struct metric){.at_unix_ms = b->started_unix_ms, .memory = 77};
    return true;
}
static uint64_t cluster_end(const struct sandbox *b) { return b->started_unix_ms + 60000; }

static bool cluster_have_network(const struct networks *nw)
{
    assert_ptr_equal(nw, &cluster);
    return true;
}

static bool cluster_forward(struct api_call *call, const char *sandbox)
{
    struct http_req *r = call->req;
    if (strncmp(sandbox, "i9", 2) == 0)
        return false; /* nowhere: answered as usual */
    (void)snprintf(cluster.forwarded[0], sizeof cluster.forwarded[0], "%s %s", r->method, r->path);
    (void)snprintf(cluster.forwarded[1], sizeof cluster.forwarded[1], "%s", sandbox);
    cluster.body_untouched = !r->on_data && !r->on_end;
    reply_empty(r, 202);
    return true;
}

static const struct template *cluster_template(struct templates *tp, const struct tenant *t, const char *name,
                                               const struct template_tag **tag)
{
    struct cluster *c = cluster_of(tp);
    (void)t;
    if (strcmp(name, c->row.id) != 0 && strcmp(name, c->row.name) != 0)
        return NULL;
    if (tag)
        *tag = &c->tag;
    return &c->row;
}
static void cluster_templates(struct templates *tp, const struct tenant *t, template_each_fn *fn, void *arg)
{
    (void)t;
    fn(arg, &cluster_of(tp)->row);
}
static bool cluster_directory(struct templates *tp, const char *name, struct template_info *ret)
{
    (void)cluster_of(tp), (void)name, (void)ret;
    return false;
}
static void cluster_directories(struct templates *tp, void (*each)(void *arg, const struct template_info *t), void *arg)
{
    (void)cluster_of(tp), (void)each, (void)arg;
}
static void cluster_remove_secret(struct networks *nw, const char *tenant, const char *name, sealed_done *done,
                                  void *arg)
{
    (void)snprintf(cluster_of(nw)->secret, sizeof cluster.secret, "%s/%s", tenant, name);
    done(arg, NULL);
}
static struct volume *cluster_volume(struct volumes *vs, const struct tenant *t, const char *name)
{
    (void)snprintf(cluster_of(vs)->volume, sizeof cluster.volume, "%s/%s", t->id, name);
    return NULL;
}

static struct api_domain domain;
static struct api own;

static int set_up(void **state)
{
    if (world_start(state) < 0)
        return -1;
    cluster = (struct cluster){.row = {.id = "t1web", .name = "web", .ntags = 1}};
    cluster.row.tags = &cluster.tag;
    cluster.row.tenant = world.tenant[0];
    domain = api_domain_local; /* keys and tenants are this world's */
    domain.forward = cluster_forward;
    domain.sandboxes.create = cluster_create;
    domain.sandboxes.have_network = cluster_have_network;
    domain.sandboxes.each = cluster_each;
    domain.sandboxes.find = cluster_find;
    domain.sandboxes.last_metric = cluster_last_metric;
    domain.sandboxes.end_unix_ms = cluster_end;
    domain.templates.find = cluster_template;
    domain.templates.each = cluster_templates;
    domain.templates.find_directory = cluster_directory;
    domain.templates.each_directory = cluster_directories;
    domain.secrets.remove = cluster_remove_secret;
    domain.volumes.find = cluster_volume;
    own = world.api;
    world.api.domain = &domain;
    world.api.sandboxes = (struct sandboxes *)&cluster;
    world.api.templates = (struct templates *)&cluster;
    world.api.network = (struct networks *)&cluster;
    world.api.volumes = (struct volumes *)&cluster;
    return 0;
}
static int tear_down(void **state)
{
    world.api = own;
    return world_end(state);
}

static json_t *answered(struct asked *a, unsigned status)
{
    asked_end(a);
    if (a->status != status)
        fail_msg("%s: %u %s", a->path, a->status, buf_str(&a->body));
    json_t *root = asked_json(a);
    asked_free(a);
    return root;
}
static void expect_forwarded(struct asked *a, const char *request, const char *sandbox)
{
    json_decref(answered(a, 202));
    assert_string_equal(cluster.forwarded[0], request);
    assert_string_equal(cluster.forwarded[1], sandbox);
    assert_true(cluster.body_untouched);
    cluster.forwarded[0][0] = 0;
}
static const char *text(const json_t *v, const char *key) { return json_string_value(json_object_get(v, key)); }

static void test_both_dialects_create_and_list_through_the_table(void **state)
{
    (void)state;
    json_t *e2b = answered(ask_api(KEY_A, "POST", "/sandboxes", "{\"templateID\":\"web\",\"timeout\":77}"), 201);
    assert_string_equal(text(e2b, "sandboxID"), "i1aaaa");
    assert_string_equal(text(e2b, "alias"), "web");
    assert_int_equal(cluster.timeout_s, 77);
    json_decref(e2b);
    json_t *native = answered(ask_api(KEY_A, "POST", "/v1/sandboxes", "{\"template\":\"web\",\"timeout\":88}"), 201);
    assert_string_equal(text(native, "sandboxID"), "i2aaaa");
    assert_int_equal(cluster.timeout_s, 88);
    json_decref(native);
    json_decref(answered(ask_api(KEY_A, "POST", "/sandboxes", "{\"templateID\":\"other\"}"), 404));
    json_t *list = answered(ask_api(KEY_A, "GET", "/v2/sandboxes", NULL), 200);
    assert_int_equal(json_array_size(list), 2);
    assert_string_equal(text(json_array_get(list, 0), "sandboxID"), "i2aaaa");
    assert_string_equal(text(json_array_get(list, 1), "endAt"), "1970-01-01T00:01:01.000Z");
    json_decref(list);
    list = answered(ask_api(KEY_B, "GET", "/sandboxes", NULL), 200); /* of another tenant */
    assert_int_equal(json_array_size(list), 0);
    json_decref(list);
    json_t *metrics = answered(ask_api(KEY_A, "GET", "/sandboxes/metrics?sandbox_ids=i2aaaa,i9aaaa", NULL), 200);
    assert_int_equal(json_object_size(json_object_get(metrics, "sandboxes")), 1);
    json_decref(metrics);
    assert_int_equal(world.creates, 0); /* of this node's keeper */
}

static void test_what_names_a_sandbox_is_passed_on_whole(void **state)
{
    static const char start[] = "\0\0\0\0\034{\"process\":{\"cmd\":\"true\"}}";
    const struct sandbox far = {.id = "i2aaaa", .token = "secret"};
    (void)state;
    expect_forwarded(ask_api(KEY_A, "DELETE", "/sandboxes/i1aaaa", NULL), "DELETE /sandboxes/i1aaaa", "i1aaaa");
    expect_forwarded(ask_api(KEY_A, "POST", "/sandboxes/i1aaaa-client/timeout", "{\"timeout\":5}"),
                     "POST /sandboxes/i1aaaa-client/timeout", "i1aaaa");
    expect_forwarded(ask_api(KEY_A, "POST", "/v1/sandboxes/i2aaaa/tx", "{\"command\":\"true\"}"),
                     "POST /v1/sandboxes/i2aaaa/tx", "i2aaaa");
    expect_forwarded(
        ask_envd(&far, "POST", "/process.Process/Start", "application/connect+json", start, sizeof start - 1),
        "POST /process.Process/Start", "i2aaaa");
    expect_forwarded(ask_envd(&far, "GET", "/files?path=x", NULL, NULL, 0), "GET /files", "i2aaaa");
    /* Keys and scopes are checked first. */
    json_decref(answered(ask_api(NULL, "DELETE", "/sandboxes/i1aaaa", NULL), 401));
    json_decref(answered(ask_api(KEY_READ, "DELETE", "/sandboxes/i1aaaa", NULL), 403));
    assert_string_equal(cluster.forwarded[0], "");
    assert_null(world.cmd); /* no command reached an init of this node */
}

static void test_what_tenants_keep_is_asked_of_the_table(void **state)
{
    (void)state;
    json_t *list = answered(ask_api(KEY_A, "GET", "/templates", NULL), 200);
    assert_int_equal(json_array_size(list), 1);
    assert_string_equal(text(json_array_get(list, 0), "templateID"), "t1web");
    json_decref(list);
    list = answered(ask_api(KEY_A, "GET", "/v1/templates", NULL), 200);
    assert_non_null(list);
    json_decref(list);
    json_decref(answered(ask_api(KEY_A, "DELETE", "/v1/secrets/GITHUB", NULL), 204));
    assert_string_equal(cluster.secret, "a/GITHUB");
    json_decref(answered(ask_api(KEY_A, "GET", "/volumes/data", NULL), 404)); /* this node has one of that name */
    assert_string_equal(cluster.volume, "a/data");
}

#define T(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
int main(void)
{
    const struct CMUnitTest tests[] = {
        T(test_both_dialects_create_and_list_through_the_table),
        T(test_what_names_a_sandbox_is_passed_on_whole),
        T(test_what_tenants_keep_is_asked_of_the_table),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
