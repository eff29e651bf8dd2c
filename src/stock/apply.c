/* apply.c - the files of a living sandbox become those of a stack, or take over what differs between two stacks.
 *
 * What is to be done is first written down as a lay stream (nothing has changed if that fails) and then made through
 * the sandbox's own root, by a process in its user namespace, which can do no more there than the sandbox itself.
 * Applied twice it is the same.
 *
 * Both are done whole: what is to be done gets a name (st-ID.redo) once it is known that nothing stands against it, and from
 * then on asking again goes on with it, without comparing what is half done with anything. A failure in the middle is taken
 * back, by what the sandbox had in those places (st-ID.undo), which is written down before.
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
#include "stock/diff.h"
#include "stock/merged.h"

enum { CONFLICTS_MAX = 10000, CHANGES_BYTES_MAX = 64 << 20 }; /* of the paths of one comparison */
#define SPOOL_MAX   (UINT64_C(64) << 30) /* of what is written down first, if the sandbox has no limit of its own */
#define SPOOL_SLACK (UINT64_C(1) << 30)  /* names and attributes */

/* --- conflicts ---------------------------------------------------------------------------------------------------- */

/* Paths of a comparison, and whether what was there is gone (nothing below it can be as it was). */
struct changes {
    struct map at;
    struct strv paths;
    size_t bytes;
};
static char is_there, is_gone, is_timed; /* values in the map; timed: nothing but its time is another one */

static int note_change(void *arg, const struct diff_entry *e, struct err *err)
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

static int compare(int a, uid_t shift_a, int b, uid_t shift_b, unsigned flags, struct merged_touch *touch,
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
                           .each = note_change,
                           .arg = ret};
    return diff_trees(&d, err);
}

struct sides {
    struct changes wanted; /* between `other` (STOCK_BACK: the sandbox) and the stack, with times */
    struct changes theirs; /* between `other` and the sandbox */
    struct changes left; /* between the sandbox and the stack: what they changed to what it is to become is not in it */
    struct map told;
    struct strv found; /* conflicts */
};

static void tell(struct sides *s, const char *path)
{
    if (s->found.n >= CONFLICTS_MAX || map_get(&s->told, path))
        return;
    strv_add(&s->found, path);
    (void)map_put(&s->told, s->found.v[s->found.n - 1], s);
}

/* Moves to the directory above; false at the root. */
static bool go_up(char *path)
{
    char *slash = strrchr(path, '/');
    if (!*path)
        return false;
    *(slash ? slash : path) = '\0';
    return true;
}

/* More than another time. */
static const void *wants(struct sides *s, const char *path)
{
    const void *wanted = map_get(&s->wanted.at, path);
    return wanted == &is_timed ? NULL : wanted;
}

/* Something is wanted at `path`, and they changed it, took away the place for it, or changed a directory on the way,
 * which comes along as it is in the stack. */
static void check_wanted(struct sides *s, const char *path)
{
    _cleanup_free_ char *up = xstrdup(path);
    bool left = map_get(&s->left.at, path);
    if (left && map_get(&s->theirs.at, path))
        tell(s, path);
    while (go_up(up)) {
        const void *theirs = map_get(&s->left.at, up) ? map_get(&s->theirs.at, up) : NULL;
        if (theirs == &is_gone && left)
            tell(s, path);
        else if (theirs == &is_there && !wants(s, up))
            tell(s, up);
    }
}

/* They changed something below what is wanted to go. */
static void check_theirs(struct sides *s, const char *path)
{
    _cleanup_free_ char *up = xstrdup(path);
    if (!map_get(&s->left.at, path) || wants(s, path))
        return;
    while (go_up(up))
        if (wants(s, up) == &is_gone)
            tell(s, path);
}

/* Another time is no conflict, and no reason to replace what they changed since, there or on the way to it. */
static bool leave_theirs(void *arg, const struct diff_entry *e)
{
    struct sides *s = arg;
    _cleanup_free_ char *up = xstrdup(e->path);
    bool theirs = false;
    if (e->kind != DIFF_CHANGED || e->what != DIFF_TIME)
        return false;
    do
        theirs = map_get(&s->theirs.at, up);
    while (!theirs && go_up(up));
    return theirs;
}

static int say_conflicts(struct job *j, const struct strv *paths, struct err *err)
{
    _cleanup_buf_ struct buf text = {0};
    _cleanup_close_ int fd = job_memfd("conflicts", err);
    if (fd < 0)
        return -1;
    for (size_t i = 0; i < paths->n; i++) {
        text_add_safe(&text, paths->v[i], STOCK_PATH_MAX);
        buf_addc(&text, '\n');
    }
    if (fd_write_all(fd, buf_str(&text), text.n) < 0)
        return err_set(err, ERR_SETUP, errno, "write the answer");
    if (job_memfd_seal(fd, err) < 0)
        return -1;
    j->reply.error = STOCK_CONFLICT;
    j->reply.entries = paths->n;
    (void)snprintf(j->reply.text, sizeof j->reply.text, "the sandbox changed %zu of the same files", paths->n);
    j->reply_fd = TAKE_FD(fd);
    return 0;
}

