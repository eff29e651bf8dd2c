#include "base/random.h"

#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/random.h>

void random_bytes(void *p, size_t n)
{
    for (char *at = p; n > 0;) {
        ssize_t got = getrandom(at, n, 0);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            abort();
        at += got;
        n -= (size_t)got;
    }
}

void random_hex(char *ret, size_t bytes)
{
    static const char digits[] = "0123456789abcdef";
    random_bytes(ret + bytes, bytes); /* the digits never overtake the bytes that are still to be read */
    for (size_t i = 0; i < bytes; i++) {
        uint8_t byte = (uint8_t)ret[bytes + i];
        ret[2 * i] = digits[byte >> 4];
        ret[2 * i + 1] = digits[byte & 15];
    }
    ret[2 * bytes] = '\0';
}
