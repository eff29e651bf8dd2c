/* gateway-int.h - inside of the gateway: who may enter, the heads of both directions, its own answers, and idle connections
 * to services, kept for a few seconds.
 */
#ifndef HUTCH_FRONT_GATEWAY_INT_H
#define HUTCH_FRONT_GATEWAY_INT_H

#include "front/boxes.h"
#include "http/client.h"

/* --- gateway-keep.c ------------------------------------------------------------------------------------------------- */

/* Takes over an idle client. */
void gateway_keep(struct loop *l, const char *id, uint32_t port, bool tls, struct client *c);
/* One that was kept and is still open, now the caller's; NULL if there is none. It may turn out to be closed all the same:
 * only for requests that can be sent a second time. */
struct client *gateway_kept(const char *id, uint32_t port, bool tls);

/* --- gateway-head.c ------------------------------------------------------------------------------------------------- */

/* What the heads of one exchange need to know. */
struct gateway_names {
    uint32_t port;
    bool tls;         /* the service speaks TLS */
    char host[300];   /* Host for the service; "": as the client sent it */
    char origin[320]; /* of the visitor: "https://3000-id.domain:7443" */
};
void gateway_names(const struct http_req *r, const struct box *b, uint32_t port, struct gateway_names *ret);
/* Origin or Referer as the service shall see them: appended to out. False: it stays as it is. */
bool gateway_own_origin(const struct gateway_names *n, const char *value, struct buf *out);
/* A field of an answer, as proxy_options.answer_field has it; scratch belongs to the exchange. */
const char *gateway_answer_field(const struct gateway_names *n, const char *name, const char *value,
                                 struct buf *scratch);

/* --- gateway-enter.c ------------------------------------------------------------------------------------------------ */

/* May this request see this port? And what of it is ours and goes no further. */
struct gateway_entry {
    bool allowed;
    bool welcome;        /* a link was opened: answer with its cookie and the same address without it */
    uint64_t expires;    /* of that link, Unix time */
    const char *message; /* if not allowed: for clients, static; */
    const char *hint;    /* and what a visitor can do about it */
    char *target;        /* path and query without our parameter; NULL: as it came. Owned, as are the next two */
    char *token;         /* of the link, if welcome */
    char *cookie;        /* what is left of Cookie; NULL: nothing is left */
    bool cookies_ours;   /* some of them were: `cookie` replaces the field */
};
void gateway_enter(const struct front *f, const struct http_req *r, const struct box *b, uint32_t port,
                   struct gateway_entry *ret);
void gateway_entry_done(struct gateway_entry *e);
/* Answers a request whose link was good. */
void gateway_welcome(struct http_req *r, const struct gateway_names *n, const struct gateway_entry *e);

/* --- gateway-page.c ------------------------------------------------------------------------------------------------- */

/* hint: a sentence for people, may be NULL. limit: of connections, 0 if that is not the trouble. */
void gateway_refuse(struct http_req *r, unsigned status, const char *sandbox, uint32_t port, unsigned limit,
                    const char *message, const char *hint);

#endif
