#include "wall/covers.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/mem.h"
#include "base/path.h"
#include "base/text.h"
#include "os/statx.h"
#include "wall/covers-int.h"

uint64_t covers_now_ms(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000U + (uint64_t)t.tv_nsec / 1000000U;
}

/* An op that is a mount on a name of the host, and keeps the command from something. */
static bool is_cover(const struct wall_spec *s, const struct plan_op *op)
{
    layer_set off = s->without;
    if (!op->src)
        return false;
    switch (op->kind) {
    case OP_MASK:
        return !LAYER_OFF(off, MASKS);
    case OP_PROTECT:
        return !LAYER_OFF(off, PROTECT);
    case OP_PIN:
        return !LAYER_OFF(off, PINS);
    case OP_STUB:
        return !LAYER_OFF(off, STUBS);
    case OP_BIND_RO: /* in a writable tree, on itself */
        return s->plan->layers.n == 0 && strcmp(op->src, op->path) == 0;
    default:
        return false;
    }
}

struct covers *covers_new(const struct wall_spec *spec, const struct wall *w)
{
    char path[64];
    bool any = false;
    for (size_t i = 0; i < spec->plan->nops && !any; i++)
        any = is_cover(spec, &spec->plan->ops[i]);
    if (!any || spec->nested || spec->learn)
        return NULL;
    struct covers *c = xcalloc(1, sizeof *c);
    *c = (struct covers){.place = {.spec = spec, .cover_file = -1, .cover_dir = -1}, .wall = w, .notify = -1};
    c->known = xcalloc(spec->plan->nops, sizeof *c->known);
    (void)clock_gettime(CLOCK_REALTIME_COARSE, &c->start); /* the clock that inodes are stamped with */
    (void)snprintf(path, sizeof path, "/proc/%d/ns/user", (int)w->pid);
    c->place.userns = open(path, O_RDONLY | O_CLOEXEC);
    (void)snprintf(path, sizeof path, "/proc/%d/ns/mnt", (int)w->pid);
    c->place.mntns = open(path, O_RDONLY | O_CLOEXEC);
    return c;
}

void covers_take(struct covers *c, int file, int dir)
{
    c->place.cover_file = file;
    c->place.cover_dir = dir;
    c->began_ms = covers_now_ms();
    c->look_ms = c->began_ms + COVERS_LOOK_MS;
}

int covers_wait_ms(const struct covers *c)
{
    uint64_t now = covers_now_ms(), next = c->look_ms;
    if (c->busy_ms && (!next || c->busy_ms < next))
        next = c->busy_ms;
    if (!next)
        return -1;
    return next > now ? (int)(next - now) : 0;
}

/* --- directories --------------------------------------------------------------------------------------------------- */

static void watch_dir(struct covers *c, struct watched *d)
{
    uint32_t mask = IN_CREATE | IN_MOVED_TO | IN_ONLYDIR | IN_DONT_FOLLOW | (d->git ? IN_MODIFY | IN_CLOSE_WRITE : 0U);
    int wd = inotify_add_watch(c->notify, d->path, mask);
    if (d->wd >= 0 && d->wd != wd)
        (void)inotify_rm_watch(c->notify, d->wd);
    if (wd < 0 && (errno == ENOSPC || errno == ENOMEM))
        c->watch_errno = errno;
    d->wd = wd;
}

static struct watched *find_dir(struct covers *c, const char *path)
{
    for (size_t i = c->ndirs; i > 0; i--) /* ops come in groups */
        if (strcmp(c->dirs[i - 1].path, path) == 0)
            return &c->dirs[i - 1];
    return NULL;
}

