/* child.c - a command, between fork and exec. Runs in a copy of init and ends in execve or with a report. */
#include <errno.h>
#include <fcntl.h>
#include <linux/close_range.h>
#include <linux/openat2.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/fd.h"
#include "init/init-int.h"
#include "os/pty.h"
#include "os/rlimits.h"
#include "os/seccomp.h"

#define DEFAULT_PATH "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

enum { OWN_ENV = 4 };
static struct user user;
static char own_env[OWN_ENV][INIT_PATH_MAX + 16];
static const char *envp[OWN_ENV + 2 * INIT_ENV_MAX + 1];
static size_t nenv;

static void child_fail(int report, enum init_code code, const char *fmt, ...)
    __attribute__((noreturn, format(printf, 3, 4)));
static void child_fail(int report, enum init_code code, const char *fmt, ...)
{
    struct spawn_report r = {.code = code};
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(r.text, sizeof r.text, fmt, ap);
    va_end(ap);
    (void)!write(report, &r, sizeof r);
    _exit(127);
}

/* A uid that stands in no file of users: nothing belongs to it but what the command makes. */
static void child_make_user(const struct init *g, uid_t uid, int report)
{
    if (g->args->flags & INIT_ONE_ID)
        child_fail(report, INIT_STATE,
                   "user: own needs more than one uid in the sandbox: give the node's user a range in /etc/subuid");
    user = (struct user){.uid = uid, .gid = (gid_t)uid, .name = "own", .home = "/tmp", .ngroups = 1};
    user.groups[0] = user.gid;
}

static void find_user(const struct init *g, const char *name, int report)
{
    const struct init_args *a = g->args;
    if (name[0] == '\0')
        name = g->user;
    if (!users_find(name, &user))
        child_fail(report, INIT_NO_USER, "invalid username: '%s'", name);
    if ((a->flags & INIT_ONE_ID) && user.uid != a->uid)
        child_fail(report, INIT_DENIED, "user '%s' has uid %u, but only uid %u exists in this sandbox", name, user.uid,
                   a->uid);
    if (a->flags & INIT_ONE_ID)
        user.gid = a->gid;
}

/* The last setting of a name wins. */
static void env_set(const char *kv)
{
    size_t key = strcspn(kv, "=") + 1;
    for (size_t i = 0; i < nenv; i++) {
        if (strncmp(envp[i], kv, key) == 0) {
            envp[i] = kv;
            return;
        }
    }
    envp[nenv++] = kv;
    envp[nenv] = NULL;
}

static void make_env(const struct init *g, const struct init_request *r)
{
    (void)snprintf(own_env[0], sizeof own_env[0], "%s", DEFAULT_PATH);
    (void)snprintf(own_env[1], sizeof own_env[1], "HOME=%s", user.home);
    (void)snprintf(own_env[2], sizeof own_env[2], "USER=%s", user.name);
    (void)snprintf(own_env[3], sizeof own_env[3], "LOGNAME=%s", user.name);
    for (size_t i = 0; i < OWN_ENV; i++)
        env_set(own_env[i]);
    for (size_t i = 0; i < g->nenv; i++)
        env_set(g->env[i]);
    for (size_t i = 0; i < r->nenv; i++)
        env_set(r->env[i]);
}

static int child_enter_dir(const char *path)
{
    struct open_how how = {.flags = O_PATH | O_DIRECTORY | O_CLOEXEC, .resolve = RESOLVE_NO_MAGICLINKS};
    int fd = (int)syscall(SYS_openat2, AT_FDCWD, path, &how, sizeof how);
    return fd < 0 ? -1 : fchdir(fd);
}

static void go_to_cwd(const struct init *g, const struct init_request *r, int report)
{
    char path[INIT_PATH_MAX];
    paths_resolve(path, user.home, g->workdir, r->cwd ? r->cwd : "");
    if (path[0] == '\0')
        child_fail(report, INIT_INVALID, "cwd is longer than %d bytes", INIT_PATH_MAX - 1);
    if (child_enter_dir(path) == 0)
        return;
    if (!r->cwd || r->cwd[0] == '\0') { /* not requested */
        const char *relative = r->has_rights ? rights_relative_path(&r->rights) : NULL;
        if (relative) /* from /, it would open more than what was meant */
            child_fail(
                report, INIT_INVALID,
                "write: '%.160s' is relative, and the working directory cannot be entered: give an absolute path",
                relative);
        (void)chdir("/");
        return;
    }
    if (errno == EACCES)
        child_fail(report, INIT_DENIED, "cwd '%.200s' is not accessible to user '%s'", path, user.name);
    child_fail(report, INIT_INVALID, "cwd '%.200s' does not exist", path);
}

