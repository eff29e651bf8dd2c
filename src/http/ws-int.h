/* ws-int.h - one frame of a WebSocket (RFC 6455). Private to this folder. */
#ifndef HUTCH_HTTP_WS_INT_H
#define HUTCH_HTTP_WS_INT_H

#include "http/ws.h"

enum { WS_HEAD_MAX = 14, WS_CONTROL_MAX = 125 };

struct ws_frame {
    uint8_t head[WS_HEAD_MAX];
    size_t have;   /* bytes of the head */
    bool complete; /* the head is; `left` bytes of payload follow */
    bool fin, rsv, masked;
    uint8_t opcode;
    uint8_t mask[4];
    uint64_t left, done; /* of the payload */
};

/* Takes bytes of the head; true once it is complete. */
bool ws_frame_take_head(struct ws_frame *f, const uint8_t **p, size_t *n);
/* After the payload: the next frame begins. */
void ws_frame_next(struct ws_frame *f);
bool ws_frame_is_control(const struct ws_frame *f);
/* `from`: the place of p[0] in the payload. */
void ws_xor_mask(uint8_t *p, size_t n, const uint8_t mask[4], uint64_t from);
/* Appends a frame; mask NULL: none. */
void ws_frame_add(struct buf *out, uint8_t opcode, bool fin, const uint8_t *mask, const void *p, size_t n);
void ws_frame_add_masked(struct buf *out, uint8_t opcode, bool fin, const void *p, size_t n);

#endif
