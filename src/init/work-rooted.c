/* work-rooted.c - requests with a root: the files of a volume, for clients without a sandbox of their own. Whatever
 * happens, no half-written file has a name, and what was answered survives a power cut. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/fsuid.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "init/work.h"

#define UNREADY ".hutch-upload-"
#define REMOVED " (deleted)" /* the kernel adds it to the path of a removed file */

enum { FOLLOW_TRIES = 100, FILE_MODE = 0644 };

int work_sync_dir(int dir)
{
    _cleanup_close_ int fd = work_open(dir, ".", O_RDONLY | O_DIRECTORY, 0);
    return fd < 0 ? -1 : fsync(fd);
}

/* Through /proc, because the descriptor may be O_PATH; no link can get in between. Owner first: chown clears set-id bits.
 * As a member of the file's group, because otherwise chmod takes its set-gid bit away. */
int work_rooted_own(const struct work *w, int fd)
{
    const struct init_root *p = &w->r->root;
    char here[40];
    struct stat st;
    uid_t uid = p->uid == INIT_UNCHANGED ? (uid_t)-1 : p->uid;
    gid_t gid = p->gid == INIT_UNCHANGED ? (gid_t)-1 : p->gid;
    if ((uid != (uid_t)-1 || gid != (gid_t)-1) && fchownat(fd, "", uid, gid, AT_EMPTY_PATH) < 0)
        return -1;
    if (p->mode == INIT_UNCHANGED)
        return 0;
    (void)snprintf(here, sizeof here, "/proc/self/fd/%d", fd);
    if (fstatat(fd, "", &st, AT_EMPTY_PATH) < 0)
        return -1;
    (void)setfsgid(st.st_gid);
    return chmod(here, p->mode);
}

void work_set(struct work *w)
{
    struct init_info i;
    struct stat st;
    const char *name;
    _cleanup_close_ int dir = work_parent(w, w->path, false, &name);
    _cleanup_close_ int fd = dir < 0 ? -1 : work_open(dir, name, O_PATH | O_NOFOLLOW, 0);
    if (fd < 0 || fstatat(fd, "", &st, AT_EMPTY_PATH) < 0)
        work_fail_errno(w, errno, w->path);
    if (S_ISLNK(st.st_mode) && w->r->root.mode != INIT_UNCHANGED)
        work_fail(w, INIT_INVALID, "'%.180s' is a link, which has no mode of its own", w->path);
    if (work_rooted_own(w, fd) < 0 || work_info(w, dir, name, w->path, &i) < 0)
        work_fail_errno(w, errno, w->path);
    work_reply_info(w, &i, -1);
}

/* --- finding ------------------------------------------------------------------------------------------------------- */

/* The path of a descriptor below the root; false: it lies outside, or has none. */
static bool rooted_path_of(const struct work *w, int fd, char ret[INIT_PATH_MAX])
{
    char link[40], at[INIT_PATH_MAX + 64];
    (void)snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, at, sizeof at - 1);
    if (n <= 0)
        return false;
    at[n] = '\0';
    errno = ESTALE;
    size_t base = strlen(w->r->root.path);
    if (strncmp(at, w->r->root.path, base) != 0 || (at[base] && at[base] != '/') || strlen(at + base) >= INIT_PATH_MAX)
        return false;
    (void)snprintf(ret, INIT_PATH_MAX, "%s", at[base] ? at + base : "/");
    return true;
}

/* Whether the file is still at the path; a file whose real name ends with REMOVED is told apart by its inode. */
static bool rooted_has(const struct work *w, const char *path, const struct stat *st)
{
    struct stat there;
    size_t n = strlen(path), end = strlen(REMOVED);
    if (n < end || strcmp(path + n - end, REMOVED) != 0)
        return true;
    _cleanup_close_ int fd = work_open_path(w, path, O_PATH | O_NOFOLLOW);
    return fd >= 0 && fstat(fd, &there) == 0 && there.st_dev == st->st_dev && there.st_ino == st->st_ino;
}

