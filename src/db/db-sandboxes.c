/* store-sandboxes.c - rows of sandboxes. */
#include <stdio.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/mem.h"
#include "base/num.h"
#include "db/db-int.h"

/* Mounts are one blob of strings: volume, name, place, flags, volume, ... */
static void sandbox_add_mounts(struct db_op *op, const struct db_sandbox *b)
{
    _cleanup_strv_ struct strv v = {0};
    for (size_t i = 0; i < b->nmounts; i++) {
        strv_add(&v, b->mounts[i].volume);
        strv_add(&v, b->mounts[i].name);
        strv_add(&v, b->mounts[i].place);
        strv_take(&v, xasprintf("%u", b->mounts[i].flags));
    }
    db_op_strv(op, &v);
}

void db_sandbox_put(struct db *s, const struct db_sandbox *b, const struct db_idem *idem, db_done *done, void *arg)
{
    struct db_op *op = db_op_new(SQL_SANDBOX_PUT, done, arg);
    const char *texts[] = {b->id,        b->tenant, b->template, b->token, b->traffic_token,
                           b->mask_host, b->tier,   b->degraded};
    for (size_t i = 0; i < ARRAY_LEN(texts); i++)
        db_op_text(op, texts[i]);
    db_op_number(op, b->state);
    db_op_number(op, b->flags);
    db_op_blob(op, b->https_ports, b->nhttps_ports * sizeof b->https_ports[0]);
    db_op_strv(op, &b->metadata);
    db_op_strv(op, &b->env);
    const uint64_t numbers[] = {b->started_unix_ms, b->end_unix_ms, b->cpu_milli, b->pids, b->memory, b->disk};
    for (size_t i = 0; i < ARRAY_LEN(numbers); i++)
        db_op_number(op, numbers[i]);
    db_op_blob(op, b->ports, b->nports * sizeof b->ports[0]);
    db_op_number(op, b->links);
    db_op_text(op, b->stack);
    db_op_text(op, b->parent);
    db_op_number(op, b->idle_s);
    db_op_number(op, b->timeout_s);
    sandbox_add_mounts(op, b);
    db_op_text(op, b->config);
    db_op_number(op, b->state_bytes);
    db_op_text(op, b->more);
    op->durable = b->state == DB_SANDBOX_STORED; /* the row is all that is left of the sandbox */
    if (idem) {
        struct db_op *second = op->next = db_op_new(SQL_IDEM_PUT, NULL, NULL);
        second->joined = true;
        db_op_text(second, idem->tenant);
        db_op_text(second, idem->key);
        db_op_text(second, idem->digest);
        db_op_text(second, idem->sandbox);
        db_op_number(second, idem->created_unix);
    }
    db_op_send(s, op);
}

void db_sandbox_end_at(struct db *s, const char *id, uint64_t end_unix_ms, db_done *done, void *arg)
{
    struct db_op *op = db_op_new(SQL_SANDBOX_END, done, arg);
    db_op_text(op, id);
    db_op_number(op, end_unix_ms);
    db_op_send(s, op);
}

void db_sandbox_del(struct db *s, const char *id, db_done *done, void *arg)
{
    db_send_by_id(s, SQL_SANDBOX_DEL, id, done, arg);
}

/* --- reading ------------------------------------------------------------------------------------------------------ */

static void sandbox_read_mounts(sqlite3_stmt *st, int at, struct strv *v, struct db_sandbox *b)
{
    db_column_strv(st, at, v);
    for (size_t i = 0; i + 3 < v->n && b->nmounts < ARRAY_LEN(b->mounts); i += 4) {
        uint64_t flags = 0;
        (void)num_u64(v->v[i + 3], &flags);
        b->mounts[b->nmounts++] =
            (struct db_mount){.volume = v->v[i], .name = v->v[i + 1], .place = v->v[i + 2], .flags = (uint32_t)flags};
    }
}

/* Reads a blob that is an array; returns its number of elements. */
static size_t array_at(sqlite3_stmt *st, int i, void *ret, size_t size, size_t max)
{
    const void *p = sqlite3_column_blob(st, i);
    size_t n = (size_t)sqlite3_column_bytes(st, i) / size;
    n = n < max ? n : max;
    if (n)
        memcpy(ret, p, n * size);
    return n;
}

typedef void sandbox_fn(void *arg, const struct db_sandbox *b);
static void sandbox_row(struct reading *r, sqlite3_stmt *st)
{
    struct db_sandbox b = {.id = db_text_at(st, 0),
                           .tenant = db_text_at(st, 1),
                           .template = db_text_at(st, 2),
                           .token = db_text_at(st, 3),
                           .traffic_token = db_text_at(st, 4),
                           .mask_host = db_text_at(st, 5),
                           .tier = db_text_at(st, 6),
                           .degraded = db_text_at(st, 7),
                           .state = db_u32_at(st, 8),
                           .flags = db_u32_at(st, 9),
                           .started_unix_ms = db_u64_at(st, 13),
                           .end_unix_ms = db_u64_at(st, 14),
                           .cpu_milli = db_u32_at(st, 15),
                           .pids = db_u32_at(st, 16),
                           .memory = db_u64_at(st, 17),
                           .disk = db_u64_at(st, 18),
                           .links = db_u64_at(st, 20),
                           .stack = db_text_at(st, 21),
                           .parent = db_text_at(st, 22),
                           .idle_s = db_u32_at(st, 23),
                           .timeout_s = db_u64_at(st, 24),
                           .config = db_text_at(st, 26),
                           .state_bytes = db_u64_at(st, 27),
                           .more = db_text_at(st, 28)};
    _cleanup_strv_ struct strv mounts = {0};
    b.nhttps_ports = array_at(st, 10, b.https_ports, sizeof b.https_ports[0], ARRAY_LEN(b.https_ports));
    b.nports = array_at(st, 19, b.ports, sizeof b.ports[0], ARRAY_LEN(b.ports));
    sandbox_read_mounts(st, 25, &mounts, &b);
    db_column_strv(st, 11, &b.metadata);
    db_column_strv(st, 12, &b.env);
    (*(sandbox_fn **)r->each)(r->arg, &b);
    strv_done(&b.metadata);
    strv_done(&b.env);
}

int db_sandboxes(struct db *s, sandbox_fn *each, void *arg, struct err *err)
{
    struct reading r = {.each = &each, .arg = arg, .row = sandbox_row};
    return db_read_all(s, "SELECT * FROM boxes", &r, err);
}
