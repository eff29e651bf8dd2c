/* hello.c - see hello.h. Checks each length against the enclosing one; no bytes may be left over at any level. */
#include "egress/hello.h"

#include <string.h>

enum {
    RECORD_HANDSHAKE = 22,
    RECORD_HEAD = 5,
    RECORD_MAX = 16384,
    CLIENT_HELLO = 1,
    HANDSHAKE_HEAD = 4,
    EXTENSIONS_MAX = 128,
    EXT_SERVER_NAME = 0,
    EXT_ALPN = 16,
    EXT_VERSIONS = 43,
    EXT_ECH = 0xfe0d,
};

/* Bytes that are left to read. */
struct span {
    const unsigned char *p;
    size_t n;
};

static bool span_take(struct span *s, size_t n, struct span *ret)
{
    if (s->n < n)
        return false;
    *ret = (struct span){s->p, n};
    s->p += n;
    s->n -= n;
    return true;
}

static bool span_take_number(struct span *s, unsigned bytes, size_t *ret)
{
    struct span v;
    if (!span_take(s, bytes, &v))
        return false;
    *ret = 0;
    for (unsigned i = 0; i < bytes; i++)
        *ret = *ret << 8 | v.p[i];
    return true;
}

/* A vector with its length in front. */
static bool span_take_vector(struct span *s, unsigned length_bytes, struct span *ret)
{
    size_t n;
    return span_take_number(s, length_bytes, &n) && span_take(s, n, ret);
}

static int hello_refuse(struct hello *h, const char *why)
{
    h->why = why;
    return -1;
}

static int hello_read_server_name(struct span e, struct hello *h)
{
    struct span list, name;
    size_t type;
    if (!span_take_vector(&e, 2, &list) || e.n || !list.n)
        return hello_refuse(h, "the server_name extension has a wrong length");
    if (!span_take_number(&list, 1, &type) || type != 0 || !span_take_vector(&list, 2, &name) || !name.n)
        return hello_refuse(h, "the server_name extension does not hold a host name");
    if (list.n)
        return hello_refuse(h, "the server_name extension holds more than one name");
    h->has_sni = true;
    if (name.n <= HELLO_SNI_MAX && !memchr(name.p, 0, name.n))
        memcpy(h->sni, name.p, name.n);
    return 0;
}

