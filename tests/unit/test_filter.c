/* The filter as a program: tables of calls and verdicts through an interpreter, with full branch coverage of every
 * built-in program, and libseccomp as a second opinion. What the kernel makes of the same programs is in
 * test_seccomp.c. */
#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/fs.h>
#include <linux/kd.h>
#include <linux/nsfs.h>
#include <sched.h>
#include <seccomp.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/personality.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <termios.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "bpf-interp.h"
#include "policy/run/filter-int.h"

#define E(eno)  (SECCOMP_RET_ERRNO | (uint32_t)(eno))
#define OK      SECCOMP_RET_ALLOW
#define NOTIF   SECCOMP_RET_USER_NOTIF
#define KILL    SECCOMP_RET_KILL_PROCESS
#define DIRTY   0x9b7f35a100000000ULL
#define EXPLAIN (FILTER_EXPLAIN | FILTER_NOTIFY)
#define LEARN   (FILTER_LEARN | EXPLAIN)

static const struct filter_builtin *builtin(unsigned flags)
{
    for (size_t i = 0; i < nfilter_builtins; i++)
        if (filter_builtins[i].flags == flags)
            return &filter_builtins[i];
    fail_msg("no built-in program for flags %#x", flags);
    return NULL;
}

static uint32_t run(const struct filter_builtin *b, const struct seccomp_data *d)
{
    struct bpf_trace t = {0};
    return bpf_run(b->insns, b->n, d, &t);
}

static struct seccomp_data call(int nr, const uint64_t args[6])
{
    struct seccomp_data d = {.nr = nr, .arch = AUDIT_ARCH_X86_64};
    if (args)
        memcpy(d.args, args, sizeof d.args);
    return d;
}

/* --- what is expected, written down by hand ----------------------------------------------------------------------- */

struct expectation {
    unsigned flags;
    int nr;
    uint64_t args[6];
    uint32_t verdict;
};

