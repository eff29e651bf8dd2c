/* http1-head.c - parses heads of requests and answers in place. */
#include <string.h>
#include <strings.h>

#include "http/http1.h"

enum { C_TOKEN = 1, C_TARGET = 2, C_VALUE = 4, C_HOST = 8, C_DIGIT = 16 };

static unsigned char classes[256];

static __attribute__((constructor)) void head_fill_classes(void)
{
    for (int c = 0; c < 256; c++) {
        bool alnum = (c >= '0' && c <= '9') || ((c | 32) >= 'a' && (c | 32) <= 'z');
        unsigned char k = 0;
        if (alnum || (c != 0 && strchr("!#$%&'*+-.^_`|~", c)))
            k |= C_TOKEN;
        if (c > 0x20 && c < 0x7f && c != '#')
            k |= C_TARGET;
        if (c == '\t' || (c >= 0x20 && c != 0x7f))
            k |= C_VALUE;
        if (alnum || (c != 0 && strchr("-._~%", c)))
            k |= C_HOST;
        if (c >= '0' && c <= '9')
            k |= C_DIGIT;
        classes[c] = k;
    }
}

static bool head_char_is(char c, unsigned char class) { return classes[(unsigned char)c] & class; }

static size_t head_span(const char *p, size_t n, unsigned char class)
{
    size_t i = 0;
    while (i < n && head_char_is(p[i], class))
        i++;
    return i;
}

static int head_refuse(struct http1_bad *bad, unsigned status, const char *why)
{
    *bad = (struct http1_bad){status, why};
    return -1;
}

ssize_t http1_head_end(const char *p, size_t n, size_t *scan, struct http1_bad *bad)
{
    size_t i = *scan;
    if (n > 0 && i == 0 && !head_char_is(p[0], C_TOKEN))
        return head_refuse(bad, 400, "a message must begin with a token");
    for (;;) {
        const char *cr = memchr(p + i, '\r', n - i);
        size_t at = cr ? (size_t)(cr - p) : n;
        if (memchr(p + i, '\n', at - i))
            return head_refuse(bad, 400, "a line of the head ends in LF without CR");
        if (cr && at + 1 < n && p[at + 1] != '\n')
            return head_refuse(bad, 400, "the head has a CR without LF");
        bool whole = cr && at + 1 < n; /* a line that has its end */
        if ((whole ? at + 2 : n) > HTTP_HEAD_MAX)
            return memchr(p, '\r', HTTP_HEAD_MAX) ? head_refuse(bad, 431, "the head is longer than 64 KiB")
                                                  : head_refuse(bad, 414, "the first line is longer than 64 KiB");
        if (!whole) {
            *scan = at;
            return 0;
        }
        if (p[at - 1] == '\n')
            return (ssize_t)at + 2;
        i = at + 2;
    }
}

size_t http1_count_fields(const char *p, size_t n)
{
    size_t lines = 0;
    for (const char *end = p + n; (p = memchr(p, '\n', (size_t)(end - p))); p++)
        lines++;
    return lines < 2 ? 0 : lines - 2 > HTTP_FIELDS_MAX ? HTTP_FIELDS_MAX : lines - 2;
}

/* "name: value", its CRLF already turned into NUL; n without it. */
static int head_parse_field(char *p, size_t n, struct http_field *ret, struct http1_bad *bad)
{
    size_t name = 0;
    for (; name < n && head_char_is(p[name], C_TOKEN); name++)
        if (p[name] >= 'A' && p[name] <= 'Z')
            p[name] = (char)(p[name] | 32);
    if (name == 0 || name == n || p[name] != ':')
        return head_refuse(bad, 400,
                           name == 0 && (p[0] == ' ' || p[0] == '\t')
                               ? "a field is folded over two lines"
                               : "a field must be a name, at once a colon, a value");
    p[name] = '\0';
    size_t from = name + 1;
    if (head_span(p + from, n - from, C_VALUE) != n - from)
        return head_refuse(bad, 400, "the value of a field has a control character");
    while (from < n && (p[from] == ' ' || p[from] == '\t'))
        from++;
    while (n > from && (p[n - 1] == ' ' || p[n - 1] == '\t'))
        n--;
    p[n] = '\0';
    ret->name = p;
    ret->value = p + from;
    return 0;
}

