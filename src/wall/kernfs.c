/* kernfs.c - the sandbox's own /dev, /proc and /sys.
 *
 * The vault is one tmpfs, attached at /sys while the sandbox is built. All private writable directories, the private
 * /dev and the covers of mode 0000 are directories and files in it, bound where they belong, so that one size and one
 * inode limit holds for all of them together. At the end /sys is covered by an empty directory of the same vault.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "wall/inside.h"

static const char *const nodes[INSIDE_NODES] = {"null", "zero", "full", "random", "urandom", "tty"};

static const struct {
    const char *name, *target;
} links[] = {{"fd", "/proc/self/fd"},
             {"stdin", "/proc/self/fd/0"},
             {"stdout", "/proc/self/fd/1"},
             {"stderr", "/proc/self/fd/2"},
             {"ptmx", "pts/ptmx"}};

/* Kernel files that reveal the host or its other users and that everyone may read. Files that the kernel keeps for uid
 * 0 (kcore, kmsg, slabinfo, kpage*, sysrq-trigger ...) need no cover: no uid inside is the host's 0, and all of /proc
 * is read-only. */
static const char *const hidden_files[] = {
    "kallsyms",      "keys",       "key-users", "sched_debug", "interrupts", "softirqs", "config.gz",
    "cmdline",       "partitions", "diskstats", "swaps",       "modules",    "iomem",    "ioports",
    "latency_stats", "mtrr",       "schedstat", "zoneinfo",    "buddyinfo",  "locks",
};
static const char *const hidden_dirs[] = {"acpi", "asound", "bus", "driver",       "fs",
                                          "irq",  "scsi",   "tty", "dynamic_debug"};

/* Binds a file or directory of the vault read-only on itself; a clone of that mount has the flags already. */
static int make_cover(int vault, const char *name)
{
    _cleanup_close_ int at = openat(vault, name, O_PATH | O_CLOEXEC | O_NOFOLLOW);
    int fd = at < 0 ? -1 : mount_clone(at, "", 0);
    if (fd < 0 || mount_set(fd, "", MOUNT_RO | MOUNT_NOSUID | MOUNT_NODEV | MOUNT_NOEXEC) < 0 ||
        mount_attach(fd, at) < 0)
        return -1;
    return fd;
}

