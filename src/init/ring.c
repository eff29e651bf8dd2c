/* ring.c - keeps the last bytes of one output stream in memory that front can read but cannot resize or map
 * writable. */
#include <errno.h>
#include <fcntl.h>
#include <linux/memfd.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#include "init/init-int.h"

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010 /* Linux 5.1 */
#endif

int ring_open(struct ring *r, uint32_t size)
{
    memset(r, 0, sizeof *r);
    r->fd = memfd_create("output", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (r->fd < 0)
        return -1;
    if (ftruncate(r->fd, size) < 0)
        goto failed;
    r->map = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, r->fd, 0);
    if (r->map == MAP_FAILED)
        goto failed;
    r->size = size;
    if (fcntl(r->fd, F_ADD_SEALS, F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL) == 0)
        return 0;
    (void)munmap(r->map, size);
failed:
    (void)close(r->fd);
    r->fd = -1;
    r->map = NULL;
    return -1;
}

void ring_rest(struct ring *r)
{
    if (r->map)
        (void)munmap(r->map, r->size);
    r->map = NULL;
}

void ring_close(struct ring *r)
{
    ring_rest(r);
    if (r->fd >= 0)
        (void)close(r->fd);
    r->fd = -1;
}

/* Readers that have the old memory open can still read it. */
void ring_forget(struct ring *r)
{
    struct ring fresh;
    uint64_t from = r->seen > r->tail ? r->seen : r->tail;
    if (r->fd < 0)
        return;
    if (r->head > from)
        r->omitted += r->head - from;
    r->tail = r->head;
    if (ring_open(&fresh, r->size) < 0)
        return;
    if (!r->map)
        ring_rest(&fresh);
    ring_close(r);
    r->fd = fresh.fd;
    r->map = fresh.map;
}

ssize_t ring_fill(struct ring *r, int fd, size_t room)
{
    size_t at = (size_t)(r->head & (r->size - 1));
    if (!r->map) { /* at rest */
        errno = EPIPE;
        return -1;
    }
    if (room > r->size)
        room = r->size;
    size_t first = room < r->size - at ? room : r->size - at;
    struct iovec v[2] = {{.iov_base = r->map + at, .iov_len = first}, {.iov_base = r->map, .iov_len = room - first}};
    ssize_t n;
    do
        n = readv(fd, v, room > first ? 2 : 1);
    while (n < 0 && errno == EINTR);
    if (n <= 0)
        return n;
    r->head += (uint64_t)n;
    if (r->head - r->tail > r->size) {
        uint64_t tail = r->head - r->size, from = r->seen > r->tail ? r->seen : r->tail;
        if (tail > from)
            r->omitted += tail - from;
        r->tail = tail;
    }
    return n;
}
