/* ws-frame.c - one frame of a WebSocket: reads its head, writes it, masks it. */
#include <endian.h>
#include <openssl/evp.h>
#include <string.h>

#include "base/base64.h"
#include "base/cleanup.h"
#include "base/random.h"
#include "http/ws-int.h"

static size_t ws_frame_head_size(const struct ws_frame *f)
{
    if (f->have < 2)
        return 2;
    size_t length = f->head[1] & 0x7f;
    return 2 + (length == 126 ? 2u : length == 127 ? 8u : 0u) + (f->head[1] & 0x80 ? 4u : 0u);
}

static void ws_frame_read_head(struct ws_frame *f)
{
    size_t at = 2, length = f->head[1] & 0x7f;
    f->complete = true;
    f->fin = f->head[0] & 0x80;
    f->rsv = f->head[0] & 0x70;
    f->opcode = f->head[0] & 0x0f;
    f->masked = f->head[1] & 0x80;
    f->left = length;
    f->done = 0;
    if (length == 126) {
        f->left = (uint64_t)f->head[2] << 8 | f->head[3];
        at += 2;
    } else if (length == 127) {
        memcpy(&f->left, f->head + 2, 8);
        f->left = be64toh(f->left);
        at += 8;
    }
    if (f->masked)
        memcpy(f->mask, f->head + at, 4);
}

bool ws_frame_take_head(struct ws_frame *f, const uint8_t **p, size_t *n)
{
    while (!f->complete && *n > 0) {
        f->head[f->have++] = *(*p)++;
        (*n)--;
        if (f->have == ws_frame_head_size(f))
            ws_frame_read_head(f);
    }
    return f->complete;
}

void ws_frame_next(struct ws_frame *f)
{
    f->have = 0;
    f->complete = false;
}

bool ws_frame_is_control(const struct ws_frame *f) { return f->opcode >= WS_CLOSE; }

void ws_xor_mask(uint8_t *p, size_t n, const uint8_t mask[4], uint64_t from)
{
    for (size_t i = 0; i < n; i++)
        p[i] ^= mask[(from + i) & 3];
}

void ws_frame_add(struct buf *out, uint8_t opcode, bool fin, const uint8_t *mask, const void *p, size_t n)
{
    uint8_t head[WS_HEAD_MAX] = {(uint8_t)(opcode | (fin ? 0x80 : 0))};
    size_t size = 2;
    uint64_t wide = htobe64(n);
    if (n < 126) {
        head[1] = (uint8_t)n;
    } else if (n <= UINT16_MAX) {
        head[1] = 126;
        head[2] = (uint8_t)(n >> 8);
        head[3] = (uint8_t)n;
        size = 4;
    } else {
        head[1] = 127;
        memcpy(head + 2, &wide, 8);
        size = 10;
    }
    if (mask) {
        head[1] |= 0x80;
        memcpy(head + size, mask, 4);
        size += 4;
    }
    buf_add(out, head, size);
    size_t at = out->n;
    if (n > 0)
        buf_add(out, p, n);
    if (mask && n > 0)
        ws_xor_mask((uint8_t *)out->p + at, n, mask, 0);
}

void ws_frame_add_masked(struct buf *out, uint8_t opcode, bool fin, const void *p, size_t n)
{
    uint8_t mask[4];
    random_bytes(mask, sizeof mask);
    ws_frame_add(out, opcode, fin, mask, p, n);
}

void ws_add_text(struct buf *out, const void *p, size_t n) { ws_frame_add_masked(out, WS_TEXT, true, p, n); }

bool ws_accept_key(const char *key, struct buf *out)
{
    static const char suffix[] = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
    unsigned char digest[EVP_MAX_MD_SIZE];
    unsigned n = 0;
    _cleanup_buf_ struct buf joined = {0};
    buf_addf(&joined, "%s%s", key, suffix);
    if (EVP_Digest(joined.p, joined.n, digest, &n, EVP_sha1(), NULL) != 1)
        return false;
    base64_encode(out, digest, n);
    return true;
}
