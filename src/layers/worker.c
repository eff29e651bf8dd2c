/* worker.c - the job's side of an image worker: starts it with only its descriptors, reads its messages, and kills it
 * when it is silent for too long.
 */
#include "layers/worker.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/capability.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "base/text.h"
#include "layers/jobs.h"
#include "os/caps.h"

enum {
    ETC_MAX = 1 << 20,
    HIGH_FD = 100,
    PROGRAM_FD = IMAGE_FDS, /* closed by the exec */
    ARGS_MAX = 16,
    LAST_WORDS_MS = 2000,
    NOBODY = 65534,
};
#define CHROOT (UINT64_C(1) << CAP_SYS_CHROOT)

/* --- its root
 * ------------------------------------------------------------------------------------------------------ */

static int worker_put_etc(int etc, const char *name, const char *text, size_t n, struct err *err)
{
    _cleanup_close_ int fd = openat(etc, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    if (fd < 0 || fd_write_all(fd, text, n) < 0)
        return err_set(err, ERR_SETUP, errno, "make %s for an image worker", name);
    return 0;
}

/* Copies this host's files for resolving names, unread. */
static int worker_fill_etc(int root, struct err *err)
{
    static const char order[] = "hosts: files dns\n";
    static const char *const copies[] = {"resolv.conf", "hosts"};
    if (mkdirat(root, "etc", 0755) < 0)
        return err_set(err, ERR_SETUP, errno, "make a root for an image worker");
    _cleanup_close_ int etc = openat(root, "etc", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (etc < 0 || worker_put_etc(etc, "nsswitch.conf", order, sizeof order - 1, err) < 0)
        return -1;
    for (size_t i = 0; i < ARRAY_LEN(copies); i++) {
        _cleanup_buf_ struct buf b = {0};
        char path[32];
        (void)snprintf(path, sizeof path, "/etc/%s", copies[i]);
        if (fd_read_file(AT_FDCWD, path, ETC_MAX, &b) == 0 && worker_put_etc(etc, copies[i], buf_str(&b), b.n, err) < 0)
            return -1;
    }
    return 0;
}

static int worker_make_root(struct job *j, bool net, struct err *err)
{
    char name[LAYERS_TMP_NAME];
    _cleanup_close_ int fd = job_tmp(j, false, name, err);
    if (fd < 0 || (net && worker_fill_etc(fd, err) < 0))
        return -1;
    if (fchmod(fd, 0555) < 0)
        return err_set(err, ERR_SETUP, errno, "make a root for an image worker");
    return TAKE_FD(fd);
}

/* --- starting
 * ------------------------------------------------------------------------------------------------------ */

/* Keeps one capability across the change of user and the exec: the worker needs it to chroot. */
static int worker_keep_chroot(void)
{
    struct __user_cap_header_struct head = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct data[2] = {{.effective = CHROOT, .permitted = CHROOT, .inheritable = CHROOT}};
    if (syscall(SYS_capset, &head, data) < 0)
        return -1;
    return prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, CAP_SYS_CHROOT, 0, 0);
}

static int worker_drop_privileges(const struct job *j, bool net)
{
    const struct layers_config *c = j->config;
    bool root = geteuid() == 0;
    uid_t uid = c->image_uid != (uid_t)-1 ? c->image_uid : NOBODY;
    gid_t gid = c->image_uid != (uid_t)-1 ? c->image_gid : NOBODY;
    if (!net && unshare(CLONE_NEWNET) < 0)
        return -1;
    if (unshare(CLONE_NEWIPC | CLONE_NEWUTS) < 0 || prctl(PR_SET_KEEPCAPS, 1, 0, 0, 0) < 0 || caps_bound(CHROOT) < 0)
        return -1;
    if (root && (setgroups(0, NULL) < 0 || setresgid(gid, gid, gid) < 0 || setresuid(uid, uid, uid) < 0))
        return -1;
    return worker_keep_chroot();
}

/* In the child: leaves descriptors 3 to 7 and standard error open, and no others. */
static int worker_place_fds(const int fds[IMAGE_FDS], int program)
{
    if (dup3(program, HIGH_FD + PROGRAM_FD, O_CLOEXEC) < 0)
        return -1;
    for (int i = IMAGE_FD_IN; i < IMAGE_FDS; i++)
        if (fds[i] >= 0 && dup3(fds[i], HIGH_FD + i, 0) < 0)
            return -1;
    for (int i = IMAGE_FD_IN; i < IMAGE_FDS; i++) {
        if (fds[i] < 0)
            (void)close(i);
        else if (dup2(HIGH_FD + i, i) < 0)
            return -1;
    }
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    if (null < 0 || dup2(null, 0) < 0 || dup2(null, 1) < 0)
        return -1;
    if (dup3(HIGH_FD + PROGRAM_FD, PROGRAM_FD, O_CLOEXEC) < 0)
        return -1;
    return fd_close_range(PROGRAM_FD + 1, ~0U, 0);
}

static _Noreturn void worker_exec(const struct job *j, const struct worker_plan *p, const int fds[IMAGE_FDS],
                                  pid_t parent)
{
    const char *argv[ARGS_MAX] = {"hutch-node", "image"};
    static char *env[] = {"PATH=/usr/bin:/bin", NULL};
    size_t n = 2;
    for (size_t i = 0; i < ARRAY_LEN(p->args) && p->args[i]; i++)
        argv[n++] = p->args[i];
    argv[n] = NULL;
    (void)alarm(0);
    (void)signal(SIGALRM, SIG_DFL);
    /* Open it with our privileges: the worker's user may have no access to the directories above it. */
    int program = open(j->config->node_program, O_RDONLY | O_CLOEXEC);
    if (program < 0)
        _exit(127);
    if (worker_drop_privileges(j, p->net) < 0 || prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0) < 0 || getppid() != parent ||
        worker_place_fds(fds, program) < 0)
        _exit(126);
    (void)syscall(SYS_execveat, PROGRAM_FD, "", argv, env, AT_EMPTY_PATH);
    _exit(127);
}

