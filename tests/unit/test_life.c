/* The table of a sandbox's life: every state has an answer to every event, and the answers fit together. */
#include "sandboxes/life.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/lib/unit.h"

/* clang-format off */
static const char *const states[SANDBOX_STATES] = {
    [SANDBOX_NEW] = "new",
    [SANDBOX_CREATING] = "creating",
    [SANDBOX_PARKED] = "parked",
    [SANDBOX_BOUND] = "bound",
    [SANDBOX_STARTING] = "starting",
    [SANDBOX_LOST] = "lost",
    [SANDBOX_RUNNING] = "running",
    [SANDBOX_FREEZING] = "freezing",
    [SANDBOX_STORING] = "storing",
    [SANDBOX_STORE_ENDING] = "store_ending",
    [SANDBOX_UNLOADING] = "unloading",
    [SANDBOX_UNLOAD_ENDING] = "unload_ending",
    [SANDBOX_FROZEN] = "frozen",
    [SANDBOX_STORED] = "stored",
    [SANDBOX_THAWING] = "thawing",
    [SANDBOX_RESTORE_CLEARING] = "restore_clearing",
    [SANDBOX_RESTORING] = "restoring",
    [SANDBOX_RESTORE_PARKED] = "restore_parked",
    [SANDBOX_RESTORE_BOUND] = "restore_bound",
    [SANDBOX_RESTORE_STARTING] = "restore_starting",
    [SANDBOX_RESTORE_LOST] = "restore_lost",
    [SANDBOX_RESTORE_WRITING] = "restore_writing",
    [SANDBOX_RESTORE_UNDOING] = "restore_undoing",
    [SANDBOX_KILLING] = "killing",
    [SANDBOX_ENDED] = "ended",
};
static const char *const events[LIFE_EVENTS] = {
    [LIFE_ASK_CREATE] = "ask_create",
    [LIFE_ASK_FREEZE] = "ask_freeze",
    [LIFE_ASK_STORE] = "ask_store",
    [LIFE_ASK_UNLOAD] = "ask_unload",
    [LIFE_ASK_RESUME] = "ask_resume",
    [LIFE_ASK_CAPTURE] = "ask_capture",
    [LIFE_ASK_KILL] = "ask_kill",
    [LIFE_ON_CLEARED] = "on_cleared",
    [LIFE_ON_PARKED] = "on_parked",
    [LIFE_ON_BOUND] = "on_bound",
    [LIFE_ON_READY] = "on_ready",
    [LIFE_ON_STARTED] = "on_started",
    [LIFE_ON_CAPTURED] = "on_captured",
    [LIFE_ON_FINISHED] = "on_finished",
    [LIFE_ON_FAILED] = "on_failed",
    [LIFE_ON_UNDONE] = "on_undone",
    [LIFE_ON_DIED] = "on_died",
    [LIFE_ON_GONE] = "on_gone",
    [LIFE_ON_LISTED_ALIVE] = "on_listed_alive",
    [LIFE_ON_LISTED_FROZEN] = "on_listed_frozen",
    [LIFE_ON_LISTED_DEAD] = "on_listed_dead",
    [LIFE_ON_UNLISTED] = "on_unlisted",
    [LIFE_ROW_CREATING] = "row_creating",
    [LIFE_ROW_RUNNING] = "row_running",
    [LIFE_ROW_FROZEN] = "row_frozen",
    [LIFE_ROW_STORED] = "row_stored",
};
static const char *const actions[LIFE_ACTIONS] = {
    [LIFE_EMPTY] = "",
    [LIFE_IGNORE] = "ignore",
    [LIFE_REFUSE] = "refuse",
    [LIFE_AGREE] = "agree",
    [LIFE_JOIN] = "join",
    [LIFE_QUEUE] = "queue",
    [LIFE_BEGIN] = "begin",
    [LIFE_MAKE] = "make",
    [LIFE_BIND] = "bind",
    [LIFE_START] = "start",
    [LIFE_FINISH] = "finish",
    [LIFE_WRITE] = "write",
    [LIFE_FAIL] = "fail",
    [LIFE_CUT] = "cut",
    [LIFE_THAW] = "thaw",
    [LIFE_FREEZE] = "freeze",
    [LIFE_KILL] = "kill",
    [LIFE_END] = "end",
    [LIFE_MEET] = "meet",
};
/* clang-format on */

static const char *state_name(enum sandbox_state s) { return states[s]; }
static const char *event_name(enum life_event e) { return events[e]; }
static const char *action_name(enum life_action a) { return actions[a]; }

