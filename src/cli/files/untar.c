#include "cli/files/untar.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "base/mem.h"
#include "base/num.h"
#include "base/text.h"

enum { AT_NAME = 0, AT_MODE = 100, AT_SIZE = 124, AT_TIME = 136, AT_SUM = 148, AT_TYPE = 156, AT_TARGET = 157 };
enum { AT_MAGIC = 257, AT_PREFIX = 345, LIST_MAX = 64 * 1024 };

void untar_start(struct untar *u, int dir) { *u = (struct untar){.dir = dir, .fd = -1}; }

void untar_done(struct untar *u)
{
    if (u->fd >= 0)
        (void)close(u->fd);
    u->fd = -1;
    buf_done(&u->kept);
    buf_done(&u->name);
    buf_done(&u->target);
}

static int untar_fail(struct untar *u, int eno, const char *what, struct err *err)
{
    _cleanup_buf_ struct buf safe = {0};
    text_add_safe(&safe, buf_str(&u->name), 200);
    return err_set(err, ERR_USAGE, eno, "%s '%s'", what, buf_str(&safe));
}

/* Octal, or GNU's binary form. */
static bool untar_number(const unsigned char *p, size_t n, uint64_t *ret)
{
    uint64_t v = 0;
    size_t i = 0;
    if (p[0] == 0x80) {
        for (i = 1; i < n; i++) {
            if (v >> 55)
                return false;
            v = v << 8 | p[i];
        }
        *ret = v;
        return true;
    }
    for (; i < n && p[i] == ' '; i++)
        ;
    for (; i < n && p[i] >= '0' && p[i] <= '7'; i++)
        v = v << 3 | (uint64_t)(p[i] - '0');
    *ret = v;
    return i == n || p[i] == ' ' || p[i] == '\0';
}

static bool untar_sum_is_good(const unsigned char *b)
{
    uint64_t said, sum = 0;
    for (size_t i = 0; i < UNTAR_BLOCK; i++)
        sum += i >= AT_SUM && i < AT_SUM + 8 ? ' ' : b[i];
    return untar_number(b + AT_SUM, 8, &said) && said == sum;
}

/* The name of the entry, unless an entry before it has given it. */
static void untar_take_name(struct untar *u)
{
    const char *b = (const char *)u->block;
    if (u->name.n == 0) {
        if (memcmp(b + AT_MAGIC, "ustar", 5) == 0 && b[AT_MAGIC + 5] == '\0' && b[AT_PREFIX])
            buf_addf(&u->name, "%.*s/", 155, b + AT_PREFIX);
        buf_addf(&u->name, "%.*s", 100, b + AT_NAME);
    }
    if (u->target.n == 0)
        buf_addf(&u->target, "%.*s", 100, b + AT_TARGET);
}

