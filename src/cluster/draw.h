/* draw.h - random numbers as an input: a sequence that is made of one word, so that the same word gives the same decision.
 *
 * They spread load and choose among equals; nothing here is a secret. The caller takes the word from base/random.h, a test
 * and the simulator take it from their seed.
 */
#ifndef HUTCH_CLUSTER_DRAW_H
#define HUTCH_CLUSTER_DRAW_H

#include <stdint.h>

struct draw {
    uint64_t at;
};

/* All bits of x decide about all bits of the result (the finish of splitmix64). */
static inline uint64_t draw_mix(uint64_t x)
{
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
    x = (x ^ x >> 27) * 0x94d049bb133111eb;
    return x ^ x >> 31;
}
static inline uint64_t draw_next(struct draw *d) { return draw_mix(d->at += 0x9e3779b97f4a7c15); }
/* 0 to n - 1; n must not be 0. */
static inline uint32_t draw_below(struct draw *d, uint32_t n) { return (uint32_t)((draw_next(d) >> 32) * n >> 32); }

#endif