/* clang-format off */
static const struct expectation expectations[] = {
    {0, NR_read, {0}, OK},
    {0, NR_execve, {0}, OK},
    {0, NR_rseq, {0}, OK},
    {0, NR_openat2, {0}, OK},
    {0, NR_memfd_create, {0}, OK},
    {0, NR_landlock_restrict_self, {0}, OK},
    {0, NR_adjtimex, {0}, OK},
    {0, NR_mount, {0}, E(EPERM)},
    {0, NR_umount2, {0}, E(EPERM)},
    {0, NR_pivot_root, {0}, E(EPERM)},
    {0, NR_open_tree_attr, {0}, E(EPERM)},
    {0, NR_unshare, {CLONE_NEWUSER}, E(EPERM)},
    {0, NR_unshare, {CLONE_FILES}, E(EPERM)},
    {0, NR_setns, {0}, E(EPERM)},
    {0, NR_chroot, {0}, E(EPERM)},
    {FILTER_COMPUTER, NR_chroot, {0}, OK},
    {FILTER_COMPUTER, NR_mount, {0}, E(EPERM)},
    {FILTER_COMPUTER, NR_setuid, {0}, OK},
    {FILTER_COMPUTER, NR_chmod, {0, 04755}, OK},
    {0, NR_clone3, {0}, E(ENOSYS)},
    {FILTER_NOTIFY, NR_clone3, {0}, E(ENOSYS)},
    {FILTER_NOTIFY, NR_io_uring_setup, {0}, E(ENOSYS)},
    {0, NR_userfaultfd, {0}, E(ENOSYS)},
    {0, NR_memfd_secret, {0}, E(ENOSYS)},
    {0, NR_vmsplice, {0}, E(ENOSYS)},
    {0, NR_pidfd_getfd, {0}, E(ENOSYS)},
    {0, NR_bpf, {0}, E(EPERM)},
    {0, NR_perf_event_open, {0}, E(EPERM)},
    {0, NR_keyctl, {0}, E(EPERM)},
    {0, NR_kexec_load, {0}, E(EPERM)},
    {0, NR_syslog, {0}, E(EPERM)},
    {0, NR_modify_ldt, {0}, E(EPERM)},
    {0, NR_open_by_handle_at, {0}, E(EPERM)},
    {0, NR_name_to_handle_at, {0}, E(EPERM)},
    {0, NR_fanotify_init, {0}, E(EPERM)},
    {0, NR_settimeofday, {0}, E(EPERM)},
    {0, NR_clock_settime, {0}, E(EPERM)},
    {0, NR_sethostname, {0}, E(EPERM)},
    {0, NR_move_pages, {0}, E(EPERM)},
    {0, NR_kcmp, {0}, E(EPERM)},
    {0, NR_ptrace, {0}, E(EPERM)},
    {0, NR_process_vm_readv, {0}, E(EPERM)},
    {FILTER_DEBUGGER, NR_ptrace, {0}, OK},
    {FILTER_DEBUGGER, NR_process_vm_writev, {0}, OK},
    {FILTER_DEBUGGER | FILTER_NOTIFY, NR_ptrace, {0}, OK},
    {FILTER_DEBUGGER, NR_bpf, {0}, E(EPERM)},
    {FILTER_NOTIFY, NR_ptrace, {0}, NOTIF},
    {FILTER_NOTIFY, NR_mount, {0}, NOTIF},
    {FILTER_NOTIFY, NR_unshare, {0}, NOTIF},
    {FILTER_NOTIFY, NR_keyctl, {0}, NOTIF},
    {FILTER_NOTIFY, NR_init_module, {0}, NOTIF},
    {FILTER_NOTIFY, NR_read, {0}, OK},

    {0, NR_clone, {SIGCHLD}, OK},
    {0, NR_clone, {CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SETTLS}, OK},
    {0, NR_clone, {CLONE_NEWUSER | SIGCHLD}, E(EPERM)},
    {0, NR_clone, {CLONE_NEWNS}, E(EPERM)},
    {0, NR_clone, {CLONE_NEWUTS}, E(EPERM)},
    {0, NR_clone, {CLONE_NEWIPC}, E(EPERM)},
    {0, NR_clone, {CLONE_NEWPID}, E(EPERM)},
    {0, NR_clone, {CLONE_NEWNET}, E(EPERM)},
    {0, NR_clone, {0x02000000 /* CLONE_NEWCGROUP */}, E(EPERM)},
    {FILTER_NOTIFY, NR_clone, {CLONE_NEWUSER}, NOTIF},

    {0, NR_socket, {AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0}, OK},
    {0, NR_socket, {AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0}, OK},
    {0, NR_socket, {AF_INET6, SOCK_DGRAM, 17}, OK},
    {0, NR_socket, {AF_INET, SOCK_DGRAM, 1 /* ICMP */}, OK},
    {0, NR_socket, {AF_INET6, SOCK_DGRAM, 58 /* ICMPv6 */}, OK},
    {0, NR_socket, {AF_INET, SOCK_STREAM, 262 /* MPTCP */}, E(EPROTONOSUPPORT)},
    {0, NR_socket, {AF_INET, SOCK_STREAM, 256 /* SMC */}, E(EPROTONOSUPPORT)},
    {0, NR_socket, {AF_INET, SOCK_STREAM, 132 /* SCTP */}, E(EPROTONOSUPPORT)},
    {0, NR_socket, {AF_INET, SOCK_DGRAM, 115 /* L2TP */}, E(EPROTONOSUPPORT)},
    {0, NR_socket, {AF_INET, SOCK_SEQPACKET, 0 /* loads SCTP */}, E(EPROTONOSUPPORT)},
    {0, NR_socket, {AF_INET, SOCK_DCCP, 0}, E(EPROTONOSUPPORT)},
    {0, NR_socket, {AF_INET, SOCK_RAW, 1}, E(EPERM)},
    {0, NR_socket, {AF_INET, SOCK_RAW | SOCK_CLOEXEC, 255}, E(EPERM)},
    {0, NR_socket, {AF_INET, SOCK_PACKET, 0 /* becomes AF_PACKET */}, E(EPERM)},
    {0, NR_socket, {AF_NETLINK, SOCK_RAW, 0 /* ROUTE */}, E(EAFNOSUPPORT)},
    {FILTER_NOTIFY, NR_socket, {AF_NETLINK, SOCK_RAW, 0}, NOTIF},
    {FILTER_NOTIFY, NR_socket, {AF_NETLINK, SOCK_DGRAM | SOCK_CLOEXEC, 0}, NOTIF},
    {FILTER_KEYED | FILTER_NOTIFY, NR_socket, {AF_NETLINK, SOCK_RAW, 0}, NOTIF},
    {0, NR_socket, {AF_NETLINK, SOCK_RAW, 9 /* AUDIT */}, E(EAFNOSUPPORT)},
    {0, NR_socket, {AF_NETLINK, SOCK_RAW, 12 /* NETFILTER */}, E(EAFNOSUPPORT)},
    {0, NR_socket, {38 /* ALG */, SOCK_SEQPACKET, 0}, E(EAFNOSUPPORT)},
    {0, NR_socket, {40 /* VSOCK */, SOCK_STREAM, 0}, E(EAFNOSUPPORT)},
    {0, NR_socket, {AF_PACKET, SOCK_RAW, 0}, E(EAFNOSUPPORT)},
    {0, NR_socket, {44 /* XDP */, SOCK_RAW, 0}, E(EAFNOSUPPORT)},
    {0, NR_socket, {31 /* BLUETOOTH */, SOCK_RAW, 0}, E(EAFNOSUPPORT)},
    {0, NR_socket, {15 /* KEY */, SOCK_RAW, 2}, E(EAFNOSUPPORT)},
    {0, NR_socket, {30 /* TIPC */, SOCK_STREAM, 0}, E(EAFNOSUPPORT)},
    {0, NR_socket, {0, 0, 0}, E(EAFNOSUPPORT)},
    {FILTER_NOTIFY, NR_socket, {38, SOCK_SEQPACKET, 0}, NOTIF},
    {FILTER_NO_UNIX, NR_socket, {AF_UNIX, SOCK_STREAM, 0}, E(EAFNOSUPPORT)},
    {FILTER_NO_UNIX, NR_socket, {AF_INET, SOCK_STREAM, 6}, OK},
    {0, NR_socketpair, {AF_UNIX, SOCK_DGRAM, 0}, OK},
    {0, NR_socketpair, {AF_INET, SOCK_STREAM, 0}, E(EAFNOSUPPORT)},
    {0, NR_socketpair, {30, SOCK_STREAM, 0}, E(EAFNOSUPPORT)},
    {FILTER_NO_UNIX, NR_socketpair, {AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0}, OK},
    {FILTER_NO_UNIX, NR_socketpair, {AF_UNIX, SOCK_SEQPACKET, 0}, OK},
    {FILTER_NO_UNIX, NR_socketpair, {AF_UNIX, SOCK_DGRAM, 0}, E(EAFNOSUPPORT)},
    {FILTER_NO_UNIX, NR_socketpair, {AF_UNIX, SOCK_RAW, 0 /* becomes DGRAM */}, E(EAFNOSUPPORT)},

    {0, NR_setsockopt, {3, SOL_SOCKET, SO_REUSEADDR}, OK},
    {0, NR_setsockopt, {3, SOL_SOCKET, SO_RCVBUF}, OK},
    {FILTER_NOTIFY, NR_setsockopt, {3, SOL_SOCKET, SO_RCVBUF}, NOTIF},
    {FILTER_NOTIFY, NR_setsockopt, {3, 6 /* TCP */, 8 /* another level's */}, OK},
    {FILTER_KEYED | FILTER_NOTIFY, NR_setsockopt, {3, SOL_SOCKET, SO_RCVBUF}, NOTIF},
    {FILTER_KEYED | FILTER_NOTIFY, NR_pidfd_getfd, {3, 4, 0}, E(ENOSYS)},
    {0, NR_setsockopt, {3, SOL_SOCKET, 26 /* SO_ATTACH_FILTER */}, E(EPERM)},
    {0, NR_setsockopt, {3, SOL_SOCKET, 50 /* SO_ATTACH_BPF */}, E(EPERM)},
    {0, NR_setsockopt, {3, SOL_SOCKET, 51 /* SO_ATTACH_REUSEPORT_CBPF */}, E(EPERM)},
    {0, NR_setsockopt, {3, SOL_SOCKET, 52 /* SO_ATTACH_REUSEPORT_EBPF */}, E(EPERM)},
    {0, NR_setsockopt, {3, SOL_SOCKET, 27 /* SO_DETACH_FILTER */}, OK},
    {0, NR_setsockopt, {3, 6 /* TCP */, 26}, OK},
    {FILTER_COMPUTER | FILTER_NOTIFY, NR_setsockopt, {3, SOL_SOCKET, 26}, NOTIF},
    {0, NR_fcntl, {3, F_GETFL}, OK},
    {0, NR_fcntl, {3, F_DUPFD_CLOEXEC}, OK},
    {0, NR_fcntl, {3, 1025 /* F_GETLEASE */}, OK},
    {0, NR_fcntl, {3, 1024 /* F_SETLEASE */, F_RDLCK}, E(EACCES)},
    {0, NR_fcntl, {3, 1040 /* F_SETDELEG */}, E(EACCES)},
    {FILTER_NOTIFY, NR_fcntl, {3, 1024}, NOTIF},
    {0, NR_io_setup, {128}, E(ENOSYS)},
    {FILTER_NOTIFY, NR_io_setup, {128}, NOTIF},

    {0, NR_ioctl, {0, TCGETS}, OK},
    {0, NR_ioctl, {0, TIOCGWINSZ}, OK},
    {0, NR_ioctl, {0, FICLONE}, OK},
    {0, NR_ioctl, {0, FS_IOC_GETFLAGS}, OK},
    {0, NR_ioctl, {0, TIOCSTI}, E(EPERM)},
    {0, NR_ioctl, {0, TIOCLINUX}, E(EPERM)},
    {0, NR_ioctl, {0, TIOCCONS}, E(EPERM)},
    {0, NR_ioctl, {0, TIOCSETD}, E(EPERM)},
    {0, NR_ioctl, {0, KDSKBENT}, E(EPERM)},
    {0, NR_ioctl, {0, KDSKBSENT}, E(EPERM)},
    {0, NR_ioctl, {0, KDSETKEYCODE}, E(EPERM)},
    {0, NR_ioctl, {0, KDSKBDIACRUC}, E(EPERM)},
    {0, NR_ioctl, {0, KDSKBDIACR}, E(EPERM)},
    {0, NR_ioctl, {0, KDSKBMODE}, E(EPERM)},
    {0, NR_ioctl, {0, KDSETMODE}, E(EPERM)},
    {0, NR_ioctl, {0, FS_IOC_SETFLAGS}, E(EPERM)},
    {0, NR_ioctl, {0, FS_IOC32_SETFLAGS}, E(EPERM)},
    {0, NR_ioctl, {0, FS_IOC_SETVERSION}, E(EPERM)},
    {0, NR_ioctl, {0, FS_IOC32_SETVERSION}, E(EPERM)},
    {0, NR_ioctl, {0, FS_IOC_FSSETXATTR}, E(EPERM)},
    {0, NR_ioctl, {0, 0x40806685 /* FS_IOC_ENABLE_VERITY */}, E(EPERM)},
    {0, NR_ioctl, {0, 0x800c6613 /* FS_IOC_SET_ENCRYPTION_POLICY */}, E(EPERM)},
    {0, NR_ioctl, {0, NS_GET_PARENT}, E(EPERM)},
    {0, NR_ioctl, {0, NS_GET_USERNS}, E(EPERM)},
    {0, NR_ioctl, {0, NS_GET_NSTYPE}, OK},
    {0, NR_file_setattr, {0}, E(EPERM)},
    {0, NR_file_getattr, {0}, OK},
    {0, NR_prctl, {PR_SET_NAME}, OK},
    {0, NR_prctl, {PR_SET_SECCOMP}, OK},
    {0, NR_prctl, {PR_SET_MM}, E(EPERM)},
    {0, NR_seccomp, {SECCOMP_SET_MODE_FILTER, 0}, OK},
    {0, NR_seccomp, {SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC}, OK},
    {0, NR_seccomp, {SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER}, E(EPERM)},
    {0, NR_seccomp, {SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER | SECCOMP_FILTER_FLAG_TSYNC}, E(EPERM)},
    {0, NR_seccomp, {SECCOMP_GET_ACTION_AVAIL, 0}, OK},
    {0, NR_personality, {0}, OK},
    {0, NR_personality, {PER_LINUX32}, OK},
    {0, NR_personality, {UNAME26}, OK},
    {0, NR_personality, {UNAME26 | PER_LINUX32}, OK},
    {0, NR_personality, {0xffffffff}, OK},
    {0, NR_personality, {READ_IMPLIES_EXEC}, E(EPERM)},
    {0, NR_personality, {ADDR_NO_RANDOMIZE}, E(EPERM)},
    {FILTER_DEBUGGER, NR_personality, {ADDR_NO_RANDOMIZE}, OK},
    {FILTER_DEBUGGER, NR_personality, {READ_IMPLIES_EXEC}, E(EPERM)},
    {FILTER_NOTIFY, NR_personality, {READ_IMPLIES_EXEC}, NOTIF},

    {0, NR_mknod, {0, S_IFIFO | 0600}, OK},
    {0, NR_mknod, {0, 0600}, OK},
    {0, NR_mknod, {0, S_IFCHR | 0600, 0 /* a whiteout */}, E(EPERM)},
    {0, NR_mknod, {0, S_IFBLK | 0600, 5}, E(EPERM)},
    {0, NR_mknodat, {0, 0, S_IFCHR | 0600}, E(EPERM)},
    {0, NR_mknodat, {0, 0, S_IFSOCK | 0600}, OK},
    {FILTER_NOTIFY, NR_mknodat, {0, 0, S_IFBLK}, NOTIF},
    {FILTER_COMPUTER, NR_mknod, {0, S_IFCHR | 0600}, E(EPERM)},

    {0, NR_chmod, {0, 04755}, OK},
    {FILTER_HOST_IDS, NR_chmod, {0, 0755}, OK},
    {FILTER_HOST_IDS, NR_chmod, {0, 01777}, OK},
    {FILTER_HOST_IDS, NR_chmod, {0, 04755}, E(EPERM)},
    {FILTER_HOST_IDS, NR_chmod, {0, 02755}, E(EPERM)},
    {FILTER_HOST_IDS, NR_fchmod, {0, 06755}, E(EPERM)},
    {FILTER_HOST_IDS, NR_fchmodat, {0, 0, 04755}, E(EPERM)},
    {FILTER_HOST_IDS, NR_fchmodat2, {0, 0, 04755}, E(EPERM)},
    {FILTER_HOST_IDS, NR_creat, {0, 04755}, E(EPERM)},
    {FILTER_HOST_IDS, NR_mkdir, {0, 02755}, E(EPERM)},
    {FILTER_HOST_IDS, NR_mkdirat, {0, 0, 02755}, E(EPERM)},
    {FILTER_HOST_IDS, NR_mknod, {0, S_IFREG | 04755}, E(EPERM)},
    {FILTER_HOST_IDS, NR_mknodat, {0, 0, S_IFIFO | 04755}, E(EPERM)},
    {FILTER_HOST_IDS, NR_open, {0, O_RDWR | O_CREAT, 04755}, E(EPERM)},
    {FILTER_HOST_IDS, NR_open, {0, O_RDWR, 04755 /* not a mode */}, OK},
    {FILTER_HOST_IDS, NR_open, {0, O_RDWR | O_CREAT, 0644}, OK},
    {FILTER_HOST_IDS, NR_openat, {0, 0, O_WRONLY | O_CREAT | O_EXCL, 02644}, E(EPERM)},
    {FILTER_HOST_IDS, NR_openat, {0, 0, O_RDWR | O_TMPFILE, 04644}, E(EPERM)},
    {FILTER_HOST_IDS, NR_openat, {0, 0, O_RDONLY | O_DIRECTORY, 04644}, OK},
    {FILTER_HOST_IDS, NR_openat2, {0}, E(ENOSYS)},
    {FILTER_HOST_IDS | EXPLAIN, NR_openat2, {0}, E(ENOSYS)},
    {FILTER_HOST_IDS | EXPLAIN, NR_openat, {0, 0, O_WRONLY | O_CREAT, 04644}, E(EPERM)},
    {FILTER_HOST_IDS | EXPLAIN, NR_openat, {0, 0, O_WRONLY | O_CREAT, 0644}, NOTIF},
    {FILTER_HOST_IDS | LEARN, NR_chmod, {0, 04755}, E(EPERM)},
    {FILTER_HOST_IDS | LEARN, NR_chmod, {0, 0755}, NOTIF},

    {FILTER_NOTIFY, NR_openat, {0, 0, O_WRONLY | O_CREAT, 0644}, OK},
    {EXPLAIN, NR_openat, {0, 0, O_RDONLY | O_CLOEXEC | O_DIRECTORY}, NOTIF},
    {EXPLAIN, NR_openat, {0, 0, O_WRONLY}, NOTIF},
    {EXPLAIN, NR_openat, {0, 0, O_RDWR}, NOTIF},
    {EXPLAIN, NR_openat, {0, 0, O_RDONLY | O_CREAT}, NOTIF},
    {EXPLAIN, NR_openat, {0, 0, O_RDONLY | O_TRUNC}, NOTIF},
    {EXPLAIN, NR_open, {0, O_WRONLY}, NOTIF},
    {EXPLAIN, NR_open, {0, O_RDONLY}, NOTIF},
    {EXPLAIN, NR_execve, {0}, OK},
    {EXPLAIN, NR_unlink, {0}, NOTIF},
    {EXPLAIN, NR_renameat2, {0}, NOTIF},
    {EXPLAIN, NR_setxattr, {0}, NOTIF},
    {EXPLAIN, NR_fchmod, {0}, OK},
    {EXPLAIN, NR_utimensat, {3, 0, 0}, OK},
    {EXPLAIN, NR_utimensat, {3, 0x1000, 0}, NOTIF},
    {EXPLAIN, NR_mount, {0}, NOTIF},
    {LEARN, NR_openat, {0, 0, O_RDONLY}, NOTIF},
    {LEARN, NR_open, {0, O_RDONLY}, NOTIF},
    {LEARN, NR_execve, {0}, NOTIF},
    {LEARN, NR_read, {0}, OK},
};
/* clang-format on */

