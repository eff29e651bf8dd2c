/* probe-files.c - group F, first half: the file system outside the writable directories, mounts, and denied files. */
#include "probe.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/capability.h>
#include <linux/mount.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

/* Reads one byte: an empty cover would otherwise look like a success. */
static void read_path(struct seen *s, const char *path)
{
    char b[64];
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) {
        seen_rc(s, -1);
        return;
    }
    ssize_t n = read(fd, b, sizeof b);
    if (n == 0)
        seen_text(s, "empty");
    else
        seen_rc(s, n);
    close(fd);
}

static void f_read(const struct attempt *a, struct seen *s) { read_path(s, a->arg); }

static void f_read_var(const struct attempt *a, struct seen *s)
{
    const char *path = probe_need(s, a->arg);
    if (path)
        read_path(s, path);
}

/* The planted host file is world-writable, so that only the sandbox stands in between. Its hash is taken outside. */
static void f_write_var(const struct attempt *a, struct seen *s)
{
    const char *path = probe_need(s, a->arg);
    if (!path)
        return;
    int fd = open(path, O_WRONLY | O_CLOEXEC | (int)a->num);
    ssize_t n = fd < 0 ? -1 : write(fd, "overwritten", 11);
    seen_rc(s, n);
}

static void f_open_write(const struct attempt *a, struct seen *s) { seen_rc(s, open(a->arg, O_WRONLY | O_CLOEXEC)); }

static void f_create_at_root(const struct attempt *a, struct seen *s)
{
    int fd = open(a->arg, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    seen_rc(s, fd);
    if (fd >= 0)
        (void)unlink(a->arg);
}

static void f_change_outside(const struct attempt *a, struct seen *s)
{
    const char *dir = probe_need(s, "wwdir");
    char path[PATH_MAX], other[PATH_MAX];
    if (!dir)
        return;
    (void)snprintf(path, sizeof path, "%s/made-inside", dir);
    (void)snprintf(other, sizeof other, "%s/victim", dir);
    switch (a->num) {
    case 0:
        seen_rc(s, open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0644));
        break;
    case 1:
        seen_rc(s, mkdir(path, 0755));
        break;
    case 2:
        seen_rc(s, symlink("x", path));
        break;
    case 3:
        seen_rc(s, rename(other, path));
        break;
    case 4:
        seen_rc(s, unlink(other));
        break;
    case 5:
        seen_rc(s, truncate(other, 0));
        break;
    case 6:
        seen_rc(s, mkfifo(path, 0644));
        break;
    case 7:
        seen_rc(s, chmod(other, 0600));
        break;
    case 8:
        seen_rc(s, setxattr(other, "user.hutch", "x", 1, 0));
        break;
    case 9:
        seen_rc(s, utimensat(AT_FDCWD, other, NULL, 0));
        break;
    default:
        seen_rc(s, link(other, path));
        break;
    }
    if (strncmp(s->text, "success", 7) == 0) {
        (void)rmdir(path);
        (void)unlink(path);
        (void)probe_put(other, "victim\n");
        (void)chmod(other, 0666);
    }
}

static void f_mount(const struct attempt *a, struct seen *s)
{
    (void)a;
    (void)mkdir("rt-mnt", 0755);
    long rc = mount("none", "rt-mnt", "tmpfs", 0, NULL);
    seen_rc(s, rc);
    if (rc == 0)
        (void)umount2("rt-mnt", MNT_DETACH);
}

static void f_remount(const struct attempt *a, struct seen *s)
{
    (void)a;
    (void)mkdir("rt-mnt", 0755);
    if (mount("/usr", "rt-mnt", NULL, MS_BIND, NULL) < 0) {
        seen_rc(s, mount(NULL, "/usr", NULL, MS_REMOUNT | MS_BIND | MS_NOSUID | MS_NODEV, NULL));
        return;
    }
    seen_rc(s, mount(NULL, "rt-mnt", NULL, MS_REMOUNT | MS_BIND | MS_NOSUID | MS_NODEV, NULL));
    (void)umount2("rt-mnt", MNT_DETACH);
}

static void f_remount_rw(const struct attempt *a, struct seen *s)
{
    (void)a;
    seen_rc(s, mount(NULL, "/", NULL, MS_REMOUNT | MS_BIND | MS_NOSUID | MS_NODEV, NULL));
}

