/* The lives of sandboxes with a real database and a keeper that does what the test says. */
#include <stdlib.h>

#include "sandboxes/sandboxes.h"

#include "sandboxes-world.h"
#include "sandboxes/metrics.h"
#include "sandboxes/sandboxes-int.h"

/* --- tests -------------------------------------------------------------------------------------------------------- */

static void test_create_and_kill(void **state)
{
    (void)state;
    struct sandbox_spec spec = host_spec();
    strv_add(&spec.desc.env, "A=1");
    strv_add(&spec.desc.metadata, "k");
    strv_add(&spec.desc.metadata, "v");
    struct answer a = make(&spec);
    strv_done(&spec.desc.env);
    strv_done(&spec.desc.metadata);
    assert_int_equal(a.status, 0);
    assert_non_null(strstr(k.env, "E2B_SANDBOX=true"));
    assert_non_null(strstr(k.env, "A=1"));
    struct sandbox *b = sandbox_of(rooms.sandboxes, &who, a.id);
    assert_non_null(b);
    assert_int_equal(strlen(b->token), 40);
    assert_string_equal(b->desc.metadata.v[1], "v");
    assert_int_equal(who.tenant->sandboxes, 1);
    struct principal stranger = {.tenant = &(struct tenant){.id = "x"}};
    assert_null(sandbox_of(rooms.sandboxes, &stranger, a.id));
    /* It is there after a restart, with everything. */
    char token[64];
    (void)snprintf(token, sizeof token, "%s", b->token);
    stop();
    start();
    b = sandbox_of(rooms.sandboxes, &who, a.id);
    assert_non_null(b);
    assert_string_equal(b->token, token);
    assert_string_equal(b->desc.env.v[0], "A=1");
    assert_int_equal(who.tenant->sandboxes, 1);
    sandbox_kill(rooms.sandboxes, b, "api", NULL, NULL);
    assert_null(sandbox_find(rooms.sandboxes, a.id));
    assert_int_equal(ends, 1);
    assert_string_equal(end_cause, "api");
    assert_int_equal(who.tenant->sandboxes, 0);
    assert_true(events_ended(events_find(rooms.events, TENANT_DEFAULT, a.id)));
    stop();
    start();
    assert_null(sandbox_find(rooms.sandboxes, a.id));
}

static void expect(const struct sandbox_spec *spec, unsigned status, const char *text)
{
    struct answer a = make(spec);
    if (a.status != status || !strstr(a.text, text))
        fail_msg("expected %u \"%s\", got %u \"%s\"", status, text, a.status, a.text);
    assert_int_equal(sandboxes_count(rooms.sandboxes), 0);
    assert_int_equal(who.tenant->sandboxes, 0);
}

static void test_refusals(void **state)
{
    (void)state;
    struct sandbox_spec spec = host_spec();
    rooms.config.max_timeout_s = 86400;
    spec.desc.timeout_s = 0;
    expect(&spec, 400, "timeout must be between 1 and 86400");
    spec.desc.timeout_s = 86401;
    expect(&spec, 400, "86401");
    who.tenant->quota.max_timeout_s = 30;
    spec.desc.timeout_s = 31;
    expect(&spec, 400, "between 1 and 30");
    who.tenant->quota.max_timeout_s = 0;
    spec = host_spec();
    static const char *const names[] = {"nothing", "../x", "", "host:v2", "HOST", "a/b/../../host/x"};
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        (void)snprintf(spec.desc.template, sizeof spec.desc.template, "%s", names[i]);
        expect(&spec, 404, "not found");
    }
    spec = host_spec();
    spec.idempotency_key = "";
    expect(&spec, 400, "idempotency key");
    free(rooms.config.build_base);
    rooms.config.build_base = NULL;
    spec = host_spec();
    (void)snprintf(spec.desc.template, sizeof spec.desc.template, "%s", "base");
    expect(&spec, 503, "templates.base does not ask for it");
    assert_int_equal(k.creates, 0);
}

