/* outq.h - queues outgoing bytes that the kernel has not taken yet, in a chain of blocks that are freed as they
 * empty. It never writes by itself. */
#ifndef HUTCH_HTTP_OUTQ_H
#define HUTCH_HTTP_OUTQ_H

#include <stddef.h>
#include <sys/uio.h>

struct outq_block;
struct outq {
    struct outq_block *first, *last;
    size_t n; /* bytes */
};

void outq_add(struct outq *q, const void *p, size_t n); /* copies */
/* Fills up to `max` vectors from the front; returns their number. */
int outq_vectors(const struct outq *q, struct iovec *v, int max);
/* Drops n <= q->n bytes at the front. */
void outq_drop(struct outq *q, size_t n);
void outq_done(struct outq *q);
/* Bytes in all queues of the process, whose queues belong to one thread. */
size_t outq_total(void);

#endif
