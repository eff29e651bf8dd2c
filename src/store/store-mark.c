/* store-mark.c - whether this store is the one that was here last.
 *
 * What stock keeps and no row names is dropped when front and stock meet. That is right as long as no row was lost; but a
 * store that was put back from a copy knows nothing of what was made after the copy. So one number is kept twice, in the store
 * and in a file beside it. It is raised at each start, and together with every row that names what stock keeps. The store has
 * it first, and on the disk: whoever is killed in between, by a power cut too, leaves a file that is one behind, which means
 * nothing. A store that is behind the file is a copy.
 *
 * The file may have been put back together with the store, with the whole directory. Then it was changed (ctime, which nobody
 * can set) long after the store raised the number. Doubt counts as a copy: too much is kept then, never too little. For the
 * same reason the number is written over in place: it lies in one sector, and torn it is no number.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/num.h"
#include "store/store-int.h"

enum { TEXT = 21 /* digits and a newline */, LATE_S = 60 };

#define PART STORE_MARK_FILE ".tmp"

struct file {
    bool there, good;
    uint64_t mark;
    int64_t changed;
};

static int look(struct store *s, int dir, struct file *ret, struct err *err)
{
    char text[TEXT + 1];
    struct stat st;
    s->mark_fd = openat(dir, STORE_MARK_FILE, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    if (s->mark_fd < 0 && errno == ENOENT)
        return 0;
    ssize_t n = s->mark_fd < 0 ? -1 : pread(s->mark_fd, text, sizeof text, 0);
    if (n < 0 || fstat(s->mark_fd, &st) < 0)
        return err_set(err, ERR_SETUP, errno, "cannot read " STORE_MARK_FILE " beside %s", s->path);
    *ret = (struct file){.there = true, .changed = st.st_ctim.tv_sec};
    if (n == TEXT && text[TEXT - 1] == '\n') {
        text[TEXT - 1] = '\0';
        ret->good = num_u64(text, &ret->mark) && ret->mark < INT64_MAX;
    }
    return 0;
}

static void spell(uint64_t mark, char ret[TEXT + 1])
{
    (void)snprintf(ret, TEXT + 1, "%020llu\n", (unsigned long long)mark);
}

static int make_file(struct store *s, int dir)
{
    char text[TEXT + 1];
    spell(s->mark, text);
    s->mark_fd = openat(dir, PART, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (s->mark_fd < 0 || fd_write_all(s->mark_fd, text, TEXT) < 0 || fsync(s->mark_fd) < 0)
        return -1;
    return renameat(dir, PART, dir, STORE_MARK_FILE) < 0 ? -1 : fsync(dir);
}

static int write_over(const struct store *s)
{
    char text[TEXT + 1];
    spell(s->mark, text);
    return pwrite(s->mark_fd, text, TEXT, 0) == TEXT ? fdatasync(s->mark_fd) : -1;
}

/* Inside a transaction: reads what the store has, decides, and writes what it has from now on. */
static int raise_mark(struct store *s, const struct file *file, struct err *err)
{
    int64_t mark, seen, starts, now = (int64_t)time(NULL);
    if (store_number(s, "SELECT coalesce(max(value), 0) FROM counters WHERE name='mark'", &mark, err) < 0 ||
        store_number(s, "SELECT coalesce(max(value), 0) FROM counters WHERE name='seen'", &seen, err) < 0 ||
        store_number(s, "SELECT count(*) FROM counters WHERE name='epoch'", &starts, err) < 0)
        return -1;
    bool fresh = mark == 0 && starts == 0; /* nothing was ever in it */
    bool behind = file->good && ((uint64_t)mark < file->mark || file->changed > seen + LATE_S);
    /* Without a file and without a mark it was last used by a Hutch that knew neither. */
    bool unknown = !file->good && (mark > 0 || file->there);
    s->put_back = !fresh && (behind || unknown);
    s->mark = (file->good && file->mark > (uint64_t)mark ? file->mark : (uint64_t)mark) + 1;
    _cleanup_free_ char *sql =
        xasprintf("INSERT OR REPLACE INTO counters VALUES('mark', %llu), ('seen', %lld)%s", (unsigned long long)s->mark,
                  (long long)now, s->put_back || fresh ? ", ('unmet', 1)" : "");
    int rc = sqlite3_exec(s->read, sql, NULL, NULL, NULL);
    if (rc == SQLITE_OK && s->put_back) {
        _cleanup_free_ char *born = xasprintf("INSERT OR REPLACE INTO counters VALUES('born', %lld)", (long long)now);
        rc = sqlite3_exec(s->read, born, NULL, NULL, NULL);
    }
    return rc == SQLITE_OK ? 0 : store_fail(err, s->read, rc, s->path, "cannot be written");
}

int store_mark_open(struct store *s, int dir, struct err *err)
{
    struct file file = {0};
    if (look(s, dir, &file, err) < 0)
        return -1;
    /* In one: killed between the two, a copy would be one ahead at the next start and be taken for the real one. */
    int rc = sqlite3_exec(s->read, "BEGIN IMMEDIATE", NULL, NULL, NULL);
    if (rc != SQLITE_OK)
        return store_fail(err, s->read, rc, s->path, "cannot be written");
    if (raise_mark(s, &file, err) < 0) {
        (void)sqlite3_exec(s->read, "ROLLBACK", NULL, NULL, NULL);
        return -1;
    }
    rc = sqlite3_exec(s->read, "COMMIT", NULL, NULL, NULL);
    if (rc != SQLITE_OK) {
        (void)store_fail(err, s->read, rc, s->path, "cannot be written");
        (void)sqlite3_exec(s->read, "ROLLBACK", NULL, NULL, NULL);
        return -1;
    }
    if ((s->mark_fd < 0 ? make_file(s, dir) : write_over(s)) < 0)
        return err_set(err, ERR_SETUP, errno, "cannot write " STORE_MARK_FILE " beside %s", s->path);
    return 0;
}

bool store_mark_due(const struct store_op *op)
{
    switch (op->sql) {
    case SQL_TEMPLATE_PUT:
    case SQL_VOLUME_PUT:
    case SQL_GENERATION_PUT:
    case SQL_TRANSACTION_PUT:
    case SQL_STEP_PUT:
        return true;
    case SQL_BOX_PUT: /* what running ones are made from is needed no longer than they run */
        return op->durable;
    default:
        return false;
    }
}

void store_mark_op(const struct store *s, struct store_op *ret)
{
    *ret = (struct store_op){.sql = SQL_MARK};
    store_op_number(ret, s->mark + 1);
    store_op_number(ret, (uint64_t)time(NULL));
}

void store_mark_committed(struct store *s)
{
    s->mark++;
    if (write_over(s) < 0)
        log_text(LOG_LEVEL_ERROR,
                 "cannot write " STORE_MARK_FILE
                 " beside %s (%s): if a copy of the store is put back, it may not be known as one",
                 s->path, strerror(errno));
}

bool store_put_back(const struct store *s) { return s->put_back; }

int64_t store_born(struct store *s, int64_t newest)
{
    struct err ignored;
    int64_t born = INT64_MAX, unmet = 0;
    if (store_number(s, "SELECT count(*) FROM counters WHERE name='unmet'", &unmet, &ignored) < 0)
        return INT64_MAX;
    if (unmet) {
        _cleanup_free_ char *sql =
            xasprintf("BEGIN IMMEDIATE; UPDATE counters SET value=max(value, %lld) WHERE name='born';"
                      "DELETE FROM counters WHERE name='unmet'; COMMIT;",
                      (long long)newest + 1);
        if (sqlite3_exec(s->read, sql, NULL, NULL, NULL) != SQLITE_OK) {
            (void)sqlite3_exec(s->read, "ROLLBACK", NULL, NULL, NULL);
            return INT64_MAX;
        }
    }
    return store_number(s, "SELECT value FROM counters WHERE name='born'", &born, &ignored) < 0 ? INT64_MAX : born;
}