/* Notes that the last component of path matters, and so does every one above it. */
static void add_name(struct covers *c, const char *path)
{
    _cleanup_free_ char *at = xstrdup(path);
    while (strcmp(at, "/") != 0) {
        _cleanup_free_ char *parent = path_parent(at);
        struct watched *d = find_dir(c, parent);
        bool known = d != NULL;
        if (!known && c->ndirs == COVERS_DIRS_MAX) {
            c->too_many = true;
            return;
        }
        if (!known) {
            MEM_GROW(c->dirs, c->ndirs, c->dirs_cap);
            d = &c->dirs[c->ndirs++];
            *d = (struct watched){.wd = -1, .git = covers_is_git_dir(c, parent)};
            d->path = TAKE_PTR(parent);
            watch_dir(c, d);
        }
        if (!strv_has(&d->names, path_name(at)))
            strv_add(&d->names, path_name(at));
        if (known)
            return;
        char *slash = strrchr(at, '/');
        slash[slash == at] = '\0';
    }
}

/* --- identities ---------------------------------------------------------------------------------------------------- */

static bool same_time(const struct statx_timestamp *a, const struct statx_timestamp *b)
{
    return a->tv_sec == b->tv_sec && a->tv_nsec == b->tv_nsec;
}

/* Whether what is at the op's name is not what was there when this was last asked. Nothing there: no. */
static bool renewed(struct covers *c, size_t i)
{
    const struct plan_op *op = &c->place.spec->plan->ops[i];
    struct identity *was = &c->known[i];
    struct statx st;
    if (statx(AT_FDCWD, op->src, AT_SYMLINK_NOFOLLOW | AT_NO_AUTOMOUNT, STATX_BASIC_STATS | STATX_BTIME, &st) < 0) {
        *was = (struct identity){0};
        return false;
    }
    struct identity is = {.dev = (uint64_t)st.stx_dev_major << 32 | st.stx_dev_minor, .ino = st.stx_ino};
    is.born = st.stx_btime;
    if (!S_ISDIR(st.stx_mode))
        is.changed = st.stx_ctime;
    bool same = is.dev == was->dev && is.ino == was->ino && same_time(&is.born, &was->born) &&
                same_time(&is.changed, &was->changed);
    *was = is;
    return !same;
}

/* The first look: only what has not changed since before the start is known to be what the plan saw. */
bool covers_doubtful(struct covers *c, size_t i)
{
    const struct plan_op *op = &c->place.spec->plan->ops[i];
    struct stat st;
    (void)renewed(c, i);
    if (lstat(op->src, &st) < 0 || (op->kind == OP_STUB && plan_is_stub(&st)))
        return false;
    bool changed = st.st_ctim.tv_sec > c->start.tv_sec ||
                   (st.st_ctim.tv_sec == c->start.tv_sec && st.st_ctim.tv_nsec >= c->start.tv_nsec);
    return changed || st.st_dev != op->dev || st.st_ino != op->ino;
}

/* --- covering again ------------------------------------------------------------------------------------------------ */

static void note(struct covers *c, const struct covers_report *r, uint64_t ms, bool *ret_lost)
{
    struct happened *h = NULL;
    if (r->eno)
        *ret_lost = true;
    for (size_t i = 0; i < c->nhappened && !h; i++)
        if (c->happened[i].op == r->op)
            h = &c->happened[i];
    if (!h && c->nhappened == COVERS_LISTED) {
        c->unlisted++;
        return;
    }
    if (!h) {
        h = &c->happened[c->nhappened++];
        *h = (struct happened){.op = r->op};
    }
    h->times++;
    h->eno = r->eno;
    if (ms > h->longest_ms)
        h->longest_ms = ms;
}

/* Reads what the child has to say until it closes the pipe. 0, or an error number. */
static int listen_to(struct covers *c, int from, uint64_t start, bool *ret_lost)
{
    struct covers_report r;
    for (;;) {
        struct pollfd p = {.fd = from, .events = POLLIN};
        uint64_t spent = covers_now_ms() - start;
        if (spent >= COVERS_CHILD_MS || poll(&p, 1, (int)(COVERS_CHILD_MS - spent)) == 0)
            return ETIMEDOUT;
        ssize_t n = read(from, &r, sizeof r); /* written in one piece */
        if (n < 0 && errno == EINTR)
            continue;
        if (n != sizeof r || r.op >= c->place.spec->plan->nops)
            return n == 0 ? 0 : EIO;
        note(c, &r, covers_now_ms() - start, ret_lost);
    }
}

