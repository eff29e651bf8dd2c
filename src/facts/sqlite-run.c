/* sqlite-run.c - the statements. A table holds every version of every fact since the last compaction, as etcd does: a
 * removed one is a version without a value. So a page can be read as of an earlier revision, and a watch is a look at
 * the versions since. */
#include <errno.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/mem.h"
#include "facts/sqlite-int.h"

#define APPLICATION_ID 0x48464143 /* "HFAC" */

int sqlite_facts_error(struct sqlite_facts *s, const char *what, struct err *err)
{
    int rc = sqlite3_errcode(s->db) & 0xff;
    const char *hint = rc == SQLITE_BUSY      ? "; another process has these facts open"
                       : rc == SQLITE_NOTADB  ? "; move the file away to begin without facts"
                       : rc == SQLITE_CORRUPT ? "; put a copy back, or move the file away to begin without facts"
                       : rc == SQLITE_FULL    ? "; free some space, nothing was lost"
                                              : "";
    return err_set(err, ERR_SETUP, 0, "%s: %s: %s%s", s->head.engine, what, sqlite3_errmsg(s->db), hint);
}

/* --- opening
 * ---------------------------------------------------------------------------------------------------------- */

static const char schema[] =
    "BEGIN IMMEDIATE;"
    "CREATE TABLE facts(key TEXT NOT NULL, revision INTEGER NOT NULL, created INTEGER NOT NULL, lease INTEGER NOT NULL,"
    " value BLOB, PRIMARY KEY(key, revision)) STRICT, WITHOUT ROWID;"
    "CREATE INDEX facts_revision ON facts(revision);"
    "CREATE INDEX facts_lease ON facts(lease) WHERE lease != 0;"
    "CREATE TABLE leases(id INTEGER PRIMARY KEY, ttl INTEGER NOT NULL) STRICT;"
    "CREATE TABLE place(revision INTEGER NOT NULL, compacted INTEGER NOT NULL) STRICT;"
    "INSERT INTO place VALUES(1, 1);"
    "PRAGMA application_id=1212563779; PRAGMA user_version=1; COMMIT;";
_Static_assert(APPLICATION_ID == 1212563779, "the pragma above");

static int run_number(struct sqlite_facts *s, const char *sql, int64_t *ret)
{
    sqlite3_stmt *st = NULL;
    int rc = sqlite3_prepare_v2(s->db, sql, -1, &st, NULL);
    if (rc == SQLITE_OK && (rc = sqlite3_step(st)) == SQLITE_ROW)
        *ret = sqlite3_column_int64(st, 0);
    (void)sqlite3_finalize(st);
    return rc == SQLITE_ROW ? 0 : -1;
}

static int run_check(struct sqlite_facts *s, struct err *err)
{
    int64_t version = 0, application = 0, tables = 0;
    if (run_number(s, "PRAGMA user_version", &version) < 0 ||
        run_number(s, "PRAGMA application_id", &application) < 0 ||
        run_number(s, "SELECT count(*) FROM sqlite_schema", &tables) < 0)
        return sqlite_facts_error(s, "cannot be read", err);
    if (tables == 0 && sqlite3_exec(s->db, schema, NULL, NULL, NULL) != SQLITE_OK)
        return sqlite_facts_error(s, "its tables cannot be made", err);
    if (tables != 0 && application != APPLICATION_ID)
        return err_set(err, ERR_SETUP, 0, "%s: the file is a database of something else; give another directory",
                       s->head.engine);
    if (tables != 0 && version > SQLITE_FACTS_SCHEMA)
        return err_set(err, ERR_SETUP, 0, "%s: written by a newer Hutch (schema %lld; this one knows %d); use that one",
                       s->head.engine, (long long)version, SQLITE_FACTS_SCHEMA);
    return 0;
}

