/* code-png.c - reads PNGs with 8 bits a channel, without interlacing, as plotting libraries write them. The bytes come out of a
 * sandbox: every length is checked, and the sizes are limited.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/mem.h"
#include "cli/code/code.h"

enum { SIDE_MAX = 4096, PIXELS_MAX = 8 << 20, CODES_MAX = 288, BITS_MAX = 15 };

/* --- inflate (RFC 1951) --------------------------------------------------------------------------------------------- */

struct inflate {
    const unsigned char *in;
    size_t n, at;
    uint32_t bits;
    unsigned nbits;
    unsigned char *out;
    size_t room, done;
    bool bad;
};

struct huffman {
    uint16_t count[BITS_MAX + 1], symbol[CODES_MAX];
};

static unsigned inflate_bits(struct inflate *z, unsigned n)
{
    while (z->nbits < n) {
        if (z->at == z->n) {
            z->bad = true;
            return 0;
        }
        z->bits |= (uint32_t)z->in[z->at++] << z->nbits;
        z->nbits += 8;
    }
    unsigned v = z->bits & ((1u << n) - 1);
    z->bits >>= n;
    z->nbits -= n;
    return v;
}

static void inflate_make_codes(struct huffman *h, const unsigned char *lengths, unsigned n)
{
    uint16_t at[BITS_MAX + 2] = {0};
    memset(h, 0, sizeof *h);
    for (unsigned i = 0; i < n; i++)
        h->count[lengths[i]]++;
    h->count[0] = 0;
    for (unsigned i = 1; i <= BITS_MAX; i++)
        at[i + 1] = (uint16_t)(at[i] + h->count[i]);
    for (unsigned i = 0; i < n; i++)
        if (lengths[i])
            h->symbol[at[lengths[i]]++] = (uint16_t)i;
}

static unsigned inflate_symbol(struct inflate *z, const struct huffman *h)
{
    int code = 0, first = 0, index = 0;
    for (unsigned len = 1; len <= BITS_MAX && !z->bad; len++) {
        code |= (int)inflate_bits(z, 1);
        int count = h->count[len];
        if (code < first) /* more codes than there is room for */
            break;
        if (code - count < first)
            return h->symbol[index + (code - first)];
        index += count;
        first = (first + count) << 1;
        code <<= 1;
    }
    z->bad = true;
    return 0;
}

static void inflate_copy(struct inflate *z, size_t distance, size_t length)
{
    if (distance > z->done || length > z->room - z->done) {
        z->bad = true;
        return;
    }
    for (; length > 0; length--, z->done++)
        z->out[z->done] = z->out[z->done - distance];
}

static void inflate_block(struct inflate *z, const struct huffman *literals, const struct huffman *distances)
{
    static const uint16_t base[29] = {3,  4,  5,  6,  7,  8,  9,  10, 11,  13,  15,  17,  19,  23, 27,
                                      31, 35, 43, 51, 59, 67, 83, 99, 115, 131, 163, 195, 227, 258};
    static const unsigned char extra[29] = {0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2,
                                            2, 3, 3, 3, 3, 4, 4, 4, 4, 5, 5, 5, 5, 0};
    static const uint16_t dbase[30] = {1,    2,    3,    4,    5,    7,    9,    13,    17,    25,
                                       33,   49,   65,   97,   129,  193,  257,  385,   513,   769,
                                       1025, 1537, 2049, 3073, 4097, 6145, 8193, 12289, 16385, 24577};
    while (!z->bad) {
        unsigned s = inflate_symbol(z, literals);
        if (z->bad || s == 256)
            return;
        if (s < 256) {
            if (z->done == z->room)
                z->bad = true;
            else
                z->out[z->done++] = (unsigned char)s;
            continue;
        }
        if ((s -= 257) >= ARRAY_LEN(base)) {
            z->bad = true;
            return;
        }
        size_t length = base[s] + inflate_bits(z, extra[s]);
        unsigned d = inflate_symbol(z, distances);
        if (d >= ARRAY_LEN(dbase)) {
            z->bad = true;
            return;
        }
        inflate_copy(z, dbase[d] + (size_t)inflate_bits(z, d < 2 ? 0 : (d - 2) / 2), length);
    }
}

