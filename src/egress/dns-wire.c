/* dns-wire.c - DNS messages as bytes: one strict reader of queries, one writer of answers. */
#include <arpa/inet.h>
#include <string.h>

#include "egress/dns.h"

enum {
    HEAD = 12,
    LABEL_MAX = 63,
    NAME_WIRE_MAX = 255,
    CLASS_IN = 1,
    FLAG_QR = 0x8000,
    FLAG_OPCODE = 0x7800,
    FLAG_TC = 0x0200,
    FLAG_RD = 0x0100,
    FLAG_RA = 0x0080,
    FLAG_CD = 0x0010,
    POINTER_TO_QUESTION = 0xc00c,
    OPT_SIZE = 11,
};

struct reader {
    const unsigned char *p;
    size_t n, at;
};

static bool wire_get_u16(struct reader *r, uint16_t *ret)
{
    if (r->n - r->at < 2)
        return false;
    *ret = (uint16_t)(r->p[r->at] << 8 | r->p[r->at + 1]);
    r->at += 2;
    return true;
}

static char wire_lower(unsigned char c) { return (char)(c >= 'A' && c <= 'Z' ? c + 32 : c); }

static bool is_name_char(char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' || c == '_'; }

/* Refuses compression: nothing precedes a question that it could point to. */
static bool wire_get_name(struct reader *r, struct dns_query *q)
{
    size_t start = r->at, out = 0;
    for (;;) {
        if (r->at >= r->n)
            return false;
        unsigned char len = r->p[r->at++];
        if (!len)
            break;
        if (len > LABEL_MAX || r->n - r->at < len || out + (out > 0) + len > NETPOL_NAME_MAX - 1)
            return false;
        if (out)
            q->name[out++] = '.';
        for (unsigned i = 0; i < len; i++) {
            char c = wire_lower(r->p[r->at++]);
            if (!is_name_char(c))
                return false;
            q->name[out++] = c;
        }
    }
    q->name[out] = '\0';
    q->qname_n = r->at - start;
    if (q->qname_n > NAME_WIRE_MAX)
        return false;
    memcpy(q->qname, r->p + start, q->qname_n);
    return true;
}

/* Reads the OPT record, the only one a query may contain. */
static enum dns_rcode wire_get_opt(struct reader *r, struct dns_query *q)
{
    uint16_t type, size, ttl_high, ttl_low, len;
    if (r->at >= r->n || r->p[r->at++] != 0 || !wire_get_u16(r, &type) || type != DNS_OPT || !wire_get_u16(r, &size) ||
        !wire_get_u16(r, &ttl_high) || !wire_get_u16(r, &ttl_low) || !wire_get_u16(r, &len) || r->n - r->at < len)
        return DNS_FORMERR;
    r->at += len;
    q->edns = true;
    q->udp_max = size < DNS_UDP_MAX ? DNS_UDP_MAX : size > DNS_EDNS_MAX ? DNS_EDNS_MAX : size;
    return (ttl_high & 0xff) ? DNS_BADVERS : DNS_OK;
}

static enum dns_rcode wire_read_query(struct reader *r, struct dns_query *q)
{
    uint16_t questions, answers, authority, more, class;
    if (q->flags & FLAG_OPCODE)
        return DNS_NOTIMP;
    if (!wire_get_u16(r, &questions) || !wire_get_u16(r, &answers) || !wire_get_u16(r, &authority) ||
        !wire_get_u16(r, &more) || questions != 1 || answers || authority || more > 1)
        return DNS_FORMERR;
    if (!wire_get_name(r, q) || !wire_get_u16(r, &q->type) || !wire_get_u16(r, &class))
        return DNS_FORMERR;
    q->question = class == CLASS_IN;
    enum dns_rcode rc = more ? wire_get_opt(r, q) : DNS_OK;
    if (rc == DNS_FORMERR || r->at != r->n)
        return DNS_FORMERR;
    return class != CLASS_IN ? DNS_NOTIMP : rc;
}

bool dns_parse(const void *p, size_t n, struct dns_query *ret, enum dns_rcode *rcode)
{
    struct reader r = {p, n, 0};
    *ret = (struct dns_query){.udp_max = DNS_UDP_MAX};
    if (n < HEAD || n > DNS_MESSAGE_MAX || !wire_get_u16(&r, &ret->id) || !wire_get_u16(&r, &ret->flags) ||
        (ret->flags & FLAG_QR))
        return false;
    *rcode = wire_read_query(&r, ret);
    return true;
}

static void wire_put_u16(struct buf *b, unsigned v)
{
    const unsigned char m[] = {(unsigned char)(v >> 8), (unsigned char)v};
    buf_add(b, m, 2);
}

static void wire_put_name(struct buf *b, const char *name)
{
    while (*name) {
        size_t n = strcspn(name, ".");
        buf_addc(b, (char)n);
        buf_add(b, name, n);
        name += n + (name[n] == '.');
    }
    buf_addc(b, 0);
}

static void wire_put_record(struct buf *b, unsigned type, uint32_t ttl, const void *data, size_t n)
{
    wire_put_u16(b, POINTER_TO_QUESTION);
    wire_put_u16(b, type);
    wire_put_u16(b, CLASS_IN);
    wire_put_u16(b, ttl >> 16);
    wire_put_u16(b, ttl & 0xffff);
    wire_put_u16(b, (unsigned)n);
    buf_add(b, data, n);
}

static void wire_put_answer(const struct dns_query *q, const struct dns_answer *a, size_t i, struct buf *out)
{
    if (a->ptr) {
        _cleanup_buf_ struct buf name = {0};
        wire_put_name(&name, a->ptr);
        wire_put_record(out, DNS_PTR, a->ttl, name.p, name.n);
    } else if (q->type == DNS_A) {
        wire_put_record(out, DNS_A, a->ttl, a->addrs[i].s6_addr + 12, 4);
    } else {
        wire_put_record(out, DNS_AAAA, a->ttl, a->addrs[i].s6_addr, 16);
    }
}

void dns_write(const struct dns_query *q, const struct dns_answer *a, size_t max, struct buf *out)
{
    _cleanup_buf_ struct buf body = {0}, one = {0};
    size_t fixed = HEAD + (q->question ? q->qname_n + 4 : 0) + (q->edns ? OPT_SIZE : 0);
    size_t n = q->question && a->rcode == DNS_OK ? (a->ptr ? 1 : a->naddrs) : 0, put = 0;
    for (; put < n; put++) {
        buf_done(&one);
        wire_put_answer(q, a, put, &one);
        if (fixed + body.n + one.n > max)
            break;
        buf_add(&body, one.p, one.n);
    }
    wire_put_u16(out, q->id);
    wire_put_u16(out, FLAG_QR | (q->flags & (FLAG_OPCODE | FLAG_RD | FLAG_CD)) | FLAG_RA | (put < n ? FLAG_TC : 0) |
                          ((unsigned)a->rcode & 15));
    wire_put_u16(out, q->question ? 1 : 0);
    wire_put_u16(out, (unsigned)put);
    wire_put_u16(out, 0);
    wire_put_u16(out, q->edns ? 1 : 0);
    if (q->question) {
        buf_add(out, q->qname, q->qname_n);
        wire_put_u16(out, q->type);
        wire_put_u16(out, CLASS_IN);
    }
    if (body.n)
        buf_add(out, body.p, body.n);
    if (q->edns) {
        buf_addc(out, 0);
        wire_put_u16(out, DNS_OPT);
        wire_put_u16(out, DNS_EDNS_MAX);
        wire_put_u16(out, ((unsigned)a->rcode >> 4) << 8);
        wire_put_u16(out, 0);
        wire_put_u16(out, 0);
    }
}
