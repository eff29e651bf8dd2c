/* http-app.h - a small real application on a real server and loop, for the tests of clients, proxies and HTTP/2. */
#ifndef HUTCH_TESTS_UNIT_HTTP_APP_H
#define HUTCH_TESTS_UNIT_HTTP_APP_H

#include "base/err.h"
#include "http/server.h"

/* GET  /hello            "hello\n"
 * GET  /who              host, x-forwarded-*, cookie and other fields of the request, one per line
 * POST /echo             the body, as it comes
 * POST /slowecho         the same, but paused for a moment after every piece
 * GET  /bytes/N          N bytes of a pattern
 * POST /count            the number of bytes of the body
 * GET  /events           three server-sent events, 20 ms apart
 * GET  /silent           no answer
 * GET  /cut              half an answer, then a cut
 * POST /refuse           413 before the body is read
 * GET  /ws               upgrades and echoes
 * GET  /status/N         an empty answer with that status */
http_handler http_app;

struct http_app {
    unsigned open;    /* requests that were begun and neither answered nor closed */
    unsigned closed;  /* on_closed calls */
    size_t held_most; /* the most that was queued on one answer */
};

/* A server with http_app on 127.0.0.1. */
struct http_world {
    struct loop *loop;
    struct http_server *server;
    struct http_app app;
    int listen_fd;
    int port;
};
void http_world_start(struct http_world *w, http_accept_fn *accept, void *accept_ctx);
void http_world_stop(struct http_world *w);
/* A connected non-blocking socket to it. */
int http_world_dial(const struct http_world *w);
/* Runs the loop until *done or the time is over; true if it was done. */
bool http_world_until(struct http_world *w, const bool *done, unsigned ms);
/* Runs a command (NULL-terminated) beside the loop; its output goes to `out`. The exit code, or -1. */
int http_world_run(struct http_world *w, struct buf *out, const char *const *argv);
/* The pattern of /bytes. */
char http_app_byte(uint64_t at);

#endif
