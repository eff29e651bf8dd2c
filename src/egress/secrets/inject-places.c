/* inject-places.c - finds placeholders in a request and puts values in their place. */
#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <strings.h>

#include "base/base64.h"
#include "base/cleanup.h"
#include "base/mem.h"
#include "egress/secrets/secrets-int.h"
#include "http/url.h"

enum { BASE64_RUN = 24 /* characters; a shorter run holds no placeholder */ };

bool place_refuse(struct inject_result *ret, enum netpol_reason reason, const char *fmt, ...)
{
    va_list ap;
    ret->reason = reason;
    va_start(ap, fmt);
    (void)vsnprintf(ret->text, sizeof ret->text, fmt, ap);
    va_end(ap);
    return false;
}

/* ---- looking ---- */

static bool place_in_base64(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '/' && c <= '9') || c == '+' || c == '-' ||
           c == '_' || c == '=';
}

/* Adds every run of base64 in a value, decoded. The text may begin at any position of a run, so all four alignments are
 * tried; a run that does not decode to its end is decoded up to its last whole group. */
static void place_add_decoded(struct buf *out, const char *value)
{
    for (const char *p = value; *p;) {
        size_t n = 0;
        while (place_in_base64(p[n]))
            n++;
        for (size_t skip = 0; n >= BASE64_RUN && skip < 4; skip++) {
            size_t left = n - skip;
            if (base64_decode(out, p + skip, left) || base64_decode(out, p + skip, left / 4 * 4))
                buf_addc(out, '\n');
        }
        p += n > 0 ? n : 1;
    }
}

static int place_hex_digit(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : isxdigit((unsigned char)c) ? tolower((unsigned char)c) - 'a' + 10 : -1;
}

/* Decodes percent escapes; anything else is copied as it is. */
static void place_add_unescaped(struct buf *out, const char *p, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        int high = p[i] == '%' && i + 2 < n ? place_hex_digit(p[i + 1]) : -1;
        int low = high >= 0 ? place_hex_digit(p[i + 2]) : -1;
        if (low < 0) {
            buf_addc(out, p[i]);
            continue;
        }
        buf_addc(out, (char)(high << 4 | low));
        i += 2;
    }
}

void places_text(const struct inject_request *q, struct buf *out)
{
    for (size_t i = 0; i < q->fields->n; i++) {
        buf_adds(out, q->fields->v[i].value);
        buf_addc(out, '\n');
        place_add_decoded(out, q->fields->v[i].value);
        if (strchr(q->fields->v[i].value, '%'))
            place_add_unescaped(out, q->fields->v[i].value, strlen(q->fields->v[i].value));
        buf_addc(out, '\n');
    }
    buf_add(out, buf_str(q->target), q->target->n);
    buf_addc(out, '\n');
    place_add_unescaped(out, buf_str(q->target), q->target->n);
    buf_addc(out, '\n');
    place_add_decoded(out, buf_str(q->target));
    if (q->body)
        buf_add(out, buf_str(q->body), q->body->n);
}

static bool place_has(const struct buf *b, const char *placeholder)
{
    return b->n > 0 && memmem(b->p, b->n, placeholder, strlen(placeholder));
}

void places_where(const struct inject_request *q, const char *placeholder, char *ret, size_t cap)
{
    for (size_t i = 0; i < q->fields->n; i++) {
        const struct http_field *f = &q->fields->v[i];
        _cleanup_buf_ struct buf plain = {0};
        place_add_decoded(&plain, f->value);
        place_add_unescaped(&plain, f->value, strlen(f->value));
        if (place_has(&plain, placeholder)) {
            (void)snprintf(ret, cap, "header '%.60s'", f->name);
            return;
        }
    }
    const char *target = buf_str(q->target), *mark = strchr(target, '?');
    size_t path_n = mark ? (size_t)(mark - target) : q->target->n;
    _cleanup_buf_ struct buf path = {0};
    place_add_unescaped(&path, target, path_n);
    if (place_has(&path, placeholder))
        (void)snprintf(ret, cap, "the path");
    else if (q->body && place_has(q->body, placeholder))
        (void)snprintf(ret, cap, "the body");
    else
        (void)snprintf(ret, cap, "the query");
}

/* ---- writing ---- */

bool place_used(struct inject_result *ret, const struct secret *s, const char *what, const char *detail)
{
    struct inject_use use = {0};
    (void)snprintf(use.name, sizeof use.name, "%s", s->name);
    (void)snprintf(use.at, sizeof use.at, "%s%s%s", what, detail ? ":" : "", detail ? detail : "");
    for (size_t i = 0; i < ret->nused; i++)
        if (strcmp(ret->used[i].name, use.name) == 0 && strcmp(ret->used[i].at, use.at) == 0)
            return true;
    if (ret->nused == ARRAY_LEN(ret->used))
        return place_refuse(ret, NETPOL_R_SECRET_UNBOUND,
                            "secrets at more than %zu places of one request are not put in", ARRAY_LEN(ret->used));
    ret->used[ret->nused++] = use;
    return true;
}

