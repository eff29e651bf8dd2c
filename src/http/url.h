/* url.h - percent-encoding and query strings. Pure functions of bytes. Strict: a '%' without two hexadecimal digits and
 * an encoded NUL are errors and never pass through.
 */
#ifndef HUTCH_HTTP_URL_H
#define HUTCH_HTTP_URL_H

#include <stdbool.h>
#include <stddef.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/strv.h"

enum { URL_METADATA_MAX = 64 /* pairs in one filter */ };

/* The value of a hexadecimal digit; -1 for any other character. */
static inline int url_hex_digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    c = (char)(c | 32);
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* How '+' reads: itself (paths, RFC 3986), or a space (what HTML forms and URLSearchParams write). */
enum url_plus { URL_PLUS_LITERAL, URL_PLUS_SPACE };

/* Appends the decoded bytes. On failure (ERR_USAGE, naming the escape and its place) `out` is as it was. */
int url_decode(const char *s, size_t n, enum url_plus plus, struct buf *out, struct err *err);
/* Appends with everything but letters, digits and "-._~" and the characters of `keep` (may be "") escaped. */
void url_encode(struct buf *out, const char *s, size_t n, const char *keep);

/* One raw pair of a query; points into it. "a" has an empty value, "a=b=c" the value "b=c". */
struct url_pair {
    const char *key, *value;
    size_t key_n, value_n;
};
/* Takes the next pair from *query (NULL is an empty query) and moves it on; empty pieces ("a&&b") are skipped. */
bool url_query_next(const char **query, struct url_pair *ret);

/* The decoded value of the first pair with this key (plain text; keys are decoded before they are compared). 1 found
 * and appended to `ret`, 0 there is none, -1 the key or the value is badly encoded. */
int url_query_get(const char *query, const char *key, enum url_plus plus, struct buf *ret, struct err *err);

/* The metadata filter of E2B's sandbox list: `raw` is the value as it stands in the query, encoded three times (each
 * part, the joined list, the query). Appends key, value, key, value... to `ret`; on failure `ret` may hold some of
 * them. */
int url_metadata(const char *raw, size_t n, struct strv *ret, struct err *err);

#endif
