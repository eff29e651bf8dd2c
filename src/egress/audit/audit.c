/* audit.c - writes the audit log. See audit.h for the files and docs/audit.md for the lines.
 *
 * A line is made and chained at once, and waits in `pending` until the round of the loop is over. A partial write is
 * cut off again before the next attempt, so the file always ends with a whole line unless the process is killed in
 * between; then the next start cuts the torn line off and logs it.
 */
#include "egress/audit/audit.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <sys/file.h>
#include <time.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "base/json.h"
#include "base/log.h"
#include "base/mem.h"

enum {
    PATH_KEPT = 2048,
    PATH_SHORT = 256, /* of a line that is too long otherwise */
    KEYS_KEPT = 32,
    KEY_KEPT = 64,
    SECRETS_KEPT = 16,
    ROTATE_AGAIN = 1 << 20, /* bytes written on to a full file before the next attempt to begin a new one */
};

struct audit {
    struct loop *loop;
    int dir, fd; /* dir is borrowed; -1: fd is the only file */
    uint32_t number;
    uint64_t size; /* of whole lines in the file */
    uint64_t rotate_at, file_max;
    uint32_t files_kept;
    bool block, failing;
    bool torn; /* the file may be longer than size */
    bool scheduled, closed;
    loop_id retry;
    struct buf pending;
    char prev[AUDIT_HASH]; /* of the last line, written or pending */
    uint64_t dropped;
    uint64_t untold; /* dropped lines that the log does not mention yet */
    enum audit_sync sync;
    bool unsynced; /* written since the last fdatasync() */
    loop_id sync_timer;
    struct syncing *syncing;       /* by a worker */
    struct audit_remover *remover; /* of old files; NULL: there were none yet */
    audit_told *told;              /* NULL: lines go to files only */
    void *told_arg;
};

/* Has its own descriptor: the log may have moved on to another file before the sync ends. */
struct syncing {
    struct audit *a; /* NULL: the log was closed */
    int fd, eno;
};

/* --- the file
 * ------------------------------------------------------------------------------------------------------- */

static void audit_on_retry(void *arg);

static void sync_later(struct audit *a);

/* Runs in a worker. */
static void sync_work(void *arg)
{
    struct syncing *s = arg;
    s->eno = fdatasync(s->fd) < 0 ? errno : 0;
}

static void sync_done(void *arg)
{
    struct syncing *s = arg;
    struct audit *a = s->a;
    if (a) {
        a->syncing = NULL;
        if (s->eno) {
            a->unsynced = true;
            log_text(LOG_LEVEL_ERROR, "audit: the log cannot be forced to the disk (%s)", strerror(s->eno));
        }
        if (a->unsynced)
            sync_later(a);
    }
    (void)close(s->fd);
    free(s);
}

static void sync_now(void *arg)
{
    struct audit *a = arg;
    a->sync_timer = 0;
    int fd = fcntl(a->fd, F_DUPFD_CLOEXEC, 0);
    if (fd < 0) {
        sync_later(a);
        return;
    }
    a->unsynced = false;
    a->syncing = xcalloc(1, sizeof *a->syncing);
    *a->syncing = (struct syncing){.a = a, .fd = fd};
    loop_work(a->loop, sync_work, sync_done, a->syncing);
}

static void sync_later(struct audit *a)
{
    if (a->sync == AUDIT_SYNC_INTERVAL && !a->sync_timer && !a->syncing)
        a->sync_timer = loop_timer(a->loop, AUDIT_SYNC_MS, sync_now, a);
}

/* Forces written lines to the disk as configured. false: with AUDIT_SYNC_EACH they are not on the disk. */
static bool audit_force(struct audit *a)
{
    if (!a->unsynced || a->sync == AUDIT_SYNC_OFF)
        return true;
    if (a->sync == AUDIT_SYNC_INTERVAL) {
        sync_later(a);
        return true;
    }
    if (fdatasync(a->fd) < 0)
        return false;
    a->unsynced = false;
    return true;
}

