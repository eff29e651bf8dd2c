/* Starts keeper, stock, egress, front and the builder, and starts them again when they end. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "base/cleanup.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/strv.h"
#include "egress/proto.h"
#include "front/procs.h"
#include "front/template-build.h"
#include "keeper/keeper.h"
#include "loop/loop.h"
#include "os/idrange.h"
#include "stock/jobs.h"

enum {
    BACKOFF_FIRST_MS = 100,
    BACKOFF_MAX_MS = 2000,    /* clients wait as long: a child that dies at its start costs this much, not more */
    BACKOFF_FORGET_MS = 1000, /* a child that lived this long was at work, and starts again at once */
    EGRESS_READY_MS = 10000,  /* a first egress that takes longer is given up: sandboxes then have no network */
    STOP_FRONT_MS = 10000,
    STOP_MS = 5000,
    RUN_LOOK_MS = 1000,
};

enum role { KEEPER, STOCK, EGRESS, FRONT, BUILDER, ROLES };

struct child {
    const char *name;
    pid_t pid; /* 0: not running */
    uint64_t started_ms, backoff_ms;
    loop_id timer;
    bool again; /* it was told to end so that the next one starts */
};
struct supervisor {
    struct loop *loop;
    const struct config *config;
    struct node_files *files;
    char *hutch, *self; /* programs */
    struct child child[ROLES];
    int config_fd, ready_read, ready_write;
    int egress_read, egress_write; /* egress says that it is ready */
    loop_id ready_watch, egress_watch, egress_timer;
    bool ready, stopping, checking;
    bool egress_decided; /* it is ready, or there is none: front may start */
    int exit_code;
    loop_id stop_timer, run_timer;
    bool recovering; /* the run directory is gone: everything stops, and starts again in a new one */
    char run_trouble[1024];
    char domain_trouble[512];
    struct err *err;
};

/* --- starting ----------------------------------------------------------------------------------------------------- */

static pid_t start_keeper(struct supervisor *s)
{
    const struct config *c = s->config;
    _cleanup_strv_ struct strv argv = {0};
    int fds[] = {s->files->keeper_socket, s->files->run, s->files->state};
    _Static_assert(KEEPER_FD_SOCKET == 3 && KEEPER_FD_RUN == 4 && KEEPER_FD_STATE == 5, "in this order");
    strv_add(&argv, "hutch");
    strv_add(&argv, "keeper");
    if (s->files->drop)
        strv_take(&argv, xasprintf("--front-gid=%u", s->files->gid));
    strv_take(&argv, xasprintf("--max-sandboxes=%u", c->max_sandboxes));
    strv_take(&argv, xasprintf("--default-cpu=%u", c->default_cpu_milli));
    strv_take(&argv, xasprintf("--default-memory=%llu", (unsigned long long)c->default_memory));
    strv_take(&argv, xasprintf("--default-disk=%llu", (unsigned long long)c->default_disk));
    strv_take(&argv, xasprintf("--default-inodes=%llu", (unsigned long long)c->default_inodes));
    strv_take(&argv, xasprintf("--default-pids=%u", c->default_pids));
    strv_take(&argv, xasprintf("--default-open-files=%u", c->default_open_files));
    strv_take(&argv, xasprintf("--templates=%s", c->templates));
    strv_take(&argv, xasprintf("--driver=%s", c->driver));
    _cleanup_free_ char *dirs = xstrdup(c->host_dirs ? c->host_dirs : "");
    char *save = NULL;
    for (char *one = strtok_r(dirs, ",", &save); one; one = strtok_r(NULL, ",", &save))
        strv_take(&argv, xasprintf("--host-dir=%s", one));
    return node_launch(s->hutch, argv.v, fds, ARRAY_LEN(fds), NULL);
}

static pid_t start_stock(struct supervisor *s)
{
    const struct node_files *n = s->files;
    _cleanup_strv_ struct strv argv = {0};
    int fds[] = {n->stock_socket, n->run, n->state};
    _Static_assert(STOCK_FD_SOCKET == 3 && STOCK_FD_RUN == 4 && STOCK_FD_STATE == 5, "in this order");
    strv_add(&argv, "hutch");
    strv_add(&argv, "stock");
    strv_take(&argv, xasprintf("--templates=%s", s->config->templates));
    strv_take(&argv, xasprintf("--node=%s", s->self));
    if (s->config->infra)
        strv_take(&argv, xasprintf("--infra=%s", s->config->infra));
    if (s->config->image_registries)
        strv_take(&argv, xasprintf("--registries=%s", s->config->image_registries));
    if (n->drop) {
        strv_take(&argv, xasprintf("--image-uid=%u", n->image_uid));
        strv_take(&argv, xasprintf("--image-gid=%u", n->image_gid));
        strv_take(&argv, xasprintf("--front-gid=%u", n->gid));
    }
    return node_launch(s->hutch, argv.v, fds, ARRAY_LEN(fds), NULL);
}