static bool is_request(enum life_event e) { return e <= LIFE_ASK_KILL; }

static bool is_request_action(enum life_action a) { return a >= LIFE_REFUSE && a <= LIFE_BEGIN; }

static void test_no_cell_is_empty(void **state)
{
    (void)state;
    for (enum sandbox_state s = 0; s < SANDBOX_STATES; s++)
        for (enum life_event e = 0; e < LIFE_EVENTS; e++) {
            const struct life_cell *c = life_step(s, e);
            const char *where = state_name(s), *what = event_name(e);
            if (c->action == LIFE_EMPTY || c->action >= LIFE_ACTIONS || c->next >= SANDBOX_STATES)
                fail_msg("%s, %s: no answer", where, what);
            if ((c->action == LIFE_REFUSE) != (c->status != 0) || (c->action == LIFE_REFUSE) != (c->text != NULL))
                fail_msg("%s, %s: a refusal has a status and a text, and nothing else has", where, what);
            if (c->action == LIFE_REFUSE && (c->status < 400 || c->status > 599 || c->next != s))
                fail_msg("%s, %s: a refusal changes nothing", where, what);
            if ((c->action == LIFE_AGREE || c->action == LIFE_JOIN || c->action == LIFE_QUEUE) && c->next != s)
                fail_msg("%s, %s: it goes to %s without a beginning", where, what, state_name(c->next));
            if (!is_request(e) && is_request_action(c->action))
                fail_msg("%s, %s: only requests are refused or begun", where, what);
        }
}

static void test_every_name_is_there(void **state)
{
    (void)state;
    for (enum sandbox_state s = 0; s < SANDBOX_STATES; s++)
        assert_non_null(states[s]);
    for (enum life_event e = 0; e < LIFE_EVENTS; e++)
        assert_non_null(events[e]);
    for (enum life_action a = 0; a < LIFE_ACTIONS; a++)
        assert_non_null(actions[a]);
}

/* Marks what can be reached from a state in any number of steps. */
static void reach(enum sandbox_state from, bool seen[SANDBOX_STATES])
{
    if (seen[from])
        return;
    seen[from] = true;
    for (enum life_event e = 0; e < LIFE_EVENTS; e++)
        reach(life_step(from, e)->next, seen);
}

static void test_every_state_is_reached_and_can_end(void **state)
{
    (void)state;
    bool from_new[SANDBOX_STATES] = {false};
    reach(SANDBOX_NEW, from_new);
    for (enum sandbox_state s = 0; s < SANDBOX_STATES; s++) {
        bool seen[SANDBOX_STATES] = {false};
        if (!from_new[s])
            fail_msg("%s is never reached", state_name(s));
        reach(s, seen);
        if (!seen[SANDBOX_ENDED])
            fail_msg("%s never ends", state_name(s));
        if (s != SANDBOX_NEW && seen[SANDBOX_NEW])
            fail_msg("%s becomes new again", state_name(s));
    }
}

static void test_a_kill_is_taken_in_every_state_that_a_sandbox_has(void **state)
{
    (void)state;
    for (enum sandbox_state s = SANDBOX_CREATING; s < SANDBOX_ENDED; s++) {
        const struct life_cell *c = life_step(s, LIFE_ASK_KILL);
        assert_int_equal(c->next, SANDBOX_KILLING);
        assert_int_equal(c->action, s == SANDBOX_KILLING ? LIFE_JOIN : LIFE_KILL);
        assert_int_equal(life_step(s, LIFE_ON_GONE)->next, SANDBOX_ENDED);
    }
}

struct walk {
    enum life_event event;
    enum sandbox_state state;
    enum life_action action;
};

static void walk(enum sandbox_state at, const struct walk *w, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const struct life_cell *c = life_step(at, w[i].event);
        if (c->next != w[i].state || c->action != w[i].action)
            fail_msg("step %zu, %s in %s: %s and %s", i, event_name(w[i].event), state_name(at), state_name(c->next),
                     action_name(c->action));
        at = c->next;
    }
}
#define WALK(from, ...) \
    walk(from, (const struct walk[]){__VA_ARGS__}, sizeof((const struct walk[]){__VA_ARGS__}) / sizeof(struct walk))