size_t place_substitute(struct buf *out, const char *p, size_t n, const char *from, const char *to, size_t to_n)
{
    size_t count = 0, from_n = strlen(from), left = n;
    for (const char *at = p; left >= from_n && (at = memmem(at, left, from, from_n)); count++) {
        at += from_n;
        left = n - (size_t)(at - p);
    }
    buf_room(out, n + count * to_n);
    for (size_t i = 0; i < count; i++) {
        const char *at = memmem(p, n, from, from_n);
        buf_add(out, p, (size_t)(at - p));
        buf_add(out, to, to_n);
        n -= (size_t)(at - p) + from_n;
        p = at + from_n;
    }
    buf_add(out, p, n);
    return count;
}

void place_drop(struct inject_request *q, const char *header)
{
    size_t kept = 0;
    for (size_t i = 0; i < q->fields->n; i++)
        if (strcmp(q->storage[i].name, header) != 0)
            q->storage[kept++] = q->storage[i];
    q->fields->n = kept;
}

/* A copy that lives as long as the request. */
static const char *place_keep(struct inject_request *q, const char *text)
{
    strv_add(q->keep, text);
    return q->keep->v[q->keep->n - 1];
}

bool place_field(struct inject_request *q, struct inject_result *ret, const char *header, const char *value)
{
    place_drop(q, header);
    if (strlen(value) > HTTP_HEAD_MAX)
        return place_refuse(ret, NETPOL_R_HEADER, "header '%s' would have %zu bytes; at most %d", header, strlen(value),
                            HTTP_HEAD_MAX);
    if (q->fields->n >= q->cap)
        return place_refuse(ret, NETPOL_R_HEADER, "the request has %zu headers; there is no room for '%s'",
                            q->fields->n, header);
    q->storage[q->fields->n++] = (struct http_field){place_keep(q, header), place_keep(q, value)};
    return true;
}

static bool place_fits_header(struct inject_result *ret, const struct secret *s, const struct buf *text)
{
    if (secret_fits_header(buf_str(text), text->n))
        return true;
    return place_refuse(ret, NETPOL_R_SECRET_UNBOUND,
                        "secret '%s' holds a control character (a newline at its end?), which cannot stand in a header",
                        s->name);
}

bool place_set(struct inject_request *q, struct inject_result *ret, const struct secret *s, const char *header,
               const struct buf *value, const char *what)
{
    return place_fits_header(ret, s, value) && place_field(q, ret, header, buf_str(value)) &&
           place_used(ret, s, what, header);
}

static bool place_replace_basic(struct inject_request *q, struct inject_result *ret, const struct secret *s, size_t i,
                                const char *placeholder)
{
    const char *value = q->storage[i].value;
    _cleanup_buf_ struct buf plain = {0};
    _cleanup_buf_wipe_ struct buf new = {0}, text = {0};
    if (strcmp(q->storage[i].name, "authorization") != 0 || strncasecmp(value, "basic ", 6) != 0)
        return true;
    value += 6 + strspn(value + 6, " ");
    if (!base64_decode(&plain, value, strlen(value)) ||
        place_substitute(&new, buf_str(&plain), plain.n, placeholder, s->value, s->n) == 0)
        return true;
    buf_room(&text, 6 + new.n / 3 * 4 + 8);
    buf_adds(&text, "Basic ");
    base64_encode(&text, new.p, new.n);
    q->storage[i].value = place_keep(q, text.p);
    return place_used(ret, s, "basic", q->storage[i].name);
}

static bool place_replace_header(struct inject_request *q, struct inject_result *ret, const struct secret *s, size_t i,
                                 const char *placeholder)
{
    const char *value = q->storage[i].value;
    _cleanup_buf_wipe_ struct buf new = {0};
    if (!strstr(value, placeholder) || secret_header_reserved(q->storage[i].name))
        return true;
    (void)place_substitute(&new, value, strlen(value), placeholder, s->value, s->n);
    if (!place_fits_header(ret, s, &new))
        return false;
    q->storage[i].value = place_keep(q, buf_str(&new));
    return place_used(ret, s, "header", q->storage[i].name);
}

static void place_set_target(struct inject_request *q, struct buf *new)
{
    buf_wipe(q->target);
    *q->target = *new;
    *new = (struct buf){0};
}

