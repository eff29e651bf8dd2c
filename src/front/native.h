/* native.h - our own API below /v1: what E2B's has no word for. See docs/api.md. */
#ifndef HUTCH_FRONT_NATIVE_H
#define HUTCH_FRONT_NATIVE_H

#include <jansson.h>

#include "front/api.h"

api_fn native_openapi, native_capabilities, native_node, native_events;
api_fn native_tenants, native_tenant, native_tenant_put, native_tenant_change, native_tenant_remove;
api_fn native_keys, native_key_create, native_key_remove;
api_fn native_stop_all;
api_fn native_store, native_store_verify, native_store_gc;       /* native-store.c */
api_fn native_create;                                            /* native-create.c */
api_fn native_network, native_network_put, native_network_patch; /* native-network.c */
api_fn native_network_denials, native_network_stats, native_network_usage, native_network_learned, native_network_check;
api_fn native_approvals, native_approval_decide; /* native-approvals.c */
api_fn native_secrets, native_secret, native_secret_put, native_secret_post,
    native_secret_remove; /* native-secrets.c */

api_fn native_history, native_history_make, native_history_diff, native_history_file,
    native_history_undo;                                                            /* native-history.c */
api_fn native_tx_start, native_tx, native_txs, native_tx_commit, native_tx_discard; /* native-tx.c */

api_fn native_templates, native_template, native_template_remove, native_template_set, native_template_import,
    native_template_restore, native_template_export, native_build_cancel; /* native-templates.c, native-export.c */

api_fn native_ports, native_ports_put, native_link, native_links_revoke; /* native-ports.c */

api_fn native_life, native_life_patch; /* native-state.c */

api_fn native_volumes, native_volume, native_volume_create, native_volume_resize; /* native-volumes.c */

/* native-state.c: "onTimeout", "autoResume" and "idleTimeout", each if it is there. */
int native_read_life(json_t *root, struct box_life *life, struct err *err);
/* Whether too much waits for the process that keeps files: 503 was answered. */
bool native_crowded(struct api_call *c);
/* What a node can keep, for the capabilities. */
struct json;
void native_add_state(struct json *j, struct api_call *c);

/* native-ports.c: "publicPorts" and "portHosts", each if it is there. 0, or -1 with a text for a 400. */
int native_read_ports(json_t *root, struct box_ports *ports, struct err *err);

/* native-network.c: "policy" or "network" (the value) together with "secrets" (names; NULL: none) as a document; value NULL:
 * off. 0, or -1 with a text for a 400. */
struct net_doc;
int native_read_network(struct api_call *c, json_t *value, json_t *secrets, struct net_doc *ret, struct err *err);

#endif
