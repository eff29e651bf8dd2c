/* Rows of what outlives a running sandbox, and the way from the schema before. */
#include "store/store.h"

#include <sqlite3.h>

#include "base/cleanup.h"
#include "base/mem.h"
#include "store-world.h"

static const struct store_box a_box = {.id = "i1",
                                       .tenant = "t",
                                       .template = "base",
                                       .token = "",
                                       .traffic_token = "",
                                       .mask_host = "",
                                       .tier = "container",
                                       .degraded = "",
                                       .state = STORE_BOX_STORED,
                                       .flags = STORE_BOX_AUTO_PAUSE | STORE_BOX_AUTO_RESUME | STORE_BOX_HISTORY,
                                       .stack = "st-aaaaaaaa",
                                       .parent = "i0",
                                       .idle_s = 60,
                                       .timeout_s = 300,
                                       .mounts = {{"vol-1", "data", "/data", 1}, {"vol-2", "more", "/m", 0}},
                                       .nmounts = 2,
                                       .config = "{\"user\":\"root\"}",
                                       .state_bytes = 4096};

static void see_box(void *arg, const struct store_box *b)
{
    (*(int *)arg)++;
    assert_int_equal(b->state, STORE_BOX_STORED);
    assert_int_equal(b->flags, STORE_BOX_AUTO_PAUSE | STORE_BOX_AUTO_RESUME | STORE_BOX_HISTORY);
    assert_string_equal(b->stack, "st-aaaaaaaa");
    assert_string_equal(b->parent, "i0");
    assert_int_equal(b->idle_s, 60);
    assert_int_equal(b->timeout_s, 300);
    assert_int_equal(b->state_bytes, 4096);
    assert_string_equal(b->config, "{\"user\":\"root\"}");
    assert_int_equal(b->nmounts, 2);
    assert_string_equal(b->mounts[0].volume, "vol-1");
    assert_string_equal(b->mounts[0].place, "/data");
    assert_int_equal(b->mounts[0].flags, 1);
    assert_string_equal(b->mounts[1].name, "more");
}

static void test_a_stored_box_comes_back_with_all_of_it(void **state)
{
    (void)state;
    struct result r = {0};
    struct err err;
    int n = 0;
    store_box_put(store, &a_box, NULL, done, &r);
    wait_for(&r, 1);
    assert_int_equal(r.failures, 0);
    reopen();
    assert_int_equal(store_boxes(store, see_box, &n, &err), 0);
    assert_int_equal(n, 1);
}

static void see_template(void *arg, const struct store_template *t)
{
    (*(int *)arg)++;
    assert_string_equal(t->name, "web");
    assert_string_equal(t->tenant, "t");
    assert_string_equal(t->config, "{\"start\":\"x\"}");
    assert_int_equal(t->kind, 3);
    assert_int_equal(t->public, 1);
    assert_int_equal(t->tags.n, 8);
    assert_string_equal(t->tags.v[2], "st-aaaaaaaa");
    assert_string_equal(t->tags.v[6], "st-bbbbbbbb");
    assert_int_equal(t->spawned, 7);
    assert_int_equal(t->bytes, 99);
}

static void test_templates_with_their_tags_come_back(void **state)
{
    (void)state;
    static const char *const tags[] = {"default", "b2", "st-aaaaaaaa", "2", "v1", "b1", "st-bbbbbbbb", "1"};
    struct store_template t = {.id = "tmpl1",
                               .name = "web",
                               .tenant = "t",
                               .source = "",
                               .config = "{\"start\":\"x\"}",
                               .kind = 3,
                               .public = 1,
                               .spawned = 7,
                               .bytes = 99};
    struct result r = {0};
    struct err err;
    int n = 0;
    for (size_t i = 0; i < ARRAY_LEN(tags); i++)
        strv_add(&t.tags, tags[i]);
    store_template_put(store, &t, done, &r);
    store_template_put(store, &t, done, &r);
    wait_for(&r, 2);
    strv_done(&t.tags);
    reopen();
    assert_int_equal(store_templates(store, see_template, &n, &err), 0);
    assert_int_equal(n, 1);
    store_template_del(store, "tmpl1", done, &r);
    wait_for(&r, 3);
    assert_int_equal(store_templates(store, see_template, &n, &err), 0);
    assert_int_equal(n, 1);
}

static void count_generation(void *arg, const struct store_generation *g)
{
    int *n = arg;
    assert_int_equal(g->number, ++*n);
}
static void count_step(void *arg, const struct store_step *x)
{
    (void)x;
    ++*(int *)arg;
}

