#include "db/db.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/cleanup.h"
#include "base/mem.h"
#include "base/text.h"
#include "db/db-int.h"
#include "db/vfs.h"

#define APPLICATION_ID 0x48757463 /* "Hutc" */

/* migrations[i] takes the file from schema i to schema i + 1. Never change a released step; add new ones at the end. */
static const char *const migrations[DB_SCHEMA] = {
    "CREATE TABLE tenants(id TEXT PRIMARY KEY, name TEXT NOT NULL, sandboxes INTEGER NOT NULL, cpu_milli INTEGER NOT "
    "NULL,"
    " memory INTEGER NOT NULL, disk INTEGER NOT NULL, rate INTEGER NOT NULL, burst INTEGER NOT NULL,"
    " max_timeout INTEGER NOT NULL) STRICT, WITHOUT ROWID;"
    "CREATE TABLE keys(id TEXT PRIMARY KEY, tenant TEXT NOT NULL REFERENCES tenants(id) ON DELETE CASCADE,"
    " name TEXT NOT NULL, hint TEXT NOT NULL, digest TEXT NOT NULL UNIQUE, scopes INTEGER NOT NULL,"
    " created INTEGER NOT NULL, expires INTEGER NOT NULL, used INTEGER NOT NULL) STRICT, WITHOUT ROWID;"
    "CREATE TABLE boxes(id TEXT PRIMARY KEY, tenant TEXT NOT NULL, template TEXT NOT NULL, token TEXT NOT NULL,"
    " traffic_token TEXT NOT NULL, mask_host TEXT NOT NULL, tier TEXT NOT NULL, degraded TEXT NOT NULL,"
    " state INTEGER NOT NULL, flags INTEGER NOT NULL, https_ports BLOB NOT NULL, metadata BLOB NOT NULL, env BLOB NOT "
    "NULL,"
    " started INTEGER NOT NULL, ends INTEGER NOT NULL, cpu_milli INTEGER NOT NULL, pids INTEGER NOT NULL,"
    " memory INTEGER NOT NULL, disk INTEGER NOT NULL) STRICT, WITHOUT ROWID;"
    "CREATE TABLE idem(tenant TEXT NOT NULL, key TEXT NOT NULL, digest TEXT NOT NULL, sandbox TEXT NOT NULL,"
    " created INTEGER NOT NULL, PRIMARY KEY(tenant, key)) STRICT, WITHOUT ROWID;"
    "CREATE INDEX idem_created ON idem(created);"
    "CREATE TABLE events(n INTEGER PRIMARY KEY, sandbox TEXT NOT NULL, tenant TEXT NOT NULL, seq INTEGER NOT NULL,"
    " at INTEGER NOT NULL, type TEXT NOT NULL, json TEXT NOT NULL) STRICT;"
    "CREATE TABLE counters(name TEXT PRIMARY KEY, value INTEGER NOT NULL) STRICT, WITHOUT ROWID;",

    /* A network is written before its sandbox, so it cannot refer to it; it goes when the sandbox's row does. */
    "CREATE TABLE networks(sandbox TEXT PRIMARY KEY, epoch INTEGER NOT NULL, document TEXT NOT NULL, e2b TEXT NOT NULL,"
    " placeholders BLOB NOT NULL, denied BLOB NOT NULL) STRICT, WITHOUT ROWID;"
    "CREATE TRIGGER box_gone AFTER DELETE ON boxes BEGIN DELETE FROM networks WHERE sandbox=old.id; END;"
    "CREATE TABLE secrets(tenant TEXT NOT NULL REFERENCES tenants(id) ON DELETE CASCADE, name TEXT NOT NULL,"
    " id TEXT NOT NULL UNIQUE, revision INTEGER NOT NULL, sealed BLOB NOT NULL, spec TEXT NOT NULL,"
    " metadata TEXT NOT NULL, created INTEGER NOT NULL, updated INTEGER NOT NULL, PRIMARY KEY(tenant, name))"
    " STRICT, WITHOUT ROWID;",

    /* Who may see a sandbox's ports, and the generation of the links to them. */
    ("ALTER TABLE boxes ADD COLUMN ports BLOB NOT NULL DEFAULT x'';"
     "ALTER TABLE boxes ADD COLUMN links INTEGER NOT NULL DEFAULT 0;"),

    /* What outlives a running sandbox. Generations go with their sandbox, what a tenant made with the tenant. */
    ("ALTER TABLE tenants ADD COLUMN snapshots INTEGER NOT NULL DEFAULT 0;"
     "ALTER TABLE tenants ADD COLUMN state_bytes INTEGER NOT NULL DEFAULT 0;"
     "ALTER TABLE boxes ADD COLUMN stack TEXT NOT NULL DEFAULT '';"
     "ALTER TABLE boxes ADD COLUMN parent TEXT NOT NULL DEFAULT '';"
     "ALTER TABLE boxes ADD COLUMN idle INTEGER NOT NULL DEFAULT 0;"
     "ALTER TABLE boxes ADD COLUMN timeout INTEGER NOT NULL DEFAULT 0;"
     "ALTER TABLE boxes ADD COLUMN mounts BLOB NOT NULL DEFAULT x'';"
     "ALTER TABLE boxes ADD COLUMN config TEXT NOT NULL DEFAULT '';"
     "ALTER TABLE boxes ADD COLUMN state_bytes INTEGER NOT NULL DEFAULT 0;"
     "CREATE TABLE templates(id TEXT PRIMARY KEY, name TEXT NOT NULL, tenant TEXT NOT NULL, source TEXT NOT NULL,"
     " config TEXT NOT NULL, kind INTEGER NOT NULL, public INTEGER NOT NULL, tags BLOB NOT NULL,"
     " created INTEGER NOT NULL, updated INTEGER NOT NULL, spawned INTEGER NOT NULL, builds INTEGER NOT NULL,"
     " last_spawned INTEGER NOT NULL, bytes INTEGER NOT NULL) STRICT, WITHOUT ROWID;"
     "CREATE TABLE volumes(id TEXT PRIMARY KEY, name TEXT NOT NULL, tenant TEXT NOT NULL, token TEXT NOT NULL,"
     " created INTEGER NOT NULL, bytes INTEGER NOT NULL, entries INTEGER NOT NULL, UNIQUE(tenant, name))"
     " STRICT, WITHOUT ROWID;"
     "CREATE TABLE generations(sandbox TEXT NOT NULL, number INTEGER NOT NULL, stack TEXT NOT NULL,"
     " command TEXT NOT NULL, at INTEGER NOT NULL, bytes INTEGER NOT NULL, PRIMARY KEY(sandbox, number))"
     " STRICT, WITHOUT ROWID;"
     "CREATE INDEX generations_stack ON generations(stack);"
     "CREATE TABLE steps(tenant TEXT NOT NULL, key TEXT NOT NULL, stack TEXT NOT NULL, used INTEGER NOT NULL,"
     " PRIMARY KEY(tenant, key)) STRICT, WITHOUT ROWID;"
     "CREATE INDEX steps_stack ON steps(stack);"
     "CREATE INDEX boxes_stack ON boxes(stack);"
     "CREATE TRIGGER box_gone_generations AFTER DELETE ON boxes BEGIN DELETE FROM generations WHERE sandbox=old.id; "
     "END;"
     "CREATE TRIGGER tenant_gone AFTER DELETE ON tenants BEGIN DELETE FROM templates WHERE tenant=old.id;"
     " DELETE FROM steps WHERE tenant=old.id; END;"
     "INSERT OR IGNORE INTO counters VALUES('born', CAST(strftime('%s', 'now') AS INTEGER));"),

    /* What sandboxes (or, sandbox '', all of a tenant) have sent and received, as JSON. */
    ("CREATE TABLE usage(tenant TEXT NOT NULL, sandbox TEXT NOT NULL, counters TEXT NOT NULL,"
     " PRIMARY KEY(tenant, sandbox)) STRICT;"
     "CREATE TRIGGER box_gone_usage AFTER DELETE ON boxes BEGIN"
     " DELETE FROM usage WHERE tenant=old.tenant AND sandbox=old.id; END;"
     "CREATE TRIGGER tenant_gone_usage AFTER DELETE ON tenants BEGIN DELETE FROM usage WHERE tenant=old.id; END;"),

    /* Transactions that wait for a decision, or are being committed. They go with their sandbox. */
    ("CREATE TABLE transactions(id TEXT PRIMARY KEY, sandbox TEXT NOT NULL, tenant TEXT NOT NULL, base TEXT NOT NULL,"
     " result TEXT NOT NULL, command TEXT NOT NULL, at INTEGER NOT NULL, state INTEGER NOT NULL,"
     " exited INTEGER NOT NULL, code INTEGER NOT NULL, wall INTEGER NOT NULL, omitted INTEGER NOT NULL,"
     " out BLOB NOT NULL, err BLOB NOT NULL) STRICT, WITHOUT ROWID;"
     "CREATE INDEX transactions_sandbox ON transactions(sandbox);"
     "CREATE TRIGGER box_gone_transactions AFTER DELETE ON boxes BEGIN"
     " DELETE FROM transactions WHERE sandbox=old.id; END;"),

    /* The password of a network's proxy, sealed. */
    "ALTER TABLE networks ADD COLUMN proxy_password TEXT NOT NULL DEFAULT '';",

    /* How many files a tenant may keep. */
    "ALTER TABLE tenants ADD COLUMN state_entries INTEGER NOT NULL DEFAULT 0;",

    /* What a sandbox's description has without a column of its own, as JSON: new fields need no new schema. */
    "ALTER TABLE boxes ADD COLUMN more TEXT NOT NULL DEFAULT '';",
};

