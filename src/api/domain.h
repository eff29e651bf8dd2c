/* domain.h - the operations that can span nodes, as a table under the dialects: creating and listing sandboxes, and
 * everything that tenants keep beside them. api_domain_local, of a node, is the functions of the domain rooms themselves.
 * An orchestrator has another table and answers the same routes with the same readers and writers.
 *
 * What names one sandbox (exec, files, ports, pause, snapshot, kill, ...) is not in the table: only the node that has the
 * sandbox can do it, so `forward` passes such a request on whole, and the handlers behind it call the domain rooms
 * directly. Nor are builds and imports, which run on one node, and operations about the node itself.
 */
#ifndef HUTCH_API_DOMAIN_H
#define HUTCH_API_DOMAIN_H

#include "network/networks.h"
#include "network/secrets.h"
#include "sandboxes/metrics.h"
#include "sandboxes/sandboxes.h"
#include "templates/templates.h"
#include "tenants/tenants.h"
#include "volumes/volumes.h"

struct api_call;

/* A pointer to a function of the type of this one. Its first argument is the room, as struct api has it: opaque to callers,
 * so that each implementation puts there what it needs. */
#define DOMAIN_OP(fn) __typeof__(fn) *

struct api_domain {
    /* A request for the sandbox of this id, before its body is read; on the control plane the key has been checked. True: it
     * was taken over and will be answered. NULL: all sandboxes are here. */
    bool (*forward)(struct api_call *c, const char *sandbox);
    struct {
        DOMAIN_OP(sandbox_create) create;
        DOMAIN_OP(nets_on) have_network; /* of the room network */
        DOMAIN_OP(sandboxes_each) each;
        DOMAIN_OP(sandbox_of) find; /* one of a list of ids */
        DOMAIN_OP(metrics_last) last_metric;
        DOMAIN_OP(sandbox_end_unix_ms) end_unix_ms;
    } sandboxes;
    struct {
        DOMAIN_OP(template_find) find;
        DOMAIN_OP(template_each) each;
        DOMAIN_OP(template_resolve) find_directory;
        DOMAIN_OP(templates_each) each_directory;
        DOMAIN_OP(template_room) room;
        DOMAIN_OP(template_set) set;
        DOMAIN_OP(template_tag) tag;
        DOMAIN_OP(template_remove) remove;
    } templates;
    struct {
        DOMAIN_OP(volume_find) find;
        DOMAIN_OP(volume_find_mount) find_mount;
        DOMAIN_OP(volumes_each) each;
        DOMAIN_OP(volume_create) create;
        DOMAIN_OP(volume_delete) remove;
    } volumes;
    struct {
        DOMAIN_OP(sealed_find) find;
        DOMAIN_OP(sealed_each) each;
        DOMAIN_OP(sealed_put) put;
        DOMAIN_OP(sealed_remove) remove;
    } secrets;
    struct {
        DOMAIN_OP(tenants_auth) authenticate;
        DOMAIN_OP(tenants_auth_key) authenticate_key;
        DOMAIN_OP(tenants_throttle) throttle;
        DOMAIN_OP(tenants_find) find;
        DOMAIN_OP(tenants_each) each;
        DOMAIN_OP(tenant_put) put;
        DOMAIN_OP(tenant_remove) remove;
        DOMAIN_OP(keys_each) each_key;
        DOMAIN_OP(key_create) create_key;
        DOMAIN_OP(key_remove) remove_key;
    } tenants;
};

extern const struct api_domain api_domain_local;

#endif