static bool place_replace_query(struct inject_request *q, struct inject_result *ret, const struct secret *s,
                                const char *placeholder)
{
    const char *target = buf_str(q->target), *mark = strchr(target, '?');
    _cleanup_buf_wipe_ struct buf new = {0}, value = {0}, query = {0};
    if (!mark || !strstr(mark, placeholder))
        return true;
    /* The path stays as it was judged. */
    buf_room(&value, 3 * s->n);
    url_encode(&value, s->value, s->n, "");
    (void)place_substitute(&query, mark, strlen(mark), placeholder, buf_str(&value), value.n);
    buf_room(&new, (size_t)(mark - target) + query.n);
    buf_add(&new, target, (size_t)(mark - target));
    buf_add(&new, query.p, query.n);
    place_set_target(q, &new);
    return place_used(ret, s, "query", NULL);
}

static bool place_type_is(const char *type, const char *word)
{
    size_t n = strlen(word);
    return type && strncasecmp(type, word, n) == 0 && (type[n] == '\0' || type[n] == ';' || type[n] == ' ');
}

/* application/json, and application/problem+json and the like. */
static bool place_is_json(const char *type)
{
    size_t n = type ? strcspn(type, "; ") : 0;
    return place_type_is(type, "application/json") || (n > 5 && strncasecmp(type + n - 5, "+json", 5) == 0);
}

static bool place_replace_body(struct inject_request *q, struct inject_result *ret, const struct secret *s,
                               const char *placeholder)
{
    const char *coding = http_field(q->fields, "content-encoding"), *type = http_field(q->fields, "content-type");
    _cleanup_buf_wipe_ struct buf new = {0}, value = {0};
    char length[24];
    if (!q->body || !place_has(q->body, placeholder) || (coding && strcasecmp(coding, "identity") != 0))
        return true;
    /* Escaped as the body's syntax requires: a quote in a value must not end a JSON string. */
    buf_room(&value, 6 * s->n);
    if (place_is_json(type))
        json_escape(&value, s->value, s->n, false);
    else if (place_type_is(type, "application/x-www-form-urlencoded"))
        url_encode(&value, s->value, s->n, "");
    else
        buf_add(&value, s->value, s->n);
    (void)place_substitute(&new, q->body->p, q->body->n, placeholder, buf_str(&value), value.n);
    if (new.n > 2 * SECRET_BODY_MAX)
        return place_refuse(ret, NETPOL_R_BODY, "with secret '%s' put in, the body has %zu bytes; at most %d", s->name,
                            new.n, 2 * SECRET_BODY_MAX);
    buf_wipe(q->body);
    *q->body = new;
    new = (struct buf){0};
    (void)snprintf(length, sizeof length, "%zu", q->body->n);
    place_drop(q, "transfer-encoding");
    return place_field(q, ret, "content-length", length) && place_used(ret, s, "body", NULL);
}

bool place_replace(struct inject_request *q, struct inject_result *ret, const struct secret *s, const char *placeholder)
{
    for (size_t i = 0; i < q->fields->n; i++)
        if (((s->spec.in & SECRET_IN_BASIC) && !place_replace_basic(q, ret, s, i, placeholder)) ||
            ((s->spec.in & SECRET_IN_HEADER) && !place_replace_header(q, ret, s, i, placeholder)))
            return false;
    return (!(s->spec.in & SECRET_IN_QUERY) || place_replace_query(q, ret, s, placeholder)) &&
           (!(s->spec.in & SECRET_IN_BODY) || place_replace_body(q, ret, s, placeholder));
}

void place_drop_pairs(struct inject_request *q, bool (*drop)(const char *key, const void *arg), const void *arg)
{
    const char *target = buf_str(q->target), *at = strchr(target, '?');
    _cleanup_buf_wipe_ struct buf new = {0};
    char next = '?';
    if (!at)
        return;
    buf_add(&new, target, (size_t)(at - target));
    for (size_t n; *at; at += n) {
        n = strcspn(++at, "&");
        _cleanup_buf_ struct buf key = {0};
        place_add_unescaped(&key, at, strcspn(at, "=&"));
        if (n == 0 || drop(buf_str(&key), arg))
            continue;
        buf_addc(&new, next);
        buf_add(&new, at, n);
        next = '&';
    }
    place_set_target(q, &new);
}

static bool place_is_key(const char *key, const void *arg) { return strcmp(key, arg) == 0; }

bool place_param(struct inject_request *q, struct inject_result *ret, const struct secret *s)
{
    _cleanup_buf_wipe_ struct buf new = {0};
    place_drop_pairs(q, place_is_key, s->spec.param);
    buf_room(&new, q->target->n + 3 * (strlen(s->spec.param) + s->n) + 2);
    buf_add(&new, buf_str(q->target), q->target->n);
    buf_addc(&new, strchr(new.p, '?') ? '&' : '?');
    url_encode(&new, s->spec.param, strlen(s->spec.param), "");
    buf_addc(&new, '=');
    url_encode(&new, s->value, s->n, "");
    place_set_target(q, &new);
    return place_used(ret, s, "query", s->spec.param);
}
