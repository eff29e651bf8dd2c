/* fd.h - descriptors: whole reads and writes, and descriptors passed over a socket. */
#ifndef HUTCH_BASE_FD_H
#define HUTCH_BASE_FD_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/uio.h>

#include "base/buf.h"

/* 0, or -1 with errno. Short writes and EINTR are handled. */
int fd_write_all(int fd, const void *p, size_t n);
/* Opens path relative to dirfd, writes the string in one write(2), closes. -1 with errno. For kernel control files. */
int fd_put(int dirfd, const char *path, const char *value);
/* Reads at most `max` bytes of a file into b. -1 with errno; EFBIG if there is more. If b has room for them, it holds
 * the only copy. */
int fd_read_file(int dirfd, const char *path, size_t max, struct buf *b);
/* read(2) of a pipe or FIFO, open for reading only, that never waits: EAGAIN if nothing is there, whatever the flags of
 * the open file say. All holders of one open file share its O_NONBLOCK, and a foreign one may clear it. */
ssize_t fd_read_pipe(int fd, void *p, size_t n);
/* close(2) of a foreign descriptor. A plain close of a socket with SO_LINGER and a time would wait that long for a peer
 * that reads nothing, O_NONBLOCK or not. A linger without a time (a reset) is left as it is. */
void fd_close_foreign(int fd);
/* A number from a one-line kernel file; "max" reads as UINT64_MAX. -1 with errno. */
int fd_read_u64(int dirfd, const char *path, uint64_t *ret);
/* A path as a process with that root would follow it; O_CLOEXEC is set. -1 with errno. */
int fd_open_in_root(int root, const char *path, uint64_t flags, uint64_t resolve);
/* close_range(2): closes first..last, or marks them with CLOSE_RANGE_CLOEXEC (linux/close_range.h). -1 with errno. */
int fd_close_range(unsigned first, unsigned last, unsigned flags);
/* One message with up to 16 descriptors over a SEQPACKET socket. send: 0 or -1. recv: length, 0 at end, -1 with errno;
 * *nfds is in: room, out: received, all CLOEXEC. A truncated message or too many descriptors is EBADMSG, none leak. */
enum { FD_MSG_MAX = 16 };
int fd_send(int sock, const void *p, size_t n, const int *fds, size_t nfds);
/* The same from several pieces; the number of bytes that were sent, which on a stream may be less. */
ssize_t fd_sendv(int sock, const struct iovec *v, size_t nv, const int *fds, size_t nfds);
ssize_t fd_recv(int sock, void *p, size_t n, int *fds, size_t *nfds);

#endif
