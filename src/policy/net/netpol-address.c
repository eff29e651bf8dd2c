/* netpol-address.c - classifies addresses: public internet, private network, or never dialled.
 *
 * An address that embeds another one (mapped, NAT64, 6to4) has the class of the embedded one: routers unwrap it.
 */
#include <arpa/inet.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/num.h"
#include "policy/net/netpol-int.h"

struct range4 {
    uint32_t base;
    unsigned bits;
};

static const struct range4 never4[] = {
    {0x00000000, 8},  /* this network */
    {0x7f000000, 8},  /* loopback */
    {0xa9fe0000, 16}, /* link-local: metadata services */
    {0xc0000000, 24}, /* protocol assignments: metadata services */
    {0xc0586300, 24}, /* 6to4 relays */
    {0x646464c8, 32}, /* 100.100.100.200: a metadata service in the shared range */
    {0xa83f8110, 32}, /* 168.63.129.16: a platform's own service at an address that looks public */
    {0xe0000000, 3},  /* multicast, reserved, broadcast */
};
/* Also ranges that no public server has: VPNs, proxies and split DNS answer with them (198.18.0.0/15 is also where names
 * inside a sandbox seem to be, but a connection to such an address goes by its name). */
static const struct range4 private4[] = {
    {0x0a000000, 8},  {0xac100000, 12}, {0xc0a80000, 16}, {0x64400000, 10}, /* shared */
    {0xc6120000, 15},                                                       /* benchmarks */
    {0xc0000200, 24}, {0xc6336400, 24}, {0xcb007100, 24},                   /* documentation */
};
const char *const netpol_private_ranges[] = {
    "10.0.0.0/8",   "172.16.0.0/12",   "192.168.0.0/16", "100.64.0.0/10", "fc00::/7",  "198.18.0.0/15",
    "192.0.2.0/24", "198.51.100.0/24", "203.0.113.0/24", "2001:db8::/32", "3fff::/20", NULL,
};

struct range6 {
    uint8_t base[16];
    unsigned bits;
};

/* Outside of 2000::/3 nothing is public; these lie inside, or in the private range. */
static const struct range6 never6[] = {
    {{0x20, 0x01, 0x00}, 23},                                  /* protocol assignments, with Teredo */
    {{0xfd, 0x00, 0x0e, 0xc2}, 32},                            /* fd00:ec2::254: a metadata service */
    {{0xfd, 0x20, 0x00, 0xce, [14] = 0x02, [15] = 0x54}, 128}, /* fd20:ce::254: another */
};
static const struct range6 private6[] = {
    {{0xfc}, 7},
    {{0x20, 0x01, 0x0d, 0xb8}, 32}, /* documentation */
    {{0x3f, 0xff}, 20},             /* documentation */
};
static const uint8_t mapped[16] = {[10] = 0xff, [11] = 0xff};
static const uint8_t nat64[16] = {0x00, 0x64, 0xff, 0x9b};
static const uint8_t six_to_four[16] = {0x20, 0x02};
static const uint8_t global[16] = {0x20};

static bool ranges4_contain(const struct range4 *r, size_t n, uint32_t a)
{
    for (size_t i = 0; i < n; i++)
        if (((a ^ r[i].base) & (0xffffffffU << (32 - r[i].bits))) == 0)
            return true;
    return false;
}

static bool prefix_equal(const uint8_t *a, const uint8_t *b, unsigned bits)
{
    unsigned bytes = bits / 8, rest = bits % 8;
    if (memcmp(a, b, bytes) != 0)
        return false;
    return rest == 0 || ((a[bytes] ^ b[bytes]) & (0xffU << (8 - rest)) & 0xff) == 0;
}

static enum netpol_address address4_kind(const uint8_t *b)
{
    uint32_t a = (uint32_t)b[0] << 24 | (uint32_t)b[1] << 16 | (uint32_t)b[2] << 8 | b[3];
    if (ranges4_contain(never4, ARRAY_LEN(never4), a))
        return NETPOL_NEVER;
    return ranges4_contain(private4, ARRAY_LEN(private4), a) ? NETPOL_PRIVATE : NETPOL_PUBLIC;
}

enum netpol_address netpol_address_kind(const struct in6_addr *a)
{
    const uint8_t *b = a->s6_addr;
    if (prefix_equal(b, mapped, 96) || prefix_equal(b, nat64, 96))
        return address4_kind(b + 12);
    if (prefix_equal(b, six_to_four, 16))
        return address4_kind(b + 2);
    for (size_t i = 0; i < ARRAY_LEN(never6); i++)
        if (prefix_equal(b, never6[i].base, never6[i].bits))
            return NETPOL_NEVER;
    for (size_t i = 0; i < ARRAY_LEN(private6); i++)
        if (prefix_equal(b, private6[i].base, private6[i].bits))
            return NETPOL_PRIVATE;
    return prefix_equal(b, global, 3) ? NETPOL_PUBLIC : NETPOL_NEVER;
}

/* --- ranges ------------------------------------------------------------------------------------------------------- */

static void clear_below(struct in6_addr *a, unsigned bits)
{
    for (unsigned i = 0; i < 16; i++) {
        unsigned keep = bits > i * 8 ? bits - i * 8 : 0;
        if (keep < 8)
            a->s6_addr[i] &= (uint8_t)(0xff00U >> keep);
    }
}

bool netpol_cidr_parse(const char *text, struct netpol_cidr *ret)
{
    struct in6_addr addr;
    const char *slash = strchr(text, '/');
    size_t n = slash ? (size_t)(slash - text) : strlen(text);
    int bits = 128;
    if (n == 0 || text[0] == '[' || !netpol_literal(text, n, &addr))
        return false;
    bool v4 = memchr(text, ':', n) == NULL;
    if (slash && ((slash[1] == '0' && slash[2]) || !num_int(slash + 1, 0, v4 ? 32 : 128, &bits)))
        return false;
    ret->bits = (unsigned)bits + (slash && v4 ? 96 : 0);
    ret->addr = addr;
    clear_below(&ret->addr, ret->bits);
    return true;
}

bool netpol_cidr_has(const struct netpol_cidr *c, const struct in6_addr *a)
{
    /* "::/0" is about IPv6, not about the mapped form that an IPv4 address has here. */
    if (c->bits < 96 && prefix_equal(a->s6_addr, mapped, 96))
        return false;
    return prefix_equal(c->addr.s6_addr, a->s6_addr, c->bits);
}