static void the_hand_written_verdicts_hold_also_with_dirty_upper_halves(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(expectations); i++) {
        const struct expectation *e = &expectations[i];
        struct seccomp_data d = call(e->nr, e->args);
        uint32_t got = run(builtin(e->flags), &d);
        for (size_t a = 0; a < 6; a++)
            d.args[a] |= DIRTY;
        uint32_t dirty = run(builtin(e->flags), &d);
        if (got != e->verdict || dirty != e->verdict)
            fail_msg("row %zu: %s under flags %#x: expected %#x, got %#x, with dirty halves %#x", i,
                     syscall_name(e->nr), e->flags, e->verdict, got, dirty);
    }
}

/* --- vectors made from the tables, for agreement and coverage ----------------------------------------------------- */

typedef void each_fn(void *arg, const struct seccomp_data *d);

/* The low half of the argument that a condition looks at, or the first word of the key. */
static void set_word(struct seccomp_data *d, const struct cond *c, uint32_t v)
{
    const unsigned at = c->op == COND_KEY ? 32 : 0;
    d->args[c->arg] = (d->args[c->arg] & ~((uint64_t)UINT32_MAX << at)) | (uint64_t)v << at;
}

static void meet(struct seccomp_data *d, const struct cond *c, size_t i)
{
    if (c->op == COND_KEY)
        d->args[1] = (uint32_t)d->args[1] | (uint64_t)FILTER_KEY_SECOND << 32;
    set_word(d, c, c->op == COND_KEY ? FILTER_KEY_FIRST : c->op == COND_BITS ? c->mask & -c->mask : c->values[i]);
}

