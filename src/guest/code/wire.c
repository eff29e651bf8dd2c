#include "guest/code/wire.h"

#include <stdint.h>
#include <string.h>

#include "base/sha256.h"

static const char delimiter[] = "<IDS|MSG>";

void wire_sign(const char *key, const struct wire_part parts[4], char ret[65])
{
    uint8_t pad[64] = {0}, digest[SHA256_BYTES];
    size_t n = strlen(key);
    struct sha256 h;
    memcpy(pad, key, n < sizeof pad ? n : sizeof pad);
    for (size_t i = 0; i < sizeof pad; i++)
        pad[i] ^= 0x36;
    sha256_start(&h);
    sha256_add(&h, pad, sizeof pad);
    for (size_t i = 0; i < 4; i++)
        sha256_add(&h, parts[i].p, parts[i].n);
    sha256_end(&h, digest);
    for (size_t i = 0; i < sizeof pad; i++)
        pad[i] ^= 0x36 ^ 0x5c;
    sha256_start(&h);
    sha256_add(&h, pad, sizeof pad);
    sha256_add(&h, digest, sizeof digest);
    sha256_end(&h, digest);
    sha256_text(digest, ret);
}

/* The length of the character of UTF-8 at p, or 0. No surrogates, nothing longer than needed. */
static size_t wire_character(const unsigned char *p, size_t n)
{
    if (p[0] < 0x80)
        return 1;
    size_t len = p[0] >= 0xf0 && p[0] <= 0xf4  ? 4
                 : p[0] >= 0xe0 && p[0] < 0xf0 ? 3
                 : p[0] >= 0xc2 && p[0] < 0xe0 ? 2
                                               : 0;
    if (len == 0 || len > n)
        return 0;
    for (size_t i = 1; i < len; i++)
        if ((p[i] & 0xc0) != 0x80)
            return 0;
    if ((p[0] == 0xe0 && p[1] < 0xa0) || (p[0] == 0xed && p[1] > 0x9f) || (p[0] == 0xf0 && p[1] < 0x90) ||
        (p[0] == 0xf4 && p[1] > 0x8f))
        return 0;
    return len;
}

/* The value of "\uXXXX" at p, or -1. */
static int wire_escape(const unsigned char *p, size_t n)
{
    int value = 0;
    if (n < 6 || p[0] != '\\' || p[1] != 'u')
        return -1;
    for (size_t i = 2; i < 6; i++) {
        int c = p[i], d = c >= '0' && c <= '9'                 ? c - '0'
                          : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10
                                                               : -1;
        if (d < 0)
            return -1;
        value = value * 16 + d;
    }
    return value;
}

/* One escape or character at p: how many bytes it has; *good: whether it may stay. */
static size_t wire_step(const unsigned char *p, size_t n, bool *good)
{
    *good = true;
    if (p[0] != '\\') {
        size_t len = wire_character(p, n);
        *good = len > 0;
        return *good ? len : 1;
    }
    int high = wire_escape(p, n);
    if (high < 0xd800 || high > 0xdfff)
        return n < 2 ? 1 : high >= 0 ? 6 : p[1] < 0x80 ? 2 : 1;
    int low = high < 0xdc00 ? wire_escape(p + 6, n - 6) : -1;
    *good = low >= 0xdc00 && low <= 0xdfff;
    return *good ? 12 : 6;
}

void wire_add_clean(struct buf *b, const char *p, size_t n)
{
    buf_reserve(b, n);
    size_t kept = 0, at = 0;
    while (at < n) {
        bool good;
        size_t len = wire_step((const unsigned char *)p + at, n - at, &good);
        if (!good) {
            buf_add(b, p + kept, at - kept);
            buf_adds(b, "\xef\xbf\xbd");
            kept = at + len;
        }
        at += len;
    }
    buf_add(b, p + kept, n - kept);
}

static json_t *wire_object(const struct wire_part *part)
{
    json_t *root = json_loadb(part->p, part->n, JSON_ALLOW_NUL, NULL);
    if (!root) {
        _cleanup_buf_ struct buf clean = {0};
        wire_add_clean(&clean, part->p, part->n);
        root = json_loadb(buf_str(&clean), clean.n, JSON_ALLOW_NUL, NULL);
    }
    if (!json_is_object(root)) {
        json_decref(root);
        return NULL;
    }
    return root;
}

