/* metrics.h - what each running sandbox used: a sample about every 5 s, kept for an hour. keeper reads the numbers; front asks
 * for a few sandboxes at a time, so that many of them stretch the interval instead of the queue.
 */
#ifndef HUTCH_FRONT_METRICS_H
#define HUTCH_FRONT_METRICS_H

#include "front/boxes.h"

enum { METRICS_PERIOD_MS = 5000, METRICS_KEPT = 720, METRICS_PER_SECOND = 400 /* questions to keeper */ };

struct metric {
    uint64_t at_unix_ms;
    uint64_t memory, disk;   /* bytes in use */
    uint32_t cpu_milli_used; /* thousandths of a CPU, mean since the sample before */
    uint32_t pids;
};

void metrics_start(struct front *f);
void metrics_free(struct front *f);
/* Samples with from <= time <= to (Unix milliseconds), oldest first. */
void metrics_each(const struct box *b, uint64_t from_ms, uint64_t to_ms,
                  void (*each)(void *arg, const struct metric *m), void *arg);
bool metrics_last(const struct box *b, struct metric *ret);
void metrics_forget(struct box *b); /* frees what hangs on the box */

#endif
