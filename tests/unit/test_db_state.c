/* Rows of what outlives a running sandbox, and the way from the schema before. */
#include "db/db.h"

#include <sqlite3.h>

#include "base/cleanup.h"
#include "base/mem.h"
#include "db-world.h"
#include "sandboxes/sandboxes-int.h"

static const struct db_sandbox a_sandbox = {.id = "i1",
                                            .tenant = "t",
                                            .template = "base",
                                            .token = "",
                                            .traffic_token = "",
                                            .mask_host = "",
                                            .tier = "container",
                                            .degraded = "",
                                            .state = DB_SANDBOX_STORED,
                                            .flags =
                                                DB_SANDBOX_AUTO_PAUSE | DB_SANDBOX_AUTO_RESUME | DB_SANDBOX_HISTORY,
                                            .stack = "st-aaaaaaaa",
                                            .parent = "i0",
                                            .idle_s = 60,
                                            .timeout_s = 300,
                                            .mounts = {{"vol-1", "data", "/data", 1}, {"vol-2", "more", "/m", 0}},
                                            .nmounts = 2,
                                            .config = "{\"user\":\"root\"}",
                                            .state_bytes = 4096,
                                            .more = "{\"image\":\"docker.io/library/ubuntu:22.04\"}"};

static void see_sandbox(void *arg, const struct db_sandbox *b)
{
    (*(int *)arg)++;
    assert_int_equal(b->state, DB_SANDBOX_STORED);
    assert_int_equal(b->flags, DB_SANDBOX_AUTO_PAUSE | DB_SANDBOX_AUTO_RESUME | DB_SANDBOX_HISTORY);
    assert_string_equal(b->stack, "st-aaaaaaaa");
    assert_string_equal(b->parent, "i0");
    assert_int_equal(b->idle_s, 60);
    assert_int_equal(b->timeout_s, 300);
    assert_int_equal(b->state_bytes, 4096);
    assert_string_equal(b->more, a_sandbox.more);
    assert_string_equal(b->config, "{\"user\":\"root\"}");
    assert_int_equal(b->nmounts, 2);
    assert_string_equal(b->mounts[0].volume, "vol-1");
    assert_string_equal(b->mounts[0].place, "/data");
    assert_int_equal(b->mounts[0].flags, 1);
    assert_string_equal(b->mounts[1].name, "more");
}

static void test_a_stored_sandbox_comes_back_with_all_of_it(void **state)
{
    (void)state;
    struct result r = {0};
    struct err err;
    int n = 0;
    db_sandbox_put(db, &a_sandbox, NULL, done, &r);
    wait_for(&r, 1);
    assert_int_equal(r.failures, 0);
    reopen();
    assert_int_equal(db_sandboxes(db, see_sandbox, &n, &err), 0);
    assert_int_equal(n, 1);
}

static void see_template(void *arg, const struct db_template *t)
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
    struct db_template t = {.id = "tmpl1",
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
    db_template_put(db, &t, done, &r);
    db_template_put(db, &t, done, &r);
    wait_for(&r, 2);
    strv_done(&t.tags);
    reopen();
    assert_int_equal(db_templates(db, see_template, &n, &err), 0);
    assert_int_equal(n, 1);
    db_template_del(db, "tmpl1", done, &r);
    wait_for(&r, 3);
    assert_int_equal(db_templates(db, see_template, &n, &err), 0);
    assert_int_equal(n, 1);
}

static void count_generation(void *arg, const struct db_generation *g)
{
    int *n = arg;
    assert_int_equal(g->number, ++*n);
}
static void count_step(void *arg, const struct db_step *x)
{
    (void)x;
    ++*(int *)arg;
}

