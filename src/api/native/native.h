/* native.h - Hutch's own API below /v1, for what E2B's API cannot express. Each route translates JSON into calls of
 * front's modules and back; it keeps state only for requests under way and never reaches into a module's tables. See
 * docs/api.md.
 */
#ifndef HUTCH_API_NATIVE_NATIVE_H
#define HUTCH_API_NATIVE_NATIVE_H

#include <jansson.h>

#include "api/api.h"

extern const struct api_dialect native_dialect; /* routes.c */

api_fn native_openapi, native_capabilities, native_node, native_events;
api_fn native_tenants, native_tenant, native_tenant_put, native_tenant_change, native_tenant_remove;
api_fn native_keys, native_key_create, native_key_remove;
api_fn native_stop_all;
api_fn native_store, native_store_verify, native_store_gc;       /* store.c */
api_fn native_create;                                            /* create.c */
api_fn native_network, native_network_put, native_network_patch; /* network.c */
api_fn native_network_denials, native_network_stats, native_network_usage, native_network_learned, native_network_check;
api_fn native_approvals, native_approval_decide;                                                   /* approvals.c */
api_fn native_secrets, native_secret, native_secret_put, native_secret_post, native_secret_remove; /* secrets.c */

api_fn native_history, native_history_make, native_history_diff, native_history_file,
    native_history_undo;                                                            /* history.c */
api_fn native_tx_start, native_tx, native_txs, native_tx_commit, native_tx_discard; /* tx.c */

api_fn native_templates, native_template, native_template_remove, native_template_set, native_template_import,
    native_template_restore, native_template_export, native_build_cancel; /* templates.c, export.c */

api_fn native_ports, native_ports_put, native_link, native_links_revoke; /* ports.c */

api_fn native_life, native_life_patch; /* state.c */

api_fn native_code, native_contexts, native_context_new, native_context_restart, native_context_remove; /* code.c */

api_fn native_volumes, native_volume, native_volume_create, native_volume_resize; /* volumes.c */

/* state.c: "onTimeout", "autoResume" and "idleTimeout"; absent fields leave *life alone. */
int native_read_life(json_t *root, struct sandbox_life *life, struct err *err);
/* True if the layer store's queue is too long: it answered with 503. */
bool native_crowded(struct api_call *c);
/* Adds what the node can store and how much of it is used, for GET /v1/capabilities. */
struct json;
void native_add_state(struct json *j, struct api_call *c);

/* ports.c: "publicPorts" and "portHosts"; absent fields leave *ports alone. 0, or -1 with a text for a 400. */
int native_read_ports(json_t *root, struct sandbox_ports *ports, struct err *err);

/* network.c: makes a document of the value of "policy" or "network" (NULL: off) and of the names in "secrets"
 * (NULL: none). 0, or -1 with a text for a 400. */
struct net_doc;
int native_read_network(struct api_call *c, json_t *value, json_t *secrets, struct net_doc *ret, struct err *err);

#endif
