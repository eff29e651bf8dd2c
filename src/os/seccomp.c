#include "os/seccomp.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Newer than the headers of Debian 12. */
#ifndef SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV
#define SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV (1UL << 5)
#endif
#ifndef SECCOMP_IOCTL_NOTIF_SET_FLAGS
#define SECCOMP_IOCTL_NOTIF_SET_FLAGS SECCOMP_IOW(4, __u64)
#endif
enum { SYNC_WAKE_UP = 1 << 0 /* SECCOMP_USER_NOTIF_FD_SYNC_WAKE_UP */ };

static int sys_seccomp(unsigned op, unsigned long flags, void *args)
{
    return (int)syscall(SYS_seccomp, op, flags, args);
}

int seccomp_load(const struct sock_filter *insns, size_t n, unsigned flags, int *ret_listener, struct err *err)
{
    if (n == 0 || n > BPF_MAXINSNS)
        return err_set(err, ERR_INTERNAL, 0, "a seccomp filter has 1 to %d instructions, not %zu", BPF_MAXINSNS, n);
    struct sock_fprog prog = {(unsigned short)n, (struct sock_filter *)insns};
    unsigned long base = flags & SECCOMP_LOAD_LISTENER ? SECCOMP_FILTER_FLAG_NEW_LISTENER : 0UL;
    unsigned long full = base ? base | SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV : 0UL;
    int r = sys_seccomp(SECCOMP_SET_MODE_FILTER, full, &prog);
    if (r < 0 && errno == EINVAL && full != base)
        r = sys_seccomp(SECCOMP_SET_MODE_FILTER, base, &prog);
    if (r < 0 && errno == ENOSYS)
        return err_set(err, ERR_HOST, errno, "this kernel has no seccomp filters (CONFIG_SECCOMP_FILTER)");
    if (r < 0 && errno == EBUSY)
        return err_set(err, ERR_HOST, errno,
                       "cannot load the seccomp filter: another sandbox around this one already listens");
    if (r < 0)
        return err_set(err, ERR_SETUP, errno, "cannot load a seccomp filter of %zu instructions", n);
    if (base)
        *ret_listener = r;
    return 0;
}

int seccomp_sync_wake(int listener)
{
    return ioctl(listener, SECCOMP_IOCTL_NOTIF_SET_FLAGS, (unsigned long)SYNC_WAKE_UP) == 0;
}

/* The kernel writes its own idea of the structure, which may grow. */
union notif_room {
    struct seccomp_notif n;
    unsigned char room[512];
};

int seccomp_receive(int listener, struct seccomp_notif *ret)
{
    union notif_room u;
    memset(&u, 0, sizeof u); /* anything else is EINVAL */
    if (ioctl(listener, SECCOMP_IOCTL_NOTIF_RECV, &u) == 0) {
        *ret = u.n;
        return 1;
    }
    return errno == ENOENT || errno == EINTR ? 0 : -1;
}

static int seccomp_reply(int listener, uint64_t id, int error, uint32_t flags)
{
    union {
        struct seccomp_notif_resp r;
        unsigned char room[128];
    } u;
    memset(&u, 0, sizeof u);
    u.r.id = id;
    u.r.error = error;
    u.r.flags = flags;
    int r;
    do
        r = ioctl(listener, SECCOMP_IOCTL_NOTIF_SEND, &u);
    while (r < 0 && errno == EINTR);
    return r == 0 || errno == ENOENT ? 0 : -1;
}

int seccomp_refuse(int listener, uint64_t id, int eno) { return seccomp_reply(listener, id, -eno, 0); }

int seccomp_give(int listener, uint64_t id, int fd, bool cloexec)
{
    struct seccomp_notif_addfd a = {
        .id = id, .flags = SECCOMP_ADDFD_FLAG_SEND, .srcfd = (uint32_t)fd, .newfd_flags = cloexec ? O_CLOEXEC : 0};
    int r;
    do
        r = ioctl(listener, SECCOMP_IOCTL_NOTIF_ADDFD, &a);
    while (r < 0 && errno == EINTR);
    return r >= 0 || errno == ENOENT || errno == EINPROGRESS ? 0 : -1;
}

int seccomp_continue(int listener, uint64_t id)
{
    return seccomp_reply(listener, id, 0, SECCOMP_USER_NOTIF_FLAG_CONTINUE);
}

bool seccomp_id_valid(int listener, uint64_t id) { return ioctl(listener, SECCOMP_IOCTL_NOTIF_ID_VALID, &id) == 0; }

static bool has_action(uint32_t action) { return sys_seccomp(SECCOMP_GET_ACTION_AVAIL, 0, &action) == 0; }

/* A missing program is EFAULT only after the flags were found good. */
static bool has_flags(unsigned long flags)
{
    return sys_seccomp(SECCOMP_SET_MODE_FILTER, flags, NULL) < 0 && errno == EFAULT;
}

struct seccomp_support seccomp_probe(void)
{
    return (struct seccomp_support){
        .filter = has_flags(0),
        .kill_process = has_action(SECCOMP_RET_KILL_PROCESS),
        .user_notif = has_action(SECCOMP_RET_USER_NOTIF) && has_flags(SECCOMP_FILTER_FLAG_NEW_LISTENER),
        .wait_killable = has_flags(SECCOMP_FILTER_FLAG_NEW_LISTENER | SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV),
    };
}