static volatile pid_t watched = -1;

/* Kills the silent worker; the job that reads its output then sees it end early and reports that. */
static void worker_on_alarm(int sig)
{
    (void)sig;
    if (watched > 0)
        (void)kill(watched, SIGKILL);
}
void worker_waits(bool now) { (void)alarm(now ? WORKER_STALL_S : 0); }

int worker_begin(struct job *j, const struct worker_plan *p, struct worker *ret, struct err *err)
{
    int pair[2];
    struct sigaction sa = {.sa_handler = worker_on_alarm};
    *ret = (struct worker)WORKER_INIT;
    ret->job = j;
    if (!j->config->node_program)
        return job_fail(j, LAYERS_HOST, err,
                        "the layer store was started without a program for image workers (--node)");
    _cleanup_close_ int root = worker_make_root(j, p->net, err);
    if (root < 0)
        return -1;
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
        return err_set(err, ERR_SETUP, errno, "make a socket for an image worker");
    const int fds[IMAGE_FDS] = {-1, -1, -1, p->in, p->out, pair[1], p->more, root};
    pid_t parent = getpid();
    ret->pid = fork();
    if (ret->pid == 0)
        worker_exec(j, p, fds, parent);
    (void)close(pair[1]);
    ret->control = pair[0];
    if (ret->pid < 0)
        return err_set(err, ERR_SETUP, errno, "start an image worker");
    (void)sigaction(SIGALRM, &sa, NULL);
    watched = ret->pid;
    return 0;
}

/* --- listening
 * ----------------------------------------------------------------------------------------------------- */

static int worker_fail_ended(struct worker *w, struct err *err)
{
    int status = 0;
    worker_waits(true); /* it may have closed its end without exiting */
    if (w->pid > 0 && waitpid(w->pid, &status, 0) == w->pid) {
        watched = -1;
        w->pid = -1;
        if (WIFEXITED(status) && WEXITSTATUS(status) == 127)
            return job_fail(w->job, LAYERS_HOST, err, "the image worker %s cannot be run",
                            w->job->config->node_program);
        if (WIFEXITED(status) && WEXITSTATUS(status) == 126)
            return job_fail(w->job, LAYERS_HOST, err, "the image worker could not be confined");
        if (WIFSIGNALED(status) && WTERMSIG(status) == SIGSYS)
            return job_fail(
                w->job, LAYERS_BAD_DATA, err,
                "the image worker was ended because it did what no image worker does; the image is not to be "
                "trusted");
        if (WIFSIGNALED(status))
            return job_fail(w->job, LAYERS_BAD_DATA, err, "the image worker was ended by SIG%s",
                            text_signal(WTERMSIG(status)) ? text_signal(WTERMSIG(status)) : "?");
    }
    return job_fail(w->job, LAYERS_FAILED, err, "the image worker ended without a word");
}

