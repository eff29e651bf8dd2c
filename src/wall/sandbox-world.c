/* sandbox-world.c - keeper's own root: as few mounts as possible, because every sandbox begins as a copy of them. */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "base/mem.h"
#include "base/path.h"
#include "os/mount.h"
#include "wall/sandbox-int.h"

/* Directories of the new root, with their parents. */
static int world_make_dirs(int root, const char *path)
{
    char part[CGROUP_DIR_MAX];
    for (const char *p = path + 1; *p;) {
        size_t n = strcspn(p, "/"), len = (size_t)(p - path) - 1 + n;
        if (len >= sizeof part) {
            errno = ENAMETOOLONG;
            return -1;
        }
        memcpy(part, path + 1, len);
        part[len] = '\0';
        if (mkdirat(root, part, 0755) < 0 && errno != EEXIST)
            return -1;
        p += n + (p[n] == '/');
    }
    return openat(root, path + 1, O_PATH | O_DIRECTORY | O_CLOEXEC);
}

static int world_show_path(int root, const char *path, const char *src, unsigned flags, struct err *err)
{
    _cleanup_close_ int fd = mount_clone(AT_FDCWD, src, flags & MOUNT_RECURSIVE);
    _cleanup_close_ int at = fd < 0 ? -1 : world_make_dirs(root, path);
    if (at < 0 || mount_set(fd, "", flags | MOUNT_PRIVATE) < 0 || mount_attach(fd, at) < 0)
        return err_set(err, ERR_SETUP, errno, "show %s in keeper's own root", src);
    return 0;
}

/* Keeps one uncovered procfs: without it the kernel lets no sandbox mount its own. */
static int take_proc(bool rootless)
{
    return rootless ? mount_clone(AT_FDCWD, "/proc", MOUNT_RECURSIVE)
                    : mount_new_proc(MOUNT_NOSUID | MOUNT_NODEV | MOUNT_NOEXEC);
}

static int attach_proc(int root, int proc, struct err *err)
{
    _cleanup_close_ int at = world_make_dirs(root, "/proc");
    return at < 0 || mount_attach(proc, at) < 0 ? err_set(err, ERR_SETUP, errno, "mount keeper's own /proc") : 0;
}

/* Shows /dev without the mounts below it, if the six devices are in /dev itself. */
static int show_dev(int root, struct err *err)
{
    struct stat st;
    if (world_show_path(root, "/dev", "/dev", MOUNT_NOSUID | MOUNT_NOEXEC, err) < 0)
        return world_show_path(root, "/dev", "/dev", MOUNT_RECURSIVE | MOUNT_NOSUID | MOUNT_NOEXEC, err);
    if (fstatat(root, "dev/null", &st, 0) == 0 && S_ISCHR(st.st_mode))
        return 0;
    return world_show_path(root, "/dev", "/dev", MOUNT_RECURSIVE | MOUNT_NOSUID | MOUNT_NOEXEC, err);
}

/* Where the parts of an overlay hang while it is made (sandbox-root.c). */
static int make_skel(int root, struct err *err)
{
    char name[32];
    static const char *const parts[] = {"", "/t", "/u"};
    for (size_t i = 0; i < ARRAY_LEN(parts) + WALL_SANDBOX_LAYERS_MAX; i++) {
        if (i < ARRAY_LEN(parts))
            (void)snprintf(name, sizeof name, "%s%s", &SANDBOX_SKEL[1], parts[i]);
        else
            (void)snprintf(name, sizeof name, "%s/l%zu", &SANDBOX_SKEL[1], i - ARRAY_LEN(parts));
        if (mkdirat(root, name, 0755) < 0)
            return err_set(err, ERR_SETUP, errno, "make %s in keeper's own root", name);
    }
    return 0;
}

