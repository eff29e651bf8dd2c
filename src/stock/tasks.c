/* tasks.c - requests on their way: which may run beside which, their processes, and what is left when one dies. */
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
#include "stock/stock-int.h"

/* There if the program is built with the address sanitizer, which reserves terabytes; these files need not be. */
extern void __asan_init(void) __attribute__((weak, visibility("default")));

#define JOB_MEMORY_MAX (UINT64_C(2) << 30) /* addresses, which is more than memory */

enum { PUT_OFF_MAX = 64 }; /* requests that may go before a collection that waits */

/* --- which may run ------------------------------------------------------------------------------------------------ */

static bool same(const char *a, const char *b) { return a[0] != '\0' && strcmp(a, b) == 0; }

/* Whether `a` writes what `b` uses. */
static bool disturbs(const struct task *a, const struct task *b)
{
    const struct job_type *ta = job_type_of(a->ask.type), *tb = job_type_of(b->ask.type);
    if (ta->removes && (tb->adds || tb->removes))
        return true;
    if (!ta->writes || !(tb->writes || tb->reads))
        return false;
    return same(a->ask.stack, b->ask.stack) || same(a->ask.stack, b->ask.other) || same(a->ask.blob, b->ask.blob);
}

static bool clash(const struct task *a, const struct task *b)
{
    return same(a->ask.box, b->ask.box) || same(a->ask.volume, b->ask.volume) || disturbs(a, b) || disturbs(b, a);
}

static bool lingers(const struct task *t)
{
    return t->answered && t->state == TASK_RUNNING && !t->ended && job_type_of(t->ask.type)->lingers;
}

static bool may_begin(const struct stock *s, const struct task *t)
{
    enum job_class class = job_class_of(&t->ask);
    unsigned alike = 0;
    for (int i = 0; i < STOCK_TASKS; i++) {
        const struct task *o = &s->tasks[i];
        if (o == t || o->state == TASK_FREE || o->state == TASK_DONE || o->sweeper || lingers(o))
            continue;
        /* Not for ever: whoever captures all day must not keep it away. */
        bool put_off = job_type_of(t->ask.type)->urgent && job_type_of(o->ask.type)->removes &&
                       t->serial - o->serial < PUT_OFF_MAX;
        bool before = o->state != TASK_WAITING || (o->serial < t->serial && !put_off);
        if (before && clash(o, t))
            return false;
        alike += o->state != TASK_WAITING && job_class_of(&o->ask) == class;
    }
    return class == JOB_LIGHT || alike < (class == JOB_PULL ? STOCK_PULL_MAX : STOCK_HEAVY_MAX);
}

/* --- processes ---------------------------------------------------------------------------------------------------- */

/* Closes everything above 2 but these. */
static void keep_only(int *fds, size_t n)
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

/* What it reads was written by sandboxes and can be made to need a lot; the daemon and the other jobs go on then. */
static void limit_memory(void)
{
    struct rlimit r;
    if (__asan_init || getrlimit(RLIMIT_AS, &r) < 0 || r.rlim_cur <= JOB_MEMORY_MAX)
        return;
    r.rlim_cur = JOB_MEMORY_MAX;
    (void)setrlimit(RLIMIT_AS, &r);
}

/* In the child. */
static void become_job(const struct stock *s, const struct task *t, struct job *j, pid_t parent, bool net)
{
    const struct stock_place *p = &s->place;
    int keep[12 + STOCK_FDS_MAX] = {p->root,    p->layers, p->stacks,    p->tmp, p->uppers,
                                    p->volumes, p->blobs,  p->templates, s->run, j->sock};
    size_t n = 10;
    sigset_t none;
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
    if (getppid() != parent)
        _exit(1);
    (void)prctl(PR_SET_NAME, "hutch-stock-job", 0, 0, 0);
    limit_memory();
    (void)signal(SIGTERM, SIG_DFL);
    (void)sigemptyset(&none);
    (void)sigprocmask(SIG_SETMASK, &none, NULL);
    if (!net && setns(s->no_net, CLONE_NEWNET) < 0)
        _exit(1);
    for (size_t i = 0; i < t->nfds; i++)
        keep[n++] = t->fds[i];
    keep_only(keep, n);
}

static int launch(struct stock *s, struct task *t, job_fn *fn, bool net)
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
        become_job(s, t, &j, parent, net);
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

static void close_process(struct task *t)
{
    if (t->pidfd >= 0)
        (void)close(t->pidfd);
    if (t->sock >= 0)
        (void)close(t->sock);
    t->pidfd = t->sock = -1;
    t->pid = 0;
}

static void close_fds(struct task *t)
{
    for (size_t i = 0; i < t->nfds; i++)
        (void)close(t->fds[i]);
    t->nfds = 0;
}

