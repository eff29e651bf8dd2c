/* Fuzz driver for the Java trust stores and bundles that keeper finds in a template. */
#include <endian.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "wall/sandbox-trust.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char ca[] = "-----BEGIN CERTIFICATE-----\nbm90IHJlYWxseQ==\n-----END CERTIFICATE-----\n";

/* Whatever comes in, a store comes out, and our certificate is its last entry. */
static void must_be_store(const struct buf *b)
{
    static const char end[] = "not really";
    uint32_t head[3];
    if (b->n < sizeof head + sizeof end - 1 + 20)
        abort();
    memcpy(head, b->p, sizeof head);
    if (be32toh(head[0]) != 0xFEEDFEED || be32toh(head[2]) == 0 ||
        memcmp(b->p + b->n - 20 - (sizeof end - 1), end, sizeof end - 1) != 0)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct buf db = {0}, made = {0}, odd = {0};
    if (jks_make(data, size, NULL, 0, ca, sizeof ca - 1, &db) < 0 ||
        jks_make(NULL, 0, data, size, ca, sizeof ca - 1, &made) < 0)
        abort();
    must_be_store(&db);
    must_be_store(&made);
    (void)jks_make(NULL, 0, NULL, 0, data, size, &odd);
    buf_done(&db);
    buf_done(&made);
    buf_done(&odd);
    return 0;
}