int sqlite_facts_prepare(struct sqlite_facts *s, struct err *err)
{
    int64_t revision = 0, compacted = 0;
    _cleanup_free_ char *settings =
        xasprintf("PRAGMA locking_mode=EXCLUSIVE; PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL; PRAGMA"
                  " trusted_schema=OFF; PRAGMA journal_size_limit=8388608; PRAGMA temp_store=MEMORY;"
                  " PRAGMA max_page_count=%d;",
                  SQLITE_FACTS_MIB * 256 /* pages of 4 KiB */);
    (void)sqlite3_db_config(s->db, SQLITE_DBCONFIG_DEFENSIVE, 1, NULL);
    if (sqlite3_exec(s->db, settings, NULL, NULL, NULL) != SQLITE_OK)
        return sqlite_facts_error(s, "cannot be used", err);
    if (run_check(s, err) < 0)
        return -1;
    if (run_number(s, "SELECT revision FROM place", &revision) < 0 ||
        run_number(s, "SELECT compacted FROM place", &compacted) < 0)
        return sqlite_facts_error(s, "cannot be read", err);
    s->revision = (uint64_t)revision;
    s->compacted = (uint64_t)compacted;
    return 0;
}

/* --- statements
 * ------------------------------------------------------------------------------------------------------- */

/* Binds by the letters of `kinds`: t text, n number, b blob (pointer, size; NULL pointer: NULL). */
static sqlite3_stmt *run_statement(struct sqlite_facts *s, const char *sql, const char *kinds, ...)
{
    sqlite3_stmt *st = NULL;
    va_list list;
    if (sqlite3_prepare_v3(s->db, sql, -1, 0, &st, NULL) != SQLITE_OK)
        return NULL;
    va_start(list, kinds);
    int rc = SQLITE_OK;
    for (int i = 0; kinds[i] && rc == SQLITE_OK; i++) {
        if (kinds[i] == 't') {
            rc = sqlite3_bind_text(st, i + 1, va_arg(list, const char *), -1, SQLITE_STATIC);
        } else if (kinds[i] == 'n') {
            rc = sqlite3_bind_int64(st, i + 1, (sqlite3_int64)va_arg(list, uint64_t));
        } else {
            const void *p = va_arg(list, const void *);
            size_t n = va_arg(list, size_t);
            rc = p ? sqlite3_bind_blob64(st, i + 1, n ? p : "", n, SQLITE_STATIC) : sqlite3_bind_null(st, i + 1);
        }
    }
    va_end(list);
    if (rc == SQLITE_OK)
        return st;
    (void)sqlite3_finalize(st);
    return NULL;
}

/* Notes why the last call of SQLite failed. */
static int run_fail(struct sqlite_facts *s, struct job *j)
{
    int rc = sqlite3_errcode(s->db) & 0xff, eno = sqlite3_system_errno(s->db);
    bool full = rc == SQLITE_FULL || (rc == SQLITE_IOERR && (eno == ENOSPC || eno == EDQUOT));
    j->result = full ? FACTS_FULL : FACTS_DOWN;
    (void)snprintf(j->why, sizeof j->why, "%s: %s", s->head.engine, full ? "there is no room" : sqlite3_errmsg(s->db));
    return -1;
}

static int run_say(struct sqlite_facts *s, struct job *j, enum facts_result result, const char *why)
{
    j->result = result;
    (void)snprintf(j->why, sizeof j->why, "%s: %s", s->head.engine, why);
    return -1;
}

static int run_step(struct sqlite_facts *s, struct job *j, sqlite3_stmt *st)
{
    int rc = st ? sqlite3_step(st) : SQLITE_ERROR;
    if (rc != SQLITE_ROW && rc != SQLITE_DONE)
        (void)run_fail(s, j);
    return rc;
}

/* A statement without rows. */
static int run_write(struct sqlite_facts *s, struct job *j, sqlite3_stmt *st)
{
    int rc = run_step(s, j, st);
    (void)sqlite3_finalize(st);
    return rc == SQLITE_DONE ? 0 : -1;
}

/* key, revision, created, lease, value */
static struct facts_fact run_row(sqlite3_stmt *st)
{
    struct facts_fact f = {.key = (const char *)sqlite3_column_text(st, 0),
                           .revision = (uint64_t)sqlite3_column_int64(st, 1),
                           .created = (uint64_t)sqlite3_column_int64(st, 2),
                           .lease = (uint64_t)sqlite3_column_int64(st, 3)};
    if (sqlite3_column_type(st, 4) != SQLITE_NULL) {
        const void *p = sqlite3_column_blob(st, 4);
        f.value = p ? p : "";
        f.n = (size_t)sqlite3_column_bytes(st, 4);
    }
    return f;
}

