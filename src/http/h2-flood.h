/* h2-flood.h - counts frames that carry nothing: empty DATA, PRIORITY, SETTINGS, PING. Sending one costs the peer less
 * than reading and answering it costs us, so a connection with too many of them is closed. For both ends of HTTP/2.
 */
#ifndef HUTCH_HTTP_H2_FLOOD_H
#define HUTCH_HTTP_H2_FLOOD_H

#include <nghttp2/nghttp2.h>
#include <stdbool.h>
#include <stdint.h>

enum { H2_IDLE_FRAMES = 1000, H2_IDLE_MS = 10000 /* so many in that time; keep-alive takes a handful */ };

struct h2_flood {
    uint64_t from_ms;
    unsigned n;
};

/* Counts one more frame; true: too many of them carried nothing. */
static inline bool h2_flooded(struct h2_flood *f, const nghttp2_frame_hd *hd, uint64_t now_ms)
{
    bool ack = hd->flags & NGHTTP2_FLAG_ACK;
    bool idle = hd->type == NGHTTP2_PRIORITY || (hd->type == NGHTTP2_SETTINGS && !ack) ||
                (hd->type == NGHTTP2_PING && !ack) ||
                (hd->type == NGHTTP2_DATA && hd->length == 0 && !(hd->flags & NGHTTP2_FLAG_END_STREAM));
    if (!idle)
        return false;
    if (now_ms - f->from_ms > H2_IDLE_MS) {
        f->from_ms = now_ms;
        f->n = 0;
    }
    return ++f->n > H2_IDLE_FRAMES;
}

#endif