static void cover_again(struct covers *c, const struct covers_set *set, bool *ret_lost)
{
    int ends[2], eno = 0, status = 0;
    uint64_t start = covers_now_ms();
    if (!set->any)
        return;
    if (pipe2(ends, O_CLOEXEC) < 0) {
        eno = errno;
    } else {
        pid_t pid = fork();
        if (pid == 0)
            covers_inside(&c->place, set, ends[1]);
        eno = pid < 0 ? errno : 0;
        (void)close(ends[1]);
        if (pid > 0)
            eno = listen_to(c, ends[0], start, ret_lost);
        (void)close(ends[0]);
        if (pid > 0 && eno)
            (void)kill(pid, SIGKILL);
        while (pid > 0 && waitpid(pid, &status, 0) < 0 && errno == EINTR) {
        }
        if (!eno && (!WIFEXITED(status) || WEXITSTATUS(status) != 0))
            eno = EIO;
    }
    for (size_t i = 0; eno && i < c->place.spec->plan->nops; i++)
        if (covers_has(set, i)) {
            struct covers_report r = {.op = (uint32_t)i, .eno = eno};
            note(c, &r, 0, ret_lost);
        }
}

/* Everything at or below a path of the host that was renewed: watches on what is there now come first, so that whatever
 * is made in it from here on is seen. */
static void path_renewed(struct covers *c, const char *path, struct covers_set *set)
{
    const struct plan *plan = c->place.spec->plan;
    for (size_t i = 0; i < c->ndirs; i++)
        if (path_under(c->dirs[i].path, path))
            watch_dir(c, &c->dirs[i]);
    for (size_t i = 0; i < plan->nops; i++)
        if (is_cover(c->place.spec, &plan->ops[i]) && path_under(plan->ops[i].src, path) && renewed(c, i))
            covers_add(set, i);
}

static void on_event(struct covers *c, const struct inotify_event *e, struct covers_set *set, bool *ret_lost)
{
    if (e->mask & IN_Q_OVERFLOW)
        path_renewed(c, "/", set);
    if (e->len == 0)
        covers_files_on_event(c, NULL, e, ret_lost);
    for (size_t i = 0; i < c->ndirs; i++) {
        if (c->dirs[i].wd != e->wd)
            continue;
        if (e->mask & IN_IGNORED) {
            c->dirs[i].wd = -1;
        } else if (e->len > 0) {
            covers_files_on_event(c, &c->dirs[i], e, ret_lost);
            if (!(e->mask & (IN_CREATE | IN_MOVED_TO)) || !strv_has(&c->dirs[i].names, e->name))
                continue;
            _cleanup_free_ char *path = path_join(c->dirs[i].path, e->name);
            path_renewed(c, path, set);
        }
    }
}

static void watch(struct covers *c)
{
    const struct plan *plan = c->place.spec->plan;
    c->notify = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
    if (c->notify < 0) {
        c->watch_errno = errno;
        return;
    }
    for (size_t i = 0; i < plan->nops; i++)
        if (is_cover(c->place.spec, &plan->ops[i]))
            add_name(c, plan->ops[i].src);
    covers_files_watch(c);
}

static void read_events(struct covers *c, struct covers_set *set, bool *ret_lost)
{
    char events[16384] __attribute__((aligned(__alignof__(struct inotify_event))));
    ssize_t n = read(c->notify, events, sizeof events);
    for (ssize_t at = 0; at < n;) {
        const struct inotify_event *e = (const struct inotify_event *)(const void *)(events + at);
        on_event(c, e, set, ret_lost);
        at += (ssize_t)(sizeof *e + e->len);
    }
}

