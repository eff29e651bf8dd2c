/* native-export.c - a template or snapshot as one file: a head with its configuration, then the layer store's archive.
 *
 * The layer store writes the archive into an unnamed file, and front sends it to the client. While that lasts the file takes
 * space on the disk, so a tenant may have only a few exports, and a client that reads too slowly is disconnected.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "api/native/native.h"
#include "api/reply.h"
#include "base/cleanup.h"
#include "base/mem.h"
#include "builds/builds.h"
#include "peers/layersc.h"

enum {
    PIECE = 256 * 1024,
    EXPORTS_MAX = 16,      /* at a time */
    EXPORTS_OF_TENANT = 2, /* at a time */
    RATE_EVERY_MS = 60 * 1000,
    RATE_BYTES = 60 * 16 * 1024, /* that the client must read in that time */
};

struct exporting {
    struct exporting *next, **link; /* list of all exports */
    const struct tenant *tenant;
    struct http_req *r; /* NULL: the client left while a worker was busy */
    struct api *api;
    layersc_call call; /* 0: it was answered */
    int fd;            /* the archive; -1: not yet */
    loop_id timer;
    bool working;
    uint64_t at, end, at_check;
    ssize_t got;
    char *piece;
    struct buf config;
};

static struct exporting *all;

static void native_export_free(struct exporting *x)
{
    if (x->call)
        layersc_cancel(x->api->peers->layers, x->call);
    loop_timer_del(x->api->loop, x->timer);
    if (x->fd >= 0)
        (void)close(x->fd);
    *x->link = x->next;
    if (x->next)
        x->next->link = x->link;
    buf_done(&x->config);
    free(x->piece);
    free(x);
}

static void native_export_on_client_left(struct http_req *r)
{
    struct exporting *x = r->user;
    x->r = NULL;
    if (!x->working)
        native_export_free(x);
}

static void native_export_finish(struct exporting *x, bool whole)
{
    struct http_req *r = x->r;
    api_on_closed(r, NULL);
    native_export_free(x);
    if (whole)
        http_end(r);
    else
        http_abort(r); /* only a cut connection tells the client that the file is incomplete */
}

/* --- sending ------------------------------------------------------------------------------------------------------ */

static void native_export_read_piece(void *arg)
{
    struct exporting *x = arg;
    size_t want = x->end - x->at < PIECE ? (size_t)(x->end - x->at) : PIECE;
    do
        x->got = pread(x->fd, x->piece, want, (off_t)x->at);
    while (x->got < 0 && errno == EINTR);
}

static void native_export_on_piece_read(void *arg);

static void native_export_continue(struct exporting *x)
{
    if (x->at == x->end) {
        native_export_finish(x, true);
        return;
    }
    x->working = true;
    loop_work(x->api->loop, native_export_read_piece, native_export_on_piece_read, x);
}

static void native_export_on_piece_read(void *arg)
{
    struct exporting *x = arg;
    x->working = false;
    if (!x->r) {
        native_export_free(x);
        return;
    }
    if (x->got <= 0) {
        native_export_finish(x, false);
        return;
    }
    x->at += (uint64_t)x->got;
    if (http_write(x->r, x->piece, (size_t)x->got) || x->at == x->end)
        native_export_continue(x);
}

static void native_export_on_writable(struct http_req *r)
{
    struct exporting *x = r->user;
    if (x->fd >= 0 && !x->working)
        native_export_continue(x);
}

static void native_export_check_rate(void *arg)
{
    struct exporting *x = arg;
    bool slow = x->at - x->at_check < RATE_BYTES;
    x->timer = 0;
    x->at_check = x->at;
    if (slow && x->r)
        http_abort(x->r);
    else
        x->timer = loop_timer(x->api->loop, RATE_EVERY_MS, native_export_check_rate, x);
}

