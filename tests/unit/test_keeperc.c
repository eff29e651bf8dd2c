/* front's way to keeper, against a keeper played by the test: answers, lists in pieces, deaths, a restart, silence. */
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "peers/keeperc.h"
#include "tests/lib/unit.h"

struct scene {
    char dir[32];
    int run, listener, conn;
    struct loop *loop;
    struct keeperc *k;
    unsigned up, down, died, done, listed;
    uint32_t error, init_pid;
    size_t nitems;
    char text[KEEPER_TEXT_MAX], dead[KEEPER_ID_MAX];
    uint64_t now;
};

static void on_up(void *arg) { ((struct scene *)arg)->up++; }
static void on_down(void *arg) { ((struct scene *)arg)->down++; }
static void on_died(void *arg, const struct keeper_death *d)
{
    struct scene *s = arg;
    s->died++;
    (void)snprintf(s->dead, sizeof s->dead, "%s", d->id);
}
static void on_done(void *arg, const struct keeper_reply *r)
{
    struct scene *s = arg;
    s->done++;
    s->error = r->error;
    s->init_pid = r->init_pid;
    (void)snprintf(s->text, sizeof s->text, "%.*s", (int)sizeof s->text - 1, r->text);
}
static void on_listed(void *arg, const struct keeper_item *v, size_t n)
{
    struct scene *s = arg;
    s->listed++;
    s->nitems = n;
    if (n > 0)
        assert_string_equal(v[n - 1].id, "last");
}
static const struct keeperc_ops ops = {.up = on_up, .down = on_down, .died = on_died};

static uint64_t clock_of(void *arg) { return ((struct scene *)arg)->now; }

static void listen_here(struct scene *s)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    (void)snprintf(a.sun_path, sizeof a.sun_path, "%s/keeper.sock", s->dir);
    (void)unlink(a.sun_path);
    s->listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    assert_int_equal(bind(s->listener, (const struct sockaddr *)&a, sizeof a), 0);
    assert_int_equal(listen(s->listener, 4), 0);
}

static void steps(struct scene *s, int n)
{
    struct err err = {0};
    while (n-- > 0) {
        s->now += 50;
        assert_int_equal(loop_step(s->loop, 0, &err), 0);
    }
}

