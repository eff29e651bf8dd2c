/* front gives up what it does not need before it reads the first foreign byte, and looks whether that is true. */
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
#include <sys/syscall.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/fd.h"
#include "base/log.h"
#include "front/procs.h"
#include "os/caps.h"
#include "os/forbidden.h"
#include "os/seccomp.h"

enum { X32_BIT = 0x40000000, PROGRAM_MAX = 128, CAPS_FIELDS = 4 };

/* Whoever makes one of these calls from front is not front any more. */
static const int forbidden[] = {FORBIDDEN_CALLS};

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
    JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone, 0, 3);
    STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[0]));
    JUMP(BPF_JMP | BPF_JSET | BPF_K, NAMESPACES, 0, 1);
    STMT(BPF_RET | BPF_K, kill);
    STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
#undef STMT
#undef JUMP
    return n;
}

static int raise_files(struct err *err)
{
    struct rlimit l;
    if (getrlimit(RLIMIT_NOFILE, &l) < 0)
        return err_set(err, ERR_SETUP, errno, "cannot read the limit of open files");
    l.rlim_cur = l.rlim_max;
    if (setrlimit(RLIMIT_NOFILE, &l) < 0)
        return err_set(err, ERR_SETUP, errno, "cannot raise the limit of open files");
    struct rlimit none = {0, 0};
    (void)setrlimit(RLIMIT_CORE, &none); /* memory holds tokens */
    return 0;
}

/* What the kernel says, not what we meant to do. */
static int prove(struct err *err)
{
    static const char *const fields[CAPS_FIELDS] = {"CapInh:\t", "CapPrm:\t", "CapEff:\t", "CapAmb:\t"};
    _cleanup_buf_ struct buf status = {0};
    char bounding[20] = "", value[20];
    if (fd_read_file(AT_FDCWD, "/proc/self/status", 1 << 16, &status) < 0)
        return err_set(err, ERR_SETUP, errno, "cannot read /proc/self/status");
    for (size_t i = 0; i < CAPS_FIELDS; i++) {
        const char *at = strstr(buf_str(&status), fields[i]);
        if (!at || sscanf(at + strlen(fields[i]), "%19[0-9a-f]", value) != 1 || strspn(value, "0") != strlen(value))
            return err_set(err, ERR_SETUP, 0, "front still holds capabilities (%s%s); it does not start", fields[i],
                           at ? value : "?");
    }
    const char *nnp = strstr(buf_str(&status), "NoNewPrivs:\t1"), *filter = strstr(buf_str(&status), "Seccomp:\t2");
    if (!nnp || !filter)
        return err_set(err, ERR_SETUP, 0, "front is not confined (%s); it does not start",
                       nnp ? "no system call filter" : "no_new_privs is not set");
    const char *bnd = strstr(buf_str(&status), "CapBnd:\t");
    if (bnd)
        (void)sscanf(bnd + 8, "%19[0-9a-f]", bounding);
    struct log_line l;
    if (log_start(&l, LOG_LEVEL_INFO, "no capabilities, no_new_privs, own system call filter")) {
        log_u64(&l, "uid", geteuid());
        log_u64(&l, "gid", getegid());
        log_str(&l, "bounding", bounding);
        log_end(&l);
    }
    return 0;
}

int front_drop(struct err *err)
{
    struct sock_filter filter[2 * ARRAY_LEN(forbidden) + 16];
    _Static_assert(ARRAY_LEN(filter) < 4096, "the kernel's limit");
    if (raise_files(err) < 0)
        return -1;
    if (caps_set(CAPS_NONE) < 0)
        return err_set(err, ERR_SETUP, errno, "cannot give up capabilities");
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
        return err_set(err, ERR_SETUP, errno, "cannot set no_new_privs");
    size_t n = build_filter(filter);
    if (seccomp_load(filter, n, 0, NULL, err) < 0)
        return -1;
    return prove(err);
}
