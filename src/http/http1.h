/* http1.h - parses and writes HTTP/1.1 heads, frames and unframes bodies. It uses no sockets and no clocks.
 *
 * Strict: it refuses whatever RFC 9112 lets a recipient be lenient about, because requests can be smuggled when two
 * readers disagree about where a message ends. An accepted head is never forwarded as it came, but written anew.
 */
#ifndef HUTCH_HTTP_HTTP1_H
#define HUTCH_HTTP_HTTP1_H

#include <sys/types.h>

#include "http/http.h"

enum {
    HTTP1_METHOD_MAX = 32,
    HTTP1_TARGET_MAX = 16 * 1024,
    HTTP1_CHUNK_EXT_MAX = 256,
    HTTP1_TRAILERS_MAX = 4096,
};

/* How the bytes behind a head are framed. */
enum http1_framing {
    HTTP1_NONE,   /* there are none */
    HTTP1_LENGTH, /* head.length of them */
    HTTP1_CHUNKED,
    HTTP1_CLOSE,  /* until the peer closes (answers only) */
    HTTP1_TUNNEL, /* no longer HTTP: after 101, or 2xx to CONNECT */
};

struct http1_head {
    /* Requests. */
    const char *method;
    const char *path;      /* begins with '/'; "*" for OPTIONS; "" for CONNECT */
    const char *query;     /* without '?', or NULL */
    const char *authority; /* of the target if it has one, else Host; NULL only in HTTP/1.0 */
    const char *scheme;    /* "http" or "https" if the target is absolute, else NULL */
    bool expect_continue;
    bool upgrade; /* HTTP/1.1 with `connection: upgrade` and an `upgrade` field */
    /* Answers. */
    unsigned status;
    const char *reason; /* may be "" */
    /* Both. */
    unsigned version; /* 10 or 11 */
    struct http_fields fields;
    enum http1_framing framing;
    uint64_t length; /* HTTP1_LENGTH: bytes; 0 if HTTP1_NONE; else HTTP_UNKNOWN */
    /* The value of content-length whether or not a body follows (answers to HEAD, 304); HTTP_UNKNOWN if not given. */
    uint64_t declared;
    bool keep_alive;
};

/* Why a head was refused: the status to answer a request with, and one line. A refused answer is always a bad
 * gateway. */
struct http1_bad {
    unsigned status;
    const char *why; /* static */
};

/* Looks for the end of a head in p[0..n). *scan is 0 at first and kept by the caller while bytes are added, so that a
 * dribbled head costs no more than one that came whole. >0: length of the head with its empty line; 0: more is needed;
 * -1: refused already (line ends other than CRLF, empty first line, longer than HTTP_HEAD_MAX). */
ssize_t http1_head_end(const char *p, size_t n, size_t *scan, struct http1_bad *bad);
/* How many fields p[0..n) can have at most: room for the array to give to the parsers. */
size_t http1_count_fields(const char *p, size_t n);

/* Parse a whole head in place: p is changed and *ret points into it. `fields` has room for http1_count_fields().
 * 0, or -1 with *bad. */
int http1_parse_request(char *p, size_t n, struct http_field *fields, struct http1_head *ret, struct http1_bad *bad);
/* `method` is that of the request: an answer to HEAD has no body whatever it declares, one to CONNECT may be a tunnel.
 * 1xx answers other than 101 have HTTP1_NONE; the final answer follows them. */
int http1_parse_response(char *p, size_t n, const char *method, struct http_field *fields, struct http1_head *ret,
                         struct http1_bad *bad);

/* A body being read. */
struct http1_body {
    enum http1_framing framing;
    uint64_t left; /* of the body or of the chunk */
    unsigned state;
    unsigned digits, extra; /* of the chunk size; bytes of extension or trailers so far */
    bool done;
    struct buf *trailers; /* "name NUL value NUL", names in lower case, values trimmed; NULL: dropped */
};
void http1_body_start(struct http1_body *b, const struct http1_head *h);
/* Takes bytes from p[0..n): returns how many, or -1 if the framing is broken. At most one run of body bytes is given
 * per call (*ret_n may be 0); call again with the rest until nothing is left or b->done. Bytes behind the end are
 * not taken. HTTP1_CLOSE and HTTP1_TUNNEL are never done: the end of the stream is their end. */
ssize_t http1_body_next(struct http1_body *b, const char *p, size_t n, const char **ret, size_t *ret_n);

/* Writing. Names and values must be valid; http_set() and the parsers check them. */
/* Request line and Host. `target` is origin-form (or whatever the peer expects). */
void http1_add_request(struct buf *b, const char *method, const char *target, const char *host);
void http1_add_status(struct buf *b, unsigned status);
void http1_add_field(struct buf *b, const char *name, const char *value);
bool http1_is_hop(const char *name);
/* True if the comma-separated list in any field `name` has `token` (lower case). */
bool http1_has_token(const struct http_fields *f, const char *name, const char *token);
/* content-length or transfer-encoding; nothing for HTTP1_NONE, HTTP1_CLOSE and HTTP1_TUNNEL. */
void http1_add_framing(struct buf *b, enum http1_framing framing, uint64_t length);
void http1_add_end(struct buf *b); /* the empty line */

/* "1f40\r\n": the line before a chunk of n > 0 bytes; "\r\n" follows the bytes. Returns its length. */
enum { HTTP1_CHUNK_LINE = 20 };
size_t http1_chunk_line(char line[HTTP1_CHUNK_LINE], size_t n);
#define HTTP1_LAST_CHUNK "0\r\n\r\n"

/* "Not Found"; "Unknown" for codes without a name. */
const char *http_reason(unsigned status);

#endif
