#include "http/outq.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

struct outq_block {
    struct outq_block *next;
    size_t from, to, cap;
    char bytes[];
};

/* Small for a head, so that the allocator's fast path serves it; large for what queues behind it. */
enum { SMALL_BLOCK = 1000, LARGE_BLOCK = 16 * 1024 };

static size_t total;

size_t outq_total(void) { return total; }

static struct outq_block *block_new(size_t n, bool first)
{
    size_t cap = first && n <= SMALL_BLOCK ? SMALL_BLOCK : n > LARGE_BLOCK ? n : LARGE_BLOCK;
    struct outq_block *b = xmalloc(sizeof *b + cap);
    *b = (struct outq_block){.cap = cap};
    return b;
}

void outq_add(struct outq *q, const void *p, size_t n)
{
    q->n += n;
    total += n;
    if (q->last) {
        struct outq_block *b = q->last;
        size_t room = b->cap - b->to, some = n < room ? n : room;
        memcpy(b->bytes + b->to, p, some);
        b->to += some;
        p = (const char *)p + some;
        n -= some;
    }
    if (n == 0)
        return;
    struct outq_block *b = block_new(n, !q->last);
    memcpy(b->bytes, p, n);
    b->to = n;
    if (q->last)
        q->last->next = b;
    else
        q->first = b;
    q->last = b;
}

int outq_vectors(const struct outq *q, struct iovec *v, int max)
{
    int count = 0;
    for (struct outq_block *b = q->first; b && count < max; b = b->next)
        v[count++] = (struct iovec){b->bytes + b->from, b->to - b->from};
    return count;
}

void outq_drop(struct outq *q, size_t n)
{
    q->n -= n;
    total -= n;
    while (q->first) {
        struct outq_block *b = q->first;
        size_t have = b->to - b->from;
        if (n < have) {
            b->from += n;
            return;
        }
        n -= have;
        q->first = b->next;
        free(b);
    }
    q->last = NULL;
}

void outq_done(struct outq *q) { outq_drop(q, q->n); }
