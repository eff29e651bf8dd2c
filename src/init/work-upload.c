/* work-upload.c - replaces a file only when its new contents are complete: collects the bytes beside it under a name of
 * ours and puts them in place at the end. A broken upload changes nothing. */
#include <errno.h>
#include <fcntl.h>
#include <linux/memfd.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "init/work.h"

#define UPLOAD_PREFIX ".hutch-upload-"
#define META_PREFIX   "user.e2b."

bool work_is_upload(const char *name) { return strncmp(name, UPLOAD_PREFIX, sizeof UPLOAD_PREFIX - 1) == 0; }

static bool meta_is_wanted(const struct init_request *r, const char *key)
{
    for (size_t i = 0; i < r->nmeta; i++)
        if (strcmp(r->meta[i].key, key) == 0)
            return true;
    return false;
}

/* The metadata becomes exactly what was sent. */
static int upload_put_meta(const struct init_request *r, int fd)
{
    char names[4096], key[sizeof META_PREFIX + 256];
    ssize_t n = flistxattr(fd, names, sizeof names);
    for (ssize_t at = 0; at < n;) {
        const char *name = names + at;
        at += (ssize_t)strnlen(name, (size_t)(n - at)) + 1;
        if (strncmp(name, META_PREFIX, sizeof META_PREFIX - 1) == 0 &&
            !meta_is_wanted(r, name + sizeof META_PREFIX - 1))
            (void)fremovexattr(fd, name);
    }
    for (size_t i = 0; i < r->nmeta; i++) {
        (void)snprintf(key, sizeof key, META_PREFIX "%s", r->meta[i].key);
        if (fsetxattr(fd, key, r->meta[i].value, strlen(r->meta[i].value), 0) < 0)
            return -1;
    }
    return 0;
}

static bool upload_has_acl(int fd) { return fgetxattr(fd, "system.posix_acl_access", NULL, 0) >= 0; }

/* Opens the existing file without changing it. Refuses anything but a regular file. */
static void upload_open_old(struct work *w, struct upload *u)
{
    struct stat st, entry;
    bool link = fstatat(u->dir, u->name, &entry, AT_SYMLINK_NOFOLLOW) == 0 && S_ISLNK(entry.st_mode);
    /* A dangling link: create the file where it points, as every program does that writes through one. */
    u->old = work_open(u->dir, u->name, O_WRONLY | (link ? O_CREAT : 0), 0666);
    if (u->old < 0 && errno == ENOENT)
        return;
    if (u->old < 0 && errno != ENXIO) /* ENXIO: a FIFO without a reader, a socket, a terminal */
        work_fail_errno(w, errno, w->path);
    if (u->old < 0 || fstat(u->old, &st) < 0 || !S_ISREG(st.st_mode) || work_is_kernel_fs(u->old))
        work_fail(w, INIT_INVALID, "path '%.200s' is not a regular file", w->path);
    u->mode = st.st_mode & 0777;
    /* Replacing the file would cut the link, leave its other names behind, or lose the access list: write in place. */
    u->in_place = link || st.st_nlink > 1 || upload_has_acl(u->old);
}

void work_upload_stage(struct work *w, struct upload *u, const char *path)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    (void)snprintf(u->temp, sizeof u->temp, UPLOAD_PREFIX "%d-%llx", (int)getpid(),
                   (unsigned long long)now.tv_sec * 1000000000 + (unsigned long long)now.tv_nsec);
    /* Until then it must not be readable to more users than the file that it replaces. */
    u->fd = work_open(u->dir, u->temp, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW, u->old < 0 ? 0666 : 0600);
    if (u->fd < 0 && u->old >= 0 && (errno == EACCES || errno == EPERM || errno == EROFS)) {
        u->temp[0] = '\0'; /* the file is writable, but not its directory */
        u->in_place = true;
        u->fd = memfd_create("upload", MFD_CLOEXEC);
    }
    if (u->fd < 0)
        work_fail_errno(w, errno, path);
    if (u->temp[0]) {
        w->half_dir = u->dir;
        w->half = u->temp;
    }
}

void work_upload_begin(struct work *w, struct upload *u, struct init_info *i)
{
    upload_open_old(w, u);
    work_upload_stage(w, u, w->path);
    if (u->temp[0]) {
        work_give(w, u->fd);
        if (u->old >= 0 && !u->in_place)
            work_copy_xattrs(u->old, u->fd);
        if (upload_put_meta(w->r, u->fd) < 0)
            work_fail_errno(w, errno, w->path);
    }
    if (work_info(w, u->dir, u->temp[0] ? u->temp : u->name, w->path, i) < 0)
        work_fail_errno(w, errno, w->path);
    if (u->old >= 0)
        i->mode = S_IFREG | (uint32_t)u->mode;
}

void work_upload_drop(const struct upload *u)
{
    if (u->temp[0])
        (void)unlinkat(u->dir, u->temp, 0);
}

/* Copies into the existing file. Reserves the space first, so that a full disk changes nothing. */
static int upload_copy_in_place(struct work *w, const struct upload *u, off_t size)
{
    if (size > 0 && fallocate(u->old, FALLOC_FL_KEEP_SIZE, 0, size) < 0 && errno != EOPNOTSUPP && errno != ENOSYS)
        return -1;
    if (lseek(u->fd, 0, SEEK_SET) < 0 || lseek(u->old, 0, SEEK_SET) < 0 || work_copy_bytes(u->fd, u->old) < 0 ||
        ftruncate(u->old, size) < 0)
        return -1;
    work_give(w, u->old);
    work_upload_drop(u);
    return upload_put_meta(w->r, u->old);
}

/* Repeats the events of a new file (created, given to its owner, written once) for watches of its directory. Opens it
 * again: descriptors of its temporary name raise no events any more. */
static void upload_tell_new(const struct upload *u, const struct stat *st)
{
    struct stat now;
    _cleanup_close_ int fd = work_open(u->dir, u->name, O_WRONLY | O_NOFOLLOW, 0);
    if (fd < 0 || fstat(fd, &now) < 0 || now.st_ino != st->st_ino || now.st_dev != st->st_dev)
        return; /* replaced or removed meanwhile */
    (void)fchmod(fd, now.st_mode & 07777);
    (void)!ftruncate(fd, st->st_size);
}

int work_upload_publish(struct work *w, const struct upload *u)
{
    struct stat st;
    if (fstat(u->fd, &st) < 0)
        return -1;
    if (u->in_place)
        return upload_copy_in_place(w, u, st.st_size);
    if (u->old < 0 && linkat(u->dir, u->temp, u->dir, u->name, 0) == 0) {
        work_upload_drop(u);
        upload_tell_new(u, &st);
        return 0;
    }
    if (u->old >= 0 && fchmod(u->fd, u->mode) < 0)
        return -1;
    if (renameat(u->dir, u->temp, u->dir, u->name) < 0)
        return u->old < 0 ? -1 : upload_copy_in_place(w, u, st.st_size); /* a mount point, or another user's in /tmp */
    (void)!ftruncate(u->fd, st.st_size);                                 /* tells: written */
    return 0;
}