static void test_failures_leave_nothing(void **state)
{
    (void)state;
    static const struct {
        uint32_t error;
        unsigned status;
    } cases[] = {{KEEPER_CAPACITY, 503},
                 {KEEPER_NO_TEMPLATE, 404},
                 {KEEPER_BAD_REQUEST, 400},
                 {KEEPER_HOST, 500},
                 {KEEPER_FAILED, 500}};
    struct sandbox_spec spec = host_spec();
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        k.create_error = cases[i].error;
        expect(&spec, cases[i].status, "because");
    }
    k.create_error = 0;
    k.bind_code = LINK_BROKEN;
    expect(&spec, 500, "binding");
    assert_string_equal(k.killed, k.last_id);
    k.bind_code = LINK_OK;
    stop();
    start();
    assert_int_equal(sandboxes_count(rooms.sandboxes), 0);
    assert_int_equal(make(&spec).status, 0);
}

static void test_admission(void **state)
{
    (void)state;
    struct sandbox_spec spec = host_spec();
    rooms.config.max_sandboxes = 2;
    who.tenant->quota.sandboxes = 1;
    assert_int_equal(make(&spec).status, 0);
    struct answer a = make(&spec);
    assert_int_equal(a.status, 429);
    assert_in_range(a.retry, 1, 30);
    who.tenant->quota.sandboxes = 0;
    assert_int_equal(make(&spec).status, 0);
    a = make(&spec);
    assert_int_equal(a.status, 503);
    assert_string_equal(a.code, "sandbox_capacity_unavailable");
    assert_true(a.retry > 0);
    assert_int_equal(k.creates, 2);
}

static void item(const char *id, bool alive, uint32_t cause)
{
    struct keeper_item *i = &k.items[k.nitems++];
    *i = (struct keeper_item){.alive = alive, .cause = cause};
    (void)snprintf(i->id, sizeof i->id, "%s", id);
}

static void test_idempotency(void **state)
{
    (void)state;
    enum { N = 100 };
    static struct answer all[N];
    struct sandbox_spec spec = host_spec();
    memset(all, 0, sizeof all);
    spec.idempotency_key = "once";
    k.hold_create = true;
    for (int i = 0; i < N; i++)
        sandbox_create(rooms.sandboxes, &who, &spec, created, &all[i]);
    step(5);
    assert_int_equal(k.creates, 1);
    struct keeper_reply ok = {0};
    k.held_create(k.held_create_arg, &ok);
    k.hold_create = false;
    for (int i = 0; i < N; i++) {
        wait_for(&all[i]);
        assert_string_equal(all[i].id, all[0].id);
    }
    spec.desc.timeout_s++;
    struct answer a = make(&spec);
    assert_int_equal(a.status, 422);
    spec.desc.timeout_s--;
    stop();
    start();
    item(all[0].id, true, 0);
    sandboxes_keeper_up(rooms.sandboxes);
    a = make(&spec);
    assert_string_equal(a.id, all[0].id);
    assert_int_equal(k.creates, 1);
    sandbox_kill(rooms.sandboxes, sandbox_find(rooms.sandboxes, a.id), "api", NULL, NULL);
    a = make(&spec);
    assert_int_equal(a.status, 409);
    /* A create that failed does not use the key up. */
    spec.idempotency_key = "again";
    k.create_error = KEEPER_FAILED;
    assert_int_equal(make(&spec).status, 500);
    k.create_error = 0;
    assert_int_equal(make(&spec).status, 0);
}

/* Front is killed before its create was answered; the next one has the row, and keeper has not spoken yet. */
static struct sandbox_spec cut_create(char id[SANDBOX_ID_MAX])
{
    static struct answer lost; /* its client is gone with that front */
    struct sandbox_spec spec = host_spec();
    spec.idempotency_key = "once";
    k.hold_create = true;
    sandbox_create(rooms.sandboxes, &who, &spec, created, &lost);
    step(5); /* its row is written by now */
    (void)snprintf(id, SANDBOX_ID_MAX, "%s", k.last_id);
    k.hold_create = false;
    stop();
    start();
    return spec;
}

