/* inject-sign.c - signs a request for AWS with a key that the client never has.
 *
 * Removes the client's own signature: the Authorization field, the x-amz-* fields that belong to a signature, the
 * parameters of a presigned URL. Other x-amz-* fields (x-amz-target, x-amz-acl, x-amz-meta-...) mean something to the
 * service; they stay and are signed.
 */
#include <ctype.h>
#include <stdio.h>
#include <strings.h>

#include "base/cleanup.h"
#include "base/sha256.h"
#include "egress/secrets/secrets-int.h"
#include "http/sigv4.h"
#include "http/url.h"

#define UNSIGNED_CHUNKS "STREAMING-UNSIGNED-PAYLOAD-TRAILER"

enum payload { PAYLOAD_HASH, PAYLOAD_KEEP, PAYLOAD_UNSIGNED, PAYLOAD_IMPOSSIBLE };

static bool sign_is_hash(const char *s)
{
    size_t n = 0;
    while (isdigit((unsigned char)s[n]) || (s[n] >= 'a' && s[n] <= 'f'))
        n++;
    return n == 64 && s[n] == '\0';
}

/* How the signature covers the body. S3 verifies the hash that the client sent, so we may use it; over TLS S3 needs
 * none. */
static enum payload sign_payload_kind(const struct inject_request *q, const struct secret *s)
{
    const char *claimed = http_field(q->fields, "x-amz-content-sha256");
    bool s3 = strncmp(s->spec.service, "s3", 2) == 0;
    if (claimed && strncmp(claimed, "STREAMING-", 10) == 0)
        return strcmp(claimed, UNSIGNED_CHUNKS) == 0 && q->verified_tls ? PAYLOAD_KEEP : PAYLOAD_IMPOSSIBLE;
    if (s3 && claimed && sign_is_hash(claimed))
        return PAYLOAD_KEEP;
    return s3 && q->verified_tls ? PAYLOAD_UNSIGNED : PAYLOAD_HASH;
}

bool sign_needs_body(const struct inject_request *q, const struct secret *s)
{
    return sign_payload_kind(q, s) == PAYLOAD_HASH;
}

static bool sign_is_signature_key(const char *key, const void *arg)
{
    static const char *const keys[] = {"X-Amz-Algorithm",      "X-Amz-Credential",    "X-Amz-Date",
                                       "X-Amz-Expires",        "X-Amz-SignedHeaders", "X-Amz-Signature",
                                       "X-Amz-Security-Token", "X-Amz-Content-Sha256"};
    (void)arg;
    for (size_t i = 0; i < ARRAY_LEN(keys); i++)
        if (strcasecmp(key, keys[i]) == 0)
            return true;
    return false;
}

/* Sends the query in the canonical form that is signed, so that the service cannot read it differently. */
static void sign_rewrite_query(struct inject_request *q)
{
    place_drop_pairs(q, sign_is_signature_key, NULL);
    const char *mark = strchr(buf_str(q->target), '?');
    _cleanup_buf_ struct buf query = {0};
    if (!mark)
        return;
    sigv4_query(mark + 1, &query);
    q->target->n = (size_t)(mark + 1 - q->target->p);
    buf_add(q->target, buf_str(&query), query.n);
}

static void sign_host_text(const struct inject_request *q, char *ret, size_t cap)
{
    const char *host = http_field(q->fields, "host");
    bool usual = q->flow->port == (q->flow->tls ? 443 : 80);
    if (host)
        (void)snprintf(ret, cap, "%s", host);
    else if (usual)
        (void)snprintf(ret, cap, "%s", q->flow->host);
    else
        (void)snprintf(ret, cap, "%s:%u", q->flow->host, q->flow->port);
}

/* The fields to sign: host, content-type and every x-amz field. 0: too many. */
static size_t sign_choose_fields(const struct inject_request *q, const char *host,
                                 struct http_field ret[SIGV4_FIELDS_MAX])
{
    size_t n = 0;
    ret[n++] = (struct http_field){"host", host};
    for (size_t i = 0; i < q->fields->n; i++) {
        const struct http_field *f = &q->storage[i];
        if (strncmp(f->name, "x-amz-", 6) != 0 && strcmp(f->name, "content-type") != 0)
            continue;
        if (n == SIGV4_FIELDS_MAX)
            return 0;
        ret[n++] = *f;
    }
    return n;
}

static bool sign_add_signature(struct inject_request *q, struct inject_result *ret, const struct secret *s,
                               const char *payload)
{
    struct http_field fields[SIGV4_FIELDS_MAX];
    char host[NETPOL_NAME_MAX + 8];
    _cleanup_buf_ struct buf text = {0};
    sign_host_text(q, host, sizeof host);
    const struct sigv4 sign = {
        .access_key_id = s->spec.access_key_id,
        .region = s->spec.region,
        .service = s->spec.service,
        .secret = s->value,
        .secret_n = s->n,
        .unix_time = q->unix_time,
        .method = q->method,
        .target = buf_str(q->target),
        .signed_fields = fields,
        .nfields = sign_choose_fields(q, host, fields),
        .payload = payload,
    };
    if (!sigv4_authorization(&sign, &text))
        return place_refuse(ret, NETPOL_R_MALFORMED,
                            "the request cannot be signed with secret '%s': a broken escape, or too many x-amz headers",
                            s->name);
    return place_set(q, ret, s, "authorization", &text, "sigv4");
}

bool sign_request(struct inject_request *q, struct inject_result *ret, const struct secret *s,
                  const struct secret *token)
{
    static const char *const own[] = {"authorization", "x-amz-date", "x-amz-security-token", "x-amz-content-sha256"};
    const char *claimed = http_field(q->fields, "x-amz-content-sha256");
    enum payload kind = sign_payload_kind(q, s);
    char payload[80] = "UNSIGNED-PAYLOAD", when[SIGV4_TIME];
    if (kind == PAYLOAD_IMPOSSIBLE)
        return place_refuse(ret, NETPOL_R_SECRET_UNBOUND,
                            "the body is signed chunk by chunk (%.50s), which cannot be done again with secret '%s'; "
                            "let the client sign "
                            "the payload as a whole or not at all",
                            claimed, s->name);
    if (kind == PAYLOAD_KEEP)
        (void)snprintf(payload, sizeof payload, "%s", claimed);
    else if (kind == PAYLOAD_HASH)
        sha256_hex(q->body ? buf_str(q->body) : "", q->body ? q->body->n : 0, payload);
    for (size_t i = 0; i < ARRAY_LEN(own); i++)
        place_drop(q, own[i]);
    sign_rewrite_query(q);
    sigv4_time(q->unix_time, when);
    if (!place_field(q, ret, "x-amz-date", when) || !place_field(q, ret, "x-amz-content-sha256", payload))
        return false;
    if (token) {
        _cleanup_buf_wipe_ struct buf value = {0};
        buf_room(&value, token->n);
        buf_add(&value, token->value, token->n);
        if (!place_set(q, ret, token, "x-amz-security-token", &value, "header"))
            return false;
    }
    return sign_add_signature(q, ret, s, payload);
}
