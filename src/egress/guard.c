/* guard.c - see guard.h.
 *
 * The listener was made inside the sandbox, and init holds the same open file description. O_NONBLOCK is a flag of the
 * description: a compromised init can clear it between our fcntl() and our accept(), take the connection itself, and
 * block egress, and with it every other sandbox, for ever. SO_RCVTIMEO is shared in the same way. An interval timer is
 * ours alone: its signal interrupts the call. It repeats because the first signal may come before the call has begun.
 */
#include "egress/guard.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <sys/socket.h>
#include <sys/time.h>

enum { GUARD_US = 200 };

static void guard_on_alarm(int signo) { (void)signo; }

static int guard_take_signal(void)
{
    static bool taken;
    const struct sigaction a = {.sa_handler = guard_on_alarm}; /* without SA_RESTART: a blocked call ends */
    sigset_t alarm;
    if (taken)
        return 0;
    (void)sigemptyset(&alarm);
    (void)sigaddset(&alarm, SIGALRM);
    /* The loop's workers block every signal, so this thread gets it. */
    if (sigaction(SIGALRM, &a, NULL) < 0 || pthread_sigmask(SIG_UNBLOCK, &alarm, NULL) != 0)
        return -1;
    taken = true;
    return 0;
}

int guard_accept(int listener)
{
    const struct itimerval on = {.it_interval = {.tv_usec = GUARD_US}, .it_value = {.tv_usec = GUARD_US}}, off = {0};
    (void)fcntl(listener, F_SETFL, O_NONBLOCK);
    if (guard_take_signal() < 0 || setitimer(ITIMER_REAL, &on, NULL) < 0)
        return -1;
    int fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    int eno = errno;
    (void)setitimer(ITIMER_REAL, &off, NULL);
    errno = eno;
    return fd;
}
