/* emit.h - turns one entry of a tree into records of a lay stream, for a stream or a digest. It never walks by itself.
 * Private to tree and diff. */
#ifndef HUTCH_TREES_EMIT_H
#define HUTCH_TREES_EMIT_H

#include "trees/walk.h"

enum { EMIT_SOCKET = 100 };

/* Where records go. Each returns -1 with errno. */
struct emit_sink {
    int (*record)(void *arg, struct lay_record *r, const char *path, const char *target, const struct buf *xattrs);
    /* Content of the file before, in blocks of WALK_BLOCK (the last one shorter): bytes, or so many zeros. */
    int (*bytes)(void *arg, const void *p, size_t n);
    int (*zeros)(void *arg, uint64_t n);
    void *arg;
};
/* Into a lay_out. */
struct emit_sink emit_to_stream(struct lay_out *o);

struct emit {
    struct emit_sink sink;
    enum xattr_view view;
    uid_t shift;        /* owners minus this; outside 0..65535 is an error */
    bool leave_devices; /* leave devices out and count them, instead of failing */
    uint64_t devices;
    bool whole;             /* for a digest: with sockets, and an attribute that no record can hold is an error */
    struct walk_inos links; /* files with several names, each with the first of them */
    struct buf xattrs;
    unsigned char *block; /* owned */
    uint64_t bytes;       /* allocated, of what was emitted */
    uint64_t entries;
};
void emit_start(struct emit *e, struct emit_sink sink, enum xattr_view view, uid_t shift);
void emit_done(struct emit *e);

/* A directory that is open: LAY_DIR (LAY_META for the root), then LAY_OPAQUE if it is marked so, or `opaque` says
 * so. */
int emit_dir(struct emit *e, int fd, const char *path, const struct stat *st, bool opaque, struct err *err);
/* Everything but directories. Sockets are skipped unless `whole` is set, which emits them as EMIT_SOCKET, a type
 * that no stream has; devices other than a layer's whiteouts are an error, unless leave_devices is set. */
int emit_other(struct emit *e, int dir, const char *name, const char *path, const struct stat *st, struct err *err);
/* A record with nothing but a path. */
int emit_mark(struct emit *e, enum lay_type type, const char *path, struct err *err);

#endif
