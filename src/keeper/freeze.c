/* freeze.c - freezes and thaws sandboxes. Nothing here waits: a timer checks the ones that have not stopped at once.
 *
 * A sandbox stands still while a client has paused it, or while a process holds it (a job of the layer store that copies
 * or changes its files). A pause lasts until it is resumed; a hold until it is released or the holder's connection or
 * process ends, so that a killed holder leaves nothing frozen.
 *
 * The journal has both from before the first process is stopped until the last one runs again. So the next keeper
 * finishes a pause that a killed one began, goes on with a hold as long as its process lives, and thaws the rest.
 */
#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/log.h"
#include "keeper/keeper-int.h"

/* Most sandboxes stop within some tenths of a millisecond, so the first checks come quickly. */
enum { LOOK_MS = 2, LOOK_OFTEN_MS = 3, LOOK_OFTEN_US = 100, THAW_AGAIN_MS = 1000 };

/* Where layer stores that froze sandboxes themselves noted which. */
#define OLD_MARKERS "stock-frozen"

static uint64_t freeze_now_us(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
}

static bool freeze_is_held(const struct entry *e)
{
    bool held = false;
    for (unsigned i = 0; i < KEEPER_HOLDERS; i++)
        held |= e->holders[i].pid != 0;
    return held;
}

/* Brings the journal in line with e->paused and e->holders. */
static int freeze_record(const struct keeper *k, const struct entry *e, struct err *err)
{
    struct journal_record r;
    struct journal_holder now[KEEPER_HOLDERS] = {{0}};
    if (journal_read(k->journal, e->id, &r) < 0)
        return err_set(err, ERR_SETUP, 0, "the journal record of this sandbox cannot be read");
    for (unsigned i = 0; i < KEEPER_HOLDERS; i++)
        now[i] = (struct journal_holder){.pid = e->holders[i].pid, .start = e->holders[i].start};
    if ((r.frozen != 0) == e->paused && memcmp(r.holder, now, sizeof now) == 0)
        return 0;
    r.frozen = e->paused;
    memcpy(r.holder, now, sizeof now);
    if (journal_update(k->journal, &r, err) < 0)
        return -1;
    struct err ignored = {0};
    (void)keepsake_put(k, e, &r, &ignored); /* the deadline has not changed, and the next change writes the rest */
    return 0;
}

static int freeze_ask(const struct keeper *k, const struct entry *e, enum tier_freezing what, struct err *err)
{
    struct journal_record r;
    if (tier_need(e->tier, TIER_FREEZE, err) < 0)
        return -1;
    if (journal_read(k->journal, e->id, &r) < 0)
        return err_set(err, ERR_SETUP, 0, "the journal record of this sandbox cannot be read");
    return e->tier->freeze(k, &r, what, err);
}

static void freeze_answer(struct keeper *k, const struct waiter *w, uint64_t since_us, const struct err *err)
{
    struct keeper_reply r = {.error = !err                    ? KEEPER_OK
                                      : err->code == ERR_HOST ? KEEPER_HOST
                                                              : KEEPER_FAILED,
                             .since_us = since_us};
    if (err)
        (void)snprintf(r.text, sizeof r.text, "%.*s", (int)sizeof r.text - 1, err->msg);
    asker_answer(k, w, &r);
}

static void freeze_answer_pausers(struct keeper *k, struct entry *e, const struct err *err)
{
    for (unsigned i = 0; i < KEEPER_WAITERS; i++) {
        freeze_answer(k, &e->pausers[i], 0, err);
        e->pausers[i] = (struct waiter){0};
    }
}

static void freeze_drop_holder(struct keeper *k, struct holder *h)
{
    if (h->pidfd >= 0) {
        (void)epoll_ctl(k->epoll, EPOLL_CTL_DEL, h->pidfd, NULL); /* a child that is being made may have a copy */
        (void)close(h->pidfd);
    }
    *h = (struct holder){.pidfd = -1};
}

