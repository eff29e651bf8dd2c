/* secrets.h - secrets on their way into requests. A value exists in this process only, in memory that is locked, not
 * dumped and wiped; outside it is sealed to this process's key (seal.h), inside a sandbox there is a placeholder.
 *
 * The first part needs no vault: front uses it to check what users send, to seal it and to make placeholders. What a
 * spec may say is described in docs/secrets.md. No function here puts a value, or a part of one, into an error or a
 * text.
 */
#ifndef HUTCH_EGRESS_SECRETS_H
#define HUTCH_EGRESS_SECRETS_H

#include <jansson.h>

#include "base/strv.h"
#include "egress/egress.h"
#include "http/http.h"

enum {
    SECRETS_MAX = 10000,
    SECRETS_BYTES_MAX = 32 << 20, /* of all values together */
    SECRET_VALUE_MAX = 64 * 1024,
    SECRET_NAME_MAX = 64,         /* with its NUL */
    SECRET_PLACEHOLDER_MAX = 256, /* with its NUL */
    SECRET_BODY_MAX = 256 * 1024, /* of a body that is looked into */
    SECRET_GROWTH_MAX = 1 << 20,  /* bytes of values that one request or message may get */
    SECRET_SHORT = 8,             /* shorter values are not looked for in answers: ordinary text would be hit */
};

/* --- without a vault ---------------------------------------------------------------------------------------------- */

/* Letters, digits, '_', '-', '.'; not empty, not longer than SECRET_NAME_MAX - 1, first a letter, digit or '_'. */
bool secret_name_valid(const char *name);
/* The whole spec {bind, inject, env, placeholder, on_violation, redact_response, allow_plaintext}; an empty one is a
 * secret that only others may refer to. err names the path ("bind[0].hosts[1]: ..."). */
int secret_spec_check(const json_t *spec, struct err *err);
/* A value for such a spec: not empty, not too long, and without control characters if it is going to stand in a header.
 */
int secret_value_check(const json_t *spec, const char *value, size_t n, struct err *err);
/* What a value is sealed for: seal(key, context, value ...). The caller frees it. */
char *secret_context(const char *tenant, const char *name) __attribute__((returns_nonnull));
/* The same for the password of an upstream proxy: at another address, or for another user, it does not open. */
enum { SECRET_PROXY_PASSWORD_MAX = 255 };
char *secret_proxy_context(const char *address, const char *user) __attribute__((returns_nonnull));
/* A new placeholder of a shape like "sk-sbx-{rand:40}"; NULL, "" or a shape secret_spec_check() would refuse: the usual
 * one. At least 128 random bits. cap should be SECRET_PLACEHOLDER_MAX. */
void secret_placeholder(const char *shape, char *ret, size_t cap);

/* --- the vault ---------------------------------------------------------------------------------------------------- */

/* NULL: for one run, which speaks to us over a socket pair of its own and has nobody to hide values from on the way: they come
 * as they are (`value`, base64), not sealed. */
struct secrets *secrets_new(const unsigned char *private_key);
void secrets_free(struct secrets *v); /* NULL is fine */
/* From front's message "secret". Replaces the same or an older revision; an older one than is there changes nothing and
 * is no error. `sealed` may be missing if inject.type is "headers". -1: the seal does not open, or the spec is wrong;
 * err says, and what was there stays. */
int secrets_put(struct secrets *v, const json_t *message, struct err *err);
void secrets_remove(struct secrets *v, const char *tenant, const char *name);
/* Around front's list of everything: what is not put in between is removed. */
void secrets_hello(struct secrets *v);
void secrets_synced(struct secrets *v);
/* Opens the sealed password (base64) of a proxy; ret is a string. v NULL: there is no key. */
int secrets_proxy_password(const struct secrets *v, const char *sealed, const char *address, const char *user,
                           char ret[SECRET_PROXY_PASSWORD_MAX + 1], struct err *err);
size_t secrets_count(const struct secrets *v);

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
    struct buf *body;   /* NULL: streamed, not looked into */
    bool verified_tls;  /* false: nothing is injected unless the secret allows plaintext */
    uint64_t unix_time; /* for signatures */
};
struct inject_use {
    char name[SECRET_NAME_MAX], at[80];
};
struct inject_result {
    enum netpol_reason reason; /* NONE; SECRET_VIOLATION, SECRET_UNBOUND, CLEARTEXT ... : nothing may be sent */
    char text[300];            /* why; with NONE and `violation`: what is only to be logged */
    bool violation;            /* a placeholder went where it should not (also if on_violation is log) */
    struct inject_use used[8];
    size_t nused;
    bool need_body; /* Nothing was changed yet: buffer up to SECRET_BODY_MAX (more: refuse with BODY) and call again
                       with `body` */
    bool ws_text;   /* if this becomes a WebSocket: text messages of the client go through inject_message() */
    struct redactor *redact; /* for the answer; NULL: nothing to hide. The caller frees it. */
};
/* First the placeholders of this sandbox anywhere they may not be (a violation), then what the rule's secrets say. If
 * something was put in that has to be hidden in the answer, `accept-encoding: identity` is set too. Adds to
 * counts.injections and counts.violations of the sandbox; counts.redactions is the caller's (redact_count). */
void inject(struct secrets *v, struct inject_request *q, struct inject_result *ret);
/* One whole text message of a WebSocket whose upgrade request was `q` (its secrets and bindings are looked up again).
 * Appends what is to be sent. ret as above; no redactor. */
void inject_message(struct secrets *v, struct inject_request *q, const char *p, size_t n, struct buf *out,
                    struct inject_result *ret);
/* When the request has been sent: overwrites what inject() wrote (keep, target, body) and empties it. */
void inject_forget(struct inject_request *q);

/* redact.c: a stream without any of the rendered forms of the secrets used. */
struct redactor;
void redact(struct redactor *r, const void *p, size_t n, struct buf *out); /* holds back what may be a beginning */
void redact_end(struct redactor *r, struct buf *out);
/* A whole value (a header). True if something was replaced; then *ret is new. */
bool redact_value(struct redactor *r, const char *value, char **ret);
/* Whether there is something to replace in these bytes; the stream is not touched. Counted if so. */
bool redact_finds(struct redactor *r, const void *p, size_t n);
uint64_t redact_count(const struct redactor *r);
void redactor_free(struct redactor *r); /* NULL is fine */

#endif
