/* fetch-int.h - the registry protocol and its way to the blocking HTTP client, shared by web.c and fetch*.c.
 * Connects only to addresses that struct web_reach allows, and sends credentials only to the registry that the user
 * named. */
#ifndef HUTCH_IMAGE_FETCH_INT_H
#define HUTCH_IMAGE_FETCH_INT_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

#include "base/buf.h"
#include "base/err.h"
#include "http/blocking.h"
#include "image/image-int.h"
#include "image/ref.h"
#include "policy/net/netpol.h"

enum {
    WEB_HOST_MAX = 256,
    WEB_TARGET_MAX = 8192,
    WEB_REDIRECTS_MAX = 5,
    WEB_TOKEN_MAX = 64 << 10,
    WEB_CONNECT_MS = 20000,
};

/* How slow a registry may be before the worker gives up. Tests change it. */
extern struct blocking_pace web_pace;

/* --- web.c: one connection, one request --------------------------------------------------------------------------- */

struct web_url {
    bool tls;
    char host[WEB_HOST_MAX]; /* without brackets */
    char authority[WEB_HOST_MAX + 8];
    uint16_t port;
    char target[WEB_TARGET_MAX];
};
/* Parses an absolute http or https URL; pure. `base` (may be NULL): what a text that begins with '/' is relative to. */
int web_url_parse(const char *text, const struct web_url *base, struct web_url *ret, struct err *err);

/* Where connections may go. Reserved addresses: never. This machine's own addresses and those in egress.infra: only if
 * the operator's list of registries has the URL's host, or the address is that of the listed registry. Private
 * networks: only with `private`, and only if the registry itself is there, so that a public registry cannot redirect
 * into one. */
struct web_reach {
    bool private;           /* for the operator, or for a tenant whose registry is listed */
    const char *registries; /* images.registries: "HOST[:PORT],..."; borrowed, may be NULL */
    struct netpol_reach machine;
    bool known;           /* the registry was connected to: */
    bool inside;          /* it is in a private network, or on this machine */
    bool listed;          /* it is one of `registries`, */
    struct in6_addr home; /* at this address */
};

struct web {
    struct blocking http;
    unsigned status;
    uint64_t length; /* of the body, or HTTP_UNKNOWN */
    char media[128];
    char challenge[2048]; /* www-authenticate */
    char location[WEB_TARGET_MAX];
    char where[WEB_HOST_MAX + 8]; /* for messages */
};
#define WEB_INIT               \
    {                          \
        .http = BLOCKING_INIT, \
    }
/* Connects, sends a GET, reads the head of the answer. `first`: this is the registry that the user named. */
int web_get(struct web *w, const struct web_url *u, const char *accept, const char *authorization, bool first,
            struct web_reach *reach, struct err *err);
/* The same for a POST with a body and these fields besides host and content-length. */
int web_post(struct web *w, const struct web_url *u, const struct http_field *fields, size_t n, const char *body,
             struct web_reach *reach, struct err *err);
/* Body bytes, borrowed until the next call; 0 at the end. */
ssize_t web_read(struct web *w, const void **ret, struct err *err);
/* Reads the whole body; more than max bytes are an error that names `what`. */
int web_read_all(struct web *w, size_t max, const char *what, struct buf *ret, struct err *err);
void web_close(struct web *w);
/* Loads the host's certificates and the addresses of this machine; before confinement. */
int web_prepare(struct err *err);
/* Sets the machine's own addresses in r->machine. */
void web_reach_own(struct web_reach *r);

/* --- fetch-auth.c ------------------------------------------------------------------------------------------------- */

enum auth_scheme { AUTH_NONE, AUTH_BASIC, AUTH_BEARER };
struct auth_challenge {
    enum auth_scheme scheme;
    char realm[1024], service[256], scope[512];
};
/* Parses a www-authenticate value; pure. Any scheme but Basic and Bearer is AUTH_NONE. */
void auth_parse(const char *value, struct auth_challenge *ret);

struct fetch {
    struct image_ref ref;
    struct web_url registry; /* target unused */
    struct web_reach reach;
    char credentials[24 << 10]; /* "user:password", or "" */
    struct buf authorization;   /* the field to send to the registry, or empty */
    struct archive *out;
    uint64_t done, total, max;
};
/* Answers the challenge of a 401: sets f->authorization. Asks for pull access if the challenge names no scope. */
int fetch_authorize(struct fetch *f, const char *challenge, struct err *err);

/* --- fetch-cloud.c ------------------------------------------------------------------------------------------------ */

/* Gets f->credentials from AWS: text is "aws:REGION:ENDPOINT\nACCESS KEY ID\nSECRET ACCESS KEY"; an empty endpoint is
 * Amazon's of that region. The operator sets the endpoint, so it may be anywhere. */
int fetch_ecr(struct fetch *f, const char *text, struct err *err);

/* --- fetch-blob.c ------------------------------------------------------------------------------------------------- */

/* GET /v2/NAME/KIND/WHAT, with authorization and redirects; succeeds only with status 200. */
int fetch_open(struct fetch *f, const char *kind, const char *what, const char *accept, struct web *ret,
               struct err *err);
/* Fetches a manifest: its bytes and media type. digest: the expected one, or NULL. */
int fetch_manifest(struct fetch *f, const char *what, const uint8_t *digest, struct buf *ret, char media[128],
                   struct err *err);
/* Fetches a blob into the archive as blobs/sha256/<hex>; with `keep` also its bytes. */
int fetch_blob(struct fetch *f, const struct descriptor *d, const char *what, struct buf *keep, struct err *err);
/* Writes a file with these bytes to the archive. */
int fetch_put(struct fetch *f, const char *name, const void *p, size_t n, struct err *err);

#endif
