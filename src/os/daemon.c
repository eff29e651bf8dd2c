#include "os/daemon.h"

#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/sched.h>
#include <linux/seccomp.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#include "base/cleanup.h"
#include "os/caps.h"
#include "os/seccomp.h"

enum { X32_BIT = 0x40000000, CAPS_FIELDS = 4 };

/* A daemon that makes one of these calls has been taken over: the filter kills it. */
/* clang-format off */
static const int forbidden[] = {
    SYS_execve, SYS_execveat, SYS_ptrace, SYS_setns, SYS_unshare, SYS_mount, SYS_umount2, SYS_pivot_root,
    SYS_chroot, SYS_open_tree, SYS_move_mount, SYS_fsopen, SYS_fsconfig, SYS_fsmount, SYS_fspick, SYS_mount_setattr,
    SYS_bpf, SYS_init_module, SYS_finit_module, SYS_delete_module, SYS_kexec_load, SYS_kexec_file_load,
    SYS_process_vm_readv, SYS_process_vm_writev, SYS_perf_event_open, SYS_userfaultfd, SYS_add_key, SYS_request_key,
    SYS_keyctl, SYS_setuid, SYS_setgid, SYS_setreuid, SYS_setregid, SYS_setresuid, SYS_setresgid, SYS_setgroups,
    SYS_setfsuid, SYS_setfsgid, SYS_capset, SYS_io_uring_setup, SYS_reboot, SYS_swapon, SYS_swapoff, SYS_acct,
    SYS_quotactl, SYS_personality, SYS_mknod, SYS_mknodat, SYS_open_by_handle_at, SYS_pidfd_getfd, SYS_kcmp,
    SYS_vhangup, SYS_syslog, SYS_settimeofday, SYS_clock_settime, SYS_adjtimex, SYS_sethostname, SYS_setdomainname,
    SYS_iopl, SYS_ioperm, SYS_process_madvise,
};
/* clang-format on */

#define NAMESPACES \
    (CLONE_NEWNS | CLONE_NEWCGROUP | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNET)

struct program {
    struct sock_filter v[2 * (ARRAY_LEN(forbidden) + DAEMON_FORBIDDEN_MAX + DAEMON_FAMILIES_MAX) + 32];
    size_t n;
};
_Static_assert(ARRAY_LEN(((struct program *)0)->v) < 4096, "the kernel's limit");

static void program_add(struct program *p, unsigned code, unsigned k, unsigned char yes, unsigned char no)
{
    p->v[p->n++] = (struct sock_filter){(unsigned short)code, yes, no, k};
}

static void load_word(struct program *p, size_t at) { program_add(p, BPF_LD | BPF_W | BPF_ABS, (unsigned)at, 0, 0); }
static void program_add_return(struct program *p, unsigned action) { program_add(p, BPF_RET | BPF_K, action, 0, 0); }

/* Runs the next instruction only if the loaded word is k. */
static void if_equal(struct program *p, unsigned k) { program_add(p, BPF_JMP | BPF_JEQ | BPF_K, k, 0, 1); }

static void kill_on(struct program *p, const int *calls, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if_equal(p, (unsigned)calls[i]);
        program_add_return(p, SECCOMP_RET_KILL_PROCESS);
    }
}

static void program_build(const struct daemon_filter *f, struct program *p)
{
    const size_t first = offsetof(struct seccomp_data, args[0]);
    load_word(p, offsetof(struct seccomp_data, arch));
    program_add(p, BPF_JMP | BPF_JEQ | BPF_K, AUDIT_ARCH_X86_64, 1, 0);
    program_add_return(p, SECCOMP_RET_KILL_PROCESS);
    load_word(p, offsetof(struct seccomp_data, nr));
    program_add(p, BPF_JMP | BPF_JGE | BPF_K, X32_BIT, 0, 1);
    program_add_return(p, SECCOMP_RET_KILL_PROCESS);
    kill_on(p, forbidden, ARRAY_LEN(forbidden));
    kill_on(p, f->forbidden, f->nforbidden);
    /* The filter cannot read the flags of clone3; without it threads are made by clone. */
    if_equal(p, SYS_clone3);
    program_add_return(p, SECCOMP_RET_ERRNO | ENOSYS);
    program_add(p, BPF_JMP | BPF_JEQ | BPF_K, SYS_clone, 0, 4);
    load_word(p, first);
    program_add(p, BPF_JMP | BPF_JSET | BPF_K, NAMESPACES, 0, 1);
    program_add_return(p, SECCOMP_RET_KILL_PROCESS);
    program_add_return(p, SECCOMP_RET_ALLOW);
    if (f->nfamilies > 0) {
        program_add(p, BPF_JMP | BPF_JEQ | BPF_K, SYS_socket, 1, 0);
        program_add_return(p, SECCOMP_RET_ALLOW);
        load_word(p, first);
        for (size_t i = 0; i < f->nfamilies; i++) {
            if_equal(p, (unsigned)f->families[i]);
            program_add_return(p, SECCOMP_RET_ALLOW);
        }
        program_add_return(p, SECCOMP_RET_ERRNO | EAFNOSUPPORT);
        return;
    }
    program_add_return(p, SECCOMP_RET_ALLOW);
}

int daemon_limits(struct err *err)
{
    struct rlimit files, none = {0, 0};
    if (getrlimit(RLIMIT_NOFILE, &files) < 0)
        return err_set(err, ERR_SETUP, errno, "cannot read the limit of open files");
    files.rlim_cur = files.rlim_max;
    if (setrlimit(RLIMIT_NOFILE, &files) < 0)
        return err_set(err, ERR_SETUP, errno, "cannot raise the limit of open files");
    if (setrlimit(RLIMIT_CORE, &none) < 0)
        return err_set(err, ERR_SETUP, errno, "cannot forbid core files");
    return 0;
}

int daemon_confine(const struct daemon_filter *f, struct err *err)
{
    struct program p = {.n = 0};
    if (f->nforbidden > DAEMON_FORBIDDEN_MAX || f->nfamilies > DAEMON_FAMILIES_MAX)
        return err_set(err, ERR_INTERNAL, 0, "the filter has no room for so many calls or families");
    if (caps_set(CAPS_NONE) < 0)
        return err_set(err, ERR_SETUP, errno, "cannot give up capabilities");
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
        return err_set(err, ERR_SETUP, errno, "cannot set no_new_privs");
    program_build(f, &p);
    return seccomp_load(p.v, p.n, 0, NULL, err);
}

int daemon_prove(const char *who, const char *status, struct err *err)
{
    static const char *const fields[CAPS_FIELDS] = {"CapInh:\t", "CapPrm:\t", "CapEff:\t", "CapAmb:\t"};
    char value[20];
    for (size_t i = 0; i < CAPS_FIELDS; i++) {
        const char *at = strstr(status, fields[i]);
        if (!at || sscanf(at + strlen(fields[i]), "%19[0-9a-f]", value) != 1 || strspn(value, "0") != strlen(value))
            return err_set(err, ERR_SETUP, 0, "%s still holds capabilities (%s%s); it does not start", who, fields[i],
                           at ? value : "?");
    }
    const char *nnp = strstr(status, "NoNewPrivs:\t1"), *filter = strstr(status, "Seccomp:\t2");
    if (!nnp || !filter)
        return err_set(err, ERR_SETUP, 0, "%s is not confined (%s); it does not start", who,
                       nnp ? "no system call filter" : "no_new_privs is not set");
    return 0;
}
