/* One command in a sandbox: its output, its limits, its generation, and what is published of its end. */
#include "await.h"
#include "sandboxes/session.h"

#include <signal.h>

#include "base/json.h"
#include "sandboxes-world.h"
#include "snapshots/generations.h"

static struct sandbox *box;
static struct told {
    unsigned started, output, ended, failed;
    struct exec_end end;
    uint64_t generation;
    char command[GENERATION_COMMAND_MAX], trouble[200], denials[2000];
    struct link_status st;
} told;

static void on_started(void *arg, uint32_t pid)
{
    (void)arg;
    assert_int_equal(pid, 7);
    told.started++;
}
static bool on_output(void *arg, enum exec_stream s, uint64_t offset, const void *p, size_t n)
{
    (void)arg, (void)s, (void)offset, (void)p, (void)n;
    told.output++;
    return true;
}
static void on_ended(void *arg, const struct session_end *end)
{
    struct buf out = {0};
    struct json j;
    (void)arg;
    told.ended++;
    told.end = *end->exec;
    if (end->generation) {
        told.generation = end->generation->number;
        (void)snprintf(told.command, sizeof told.command, "%s", end->generation->command);
    }
    (void)snprintf(told.trouble, sizeof told.trouble, "%s", end->generation_error ? end->generation_error : "");
    json_start(&j, &out);
    json_obj(&j, NULL);
    session_add_denials(rooms.sandboxes, box->id, end, &j);
    json_end_obj(&j);
    (void)snprintf(told.denials, sizeof told.denials, "%s", buf_str(&out));
    buf_done(&out);
}
static void on_failed(void *arg, const struct link_status *st)
{
    (void)arg;
    told.failed++;
    told.st = *st;
}
static const struct session_ops all = {on_started, on_output, on_ended, on_failed};
static const struct session_ops least = {.ended = on_ended, .failed = on_failed};

static int set_up_box(void **state)
{
    struct sandbox_spec spec = host_spec();
    if (set_up(state) < 0)
        return -1;
    (void)mkdirat(rooms.dir_fd, "base", 0755);
    (void)snprintf(spec.desc.template, sizeof spec.desc.template, "base");
    spec.desc.timeout_s = 3600;
    spec.desc.history = true;
    box = sandbox_find(rooms.sandboxes, make(&spec).id);
    told = (struct told){0};
    return box ? 0 : -1;
}

static struct session *run(const struct session_spec *like, const struct session_ops *ops)
{
    static const char *const args[] = {"-c", "make", NULL};
    struct session_spec spec = *like;
    spec.exec.cmd = "/bin/sh";
    spec.exec.args = args;
    struct session *s = session_start(rooms.sandboxes, box->id, &spec, ops, NULL);
    k.exec_ops->started(k.exec_arg, 7, NULL);
    return s;
}
static void end_with(const struct exec_end *end) { k.exec_ops->ended(k.exec_arg, end); }
static void release_capture(void)
{
    k.hold_capture = false;
    k.held_capture(k.held_capture_arg, &(struct layers_reply){.bytes = 4096}, -1);
}

struct search {
    const char *type;
    char json[EVENT_JSON_MAX];
    unsigned n;
};
static void look(void *arg, const struct event *e)
{
    struct search *s = arg;
    if (e && strcmp(e->type, s->type) == 0) {
        s->n++;
        (void)snprintf(s->json, sizeof s->json, "%s", e->json);
    }
}
static struct search published(const char *type)
{
    struct search s = {.type = type};
    events_replay(events_find(rooms.events, box->tenant->id, box->id), 0, look, &s);
    return s;
}

static void test_the_end_waits_for_the_generation(void **state)
{
    (void)state;
    k.hold_capture = true;
    (void)run(&(struct session_spec){.recorded = true}, &all);
    assert_int_equal(told.started, 1);
    end_with(&(struct exec_end){.exited = true});
    step(3);
    assert_int_equal(told.ended, 0);
    release_capture();
    AWAIT (told.ended)
        step(1);
    assert_int_equal(told.generation, 1);
    assert_string_equal(told.command, "/bin/sh -c make");
    assert_string_equal(told.trouble, "");
}

static void test_a_generation_waits_for_other_work_on_the_files(void **state)
{
    (void)state;
    assert_true(sandbox_begin(box, "a snapshot"));
    (void)run(&(struct session_spec){.recorded = true}, &all);
    end_with(&(struct exec_end){.exited = true});
    clock_add += 10000;
    step(5);
    assert_int_equal(told.ended, 0);
    clock_add += 21000; /* half a minute in all: the end is told without it */
    AWAIT (told.ended)
        step(1);
    assert_int_equal(told.generation, 0);
    assert_non_null(strstr(told.trouble, "a snapshot"));
    sandbox_finish(rooms.sandboxes, box->id);
}

