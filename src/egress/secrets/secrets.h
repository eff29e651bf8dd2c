/* secrets.h - stores secrets and puts them into requests. Values exist in plain only in egress, in memory that is
 * locked, not dumped, and wiped; elsewhere they are sealed to the key of the vault (seal.h), and a sandbox has a
 * placeholder.
 *
 * The first part needs no vault: front uses it to check specs and values and to make placeholders. docs/secrets.md
 * describes specs. No function here ever puts a value, or a part of one, into an error or a log.
 */
#ifndef HUTCH_EGRESS_SECRETS_SECRETS_H
#define HUTCH_EGRESS_SECRETS_SECRETS_H

#include <jansson.h>

#include "base/strv.h"
#include "egress/core/egress.h"
#include "http/http.h"
#include "http/ws.h"

enum {
    SECRETS_MAX = 10000,
    SECRETS_BYTES_MAX = 32 << 20, /* of all values together */
    SECRET_VALUE_MAX = 64 * 1024,
    SECRET_NAME_MAX = 64,         /* with its NUL */
    SECRET_PLACEHOLDER_MAX = 256, /* with its NUL */
    SECRET_BODY_MAX = 256 * 1024, /* of a body that placeholders are searched in */
    SECRET_GROWTH_MAX = 1 << 20,  /* bytes of values that one request or message may get */
    SECRET_SHORT = 8,             /* shorter values are not redacted in answers: they would match ordinary text */
};

/* --- without a vault ---------------------------------------------------------------------------------------------- */

/* Letters, digits, '_', '-', '.'; not empty, not longer than SECRET_NAME_MAX - 1, first a letter, digit or '_'. */
bool secret_name_valid(const char *name);
/* Checks a spec {bind, inject, env, placeholder, on_violation, redact_response, allow_plaintext}. With an empty spec
 * only other secrets can refer to the secret. err names the path ("bind[0].hosts[1]: ..."). */
int secret_spec_check(const json_t *spec, struct err *err);
/* Checks a value for such a spec: not empty, not too long, and without control characters if it goes into a header. */
int secret_value_check(const json_t *spec, const char *value, size_t n, struct err *err);
/* What a value is sealed for: seal_bytes(key, context, value ...). The caller frees it. */
char *secret_context(const char *tenant, const char *name) __attribute__((returns_nonnull));
/* The same for the password of an upstream proxy: it does not open for another address or another user. */
enum { SECRET_PROXY_PASSWORD_MAX = 255 };
char *secret_proxy_context(const char *address, const char *user) __attribute__((returns_nonnull));
/* Makes a placeholder of a shape like "sk-sbx-{rand:40}", with at least 128 random bits. NULL, "" or a shape that
 * secret_spec_check() refuses: the default shape. cap should be SECRET_PLACEHOLDER_MAX. */
void secret_placeholder(const char *shape, char *ret, size_t cap);

/* --- the vault ---------------------------------------------------------------------------------------------------- */

/* NULL: for one run, which has its own socket pair to us and needs no sealing: values come in plain (`value`,
 * base64). */
struct secrets *secrets_new(const unsigned char *private_key);
void secrets_free(struct secrets *v); /* NULL is fine */
/* Stores the secret of front's message "secret". Replaces the same or an older revision; if a newer one is there,
 * nothing changes and it is no error. `sealed` may be missing if inject.type is "headers". -1: the seal does not open,
 * or the spec is wrong; err says which, and the stored secret stays. */
int secrets_put(struct secrets *v, const json_t *message, struct err *err);
void secrets_remove(struct secrets *v, const char *tenant, const char *name);
/* Around front's full list: secrets that are not put between the two calls are removed. */
void secrets_hello(struct secrets *v);
void secrets_synced(struct secrets *v);
/* Opens the sealed password (base64) of a proxy; ret is a string. v NULL: there is no key. */
int secrets_proxy_password(const struct secrets *v, const char *sealed, const char *address, const char *user,
                           char ret[SECRET_PROXY_PASSWORD_MAX + 1], struct err *err);
size_t secrets_count(const struct secrets *v); /* for tests */

/* --- requests ----------------------------------------------------------------------------------------------------- */

/* A request on its way out, as it will be sent. Field names lower case; strings are owned by `arena` of the request. */
struct inject_request {
    struct esb *sandbox;
    const struct netpol_flow *flow;
    const struct netpol_rule *rule; /* that allowed it; only its secrets may be used. NULL: none may */
    const char *method;
    struct buf *target;         /* path?query, canonical; may be rewritten */
    struct http_fields *fields; /* v points to `storage` */
    struct http_field *storage; /* with room for `cap` */
    size_t cap;
    struct strv *keep;  /* rewritten strings are kept here; inject_forget() wipes them */
    struct buf *body;   /* NULL: streamed, not searched */
    bool verified_tls;  /* false: nothing is injected unless the secret allows plaintext */
    uint64_t unix_time; /* for signatures */
};
struct inject_use {
    char name[SECRET_NAME_MAX], at[80];
};
struct inject_result {
    enum netpol_reason reason; /* NONE; SECRET_VIOLATION, SECRET_UNBOUND, CLEARTEXT ... : nothing may be sent */
    char text[300];            /* why; with NONE and `violation`: what to log */
    bool violation;            /* a placeholder is where it must not be (also if on_violation is log) */
    struct inject_use used[8];
    size_t nused;
    bool need_body; /* nothing was changed: read up to SECRET_BODY_MAX (more: refuse with BODY) and call again with
                       `body` */
    bool ws_text;   /* if this becomes a WebSocket: text messages of the client go through inject_message() */
    struct redactor *redact; /* for the answer; NULL: nothing to hide. The caller frees it. */
};
/* Refuses placeholders of this sandbox where they must not be (a violation), then puts the rule's secrets in. If the
 * answer must be redacted, sets `accept-encoding: identity` too. Adds to counts.injections and counts.violations of the
 * sandbox; the caller adds to counts.redactions (redact_count). */
void inject_secrets(struct secrets *v, struct inject_request *q, struct inject_result *ret);
/* Treats one complete text message of a WebSocket whose upgrade request was `q`; looks up secrets and bindings again.
 * Appends what to send. ret as above; no redactor. */
void inject_message(struct secrets *v, struct inject_request *q, const char *p, size_t n, struct buf *out,
                    struct inject_result *ret);
/* When the request has been sent: overwrites what inject_secrets() wrote (keep, target, body) and empties it. */
void inject_forget(struct inject_request *q);

/* redact.c: removes all encoded forms of the used secrets from a stream. */
struct redactor;
void redact_feed(struct redactor *r, const void *p, size_t n, struct buf *out); /* holds back what may be a beginning */
void redact_end(struct redactor *r, struct buf *out);
/* A whole value (a header). True if something was replaced; then *ret is new. */
bool redact_value(struct redactor *r, const char *value, char **ret);
/* Whether these bytes contain a secret, which is counted; the stream is not touched. */
bool redact_finds(struct redactor *r, const void *p, size_t n);
uint64_t redact_count(const struct redactor *r);
/* For ws_server_new(), with the redactor as its argument: redacts the messages of a server. */
extern const struct ws_server_events redact_messages;
void redactor_free(struct redactor *r); /* NULL is fine */

#endif
