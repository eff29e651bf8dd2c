/* early.c - the user and network namespaces of a sandbox, made while its plan is still being made.
 *
 * A network namespace takes the kernel as long as all others together, and while the caller reads policies the other CPUs have
 * nothing to do. The task that makes it lives in the caller's memory, with its descriptors: it calls the kernel without the C
 * library, whose errno is the caller's, and writes nothing but the two numbers below.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <sched.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "wall/inside.h"

static char early_stack[16 * 1024] __attribute__((aligned(16)));

#if defined(__x86_64__)

/* -errno instead of errno. */
static long call(long number, long a, long b, long c, long d)
{
    long ret;
    register long r10 __asm__("r10") = d;
    __asm__ volatile("syscall" : "=a"(ret) : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10) : "rcx", "r11", "memory");
    return ret;
}

static int early_main(void *arg)
{
    struct wall_early *e = arg;
    struct ifreq ifr = {.ifr_name = "lo", .ifr_flags = IFF_UP | IFF_RUNNING};
    uint64_t all = ~0ULL; /* a signal to the caller's group is the caller's, or the command's */
    (void)call(SYS_rt_sigprocmask, SIG_SETMASK, (long)&all, 0, sizeof all);
    e->userns = (int)call(SYS_openat, AT_FDCWD, (long)"/proc/self/ns/user", O_RDONLY | O_CLOEXEC, 0);
    if (e->userns >= 0 && call(SYS_unshare, CLONE_NEWNET, 0, 0, 0) == 0) {
        long sock = call(SYS_socket, AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0, 0);
        if (sock >= 0 && call(SYS_ioctl, sock, SIOCSIFFLAGS, (long)&ifr, 0) == 0)
            e->net = (int)call(SYS_ioctl, sock, SIOCGSKNS, 0, 0);
        if (sock >= 0)
            (void)call(SYS_close, sock, 0, 0, 0);
    }
    return 0;
}

void wall_early_start(struct wall_early *e)
{
    *e = (struct wall_early)WALL_EARLY_NONE;
    e->task = clone(early_main, early_stack + sizeof early_stack, CLONE_VM | CLONE_FILES | CLONE_NEWUSER | SIGCHLD, e);
}

#else

void wall_early_start(struct wall_early *e) { *e = (struct wall_early)WALL_EARLY_NONE; }

#endif

bool wall_early_wait(struct wall_early *e)
{
    int status;
    while (e->task > 0 && waitpid(e->task, &status, 0) < 0 && errno == EINTR) {
    }
    e->task = -1;
    return e->userns >= 0 && e->net >= 0;
}

void wall_early_done(struct wall_early *e)
{
    (void)wall_early_wait(e);
    if (e->userns >= 0)
        (void)close(TAKE_FD(e->userns));
    if (e->net >= 0)
        (void)close(TAKE_FD(e->net));
}
