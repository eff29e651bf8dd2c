/* How much a tenant keeps: layers, each once, whatever is resumed, copied, removed, trimmed or flattened. */
#include "await.h"
#include "sandboxes/sandboxes-int.h"
#include "snapshots/generations.h"
#include "snapshots/snapshots.h"

#include "sandboxes-world.h"

static struct sandbox *new_sandbox(const char *template, bool pause_files)
{
    struct sandbox_spec spec = host_spec();
    (void)mkdirat(rooms.dir_fd, "base", 0755);
    (void)snprintf(spec.desc.template, sizeof spec.desc.template, "%s", template);
    spec.desc.life.auto_pause = spec.desc.life.auto_pause_files = pause_files;
    struct answer a = make(&spec);
    if (a.status)
        fail_msg("%u %s", a.status, a.text);
    return sandbox_find(rooms.sandboxes, a.id);
}
static uint64_t kept(void) { return state_kept(rooms.stacks, who.tenant).size.bytes; }

struct over {
    int calls;
    unsigned status;
    char code[32], id[40];
};
static void over(struct over *o, const struct state_failure *failure)
{
    o->calls++;
    o->status = failure ? failure->status : 0;
    (void)snprintf(o->code, sizeof o->code, "%s", failure && failure->error_code ? failure->error_code : "");
}
static void paused(void *arg, const struct state_failure *failure) { over(arg, failure); }
static void shot(void *arg, const struct template *t, const struct state_cost *cost,
                 const struct state_failure *failure)
{
    (void)cost;
    if (t)
        (void)snprintf(((struct over *)arg)->id, 40, "%s", t->id);
    over(arg, failure);
}
static void gone(void *arg, const struct template *t, const struct state_failure *failure)
{
    (void)t;
    over(arg, failure);
}
static void kept_one(void *arg, const struct generation *g, const struct state_failure *failure)
{
    (void)g;
    over(arg, failure);
}
static struct over wait_over(struct over *o)
{
    AWAIT (o->calls)
        step(1);
    assert_int_equal(o->calls, 1);
    step(5); /* what is dropped is dropped after a barrier */
    return *o;
}
static struct over put_away(struct sandbox *b)
{
    struct over o = {0};
    sandbox_pause(rooms.sandboxes, b, false, paused, &o);
    return wait_over(&o);
}
static struct over wake(struct sandbox *b)
{
    struct over o = {0};
    sandbox_resume(rooms.sandboxes, b, 0, paused, &o);
    return wait_over(&o);
}
static struct over snapshot(struct sandbox *b)
{
    struct over o = {0};
    sandbox_snapshot(rooms.snapshots, b, NULL, shot, &o);
    return wait_over(&o);
}
static void remove_one(const char *id)
{
    struct over o = {0};
    template_remove(rooms.templates, template_find(rooms.templates, who.tenant, id, NULL), NULL, gone, &o);
    assert_int_equal(wait_over(&o).status, 0);
}
static int set_up_layered(void **state)
{
    int rc = set_up(state);
    k.layered = true;
    return rc;
}

static void test_every_pause_adds_to_the_one_before(void **state)
{
    (void)state;
    struct sandbox *b = new_sandbox("base", false);
    assert_int_equal(kept(), 0);
    for (unsigned i = 1; i <= 3; i++) {
        assert_int_equal(put_away(b).status, 0);
        assert_int_equal(kept(), 1000 * i);
        assert_int_equal(wake(b).status, 0);
        assert_int_equal(kept(), 1000 * i); /* what it was made from is there as long as it runs */
    }
    /* A restart of front: rows first, layers when the layer store tells. */
    assert_int_equal(put_away(b).status, 0);
    stop();
    start();
    state_meet(rooms.stacks);
    assert_int_equal(kept(), 4000);
}

static void test_what_a_snapshot_keeps_alive_counts(void **state)
{
    (void)state;
    struct over first = snapshot(new_sandbox("base", false));
    struct over second = snapshot(new_sandbox(first.id, false));
    assert_int_equal(kept(), 2000);
    remove_one(first.id);
    assert_int_equal(kept(), 2000);
    assert_null(template_find(rooms.templates, who.tenant, first.id, NULL));
    assert_non_null(template_find(rooms.templates, who.tenant, second.id, NULL));
}

