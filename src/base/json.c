#include "base/json.h"

#include <inttypes.h>
#include <string.h>

void json_start(struct json *j, struct buf *out) { *j = (struct json){.out = out}; }

/* Length of the well-formed UTF-8 sequence at s (n bytes left), or 0. */
static size_t utf8_len(const unsigned char *s, size_t n)
{
    if (s[0] < 0x80)
        return 1;
    size_t len = s[0] >= 0xf0 && s[0] <= 0xf4  ? 4
                 : s[0] >= 0xe0 && s[0] < 0xf0 ? 3
                 : s[0] >= 0xc2 && s[0] < 0xe0 ? 2
                                               : 0;
    if (len == 0 || len > n)
        return 0;
    for (size_t i = 1; i < len; i++)
        if ((s[i] & 0xc0) != 0x80)
            return 0;
    if ((s[0] == 0xe0 && s[1] < 0xa0) || (s[0] == 0xed && s[1] > 0x9f) || (s[0] == 0xf0 && s[1] < 0x90) ||
        (s[0] == 0xf4 && s[1] > 0x8f))
        return 0;
    return len;
}

bool json_may_hold(const char *text)
{
    const unsigned char *p = (const unsigned char *)text;
    for (size_t n = strlen(text), len; n > 0; p += len, n -= len)
        if ((len = utf8_len(p, n)) == 0)
            return false;
    return true;
}

/* How many bytes need no escape. */
static size_t json_plain_length(const unsigned char *s, size_t n)
{
    size_t i = 0;
    while (i < n && s[i] >= 0x20 && s[i] < 0x7f && s[i] != '"' && s[i] != '\\')
        i++;
    return i;
}

/* Without printf: hostile output may consist of such bytes. */
static void json_add_escape(struct buf *b, unsigned char c)
{
    static const char hex[] = "0123456789abcdef";
    const char text[] = {'\\', 'u', '0', '0', hex[c >> 4], hex[c & 15]};
    buf_add(b, text, sizeof text);
}

static void json_add_quoted(struct buf *b, const char *s, size_t n)
{
    const unsigned char *p = (const unsigned char *)s;
    buf_addc(b, '"');
    while (n > 0) {
        size_t len = json_plain_length(p, n);
        if (len > 0) {
            buf_add(b, p, len);
            p += len;
            n -= len;
            continue;
        }
        len = utf8_len(p, n);
        if (len == 0) {
            buf_adds(b, "\\ufffd");
            len = 1;
        } else if (*p == '"' || *p == '\\') {
            buf_addc(b, '\\');
            buf_addc(b, (char)*p);
        } else if (*p == '\n') {
            buf_adds(b, "\\n");
        } else if (*p < 0x20 || *p == 0x7f) {
            json_add_escape(b, *p);
        } else {
            buf_add(b, p, len);
        }
        p += len;
        n -= len;
    }
    buf_addc(b, '"');
}

static void json_begin_item(struct json *j, const char *key)
{
    if (j->comma & (1ULL << j->depth))
        buf_addc(j->out, ',');
    j->comma |= 1ULL << j->depth;
    if (key) {
        json_add_quoted(j->out, key, strlen(key));
        buf_addc(j->out, ':');
    }
}

static void open_level(struct json *j, const char *key, char c)
{
    json_begin_item(j, key);
    buf_addc(j->out, c);
    j->depth++;
    j->comma &= ~(1ULL << j->depth);
}

void json_obj(struct json *j, const char *key) { open_level(j, key, '{'); }
void json_arr(struct json *j, const char *key) { open_level(j, key, '['); }

void json_end_obj(struct json *j)
{
    j->depth--;
    buf_addc(j->out, '}');
}

void json_end_arr(struct json *j)
{
    j->depth--;
    buf_addc(j->out, ']');
}

void json_str(struct json *j, const char *key, const char *value)
{
    if (!value) {
        json_none(j, key);
        return;
    }
    json_text(j, key, value, strlen(value));
}

void json_text(struct json *j, const char *key, const char *p, size_t n)
{
    json_begin_item(j, key);
    json_add_quoted(j->out, p, n);
}

void json_u64(struct json *j, const char *key, uint64_t value)
{
    char text[24], *p = text + sizeof text;
    do
        *--p = (char)('0' + value % 10);
    while (value /= 10);
    json_begin_item(j, key);
    buf_add(j->out, p, (size_t)(text + sizeof text - p));
}

void json_i64(struct json *j, const char *key, int64_t value)
{
    json_begin_item(j, key);
    buf_addf(j->out, "%" PRId64, value);
}

void json_fixed(struct json *j, const char *key, uint64_t value, unsigned decimals)
{
    uint64_t scale = 1;
    for (unsigned i = 0; i < decimals; i++)
        scale *= 10;
    json_begin_item(j, key);
    if (decimals == 0)
        buf_addf(j->out, "%" PRIu64, value);
    else
        buf_addf(j->out, "%" PRIu64 ".%0*" PRIu64, value / scale, (int)decimals, value % scale);
}

void json_bool(struct json *j, const char *key, bool value)
{
    json_begin_item(j, key);
    buf_adds(j->out, value ? "true" : "false");
}

void json_none(struct json *j, const char *key)
{
    json_begin_item(j, key);
    buf_adds(j->out, "null");
}
