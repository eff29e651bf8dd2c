/* upper-image.c - a place is a sparse file NAME.img with an ext4 file system of the size of its quota, mounted from
 * a loop device. There is no journal: after a crash of the host the file system is checked before it is mounted
 * again.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <linux/mount.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "base/random.h"
#include "os/loopdev.h"
#include "os/upper-int.h"

#define EXT4_RESIZE     _IOW('f', 16, uint64_t) /* EXT4_IOC_RESIZE_FS: the new number of blocks */
#define EXT4_STATE_AT   (1024 + 0x3a)           /* s_state of the superblock */
#define EXT4_VALID      1
#define EXT4_BLOCKS_AT  (1024 + 0x4)   /* s_blocks_count_lo, in blocks of IMAGE_BLOCK: that is how we format */
#define EXT4_BLOCKS2_AT (1024 + 0x150) /* s_blocks_count_hi */
#define IMAGE_BLOCK     UINT64_C(4096)
#define IMAGE_MIN       (UINT64_C(4) << 20)
#define IMAGE_MAX       (UINT64_C(16) << 40)
#define IMAGE_UNLIMITED (UINT64_C(256) << 30) /* without a limit: as large as the disk, and not larger than this */
enum { CHILD_IMG_FD = 3, FSCK_CORRECTED = 1, NO_PROGRAM = 127, FULL_BYTES = 1 << 20 };

static const char *const mkfs_at[] = {"/usr/sbin/mkfs.ext4", "/sbin/mkfs.ext4", NULL};
static const char *const fsck_at[] = {"/usr/sbin/e2fsck", "/sbin/e2fsck", NULL};
static const char *const resize_at[] = {"/usr/sbin/resize2fs", "/sbin/resize2fs", NULL};

static pid_t outside; /* 0: our parent */

void upper_image_outside(pid_t pid) { outside = pid; }

static int outer_pid(void) { return (int)(outside ? outside : getppid()); }

/* Finds a program here or in our parent's mount namespace: keeper's own root has no programs. */
static const char *image_find_program(const char *const *at, bool *ret_elsewhere)
{
    char path[80];
    for (size_t i = 0; at[i]; i++)
        if (access(at[i], X_OK) == 0)
            return at[i];
    for (size_t i = 0; at[i]; i++) {
        (void)snprintf(path, sizeof path, "/proc/%d/root%s", outer_pid(), at[i]);
        if (access(path, X_OK) == 0) {
            *ret_elsewhere = true;
            return at[i];
        }
    }
    return NULL;
}

const char *upper_image_missing(void)
{
    bool elsewhere;
    if (geteuid() != 0)
        return "images need root";
    if (!image_find_program(mkfs_at, &elsewhere) || !image_find_program(fsck_at, &elsewhere) ||
        !image_find_program(resize_at, &elsewhere))
        return "mkfs.ext4, e2fsck and resize2fs are not installed (Debian: e2fsprogs)";
    if (access("/dev/loop-control", R_OK | W_OK) < 0)
        return "/dev/loop-control is not there (modprobe loop)";
    return NULL;
}

static void image_child_main(const char *const *argv, int img, int mounts)
{
    static const char *const env[] = {"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C", "MKE2FS_CONFIG=/dev/null",
                                      NULL};
    sigset_t none;
    (void)sigemptyset(&none);
    (void)sigprocmask(SIG_SETMASK, &none, NULL);
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
    if (mounts >= 0 && setns(mounts, CLONE_NEWNS) < 0)
        _exit(NO_PROGRAM);
    int null = open("/dev/null", O_RDWR | O_CLOEXEC), copy = fcntl(img, F_DUPFD, CHILD_IMG_FD + 1);
    if (null < 0 || copy < 0 || dup2(null, 0) < 0 || dup2(null, 1) < 0 || dup2(null, 2) < 0 ||
        dup2(copy, CHILD_IMG_FD) < 0 || fd_close_range(CHILD_IMG_FD + 1, ~0U, 0) < 0)
        _exit(NO_PROGRAM);
    (void)execve(argv[0], (char *const *)argv, (char *const *)env);
    _exit(NO_PROGRAM);
}

/* Runs a program of e2fsprogs on the image, which it finds as descriptor 3; argv[0] is filled in. Its exit status,
 * or -1 with errno. */