/* The index of the delimiter if all frames follow it, otherwise n. */
static size_t wire_find_delimiter(const struct wire_part *parts, size_t n)
{
    for (size_t i = 0; i + 5 < n; i++)
        if (parts[i].n == sizeof delimiter - 1 && memcmp(parts[i].p, delimiter, parts[i].n) == 0)
            return i;
    return n;
}

static int wire_read_heads(const struct wire_part *at, struct wire_msg *ret, struct err *err)
{
    ret->header = wire_object(&at[2]);
    ret->parent = wire_object(&at[3]);
    ret->type = json_string_value(json_object_get(ret->header, "msg_type"));
    if (!ret->header || !ret->parent || !ret->type)
        return err_set(err, ERR_USAGE, 0, "a message of the kernel has no header that can be read");
    const char *id = json_string_value(json_object_get(ret->parent, "msg_id"));
    ret->parent_id = id ? id : "";
    return 0;
}

int wire_decode(const char *key, const struct wire_part *parts, size_t n, struct wire_msg *ret, struct err *err)
{
    char signature[65], given[65] = "";
    *ret = (struct wire_msg){0};
    size_t at = wire_find_delimiter(parts, n);
    if (at == n)
        return err_set(err, ERR_USAGE, 0, "a message of the kernel lacks frames");
    if (parts[at + 1].n != sizeof given - 1)
        return err_set(err, ERR_USAGE, 0, "a message of the kernel is not signed");
    memcpy(given, parts[at + 1].p, sizeof given - 1);
    wire_sign(key, &parts[at + 2], signature);
    if (!sha256_equal_text(signature, given))
        return err_set(err, ERR_USAGE, 0, "a message of the kernel has a wrong signature");
    if (wire_read_heads(&parts[at], ret, err) < 0) {
        wire_msg_done(ret);
        return -1;
    }
    if (parts[at + 5].n > WIRE_BYTES_MAX)
        return err_set(err, ERR_LIMIT, 0, "one output has %zu MiB; at most %d MiB are passed on", parts[at + 5].n >> 20,
                       WIRE_BYTES_MAX >> 20);
    ret->content = wire_object(&parts[at + 5]);
    if (!ret->content) {
        wire_msg_done(ret);
        return err_set(err, ERR_USAGE, 0, "the content of a message of the kernel is not a JSON object");
    }
    return 0;
}

bool wire_has_parent(const struct wire_part *parts, size_t n, const char *id)
{
    size_t at = wire_find_delimiter(parts, n), len = strlen(id);
    return at < n && len > 0 && memmem(parts[at + 3].p, parts[at + 3].n, id, len);
}

void wire_msg_done(struct wire_msg *m)
{
    json_decref(m->header);
    json_decref(m->parent);
    json_decref(m->content);
    *m = (struct wire_msg){0};
}

static int wire_append(const char *p, size_t n, void *arg)
{
    buf_add(arg, p, n);
    return 0;
}

void wire_encode(const char *key, const char *session, const char *id, const char *type, json_t *content,
                 struct wire_out *ret)
{
    *ret = (struct wire_out){0};
    json_t *header = json_pack("{ss ss ss ss ss ss}", "msg_id", id, "session", session, "username", "hutch", "date",
                               "1970-01-01T00:00:00Z", "msg_type", type, "version", "5.3");
    (void)json_dump_callback(header, wire_append, &ret->frame[0], JSON_COMPACT);
    buf_adds(&ret->frame[1], "{}");
    buf_adds(&ret->frame[2], "{}");
    (void)json_dump_callback(content, wire_append, &ret->frame[3], JSON_COMPACT);
    json_decref(header);
    json_decref(content);
    struct wire_part parts[4];
    for (size_t i = 0; i < 4; i++)
        parts[i] = (struct wire_part){buf_str(&ret->frame[i]), ret->frame[i].n};
    wire_sign(key, parts, ret->signature);
}

void wire_out_done(struct wire_out *o)
{
    for (size_t i = 0; i < 4; i++)
        buf_done(&o->frame[i]);
}