static void test_the_usual_ways(void **state)
{
    (void)state;
    WALK(SANDBOX_NEW, {LIFE_ASK_CREATE, SANDBOX_CREATING, LIFE_BEGIN}, {LIFE_ON_PARKED, SANDBOX_PARKED, LIFE_BIND},
         {LIFE_ON_BOUND, SANDBOX_BOUND, LIFE_IGNORE}, {LIFE_ON_READY, SANDBOX_STARTING, LIFE_START},
         {LIFE_ON_STARTED, SANDBOX_RUNNING, LIFE_FINISH}, {LIFE_ASK_FREEZE, SANDBOX_FREEZING, LIFE_BEGIN},
         {LIFE_ASK_RESUME, SANDBOX_FREEZING, LIFE_QUEUE}, {LIFE_ON_FINISHED, SANDBOX_FROZEN, LIFE_FINISH},
         {LIFE_ASK_RESUME, SANDBOX_THAWING, LIFE_BEGIN}, {LIFE_ASK_RESUME, SANDBOX_THAWING, LIFE_JOIN},
         {LIFE_ON_FINISHED, SANDBOX_RUNNING, LIFE_FINISH}, {LIFE_ASK_STORE, SANDBOX_STORING, LIFE_BEGIN},
         {LIFE_ON_CAPTURED, SANDBOX_STORE_ENDING, LIFE_WRITE}, {LIFE_ON_DIED, SANDBOX_STORE_ENDING, LIFE_IGNORE},
         {LIFE_ON_FINISHED, SANDBOX_STORED, LIFE_FINISH}, {LIFE_ASK_CAPTURE, SANDBOX_STORED, LIFE_BEGIN},
         {LIFE_ASK_RESUME, SANDBOX_RESTORE_CLEARING, LIFE_BEGIN}, {LIFE_ON_CLEARED, SANDBOX_RESTORING, LIFE_MAKE},
         {LIFE_ON_PARKED, SANDBOX_RESTORE_PARKED, LIFE_BIND}, {LIFE_ON_BOUND, SANDBOX_RESTORE_BOUND, LIFE_IGNORE},
         {LIFE_ON_READY, SANDBOX_RESTORE_STARTING, LIFE_START}, {LIFE_ON_STARTED, SANDBOX_RESTORE_WRITING, LIFE_WRITE},
         {LIFE_ON_FINISHED, SANDBOX_RUNNING, LIFE_FINISH}, {LIFE_ASK_KILL, SANDBOX_KILLING, LIFE_KILL},
         {LIFE_ON_GONE, SANDBOX_ENDED, LIFE_IGNORE});
}

static void test_ways_that_fail(void **state)
{
    (void)state;
    /* a create whose sandbox dies */
    WALK(SANDBOX_PARKED, {LIFE_ON_DIED, SANDBOX_LOST, LIFE_CUT}, {LIFE_ON_BOUND, SANDBOX_LOST, LIFE_IGNORE},
         {LIFE_ON_READY, SANDBOX_LOST, LIFE_FAIL}, {LIFE_ON_FAILED, SANDBOX_LOST, LIFE_END},
         {LIFE_ON_GONE, SANDBOX_ENDED, LIFE_IGNORE});
    /* pauses that cannot be recorded */
    WALK(SANDBOX_STORE_ENDING, {LIFE_ON_FAILED, SANDBOX_STORING, LIFE_THAW}, {LIFE_ON_DIED, SANDBOX_STORING, LIFE_END});
    WALK(SANDBOX_UNLOAD_ENDING, {LIFE_ON_FAILED, SANDBOX_FROZEN, LIFE_FINISH});
    WALK(SANDBOX_FREEZING, {LIFE_ON_FAILED, SANDBOX_FREEZING, LIFE_THAW},
         {LIFE_ON_UNDONE, SANDBOX_RUNNING, LIFE_FINISH});
    WALK(SANDBOX_THAWING, {LIFE_ON_FAILED, SANDBOX_THAWING, LIFE_FREEZE},
         {LIFE_ON_UNDONE, SANDBOX_FROZEN, LIFE_FINISH});
    /* a restore whose sandbox dies: the files stay */
    WALK(SANDBOX_RESTORE_BOUND, {LIFE_ON_LISTED_DEAD, SANDBOX_RESTORE_LOST, LIFE_CUT},
         {LIFE_ON_READY, SANDBOX_RESTORE_LOST, LIFE_FAIL}, {LIFE_ON_FAILED, SANDBOX_RESTORE_UNDOING, LIFE_KILL},
         {LIFE_ON_FAILED, SANDBOX_RESTORE_UNDOING, LIFE_IGNORE}, {LIFE_ON_DIED, SANDBOX_RESTORE_UNDOING, LIFE_IGNORE},
         {LIFE_ON_UNDONE, SANDBOX_STORED, LIFE_FINISH});
    /* a kill that fails: the row decides */
    WALK(SANDBOX_STORING, {LIFE_ASK_KILL, SANDBOX_KILLING, LIFE_KILL}, {LIFE_ROW_RUNNING, SANDBOX_RUNNING, LIFE_THAW});
    WALK(SANDBOX_KILLING, {LIFE_ROW_CREATING, SANDBOX_CREATING, LIFE_IGNORE},
         {LIFE_ON_READY, SANDBOX_STARTING, LIFE_START});
}

