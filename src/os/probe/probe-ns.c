#include <errno.h>
#include <fcntl.h>
#include <linux/mount.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "base/num.h"
#include "os/probe/probe-int.h"

static void do_nothing(void *arg, struct probe_answer *a)
{
    (void)arg;
    (void)a;
}

static void explain_userns(const struct probe_answer *a, struct probe_result *r)
{
    uint64_t v;
    if (fd_read_u64(AT_FDCWD, "/proc/sys/kernel/unprivileged_userns_clone", &v) == 0 && v == 0)
        probe_missing(r, "sysctl -w kernel.unprivileged_userns_clone=1", "switched off for ordinary users");
    else if (fd_read_u64(AT_FDCWD, "/proc/sys/kernel/apparmor_restrict_unprivileged_userns", &v) == 0 && v != 0)
        probe_missing(r, "sysctl -w kernel.apparmor_restrict_unprivileged_userns=0",
                      "AppArmor keeps them from ordinary users");
    else if (fd_read_u64(AT_FDCWD, "/proc/sys/user/max_user_namespaces", &v) == 0 && v == 0)
        probe_missing(r, "sysctl -w user.max_user_namespaces=15000 (outside, if this is a sandbox already)",
                      "their number is limited to 0, as inside a sandbox");
    else
        probe_missing(r, "run outside the container or sandbox that forbids it (Docker: --security-opt seccomp=...)",
                      "%s: %s", a->stage, a->eno == ENOSPC ? "a surrounding sandbox allows none" : strerror(a->eno));
}

/* True, with the result filled in, if the probe failed only because there are no user namespaces. */
static bool blocked_by_userns(const struct probe_answer *a, struct probe_result *r)
{
    if (a->eno == 0 || strcmp(a->stage, "unshare") != 0 ||
        probe_in_child(PROBE_NEWUSER, do_nothing, NULL, NULL).eno == 0)
        return false;
    probe_missing(r, "fix user namespaces first", "cannot be tried without a user namespace");
    return true;
}

void probe_userns(const struct probe *p, struct probe_result *r)
{
    (void)p;
    struct probe_answer a = probe_in_child(PROBE_NEWUSER, do_nothing, NULL, NULL);
    if (a.eno == 0)
        probe_ok(r, "%s", geteuid() == 0 ? "with a uid range of its own" : "with your own uid");
    else
        explain_userns(&a, r);
}

static void unshare_rest(void *arg, struct probe_answer *a)
{
    (void)arg;
    if (unshare(CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWNET | CLONE_NEWCGROUP) < 0)
        probe_failed_at(a, "unshare ipc, uts, net, cgroup");
}

void probe_otherns(const struct probe *p, struct probe_result *r)
{
    (void)p;
    struct probe_answer a = probe_in_child(PROBE_NEWUSER | PROBE_NEWNS | PROBE_NEWPID, unshare_rest, NULL, NULL);
    if (a.eno == 0)
        probe_ok(r, "all six");
    else if (!blocked_by_userns(&a, r))
        probe_missing(r, "boot a kernel with CONFIG_NAMESPACES and all of its options", "%s: %s", a.stage,
                      strerror(a.eno));
}

static int sys_open_tree(int dirfd, const char *path, unsigned flags)
{
    return (int)syscall(SYS_open_tree, dirfd, path, flags);
}

static int sys_mount_setattr(int fd, unsigned flags, struct mount_attr *attr)
{
    return (int)syscall(SYS_mount_setattr, fd, "", flags | AT_EMPTY_PATH, attr, sizeof *attr);
}