/* err: their holds end, too. */
static void freeze_answer_holders(struct keeper *k, struct entry *e, const struct err *err)
{
    for (unsigned i = 0; i < KEEPER_HOLDERS; i++) {
        struct holder *h = &e->holders[i], was = *h;
        if (!was.pid)
            continue;
        h->told = true;
        if (err)
            freeze_drop_holder(k, h);
        if (!was.told)
            freeze_answer(k, &was.asker, was.since_us, err);
    }
}

/* After a pause or a hold began. */
static int freeze_begin(struct keeper *k, struct entry *e, struct err *err)
{
    if (freeze_record(k, e, err) < 0)
        return -1;
    if (e->still || e->freezing)
        return 0;
    if (freeze_ask(k, e, TIER_STOP, err) < 0)
        return -1;
    e->freezing = true;
    e->freeze_ms = keeper_now_ms();
    return 0;
}

/* After a pause or a hold ended: thaws the sandbox if that was the last one. */
static int freeze_end(struct keeper *k, struct entry *e, struct err *err)
{
    if (e->paused || freeze_is_held(e))
        return freeze_record(k, e, err);
    if (freeze_ask(k, e, TIER_THAW, err) < 0 || freeze_record(k, e, err) < 0)
        return -1;
    e->still = e->freezing = e->thaw_late = false;
    return 0;
}

/* The same where no client can be told of a failure, or none could do anything about it: tried again until it works. */
static int freeze_end_surely(struct keeper *k, struct entry *e, struct err *err)
{
    if (freeze_end(k, e, err) == 0)
        return 0;
    e->thaw_late = true;
    keeper_wake_at(k, keeper_now_ms() + THAW_AGAIN_MS);
    return -1;
}

static void freeze_give_up(struct keeper *k, struct entry *e, const struct err *why)
{
    struct err ignored = {0};
    e->freezing = e->paused = false;
    freeze_answer_holders(k, e, why);
    (void)freeze_end_surely(k, e, &ignored);
    freeze_answer_pausers(k, e, why);
}

static void freeze_look(struct keeper *k, struct entry *e)
{
    struct err err = {0};
    int r = freeze_ask(k, e, TIER_LOOK, &err);
    if (r == 1) {
        e->freezing = false;
        e->still = true;
        freeze_answer_holders(k, e, NULL);
        freeze_answer_pausers(k, e, NULL);
        return;
    }
    uint64_t now = keeper_now_ms();
    if (r == 0 && now < e->freeze_ms + CGROUP_FREEZE_MS) {
        if (now < e->freeze_ms + LOOK_OFTEN_MS)
            keeper_wake_in_us(k, LOOK_OFTEN_US);
        else
            keeper_wake_at(k, now + LOOK_MS);
        return;
    }
    if (!err.code)
        (void)err_set(&err, ERR_INTERNAL, 0,
                      "the sandbox did not stand still within %d ms: a process waits in the kernel",
                      (int)CGROUP_FREEZE_MS);
    freeze_give_up(k, e, &err);
}

/* --- pauses ------------------------------------------------------------------------------------------------------- */

void freeze_pause(struct keeper *k, struct entry *e, const struct waiter *w)
{
    struct err err = {0}, ignored = {0};
    unsigned i = 0;
    if (e->paused && e->still) {
        freeze_answer(k, w, 0, NULL);
        return;
    }
    while (i < KEEPER_WAITERS && e->pausers[i].conn && k->conns[e->pausers[i].conn - 1].gen == e->pausers[i].conn_gen)
        i++;
    if (i == KEEPER_WAITERS) {
        (void)err_set(&err, ERR_LIMIT, 0, "too many requests wait for the pause of this sandbox");
        freeze_answer(k, w, 0, &err);
        return;
    }
    bool was = e->paused;
    e->paused = true;
    if (freeze_begin(k, e, &err) < 0) {
        e->paused = was;
        (void)freeze_record(k, e, &ignored);
        freeze_answer(k, w, 0, &err);
        return;
    }
    e->pausers[i] = *w;
    freeze_look(k, e);
}