static void test_history_is_of_recorded_commands(void **state)
{
    (void)state;
    (void)run(&(struct session_spec){0}, &least); /* a command of the node, although the sandbox keeps history */
    end_with(&(struct exec_end){.code = SIGSEGV, .ndenied = 1});
    assert_int_equal(told.ended, 1);
    assert_int_equal(k.captures, 0);
    assert_int_equal(published("exec_ended").n + published("denial").n, 0);
    box->desc.history = false;
    (void)run(&(struct session_spec){.recorded = true}, &least);
    end_with(&(struct exec_end){.exited = true});
    assert_int_equal(told.ended, 2);
    assert_int_equal(k.captures, 0);
    (void)run(&(struct session_spec){.recorded = true, .generation = true}, &least);
    end_with(&(struct exec_end){.exited = true});
    AWAIT (told.ended == 3)
        step(1);
    assert_int_equal(told.generation, 1);
}

static void test_a_detached_session_leaves_its_generation(void **state)
{
    (void)state;
    k.hold_capture = true;
    struct session *s = run(&(struct session_spec){.recorded = true}, &all);
    end_with(&(struct exec_end){.exited = true});
    session_detach(s);
    release_capture();
    AWAIT (generation_find(rooms.snapshots, box->id, 1))
        step(1);
    assert_true(sandbox_begin(box, "a snapshot"));
    s = run(&(struct session_spec){.recorded = true}, &all);
    end_with(&(struct exec_end){.exited = true});
    step(1);
    session_detach(s); /* between two tries */
    sandbox_finish(rooms.sandboxes, box->id);
    clock_add += 1000;
    step(5);
    assert_null(generation_find(rooms.snapshots, box->id, 2));
    session_detach(run(&(struct session_spec){.recorded = true}, &all));
    assert_int_equal(k.detaches, 1);
    assert_int_equal(told.ended + told.failed, 0);
}

static void test_a_deadline_kills_what_was_started(void **state)
{
    (void)state;
    (void)run(&(struct session_spec){.recorded = true, .deadline_ms = 5000}, &all);
    assert_int_equal(k.exec_limit_ms, 5500);
    clock_add += 4000;
    step(1);
    assert_int_equal(told.failed, 0);
    clock_add += 1001;
    AWAIT (told.failed)
        step(1);
    assert_int_equal(told.st.code, LINK_TIMEOUT);
    assert_string_equal(told.st.text, "the deadline of the request has passed");
    assert_int_equal(k.signal, SIGKILL);
    assert_int_equal(k.signalled, 7);
    assert_int_equal(k.detaches, 1);
    k.signal = 0; /* one that is only followed lives on */
    uint64_t from[4] = {0};
    (void)session_attach(rooms.sandboxes, box->id, &(struct exec_select){.pid = 7}, from, 10, &all, NULL);
    clock_add += 11;
    AWAIT (told.failed == 2)
        step(1);
    assert_string_equal(told.st.text, "the deadline of the request passed before the command started");
    assert_int_equal(k.signal, 0);
    assert_int_equal(k.captures, 0);
}

static void test_output_is_collected_up_to_a_limit(void **state)
{
    struct session_output o = {.max = 4};
    (void)state;
    (void)run(&(struct session_spec){.collect = &o}, &least);
    assert_true(k.exec_ops->output(k.exec_arg, EXEC_STDOUT, 0, "abc", 3));
    assert_true(k.exec_ops->output(k.exec_arg, EXEC_STDERR, 0, "x", 1));
    assert_true(k.exec_ops->output(k.exec_arg, EXEC_STDOUT, 3, "def", 3));
    end_with(&(struct exec_end){.exited = true});
    assert_string_equal(buf_str(&o.kept[EXEC_STDOUT]), "abcd");
    assert_string_equal(buf_str(&o.kept[EXEC_STDERR]), "x");
    assert_int_equal(o.omitted[EXEC_STDOUT], 2);
    assert_int_equal(o.omitted[EXEC_STDERR], 0);
    session_output_done(&o);
}

static void test_deaths_and_refusals_are_published(void **state)
{
    struct exec_end end = {.code = SIGKILL, .oom = true, .wall_ms = 12, .ndenied = 1};
    (void)state;
    end.denied[0] = (struct exec_denied){.nr = 175 /* init_module */, .count = 3};
    box->desc.history = false;
    (void)run(&(struct session_spec){.recorded = true}, &least);
    end_with(&end);
    assert_string_equal(published("exec_ended").json,
                        "{\"pid\":7,\"status\":\"signal: killed\",\"oom\":true,\"wallMs\":12}");
    assert_non_null(strstr(published("denial").json, "\"subject\":\"init_module\",\"count\":3"));
    assert_non_null(strstr(told.denials, "\"subject\":\"init_module\""));
    (void)run(&(struct session_spec){.recorded = true}, &least);
    end_with(&(struct exec_end){.exited = true, .code = 1}); /* a normal end is no event */
    assert_int_equal(published("exec_ended").n, 1);
    assert_int_equal(published("denial").n, 1);
    assert_string_equal(told.denials, "{}");
}

#define T(name) cmocka_unit_test_setup_teardown(name, set_up_box, tear_down)
int main(void)
{
    const struct CMUnitTest tests[] = {
        T(test_the_end_waits_for_the_generation),  T(test_a_generation_waits_for_other_work_on_the_files),
        T(test_history_is_of_recorded_commands),   T(test_a_detached_session_leaves_its_generation),
        T(test_a_deadline_kills_what_was_started), T(test_output_is_collected_up_to_a_limit),
        T(test_deaths_and_refusals_are_published),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