/* A detached mount of a file system type; -1 with the failed stage in *a. */
static int new_mount(const char *type, struct probe_answer *a)
{
    _cleanup_close_ int ctx = (int)syscall(SYS_fsopen, type, FSOPEN_CLOEXEC);
    if (ctx < 0) {
        probe_failed_at(a, "fsopen");
        return -1;
    }
    if (syscall(SYS_fsconfig, ctx, FSCONFIG_CMD_CREATE, NULL, NULL, 0) < 0) {
        probe_failed_at(a, "fsconfig");
        return -1;
    }
    int fd = (int)syscall(SYS_fsmount, ctx, FSMOUNT_CLOEXEC, 0);
    if (fd < 0)
        probe_failed_at(a, "fsmount");
    return fd;
}

static void mount_proc(void *arg, struct probe_answer *a)
{
    (void)arg;
    _cleanup_close_ int fd = new_mount("proc", a);
    if (fd >= 0 && faccessat(fd, "self/status", R_OK, 0) < 0)
        probe_failed_at(a, "read self/status");
}

void probe_procfs(const struct probe *p, struct probe_result *r)
{
    (void)p;
    struct probe_answer a = probe_in_child(PROBE_NEWUSER | PROBE_NEWNS | PROBE_NEWPID, mount_proc, NULL, NULL);
    if (a.eno == 0)
        probe_ok(r, "mounted");
    else if (blocked_by_userns(&a, r))
        return;
    else if (a.eno == EPERM)
        probe_missing(r,
                      "run where /proc is not covered by other mounts (Docker: --security-opt systempaths=unconfined)",
                      "parts of /proc are covered here, so the kernel refuses a new one");
    else
        probe_missing(r, "boot a kernel with CONFIG_PROC_FS", "%s: %s", a.stage, strerror(a.eno));
}

static void clone_read_only(void *arg, struct probe_answer *a)
{
    (void)arg;
    struct mount_attr attr = {.attr_set = MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV};
    _cleanup_close_ int tree = sys_open_tree(AT_FDCWD, "/", OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_RECURSIVE);
    if (tree < 0)
        probe_failed_at(a, "open_tree");
    else if (sys_mount_setattr(tree, AT_RECURSIVE, &attr) < 0)
        probe_failed_at(a, "mount_setattr");
}

void probe_mount_api(const struct probe *p, struct probe_result *r)
{
    (void)p;
    struct probe_answer a = probe_in_child(PROBE_NEWUSER | PROBE_NEWNS, clone_read_only, NULL, NULL);
    if (a.eno == 0)
        probe_ok(r, "a recursive read-only copy of / was made");
    else if (!blocked_by_userns(&a, r))
        probe_missing(r, "boot Linux 6.1 or newer; in a container, allow the mount calls", "%s: %s", a.stage,
                      strerror(a.eno));
}

static int try_idmap(int dirfd, const char *path, int userns)
{
    struct mount_attr attr = {.attr_set = MOUNT_ATTR_IDMAP, .userns_fd = (uint64_t)userns};
    _cleanup_close_ int tree = sys_open_tree(dirfd, path, OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_EMPTY_PATH);
    return tree < 0 ? -1 : sys_mount_setattr(tree, 0, &attr);
}

/* arg: descriptor of a user namespace with a map. value: 1 if a tmpfs can be idmapped too. */
static void idmap_both(void *arg, struct probe_answer *a)
{
    struct probe_answer ignored = {0};
    _cleanup_close_ int tmp = new_mount("tmpfs", &ignored);
    a->value = tmp >= 0 && try_idmap(tmp, "", *(int *)arg) == 0;
    if (try_idmap(AT_FDCWD, ".", *(int *)arg) < 0)
        probe_failed_at(a, "mount_setattr");
}

