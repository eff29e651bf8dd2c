/* store-write.c - the writer: one thread, which writes all queued operations in one transaction. */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "db/db-int.h"

struct db_op *db_op_new(enum db_sql sql, db_done *done, void *arg)
{
    struct db_op *op = xcalloc(1, sizeof *op);
    op->sql = sql;
    op->done = done;
    op->arg = arg;
    return op;
}

void db_op_blob(struct db_op *op, const void *p, size_t n)
{
    struct db_param *q = &op->params[op->nparams++];
    q->blob = xmalloc(n + 1);
    if (n)
        memcpy(q->blob, p, n);
    q->n = n;
}

void db_op_text(struct db_op *op, const char *text)
{
    db_op_blob(op, text ? text : "", text ? strlen(text) : 0);
    op->params[op->nparams - 1].text = true;
}

void db_op_number(struct db_op *op, uint64_t number) { op->params[op->nparams++].number = number; }

void db_op_free(struct db_op *op)
{
    while (op) {
        struct db_op *next = op->next;
        for (unsigned i = 0; i < op->nparams; i++)
            free(op->params[i].blob);
        free(op->err);
        free(op);
        op = next;
    }
}

/* On the loop's thread: calls `done` of every finished write. */
static void writer_on_finished(void *arg)
{
    struct db *s = arg;
    (void)pthread_mutex_lock(&s->lock);
    struct db_op *list = s->finished;
    s->finished = NULL;
    s->finished_last = &s->finished;
    s->posted = false;
    (void)pthread_mutex_unlock(&s->lock);
    for (struct db_op *op = list; op; op = op->next)
        if (op->done)
            op->done(op->arg, op->err);
    db_op_free(list);
}

/* Takes the list. */
static void writer_finish(struct db *s, struct db_op *list)
{
    if (!list)
        return;
    (void)pthread_mutex_lock(&s->lock);
    *s->finished_last = list;
    while (*s->finished_last)
        s->finished_last = &(*s->finished_last)->next;
    bool post = !s->posted && !s->stop;
    s->posted = s->posted || post;
    (void)pthread_mutex_unlock(&s->lock);
    if (post)
        loop_post(s->loop, writer_on_finished, s);
}

static int writer_run_op(struct db *s, struct db_op *op)
{
    sqlite3_stmt **st = &s->stmts[op->sql];
    int rc = *st ? SQLITE_OK : sqlite3_prepare_v3(s->write, db_sql[op->sql], -1, SQLITE_PREPARE_PERSISTENT, st, NULL);
    for (unsigned i = 0; i < op->nparams && rc == SQLITE_OK; i++) {
        const struct db_param *p = &op->params[i];
        int at = (int)i + 1;
        if (!p->blob)
            rc = sqlite3_bind_int64(*st, at, (sqlite3_int64)p->number);
        else if (p->text)
            rc = sqlite3_bind_text64(*st, at, p->blob, p->n, SQLITE_STATIC, SQLITE_UTF8);
        else
            rc = sqlite3_bind_blob64(*st, at, p->blob, p->n, SQLITE_STATIC);
    }
    if (rc == SQLITE_OK)
        rc = sqlite3_step(*st);
    if (*st) {
        (void)sqlite3_reset(*st);
        (void)sqlite3_clear_bindings(*st);
    }
    return rc == SQLITE_DONE ? SQLITE_OK : rc;
}

static void writer_set_failure(struct db *s, struct db_op *op, int rc)
{
    if (op->err)
        return;
    op->err = xcalloc(1, sizeof *op->err);
    (void)db_fail(op->err, s->write, rc, s->path, "not written");
}

/* A violated constraint fails one row only; any other error fails the whole transaction. */
static bool writer_ends_transaction(int rc) { return rc != SQLITE_OK && (rc & 0xff) != SQLITE_CONSTRAINT; }

