/* socks.c - see socks.h. */
#include "egress/socks.h"

#include <string.h>

enum {
    METHOD_NONE = 0,
    METHOD_PASSWORD = 2,
    METHOD_REFUSED = 0xff,
    CMD_CONNECT = 1,
    ATYP_V4 = 1,
    ATYP_NAME = 3,
    ATYP_V6 = 4,
    REPLY_NOT_ALLOWED = 2,
    REPLY_UNREACHABLE = 4,
    REPLY_NO_COMMAND = 7,
    REPLY_NO_ATYP = 8,
    V4_GRANTED = 0x5a,
    V4_REFUSED = 0x5b,
};

static void socks5_reply(struct buf *out, unsigned char code)
{
    const unsigned char m[] = {5, code, 0, ATYP_V4, 0, 0, 0, 0, 0, 0};
    buf_add(out, m, sizeof m);
}

static void socks4_reply(struct buf *out, unsigned char code)
{
    const unsigned char m[8] = {0, code};
    buf_add(out, m, sizeof m);
}

static void set_v4(struct socks *s, const unsigned char *p)
{
    s->literal = true;
    memset(&s->addr, 0, sizeof s->addr);
    s->addr.s6_addr[10] = s->addr.s6_addr[11] = 0xff;
    memcpy(s->addr.s6_addr + 12, p, 4);
}

static uint16_t port_at(const unsigned char *p) { return (uint16_t)(p[0] << 8 | p[1]); }

static ssize_t socks5_refuse(struct buf *out, unsigned char code)
{
    socks5_reply(out, code);
    return -1;
}

/* VN CD PORT IP USERID NUL, and for 4a (IP 0.0.0.x) NAME NUL. */
static ssize_t socks4_request(struct socks *s, const unsigned char *p, size_t n, struct buf *reply)
{
    if (n < 9)
        return 0;
    const unsigned char *user_end = memchr(p + 8, 0, n - 8 > SOCKS_USER_MAX + 1 ? SOCKS_USER_MAX + 1 : n - 8);
    if (!user_end && n - 8 <= SOCKS_USER_MAX)
        return 0;
    if (!user_end || p[1] != CMD_CONNECT) {
        socks4_reply(reply, V4_REFUSED);
        return -1;
    }
    size_t used = (size_t)(user_end - p) + 1;
    s->port = port_at(p + 2);
    if (p[4] || p[5] || p[6] || !p[7]) {
        set_v4(s, p + 4);
    } else {
        size_t room = n - used;
        const unsigned char *end = memchr(p + used, 0, room > SOCKS_HOST_MAX ? SOCKS_HOST_MAX : room);
        if (!end && room < SOCKS_HOST_MAX)
            return 0;
        if (!end || end == p + used) {
            socks4_reply(reply, V4_REFUSED);
            return -1;
        }
        memcpy(s->host, p + used, (size_t)(end - (p + used)) + 1);
        used = (size_t)(end - p) + 1;
    }
    s->step = SOCKS_DONE;
    return (ssize_t)used;
}

static ssize_t socks5_greeting(struct socks *s, const unsigned char *p, size_t n, struct buf *reply)
{
    if (n < 2 || n < 2u + p[1])
        return 0;
    bool none = memchr(p + 2, METHOD_NONE, p[1]), password = memchr(p + 2, METHOD_PASSWORD, p[1]);
    const unsigned char m[] = {5, (unsigned char)(none ? METHOD_NONE : password ? METHOD_PASSWORD : METHOD_REFUSED)};
    buf_add(reply, m, sizeof m);
    if (!none && !password)
        return -1;
    s->step = none ? SOCKS_REQUEST : SOCKS_LOGIN;
    return 2 + p[1];
}

/* Accepts any user and password: the listener tells which sandbox it is. */
static ssize_t socks5_login(struct socks *s, const unsigned char *p, size_t n, struct buf *reply)
{
    if (n < 2 || n < 3u + p[1])
        return 0;
    size_t user = p[1], password = p[2 + user];
    if (n < 3 + user + password)
        return 0;
    if (p[0] != 1)
        return -1;
    const unsigned char m[] = {1, 0};
    buf_add(reply, m, sizeof m);
    s->step = SOCKS_REQUEST;
    return (ssize_t)(3 + user + password);
}

static ssize_t socks5_request(struct socks *s, const unsigned char *p, size_t n, struct buf *reply)
{
    if (n < 5)
        return 0;
    size_t len = p[3] == ATYP_V4 ? 4 : p[3] == ATYP_V6 ? 16 : p[3] == ATYP_NAME ? 1u + p[4] : 0;
    if (p[0] != 5 || p[2] != 0)
        return -1;
    if (p[1] != CMD_CONNECT)
        return socks5_refuse(reply, REPLY_NO_COMMAND);
    if (!len || len == 1)
        return socks5_refuse(reply, REPLY_NO_ATYP);
    if (n < 4 + len + 2)
        return 0;
    if (p[3] == ATYP_V4) {
        set_v4(s, p + 4);
    } else if (p[3] == ATYP_V6) {
        s->literal = true;
        memcpy(s->addr.s6_addr, p + 4, 16);
    } else {
        if (memchr(p + 5, 0, len - 1))
            return socks5_refuse(reply, REPLY_NO_ATYP);
        memcpy(s->host, p + 5, len - 1);
        s->host[len - 1] = '\0';
    }
    s->port = port_at(p + 4 + len);
    s->step = SOCKS_DONE;
    return (ssize_t)(4 + len + 2);
}

