#include "http/sigv4.h"

#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/cleanup.h"
#include "base/mem.h"
#include "base/sha256.h"
#include "base/strv.h"
#include "http/url.h"

#define ALGORITHM "AWS4-HMAC-SHA256"

void sigv4_time(uint64_t unix_time, char ret[SIGV4_TIME])
{
    time_t t = (time_t)(unix_time > 253402300799U ? 253402300799U : unix_time); /* four digits of a year */
    struct tm tm;
    (void)gmtime_r(&t, &tm);
    (void)strftime(ret, SIGV4_TIME, "%Y%m%dT%H%M%SZ", &tm);
}

/* S3 signs the path as it is sent; every other service signs it encoded once more. */
static bool is_s3(const char *service)
{
    static const char *const names[] = {"s3", "s3-object-lambda", "s3-outposts", "s3express"};
    for (size_t i = 0; i < ARRAY_LEN(names); i++)
        if (strcmp(service, names[i]) == 0)
            return true;
    return false;
}

/* Decodes and encodes again in the canonical way, so that "a(b" and "a%28b" have the same signature, as for the
 * server. */
static bool sigv4_encode_again(const char *s, size_t n, struct buf *out)
{
    _cleanup_buf_ struct buf plain = {0};
    struct err err;
    if (url_decode(s, n, URL_PLUS_LITERAL, &plain, &err) < 0)
        return false;
    url_encode(out, buf_str(&plain), plain.n, "");
    return true;
}

static bool canonical_path(const char *path, size_t n, bool twice, struct buf *out)
{
    _cleanup_buf_ struct buf once = {0};
    for (size_t at = 0; at < n;) {
        const char *slash = memchr(path + at, '/', n - at);
        size_t end = slash ? (size_t)(slash - path) : n;
        if (!sigv4_encode_again(path + at, end - at, &once))
            return false;
        if (slash)
            buf_addc(&once, '/');
        at = end + (slash ? 1 : 0);
    }
    if (once.n == 0)
        buf_addc(&once, '/');
    if (twice)
        url_encode(out, once.p, once.n, "/");
    else
        buf_add(out, once.p, once.n);
    return true;
}

