/* ws-frames.h - writes the frames of a WebSocket, and shows them as text. For tests of what lies between. */
#ifndef HUTCH_TESTS_WS_FRAMES_H
#define HUTCH_TESTS_WS_FRAMES_H

#include "lib/unit.h"

/* A frame; mask 0: none. */
static inline void frame(struct buf *out, unsigned first, const void *p, size_t n, unsigned mask)
{
    uint8_t head[14] = {(uint8_t)first, mask ? 0x80 : 0};
    size_t size = 2;
    if (n < 126) {
        head[1] |= (uint8_t)n;
    } else if (n < 65536) {
        head[1] |= 126;
        head[2] = (uint8_t)(n >> 8);
        head[3] = (uint8_t)n;
        size = 4;
    } else {
        head[1] |= 127;
        for (unsigned i = 0; i < 8; i++)
            head[2 + i] = (uint8_t)((uint64_t)n >> (56 - 8 * i));
        size = 10;
    }
    for (unsigned i = 0; mask && i < 4; i++)
        head[size++] = (uint8_t)(mask >> (8 * i));
    buf_add(out, head, size);
    for (size_t i = 0; i < n; i++)
        buf_addc(out, (char)(((const uint8_t *)p)[i] ^ (mask ? (mask >> (8 * (i & 3))) & 0xff : 0)));
}

/* Frames as "first byte in hex:payload|". */
static inline void show(const struct buf *in, struct buf *out)
{
    const uint8_t *p = (const uint8_t *)in->p, *end = p + in->n;
    while (p < end) {
        unsigned first = *p++;
        bool masked = *p & 0x80;
        uint64_t n = *p++ & 0x7f;
        unsigned wide = n == 126 ? 2 : n == 127 ? 8 : 0;
        for (unsigned i = 0; i < wide; i++)
            n = (i == 0 ? 0 : n << 8) | *p++;
        const uint8_t *mask = p;
        p += masked ? 4 : 0;
        assert_true((uint64_t)(end - p) >= n);
        buf_addf(out, "%02x:", first);
        for (uint64_t i = 0; i < n; i++)
            buf_addc(out, (char)(p[i] ^ (masked ? mask[i & 3] : 0)));
        buf_addc(out, '|');
        p += n;
    }
}

#define FRAME(b, first, text, mask) frame(b, first, text, strlen(text), mask)
enum { MASK = 0x1badc0de };

#endif
