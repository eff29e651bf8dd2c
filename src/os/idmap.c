#include "os/idmap.h"

#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/fd.h"
#include "base/mem.h"
#include "base/num.h"
#include "base/strv.h"
#include "base/text.h"

enum { ETC_MAX = 16 << 20, MAP_TEXT_MAX = 4096, TOOL_SAYS_MAX = 512 };

/* --- maps --------------------------------------------------------------------------------------------------------- */

bool idmap_add(struct idmap *m, uint32_t inside, uint32_t outside, uint32_t count)
{
    if (m->n == IDMAP_EXTENTS_MAX || count == 0 || outside == 0)
        return false;
    if (UINT32_MAX - inside < count || UINT32_MAX - outside < count)
        return false;
    m->e[m->n++] = (struct idmap_extent){inside, outside, count};
    return true;
}

static int check_map(const struct idmap *m, const char *what, struct err *err)
{
    if (m->n == 0 || m->n > IDMAP_EXTENTS_MAX)
        return err_set(err, ERR_INTERNAL, 0, "a %s needs 1 to %d extents, not %zu", what, IDMAP_EXTENTS_MAX, m->n);
    for (size_t i = 0; i < m->n; i++) {
        const struct idmap_extent *e = &m->e[i];
        if (e->outside == 0)
            return err_set(err, ERR_INTERNAL, 0, "a %s must not contain host id 0", what);
        if (e->count == 0 || UINT32_MAX - e->outside < e->count || UINT32_MAX - e->inside < e->count)
            return err_set(err, ERR_INTERNAL, 0, "extent %u %u %u of a %s is empty or wraps", e->inside, e->outside,
                           e->count, what);
    }
    return 0;
}

static void map_text(const struct idmap *m, struct buf *out)
{
    for (size_t i = 0; i < m->n; i++)
        buf_addf(out, "%u %u %u\n", m->e[i].inside, m->e[i].outside, m->e[i].count);
}

static bool has_extent(const struct idmap *m, const struct idmap_extent *e)
{
    for (size_t i = 0; i < m->n; i++)
        if (memcmp(&m->e[i], e, sizeof *e) == 0)
            return true;
    return false;
}

/* The kernel may sort the extents, so they are compared as a set. */
static int verify_map(int proc, const char *file, const struct idmap *m, struct err *err)
{
    _cleanup_buf_ struct buf b = {0};
    struct idmap_extent e;
    size_t seen = 0;
    int used;
    if (fd_read_file(proc, file, MAP_TEXT_MAX, &b) < 0)
        return err_set(err, ERR_SETUP, errno, "cannot read back %s", file);
    for (const char *p = buf_str(&b); sscanf(p, " %10u %10u %10u%n", &e.inside, &e.outside, &e.count, &used) == 3;
         p += used) {
        if (!has_extent(m, &e))
            return err_set(err, ERR_SETUP, 0, "%s reads back with a foreign extent %u %u %u", file, e.inside, e.outside,
                           e.count);
        seen++;
    }
    if (seen != m->n)
        return err_set(err, ERR_SETUP, 0, "%s reads back with %zu extents instead of %zu", file, seen, m->n);
    return 0;
}

static int open_proc(pid_t pid, struct err *err)
{
    char path[32];
    (void)snprintf(path, sizeof path, "/proc/%d", (int)pid);
    int fd = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
    return fd < 0 ? err_set(err, ERR_SETUP, errno, "cannot open %s", path) : fd;
}

static int put_map(int proc, const char *file, const struct idmap *m, struct err *err)
{
    _cleanup_buf_ struct buf b = {0};
    map_text(m, &b);
    if (fd_put(proc, file, buf_str(&b)) < 0)
        return err_set(err, ERR_SETUP, errno, "cannot write %s (%zu extents, first %u %u %u)", file, m->n,
                       m->e[0].inside, m->e[0].outside, m->e[0].count);
    return verify_map(proc, file, m, err);
}

int idmap_write(pid_t pid, const struct idmap *uids, const struct idmap *gids, bool deny_setgroups, struct err *err)
{
    if (check_map(uids, "uid map", err) < 0 || check_map(gids, "gid map", err) < 0)
        return -1;
    _cleanup_close_ int proc = open_proc(pid, err);
    if (proc < 0)
        return -1;
    if (deny_setgroups && fd_put(proc, "setgroups", "deny") < 0)
        return err_set(err, ERR_SETUP, errno, "cannot deny setgroups for process %d", (int)pid);
    return put_map(proc, "uid_map", uids, err) < 0 || put_map(proc, "gid_map", gids, err) < 0 ? -1 : 0;
}

