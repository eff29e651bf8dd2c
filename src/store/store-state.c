/* Rows of what outlives a running sandbox: templates and snapshots, volumes, generations, steps of builds. */
#include <stdio.h>

#include "base/cleanup.h"
#include "store/store-int.h"

void store_template_put(struct store *s, const struct store_template *t, store_done *done, void *arg)
{
    struct store_op *op = store_op_new(SQL_TEMPLATE_PUT, done, arg);
    store_op_text(op, t->id);
    store_op_text(op, t->name);
    store_op_text(op, t->tenant);
    store_op_text(op, t->source);
    store_op_text(op, t->config);
    store_op_number(op, t->kind);
    store_op_number(op, t->public);
    store_op_strv(op, &t->tags);
    store_op_number(op, t->created_unix_ms);
    store_op_number(op, t->updated_unix_ms);
    store_op_number(op, t->spawned);
    store_op_number(op, t->builds);
    store_op_number(op, t->last_spawned_unix_ms);
    store_op_number(op, t->bytes);
    store_op_send(s, op);
}

void store_template_del(struct store *s, const char *id, store_done *done, void *arg)
{
    store_send_by_id(s, SQL_TEMPLATE_DEL, id, done, arg);
}

void store_volume_put(struct store *s, const struct store_volume *v, store_done *done, void *arg)
{
    struct store_op *op = store_op_new(SQL_VOLUME_PUT, done, arg);
    store_op_text(op, v->id);
    store_op_text(op, v->name);
    store_op_text(op, v->tenant);
    store_op_text(op, v->token);
    store_op_number(op, v->created_unix_ms);
    store_op_number(op, v->bytes);
    store_op_number(op, v->entries);
    store_op_send(s, op);
}

void store_volume_del(struct store *s, const char *id, store_done *done, void *arg)
{
    store_send_by_id(s, SQL_VOLUME_DEL, id, done, arg);
}

void store_generation_put(struct store *s, const struct store_generation *g, store_done *done, void *arg)
{
    struct store_op *op = store_op_new(SQL_GENERATION_PUT, done, arg);
    store_op_text(op, g->sandbox);
    store_op_number(op, g->number);
    store_op_text(op, g->stack);
    store_op_text(op, g->command);
    store_op_number(op, g->at_unix_ms);
    store_op_number(op, g->bytes);
    store_op_send(s, op);
}

void store_generation_del(struct store *s, const char *sandbox, uint64_t number, store_done *done, void *arg)
{
    struct store_op *op = store_op_new(SQL_GENERATION_DEL, done, arg);
    store_op_text(op, sandbox);
    store_op_number(op, number);
    store_op_send(s, op);
}

void store_transaction_put(struct store *s, const struct store_transaction *t, store_done *done, void *arg)
{
    struct store_op *op = store_op_new(SQL_TRANSACTION_PUT, done, arg);
    store_op_text(op, t->id);
    store_op_text(op, t->sandbox);
    store_op_text(op, t->tenant);
    store_op_text(op, t->base);
    store_op_text(op, t->result);
    store_op_text(op, t->command);
    store_op_number(op, t->at_unix_ms);
    store_op_number(op, t->state);
    store_op_number(op, t->exited);
    store_op_number(op, (uint64_t)t->code);
    store_op_number(op, t->wall_ms);
    store_op_number(op, t->omitted);
    store_op_blob(op, t->out, t->nout);
    store_op_blob(op, t->err, t->nerr);
    store_op_send(s, op);
}

void store_transaction_del(struct store *s, const char *id, store_done *done, void *arg)
{
    store_send_by_id(s, SQL_TRANSACTION_DEL, id, done, arg);
}

void store_step_put(struct store *s, const struct store_step *x, store_done *done, void *arg)
{
    struct store_op *op = store_op_new(SQL_STEP_PUT, done, arg);
    store_op_text(op, x->tenant);
    store_op_text(op, x->key);
    store_op_text(op, x->stack);
    store_op_number(op, x->used_unix);
    store_op_send(s, op);
}

void store_step_del(struct store *s, const char *tenant, const char *key, store_done *done, void *arg)
{
    struct store_op *op = store_op_new(SQL_STEP_DEL, done, arg);
    store_op_text(op, tenant);
    store_op_text(op, key);
    store_op_send(s, op);
}

/* --- reading ------------------------------------------------------------------------------------------------------ */

typedef void template_fn(void *arg, const struct store_template *t);
static void template_row(struct reading *r, sqlite3_stmt *st)
{
    struct store_template t = {.id = store_text_at(st, 0),
                               .name = store_text_at(st, 1),
                               .tenant = store_text_at(st, 2),
                               .source = store_text_at(st, 3),
                               .config = store_text_at(st, 4),
                               .kind = store_u32_at(st, 5),
                               .public = store_u32_at(st, 6),
                               .created_unix_ms = store_u64_at(st, 8),
                               .updated_unix_ms = store_u64_at(st, 9),
                               .spawned = store_u64_at(st, 10),
                               .builds = store_u64_at(st, 11),
                               .last_spawned_unix_ms = store_u64_at(st, 12),
                               .bytes = store_u64_at(st, 13)};
    store_column_strv(st, 7, &t.tags);
    (*(template_fn **)r->each)(r->arg, &t);
    strv_done(&t.tags);
}

int store_templates(struct store *s, template_fn *each, void *arg, struct err *err)
{
    struct reading r = {.each = &each, .arg = arg, .row = template_row};
    return store_read_all(s, "SELECT * FROM templates", &r, err);
}

