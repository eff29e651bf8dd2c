/* Snapshots, forks, templates with a command to start with, and stacks that nobody names. */
#include "await.h"
#include "snapshots/snapshots.h"

#include <sqlite3.h>

#include "network/networks.h"
#include "sandboxes-world.h"
#include "sandboxes/idseal.h"
#include "sandboxes/sandboxes-int.h"
#include "snapshots/generations.h"
#include "stacks/stacks-int.h"

static struct sandbox *base_sandbox(void)
{
    struct sandbox_spec spec = host_spec();
    (void)mkdirat(rooms.dir_fd, "base", 0755);
    (void)snprintf(spec.desc.template, sizeof spec.desc.template, "%s", "base");
    struct answer a = make(&spec);
    if (a.status)
        fail_msg("%u %s", a.status, a.text);
    return sandbox_find(rooms.sandboxes, a.id);
}

struct shot {
    int calls;
    unsigned status;
    char id[40], text[512], stack[STACK_ID_MAX];
    struct state_cost cost;
};
static void shot(void *arg, const struct template *t, const struct state_cost *cost,
                 const struct state_failure *failure)
{
    struct shot *s = arg;
    s->calls++;
    s->cost = *cost;
    assert_true(!t != !failure);
    if (failure) {
        s->status = failure->status;
        (void)snprintf(s->text, sizeof s->text, "%s", failure->text);
        return;
    }
    (void)snprintf(s->id, sizeof s->id, "%s", t->id);
    memcpy(s->stack, t->tags[0].stack, sizeof s->stack);
}
static struct shot snapshot(struct sandbox *b, const char *name)
{
    struct shot s = {0};
    sandbox_snapshot(rooms.snapshots, b, name, shot, &s);
    AWAIT (s.calls)
        step(1);
    assert_int_equal(s.calls, 1);
    return s;
}
static void paused(void *arg, const struct state_failure *failure)
{
    assert_null(failure);
    *(bool *)arg = true;
}
static void put_away(struct sandbox *b, bool memory)
{
    bool done = false;
    sandbox_pause(rooms.sandboxes, b, memory, paused, &done);
    AWAIT (done)
        step(1);
    assert_true(done);
}

static void test_a_snapshot_is_a_template_that_sandboxes_are_made_from(void **state)
{
    (void)state;
    struct sandbox *b = base_sandbox();
    struct shot s = snapshot(b, NULL);
    assert_int_equal(s.status, 0);
    assert_int_equal(s.cost.frozen_us, 1500);
    assert_int_equal(k.capture_flags, LAYERS_FREEZE);
    assert_int_equal(b->state, SANDBOX_RUNNING);
    assert_null(b->busy);
    struct sandbox_spec spec = host_spec();
    char name[64];
    (void)snprintf(name, sizeof name, "%s:default", s.id);
    (void)snprintf(spec.desc.template, sizeof spec.desc.template, "%s", name);
    for (int i = 0; i < 3; i++) {
        struct answer a = make(&spec);
        assert_int_equal(a.status, 0);
        assert_string_equal(k.template, s.stack);
        assert_string_equal(sandbox_find(rooms.sandboxes, a.id)->desc.template, s.id);
    }
    stop();
    start();
    const struct template_tag *tag;
    const struct template *t = template_find(rooms.templates, who.tenant, s.id, &tag);
    assert_non_null(t);
    assert_string_equal(tag->stack, s.stack);
    assert_int_equal(t->kind, TEMPLATE_SNAPSHOT);
}

static void test_the_same_name_again_replaces_the_build_and_drops_its_stack(void **state)
{
    (void)state;
    struct sandbox *b = base_sandbox();
    struct shot one = snapshot(b, "mine"), two = snapshot(b, "mine");
    step(5);
    assert_string_equal(one.id, two.id);
    assert_string_not_equal(one.stack, two.stack);
    assert_true(was_dropped(one.stack));
    assert_false(was_dropped(two.stack));
}