static void native_export_send_head(struct exporting *x, uint64_t devices)
{
    _cleanup_buf_ struct buf line = {0}, left = {0};
    buf_addf(&line, "hutch-template 1 %zu\n", x->config.n);
    http_set(x->r, "content-type", "application/octet-stream");
    if (devices) {
        buf_addf(&left, "%llu device nodes are left out: a sandbox has a /dev of its own", (unsigned long long)devices);
        http_set(x->r, "x-hutch-left-out", buf_str(&left));
    }
    http_head(x->r, 200, line.n + x->config.n + x->end);
    (void)http_write(x->r, line.p, line.n);
    (void)http_write(x->r, x->config.p, x->config.n);
}

static void native_export_on_archive(void *arg, const struct layers_reply *r, int fd)
{
    struct exporting *x = arg;
    struct http_req *req = x->r;
    x->call = 0;
    x->fd = fd;
    if (r->error == LAYERS_OK && fd >= 0) {
        x->end = r->bytes;
        x->piece = xmalloc(PIECE);
        x->timer = loop_timer(x->api->loop, RATE_EVERY_MS, native_export_check_rate, x);
        native_export_send_head(x, r->bytes2);
        native_export_continue(x);
        return;
    }
    api_on_closed(req, NULL);
    native_export_free(x);
    reply_error(req, r->error == LAYERS_OK ? 500 : layers_http_status(r->error),
                "the template cannot be exported: %.*s", LAYERS_TEXT_MAX - 1,
                r->error == LAYERS_OK ? "the archive is missing" : r->text);
}

/* --- asking ------------------------------------------------------------------------------------------------------- */

static bool native_export_refuse_too_many(struct api_call *c)
{
    size_t n = 0, own = 0;
    for (const struct exporting *o = all; o; o = o->next, n++)
        own += o->tenant == c->who.tenant;
    if (own >= EXPORTS_OF_TENANT)
        reply_error(c->req, 429, "this tenant has %d exports under way; try again when one of them has ended",
                    EXPORTS_OF_TENANT);
    else if (n >= EXPORTS_MAX)
        reply_error(c->req, 503, "%d exports are under way on this node; try again", EXPORTS_MAX);
    return own >= EXPORTS_OF_TENANT || n >= EXPORTS_MAX;
}

static void native_export_begin(struct api_call *c, const struct template *t, const struct template_tag *tag)
{
    _cleanup_free_ char *config = template_config_text(t, tag);
    struct exporting *x = xcalloc(1, sizeof *x);
    x->r = c->req;
    x->api = c->api;
    x->tenant = c->who.tenant;
    x->fd = -1;
    x->link = &all;
    x->next = all;
    if (all)
        all->link = &x->next;
    all = x;
    buf_adds(&x->config, config);
    c->req->user = x;
    c->req->on_writable = native_export_on_writable;
    api_on_closed(c->req, native_export_on_client_left);
    const struct layersc_to to = {.owner = c->who.tenant->id, .done = native_export_on_archive, .arg = x};
    x->call = layersc_export(c->api->peers->layers, &to, tag->stack);
}

void native_template_export(struct api_call *c)
{
    const struct template_tag *tag = NULL;
    const struct template *t = c->api->domain->templates.find(c->api->templates, c->who.tenant, c->param[0], &tag);
    if (t && !tag && !strchr(c->param[0], ':') && t->ntags)
        tag = &t->tags[0];
    if (!t || !tag)
        reply_error(c->req, 404, "template '%.80s' not found%s", c->param[0],
                    c->api->domain->templates.find_directory(c->api->templates, c->param[0], &(struct template_info){0})
                        ? ": templates that are directories of the node are not exported"
                        : "");
    else if (!c->api->peers->layers)
        reply_error(c->req, 503, "the process that keeps files is not there; try again");
    else if (!native_export_refuse_too_many(c))
        native_export_begin(c, t, tag);
}

void native_build_cancel(struct api_call *c)
{
    unsigned status;
    struct err err;
    if (build_cancel(c->api->builds, c->who.tenant, c->param[0], c->param[1], &status, &err) < 0)
        reply_error(c->req, status, "%s", err.msg);
    else
        reply_empty(c->req, 204);
}
