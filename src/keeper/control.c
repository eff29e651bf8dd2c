/* control.c - RUN/ID.sock, where front reaches a sandbox's init. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "keeper/keeper-int.h"

static void control_name(const char *id, char ret[KEEPER_ID_MAX + 8])
{
    (void)snprintf(ret, KEEPER_ID_MAX + 8, "%.*s.sock", KEEPER_ID_MAX - 1, id);
}

/* The name exists only once front alone can connect to it: bound 0600, owner and mode set, then listening. */
int control_make(const struct keeper *k, const char *id, struct err *err)
{
    char name[KEEPER_ID_MAX + 8];
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    gid_t gid = k->config->front_gid;
    control_name(id, name);
    (void)snprintf(addr.sun_path, sizeof addr.sun_path, "/proc/self/fd/%d/%s", KEEPER_FD_RUN, name);
    _cleanup_close_ int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return err_set(err, ERR_SETUP, errno, "set-up failed at control: make its socket");
    (void)unlinkat(KEEPER_FD_RUN, name, 0);
    mode_t before = umask(0177);
    int r = bind(fd, (const struct sockaddr *)&addr, sizeof addr);
    int saved = errno;
    (void)umask(before);
    if (r < 0)
        return err_set(err, ERR_SETUP, saved, "set-up failed at control: bind %s in the run directory", name);
    if ((gid != (gid_t)-1 && (fchownat(KEEPER_FD_RUN, name, (uid_t)-1, gid, AT_SYMLINK_NOFOLLOW) < 0 ||
                              fchmodat(KEEPER_FD_RUN, name, 0660, 0) < 0)) ||
        listen(fd, 64) < 0) {
        (void)err_set(err, ERR_SETUP, errno, "set-up failed at control: open %s to front", name);
        (void)unlinkat(KEEPER_FD_RUN, name, 0);
        return -1;
    }
    return TAKE_FD(fd);
}

void control_remove(const char *id)
{
    char name[KEEPER_ID_MAX + 8];
    control_name(id, name);
    (void)unlinkat(KEEPER_FD_RUN, name, 0);
}

/* The socket over which keeper talks to init; -1 if this init has none: older versions may have any socket at that
 * number. */
static int control_channel(int pidfd)
{
    struct keepsake l;
    if (keepsake_get(pidfd, &l) < 0)
        return -1;
    int domain = 0, type = 0;
    socklen_t n = sizeof domain, m = sizeof type;
    _cleanup_close_ int fd = (int)syscall(SYS_pidfd_getfd, pidfd, INIT_FD_KEEPER, 0);
    if (fd < 0 || getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &n) < 0 || domain != AF_UNIX ||
        getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &m) < 0 || type != SOCK_SEQPACKET)
        return -1;
    return TAKE_FD(fd);
}

/* init shares this open file and may change its flags, so every send uses MSG_DONTWAIT. */
static int control_send(int channel, void *p, size_t n, const int *fds, size_t nfds)
{
    enum { FDS_MAX = 3 };
    union {
        char bytes[CMSG_SPACE(FDS_MAX * sizeof(int))];
        struct cmsghdr align;
    } ctl = {{0}};
    struct iovec iov = {.iov_base = p, .iov_len = n};
    struct msghdr msg = {.msg_iov = &iov,
                         .msg_iovlen = 1,
                         .msg_control = ctl.bytes,
                         .msg_controllen = (socklen_t)CMSG_SPACE(nfds * sizeof *fds)};
    struct cmsghdr *c = CMSG_FIRSTHDR(&msg);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = (socklen_t)CMSG_LEN(nfds * sizeof *fds);
    memcpy(CMSG_DATA(c), fds, nfds * sizeof *fds);
    return sendmsg(channel, &msg, MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)n ? 0 : -1;
}

int control_give_group(const struct entry *e, const struct keeper_limit *q, const struct cgroup_sub *s, struct err *err)
{
    struct init_group m = {.number = q->number, .memory = q->memory};
    const int fds[INIT_GROUP_FDS] = {s->enter, s->events, s->peak};
    _cleanup_close_ int channel = control_channel(e->pidfd);
    m.word[0] = INIT_SYNC_GROUP;
    if (channel < 0)
        return err_set(err, ERR_HOST, 0, "the sandbox's init, of an older version, takes no limits of commands");
    if (control_send(channel, &m, sizeof m, fds, INIT_GROUP_FDS) < 0)
        return err_set(err, ERR_SETUP, errno, "give the sandbox's init the cgroup of a command");
    return 0;
}

int control_restore(const struct keeper *k, const struct entry *e, struct err *err)
{
    char name[KEEPER_ID_MAX + 8];
    control_name(e->id, name);
    if (faccessat(KEEPER_FD_RUN, name, F_OK, AT_SYMLINK_NOFOLLOW) == 0 && keeper_socket_alive(KEEPER_FD_RUN, name))
        return 0;
    _cleanup_close_ int channel = control_channel(e->pidfd);
    if (channel < 0)
        return err_set(err, ERR_SETUP, 0, "its socket was removed, and its init, of an older version, takes no other");
    _cleanup_close_ int listener = control_make(k, e->id, err);
    if (listener < 0)
        return -1;
    /* A paused init takes the listener when it resumes; connections queue in it until then. */
    unsigned char word = INIT_SYNC_LISTENER;
    if (control_send(channel, &word, 1, &listener, 1) == 0)
        return 1;
    (void)err_set(err, ERR_SETUP, errno, "its socket was removed, and its init takes no other");
    control_remove(e->id);
    return -1;
}

bool control_id_of(int pidfd, char ret[KEEPER_ID_MAX])
{
    static const char suffix[] = ".sock";
    struct sockaddr_un addr = {0};
    socklen_t n = sizeof addr;
    _cleanup_close_ int fd = (int)syscall(SYS_pidfd_getfd, pidfd, INIT_FD_LISTENER, 0);
    if (fd < 0 || getsockname(fd, (struct sockaddr *)&addr, &n) < 0 || addr.sun_family != AF_UNIX ||
        n <= sizeof addr.sun_family || addr.sun_path[0] != '/')
        return false;
    addr.sun_path[sizeof addr.sun_path - 1] = '\0';
    const char *name = strrchr(addr.sun_path, '/') + 1;
    size_t len = strlen(name), tail = strlen(suffix);
    if (len <= tail || len - tail >= KEEPER_ID_MAX || strcmp(name + len - tail, suffix) != 0)
        return false;
    memset(ret, 0, KEEPER_ID_MAX);
    memcpy(ret, name, len - tail);
    return keeper_id_valid(ret);
}
