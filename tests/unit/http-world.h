/* http-world.h - a server on a real loop and clients at the other end of socket pairs, in one thread: the test decides
 * when the loop turns, and what time it is. */
#ifndef HUTCH_TESTS_UNIT_HTTP_WORLD_H
#define HUTCH_TESTS_UNIT_HTTP_WORLD_H

#include <errno.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "http/server.h"

static struct loop *world_loop;
static struct http_server *world_server;
static uint64_t world_now;

static uint64_t world_clock(void *arg)
{
    (void)arg;
    return world_now;
}

static void world_start(const struct http_limits *limits, http_handler *handler)
{
    struct err err = {0};
    world_now = 1000000;
    if (loop_new(&world_loop, &err) < 0 || http_server_new(world_loop, limits, handler, NULL, &world_server, &err) < 0)
        fail_msg("%s", err.msg);
    loop_set_clock(world_loop, world_clock, NULL);
}

static void world_stop(void)
{
    http_server_free(world_server);
    loop_free(world_loop);
}

/* Turns the loop until nothing has happened for a while. */
static void turn(void)
{
    struct err err = {0};
    for (int i = 0; i < 20; i++)
        if (loop_step(world_loop, 0, &err) < 0)
            fail_msg("%s", err.msg);
}

static void pass(uint64_t ms)
{
    world_now += ms;
    turn();
}

__attribute__((unused)) static int client(void)
{
    int sv[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, sv) < 0)
        fail_msg("socketpair: %d", errno);
    http_server_serve(world_server, transport_plain(sv[0]), "peer");
    return sv[1];
}

static void say(int fd, const char *text)
{
    assert_int_equal(send(fd, text, strlen(text), MSG_NOSIGNAL), strlen(text));
    turn();
}

/* What has come; true in *eof at the end of the stream. */
static void hear(int fd, struct buf *b, bool *eof)
{
    char chunk[65536];
    ssize_t n;
    *eof = false;
    turn();
    while ((n = recv(fd, chunk, sizeof chunk, 0)) > 0) {
        buf_add(b, chunk, (size_t)n);
        turn();
    }
    *eof = n == 0 || (n < 0 && errno != EAGAIN);
}

static int heard_count;
/* Expects `part` in what comes next, and the stream to be open or closed behind it. */
static void expect(int fd, const char *part, bool closed)
{
    _cleanup_buf_ struct buf b = {0};
    bool eof;
    hear(fd, &b, &eof);
    heard_count = 0;
    for (const char *p = buf_str(&b); (p = strstr(p, "HTTP/1.1 ")); p++)
        heard_count++;
    if (!strstr(buf_str(&b), part) || eof != closed)
        fail_msg("wanted '%s' (%s), got (%s):\n%s", part, closed ? "closed" : "open", eof ? "closed" : "open",
                 buf_str(&b));
}

#endif
