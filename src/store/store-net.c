/* Rows of networks and secrets. */
#include <string.h>

#include "base/cleanup.h"
#include "store/store-int.h"

void store_net_put(struct store *s, const struct store_net *n, store_done *done, void *arg)
{
    struct store_op *op = store_op_new(SQL_NET_PUT, done, arg);
    store_op_text(op, n->sandbox);
    store_op_number(op, n->epoch);
    store_op_text(op, n->document);
    store_op_text(op, n->e2b);
    store_op_strv(op, &n->placeholders);
    store_op_strv(op, &n->denied);
    store_op_text(op, n->proxy_password);
    store_op_send(s, op);
}

void store_net_sweep(struct store *s) { store_op_send(s, store_op_new(SQL_NET_SWEEP, NULL, NULL)); }

void store_usage_put(struct store *s, const char *tenant, const char *sandbox, const char *counters, store_done *done,
                     void *arg)
{
    struct store_op *op = store_op_new(SQL_USAGE_PUT, done, arg);
    store_op_text(op, tenant);
    store_op_text(op, sandbox);
    store_op_text(op, counters);
    store_op_send(s, op);
}

void store_usage_sweep(struct store *s) { store_op_send(s, store_op_new(SQL_USAGE_SWEEP, NULL, NULL)); }

void store_secret_put(struct store *s, const struct store_secret *x, store_done *done, void *arg)
{
    struct store_op *op = store_op_new(SQL_SECRET_PUT, done, arg);
    store_op_text(op, x->tenant);
    store_op_text(op, x->name);
    store_op_text(op, x->id);
    store_op_number(op, x->revision);
    store_op_blob(op, x->sealed, x->nsealed);
    store_op_text(op, x->spec);
    store_op_text(op, x->metadata);
    store_op_number(op, x->created_unix_ms);
    store_op_number(op, x->updated_unix_ms);
    store_op_send(s, op);
}

void store_secret_del(struct store *s, const char *tenant, const char *name, store_done *done, void *arg)
{
    struct store_op *op = store_op_new(SQL_SECRET_DEL, done, arg);
    store_op_text(op, tenant);
    store_op_text(op, name);
    store_op_send(s, op);
}

/* --- reading ------------------------------------------------------------------------------------------------------ */

typedef void net_fn(void *arg, const struct store_net *n);
static void net_row(struct reading *r, sqlite3_stmt *st)
{
    struct store_net n = {.sandbox = store_text_at(st, 0),
                          .epoch = store_u64_at(st, 1),
                          .document = store_text_at(st, 2),
                          .e2b = store_text_at(st, 3),
                          .proxy_password = store_text_at(st, 6)};
    store_column_strv(st, 4, &n.placeholders);
    store_column_strv(st, 5, &n.denied);
    (*(net_fn **)r->each)(r->arg, &n);
    strv_done(&n.placeholders);
    strv_done(&n.denied);
}

int store_nets(struct store *s, net_fn *each, void *arg, struct err *err)
{
    struct reading r = {.each = &each, .arg = arg, .row = net_row};
    return store_read_all(s, "SELECT * FROM networks", &r, err);
}

typedef void secret_fn(void *arg, const struct store_secret *x);
static void secret_row(struct reading *r, sqlite3_stmt *st)
{
    struct store_secret x = {.tenant = store_text_at(st, 0),
                             .name = store_text_at(st, 1),
                             .id = store_text_at(st, 2),
                             .revision = store_u64_at(st, 3),
                             .sealed = sqlite3_column_blob(st, 4),
                             .nsealed = (size_t)sqlite3_column_bytes(st, 4),
                             .spec = store_text_at(st, 5),
                             .metadata = store_text_at(st, 6),
                             .created_unix_ms = store_u64_at(st, 7),
                             .updated_unix_ms = store_u64_at(st, 8)};
    (*(secret_fn **)r->each)(r->arg, &x);
}

int store_secrets(struct store *s, secret_fn *each, void *arg, struct err *err)
{
    struct reading r = {.each = &each, .arg = arg, .row = secret_row};
    return store_read_all(s, "SELECT * FROM secrets", &r, err);
}

typedef void usage_fn(void *arg, const char *tenant, const char *sandbox, const char *counters);
static void usage_row(struct reading *r, sqlite3_stmt *st)
{
    (*(usage_fn **)r->each)(r->arg, store_text_at(st, 0), store_text_at(st, 1), store_text_at(st, 2));
}

int store_usages(struct store *s, usage_fn *each, void *arg, struct err *err)
{
    struct reading r = {.each = &each, .arg = arg, .row = usage_row};
    return store_read_all(s, "SELECT tenant, sandbox, counters FROM usage ORDER BY tenant, sandbox", &r, err);
}
