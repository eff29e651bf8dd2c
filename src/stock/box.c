/* box.c - a job's hold on a living sandbox: its journal record, its first process, its upper, and whether it stands
 * still.
 *
 * keeper and jobs of stock may both freeze. A sandbox that keeper paused is marked in the journal before it is frozen;
 * one that a job froze has a file in RUN/stock-frozen from before that until after it was thawed. So whoever comes
 * after a death knows what to thaw.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/log.h"
#include "keeper/outer.h"
#include "keeper/request.h"
#include "stock/stock-int.h"
#include "wall/box.h"

enum { STILL_WAIT_US = 1000 };

static uint64_t now_us(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
}

static int read_record(int run_dir, const char *box, struct journal_record *ret)
{
    struct err err = {0};
    _cleanup_close_ int journal = journal_open(run_dir, &err);
    if (journal < 0) {
        errno = EIO; /* not ENOENT, which would say that the sandbox is gone */
        return -1;
    }
    return journal_read_beside(journal, box, ret);
}

/* --- open --------------------------------------------------------------------------------------------------------- */

/* What it gives us is believed only if it is what keeper made for it. */
static int take_upper(struct job *j, struct job_box *b, struct err *err)
{
    struct stat st;
    const struct journal_record *r = &b->record;
    if (strcmp(r->template, "host") == 0)
        return job_fail(
            j, STOCK_BAD_REQUEST, err,
            "the files of a sandbox with the template host cannot be kept: what it shows is this machine, of "
            "which no copy is made; use a template with a root of its own, e.g. base");
    if (r->upper_ino == 0)
        return job_fail(j, STOCK_HOST, err, "the sandbox %s was made by a version that cannot keep its files", r->id);
    _cleanup_close_ int dir = (int)syscall(SYS_pidfd_getfd, b->pidfd, WALL_BOX_UPPER, 0);
    if (dir < 0 && errno == EPERM)
        return err_set(err, ERR_HOST, 0,
                       "this host does not let us take a descriptor from the sandbox's first process (pidfd_getfd); if "
                       "kernel.yama.ptrace_scope is 3, lower it");
    if (dir < 0 && errno == ESRCH)
        return job_fail(j, STOCK_NOT_FOUND, err, "the sandbox %s has ended", r->id);
    if (dir < 0)
        return err_set(err, ERR_SETUP, errno, "take the writable layer of %s from its first process", r->id);
    b->upper = openat(dir, "u", O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (b->upper < 0 || fstat(b->upper, &st) < 0)
        return err_set(err, ERR_SETUP, errno, "open the writable layer of %s", r->id);
    if (st.st_dev != r->upper_dev || st.st_ino != r->upper_ino)
        return err_set(err, ERR_SETUP, 0, "the first process of %s holds another writable layer than it was given",
                       r->id);
    b->place = TAKE_FD(dir);
    return 0;
}

int job_box_open(struct job *j, const char *box, bool upper, struct job_box *ret, struct err *err)
{
    char boot[JOURNAL_BOOT];
    *ret = (struct job_box)JOB_BOX_INIT;
    if (read_record(j->run_dir, box, &ret->record) < 0 || ret->record.state != JOURNAL_LIVE)
        return job_fail(j, STOCK_NOT_FOUND, err, "there is no sandbox %s", box);
    journal_boot_id(boot);
    ret->pidfd = adopt_pidfd(&ret->record, boot);
    if (ret->pidfd < 0)
        return job_fail(j, STOCK_NOT_FOUND, err, "the sandbox %s has ended", box);
    if (upper && take_upper(j, ret, err) < 0)
        return -1;
    return cgroup_load(ret->record.cgroup, &ret->cgroup, err);
}

void job_box_close(struct job_box *b)
{
    if (b->pidfd >= 0)
        (void)close(b->pidfd);
    if (b->upper >= 0)
        (void)close(b->upper);
    if (b->place >= 0)
        (void)close(b->place);
    b->pidfd = b->upper = b->place = -1;
    cgroup_close(&b->cgroup);
}

int job_box_stack(struct job *j, const struct job_box *b, struct stack_file *ret, struct err *err)
{
    const char *name = b->record.template;
    if (strcmp(name, "host") == 0)
        return job_fail(j, STOCK_BAD_REQUEST, err, "a sandbox with the template host is made from no layers");
    if (stack_id_valid(name))
        return stack_read(&j->place, name, ret, err);
    *ret = (struct stack_file){.n = 0};
    (void)snprintf(ret->base, sizeof ret->base, "%s", name);
    stack_file_seal(ret);
    if (!stack_file_valid(ret))
        return err_set(err, ERR_INTERNAL, 0, "the sandbox %s has the template %s, which cannot be", b->record.id, name);
    return 0;
}

/* --- freeze ------------------------------------------------------------------------------------------------------- */

static int markers(int run_dir, struct err *err)
{
    if (mkdirat(run_dir, STOCK_FROZEN, 0700) < 0 && errno != EEXIST)
        return err_set(err, ERR_SETUP, errno, "make the directory " STOCK_FROZEN " in the run directory");
    int fd = openat(run_dir, STOCK_FROZEN, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    return fd < 0 ? err_set(err, ERR_SETUP, errno, "open the directory " STOCK_FROZEN " in the run directory") : fd;
}

static int mark(int run_dir, const char *box, struct err *err)
{
    _cleanup_close_ int dir = markers(run_dir, err);
    if (dir < 0)
        return -1;
    _cleanup_close_ int fd = openat(dir, box, O_WRONLY | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
    return fd < 0 ? err_set(err, ERR_SETUP, errno, "mark the sandbox %s as frozen", box) : 0;
}

static void unmark(int run_dir, const char *box)
{
    char path[sizeof STOCK_FROZEN + 1 + STOCK_BOX_MAX];
    (void)snprintf(path, sizeof path, STOCK_FROZEN "/%s", box);
    (void)unlinkat(run_dir, path, 0);
}

/* 1: it lives, *r is its record; 0: it is gone or has ended, which frozen ones can too. */
static int look(int run_dir, const char *box, struct journal_record *r, struct err *err)
{
    if (read_record(run_dir, box, r) == 0)
        return r->state != JOURNAL_DEAD;
    if (errno == ENOENT)
        return 0;
    return err_set(err, ERR_SETUP, errno, "the sandbox %s stands still, and its record cannot be read", box);
}

/* Unless keeper has paused it. It may be doing so at this moment: it says so first, so we look once more after. The
 * marker stays until it is certain that nothing is left to thaw: whoever finds it tries again. */
static int thaw(int run_dir, const char *box, const struct cgroup *cg, struct err *err)
{
    struct journal_record r;
    int lives = look(run_dir, box, &r, err);
    if (lives > 0 && !r.frozen) {
        if (cgroup_freeze(cg, false, CGROUP_FREEZE_MS, err) < 0)
            return err_wrap(err, "the sandbox %s stands still", box);
        lives = look(run_dir, box, &r, err);
        if (lives > 0 && r.frozen && cgroup_freeze_ask(cg, true, err) < 0)
            return -1;
    }
    if (lives < 0)
        return -1;
    unmark(run_dir, box);
    return 0;
}

int job_box_freeze(struct job *j, struct job_box *b, struct err *err)
{
    const char *box = b->record.id;
    struct err ignored = {0};
    if (read_record(j->run_dir, box, &b->record) < 0)
        return job_fail(j, STOCK_NOT_FOUND, err, "there is no sandbox %s", j->ask->box);
    if (b->record.frozen)
        return 0;
    if (mark(j->run_dir, box, err) < 0)
        return -1;
    b->since_us = now_us();
    if (cgroup_freeze(&b->cgroup, true, CGROUP_FREEZE_MS, err) < 0) {
        (void)thaw(j->run_dir, box, &b->cgroup, &ignored);
        return -1;
    }
    b->frozen = true;
    return 0;
}

int job_box_thaw(struct job *j, struct job_box *b, struct err *err)
{
    if (!b->frozen)
        return 0;
    if (thaw(j->run_dir, b->record.id, &b->cgroup, err) < 0)
        return -1;
    b->frozen = false;
    j->reply.frozen_us += now_us() - b->since_us;
    return 0;
}

int job_box_still(struct job *j, const struct job_box *b, bool wait, const char *doing, struct err *err)
{
    uint64_t until = now_us() + (wait ? CGROUP_FREEZE_MS * UINT64_C(1000) : 0);
    for (;;) {
        int r = cgroup_frozen(&b->cgroup);
        if (r == 1)
            return 0;
        if (r < 0)
            return job_fail(j, STOCK_BUSY, err, "the sandbox %s ended while %s", b->record.id, doing);
        if (now_us() >= until)
            return job_fail(j, STOCK_BUSY, err, "the sandbox %s was running while %s", b->record.id, doing);
        (void)usleep(STILL_WAIT_US);
    }
}

/* --- what the dead left ------------------------------------------------------------------------------------------- */

static int thaw_left(int run_dir, const char *box, struct err *err)
{
    struct journal_record r;
    struct cgroup cg = CGROUP_INIT;
    int lives = look(run_dir, box, &r, err);
    if (lives <= 0) {
        if (lives == 0)
            unmark(run_dir, box);
        return lives;
    }
    if (cgroup_load(r.cgroup, &cg, err) < 0)
        return -1;
    int rc = cg.nleaf == 0 ? 0 : thaw(run_dir, box, &cg, err);
    if (cg.nleaf == 0)
        unmark(run_dir, box);
    cgroup_close(&cg);
    return rc;
}

int job_box_thaw_left(int run_dir, const char *box, struct err *err)
{
    _cleanup_close_ int dir = markers(run_dir, err);
    struct stat st;
    if (dir < 0)
        return -1;
    if (box)
        return fstatat(dir, box, &st, AT_SYMLINK_NOFOLLOW) < 0 ? 0 : thaw_left(run_dir, box, err);
    int copy = openat(dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    _cleanup_closedir_ DIR *d = copy < 0 ? NULL : fdopendir(copy);
    struct dirent *e;
    while (d && (e = readdir(d)) != NULL) {
        struct err one = {0};
        if (keeper_id_valid(e->d_name) && thaw_left(run_dir, e->d_name, &one) < 0)
            log_text(LOG_LEVEL_ERROR, "%s", one.msg); /* the others must not suffer from it */
    }
    return 0;
}
