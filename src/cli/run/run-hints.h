/* run-hints.h - the last lines of a run that failed: files that a private directory covers, and options that
 * would help. They only guess; the record has none of them. */
#ifndef HUTCH_CLI_RUN_RUN_HINTS_H
#define HUTCH_CLI_RUN_RUN_HINTS_H

#include "cli/run/denials.h"
#include "cli/run/run-prepare.h"

/* Appends them. Looks at names on the host that the command line has; blocks on the file system. */
void run_hints(const struct prepared *p, const struct outcome *o, const struct denials *denials, struct buf *out);

#endif
