/* h2-int.h - an HTTP/2 connection, shared by h2.c, which owns it, and h2-stream.c, which handles its streams.
 *
 * As in HTTP/1, a handler's calls only change flags and queues; the connection acts on them in h2_settle(), at the end
 * of every event or from the loop. Callbacks of nghttp2 may submit frames but never call its send and receive functions.
 */
#ifndef HUTCH_HTTP_H2_INT_H
#define HUTCH_HTTP_H2_INT_H

#include <nghttp2/nghttp2.h>

#include "http/h2-flood.h"
#include "http/h2.h"
#include "http/outq.h"
#include "http/server-int.h"

struct h2_conn;

struct h2_stream {
    struct http_req pub; /* first, so that pointers convert both ways */
    struct h2_stream *prev, *next;
    struct h2_conn *c;
    int32_t id;

    /* The request. */
    struct buf head; /* name NUL value NUL, as they come; turned into fields when complete */
    size_t nfields;
    struct http_field *fields;
    char *text;      /* method, path, authority and cookie, made from the head */
    bool too_large;  /* the head was refused */
    bool dispatched; /* a handler was called */
    bool eof;        /* the client has sent all of it */
    bool end_told;
    bool paused;
    struct buf held; /* bytes of the body that came while paused */
    struct buf came; /* trailers: name NUL value NUL */

    /* The answer. */
    struct buf set; /* name NUL value NUL */
    size_t nset;
    struct buf trailers; /* the same */
    size_t ntrailers;
    unsigned status;
    uint64_t length, left; /* announced; still to come */
    struct outq out;
    bool bodyless; /* HEAD, 204, 304 */
    bool has_date;
    bool head_set;  /* http_head was called */
    bool submitted; /* and nghttp2 has it */
    bool deferred;  /* nghttp2 waits for bytes */
    bool over;      /* above high water: on_writable is owed */
    bool ended;     /* the handler has let go */
    bool aborted;
    bool lingers; /* the answer was sent, the request has not ended */
    uint64_t linger_from;
};

struct h2_conn {
    struct http_link link;
    struct loop *loop;
    struct transport *t;
    loop_id watch, timer, lingerer;
    unsigned events;
    nghttp2_session *session;
    struct h2_stream *streams;
    size_t owned;      /* streams that a handler holds */
    uint64_t requests; /* so far */
    struct outq out;   /* frames */
    struct h2_flood flood;
    unsigned resets; /* since `resets_from` */
    uint64_t resets_from;
    bool blocked; /* the kernel takes no more for now */
    bool moved;   /* bytes went either way since the timer was set */
    bool leaving; /* GOAWAY was sent */
    bool broken;  /* to be closed at the next settle */
    bool busy;    /* h2_settle() will run before the loop waits again */
    bool dead;
};

/* h2.c: act on changed flags soon. */
void h2_wake(struct h2_conn *c);

/* h2-stream.c */
struct h2_stream *h2_stream_new(struct h2_conn *c, int32_t id);
/* The stream is over: calls on_closed if a handler still holds the request. */
void h2_stream_lost(struct h2_stream *q);
/* Unlinks and frees. */
void h2_stream_free(struct h2_stream *q);
/* One field of the request's head. */
void h2_stream_field(struct h2_stream *q, const uint8_t *name, size_t name_n, const uint8_t *value, size_t value_n);
/* One trailer. */
void h2_stream_trailer(struct h2_stream *q, const uint8_t *name, size_t name_n, const uint8_t *value, size_t value_n);
/* The head is complete: calls the handler, or refuses the request. */
void h2_stream_dispatch(struct h2_stream *q);
/* Body bytes from the client. */
void h2_stream_data(struct h2_stream *q, const uint8_t *p, size_t n);
/* Delivers held bytes and the end, submits the answer's head. */
void h2_stream_settle(struct h2_stream *q);
/* on_writable, if it is owed and due. */
void h2_stream_writable(struct h2_stream *q);

#endif