static void test_paused_sandboxes_are_copied_without_waking_them(void **state)
{
    (void)state;
    struct sandbox *b = base_sandbox();
    put_away(b, true);
    struct shot s = snapshot(b, NULL);
    assert_int_equal(s.status, 0);
    assert_int_equal(k.capture_flags, 0);
    assert_int_equal(b->state, SANDBOX_FROZEN);
    assert_int_equal(k.resumes, 0);

    struct sandbox *c = base_sandbox();
    put_away(c, false);
    int captures = k.captures;
    struct shot t = snapshot(c, NULL);
    assert_int_equal(k.captures, captures);
    assert_string_equal(t.stack, c->desc.stack);
    /* The sandbox goes, the snapshot stays. */
    sandbox_kill(rooms.sandboxes, c, "api", NULL, NULL);
    step(5);
    assert_false(was_dropped(t.stack));
    template_remove(rooms.templates, template_find(rooms.templates, who.tenant, t.id, NULL), NULL, NULL, NULL);
    AWAIT (was_dropped(t.stack))
        step(1);
    assert_true(was_dropped(t.stack));
}

static void test_refusals_of_snapshots(void **state)
{
    (void)state;
    struct sandbox_spec spec = host_spec();
    struct answer a = make(&spec);
    struct shot s = snapshot(sandbox_find(rooms.sandboxes, a.id), NULL);
    assert_int_equal(s.status, 400);
    assert_non_null(strstr(s.text, "no files of its own"));
    struct sandbox *b = base_sandbox();
    assert_true(sandbox_begin(b, "an undo"));
    s = snapshot(b, NULL);
    assert_int_equal(s.status, 503);
    sandbox_finish(rooms.sandboxes, b->id);
    k.capture_error = LAYERS_TOO_LARGE;
    s = snapshot(b, NULL);
    assert_int_equal(s.status, 413);
    step(3);
    assert_true(was_dropped(k.captured)); /* whatever there may be of it */
    k.capture_error = 0;
    who.tenant->quota.snapshots = 1;
    assert_int_equal(snapshot(b, NULL).status, 0);
    s = snapshot(b, NULL);
    assert_int_equal(s.status, 429);
}

/* --- forks --------------------------------------------------------------------------------------------------------- */

static struct {
    int calls, failures;
    unsigned status;
    char id[16][SANDBOX_ID_MAX];
} kids;
static void kid(void *arg, unsigned index, struct sandbox *b, const struct state_cost *cost,
                const struct sandbox_failure *failure)
{
    (void)arg, (void)cost;
    kids.calls++;
    kids.failures += failure != NULL;
    kids.status = failure ? failure->status : 0;
    if (b)
        memcpy(kids.id[index], b->id, SANDBOX_ID_MAX);
}
static void fork_sandbox(struct sandbox *b, unsigned n)
{
    memset(&kids, 0, sizeof kids);
    sandbox_fork(rooms.snapshots, b, &(struct fork_spec){.count = n, .timeout_s = 120}, kid, NULL);
    AWAIT (kids.calls >= (int)n)
        step(1);
    assert_int_equal(kids.calls, n);
}

static void test_forks_are_sandboxes_of_their_own_from_one_copy(void **state)
{
    (void)state;
    struct sandbox_spec spec = host_spec();
    (void)mkdirat(rooms.dir_fd, "base", 0755);
    (void)snprintf(spec.desc.template, sizeof spec.desc.template, "%s", "base");
    strv_add(&spec.desc.metadata, "k");
    strv_add(&spec.desc.metadata, "v");
    strv_add(&spec.desc.env, "A=1");
    struct answer a = make(&spec);
    strv_done(&spec.desc.metadata);
    strv_done(&spec.desc.env);
    struct sandbox *p = sandbox_find(rooms.sandboxes, a.id);
    char token[64], stack[STACK_ID_MAX];
    memcpy(token, p->token, sizeof token);
    fork_sandbox(p, 10);
    assert_int_equal(kids.failures, 0);
    assert_int_equal(k.captures, 1);
    memcpy(stack, k.captured, sizeof stack);
    for (int i = 0; i < 10; i++) {
        struct sandbox *b = sandbox_find(rooms.sandboxes, kids.id[i]);
        assert_string_equal(b->desc.stack, stack);
        assert_string_equal(b->desc.parent, p->id);
        assert_string_not_equal(b->token, p->token);
        assert_string_equal(b->desc.metadata.v[1], "v");
        assert_string_equal(b->desc.env.v[0], "A=1");
        assert_int_equal(b->desc.timeout_s, 120);
    }
    assert_string_equal(p->token, token);
    assert_int_equal(p->state, SANDBOX_RUNNING);
    assert_string_equal(p->desc.stack, "");
    /* The copy goes with the last child. */
    for (int i = 0; i < 10; i++) {
        step(4);
        assert_false(was_dropped(stack));
        sandbox_kill(rooms.sandboxes, sandbox_find(rooms.sandboxes, kids.id[i]), "api", NULL, NULL);
    }
    step(5);
    assert_true(was_dropped(stack));
}

