/* mcp.c - `hutch mcp`: the tools of a node for an agent that starts its servers as programs and speaks to them over pipes.
 *
 * One line is one message. Each becomes a POST of its own, sent by a process of its own, so that a long call delays none, and
 * to cancel a call is to end its process: the node notices that its client left. Standard output has messages only. */
#include "cli/client/mcp.h"
#include "cli/client/commands.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/mem.h"
#include "cli/client/node.h"

enum {
    LINE_MAX_BYTES = 4 << 20, /* the node's own limit of a message */
    UNDER_WAY_MAX = 64,       /* and of calls at once */
    END_GRACE_MS = 1500,      /* for calls under way when the agent closes the pipe; clients wait two seconds */
    BUSY = -32000,
    TOO_LONG = -32600
};

/* A message under way. */
struct exchange {
    pid_t pid;
    int fd;     /* its records */
    json_t *id; /* owned; NULL: it wants no answer */
    struct buf in;
};

struct bridge {
    const struct api *api;
    char session[MCP_SESSION_ROOM];
    struct exchange list[UNDER_WAY_MAX];
    size_t n;
    struct buf line; /* what was read of the next one */
    bool skip;       /* it is too long: to its end */
    bool gone;       /* the agent closed the pipe */
};

static volatile sig_atomic_t told_to_end;
static void bridge_on_signal(int sig) { told_to_end = sig; }

static void bridge_write(struct bridge *b, const char *p, size_t n)
{
    if (fd_write_all(STDOUT_FILENO, p, n) < 0)
        b->gone = true;
}

static void bridge_refuse(struct bridge *b, json_t *id, int code, const char *text)
{
    _cleanup_buf_ struct buf out = {0};
    mcp_add_error(&out, id, code, text);
    buf_addc(&out, '\n');
    bridge_write(b, out.p, out.n);
}

/* --- from the node -------------------------------------------------------------------------------------------------- */

static void exchange_end(struct bridge *b, size_t i)
{
    struct exchange *x = &b->list[i];
    (void)kill(x->pid, SIGKILL);
    (void)waitpid(x->pid, NULL, 0);
    (void)close(x->fd);
    json_decref(x->id);
    buf_done(&x->in);
    b->list[i] = b->list[--b->n];
}

static void exchange_take_record(struct bridge *b, char *record, size_t n)
{
    if (record[0] == 'S') {
        (void)snprintf(b->session, sizeof b->session, "%.*s", (int)n - 1, record + 1);
    } else {
        record[n] = '\n';
        bridge_write(b, record + 1, n);
    }
}

/* False: it has ended. */
static bool exchange_read(struct bridge *b, struct exchange *x)
{
    char room[64 * 1024];
    ssize_t n = fd_read_pipe(x->fd, room, sizeof room);
    if (n <= 0)
        return false;
    buf_add(&x->in, room, (size_t)n);
    size_t used = 0;
    for (char *e; (e = memchr(x->in.p + used, '\n', x->in.n - used)); used = (size_t)(e - x->in.p) + 1)
        exchange_take_record(b, x->in.p + used, (size_t)(e - x->in.p) - used);
    x->in.n -= used;
    memmove(x->in.p, x->in.p + used, x->in.n);
    return true;
}

/* --- from the agent ------------------------------------------------------------------------------------------------- */

static int exchange_start(struct bridge *b, const char *line, size_t n, json_t *root)
{
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) < 0)
        return -1;
    pid_t pid = fork();
    if (pid == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        (void)signal(SIGTERM, SIG_DFL);
        (void)signal(SIGINT, SIG_IGN);
        mcp_send(b->api, b->session, line, n, root, ends[1]);
        _exit(0);
    }
    (void)close(ends[1]);
    if (pid < 0) {
        (void)close(ends[0]);
        return -1;
    }
    json_t *id = json_object_get(root, "method") ? json_object_get(root, "id") : NULL;
    b->list[b->n++] = (struct exchange){.pid = pid, .fd = ends[0], .id = json_incref(id)};
    return 0;
}

static void bridge_cancel(struct bridge *b, json_t *id)
{
    for (size_t i = 0; id && i < b->n; i++)
        if (b->list[i].id && json_equal(b->list[i].id, id)) {
            exchange_end(b, i);
            return;
        }
}

static void bridge_take_line(struct bridge *b, const char *line, size_t n)
{
    _cleanup_json_ json_t *root = json_loadb(line, n, JSON_ALLOW_NUL, NULL);
    json_t *id = json_object_get(root, "id");
    const char *method = json_string_value(json_object_get(root, "method"));
    if (strspn(line, " \t\r") == n)
        return;
    if (method && strcmp(method, "notifications/cancelled") == 0)
        bridge_cancel(b, json_object_get(json_object_get(root, "params"), "requestId"));
    else if (b->n == UNDER_WAY_MAX)
        bridge_refuse(b, id, BUSY, "64 calls are under way; repeat this one when another has ended");
    else if (exchange_start(b, line, n, root) < 0)
        bridge_refuse(b, id, BUSY, "this host has no process for the call; repeat it");
}