static void kill_task(const struct task *t)
{
    if (t->pidfd >= 0 && !t->ended)
        (void)syscall(SYS_pidfd_send_signal, t->pidfd, SIGKILL, NULL, 0);
}

/* --- what a dead job left ----------------------------------------------------------------------------------------- */

/* Calls `each` for the names in dir that begin so, until it says false. */
static int each_named(int dir, const char *start, bool (*each)(void *arg, int dir, const char *name), void *arg)
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

static bool remove_one(void *arg, int dir, const char *name)
{
    struct err err = {0};
    (void)arg;
    if (tree_remove(dir, name, &err) < 0)
        log_text(LOG_LEVEL_WARN, "cannot remove %s, which is left of a job: %s", name, err.msg);
    return true;
}

static void tmp_prefix(const struct task *t, char ret[STOCK_TMP_NAME])
{
    (void)snprintf(ret, STOCK_TMP_NAME, "t%llu-", (unsigned long long)t->serial);
}

static bool left_something(const struct stock *s, const struct task *t)
{
    char start[STOCK_TMP_NAME], marker[sizeof STOCK_FROZEN + 1 + STOCK_BOX_MAX];
    tmp_prefix(t, start);
    (void)snprintf(marker, sizeof marker, STOCK_FROZEN "/%s", t->ask.box);
    return each_named(s->place.tmp, start, stop_at_first, NULL) == 1 ||
           (t->ask.box[0] && faccessat(s->run, marker, F_OK, AT_SYMLINK_NOFOLLOW) == 0);
}

/* Jobs as well: a large tree takes long to remove, and thawing may have to wait. */
static int job_clean(struct job *j, struct err *err)
{
    char start[STOCK_TMP_NAME];
    (void)snprintf(start, sizeof start, "t%llu-", (unsigned long long)j->serial);
    int r = j->ask->box[0] ? job_box_thaw_left(j->run_dir, j->ask->box, err) : 0;
    if (r < 0)
        log_text(LOG_LEVEL_ERROR, "%s", err->msg);
    (void)each_named(j->place.tmp, start, remove_one, NULL);
    return r;
}

static int job_sweep(struct job *j, struct err *err)
{
    (void)err;
    (void)each_named(j->place.root, STOCK_GONE, remove_one, NULL);
    return 0;
}

/* --- life --------------------------------------------------------------------------------------------------------- */

static struct task *free_slot(struct stock *s, bool may_linger)
{
    struct task *found = NULL;
    unsigned jobs = 0, lingering = 0;
    for (int i = 0; i < STOCK_TASKS; i++) {
        struct task *t = &s->tasks[i];
        if (t->state == TASK_FREE)
            found = found ? found : t;
        else if (lingers(t))
            lingering++;
        else
            jobs++;
    }
    return jobs >= STOCK_JOBS_MAX || (may_linger && lingering >= STOCK_LINGER_MAX) ? NULL : found;
}

struct task *task_new(struct stock *s, int conn, const struct stock_request *ask, const int *fds, size_t nfds)
{
    struct task *t = free_slot(s, job_type_of(ask->type)->lingers);
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
    close_process(t);
    close_fds(t);
    stock_message_free(t->out);
    *t = (struct task){.state = TASK_FREE, .pidfd = -1, .sock = -1};
}

bool task_cancel(struct stock *s, int conn, uint64_t request)
{
    for (int i = 0; i < STOCK_TASKS; i++) {
        struct task *t = &s->tasks[i];
        if (t->state == TASK_FREE || t->conn != conn || t->ask.request != request || t->answered || t->cancelled)
            continue;
        t->cancelled = true;
        stock_message_free(t->out); /* progress at most */
        t->out = NULL;
        kill_task(t);
        return true;
    }
    return false;
}

void task_conn_gone(struct stock *s, int conn)
{
    for (int i = 0; i < STOCK_TASKS; i++) {
        struct task *t = &s->tasks[i];
        if (t->state == TASK_FREE || t->conn != conn)
            continue;
        bool on = t->answered || job_type_of(t->ask.type)->goes_on;
        t->conn = -1;
        stock_message_free(t->out);
        t->out = NULL;
        if (t->state == TASK_WAITING) /* it will be asked again */
            task_free(t);
        else if (!on)
            kill_task(t);
    }
}

static bool is_last(const struct message *m)
{
    return m->m.reply.type == STOCK_REPLY || (m->m.reply.type == STOCK_ITEMS && m->m.items.more == 0);
}