/* Opens the directory that the name's last component is in, and makes what is missing of it. Never follows a link. */
static int untar_open_parent(struct untar *u, char *name, const char **ret_last, struct err *err)
{
    int at = fcntl(u->dir, F_DUPFD_CLOEXEC, 3);
    unsigned depth = 0;
    *ret_last = NULL;
    for (char *save = NULL, *word = strtok_r(name, "/", &save); at >= 0 && word; word = strtok_r(NULL, "/", &save)) {
        _cleanup_close_ int up = at;
        if (strcmp(word, ".") == 0) {
            at = TAKE_FD(up);
            continue;
        }
        if (strcmp(word, "..") == 0 || ++depth > UNTAR_DEPTH_MAX)
            return untar_fail(u, 0, "cp: the archive names a path that leads out, or too deep:", err);
        if (*ret_last) {
            if (mkdirat(up, *ret_last, 0777) < 0 && errno != EEXIST)
                return untar_fail(u, errno, "cp: make the directory of", err);
            at = openat(up, *ret_last, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        } else
            at = TAKE_FD(up);
        *ret_last = word;
    }
    return at < 0 ? untar_fail(u, errno, "cp: open the directory of", err) : at;
}

/* A link, or a hard link to an entry before; that one is found without following links, too. */
static int untar_make_link(struct untar *u, int parent, const char *last, bool hard, struct err *err)
{
    if (unlinkat(parent, last, 0) < 0 && errno != ENOENT)
        return untar_fail(u, errno, "cp: replace", err);
    if (!hard)
        return symlinkat(buf_str(&u->target), parent, last) < 0 ? untar_fail(u, errno, "cp: make the link", err) : 0;
    const char *first;
    _cleanup_free_ char *target = xstrdup(buf_str(&u->target));
    _cleanup_close_ int from = untar_open_parent(u, target, &first, err);
    if (from < 0)
        return -1;
    return !first || linkat(from, first, parent, last, 0) < 0 ? untar_fail(u, errno, "cp: make the link", err) : 0;
}

static int untar_make_entry(struct untar *u, char type, mode_t mode, struct err *err)
{
    const char *last;
    _cleanup_free_ char *name = xstrdup(buf_str(&u->name));
    if (strlen(name) > UNTAR_NAME_MAX)
        return untar_fail(u, 0, "cp: the name is too long:", err);
    _cleanup_close_ int parent = untar_open_parent(u, name, &last, err);
    if (parent < 0)
        return -1;
    if (!last) /* the directory itself */
        return 0;
    if (type == '5') {
        if (mkdirat(parent, last, (mode & 0777) | 0700) < 0 && errno != EEXIST)
            return untar_fail(u, errno, "cp: make the directory", err);
        return 0;
    }
    u->files++;
    if (type == '2' || type == '1')
        return untar_make_link(u, parent, last, type == '1', err);
    if (unlinkat(parent, last, 0) < 0 && errno != ENOENT)
        return untar_fail(u, errno, "cp: replace", err);
    u->fd = openat(parent, last, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode & 0777);
    return u->fd < 0 ? untar_fail(u, errno, "cp: make the file", err) : 0;
}

static int untar_finish_content(struct untar *u, struct err *err);

static int untar_take_header(struct untar *u, struct err *err)
{
    static const unsigned char zeros[UNTAR_BLOCK];
    uint64_t mode, size, mtime = 0;
    if (memcmp(u->block, zeros, sizeof zeros) == 0) {
        u->ended = true;
        return 0;
    }
    if (!untar_sum_is_good(u->block) || !untar_number(u->block + AT_MODE, 8, &mode) ||
        !untar_number(u->block + AT_SIZE, 12, &size))
        return err_set(err, ERR_HOST, 0, "cp: the archive from the sandbox is damaged");
    (void)untar_number(u->block + AT_TIME, 12, &mtime);
    char type = (char)u->block[AT_TYPE];
    type = type == '\0' || type == '7' ? '0' : type;
    u->text = strchr("LKxg", type) ? type : 0;
    if (!u->text) {
        untar_take_name(u);
        size = u->sized ? u->size : size;
    } else if (size > LIST_MAX)
        return err_set(err, ERR_HOST, 0, "cp: a name in the archive from the sandbox is longer than %d bytes",
                       LIST_MAX);
    u->left = size;
    u->pad = (UNTAR_BLOCK - size % UNTAR_BLOCK) % UNTAR_BLOCK;
    u->mtime = (time_t)mtime;
    if (!u->text && !strchr("0125", type))
        u->left_out++; /* a device, a pipe: what it has of content is skipped */
    else if (!u->text && untar_make_entry(u, type, (mode_t)mode, err) < 0)
        return -1;
    return u->left == 0 ? untar_finish_content(u, err) : 0;
}

/* A decimal number; *at is behind it. False: none, or too large. */
static bool untar_decimal(const char **at, const char *end, uint64_t *ret)
{
    const char *p = *at;
    uint64_t v = 0;
    for (; p < end && *p >= '0' && *p <= '9' && v < UINT64_MAX / 100; p++)
        v = v * 10 + (uint64_t)(*p - '0');
    *ret = v;
    bool ok = p > *at && (p == end || *p < '0' || *p > '9');
    *at = p;
    return ok;
}

static bool untar_take_pair(struct untar *u, const char *key, const char *end)
{
    static const struct {
        const char *key;
        size_t at;
    } texts[] = {{"path=", offsetof(struct untar, name)}, {"linkpath=", offsetof(struct untar, target)}};
    for (size_t i = 0; i < ARRAY_LEN(texts); i++) {
        size_t n = strlen(texts[i].key);
        struct buf *to = (struct buf *)((char *)u + texts[i].at);
        if ((size_t)(end - key) < n || memcmp(key, texts[i].key, n) != 0)
            continue;
        buf_done(to);
        buf_add(to, key + n, (size_t)(end - key) - n);
        return true;
    }
    if ((size_t)(end - key) < 5 || memcmp(key, "size=", 5) != 0)
        return true; /* times, owners: not kept */
    key += 5;
    u->sized = true;
    return untar_decimal(&key, end, &u->size) && key == end;
}

/* Lines "LENGTH KEY=VALUE\n" of a pax header. */
static int untar_take_list(struct untar *u, struct err *err)
{
    const char *p = buf_str(&u->kept), *end = p + u->kept.n;
    while (p < end) {
        const char *key = p;
        uint64_t n;
        if (!untar_decimal(&key, end, &n) || key == end || *key != ' ' || n > (uint64_t)(end - p) || key + 1 >= p + n ||
            p[n - 1] != '\n' || !untar_take_pair(u, key + 1, p + n - 1))
            return err_set(err, ERR_HOST, 0, "cp: the archive from the sandbox is damaged");
        p += n;
    }
    return 0;
}

/* The content of an entry is there. */
static int untar_finish_content(struct untar *u, struct err *err)
{
    int r = 0;
    if (u->fd >= 0) {
        const struct timespec when[2] = {{.tv_nsec = UTIME_OMIT}, {.tv_sec = u->mtime}};
        (void)futimens(u->fd, when);
        if (close(TAKE_FD(u->fd)) < 0)
            r = untar_fail(u, errno, "cp: write", err);
    }
    if (u->text == 'L' || u->text == 'K') {
        struct buf *to = u->text == 'L' ? &u->name : &u->target;
        buf_done(to);
        buf_adds(to, buf_str(&u->kept));
    } else if (u->text == 'x')
        r = untar_take_list(u, err);
    else if (u->text == 0) {
        buf_done(&u->name);
        buf_done(&u->target);
        u->sized = false;
    }
    buf_done(&u->kept);
    return r;
}

int untar_feed(struct untar *u, const void *p, size_t n, struct err *err)
{
    const unsigned char *at = p;
    while (n > 0 && !u->ended) {
        size_t take;
        if (u->left > 0) {
            take = n < u->left ? n : (size_t)u->left;
            if (u->text)
                buf_add(&u->kept, at, take);
            else if (u->fd >= 0 && fd_write_all(u->fd, at, take) < 0)
                return untar_fail(u, errno, "cp: write", err);
            u->bytes += u->fd >= 0 ? take : 0;
            u->left -= take;
            if (u->left == 0 && untar_finish_content(u, err) < 0)
                return -1;
        } else if (u->pad > 0) {
            take = n < u->pad ? n : (size_t)u->pad;
            u->pad -= take;
        } else {
            take = n < UNTAR_BLOCK - u->have ? n : UNTAR_BLOCK - u->have;
            memcpy(u->block + u->have, at, take);
            u->have += take;
            if (u->have == UNTAR_BLOCK) {
                u->have = 0;
                if (untar_take_header(u, err) < 0)
                    return -1;
            }
        }
        at += take;
        n -= take;
    }
    return 0;
}

int untar_end(struct untar *u, struct err *err)
{
    return u->ended ? 0 : err_set(err, ERR_HOST, 0, "cp: the archive from the sandbox is not complete");
}
