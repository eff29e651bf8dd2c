/* networks.h - the network of each sandbox: document and epoch, placeholders of secrets, refusals, and requests that
 * wait for approval. The database keeps the documents; egress enforces them and gets everything again after a
 * restart. front decides nothing about single connections.
 */
#ifndef HUTCH_NETWORK_NETWORKS_H
#define HUTCH_NETWORK_NETWORKS_H

#include <jansson.h>

#include "network/doc/documents.h"
#include "peers/egressc.h"
#include "sandboxes/sandboxes.h"

enum {
    NET_APPLY_MS = 10 * 1000,    /* for egress to confirm a policy; long, because the machine may be overloaded */
    NET_ASK_MS = 10 * 1000,      /* for an answer of egress */
    NET_DENIALS_KEPT = 64,       /* of one sandbox; reported when a command ends */
    NET_HEADERS_KEPT_MAX = 1600, /* sets of headers of all sandboxes; egress keeps each as a secret */
    NET_HEADERS_TENANT_MAX = NET_HEADERS_KEPT_MAX / 8,
    NET_APPROVALS_MAX = 4096,
    NET_APPROVALS_TENANT_MAX = NET_APPROVALS_MAX / 8,
    NET_APPROVALS_OF_SANDBOX_MAX = 32,
    NET_APPROVAL_LIFE_S = 3600,
    NET_APPROVAL_MINUTES_MAX = 7 * 24 * 60,
};

struct net_denial {
    uint64_t at_ms; /* loop time */
    json_t *record; /* owned */
};
struct sandbox_net {
    struct net_doc doc;
    uint64_t epoch, replaced; /* replaced: the epoch of the last NET_WHOLE change */
    struct strv placeholders; /* secret, text, secret, text ... */
    struct strv denied;       /* ids of refused approvals */
    struct net_denial denials[NET_DENIALS_KEPT];
    uint64_t ndenials;         /* ever; the newest is at (ndenials - 1) % NET_DENIALS_KEPT */
    json_t *usage;             /* counters as egress reported them last, or NULL */
    bool usage_changed;        /* they wait to be written */
    uint64_t usage_connection; /* connection on which egress was sent them; usage.c */
};

struct db;
struct networks;
struct nets_deps { /* borrowed, for as long as the networks */
    struct loop *loop;
    const struct config *config;
    struct db *db;
    struct tenants *tenants;
    struct sandboxes *sandboxes;
    struct events *events;
};
struct networks *nets_new(const struct nets_deps *d);
int nets_load(struct networks *nw, struct err *err); /* secrets, and the networks of the sandboxes that were loaded */
/* Opens the connection to egress. without: there is none. */
int nets_open(struct networks *nw, int run_dir, bool without, struct err *err);
void nets_free(struct networks *nw);
/* Whether there is an egress; false: sandboxes have no network, regardless of their documents. */
bool nets_on(const struct networks *nw);

/* The public key to which secrets are sealed; false: egress has not said it yet. */
bool nets_key(const struct networks *nw, unsigned char ret[EGRESSC_KEY]);
struct sealed_secret;
void nets_secret_changed(struct networks *nw, const struct sealed_secret *s);
void nets_secret_gone(struct networks *nw, const char *tenant, const char *name);
void nets_tenant_gone(struct networks *nw, const char *tenant); /* removes its counters, here and in egress */

/* --- for sandboxes, as struct sandbox_network --------------------------------------------------------------------- */

/* Gives the sandbox a copy of doc; NULL: off. -1: a secret that it names does not exist; ERR_LIMIT: the tenant's
 * share of headers is used up. */
int net_attach(struct networks *nw, struct sandbox *b, const struct net_doc *doc, struct err *err);
void net_write(struct networks *nw, const struct sandbox *b);
/* Sends the policy to egress; done when it is in force. Only if nets_on(). */
void net_tell(struct networks *nw, struct sandbox *b, egressc_done *done, void *arg);
/* Adds variables for commands: placeholders, and the paths of our certificate authority. Names in `env` are not
 * replaced. */
void net_environment(struct networks *nw, const struct sandbox *b, struct strv *env);
void net_gone(struct networks *nw, struct sandbox *b); /* tells egress to forget it and drops its approvals */
void net_detach(struct sandbox *b);                    /* frees */

/* --- for the API -------------------------------------------------------------------------------------------------- */

/* status 0: success. Otherwise the answer: 400, 409, 503. */
typedef void net_done(void *arg, unsigned status, const char *text);
/* Replaces the document if its epoch is `expected` (0: any); done when the new one is stored and in force. NET_PART:
 * the new document is the present one with rules added or removed, so requests under way may finish. */
enum net_change { NET_WHOLE, NET_PART };
void net_set(struct networks *nw, struct sandbox *b, const struct net_doc *doc, enum net_change change,
             uint64_t expected, net_done *done, void *arg);
/* Sends a request to egress about a sandbox (takes the message and adds the sandbox's id), or with NULL about a
 * tenant. The answer to "stats" covers all sandboxes. */
void net_ask(struct networks *nw, const struct sandbox *b, json_t *message, egressc_done *done, void *arg);

struct approval {
    char id[40];
    char sandbox[SANDBOX_ID_MAX];
    char tenant[40];
    json_t *request; /* host, port, method, path, rule, tls, why */
    uint64_t asked_unix_ms;
};
typedef void approval_fn(void *arg, const struct approval *a);
void approvals_each(struct networks *nw, const char *tenant, approval_fn *fn, void *arg);
enum approval_decision { APPROVAL_ONCE, APPROVAL_MINUTES, APPROVAL_SANDBOX, APPROVAL_DENY };
/* Calls done with 404 if there is no such question. */
void approval_decide(struct networks *nw, const char *tenant, const char *id, enum approval_decision d,
                     unsigned minutes, net_done *done, void *arg);

/* Adds the refusals since that loop time to the open array (j NULL: only counts); returns how many. */
struct json;
size_t net_denials_since(const struct sandbox *b, uint64_t since_ms, struct json *j);

/* approvals.c, for networks.c */
void approvals_forget(struct networks *nw, const char *sandbox);
void approvals_free(struct networks *nw);

#endif
