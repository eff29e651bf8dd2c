/* gateway-int.h - inside of the gateway: idle connections to services, kept for a few seconds. */
#ifndef HUTCH_FRONT_GATEWAY_INT_H
#define HUTCH_FRONT_GATEWAY_INT_H

#include "front/boxes.h"
#include "http/client.h"

/* Takes over an idle client. */
void gateway_keep(struct loop *l, const char *id, uint32_t port, bool tls, struct client *c);
/* One that was kept and is still open, now the caller's; NULL if there is none. It may turn out to be closed all the same:
 * only for requests that can be sent a second time. */
struct client *gateway_kept(const char *id, uint32_t port, bool tls);

#endif
