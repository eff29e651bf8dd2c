#include "network/secrets.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base64.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/map.h"
#include "base/mem.h"
#include "base/random.h"
#include "db/db.h"
#include "egress/secrets/seal.h"
#include "egress/secrets/secrets.h"
#include "network/networks-int.h"

_Static_assert((int)VAULT_NAME_MAX == (int)SECRET_NAME_MAX && (int)VAULT_VALUE_MAX == (int)SECRET_VALUE_MAX &&
                   (int)VAULT_BYTES_MAX <= (int)SECRETS_BYTES_MAX &&
                   VAULT_MAX + (int)NET_HEADERS_KEPT_MAX <= (int)SECRETS_MAX,
               "egress's limits");

struct entry {
    struct sealed_secret s; /* first */
    char *key;              /* "tenant/name" */
};
struct vault {
    struct map by_name;       /* key -> struct entry */
    struct change *under_way; /* being stored; they already count in the limits */
};

static void sealed_entry_free(struct entry *e)
{
    buf_done(&e->s.sealed);
    free(e->s.spec);
    free(e->s.metadata);
    free(e->key);
    free(e);
}

static void sealed_entry_put(struct vault *v, struct entry *e)
{
    struct entry *old = map_del(&v->by_name, e->key);
    if (old)
        sealed_entry_free(old);
    (void)map_put(&v->by_name, e->key, e);
}

/* --- looking ------------------------------------------------------------------------------------------------------ */

const struct sealed_secret *sealed_find(struct networks *nw, const char *tenant, const char *name)
{
    _cleanup_free_ char *key = xasprintf("%s/%s", tenant, name);
    const struct entry *e = map_get(&nw->vault->by_name, key);
    size_t at = 0;
    if (e || strncmp(name, "sec_", 4) != 0)
        return e ? &e->s : NULL;
    while ((e = map_next(&nw->vault->by_name, &at)))
        if (strcmp(e->s.id, name) == 0 && strcmp(e->s.tenant, tenant) == 0)
            return &e->s;
    return NULL;
}

void sealed_each(struct networks *nw, const char *tenant, sealed_each_fn *fn, void *arg)
{
    size_t at = 0;
    for (const struct entry *e; (e = map_next(&nw->vault->by_name, &at));)
        if (!tenant || strcmp(e->s.tenant, tenant) == 0)
            fn(arg, &e->s);
}

/* --- changes ------------------------------------------------------------------------------------------------------ */

struct change {
    struct change *other; /* of vault.under_way */
    struct networks *networks;
    struct entry *next; /* the new entry; NULL: a removal */
    char *tenant, *name;
    sealed_done *done;
    void *arg;
    bool failed;
    struct err err;
};

static void sealed_change_free(struct change *c)
{
    free(c->tenant);
    free(c->name);
    free(c);
}

static void sealed_change_on_refused(void *arg)
{
    struct change *c = arg;
    if (c->next)
        sealed_entry_free(c->next);
    if (c->done)
        c->done(c->arg, c->failed ? &c->err : NULL);
    sealed_change_free(c);
}

static void sealed_change_on_row_stored(void *arg, const struct err *err)
{
    struct change *c = arg;
    struct networks *nw = c->networks;
    for (struct change **at = &nw->vault->under_way; c->next && *at; at = &(*at)->other)
        if (*at == c) {
            *at = c->other;
            break;
        }
    if (err && c->next)
        sealed_entry_free(c->next);
    else if (c->next) {
        sealed_entry_put(nw->vault, c->next);
        nets_secret_changed(nw, &c->next->s);
    } else if (!err) {
        _cleanup_free_ char *key = xasprintf("%s/%s", c->tenant, c->name);
        struct entry *old = map_del(&nw->vault->by_name, key);
        if (old)
            sealed_entry_free(old);
        nets_secret_gone(nw, c->tenant, c->name);
    }
    if (c->done)
        c->done(c->arg, err);
    sealed_change_free(c);
}

struct room {
    size_t n, bytes; /* of values */
};

static void sealed_add_room(struct room *r, const struct sealed_secret *s, const char *tenant)
{
    if (tenant && strcmp(s->tenant, tenant) != 0)
        return;
    r->n++;
    r->bytes += s->sealed.n > SEAL_OVERHEAD ? s->sealed.n - SEAL_OVERHEAD : 0;
}

