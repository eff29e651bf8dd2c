/* The writer: one thread, one transaction for all that waits. */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "store/store-int.h"

struct store_op *store_op_new(enum store_sql sql, store_done *done, void *arg)
{
    struct store_op *op = xcalloc(1, sizeof *op);
    op->sql = sql;
    op->done = done;
    op->arg = arg;
    return op;
}

void store_op_blob(struct store_op *op, const void *p, size_t n)
{
    struct store_param *q = &op->params[op->nparams++];
    q->blob = xmalloc(n + 1);
    if (n)
        memcpy(q->blob, p, n);
    q->n = n;
}

void store_op_text(struct store_op *op, const char *text)
{
    store_op_blob(op, text ? text : "", text ? strlen(text) : 0);
    op->params[op->nparams - 1].text = true;
}

void store_op_number(struct store_op *op, uint64_t number) { op->params[op->nparams++].number = number; }

void store_op_free(struct store_op *op)
{
    while (op) {
        struct store_op *next = op->next;
        for (unsigned i = 0; i < op->nparams; i++)
            free(op->params[i].blob);
        free(op->err);
        free(op);
        op = next;
    }
}

/* On the loop's thread: tells everyone whose write is decided. */
static void deliver(void *arg)
{
    struct store *s = arg;
    (void)pthread_mutex_lock(&s->lock);
    struct store_op *list = s->finished;
    s->finished = NULL;
    s->finished_last = &s->finished;
    s->posted = false;
    (void)pthread_mutex_unlock(&s->lock);
    for (struct store_op *op = list; op; op = op->next)
        if (op->done)
            op->done(op->arg, op->err);
    store_op_free(list);
}

/* Takes the list. */
static void finish(struct store *s, struct store_op *list)
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
        loop_post(s->loop, deliver, s);
}

