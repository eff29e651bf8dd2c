/* fuzz_egress_socks.c - any bytes from a SOCKS client, whole or byte by byte, come to the same; and any bytes from a server. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "egress/socks.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Takes messages until there are no more; -1 refused. */
static int run(const uint8_t *data, size_t size, bool slowly, struct socks *ret, size_t *ret_taken)
{
    _cleanup_buf_ struct buf reply = {0};
    size_t at = 0;
    *ret = (struct socks){0};
    for (size_t n = slowly ? 1 : size; n <= size; n++) {
        while (ret->step != SOCKS_DONE) {
            ssize_t taken = socks_next(ret, data + at, n - at, &reply);
            if (taken < 0)
                return -1;
            if (taken == 0)
                break;
            if ((size_t)taken > n - at)
                abort();
            at += (size_t)taken;
        }
    }
    *ret_taken = at;
    return ret->step == SOCKS_DONE;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct socks whole, slow;
    size_t a = 0, b = 0;
    int x = run(data, size, false, &whole, &a), y = run(data, size, true, &slow, &b);
    if (x != y || a != b || strlen(whole.host) >= sizeof whole.host)
        abort();
    if (x == 1 && (whole.port != slow.port || strcmp(whole.host, slow.host) != 0 || (whole.literal && whole.host[0])))
        abort();
    struct socks_client c = {.user = "u", .password = "p"};
    _cleanup_buf_ struct buf out = {0};
    const char *why = NULL;
    size_t at = 0;
    for (ssize_t n;
         at < size && !socks_client_done(&c) && (n = socks_client_next(&c, data + at, size - at, &out, &why)) != 0;) {
        if (n < 0) {
            if (!why)
                abort();
            break;
        }
        at += (size_t)n;
    }
    return 0;
}
