/* gateway.h - forwards HTTP and WebSocket requests to the services inside a sandbox, on every port that no other dialect
 * serves. It checks that a request may reach the port, dials the port through init and lets http/proxy.h do the exchange.
 * It never forwards the gateway's own tokens, link parameters or cookies, nor API keys of this node.
 */
#ifndef HUTCH_API_GATEWAY_GATEWAY_H
#define HUTCH_API_GATEWAY_GATEWAY_H

#include "api/api.h"

enum { GATEWAY_CONNECTIONS_MAX = 200 /* of one sandbox at a time */, GATEWAY_DIALS = 5, GATEWAY_DIAL_PAUSE_MS = 50 };

#define GATEWAY_COOKIE        "hutch-port"        /* over http */
#define GATEWAY_COOKIE_SECURE "__Host-hutch-port" /* over https: no other host can set it */

extern const struct api_dialect gateway_dialect;

#endif