static void test_a_create_is_not_answered_again_before_keeper_knows_its_sandbox(void **state)
{
    (void)state;
    char id[SANDBOX_ID_MAX];
    struct sandbox_spec spec = cut_create(id);
    struct answer a = {0}, b = {0};
    sandbox_create(rooms.sandboxes, &who, &spec, created, &a);
    step(5);
    assert_int_equal(a.calls, 0);
    item(id, true, 0);
    sandboxes_keeper_up(rooms.sandboxes);
    clock_add += 100;
    wait_for(&a);
    assert_int_equal(a.status, 0);
    assert_string_equal(a.id, id);
    /* A keeper that does not speak: the client is asked to come again. */
    stop();
    start();
    sandbox_create(rooms.sandboxes, &who, &spec, created, &b);
    step(5);
    assert_int_equal(b.calls, 0);
    clock_add += 11000;
    wait_for(&b);
    assert_int_equal(b.status, 503);
    assert_int_equal(b.retry, 1);
    assert_int_equal(k.creates, 1);
}

static void test_a_create_that_was_cut_gives_its_key_back(void **state)
{
    (void)state;
    char id[SANDBOX_ID_MAX];
    struct sandbox_spec spec = cut_create(id);
    struct answer a = {0};
    sandbox_create(rooms.sandboxes, &who, &spec, created, &a);
    step(5);
    assert_int_equal(a.calls, 0);
    sandboxes_keeper_up(rooms.sandboxes); /* it has never heard of it */
    assert_null(sandbox_find(rooms.sandboxes, id));
    clock_add += 100;
    wait_for(&a);
    assert_int_equal(a.status, 0);
    assert_string_not_equal(a.id, id);
    assert_int_equal(k.creates, 2);
    /* Nor does the database bring the key back; its init may not have taken the binding, too. */
    stop();
    k.nitems = 0;
    start();
    item(a.id, true, 0);
    sandboxes_keeper_up(rooms.sandboxes);
    assert_string_equal(make(&spec).id, a.id);
    sandbox_kill(rooms.sandboxes, sandbox_find(rooms.sandboxes, a.id), "api", NULL, NULL);
    assert_int_equal(make(&spec).status, 409);
}

static void test_a_tenant_pushes_out_its_own_keys(void **state)
{
    (void)state;
    char key[16];
    idem_add(rooms.sandboxes, "quiet", "mine", "d", "s", idem_now(rooms.sandboxes));
    for (int i = 0; i < IDEMS_MAX + 10; i++) {
        (void)snprintf(key, sizeof key, "k%d", i);
        idem_add(rooms.sandboxes, "loud", key, "d", "s", idem_now(rooms.sandboxes));
    }
    assert_int_equal(rooms.sandboxes->idems.n, IDEMS_MAX);
    assert_non_null(idem_find(rooms.sandboxes, "quiet", "mine"));
    assert_null(idem_find(rooms.sandboxes, "loud", "k10"));
    assert_non_null(idem_find(rooms.sandboxes, "loud", "k11"));
    idem_forget(rooms.sandboxes, "loud", "k11");
    assert_null(idem_find(rooms.sandboxes, "loud", "k11"));
    assert_non_null(idem_find(rooms.sandboxes, "loud", "k12"));
}

static void test_a_tenant_pushes_out_its_own_history(void **state)
{
    (void)state;
    char id[16];
    events_publish(rooms.events, "quiet1", "quiet", "died", "{}");
    events_end(rooms.events, "quiet1");
    for (int i = 0; i < EVENTS_ENDED_KEPT + 10; i++) {
        (void)snprintf(id, sizeof id, "loud%d", i);
        events_publish(rooms.events, id, "loud", "died", "{}");
        events_end(rooms.events, id);
    }
    assert_non_null(events_find(rooms.events, "quiet", "quiet1"));
    assert_null(events_find(rooms.events, "loud", "loud10"));
    assert_non_null(events_find(rooms.events, "loud", "loud11"));
}

