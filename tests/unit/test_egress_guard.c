/* Unit tests: a listener that somebody else holds too, and makes blocking whenever he likes. */
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "egress/guard.h"
#include "tests/lib/unit.h"

static int listener(struct sockaddr_in *ret)
{
    *ret = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof *ret;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)ret, n), 0);
    assert_int_equal(listen(fd, 8), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)ret, &n), 0);
    return fd;
}

static void test_a_listener_of_our_own_is_accepted_from_as_usual(void **state)
{
    struct sockaddr_in a;
    (void)state;
    int l = listener(&a);
    assert_int_equal(guard_accept(l), -1);
    assert_int_equal(errno, EAGAIN);
    for (int i = 0; i < 100; i++) {
        int c = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        assert_int_equal(connect(c, (struct sockaddr *)&a, sizeof a), 0);
        int fd = guard_accept(l);
        assert_true(fd >= 0);
        assert_true(fcntl(fd, F_GETFL) & O_NONBLOCK);
        assert_true(fcntl(fd, F_GETFD) & FD_CLOEXEC);
        (void)close(fd);
        (void)close(c);
    }
    (void)close(l);
}

static atomic_bool over;

/* What an init that was taken over can do: it holds the same open file description. */
static void *toggle(void *arg)
{
    const int *fd = arg;
    while (!atomic_load(&over))
        (void)fcntl(*fd, F_SETFL, 0);
    return NULL;
}

static uint64_t now_ms(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

/* Without the guard this stands still in accept for ever; somebody may have to wait until the attacker wins the race. */
static void test_one_who_makes_it_blocking_cannot_make_us_wait(void **state)
{
    struct sockaddr_in a;
    pthread_t attacker;
    sigset_t all, old;
    unsigned blocked = 0;
    (void)state;
    int l = listener(&a);
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &old);
    assert_int_equal(pthread_create(&attacker, NULL, toggle, &l), 0);
    (void)pthread_sigmask(SIG_SETMASK, &old, NULL);
    for (uint64_t end = now_ms() + 300000; blocked < 20 && now_ms() < end;) {
        assert_int_equal(guard_accept(l), -1);
        assert_true(errno == EAGAIN || errno == EINTR);
        blocked += errno == EINTR;
    }
    atomic_store(&over, true);
    (void)pthread_join(attacker, NULL);
    assert_int_equal(blocked, 20);
    (void)close(l);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_listener_of_our_own_is_accepted_from_as_usual),
        cmocka_unit_test(test_one_who_makes_it_blocking_cannot_make_us_wait),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