static pid_t start_front(struct supervisor *s)
{
    const struct node_files *n = s->files;
    _cleanup_strv_ struct strv argv = {0};
    int fds[FRONT_FD_END - 3] = {
        s->config_fd, n->run,         n->store,   n->templates, n->listen,         n->listen_tls,   n->tls_cert,
        n->tls_key,   s->ready_write, n->presets, n->network,   n->webhook_secret, n->webhook_trust};
    strv_add(&argv, "hutch-node");
    strv_add(&argv, "front");
    strv_take(&argv, xasprintf("--admin=%s", n->admin_digest));
    strv_take(&argv, xasprintf("--admin-hint=%s", n->admin_key + strlen(n->admin_key) - 4));
    if (!n->egress.on)
        strv_add(&argv, "--no-egress");
    struct node_user u = {n->uid, n->gid};
    return node_launch(s->self, argv.v, fds, ARRAY_LEN(fds), n->drop ? &u : NULL);
}

static pid_t start_egress(struct supervisor *s)
{
    const struct node_egress *e = &s->files->egress;
    _cleanup_strv_ struct strv argv = {0};
    int fds[] = {e->config,    e->keeper, e->front, e->ca_cert,     e->ca_key,
                 e->vault_key, e->audit,  e->trust, s->egress_write};
    _Static_assert(EGRESS_FD_CONFIG == 3 && EGRESS_FD_READY == 11 && EGRESS_FD_END - 3 == ARRAY_LEN(fds),
                   "in this order");
    /* The descriptors' offsets are shared with the egress before this one. */
    const int files[] = {e->config, e->ca_cert, e->ca_key, e->vault_key, e->trust};
    for (size_t i = 0; i < ARRAY_LEN(files); i++)
        if (files[i] >= 0)
            (void)lseek(files[i], 0, SEEK_SET);
    strv_add(&argv, "hutch-node");
    strv_add(&argv, "egress");
    struct node_user u = {e->uid, e->gid};
    return node_launch(s->self, argv.v, fds, ARRAY_LEN(fds), s->files->drop ? &u : NULL);
}

static pid_t start_builder(struct supervisor *s)
{
    _cleanup_strv_ struct strv argv = {0};
    strv_add(&argv, "hutch-node");
    strv_add(&argv, "build-base");
    strv_add(&argv, s->config->templates);
    return node_launch(s->self, argv.v, NULL, 0, NULL);
}

static void start(struct supervisor *s, enum role role);
static void start_keeper_again(void *arg) { start(arg, KEEPER); }
static void start_stock_again(void *arg) { start(arg, STOCK); }
static void start_egress_again(void *arg) { start(arg, EGRESS); }
static void start_front_again(void *arg) { start(arg, FRONT); }

static const struct {
    pid_t (*first)(struct supervisor *s);
    loop_fn *again; /* NULL: it runs once */
} starters[ROLES] = {[KEEPER] = {start_keeper, start_keeper_again},
                     [STOCK] = {start_stock, start_stock_again},
                     [EGRESS] = {start_egress, start_egress_again},
                     [FRONT] = {start_front, start_front_again},
                     [BUILDER] = {start_builder, NULL}};

static void start(struct supervisor *s, enum role role)
{
    struct child *ch = &s->child[role];
    ch->timer = 0;
    if (s->stopping || s->recovering || ch->pid > 0)
        return;
    ch->pid = starters[role].first(s);
    ch->started_ms = loop_now(s->loop);
    if (ch->pid < 0) {
        ch->pid = 0;
        log_text(LOG_LEVEL_ERROR, "cannot start %s: %s", ch->name, strerror(errno));
        if (starters[role].again)
            ch->timer = loop_timer(s->loop, 1000, starters[role].again, s);
        return;
    }
    struct log_line l;
    if (log_start(&l, LOG_LEVEL_INFO, "started")) {
        log_str(&l, "child", ch->name);
        log_u64(&l, "pid", (uint64_t)ch->pid);
        log_end(&l);
    }
}

/* --- ends --------------------------------------------------------------------------------------------------------- */

