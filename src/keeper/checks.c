/* checks.c - checks the images of a sandbox's volumes before it starts.
 *
 * e2fsck may take long. So children do it, a few at a time, while keeper answers other clients; the create continues
 * when the child has ended. A check runs to its end even if its create was given up: the
 * next create finds it done. Children die with keeper.
 *
 * Another process may hold the image of a volume while it copies it. No child waits for that, or all of the few
 * children could wait for one tenant's volume: keeper polls until the image is free.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "keeper/keeper-int.h"

enum { CHILD_FD = 64, CHILD_BUSY = 2 /* its exit status */, RETRY_MS = 100 };

/* The work of one child, which does not see keeper's tables. */
struct work {
    struct keeper_create ask;
    int volumes;
};

bool checks_needed(const struct keeper *k, const struct keeper_create *c)
{
    for (uint32_t i = 0; i < c->nvolumes; i++)
        if (upper_image_unready(k->common->layers.volumes, c->volume[i].id))
            return true;
    return false;
}

/* --- the child ---------------------------------------------------------------------------------------------------- */

/* 1: another process holds a volume. */
static int check_prepare(const struct work *w, struct err *err)
{
    for (uint32_t i = 0; i < w->ask.nvolumes; i++) {
        int r = upper_image_check(w->volumes, w->ask.volume[i].id, err);
        if (r != 0)
            return r > 0 ? 1 : err_wrap(err, "volume %s", w->ask.volume[i].id);
    }
    return 0;
}

static _Noreturn void check_child_main(struct work *w, int said, pid_t parent)
{
    struct err err = {0};
    int fds[] = {w->volumes, said};
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
    (void)prctl(PR_SET_NAME, "hutch-check", 0, 0, 0);
    for (size_t i = 0; i < ARRAY_LEN(fds); i++) /* out of the way first */
        if ((fds[i] = fcntl(fds[i], F_DUPFD_CLOEXEC, CHILD_FD + (int)ARRAY_LEN(fds))) < 0)
            _exit(1);
    for (size_t i = 0; i < ARRAY_LEN(fds); i++)
        if ((fds[i] = dup3(fds[i], CHILD_FD + (int)i, O_CLOEXEC)) < 0)
            _exit(1);
    (void)fd_close_range(3, CHILD_FD - 1, 0);
    (void)fd_close_range(CHILD_FD + ARRAY_LEN(fds), ~0U, 0);
    w->volumes = fds[0];
    if (getppid() != parent)
        _exit(1);
    int r = check_prepare(w, &err);
    if (r >= 0)
        _exit(r > 0 ? CHILD_BUSY : 0);
    (void)write(fds[1], &err, sizeof err);
    _exit(1);
}

/* --- keeper ------------------------------------------------------------------------------------------------------- */

static int check_launch(struct keeper *k, struct check *c)
{
    static struct work w; /* not in keeper's tables, which a child does not see */
    int said[2];
    w = (struct work){c->ask, k->common->layers.volumes};
    upper_image_outside(getppid());
    if (pipe2(said, O_CLOEXEC | O_NONBLOCK) < 0)
        return -1;
    pid_t parent = getpid(), pid = fork();
    if (pid == 0)
        check_child_main(&w, said[1], parent);
    (void)close(said[1]);
    int pidfd = pid < 0 ? -1 : (int)syscall(SYS_pidfd_open, pid, 0);
    if (pidfd >= 0 && keeper_watch(k, pidfd, EPOLLIN, EVENT_CHECK, 0, (uint32_t)(c - k->checks)) == 0) {
        c->pid = pid;
        c->pidfd = pidfd;
        c->said = said[0];
        return 0;
    }
    if (pid > 0) {
        (void)kill(pid, SIGKILL);
        (void)waitpid(pid, NULL, 0);
    }
    if (pidfd >= 0)
        (void)close(pidfd);
    (void)close(said[0]);
    return -1;
}

static void set_checking(struct keeper *k, struct entry *e, bool on)
{
    k->nchecking += on && !e->checking;
    k->nchecking -= !on && e->checking;
    e->checking = on;
}

static void check_finish(struct keeper *k, struct check *c, const struct err *err)
{
    struct check done = *c;
    *c = (struct check){.used = false};
    if (!done.wanted)
        return;
    struct entry *e = &k->entries[done.index];
    set_checking(k, e, false);
    create_checked(k, e, &done.ask, err);
}

