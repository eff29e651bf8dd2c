/* channel.h - one connection between two of our processes: messages, with descriptors where the socket can carry them.
 *
 * Over SEQPACKET a message is a packet; over a byte stream it is a frame (frame.h) and has no descriptors. A message is whole
 * or the channel is broken: one that is too long, that has more descriptors than allowed, or whose control data was cut off
 * ends it. What the socket does not take waits in a bounded queue. A channel never blocks, knows no message's meaning and
 * no event loop: its owner waits for the descriptor, for writing too while channel_waits(). It uses the heap only if its owner
 * gives it no memory.
 */
#ifndef HUTCH_RPC_CHANNEL_H
#define HUTCH_RPC_CHANNEL_H

#include <stdbool.h>
#include <stddef.h>

#include "base/fd.h"
#include "rpc/frame.h"

enum {
    CHANNEL_PACKET_MAX = 64 * 1024,
    CHANNEL_QUEUE_EXTRA = 8 /* bytes of the queue for each message besides its own */
};
enum channel_kind { CHANNEL_PACKET, CHANNEL_STREAM };

struct channel_limits {
    enum channel_kind kind;
    size_t message_max; /* either way; at most CHANNEL_PACKET_MAX over packets */
    size_t queue_max; /* bytes that may wait to be sent, with CHANNEL_QUEUE_EXTRA and the descriptors of each message */
    size_t fds_max;   /* descriptors that may come with a message; 0 over streams */
    int fd_min;       /* the lowest number for copies of descriptors that wait */
};

struct channel {
    int fd; /* -1: not connected: what is sent waits */
    const struct channel_limits *limits;
    struct channel_ring {
        unsigned char *p; /* NULL: none yet */
        size_t cap, head, used;
        bool fixed; /* p is the owner's */
    } out;          /* bytes of a stream, or packets: struct packet_head, descriptors, bytes */
    size_t npackets;
    struct frame_reader in;
};

struct channel_message {
    const unsigned char *p; /* borrowed until the next channel_recv() of any channel */
    size_t n;
    int fds[FD_MSG_MAX]; /* the receiver's: it takes them (TAKE_FD), or channel_message_done() closes them */
    size_t nfds;
};
void channel_message_done(struct channel_message *m);

/* limits, and the rooms if given, outlive the channel. out_room: queue_max bytes, in_room (streams): message_max + FRAME_HEAD;
 * NULL: from the heap. */
void channel_init(struct channel *c, const struct channel_limits *limits, void *out_room, void *in_room);
void channel_open(struct channel *c, int fd); /* takes the descriptor, which is non-blocking */
/* Closes the connection and forgets all messages; it can be opened again. */
void channel_close(struct channel *c);

/* Connects to a socket in a directory. -1 with errno; EPROTOTYPE: it is of the other kind. */
int channel_dial(int dir, const char *name, enum channel_kind kind);
/* The kind of a connected or listening socket, by its SO_TYPE. False: neither. */
bool channel_kind_of(int fd, enum channel_kind *ret);

/* Sends one message of 1 to message_max bytes, or puts it into the queue; descriptors are borrowed. -1 with errno: the channel
 * must be closed; ENOBUFS: more would wait than queue_max. */
int channel_send(struct channel *c, const void *p, size_t n, const int *fds, size_t nfds);
/* The same without a try to send it now: for many small messages of a stream that leave together. */
int channel_queue(struct channel *c, const void *p, size_t n, const int *fds, size_t nfds);
/* Sends what waits, as much as the socket takes. -1: the peer is gone. */
int channel_flush(struct channel *c);
bool channel_waits(const struct channel *c);
size_t channel_queued(const struct channel *c); /* bytes that wait */

enum channel_got {
    CHANNEL_NONE,    /* no complete message is there now */
    CHANNEL_MESSAGE, /* one; call again */
    CHANNEL_ENDED,   /* the peer closed, or the socket failed: errno, or 0 */
    CHANNEL_BROKEN,  /* it sent what is no message: EMSGSIZE if too long, else EBADMSG */
};
enum channel_got channel_recv(struct channel *c, struct channel_message *ret);
/* Whether a message was read from the socket already: no event will tell of it. */
bool channel_is_ready(const struct channel *c);

#endif
