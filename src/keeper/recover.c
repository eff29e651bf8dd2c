/* recover.c - finds sandboxes whose journal record is missing or damaged: the run directory or a file in it was
 * removed.
 *
 * Their inits are found in /proc. If the kernel confirms what an init keeps (keepsake.h), the record is written again
 * and the sandbox is adopted like any other. Otherwise it is ended, because nothing else would ever end it.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/fd.h"
#include "base/log.h"
#include "keeper/keeper-int.h"

struct recovery {
    struct keeper *k;
    const struct strv *damaged;
};

/* The name of the sandbox's leaf, as the kernel says; "" if it is in none. */
static void recover_leaf(pid_t pid, char ret[CGROUP_NAME_MAX])
{
    _cleanup_buf_ struct buf text = {0};
    char path[64];
    uint64_t pidns, start;
    pid_t maker;
    ret[0] = '\0';
    (void)snprintf(path, sizeof path, "/proc/%d/cgroup", (int)pid);
    if (fd_read_file(AT_FDCWD, path, 1 << 16, &text) < 0)
        return;
    for (const char *line = buf_str(&text); *line;) {
        static const char inner[] = "/" CGROUP_MAIN;
        size_t n = strcspn(line, "\n"), end = n;
        if (end >= sizeof inner && memcmp(line + end - (sizeof inner - 1), inner, sizeof inner - 1) == 0)
            end -= sizeof inner - 1;
        const char *slash = memrchr(line, '/', end);
        size_t len = slash ? end - (size_t)(slash + 1 - line) : 0;
        if (len > 0 && len < CGROUP_NAME_MAX) {
            memcpy(ret, slash + 1, len);
            ret[len] = '\0';
            if (cgroup_parse_name(ret, &pidns, &maker, &start))
                return;
        }
        line += n + (line[n] == '\n');
    }
    ret[0] = '\0';
}

static uint32_t recover_range(pid_t pid)
{
    _cleanup_buf_ struct buf text = {0};
    char path[64];
    unsigned inside, outside = 0, count;
    (void)snprintf(path, sizeof path, "/proc/%d/uid_map", (int)pid);
    if (fd_read_file(AT_FDCWD, path, 4096, &text) < 0 ||
        sscanf(buf_str(&text), " %u %u %u", &inside, &outside, &count) != 3 || inside != 0 || count != IDRANGE_COUNT)
        return 0;
    return outside;
}

/* All leaves of a sandbox have the same name. */
bool recover_groups_are_true(pid_t pid, const char *text)
{
    char leaf[CGROUP_NAME_MAX];
    recover_leaf(pid, leaf);
    for (size_t n = strlen(leaf); *text;) {
        size_t line = strcspn(text, "\n");
        if (n == 0 || line <= n || memcmp(text + line - n, leaf, n) != 0 || text[line - n - 1] != '/')
            return false;
        text += line + (text[line] == '\n');
    }
    return true;
}

/* init could not write it, but a wrong record would end another sandbox and free its resources. */
static bool recover_is_true(const struct keeper *k, pid_t pid, const struct journal_record *r)
{
    if (!journal_valid(r) || r->state != JOURNAL_LIVE || r->pid != (uint32_t)pid)
        return false;
    _cleanup_close_ int same = adopt_pidfd(r, k->common->boot);
    return same >= 0 && (k->common->world.rootless ? r->range == 0 : r->range == recover_range(pid)) &&
           recover_groups_are_true(pid, r->cgroup);
}

/* Writes what can be known from outside, so that ending it removes everything, even if we are killed meanwhile. */
static void recover_write(const struct keeper *k, const char *id, pid_t pid, int pidfd)
{
    struct journal_record r = {.state = JOURNAL_LIVE, .status = -1, .pid = (uint32_t)(pid > 0 ? pid : 0)};
    char leaf[CGROUP_NAME_MAX] = "", dir[CGROUP_DIR_MAX + CGROUP_NAME_MAX];
    struct stat st;
    struct err err = {0};
    _cleanup_buf_ struct buf groups = {0};
    (void)snprintf(r.id, sizeof r.id, "%s", id);
    memcpy(r.boot, k->common->boot, sizeof r.boot);
    if (pid > 0) {
        (void)cgroup_start_time(pid, &r.start);
        r.pidfd_ino = fstat(pidfd, &st) == 0 ? st.st_ino : 0;
        r.range = k->common->world.rootless ? 0 : recover_range(pid);
        recover_leaf(pid, leaf);
    }
    for (unsigned i = 0; leaf[0] && i < k->common->cgroups.nhier; i++) {
        const struct cgroup_hier *h = &k->common->cgroups.hier[i];
        (void)snprintf(dir, sizeof dir, "%s/%s", h->own, leaf);
        if (access(dir, F_OK) == 0)
            buf_addf(&groups, "%x %s\n", h->has, dir);
    }
    if (groups.n < sizeof r.cgroup)
        memcpy(r.cgroup, buf_str(&groups), groups.n + 1);
    if (journal_write(k->journal, &r, &err) < 0)
        log_text(LOG_LEVEL_ERROR, "%s", err.msg);
}

