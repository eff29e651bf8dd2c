/* Sandboxes that are paused, resumed, woken and paused by themselves. */
#include "await.h"
#include "base/clock.h"
#include "snapshots/snapshots.h"

#include "sandboxes-world.h"
#include "sandboxes/sandboxes-int.h"
#include "wal-syncs.h"

struct told {
    int calls;
    unsigned status;
    char text[512];
};
static void told(void *arg, const struct state_failure *failure)
{
    struct told *t = arg;
    t->calls++;
    t->status = failure ? failure->status : 0;
    (void)snprintf(t->text, sizeof t->text, "%s", failure ? failure->text : "");
}
static void await(struct told *t)
{
    AWAIT (t->calls != 0)
        step(1);
    assert_int_equal(t->calls, 1);
}
static void expect_told(struct told *t, unsigned status, const char *text)
{
    await(t);
    if (t->status != status || !strstr(t->text, text))
        fail_msg("expected %u \"%s\", got %u \"%s\"", status, text, t->status, t->text);
}
static void ended_ok(void *arg, bool ok) { *(int *)arg = ok ? 1 : 2; }

static struct sandbox *make_base(struct sandbox_spec *spec)
{
    (void)mkdirat(rooms.dir_fd, "base", 0755);
    (void)snprintf(spec->desc.template, sizeof spec->desc.template, "%s", "base");
    struct answer a = make(spec);
    if (a.status)
        fail_msg("%u %s", a.status, a.text);
    return sandbox_find(rooms.sandboxes, a.id);
}
static struct sandbox *base_sandbox(void)
{
    struct sandbox_spec spec = host_spec();
    return make_base(&spec);
}
static void pause_ok(struct sandbox *b, bool memory)
{
    struct told t = {0};
    sandbox_pause(rooms.sandboxes, b, memory, told, &t);
    assert_int_equal(t.calls, 0);
    expect_told(&t, 0, "");
    assert_int_equal(b->state, memory ? SANDBOX_FROZEN : SANDBOX_STORED);
}
static void resume_ok(struct sandbox *b)
{
    struct told t = {0};
    sandbox_resume(rooms.sandboxes, b, 0, told, &t);
    expect_told(&t, 0, "");
    assert_int_equal(b->state, SANDBOX_RUNNING);
}
static void keeper_says(const char *id, bool frozen, uint64_t deadline)
{
    memset(k.items, 0, sizeof k.items);
    (void)snprintf(k.items[0].id, sizeof k.items[0].id, "%s", id);
    k.items[0].alive = 1;
    k.items[0].frozen = frozen;
    k.items[0].deadline_ms = deadline;
    k.nitems = 1;
}
static void keeper_comes_with(const char *id, bool frozen, uint64_t deadline)
{
    keeper_says(id, frozen, deadline);
    sandboxes_keeper_up(rooms.sandboxes);
    step(3);
}
static uint64_t boot_ms(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_BOOTTIME, &t);
    return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}
#define FAR_AWAY (boot_ms() + 5ULL * 365 * 86400 * 1000)

static void test_memory_pause_freezes_and_takes_the_deadline_away(void **state)
{
    (void)state;
    struct sandbox *b = base_sandbox();
    pause_ok(b, true);
    assert_int_equal(k.pauses, 1);
    assert_int_equal(k.captures, 0);
    assert_int_equal(k.kills, 0);
    assert_int_equal(k.links_paused, 1);
    assert_true(k.deadline > FAR_AWAY);
    assert_int_equal(who.tenant->sandboxes, 1); /* its memory is still in use */
    resume_ok(b);
    assert_int_equal(k.resumes, 1);
    assert_int_equal(k.creates, 1);
    assert_true(k.deadline < FAR_AWAY);
    assert_true(b->end_unix_ms > b->started_unix_ms);
}

static void test_a_second_pause_is_a_conflict_and_a_resume_of_a_running_sandbox_is_none(void **state)
{
    (void)state;
    struct sandbox *b = base_sandbox();
    struct told t = {0}, again = {0};
    pause_ok(b, true);
    sandbox_pause(rooms.sandboxes, b, true, told, &t);
    expect_told(&t, 409, "paused already");
    resume_ok(b);
    sandbox_resume(rooms.sandboxes, b, 0, told, &again);
    expect_told(&again, 0, "");
    assert_int_equal(k.resumes, 1);
}