void freeze_resume(struct keeper *k, struct entry *e, const struct waiter *w)
{
    struct err err = {0}, meanwhile = {0};
    if (e->paused) {
        e->paused = false;
        if (freeze_end(k, e, &err) < 0) {
            e->paused = true;
            freeze_answer(k, w, 0, &err);
            return;
        }
        (void)err_set(&meanwhile, ERR_INTERNAL, 0, "the sandbox was resumed meanwhile");
        freeze_answer_pausers(k, e, &meanwhile);
    }
    freeze_answer(k, w, 0, NULL);
}

/* --- holds -------------------------------------------------------------------------------------------------------- */

/* The hold of this asker; after a restart of keeper, or of the connection, it is found by its process. */
static struct holder *freeze_find_holder(const struct keeper *k, struct entry *e, const struct waiter *w, uint64_t pid)
{
    for (unsigned i = 0; i < KEEPER_HOLDERS; i++) {
        struct holder *h = &e->holders[i];
        if (h->pid == pid && pid && (!asker_is_connected(k, &h->asker) || h->asker.conn == w->conn))
            return h;
    }
    return NULL;
}

void freeze_hold(struct keeper *k, struct entry *e, const struct waiter *w)
{
    struct err err = {0}, ignored = {0};
    uint64_t start, pid = (uint64_t)asker_pid(k, w);
    /* While it is connected, its pid is not another process's. */
    if (!cgroup_start_time((pid_t)pid, &start) || !asker_waits(k, w))
        return;
    struct holder *h = freeze_find_holder(k, e, w, pid);
    for (unsigned i = 0; i < KEEPER_HOLDERS && !h; i++)
        h = e->holders[i].pid ? NULL : &e->holders[i];
    if (!h) {
        (void)err_set(&err, ERR_LIMIT, 0, "too many processes hold this sandbox");
        freeze_answer(k, w, 0, &err);
        return;
    }
    if (h->pid)
        freeze_drop_holder(k, h);
    *h = (struct holder){
        .asker = *w, .pid = pid, .start = start, .pidfd = -1, .since_us = e->paused && e->still ? 0 : freeze_now_us()};
    if (freeze_begin(k, e, &err) < 0) {
        freeze_drop_holder(k, h);
        (void)freeze_record(k, e, &ignored);
        freeze_answer(k, w, 0, &err);
        return;
    }
    freeze_look(k, e);
}

void freeze_release(struct keeper *k, struct entry *e, const struct waiter *w)
{
    struct err err = {0};
    struct holder *h = freeze_find_holder(k, e, w, (uint64_t)asker_pid(k, w));
    if (h)
        freeze_drop_holder(k, h);
    int r = h ? freeze_end_surely(k, e, &err) : 0;
    freeze_answer(k, w, 0, r < 0 ? &err : NULL);
}

static bool freeze_holder_is_gone(const struct keeper *k, const struct holder *h)
{
    struct pollfd p = {.fd = h->pidfd, .events = POLLIN};
    return h->pidfd < 0 ? !asker_is_connected(k, &h->asker) : poll(&p, 1, 0) == 1;
}

static void freeze_drop_gone(struct keeper *k, struct entry *e)
{
    struct err err = {0};
    bool gone = false;
    for (unsigned i = 0; i < KEEPER_HOLDERS; i++)
        if (e->holders[i].pid && freeze_holder_is_gone(k, &e->holders[i])) {
            freeze_drop_holder(k, &e->holders[i]);
            gone = true;
        }
    if ((gone || e->thaw_late) && freeze_end_surely(k, e, &err) < 0)
        log_text(LOG_LEVEL_ERROR, "the sandbox %s stands still: %s", e->id, err.msg);
}

/* --- life --------------------------------------------------------------------------------------------------------- */

