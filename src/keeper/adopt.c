/* adopt.c - a new keeper finds the sandboxes of the one before: adopts the living, reports the dead, sweeps the half-made. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/log.h"
#include "keeper/keeper-int.h"

int adopt_pidfd(const struct journal_record *r, const char *boot)
{
    struct stat st;
    uint64_t start;
    if (strcmp(r->boot, boot) != 0 || r->pid == 0)
        return -1;
    int fd = (int)syscall(SYS_pidfd_open, (pid_t)r->pid, 0);
    if (fd < 0)
        return -1;
    /* The pid may have been reused since: compare the start time and, where the kernel gives each process its own, the
     * inode of the pidfd. */
    bool same = cgroup_start_time((pid_t)r->pid, &start) && start == r->start && fstat(fd, &st) == 0 &&
                (r->pidfd_ino == 0 || st.st_ino == r->pidfd_ino);
    if (same)
        return fd;
    (void)close(fd);
    return -1;
}

/* The cause of a death that no keeper saw. */
static enum keeper_cause adopt_cause(const struct keeper *k, const struct journal_record *r)
{
    if (strcmp(r->boot, k->common->boot) != 0)
        return KEEPER_DIED_BOOT;
    return end_is_overdue(k, r->deadline_ms) ? KEEPER_DIED_TTL : KEEPER_DIED_UNKNOWN;
}

void adopt_record(struct keeper *k, const struct journal_record *r)
{
    struct entry *e = entry_new(k, r->id);
    if (!e) {
        log_text(LOG_LEVEL_ERROR, "sandbox %s is not taken up: the table is full", r->id);
        return;
    }
    e->adopted = true;
    e->tier = tier_of(r->tier);
    e->net = r->ns_cookie != 0;
    e->deadline_ms = r->deadline_ms;
    e->range = r->range;
    e->own_root = strcmp(r->template, "host") != 0;
    memcpy(e->driver, r->driver, sizeof e->driver);
    memcpy(e->quota, r->quota, sizeof e->quota);
    if (r->state == JOURNAL_DEAD) {
        e->cause = r->cause;
        e->status = r->status;
        e->at_unix_ms = r->at_unix_ms;
        e->usage = r->usage;
        e->range = 0;
        entry_set(k, e, LIFE_DEAD);
        return;
    }
    e->pid = (pid_t)r->pid;
    e->tier->adopt(k, e, r);
    entry_set(k, e, LIFE_LIVE);
    e->asked = r->state == JOURNAL_STARTING; /* no client was told of it: keep nothing */
    if (e->pidfd >= 0 && !e->asked) {
        (void)keeper_watch(k, e->pidfd, EPOLLIN, EVENT_PIDFD, e->gen, entry_index(k, e));
        keeper_wake_at(k, e->deadline_ms);
        k->egress.unsaid |= e->net;
        e->limited = k->limited = e->tier->sweep != NULL; /* an earlier keeper may have made groups of commands */
        freeze_adopt(k, e, r);
        return;
    }
    enum keeper_cause cause = e->pidfd >= 0 ? KEEPER_DIED_UNKNOWN : adopt_cause(k, r);
    end_begin(k, e, cause);
    if (e->pidfd >= 0) {
        (void)keeper_watch(k, e->pidfd, EPOLLIN, EVENT_PIDFD, e->gen, entry_index(k, e));
        return;
    }
    if (cause != KEEPER_DIED_BOOT)
        usage_read(k, r, false, &e->usage);
    e->gone = e->reaped = true; /* the next tick takes the rest away */
    keeper_wake_at(k, keeper_now_ms());
}

struct adoption {
    struct keeper *k;
    struct strv damaged;
};

static void adopt_one(void *arg, const char *name, const struct journal_record *r)
{
    struct adoption *a = arg;
    if (r)
        adopt_record(a->k, r);
    else
        strv_add(&a->damaged, name);
}

static bool adopt_is_dead(const struct entry *e)
{
    struct pollfd p = {.fd = e->pidfd, .events = POLLIN};
    return poll(&p, 1, 0) == 1;
}