static void test_files_pause_keeps_everything_but_the_processes(void **state)
{
    (void)state;
    struct sandbox_spec spec = host_spec();
    strv_add(&spec.desc.env, "A=1");
    struct sandbox *b = make_base(&spec);
    strv_done(&spec.desc.env);
    char id[SANDBOX_ID_MAX], token[64], first[STACK_ID_MAX];
    memcpy(id, b->id, sizeof id);
    memcpy(token, b->token, sizeof token);
    pause_ok(b, false);
    assert_int_equal(k.captures, 1);
    assert_int_equal(k.capture_flags, 0); /* it stands still already */
    assert_int_equal(k.kills, 1);
    assert_string_equal(b->desc.stack, k.captured);
    memcpy(first, b->desc.stack, sizeof first);
    assert_int_equal(who.tenant->sandboxes, 0);
    assert_int_equal(who.tenant->stored, 1);
    assert_int_equal(sandboxes_count(rooms.sandboxes), 0);
    /* A reboot later. */
    stop();
    k.nitems = 0;
    start();
    sandboxes_keeper_up(rooms.sandboxes);
    b = sandbox_of(rooms.sandboxes, &who, id);
    assert_non_null(b);
    assert_int_equal(b->state, SANDBOX_STORED);
    k.env[0] = 0;
    resume_ok(b);
    assert_string_equal(k.last_id, id);
    assert_string_equal(k.template, first);
    assert_non_null(strstr(k.env, "A=1"));
    assert_string_equal(b->token, token);
    assert_int_equal(who.tenant->sandboxes, 1);
    assert_int_equal(who.tenant->stored, 0);
    /* The next pause has a stack of its own; only then the first is dropped. */
    assert_false(was_dropped(first));
    pause_ok(b, false);
    step(5);
    assert_string_not_equal(b->desc.stack, first);
    assert_true(was_dropped(first));
    assert_false(was_dropped(b->desc.stack));
}

static void test_a_capture_that_fails_leaves_it_running(void **state)
{
    (void)state;
    struct sandbox *b = base_sandbox();
    struct told t = {0};
    k.capture_error = LAYERS_NO_SPACE;
    sandbox_pause(rooms.sandboxes, b, false, told, &t);
    expect_told(&t, 507, "because");
    assert_int_equal(b->state, SANDBOX_RUNNING);
    assert_false(k.frozen);
    assert_int_equal(k.kills, 0);
    assert_string_equal(b->desc.stack, "");
    assert_true(k.deadline < FAR_AWAY);
    /* And a restart finds it so. */
    char id[SANDBOX_ID_MAX];
    memcpy(id, b->id, sizeof id);
    stop();
    start();
    assert_int_equal(sandbox_find(rooms.sandboxes, id)->state, SANDBOX_RUNNING);
}

static void test_a_host_that_cannot_freeze_says_so(void **state)
{
    (void)state;
    struct sandbox *b = base_sandbox();
    struct told t = {0};
    assert_int_equal(state_ability(rooms.sandboxes).freeze, -1);
    k.pause_error = KEEPER_HOST;
    sandbox_pause(rooms.sandboxes, b, true, told, &t);
    expect_told(&t, 501, "cannot be frozen");
    assert_int_equal(b->state, SANDBOX_RUNNING);
    assert_int_equal(state_ability(rooms.sandboxes).freeze, 0);
}

static void test_the_host_template_has_no_files_to_keep(void **state)
{
    (void)state;
    struct sandbox_spec spec = host_spec();
    struct answer a = make(&spec);
    struct sandbox *b = sandbox_find(rooms.sandboxes, a.id);
    struct told t = {0};
    sandbox_pause(rooms.sandboxes, b, false, told, &t);
    expect_told(&t, 400, "no files of its own");
    pause_ok(b, true);
}

static void test_those_who_resume_at_once_share_it(void **state)
{
    (void)state;
    struct sandbox *b = base_sandbox();
    struct told t[3] = {{0}};
    pause_ok(b, true);
    k.hold_resume = true;
    for (int i = 0; i < 3; i++)
        sandbox_awake(rooms.sandboxes, b, false, told, &t[i]);
    step(3);
    assert_int_equal(t[0].calls + t[1].calls + t[2].calls, 0);
    assert_int_equal(k.resumes, 1);
    k.held_resume(k.held_resume_arg, &(struct keeper_reply){0});
    for (int i = 0; i < 3; i++)
        expect_told(&t[i], 0, "");
    assert_int_equal(k.resumes, 1);
}

static void test_traffic_wakes_only_where_it_may(void **state)
{
    (void)state;
    struct sandbox_spec spec = host_spec();
    struct sandbox *b = base_sandbox();
    struct told t = {0}, w = {0}, running = {0};
    pause_ok(b, true);
    sandbox_awake(rooms.sandboxes, b, true, told, &t);
    expect_told(&t, 502, "not woken by traffic");
    assert_int_equal(b->state, SANDBOX_FROZEN);
    spec.desc.life.auto_resume = true;
    b = make_base(&spec);
    pause_ok(b, true);
    sandbox_awake(rooms.sandboxes, b, true, told, &w);
    expect_told(&w, 0, "");
    assert_int_equal(b->state, SANDBOX_RUNNING);
    sandbox_awake(rooms.sandboxes, b, true, told, &running);
    assert_int_equal(running.calls, 1); /* at once */
}