/* Shows the database: readable everywhere, writable only where sandboxes write. */
static int show_layers(int root, const struct wall_sandbox_places *p, struct err *err)
{
    static const char *const writable[] = {"uppers", "volumes"};
    if (world_show_path(root, SANDBOX_LAYERS, p->layers, MOUNT_RO | MOUNT_RECURSIVE | MOUNT_NODEV, err) < 0)
        return -1;
    for (size_t i = 0; i < ARRAY_LEN(writable); i++) {
        char at[32];
        _cleanup_free_ char *src = path_join(p->layers, writable[i]);
        (void)snprintf(at, sizeof at, SANDBOX_LAYERS "/%s", writable[i]);
        if (world_show_path(root, at, src, MOUNT_RECURSIVE | MOUNT_NODEV, err) < 0)
            return -1;
    }
    return 0;
}

static int show_given(int root, const struct wall_sandbox_places *p, struct err *err)
{
    for (size_t i = 0; p->host_dirs && p->host_dirs[i] && i < WALL_SANDBOX_HOST_DIRS_MAX; i++) {
        char at[32];
        (void)snprintf(at, sizeof at, SANDBOX_GIVEN "/%zu", i);
        if (world_show_path(root, at, p->host_dirs[i], MOUNT_NOSUID | MOUNT_NODEV, err) < 0)
            return -1;
    }
    return 0;
}

static int world_fill(int root, const struct wall_sandbox_places *p, struct err *err)
{
    static const char *const own[] = {SANDBOX_SCRATCH, SANDBOX_NEW, SANDBOX_HOST, "/tmp"};
    for (size_t i = 0; i < ARRAY_LEN(own); i++)
        if (mkdirat(root, own[i] + 1, 0755) < 0)
            return err_set(err, ERR_SETUP, errno, "make %s in keeper's own root", own[i]);
    if (show_dev(root, err) < 0 ||
        world_show_path(root, "/etc", "/etc", MOUNT_RO | MOUNT_RECURSIVE | MOUNT_NOSUID | MOUNT_NODEV, err) < 0 ||
        world_show_path(root, "/templates", p->templates, MOUNT_RO | MOUNT_RECURSIVE | MOUNT_NODEV, err) < 0)
        return -1;
    if (make_skel(root, err) < 0 || show_layers(root, p, err) < 0 || show_given(root, p, err) < 0)
        return -1;
    if (p->trust &&
        world_show_path(root, SANDBOX_TRUST, p->trust, MOUNT_RO | MOUNT_NOSUID | MOUNT_NODEV | MOUNT_NOEXEC, err) < 0)
        return -1;
    if (p->ranges && world_show_path(root, p->ranges, p->ranges, MOUNT_NOSUID | MOUNT_NODEV | MOUNT_NOEXEC, err) < 0)
        return -1;
    for (unsigned i = 0; i < p->info->nhier; i++)
        if (world_show_path(root, p->info->hier[i].mount, p->info->hier[i].mount,
                            MOUNT_NOSUID | MOUNT_NODEV | MOUNT_NOEXEC, err) < 0)
            return -1;
    return 0;
}

