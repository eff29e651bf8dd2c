/* nft.c - sends the rules to the kernel directly: they never change, so a library for all of nftables would serve one
 * constant message.
 */
#include "os/nft.h"

#include <endian.h>
#include <errno.h>
#include <linux/netfilter.h>
#include <linux/netfilter/nf_tables.h>
#include <linux/netfilter/nfnetlink.h>
#include <linux/netlink.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "os/netlink.h"

#define TABLE "hutch"
#define CHAIN "capture"

enum { DNS_PORT = 53, PRIORITY = -150, ICMP_ECHO_REQUEST = 8, ICMPV6_ECHO_REQUEST = 128 };
enum { ICMP_PROHIBITED = 13, ICMPV6_PROHIBITED = 1 };
/* Where things are in the headers. */
enum { IP4_DESTINATION = 16, IP6_DESTINATION = 24, PORT_DESTINATION = 2, ICMP_TYPE = 0 };

/* --- messages and expressions --------------------------------------------------------------------------------------- */

static uint32_t nfnl_begin(struct netlink *b, unsigned type, unsigned flags, unsigned char family, uint16_t resource)
{
    struct nfgenmsg g = {.nfgen_family = family, .version = NFNETLINK_V0, .res_id = htobe16(resource)};
    return netlink_begin(b, type, flags, &g, sizeof g);
}

static uint32_t begin_nft(struct netlink *b, unsigned type, unsigned flags)
{
    return nfnl_begin(b, NFNL_SUBSYS_NFTABLES << 8 | type, NLM_F_CREATE | flags, NFPROTO_INET, 0);
}

struct expression {
    size_t element, data;
};

static struct expression expression_begin(struct netlink *b, const char *name)
{
    struct expression e;
    e.element = netlink_nest(b, NFTA_LIST_ELEM);
    netlink_put_str(b, NFTA_EXPR_NAME, name);
    e.data = netlink_nest(b, NFTA_EXPR_DATA);
    return e;
}

static void expression_end(struct netlink *b, struct expression e)
{
    netlink_unnest(b, e.data);
    netlink_unnest(b, e.element);
}

static void load_meta(struct netlink *b, uint32_t key)
{
    struct expression e = expression_begin(b, "meta");
    netlink_put_be32(b, NFTA_META_KEY, key);
    netlink_put_be32(b, NFTA_META_DREG, NFT_REG_1);
    expression_end(b, e);
}

static void load_header(struct netlink *b, uint32_t base, uint32_t offset, uint32_t n)
{
    struct expression e = expression_begin(b, "payload");
    netlink_put_be32(b, NFTA_PAYLOAD_DREG, NFT_REG_1);
    netlink_put_be32(b, NFTA_PAYLOAD_BASE, base);
    netlink_put_be32(b, NFTA_PAYLOAD_OFFSET, offset);
    netlink_put_be32(b, NFTA_PAYLOAD_LEN, n);
    expression_end(b, e);
}

/* The rule continues only if register 1 holds this. */
static void must_be(struct netlink *b, const void *value, size_t n)
{
    struct expression e = expression_begin(b, "cmp");
    netlink_put_be32(b, NFTA_CMP_SREG, NFT_REG_1);
    netlink_put_be32(b, NFTA_CMP_OP, NFT_CMP_EQ);
    size_t data = netlink_nest(b, NFTA_CMP_DATA);
    netlink_put(b, NFTA_DATA_VALUE, value, n);
    netlink_unnest(b, data);
    expression_end(b, e);
}

static void must_be_byte(struct netlink *b, unsigned value)
{
    unsigned char byte = (unsigned char)value;
    must_be(b, &byte, 1);
}

static void load_value(struct netlink *b, uint32_t reg, const void *value, size_t n)
{
    struct expression e = expression_begin(b, "immediate");
    netlink_put_be32(b, NFTA_IMMEDIATE_DREG, reg);
    size_t data = netlink_nest(b, NFTA_IMMEDIATE_DATA);
    netlink_put(b, NFTA_DATA_VALUE, value, n);
    netlink_unnest(b, data);
    expression_end(b, e);
}

