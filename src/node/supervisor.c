/* Starts keeper, the layer store, egress, front and the builder, and restarts them when they end. */
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
#include "egress/core/proto.h"
#include "keeper/keeper.h"
#include "layers/jobs.h"
#include "loop/loop.h"
#include "node/build-base.h"
#include "node/procs.h"
#include "os/cgroup.h"
#include "os/idrange.h"

enum {
    BACKOFF_FIRST_MS = 100,
    BACKOFF_MAX_MS = 2000,    /* clients wait that long at most for a child that dies at its start */
    BACKOFF_FORGET_MS = 1000, /* a child that lived this long is restarted at once */
    EGRESS_READY_MS = 10000,  /* if the first egress takes longer, sandboxes have no network */
    STOP_FRONT_MS = 10000,
    STOP_MS = 5000,
    RUN_LOOK_MS = 1000,
};

enum role { KEEPER, LAYERS, EGRESS, FRONT, BUILDER, POOL, ROLES };

struct child {
    const char *name;
    pid_t pid; /* 0: not running */
    uint64_t started_ms, backoff_ms;
    loop_id timer;
    bool again; /* we ended it in order to restart it */
};
struct supervisor {
    struct loop *loop;
    const struct config *config;
    struct node_files *files;
    char *hutch, *self; /* programs */
    struct child child[ROLES];
    int config_fd, ready_read, ready_write;
    int egress_read, egress_write; /* pipe on which egress reports that it is ready */
    loop_id ready_watch, egress_watch, egress_timer;
    bool ready, stopping, checking;
    bool egress_decided; /* egress is ready, or there is none: front may start */
    int exit_code;
    loop_id stop_timer, run_timer;
    bool recovering; /* the run directory is gone: children are stopped and restarted in a new one */
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
    struct config settled = *c; /* nothing in it is freed */
    config_settle_disk(&settled, s->files->files_driver);
    strv_take(&argv, xasprintf("--default-disk=%llu", (unsigned long long)settled.default_disk));
    strv_take(&argv, xasprintf("--default-inodes=%llu", (unsigned long long)c->default_inodes));
    strv_take(&argv, xasprintf("--default-pids=%u", c->default_pids));
    strv_take(&argv, xasprintf("--default-open-files=%u", c->default_open_files));
    strv_take(&argv, xasprintf("--templates=%s", c->templates));
    strv_take(&argv, xasprintf("--driver=%s", s->files->files_driver));
    _cleanup_free_ char *dirs = xstrdup(c->host_dirs ? c->host_dirs : "");
    char *save = NULL;
    for (char *one = strtok_r(dirs, ",", &save); one; one = strtok_r(NULL, ",", &save))
        strv_take(&argv, xasprintf("--host-dir=%s", one));
    return node_launch(s->hutch, argv.v, fds, ARRAY_LEN(fds), NULL);
}

