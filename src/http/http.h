/* http.h - one request and its answer, independent of the carrier (HTTP/1.1 or HTTP/2, plain or TLS).
 *
 * A server (server.h) calls the handler once per request, when its head is complete and valid. The handler sets the
 * callbacks it needs on the request and answers at once, or from any later callback on the loop's thread.
 * Nothing is buffered beyond the high-water mark: http_write() says when to stop, on_writable when to go on; a handler
 * that cannot take more body calls http_pause(), which stops reading from the client.
 *
 * Life: a request lives until the answer has been ended (http_end, http_reply) *and* its body was read or given up, or
 * until on_closed was called, which happens exactly once if the client goes away, times out or http_abort() is called
 * before the end. After http_end()/http_reply() the handler must not touch the request again and gets no callback.
 * In on_closed the handler frees what it hung on `user`; answering is no longer possible.
 * An upgraded request has two ends: http_end() closes our direction only. If the client's end has not come yet, on_data
 * goes on and on_end (or on_closed) is the last callback; if it has, http_end() is the last call.
 * on_end may come twice for it: once for the end of its (empty) body, if that came before http_upgrade().
 */
#ifndef HUTCH_HTTP_HTTP_H
#define HUTCH_HTTP_HTTP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "loop/loop.h"

enum {
    HTTP_HEAD_MAX = 64 * 1024,
    HTTP_FIELDS_MAX = 100,
    HTTP_HIGH_WATER = 256 * 1024,
    HTTP_LOW_WATER = 128 * 1024,
};
#define HTTP_UNKNOWN UINT64_MAX

struct http_field {
    const char *name;  /* lower case, NUL-terminated */
    const char *value; /* NUL-terminated; no CR, LF, NUL inside */
};
struct http_fields {
    const struct http_field *v;
    size_t n;
};
/* The first value, or NULL. Name in lower case. */
const char *http_field(const struct http_fields *f, const char *name);

struct http_req;
struct http_stream_ops;
/* The name of a request's field as the client wrote it ("X-Name"): strlen(name) bytes, without a NUL. HTTP/2 has
 * lower case only. */
const char *http_spelling(const struct http_req *r, const char *name);

struct http_req {
    /* What was asked; valid for the life of the request; read-only for handlers. */
    const char *method;
    const char *path;      /* raw: still percent-encoded, begins with '/' (or "*") */
    const char *query;     /* raw, without '?'; NULL if none */
    const char *authority; /* Host or :authority */
    const char *scheme;    /* of an absolute target, or :scheme; NULL if the target is a path */
    struct http_fields fields;
    uint64_t length;  /* of the body; HTTP_UNKNOWN if chunked; 0 if there is none */
    unsigned version; /* 10, 11, 20 */
    bool tls;
    char peer[64]; /* address of the client, text */
    char id[24];   /* request id for logs and the x-request-id answer field */
    struct loop *loop;
    struct http_owner *owner; /* of the connection (server.h); NULL if it has none */
    /* HTTP/1: the head as it came, and the copy that was read, into which the names of fields point. NULL: HTTP/2. */
    const char *raw_head, *read_head;
    size_t head_n;

    /* Set by the handler. `data` may be called many times; `end` once, after the last of it (also when there is no
     * body). */
    void *user;
    void (*on_data)(struct http_req *r, const void *p, size_t n);
    void (*on_end)(struct http_req *r);
    /* One trailer; before on_end. Name in lower case. If NULL, trailers are dropped. */
    void (*on_trailer)(struct http_req *r, const char *name, const char *value);
    void (*on_writable)(struct http_req *r);
    void (*on_closed)(struct http_req *r);
    /* The last callback, before the request is freed, also after http_end(), when on_closed does not come. For data
     * that lives as long as the request. */
    void (*on_freed)(struct http_req *r);
    /* The answer has only the fields that the handler sets, without our date and x-request-id. */
    bool bare;
    /* Nothing was answered, so nothing is cut short: http_abort() ends an HTTP/1 connection with FIN instead of RST. */
    bool hang_up;
    /* An HTTP/1 client that closes its direction while it waits for the answer has left; else it may still read one. It
     * counts from the next callback or http_resume() on. */
    bool fin_leaves;

    /* Owned by the carrier. */
    const struct http_stream_ops *ops;
};

/* Adds a field to the answer; before the head. Name in lower case; copied. A value with CR, LF or NUL aborts the
 * program. */
void http_set(struct http_req *r, const char *name, const char *value);
/* Sends the head. length HTTP_UNKNOWN: chunked (HTTP/1.1, HTTP/2) or until close (1.0). */
void http_head(struct http_req *r, unsigned status, uint64_t length);
/* Sends body bytes (copied if they cannot be sent at once). False: above high water; stop until on_writable. */
bool http_write(struct http_req *r, const void *p, size_t n);
/* Adds a trailer; call it before http_end(). Dropped where the carrier has no place for it (HTTP/1 without chunks).
 * The rules of http_set() hold. */
void http_trailer(struct http_req *r, const char *name, const char *value);
void http_end(struct http_req *r);
/* Head, body and end in one. content_type may be NULL with n == 0. */
void http_reply(struct http_req *r, unsigned status, const char *content_type, const void *p, size_t n);
/* Cuts the connection (HTTP/1: RST, or FIN if hang_up is set; HTTP/2: RST_STREAM) without a proper end: on_closed
 * follows from the loop. */
void http_abort(struct http_req *r);
void http_pause(struct http_req *r);
void http_resume(struct http_req *r);
/* Answers 101 with the fields set so far; from now on on_data and http_write carry raw bytes both ways, on_end is the
 * client's half-close, http_end ours. HTTP/1.1 only, for requests with `connection: upgrade`; false otherwise. */
bool http_upgrade(struct http_req *r);
/* Bytes of the answer not yet taken by the kernel. */
size_t http_queued(const struct http_req *r);

/* What a carrier implements; the functions above check their arguments and call these. */
struct http_stream_ops {
    void (*set)(struct http_req *r, const char *name, const char *value);
    void (*head)(struct http_req *r, unsigned status, uint64_t length);
    bool (*write)(struct http_req *r, const void *p, size_t n);
    void (*end)(struct http_req *r);
    void (*abort)(struct http_req *r);
    void (*pause)(struct http_req *r, bool on);
    bool (*upgrade)(struct http_req *r);
    size_t (*queued)(const struct http_req *r);
    void (*trailer)(struct http_req *r, const char *name, const char *value); /* NULL: there are none */
};

typedef void http_handler(void *ctx, struct http_req *r);

#endif
