/* memory.h - how much memory there is to take. */
#ifndef HUTCH_OS_MEMORY_H
#define HUTCH_OS_MEMORY_H

#include <stdint.h>

/* Bytes that can be had without anybody's being killed or swapped out: what the host has, and what the limits of the
 * caller's own cgroup and of those around it leave, whichever is less. 0 if that cannot be told. */
uint64_t memory_room(void);

#endif