static int writer_run_group(struct db *s, struct db_op *op)
{
    struct db_op *joined = op->next && op->next->joined ? op->next : NULL;
    if (!joined)
        return writer_run_op(s, op);
    int rc = sqlite3_exec(s->write, "SAVEPOINT pair", NULL, NULL, NULL);
    if (rc == SQLITE_OK)
        rc = writer_run_op(s, op);
    if (rc == SQLITE_OK)
        rc = writer_run_op(s, joined);
    if (!writer_ends_transaction(rc))
        (void)sqlite3_exec(s->write, rc == SQLITE_OK ? "RELEASE pair" : "ROLLBACK TO pair; RELEASE pair", NULL, NULL,
                           NULL);
    return rc;
}

static int writer_trim_events(struct db *s)
{
    struct db_op trim = {.sql = SQL_EVENT_TRIM};
    uint64_t level;
    int rc = db_events_level(s->write, DB_EVENTS_MAX, &level);
    s->events_since_trim = 0;
    if (rc != SQLITE_OK)
        return rc;
    db_op_number(&trim, level);
    return writer_run_op(s, &trim);
}

static int writer_run_all(struct db *s, struct db_op *list)
{
    int rc = sqlite3_exec(s->write, "BEGIN IMMEDIATE", NULL, NULL, NULL);
    bool due = false;
    for (struct db_op *op = list; op && rc == SQLITE_OK; op = op->next) {
        if (op->joined)
            continue;
        int one = writer_run_group(s, op);
        if (writer_ends_transaction(one))
            rc = one;
        else if (one != SQLITE_OK)
            writer_set_failure(s, op, one);
        s->events_since_trim += op->sql == SQL_EVENT_ADD;
        due |= db_mark_due(op);
    }
    if (rc == SQLITE_OK && s->events_since_trim >= DB_EVENTS_MAX / 20) {
        rc = writer_trim_events(s);
    }
    if (rc == SQLITE_OK && due) {
        struct db_op mark;
        db_mark_op(s, &mark);
        rc = writer_run_op(s, &mark);
    }
    if (rc == SQLITE_OK)
        rc = sqlite3_exec(s->write, "COMMIT", NULL, NULL, NULL);
    if (rc == SQLITE_OK && due)
        db_mark_committed(s);
    return rc;
}

/* Tenants, keys, secrets and stored state must survive a power cut once `done` was called. Running sandboxes do not
 * survive one, so their rows need no fsync: they reach the disk with the next synced write or checkpoint, and a killed
 * process loses none. Rows that raise the mark must be on the disk before the file beside the database is: a power cut
 * that left the file without the row would look like a copy that was put back. */
static void writer_set_sync(struct db *s, const struct db_op *list)
{
    bool full = false;
    for (const struct db_op *op = list; op; op = op->next)
        full |= op->sql <= SQL_KEY_DEL || op->durable || db_mark_due(op);
    if (full != s->full_sync)
        (void)sqlite3_exec(s->write, full ? "PRAGMA synchronous=FULL" : "PRAGMA synchronous=NORMAL", NULL, NULL, NULL);
    s->full_sync = full;
}

/* Removes the writes that need room from the list, fails them, and returns them. */
static struct db_op *writer_part_growing(struct db *s, struct db_op **list)
{
    struct db_op *growing = NULL, **last = &growing, **at = list;
    bool grows = false;
    while (*at) {
        struct db_op *op = *at;
        grows = op->joined ? grows : db_op_grows(op);
        if (!grows) {
            at = &op->next;
            continue;
        }
        *at = op->next;
        op->next = NULL;
        writer_set_failure(s, op, SQLITE_FULL);
        s->disk_full = true;
        *last = op;
        last = &op->next;
    }
    return growing;
}

static int writer_run_or_roll_back(struct db *s, struct db_op *list)
{
    int rc = list ? writer_run_all(s, list) : SQLITE_OK;
    if (rc == SQLITE_OK)
        return rc;
    int eno = sqlite3_system_errno(s->write);
    if (!sqlite3_get_autocommit(s->write))
        (void)sqlite3_exec(s->write, "ROLLBACK", NULL, NULL, NULL);
    return (rc & 0xff) == SQLITE_IOERR && (eno == ENOSPC || eno == EDQUOT) ? SQLITE_FULL : rc;
}

