#include "base/num.h"

#include <inttypes.h>
#include <string.h>

bool num_u64(const char *s, uint64_t *ret)
{
    uint64_t v = 0;
    if (*s == '\0')
        return false;
    for (; *s; s++) {
        if (*s < '0' || *s > '9')
            return false;
        if (__builtin_mul_overflow(v, 10U, &v) || __builtin_add_overflow(v, (uint64_t)(*s - '0'), &v))
            return false;
    }
    *ret = v;
    return true;
}

bool num_int(const char *s, int min, int max, int *ret)
{
    bool neg = *s == '-';
    uint64_t v;
    if (!num_u64(s + neg, &v) || v > (uint64_t)INT32_MAX)
        return false;
    int64_t i = neg ? -(int64_t)v : (int64_t)v;
    if (i < min || i > max)
        return false;
    *ret = (int)i;
    return true;
}

/* Reads "12.345" as thousandths; *end is set behind the number. At most three decimals count, more are an error. */
static bool num_read_thousandths(const char *s, uint64_t *ret, const char **end)
{
    uint64_t v = 0;
    unsigned decimals = 0;
    bool dot = false, digit = false;
    for (; (*s >= '0' && *s <= '9') || (*s == '.' && !dot); s++) {
        if (*s == '.') {
            dot = true;
            continue;
        }
        digit = true;
        if (dot && ++decimals > 3)
            return false;
        if (__builtin_mul_overflow(v, 10U, &v) || __builtin_add_overflow(v, (uint64_t)(*s - '0'), &v))
            return false;
    }
    if (!digit || (dot && decimals == 0))
        return false;
    for (; decimals < 3; decimals++)
        if (__builtin_mul_overflow(v, 10U, &v))
            return false;
    *ret = v;
    *end = s;
    return true;
}

bool num_size(const char *s, uint64_t *ret_bytes)
{
    static const char units[] = "KMGT";
    uint64_t milli, mult = 1;
    const char *end;
    if (!num_read_thousandths(s, &milli, &end))
        return false;
    if (*end) {
        char c = *end >= 'a' && *end <= 'z' ? (char)(*end - 32) : *end;
        const char *u = strchr(units, c);
        if (u) {
            for (long i = 0; i <= u - units; i++)
                mult *= 1024;
            end++;
            if (strcmp(end, "iB") != 0 && strcmp(end, "B") != 0 && *end)
                return false;
        } else if (strcmp(end, "B") != 0) {
            return false;
        }
    }
    if (mult == 1 && milli % 1000 != 0)
        return false;
    uint64_t whole = milli / 1000, part = milli % 1000;
    if (__builtin_mul_overflow(whole, mult, &whole) || __builtin_add_overflow(whole, part * mult / 1000, &whole))
        return false;
    *ret_bytes = whole;
    return true;
}

bool num_duration(const char *s, uint64_t *ret_ms)
{
    static const struct {
        const char *unit;
        uint64_t ms;
    } units[] = {{"", 1000}, {"ms", 1}, {"s", 1000}, {"m", 60000}, {"min", 60000}, {"h", 3600000}, {"d", 86400000}};
    uint64_t milli, v;
    const char *end;
    if (!num_read_thousandths(s, &milli, &end))
        return false;
    for (size_t i = 0; i < sizeof units / sizeof units[0]; i++) {
        if (strcmp(end, units[i].unit) != 0)
            continue;
        if (__builtin_mul_overflow(milli, units[i].ms, &v))
            return false;
        *ret_ms = v / 1000;
        return true;
    }
    return false;
}

bool num_cpus(const char *s, uint64_t *ret_milli)
{
    uint64_t milli;
    const char *end;
    if (!num_read_thousandths(s, &milli, &end))
        return false;
    if (strcmp(end, "%") == 0)
        milli /= 100;
    else if (*end)
        return false;
    *ret_milli = milli;
    return true;
}

void num_add_size(struct buf *b, uint64_t bytes)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    unsigned u = 0;
    uint64_t scale = 1;
    while (u < 4 && bytes / scale >= 1024) {
        scale *= 1024;
        u++;
    }
    uint64_t tenths = bytes / scale * 10 + bytes % scale * 10 / scale;
    if (tenths % 10 == 0)
        buf_addf(b, "%" PRIu64 " %s", tenths / 10, units[u]);
    else
        buf_addf(b, "%" PRIu64 ".%" PRIu64 " %s", tenths / 10, tenths % 10, units[u]);
}

void num_add_duration(struct buf *b, uint64_t ms)
{
    if (ms < 1000)
        buf_addf(b, "%" PRIu64 " ms", ms);
    else if (ms % 60000 == 0)
        buf_addf(b, "%" PRIu64 " min", ms / 60000);
    else if (ms % 1000 == 0)
        buf_addf(b, "%" PRIu64 " s", ms / 1000);
    else
        buf_addf(b, "%" PRIu64 ".%" PRIu64 " s", ms / 1000, ms % 1000 / 100);
}