/* All lines of [p, end), which ends with the empty one. */
static int head_parse_fields(char *p, char *end, struct http_field *fields, struct http1_head *h, struct http1_bad *bad)
{
    size_t count = 0;
    while (p < end - 2) {
        char *eol = memchr(p, '\r', (size_t)(end - p));
        if (!eol || eol[1] != '\n')
            return head_refuse(bad, 400, "the head has a CR without LF");
        if (count == HTTP_FIELDS_MAX)
            return head_refuse(bad, 431, "the head has more than 100 fields");
        *eol = '\0';
        if (head_parse_field(p, (size_t)(eol - p), &fields[count++], bad) < 0)
            return -1;
        p = eol + 2;
    }
    h->fields = (struct http_fields){fields, count};
    return 0;
}

/* "[v6]:port", "name:port" or without port. */
static bool head_host_is_valid(const char *s)
{
    size_t n = strlen(s), host;
    if (s[0] == '[') {
        size_t in = strspn(s + 1, "0123456789abcdefABCDEF:.");
        if (in < 2 || s[1 + in] != ']')
            return false;
        host = in + 2;
    } else {
        host = head_span(s, n, C_HOST);
    }
    if (host == 0)
        return false;
    if (host == n)
        return true;
    size_t port = n - host - 1;
    return s[host] == ':' && port <= 5 && head_span(s + host + 1, port, C_DIGIT) == port;
}

static bool head_parse_length(const char *s, uint64_t *ret)
{
    size_t n = strlen(s);
    uint64_t v = 0;
    if (n == 0 || n > 18 || head_span(s, n, C_DIGIT) != n)
        return false;
    for (; *s; s++)
        v = v * 10 + (uint64_t)(*s - '0');
    *ret = v;
    return true;
}

/* What the fields say about framing and the life of the connection. */
struct framing {
    const char *length, *coding, *host, *expect;
    bool close, keep_alive, upgrade, has_upgrade;
};

static void head_read_connection(const char *value, struct framing *f)
{
    while (*value) {
        size_t n = strcspn(value, ", \t");
        if (n == 5 && strncasecmp(value, "close", n) == 0)
            f->close = true;
        else if (n == 10 && strncasecmp(value, "keep-alive", n) == 0)
            f->keep_alive = true;
        else if (n == 7 && strncasecmp(value, "upgrade", n) == 0)
            f->upgrade = true;
        value += n;
        value += strspn(value, ", \t");
    }
}

static int head_set_once(const char **slot, const char *value, struct http1_bad *bad, const char *why)
{
    if (*slot)
        return head_refuse(bad, 400, why);
    *slot = value;
    return 0;
}

static int head_read_framing(const struct http1_head *h, struct framing *f, struct http1_bad *bad)
{
    for (size_t i = 0; i < h->fields.n; i++) {
        const char *name = h->fields.v[i].name, *value = h->fields.v[i].value;
        int r = 0;
        switch (name[0]) {
        case 'c':
            if (strcmp(name, "content-length") == 0)
                r = head_set_once(&f->length, value, bad, "content-length is given twice");
            else if (strcmp(name, "connection") == 0)
                head_read_connection(value, f);
            break;
        case 't':
            if (strcmp(name, "transfer-encoding") == 0)
                r = head_set_once(&f->coding, value, bad, "transfer-encoding is given twice");
            break;
        case 'h':
            if (strcmp(name, "host") == 0)
                r = head_set_once(&f->host, value, bad, "host is given twice");
            break;
        case 'e':
            if (strcmp(name, "expect") == 0)
                r = head_set_once(&f->expect, value, bad, "expect is given twice");
            break;
        case 'u':
            f->has_upgrade |= strcmp(name, "upgrade") == 0;
            break;
        default:
            break;
        }
        if (r < 0)
            return -1;
    }
    return 0;
}

static int head_apply_framing(struct http1_head *h, const struct framing *f, struct http1_bad *bad)
{
    h->keep_alive = !f->close && (h->version == 11 || f->keep_alive);
    h->declared = HTTP_UNKNOWN;
    h->framing = HTTP1_NONE;
    h->length = 0;
    if (f->coding && f->length)
        return head_refuse(bad, 400, "both content-length and transfer-encoding are given");
    if (f->coding) {
        if (h->version != 11)
            return head_refuse(bad, 400, "transfer-encoding needs HTTP/1.1");
        if (strcasecmp(f->coding, "chunked") != 0)
            return head_refuse(bad, 501, "transfer-encoding must be exactly: chunked");
        h->framing = HTTP1_CHUNKED;
        h->length = HTTP_UNKNOWN;
    } else if (f->length) {
        if (!head_parse_length(f->length, &h->declared))
            return head_refuse(bad, 400, "content-length must be a decimal number of at most 18 digits");
        h->length = h->declared;
        h->framing = h->length ? HTTP1_LENGTH : HTTP1_NONE;
    }
    return 0;
}

