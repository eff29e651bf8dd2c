#include "http/blocking-via.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/base64.h"
#include "base/cleanup.h"
#include "base/fd.h"
#include "base/mem.h"
#include "base/num.h"
#include "http/url.h"

#define DEFAULT_PORT "1080"
enum { LOGIN_MAX = 1024, SCHEME_SHOWN = 20, ADDRESS_BYTES = 16 };

/* --- how a proxy is written --------------------------------------------------------------------------------------- */

static int via_bad(const char *what, struct err *err)
{
    return err_set(err, ERR_USAGE, 0, "%s must be http://[USER:PASSWORD@]HOST[:PORT]", what);
}

static int via_read_login(const char *what, const char *text, size_t n, struct blocking_via *ret, struct err *err)
{
    _cleanup_buf_ struct buf plain = {0}, value = {0};
    struct err ignored;
    if (n > LOGIN_MAX || url_decode(text, n, URL_PLUS_LITERAL, &plain, &ignored) < 0)
        return err_set(err, ERR_USAGE, 0, "%s: the user or the password is too long, or has a '%%' that is no escape",
                       what);
    if (!memchr(plain.p ? plain.p : "", ':', plain.n))
        buf_addc(&plain, ':');
    buf_adds(&value, "Basic ");
    base64_encode(&value, plain.p, plain.n);
    ret->login = xstrdup(buf_str(&value));
    explicit_bzero(plain.p, plain.n);
    return 0;
}

static int via_read_host(const char *what, const char *text, struct blocking_via *ret, struct err *err)
{
    size_t n = strcspn(text, "/");
    bool six = text[0] == '[';
    const char *end = six ? memchr(text, ']', n) : memchr(text, ':', n);
    size_t name = end ? (size_t)(end - text) - six : n, used = name + (six ? 2 : 0);
    int port;
    if ((six && !end) || name == 0 || name >= sizeof ret->host || (used < n && text[used] != ':') ||
        (used < n && (n - used < 2 || n - used > sizeof ret->port)))
        return via_bad(what, err);
    (void)snprintf(ret->host, sizeof ret->host, "%.*s", (int)name, text + six);
    (void)snprintf(ret->port, sizeof ret->port, "%.*s", used < n ? (int)(n - used - 1) : (int)strlen(DEFAULT_PORT),
                   used < n ? text + used + 1 : DEFAULT_PORT);
    struct in6_addr a;
    if ((six && inet_pton(AF_INET6, ret->host, &a) != 1) || !num_int(ret->port, 1, 65535, &port) ||
        (!six && strspn(ret->host, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_") != name))
        return via_bad(what, err);
    return 0;
}

int blocking_via_read(const char *what, const char *url, struct blocking_via *ret, struct err *err)
{
    const char *rest = strstr(url, "://");
    *ret = (struct blocking_via){0};
    if (rest && (rest - url != 4 || strncasecmp(url, "http", 4) != 0)) {
        int shown = rest - url < SCHEME_SHOWN ? (int)(rest - url) : 0;
        if (strspn(url, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789") != (size_t)shown)
            return via_bad(what, err);
        return err_set(err, ERR_USAGE, 0, "%s: proxies of the kind '%.*s' are not supported; it must be http://...",
                       what, shown, url);
    }
    rest = rest ? rest + 3 : url;
    const char *at = strrchr(rest, '@');
    if (at && via_read_login(what, rest, (size_t)(at - rest), ret, err) < 0)
        return -1;
    return via_read_host(what, at ? at + 1 : rest, ret, err);
}

/* --- hosts without it --------------------------------------------------------------------------------------------- */

/* An address as bytes; returns how many, 0: this is none. */
static size_t via_address(const char *text, size_t n, unsigned char ret[ADDRESS_BYTES])
{
    char copy[INET6_ADDRSTRLEN];
    if (n > 1 && text[0] == '[' && text[n - 1] == ']') {
        text++;
        n -= 2;
    }
    if (n >= sizeof copy)
        return 0;
    (void)snprintf(copy, sizeof copy, "%.*s", (int)n, text);
    return inet_pton(AF_INET, copy, ret) == 1 ? 4 : inet_pton(AF_INET6, copy, ret) == 1 ? ADDRESS_BYTES : 0;
}

static bool via_is_in_block(const unsigned char *address, size_t size, const char *entry, size_t n)
{
    unsigned char block[ADDRESS_BYTES];
    char digits[4] = "";
    int bits = (int)size * 8;
    const char *slash = memchr(entry, '/', n);
    size_t head = slash ? (size_t)(slash - entry) : n;
    if (slash) {
        (void)snprintf(digits, sizeof digits, "%.*s", (int)(n - head - 1 < 4 ? n - head - 1 : 0), slash + 1);
        if (!num_int(digits, 0, bits, &bits))
            return false;
    }
    if (via_address(entry, head, block) != size)
        return false;
    for (int i = 0; i < bits; i += 8) {
        unsigned char mask = bits - i >= 8 ? 0xff : (unsigned char)(0xff << (8 - (bits - i)));
        if ((address[i / 8] ^ block[i / 8]) & mask)
            return false;
    }
    return true;
}

/* Whether a name is the entry's, or below it. A dot at either end of the entry means nothing, as in curl. */
static bool via_is_below(const char *host, size_t size, const char *entry, size_t n)
{
    if (n && entry[0] == '.')
        entry++, n--;
    n -= n && entry[n - 1] == '.';
    return n && n <= size && strncasecmp(host + size - n, entry, n) == 0 && (n == size || host[size - n - 1] == '.');
}

bool blocking_via_excepts(const char *list, const char *host)
{
    unsigned char address[ADDRESS_BYTES];
    size_t n = strlen(host), numeric = via_address(host, n, address);
    n -= n && host[n - 1] == '.';
    for (const char *p = list; *p;) {
        p += strspn(p, ", \t");
        size_t k = strcspn(p, ", \t");
        if ((k == 1 && *p == '*') || (numeric ? via_is_in_block(address, numeric, p, k) : via_is_below(host, n, p, k)))
            return true;
        p += k;
    }
    return false;
}

/* --- CONNECT ------------------------------------------------------------------------------------------------------ */

int blocking_via_connect(struct blocking *b, const struct blocking_via *v, const char *target)
{
    _cleanup_buf_ struct buf head = {0};
    http1_add_request(&head, "CONNECT", target, target);
    http1_add_field(&head, "user-agent", "hutch/" HUTCH_VERSION);
    if (v->login)
        http1_add_field(&head, "proxy-authorization", v->login);
    http1_add_end(&head);
    int r = blocking_send(b, head.p, head.n);
    explicit_bzero(head.p, head.n);
    if (r < 0 || blocking_read_head(b, "CONNECT") < 0 || b->answer.status / 100 != 2)
        return -1;
    if (b->at != b->in.n) { /* before TLS the target has nothing to say: these bytes are the proxy's */
        b->why = "bytes follow the proxy's answer to CONNECT";
        b->failure = BLOCKING_NOT_HTTP;
        return -1;
    }
    struct blocking_pace *pace = b->pace;
    int fd = TAKE_FD(b->fd);
    blocking_close(b);
    blocking_start(b, fd, pace);
    return 0;
}