void probe_idmap(const struct probe *p, struct probe_result *r)
{
    (void)p;
    _cleanup_close_ int userns = -1;
    struct statfs sfs = {0};
    if (geteuid() != 0) {
        probe_ok(r, "not needed: only root callers use them, you keep your own uid");
        return;
    }
    struct probe_answer a = probe_in_child(PROBE_NEWUSER, do_nothing, NULL, &userns);
    if (a.eno != 0 || userns < 0) {
        probe_missing(r, "fix user namespaces first", "no user namespace to map to");
        return;
    }
    a = probe_in_child(PROBE_NEWNS, idmap_both, &userns, NULL);
    (void)statfs(".", &sfs);
    if (a.eno != 0)
        probe_missing(r, "use a directory on ext4, xfs, btrfs or (from Linux 6.3) tmpfs",
                      "the file system of the current directory (type 0x%lx) refuses: %s", (unsigned long)sfs.f_type,
                      strerror(a.eno));
    else
        probe_ok(r, "current directory: yes, tmpfs: %s", a.value ? "yes" : "no (Linux 6.3 has it)");
}

/* Everything happens on a tmpfs that only this mount namespace sees. */
static void mount_overlay(void *arg, struct probe_answer *a)
{
    const char *extra = arg;
    char opts[160];
    (void)snprintf(opts, sizeof opts, "lowerdir=l,upperdir=u,workdir=w%s", extra);
    if (mount("none", "/tmp", "tmpfs", MS_NOSUID | MS_NODEV, "size=1m") < 0)
        probe_failed_at(a, "mount tmpfs");
    else if (chdir("/tmp") < 0 || mkdir("l", 0755) < 0 || mkdir("u", 0755) < 0 || mkdir("w", 0755) < 0 ||
             mkdir("m", 0755) < 0)
        probe_failed_at(a, "mkdir");
    else if (mount("overlay", "m", "overlay", MS_NOSUID | MS_NODEV, opts) < 0)
        probe_failed_at(a, "mount overlay");
    else if (mkdir("m/x", 0755) < 0)
        probe_failed_at(a, "write to the overlay");
}

void probe_overlay(const struct probe *p, struct probe_result *r)
{
    (void)p;
    char root_opts[] = ",redirect_dir=on", user_opts[] = ",userxattr";
    bool root = geteuid() == 0;
    struct probe_answer user = probe_in_child(PROBE_NEWUSER | PROBE_NEWNS, mount_overlay, user_opts, NULL);
    struct probe_answer host = user;
    if (root)
        host = probe_in_child(PROBE_NEWNS, mount_overlay, root_opts, NULL);
    if (blocked_by_userns(&host, r))
        return;
    if (host.eno != 0)
        probe_missing(r, "modprobe overlay", "%s: %s", host.stage, strerror(host.eno));
    else if (!root)
        probe_ok(r, "in a user namespace; renaming directories of lower layers gives EXDEV there");
    else
        probe_ok(r, "as root: yes, in a user namespace: %s", user.eno == 0 ? "yes" : strerror(user.eno));
}

/* Removing a lower directory marks it opaque in the upper layer by an attribute; without privilege that is one in
 * user.*. */
static void remove_lower(void *arg, struct probe_answer *a)
{
    (void)arg;
    if (mount("none", "/tmp", "tmpfs", MS_NOSUID | MS_NODEV, "size=1m") < 0 || chdir("/tmp") < 0)
        probe_failed_at(a, "mount tmpfs");
    else if (mkdir("l", 0755) < 0 || mkdir("l/d", 0755) < 0 || mkdir("l/d/x", 0755) < 0 || mkdir("u", 0755) < 0 ||
             mkdir("w", 0755) < 0 || mkdir("m", 0755) < 0)
        probe_failed_at(a, "mkdir");
    else if (mount("overlay", "m", "overlay", MS_NOSUID | MS_NODEV, "lowerdir=l,upperdir=u,workdir=w,userxattr") < 0)
        probe_failed_at(a, "mount overlay");
    else if (rmdir("m/d/x") < 0 || rmdir("m/d") < 0)
        probe_failed_at(a, "remove a directory of the lower layer");
}

