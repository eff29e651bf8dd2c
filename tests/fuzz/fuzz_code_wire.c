/* Fuzz driver for messages of kernels. Lines of the input are the frames, signed here if the first one is "+", so that what
 * follows the signature is reached. Whatever a kernel sends, the lines for clients are JSON, one object each. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "guest/code/lines.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_lines(const struct buf *b)
{
    for (size_t at = 0; at < b->n;) {
        const char *end = memchr(b->p + at, '\n', b->n - at);
        json_t *o = end ? json_loadb(b->p + at, (size_t)(end - b->p) - at, JSON_ALLOW_NUL, NULL) : NULL;
        if (!json_is_string(json_object_get(o, "type")))
            abort();
        json_decref(o);
        at = (size_t)(end - b->p) + 1;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char key[] = "key";
    struct wire_part parts[WIRE_FRAMES_MAX];
    struct lines lines = {0};
    struct wire_msg m;
    struct err err;
    char signature[65];
    size_t n = 0;
    for (const char *p = (const char *)data, *end = p + size; n < WIRE_FRAMES_MAX && p <= end; n++) {
        const char *nl = p < end ? memchr(p, '\n', (size_t)(end - p)) : NULL;
        parts[n] = (struct wire_part){p, (size_t)((nl ? nl : end) - p)};
        p = (nl ? nl : end) + 1;
    }
    if (n >= 7 && parts[0].n == 1 && *(const char *)parts[0].p == '+') {
        wire_sign(key, &parts[3], signature);
        parts[2] = (struct wire_part){signature, 64};
    }
    _cleanup_buf_ struct buf clean = {0}, again = {0}, out = {0};
    wire_add_clean(&clean, (const char *)data, size);
    wire_add_clean(&again, buf_str(&clean), clean.n);
    if (again.n != clean.n || memcmp(buf_str(&again), buf_str(&clean), clean.n) != 0)
        abort();
    (void)wire_has_parent(parts, n, "abc");
    if (wire_decode(key, parts, n, &m, &err) == 0) {
        lines_add_message(&lines, &m, &out);
        check_lines(&out);
    }
    wire_msg_done(&m);
    return 0;
}
