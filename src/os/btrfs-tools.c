/* btrfs-tools.c - the programs of btrfs-progs, run on an image that they find as descriptor 3. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "os/btrfs.h"

enum { CHILD_IMG_FD = 3, NO_PROGRAM = 127, WORDS_MAX = 64 << 10 };

#define IMAGE "/proc/self/fd/3"

static const char *const mkfs_at[] = {"/usr/sbin/mkfs.btrfs", "/sbin/mkfs.btrfs", "/usr/bin/mkfs.btrfs", NULL};
static const char *const btrfs_at[] = {"/usr/bin/btrfs", "/usr/sbin/btrfs", "/sbin/btrfs", NULL};

static const char *tool_find(const char *const *at)
{
    for (size_t i = 0; at[i]; i++)
        if (access(at[i], X_OK) == 0)
            return at[i];
    return NULL;
}

/* A line of /proc/filesystems, or a module that mount() would load. */
static bool btrfs_kernel_has(void)
{
    _cleanup_buf_ struct buf text = {0};
    if (fd_read_file(AT_FDCWD, "/proc/filesystems", 1 << 16, &text) == 0 && strstr(buf_str(&text), "\tbtrfs\n"))
        return true;
    return access("/sbin/modprobe", X_OK) == 0 || access("/usr/sbin/modprobe", X_OK) == 0;
}

const char *btrfs_file_missing(void)
{
    if (geteuid() != 0)
        return "a pool needs root";
    if (!tool_find(mkfs_at) || !tool_find(btrfs_at))
        return "mkfs.btrfs is not installed (Debian: apt install btrfs-progs)";
    if (access("/dev/loop-control", R_OK | W_OK) < 0)
        return "/dev/loop-control is not there (modprobe loop; in a container: give it loop devices)";
    if (!btrfs_kernel_has())
        return "the kernel has no btrfs";
    return NULL;
}

static void tool_child(const char *const *argv, int img, int out) __attribute__((noreturn));
static void tool_child(const char *const *argv, int img, int out)
{
    static const char *const env[] = {"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C", NULL};
    sigset_t none;
    (void)sigemptyset(&none);
    (void)sigprocmask(SIG_SETMASK, &none, NULL);
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
    int null = open("/dev/null", O_RDWR | O_CLOEXEC), say = fcntl(out, F_DUPFD, CHILD_IMG_FD + 1),
        copy = fcntl(img, F_DUPFD, CHILD_IMG_FD + 1);
    if (null < 0 || copy < 0 || say < 0 || dup2(null, 0) < 0 || dup2(say, 1) < 0 || dup2(say, 2) < 0 ||
        dup2(copy, CHILD_IMG_FD) < 0 || fd_close_range(CHILD_IMG_FD + 1, ~0U, 0) < 0)
        _exit(NO_PROGRAM);
    (void)execve(argv[0], (char *const *)argv, (char *const *)env);
    _exit(NO_PROGRAM);
}

/* Its exit status, or -1 with errno. What it says beyond WORDS_MAX is dropped. */
static int tool_run(const char *const *argv, int img, struct buf *out)
{
    int pipe_fds[2], status;
    if (pipe2(pipe_fds, O_CLOEXEC) < 0)
        return -1;
    pid_t pid = fork();
    if (pid == 0)
        tool_child(argv, img, pipe_fds[1]);
    (void)close(pipe_fds[1]);
    char part[4096];
    for (ssize_t n; pid > 0 && ((n = read(pipe_fds[0], part, sizeof part)) > 0 || (n < 0 && errno == EINTR));)
        if (n > 0 && out->n + (size_t)n <= WORDS_MAX)
            buf_add(out, part, (size_t)n);
    (void)close(pipe_fds[0]);
    if (pid < 0)
        return -1;
    while (waitpid(pid, &status, 0) < 0)
        if (errno != EINTR)
            return -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128;
}

/* The last line that is not empty: where the programs say what went wrong. */
static const char *tool_last_line(struct buf *out)
{
    while (out->n > 0 && out->p[out->n - 1] == '\n')
        out->p[--out->n] = '\0';
    const char *at = out->n ? strrchr(out->p, '\n') : NULL;
    return at ? at + 1 : buf_str(out);
}

int btrfs_format(int img, struct err *err)
{
    /* With two copies of the metadata mkfs.btrfs makes room for it (a tenth, at most 1 GiB, twice); with one it makes 8 MiB,
     * and one large file could take all the rest: then no file can be created although there is room. No discard: the file
     * is new. */
    const char *const argv[] = {tool_find(mkfs_at), "-q", "-f", "-K", "-m", "dup", "-d", "single", IMAGE, NULL};
    _cleanup_buf_ struct buf out = {0};
    int r = argv[0] ? tool_run(argv, img, &out) : NO_PROGRAM;
    if (r == NO_PROGRAM)
        return err_set(err, ERR_HOST, 0, "mkfs.btrfs cannot be run (Debian: apt install btrfs-progs)");
    if (r != 0)
        return err_set(err, ERR_SETUP, r < 0 ? errno : 0, "mkfs.btrfs ended with status %d: %.200s", r,
                       tool_last_line(&out));
    return 0;
}

int btrfs_check(int img, struct buf *out, struct err *err)
{
    const char *const argv[] = {tool_find(btrfs_at), "check", "--readonly", "--force", IMAGE, NULL};
    int r = argv[0] ? tool_run(argv, img, out) : NO_PROGRAM;
    if (r == NO_PROGRAM)
        return err_set(err, ERR_HOST, 0, "the program btrfs cannot be run (Debian: apt install btrfs-progs)");
    if (r < 0)
        return err_set(err, ERR_SETUP, errno, "run btrfs check");
    return r == 0 ? 0 : 1;
}
