/* clock.h - the two clocks that are shown to users and kept in rows. Timers use the loop's own (loop/loop.h). */
#ifndef HUTCH_BASE_CLOCK_H
#define HUTCH_BASE_CLOCK_H

#include <stdint.h>

/* Milliseconds of the wall clock, which may be set at any time. */
uint64_t clock_unix_ms(void);
/* Milliseconds since the machine booted, suspended time included; never set. */
uint64_t clock_boot_ms(void);

#endif