/* Counts all secrets except the replaced one: of one tenant, or (NULL) of all. */
static struct room sealed_room_taken(struct networks *nw, const char *tenant, const struct sealed_secret *old)
{
    struct room r = {0};
    size_t at = 0;
    for (const struct entry *e; (e = map_next(&nw->vault->by_name, &at));)
        if (&e->s != old)
            sealed_add_room(&r, &e->s, tenant);
    for (const struct change *c = nw->vault->under_way; c; c = c->other)
        sealed_add_room(&r, &c->next->s, tenant);
    return r;
}

static int sealed_check_room(struct networks *nw, const struct sealed_change *c, const struct sealed_secret *old,
                             struct err *err)
{
    struct room mine = sealed_room_taken(nw, c->tenant, old), all = sealed_room_taken(nw, NULL, old);
    if (!c->value)
        return 0;
    if (!old && mine.n >= VAULT_TENANT_MAX)
        return err_set(err, ERR_USAGE, EDQUOT,
                       "this tenant has %zu secrets, and may have %d of the %d of this node; remove some", mine.n,
                       VAULT_TENANT_MAX, VAULT_MAX);
    if (mine.bytes + c->nvalue > VAULT_TENANT_BYTES_MAX)
        return err_set(err, ERR_USAGE, EDQUOT,
                       "the values of this tenant's secrets would have %zu bytes, and may have %d; remove some",
                       mine.bytes + c->nvalue, VAULT_TENANT_BYTES_MAX);
    if ((!old && all.n >= VAULT_MAX) || all.bytes + c->nvalue > VAULT_BYTES_MAX)
        return err_set(err, ERR_USAGE, ENOSPC,
                       "this node has as many secrets as it can keep: %d, or %d bytes of values", VAULT_MAX,
                       VAULT_BYTES_MAX);
    return 0;
}

static int sealed_check_change(struct networks *nw, const struct sealed_change *c, const struct sealed_secret *old,
                               struct err *err)
{
    if (!secret_name_valid(c->name))
        return err_set(
            err, ERR_USAGE, EINVAL,
            "a secret's name has 1 to %d letters, digits, '_', '-' and '.', and begins with a letter, a digit "
            "or '_'",
            VAULT_NAME_MAX - 1);
    if (old && c->how == VAULT_NEW)
        return err_set(err, ERR_USAGE, EEXIST, "there is a secret '%s' already; give it a new version instead",
                       c->name);
    if (!old && c->how == VAULT_VERSION)
        return err_set(err, ERR_USAGE, ENOENT, "there is no secret '%s'", c->name);
    if (!old && !c->value)
        return err_set(err, ERR_USAGE, EINVAL, "a new secret needs a value");
    json_t *spec = c->spec ? json_incref((json_t *)c->spec) : json_loads(old && *old->spec ? old->spec : "{}", 0, NULL);
    struct err why = {0};
    int rc = secret_spec_check(spec, &why);
    if (rc == 0 && c->value)
        rc = secret_value_check(spec, c->value, c->nvalue, &why);
    json_decref(spec);
    return rc < 0 ? err_set(err, ERR_USAGE, EINVAL, "%s", why.msg) : sealed_check_room(nw, c, old, err);
}

static char *sealed_json_text(const json_t *v, const char *old, const char *otherwise)
{
    char *made = v ? json_dumps(v, JSON_COMPACT) : NULL;
    char *text = xstrdup(made ? made : old ? old : otherwise);
    free(made);
    return text;
}

static int sealed_seal_value(struct networks *nw, const struct sealed_change *c, struct buf *out, struct err *err)
{
    unsigned char key[SEAL_KEY];
    _cleanup_free_ char *context = secret_context(c->tenant, c->name);
    if (!nets_key(nw, key))
        return err_set(err, ERR_HOST, EAGAIN,
                       nets_on(nw) ? "the process that keeps secrets is not there yet; try again"
                                   : "this node has no network, so it keeps no secrets");
    return seal_bytes(key, context, c->value, c->nvalue, out, err);
}

