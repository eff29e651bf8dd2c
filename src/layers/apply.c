/* apply.c - makes the files of a living sandbox equal to a stack, or applies the difference between two stacks to them.
 *
 * The job first writes the change to a file as a lay stream; if that fails, the sandbox is untouched. A process in the
 * sandbox's user namespace then applies the stream through the sandbox's own root, so it can do no more than the
 * sandbox itself. Applying a stream twice gives the same files.
 *
 * A change is done whole. When no conflict stands against it, the stream is renamed to st-ID.redo; a repeated request
 * then continues with that file and compares nothing again. If applying fails half-way, st-ID.undo, written before,
 * restores what the sandbox had in the changed places. A change that cannot fit on the disk does not begin (room.h).
 */
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "base/map.h"
#include "base/mem.h"
#include "base/strv.h"
#include "base/text.h"
#include "layers/merged.h"
#include "layers/room.h"
#include "trees/diff.h"

enum { CONFLICTS_MAX = 10000, CHANGES_BYTES_MAX = 64 << 20 }; /* of the paths of one comparison */
#define SPOOL_MAX   (UINT64_C(64) << 30) /* bytes of one stream, if the sandbox has no disk limit of its own */
#define SPOOL_SLACK (UINT64_C(1) << 30)  /* names and attributes */

/* --- conflicts ---------------------------------------------------------------------------------------------------- */

/* The paths in which two trees differ. The map's value says how: &is_there, &is_gone or &is_timed. */
struct changes {
    struct map at;
    struct strv paths;
    size_t bytes;
};
static char is_there, is_gone, is_timed; /* gone: removed or of another type; timed: only its time differs */

static int apply_note_change(void *arg, const struct diff_entry *e, struct err *err)
{
    struct changes *c = arg;
    c->bytes += strlen(e->path) + 1;
    if (c->bytes > CHANGES_BYTES_MAX)
        return err_set(err, ERR_LIMIT, 0, "the paths that differ take more than %d bytes, the limit",
                       CHANGES_BYTES_MAX);
    bool gone = e->kind == DIFF_REMOVED || (e->kind == DIFF_CHANGED && (e->what & DIFF_TYPE));
    bool timed = e->kind == DIFF_CHANGED && e->what == DIFF_TIME;
    strv_add(&c->paths, e->path);
    (void)map_put(&c->at, c->paths.v[c->paths.n - 1], gone ? &is_gone : timed ? &is_timed : &is_there);
    return 0;
}

static int apply_compare(int a, uid_t shift_a, int b, uid_t shift_b, unsigned flags, struct merged_touch *touch,
                         struct changes *ret, struct err *err)
{
    const struct diff d = {.a = a,
                           .b = b,
                           .shift_a = shift_a,
                           .shift_b = shift_b,
                           .flags = flags,
                           .skip = merged_own_files,
                           .wanted = touch ? merged_touched : NULL,
                           .wanted_arg = touch,
                           .each = apply_note_change,
                           .arg = ret};
    return diff_trees(&d, err);
}

struct sides {
    struct changes wanted; /* between `other` (LAYERS_BACK: the sandbox) and the stack, with times */
    struct changes theirs; /* between `other` and the sandbox */
    struct changes left;   /* between the sandbox and the stack; without paths that already are as in the stack */
    struct map told;
    struct strv found; /* conflicts */
};

static void conflict_note(struct sides *s, const char *path)
{
    if (s->found.n >= CONFLICTS_MAX || map_get(&s->told, path))
        return;
    strv_add(&s->found, path);
    (void)map_put(&s->told, s->found.v[s->found.n - 1], s);
}

/* Moves to the directory above; false at the root. */
static bool conflict_path_up(char *path)
{
    char *slash = strrchr(path, '/');
    if (!*path)
        return false;
    *(slash ? slash : path) = '\0';
    return true;
}

/* The wanted change at `path`, unless only its time differs. */
static const void *conflict_wanted_at(struct sides *s, const char *path)
{
    const void *wanted = map_get(&s->wanted.at, path);
    return wanted == &is_timed ? NULL : wanted;
}

