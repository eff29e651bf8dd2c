/* A template or snapshot as one file: a head with its configuration, then stock's archive.
 *
 * Stock writes the archive into a file without a name and is done with it; what takes long is the client, and it takes from
 * here. As long as it does, the file takes room on the disk: so a tenant has few of them, and whoever takes less than a
 * trickle is cut off.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/mem.h"
#include "front/builds.h"
#include "front/native.h"
#include "front/reply.h"
#include "sandbox/stockc.h"

enum {
    PIECE = 256 * 1024,
    EXPORTS_MAX = 16,      /* at once */
    EXPORTS_OF_TENANT = 2, /* likewise */
    RATE_EVERY_MS = 60 * 1000,
    RATE_BYTES = 60 * 16 * 1024, /* that must have gone in that time */
};

struct exporting {
    struct exporting *next, **link; /* among all of this process */
    const struct tenant *tenant;
    struct http_req *r; /* NULL: the client left while a worker was busy */
    struct front *front;
    stockc_call call; /* 0: it was answered */
    int fd;           /* the archive; -1: not yet */
    loop_id timer;
    bool working;
    uint64_t at, end, at_check;
    ssize_t got;
    char *piece;
    struct buf config;
};

static struct exporting *all;

static void exporting_free(struct exporting *x)
{
    if (x->call)
        stockc_cancel(x->front->stock, x->call);
    loop_timer_del(x->front->loop, x->timer);
    if (x->fd >= 0)
        (void)close(x->fd);
    *x->link = x->next;
    if (x->next)
        x->next->link = x->link;
    buf_done(&x->config);
    free(x->piece);
    free(x);
}

static void left(struct http_req *r)
{
    struct exporting *x = r->user;
    x->r = NULL;
    if (!x->working)
        exporting_free(x);
}

static void finish(struct exporting *x, bool whole)
{
    struct http_req *r = x->r;
    api_on_closed(r, NULL);
    exporting_free(x);
    if (whole)
        http_end(r);
    else
        http_abort(r); /* a cut is the only way to say that it is not whole */
}

/* --- sending ------------------------------------------------------------------------------------------------------ */

static void read_piece(void *arg)
{
    struct exporting *x = arg;
    size_t want = x->end - x->at < PIECE ? (size_t)(x->end - x->at) : PIECE;
    do
        x->got = pread(x->fd, x->piece, want, (off_t)x->at);
    while (x->got < 0 && errno == EINTR);
}

static void piece_read(void *arg);

static void go_on(struct exporting *x)
{
    if (x->at == x->end) {
        finish(x, true);
        return;
    }
    x->working = true;
    loop_work(x->front->loop, read_piece, piece_read, x);
}

static void piece_read(void *arg)
{
    struct exporting *x = arg;
    x->working = false;
    if (!x->r) {
        exporting_free(x);
        return;
    }
    if (x->got <= 0) {
        finish(x, false);
        return;
    }
    x->at += (uint64_t)x->got;
    if (http_write(x->r, x->piece, (size_t)x->got) || x->at == x->end)
        go_on(x);
}

static void writable(struct http_req *r)
{
    struct exporting *x = r->user;
    if (x->fd >= 0 && !x->working)
        go_on(x);
}

static void check_rate(void *arg)
{
    struct exporting *x = arg;
    bool slow = x->at - x->at_check < RATE_BYTES;
    x->timer = 0;
    x->at_check = x->at;
    if (slow && x->r)
        http_abort(x->r);
    else
        x->timer = loop_timer(x->front->loop, RATE_EVERY_MS, check_rate, x);
}

static void send_head(struct exporting *x)
{
    _cleanup_buf_ struct buf line = {0};
    buf_addf(&line, "hutch-template 1 %zu\n", x->config.n);
    http_set(x->r, "content-type", "application/octet-stream");
    http_head(x->r, 200, line.n + x->config.n + x->end);
    (void)http_write(x->r, line.p, line.n);
    (void)http_write(x->r, x->config.p, x->config.n);
}

static void answered(void *arg, const struct stock_reply *r, int fd)
{
    struct exporting *x = arg;
    struct http_req *req = x->r;
    x->call = 0;
    x->fd = fd;
    if (r->error == STOCK_OK && fd >= 0) {
        x->end = r->bytes;
        x->piece = xmalloc(PIECE);
        x->timer = loop_timer(x->front->loop, RATE_EVERY_MS, check_rate, x);
        send_head(x);
        go_on(x);
        return;
    }
    api_on_closed(req, NULL);
    exporting_free(x);
    reply_error(req, r->error == STOCK_OK ? 500 : stock_http_status(r->error), "the template cannot be exported: %.*s",
                STOCK_TEXT_MAX - 1, r->error == STOCK_OK ? "nothing came of it" : r->text);
}

/* --- asking ------------------------------------------------------------------------------------------------------- */

static bool too_many(struct api_call *c)
{
    size_t n = 0, own = 0;
    for (const struct exporting *o = all; o; o = o->next, n++)
        own += o->tenant == c->who.tenant;
    if (own >= EXPORTS_OF_TENANT)
        reply_error(c->req, 429, "%d exports of yours are under way; try again when one of them has ended",
                    EXPORTS_OF_TENANT);
    else if (n >= EXPORTS_MAX)
        reply_error(c->req, 503, "%d exports are under way on this node; try again", EXPORTS_MAX);
    return own >= EXPORTS_OF_TENANT || n >= EXPORTS_MAX;
}

static void begin(struct api_call *c, const struct tmpl *t, const struct tmpl_tag *tag)
{
    struct stock_request q = stockc_request(STOCK_EXPORT);
    _cleanup_free_ char *config = tmpl_config_text(t, tag);
    struct exporting *x = xcalloc(1, sizeof *x);
    x->r = c->req;
    x->front = c->front;
    x->tenant = c->who.tenant;
    x->fd = -1;
    x->link = &all;
    x->next = all;
    if (all)
        all->link = &x->next;
    all = x;
    buf_adds(&x->config, config);
    c->req->user = x;
    c->req->on_writable = writable;
    api_on_closed(c->req, left);
    memcpy(q.stack, tag->stack, sizeof q.stack);
    x->call = stockc_ask_for(c->front->stock, c->who.tenant->id, &q, NULL, 0, NULL, answered, x);
}

void native_template_export(struct api_call *c)
{
    const struct tmpl_tag *tag = NULL;
    const struct tmpl *t = tmpl_find(c->front, c->who.tenant, c->param[0], &tag);
    if (t && !tag && !strchr(c->param[0], ':') && t->ntags)
        tag = &t->tags[0];
    if (!t || !tag)
        reply_error(c->req, 404, "template '%.80s' not found%s", c->param[0],
                    template_resolve(c->front, c->param[0], &(struct template_info){0})
                        ? ": templates that are directories of the node are not exported"
                        : "");
    else if (!c->front->stock)
        reply_error(c->req, 503, "the process that keeps files is not there; try again");
    else if (!too_many(c))
        begin(c, t, tag);
}

void native_build_cancel(struct api_call *c)
{
    unsigned status;
    struct err err;
    if (build_cancel(c->front, c->who.tenant, c->param[0], c->param[1], &status, &err) < 0)
        reply_error(c->req, status, "%s", err.msg);
    else
        reply_empty(c->req, 204);
}