/* Brings init's copy of each record and its control socket in line with the journal. */
static void adopt_agree(struct keeper *k)
{
    for (uint32_t i = 0; i < k->nentries; i++) {
        struct entry *e = &k->entries[i];
        struct journal_record r;
        struct err err = {0};
        if (e->life != LIFE_LIVE || journal_read(k->journal, e->id, &r) < 0)
            continue;
        if (keepsake_put(k, e, &r, &err) < 0)
            log_text(LOG_LEVEL_WARN, "sandbox %s: %s", e->id, err.msg);
        int made = control_restore(k, e, &err);
        if (made > 0)
            log_text(LOG_LEVEL_WARN, "sandbox %s can be reached again: its socket had been removed", e->id);
        if (made < 0 && !adopt_is_dead(e)) {
            log_text(LOG_LEVEL_ERROR, "sandbox %s is ended: %s", e->id, err.msg);
            end_begin(k, e, KEEPER_DIED_LOST);
        }
    }
}

/* Removes sockets without a record: a keeper made them just before it was killed, and they have no listener. */
static void sweep_sockets(struct keeper *k)
{
    int copy = openat(KEEPER_FD_RUN, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    _cleanup_closedir_ DIR *d = copy < 0 ? NULL : fdopendir(copy);
    struct dirent *f;
    while (d && (f = readdir(d)) != NULL) {
        size_t n = strlen(f->d_name);
        char id[KEEPER_ID_MAX] = "";
        if (n < 6 || n - 5 >= sizeof id || strcmp(f->d_name + n - 5, ".sock") != 0)
            continue;
        memcpy(id, f->d_name, n - 5);
        if (keeper_id_valid(id) && !entry_find(k, id) && !keeper_socket_alive(KEEPER_FD_RUN, f->d_name))
            (void)unlinkat(KEEPER_FD_RUN, f->d_name, 0);
    }
}

bool keeper_leaf_orphaned(const char *name)
{
    struct stat here;
    uint64_t pidns, start, now;
    pid_t pid;
    if (!cgroup_parse_name(name, &pidns, &pid, &start) || stat("/proc/self/ns/pid", &here) < 0 || here.st_ino != pidns)
        return false;
    _cleanup_close_ int fd = (int)syscall(SYS_pidfd_open, pid, 0);
    if (!cgroup_start_time(pid, &now) || now != start)
        return true;
    /* A zombie that its new parent does not reap counts as dead too. */
    struct pollfd p = {.fd = fd, .events = POLLIN};
    return fd >= 0 && poll(&p, 1, 0) == 1;
}

/* Removes empty leaves without a record: a keeper made them just before it was killed. */
static void sweep_group(const char *dir)
{
    _cleanup_closedir_ DIR *d = opendir(dir);
    struct dirent *f;
    while (d && (f = readdir(d)) != NULL) {
        char path[CGROUP_DIR_MAX + 300];
        (void)snprintf(path, sizeof path, "%s/%s", dir, f->d_name);
        if (keeper_leaf_orphaned(f->d_name))
            (void)cgroup_rmdir(path); /* the kernel refuses if anything is inside */
    }
}

/* Also sweeps the groups of earlier keepers, which may have run in other cgroups. */
static int sweep_groups(const struct keeper *k, struct err *err)
{
    _cleanup_strv_ struct strv noted = {0}, now = {0};
    const struct cgroup_info *info = &k->common->cgroups;
    for (unsigned i = 0; i < info->nhier; i++)
        strv_add(&now, info->hier[i].own);
    (void)journal_groups(k->journal, &noted);
    for (size_t i = 0; i < noted.n; i++)
        if (access(noted.v[i], F_OK) == 0 && !strv_has(&now, noted.v[i]))
            strv_add(&now, noted.v[i]);
    for (size_t i = 0; i < now.n; i++)
        sweep_group(now.v[i]);
    return journal_put_groups(k->journal, &now, err);
}

bool keeper_socket_alive(int dir, const char *name)
{
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    _cleanup_close_ int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    (void)snprintf(addr.sun_path, sizeof addr.sun_path, "/proc/self/fd/%d/%s", dir, name);
    return fd < 0 || connect(fd, (const struct sockaddr *)&addr, sizeof addr) == 0 || errno != ECONNREFUSED;
}

int adopt_all(struct keeper *k, struct err *err)
{
    struct adoption a = {.k = k};
    int r = journal_each(k->journal, adopt_one, &a, err);
    if (r == 0) {
        recover_all(k, &a.damaged);
        adopt_agree(k);
        freeze_take_markers(k);
    }
    strv_done(&a.damaged);
    if (r < 0)
        return -1;
    sweep_sockets(k);
    uppers_sweep(k);
    return sweep_groups(k, err);
}
