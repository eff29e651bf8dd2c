/* audit-read.c - reads and verifies the audit log: files in order, lines in order, and whether each line still follows
 * the line it was written after. Needs no loop and nothing of the writing process; it is part of the static program.
 *
 * A last line without a newline in the newest file is incomplete: it is being written, or its writer died. Readers do
 * not see it. The writer may cut such a line off, so a reader keeps nothing of it between two reads.
 */
#include "egress/audit/audit.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/inotify.h>

#include "base/cleanup.h"
#include "base/mem.h"
#include "base/num.h"
#include "base/sha256.h"

enum { CHUNK = 64 * 1024 };

#define LOG  "audit"
#define KEPT "kept"

static void series_name(const char *series, uint32_t number, char ret[64])
{
    (void)snprintf(ret, 64, "%s-%08u.ndjson", series, number);
}

void audit_file_name(uint32_t number, char ret[64]) { series_name(LOG, number, ret); }
void audit_kept_name(uint32_t number, char ret[64]) { series_name(KEPT, number, ret); }

void audit_hash(const char *line, size_t n, char ret[AUDIT_HASH])
{
    memcpy(ret, "sha256:", 7);
    sha256_hex(line, n, ret + 7);
}

/* --- files
 * ---------------------------------------------------------------------------------------------------------- */

static bool series_number(const char *series, const char *name, uint32_t *ret)
{
    char digits[9], whole[64];
    uint64_t n;
    size_t len = strlen(series);
    if (strncmp(name, series, len) != 0 || strlen(name) != len + sizeof "-00000000.ndjson" - 1)
        return false;
    memcpy(digits, name + len + 1, 8);
    digits[8] = '\0';
    if (strspn(digits, "0123456789") != 8 || !num_u64(digits + strspn(digits, "0"), &n) || n == 0)
        return false;
    *ret = (uint32_t)n;
    series_name(series, *ret, whole);
    return strcmp(whole, name) == 0;
}

static int series_compare(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return x < y ? -1 : x > y;
}

