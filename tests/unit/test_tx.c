/* Commits of transactions that do not come to an end at once: what may be done with the sandbox meanwhile, and what not. */
#include "await.h"
#include "base/clock.h"
#include "snapshots/transactions.h"

#include "sandboxes/sandboxes-int.h"
#include "snapshots/changes.h"
#include "snapshots/generations.h"
#include "trees/diff.h"

#include "sandboxes-world.h"

struct told {
    int calls;
    unsigned status;
    char text[512];
};
static void note(struct told *t, const struct state_failure *failure)
{
    t->calls++;
    t->status = failure ? failure->status : 0;
    (void)snprintf(t->text, sizeof t->text, "%s", failure ? failure->text : "");
}
static void told(void *arg, const struct state_failure *failure) { note(arg, failure); }
static void shot(void *arg, const struct template *t, const struct state_cost *cost,
                 const struct state_failure *failure)
{
    (void)t, (void)cost;
    note(arg, failure);
}
static void undone(void *arg, const struct layers_reply *r, const struct state_failure *failure)
{
    (void)r;
    note(arg, failure);
}
static void committed(void *arg, const struct layers_reply *r, const struct state_failure *failure, int fd)
{
    (void)r;
    assert_int_equal(fd, -1);
    note(arg, failure);
}
static void expect(struct told *t, unsigned status, const char *text)
{
    AWAIT (t->calls)
        step(1);
    assert_int_equal(t->calls, 1);
    assert_int_equal(t->status, status);
    if (!strstr(t->text, text))
        fail_msg("%s", t->text);
    *t = (struct told){0};
}
/* The next try comes after that time, not after half of it. */
static void next_try(uint64_t ms)
{
    int before = k.applies;
    clock_add += ms / 2;
    step(3);
    assert_int_equal(k.applies, before);
    clock_add += ms / 2 + 1;
    AWAIT (k.applies != before)
        step(1);
    assert_int_equal(k.applies, before + 1);
    step(3);
}

static struct sandbox *sandbox_;
static struct transaction *tx;

static void written(void *arg, const struct err *err)
{
    assert_null(err);
    *(bool *)arg = true;
}

/* The next front reads what this one wrote; keeper still has the sandbox. */
static void next_front(void)
{
    char id[SANDBOX_ID_MAX];
    memcpy(id, sandbox_->id, sizeof id);
    k.nitems = 1;
    k.items[0] = (struct keeper_item){.alive = 1, .frozen = k.frozen};
    (void)snprintf(k.items[0].id, sizeof k.items[0].id, "%s", id);
    stop();
    start();
    sandboxes_keeper_up(rooms.sandboxes);
    sandbox_ = sandbox_find(rooms.sandboxes, id);
    assert_non_null(sandbox_);
    tx = transaction_find(rooms.snapshots, id, "tx-1");
    assert_non_null(tx);
}

static int set_up_tx(void **state)
{
    struct told t = {0};
    struct sandbox_spec spec = host_spec();
    if (set_up(state) < 0)
        return -1;
    (void)mkdirat(rooms.dir_fd, "base", 0755);
    (void)snprintf(spec.desc.template, sizeof spec.desc.template, "%s", "base");
    spec.desc.timeout_s = 3600;
    sandbox_ = sandbox_find(rooms.sandboxes, make(&spec).id);
    struct db_transaction row = {.id = "tx-1",
                                 .sandbox = sandbox_->id,
                                 .tenant = who.tenant->id,
                                 .base = "st-aaaaaaaa",
                                 .result = "st-bbbbbbbb",
                                 .command = "true",
                                 .at_unix_ms = clock_unix_ms(),
                                 .state = DB_TRANSACTION_OPEN,
                                 .out = "",
                                 .err = ""};
    bool there = false; /* what is no longer queued may not be committed yet */
    db_transaction_put(rooms.db, &row, written, &there);
    AWAIT (there)
        step(1);
    next_front();
    sandbox_pause(rooms.sandboxes, sandbox_, true, told, &t);
    expect(&t, 0, "");
    assert_int_equal(sandbox_->state, SANDBOX_FROZEN);
    return 0;
}

/* --- tests ---------------------------------------------------------------------------------------------------------- */