/* 1: there are some, and the answer says which. */
static int check_conflicts(struct job *j, struct sides *s, int other, int stack, int living, uid_t shift,
                           struct merged_touch *touch, struct err *err)
{
    if (compare(other, 0, stack, 0, DIFF_WITH_TIMES, NULL, &s->wanted, err) < 0 ||
        compare(other, 0, living, shift, 0, touch, &s->theirs, err) < 0 ||
        compare(living, shift, stack, 0, 0, touch, &s->left, err) < 0)
        return -1;
    for (size_t i = 0; i < s->wanted.paths.n; i++)
        if (wants(s, s->wanted.paths.v[i]))
            check_wanted(s, s->wanted.paths.v[i]);
    for (size_t i = 0; i < s->theirs.paths.n; i++)
        check_theirs(s, s->theirs.paths.v[i]);
    if (s->found.n == 0)
        return 0;
    return say_conflicts(j, &s->found, err) < 0 ? -1 : 1;
}

/* --- doing it ----------------------------------------------------------------------------------------------------- */

/* Behind the stream of a .redo, which is read to its end record: all that is needed to go on with it, or to take it back. */
struct tail {
    char magic[8], box[STOCK_BOX_MAX];
    struct diff_counts n;
};
static const char tail_magic[8] = "Hredo2";

static int put_tail(int fd, const struct job *j, const struct diff_counts *n)
{
    struct tail t = {.n = *n};
    memcpy(t.magic, tail_magic, sizeof t.magic);
    memcpy(t.box, j->ask->box, sizeof t.box);
    return fd_write_all(fd, &t, sizeof t);
}

/* One of a version that wrote none says nothing. */
static struct tail get_tail(int fd)
{
    struct tail t;
    struct stat st;
    if (fstat(fd, &st) < 0 || st.st_size < (off_t)sizeof t ||
        pread(fd, &t, sizeof t, st.st_size - (off_t)sizeof t) != (ssize_t)sizeof t ||
        memcmp(t.magic, tail_magic, sizeof t.magic) != 0 || t.box[sizeof t.box - 1] != '\0')
        return (struct tail){.box = ""};
    return t;
}

/* keep: the name that it gets in stacks/ once it is whole. back: not what turns d->a into d->b, but what puts d->b back in
 * these places. */
static int spool(struct job *j, const struct diff *d, const struct strv *back, uint64_t disk, const char *keep,
                 struct err *err)
{
    static struct lay_out out; /* large */
    char name[STOCK_TMP_NAME];
    job_tmp_name(j, name);
    _cleanup_close_ int fd = openat(j->place.tmp, name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0)
        return err_set(err, ERR_SETUP, errno, "make a file for what is to be changed");
    lay_out_start(&out, fd);
    out.max = (disk ? disk : SPOOL_MAX) + SPOOL_SLACK; /* it could not be put into the sandbox either */
    int r = back ? diff_back_to_lay(d, back, &out, err) : diff_to_lay(d, &out, err);
    if (r == 0 && d->counts && put_tail(fd, j, d->counts) < 0)
        r = err_set(err, ERR_SETUP, errno, "write down what is to be changed");
    if (r == 0 && (lseek(fd, 0, SEEK_SET) < 0 || renameat(j->place.tmp, name, j->place.stacks, keep) < 0))
        r = err_set(err, ERR_SETUP, errno, "keep what is to be changed");
    if (r < 0)
        (void)unlinkat(j->place.tmp, name, 0);
    return r < 0 ? -1 : TAKE_FD(fd);
}

/* Into the sandbox's user namespace, as its root: ids are its own there. */
static int become_theirs(const struct job_box *b, struct err *err)
{
    if (setns(b->pidfd, CLONE_NEWUSER) < 0)
        return err_set(err, ERR_SETUP, errno, "enter the user namespace of the sandbox %s", b->record.id);
    (void)setgroups(0, NULL);
    if (setresgid(0, 0, 0) < 0 || setresuid(0, 0, 0) < 0)
        return err_set(err, ERR_SETUP, errno, "become root of the sandbox %s", b->record.id);
    return 0;
}

