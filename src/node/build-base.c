#include "node/build-base.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/strv.h"
#include "base/text.h"

#define WORK ".base.tmp"

/* Packages that agents expect; python is python3. */
#define PACKAGES                                                                                                     \
    "bash,coreutils,sudo,curl,git,python3,python-is-python3,ncurses-bin,util-linux,procps,ca-certificates,iproute2," \
    "less,xz-utils"

enum { LINE_MAX_BYTES = 512, SOURCES_MAX = 16 };

extern char **environ;

void template_set_progress(int dirfd, const char *state, const char *text)
{
    _cleanup_buf_ struct buf line = {0};
    buf_addf(&line, "%s ", state);
    text_add_safe(&line, text, LINE_MAX_BYTES);
    buf_addc(&line, '\n');
    _cleanup_close_ int fd =
        openat(dirfd, TEMPLATE_PROGRESS ".tmp", O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0644);
    if (fd >= 0 && fd_write_all(fd, line.p, line.n) == 0)
        (void)renameat(dirfd, TEMPLATE_PROGRESS ".tmp", dirfd, TEMPLATE_PROGRESS);
}

static int builder_start_program(const struct strv *argv, int in_fd, int out_fd, int err_fd, pid_t *ret,
                                 struct err *err)
{
    posix_spawn_file_actions_t acts;
    posix_spawnattr_t attr;
    sigset_t none;
    (void)sigemptyset(&none);
    (void)posix_spawn_file_actions_init(&acts);
    (void)posix_spawnattr_init(&attr);
    (void)posix_spawnattr_setsigmask(&attr, &none);
    (void)posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETSIGMASK);
    if (in_fd < 0)
        (void)posix_spawn_file_actions_addopen(&acts, 0, "/dev/null", O_RDONLY, 0);
    else
        (void)posix_spawn_file_actions_adddup2(&acts, in_fd, 0);
    (void)posix_spawn_file_actions_adddup2(&acts, out_fd, 1);
    (void)posix_spawn_file_actions_adddup2(&acts, err_fd, 2);
    int eno = posix_spawnp(ret, argv->v[0], &acts, &attr, argv->v, environ);
    (void)posix_spawn_file_actions_destroy(&acts);
    (void)posix_spawnattr_destroy(&attr);
    if (eno == ENOENT)
        return err_set(err, ERR_HOST, 0, "%s is not installed; apt install %s", argv->v[0], argv->v[0]);
    return eno ? err_set(err, ERR_SETUP, eno, "cannot start %s", argv->v[0]) : 0;
}

struct progress {
    int dirfd;
    char line[LINE_MAX_BYTES]; /* being read */
    size_t n;
    char error[LINE_MAX_BYTES]; /* the last line that looks like an error, else the last line */
    bool sure;
};

static void builder_take_line(struct progress *p)
{
    p->line[p->n] = '\0';
    p->n = 0;
    const char *text = p->line;
    if (strncmp(text, "I: ", 3) == 0) {
        template_set_progress(p->dirfd, "building", text + 3);
        log_text(LOG_LEVEL_INFO, "base: %s", text + 3);
    } else if (strncmp(text, "E: ", 3) == 0 || strncmp(text, "Err:", 4) == 0 || (*text && !p->sure)) {
        (void)snprintf(p->error, sizeof p->error, "%s", text);
        p->sure = *text == 'E';
    }
}

/* Reads the output of the program to its end. */
static void builder_follow_output(int fd, struct progress *p)
{
    char chunk[4096];
    for (ssize_t n; (n = read(fd, chunk, sizeof chunk)) > 0 || (n < 0 && errno == EINTR);)
        for (ssize_t i = 0; i < n; i++) {
            if (chunk[i] == '\n' || chunk[i] == '\r')
                builder_take_line(p);
            else if (p->n < sizeof p->line - 1)
                p->line[p->n++] = chunk[i];
        }
}

/* in: its input; -1: none. out: its output; -1: the same as its messages. */
static int builder_run_program(const struct strv *argv, int in, int out, struct progress *p, struct err *err)
{
    int fds[2], status;
    pid_t pid;
    if (pipe2(fds, O_CLOEXEC) < 0)
        return err_set(err, ERR_SETUP, errno, "cannot make a pipe");
    int rc = builder_start_program(argv, in, out < 0 ? fds[1] : out, fds[1], &pid, err);
    (void)close(fds[1]);
    if (rc == 0) {
        builder_follow_output(fds[0], p);
        while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
            ;
        if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
            rc = err_set(err, ERR_SETUP, 0, "%s failed%s%s", argv->v[0], *p->error ? ": " : "", p->error);
    }
    (void)close(fds[0]);
    return rc;
}

