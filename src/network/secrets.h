/* secrets.h - the secrets of tenants. A value is sealed to egress's key as soon as it arrives. From then on front
 * and the store hold ciphertext only, and the API never returns even that. See egress/seal.h.
 */
#ifndef HUTCH_NETWORK_SECRETS_H
#define HUTCH_NETWORK_SECRETS_H

#include <jansson.h>

#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"
#include "network/doc/documents.h"

enum {
    /* Limits of the node. One tenant may have an eighth of each. */
    VAULT_MAX = 8000,
    VAULT_TENANT_MAX = VAULT_MAX / 8,
    VAULT_BYTES_MAX = 32 << 20, /* of values */
    VAULT_TENANT_BYTES_MAX = VAULT_BYTES_MAX / 8,
    VAULT_NAME_MAX = 64,           /* with its NUL */
    VAULT_VALUE_MAX = 64 * 1024,   /* bytes */
    VAULT_SPEC_MAX = 32 * 1024,    /* bytes of JSON */
    VAULT_METADATA_MAX = 8 * 1024, /* bytes of JSON */
};

struct networks;
struct sealed_secret {
    char tenant[40];
    char name[VAULT_NAME_MAX];
    char id[40];
    uint64_t revision; /* of the value, from 1 */
    struct buf sealed;
    char *spec;     /* JSON: the hosts it may go to; "": none, only headers of E2B's API use it */
    char *metadata; /* JSON object */
    uint64_t created_unix_ms, updated_unix_ms;
};

int sealed_load(struct networks *nw, struct err *err);
void sealed_free(struct networks *nw);
/* By name or by id; NULL: there is none. Valid until the caller returns to the loop. */
const struct sealed_secret *sealed_find(struct networks *nw, const char *tenant, const char *name);
typedef void sealed_each_fn(void *arg, const struct sealed_secret *s);
void sealed_each(struct networks *nw, const char *tenant /* NULL: of all */, sealed_each_fn *fn, void *arg);

enum sealed_how { VAULT_NEW, VAULT_VERSION, VAULT_EITHER };
struct sealed_change {
    const char *tenant, *name;
    const char *value; /* NULL: stays as it is */
    size_t nvalue;
    const json_t *spec;     /* NULL: stays as it is */
    const json_t *metadata; /* NULL: stays as it is */
    enum sealed_how how;
};
/* done: once, from the loop. On failure err->eno is ENOENT, EEXIST, EINVAL, ENOSPC, EDQUOT (the tenant's share is
 * used up) or EAGAIN (egress is not there). After success sealed_find() finds the name. */
typedef void sealed_done(void *arg, const struct err *err);
void sealed_put(struct networks *nw, const struct sealed_change *c, sealed_done *done, void *arg);
void sealed_remove(struct networks *nw, const char *tenant, const char *name, sealed_done *done, void *arg);
void sealed_tenant_gone(struct networks *nw, const char *tenant);

/* Messages for egress; new references. */
json_t *sealed_message(const struct sealed_secret *s);
/* A set of headers, as a secret. */
json_t *sealed_header_message(const char *tenant, const struct net_header *h);
json_t *sealed_gone_message(const char *tenant, const char *name);

/* The text that a sandbox sees in place of the value: in the form that the spec gives, with at least 128 random
 * bits. */
char *sealed_placeholder(const struct sealed_secret *s);
/* The variable that holds the placeholder; NULL: none. Owned by the caller. */
char *sealed_variable(const struct sealed_secret *s);
/* Rules that allow the hosts of the secret and use it; a new reference. Empty: it is bound to no host. */
json_t *sealed_rules(const struct sealed_secret *s);

#endif
