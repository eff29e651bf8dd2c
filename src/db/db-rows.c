/* store-rows.c - the statements, and rows of tenants, keys, idempotency keys and events. */
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/mem.h"
#include "db/db-int.h"

/* Not "OR REPLACE": that would delete the row first, and with it the tenant's keys. */
static const char tenant_put[] =
    "INSERT INTO tenants VALUES(?,?,?,?,?,?,?,?,?,?,?,?) ON CONFLICT(id) DO UPDATE SET name=excluded.name,"
    " sandboxes=excluded.sandboxes, cpu_milli=excluded.cpu_milli, memory=excluded.memory, disk=excluded.disk,"
    " rate=excluded.rate, burst=excluded.burst, max_timeout=excluded.max_timeout,"
    " snapshots=excluded.snapshots, state_bytes=excluded.state_bytes, state_entries=excluded.state_entries";

const char *const db_sql[SQL_COUNT] = {
    [SQL_TENANT_PUT] = tenant_put,
    [SQL_TENANT_DEL] = "DELETE FROM tenants WHERE id=?",
    [SQL_SECRET_PUT] = "INSERT OR REPLACE INTO secrets VALUES(?,?,?,?,?,?,?,?,?)",
    [SQL_SECRET_DEL] = "DELETE FROM secrets WHERE tenant=? AND name=?",
    [SQL_TEMPLATE_PUT] = "INSERT OR REPLACE INTO templates VALUES(?,?,?,?,?,?,?,?,?,?,?,?,?,?)",
    [SQL_TEMPLATE_DEL] = "DELETE FROM templates WHERE id=?",
    [SQL_VOLUME_PUT] = "INSERT INTO volumes VALUES(?,?,?,?,?,?,?) ON CONFLICT(id) DO UPDATE SET name=excluded.name,"
                       " token=excluded.token, bytes=excluded.bytes, entries=excluded.entries",
    [SQL_VOLUME_DEL] = "DELETE FROM volumes WHERE id=?",
    [SQL_KEY_PUT] = "INSERT OR REPLACE INTO keys VALUES(?,?,?,?,?,?,?,?,?)",
    [SQL_KEY_DEL] = "DELETE FROM keys WHERE id=?",
    [SQL_KEY_USED] = "UPDATE keys SET used=?2 WHERE id=?1",
    [SQL_SANDBOX_PUT] =
        "INSERT OR REPLACE INTO boxes VALUES(?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)",
    [SQL_SANDBOX_END] = "UPDATE boxes SET ends=?2 WHERE id=?1",
    [SQL_SANDBOX_DEL] = "DELETE FROM boxes WHERE id=?",
    [SQL_GENERATION_PUT] = "INSERT OR REPLACE INTO generations VALUES(?,?,?,?,?,?)",
    [SQL_GENERATION_DEL] = "DELETE FROM generations WHERE sandbox=? AND number=?",
    [SQL_TRANSACTION_PUT] = "INSERT INTO transactions VALUES(?,?,?,?,?,?,?,?,?,?,?,?,?,?)"
                            " ON CONFLICT(id) DO UPDATE SET state=excluded.state",
    [SQL_TRANSACTION_DEL] = "DELETE FROM transactions WHERE id=?",
    [SQL_STEP_PUT] = "INSERT OR REPLACE INTO steps VALUES(?,?,?,?)",
    [SQL_STEP_DEL] = "DELETE FROM steps WHERE tenant=? AND key=?",
    [SQL_NET_PUT] = "INSERT OR REPLACE INTO networks VALUES(?,?,?,?,?,?,?)",
    [SQL_NET_SWEEP] = "DELETE FROM networks WHERE sandbox NOT IN (SELECT id FROM boxes)",
    [SQL_USAGE_PUT] = "INSERT OR REPLACE INTO usage VALUES(?,?,?)",
    [SQL_USAGE_SWEEP] = "DELETE FROM usage WHERE (sandbox<>'' AND sandbox NOT IN (SELECT id FROM boxes))"
                        " OR tenant NOT IN (SELECT id FROM tenants)",
    [SQL_IDEM_PUT] = "INSERT OR REPLACE INTO idem VALUES(?,?,?,?,?)",
    [SQL_IDEM_DEL] = "DELETE FROM idem WHERE tenant=? AND key=?",
    [SQL_IDEM_EXPIRE] = "DELETE FROM idem WHERE created<?",
    [SQL_EVENT_ADD] = "INSERT INTO events(sandbox,tenant,seq,at,type,json) VALUES(?,?,?,?,?,?)",
    [SQL_EVENT_TRIM] = "DELETE FROM events WHERE n IN (SELECT n FROM (SELECT n, row_number() OVER (PARTITION BY tenant"
                       " ORDER BY n DESC) AS newer FROM events) WHERE newer > ?)",
    [SQL_MARK] = "INSERT OR REPLACE INTO counters VALUES('mark', ?1), ('seen', ?2)",
    [SQL_BARRIER] = "UPDATE counters SET value=value WHERE 0",
    /* Must change a row: SQLite does not sync a commit that changes nothing. */
    [SQL_SYNC] = "INSERT INTO counters VALUES('syncs', 1) ON CONFLICT(name) DO UPDATE SET value=value + 1",
};
void db_tenant_put(struct db *s, const struct db_tenant *t, db_done *done, void *arg)
{
    struct db_op *op = db_op_new(SQL_TENANT_PUT, done, arg);
    db_op_text(op, t->id);
    db_op_text(op, t->name);
    db_op_number(op, t->sandboxes);
    db_op_number(op, t->cpu_milli);
    db_op_number(op, t->memory);
    db_op_number(op, t->disk);
    db_op_number(op, t->requests_per_second);
    db_op_number(op, t->burst);
    db_op_number(op, t->max_timeout_s);
    db_op_number(op, t->snapshots);
    db_op_number(op, t->state_bytes);
    db_op_number(op, t->state_entries);
    db_op_send(s, op);
}