static int move_in(int host, const struct wall_sandbox_places *p, const struct wall_sandbox_world *w, struct err *err)
{
    _cleanup_close_ int root = mount_new_tmpfs(1 << 20, 512, 0755, MOUNT_NOSUID | MOUNT_NODEV);
    _cleanup_close_ int proc = take_proc(w->rootless);
    _cleanup_close_ int at = open("/proc", O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (root < 0 || proc < 0 || at < 0 || mount_attach(root, at) < 0)
        return err_set(err, ERR_SETUP, errno, "make keeper's own root");
    if (world_fill(root, p, err) < 0 || attach_proc(root, proc, err) < 0)
        return -1;
    _cleanup_close_ int place = openat(root, &SANDBOX_HOST[1], O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (place < 0 || mount_attach(host, place) < 0)
        return err_set(err, ERR_SETUP, errno, "attach the host's tree");
    if (fchdir(root) < 0 || syscall(SYS_pivot_root, ".", ".") < 0 || umount2(".", MNT_DETACH) < 0 || chdir("/") < 0)
        return err_set(err, ERR_SETUP, errno, "move into keeper's own root");
    return 0;
}

int wall_sandbox_rootless(struct wall_sandbox_world *w, struct err *err)
{
    _cleanup_buf_ struct buf b = {0};
    unsigned inside, outside, count;
    if (fd_read_file(AT_FDCWD, "/proc/self/uid_map", 4096, &b) < 0)
        return err_set(err, ERR_SETUP, errno, "read /proc/self/uid_map");
    if (sscanf(buf_str(&b), "%u %u %u", &inside, &outside, &count) != 3)
        return err_set(err, ERR_SETUP, 0, "/proc/self/uid_map makes no sense");
    w->nids = 0;
    w->rootless = !(inside == 0 && outside == 0 && count == UINT32_MAX);
    if (!w->rootless)
        return 0;
    for (const char *line = buf_str(&b); line && *line; line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL)
        if (sscanf(line, "%u %u %u", &inside, &outside, &count) == 3 && inside == w->nids)
            w->nids += count;
    if (w->nids > IDRANGE_COUNT)
        w->nids = IDRANGE_COUNT;
    return 0;
}

/* Moves keeper into an empty network namespace that it can return to from a sandbox's. Without root it cannot return to
 * the host's. */
static int leave_network(struct wall_sandbox_world *w, struct err *err)
{
    w->sockets = open("/proc/self/net/unix", O_RDONLY | O_CLOEXEC);
    if (w->sockets < 0)
        return err_set(err, ERR_HOST, errno, "the host's sockets cannot be listed (/proc/net/unix)");
    if (unshare(CLONE_NEWNET) < 0)
        return err_set(err, ERR_HOST, errno, "make keeper's own network namespace");
    w->net = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
    return w->net < 0 ? err_set(err, ERR_SETUP, errno, "open keeper's own network namespace") : 0;
}

static int open_given(const struct wall_sandbox_places *p, struct wall_sandbox_world *w, struct err *err)
{
    char path[32];
    for (size_t i = 0; i < WALL_SANDBOX_HOST_DIRS_MAX; i++)
        w->host_dirs[i] = -1;
    for (size_t i = 0; p->host_dirs && p->host_dirs[i] && i < WALL_SANDBOX_HOST_DIRS_MAX; i++) {
        (void)snprintf(path, sizeof path, SANDBOX_GIVEN "/%zu", i);
        w->host_dirs[i] = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
        if (w->host_dirs[i] < 0)
            return err_set(err, ERR_SETUP, errno, "open the directory %s", p->host_dirs[i]);
    }
    return 0;
}

int wall_sandbox_world(const struct policy *policy, const struct wall_sandbox_places *p, struct wall_sandbox_world *ret,
                       struct err *err)
{
    struct wall_sandbox_world w = {.templates = -1, .host = -1, .trust = -1, .net = -1, .sockets = -1, .root = -1};
    struct plan *plan = NULL;
    if (wall_sandbox_rootless(&w, err) < 0 || sandbox_host_plan(policy, p, &plan, err) < 0)
        return -1;
    int r = leave_network(&w, err);
    if (r == 0 && (unshare(CLONE_NEWNS) < 0 || mount_set(AT_FDCWD, "/", MOUNT_RECURSIVE | MOUNT_PRIVATE) < 0))
        r = err_set(err, ERR_SETUP, errno, "make keeper's own mount namespace");
    _cleanup_close_ int host = r < 0 ? -1 : mount_clone(AT_FDCWD, "/", MOUNT_RECURSIVE);
    if (r == 0 && host < 0)
        r = err_set(err, ERR_SETUP, errno, "copy the host's tree");
    if (r == 0)
        r = move_in(host, p, &w, err);
    if (r == 0)
        r = sandbox_host_cover(plan, p, &w, err);
    plan_free(plan);
    if (r < 0)
        return -1;
    w.templates = open("/templates", O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (w.templates < 0)
        return err_set(err, ERR_SETUP, errno, "open the directory of templates");
    if (open_given(p, &w, err) < 0)
        return -1;
    if ((w.root = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC)) < 0)
        return err_set(err, ERR_SETUP, errno, "open keeper's own root");
    if (p->trust && (w.trust = open(SANDBOX_TRUST, O_PATH | O_DIRECTORY | O_CLOEXEC)) < 0)
        return err_set(err, ERR_SETUP, errno, "open the directory of layers");
    *ret = w;
    return 0;
}
