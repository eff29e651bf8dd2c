/* sandbox-host.c - the `host` template: the host's own tree, read-only, with everything denied covered, once per keeper. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/fd.h"
#include "base/mem.h"
#include "base/path.h"
#include "os/mount.h"
#include "wall/sandbox-int.h"
#include "wall/sandbox-trust.h"

#define HUTCH_DIR "etc/hutch"

enum { MOUNTINFO_MAX = 16 << 20, SOCKET_LIST_MAX = 16 << 20, ETC_BYTES = 64 << 20 };

const char sandbox_resolv_conf[] = "nameserver " NETNS_GATE4 "\noptions ndots:1 timeout:2 attempts:2\n";

static const char *const kernel_trees[] = {"/proc", "/sys", "/dev", NULL};

/* Private in every sandbox, besides what the policy says; the rest of /home belongs to other users. */
static const struct {
    const char *path;
    mode_t mode;
} private_dirs[] = {{"/home", 0755}, {"/root", 0700}};

static const struct {
    const char *name, *text;
} files[] = {
    {"passwd", "root:x:0:0:root:/root:/bin/bash\n"
               "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"
               "user:x:1000:1000:user:/home/user:/bin/bash\n"},
    {"group", "root:x:0:\ntty:x:5:\nnogroup:x:65534:\nuser:x:1000:\n"},
    {"resolv.conf", sandbox_resolv_conf},
};

int sandbox_host_plan(const struct policy *policy, const struct wall_sandbox_places *p, struct plan **ret,
                      struct err *err)
{
    struct plan_caller who = {
        .uid = geteuid(), .gid = getegid(), .root = geteuid() == 0, .cwd = "/", .home = p->home, .chdir = "/"};
    return plan_make(policy, &who, &plan_host_facts, ret, err) < 0 ? err_wrap(err, "the host template") : 0;
}

static void add_private(struct plan *to, const char *path, mode_t mode)
{
    for (size_t i = 0; i < to->nops; i++)
        if (strcmp(to->ops[i].path, path) == 0)
            return;
    MEM_GROW(to->ops, to->nops, to->ops_cap);
    to->ops[to->nops++] =
        (struct plan_op){.kind = OP_TMPFS, .type = TYPE_DIR, .path = xstrdup(path), .writable = true, .mode = mode};
}

/* Finds the private directories that exist: nothing is ever created in the host's tree. */
static void find_private(const struct plan *plan, int root, struct wall_sandbox_world *w)
{
    for (size_t i = 0; i < ARRAY_LEN(private_dirs); i++) {
        _cleanup_close_ int at = mount_place(root, private_dirs[i].path, true);
        struct stat st;
        if (at >= 0 && fstatat(at, "", &st, AT_EMPTY_PATH) == 0 && S_ISDIR(st.st_mode))
            add_private(&w->plan, private_dirs[i].path, private_dirs[i].mode);
    }
    for (size_t i = 0; i < plan->nops; i++) {
        const struct plan_op *op = &plan->ops[i];
        _cleanup_close_ int at = op->kind == OP_TMPFS ? mount_place(root, op->path, true) : -1;
        bool below = false;
        for (size_t k = 0; k < ARRAY_LEN(private_dirs); k++)
            below |= path_under(op->path, private_dirs[k].path);
        if (at >= 0 && op->writable && !below)
            add_private(&w->plan, op->path, op->mode);
    }
}

static bool under_private(const struct wall_sandbox_world *w, const char *path)
{
    for (const char *const *t = kernel_trees; *t; t++)
        if (path_under(path, *t))
            return true;
    for (size_t i = 0; i < w->plan.nops; i++)
        if (path_under(path, w->plan.ops[i].path))
            return true;
    return false;
}

/* Unmounts what the covers hide anyway, so that not every sandbox copies it. A failure does no harm. */
static void drop_unseen(const struct plan *plan, const struct wall_sandbox_world *w)
{
    _cleanup_buf_ struct buf b = {0};
    if (fd_read_file(AT_FDCWD, "/proc/self/mountinfo", MOUNTINFO_MAX, &b) < 0)
        return;
    for (char *line = b.p, *next; line && *line; line = next) {
        char point[4096];
        next = strchr(line, '\n');
        if (next)
            *next++ = '\0';
        if (sscanf(line, "%*d %*d %*s %*s %4095s", point) != 1 ||
            strncmp(point, SANDBOX_HOST "/", sizeof SANDBOX_HOST) != 0)
            continue;
        mount_unescape(point);
        const char *path = point + strlen(SANDBOX_HOST);
        bool unseen = under_private(w, path);
        for (size_t i = 0; i < plan->nops && !unseen; i++)
            unseen = plan->ops[i].kind == OP_MASK && path_under(path, plan->ops[i].path);
        if (unseen)
            (void)umount2(point, MNT_DETACH | UMOUNT_NOFOLLOW);
    }
}

struct covers {
    int mount; /* a small tmpfs */
};

