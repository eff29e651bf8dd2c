#include "unit/http-app.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/num.h"

struct call {
    struct http_app *app;
    uint64_t count, left;
    loop_id timer;
    unsigned step;
    bool slow, ended, upgraded;
};

char http_app_byte(uint64_t at) { return (char)('a' + (at * 7 + at / 26) % 26); }

static void finished(struct http_req *r)
{
    struct call *k = r->user;
    k->app->open--;
    free(k);
}

static void closed(struct http_req *r)
{
    struct call *k = r->user;
    loop_timer_del(r->loop, k->timer);
    k->app->closed++;
    finished(r);
}

static void reply(struct http_req *r, unsigned status, const char *text)
{
    finished(r);
    http_reply(r, status, "text/plain", text, strlen(text));
}

static void note_queue(struct http_req *r)
{
    struct call *k = r->user;
    size_t n = http_queued(r);
    if (n > k->app->held_most)
        k->app->held_most = n;
}

/* ---- echo ---- */

static void wake_slow(void *arg)
{
    struct http_req *r = arg;
    ((struct call *)r->user)->timer = 0;
    http_resume(r);
}

static void echo_data(struct http_req *r, const void *p, size_t n)
{
    struct call *k = r->user;
    bool more = http_write(r, p, n);
    note_queue(r);
    if (!more || k->slow)
        http_pause(r);
    if (k->slow && !k->timer)
        k->timer = loop_timer(r->loop, 1, wake_slow, r);
}
static void echo_writable(struct http_req *r)
{
    if (!((struct call *)r->user)->slow)
        http_resume(r);
}
static void echo_end(struct http_req *r)
{
    struct call *k = r->user;
    if (k->upgraded)
        (void)http_write(r, "[end]", 5);
    loop_timer_del(r->loop, k->timer);
    finished(r);
    http_end(r);
}

static void echo(struct http_req *r, bool slow)
{
    ((struct call *)r->user)->slow = slow;
    r->on_data = echo_data;
    r->on_end = echo_end;
    r->on_writable = echo_writable;
    http_head(r, 200, r->length == HTTP_UNKNOWN ? HTTP_UNKNOWN : r->length);
}

/* ---- the others ---- */

static void more_bytes(struct http_req *r)
{
    struct call *k = r->user;
    char piece[8192];
    for (bool more = true; k->left > 0 && more;) {
        size_t n = k->left < sizeof piece ? (size_t)k->left : sizeof piece;
        for (size_t i = 0; i < n; i++)
            piece[i] = http_app_byte(k->count + i);
        more = http_write(r, piece, n);
        note_queue(r);
        k->count += n;
        k->left -= n;
    }
    if (k->left == 0) {
        finished(r);
        http_end(r);
    }
}

static void count_data(struct http_req *r, const void *p, size_t n)
{
    (void)p;
    ((struct call *)r->user)->count += n;
}
static void count_end(struct http_req *r)
{
    char text[32];
    (void)snprintf(text, sizeof text, "%llu\n", (unsigned long long)((struct call *)r->user)->count);
    reply(r, 200, text);
}

static void next_event(void *arg)
{
    struct http_req *r = arg;
    struct call *k = r->user;
    char text[32];
    k->timer = 0;
    if (k->step == 3) {
        finished(r);
        http_end(r);
        return;
    }
    (void)snprintf(text, sizeof text, "data: %u\n\n", k->step++);
    (void)http_write(r, text, strlen(text));
    k->timer = loop_timer(r->loop, 20, next_event, r);
}

static void cut(void *arg)
{
    struct http_req *r = arg;
    ((struct call *)r->user)->timer = 0;
    http_abort(r);
}

static void who(struct http_req *r)
{
    _cleanup_buf_ struct buf b = {0};
    buf_addf(&b, "%s %s %s authority=%s\n", r->method, r->path, r->query ? r->query : "-", r->authority);
    for (size_t i = 0; i < r->fields.n; i++)
        buf_addf(&b, "%s: %s\n", r->fields.v[i].name, r->fields.v[i].value);
    reply(r, 200, buf_str(&b));
}

static void ws(struct http_req *r)
{
    if (!http_upgrade(r)) {
        reply(r, 426, "upgrade, please\n");
        return;
    }
    ((struct call *)r->user)->upgraded = true;
    r->on_data = echo_data;
    r->on_end = echo_end;
    r->on_writable = echo_writable;
}

