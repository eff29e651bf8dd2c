/* upper-project.c - a place is a directory; on a file system mounted with project quotas (ext4, xfs: prjquota) it is
 * a project of its own. The project is remembered by the directory itself, and everything made below inherits it.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/dqblk_xfs.h>
#include <linux/fs.h>
#include <linux/quota.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/sha256.h"
#include "os/upper-int.h"

#ifndef SYS_quotactl_fd
#define SYS_quotactl_fd 443
#endif
/* Projects that are ours: high enough to stay away from those of an administrator. */
enum { PROJECT_FIRST = 0x48000000, PROJECT_COUNT = 1 << 24 };
enum { QUOTA_BLOCK = 1024, PROJECT_TRIES = 4096 };

static int quota_call(int fd, unsigned cmd, uint32_t id, void *arg)
{
    return (int)syscall(SYS_quotactl_fd, fd, QCMD(cmd, PRJQUOTA), id, arg);
}

int upper_project_probe(int dir)
{
    struct fs_quota_statv s;
    memset(&s, 0, sizeof s);
    s.qs_version = FS_QSTATV_VERSION1;
    if (quota_call(dir, Q_XGETQSTATV, 0, &s) < 0)
        return -1;
    if (!(s.qs_flags & FS_QUOTA_PDQ_ENFD)) {
        errno = ESRCH;
        return -1;
    }
    return 0;
}

static bool project_is_ours(uint32_t id) { return id >= PROJECT_FIRST && id < (uint32_t)PROJECT_FIRST + PROJECT_COUNT; }

/* The directory's project; 0 if it is not one of Hutch's: an administrator's project comes from the surrounding tree
 * and limits no place. */
static uint32_t project_of(int fd)
{
    struct fsxattr x;
    memset(&x, 0, sizeof x);
    return ioctl(fd, FS_IOC_FSGETXATTR, &x) == 0 && project_is_ours(x.fsx_projid) ? x.fsx_projid : 0;
}

/* Whether the quota counts neither a file nor a limit for the project. A project in use counts at least its directory,
 * even if another node or another directory of places made it. */
static int project_is_free(int fd, uint32_t id, struct err *err)
{
    struct if_dqblk q;
    memset(&q, 0, sizeof q);
    if (quota_call(fd, Q_GETQUOTA, id, &q) < 0)
        return errno == ENOENT ? 1 : err_set(err, ERR_SETUP, errno, "project quota: look at project %u", id);
    return !q.dqb_curspace && !q.dqb_curinodes && !q.dqb_bhardlimit && !q.dqb_ihardlimit;
}

static int project_new(int dir, const char *name, uint32_t *ret, struct err *err)
{
    struct sha256 h;
    uint8_t sum[SHA256_BYTES];
    uint32_t at;
    sha256_start(&h);
    sha256_add(&h, name, strlen(name));
    sha256_end(&h, sum);
    memcpy(&at, sum, sizeof at);
    for (uint32_t i = 0; i < PROJECT_TRIES; i++) {
        *ret = (uint32_t)PROJECT_FIRST + (at + i) % PROJECT_COUNT;
        int r = project_is_free(dir, *ret, err);
        if (r != 0)
            return r < 0 ? -1 : 0;
    }
    return err_set(err, ERR_LIMIT, 0, "project quota: %d projects from %u on are in use", (int)PROJECT_TRIES,
                   (uint32_t)PROJECT_FIRST + at % PROJECT_COUNT);
}

uint32_t upper_project_of(int dir, const char *name)
{
    _cleanup_close_ int fd = openat(dir, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    return fd < 0 ? 0 : project_of(fd);
}

void upper_project_forget(int dir, uint32_t id)
{
    struct if_dqblk q;
    memset(&q, 0, sizeof q);
    q.dqb_valid = QIF_LIMITS;
    if (project_is_ours(id))
        (void)quota_call(dir, Q_SETQUOTA, id, &q);
}

int upper_project_limit(int root, uint64_t disk, uint64_t inodes, struct err *err)
{
    struct if_dqblk q;
    memset(&q, 0, sizeof q);
    q.dqb_bhardlimit = q.dqb_bsoftlimit = disk / QUOTA_BLOCK + (disk % QUOTA_BLOCK != 0);
    q.dqb_ihardlimit = q.dqb_isoftlimit = inodes;
    q.dqb_valid = QIF_LIMITS;
    uint32_t id = project_of(root);
    if (id == 0)
        return err_set(err, ERR_HOST, 0, "project quota: the directory was made without one");
    if (quota_call(root, Q_SETQUOTA, id, &q) < 0)
        return err_set(err, ERR_SETUP, errno, "project quota: limit of project %u", id);
    return 0;
}

/* Takes the directory of the places out of the administrator's project, which everything made or renamed in it would
 * have to share. */
static int leave_project(int dir, struct err *err)
{
    struct fsxattr x;
    memset(&x, 0, sizeof x);
    if (ioctl(dir, FS_IOC_FSGETXATTR, &x) < 0 || !(x.fsx_xflags & FS_XFLAG_PROJINHERIT))
        return 0;
    x.fsx_xflags &= ~(uint32_t)FS_XFLAG_PROJINHERIT;
    return ioctl(dir, FS_IOC_FSSETXATTR, &x) < 0
               ? err_set(err, ERR_SETUP, errno, "project quota: take the places out of project %u", x.fsx_projid)
               : 0;
}

int upper_project_open(int dir, const char *name, bool quota, uint64_t disk, uint64_t inodes, struct upper *ret,
                       struct err *err)
{
    if (quota && leave_project(dir, err) < 0)
        return -1;
    bool made = mkdirat(dir, name, 0755) == 0;
    if (!made && errno != EEXIST)
        return err_set(err, ERR_SETUP, errno, "make directory %s", name);
    _cleanup_close_ int fd = openat(dir, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return err_set(err, ERR_SETUP, errno, "open directory %s", name);
    if (made && fchmod(fd, 0755) < 0) /* whatever the umask is */
        return err_set(err, ERR_SETUP, errno, "make directory %s", name);
    if (quota) {
        struct fsxattr x;
        memset(&x, 0, sizeof x);
        int r = 0;
        if (project_of(fd) == 0 && (r = project_new(dir, name, &x.fsx_projid, err)) == 0) {
            x.fsx_xflags = FS_XFLAG_PROJINHERIT;
            if (ioctl(fd, FS_IOC_FSSETXATTR, &x) < 0)
                r = err_set(err, ERR_SETUP, errno, "project quota: make %s a project", name);
        }
        if (r < 0 || upper_project_limit(fd, disk, inodes, err) < 0) {
            if (made)
                (void)unlinkat(dir, name, AT_REMOVEDIR);
            return -1;
        }
    }
    *ret = (struct upper){UPPER_LAYERS, TAKE_FD(fd)};
    return 0;
}

int upper_project_stat(int root, uint64_t count_max, struct upper_usage *ret, struct err *err)
{
    struct if_dqblk q;
    memset(&q, 0, sizeof q);
    uint32_t id = project_of(root);
    if (id == 0) /* made before the file system had quotas */
        return upper_count(root, count_max, ret, err);
    if (quota_call(root, Q_GETQUOTA, id, &q) < 0)
        return err_set(err, ERR_SETUP, errno, "project quota: usage of project %u", id);
    *ret = (struct upper_usage){q.dqb_curspace, q.dqb_bhardlimit * QUOTA_BLOCK, q.dqb_curinodes, q.dqb_ihardlimit};
    return 0;
}