/* For a row: all conditions met with every value of each, and each one missed in turn. */
static void vectors_of(const struct check *c, each_fn *each, void *arg)
{
    size_t n = 0;
    while (c->conds[n].op != COND_END)
        n++;
    struct seccomp_data d = call(c->nr, NULL);
    for (size_t k = 0; k < n; k++)
        meet(&d, &c->conds[k], 0);
    each(arg, &d);
    for (size_t k = 0; k < n; k++) {
        struct seccomp_data v = d;
        const struct cond *o = &c->conds[k];
        for (size_t i = 0; i < o->nvalues; i++) {
            meet(&v, o, i);
            each(arg, &v);
        }
        for (unsigned bit = 0; bit < 32; bit++) {
            set_word(&v, o, 1U << bit);
            each(arg, &v);
        }
        set_word(&v, o, o->op == COND_BITS ? ~o->mask : 0x7e57ab1e);
        each(arg, &v);
        set_word(&v, o, 0);
        each(arg, &v);
    }
}

static void all_vectors(each_fn *each, void *arg)
{
    for (int nr = -1; nr <= 1000; nr++) {
        struct seccomp_data d = call(nr, NULL);
        each(arg, &d);
        memset(d.args, 0xff, sizeof d.args);
        each(arg, &d);
    }
    for (size_t i = 0; i < nchecks; i++)
        vectors_of(&checks[i], each, arg);
    for (size_t i = 0; i < ARRAY_LEN(expectations); i++) {
        struct seccomp_data d = call(expectations[i].nr, expectations[i].args);
        each(arg, &d);
        for (size_t a = 0; a < 6; a++)
            d.args[a] |= DIRTY;
        each(arg, &d);
    }
    static const uint32_t numbers[] = {0x3fffffff, 0x40000000, 0x40000001, 0x40000000 + NR_openat,
                                       0x7fffffff, 0x80000000, 0xfffffffe};
    for (size_t i = 0; i < ARRAY_LEN(numbers); i++) {
        struct seccomp_data d = call((int)numbers[i], NULL);
        each(arg, &d);
    }
    struct seccomp_data ia32 = {.nr = NR_read, .arch = AUDIT_ARCH_I386};
    each(arg, &ia32);
}

static uint32_t expected(const struct seccomp_data *d, unsigned flags)
{
    if (d->arch != AUDIT_ARCH_X86_64 || (d->nr != -1 && (uint32_t)d->nr >= 0x40000000))
        return KILL;
    return rules_action(rules_decide(d, flags, NULL), flags);
}

struct cover_run {
    const struct filter_builtin *b;
    uint8_t *cover;
    size_t vectors;
    unsigned max_steps;
};