ssize_t socks_next(struct socks *s, const void *bytes, size_t n, struct buf *reply)
{
    const unsigned char *p = bytes;
    if (!n)
        return 0;
    switch (s->step) {
    case SOCKS_GREETING:
        s->version = p[0];
        return p[0] == 4 ? socks4_request(s, p, n, reply) : p[0] == 5 ? socks5_greeting(s, p, n, reply) : -1;
    case SOCKS_LOGIN:
        return socks5_login(s, p, n, reply);
    case SOCKS_REQUEST:
        return socks5_request(s, p, n, reply);
    case SOCKS_DONE:
        break;
    }
    return -1;
}

void socks_answer(const struct socks *s, enum socks_result r, struct buf *out)
{
    if (s->version == 4)
        socks4_reply(out, r == SOCKS_OK ? V4_GRANTED : V4_REFUSED);
    else
        socks5_reply(out, r == SOCKS_OK ? 0 : r == SOCKS_NOT_ALLOWED ? REPLY_NOT_ALLOWED : REPLY_UNREACHABLE);
}

/* --- client ------------------------------------------------------------------------------------------------------- */

enum { ASK_METHOD, ASK_LOGIN, ASK_CONNECT, ASK_DONE };

void socks_client_hello(const struct socks_client *c, struct buf *out)
{
    buf_add(out, "\x05\x01", 2);
    buf_addc(out, c->user[0] ? METHOD_PASSWORD : METHOD_NONE);
}

static void ask_login(const struct socks_client *c, struct buf *out)
{
    size_t user = strnlen(c->user, SOCKS_USER_MAX), password = strnlen(c->password, SOCKS_USER_MAX);
    buf_addc(out, 1);
    buf_addc(out, (char)user);
    buf_add(out, c->user, user);
    buf_addc(out, (char)password);
    buf_add(out, c->password, password);
}

static void ask_connect(struct socks_client *c, struct buf *out)
{
    bool v4 = IN6_IS_ADDR_V4MAPPED(&c->addr);
    buf_add(out, "\x05\x01\x00", 3);
    buf_addc(out, v4 ? ATYP_V4 : ATYP_V6);
    buf_add(out, c->addr.s6_addr + (v4 ? 12 : 0), v4 ? 4 : 16);
    buf_addc(out, (char)(c->port >> 8));
    buf_addc(out, (char)(c->port & 0xff));
    c->step = ASK_CONNECT;
}

static ssize_t connect_answer(struct socks_client *c, const unsigned char *p, size_t n, const char **why)
{
    static const char *const replies[] = {NULL,
                                          "the proxy failed",
                                          "the proxy does not allow this connection",
                                          "the proxy: network unreachable",
                                          "the proxy: host unreachable",
                                          "the proxy: connection refused",
                                          "the proxy: time to live exceeded"};
    if (n < 5)
        return 0;
    size_t len = p[3] == ATYP_V4 ? 4 : p[3] == ATYP_V6 ? 16 : p[3] == ATYP_NAME ? 1u + p[4] : 0;
    if (p[0] != 5 || !len) {
        *why = "the proxy's answer is not one of SOCKS 5";
        return -1;
    }
    if (p[1]) {
        *why = p[1] < sizeof replies / sizeof replies[0] ? replies[p[1]] : "the proxy refused";
        return -1;
    }
    if (n < 4 + len + 2)
        return 0;
    c->step = ASK_DONE;
    return (ssize_t)(4 + len + 2);
}

ssize_t socks_client_next(struct socks_client *c, const void *bytes, size_t n, struct buf *out, const char **why)
{
    const unsigned char *p = bytes;
    if (c->step == ASK_CONNECT)
        return connect_answer(c, p, n, why);
    if (n < 2)
        return 0;
    if (c->step == ASK_METHOD && p[0] == 5 && p[1] == METHOD_PASSWORD && c->user[0]) {
        ask_login(c, out);
        c->step = ASK_LOGIN;
        return 2;
    }
    if ((c->step == ASK_METHOD && p[0] == 5 && p[1] == METHOD_NONE) ||
        (c->step == ASK_LOGIN && p[0] == 1 && p[1] == 0)) {
        ask_connect(c, out);
        return 2;
    }
    *why = c->step == ASK_LOGIN ? "the proxy does not accept the user name or the password"
           : p[0] == 5          ? "the proxy wants another way to log in"
                                : "the proxy's answer is not one of SOCKS 5";
    return -1;
}

bool socks_client_done(const struct socks_client *c) { return c->step == ASK_DONE; }