static void test_what_does_not_fit_is_refused_and_leaves_nothing(void **state)
{
    (void)state;
    struct sandbox *b = new_sandbox("base", false);
    assert_int_equal(snapshot(b).status, 0);
    who.tenant->quota.state_bytes = 1500;
    struct over full = snapshot(b);
    assert_int_equal(full.status, 429);
    assert_string_equal(full.code, "quota_exceeded");
    assert_true(was_dropped(k.captured));
    assert_int_equal(kept(), 1000);
    full = put_away(b);
    assert_int_equal(full.status, 429);
    assert_string_equal(full.code, "quota_exceeded");
    assert_int_equal(b->state, SANDBOX_RUNNING);
    assert_true(was_dropped(k.captured));
    who.tenant->quota.state_bytes = 2000;
    assert_int_equal(put_away(b).status, 0);
    assert_int_equal(kept(), 2000);
}

static void test_files_are_counted_as_bytes_are(void **state)
{
    (void)state;
    struct sandbox *b = new_sandbox("base", false);
    struct state_failure why = {0};
    assert_int_equal(snapshot(b).status, 0);
    assert_int_equal(state_kept(rooms.stacks, who.tenant).size.entries, 10);
    who.tenant->quota.state_entries = 15;
    struct over full = snapshot(b);
    assert_int_equal(full.status, 429);
    assert_string_equal(full.code, "quota_exceeded");
    assert_true(was_dropped(k.captured));
    assert_int_equal(put_away(b).status, 429);
    assert_int_equal(b->state, SANDBOX_RUNNING);
    assert_int_equal(state_kept(rooms.stacks, who.tenant).size.entries, 10);
    assert_true(state_room(rooms.stacks, who.tenant, 0, (struct state_size){1, 5}, &why));
    assert_false(state_room(rooms.stacks, who.tenant, 0, (struct state_size){1, 6}, &why));
    assert_int_equal(why.status, 429);
    assert_string_equal(why.text,
                        "the tenant's quota of files in storage is used up: 10 of 15 are kept, and this needs 6");
    /* The tenant's own number goes before the node's. */
    rooms.config.state_entries = 10;
    who.tenant->quota.state_entries = 20;
    assert_int_equal(put_away(b).status, 0);
    assert_int_equal(state_kept(rooms.stacks, who.tenant).size.entries, 20);
    who.tenant->quota.state_entries = 0;
    why = (struct state_failure){0};
    assert_false(state_room(rooms.stacks, who.tenant, 0, STATE_SOME, &why));
    assert_non_null(strstr(why.text, "20 of 10 are kept, and this needs some more"));
    rooms.config.state_entries = 0;
}

static void test_a_history_counts_what_it_holds(void **state)
{
    (void)state;
    struct sandbox *b = new_sandbox("base", false);
    for (unsigned i = 1; i <= GENERATIONS_MAX + 3; i++) {
        struct over o = {0};
        generation_make(rooms.snapshots, b, "true", kept_one, &o);
        assert_int_equal(wait_over(&o).status, 0);
        /* Each capture of this sandbox is a layer of its own. */
        assert_int_equal(kept(), 1000 * (i < GENERATIONS_MAX ? i : GENERATIONS_MAX));
    }
    /* The oldest that is left becomes a template: pushed out of the history, it still counts. */
    const struct generation *oldest = NULL;
    for (uint64_t n = 1; !oldest; n++)
        oldest = generation_find(rooms.snapshots, b->id, n);
    char stack[STACK_ID_MAX];
    memcpy(stack, oldest->stack, sizeof stack);
    struct over o = {0};
    struct template_config plain = {0};
    template_put(rooms.templates,
                 &(struct template_new){.name = "old",
                                        .tag = "default",
                                        .stack = stack,
                                        .tenant = who.tenant,
                                        .kind = TEMPLATE_BUILT,
                                        .config = &plain,
                                        .bytes = 1},
                 gone, &o);
    assert_int_equal(wait_over(&o).status, 0);
    assert_int_equal(kept(), 1000 * GENERATIONS_MAX);
    o = (struct over){0};
    generation_make(rooms.snapshots, b, "true", kept_one, &o);
    assert_int_equal(wait_over(&o).status, 0);
    assert_int_equal(kept(), 1000 * (GENERATIONS_MAX + 1));
    who.tenant->quota.state_bytes = 1000 * (GENERATIONS_MAX + 1);
    o = (struct over){0};
    generation_make(rooms.snapshots, b, "true", kept_one, &o);
    assert_string_equal(wait_over(&o).code, "quota_exceeded");
}

