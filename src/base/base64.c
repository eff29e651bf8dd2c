#include "base/base64.h"

#include <stdint.h>

static const char alphabet[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

void base64_encode(struct buf *out, const void *p, size_t n)
{
    const uint8_t *b = p;
    char quad[4];
    for (; n >= 3; b += 3, n -= 3) {
        quad[0] = alphabet[b[0] >> 2];
        quad[1] = alphabet[(b[0] & 3) << 4 | b[1] >> 4];
        quad[2] = alphabet[(b[1] & 15) << 2 | b[2] >> 6];
        quad[3] = alphabet[b[2] & 63];
        buf_add(out, quad, 4);
    }
    if (n == 0)
        return;
    quad[0] = alphabet[b[0] >> 2];
    quad[1] = alphabet[(b[0] & 3) << 4 | (n == 2 ? b[1] >> 4 : 0)];
    quad[2] = n == 2 ? alphabet[(b[1] & 15) << 2] : '=';
    quad[3] = '=';
    buf_add(out, quad, 4);
}

static int base64_digit(char c)
{
    if (c >= 'A' && c <= 'Z')
        return c - 'A';
    if (c >= 'a' && c <= 'z')
        return c - 'a' + 26;
    if (c >= '0' && c <= '9')
        return c - '0' + 52;
    if (c == '+' || c == '-')
        return 62;
    return c == '/' || c == '_' ? 63 : -1;
}

/* The length without padding, or SIZE_MAX if the padding is wrong. */
static size_t base64_unpadded(const char *s, size_t n)
{
    size_t end = n;
    while (end > 0 && n - end < 2 && s[end - 1] == '=')
        end--;
    if (end != n && n % 4 != 0)
        return SIZE_MAX;
    return end % 4 == 1 ? SIZE_MAX : end;
}

bool base64_decode(struct buf *out, const char *s, size_t n)
{
    size_t before = out->n, end = base64_unpadded(s, n);
    uint32_t bits = 0;
    unsigned have = 0;
    char chunk[192];
    size_t used = 0;
    bool good = end != SIZE_MAX;
    for (size_t i = 0; good && i < end; i++) {
        int d = base64_digit(s[i]);
        if (d < 0) {
            good = false;
            break;
        }
        bits = bits << 6 | (uint32_t)d;
        have += 6;
        if (have >= 8) {
            have -= 8;
            chunk[used++] = (char)(uint8_t)(bits >> have);
            bits &= (1U << have) - 1;
        }
        if (used == sizeof chunk) {
            buf_add(out, chunk, used);
            used = 0;
        }
    }
    if (good && bits == 0) {
        if (used > 0)
            buf_add(out, chunk, used);
        return true;
    }
    out->n = before;
    if (out->p)
        out->p[before] = '\0';
    return false;
}