static void compare_one(void *arg, const struct seccomp_data *d)
{
    struct cover_run *r = arg;
    struct bpf_trace t = {.cover = r->cover};
    uint32_t got = bpf_run(r->b->insns, r->b->n, d, &t), want = expected(d, r->b->flags);
    if (got != want)
        fail_msg("flags %#x, call %d(%#llx, %#llx, %#llx): tables say %#x, program %#x", r->b->flags, d->nr,
                 (unsigned long long)d->args[0], (unsigned long long)d->args[1], (unsigned long long)d->args[2], want,
                 got);
    r->vectors++;
    if (t.steps > r->max_steps)
        r->max_steps = t.steps;
}

static void every_program_agrees_with_the_tables_on_every_branch(void **state)
{
    (void)state;
    size_t instructions = 0, vectors = 0, longest = 0;
    unsigned steps = 0;
    for (size_t i = 0; i < nfilter_builtins; i++) {
        const struct filter_builtin *b = &filter_builtins[i];
        _cleanup_free_ uint8_t *cover = calloc(b->n, 1);
        assert_non_null(cover);
        struct cover_run r = {.b = b, .cover = cover};
        all_vectors(compare_one, &r);
        size_t first = 0, missing = bpf_uncovered(b->insns, b->n, cover, &first);
        if (missing)
            fail_msg("flags %#x: %zu of %zu instructions not fully covered, first %zu", b->flags, missing, b->n, first);
        instructions += b->n;
        vectors += r.vectors;
        longest = b->n > longest ? b->n : longest;
        steps = r.max_steps > steps ? r.max_steps : steps;
    }
    print_message("%zu programs, %zu instructions (longest %zu, at most %u steps), %zu calls, all branches both ways\n",
                  nfilter_builtins, instructions, longest, steps, vectors);
    assert_true(longest < 1024);
}

static void there_is_a_program_for_every_set_of_flags_and_it_is_fresh(void **state)
{
    (void)state;
    assert_int_equal(nfilter_builtins, 3 * 3 * 4 + 2 * 3 /* keyed */);
    for (size_t i = 0; i < nfilter_builtins; i++) {
        size_t n = 0;
        _cleanup_free_ struct sock_filter *v = filter_compile(filter_builtins[i].flags, NULL, &n);
        assert_int_equal(n, filter_builtins[i].n);
        assert_memory_equal(v, filter_builtins[i].insns, n * sizeof *v);
    }
}

/* The kernel's cache follows number and architecture only: a call that loads an argument is never in its bitmap. */
static void plainly_allowed_calls_never_load_an_argument(void **state)
{
    (void)state;
    static const int hot[] = {NR_read,       NR_write,  NR_close, NR_newfstatat, NR_mmap,   NR_futex, NR_epoll_wait,
                              NR_getdents64, NR_execve, NR_wait4, NR_recvfrom,   NR_sendto, NR_statx, NR_openat};
    for (size_t i = 0; i < ARRAY_LEN(hot); i++) {
        struct seccomp_data d = call(hot[i], NULL);
        struct bpf_trace t = {0};
        assert_int_equal(bpf_run(builtin(0)->insns, builtin(0)->n, &d, &t), OK);
        assert_false(t.loaded_arg);
    }
    for (size_t i = 0; i < nfilter_builtins; i++)
        for (int nr = 0; nr <= SYSCALL_MAX; nr++) {
            bool checked = false;
            for (size_t k = 0; k < nchecks; k++)
                checked = checked || rules_applies(&checks[k], nr, filter_builtins[i].flags);
            struct seccomp_data d = call(nr, NULL);
            struct bpf_trace t = {0};
            (void)bpf_run(filter_builtins[i].insns, filter_builtins[i].n, &d, &t);
            if (!checked && t.loaded_arg)
                fail_msg("flags %#x: %s loads an argument", filter_builtins[i].flags, syscall_name(nr));
        }
}

static void other_architectures_and_x32_numbers_kill(void **state)
{
    (void)state;
    for (size_t i = 0; i < nfilter_builtins; i++) {
        static const uint32_t archs[] = {AUDIT_ARCH_I386, AUDIT_ARCH_AARCH64, 0, 0xffffffff};
        for (size_t a = 0; a < ARRAY_LEN(archs); a++)
            for (int nr = 0; nr < 600; nr++) {
                struct seccomp_data d = {.nr = nr, .arch = archs[a]};
                assert_int_equal(run(&filter_builtins[i], &d), KILL);
            }
        for (int nr = 0; nr < 600; nr++) {
            struct seccomp_data d = call((int)(0x40000000U + (unsigned)nr), NULL);
            assert_int_equal(run(&filter_builtins[i], &d), KILL);
        }
        struct seccomp_data skipped = call(-1, NULL);
        assert_int_equal(run(&filter_builtins[i], &skipped), E(ENOSYS));
    }
}

/* --- the supervisor's answers ------------------------------------------------------------------------------------- */

static bool is_path_call(int nr)
{
    static const int calls[] = {
        NR_open,         NR_openat,        NR_openat2,   NR_creat,    NR_execve,    NR_execveat,   NR_mkdir,
        NR_mkdirat,      NR_mknod,         NR_mknodat,   NR_rename,   NR_renameat,  NR_renameat2,  NR_unlink,
        NR_unlinkat,     NR_rmdir,         NR_link,      NR_linkat,   NR_symlink,   NR_symlinkat,  NR_truncate,
        NR_chmod,        NR_fchmodat,      NR_fchmodat2, NR_chown,    NR_lchown,    NR_fchownat,   NR_utime,
        NR_utimes,       NR_futimesat,     NR_utimensat, NR_setxattr, NR_lsetxattr, NR_setxattrat, NR_removexattr,
        NR_lremovexattr, NR_removexattrat,
    };
    for (size_t i = 0; i < ARRAY_LEN(calls); i++)
        if (calls[i] == nr)
            return true;
    return false;
}

static void check_answer(void *arg, const struct seccomp_data *d)
{
    const struct filter_builtin *b = arg;
    if (d->arch != AUDIT_ARCH_X86_64)
        return;
    int answer = filter_answer(b->flags, d);
    if (answer == FILTER_MAKE_NETLINK || answer == FILTER_SET_BUFFER) {
        assert_int_equal(d->nr, answer == FILTER_SET_BUFFER ? NR_setsockopt : NR_socket);
        return; /* done by the supervisor */
    }
    assert_true(answer >= 0);
    if (answer == 0 && !is_path_call(d->nr))
        fail_msg("flags %#x: the answer to %s would be to continue", b->flags, syscall_name(d->nr));
    if (run(b, d) != NOTIF)
        return;
    uint32_t silent =
        run(builtin(b->flags & ~(unsigned)(FILTER_NOTIFY | FILTER_EXPLAIN | FILTER_LEARN | FILTER_KEYED)), d);
    assert_int_equal(silent, answer ? E(answer) : OK);
}

