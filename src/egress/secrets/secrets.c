/* secrets.c - the vault: values by tenant and name, in locked memory (lockmem.h).
 *
 * Owns every struct secret and the cache of automata made from their values. A replaced or removed secret is wiped at
 * once, also from that cache; an answer that is still being read keeps its automaton until it ends.
 */
#include "egress/secrets/secrets-int.h"

#include <stdlib.h>

#include "base/base64.h"
#include "base/cleanup.h"
#include "base/log.h"
#include "base/mem.h"
#include "egress/secrets/lockmem.h"
#include "egress/secrets/seal.h"

enum { CACHED = 32 };

struct cached {
    struct redact_set *set; /* NULL: free */
    uint64_t serials[REDACT_VALUES_MAX];
    size_t n;
};
struct secrets {
    unsigned char *key; /* SEAL_KEY bytes in locked memory; NULL: values come in plain */
    struct map by_key;  /* tenant/name -> struct secret */
    uint64_t serial;    /* of the newest */
    size_t bytes;       /* of all values */
    struct cached cache[CACHED];
    size_t next; /* place that is replaced next */
    bool told;   /* logged that memory is not locked */
};

static void secrets_tell_unlocked(struct secrets *v)
{
    if (lockmem_unlocked() && !v->told)
        log_text(LOG_LEVEL_WARN, "secrets cannot be locked in memory and may be swapped out; raise LimitMEMLOCK");
    v->told = lockmem_unlocked();
}

struct secrets *secrets_new(const unsigned char *private_key)
{
    struct secrets *v = xcalloc(1, sizeof *v);
    if (private_key) {
        v->key = lockmem_new(SEAL_KEY);
        memcpy(v->key, private_key, SEAL_KEY);
    }
    secrets_tell_unlocked(v);
    return v;
}

static void secret_free(struct secret *s)
{
    if (!s)
        return;
    lockmem_free(s->value, s->n);
    secret_spec_done(&s->spec);
    free(s->tenant);
    free(s->key);
    free(s);
}

static void secrets_drop_cached(struct secrets *v, uint64_t serial)
{
    for (size_t i = 0; i < CACHED; i++) {
        struct cached *c = &v->cache[i];
        for (size_t k = 0; c->set && k < c->n; k++)
            if (c->serials[k] == serial) {
                redact_set_unref(c->set);
                c->set = NULL;
            }
    }
}

static void secrets_take_out(struct secrets *v, struct secret *s)
{
    (void)map_del(&v->by_key, s->key);
    v->bytes -= s->n;
    secrets_drop_cached(v, s->serial);
    secret_free(s);
}

void secrets_free(struct secrets *v)
{
    if (!v)
        return;
    size_t at = 0;
    for (struct secret *s; (s = map_next(&v->by_key, &at));)
        secret_free(s);
    for (size_t i = 0; i < CACHED; i++)
        redact_set_unref(v->cache[i].set);
    map_done(&v->by_key);
    lockmem_free(v->key, SEAL_KEY);
    free(v);
}

/* The length comes first, so that two pairs of tenant and name never make the same context. */
char *secret_context(const char *tenant, const char *name)
{
    return xasprintf("hutch secret %zu:%s/%s", strlen(tenant), tenant, name);
}

char *secret_proxy_context(const char *address, const char *user)
{
    return xasprintf("hutch upstream proxy %zu:%s/%s", strlen(address), address, user);
}

int secrets_proxy_password(const struct secrets *v, const char *sealed, const char *address, const char *user,
                           char ret[SECRET_PROXY_PASSWORD_MAX + 1], struct err *err)
{
    _cleanup_free_ char *context = secret_proxy_context(address, user);
    _cleanup_buf_ struct buf bytes = {0};
    _cleanup_buf_wipe_ struct buf plain = {0};
    if (!v)
        return err_set(err, ERR_POLICY, 0, "this process was given no key");
    if (!base64_decode(&bytes, sealed, strlen(sealed)) || seal_open(v->key, context, bytes.p, bytes.n, &plain, err) < 0)
        return err_set(err, ERR_POLICY, 0, "it does not open for this address and user");
    if (plain.n == 0 || plain.n > SECRET_PROXY_PASSWORD_MAX || memchr(plain.p, 0, plain.n))
        return err_set(err, ERR_POLICY, 0, "it has not 1 to %d bytes", SECRET_PROXY_PASSWORD_MAX);
    memcpy(ret, plain.p, plain.n);
    ret[plain.n] = '\0';
    return 0;
}

/* ---- front's message ---- */

static int secrets_open_value(const struct secrets *v, struct secret *s, const char *sealed, size_t n, struct err *err)
{
    _cleanup_free_ char *context = secret_context(s->tenant, s->name);
    _cleanup_buf_wipe_ struct buf bytes = {0}, plain = {0};
    if (n > (SECRET_VALUE_MAX + SEAL_OVERHEAD) * 4 / 3 + 8)
        return err_set(err, ERR_POLICY, 0, "sealed: too long for a value of at most %d bytes", SECRET_VALUE_MAX);
    if (!base64_decode(&bytes, sealed, n))
        return err_set(err, ERR_POLICY, 0, "sealed: not base64");
    if (!v->key)
        buf_add(&plain, bytes.p, bytes.n);
    else if (seal_open(v->key, context, bytes.p, bytes.n, &plain, err) < 0)
        return -1;
    if (plain.n == 0 || plain.n > SECRET_VALUE_MAX)
        return err_set(err, ERR_POLICY, 0, "the value has %zu bytes; 1 to %d are possible", plain.n, SECRET_VALUE_MAX);
    s->value = lockmem_new(plain.n);
    s->n = plain.n;
    memcpy(s->value, plain.p, plain.n);
    return 0;
}

