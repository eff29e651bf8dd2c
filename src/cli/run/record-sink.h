/* record-sink.h - where the record of a run goes (--json). A descriptor or a device is written to; a file is replaced by
 * a new one after the run, so that whatever the command put at its name (a link to your shell's start-up file, say) is
 * never followed. */
#ifndef HUTCH_CLI_RUN_RECORD_SINK_H
#define HUTCH_CLI_RUN_RECORD_SINK_H

#include <stdbool.h>
#include <sys/stat.h>

#include "base/buf.h"
#include "base/err.h"

struct record_sink {
    int fd;     /* -1 if it is a file that can be replaced */
    bool empty; /* fd is a file that stays where it is: it is emptied first */
    int dir;    /* of the file, opened before the run; -1 */
    char *name; /* owned */
};
#define RECORD_SINK_NONE    \
    {                       \
        .fd = -1, .dir = -1 \
    }

/* `where` as --json takes it: the number of a descriptor, a device, a file. */
int record_sink_open(const char *where, struct record_sink *ret, struct err *err);
void record_sink_done(struct record_sink *s);
/* Would the record take the place of this file? */
bool record_sink_is(const struct record_sink *s, const struct stat *file);
/* Runs after everything inside has ended, so no process of the sandbox can change the names. -1 with errno. */
int record_sink_write(const struct record_sink *s, const struct buf *text);

#endif
