/* Fuzz driver for HTTP/2 upstreams: the bytes are what the server sends while three requests are open, one of them paused. Each
 * request must end exactly once. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "egress/h2up.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct call {
    struct h2up_stream *stream;
    bool head, over;
};

static void on_head(void *arg, unsigned status, const struct http_fields *f, uint64_t length)
{
    struct call *c = arg;
    (void)length;
    if (c->over || c->head || status < 200 || status > 599)
        abort();
    for (size_t i = 0; i < f->n; i++)
        if (f->v[i].name[0] == ':' || f->v[i].name[0] == '\0' || strpbrk(f->v[i].value, "\r\n"))
            abort();
    c->head = true;
}
static void on_data(void *arg, const void *p, size_t n)
{
    const struct call *c = arg;
    if (c->over || !c->head || n == 0 || !p)
        abort();
}
static void finished(struct call *c)
{
    if (c->over)
        abort();
    c->over = true;
    c->stream = NULL;
}
static void on_end(void *arg)
{
    if (!((struct call *)arg)->head)
        abort();
    finished(arg);
}
static void on_writable(void *arg)
{
    if (((struct call *)arg)->over)
        abort();
}
static void on_error(void *arg, enum client_failure failure, const char *text)
{
    (void)failure;
    if (!text[0])
        abort();
    finished(arg);
}
static void on_trailer(void *arg, const char *name, const char *value)
{
    const struct call *c = arg;
    if (c->over || !c->head || name[0] == ':' || strpbrk(value, "\r\n"))
        abort();
}

static void on_gone(void *arg) { *(bool *)arg = true; }

static void turn(struct loop *l, int fd)
{
    static char drop[65536];
    struct err err;
    (void)loop_step(l, 0, &err);
    (void)!read(fd, drop, sizeof drop);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const struct h2up_events events = {{on_head, on_data, on_end, on_writable, on_error}, on_trailer};
    static const struct client_request get = {.method = "GET", .target = "/", .host = "a.example"};
    static const struct client_request post = {
        .method = "POST", .target = "/", .host = "a.example", .length = HTTP_UNKNOWN};
    static struct loop *loop;
    struct call calls[3] = {0};
    struct err err;
    int fds[2];
    bool gone = false;
    if (size > 60000)
        return 0;
    if (!loop && loop_new(&loop, &err) < 0)
        abort();
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds) < 0)
        abort();
    struct h2up *u = h2up_new(loop, transport_plain(fds[0]), on_gone, &gone);
    for (int i = 0; i < 3; i++)
        calls[i].stream = h2up_start(u, i == 1 ? &post : &get, "https", &events, &calls[i]);
    (void)h2up_write(calls[1].stream, "some of a body", 14);
    h2up_pause(calls[2].stream);
    turn(loop, fds[1]);
    (void)!write(fds[1], data, size);
    for (int i = 0; i < 6; i++)
        turn(loop, fds[1]);
    if (calls[2].stream)
        h2up_resume(calls[2].stream);
    (void)close(fds[1]);
    for (int i = 0; i < 10 && !gone; i++)
        (void)loop_step(loop, 0, &err);
    if (!gone || !calls[0].over || !calls[1].over || !calls[2].over)
        abort();
    h2up_free(u);
    (void)loop_step(loop, 0, &err);
    return 0;
}
