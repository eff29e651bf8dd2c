/* confine.c - the worker gives up everything but its descriptors before it reads the first foreign byte, and verifies
 * that it did. Its filter lists the few system calls that a program needs which only reads and writes.
 */
#include <errno.h>
#include <fcntl.h>
#include <iconv.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <locale.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#include "base/cleanup.h"
#include "image/image-int.h"
#include "os/daemon.h"
#include "os/landlock.h"
#include "os/seccomp.h"

enum {
    X32_BIT = 0x40000000,
    FILES_MAX = 1024, /* also limits descriptors in flight to jobs, of all processes with this uid */
    CPU_MAX_S = 2 * 3600,
};
#define MEMORY_MAX (UINT64_C(3) << 30) /* xz and zstd windows, 4 million names */

/* System calls that kill the worker, besides those that are forbidden to every daemon of ours. */
static const int forbidden[] = {SYS_listen, SYS_accept, SYS_accept4, SYS_fork, SYS_vfork, SYS_clone, SYS_kill};

/* Allowed; all others fail with EPERM. */
/* clang-format off */
static const int allowed[] = {
    SYS_read, SYS_write, SYS_readv, SYS_writev, SYS_pread64, SYS_pwrite64, SYS_lseek, SYS_close, SYS_fstat,
    SYS_newfstatat, SYS_fcntl, SYS_ftruncate, SYS_mmap, SYS_munmap, SYS_mremap, SYS_mprotect, SYS_brk, SYS_madvise,
    SYS_futex, SYS_rt_sigaction, SYS_rt_sigprocmask, SYS_rt_sigreturn, SYS_sigaltstack, SYS_sendmsg, SYS_recvmsg,
    SYS_poll, SYS_ppoll, SYS_pselect6, SYS_clock_gettime, SYS_gettimeofday, SYS_clock_nanosleep, SYS_nanosleep,
    SYS_getrandom, SYS_memfd_create, SYS_getpid, SYS_gettid, SYS_geteuid, SYS_getuid, SYS_getegid, SYS_getgid,
    SYS_tgkill, SYS_restart_syscall, SYS_sched_yield, SYS_prlimit64, SYS_sched_getaffinity, SYS_sysinfo, SYS_uname,
    SYS_exit, SYS_exit_group, SYS_prctl,
};
/* clang-format on */
/* Allowed with the network; socket() only for `families`. Opening files is needed to resolve names (/etc in the
 * root). */
static const int allowed_net[] = {
    SYS_connect,     SYS_sendto,      SYS_recvfrom, SYS_sendmmsg, SYS_setsockopt, SYS_getsockopt,
    SYS_getsockname, SYS_getpeername, SYS_shutdown, SYS_bind,     SYS_openat,     SYS_open,
};
static const int families[] = {AF_INET, AF_INET6};

static size_t confine_build_filter(struct sock_filter *f, bool net)
{
    size_t n = 0;
    const unsigned kill = SECCOMP_RET_KILL_PROCESS;
#define STMT(code, k)       f[n++] = (struct sock_filter)BPF_STMT((code), (unsigned)(k))
#define JUMP(code, k, t, e) f[n++] = (struct sock_filter)BPF_JUMP((code), (unsigned)(k), (t), (e))
#define EACH(list, verdict)                               \
    for (size_t i = 0; i < ARRAY_LEN(list); i++) {        \
        JUMP(BPF_JMP | BPF_JEQ | BPF_K, (list)[i], 0, 1); \
        STMT(BPF_RET | BPF_K, verdict);                   \
    }
    STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, arch));
    JUMP(BPF_JMP | BPF_JEQ | BPF_K, AUDIT_ARCH_X86_64, 1, 0);
    STMT(BPF_RET | BPF_K, kill);
    STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
    JUMP(BPF_JMP | BPF_JGE | BPF_K, X32_BIT, 0, 1);
    STMT(BPF_RET | BPF_K, kill);
    EACH(allowed, SECCOMP_RET_ALLOW)
    if (net) {
        EACH(allowed_net, SECCOMP_RET_ALLOW)
        JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_socket, 1, 0);
        STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM);
        STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[0]));
        EACH(families, SECCOMP_RET_ALLOW)
        STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EAFNOSUPPORT);
    }
    STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM);
#undef EACH
#undef STMT
#undef JUMP
    return n;
}