static void test_traffic_waits_for_a_snapshot_of_a_paused_sandbox(void **state)
{
    (void)state;
    struct sandbox_spec spec = host_spec();
    struct told visitor = {0}, owner = {0}, late = {0};
    spec.desc.life.auto_resume = true;
    struct sandbox *b = make_base(&spec);
    pause_ok(b, true);
    assert_true(sandbox_begin(b, "a snapshot"));
    sandbox_awake(rooms.sandboxes, b, true, told, &visitor);
    sandbox_resume(rooms.sandboxes, b, 0, told, &owner);
    expect_told(&owner, 503, "a snapshot of the sandbox is under way");
    step(3);
    assert_int_equal(visitor.calls, 0);
    sandbox_finish(rooms.sandboxes, b->id);
    clock_add += 100;
    expect_told(&visitor, 0, "");
    assert_int_equal(b->state, SANDBOX_RUNNING);
    pause_ok(b, true);
    assert_true(sandbox_begin(b, "a snapshot"));
    sandbox_awake(rooms.sandboxes, b, true, told, &late);
    step(1);
    clock_add += SANDBOX_CHANGE_MS + 1;
    expect_told(&late, 503, "a snapshot of the sandbox is under way");
    sandbox_finish(rooms.sandboxes, b->id);
}

static void test_a_resume_during_the_pause_follows_it(void **state)
{
    (void)state;
    struct sandbox *b = base_sandbox();
    struct told p = {0}, r = {0};
    k.hold_pause = true;
    sandbox_pause(rooms.sandboxes, b, true, told, &p);
    assert_true(sandbox_is_pausing(b));
    sandbox_resume(rooms.sandboxes, b, 0, told, &r);
    k.hold_pause = false;
    k.held_pause(k.held_pause_arg, &(struct keeper_reply){0});
    expect_told(&p, 0, "");
    expect_told(&r, 0, "");
    assert_int_equal(b->state, SANDBOX_RUNNING);
}

static void test_kill_works_in_every_state(void **state)
{
    (void)state;
    int done = 0;
    struct sandbox *b = base_sandbox();
    pause_ok(b, true);
    sandbox_kill(rooms.sandboxes, b, "api", ended_ok, &done);
    assert_int_equal(done, 1);
    assert_int_equal(k.kills, 1);

    b = base_sandbox();
    char stack[STACK_ID_MAX];
    pause_ok(b, false);
    memcpy(stack, b->desc.stack, sizeof stack);
    int kills = k.kills;
    done = 0;
    sandbox_kill(rooms.sandboxes, b, "api", ended_ok, &done);
    step(5);
    assert_int_equal(done, 1);
    assert_int_equal(k.kills, kills); /* nothing lives */
    assert_true(was_dropped(stack));
    assert_int_equal(who.tenant->stored, 0);
    assert_int_equal(who.tenant->sandboxes, 0);

    b = base_sandbox();
    struct told p = {0};
    k.hold_capture = true;
    sandbox_pause(rooms.sandboxes, b, false, told, &p);
    step(3);
    done = 0;
    sandbox_kill(rooms.sandboxes, b, "api", ended_ok, &done);
    expect_told(&p, 404, "has ended");
    assert_int_equal(done, 1);
    step(3);
    /* The capture comes too late; what it made goes again. */
    k.held_capture(k.held_capture_arg, &(struct layers_reply){0}, -1);
    step(5);
    assert_true(was_dropped(k.captured));
    assert_int_equal(sandboxes_count(rooms.sandboxes), 0);
    assert_int_equal(who.tenant->sandboxes, 0);
}

static unsigned syncs_at_drop;
static void note_syncs(void) { syncs_at_drop = wal_syncs(); }

/* A power cut right after may bring the row back if that it is gone is not on the disk: it would name files that are gone. */
static void test_files_go_when_the_row_is_gone_for_good(void **state)
{
    (void)state;
    int done = 0;
    struct sandbox *b = base_sandbox();
    pause_ok(b, false);
    k.on_drop = note_syncs;
    unsigned before = wal_syncs();
    sandbox_kill(rooms.sandboxes, b, "api", ended_ok, &done);
    AWAIT (k.drops > 0)
        step(1);
    assert_int_equal(done, 1);
    assert_int_equal(k.drops, 1);
    assert_true(syncs_at_drop > before);
}

