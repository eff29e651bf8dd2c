/* untar.h - unpacks an archive that a sandbox made, and may have made up, into a directory of this machine. Makes directories,
 * files and links below it and nothing else: every component of a name is opened without following links, ".." and device
 * files are refused or left out, set-id bits are dropped. Bytes come in pieces of any size.
 */
#ifndef HUTCH_CLI_FILES_UNTAR_H
#define HUTCH_CLI_FILES_UNTAR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#include "base/buf.h"
#include "base/err.h"

enum { UNTAR_BLOCK = 512, UNTAR_NAME_MAX = 4096, UNTAR_DEPTH_MAX = 128 };

struct untar {
    int dir; /* borrowed: all files come below it */
    uint64_t files, bytes, left_out;
    /* of the archive */
    unsigned char block[UNTAR_BLOCK];
    size_t have;        /* bytes of the block */
    uint64_t left, pad; /* of the current entry's content; zeros behind it */
    int fd;             /* the file that the content goes to; -1: none */
    int text;           /* 'L', 'K' or 'x': the content is the name, the target or a list of both for the next entry */
    struct buf kept;    /* that content */
    struct buf name, target; /* "" : what the block says */
    bool sized;              /* "size" was in such a list */
    uint64_t size;
    time_t mtime;
    bool ended;
};
void untar_start(struct untar *u, int dir);
int untar_feed(struct untar *u, const void *p, size_t n, struct err *err);
/* Whether the archive was complete. */
int untar_end(struct untar *u, struct err *err);
void untar_done(struct untar *u);

#endif