static int series_files(int dirfd, const char *series, uint32_t **ret, size_t *ret_n, struct err *err)
{
    int fd = openat(dirfd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    _cleanup_closedir_ DIR *d = fd < 0 ? NULL : fdopendir(fd);
    size_t n = 0, cap = 0;
    uint32_t *v = NULL;
    if (!d) {
        int eno = errno;
        if (fd >= 0)
            (void)close(fd);
        return err_set(err, ERR_HOST, eno, "cannot list the audit log's directory");
    }
    for (const struct dirent *e; (e = readdir(d));) {
        uint32_t number;
        if (!series_number(series, e->d_name, &number))
            continue;
        MEM_GROW(v, n, cap);
        v[n++] = number;
    }
    if (n > 1)
        qsort(v, n, sizeof *v, series_compare);
    *ret = v;
    *ret_n = n;
    return 0;
}

int audit_files(int dirfd, uint32_t **ret, size_t *ret_n, struct err *err)
{
    return series_files(dirfd, LOG, ret, ret_n, err);
}

int audit_kept_files(int dirfd, uint32_t **ret, size_t *ret_n, struct err *err)
{
    return series_files(dirfd, KEPT, ret, ret_n, err);
}

static int series_open(int dirfd, const char *series, uint32_t number, struct err *err)
{
    char name[64];
    series_name(series, number, name);
    int fd = openat(dirfd, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    return fd < 0 ? err_set(err, ERR_HOST, errno, "cannot open %s of the audit log", name) : fd;
}

int audit_find_tail(int fd, uint64_t last, uint64_t *ret_from, uint64_t *ret_end, uint64_t *ret_lines)
{
    _cleanup_free_ char *chunk = xmalloc(CHUNK);
    off_t size = lseek(fd, 0, SEEK_END);
    uint64_t at = (uint64_t)size, found = 0;
    bool any = false;
    if (size < 0)
        return -1;
    *ret_end = *ret_from = 0;
    while (at > 0) {
        size_t want = at < CHUNK ? (size_t)at : CHUNK;
        ssize_t got = pread(fd, chunk, want, (off_t)(at - want));
        if (got < 0 || (size_t)got != want) {
            errno = got < 0 ? errno : EIO;
            return -1;
        }
        for (size_t i = want; i-- > 0;) {
            if (chunk[i] != '\n')
                continue;
            if (!any)
                *ret_end = *ret_from = at - want + i + 1;
            else
                *ret_from = at - want + i + 1;
            found += any;
            any = true;
            if (found == last) {
                *ret_lines = found;
                return 0;
            }
        }
        at -= want;
    }
    *ret_lines = found + any;
    if (any)
        *ret_from = 0;
    return 0;
}

/* --- lines
 * ---------------------------------------------------------------------------------------------------------- */

struct lines {
    int fd;
    uint64_t next; /* offset of the first byte that is not in `in` */
    struct buf in;
    size_t at; /* of the next line in `in` */
};

static void lines_done(struct lines *l)
{
    if (l->fd >= 0)
        (void)close(l->fd);
    buf_done(&l->in);
}

/* 1: a line, valid until the next call. 0: no complete line is left. -1 with errno; EMSGSIZE: longer than any line of
 * the log. */
static int lines_next(struct lines *l, const char **ret, size_t *ret_n)
{
    char chunk[CHUNK];
    for (;;) {
        const char *from = l->in.n ? l->in.p + l->at : NULL;
        const char *end = from ? memchr(from, '\n', l->in.n - l->at) : NULL;
        if (end) {
            *ret = from;
            *ret_n = (size_t)(end - from);
            l->at += *ret_n + 1;
            return 1;
        }
        if (from && l->at > 0) {
            l->in.n -= l->at;
            memmove(l->in.p, l->in.p + l->at, l->in.n);
            l->at = 0;
        }
        if (l->in.n > 2 * AUDIT_LINE_MAX) {
            errno = EMSGSIZE;
            return -1;
        }
        ssize_t got = pread(l->fd, chunk, sizeof chunk, (off_t)l->next);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return -1;
        if (got == 0) {
            l->next -= l->in.n; /* read again next time: it may be complete then, or cut off */
            l->in.n = 0;
            return 0;
        }
        buf_add(&l->in, chunk, (size_t)got);
        l->next += (uint64_t)got;
    }
}

/* --- verify
 * --------------------------------------------------------------------------------------------------------- */

struct chain {
    int dirfd;
    const char *series;
    const char *known;
    bool *found;
    uint64_t lines;
    char last[AUDIT_HASH]; /* of the line before; "" before the first */
    struct audit_problem *problem;
};

static int verify_broken(struct chain *c, uint32_t file, uint64_t line, const char *text)
{
    series_name(c->series, file, c->problem->file);
    c->problem->line = line;
    (void)snprintf(c->problem->text, sizeof c->problem->text, "%s", text);
    return 1;
}

bool audit_prev(const char *line, size_t n, char ret[AUDIT_HASH])
{
    if (n < AUDIT_PREV_LEN || line[0] != '{')
        return false;
    const char *p = line + n - AUDIT_PREV_LEN;
    if (memcmp(p, "\"prev\":\"sha256:", 15) != 0 || memcmp(line + n - 2, "\"}", 2) != 0)
        return false;
    memcpy(ret, p + 8, AUDIT_HASH - 1);
    ret[AUDIT_HASH - 1] = '\0';
    return strspn(ret + 7, "0123456789abcdef") == AUDIT_HASH - 8;
}

static int verify_line(struct chain *c, uint32_t file, uint64_t number, const char *line, size_t n)
{
    char prev[AUDIT_HASH];
    if (!audit_prev(line, n, prev))
        return verify_broken(c, file, number,
                             "this line does not end with the hash of the one before: it was changed or put in");
    if (c->last[0] == '\0' && file == 1 && strcmp(prev, AUDIT_NO_HASH) != 0)
        return verify_broken(c, file, number,
                             "this is the first line of the first file, but it was written behind another one");
    if (c->last[0] != '\0' && strcmp(prev, c->last) != 0)
        return verify_broken(
            c, file, number,
            "this line was written behind another one than stands before it: the one before was changed, or lines "
            "were removed, put in or moved");
    audit_hash(line, n, c->last);
    if (c->known && strcmp(c->known, c->last) == 0)
        *c->found = true;
    c->lines++;
    return 0;
}

/* Takes the descriptor. */
static int verify_lines(struct chain *c, int fd, uint32_t number, bool newest, struct err *err)
{
    struct lines l __attribute__((cleanup(lines_done))) = {.fd = fd};
    uint64_t at = 0;
    const char *line;
    size_t n;
    int got;
    if (l.fd < 0)
        return -1;
    while ((got = lines_next(&l, &line, &n)) > 0) {
        int r = verify_line(c, number, ++at, line, n);
        if (r != 0)
            return r;
    }
    if (got < 0 && errno == EMSGSIZE)
        return verify_broken(c, number, at + 1, "what stands here is longer than any line of the log");
    if (got < 0)
        return err_set(err, ERR_HOST, errno, "cannot read the audit log");
    if (!newest && lseek(l.fd, 0, SEEK_END) != (off_t)l.next)
        return verify_broken(c, number, at + 1, "this line has no end, and a later file follows: it was cut");
    if (!newest && at == 0)
        return verify_broken(c, number, 1, "this file is empty, and a later one follows");
    return 0;
}

static int verify_file(struct chain *c, uint32_t number, bool newest, struct err *err)
{
    int fd = series_open(c->dirfd, c->series, number, err);
    return fd < 0 ? -1 : verify_lines(c, fd, number, newest, err);
}

int audit_verify_known(int dirfd, const char *known, bool *ret_found, uint64_t *ret_lines,
                       char ret_last_hash[AUDIT_HASH], struct audit_problem *problem, struct err *err)
{
    struct chain c = {.dirfd = dirfd, .series = LOG, .known = known, .found = ret_found, .problem = problem};
    _cleanup_free_ uint32_t *files = NULL;
    size_t n = 0;
    int r = 0;
    if (audit_files(dirfd, &files, &n, err) < 0)
        return -1;
    if (ret_found)
        *ret_found = false;
    for (size_t i = 0; i < n && r == 0; i++) {
        if (i > 0 && files[i] != files[i - 1] + 1)
            r = verify_broken(&c, files[i - 1] + 1, 0, "this file is missing; the ones before and behind it are there");
        else
            r = verify_file(&c, files[i], i + 1 == n, err);
    }
    *ret_lines = c.lines;
    (void)snprintf(ret_last_hash, AUDIT_HASH, "%s", c.last[0] ? c.last : AUDIT_NO_HASH);
    return r;
}

int audit_verify_file(int fd, const char *known, bool *ret_found, uint64_t *ret_lines, char ret_last_hash[AUDIT_HASH],
                      struct audit_problem *problem, struct err *err)
{
    struct chain c = {.dirfd = -1, .series = LOG, .known = known, .found = ret_found, .problem = problem};
    int own = fcntl(fd, F_DUPFD_CLOEXEC, 3);
    *ret_found = false;
    int r = own < 0 ? err_set(err, ERR_HOST, errno, "cannot read the audit log") : verify_lines(&c, own, 1, true, err);
    problem->file[0] = '\0';
    *ret_lines = c.lines;
    (void)snprintf(ret_last_hash, AUDIT_HASH, "%s", c.last[0] ? c.last : AUDIT_NO_HASH);
    return r;
}

/* Numbers may be missing: a file whose lines could not be kept has no kept file. Removing a kept file still breaks the
 * chain. */
int audit_verify_kept(int dirfd, uint64_t *ret_lines, struct audit_problem *problem, struct err *err)
{
    struct chain c = {.dirfd = dirfd, .series = KEPT, .problem = problem};
    _cleanup_free_ uint32_t *files = NULL;
    size_t n = 0;
    int r = audit_kept_files(dirfd, &files, &n, err);
    for (size_t i = 0; i < n && r == 0; i++)
        r = verify_file(&c, files[i], i + 1 == n, err);
    *ret_lines = c.lines;
    return r;
}

bool audit_is_first(const char *line, size_t n)
{
    static const char begin[] = "{\"ts\":\"", middle[] = "\",\"v\":1,\"kind\":\"started\",\"file\":1,",
                      end[] = "\"prev\":\"" AUDIT_NO_HASH "\"}", shape[] = "dddd-dd-ddTdd:dd:dd.ddddddZ";
    size_t b = sizeof begin - 1, s = sizeof shape - 1, m = sizeof middle - 1, e = sizeof end - 1;
    if (n != b + s + m + e || memcmp(line, begin, b) != 0 || memcmp(line + b + s, middle, m) != 0 ||
        memcmp(line + b + s + m, end, e) != 0)
        return false;
    for (size_t i = 0; i < s; i++)
        if (shape[i] == 'd' ? line[b + i] < '0' || line[b + i] > '9' : line[b + i] != shape[i])
            return false;
    return true;
}

/* --- all lines, and those to come
 * ----------------------------------------------------------------------------------- */

/* The first file after `number`; 0: none yet. */
static int audit_file_after(int dirfd, uint32_t number, uint32_t *ret, struct err *err)
{
    _cleanup_free_ uint32_t *files = NULL;
    size_t n = 0;
    if (audit_files(dirfd, &files, &n, err) < 0)
        return -1;
    *ret = 0;
    for (size_t i = n; i-- > 0 && files[i] > number;)
        *ret = files[i];
    return 0;
}

static int audit_watch_open(int dirfd, struct err *err)
{
    char path[64];
    _cleanup_close_ int fd = inotify_init1(IN_CLOEXEC);
    (void)snprintf(path, sizeof path, "/proc/self/fd/%d", dirfd);
    if (fd < 0 || inotify_add_watch(fd, path, IN_MODIFY | IN_CREATE) < 0)
        return err_set(err, ERR_HOST, errno, "cannot watch the audit log's directory");
    return TAKE_FD(fd);
}

static int audit_watch_wait(int watch, struct err *err)
{
    char events[4096];
    ssize_t got;
    do
        got = read(watch, events, sizeof events);
    while (got < 0 && errno == EINTR);
    return got < 0 ? err_set(err, ERR_HOST, errno, "cannot watch the audit log's directory") : 0;
}

/* 1: fn asked to stop. */
static int lines_tell(struct lines *l, audit_line_fn *fn, void *arg, struct err *err)
{
    const char *line;
    size_t n;
    int got;
    while ((got = lines_next(l, &line, &n)) > 0)
        if (!fn(arg, line, n))
            return 1;
    if (got < 0)
        return errno == EMSGSIZE ? err_set(err, ERR_HOST, 0,
                                           "the audit log holds something that is no line; see `hutch audit verify`")
                                 : err_set(err, ERR_HOST, errno, "cannot read the audit log");
    return 0;
}

int audit_each_of(int dirfd, const char *name, audit_line_fn *fn, void *arg, struct err *err)
{
    struct lines l __attribute__((cleanup(lines_done))) = {
        .fd = openat(dirfd, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK)};
    if (l.fd < 0)
        return err_set(err, ERR_HOST, errno, "cannot open %s of the audit log", name);
    return lines_tell(&l, fn, arg, err) < 0 ? -1 : 0;
}

int audit_each_kept(int dirfd, audit_line_fn *fn, void *arg, struct err *err)
{
    _cleanup_free_ uint32_t *files = NULL;
    size_t n = 0;
    int r = audit_kept_files(dirfd, &files, &n, err);
    for (size_t i = 0; i < n && r == 0; i++) {
        char name[64];
        audit_kept_name(files[i], name);
        r = audit_each_of(dirfd, name, fn, arg, err);
    }
    return r;
}

static int audit_each_from(int dirfd, uint32_t file, uint64_t from, bool follow, audit_line_fn *fn, void *arg,
                           struct err *err)
{
    _cleanup_close_ int watch = follow ? audit_watch_open(dirfd, err) : -1;
    struct lines l __attribute__((cleanup(lines_done))) = {.fd = -1, .next = from};
    if (follow && watch < 0)
        return -1;
    for (uint32_t next = file;;) {
        if (next != 0) {
            lines_done(&l);
            l = (struct lines){.fd = series_open(dirfd, LOG, next, err), .next = next == file ? from : 0};
            if (l.fd < 0)
                return -1;
            file = next;
        }
        uint32_t behind = 0; /* looked up before reading: if a next file exists, this one does not grow any more */
        if (audit_file_after(dirfd, file, &behind, err) < 0)
            return -1;
        int r = l.fd < 0 ? 0 : lines_tell(&l, fn, arg, err);
        if (r != 0)
            return r < 0 ? -1 : 0;
        if (behind == 0 && !follow)
            return 0;
        if (behind == 0 && audit_watch_wait(watch, err) < 0)
            return -1;
        next = behind;
    }
}

int audit_each(int dirfd, bool follow, audit_line_fn *fn, void *arg, struct err *err)
{
    return audit_each_from(dirfd, 0, 0, follow, fn, arg, err);
}

int audit_tail(int dirfd, uint64_t last, bool follow, audit_line_fn *fn, void *arg, struct err *err)
{
    _cleanup_free_ uint32_t *files = NULL;
    uint64_t from = 0;
    uint32_t file = 0;
    size_t n = 0;
    if (audit_files(dirfd, &files, &n, err) < 0)
        return -1;
    for (size_t i = n; i-- > 0;) {
        uint64_t end, lines;
        _cleanup_close_ int fd = series_open(dirfd, LOG, files[i], err);
        if (fd < 0)
            return -1;
        if (audit_find_tail(fd, last, &from, &end, &lines) < 0)
            return err_set(err, ERR_HOST, errno, "cannot read the audit log");
        file = files[i];
        last -= lines < last ? lines : last;
        if (last == 0)
            break;
    }
    return audit_each_from(dirfd, file, from, follow, fn, arg, err);
}
