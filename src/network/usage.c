/* Traffic counters of sandboxes and tenants. egress reports changes, front stores them, and sends them
 * to a new egress before the first policy, so that counting continues.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/log.h"
#include "base/mem.h"
#include "db/db.h"
#include "network/networks-int.h"

enum { HOSTS_MAX = 1024 }; /* twice what egress keeps */

/* A tenant's sums, and its single pending write: of the sums or of one sandbox. */
struct net_usage {
    struct networks *networks;
    json_t *counted; /* NULL: nothing yet */
    bool changed;    /* since the last write */
    bool writing;
    char sandbox[SANDBOX_ID_MAX]; /* sandbox whose counters are being written; "": the sums */
    struct strv sandboxes;        /* sandboxes whose counters have changed since the last write */
    uint64_t connected;           /* connection on which egress got the sums; 0: none */
    char tenant[];
};

static struct net_usage *net_usage_of(struct networks *nw, const char *tenant)
{
    struct net_usage *u = map_get(&nw->usage, tenant);
    if (u)
        return u;
    size_t n = strlen(tenant) + 1;
    u = xcalloc(1, sizeof *u + n);
    u->networks = nw;
    memcpy(u->tenant, tenant, n);
    (void)map_put(&nw->usage, u->tenant, u);
    return u;
}

/* --- the database ------------------------------------------------------------------------------------------------- */

static void net_usage_write_next(struct net_usage *u);

/* False for a tenant that is being removed: its row goes with it, and a row written later would count for the next
 * tenant with that id. */
static bool net_usage_may_count(struct networks *nw, const char *tenant)
{
    const struct tenant *t = tenants_find(nw->tenants, tenant);
    return t && !t->closing;
}

static void net_usage_sandbox_changed(struct net_usage *u, struct sandbox *b)
{
    if (!b || !b->net || b->net->usage_changed || b->desc.hidden)
        return;
    b->net->usage_changed = true;
    strv_add(&u->sandboxes, b->id);
}

static void net_usage_on_row_stored(void *arg, const struct err *err)
{
    struct net_usage *u = arg;
    u->writing = false;
    if (!err) {
        net_usage_write_next(u);
        return;
    }
    log_text(LOG_LEVEL_WARN, "counters of tenant %s are not stored: %s", u->tenant, err->msg);
    if (u->sandbox[0]) /* write it with the next change; retrying at once would fail again */
        net_usage_sandbox_changed(u, sandbox_lookup(u->networks->sandboxes, u->sandbox));
    else
        u->changed = true;
}

static bool net_usage_write_row(struct net_usage *u, const char *sandbox, const json_t *counted)
{
    char *text = json_dumps(counted, JSON_COMPACT);
    if (text) {
        u->writing = true;
        (void)snprintf(u->sandbox, sizeof u->sandbox, "%s", sandbox);
        db_usage_put(u->networks->db, u->tenant, sandbox, text, net_usage_on_row_stored, u);
    }
    free(text);
    return text != NULL;
}

/* Writes one row at a time: of counters that change often only the latest values are written. */
static void net_usage_write_next(struct net_usage *u)
{
    if (u->writing || !net_usage_may_count(u->networks, u->tenant))
        return;
    if (u->changed) {
        u->changed = false;
        if (net_usage_write_row(u, "", u->counted))
            return;
    }
    while (u->sandboxes.n) {
        _cleanup_free_ char *id = u->sandboxes.v[--u->sandboxes.n];
        u->sandboxes.v[u->sandboxes.n] = NULL;
        struct sandbox *b = sandbox_lookup(u->networks->sandboxes, id);
        if (!b || !b->net || !b->net->usage) /* it has ended */
            continue;
        b->net->usage_changed = false;
        if (net_usage_write_row(u, b->id, b->net->usage))
            return;
    }
}

static void net_usage_load_row(void *arg, const char *tenant, const char *sandbox, const char *text)
{
    struct networks *nw = arg;
    struct sandbox *b = *sandbox ? sandbox_lookup(nw->sandboxes, sandbox) : NULL;
    json_t *counted = json_loads(text, 0, NULL);
    if (!json_is_object(counted) || (*sandbox && (!b || !b->net)) || !tenants_find(nw->tenants, tenant)) {
        json_decref(counted);
        return;
    }
    json_t **to = b ? &b->net->usage : &net_usage_of(nw, tenant)->counted;
    json_decref(*to);
    *to = counted;
}

int net_usage_load(struct networks *nw, struct err *err)
{
    if (db_usages(nw->db, net_usage_load_row, nw, err) < 0)
        return -1;
    db_usage_sweep(nw->db);
    return 0;
}

static void net_usage_free_one(struct net_usage *u)
{
    json_decref(u->counted);
    strv_done(&u->sandboxes);
    free(u);
}

void net_usage_free(struct networks *n)
{
    size_t at = 0;
    for (struct net_usage *u; (u = map_next(&n->usage, &at));)
        net_usage_free_one(u);
    map_done(&n->usage);
}

/* --- egress ------------------------------------------------------------------------------------------------------- */

/* New totals replace the old ones; egress sends only hosts whose counters have changed. */
static void net_usage_merge(json_t **have, const json_t *message)
{
    json_t *now = json_copy((json_t *)message), *hosts = json_object_get(*have, "hosts");
    json_t *changed = json_object_get(message, "hosts");
    (void)json_object_del(now, "type");
    (void)json_object_del(now, "sandbox");
    (void)json_object_del(now, "tenant");
    if (json_object_size(hosts) && json_object_size(hosts) <= HOSTS_MAX) {
        (void)json_object_update(hosts, changed);
        (void)json_object_set(now, "hosts", hosts);
    }
    json_decref(*have);
    *have = now;
}

void net_usage_event(struct networks *nw, struct sandbox *b, const json_t *message)
{
    const char *tenant = b ? b->tenant->id : json_string_value(json_object_get(message, "tenant"));
    struct net_usage *u = tenant && net_usage_may_count(nw, tenant) ? net_usage_of(nw, tenant) : NULL;
    if (!u)
        return;
    net_usage_merge(b ? &b->net->usage : &u->counted, message);
    if (b)
        net_usage_sandbox_changed(u, b);
    else
        u->changed = true;
    net_usage_write_next(u);
}

static json_t *net_usage_seed(const char *tenant, const char *sandbox, json_t *counted)
{
    return json_pack("{s:s, s:s, s:s*, s:O}", "type", "seed", "tenant", tenant, "sandbox", sandbox, "usage", counted);
}

void net_usage_tell(struct networks *nw, const char *tenant, struct sandbox *b)
{
    struct net_usage *u = map_get(&nw->usage, tenant);
    if (u && u->counted && u->connected != nw->connection) {
        u->connected = nw->connection;
        net_send(nw, net_usage_seed(tenant, NULL, u->counted));
    }
    if (b && b->net && b->net->usage && b->net->usage_connection != nw->connection) {
        b->net->usage_connection = nw->connection;
        net_send(nw, net_usage_seed(tenant, b->id, b->net->usage));
    }
}

void nets_tenant_gone(struct networks *nw, const char *tenant)
{
    struct net_usage *u = map_get(&nw->usage, tenant);
    net_send(nw, json_pack("{s:s, s:s}", "type", "forget", "tenant", tenant));
    if (u && !u->writing) {
        (void)map_del(&nw->usage, tenant);
        net_usage_free_one(u);
    } else if (u) { /* a write is under way and its callback uses u */
        json_decref(u->counted);
        u->counted = NULL;
        strv_done(&u->sandboxes);
        u->changed = false;
        u->connected = 0;
    }
}
