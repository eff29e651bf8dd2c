/* tier-container.c - the container tier: a sandbox is a process tree behind namespaces, in cgroups of its own, whose
 * first process is a clone of keeper. Its record in the journal names everything that belongs to it. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "keeper/keeper-int.h"
#include "os/landlock.h"

/* --- start -------------------------------------------------------------------------------------------------------- */

/* Resources that a create has taken so far and gives back when it fails. */
struct claim {
    const struct keeper_create *ask;
    struct keeper_create full; /* with the defaults filled in */
    struct idrange range;
    struct cgroup cgroup;
    bool has_cgroup;
    struct root root;
    struct upper_info driver; /* kind 0: no upper */
    struct upper upper;
    struct volumes volumes;
    int trust, control, oom;
    struct netns net;
    bool unready; /* failed because an image must be made or checked first, or another process holds it */
    char degraded[200];
};

static bool create_is_host(const struct claim *c) { return strcmp(c->full.template, "host") == 0; }

static void create_note_degraded(struct claim *c, const char *what)
{
    size_t n = strlen(c->degraded);
    (void)snprintf(c->degraded + n, sizeof c->degraded - n, "%s%s", n ? "; " : "", what);
}

static int take_range(const struct keeper *k, struct claim *c, struct err *err)
{
    if (k->common->world.rootless) {
        create_note_degraded(c, "ids: the range of /etc/subuid is shared by all sandboxes of this user");
        return 0;
    }
    if (idrange_take(&c->range, err) < 0) {
        if (err->eno == ENOENT) /* supervisor notices, and starts the next keeper */
            return err_set(err, ERR_LIMIT, 0, IDRANGE_DIR " was removed; keeper starts again, try again in a moment");
        if (err->code == ERR_HOST)
            err->code = ERR_LIMIT;
        return -1;
    }
    if (claims_hold(k->ranges, &c->range, c->range.base) < 0)
        return err_set(err, ERR_SETUP, errno, "hold the id range");
    return 0;
}

/* Decides about a limit that the host cannot enforce. A default or a mere preference is dropped and named in
 * `degraded`, with best effort every limit is; otherwise a requested limit is an error. */
static int can_limit(const struct claim *c, bool can, uint64_t asked, const char *what, const struct cgroup_info *info,
                     struct err *err)
{
    if (can)
        return 1;
    if (asked && !(c->ask->flags & (KEEPER_BEST_EFFORT | KEEPER_WISH)))
        return err_set(err, ERR_HOST, 0, "the limit on %s cannot be enforced: %s", what,
                       info->why[0] ? info->why : "this host has no such cgroup controller");
    return 0;
}

enum { GROUPS_WANTED = CGROUP_ACCOUNT | CGROUP_KILL | CGROUP_JOURNALLED | CGROUP_INNER };

/* Another program may have removed the empty group around all sandboxes: make it again. */
static int make_groups(const struct keeper *k, const struct cgroup_limits *want, struct cgroup *ret, struct err *err)
{
    struct keeper_common *m = k->common;
    if (cgroup_create(&m->cgroups, want, GROUPS_WANTED, ret, err) == 0)
        return 0;
    if (err->eno != ENOENT)
        return -1;
    m->cgroups = m->cgroups_around;
    (void)cgroup_group(&m->cgroups, KEEPER_GROUP);
    return cgroup_create(&m->cgroups, want, GROUPS_WANTED, ret, err);
}

static int create_take_cgroup(const struct keeper *k, struct claim *c, struct err *err)
{
    const struct cgroup_info *info = &k->common->cgroups;
    struct cgroup_limits want = {.cpu_milli = c->full.cpu_milli, .memory = c->full.memory, .pids = c->full.pids};
    int cpu = can_limit(c, info->can_cpu, c->ask->cpu_milli, "processor time", info, err);
    int memory = can_limit(c, info->can_memory, c->ask->memory, "memory", info, err);
    if (cpu < 0 || memory < 0)
        return -1;
    if (!cpu) {
        want.cpu_milli = 0;
        create_note_degraded(c, "cpu: not limited");
    }
    if (!memory) {
        want.memory = 0;
        create_note_degraded(c, "memory: not limited");
    }
    if (!info->can_pids) {
        want.pids = 0;
        create_note_degraded(c, "pids: by rlimit, shared");
    } else {
        c->full.pids = 0; /* the cgroup counts refused forks; an rlimit of the same size would hide them */
    }
    if (info->nhier == 0)
        return 0;
    if (make_groups(k, &want, &c->cgroup, err) < 0)
        return -1;
    c->has_cgroup = c->cgroup.nleaf > 0;
    for (unsigned i = 0; i < c->cgroup.nleaf && c->oom < 0; i++) {
        const struct cgroup_leaf *l = &c->cgroup.leaf[i];
        if (l->has & CGROUP_MEMORY)
            c->oom = openat(l->fd, l->v2 ? "memory.events" : "memory.oom_control", O_RDONLY | O_CLOEXEC);
    }
    return 0;
}