static void test_a_kill_while_it_is_made_again(void **state)
{
    (void)state;
    int done = 0;
    struct sandbox *b = base_sandbox();
    struct told r = {0};
    pause_ok(b, false);
    k.hold_create = true;
    sandbox_resume(rooms.sandboxes, b, 0, told, &r);
    assert_true(sandbox_is_resuming(b));
    assert_int_equal(who.tenant->sandboxes, 1);
    int kills = k.kills;
    sandbox_kill(rooms.sandboxes, b, "api", ended_ok, &done);
    expect_told(&r, 404, "has ended");
    assert_int_equal(done, 1);
    assert_int_equal(k.kills, kills + 1);
    /* keeper had made it nevertheless. */
    k.held_create(k.held_create_arg, &(struct keeper_reply){0});
    assert_int_equal(k.kills, kills + 2);
    step(3);
    assert_int_equal(who.tenant->sandboxes, 0);
    assert_int_equal(who.tenant->stored, 0);
}

static void test_a_resume_that_fails_leaves_it_stored(void **state)
{
    (void)state;
    struct sandbox *b = base_sandbox();
    struct told r = {0}, again = {0};
    pause_ok(b, false);
    k.bind_code = LINK_GONE;
    sandbox_resume(rooms.sandboxes, b, 0, told, &r);
    expect_told(&r, 503, "ended while it was being resumed");
    assert_int_equal(b->state, SANDBOX_STORED);
    assert_int_equal(who.tenant->sandboxes, 0);
    assert_int_equal(who.tenant->stored, 1);
    k.bind_code = LINK_OK;
    k.create_error = KEEPER_CAPACITY;
    sandbox_resume(rooms.sandboxes, b, 0, told, &again);
    expect_told(&again, 503, "because");
    k.create_error = 0;
    resume_ok(b);
}

static void test_a_resume_needs_room_in_the_quota(void **state)
{
    (void)state;
    struct sandbox *b = base_sandbox();
    struct told r = {0};
    pause_ok(b, false);
    who.tenant->quota.sandboxes = 1;
    (void)base_sandbox();
    sandbox_resume(rooms.sandboxes, b, 0, told, &r);
    expect_told(&r, 429, "quota of sandboxes");
    assert_int_equal(b->state, SANDBOX_STORED);
    who.tenant->quota.sandboxes = 0;
    resume_ok(b);
}

/* --- dying fronts -------------------------------------------------------------------------------------------------- */

static char life[SANDBOX_ID_MAX];

static void test_dead_before_the_row_says_frozen_it_goes_on(void **state)
{
    (void)state;
    struct sandbox *b = base_sandbox();
    memcpy(life, b->id, sizeof life);
    k.hold_pause = true;
    sandbox_pause(rooms.sandboxes, b, true, NULL, NULL);
    stop();
    k.hold_pause = false;
    start();
    keeper_comes_with(life, true, FAR_AWAY + (SANDBOX_FAR_S / 2) * 1000ULL);
    assert_int_equal(sandbox_find(rooms.sandboxes, life)->state, SANDBOX_RUNNING);
    assert_int_equal(k.resumes, 1);
    assert_true(k.deadline < FAR_AWAY);
}

static void test_dead_after_a_thaw_that_nobody_was_told_of_it_is_frozen_again(void **state)
{
    (void)state;
    struct sandbox *b = base_sandbox();
    memcpy(life, b->id, sizeof life);
    pause_ok(b, true);
    stop();
    start();
    keeper_comes_with(life, false, 0);
    assert_int_equal(sandbox_find(rooms.sandboxes, life)->state, SANDBOX_FROZEN);
    assert_int_equal(k.pauses, 2);
    keeper_says(life, true, 0);
    sandboxes_keeper_up(rooms.sandboxes);
    assert_int_equal(k.pauses, 2);
}

static void test_dead_during_a_capture_nothing_is_lost(void **state)
{
    (void)state;
    struct sandbox *b = base_sandbox();
    memcpy(life, b->id, sizeof life);
    k.hold_capture = true;
    sandbox_pause(rooms.sandboxes, b, false, NULL, NULL);
    step(3);
    stop();
    free(k.held_capture_arg); /* died with the rest */
    k.hold_capture = false;
    start();
    keeper_comes_with(life, true, FAR_AWAY + (SANDBOX_FAR_S / 2) * 1000ULL);
    assert_int_equal(sandbox_find(rooms.sandboxes, life)->state, SANDBOX_RUNNING);
    assert_int_equal(k.kills, 0);
    assert_int_equal(k.resumes, 1);
}