static bool audit_flush(struct audit *a)
{
    if (a->torn && ftruncate(a->fd, (off_t)a->size) < 0)
        return false;
    a->torn = false;
    if (a->pending.n == 0)
        return audit_force(a);
    if (a->dir < 0 && a->size + a->pending.n > a->file_max) {
        errno = EFBIG;
        return false;
    }
    a->torn = true;
    if (fd_write_all(a->fd, a->pending.p, a->pending.n) < 0)
        return false;
    a->torn = false;
    a->size += a->pending.n;
    a->pending.n = 0;
    if (a->pending.cap > 256 * 1024)
        buf_done(&a->pending);
    a->unsynced = true;
    return audit_force(a);
}

static void audit_try_flush(struct audit *a)
{
    bool was = a->failing;
    loop_timer_del(a->loop, a->retry);
    a->retry = 0;
    a->failing = !audit_flush(a);
    if (a->failing && !was)
        log_text(LOG_LEVEL_ERROR, "audit: the log cannot be written (%s); %s", strerror(errno),
                 a->block ? "requests are refused until it can" : "lines will be dropped when too many wait");
    else if (was && !a->failing)
        log_text(LOG_LEVEL_INFO, "audit: the log is being written again; %" PRIu64 " lines were dropped", a->dropped);
    if (a->failing)
        a->retry = loop_timer(a->loop, AUDIT_RETRY_MS, audit_on_retry, a);
}

static void audit_on_retry(void *arg)
{
    struct audit *a = arg;
    a->retry = 0;
    audit_try_flush(a);
}

static void audit_on_round_over(void *arg)
{
    struct audit *a = arg;
    a->scheduled = false;
    if (a->closed) {
        free(a);
        return;
    }
    if (!a->failing)
        audit_try_flush(a);
}

static void audit_add_line(struct audit *a, struct buf *line)
{
    audit_hash(line->p, line->n, a->prev);
    buf_add(&a->pending, line->p, line->n);
    buf_addc(&a->pending, '\n');
    if (!a->scheduled) {
        a->scheduled = true;
        loop_defer(a->loop, audit_on_round_over, a);
    }
}

static void line_add_time(struct json *j)
{
    char text[48], whole[80];
    struct timespec now;
    struct tm tm;
    (void)clock_gettime(CLOCK_REALTIME, &now);
    (void)gmtime_r(&now.tv_sec, &tm);
    (void)strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S", &tm);
    (void)snprintf(whole, sizeof whole, "%s.%06ldZ", text, now.tv_nsec / 1000);
    json_str(j, "ts", whole);
}

/* A line about the log itself. */
static void audit_note(struct audit *a, const char *kind, const char *key, uint64_t value)
{
    _cleanup_buf_ struct buf line = {0};
    struct json j;
    json_start(&j, &line);
    json_obj(&j, NULL);
    line_add_time(&j);
    json_u64(&j, "v", 1);
    json_str(&j, "kind", kind);
    json_u64(&j, "file", a->number);
    if (key)
        json_u64(&j, key, value);
    json_str(&j, "prev", a->prev);
    json_end_obj(&j);
    audit_add_line(a, &line);
}

static void audit_remove_oldest(struct audit *a)
{
    if (a->number <= a->files_kept)
        return;
    if (!a->remover)
        a->remover = audit_remover_new(a->loop, a->dir);
    const struct audit_removal what = {.before = a->number - a->files_kept + 1,
                                       .share = a->file_max / AUDIT_SHARES,
                                       .kept_max = a->file_max * a->files_kept};
    audit_remove_old(a->remover, &what);
}

bool audit_making_room(const struct audit *a) { return a->remover && audit_removing(a->remover); }

static int audit_begin_file(struct audit *a, uint32_t number, struct err *err)
{
    char name[64];
    audit_file_name(number, name);
    int fd = openat(a->dir, name, O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0640);
    if (fd < 0)
        return err_set(err, ERR_HOST, errno, "cannot make %s of the audit log", name);
    (void)flock(fd, LOCK_EX | LOCK_NB); /* cannot fail: O_EXCL made the file just now */
    if (a->sync != AUDIT_SYNC_OFF) {
        if (a->fd >= 0 && a->unsynced && fdatasync(a->fd) == 0)
            a->unsynced = false;
        (void)fsync(a->dir); /* makes the new name durable */
    }
    if (a->fd >= 0)
        (void)close(a->fd);
    a->fd = fd;
    a->number = number;
    a->size = 0;
    a->rotate_at = a->file_max;
    audit_remove_oldest(a);
    return 0;
}