/* Makes the new entry, with the sealed value. */
static struct entry *sealed_entry_make(struct networks *nw, const struct sealed_change *c,
                                       const struct sealed_secret *old, struct err *err)
{
    struct entry *e = xcalloc(1, sizeof *e);
    char digits[25];
    random_hex(digits, 12);
    (void)snprintf(e->s.tenant, sizeof e->s.tenant, "%s", c->tenant);
    (void)snprintf(e->s.name, sizeof e->s.name, "%s", c->name);
    (void)snprintf(e->s.id, sizeof e->s.id, "sec_%s", digits);
    if (old)
        memcpy(e->s.id, old->id, sizeof e->s.id);
    e->key = xasprintf("%s/%s", c->tenant, c->name);
    e->s.spec = sealed_json_text(c->spec, old ? old->spec : NULL, "");
    e->s.metadata = sealed_json_text(c->metadata, old ? old->metadata : NULL, "{}");
    e->s.updated_unix_ms = clock_unix_ms();
    e->s.created_unix_ms = old ? old->created_unix_ms : e->s.updated_unix_ms;
    /* A new spec is a new revision too, because egress takes only newer revisions. */
    e->s.revision = (old ? old->revision : 0) + 1;
    if (!c->value)
        buf_add(&e->s.sealed, old->sealed.p, old->sealed.n);
    else if (sealed_seal_value(nw, c, &e->s.sealed, err) < 0) {
        sealed_entry_free(e);
        return NULL;
    }
    return e;
}

void sealed_put(struct networks *nw, const struct sealed_change *what, sealed_done *done, void *arg)
{
    struct change *c = xcalloc(1, sizeof *c);
    *c = (struct change){.networks = nw, .done = done, .arg = arg};
    const struct sealed_secret *old = sealed_find(nw, what->tenant, what->name);
    struct sealed_change named = *what;
    if (old) /* the request may name it by its id */
        named.name = old->name;
    c->failed =
        sealed_check_change(nw, &named, old, &c->err) < 0 || !(c->next = sealed_entry_make(nw, &named, old, &c->err));
    if (c->failed) {
        loop_defer(nw->loop, sealed_change_on_refused, c);
        return;
    }
    const struct sealed_secret *s = &c->next->s;
    struct db_secret row = {.tenant = s->tenant,
                            .name = s->name,
                            .id = s->id,
                            .revision = s->revision,
                            .sealed = s->sealed.p,
                            .nsealed = s->sealed.n,
                            .spec = s->spec,
                            .metadata = s->metadata,
                            .created_unix_ms = s->created_unix_ms,
                            .updated_unix_ms = s->updated_unix_ms};
    c->other = nw->vault->under_way;
    nw->vault->under_way = c;
    db_secret_put(nw->db, &row, sealed_change_on_row_stored, c);
}

void sealed_remove(struct networks *nw, const char *tenant, const char *name, sealed_done *done, void *arg)
{
    struct change *c = xcalloc(1, sizeof *c);
    const struct sealed_secret *old = sealed_find(nw, tenant, name);
    *c = (struct change){.networks = nw, .done = done, .arg = arg};
    if (!old) {
        c->failed = true;
        (void)err_set(&c->err, ERR_USAGE, ENOENT, "there is no such secret");
        loop_defer(nw->loop, sealed_change_on_refused, c);
        return;
    }
    c->tenant = xstrdup(tenant);
    c->name = xstrdup(old->name);
    db_secret_del(nw->db, tenant, c->name, sealed_change_on_row_stored, c);
}

void sealed_tenant_gone(struct networks *nw, const char *tenant)
{
    for (bool again = nw->vault; again;) {
        size_t at = 0;
        again = false;
        for (struct entry *e; !again && (e = map_next(&nw->vault->by_name, &at));)
            if (strcmp(e->s.tenant, tenant) == 0) {
                (void)map_del(&nw->vault->by_name, e->key);
                nets_secret_gone(nw, tenant, e->s.name);
                sealed_entry_free(e);
                again = true; /* the map has changed */
            }
    }
}

/* --- loading ------------------------------------------------------------------------------------------------------ */

static void sealed_load_row(void *arg, const struct db_secret *row)
{
    struct networks *nw = arg;
    struct entry *e = xcalloc(1, sizeof *e);
    (void)snprintf(e->s.tenant, sizeof e->s.tenant, "%s", row->tenant);
    (void)snprintf(e->s.name, sizeof e->s.name, "%s", row->name);
    (void)snprintf(e->s.id, sizeof e->s.id, "%s", row->id);
    e->s.revision = row->revision;
    buf_add(&e->s.sealed, row->sealed, row->nsealed);
    e->s.spec = xstrdup(row->spec);
    e->s.metadata = xstrdup(row->metadata);
    e->s.created_unix_ms = row->created_unix_ms;
    e->s.updated_unix_ms = row->updated_unix_ms;
    e->key = xasprintf("%s/%s", row->tenant, row->name);
    sealed_entry_put(nw->vault, e);
}

