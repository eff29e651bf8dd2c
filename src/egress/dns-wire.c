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

static bool get16(struct reader *r, uint16_t *ret)
{
    if (r->n - r->at < 2)
        return false;
    *ret = (uint16_t)(r->p[r->at] << 8 | r->p[r->at + 1]);
    r->at += 2;
    return true;
}

static char lower(unsigned char c) { return (char)(c >= 'A' && c <= 'Z' ? c + 32 : c); }

static bool is_name_char(char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' || c == '_'; }

/* No compression: there is nothing before a question that it could point to. */
static bool get_name(struct reader *r, struct dns_query *q)
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
            char c = lower(r->p[r->at++]);
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

/* The only record a query may bring. */
static enum dns_rcode get_opt(struct reader *r, struct dns_query *q)
{
    uint16_t type, size, ttl_high, ttl_low, len;
    if (r->at >= r->n || r->p[r->at++] != 0 || !get16(r, &type) || type != DNS_OPT || !get16(r, &size) ||
        !get16(r, &ttl_high) || !get16(r, &ttl_low) || !get16(r, &len) || r->n - r->at < len)
        return DNS_FORMERR;
    r->at += len;
    q->edns = true;
    q->udp_max = size < DNS_UDP_MAX ? DNS_UDP_MAX : size > DNS_EDNS_MAX ? DNS_EDNS_MAX : size;
    return (ttl_high & 0xff) ? DNS_BADVERS : DNS_OK;
}

static enum dns_rcode read_query(struct reader *r, struct dns_query *q)
{
    uint16_t questions, answers, authority, more, class;
    if (q->flags & FLAG_OPCODE)
        return DNS_NOTIMP;
    if (!get16(r, &questions) || !get16(r, &answers) || !get16(r, &authority) || !get16(r, &more) || questions != 1 ||
        answers || authority || more > 1)
        return DNS_FORMERR;
    if (!get_name(r, q) || !get16(r, &q->type) || !get16(r, &class))
        return DNS_FORMERR;
    q->question = class == CLASS_IN;
    enum dns_rcode rc = more ? get_opt(r, q) : DNS_OK;
    if (rc == DNS_FORMERR || r->at != r->n)
        return DNS_FORMERR;
    return class != CLASS_IN ? DNS_NOTIMP : rc;
}

bool dns_parse(const void *p, size_t n, struct dns_query *ret, enum dns_rcode *rcode)
{
    struct reader r = {p, n, 0};
    *ret = (struct dns_query){.udp_max = DNS_UDP_MAX};
    if (n < HEAD || n > DNS_MESSAGE_MAX || !get16(&r, &ret->id) || !get16(&r, &ret->flags) || (ret->flags & FLAG_QR))
        return false;
    *rcode = read_query(&r, ret);
    return true;
}

static void put16(struct buf *b, unsigned v)
{
    const unsigned char m[] = {(unsigned char)(v >> 8), (unsigned char)v};
    buf_add(b, m, 2);
}

static void put_name(struct buf *b, const char *name)
{
    while (*name) {
        size_t n = strcspn(name, ".");
        buf_addc(b, (char)n);
        buf_add(b, name, n);
        name += n + (name[n] == '.');
    }
    buf_addc(b, 0);
}

static void put_record(struct buf *b, unsigned type, uint32_t ttl, const void *data, size_t n)
{
    put16(b, POINTER_TO_QUESTION);
    put16(b, type);
    put16(b, CLASS_IN);
    put16(b, ttl >> 16);
    put16(b, ttl & 0xffff);
    put16(b, (unsigned)n);
    buf_add(b, data, n);
}

static void put_answer(const struct dns_query *q, const struct dns_answer *a, size_t i, struct buf *out)
{
    if (a->ptr) {
        _cleanup_buf_ struct buf name = {0};
        put_name(&name, a->ptr);
        put_record(out, DNS_PTR, a->ttl, name.p, name.n);
    } else if (q->type == DNS_A) {
        put_record(out, DNS_A, a->ttl, a->addrs[i].s6_addr + 12, 4);
    } else {
        put_record(out, DNS_AAAA, a->ttl, a->addrs[i].s6_addr, 16);
    }
}

void dns_write(const struct dns_query *q, const struct dns_answer *a, size_t max, struct buf *out)
{
    _cleanup_buf_ struct buf body = {0}, one = {0};
    size_t fixed = HEAD + (q->question ? q->qname_n + 4 : 0) + (q->edns ? OPT_SIZE : 0);
    size_t n = q->question && a->rcode == DNS_OK ? (a->ptr ? 1 : a->naddrs) : 0, put = 0;
    for (; put < n; put++) {
        buf_done(&one);
        put_answer(q, a, put, &one);
        if (fixed + body.n + one.n > max)
            break;
        buf_add(&body, one.p, one.n);
    }
    put16(out, q->id);
    put16(out, FLAG_QR | (q->flags & (FLAG_OPCODE | FLAG_RD | FLAG_CD)) | FLAG_RA | (put < n ? FLAG_TC : 0) |
                   ((unsigned)a->rcode & 15));
    put16(out, q->question ? 1 : 0);
    put16(out, (unsigned)put);
    put16(out, 0);
    put16(out, q->edns ? 1 : 0);
    if (q->question) {
        buf_add(out, q->qname, q->qname_n);
        put16(out, q->type);
        put16(out, CLASS_IN);
    }
    if (body.n)
        buf_add(out, body.p, body.n);
    if (q->edns) {
        buf_addc(out, 0);
        put16(out, DNS_OPT);
        put16(out, DNS_EDNS_MAX);
        put16(out, ((unsigned)a->rcode >> 4) << 8);
        put16(out, 0);
        put16(out, 0);
    }
}
