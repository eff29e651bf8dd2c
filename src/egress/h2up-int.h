/* h2up-int.h - one connection to an upstream and its requests, shared by h2up.c (bytes, the loop) and h2up-stream.c
 * (nghttp2's callbacks, and the calls of the requests' owners). No other file may include it. */
#ifndef HUTCH_EGRESS_H2UP_INT_H
#define HUTCH_EGRESS_H2UP_INT_H

#include <nghttp2/nghttp2.h>

#include "egress/h2up.h"
#include "http/h2-flood.h"
#include "http/outq.h"

struct h2up_stream {
    struct h2up_stream *prev, *next;
    struct h2up *u;
    const struct h2up_events *events;
    void *arg;
    int32_t id;
    bool head_request;

    /* The request. */
    struct outq out;
    struct buf after; /* trailers: name NUL value NUL */
    size_t nafter;
    bool ended;    /* the owner has given us all of it */
    bool deferred; /* nghttp2 waits for bytes */
    bool over;     /* above high water: on_writable must follow */

    /* The answer. */
    struct buf head; /* name NUL value NUL, of the head or of the trailers that are being read */
    size_t nfields;
    unsigned interim;
    bool head_done, trailers;
    bool too_large;
    bool paused;
    struct buf held; /* what came while paused */
    bool eof;        /* the peer has sent all of it */
    bool closed;     /* nghttp2 has forgotten the stream */
    uint32_t code;   /* why */
    bool dropped;    /* no callback any more; freed by the next sweep */
};

struct h2up {
    struct loop *loop;
    struct transport *t;
    loop_id watch;
    unsigned watched;
    nghttp2_session *session;
    struct h2up_stream *streams;
    size_t nstreams; /* that are not dropped */
    struct outq out; /* frames */
    void (*gone)(void *arg);
    void *arg;
    struct h2_flood flood;
    int eno;      /* of a failed read or write */
    bool blocked; /* the kernel takes no more for now */
    bool leaving; /* the peer takes no more requests */
    bool broken;  /* close at the end of the round */
    bool busy;    /* h2up_settle() will run before the loop waits again */
    bool dead, freed;
};

/* h2up.c: makes h2up_settle() run before the loop waits again. */
void h2up_wake(struct h2up *u);

/* h2up-stream.c */
int h2up_make_session(struct h2up *u);
void h2up_stream_free(struct h2up_stream *s);
/* Ends the request: tells trailers and the end, or what went wrong (`text`; NULL: nghttp2's reason). */
void h2up_stream_finish(struct h2up_stream *s);
void h2up_stream_fail(struct h2up_stream *s, const char *text);
/* One request's part of h2up_settle(): delivers what was held back and its end, resumes sending its body. */
void h2up_stream_settle(struct h2up_stream *s);
void h2up_stream_writable(struct h2up_stream *s);

#endif
