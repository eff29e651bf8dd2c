/* audit.h - the audit log: one line of JSON per outbound request, tunnel, refusal or DNS refusal. Each line carries the
 * hash of the line before, so `hutch audit verify` finds a line that was changed, removed or inserted.
 *
 * Files are DIR/audit-NNNNNNNN.ndjson; one is being written. A new one begins at AUDIT_FILE_MAX bytes and at every
 * start; its first line names the last hash of the file before. The newest AUDIT_FILES_KEPT stay. Of an older one,
 * kept-NNNNNNNN.ndjson holds the lines of tenants that wrote little to it (audit-keep.c). Lines are written in one
 * batch at the end of each round of the loop. While the disk takes none, up to AUDIT_PENDING_MAX bytes wait and further
 * lines are counted as dropped; with block_when_full the caller refuses requests meanwhile (audit_blocked). The
 * operator chooses whether lines are forced to the disk (enum audit_sync). docs/audit.md describes the lines.
 *
 * For one `hutch run` lines go to the run, which keeps some of them in its record. With --audit there is also one file;
 * each run that names it continues its chain, and once it has AUDIT_FILE_MAX bytes all requests are refused.
 */
#ifndef HUTCH_EGRESS_AUDIT_AUDIT_H
#define HUTCH_EGRESS_AUDIT_AUDIT_H

#include "egress/core/egress.h"

enum {
    AUDIT_FILE_MAX = 64 << 20,
    AUDIT_FILES_KEPT = 64,
    AUDIT_SHARES = 8,            /* a tenant with more than an eighth of a file has none of its lines kept */
    AUDIT_PENDING_MAX = 4 << 20, /* bytes that wait for a disk that takes none */
    AUDIT_RETRY_MS = 500,
    AUDIT_SYNC_MS = 1000,
    AUDIT_LINE_MAX = 16 * 1024,
    AUDIT_HASH = 72,                                               /* "sha256:", 64 digits, NUL */
    AUDIT_PREV_LEN = sizeof "\"prev\":\"\"}" - 1 + AUDIT_HASH - 1, /* at the end of every line */
};

struct audit_secret {
    const char *name, *at; /* "header:authorization" */
};
/* Members that are NULL or 0 and mean nothing for the kind are left out of the line. */
struct audit_record {
    const char *kind; /* "http", "tunnel", "websocket", "deny", "dns", "socket" */
    struct esb *sandbox;
    const struct flow *flow; /* may be NULL */
    const char *request_id;
    const char *host;
    uint16_t port;
    const char *tls; /* "intercept", "passthrough", "none" */
    const char *alpn;
    const char *method, *path; /* path without query, as the sandbox sent it: before any secret was put in */
    const char *query;         /* only the keys are written; before any secret was put in */
    unsigned status;
    const char *verdict; /* "allow", "deny", "would_deny" */
    const char *rule, *reason;
    const char *layer;               /* of a refusal */
    uint64_t count;                  /* how many refusals the line stands for; 0 is 1 */
    const struct in6_addr *upstream; /* NULL */
    uint16_t upstream_port;
    bool reused;
    uint64_t bytes_up, bytes_down, policy_us, dial_us, first_byte_us, total_us;
    const struct audit_secret *secrets;
    size_t nsecrets;
    uint64_t redactions;
};

/* dirfd is borrowed. Continues the chain of the newest file. -1: the directory cannot be read or written, or
 * another process writes this log. */
int audit_open(struct loop *l, int dirfd, bool block_when_full, struct audit **ret, struct err *err);
/* off: the kernel decides; interval: a worker syncs once a second; each: after every batch, and the whole process
 * blocks until it is on the disk. */
enum audit_sync { AUDIT_SYNC_OFF, AUDIT_SYNC_INTERVAL, AUDIT_SYNC_EACH };
void audit_set_sync(struct audit *a, enum audit_sync how);
/* A log without files: gives each line to fn, without the fields that only mean something among other lines. */
typedef void audit_told(void *arg, const struct buf *line);
struct audit *audit_tell(struct loop *l, audit_told *fn, void *arg);
/* One file instead of a directory: fd is borrowed, opened to read and append, and locked by the caller. Requests are
 * refused while it cannot be written. */
