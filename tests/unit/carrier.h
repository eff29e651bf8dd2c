/* carrier.h - a carrier that writes the answer into a buffer, so that a handler can be tried without a connection. */
#ifndef HUTCH_TESTS_UNIT_CARRIER_H
#define HUTCH_TESTS_UNIT_CARRIER_H

#include "http/http.h"

struct carrier {
    struct http_req r; /* first */
    struct buf fields; /* "name: value\n"... */
    struct buf body;
    unsigned status;
    uint64_t length;
    bool ended, aborted;
};

static void carrier_set(struct http_req *r, const char *name, const char *value)
{
    buf_addf(&((struct carrier *)r)->fields, "%s: %s\n", name, value);
}
static void carrier_head(struct http_req *r, unsigned status, uint64_t length)
{
    ((struct carrier *)r)->status = status;
    ((struct carrier *)r)->length = length;
}
static bool carrier_write(struct http_req *r, const void *p, size_t n)
{
    buf_add(&((struct carrier *)r)->body, p, n);
    return true;
}
static void carrier_end(struct http_req *r) { ((struct carrier *)r)->ended = true; }
static void carrier_abort(struct http_req *r) { ((struct carrier *)r)->aborted = true; }

static void carrier_start(struct carrier *c)
{
    static const struct http_stream_ops ops = {
        .set = carrier_set, .head = carrier_head, .write = carrier_write, .end = carrier_end, .abort = carrier_abort};
    *c = (struct carrier){.r = {.method = "POST", .path = "/", .length = HTTP_UNKNOWN, .version = 11, .ops = &ops}};
}

static void carrier_done(struct carrier *c)
{
    buf_done(&c->fields);
    buf_done(&c->body);
}

#endif