/* pid 0: no process of it is left. */
static void recover_end(struct keeper *k, const char *id, pid_t pid, int pidfd)
{
    log_text(LOG_LEVEL_ERROR, "sandbox %s is ended (lost): its journal record is damaged or removed, and %s", id,
             pid > 0 ? "its init keeps no copy that fits its process" : "no process of it was found");
    recover_write(k, id, pid, pidfd);
    struct entry *e = entry_new(k, id);
    if (!e) {
        if (pid > 0)
            (void)syscall(SYS_pidfd_send_signal, pidfd, SIGKILL, NULL, 0);
        return;
    }
    e->adopted = true;
    e->tier = &tier_container;
    e->pid = pid;
    e->pidfd = pid > 0 ? fcntl(pidfd, F_DUPFD_CLOEXEC, KEEPER_FD_STATE + 1) : -1;
    e->range = pid > 0 && !k->common->world.rootless ? recover_range(pid) : 0;
    if (e->range && k->ranges >= 0)
        (void)claims_hold(k->ranges, NULL, e->range);
    entry_set(k, e, LIFE_LIVE);
    end_begin(k, e, KEEPER_DIED_LOST);
    if (e->pidfd >= 0) {
        (void)keeper_watch(k, e->pidfd, EPOLLIN, EVENT_PIDFD, e->gen, entry_index(k, e));
        return;
    }
    e->gone = e->reaped = true; /* the next tick takes the rest away */
    keeper_wake_at(k, keeper_now_ms());
}

/* Reports a sandbox of another node, which we may not end but which may have lost its node for good. */
static void recover_tell_foreign(pid_t pid, const struct keepsake *l)
{
    if (keeper_now_ms() < l->record.deadline_ms || keepsake_kept(l))
        return;
    log_text(
        LOG_LEVEL_WARN,
        "process %d is the first one of a sandbox of another node (%s), whose keeper does not run and whose time is "
        "over; it ends itself, and `hutch gc --remove` ends it at once",
        (int)pid, l->node.state);
}

static bool recover_is_ours(const struct keeper *k, const struct keepsake *l)
{
    return l && l->node.dev == k->common->node.dev && l->node.ino == k->common->node.ino;
}

/* Handles confirmed inits first, so that no other process can pass for one of them. */
static void recover_found(void *arg, pid_t pid, int pidfd, const struct keepsake *l)
{
    const struct recovery *s = arg;
    struct keeper *k = s->k;
    char id[KEEPER_ID_MAX];
    struct err err = {0};
    if (!recover_is_ours(k, l) || !recover_is_true(k, pid, &l->record) || entry_find(k, l->record.id) ||
        !control_id_of(pidfd, id) || strcmp(id, l->record.id) != 0)
        return;
    struct journal_record r = l->record;
    if (journal_write(k->journal, &r, &err) < 0)
        log_text(LOG_LEVEL_ERROR, "%s", err.msg);
    log_text(LOG_LEVEL_WARN, "sandbox %s goes on: its journal record was %s, and its init kept a copy", r.id,
             strv_has(s->damaged, r.id) ? "damaged" : "removed");
    adopt_record(k, &r);
}

static void recover_rest(void *arg, pid_t pid, int pidfd, const struct keepsake *l)
{
    const struct recovery *s = arg;
    struct keeper *k = s->k;
    char id[KEEPER_ID_MAX] = "";
    bool ours = recover_is_ours(k, l), named = control_id_of(pidfd, id);
    if (l && !ours)
        recover_tell_foreign(pid, l);
    if (!ours && !(named && strv_has(s->damaged, id)))
        return;
    const struct entry *e = named ? entry_find(k, id) : NULL;
    if (e && e->pid == pid)
        return;
    if (named && !e) {
        recover_end(k, id, pid, pidfd);
    } else if (ours) {
        log_text(LOG_LEVEL_ERROR,
                 "process %d, the first one of a sandbox of this node, is none that is known; it is ended", (int)pid);
        (void)syscall(SYS_pidfd_send_signal, pidfd, SIGKILL, NULL, 0);
    }
}

void recover_all(struct keeper *k, const struct strv *damaged)
{
    struct recovery s = {.k = k, .damaged = damaged};
    for (size_t i = 0; i < damaged->n; i++)
        if (!keeper_id_valid(damaged->v[i])) {
            log_text(LOG_LEVEL_WARN, "removed a file from the journal: no valid record, and not the name of a sandbox");
            journal_remove(k->journal, damaged->v[i]);
        }
    keepsake_each(recover_found, &s);
    keepsake_each(recover_rest, &s);
    for (size_t i = 0; i < damaged->n; i++)
        if (keeper_id_valid(damaged->v[i]) && !entry_find(k, damaged->v[i]))
            recover_end(k, damaged->v[i], 0, -1);
}