static void audit_rotate(struct audit *a)
{
    struct err err = {0};
    if (a->dir < 0 || a->failing || a->size + a->pending.n < a->rotate_at)
        return;
    audit_try_flush(a); /* the old file's last lines go into the old file */
    if (a->failing)
        return;
    if (audit_begin_file(a, a->number + 1, &err) < 0) {
        a->rotate_at = a->size + ROTATE_AGAIN;
        log_text(LOG_LEVEL_ERROR, "audit: %s; continuing with the old file", err.msg);
        return;
    }
    audit_note(a, "rotated", NULL, 0);
}

/* --- open and close
 * ------------------------------------------------------------------------------------------------- */

/* Continues at the end of a file: reads its last hash and cuts a torn line off. *ret_cut: bytes cut. 0: it is empty. 1:
 * done. */
static int audit_resume_at(struct audit *a, int fd, const char *name, uint64_t *ret_cut, struct err *err)
{
    uint64_t from, end, lines;
    off_t size = lseek(fd, 0, SEEK_END);
    if (size < 0 || audit_find_tail(fd, 1, &from, &end, &lines) < 0)
        return err_set(err, ERR_HOST, errno, "cannot read %s of the audit log", name);
    *ret_cut += (uint64_t)size - end;
    if ((uint64_t)size > end && ftruncate(fd, (off_t)end) < 0)
        return err_set(err, ERR_HOST, errno, "cannot cut a torn line off %s of the audit log", name);
    a->size = end;
    if (lines == 0)
        return 0;
    size_t n = (size_t)(end - from - 1);
    if (n > 2 * AUDIT_LINE_MAX)
        return err_set(err, ERR_HOST, 0,
                       "%s of the audit log does not end with a line of the log; see `hutch audit verify`", name);
    _cleanup_free_ char *line = xmalloc(n + 1);
    if (pread(fd, line, n, (off_t)from) != (ssize_t)n)
        return err_set(err, ERR_HOST, errno, "cannot read %s of the audit log", name);
    audit_hash(line, n, a->prev);
    return 1;
}

/* The newest file of the directory. An empty one is removed and 0 returned: look at the one before. 1: done. */
static int audit_resume_file(struct audit *a, uint32_t number, uint64_t *ret_cut, struct err *err)
{
    char name[64];
    audit_file_name(number, name);
    _cleanup_close_ int fd = openat(a->dir, name, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0)
        return err_set(err, ERR_HOST, errno, "cannot open %s of the audit log", name);
    if (flock(fd, LOCK_EX | LOCK_NB) < 0)
        return err_set(err, ERR_HOST, errno == EWOULDBLOCK ? 0 : errno,
                       "%s of the audit log is written by another process", name);
    int r = audit_resume_at(a, fd, name, ret_cut, err);
    if (r == 0 && unlinkat(a->dir, name, 0) < 0)
        return err_set(err, ERR_HOST, errno, "cannot remove the empty %s of the audit log", name);
    return r;
}

static int audit_resume(struct audit *a, struct err *err)
{
    _cleanup_free_ uint32_t *files = NULL;
    uint64_t cut = 0;
    uint32_t number = 1;
    size_t n = 0;
    if (audit_files(a->dir, &files, &n, err) < 0)
        return -1;
    for (int r = 0; n > 0 && r == 0;) {
        r = audit_resume_file(a, files[--n], &cut, err);
        if (r < 0)
            return -1;
        number = files[n] + (r > 0);
    }
    if (audit_begin_file(a, number, err) < 0)
        return -1;
    if (cut > 0)
        audit_note(a, "resumed", "cut", cut);
    else
        audit_note(a, "started", NULL, 0);
    return 0;
}

int audit_open(struct loop *l, int dirfd, bool block_when_full, struct audit **ret, struct err *err)
{
    struct audit *a = xcalloc(1, sizeof *a);
    *a = (struct audit){.loop = l,
                        .dir = dirfd,
                        .fd = -1,
                        .block = block_when_full,
                        .file_max = AUDIT_FILE_MAX,
                        .files_kept = AUDIT_FILES_KEPT,
                        .prev = AUDIT_NO_HASH};
    if (audit_resume(a, err) < 0) {
        if (a->fd >= 0)
            (void)close(a->fd);
        free(a);
        return -1;
    }
    audit_try_flush(a);
    *ret = a;
    return 0;
}

