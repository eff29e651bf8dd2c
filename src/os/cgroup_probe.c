/* cgroup_probe.c - which cgroup hierarchies this caller can really use, and where in them. */
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "os/cgroup-int.h"

enum { MOUNTINFO_MAX = 8 << 20, CONTROL_MAX = 4096 };

static const struct {
    const char *name;
    unsigned bit;
} controllers[] = {
    {"cpu", CGROUP_CPU}, {"cpuacct", CGROUP_CPUACCT}, {"memory", CGROUP_MEMORY},   {"pids", CGROUP_PIDS},
    {"io", CGROUP_IO},   {"blkio", CGROUP_IO},        {"freezer", CGROUP_FREEZER},
};

const char *cgroup_backend_name(enum cgroup_backend b)
{
    static const char *const names[] = {"none", "v1", "hybrid", "v2"};
    return names[b];
}

unsigned cgroup_controller_bits(const char *list)
{
    unsigned bits = 0;
    while (*list) {
        size_t n = strcspn(list, " ,\n");
        for (size_t i = 0; i < ARRAY_LEN(controllers); i++)
            if (strlen(controllers[i].name) == n && memcmp(controllers[i].name, list, n) == 0)
                bits |= controllers[i].bit;
        list += n;
        list += strspn(list, " ,\n");
    }
    return bits;
}

const char *cgroup_controller_name(unsigned bit)
{
    for (size_t i = 0; i < ARRAY_LEN(controllers); i++)
        if (controllers[i].bit == bit)
            return controllers[i].name;
    return "core";
}

void cgroup_bits_text(unsigned bits, char *ret, size_t n)
{
    size_t used = 0;
    ret[0] = '\0';
    for (unsigned bit = 1; bit <= CGROUP_CORE; bit <<= 1) {
        if (!(bits & bit))
            continue;
        int w = snprintf(ret + used, n - used, "%s%s", used ? ", " : "", cgroup_controller_name(bit));
        if (w < 0 || (size_t)w >= n - used)
            return;
        used += (size_t)w;
    }
}

/* --- text of /proc ------------------------------------------------------------------------------------------------ */

/* The next space-separated field of a line, copied with \ooo escapes resolved. False at the end or if it is too long.
 */
static bool take_field(const char **s, char *ret, size_t room)
{
    size_t n = 0;
    const char *p = *s + strspn(*s, " ");
    if (*p == '\0' || *p == '\n')
        return false;
    while (*p && *p != ' ' && *p != '\n') {
        char c = *p++;
        if (c == '\\' && p[0] >= '0' && p[0] <= '3' && p[1] >= '0' && p[1] <= '7' && p[2] >= '0' && p[2] <= '7') {
            c = (char)((p[0] - '0') * 64 + (p[1] - '0') * 8 + (p[2] - '0'));
            p += 3;
        }
        if (n + 1 >= room)
            return false;
        ret[n++] = c;
    }
    ret[n] = '\0';
    *s = p;
    return true;
}

struct mount_line {
    char root[CGROUP_DIR_MAX], point[CGROUP_DIR_MAX], type[32], options[256];
};

static bool parse_mount_line(const char *line, struct mount_line *m)
{
    char skip[CGROUP_DIR_MAX];
    for (int i = 0; i < 3; i++)
        if (!take_field(&line, skip, sizeof skip))
            return false;
    if (!take_field(&line, m->root, sizeof m->root) || !take_field(&line, m->point, sizeof m->point))
        return false;
    do
        if (!take_field(&line, skip, sizeof skip))
            return false;
    while (strcmp(skip, "-") != 0);
    return take_field(&line, m->type, sizeof m->type) && take_field(&line, skip, sizeof skip) &&
           take_field(&line, m->options, sizeof m->options);
}

/* The path after "id:controllers:" in the line of /proc/self/cgroup that is v2 (bits 0) or holds these v1 controllers.
 */
static bool own_path(const char *self_cgroup, unsigned bits, char *ret, size_t room)
{
    for (const char *line = self_cgroup; line && *line; line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL) {
        const char *list = strchr(line, ':');
        const char *path = list ? strchr(list + 1, ':') : NULL;
        size_t end = strcspn(line, "\n");
        if (!path || path > line + end)
            continue;
        char names[128];
        size_t n = (size_t)(path - list - 1), plen = (size_t)(line + end - path - 1);
        if (n >= sizeof names || plen >= room)
            continue;
        memcpy(names, list + 1, n);
        names[n] = '\0';
        if (bits == 0 ? n != 0 : (cgroup_controller_bits(names) & bits) != bits)
            continue;
        memcpy(ret, path + 1, plen);
        ret[plen] = '\0';
        return true;
    }
    return false;
}