static void a_notified_call_gets_the_answer_it_would_get_unnotified(void **state)
{
    (void)state;
    for (size_t i = 0; i < nfilter_builtins; i++)
        all_vectors(check_answer, (void *)&filter_builtins[i]);
}

/* --- libseccomp as a second opinion ------------------------------------------------------------------------------- */

static void oracle_rule(scmp_filter_ctx ctx, uint32_t action, int nr, unsigned n, const struct scmp_arg_cmp *cmp)
{
    assert_int_equal(seccomp_rule_add_array(ctx, action, nr, n, cmp), 0);
}

/* Every call without checks from the name table, and the checked ones whose rules libseccomp can express. */
static scmp_filter_ctx oracle_filter(void)
{
    const uint64_t low = 0xffffffff;
    scmp_filter_ctx ctx = seccomp_init(SCMP_ACT_ERRNO(ENOSYS));
    assert_non_null(ctx);
    assert_int_equal(seccomp_attr_set(ctx, SCMP_FLTATR_ACT_BADARCH, SCMP_ACT_KILL_PROCESS), 0);
    assert_int_equal(seccomp_attr_set(ctx, SCMP_FLTATR_CTL_OPTIMIZE, 2), 0);
    for (int nr = 0; nr <= SYSCALL_MAX; nr++) {
        bool checked = false;
        for (size_t k = 0; k < nchecks; k++)
            checked = checked || rules_applies(&checks[k], nr, 0);
        if (checked || !syscall_name(nr))
            continue;
        int eno = rules_plain(nr, 0, NULL).eno;
        if (eno != ENOSYS)
            oracle_rule(ctx, eno ? SCMP_ACT_ERRNO((uint32_t)eno) : SCMP_ACT_ALLOW, nr, 0, NULL);
    }
    static const uint64_t ns[] = {CLONE_NEWUSER, CLONE_NEWNS,  CLONE_NEWUTS, CLONE_NEWIPC,
                                  CLONE_NEWPID,  CLONE_NEWNET, 0x02000000};
    uint64_t all = 0;
    for (size_t i = 0; i < ARRAY_LEN(ns); i++)
        all |= ns[i];
    oracle_rule(ctx, SCMP_ACT_ALLOW, NR_clone, 1, (struct scmp_arg_cmp[]){{0, SCMP_CMP_MASKED_EQ, all, 0}});
    static const uint64_t personality_values[] = {0, 8, 0x20000, 0x20008, 0xffffffff};
    for (size_t i = 0; i < ARRAY_LEN(personality_values); i++)
        oracle_rule(ctx, SCMP_ACT_ALLOW, NR_personality, 1,
                    (struct scmp_arg_cmp[]){{0, SCMP_CMP_MASKED_EQ, low, personality_values[i]}});
    oracle_rule(ctx, SCMP_ACT_ALLOW, NR_socketpair, 1, (struct scmp_arg_cmp[]){{0, SCMP_CMP_MASKED_EQ, low, AF_UNIX}});
    oracle_rule(ctx, SCMP_ACT_ERRNO(EPERM), NR_prctl, 1,
                (struct scmp_arg_cmp[]){{0, SCMP_CMP_MASKED_EQ, low, PR_SET_MM}});
    return ctx;
}

struct oracle {
    struct sock_filter *v;
    size_t n, compared;
};

/* What the oracle leaves at its default (ENOSYS) although we answer otherwise, because it takes one answer per call. */
static uint32_t to_oracle(const struct seccomp_data *d, uint32_t ours)
{
    switch (d->nr) {
    case NR_clone:
    case NR_personality:
    case NR_socketpair:
        return ours == OK ? OK : E(ENOSYS);
    case NR_prctl:
        return ours == OK ? E(ENOSYS) : ours;
    default:
        return ours;
    }
}

static void compare_oracle(void *arg, const struct seccomp_data *d)
{
    struct oracle *o = arg;
    static const int inexpressible[] = {NR_socket, NR_setsockopt, NR_fcntl, NR_ioctl, NR_seccomp, NR_mknod, NR_mknodat};
    for (size_t i = 0; i < ARRAY_LEN(inexpressible); i++)
        if (d->nr == inexpressible[i])
            return;
    struct bpf_trace t = {0};
    uint32_t theirs = bpf_run(o->v, o->n, d, &t), ours = to_oracle(d, run(builtin(0), d));
    if (theirs != ours)
        fail_msg("call %d(%#llx): libseccomp %#x, ours %#x", d->nr, (unsigned long long)d->args[0], theirs, ours);
    o->compared++;
}

