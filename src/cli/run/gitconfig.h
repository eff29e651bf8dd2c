/* gitconfig.h - of a git configuration file, the values that name files which git executes or trusts.
 *
 * core.hooksPath and the `path` of include and includeIf. Everything else is skipped, and what git itself would refuse is
 * read as far as it goes: for a list of what deserves a look, more is better than less. Pure.
 */
#ifndef HUTCH_CLI_RUN_GITCONFIG_H
#define HUTCH_CLI_RUN_GITCONFIG_H

#include <stddef.h>

#include "base/strv.h"

enum {
    GITCONFIG_BYTES_MAX = 256 * 1024, /* of a file; longer ones are not read */
    GITCONFIG_VALUES_MAX = 64         /* of each kind */
};

struct gitconfig {
    struct strv hooks;    /* core.hooksPath; the last one counts for git */
    struct strv includes; /* include.path, includeIf.*.path */
};

/* Appends to ret. The text need not be terminated. */
void gitconfig_read(const char *text, size_t n, struct gitconfig *ret);
void gitconfig_done(struct gitconfig *g);

#endif
