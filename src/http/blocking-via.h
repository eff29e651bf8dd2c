/* blocking-via.h - an HTTP proxy between the blocking client and a server, as variables like HTTPS_PROXY name it: how it is
 * written, which hosts are asked without it (NO_PROXY), and CONNECT. */
#ifndef HUTCH_HTTP_BLOCKING_VIA_H
#define HUTCH_HTTP_BLOCKING_VIA_H

#include "base/err.h"
#include "http/blocking.h"

struct blocking_via {
    char host[256], port[8]; /* host without brackets */
    char *login;             /* the value of proxy-authorization; NULL: none. Owned, until the program ends */
};

/* Reads [http://][USER[:PASSWORD]@]HOST[:PORT]; user and password may have percent-escapes, the port is 1080 as curl has
 * it. ERR_USAGE names `what` and never the value, which may hold a password. */
int blocking_via_read(const char *what, const char *url, struct blocking_via *ret, struct err *err);
/* Whether a list like NO_PROXY has the host: "*", names (and all below them), addresses, blocks of addresses. What is none
 * of these is passed over. */
bool blocking_via_excepts(const char *list, const char *host);
/* Asks the proxy, at the other end of a connection that has begun, for one to `target` (HOST:PORT). 0: the bytes that
 * follow are the target's. -1: `failure`, or the refusal is b->answer. */
int blocking_via_connect(struct blocking *b, const struct blocking_via *v, const char *target);

#endif