static void test_generations_go_with_their_sandbox_and_steps_with_their_tenant(void **state)
{
    (void)state;
    struct result r = {0};
    struct err err;
    int n = 0, steps = 0;
    struct db_tenant t = {.id = "t", .name = "t"};
    struct db_step x = {.tenant = "t", .key = "ab", .stack = "st-cccccccc", .used_unix = 1};
    db_tenant_put(db, &t, done, &r);
    db_sandbox_put(db, &a_sandbox, NULL, done, &r);
    for (uint64_t i = 2; i > 0; i--) {
        struct db_generation g = {.sandbox = "i1", .stack = "st-dddddddd", .command = "make", .number = i};
        db_generation_put(db, &g, done, &r);
    }
    db_step_put(db, &x, done, &r);
    wait_for(&r, 5);
    assert_int_equal(r.failures, 0);
    assert_int_equal(db_generations(db, count_generation, &n, &err), 0);
    assert_int_equal(n, 2);
    assert_true(db_stack_named(db, "st-aaaaaaaa"));
    assert_true(db_stack_named(db, "st-cccccccc"));
    assert_true(db_stack_named(db, "st-dddddddd"));
    assert_false(db_stack_named(db, "st-eeeeeeee"));
    db_sandbox_put(db, &a_sandbox, NULL, done, &r); /* a sandbox that is written again is not one that goes */
    wait_for(&r, 6);
    n = 0;
    assert_int_equal(db_generations(db, count_generation, &n, &err), 0);
    assert_int_equal(n, 2);
    db_sandbox_del(db, "i1", done, &r);
    db_tenant_del(db, "t", done, &r);
    db_barrier(db, done, &r);
    wait_for(&r, 9);
    n = 0;
    assert_int_equal(db_generations(db, count_generation, &n, &err), 0);
    assert_int_equal(db_steps(db, count_step, &steps, &err), 0);
    assert_int_equal(n + steps, 0);
    assert_false(db_stack_named(db, "st-dddddddd"));
}

static void see_volume(void *arg, const struct db_volume *v)
{
    ++*(int *)arg;
    assert_string_equal(v->id, "vol-1");
    assert_string_equal(v->token, "tok");
    assert_int_equal(v->bytes, 10);
}

static void test_a_tenants_name_is_that_of_one_volume(void **state)
{
    (void)state;
    struct result r = {0};
    struct err err;
    int n = 0;
    struct db_volume v = {.id = "vol-1", .name = "data", .tenant = "t", .token = "tok", .bytes = 10};
    db_volume_put(db, &v, done, &r);
    v.id = "vol-2";
    db_volume_put(db, &v, done, &r); /* the same name again */
    wait_for(&r, 2);
    assert_int_equal(r.failures, 1);
    assert_int_equal(db_volumes(db, see_volume, &n, &err), 0);
    assert_int_equal(n, 1);
    db_volume_del(db, "vol-1", done, &r);
    wait_for(&r, 3);
    n = 0;
    assert_int_equal(db_volumes(db, see_volume, &n, &err), 0);
    assert_int_equal(n, 0);
}

static void see_quota(void *arg, const struct db_tenant *t)
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
    struct db_tenant t = {.id = "t", .name = "t", .snapshots = 5, .state_bytes = 1 << 20, .state_entries = 99};
    db_tenant_put(db, &t, done, &r);
    wait_for(&r, 1);
    reopen();
    assert_int_equal(db_tenants(db, see_quota, &n, &err), 0);
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
    if (db_usages(db, list_usage, &got, &err) < 0)
        fail_msg("%s", err.msg);
    assert_string_equal(buf_str(&got), wanted);
}

static void test_counters_go_with_their_sandbox_and_with_their_tenant(void **state)
{
    (void)state;
    struct result r = {0};
    struct db_tenant t = {.id = "acme", .name = "acme"};
    struct db_sandbox b = a_sandbox;
    b.tenant = "acme";
    db_tenant_put(db, &t, done, &r);
    db_sandbox_put(db, &b, NULL, done, &r);
    db_usage_put(db, "acme", "", "{\"requests\":1}", done, &r);
    db_usage_put(db, "acme", b.id, "{\"requests\":1}", done, &r);
    db_usage_put(db, "acme", "", "{\"requests\":2}", done, &r);
    db_usage_put(db, "acme", "cut-short", "{}", done, &r);
    db_usage_put(db, "removed", "", "{}", done, &r);
    db_usage_sweep(db); /* of the one the create did not come through, the other is no tenant any more */
    db_barrier(db, done, &r);
    wait_for(&r, 8);
    assert_int_equal(r.failures, 0);
    _cleanup_free_ char *both = xasprintf("acme/={\"requests\":2};acme/%s={\"requests\":1};", b.id);
    db_close(db);
    open_it();
    expect_usage(both);
    db_sandbox_del(db, b.id, done, &r);
    wait_for(&r, 9);
    expect_usage("acme/={\"requests\":2};");
    db_tenant_del(db, "acme", done, &r);
    wait_for(&r, 10);
    expect_usage("");
}