typedef void volume_fn(void *arg, const struct store_volume *v);
static void volume_row(struct reading *r, sqlite3_stmt *st)
{
    struct store_volume v = {.id = store_text_at(st, 0),
                             .name = store_text_at(st, 1),
                             .tenant = store_text_at(st, 2),
                             .token = store_text_at(st, 3),
                             .created_unix_ms = store_u64_at(st, 4),
                             .bytes = store_u64_at(st, 5),
                             .entries = store_u64_at(st, 6)};
    (*(volume_fn **)r->each)(r->arg, &v);
}

int store_volumes(struct store *s, volume_fn *each, void *arg, struct err *err)
{
    struct reading r = {.each = &each, .arg = arg, .row = volume_row};
    return store_read_all(s, "SELECT * FROM volumes", &r, err);
}

typedef void generation_fn(void *arg, const struct store_generation *g);
static void generation_row(struct reading *r, sqlite3_stmt *st)
{
    struct store_generation g = {.sandbox = store_text_at(st, 0),
                                 .number = store_u64_at(st, 1),
                                 .stack = store_text_at(st, 2),
                                 .command = store_text_at(st, 3),
                                 .at_unix_ms = store_u64_at(st, 4),
                                 .bytes = store_u64_at(st, 5)};
    (*(generation_fn **)r->each)(r->arg, &g);
}

int store_generations(struct store *s, generation_fn *each, void *arg, struct err *err)
{
    struct reading r = {.each = &each, .arg = arg, .row = generation_row};
    return store_read_all(s, "SELECT * FROM generations ORDER BY sandbox, number", &r, err);
}

typedef void transaction_fn(void *arg, const struct store_transaction *t);
static void transaction_row(struct reading *r, sqlite3_stmt *st)
{
    struct store_transaction t = {.id = store_text_at(st, 0),
                                  .sandbox = store_text_at(st, 1),
                                  .tenant = store_text_at(st, 2),
                                  .base = store_text_at(st, 3),
                                  .result = store_text_at(st, 4),
                                  .command = store_text_at(st, 5),
                                  .at_unix_ms = store_u64_at(st, 6),
                                  .state = store_u32_at(st, 7),
                                  .exited = store_u32_at(st, 8),
                                  .code = (int)sqlite3_column_int64(st, 9),
                                  .wall_ms = store_u64_at(st, 10),
                                  .omitted = store_u64_at(st, 11),
                                  .out = sqlite3_column_blob(st, 12),
                                  .err = sqlite3_column_blob(st, 13),
                                  .nout = (size_t)sqlite3_column_bytes(st, 12),
                                  .nerr = (size_t)sqlite3_column_bytes(st, 13)};
    (*(transaction_fn **)r->each)(r->arg, &t);
}

int store_transactions(struct store *s, transaction_fn *each, void *arg, struct err *err)
{
    struct reading r = {.each = &each, .arg = arg, .row = transaction_row};
    return store_read_all(s, "SELECT * FROM transactions ORDER BY at", &r, err);
}

typedef void step_fn(void *arg, const struct store_step *x);
static void step_row(struct reading *r, sqlite3_stmt *st)
{
    struct store_step x = {.tenant = store_text_at(st, 0),
                           .key = store_text_at(st, 1),
                           .stack = store_text_at(st, 2),
                           .used_unix = store_u64_at(st, 3)};
    (*(step_fn **)r->each)(r->arg, &x);
}

int store_steps(struct store *s, step_fn *each, void *arg, struct err *err)
{
    struct reading r = {.each = &each, .arg = arg, .row = step_row};
    return store_read_all(s, "SELECT * FROM steps", &r, err);
}

bool store_volume_find(struct store *s, const char *tenant, const char *name, char *ret_id, size_t room)
{
    sqlite3_stmt *st = NULL;
    int rc = sqlite3_prepare_v2(s->read, "SELECT id FROM volumes WHERE tenant=? AND name=?", -1, &st, NULL);
    if (rc == SQLITE_OK)
        rc = sqlite3_bind_text(st, 1, tenant, -1, SQLITE_STATIC);
    if (rc == SQLITE_OK)
        rc = sqlite3_bind_text(st, 2, name, -1, SQLITE_STATIC);
    if (rc == SQLITE_OK)
        rc = sqlite3_step(st);
    if (rc == SQLITE_ROW)
        (void)snprintf(ret_id, room, "%s", store_text_at(st, 0));
    (void)sqlite3_finalize(st);
    return rc == SQLITE_ROW;
}

static const char named[] = "SELECT EXISTS(SELECT 1 FROM generations WHERE stack=?1)"
                            " OR EXISTS(SELECT 1 FROM steps WHERE stack=?1)"
                            " OR EXISTS(SELECT 1 FROM boxes WHERE stack=?1)";

bool store_stack_named(struct store *s, const char *stack)
{
    sqlite3_stmt *st = NULL;
    int rc = sqlite3_prepare_v2(s->read, named, -1, &st, NULL);
    if (rc == SQLITE_OK)
        rc = sqlite3_bind_text(st, 1, stack, -1, SQLITE_STATIC);
    if (rc == SQLITE_OK)
        rc = sqlite3_step(st);
    /* What cannot be asked counts as named: too much is kept then, never too little. */
    bool yes = rc != SQLITE_ROW || sqlite3_column_int(st, 0) != 0;
    (void)sqlite3_finalize(st);
    return yes;
}

void store_barrier(struct store *s, store_done *done, void *arg)
{
    store_op_send(s, store_op_new(SQL_BARRIER, done, arg));
}

void store_sync(struct store *s, store_done *done, void *arg)
{
    struct store_op *op = store_op_new(SQL_SYNC, done, arg);
    op->durable = true;
    store_op_send(s, op);
}
