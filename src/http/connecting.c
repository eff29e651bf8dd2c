#include "http/connecting.h"

#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/mem.h"

enum { ADDRESSES = 8 };

/* A lookup on a worker thread; it outlives a connecting that is freed meanwhile. */
struct lookup {
    struct connecting *owner; /* NULL: freed */
    char host[256], port[8];
    struct sockaddr_storage v[ADDRESSES];
    socklen_t len[ADDRESSES];
    size_t n;
    int error;
};

struct connecting {
    struct loop *loop;
    struct lookup *lookup; /* NULL: it is over */
    struct sockaddr_storage v[ADDRESSES];
    socklen_t len[ADDRESSES];
    size_t n, tried;
    uint64_t ms;
    int fd; /* being connected; -1: none */
    loop_id watch, timer;
    int error; /* of the last address */
    connecting_done *done;
    void *arg;
};

static void connecting_drop_address(struct connecting *d)
{
    loop_fd_del(d->loop, d->watch);
    loop_timer_del(d->loop, d->timer);
    d->watch = d->timer = 0;
    if (d->fd >= 0)
        (void)close(d->fd);
    d->fd = -1;
}

void connecting_free(struct connecting *d)
{
    if (!d)
        return;
    connecting_drop_address(d);
    if (d->lookup)
        d->lookup->owner = NULL;
    free(d);
}

static void connecting_end(struct connecting *d, int fd, const char *why)
{
    connecting_done *done = d->done;
    void *arg = d->arg;
    connecting_free(d);
    done(arg, fd, why);
}

static void connecting_try(struct connecting *d);

static void connecting_on_event(void *arg, int fd, unsigned events)
{
    struct connecting *d = arg;
    socklen_t len = sizeof d->error;
    (void)events;
    if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &d->error, &len) < 0)
        d->error = errno;
    if (d->error == 0)
        d->fd = -1; /* it is the callee's now */
    connecting_drop_address(d);
    if (d->error == 0)
        connecting_end(d, fd, NULL);
    else
        connecting_try(d);
}

static void connecting_on_late(void *arg)
{
    struct connecting *d = arg;
    d->timer = 0;
    d->error = ETIMEDOUT;
    connecting_drop_address(d);
    connecting_try(d);
}

/* The next address. */
static void connecting_try(struct connecting *d)
{
    while (d->tried < d->n) {
        const struct sockaddr_storage *a = &d->v[d->tried];
        d->fd = socket(a->ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
        bool begun =
            d->fd >= 0 && (connect(d->fd, (const struct sockaddr *)a, d->len[d->tried]) == 0 || errno == EINPROGRESS);
        d->tried++;
        d->error = begun ? 0 : errno;
        if (begun && (d->watch = loop_fd_add(d->loop, d->fd, LOOP_OUT, connecting_on_event, d))) {
            d->timer = loop_timer(d->loop, d->ms, connecting_on_late, d);
            return;
        }
        connecting_drop_address(d);
    }
    connecting_end(d, -1, d->error ? strerror(d->error) : "the name has no address");
}

/* Runs on a worker thread. */
static void connecting_lookup_work(void *arg)
{
    struct lookup *k = arg;
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV}, *list = NULL;
    k->error = getaddrinfo(k->host, k->port, &hints, &list);
    for (const struct addrinfo *a = list; a && k->n < ADDRESSES; a = a->ai_next)
        if (a->ai_addrlen <= sizeof k->v[0]) {
            memcpy(&k->v[k->n], a->ai_addr, a->ai_addrlen);
            k->len[k->n++] = a->ai_addrlen;
        }
    if (list)
        freeaddrinfo(list);
}

static void connecting_on_lookup(void *arg)
{
    struct lookup *k = arg;
    struct connecting *d = k->owner;
    int error = k->error;
    if (d) {
        d->lookup = NULL;
        d->n = k->n;
        memcpy(d->v, k->v, sizeof d->v);
        memcpy(d->len, k->len, sizeof d->len);
    }
    free(k);
    if (d && error)
        connecting_end(d, -1, gai_strerror(error));
    else if (d)
        connecting_try(d);
}

struct connecting *connecting_start(struct loop *l, const char *host, uint16_t port, uint64_t ms, connecting_done *done,
                                    void *arg)
{
    struct connecting *d = xcalloc(1, sizeof *d);
    struct lookup *k = xcalloc(1, sizeof *k);
    *d = (struct connecting){.loop = l, .lookup = k, .ms = ms, .fd = -1, .done = done, .arg = arg};
    k->owner = d;
    (void)snprintf(k->host, sizeof k->host, "%s", host);
    (void)snprintf(k->port, sizeof k->port, "%u", port);
    loop_work(l, connecting_lookup_work, connecting_on_lookup, k);
    return d;
}