/* --- newuidmap ---------------------------------------------------------------------------------------------------- */

static const char *find_tool(const char *name, char *ret, size_t room)
{
    static const char *const dirs[] = {"/usr/bin", "/bin", "/usr/local/bin"};
    for (size_t i = 0; i < ARRAY_LEN(dirs); i++) {
        (void)snprintf(ret, room, "%s/%s", dirs[i], name);
        if (access(ret, X_OK) == 0)
            return ret;
    }
    return NULL;
}

/* Runs argv[0] with stderr in a pipe. Exit status, or -1 with errno; what it said is appended to says. */
static int run_tool(char *const argv[], struct buf *says)
{
    int fds[2], status;
    pid_t pid;
    char *const env[] = {NULL};
    posix_spawn_file_actions_t fa;
    if (pipe2(fds, O_CLOEXEC) < 0)
        return -1;
    (void)posix_spawn_file_actions_init(&fa);
    (void)posix_spawn_file_actions_adddup2(&fa, fds[1], STDERR_FILENO);
    int r = posix_spawn(&pid, argv[0], &fa, NULL, argv, env);
    (void)posix_spawn_file_actions_destroy(&fa);
    (void)close(fds[1]);
    if (r == 0) {
        char text[TOOL_SAYS_MAX];
        ssize_t n;
        while ((n = read(fds[0], text, sizeof text)) > 0)
            if (says->n < TOOL_SAYS_MAX)
                buf_add(says, text, (size_t)n);
    }
    (void)close(fds[0]);
    if (r != 0) {
        errno = r;
        return -1;
    }
    while (waitpid(pid, &status, 0) < 0)
        if (errno != EINTR)
            return -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 255;
}

static int tool_map(const char *tool, pid_t pid, const struct idmap *m, struct err *err)
{
    _cleanup_strv_ struct strv argv = {0};
    _cleanup_buf_ struct buf says = {0};
    char path[64];
    if (!find_tool(tool, path, sizeof path))
        return err_set(err, ERR_HOST, 0, "%s is not installed; as root: apt-get install uidmap", tool);
    strv_add(&argv, path);
    strv_take(&argv, xasprintf("%d", (int)pid));
    for (size_t i = 0; i < m->n; i++) {
        strv_take(&argv, xasprintf("%u", m->e[i].inside));
        strv_take(&argv, xasprintf("%u", m->e[i].outside));
        strv_take(&argv, xasprintf("%u", m->e[i].count));
    }
    int r = run_tool(argv.v, &says);
    if (r < 0)
        return err_set(err, ERR_SETUP, errno, "cannot run %s", path);
    if (r > 0) {
        _cleanup_buf_ struct buf safe = {0};
        while (says.n > 0 && says.p[says.n - 1] == '\n')
            says.p[--says.n] = '\0';
        text_add_safe(&safe, buf_str(&says), TOOL_SAYS_MAX);
        return err_set(err, ERR_HOST, 0, "%s refused the map: %s", path, buf_str(&safe));
    }
    return 0;
}

int idmap_write_rootless(pid_t pid, const struct idmap *uids, const struct idmap *gids, struct err *err)
{
    if (check_map(uids, "uid map", err) < 0 || check_map(gids, "gid map", err) < 0)
        return -1;
    _cleanup_close_ int proc = open_proc(pid, err);
    if (proc < 0)
        return -1;
    if (tool_map("newuidmap", pid, uids, err) < 0 || tool_map("newgidmap", pid, gids, err) < 0)
        return -1;
    return verify_map(proc, "uid_map", uids, err) < 0 || verify_map(proc, "gid_map", gids, err) < 0 ? -1 : 0;
}

/* --- /etc --------------------------------------------------------------------------------------------------------- */

/* One colon-separated field of a line, copied. False if there is none or it does not fit. */
static bool idmap_copy_field(const char *line, int index, char *ret, size_t room)
{
    for (; index > 0; index--) {
        line += strcspn(line, ":\n");
        if (*line != ':')
            return false;
        line++;
    }
    size_t n = strcspn(line, ":\n");
    if (n >= room)
        return false;
    memcpy(ret, line, n);
    ret[n] = '\0';
    return true;
}

static bool field_u32(const char *line, int index, uint32_t *ret)
{
    char text[16];
    uint64_t v;
    if (!idmap_copy_field(line, index, text, sizeof text) || !num_u64(text, &v) || v > UINT32_MAX)
        return false;
    *ret = (uint32_t)v;
    return true;
}