static void test_generations_go_with_their_box_and_steps_with_their_tenant(void **state)
{
    (void)state;
    struct result r = {0};
    struct err err;
    int n = 0, steps = 0;
    struct store_tenant t = {.id = "t", .name = "t"};
    struct store_step x = {.tenant = "t", .key = "ab", .stack = "st-cccccccc", .used_unix = 1};
    store_tenant_put(store, &t, done, &r);
    store_box_put(store, &a_box, NULL, done, &r);
    for (uint64_t i = 2; i > 0; i--) {
        struct store_generation g = {.sandbox = "i1", .stack = "st-dddddddd", .command = "make", .number = i};
        store_generation_put(store, &g, done, &r);
    }
    store_step_put(store, &x, done, &r);
    wait_for(&r, 5);
    assert_int_equal(r.failures, 0);
    assert_int_equal(store_generations(store, count_generation, &n, &err), 0);
    assert_int_equal(n, 2);
    assert_true(store_stack_named(store, "st-aaaaaaaa"));
    assert_true(store_stack_named(store, "st-cccccccc"));
    assert_true(store_stack_named(store, "st-dddddddd"));
    assert_false(store_stack_named(store, "st-eeeeeeee"));
    store_box_put(store, &a_box, NULL, done, &r); /* a box that is written again is not one that goes */
    wait_for(&r, 6);
    n = 0;
    assert_int_equal(store_generations(store, count_generation, &n, &err), 0);
    assert_int_equal(n, 2);
    store_box_del(store, "i1", done, &r);
    store_tenant_del(store, "t", done, &r);
    store_barrier(store, done, &r);
    wait_for(&r, 9);
    n = 0;
    assert_int_equal(store_generations(store, count_generation, &n, &err), 0);
    assert_int_equal(store_steps(store, count_step, &steps, &err), 0);
    assert_int_equal(n + steps, 0);
    assert_false(store_stack_named(store, "st-dddddddd"));
}

static void see_volume(void *arg, const struct store_volume *v)
{
    ++*(int *)arg;
    assert_string_equal(v->token, "tok");
    assert_int_equal(v->bytes, 10);
}

static void test_a_volume_is_found_by_its_tenants_name_for_it(void **state)
{
    (void)state;
    struct result r = {0};
    struct err err;
    char id[40] = "";
    int n = 0;
    struct store_volume v = {.id = "vol-1", .name = "data", .tenant = "t", .token = "tok", .bytes = 10};
    store_volume_put(store, &v, done, &r);
    v.id = "vol-2";
    store_volume_put(store, &v, done, &r); /* the same name again */
    wait_for(&r, 2);
    assert_int_equal(r.failures, 1);
    assert_true(store_volume_find(store, "t", "data", id, sizeof id));
    assert_string_equal(id, "vol-1");
    assert_false(store_volume_find(store, "u", "data", id, sizeof id));
    assert_int_equal(store_volumes(store, see_volume, &n, &err), 0);
    assert_int_equal(n, 1);
    store_volume_del(store, "vol-1", done, &r);
    wait_for(&r, 3);
    assert_false(store_volume_find(store, "t", "data", id, sizeof id));
}

static void see_quota(void *arg, const struct store_tenant *t)
{
    ++*(int *)arg;
    assert_int_equal(t->snapshots, 5);
    assert_int_equal(t->state_bytes, 1 << 20);
    assert_int_equal(t->state_entries, 99);
}

static void test_a_tenants_quota_of_what_it_keeps_comes_back(void **state)
{
    (void)state;
    struct result r = {0};
    struct err err;
    int n = 0;
    struct store_tenant t = {.id = "t", .name = "t", .snapshots = 5, .state_bytes = 1 << 20, .state_entries = 99};
    store_tenant_put(store, &t, done, &r);
    wait_for(&r, 1);
    reopen();
    assert_int_equal(store_tenants(store, see_quota, &n, &err), 0);
    assert_int_equal(n, 1);
}

/* --- counters ----------------------------------------------------------------------------------------------------- */

static void list_usage(void *arg, const char *tenant, const char *sandbox, const char *counters)
{
    buf_addf(arg, "%s/%s=%s;", tenant, sandbox, counters);
}
static void expect_usage(const char *wanted)
{
    struct err err;
    _cleanup_buf_ struct buf got = {0};
    if (store_usages(store, list_usage, &got, &err) < 0)
        fail_msg("%s", err.msg);
    assert_string_equal(buf_str(&got), wanted);
}