/* The directory of cgroup `path` where the subtree `root` is mounted at `point`. False if it lies outside the mount. */
static bool own_dir(const char *point, const char *root, const char *path, char ret[CGROUP_DIR_MAX])
{
    size_t n = strcmp(root, "/") == 0 ? 0 : strlen(root);
    if (path[0] != '/' || strncmp(path, "/..", 3) == 0 || strncmp(root, "/..", 3) == 0)
        return false;
    if (strncmp(path, root, n) != 0 || (path[n] != '/' && path[n] != '\0'))
        return false;
    const char *rest = strcmp(path + n, "/") == 0 ? "" : path + n;
    int w = snprintf(ret, CGROUP_DIR_MAX, "%s%s", point, rest);
    return w > 0 && w < CGROUP_DIR_MAX;
}

static void add_hierarchy(const struct mount_line *m, const char *self_cgroup, struct cgroup_info *ret)
{
    bool v2 = strcmp(m->type, "cgroup2") == 0;
    if (!v2 && strcmp(m->type, "cgroup") != 0)
        return;
    unsigned has = v2 ? CGROUP_CORE | CGROUP_CPUACCT | CGROUP_FREEZER : cgroup_controller_bits(m->options);
    char path[CGROUP_DIR_MAX];
    if (has == 0 || ret->nhier == CGROUP_HIER_MAX || !own_path(self_cgroup, v2 ? 0 : has, path, sizeof path))
        return;
    for (unsigned i = 0; i < ret->nhier; i++)
        if (ret->hier[i].v2 == v2 && (ret->hier[i].has & has))
            return; /* a second mount of the same hierarchy */
    struct cgroup_hier *h = &ret->hier[ret->nhier];
    if (!own_dir(m->point, m->root, path, h->own))
        return;
    memcpy(h->mount, m->point, sizeof h->mount);
    h->v2 = v2;
    h->has = has;
    ret->nhier++;
}

void cgroup_parse_hosts(const char *mountinfo, const char *self_cgroup, struct cgroup_info *ret)
{
    memset(ret, 0, sizeof *ret);
    for (const char *line = mountinfo; line && *line;) {
        const char *end = strchr(line, '\n');
        const char *dash = strstr(line, " - cgroup");
        if (!dash)
            return;
        /* Most lines are other file systems: only those that can matter are taken apart. */
        if (!end || dash < end) {
            struct mount_line m;
            if (parse_mount_line(line, &m))
                add_hierarchy(&m, self_cgroup, ret);
        }
        line = end ? end + 1 : NULL;
    }
}

/* --- permissions and places --------------------------------------------------------------------------------------- */

static bool cgroup_may_write(const char *dir, const char *file)
{
    char path[CGROUP_DIR_MAX + 32];
    if (faccessat(AT_FDCWD, dir, W_OK | X_OK, AT_EACCESS) < 0)
        return false;
    (void)snprintf(path, sizeof path, "%s/%s", dir, file);
    return faccessat(AT_FDCWD, path, W_OK, AT_EACCESS) == 0;
}

static bool is_cgroup_fs(const struct cgroup_hier *h)
{
    struct statfs fs;
    return statfs(h->own, &fs) == 0 && (unsigned long)fs.f_type == (h->v2 ? CGROUP2_SUPER_MAGIC : CGROUP_SUPER_MAGIC);
}

static unsigned bits_in_file(const char *dir, const char *file)
{
    _cleanup_buf_ struct buf b = {0};
    char path[CGROUP_DIR_MAX + 32];
    (void)snprintf(path, sizeof path, "%s/%s", dir, file);
    return fd_read_file(AT_FDCWD, path, CONTROL_MAX, &b) == 0 ? cgroup_controller_bits(buf_str(&b)) : 0;
}