static void test_what_lives_of_a_stored_sandbox_is_killed(void **state)
{
    (void)state;
    struct sandbox *b = base_sandbox();
    memcpy(life, b->id, sizeof life);
    pause_ok(b, false);
    stop();
    start();
    int kills = k.kills;
    keeper_comes_with(life, true, 0);
    assert_int_equal(k.kills, kills + 1);
    assert_int_equal(sandbox_find(rooms.sandboxes, life)->state, SANDBOX_STORED);
    /* Its death is no end of the sandbox either. */
    struct keeper_death d = {.cause = KEEPER_DIED_KILLED};
    (void)snprintf(d.id, sizeof d.id, "%s", life);
    sandboxes_keeper_died(rooms.sandboxes, &d);
    assert_int_equal(sandbox_find(rooms.sandboxes, life)->state, SANDBOX_STORED);
}

/* What is logged while the layer store's list of nothing is compared. */
static bool warned_of_missing_files(void)
{
    char text[4096] = "";
    int pipe_[2];
    assert_int_equal(pipe(pipe_), 0);
    log_open("test", LOG_LEVEL_ERROR, pipe_[1]);
    k.held_list(k.held_list_arg, NULL, 0, NULL);
    log_open("test", LOG_LEVEL_ERROR, 2);
    (void)close(pipe_[1]);
    ssize_t n = read(pipe_[0], text, sizeof text - 1);
    text[n > 0 ? n : 0] = '\0';
    (void)close(pipe_[0]);
    return strstr(text, "are not in the store") != NULL;
}

static void test_files_of_a_pause_during_the_comparison_are_not_called_missing(void **state)
{
    (void)state;
    struct sandbox *b = base_sandbox();
    k.hold_list = true;
    state_meet(rooms.stacks);
    pause_ok(b, false); /* the layer store's list is older than that */
    assert_false(warned_of_missing_files());
    state_meet(rooms.stacks);
    assert_true(warned_of_missing_files());
}

static void test_a_frozen_sandbox_ends_with_the_machine(void **state)
{
    (void)state;
    struct sandbox *b = base_sandbox();
    memcpy(life, b->id, sizeof life);
    pause_ok(b, true);
    stop();
    start();
    ends = 0;
    keeper_says(life, false, 0);
    k.items[0].alive = 0;
    k.items[0].cause = KEEPER_DIED_BOOT;
    sandboxes_keeper_up(rooms.sandboxes);
    assert_null(sandbox_find(rooms.sandboxes, life));
    assert_int_equal(ends, 1);
    assert_string_equal(end_cause, "machine_restarted");
}

/* --- by themselves ------------------------------------------------------------------------------------------------- */

static void test_at_its_end_it_is_paused_not_killed(void **state)
{
    (void)state;
    struct sandbox_spec spec = host_spec();
    spec.desc.life.auto_pause = true;
    spec.desc.timeout_s = 1;
    struct sandbox *b = make_base(&spec);
    assert_true(k.last.deadline_ms > FAR_AWAY); /* keeper does not end it */
    memcpy(life, b->id, sizeof life);
    AWAIT (b->state == SANDBOX_FROZEN)
        step(1);
    assert_int_equal(b->state, SANDBOX_FROZEN);
    assert_int_equal(k.kills, 0);
    /* Resumed it has its time again, and keeps its habit. */
    struct told r = {0};
    sandbox_resume(rooms.sandboxes, b, 3600, told, &r);
    expect_told(&r, 0, "");
    assert_true(k.deadline > FAR_AWAY);
    assert_int_equal(b->desc.timeout_s, 3600);
}

static void test_what_ends_while_it_is_resumed_is_paused_after_that(void **state)
{
    (void)state;
    struct sandbox_spec spec = host_spec();
    struct told r = {0};
    spec.desc.life.auto_pause = true;
    struct sandbox *b = make_base(&spec);
    pause_ok(b, true);
    k.hold_resume = true;
    sandbox_resume(rooms.sandboxes, b, 1, told, &r);
    for (uint64_t end = clock_boot_ms() + 1100; clock_boot_ms() < end;)
        step(1);
    assert_true(sandbox_is_resuming(b));
    k.hold_resume = false;
    k.held_resume(k.held_resume_arg, &(struct keeper_reply){0});
    expect_told(&r, 0, "");
    AWAIT (b->state == SANDBOX_FROZEN)
        step(1);
    assert_int_equal(b->state, SANDBOX_FROZEN);
    assert_int_equal(k.kills, 0);
}