int audit_open_file(struct loop *l, int fd, struct audit **ret, struct err *err)
{
    uint64_t cut = 0;
    struct audit *a = xcalloc(1, sizeof *a);
    *a = (struct audit){.loop = l,
                        .dir = -1,
                        .fd = fcntl(fd, F_DUPFD_CLOEXEC, 3),
                        .number = 1,
                        .block = true,
                        .file_max = AUDIT_FILE_MAX,
                        .prev = AUDIT_NO_HASH};
    int r = a->fd < 0 ? err_set(err, ERR_HOST, errno, "take the audit log")
                      : audit_resume_at(a, a->fd, "the file", &cut, err);
    if (r >= 0) {
        audit_note(a, r > 0 && cut ? "resumed" : "started", r > 0 && cut ? "cut" : NULL, cut);
        audit_try_flush(a);
        if (a->failing)
            r = err_set(err, ERR_HOST, errno, "cannot write the audit log");
    }
    if (r < 0) {
        audit_close(a);
        return -1;
    }
    *ret = a;
    return 0;
}

void audit_also_tell(struct audit *a, audit_told *fn, void *arg)
{
    a->told = fn;
    a->told_arg = arg;
}

void audit_set_sync(struct audit *a, enum audit_sync how)
{
    a->sync = how;
    (void)audit_force(a);
}

struct audit *audit_tell(struct loop *l, audit_told *fn, void *arg)
{
    struct audit *a = xcalloc(1, sizeof *a);
    *a = (struct audit){.loop = l, .dir = -1, .fd = -1, .told = fn, .told_arg = arg};
    return a;
}

void audit_limits(struct audit *a, uint64_t file_max, uint32_t files_kept)
{
    a->file_max = a->rotate_at = file_max;
    a->files_kept = files_kept;
}

void audit_close(struct audit *a)
{
    if (!a)
        return;
    if (a->fd >= 0)
        audit_try_flush(a);
    if (a->unsynced && a->sync == AUDIT_SYNC_INTERVAL)
        (void)fdatasync(a->fd);
    loop_timer_del(a->loop, a->retry);
    loop_timer_del(a->loop, a->sync_timer);
    if (a->syncing)
        a->syncing->a = NULL;
    audit_remover_close(a->remover);
    if (a->fd >= 0)
        (void)close(a->fd);
    buf_done(&a->pending);
    a->closed = true;
    if (!a->scheduled)
        free(a);
}

bool audit_blocked(const struct audit *a) { return a && a->block && a->failing; }
uint64_t audit_dropped(const struct audit *a) { return a ? a->dropped : 0; }

/* --- lines
 * ---------------------------------------------------------------------------------------------------------- */

static void line_add_address(struct json *j, const char *key, const struct in6_addr *a, uint16_t port)
{
    char text[INET6_ADDRSTRLEN], whole[INET6_ADDRSTRLEN + 10];
    bool v4 = IN6_IS_ADDR_V4MAPPED(a);
    if (!inet_ntop(v4 ? AF_INET : AF_INET6, v4 ? a->s6_addr + 12 : a->s6_addr, text, sizeof text))
        return;
    (void)snprintf(whole, sizeof whole, v4 ? "%s:%u" : "[%s]:%u", text, port);
    json_str(j, key, whole);
}

/* Cuts texts that a sandbox chose to `max` bytes. */
static void line_add_cut(struct json *j, const char *key, const char *text, size_t n, size_t max)
{
    _cleanup_free_ char *copy = xstrndup(text, n < max ? n : max);
    json_str(j, key, copy);
}

static void line_add_text(struct json *j, const char *key, const char *text)
{
    if (text)
        line_add_cut(j, key, text, strlen(text), 256);
}

static void line_add_keys(struct json *j, const char *query)
{
    json_arr(j, "query_keys");
    for (unsigned i = 0; *query && i < KEYS_KEPT; i++) {
        size_t pair = strcspn(query, "&"), key = strcspn(query, "&=");
        if (key > 0)
            line_add_cut(j, NULL, query, key, KEY_KEPT);
        query += pair + (query[pair] == '&');
    }
    json_end_arr(j);
}

