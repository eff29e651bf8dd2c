#include "http/http.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

const char *http_field(const struct http_fields *f, const char *name)
{
    for (size_t i = 0; i < f->n; i++)
        if (strcmp(f->v[i].name, name) == 0)
            return f->v[i].value;
    return NULL;
}

/* A line break in a value would let a client that controls the value forge the rest of the answer. */
static void check_field(const char *name, const char *value)
{
    if (value[strcspn(value, "\r\n")] != '\0' || name[0] == '\0' ||
        name[strcspn(name, "\r\n: ABCDEFGHIJKLMNOPQRSTUVWXYZ")])
        abort();
}

void http_set(struct http_req *r, const char *name, const char *value)
{
    check_field(name, value);
    r->ops->set(r, name, value);
}

void http_trailer(struct http_req *r, const char *name, const char *value)
{
    check_field(name, value);
    if (r->ops->trailer)
        r->ops->trailer(r, name, value);
}

void http_head(struct http_req *r, unsigned status, uint64_t length) { r->ops->head(r, status, length); }
bool http_write(struct http_req *r, const void *p, size_t n) { return r->ops->write(r, p, n); }
void http_end(struct http_req *r) { r->ops->end(r); }
const char *http_spelling(const struct http_req *r, const char *name)
{
    uintptr_t at = (uintptr_t)name, from = (uintptr_t)r->read_head;
    return r->raw_head && at >= from && at < from + r->head_n ? r->raw_head + (at - from) : name;
}

void http_abort(struct http_req *r) { r->ops->abort(r); }
void http_pause(struct http_req *r) { r->ops->pause(r, true); }
void http_resume(struct http_req *r) { r->ops->pause(r, false); }
bool http_upgrade(struct http_req *r) { return r->ops->upgrade(r); }
size_t http_queued(const struct http_req *r) { return r->ops->queued(r); }

void http_reply(struct http_req *r, unsigned status, const char *content_type, const void *p, size_t n)
{
    if (content_type)
        r->ops->set(r, "content-type", content_type);
    r->ops->head(r, status, n);
    if (n > 0)
        (void)r->ops->write(r, p, n);
    r->ops->end(r);
}