/* A build's steps are layers too; those of what it was built from are its owner's. */
static void test_templates_count_their_steps_but_not_their_base(void **state)
{
    (void)state;
    static const struct {
        const char *stack;
        unsigned layers[4];
    } stacks[] = {
        {"st-nodeaaaa", {1}}, {"st-publicaa", {1, 2}}, {"st-builtaaa", {1, 2, 3, 4}}, {"st-stepaaaa", {1, 3, 5}}};
    uint8_t digest[SHA256_BYTES] = {0};
    for (size_t i = 0; i < ARRAY_LEN(stacks); i++)
        for (size_t n = 0; n < 4 && stacks[i].layers[n]; n++) {
            digest[0] = (uint8_t)stacks[i].layers[n];
            world_layer(stacks[i].stack, digest, 1000 * stacks[i].layers[n]);
        }
    state_meet(rooms.stacks);
    struct over o = {0};
    struct quota none = {0};
    tenant_put(rooms.tenants, "other", "other", &none, NULL, NULL);
    struct tenant *other = NULL;
    AWAIT ((other = tenants_find(rooms.tenants, "other")))
        step(1);
    assert_non_null(other);
    struct tenant *owners[] = {NULL, other, who.tenant};
    struct template_config plain = {0};
    for (size_t i = 0; i < ARRAY_LEN(owners); i++) {
        char name[] = {(char)('a' + i), '\0'};
        o = (struct over){0};
        template_put(rooms.templates,
                     &(struct template_new){.name = name,
                                            .tag = "default",
                                            .stack = stacks[i].stack,
                                            .tenant = owners[i],
                                            .kind = TEMPLATE_BUILT,
                                            .config = &plain,
                                            .bytes = 1},
                     gone, &o);
        assert_int_equal(wait_over(&o).status, 0);
    }
    assert_int_equal(kept(), 2000 + 3000 + 4000); /* the other's is not public: it is kept alive by us as well */
    assert_int_equal(state_kept(rooms.stacks, other).size.bytes, 2000);
    o = (struct over){0};
    template_set(rooms.templates, template_find(rooms.templates, other, "b", NULL),
                 &(struct template_settings){.public = TEMPLATE_ON}, gone, &o);
    assert_int_equal(wait_over(&o).status, 0);
    assert_int_equal(kept(), 3000 + 4000);
    assert_int_equal(state_kept(rooms.stacks, other).size.bytes, 2000);
    assert_int_equal(state_kept_with(rooms.stacks, who.tenant, (const char *const[]){"st-stepaaaa"}, 1).bytes,
                     3000 + 4000 + 5000);
    /* Nor does it cost more, or the other one less, if ours is for everybody too. */
    o = (struct over){0};
    template_set(rooms.templates, template_find(rooms.templates, who.tenant, "c", NULL),
                 &(struct template_settings){.public = TEMPLATE_ON}, gone, &o);
    assert_int_equal(wait_over(&o).status, 0);
    assert_int_equal(kept(), 3000 + 4000);
    assert_int_equal(state_kept(rooms.stacks, other).size.bytes, 2000);
    o = (struct over){0};
    template_set(rooms.templates, template_find(rooms.templates, other, "b", NULL),
                 &(struct template_settings){.public = TEMPLATE_OFF}, gone, &o);
    assert_int_equal(wait_over(&o).status, 0);
    assert_int_equal(kept(), 2000 + 3000 + 4000);
}

static void test_an_automatic_pause_without_room_keeps_the_memory(void **state)
{
    (void)state;
    assert_int_equal(snapshot(new_sandbox("base", false)).status, 0);
    who.tenant->quota.state_bytes = 1000; /* none is left, and yet one may be made */
    struct sandbox *b = new_sandbox("base", true);
    clock_add += 61 * 1000;
    sandbox_own(b)->end_boot_ms = 1;
    sandboxes_idle_look(rooms.sandboxes, 0);
    AWAIT (b->state == SANDBOX_FROZEN)
        step(1);
    assert_int_equal(b->state, SANDBOX_FROZEN);
    assert_int_equal(k.captures, 2);
    assert_int_equal(kept(), 1000);
}

