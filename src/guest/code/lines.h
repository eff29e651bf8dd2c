/* lines.h - what a kernel says about one cell -> the lines that clients of the code interpreter read. Pure. */
#ifndef HUTCH_GUEST_CODE_LINES_H
#define HUTCH_GUEST_CODE_LINES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "guest/code/wire.h"

enum { LINES_OUTPUT_MAX = 64 * 1024 * 1024 }; /* bytes of all lines of one cell */

struct lines {
    size_t bytes;     /* so far */
    uint64_t most;    /* the cell's own limit; 0: LINES_OUTPUT_MAX alone */
    bool failed;      /* a line of type "error" was written: later ones are dropped */
    bool full;        /* LINES_OUTPUT_MAX was reached, or one output was too large: nothing but the end is written */
    const char *stop; /* the name of the error that the cell ends with because we stopped it, or NULL */
    char why[192];    /* its text */
    bool idle;        /* iopub: the kernel is done with this cell */
    bool replied;     /* shell: it has answered */
};

/* Appends the lines for a message whose parent is this cell. */
void lines_add_message(struct lines *l, const struct wire_msg *m, struct buf *out);
void lines_add_error(struct lines *l, const char *name, const char *value, struct buf *out);
void lines_add_text(struct lines *l, const char *type, const char *text, struct buf *out);
/* We stop the cell: its own error, which only tells of the interrupt, is dropped. lines_add_stop() writes ours when the end
 * is known. */
void lines_stop(struct lines *l, const char *name, const char *why);
/* One output was too large to be read; `why` says so. */
void lines_stop_too_large(struct lines *l, const char *why);
/* The error of lines_stop(), if there is one. `more` is NULL or what else happened. */
void lines_add_stop(struct lines *l, const char *more, struct buf *out);
/* The text of the two that carry nothing. */
extern const char lines_keepalive[], lines_end[];

#endif
