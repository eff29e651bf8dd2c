/* frame.h - where messages begin and end on a byte stream: a 32-bit little-endian length, then so many bytes.
 *
 * A reader collects bytes in any pieces and gives whole messages out. The first wrong length (0, or more than the longest
 * message) makes it bad for ever: nothing on a stream says where the next message would begin.
 */
#ifndef HUTCH_RPC_FRAME_H
#define HUTCH_RPC_FRAME_H

#include <stdbool.h>
#include <stddef.h>

enum { FRAME_HEAD = 4 };

void frame_put_head(unsigned char ret[FRAME_HEAD], size_t n);

struct frame_reader {
    unsigned char *p; /* NULL: none yet */
    size_t cap;
    size_t most;  /* bytes of the longest message */
    size_t at, n; /* p[at] to p[n - 1] have not been given out */
    bool fixed;   /* p is its owner's and never grows; else it is ours, from the heap */
    bool bad;
};

/* room: most + FRAME_HEAD bytes that outlive the reader; NULL: memory of the heap, as much as arrives. */
void frame_reader_init(struct frame_reader *r, size_t most, void *room);
/* Forgets everything and wipes what it held: messages may hold secrets. */
void frame_reader_done(struct frame_reader *r);

enum frame_state { FRAME_PART, FRAME_WHOLE, FRAME_BAD };
/* Takes the next message. FRAME_PART: it is not complete. The bytes are borrowed until frame_reader_room(). */
enum frame_state frame_reader_next(struct frame_reader *r, const unsigned char **ret, size_t *ret_n);
/* Whether frame_reader_next() would give something else than FRAME_PART. */
bool frame_reader_is_ready(const struct frame_reader *r);
/* After FRAME_PART: where bytes of the stream go next, and how many fit (at least one). */
unsigned char *frame_reader_room(struct frame_reader *r, size_t *ret_n);
void frame_reader_add(struct frame_reader *r, size_t n); /* so many were put there */

#endif
