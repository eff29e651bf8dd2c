/* fuzz_egress_hello.c - any bytes as the beginning of a TLS stream: what is whole stays whole when it comes in two parts, and a
 * name never holds more than it should. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "egress/hello.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static unsigned char scratch[HELLO_MAX];
    struct hello whole, part;
    int rc = hello_parse(data, size, scratch, &whole);
    if ((rc < 0) != (whole.why != NULL) || (rc == 0 && whole.need <= size) || strlen(whole.sni) > HELLO_SNI_MAX ||
        whole.nalpn > HELLO_ALPN_MAX || (whole.sni[0] && !whole.has_sni))
        abort();
    for (size_t i = 0; i < whole.nalpn && rc > 0; i++)
        if (whole.alpn[i].p < scratch || whole.alpn[i].p + whole.alpn[i].n > scratch + sizeof scratch)
            abort();
    /* A beginning of something good is never refused. */
    if (rc > 0 && hello_parse(data, size / 2, scratch, &part) < 0)
        abort();
    return 0;
}