/* Which driver makes the upper layer, and whether it can hold it to its size. */
static int choose_driver(const struct keeper *k, struct claim *c, struct err *err)
{
    if (create_is_host(c)) {
        return c->ask->driver[0] ? err_set(err, ERR_USAGE, 0, "driver: the host template has no upper layer") : 0;
    }
    if (uppers_probe(k, c->ask->driver, &c->driver, err) < 0)
        return -1;
    if (c->driver.quota != UPPER_QUOTA_NONE)
        return 0;
    const char *name = upper_kind_name(c->driver.kind);
    if (c->ask->disk && !(c->ask->flags & KEEPER_BEST_EFFORT))
        return err_set(err, ERR_HOST, 0, "the limit on disk space cannot be enforced by the driver %s: %s", name,
                       c->driver.why);
    create_note_degraded(c, "disk: not limited");
    return 0;
}

static int create_write_record(const struct keeper *k, const struct claim *c, struct err *err)
{
    struct journal_record r = {.state = JOURNAL_STARTING,
                               .flags = c->full.flags,
                               .tier = c->full.tier,
                               .range = c->range.fd >= 0 ? c->range.base : 0,
                               .deadline_ms = c->full.deadline_ms,
                               .memory = c->full.memory,
                               .disk = c->driver.kind && c->driver.quota == UPPER_QUOTA_NONE ? 0 : c->full.disk,
                               .cpu_milli = c->full.cpu_milli,
                               .ns_cookie = c->net.cookie,
                               .tcp_cookie = c->net.tcp_cookie,
                               .udp_cookie = c->net.udp_cookie,
                               .shift = c->range.fd >= 0 && c->driver.kind == UPPER_TMPFS ? c->range.base : 0,
                               .status = -1};
    if (c->driver.kind) {
        (void)snprintf(r.driver, sizeof r.driver, "%s", upper_kind_name(c->driver.kind));
        (void)snprintf(r.quota, sizeof r.quota, "%s", upper_quota_text(&c->driver));
    }
    memcpy(r.id, c->full.id, sizeof r.id);
    memcpy(r.template, c->full.template, sizeof r.template);
    memcpy(r.boot, k->common->boot, sizeof r.boot);
    for (uint32_t i = 0; i < c->full.nvolumes; i++)
        memcpy(r.volume[i], c->full.volume[i].id, sizeof r.volume[i]);
    _cleanup_buf_ struct buf groups = {0};
    if (c->has_cgroup)
        cgroup_save(&c->cgroup, &groups);
    if (groups.n >= sizeof r.cgroup)
        return err_set(err, ERR_HOST, 0, "the names of the cgroups are longer than %zu bytes", sizeof r.cgroup);
    memcpy(r.cgroup, buf_str(&groups), groups.n + 1);
    return journal_write(k->journal, &r, err);
}

static int record_pid(struct keeper *k, struct entry *e, struct err *err)
{
    struct journal_record r;
    struct stat st;
    if (journal_read(k->journal, e->id, &r) < 0)
        return err_set(err, ERR_SETUP, errno, "read the journal record of %s", e->id);
    r.pid = (uint32_t)e->pid;
    if (!cgroup_start_time(e->pid, &r.start))
        return err_set(err, ERR_SETUP, errno, "read the start time of process %d", (int)e->pid);
    r.pidfd_ino = fstat(e->pidfd, &st) == 0 ? st.st_ino : 0;
    r.upper_dev = e->sandbox.upper_dev;
    r.upper_ino = e->sandbox.upper_ino;
    memcpy(e->driver, r.driver, sizeof e->driver);
    memcpy(e->quota, r.quota, sizeof e->quota);
    return journal_update(k->journal, &r, err);
}

