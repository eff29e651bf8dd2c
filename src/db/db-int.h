/* db-int.h - the inside of the database, shared by the files of store/: its two connections, and queued writes. `read`
 * belongs to the loop's thread and `write` to the writer's: neither may use the other's. */
#ifndef HUTCH_DB_DB_INT_H
#define HUTCH_DB_DB_INT_H

#include <pthread.h>
#include <sqlite3.h>
#include <stdatomic.h>

#include "db/db.h"

/* Every statement that writes; the SQL is in store-rows.c. Those up to SQL_KEY_DEL are on the disk when `done` is
 * called. */
enum db_sql {
    SQL_TENANT_PUT,
    SQL_TENANT_DEL,
    SQL_SECRET_PUT,
    SQL_SECRET_DEL,
    SQL_TEMPLATE_PUT,
    SQL_TEMPLATE_DEL,
    SQL_VOLUME_PUT,
    SQL_VOLUME_DEL,
    SQL_KEY_PUT,
    SQL_KEY_DEL,
    SQL_KEY_USED,
    SQL_SANDBOX_PUT,
    SQL_SANDBOX_END,
    SQL_SANDBOX_DEL,
    SQL_GENERATION_PUT,
    SQL_GENERATION_DEL,
    SQL_TRANSACTION_PUT,
    SQL_TRANSACTION_DEL,
    SQL_STEP_PUT,
    SQL_STEP_DEL,
    SQL_NET_PUT,
    SQL_NET_SWEEP,
    SQL_USAGE_PUT,
    SQL_USAGE_SWEEP,
    SQL_IDEM_PUT,
    SQL_IDEM_DEL,
    SQL_IDEM_EXPIRE,
    SQL_EVENT_ADD,
    SQL_EVENT_TRIM,
    SQL_MARK,
    SQL_BARRIER,
    SQL_SYNC,
    SQL_COUNT,
};
extern const char *const db_sql[SQL_COUNT];

enum { DB_PARAMS_MAX = 32, DB_CHECKPOINT_PAGES = 1000 /* SQLite's own default */ };

struct db_param {
    char *blob; /* owned; NULL: use `number` */
    size_t n;
    bool text;
    uint64_t number;
};
struct db_op {
    struct db_op *next;
    enum db_sql sql;
    bool durable; /* on the disk when `done` is called, although others of its kind are not */
    bool joined;  /* succeeds or fails together with the write before it, which has the `done` */
    struct db_param params[DB_PARAMS_MAX];
    unsigned nparams;
    db_done *done;
    void *arg;
    struct err *err; /* owned; NULL: committed */
};

struct db {
    struct loop *loop;
    sqlite3 *read;  /* loop's thread */
    sqlite3 *write; /* the writer's thread, once it runs */
    char *path;
    pthread_t thread;
    bool started;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    /* under the lock */
    struct db_op *first, **last;
    size_t queued;
    bool stop;
    /* results on their way to the loop; under the lock */
    struct db_op *finished, **finished_last;
    bool posted;
    /* the writer's own */
    sqlite3_stmt *stmts[SQL_COUNT];
    uint64_t events_since_trim;
    bool full_sync; /* the connection has synchronous=FULL */
    uint64_t mark;  /* store-mark.c; the writer's once it runs */
    int mark_fd;    /* -1: none yet */
    bool put_back;
    int dir;                       /* borrowed */
    atomic_bool disk_full;         /* told by db_disk_full() */
    bool reserve_whole, told_full; /* store-reserve.c; the writer's once it runs */
};

/* store-write.c */
int db_writer_start(struct db *s, struct err *err);
void db_writer_stop(struct db *s);
struct db_op *db_op_new(enum db_sql sql, db_done *done, void *arg);
void db_op_text(struct db_op *op, const char *text); /* NULL is "" */
void db_op_blob(struct db_op *op, const void *p, size_t n);
void db_op_number(struct db_op *op, uint64_t number);
/* Takes over op and its joined follower, if it has one. */
void db_op_send(struct db *s, struct db_op *op);
void db_op_free(struct db_op *op);

/* Sends a statement whose only parameter is an id. */
void db_send_by_id(struct db *s, enum db_sql sql, const char *id, db_done *done, void *arg);

/* Columns of a row. */
static inline const char *db_text_at(sqlite3_stmt *st, int i) { return (const char *)sqlite3_column_text(st, i); }
static inline uint64_t db_u64_at(sqlite3_stmt *st, int i) { return (uint64_t)sqlite3_column_int64(st, i); }
static inline uint32_t db_u32_at(sqlite3_stmt *st, int i) { return (uint32_t)sqlite3_column_int64(st, i); }

/* store-rows.c */
struct reading {
    void *each, *arg;
    void (*row)(struct reading *r, sqlite3_stmt *st);
};
int db_read_all(struct db *s, const char *sql, struct reading *r, struct err *err);
/* Strings one after another, each with its NUL. */
void db_op_strv(struct db_op *op, const struct strv *v);
void db_column_strv(sqlite3_stmt *st, int at, struct strv *ret);

/* store-reserve.c */
/* Reserves as much as there is room for; s->reserve_whole: all of it. */
void db_reserve_take(struct db *s);
void db_reserve_release(struct db *s);
/* Whether opening may have failed only for lack of room that the reserve holds. */
bool db_reserve_may_help(const struct db *s);
/* Whether this write makes the database grow, beyond its own log. */
bool db_op_grows(const struct db_op *op);

/* store-mark.c */
int db_mark_open(struct db *s, int dir, struct err *err); /* before the writer runs */
/* Whether the mark is raised together with this row. */
bool db_mark_due(const struct db_op *op);
void db_mark_op(const struct db *s, struct db_op *ret);
void db_mark_committed(struct db *s); /* after the op of db_mark_op() was committed */

/* store.c */
/* Reads the only column of the only row. */
int db_number(struct db *s, const char *sql, int64_t *ret, struct err *err);
/* store-rows.c: how many events each tenant may keep if there is room for `max` in all; tenants with fewer keep all. */
int db_events_level(sqlite3 *db, size_t max, uint64_t *ret);
int db_fail(struct err *err, sqlite3 *db, int rc, const char *path, const char *what);

#endif