static void say_end(const struct child *ch, int status)
{
    struct log_line l;
    if (!log_start(&l, LOG_LEVEL_WARN, "child ended"))
        return;
    log_str(&l, "child", ch->name);
    log_u64(&l, WIFSIGNALED(status) ? "signal" : "code",
            (uint64_t)(WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status)));
    log_end(&l);
}

/* The next one to stop, or the end. Front goes first: nothing new is asked of keeper and stock then. */
static void stop_next(struct supervisor *s);
static void run_recovered(struct supervisor *s);
static void stop_hard(void *arg)
{
    struct supervisor *s = arg;
    s->stop_timer = 0;
    for (int i = 0; i < ROLES; i++)
        if (s->child[i].pid > 0 && ((i != KEEPER && i != STOCK) || s->child[FRONT].pid == 0)) {
            log_text(LOG_LEVEL_WARN, "%s did not stop in time", s->child[i].name);
            (void)kill(s->child[i].pid, SIGKILL);
        }
}

static void stop_next(struct supervisor *s)
{
    loop_timer_del(s->loop, s->stop_timer);
    s->stop_timer = 0;
    enum role order[] = {FRONT, BUILDER, EGRESS, STOCK, KEEPER};
    for (size_t i = 0; i < ARRAY_LEN(order); i++)
        if (s->child[order[i]].pid > 0 && (s->stopping || order[i] != BUILDER)) {
            (void)kill(s->child[order[i]].pid, SIGTERM);
            s->stop_timer = loop_timer(s->loop, order[i] == FRONT ? STOP_FRONT_MS : STOP_MS, stop_hard, s);
            return;
        }
    if (s->stopping)
        loop_stop(s->loop);
    else
        run_recovered(s);
}

/* Nothing runs that holds the old directory. If it cannot be made yet, look_at_run() tries again. */
static void run_recovered(struct supervisor *s)
{
    struct err err = {0};
    if (node_run_renew(s->config, s->files, &err) < 0) {
        if (strcmp(s->run_trouble, err.msg) != 0)
            log_text(LOG_LEVEL_ERROR, "the run directory cannot be made again: %s", err.msg);
        (void)snprintf(s->run_trouble, sizeof s->run_trouble, "%s", err.msg);
        return;
    }
    s->recovering = false;
    s->run_trouble[0] = '\0';
    start(s, KEEPER);
    start(s, STOCK);
    if (s->files->egress.on)
        start(s, EGRESS);
    if (s->egress_decided)
        start(s, FRONT);
}

static void look_at_run(void *arg)
{
    struct supervisor *s = arg;
    struct err err = {0};
    s->run_timer = loop_timer(s->loop, RUN_LOOK_MS, look_at_run, s);
    if (s->recovering && !s->stop_timer) {
        stop_next(s);
    } else if (!s->recovering && node_run_lost(s->config, s->files)) {
        log_text(LOG_LEVEL_ERROR,
                 "the run directory %s, or a file in it that the node needs, was removed; it is made again and the "
                 "processes of the node start again; sandboxes live on",
                 s->config->run);
        s->recovering = true;
        for (int i = 0; i < ROLES; i++)
            if (i != BUILDER)
                loop_timer_del(s->loop, s->child[i].timer);
        stop_next(s);
    }
    if (s->recovering || !node_ranges_lost(s->files))
        return;
    log_text(LOG_LEVEL_ERROR, "%s was removed; it is made again and keeper starts again", IDRANGE_FILE);
    if (node_ranges_open(s->files, &err) < 0) {
        log_text(LOG_LEVEL_ERROR, "%s", err.msg);
    } else if (s->child[KEEPER].pid > 0) {
        s->child[KEEPER].again = true;
        (void)kill(s->child[KEEPER].pid, SIGTERM);
    }
}

static void stop(struct supervisor *s, int exit_code)
{
    if (s->stopping)
        return;
    s->stopping = true;
    s->exit_code = exit_code;
    node_notify("STOPPING=1");
    for (int i = 0; i < ROLES; i++)
        loop_timer_del(s->loop, s->child[i].timer);
    loop_timer_del(s->loop, s->egress_timer);
    loop_timer_del(s->loop, s->run_timer);
    stop_next(s);
}

static void builder_ended(struct supervisor *s, int status)
{
    struct stat st;
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
        return;
    /* Killed before it could say why. */
    if (WIFSIGNALED(status) && fstatat(s->files->templates, TEMPLATE_BASE, &st, 0) < 0)
        template_set_progress(s->files->templates, "error", "the builder was killed; start hutch serve again");
}