static int sigv4_by_text(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

/* Sorts pairs by name, then by value: "k\1v" sorts so, because no encoded text holds a \1. Broken escapes are
 * encoded as they are: the server does not accept them either. */
void sigv4_query(const char *query, struct buf *out)
{
    _cleanup_strv_ struct strv pairs = {0};
    struct url_pair p;
    while (url_query_next(&query, &p)) {
        _cleanup_buf_ struct buf b = {0};
        if (!sigv4_encode_again(p.key, p.key_n, &b))
            url_encode(&b, p.key, p.key_n, "");
        buf_addc(&b, '\1');
        if (!sigv4_encode_again(p.value, p.value_n, &b))
            url_encode(&b, p.value, p.value_n, "");
        strv_add(&pairs, buf_str(&b));
    }
    if (pairs.n > 0)
        qsort(pairs.v, pairs.n, sizeof *pairs.v, sigv4_by_text);
    for (size_t i = 0; i < pairs.n; i++) {
        *strchr(pairs.v[i], '\1') = '=';
        buf_addf(out, "%s%s", i > 0 ? "&" : "", pairs.v[i]);
    }
}

static int sigv4_by_name(const void *a, const void *b)
{
    const struct http_field *const *x = a, *const *y = b;
    int r = strcmp((*x)->name, (*y)->name);
    /* The order of several values of one name is the order in which they are sent. */
    return r != 0 ? r : (*x > *y) - (*x < *y);
}

/* Without the white space around it, and every run of spaces inside as one. */
static void sigv4_add_trimmed(struct buf *out, const char *value)
{
    bool space = false, any = false;
    for (; *value; value++) {
        if (*value == ' ' || *value == '\t') {
            space = any;
            continue;
        }
        if (space)
            buf_addc(out, ' ');
        buf_addc(out, *value);
        space = false;
        any = true;
    }
}

static bool sigv4_sort_fields(const struct sigv4 *s, const struct http_field *ret[SIGV4_FIELDS_MAX])
{
    if (s->nfields == 0 || s->nfields > SIGV4_FIELDS_MAX)
        return false;
    for (size_t i = 0; i < s->nfields; i++)
        ret[i] = &s->signed_fields[i];
    qsort(ret, s->nfields, sizeof *ret, sigv4_by_name);
    return true;
}

static void sigv4_add_names(struct buf *out, const struct http_field *const *f, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (i == 0 || strcmp(f[i]->name, f[i - 1]->name) != 0)
            buf_addf(out, "%s%s", i > 0 ? ";" : "", f[i]->name);
}

bool sigv4_canonical(const struct sigv4 *s, struct buf *out)
{
    const struct http_field *f[SIGV4_FIELDS_MAX];
    const char *mark = strchr(s->target, '?');
    size_t path_n = mark ? (size_t)(mark - s->target) : strlen(s->target);
    if (!sigv4_sort_fields(s, f))
        return false;
    buf_addf(out, "%s\n", s->method);
    if (!canonical_path(s->target, path_n, !is_s3(s->service), out))
        return false;
    buf_addc(out, '\n');
    sigv4_query(mark ? mark + 1 : NULL, out);
    for (size_t i = 0; i < s->nfields; i++) {
        if (i > 0 && strcmp(f[i]->name, f[i - 1]->name) == 0)
            buf_addc(out, ',');
        else
            buf_addf(out, "\n%s:", f[i]->name);
        sigv4_add_trimmed(out, f[i]->value);
    }
    buf_adds(out, "\n\n");
    sigv4_add_names(out, f, s->nfields);
    buf_addf(out, "\n%s", s->payload);
    return true;
}

static void sigv4_hmac(const void *key, size_t key_n, const char *text, unsigned char ret[SHA256_BYTES])
{
    unsigned n = SHA256_BYTES;
    if (!HMAC(EVP_sha256(), key, (int)key_n, (const unsigned char *)text, strlen(text), ret, &n))
        abort();
}

/* HMAC over HMAC: the key of one day, one region, one service. */
static void signing_key(const struct sigv4 *s, const char *date, unsigned char ret[SHA256_BYTES])
{
    unsigned char a[SHA256_BYTES], b[SHA256_BYTES];
    char *first = xmalloc(4 + s->secret_n);
    memcpy(first, "AWS4", 4);
    memcpy(first + 4, s->secret, s->secret_n);
    sigv4_hmac(first, 4 + s->secret_n, date, a);
    explicit_bzero(first, 4 + s->secret_n);
    free(first);
    sigv4_hmac(a, sizeof a, s->region, b);
    sigv4_hmac(b, sizeof b, s->service, a);
    sigv4_hmac(a, sizeof a, "aws4_request", ret);
    explicit_bzero(a, sizeof a);
    explicit_bzero(b, sizeof b);
}

/* Reserves room for the canonical request, which may hold a session token: growing would leave copies of it in
 * memory. */
static void sigv4_make_room(const struct sigv4 *s, struct buf *b)
{
    size_t n = strlen(s->method) + 10 * strlen(s->target) + strlen(s->payload) + 64;
    for (size_t i = 0; i < s->nfields; i++)
        n += 2 * strlen(s->signed_fields[i].name) + strlen(s->signed_fields[i].value) + 4;
    b->p = xcalloc(n, 1);
    b->cap = n;
}

static void sigv4_wipe(struct buf *b)
{
    if (b->p)
        explicit_bzero(b->p, b->cap);
    buf_done(b);
}

bool sigv4_authorization(const struct sigv4 *s, struct buf *out)
{
    const struct http_field *f[SIGV4_FIELDS_MAX];
    _cleanup_(sigv4_wipe) struct buf canonical = {0};
    _cleanup_buf_ struct buf text = {0}, scope = {0};
    unsigned char key[SHA256_BYTES], signature[SHA256_BYTES];
    char when[SIGV4_TIME], date[9], hash[SHA256_HEX];
    sigv4_make_room(s, &canonical);
    if (!sigv4_canonical(s, &canonical) || !sigv4_sort_fields(s, f))
        return false;
    sigv4_time(s->unix_time, when);
    memcpy(date, when, 8);
    date[8] = '\0';
    sha256_hex(canonical.p, canonical.n, hash);
    buf_addf(&scope, "%s/%s/%s/aws4_request", date, s->region, s->service);
    buf_addf(&text, ALGORITHM "\n%s\n%s\n%s", when, scope.p, hash);
    signing_key(s, date, key);
    sigv4_hmac(key, sizeof key, text.p, signature);
    explicit_bzero(key, sizeof key);
    buf_addf(out, ALGORITHM " Credential=%s/%s, SignedHeaders=", s->access_key_id, scope.p);
    sigv4_add_names(out, f, s->nfields);
    buf_adds(out, ", Signature=");
    for (size_t i = 0; i < sizeof signature; i++)
        buf_addf(out, "%02x", signature[i]);
    return true;
}
