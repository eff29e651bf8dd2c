/* denials-int.h - the list of refusals and its entries; for denials*.c and their test only. */
#ifndef HUTCH_CLI_RUN_DENIALS_INT_H
#define HUTCH_CLI_RUN_DENIALS_INT_H

#include <limits.h>
#include <linux/seccomp.h>
#include <sys/stat.h>

#include "cli/run/denials.h"
#include "os/notified.h"

struct denial {
    uint64_t hash; /* of kind, access and subject */
    uint64_t count;
    const char *kind;     /* "syscall", "file", "limit"; static, as the next two are */
    const char *access;   /* "read" or "write" of a file, else "" */
    const char *category; /* of a refused call, else "" */
    char *subject;        /* from the sandbox: any bytes but NUL, at most DENIALS_SUBJECT_MAX */
    int eno;              /* 0 = not known */
    bool probable;        /* concluded from the plan; the kernel was not asked */
    char *rule, *source;
    struct buf hint;         /* why, as a sentence part */
    struct buf grant_policy; /* smallest grant as a line of a document and as a flag; empty if there is none */
    struct buf grant_flag;
};

/* A cache of directories in which a missing file was looked for: as named, and as resolved inside. */
enum { PARENT_CACHE = 64 };
struct parent_dir {
    uint64_t hash; /* 0 = unused */
    char *named, *real;
};

struct denials {
    const struct policy *policy; /* borrowed */
    const struct plan *plan;     /* borrowed */
    unsigned flags;              /* of the filter */
    int root;                    /* the sandbox's root directory, -1 until opened through one of its processes */
    int netns;                   /* its network namespace; -1: the host's */
    struct notified notified;
    struct denial *items[DENIALS_MAX];
    size_t n;
    uint64_t total;   /* refusals, repeats included */
    uint64_t omitted; /* of these, refusals dropped because the list was full */
    struct parent_dir parents[PARENT_CACHE];
    struct denials_watch watch; /* of --learn, else empty */
};

uint64_t denials_hash(uint64_t seed, const char *s);
/* Counts a refusal. Returns a new entry for the caller to complete, or NULL if it was counted already or the list is
 * full. `kind` and `access` are static strings. */
struct denial *denials_count(struct denials *d, const char *kind, const char *access, const char *subject,
                             uint64_t count);

/* Reads up to `max` - 1 bytes of a string of another process and ends it with NUL. False if nothing could be read. */
bool denials_read_string(pid_t pid, uint64_t addr, char *ret, size_t max);
bool denials_read_bytes(pid_t pid, uint64_t addr, void *ret, size_t n);

/* --- refused calls (denials-calls.c) ------------------------------------------------------------------------------ */

/* "mount /mnt", "socket AF_VSOCK". Reads the caller's memory if `pid` is not 0. */
void denials_call_subject(const struct seccomp_data *call, pid_t pid, struct buf *ret);
void denials_call_refused(struct denials *d, const struct seccomp_data *call, const char *subject);

/* --- path calls (denials-paths.c, denials-judge.c) ---------------------------------------------------------------- */

enum path_intent { INTENT_NONE, INTENT_OPEN, INTENT_CREATE, INTENT_REMOVE, INTENT_RENAME, INTENT_CHANGE, INTENT_EXEC };

/* What a call is about to do, judged by its arguments. Paths are absolute, as named: not cleaned, not resolved. */
struct path_attempt {
    enum path_intent intent;
    int flags;                                    /* INTENT_OPEN: of open(2) */
    bool nofollow;                                /* the call does not follow a final symbolic link */
    bool directory;                               /* INTENT_CREATE: it makes one */
    char path[2 * PATH_MAX], path2[2 * PATH_MAX]; /* path2: where INTENT_RENAME moves it */
};

/* Fills *ret from a notified call. False if the call takes no path, or its memory cannot be read. */
bool denials_read_attempt(const struct seccomp_data *call, pid_t pid, struct path_attempt *ret);
/* Opens the sandbox's root through one of its processes, once. */
void denials_open_root(struct denials *d, pid_t init, pid_t pid);
/* Records the attempt if the plan refuses it. Only reads the sandbox's files. */
void denials_judge(struct denials *d, const struct path_attempt *a);

/* A path as the sandbox's file system has it. */
struct place {
    char real[2 * PATH_MAX];
    bool exists, parent_exists;
    mode_t mode; /* 0 if it does not exist */
};
void denials_resolve(struct denials *d, const char *path, bool nofollow, struct place *ret);

#endif