static void test_at_its_end_it_is_killed_where_nothing_can_be_kept(void **state)
{
    (void)state;
    struct sandbox_spec spec = host_spec();
    spec.desc.life.auto_pause = true;
    spec.desc.timeout_s = 1;
    k.pause_error = KEEPER_HOST;
    struct sandbox *b = make_base(&spec);
    /* Files are copied while it stands still, so that is refused, too. */
    AWAIT (k.kills != 0)
        step(1);
    assert_true(k.pauses >= 2);
    assert_int_equal(k.kills, 1);
    (void)b;
}

static void test_without_traffic_it_is_paused(void **state)
{
    (void)state;
    struct sandbox_spec spec = host_spec();
    spec.desc.life.idle_s = 100; /* the machine's own time counts too, and may be some seconds */
    struct sandbox *b = make_base(&spec);
    step(3);
    clock_add += 60000;
    step(3);
    assert_int_equal(b->state, SANDBOX_RUNNING);
    sandbox_in_use(rooms.sandboxes, b);
    clock_add += 200000;
    step(3);
    assert_int_equal(b->state, SANDBOX_RUNNING); /* somebody is there */
    sandbox_unused(rooms.sandboxes, b->id);
    clock_add += 60000;
    step(3);
    assert_int_equal(b->state, SANDBOX_RUNNING);
    clock_add += 41000;
    AWAIT (b->state == SANDBOX_FROZEN)
        step(1);
    assert_int_equal(b->state, SANDBOX_FROZEN);
}

static void test_two_changes_of_the_files_at_once_are_refused(void **state)
{
    (void)state;
    struct sandbox *b = base_sandbox();
    struct told t = {0};
    assert_true(sandbox_begin(b, "a snapshot"));
    assert_false(sandbox_begin(b, "a fork"));
    sandbox_pause(rooms.sandboxes, b, true, told, &t);
    expect_told(&t, 503, "a snapshot of the sandbox is under way");
    sandbox_finish(rooms.sandboxes, b->id);
    pause_ok(b, true);
}

static void test_a_frozen_sandbox_can_let_go_of_its_memory(void **state)
{
    (void)state;
    struct sandbox *b = base_sandbox();
    struct told t = {0};
    pause_ok(b, true);
    sandbox_unload(rooms.sandboxes, b, told, &t);
    expect_told(&t, 0, "");
    assert_int_equal(b->state, SANDBOX_STORED);
    assert_int_equal(k.captures, 1);
    assert_int_equal(k.kills, 1);
    resume_ok(b);
    assert_string_equal(k.template, b->desc.stack);
}

static void test_paused_sandboxes_count_in_the_tenants_quota(void **state)
{
    (void)state;
    struct sandbox_spec spec = host_spec();
    struct state_failure why = {0};
    struct sandbox *b = base_sandbox();
    pause_ok(b, false);
    assert_int_equal(state_kept(rooms.stacks, who.tenant).count, 1);
    assert_int_equal(state_kept(rooms.stacks, who.tenant).size.bytes, 4096);
    who.tenant->quota.snapshots = 1;
    assert_false(state_room(rooms.stacks, who.tenant, 1, STATE_NOTHING, &why));
    assert_int_equal(why.status, 429);
    assert_string_equal(why.error_code, "quota_exceeded");
    spec.desc.life.auto_pause = true;
    (void)snprintf(spec.desc.template, sizeof spec.desc.template, "%s", "base");
    struct answer a = make(&spec);
    assert_int_equal(a.status, 429);
    who.tenant->quota.snapshots = 0;
    who.tenant->quota.state_bytes = 4096;
    assert_false(state_room(rooms.stacks, who.tenant, 1, STATE_NOTHING, &why));
    assert_non_null(strstr(why.text, "storage"));
}

static void test_a_pause_as_files_needs_room_in_the_quota(void **state)
{
    (void)state;
    struct told t = {0};
    struct sandbox *kept = base_sandbox(), *b = base_sandbox();
    pause_ok(kept, false);
    who.tenant->quota.snapshots = 1;
    sandbox_pause(rooms.sandboxes, b, false, told, &t);
    expect_told(&t, 429, "quota");
    assert_int_equal(b->state, SANDBOX_RUNNING);
    assert_int_equal(k.captures, 1);
    t = (struct told){0};
    sandbox_pause_anyway(rooms.sandboxes, b, false, told, &t); /* as at the end of its life */
    expect_told(&t, 0, "");
    assert_int_equal(b->state, SANDBOX_STORED);
    /* One in memory keeps its place among those that run; its files need room like any. */
    struct sandbox *frozen = base_sandbox();
    pause_ok(frozen, true);
    who.tenant->quota.state_bytes = 2 * 4096;
    t = (struct told){0};
    sandbox_unload(rooms.sandboxes, frozen, told, &t);
    expect_told(&t, 429, "quota");
    assert_int_equal(frozen->state, SANDBOX_FROZEN);
}

