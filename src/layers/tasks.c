/* tasks.c - decides which requests may run at the same time, starts their processes, and cleans up after them. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/close_range.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/text.h"
#include "layers/layers-int.h"
#include "layers/numbers.h"

/* Defined if the program is linked with the address sanitizer, which reserves terabytes of addresses. */
extern void __asan_init(void) __attribute__((weak, visibility("default")));

#define JOB_MEMORY_MAX (UINT64_C(2) << 30) /* addresses, which is more than memory */

enum { PUT_OFF_MAX = 64 }; /* requests that may go before a collection that waits */

/* --- which may run ------------------------------------------------------------------------------------------------ */

static bool task_same_name(const char *a, const char *b) { return a[0] != '\0' && strcmp(a, b) == 0; }

/* Whether `a` writes what `b` uses. */
static bool task_disturbs(const struct task *a, const struct task *b)
{
    const struct job_type *ta = job_type_of(a->ask.type), *tb = job_type_of(b->ask.type);
    if (ta->removes && (tb->adds || tb->removes))
        return true;
    if (!ta->writes || !(tb->writes || tb->reads))
        return false;
    return task_same_name(a->ask.stack, b->ask.stack) || task_same_name(a->ask.stack, b->ask.other) ||
           task_same_name(a->ask.blob, b->ask.blob);
}

static bool tasks_clash(const struct task *a, const struct task *b)
{
    return task_same_name(a->ask.sandbox, b->ask.sandbox) || task_same_name(a->ask.volume, b->ask.volume) ||
           task_disturbs(a, b) || task_disturbs(b, a);
}

static bool task_lingers(const struct task *t)
{
    return t->answered && t->state == TASK_RUNNING && !t->ended && job_type_of(t->ask.type)->lingers;
}

static bool task_may_begin(const struct layers *s, const struct task *t)
{
    enum job_class class = job_class_of(&t->ask);
    unsigned alike = 0;
    for (int i = 0; i < LAYERS_TASKS; i++) {
        const struct task *o = &s->tasks[i];
        if (o == t || o->state == TASK_FREE || o->state == TASK_DONE || o->sweeper || task_lingers(o))
            continue;
        /* Limited, or continuous captures would prevent collections for ever. */
        bool put_off = job_type_of(t->ask.type)->urgent && job_type_of(o->ask.type)->removes &&
                       t->serial - o->serial < PUT_OFF_MAX;
        bool before = o->state != TASK_WAITING || (o->serial < t->serial && !put_off);
        if (before && tasks_clash(o, t))
            return false;
        alike += o->state != TASK_WAITING && job_class_of(&o->ask) == class;
    }
    return class == JOB_LIGHT || alike < (class == JOB_PULL ? LAYERS_PULL_MAX : LAYERS_HEAVY_MAX);
}

/* --- processes ---------------------------------------------------------------------------------------------------- */

/* Closes everything above 2 but these. */
static void task_keep_fds(int *fds, size_t n)
{
    unsigned from = 3;
    for (size_t i = 0; i < n; i++) /* few: put in order by hand */
        for (size_t k = i + 1; k < n; k++)
            if (fds[k] < fds[i]) {
                int x = fds[i];
                fds[i] = fds[k];
                fds[k] = x;
            }
    for (size_t i = 0; i < n; i++) {
        if (fds[i] < (int)from)
            continue;
        if ((unsigned)fds[i] > from)
            (void)fd_close_range(from, (unsigned)fds[i] - 1, 0);
        from = (unsigned)fds[i] + 1;
    }
    (void)fd_close_range(from, ~0U, 0);
}

/* Sandboxes wrote what the job reads and could make it use much memory: let it fail alone. */
static void task_limit_memory(void)
{
    struct rlimit r;
    if (__asan_init || getrlimit(RLIMIT_AS, &r) < 0 || r.rlim_cur <= JOB_MEMORY_MAX)
        return;
    r.rlim_cur = JOB_MEMORY_MAX;
    (void)setrlimit(RLIMIT_AS, &r);
}