/* Runs in the child, at the end of its set-up. */
static void enter_init(const void *arg) __attribute__((noreturn));
static void enter_init(const void *arg) { init_main(arg); }

static const struct init_args *init_args_of(const struct keeper *k, const struct claim *c)
{
    static struct init_args a; /* the child's copy lives as long as the child */
    static const int network[] = {WALL_SANDBOX_TCP, WALL_SANDBOX_UDP}, upper = WALL_SANDBOX_UPPER;
    const struct keeper_common *m = k->common;
    bool strict = c->full.flags & KEEPER_STRICT, host = create_is_host(c);
    a = (struct init_args){
        .listener = WALL_SANDBOX_CONTROL,
        .sync = WALL_SANDBOX_SYNC,
        .oom = c->oom >= 0 ? WALL_SANDBOX_OOM : -1,
        .score = WALL_SANDBOX_SCORE,
        .network = c->net.ns >= 0 ? network : NULL,
        .upper = host ? NULL : &upper,
        .flags = (strict ? INIT_STRICT : 0U) | (host ? INIT_FREE_READS : 0U),
        .filter = m->filter[strict],
        .nfilter = m->nfilter[strict],
        .filter_flags = m->filter_flags[strict],
        .places = host ? m->host_places : m->own_places,
        .nplaces = !m->landlock ? 0
                   : host       ? m->nhost_places
                                : m->nown_places,
        .open_files = c->full.open_files,
        .processes = c->full.pids,
    };
    return &a;
}

static int start(struct keeper *k, struct claim *c, struct entry *e, struct err *err)
{
    static char hostname[sizeof c->full.hostname]; /* not in keeper's tables: the child reads it */
    (void)snprintf(hostname, sizeof hostname, "%s", c->full.hostname[0] ? c->full.hostname : "sandbox");
    struct wall_sandbox_spec spec = {
        .world = &k->common->world,
        .layers = c->root.layer,
        .nlayers = c->root.n,
        .trust = c->trust,
        .upper = c->upper.root,
        .upper_mounted = c->upper.kind == UPPER_TMPFS,
        .upper_shifted = c->upper.kind != UPPER_TMPFS && c->range.fd >= 0,
        .volumes = c->volumes.v,
        .nvolumes = c->volumes.n,
        .net = c->net.ns >= 0 ? &c->net : NULL,
        .control = c->control,
        .oom = c->oom,
        .range = c->range.fd >= 0 ? &c->range : NULL,
        .cgroup = c->has_cgroup ? &c->cgroup : NULL,
        .strict = c->full.flags & KEEPER_STRICT,
        .disk = c->full.disk,
        .inodes = c->full.inodes,
        .hostname = hostname,
        .entry = enter_init,
        .arg = init_args_of(k, c),
    };
    if (wall_sandbox_start(&spec, &e->sandbox, err) < 0)
        return -1;
    setup_tie(); /* changing the uid for the clone untied us from the supervisor */
    e->pid = e->sandbox.pid;
    e->pidfd = e->sandbox.pidfd;
    e->child = true;
    if (record_pid(k, e, err) < 0 ||
        keeper_watch(k, e->sandbox.sync, EPOLLIN, EVENT_SYNC, e->gen, entry_index(k, e)) < 0 ||
        keeper_watch(k, e->pidfd, EPOLLIN, EVENT_PIDFD, e->gen, entry_index(k, e)) < 0)
        return err->code ? -1 : err_set(err, ERR_SETUP, errno, "watch the new sandbox");
    return 0;
}

static void fill_in(const struct keeper *k, struct claim *c)
{
    const struct keeper_config *d = k->config;
    struct keeper_create *f = &c->full;
    *f = *c->ask;
    f->cpu_milli = f->cpu_milli ? f->cpu_milli : d->cpu_milli;
    f->memory = f->memory ? f->memory : d->memory;
    f->disk = f->disk ? f->disk : d->disk;
    f->inodes = f->inodes ? f->inodes : d->inodes;
    f->pids = f->pids ? f->pids : d->pids;
    f->open_files = f->open_files ? f->open_files : d->open_files;
}

static int take_trust(struct keeper *k, struct claim *c, const char *id, struct err *err)
{
    struct trust_made made;
    int r = trust_layer(k, id, c->full.template, &c->root, &made, err);
    c->trust = made.fd;
    if (made.left)
        create_note_degraded(c, "certificates: not added to bundles of the template above 1 MiB (4 MiB in all)");
    return r;
}