/* A client whose answer was lost asks again; what it was made from need not be there any more. */
static void test_idempotency_without_the_template(void **state)
{
    (void)state;
    struct sandbox_spec spec = host_spec();
    (void)snprintf(spec.desc.template, sizeof spec.desc.template, "%s", "tools");
    spec.idempotency_key = "once";
    assert_int_equal(mkdirat(rooms.dir_fd, "tools", 0755), 0);
    struct answer a = make(&spec);
    assert_int_equal(a.status, 0);
    assert_int_equal(unlinkat(rooms.dir_fd, "tools", AT_REMOVEDIR), 0);
    assert_string_equal(make(&spec).id, a.id);
    assert_int_equal(k.creates, 1);
    spec.idempotency_key = "twice";
    assert_int_equal(make(&spec).status, 404);
}

static void test_late_answers(void **state)
{
    (void)state;
    struct sandbox_spec spec = host_spec();
    struct answer a = {0};
    k.hold_create = true;
    sandbox_create(rooms.sandboxes, &who, &spec, created, &a);
    step(5);
    clock_add += 31000;
    wait_for(&a);
    assert_int_equal(a.status, 503);
    assert_int_equal(who.tenant->sandboxes, 0);
    assert_string_equal(k.killed, k.last_id);
    struct keeper_reply ok = {0};
    k.held_create(k.held_create_arg, &ok); /* keeper was busy; nobody waits any more */
    step(3);
    assert_int_equal(k.binds, 0);
    /* The sandbox dies while it is being bound. */
    k.hold_create = false;
    k.hold_bind = true;
    struct answer b = {0};
    sandbox_create(rooms.sandboxes, &who, &spec, created, &b);
    step(5);
    assert_int_equal(k.binds, 1);
    struct keeper_death d = {.cause = KEEPER_DIED_OOM};
    (void)snprintf(d.id, sizeof d.id, "%s", k.last_id);
    sandboxes_keeper_died(rooms.sandboxes, &d);
    wait_for(&b);
    assert_int_equal(b.status, 503);
    step(3);
    assert_int_equal(sandboxes_count(rooms.sandboxes), 0);
    /* And while a create is given up with the binding still out. */
    struct answer c = {0};
    sandbox_create(rooms.sandboxes, &who, &spec, created, &c);
    step(5);
    clock_add += 31000;
    wait_for(&c);
    assert_int_equal(c.status, 503);
    step(3);
}

static void test_a_sandbox_that_died_before_it_was_answered_for_is_not_called_running(void **state)
{
    (void)state;
    struct sandbox_spec spec = host_spec();
    struct answer a = {0};
    k.hold_create = true;
    sandbox_create(rooms.sandboxes, &who, &spec, created, &a);
    step(5); /* its row is written by now */
    struct keeper_death d = {.cause = KEEPER_DIED_OOM};
    (void)snprintf(d.id, sizeof d.id, "%s", k.last_id);
    sandboxes_keeper_died(rooms.sandboxes, &d); /* the word of its end overtakes the answer */
    struct keeper_reply ok = {.tier = "container"};
    k.held_create(k.held_create_arg, &ok);
    wait_for(&a);
    assert_int_equal(a.status, 503);
    step(3);
    assert_int_equal(sandboxes_count(rooms.sandboxes), 0);
    assert_int_equal(who.tenant->sandboxes, 0);
}

