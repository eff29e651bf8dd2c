/* http1-write.c - writes heads and chunk lines. */
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/cleanup.h"
#include "http/http1.h"

const char *http_reason(unsigned status)
{
    static const struct {
        unsigned status;
        const char *reason;
    } known[] = {
        {100, "Continue"},
        {101, "Switching Protocols"},
        {103, "Early Hints"},
        {200, "OK"},
        {201, "Created"},
        {202, "Accepted"},
        {204, "No Content"},
        {205, "Reset Content"},
        {206, "Partial Content"},
        {301, "Moved Permanently"},
        {302, "Found"},
        {303, "See Other"},
        {304, "Not Modified"},
        {307, "Temporary Redirect"},
        {308, "Permanent Redirect"},
        {400, "Bad Request"},
        {401, "Unauthorized"},
        {402, "Payment Required"},
        {403, "Forbidden"},
        {404, "Not Found"},
        {405, "Method Not Allowed"},
        {406, "Not Acceptable"},
        {407, "Proxy Authentication Required"},
        {408, "Request Timeout"},
        {409, "Conflict"},
        {410, "Gone"},
        {411, "Length Required"},
        {412, "Precondition Failed"},
        {413, "Content Too Large"},
        {414, "URI Too Long"},
        {415, "Unsupported Media Type"},
        {416, "Range Not Satisfiable"},
        {417, "Expectation Failed"},
        {421, "Misdirected Request"},
        {422, "Unprocessable Content"},
        {425, "Too Early"},
        {426, "Upgrade Required"},
        {428, "Precondition Required"},
        {429, "Too Many Requests"},
        {431, "Request Header Fields Too Large"},
        {500, "Internal Server Error"},
        {501, "Not Implemented"},
        {502, "Bad Gateway"},
        {503, "Service Unavailable"},
        {504, "Gateway Timeout"},
        {505, "HTTP Version Not Supported"},
        {507, "Insufficient Storage"},
    };
    for (size_t i = 0; i < ARRAY_LEN(known); i++)
        if (known[i].status == status)
            return known[i].reason;
    return "Unknown";
}

void http1_add_request(struct buf *b, const char *method, const char *target, const char *host)
{
    buf_adds(b, method);
    buf_addc(b, ' ');
    buf_adds(b, target);
    buf_adds(b, " HTTP/1.1\r\n");
    http1_add_field(b, "host", host);
}

void http1_add_status(struct buf *b, unsigned status)
{
    char code[16] = "HTTP/1.1 000 ";
    code[9] = (char)('0' + status / 100 % 10);
    code[10] = (char)('0' + status / 10 % 10);
    code[11] = (char)('0' + status % 10);
    buf_add(b, code, 13);
    buf_adds(b, http_reason(status));
    buf_add(b, "\r\n", 2);
}

void http1_add_field(struct buf *b, const char *name, const char *value)
{
    buf_adds(b, name);
    buf_add(b, ": ", 2);
    buf_adds(b, value);
    buf_add(b, "\r\n", 2);
}

bool http1_is_hop(const char *name)
{
    static const char *const hop[] = {"connection", "keep-alive", "proxy-connection",  "te",
                                      "trailer",    "trailers",   "transfer-encoding", "upgrade"};
    for (size_t i = 0; i < ARRAY_LEN(hop); i++)
        if (strcmp(name, hop[i]) == 0)
            return true;
    return false;
}

bool http1_has_token(const struct http_fields *f, const char *name, const char *token)
{
    size_t len = strlen(token);
    for (size_t i = 0; i < f->n; i++) {
        if (strcmp(f->v[i].name, name) != 0)
            continue;
        for (const char *p = f->v[i].value; *p; p += strspn(p, ", \t")) {
            size_t n = strcspn(p, ", \t");
            if (n == len && strncasecmp(p, token, n) == 0)
                return true;
            p += n;
        }
    }
    return false;
}

void http1_add_framing(struct buf *b, enum http1_framing framing, uint64_t length)
{
    if (framing == HTTP1_CHUNKED)
        buf_adds(b, "transfer-encoding: chunked\r\n");
    else if (framing == HTTP1_LENGTH)
        buf_addf(b, "content-length: %llu\r\n", (unsigned long long)length);
}

void http1_add_end(struct buf *b) { buf_add(b, "\r\n", 2); }

size_t http1_chunk_line(char line[HTTP1_CHUNK_LINE], size_t n)
{
    return (size_t)snprintf(line, HTTP1_CHUNK_LINE, "%zx\r\n", n);
}