static void test_who_has_much_waiting_for_the_store_is_refused(void **state)
{
    (void)state;
    struct told t = {0};
    struct sandbox *b = base_sandbox();
    k.waiting = 8;
    sandbox_pause(rooms.sandboxes, b, false, told, &t);
    expect_told(&t, 429, "wait for the store");
    k.waiting = 7;
    pause_ok(b, false);
    assert_string_equal(k.owner, who.tenant->id);
}

static void test_a_sandbox_gets_an_automatic_pause_only_if_there_is_room(void **state)
{
    (void)state;
    struct sandbox *kept = base_sandbox(), *b = base_sandbox();
    struct sandbox_life next = b->desc.life;
    struct state_failure why = {0};
    pause_ok(kept, false);
    who.tenant->quota.snapshots = 1;
    next.auto_resume = true;
    assert_true(sandbox_life_room(rooms.sandboxes, b, &next, &why));
    next.auto_pause = true;
    assert_false(sandbox_life_room(rooms.sandboxes, b, &next, &why));
    assert_int_equal(why.status, 429);
    b->desc.life.auto_pause = true; /* it has it already */
    assert_true(sandbox_life_room(rooms.sandboxes, b, &next, &why));
    assert_true(sandbox_life_room(rooms.sandboxes, kept, &next, &why)); /* it has its place already */
}

static void test_a_kill_that_fails_leaves_it_as_it_was(void **state)
{
    (void)state;
    int done = 0;
    struct sandbox *b = base_sandbox(), *frozen = base_sandbox(), *runs = base_sandbox(), *half = base_sandbox();
    pause_ok(b, false);
    sandbox_own(b)->leftover = true;
    pause_ok(frozen, true);
    k.kill_error = KEEPER_FAILED;
    sandbox_kill(rooms.sandboxes, b, "api", ended_ok, &done);
    assert_int_equal(done, 2);
    assert_int_equal(b->state, SANDBOX_STORED);
    sandbox_kill(rooms.sandboxes, frozen, "api", NULL, NULL);
    assert_int_equal(frozen->state, SANDBOX_FROZEN);
    sandbox_kill(rooms.sandboxes, runs, "api", NULL, NULL);
    assert_int_equal(runs->state, SANDBOX_RUNNING);
    assert_int_equal(k.resumes, 0);
    k.hold_capture = true; /* on its way: it stands still by now */
    sandbox_pause(rooms.sandboxes, half, false, NULL, NULL);
    step(3);
    sandbox_kill(rooms.sandboxes, half, "api", NULL, NULL);
    assert_int_equal(half->state, SANDBOX_RUNNING);
    assert_int_equal(k.resumes, 1);
    k.held_capture(k.held_capture_arg, &(struct layers_reply){0}, -1);
    k.kill_error = 0;
    resume_ok(b);
    assert_int_equal(who.tenant->sandboxes, 4);
}

/* keeper was told when it ends, and that is something else by now. */
static void test_what_is_to_happen_at_its_end_can_be_changed_while_it_is_resumed(void **state)
{
    (void)state;
    struct sandbox *b = base_sandbox();
    struct sandbox_life next = b->desc.life;
    struct told made = {0}, thawed = {0};
    int changed = 0;
    pause_ok(b, false);
    k.hold_bind = true;
    sandbox_resume(rooms.sandboxes, b, 0, told, &made);
    AWAIT (k.held_bind)
        step(1);
    assert_true(k.last.deadline_ms < FAR_AWAY);
    next.auto_pause = true;
    sandbox_set_life(rooms.sandboxes, b, &next, ended_ok, &changed);
    AWAIT (changed)
        step(1);
    assert_int_equal(changed, 1);
    assert_true(sandbox_is_resuming(b));
    k.hold_bind = false;
    k.held_bind(k.held_bind_arg, &(struct link_status){.code = LINK_OK});
    expect_told(&made, 0, "");
    assert_true(k.deadline > FAR_AWAY); /* else keeper would end it */
    pause_ok(b, true);
    sandbox_resume(rooms.sandboxes, b, 0, told, &thawed);
    assert_true(sandbox_is_resuming(b));
    next.auto_pause = false;
    sandbox_set_life(rooms.sandboxes, b, &next, NULL, NULL);
    expect_told(&thawed, 0, "");
    assert_true(k.deadline < FAR_AWAY); /* else nobody would */
}