static int confine_limit(int what, const char *name, uint64_t max, struct err *err)
{
    struct rlimit l;
    if (getrlimit((__rlimit_resource_t)what, &l) < 0)
        return err_set(err, ERR_HOST, errno, "cannot read the limit %s", name);
    if (l.rlim_max > max)
        l.rlim_max = max;
    l.rlim_cur = l.rlim_max;
    return setrlimit((__rlimit_resource_t)what, &l) < 0 ? err_set(err, ERR_HOST, errno, "cannot set the limit %s", name)
                                                        : 0;
}

static int confine_set_limits(struct err *err)
{
    uint64_t memory = MEMORY_MAX;
#if defined(__SANITIZE_ADDRESS__)
    memory = RLIM_INFINITY; /* its shadow is larger than any limit */
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
    memory = RLIM_INFINITY;
#endif
#endif
    (void)signal(SIGXFSZ, SIG_IGN); /* write() then fails with EFBIG, which we can report */
    (void)signal(SIGPIPE, SIG_IGN);
    if (confine_limit(RLIMIT_AS, "as", memory, err) < 0 || confine_limit(RLIMIT_CPU, "cpu", CPU_MAX_S, err) < 0 ||
        confine_limit(RLIMIT_FSIZE, "fsize", 2 * IMAGE_BYTES_MAX, err) < 0 ||
        confine_limit(RLIMIT_NOFILE, "nofile", FILES_MAX, err) < 0 || confine_limit(RLIMIT_CORE, "core", 0, err) < 0)
        return -1;
    return prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) < 0 ? err_set(err, ERR_HOST, errno, "cannot forbid dumps") : 0;
}

/* Makes libraries load the files that they would otherwise open at first use. Names in archives are UTF-8 and must not
 * be converted. */
static int confine_warm_up(struct err *err)
{
    struct hash h = {0};
    uint8_t sum[SHA256_BYTES];
    if (!setlocale(LC_CTYPE, "C.UTF-8"))
        return err_set(err, ERR_HOST, 0, "this host lacks the locale C.UTF-8 (Debian: libc-bin)");
    iconv_t cd = iconv_open("UTF-8", "UTF-8");
    if (cd != (iconv_t)-1)
        (void)iconv_close(cd);
    hash_start(&h);
    hash_end(&h, sum);
    hash_done(&h);
    return 0;
}

/* Makes the given directory the root. Without CAP_SYS_CHROOT (tests without root) only Landlock and the filter confine
 * the worker; fetch, whose filter can open files, then needs Landlock. */
static int confine_change_root(bool net, struct err *err)
{
    if (fchdir(IMAGE_FD_ROOT) == 0 && chroot(".") == 0 && chdir("/") == 0)
        return close(IMAGE_FD_ROOT);
    const struct landlock_rule etc = {.fd = open("/etc", O_PATH | O_CLOEXEC), .rights = LANDLOCK_ACCESS_FS_READ_FILE};
    if (landlock_abi() >= LANDLOCK_ABI_FLOOR)
        return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 ? -1 : landlock_apply(&etc, net ? 1 : 0, 0, err);
    return net ? err_set(err, ERR_HOST, errno, "the image worker cannot leave the file system") : 0;
}

int image_confine(bool net, struct err *err)
{
    const struct daemon_filter kill = {forbidden, ARRAY_LEN(forbidden), NULL, 0};
    struct sock_filter filter[2 * (ARRAY_LEN(allowed) + ARRAY_LEN(allowed_net) + ARRAY_LEN(families)) + 16];
    char bytes[8192];
    _Static_assert(ARRAY_LEN(filter) < 4096, "the kernel's limit");
    /* Opened while files can still be opened, read when all restrictions are in force. */
    _cleanup_close_ int status = open("/proc/self/status", O_RDONLY | O_CLOEXEC);
    if (status < 0)
        return err_set(err, ERR_HOST, errno, "cannot open /proc/self/status");
    if (confine_warm_up(err) < 0 || confine_set_limits(err) < 0 || confine_change_root(net, err) < 0 ||
        daemon_confine(&kill, err) < 0 || seccomp_load(filter, confine_build_filter(filter, net), 0, NULL, err) < 0)
        return -1;
    ssize_t n = read(status, bytes, sizeof bytes - 1);
    bytes[n > 0 ? n : 0] = '\0';
    return daemon_prove("the image worker", bytes, err);
}