/* Whether the kernel would let `dir` pass controllers on: the root may always, others only without processes. */
static bool can_distribute(const char *dir)
{
    _cleanup_buf_ struct buf b = {0};
    char path[CGROUP_DIR_MAX + 32];
    (void)snprintf(path, sizeof path, "%s/cgroup.type", dir);
    if (faccessat(AT_FDCWD, path, F_OK, 0) < 0)
        return true;
    (void)snprintf(path, sizeof path, "%s/cgroup.procs", dir);
    return fd_read_file(AT_FDCWD, path, CONTROL_MAX, &b) == 0 && b.n == 0;
}

static bool cgroup_enable_controllers(const char *dir, unsigned missing)
{
    char path[CGROUP_DIR_MAX + 32], text[64];
    int n = 0;
    for (unsigned bit = 1; bit <= CGROUP_IO; bit <<= 1)
        if (missing & bit)
            n += snprintf(text + n, sizeof text - (size_t)n, "+%s ", cgroup_controller_name(bit));
    (void)snprintf(path, sizeof path, "%s/cgroup.subtree_control", dir);
    return fd_put(AT_FDCWD, path, text) == 0;
}

/* Cuts the last component off `dir`, not going above `mount`. False at the top. */
static bool cgroup_dir_up(char *dir, const char *mount)
{
    if (strlen(dir) <= strlen(mount))
        return false;
    char *slash = strrchr(dir, '/');
    if (!slash || slash == dir)
        return false;
    *slash = '\0';
    return true;
}

static bool place_already(const struct cgroup_hier *h, unsigned need, char ret_dir[CGROUP_DIR_MAX])
{
    char dir[CGROUP_DIR_MAX];
    memcpy(dir, h->own, sizeof dir);
    do {
        if (!cgroup_may_write(dir, "cgroup.procs"))
            continue; /* an ancestor may still be ours */
        if (need == 0 || (need & ~bits_in_file(dir, "cgroup.subtree_control")) == 0) {
            memcpy(ret_dir, dir, sizeof dir);
            return true;
        }
    } while (cgroup_dir_up(dir, h->mount));
    return false;
}

static bool place_enabled(const char *dir, unsigned need, bool commit)
{
    if (!cgroup_may_write(dir, "cgroup.procs") || !cgroup_may_write(dir, "cgroup.subtree_control"))
        return false;
    if ((need & ~bits_in_file(dir, "cgroup.controllers")) != 0)
        return false;
    return commit ? cgroup_enable_controllers(dir, need & ~bits_in_file(dir, "cgroup.subtree_control"))
                  : can_distribute(dir);
}

bool cgroup_v2_place(const struct cgroup_hier *h, unsigned need, bool commit, char ret_dir[CGROUP_DIR_MAX])
{
    need &= CGROUP_V2_CONTROLLERS;
    if (place_already(h, need, ret_dir))
        return true;
    char parent[CGROUP_DIR_MAX];
    memcpy(parent, h->own, sizeof parent);
    (void)cgroup_dir_up(parent, h->mount);
    const char *const tries[] = {h->own, parent, h->mount};
    for (size_t i = 0; i < ARRAY_LEN(tries); i++) {
        if (!place_enabled(tries[i], need, commit))
            continue;
        memcpy(ret_dir, tries[i], strlen(tries[i]) + 1);
        return true;
    }
    return false;
}

/* --- the probe ---------------------------------------------------------------------------------------------------- */

static unsigned usable_bits(const struct cgroup_hier *h)
{
    char dir[CGROUP_DIR_MAX];
    if (!h->v2)
        return h->has;
    if (!cgroup_v2_place(h, 0, false, dir))
        return 0;
    unsigned all = CGROUP_CPU | CGROUP_MEMORY | CGROUP_PIDS;
    unsigned core = h->has & ~(unsigned)CGROUP_V2_CONTROLLERS;
    if ((h->has & all) == all && cgroup_v2_place(h, all, false, dir))
        return h->has;
    for (unsigned bit = 1; bit <= CGROUP_IO; bit <<= 1)
        if ((h->has & bit & CGROUP_V2_CONTROLLERS) && cgroup_v2_place(h, bit, false, dir))
            core |= bit;
    return core;
}

