/* drop.c - egress gives up the rights it does not need before it reads the first foreign byte, and verifies that it
 * did.
 *
 * It keeps: sockets of the families that it dials with, files below the directory of the audit log, memory, threads.
 */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/fd.h"
#include "base/log.h"
#include "egress/core/egress.h"
#include "os/daemon.h"
#include "os/landlock.h"

/* System calls that egress does not need, besides those that os/daemon.h forbids to front and egress. */
static const int forbidden[] = {SYS_listen, SYS_fork, SYS_vfork, SYS_memfd_secret};

/* NETLINK: the addresses of the machine. */
static const int families[] = {AF_INET, AF_INET6, AF_UNIX, AF_NETLINK};

/* From here on only files of the audit log can be opened. Kernels without Landlock skip this: there only the user and
 * the filter protect files. */
static int forbid_files(int audit_dir, bool *ret_done, struct err *err)
{
    const struct landlock_rule rule = {.fd = audit_dir, .rights = LANDLOCK_WRITE & ~LANDLOCK_ACCESS_FS_EXECUTE};
    *ret_done = landlock_abi() >= LANDLOCK_ABI_FLOOR;
    return *ret_done ? landlock_apply(&rule, audit_dir >= 0 ? 1 : 0, 0, err) : 0;
}

int egress_drop(int audit_dir, struct err *err)
{
    const struct daemon_filter filter = {forbidden, ARRAY_LEN(forbidden), families, ARRAY_LEN(families)};
    _cleanup_buf_ struct buf status = {0};
    bool files = false;
    /* Opened while files can still be opened, read when all restrictions are in force. */
    _cleanup_close_ int fd = open("/proc/self/status", O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return err_set(err, ERR_SETUP, errno, "cannot open /proc/self/status");
    if (daemon_limits(err) < 0)
        return -1;
    if (prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) < 0) /* no reading by processes of the same user */
        return err_set(err, ERR_SETUP, errno, "cannot forbid dumps");
    if (daemon_confine(&filter, err) < 0 || forbid_files(audit_dir, &files, err) < 0)
        return -1;
    char bytes[4096];
    for (ssize_t got; (got = read(fd, bytes, sizeof bytes)) > 0 && status.n < (1 << 16);)
        buf_add(&status, bytes, (size_t)got);
    if (daemon_prove("egress", buf_str(&status), err) < 0)
        return -1;
    if (prctl(PR_GET_DUMPABLE, 0, 0, 0, 0) != 0)
        return err_set(err, ERR_SETUP, 0, "egress is not confined (its memory can be dumped); it does not start");
    struct log_line l;
    if (log_start(&l, LOG_LEVEL_INFO, "no capabilities, no_new_privs, no core files, own system call filter")) {
        log_u64(&l, "uid", geteuid());
        log_u64(&l, "gid", getegid());
        log_str(&l, "files", files ? "only the audit log" : "not restricted: this kernel has no Landlock");
        log_end(&l);
    }
    return 0;
}
