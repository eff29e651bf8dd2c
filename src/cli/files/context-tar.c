/* context-tar.c - writes ustar archives; long names in GNU's way. */
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
#include "cli/files/context.h"

enum { BLOCK = 512, NAME_ROOM = 100, READ_BYTES = 1 << 16, TARGET_MAX = 4096 };

struct head {
    char name[NAME_ROOM], mode[8], uid[8], gid[8], size[12], mtime[12], sum[8], type, target[NAME_ROOM], magic[8],
        user[32], group[32], major[8], minor[8], prefix[155], pad[12];
};
_Static_assert(sizeof(struct head) == BLOCK, "one block");

static void tar_put_octal(char *to, size_t room, uint64_t value)
{
    char text[24];
    (void)snprintf(text, sizeof text, "%0*llo", (int)room - 1, (unsigned long long)value);
    memcpy(to, text, room - 1);
    to[room - 1] = '\0';
}

/* Numbers that do not fit in octal need GNU's binary form. */
static void put_size(char to[12], uint64_t value)
{
    if (value < 1ULL << 33) {
        tar_put_octal(to, 12, value);
        return;
    }
    memset(to, 0, 12);
    to[0] = (char)0x80;
    for (int i = 11; value; i--, value >>= 8)
        to[i] = (char)(value & 0xff);
}

static int put_head(int fd, const char *name, char type, const struct stat *st, uint64_t size, const char *target)
{
    struct head h = {0};
    unsigned sum = 0;
    memcpy(h.name, name, strnlen(name, sizeof h.name));
    tar_put_octal(h.mode, sizeof h.mode, st ? st->st_mode & 07777 : 0644);
    tar_put_octal(h.uid, sizeof h.uid, 0); /* COPY sets the owner */
    tar_put_octal(h.gid, sizeof h.gid, 0);
    put_size(h.size, size);
    tar_put_octal(h.mtime, sizeof h.mtime, st && st->st_mtime > 0 ? (uint64_t)st->st_mtime : 0);
    h.type = type;
    memcpy(h.target, target, strnlen(target, sizeof h.target));
    memcpy(h.magic, "ustar  ", 8);
    memset(h.sum, ' ', sizeof h.sum);
    for (size_t i = 0; i < sizeof h; i++)
        sum += ((const unsigned char *)&h)[i];
    (void)snprintf(h.sum, sizeof h.sum, "%06o", sum);
    h.sum[7] = ' ';
    return fd_write_all(fd, &h, sizeof h);
}

static int tar_pad_block(int fd, uint64_t n)
{
    static const char zeros[BLOCK];
    return n % BLOCK ? fd_write_all(fd, zeros, BLOCK - (size_t)(n % BLOCK)) : 0;
}

static int put_long(int fd, char type, const char *text)
{
    uint64_t n = strlen(text) + 1;
    if (n <= NAME_ROOM)
        return 0;
    if (put_head(fd, "././@LongLink", type, NULL, n, "") < 0 || fd_write_all(fd, text, (size_t)n) < 0)
        return -1;
    return tar_pad_block(fd, n);
}

static int put_content(int dir, const char *path, int fd, uint64_t size, struct err *err)
{
    _cleanup_free_ char *room = xmalloc(READ_BYTES);
    _cleanup_close_ int in = openat(dir, path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (in < 0)
        return err_set(err, ERR_USAGE, errno, "cannot read %s", path);
    for (uint64_t left = size; left > 0;) {
        ssize_t n = read(in, room, left < READ_BYTES ? (size_t)left : READ_BYTES);
        if (n <= 0)
            return err_set(err, ERR_USAGE, n < 0 ? errno : 0,
                           n < 0 ? "cannot read %s" : "%s became shorter while it was read", path);
        if (fd_write_all(fd, room, (size_t)n) < 0)
            return err_set(err, ERR_SETUP, errno, "cannot write the archive");
        left -= (uint64_t)n;
    }
    return tar_pad_block(fd, size) < 0 ? err_set(err, ERR_SETUP, errno, "cannot write the archive") : 0;
}

static int put_one(int dir, const char *path, int fd, struct err *err)
{
    struct stat st;
    char target[TARGET_MAX] = "";
    if (fstatat(dir, path, &st, AT_SYMLINK_NOFOLLOW) < 0)
        return err_set(err, ERR_USAGE, errno, "cannot look at %s", path);
    bool link = S_ISLNK(st.st_mode), file = S_ISREG(st.st_mode);
    if (link && readlinkat(dir, path, target, sizeof target - 1) < 0)
        return err_set(err, ERR_USAGE, errno, "cannot read the link %s", path);
    _cleanup_free_ char *name = S_ISDIR(st.st_mode) ? xasprintf("%s/", path) : xstrdup(path);
    uint64_t size = file ? (uint64_t)st.st_size : 0;
    if (put_long(fd, 'K', target) < 0 || put_long(fd, 'L', name) < 0 ||
        put_head(fd, name,
                 link   ? '2'
                 : file ? '0'
                        : '5',
                 &st, size, target) < 0)
        return err_set(err, ERR_SETUP, errno, "cannot write the archive");
    return file ? put_content(dir, path, fd, size, err) : 0;
}

static int put_end(int fd, struct err *err)
{
    static const char zeros[2 * BLOCK];
    return fd_write_all(fd, zeros, sizeof zeros) < 0 ? err_set(err, ERR_SETUP, errno, "cannot write the archive") : 0;
}

int context_tar(const struct context *c, const struct strv *files, int fd, struct err *err)
{
    for (size_t i = 0; i < files->n; i++)
        if (put_one(c->dir, files->v[i], fd, err) < 0)
            return -1;
    return put_end(fd, err);
}

int context_tar_all(int dir, int fd, struct err *err)
{
    struct context c = {.dir = dir}; /* borrowed; no .dockerignore */
    _cleanup_strv_ struct strv files = {0};
    if (context_files(&c, ".", &files, err) < 0)
        return -1;
    return context_tar(&c, &files, fd, err);
}