/* --- reading
 * ---------------------------------------------------------------------------------------------------------- */

static int run_get(struct sqlite_facts *s, struct job *j)
{
    sqlite3_stmt *st = run_statement(s,
                                     "SELECT key, revision, created, lease, value FROM facts WHERE key=?1"
                                     " ORDER BY revision DESC LIMIT 1",
                                     "t", j->key);
    int rc = run_step(s, j, st);
    if (rc == SQLITE_ROW) {
        struct facts_fact f = run_row(st);
        if (f.value)
            facts_rows_add(&j->rows, &f);
    }
    (void)sqlite3_finalize(st);
    return rc == SQLITE_ROW || rc == SQLITE_DONE ? 0 : -1;
}

static int run_range(struct sqlite_facts *s, struct job *j)
{
    uint64_t at = j->revision ? j->revision : s->revision;
    char end[FACTS_KEY_MAX + 2];
    int rc;
    if (at < s->compacted || at > s->revision)
        return run_say(s, j, FACTS_COMPACTED,
                       at > s->revision ? "that revision has not been" : "that revision is forgotten");
    facts_prefix_end(j->key, end);
    /* The columns beside max() are those of its row. */
    sqlite3_stmt *st =
        run_statement(s,
                      "SELECT key, max(revision), created, lease, value FROM facts WHERE revision<=?1 AND"
                      " key>=?2 AND (?3='' OR key<?3) AND key>?4 GROUP BY key HAVING value IS NOT NULL"
                      " ORDER BY key LIMIT ?5",
                      "ntttn", at, j->key, end, j->after ? j->after : "", (uint64_t)j->limit + 1);
    while ((rc = run_step(s, j, st)) == SQLITE_ROW) {
        struct facts_fact f = run_row(st);
        j->more = j->rows.n == j->limit || (j->rows.n > 0 && j->rows.bytes + f.n > SQLITE_FACTS_FOLLOW_BYTES);
        if (j->more)
            break;
        facts_rows_add(&j->rows, &f);
    }
    (void)sqlite3_finalize(st);
    return rc == SQLITE_ROW || rc == SQLITE_DONE ? 0 : -1;
}

/* Whole revisions from j->revision on; j->now: the last one that is complete. */
static int run_follow(struct sqlite_facts *s, struct job *j)
{
    char end[FACTS_KEY_MAX + 2];
    uint64_t last = 0;
    int rc;
    if (j->revision < s->compacted || j->revision > s->revision + 1)
        return run_say(s, j, FACTS_COMPACTED, "that revision is forgotten");
    facts_prefix_end(j->key, end);
    sqlite3_stmt *st = run_statement(s,
                                     "SELECT key, revision, created, lease, value FROM facts INDEXED BY facts_revision"
                                     " WHERE revision>=?1 AND key>=?2 AND (?3='' OR key<?3) ORDER BY revision, key",
                                     "ntt", j->revision, j->key, end);
    while ((rc = run_step(s, j, st)) == SQLITE_ROW) {
        struct facts_fact f = run_row(st);
        j->more =
            f.revision != last && (j->rows.n >= SQLITE_FACTS_FOLLOW || j->rows.bytes >= SQLITE_FACTS_FOLLOW_BYTES);
        if (j->more)
            break;
        facts_rows_add(&j->rows, &f);
        last = f.revision;
    }
    (void)sqlite3_finalize(st);
    j->now = j->more ? last : s->revision;
    return rc == SQLITE_ROW || rc == SQLITE_DONE ? 0 : -1;
}

/* --- writing
 * ---------------------------------------------------------------------------------------------------------- */

/* The present version of a key; *ret_revision 0: there is none. */
static int run_find(struct sqlite_facts *s, struct job *j, const char *key, uint64_t *ret_revision,
                    uint64_t *ret_created)
{
    sqlite3_stmt *st = run_statement(
        s, "SELECT revision, created, value IS NULL FROM facts WHERE key=?1 ORDER BY revision DESC LIMIT 1", "t", key);
    int rc = run_step(s, j, st);
    *ret_revision = *ret_created = 0;
    if (rc == SQLITE_ROW && !sqlite3_column_int(st, 2)) {
        *ret_revision = (uint64_t)sqlite3_column_int64(st, 0);
        *ret_created = (uint64_t)sqlite3_column_int64(st, 1);
    }
    (void)sqlite3_finalize(st);
    return rc == SQLITE_ROW || rc == SQLITE_DONE ? 0 : -1;
}

