/* netpol-target.c - request targets in the one form that is judged and forwarded, and the patterns they are compared with.
 *
 * Servers disagree on what "%2f", ";x" and "%40" in a path mean. We forward them unchanged and judge every
 * interpretation: as written, with "%2f" as a slash, without ";parameters", and both.
 */
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/mem.h"
#include "policy/net/netpol-int.h"

static int hex_value(char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

/* The byte behind a '%', or -1. */
static int target_escaped_byte(const char *s)
{
    int high = hex_value(s[1]), low = high < 0 ? -1 : hex_value(s[2]);
    return low < 0 ? -1 : high * 16 + low;
}

static bool is_unreserved(int c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '.' ||
           c == '_' || c == '~';
}

/* Sent raw by some clients although they must be escaped. */
static bool must_escape(char c) { return strchr("\"<>^`{|}", c) != NULL; }

/* %25 before 2e, 2f, 5c or 00, also if the percent sign is itself escaped again. */
static bool is_double_escape(const char *s)
{
    s += 3;
    while (s[0] == '2' && s[1] == '5')
        s += 2;
    int high = hex_value(s[0]), low = high < 0 ? -1 : hex_value(s[1]), v = low < 0 ? -1 : high * 16 + low;
    return v == '.' || v == '/' || v == '\\' || v == 0;
}

static const char *add_path_escape(const char *s, struct buf *out)
{
    int v = target_escaped_byte(s);
    if (v < 0)
        return "a percent sign without two hexadecimal digits";
    if (v < 0x20 || v == 0x7f)
        return "an escaped control character in the path";
    if (v == '\\')
        return "an escaped backslash in the path";
    if (is_unreserved(v))
        buf_addc(out, (char)v);
    else
        buf_addf(out, "%%%02X", (unsigned)v);
    return NULL;
}

/* Escapes in their only spelling. NULL, or what is wrong. */
static const char *unify_path(const char *path, struct buf *out)
{
    for (const char *s = path; *s; s++) {
        if ((unsigned char)*s <= 0x20 || (unsigned char)*s >= 0x7f)
            return "a space, a control character or a byte that is not ASCII in the path";
        if (*s == '\\')
            return "a backslash in the path";
        if (*s == '#' || *s == '?')
            return "a fragment in the target";
        if (*s == '%') {
            const char *why = add_path_escape(s, out);
            if (why)
                return why;
            s += 2;
        } else if (must_escape(*s)) {
            buf_addf(out, "%%%02X", (unsigned)*s);
        } else {
            buf_addc(out, *s);
        }
    }
    /* Check after decoding: "%252%65" is a double escape too. */
    for (const char *s = buf_str(out); (s = strstr(s, "%25")); s += 3)
        if (is_double_escape(s))
            return "a doubly escaped dot, slash, backslash or NUL in the path";
    return NULL;
}

static const char *unify_query(const char *query, struct buf *out)
{
    for (const char *s = query; *s; s++) {
        if ((unsigned char)*s <= 0x20 || (unsigned char)*s >= 0x7f)
            return "a space, a control character or a byte that is not ASCII in the query";
        if (*s == '#')
            return "a fragment in the target";
        if (*s == '%') {
            int v = target_escaped_byte(s);
            if (v <= 0)
                return v < 0 ? "a percent sign without two hexadecimal digits" : "an escaped NUL in the query";
            if (is_unreserved(v))
                buf_addc(out, (char)v);
            else
                buf_addf(out, "%%%02X", (unsigned)v);
            s += 2;
        } else if (must_escape(*s) || *s == '\\') {
            buf_addf(out, "%%%02X", (unsigned)*s);
        } else {
            buf_addc(out, *s);
        }
    }
    return NULL;
}

/* Takes out empty segments, "." and "..", in place; a slash at the end stays. false: ".." goes above the root. */
static bool target_resolve_dots(char *path)
{
    char *to = path; /* behind the last segment kept; path[0] is '/' */
    const char *s = path;
    bool slash = true; /* the last thing was a segment end */
    while (*s) {
        while (*s == '/')
            s++;
        size_t n = strcspn(s, "/");
        slash = n == 0;
        if (n == 1 && s[0] == '.') {
            slash = true;
        } else if (n == 2 && s[0] == '.' && s[1] == '.') {
            if (to == path)
                return false;
            do
                to--;
            while (*to != '/');
            slash = true;
        } else if (n > 0) {
            *to++ = '/';
            memmove(to, s, n);
            to += n;
        }
        s += n;
    }
    if (slash)
        *to++ = '/';
    *to = '\0';
    return true;
}

/* Characters that mean the same to all servers, escaped or not. */
static bool is_plain_delimiter(int c) { return c > 0 && strchr("!$&'()*+,=:@[]", c) != NULL; }

/* The path as it is judged: without escapes that make no difference. */
static char *judged_form(const char *path, size_t n)
{
    char *out = xmalloc(n + 1), *to = out;
    for (size_t i = 0; i < n; i++) {
        int v = path[i] == '%' ? target_escaped_byte(path + i) : -1;
        if (is_plain_delimiter(v)) {
            *to++ = (char)v;
            i += 2;
        } else {
            *to++ = path[i];
        }
    }
    *to = '\0';
    return out;
}

static char *slash_form(const char *path)
{
    char *out = xstrdup(path), *to = out;
    for (const char *s = path; *s; s++) {
        bool slash = s[0] == '%' && s[1] == '2' && s[2] == 'F';
        *to++ = slash ? '/' : *s;
        s += slash ? 2 : 0;
    }
    *to = '\0';
    return out;
}

static char *bare_form(const char *path)
{
    char *out = xstrdup(path), *to = out;
    for (const char *s = path; *s; s++) {
        if (*s == ';')
            s += strcspn(s, "/");
        if (!*s)
            break;
        *to++ = *s;
    }
    *to = '\0';
    return out;
}

static bool add_forms(struct netpol_target *t)
{
    _cleanup_free_ char *judged = judged_form(t->text, t->path_len);
    bool slashes = strstr(judged, "%2F") != NULL, params = strchr(judged, ';') != NULL;
    if (slashes) {
        t->decoded = slash_form(judged);
        if (!target_resolve_dots(t->decoded))
            return false;
    }
    if (params) {
        t->bare = bare_form(judged);
        if (!target_resolve_dots(t->bare))
            return false;
    }
    if (slashes && params) {
        _cleanup_free_ char *both = slash_form(judged);
        t->both = bare_form(both);
        if (!target_resolve_dots(t->both))
            return false;
    }
    if (strlen(judged) != t->path_len)
        t->judged = TAKE_PTR(judged);
    return true;
}

bool netpol_target(const char *path, const char *query, struct netpol_target *ret, const char **why)
{
    _cleanup_buf_ struct buf b = {0}, q = {0};
    *ret = (struct netpol_target){0};
    *why = NULL;
    if (strlen(path) + (query ? strlen(query) : 0) > NETPOL_TARGET_MAX)
        *why = "the target is longer than 16 KiB";
    else if (strcmp(path, "*") == 0 && !query)
        buf_addc(&b, '*');
    else if (path[0] != '/')
        *why = "the path does not begin with a slash";
    else if ((*why = unify_path(path, &b)) == NULL && !target_resolve_dots(b.p))
        *why = "the path goes above the root";
    if (!*why && query)
        *why = unify_query(query, &q);
    if (*why)
        return false;
    b.n = ret->path_len = strlen(b.p);
    if (query)
        buf_addf(&b, "?%s", buf_str(&q));
    ret->text = TAKE_PTR(b.p);
    b = (struct buf){0};
    if (!add_forms(ret)) {
        netpol_target_done(ret);
        *why = "the path goes above the root";
        return false;
    }
    return true;
}

void netpol_target_done(struct netpol_target *t)
{
    free(t->text);
    free(t->judged);
    free(t->decoded);
    free(t->bare);
    free(t->both);
    *t = (struct netpol_target){0};
}

/* --- patterns ----------------------------------------------------------------------------------------------------- */

/* A '*' becomes NETPOL_STAR; everything else goes the way of a path, so that both are compared in the same form. */
static const char *pattern_text(const char *text, struct buf *out)
{
    _cleanup_buf_ struct buf raw = {0};
    const char *why = unify_path(text, &raw);
    if (why)
        return why;
    if (strstr(raw.p, "%2F"))
        return "an escaped slash; a path is judged with it as a slash too, so write the pattern with \"/\" or \"*\"";
    for (char *s = raw.p; *s; s++)
        if (*s == '*')
            *s = NETPOL_STAR;
    _cleanup_free_ char *judged = judged_form(raw.p, raw.n);
    _cleanup_free_ char *resolved = xstrdup(judged);
    if (!target_resolve_dots(resolved) || strcmp(resolved, judged) != 0)
        return "\".\", \"..\" or \"//\", which no canonical path has";
    buf_adds(out, judged);
    return NULL;
}

static const char *split_pattern(struct netpol *p, struct netpol_path *ret)
{
    size_t n = 0;
    for (const char *s = ret->text; *s; s++)
        n += *s == '/';
    ret->segments = netpol_keep(p, n, sizeof ret->segments[0]);
    for (const char *s = ret->text; *s == '/';) {
        struct netpol_segment *seg = &ret->segments[ret->nsegments++];
        seg->text = ++s;
        seg->n = (uint16_t)strcspn(s, "/");
        seg->deep = seg->n == 2 && s[0] == NETPOL_STAR && s[1] == NETPOL_STAR;
        seg->stars = memchr(s, NETPOL_STAR, seg->n) != NULL;
        for (size_t i = 0; !seg->deep && i + 1 < seg->n; i++)
            if (s[i] == NETPOL_STAR && s[i + 1] == NETPOL_STAR)
                return "\"**\" stands for whole segments: /a/**, /a/**/b";
        ret->plain &= !seg->stars;
        s += seg->n;
    }
    return NULL;
}

const char *netpol_path_parse(struct netpol *p, const char *text, struct netpol_path *ret)
{
    _cleanup_buf_ struct buf b = {0};
    *ret = (struct netpol_path){.plain = true};
    if (text[0] != '/')
        return "a path must begin with \"/\"";
    if (strlen(text) > NETPOL_PATTERN_MAX)
        return "longer than 512 bytes";
    if (strchr(text, '?'))
        return "\"?\" begins a query, which has a key of its own: query: {name: value}";
    const char *why = pattern_text(text, &b);
    if (why)
        return why;
    ret->source = netpol_keep_text(p, text, strlen(text));
    ret->text = netpol_keep_text(p, b.p, b.n);
    ret->n = b.n;
    return split_pattern(p, ret);
}

bool netpol_glob_match(const char *pattern, size_t pn, const char *text, size_t n)
{
    size_t p = 0, t = 0, star = SIZE_MAX, mark = 0;
    while (t < n) {
        if (p < pn && pattern[p] == NETPOL_STAR) {
            star = p++;
            mark = t;
        } else if (p < pn && pattern[p] == text[t]) {
            p++;
            t++;
        } else if (star != SIZE_MAX) {
            p = star + 1;
            t = ++mark;
        } else {
            return false;
        }
    }
    while (p < pn && pattern[p] == NETPOL_STAR)
        p++;
    return p == pn;
}

static bool segment_match(const struct netpol_segment *seg, const char *text, size_t n)
{
    if (!seg->stars)
        return seg->n == n && memcmp(seg->text, text, n) == 0;
    return netpol_glob_match(seg->text, seg->n, text, n);
}

/* The start of the segment behind the one at `s`; n + 1 behind the last. */
static size_t next_segment(const char *path, size_t n, size_t s)
{
    const char *slash = memchr(path + s, '/', n - s);
    return slash ? (size_t)(slash - path) + 1 : n + 1;
}

bool netpol_path_match(const struct netpol_path *pattern, const char *path, size_t n)
{
    if (pattern->plain || path[0] != '/')
        return pattern->plain && pattern->n == n && memcmp(pattern->text, path, n) == 0;
    size_t k = 0, s = 1, deep = SIZE_MAX, mark = 0;
    while (s <= n) {
        size_t next = next_segment(path, n, s);
        if (k < pattern->nsegments && pattern->segments[k].deep) {
            if (k + 1 == pattern->nsegments)
                return true;
            deep = k++;
            mark = s;
        } else if (k < pattern->nsegments && segment_match(&pattern->segments[k], path + s, next - 1 - s)) {
            k++;
            s = next;
        } else if (deep != SIZE_MAX) {
            k = deep + 1;
            s = mark = next_segment(path, n, mark);
        } else {
            return false;
        }
    }
    while (k < pattern->nsegments && pattern->segments[k].deep)
        k++;
    return k == pattern->nsegments;
}
