/* http1-feed.h - a message fed to our codec, whole or in steps, and to another reader of HTTP/1 for a second opinion. */
#ifndef HUTCH_TESTS_FUZZ_HTTP1_FEED_H
#define HUTCH_TESTS_FUZZ_HTTP1_FEED_H

#include <http_parser.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/mem.h"
#include "http/http1.h"

struct feed {
    int verdict;   /* 1 complete, 0 more is needed, -1 refused */
    size_t used;   /* of the input, when complete */
    size_t body_n; /* bytes of the body */
    uint32_t body_hash;
    enum http1_framing framing;
    size_t fields;
};

static void hash(struct feed *f, const char *p, size_t n)
{
    f->body_n += n;
    for (size_t i = 0; i < n; i++)
        f->body_hash = f->body_hash * 31 + (unsigned char)p[i];
}

static void feed_body(struct feed *f, const struct http1_head *h, const char *p, size_t n, size_t step)
{
    struct http1_body body;
    http1_body_start(&body, h);
    while (!body.done && f->used < n) {
        size_t some = step < n - f->used ? step : n - f->used, data_n;
        const char *data;
        ssize_t used = http1_body_next(&body, p + f->used, some, &data, &data_n);
        if (used < 0) {
            f->verdict = -1;
            return;
        }
        if (used == 0 || (size_t)used > some || data_n > (size_t)used)
            abort();
        hash(f, data, data_n);
        f->used += (size_t)used;
    }
    f->verdict = body.done;
}

/* `method` NULL: a request. */
static struct feed feed_ours(const char *p, size_t n, size_t step, const char *method)
{
    struct feed f = {0};
    struct http1_bad bad = {0};
    struct http1_head h;
    size_t have = 0, scan = 0;
    ssize_t len = 0;
    while (len == 0 && have < n) {
        have = have + step < n ? have + step : n;
        len = http1_head_end(p, have, &scan, &bad);
    }
    if (len > 0) {
        _cleanup_free_ char *head = xmalloc((size_t)len);
        _cleanup_free_ struct http_field *fields = xcalloc(http1_count_fields(p, (size_t)len), sizeof *fields);
        memcpy(head, p, (size_t)len);
        int r = method ? http1_parse_response(head, (size_t)len, method, fields, &h, &bad)
                       : http1_parse_request(head, (size_t)len, fields, &h, &bad);
        if (r == 0) {
            f.used = (size_t)len;
            f.framing = h.framing;
            f.fields = h.fields.n;
            for (size_t i = 0; i < h.fields.n; i++)
                if (strpbrk(h.fields.v[i].value, "\r\n") || strpbrk(h.fields.v[i].name, "\r\n: "))
                    abort();
            feed_body(&f, &h, p, n, step);
            return f;
        }
        len = -1;
    }
    if (len < 0 && (bad.status < 400 || !bad.why))
        abort();
    f.verdict = (int)len;
    return f;
}

struct other {
    struct feed f;
    bool done, no_body;
};

static int other_body(http_parser *p, const char *at, size_t n)
{
    hash(&((struct other *)p->data)->f, at, n);
    return 0;
}
static int other_done(http_parser *p)
{
    ((struct other *)p->data)->done = true;
    http_parser_pause(p, 1);
    return 0;
}
static int other_head(http_parser *p)
{
    struct other *o = p->data;
    o->f.framing = p->flags & F_CHUNKED ? HTTP1_CHUNKED : HTTP1_NONE;
    return o->no_body ? 1 : 0;
}

/* verdict as above; `used` counts up to the last byte of the message. */
static struct other feed_other(const char *p, size_t n, enum http_parser_type type, bool no_body)
{
    struct other o = {.no_body = no_body};
    http_parser parser;
    http_parser_settings settings;
    http_parser_settings_init(&settings);
    settings.on_body = other_body;
    settings.on_headers_complete = other_head;
    settings.on_message_complete = other_done;
    http_parser_init(&parser, type);
    parser.data = &o;
    size_t used = http_parser_execute(&parser, &settings, p, n);
    enum http_errno e = HTTP_PARSER_ERRNO(&parser);
    o.f.verdict = o.done ? 1 : e == HPE_OK ? 0 : -1;
    o.f.used = used;
    return o;
}

static void same(const struct feed *a, const struct feed *b)
{
    if (a->verdict != b->verdict || (a->verdict >= 0 && (a->used != b->used || a->body_n != b->body_n ||
                                                         a->body_hash != b->body_hash || a->framing != b->framing)))
        abort();
}

#endif