static bool hello_is_http(const struct span *s)
{
    static const char *const names[] = {"h2", "http/1.1", "http/1.0"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (s->n == strlen(names[i]) && memcmp(s->p, names[i], s->n) == 0)
            return true;
    return false;
}

static int hello_read_alpn(struct span e, struct hello *h)
{
    struct span list, name;
    if (!span_take_vector(&e, 2, &list) || e.n || !list.n)
        return hello_refuse(h, "the ALPN extension has a wrong length");
    h->has_alpn = true;
    while (list.n) {
        if (!span_take_vector(&list, 1, &name) || !name.n)
            return hello_refuse(h, "the ALPN extension holds a name of a wrong length");
        h->alpn_http = h->alpn_http || hello_is_http(&name);
        if (h->nalpn < HELLO_ALPN_MAX) {
            h->alpn[h->nalpn].p = name.p;
            h->alpn[h->nalpn++].n = (unsigned char)name.n;
        }
    }
    return 0;
}

static int hello_read_versions(struct span e, struct hello *h)
{
    struct span list;
    size_t version;
    if (!span_take_vector(&e, 1, &list) || e.n || !list.n || list.n % 2)
        return hello_refuse(h, "the supported_versions extension has a wrong length");
    h->tls12 = false;
    while (span_take_number(&list, 2, &version)) {
        h->tls12 = h->tls12 || version == 0x0303;
        h->tls13 = h->tls13 || version == 0x0304;
    }
    return 0;
}

static int hello_read_extensions(struct span list, struct hello *h)
{
    uint16_t seen[EXTENSIONS_MAX];
    size_t nseen = 0, type;
    struct span body;
    while (list.n) {
        if (!span_take_number(&list, 2, &type) || !span_take_vector(&list, 2, &body))
            return hello_refuse(h, "an extension is longer than the message");
        for (size_t i = 0; i < nseen; i++)
            if (seen[i] == type)
                return hello_refuse(h, "an extension occurs twice");
        if (nseen == EXTENSIONS_MAX)
            return hello_refuse(h, "there are too many extensions");
        seen[nseen++] = (uint16_t)type;
        if ((type == EXT_SERVER_NAME && hello_read_server_name(body, h) < 0) ||
            (type == EXT_ALPN && hello_read_alpn(body, h) < 0) ||
            (type == EXT_VERSIONS && hello_read_versions(body, h) < 0))
            return -1;
        h->ech = h->ech || type == EXT_ECH;
    }
    return 0;
}

static int hello_read_body(struct span s, struct hello *h)
{
    struct span skip, extensions;
    size_t version;
    if (!span_take_number(&s, 2, &version) || version >> 8 != 3)
        return hello_refuse(h, "the version is not one of TLS");
    h->tls12 = version >= 0x0303;
    if (!span_take(&s, 32, &skip) || !span_take_vector(&s, 1, &skip) || skip.n > 32)
        return hello_refuse(h, "the random value or the session id has a wrong length");
    if (!span_take_vector(&s, 2, &skip) || skip.n < 2 || skip.n % 2)
        return hello_refuse(h, "the cipher suites have a wrong length");
    if (!span_take_vector(&s, 1, &skip) || !skip.n)
        return hello_refuse(h, "the compression methods have a wrong length");
    if (!s.n)
        return 1; /* no extensions: a very old client */
    if (!span_take_vector(&s, 2, &extensions) || s.n)
        return hello_refuse(h, "the extensions have a wrong length");
    return hello_read_extensions(extensions, h) < 0 ? -1 : 1;
}

/* Puts the message together from its records. 1: whole in scratch, *ret_n bytes. */
static int hello_collect(struct span raw, unsigned char *scratch, struct hello *h, size_t *ret_n)
{
    size_t have = 0, want = HANDSHAKE_HEAD, taken = 0, length, version, type;
    for (unsigned records = 0; have < want; records++) {
        struct span head, body;
        if (!span_take(&raw, RECORD_HEAD, &head)) {
            h->need = taken + RECORD_HEAD;
            return 0;
        }
        if (!span_take_number(&head, 1, &type) || type != RECORD_HANDSHAKE || !span_take_number(&head, 2, &version) ||
            version >> 8 != 3)
            return hello_refuse(h, "a record is not a TLS handshake record");
        if (!span_take_number(&head, 2, &length) || !length || length > RECORD_MAX)
            return hello_refuse(h, "a record has a wrong length");
        if (have + length > HELLO_MAX || records == HELLO_RECORDS_MAX)
            return hello_refuse(h, "the message is longer than 16 KiB, or in too many records");
        bool whole = span_take(&raw, length, &body);
        if (!whole)
            body = raw;
        /* Judges the head of the message before the record is complete. */
        memcpy(scratch + have, body.p, body.n);
        if (have + body.n >= HANDSHAKE_HEAD) {
            want = HANDSHAKE_HEAD + ((size_t)scratch[1] << 16 | (size_t)scratch[2] << 8 | scratch[3]);
            if (scratch[0] != CLIENT_HELLO || want > HELLO_MAX)
                return hello_refuse(h, scratch[0] == CLIENT_HELLO ? "the message is longer than 16 KiB"
                                                                  : "the first message is not a ClientHello");
        }
        taken += RECORD_HEAD + length;
        if (!whole) {
            h->need = taken;
            return 0;
        }
        have += length;
    }
    if (have > want)
        return hello_refuse(h, "something follows in the same record");
    *ret_n = have;
    return 1;
}

int hello_parse(const void *p, size_t n, unsigned char *scratch, struct hello *ret)
{
    size_t have;
    *ret = (struct hello){0};
    int rc = hello_collect((struct span){p, n}, scratch, ret, &have);
    if (rc <= 0)
        return rc;
    return hello_read_body((struct span){scratch + HANDSHAKE_HEAD, have - HANDSHAKE_HEAD}, ret);
}
