/* dns-tcp.c - DNS over TCP, to any address: each message has its length in front. Questions are answered one after the
 * other; the next is read only when the client has taken the answer before.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "base/cleanup.h"
#include "base/mem.h"
#include "egress/dns.h"
#include "egress/resolve.h"

enum { IDLE_MS = 10000, ANSWER_MAX = 65535 };

struct dns_stream {
    struct flow *f;
    loop_id watch, timer;
    struct resolve *resolve; /* a question waits */
    struct dns_query q;
    struct buf out;
    size_t sent;
};

static void dns_stream_end(struct dns_stream *d)
{
    struct flow *f = d->f;
    loop_fd_del(f->sb->g->loop, d->watch);
    loop_timer_del(f->sb->g->loop, d->timer);
    resolve_cancel(d->resolve);
    buf_done(&d->out);
    free(d);
    flow_end(f);
}

static void dns_stream_cut(struct flow *f)
{
    flow_reset(f);
    dns_stream_end(f->driver);
}

/* Always allowed: each question is judged when it comes. */
static bool dns_stream_still(struct flow *f)
{
    (void)f;
    return true;
}

static const struct flow_ops stream_ops = {.still = dns_stream_still, .cut = dns_stream_cut};

static void dns_stream_on_idle(void *arg)
{
    struct dns_stream *d = arg;
    d->timer = 0;
    dns_stream_end(d);
}

static void dns_stream_put_answer(struct dns_stream *d, const struct dns_answer *a)
{
    _cleanup_buf_ struct buf m = {0};
    dns_write(&d->q, a, ANSWER_MAX, &m);
    const unsigned char length[] = {(unsigned char)(m.n >> 8), (unsigned char)m.n};
    buf_add(&d->out, length, 2);
    buf_add(&d->out, m.p, m.n);
}

static int dns_stream_advance(struct dns_stream *d);

static void dns_stream_on_resolved(void *arg, const struct resolve_answer *r)
{
    struct dns_stream *d = arg;
    struct dns_answer a;
    d->resolve = NULL;
    dns_resolved(d->f->sb, &d->q, r, &a);
    dns_stream_put_answer(d, &a);
    if (dns_stream_advance(d) < 0)
        dns_stream_end(d);
}

/* 1: took one question; 0: none is complete; -1: not DNS. */
static int dns_stream_take_question(struct dns_stream *d)
{
    struct buf *head = &d->f->head;
    const unsigned char *p = (const unsigned char *)head->p;
    struct dns_answer a = {0};
    if (head->n < 2)
        return 0;
    size_t n = (size_t)p[0] << 8 | p[1];
    if (n > DNS_MESSAGE_MAX)
        return -1;
    if (head->n < 2 + n)
        return 0;
    if (!dns_parse(p + 2, n, &d->q, &a.rcode))
        return -1;
    memmove(head->p, head->p + 2 + n, head->n - 2 - n);
    head->n -= 2 + n;
    if (a.rcode != DNS_OK || dns_decide(d->f->sb, &d->q, &a))
        dns_stream_put_answer(d, &a);
    else
        d->resolve = resolve_start(d->f->sb->g, d->q.name, dns_stream_on_resolved, d);
    return 1;
}

/* Sends pending answers and answers complete questions until one side has to wait. -1: the connection has to end. */
static int dns_stream_advance(struct dns_stream *d)
{
    for (;;) {
        while (d->sent < d->out.n) {
            ssize_t n = send(d->f->fd, d->out.p + d->sent, d->out.n - d->sent, MSG_NOSIGNAL);
            if (n < 0 && errno == EAGAIN) {
                loop_fd_set(d->f->sb->g->loop, d->watch, LOOP_OUT);
                return 0;
            }
            if (n < 0)
                return -1;
            d->sent += (size_t)n;
        }
        d->out.n = d->sent = 0;
        int rc = d->resolve ? 0 : dns_stream_take_question(d);
        if (rc <= 0) {
            loop_fd_set(d->f->sb->g->loop, d->watch, d->resolve ? 0 : LOOP_IN);
            return rc;
        }
    }
}

static void dns_stream_on_event(void *arg, int fd, unsigned events)
{
    struct dns_stream *d = arg;
    unsigned char bytes[2048];
    if ((events & (LOOP_IN | LOOP_HUP)) && d->sent == d->out.n) {
        ssize_t n = recv(fd, bytes, sizeof bytes, 0);
        if (n < 0 && errno == EAGAIN)
            return;
        if (n <= 0) {
            dns_stream_end(d);
            return;
        }
        buf_add(&d->f->head, bytes, (size_t)n);
        loop_timer_del(d->f->sb->g->loop, d->timer);
        d->timer = loop_timer(d->f->sb->g->loop, IDLE_MS, dns_stream_on_idle, d);
    }
    if (dns_stream_advance(d) < 0)
        dns_stream_end(d);
}

void dns_flow(struct flow *f)
{
    struct dns_stream *d = xcalloc(1, sizeof *d);
    d->f = f;
    f->ops = &stream_ops;
    f->driver = d;
    d->timer = loop_timer(f->sb->g->loop, IDLE_MS, dns_stream_on_idle, d);
    d->watch = loop_fd_add(f->sb->g->loop, f->fd, LOOP_IN, dns_stream_on_event, d);
    if (!d->watch)
        dns_stream_end(d);
}
