/* Fuzz driver for the client: the bytes are an upstream's answer. Whatever they are, the exchange ends exactly once. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "http/client.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct exchange {
    struct client *c;
    unsigned heads, ends, errors, pieces;
    bool pausing;
};

static void on_head(void *arg, unsigned status, const struct http_fields *f, uint64_t length)
{
    struct exchange *x = arg;
    (void)length;
    if (x->heads++ || x->ends || x->errors || status < 101 || status > 999)
        abort();
    for (size_t i = 0; i < f->n; i++)
        if (f->v[i].value[strcspn(f->v[i].value, "\r\n")] || f->v[i].name[strcspn(f->v[i].name, "\r\n: ")])
            abort();
}
static void on_data(void *arg, const void *p, size_t n)
{
    struct exchange *x = arg;
    (void)p;
    if (n == 0 || x->ends || x->errors || !x->heads)
        abort();
    if (x->pausing && x->pieces++ % 2 == 0) {
        client_pause(x->c);
    }
}
static void on_end(void *arg) { ((struct exchange *)arg)->ends++; }
static void on_writable(void *arg) { (void)arg; }
static void on_error(void *arg, enum client_failure failure, const char *text)
{
    (void)failure;
    (void)text;
    ((struct exchange *)arg)->errors++;
}

/* The first byte chooses method, upgrade, pauses and where the answer is cut in two. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const struct client_events events = {on_head, on_data, on_end, on_writable, on_error};
    static struct loop *loop;
    struct err err;
    struct exchange x = {0};
    int fds[2];
    if (size == 0 || size > 60000)
        return 0;
    if ((!loop && loop_new(&loop, &err) < 0) ||
        socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds) < 0)
        abort();
    struct client_request q = {
        .method = data[0] & 1 ? "HEAD" : "GET", .target = "/", .host = "x", .upgrade = (data[0] & 2) != 0};
    x.c = client_new(loop, transport_plain(fds[0]));
    x.pausing = (data[0] & 4) != 0;
    client_start(x.c, &q, &events, &x);
    size_t first = (size - 1) * (data[0] >> 3) / 32;
    (void)!write(fds[1], data + 1, first);
    (void)loop_step(loop, 0, &err);
    (void)!write(fds[1], data + 1 + first, size - 1 - first);
    (void)shutdown(fds[1], SHUT_WR);
    for (int i = 0; i < 200 && x.ends + x.errors == 0; i++) {
        client_resume(x.c);
        (void)loop_step(loop, 0, &err);
    }
    if (x.ends + x.errors != 1)
        abort();
    client_free(x.c);
    (void)close(fds[1]);
    (void)loop_step(loop, 0, &err);
    if (x.ends + x.errors != 1)
        abort();
    return 0;
}
