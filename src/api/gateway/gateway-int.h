/* gateway-int.h - internals of the gateway: the check whether a request may reach a port, rewritten header fields in
 * both directions, the count of connections, and idle connections to services, kept for a few seconds.
 */
#ifndef HUTCH_API_GATEWAY_GATEWAY_INT_H
#define HUTCH_API_GATEWAY_GATEWAY_INT_H

#include "api/api.h"
#include "http/client.h"
#include "sandboxes/sandboxes.h"

/* --- keep.c --------------------------------------------------------------------------------------------------------- */

/* Keeps an idle connection for later requests; owns c from here on. */
void gateway_keep(struct loop *l, const char *id, uint32_t port, bool tls, struct client *c);
/* Hands a kept connection that is still open to the caller; NULL if there is none. The service may close it at any
 * moment, so use it only for requests that can be sent a second time. */
struct client *gateway_kept(const char *id, uint32_t port, bool tls);
/* Closes idle connections into a sandbox that has ended or is about to be paused. */
void gateway_forget(const char *id);

/* --- count.c --------------------------------------------------------------------------------------------------------- */

/* How many requests to a sandbox's services are under way. */
unsigned gateway_count(const char *id);
void gateway_count_up(const char *id);
void gateway_count_down(const char *id);

/* --- learn.c --------------------------------------------------------------------------------------------------------- */

/* Whether the service on this port is known to answer only to localhost. */
bool gateway_learned(const char *id, uint32_t port);
/* Remembers it, for at most SANDBOX_PORTS_MAX ports of a sandbox. */
void gateway_learn(const char *id, uint32_t port);
/* Forgets the ports of a sandbox that has ended. */
void gateway_unlearn(const char *id);
/* Whether an answer looks like a refusal of the name in Host, by one of the services that are known to do so. */
bool gateway_refuses_host(unsigned status, const struct http_fields *f);

/* --- head.c --------------------------------------------------------------------------------------------------------- */

/* The names of one exchange, for rewriting its header fields. */
struct gateway_names {
    uint32_t port;
    bool tls;         /* the service speaks TLS */
    bool fixed;       /* Host is what the owner of the sandbox chose */
    char host[300];   /* Host for the service; "": as the client sent it */
    char origin[320]; /* of the visitor: "https://3000-id.domain:7443" */
};
void gateway_names(const struct http_req *r, const struct sandbox *b, uint32_t port, struct gateway_names *ret);
/* From now on the service sees localhost:PORT as Host. */
void gateway_name_localhost(struct gateway_names *n);
/* Appends to out the Origin or Referer that the service gets instead. False: the value stays as it is. */
bool gateway_own_origin(const struct gateway_names *n, const char *value, struct buf *out);
/* A field of an answer, as proxy_options.answer_field has it; scratch belongs to the exchange. */
const char *gateway_answer_field(const struct gateway_names *n, const char *name, const char *value,
                                 struct buf *scratch);

/* --- enter.c -------------------------------------------------------------------------------------------------------- */

/* Whether this request may reach this port, and the parts of it that are meant for the gateway, not for the service. */
struct gateway_entry {
    bool allowed;
    bool welcome;        /* opened by a link: redirect to the address without it and set its cookie */
    uint64_t expires;    /* of that link, Unix time */
    const char *message; /* if not allowed: the error for clients; static */
    const char *hint;    /* and what a visitor can do about it; may be NULL */
    char *target;        /* path and query without our parameter; NULL: as it came. Owned, as are the next two */
    char *token;         /* of the link, if welcome */
    char *cookie;        /* Cookie without the gateway's own cookies; NULL: none left */
    bool cookies_ours;   /* Cookie held a cookie of the gateway: `cookie` replaces the field */
};
void gateway_enter(const struct api *api, const struct http_req *r, const struct sandbox *b, uint32_t port,
                   struct gateway_entry *ret);
void gateway_entry_done(struct gateway_entry *e);
/* Answers a request with a valid link: sets the cookie and redirects. */
void gateway_welcome(struct http_req *r, const struct gateway_names *n, const struct gateway_entry *e);

#endif