static int setup(void **state)
{
    struct err err = {0};
    struct scene *s = calloc(1, sizeof *s);
    (void)snprintf(s->dir, sizeof s->dir, "/tmp/hutch-keeperc.XXXXXX");
    assert_non_null(mkdtemp(s->dir));
    s->run = open(s->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    s->now = 1000;
    assert_int_equal(loop_new(&s->loop, &err), 0);
    loop_set_clock(s->loop, clock_of, s);
    listen_here(s);
    assert_int_equal(keeperc_new(s->loop, s->run, &ops, s, &s->k, &err), 0);
    steps(s, 3);
    assert_int_equal(s->up, 1);
    s->conn = accept4(s->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    assert_true(s->conn >= 0);
    *state = s;
    return 0;
}

static int teardown(void **state)
{
    struct scene *s = *state;
    keeperc_free(s->k);
    loop_free(s->loop);
    (void)close(s->listener);
    if (s->conn >= 0)
        (void)close(s->conn);
    (void)unlinkat(s->run, "keeper.sock", 0);
    (void)close(s->run);
    (void)rmdir(s->dir);
    free(s);
    return 0;
}

static struct keeper_head asked(struct scene *s, uint32_t type)
{
    union {
        struct keeper_head head;
        struct keeper_create create;
    } m = {0};
    assert_true(recv(s->conn, &m, sizeof m, 0) > 0);
    assert_int_equal(m.head.type, type);
    return m.head;
}

static void reply(struct scene *s, struct keeper_head head, uint32_t error)
{
    struct keeper_reply r = {.head = head, .error = error, .init_pid = 5, .text = "words"};
    r.head.type = KEEPER_REPLY;
    assert_int_equal(send(s->conn, &r, sizeof r, 0), sizeof r);
    steps(s, 2);
}

static void test_answers(void **state)
{
    struct scene *s = *state;
    struct keeper_create c = {.id = "box", .template = "host"};
    keeperc_create(s->k, &c, on_done, s);
    assert_int_equal(s->done, 0); /* never from inside the call */
    reply(s, asked(s, KEEPER_CREATE), KEEPER_EXISTS);
    assert_int_equal(s->done, 1);
    assert_int_equal(s->error, KEEPER_EXISTS);
    assert_int_equal(s->init_pid, 5);
    assert_string_equal(s->text, "words");
    keeperc_kill(s->k, "box", on_done, s);
    keeperc_usage(s->k, "box", on_done, s);
    struct keeper_head first = asked(s, KEEPER_KILL), second = asked(s, KEEPER_USAGE);
    reply(s, second, 0);
    reply(s, first, 0);
    reply(s, first, 0); /* once more: ignored */
    assert_int_equal(s->done, 3);
    struct keeper_death d = {.head = {.version = KEEPER_VERSION, .type = KEEPER_DIED}, .id = "gone"};
    assert_int_equal(send(s->conn, &d, sizeof d, 0), sizeof d);
    steps(s, 1);
    assert_string_equal(s->dead, "gone");
    keeperc_forget(s->k, "gone");
    (void)asked(s, KEEPER_FORGET);
}

static void test_pause_and_resume(void **state)
{
    struct scene *s = *state;
    keeperc_pause(s->k, "box", on_done, s);
    reply(s, asked(s, KEEPER_PAUSE), KEEPER_HOST);
    assert_int_equal(s->done, 1);
    assert_int_equal(s->error, KEEPER_HOST);
    keeperc_resume(s->k, "box", on_done, s);
    reply(s, asked(s, KEEPER_RESUME), KEEPER_OK);
    assert_int_equal(s->done, 2);
    assert_int_equal(s->error, KEEPER_OK);
}

static void test_list(void **state)
{
    struct scene *s = *state;
    static struct keeper_items m;
    keeperc_list(s->k, on_listed, s);
    m.head = asked(s, KEEPER_LIST);
    m.head.type = KEEPER_ITEMS;
    m.n = KEEPER_LIST_MAX;
    m.more = 1;
    assert_int_equal(send(s->conn, &m, sizeof m, 0), sizeof m);
    steps(s, 1);
    assert_int_equal(s->listed, 0);
    m.n = 1;
    m.more = 0;
    (void)snprintf(m.item[0].id, sizeof m.item[0].id, "last");
    assert_int_equal(send(s->conn, &m, sizeof m, 0), sizeof m);
    steps(s, 1);
    assert_int_equal(s->listed, 1);
    assert_int_equal(s->nitems, KEEPER_LIST_MAX + 1);
}

static void test_restart(void **state)
{
    struct scene *s = *state;
    keeperc_kill(s->k, "box", on_done, s);
    (void)asked(s, KEEPER_KILL);
    (void)close(s->conn);
    (void)close(s->listener);
    steps(s, 4);
    assert_int_equal(s->down, 1);
    keeperc_usage(s->k, "box", on_done, s);
    listen_here(s);
    steps(s, 60);
    assert_int_equal(s->up, 2);
    s->conn = accept4(s->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    struct keeper_head first = asked(s, KEEPER_KILL), second = asked(s, KEEPER_USAGE); /* in the order asked */
    reply(s, first, 0);
    reply(s, second, 0);
    assert_int_equal(s->done, 2);
}

static void test_silence(void **state)
{
    struct scene *s = *state;
    keeperc_kill(s->k, "box", on_done, s);
    s->now += 70000;
    steps(s, 3);
    assert_int_equal(s->done, 1);
    assert_int_equal(s->error, KEEPER_FAILED);
    assert_string_equal(s->text, "keeper does not answer");
    reply(s, asked(s, KEEPER_KILL), 0); /* too late */
    assert_int_equal(s->done, 1);
}

static void test_nonsense(void **state)
{
    struct scene *s = *state;
    assert_int_equal(send(s->conn, "nonsense", 8, 0), 8);
    steps(s, 2);
    assert_int_equal(s->down, 1);
    steps(s, 20);
    assert_int_equal(s->up, 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_answers, setup, teardown),
        cmocka_unit_test_setup_teardown(test_pause_and_resume, setup, teardown),
        cmocka_unit_test_setup_teardown(test_list, setup, teardown),
        cmocka_unit_test_setup_teardown(test_restart, setup, teardown),
        cmocka_unit_test_setup_teardown(test_silence, setup, teardown),
        cmocka_unit_test_setup_teardown(test_nonsense, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
