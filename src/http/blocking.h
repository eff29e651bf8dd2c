/* blocking.h - a blocking HTTP/1.1 client: one connection, one request, one answer. Every call may wait.
 *
 * The caller connects, sends a head and a body as it likes, and reads the answer. The caller brings TLS (struct
 * blocking_layer), so a program without OpenSSL can use this client. A call that fails returns -1 and notes in `failure`
 * what happened; the caller puts that into words. A connection whose answer failed can only be closed.
 */
#ifndef HUTCH_HTTP_BLOCKING_H
#define HUTCH_HTTP_BLOCKING_H

#include <sys/socket.h>

#include "http/http1.h"

enum { BLOCKING_INTERIM_MAX = 8 /* 1xx answers before the final one */ };

enum blocking_failure {
    BLOCKING_UNSENT = 1, /* the peer takes no more bytes: `eno` */
    BLOCKING_BROKEN,     /* reading or waiting failed: `eno`, 0 if the peer closed a layer without its farewell */
    BLOCKING_UNANSWERED, /* the connection ended before the head of an answer did */
    BLOCKING_NOT_HTTP,   /* the answer's head was refused: `why` */
    BLOCKING_DAMAGED,    /* the answer's body is framed badly */
    BLOCKING_CUT,        /* the connection ended before the answer's body did */
    BLOCKING_TOO_LARGE,  /* the body is longer than blocking_read_all() may read */
    BLOCKING_WOKEN,      /* wake_fd became readable; the call can be repeated */
    BLOCKING_SILENT,     /* the next three: see struct blocking_pace */
    BLOCKING_SLOW,
    BLOCKING_LATE,
};

/* How slow a peer may be. */
struct blocking_pace {
    unsigned silence_ms;   /* without a byte: BLOCKING_SILENT */
    unsigned window_ms;    /* within each window of a connection ... */
    uint64_t window_bytes; /* ... at least so many bytes must come: BLOCKING_SLOW */
    unsigned total_ms;     /* of all connections that share this pace: BLOCKING_LATE */
    uint64_t deadline_ms;  /* set from total_ms by the first connection; 0 until then */
};

/* What lies between HTTP and the socket. read and write return > 0: bytes; 0 (read only): the stream ended as it
 * should; -1 with errno: on EAGAIN the client waits until the socket can be read, or written if *ret_out; any other
 * value ends the connection, 0 if the peer closed it without announcing that. pending: whether read has bytes without
 * the socket. */
struct blocking_layer {
    ssize_t (*read)(void *arg, void *p, size_t n, bool *ret_out);
    ssize_t (*write)(void *arg, const void *p, size_t n, bool *ret_out);
    bool (*pending)(void *arg); /* may be NULL: never */
    void (*free)(void *arg);
};

struct blocking {
    int fd;                             /* owned */
    const struct blocking_layer *layer; /* NULL: bytes go to the socket as they are; set it before the first one */
    void *arg;                          /* the layer's; freed by its `free` */
    struct blocking_pace *pace;         /* borrowed; NULL: wait for as long as it takes */
    int wake_fd;                        /* -1, or another descriptor to wait for while an answer is read */
    enum blocking_failure failure;
    int eno;
    const char *why; /* static */
    /* The answer, after blocking_read_head(). */
    struct http1_head answer;
    struct http1_body body;
    /* The text and the fields of its head; bytes received and not used yet, from `at` on; when the last byte came, when the
     * window of the pace began and how many bytes came since. */
    struct buf head;
    struct http_field *fields;
    struct buf in;
    size_t at;
    uint64_t last_ms, window_ms, window_bytes;
};
#define BLOCKING_INIT           \
    {                           \
        .fd = -1, .wake_fd = -1 \
    }

/* A connected TCP socket that does not block. -1 with errno. timeout_ms -1: as long as the kernel tries. */
int blocking_connect(const struct sockaddr *a, socklen_t n, int timeout_ms);
/* Begins with a socket that does not block and takes it over. */
void blocking_start(struct blocking *b, int fd, struct blocking_pace *pace);
void blocking_close(struct blocking *b); /* also a second time, and after BLOCKING_INIT */

/* Waits until the socket can be read or written; for a layer's handshake. */
int blocking_wait(struct blocking *b, bool out);
int blocking_send(struct blocking *b, const void *p, size_t n);
/* Reads the head of the final answer. `method`: the request's. */
int blocking_read_head(struct blocking *b, const char *method);
/* At most max bytes of the body, borrowed until the next call; 0 at its end. */
ssize_t blocking_read(struct blocking *b, size_t max, const void **ret);
/* The whole body, or what came of it until a failure. */
int blocking_read_all(struct blocking *b, size_t max, struct buf *ret);

#endif
