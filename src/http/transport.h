/* transport.h - the byte stream below HTTP: a plain socket, or TLS on one. A transport owns its descriptor; the
 * connection that holds it watches the descriptor and calls the transport. A transport never blocks, not even on a
 * socket that came from a sandbox, which shares it and can change O_NONBLOCK and SO_LINGER.
 */
#ifndef HUTCH_HTTP_TRANSPORT_H
#define HUTCH_HTTP_TRANSPORT_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>
#include <sys/uio.h>

struct transport;

/* read/write: >0 bytes; 0 end of stream (read); -1 with errno: EAGAIN (see `wants`), anything else is fatal. A write
 * that took less than it was given would have blocked. While the handshake is under way both `wants` name what it
 * waits for. */
struct transport_ops {
    ssize_t (*read)(struct transport *t, void *p, size_t n);
    ssize_t (*writev)(struct transport *t, const struct iovec *v, int n);
    /* Which LOOP_* bits must come before the last EAGAIN is worth retrying, for reading and for writing. */
    unsigned (*wants_read)(const struct transport *t);
    unsigned (*wants_write)(const struct transport *t);
    /* Bytes already decrypted and not yet read: reading must go on without waiting for the descriptor. */
    bool (*pending)(const struct transport *t);
    /* Closes our direction (SHUT_WR, close_notify). */
    void (*shutdown)(struct transport *t);
    void (*free)(struct transport *t); /* closes the descriptor */
    /* ALPN result: "h2", "http/1.1" or NULL; NULL too while the handshake is not finished. */
    const char *(*protocol)(const struct transport *t);
    /* 1 done, 0 not yet (see wants_read/wants_write), -1 failed. Plain sockets are done at once. */
    int (*handshake)(struct transport *t);
};

struct transport {
    const struct transport_ops *ops;
    int fd;
};

/* A plain socket. Takes the descriptor over. */
struct transport *transport_plain(int fd);
/* The same for a stream from which p[0..n) was read before: the transport gives these bytes first. */
struct transport *transport_plain_after(int fd, const void *p, size_t n);
bool transport_is_plain(const struct transport *t);

#endif
