#include "snapshots/changes.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/mem.h"
#include "trees/diff.h"

struct reader {
    int fd;
    char *buf;
    size_t at, n, size;
};

/* Returns the next n bytes, valid until the next call; NULL: end or failure. */
static const void *change_reader_take(struct reader *r, size_t n)
{
    if (r->n - r->at < n) {
        memmove(r->buf, r->buf + r->at, r->n - r->at);
        r->n -= r->at;
        r->at = 0;
        while (r->n < n) {
            ssize_t got = read(r->fd, r->buf + r->n, r->size - r->n);
            if (got < 0 && errno == EINTR)
                continue;
            if (got <= 0)
                return NULL;
            r->n += (size_t)got;
        }
    }
    const void *p = r->buf + r->at;
    r->at += n;
    return p;
}

static void change_add_mode(struct json *j, const char *key, uint32_t mode)
{
    char text[16];
    (void)snprintf(text, sizeof text, "%04o", mode & 07777);
    json_str(j, key, text);
}

static const char *change_type_name(uint32_t mode)
{
    return S_ISREG(mode) ? "file" : S_ISDIR(mode) ? "directory" : S_ISLNK(mode) ? "symlink" : "other";
}

static void change_add(struct json *j, const struct diff_record *d, const char *path)
{
    static const char *const kinds[] = {[DIFF_ADDED] = "added", [DIFF_REMOVED] = "removed", [DIFF_CHANGED] = "changed"};
    static const struct {
        unsigned bit;
        const char *name;
    } what[] = {{DIFF_TYPE, "type"},   {DIFF_CONTENT, "content"}, {DIFF_MODE, "mode"},
                {DIFF_OWNER, "owner"}, {DIFF_TIME, "time"},       {DIFF_XATTRS, "attributes"}};
    json_obj(j, NULL);
    json_str(j, "path", path);
    json_str(j, "change", kinds[d->kind]);
    json_str(j, "type", change_type_name(d->kind == DIFF_REMOVED ? d->mode_a : d->mode_b));
    if (d->kind == DIFF_CHANGED) {
        json_arr(j, "what");
        for (size_t i = 0; i < ARRAY_LEN(what); i++)
            if (d->what & what[i].bit)
                json_str(j, NULL, what[i].name);
        json_end_arr(j);
    }
    if (d->kind != DIFF_ADDED) {
        json_u64(j, "sizeBefore", d->size_a);
        change_add_mode(j, "modeBefore", d->mode_a);
    }
    if (d->kind != DIFF_REMOVED) {
        json_u64(j, "size", d->size_b);
        change_add_mode(j, "mode", d->mode_b);
    }
    json_end_obj(j);
}

static bool change_is_below(const char *path, const char *below)
{
    size_t n = strlen(below);
    return n == 0 || (strncmp(path, below, n) == 0 && (path[n] == '\0' || path[n] == '/'));
}

int changes_add(struct json *j, int fd, const char *below, struct err *err)
{
    _cleanup_free_ char *space = xmalloc(LAY_PATH_MAX * 4);
    struct reader r = {.fd = fd, .buf = space, .size = LAY_PATH_MAX * 4};
    uint64_t total = 0, shown = 0;
    int rc = -1;
    json_arr(j, "changes");
    size_t begin = j->out->n;
    for (;;) {
        struct diff_record d;
        const void *p = change_reader_take(&r, sizeof d);
        if (!p)
            break;
        memcpy(&d, p, sizeof d);
        if (d.magic != DIFF_MAGIC || d.kind > DIFF_CHANGED || d.path_len >= LAY_PATH_MAX)
            break;
        if (d.kind == 0) {
            rc = 0;
            break;
        }
        char path[LAY_PATH_MAX + 1] = "/";
        if (!(p = change_reader_take(&r, d.path_len)))
            break;
        memcpy(path + 1, p, d.path_len);
        path[1 + d.path_len] = '\0';
        if (!change_is_below(path + 1, below))
            continue;
        total++;
        if (shown == CHANGES_SHOWN_MAX || j->out->n - begin >= CHANGES_BYTES_MAX)
            continue;
        change_add(j, &d, path);
        shown++;
    }
    json_end_arr(j);
    json_u64(j, "total", total);
    if (total > shown)
        json_bool(j, "truncated", true);
    return rc < 0 ? err_set(err, ERR_INTERNAL, 0, "the list of differences is not whole") : 0;
}