static void test_until_it_is_settled_nothing_else_changes_the_files(void **state)
{
    (void)state;
    struct told commit = {0}, t = {0};
    static const char busy[] = TRANSACTION_COMMIT;
    k.hold_apply = true;
    transaction_commit(rooms.snapshots, sandbox_, tx, committed, &commit);
    AWAIT (k.applies)
        step(1);
    assert_int_equal(k.applies, 1);
    sandbox_resume(rooms.sandboxes, sandbox_, 0, told, &t);
    expect(&t, 503, busy);
    sandbox_unload(rooms.sandboxes, sandbox_, told, &t);
    expect(&t, 503, busy);
    sandbox_snapshot(rooms.snapshots, sandbox_, NULL, shot, &t);
    expect(&t, 503, busy);
    generation_undo(rooms.snapshots, sandbox_, 1, undone, &t);
    expect(&t, 503, busy);
    transaction_commit(rooms.snapshots, sandbox_, tx, committed, &t);
    expect(&t, 503, busy);
    k.hold_apply = false;
    k.held_apply(k.held_apply_arg, &(struct layers_reply){0}, -1);
    expect(&commit, 0, "");
    assert_null(transaction_find(rooms.snapshots, sandbox_->id, "tx-1"));
    sandbox_resume(rooms.sandboxes, sandbox_, 0, told, &t);
    expect(&t, 0, "");
    sandbox_pause(rooms.sandboxes, sandbox_, true, told, &t);
    expect(&t, 0, "");
}

static void test_between_two_tries_it_can_be_resumed(void **state)
{
    (void)state;
    struct told commit = {0}, t = {0};
    k.apply_error = LAYERS_BUSY; /* as when its disk is full: neither laid nor taken back */
    transaction_commit(rooms.snapshots, sandbox_, tx, committed, &commit);
    AWAIT (k.applies)
        step(1);
    step(3);
    k.hold_resume = true;
    sandbox_resume(rooms.sandboxes, sandbox_, 0, told, &t);
    clock_add += 2100;
    step(5);
    assert_int_equal(k.applies, 1); /* not while it is on its way */
    k.held_resume(k.held_resume_arg, &(struct keeper_reply){0});
    expect(&t, 0, "");
    assert_int_equal(sandbox_->state, SANDBOX_RUNNING);
    sandbox_pause(rooms.sandboxes, sandbox_, true, told, &t);
    expect(&t, 503, TRANSACTION_COMMIT);
    sandbox_snapshot(rooms.snapshots, sandbox_, NULL, shot, &t);
    expect(&t, 503, TRANSACTION_COMMIT);
    k.apply_error = LAYERS_OK; /* somebody made room */
    clock_add += 2100;
    expect(&commit, 0, "");
    assert_null(sandbox_->busy);
    assert_false(sandbox_->busy_waits);
    assert_null(transaction_find(rooms.snapshots, sandbox_->id, "tx-1"));
}

static void test_what_nobody_waits_for_is_tried_less_and_less(void **state)
{
    (void)state;
    struct told commit = {0};
    k.apply_error = LAYERS_BUSY;
    transaction_commit(rooms.snapshots, sandbox_, tx, committed, &commit);
    AWAIT (k.applies)
        step(1);
    step(3);
    while (!commit.calls)
        next_try(2000);
    expect(&commit, 503, "goes on by itself");
    for (uint64_t ms = 2000; ms < 60000; ms *= 2)
        next_try(ms);
    next_try(60000);
    next_try(60000);
    assert_string_equal(sandbox_->busy, TRANSACTION_COMMIT);
}

static void test_without_room_it_says_so_at_once_and_goes_on(void **state)
{
    (void)state;
    struct told commit = {0};
    k.apply_error = LAYERS_HALF;
    transaction_commit(rooms.snapshots, sandbox_, tx, committed, &commit);
    expect(&commit, 507, "goes on by itself when there is room");
    assert_int_equal(k.applies, 1);
    assert_string_equal(sandbox_->busy, TRANSACTION_COMMIT);
    k.apply_error = LAYERS_OK;
    clock_add += 5000;
    AWAIT (!sandbox_->busy)
        step(1);
    assert_null(transaction_find(rooms.snapshots, sandbox_->id, "tx-1"));
}

static void generated(void *arg, const struct generation *g, const struct state_failure *failure)
{
    (void)g;
    note(arg, failure);
}
static void count(void *arg, const struct transaction *t)
{
    (void)t;
    ++*(int *)arg;
}
static void test_an_undo_goes_on_with_the_next_front(void **state)
{
    (void)state;
    struct told t = {0};
    int seen = 0, applies;
    char to[STACK_ID_MAX], from[STACK_ID_MAX];
    generation_make(rooms.snapshots, sandbox_, "true", generated, &t);
    expect(&t, 0, "");
    memcpy(to, k.captured, sizeof to);
    k.apply_error = LAYERS_BUSY;
    generation_undo(rooms.snapshots, sandbox_, 1, undone, &t);
    AWAIT (k.applies)
        step(1);
    memcpy(from, k.captured, sizeof from);
    step(3);
    while (!t.calls)
        next_try(2000);
    expect(&t, 503, "goes on by itself");
    for (int i = 0; i < 2; i++) { /* it dies, too */
        next_front();
        assert_string_equal(sandbox_->busy, TRANSACTION_UNDO);
        sandbox_snapshot(rooms.snapshots, sandbox_, NULL, shot, &t);
        expect(&t, 503, TRANSACTION_UNDO);
    }
    transactions_each(rooms.snapshots, sandbox_->id, count, &seen);
    assert_int_equal(seen, 1); /* tx-1 */
    k.apply_error = LAYERS_OK;
    applies = k.applies;
    transactions_resume(rooms.snapshots);
    AWAIT (!sandbox_->busy)
        step(1);
    assert_int_equal(k.applies, applies + 1);
    assert_int_equal(k.apply_flags, LAYERS_BACK);
    assert_string_equal(k.apply_stack, to);
    assert_string_equal(k.apply_other, from);
    next_front();
    assert_null(sandbox_->busy);
    transactions_resume(rooms.snapshots);
    step(3);
    assert_int_equal(k.applies, applies + 1);
    assert_non_null(generation_find(rooms.snapshots, sandbox_->id, 2)); /* what there was */
}