static void take_streams(const struct child_fds *f, const struct init_request *r)
{
    int report = f->report;
    if (f->tty >= 0) {
        struct winsize size = {.ws_col = (unsigned short)r->cols, .ws_row = (unsigned short)r->rows};
        (void)pty_give(f->tty, user.uid, user.gid);
        if (pty_make_controlling(f->tty) < 0 || pty_set_size(f->tty, &size) < 0)
            child_fail(report, INIT_IO, "take the terminal: %s", strerror(errno));
        for (int fd = 0; fd < 3; fd++)
            (void)dup2(f->tty, fd);
        return;
    }
    int in = f->in >= 0 ? f->in : open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (in < 0)
        child_fail(report, INIT_IO, "open /dev/null: %s", strerror(errno));
    /* Give the streams to the user, so that /dev/stdout can be opened by name. */
    if (f->in >= 0)
        (void)fchown(in, user.uid, user.gid);
    (void)fchown(f->out, user.uid, user.gid);
    (void)fchown(f->err, user.uid, user.gid);
    if (dup2(in, 0) < 0 || dup2(f->out, 1) < 0 || dup2(f->err, 2) < 0)
        child_fail(report, INIT_IO, "connect the streams: %s", strerror(errno));
}

static void child_confine(const struct init *g, const struct init_request *r, const struct child_fds *f)
{
    int report = f->report;
    const struct init_args *a = g->args;
    bool strict = a->flags & INIT_STRICT;
    struct rlimits want = {.open_files = a->open_files, .processes = a->processes};
    const char *step = "?";
    if (strict && lock_open_places(g) < 0)
        child_fail(report, INIT_IO, "open the places for Landlock: %s", strerror(errno));
    if (lock_become(g, &user, &step) < 0)
        child_fail(report, INIT_DENIED, "become user '%s' (uid %u): %s: %s", user.name, user.uid, step,
                   strerror(errno));
    if (lock_strict(g, &step) < 0)
        child_fail(report, INIT_IO, "%s: %s", step, strerror(errno));
    go_to_cwd(g, r, report); /* as the user; the filter may refuse openat2 */
    struct spawn_report refused = {0};
    if (r->has_rights && rights_apply(&r->rights, user.home, f->tty, &refused) < 0)
        child_fail(report, (enum init_code)refused.code, "%s", refused.text);
    /* Only now: init may hold more descriptors of ended commands than a command may have. */
    if (rlimits_apply(&want, &step) < 0)
        child_fail(report, INIT_IO, "set the limit on %s: %s", step, strerror(errno));
}

static int try_exec(const char *path, const struct init_request *r)
{
    (void)execve(path, (char *const *)(uintptr_t)r->args, (char *const *)(uintptr_t)envp);
    return errno;
}

/* Searches PATH as a shell does: an unsearchable directory counts as empty. */
static int child_search_path(const struct init_request *r)
{
    char path[2 * INIT_PATH_MAX];
    const char *dirs = NULL;
    int eno = ENOENT;
    for (size_t i = 0; i < nenv; i++)
        if (strncmp(envp[i], "PATH=", 5) == 0)
            dirs = envp[i] + 5;
    for (const char *d = dirs; d; d = *d ? d + 1 : NULL) {
        size_t n = strcspn(d, ":");
        if (n < INIT_PATH_MAX) {
            (void)snprintf(path, sizeof path, "%.*s%s%s", (int)n, d, n ? "/" : "./", r->cmd);
            int e = try_exec(path, r);
            if (e == EACCES)
                eno = EACCES;
            else if (e != ENOENT && e != ENOTDIR)
                return e;
        }
        d += n;
        if (*d == '\0')
            break;
    }
    return eno;
}

/* Resets all signals to default: commands must not inherit what the node's parent ignored (a shell's background job
 * ignores SIGINT). Uses the system call itself: C libraries keep two signals for themselves, and make(1) hands these
 * down ignored. */
static void default_signals(void)
{
    const struct {
        uint64_t handler, flags, restorer, mask;
    } standard = {0}; /* as the kernel has it: SIG_DFL is 0 */
    sigset_t none;
    for (int sig = 1; sig < NSIG; sig++)
        (void)syscall(SYS_rt_sigaction, sig, &standard, NULL, sizeof standard.mask);
    (void)sigemptyset(&none);
    (void)sigprocmask(SIG_SETMASK, &none, NULL);
}

void child_run(struct init *g, const struct command *c, const struct init_request *r, const struct child_fds *f)
{
    int report = f->report;
    (void)setsid();
    if (group_enter(c) < 0)
        child_fail(report, INIT_STATE, "enter the cgroup for the memory of this command: %s", strerror(errno));
    if (r->has_rights && (r->rights.flags & INIT_RIGHTS_OWN_USER))
        child_make_user(g, c->own_uid, report);
    else
        find_user(g, r->user, report);
    make_env(g, r);
    take_streams(f, r);
    child_confine(g, r, f);
    default_signals();
    if (fd_close_range(3, ~0U, CLOSE_RANGE_CLOEXEC) < 0)
        child_fail(report, INIT_IO, "mark descriptors: %s", strerror(errno));
    int eno = strchr(r->cmd, '/') ? try_exec(r->cmd, r) : child_search_path(r);
    if (eno == ENOENT || eno == ENOTDIR)
        child_fail(report, INIT_NOT_FOUND, "command '%.160s' not found%s", r->cmd,
                   strchr(r->cmd, '/') ? "" : " in PATH");
    child_fail(report,
               eno == EACCES || eno == EPERM ? INIT_DENIED
               : eno == E2BIG                ? INIT_LIMIT
                                             : INIT_IO,
               "cannot execute '%.160s': %s", r->cmd, strerror(eno));
}
