/* oauth.h - tokens of another issuer: a caller of /mcp may show a JWT instead of a key of this node.
 *
 * The operator names the issuer, where its keys are (a JWKS), and the audience that its tokens must have. The keys are
 * fetched when the first token comes, again every ten minutes while tokens come, and when a token names a key that is not
 * among them: at most every half minute, four times at once, for tokens whose unverified claims would do. A call waits for
 * one fetch. Keys that could not be fetched again for an hour are used no
 * more. docs/mcp.md describes it.
 */
#ifndef HUTCH_OAUTH_OAUTH_H
#define HUTCH_OAUTH_OAUTH_H

#include "base/buf.h"
#include "config/config.h"
#include "loop/loop.h"
#include "tenants/tenants.h"

enum {
    OAUTH_TOKEN_MAX = 8 << 10,    /* bytes of one token */
    OAUTH_JWKS_MAX = 256 << 10,   /* bytes of a set of keys */
    OAUTH_KEYS_MAX = 64,          /* keys that are used of it */
    OAUTH_WAITING_MAX = 256,      /* calls that wait for keys */
    OAUTH_FETCH_MS = 10 * 1000,   /* for one fetch */
    OAUTH_AGAIN_MS = 30 * 1000,   /* between two fetches, on average */
    OAUTH_AT_ONCE = 4,            /* fetches that may be nearer to each other */
    OAUTH_FRESH_MS = 600 * 1000,  /* then the keys are fetched again */
    OAUTH_STALE_MS = 3600 * 1000, /* then they count no more */
    OAUTH_SKEW_S = 60,            /* between the issuer's clock and ours */
};

struct oauth;
struct oauth_deps {
    struct loop *loop; /* all borrowed */
    const struct config *config;
    struct tenants *tenants;
};
/* NULL in *ret without oauth.issuer. trust: PEM roots, if the keys come over https; copied. */
int oauth_open(const struct oauth_deps *d, const struct buf *trust, struct oauth **ret, struct err *err);
/* Calls those that wait. NULL is fine. */
void oauth_free(struct oauth *o);

enum oauth_answer {
    OAUTH_NONE,      /* no bearer, or not a token */
    OAUTH_TAKEN,     /* *ret is the caller */
    OAUTH_LATER,     /* keys are being fetched: oauth_await() */
    OAUTH_REFUSED,   /* err says why */
    OAUTH_SCOPELESS, /* the token is good, but allows nothing here */
    OAUTH_NO_KEYS    /* the issuer's keys cannot be had now */
};
/* `waited`: oauth_await() called for this request before; then the answer is not OAUTH_LATER. */
enum oauth_answer oauth_check(struct oauth *o, const struct http_req *r, bool waited, struct principal *ret,
                              struct err *err);
/* Calls fn when the fetch under way has ended, well or not. False: too many wait. */
bool oauth_await(struct oauth *o, loop_fn *fn, void *arg);

/* --- the formats, for this room and tests -------------------- */

/* jwks.c: public keys. Entries that are not for signatures, or of kinds that we do not take, are left out. */
struct jwks;
int jwks_read(const char *text, size_t n, struct jwks **ret, struct err *err);
void jwks_free(struct jwks *set);

enum jwt_alg { JWT_RS256, JWT_ES256, JWT_EDDSA, JWT_NO_ALG };
/* The key for that algorithm; kid NULL: the only one there is. NULL: none. The pkey is an EVP_PKEY, borrowed. */
void *jwks_find(const struct jwks *set, enum jwt_alg alg, const char *kid);
enum jwt_alg jwt_alg_of(const char *name);

/* jwt.c: JSON Web Tokens in their compact form. */
struct jwt_rules {
    const char *issuer, *audience;
    uint64_t now; /* unix seconds */
};
struct jwt_claims {
    char tenant[40], subject[64]; /* subject: cut to what fits; "": none */
    unsigned scopes;              /* SCOPE_* */
};
/* 0: *ret. -1: *err. 1: signed by a key that is not in the set, and all else is unknown yet. */
int jwt_check(const char *token, const struct jwks *set, const struct jwt_rules *rules, struct jwt_claims *ret,
              struct err *err);
/* Whether its claims would do, the signature apart: a token that fails here is not worth a fetch. 0, or -1 and *err. */
int jwt_check_unsigned(const char *token, const struct jwt_rules *rules, struct err *err);
/* Whether it has the form of one: then it is none of our own keys. */
bool jwt_is_one(const char *token);

/* --- jwks-fetch.c: one GET of the keys, in the loop -------------------- */

struct fetch;
/* url must outlive it. trust may be empty for http. */
int fetch_new(struct loop *l, const char *url, const struct buf *trust, struct fetch **ret, struct err *err);
void fetch_free(struct fetch *f); /* no call comes after it; NULL is fine */
/* One at a time: done(arg, text, n, why); text NULL: it failed, and why says so. */
typedef void fetch_done(void *arg, const char *text, size_t n, const char *why);
void fetch_start(struct fetch *f, fetch_done *done, void *arg);

#endif
