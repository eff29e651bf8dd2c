/* Fuzz driver for the frames of a byte stream. The first byte says in which pieces the rest arrives, the second how long a
 * message may be. Whatever the pieces, the reader gives out what a look at all bytes at once would find. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "rpc/frame.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void run(const uint8_t *p, size_t n, size_t piece, size_t most, void *room)
{
    struct frame_reader r;
    size_t fed = 0, at = 0; /* at: of the message that must come next */
    frame_reader_init(&r, most, room);
    for (;;) {
        const unsigned char *m = NULL;
        size_t len = 0, want = 0;
        for (size_t i = 0; n - at >= FRAME_HEAD && i < FRAME_HEAD; i++)
            want |= (size_t)p[at + i] << (8 * i);
        enum frame_state s = frame_reader_next(&r, &m, &len);
        if (s == FRAME_WHOLE) {
            if (len != want || len == 0 || len > most || at + FRAME_HEAD + len > fed ||
                memcmp(m, p + at + FRAME_HEAD, len) != 0)
                abort();
            at += FRAME_HEAD + len;
            continue;
        }
        if (s == FRAME_BAD) {
            if (fed - at < FRAME_HEAD || (want > 0 && want <= most) || !frame_reader_is_ready(&r) ||
                frame_reader_next(&r, &m, &len) != FRAME_BAD)
                abort();
            break;
        }
        if (fed - at >= FRAME_HEAD && (want == 0 || want > most || want <= fed - at - FRAME_HEAD))
            abort();
        if (fed == n)
            break;
        size_t fits, k = n - fed < piece ? n - fed : piece;
        unsigned char *to = frame_reader_room(&r, &fits);
        if (fits == 0)
            abort();
        k = k < fits ? k : fits;
        memcpy(to, p + fed, k);
        frame_reader_add(&r, k);
        fed += k;
    }
    frame_reader_done(&r);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 2)
        return 0;
    size_t most = data[1] < 0x80 ? data[1] + 1U : (size_t)data[1] << 12;
    unsigned char *room = malloc(most + FRAME_HEAD);
    run(data + 2, size - 2, data[0] + 1U, most, NULL);
    run(data + 2, size - 2, data[0] + 1U, most, room);
    free(room);
    return 0;
}
