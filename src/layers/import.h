/* import.h - turns an archive into a stack, for import.c and restore.c. It never reads an archive itself: an
 * unprivileged worker does (worker.h). */
#ifndef HUTCH_LAYERS_IMPORT_H
#define HUTCH_LAYERS_IMPORT_H

#include "layers/jobs.h"

/* Unpacks the image in `archive` (any kind of descriptor) into layers and writes the stack j->ask->stack. select:
 * which of several images, or "". hutch: it must be an export of ours. j->reply gets sizes and a note, j->reply_fd
 * the image's configuration. */
int import_archive(struct job *j, int archive, const char *select, bool hutch, struct err *err);
/* Returns the archive as a regular file, because workers seek in it; a pipe is copied to a file first. import_pace
 * limits how long the writer of the pipe may be silent and take in all; it is a variable so that tests can shorten
 * it. */
struct import_pace {
    unsigned silence_ms, total_ms;
};
extern struct import_pace import_pace;
int import_seekable(struct job *j, int fd, struct err *err);
/* True if the stack exists: an earlier request made it. */
bool import_done(const struct job *j);
/* A new file in tmp/, already unlinked. */
int import_file(struct job *j, struct err *err);

#endif