static void test_each_fork_succeeds_or_fails_alone(void **state)
{
    (void)state;
    struct sandbox *p = base_sandbox();
    who.tenant->quota.sandboxes = 3;
    fork_sandbox(p, 4);
    assert_int_equal(kids.failures, 2);
    assert_int_equal(who.tenant->sandboxes, 3);
    who.tenant->quota.sandboxes = 0;
    put_away(p, true);
    fork_sandbox(p, 2);
    assert_int_equal(kids.failures, 2);
    assert_int_equal(kids.status, 409);
}

static void test_forks_of_a_copy_that_fails(void **state)
{
    (void)state;
    struct sandbox *p = base_sandbox();
    k.capture_error = LAYERS_BUSY;
    fork_sandbox(p, 3);
    assert_int_equal(kids.failures, 3);
    assert_int_equal(kids.status, 503);
    assert_int_equal(k.creates, 1);
    assert_null(p->busy);
}

/* --- stacks nobody names ------------------------------------------------------------------------------------------- */

static void there_is(const char *stack, uint32_t layers, int64_t age)
{
    struct layers_item *i = &k.stacks[k.nstacks++];
    (void)snprintf(i->id, sizeof i->id, "%s", stack);
    i->nlayers = layers;
    i->created_unix = (int64_t)time(NULL) - age;
}

/* The database's database is as old as this; whether it has met the layer store before. */
static void was_born(int64_t age, bool met)
{
    sqlite3 *db = NULL;
    char path[sizeof rooms.dir + 16], sql[160];
    (void)snprintf(path, sizeof path, "%s/" DB_FILE, rooms.dir);
    (void)snprintf(sql, sizeof sql, "%s; UPDATE counters SET value=%lld WHERE name='born'",
                   met ? "DELETE FROM counters WHERE name='unmet'" : "", (long long)time(NULL) - (long long)age);
    assert_int_equal(sqlite3_open_v2(path, &db, SQLITE_OPEN_READWRITE, NULL), SQLITE_OK);
    (void)sqlite3_busy_timeout(db, 60000);
    assert_int_equal(sqlite3_exec(db, sql, NULL, NULL, NULL), SQLITE_OK);
    assert_int_equal(sqlite3_changes(db), 1);
    assert_int_equal(sqlite3_close(db), SQLITE_OK);
}

static void test_stacks_older_than_the_store_are_kept(void **state)
{
    (void)state;
    there_is("st-nobodynobody", 1, 3600);
    state_meet(rooms.stacks);
    assert_int_equal(k.drops, 0);
    was_born(4000, true);
    state_meet(rooms.stacks);
    assert_true(was_dropped("st-nobodynobody"));
}

static void test_a_store_made_while_the_clock_was_behind_drops_nothing_of_before(void **state)
{
    (void)state;
    was_born(INT64_C(1) << 30, false);
    there_is("st-nobodynobody", 1, 3600);
    state_meet(rooms.stacks);
    state_meet(rooms.stacks);
    assert_int_equal(k.drops, 0);
    there_is("st-nowheretofore", 1, 600);
    state_meet(rooms.stacks);
    assert_int_equal(k.drops, 1);
    assert_true(was_dropped("st-nowheretofore"));
}

static void count_generation(void *arg, const struct db_generation *g)
{
    (void)g;
    ++*(int *)arg;
}

/* id.key was lost, or is not the one that belongs to the database. */
static void test_a_paused_sandbox_whose_id_cannot_be_read_is_kept(void **state)
{
    char id[SANDBOX_ID_MAX], stack[STACK_ID_MAX];
    struct err err;
    int generations = 0;
    (void)state;
    struct sandbox *b = base_sandbox();
    put_away(b, false);
    memcpy(id, b->id, sizeof id);
    memcpy(stack, b->desc.stack, sizeof stack);
    struct db_generation g = {.sandbox = id, .stack = "st-pastpastpast", .command = "make", .number = 1};
    db_generation_put(rooms.db, &g, NULL, NULL);
    step(5);
    was_born(4000, true);
    stop();
    assert_int_equal(renameat(rooms.dir_fd, IDSEAL_FILE, rooms.dir_fd, "away"), 0);
    assert_true(idseal_missing(rooms.dir_fd));
    start();
    assert_false(idseal_missing(rooms.dir_fd));
    assert_null(sandbox_find(rooms.sandboxes, id));
    there_is(stack, 1, 3600);
    there_is("st-pastpastpast", 1, 3600);
    state_meet(rooms.stacks);
    step(5);
    assert_int_equal(k.drops, 0);
    stop();
    assert_int_equal(renameat(rooms.dir_fd, "away", rooms.dir_fd, IDSEAL_FILE), 0);
    start();
    b = sandbox_find(rooms.sandboxes, id);
    assert_non_null(b);
    assert_int_equal(b->state, SANDBOX_STORED);
    assert_int_equal(db_generations(rooms.db, count_generation, &generations, &err), 0);
    assert_int_equal(generations, 1);
}

