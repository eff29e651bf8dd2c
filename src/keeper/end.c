/* end.c - ends a sandbox, on request or after its death: kill, wait until nothing runs, remove everything, then
 * report. */
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "keeper/keeper-int.h"

enum { RETRY_MS = 5, LATE_MS = 1000, STATUS_MS = 2000 };

/* linux/pidfd.h of 6.13 (exit: 6.15); older headers have none of it, older kernels answer ENOTTY. */
struct pidfd_info_v1 {
    uint64_t mask, cgroupid;
    uint32_t pid, tgid, ppid, ids[8];
    int32_t exit_code;
    uint32_t more[8];
};
#define PIDFD_GET_INFO_IOCTL _IOC(_IOC_READ | _IOC_WRITE, 0xFF, 11, 64)
#define PIDFD_INFO_EXIT_BIT  (UINT64_C(1) << 3)

/* Reads the wait status of a dead init; -1 if it cannot be known. False if it will be known in a moment: an init that
 * is not our child has to be reaped by its new parent first. */
static bool end_read_status(const struct entry *e, int32_t *ret)
{
    siginfo_t info = {0};
    struct pidfd_info_v1 v = {.mask = PIDFD_INFO_EXIT_BIT};
    *ret = -1;
    if (e->child) {
        if (waitid(P_PID, (id_t)e->pid, &info, WEXITED | WNOHANG) == 0 && info.si_pid == e->pid)
            *ret = info.si_code == CLD_EXITED ? info.si_status << 8 : info.si_status;
        return true;
    }
    if (ioctl(e->pidfd, PIDFD_GET_INFO_IOCTL, &v) < 0)
        return true;
    if (v.mask & PIDFD_INFO_EXIT_BIT)
        *ret = v.exit_code;
    return v.mask & PIDFD_INFO_EXIT_BIT;
}

void end_begin(struct keeper *k, struct entry *e, enum keeper_cause cause)
{
    struct journal_record r;
    if (e->life == LIFE_ENDING || e->life == LIFE_DEAD)
        return;
    keeper_settle(k, e);
    if (e->waiting) { /* nothing was made of it */
        create_forget(k, e);
        e->gone = e->reaped = true;
        keeper_wake_at(k, keeper_now_ms());
    }
    freeze_forget(k, e);
    entry_set(k, e, LIFE_ENDING);
    e->cause = cause;
    attach_gone(k, e);
    (void)e->tier->kill(e->pidfd, NULL, false); /* first: it dies while the record is read */
    if (journal_read(k->journal, e->id, &r) == 0)
        (void)e->tier->kill(-1, &r, false);
    keeper_wake_at(k, e->since_ms + KEEPER_END_MS);
}

static void answer_waiters(struct keeper *k, struct entry *e, enum keeper_error error, const char *text)
{
    for (unsigned i = 0; i < KEEPER_WAITERS; i++) {
        struct keeper_reply r = {.error = error, .usage = e->usage};
        (void)snprintf(r.text, sizeof r.text, "%s", text);
        asker_answer(k, &e->waiters[i], &r);
        e->waiters[i] = (struct waiter){0};
    }
}

/* Does not guess: without a status, or after a SIGKILL that neither we nor the memory limit sent, the cause is
 * unknown. */
static uint32_t end_cause_of_death(const struct entry *e)
{
    if (e->cause != KEEPER_DIED_UNKNOWN || e->status < 0)
        return e->cause;
    if (!WIFSIGNALED(e->status) || WTERMSIG(e->status) != SIGKILL)
        return KEEPER_DIED_INIT;
    return e->usage.oom_kills > 0 ? KEEPER_DIED_OOM : KEEPER_DIED_UNKNOWN;
}

static void drop_oldest_death(struct keeper *k)
{
    struct entry *oldest = NULL;
    for (uint32_t i = 0; i < k->nentries; i++)
        if (k->entries[i].life == LIFE_DEAD && (!oldest || k->entries[i].at_unix_ms < oldest->at_unix_ms))
            oldest = &k->entries[i];
    if (oldest)
        end_forget(k, oldest);
}