static void bridge_read(struct bridge *b)
{
    char room[64 * 1024];
    ssize_t n = read(STDIN_FILENO, room, sizeof room); /* a pipe, or a socket as clients in Node.js give */
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n <= 0) {
        b->gone = true;
        return;
    }
    for (const char *p = room, *end = room + n; p < end;) {
        const char *e = memchr(p, '\n', (size_t)(end - p));
        size_t len = (size_t)((e ? e : end) - p);
        if (!b->skip)
            buf_add(&b->line, p, len);
        if (b->line.n > LINE_MAX_BYTES && !b->skip) {
            b->skip = true;
            bridge_refuse(b, NULL, TOO_LONG, "a message has 4 MiB at most");
        }
        if (e && !b->skip)
            bridge_take_line(b, buf_str(&b->line), b->line.n);
        if (e || b->skip)
            b->line.n = 0;
        b->skip = b->skip && !e;
        p += len + (e != NULL);
    }
}

/* --- the loop ------------------------------------------------------------------------------------------------------- */

static void bridge_step(struct bridge *b, const sigset_t *mask, int timeout_ms)
{
    struct pollfd f[UNDER_WAY_MAX + 1];
    const struct timespec wait = {.tv_sec = timeout_ms / 1000, .tv_nsec = timeout_ms % 1000 * 1000000L};
    size_t n = b->n;
    for (size_t i = 0; i < n; i++)
        f[i] = (struct pollfd){.fd = b->list[i].fd, .events = POLLIN};
    f[n] = (struct pollfd){.fd = b->gone ? -1 : STDIN_FILENO, .events = POLLIN};
    if (ppoll(f, n + 1, timeout_ms < 0 ? NULL : &wait, mask) <= 0)
        return;
    for (size_t i = n; i-- > 0;) /* from the end: one that ends is replaced by the last */
        if (f[i].revents && !exchange_read(b, &b->list[i]))
            exchange_end(b, i);
    if (f[n].revents)
        bridge_read(b);
}

/* Until the agent closes its pipe or a signal says so. */
static void bridge_run(struct bridge *b)
{
    static const int ends[] = {SIGTERM, SIGINT, SIGHUP};
    struct sigaction act = {.sa_handler = bridge_on_signal};
    sigset_t blocked, mask;
    (void)sigemptyset(&blocked);
    for (size_t i = 0; i < ARRAY_LEN(ends); i++) {
        (void)sigaction(ends[i], &act, NULL);
        (void)sigaddset(&blocked, ends[i]);
    }
    (void)signal(SIGPIPE, SIG_IGN);
    (void)sigprocmask(SIG_BLOCK, &blocked, &mask);
    while (!told_to_end && !b->gone)
        bridge_step(b, &mask, -1);
    uint64_t until = clock_boot_ms() + END_GRACE_MS, now;
    while (!told_to_end && b->n && (now = clock_boot_ms()) < until)
        bridge_step(b, &mask, (int)(until - now));
    while (b->n)
        exchange_end(b, b->n - 1);
    buf_done(&b->line);
}

static const char mcp_usage[] =
    "usage: hutch mcp [--url URL | --profile NAME]\n\n"
    "Serves the tools of a node to an agent over standard input and output (Model Context Protocol).\n"
    "The node is that of --url, HUTCH_URL or the profile, else the one of this machine if its key is readable, else\n"
    "a private one that ends, with its sandboxes, when the agent closes the pipe. Guide: docs/mcp.md\n\n"
    "example: claude mcp add hutch -- hutch mcp\n";

/* Whether a node of this machine answers and takes our key. */
static bool mcp_node_answers(const struct api *a)
{
    struct err err;
    _cleanup_json_ json_t *j = NULL;
    return a->key[0] && api_call(a, "GET", "/v1/node", NULL, &j, NULL, &err) == 0;
}

int cmd_mcp(int argc, char **argv)
{
    const struct node_command c = {"mcp", mcp_usage, NULL, 0, 0, false};
    struct mcp_node own = MCP_NODE_INIT;
    struct node_call call;
    struct err err;
    int code;
    if (node_begin(&c, argc, argv, &call, &code))
        return code;
    const char *url = getenv("HUTCH_URL");
    bool named = (url && *url) || call.api.profile[0] || strcmp(call.api.url, NODE_DEFAULT_URL) != 0;
    bool private = !named && !mcp_node_answers(&call.api);
    if (private && mcp_node_start(&own, &err) < 0)
        return cli_fail(&err);
    struct bridge *b = xcalloc(1, sizeof *b);
    b->api = private ? &own.api : &call.api;
    bridge_run(b);
    mcp_node_end(&own);
    free(b);
    return 0;
}