static int run_put(struct sqlite_facts *s, struct job *j, const struct facts_write *w)
{
    uint64_t revision, created;
    if (run_find(s, j, w->key, &revision, &created) < 0)
        return -1;
    if (!w->value && !revision)
        return 0; /* there is nothing to remove */
    j->changed = true;
    return run_write(s, j,
                     run_statement(s, "INSERT INTO facts VALUES(?1, ?2, ?3, ?4, ?5)", "tnnnb", w->key, s->revision + 1,
                                   revision && w->value ? created : s->revision + 1, w->value ? w->lease : (uint64_t)0,
                                   w->value, w->n));
}

static int run_find_lease(struct sqlite_facts *s, struct job *j, uint64_t lease)
{
    sqlite3_stmt *st = run_statement(s, "SELECT 1 FROM leases WHERE id=?1", "n", lease);
    int rc = run_step(s, j, st);
    (void)sqlite3_finalize(st);
    if (rc == SQLITE_DONE)
        return run_say(s, j, FACTS_GONE, "there is no such lease");
    return rc == SQLITE_ROW ? 0 : -1;
}

/* If the job changed something, that was the next revision. */
static int run_count_revision(struct sqlite_facts *s, struct job *j)
{
    if (!j->changed)
        return 0;
    s->revision++;
    return run_write(s, j, run_statement(s, "UPDATE place SET revision=?1", "n", s->revision));
}

static int run_change(struct sqlite_facts *s, struct job *j)
{
    uint64_t revision, created;
    for (size_t i = 0; i < j->ntests; i++) {
        if (run_find(s, j, j->tests[i].key, &revision, &created) < 0)
            return -1;
        if (revision != j->tests[i].revision)
            return run_say(s, j, FACTS_DIFFERS, "a fact is not what the change wants it to be");
    }
    for (size_t i = 0; i < j->nwrites; i++)
        if ((j->writes[i].value && j->writes[i].lease && run_find_lease(s, j, j->writes[i].lease) < 0) ||
            run_put(s, j, &j->writes[i]) < 0)
            return -1;
    return run_count_revision(s, j);
}

static int run_lease(struct sqlite_facts *s, struct job *j)
{
    return run_write(s, j, run_statement(s, "INSERT INTO leases VALUES(?1, ?2)", "nn", j->lease, (uint64_t)j->ttl_s));
}

/* The loop's clock keeps leases. The job only finds that the lease is there, in its order among the others. */
static int run_lease_kept(struct sqlite_facts *s, struct job *j) { return run_find_lease(s, j, j->lease); }

static int run_lease_end(struct sqlite_facts *s, struct job *j)
{
    int rc;
    struct facts_rows keys = {0};
    if (run_find_lease(s, j, j->lease) < 0)
        return -1;
    /* Versions with the lease that are the last of their keys; an older one does not count any more. */
    sqlite3_stmt *st =
        run_statement(s,
                      "SELECT key, revision, created, lease, x'' FROM facts f WHERE lease=?1 AND lease!=0 AND"
                      " NOT EXISTS(SELECT 1 FROM facts g WHERE g.key=f.key AND g.revision>f.revision)",
                      "n", j->lease);
    while ((rc = run_step(s, j, st)) == SQLITE_ROW) {
        struct facts_fact f = run_row(st);
        facts_rows_add(&keys, &f);
    }
    (void)sqlite3_finalize(st);
    rc = rc == SQLITE_DONE ? 0 : -1;
    for (size_t i = 0; i < keys.n && rc == 0; i++)
        rc = run_put(s, j, &(struct facts_write){.key = keys.v[i].key});
    facts_rows_done(&keys);
    if (rc < 0 || run_write(s, j, run_statement(s, "DELETE FROM leases WHERE id=?1", "n", j->lease)) < 0)
        return -1;
    return run_count_revision(s, j);
}

/* Forgets the versions that were overwritten by then; afterwards the removals, which would let older versions reappear
 * if they went first. */