/* Takes over the hold of a process that still lives. */
static void freeze_adopt_holder(struct keeper *k, struct entry *e, struct holder *h, const struct journal_holder *was)
{
    uint64_t start;
    if (was->pid == 0 || was->pid > INT32_MAX)
        return;
    int pidfd = (int)syscall(SYS_pidfd_open, (pid_t)was->pid, 0);
    if (pidfd < 0)
        return;
    *h = (struct holder){.pid = was->pid, .start = was->start, .pidfd = pidfd, .told = true};
    if (!cgroup_start_time((pid_t)was->pid, &start) || start != was->start ||
        keeper_watch(k, pidfd, EPOLLIN, EVENT_HOLDER, e->gen, entry_index(k, e)) < 0)
        freeze_drop_holder(k, h);
}

void freeze_adopt(struct keeper *k, struct entry *e, const struct journal_record *r)
{
    struct err err = {0};
    bool any = false;
    e->paused = r->frozen;
    for (unsigned i = 0; i < KEEPER_HOLDERS; i++) {
        any |= r->holder[i].pid != 0;
        freeze_adopt_holder(k, e, &e->holders[i], &r->holder[i]);
    }
    if (!e->paused && !any)
        return;
    if (!e->paused && !freeze_is_held(e)) {
        if (freeze_end_surely(k, e, &err) < 0)
            log_text(LOG_LEVEL_ERROR, "the sandbox %s stands still: %s", e->id, err.msg);
        return;
    }
    if (freeze_begin(k, e, &err) == 0)
        freeze_look(k, e);
}

void freeze_forget(struct keeper *k, struct entry *e)
{
    struct err ended = {0};
    (void)err_set(&ended, ERR_INTERNAL, 0, "the sandbox ended meanwhile");
    e->freezing = e->thaw_late = false;
    freeze_answer_holders(k, e, &ended);
    freeze_answer_pausers(k, e, &ended);
}

uint64_t freeze_tick(struct keeper *k)
{
    uint64_t next = UINT64_MAX, now = keeper_now_ms();
    for (uint32_t i = 0; i < k->nentries; i++) {
        struct entry *e = &k->entries[i];
        if (e->life != LIFE_LIVE)
            continue;
        if (e->thaw_late || freeze_is_held(e))
            freeze_drop_gone(k, e);
        if (e->freezing)
            freeze_look(k, e);
        uint64_t at = e->freezing ? now + LOOK_MS : e->thaw_late ? now + THAW_AGAIN_MS : UINT64_MAX;
        next = at < next ? at : next;
    }
    return next;
}

void freeze_leave(struct keeper *k)
{
    struct err ignored = {0};
    for (uint32_t i = 0; i < k->nentries; i++) {
        struct entry *e = &k->entries[i];
        if (e->life != LIFE_LIVE || !freeze_is_held(e))
            continue;
        for (unsigned h = 0; h < KEEPER_HOLDERS; h++)
            if (e->holders[h].pid)
                freeze_drop_holder(k, &e->holders[h]);
        (void)freeze_end(k, e, &ignored);
    }
}

void freeze_take_markers(struct keeper *k)
{
    int dir = openat(KEEPER_FD_RUN, OLD_MARKERS, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    _cleanup_closedir_ DIR *d = dir < 0 ? NULL : fdopendir(dir);
    const struct dirent *f;
    while (d && (f = readdir(d)) != NULL) {
        struct entry *e = keeper_id_valid(f->d_name) ? entry_find(k, f->d_name) : NULL;
        struct err err = {0};
        if (e && e->life == LIFE_LIVE && freeze_end_surely(k, e, &err) < 0)
            log_text(LOG_LEVEL_ERROR, "the sandbox %s stands still: %s", e->id, err.msg);
        (void)unlinkat(dirfd(d), f->d_name, 0);
    }
    if (d)
        (void)unlinkat(KEEPER_FD_RUN, OLD_MARKERS, AT_REMOVEDIR);
}
