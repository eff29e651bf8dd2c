/* secrets-world.h - a vault, a sandbox and a request, for the tests of secrets. */
#ifndef HUTCH_TESTS_UNIT_SECRETS_WORLD_H
#define HUTCH_TESTS_UNIT_SECRETS_WORLD_H

#include "tests/lib/unit.h"

#include "base/base64.h"
#include "egress/secrets/seal.h"
#include "egress/secrets/secrets-int.h"

enum { WORLD_FIELDS = 24 };

struct world {
    unsigned char key[SEAL_KEY], public_key[SEAL_KEY];
    struct secrets *vault;
    struct esb sandbox;
    struct netpol_rule rule;
    const char *rule_secrets[8];
    struct netpol_flow flow;
    /* The request. */
    struct http_field storage[WORLD_FIELDS];
    struct http_fields fields;
    struct buf target, body;
    struct strv keep;
    struct inject_request q;
    struct inject_result ret;
    struct err err;
};

static inline void world_start(struct world *w)
{
    *w = (struct world){0};
    assert_int_equal(seal_new_key(w->key, &w->err), 0);
    assert_int_equal(seal_public(w->key, w->public_key, &w->err), 0);
    w->vault = secrets_new(w->key);
    (void)snprintf(w->sandbox.id, sizeof w->sandbox.id, "sb1");
    (void)snprintf(w->sandbox.tenant, sizeof w->sandbox.tenant, "acme");
    (void)snprintf(w->rule.id, sizeof w->rule.id, "llm");
    w->rule.secrets = w->rule_secrets;
}

static inline void world_answered(struct world *w)
{
    redactor_free(w->ret.redact);
    w->ret.redact = NULL;
}

static inline void world_end(struct world *w)
{
    world_answered(w);
    secrets_free(w->vault);
    map_done(&w->sandbox.placeholders);
    strv_done(&w->keep);
    buf_done(&w->target);
    buf_done(&w->body);
}

/* Front's message. value NULL: without `sealed`. `spec` is JSON with ' for ". */
static inline int world_put(struct world *w, const char *tenant, const char *name, unsigned revision, const char *value,
                            const char *spec)
{
    _cleanup_free_ char *context = secret_context(tenant, name), *text = strdup(spec);
    _cleanup_buf_ struct buf sealed = {0}, sealed64 = {0};
    json_error_t why;
    for (char *p = text; *p; p++)
        *p = *p == '\'' ? '"' : *p;
    json_t *parsed = json_loads(text, 0, &why), *m = json_object();
    if (!parsed)
        fail_msg("%s: %s", text, why.text);
    if (value) {
        assert_int_equal(seal_bytes(w->public_key, context, value, strlen(value), &sealed, &w->err), 0);
        base64_encode(&sealed64, sealed.p, sealed.n);
        (void)json_object_set_new(m, "sealed", json_string(sealed64.p));
    }
    (void)json_object_set_new(m, "type", json_string("secret"));
    (void)json_object_set_new(m, "tenant", json_string(tenant));
    (void)json_object_set_new(m, "name", json_string(name));
    (void)json_object_set_new(m, "revision", json_integer((json_int_t)revision));
    (void)json_object_set_new(m, "spec", parsed);
    int r = secrets_put(w->vault, m, &w->err);
    json_decref(m);
    return r;
}

/* A secret of the sandbox's tenant, listed by the rule. */
static inline void world_secret(struct world *w, const char *name, const char *value, const char *spec)
{
    if (world_put(w, "acme", name, 1, value, spec) < 0)
        fail_msg("%s", w->err.msg);
    w->rule_secrets[w->rule.nsecrets++] = name;
}

/* Strings must be static. */
static inline void world_placeholder(struct world *w, const char *text, const char *name)
{
    (void)map_put(&w->sandbox.placeholders, text, (void *)(uintptr_t)name);
}

/* Begins a request over verified TLS. */
static inline void world_request(struct world *w, const char *method, const char *host, const char *target)
{
    world_answered(w);
    strv_done(&w->keep);
    buf_done(&w->target);
    buf_done(&w->body);
    buf_adds(&w->target, target);
    w->flow = (struct netpol_flow){.host = host, .port = 443, .tls = true};
    w->fields = (struct http_fields){.v = w->storage};
    w->q = (struct inject_request){.sandbox = &w->sandbox,
                                   .flow = &w->flow,
                                   .rule = &w->rule,
                                   .method = method,
                                   .target = &w->target,
                                   .fields = &w->fields,
                                   .storage = w->storage,
                                   .cap = WORLD_FIELDS,
                                   .keep = &w->keep,
                                   .verified_tls = true,
                                   .unix_time = 1440938160};
}

static inline void world_field(struct world *w, const char *name, const char *value)
{
    assert_true(w->fields.n < WORLD_FIELDS);
    w->storage[w->fields.n++] = (struct http_field){name, value};
}

static inline void world_cleartext(struct world *w)
{
    w->flow.port = 80;
    w->flow.tls = false;
    w->q.verified_tls = false;
}

static inline void world_inject(struct world *w)
{
    world_answered(w);
    inject_secrets(w->vault, &w->q, &w->ret);
}

static inline size_t world_count(const struct world *w, const char *name)
{
    size_t n = 0;
    for (size_t i = 0; i < w->fields.n; i++)
        n += strcmp(w->fields.v[i].name, name) == 0;
    return n;
}

#endif