void db_send_by_id(struct db *s, enum db_sql sql, const char *id, db_done *done, void *arg)
{
    struct db_op *op = db_op_new(sql, done, arg);
    db_op_text(op, id);
    db_op_send(s, op);
}

void db_tenant_del(struct db *s, const char *id, db_done *done, void *arg)
{
    db_send_by_id(s, SQL_TENANT_DEL, id, done, arg);
}

void db_key_put(struct db *s, const struct db_key *k, db_done *done, void *arg)
{
    struct db_op *op = db_op_new(SQL_KEY_PUT, done, arg);
    db_op_text(op, k->id);
    db_op_text(op, k->tenant);
    db_op_text(op, k->name);
    db_op_text(op, k->hint);
    db_op_text(op, k->digest);
    db_op_number(op, k->scopes);
    db_op_number(op, k->created_unix);
    db_op_number(op, k->expires_unix);
    db_op_number(op, k->used_unix);
    db_op_send(s, op);
}

void db_key_del(struct db *s, const char *id, db_done *done, void *arg)
{
    db_send_by_id(s, SQL_KEY_DEL, id, done, arg);
}

void db_key_used(struct db *s, const char *id, uint64_t used_unix)
{
    struct db_op *op = db_op_new(SQL_KEY_USED, NULL, NULL);
    db_op_text(op, id);
    db_op_number(op, used_unix);
    db_op_send(s, op);
}

void db_op_strv(struct db_op *op, const struct strv *v)
{
    _cleanup_buf_ struct buf b = {0};
    for (size_t i = 0; i < v->n; i++)
        buf_add(&b, v->v[i], strlen(v->v[i]) + 1);
    db_op_blob(op, buf_str(&b), b.n);
}

void db_column_strv(sqlite3_stmt *st, int at, struct strv *ret)
{
    const char *p = sqlite3_column_blob(st, at);
    size_t n = (size_t)sqlite3_column_bytes(st, at);
    for (size_t len; n > 0; p += len + 1, n -= len + 1) {
        len = strnlen(p, n);
        if (len == n)
            return;
        strv_add(ret, p);
    }
}

void db_idem_expire(struct db *s, uint64_t before_unix)
{
    struct db_op *op = db_op_new(SQL_IDEM_EXPIRE, NULL, NULL);
    db_op_number(op, before_unix);
    db_op_send(s, op);
}

void db_idem_del(struct db *s, const char *tenant, const char *key)
{
    struct db_op *op = db_op_new(SQL_IDEM_DEL, NULL, NULL);
    db_op_text(op, tenant);
    db_op_text(op, key);
    db_op_send(s, op);
}

void db_event_add(struct db *s, const struct db_event *e)
{
    struct db_op *op = db_op_new(SQL_EVENT_ADD, NULL, NULL);
    db_op_text(op, e->sandbox);
    db_op_text(op, e->tenant);
    db_op_number(op, e->seq);
    db_op_number(op, e->at_unix_ms);
    db_op_text(op, e->type);
    db_op_text(op, e->json);
    db_op_send(s, op);
}

/* --- reading ------------------------------------------------------------------------------------------------------ */

int db_read_all(struct db *s, const char *sql, struct reading *r, struct err *err)
{
    sqlite3_stmt *st = NULL;
    int rc = sqlite3_prepare_v2(s->read, sql, -1, &st, NULL);
    while (rc == SQLITE_OK || rc == SQLITE_ROW) {
        rc = sqlite3_step(st);
        if (rc == SQLITE_ROW)
            r->row(r, st);
    }
    (void)sqlite3_finalize(st);
    return rc == SQLITE_DONE ? 0 : db_fail(err, s->read, rc, s->path, "cannot be read");
}