static int secrets_read_message(const struct secrets *v, const json_t *m, struct secret *s, struct err *err)
{
    const json_t *sealed = json_object_get(m, v->key ? "sealed" : "value"), *revision = json_object_get(m, "revision");
    if (!json_is_integer(revision) || json_integer_value(revision) < 0)
        return err_set(err, ERR_POLICY, 0, "revision: expected a number");
    s->revision = (uint64_t)json_integer_value(revision);
    if (secret_spec_parse(json_object_get(m, "spec"), &s->spec, err) < 0)
        return -1;
    if (!sealed && s->spec.type == SECRET_HEADERS)
        return 0;
    if (!json_is_string(sealed))
        return err_set(err, ERR_POLICY, 0, "sealed: expected a text in base64");
    return secrets_open_value(v, s, json_string_value(sealed), json_string_length(sealed), err);
}

/* Checks the limits, not counting the secret that is replaced. */
static int secrets_check_room(const struct secrets *v, const struct secret *old, const struct secret *s,
                              struct err *err)
{
    if (!old && v->by_key.n >= SECRETS_MAX)
        return err_set(err, ERR_POLICY, 0, "%d secrets are there already, which is the limit of a node", SECRETS_MAX);
    if (v->bytes - (old ? old->n : 0) + s->n > SECRETS_BYTES_MAX)
        return err_set(err, ERR_POLICY, 0, "the values of all secrets exceed %d bytes, the limit of a node",
                       SECRETS_BYTES_MAX);
    return 0;
}

int secrets_put(struct secrets *v, const json_t *message, struct err *err)
{
    const char *tenant = json_string_value(json_object_get(message, "tenant"));
    const char *name = json_string_value(json_object_get(message, "name"));
    if (!tenant || strlen(tenant) >= sizeof((struct esb *)0)->tenant)
        return err_set(err, ERR_POLICY, 0, "tenant: missing or too long");
    if (!name || !secret_name_valid(name))
        return err_set(err, ERR_POLICY, 0,
                       "name: missing, or not a secret's name: letters, digits, '_', '-', '.', at most %d",
                       SECRET_NAME_MAX - 1);
    struct secret *s = xcalloc(1, sizeof *s);
    s->tenant = xstrdup(tenant);
    s->key = xasprintf("%s/%s", tenant, name);
    s->name = s->key + strlen(tenant) + 1;
    s->seen = true;
    struct secret *old = map_get(&v->by_key, s->key);
    if (secrets_read_message(v, message, s, err) < 0 || secrets_check_room(v, old, s, err) < 0) {
        secret_free(s);
        return err_wrap(err, "secret '%s'", name);
    }
    if (old && old->revision > s->revision) {
        old->seen = true;
        secret_free(s);
        return 0;
    }
    if (old)
        secrets_take_out(v, old);
    s->serial = ++v->serial;
    v->bytes += s->n;
    (void)map_put(&v->by_key, s->key, s);
    secrets_tell_unlocked(v);
    return 0;
}

const struct secret *secrets_find(const struct secrets *v, const char *tenant, const char *name)
{
    _cleanup_free_ char *key = xasprintf("%s/%s", tenant, name);
    return map_get(&v->by_key, key);
}

void secrets_remove(struct secrets *v, const char *tenant, const char *name)
{
    _cleanup_free_ char *key = xasprintf("%s/%s", tenant, name);
    struct secret *s = map_get(&v->by_key, key);
    if (s)
        secrets_take_out(v, s);
}

void secrets_hello(struct secrets *v)
{
    size_t at = 0;
    for (struct secret *s; (s = map_next(&v->by_key, &at));)
        s->seen = false;
}

void secrets_synced(struct secrets *v)
{
    struct secret *gone[64];
    size_t n;
    do {
        size_t at = 0;
        n = 0;
        for (struct secret *s; n < ARRAY_LEN(gone) && (s = map_next(&v->by_key, &at));)
            if (!s->seen)
                gone[n++] = s;
        for (size_t i = 0; i < n; i++)
            secrets_take_out(v, gone[i]);
    } while (n == ARRAY_LEN(gone));
}

size_t secrets_count(const struct secrets *v) { return v->by_key.n; }

/* ---- automata ---- */

struct redact_set *secrets_redact_set(struct secrets *v, const struct secret *const *list, size_t n)
{
    struct redact_value values[REDACT_VALUES_MAX];
    struct cached c = {.n = n};
    if (n > REDACT_VALUES_MAX)
        return NULL;
    for (size_t i = 0; i < n; i++) {
        values[i] = (struct redact_value){list[i]->value, list[i]->n, list[i]->spec.user};
        c.serials[i] = list[i]->serial;
    }
    for (size_t i = 0; i < CACHED; i++)
        if (v->cache[i].set && v->cache[i].n == n && memcmp(v->cache[i].serials, c.serials, sizeof c.serials) == 0)
            return redact_set_ref(v->cache[i].set);
    c.set = redact_set_new(values, n);
    if (!c.set)
        return NULL;
    redact_set_unref(v->cache[v->next].set);
    v->cache[v->next] = c;
    v->next = (v->next + 1) % CACHED;
    return redact_set_ref(c.set);
}
