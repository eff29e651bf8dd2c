/* metrics.h - resource usage of each running sandbox: a sample about every 5 s, kept for an hour. keeper reads the
 * numbers. front asks for a few sandboxes at a time: with very many the interval becomes longer, not keeper's queue.
 */
#ifndef HUTCH_SANDBOXES_METRICS_H
#define HUTCH_SANDBOXES_METRICS_H

#include "sandboxes/sandboxes.h"

enum { METRICS_PERIOD_MS = 5000, METRICS_KEPT = 720, METRICS_PER_SECOND = 400 /* questions to keeper */ };

struct metric {
    uint64_t at_unix_ms;
    uint64_t memory, disk;   /* bytes in use */
    uint32_t cpu_milli_used; /* thousandths of a CPU, mean since the sample before */
    uint32_t pids;
};

void metrics_start(struct sandboxes *sb);
void metrics_free(struct sandboxes *sb);
/* Samples with from <= time <= to (Unix milliseconds), oldest first. */
void metrics_each(const struct sandbox *b, uint64_t from_ms, uint64_t to_ms,
                  void (*each)(void *arg, const struct metric *m), void *arg);
bool metrics_last(const struct sandbox *b, struct metric *ret);
void metrics_forget(struct sandbox *b); /* frees what hangs on the sandbox */

#endif
