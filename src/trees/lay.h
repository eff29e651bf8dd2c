/* lay.h - the lay stream: a tree as a sequence of records with a fixed layout; writes and reads it.
 *
 * Untrusted processes that read archives send lay streams to trusted jobs that write layers and read nothing else.
 * Numbers are little-endian as in memory; both sides come from one build. Paths are relative, without empty, "." or
 * ".." parts and without NUL; the reader checks every path itself and resolves it below the root, following no link.
 * Parents come before their entries; missing ones are made (0755, 0:0). A path may come again: the later record wins.
 */
#ifndef HUTCH_TREES_LAY_H
#define HUTCH_TREES_LAY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

#define LAY_MAGIC UINT32_C(0x31796c48) /* "Hly1" */

enum lay_type {
    LAY_DIR = 1,
    LAY_FILE,     /* `size` bytes of content follow */
    LAY_SYMLINK,  /* target */
    LAY_HARDLINK, /* target: path of a file, link or pipe that came before */
    LAY_FIFO,
    LAY_WHITEOUT, /* hides the path of lower layers */
    LAY_OPAQUE,   /* the directory at path hides what lower layers hold in it. "" is the root */
    LAY_META,     /* of a directory that is there: owner, mode, times, xattrs. "" is the root */
    LAY_END,      /* the last one; size: number of records before it */
    LAY_SPARSE, /* a file of `size` bytes, of which only the data follows: in order, struct lay_segment and its n bytes;
                     the last segment has at == size and n == 0. The rest is zeros */
};
struct lay_segment {
    uint64_t at, n;
};

enum {
    LAY_PATH_MAX = 4096, /* with NUL */
    LAY_NAME_MAX = 255,
    LAY_DEPTH_MAX = 128,
    LAY_XATTRS_MAX = 64 << 10, /* bytes of one record */
    LAY_ID_MAX = 65535,        /* larger owners become nobody (65534) */
    LAY_PAGE = 4096,           /* unit in which zeros are left out of a LAY_SPARSE */
};
#define LAY_SPARSE_MAX (UINT64_C(1) << 50) /* size of a file, holes included */

struct lay_record {
    uint32_t magic, type;
    uint32_t mode; /* permission bits, set-id and sticky included */
    uint32_t uid, gid;
    uint32_t mtime_nsec;
    int64_t mtime_sec;
    uint64_t size;
    uint32_t path_len, target_len; /* bytes that follow, without NUL */
    uint32_t xattrs_len;           /* then as many bytes of: u16 name length, u16 zero, u32 value length, name, value */
    uint32_t zero;
};

/* Limits of one stream; 0 = the default. */
struct lay_limits {
    uint64_t bytes;   /* of content; default 64 GiB */
    uint64_t entries; /* default 4 million */
    uint64_t file;    /* of one file; default: bytes */
    uint64_t sparse;  /* size of one LAY_SPARSE; only its data counts as bytes. Default and maximum: LAY_SPARSE_MAX */
};

struct lay_done {
    uint64_t bytes, entries, files;
    uint64_t dropped; /* attributes and owners that a layer or this host cannot hold; `note` tells the first */
    bool alone;       /* the root is opaque, which overlay ignores: the stack must have nothing below this layer */
    char note[200];
};

enum {
    LAY_USERXATTR = 1, /* overlay's marks are user.overlay.*: without root */
    LAY_NO_CHOWN = 2,  /* tests without root */
    LAY_PLAIN = 4,     /* into an ordinary directory: whiteouts remove, LAY_OPAQUE removes what was there before the
                          stream but not what the stream made; no overlay marks are written */
    LAY_WHOLE = 8,     /* an attribute without room (ENOSPC) is a failure instead of being dropped */
};

/* Reads one stream from fd to its LAY_END and creates its entries below the directory `root`. `progress` may be
 * NULL; if it returns false, reading stops. ERR_USAGE with the entry and its fault for a malformed stream, ERR_LIMIT
 * for one that is too large, ERR_SETUP with errno otherwise (ENOSPC ...). After a failure the entries made so far
 * stay: the caller removes the directory. An entry below one that is a symbolic link or a file is refused, not
 * followed. A directory where a whiteout was is opaque. Directories that no record describes have the time 0, and so
 * has the root of a new layer (0755, 0:0), so that equal streams make equal layers. Attributes kept: user.* and the
 * ACLs, security.capability if we may; nothing of overlay's own. Links and pipes have none. */
int lay_read(int fd, int root, unsigned flags, const struct lay_limits *limits,
             bool (*progress)(void *arg, const struct lay_done *d), void *arg, struct lay_done *ret, struct err *err);

/* A stream being written to fd, with its buffer. */
struct lay_out {
    int fd;
    uint64_t records;
    uint64_t written, max; /* bytes of the stream; beyond max writing fails with EFBIG. 0: no limit. lay_out_start: 0 */
    uint64_t at, size;     /* in the LAY_SPARSE that is being written */
    bool sparse;
    void (*waits)(bool now); /* called with true before and false after each write to fd. lay_out_start: NULL */
    size_t n;
    unsigned char buf[64 << 10];
};
void lay_out_start(struct lay_out *o, int fd);
/* r->path_len and so on are filled in. xattrs: the packed block, may be NULL with n 0. -1 with errno. */
int lay_out_record(struct lay_out *o, struct lay_record *r, const char *path, const char *target, const void *xattrs,
                   size_t nxattrs);
/* Content of the last LAY_FILE or LAY_SPARSE, exactly r->size in all: bytes, or n zeros. */
int lay_out_bytes(struct lay_out *o, const void *p, size_t n);
int lay_out_zeros(struct lay_out *o, uint64_t n);
int lay_out_end(struct lay_out *o); /* LAY_END, flushed */

/* Pure. NULL if the path is valid in a stream, else what is wrong with it. */
const char *lay_path_wrong(const char *path, size_t n);

#endif