static void f_umount(const struct attempt *a, struct seen *s)
{
    long rc = umount2(a->arg, MNT_DETACH);
    SEEN_PAST(s, rc, EINVAL);
}

static void f_pivot(const struct attempt *a, struct seen *s)
{
    (void)a;
    SEEN_PAST(s, syscall(SYS_pivot_root, ".", "."), EINVAL, EBUSY);
}

static void f_chroot(const struct attempt *a, struct seen *s)
{
    (void)a;
    (void)mkdir("rt-jail", 0755);
    seen_rc(s, chroot("rt-jail"));
}

static void f_double_chroot(const struct attempt *a, struct seen *s)
{
    (void)a;
    (void)mkdir("rt-jail", 0755);
    int keep = open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (chroot("rt-jail") < 0 || fchdir(keep) < 0) {
        seen_rc(s, -1);
        return;
    }
    for (int i = 0; i < 64; i++)
        (void)!chdir("..");
    seen_rc(s, chroot("."));
}

static void f_mount_api(const struct attempt *a, struct seen *s)
{
    struct mount_attr attr = {.attr_clr = MOUNT_ATTR_RDONLY};
    switch (a->num) {
    case SYS_open_tree:
        seen_rc(s, syscall(SYS_open_tree, AT_FDCWD, ".", 1 /* OPEN_TREE_CLONE */));
        break;
    case SYS_fsopen:
        seen_rc(s, syscall(SYS_fsopen, "tmpfs", 0));
        break;
    case SYS_fsmount:
        SEEN_PAST(s, syscall(SYS_fsmount, -1, 0, 0), EBADF);
        break;
    case SYS_fsconfig:
        SEEN_PAST(s, syscall(SYS_fsconfig, -1, 6, NULL, NULL, 0), EBADF, EINVAL);
        break;
    case SYS_fspick:
        SEEN_PAST(s, syscall(SYS_fspick, AT_FDCWD, "/", 0), EINVAL);
        break;
    case SYS_move_mount:
        SEEN_PAST(s, syscall(SYS_move_mount, -1, "", -1, "", 0), EBADF, ENOENT);
        break;
    default:
        SEEN_PAST(s, syscall(SYS_mount_setattr, AT_FDCWD, "/", 0, &attr, sizeof attr), EINVAL);
        break;
    }
}

static void f_symlink_secret(const struct attempt *a, struct seen *s)
{
    (void)unlink("rt-link");
    if (symlink(a->num ? "/proc/1/root/etc/shadow" : probe_home(a->arg), "rt-link") < 0)
        seen_rc(s, -1);
    else
        read_path(s, "rt-link");
    (void)unlink("rt-link");
}

/* A directory and a link to a denied place change places in one process while another opens through them. */
static void f_swap_race(const struct attempt *a, struct seen *s)
{
    unsigned long opens = 0;
    (void)a;
    (void)mkdir("rt-race", 0755);
    (void)mkdir("rt-race/d", 0755);
    (void)probe_put("rt-race/d/id_ed25519", "inside\n");
    (void)symlink(probe_home(".ssh"), "rt-race/l");
    pid_t pid = fork();
    if (pid == 0)
        for (;;)
            (void)syscall(SYS_renameat2, AT_FDCWD, "rt-race/d", AT_FDCWD, "rt-race/l", 2);
    seen_text(s, "EACCES");
    for (double end = probe_now() + 2; probe_now() < end; opens++) {
        char b[256] = "";
        if (probe_slurp("rt-race/d/id_ed25519", b, sizeof b) > 0 && strstr(b, probe_canary_mark())) {
            seen_text(s, "success: after %lu opens", opens);
            break;
        }
    }
    (void)kill(pid, SIGKILL);
    (void)waitpid(pid, NULL, 0);
    if (s->text[0] == 'E')
        seen_text(s, "EACCES: %lu opens in 2 s", opens);
    /* Either name may be the link now, so nothing is unlinked through one. */
    (void)!system("rm -rf rt-race");
}

