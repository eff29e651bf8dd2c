/* rights.h - what a cell may less than the service: {"network": "off", "write": "none" | ["/work"], "timeoutSeconds": 60,
 * "outputBytes": 65536}.
 *
 * Network and writing are rights of a kernel for its whole life: what it has started, or keeps in memory, has them as well.
 * They are put in force between fork() and exec, and nothing takes them back. Time and output are limits of one cell.
 */
#ifndef HUTCH_GUEST_CODE_RIGHTS_H
#define HUTCH_GUEST_CODE_RIGHTS_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

enum { RIGHTS_PATHS_MAX = 32 };

struct kernel_rights {
    bool no_network, limit_write;
    size_t nwrite;
    const char *write[RIGHTS_PATHS_MAX]; /* in `said`; relative ones begin at the kernel's directory */
    json_t *said;                        /* owned: the same rights are equal. NULL: those of the service */
};

struct cell_rights {
    struct kernel_rights kernel;
    uint64_t time_ms, output_max; /* 0: none */
};

/* NULL and null give none. ERR_USAGE says what would be right. */
int cell_rights_read(json_t *o, struct cell_rights *ret, struct err *err);
/* The same of the text of a variable. */
int cell_rights_read_text(const char *text, struct cell_rights *ret, struct err *err);
void cell_rights_done(struct cell_rights *r);

bool kernel_rights_equal(const struct kernel_rights *a, const struct kernel_rights *b);
/* A copy that kernel_rights_done() frees. */
struct kernel_rights kernel_rights_copy(const struct kernel_rights *r);
void kernel_rights_done(struct kernel_rights *r);
/* Every path exists, seen from this directory. ERR_USAGE. */
int kernel_rights_check(const struct kernel_rights *r, const char *cwd, struct err *err);

/* In the new process, in its directory. `own` is the directory of the kernel's files, which it may always change. 0, or -1
 * after a word on stderr. Nothing allocates. */
int kernel_rights_apply(const struct kernel_rights *r, const char *own);

#endif
