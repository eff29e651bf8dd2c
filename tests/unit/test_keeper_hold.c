/* Pauses and holds: who keeps a sandbox still, and when it goes on. A tier of the test's own stands in for the kernel. */
#include <fcntl.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/timerfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "keeper/keeper-int.h"
#include "tests/lib/unit.h"

static struct {
    bool asked, slow, fails; /* slow: never stands still */
} ice;

static int ice_freeze(const struct keeper *k, const struct journal_record *r, enum tier_freezing what, struct err *err)
{
    (void)k, (void)r;
    if (what == TIER_LOOK)
        return ice.asked && !ice.slow;
    if (ice.fails)
        return err_set(err, ERR_INTERNAL, 0, "the freezer is broken");
    ice.asked = what == TIER_STOP;
    return 0;
}
static const struct tier ice_tier = {.name = "ice", .freeze = ice_freeze};

struct scene {
    struct keeper *k;
    struct entry *e;
    struct keeper_common common;
    struct keeper_config config;
    char dir[32];
    int run;
    int client[3];
};

static struct journal_record record(const struct scene *s)
{
    struct journal_record r;
    assert_int_equal(journal_read(s->k->journal, "one", &r), 0);
    return r;
}

static int setup(void **state)
{
    struct scene *s = calloc(1, sizeof *s);
    struct journal_record r = {.state = JOURNAL_LIVE, .id = "one", .template = "base"};
    struct err err = {0};
    memset(&ice, 0, sizeof ice);
    (void)snprintf(s->dir, sizeof s->dir, "/tmp/hutch-hold.XXXXXX");
    assert_non_null(mkdtemp(s->dir));
    s->run = open(s->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    s->k = calloc(1, sizeof *s->k);
    s->k->common = &s->common;
    s->k->config = &s->config;
    s->k->epoll = epoll_create1(EPOLL_CLOEXEC);
    s->k->timer = timerfd_create(CLOCK_BOOTTIME, TFD_CLOEXEC | TFD_NONBLOCK);
    s->k->journal = journal_open(s->run, &err);
    assert_int_equal(journal_write(s->k->journal, &r, &err), 0);
    asker_begin(s->k);
    for (unsigned i = 0; i < ARRAY_LEN(s->client); i++) {
        int pair[2];
        assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair), 0);
        s->client[i] = pair[0];
        channel_open(&s->k->conns[i].channel, pair[1]);
    }
    s->e = entry_new(s->k, "one");
    s->e->tier = &ice_tier;
    entry_set(s->k, s->e, LIFE_LIVE);
    *state = s;
    return 0;
}

static int teardown(void **state)
{
    struct scene *s = *state;
    char path[64];
    for (unsigned i = 0; i < ARRAY_LEN(s->client); i++) {
        (void)close(s->client[i]);
        channel_close(&s->k->conns[i].channel);
    }
    (void)unlinkat(s->k->journal, "one", 0);
    (void)snprintf(path, sizeof path, "%s/journal", s->dir);
    (void)rmdir(path);
    (void)rmdir(s->dir);
    const int fds[] = {s->k->epoll, s->k->timer, s->k->journal, s->run};
    for (size_t i = 0; i < ARRAY_LEN(fds); i++)
        (void)close(fds[i]);
    free(s->k);
    free(s);
    return 0;
}

static void ask(struct scene *s, unsigned client, uint32_t type)
{
    struct keeper_simple q = {.head = {.version = KEEPER_VERSION, .type = type, .request = type}, .id = "one"};
    asker_handle(s->k, client, &q, sizeof q);
}

/* The error in the answer; -1: there is none yet. */
static int answer(struct scene *s, unsigned client)
{
    struct keeper_reply r;
    ssize_t n = recv(s->client[client], &r, sizeof r, MSG_DONTWAIT);
    if (n < 0)
        return -1;
    assert_int_equal(n, sizeof r);
    return (int)r.error;
}