/* Two requests that come in one piece. */
static void test_a_new_end_is_keepers_when_it_is_no_pause_any_more(void **state)
{
    (void)state;
    struct sandbox_spec spec = host_spec();
    spec.desc.life.auto_pause = true;
    struct sandbox *b = sandbox_find(rooms.sandboxes, make(&spec).id);
    struct sandbox_life life = b->desc.life;
    life.auto_pause = false;
    uint64_t before = sandbox_own(b)->end_boot_ms;
    sandbox_set_timeout(rooms.sandboxes, b, 3600, false, NULL, NULL);
    sandbox_set_life(rooms.sandboxes, b, &life, NULL, NULL);
    step(3);
    assert_true(sandbox_own(b)->end_boot_ms > before + 3000 * 1000);
    assert_int_equal(k.deadline, sandbox_own(b)->end_boot_ms);
}

/* As the operator's stop-all does, which spares nothing. */
static void killed_while_made(void *arg, bool ok) { *(int *)arg += ok ? 1 : 100; }
static void kill_while_made(const struct sandbox_spec *spec, struct answer *a, int *gone)
{
    k.binds = *gone = 0;
    *a = (struct answer){0};
    sandbox_create(rooms.sandboxes, &who, spec, created, a);
    AWAIT (k.binds == 1)
        step(1);
    sandbox_kill(rooms.sandboxes, sandbox_find(rooms.sandboxes, k.last_id), "stop-all", killed_while_made, gone);
}

static void test_a_sandbox_that_is_killed_while_it_is_made_is_not_there_afterwards(void **state)
{
    (void)state;
    struct sandbox_spec spec = host_spec();
    struct answer a = {0};
    int gone = 0;
    /* keeper and init are done with it, the database is not. */
    kill_while_made(&spec, &a, &gone);
    AWAIT (a.calls &&gone)
        step(1);
    assert_int_equal(a.calls, 1);
    assert_int_equal(a.status, 503);
    assert_int_equal(gone, 1);
    step(3);
    assert_int_equal(sandboxes_count(rooms.sandboxes), 0);
    assert_int_equal(who.tenant->sandboxes, 0);
    assert_null(sandbox_find(rooms.sandboxes, k.last_id));
    stop();
    start();
    assert_int_equal(sandboxes_count(rooms.sandboxes), 0);
    /* It cannot be killed: it is made to its end. */
    k.kill_error = KEEPER_FAILED;
    kill_while_made(&spec, &a, &gone);
    wait_for(&a);
    assert_int_equal(gone, 100);
    assert_int_equal(a.status, 0);
    assert_int_equal(who.tenant->sandboxes, 1);
    assert_int_equal(sandbox_find(rooms.sandboxes, a.id)->state, SANDBOX_RUNNING);
    /* The kill comes to its end after everything else. */
    k.kill_error = KEEPER_OK;
    sandbox_kill(rooms.sandboxes, sandbox_find(rooms.sandboxes, a.id), "api", NULL, NULL);
    k.hold_kill = true;
    kill_while_made(&spec, &a, &gone);
    step(5);
    assert_int_equal(a.calls + gone, 0);
    k.hold_kill = false;
    k.held_kill(k.held_kill_arg, &(struct keeper_reply){.error = KEEPER_OK});
    assert_int_equal(a.calls, 1);
    assert_int_equal(a.status, 503);
    assert_int_equal(gone, 1);
    assert_int_equal(who.tenant->sandboxes, 0);
}