static void test_a_drop_is_under_way_until_layers_has_answered(void **state)
{
    (void)state;
    assert_false(state_dropping(rooms.stacks));
    state_drop(rooms.stacks, "st-nobodynobody");
    assert_true(state_dropping(rooms.stacks));
    AWAIT (was_dropped("st-nobodynobody"))
        step(1);
    AWAIT (!state_dropping(rooms.stacks))
        step(1);
    assert_false(state_dropping(rooms.stacks));
}

static void test_stacks_that_no_row_names_are_dropped_after_a_minute(void **state)
{
    (void)state;
    was_born(4000, true);
    struct sandbox *b = base_sandbox();
    struct shot s = snapshot(b, NULL);
    struct db_step x = {.tenant = "default", .key = "ab", .stack = "st-stepstepstep", .used_unix = 1};
    db_step_put(rooms.db, &x, NULL, NULL);
    put_away(b, false);
    step(5);
    there_is(s.stack, 1, 3600);
    there_is(b->desc.stack, STACK_FLATTEN_AT + 1, 3600);
    there_is("st-nobodynobody", 1, 3600);
    there_is("st-youngyoung", 1, 5);
    there_is("st-stepstepstep", 1, 3600);
    there_is("st-heldheldheld", 1, 3600);
    there_is("vol-somebodys", 0, 3600);
    state_hold(rooms.stacks, "st-heldheldheld");
    state_meet(rooms.stacks);
    assert_int_equal(k.drops, 1);
    assert_true(was_dropped("st-nobodynobody"));
    assert_int_equal(k.flattens, 1);
    /* The young one is looked at again when it is old enough, not only with the next round. */
    assert_in_range(rooms.stacks->meet_at_ms - loop_now(rooms.loop), 55000, 70000);
    k.stacks[3].created_unix -= 3600;
    state_release(rooms.stacks, "st-heldheldheld");
    state_meet(rooms.stacks);
    assert_true(was_dropped("st-heldheldheld"));
    assert_true(was_dropped("st-youngyoung"));
    assert_in_range(rooms.stacks->meet_at_ms - loop_now(rooms.loop), 590000, 610000);
}

/* --- what a template starts with ------------------------------------------------------------------------------------ */

static void put(void *arg, const struct template *t, const struct state_failure *failure)
{
    assert_non_null(t);
    assert_null(failure);
    *(bool *)arg = true;
}
static void make_template(const struct template_config *c)
{
    bool done = false;
    struct template_new n = {
        .name = "web", .stack = "st-webwebwebweb", .tenant = who.tenant, .kind = TEMPLATE_BUILT, .config = c};
    template_put(rooms.templates, &n, put, &done);
    AWAIT (done)
        step(1);
    assert_true(done);
}

static void test_a_template_says_what_its_sandboxes_start_with(void **state)
{
    (void)state;
    struct template_config c = {
        .user = (char *)"app", .workdir = (char *)"/srv", .cpu_milli = 500, .memory = 256 << 20, .disk = 64 << 20};
    strv_add(&c.env, "A=template");
    strv_add(&c.env, "B=template");
    make_template(&c);
    strv_done(&c.env);
    struct sandbox_spec spec = host_spec();
    strv_add(&spec.desc.env, "A=mine");
    (void)snprintf(spec.desc.template, sizeof spec.desc.template, "%s", "web");
    struct answer a = make(&spec);
    strv_done(&spec.desc.env);
    assert_int_equal(a.status, 0);
    assert_string_equal(k.user, "app");
    assert_string_equal(k.workdir, "/srv");
    assert_non_null(strstr(k.env, "A=mine"));
    assert_null(strstr(k.env, "A=template"));
    assert_non_null(strstr(k.env, "B=template"));
    assert_int_equal(k.last.cpu_milli, 500);
    assert_int_equal(k.last.memory, 256 << 20);
    assert_int_equal(k.last.disk, 64 << 20);
}