static void writer_write_batch(struct db *s, struct db_op *list)
{
    if (!s->reserve_whole)
        db_reserve_take(s);
    struct db_op *refused = s->reserve_whole ? NULL : writer_part_growing(s, &list);
    if (list)
        writer_set_sync(s, list);
    int rc = writer_run_or_roll_back(s, list);
    if (rc == SQLITE_FULL) {
        writer_finish(s, writer_part_growing(s, &list));
        if (list)
            db_reserve_release(s);
        rc = writer_run_or_roll_back(s, list);
    }
    for (struct db_op *op = list; op; op = op->next)
        if (rc != SQLITE_OK)
            writer_set_failure(s, op, rc);
        else if (db_op_grows(op))
            s->disk_full = false;
    writer_finish(s, refused);
    writer_finish(s, list);
}

/* Takes up to DB_BATCH_MAX from the front of the queue, never splitting a pair. Under the lock. */
static struct db_op *writer_take_batch(struct db *s)
{
    struct db_op *list = s->first, **end = &s->first;
    size_t n = 0;
    while (*end && (n < DB_BATCH_MAX || (*end)->joined)) {
        end = &(*end)->next;
        n++;
    }
    s->first = *end;
    if (!s->first)
        s->last = &s->first;
    *end = NULL;
    if (end == &s->first)
        return NULL;
    s->queued -= n;
    return list;
}

static void *writer_main(void *arg)
{
    struct db *s = arg;
    (void)pthread_mutex_lock(&s->lock);
    while (!s->stop || s->first) {
        if (!s->first) {
            (void)pthread_cond_wait(&s->wake, &s->lock);
            continue;
        }
        struct db_op *list = writer_take_batch(s);
        (void)pthread_mutex_unlock(&s->lock);
        writer_write_batch(s, list);
        (void)pthread_mutex_lock(&s->lock);
    }
    (void)pthread_mutex_unlock(&s->lock);
    return NULL;
}

int db_writer_start(struct db *s, struct err *err)
{
    /* Signals belong to the loop's thread. */
    sigset_t all, was;
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &was);
    int eno = pthread_create(&s->thread, NULL, writer_main, s);
    (void)pthread_sigmask(SIG_SETMASK, &was, NULL);
    if (eno != 0)
        return err_set(err, ERR_SETUP, eno, "cannot start the store's writer thread");
    s->started = true;
    return 0;
}

void db_writer_stop(struct db *s)
{
    (void)pthread_mutex_lock(&s->lock);
    s->stop = true;
    (void)pthread_cond_signal(&s->wake);
    (void)pthread_mutex_unlock(&s->lock);
    if (s->started)
        (void)pthread_join(s->thread, NULL);
    for (unsigned i = 0; i < SQL_COUNT; i++)
        (void)sqlite3_finalize(s->stmts[i]);
    db_op_free(s->finished);
}

void db_op_send(struct db *s, struct db_op *op)
{
    size_t n = op->next ? 2 : 1;
    size_t room = op->sql == SQL_EVENT_ADD ? DB_QUEUE_MAX / 2 : DB_QUEUE_MAX;
    (void)pthread_mutex_lock(&s->lock);
    bool full = s->queued + n > room;
    if (!full) {
        *s->last = op;
        s->last = op->next ? &op->next->next : &op->next;
        s->queued += n;
        (void)pthread_cond_signal(&s->wake);
    }
    (void)pthread_mutex_unlock(&s->lock);
    if (!full)
        return;
    if (op->sql == SQL_EVENT_ADD) {
        db_op_free(op);
        return;
    }
    op->err = xcalloc(1, sizeof *op->err);
    (void)err_set(op->err, ERR_SETUP, EAGAIN, "store %s: too many writes wait", s->path);
    writer_finish(s, op);
}

bool db_disk_full(const struct db *s) { return s->disk_full; }

size_t db_queued(const struct db *s)
{
    struct db *m = (struct db *)s;
    (void)pthread_mutex_lock(&m->lock);
    size_t n = m->queued;
    (void)pthread_mutex_unlock(&m->lock);
    return n;
}