/* The change wants `path`. It is a conflict if the sandbox changed it too, removed a directory above it, or changed a
 * directory above it, which the stream would overwrite with the stack's. */
static void conflict_check_wanted(struct sides *s, const char *path)
{
    _cleanup_free_ char *up = xstrdup(path);
    bool left = map_get(&s->left.at, path);
    if (left && map_get(&s->theirs.at, path))
        conflict_note(s, path);
    while (conflict_path_up(up)) {
        const void *theirs = map_get(&s->left.at, up) ? map_get(&s->theirs.at, up) : NULL;
        if (theirs == &is_gone && left)
            conflict_note(s, path);
        else if (theirs == &is_there && !conflict_wanted_at(s, up))
            conflict_note(s, up);
    }
}

/* It is a conflict if the sandbox changed a path below one that the change removes. */
static void conflict_check_theirs(struct sides *s, const char *path)
{
    _cleanup_free_ char *up = xstrdup(path);
    if (!map_get(&s->left.at, path) || conflict_wanted_at(s, path))
        return;
    while (conflict_path_up(up))
        if (conflict_wanted_at(s, up) == &is_gone)
            conflict_note(s, path);
}

/* An entry of which only the time differs is no conflict: leave it out if the sandbox changed it or a directory
 * above. */
static bool apply_leaves_theirs(void *arg, const struct diff_entry *e)
{
    struct sides *s = arg;
    _cleanup_free_ char *up = xstrdup(e->path);
    bool theirs = false;
    if (e->kind != DIFF_CHANGED || e->what != DIFF_TIME)
        return false;
    do
        theirs = map_get(&s->theirs.at, up);
    while (!theirs && conflict_path_up(up));
    return theirs;
}

static int apply_reply_conflicts(struct job *j, const struct strv *paths, struct err *err)
{
    _cleanup_buf_ struct buf text = {0};
    _cleanup_close_ int fd = job_memfd("conflicts", err);
    if (fd < 0)
        return -1;
    for (size_t i = 0; i < paths->n; i++) {
        text_add_safe(&text, paths->v[i], LAYERS_PATH_MAX);
        buf_addc(&text, '\n');
    }
    if (fd_write_all(fd, buf_str(&text), text.n) < 0)
        return err_set(err, ERR_SETUP, errno, "write the answer");
    if (job_memfd_seal(fd, err) < 0)
        return -1;
    j->reply.error = LAYERS_CONFLICT;
    j->reply.entries = paths->n;
    (void)snprintf(j->reply.text, sizeof j->reply.text, "the sandbox changed %zu of the same files", paths->n);
    j->reply_fd = TAKE_FD(fd);
    return 0;
}

/* 1: there are conflicts, and the reply lists them. */
static int apply_check_conflicts(struct job *j, struct sides *s, int other, int stack, int living, uid_t shift,
                                 struct merged_touch *touch, struct err *err)
{
    if (apply_compare(other, 0, stack, 0, DIFF_WITH_TIMES, NULL, &s->wanted, err) < 0 ||
        apply_compare(other, 0, living, shift, 0, touch, &s->theirs, err) < 0 ||
        apply_compare(living, shift, stack, 0, 0, touch, &s->left, err) < 0)
        return -1;
    for (size_t i = 0; i < s->wanted.paths.n; i++)
        if (conflict_wanted_at(s, s->wanted.paths.v[i]))
            conflict_check_wanted(s, s->wanted.paths.v[i]);
    for (size_t i = 0; i < s->theirs.paths.n; i++)
        conflict_check_theirs(s, s->theirs.paths.v[i]);
    if (s->found.n == 0)
        return 0;
    return apply_reply_conflicts(j, &s->found, err) < 0 ? -1 : 1;
}

/* --- doing it ----------------------------------------------------------------------------------------------------- */

/* Stands behind the end record of the stream in a .redo: what a later job needs to continue with it or to undo it. */
struct tail {
    char magic[8], sandbox[LAYERS_SANDBOX_MAX];
    struct diff_counts n;
};
static const char tail_magic[8] = "Hredo2";