/* Takes all resources and starts the child. On failure nothing is left but what end.c removes for an entry with a
 * pid. */
static int claim_all(struct keeper *k, struct claim *c, struct entry *e, struct err *err)
{
    if (!k->common->landlock) {
        if (!(c->ask->flags & KEEPER_BEST_EFFORT))
            return err_set(err, ERR_HOST, 0, "this kernel has no Landlock (ABI %d or newer)", LANDLOCK_ABI_FLOOR);
        create_note_degraded(c, "landlock: not in this kernel");
    }
    if (choose_driver(k, c, err) < 0 || take_range(k, c, err) < 0)
        return -1;
    e->range = c->range.fd >= 0 ? c->range.base : 0;
    if (create_take_cgroup(k, c, err) < 0 || (c->control = control_make(k, e->id, err)) < 0 ||
        create_write_record(k, c, err) < 0)
        return -1;
    /* From here on the record names the template, so garbage collection sees its layers in use. */
    if (root_open(k, c->full.template, c->full.flags & KEEPER_BUILD, &c->root, err) < 0 ||
        (c->root.n > 0 && take_trust(k, c, e->id, err) < 0))
        return -1;
    if ((c->root.n > 0 && uppers_take(k, &c->driver, &c->full, &c->root, &c->upper, err) < 0) ||
        volumes_open(k, &c->full, create_is_host(c), &c->volumes, err) < 0) {
        c->unready = err->eno == EAGAIN; /* EAGAIN of clone means something else: no more processes */
        return -1;
    }
    return start(k, c, e, err);
}

static void release(struct keeper *k, struct claim *c, struct entry *e, bool failed)
{
    if (failed && e->pidfd < 0) { /* no process: nothing to wait for */
        if (c->control >= 0)
            control_remove(e->id);
        (void)cgroup_destroy(&c->cgroup);
        claims_drop(k->ranges, e->range);
        if (c->driver.kind && c->control >= 0)
            uppers_drop(k, e->id, upper_kind_name(c->driver.kind));
        trust_unuse(e->id);
        journal_remove(k->journal, e->id);
    }
    cgroup_close(&c->cgroup);
    idrange_release(&c->range); /* init keeps it mapped, keeper holds it besides */
    netns_close(&c->net);       /* from now on it lives as long as init and egress hold it */
    root_close(&c->root);
    upper_close(&c->upper);
    volumes_close(&c->volumes);
    const int fds[] = {c->trust, c->control, c->oom};
    for (size_t i = 0; i < ARRAY_LEN(fds); i++)
        if (fds[i] >= 0)
            (void)close(fds[i]);
}

/* Takes a network namespace from the pool. 0: none is ready yet. */
static int take_network(struct keeper *k, struct claim *c, struct err *err)
{
    int r = pool_take_netns(k, &c->net, err);
    if (r >= 0 || !(c->ask->flags & KEEPER_BEST_EFFORT))
        return r;
    create_note_degraded(c, "network: loopback only, see `hutch doctor`");
    return 1;
}

static enum tier_started container_start(struct keeper *k, struct entry *e, const struct keeper_create *ask,
                                         struct err *err)
{
    struct claim c = {
        .ask = ask, .range = {.fd = -1}, .upper = UPPER_INIT, .trust = -1, .control = -1, .oom = -1, .net = NETNS_INIT};
    int r = take_network(k, &c, err);
    if (r == 0)
        return TIER_LATER;
    e->net = c.net.ns >= 0;
    fill_in(k, &c);
    r = r < 0 ? -1 : claim_all(k, &c, e, err);
    memcpy(e->degraded, c.degraded, sizeof e->degraded);
    release(k, &c, e, r < 0);
    return r == 0 ? TIER_STARTED : c.unready ? TIER_UNREADY : TIER_FAILED;
}

/* --- life --------------------------------------------------------------------------------------------------------- */

static void container_adopt(struct keeper *k, struct entry *e, const struct journal_record *r)
{
    e->pidfd = adopt_pidfd(r, k->common->boot);
    if (e->range && k->ranges >= 0)
        (void)claims_hold(k->ranges, NULL, e->range);
}

