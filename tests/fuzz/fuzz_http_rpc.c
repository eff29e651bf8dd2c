/* Fuzz driver for Connect envelopes and base64: pieces make no difference, and what was read can be written again. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/base64.h"
#include "http/rpc.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int message(void *arg, unsigned flags, const char *p, size_t n, struct err *err)
{
    (void)err;
    if (p[n] != '\0' || n > RPC_MESSAGE_MAX)
        abort();
    rpc_envelope(arg, flags, p, n);
    return 0;
}

static int parse(const uint8_t *p, size_t n, size_t step, struct buf *out)
{
    struct rpc_reader r = {0};
    struct err err;
    int status = 0;
    for (size_t i = 0; i < n && status == 0; i += step)
        status = rpc_read(&r, p + i, n - i < step ? n - i : step, message, out, &err);
    if (status == 0)
        status = rpc_read_end(&r, &err);
    rpc_reader_done(&r);
    return status;
}

static void base64(const uint8_t *p, size_t n)
{
    struct buf text = {0}, back = {0}, again = {0};
    base64_encode(&text, p, n);
    if (!base64_decode(&back, buf_str(&text), text.n) || back.n != n || (n > 0 && memcmp(back.p, p, n) != 0))
        abort();
    if (base64_decode(&again, (const char *)p, n) && again.n > n)
        abort();
    buf_done(&text);
    buf_done(&back);
    buf_done(&again);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct buf whole = {0}, pieces = {0};
    if (size == 0)
        return 0;
    int a = parse(data + 1, size - 1, size, &whole), b = parse(data + 1, size - 1, data[0] % 16 + 1U, &pieces);
    if (a != b || whole.n != pieces.n || (whole.n > 0 && memcmp(whole.p, pieces.p, whole.n) != 0))
        abort();
    if (a == 0 && (whole.n != size - 1 || (whole.n > 0 && memcmp(whole.p, data + 1, whole.n) != 0)))
        abort();
    base64(data, size);
    buf_done(&whole);
    buf_done(&pieces);
    return 0;
}
