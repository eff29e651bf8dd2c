/* fuzz_http1_response.c - any bytes as the answer to a method (chosen by the first byte): as for requests. */
#include "http1-feed.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const methods[] = {"GET", "HEAD", "CONNECT"};
    if (size < 1)
        return 0;
    const char *p = (const char *)data + 1, *method = methods[data[0] % ARRAY_LEN(methods)];
    size_t n = size - 1;
    struct feed whole = feed_ours(p, n, n ? n : 1, method);
    for (size_t step = 1; step < 8 && step < n; step = step * 2 + 1) {
        struct feed cut = feed_ours(p, n, step, method);
        same(&whole, &cut);
    }
    if (whole.verdict != 1 || method[0] == 'C')
        return 0;
    /* It reads a body after 304 if a length is declared, which the standard says is that of the body not sent. */
    bool never = method[0] == 'H' || p[9] == '1' || memcmp(p + 9, "204", 3) == 0 || memcmp(p + 9, "304", 3) == 0;
    struct other o = feed_other(p, n, HTTP_RESPONSE, never);
    if (o.f.verdict != 1)
        return 0;
    if (o.f.used != whole.used || o.f.body_n != whole.body_n || o.f.body_hash != whole.body_hash)
        abort();
    return 0;
}