/* The release of this host, which its apt sources belong to. */
static int builder_host_suite(char ret[40], struct err *err)
{
    _cleanup_buf_ struct buf text = {0};
    if (fd_read_file(AT_FDCWD, "/etc/os-release", 1 << 16, &text) == 0) {
        const char *at = strstr(buf_str(&text), "VERSION_CODENAME=");
        if (at && sscanf(at, "VERSION_CODENAME=%39[a-z]", ret) == 1)
            return 0;
    }
    return err_set(err, ERR_HOST, 0,
                   "this host's release is not known (no VERSION_CODENAME in /etc/os-release); put a root directory at "
                   "templates/base/" TEMPLATE_ROOT " instead");
}

static void builder_add_sources(struct strv *argv)
{
    struct stat st;
    if (stat("/etc/apt/sources.list", &st) == 0 && st.st_size > 0)
        strv_add(argv, "/etc/apt/sources.list");
    _cleanup_closedir_ DIR *d = opendir("/etc/apt/sources.list.d");
    struct dirent *e;
    for (size_t n = 0; d && n < SOURCES_MAX && (e = readdir(d)); n++) {
        const char *dot = strrchr(e->d_name, '.');
        if (dot && (strcmp(dot, ".list") == 0 || strcmp(dot, ".sources") == 0))
            strv_take(argv, xasprintf("/etc/apt/sources.list.d/%s", e->d_name));
    }
}

/* "$1" is the new root. The user's uid is fixed, because file requests and commands use the number. */
static const char customize[] =
    "chroot \"$1\" groupadd -g 1000 user && chroot \"$1\" useradd -m -u 1000 -g 1000 -s /bin/bash user && "
    "echo 'user ALL=(ALL:ALL) NOPASSWD: ALL' >\"$1/etc/sudoers.d/user\" && chmod 0440 \"$1/etc/sudoers.d/user\" && "
    "echo hutch >\"$1/etc/hostname\" && printf '127.0.0.1 localhost\\n::1 localhost\\n' >\"$1/etc/hosts\" && "
    "rm -f \"$1/etc/resolv.conf\" && : >\"$1/etc/resolv.conf\" && : >\"$1/etc/machine-id\" && "
    "printf 'LANG=C.UTF-8\\n' >\"$1/etc/default/locale\"";

static int builder_run_mmdebstrap(const char *target, int out, struct progress *p, struct err *err)
{
    _cleanup_strv_ struct strv argv = {0};
    char suite[40];
    if (builder_host_suite(suite, err) < 0)
        return -1;
    strv_add(&argv, "mmdebstrap");
    strv_add(&argv, out < 0 ? "--mode=root" : "--mode=unshare");
    strv_add(&argv, "--variant=minbase");
    strv_add(&argv, out < 0 ? "--format=directory" : "--format=tar");
    strv_add(&argv, "--include=" PACKAGES);
    strv_add(&argv, "--dpkgopt=path-exclude=/usr/share/doc/*");
    strv_add(&argv, "--dpkgopt=path-include=/usr/share/doc/*/copyright");
    strv_add(&argv, "--dpkgopt=path-exclude=/usr/share/man/*");
    strv_add(&argv, "--dpkgopt=path-exclude=/usr/share/locale/*");
    strv_take(&argv, xasprintf("--customize-hook=%s", customize));
    strv_add(&argv, suite);
    strv_add(&argv, target);
    builder_add_sources(&argv);
    return builder_run_program(&argv, -1, out, p, err);
}

/* Prefixes a command of an ordinary user with unshare, so that it runs with the same id mapping that keeper uses. */
static void builder_add_namespace(struct strv *argv)
{
    if (geteuid() == 0)
        return;
    strv_add(argv, "unshare");
    strv_add(argv, "--map-root-user");
    strv_add(argv, "--map-auto");
}