int db_fail(struct err *err, sqlite3 *db, int rc, const char *path, const char *what)
{
    const char *hint = "";
    int eno = 0;
    switch (rc & 0xff) {
    case SQLITE_FULL:
        eno = ENOSPC;
        hint = "; free some space, nothing was lost";
        break;
    case SQLITE_NOTADB:
        hint = "; move the file away to start with an empty store";
        break;
    case SQLITE_CORRUPT:
        hint = "; restore a copy, or move the file away to start with an empty store";
        break;
    case SQLITE_BUSY:
        hint = "; another program holds it";
        break;
    case SQLITE_IOERR:
    case SQLITE_CANTOPEN:
        eno = db ? sqlite3_system_errno(db) : 0;
        break;
    default:
        break;
    }
    /* err_set() appends the text of eno, which would come after the hint; so it is not given with a hint. */
    (void)err_set(err, ERR_SETUP, *hint ? 0 : eno, "store %s: %s: %s%s", path, what, sqlite3_errstr(rc), hint);
    err->eno = eno;
    return -1;
}

static int db_connect(const char *path, const char *shown, sqlite3 **ret, struct err *err)
{
    static const char settings[] =
        "PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL; PRAGMA foreign_keys=ON;"
        "PRAGMA trusted_schema=OFF; PRAGMA journal_size_limit=8388608; PRAGMA temp_store=MEMORY;";
    int rc = sqlite3_open_v2(path, ret, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX, db_vfs());
    if (rc != SQLITE_OK)
        return db_fail(err, *ret, rc, shown, "cannot be opened");
    (void)sqlite3_busy_timeout(*ret, 5000);
    (void)sqlite3_extended_result_codes(*ret, 0);
    (void)sqlite3_db_config(*ret, SQLITE_DBCONFIG_DEFENSIVE, 1, NULL);
    rc = sqlite3_exec(*ret, settings, NULL, NULL, NULL);
    return rc == SQLITE_OK ? 0 : db_fail(err, *ret, rc, shown, "cannot be used");
}