static int image_run_program(const char *const *at, const char **argv, int img)
{
    bool elsewhere = false;
    _cleanup_close_ int mounts = -1;
    if (!(argv[0] = image_find_program(at, &elsewhere)))
        return NO_PROGRAM;
    if (elsewhere) {
        char path[40];
        (void)snprintf(path, sizeof path, "/proc/%d/ns/mnt", outer_pid());
        if ((mounts = open(path, O_RDONLY | O_CLOEXEC)) < 0)
            return -1;
    }
    pid_t pid = fork();
    if (pid < 0)
        return -1;
    if (pid == 0)
        image_child_main(argv, img, mounts);
    int status;
    while (waitpid(pid, &status, 0) < 0)
        if (errno != EINTR)
            return -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128;
}

/* Whether the disk is full: one of e2fsprogs failed, and its status does not say why. */
static bool image_disk_is_full(int img)
{
    struct stat st;
    return fstat(img, &st) == 0 && fallocate(img, FALLOC_FL_KEEP_SIZE, st.st_size, FULL_BYTES) < 0 &&
           (errno == ENOSPC || errno == EDQUOT);
}

/* All features are given explicitly, so that the host's mke2fs.conf adds none. resize_inode: it can grow. */
static const char features[] =
    "none,extent,huge_file,flex_bg,large_dir,dir_nlink,extra_isize,ext_attr,filetype,dir_index,"
    "sparse_super,large_file,resize_inode,64bit,metadata_csum";
static const char settings[] = "lazy_itable_init=1,nodiscard,root_owner=0:0";

static int image_format(int img, uint64_t inodes, struct err *err)
{
    char count[24];
    (void)snprintf(count, sizeof count, "%llu", (unsigned long long)inodes);
    const char *argv[20] = {NULL,  "-F", "-q", "-t", "ext4",   "-b", "4096",  "-I",
                            "256", "-m", "0",  "-O", features, "-E", settings};
    size_t n = 15;
    if (inodes) {
        argv[n++] = "-N";
        argv[n++] = count;
    }
    argv[n++] = "/proc/self/fd/3";
    int r = image_run_program(mkfs_at, argv, img);
    if (r != 0)
        return err_set(err, r == NO_PROGRAM ? ERR_HOST : ERR_SETUP, r < 0 || image_disk_is_full(img) ? errno : 0,
                       "image: mkfs.ext4 ended with status %d", r);
    return 0;
}

static uint64_t image_size(int dir, uint64_t disk)
{
    struct statvfs v;
    if (disk == 0 && fstatvfs(dir, &v) == 0)
        disk =
            (uint64_t)v.f_blocks * v.f_frsize < IMAGE_UNLIMITED ? (uint64_t)v.f_blocks * v.f_frsize : IMAGE_UNLIMITED;
    if (disk == 0 || disk > IMAGE_MAX)
        disk = IMAGE_UNLIMITED;
    disk = disk < IMAGE_MIN ? IMAGE_MIN : disk;
    return (disk + IMAGE_BLOCK - 1) / IMAGE_BLOCK * IMAGE_BLOCK;
}

/* Formats under a temporary name, so that a file named NAME.img is always complete. */
static int image_make(int dir, const char *file, uint64_t disk, uint64_t inodes, struct err *err)
{
    char tmp[32];
    (void)snprintf(tmp, sizeof tmp, "%s", UPPER_NEW);
    random_hex(tmp + strlen(tmp), 8);
    uint64_t size = image_size(dir, disk);
    _cleanup_close_ int fd = openat(dir, tmp, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0)
        return err_set(err, ERR_SETUP, errno, "image: create %s", file);
    int r = ftruncate(fd, (off_t)size) < 0 ? err_set(err, ERR_SETUP, errno, "image: size of %s", file)
                                           : image_format(fd, inodes, err);
    if (r == 0 && fdatasync(fd) < 0)
        r = err_set(err, ERR_SETUP, errno, "image: sync %s", file);
    if (r == 0 && linkat(dir, tmp, dir, file, 0) < 0 && errno != EEXIST)
        r = err_set(err, ERR_SETUP, errno, "image: name %s", file);
    (void)unlinkat(dir, tmp, 0);
    return r;
}

static bool is_clean(int img)
{
    uint16_t state = 0;
    return pread(img, &state, sizeof state, EXT4_STATE_AT) == (ssize_t)sizeof state && state == EXT4_VALID;
}

