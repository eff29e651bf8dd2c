/* port-link.h - signed links that open one port of a sandbox. */
#ifndef HUTCH_API_PORT_LINK_H
#define HUTCH_API_PORT_LINK_H

#include "api/api.h"

#define PORT_LINK_PARAM "hutch-link" /* the query parameter that carries the token */

enum { PORT_LINK_MAX = 80 /* bytes of a token */ };

/* Makes a token that opens this port of this sandbox until it expires or the sandbox's links are revoked. */
void port_link_make(const struct api *api, const struct sandbox *b, uint32_t port, uint64_t expires_unix,
                    struct buf *out);
enum port_link { PORT_LINK_BAD, PORT_LINK_EXPIRED, PORT_LINK_GOOD };
enum port_link port_link_check(const struct api *api, const struct sandbox *b, uint32_t port, const char *token,
                               uint64_t now_unix, uint64_t *ret_expires);
/* "https://3000-ID.DOMAIN" by the node's configuration; port 0: with "{port}" in its place. */
void port_link_url(const struct api *api, const char *id, uint32_t port, struct buf *out);

#endif
