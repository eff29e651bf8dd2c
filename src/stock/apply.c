/* apply.c - the files of a living sandbox become those of a stack, or take over what differs between two stacks.
 *
 * What is to be done is first written down as a lay stream (nothing has changed if that fails) and then made through
 * the sandbox's own root, by a process in its user namespace, which can do no more there than the sandbox itself.
 * Applied twice it is the same, so a request that was ended in the middle is put right by asking again.
 */
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
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
static char is_there, is_gone; /* values in the map */

static int note_change(void *arg, const struct diff_entry *e, struct err *err)
{
    struct changes *c = arg;
    c->bytes += strlen(e->path) + 1;
    if (c->bytes > CHANGES_BYTES_MAX)
        return err_set(err, ERR_LIMIT, 0, "the paths that differ take more than %d bytes, the limit",
                       CHANGES_BYTES_MAX);
    bool gone = e->kind == DIFF_REMOVED || (e->kind == DIFF_CHANGED && (e->what & DIFF_TYPE));
    strv_add(&c->paths, e->path);
    (void)map_put(&c->at, c->paths.v[c->paths.n - 1], gone ? &is_gone : &is_there);
    return 0;
}

static int compare(int a, uid_t shift_a, int b, uid_t shift_b, struct merged_touch *touch, struct changes *ret,
                   struct err *err)
{
    const struct diff d = {.a = a,
                           .b = b,
                           .shift_a = shift_a,
                           .shift_b = shift_b,
                           .skip = merged_own_files,
                           .wanted = touch ? merged_touched : NULL,
                           .wanted_arg = touch,
                           .each = note_change,
                           .arg = ret};
    return diff_trees(&d, err);
}

struct sides {
    struct changes wanted; /* between `other` and the stack */
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
        else if (theirs == &is_there && !map_get(&s->wanted.at, up))
            tell(s, up);
    }
}

/* They changed something below what is wanted to go. */
static void check_theirs(struct sides *s, const char *path)
{
    _cleanup_free_ char *up = xstrdup(path);
    if (!map_get(&s->left.at, path) || map_get(&s->wanted.at, path))
        return;
    while (go_up(up))
        if (map_get(&s->wanted.at, up) == &is_gone)
            tell(s, path);
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
static int check_conflicts(struct job *j, int other, int stack, int living, uid_t shift, struct merged_touch *touch,
                           struct err *err)
{
    static struct sides s; /* for the life of this process */
    if (compare(other, 0, stack, 0, NULL, &s.wanted, err) < 0 ||
        compare(other, 0, living, shift, touch, &s.theirs, err) < 0 ||
        compare(living, shift, stack, 0, touch, &s.left, err) < 0)
        return -1;
    for (size_t i = 0; i < s.wanted.paths.n; i++)
        check_wanted(&s, s.wanted.paths.v[i]);
    for (size_t i = 0; i < s.theirs.paths.n; i++)
        check_theirs(&s, s.theirs.paths.v[i]);
    if (s.found.n == 0)
        return 0;
    return say_conflicts(j, &s.found, err) < 0 ? -1 : 1;
}

/* --- doing it ----------------------------------------------------------------------------------------------------- */

static int spool(struct job *j, const struct diff *d, uint64_t disk, struct err *err)
{
    static struct lay_out out; /* large */
    char name[STOCK_TMP_NAME];
    job_tmp_name(j, name);
    _cleanup_close_ int fd = openat(j->place.tmp, name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0 || unlinkat(j->place.tmp, name, 0) < 0)
        return err_set(err, ERR_SETUP, errno, "make a file for what is to be changed");
    lay_out_start(&out, fd);
    out.max = (disk ? disk : SPOOL_MAX) + SPOOL_SLACK; /* it could not be put into the sandbox either */
    if (diff_to_lay(d, &out, err) < 0)
        return -1;
    if (lseek(fd, 0, SEEK_SET) < 0)
        return err_set(err, ERR_SETUP, errno, "go back to the start of what is to be changed");
    return TAKE_FD(fd);
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
    pid_t pid = fork();
    if (pid == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
        (void)umask(0);
        if (cgroup_enter_memory(&b->cgroup) < 0) { /* what is written to its memory is its own */
            (void)err_set(said, ERR_SETUP, errno, "enter the memory cgroup of the sandbox %s", b->record.id);
            _exit(1);
        }
        if (b->record.range != 0 && become_theirs(b, said) < 0)
            _exit(1);
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0); /* taken away by the change of ids */
        _exit(lay_read(stream, root, LAY_PLAIN, NULL, NULL, NULL, NULL, said) < 0 ? 1 : 0);
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

static int apply_frozen(struct job *j, const struct job_box *b, int stack, int other, struct merged_touch *touch,
                        struct err *err)
{
    _cleanup_close_ int living = merged_box(j, b, err);
    if (living < 0)
        return -1;
    uid_t shift = b->record.range;
    struct diff d = {.a = living,
                     .b = stack,
                     .shift_a = shift,
                     .skip = merged_own_files,
                     .wanted = merged_touched,
                     .wanted_arg = touch,
                     .flags = DIFF_WITH_TIMES};
    if (other >= 0) {
        int r = check_conflicts(j, other, stack, living, shift, touch, err);
        if (r != 0)
            return r < 0 ? -1 : 0;
        d = (struct diff){.a = other, .b = stack, .skip = merged_own_files};
    }
    _cleanup_close_ int stream = spool(j, &d, b->record.disk, err);
    return stream < 0 ? -1 : lay_into(b, stream, living, err);
}

int job_apply(struct job *j, struct err *err)
{
    struct job_box b = JOB_BOX_INIT;
    struct stack_file own;
    struct err second = {0};
    struct merged_touch touch;
    const char *const stacks[] = {j->ask->stack, j->ask->other[0] ? j->ask->other : NULL, NULL};
    if (job_box_open(j, j->ask->box, true, &b, err) < 0 || job_box_stack(j, &b, &own, err) < 0 ||
        merged_touch_open(j, &b, &own, stacks, &touch, err) < 0)
        return -1;
    _cleanup_close_ int stack = merged_stack_id(j, j->ask->stack, err);
    _cleanup_close_ int other = stack < 0 || !j->ask->other[0] ? -1 : merged_stack_id(j, j->ask->other, err);
    if (stack < 0 || (j->ask->other[0] && other < 0) || job_box_freeze(j, &b, err) < 0)
        return -1;
    static const char doing[] = "its files were changed";
    int r = job_box_still(j, &b, true, doing, err) < 0 || apply_frozen(j, &b, stack, other, &touch, err) < 0 ||
                    job_box_still(j, &b, false, doing, err) < 0
                ? -1
                : 0;
    if (job_box_thaw(j, &b, r < 0 ? &second : err) < 0)
        r = -1;
    return r;
}