static int redo_put_tail(int fd, const struct job *j, const struct diff_counts *n)
{
    struct tail t = {.n = *n};
    memcpy(t.magic, tail_magic, sizeof t.magic);
    memcpy(t.sandbox, j->ask->sandbox, sizeof t.sandbox);
    return fd_write_all(fd, &t, sizeof t);
}

/* Empty if an older version wrote the .redo, which has no tail then. */
static struct tail redo_get_tail(int fd)
{
    struct tail t;
    struct stat st;
    if (fstat(fd, &st) < 0 || st.st_size < (off_t)sizeof t ||
        pread(fd, &t, sizeof t, st.st_size - (off_t)sizeof t) != (ssize_t)sizeof t ||
        memcmp(t.magic, tail_magic, sizeof t.magic) != 0 || t.sandbox[sizeof t.sandbox - 1] != '\0')
        return (struct tail){.sandbox = ""};
    return t;
}

static bool apply_is_full(const struct err *err) { return err->eno == ENOSPC || err->eno == EDQUOT; }

static uint64_t apply_stream_bytes(int fd)
{
    struct stat st;
    return fd >= 0 && fstat(fd, &st) == 0 ? (uint64_t)st.st_size : 0;
}

/* What is to be spooled: the stream that turns d->a into d->b; with `back`, the one that restores d->b at those paths. */
struct spool {
    const struct job_sandbox *b;
    const struct diff *d;
    const struct strv *back;
    int was; /* without `back`: the stream that takes the change back */
};

/* Renames the complete file to stacks/`keep` and returns its descriptor. */
static int apply_spool(struct job *j, const struct spool *s, const char *keep, struct err *err)
{
    const struct diff *d = s->d;
    uint64_t disk = s->b->record.disk;
    static struct lay_out out; /* large */
    char name[LAYERS_TMP_NAME];
    job_tmp_name(j, name);
    _cleanup_close_ int fd = openat(j->place.tmp, name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0)
        return err_set(err, ERR_SETUP, errno, "make a file for what is to be changed");
    lay_out_start(&out, fd);
    out.max = (disk ? disk : SPOOL_MAX) + SPOOL_SLACK; /* more would not fit into the sandbox */
    int r = s->back ? diff_back_to_lay(d, s->back, &out, err) : diff_to_lay(d, &out, err);
    if (r == 0 && !s->back)
        r = room_check(j, s->b, j->ask->other, apply_stream_bytes(fd), apply_stream_bytes(s->was), err);
    if (r == 0 && d->counts && redo_put_tail(fd, j, d->counts) < 0)
        r = err_set(err, ERR_SETUP, errno, "write down what is to be changed");
    if (r == 0 && (lseek(fd, 0, SEEK_SET) < 0 || renameat(j->place.tmp, name, j->place.stacks, keep) < 0))
        r = err_set(err, ERR_SETUP, errno, "keep what is to be changed");
    if (r < 0)
        (void)unlinkat(j->place.tmp, name, 0);
    if (r < 0 && apply_is_full(err))
        return err_wrap(err, "the disk of the node is full, and nothing was changed");
    return r < 0 ? -1 : TAKE_FD(fd);
}

/* Enters the sandbox's user namespace as its root, where ids in the stream mean the sandbox's own. */
static int apply_enter_userns(const struct job_sandbox *b, struct err *err)
{
    if (setns(b->pidfd, CLONE_NEWUSER) < 0)
        return err_set(err, ERR_SETUP, errno, "enter the user namespace of the sandbox %s", b->record.id);
    (void)setgroups(0, NULL);
    if (setresgid(0, 0, 0) < 0 || setresuid(0, 0, 0) < 0)
        return err_set(err, ERR_SETUP, errno, "become root of the sandbox %s", b->record.id);
    return 0;
}