static void inflate_stored(struct inflate *z)
{
    z->bits = z->nbits = 0;
    if (z->n - z->at < 4) {
        z->bad = true;
        return;
    }
    size_t n = z->in[z->at] | (size_t)z->in[z->at + 1] << 8;
    z->at += 4;
    if (n > z->n - z->at || n > z->room - z->done) {
        z->bad = true;
        return;
    }
    memcpy(z->out + z->done, z->in + z->at, n);
    z->at += n;
    z->done += n;
}

static void inflate_dynamic(struct inflate *z)
{
    static const unsigned char order[19] = {16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15};
    unsigned char lengths[CODES_MAX + 32] = {0};
    struct huffman literals, distances;
    unsigned nlit = inflate_bits(z, 5) + 257, ndist = inflate_bits(z, 5) + 1, ncode = inflate_bits(z, 4) + 4;
    for (unsigned i = 0; i < ncode; i++)
        lengths[order[i]] = (unsigned char)inflate_bits(z, 3);
    if (nlit > CODES_MAX)
        z->bad = true;
    inflate_make_codes(&literals, lengths, 19);
    memset(lengths, 0, sizeof lengths);
    for (unsigned i = 0; i < nlit + ndist && !z->bad;) {
        unsigned s = inflate_symbol(z, &literals), times = 1;
        unsigned char value = (unsigned char)(s < 16 ? s : 0);
        if (s == 16 && i == 0)
            z->bad = true;
        else if (s == 16)
            value = lengths[i - 1], times = 3 + inflate_bits(z, 2);
        else if (s >= 17)
            times = s == 17 ? 3 + inflate_bits(z, 3) : 11 + inflate_bits(z, 7);
        if (i + times > nlit + ndist)
            z->bad = true;
        for (; times > 0 && !z->bad; times--)
            lengths[i++] = value;
    }
    if (z->bad)
        return;
    inflate_make_codes(&literals, lengths, nlit);
    inflate_make_codes(&distances, lengths + nlit, ndist);
    inflate_block(z, &literals, &distances);
}

static void inflate_fixed(struct inflate *z)
{
    unsigned char lengths[CODES_MAX];
    struct huffman literals, distances;
    for (unsigned i = 0; i < CODES_MAX; i++)
        lengths[i] = i < 144 ? 8 : i < 256 ? 9 : i < 280 ? 7 : 8;
    inflate_make_codes(&literals, lengths, CODES_MAX);
    memset(lengths, 5, 30);
    inflate_make_codes(&distances, lengths, 30);
    inflate_block(z, &literals, &distances);
}

/* zlib's stream (RFC 1950) into exactly `room` bytes. The checksum is not looked at: a wrong pixel harms nothing. */
static bool inflate_all(const unsigned char *in, size_t n, unsigned char *out, size_t room)
{
    struct inflate z = {.in = in, .n = n, .at = 2, .out = out, .room = room};
    bool last = n < 2;
    while (!last && !z.bad) {
        last = inflate_bits(&z, 1);
        switch (inflate_bits(&z, 2)) {
        case 0:
            inflate_stored(&z);
            break;
        case 1:
            inflate_fixed(&z);
            break;
        case 2:
            inflate_dynamic(&z);
            break;
        default:
            z.bad = true;
        }
    }
    return !z.bad && z.done == room;
}

/* --- PNG ------------------------------------------------------------------------------------------------------------ */

struct png {
    unsigned width, height, channels;
    struct buf data;               /* all IDAT */
    unsigned char palette[256][4]; /* with alpha */
    bool indexed;
};