/* In the child. */
static void task_become_job(const struct layers *s, const struct task *t, struct job *j, pid_t parent, bool net)
{
    const struct layers_place *p = &s->place;
    int keep[12 + LAYERS_FDS_MAX] = {p->root,    p->layers, p->stacks,    p->tmp, p->uppers,
                                     p->volumes, p->blobs,  p->templates, s->run, j->sock};
    size_t n = 10;
    sigset_t none;
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
    if (getppid() != parent)
        _exit(1);
    (void)prctl(PR_SET_NAME, "hutch-stock-job", 0, 0, 0);
    task_limit_memory();
    (void)signal(SIGTERM, SIG_DFL);
    (void)sigemptyset(&none);
    (void)sigprocmask(SIG_SETMASK, &none, NULL);
    if (!net && setns(s->no_net, CLONE_NEWNET) < 0)
        _exit(1);
    for (size_t i = 0; i < t->nfds; i++)
        keep[n++] = t->fds[i];
    task_keep_fds(keep, n);
}

static int task_launch(struct layers *s, struct task *t, job_fn *fn, bool net)
{
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
        return -1;
    pid_t parent = getpid(), pid = fork();
    if (pid == 0) {
        static struct job j;
        j = (struct job){.config = s->config,
                         .place = s->place,
                         .ask = &t->ask,
                         .nfds = t->nfds,
                         .run_dir = s->run,
                         .rootless = s->rootless,
                         .tree_flags = s->rootless ? TREE_USERXATTR : 0,
                         .reply_fd = -1,
                         .sock = pair[1],
                         .serial = t->serial};
        memcpy(j.fds, t->fds, sizeof j.fds);
        task_become_job(s, t, &j, parent, net);
        job_run(&j, fn);
    }
    int saved = errno;
    (void)close(pair[1]);
    int pidfd = pid < 0 ? -1 : (int)syscall(SYS_pidfd_open, pid, 0);
    if (pidfd < 0) {
        saved = pid < 0 ? saved : errno;
        if (pid > 0) {
            (void)kill(pid, SIGKILL);
            (void)waitpid(pid, NULL, 0);
        }
        (void)close(pair[0]);
        errno = saved;
        return -1;
    }
    (void)fcntl(pair[0], F_SETFL, O_RDWR | O_NONBLOCK);
    t->pid = pid;
    t->pidfd = pidfd;
    t->sock = pair[0];
    t->ended = t->drained = false;
    return 0;
}

static void task_close_process(struct task *t)
{
    if (t->pidfd >= 0)
        (void)close(t->pidfd);
    if (t->sock >= 0)
        (void)close(t->sock);
    t->pidfd = t->sock = -1;
    t->pid = 0;
}

static void task_close_fds(struct task *t)
{
    for (size_t i = 0; i < t->nfds; i++)
        (void)close(t->fds[i]);
    t->nfds = 0;
}

static void task_kill(const struct task *t)
{
    if (t->pidfd >= 0 && !t->ended)
        (void)syscall(SYS_pidfd_send_signal, t->pidfd, SIGKILL, NULL, 0);
}

/* --- left by dead jobs -------------------------------------------------------------------------------------------- */