static void f_suid_exec(const struct attempt *a, struct seen *s)
{
    char out[256];
    const char *path = probe_need(s, a->arg);
    if (!path)
        return;
    char *argv[] = {(char *)(uintptr_t)path, (char *)(uintptr_t) "--whoami", NULL};
    int rc = probe_exec(argv, out, sizeof out);
    int euid = -1;
    unsigned long long eff = 0;
    const char *e = strstr(out, "euid="), *c = strstr(out, "eff=");
    if (rc != 0 || !e || !c) {
        out[strcspn(out, "\n")] = '\0';
        seen_text(s, "%s", rc == 127 ? out : "not-run");
        return;
    }
    euid = (int)strtol(e + 5, NULL, 10);
    eff = strtoull(c + 4, NULL, 16);
    if (euid != (int)geteuid() || (eff && a->num))
        seen_text(s, "leak: euid %d, capabilities %llx", euid, eff);
    else
        seen_text(s, "unchanged");
}

static void f_mknod(const struct attempt *a, struct seen *s)
{
    static const struct {
        mode_t type;
        unsigned maj, min;
    } kinds[] = {
        {S_IFCHR, 1, 1},
        {S_IFBLK, 254, 0},
        {S_IFIFO, 0, 0},
        {S_IFCHR, 0, 0},
    };
    long rc = mknod("rt-node", kinds[a->num].type | 0600, makedev(kinds[a->num].maj, kinds[a->num].min));
    seen_rc(s, rc);
    if (rc == 0)
        (void)unlink("rt-node");
}

static void f_hardlink(const struct attempt *a, struct seen *s)
{
    const char *path = probe_need(s, a->arg);
    if (!path)
        return;
    long rc = link(path, "rt-hard");
    seen_rc(s, rc);
    if (rc == 0)
        (void)unlink("rt-hard");
}

static void f_open_exe(const struct attempt *a, struct seen *s)
{
    char path[64];
    pid_t pid = probe_target();
    if (a->num == 0)
        (void)snprintf(path, sizeof path, "/proc/self/exe");
    else
        (void)snprintf(path, sizeof path, "/proc/%d/exe", (int)pid);
    seen_rc(s, open(path, (a->num == 2 ? O_RDONLY : O_WRONLY) | O_CLOEXEC));
}

static void f_handle(const struct attempt *a, struct seen *s)
{
    char raw[sizeof(struct file_handle) + MAX_HANDLE_SZ];
    struct file_handle *h = (void *)raw;
    int mount_id = 0;
    h->handle_bytes = MAX_HANDLE_SZ;
    long rc = name_to_handle_at(AT_FDCWD, "/", h, &mount_id, 0);
    if (a->num || rc < 0) {
        seen_rc(s, rc);
        return;
    }
    int dir = open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    seen_rc(s, open_by_handle_at(dir, h, O_RDONLY | O_CLOEXEC));
}