static void see_transaction(void *arg, const struct db_transaction *t)
{
    ++*(int *)arg;
    assert_string_equal(t->id, "tx-1");
    assert_string_equal(t->sandbox, a_sandbox.id);
    assert_string_equal(t->result, "st-bbbbbbbb");
    assert_int_equal(t->state, DB_TRANSACTION_COMMITTING);
    assert_int_equal(t->code, -1);
    assert_int_equal(t->nout, 3);
    assert_memory_equal(t->out, "a\0b", 3);
    assert_int_equal(t->nerr, 0);
}

static void test_transactions_come_back_and_go_with_their_sandbox(void **state)
{
    (void)state;
    struct result r = {0};
    struct err err;
    int n = 0;
    struct db_transaction t = {.id = "tx-1",
                               .sandbox = a_sandbox.id,
                               .tenant = "t",
                               .base = "st-aaaaaaaa",
                               .result = "st-bbbbbbbb",
                               .command = "make",
                               .state = DB_TRANSACTION_OPEN,
                               .code = -1,
                               .out = "a\0b",
                               .nout = 3};
    db_sandbox_put(db, &a_sandbox, NULL, done, &r);
    db_transaction_put(db, &t, done, &r);
    t.state = DB_TRANSACTION_COMMITTING;
    t.nout = 0; /* put again, only its state is changed */
    db_transaction_put(db, &t, done, &r);
    wait_for(&r, 3);
    assert_int_equal(r.failures, 0);
    reopen();
    assert_int_equal(db_transactions(db, see_transaction, &n, &err), 0);
    assert_int_equal(n, 1);
    db_sandbox_del(db, a_sandbox.id, done, &r);
    wait_for(&r, 4);
    n = 0;
    assert_int_equal(db_transactions(db, see_transaction, &n, &err), 0);
    assert_int_equal(n, 0);
}

/* A store as the schemas before left it: this one, with what came since taken out again. */
static const char back_to_8[] = "ALTER TABLE boxes DROP COLUMN more; PRAGMA user_version=8;";
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

static void see_old_sandbox(void *arg, const struct db_sandbox *b)
{
    ++*(int *)arg;
    assert_string_equal(b->id, "i9");
    assert_string_equal(b->token, "tok");
    assert_int_equal(b->state, DB_SANDBOX_RUNNING);
    assert_int_equal(b->end_unix_ms, 20);
    assert_string_equal(b->stack, "");
    assert_string_equal(b->config, "");
    assert_string_equal(b->more, "");
    assert_int_equal(b->nmounts, 0);
}
static void see_old_tenant(void *arg, const struct db_tenant *t)
{
    ++*(int *)arg;
    assert_int_equal(t->max_timeout_s, 7);
    assert_int_equal(t->snapshots, 0);
}

static void go_back(const char *const *steps, size_t n)
{
    sqlite3 *raw = NULL;
    char *why = NULL;
    db_close(db);
    assert_int_equal(sqlite3_open(path, &raw), SQLITE_OK);
    for (size_t i = 0; i < n; i++)
        if (sqlite3_exec(raw, steps[i], NULL, NULL, &why) != SQLITE_OK)
            fail_msg("%s", why);
    (void)sqlite3_close(raw);
    open_it();
}

static void see_net(void *arg, const struct db_net *n)
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
    struct db_net n = {.sandbox = a_sandbox.id, .epoch = 1, .document = "{}", .proxy_password = "sealed"};
    db_net_put(db, &n, done, &r);
    wait_for(&r, 1);
    go_back((const char *const[]){back_to_8, back_to_7, back_to_6}, 3);
    assert_int_equal(db_nets(db, see_net, &nets, &err), 0);
    assert_int_equal(nets, 1);
}