int sealed_load(struct networks *nw, struct err *err)
{
    nw->vault = xcalloc(1, sizeof *nw->vault);
    return db_secrets(nw->db, sealed_load_row, nw, err);
}

void sealed_free(struct networks *nw)
{
    size_t at = 0;
    if (!nw->vault)
        return;
    for (struct entry *e; (e = map_next(&nw->vault->by_name, &at));)
        sealed_entry_free(e);
    map_done(&nw->vault->by_name);
    free(nw->vault);
    nw->vault = NULL;
}

/* --- messages and rules ------------------------------------------------------------------------------------------- */

static json_t *sealed_spec_of(const struct sealed_secret *s)
{
    json_t *spec = json_loads(*s->spec ? s->spec : "{}", 0, NULL);
    return spec ? spec : json_object();
}

json_t *sealed_message(const struct sealed_secret *s)
{
    _cleanup_buf_ struct buf text = {0};
    base64_encode(&text, s->sealed.p, s->sealed.n);
    return json_pack("{s:s, s:s, s:s, s:I, s:s, s:o}", "type", "secret", "tenant", s->tenant, "name", s->name,
                     "revision", (json_int_t)s->revision, "sealed", buf_str(&text), "spec", sealed_spec_of(s));
}

json_t *sealed_header_message(const char *tenant, const struct net_header *h)
{
    json_t *headers = json_loads(h->headers, 0, NULL);
    /* Headers without a secret are not confidential: they may be sent without TLS and appear in answers. */
    bool open = h->secrets.n == 0;
    return json_pack("{s:s, s:s, s:s, s:i, s:{s:[{s:[s]}], s:{s:s, s:o}, s:b, s:b}}", "type", "secret", "tenant",
                     tenant, "name", h->name, "revision", 1, "spec", "bind", "hosts", h->host, "inject", "type",
                     "headers", "headers", headers, "allow_plaintext", open, "redact_response", !open);
}

json_t *sealed_gone_message(const char *tenant, const char *name)
{
    return json_pack("{s:s, s:s, s:s}", "type", "unsecret", "tenant", tenant, "name", name);
}

char *sealed_placeholder(const struct sealed_secret *s)
{
    char text[SECRET_PLACEHOLDER_MAX];
    json_t *spec = sealed_spec_of(s);
    secret_placeholder(json_string_value(json_object_get(spec, "placeholder")), text, sizeof text);
    json_decref(spec);
    return xstrdup(text);
}

char *sealed_variable(const struct sealed_secret *s)
{
    json_t *spec = sealed_spec_of(s);
    const char *name = json_string_value(json_object_get(spec, "env"));
    char *ret = name && *name ? xstrdup(name) : NULL;
    json_decref(spec);
    return ret;
}

/* Turns one entry of `bind` into a rule. */
static json_t *sealed_rule_of(const struct sealed_secret *s, const json_t *bind, size_t i)
{
    static const char *const parts[] = {"methods", "paths"};
    _cleanup_free_ char *id = xasprintf("secret-%.40s-%zu", s->name, i);
    json_t *rule = json_pack("{s:s, s:[s]}", "id", id, "secrets", s->name), *http = json_object();
    (void)json_object_set(rule, "hosts", json_object_get(bind, "hosts"));
    if (json_object_get(bind, "ports"))
        (void)json_object_set(rule, "ports", json_object_get(bind, "ports"));
    for (size_t k = 0; k < ARRAY_LEN(parts); k++)
        if (json_object_get(bind, parts[k]))
            (void)json_object_set(http, parts[k], json_object_get(bind, parts[k]));
    if (json_object_size(http))
        (void)json_object_set_new(rule, "http", json_pack("[O]", http));
    json_decref(http);
    return rule;
}

json_t *sealed_rules(const struct sealed_secret *s)
{
    json_t *spec = sealed_spec_of(s), *list = json_array();
    const json_t *bind = json_object_get(spec, "bind");
    for (size_t i = 0; i < json_array_size(bind); i++)
        (void)json_array_append_new(list, sealed_rule_of(s, json_array_get(bind, i), i));
    json_decref(spec);
    return list;
}