static void nft_add_verdict(struct netlink *b, int code)
{
    struct expression e = expression_begin(b, "immediate");
    netlink_put_be32(b, NFTA_IMMEDIATE_DREG, NFT_REG_VERDICT);
    size_t data = netlink_nest(b, NFTA_IMMEDIATE_DATA), inner = netlink_nest(b, NFTA_DATA_VERDICT);
    netlink_put_be32(b, NFTA_VERDICT_CODE, (uint32_t)code);
    netlink_unnest(b, inner);
    netlink_unnest(b, data);
    expression_end(b, e);
}

/* Hands the packet to a socket of this namespace; address register 0: whichever address. */
static void to_socket(struct netlink *b, uint32_t family, uint32_t address_reg, uint32_t port_reg)
{
    struct expression e = expression_begin(b, "tproxy");
    netlink_put_be32(b, NFTA_TPROXY_FAMILY, family);
    if (address_reg)
        netlink_put_be32(b, NFTA_TPROXY_REG_ADDR, address_reg);
    netlink_put_be32(b, NFTA_TPROXY_REG_PORT, port_reg);
    expression_end(b, e);
}

static void nft_add_reject(struct netlink *b, unsigned code)
{
    unsigned char byte = (unsigned char)code;
    struct expression e = expression_begin(b, "reject");
    netlink_put_be32(b, NFTA_REJECT_TYPE, NFT_REJECT_ICMP_UNREACH);
    netlink_put(b, NFTA_REJECT_ICMP_CODE, &byte, 1);
    expression_end(b, e);
}

/* --- rules ---------------------------------------------------------------------------------------------------------- */

struct rule {
    uint32_t seq;
    size_t expressions;
};

static struct rule rule_begin(struct netlink *b, unsigned flags)
{
    struct rule r;
    r.seq = begin_nft(b, NFT_MSG_NEWRULE, NLM_F_APPEND | flags);
    netlink_put_str(b, NFTA_RULE_TABLE, TABLE);
    netlink_put_str(b, NFTA_RULE_CHAIN, CHAIN);
    r.expressions = netlink_nest(b, NFTA_RULE_EXPRESSIONS);
    return r;
}

static void family_is(struct netlink *b, unsigned family)
{
    load_meta(b, NFT_META_NFPROTO);
    must_be_byte(b, family);
}

static void protocol_is(struct netlink *b, unsigned protocol)
{
    load_meta(b, NFT_META_L4PROTO);
    must_be_byte(b, protocol);
}

static void leave_alone(struct netlink *b, unsigned family, uint32_t offset, const void *address, size_t n)
{
    struct rule r = rule_begin(b, 0);
    family_is(b, family);
    load_header(b, NFT_PAYLOAD_NETWORK_HEADER, offset, (uint32_t)n);
    must_be(b, address, n);
    nft_add_verdict(b, NFT_RETURN);
    netlink_unnest(b, r.expressions);
}

static uint32_t capture_tcp(struct netlink *b, uint16_t port)
{
    uint16_t wire = htobe16(port);
    struct rule r = rule_begin(b, 0);
    protocol_is(b, IPPROTO_TCP);
    load_value(b, NFT_REG_1, &wire, sizeof wire);
    to_socket(b, NFPROTO_UNSPEC, 0, NFT_REG_1);
    nft_add_verdict(b, NF_ACCEPT);
    netlink_unnest(b, r.expressions);
    return r.seq;
}

static void capture_dns(struct netlink *b, const unsigned char address[4])
{
    uint16_t port = htobe16(DNS_PORT);
    struct rule r = rule_begin(b, 0);
    family_is(b, NFPROTO_IPV4);
    protocol_is(b, IPPROTO_UDP);
    load_header(b, NFT_PAYLOAD_TRANSPORT_HEADER, PORT_DESTINATION, sizeof port);
    must_be(b, &port, sizeof port);
    load_value(b, NFT_REG_1, address, 4);
    load_value(b, NFT_REG_2, &port, sizeof port);
    to_socket(b, NFPROTO_IPV4, NFT_REG_1, NFT_REG_2);
    nft_add_verdict(b, NF_ACCEPT);
    netlink_unnest(b, r.expressions);
}

