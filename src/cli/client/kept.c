/* kept.c - one connection that is kept for the next call of this process: a command makes several calls, and a terminal one for
 * each burst of keys; over TLS each new connection costs three round trips. */
#include <poll.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "cli/client/api.h"

enum { KEPT_MS = 5000 /* far less than a node keeps a silent connection */ };

static struct {
    struct blocking connection;
    const char *ca, *cert;
    char url[300];
    pid_t owner; /* 0: there is none. A forked child must not write into its parent's connection */
    uint64_t since_ms;
} kept;

bool api_take_kept(const struct api *a, struct blocking *ret)
{
    struct pollfd p = {.fd = kept.connection.fd, .events = POLLIN};
    if (!kept.owner)
        return false;
    /* Readable means that the node has closed it. */
    bool good = kept.owner == getpid() && strcmp(kept.url, a->url) == 0 && kept.ca == a->ca && kept.cert == a->cert &&
                clock_boot_ms() - kept.since_ms < KEPT_MS && poll(&p, 1, 0) == 0;
    kept.owner = 0;
    if (!good) {
        blocking_close(&kept.connection);
        return false;
    }
    *ret = kept.connection;
    kept.connection = (struct blocking)BLOCKING_INIT;
    return true;
}

void api_end(const struct api *a, struct blocking *s)
{
    const struct http1_head *h = &s->answer;
    bool whole = s->fd >= 0 && !s->failure && s->body.done && s->at == s->in.n;
    if (!whole || !h->keep_alive || h->framing == HTTP1_CLOSE) {
        blocking_close(s);
        return;
    }
    if (kept.owner)
        blocking_close(&kept.connection);
    kept.connection = *s;
    *s = (struct blocking)BLOCKING_INIT;
    kept.ca = a->ca;
    kept.cert = a->cert;
    memcpy(kept.url, a->url, sizeof kept.url);
    kept.owner = getpid();
    kept.since_ms = clock_boot_ms();
}
