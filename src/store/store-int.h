/* store-int.h - inside of store/: the connection pair, and a write as it waits in the queue. */
#ifndef HUTCH_STORE_STORE_INT_H
#define HUTCH_STORE_STORE_INT_H

#include <pthread.h>
#include <sqlite3.h>
#include <stdatomic.h>

#include "store/store.h"

/* Every statement that writes; the SQL stands in store-rows.c. Up to SQL_KEY_DEL they are on the disk when told as done. */
enum store_sql {
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
    SQL_BOX_PUT,
    SQL_BOX_END,
    SQL_BOX_DEL,
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
extern const char *const store_sql[SQL_COUNT];

enum { STORE_PARAMS_MAX = 32, STORE_CHECKPOINT_PAGES = 1000 /* SQLite's own default */ };

struct store_param {
    char *blob; /* owned; NULL: `number` counts */
    size_t n;
    bool text;
    uint64_t number;
};
struct store_op {
    struct store_op *next;
    enum store_sql sql;
    bool durable; /* on the disk when told as done, although its kind is not */
    bool joined;  /* succeeds or fails together with the one before it, which has the `done` */
    struct store_param params[STORE_PARAMS_MAX];
    unsigned nparams;
    store_done *done;
    void *arg;
    struct err *err; /* owned; NULL: committed */
};

struct store {
    struct loop *loop;
    sqlite3 *read;  /* loop's thread */
    sqlite3 *write; /* the writer's thread, once it runs */
    char *path;
    pthread_t thread;
    bool started;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    /* under the lock */
    struct store_op *first, **last;
    size_t queued;
    bool stop;
    /* results that are on their way to the loop; under the lock */
    struct store_op *finished, **finished_last;
    bool posted;
    /* the writer's own */
    sqlite3_stmt *stmts[SQL_COUNT];
    uint64_t events_since_trim;
    bool full_sync; /* as the connection is set */
    uint64_t mark;  /* store-mark.c; the writer's once it runs */
    int mark_fd;    /* -1: none yet */
    bool put_back;
    int dir;                       /* borrowed */
    atomic_bool disk_full;         /* told by store_disk_full() */
    bool reserve_whole, told_full; /* store-reserve.c; the writer's once it runs */
};

/* store-write.c */
int store_writer_start(struct store *s, struct err *err);
void store_writer_stop(struct store *s);
struct store_op *store_op_new(enum store_sql sql, store_done *done, void *arg);
void store_op_text(struct store_op *op, const char *text); /* NULL is "" */
void store_op_blob(struct store_op *op, const void *p, size_t n);
void store_op_number(struct store_op *op, uint64_t number);
/* Takes the chain (op and, if any, its joined follower). */
void store_op_send(struct store *s, struct store_op *op);
void store_op_free(struct store_op *op);

/* A statement whose only parameter is an id. */
void store_send_by_id(struct store *s, enum store_sql sql, const char *id, store_done *done, void *arg);

/* Columns of a row. */
static inline const char *store_text_at(sqlite3_stmt *st, int i) { return (const char *)sqlite3_column_text(st, i); }
static inline uint64_t store_u64_at(sqlite3_stmt *st, int i) { return (uint64_t)sqlite3_column_int64(st, i); }
static inline uint32_t store_u32_at(sqlite3_stmt *st, int i) { return (uint32_t)sqlite3_column_int64(st, i); }

/* store-rows.c */
struct reading {
    void *each, *arg;
    void (*row)(struct reading *r, sqlite3_stmt *st);
};
int store_read_all(struct store *s, const char *sql, struct reading *r, struct err *err);
/* Strings one after another, each with its NUL. */
void store_op_strv(struct store_op *op, const struct strv *v);
void store_column_strv(sqlite3_stmt *st, int at, struct strv *ret);

/* store-reserve.c */
/* Sets aside what there is room for; s->reserve_whole: all of it. */
void store_reserve_take(struct store *s);
void store_reserve_release(struct store *s);
/* Whether a store that cannot be opened may lack nothing but room that the reserve has. */
bool store_reserve_may_help(const struct store *s);
/* Whether this write needs room for more than its own log. */
bool store_op_grows(const struct store_op *op);

/* store-mark.c */
int store_mark_open(struct store *s, int dir, struct err *err); /* before the writer runs */
/* Whether the mark is raised together with this row. */
bool store_mark_due(const struct store_op *op);
void store_mark_op(const struct store *s, struct store_op *ret);
void store_mark_committed(struct store *s); /* the one of store_mark_op() is in the store */

/* store.c */
/* The only column of the only row. */
int store_number(struct store *s, const char *sql, int64_t *ret, struct err *err);
/* store-rows.c: how many events of a tenant are kept if there is room for `max` in all: those who have fewer keep theirs. */
int store_events_level(sqlite3 *db, size_t max, uint64_t *ret);
int store_fail(struct err *err, sqlite3 *db, int rc, const char *path, const char *what);

#endif
