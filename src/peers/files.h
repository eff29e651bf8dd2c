/* files.h - reads, writes, lists and watches files inside a sandbox. init opens a file inside, with the sandbox's own
 * rights, and sends the open descriptor; front never resolves a path of a sandbox. Paths: "" is the default working
 * directory, else the home; "~" and "~/x" the user's home; relative paths start at the user's home. user NULL: the
 * default user.
 */
#ifndef HUTCH_PEERS_FILES_H
#define HUTCH_PEERS_FILES_H

#include <sys/types.h>
#include <time.h>

#include "peers/link.h"

enum file_type { FILE_UNSPECIFIED, FILE_REGULAR, FILE_DIRECTORY, FILE_SYMLINK };
enum { FILES_PATH_MAX = 4096, FILES_LIST_MAX = 100000, FILES_META_MAX = 32 };

struct file_meta {
    const char *key, *value;
};
/* Borrowed for the time of the callback. For symlinks type, mode and size are the target's. */
struct file_info {
    const char *name, *path;
    enum file_type type;
    uint64_t size;
    mode_t mode; /* permission bits and type bits as lstat gives them */
    const char *owner, *group;
    struct timespec mtime;
    const char *target;           /* symlink: fully resolved absolute path; NULL otherwise or when broken */
    const struct file_meta *meta; /* xattrs user.e2b.* */
    size_t nmeta;
    /* Only of requests with a root, for which target is the text of the link, and type, mode and size are the link's. */
    uint32_t uid, gid;
    struct timespec atime, ctime;
    bool sized; /* of files_opened, where fd is a socket: a regular file comes over it, of `size` bytes */
};

/* Confines a request to one directory of the sandbox, which its paths see as "/"; no link leads out of it. The request
 * acts as root, a file is replaced by another one, and what was answered survives a power cut. Only an init of this
 * version knows it. */
#define FILES_UNCHANGED UINT32_MAX
struct files_root {
    const char *path;
    bool force;              /* makes missing parents; what is there already is replaced, or is enough */
    uint32_t uid, gid, mode; /* of what is made or set, or FILES_UNCHANGED */
};

typedef void files_opened(void *arg, const struct link_status *st, int fd, const struct file_info *info);
/* For reading. fd: a regular file (fstat()ed), or a pipe fed by init for files of procfs and the like; the caller's.
 * init may hold the same open file, so a pipe is read by fd_read_pipe(). Where init is reached over a byte stream, fd is a
 * socket over which the bytes come from the first to the last. */
link_call files_open(struct links *ls, const char *id, const char *user, const char *path, files_opened *done,
                     void *arg);
/* For writing: creates missing parents (0755, owned by the user) and the file (0644 & ~umask); an existing file
 * keeps its mode. The user becomes its owner, `meta` replaces its metadata. The file changes, or appears, as a whole
 * when sink_finish() succeeds; links are followed, and a file with several names keeps them. A process inside writes
 * the bytes, so that the sandbox is charged for their memory. The sink is the caller's until sink_free(). At most 48
 * files are written in a sandbox at once; others wait, a minute at most. */
struct file_sink;
typedef void files_created(void *arg, const struct link_status *st, struct file_sink *sink,
                           const struct file_info *info);
link_call files_create(struct links *ls, const char *id, const char *user, const char *path,
                       const struct file_meta *meta, size_t nmeta, files_created *done, void *arg);
/* One write or finish at a time; `done` comes later from the loop. The bytes stay the caller's and must stay until
 * then. LINK_OK: the sandbox took them; only sink_finish() says that they are in the file. A failure is final and
 * may come from an earlier write: LINK_NO_SPACE when the disk or the memory of the sandbox is full, LINK_GONE,
 * LINK_TIMEOUT after a minute in which the sandbox took nothing. */
void sink_write(struct file_sink *s, const void *p, size_t n, link_done *done, void *arg);
/* No more bytes. LINK_OK: the file is complete. */
void sink_finish(struct file_sink *s, link_done *done, void *arg);
/* At any time; no callback comes afterwards. Without sink_finish() the file stays as it was. */
void sink_free(struct file_sink *s);

typedef void files_info(void *arg, const struct link_status *st, const struct file_info *info);
link_call files_stat(struct links *ls, const char *id, const char *user, const char *path, files_info *done, void *arg);
link_call files_mkdir(struct links *ls, const char *id, const char *user, const char *path, files_info *done,
                      void *arg);
link_call files_move(struct links *ls, const char *id, const char *user, const char *from, const char *to,
                     files_info *done, void *arg);
link_call files_remove(struct links *ls, const char *id, const char *user, const char *path, link_done *done,
                       void *arg);
/* Concatenates the sources into `to` and removes them. */
link_call files_compose(struct links *ls, const char *id, const char *user, const char *const *from, size_t n,
                        const char *to, files_info *done, void *arg);

/* Lexical, depth first. Called once with all entries. */
typedef void files_listed(void *arg, const struct link_status *st, const struct file_info *v, size_t n);
link_call files_list(struct links *ls, const char *id, const char *user, const char *path, unsigned depth,
                     files_listed *done, void *arg);

/* The same with a root. files_remove_below() fails with LINK_NOT_FOUND if there is nothing. files_create_below() tells
 * the path of the file, behind all links. */
link_call files_open_below(struct links *ls, const char *id, const struct files_root *root, const char *path,
                           files_opened *done, void *arg);
link_call files_create_below(struct links *ls, const char *id, const struct files_root *root, const char *path,
                             files_created *done, void *arg);
link_call files_stat_below(struct links *ls, const char *id, const struct files_root *root, const char *path,
                           files_info *done, void *arg);
link_call files_mkdir_below(struct links *ls, const char *id, const struct files_root *root, const char *path,
                            files_info *done, void *arg);
/* Sets owner and mode. */
link_call files_set_below(struct links *ls, const char *id, const struct files_root *root, const char *path,
                          files_info *done, void *arg);
link_call files_remove_below(struct links *ls, const char *id, const struct files_root *root, const char *path,
                             link_done *done, void *arg);
link_call files_list_below(struct links *ls, const char *id, const struct files_root *root, const char *path,
                           unsigned depth, files_listed *done, void *arg);

enum file_event { FILE_CREATED = 1, FILE_WRITTEN, FILE_REMOVED, FILE_RENAMED, FILE_CHMOD };
struct file_watch; /* a live watch */
struct file_watch_ops {
    void (*started)(void *arg);
    void (*event)(void *arg, enum file_event type, const char *name, const struct file_info *info /* may be NULL */);
    void (*failed)(void *arg, const struct link_status *st); /* the watch is gone */
};
struct file_watch *files_watch(struct links *ls, const char *id, const char *user, const char *path, bool recursive,
                               bool with_info, bool network_mounts, const struct file_watch_ops *ops, void *arg);
void files_unwatch(struct file_watch *w);
bool files_are_watched(struct links *ls, const char *id);
/* `done` comes after the events of all changes made before this call, in all directories of the sandbox that are
 * watched through `ls`. After a failure some events may still be missing; an init of an older version always fails. */
link_call files_settle(struct links *ls, const char *id, link_done *done, void *arg);

#endif
