/* api-drain.c - refuses a request whose body is still arriving. */
#include <stdlib.h>
#include <string.h>

#include "api/api.h"
#include "api/reply.h"
#include "base/mem.h"

/* A client that is still sending does not read the answer, and closing the connection could destroy the answer on
 * its way. So the body of a refused upload is read to its end, within limits, and only then answered. */
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

static void drain_on_client_left(struct http_req *r) { drain_free(r->user); }

static void drain_answer(struct drain *d)
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

static void drain_on_data(struct http_req *r, const void *p, size_t n)
{
    struct drain *d = r->user;
    (void)p;
    d->dropped += n;
    if (d->dropped > DRAIN_MAX)
        drain_answer(d);
}

static void drain_on_end(struct http_req *r) { drain_answer(r->user); }

static void drain_on_timeout(void *arg)
{
    struct drain *d = arg;
    d->timer = 0;
    drain_answer(d);
}

static void drain_start(struct http_req *r, unsigned status, const char *text, bool json)
{
    struct drain *d = xcalloc(1, sizeof *d);
    d->r = r;
    d->status = status;
    d->text = xstrdup(text);
    d->json = json;
    d->timer = loop_timer(r->loop, DRAIN_MS, drain_on_timeout, d);
    r->user = d;
    r->on_data = drain_on_data;
    r->on_end = drain_on_end;
    r->on_writable = NULL;
    api_on_closed(r, drain_on_client_left);
    http_resume(r);
}

void api_refuse_body(struct http_req *r, unsigned status, const char *text)
{
    if (r->length == 0)
        reply_error(r, status, "%s", text);
    else
        drain_start(r, status, text, false);
}

void api_drain_json(struct http_req *r, unsigned status, const struct buf *body)
{
    if (r->length == 0)
        reply_json(r, status, body);
    else
        drain_start(r, status, body->p, true);
}