int work_rooted_follow(struct work *w, struct stat *ret)
{
    /* If another process keeps replacing the file, any of the versions will do. */
    for (int i = 0; i < FOLLOW_TRIES; i++) {
        char path[INIT_PATH_MAX];
        _cleanup_close_ int fd = work_open_path(w, w->path, O_PATH);
        if (fd < 0 || fstat(fd, ret) < 0)
            return -1;
        bool inside = rooted_path_of(w, fd, path);
        if (!inside && errno == ENAMETOOLONG)
            return -1;
        if (inside && rooted_has(w, path, ret)) {
            memcpy(w->path, path, sizeof w->path);
            return 0;
        }
    }
    errno = ESTALE;
    return -1;
}

/* --- writing ------------------------------------------------------------------------------------------------------- */

/* Looks for a file that is to be replaced. A replaced file keeps its owner and mode unless the request sets others. */
static void rooted_find_old(struct work *w, struct upload *u, struct init_root *p)
{
    struct stat st;
    if (work_rooted_follow(w, &st) < 0) {
        if (errno != ENOENT)
            work_fail_errno(w, errno, w->path);
        _cleanup_close_ int link = work_open_path(w, w->path, O_PATH | O_NOFOLLOW);
        if (link >= 0)
            work_fail(w, INIT_INVALID, "'%.180s' is a link to nothing", w->path);
        st = (struct stat){.st_mode = S_IFREG | FILE_MODE};
    } else if (S_ISDIR(st.st_mode)) {
        work_fail_errno(w, EISDIR, w->path);
    } else if (!S_ISREG(st.st_mode)) {
        work_fail(w, INIT_INVALID, "'%.180s' is not a regular file", w->path);
    } else if (!(p->flags & INIT_ROOT_FORCE)) {
        work_fail_errno(w, EEXIST, w->path);
    }
    p->uid = p->uid == INIT_UNCHANGED ? st.st_uid : p->uid;
    p->gid = p->gid == INIT_UNCHANGED ? st.st_gid : p->gid;
    p->mode = p->mode == INIT_UNCHANGED ? st.st_mode & 07777 : p->mode;
    u->mode = (mode_t)p->mode;
}

void work_rooted_upload(struct work *w, struct upload *u, struct init_info *i)
{
    static struct init_request own; /* the request with the owner and mode that the file gets */
    bool force = w->r->root.flags & INIT_ROOT_FORCE;
    own = *w->r;
    w->r = &own;
    if (force) {
        int dir = work_parent(w, w->path, true, &u->name);
        if (dir < 0)
            work_fail_errno(w, errno, w->path);
        (void)close(dir);
    }
    rooted_find_old(w, u, &own.root);
    u->dir = work_parent(w, w->path, false, &u->name);
    u->rooted = true;
    u->fd = u->dir < 0 ? -1 : work_open(u->dir, ".", O_RDWR | O_TMPFILE, 0600);
    if (u->fd < 0)
        work_fail_errno(w, errno, w->path);
    *i = (struct init_info){.name = u->name, .path = w->path, .type = INIT_FILE_REGULAR, .owner = "", .group = ""};
    i->mode = S_IFREG | (uint32_t)u->mode;
    i->facts = (struct init_facts){.uid = own.root.uid, .gid = own.root.gid};
}

/* Gives the complete new file its name; until then the old one stays. */
static int rooted_give_name(const struct work *w, const struct upload *u)
{
    char from[40], temp[64];
    struct timespec now;
    (void)snprintf(from, sizeof from, "/proc/self/fd/%d", u->fd);
    if (linkat(AT_FDCWD, from, u->dir, u->name, AT_SYMLINK_FOLLOW) == 0)
        return 0;
    if (errno != EEXIST || !(w->r->root.flags & INIT_ROOT_FORCE))
        return -1;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    (void)snprintf(temp, sizeof temp, UNREADY "%d-%llx", (int)getpid(),
                   (unsigned long long)now.tv_sec * 1000000000 + (unsigned long long)now.tv_nsec);
    if (linkat(AT_FDCWD, from, u->dir, temp, AT_SYMLINK_FOLLOW) < 0)
        return -1;
    if (renameat(u->dir, temp, u->dir, u->name) == 0)
        return 0;
    int eno = errno;
    (void)unlinkat(u->dir, temp, 0);
    errno = eno;
    return -1;
}

int work_rooted_publish(struct work *w, const struct upload *u)
{
    if (work_rooted_own(w, u->fd) < 0 || fsync(u->fd) < 0 || rooted_give_name(w, u) < 0)
        return -1;
    /* The link count and the directory, too. */
    return fsync(u->fd) < 0 ? -1 : work_sync_dir(u->dir);
}
