/* store-net.c - rows of networks, usage counters and secrets. */
#include <string.h>

#include "base/cleanup.h"
#include "db/db-int.h"

void db_net_put(struct db *s, const struct db_net *n, db_done *done, void *arg)
{
    struct db_op *op = db_op_new(SQL_NET_PUT, done, arg);
    db_op_text(op, n->sandbox);
    db_op_number(op, n->epoch);
    db_op_text(op, n->document);
    db_op_text(op, n->e2b);
    db_op_strv(op, &n->placeholders);
    db_op_strv(op, &n->denied);
    db_op_text(op, n->proxy_password);
    db_op_send(s, op);
}

void db_net_sweep(struct db *s) { db_op_send(s, db_op_new(SQL_NET_SWEEP, NULL, NULL)); }

void db_usage_put(struct db *s, const char *tenant, const char *sandbox, const char *counters, db_done *done, void *arg)
{
    struct db_op *op = db_op_new(SQL_USAGE_PUT, done, arg);
    db_op_text(op, tenant);
    db_op_text(op, sandbox);
    db_op_text(op, counters);
    db_op_send(s, op);
}

void db_usage_sweep(struct db *s) { db_op_send(s, db_op_new(SQL_USAGE_SWEEP, NULL, NULL)); }

void db_secret_put(struct db *s, const struct db_secret *x, db_done *done, void *arg)
{
    struct db_op *op = db_op_new(SQL_SECRET_PUT, done, arg);
    db_op_text(op, x->tenant);
    db_op_text(op, x->name);
    db_op_text(op, x->id);
    db_op_number(op, x->revision);
    db_op_blob(op, x->sealed, x->nsealed);
    db_op_text(op, x->spec);
    db_op_text(op, x->metadata);
    db_op_number(op, x->created_unix_ms);
    db_op_number(op, x->updated_unix_ms);
    db_op_send(s, op);
}

void db_secret_del(struct db *s, const char *tenant, const char *name, db_done *done, void *arg)
{
    struct db_op *op = db_op_new(SQL_SECRET_DEL, done, arg);
    db_op_text(op, tenant);
    db_op_text(op, name);
    db_op_send(s, op);
}

/* --- reading ------------------------------------------------------------------------------------------------------ */

typedef void net_fn(void *arg, const struct db_net *n);
static void net_row(struct reading *r, sqlite3_stmt *st)
{
    struct db_net n = {.sandbox = db_text_at(st, 0),
                       .epoch = db_u64_at(st, 1),
                       .document = db_text_at(st, 2),
                       .e2b = db_text_at(st, 3),
                       .proxy_password = db_text_at(st, 6)};
    db_column_strv(st, 4, &n.placeholders);
    db_column_strv(st, 5, &n.denied);
    (*(net_fn **)r->each)(r->arg, &n);
    strv_done(&n.placeholders);
    strv_done(&n.denied);
}

int db_nets(struct db *s, net_fn *each, void *arg, struct err *err)
{
    struct reading r = {.each = &each, .arg = arg, .row = net_row};
    return db_read_all(s, "SELECT * FROM networks", &r, err);
}

typedef void secret_fn(void *arg, const struct db_secret *x);
static void secret_row(struct reading *r, sqlite3_stmt *st)
{
    struct db_secret x = {.tenant = db_text_at(st, 0),
                          .name = db_text_at(st, 1),
                          .id = db_text_at(st, 2),
                          .revision = db_u64_at(st, 3),
                          .sealed = sqlite3_column_blob(st, 4),
                          .nsealed = (size_t)sqlite3_column_bytes(st, 4),
                          .spec = db_text_at(st, 5),
                          .metadata = db_text_at(st, 6),
                          .created_unix_ms = db_u64_at(st, 7),
                          .updated_unix_ms = db_u64_at(st, 8)};
    (*(secret_fn **)r->each)(r->arg, &x);
}

int db_secrets(struct db *s, secret_fn *each, void *arg, struct err *err)
{
    struct reading r = {.each = &each, .arg = arg, .row = secret_row};
    return db_read_all(s, "SELECT * FROM secrets", &r, err);
}

typedef void usage_fn(void *arg, const char *tenant, const char *sandbox, const char *counters);
static void usage_row(struct reading *r, sqlite3_stmt *st)
{
    (*(usage_fn **)r->each)(r->arg, db_text_at(st, 0), db_text_at(st, 1), db_text_at(st, 2));
}

int db_usages(struct db *s, usage_fn *each, void *arg, struct err *err)
{
    struct reading r = {.each = &each, .arg = arg, .row = usage_row};
    return db_read_all(s, "SELECT tenant, sandbox, counters FROM usage ORDER BY tenant, sandbox", &r, err);
}