/* Everything is local, so the kernel would answer a ping to any address itself. */
static uint32_t prohibit_echo(struct netlink *b, unsigned flags, unsigned family, unsigned protocol, unsigned type,
                              unsigned code)
{
    struct rule r = rule_begin(b, flags);
    family_is(b, family);
    protocol_is(b, protocol);
    load_header(b, NFT_PAYLOAD_TRANSPORT_HEADER, ICMP_TYPE, 1);
    must_be_byte(b, type);
    nft_add_reject(b, code);
    netlink_unnest(b, r.expressions);
    return r.seq;
}

static void add_chain(struct netlink *b)
{
    (void)begin_nft(b, NFT_MSG_NEWTABLE, 0);
    netlink_put_str(b, NFTA_TABLE_NAME, TABLE);
    (void)begin_nft(b, NFT_MSG_NEWCHAIN, 0);
    netlink_put_str(b, NFTA_CHAIN_TABLE, TABLE);
    netlink_put_str(b, NFTA_CHAIN_NAME, CHAIN);
    size_t hook = netlink_nest(b, NFTA_CHAIN_HOOK);
    netlink_put_be32(b, NFTA_HOOK_HOOKNUM, NF_INET_PRE_ROUTING);
    netlink_put_be32(b, NFTA_HOOK_PRIORITY, (uint32_t)PRIORITY);
    netlink_unnest(b, hook);
    netlink_put_be32(b, NFTA_CHAIN_POLICY, NF_ACCEPT);
    netlink_put_str(b, NFTA_CHAIN_TYPE, "filter");
}

int nft_capture(const struct nft_capture *c, struct err *err)
{
    static const unsigned char loopback4[1] = {127}, loopback6[16] = {[15] = 1};
    struct netlink b = {0};
    uint32_t refused;
    (void)nfnl_begin(&b, NFNL_MSG_BATCH_BEGIN, 0, AF_UNSPEC, NFNL_SUBSYS_NFTABLES);
    add_chain(&b);
    leave_alone(&b, NFPROTO_IPV4, IP4_DESTINATION, loopback4, sizeof loopback4);
    leave_alone(&b, NFPROTO_IPV4, IP4_DESTINATION, c->own4, sizeof c->own4);
    leave_alone(&b, NFPROTO_IPV6, IP6_DESTINATION, loopback6, sizeof loopback6);
    leave_alone(&b, NFPROTO_IPV6, IP6_DESTINATION, c->own6, sizeof c->own6);
    uint32_t tproxy = capture_tcp(&b, c->tcp_port);
    capture_dns(&b, c->dns4);
    uint32_t echo = prohibit_echo(&b, 0, NFPROTO_IPV4, IPPROTO_ICMP, ICMP_ECHO_REQUEST, ICMP_PROHIBITED);
    (void)prohibit_echo(&b, NLM_F_ACK, NFPROTO_IPV6, IPPROTO_ICMPV6, ICMPV6_ECHO_REQUEST, ICMPV6_PROHIBITED);
    (void)nfnl_begin(&b, NFNL_MSG_BATCH_END, 0, AF_UNSPEC, NFNL_SUBSYS_NFTABLES);
    if (netlink_ask(NETLINK_NETFILTER, &b, &refused) == 0)
        return 0;
    const char *option = refused >= echo     ? "CONFIG_NFT_REJECT and CONFIG_NFT_REJECT_INET (module nft_reject_inet)"
                         : refused >= tproxy ? "CONFIG_NFT_TPROXY (module nft_tproxy)"
                                             : "CONFIG_NF_TABLES and CONFIG_NF_TABLES_INET (module nf_tables)";
    return err_set(err, ERR_HOST, errno, "the rules of a sandbox's network need a kernel with %s", option);
}