/* Calls `each` for the names in dir that begin with `start`; returns 1 when it returns false. */
static int task_each_named(int dir, const char *start, bool (*each)(void *arg, int dir, const char *name), void *arg)
{
    int copy = openat(dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    _cleanup_closedir_ DIR *d = copy < 0 ? NULL : fdopendir(copy);
    struct dirent *e;
    while (d && (e = readdir(d)) != NULL)
        if (strncmp(e->d_name, start, strlen(start)) == 0 && !each(arg, dir, e->d_name))
            return 1;
    return 0;
}

static bool stop_at_first(void *arg, int dir, const char *name)
{
    (void)arg, (void)dir, (void)name;
    return false;
}

static bool task_remove_left(void *arg, int dir, const char *name)
{
    struct err err = {0};
    (void)arg;
    if (tree_remove(dir, name, &err) < 0)
        log_text(LOG_LEVEL_WARN, "cannot remove %s, which is left of a job: %s", name, err.msg);
    return true;
}

static void tmp_prefix(const struct task *t, char ret[LAYERS_TMP_NAME])
{
    (void)snprintf(ret, LAYERS_TMP_NAME, "t%llu-", (unsigned long long)t->serial);
}

static bool task_left_something(const struct layers *s, const struct task *t)
{
    char start[LAYERS_TMP_NAME];
    tmp_prefix(t, start);
    return task_each_named(s->place.tmp, start, stop_at_first, NULL) == 1;
}

/* Cleaning up is a job of its own: removing a large tree takes long. */
static int job_clean(struct job *j, struct err *err)
{
    char start[LAYERS_TMP_NAME];
    (void)err;
    (void)snprintf(start, sizeof start, "t%llu-", (unsigned long long)j->serial);
    (void)task_each_named(j->place.tmp, start, task_remove_left, NULL);
    return 0;
}

static int job_sweep(struct job *j, struct err *err)
{
    (void)task_each_named(j->place.root, LAYERS_GONE, task_remove_left, NULL);
    return numbers_raise_seed(&j->place, err);
}

/* --- life --------------------------------------------------------------------------------------------------------- */

static struct task *task_free_slot(struct layers *s, bool may_linger)
{
    struct task *found = NULL;
    unsigned jobs = 0, lingering = 0;
    for (int i = 0; i < LAYERS_TASKS; i++) {
        struct task *t = &s->tasks[i];
        if (t->state == TASK_FREE)
            found = found ? found : t;
        else if (task_lingers(t))
            lingering++;
        else
            jobs++;
    }
    return jobs >= LAYERS_JOBS_MAX || (may_linger && lingering >= LAYERS_LINGER_MAX) ? NULL : found;
}

struct task *task_new(struct layers *s, int conn, const struct layers_request *ask, const int *fds, size_t nfds)
{
    struct task *t = task_free_slot(s, job_type_of(ask->type)->lingers);
    if (!t)
        return NULL;
    *t = (struct task){.state = TASK_WAITING,
                       .serial = ++s->next_serial,
                       .conn = conn,
                       .ask = *ask,
                       .nfds = nfds,
                       .pidfd = -1,
                       .sock = -1};
    if (nfds > 0)
        memcpy(t->fds, fds, nfds * sizeof *fds);
    return t;
}

static void task_free(struct task *t)
{
    task_close_process(t);
    task_close_fds(t);
    *t = (struct task){.state = TASK_FREE, .pidfd = -1, .sock = -1};
}

bool task_cancel(struct layers *s, int conn, uint64_t request)
{
    for (int i = 0; i < LAYERS_TASKS; i++) {
        struct task *t = &s->tasks[i];
        if (t->state == TASK_FREE || t->conn != conn || t->ask.request != request || t->answered || t->cancelled)
            continue;
        t->cancelled = true;
        task_kill(t);
        return true;
    }
    return false;
}

void task_conn_gone(struct layers *s, int conn)
{
    for (int i = 0; i < LAYERS_TASKS; i++) {
        struct task *t = &s->tasks[i];
        if (t->state == TASK_FREE || t->conn != conn)
            continue;
        bool on = t->answered || job_type_of(t->ask.type)->goes_on;
        t->conn = -1;
        if (t->state == TASK_WAITING) /* it will be asked again */
            task_free(t);
        else if (!on)
            task_kill(t);
    }
}

/* Hands what a job says on to front. */
void task_read(struct layers *s, struct task *t)
{
    static union {
        struct layers_reply reply;
        struct layers_items items;
    } m;
    if (t->sock < 0 || layers_waits(s, t->conn))
        return;
    int fd = -1;
    size_t nfds = 1;
    ssize_t n = fd_recv(t->sock, &m, sizeof m, &fd, &nfds);
    if (n <= 0) {
        t->drained = n == 0 || errno != EAGAIN || t->ended;
        return;
    }
    _cleanup_close_ int came = nfds > 0 ? fd : -1;
    if (t->state != TASK_RUNNING || t->cancelled || t->answered)
        return;
    t->answered = m.reply.type == LAYERS_REPLY || (m.reply.type == LAYERS_ITEMS && m.items.more == 0);
    layers_send(s, t->conn, &m, (size_t)n, came);
}

void task_reap(struct layers *s, struct task *t)
{
    (void)s;
    if (t->ended || t->pid <= 0 || waitpid(t->pid, &t->status, WNOHANG) != t->pid)
        return;
    t->ended = true;
}

static void task_begin(struct layers *s, struct task *t)
{
    const struct job_type *type = job_type_of(t->ask.type);
    if (task_launch(s, t, type->fn, type->net && t->ask.ref[0]) == 0) {
        task_close_fds(t);
        t->state = TASK_RUNNING;
        return;
    }
    char text[120];
    (void)snprintf(text, sizeof text, "cannot start a job: %s", strerror(errno));
    layers_answer(s, t->conn, t->ask.request, LAYERS_BUSY, text);
    t->answered = true;
    t->state = TASK_DONE;
}

/* Answers a request whose job ended without an answer. */
static void task_conclude(struct layers *s, struct task *t)
{
    char text[160] = "", redo[STACK_ID_MAX + 8];
    t->state = TASK_DONE;
    if (t->answered)
        return;
    const char *sig = WIFSIGNALED(t->how) ? text_signal(WTERMSIG(t->how)) : NULL;
    if (t->cancelled)
        (void)snprintf(text, sizeof text, "cancelled");
    else if (WIFSIGNALED(t->how))
        (void)snprintf(text, sizeof text, "the job was ended by signal %d%s%s%s", WTERMSIG(t->how), sig ? " (" : "",
                       sig ? sig : "", sig ? ")" : "");
    else
        (void)snprintf(text, sizeof text, "the job ended without an answer, with code %d", WEXITSTATUS(t->how));
    /* A begun LAYERS_APPLY must be completed by another job: LAYERS_BUSY makes front ask again. */
    (void)snprintf(redo, sizeof redo, "%s.redo", job_apply_key(&t->ask));
    bool begun = t->ask.type == LAYERS_APPLY && faccessat(s->place.stacks, redo, F_OK, AT_SYMLINK_NOFOLLOW) == 0;
    layers_answer(s, t->conn, t->ask.request,
                  t->cancelled ? LAYERS_CANCELLED
                  : begun      ? LAYERS_BUSY
                               : LAYERS_FAILED,
                  text);
    t->answered = true;
}

static void task_after_job(struct layers *s, struct task *t)
{
    t->how = t->status;
    task_close_process(t);
    if (!task_left_something(s, t)) {
        task_conclude(s, t);
        return;
    }
    t->state = TASK_CLEANING;
    if (task_launch(s, t, job_clean, false) < 0) {
        log_text(LOG_LEVEL_WARN, "cannot put in order what a job left: %s", strerror(errno));
        task_conclude(s, t);
    }
}

static void task_after_clean(struct layers *s, struct task *t)
{
    task_close_process(t);
    if (t->sweeper) {
        task_free(t);
        return;
    }
    if (++t->cleans < LAYERS_CLEAN_TRIES && task_left_something(s, t) && task_launch(s, t, job_clean, false) == 0)
        return;
    task_conclude(s, t);
}

static void task_step(struct layers *s, struct task *t)
{
    while (t->ended && !t->drained && !layers_waits(s, t->conn) && t->sock >= 0)
        task_read(s, t);
    if (t->state == TASK_WAITING && t->cancelled)
        task_conclude(s, t);
    else if (t->state == TASK_WAITING && task_may_begin(s, t))
        task_begin(s, t);
    else if (t->state == TASK_RUNNING && t->ended && t->drained)
        task_after_job(s, t);
    else if (t->state == TASK_CLEANING && t->ended)
        task_after_clean(s, t);
    if (t->state == TASK_DONE)
        task_free(t);
}

void tasks_step(struct layers *s)
{
    for (int i = 0; i < LAYERS_TASKS; i++)
        if (s->tasks[i].state != TASK_FREE)
            task_step(s, &s->tasks[i]);
    /* Tasks may have waited for one that just ended. */
    for (int i = 0; i < LAYERS_TASKS; i++)
        if (s->tasks[i].state == TASK_WAITING)
            task_step(s, &s->tasks[i]);
}

void task_sweep(struct layers *s)
{
    if (task_each_named(s->place.root, LAYERS_GONE, stop_at_first, NULL) == 0)
        return;
    static const struct layers_request nothing;
    struct task *t = task_new(s, -1, &nothing, NULL, 0);
    t->sweeper = true;
    t->state = TASK_CLEANING;
    if (task_launch(s, t, job_sweep, false) < 0)
        task_free(t);
}

void tasks_stop(struct layers *s)
{
    for (int i = 0; i < LAYERS_TASKS; i++)
        if (s->tasks[i].pid > 0)
            task_kill(&s->tasks[i]);
    for (int i = 0; i < LAYERS_TASKS; i++)
        if (s->tasks[i].pid > 0 && !s->tasks[i].ended)
            (void)waitpid(s->tasks[i].pid, NULL, 0);
}