static void cgroup_explain_lacks(struct cgroup_info *info, unsigned mounted_v2, unsigned dropped_v1, bool any)
{
    char missing[64];
    unsigned lacks = (info->can_memory ? 0u : CGROUP_MEMORY) | (info->can_cpu ? 0u : CGROUP_CPU) |
                     (info->can_pids ? 0u : CGROUP_PIDS);
    if (lacks == 0)
        return;
    cgroup_bits_text(lacks, missing, sizeof missing);
    bool root = geteuid() == 0;
    if (!any)
        (void)snprintf(info->why, sizeof info->why,
                       "no limits for %s: no cgroup file system of this caller is mounted; as root: "
                       "mount -t cgroup2 none /sys/fs/cgroup",
                       missing);
    else if (dropped_v1 & lacks)
        (void)snprintf(
            info->why, sizeof info->why,
            root ? "no limits for %s: the cgroup v1 hierarchies are not writable here; mount them read-write"
                 : "no limits for %s: the controllers are in cgroup v1 hierarchies, which only root may use; run "
                   "as root, or boot with systemd.unified_cgroup_hierarchy=1",
            missing);
    else if (mounted_v2 & lacks)
        (void)snprintf(
            info->why, sizeof info->why,
            root ? "no limits for %s: no cgroup above this process can pass the controllers on; start it in a "
                   "cgroup of its own: systemd-run --scope -p Delegate=yes -- hutch ..."
                 : "no limits for %s: this process is not in a delegated cgroup; start it with: "
                   "systemd-run --user --scope -p Delegate=yes -- hutch ...",
            missing);
    else
        (void)snprintf(info->why, sizeof info->why,
                       "no limits for %s: the kernel does not offer the controller in any mounted hierarchy; check "
                       "/proc/cgroups and the kernel's cgroup_disable= parameter",
                       missing);
}

int cgroup_probe(struct cgroup_info *ret)
{
    _cleanup_buf_ struct buf mounts = {0}, self = {0};
    if (fd_read_file(AT_FDCWD, "/proc/self/mountinfo", MOUNTINFO_MAX, &mounts) < 0 ||
        fd_read_file(AT_FDCWD, "/proc/self/cgroup", 64 << 10, &self) < 0)
        return -1;
    cgroup_parse_hosts(buf_str(&mounts), buf_str(&self), ret);
    unsigned kept = 0, v1 = 0, v2 = 0, mounted_v2 = 0, dropped_v1 = 0;
    bool any = ret->nhier > 0;
    for (unsigned i = 0; i < ret->nhier; i++) {
        struct cgroup_hier *h = &ret->hier[i];
        if (!is_cgroup_fs(h))
            continue;
        if (h->v2)
            mounted_v2 = h->has |= bits_in_file(h->mount, "cgroup.controllers") & CGROUP_V2_CONTROLLERS;
        if (!h->v2 && (geteuid() != 0 || !cgroup_may_write(h->own, "cgroup.procs"))) {
            dropped_v1 |= h->has;
            continue;
        }
        h->has = usable_bits(h);
        if (h->has == 0)
            continue;
        *(h->v2 ? &v2 : &v1) |= h->has;
        if (kept != i)
            ret->hier[kept] = *h;
        kept++;
    }
    ret->nhier = kept;
    unsigned all = v1 | v2, limits = CGROUP_CPU | CGROUP_MEMORY | CGROUP_PIDS;
    ret->backend = !all ? CGROUP_NONE : !v2 ? CGROUP_V1 : (v1 & limits) ? CGROUP_HYBRID : CGROUP_V2;
    ret->can_memory = all & CGROUP_MEMORY;
    ret->can_cpu = all & CGROUP_CPU;
    ret->can_pids = all & CGROUP_PIDS;
    ret->can_freeze = all & CGROUP_FREEZER;
    ret->can_kill = all != 0;
    ret->can_cpuacct = all & CGROUP_CPUACCT;
    cgroup_explain_lacks(ret, mounted_v2, dropped_v1, any);
    return 0;
}

bool cgroup_systemd_run_available(void)
{
    char path[CGROUP_DIR_MAX];
    const char *dir = getenv("XDG_RUNTIME_DIR");
    int n = dir && dir[0] == '/' ? snprintf(path, sizeof path, "%s/systemd/private", dir)
                                 : snprintf(path, sizeof path, "/run/user/%u/systemd/private", (unsigned)getuid());
    if (n < 0 || (size_t)n >= sizeof path || access(path, W_OK) < 0)
        return false;
    return access("/usr/bin/systemd-run", X_OK) == 0 || access("/bin/systemd-run", X_OK) == 0;
}