static int container_freeze(const struct keeper *k, const struct journal_record *r, enum tier_freezing what,
                            struct err *err)
{
    struct cgroup cg = CGROUP_INIT;
    if (!r->cgroup[0])
        return err_set(err, ERR_HOST, 0, "sandboxes cannot be paused here: they have no cgroup with a freezer%s%s",
                       k->common->cgroups.why[0] ? "; " : "", k->common->cgroups.why);
    if (cgroup_load(r->cgroup, &cg, err) < 0)
        return -1;
    int state = what == TIER_LOOK ? cgroup_frozen(&cg) : cgroup_freeze_ask(&cg, what == TIER_STOP, err);
    if (state < 0 && what == TIER_LOOK)
        (void)err_set(err, ERR_INTERNAL, errno, "the state of the freezer cannot be read");
    cgroup_close(&cg);
    return state;
}

/* Kills everything in the cgroups of a record, paused or not. */
static void container_signal_groups(const struct cgroup *cg)
{
    for (unsigned i = 0; i < cg->nleaf; i++) {
        const struct cgroup_leaf *l = &cg->leaf[i];
        /* Lift the CPU quota and thaw: dying takes processor time, and a frozen process does not die. */
        if (l->has & CGROUP_CPU)
            (void)fd_put(l->fd, l->v2 ? "cpu.max" : "cpu.cfs_quota_us", l->v2 ? "max" : "-1");
        if (l->has & CGROUP_CORE)
            (void)fd_put(l->fd, "cgroup.kill", "1");
        if (l->has & CGROUP_FREEZER)
            (void)fd_put(l->fd, l->v2 ? "cgroup.freeze" : "freezer.state", l->v2 ? "0" : "THAWED");
    }
}

static bool container_kill(int pidfd, const struct journal_record *r, bool remove)
{
    struct cgroup cg = CGROUP_INIT;
    struct err err = {0};
    bool left = !remove;
    if (pidfd >= 0)
        (void)syscall(SYS_pidfd_send_signal, pidfd, SIGKILL, NULL, 0);
    if (!r || !r->cgroup[0] || cgroup_load(r->cgroup, &cg, &err) < 0)
        return true;
    for (unsigned i = cg.nleaf; remove && i-- > 0;)
        left |= cgroup_rmdir(cg.leaf[i].dir) < 0;
    if (left)
        container_signal_groups(&cg);
    cgroup_close(&cg);
    return !left;
}

/* init is not trusted: the two descriptors must be the ones that keeper recorded before init existed. */
static int container_network(const struct entry *e, const struct journal_record *r, int ret[2])
{
    _cleanup_close_ int tcp = (int)syscall(SYS_pidfd_getfd, e->pidfd, INIT_FD_TCP, 0);
    _cleanup_close_ int udp = tcp < 0 ? -1 : (int)syscall(SYS_pidfd_getfd, e->pidfd, INIT_FD_UDP, 0);
    if (udp < 0)
        return -1;
    if (!netns_is_tcp(tcp, r->ns_cookie, r->tcp_cookie) || !netns_is_udp(udp, r->ns_cookie, r->udp_cookie)) {
        errno = EBADMSG;
        return -1;
    }
    ret[0] = TAKE_FD(tcp);
    ret[1] = TAKE_FD(udp);
    return 0;
}

/* --- usage -------------------------------------------------------------------------------------------------------- */

static void from_counters(const struct cgroup *cg, struct keeper_usage *u)
{
    struct cgroup_stat s = {0};
    cgroup_stat(cg, &s);
    u->cpu_user_us = s.user_us;
    u->cpu_system_us = s.system_us;
    u->memory_peak = s.memory_peak;
    u->pids_peak = s.pids_peak;
    u->oom_kills = s.oom_kills;
    u->throttled_us = s.throttled_us;
    u->have |= (s.have & CGROUP_HAVE_CPU_TIME ? HAVE_CPU_USER | HAVE_CPU_SYSTEM : 0U) |
               (s.have & CGROUP_HAVE_MEMORY_PEAK ? HAVE_MEMORY_PEAK : 0U) |
               (s.have & CGROUP_HAVE_PIDS_PEAK ? HAVE_PIDS_PEAK : 0U) |
               (s.have & CGROUP_HAVE_OOM_KILLS ? HAVE_OOM_KILLS : 0U) |
               (s.have & CGROUP_HAVE_THROTTLED ? HAVE_THROTTLED : 0U);
}

