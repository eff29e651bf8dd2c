/* fuzz_http_conn.c - a connection driven by a script of bytes: what the client sends, what the handler does, how time
 * passes. Every request must end in exactly one way, and nothing may leak or be used after its end. */
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/mem.h"
#include "http/server.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct task {
    struct http_req *r;
    bool answered, upgraded, end_seen, paused;
};

static struct task *open_task; /* requests are serial: there is one at most */
static uint64_t now;
static uint8_t mood; /* what the handler does at once */
static int requests, endings;

static uint64_t clock_fn(void *arg)
{
    (void)arg;
    return now;
}

static void finish(struct task *t)
{
    if (t != open_task)
        abort();
    open_task = NULL;
    endings++;
    free(t);
}

/* The handler has ended its answer; a tunnel lives until the client has ended, too. */
static void ended(struct task *t)
{
    t->answered = true;
    if (!t->upgraded || t->end_seen)
        finish(t);
}

static void on_data(struct http_req *r, const void *p, size_t n)
{
    struct task *t = r->user;
    if (t != open_task || n == 0 || t->paused || (t->end_seen && t->upgraded) || (t->answered && !t->upgraded))
        abort();
    if (memchr(p, 0xfe, n) && !t->answered)
        (void)http_write(r, p, n);
}

static void on_end(struct http_req *r)
{
    struct task *t = r->user;
    if (t != open_task || t->end_seen || (t->answered && !t->upgraded))
        abort();
    t->end_seen = true;
    if (t->answered)
        finish(t);
}

static void on_closed(struct http_req *r) { finish(r->user); }

static void on_writable(struct http_req *r)
{
    struct task *t = r->user;
    if (t != open_task || t->answered)
        abort();
}

static void act(struct task *t, uint8_t what)
{
    static const char block[70000];
    struct http_req *r = t->r;
    if (t->answered)
        return;
    switch (what % 9) {
    case 0:
        http_head(r, 200, what & 16 ? HTTP_UNKNOWN : 4);
        break;
    case 1:
        (void)http_write(r, block, what & 128 ? sizeof block : what & 7);
        break;
    case 2:
        http_end(r);
        ended(t);
        break;
    case 3:
        if (!t->upgraded) {
            http_reply(r, 200 + what % 100, "a/b", block, what & 64 ? sizeof block : 5);
            ended(t);
        }
        break;
    case 4:
        t->paused = true;
        http_pause(r);
        break;
    case 5:
        t->paused = false;
        http_resume(r);
        break;
    case 6:
        if (what & 128)
            http_abort(r);
        break;
    case 7:
        if (!t->upgraded && http_upgrade(r)) {
            t->upgraded = true;
            t->end_seen = false;
        }
        break;
    default:
        http_set(r, "x-y", "z");
        break;
    }
}

static void handler(void *ctx, struct http_req *r)
{
    (void)ctx;
    struct task *t = xcalloc(1, sizeof *t);
    if (open_task)
        abort();
    t->r = r;
    open_task = t;
    requests++;
    r->user = t;
    r->on_data = on_data;
    r->on_end = on_end;
    r->on_closed = on_closed;
    r->on_writable = on_writable;
    if (mood & 32)
        act(t, mood);
}

static int connect_client(struct http_server *s)
{
    int sv[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, sv) < 0)
        abort();
    http_server_serve(s, transport_plain(sv[0]), "fuzz");
    return sv[1];
}

static void say_canned(int fd, uint8_t which)
{
    static const char *const canned[] = {
        "GET / HTTP/1.1\r\nHost: a\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 8\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n",
        "4\r\nabc\xfe\r\n",
        "0\r\n\r\n",
        "12345678",
        "GET / HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 8\r\nExpect: 100-continue\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 999999\r\n\r\n",
        "HEAD / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",
        "GET / HT",
    };
    const char *text = canned[which % ARRAY_LEN(canned)];
    (void)send(fd, text, strlen(text), MSG_NOSIGNAL);
}

static void run(struct loop *l, struct http_server *s, const uint8_t *p, size_t n)
{
    static char block[65536];
    struct err err;
    int fd = connect_client(s);
    for (size_t i = 0; i + 1 < n && i < 400; i += 2) {
        uint8_t arg = p[i + 1];
        switch (p[i] % 10) {
        case 0:
        case 1:
            say_canned(fd, arg);
            break;
        case 2:
            (void)send(fd, block, arg & 128 ? sizeof block : arg, MSG_NOSIGNAL);
            break;
        case 3:
            now += arg * 100U;
            break;
        case 4:
            while (recv(fd, block, sizeof block, 0) > 0 && (arg & 1))
                ;
            memset(block, 0, sizeof block);
            break;
        case 5:
            (void)shutdown(fd, SHUT_WR);
            break;
        case 6:
            if (open_task && open_task->upgraded && open_task->answered)
                break;
            (void)close(fd);
            for (int k = 0; k < 4; k++)
                (void)loop_step(l, 0, &err);
            if (open_task && !open_task->paused)
                abort(); /* a client that is gone must be noticed */
            if (open_task)
                http_abort(open_task->r);
            for (int k = 0; k < 4; k++)
                (void)loop_step(l, 0, &err);
            fd = connect_client(s);
            break;
        case 7:
            mood = arg;
            break;
        default:
            if (open_task)
                act(open_task, arg);
            break;
        }
        (void)loop_step(l, 0, &err);
    }
    (void)close(fd);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const struct http_limits limits = {.connections = 4, .head_ms = 10000, .idle_ms = 20000};
    struct loop *l;
    struct http_server *s;
    struct err err;
    now = 1000;
    mood = 0;
    open_task = NULL;
    requests = endings = 0;
    if (loop_new(&l, &err) < 0 || http_server_new(l, &limits, handler, NULL, &s, &err) < 0)
        abort();
    loop_set_clock(l, clock_fn, NULL);
    run(l, s, data, size);
    http_server_free(s);
    loop_free(l);
    if (requests != endings || open_task)
        abort();
    return 0;
}
