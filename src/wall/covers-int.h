/* covers-int.h - shared by covers.c (outside: watches) and covers-inside.c (the child that enters the sandbox) only. */
#ifndef HUTCH_WALL_COVERS_INT_H
#define HUTCH_WALL_COVERS_INT_H

#include <sys/inotify.h>
#include <sys/stat.h>

#include "base/buf.h"
#include "os/statx.h"
#include "wall/covers.h"

/* Which ops of the plan are to be looked at. */
struct covers_set {
    uint64_t bits[PLAN_OPS_MAX / 64];
    bool any;
};
static inline bool covers_has(const struct covers_set *s, size_t i) { return s->bits[i / 64] >> i % 64 & 1; }
static inline void covers_add(struct covers_set *s, size_t i)
{
    s->bits[i / 64] |= 1ULL << i % 64;
    s->any = true;
}

/* What the child did about one op: eno is 0 if it was covered again. Ops that needed nothing are not reported. */
struct covers_report {
    uint32_t op;
    int32_t eno;
};

struct covers_place {
    const struct wall_spec *spec;
    int userns, mntns, cover_file, cover_dir;
};

/* What is at a covered name. A number alone does not do: file systems give it to the next file. */
struct identity {
    uint64_t dev, ino;
    struct statx_timestamp born, changed; /* directories change with every entry: there the second is not kept */
};

/* A protected file, as it was when the command could last not have written to it; and what was seen since. */
struct covers_file {
    bool known;  /* content, mode, uid and gid are those of the file */
    bool absent; /* nothing was there */
    struct buf content;
    mode_t mode;
    uid_t uid;
    gid_t gid;
    bool pending;     /* a process outside is still writing: to be asked again */
    bool settled;     /* asked, and no writer was left: from here each change in place is one too many */
    int wd;           /* watch on the file that was put there; -1 */
    int lock_wd;      /* on git's lock file, which is about to be put there; -1 */
    unsigned written; /* times the lock file was closed after it was written to: git does so once. By its name, */
    unsigned lock_closes[2]; /* and by its inode, while it is a lock file */
    bool lock_changed;
    bool asked; /* it was put there from outside, and this is it, whenever it changed: */
    struct identity asked_as;
    bool lock_swapped; /* a file was renamed to the lock file's name, */
    bool swapped;      /* and is what was put there */
    bool was_lock;     /* what was put there was the lock file */
    const char *sign;  /* that the command can write to it, or did; static. NULL: none */
    int put_back;      /* after the run: 0, or an error number; -1 if not tried */
    dev_t back_dev;    /* the file that was put there */
    ino_t back_ino;
    char *suspect; /* then: where the file is now */
};

enum covers_held {
    COVERS_FREE,   /* no process has it open for writing */
    COVERS_LINKED, /* the same, but it has a further name */
    COVERS_BUSY,   /* a process outside has */
    COVERS_HELD,   /* a process has, and none outside */
};

/* covers-writers.c. Whether the op keeps one file, as opposed to a directory, from being written to. */
bool covers_is_file(const struct plan_op *op);
/* A regular file, to be looked at only; -1 if it is not one. */
int covers_open_file(const char *path);
enum covers_held covers_ask(int fd);
/* Notes content, mode and owner; fd may be -1. A file with further names, or one too large, is not known. */
void covers_remember(struct covers_file *f, int fd);
/* With everything inside dead: puts the former file at path, and what was there beside it. -1 with errno. */
int covers_put_back(const struct covers_file *f, const char *path, char **ret_suspect);

/* One watched directory, and the entries of it that matter. */
struct watched {
    char *path;
    int wd;   /* -1 while it is not there or cannot be watched */
    bool git; /* files that git replaces are in it */
    struct strv names;
};

struct happened {
    size_t op;
    unsigned times;
    uint64_t longest_ms;
    int eno; /* it is open */
};

struct covers {
    struct covers_place place;
    const struct wall *wall;
    struct timespec start;
    uint64_t began_ms, look_ms; /* the next look; 0 = none, or watched */
    int notify;
    int watch_errno;
    bool too_many, looked;
    struct watched *dirs;
    size_t ndirs, dirs_cap;
    struct identity *known;    /* for each op of the plan */
    struct covers_file *files; /* the same; NULL before the first look */
    size_t kept;               /* bytes of their contents */
    uint64_t busy_ms;          /* files that are pending are asked about again; 0 = none */
    struct happened happened[COVERS_LISTED];
    size_t nhappened, unlisted;
};

/* covers.c: milliseconds of a clock that only goes forward. */
uint64_t covers_now_ms(void);
/* Whether what is at the op's name changed since before the start, or is not what the plan saw: only the first look. */
bool covers_doubtful(struct covers *c, size_t i);
/* covers-files.c: git writes "NAME.lock" in this directory and renames it. */
bool covers_is_git_dir(const struct covers *c, const char *path);
void covers_files_first_look(struct covers *c);
/* An event of a watched directory; NULL: of a file itself. */
void covers_files_on_event(struct covers *c, const struct watched *dir, const struct inotify_event *e, bool *ret_lost);
/* Asks about the files of the set, which are new at their names and covered by now, and about those that are pending. Returns
 * whether there were any: then covers_files_conclude(), after the events up to here were read. */
bool covers_files_ask(struct covers *c, const struct covers_set *set, struct covers_set *ret_asked, bool *ret_lost);
void covers_files_conclude(struct covers *c, const struct covers_set *asked, bool *ret_lost);
/* The watch stands from now on. */
void covers_files_watch(struct covers *c);
void covers_files_notes(const struct covers *c, struct strv *ret);
void covers_files_free(struct covers *c);

/* The child: enters the sandbox, covers what of the set is open, writes reports to `out`. */
void covers_inside(const struct covers_place *p, const struct covers_set *set, int out) __attribute__((noreturn));

#endif