static void streams(struct http_req *r)
{
    struct call *k = r->user;
    if (strncmp(r->path, "/bytes/", 7) == 0 && num_u64(r->path + 7, &k->left)) {
        r->on_writable = more_bytes;
        http_head(r, 200, k->left);
        more_bytes(r);
    } else if (strcmp(r->path, "/events") == 0) {
        http_set(r, "content-type", "text/event-stream");
        http_head(r, 200, HTTP_UNKNOWN);
        next_event(r);
    } else if (strcmp(r->path, "/cut") == 0) {
        http_head(r, 200, 100);
        (void)http_write(r, "half", 4);
        k->timer = loop_timer(r->loop, 10, cut, r);
    } else {
        reply(r, 404, "no such thing\n");
    }
}

void http_app(void *ctx, struct http_req *r)
{
    struct call *k = xcalloc(1, sizeof *k);
    uint64_t status;
    k->app = ctx;
    k->app->open++;
    r->user = k;
    r->on_closed = closed;
    if (strcmp(r->path, "/hello") == 0) {
        reply(r, 200, "hello\n");
    } else if (strcmp(r->path, "/who") == 0) {
        who(r);
    } else if (strcmp(r->path, "/echo") == 0 || strcmp(r->path, "/slowecho") == 0) {
        echo(r, r->path[1] == 's');
    } else if (strcmp(r->path, "/count") == 0) {
        r->on_data = count_data;
        r->on_end = count_end;
    } else if (strcmp(r->path, "/refuse") == 0) {
        reply(r, 413, "too much\n");
    } else if (strcmp(r->path, "/ws") == 0) {
        ws(r);
    } else if (strncmp(r->path, "/status/", 8) == 0 && num_u64(r->path + 8, &status)) {
        finished(r);
        http_set(r, "set-cookie", "a=1");
        http_set(r, "set-cookie", "b=2");
        http_reply(r, (unsigned)status, NULL, NULL, 0);
    } else if (strcmp(r->path, "/silent") != 0) {
        streams(r);
    }
}

/* ---- the world ---- */

static void must(bool good, const char *what)
{
    if (good)
        return;
    perror(what);
    abort();
}

void http_world_start(struct http_world *w, http_accept_fn *accept_fn, void *accept_ctx)
{
    struct err err;
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof a;
    *w = (struct http_world){.listen_fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0)};
    must(bind(w->listen_fd, (struct sockaddr *)&a, sizeof a) == 0 && listen(w->listen_fd, 64) == 0 &&
             getsockname(w->listen_fd, (struct sockaddr *)&a, &n) == 0,
         "listen");
    w->port = ntohs(a.sin_port);
    must(loop_new(&w->loop, &err) == 0, "loop");
    must(http_server_new(w->loop, &http_default_limits, http_app, &w->app, &w->server, &err) == 0, "server");
    must(http_server_listen(w->server, w->listen_fd, accept_fn, accept_ctx, &err) == 0, "listen");
}

void http_world_stop(struct http_world *w)
{
    http_server_free(w->server);
    loop_free(w->loop);
    (void)close(w->listen_fd);
}

int http_world_dial(const struct http_world *w)
{
    struct sockaddr_in a = {
        .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK), .sin_port = htons((uint16_t)w->port)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    must(fd >= 0 && (connect(fd, (struct sockaddr *)&a, sizeof a) == 0 || errno == EINPROGRESS), "connect");
    return fd;
}

bool http_world_until(struct http_world *w, const bool *done, unsigned ms)
{
    struct err err;
    uint64_t end = loop_now(w->loop) + ms;
    while (!*done && loop_now(w->loop) < end)
        must(loop_step(w->loop, 10, &err) == 0, "loop");
    return *done;
}

int http_world_run(struct http_world *w, struct buf *out, const char *const *argv)
{
    struct err err;
    int pipes[2], status = 0;
    char piece[65536];
    must(pipe2(pipes, O_CLOEXEC) == 0, "pipe");
    pid_t pid = fork();
    if (pid == 0) {
        (void)dup2(pipes[1], 1);
        (void)dup2(pipes[1], 2);
        (void)execvp(argv[0], (char **)(uintptr_t)argv);
        _exit(127);
    }
    (void)close(pipes[1]);
    (void)fcntl(pipes[0], F_SETFL, O_NONBLOCK);
    uint64_t end = loop_now(w->loop) + 60000;
    bool eof = false;
    while (!eof) {
        must(loop_step(w->loop, 5, &err) == 0, "loop");
        for (ssize_t n; (n = read(pipes[0], piece, sizeof piece)) >= 0;) {
            buf_add(out, piece, (size_t)n);
            eof = n == 0;
            if (eof)
                break;
        }
        if (loop_now(w->loop) > end) {
            (void)kill(pid, SIGKILL);
            break;
        }
    }
    (void)close(pipes[0]);
    (void)waitpid(pid, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}