/* Such as a path that is too long for a layer: it would be copied again and again, and never be paused. */
static void test_an_automatic_pause_of_files_that_no_layer_holds_keeps_the_memory(void **state)
{
    (void)state;
    struct sandbox *b = new_sandbox("base", true);
    k.capture_error = LAYERS_TOO_LARGE;
    sandbox_own(b)->end_boot_ms = 1;
    sandboxes_idle_look(rooms.sandboxes, 0);
    AWAIT (b->state == SANDBOX_FROZEN)
        step(1);
    assert_int_equal(b->state, SANDBOX_FROZEN);
    assert_int_equal(k.captures, 1);
    /* What can be done in a moment is tried again then. */
    struct sandbox *again = new_sandbox("base", true);
    k.capture_error = LAYERS_BUSY;
    sandbox_own(again)->end_boot_ms = 1;
    sandboxes_idle_look(rooms.sandboxes, 0);
    AWAIT (k.captures == 2 && again->state == SANDBOX_RUNNING)
        step(1);
    step(3);
    assert_int_equal(again->state, SANDBOX_RUNNING);
    k.capture_error = 0;
    clock_add += 6 * 1000;
    AWAIT (again->state == SANDBOX_STORED)
        step(1);
    assert_int_equal(again->state, SANDBOX_STORED);
}

/* Neither files nor memory can be kept: it runs on, and nothing is copied only to be thrown away. */
static void test_files_that_do_not_fit_are_not_copied_again_and_again(void **state)
{
    (void)state;
    assert_int_equal(snapshot(new_sandbox("base", false)).status, 0);
    who.tenant->quota.state_bytes = 1000;
    struct sandbox *b = new_sandbox("base", true);
    sandbox_own(b)->end_boot_ms = 1;
    k.hold_capture = true;
    sandboxes_idle_look(rooms.sandboxes, 0);
    AWAIT (k.held_capture)
        step(1);
    k.hold_capture = false;
    k.pause_error = KEEPER_FAILED;
    k.held_capture(k.held_capture_arg, &(struct layers_reply){.bytes = 4096}, -1);
    step(20);
    assert_int_equal(k.captures, 2);
    assert_int_equal(b->state, SANDBOX_RUNNING);
    int pauses = k.pauses;
    for (int i = 0; i < 720; i++) { /* an hour */
        clock_add += 5000;
        step(2);
    }
    assert_int_equal(k.captures, 2);
    assert_in_range(k.pauses - pauses, 8, 24);
    who.tenant->quota.state_bytes = 5000;
    k.pause_error = 0;
    clock_add += 301 * 1000;
    AWAIT (b->state == SANDBOX_STORED)
        step(1);
    assert_int_equal(b->state, SANDBOX_STORED);
    assert_int_equal(k.captures, 3);
    assert_int_equal(sandbox_own(b)->pause_wait_ms, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_every_pause_adds_to_the_one_before, set_up_layered, tear_down),
        cmocka_unit_test_setup_teardown(test_what_a_snapshot_keeps_alive_counts, set_up_layered, tear_down),
        cmocka_unit_test_setup_teardown(test_what_does_not_fit_is_refused_and_leaves_nothing, set_up_layered,
                                        tear_down),
        cmocka_unit_test_setup_teardown(test_files_are_counted_as_bytes_are, set_up_layered, tear_down),
        cmocka_unit_test_setup_teardown(test_a_history_counts_what_it_holds, set_up_layered, tear_down),
        cmocka_unit_test_setup_teardown(test_templates_count_their_steps_but_not_their_base, set_up_layered, tear_down),
        cmocka_unit_test_setup_teardown(test_an_automatic_pause_without_room_keeps_the_memory, set_up_layered,
                                        tear_down),
        cmocka_unit_test_setup_teardown(test_an_automatic_pause_of_files_that_no_layer_holds_keeps_the_memory,
                                        set_up_layered, tear_down),
        cmocka_unit_test_setup_teardown(test_files_that_do_not_fit_are_not_copied_again_and_again, set_up_layered,
                                        tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
