/* gateway.h - HTTP to the services inside a sandbox: every port but envd's. */
#ifndef HUTCH_FRONT_GATEWAY_H
#define HUTCH_FRONT_GATEWAY_H

#include "front/api.h"

enum { GATEWAY_CONNECTIONS_MAX = 200 /* of one sandbox at a time */, GATEWAY_DIALS = 5, GATEWAY_DIAL_PAUSE_MS = 50 };

/* b may be NULL: there is no such sandbox. */
void gateway_handle(struct api_call *c, const struct api_target *t, struct box *b);
/* Answers with the error body of the data plane: JSON, or a small page if a browser is navigating. port 0: not named. */
void gateway_error(struct http_req *r, unsigned status, const char *sandbox, uint32_t port, const char *message);
void gateway_no_sandbox(struct http_req *r, const char *sandbox);
/* The sandbox has ended: idle connections into it are closed, for they would keep its network alive. */
void gateway_forget(const char *id);
/* Whether this request for c->port may wake a box that is paused: it would be let in. */
bool gateway_may_wake(const struct api_call *c, const struct box *b);

/* --- gateway-link.c: signed links ----------------------------------------------------------------------------------- */

#define GATEWAY_LINK_PARAM    "hutch-link"
#define GATEWAY_COOKIE        "hutch-port"        /* over http */
#define GATEWAY_COOKIE_SECURE "__Host-hutch-port" /* over https: no other host can set it */

enum { GATEWAY_LINK_MAX = 80 /* bytes of a token */ };

/* A token that opens this port of this sandbox until then, as long as nobody revokes the links. */
void gateway_link_make(const struct front *f, const struct box *b, uint32_t port, uint64_t expires_unix,
                       struct buf *out);
enum gateway_link { GATEWAY_LINK_BAD, GATEWAY_LINK_EXPIRED, GATEWAY_LINK_GOOD };
enum gateway_link gateway_link_check(const struct front *f, const struct box *b, uint32_t port, const char *token,
                                     uint64_t now_unix, uint64_t *ret_expires);
/* "https://3000-ID.DOMAIN" by the node's configuration; port 0: with "{port}" in its place. */
void gateway_url(const struct front *f, const char *id, uint32_t port, struct buf *out);

#endif
