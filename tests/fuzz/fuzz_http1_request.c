/* fuzz_http1_request.c - any bytes as a request: the same however they are cut, and whatever another reader accepts too
 * ends at the same byte with the same body. */
#include "http1-feed.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *p = (const char *)data;
    struct feed whole = feed_ours(p, size, size ? size : 1, NULL);
    for (size_t step = 1; step < 8 && step < size; step = step * 2 + 1) {
        struct feed cut = feed_ours(p, size, step, NULL);
        same(&whole, &cut);
    }
    if (whole.verdict != 1)
        return 0;
    struct other o = feed_other(p, size, HTTP_REQUEST, false);
    bool upgrade = memmem(p, whole.used, "pgrade", 6) || memmem(p, whole.used, "PGRADE", 6) || p[0] == 'C';
    /* It knows a fixed set of methods, so it may refuse; and it stops at the head of what may become another protocol. */
    if (o.f.verdict != 1 || upgrade)
        return 0;
    if (o.f.used != whole.used || o.f.body_n != whole.body_n || o.f.body_hash != whole.body_hash ||
        (o.f.framing == HTTP1_CHUNKED) != (whole.framing == HTTP1_CHUNKED))
        abort();
    return 0;
}
