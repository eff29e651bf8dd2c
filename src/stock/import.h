/* import.h - an archive becomes a stack: shared by import.c and restore.c. */
#ifndef HUTCH_STOCK_IMPORT_H
#define HUTCH_STOCK_IMPORT_H

#include "stock/jobs.h"

/* Unpacks the image in `archive` (any kind of descriptor) into layers and writes the stack j->ask->stack. select:
 * which of several images, or "". hutch: it must be an export of ours. j->reply gets sizes and a note, j->reply_fd
 * the image's configuration. */
int import_archive(struct job *j, int archive, const char *select, bool hutch, struct err *err);
/* The same bytes as a regular file: workers go back and forth in an archive, so what is none is written to one.
 * Whoever writes to a pipe has so long and not longer; a variable for the sake of tests. */
struct import_pace {
    unsigned silence_ms, total_ms;
};
extern struct import_pace import_pace;
int import_seekable(struct job *j, int fd, struct err *err);
/* The stack is there: the request came before, and was done. */
bool import_done(const struct job *j);
/* A file in tmp/ that has no name any more. */
int import_file(struct job *j, struct err *err);

#endif
