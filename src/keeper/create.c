/* create.c - from a request to a parked sandbox. Nothing here waits: the child tells over its sync socket when it is ready. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "keeper/keeper-int.h"
#include "os/landlock.h"

/* What a create has taken so far and gives back when it fails. */
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
    bool unready; /* it failed because an image must be made or checked, or is somebody else's at the moment */
    char degraded[200];
};

static bool is_host(const struct claim *c) { return strcmp(c->full.template, "host") == 0; }

static void degrade(struct claim *c, const char *what)
{
    size_t n = strlen(c->degraded);
    (void)snprintf(c->degraded + n, sizeof c->degraded - n, "%s%s", n ? "; " : "", what);
}

static int take_range(const struct keeper *k, struct claim *c, struct err *err)
{
    if (k->common->world.rootless) {
        degrade(c, "ids: the range of /etc/subuid is shared by all sandboxes of this user");
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

/* A default that cannot be enforced is dropped and named; so is a wish, and with best effort everything; any other limit that
 * was asked for is an error. */
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

/* Whoever tidies up may have removed the empty group around all sandboxes. */
static int make_groups(const struct keeper *k, const struct cgroup_limits *want, struct cgroup *ret, struct err *err)
{
    struct keeper_common *m = k->common;
    if (cgroup_create(&m->cgroups, want, CGROUP_ACCOUNT | CGROUP_KILL | CGROUP_JOURNALLED, ret, err) == 0)
        return 0;
    if (err->eno != ENOENT)
        return -1;
    m->cgroups = m->cgroups_around;
    (void)cgroup_group(&m->cgroups, KEEPER_GROUP);
    return cgroup_create(&m->cgroups, want, CGROUP_ACCOUNT | CGROUP_KILL | CGROUP_JOURNALLED, ret, err);
}

static int take_cgroup(const struct keeper *k, struct claim *c, struct err *err)
{
    const struct cgroup_info *info = &k->common->cgroups;
    struct cgroup_limits want = {.cpu_milli = c->full.cpu_milli, .memory = c->full.memory, .pids = c->full.pids};
    int cpu = can_limit(c, info->can_cpu, c->ask->cpu_milli, "processor time", info, err);
    int memory = can_limit(c, info->can_memory, c->ask->memory, "memory", info, err);
    if (cpu < 0 || memory < 0)
        return -1;
    if (!cpu) {
        want.cpu_milli = 0;
        degrade(c, "cpu: not limited");
    }
    if (!memory) {
        want.memory = 0;
        degrade(c, "memory: not limited");
    }
    if (!info->can_pids) {
        want.pids = 0;
        degrade(c, "pids: by rlimit, shared");
    } else {
        c->full.pids = 0; /* the cgroup counts what it refuses, an rlimit of the same size would be silent */
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
    if (is_host(c)) {
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
    degrade(c, "disk: not limited");
    return 0;
}

static int write_record(const struct keeper *k, const struct claim *c, struct err *err)
{
    struct journal_record r = {.state = JOURNAL_STARTING,
                               .flags = c->full.flags,
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
        (void)snprintf(r.quota, sizeof r.quota, "%s", upper_quota_name(c->driver.quota));
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
    r.upper_dev = e->box.upper_dev;
    r.upper_ino = e->box.upper_ino;
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
    static const int network[] = {WALL_BOX_TCP, WALL_BOX_UDP}, upper = WALL_BOX_UPPER;
    const struct keeper_common *m = k->common;
    bool strict = c->full.flags & KEEPER_STRICT, host = is_host(c);
    a = (struct init_args){
        .listener = WALL_BOX_CONTROL,
        .sync = WALL_BOX_SYNC,
        .oom = c->oom >= 0 ? WALL_BOX_OOM : -1,
        .score = WALL_BOX_SCORE,
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
    struct wall_box_spec spec = {
        .world = &k->common->world,
        .layers = c->root.layer,
        .nlayers = c->root.n,
        .trust = c->trust,
        .upper = c->upper.root,
        .upper_mounted = c->upper.kind == UPPER_TMPFS || c->upper.kind == UPPER_IMAGE,
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
    if (wall_box_start(&spec, &e->box, err) < 0)
        return -1;
    setup_tie(); /* changing the uid for the clone untied us from the supervisor */
    e->pid = e->box.pid;
    e->pidfd = e->box.pidfd;
    e->child = true;
    if (record_pid(k, e, err) < 0 || keeper_watch(k, e->box.sync, EPOLLIN, EVENT_SYNC, e->gen, entry_index(k, e)) < 0 ||
        keeper_watch(k, e->pidfd, EPOLLIN, EVENT_PIDFD, e->gen, entry_index(k, e)) < 0)
        return err->code ? -1 : err_set(err, ERR_SETUP, errno, "watch the new sandbox");
    return 0;
}

static enum keeper_error error_of(const struct err *err)
{
    switch (err->code) {
    case ERR_USAGE:
        return KEEPER_BAD_REQUEST;
    case ERR_POLICY:
        return KEEPER_NO_TEMPLATE;
    case ERR_HOST:
        return KEEPER_HOST;
    case ERR_LIMIT:
        return KEEPER_CAPACITY;
    default:
        return err->eno == EMFILE || err->eno == ENFILE || err->eno == ENOMEM ? KEEPER_CAPACITY : KEEPER_FAILED;
    }
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
        degrade(c, "certificates: not added to bundles of the template above 1 MiB (4 MiB in all)");
    return r;
}

/* Takes everything and starts the child. On failure nothing is left but what end.c takes away for an entry with a pid. */
static int claim_all(struct keeper *k, struct claim *c, struct entry *e, struct err *err)
{
    if (!k->common->landlock) {
        if (!(c->ask->flags & KEEPER_BEST_EFFORT))
            return err_set(err, ERR_HOST, 0, "this kernel has no Landlock (ABI %d or newer)", LANDLOCK_ABI_FLOOR);
        degrade(c, "landlock: not in this kernel");
    }
    if (choose_driver(k, c, err) < 0 || take_range(k, c, err) < 0)
        return -1;
    e->range = c->range.fd >= 0 ? c->range.base : 0;
    if (take_cgroup(k, c, err) < 0 || (c->control = control_make(k, e->id, err)) < 0 || write_record(k, c, err) < 0)
        return -1;
    /* From here on the record names the template: whoever looks for layers that nobody uses finds these in use. */
    if (root_open(k, c->full.template, c->full.flags & KEEPER_BUILD, &c->root, err) < 0 ||
        (c->root.n > 0 && take_trust(k, c, e->id, err) < 0))
        return -1;
    if ((c->root.n > 0 && uppers_take(k, &c->driver, &c->full, &c->upper, err) < 0) ||
        volumes_open(k, &c->full, is_host(c), &c->volumes, err) < 0) {
        c->unready = err->eno == EAGAIN; /* to clone that means something else: no more processes */
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

/* What is said of one that lives. */
static void describe(const struct entry *e, struct keeper_reply *r)
{
    r->init_pid = (uint32_t)e->pid;
    (void)snprintf(r->tier, sizeof r->tier, "%s", e->own_root ? "container" : "process");
    memcpy(r->degraded, e->degraded, sizeof r->degraded);
    memcpy(r->driver, e->driver, sizeof r->driver);
    memcpy(r->quota, e->quota, sizeof r->quota);
}

static void answer_known(struct keeper *k, struct entry *e, const struct waiter *w)
{
    struct keeper_reply r = {.error = KEEPER_EXISTS};
    if (e->life == LIFE_STARTING) { /* asked again after a new connection: the answer goes there */
        e->creator = *w;
        return;
    }
    if (e->life != LIFE_LIVE) {
        r.error = KEEPER_FAILED;
        (void)snprintf(r.text, sizeof r.text, "a sandbox with this id has ended; ids are used once");
    } else {
        describe(e, &r);
    }
    asker_answer(k, w, &r);
}

static void later(struct keeper *k, struct entry *e, const struct keeper_create *ask)
{
    e->waiting = true;
    k->pending[k->npending++] = (struct pending){.index = entry_index(k, e), .ask = *ask};
    pool_watch(k);
    keeper_wake_at(k, entry_start_end(e));
}

void create_forget(struct keeper *k, struct entry *e)
{
    uint32_t i = 0;
    e->waiting = false;
    if (e->checking)
        checks_forget(k, e);
    while (i < k->npending && k->pending[i].index != entry_index(k, e))
        i++;
    if (i == k->npending)
        return;
    k->npending--;
    memmove(&k->pending[i], &k->pending[i + 1], (k->npending - i) * sizeof k->pending[0]);
    pool_watch(k);
}

/* 0: there is none yet. */
static int take_network(struct keeper *k, struct claim *c, struct err *err)
{
    int r = pool_take(k, &c->net, err);
    if (r >= 0 || !(c->ask->flags & KEEPER_BEST_EFFORT))
        return r;
    degrade(c, "network: loopback only, see `hutch doctor`");
    return 1;
}

static void fail_create(struct keeper *k, struct entry *e, const struct err *err)
{
    e->failure_code = error_of(err);
    (void)snprintf(e->failure, sizeof e->failure, "%.*s", (int)sizeof e->failure - 1, err->msg);
    if (e->pidfd >= 0) {
        end_begin(k, e, KEEPER_DIED_KILLED);
        return;
    }
    checks_drop_upper(k, e);
    struct keeper_reply reply = {.error = e->failure_code};
    memcpy(reply.text, e->failure, sizeof reply.text);
    asker_answer(k, &e->creator, &reply);
    entry_free(k, e);
}

/* False: too many wait for that. */
static bool check_first(struct keeper *k, struct entry *e, const struct keeper_create *ask)
{
    if (!checks_begin(k, e, ask))
        return false;
    e->waiting = true;
    return true;
}

/* False: it has to wait. */
static bool go_on(struct keeper *k, struct entry *e, const struct keeper_create *ask)
{
    struct claim c = {
        .ask = ask, .range = {.fd = -1}, .upper = UPPER_INIT, .trust = -1, .control = -1, .oom = -1, .net = NETNS_INIT};
    struct err err = {0};
    int r = take_network(k, &c, &err);
    if (r == 0)
        return false;
    e->net = c.net.ns >= 0;
    fill_in(k, &c);
    r = r < 0 ? -1 : claim_all(k, &c, e, &err);
    memcpy(e->degraded, c.degraded, sizeof e->degraded);
    release(k, &c, e, r < 0);
    if (r == 0) {
        keeper_wake_at(k, entry_start_end(e));
        return true;
    }
    /* Since we looked, an image is no longer ready. */
    if (c.unready && e->checked < KEEPER_CHECK_ROUNDS && check_first(k, e, ask))
        return true;
    fail_create(k, e, &err);
    return true;
}

void create_resume(struct keeper *k)
{
    while (k->npending > 0) {
        struct pending p = k->pending[0];
        struct entry *e = &k->entries[p.index];
        create_forget(k, e); /* before: it may have to wait for a check next, which is not to be forgotten */
        if (go_on(k, e, &p.ask))
            continue;
        memmove(&k->pending[1], &k->pending[0], k->npending++ * sizeof k->pending[0]);
        k->pending[0] = p;
        e->waiting = true;
        pool_watch(k);
        return;
    }
}

void create_begin(struct keeper *k, const struct keeper_create *ask, const struct waiter *w)
{
    struct entry *e = entry_find(k, ask->id);
    if (e) {
        answer_known(k, e, w);
        return;
    }
    if (k->nlive + k->nstarting + k->nending >= k->config->max_sandboxes || k->npending >= KEEPER_STARTING_MAX ||
        !(e = entry_new(k, ask->id))) {
        asker_refuse(k, w, KEEPER_CAPACITY, "this node runs as many sandboxes as it may");
        return;
    }
    entry_set(k, e, LIFE_STARTING);
    e->creator = *w;
    e->deadline_ms = ask->deadline_ms;
    e->own_root = strcmp(ask->template, "host") != 0;
    if (checks_needed(k, ask)) {
        struct err full = {0};
        if (!check_first(k, e, ask)) {
            (void)err_set(&full, ERR_LIMIT, 0,
                          "too many sandboxes wait for images that are made, checked or resized; try again");
            fail_create(k, e, &full);
        }
        return;
    }
    if (k->npending > 0 || !go_on(k, e, ask))
        later(k, e, ask);
}

void create_checked(struct keeper *k, struct entry *e, const struct keeper_create *ask, const struct err *err)
{
    e->waiting = false;
    if (err)
        fail_create(k, e, err);
    else if (k->npending > 0 || !go_on(k, e, ask))
        later(k, e, ask);
}

/* What init keeps for the keepers to come goes with the commit. */
static int send_commit(const struct keeper *k, const struct entry *e, const struct journal_record *r, struct err *err)
{
    unsigned char go = INIT_SYNC_COMMIT;
    _cleanup_close_ int life = keepsake_make(k, r, err);
    if (life < 0)
        return -1;
    const int fds[] = {life, e->box.sync};
    if (fcntl(e->box.sync, F_SETFL, O_NONBLOCK) < 0 || fd_send(e->box.sync, &go, 1, fds, ARRAY_LEN(fds)) < 0)
        return err_set(err, ERR_SETUP, errno, "commit the sandbox");
    return 0;
}

/* One whose creator is gone is in no answer, and not in a list that the next client was given before: nobody knows it. */
static int commit(struct keeper *k, struct entry *e, struct err *err)
{
    struct journal_record r;
    if (!asker_waits(k, &e->creator))
        return err_set(err, ERR_SETUP, 0, "whoever asked for the sandbox is gone");
    if (journal_read(k->journal, e->id, &r) < 0)
        return err_set(err, ERR_SETUP, errno, "read the journal record of %s", e->id);
    r.state = JOURNAL_LIVE;
    if (send_commit(k, e, &r, err) < 0)
        return -1;
    return journal_update(k->journal, &r, err);
}

/* The sync socket has something, or its time is over. */
void create_sync(struct keeper *k, struct entry *e)
{
    unsigned char said = 0;
    struct err err = {0};
    ssize_t n = e->waiting ? 0 : recv(e->box.sync, &said, 1, MSG_DONTWAIT);
    int r = -1;
    if (e->checking) {
        (void)err_set(&err, ERR_SETUP, 0,
                      "an image is made, checked or resized, which has taken %d s and goes on; try again later",
                      KEEPER_CHECK_MS / 1000);
    } else if (e->waiting) {
        (void)err_set(&err, ERR_SETUP, 0, "there was no network namespace for it within %d s", KEEPER_START_MS / 1000);
    } else if (n < 0 && errno == EAGAIN) {
        if (keeper_now_ms() < entry_start_end(e))
            return;
        const char *stage = wall_stage_name((enum wall_stage)e->box.shared->stage);
        (void)err_set(&err, ERR_SETUP, 0, "the sandbox was not ready within %d s; it stands at stage %s",
                      KEEPER_START_MS / 1000, stage);
    } else if (n == 1 && said == INIT_SYNC_READY) {
        r = commit(k, e, &err);
    } else {
        (void)wall_box_why(&e->box, &err);
    }
    keeper_settle(k, e);
    if (r < 0) {
        e->failure_code = error_of(&err);
        (void)snprintf(e->failure, sizeof e->failure, "%.*s", (int)sizeof e->failure - 1, err.msg);
        end_begin(k, e, KEEPER_DIED_KILLED);
        return;
    }
    struct waiter w = e->creator;
    e->creator = (struct waiter){0};
    entry_set(k, e, LIFE_LIVE);
    keeper_wake_at(k, e->deadline_ms);
    struct keeper_reply reply = {.error = KEEPER_OK};
    describe(e, &reply);
    asker_answer(k, &w, &reply);
    attach_live(k, e);
}