/* Whether there is a way out is known: front, which tells clients, can start. */
static void egress_decided(struct supervisor *s, const char *trouble)
{
    if (s->egress_decided || s->stopping)
        return;
    s->egress_decided = true;
    loop_timer_del(s->loop, s->egress_timer);
    if (trouble) {
        s->files->egress.on = false;
        (void)snprintf(s->files->egress.trouble, sizeof s->files->egress.trouble, "%s", trouble);
        log_text(LOG_LEVEL_ERROR, "sandboxes have no network: %s", trouble);
    }
    start(s, FRONT);
}

static void egress_too_late(void *arg)
{
    struct supervisor *s = arg;
    s->egress_timer = 0;
    egress_decided(s, "egress was not ready in time; see its messages above");
    if (s->child[EGRESS].pid > 0)
        (void)kill(s->child[EGRESS].pid, SIGKILL);
}

static void ended(struct supervisor *s, enum role role, int status)
{
    struct child *ch = &s->child[role];
    uint64_t lived = loop_now(s->loop) - ch->started_ms;
    ch->pid = 0;
    if (s->stopping || (s->recovering && role != BUILDER)) {
        stop_next(s);
        return;
    }
    if (ch->again) {
        ch->again = false;
        start(s, role);
        return;
    }
    if (role == BUILDER) {
        builder_ended(s, status);
        return;
    }
    say_end(ch, status);
    /* What it ends with itself it has said, and it would end so again. One that was killed is started again; front waits for
     * that, as long as for a slow one. */
    if (role == EGRESS && !s->egress_decided && !WIFSIGNALED(status))
        egress_decided(s, "egress could not start; see its message above");
    if (role == EGRESS && !s->files->egress.on)
        return;
    if (!s->ready && role != EGRESS) { /* what does not start the first time is wrong set up: it has said why */
        int code = WIFEXITED(status) && WEXITSTATUS(status) ? WEXITSTATUS(status) : ERR_SETUP;
        (void)err_set(s->err, (enum err_code)(code >= ERR_USAGE && code <= ERR_INTERNAL ? code : ERR_SETUP), 0,
                      "%s could not start; see its message above", ch->name);
        stop(s, code);
        return;
    }
    if (lived >= BACKOFF_FORGET_MS || ch->backoff_ms == 0)
        ch->backoff_ms = BACKOFF_FIRST_MS;
    else
        ch->backoff_ms = ch->backoff_ms * 2 > BACKOFF_MAX_MS ? BACKOFF_MAX_MS : ch->backoff_ms * 2;
    /* The first one is not waited for: clients are already in the queue. */
    uint64_t wait = ch->backoff_ms == BACKOFF_FIRST_MS ? 0 : ch->backoff_ms;
    ch->timer = loop_timer(s->loop, wait, starters[role].again, s);
}

static void on_child(void *arg, int signo)
{
    struct supervisor *s = arg;
    int status;
    (void)signo;
    for (pid_t pid; (pid = waitpid(-1, &status, WNOHANG)) > 0;)
        for (int i = 0; i < ROLES; i++)
            if (s->child[i].pid == pid)
                ended(s, (enum role)i, status);
}

static void on_stop(void *arg, int signo)
{
    struct supervisor *s = arg;
    log_text(LOG_LEVEL_INFO, "%s: stopping; sandboxes live on", signo == SIGINT ? "interrupted" : "told to stop");
    stop(s, 0);
}

/* --- readiness ---------------------------------------------------------------------------------------------------- */

static void check_domain(void *arg)
{
    struct supervisor *s = arg;
    node_check_domain(s->config->domain, s->domain_trouble);
}

static void domain_checked(void *arg)
{
    struct supervisor *s = arg;
    s->checking = false;
    if (!*s->domain_trouble)
        return;
    printf("hutch: %s\n", s->domain_trouble);
    (void)fflush(stdout);
}

static void on_ready(void *arg, int fd, unsigned events)
{
    struct supervisor *s = arg;
    char byte;
    (void)events;
    if (read(fd, &byte, 1) != 1 || s->ready)
        return;
    s->ready = true;
    node_say_ready(s->config, s->files);
    node_notify("READY=1");
    s->checking = true;
    loop_work(s->loop, check_domain, domain_checked, s);
}

static void on_egress_ready(void *arg, int fd, unsigned events)
{
    struct supervisor *s = arg;
    char bytes[16];
    (void)events;
    if (read(fd, bytes, sizeof bytes) > 0)
        egress_decided(s, NULL);
}

