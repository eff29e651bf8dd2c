/* mcp-node.c - a node for one agent on this machine: its place on disk, its start, its end.
 *
 * Places are numbered, and each bridge locks the first free one, so that several agents do not disturb each other and a place
 * is used again. The node says on a socket of its place that it listens; before that no key is sent to its port. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/mem.h"
#include "cli/cli.h"
#include "cli/client/mcp.h"
#include "cli/client/node.h"

enum { PLACES = 16, START_MS = 60000, END_MS = 20000 };

/* Where files of the place are. */
struct place {
    char dir[PATH_MAX], run[PATH_MAX];
};

/* Sandboxes write to memory: a private node needs no file system of its own. All share one `base`, that of this user's usual
 * node if it has one. */
static void place_add_config(struct buf *b)
{
    char state[PATH_MAX - 64];
    cli_state_dir(state, sizeof state);
    _cleanup_free_ char *usual = xasprintf("%s/templates/base/root", state);
    buf_addf(b, "files: tmpfs\ntemplates:\n  dir: %s%s/templates\n", state, access(usual, F_OK) == 0 ? "" : "-mcp");
}

static int place_make_dir(const char *path, struct err *err)
{
    /* Processes of root's node have other users, which must reach what is theirs. */
    mode_t mode = geteuid() == 0 ? 0711 : 0700;
    for (const char *p = path + 1; p; p = *p ? p + 1 : NULL) {
        p += strcspn(p, "/");
        _cleanup_free_ char *part = xstrndup(path, (size_t)(p - path));
        if (mkdir(part, mode) < 0 && errno != EEXIST)
            return err_set(err, ERR_SETUP, errno, "mcp: cannot make the directory %s", part);
    }
    return 0;
}

static int place_take(struct place *p, struct err *err)
{
    char state[PATH_MAX - 64];
    const char *run = getenv("XDG_RUNTIME_DIR");
    cli_state_dir(state, sizeof state);
    for (int i = 0; i < PLACES; i++) {
        (void)snprintf(p->dir, sizeof p->dir, "%s-mcp/%d", state, i);
        if (geteuid() == 0 && strncmp(state, "/var/", 5) == 0)
            (void)snprintf(p->run, sizeof p->run, "/run/hutch-mcp/%d", i);
        else if (geteuid() != 0 && run && *run == '/')
            (void)snprintf(p->run, sizeof p->run, "%.3000s/hutch-mcp/%d", run, i);
        else
            (void)snprintf(p->run, sizeof p->run, "%s-mcp/%d/run", state, i);
        _cleanup_free_ char *lock = xasprintf("%s/lock", p->dir);
        if (place_make_dir(p->dir, err) < 0 || place_make_dir(p->run, err) < 0)
            return -1;
        _cleanup_close_ int fd = open(lock, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
        if (fd < 0)
            return err_set(err, ERR_SETUP, errno, "mcp: cannot open %s", lock);
        if (flock(fd, LOCK_EX | LOCK_NB) == 0)
            return TAKE_FD(fd);
    }
    return err_set(err, ERR_SETUP, 0, "mcp: %d private nodes run already; start one for all with `hutch serve`",
                   PLACES);
}

/* A port that is free now. If another process takes it first, the node does not start, and says so. */
static int place_choose_port(struct err *err)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof a;
    _cleanup_close_ int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&a, sizeof a) < 0 || getsockname(fd, (struct sockaddr *)&a, &n) < 0)
        return err_set(err, ERR_SETUP, errno, "mcp: no port of 127.0.0.1 is free");
    return ntohs(a.sin_port);
}

/* The socket on which the node says that it is ready: only this user can write to it. */
static int place_open_ready(const char *path, struct err *err)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof a.sun_path)
        return err_set(err, ERR_SETUP, 0, "mcp: the path %s is too long for a socket; set HUTCH_STATE to a shorter one",
                       path);
    memcpy(a.sun_path, path, strlen(path) + 1);
    (void)unlink(path);
    _cleanup_close_ int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    mode_t before = umask(0177);
    int rc = fd < 0 ? -1 : bind(fd, (struct sockaddr *)&a, sizeof a);
    (void)umask(before);
    return rc < 0 ? err_set(err, ERR_SETUP, errno, "mcp: cannot make the socket %s", path) : TAKE_FD(fd);
}

static void mcp_node_run(const struct place *p, const char *program, const char *ready, int port)
{
    char name[] = "hutch-node", listen[32];
    _cleanup_free_ char *state = xasprintf("%s/state", p->dir), *file = xasprintf("%s/config.yaml", p->dir),
                        *log = xasprintf("%s/log", p->dir);
    (void)snprintf(listen, sizeof listen, "127.0.0.1:%d", port);
    int out = open(log, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600),
        in = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (out < 0 || in < 0 || dup2(in, 0) < 0 || dup2(out, 1) < 0 || dup2(out, 2) < 0)
        _exit(ERR_SETUP);
    (void)fd_close_range(3, UINT_MAX, 0);
    (void)setpgid(0, 0); /* a terminal's ^C is for the bridge, which ends the node in order */
    (void)prctl(PR_SET_PDEATHSIG, SIGTERM);
    (void)setenv("NOTIFY_SOCKET", ready, 1);
    const char *const argv[] = {name,    "serve", "--config", file,   "--state", state,
                                "--run", p->run,  "--listen", listen, NULL};
    (void)execv(program, (char *const *)argv);
    _exit(ERR_SETUP);
}