/* /dev, /proc and /sys of a foreign root: a link or a file in their place is refused, not followed. */
static int kernel_place(struct inside *in, const char *path)
{
    if (!in->new_root)
        return inside_place(in, path);
    if (mkdirat(in->root, path + 1, 0755) < 0 && errno != EEXIST)
        return -1;
    return openat(in->root, path + 1, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
}

/* The places of the covers and /dev, as far as neither needs a mount. */
static int fill_tmpfs(int fd)
{
    if (mkdirat(fd, "d", 0) < 0 || mkdirat(fd, "e", 0555) < 0 || mkdirat(fd, "dev", 0755) < 0 ||
        mkdirat(fd, "shm", 0700) < 0 || fchmodat(fd, "shm", 01777, 0) < 0 || fchmodat(fd, "e", 0555, 0) < 0 ||
        mknodat(fd, "f", S_IFREG, 0) < 0 || mknodat(fd, "s", S_IFSOCK | 01000, 0) < 0)
        return -1;
    _cleanup_close_ int dev = openat(fd, "dev", O_PATH | O_DIRECTORY | O_CLOEXEC);
    for (unsigned i = 0; i < INSIDE_NODES; i++)
        if (mknodat(dev, nodes[i], S_IFREG | 0644, 0) < 0)
            return -1;
    for (unsigned i = 0; i < sizeof links / sizeof links[0]; i++)
        if (symlinkat(links[i].target, dev, links[i].name) < 0)
            return -1;
    return mkdirat(dev, "pts", 0755) < 0 || mkdirat(dev, "shm", 01777) < 0 ? -1 : 0;
}

static int make_tmpfs(struct inside *in, uint64_t size, uint64_t inodes)
{
    in->tmpfs = mount_new_tmpfs(size, inodes, 0755, MOUNT_NOSUID | MOUNT_NODEV);
    if (in->tmpfs < 0)
        return inside_fail(in, errno, "make the private tmpfs");
    return fill_tmpfs(in->tmpfs) < 0 ? inside_fail(in, errno, "fill the private tmpfs") : 0;
}

static int make_pts(struct inside *in)
{
    in->pts = mount_new_devpts(MOUNT_NOSUID | MOUNT_NOEXEC);
    return in->pts < 0 ? inside_fail(in, errno, "make /dev/pts") : 0;
}

static int make_proc(struct inside *in)
{
    in->proc = mount_new_proc(MOUNT_NOSUID | MOUNT_NODEV | MOUNT_NOEXEC);
    if (in->proc >= 0)
        return 0;
    return inside_fail(in, errno,
                       errno == EPERM ? "mount /proc (parts of the host's own /proc are covered; "
                                        "`hutch doctor` explains)"
                                      : "mount /proc");
}

int inside_private(struct inside *in)
{
    if (make_tmpfs(in, 0, 0) < 0 || make_pts(in) < 0)
        return -1;
    /* A procfs of the host's pid namespace cannot be mounted. */
    return LAYER_OFF(in->spec->without, PIDNS) ? 0 : make_proc(in);
}

int inside_vault(struct inside *in)
{
    const struct wall_spec *s = in->spec;
    uint64_t inodes = LAYER_OFF(s->without, TMPFS_INODES) ? 0 : s->disk_inodes;
    uint64_t size = LAYER_OFF(s->without, DISK) ? 0 : s->disk_bytes;
    if (in->new_root) { /* the upper layer has the other three quarters */
        size /= 4;
        inodes /= 4;
    }
    if (in->tmpfs < 0 && make_tmpfs(in, size, inodes) < 0)
        return -1;
    if (mount_limit_tmpfs(in->tmpfs, size, inodes) < 0)
        return inside_fail(in, errno, "limit the private tmpfs");
    _cleanup_close_ int fd = TAKE_FD(in->tmpfs), at = kernel_place(in, "/sys");
    if (at < 0)
        return inside_fail(in, errno, "/sys of the root must be a directory");
    if (mount_attach(fd, at) < 0)
        return inside_fail(in, errno, "attach the private tmpfs");
    in->cover_stub = make_cover(fd, "s");
    in->cover_file = make_cover(fd, "f");
    in->cover_dir = make_cover(fd, "d");
    if (in->cover_file < 0 || in->cover_dir < 0 || in->cover_stub < 0)
        return inside_fail(in, errno, "prepare the covers");
    return 0;
}

int inside_cover(struct inside *in, int at, int cover, const char *what)
{
    _cleanup_close_ int fd = mount_clone(cover, "", 0);
    if (fd < 0 || mount_attach(fd, at) < 0)
        return inside_fail(in, errno, "cover %s", what);
    return 0;
}

static int bind_from_vault(struct inside *in, const char *name, const char *path, unsigned flags)
{
    _cleanup_close_ int src = inside_place(in, name);
    _cleanup_close_ int fd = src < 0 ? -1 : mount_clone(src, "", 0);
    bool deeper = strchr(path + 1, '/') != NULL;
    _cleanup_close_ int at = deeper ? inside_place(in, path) : kernel_place(in, path);
    if (at < 0)
        return inside_fail(in, errno, "%s of the root must be a directory", path);
    if (fd < 0 || mount_set(fd, "", flags) < 0 || mount_attach(fd, at) < 0)
        return inside_fail(in, errno, "mount %s", path);
    return 0;
}

static int show_node(struct inside *in, int dev, const char *name, int clone)
{
    if (mount_attach_at(clone, dev, name) < 0)
        return inside_fail(in, errno, "show /dev/%s", name);
    return 0;
}

/* Devices asked for by rule: their clones stand among the binds, at the position of the op. */
static int add_extra_devices(struct inside *in, int dev)
{
    size_t at = 0;
    for (size_t i = 0; i < in->spec->plan->nops; i++) {
        const struct plan_op *op = &in->spec->plan->ops[i];
        if (op->kind == OP_DEVICE && mknodat(dev, op->path + 5, S_IFREG | 0644, 0) < 0)
            return inside_fail(in, errno, "make %s", op->path);
        if (op->kind == OP_DEVICE && show_node(in, dev, op->path + 5, in->binds[at]) < 0)
            return -1;
        at += op->kind == OP_BIND_RO || op->kind == OP_BIND_RW || op->kind == OP_DEVICE;
    }
    return 0;
}

int inside_take_nodes(struct inside *in)
{
    char path[16];
    for (unsigned i = 0; i < INSIDE_NODES; i++) {
        struct stat st;
        (void)snprintf(path, sizeof path, "/dev/%s", nodes[i]);
        int fd = in->nodes[i] = mount_clone(AT_FDCWD, path, MOUNT_NOFOLLOW);
        if (fd < 0 || fstatat(fd, "", &st, AT_EMPTY_PATH) < 0 || !S_ISCHR(st.st_mode))
            return inside_fail(in, fd < 0 ? errno : EINVAL, "take the host's %s", path);
    }
    return 0;
}

int inside_devices(struct inside *in)
{
    if (LAYER_OFF(in->spec->without, DEV) && !in->new_root)
        return 0;
    if (bind_from_vault(in, "/sys/dev", "/dev", MOUNT_NOSUID | MOUNT_NOEXEC) < 0)
        return -1;
    _cleanup_close_ int dev = inside_place(in, "/dev");
    if (dev < 0)
        return inside_fail(in, errno, "open the new /dev");
    for (unsigned i = 0; i < INSIDE_NODES; i++) {
        if (show_node(in, dev, nodes[i], in->nodes[i]) < 0)
            return -1;
        (void)close(in->nodes[i]);
    }
    if (add_extra_devices(in, dev) < 0 || (in->pts < 0 && make_pts(in) < 0))
        return -1;
    /* The nodes and what carries them; /dev/pts and /dev/shm come later and stay writable. */
    if (mount_set(dev, "", MOUNT_RECURSIVE | MOUNT_RO | MOUNT_NOSUID | MOUNT_NOEXEC) < 0)
        return inside_fail(in, errno, "make /dev read-only");
    if (mount_attach_at(in->pts, dev, "pts") < 0)
        return inside_fail(in, errno, "mount /dev/pts");
    (void)close(TAKE_FD(in->pts));
    return bind_from_vault(in, "/sys/shm", "/dev/shm", MOUNT_NOSUID | MOUNT_NODEV);
}

/* Covers a name of the new /proc, which is the working directory. The names are the kernel's and none is a link, so one
 * mount() by name does what takes five calls by descriptor; the copy has the flags of the cover. */
static int proc_hide_name(struct inside *in, const char *name, const char *cover)
{
    if (mount(cover, name, NULL, MS_BIND, NULL) < 0 && errno != ENOENT)
        return inside_fail(in, errno, "cover /proc/%s", name);
    return 0;
}

static int hide_all(struct inside *in)
{
    char file[64], dir[64]; /* in the vault, which is at /sys of the root being built */
    (void)snprintf(file, sizeof file, "%s/sys/f", in->new_root_at);
    (void)snprintf(dir, sizeof dir, "%s/sys/d", in->new_root_at);
    if (fchdir(in->proc) < 0 || access(file, F_OK) < 0 || access(dir, F_OK) < 0)
        return inside_fail(in, errno, "find the covers of /proc");
    for (unsigned i = 0; i < sizeof hidden_files / sizeof hidden_files[0]; i++)
        if (proc_hide_name(in, hidden_files[i], file) < 0)
            return -1;
    for (unsigned i = 0; i < sizeof hidden_dirs / sizeof hidden_dirs[0]; i++)
        if (proc_hide_name(in, hidden_dirs[i], dir) < 0)
            return -1;
    return chdir("/") < 0 ? inside_fail(in, errno, "leave /proc") : 0;
}

static int kernfs_limit_namespaces(struct inside *in)
{
    /* Otherwise a kernel bug that needs capabilities in a user namespace would be one call away. */
    if (LAYER_OFF(in->spec->without, USERNS_LIMIT) ||
        LAYER_OFF(in->spec->without, USERNS)) /* or the host's would be set */
        return 0;
    if (fd_put(in->proc, "sys/user/max_user_namespaces", "0") < 0)
        return inside_fail(in, errno, "forbid nested user namespaces");
    return 0;
}

/* The vault is not needed by name any more: an empty directory takes its place. */
static int uncover_sys(struct inside *in)
{
    if (LAYER_OFF(in->spec->without, SYS) && !in->new_root)
        return umount2("/sys", MNT_DETACH) < 0 ? inside_fail(in, errno, "uncover /sys") : 0;
    return bind_from_vault(in, "/sys/e", "/sys", MOUNT_RO | MOUNT_NOSUID | MOUNT_NODEV | MOUNT_NOEXEC);
}

int inside_proc(struct inside *in)
{
    bool plain = LAYER_OFF(in->spec->without, PROC);
    _cleanup_close_ int at = kernel_place(in, "/proc");
    if (at < 0)
        return inside_fail(in, errno, "/proc of the root must be a directory");
    if (LAYER_OFF(in->spec->without, PIDNS) &&
        !in->new_root) { /* a procfs of the host's pid namespace cannot be mounted */
        in->proc = openat(at, ".", O_PATH | O_DIRECTORY | O_CLOEXEC);
        return uncover_sys(in);
    }
    if (in->proc < 0 && make_proc(in) < 0)
        return -1;
    if (mount_attach(in->proc, at) < 0)
        return inside_fail(in, errno, "attach /proc");
    if (kernfs_limit_namespaces(in) < 0)
        return -1;
    if (!plain && hide_all(in) < 0)
        return -1;
    if (!plain && mount_set(in->proc, "", MOUNT_RO) < 0)
        return inside_fail(in, errno, "make /proc read-only");
    return uncover_sys(in);
}