static void test_counters_go_with_their_sandbox_and_with_their_tenant(void **state)
{
    (void)state;
    struct result r = {0};
    struct store_tenant t = {.id = "acme", .name = "acme"};
    struct store_box b = a_box;
    b.tenant = "acme";
    store_tenant_put(store, &t, done, &r);
    store_box_put(store, &b, NULL, done, &r);
    store_usage_put(store, "acme", "", "{\"requests\":1}", done, &r);
    store_usage_put(store, "acme", b.id, "{\"requests\":1}", done, &r);
    store_usage_put(store, "acme", "", "{\"requests\":2}", done, &r);
    store_usage_put(store, "acme", "cut-short", "{}", done, &r);
    store_usage_put(store, "removed", "", "{}", done, &r);
    store_usage_sweep(store); /* of the one the create did not come through, the other is no tenant any more */
    store_barrier(store, done, &r);
    wait_for(&r, 8);
    assert_int_equal(r.failures, 0);
    _cleanup_free_ char *both = xasprintf("acme/={\"requests\":2};acme/%s={\"requests\":1};", b.id);
    store_close(store);
    open_it();
    expect_usage(both);
    store_box_del(store, b.id, done, &r);
    wait_for(&r, 9);
    expect_usage("acme/={\"requests\":2};");
    store_tenant_del(store, "acme", done, &r);
    wait_for(&r, 10);
    expect_usage("");
}

static void see_transaction(void *arg, const struct store_transaction *t)
{
    ++*(int *)arg;
    assert_string_equal(t->id, "tx-1");
    assert_string_equal(t->sandbox, a_box.id);
    assert_string_equal(t->result, "st-bbbbbbbb");
    assert_int_equal(t->state, STORE_TRANSACTION_COMMITTING);
    assert_int_equal(t->code, -1);
    assert_int_equal(t->nout, 3);
    assert_memory_equal(t->out, "a\0b", 3);
    assert_int_equal(t->nerr, 0);
}

static void test_transactions_come_back_and_go_with_their_box(void **state)
{
    (void)state;
    struct result r = {0};
    struct err err;
    int n = 0;
    struct store_transaction t = {.id = "tx-1",
                                  .sandbox = a_box.id,
                                  .tenant = "t",
                                  .base = "st-aaaaaaaa",
                                  .result = "st-bbbbbbbb",
                                  .command = "make",
                                  .state = STORE_TRANSACTION_OPEN,
                                  .code = -1,
                                  .out = "a\0b",
                                  .nout = 3};
    store_box_put(store, &a_box, NULL, done, &r);
    store_transaction_put(store, &t, done, &r);
    t.state = STORE_TRANSACTION_COMMITTING;
    t.nout = 0; /* put again, only its state is changed */
    store_transaction_put(store, &t, done, &r);
    wait_for(&r, 3);
    assert_int_equal(r.failures, 0);
    reopen();
    assert_int_equal(store_transactions(store, see_transaction, &n, &err), 0);
    assert_int_equal(n, 1);
    store_box_del(store, a_box.id, done, &r);
    wait_for(&r, 4);
    n = 0;
    assert_int_equal(store_transactions(store, see_transaction, &n, &err), 0);
    assert_int_equal(n, 0);
}

/* A store as the schemas before left it: this one, with what came since taken out again. */
static const char back_to_7[] = "ALTER TABLE tenants DROP COLUMN state_entries; PRAGMA user_version=7;";
static const char back_to_6[] = "ALTER TABLE networks DROP COLUMN proxy_password; PRAGMA user_version=6;";
static const char back_to_5[] = "DROP TRIGGER box_gone_transactions; DROP TABLE transactions; PRAGMA user_version=5;";
static const char back_to_4[] = "DROP TRIGGER box_gone_usage; DROP TRIGGER tenant_gone_usage; DROP TABLE usage;"
                                "PRAGMA user_version=4;";
static const char back_to_3[] =
    "DROP TRIGGER tenant_gone; DROP TRIGGER box_gone_generations; DROP TABLE templates; DROP TABLE volumes;"
    "DROP TABLE generations; DROP TABLE steps; DROP INDEX boxes_stack;"
    "ALTER TABLE boxes DROP COLUMN stack; ALTER TABLE boxes DROP COLUMN parent; ALTER TABLE boxes DROP COLUMN idle;"
    "ALTER TABLE boxes DROP COLUMN timeout; ALTER TABLE boxes DROP COLUMN mounts; ALTER TABLE boxes DROP COLUMN config;"
    "ALTER TABLE boxes DROP COLUMN state_bytes; ALTER TABLE tenants DROP COLUMN snapshots;"
    "ALTER TABLE tenants DROP COLUMN state_bytes;"
    "INSERT INTO tenants VALUES('old','old',1,2,3,4,5,6,7);"
    "INSERT INTO boxes VALUES('i9','old','base','tok','','','container','',1,3,x'',x'',x'',10,20,1,2,3,4,x'',0);"
    "PRAGMA user_version=3;";