static int worker_fail_reported(struct worker *w, const struct image_message *m, struct err *err)
{
    static const enum layers_error errors[] = {
        [IMAGE_BAD_DATA] = LAYERS_BAD_DATA, [IMAGE_TOO_LARGE] = LAYERS_TOO_LARGE, [IMAGE_NOT_FOUND] = LAYERS_NOT_FOUND,
        [IMAGE_DENIED] = LAYERS_DENIED,     [IMAGE_NETWORK] = LAYERS_FAILED,      [IMAGE_HOST] = LAYERS_HOST,
    };
    _cleanup_buf_ struct buf text = {0};
    char copy[IMAGE_TEXT_MAX + 1];
    memcpy(copy, m->text, IMAGE_TEXT_MAX);
    copy[IMAGE_TEXT_MAX] = '\0';
    text_add_safe(&text, copy, IMAGE_TEXT_MAX);
    return job_fail(w->job, m->failure > 0 && m->failure < ARRAY_LEN(errors) ? errors[m->failure] : LAYERS_BAD_DATA,
                    err, "%s", buf_str(&text));
}

int worker_next(struct worker *w, struct image_message *ret, int *ret_fd, struct err *err)
{
    for (;;) {
        int fd = -1;
        size_t nfds = 1;
        worker_waits(true);
        ssize_t n = fd_recv(w->control, ret, sizeof *ret, &fd, &nfds);
        worker_waits(false);
        if (n < 0 && errno == EINTR)
            continue;
        bool good = n == (ssize_t)sizeof *ret && ret->version == IMAGE_VERSION;
        if (nfds > 0 && (!good || ret->type != IMAGE_CONFIG || !ret_fd)) {
            (void)close(fd);
            fd = -1;
        }
        if (n <= 0)
            return worker_fail_ended(w, err);
        if (!good)
            return job_fail(w->job, LAYERS_BAD_DATA, err, "the image worker said something that is no message");
        if (ret->type == IMAGE_PROGRESS) {
            char text[40];
            size_t len = strnlen(ret->text, sizeof text - 1);
            for (size_t i = 0; i < len; i++)
                text[i] = ret->text[i] >= ' ' && ret->text[i] < 0x7f ? ret->text[i] : '?';
            text[len] = '\0';
            job_progress(w->job, ret->done, ret->total, text);
            continue;
        }
        if (ret->type == IMAGE_FAILED)
            return worker_fail_reported(w, ret, err);
        if (ret_fd)
            *ret_fd = fd;
        return 0;
    }
}

int worker_answer(struct worker *w, enum image_type type, struct err *err)
{
    struct image_message m = {.version = IMAGE_VERSION, .type = type};
    worker_waits(true);
    int r = fd_send(w->control, &m, sizeof m, NULL, 0);
    worker_waits(false);
    return r < 0 ? worker_fail_ended(w, err) : 0;
}

int worker_blame(struct worker *w, struct err *err)
{
    struct image_message m;
    struct err said = {0};
    struct pollfd p = {.fd = w->control, .events = POLLIN};
    /* Give the worker some time to report the failure; its first message decides. */
    while (poll(&p, 1, LAST_WORDS_MS) > 0) {
        uint32_t before = w->job->reply.error;
        ssize_t n = recv(w->control, &m, sizeof m, MSG_PEEK | MSG_DONTWAIT);
        if (n == (ssize_t)sizeof m && m.type == IMAGE_PROGRESS) {
            (void)recv(w->control, &m, sizeof m, MSG_DONTWAIT);
            continue;
        }
        bool spoke = n == (ssize_t)sizeof m && m.type == IMAGE_FAILED;
        if ((spoke || n <= 0) && worker_next(w, &m, NULL, &said) < 0)
            *err = said;
        else
            w->job->reply.error = before;
        break;
    }
    return -1;
}

void worker_close(struct worker *w)
{
    (void)alarm(0);
    watched = -1;
    if (w->control >= 0)
        (void)close(w->control);
    w->control = -1;
    if (w->pid > 0) {
        (void)kill(w->pid, SIGKILL);
        (void)waitpid(w->pid, NULL, 0);
    }
    w->pid = -1;
}