typedef void tenant_fn(void *arg, const struct db_tenant *t);
static void tenant_row(struct reading *r, sqlite3_stmt *st)
{
    struct db_tenant t = {.id = db_text_at(st, 0),
                          .name = db_text_at(st, 1),
                          .sandboxes = db_u32_at(st, 2),
                          .cpu_milli = db_u32_at(st, 3),
                          .memory = db_u64_at(st, 4),
                          .disk = db_u64_at(st, 5),
                          .requests_per_second = db_u32_at(st, 6),
                          .burst = db_u32_at(st, 7),
                          .max_timeout_s = db_u32_at(st, 8),
                          .snapshots = db_u32_at(st, 9),
                          .state_bytes = db_u64_at(st, 10),
                          .state_entries = db_u64_at(st, 11)};
    (*(tenant_fn **)r->each)(r->arg, &t);
}

int db_tenants(struct db *s, tenant_fn *each, void *arg, struct err *err)
{
    struct reading r = {.each = &each, .arg = arg, .row = tenant_row};
    return db_read_all(s, "SELECT * FROM tenants", &r, err);
}

typedef void key_fn(void *arg, const struct db_key *k);
static void key_row(struct reading *r, sqlite3_stmt *st)
{
    struct db_key k = {.id = db_text_at(st, 0),
                       .tenant = db_text_at(st, 1),
                       .name = db_text_at(st, 2),
                       .hint = db_text_at(st, 3),
                       .digest = db_text_at(st, 4),
                       .scopes = db_u32_at(st, 5),
                       .created_unix = db_u64_at(st, 6),
                       .expires_unix = db_u64_at(st, 7),
                       .used_unix = db_u64_at(st, 8)};
    (*(key_fn **)r->each)(r->arg, &k);
}

int db_keys(struct db *s, key_fn *each, void *arg, struct err *err)
{
    struct reading r = {.each = &each, .arg = arg, .row = key_row};
    return db_read_all(s, "SELECT * FROM keys", &r, err);
}

typedef void idem_fn(void *arg, const struct db_idem *i);
static void idem_row(struct reading *r, sqlite3_stmt *st)
{
    struct db_idem i = {.tenant = db_text_at(st, 0),
                        .key = db_text_at(st, 1),
                        .digest = db_text_at(st, 2),
                        .sandbox = db_text_at(st, 3),
                        .created_unix = db_u64_at(st, 4)};
    (*(idem_fn **)r->each)(r->arg, &i);
}

int db_idems(struct db *s, idem_fn *each, void *arg, struct err *err)
{
    struct reading r = {.each = &each, .arg = arg, .row = idem_row};
    return db_read_all(s, "SELECT * FROM idem ORDER BY created", &r, err);
}

typedef void event_fn(void *arg, const struct db_event *e);
static void event_row(struct reading *r, sqlite3_stmt *st)
{
    struct db_event e = {.sandbox = db_text_at(st, 1),
                         .tenant = db_text_at(st, 2),
                         .seq = db_u64_at(st, 3),
                         .at_unix_ms = db_u64_at(st, 4),
                         .type = db_text_at(st, 5),
                         .json = db_text_at(st, 6)};
    (*(event_fn **)r->each)(r->arg, &e);
}

static int store_by_size(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

int db_events_level(sqlite3 *db, size_t max, uint64_t *ret)
{
    _cleanup_free_ uint64_t *counts = NULL;
    size_t n = 0, cap = 0;
    sqlite3_stmt *st = NULL;
    int rc = sqlite3_prepare_v2(db, "SELECT count(*) FROM events GROUP BY tenant", -1, &st, NULL);
    while (rc == SQLITE_OK || rc == SQLITE_ROW) {
        rc = sqlite3_step(st);
        if (rc != SQLITE_ROW)
            break;
        MEM_GROW(counts, n, cap);
        counts[n++] = db_u64_at(st, 0);
    }
    (void)sqlite3_finalize(st);
    if (n > 1)
        qsort(counts, n, sizeof *counts, store_by_size);
    uint64_t left = max, level = UINT64_MAX >> 1; /* everything fits */
    for (size_t i = 0; i < n; left -= counts[i++])
        if (counts[i] > left / (n - i)) {
            level = left / (n - i);
            break;
        }
    *ret = level;
    return rc == SQLITE_DONE ? SQLITE_OK : rc;
}

int db_events(struct db *s, size_t max, event_fn *each, void *arg, struct err *err)
{
    struct reading r = {.each = &each, .arg = arg, .row = event_row};
    uint64_t level = 0;
    int rc = db_events_level(s->read, max, &level);
    if (rc != SQLITE_OK)
        return db_fail(err, s->read, rc, s->path, "cannot be read");
    _cleanup_free_ char *sql = xasprintf(
        "SELECT n, sandbox, tenant, seq, at, type, json FROM (SELECT *, row_number() OVER (PARTITION BY tenant"
        " ORDER BY n DESC) AS newer FROM events) WHERE newer <= %llu ORDER BY n",
        (unsigned long long)level);
    return db_read_all(s, sql, &r, err);
}