static int apply_stream(const struct job_sandbox *b, int stream, int root, struct err *err)
{
    struct err *said = mmap(NULL, sizeof *said, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    int status = 0;
    if (said == MAP_FAILED)
        return err_set(err, ERR_SETUP, errno, "prepare to change files");
    pid_t parent = getpid(), pid = fork();
    if (pid == 0) {
        (void)umask(0);
        (void)close(b->keeper);
        if (cgroup_enter_memory(&b->cgroup) < 0) { /* charge files in tmpfs to the sandbox */
            (void)err_set(said, ERR_SETUP, errno, "enter the memory cgroup of the sandbox %s", b->record.id);
            _exit(1);
        }
        if (b->record.range != 0 && apply_enter_userns(b, said) < 0)
            _exit(1);
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0); /* after the change of ids, which clears it */
        if (getppid() != parent)
            _exit(1);
        _exit(lay_read(stream, root, LAY_PLAIN | LAY_WHOLE, NULL, NULL, NULL, NULL, said) < 0 ? 1 : 0);
    }
    int r = pid < 0 ? err_set(err, ERR_SETUP, errno, "start a process") : 0;
    while (pid > 0 && waitpid(pid, &status, 0) < 0 && errno == EINTR)
        ;
    if (r == 0 && status != 0) {
        if (said->code)
            *err = *said;
        else
            (void)err_set(err, ERR_SETUP, 0, "the process that changes the files ended with status %d%s", status,
                          WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL
                              ? ", perhaps because the sandbox has no memory left"
                              : "");
        r = err_wrap(err, "the files of the sandbox %s are not all changed", b->record.id);
    }
    (void)munmap(said, sizeof *said);
    return r;
}

static void apply_reply_counts(struct job *j, const struct diff_counts *n)
{
    j->reply.entries = n->added;
    j->reply.entries2 = n->changed;
    j->reply.bytes2 = n->removed;
}

/* The stack that belongs to this one request: the result of a transaction, or the capture taken before an undo. */
const char *job_apply_key(const struct layers_request *q) { return q->flags & LAYERS_BACK ? q->other : q->stack; }

struct redo {
    char todo[STACK_ID_MAX + 8], back[STACK_ID_MAX + 8], done[STACK_ID_MAX + 8];
};

static struct redo redo_names(const struct job *j)
{
    struct redo r;
    const char *key = job_apply_key(j->ask);
    (void)snprintf(r.todo, sizeof r.todo, "%s.redo", key);
    (void)snprintf(r.back, sizeof r.back, "%s.undo", key);
    (void)snprintf(r.done, sizeof r.done, "%s.done", key);
    return r;
}

static int redo_open(const struct job *j)
{
    return openat(j->place.stacks, redo_names(j).todo, O_RDWR | O_NOFOLLOW | O_CLOEXEC);
}

static bool apply_has_begun(const struct job *j)
{
    return faccessat(j->place.stacks, redo_names(j).todo, F_OK, AT_SYMLINK_NOFOLLOW) == 0;
}

static void redo_forget(const struct job *j)
{
    struct redo r = redo_names(j);
    (void)unlinkat(j->place.stacks, r.todo, 0); /* first: without the .redo the .undo is never read */
    (void)unlinkat(j->place.stacks, r.back, 0);
}