static uint32_t png_u32(const unsigned char *p)
{
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

static bool png_read_head(struct png *g, const unsigned char *p, size_t n)
{
    static const unsigned char channels[7] = {1, 0, 3, 1, 2, 0, 4};
    if (n != 13 || p[8] != 8 || p[9] > 6 || channels[p[9]] == 0 || p[12] != 0)
        return false;
    g->width = png_u32(p);
    g->height = png_u32(p + 4);
    g->channels = channels[p[9]];
    g->indexed = p[9] == 3;
    return g->width > 0 && g->height > 0 && g->width <= SIDE_MAX && g->height <= SIDE_MAX &&
           g->width * g->height <= PIXELS_MAX;
}

static bool png_read_chunks(struct png *g, const unsigned char *p, size_t n)
{
    static const unsigned char magic[8] = {0x89, 'P', 'N', 'G', '\r', '\n', 0x1a, '\n'};
    bool head = false;
    if (n < 8 || memcmp(p, magic, 8) != 0)
        return false;
    for (size_t at = 8; n - at >= 12;) {
        size_t size = png_u32(p + at);
        const unsigned char *type = p + at + 4, *body = type + 4;
        if (size > n - at - 12)
            return false;
        if (memcmp(type, "IHDR", 4) == 0)
            head = png_read_head(g, body, size);
        else if (memcmp(type, "IDAT", 4) == 0)
            buf_add(&g->data, body, size);
        for (size_t i = 0; memcmp(type, "PLTE", 4) == 0 && i < size / 3 && i < 256; i++)
            memcpy(g->palette[i], body + 3 * i, 3), g->palette[i][3] = 255;
        for (size_t i = 0; memcmp(type, "tRNS", 4) == 0 && g->indexed && i < size && i < 256; i++)
            g->palette[i][3] = body[i];
        if (memcmp(type, "IEND", 4) == 0)
            break;
        at += 12 + size;
    }
    return head && g->data.n > 0;
}

static unsigned char png_paeth(int a, int b, int c)
{
    int p = a + b - c, pa = abs(p - a), pb = abs(p - b), pc = abs(p - c);
    return (unsigned char)(pa <= pb && pa <= pc ? a : pb <= pc ? b : c);
}

/* Undoes the filter of one row; `up` is the row above, or NULL. */
static bool png_unfilter(unsigned kind, unsigned char *row, const unsigned char *up, size_t n, unsigned step)
{
    for (size_t i = 0; i < n && kind > 0 && kind <= 4; i++) {
        int a = i >= step ? row[i - step] : 0, b = up ? up[i] : 0, c = up && i >= step ? up[i - step] : 0;
        row[i] = (unsigned char)(row[i] + (kind == 1   ? a
                                           : kind == 2 ? b
                                           : kind == 3 ? (a + b) / 2
                                                       : png_paeth(a, b, c)));
    }
    return kind <= 4;
}

/* One pixel on white. */
static void png_add_pixel(const struct png *g, const unsigned char *p, unsigned char *rgb)
{
    const unsigned char *colour = g->indexed ? g->palette[p[0]] : p;
    unsigned alpha = g->indexed ? colour[3] : g->channels == 4 ? p[3] : g->channels == 2 ? p[1] : 255;
    bool grey = !g->indexed && g->channels < 3;
    for (int i = 0; i < 3; i++)
        rgb[i] = (unsigned char)((colour[grey ? 0 : i] * alpha + 255 * (255 - alpha)) / 255);
}

unsigned char *code_png_read(const unsigned char *p, size_t n, unsigned *ret_width, unsigned *ret_height)
{
    struct png *g = xcalloc(1, sizeof *g);
    unsigned char *rgb = NULL, *raw = NULL;
    if (png_read_chunks(g, p, n)) {
        size_t row = (size_t)g->width * g->channels, all = (row + 1) * g->height;
        raw = xmalloc(all);
        rgb = xmalloc((size_t)g->width * g->height * 3);
        bool good = inflate_all((const unsigned char *)g->data.p, g->data.n, raw, all);
        for (size_t y = 0; good && y < g->height; y++) {
            unsigned char *line = raw + y * (row + 1) + 1;
            good = png_unfilter(line[-1], line, y > 0 ? line - row - 1 : NULL, row, g->channels);
            for (size_t x = 0; good && x < g->width; x++)
                png_add_pixel(g, line + x * g->channels, rgb + (y * g->width + x) * 3);
        }
        if (!good) {
            free(rgb);
            rgb = NULL;
        }
        *ret_width = g->width;
        *ret_height = g->height;
    }
    free(raw);
    buf_done(&g->data);
    free(g);
    return rgb;
}
