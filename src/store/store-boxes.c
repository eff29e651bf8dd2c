/* Rows of sandboxes. */
#include <stdio.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/mem.h"
#include "base/num.h"
#include "store/store-int.h"

/* Mounts are one blob of strings: volume, name, place, flags, volume, ... */
static void add_mounts(struct store_op *op, const struct store_box *b)
{
    _cleanup_strv_ struct strv v = {0};
    for (size_t i = 0; i < b->nmounts; i++) {
        strv_add(&v, b->mounts[i].volume);
        strv_add(&v, b->mounts[i].name);
        strv_add(&v, b->mounts[i].place);
        strv_take(&v, xasprintf("%u", b->mounts[i].flags));
    }
    store_op_strv(op, &v);
}

void store_box_put(struct store *s, const struct store_box *b, const struct store_idem *idem, store_done *done,
                   void *arg)
{
    struct store_op *op = store_op_new(SQL_BOX_PUT, done, arg);
    const char *texts[] = {b->id,        b->tenant, b->template, b->token, b->traffic_token,
                           b->mask_host, b->tier,   b->degraded};
    for (size_t i = 0; i < ARRAY_LEN(texts); i++)
        store_op_text(op, texts[i]);
    store_op_number(op, b->state);
    store_op_number(op, b->flags);
    store_op_blob(op, b->https_ports, b->nhttps_ports * sizeof b->https_ports[0]);
    store_op_strv(op, &b->metadata);
    store_op_strv(op, &b->env);
    const uint64_t numbers[] = {b->started_unix_ms, b->end_unix_ms, b->cpu_milli, b->pids, b->memory, b->disk};
    for (size_t i = 0; i < ARRAY_LEN(numbers); i++)
        store_op_number(op, numbers[i]);
    store_op_blob(op, b->ports, b->nports * sizeof b->ports[0]);
    store_op_number(op, b->links);
    store_op_text(op, b->stack);
    store_op_text(op, b->parent);
    store_op_number(op, b->idle_s);
    store_op_number(op, b->timeout_s);
    add_mounts(op, b);
    store_op_text(op, b->config);
    store_op_number(op, b->state_bytes);
    op->durable = b->state == STORE_BOX_STORED; /* the only copy of it */
    if (idem) {
        struct store_op *second = op->next = store_op_new(SQL_IDEM_PUT, NULL, NULL);
        second->joined = true;
        store_op_text(second, idem->tenant);
        store_op_text(second, idem->key);
        store_op_text(second, idem->digest);
        store_op_text(second, idem->sandbox);
        store_op_number(second, idem->created_unix);
    }
    store_op_send(s, op);
}

void store_box_end_at(struct store *s, const char *id, uint64_t end_unix_ms, store_done *done, void *arg)
{
    struct store_op *op = store_op_new(SQL_BOX_END, done, arg);
    store_op_text(op, id);
    store_op_number(op, end_unix_ms);
    store_op_send(s, op);
}

void store_box_del(struct store *s, const char *id, store_done *done, void *arg)
{
    store_send_by_id(s, SQL_BOX_DEL, id, done, arg);
}

/* --- reading ------------------------------------------------------------------------------------------------------ */

static void read_mounts(sqlite3_stmt *st, int at, struct strv *v, struct store_box *b)
{
    store_column_strv(st, at, v);
    for (size_t i = 0; i + 3 < v->n && b->nmounts < ARRAY_LEN(b->mounts); i += 4) {
        uint64_t flags = 0;
        (void)num_u64(v->v[i + 3], &flags);
        b->mounts[b->nmounts++] = (struct store_mount){
            .volume = v->v[i], .name = v->v[i + 1], .place = v->v[i + 2], .flags = (uint32_t)flags};
    }
}

/* A blob that is an array; how many there are. */
static size_t array_at(sqlite3_stmt *st, int i, void *ret, size_t size, size_t max)
{
    const void *p = sqlite3_column_blob(st, i);
    size_t n = (size_t)sqlite3_column_bytes(st, i) / size;
    n = n < max ? n : max;
    if (n)
        memcpy(ret, p, n * size);
    return n;
}

typedef void box_fn(void *arg, const struct store_box *b);
static void box_row(struct reading *r, sqlite3_stmt *st)
{
    struct store_box b = {.id = store_text_at(st, 0),
                          .tenant = store_text_at(st, 1),
                          .template = store_text_at(st, 2),
                          .token = store_text_at(st, 3),
                          .traffic_token = store_text_at(st, 4),
                          .mask_host = store_text_at(st, 5),
                          .tier = store_text_at(st, 6),
                          .degraded = store_text_at(st, 7),
                          .state = store_u32_at(st, 8),
                          .flags = store_u32_at(st, 9),
                          .started_unix_ms = store_u64_at(st, 13),
                          .end_unix_ms = store_u64_at(st, 14),
                          .cpu_milli = store_u32_at(st, 15),
                          .pids = store_u32_at(st, 16),
                          .memory = store_u64_at(st, 17),
                          .disk = store_u64_at(st, 18),
                          .links = store_u64_at(st, 20),
                          .stack = store_text_at(st, 21),
                          .parent = store_text_at(st, 22),
                          .idle_s = store_u32_at(st, 23),
                          .timeout_s = store_u64_at(st, 24),
                          .config = store_text_at(st, 26),
                          .state_bytes = store_u64_at(st, 27)};
    _cleanup_strv_ struct strv mounts = {0};
    b.nhttps_ports = array_at(st, 10, b.https_ports, sizeof b.https_ports[0], ARRAY_LEN(b.https_ports));
    b.nports = array_at(st, 19, b.ports, sizeof b.ports[0], ARRAY_LEN(b.ports));
    read_mounts(st, 25, &mounts, &b);
    store_column_strv(st, 11, &b.metadata);
    store_column_strv(st, 12, &b.env);
    (*(box_fn **)r->each)(r->arg, &b);
    strv_done(&b.metadata);
    strv_done(&b.env);
}

int store_boxes(struct store *s, box_fn *each, void *arg, struct err *err)
{
    struct reading r = {.each = &each, .arg = arg, .row = box_row};
    return store_read_all(s, "SELECT * FROM boxes", &r, err);
}
