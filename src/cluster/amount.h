/* amount.h - what sandboxes need and nodes have: so many sandboxes, processors, bytes of memory and of disk.
 *
 * The numbers of a view come from other machines and are never believed blindly: an amount is cut at AMOUNT_MAX when it is
 * read, so that no sum of a few of them wraps around, and taking away more than there is leaves 0, which the next report
 * corrects.
 */
#ifndef HUTCH_CLUSTER_AMOUNT_H
#define HUTCH_CLUSTER_AMOUNT_H

#include <stdbool.h>
#include <stdint.h>

/* An array, because most of what is done with it is done with each of them. */
enum amount_of { AMOUNT_SANDBOXES, AMOUNT_CPU_MILLI, AMOUNT_MEMORY, AMOUNT_DISK, AMOUNT_N };
#define AMOUNT_MAX (1ULL << 50)

struct amount {
    uint64_t of[AMOUNT_N];
};

static inline struct amount amount_make(uint64_t sandboxes, uint64_t cpu_milli, uint64_t memory, uint64_t disk)
{
    return (struct amount){{sandboxes, cpu_milli, memory, disk}};
}
static inline void amount_cut(struct amount *a)
{
    for (int i = 0; i < AMOUNT_N; i++)
        if (a->of[i] > AMOUNT_MAX)
            a->of[i] = AMOUNT_MAX;
}
static inline void amount_add(struct amount *a, const struct amount *b)
{
    for (int i = 0; i < AMOUNT_N; i++)
        a->of[i] += b->of[i];
    amount_cut(a);
}
static inline void amount_take(struct amount *a, const struct amount *b)
{
    for (int i = 0; i < AMOUNT_N; i++)
        a->of[i] -= a->of[i] < b->of[i] ? a->of[i] : b->of[i];
}

#endif