static int builder_make_root(const char *dir, struct progress *p, struct err *err)
{
    _cleanup_strv_ struct strv argv = {0};
    _cleanup_free_ char *root = xasprintf("%s/" WORK "/" TEMPLATE_ROOT, dir);
    if (geteuid() == 0)
        return builder_run_mmdebstrap(root, -1, p, err);
    /* mmdebstrap's own namespace cannot enter a user's private directories, so it writes an archive. */
    _cleanup_close_ int tar = openat(p->dirfd, WORK, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (tar < 0 || mkdirat(p->dirfd, WORK "/" TEMPLATE_ROOT, 0755) < 0)
        return err_set(err, ERR_SETUP, errno, "cannot write to %s/" WORK, dir);
    if (builder_run_mmdebstrap("-", tar, p, err) < 0)
        return -1;
    template_set_progress(p->dirfd, "building", "unpacking");
    builder_add_namespace(&argv);
    strv_add(&argv, "tar");
    strv_add(&argv, "--extract");
    strv_add(&argv, "--numeric-owner");
    strv_add(&argv, "--preserve-permissions");
    strv_add(&argv, "--exclude=./dev/*"); /* only real root makes device nodes; sandboxes have a /dev of their own */
    strv_add(&argv, "--file=-");
    strv_take(&argv, xasprintf("--directory=%s", root));
    if (lseek(tar, 0, SEEK_SET) < 0)
        return err_set(err, ERR_SETUP, errno, "cannot read the archive");
    return builder_run_program(&argv, tar, -1, p, err);
}

static int builder_remove_work(const char *dir, struct progress *p, struct err *err)
{
    _cleanup_strv_ struct strv argv = {0};
    struct stat st;
    if (fstatat(p->dirfd, WORK, &st, AT_SYMLINK_NOFOLLOW) < 0 && errno == ENOENT)
        return 0;
    builder_add_namespace(&argv);
    strv_add(&argv, "rm");
    strv_add(&argv, "-rf");
    strv_add(&argv, "--one-file-system");
    strv_take(&argv, xasprintf("%s/" WORK, dir));
    return builder_run_program(&argv, -1, -1, p, err);
}

static int builder_build_base(int dirfd, const char *dir, struct err *err)
{
    struct progress p = {.dirfd = dirfd};
    static const char config[] = "# Made by hutch.\nuser: user\nworkdir: /home/user\n";
    template_set_progress(dirfd, "building", "preparing");
    if (builder_remove_work(dir, &p, err) < 0)
        return -1;
    if (mkdirat(dirfd, WORK, 0755) < 0)
        return err_set(err, ERR_SETUP, errno, "cannot make %s/" WORK, dir);
    if (builder_make_root(dir, &p, err) < 0) {
        struct err ignored;
        (void)builder_remove_work(dir, &p, &ignored);
        return -1;
    }
    template_set_progress(dirfd, "building", "writing to disk");
    _cleanup_close_ int fd = openat(dirfd, WORK "/config", O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (fd < 0 || fd_write_all(fd, config, sizeof config - 1) < 0 || syncfs(fd) < 0 ||
        renameat2(dirfd, WORK, dirfd, TEMPLATE_BASE, RENAME_NOREPLACE) < 0)
        return err_set(err, ERR_SETUP, errno, "cannot put the finished root at %s/" TEMPLATE_BASE, dir);
    (void)unlinkat(dirfd, TEMPLATE_PROGRESS, 0);
    return 0;
}

int template_build_base(int dirfd, const char *dir, struct err *err)
{
    _cleanup_close_ int lock = openat(dirfd, ".base.lock", O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    struct stat st;
    if (lock < 0)
        return err_set(err, ERR_SETUP, errno, "cannot write to %s", dir);
    if (flock(lock, LOCK_EX) < 0)
        return err_set(err, ERR_SETUP, errno, "cannot lock %s/.base.lock", dir);
    if (fstatat(dirfd, TEMPLATE_BASE, &st, 0) == 0)
        return 0;
    int rc = builder_build_base(dirfd, dir, err);
    if (rc < 0)
        template_set_progress(dirfd, "error", err->msg);
    return rc;
}

/* Passes the signal on to our process group, so that mmdebstrap removes its mounts before it ends. */
static void builder_on_sigterm(int signo)
{
    (void)signal(signo, SIG_IGN);
    (void)kill(0, signo);
}

int template_build_main(const char *dir)
{
    struct err err = {0};
    struct sigaction act = {.sa_handler = builder_on_sigterm, .sa_flags = SA_RESTART};
    (void)sigaction(SIGTERM, &act, NULL);
    (void)prctl(PR_SET_PDEATHSIG, SIGTERM);
    log_open("builder", LOG_LEVEL_INFO, 2);
    _cleanup_close_ int dirfd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (dirfd < 0)
        (void)err_set(&err, ERR_SETUP, errno, "cannot open %s", dir);
    else if (template_build_base(dirfd, dir, &err) == 0) {
        log_text(LOG_LEVEL_INFO, "template base is ready");
        return 0;
    }
    log_text(LOG_LEVEL_ERROR, "template base: %s", err.msg);
    return err.code;
}