static void keep_death(struct keeper *k, struct entry *e, struct journal_record *r)
{
    struct err err = {0};
    struct timespec now;
    (void)clock_gettime(CLOCK_REALTIME, &now);
    e->at_unix_ms = (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
    r->state = JOURNAL_DEAD;
    r->cause = e->cause;
    r->status = e->status;
    r->at_unix_ms = e->at_unix_ms;
    r->usage = e->usage;
    r->pid = r->frozen = 0;
    r->upper_dev = r->upper_ino = 0;
    r->driver[0] = r->quota[0] = r->cgroup[0] = '\0';
    (void)journal_write(k->journal, r, &err); /* told now in any case */
    if (k->ndead >= KEEPER_SANDBOXES_MAX - 1)
        drop_oldest_death(k);
    entry_set(k, e, LIFE_DEAD);
    asker_tell_death(k, e);
    answer_waiters(k, e, KEEPER_OK, "");
}

static void end_finish(struct keeper *k, struct entry *e, struct journal_record *r)
{
    control_remove(e->id);
    claims_drop(k->ranges, e->range);
    e->range = 0;
    if (r->driver[0])
        uppers_drop(k, e->id, r->driver);
    trust_unuse(e->id);
    if (e->failure[0]) {
        struct keeper_reply reply = {.error = e->failure_code};
        memcpy(reply.text, e->failure, sizeof reply.text);
        asker_answer(k, &e->creator, &reply);
    }
    if (!e->asked && !e->failure[0]) {
        keep_death(k, e, r);
        return;
    }
    journal_remove(k->journal, e->id);
    answer_waiters(k, e, KEEPER_OK, "");
    entry_free(k, e);
}

/* Cleans up after init's death, which ended every process of its namespace. */
static void end_clear(struct keeper *k, struct entry *e)
{
    struct journal_record r;
    if (journal_read(k->journal, e->id, &r) < 0) { /* lost: report what we know ourselves */
        r = (struct journal_record){.state = JOURNAL_LIVE, .deadline_ms = e->deadline_ms};
        memcpy(r.id, e->id, sizeof r.id);
    }
    if (!e->tier->kill(-1, &r, true)) {
        keeper_wake_at(k, keeper_now_ms() + RETRY_MS);
        return;
    }
    end_finish(k, e, &r);
}

/* True once init must have ended itself at its deadline. */
bool end_is_overdue(const struct keeper *k, uint64_t deadline_ms)
{
    return keeper_now_ms() >= deadline_ms + k->config->grace_ms;
}

void end_pidfd(struct keeper *k, struct entry *e)
{
    struct journal_record r;
    if (e->reaped || e->life == LIFE_DEAD)
        return;
    if (e->life == LIFE_STARTING) {
        create_sync(k, e); /* its last words */
        if (e->life == LIFE_NONE || e->reaped)
            return;
    }
    if (e->life == LIFE_LIVE)
        end_begin(k, e, end_is_overdue(k, e->deadline_ms) ? KEEPER_DIED_TTL : KEEPER_DIED_UNKNOWN);
    if (!e->gone)
        (void)epoll_ctl(k->epoll, EPOLL_CTL_DEL, e->pidfd, NULL);
    e->gone = true;
    /* Wait for the status only of a sandbox that died by itself. */
    if (!end_read_status(e, &e->status) && e->cause == KEEPER_DIED_UNKNOWN && !e->asked &&
        keeper_now_ms() < e->since_ms + STATUS_MS) {
        keeper_wake_at(k, keeper_now_ms() + RETRY_MS);
        return;
    }
    e->reaped = true;
    if (journal_read(k->journal, e->id, &r) == 0)
        usage_read(k, &r, false, &e->usage);
    e->cause = end_cause_of_death(e);
    (void)close(e->pidfd);
    e->pidfd = -1;
    end_clear(k, e);
}

uint64_t end_tick(struct keeper *k)
{
    uint64_t now = keeper_now_ms(), next = UINT64_MAX;
    for (uint32_t i = 0; i < k->nentries && k->nending > 0; i++) {
        struct entry *e = &k->entries[i];
        if (e->life == LIFE_ENDING && e->reaped)
            end_clear(k, e);
        else if (e->life == LIFE_ENDING && e->gone)
            end_pidfd(k, e);
        if (e->life == LIFE_ENDING && !e->told_late && e->since_ms + KEEPER_END_MS <= now) {
            e->told_late = true;
            answer_waiters(k, e, KEEPER_FAILED, "the kill goes on: a process of the sandbox does not end");
        }
        if (e->life != LIFE_ENDING)
            continue;
        uint64_t at = e->gone && now < e->since_ms + KEEPER_END_MS ? now + RETRY_MS : now + LATE_MS;
        next = at < next ? at : next;
    }
    return next;
}

void end_wait(struct keeper *k, struct entry *e, const struct waiter *w)
{
    struct keeper_reply full = {.error = KEEPER_CAPACITY, .text = "too many requests wait for the end of this sandbox"};
    unsigned i = 0;
    if (e->life == LIFE_DEAD) {
        struct keeper_reply r = {.error = KEEPER_OK, .usage = e->usage};
        end_forget(k, e);
        asker_answer(k, w, &r);
        return;
    }
    while (i < KEEPER_WAITERS && e->waiters[i].conn && k->conns[e->waiters[i].conn - 1].gen == e->waiters[i].conn_gen)
        i++;
    if (i == KEEPER_WAITERS) {
        asker_answer(k, w, &full);
        return;
    }
    e->waiters[i] = *w;
    e->told_late = false;
    e->asked = true;
    if (e->life == LIFE_STARTING) {
        e->failure_code = KEEPER_FAILED;
        (void)snprintf(e->failure, sizeof e->failure, "killed before it was ready");
    }
    end_begin(k, e, KEEPER_DIED_KILLED);
}

void end_forget(struct keeper *k, struct entry *e)
{
    journal_remove(k->journal, e->id);
    entry_free(k, e);
}