/* The nth command of start and readiness was given to the sandbox. */
static void until_command(int n)
{
    AWAIT (k.execs >= n)
        step(1);
}

static void test_a_create_waits_until_its_template_is_ready(void **state)
{
    (void)state;
    struct template_config c = {.start = (char *)"serve", .ready = (char *)"look"};
    make_template(&c);
    struct sandbox_spec spec = host_spec();
    struct answer a = {0};
    (void)snprintf(spec.desc.template, sizeof spec.desc.template, "%s", "web");
    sandbox_create(rooms.sandboxes, &who, &spec, created, &a);
    until_command(1);
    assert_string_equal(k.command, "serve");
    k.exec_ops->started(k.exec_arg, 5, NULL);
    clock_add += 600;
    until_command(2);
    assert_string_equal(k.command, "look");
    k.exec_ops->ended(k.exec_arg, &(struct exec_end){.exited = true, .code = 1});
    step(3);
    assert_int_equal(a.calls, 0);
    clock_add += 600;
    until_command(3);
    k.exec_ops->ended(k.exec_arg, &(struct exec_end){.exited = true});
    wait_for(&a);
    assert_int_equal(a.status, 0);
}

static void test_a_start_command_that_fails_fails_the_create(void **state)
{
    (void)state;
    struct template_config c = {.start = (char *)"serve", .ready = (char *)"look"};
    make_template(&c);
    struct sandbox_spec spec = host_spec();
    struct answer a = {0};
    (void)snprintf(spec.desc.template, sizeof spec.desc.template, "%s", "web");
    sandbox_create(rooms.sandboxes, &who, &spec, created, &a);
    until_command(1);
    k.exec_ops->started(k.exec_arg, 5, NULL);
    assert_true(k.exec_ops->output(k.exec_arg, EXEC_STDERR, 0, "no such module\n", 15));
    k.exec_ops->ended(k.exec_arg, &(struct exec_end){.exited = true, .code = 3});
    wait_for(&a);
    assert_int_equal(a.status, 500);
    assert_non_null(strstr(a.text, "status 3"));
    assert_non_null(strstr(a.text, "no such module"));
    assert_int_equal(sandboxes_count(rooms.sandboxes), 0);
    assert_int_equal(k.kills, 1);
}

static void test_a_sandbox_of_a_build_leaves_no_trace(void **state)
{
    (void)state;
    struct sandbox_spec spec = host_spec();
    (void)snprintf(spec.desc.template, sizeof spec.desc.template, "%s", "st-webwebwebweb");
    struct answer a = make(&spec);
    assert_int_equal(a.status, 404); /* only builds know stacks by their ids */
    spec.desc.hidden = true;
    who.tenant->quota.sandboxes = 1;
    who.tenant->sandboxes = 1;
    a = make(&spec);
    assert_int_equal(a.status, 0);
    assert_string_equal(k.template, "st-webwebwebweb");
    assert_string_equal(k.user, "root");
    assert_true(k.last.flags & KEEPER_BUILD);
    assert_null(sandbox_of(rooms.sandboxes, &who, a.id));
    assert_int_equal(who.tenant->sandboxes, 1);
    who.tenant->sandboxes = 0;
    stop();
    start();
    assert_null(sandbox_find(rooms.sandboxes, a.id));
}

#define T(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
int main(void)
{
    const struct CMUnitTest tests[] = {
        T(test_a_snapshot_is_a_template_that_sandboxes_are_made_from),
        T(test_the_same_name_again_replaces_the_build_and_drops_its_stack),
        T(test_paused_sandboxes_are_copied_without_waking_them),
        T(test_refusals_of_snapshots),
        T(test_forks_are_sandboxes_of_their_own_from_one_copy),
        T(test_each_fork_succeeds_or_fails_alone),
        T(test_forks_of_a_copy_that_fails),
        T(test_stacks_older_than_the_store_are_kept),
        T(test_a_drop_is_under_way_until_layers_has_answered),
        T(test_stacks_that_no_row_names_are_dropped_after_a_minute),
        T(test_a_store_made_while_the_clock_was_behind_drops_nothing_of_before),
        T(test_a_paused_sandbox_whose_id_cannot_be_read_is_kept),
        T(test_a_template_says_what_its_sandboxes_start_with),
        T(test_a_create_waits_until_its_template_is_ready),
        T(test_a_start_command_that_fails_fails_the_create),
        T(test_a_sandbox_of_a_build_leaves_no_trace),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
