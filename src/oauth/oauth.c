/* oauth.c - who a token speaks for: keeps the issuer's keys and maps claims to a tenant and scopes. */
#include "oauth/oauth.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#include "base/log.h"
#include "base/mem.h"

struct waiter {
    loop_fn *fn;
    void *arg;
};
struct oauth {
    struct oauth_deps d;
    struct fetch *fetch;
    struct jwks *keys; /* NULL: none yet */
    bool fetching, failed;
    uint64_t next_ms; /* loop time from which the next fetch keeps to the rate */
    uint64_t good_ms; /* of the last fetch that gave keys; 0: none */
    struct waiter waiting[OAUTH_WAITING_MAX];
    size_t nwaiting;
};

int oauth_open(const struct oauth_deps *d, const struct buf *trust, struct oauth **ret, struct err *err)
{
    *ret = NULL;
    if (!d->config->oauth_issuer)
        return 0;
    struct oauth *o = xcalloc(1, sizeof *o);
    o->d = *d;
    if (fetch_new(d->loop, d->config->oauth_jwks, trust, &o->fetch, err) < 0) {
        free(o);
        return err_wrap(err, "oauth.jwks");
    }
    *ret = o;
    return 0;
}

static void oauth_tell(struct oauth *o)
{
    struct waiter all[OAUTH_WAITING_MAX];
    size_t n = o->nwaiting;
    memcpy(all, o->waiting, n * sizeof *all);
    o->nwaiting = 0; /* a call may wait again */
    for (size_t i = 0; i < n; i++)
        all[i].fn(all[i].arg);
}

void oauth_free(struct oauth *o)
{
    if (!o)
        return;
    fetch_free(o->fetch);
    oauth_tell(o);
    jwks_free(o->keys);
    free(o);
}

static void oauth_on_fetched(void *arg, const char *text, size_t n, const char *why)
{
    struct oauth *o = arg;
    struct jwks *keys = NULL;
    struct err err = {0};
    struct log_line l;
    o->fetching = false;
    o->failed = !text || jwks_read(text, n, &keys, &err) < 0;
    if (!o->failed) {
        jwks_free(o->keys);
        o->keys = keys;
        o->good_ms = loop_now(o->d.loop);
    } else if (log_start(&l, LOG_LEVEL_WARN,
                         "the keys of oauth.jwks could not be fetched; tokens are refused without them")) {
        log_str(&l, "url", o->d.config->oauth_jwks);
        log_str(&l, "why", text ? err.msg : why);
        log_end(&l);
    }
    oauth_tell(o);
}

/* Begins a fetch unless too many were begun of late. */
static bool oauth_fetch(struct oauth *o)
{
    uint64_t now = loop_now(o->d.loop);
    if (o->fetching)
        return true;
    uint64_t next = (o->next_ms > now ? o->next_ms : now) + OAUTH_AGAIN_MS;
    if (next - now > OAUTH_AT_ONCE * (uint64_t)OAUTH_AGAIN_MS)
        return false;
    o->next_ms = next;
    o->fetching = true;
    fetch_start(o->fetch, oauth_on_fetched, o);
    return true;
}

bool oauth_await(struct oauth *o, loop_fn *fn, void *arg)
{
    if (!o->fetching || o->nwaiting == OAUTH_WAITING_MAX)
        return false;
    o->waiting[o->nwaiting++] = (struct waiter){fn, arg};
    return true;
}

static enum oauth_answer oauth_map(struct oauth *o, const struct jwt_claims *c, struct principal *ret, struct err *err)
{
    const char *id = c->tenant[0] ? c->tenant : o->d.config->oauth_tenant;
    struct tenant *t = id ? tenants_find(o->d.tenants, id) : NULL;
    if (!id)
        (void)err_set(err, ERR_USAGE, 0, "the token names no tenant: the claim \"hutch_tenant\" must have its id");
    else if (!t || t->closing)
        (void)err_set(err, ERR_USAGE, 0, "this node has no tenant \"%.39s\"", id);
    if (!t || t->closing)
        return OAUTH_REFUSED;
    if (!c->scopes) {
        (void)err_set(err, ERR_USAGE, 0, "the token has none of the scopes hutch:sandboxes, hutch:read, hutch:files");
        return OAUTH_SCOPELESS;
    }
    *ret = (struct principal){.tenant = t, .scopes = c->scopes};
    (void)snprintf(ret->key_id, sizeof ret->key_id, "token:%.16s", c->subject);
    return OAUTH_TAKEN;
}

/* What to do about keys that are missing: wait for a fetch, or say that they cannot be had. */
static enum oauth_answer oauth_want(struct oauth *o, bool waited, struct err *err)
{
    (void)err_set(err, ERR_HOST, 0, "the keys of the issuer cannot be fetched now; try again in half a minute");
    return !waited && oauth_fetch(o) ? OAUTH_LATER : OAUTH_NO_KEYS;
}

static enum oauth_answer oauth_check_token(struct oauth *o, const char *token, bool waited, struct principal *ret,
                                           struct err *err)
{
    struct jwt_claims claims;
    uint64_t age = loop_now(o->d.loop) - o->good_ms;
    const struct jwt_rules rules = {
        .issuer = o->d.config->oauth_issuer, .audience = o->d.config->oauth_audience, .now = (uint64_t)time(NULL)};
    bool stale = !o->keys || age >= OAUTH_STALE_MS;
    if ((stale || age >= OAUTH_FRESH_MS) && jwt_check_unsigned(token, &rules, err) < 0)
        return OAUTH_REFUSED;
    if (stale)
        return oauth_want(o, waited, err);
    if (age >= OAUTH_FRESH_MS && !waited)
        (void)oauth_fetch(o);
    int rc = jwt_check(token, o->keys, &rules, &claims, err);
    if (rc > 0 && jwt_check_unsigned(token, &rules, err) < 0)
        return OAUTH_REFUSED;
    if (rc > 0 && (!waited || o->failed))
        return oauth_want(o, waited, err);
    if (rc > 0)
        (void)err_set(err, ERR_USAGE, 0, "the token is signed with a key that its issuer does not publish");
    return rc ? OAUTH_REFUSED : oauth_map(o, &claims, ret, err);
}

enum oauth_answer oauth_check(struct oauth *o, const struct http_req *r, bool waited, struct principal *ret,
                              struct err *err)
{
    const char *bearer = http_field(&r->fields, "authorization");
    if (!bearer || strncasecmp(bearer, "bearer ", 7) != 0)
        return OAUTH_NONE;
    bearer += 7 + strspn(bearer + 7, " ");
    return jwt_is_one(bearer) ? oauth_check_token(o, bearer, waited, ret, err) : OAUTH_NONE;
}
