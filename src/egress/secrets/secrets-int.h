/* secrets-int.h - the parsed spec, the stored secret and the places of a request, shared by secrets*.c, inject*.c and
 * redact.c; also buffers that are wiped. Values stay in locked memory or in such buffers, and never go into an error or
 * a log. */
#ifndef HUTCH_EGRESS_SECRETS_SECRETS_INT_H
#define HUTCH_EGRESS_SECRETS_SECRETS_INT_H

#include <string.h>

#include "base/mem.h"
#include "egress/secrets/secrets.h"

/* Overwrites and frees a text that was made from a value. */
static inline void buf_wipe(struct buf *b)
{
    if (b->p)
        explicit_bzero(b->p, b->cap);
    buf_done(b);
}
/* Makes room for n bytes in an empty buffer: it does not move while it is filled, so no copies are left behind. */
static inline void buf_room(struct buf *b, size_t n)
{
    b->p = xmalloc(n + 1);
    b->p[0] = '\0';
    b->cap = n + 1;
}
#define _cleanup_buf_wipe_ __attribute__((cleanup(buf_wipe)))

/* --- secrets-spec.c ----------------------------------------------------------------------------------------------- */

enum secret_type {
    SECRET_REFERRED, /* no bind, no inject: only through ${e2b.secrets.NAME} */
    SECRET_REPLACE,
    SECRET_SET, /* also "header" and "bearer": a header and a format */
    SECRET_BASIC,
    SECRET_QUERY,
    SECRET_HEADERS,
    SECRET_SIGV4,
};
enum secret_place {
    SECRET_IN_HEADER = 1 << 0,
    SECRET_IN_BASIC = 1 << 1,
    SECRET_IN_QUERY = 1 << 2,
    SECRET_IN_BODY = 1 << 3,
    SECRET_IN_WS_TEXT = 1 << 4,
};
enum {
    SECRET_BINDS_MAX = 32,
    SECRET_HEADERS_MAX = 20,
    SECRET_TEXT_MAX = 2048, /* format, values of headers */
    SECRET_WORD_MAX = 128,  /* header and parameter names, region, user ... */
};

struct secret_spec {
    enum secret_type type;
    struct netpol *bind; /* one rule per entry; NULL: SECRET_REFERRED */
    unsigned in;         /* SECRET_REPLACE: enum secret_place */
    char *header, *format, *user, *param;
    struct strv names, values; /* SECRET_HEADERS */
    char *region, *service, *access_key_id, *session_token;
    char *env, *placeholder;
    bool log_only, redact, plaintext;
};
int secret_spec_parse(const json_t *spec, struct secret_spec *ret, struct err *err);
void secret_spec_done(struct secret_spec *s);
/* Whether a value can stand in a header field. */
bool secret_fits_header(const char *p, size_t n);
bool secret_header_reserved(const char *name);

/* Finds a reference in the text of a header: sets *from and *to around it (relative to text) and the name. false: none
 * left. secret_spec_parse() has refused unfinished and unknown ones. */
bool secret_reference(const char *text, size_t *from, size_t *to, char name[SECRET_NAME_MAX]);

enum secret_bound { SECRET_OTHER_HOST, SECRET_OTHER_REQUEST, SECRET_BOUND };
enum secret_bound secret_spec_bound(const struct secret_spec *s, const struct inject_request *q,
                                    const struct netpol_target *target);

/* --- secrets.c ---------------------------------------------------------------------------------------------------- */

struct secret {
    char *tenant, *key; /* key: tenant/name */
    const char *name;   /* in key */
    uint64_t revision, serial;
    char *value; /* in locked memory; NULL: none */
    size_t n;
    struct secret_spec spec;
    bool seen; /* since secrets_hello() */
};
const struct secret *secrets_find(const struct secrets *v, const char *tenant, const char *name);
/* The automaton for these values, from the cache if it is there; the caller unrefs it. NULL: too large. */
struct redact_set *secrets_redact_set(struct secrets *v, const struct secret *const *list, size_t n);

/* --- redact.c ----------------------------------------------------------------------------------------------------- */

enum { REDACT_MIN = SECRET_SHORT, REDACT_VALUES_MAX = 16, REDACT_TEXT_MAX = 4 << 20 };
struct redact_value {
    const char *p;
    size_t n;
    const char *user; /* the exact Basic form is looked for too; NULL: none */
};
struct redact_set;
/* NULL: more than REDACT_VALUES_MAX values, or their forms are longer than REDACT_TEXT_MAX together. */
struct redact_set *redact_set_new(const struct redact_value *values, size_t n);
struct redact_set *redact_set_ref(struct redact_set *s);
void redact_set_unref(struct redact_set *s);
bool redact_set_empty(const struct redact_set *s);
/* with: one replacement per value. */
struct redactor *redactor_new(struct redact_set *s, const char *const *with, size_t n);
/* Escapes as in a JSON string; with `slash`, '/' too. */
void json_escape(struct buf *out, const char *p, size_t n, bool slash);

/* --- inject-places.c ---------------------------------------------------------------------------------------------- */

/* Adds every text of the request that could hold a placeholder: field values, decoded base64 in them, the target as it
 * is and decoded, the body. */
void places_text(const struct inject_request *q, struct buf *out);
/* Where the placeholder is, for messages: "header 'x-api-key'", "the query" ... */
void places_where(const struct inject_request *q, const char *placeholder, char *ret, size_t cap);

/* Sets the reason and the text; returns false. */
bool place_refuse(struct inject_result *ret, enum netpol_reason reason, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* Each puts a value in and records the use in ret; false: ret->reason says why not. */
bool place_replace(struct inject_request *q, struct inject_result *ret, const struct secret *s,
                   const char *placeholder);
bool place_set(struct inject_request *q, struct inject_result *ret, const struct secret *s, const char *header,
               const struct buf *value, const char *what);
bool place_param(struct inject_request *q, struct inject_result *ret, const struct secret *s);
bool place_used(struct inject_result *ret, const struct secret *s, const char *what, const char *detail);
/* Sets a field without recording a use; false: no room. */
bool place_field(struct inject_request *q, struct inject_result *ret, const char *header, const char *value);
void place_drop(struct inject_request *q, const char *header);
/* Removes from the query every pair for whose decoded key `drop` returns true. */
void place_drop_pairs(struct inject_request *q, bool (*drop)(const char *key, const void *arg), const void *arg);
/* Copies p into an empty buffer with every `from` replaced; returns how many there were. */
size_t place_substitute(struct buf *out, const char *p, size_t n, const char *from, const char *to, size_t to_n);

/* inject-sign.c */
bool sign_needs_body(const struct inject_request *q, const struct secret *s);
bool sign_request(struct inject_request *q, struct inject_result *ret, const struct secret *s,
                  const struct secret *token);

#endif