static void libseccomp_agrees(void **state)
{
    (void)state;
    scmp_filter_ctx ctx = oracle_filter();
    _cleanup_close_ int fd = memfd_create("oracle", MFD_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(seccomp_export_bpf(ctx, fd), 0);
    seccomp_release(ctx);
    struct stat st;
    assert_int_equal(fstat(fd, &st), 0);
    _cleanup_free_ struct sock_filter *v = malloc((size_t)st.st_size);
    assert_non_null(v);
    assert_int_equal(pread(fd, v, (size_t)st.st_size, 0), st.st_size);
    struct oracle o = {v, (size_t)st.st_size / sizeof *v, 0};
    all_vectors(compare_oracle, &o);
    print_message("%zu calls compared with a libseccomp filter of %zu instructions\n", o.compared, o.n);
    assert_true(o.compared > 2000);
}

/* --- policies that name calls ------------------------------------------------------------------------------------- */

static struct policy policy_with(struct syscall_rule *rules, size_t n, const char *profile)
{
    return (struct policy){.profile = profile, .syscalls = rules, .nsyscalls = n};
}

static uint32_t verdict_under(const struct policy *p, unsigned flags, int nr, const uint64_t args[6])
{
    struct err err = {0};
    _cleanup_filter_ struct filter f = {0};
    if (filter_build(p, flags, &f, &err) < 0)
        fail_msg("%s", err.msg);
    struct seccomp_data d = call(nr, args);
    struct bpf_trace t = {0};
    return bpf_run(f.insns, f.n, &d, &t);
}

static void a_policy_without_own_rules_gets_the_program_in_the_binary(void **state)
{
    (void)state;
    struct err err = {0};
    struct filter f = {0};
    struct policy p = policy_with(NULL, 0, "no-unix");
    assert_int_equal(filter_build(&p, FILTER_LEARN | FILTER_HOST_IDS, &f, &err), 0);
    assert_false(f.owned);
    assert_int_equal(f.flags, FILTER_NO_UNIX | FILTER_HOST_IDS | LEARN);
    assert_ptr_equal(f.insns, builtin(f.flags)->insns);
    filter_done(&f);
    assert_null(f.insns);
    assert_int_equal(filter_build(&p, FILTER_COMPUTER | FILTER_HOST_IDS, &f, &err), -1);
    assert_int_equal(err.code, ERR_INTERNAL);
}

static void own_rules_allow_and_deny_and_deny_wins(void **state)
{
    (void)state;
    struct syscall_rule rules[] = {
        {.name = (char *)"ptrace", .allow = true},          {.name = (char *)"personality", .allow = true},
        {.name = (char *)"perf_event_open", .allow = true}, {.name = (char *)"perf_event_open", .allow = false},
        {.name = (char *)"unlink", .allow = false},         {.name = (char *)"clone", .allow = true},
        {.name = (char *)"chmod", .allow = true},           {.name = (char *)"mount", .allow = false},
        {.name = (char *)"kcmp", .allow = false},           {.name = (char *)"kcmp", .allow = true},
    };
    struct policy p = policy_with(rules, ARRAY_LEN(rules), "default");
    const uint64_t newuser[6] = {CLONE_NEWUSER}, exec[6] = {READ_IMPLIES_EXEC}, setuid[6] = {0, 04755};
    assert_int_equal(verdict_under(&p, FILTER_NOTIFY, NR_ptrace, NULL), OK);
    assert_int_equal(verdict_under(&p, FILTER_NOTIFY, NR_personality, exec), OK);
    assert_int_equal(verdict_under(&p, 0, NR_perf_event_open, NULL), E(EPERM));
    assert_int_equal(verdict_under(&p, 0, NR_kcmp, NULL), E(EPERM));
    assert_int_equal(verdict_under(&p, FILTER_LEARN, NR_unlink, NULL), E(EPERM));
    assert_int_equal(verdict_under(&p, 0, NR_unlinkat, NULL), OK);
    assert_int_equal(verdict_under(&p, 0, NR_clone, newuser), E(EPERM));
    assert_int_equal(verdict_under(&p, FILTER_HOST_IDS, NR_chmod, setuid), E(EPERM));
    assert_int_equal(verdict_under(&p, FILTER_NOTIFY, NR_mount, NULL), NOTIF);
}

static void words_open_a_part_of_a_call_and_nothing_else(void **state)
{
    (void)state;
    struct syscall_rule rules[] = {{.name = (char *)"netlink", .allow = true},
                                   {.name = (char *)"socket-filters", .allow = true},
                                   {.name = (char *)"leases", .allow = true}};
    const uint64_t route[6] = {AF_NETLINK, SOCK_RAW, 0}, audit[6] = {AF_NETLINK, SOCK_RAW, 9};
    const uint64_t attach[6] = {3, SOL_SOCKET, 26}, lease[6] = {3, 1024}, size[6] = {3, SOL_SOCKET, SO_RCVBUF};
    struct policy none = policy_with(NULL, 0, "default"), all = policy_with(rules, 3, "default");
    for (size_t i = 0; i < 2; i++) {
        const unsigned flags = i ? FILTER_KEYED : 0;
        assert_int_equal(verdict_under(&none, flags, NR_socket, route), i ? NOTIF : E(EAFNOSUPPORT));
        assert_int_equal(verdict_under(&all, flags, NR_socket, route), OK);
        assert_int_equal(verdict_under(&all, flags, NR_socket, audit), i ? NOTIF : E(EAFNOSUPPORT));
        assert_int_equal(verdict_under(&all, flags, NR_setsockopt, attach), OK);
        assert_int_equal(verdict_under(&all, flags, NR_setsockopt, size), OK);
        assert_int_equal(verdict_under(&all, flags, NR_fcntl, lease), OK);
    }
    struct policy one = policy_with(&rules[2], 1, "default");
    assert_int_equal(verdict_under(&one, 0, NR_setsockopt, attach), E(EPERM));
    rules[0].allow = rules[2].allow = false;
    assert_int_equal(verdict_under(&all, FILTER_NOTIFY, NR_socket, route), E(EAFNOSUPPORT));
    assert_int_equal(verdict_under(&all, FILTER_NOTIFY, NR_setsockopt, size), OK);
    assert_int_equal(verdict_under(&all, 0, NR_fcntl, lease), E(EACCES));
}

/* With the key the listener does what it does for its callers; without, or with the words that stand in for it, nothing. */
static void only_the_key_opens_a_keyed_program(void **state)
{
    (void)state;
    const uint32_t key[2] = {0x01234567, 0x89abcdef};
    static const struct {
        int nr;
        uint64_t args[6];
        uint32_t without;
    } calls[] = {{NR_socket, {AF_NETLINK, SOCK_RAW, 0}, NOTIF},
                 {NR_setsockopt, {3, SOL_SOCKET, SO_RCVBUF}, NOTIF},
                 {NR_pidfd_getfd, {3, 4, 0}, E(ENOSYS)}};
    for (size_t i = 0; i < nfilter_builtins; i++) {
        const struct filter_builtin *b = &filter_builtins[i];
        _cleanup_free_ struct sock_filter *v = malloc(b->n * sizeof *v);
        assert_non_null(v);
        memcpy(v, b->insns, b->n * sizeof *v);
        bool keyed = b->flags & FILTER_KEYED;
        assert_int_equal(filter_set_key(v, b->n, key), keyed ? 2 * ARRAY_LEN(calls) : 0);
        for (size_t k = 0; keyed && k < ARRAY_LEN(calls); k++) {
            struct seccomp_data d = call(calls[k].nr, calls[k].args), old = d, half = d;
            struct bpf_trace t = {0}, none = {0}, first = {0};
            assert_int_equal(bpf_run(v, b->n, &d, &none), calls[k].without);
            d.args[0] |= (uint64_t)key[0] << 32;
            half.args[0] = d.args[0];
            d.args[1] |= (uint64_t)key[1] << 32;
            old.args[0] |= (uint64_t)FILTER_KEY_FIRST << 32;
            old.args[1] |= (uint64_t)FILTER_KEY_SECOND << 32;
            assert_int_equal(bpf_run(v, b->n, &d, &t), OK);
            assert_int_equal(bpf_run(v, b->n, &half, &first), calls[k].without);
            assert_int_equal(first.steps, none.steps); /* no time tells that one half is right */
            assert_int_equal(bpf_run(v, b->n, &old, &t), calls[k].without);
        }
    }
}

static void refused(const char *name, bool allow, const char *words)
{
    struct syscall_rule rule = {.name = (char *)name, .allow = allow, .origin = {LEVEL_USER, "/u/policy.yaml", 7}};
    struct policy p = policy_with(&rule, 1, "default");
    struct err err = {0};
    struct filter f = {0};
    assert_int_equal(filter_build(&p, 0, &f, &err), -1);
    assert_int_equal(err.code, ERR_POLICY);
    if (!strstr(err.msg, words) || !strstr(err.msg, "/u/policy.yaml:7"))
        fail_msg("expected \"%s\" and the origin in: %s", words, err.msg);
}

static void rules_that_would_break_the_wall_or_the_start_are_errors_with_their_origin(void **state)
{
    (void)state;
    static const char *const never[] = {
        "mount",          "bpf",    "kexec_load",        "unshare", "setns",  "clone3",
        "io_uring_setup", "keyctl", "open_by_handle_at", "chroot",  "reboot", "file_setattr"};
    for (size_t i = 0; i < ARRAY_LEN(never); i++)
        refused(never[i], true, "can never be allowed");
    refused("execve", false, "cannot be denied");
    refused("exit_group", false, "cannot be denied");
    refused("rename_at", true, "renameat");
    refused("\x1b[31m", false, "is not a system call");
}

static void verdicts_for_people_name_reason_and_rule(void **state)
{
    (void)state;
    struct syscall_rule rules[] = {{.name = (char *)"ptrace", .allow = true},
                                   {.name = (char *)"unlink", .allow = false}};
    struct policy p = policy_with(rules, 2, "default");
    const char *reason = NULL;
    const struct syscall_rule *rule = NULL;
    int eno = -1;
    assert_int_equal(filter_verdict_of(&p, 0, NR_ptrace, &reason, &eno, &rule), FILTER_ALLOWED);
    assert_ptr_equal(rule, &rules[0]);
    assert_int_equal(eno, 0);
    assert_int_equal(filter_verdict_of(&p, 0, NR_unlink, &reason, &eno, &rule), FILTER_REFUSED);
    assert_ptr_equal(rule, &rules[1]);
    assert_int_equal(eno, EPERM);
    assert_int_equal(filter_verdict_of(&p, 0, NR_mount, &reason, &eno, &rule), FILTER_REFUSED);
    assert_null(rule);
    assert_non_null(strstr(reason, "mounts are the wall"));
    assert_int_equal(filter_verdict_of(&p, 0, NR_socket, &reason, &eno, NULL), FILTER_CHECKED);
    assert_int_equal(eno, EAFNOSUPPORT);
    assert_int_equal(filter_verdict_of(&p, FILTER_HOST_IDS, NR_openat2, NULL, &eno, NULL), FILTER_REFUSED);
    assert_int_equal(eno, ENOSYS);
    assert_int_equal(filter_verdict_of(&p, FILTER_LEARN, NR_openat, NULL, NULL, NULL), FILTER_ALLOWED);
    assert_int_equal(filter_verdict_of(&p, 0, 999, NULL, &eno, NULL), FILTER_UNKNOWN);
    assert_int_equal(eno, ENOSYS);
}

static void a_denial_says_how_it_could_be_had(void **state)
{
    (void)state;
    struct filter_denial denial;
    struct seccomp_data d = call(NR_ptrace, NULL);
    assert_true(filter_denial_of(FILTER_NOTIFY, &d, &denial));
    assert_int_equal(denial.grant, GRANT_DEBUGGER);
    assert_string_equal(denial.category, "trace");
    assert_false(filter_denial_of(FILTER_DEBUGGER, &d, &denial));
    d = call(NR_fcntl, (const uint64_t[6]){3, 1024});
    assert_true(filter_denial_of(FILTER_NOTIFY, &d, &denial));
    assert_string_equal(denial.word, "leases");
    d = call(NR_socket, (const uint64_t[6]){AF_NETLINK, SOCK_RAW, 0});
    assert_true(filter_denial_of(0, &d, &denial));
    assert_int_equal(denial.eno, EAFNOSUPPORT);
    assert_true(filter_denial_of(FILTER_NOTIFY, &d, &denial));
    assert_int_equal(denial.eno, ENOBUFS);
    assert_string_equal(denial.word, "netlink");
    d = call(NR_clone, (const uint64_t[6]){CLONE_NEWNET});
    assert_true(filter_denial_of(0, &d, &denial));
    assert_string_equal(denial.category, "namespace");
    assert_int_equal(denial.grant, GRANT_NEVER);
}

static void names_and_numbers_match_the_kernel_headers(void **state)
{
    (void)state;
    assert_int_equal(syscall_number("read"), 0);
    assert_int_equal(syscall_number("file_setattr"), 469);
    assert_int_equal(syscall_number("nonsense"), -1);
    assert_null(syscall_name(-1));
    assert_null(syscall_name(337));
    assert_null(syscall_name(470));
    size_t n = 0;
    for (; syscall_names[n]; n++) {
        int nr = syscall_number(syscall_names[n]),
            theirs = seccomp_syscall_resolve_name_arch(SCMP_ARCH_X86_64, syscall_names[n]);
        if (theirs >= 0 && theirs != nr)
            fail_msg("%s is %d here and %d for libseccomp", syscall_names[n], nr, theirs);
    }
    assert_true(n > 380);
}

/* Tests run at the top of the tree or in a build directory below it. */
static int read_page(struct buf *b)
{
    static const char *const places[] = {"docs/syscalls.md", "../docs/syscalls.md", "../../docs/syscalls.md"};
    for (size_t i = 0; i < ARRAY_LEN(places); i++)
        if (fd_read_file(AT_FDCWD, places[i], 1 << 20, b) == 0)
            return 0;
    return -1;
}

static void the_reference_page_is_fresh(void **state)
{
    (void)state;
    _cleanup_buf_ struct buf want = {0}, have = {0};
    filter_add_docs(&want);
    assert_int_equal(read_page(&have), 0);
    if (strcmp(buf_str(&want), buf_str(&have)) != 0)
        fail_msg("docs/syscalls.md is stale: write it again with gen-filters --docs");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_hand_written_verdicts_hold_also_with_dirty_upper_halves),
        cmocka_unit_test(every_program_agrees_with_the_tables_on_every_branch),
        cmocka_unit_test(there_is_a_program_for_every_set_of_flags_and_it_is_fresh),
        cmocka_unit_test(plainly_allowed_calls_never_load_an_argument),
        cmocka_unit_test(other_architectures_and_x32_numbers_kill),
        cmocka_unit_test(a_notified_call_gets_the_answer_it_would_get_unnotified),
        cmocka_unit_test(libseccomp_agrees),
        cmocka_unit_test(a_policy_without_own_rules_gets_the_program_in_the_binary),
        cmocka_unit_test(own_rules_allow_and_deny_and_deny_wins),
        cmocka_unit_test(words_open_a_part_of_a_call_and_nothing_else),
        cmocka_unit_test(only_the_key_opens_a_keyed_program),
        cmocka_unit_test(rules_that_would_break_the_wall_or_the_start_are_errors_with_their_origin),
        cmocka_unit_test(verdicts_for_people_name_reason_and_rule),
        cmocka_unit_test(a_denial_says_how_it_could_be_had),
        cmocka_unit_test(names_and_numbers_match_the_kernel_headers),
        cmocka_unit_test(the_reference_page_is_fresh),
    };
    return cmocka_run_group_tests_name("filter", tests, NULL, NULL);
}