static int run_forget(struct sqlite_facts *s, struct job *j, uint64_t revision)
{
    if (run_write(s, j,
                  run_statement(s,
                                "DELETE FROM facts AS f WHERE revision<?1 AND EXISTS(SELECT 1 FROM facts g WHERE"
                                " g.key=f.key AND g.revision>f.revision AND g.revision<=?1)",
                                "n", revision)) < 0 ||
        run_write(s, j, run_statement(s, "DELETE FROM facts WHERE revision<?1 AND value IS NULL", "n", revision)) < 0 ||
        run_write(s, j, run_statement(s, "UPDATE place SET compacted=?1", "n", revision)) < 0)
        return -1;
    s->compacted = revision;
    return 0;
}

static int run_compact(struct sqlite_facts *s, struct job *j)
{
    if (j->revision <= s->compacted || j->revision > s->revision)
        return run_say(s, j, FACTS_COMPACTED,
                       j->revision > s->revision ? "that revision has not been" : "that revision is forgotten");
    return run_forget(s, j, j->revision);
}

/* --- jobs
 * ------------------------------------------------------------------------------------------------------------- */

static int run_job(struct sqlite_facts *s, struct job *j)
{
    static int (*const runs[])(struct sqlite_facts *, struct job *) = {
        [JOB_GET] = run_get,
        [JOB_RANGE] = run_range,
        [JOB_CHANGE] = run_change,
        [JOB_LEASE] = run_lease,
        [JOB_LEASE_KEPT] = run_lease_kept,
        [JOB_FOLLOW] = run_follow,
        [JOB_LEASE_END] = run_lease_end,
        [JOB_COMPACT] = run_compact,
    };
    j->result = FACTS_OK;
    int rc = runs[j->kind](s, j);
    if (j->kind != JOB_FOLLOW)
        j->now = j->kind == JOB_RANGE && j->revision ? j->revision : s->revision;
    return rc;
}

/* A job that fails undoes what it did, and only that. */
static void run_apart(struct sqlite_facts *s, struct job *j)
{
    uint64_t revision = s->revision, compacted = s->compacted;
    (void)sqlite3_exec(s->db, "SAVEPOINT job", NULL, NULL, NULL);
    if (run_job(s, j) < 0) {
        (void)sqlite3_exec(s->db, "ROLLBACK TO job", NULL, NULL, NULL);
        s->revision = revision;
        s->compacted = compacted;
        j->changed = false;
    }
    (void)sqlite3_exec(s->db, "RELEASE job", NULL, NULL, NULL);
}

/* The transaction could not be committed, so nothing of it happened, unless even that is unknown. */
static void run_fail_all(struct sqlite_facts *s, struct job *list)
{
    struct job why = {0};
    (void)run_fail(s, &why);
    bool unknown = (sqlite3_errcode(s->db) & 0xff) == SQLITE_IOERR && why.result != FACTS_FULL;
    if (!sqlite3_get_autocommit(s->db))
        (void)sqlite3_exec(s->db, "ROLLBACK", NULL, NULL, NULL);
    for (struct job *j = list; j; j = j->next) {
        bool writes = j->kind == JOB_CHANGE || j->kind == JOB_LEASE || j->kind == JOB_LEASE_END;
        j->result = unknown && writes ? FACTS_UNKNOWN : why.result;
        j->changed = false;
        memcpy(j->why, why.why, sizeof j->why);
        facts_rows_done(&j->rows);
    }
}

void sqlite_run_batch(struct sqlite_facts *s, struct job *list)
{
    uint64_t revision = s->revision, compacted = s->compacted;
    bool begun = sqlite3_exec(s->db, "BEGIN IMMEDIATE", NULL, NULL, NULL) == SQLITE_OK;
    for (struct job *j = list; j && begun; j = j->next)
        run_apart(s, j);
    if (begun && s->revision - s->compacted >= 2 * (uint64_t)SQLITE_FACTS_HISTORY) {
        struct job forget = {0};
        (void)run_forget(s, &forget, s->revision - SQLITE_FACTS_HISTORY);
    }
    if (begun && sqlite3_exec(s->db, "COMMIT", NULL, NULL, NULL) == SQLITE_OK)
        return;
    s->revision = revision;
    s->compacted = compacted;
    run_fail_all(s, list);
}
