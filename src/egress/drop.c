/* drop.c - egress gives up what it does not need before it reads the first foreign byte, and looks whether that is true.
 *
 * What is left: sockets of the families that it dials with, files below the directory of the audit log, memory, threads.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/sched.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/fd.h"
#include "base/log.h"
#include "egress/egress.h"
#include "os/caps.h"
#include "os/forbidden.h"
#include "os/landlock.h"
#include "os/seccomp.h"

enum { X32_BIT = 0x40000000, CAPS_FIELDS = 4 };

/* Whoever makes one of these calls from egress is not egress any more. */
static const int forbidden[] = {FORBIDDEN_CALLS, SYS_listen, SYS_fork, SYS_vfork, SYS_memfd_secret};

/* NETLINK: the addresses of the machine. */
static const int families[] = {AF_INET, AF_INET6, AF_UNIX, AF_NETLINK};

#define NAMESPACES \
    (CLONE_NEWNS | CLONE_NEWCGROUP | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNET)

static size_t build_filter(struct sock_filter *f)
{
    size_t n = 0;
    const unsigned kill = SECCOMP_RET_KILL_PROCESS, number = offsetof(struct seccomp_data, nr);
#define STMT(code, k)       f[n++] = (struct sock_filter)BPF_STMT((code), (unsigned)(k))
#define JUMP(code, k, t, e) f[n++] = (struct sock_filter)BPF_JUMP((code), (unsigned)(k), (t), (e))
    STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, arch));
    JUMP(BPF_JMP | BPF_JEQ | BPF_K, AUDIT_ARCH_X86_64, 1, 0);
    STMT(BPF_RET | BPF_K, kill);
    STMT(BPF_LD | BPF_W | BPF_ABS, number);
    JUMP(BPF_JMP | BPF_JGE | BPF_K, X32_BIT, 0, 1);
    STMT(BPF_RET | BPF_K, kill);
    for (size_t i = 0; i < ARRAY_LEN(forbidden); i++) {
        JUMP(BPF_JMP | BPF_JEQ | BPF_K, forbidden[i], 0, 1);
        STMT(BPF_RET | BPF_K, kill);
    }
    /* The flags of clone3 are out of sight; without it threads are made by clone. */
    JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone3, 0, 1);
    STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS);
    JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone, 0, 4);
    STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[0]));
    JUMP(BPF_JMP | BPF_JSET | BPF_K, NAMESPACES, 0, 1);
    STMT(BPF_RET | BPF_K, kill);
    STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_socket, 1, 0);
    STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[0]));
    for (size_t i = 0; i < ARRAY_LEN(families); i++) {
        JUMP(BPF_JMP | BPF_JEQ | BPF_K, families[i], 0, 1);
        STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    }
    STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EAFNOSUPPORT);
#undef STMT
#undef JUMP
    return n;
}

/* As many connections as the machine allows, no core files, no reading by processes of the same user. */
static int set_limits(struct err *err)
{
    struct rlimit files, none = {0, 0};
    if (getrlimit(RLIMIT_NOFILE, &files) < 0)
        return err_set(err, ERR_SETUP, errno, "cannot read the limit of open files");
    files.rlim_cur = files.rlim_max;
    if (setrlimit(RLIMIT_NOFILE, &files) < 0)
        return err_set(err, ERR_SETUP, errno, "cannot raise the limit of open files");
    if (setrlimit(RLIMIT_CORE, &none) < 0 || prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) < 0)
        return err_set(err, ERR_SETUP, errno, "cannot forbid core files");
    return 0;
}

/* What the kernel says, not what we meant to do. */
static int prove(const char *status, struct err *err)
{
    static const char *const fields[CAPS_FIELDS] = {"CapInh:\t", "CapPrm:\t", "CapEff:\t", "CapAmb:\t"};
    char value[20];
    for (size_t i = 0; i < CAPS_FIELDS; i++) {
        const char *at = strstr(status, fields[i]);
        if (!at || sscanf(at + strlen(fields[i]), "%19[0-9a-f]", value) != 1 || strspn(value, "0") != strlen(value))
            return err_set(err, ERR_SETUP, 0, "egress still holds capabilities (%s%s); it does not start", fields[i],
                           at ? value : "?");
    }
    const char *nnp = strstr(status, "NoNewPrivs:\t1"), *filter = strstr(status, "Seccomp:\t2");
    if (!nnp || !filter || prctl(PR_GET_DUMPABLE, 0, 0, 0, 0) != 0)
        return err_set(err, ERR_SETUP, 0, "egress is not confined (%s); it does not start",
                       !nnp      ? "no_new_privs is not set"
                       : !filter ? "no system call filter"
                                 : "its memory can be dumped");
    return 0;
}

/* From here on no file can be opened but those of the audit log. Kernels without Landlock do without: there the user and the
 * filter are what is left. */
static int forbid_files(int audit_dir, bool *ret_done, struct err *err)
{
    const struct landlock_rule rule = {.fd = audit_dir, .rights = LANDLOCK_WRITE & ~LANDLOCK_ACCESS_FS_EXECUTE};
    *ret_done = landlock_abi() >= LANDLOCK_ABI_FLOOR;
    return *ret_done ? landlock_apply(&rule, audit_dir >= 0 ? 1 : 0, 0, err) : 0;
}

int egress_drop(int audit_dir, struct err *err)
{
    struct sock_filter filter[2 * ARRAY_LEN(forbidden) + 2 * ARRAY_LEN(families) + 24];
    _cleanup_buf_ struct buf status = {0};
    bool files = false;
    _Static_assert(ARRAY_LEN(filter) < 4096, "the kernel's limit");
    /* Opened while files can be, read when everything is in force. */
    _cleanup_close_ int fd = open("/proc/self/status", O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return err_set(err, ERR_SETUP, errno, "cannot open /proc/self/status");
    if (set_limits(err) < 0)
        return -1;
    if (caps_set(CAPS_NONE) < 0)
        return err_set(err, ERR_SETUP, errno, "cannot give up capabilities");
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
        return err_set(err, ERR_SETUP, errno, "cannot set no_new_privs");
    size_t n = build_filter(filter);
    if (seccomp_load(filter, n, 0, NULL, err) < 0 || forbid_files(audit_dir, &files, err) < 0)
        return -1;
    char bytes[4096];
    for (ssize_t got; (got = read(fd, bytes, sizeof bytes)) > 0 && status.n < (1 << 16);)
        buf_add(&status, bytes, (size_t)got);
    if (prove(buf_str(&status), err) < 0)
        return -1;
    struct log_line l;
    if (log_start(&l, LOG_LEVEL_INFO, "no capabilities, no_new_privs, no core files, own system call filter")) {
        log_u64(&l, "uid", geteuid());
        log_u64(&l, "gid", getegid());
        log_str(&l, "files", files ? "only the audit log" : "not restricted: this kernel has no Landlock");
        log_end(&l);
    }
    return 0;
}