/* "HTTP/1.1" or "HTTP/1.0", n bytes. */
static int head_parse_version(const char *p, size_t n, unsigned *ret, struct http1_bad *bad)
{
    if (n != 8 || memcmp(p, "HTTP/", 5) != 0 || !head_char_is(p[5], C_DIGIT) || p[6] != '.' ||
        !head_char_is(p[7], C_DIGIT))
        return head_refuse(bad, 400, "the first line must name its version: HTTP/1.1");
    if (p[5] != '1' || p[7] > '1')
        return head_refuse(bad, 505, "the version must be HTTP/1.1 or HTTP/1.0");
    *ret = p[7] == '1' ? 11 : 10;
    return 0;
}

/* Splits the target into authority, path and query. It has been checked to be visible ASCII without '#'. */
static int head_parse_target(char *p, struct http1_head *h, struct http1_bad *bad)
{
    size_t n = strlen(p);
    if (strcmp(h->method, "CONNECT") == 0) {
        const char *colon = strrchr(p, ':');
        if (!head_host_is_valid(p) || !colon || colon[1] == '\0' || p[n - 1] == ']')
            return head_refuse(bad, 400, "the target of CONNECT must be host:port");
        h->authority = p;
        h->path = "";
        return 0;
    }
    if (strcmp(p, "*") == 0 && strcmp(h->method, "OPTIONS") == 0) {
        h->path = p;
        return 0;
    }
    if (p[0] != '/') {
        size_t scheme = strncasecmp(p, "http://", 7) == 0 ? 7 : strncasecmp(p, "https://", 8) == 0 ? 8 : 0;
        if (scheme == 0)
            return head_refuse(bad, 400, "the target must begin with '/'");
        h->scheme = scheme == 7 ? "http" : "https";
        size_t host = strcspn(p + scheme, "/?");
        /* Moved one to the left over the scheme, so that there is room for its NUL before the path. */
        char *authority = memmove(p + scheme - 1, p + scheme, host);
        p += scheme + host;
        p[-1] = '\0';
        if (!head_host_is_valid(authority))
            return head_refuse(bad, 400, "the host of the target is not valid");
        h->authority = authority;
    }
    char *query = strchr(p, '?');
    if (query) {
        *query = '\0';
        h->query = query + 1;
    }
    h->path = p[0] ? p : "/";
    return 0;
}

static int head_parse_request_line(char *p, size_t n, struct http1_head *h, struct http1_bad *bad)
{
    size_t method = head_span(p, n, C_TOKEN);
    if (method == 0 || method > HTTP1_METHOD_MAX || method == n || p[method] != ' ')
        return head_refuse(bad, 400, "the request line must be: method, one space, target, one space, version");
    char *target = p + method + 1;
    size_t len = head_span(target, n - method - 1, C_TARGET);
    if (len == 0 || method + 1 + len == n || target[len] != ' ')
        return head_refuse(bad, 400, "the target must be visible ASCII characters without '#', followed by one space");
    if (len > HTTP1_TARGET_MAX)
        return head_refuse(bad, 414, "the target is longer than 16 KiB");
    if (head_parse_version(target + len + 1, n - method - len - 2, &h->version, bad) < 0)
        return -1;
    p[method] = target[len] = '\0';
    h->method = p;
    return head_parse_target(target, h, bad);
}

/* `host` may leave out the target's port if it is implied: for CONNECT, whose target names it, and for http with
 * port 80. */
static bool head_same_place(const struct http1_head *h, const char *host)
{
    size_t n = strlen(host);
    if (strcasecmp(h->authority, host) == 0)
        return true;
    if (strncasecmp(h->authority, host, n) != 0 || h->authority[n] != ':' || (strchr(host, ':') && host[n - 1] != ']'))
        return false;
    return strcmp(h->method, "CONNECT") == 0 || strcmp(h->authority + n, ":80") == 0;
}