static void from_now(const struct cgroup *cg, struct keeper_usage *u)
{
    for (unsigned i = 0; i < cg->nleaf; i++) {
        const struct cgroup_leaf *l = &cg->leaf[i];
        if ((l->has & CGROUP_MEMORY) &&
            fd_read_u64(l->fd, l->v2 ? "memory.current" : "memory.usage_in_bytes", &u->memory) == 0)
            u->have |= HAVE_MEMORY;
        if ((l->has & CGROUP_PIDS) && fd_read_u64(l->fd, "pids.current", &u->pids) == 0)
            u->have |= HAVE_PIDS;
    }
}

/* Whether the sandbox has the file system of its upper layer for itself. Records without a driver did, and so did those of
 * sandboxes that were made when a writable layer could be an image. */
static bool usage_is_whole_fs(const struct journal_record *r)
{
    return !r->driver[0] || strcmp(r->driver, upper_kind_name(UPPER_TMPFS)) == 0 ||
           strcmp(r->driver, upper_kind_name(UPPER_IMAGE)) == 0;
}

/* Reads only places that we made: the root overlay reports its upper layer, and /dev is the wall's and read-only. */
static void from_disk(const struct keeper *k, const struct journal_record *r, struct keeper_usage *u)
{
    char path[64];
    struct statfs fs;
    struct upper_usage used;
    bool host = strcmp(r->template, "host") == 0;
    if (!host && !usage_is_whole_fs(r)) {
        if (uppers_usage(k->common, r, &used)) {
            u->disk_used = used.used;
            u->inodes_used = used.inodes;
            u->have |= HAVE_DISK_USED | (used.inodes ? HAVE_INODES_USED : 0U);
        }
        return;
    }
    (void)snprintf(path, sizeof path, "/proc/%u/root%s", r->pid, host ? "/dev/shm" : "");
    if (r->pid == 0 || statfs(path, &fs) < 0)
        return;
    u->disk_used = (uint64_t)(fs.f_blocks - fs.f_bfree) * (uint64_t)fs.f_bsize;
    u->inodes_used = fs.f_files - fs.f_ffree;
    u->have |= HAVE_DISK_USED | HAVE_INODES_USED;
}

static void container_usage(const struct keeper *k, const struct journal_record *r, bool alive,
                            struct keeper_usage *ret)
{
    struct cgroup cg = CGROUP_INIT;
    struct err err = {0};
    if (r->cgroup[0] && cgroup_load(r->cgroup, &cg, &err) == 0) {
        from_counters(&cg, ret);
        if (alive)
            from_now(&cg, ret);
        cgroup_close(&cg);
    }
    if (alive)
        from_disk(k, r, ret);
}

/* --- single commands ---------------------------------------------------------------------------------------------- */

static int container_limit(const struct keeper *k, const struct journal_record *r, uint64_t number, uint64_t memory,
                           struct cgroup_sub *ret, struct err *err)
{
    const struct cgroup_info *info = &k->common->cgroups;
    struct cgroup cg = CGROUP_INIT;
    if (r->cgroup[0] && cgroup_load(r->cgroup, &cg, err) < 0)
        return -1;
    int made = cgroup_sub_make(&cg, number, memory, ret, err);
    cgroup_close(&cg);
    if (made < 0 && err->code == ERR_HOST && !info->can_memory && info->why[0])
        (void)err_set(err, ERR_HOST, 0, "%s", info->why);
    return made < 0 ? err_wrap(err, "the memory of one command cannot be limited") : 0;
}

static unsigned container_sweep(const struct journal_record *r)
{
    struct cgroup cg = CGROUP_INIT;
    struct err ignored = {0};
    if (!r->cgroup[0] || cgroup_load(r->cgroup, &cg, &ignored) < 0)
        return 0;
    unsigned left = cgroup_sub_sweep(&cg);
    cgroup_close(&cg);
    return left;
}

const struct tier tier_container = {
    .name = "container",
    .start = container_start,
    .adopt = container_adopt,
    .bind = NULL,      /* front binds init itself, over RUN/ID.sock */
    .dial_init = NULL, /* front connects to RUN/ID.sock, which keeper makes in start */
    .freeze = container_freeze,
    .kill = container_kill,
    .usage = container_usage,
    .network = container_network,
    .capture = NULL, /* a job of the layer store copies its writable layer; nothing captures its processes */
    .restore = NULL, /* is a start whose template is a stack */
    .resize = NULL,  /* limits last as long as the sandbox */
    .limit = container_limit,
    .sweep = container_sweep,
};
