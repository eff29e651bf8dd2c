/* sign.c - signatures of file URLs. */
#include <string.h>

#include "api/e2b/envd.h"
#include "base/base64.h"
#include "base/cleanup.h"
#include "base/num.h"
#include "base/sha256.h"
#include "http/url.h"

void sign_make(const char *path, const char *operation, const char *user, const char *token, const char *expiry,
               struct buf *ret)
{
    struct sha256 h;
    uint8_t digest[SHA256_BYTES];
    const char *part[] = {path, operation, user, token, expiry};
    sha256_start(&h);
    for (size_t i = 0; i < ARRAY_LEN(part) && part[i]; i++) {
        if (i)
            sha256_add(&h, ":", 1);
        sha256_add(&h, part[i], strlen(part[i]));
    }
    sha256_end(&h, digest);
    buf_adds(ret, "v1_");
    base64_encode(ret, digest, sizeof digest);
    while (ret->n && ret->p[ret->n - 1] == '=')
        ret->p[--ret->n] = 0;
}

int sign_query_read(const char *query, struct sign_query *ret, struct err *err)
{
    struct {
        const char *name;
        struct buf *value;
        bool *has;
    } want[] = {
        {"path", &ret->path, &ret->has_path},
        {"username", &ret->user, &ret->has_user},
        {"signature", &ret->signature, &ret->has_signature},
        {"signature_expiration", &ret->expiry, &ret->has_expiry},
    };
    memset(ret, 0, sizeof *ret);
    for (size_t i = 0; i < ARRAY_LEN(want); i++) {
        int have = url_query_get(query, want[i].name, URL_PLUS_SPACE, want[i].value, err);
        if (have < 0)
            return -1;
        *want[i].has = have > 0;
    }
    return 0;
}

void sign_query_done(struct sign_query *q)
{
    buf_done(&q->path);
    buf_done(&q->user);
    buf_done(&q->signature);
    buf_done(&q->expiry);
}

const char *sign_check(const struct sign_query *q, const char *operation, const char *token, uint64_t now_unix)
{
    _cleanup_buf_ struct buf good = {0};
    uint64_t expiry;
    if (!q->has_signature)
        return "missing signature query parameter";
    sign_make(buf_str(&q->path), operation, buf_str(&q->user), token, q->has_expiry ? buf_str(&q->expiry) : NULL,
              &good);
    _cleanup_buf_ struct buf given = {0};
    buf_adds(&given, buf_str(&q->signature));
    for (size_t i = 0; i < given.n; i++)
        if (given.p[i] == ' ')
            given.p[i] = '+'; /* an unescaped '+' of base64 arrives as a space */
    if (!sha256_equal_text(buf_str(&given), buf_str(&good)))
        return "invalid signature";
    if (q->has_expiry && (!num_u64(buf_str(&q->expiry), &expiry) || expiry < now_unix))
        return "signature is already expired";
    return NULL;
}