static int head_check_host(struct http1_head *h, const struct framing *f, struct http1_bad *bad)
{
    if (!f->host)
        return h->version == 11 ? head_refuse(bad, 400, "host is missing") : 0;
    if (!head_host_is_valid(f->host))
        return head_refuse(bad, 400, "the value of host is not a valid host and port");
    if (h->authority && !head_same_place(h, f->host))
        return head_refuse(bad, 400, "host differs from the host of the target");
    if (!h->authority)
        h->authority = f->host;
    return 0;
}

/* The end of the first line; NULL if the head cannot be split into lines. */
static char *head_first_line(char *p, size_t n)
{
    char *eol = n >= 4 && memcmp(p + n - 4, "\r\n\r\n", 4) == 0 ? memchr(p, '\r', n) : NULL;
    return eol && eol[1] == '\n' ? eol : NULL;
}

int http1_parse_request(char *p, size_t n, struct http_field *fields, struct http1_head *ret, struct http1_bad *bad)
{
    struct framing f = {0};
    *ret = (struct http1_head){0};
    char *eol = head_first_line(p, n);
    if (!eol)
        return head_refuse(bad, 400, "the head has a CR without LF");
    if (head_parse_request_line(p, (size_t)(eol - p), ret, bad) < 0 ||
        head_parse_fields(eol + 2, p + n, fields, ret, bad) < 0 || head_read_framing(ret, &f, bad) < 0 ||
        head_check_host(ret, &f, bad) < 0 || head_apply_framing(ret, &f, bad) < 0)
        return -1;
    if (f.expect && ret->version == 11) {
        if (strcasecmp(f.expect, "100-continue") != 0)
            return head_refuse(bad, 417, "expect must be: 100-continue");
        ret->expect_continue = ret->framing != HTTP1_NONE;
    }
    ret->upgrade = f.upgrade && f.has_upgrade && ret->version == 11;
    return 0;
}

static int head_parse_status_line(char *p, size_t n, struct http1_head *h, struct http1_bad *bad)
{
    if (n < 12 || p[8] != ' ' || head_parse_version(p, 8, &h->version, bad) < 0)
        return head_refuse(bad, 502, "the status line must be: HTTP/1.1, one space, three digits, one space, reason");
    if (head_span(p + 9, 3, C_DIGIT) != 3 || p[9] < '1' || p[9] > '5' || (n > 12 && p[12] != ' '))
        return head_refuse(bad, 502, "the status must be three digits from 100 to 599");
    if (head_span(p + 12, n - 12, C_VALUE) != n - 12)
        return head_refuse(bad, 502, "the reason has a control character");
    h->status = (unsigned)((p[9] - '0') * 100 + (p[10] - '0') * 10 + (p[11] - '0'));
    p[n] = '\0';
    h->reason = n > 13 ? p + 13 : "";
    return 0;
}

static void head_frame_response(struct http1_head *h, const char *method, const struct framing *f)
{
    bool tunnel = h->status == 101 || (strcmp(method, "CONNECT") == 0 && h->status / 100 == 2);
    bool never = h->status / 100 == 1 || h->status == 204 || tunnel;
    if (never && (f->coding || h->length != 0))
        h->keep_alive = false; /* its sender may believe in a body that we do not read */
    if (never || h->status == 304 || strcmp(method, "HEAD") == 0) {
        h->framing = tunnel ? HTTP1_TUNNEL : HTTP1_NONE;
        h->length = tunnel ? HTTP_UNKNOWN : 0;
    } else if (!f->coding && !f->length) {
        h->framing = HTTP1_CLOSE;
        h->length = HTTP_UNKNOWN;
    }
    if (h->framing == HTTP1_CLOSE || tunnel)
        h->keep_alive = false;
}

int http1_parse_response(char *p, size_t n, const char *method, struct http_field *fields, struct http1_head *ret,
                         struct http1_bad *bad)
{
    struct framing f = {0};
    *ret = (struct http1_head){0};
    char *eol = head_first_line(p, n);
    if (!eol)
        return head_refuse(bad, 502, "the head has a CR without LF");
    if (head_parse_status_line(p, (size_t)(eol - p), ret, bad) < 0 ||
        head_parse_fields(eol + 2, p + n, fields, ret, bad) < 0 || head_read_framing(ret, &f, bad) < 0 ||
        head_apply_framing(ret, &f, bad) < 0) {
        bad->status = 502;
        return -1;
    }
    ret->upgrade = f.upgrade && f.has_upgrade && ret->version == 11;
    head_frame_response(ret, method, &f);
    return 0;
}
