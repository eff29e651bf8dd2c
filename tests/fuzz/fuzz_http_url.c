/* Fuzz driver for percent-encoding, queries and the metadata filter. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "http/url.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void round_trip(const char *p, size_t n)
{
    struct buf text = {0}, back = {0}, decoded = {0};
    struct err err;
    url_encode(&text, p, n, "/");
    int status = url_decode(buf_str(&text), text.n, URL_PLUS_LITERAL, &back, &err);
    /* Only a NUL cannot come back. */
    if ((status == 0) != (n == 0 || !memchr(p, '\0', n)))
        abort();
    if (status == 0 && (back.n != n || (n > 0 && memcmp(back.p, p, n) != 0)))
        abort();
    if (url_decode(p, n, URL_PLUS_SPACE, &decoded, &err) == 0 &&
        (decoded.n > n || (decoded.n > 0 && memchr(decoded.p, 0, decoded.n))))
        abort();
    buf_done(&text);
    buf_done(&back);
    buf_done(&decoded);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text = calloc(1, size + 1);
    struct strv pairs = {0};
    struct buf value = {0};
    struct err err;
    struct url_pair pair;
    if (!text)
        return 0;
    if (size > 0)
        memcpy(text, data, size);
    round_trip(text, size);
    for (const char *q = text; url_query_next(&q, &pair);)
        if (pair.key < text || pair.value + pair.value_n > text + size || (pair.key_n == 0 && pair.key[0] != '='))
            abort();
    if (url_query_get(text, "metadata", URL_PLUS_LITERAL, &value, &err) == 0 && value.n > 0)
        abort();
    if (url_metadata(text, strlen(text), &pairs, &err) == 0 && (pairs.n % 2 != 0 || pairs.n > 2 * URL_METADATA_MAX))
        abort();
    strv_done(&pairs);
    buf_done(&value);
    free(text);
    return 0;
}