int audit_open_file(struct loop *l, int fd, struct audit **ret, struct err *err);
/* Also gives each line to fn, as audit_tell() does. */
void audit_also_tell(struct audit *a, audit_told *fn, void *arg);
void audit_write(struct audit *a, const struct audit_record *r); /* NULL log: nothing */
bool audit_blocked(const struct audit *a);                       /* NULL log: false */
uint64_t audit_dropped(const struct audit *a);                   /* for tests */
void audit_close(struct audit *a);                               /* writes what waits; before loop_free() */
/* For tests: other sizes than the built-in ones. */
void audit_limits(struct audit *a, uint64_t file_max, uint32_t files_kept);

/* audit-keep.c: keeps, of the file of that number, the lines of tenants with no more than `share` bytes in it.
 * Blocks. */
int audit_keep(int dirfd, uint32_t number, uint64_t share, struct err *err);
/* Removes files in a worker, one removal at a time. */
struct audit_removal {
    uint32_t before;          /* files of lower numbers go */
    uint64_t share, kept_max; /* bytes */
};
struct audit_remover;
struct audit_remover *audit_remover_new(struct loop *l, int dirfd);
void audit_remove_old(struct audit_remover *r, const struct audit_removal *what);
bool audit_removing(const struct audit_remover *r);
void audit_remover_close(struct audit_remover *r); /* NULL is fine */
/* For tests: whether a removal is under way. */
bool audit_making_room(const struct audit *a);

/* Reading, for the CLI; in a file of its own (audit-read.c) that needs no loop. */
struct audit_problem {
    char file[64];
    uint64_t line;
    char text[200];
};
/* Checks every file of the directory in order. 0: whole, *ret_lines lines; 1: *problem says where it is broken; -1: err.
 * Also tells whether a line with the hash `known` ("sha256:HEX") is there: then no line before it was changed. `known`
 * and `ret_found` may both be NULL. */
int audit_verify_known(int dirfd, const char *known, bool *ret_found, uint64_t *ret_lines,
                       char ret_last_hash[AUDIT_HASH], struct audit_problem *problem, struct err *err);
/* The same for one file, read from its beginning: what `hutch run --audit` wrote. problem->file stays empty. */
int audit_verify_file(int fd, const char *known, bool *ret_found, uint64_t *ret_lines, char ret_last_hash[AUDIT_HASH],
                      struct audit_problem *problem, struct err *err);
/* Whether the line, without its line end, is the first of a log. */
bool audit_is_first(const char *line, size_t n);
typedef bool audit_line_fn(void *arg, const char *line, size_t n); /* without its line end; false: stop */
/* Lines of all files in order; with follow, waits for more (blocks; inotify). */
int audit_each(int dirfd, bool follow, audit_line_fn *fn, void *arg, struct err *err);
/* The same from the last `last` lines on. */
int audit_tail(int dirfd, uint64_t last, bool follow, audit_line_fn *fn, void *arg, struct err *err);

/* The kept lines of removed files, oldest first; and whether their chain is whole, as by audit_verify_known(). */
int audit_each_kept(int dirfd, audit_line_fn *fn, void *arg, struct err *err);
int audit_verify_kept(int dirfd, uint64_t *ret_lines, struct audit_problem *problem, struct err *err);

/* For audit.c, audit-keep.c and audit-read.c: the numbers of the files in order (owned by the caller); the name of one;
 * the complete lines of one; the hash that a line ends with, and the hash of a line. */
int audit_files(int dirfd, uint32_t **ret, size_t *ret_n, struct err *err);
void audit_file_name(uint32_t number, char ret[64]);
int audit_each_of(int dirfd, const char *name, audit_line_fn *fn, void *arg, struct err *err);
bool audit_prev(const char *line, size_t n, char ret[AUDIT_HASH]);
int audit_kept_files(int dirfd, uint32_t **ret, size_t *ret_n, struct err *err);
void audit_kept_name(uint32_t number, char ret[64]);
void audit_hash(const char *line, size_t n, char ret[AUDIT_HASH]);
/* Where the last `last` complete lines of a file begin, its complete lines end, and how many they are. -1 with
 * errno. */
int audit_find_tail(int fd, uint64_t last, uint64_t *ret_from, uint64_t *ret_end, uint64_t *ret_lines);
#define AUDIT_NO_HASH "sha256:0000000000000000000000000000000000000000000000000000000000000000"

#endif
