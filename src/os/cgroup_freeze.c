/* cgroup_freeze.c - stops and resumes everything in a leaf.
 *
 * v2 says in cgroup.events when the last process has stopped. v1 has to be polled: the state FREEZING becomes FROZEN
 * only on a read after the last process has stopped.
 */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/fd.h"
#include "os/cgroup-int.h"

/* v1 sends no event when all processes have stopped, which takes some tenths of a millisecond: poll after 50 us, 100,
 * 200 … */
enum { AWAIT_MAX_NS = 1000000 };

uint64_t cgroup_now_ms(void)
{
    struct timespec ts;
    (void)clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000 + (uint64_t)ts.tv_nsec / 1000000;
}

static const char *value_of(const struct cgroup_leaf *l, bool on)
{
    return l->v2 ? (on ? "1" : "0") : (on ? "FROZEN" : "THAWED");
}

int cgroup_freeze_ask(const struct cgroup *cg, bool on, struct err *err)
{
    const struct cgroup_leaf *l = cgroup_leaf_with(cg, CGROUP_FREEZER);
    if (!l)
        return err_set(err, ERR_HOST, 0, "cannot freeze: the sandbox has no cgroup with a freezer");
    const char *file = l->v2 ? "cgroup.freeze" : "freezer.state";
    if (fd_put(l->fd, file, value_of(l, on)) < 0)
        return err_set(err, ERR_INTERNAL, errno, "cannot write %s to %s/%s", value_of(l, on), l->dir, file);
    return 0;
}

/* 1 if the leaf's state is `on`. */
static int state_is(const struct cgroup_leaf *l, bool on)
{
    if (l->v2) {
        _cleanup_close_ int fd = openat(l->fd, "cgroup.events", O_RDONLY | O_CLOEXEC);
        int v = fd < 0 ? -1 : cgroup_event_value(fd, "frozen");
        if (fd >= 0 && v < 0)
            errno = ENODATA;
        return v < 0 ? -1 : v == on;
    }
    _cleanup_buf_ struct buf b = {0};
    if (fd_read_file(l->fd, "freezer.state", 64, &b) < 0)
        return -1;
    return strncmp(buf_str(&b), value_of(l, on), strlen(value_of(l, on))) == 0;
}

int cgroup_frozen(const struct cgroup *cg)
{
    const struct cgroup_leaf *l = cgroup_leaf_with(cg, CGROUP_FREEZER);
    if (!l) {
        errno = ENOENT;
        return -1;
    }
    return state_is(l, true);
}

static int await_v1(const struct cgroup_leaf *l, bool on, uint64_t deadline)
{
    for (long pause_ns = 50000;; pause_ns = pause_ns * 2 < AWAIT_MAX_NS ? pause_ns * 2 : AWAIT_MAX_NS) {
        int r = state_is(l, on);
        if (r != 0 || cgroup_now_ms() >= deadline)
            return r;
        (void)nanosleep(&(struct timespec){.tv_nsec = pause_ns}, NULL);
    }
}

int cgroup_freeze(const struct cgroup *cg, bool on, uint64_t deadline_ms, struct err *err)
{
    uint64_t deadline = cgroup_now_ms() + deadline_ms;
    if (cgroup_freeze_ask(cg, on, err) < 0)
        return -1;
    const struct cgroup_leaf *l = cgroup_leaf_with(cg, CGROUP_FREEZER);
    int r = l->v2 ? cgroup_await_event(l, "frozen", on, deadline) : await_v1(l, on, deadline);
    if (r < 0)
        return err_set(err, ERR_INTERNAL, errno, "cannot read the freezer state of %s", l->dir);
    if (r == 0)
        return err_set(err, ERR_INTERNAL, ETIMEDOUT, "%s was not %s within %llu ms", l->dir, on ? "frozen" : "thawed",
                       (unsigned long long)deadline_ms);
    return 0;
}
