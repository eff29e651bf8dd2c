/* audit-keep.c - removes old files of the audit log so that no tenant can push out the lines of the others.
 *
 * Before a file is removed, the lines of every tenant that has no more than its share of it are copied to
 * kept-NNNNNNNN.ndjson with the same number: a flood goes, the lines in between stay. Kept files are a chain of their
 * own; each begins with a line that says how many lines were left out, and the oldest are removed when they have too
 * many bytes.
 */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "base/json.h"
#include "base/log.h"
#include "base/map.h"
#include "base/mem.h"
#include "egress/audit/audit.h"

enum { TENANT_MAX = 64, FLUSH_AT = 1 << 20, KEPT_FILES_MAX = 4096 };

#define KEPT_PART "kept.tmp"

struct keep_tenant {
    char id[TENANT_MAX];
    uint64_t bytes, lines;
};
struct keeping {
    struct map tenants; /* id -> struct keep_tenant */
    uint64_t share, lines, dropped;
    int out;
    struct buf pending;
    char prev[AUDIT_HASH];
    bool failed; /* errno says why */
};

/* Finds the first match only: texts that a sandbox chose come after the tenant, and their quotes are escaped. */
static bool keep_tenant_of(const char *line, size_t n, char ret[TENANT_MAX])
{
    static const char mark[] = ",\"tenant\":\"";
    const char *p = memmem(line, n, mark, sizeof mark - 1);
    if (!p)
        return false;
    p += sizeof mark - 1;
    const char *end = memchr(p, '"', n - (size_t)(p - line));
    if (!end || end == p || (size_t)(end - p) >= TENANT_MAX)
        return false;
    memcpy(ret, p, (size_t)(end - p));
    ret[end - p] = '\0';
    return true;
}

static bool keep_count(void *arg, const char *line, size_t n)
{
    struct keeping *k = arg;
    char id[TENANT_MAX];
    if (!keep_tenant_of(line, n, id))
        return true;
    struct keep_tenant *t = map_get(&k->tenants, id);
    if (!t) {
        t = xcalloc(1, sizeof *t);
        memcpy(t->id, id, sizeof t->id);
        (void)map_put(&k->tenants, t->id, t);
    }
    t->bytes += n + 1;
    t->lines++;
    return true;
}

static bool keep_flush(struct keeping *k)
{
    if (!k->failed && k->pending.n)
        k->failed = fd_write_all(k->out, k->pending.p, k->pending.n) < 0;
    k->pending.n = 0;
    return !k->failed;
}

/* Adds a line, given without its `prev`: in the kept chain it has another predecessor. */
static bool keep_chain(struct keeping *k, const char *line, size_t n)
{
    size_t from = k->pending.n;
    buf_add(&k->pending, line, n);
    buf_addf(&k->pending, "\"prev\":\"%s\"}", k->prev);
    audit_hash(k->pending.p + from, k->pending.n - from, k->prev);
    buf_addc(&k->pending, '\n');
    return k->pending.n < FLUSH_AT || keep_flush(k);
}

static bool keep_copy(void *arg, const char *line, size_t n)
{
    struct keeping *k = arg;
    char id[TENANT_MAX], prev[AUDIT_HASH];
    const struct keep_tenant *t = keep_tenant_of(line, n, id) ? map_get(&k->tenants, id) : NULL;
    if (!t || t->bytes > k->share || !audit_prev(line, n, prev))
        return true;
    return keep_chain(k, line, n - AUDIT_PREV_LEN);
}

static void keep_begin(struct keeping *k, uint32_t number)
{
    _cleanup_buf_ struct buf line = {0};
    char when[48];
    struct json j;
    struct tm tm;
    time_t now = time(NULL);
    size_t at = 0;
    for (const struct keep_tenant *t; (t = map_next(&k->tenants, &at));)
        *(t->bytes > k->share ? &k->dropped : &k->lines) += t->lines;
    (void)gmtime_r(&now, &tm);
    (void)strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%S.000000Z", &tm);
    json_start(&j, &line);
    json_obj(&j, NULL);
    json_str(&j, "ts", when);
    json_u64(&j, "v", 1);
    json_str(&j, "kind", "kept");
    json_u64(&j, "file", number);
    json_u64(&j, "lines", k->lines);
    json_u64(&j, "dropped", k->dropped);
    json_end_obj(&j);
    line.p[line.n - 1] = ','; /* the brace */
    (void)keep_chain(k, line.p, line.n);
}

/* The hash of the last line of the newest kept file. */
static int keep_find_prev(int dirfd, char ret[AUDIT_HASH], struct err *err)
{
    _cleanup_free_ uint32_t *files = NULL;
    size_t n = 0;
    char name[64];
    uint64_t from, end, lines = 0;
    (void)snprintf(ret, AUDIT_HASH, "%s", AUDIT_NO_HASH);
    if (audit_kept_files(dirfd, &files, &n, err) < 0)
        return -1;
    if (n == 0)
        return 0;
    audit_kept_name(files[n - 1], name);
    _cleanup_close_ int fd = openat(dirfd, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0 || audit_find_tail(fd, 1, &from, &end, &lines) < 0)
        return err_set(err, ERR_HOST, errno, "cannot read %s of the audit log", name);
    if (lines == 0 || end - from > 2 * AUDIT_LINE_MAX)
        return 0;
    _cleanup_free_ char *line = xmalloc((size_t)(end - from));
    if (pread(fd, line, (size_t)(end - from), (off_t)from) != (ssize_t)(end - from))
        return err_set(err, ERR_HOST, errno, "cannot read %s of the audit log", name);
    audit_hash(line, (size_t)(end - from) - 1, ret);
    return 0;
}

