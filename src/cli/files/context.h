/* context.h - the directory that a template is built from: finds, hashes and archives the files of a COPY. Only reads it. */
#ifndef HUTCH_CLI_FILES_CONTEXT_H
#define HUTCH_CLI_FILES_CONTEXT_H

#include "base/err.h"
#include "base/sha256.h"
#include "base/strv.h"

enum { CONTEXT_FILES_MAX = 1000000, CONTEXT_DEPTH_MAX = 100, CONTEXT_IGNORES_MAX = 4096 };

struct context {
    int dir;            /* owned */
    struct strv ignore; /* patterns of .dockerignore, in order; "!" in front: an exception */
};
int context_open(struct context *c, const char *path, struct err *err);
void context_done(struct context *c);
/* Pure: whether .dockerignore excludes a path (relative, clean). */
bool context_ignored(const struct strv *patterns, const char *path);
/* Pure: the patterns in a file's text. */
void context_ignore_read(const char *text, struct strv *ret);

/* The files that `source` (a path or a pattern) matches: relative paths, sorted, directories before their entries. ERR_USAGE if
 * there are none. */
int context_files(const struct context *c, const char *source, struct strv *ret, struct err *err);
/* The hash that E2B's SDKs compute from names, modes and contents. */
int context_hash(const struct context *c, const char *source, const char *dest, const struct strv *files,
                 char ret[SHA256_HEX], struct err *err);

/* context-tar.c: an archive of those files, written to fd. */
int context_tar(const struct context *c, const struct strv *files, int fd, struct err *err);
/* An archive of a whole directory, for OCI layouts. */
int context_tar_all(int dir, int fd, struct err *err);

#endif