int db_number(struct db *s, const char *sql, int64_t *ret, struct err *err)
{
    sqlite3_stmt *st = NULL;
    int rc = sqlite3_prepare_v2(s->read, sql, -1, &st, NULL);
    if (rc == SQLITE_OK)
        rc = sqlite3_step(st);
    if (rc == SQLITE_ROW)
        *ret = sqlite3_column_int64(st, 0);
    (void)sqlite3_finalize(st);
    return rc == SQLITE_ROW ? 0 : db_fail(err, s->read, rc, s->path, "cannot be read");
}

static int db_check_whole(struct db *s, struct err *err)
{
    sqlite3_stmt *st = NULL;
    int rc = sqlite3_prepare_v2(s->read, "PRAGMA quick_check(1)", -1, &st, NULL);
    if (rc == SQLITE_OK)
        rc = sqlite3_step(st);
    int ret = 0;
    if (rc != SQLITE_ROW)
        ret = db_fail(err, s->read, rc, s->path, "its pages cannot be checked");
    else if (strcmp((const char *)sqlite3_column_text(st, 0), "ok") != 0) {
        _cleanup_buf_ struct buf why = {0};
        text_add_safe(&why, (const char *)sqlite3_column_text(st, 0), 200);
        ret = err_set(err, ERR_SETUP, 0,
                      "store %s is damaged (%s); restore a copy, or move the file away to start with an empty store",
                      s->path, buf_str(&why));
    }
    (void)sqlite3_finalize(st);
    return ret;
}

static int db_migrate_from(struct db *s, int64_t version, struct err *err)
{
    for (; version < DB_SCHEMA; version++) {
        _cleanup_free_ char *sql =
            xasprintf("BEGIN IMMEDIATE; %s PRAGMA application_id=%d; PRAGMA user_version=%d; COMMIT;",
                      migrations[version], APPLICATION_ID, (int)version + 1);
        int rc = sqlite3_exec(s->read, sql, NULL, NULL, NULL);
        if (rc != SQLITE_OK) {
            (void)db_fail(err, s->read, rc, s->path, "its tables cannot be made");
            (void)sqlite3_exec(s->read, "ROLLBACK", NULL, NULL, NULL);
            return -1;
        }
    }
    return 0;
}