void task_read(struct stock *s, struct task *t)
{
    if (t->sock < 0 || t->out)
        return;
    struct message *m = xcalloc(1, sizeof *m);
    size_t nfds = 1;
    m->fd = -1;
    ssize_t n = fd_recv(t->sock, &m->m, sizeof m->m, &m->fd, &nfds);
    if (n >= 0 && nfds == 0)
        m->fd = -1;
    if (n <= 0) {
        t->drained = n == 0 || errno != EAGAIN || t->ended;
        m->fd = -1;
        stock_message_free(m);
        return;
    }
    m->n = (size_t)n;
    bool last = is_last(m);
    if (t->state != TASK_RUNNING || t->cancelled || t->answered) {
        stock_message_free(m);
        return;
    }
    t->answered = last;
    if (!stock_send(s, t->conn, m))
        t->out = m;
}

void task_reap(struct stock *s, struct task *t)
{
    (void)s;
    if (t->ended || t->pid <= 0 || waitpid(t->pid, &t->status, WNOHANG) != t->pid)
        return;
    t->ended = true;
}

static void begin(struct stock *s, struct task *t)
{
    const struct job_type *type = job_type_of(t->ask.type);
    if (launch(s, t, type->fn, type->net && t->ask.ref[0]) == 0) {
        close_fds(t);
        t->state = TASK_RUNNING;
        return;
    }
    char text[120];
    (void)snprintf(text, sizeof text, "cannot start a job: %s", strerror(errno));
    t->out = stock_message(&t->ask, STOCK_BUSY, text);
    t->answered = true;
    t->state = TASK_DONE;
}

/* The last word for a request whose job gave none. */
static void conclude(const struct stock *s, struct task *t)
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
    /* What was begun and must be done is not over with its job. */
    (void)snprintf(redo, sizeof redo, "%s.redo", job_apply_key(&t->ask));
    bool begun = t->ask.type == STOCK_APPLY && faccessat(s->place.stacks, redo, F_OK, AT_SYMLINK_NOFOLLOW) == 0;
    t->out = stock_message(&t->ask, t->cancelled ? STOCK_CANCELLED : begun ? STOCK_BUSY : STOCK_FAILED, text);
    t->answered = true;
}

static void after_job(struct stock *s, struct task *t)
{
    t->how = t->status;
    close_process(t);
    if (!left_something(s, t)) {
        conclude(s, t);
        return;
    }
    t->state = TASK_CLEANING;
    if (launch(s, t, job_clean, false) < 0) {
        log_text(LOG_LEVEL_WARN, "cannot put in order what a job left: %s", strerror(errno));
        conclude(s, t);
    }
}

static void after_clean(struct stock *s, struct task *t)
{
    close_process(t);
    if (t->sweeper) {
        task_free(t);
        return;
    }
    if (++t->cleans < STOCK_CLEAN_TRIES && left_something(s, t) && launch(s, t, job_clean, false) == 0)
        return;
    conclude(s, t);
}

static void step(struct stock *s, struct task *t)
{
    if (t->out && (t->conn < 0 || !s->conns[t->conn].full)) {
        struct message *m = TAKE_PTR(t->out);
        if (!stock_send(s, t->conn, m))
            t->out = m;
    }
    while (t->ended && !t->drained && !t->out && t->sock >= 0)
        task_read(s, t);
    if (t->state == TASK_WAITING && t->cancelled)
        conclude(s, t);
    else if (t->state == TASK_WAITING && may_begin(s, t))
        begin(s, t);
    else if (t->state == TASK_RUNNING && t->ended && t->drained && !t->out)
        after_job(s, t);
    else if (t->state == TASK_CLEANING && t->ended)
        after_clean(s, t);
    if (t->state == TASK_DONE && t->out) {
        struct message *m = TAKE_PTR(t->out);
        if (!stock_send(s, t->conn, m))
            t->out = m;
    }
    if (t->state == TASK_DONE && !t->out)
        task_free(t);
}

void tasks_step(struct stock *s)
{
    for (int i = 0; i < STOCK_TASKS; i++)
        if (s->tasks[i].state != TASK_FREE)
            step(s, &s->tasks[i]);
    /* What ended may have been waited for. */
    for (int i = 0; i < STOCK_TASKS; i++)
        if (s->tasks[i].state == TASK_WAITING)
            step(s, &s->tasks[i]);
}

void task_sweep(struct stock *s)
{
    if (each_named(s->place.root, STOCK_GONE, stop_at_first, NULL) == 0)
        return;
    static const struct stock_request nothing;
    struct task *t = task_new(s, -1, &nothing, NULL, 0);
    t->sweeper = true;
    t->state = TASK_CLEANING;
    if (launch(s, t, job_sweep, false) < 0)
        task_free(t);
}

void tasks_stop(struct stock *s)
{
    for (int i = 0; i < STOCK_TASKS; i++)
        if (s->tasks[i].pid > 0)
            kill_task(&s->tasks[i]);
    for (int i = 0; i < STOCK_TASKS; i++)
        if (s->tasks[i].pid > 0 && !s->tasks[i].ended)
            (void)waitpid(s->tasks[i].pid, NULL, 0);
}