/* Only sandboxes that exist as files survive a death. */
static void test_which_sandboxes_a_death_ends(void **state)
{
    (void)state;
    static const enum sandbox_state survive[] = {SANDBOX_STORE_ENDING, SANDBOX_UNLOAD_ENDING, SANDBOX_STORED,
                                                 SANDBOX_RESTORE_CLEARING, SANDBOX_RESTORE_UNDOING};
    for (size_t i = 0; i < sizeof survive / sizeof survive[0]; i++)
        assert_int_equal(life_step(survive[i], LIFE_ON_DIED)->action, LIFE_IGNORE);
    static const enum sandbox_state end[] = {SANDBOX_RUNNING,         SANDBOX_FREEZING, SANDBOX_STORING,
                                             SANDBOX_UNLOADING,       SANDBOX_FROZEN,   SANDBOX_THAWING,
                                             SANDBOX_RESTORE_WRITING, SANDBOX_KILLING};
    for (size_t i = 0; i < sizeof end / sizeof end[0]; i++) {
        assert_int_equal(life_step(end[i], LIFE_ON_DIED)->action, LIFE_END);
        assert_int_equal(life_step(end[i], LIFE_ON_UNLISTED)->action, LIFE_END);
    }
}

/* One line per state, as docs/internals/life.md has them: events that change nothing are left out. */
static void make_page(FILE *out)
{
    (void)fprintf(out, "| state | event: next state, action |\n|---|---|\n");
    for (enum sandbox_state s = 0; s < SANDBOX_STATES; s++) {
        (void)fprintf(out, "| `%s` |", state_name(s));
        for (enum life_event e = 0; e < LIFE_EVENTS; e++) {
            const struct life_cell *c = life_step(s, e);
            if (c->action == LIFE_IGNORE && c->next == s)
                continue;
            (void)fprintf(out, " %s:", event_name(e));
            if (c->action == LIFE_REFUSE)
                (void)fprintf(out, " %u;", c->status);
            else if (c->next == s)
                (void)fprintf(out, " %s;", action_name(c->action));
            else
                (void)fprintf(out, " **%s**, %s;", state_name(c->next), action_name(c->action));
        }
        (void)fprintf(out, " |\n");
    }
}

static void test_the_page_shows_the_table(void **state)
{
    (void)state;
    static const char begin[] = "<!-- life: made by test_life --table -->\n", end[] = "<!-- /life -->";
    char *page = NULL, *table = NULL;
    size_t n = 0, size = 0;
    FILE *in = fopen(HUTCH_SOURCE "/docs/internals/life.md", "re"), *out = open_memstream(&table, &n);
    assert_non_null(in);
    assert_non_null(out);
    ssize_t got = getdelim(&page, &size, '\0', in);
    assert_true(got > 0);
    make_page(out);
    (void)fclose(out);
    (void)fclose(in);
    const char *from = strstr(page, begin), *to = strstr(page, end);
    assert_non_null(from);
    assert_non_null(to);
    from += strlen(begin);
    if ((size_t)(to - from) != n || memcmp(from, table, n) != 0)
        fail_msg("docs/internals/life.md is out of date; build-asan/tests/test_life --table prints the table");
    free(page);
    free(table);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_name_is_there),
        cmocka_unit_test(test_no_cell_is_empty),
        cmocka_unit_test(test_every_state_is_reached_and_can_end),
        cmocka_unit_test(test_a_kill_is_taken_in_every_state_that_a_sandbox_has),
        cmocka_unit_test(test_the_usual_ways),
        cmocka_unit_test(test_ways_that_fail),
        cmocka_unit_test(test_which_sandboxes_a_death_ends),
        cmocka_unit_test(test_the_page_shows_the_table),
    };
    if (argc == 2 && strcmp(argv[1], "--table") == 0) {
        make_page(stdout);
        return 0;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
