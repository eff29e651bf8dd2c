#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "base/mem.h"
#include "base/num.h"
#include "cli/run/record-sink.h"

void record_sink_done(struct record_sink *s)
{
    if (s->fd >= 0)
        (void)close(s->fd);
    if (s->dir >= 0)
        (void)close(s->dir);
    free(s->name);
}

static int sink_open_file(const char *where, struct record_sink *ret, struct err *err)
{
    struct stat st;
    const char *slash = strrchr(where, '/');
    _cleanup_free_ char *dir = !slash ? xstrdup(".") : xstrndup(where, slash == where ? 1 : (size_t)(slash - where));
    ret->name = xstrdup(slash ? slash + 1 : where);
    ret->dir = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (ret->dir < 0 || ret->name[0] == '\0')
        return err_set(err, ERR_USAGE, ret->dir < 0 ? errno : EISDIR, "--json %s", where);
    if (fstatat(ret->dir, ret->name, &st, AT_SYMLINK_NOFOLLOW) == 0 && !S_ISREG(st.st_mode))
        return err_set(err, ERR_USAGE, 0,
                       "--json %s: there is something that is not a regular file; remove it, or give a "
                       "descriptor",
                       where);
    if (faccessat(ret->dir, ".", W_OK, AT_EACCESS) == 0)
        return 0;
    /* The directory is not writable for the caller, so the file cannot be replaced: open it now and write in place. */
    ret->empty = true;
    ret->fd = openat(ret->dir, ret->name, O_WRONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    return ret->fd < 0 ? err_set(err, ERR_USAGE, errno, "--json %s", where) : 0;
}

int record_sink_open(const char *where, struct record_sink *ret, struct err *err)
{
    int fd;
    if (num_int(where, 1, 1023, &fd)) {
        ret->fd = fcntl(fd, F_DUPFD_CLOEXEC, 3);
    } else if (strncmp(where, "/dev/", 5) == 0) {
        ret->fd = open(where, O_WRONLY | O_CLOEXEC | O_NOCTTY);
    } else {
        return sink_open_file(where, ret, err);
    }
    return ret->fd < 0 ? err_set(err, ERR_USAGE, errno, "--json %s", where) : 0;
}

bool record_sink_is(const struct record_sink *s, const struct stat *file)
{
    struct stat st;
    bool there = s->fd >= 0 ? fstat(s->fd, &st) == 0 : fstatat(s->dir, s->name, &st, AT_SYMLINK_NOFOLLOW) == 0;
    return there && st.st_dev == file->st_dev && st.st_ino == file->st_ino;
}

int record_sink_write(const struct record_sink *s, const struct buf *text)
{
    char temp[32];
    if (s->empty && ftruncate(s->fd, 0) < 0)
        return -1;
    if (s->fd >= 0)
        return fd_write_all(s->fd, text->p, text->n);
    (void)snprintf(temp, sizeof temp, ".hutch-record-%d", (int)getpid());
    (void)unlinkat(s->dir, temp, 0);
    _cleanup_close_ int fd = openat(s->dir, temp, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
    if (fd < 0)
        return -1;
    if (fd_write_all(fd, text->p, text->n) == 0 && renameat(s->dir, temp, s->dir, s->name) == 0)
        return 0;
    int eno = errno;
    (void)unlinkat(s->dir, temp, 0);
    errno = eno;
    return -1;
}
