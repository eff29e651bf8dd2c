/* vault.h - secrets of tenants. A value is sealed to egress's key the moment it arrives; from then on this process, the store
 * and the API hold only ciphertext, and no route gives even that. See egress/seal.h.
 */
#ifndef HUTCH_FRONT_VAULT_H
#define HUTCH_FRONT_VAULT_H

#include <jansson.h>

#include "base/buf.h"
#include "front/front.h"
#include "front/net-doc.h"

enum {
    /* Of the node. A tenant may have an eighth of each, so that none can use it up alone. */
    VAULT_MAX = 8000,
    VAULT_TENANT_MAX = VAULT_MAX / 8,
    VAULT_BYTES_MAX = 32 << 20, /* of values */
    VAULT_TENANT_BYTES_MAX = VAULT_BYTES_MAX / 8,
    VAULT_NAME_MAX = 64,           /* with its NUL */
    VAULT_VALUE_MAX = 64 * 1024,   /* bytes */
    VAULT_SPEC_MAX = 32 * 1024,    /* bytes of JSON */
    VAULT_METADATA_MAX = 8 * 1024, /* bytes of JSON */
};

struct vault_secret {
    char tenant[40];
    char name[VAULT_NAME_MAX];
    char id[40];
    uint64_t revision; /* of the value, from 1 */
    struct buf sealed;
    char *spec;     /* JSON: where it may go; "": only where somebody else says so (E2B's headers) */
    char *metadata; /* JSON object */
    uint64_t created_unix_ms, updated_unix_ms;
};

int vault_load(struct front *f, struct err *err);
void vault_free(struct front *f);
/* By name or by id; NULL: there is none. Valid until the loop goes round. */
const struct vault_secret *vault_find(struct front *f, const char *tenant, const char *name);
typedef void vault_each_fn(void *arg, const struct vault_secret *s);
void vault_each(struct front *f, const char *tenant /* NULL: of all */, vault_each_fn *fn, void *arg);

enum vault_how { VAULT_NEW, VAULT_VERSION, VAULT_EITHER };
struct vault_change {
    const char *tenant, *name;
    const char *value; /* NULL: stays as it is */
    size_t nvalue;
    const json_t *spec;     /* NULL: stays as it is */
    const json_t *metadata; /* NULL: stays as it is */
    enum vault_how how;
};
/* done: once, from the loop. On failure err->eno says what: ENOENT, EEXIST, EINVAL, ENOSPC, EDQUOT (the
 * tenant's share), EAGAIN (egress is not there). The
 * name of a change that succeeded is found by vault_find(). */
typedef void vault_done(void *arg, const struct err *err);
void vault_put(struct front *f, const struct vault_change *c, vault_done *done, void *arg);
void vault_remove(struct front *f, const char *tenant, const char *name, vault_done *done, void *arg);
void vault_tenant_gone(struct front *f, const char *tenant);

/* Messages for egress; new references. */
json_t *vault_message(const struct vault_secret *s);
/* Headers that are set, as a secret of their own. */
json_t *vault_header_message(const char *tenant, const struct net_header *h);
json_t *vault_gone_message(const char *tenant, const char *name);

/* What stands inside a sandbox in place of the value: as the spec says, with at least 128 random bits. */
char *vault_placeholder(const struct vault_secret *s);
/* The variable that holds the placeholder; NULL: none. Owned by the caller. */
char *vault_variable(const struct vault_secret *s);
/* Rules that allow what the secret is bound to, and use it; a new reference. Empty: it is bound to nothing. */
json_t *vault_rules(const struct vault_secret *s);

#endif