/* A host that has no watches left is looked at once a second. */
static void look(struct covers *c, struct covers_set *set)
{
    const struct plan *plan = c->place.spec->plan;
    uint64_t age = covers_now_ms() - c->began_ms;
    c->look_ms = c->began_ms + (2 * age < COVERS_WATCH_MS ? 2 * age : COVERS_WATCH_MS);
    if (age >= COVERS_WATCH_MS && c->watch_errno) {
        c->look_ms = c->began_ms + age + 1000;
    } else if (age >= COVERS_WATCH_MS) {
        watch(c);
        c->look_ms = c->watch_errno ? c->look_ms : 0;
    }
    bool first = !c->looked;
    c->looked = true;
    if (first)
        covers_files_first_look(c);
    for (size_t i = 0; i < plan->nops; i++)
        if (is_cover(c->place.spec, &plan->ops[i]) && (first ? covers_doubtful : renewed)(c, i))
            covers_add(set, i);
}

int covers_turn(struct covers *c, bool *ret_lost)
{
    struct covers_set set = {0};
    *ret_lost = false;
    if (c->notify >= 0)
        read_events(c, &set, ret_lost);
    if (c->look_ms && c->look_ms <= covers_now_ms())
        look(c, &set);
    do {
        struct covers_set asked = {0}, more = {0};
        cover_again(c, &set, ret_lost);
        bool any = covers_files_ask(c, &set, &asked, ret_lost);
        if (any && c->notify >= 0)
            read_events(c, &more, ret_lost);
        if (any)
            covers_files_conclude(c, &asked, ret_lost);
        set = more; /* what came meanwhile */
    } while (set.any && !*ret_lost);
    /* A sandbox that has just ended has no open names, whatever went wrong. */
    struct pollfd p = {.fd = c->wall->pidfd, .events = POLLIN};
    if (*ret_lost && poll(&p, 1, 0) > 0)
        *ret_lost = false;
    return c->notify;
}

/* --- notes --------------------------------------------------------------------------------------------------------- */

static const char *what_it_was(const struct plan_op *op)
{
    return op->kind == OP_MASK || op->hidden ? "a hidden" : op->kind == OP_PIN ? "a pinned" : "a protected";
}

void covers_leave(struct covers *c)
{
    if (!c)
        return;
    if (c->place.userns >= 0)
        (void)close(TAKE_FD(c->place.userns));
    if (c->place.mntns >= 0)
        (void)close(TAKE_FD(c->place.mntns));
}

void covers_notes(const struct covers *c, struct strv *ret)
{
    if (c)
        covers_files_notes(c, ret);
    for (size_t i = 0; c && i < c->nhappened; i++) {
        const struct happened *h = &c->happened[i];
        const struct plan_op *op = &c->place.spec->plan->ops[h->op];
        _cleanup_buf_ struct buf b = {0};
        text_add_safe(&b, op->src, 400);
        buf_addf(&b, ", %s name, was replaced from outside during the run", what_it_was(op));
        if (h->times > 1)
            buf_addf(&b, " %u times", h->times);
        if (h->eno)
            buf_addf(&b, " and could not be covered again (%s)", strerror(h->eno));
        else
            buf_addf(&b, " and covered again within %llu ms of being noticed; in between it was open",
                     (unsigned long long)h->longest_ms + 1);
        strv_add(ret, buf_str(&b));
    }
    if (c && c->unlisted > 0)
        strv_take(ret, xasprintf("%zu more covered names were replaced from outside during the run", c->unlisted));
    if (c && (c->watch_errno || c->too_many))
        strv_take(ret, xasprintf("not every hidden or protected name was watched for replacement from outside: %s",
                                 c->too_many ? "too many directories hold them" : strerror(c->watch_errno)));
}

void covers_free(struct covers *c)
{
    const int fds[] = {c ? c->place.userns : -1, c ? c->place.mntns : -1, c ? c->place.cover_file : -1,
                       c ? c->place.cover_dir : -1, c ? c->notify : -1};
    if (!c)
        return;
    for (size_t i = 0; i < ARRAY_LEN(fds); i++)
        if (fds[i] >= 0)
            (void)close(fds[i]);
    for (size_t i = 0; i < c->ndirs; i++) {
        strv_done(&c->dirs[i].names);
        free(c->dirs[i].path);
    }
    covers_files_free(c);
    free(c->dirs);
    free(c->known);
    free(c);
}
