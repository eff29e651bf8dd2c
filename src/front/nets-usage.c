/* nets-usage.c - what sandboxes and tenants have sent and received, kept: egress tells what has changed, the store has it, and
 * an egress that has just begun is told what was counted before, before it hears of the first policy.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/log.h"
#include "base/mem.h"
#include "front/boxes-int.h"
#include "front/nets-int.h"

enum { HOSTS_MAX = 1024 }; /* twice what egress keeps */

/* A tenant's sums; and the one write of the tenant that may be on its way, whether it is of these or of a sandbox. */
struct net_usage {
    struct front *front;
    json_t *counted; /* NULL: nothing yet */
    bool changed;    /* and not written */
    bool writing;
    char box[SANDBOX_ID_MAX]; /* whose counters are being written; "": the sums */
    struct strv boxes;        /* whose counters have changed and are not written */
    uint64_t connected;       /* to which egress it was told; 0: none */
    char tenant[];
};

static struct net_usage *usage_of(struct front *f, const char *tenant)
{
    struct net_usage *u = map_get(&f->nets->usage, tenant);
    if (u)
        return u;
    size_t n = strlen(tenant) + 1;
    u = xcalloc(1, sizeof *u + n);
    u->front = f;
    memcpy(u->tenant, tenant, n);
    (void)map_put(&f->nets->usage, u->tenant, u);
    return u;
}

/* --- the store ---------------------------------------------------------------------------------------------------- */

static void write_next(struct net_usage *u);

/* Of one that is on its way out, nothing is kept: its row goes with it, and one written later would be the next one's of that
 * name. */
static bool counts(struct front *f, const char *tenant)
{
    const struct tenant *t = tenants_find(f, tenant);
    return t && !t->closing;
}

static void box_changed(struct net_usage *u, struct box *b)
{
    if (!b || !b->net || b->net->usage_changed || b->hidden)
        return;
    b->net->usage_changed = true;
    strv_add(&u->boxes, b->id);
}

static void written(void *arg, const struct err *err)
{
    struct net_usage *u = arg;
    u->writing = false;
    if (!err) {
        write_next(u);
        return;
    }
    log_text(LOG_LEVEL_WARN, "counters of tenant %s are not stored: %s", u->tenant, err->msg);
    if (u->box[0]) /* again, but not before something has changed: it is no use to insist */
        box_changed(u, map_get(&u->front->boxes->by_id, u->box));
    else
        u->changed = true;
}

static bool write_row(struct net_usage *u, const char *sandbox, const json_t *counted)
{
    char *text = json_dumps(counted, JSON_COMPACT);
    if (text) {
        u->writing = true;
        (void)snprintf(u->box, sizeof u->box, "%s", sandbox);
        store_usage_put(u->front->store, u->tenant, sandbox, text, written, u);
    }
    free(text);
    return text != NULL;
}

/* One after another: a tenant that changes much has its last numbers written, not each of them. */
static void write_next(struct net_usage *u)
{
    if (u->writing || !counts(u->front, u->tenant))
        return;
    if (u->changed) {
        u->changed = false;
        if (write_row(u, "", u->counted))
            return;
    }
    while (u->boxes.n) {
        _cleanup_free_ char *id = u->boxes.v[--u->boxes.n];
        u->boxes.v[u->boxes.n] = NULL;
        struct box *b = map_get(&u->front->boxes->by_id, id);
        if (!b || !b->net || !b->net->usage) /* it ended: its row is gone, or never was */
            continue;
        b->net->usage_changed = false;
        if (write_row(u, b->id, b->net->usage))
            return;
    }
}

static void load_one(void *arg, const char *tenant, const char *sandbox, const char *text)
{
    struct front *f = arg;
    struct box *b = *sandbox ? map_get(&f->boxes->by_id, sandbox) : NULL;
    json_t *counted = json_loads(text, 0, NULL);
    if (!json_is_object(counted) || (*sandbox && (!b || !b->net)) || !tenants_find(f, tenant)) {
        json_decref(counted);
        return;
    }
    json_t **to = b ? &b->net->usage : &usage_of(f, tenant)->counted;
    json_decref(*to);
    *to = counted;
}

int net_usage_load(struct front *f, struct err *err)
{
    if (store_usages(f->store, load_one, f, err) < 0)
        return -1;
    store_usage_sweep(f->store);
    return 0;
}

static void usage_free(struct net_usage *u)
{
    json_decref(u->counted);
    strv_done(&u->boxes);
    free(u);
}

void net_usage_free(struct nets *n)
{
    size_t at = 0;
    for (struct net_usage *u; (u = map_next(&n->usage, &at));)
        usage_free(u);
    map_done(&n->usage);
}

/* --- egress ------------------------------------------------------------------------------------------------------- */

/* Totals replace totals; of hosts only those come that have changed. */
static void merge(json_t **have, const json_t *message)
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

void net_usage_event(struct front *f, struct box *b, const json_t *message)
{
    const char *tenant = b ? b->tenant->id : json_string_value(json_object_get(message, "tenant"));
    struct net_usage *u = tenant && counts(f, tenant) ? usage_of(f, tenant) : NULL;
    if (!u)
        return;
    merge(b ? &b->net->usage : &u->counted, message);
    if (b)
        box_changed(u, b);
    else
        u->changed = true;
    write_next(u);
}

static json_t *seed_message(const char *tenant, const char *sandbox, json_t *counted)
{
    return json_pack("{s:s, s:s, s:s*, s:O}", "type", "seed", "tenant", tenant, "sandbox", sandbox, "usage", counted);
}

void net_usage_tell(struct front *f, const char *tenant, struct box *b)
{
    struct net_usage *u = map_get(&f->nets->usage, tenant);
    if (u && u->counted && u->connected != f->nets->connection) {
        u->connected = f->nets->connection;
        net_send(f->nets, seed_message(tenant, NULL, u->counted));
    }
    if (b && b->net && b->net->usage && b->net->usage_connection != f->nets->connection) {
        b->net->usage_connection = f->nets->connection;
        net_send(f->nets, seed_message(tenant, b->id, b->net->usage));
    }
}

void nets_tenant_gone(struct front *f, const char *tenant)
{
    struct net_usage *u = f->nets ? map_get(&f->nets->usage, tenant) : NULL;
    if (f->nets)
        net_send(f->nets, json_pack("{s:s, s:s}", "type", "forget", "tenant", tenant));
    if (u && !u->writing) {
        (void)map_del(&f->nets->usage, tenant);
        usage_free(u);
    } else if (u) { /* a write comes back to it */
        json_decref(u->counted);
        u->counted = NULL;
        strv_done(&u->boxes);
        u->changed = false;
        u->connected = 0;
    }
}