static void test_who_comes_late_to_a_change_waits_no_longer_than_others(void **state)
{
    (void)state;
    struct sandbox *b = base_sandbox();
    struct told p = {0}, early = {0}, late = {0};
    k.hold_capture = true;
    sandbox_pause(rooms.sandboxes, b, false, told, &p);
    AWAIT (k.held_capture)
        step(1);
    sandbox_resume(rooms.sandboxes, b, 0, told, &early);
    clock_add += SANDBOX_CHANGE_MS + 1;
    expect_told(&p, 503, "still on its way");
    expect_told(&early, 503, "still on its way");
    sandbox_resume(rooms.sandboxes, b, 0, told, &late);
    step(3);
    assert_int_equal(late.calls, 0);
    clock_add += SANDBOX_CHANGE_MS + 1;
    expect_told(&late, 503, "still on its way");
    k.held_capture(k.held_capture_arg, &(struct layers_reply){.bytes = 4096}, -1);
    AWAIT (b->state == SANDBOX_STORED)
        step(1);
    assert_int_equal(b->state, SANDBOX_STORED);
}

static void test_a_hidden_sandbox_that_is_counted_needs_room_and_gives_it_back(void **state)
{
    (void)state;
    struct sandbox_spec spec = {
        .desc.template = STACK_EMPTY, .desc.timeout_s = 60, .desc.secure = true, .desc.hidden = true};
    who.tenant->quota.sandboxes = 1;
    (void)base_sandbox();
    struct answer a = make(&spec);
    assert_int_equal(a.status, 0);
    assert_int_equal(who.tenant->sandboxes, 1);
    spec.desc.counted = true;
    a = make(&spec);
    assert_int_equal(a.status, 429);
    assert_string_equal(a.code, "quota_exceeded");
    who.tenant->quota.sandboxes = 2;
    a = make(&spec);
    assert_int_equal(a.status, 0);
    assert_int_equal(who.tenant->sandboxes, 2);
    sandbox_kill(rooms.sandboxes, sandbox_find(rooms.sandboxes, a.id), "test", NULL, NULL);
    assert_int_equal(who.tenant->sandboxes, 1);
    k.create_error = KEEPER_FAILED;
    assert_int_equal(make(&spec).status, 500);
    assert_int_equal(who.tenant->sandboxes, 1);
}

#define T(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
int main(void)
{
    const struct CMUnitTest tests[] = {
        T(test_memory_pause_freezes_and_takes_the_deadline_away),
        T(test_a_second_pause_is_a_conflict_and_a_resume_of_a_running_sandbox_is_none),
        T(test_files_pause_keeps_everything_but_the_processes),
        T(test_a_capture_that_fails_leaves_it_running),
        T(test_a_host_that_cannot_freeze_says_so),
        T(test_the_host_template_has_no_files_to_keep),
        T(test_those_who_resume_at_once_share_it),
        T(test_traffic_wakes_only_where_it_may),
        T(test_traffic_waits_for_a_snapshot_of_a_paused_sandbox),
        T(test_a_resume_during_the_pause_follows_it),
        T(test_kill_works_in_every_state),
        T(test_files_go_when_the_row_is_gone_for_good),
        T(test_a_kill_while_it_is_made_again),
        T(test_a_resume_that_fails_leaves_it_stored),
        T(test_a_resume_needs_room_in_the_quota),
        T(test_dead_before_the_row_says_frozen_it_goes_on),
        T(test_dead_after_a_thaw_that_nobody_was_told_of_it_is_frozen_again),
        T(test_dead_during_a_capture_nothing_is_lost),
        T(test_what_lives_of_a_stored_sandbox_is_killed),
        T(test_files_of_a_pause_during_the_comparison_are_not_called_missing),
        T(test_a_frozen_sandbox_ends_with_the_machine),
        T(test_at_its_end_it_is_paused_not_killed),
        T(test_what_ends_while_it_is_resumed_is_paused_after_that),
        T(test_at_its_end_it_is_killed_where_nothing_can_be_kept),
        T(test_without_traffic_it_is_paused),
        T(test_two_changes_of_the_files_at_once_are_refused),
        T(test_a_frozen_sandbox_can_let_go_of_its_memory),
        T(test_paused_sandboxes_count_in_the_tenants_quota),
        T(test_a_pause_as_files_needs_room_in_the_quota),
        T(test_who_has_much_waiting_for_the_store_is_refused),
        T(test_a_sandbox_gets_an_automatic_pause_only_if_there_is_room),
        T(test_a_kill_that_fails_leaves_it_as_it_was),
        T(test_what_is_to_happen_at_its_end_can_be_changed_while_it_is_resumed),
        T(test_who_comes_late_to_a_change_waits_no_longer_than_others),
        T(test_a_hidden_sandbox_that_is_counted_needs_room_and_gives_it_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