/* The row as the version before wrote it, taken apart by this one. */
static void see_described_sandbox(void *arg, const struct db_sandbox *row)
{
    struct sandbox b = {0};
    ++*(int *)arg;
    assert_string_equal(row->more, "");
    sandbox_row_decode(row, &b);
    assert_string_equal(b.desc.template, "base");
    assert_string_equal(b.desc.stack, "st-aaaaaaaa");
    assert_string_equal(b.desc.parent, "i0");
    assert_string_equal(b.desc.tier, "container");
    assert_string_equal(b.desc.config->user, "root");
    assert_int_equal(b.desc.nmounts, 2);
    assert_string_equal(b.desc.mounts[1].place, "/m");
    assert_true(b.desc.life.auto_pause && !b.desc.life.auto_pause_files && b.desc.life.auto_resume && b.desc.history);
    assert_int_equal(b.desc.life.idle_s, 60);
    assert_int_equal(b.desc.timeout_s, 300);
    assert_int_equal(b.state_bytes, 4096);
    assert_null(b.desc.image);
    assert_int_equal(b.desc.generation, 0);
    sandbox_desc_done(&b.desc);
}

static void test_a_store_of_schema_8_is_taken_along(void **state)
{
    (void)state;
    struct err err;
    struct result r = {0};
    int n = 0;
    db_sandbox_put(db, &a_sandbox, NULL, done, &r);
    wait_for(&r, 1);
    go_back((const char *const[]){back_to_8}, 1);
    assert_int_equal(db_sandboxes(db, see_described_sandbox, &n, &err), 0);
    assert_int_equal(n, 1);
}

static void count_sandbox(void *arg, const struct db_sandbox *b)
{
    ++*(int *)arg;
    assert_string_equal(b->id, a_sandbox.id);
}

static void test_a_store_of_schema_4_is_taken_along(void **state)
{
    (void)state;
    struct err err;
    struct result r = {0};
    int sandboxes = 0;
    db_sandbox_put(db, &a_sandbox, NULL, done, &r);
    wait_for(&r, 1);
    go_back((const char *const[]){back_to_8, back_to_7, back_to_6, back_to_5, back_to_4}, 5);
    expect_usage("");
    assert_int_equal(db_sandboxes(db, count_sandbox, &sandboxes, &err), 0);
    assert_int_equal(sandboxes, 1);
    db_usage_put(db, a_sandbox.tenant, a_sandbox.id, "{}", done, &r);
    db_sandbox_del(db, a_sandbox.id, done, &r);
    wait_for(&r, 3);
    assert_int_equal(r.failures, 0);
    expect_usage("");
}

static void test_a_store_of_schema_3_is_taken_along(void **state)
{
    (void)state;
    struct err err;
    struct result r = {0};
    int sandboxes = 0, tenants = 0;
    go_back((const char *const[]){back_to_8, back_to_7, back_to_6, back_to_5, back_to_4, back_to_3}, 6);
    assert_int_equal(db_sandboxes(db, see_old_sandbox, &sandboxes, &err), 0);
    assert_int_equal(db_tenants(db, see_old_tenant, &tenants, &err), 0);
    assert_int_equal(sandboxes, 1);
    assert_int_equal(tenants, 1);
    db_sandbox_put(db, &a_sandbox, NULL, done, &r);
    wait_for(&r, 1);
    assert_int_equal(r.failures, 0);
}

#define T(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
int main(void)
{
    const struct CMUnitTest tests[] = {
        T(test_a_stored_sandbox_comes_back_with_all_of_it),
        T(test_templates_with_their_tags_come_back),
        T(test_generations_go_with_their_sandbox_and_steps_with_their_tenant),
        T(test_a_tenants_name_is_that_of_one_volume),
        T(test_a_tenants_quota_of_what_it_keeps_comes_back),
        T(test_counters_go_with_their_sandbox_and_with_their_tenant),
        T(test_a_store_of_schema_8_is_taken_along),
        T(test_a_store_of_schema_6_is_taken_along),
        T(test_a_store_of_schema_4_is_taken_along),
        T(test_transactions_come_back_and_go_with_their_sandbox),
        T(test_a_store_of_schema_3_is_taken_along),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
