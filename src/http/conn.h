/* conn.h - one HTTP/1 connection: its state, shared by the half that reads (conn.c) and the half that answers
 * (conn-answer.c).
 *
 * A handler's calls only change flags and the out-queue; the connection acts on them in conn_settle() (conn.c), which
 * runs at the end of every event, or from the loop if the call came from elsewhere. So no callback runs inside a call
 * of the handler, and no call frees what the handler uses.
 */
#ifndef HUTCH_HTTP_CONN_H
#define HUTCH_HTTP_CONN_H

#include "http/http1.h"
#include "http/outq.h"
#include "http/server-int.h"

enum {
    CONN_LINGER_BYTES = 256 * 1024, /* read and dropped after an answer that came before the end of the body ... */
    CONN_LINGER_MS = 2000,          /* ... and for how long */
};

enum conn_state {
    CONN_HANDSHAKE,
    CONN_HEAD,    /* between requests, or inside a head */
    CONN_REQUEST, /* req is set */
    CONN_TUNNEL,  /* req is set and was upgraded */
    CONN_LINGER,  /* the last answer is going out; what comes in is dropped */
    CONN_DEAD,    /* freed at the end of the batch */
};

/* A request, its fields and the bytes of its head, parsed and raw, in one allocation. */
struct conn_req {
    struct http_req pub; /* first, so that pointers convert both ways */
    struct conn *c;
    struct http1_body body;
    struct buf set; /* fields of the answer, as they will be sent */
    struct buf trailers;
    struct buf came; /* trailers of the request */
    uint64_t left;   /* bytes of the answer still to come, if its length was given */
    enum http1_framing out;
    bool head_request, can_upgrade, keep_alive;
    bool expects; /* waits for "100 Continue" */
    bool paused;
    bool end_told;  /* on_end was called */
    bool head_sent; /* the answer has begun */
    bool ended;     /* the handler has let go of the request (of its direction, in a tunnel) */
    bool has_date;
    struct http_field fields[];
};

struct conn {
    struct http_link link;
    struct loop *loop;
    struct transport *t;
    loop_id watch, timer;
    enum conn_state state;
    struct conn_req *req;
    struct buf in; /* bytes read and not yet used: part of a head, or what came while a request was under way */
    size_t scan;   /* of the search for the end of the head */
    struct outq out;
    size_t dropped; /* bytes of a body that were read and dropped */
    uint64_t served;
    unsigned events; /* what is watched */
    bool keep;       /* another request may follow */
    bool head_begun; /* the head timer runs */
    bool eof;        /* the peer has closed its direction */
    bool gone;       /* the peer hung up both directions; what it sent before is still being read */
    bool blocked;    /* the kernel takes no more for now */
    bool over;       /* above high water: on_writable is owed */
    bool shut;       /* we have closed our direction */
    bool broken;     /* writing failed, or the handler aborted */
    bool dropping;   /* the rest of a body is read because the next request is behind it */
    bool woken;      /* readable while no handler reads: stop watching for it */
    bool busy;       /* inside an event: conn_settle() comes at its end */
    bool settling;   /* the loop will call conn_settle() */
    size_t stuck;    /* bytes that were queued when the stall timer was last set */
};

/* Serves t, taken over. */
void conn_serve(struct http_server *s, struct transport *t, const char *peer);

/* conn.c, for conn-answer.c: act on changed flags soon. */
void conn_wake(struct conn *c);

/* conn-answer.c */
extern const struct http_stream_ops conn_ops;
/* Sends v after what is queued, as far as the kernel takes it, and queues the rest. */
void conn_send_vector(struct conn *c, const struct iovec *v, int n);
/* Sends what is queued. */
void conn_flush(struct conn *c);
/* Answers with a status and one line of text: for requests that no handler has seen. */
void conn_refuse(struct conn *c, unsigned status, const char *why);

#endif