static int db_check_and_migrate(struct db *s, struct err *err)
{
    int64_t version = 0, application = 0, tables = 0;
    if (db_number(s, "PRAGMA user_version", &version, err) < 0 ||
        db_number(s, "PRAGMA application_id", &application, err) < 0 ||
        db_number(s, "SELECT count(*) FROM sqlite_schema", &tables, err) < 0)
        return -1;
    if (application != APPLICATION_ID && (version != 0 || tables != 0))
        return err_set(err, ERR_SETUP, 0, "%s is a database, but not a Hutch store; give another state directory",
                       s->path);
    if (version > DB_SCHEMA)
        return err_set(err, ERR_SETUP, 0,
                       "store %s was written by a newer Hutch (schema %lld; this one knows %d); use that one", s->path,
                       (long long)version, DB_SCHEMA);
    if (db_check_whole(s, err) < 0)
        return -1;
    return db_migrate_from(s, version, err);
}

static int db_open_connections(struct db *s, const char *path, int dir, struct err *err)
{
    if (db_connect(path, s->path, &s->read, err) == 0 && db_check_and_migrate(s, err) == 0 &&
        db_mark_open(s, dir, err) == 0 && db_connect(path, s->path, &s->write, err) == 0)
        return 0;
    (void)sqlite3_close(s->read);
    (void)sqlite3_close(s->write);
    if (s->mark_fd >= 0)
        (void)close(s->mark_fd);
    s->read = s->write = NULL;
    s->mark_fd = -1;
    return -1;
}

/* Releases the reserve if the disk is too full to open the database otherwise. */
static int db_open_with_reserve(struct db *s, const char *path, int dir, struct err *err)
{
    if (db_open_connections(s, path, dir, err) == 0) {
        db_reserve_take(s);
        return 0;
    }
    if (!db_reserve_may_help(s))
        return -1;
    db_reserve_release(s);
    return db_open_connections(s, path, dir, err);
}

int db_open(struct loop *l, int dir, const char *shown, struct db **ret, struct err *err)
{
    _cleanup_free_ char *path = xasprintf("/proc/self/fd/%d/" DB_FILE, dir);
    /* We make the file so that its mode is right from the start; SQLite gives the files beside it the same mode. Close
     * it before SQLite opens it: closing any descriptor of a file drops all locks of the process on it, and a backup
     * that reads the database meanwhile would think that it is the last user and remove the log we write to. */
    int fd = openat(dir, DB_FILE, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0)
        return err_set(err, ERR_SETUP, errno, "store %s/" DB_FILE " cannot be opened", shown);
    (void)close(fd);
    struct db *s = xcalloc(1, sizeof *s);
    s->loop = l;
    s->path = xasprintf("%s/" DB_FILE, shown);
    s->last = &s->first;
    s->finished_last = &s->finished;
    s->full_sync = true; /* db_connect() */
    s->mark_fd = -1;
    s->dir = dir;
    (void)pthread_mutex_init(&s->lock, NULL);
    (void)pthread_cond_init(&s->wake, NULL);
    if (db_open_with_reserve(s, path, dir, err) < 0 || db_writer_start(s, err) < 0) {
        db_close(s);
        return -1;
    }
    *ret = s;
    return 0;
}

void db_close(struct db *s)
{
    if (!s)
        return;
    db_writer_stop(s);
    (void)sqlite3_close(s->read);
    (void)sqlite3_close(s->write);
    if (s->mark_fd >= 0)
        (void)close(s->mark_fd);
    (void)pthread_mutex_destroy(&s->lock);
    (void)pthread_cond_destroy(&s->wake);
    free(s->path);
    free(s);
}

int db_stored_sandboxes(struct db *s, size_t *ret, struct err *err)
{
    int64_t n = 0;
    _cleanup_free_ char *sql = xasprintf("SELECT count(*) FROM boxes WHERE state=%d", DB_SANDBOX_STORED);
    int rc = db_number(s, sql, &n, err);
    *ret = (size_t)n;
    return rc;
}

int db_count_up(struct db *s, const char *name, uint64_t *ret, struct err *err)
{
    sqlite3_stmt *st = NULL;
    int rc = sqlite3_prepare_v2(s->read,
                                "INSERT INTO counters VALUES(?1, 1) ON CONFLICT(name) DO UPDATE SET value = value + 1"
                                " RETURNING value",
                                -1, &st, NULL);
    if (rc == SQLITE_OK)
        rc = sqlite3_bind_text(st, 1, name, -1, SQLITE_STATIC);
    if (rc == SQLITE_OK)
        rc = sqlite3_step(st);
    if (rc == SQLITE_ROW) {
        *ret = (uint64_t)sqlite3_column_int64(st, 0);
        rc = sqlite3_step(st);
    }
    (void)sqlite3_finalize(st);
    return rc == SQLITE_DONE ? 0 : db_fail(err, s->read, rc, s->path, "cannot be written");
}
