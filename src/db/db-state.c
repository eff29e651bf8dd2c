/* store-state.c - rows of templates and snapshots, volumes, generations, transactions and build steps. */
#include <stdio.h>

#include "base/cleanup.h"
#include "db/db-int.h"

void db_template_put(struct db *s, const struct db_template *t, db_done *done, void *arg)
{
    struct db_op *op = db_op_new(SQL_TEMPLATE_PUT, done, arg);
    db_op_text(op, t->id);
    db_op_text(op, t->name);
    db_op_text(op, t->tenant);
    db_op_text(op, t->source);
    db_op_text(op, t->config);
    db_op_number(op, t->kind);
    db_op_number(op, t->public);
    db_op_strv(op, &t->tags);
    db_op_number(op, t->created_unix_ms);
    db_op_number(op, t->updated_unix_ms);
    db_op_number(op, t->spawned);
    db_op_number(op, t->builds);
    db_op_number(op, t->last_spawned_unix_ms);
    db_op_number(op, t->bytes);
    db_op_send(s, op);
}

void db_template_del(struct db *s, const char *id, db_done *done, void *arg)
{
    db_send_by_id(s, SQL_TEMPLATE_DEL, id, done, arg);
}

void db_volume_put(struct db *s, const struct db_volume *v, db_done *done, void *arg)
{
    struct db_op *op = db_op_new(SQL_VOLUME_PUT, done, arg);
    db_op_text(op, v->id);
    db_op_text(op, v->name);
    db_op_text(op, v->tenant);
    db_op_text(op, v->token);
    db_op_number(op, v->created_unix_ms);
    db_op_number(op, v->bytes);
    db_op_number(op, v->entries);
    db_op_send(s, op);
}

void db_volume_del(struct db *s, const char *id, db_done *done, void *arg)
{
    db_send_by_id(s, SQL_VOLUME_DEL, id, done, arg);
}

void db_generation_put(struct db *s, const struct db_generation *g, db_done *done, void *arg)
{
    struct db_op *op = db_op_new(SQL_GENERATION_PUT, done, arg);
    db_op_text(op, g->sandbox);
    db_op_number(op, g->number);
    db_op_text(op, g->stack);
    db_op_text(op, g->command);
    db_op_number(op, g->at_unix_ms);
    db_op_number(op, g->bytes);
    db_op_send(s, op);
}

void db_generation_del(struct db *s, const char *sandbox, uint64_t number, db_done *done, void *arg)
{
    struct db_op *op = db_op_new(SQL_GENERATION_DEL, done, arg);
    db_op_text(op, sandbox);
    db_op_number(op, number);
    db_op_send(s, op);
}

void db_transaction_put(struct db *s, const struct db_transaction *t, db_done *done, void *arg)
{
    struct db_op *op = db_op_new(SQL_TRANSACTION_PUT, done, arg);
    db_op_text(op, t->id);
    db_op_text(op, t->sandbox);
    db_op_text(op, t->tenant);
    db_op_text(op, t->base);
    db_op_text(op, t->result);
    db_op_text(op, t->command);
    db_op_number(op, t->at_unix_ms);
    db_op_number(op, t->state);
    db_op_number(op, t->exited);
    db_op_number(op, (uint64_t)t->code);
    db_op_number(op, t->wall_ms);
    db_op_number(op, t->omitted);
    db_op_blob(op, t->out, t->nout);
    db_op_blob(op, t->err, t->nerr);
    db_op_send(s, op);
}

void db_transaction_del(struct db *s, const char *id, db_done *done, void *arg)
{
    db_send_by_id(s, SQL_TRANSACTION_DEL, id, done, arg);
}

void db_step_put(struct db *s, const struct db_step *x, db_done *done, void *arg)
{
    struct db_op *op = db_op_new(SQL_STEP_PUT, done, arg);
    db_op_text(op, x->tenant);
    db_op_text(op, x->key);
    db_op_text(op, x->stack);
    db_op_number(op, x->used_unix);
    db_op_send(s, op);
}

void db_step_del(struct db *s, const char *tenant, const char *key, db_done *done, void *arg)
{
    struct db_op *op = db_op_new(SQL_STEP_DEL, done, arg);
    db_op_text(op, tenant);
    db_op_text(op, key);
    db_op_send(s, op);
}

/* --- reading ------------------------------------------------------------------------------------------------------ */

typedef void template_fn(void *arg, const struct db_template *t);
static void template_row(struct reading *r, sqlite3_stmt *st)
{
    struct db_template t = {.id = db_text_at(st, 0),
                            .name = db_text_at(st, 1),
                            .tenant = db_text_at(st, 2),
                            .source = db_text_at(st, 3),
                            .config = db_text_at(st, 4),
                            .kind = db_u32_at(st, 5),
                            .public = db_u32_at(st, 6),
                            .created_unix_ms = db_u64_at(st, 8),
                            .updated_unix_ms = db_u64_at(st, 9),
                            .spawned = db_u64_at(st, 10),
                            .builds = db_u64_at(st, 11),
                            .last_spawned_unix_ms = db_u64_at(st, 12),
                            .bytes = db_u64_at(st, 13)};
    db_column_strv(st, 7, &t.tags);
    (*(template_fn **)r->each)(r->arg, &t);
    strv_done(&t.tags);
}