static void test_an_undo_that_fails_is_over(void **state)
{
    (void)state;
    struct told t = {0};
    generation_make(rooms.snapshots, sandbox_, "true", generated, &t);
    expect(&t, 0, "");
    k.apply_error = LAYERS_NO_SPACE; /* it was taken back */
    generation_undo(rooms.snapshots, sandbox_, 1, undone, &t);
    expect(&t, 507, "because");
    assert_null(sandbox_->busy);
    next_front();
    assert_null(sandbox_->busy);
}

static void ran(void *arg, const struct transaction *t, const struct state_failure *failure)
{
    (void)t;
    note(arg, failure);
}

static void test_the_copy_has_the_variables_of_the_original(void **state)
{
    (void)state;
    struct told t = {0};
    struct transaction_spec spec = {.command = "true", .timeout_s = 1};
    int before = k.binds;
    sandbox_->desc.config = xcalloc(1, sizeof *sandbox_->desc.config);
    strv_add(&sandbox_->desc.config->env, "TOOL=template");
    strv_add(&sandbox_->desc.config->env, "OWN=template");
    strv_add(&sandbox_->desc.env, "OWN=sandbox");
    k.hold_bind = true;
    transaction_start(rooms.snapshots, sandbox_, &spec, ran, &t);
    AWAIT (k.binds != before)
        step(1);
    assert_int_equal(k.binds, before + 1);
    if (!strstr(k.env, "TOOL=template ") || !strstr(k.env, "OWN=sandbox ") || strstr(k.env, "OWN=template"))
        fail_msg("%s", k.env);
    links_gone(NULL, ""); /* and ends */
    expect(&t, 503, "ended");
}

/* Names are whatever a sandbox likes, and each byte of one may be six in an answer, which front holds in memory as a whole. */
static void test_a_list_of_changes_has_an_end_however_long_the_names_are(void **state)
{
    (void)state;
    enum { RECORDS = 1000, NAME = 4000 };
    char name[NAME];
    struct buf out = {0};
    struct json j;
    struct err err = {0};
    int fd = memfd_create("records", MFD_CLOEXEC);
    struct diff_record d = {.magic = DIFF_MAGIC, .kind = DIFF_ADDED, .path_len = NAME};
    memset(name, 1, sizeof name);
    for (int i = 0; i < RECORDS; i++) {
        assert_int_equal(write(fd, &d, sizeof d), sizeof d);
        assert_int_equal(write(fd, name, sizeof name), sizeof name);
    }
    d = (struct diff_record){.magic = DIFF_MAGIC};
    assert_int_equal(write(fd, &d, sizeof d), sizeof d);
    assert_int_equal(lseek(fd, 0, SEEK_SET), 0);
    json_start(&j, &out);
    json_obj(&j, NULL);
    assert_int_equal(changes_add(&j, fd, "", &err), 0);
    json_end_obj(&j);
    assert_in_range(out.n, CHANGES_BYTES_MAX / 2, CHANGES_BYTES_MAX + (64 << 10));
    assert_non_null(strstr(buf_str(&out), "\"total\":1000,\"truncated\":true"));
    buf_done(&out);
    (void)close(fd);
}

#define T(name) cmocka_unit_test_setup_teardown(name, set_up_tx, tear_down)
int main(void)
{
    const struct CMUnitTest tests[] = {
        T(test_the_copy_has_the_variables_of_the_original),
        T(test_until_it_is_settled_nothing_else_changes_the_files),
        T(test_between_two_tries_it_can_be_resumed),
        T(test_what_nobody_waits_for_is_tried_less_and_less),
        T(test_without_room_it_says_so_at_once_and_goes_on),
        T(test_an_undo_goes_on_with_the_next_front),
        T(test_an_undo_that_fails_is_over),
        cmocka_unit_test(test_a_list_of_changes_has_an_end_however_long_the_names_are),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
