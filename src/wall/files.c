/* files.c - files that are made for one sandbox and mounted over what the root has: the resolver's configuration, the
 * certificates to trust. They live in a small tmpfs of their own, so that no limit on the private directories touches them.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "wall/inside.h"

#define FILES_AT "/sys/n" /* in the vault, which is covered in the end */
enum { FILES_SLACK = 64 * 1024 };

/* Where a link that leads nowhere leads: below /run, which is private, its end can be made. */
static int make_end_of_link(struct inside *in, const char *path)
{
    char to[PATH_MAX], joined[2 * PATH_MAX];
    _cleanup_close_ int dir = inside_place(in, "/");
    ssize_t n = dir < 0 ? -1 : readlinkat(dir, path + 1, to, sizeof to - 1);
    if (n <= 0) {
        errno = ENOENT;
        return -1;
    }
    to[n] = '\0';
    const char *slash = strrchr(path, '/');
    int len = to[0] == '/' ? snprintf(joined, sizeof joined, "%s", to)
                           : snprintf(joined, sizeof joined, "%.*s/%s", (int)(slash - path), path, to);
    if (len < 0 || (size_t)len >= sizeof joined) {
        errno = ENAMETOOLONG;
        return -1;
    }
    return inside_make_place(in, joined, false);
}

static int place_of(struct inside *in, const struct wall_file *f)
{
    int at = inside_place(in, f->path);
    if (at >= 0 || !f->make)
        return at;
    at = make_end_of_link(in, f->path);
    return at >= 0 ? at : inside_make_place(in, f->path, false);
}

static int put_file(struct inside *in, int dir, size_t i)
{
    const struct wall_file *f = &in->spec->files[i];
    char name[24];
    _cleanup_close_ int at = place_of(in, f);
    if (at < 0)
        return f->make ? inside_fail(in, errno, "make a place for %s", f->path) : 0;
    (void)snprintf(name, sizeof name, "%zu", i);
    _cleanup_close_ int fd = openat(dir, name, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0444);
    if (fd < 0 || fd_write_all(fd, f->bytes, f->n) < 0 || fchmod(fd, 0444) < 0)
        return inside_fail(in, errno, "write what stands at %s", f->path);
    _cleanup_close_ int src = openat(dir, name, O_PATH | O_CLOEXEC);
    _cleanup_close_ int mnt = src < 0 ? -1 : mount_clone(src, "", 0);
    if (mnt < 0 || mount_set(mnt, "", MOUNT_RO | MOUNT_NOSUID | MOUNT_NODEV | MOUNT_NOEXEC) < 0 ||
        mount_attach(mnt, at) < 0)
        return inside_fail(in, errno, "mount over %s", f->path);
    return 0;
}

int inside_files(struct inside *in)
{
    const struct wall_spec *s = in->spec;
    uint64_t size = FILES_SLACK;
    if (s->nfiles == 0)
        return 0;
    for (size_t i = 0; i < s->nfiles; i++)
        size += 2 * s->files[i].n;
    _cleanup_close_ int at = inside_make_place(in, FILES_AT, true);
    _cleanup_close_ int tmpfs = mount_new_tmpfs(size, 64 + s->nfiles, 0755, MOUNT_NOSUID | MOUNT_NODEV);
    if (at < 0 || tmpfs < 0 || mount_attach(tmpfs, at) < 0)
        return inside_fail(in, errno, "make room for the sandbox's own files");
    for (size_t i = 0; i < s->nfiles; i++)
        if (put_file(in, tmpfs, i) < 0)
            return -1;
    return 0;
}