/* --- programs ----------------------------------------------------------------------------------------------------- */

static int find_programs(struct supervisor *s, struct err *err)
{
    char path[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", path, sizeof path - 1);
    if (n < 0)
        return err_set(err, ERR_SETUP, errno, "cannot find our own program: /proc is not mounted");
    path[n] = '\0';
    s->self = xstrdup(path);
    *strrchr(path, '/') = '\0';
    static const char *const places[] = {"hutch", "../../bin/hutch"};
    for (size_t i = 0; i < ARRAY_LEN(places) && !s->hutch; i++) {
        _cleanup_free_ char *try = xasprintf("%s/%s", path, places[i]);
        if (access(try, X_OK) == 0)
            s->hutch = TAKE_PTR(try);
    }
    return s->hutch ? 0
                    : err_set(err, ERR_SETUP, 0, "the program hutch is neither in %s nor in %s/../../bin", path, path);
}

/* A pipe on which a child says one byte. */
static int watch_pipe(struct supervisor *s, loop_fd_fn *fn, int *ret_read, int *ret_write, loop_id *ret,
                      struct err *err)
{
    int pipe_fds[2];
    if (pipe2(pipe_fds, O_CLOEXEC | O_NONBLOCK) < 0)
        return err_set(err, ERR_SETUP, errno, "cannot make a pipe");
    *ret_read = pipe_fds[0];
    *ret_write = pipe_fds[1];
    *ret = loop_fd_add(s->loop, *ret_read, LOOP_IN, fn, s);
    return *ret ? 0 : err_set(err, ERR_SETUP, errno, "cannot watch a pipe");
}

static int prepare(struct supervisor *s, struct err *err)
{
    _cleanup_buf_ struct buf text = {0};
    if (find_programs(s, err) < 0 || loop_new(&s->loop, err) < 0)
        return -1;
    config_show(s->config, false, &text);
    s->config_fd = node_memory_file("config", text.p, text.n, err);
    if (s->config_fd < 0)
        return -1;
    if (watch_pipe(s, on_ready, &s->ready_read, &s->ready_write, &s->ready_watch, err) < 0 ||
        watch_pipe(s, on_egress_ready, &s->egress_read, &s->egress_write, &s->egress_watch, err) < 0)
        return -1;
    if (loop_signal(s->loop, SIGCHLD, on_child, s, err) < 0 || loop_signal(s->loop, SIGTERM, on_stop, s, err) < 0)
        return -1;
    if (loop_signal(s->loop, SIGHUP, on_stop, s, err) < 0)
        return -1;
    return loop_signal(s->loop, SIGINT, on_stop, s, err);
}

int node_supervise(const struct config *c, struct node_files *n, struct err *err)
{
    struct supervisor s = {.config = c,
                           .files = n,
                           .config_fd = -1,
                           .ready_read = -1,
                           .ready_write = -1,
                           .egress_read = -1,
                           .egress_write = -1,
                           .err = err,
                           .child = {[KEEPER] = {.name = "keeper"},
                                     [STOCK] = {.name = "stock"},
                                     [EGRESS] = {.name = "egress"},
                                     [FRONT] = {.name = "front"},
                                     [BUILDER] = {.name = "builder"}}};
    struct stat st;
    (void)signal(SIGPIPE, SIG_IGN); /* nobody need read what we say */
    int rc = prepare(&s, err);
    if (rc == 0) {
        start(&s, KEEPER);
        start(&s, STOCK);
        if (n->egress.on) {
            start(&s, EGRESS);
            s.egress_timer = loop_timer(s.loop, EGRESS_READY_MS, egress_too_late, &s);
        } else
            egress_decided(&s, n->egress.trouble);
        if (c->build_base && fstatat(n->templates, TEMPLATE_BASE, &st, 0) < 0)
            start(&s, BUILDER);
        s.run_timer = loop_timer(s.loop, RUN_LOOK_MS, look_at_run, &s);
        rc = loop_run(s.loop, err);
        if (rc == 0 && s.exit_code != 0)
            rc = -1;
    }
    int fds[] = {s.config_fd, s.ready_read, s.ready_write, s.egress_read, s.egress_write};
    for (size_t i = 0; i < ARRAY_LEN(fds); i++)
        if (fds[i] >= 0)
            (void)close(fds[i]);
    /* A name service that does not answer must not hold up the end: its thread ends with the process. */
    if (s.loop && !s.checking)
        loop_free(s.loop);
    free(s.hutch);
    free(s.self);
    return rc;
}
