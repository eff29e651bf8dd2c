/* fuzz_egress_redact.c - any values in any stream, cut anywhere: the outcome does not depend on the cuts, no value of
 * the usual length is left as it was, and a stream without matches is unchanged. Input: values of which each ends with
 * 0xff, an empty one ends the list; then the stream. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "egress/secrets/secrets-int.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static uint64_t run(struct redact_set *set, const char *p, size_t n, size_t step, struct buf *out)
{
    static const char *const with[] = {"\xff", "\xff", "\xff", "\xff"}; /* in no value */
    struct redactor *r = redactor_new(set, with, ARRAY_LEN(with));
    for (size_t i = 0; i < n; i += step)
        redact_feed(r, p + i, n - i < step ? n - i : step, out);
    redact_end(r, out);
    uint64_t count = redact_count(r);
    redactor_free(r);
    return count;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct redact_value values[4];
    const char *p = (const char *)data;
    size_t nvalues = 0;
    while (size > 0) {
        const char *end = memchr(p, 0xff, size);
        size_t n = end ? (size_t)(end - p) : 0;
        size -= end ? n + 1 : 0;
        if (n > 0 && nvalues < ARRAY_LEN(values))
            values[nvalues] = (struct redact_value){p, n, nvalues % 2 ? "user" : NULL};
        nvalues += n > 0 && nvalues < ARRAY_LEN(values);
        p += end ? n + 1 : 0;
        if (n == 0)
            break;
    }
    struct redact_set *set = redact_set_new(values, nvalues);
    if (!set)
        return 0;
    _cleanup_buf_ struct buf whole = {0}, bytes = {0}, pieces = {0};
    uint64_t count = size > 0 ? run(set, p, size, size, &whole) : 0;
    if (size > 0 && (run(set, p, size, 1, &bytes) != count || run(set, p, size, 1 + size / 7, &pieces) != count))
        abort();
    if (whole.n != bytes.n || whole.n != pieces.n ||
        (whole.n > 0 && (memcmp(whole.p, bytes.p, whole.n) != 0 || memcmp(whole.p, pieces.p, whole.n) != 0)))
        abort();
    if (count == 0 && (whole.n != size || (size > 0 && memcmp(whole.p, p, size) != 0)))
        abort();
    for (size_t i = 0; i < nvalues; i++)
        if (values[i].n >= REDACT_MIN && whole.n > 0 && memmem(whole.p, whole.n, values[i].p, values[i].n))
            abort();
    redact_set_unref(set);
    return 0;
}