static int lay_into(const struct job_box *b, int stream, int root, struct err *err)
{
    struct err *said = mmap(NULL, sizeof *said, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    int status = 0;
    if (said == MAP_FAILED)
        return err_set(err, ERR_SETUP, errno, "prepare to change files");
    pid_t parent = getpid(), pid = fork();
    if (pid == 0) {
        (void)umask(0);
        if (cgroup_enter_memory(&b->cgroup) < 0) { /* what is written to its memory is its own */
            (void)err_set(said, ERR_SETUP, errno, "enter the memory cgroup of the sandbox %s", b->record.id);
            _exit(1);
        }
        if (b->record.range != 0 && become_theirs(b, said) < 0)
            _exit(1);
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0); /* a change of ids takes it away */
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

static void say_counts(struct job *j, const struct diff_counts *n)
{
    j->reply.entries = n->added;
    j->reply.entries2 = n->changed;
    j->reply.bytes2 = n->removed;
}

/* A stack that is there for this one request: a transaction has a result of its own, and an undo what there was before it. */
const char *job_apply_key(const struct stock_request *q) { return q->flags & STOCK_BACK ? q->other : q->stack; }

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

static int open_redo(const struct job *j)
{
    return openat(j->place.stacks, redo_names(j).todo, O_RDWR | O_NOFOLLOW | O_CLOEXEC);
}

static bool has_begun(const struct job *j)
{
    return faccessat(j->place.stacks, redo_names(j).todo, F_OK, AT_SYMLINK_NOFOLLOW) == 0;
}

static void forget_redo(const struct job *j)
{
    struct redo r = redo_names(j);
    (void)unlinkat(j->place.stacks, r.todo, 0); /* first: without it the other one means nothing */
    (void)unlinkat(j->place.stacks, r.back, 0);
}

static int lay_back(const struct job *j, const struct job_box *b, int living, struct err *err)
{
    _cleanup_close_ int stream = openat(j->place.stacks, redo_names(j).back, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    if (stream < 0)
        return err_set(err, ERR_SETUP, errno, "open what was there before");
    return lay_into(b, stream, living, err);
}

/* Half of it is there. What there was is put back; where that fails too, somebody has to ask again until one of both works. */
static int take_back(struct job *j, const struct job_box *b, int living, struct err *err)
{
    struct err why = *err, second = {0};
    if (lay_back(j, b, living, &second) < 0)
        return job_fail(j, STOCK_BUSY, err, "%.200s; and what there was could not be put back: %.100s", why.msg,
                        second.msg);
    forget_redo(j);
    return err_wrap(err, "what was changed already is as it was again");
}

/* True: it was done, and the answer says how much that was. */
static bool was_done(struct job *j)
{
    struct redo r = redo_names(j);
    struct diff_counts n = {0};
    _cleanup_close_ int fd = openat(j->place.stacks, r.done, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return false;
    struct stat st; /* one that was not cut short any more says nothing */
    if (fstat(fd, &st) == 0 && st.st_size == (off_t)sizeof n && read(fd, &n, sizeof n) == (ssize_t)sizeof n)
        say_counts(j, &n);
    return true;
}

/* From here on it counts as done; the stream is needed no more. */
static int note_done(struct job *j, const struct redo *r, int stream, const struct diff_counts *n, struct err *err)
{
    if (renameat(j->place.stacks, r->todo, j->place.stacks, r->done) < 0)
        return err_set(err, ERR_SETUP, errno, "note that the files are changed");
    (void)unlinkat(j->place.stacks, r->back, 0);
    if (ftruncate(stream, 0) == 0 && lseek(stream, 0, SEEK_SET) == 0)
        (void)fd_write_all(stream, n, sizeof *n);
    say_counts(j, n);
    return 0;
}

/* What it is about: roots of the two stacks; nothing of it is needed to go on. */
struct pair {
    int stack, other;
    struct merged_touch *touch;
};

/* 1: nothing was begun, and the answer says why. */
static int begin(struct job *j, const struct job_box *b, const struct pair *p, int living, int *ret, struct err *err)
{
    static struct sides s; /* for the life of this process */
    struct redo names = redo_names(j);
    struct diff_counts n = {0};
    uid_t shift = b->record.range;
    bool all = j->ask->flags & STOCK_BACK;
    int r = all ? compare(living, shift, p->stack, 0, DIFF_WITH_TIMES, p->touch, &s.wanted, err)
                : check_conflicts(j, &s, p->other, p->stack, living, shift, p->touch, err);
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
                      .leave = all ? NULL : leave_theirs,
                      .leave_arg = &s};
    _cleanup_close_ int was = spool(j, &back, &s.wanted.paths, b->record.disk, names.back, err);
    *ret = was < 0 ? -1 : spool(j, &to, NULL, b->record.disk, names.todo, err);
    if (*ret < 0)
        (void)unlinkat(j->place.stacks, names.back, 0);
    return *ret < 0 ? -1 : 0;
}

static int take_over(struct job *j, const struct job_box *b, const struct pair *p, int living, struct err *err)
{
    struct redo names = redo_names(j);
    _cleanup_close_ int stream = open_redo(j);
    int r = stream < 0 ? begin(j, b, p, living, &stream, err) : 0;
    if (r != 0)
        return r < 0 ? -1 : 0;
    struct tail t = get_tail(stream);
    if (lay_into(b, stream, living, err) < 0)
        return take_back(j, b, living, err);
    return note_done(j, &names, stream, &t.n, err);
}

/* One that was killed may have left the process that changes files, which dies with it, but not at the same moment: that one
 * has the lock until it ends. */
static int lock_files(const struct job_box *b, struct err *err)
{
    _cleanup_close_ int fd = openat(b->upper, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int r;
    do
        r = fd < 0 ? -1 : flock(fd, LOCK_EX);
    while (r < 0 && fd >= 0 && errno == EINTR);
    return r < 0 ? err_set(err, ERR_SETUP, errno, "lock the files of the sandbox %s", b->record.id) : TAKE_FD(fd);
}

typedef int frozen_fn(struct job *j, const struct job_box *b, const struct pair *p, int living, struct err *err);

static int while_frozen(struct job *j, struct job_box *b, const struct pair *p, frozen_fn *fn, struct err *err)
{
    static const char doing[] = "its files were changed";
    struct err second = {0};
    if (job_box_freeze(j, b, err) < 0)
        return -1;
    int r = job_box_still(j, b, true, doing, err);
    _cleanup_close_ int lock = r < 0 ? -1 : lock_files(b, err);
    _cleanup_close_ int living = lock < 0 ? -1 : merged_box(j, b, err);
    r = living < 0 || fn(j, b, p, living, err) < 0 || job_box_still(j, b, false, doing, err) < 0 ? -1 : 0;
    if (job_box_thaw(j, b, r < 0 ? &second : err) < 0)
        r = -1;
    return r;
}

static int apply(struct job *j, struct job_box *b, struct err *err)
{
    struct stack_file own;
    struct merged_touch touch;
    const char *const stacks[] = {j->ask->stack, j->ask->other, NULL};
    struct pair p = {.stack = -1, .other = -1, .touch = &touch};
    if (job_box_open(j, j->ask->box, true, b, err) < 0)
        return -1;
    if (has_begun(j)) /* all that it needs is written down */
        return while_frozen(j, b, &p, take_over, err);
    if (job_box_stack(j, b, &own, err) < 0 || merged_touch_open(j, b, &own, stacks, &touch, err) < 0)
        return -1;
    _cleanup_close_ int stack = merged_stack_id(j, j->ask->stack, err);
    /* STOCK_BACK: nothing but that it is there. What is asked for after it was dropped was over long ago. */
    _cleanup_close_ int other = stack < 0 ? -1 : merged_stack_id(j, j->ask->other, err);
    if (other < 0)
        return -1;
    p.stack = stack;
    p.other = other;
    return while_frozen(j, b, &p, take_over, err);
}

int job_apply(struct job *j, struct err *err)
{
    struct job_box b = JOB_BOX_INIT;
    if (was_done(j))
        return 0;
    int r = apply(j, &b, err);
    /* Whatever failed: it is half there as long as the sandbox is, and must be asked for again. */
    if (r < 0 && has_begun(j) && j->reply.error != STOCK_NOT_FOUND)
        j->reply.error = STOCK_BUSY;
    return r;
}

static int put_back(struct job *j, const struct job_box *b, const struct pair *p, int living, struct err *err)
{
    (void)p;
    return lay_back(j, b, living, err);
}

int job_apply_forget(struct job *j, struct err *err)
{
    struct job_box b = JOB_BOX_INIT;
    struct redo names = redo_names(j);
    _cleanup_close_ int stream = open_redo(j);
    struct tail t = stream < 0 ? (struct tail){.box = ""} : get_tail(stream);
    int r = t.box[0] ? job_box_open(j, t.box, true, &b, err) : 0;
    if (r == 0 && t.box[0])
        r = while_frozen(j, &b, NULL, put_back, err);
    job_box_close(&b);
    if (r < 0 && j->reply.error != STOCK_NOT_FOUND) {
        j->reply.error = STOCK_BUSY;
        return err_wrap(err, "what the sandbox %s took over of %s in part cannot be put back", t.box, j->ask->stack);
    }
    j->reply.error = STOCK_OK; /* the sandbox is gone, and its files with it */
    *err = (struct err){0};
    forget_redo(j);
    (void)unlinkat(j->place.stacks, names.done, 0);
    return 0;
}