/* Size of the file system; differs from the file's if a resize was killed. 0: it cannot be read. */
static uint64_t fs_size(int img)
{
    uint32_t low = 0, high = 0;
    if (pread(img, &low, sizeof low, EXT4_BLOCKS_AT) != (ssize_t)sizeof low ||
        pread(img, &high, sizeof high, EXT4_BLOCKS2_AT) != (ssize_t)sizeof high)
        return 0;
    return ((uint64_t)high << 32 | low) * IMAGE_BLOCK;
}

/* Shrinks the file again after a failed resize, but only if the file system kept its size. */
static void image_undo_grow(int img, uint64_t old)
{
    if (fs_size(img) == old)
        (void)ftruncate(img, (off_t)old);
}

static int fs_check(int img, const char *file, struct err *err)
{
    const char *argv[] = {NULL, "-p", "-f", "/proc/self/fd/3", NULL};
    int r = image_run_program(fsck_at, argv, img);
    if (r < 0 || r > FSCK_CORRECTED)
        return err_set(err, ERR_SETUP, 0, "image: %s is damaged and e2fsck -p cannot put it in order (status %d)", file,
                       r);
    return 0;
}

static int mount_ext4(const char *source)
{
    _cleanup_close_ int fs = (int)syscall(SYS_fsopen, "ext4", FSOPEN_CLOEXEC);
    if (fs < 0 || syscall(SYS_fsconfig, fs, FSCONFIG_SET_STRING, "source", source, 0) < 0 ||
        syscall(SYS_fsconfig, fs, FSCONFIG_SET_FLAG, "noinit_itable", NULL, 0) < 0 ||
        syscall(SYS_fsconfig, fs, FSCONFIG_CMD_CREATE, NULL, NULL, 0) < 0)
        return -1;
    return (int)syscall(SYS_fsmount, fs, FSMOUNT_CLOEXEC, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV);
}

struct image {
    int lock;           /* the file, locked as long as this is open: no other process attaches it meanwhile */
    int fd;             /* the file again, for the device */
    struct loopdev dev; /* not open: not in use */
};
#define IMAGE_INIT                                \
    {                                             \
        .lock = -1, .fd = -1, .dev = LOOPDEV_INIT \
    }

static void image_close(struct image *i)
{
    loopdev_close(&i->dev);
    if (i->fd >= 0)
        (void)close(i->fd);
    if (i->lock >= 0)
        (void)close(i->lock);
    i->fd = i->lock = -1;
}

static int image_open(int dir, const char *file, bool quick, struct image *i, struct err *err)
{
    struct stat held, named;
    do { /* the previous holder may have replaced the file */
        image_close(i);
        i->lock = openat(dir, file, O_RDWR | O_NOFOLLOW | O_CLOEXEC);
        if (i->lock < 0)
            return err_set(err, ERR_SETUP, errno, "image: open %s", file);
        while (flock(i->lock, LOCK_EX | (quick ? LOCK_NB : 0)) < 0)
            if (errno != EINTR)
                return err_set(err, ERR_SETUP, errno, "image: lock %s", file);
        i->fd = openat(dir, file, O_RDWR | O_NOFOLLOW | O_CLOEXEC);
        if (i->fd < 0 || fstat(i->lock, &held) < 0 || fstat(i->fd, &named) < 0)
            return err_set(err, ERR_SETUP, errno, "image: open %s", file);
    } while (held.st_ino != named.st_ino);
    return loopdev_find(i->fd, &i->dev, err) < 0 ? -1 : 0;
}

/* Opens the image; makes it if it is missing, and checks it unless it is in use. */
static int image_ready(int dir, const char *file, uint64_t disk, uint64_t inodes, bool quick, struct image *i,
                       struct err *err)
{
    bool make = faccessat(dir, file, F_OK, 0) < 0;
    if (make && quick)
        return err_set(err, ERR_SETUP, EAGAIN, "image: %s is not made yet", file);
    if (make && image_make(dir, file, disk, inodes, err) < 0)
        return -1;
    if (image_open(dir, file, quick, i, err) < 0)
        return -1;
    if (i->dev.fd >= 0 || is_clean(i->fd))
        return 0;
    return quick ? err_set(err, ERR_SETUP, EAGAIN, "image: %s must be checked first", file)
                 : fs_check(i->fd, file, err);
}

