/* num.h - strict readers and writers of numbers, sizes and durations. Skips no characters and never wraps around. */
#ifndef HUTCH_BASE_NUM_H
#define HUTCH_BASE_NUM_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"

/* Each returns false and leaves *ret alone unless the whole string is a valid value in range. */
bool num_u64(const char *s, uint64_t *ret);
bool num_int(const char *s, int min, int max, int *ret);
/* "512M", "1.5G", "64k", "4096": powers of 1024 with K M G T and an optional "iB" or "B". */
bool num_size(const char *s, uint64_t *ret_bytes);
/* "30s", "1.5s", "200ms", "5m", "2h", "1d"; a bare number is seconds. Result in milliseconds. */
bool num_duration(const char *s, uint64_t *ret_ms);
/* "1.5", "0.25", "2", "150%": thousandths of a CPU. */
bool num_cpus(const char *s, uint64_t *ret_milli);

void num_add_size(struct buf *b, uint64_t bytes);  /* "512 MiB", "1.5 GiB", "100 B" */
void num_add_duration(struct buf *b, uint64_t ms); /* "200 ms", "30 s", "5 min" */

#endif
