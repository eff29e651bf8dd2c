/* webhook-form.c - the bodies of requests to the webhook and of its answers. */
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/cleanup.h"
#include "base/mem.h"
#include "http/body.h"
#include "network/networks-int.h"
#include "network/webhook.h"

static int webhook_read_ttl(const json_t *root, struct webhook_decision *ret, struct err *err)
{
    const json_t *ttl = json_object_get(root, "ttl");
    json_int_t s = json_integer_value(ttl);
    if (!json_is_integer(ttl) || s < 1 || s > (json_int_t)NET_APPROVAL_MINUTES_MAX * 60)
        return err_set(err, ERR_USAGE, 0, "scope \"time\" needs \"ttl\", a number of seconds from 1 to %d",
                       NET_APPROVAL_MINUTES_MAX * 60);
    *ret = (struct webhook_decision){APPROVAL_MINUTES, (unsigned)((s + 59) / 60)};
    return 1;
}

static int webhook_read_scope(const json_t *root, struct webhook_decision *ret, struct err *err)
{
    const json_t *scope = json_object_get(root, "scope");
    const char *word = scope ? json_string_value(scope) : "once";
    if (word && strcmp(word, "time") == 0)
        return webhook_read_ttl(root, ret, err);
    if (json_object_get(root, "ttl"))
        return err_set(err, ERR_USAGE, 0, "\"ttl\" belongs to scope \"time\"");
    if (word && (strcmp(word, "once") == 0 || strcmp(word, "sandbox") == 0)) {
        ret->decision = word[0] == 'o' ? APPROVAL_ONCE : APPROVAL_SANDBOX;
        return 1;
    }
    return err_set(err, ERR_USAGE, 0, "\"scope\" must be once, time or sandbox");
}

/* Strict about decisions, but ignores other bodies: many receivers answer "ok" or an HTML page. */
int webhook_answer(const char *p, size_t n, struct webhook_decision *ret, struct err *err)
{
    struct err ignored;
    *ret = (struct webhook_decision){0};
    json_t *root = n > 0 ? body_parse(p, n, &ignored) : NULL;
    const json_t *decision = json_object_get(root, "decision");
    const char *word = json_string_value(decision);
    int rc = 0;
    if (word && strcmp(word, "allow") == 0) {
        rc = webhook_read_scope(root, ret, err);
    } else if (word && strcmp(word, "deny") == 0) {
        ret->decision = APPROVAL_DENY;
        rc = 1;
    } else if (decision && !json_is_null(decision)) {
        rc = err_set(err, ERR_USAGE, 0, "\"decision\" must be allow or deny, or not be there");
    }
    json_decref(root);
    return rc;
}

void webhook_sign(const char *secret, uint64_t unix_time, const char *body, size_t n, char ret[WEBHOOK_SIGNATURE])
{
    _cleanup_buf_ struct buf text = {0};
    unsigned char mac[EVP_MAX_MD_SIZE];
    unsigned size = 0;
    buf_addf(&text, "%llu.", (unsigned long long)unix_time);
    buf_add(&text, body, n);
    (void)HMAC(EVP_sha256(), secret, (int)strlen(secret), (const unsigned char *)text.p, text.n, mac, &size);
    int at = snprintf(ret, WEBHOOK_SIGNATURE, "t=%llu,v1=", (unsigned long long)unix_time);
    for (unsigned i = 0; i < size && at + 2 < WEBHOOK_SIGNATURE; i++, at += 2)
        (void)snprintf(ret + at, (size_t)(WEBHOOK_SIGNATURE - at), "%02x", mac[i]);
}

void webhook_body(const struct networks *nw, const struct approval *a, struct buf *out)
{
    static const char *const fields[] = {"host", "port", "method", "path", "tls", "rule", "why"};
    char when[32];
    time_t asked = (time_t)(a->asked_unix_ms / 1000);
    struct tm tm;
    (void)strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&asked, &tm));
    _cleanup_free_ char *url =
        xasprintf("%s://api.%s/v1/approvals/%s", nw->config->listen_tls ? "https" : "http", nw->config->domain, a->id);
    json_t *m = json_pack("{s:s, s:i, s:s, s:s, s:s, s:s, s:o, s:s}", "type", WEBHOOK_EVENT, "version", 1, "id", a->id,
                          "sandbox", a->sandbox, "tenant", a->tenant, "askedAt", when, "grant", approval_grant(a),
                          "approve_url", url);
    for (size_t i = 0; i < ARRAY_LEN(fields); i++) {
        json_t *v = json_object_get(a->request, fields[i]);
        (void)json_object_set(m, fields[i], v ? v : json_null());
    }
    char *text = json_dumps(m, JSON_COMPACT);
    buf_adds(out, text ? text : "{}");
    free(text);
    json_decref(m);
}