bool upper_image_unready(int dir, const char *name)
{
    char file[UPPER_NAME_MAX + 8];
    struct err err = {0};
    (void)snprintf(file, sizeof file, "%.*s.img", UPPER_NAME_MAX, name);
    if (faccessat(dir, file, F_OK, AT_SYMLINK_NOFOLLOW) < 0)
        return false;
    _cleanup_(image_close) struct image i = IMAGE_INIT;
    return image_ready(dir, file, 0, 0, true, &i, &err) < 0 && err.eno == EAGAIN;
}

bool upper_image_locked(int dir, const char *name)
{
    char file[UPPER_NAME_MAX + 8];
    (void)snprintf(file, sizeof file, "%.*s.img", UPPER_NAME_MAX, name);
    _cleanup_close_ int fd = openat(dir, file, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    return fd >= 0 && flock(fd, LOCK_SH | LOCK_NB) < 0 && errno == EWOULDBLOCK;
}

int upper_image_check(int dir, const char *name, struct err *err)
{
    char file[UPPER_NAME_MAX + 8];
    (void)snprintf(file, sizeof file, "%.*s.img", UPPER_NAME_MAX, name);
    _cleanup_(image_close) struct image i = IMAGE_INIT;
    if (image_open(dir, file, true, &i, err) < 0)
        return err->eno == ENOENT ? 0 : err->eno == EWOULDBLOCK ? 1 : -1;
    return i.dev.fd >= 0 || is_clean(i.fd) ? 0 : fs_check(i.fd, file, err);
}

int upper_image_open(int dir, const char *name, uint64_t disk, uint64_t inodes, bool quick, struct upper *ret,
                     struct err *err)
{
    char file[UPPER_NAME_MAX + 8];
    (void)snprintf(file, sizeof file, "%s.img", name);
    bool make = faccessat(dir, file, F_OK, 0) < 0;
    _cleanup_(image_close) struct image i = IMAGE_INIT;
    if (image_ready(dir, file, disk, inodes, quick, &i, err) < 0 ||
        (i.dev.fd < 0 && loopdev_attach(i.fd, 0, &i.dev, err) < 0))
        return -1;
    int mnt = mount_ext4(i.dev.path);
    if (mnt < 0)
        return err_set(err, ERR_SETUP, errno, "image: mount %s from %s", file, i.dev.path);
    if (make)
        (void)unlinkat(mnt, "lost+found", AT_REMOVEDIR);
    *ret = (struct upper){UPPER_IMAGE, mnt};
    return 0;
}

static int grow_used(struct image *i, const char *name, uint64_t old, uint64_t size, struct err *err)
{
    uint64_t blocks = size / IMAGE_BLOCK, same = old / IMAGE_BLOCK;
    _cleanup_close_ int mnt = mount_ext4(i->dev.path);
    _cleanup_close_ int root = mnt < 0 ? -1 : openat(mnt, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (root < 0)
        return err_set(err, ERR_SETUP, errno, "image: mount %s from %s", name, i->dev.path);
    if (ioctl(root, EXT4_RESIZE, &same) < 0 && errno == EPERM) /* before anything has changed */
        return err_set(err, ERR_HOST, EPERM, "image: %s is in use; to grow it then needs CAP_SYS_RESOURCE", name);
    if (ftruncate(i->fd, (off_t)size) < 0)
        return err_set(err, ERR_SETUP, errno, "image: size of %s", name);
    if (loopdev_resized(&i->dev, err) == 0 && ioctl(root, EXT4_RESIZE, &blocks) == 0)
        return 0;
    int r = err->code ? -1 : err_set(err, ERR_SETUP, errno, "image: grow the file system of %s", name);
    if (syncfs(root) == 0) /* then the file shows what the kernel changed */
        image_undo_grow(i->fd, old);
    return r;
}

/* Holes stay holes. */
static int image_copy_file(int from, int to, uint64_t size)
{
    if (ioctl(to, FICLONE, from) == 0)
        return 0;
    if (ftruncate(to, (off_t)size) < 0)
        return -1;
    for (off_t at = 0, end; (at = lseek(from, at, SEEK_DATA)) >= 0; at = end) {
        if ((end = lseek(from, at, SEEK_HOLE)) < 0)
            return -1;
        off_t in = at, out = at;
        while (in < end) {
            ssize_t n = copy_file_range(from, &in, to, &out, (size_t)(end - in), 0);
            if (n <= 0)
                return -1;
        }
    }
    return errno == ENXIO ? 0 : -1;
}

static int resize_copy(int copy, const char *name, bool grow, uint64_t size, struct err *err)
{
    char kib[32];
    (void)snprintf(kib, sizeof kib, "%lluK", (unsigned long long)(size / 1024));
    const char *argv[] = {NULL, "/proc/self/fd/3", kib, NULL};
    if (fs_check(copy, name, err) < 0)
        return -1;
    if (grow && ftruncate(copy, (off_t)size) < 0)
        return err_set(err, ERR_SETUP, errno, "image: size of %s", name);
    int r = image_run_program(resize_at, argv, copy);
    if (r != 0 && (grow || r < 0 || image_disk_is_full(copy)))
        return err_set(err, ERR_SETUP, r < 0 || image_disk_is_full(copy) ? errno : 0,
                       "image: resize2fs of %s ended with status %d", name, r);
    if (r != 0)
        return err_set(err, ERR_LIMIT, 0,
                       "image: what is in %s and the tables of its file system need more than %llu bytes (resize2fs "
                       "ended with status %d)",
                       name, (unsigned long long)size, r);
    if (ftruncate(copy, (off_t)size) < 0 || fdatasync(copy) < 0)
        return err_set(err, ERR_SETUP, errno, "image: size of %s", name);
    return 0;
}

/* Resizes a copy and puts it in place: a kill while e2fsprogs moves blocks must not destroy the image. */
static int resize_idle(int dir, const char *file, struct image *i, uint64_t old, bool grow, uint64_t size,
                       struct err *err)
{
    char tmp[32];
    (void)snprintf(tmp, sizeof tmp, "%s", UPPER_NEW);
    random_hex(tmp + strlen(tmp), 8);
    _cleanup_close_ int copy = openat(dir, tmp, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    int r = copy < 0 || image_copy_file(i->fd, copy, old) < 0 ? err_set(err, ERR_SETUP, errno, "image: copy %s", file)
                                                              : resize_copy(copy, file, grow, size, err);
    if (r == 0 && renameat(dir, tmp, dir, file) < 0)
        r = err_set(err, ERR_SETUP, errno, "image: name %s", file);
    if (r < 0)
        (void)unlinkat(dir, tmp, 0);
    else if (fsync(dir) < 0)
        r = err_set(err, ERR_SETUP, errno, "image: sync the directory of %s", file);
    return r;
}

/* Lets the kernel grow it if possible: it cannot be killed half-way and needs no copy. */
static int grow_idle(int dir, const char *file, struct image *i, uint64_t old, uint64_t has, uint64_t size,
                     struct err *err)
{
    if (size == has) /* the file was enlarged by a process that was killed before it enlarged the file system */
        return ftruncate(i->fd, (off_t)size) < 0 ? err_set(err, ERR_SETUP, errno, "image: size of %s", file) : 0;
    if ((!is_clean(i->fd) && fs_check(i->fd, file, err) < 0) || loopdev_attach(i->fd, 0, &i->dev, err) < 0)
        return -1;
    int r = grow_used(i, file, has, size, err);
    loopdev_close(&i->dev);
    if (r == 0 || err->eno != EPERM)
        return r;
    *err = (struct err){0};
    return resize_idle(dir, file, i, old, true, size, err);
}

int upper_image_resize(int dir, const char *name, uint64_t disk, struct err *err)
{
    char file[UPPER_NAME_MAX + 8];
    struct stat st;
    (void)snprintf(file, sizeof file, "%s.img", name);
    _cleanup_(image_close) struct image i = IMAGE_INIT;
    if (image_open(dir, file, false, &i, err) < 0)
        return -1;
    uint64_t size = image_size(dir, disk);
    if (fstat(i.fd, &st) < 0)
        return err_set(err, ERR_SETUP, errno, "image: size of %s", file);
    uint64_t old = (uint64_t)st.st_size, has = fs_size(i.fd);
    if (has == 0)
        return err_set(err, ERR_SETUP, EIO, "image: %s has no file system", file);
    if (size == old && size == has)
        return 0;
    if (size >= has)
        return i.dev.fd >= 0 ? grow_used(&i, name, has, size, err) : grow_idle(dir, file, &i, old, has, size, err);
    if (i.dev.fd >= 0)
        return err_set(err, ERR_SETUP, EBUSY, "image: %s is in use and can only become smaller when it is not", name);
    return resize_idle(dir, file, &i, old, false, size, err);
}
