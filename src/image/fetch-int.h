/* fetch-int.h - a small blocking HTTP client for registries, and what is said to them. */
#ifndef HUTCH_IMAGE_FETCH_INT_H
#define HUTCH_IMAGE_FETCH_INT_H

#include <openssl/ssl.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

#include "base/buf.h"
#include "base/err.h"
#include "http/http1.h"
#include "image/image-int.h"
#include "image/ref.h"
#include "policy/netpol.h"

enum {
    WEB_HOST_MAX = 256,
    WEB_TARGET_MAX = 8192,
    WEB_REDIRECTS_MAX = 5,
    WEB_TOKEN_MAX = 64 << 10,
    WEB_CONNECT_MS = 20000,
};

/* How slow a server may be before it is given up. A variable for the sake of tests. */
struct web_pace {
    unsigned silence_ms;   /* without a byte */
    unsigned window_ms;    /* in each of these of a connection ... */
    uint64_t window_bytes; /* ... so many bytes must come */
    unsigned total_ms;     /* of all connections together */
    uint64_t deadline_ms;  /* follows from it when the first one is made; 0 until then */
};
extern struct web_pace web_pace;

/* --- web.c: one connection, one request --------------------------------------------------------------------------- */

struct web_url {
    bool tls;
    char host[WEB_HOST_MAX]; /* without brackets */
    char authority[WEB_HOST_MAX + 8];
    uint16_t port;
    char target[WEB_TARGET_MAX];
};
/* Absolute http or https; pure. `base` (may be NULL) is where a target that begins with '/' belongs. */
int web_url_parse(const char *text, const struct web_url *base, struct web_url *ret, struct err *err);

/* Where connections may go. Reserved addresses never. This machine's own and what egress.infra lists only where the
 * operator's list of registries opens them: by the name that a URL has, or by the address that the listed registry has.
 * Private networks only for those who may, and if the registry itself is there: a public one leads nowhere else. */
struct web_reach {
    bool private;           /* the operator asks, or a tenant whose registry is listed */
    const char *registries; /* images.registries: "HOST[:PORT],..."; borrowed, may be NULL */
    struct netpol_reach machine;
    bool known;           /* the registry was connected to: */
    bool inside;          /* it is in a private network, or on this machine */
    bool listed;          /* it is one of `registries`, */
    struct in6_addr home; /* at this address */
};

struct web {
    int fd;
    SSL *ssl;
    struct buf in; /* read and not used yet, from `at` on */
    size_t at;
    struct http1_body body;
    unsigned status;
    uint64_t length; /* of the body, or HTTP_UNKNOWN */
    char media[128];
    char challenge[2048]; /* www-authenticate */
    char location[WEB_TARGET_MAX];
    char where[WEB_HOST_MAX + 8];              /* for messages */
    uint64_t last_ms, window_ms, window_bytes; /* of its pace: the last byte, and since the window began */
};
#define WEB_INIT  \
    {             \
        .fd = -1, \
    }
/* Connects, asks with GET, reads the head of the answer. `first`: this is the registry that the user named. */
int web_get(struct web *w, const struct web_url *u, const char *accept, const char *authorization, bool first,
            struct web_reach *reach, struct err *err);
/* The same for a POST with a body and these fields besides host and content-length. */
int web_post(struct web *w, const struct web_url *u, const struct http_field *fields, size_t n, const char *body,
             struct web_reach *reach, struct err *err);
/* Body bytes, borrowed until the next call; 0 at the end. */
ssize_t web_read(struct web *w, const void **ret, struct err *err);
/* The whole body; more than max is an error that says `what`. */
int web_read_all(struct web *w, size_t max, const char *what, struct buf *ret, struct err *err);
void web_close(struct web *w);
/* Loads the host's certificates and the addresses of this machine; before confinement. */
int web_prepare(struct err *err);
/* The addresses of this machine into `own` of a reach. */
void web_reach_own(struct web_reach *r);

/* --- fetch-auth.c ------------------------------------------------------------------------------------------------- */

enum auth_scheme { AUTH_NONE, AUTH_BASIC, AUTH_BEARER };
struct auth_challenge {
    enum auth_scheme scheme;
    char realm[1024], service[256], scope[512];
};
/* A www-authenticate value; pure. What is neither Basic nor Bearer is AUTH_NONE. */
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
/* Does what a 401 asks for: sets f->authorization. `scope` is what is needed if the challenge does not say. */
int fetch_authorize(struct fetch *f, const char *challenge, struct err *err);

/* --- fetch-cloud.c ------------------------------------------------------------------------------------------------ */

/* f->credentials from AWS: text is "aws:REGION:ENDPOINT\nACCESS KEY ID\nSECRET ACCESS KEY"; without an endpoint Amazon's of
 * that region. An endpoint is the operator's word and may be anywhere. */
int fetch_ecr(struct fetch *f, const char *text, struct err *err);

/* --- fetch-blob.c ------------------------------------------------------------------------------------------------- */

/* GET /v2/NAME/KIND/WHAT with everything that may come in between: authorization, redirects. The answer is 200. */
int fetch_open(struct fetch *f, const char *kind, const char *what, const char *accept, struct web *ret,
               struct err *err);
/* A manifest: its bytes and media type. digest: what it must be, or NULL. */
int fetch_manifest(struct fetch *f, const char *what, const uint8_t *digest, struct buf *ret, char media[128],
                   struct err *err);
/* A blob into the archive as blobs/sha256/<hex>; with `keep` its bytes too. */
int fetch_blob(struct fetch *f, const struct descriptor *d, const char *what, struct buf *keep, struct err *err);
/* A file of the archive whose bytes are here. */
int fetch_put(struct fetch *f, const char *name, const void *p, size_t n, struct err *err);

#endif