static void f_handle_blind(const struct attempt *a, struct seen *s)
{
    /* Inode 2 is the root of an ext file system, whatever is mounted over it: the classic "shocker" handle. */
    char raw[sizeof(struct file_handle) + 8] = {0};
    struct file_handle *h = (void *)raw;
    (void)a;
    h->handle_bytes = 8;
    h->handle_type = 1;
    h->f_handle[0] = 2;
    int dir = open(".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    SEEN_PAST(s, open_by_handle_at(dir, h, O_RDONLY | O_CLOEXEC), ESTALE);
}

static bool no_capability(void)
{
    struct __user_cap_header_struct h = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct d[2];
    return syscall(SYS_capget, &h, d) == 0 && d[0].effective == 0 && d[1].effective == 0;
}

static void f_xattr(const struct attempt *a, struct seen *s)
{
    /* A version 2 capability set that would give CAP_NET_RAW, effective. */
    static const unsigned char vcap[20] = {1, 0, 0, 2, 0, 0x20};
    const void *v = a->num == 1 ? (const void *)vcap : "y";
    (void)probe_put("rt-xattr", "x");
    long rc = setxattr("rt-xattr", a->arg, v, a->num == 1 ? sizeof vcap : 1, 0);
    /* Kernels of some years let everybody set names that they do not know, if the BPF LSM is on. Nobody reads them. */
    if (rc == 0 && strcmp(a->arg, "security.evil") == 0 && no_capability())
        seen_text(s, "unguarded: this kernel asks nobody for a capability");
    else
        seen_rc(s, rc);
    (void)unlink("rt-xattr");
}

static void f_odd_names(const struct attempt *a, struct seen *s)
{
    static const char *const names[] = {"rt-new\nline", "rt-tab\there", "rt-\033[31mred", "rt-\xff\xfe", "-rt-dash"};
    char longest[258];
    (void)a;
    for (size_t i = 0; i < ROWS(names); i++) {
        int rc = probe_put(names[i], "x");
        (void)unlink(names[i]);
        if (rc < 0) {
            seen_rc(s, -1);
            return;
        }
    }
    memset(longest, 'n', sizeof longest);
    longest[256] = '\0';
    if (probe_put(longest, "x") == 0 || errno != ENAMETOOLONG) {
        seen_text(s, "leak: a name of 256 bytes was not refused with ENAMETOOLONG");
        return;
    }
    longest[255] = '\0';
    seen_rc(s, probe_put(longest, "x"));
    (void)unlink(longest);
}

static void f_exchange_dirs(const struct attempt *a, struct seen *s)
{
    (void)a;
    (void)mkdir("rt-a", 0755);
    (void)mkdir("rt-b", 0755);
    seen_rc(s, syscall(SYS_renameat2, AT_FDCWD, "rt-a", AT_FDCWD, "rt-b", 2));
    (void)rmdir("rt-a");
    (void)rmdir("rt-b");
}

static void f_denied_moved(struct seen *s)
{
    char from[PATH_MAX], to[PATH_MAX];
    (void)snprintf(from, sizeof from, "%s", probe_home(".ssh"));
    (void)snprintf(to, sizeof to, "%s", probe_home("ssh-moved"));
    if (rename(from, to) < 0) {
        seen_rc(s, -1);
        return;
    }
    read_path(s, probe_home("ssh-moved/id_ed25519"));
    (void)rename(to, from);
}

/* Ways to a denied file other than its plain path. */
static void f_denied(const struct attempt *a, struct seen *s)
{
    char path[PATH_MAX + 64];
    const char *secret = probe_home(".ssh/id_ed25519");
    int fd = -1;
    switch (a->num) {
    case 0:
        read_path(s, secret);
        return;
    case 1:
        read_path(s, "hardlink-made-earlier");
        return;
    case 2:
        fd = open(secret, O_PATH | O_CLOEXEC);
        (void)snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
        read_path(s, path);
        return;
    case 3:
        fd = open(probe_home(".ssh"), O_PATH | O_DIRECTORY | O_CLOEXEC);
        if (fd < 0 || fchdir(fd) < 0)
            seen_rc(s, -1);
        else
            read_path(s, "id_ed25519");
        return;
    case 4:
        (void)snprintf(path, sizeof path, "/proc/self/root%s", secret);
        break;
    case 5:
        (void)snprintf(path, sizeof path, "/proc/%d/root%s", (int)probe_target(), secret);
        break;
    case 6:
        (void)snprintf(path, sizeof path, "%s", probe_home("./.ssh//../.ssh/./id_ed25519"));
        break;
    default:
        f_denied_moved(s);
        return;
    }
    read_path(s, path);
}

#define WALL   "seccomp,caps,landlock"
#define DENIED "EACCES EPERM ENOENT"
#define RO     "EROFS EACCES EPERM ENOENT"

static const struct attempt rows[] = {
    {"F-01a", "read /etc/shadow", f_read, "/etc/shadow", 0, DENIED, NULL, "userns-range,masks", CTL_ROOT, 0,
     "for an ordinary user the file mode refuses as well"},
    {"F-01b", "read a planted file of host root, mode 0600", f_read_var, "rootfile", 0, DENIED, NULL, "userns-range",
     CTL_ROOT, 0, "for an ordinary user the file mode refuses as well"},
    {"F-02a", "overwrite a world-writable host file", f_write_var, "rofile", 0, RO, NULL, "mounts,landlock",
     CTL_OUTSIDE, 0, NULL},
    {"F-02b", "truncate a world-writable host file", f_write_var, "rofile", O_TRUNC, RO, NULL, "mounts,landlock",
     CTL_OUTSIDE, 0, NULL},
    {"F-02c", "open /etc/passwd for writing", f_open_write, "/etc/passwd", 0, RO, RO " success",
     "mounts,landlock,userns-range", CTL_ROOT, 0, "for an ordinary user the file mode refuses as well"},
    {"F-03a", "create a file in /", f_create_at_root, "/hutch-probe-x", 0, RO, RO " success",
     "mounts,landlock,userns-range", CTL_ROOT, 0, "for an ordinary user the file mode refuses as well"},
    {"F-03b", "create a file in a world-writable host directory", f_change_outside, NULL, 0, RO, RO, "mounts,landlock",
     CTL_OUTSIDE, 0, NULL},
    {"F-03c", "make a directory there", f_change_outside, NULL, 1, RO, RO, "mounts,landlock", CTL_OUTSIDE, 0, NULL},
    {"F-03d", "make a symlink there", f_change_outside, NULL, 2, RO, RO, "mounts,landlock", CTL_OUTSIDE, 0, NULL},
    {"F-03e", "rename a file there", f_change_outside, NULL, 3, RO, RO, "mounts,landlock", CTL_OUTSIDE, 0, NULL},
    {"F-03f", "delete a file there", f_change_outside, NULL, 4, RO, RO, "mounts,landlock", CTL_OUTSIDE, 0, NULL},
    {"F-03g", "truncate a file there by path", f_change_outside, NULL, 5, RO, RO, "mounts,landlock", CTL_OUTSIDE, 0,
     NULL},
    {"F-03h", "make a FIFO there", f_change_outside, NULL, 6, RO, RO, "mounts,landlock", CTL_OUTSIDE, 0, NULL},
    {"F-03i", "change the mode of a file of the caller there", f_change_outside, NULL, 7, RO, RO, "mounts,userns-range",
     CTL_OUTSIDE, 0, "for a root caller the owner is not mapped, so the kernel refuses as well"},
    {"F-03j", "set a user xattr there", f_change_outside, NULL, 8, RO, RO, "mounts", CTL_OUTSIDE, 0, NULL},
    {"F-03k", "touch a file there", f_change_outside, NULL, 9, RO, RO, "mounts,userns-range", CTL_OUTSIDE, 0, NULL},
    {"F-03l", "hard-link a file there", f_change_outside, NULL, 10, RO, RO, "mounts,landlock", CTL_OUTSIDE, 0, NULL},
    {"F-04", "mount a tmpfs", f_mount, NULL, 0, "EPERM", NULL, WALL, CTL_NS, 0, NULL},
    {"F-05a", "bind /usr and change the flags of the copy", f_remount, NULL, 0, "EPERM", NULL, WALL, CTL_NS, 0, NULL},
    {"F-05b", "remount / writable", f_remount_rw, NULL, 0, "EPERM", NULL, WALL, CTL_NS, 0, NULL},
    {"F-06a", "detach /proc", f_umount, "/proc", 0, "EPERM", NULL, WALL, CTL_NS, A_ALONE, NULL},
    {"F-06b", "detach /", f_umount, "/", 0, "EPERM", NULL, WALL, CTL_NS, A_ALONE, NULL},
    {"F-06c", "detach the covered home to see below it", f_umount, "/tmp", 0, "EPERM", NULL, WALL, CTL_NS, A_ALONE,
     NULL},
    {"F-07a", "pivot_root", f_pivot, NULL, 0, "EPERM", NULL, WALL, CTL_NS, A_ALONE, NULL},
    {"F-07b", "chroot", f_chroot, NULL, 0, "EPERM", "EPERM success", "seccomp,caps", CTL_NS, 0, NULL},
    {"F-08a", "open_tree clone", f_mount_api, NULL, SYS_open_tree, "EPERM", NULL, "seccomp,caps", CTL_NS, 0, NULL},
    {"F-08b", "fsopen", f_mount_api, NULL, SYS_fsopen, "EPERM", NULL, "seccomp,caps", CTL_NS, 0, NULL},
    {"F-08c", "fsmount", f_mount_api, NULL, SYS_fsmount, "EPERM", NULL, "seccomp,caps", CTL_NS, 0, NULL},
    {"F-08d", "fsconfig", f_mount_api, NULL, SYS_fsconfig, "EPERM", NULL, "seccomp", CTL_OUTSIDE, 0, NULL},
    {"F-08e", "fspick", f_mount_api, NULL, SYS_fspick, "EPERM", NULL, "seccomp,caps", CTL_NS, 0,
     "the superblock of the host root belongs to the initial user namespace"},
    {"F-08f", "move_mount", f_mount_api, NULL, SYS_move_mount, "EPERM", NULL, "seccomp,caps", CTL_NS, 0, NULL},
    {"F-08g", "mount_setattr", f_mount_api, NULL, SYS_mount_setattr, "EPERM", NULL, "seccomp,caps", CTL_NS, 0, NULL},
    {"F-09", "leave by a double chroot with a kept descriptor", f_double_chroot, NULL, 0, "EPERM", "EPERM success",
     "seccomp,caps", CTL_NS, 0, NULL},
    {"F-10", "read a denied file through a symlink in the workspace", f_symlink_secret, ".ssh/id_ed25519", 0, DENIED,
     NULL, "masks", CTL_OUTSIDE, 0, NULL},
    {"F-11", "read through a symlink to /proc/1/root", f_symlink_secret, NULL, 1, DENIED, NULL, "", CTL_KERNEL, 0,
     "needs both a dumpable init and a readable target; P-02c and F-39f show the parts"},
    {"F-12", "exchange a directory with a link to a denied one while opening it, 2 s", f_swap_race, NULL, 0, "EACCES",
     NULL, "masks", CTL_OUTSIDE, 0, NULL},
    {"F-17a", "run a setuid file of another uid in the workspace", f_suid_exec, "suidws", 0, "unchanged EACCES not-run",
     "unchanged EACCES not-run leak", "nosuid,nnp,caps", CTL_OUTSIDE, 0,
     "in a one-uid map the owner is not mapped and the bit is ignored"},
    {"F-17b", "run a setuid-root file outside the workspace", f_suid_exec, "suidhost", 0,
     "unchanged EACCES not-run ENOENT", NULL, "nosuid,nnp,caps", CTL_OUTSIDE, 0,
     "host root is not mapped, so the kernel ignores the bit anyway"},
    {"P-16", "run su, setuid root, of the host", f_suid_exec, "suidhost", 0, "unchanged EACCES not-run ENOENT", NULL,
     "nosuid,nnp,caps", CTL_OUTSIDE, 0, "host root is not mapped, so the kernel ignores the bit anyway"},
    {"N-12a", "run a file with capabilities in the workspace", f_suid_exec, "fcapws", 1, "unchanged EPERM EACCES",
     "unchanged EPERM EACCES leak", "nosuid,nnp,caps", CTL_OUTSIDE, 0, NULL},
    {"N-12b", "run a file with capabilities outside the workspace", f_suid_exec, "fcaphost", 1,
     "unchanged EPERM EACCES ENOENT", NULL, "nosuid,nnp,caps", CTL_OUTSIDE, 0, NULL},
    {"F-18a", "mknod c 1:1", f_mknod, NULL, 0, "EPERM EACCES", NULL, "seccomp,caps,landlock", CTL_ROOT, 0,
     "the kernel wants CAP_MKNOD of the initial user namespace"},
    {"F-18b", "mknod b 254:0", f_mknod, NULL, 1, "EPERM EACCES", NULL, "seccomp,caps,landlock", CTL_ROOT, 0,
     "the kernel wants CAP_MKNOD of the initial user namespace"},
    {"F-18c", "make a FIFO in the workspace", f_mknod, NULL, 2, "success", NULL, "", CTL_ALLOWED, 0, NULL},
    {"F-19", "hard-link a host file into the workspace", f_hardlink, "rofile", 0, "EXDEV EPERM EACCES",
     "EXDEV EPERM ENOENT", "", CTL_OUTSIDE, 0,
     "two mounts: the kernel never links across them, whatever layer is removed"},
    {"F-20a", "open /proc/self/exe for writing", f_open_exe, NULL, 0, "EACCES ETXTBSY EROFS EPERM", NULL, "",
     CTL_KERNEL, 0, "a running program is ETXTBSY for everyone"},
    {"F-20b", "open the executable of init for writing", f_open_exe, NULL, 1, "EACCES ETXTBSY EPERM ENOENT", NULL, "",
     CTL_KERNEL, 0, "a running program is ETXTBSY for everyone; its hash is compared from outside"},
    {"F-20c", "open the executable of init for reading", f_open_exe, NULL, 2, "EACCES EPERM ENOENT", NULL,
     "dumpable,landlock", CTL_OUTSIDE, 0, NULL},
    {"F-21a", "open_by_handle_at with a handle of /", f_handle, NULL, 0, "EPERM ENOSYS EOPNOTSUPP", NULL,
     "seccomp,caps", CTL_ROOT, 0, "the kernel wants the capability over the file system's own user namespace"},
    {"F-21b", "open_by_handle_at with a guessed handle of inode 2", f_handle_blind, NULL, 0, "EPERM ENOSYS", NULL,
     "seccomp,caps", CTL_ROOT, 0, "the kernel wants the capability over the file system's own user namespace"},
    {"F-21c", "name_to_handle_at", f_handle, NULL, 1, "EPERM ENOSYS EOPNOTSUPP", NULL, "seccomp", CTL_OUTSIDE, 0, NULL},
    {"F-22a", "set security.capability", f_xattr, "security.capability", 1, "EPERM", "EPERM success", "seccomp,caps",
     CTL_ROOT, 0, "a one-uid map without a mapped 0 gives the kernel no root id to store"},
    {"F-22b", "set trusted.overlay.opaque", f_xattr, "trusted.overlay.opaque", 0, "EPERM", NULL, "seccomp,caps",
     CTL_ROOT, 0, "the kernel wants CAP_SYS_ADMIN of the initial user namespace"},
    {"F-22c", "set user.overlay.opaque (inert without an overlay of ours)", f_xattr, "user.overlay.opaque", 0,
     "success EPERM EOPNOTSUPP", NULL, "", CTL_ALLOWED, 0, NULL},
    {"F-22d", "set security.evil", f_xattr, "security.evil", 0, "EPERM unguarded", "EPERM EOPNOTSUPP unguarded",
     "seccomp,caps", CTL_ROOT, 0, "the kernel wants CAP_SYS_ADMIN of the initial user namespace"},
    {"F-23a", "make a whiteout device 0:0", f_mknod, NULL, 3, "EPERM EACCES", NULL, "seccomp,landlock", CTL_OUTSIDE, 0,
     NULL},
    {"F-23b", "exchange two directories", f_exchange_dirs, NULL, 0, "success", NULL, "", CTL_ALLOWED, 0, NULL},
    {"F-24", "names with newline, ESC, invalid UTF-8, 255 and 256 bytes", f_odd_names, NULL, 0, "success", NULL, "",
     CTL_ALLOWED, 0, NULL},
    {"F-39a", "read a denied key by its path", f_denied, NULL, 0, DENIED, NULL, "masks", CTL_OUTSIDE, 0, NULL},
    {"F-39b", "read it through a hard link made before the run", f_denied, NULL, 1, "EACCES ENOENT", NULL, "masks",
     CTL_OUTSIDE, A_LIMITATION,
     "a hard link the caller put into the workspace is a file of the workspace; see docs/redteam.md"},
    {"F-39c", "read it through O_PATH and /proc/self/fd", f_denied, NULL, 2, DENIED, NULL, "masks", CTL_OUTSIDE, 0,
     NULL},
    {"F-39d", "read it after O_PATH and fchdir", f_denied, NULL, 3, DENIED, NULL, "masks", CTL_OUTSIDE, 0, NULL},
    {"F-39e", "read it through /proc/self/root", f_denied, NULL, 4, DENIED, NULL, "masks", CTL_OUTSIDE, 0, NULL},
    {"F-39f", "read it through /proc/1/root", f_denied, NULL, 5, DENIED, NULL, "masks,dumpable,landlock", CTL_OUTSIDE,
     0, NULL},
    {"F-39g", "read it through an odd spelling", f_denied, NULL, 6, DENIED, NULL, "masks", CTL_OUTSIDE, 0, NULL},
    {"F-39h", "rename the denied directory and read there", f_denied, NULL, 7, DENIED " EROFS EBUSY", NULL,
     "masks,mounts,landlock,pins,userns-range", CTL_OUTSIDE, 0,
     "for a root caller the home directory has a foreign owner"},
};

const struct attempt_table probe_files = {"files", rows, ROWS(rows)};