static pid_t start_layers(struct supervisor *s)
{
    const struct node_files *n = s->files;
    _cleanup_strv_ struct strv argv = {0};
    int fds[] = {n->layers_socket, n->run, n->state};
    _Static_assert(LAYERS_FD_SOCKET == 3 && LAYERS_FD_RUN == 4 && LAYERS_FD_STATE == 5, "in this order");
    strv_add(&argv, "hutch");
    strv_add(&argv, "layers");
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

/* Whether keeper can stop sandboxes for a moment: what it can use of this host, an ordinary user's keeper only of cgroup v2. */
static bool node_can_freeze(void)
{
    struct cgroup_info info;
    bool can = false;
    if (cgroup_probe(&info) < 0 || !info.can_freeze)
        return false;
    for (unsigned i = 0; i < info.nhier; i++)
        can = can || ((info.hier[i].has & CGROUP_FREEZER) && (info.hier[i].v2 || geteuid() == 0));
    return can;
}

static pid_t start_front(struct supervisor *s)
{
    const struct node_files *n = s->files;
    _cleanup_strv_ struct strv argv = {0};
    int fds[FRONT_FD_END - 3] = {
        s->config_fd, n->run,         n->db,      n->templates, n->listen,         n->listen_tls,   n->tls_cert,
        n->tls_key,   s->ready_write, n->presets, n->network,   n->webhook_secret, n->webhook_trust};
    strv_add(&argv, "hutch-node");
    strv_add(&argv, "front");
    strv_take(&argv, xasprintf("--admin=%s", n->admin_digest));
    strv_take(&argv, xasprintf("--admin-hint=%s", n->admin_key + strlen(n->admin_key) - 4));
    if (!n->egress.on)
        strv_add(&argv, "--no-egress");
    if (!node_can_freeze())
        strv_add(&argv, "--no-freezer");
    strv_take(&argv, xasprintf("--files-driver=%s", n->files_driver));
    strv_take(&argv, xasprintf("--files-why=%s", n->files_why));
    struct node_user u = {n->uid, n->gid};
    return node_launch(s->self, argv.v, fds, ARRAY_LEN(fds), n->drop ? &u : NULL);
}

static pid_t start_egress(struct supervisor *s)
{
    const struct node_egress *e = &s->files->egress;
    _cleanup_strv_ struct strv argv = {0};
    int fds[] = {e->config,     e->keeper, e->front, e->ca_cert,     e->ca_key,
                 e->sealed_key, e->audit,  e->trust, s->egress_write};
    _Static_assert(EGRESS_FD_CONFIG == 3 && EGRESS_FD_READY == 11 && EGRESS_FD_END - 3 == ARRAY_LEN(fds),
                   "in this order");
    /* The previous egress has moved the file offsets, which all processes share. */
    const int files[] = {e->config, e->ca_cert, e->ca_key, e->sealed_key, e->trust};
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
    const struct config *c = s->config;
    const char *const args[TEMPLATE_BUILD_ARGS] = {c->templates, c->build_base, c->mirror_apt, c->mirror_pip,
                                                   c->mirror_npm};
    for (size_t i = 0; i < ARRAY_LEN(args); i++)
        strv_add(&argv, args[i] ? args[i] : "");
    return node_launch(s->self, argv.v, NULL, 0, NULL);
}

/* Keeps room on the disk outside of the pool. */
static pid_t start_pool(struct supervisor *s)
{
    char *argv[] = {"hutch", "pool", "watch", NULL};
    int fds[] = {s->files->state};
    return node_launch(s->hutch, argv, fds, ARRAY_LEN(fds), NULL);
}

static void supervisor_start(struct supervisor *s, enum role role);
static void start_keeper_again(void *arg) { supervisor_start(arg, KEEPER); }
static void start_layers_again(void *arg) { supervisor_start(arg, LAYERS); }
static void start_egress_again(void *arg) { supervisor_start(arg, EGRESS); }
static void start_front_again(void *arg) { supervisor_start(arg, FRONT); }
static void start_pool_again(void *arg) { supervisor_start(arg, POOL); }

static const struct {
    pid_t (*first)(struct supervisor *s);
    loop_fn *again; /* NULL: it runs once */
} starters[ROLES] = {[KEEPER] = {start_keeper, start_keeper_again},
                     [LAYERS] = {start_layers, start_layers_again},
                     [EGRESS] = {start_egress, start_egress_again},
                     [FRONT] = {start_front, start_front_again},
                     [BUILDER] = {start_builder, NULL},
                     [POOL] = {start_pool, start_pool_again}};

static void supervisor_start(struct supervisor *s, enum role role)
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

static void supervisor_log_end(const struct child *ch, int status)
{
    struct log_line l;
    if (!log_start(&l, LOG_LEVEL_WARN, "child ended"))
        return;
    log_str(&l, "child", ch->name);
    log_u64(&l, WIFSIGNALED(status) ? "signal" : "code",
            (uint64_t)(WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status)));
    log_end(&l);
}

/* Stops the next child, or ends. Front stops first, so that keeper and the layer store get no new requests. */
static void supervisor_stop_next(struct supervisor *s);
static void supervisor_recover_run(struct supervisor *s);
static void supervisor_stop_hard(void *arg)
{
    struct supervisor *s = arg;
    s->stop_timer = 0;
    for (int i = 0; i < ROLES; i++)
        if (s->child[i].pid > 0 && ((i != KEEPER && i != LAYERS) || s->child[FRONT].pid == 0)) {
            log_text(LOG_LEVEL_WARN, "%s did not stop in time", s->child[i].name);
            (void)kill(s->child[i].pid, SIGKILL);
        }
}

static void supervisor_stop_next(struct supervisor *s)
{
    loop_timer_del(s->loop, s->stop_timer);
    s->stop_timer = 0;
    enum role order[] = {FRONT, BUILDER, EGRESS, LAYERS, KEEPER, POOL};
    for (size_t i = 0; i < ARRAY_LEN(order); i++)
        if (s->child[order[i]].pid > 0 && (s->stopping || (order[i] != BUILDER && order[i] != POOL))) {
            (void)kill(s->child[order[i]].pid, SIGTERM);
            s->stop_timer = loop_timer(s->loop, order[i] == FRONT ? STOP_FRONT_MS : STOP_MS, supervisor_stop_hard, s);
            return;
        }
    if (s->stopping)
        loop_stop(s->loop);
    else
        supervisor_recover_run(s);
}