/* The last line of the node's log that a person can use. */
static int mcp_node_failed(const struct place *p, const char *what, struct err *err)
{
    _cleanup_free_ char *path = xasprintf("%s/log", p->dir);
    _cleanup_buf_ struct buf log = {0};
    const char *why = "";
    if (fd_read_file(AT_FDCWD, path, 64 << 10, &log) == 0)
        for (const char *l = strstr(buf_str(&log), "hutch: "); l; l = strstr(l + 1, "hutch: "))
            why = l;
    return err_set(err, ERR_SETUP, 0,
                   "mcp: the private node %s: %.*s (its log: %s; `hutch doctor` shows what this host lacks)", what,
                   (int)strcspn(why, "\n"), why, path);
}

static int mcp_node_await(struct mcp_node *n, const struct place *p, int ready, struct err *err)
{
    uint64_t until = clock_boot_ms() + START_MS;
    while (clock_boot_ms() < until) {
        struct pollfd f = {.fd = ready, .events = POLLIN};
        char text[128];
        (void)poll(&f, 1, 50);
        ssize_t got = recv(ready, text, sizeof text - 1, MSG_DONTWAIT);
        text[got > 0 ? got : 0] = 0;
        if (strstr(text, "READY=1"))
            return 0;
        if (waitpid(n->pid, NULL, WNOHANG) == n->pid) {
            n->pid = 0;
            return mcp_node_failed(p, "did not start", err);
        }
    }
    return mcp_node_failed(p, "is not ready after a minute", err);
}

static int mcp_node_find(struct mcp_node *n, const struct place *p, int port, struct err *err)
{
    char url[40];
    _cleanup_free_ char *path = xasprintf("%s/state/admin.key", p->dir);
    _cleanup_buf_ struct buf key = {0};
    (void)snprintf(url, sizeof url, "http://127.0.0.1:%d", port);
    if (api_reach(&n->api, url, err) < 0)
        return -1;
    if (fd_read_file(AT_FDCWD, path, sizeof n->api.key - 1, &key) < 0)
        return err_set(err, ERR_SETUP, errno, "mcp: cannot read the private node's key %s", path);
    (void)snprintf(n->api.key, sizeof n->api.key, "%.*s", (int)strcspn(buf_str(&key), "\r\n "), buf_str(&key));
    /* What a bridge that was killed left here. */
    return api_call(&n->api, "POST", "/v1/stop-all", "{}", NULL, NULL, err);
}

int mcp_node_start(struct mcp_node *n, struct err *err)
{
    struct place p;
    _cleanup_free_ char *program = NULL;
    int port;
    if (cli_find_program("hutch-node", &program, err) < 0 || (n->lock = place_take(&p, err)) < 0 ||
        (port = place_choose_port(err)) < 0)
        return -1;
    _cleanup_free_ char *file = xasprintf("%s/config.yaml", p.dir), *at = xasprintf("%s/ready", p.dir);
    _cleanup_close_ int ready = place_open_ready(at, err), fd = -1;
    if (ready < 0)
        return -1;
    _cleanup_buf_ struct buf config = {0};
    place_add_config(&config);
    fd = open(file, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0 || fd_write_all(fd, config.p, config.n) < 0)
        return err_set(err, ERR_SETUP, errno, "mcp: cannot write %s", file);
    n->pid = fork();
    if (n->pid == 0)
        mcp_node_run(&p, program, at, port);
    int rc =
        n->pid < 0 ? err_set(err, ERR_SETUP, errno, "mcp: cannot start a process") : mcp_node_await(n, &p, ready, err);
    (void)unlink(at);
    if (rc == 0)
        rc = mcp_node_find(n, &p, port, err);
    if (rc < 0)
        mcp_node_end(n);
    return rc;
}

void mcp_node_end(struct mcp_node *n)
{
    struct err err;
    if (n->pid > 0) {
        if (n->api.key[0])
            (void)api_call(&n->api, "POST", "/v1/stop-all", "{}", NULL, NULL, &err);
        (void)kill(n->pid, SIGTERM);
        uint64_t until = clock_boot_ms() + END_MS;
        while (waitpid(n->pid, NULL, WNOHANG) == 0) {
            if (clock_boot_ms() > until)
                (void)kill(n->pid, SIGKILL);
            (void)poll(NULL, 0, 10);
        }
    }
    n->pid = 0;
    if (n->lock >= 0)
        (void)close(n->lock);
    n->lock = -1;
}
