/* life.c - the agreement between keeper and init: the commit, the deadline at which init ends itself if no keeper does,
 * and a new listener when the name of the old one is gone.
 */
#include <errno.h>
#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/fd.h"
#include "init/init-int.h"

enum {
    LIFE_LOOK_MS = 3600 * 1000, /* sleeps do not count the time that the machine was suspended */
    LIFE_AGAIN_MS = 1000,
};

static uint64_t life_clock_ms(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_BOOTTIME, &t);
    return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

void life_begin(struct init *g) { g->end_ms = UINT64_MAX; }

/* Reads the deadline. False: keeper is writing it at this moment. */
static bool life_read(uint64_t *ret)
{
    struct init_life l;
    if (pread(INIT_FD_LIFE, &l, sizeof l, 0) != sizeof l || l.magic != INIT_LIFE_MAGIC || l.check != ~l.end_ms)
        return false;
    *ret = l.end_ms;
    return true;
}

/* Both descriptors or none. */
static void life_take(struct init *g, const int *fds, size_t n)
{
    if (n == 2 && dup3(fds[0], INIT_FD_LIFE, O_CLOEXEC) >= 0 && dup3(fds[1], INIT_FD_KEEPER, O_CLOEXEC) >= 0) {
        if (!life_read(&g->end_ms))
            g->end_ms = life_clock_ms() + LIFE_AGAIN_MS;
    } else {
        init_unwatch(g, INIT_FD_SYNC);
        (void)close(INIT_FD_SYNC);
        g->listens = false;
    }
    g->committed = true;
}

static void life_take_listener(struct init *g, int fd)
{
    int listening = 0;
    socklen_t n = sizeof listening;
    if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listening, &n) < 0 || !listening)
        return;
    init_unwatch(g, INIT_FD_LISTENER);
    if (dup3(fd, INIT_FD_LISTENER, O_CLOEXEC) < 0 || fcntl(INIT_FD_LISTENER, F_SETFL, O_NONBLOCK) < 0 ||
        init_watch(g, INIT_FD_LISTENER, EPOLLIN, KIND_LISTENER, 0, 0) < 0)
        g->stop = true; /* an unreachable sandbox must not live on */
}

/* Until the commit, the end of the socket ends init. Later there is no end: init holds both sides. */
void life_sync_event(struct init *g)
{
    struct init_group m = {.word = {0}};
    int fds[INIT_GROUP_FDS];
    size_t nfds = INIT_GROUP_FDS;
    if (!g->listens)
        return;
    ssize_t n = fd_recv(INIT_FD_SYNC, &m, sizeof m, fds, &nfds);
    unsigned char byte = m.word[0];
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    nfds = n < 0 ? 0 : nfds;
    if (!g->committed) {
        if (n != 1 || byte != INIT_SYNC_COMMIT)
            _exit(1);
        life_take(g, fds, nfds);
    } else if (n == 1 && byte == INIT_SYNC_LISTENER && nfds == 1) {
        life_take_listener(g, fds[0]);
    } else if (n == sizeof m && byte == INIT_SYNC_GROUP && nfds == INIT_GROUP_FDS && m.number != 0) {
        group_take(g, &m, fds);
        nfds = 0;
    }
    for (size_t i = 0; i < nfds; i++)
        (void)close(fds[i]);
}

/* Reads the deadline again before it acts: keeper may have moved it, also while the sandbox was paused. */
void life_tick(struct init *g)
{
    if (g->end_ms == UINT64_MAX || life_clock_ms() < g->end_ms)
        return;
    if (!life_read(&g->end_ms))
        g->end_ms = life_clock_ms() + LIFE_AGAIN_MS;
    else if (life_clock_ms() >= g->end_ms)
        g->stop = true;
}

uint64_t life_wait_ms(const struct init *g)
{
    if (g->end_ms == UINT64_MAX)
        return UINT64_MAX;
    uint64_t now = life_clock_ms();
    if (now >= g->end_ms)
        return 0;
    return g->end_ms - now > LIFE_LOOK_MS ? LIFE_LOOK_MS : g->end_ms - now + 1;
}