/* No child uses the old directory any more. If the new one cannot be made yet, supervisor_look_at_run() tries again. */
static void supervisor_recover_run(struct supervisor *s)
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
    supervisor_start(s, KEEPER);
    supervisor_start(s, LAYERS);
    if (s->files->egress.on)
        supervisor_start(s, EGRESS);
    if (s->egress_decided)
        supervisor_start(s, FRONT);
}

static void supervisor_look_at_run(void *arg)
{
    struct supervisor *s = arg;
    struct err err = {0};
    s->run_timer = loop_timer(s->loop, RUN_LOOK_MS, supervisor_look_at_run, s);
    if (s->recovering && !s->stop_timer) {
        supervisor_stop_next(s);
    } else if (!s->recovering && node_run_lost(s->config, s->files)) {
        log_text(LOG_LEVEL_ERROR,
                 "the run directory %s, or a file in it that the node needs, was removed; it is made again and the "
                 "processes of the node start again; sandboxes live on",
                 s->config->run);
        s->recovering = true;
        for (int i = 0; i < ROLES; i++)
            if (i != BUILDER && i != POOL)
                loop_timer_del(s->loop, s->child[i].timer);
        supervisor_stop_next(s);
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

static void supervisor_stop(struct supervisor *s, int exit_code)
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
    supervisor_stop_next(s);
}

static void supervisor_on_builder_end(struct supervisor *s, int status)
{
    if (WIFSIGNALED(status)) /* and could not report why */
        template_build_tell(s->files->templates, s->config, "error",
                            "the builder was killed; start hutch serve again, it goes on with what is downloaded");
}

/* Whether sandboxes have a network is known now, so front can start and report it. */
static void supervisor_decide_egress(struct supervisor *s, const char *trouble)
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
    supervisor_start(s, FRONT);
}

static void supervisor_on_egress_timeout(void *arg)
{
    struct supervisor *s = arg;
    s->egress_timer = 0;
    supervisor_decide_egress(s, "egress was not ready in time; see its messages above");
    if (s->child[EGRESS].pid > 0)
        (void)kill(s->child[EGRESS].pid, SIGKILL);
}

static void supervisor_on_child_end(struct supervisor *s, enum role role, int status)
{
    struct child *ch = &s->child[role];
    uint64_t lived = loop_now(s->loop) - ch->started_ms;
    ch->pid = 0;
    if (s->stopping || (s->recovering && role != BUILDER && role != POOL)) {
        supervisor_stop_next(s);
        return;
    }
    if (ch->again) {
        ch->again = false;
        supervisor_start(s, role);
        return;
    }
    if (role == BUILDER) {
        supervisor_on_builder_end(s, status);
        return;
    }
    supervisor_log_end(ch, status);
    /* A first egress that exits has reported why and would fail again. One that was killed is restarted; front waits
     * for it, up to EGRESS_READY_MS. */
    if (role == EGRESS && !s->egress_decided && !WIFSIGNALED(status))
        supervisor_decide_egress(s, "egress could not start; see its message above");
    if (role == EGRESS && !s->files->egress.on)
        return;
    if (!s->ready && role != EGRESS &&
        role != POOL) { /* a child that fails at the first start is set up wrongly and has said why */
        int code = WIFEXITED(status) && WEXITSTATUS(status) ? WEXITSTATUS(status) : ERR_SETUP;
        (void)err_set(s->err, (enum err_code)(code >= ERR_USAGE && code <= ERR_INTERNAL ? code : ERR_SETUP), 0,
                      "%s could not start; see its message above", ch->name);
        supervisor_stop(s, code);
        return;
    }
    if (lived >= BACKOFF_FORGET_MS || ch->backoff_ms == 0)
        ch->backoff_ms = BACKOFF_FIRST_MS;
    else
        ch->backoff_ms = ch->backoff_ms * 2 > BACKOFF_MAX_MS ? BACKOFF_MAX_MS : ch->backoff_ms * 2;
    /* The first restart has no delay, because clients are waiting. */
    uint64_t wait = ch->backoff_ms == BACKOFF_FIRST_MS ? 0 : ch->backoff_ms;
    ch->timer = loop_timer(s->loop, wait, starters[role].again, s);
}

static void supervisor_on_sigchld(void *arg, int signo)
{
    struct supervisor *s = arg;
    int status;
    (void)signo;
    for (pid_t pid; (pid = waitpid(-1, &status, WNOHANG)) > 0;)
        for (int i = 0; i < ROLES; i++)
            if (s->child[i].pid == pid)
                supervisor_on_child_end(s, (enum role)i, status);
}