static void done(struct scene *s, unsigned client, uint32_t type)
{
    ask(s, client, type);
    assert_int_equal(answer(s, client), KEEPER_OK);
}

static void hang_up(struct scene *s, unsigned client)
{
    (void)close(s->client[client]);
    asker_event(s->k, client, EPOLLIN);
    assert_int_equal(s->k->conns[client].channel.fd, -1);
    (void)freeze_tick(s->k);
    s->client[client] = -1;
}

static void test_it_goes_on_when_the_last_holder_has_released_it(void **state)
{
    struct scene *s = *state;
    done(s, 0, KEEPER_HOLD);
    assert_int_equal(record(s).holder[0].pid, getpid());
    assert_int_equal(record(s).frozen, 0);
    done(s, 0, KEEPER_HOLD); /* the same one */
    assert_int_equal(record(s).holder[1].pid, 0);
    done(s, 1, KEEPER_HOLD);
    done(s, 0, KEEPER_RELEASE);
    assert_true(ice.asked);
    done(s, 1, KEEPER_RELEASE);
    assert_false(ice.asked);
    assert_int_equal(record(s).holder[0].pid | record(s).holder[1].pid, 0);
    done(s, 1, KEEPER_RELEASE);
}

static void test_the_end_of_a_connection_ends_its_hold(void **state)
{
    struct scene *s = *state;
    done(s, 0, KEEPER_HOLD);
    done(s, 1, KEEPER_HOLD);
    hang_up(s, 0);
    assert_true(ice.asked);
    hang_up(s, 1);
    assert_false(ice.asked);
    assert_int_equal(record(s).holder[0].pid | record(s).holder[1].pid, 0);
}

static void test_a_hold_that_is_not_answered_yet_ends_with_its_connection(void **state)
{
    struct scene *s = *state;
    ice.slow = true;
    ask(s, 0, KEEPER_HOLD);
    assert_int_equal(answer(s, 0), -1);
    assert_true(ice.asked);
    hang_up(s, 0);
    assert_false(ice.asked || s->e->freezing);
}

static void test_a_paused_sandbox_stays_still_when_a_hold_ends(void **state)
{
    struct scene *s = *state;
    done(s, 0, KEEPER_HOLD);
    done(s, 1, KEEPER_PAUSE);
    done(s, 0, KEEPER_RELEASE);
    assert_true(ice.asked && s->e->paused);
    assert_int_equal(record(s).frozen, 1);
    done(s, 0, KEEPER_HOLD);
    done(s, 1, KEEPER_RESUME);
    assert_true(ice.asked); /* it is held */
    assert_int_equal(record(s).frozen, 0);
    hang_up(s, 0);
    assert_false(ice.asked);
}

static void test_one_that_does_not_stop_is_thawed_and_all_are_told(void **state)
{
    struct scene *s = *state;
    ice.slow = true;
    ask(s, 0, KEEPER_HOLD);
    ask(s, 1, KEEPER_PAUSE);
    s->e->freeze_ms -= CGROUP_FREEZE_MS + 1;
    (void)freeze_tick(s->k);
    assert_int_equal(answer(s, 0), KEEPER_FAILED);
    assert_int_equal(answer(s, 1), KEEPER_FAILED);
    assert_false(ice.asked || s->e->paused);
    assert_int_equal(record(s).holder[0].pid, 0);
    assert_int_equal(record(s).frozen, 0);
}

static void test_a_thaw_that_fails_is_tried_again(void **state)
{
    struct scene *s = *state;
    done(s, 0, KEEPER_HOLD);
    ice.fails = true;
    ask(s, 0, KEEPER_RELEASE);
    assert_int_equal(answer(s, 0), KEEPER_FAILED);
    assert_true(freeze_tick(s->k) != UINT64_MAX);
    assert_int_equal(record(s).holder[0].pid, getpid()); /* for the next keeper, if this one is killed now */
    ice.fails = false;
    assert_true(freeze_tick(s->k) == UINT64_MAX);
    assert_false(ice.asked);
    assert_int_equal(record(s).holder[0].pid, 0);
}

