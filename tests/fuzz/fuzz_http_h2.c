/* Fuzz driver for the HTTP/2 server: the bytes follow the client's preface. Requests are begun and closed in pairs. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "http/h2.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static unsigned open_requests;

static void on_data(struct http_req *r, const void *p, size_t n)
{
    if (!http_write(r, p, n))
        http_pause(r);
}
static void on_writable(struct http_req *r) { http_resume(r); }
static void on_end(struct http_req *r)
{
    open_requests--;
    http_end(r);
}
static void on_closed(struct http_req *r)
{
    (void)r;
    open_requests--;
}

static void handler(void *ctx, struct http_req *r)
{
    (void)ctx;
    open_requests++;
    if ((r->path[0] != '/' && strcmp(r->path, "*") != 0) || !r->authority || !r->method[0])
        abort();
    r->on_data = on_data;
    r->on_end = on_end;
    r->on_writable = on_writable;
    r->on_closed = on_closed;
    if (r->path[1] == 'p')
        http_pause(r);
    http_head(r, 200, HTTP_UNKNOWN);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char preface[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    static struct loop *loop;
    static struct http_server *server;
    struct err err;
    int fds[2];
    char drop[65536];
    if (size > 60000)
        return 0;
    if (!loop &&
        (loop_new(&loop, &err) < 0 || http_server_new(loop, &http_default_limits, handler, NULL, &server, &err) < 0))
        abort();
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds) < 0 ||
        h2_serve(server, transport_plain(fds[0]), "x") < 0)
        abort();
    (void)!write(fds[1], preface, sizeof preface - 1);
    (void)!write(fds[1], data, size);
    for (int i = 0; i < 8; i++) {
        (void)loop_step(loop, 0, &err);
        (void)!read(fds[1], drop, sizeof drop);
    }
    (void)close(fds[1]);
    for (int i = 0; i < 8 && http_server_connections(server) > 0; i++)
        (void)loop_step(loop, 0, &err);
    if (http_server_connections(server) > 0 || open_requests != 0)
        abort();
    (void)loop_step(loop, 0, &err);
    return 0;
}