static void supervisor_on_stop(void *arg, int signo)
{
    struct supervisor *s = arg;
    log_text(LOG_LEVEL_INFO, "%s: stopping; sandboxes live on", signo == SIGINT ? "interrupted" : "told to stop");
    supervisor_stop(s, 0);
}

/* --- readiness ---------------------------------------------------------------------------------------------------- */

static void supervisor_check_domain(void *arg)
{
    struct supervisor *s = arg;
    node_check_domain(s->config->domain, s->domain_trouble);
}

static void supervisor_on_domain_checked(void *arg)
{
    struct supervisor *s = arg;
    s->checking = false;
    if (!*s->domain_trouble)
        return;
    printf("hutch: %s\n", s->domain_trouble);
    (void)fflush(stdout);
}

static void supervisor_on_front_ready(void *arg, int fd, unsigned events)
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
    loop_work(s->loop, supervisor_check_domain, supervisor_on_domain_checked, s);
}

static void supervisor_on_egress_ready(void *arg, int fd, unsigned events)
{
    struct supervisor *s = arg;
    char bytes[16];
    (void)events;
    if (read(fd, bytes, sizeof bytes) > 0)
        supervisor_decide_egress(s, NULL);
}

/* --- programs ----------------------------------------------------------------------------------------------------- */

static int supervisor_find_programs(struct supervisor *s, struct err *err)
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

/* A pipe on which a child reports readiness with one byte. */
static int supervisor_watch_pipe(struct supervisor *s, loop_fd_fn *fn, int *ret_read, int *ret_write, loop_id *ret,
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

static int supervisor_prepare(struct supervisor *s, struct err *err)
{
    _cleanup_buf_ struct buf text = {0};
    if (supervisor_find_programs(s, err) < 0 || loop_new(&s->loop, err) < 0)
        return -1;
    config_show(s->config, false, &text);
    s->config_fd = node_memory_file("config", text.p, text.n, err);
    if (s->config_fd < 0)
        return -1;
    if (supervisor_watch_pipe(s, supervisor_on_front_ready, &s->ready_read, &s->ready_write, &s->ready_watch, err) <
            0 ||
        supervisor_watch_pipe(s, supervisor_on_egress_ready, &s->egress_read, &s->egress_write, &s->egress_watch, err) <
            0)
        return -1;
    if (loop_signal(s->loop, SIGCHLD, supervisor_on_sigchld, s, err) < 0 ||
        loop_signal(s->loop, SIGTERM, supervisor_on_stop, s, err) < 0)
        return -1;
    if (loop_signal(s->loop, SIGHUP, supervisor_on_stop, s, err) < 0)
        return -1;
    return loop_signal(s->loop, SIGINT, supervisor_on_stop, s, err);
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
                                     [LAYERS] = {.name = "layers"},
                                     [EGRESS] = {.name = "egress"},
                                     [FRONT] = {.name = "front"},
                                     [BUILDER] = {.name = "builder"},
                                     [POOL] = {.name = "pool"}}};
    (void)signal(SIGPIPE, SIG_IGN); /* our output may have no reader */
    int rc = supervisor_prepare(&s, err);
    if (rc == 0)
        rc = node_pool_attach(s.hutch, c, n, err);
    if (rc == 0) {
        if (n->pool)
            supervisor_start(&s, POOL);
        supervisor_start(&s, KEEPER);
        supervisor_start(&s, LAYERS);
        if (n->egress.on) {
            supervisor_start(&s, EGRESS);
            s.egress_timer = loop_timer(s.loop, EGRESS_READY_MS, supervisor_on_egress_timeout, &s);
        } else
            supervisor_decide_egress(&s, n->egress.trouble);
        if (template_build_missing(n->templates, c))
            supervisor_start(&s, BUILDER);
        s.run_timer = loop_timer(s.loop, RUN_LOOK_MS, supervisor_look_at_run, &s);
        rc = loop_run(s.loop, err);
        if (rc == 0 && s.exit_code != 0)
            rc = -1;
    }
    if (s.hutch)
        node_pool_detach(s.hutch, n);
    int fds[] = {s.config_fd, s.ready_read, s.ready_write, s.egress_read, s.egress_write};
    for (size_t i = 0; i < ARRAY_LEN(fds); i++)
        if (fds[i] >= 0)
            (void)close(fds[i]);
    /* Do not wait for a name service that does not answer: its thread ends with the process. */
    if (s.loop && !s.checking)
        loop_free(s.loop);
    free(s.hutch);
    free(s.self);
    return rc;
}
