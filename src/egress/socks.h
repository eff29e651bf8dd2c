/* socks.h - SOCKS 4, 4a and 5 as bytes: parses a client's messages and makes the answers, and the other way round for
 * an upstream SOCKS 5 proxy. Only CONNECT is supported. Reads and writes buffers only, never a socket. */
#ifndef HUTCH_EGRESS_SOCKS_H
#define HUTCH_EGRESS_SOCKS_H

#include <netinet/in.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/buf.h"

enum { SOCKS_HOST_MAX = 256, SOCKS_USER_MAX = 255 };

enum socks_step {
    SOCKS_GREETING, /* the first byte tells the version */
    SOCKS_LOGIN,    /* 5: a name and a password follow; any are accepted */
    SOCKS_REQUEST,  /* 5 */
    SOCKS_DONE,     /* host and port are known: answer with socks_answer() */
};

struct socks {
    enum socks_step step; /* 0 at first */
    unsigned version;     /* 4 or 5 */
    bool literal;
    struct in6_addr addr;      /* literal; IPv4 mapped */
    char host[SOCKS_HOST_MAX]; /* not literal: as it came */
    uint16_t port;
};

/* Takes one message from p[0..n) and appends the immediate reply, if any. >0: bytes taken; 0: more is needed; -1:
 * refused, with `reply` as far as the protocol has one. */
ssize_t socks_next(struct socks *s, const void *p, size_t n, struct buf *reply);

enum socks_result { SOCKS_OK, SOCKS_NOT_ALLOWED, SOCKS_UNREACHABLE };
void socks_answer(const struct socks *s, enum socks_result r, struct buf *out);

/* The client's side: asks a SOCKS 5 server for a connection. user "": no login. */
struct socks_client {
    const char *user, *password;
    struct in6_addr addr;
    uint16_t port;
    unsigned step;
};
void socks_client_hello(const struct socks_client *c, struct buf *out);
/* Takes one answer, appends the next message. >0: bytes taken; 0: more is needed; -1: *why says what it answered. */
ssize_t socks_client_next(struct socks_client *c, const void *p, size_t n, struct buf *out, const char **why);
bool socks_client_done(const struct socks_client *c);

#endif
