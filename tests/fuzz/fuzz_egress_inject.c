/* fuzz_egress_inject.c - any request of a sandbox with secrets of every kind: a value never goes to a host it is not
 * bound to, never without TLS, never into a refusal, and no header holds a line break afterwards. Input: lines: method,
 * host, target, "name:value" each; an empty line; the body. */
#include <ctype.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base64.h"
#include "base/cleanup.h"
#include "base/mem.h"
#include "egress/secrets/seal.h"
#include "egress/secrets/secrets-int.h"

#define VALUE "qz7W/4+secret\"value"
#define PLAIN "qz7W"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct secrets *vault;
static struct esb sandbox = {.tenant = "t"};

static void put(const unsigned char key[SEAL_KEY], const char *name, const char *spec)
{
    _cleanup_free_ char *context = secret_context("t", name);
    _cleanup_buf_ struct buf sealed = {0}, text = {0};
    struct err err;
    if (seal_bytes(key, context, VALUE, strlen(VALUE), &sealed, &err) < 0)
        abort();
    base64_encode(&text, sealed.p, sealed.n);
    json_t *m = json_pack("{ss ss si ss so}", "tenant", "t", "name", name, "revision", 1, "sealed", text.p, "spec",
                          json_loads(spec, 0, NULL));
    if (!m || secrets_put(vault, m, &err) < 0)
        abort();
    json_decref(m);
}

#define BIND "{\"bind\":[{\"hosts\":[\"a.example\"],\"paths\":[\"/v1/**\",\"/\"]}],\"inject\":"

static void make_vault(void)
{
    unsigned char key[SEAL_KEY], public_key[SEAL_KEY];
    struct err err;
    if (seal_new_key(key, &err) < 0 || seal_public(key, public_key, &err) < 0)
        abort();
    vault = secrets_new(key);
    put(public_key, "replace",
        BIND "{\"type\":\"replace\",\"in\":[\"header\",\"basic\",\"query\",\"body\",\"ws_text\"]}}");
    put(public_key, "set", BIND "{\"type\":\"set\",\"header\":\"x-set\",\"format\":\"T {value}\"}}");
    put(public_key, "query", BIND "{\"type\":\"query\",\"param\":\"key\"}}");
    put(public_key, "other", "{}");
    put(public_key, "sign",
        "{\"bind\":[{\"hosts\":[\"s3.example\"]}],\"inject\":{\"type\":\"sigv4\",\"region\":\"r\",\"service\":\"s3\","
        "\"access_key_id\":\"A\",\"session_token\":\"other\"}}");
    (void)map_put(&sandbox.placeholders, "sbx-placeholder", (void *)(uintptr_t) "replace");
    (void)map_put(&sandbox.placeholders, "sbx-otherholder", (void *)(uintptr_t) "set");
}

static bool leaks(const char *p, size_t n) { return n > 0 && memmem(p, n, PLAIN, 4); }

static void check(const struct inject_request *q, const struct inject_result *ret, bool bound)
{
    bool found = leaks(buf_str(q->target), q->target->n) || (q->body && leaks(buf_str(q->body), q->body->n));
    if (q->fields->n > q->cap || leaks(ret->text, strlen(ret->text)) ||
        (ret->reason != NETPOL_R_NONE) < (ret->text[0] != '\0'))
        abort();
    for (size_t i = 0; i < q->fields->n; i++) {
        const char *v = q->fields->v[i].value;
        if (strpbrk(v, "\r\n"))
            abort();
        found |= leaks(v, strlen(v));
    }
    if (found && (!bound || !q->verified_tls || (ret->reason == NETPOL_R_NONE && ret->nused == 0) || ret->need_body))
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const names[] = {"replace", "set", "query", "sign"};
    const struct netpol_rule rule = {.id = "r", .secrets = names, .nsecrets = ARRAY_LEN(names)};
    _cleanup_free_ char *text = xstrndup((const char *)data, size);
    if (!vault)
        make_vault();
    if (strstr(text, PLAIN)) /* the client cannot know it */
        return 0;
    char *body = strstr(text, "\n\n"), *save = NULL;
    if (body) {
        *body = '\0';
        body += 2;
    }
    char *method = strtok_r(text, "\n", &save), *host = strtok_r(NULL, "\n", &save),
         *target = strtok_r(NULL, "\n", &save);
    char name[NETPOL_NAME_MAX];
    if (!target || !netpol_name(host, strlen(host), name))
        return 0;
    struct http_field storage[16];
    struct http_fields fields = {.v = storage};
    for (char *line; fields.n < 14 && (line = strtok_r(NULL, "\n", &save));) {
        char *colon = strchr(line, ':');
        if (!colon || strchr(line, '\r'))
            continue;
        *colon = '\0';
        for (char *p = line; *p; p++)
            *p = (char)tolower((unsigned char)*p);
        storage[fields.n++] = (struct http_field){line, colon + 1};
    }
    bool tls = size % 4 != 0, bound = strcmp(name, "a.example") == 0 || strcmp(name, "s3.example") == 0;
    const struct netpol_flow flow = {.host = name, .port = tls ? 443 : 80, .tls = tls};
    _cleanup_buf_ struct buf path = {0}, bytes = {0};
    _cleanup_strv_ struct strv keep = {0};
    buf_adds(&path, target);
    struct inject_request q = {.sandbox = &sandbox,
                               .flow = &flow,
                               .rule = &rule,
                               .method = method,
                               .target = &path,
                               .fields = &fields,
                               .storage = storage,
                               .cap = ARRAY_LEN(storage),
                               .keep = &keep,
                               .verified_tls = tls,
                               .unix_time = size};
    struct inject_result ret;
    inject_secrets(vault, &q, &ret);
    check(&q, &ret, bound);
    if (ret.need_body) {
        buf_adds(&bytes, body ? body : "");
        q.body = &bytes;
        inject_secrets(vault, &q, &ret);
        check(&q, &ret, bound);
        if (ret.need_body)
            abort();
    }
    redactor_free(ret.redact);
    inject_forget(&q);
    return 0;
}
