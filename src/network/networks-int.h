/* networks-int.h - the private state of networks: headers, approvals, counters, the connection to egress. Private
 * to this room.
 */
#ifndef HUTCH_NETWORK_NETWORKS_INT_H
#define HUTCH_NETWORK_NETWORKS_INT_H

#include "base/map.h"
#include "network/networks.h"

/* Headers that sandboxes of a tenant set. egress knows them as one secret, which all sandboxes with equal headers
 * share. */
struct net_headers {
    char *key; /* "tenant/name" */
    char *tenant;
    struct net_header h;
    size_t uses;
};
struct vault;
struct webhook;
struct networks {
    struct loop *loop; /* these six are borrowed */
    const struct config *config;
    struct db *db;
    struct tenants *tenants;
    struct sandboxes *sandboxes;
    struct events *events;
    struct vault *vault;     /* secrets.c */
    struct webhook *webhook; /* webhook.c; NULL: none */
    struct egressc *client;  /* NULL: there is no egress */
    struct map headers;      /* key -> struct net_headers */
    /* what must be sent to an egress that has just connected: keys of secrets, keys of headers, ids of sandboxes */
    struct strv to_tell[3];
    size_t told[3];
    struct approval_item *approvals; /* oldest first */
    size_t napprovals;
    struct map usage;    /* tenant -> struct net_usage */
    uint64_t connection; /* number of the present connection to egress */
};

json_t *net_message(const struct sandbox *b);
void net_send(struct networks *n, json_t *message); /* to egress, if there is one; takes it */
/* A document begins and ceases to use its headers. */
void net_headers_take(struct networks *n, const char *tenant, const struct net_doc *doc);
void net_headers_drop(struct networks *n, const char *tenant, const struct net_doc *doc);
/* Calls done with this status and text, from the loop. */
void net_refuse(struct networks *nw, unsigned status, const char *text, net_done *done, void *arg);
/* A pending question; NULL: there is none. approval_grant(): the smallest rule that allows it, without an id; a new
 * reference. */
const struct approval *approval_find(struct networks *nw, const char *tenant, const char *id);
json_t *approval_grant(const struct approval *a);
/* usage.c: counters that outlive egress and front. net_usage_event(): egress reports counters of a sandbox, or
 * (NULL) of a tenant. net_usage_tell(): sends them to a new egress, before a policy of the sandbox or a question
 * about the tenant. */
int net_usage_load(struct networks *nw, struct err *err);
void net_usage_free(struct networks *n);
void net_usage_event(struct networks *nw, struct sandbox *b, const json_t *message);
void net_usage_tell(struct networks *nw, const char *tenant, struct sandbox *b);
/* Events of egress. */
void net_event(void *arg, const char *type, json_t *message);

#endif