static int keep_write(int dirfd, uint32_t number, struct keeping *k, struct err *err)
{
    char name[64], kept[64];
    audit_file_name(number, name);
    audit_kept_name(number, kept);
    _cleanup_close_ int out = openat(dirfd, KEPT_PART, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0640);
    k->out = out;
    if (out < 0)
        return err_set(err, ERR_HOST, errno, "cannot make %s of the audit log", kept);
    keep_begin(k, number);
    if (audit_each_of(dirfd, name, keep_copy, k, err) < 0)
        return -1;
    if (!keep_flush(k) || fdatasync(out) < 0 || renameat(dirfd, KEPT_PART, dirfd, kept) < 0)
        return err_set(err, ERR_HOST, errno, "cannot write %s of the audit log", kept);
    return 0;
}

int audit_keep(int dirfd, uint32_t number, uint64_t share, struct err *err)
{
    struct keeping k = {.share = share};
    char name[64];
    audit_kept_name(number, name);
    if (faccessat(dirfd, name, F_OK, AT_SYMLINK_NOFOLLOW) == 0)
        return 0; /* an earlier process kept the lines and was killed before it removed the original */
    audit_file_name(number, name);
    int r = keep_find_prev(dirfd, k.prev, err);
    if (r == 0)
        r = audit_each_of(dirfd, name, keep_count, &k, err);
    if (r == 0)
        r = keep_write(dirfd, number, &k, err);
    if (r < 0)
        (void)unlinkat(dirfd, KEPT_PART, 0);
    size_t at = 0;
    for (struct keep_tenant *t; (t = map_next(&k.tenants, &at));)
        free(t);
    map_done(&k.tenants);
    buf_done(&k.pending);
    return r;
}

static void keep_trim(int dirfd, uint64_t bytes_max)
{
    _cleanup_free_ uint32_t *files = NULL;
    struct err ignored;
    size_t n = 0;
    uint64_t bytes = 0;
    if (audit_kept_files(dirfd, &files, &n, &ignored) < 0)
        return;
    for (size_t i = n; i-- > 0;) {
        struct stat st;
        char name[64];
        audit_kept_name(files[i], name);
        if (fstatat(dirfd, name, &st, AT_SYMLINK_NOFOLLOW) == 0)
            bytes += (uint64_t)st.st_size;
        if (bytes > bytes_max || n - i > KEPT_FILES_MAX)
            (void)unlinkat(dirfd, name, 0);
    }
}

/* --- off the loop -------------------------------------------------------------------------------------------------- */

struct audit_remover {
    struct loop *loop;
    int dir; /* owned */
    struct audit_removal wanted, working;
    struct err err;
    bool busy, closed;
};

/* Runs in a worker. A file is removed even if its lines cannot be kept: the log must not fill the disk. */
static void remover_work(void *arg)
{
    struct audit_remover *r = arg;
    _cleanup_free_ uint32_t *files = NULL;
    size_t n = 0;
    r->err = (struct err){0};
    if (audit_files(r->dir, &files, &n, &r->err) < 0)
        return;
    for (size_t i = 0; i < n && files[i] < r->working.before; i++) {
        char name[64];
        audit_file_name(files[i], name);
        (void)audit_keep(r->dir, files[i], r->working.share, &r->err);
        (void)unlinkat(r->dir, name, 0);
    }
    keep_trim(r->dir, r->working.kept_max);
}

static void remover_free(struct audit_remover *r)
{
    (void)close(r->dir);
    free(r);
}

static void remover_on_done(void *arg)
{
    struct audit_remover *r = arg;
    if (r->err.code)
        log_text(LOG_LEVEL_ERROR, "audit: lines of a removed file could not be kept: %s", r->err.msg);
    r->busy = false;
    if (r->closed)
        remover_free(r);
    else if (r->wanted.before > r->working.before)
        audit_remove_old(r, &r->wanted);
}

struct audit_remover *audit_remover_new(struct loop *l, int dirfd)
{
    struct audit_remover *r = xcalloc(1, sizeof *r);
    r->loop = l;
    r->dir = fcntl(dirfd, F_DUPFD_CLOEXEC, 3);
    return r;
}

void audit_remove_old(struct audit_remover *r, const struct audit_removal *what)
{
    r->wanted = *what;
    if (r->busy)
        return;
    r->working = r->wanted;
    r->busy = true;
    loop_work(r->loop, remover_work, remover_on_done, r);
}

bool audit_removing(const struct audit_remover *r) { return r->busy; }

void audit_remover_close(struct audit_remover *r)
{
    if (!r)
        return;
    r->closed = true;
    if (!r->busy)
        remover_free(r);
}