int db_templates(struct db *s, template_fn *each, void *arg, struct err *err)
{
    struct reading r = {.each = &each, .arg = arg, .row = template_row};
    return db_read_all(s, "SELECT * FROM templates", &r, err);
}

typedef void volume_fn(void *arg, const struct db_volume *v);
static void volume_row(struct reading *r, sqlite3_stmt *st)
{
    struct db_volume v = {.id = db_text_at(st, 0),
                          .name = db_text_at(st, 1),
                          .tenant = db_text_at(st, 2),
                          .token = db_text_at(st, 3),
                          .created_unix_ms = db_u64_at(st, 4),
                          .bytes = db_u64_at(st, 5),
                          .entries = db_u64_at(st, 6)};
    (*(volume_fn **)r->each)(r->arg, &v);
}

int db_volumes(struct db *s, volume_fn *each, void *arg, struct err *err)
{
    struct reading r = {.each = &each, .arg = arg, .row = volume_row};
    return db_read_all(s, "SELECT * FROM volumes", &r, err);
}

typedef void generation_fn(void *arg, const struct db_generation *g);
static void generation_row(struct reading *r, sqlite3_stmt *st)
{
    struct db_generation g = {.sandbox = db_text_at(st, 0),
                              .number = db_u64_at(st, 1),
                              .stack = db_text_at(st, 2),
                              .command = db_text_at(st, 3),
                              .at_unix_ms = db_u64_at(st, 4),
                              .bytes = db_u64_at(st, 5)};
    (*(generation_fn **)r->each)(r->arg, &g);
}

int db_generations(struct db *s, generation_fn *each, void *arg, struct err *err)
{
    struct reading r = {.each = &each, .arg = arg, .row = generation_row};
    return db_read_all(s, "SELECT * FROM generations ORDER BY sandbox, number", &r, err);
}

typedef void transaction_fn(void *arg, const struct db_transaction *t);
static void transaction_row(struct reading *r, sqlite3_stmt *st)
{
    struct db_transaction t = {.id = db_text_at(st, 0),
                               .sandbox = db_text_at(st, 1),
                               .tenant = db_text_at(st, 2),
                               .base = db_text_at(st, 3),
                               .result = db_text_at(st, 4),
                               .command = db_text_at(st, 5),
                               .at_unix_ms = db_u64_at(st, 6),
                               .state = db_u32_at(st, 7),
                               .exited = db_u32_at(st, 8),
                               .code = (int)sqlite3_column_int64(st, 9),
                               .wall_ms = db_u64_at(st, 10),
                               .omitted = db_u64_at(st, 11),
                               .out = sqlite3_column_blob(st, 12),
                               .err = sqlite3_column_blob(st, 13),
                               .nout = (size_t)sqlite3_column_bytes(st, 12),
                               .nerr = (size_t)sqlite3_column_bytes(st, 13)};
    (*(transaction_fn **)r->each)(r->arg, &t);
}

int db_transactions(struct db *s, transaction_fn *each, void *arg, struct err *err)
{
    struct reading r = {.each = &each, .arg = arg, .row = transaction_row};
    return db_read_all(s, "SELECT * FROM transactions ORDER BY at", &r, err);
}

typedef void step_fn(void *arg, const struct db_step *x);
static void step_row(struct reading *r, sqlite3_stmt *st)
{
    struct db_step x = {.tenant = db_text_at(st, 0),
                        .key = db_text_at(st, 1),
                        .stack = db_text_at(st, 2),
                        .used_unix = db_u64_at(st, 3)};
    (*(step_fn **)r->each)(r->arg, &x);
}

int db_steps(struct db *s, step_fn *each, void *arg, struct err *err)
{
    struct reading r = {.each = &each, .arg = arg, .row = step_row};
    return db_read_all(s, "SELECT * FROM steps", &r, err);
}

static const char named[] = "SELECT EXISTS(SELECT 1 FROM generations WHERE stack=?1)"
                            " OR EXISTS(SELECT 1 FROM steps WHERE stack=?1)"
                            " OR EXISTS(SELECT 1 FROM boxes WHERE stack=?1)";

bool db_stack_named(struct db *s, const char *stack)
{
    sqlite3_stmt *st = NULL;
    int rc = sqlite3_prepare_v2(s->read, named, -1, &st, NULL);
    if (rc == SQLITE_OK)
        rc = sqlite3_bind_text(st, 1, stack, -1, SQLITE_STATIC);
    if (rc == SQLITE_OK)
        rc = sqlite3_step(st);
    /* If the lookup fails the stack counts as named: better keep too much than too little. */
    bool yes = rc != SQLITE_ROW || sqlite3_column_int(st, 0) != 0;
    (void)sqlite3_finalize(st);
    return yes;
}

void db_barrier(struct db *s, db_done *done, void *arg) { db_op_send(s, db_op_new(SQL_BARRIER, done, arg)); }

void db_sync(struct db *s, db_done *done, void *arg)
{
    struct db_op *op = db_op_new(SQL_SYNC, done, arg);
    op->durable = true;
    db_op_send(s, op);
}