static void see_old_box(void *arg, const struct store_box *b)
{
    ++*(int *)arg;
    assert_string_equal(b->id, "i9");
    assert_string_equal(b->token, "tok");
    assert_int_equal(b->state, STORE_BOX_RUNNING);
    assert_int_equal(b->end_unix_ms, 20);
    assert_string_equal(b->stack, "");
    assert_string_equal(b->config, "");
    assert_int_equal(b->nmounts, 0);
}
static void see_old_tenant(void *arg, const struct store_tenant *t)
{
    ++*(int *)arg;
    assert_int_equal(t->max_timeout_s, 7);
    assert_int_equal(t->snapshots, 0);
}

static void go_back(const char *const *steps, size_t n)
{
    sqlite3 *db = NULL;
    char *why = NULL;
    store_close(store);
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    for (size_t i = 0; i < n; i++)
        if (sqlite3_exec(db, steps[i], NULL, NULL, &why) != SQLITE_OK)
            fail_msg("%s", why);
    (void)sqlite3_close(db);
    open_it();
}

static void see_net(void *arg, const struct store_net *n)
{
    ++*(int *)arg;
    assert_string_equal(n->document, "{}");
    assert_string_equal(n->proxy_password, "");
}

static void test_a_store_of_schema_6_is_taken_along(void **state)
{
    (void)state;
    struct err err;
    struct result r = {0};
    int nets = 0;
    struct store_net n = {.sandbox = a_box.id, .epoch = 1, .document = "{}", .proxy_password = "sealed"};
    store_net_put(store, &n, done, &r);
    wait_for(&r, 1);
    go_back((const char *const[]){back_to_7, back_to_6}, 2);
    assert_int_equal(store_nets(store, see_net, &nets, &err), 0);
    assert_int_equal(nets, 1);
}

static void count_box(void *arg, const struct store_box *b)
{
    ++*(int *)arg;
    assert_string_equal(b->id, a_box.id);
}

static void test_a_store_of_schema_4_is_taken_along(void **state)
{
    (void)state;
    struct err err;
    struct result r = {0};
    int boxes = 0;
    store_box_put(store, &a_box, NULL, done, &r);
    wait_for(&r, 1);
    go_back((const char *const[]){back_to_7, back_to_6, back_to_5, back_to_4}, 4);
    expect_usage("");
    assert_int_equal(store_boxes(store, count_box, &boxes, &err), 0);
    assert_int_equal(boxes, 1);
    store_usage_put(store, a_box.tenant, a_box.id, "{}", done, &r);
    store_box_del(store, a_box.id, done, &r);
    wait_for(&r, 3);
    assert_int_equal(r.failures, 0);
    expect_usage("");
}

static void test_a_store_of_schema_3_is_taken_along(void **state)
{
    (void)state;
    struct err err;
    struct result r = {0};
    int boxes = 0, tenants = 0;
    go_back((const char *const[]){back_to_7, back_to_6, back_to_5, back_to_4, back_to_3}, 5);
    assert_int_equal(store_boxes(store, see_old_box, &boxes, &err), 0);
    assert_int_equal(store_tenants(store, see_old_tenant, &tenants, &err), 0);
    assert_int_equal(boxes, 1);
    assert_int_equal(tenants, 1);
    store_box_put(store, &a_box, NULL, done, &r);
    wait_for(&r, 1);
    assert_int_equal(r.failures, 0);
}

#define T(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
int main(void)
{
    const struct CMUnitTest tests[] = {
        T(test_a_stored_box_comes_back_with_all_of_it),
        T(test_templates_with_their_tags_come_back),
        T(test_generations_go_with_their_box_and_steps_with_their_tenant),
        T(test_a_volume_is_found_by_its_tenants_name_for_it),
        T(test_a_tenants_quota_of_what_it_keeps_comes_back),
        T(test_counters_go_with_their_sandbox_and_with_their_tenant),
        T(test_a_store_of_schema_6_is_taken_along),
        T(test_a_store_of_schema_4_is_taken_along),
        T(test_transactions_come_back_and_go_with_their_box),
        T(test_a_store_of_schema_3_is_taken_along),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
