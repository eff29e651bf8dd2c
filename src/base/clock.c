#include "base/clock.h"

#include <time.h>

static uint64_t clock_read_ms(clockid_t which)
{
    struct timespec now;
    (void)clock_gettime(which, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

uint64_t clock_unix_ms(void) { return clock_read_ms(CLOCK_REALTIME); }
uint64_t clock_boot_ms(void) { return clock_read_ms(CLOCK_BOOTTIME); }
