/* clock-shift.c - preloaded into hutch-node: its wall clock is off by the seconds that stand in the file HUTCH_TEST_CLOCK.
 *
 * The file holds one int64_t, is mapped when the process starts, and can be changed while it runs. Clocks that nobody can set
 * (CLOCK_MONOTONIC, CLOCK_BOOTTIME) are left alone, as the kernel leaves them when the wall clock is set.
 */
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const volatile int64_t none, *shift = &none;

__attribute__((constructor)) static void start(void)
{
    const char *path = getenv("HUTCH_TEST_CLOCK");
    int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (fd < 0)
        return;
    void *p = mmap(NULL, sizeof *shift, PROT_READ, MAP_SHARED, fd, 0);
    if (p != MAP_FAILED)
        shift = p;
    (void)close(fd);
}

__attribute__((visibility("default"))) int clock_gettime(clockid_t clock, struct timespec *ret)
{
    int rc = (int)syscall(SYS_clock_gettime, clock, ret);
    if (rc == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE || clock == CLOCK_TAI))
        ret->tv_sec += *shift;
    return rc;
}

__attribute__((visibility("default"))) time_t time(time_t *ret)
{
    struct timespec now = {0};
    (void)clock_gettime(CLOCK_REALTIME, &now);
    if (ret)
        *ret = now.tv_sec;
    return now.tv_sec;
}

__attribute__((visibility("default"))) int gettimeofday(struct timeval *restrict ret, void *restrict zone)
{
    struct timespec now = {0};
    (void)zone;
    int rc = clock_gettime(CLOCK_REALTIME, &now);
    *ret = (struct timeval){now.tv_sec, now.tv_nsec / 1000};
    return rc;
}
