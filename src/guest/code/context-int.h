/* context-int.h - what contexts (context.c) and their cells (cell.c) share. */
#ifndef HUTCH_GUEST_CODE_CONTEXT_INT_H
#define HUTCH_GUEST_CODE_CONTEXT_INT_H

#include "guest/code/context.h"
#include "guest/code/lines.h"

/* Starts the first cell if the kernel is ready and it has not been started. */
void cell_start_next(struct context *c);
/* The id of the cell whose output is of interest, or NULL. */
const char *cell_wanted(const struct context *c);
void cell_on_message(struct context *c, const struct wire_msg *m, const char *why);
/* Ends the running cell with an error; `all`: those that wait, too. Whether a client was told. */
bool cell_end_with_error(struct context *c, bool all, const char *name, const char *why);
/* Starts a kernel; a failure is kept in c->why. */
void context_start_kernel(struct context *c);

#endif
