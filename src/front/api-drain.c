#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "front/api.h"
#include "front/reply.h"

/* A client that is still sending does not look for an answer, and closing on it would destroy the answer on its way. So a
 * refused upload is read to its end, within limits, and answered then. */
enum { DRAIN_MAX = 512 * 1024 * 1024, DRAIN_MS = 20000 };

struct drain {
    struct http_req *r;
    uint64_t dropped;
    loop_id timer;
    unsigned status;
    char *text;
    bool json; /* text is the whole answer */
};

static void drain_free(struct drain *d)
{
    loop_timer_del(d->r->loop, d->timer);
    free(d->text);
    free(d);
}

static void left(struct http_req *r) { drain_free(r->user); }

static void answer(struct drain *d)
{
    struct http_req *r = d->r;
    unsigned status = d->status;
    char *text = d->text;
    bool json = d->json;
    d->text = NULL;
    r->on_data = NULL;
    r->on_end = NULL;
    r->user = NULL;
    api_on_closed(r, NULL);
    drain_free(d);
    if (json)
        http_reply(r, status, "application/json", text, strlen(text));
    else
        reply_error(r, status, "%s", text);
    free(text);
}

static void on_data(struct http_req *r, const void *p, size_t n)
{
    struct drain *d = r->user;
    (void)p;
    d->dropped += n;
    if (d->dropped > DRAIN_MAX)
        answer(d);
}

static void on_end(struct http_req *r) { answer(r->user); }

static void too_late(void *arg)
{
    struct drain *d = arg;
    d->timer = 0;
    answer(d);
}

static void drain(struct http_req *r, unsigned status, const char *text, bool json)
{
    struct drain *d = xcalloc(1, sizeof *d);
    d->r = r;
    d->status = status;
    d->text = xstrdup(text);
    d->json = json;
    d->timer = loop_timer(r->loop, DRAIN_MS, too_late, d);
    r->user = d;
    r->on_data = on_data;
    r->on_end = on_end;
    r->on_writable = NULL;
    api_on_closed(r, left);
    http_resume(r);
}

void api_refuse_body(struct http_req *r, unsigned status, const char *text)
{
    if (r->length == 0)
        reply_error(r, status, "%s", text);
    else
        drain(r, status, text, false);
}

void api_drain_json(struct http_req *r, unsigned status, const struct buf *body)
{
    if (r->length == 0)
        reply_json(r, status, body);
    else
        drain(r, status, body->p, true);
}
