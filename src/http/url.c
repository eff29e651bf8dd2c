#include "http/url.h"

#include <string.h>

#include "base/mem.h"
#include "base/text.h"

static int url_bad_escape(const char *s, size_t n, size_t at, struct err *err)
{
    _cleanup_buf_ struct buf shown = {0};
    char piece[4] = {0};
    memcpy(piece, s + at, n - at < 3 ? n - at : 3);
    text_add_safe(&shown, piece, sizeof piece);
    if (strcmp(piece, "%00") == 0)
        return err_set(err, ERR_USAGE, 0, "the escape '%%00' at byte %zu is a NUL, which no value may hold", at);
    return err_set(err, ERR_USAGE, 0, "bad percent-escape '%s' at byte %zu; expected '%%' and two hexadecimal digits",
                   buf_str(&shown), at);
}

int url_decode(const char *s, size_t n, enum url_plus plus, struct buf *out, struct err *err)
{
    size_t before = out->n;
    for (size_t i = 0; i < n;) {
        size_t run = i;
        while (run < n && s[run] != '%' && s[run] != '+' && s[run] != '\0')
            run++;
        buf_add(out, s + i, run - i);
        i = run;
        if (i == n)
            break;
        if (s[i] == '+') {
            buf_addc(out, plus == URL_PLUS_SPACE ? ' ' : '+');
            i++;
            continue;
        }
        int high = s[i] == '%' && n - i > 2 ? url_hex_digit(s[i + 1]) : -1,
            low = high >= 0 ? url_hex_digit(s[i + 2]) : -1;
        if (low < 0 || high * 16 + low == 0) {
            out->n = before;
            if (out->p)
                out->p[before] = '\0';
            return url_bad_escape(s, n, i, err);
        }
        buf_addc(out, (char)(high * 16 + low));
        i += 3;
    }
    return 0;
}

static bool url_is_unreserved(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '.' ||
           c == '_' || c == '~';
}

void url_encode(struct buf *out, const char *s, size_t n, const char *keep)
{
    static const char digits[] = "0123456789ABCDEF";
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)s[i];
        if (url_is_unreserved(s[i]) || (c != 0 && strchr(keep, c))) {
            buf_addc(out, s[i]);
        } else {
            const char escape[3] = {'%', digits[c >> 4], digits[c & 15]};
            buf_add(out, escape, sizeof escape);
        }
    }
}

bool url_query_next(const char **query, struct url_pair *ret)
{
    const char *s = *query;
    if (!s)
        return false;
    while (*s == '&')
        s++;
    if (*s == '\0') {
        *query = s;
        return false;
    }
    size_t n = strcspn(s, "&");
    const char *equals = memchr(s, '=', n);
    ret->key = s;
    ret->key_n = equals ? (size_t)(equals - s) : n;
    ret->value = equals ? equals + 1 : s + n;
    ret->value_n = equals ? n - ret->key_n - 1 : 0;
    *query = s + n;
    return true;
}

int url_query_get(const char *query, const char *key, enum url_plus plus, struct buf *ret, struct err *err)
{
    struct url_pair pair;
    while (url_query_next(&query, &pair)) {
        _cleanup_buf_ struct buf name = {0};
        if (url_decode(pair.key, pair.key_n, plus, &name, err) < 0)
            return err_wrap(err, "a key of the query");
        if (strcmp(buf_str(&name), key) != 0)
            continue;
        if (url_decode(pair.value, pair.value_n, plus, ret, err) < 0)
            return err_wrap(err, "query parameter '%s'", key);
        return 1;
    }
    return 0;
}

static int url_add_decoded(const char *s, size_t n, struct strv *ret, struct err *err)
{
    struct buf text = {0};
    if (url_decode(s, n, URL_PLUS_SPACE, &text, err) < 0) {
        buf_done(&text);
        return -1;
    }
    strv_take(ret, text.p ? text.p : xstrdup(""));
    return 0;
}

int url_metadata(const char *raw, size_t n, struct strv *ret, struct err *err)
{
    _cleanup_buf_ struct buf query = {0}, list = {0};
    if (url_decode(raw, n, URL_PLUS_SPACE, &query, err) < 0 ||
        url_decode(buf_str(&query), query.n, URL_PLUS_SPACE, &list, err) < 0)
        return err_wrap(err, "metadata filter");
    const char *pos = buf_str(&list);
    struct url_pair pair;
    for (size_t pairs = 0; url_query_next(&pos, &pair); pairs++) {
        if (pairs == URL_METADATA_MAX)
            return err_set(err, ERR_USAGE, 0, "metadata filter: more than %d pairs", URL_METADATA_MAX);
        if (pair.key_n == 0)
            return err_set(err, ERR_USAGE, 0, "metadata filter: pair %zu has no key; expected key=value", pairs + 1);
        if (url_add_decoded(pair.key, pair.key_n, ret, err) < 0 ||
            url_add_decoded(pair.value, pair.value_n, ret, err) < 0)
            return err_wrap(err, "metadata filter, pair %zu", pairs + 1);
    }
    return 0;
}