static int run_op(struct store *s, struct store_op *op)
{
    sqlite3_stmt **st = &s->stmts[op->sql];
    int rc =
        *st ? SQLITE_OK : sqlite3_prepare_v3(s->write, store_sql[op->sql], -1, SQLITE_PREPARE_PERSISTENT, st, NULL);
    for (unsigned i = 0; i < op->nparams && rc == SQLITE_OK; i++) {
        const struct store_param *p = &op->params[i];
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

static void set_failure(struct store *s, struct store_op *op, int rc)
{
    if (op->err)
        return;
    op->err = xcalloc(1, sizeof *op->err);
    (void)store_fail(op->err, s->write, rc, s->path, "not written");
}

/* Only a constraint concerns one row alone; after anything else the transaction is given up as a whole. */
static bool ends_transaction(int rc) { return rc != SQLITE_OK && (rc & 0xff) != SQLITE_CONSTRAINT; }

static int run_group(struct store *s, struct store_op *op)
{
    struct store_op *joined = op->next && op->next->joined ? op->next : NULL;
    if (!joined)
        return run_op(s, op);
    int rc = sqlite3_exec(s->write, "SAVEPOINT pair", NULL, NULL, NULL);
    if (rc == SQLITE_OK)
        rc = run_op(s, op);
    if (rc == SQLITE_OK)
        rc = run_op(s, joined);
    if (!ends_transaction(rc))
        (void)sqlite3_exec(s->write, rc == SQLITE_OK ? "RELEASE pair" : "ROLLBACK TO pair; RELEASE pair", NULL, NULL,
                           NULL);
    return rc;
}

static int trim_events(struct store *s)
{
    struct store_op trim = {.sql = SQL_EVENT_TRIM};
    uint64_t level;
    int rc = store_events_level(s->write, STORE_EVENTS_MAX, &level);
    s->events_since_trim = 0;
    if (rc != SQLITE_OK)
        return rc;
    store_op_number(&trim, level);
    return run_op(s, &trim);
}

static int run_all(struct store *s, struct store_op *list)
{
    int rc = sqlite3_exec(s->write, "BEGIN IMMEDIATE", NULL, NULL, NULL);
    bool due = false;
    for (struct store_op *op = list; op && rc == SQLITE_OK; op = op->next) {
        if (op->joined)
            continue;
        int one = run_group(s, op);
        if (ends_transaction(one))
            rc = one;
        else if (one != SQLITE_OK)
            set_failure(s, op, one);
        s->events_since_trim += op->sql == SQL_EVENT_ADD;
        due |= store_mark_due(op);
    }
    if (rc == SQLITE_OK && s->events_since_trim >= STORE_EVENTS_MAX / 20) {
        rc = trim_events(s);
    }
    if (rc == SQLITE_OK && due) {
        struct store_op mark;
        store_mark_op(s, &mark);
        rc = run_op(s, &mark);
    }
    if (rc == SQLITE_OK)
        rc = sqlite3_exec(s->write, "COMMIT", NULL, NULL, NULL);
    if (rc == SQLITE_OK && due)
        store_mark_committed(s);
    return rc;
}

/* Who may use the node, and what was put away for later, survives a power cut from the moment it is told. No running sandbox
 * does, so neither must its rows: they reach the disk with the next that do or when the log is folded back; a killed process
 * loses none. What raises the mark is on the disk before the file beside the store says so: a power cut that left the file
 * without the row would look like a copy that was put back. */
static void set_sync(struct store *s, const struct store_op *list)
{
    bool full = false;
    for (const struct store_op *op = list; op; op = op->next)
        full |= op->sql <= SQL_KEY_DEL || op->durable || store_mark_due(op);
    if (full != s->full_sync)
        (void)sqlite3_exec(s->write, full ? "PRAGMA synchronous=FULL" : "PRAGMA synchronous=NORMAL", NULL, NULL, NULL);
    s->full_sync = full;
}

/* Takes out what needs room, with its failure. */
static struct store_op *part_growing(struct store *s, struct store_op **list)
{
    struct store_op *growing = NULL, **last = &growing, **at = list;
    bool grows = false;
    while (*at) {
        struct store_op *op = *at;
        grows = op->joined ? grows : store_op_grows(op);
        if (!grows) {
            at = &op->next;
            continue;
        }
        *at = op->next;
        op->next = NULL;
        set_failure(s, op, SQLITE_FULL);
        s->disk_full = true;
        *last = op;
        last = &op->next;
    }
    return growing;
}

static int run_or_roll_back(struct store *s, struct store_op *list)
{
    int rc = list ? run_all(s, list) : SQLITE_OK;
    if (rc == SQLITE_OK)
        return rc;
    int eno = sqlite3_system_errno(s->write);
    if (!sqlite3_get_autocommit(s->write))
        (void)sqlite3_exec(s->write, "ROLLBACK", NULL, NULL, NULL);
    return (rc & 0xff) == SQLITE_IOERR && (eno == ENOSPC || eno == EDQUOT) ? SQLITE_FULL : rc;
}

static void write_batch(struct store *s, struct store_op *list)
{
    if (!s->reserve_whole)
        store_reserve_take(s);
    struct store_op *refused = s->reserve_whole ? NULL : part_growing(s, &list);
    if (list)
        set_sync(s, list);
    int rc = run_or_roll_back(s, list);
    if (rc == SQLITE_FULL) {
        finish(s, part_growing(s, &list));
        if (list)
            store_reserve_release(s);
        rc = run_or_roll_back(s, list);
    }
    for (struct store_op *op = list; op; op = op->next)
        if (rc != SQLITE_OK)
            set_failure(s, op, rc);
        else if (store_op_grows(op))
            s->disk_full = false;
    finish(s, refused);
    finish(s, list);
}

/* Up to STORE_BATCH_MAX from the front of the queue, never parting a pair. Under the lock. */
static struct store_op *take_batch(struct store *s)
{
    struct store_op *list = s->first, **end = &s->first;
    size_t n = 0;
    while (*end && (n < STORE_BATCH_MAX || (*end)->joined)) {
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

static void *writer(void *arg)
{
    struct store *s = arg;
    (void)pthread_mutex_lock(&s->lock);
    while (!s->stop || s->first) {
        if (!s->first) {
            (void)pthread_cond_wait(&s->wake, &s->lock);
            continue;
        }
        struct store_op *list = take_batch(s);
        (void)pthread_mutex_unlock(&s->lock);
        write_batch(s, list);
        (void)pthread_mutex_lock(&s->lock);
    }
    (void)pthread_mutex_unlock(&s->lock);
    return NULL;
}

int store_writer_start(struct store *s, struct err *err)
{
    /* Signals belong to the loop's thread. */
    sigset_t all, was;
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &was);
    int eno = pthread_create(&s->thread, NULL, writer, s);
    (void)pthread_sigmask(SIG_SETMASK, &was, NULL);
    if (eno != 0)
        return err_set(err, ERR_SETUP, eno, "cannot start the store's writer thread");
    s->started = true;
    return 0;
}

void store_writer_stop(struct store *s)
{
    (void)pthread_mutex_lock(&s->lock);
    s->stop = true;
    (void)pthread_cond_signal(&s->wake);
    (void)pthread_mutex_unlock(&s->lock);
    if (s->started)
        (void)pthread_join(s->thread, NULL);
    for (unsigned i = 0; i < SQL_COUNT; i++)
        (void)sqlite3_finalize(s->stmts[i]);
    store_op_free(s->finished);
}

void store_op_send(struct store *s, struct store_op *op)
{
    size_t n = op->next ? 2 : 1;
    size_t room = op->sql == SQL_EVENT_ADD ? STORE_QUEUE_MAX / 2 : STORE_QUEUE_MAX;
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
        store_op_free(op);
        return;
    }
    op->err = xcalloc(1, sizeof *op->err);
    (void)err_set(op->err, ERR_SETUP, EAGAIN, "store %s: too many writes wait", s->path);
    finish(s, op);
}

bool store_disk_full(const struct store *s) { return s->disk_full; }

size_t store_queued(const struct store *s)
{
    struct store *m = (struct store *)s;
    (void)pthread_mutex_lock(&m->lock);
    size_t n = m->queued;
    (void)pthread_mutex_unlock(&m->lock);
    return n;
}
