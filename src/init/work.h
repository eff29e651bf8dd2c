/* work.h - helpers, seen from inside: a fork of init that serves one request and exits. Under `computer` it acts as root of
 * the sandbox and gives what it makes to the user; under `strict` it becomes the user first, behind Landlock. No path
 * leads through a magic link, nothing is opened that could block, no descriptor of procfs leaves. A request with a root of
 * its own (proto.h) sees that as "/". */
#ifndef HUTCH_INIT_WORK_H
#define HUTCH_INIT_WORK_H

#include "init/init-int.h"
#include <stdarg.h>
#include <sys/stat.h>

struct work {
    struct init *g;
    const struct init_request *r;
    int sock;
    int root; /* of the request; -1: it has none of its own */
    bool strict;
    struct user user;
    struct users_file passwd, group;
    char path[INIT_PATH_MAX]; /* clean */
    char to[INIT_PATH_MAX];
    int guard;        /* work-receive.c: write end of a pipe to its second process; -1: none */
    int half_dir;     /* directory of `half`, a partial file that work_fail() removes */
    const char *half; /* lives as long as the request */
    unsigned char out[INIT_MSG_MAX];
};

void work_main(struct init *g, const struct init_request *r, int sock) __attribute__((noreturn));

/* Answers and ends the process; keeps a partial file. */
void work_end(struct work *w, uint16_t type, enum init_code code, const char *fmt, va_list ap)
    __attribute__((noreturn, format(printf, 4, 0))); /* the last message, of this type */
void work_fail(struct work *w, enum init_code code, const char *fmt, ...)
    __attribute__((noreturn, format(printf, 3, 4)));
/* By errno; ENOENT becomes "path '...' does not exist". */
void work_fail_errno(struct work *w, int eno, const char *path) __attribute__((noreturn));
/* Sends OK and the info of the entry; does not end the process. fd -1: none. */
void work_reply_info(struct work *w, const struct init_info *i, int fd);
void work_reply_ok(struct work *w, int fd);
/* The info of an entry, with its facts below a root. */
void work_put_info(const struct work *w, struct wire_out *o, const struct init_info *i);
int work_send(struct work *w, uint16_t type, const struct wire_out *o, int fd);
struct wire_out work_begin(struct work *w);
/* The same with INIT_OK and an empty text at its start. */
struct wire_out work_begin_ok(struct work *w);

/* work-fs.c */
int work_open(int dir, const char *path, int flags, mode_t mode); /* no magic links; CLOEXEC, NONBLOCK, NOCTTY added */
/* The same for a clean absolute path, from the root that the request sees. */
int work_open_path(const struct work *w, const char *path, int flags);
/* O_PATH of the directory that holds `path`, made with its parents if missing; *name its last component. */
int work_parent(struct work *w, const char *path, bool make, const char **name);
bool work_is_kernel_fs(int fd);
bool work_is_network_fs(int fd);
bool work_is_dot(const char *name); /* "." or ".." */
/* Gives a new file or directory to the user, where the helper is root. Not below a root. */
void work_give(const struct work *w, int fd);
/* Copies a tree with owners, modes, times. -1 with errno. */
int work_copy(int dir, const char *name, int to_dir, const char *to_name, unsigned depth);
int work_copy_bytes(int from, int to);
void work_copy_xattrs(int from, int to); /* of users */

/* work-remove.c. Removes a tree without following links. -1 with errno; a missing one is no error. */
int work_unlink(int dir, const char *name);

/* work-info.c. The strings live until the next call. */
int work_info(struct work *w, int dir, const char *name, const char *path, struct init_info *ret);
int work_info_path(struct work *w, const char *path, struct init_info *ret);

/* work-upload.c. An upload under way. */
struct upload {
    int dir;          /* where the file is, or will be */
    const char *name; /* in there */
    int fd;           /* what has come so far */
    int old;          /* the file that is there, open for writing; -1: none */
    bool in_place;    /* its bytes are changed; else another file takes its name */
    bool rooted;      /* work-rooted.c: fd has no name; work_rooted_publish() gives it one */
    mode_t mode;      /* of `old` */
    char temp[64];    /* the name of fd in dir; "": it has none */
};
/* Opens the existing file (dir and name are set) and makes a stage for the new bytes, with owner and metadata. Replies
 * if that fails. */
void work_upload_begin(struct work *w, struct upload *u, struct init_info *i);
/* Only the stage. */
void work_upload_stage(struct work *w, struct upload *u, const char *path);
/* Puts the stage in place. -1 with errno: the stage is still there. */
int work_upload_publish(struct work *w, const struct upload *u);
void work_upload_drop(const struct upload *u);
/* Whether a file has the name of a stage: watches say nothing of these. */
bool work_is_upload(const char *name);

/* work-receive.c. Replies with the info and a socket, collects the bytes that come over it, publishes the file and
 * reports the outcome over the same socket. Ends the process. */
void work_receive(struct work *w, const struct init_info *i, struct upload *u) __attribute__((noreturn));

/* work-rooted.c. Of requests with a root. */
/* Follows the links of w->path and makes it the path of what it leads to. -1 with errno. */
int work_rooted_follow(struct work *w, struct stat *ret);
/* Sets the owner and the mode that the request names. fd may be O_PATH. -1 with errno. */
int work_rooted_own(const struct work *w, int fd);
int work_sync_dir(int dir);
/* Finds what is at w->path now, which may have to be replaced, and opens a stage without a name. Replies if that fails. */
void work_rooted_upload(struct work *w, struct upload *u, struct init_info *i);
/* -1 with errno. */
int work_rooted_publish(struct work *w, const struct upload *u);

/* The requests. */
void work_file_open(struct work *w);
void work_file_create(struct work *w);
void work_file_compose(struct work *w);
void work_file_stat(struct work *w);
void work_make_dir(struct work *w);
void work_move(struct work *w);
void work_remove(struct work *w);
void work_set(struct work *w);
void work_list(struct work *w);
void work_watch(struct work *w);
void work_dial(struct work *w);

#endif
