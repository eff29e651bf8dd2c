/* memory.h - how much memory a new sandbox can get. */
#ifndef HUTCH_OS_MEMORY_H
#define HUTCH_OS_MEMORY_H

#include <stdint.h>

/* Bytes available without killing or swapping out a process: the least of what the host and the limits of the caller's
 * cgroup and its ancestors leave. 0 if unknown. */
uint64_t memory_room(void);

#endif
