/* wire.h - Jupyter's messages: a list of frames <-> header, parent and content, signed with HMAC-SHA256. Pure: no socket.
 *
 * Kernels send bytes that are not UTF-8 and halves of surrogate pairs if a cell printed them. Both become U+FFFD here, so
 * that everything behind this file is valid text.
 */
#ifndef HUTCH_GUEST_CODE_WIRE_H
#define HUTCH_GUEST_CODE_WIRE_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

#include "base/buf.h"
#include "base/err.h"

enum {
    WIRE_KEY = 64,                     /* hexadecimal digits of a key */
    WIRE_ID = 32,                      /* hexadecimal digits of a message's id */
    WIRE_FRAMES_MAX = 64,              /* of one message */
    WIRE_BYTES_MAX = 64 * 1024 * 1024, /* of its content */
};

struct wire_part {
    const void *p;
    size_t n;
};

struct wire_msg {
    json_t *header, *parent, *content; /* owned; objects */
    const char *type;                  /* points into header */
    const char *parent_id;             /* points into parent; "" if there is none */
};

/* "<IDS|MSG>", signature, header, parent header, metadata, content. */
enum { WIRE_OUT = 6 };
struct wire_out {
    char signature[65];
    struct buf frame[4]; /* owned */
};

/* The signature of the four JSON frames, as hexadecimal digits. */
void wire_sign(const char *key, const struct wire_part parts[4], char ret[65]);
/* Fails if a frame is missing, the signature is wrong, or a frame is not a JSON object. ERR_LIMIT: content above
 * WIRE_BYTES_MAX; then header and parent are there, and content is NULL. */
int wire_decode(const char *key, const struct wire_part *parts, size_t n, struct wire_msg *ret, struct err *err);
void wire_msg_done(struct wire_msg *m);
/* Whether the message names `id` as its parent. The signature is not checked: for leaving messages out before the work
 * of reading them. */
bool wire_has_parent(const struct wire_part *parts, size_t n, const char *id);
/* A request; takes `content` over. */
void wire_encode(const char *key, const char *session, const char *id, const char *type, json_t *content,
                 struct wire_out *ret);
void wire_out_done(struct wire_out *o);

/* A copy of JSON text in which what is not UTF-8, and halves of surrogate pairs, are U+FFFD. */
void wire_add_clean(struct buf *b, const char *p, size_t n);

#endif