void probe_overlay_remove(const struct probe *p, struct probe_result *r)
{
    (void)p;
    struct probe_answer a = probe_in_child(PROBE_NEWUSER | PROBE_NEWNS, remove_lower, NULL, NULL);
    if (blocked_by_userns(&a, r))
        return;
    if (a.eno == 0)
        probe_ok(r, "directories of lower layers can be removed");
    else
        probe_missing(r, "Linux 6.6 or newer; a node without root: `files: layers`, with STATE on a disk",
                      "%s: %s; `rm -r` of directories that were there before fails in `hutch run --tx` and in "
                      "sandboxes of a node without root",
                      a.stage, strerror(a.eno));
}

/* The length of the range that /etc/subuid (or subgid) gives this user; 0 if none. Lines are name:start:count, where
 * the name may also be a number. */
static uint64_t sub_range(const char *file, const char *name, uid_t uid)
{
    _cleanup_buf_ struct buf text = {0};
    char number[16];
    uint64_t best = 0;
    (void)snprintf(number, sizeof number, "%u", uid);
    if (fd_read_file(AT_FDCWD, file, 1 << 20, &text) < 0 || !text.p)
        return 0;
    for (char *line = text.p, *next; line && *line; line = next) {
        next = strchr(line, '\n');
        if (next)
            *next++ = '\0';
        char *first = strchr(line, ':'), *second = first ? strchr(first + 1, ':') : NULL;
        uint64_t count;
        if (!second)
            continue;
        *first = '\0';
        if ((strcmp(line, number) == 0 || (name[0] && strcmp(line, name) == 0)) && num_u64(second + 1, &count) &&
            count > best)
            best = count;
    }
    return best;
}

/* The login name of a uid from /etc/passwd; "" if it has none. A static program has no name service to ask. */
static void login_name(uid_t uid, char *name, size_t size)
{
    _cleanup_buf_ struct buf text = {0};
    char key[24];
    name[0] = '\0';
    (void)snprintf(key, sizeof key, ":%u:", uid);
    if (fd_read_file(AT_FDCWD, "/etc/passwd", 1 << 22, &text) < 0 || !text.p)
        return;
    for (char *line = text.p, *next; line && *line; line = next) {
        next = strchr(line, '\n');
        if (next)
            *next++ = '\0';
        char *pw = strchr(line, ':'), *id = pw ? strchr(pw + 1, ':') : NULL;
        if (id && strncmp(id, key, strlen(key)) == 0) {
            (void)snprintf(name, size, "%.*s", (int)(pw - line), line);
            return;
        }
    }
}

static bool have_helper(const char *name)
{
    static const char *const dirs[] = {"/usr/bin", "/bin", "/usr/local/bin"};
    char path[64];
    for (size_t i = 0; i < ARRAY_LEN(dirs); i++) {
        (void)snprintf(path, sizeof path, "%s/%s", dirs[i], name);
        if (access(path, X_OK) == 0)
            return true;
    }
    return false;
}

void probe_newuidmap(const struct probe *p, struct probe_result *r)
{
    (void)p;
    char name[64], remedy[160];
    if (geteuid() == 0) {
        probe_ok(r, "not needed: root takes ranges from 536870912 up");
        return;
    }
    login_name(getuid(), name, sizeof name);
    uint64_t uids = sub_range("/etc/subuid", name, getuid()), gids = sub_range("/etc/subgid", name, getuid());
    (void)snprintf(remedy, sizeof remedy, "sudo usermod --add-subuids 100000-165535 --add-subgids 100000-165535 %s",
                   name[0] ? name : "USER");
    if (!have_helper("newuidmap") || !have_helper("newgidmap"))
        probe_missing(r, "sudo apt-get install uidmap", "newuidmap or newgidmap is not installed");
    else if (uids < 65536 || gids < 65536)
        probe_missing(r, remedy, "%llu uids and %llu gids; 65536 of each are needed", (unsigned long long)uids,
                      (unsigned long long)gids);
    else
        probe_ok(r, "%llu uids, %llu gids", (unsigned long long)uids, (unsigned long long)gids);
}