static void test_the_next_keeper_goes_on_while_the_holder_lives(void **state)
{
    struct scene *s = *state;
    struct journal_record r = record(s);
    struct err err = {0};
    pid_t pid = fork();
    if (pid == 0) {
        (void)pause();
        _exit(0);
    }
    r.holder[2].pid = (uint64_t)pid;
    assert_true(cgroup_start_time(pid, &r.holder[2].start));
    assert_int_equal(journal_update(s->k->journal, &r, &err), 0);
    freeze_adopt(s->k, s->e, &r);
    assert_true(ice.asked && s->e->still);
    (void)freeze_tick(s->k);
    assert_true(ice.asked);
    assert_int_equal(kill(pid, SIGKILL), 0);
    struct epoll_event ev;
    assert_int_equal(epoll_wait(s->k->epoll, &ev, 1, 10000), 1);
    (void)freeze_tick(s->k);
    assert_false(ice.asked);
    assert_int_equal(record(s).holder[2].pid, 0);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    /* Another process has its number now, or none. */
    r.holder[2].pid = (uint64_t)getpid();
    ice.asked = true;
    freeze_adopt(s->k, s->e, &r);
    assert_false(ice.asked);
}

static void test_a_keeper_that_stops_thaws_what_is_held(void **state)
{
    struct scene *s = *state;
    done(s, 0, KEEPER_HOLD);
    freeze_leave(s->k);
    assert_false(ice.asked);
    assert_int_equal(record(s).holder[0].pid, 0);
}

static void test_who_holds_has_no_other_requests_and_hears_of_no_deaths(void **state)
{
    struct scene *s = *state;
    done(s, 0, KEEPER_HOLD);
    ask(s, 0, KEEPER_KILL);
    assert_int_equal(answer(s, 0), KEEPER_BAD_REQUEST);
    assert_int_equal(s->e->life, LIFE_LIVE);
    asker_tell_death(s->k, s->e);
    assert_int_equal(answer(s, 0), -1);
    struct keeper_death d;
    assert_int_equal(recv(s->client[1], &d, sizeof d, MSG_DONTWAIT), sizeof d);
}

static void test_a_tier_without_a_freezer_says_so(void **state)
{
    static const struct tier none = {.name = "none"};
    struct scene *s = *state;
    s->e->tier = &none;
    for (uint32_t type = KEEPER_PAUSE; type <= KEEPER_HOLD; type += KEEPER_HOLD - KEEPER_PAUSE) {
        struct keeper_reply r;
        ask(s, type == KEEPER_HOLD, type);
        assert_int_equal(recv(s->client[type == KEEPER_HOLD], &r, sizeof r, MSG_DONTWAIT), sizeof r);
        assert_int_equal(r.error, KEEPER_HOST);
        assert_string_equal(r.text, "the tier none has no operation \"freeze\"");
    }
    assert_int_equal(record(s).frozen | record(s).holder[0].pid, 0);
}

int main(void)
{
#define TEST(t) cmocka_unit_test_setup_teardown(t, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_it_goes_on_when_the_last_holder_has_released_it),
        TEST(test_the_end_of_a_connection_ends_its_hold),
        TEST(test_a_hold_that_is_not_answered_yet_ends_with_its_connection),
        TEST(test_a_paused_sandbox_stays_still_when_a_hold_ends),
        TEST(test_one_that_does_not_stop_is_thawed_and_all_are_told),
        TEST(test_a_thaw_that_fails_is_tried_again),
        TEST(test_the_next_keeper_goes_on_while_the_holder_lives),
        TEST(test_a_keeper_that_stops_thaws_what_is_held),
        TEST(test_who_holds_has_no_other_requests_and_hears_of_no_deaths),
        TEST(test_a_tier_without_a_freezer_says_so),
    };
    return cmocka_run_group_tests_name("keeper hold", tests, NULL, NULL);
}