static void line_add_request(struct json *j, const struct audit_record *r, bool brief)
{
    const struct flow *f = r->flow;
    if (f) {
        char conn[32];
        (void)snprintf(conn, sizeof conn, "c%" PRIu64, f->id);
        json_str(j, "conn", conn);
    }
    line_add_text(j, "req", r->request_id);
    if (f)
        line_add_address(j, "dst", &f->dst, f->port);
    if (f && f->sni[0])
        json_str(j, "sni", f->sni);
    line_add_text(j, "tls", r->tls);
    line_add_text(j, "alpn", r->alpn);
    line_add_text(j, "method", r->method);
    line_add_text(j, "host", r->host);
    if (r->port)
        json_u64(j, "port", r->port);
    if (r->path)
        line_add_cut(j, "path", r->path, strlen(r->path), brief ? PATH_SHORT : PATH_KEPT);
    if (r->query && !brief)
        line_add_keys(j, r->query);
    if (r->status)
        json_u64(j, "status", r->status);
    line_add_text(j, "verdict", r->verdict);
    line_add_text(j, "rule", r->rule);
    line_add_text(j, "layer", r->layer);
    line_add_text(j, "reason", r->reason);
    if (r->count > 1)
        json_u64(j, "count", r->count);
}

static void line_add_figures(struct json *j, const struct audit_record *r)
{
    if (r->upstream) {
        line_add_address(j, "up_addr", r->upstream, r->upstream_port);
        json_bool(j, "up_reused", r->reused);
    }
    if (r->verdict && strcmp(r->verdict, "deny") != 0) {
        json_u64(j, "bytes_up", r->bytes_up);
        json_u64(j, "bytes_down", r->bytes_down);
        json_u64(j, "t_policy_us", r->policy_us);
        json_u64(j, "t_dial_us", r->dial_us);
        json_u64(j, "t_ttfb_us", r->first_byte_us);
        json_u64(j, "t_total_us", r->total_us);
    }
    if (r->nsecrets) {
        json_arr(j, "secrets");
        for (size_t i = 0; i < r->nsecrets && i < SECRETS_KEPT; i++) {
            json_obj(j, NULL);
            line_add_text(j, "name", r->secrets[i].name);
            line_add_text(j, "at", r->secrets[i].at);
            json_end_obj(j);
        }
        json_end_arr(j);
    }
    if (r->redactions)
        json_u64(j, "redactions", r->redactions);
}

/* seq 0: for audit_told, without the fields that only mean something among other lines. */
static void line_make(struct audit *a, const struct audit_record *r, uint64_t seq, bool brief, struct buf *out)
{
    struct json j;
    json_start(&j, out);
    json_obj(&j, NULL);
    line_add_time(&j);
    json_u64(&j, "v", 1);
    line_add_text(&j, "kind", r->kind);
    if (r->sandbox && seq) {
        json_str(&j, "sandbox", r->sandbox->id);
        json_str(&j, "tenant", r->sandbox->tenant);
        json_u64(&j, "epoch", r->sandbox->epoch);
    }
    line_add_request(&j, r, brief);
    line_add_figures(&j, r);
    if (r->sandbox && seq)
        json_u64(&j, "seq", seq);
    if (seq)
        json_str(&j, "prev", a->prev);
    json_end_obj(&j);
}

void audit_write(struct audit *a, const struct audit_record *r)
{
    _cleanup_buf_ struct buf line = {0};
    if (!a)
        return;
    uint64_t seq = r->sandbox ? ++r->sandbox->audit_seq : 1;
    if (a->told) {
        line_make(a, r, 0, true, &line);
        a->told(a->told_arg, &line);
        line.n = 0;
    }
    if (a->fd < 0)
        return;
    audit_rotate(a);
    if (a->pending.n > AUDIT_PENDING_MAX - 2 * AUDIT_LINE_MAX) {
        a->dropped++;
        a->untold++;
        return;
    }
    if (a->untold > 0) {
        audit_note(a, "dropped", "lines", a->untold);
        a->untold = 0;
    }
    line_make(a, r, seq, false, &line);
    if (line.n >= AUDIT_LINE_MAX) {
        line.n = 0;
        line_make(a, r, seq, true, &line);
    }
    audit_add_line(a, &line);
}