static void test_meeting(void **state)
{
    (void)state;
    struct sandbox_spec spec = host_spec();
    struct answer lives = make(&spec), died = make(&spec), gone = make(&spec);
    struct answer half = {0}, unbound = {0};
    k.hold_create = true; /* rows are written, nothing is answered: as if front died here */
    sandbox_create(rooms.sandboxes, &who, &spec, created, &half);
    step(5);
    char half_id[SANDBOX_ID_MAX], unbound_id[SANDBOX_ID_MAX];
    (void)snprintf(half_id, sizeof half_id, "%s", k.last_id);
    sandbox_create(rooms.sandboxes, &who, &spec, created, &unbound);
    step(5);
    (void)snprintf(unbound_id, sizeof unbound_id, "%s", k.last_id);
    stop();
    start();
    assert_int_equal(sandboxes_count(rooms.sandboxes), 5);
    assert_non_null(sandbox_of(rooms.sandboxes, &who, lives.id)); /* usable before keeper is there */
    assert_non_null(sandbox_of(rooms.sandboxes, &who, half_id));  /* its maker may have been answered */
    item(lives.id, true, 0);
    item(died.id, false, KEEPER_DIED_OOM);
    item(half_id, true, 0);
    char stray[ID_TEXT + 1];
    idseal_make(rooms.ids, stray);
    item(stray, true, 0);
    k.kills = 0;
    sandboxes_keeper_up(rooms.sandboxes);
    step(3);
    assert_non_null(sandbox_of(rooms.sandboxes, &who, lives.id));
    assert_non_null(sandbox_of(rooms.sandboxes, &who, half_id)); /* init says it was bound */
    assert_null(sandbox_find(rooms.sandboxes, died.id));
    assert_null(sandbox_find(rooms.sandboxes, gone.id));
    assert_null(sandbox_find(rooms.sandboxes, unbound_id)); /* a row without a sandbox */
    assert_int_equal(k.kills, 1);
    assert_string_equal(k.killed, stray);
    assert_int_equal(ends, 2);
    assert_int_equal(who.tenant->sandboxes, 2);
    /* One that init says was not bound is killed. */
    stop();
    start();
    assert_int_equal(sandboxes_count(rooms.sandboxes), 2);
}

static void count_metric(void *arg, const struct metric *m)
{
    assert_int_equal(m->pids, 3);
    ++*(int *)arg;
}

static void test_timeout_and_metrics(void **state)
{
    (void)state;
    struct sandbox_spec spec = host_spec();
    struct answer a = make(&spec);
    struct sandbox *b = sandbox_find(rooms.sandboxes, a.id);
    uint64_t was = b->end_unix_ms;
    rooms.config.max_timeout_s = 86400;
    sandbox_set_timeout(rooms.sandboxes, b, 10, true, NULL, NULL);
    assert_true(b->end_unix_ms == was);
    assert_int_equal(k.deadlines, 0);
    sandbox_set_timeout(rooms.sandboxes, b, 10, false, NULL, NULL);
    assert_true(b->end_unix_ms < was);
    sandbox_set_timeout(rooms.sandboxes, b, UINT64_MAX / 2000, false, NULL, NULL);
    assert_true(b->end_unix_ms <= b->started_unix_ms + 86402 * 1000ULL);
    struct metric m;
    assert_false(metrics_last(b, &m));
    metrics_start(rooms.sandboxes);
    for (int i = 0; i < 800; i++) {
        clock_add += 5000;
        step(1);
    }
    assert_true(metrics_last(b, &m));
    assert_int_equal(m.memory, 1000);
    assert_in_range(m.cpu_milli_used, 1, 110);
    int n = 0;
    metrics_each(b, 0, UINT64_MAX, count_metric, &n);
    assert_int_equal(n, METRICS_KEPT);
    metrics_free(rooms.sandboxes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_create_and_kill, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_refusals, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_failures_leave_nothing, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_admission, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_idempotency, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_idempotency_without_the_template, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_a_create_is_not_answered_again_before_keeper_knows_its_sandbox, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(test_a_create_that_was_cut_gives_its_key_back, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_a_tenant_pushes_out_its_own_keys, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_a_tenant_pushes_out_its_own_history, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_a_sandbox_that_died_before_it_was_answered_for_is_not_called_running,
                                        set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_a_sandbox_that_is_killed_while_it_is_made_is_not_there_afterwards, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(test_a_new_end_is_keepers_when_it_is_no_pause_any_more, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_late_answers, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_meeting, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_timeout_and_metrics, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