static bool is_locked(const struct keeper *k, const struct keeper_create *c)
{
    for (uint32_t i = 0; i < c->nvolumes; i++)
        if (upper_image_locked(k->common->layers.volumes, c->volume[i].id))
            return true;
    return false;
}

static void try_later(struct keeper *k, struct check *c)
{
    c->retry_ms = keeper_now_ms() + RETRY_MS;
    keeper_wake_at(k, c->retry_ms);
}

static void launch_some(struct keeper *k)
{
    unsigned running = 0;
    uint64_t now = keeper_now_ms();
    for (uint32_t i = 0; i < KEEPER_CHECKS_MAX; i++)
        running += k->checks[i].used && k->checks[i].pid > 0;
    for (uint32_t i = 0; i < KEEPER_CHECKS_MAX && running < KEEPER_CHECKS_AT_ONCE; i++) {
        struct check *c = &k->checks[i];
        if (!c->used || c->pid > 0 || c->retry_ms > now)
            continue;
        if (is_locked(k, &c->ask)) {
            try_later(k, c);
            continue;
        }
        if (check_launch(k, c) == 0) {
            running++;
            continue;
        }
        struct err err = {0};
        (void)err_set(&err, ERR_SETUP, errno, "start a process that checks an image");
        check_finish(k, c, &err);
    }
}

/* Whether too many creates already wait for one held volume: the rest of the table is for other volumes. */
static bool is_crowded(const struct keeper *k, const struct keeper_create *ask)
{
    for (uint32_t v = 0; v < ask->nvolumes; v++) {
        uint32_t n = 0;
        for (uint32_t i = 0; i < KEEPER_CHECKS_MAX; i++) {
            const struct check *c = &k->checks[i];
            for (uint32_t j = 0; c->used && c->pid == 0 && j < c->ask.nvolumes; j++)
                n += strcmp(c->ask.volume[j].id, ask->volume[v].id) == 0;
        }
        if (n >= KEEPER_CHECKS_SAME && upper_image_locked(k->common->layers.volumes, ask->volume[v].id))
            return true;
    }
    return false;
}

bool checks_begin(struct keeper *k, struct entry *e, const struct keeper_create *ask)
{
    uint32_t i = 0;
    while (i < KEEPER_CHECKS_MAX && k->checks[i].used)
        i++;
    if (i == KEEPER_CHECKS_MAX || is_crowded(k, ask))
        return false;
    k->checks[i] = (struct check){.used = true, .wanted = true, .ask = *ask, .index = entry_index(k, e)};
    set_checking(k, e, true);
    e->checked++;
    keeper_wake_at(k, entry_start_end(e));
    launch_some(k);
    return true;
}

void checks_forget(struct keeper *k, struct entry *e)
{
    set_checking(k, e, false);
    for (uint32_t i = 0; i < KEEPER_CHECKS_MAX; i++) {
        struct check *c = &k->checks[i];
        if (!c->used || !c->wanted || c->index != entry_index(k, e))
            continue;
        c->wanted = false;
        if (c->pid == 0)
            c->used = false;
    }
}

void checks_event(struct keeper *k, uint32_t index)
{
    struct check *c = &k->checks[index];
    struct err err = {0};
    int status = 0;
    if (!c->used || c->pid == 0 || waitpid(c->pid, &status, WNOHANG) != c->pid)
        return;
    bool good = WIFEXITED(status) && WEXITSTATUS(status) == 0;
    if (!good && read(c->said, &err, sizeof err) != (ssize_t)sizeof err)
        (void)err_set(&err, ERR_SETUP, 0, "the process that checks an image was ended");
    (void)epoll_ctl(k->epoll, EPOLL_CTL_DEL, c->pidfd, NULL);
    (void)close(c->pidfd);
    (void)close(c->said);
    if (c->wanted && WIFEXITED(status) && WEXITSTATUS(status) == CHILD_BUSY) {
        c->pid = 0;
        try_later(k, c);
        launch_some(k);
        return;
    }
    check_finish(k, c, good ? NULL : &err);
    launch_some(k);
}

uint64_t checks_tick(struct keeper *k)
{
    uint64_t now = keeper_now_ms(), next = UINT64_MAX; /* before: what is due in between is due at once */
    launch_some(k);
    for (uint32_t i = 0; i < KEEPER_CHECKS_MAX; i++) {
        const struct check *c = &k->checks[i];
        bool waits = c->used && c->pid == 0 && c->retry_ms > now; /* others do for the end of a child */
        if (waits && c->retry_ms < next)
            next = c->retry_ms;
    }
    return next;
}
