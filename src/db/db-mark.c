/* store-mark.c - detects that the database was replaced by an older copy.
 *
 * When front and the layer store meet, layers that no row names are dropped. That is right as long as no row was lost, but a
 * store that was put back from a copy has no rows for what was made after the copy. So one number, the mark, is kept
 * twice: in the database and in a file beside it. It is raised at each start, and together with every row that names a
 * layer. The database gets it first, and on the disk: a process that is killed in between, or a power cut, leaves a file
 * that is one behind, which is harmless. A store that is behind the file is a copy.
 *
 * The whole directory may have been put back, the file with the database. Then the file's ctime, which cannot be set, is
 * much later than the time at which the database raised the mark. Doubt counts as a copy: then too much is kept, never too
 * little. For the same reason the file is overwritten in place: the number lies in one sector, and a torn one is not a
 * number.
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
#include "db/db-int.h"

enum { TEXT = 21 /* digits and a newline */, LATE_S = 60 };

#define PART DB_MARK_FILE ".tmp"

struct file {
    bool there, good;
    uint64_t mark;
    int64_t changed;
};

static int mark_read_file(struct db *s, int dir, struct file *ret, struct err *err)
{
    char text[TEXT + 1];
    struct stat st;
    s->mark_fd = openat(dir, DB_MARK_FILE, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    if (s->mark_fd < 0 && errno == ENOENT)
        return 0;
    ssize_t n = s->mark_fd < 0 ? -1 : pread(s->mark_fd, text, sizeof text, 0);
    if (n < 0 || fstat(s->mark_fd, &st) < 0)
        return err_set(err, ERR_SETUP, errno, "cannot read " DB_MARK_FILE " beside %s", s->path);
    *ret = (struct file){.there = true, .changed = st.st_ctim.tv_sec};
    if (n == TEXT && text[TEXT - 1] == '\n') {
        text[TEXT - 1] = '\0';
        ret->good = num_u64(text, &ret->mark) && ret->mark < INT64_MAX;
    }
    return 0;
}

static void mark_text(uint64_t mark, char ret[TEXT + 1])
{
    (void)snprintf(ret, TEXT + 1, "%020llu\n", (unsigned long long)mark);
}

static int mark_make_file(struct db *s, int dir)
{
    char text[TEXT + 1];
    mark_text(s->mark, text);
    s->mark_fd = openat(dir, PART, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (s->mark_fd < 0 || fd_write_all(s->mark_fd, text, TEXT) < 0 || fsync(s->mark_fd) < 0)
        return -1;
    return renameat(dir, PART, dir, DB_MARK_FILE) < 0 ? -1 : fsync(dir);
}

static int mark_write_over(const struct db *s)
{
    char text[TEXT + 1];
    mark_text(s->mark, text);
    return pwrite(s->mark_fd, text, TEXT, 0) == TEXT ? fdatasync(s->mark_fd) : -1;
}

/* Inside a transaction: reads the database's mark, decides whether it is a copy, and writes the new mark. */
static int mark_raise(struct db *s, const struct file *file, struct err *err)
{
    int64_t mark, seen, starts, now = (int64_t)time(NULL);
    if (db_number(s, "SELECT coalesce(max(value), 0) FROM counters WHERE name='mark'", &mark, err) < 0 ||
        db_number(s, "SELECT coalesce(max(value), 0) FROM counters WHERE name='seen'", &seen, err) < 0 ||
        db_number(s, "SELECT count(*) FROM counters WHERE name='epoch'", &starts, err) < 0)
        return -1;
    bool fresh = mark == 0 && starts == 0; /* the database is new */
    bool behind = file->good && ((uint64_t)mark < file->mark || file->changed > seen + LATE_S);
    /* Neither a file nor a mark: it was last used by a version without marks, which is fine. */
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
    return rc == SQLITE_OK ? 0 : db_fail(err, s->read, rc, s->path, "cannot be written");
}

int db_mark_open(struct db *s, int dir, struct err *err)
{
    struct file file = {0};
    if (mark_read_file(s, dir, &file, err) < 0)
        return -1;
    /* One transaction: if we were killed between the two writes, a copy would be ahead at the next start and look
     * original. */
    int rc = sqlite3_exec(s->read, "BEGIN IMMEDIATE", NULL, NULL, NULL);
    if (rc != SQLITE_OK)
        return db_fail(err, s->read, rc, s->path, "cannot be written");
    if (mark_raise(s, &file, err) < 0) {
        (void)sqlite3_exec(s->read, "ROLLBACK", NULL, NULL, NULL);
        return -1;
    }
    rc = sqlite3_exec(s->read, "COMMIT", NULL, NULL, NULL);
    if (rc != SQLITE_OK) {
        (void)db_fail(err, s->read, rc, s->path, "cannot be written");
        (void)sqlite3_exec(s->read, "ROLLBACK", NULL, NULL, NULL);
        return -1;
    }
    if ((s->mark_fd < 0 ? mark_make_file(s, dir) : mark_write_over(s)) < 0)
        return err_set(err, ERR_SETUP, errno, "cannot write " DB_MARK_FILE " beside %s", s->path);
    return 0;
}

bool db_mark_due(const struct db_op *op)
{
    switch (op->sql) {
    case SQL_TEMPLATE_PUT:
    case SQL_VOLUME_PUT:
    case SQL_GENERATION_PUT:
    case SQL_TRANSACTION_PUT:
    case SQL_STEP_PUT:
        return true;
    case SQL_SANDBOX_PUT: /* a running sandbox needs its layers only while it runs */
        return op->durable;
    default:
        return false;
    }
}

void db_mark_op(const struct db *s, struct db_op *ret)
{
    *ret = (struct db_op){.sql = SQL_MARK};
    db_op_number(ret, s->mark + 1);
    db_op_number(ret, (uint64_t)time(NULL));
}

void db_mark_committed(struct db *s)
{
    s->mark++;
    if (mark_write_over(s) < 0)
        log_text(LOG_LEVEL_ERROR,
                 "cannot write " DB_MARK_FILE
                 " beside %s (%s): if a copy of the store is put back, it may not be known as one",
                 s->path, strerror(errno));
}

bool db_put_back(const struct db *s) { return s->put_back; }

int64_t db_born(struct db *s, int64_t newest)
{
    struct err ignored;
    int64_t born = INT64_MAX, unmet = 0;
    if (db_number(s, "SELECT count(*) FROM counters WHERE name='unmet'", &unmet, &ignored) < 0)
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
    return db_number(s, "SELECT value FROM counters WHERE name='born'", &born, &ignored) < 0 ? INT64_MAX : born;
}
