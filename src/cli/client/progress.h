/* progress.h - a line on standard error that says how far something is; only on a terminal. */
#ifndef HUTCH_CLI_CLIENT_PROGRESS_H
#define HUTCH_CLI_CLIENT_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

/* Bytes of a transfer; all 0 or HTTP_UNKNOWN: not known. `last` ends the line. */
void progress_bytes(const char *what, uint64_t done, uint64_t all, bool last);
/* Steps of a build: `done` of `all` have ended, `what` runs. progress_clear() takes the line away, before other
 * output. */
void progress_steps(const char *what, unsigned done, unsigned all);
void progress_clear(void);

#endif
