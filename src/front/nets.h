/* nets.h - the network of each sandbox: its document and epoch, its placeholders, what was refused it and what waits for
 * somebody's decision. The store has the documents; egress has what is in force and is told everything again after a restart.
 */
#ifndef HUTCH_FRONT_NETS_H
#define HUTCH_FRONT_NETS_H

#include <jansson.h>

#include "front/boxes.h"
#include "front/egressc.h"
#include "front/net-doc.h"

enum {
    NET_APPLY_MS = 10 * 1000,    /* for a policy to be in force; a machine may have no time for a while */
    NET_ASK_MS = 10 * 1000,      /* for an answer of egress */
    NET_DENIALS_KEPT = 64,       /* of one sandbox, for the ends of commands */
    NET_HEADERS_KEPT_MAX = 1600, /* sets of headers of all sandboxes: each is a secret to egress */
    NET_HEADERS_TENANT_MAX = NET_HEADERS_KEPT_MAX / 8,
    NET_APPROVALS_MAX = 4096,
    NET_APPROVALS_TENANT_MAX = NET_APPROVALS_MAX / 8,
    NET_APPROVALS_OF_BOX_MAX = 32,
    NET_APPROVAL_LIFE_S = 3600,
    NET_APPROVAL_MINUTES_MAX = 7 * 24 * 60,
};

struct net_denial {
    uint64_t at_ms; /* loop time */
    json_t *record; /* owned */
};
struct box_net {
    struct net_doc doc;
    uint64_t epoch, replaced; /* replaced: the epoch of the last document that was given as a whole */
    struct strv placeholders; /* secret, text, secret, text ... */
    struct strv denied;       /* approvals that were refused */
    struct net_denial denials[NET_DENIALS_KEPT];
    uint64_t ndenials;         /* ever; the newest is at (ndenials - 1) % NET_DENIALS_KEPT */
    json_t *usage;             /* egress's last word about its counters, or NULL */
    bool usage_changed;        /* and waits to be written */
    uint64_t usage_connection; /* egress was told it then; nets-usage.c */
};

/* without: there is no egress. Opens the connection; boxes and the vault are loaded by then. */
int nets_open(struct front *f, int run_dir, bool without, struct err *err);
int nets_load(struct front *f, struct err *err); /* before nets_open(): networks of the boxes that were loaded */
void nets_free(struct front *f);
/* There is a way out; false: sandboxes have no network, whatever their documents say. */
bool nets_on(const struct front *f);

/* The public key to which secrets are sealed; false: egress has not said it yet. */
bool nets_key(const struct front *f, unsigned char ret[EGRESSC_KEY]);
struct vault_secret;
void nets_secret_changed(struct front *f, const struct vault_secret *s);
void nets_secret_gone(struct front *f, const char *tenant, const char *name);
void nets_tenant_gone(struct front *f, const char *tenant); /* its counters go, here and in egress */

/* --- for boxes*.c ---------------------------------------------------------------------------------------------------- */

/* doc NULL: off. Takes nothing. The secrets it names must be there: -1 with *err if not; ERR_LIMIT: the tenant's share of
 * something is used up. */
int net_attach(struct front *f, struct box *b, const struct net_doc *doc, struct err *err);
void net_write(struct front *f, const struct box *b);
/* Tells egress; done when it is in force. Only if nets_on(). */
void net_tell(struct front *f, struct box *b, egressc_done *done, void *arg);
/* Variables for the commands of a box: placeholders, and what makes clients trust our authority. Those in `have` win. */
void net_environment(struct front *f, const struct box *b, struct strv *env);
void net_gone(struct front *f, struct box *b); /* egress and the approvals forget it */
void net_detach(struct box *b);                /* frees */

/* --- for the API ------------------------------------------------------------------------------------------------------- */

/* status 0: done. Otherwise what to answer: 400, 409, 503. */
typedef void net_done(void *arg, unsigned status, const char *text);
/* Replaces the document; expected 0: whatever epoch it has. Told when it is stored and in force. NET_PART: it is the one
 * that is there with something added or taken out; requests that were granted once may then end in peace. */
enum net_change { NET_WHOLE, NET_PART };
void net_set(struct front *f, struct box *b, const struct net_doc *doc, enum net_change change, uint64_t expected,
             net_done *done, void *arg);
/* A request to egress about a box (message taken, its sandbox is put in), or with NULL about a tenant. The answer
 * to "stats" is about all sandboxes. */
void net_ask(struct front *f, const struct box *b, json_t *message, egressc_done *done, void *arg);

struct approval {
    char id[40];
    char sandbox[SANDBOX_ID_MAX];
    char tenant[40];
    json_t *request; /* host, port, method, path, rule, tls, why */
    uint64_t asked_unix_ms;
};
typedef void approval_fn(void *arg, const struct approval *a);
void approvals_each(struct front *f, const char *tenant, approval_fn *fn, void *arg);
enum approval_decision { APPROVAL_ONCE, APPROVAL_MINUTES, APPROVAL_SANDBOX, APPROVAL_DENY };
/* done with 404 if there is no such question (any more). */
void approval_decide(struct front *f, const char *tenant, const char *id, enum approval_decision d, unsigned minutes,
                     net_done *done, void *arg);

/* Refusals since that loop time, as members of the open array; how many. */
struct json;
size_t net_denials_since(const struct box *b, uint64_t since_ms, struct json *j);

/* approvals.c, for nets.c */
void approvals_forget(struct front *f, const char *sandbox);
void approvals_free(struct front *f);

#endif
