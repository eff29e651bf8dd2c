/* fuzz_egress_dns.c - any bytes as a query: the answer fits, repeats the question, and reads as an answer. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "egress/dns.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct dns_query q, again;
    enum dns_rcode rcode, ignored;
    if (!dns_parse(data, size, &q, &rcode))
        return 0;
    if (strlen(q.name) >= sizeof q.name || q.qname_n > sizeof q.qname || (rcode == DNS_OK && !q.question) ||
        q.udp_max < DNS_UDP_MAX || q.udp_max > DNS_EDNS_MAX)
        abort();
    struct dns_answer a = {
        .rcode = rcode, .ttl = DNS_TTL, .naddrs = DNS_ADDRS_MAX, .ptr = q.type == DNS_PTR ? "a.example" : NULL};
    _cleanup_buf_ struct buf out = {0};
    dns_write(&q, &a, q.udp_max, &out);
    if (out.n > q.udp_max || out.n < 12 || memcmp(out.p, data, 2) != 0 || dns_parse(out.p, out.n, &again, &ignored))
        abort();
    if (q.question && memcmp(out.p + 12, data + 12, q.qname_n) != 0)
        abort();
    return 0;
}