static int make_covers(struct covers *c, struct err *err)
{
    c->mount = mount_new_tmpfs(ETC_BYTES, 512, 0755, MOUNT_NOSUID | MOUNT_NODEV);
    _cleanup_close_ int at = open(SANDBOX_SCRATCH, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (c->mount < 0 || at < 0 || mount_attach(c->mount, at) < 0 || mkdirat(c->mount, "d", 0) < 0)
        return err_set(err, ERR_SETUP, errno, "make the covers of the host template");
    _cleanup_close_ int f = openat(c->mount, "f", O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0);
    return f < 0 ? err_set(err, ERR_SETUP, errno, "make the covers of the host template") : 0;
}

/* What layer_etc() lays over the host's: the files above and what makes programs trust the installation's root. */
static int host_fill_etc(const struct covers *c, int root, const struct wall_sandbox_places *p, struct err *err)
{
    _cleanup_close_ int etc = mkdirat(c->mount, "etc", 0755) < 0 ? -1 : openat(c->mount, "etc", O_RDONLY | O_CLOEXEC);
    for (size_t i = 0; i < ARRAY_LEN(files); i++) {
        _cleanup_close_ int fd =
            etc < 0 ? -1 : openat(etc, files[i].name, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0644);
        if (fd < 0 || fchmod(fd, 0644) < 0 || fd_write_all(fd, files[i].text, strlen(files[i].text)) < 0)
            return err_set(err, ERR_SETUP, errno, "make %s of the host template", files[i].name);
    }
    const struct wall_trust trust = {.ca = p->ca, .n = p->ca_n, .below = "/etc"};
    if (p->ca && wall_trust_make(root, &trust, c->mount, err) < 0)
        return err_wrap(err, "the host template");
    /* Our directory covers the host's, whatever that contains. */
    if (p->ca && (fchownat(c->mount, HUTCH_DIR, 0, 0, 0) < 0 || fchmodat(c->mount, HUTCH_DIR, 0755, 0) < 0))
        return err_set(err, ERR_SETUP, errno, "make /" HUTCH_DIR " of the host template");
    return 0;
}

/* Files of ours in /etc. They are a layer over the host's, not mounts on its files: when a program outside replaces
 * /etc/passwd (useradd does), a mount on it would be gone and the host's own list of users would show. For the same
 * reason what is covered below /etc is covered in this layer. */
static int layer_etc(int root, struct err *err)
{
    static const char *const layers[] = {SANDBOX_SCRATCH "/etc", SANDBOX_HOST "/etc"};
    _cleanup_close_ int at = mount_place(root, "etc", true);
    _cleanup_close_ int fd = at < 0 ? -1 : mount_new_overlay(layers, 2, NULL, NULL, false, MOUNT_NOSUID | MOUNT_NODEV);
    if (fd < 0 || mount_attach(fd, at) < 0)
        return err_set(err, ERR_SETUP, errno, "put a layer over /etc of the host template");
    return 0;
}

static int cover_at(const struct covers *c, int at, const char *with, const char *path, struct err *err)
{
    _cleanup_close_ int src = openat(c->mount, with, O_PATH | O_CLOEXEC);
    _cleanup_close_ int fd = src < 0 ? -1 : mount_clone(src, "", 0);
    if (fd < 0 || mount_set(fd, "", MOUNT_RO | MOUNT_NOSUID | MOUNT_NODEV | MOUNT_NOEXEC) < 0 ||
        mount_attach(fd, at) < 0)
        return err_set(err, ERR_SETUP, errno, "cover %s of the host template", path);
    return 1;
}

static int host_cover(const struct covers *c, int root, const char *path, struct err *err)
{
    struct stat st;
    _cleanup_close_ int at = mount_place(root, path + 1, false);
    if (at < 0 && (errno == ENOENT || errno == ENOTDIR || errno == EACCES || errno == ELOOP))
        return 0;
    if (at < 0 || fstatat(at, "", &st, AT_EMPTY_PATH) < 0)
        return err_set(err, ERR_SETUP, errno, "find %s of the host template", path);
    /* Our own directory shows only its files for sandboxes, nothing of the installation. */
    if (strcmp(path, "/" HUTCH_DIR) == 0 && faccessat(c->mount, HUTCH_DIR, F_OK, 0) == 0)
        return cover_at(c, at, HUTCH_DIR, path, err);
    return cover_at(c, at, S_ISDIR(st.st_mode) ? "d" : "f", path, err);
}

static int cover_all(const struct plan *plan, const struct wall_sandbox_places *p, const struct covers *c, int root,
                     struct wall_sandbox_world *w, struct err *err)
{
    for (size_t i = 0; i < plan->nops; i++) {
        const struct plan_op *op = &plan->ops[i];
        if (op->kind != OP_MASK || under_private(w, op->path))
            continue;
        int r = host_cover(c, root, op->path, err);
        if (r < 0)
            return -1;
        w->nmasked += r > 0;
    }
    for (const char *const *h = p->hide; h && *h; h++)
        if (strcmp(*h, "/") != 0 && !under_private(w, *h) && host_cover(c, root, *h, err) < 0)
            return -1;
    if (p->home && strcmp(p->home, "/") != 0 && !under_private(w, p->home) && host_cover(c, root, p->home, err) < 0)
        return -1;
    return 0;
}

/* Kernels from 6.15 on can clone a detached tree; then it need not be in the namespace that each sandbox copies. */
static int host_detach(struct wall_sandbox_world *w, int root, bool attached, struct err *err)
{
    if (attached)
        return 0;
    w->host = mount_clone(root, "", MOUNT_RECURSIVE);
    if (w->host < 0)
        return err_set(err, ERR_SETUP, errno, "take the host template");
    _cleanup_close_ int again = mount_clone(w->host, "", MOUNT_RECURSIVE);
    if (again >= 0)
        return umount2(SANDBOX_HOST, MNT_DETACH) < 0 ? err_set(err, ERR_SETUP, errno, "take down " SANDBOX_HOST) : 0;
    (void)close(TAKE_FD(w->host));
    return 0;
}

int sandbox_host_cover(const struct plan *plan, const struct wall_sandbox_places *p, struct wall_sandbox_world *w,
                       struct err *err)
{
    _cleanup_(cleanup_close_p) int root = open(SANDBOX_HOST, O_PATH | O_DIRECTORY | O_CLOEXEC);
    struct covers c = {.mount = -1};
    if (root < 0)
        return err_set(err, ERR_SETUP, errno, "open the host's tree");
    find_private(plan, root, w);
    drop_unseen(plan, w);
    int r = make_covers(&c, err);
    if (r == 0)
        r = host_fill_etc(&c, root, p, err);
    if (r == 0)
        r = layer_etc(root, err);
    if (r == 0)
        r = cover_all(plan, p, &c, root, w, err);
    if (r == 0 && mount_set(root, "", MOUNT_RECURSIVE | MOUNT_PRIVATE | MOUNT_RO | MOUNT_NOSUID | MOUNT_NODEV) < 0)
        r = err_set(err, ERR_SETUP, errno, "make the host template read-only");
    if (r == 0)
        r = host_detach(w, root, p->attached, err);
    if (c.mount >= 0) {
        (void)umount2(SANDBOX_SCRATCH, MNT_DETACH);
        (void)close(c.mount);
    }
    return r;
}

/* Covers the socket at path, if it is one that can be seen. The covers are made when the first is needed. */
static int cover_socket(const struct wall_sandbox_world *w, struct covers *c, int root, const char *path,
                        struct err *err)
{
    struct stat st;
    if (under_private(w, path))
        return 0;
    _cleanup_close_ int at = mount_place(root, path + 1, true); /* it may have been bound through a link */
    if (at < 0 || fstatat(at, "", &st, AT_EMPTY_PATH) < 0 || !S_ISSOCK(st.st_mode))
        return 0;
    if (c->mount < 0 && make_covers(c, err) < 0)
        return -1;
    return cover_at(c, at, "f", path, err) < 0 ? -1 : 0;
}

static int cover_sockets(const struct wall_sandbox_world *w, struct covers *c, int root, char *list, struct err *err)
{
    for (char *line = list, *next; line && *line; line = next) {
        next = strchr(line, '\n');
        if (next)
            *next++ = '\0';
        const char *path = strchr(line, '/');
        if (path && path > line && path[-1] == ' ' && cover_socket(w, c, root, path, err) < 0)
            return -1;
    }
    return 0;
}

int sandbox_host_refresh(const struct wall_sandbox_world *w, struct err *err)
{
    static time_t last = -1; /* a burst of sandboxes asks once */
    struct timespec now;
    struct covers c = {.mount = -1};
    char path[64];
    _cleanup_buf_ struct buf list = {0};
    if (clock_gettime(CLOCK_MONOTONIC, &now) < 0 || now.tv_sec == last)
        return 0;
    (void)snprintf(path, sizeof path, "/proc/self/fd/%d", w->sockets); /* opened again: always of the host's network */
    if (fd_read_file(AT_FDCWD, path, SOCKET_LIST_MAX, &list) < 0)
        return err_set(err, ERR_HOST, errno, "the host's sockets cannot be listed (/proc/net/unix)");
    _cleanup_(cleanup_close_p) int opened = w->host >= 0 ? -1 : open(SANDBOX_HOST, O_PATH | O_DIRECTORY | O_CLOEXEC);
    int root = w->host >= 0 ? w->host : opened;
    if (root < 0)
        return err_set(err, ERR_SETUP, errno, "open the host's tree");
    int r = cover_sockets(w, &c, root, list.p, err);
    if (c.mount >= 0) {
        (void)umount2(SANDBOX_SCRATCH, MNT_DETACH);
        (void)close(c.mount);
    }
    if (r == 0)
        last = now.tv_sec;
    return r;
}