static const char *next_line(const char *line)
{
    line = strchr(line, '\n');
    return line && line[1] ? line + 1 : NULL;
}

/* "owner:start:count"; the range has to lie within the ids there are and leave 0 alone. */
static bool subid_line(const char *line, uint32_t *base, uint32_t *count)
{
    return field_u32(line, 1, base) && field_u32(line, 2, count) && *base > 0 && *count > 0 &&
           UINT32_MAX - *base >= *count;
}

bool idmap_parse_passwd(const char *text, uid_t uid, char *ret, size_t room)
{
    for (const char *line = text && *text ? text : NULL; line; line = next_line(line)) {
        uint32_t id;
        if (field_u32(line, 2, &id) && id == uid)
            return idmap_copy_field(line, 0, ret, room) && ret[0] != '\0';
    }
    return false;
}

bool idmap_parse_subids(const char *text, uid_t uid, const char *name, uint32_t count, uint32_t *ret_base,
                        uint32_t *ret_count)
{
    for (const char *line = text && *text ? text : NULL; line; line = next_line(line)) {
        char owner[256];
        uint32_t id, base, n;
        if (!idmap_copy_field(line, 0, owner, sizeof owner) || !subid_line(line, &base, &n) || n < count)
            continue;
        if (!(name && strcmp(owner, name) == 0) && !(field_u32(line, 0, &id) && id == uid))
            continue;
        *ret_base = base;
        *ret_count = n;
        return true;
    }
    return false;
}

int idmap_subids(uid_t uid, uint32_t count, struct idmap_subids *ret, struct err *err)
{
    _cleanup_buf_ struct buf passwd = {0}, subuid = {0}, subgid = {0};
    char owner[256], path[64];
    (void)fd_read_file(AT_FDCWD, "/etc/passwd", ETC_MAX, &passwd);
    (void)fd_read_file(AT_FDCWD, "/etc/subuid", ETC_MAX, &subuid);
    (void)fd_read_file(AT_FDCWD, "/etc/subgid", ETC_MAX, &subgid);
    const char *name = idmap_parse_passwd(buf_str(&passwd), uid, owner, sizeof owner) ? owner : NULL;
    if (!find_tool("newuidmap", path, sizeof path) || !find_tool("newgidmap", path, sizeof path))
        return err_set(err, ERR_HOST, 0, "newuidmap and newgidmap are not installed; as root: apt-get install uidmap");
    bool u = idmap_parse_subids(buf_str(&subuid), uid, name, count, &ret->uid_base, &ret->uid_count);
    bool g = idmap_parse_subids(buf_str(&subgid), uid, name, count, &ret->gid_base, &ret->gid_count);
    if (u && g)
        return 0;
    _cleanup_buf_ struct buf who = {0};
    if (name)
        text_add_safe(&who, name, 64);
    else
        buf_addf(&who, "%u", (unsigned)uid);
    return err_set(err, ERR_HOST, 0, "%s gives user %s no range of %u ids; as root: usermod --add-sub%s 100000-%u %s",
                   u ? "/etc/subgid" : "/etc/subuid", buf_str(&who), count, u ? "gids" : "uids", 100000 + count - 1,
                   buf_str(&who));
}

/* --- ranges of all users ------------------------------------------------------------------------------------------ */

void idmap_reserved_load(struct idmap_reserved *r)
{
    static const char *const files[] = {"/etc/subuid", "/etc/subgid"};
    for (size_t i = 0; i < ARRAY_LEN(files); i++) {
        _cleanup_buf_ struct buf b = {0};
        if (fd_read_file(AT_FDCWD, files[i], ETC_MAX, &b) < 0 || b.n == 0)
            continue;
        for (const char *line = b.p; line; line = next_line(line)) {
            uint32_t base, count;
            if (!subid_line(line, &base, &count))
                continue;
            MEM_GROW(r->v, r->n, r->cap);
            r->v[r->n++] = (struct idmap_extent){.outside = base, .count = count};
        }
    }
}

bool idmap_reserved_overlaps(const struct idmap_reserved *r, uint32_t base, uint32_t count)
{
    for (size_t i = 0; i < r->n; i++)
        if (r->v[i].outside < base + count && base < r->v[i].outside + r->v[i].count)
            return true;
    return false;
}

void idmap_reserved_done(struct idmap_reserved *r)
{
    free(r->v);
    *r = (struct idmap_reserved){0};
}