static int apply_stream_undo(const struct job *j, const struct job_sandbox *b, int living, struct err *err)
{
    _cleanup_close_ int stream = openat(j->place.stacks, redo_names(j).back, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    if (stream < 0)
        return err_set(err, ERR_SETUP, errno, "open what was there before");
    room_raise(b, apply_stream_bytes(stream));
    struct err ignored = {0};
    int r = apply_stream(b, stream, living, err);
    return room_restore(b, r < 0 ? &ignored : err) < 0 ? -1 : r;
}

/* The change failed half-way: restore what was there. If that fails too, front repeats the request until the change or
 * its undo works, and says whether room is missing. */
static int apply_undo(struct job *j, const struct job_sandbox *b, int living, struct err *err)
{
    struct err why = *err, second = {0};
    if (apply_stream_undo(j, b, living, &second) < 0) {
        return job_fail(j, apply_is_full(&second) ? LAYERS_HALF : LAYERS_BUSY, err,
                        "%.200s; and what there was could not be put back: %.100s", why.msg, second.msg);
    }
    redo_forget(j);
    if (apply_is_full(err))
        return err_wrap(err,
                        "the disk of the %s is full, and what was changed already is as it was again; remove files and "
                        "try again",
                        room_whose(b, err->eno));
    return err_wrap(err, "what was changed already is as it was again");
}

/* True: an earlier job completed the change; the reply has its counts. */
static bool apply_was_done(struct job *j)
{
    struct redo r = redo_names(j);
    struct diff_counts n = {0};
    _cleanup_close_ int fd = openat(j->place.stacks, r.done, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return false;
    struct stat st; /* a .done that still holds its stream has no counts: the job died before it wrote them */
    if (fstat(fd, &st) == 0 && st.st_size == (off_t)sizeof n && read(fd, &n, sizeof n) == (ssize_t)sizeof n)
        apply_reply_counts(j, &n);
    return true;
}

/* The rename to .done completes the change; the counts replace the stream, which is no longer needed. */
static int apply_note_done(struct job *j, const struct redo *r, int stream, const struct diff_counts *n,
                           struct err *err)
{
    if (renameat(j->place.stacks, r->todo, j->place.stacks, r->done) < 0)
        return err_set(err, ERR_SETUP, errno, "note that the files are changed");
    (void)unlinkat(j->place.stacks, r->back, 0);
    if (ftruncate(stream, 0) == 0 && lseek(stream, 0, SEEK_SET) == 0)
        (void)fd_write_all(stream, n, sizeof *n);
    apply_reply_counts(j, n);
    return 0;
}

/* Roots of the two stacks; not needed to continue with a .redo. */
struct pair {
    int stack, other;
    struct merged_touch *touch;
};

/* 1: a conflict prevents the change, and the reply lists the paths. */
static int apply_begin(struct job *j, const struct job_sandbox *b, const struct pair *p, int living, int *ret,
                       struct err *err)
{
    static struct sides s; /* for the life of this process */
    struct redo names = redo_names(j);
    struct diff_counts n = {0};
    uid_t shift = b->record.range;
    bool all = j->ask->flags & LAYERS_BACK;
    int r = all ? apply_compare(living, shift, p->stack, 0, DIFF_WITH_TIMES, p->touch, &s.wanted, err)
                : apply_check_conflicts(j, &s, p->other, p->stack, living, shift, p->touch, err);
    if (r != 0)
        return r;
    struct diff back = {.a = p->stack, .b = living, .shift_b = shift};
    struct diff to = {.a = all ? living : p->other,
                      .shift_a = all ? shift : 0,
                      .b = p->stack,
                      .skip = merged_own_files,
                      .wanted = all ? merged_touched : NULL,
                      .wanted_arg = p->touch,
                      .counts = &n,
                      .leave = all ? NULL : apply_leaves_theirs,
                      .leave_arg = &s};
    const struct spool former = {.b = b, .d = &back, .back = &s.wanted.paths};
    _cleanup_close_ int was = apply_spool(j, &former, names.back, err);
    const struct spool change = {.b = b, .d = &to, .was = was};
    *ret = was < 0 ? -1 : apply_spool(j, &change, names.todo, err);
    if (*ret < 0)
        (void)unlinkat(j->place.stacks, names.back, 0);
    return *ret < 0 ? -1 : 0;
}

static int apply_take_over(struct job *j, const struct job_sandbox *b, const struct pair *p, int living,
                           struct err *err)
{
    struct redo names = redo_names(j);
    _cleanup_close_ int stream = redo_open(j);
    int r = stream < 0 ? apply_begin(j, b, p, living, &stream, err) : 0;
    if (r != 0)
        return r < 0 ? -1 : 0;
    struct tail t = redo_get_tail(stream);
    if (room_restore(b, err) < 0)
        return -1;
    if (apply_stream(b, stream, living, err) < 0)
        return apply_undo(j, b, living, err);
    return apply_note_done(j, &names, stream, &t.n, err);
}

/* The process that changes files holds the lock until it ends. It may outlive a killed job for a moment: wait for
 * it. */
static int apply_lock_files(const struct job_sandbox *b, struct err *err)
{
    _cleanup_close_ int fd = openat(b->upper, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int r;
    do
        r = fd < 0 ? -1 : flock(fd, LOCK_EX);
    while (r < 0 && fd >= 0 && errno == EINTR);
    return r < 0 ? err_set(err, ERR_SETUP, errno, "lock the files of the sandbox %s", b->record.id) : TAKE_FD(fd);
}

typedef int frozen_fn(struct job *j, const struct job_sandbox *b, const struct pair *p, int living, struct err *err);

static int apply_while_frozen(struct job *j, struct job_sandbox *b, const struct pair *p, frozen_fn *fn,
                              struct err *err)
{
    static const char doing[] = "its files were changed";
    struct err second = {0};
    if (job_sandbox_freeze(j, b, err) < 0)
        return -1;
    int r = job_sandbox_still(j, b, true, doing, err);
    _cleanup_close_ int lock = r < 0 ? -1 : apply_lock_files(b, err);
    _cleanup_close_ int living = lock < 0 ? -1 : merged_sandbox(j, b, err);
    r = living < 0 || fn(j, b, p, living, err) < 0 || job_sandbox_still(j, b, false, doing, err) < 0 ? -1 : 0;
    if (job_sandbox_thaw(j, b, r < 0 ? &second : err) < 0)
        r = -1;
    return r;
}

static int apply_in_sandbox(struct job *j, struct job_sandbox *b, struct err *err)
{
    struct stack_file own;
    struct merged_touch touch;
    const char *const stacks[] = {j->ask->stack, j->ask->other, NULL};
    struct pair p = {.stack = -1, .other = -1, .touch = &touch};
    if (job_sandbox_open(j, j->ask->sandbox, true, b, err) < 0)
        return -1;
    if (apply_has_begun(j)) /* the .redo holds all that is needed */
        return apply_while_frozen(j, b, &p, apply_take_over, err);
    if (job_sandbox_stack(j, b, &own, err) < 0 || merged_touch_open(j, b, &own, stacks, &touch, err) < 0)
        return -1;
    _cleanup_close_ int stack = merged_stack_id(j, j->ask->stack, err);
    /* LAYERS_BACK only needs `other` to exist: a request that comes after its drop was completed long ago. */
    _cleanup_close_ int other = stack < 0 ? -1 : merged_stack_id(j, j->ask->other, err);
    if (other < 0)
        return -1;
    p.stack = stack;
    p.other = other;
    return apply_while_frozen(j, b, &p, apply_take_over, err);
}

int job_apply(struct job *j, struct err *err)
{
    struct job_sandbox b = JOB_SANDBOX_INIT;
    if (apply_was_done(j))
        return 0;
    int r = apply_in_sandbox(j, &b, err);
    /* A begun change stays half-done until it is completed or the sandbox ends: front must ask again. */
    if (r < 0 && apply_has_begun(j) && j->reply.error != LAYERS_NOT_FOUND && j->reply.error != LAYERS_HALF)
        j->reply.error = LAYERS_BUSY;
    return r;
}

static int apply_put_back(struct job *j, const struct job_sandbox *b, const struct pair *p, int living, struct err *err)
{
    (void)p;
    return apply_stream_undo(j, b, living, err);
}

int job_apply_forget(struct job *j, struct err *err)
{
    struct job_sandbox b = JOB_SANDBOX_INIT;
    struct redo names = redo_names(j);
    _cleanup_close_ int stream = redo_open(j);
    struct tail t = stream < 0 ? (struct tail){.sandbox = ""} : redo_get_tail(stream);
    int r = t.sandbox[0] ? job_sandbox_open(j, t.sandbox, true, &b, err) : 0;
    if (r == 0 && t.sandbox[0])
        r = apply_while_frozen(j, &b, NULL, apply_put_back, err);
    job_sandbox_close(&b);
    if (r < 0 && j->reply.error != LAYERS_NOT_FOUND) {
        j->reply.error = LAYERS_BUSY;
        return err_wrap(err, "what the sandbox %s took over of %s in part cannot be put back", t.sandbox,
                        j->ask->stack);
    }
    j->reply.error = LAYERS_OK; /* the sandbox is gone, and its files with it */
    *err = (struct err){0};
    redo_forget(j);
    (void)unlinkat(j->place.stacks, names.done, 0);
    return 0;
}
