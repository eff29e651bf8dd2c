/* Policy to plan, as a table: a host, a policy, and the plan that must come out of it, to the line.
 *
 * The host is text, one thing per line: "d /a" a directory, "D /a" one that strangers cannot pass, "f /a" a file,
 * "h /a" one with a second name, "g /a -> /b" one in which git finds a directory, "s /a" a bound socket, "c /a" a device,
 * "l /a -> /b" a link, "o /a" a link that leads to itself. Parents exist by themselves. A plan is text too, one operation per line, in order of execution.
 */
#include <errno.h>
#include <sys/stat.h>

#include "base/path.h"
#include "policy-harness.h"
#include "policy/run/plan.h"

enum { HOST_MAX = 128 };

struct host {
    struct thing {
        char kind, path[128], target[128];
    } things[HOST_MAX];
    size_t n;
};

static const struct thing *find(const struct host *h, const char *path)
{
    for (size_t i = 0; i < h->n; i++)
        if (strcmp(h->things[i].path, path) == 0)
            return &h->things[i];
    return NULL;
}

static void host_parse(struct host *h, const char *text)
{
    *h = (struct host){.n = 0};
    for (const char *line = text; line && *line; line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL) {
        struct thing *t = &h->things[h->n];
        assert_true(h->n < HOST_MAX);
        *t = (struct thing){.kind = line[0]};
        if (sscanf(line + 1, " %127s -> %127s", t->path, t->target) >= 1)
            h->n++;
    }
}

/* Whether something is there although no line says so: every parent of a line is. */
static bool implied(const struct host *h, const char *path)
{
    for (size_t i = 0; i < h->n; i++)
        if (path_under(h->things[i].path, path))
            return true;
    return strcmp(path, "/") == 0;
}

static char *fake_real(void *ctx, const char *path)
{
    const struct host *h = ctx;
    char now[256];
    (void)snprintf(now, sizeof now, "%s", path);
    for (int hops = 0; hops < 40; hops++) {
        bool again = false;
        for (size_t i = 0; i < h->n && !again; i++) {
            const struct thing *t = &h->things[i];
            if (t->kind == 'o' && path_under(now, t->path)) {
                errno = ELOOP;
                return NULL;
            }
            if (t->kind == 'l' && path_under(now, t->path)) {
                char next[256];
                (void)snprintf(next, sizeof next, "%s%s", t->target, now + strlen(t->path));
                (void)snprintf(now, sizeof now, "%s", next);
                again = true;
            }
        }
        if (again)
            continue;
        if (!find(h, now) && !implied(h, now)) {
            errno = ENOENT;
            return NULL;
        }
        return xstrdup(now);
    }
    errno = ELOOP;
    return NULL;
}

static int fake_look(void *ctx, const char *path, struct plan_fact *ret)
{
    const struct host *h = ctx;
    _cleanup_free_ char *parent = path_parent(path), *dir = fake_real(ctx, parent);
    *ret = (struct plan_fact){0};
    if (!dir)
        return 0;
    _cleanup_free_ char *at = strcmp(path, "/") == 0 ? xstrdup("/") : path_join(dir, path_name(path));
    const struct thing *t = find(h, at);
    if (!t && !implied(h, at))
        return 0;
    char kind = t ? t->kind : 'd';
    ret->type = strchr("fgh", kind)  ? TYPE_FILE
                : kind == 's'        ? TYPE_SOCKET
                : kind == 'c'        ? TYPE_OTHER
                : strchr("lo", kind) ? TYPE_SYMLINK
                                     : TYPE_DIR;
    ret->nlink = kind == 'h' ? 2 : 1;
    ret->mode = kind == 'D' ? S_IFDIR | 0700 : S_IFDIR | 0755;
    ret->dev = 1;
    ret->ino = t ? (ino_t)(t - h->things) + 1 : 1000;
    if (ret->type == TYPE_SYMLINK)
        ret->target = fake_real(ctx, at);
    return 0;
}

static int fake_repos(void *ctx, const char *root, unsigned depth, unsigned max, void (*each)(void *, const char *),
                      void *arg)
{
    const struct host *h = ctx;
    for (size_t i = 0; i < h->n; i++) {
        _cleanup_free_ char *dir = path_parent(h->things[i].path);
        if (strcmp(path_name(h->things[i].path), ".git") == 0 && path_under(dir, root) && strcmp(dir, root) != 0 &&
            path_depth(dir) - path_depth(root) <= depth)
            each(arg, dir);
    }
    return h->n > max;
}

static int fake_expand(void *ctx, const char *glob, void (*each)(void *, const char *), void *arg)
{
    const struct host *h = ctx;
    for (size_t i = 0; i < h->n; i++)
        if (path_match(glob, h->things[i].path))
            each(arg, h->things[i].path);
    return 0;
}

static int fake_sockets(void *ctx, void (*each)(void *, const char *), void *arg)
{
    const struct host *h = ctx;
    for (size_t i = 0; i < h->n; i++)
        if (h->things[i].kind == 's')
            each(arg, h->things[i].path);
    return 0;
}

static char *fake_link_text(void *ctx, const char *path)
{
    const struct thing *t = find(ctx, path);
    return !t ? NULL : xstrdup(t->kind == 'o' ? path : t->target);
}

static char *fake_git_link(void *ctx, const char *path)
{
    _cleanup_free_ char *real = fake_real(ctx, path);
    const struct thing *t = real ? find(ctx, real) : NULL;
    return t && t->kind == 'g' ? fake_real(ctx, t->target) : NULL;
}

static int fake_git_dirs(void *ctx, const char *git, unsigned max, void (*each)(void *, const char *), void *arg)
{
    const struct host *h = ctx;
    _cleanup_free_ char *modules = path_join(git, "modules"), *worktrees = path_join(git, "worktrees");
    _cleanup_strv_ struct strv seen = {0};
    for (size_t i = 0; i < h->n; i++) {
        const char *path = h->things[i].path, *name = path_name(path);
        _cleanup_free_ char *dir = path_parent(path);
        bool mark = strcmp(name, "config") == 0 || strcmp(name, "hooks") == 0 || strcmp(name, "HEAD") == 0 ||
                    strcmp(name, "commondir") == 0;
        if (!mark || strv_has(&seen, dir) || (!path_under(dir, modules) && !path_under(dir, worktrees)))
            continue;
        strv_add(&seen, dir);
        each(arg, dir);
    }
    return seen.n > max;
}

#define FACTS(h, list_sockets)                                                                                       \
    {                                                                                                                \
        .ctx = (h), .look = fake_look, .real = fake_real, .find_repos = fake_repos, .expand = fake_expand,           \
        .sockets = (list_sockets), .link_text = fake_link_text, .git_link = fake_git_link, .git_dirs = fake_git_dirs \
    }

static int no_sockets(void *ctx, void (*each)(void *, const char *), void *arg)
{
    (void)ctx;
    (void)each;
    (void)arg;
    errno = EACCES;
    return -1;
}

static void plan_text(const struct plan *plan, struct buf *out)
{
    static const char *const names[] = {
        [OP_TMPFS] = "tmpfs", [OP_SKELETON] = "skeleton", [OP_BIND_RO] = "ro",
        [OP_BIND_RW] = "rw",  [OP_PROTECT] = "protect",   [OP_PIN] = "pin",
        [OP_MASK] = "mask",   [OP_STUB] = "stub",         [OP_DEVICE] = "device",
    };
    for (size_t i = 0; i < plan->nops; i++) {
        const struct plan_op *op = &plan->ops[i];
        const char *name = op->kind == OP_TMPFS && op->writable          ? "tmp"
                           : op->kind == OP_STUB && op->type == TYPE_DIR ? "stubdir"
                                                                         : names[op->kind];
        buf_addf(out, "%s %s", name, op->path);
        if (op->src && strcmp(op->src, op->path) != 0)
            buf_addf(out, " < %s", op->src);
        buf_addc(out, '\n');
    }
}

struct row {
    const char *name, *host, *policy;
    const char *want;  /* the plan, or NULL if it is refused */
    const char *error; /* part of the message */
    bool root;
    const char *rootdir;
    bool try_paths;
};

static int make(const struct row *row, struct host *h, struct policy *p, struct plan **ret, struct err *err)
{
    struct plan_facts facts = FACTS(h, fake_sockets);
    struct plan_caller who = {.uid = row->root ? 0 : 1000,
                              .gid = row->root ? 0 : 1000,
                              .root = row->root,
                              .cwd = "/w",
                              .home = "/home/u",
                              .rootdir = row->rootdir};
    struct policy_where where = {.cwd = "/w", .home = "/home/u", .container = row->rootdir != NULL};
    host_parse(h, row->host);
    if (policy_parse(row->policy, strlen(row->policy), "p.yaml", LEVEL_FLAGS, &where, p, err) < 0)
        return -1;
    for (size_t i = 0; row->try_paths && i < p->nfiles; i++)
        p->files[i].flags |= FILE_TRY;
    return plan_make(p, &who, &facts, ret, err);
}

static void check_row(const struct row *row)
{
    struct host h;
    struct err err = {0};
    struct plan *plan = NULL;
    _cleanup_policy_ struct policy *p = policy_new();
    _cleanup_buf_ struct buf got = {0};
    int r = make(row, &h, p, &plan, &err);
    if (!row->want) {
        if (r == 0 || !strstr(err.msg, row->error) || strchr(err.msg, '\n'))
            fail_msg("%s:\nmessage \"%s\"\nlacks   \"%s\"", row->name, r == 0 ? "(accepted)" : err.msg, row->error);
        return;
    }
    if (r < 0)
        fail_msg("%s: refused: %s", row->name, err.msg);
    plan_text(plan, &got);
    if (strcmp(buf_str(&got), row->want) != 0)
        fail_msg("%s: the plan is\n%s\nand should be\n%s", row->name, buf_str(&got), row->want);
    if (plan_check(plan, &err) < 0)
        fail_msg("%s: %s", row->name, err.msg);
    plan_free(plan);
}

static void check_rows(const struct row *rows, size_t n)
{
    for (size_t i = 0; i < n; i++)
        check_row(&rows[i]);
}

static void binds_come_parents_first_and_where_links_lead(void **state)
{
    (void)state;
    static const struct row rows[] = {
        {"parents before children", "d /w/a/b\nd /w/a-b\nd /w/a", "files: {allow_write: [/w/a-b, /w/a/b, /w/a]}",
         .want = "rw /w/a\nrw /w/a/b\nrw /w/a-b\n"},
        {"a link is followed to the real place", "d /data/w\nl /w -> /data/w", "files: {allow_write: [/w]}",
         .want = "rw /data/w\n"},
        {"another place inside", "d /w\nd /opt/t", "files: {read_only: ['/w:/opt/t']}", .want = "ro /opt/t < /w\n"},
        {"deny at the same path wins", "d /w\nd /w/x", "files: {deny_read: [/w/x], allow_read: [/w]}",
         .want = "ro /w\nmask /w/x\n"},
        {"a device", "c /dev/kvm", "files: {devices: [/dev/kvm]}", .want = "device /dev/kvm\n"},
    };
    check_rows(rows, ARRAY_LEN(rows));
}

static void what_cannot_be_done_is_refused(void **state)
{
    (void)state;
    static const struct row rows[] = {
        {"all of /", "d /w", "files: {allow_write: [/]}", .error = "as a whole"},
        {"a link to /", "l /w/all -> /", "files: {allow_write: [/w/all]}", .error = "would cover the whole root"},
        {"a link into /proc", "d /proc/1\nl /w/p -> /proc/1", "files: {read_only: [/w/p]}",
         .error = "/proc, /sys or /dev"},
        {"missing", "d /w", "files: {allow_write: [/w/none]}", .error = "p.yaml:1: /w/none does not exist"},
        {"a loop", "d /w\no /w/loop", "files: {read_only: [/w/loop]}", .error = "loop of symbolic links"},
        {"a device as directory", "c /w/node", "files: {read_only: [/w/node]}", .error = "is a device or a pipe"},
        {"no device", "f /dev/file", "files: {devices: [/dev/file]}", .error = "is not a device below /dev"},
        {"a tmpfs on a file", "f /w/f", "files: {tmpfs: [/w/f]}", .error = "is not a directory"},
        {"a tmpfs nowhere", "d /w", "files: {tmpfs: [/w/none]}", .error = "does not exist"},
        {"a glob that later files could match", "d /w", "files: {allow_write: [/w], deny_write: ['/w/*.lock']}",
         .error = "cannot be enforced"},
        {"a glob over a writable tree", "d /w/a", "files: {allow_write: [/w/a], deny_write: ['/w/*/x']}",
         .error = "cannot be enforced"},
    };
    check_rows(rows, ARRAY_LEN(rows));
    static const struct row skipped[] = {
        {"missing, with --try", "d /w", "files: {allow_write: [/w/none], read_only: ['/w/n:/x']}", .want = "",
         .try_paths = true},
        {"a device, with --try", "d /w", "files: {devices: [/dev/kvm]}", .want = "", .try_paths = true},
        {"a denied path that is not there", "d /w", "files: {deny_read: [/w/none]}", .want = ""},
        {"a denied path that the command could make", "d /w\nd /w/a",
         "files: {allow_write: [/w], deny_read: [/w/a/none, /w/none, /x/none]}",
         .want = "rw /w\npin /w/a\nstub /w/a/none\nstub /w/none\n"},
        {"a denied path in a directory that is not there", "d /w", "files: {allow_write: [/w], deny_read: [/w/a/none]}",
         .want = "rw /w\n"},
        {"a denied link to what the command could make", "d /w\nl /w/l -> /w/none",
         "files: {allow_write: [/w], deny_read: [/w/l]}", .want = "rw /w\nstub /w/none\n"},
        {"a denied path that the command could make elsewhere", "d /data\nd /srv",
         "files: {allow_write: ['/data:/srv'], deny_read: [/srv/k, /data/m]}",
         .want = "rw /srv < /data\nstub /srv/k < /data/k\nstub /srv/m < /data/m\n"},
        {"a denied path in what is protected anyway", "d /w/a",
         "files: {allow_write: [/w], deny_write: [/w/a], deny_read: [/w/a/none]}", .want = "rw /w\nprotect /w/a\n"},
        {"a glob outside writable trees", "d /w\nd /x", "files: {allow_write: [/w], deny_write: ['/x/*']}",
         .want = "rw /w\n"},
    };
    check_rows(skipped, ARRAY_LEN(skipped));
}

static void masks_hide_and_their_exceptions_show(void **state)
{
    (void)state;
    static const struct row rows[] = {
        {"a link is hidden at its target", "d /data/keys\nl /home/u/.ssh -> /data/keys",
         "files: {deny_read: [/home/u/.ssh]}", .want = "mask /data/keys\n"},
        {"a link above is resolved", "f /data/k\nl /k -> /data", "files: {deny_read: [/k/k]}",
         .want = "mask /data/k\n"},
        {"nothing below a mask is masked again", "f /s/a/k\nd /s/a", "files: {deny_read: [/s/a, /s/a/k]}",
         .want = "mask /s/a\n"},
        {"an exception in a hidden directory", "f /s/a/ok\nd /s/a", "files: {deny_read: [/s/a], allow_read: [/s/a/ok]}",
         .want = "tmpfs /s/a\nro /s/a/ok\n"},
        {"a deep exception", "f /s/x/y/ok\nd /s", "files: {deny_read: [/s], allow_read: [/s/x/y/ok]}",
         .want = "tmpfs /s\nskeleton /s/x\nskeleton /s/x/y\nro /s/x/y/ok\n"},
        {"globs", "f /w/.env\nf /w/.env.prod\nf /w/env", "files: {deny_read: ['/w/.env*']}",
         .want = "mask /w/.env\nmask /w/.env.prod\n"},
        {"what goes below a tmpfs takes nothing else with it", "d /t\nf /t/k\nf /z/k\nf /w/.bashrc",
         "files: {tmpfs: [/t], deny_read: [/t/k, /z/k], allow_write: [/w], protect: [.bashrc, .profile]}",
         .want = "tmp /t\nrw /w\nprotect /w/.bashrc\nstub /w/.profile\nmask /z/k\n"},
        {"below a private tmpfs nothing is hidden", "d /t\nf /t/k", "files: {tmpfs: [/t], deny_read: [/t/k]}",
         .want = "tmp /t\n"},
        {"a place that a bind also shows", "d /home/u/.ssh\nd /mnt",
         "files: {deny_read: [/home/u/.ssh], read_only: ['/home/u:/mnt']}",
         .want = "mask /home/u/.ssh\nro /mnt < /home/u\nmask /mnt/.ssh < /home/u/.ssh\n"},
        {"bound by itself, it was meant", "d /home/u/.ssh\nd /mnt",
         "files: {deny_read: [/home/u/.ssh], read_only: ['/home/u/.ssh:/mnt']}",
         .want = "mask /home/u/.ssh\nro /mnt < /home/u/.ssh\n"},
        {"a rule for a bound place", "f /data/k\nd /srv", "files: {deny_read: [/srv/k], allow_write: ['/data:/srv']}",
         .want = "rw /srv < /data\nmask /srv/k < /data/k\n"},
        {"a glob in a bound place", "f /data/a.key\nd /srv",
         "files: {deny_read: ['/srv/*.key'], allow_write: ['/data:/srv']}",
         .want = "rw /srv < /data\nmask /srv/a.key < /data/a.key\n"},
    };
    check_rows(rows, ARRAY_LEN(rows));
}

static void host_sockets_are_hidden_wherever_they_are_shown(void **state)
{
    (void)state;
    static const struct row rows[] = {
        {"each by itself", "s /var/lib/x/sock\nd /w", "files: {allow_write: [/w]}",
         .want = "mask /var/lib/x/sock\nrw /w\n"},
        {"not below a tmpfs", "s /run/sock\nd /run", "files: {tmpfs: [/run]}", .want = "tmp /run\n"},
        {"the one that was given stays", "s /srv/a.sock\ns /srv/b.sock", "files: {sockets: [/srv/a.sock]}",
         .want = "ro /srv/a.sock\nmask /srv/b.sock\n"},
        {"given through a link", "s /run/a.sock\nl /var/run -> /run",
         "files: {sockets: [/var/run/a.sock], tmpfs: [/run]}", .want = "tmp /run\nro /run/a.sock\n"},
        {"in a writable tree", "d /w\ns /w/app.sock", "files: {allow_write: [/w]}",
         .want = "rw /w\nmask /w/app.sock\n"},
        {"where a bind shows it", "s /srv/a.sock\nd /mnt", "files: {read_only: ['/srv:/mnt']}",
         .want = "ro /mnt < /srv\nmask /mnt/a.sock < /srv/a.sock\nmask /srv/a.sock\n"},
        {"where a bind shows it in a container", "d /img\ns /srv/a.sock", "files: {read_only: ['/srv:/mnt']}",
         .want = "ro /mnt < /srv\nmask /mnt/a.sock < /srv/a.sock\n", .rootdir = "/img"},
    };
    check_rows(rows, ARRAY_LEN(rows));
    struct host h;
    struct err err = {0};
    struct plan *plan;
    struct plan_facts facts = FACTS(&h, no_sockets);
    struct plan_caller who = {.uid = 1000, .gid = 1000, .cwd = "/w"};
    _cleanup_policy_ struct policy *p = policy_new();
    host_parse(&h, "d /w");
    assert_int_equal(plan_make(p, &who, &facts, &plan, &err), -1);
    assert_int_equal(err.code, ERR_HOST);
}

#define PROTECT(names) "files: {allow_write: [/w], protect: [" names "]}"

static void protected_names_stay_as_they_are(void **state)
{
    (void)state;
    static const struct row rows[] = {
        {"present", "f /w/.bashrc", PROTECT(".bashrc"), .want = "rw /w\nprotect /w/.bashrc\n"},
        {"absent", "d /w", PROTECT(".bashrc, .vscode/"), .want = "rw /w\nstub /w/.bashrc\nstubdir /w/.vscode\n"},
        {"a link and what it leads to", "f /w/cfg/rc\nl /w/.bashrc -> /w/cfg/rc", PROTECT(".bashrc"),
         .want = "rw /w\nprotect /w/.bashrc\npin /w/cfg\nprotect /w/cfg/rc\n"},
        {"a link to something that is not writable", "f /etc/rc\nl /w/.bashrc -> /etc/rc", PROTECT(".bashrc"),
         .want = "rw /w\nprotect /w/.bashrc\n"},
        {"a link that dangles", "d /w\nl /w/.bashrc -> /none", PROTECT(".bashrc"),
         .want = "rw /w\nprotect /w/.bashrc\n"},
        {"a link to what could be made", "d /w/a\nl /w/.bashrc -> /w/a/rc", PROTECT(".bashrc"),
         .want = "rw /w\nprotect /w/.bashrc\npin /w/a\nstub /w/a/rc\n"},
        {"links to links to what could be made", "d /w\nl /w/.bashrc -> /w/l\nl /w/l -> /w/rc", PROTECT(".bashrc"),
         .want = "rw /w\nprotect /w/.bashrc\nprotect /w/l\nstub /w/rc\n"},
        {"a link to what could be made with its directory", "d /w\nl /w/.bashrc -> /w/a/rc", PROTECT(".bashrc"),
         .want = "rw /w\nprotect /w/.bashrc\nstubdir /w/a\n"},
        {"a link to itself", "d /w\no /w/.bashrc", PROTECT(".bashrc"), .want = "rw /w\nprotect /w/.bashrc\n"},
        {"parents are pinned", "f /w/a/b/rc", PROTECT("a/b/rc"),
         .want = "rw /w\npin /w/a\npin /w/a/b\nprotect /w/a/b/rc\n"},
        {"the first missing component is the stub", "d /w/a", PROTECT("a/b/rc"),
         .want = "rw /w\npin /w/a\nstubdir /w/a/b\n"},
        {"opened again by a longer rule", "d /w/.vscode", "files: {allow_write: [/w, /w/.vscode], protect: [.vscode/]}",
         .want = "rw /w\nrw /w/.vscode\nstubdir /w/.vscode/.vscode\n"},
        {"deny_write present and absent", "f /w/x\nd /w", "files: {allow_write: [/w], deny_write: [/w/x, /w/y]}",
         .want = "rw /w\nprotect /w/x\nstub /w/y\n"},
        {"deny_write through a link above", "d /w/real\nl /w/l -> /w/real",
         "files: {allow_write: [/w], deny_write: [/w/l/y]}", .want = "rw /w\npin /w/real\nstub /w/real/y\n"},
        {"deny_write outside writable trees", "d /w\nf /x", "files: {allow_write: [/w], deny_write: [/x]}",
         .want = "rw /w\n"},
        {"where a bind shows it", "f /w/.bashrc\nd /mnt",
         "files: {allow_write: ['/w:/mnt'], protect: [.bashrc, .profile]}",
         .want = "rw /mnt < /w\nprotect /mnt/.bashrc < /w/.bashrc\nstub /mnt/.profile < /w/.profile\n"},
        {"a user file where a bind shows it", "f /home/u/bin/x\nd /mnt",
         "files: {allow_write: ['/home/u:/mnt'], deny_write: [/home/u/bin]}",
         .want = "rw /mnt < /home/u\nprotect /mnt/bin < /home/u/bin\n"},
    };
    check_rows(rows, ARRAY_LEN(rows));
}

static void repositories_are_found_and_pinned(void **state)
{
    (void)state;
    static const struct row rows[] = {
        {"at the root", "d /w/.git/hooks\nf /w/.git/config", PROTECT(".git/hooks/, .git/config"),
         .want = "rw /w\npin /w/.git\nprotect /w/.git/config\nprotect /w/.git/hooks\n"},
        {"without hooks", "d /w/.git", PROTECT(".git/hooks/"), .want = "rw /w\npin /w/.git\nstubdir /w/.git/hooks\n"},
        {"no repository, no stub", "d /w", PROTECT(".git/hooks/"), .want = "rw /w\n"},
        {"nested", "d /w/a/b/.git", PROTECT(".git/config"),
         .want = "rw /w\npin /w/a\npin /w/a/b\npin /w/a/b/.git\nstub /w/a/b/.git/config\n"},
        {"deeper than the search", "d /w/a/b/c/d/.git", PROTECT(".git/config"), .want = "rw /w\n"},
        {"as deep as the policy says", "d /w/a/b/c/d/.git",
         "files: {allow_write: [/w], protect: [.git/config], search_depth: 4}",
         .want = "rw /w\npin /w/a\npin /w/a/b\npin /w/a/b/c\npin /w/a/b/c/d\npin /w/a/b/c/d/.git\nstub "
                 "/w/a/b/c/d/.git/config\n"},
        {"a worktree's file", "f /w/.git", PROTECT(".git/config"), .want = "rw /w\nprotect /w/.git\n"},
        {"a linked .git", "d /w/store\nl /w/.git -> /w/store", PROTECT(".git/config"),
         .want = "rw /w\nprotect /w/.git\nprotect /w/store\n"},
        {"submodules", "d /w/.git\nf /w/.git/modules/m/config", PROTECT(".git/config, .git/hooks/"),
         .want = "rw /w\npin /w/.git\nstub /w/.git/config\nstubdir /w/.git/hooks\npin /w/.git/modules\n"
                 "pin /w/.git/modules/m\nprotect /w/.git/modules/m/config\nstubdir /w/.git/modules/m/hooks\n"},
        {"submodules of submodules", "d /w/.git\nf /w/.git/modules/a/b/modules/c/modules/d/config",
         PROTECT(".git/config"),
         .want = "rw /w\npin /w/.git\nstub /w/.git/config\npin /w/.git/modules\npin /w/.git/modules/a\n"
                 "pin /w/.git/modules/a/b\npin /w/.git/modules/a/b/modules\npin /w/.git/modules/a/b/modules/c\n"
                 "pin /w/.git/modules/a/b/modules/c/modules\npin /w/.git/modules/a/b/modules/c/modules/d\n"
                 "protect /w/.git/modules/a/b/modules/c/modules/d/config\n"},
        {"submodules, and no name of git's is protected", "d /w/.git\nf /w/.git/modules/m/config", PROTECT("x"),
         .want = "rw /w\nstub /w/x\n"},
        {"worktrees", "f /w/.git/worktrees/t/commondir\nf /w/.git/worktrees/t/gitdir",
         PROTECT(".git/config, .git/config.worktree"),
         .want = "rw /w\npin /w/.git\nstub /w/.git/config\nstub /w/.git/config.worktree\npin /w/.git/worktrees\n"
                 "pin /w/.git/worktrees/t\nprotect /w/.git/worktrees/t/commondir\n"
                 "stub /w/.git/worktrees/t/config.worktree\nprotect /w/.git/worktrees/t/gitdir\n"},
        {"a common directory that is there", "f /w/.git/commondir", PROTECT(".git/config"),
         .want = "rw /w\npin /w/.git\nprotect /w/.git/commondir\nstub /w/.git/config\n"},
        {"a file that points into the tree", "g /w/.git -> /w/store\nf /w/store/config",
         PROTECT(".git/config, .git/hooks/"),
         .want = "rw /w\nprotect /w/.git\npin /w/store\nprotect /w/store/config\nstubdir /w/store/hooks\n"},
        {"a file that points to a worktree's, and on", "g /w/.git -> /r/wt\ng /r/wt/commondir -> /r/main\nd /r/main",
         "files: {allow_write: [/w, /r], protect: [.git/config]}",
         .want = "rw /r\npin /r/main\nstub /r/main/config\npin /r/wt\nprotect /r/wt/commondir\nrw /w\n"
                 "protect /w/.git\n"},
        {"a link to a file that points into the tree", "l /w/.git -> /w/f\ng /w/f -> /w/store\nd /w/store",
         PROTECT(".git/config"), .want = "rw /w\nprotect /w/.git\nprotect /w/f\npin /w/store\nstub /w/store/config\n"},
        {"a file that points out of it", "g /w/.git -> /store\nd /store", PROTECT(".git/config"),
         .want = "rw /w\nprotect /w/.git\n"},
        {"below the root only what exists, but git's own", "d /w/a/.git\nf /w/a/.envrc",
         PROTECT(".git/config, .envrc, .bashrc"),
         .want = "rw /w\nstub /w/.bashrc\nstub /w/.envrc\npin /w/a\nprotect /w/a/.envrc\npin /w/a/.git\n"
                 "stub /w/a/.git/config\n"},
        {"where a bind shows it", "d /data/r/.git\nd /mnt",
         "files: {allow_write: ['/data:/mnt'], protect: [.git/config]}",
         .want = "rw /mnt < /data\npin /mnt/r < /data/r\npin /mnt/r/.git < /data/r/.git\nstub /mnt/r/.git/config < "
                 "/data/r/.git/config\n"},
        {"between two writable trees", "d /w/a/sub/.git",
         "files: {allow_write: [/w, /w/a/sub], protect: [.git/config], search_depth: 1}",
         .want = "rw /w\npin /w/a\nrw /w/a/sub\npin /w/a/sub/.git\nstub /w/a/sub/.git/config\n"},
        {"above a read-only part", "d /w/a/lib", "files: {allow_write: [/w], read_only: [/w/a/lib]}",
         .want = "rw /w\npin /w/a\nro /w/a/lib\n"},
    };
    check_rows(rows, ARRAY_LEN(rows));
}

static void what_root_gives_can_be_reached(void **state)
{
    (void)state;
    static const struct row rows[] = {
        {"an untraversable parent", "D /root\nd /root/w", "files: {allow_write: [/root/w]}",
         .want = "tmpfs /root\nrw /root/w\n", .root = true},
        {"only the outermost is replaced", "D /root\nD /root/a\nd /root/a/w", "files: {allow_write: [/root/a/w]}",
         .want = "tmpfs /root\nskeleton /root/a\nrw /root/a/w\n", .root = true},
        {"a passable parent stays", "d /srv/a/w\nd /srv", "files: {allow_write: [/srv/a/w]}", .want = "rw /srv/a/w\n",
         .root = true},
        {"an ordinary user keeps the parent", "D /root\nd /root/w", "files: {allow_write: [/root/w]}",
         .want = "rw /root/w\n"},
        {"masks in the replaced parent go", "D /root\nd /root/w\nf /root/k",
         "files: {allow_write: [/root/w], deny_read: [/root/k]}", .want = "tmpfs /root\nrw /root/w\n", .root = true},
    };
    check_rows(rows, ARRAY_LEN(rows));
}

static void a_root_of_its_own_is_layers_and_binds(void **state)
{
    (void)state;
    static const struct row rows[] = {
        {"plain", "d /img", "files: {}", .want = "", .rootdir = "/img"},
        {"a bind", "d /img\nd /w", "files: {allow_write: ['/w:/work']}", .want = "rw /work < /w\n", .rootdir = "/img"},
        {"hidden in a layer", "d /a\nf /b/opt/key\nf /opt/key", "files: {deny_read: [/opt/key]}",
         .want = "mask /opt/key\n", .rootdir = "/a:/b"},
        {"not hidden because the host has it", "d /a\nf /opt/key", "files: {deny_read: [/opt/key]}", .want = "",
         .rootdir = "/a"},
        {"a glob in a layer", "d /a\nf /a/opt/x.key", "files: {deny_read: ['/opt/*.key']}", .want = "mask /opt/x.key\n",
         .rootdir = "/a"},
        {"a link in a layer", "d /a\nl /a/key -> /a/other\nf /a/other", "files: {deny_read: [/key]}",
         .error = "symbolic link", .rootdir = "/a"},
        {"protected in a layer", "d /a\nf /b/opt/x/key", "files: {deny_write: [/opt/x/key]}",
         .want = "pin /opt\npin /opt/x\nprotect /opt/x/key\n", .rootdir = "/a:/b"},
        {"protected and absent", "d /a\nd /a/opt", "files: {deny_write: [/opt/x/key]}",
         .want = "pin /opt\npin /opt/x\nstub /opt/x/key\n", .rootdir = "/a"},
        {"protected at the top", "d /a\nd /a/opt", "files: {deny_write: [/opt]}", .want = "protect /opt\n",
         .rootdir = "/a"},
        {"protected behind a link", "d /a\nl /a/lib -> /a/usr\nf /a/usr/x", "files: {deny_write: [/lib/x]}",
         .error = "leads through one, and cannot be protected", .rootdir = "/a"},
        {"protected behind a file", "d /a\nf /a/x", "files: {deny_write: [/x/y]}", .error = "not a directory",
         .rootdir = "/a"},
        {"the whole image", "d /a", "files: {deny_write: [/]}", .error = "as a whole is not possible", .rootdir = "/a"},
        {"a glob in the image", "d /a", "files: {deny_write: ['/etc/*.conf']}", .error = "one by one", .rootdir = "/a"},
        {"protected in a bind", "d /img\nf /w/key", "files: {allow_write: ['/w:/work'], deny_write: [/work/key]}",
         .want = "rw /work < /w\nprotect /work/key < /w/key\n", .rootdir = "/img"},
        {"a layer in a layer", "d /a/b\nd /a", "files: {}", .error = "layers must be apart", .rootdir = "/a:/a/b"},
        {"no such layer", "d /a", "files: {}", .error = "layer /none", .rootdir = "/none"},
        {"a file as layer", "f /a", "files: {}", .error = "/a is not a directory", .rootdir = "/a"},
        {"an empty word", "d /a", "files: {}", .error = "an empty word", .rootdir = ""},
        {"an empty layer", "d /a", "files: {}", .error = "an empty word", .rootdir = "/a:"},
        {"the host itself", "d /a", "files: {}", .error = "is the host itself", .rootdir = "/"},
    };
    check_rows(rows, ARRAY_LEN(rows));
}

static void a_plan_has_an_end(void **state)
{
    (void)state;
    struct host h;
    struct err err = {0};
    struct plan *plan;
    struct plan_facts facts = FACTS(&h, fake_sockets);
    struct plan_caller who = {.uid = 1000, .gid = 1000, .cwd = "/w"};
    _cleanup_policy_ struct policy *p = policy_new();
    host_parse(&h, "d /w");
    p->files = xcalloc(1, sizeof *p->files);
    p->nfiles = p->files_cap = 1;
    p->files[0] = (struct file_rule){.verb = FILE_ALLOW_WRITE, .path = xstrdup("/w"), .id = xstrdup("x")};
    p->nnames = p->names_cap = PLAN_OPS_MAX;
    p->names = xcalloc(p->nnames, sizeof *p->names);
    for (size_t i = 0; i < p->nnames; i++)
        p->names[i] = (struct protected_name){.name = xasprintf("n%zu", i), .id = xstrdup("n")};
    assert_int_equal(plan_make(p, &who, &facts, &plan, &err), -1);
    assert_int_equal(err.code, ERR_POLICY);
    assert_non_null(strstr(err.msg, "more than 4096 mounts"));
    free(p->names[p->nnames - 1].name);
    free(p->names[p->nnames - 1].id);
    p->nnames--;
    assert_int_equal(plan_make(p, &who, &facts, &plan, &err), 0);
    assert_int_equal(plan->nops, PLAN_OPS_MAX);
    plan_free(plan);
}

static int many_look(void *ctx, const char *path, struct plan_fact *ret)
{
    const char *name = path_name(path);
    (void)ctx;
    bool file = name[0] == 'n' || strcmp(name, "config") == 0;
    *ret = (struct plan_fact){.type = file ? TYPE_FILE : TYPE_DIR, .mode = S_IFDIR | 0755, .nlink = 1};
    return 0;
}

static char *many_real(void *ctx, const char *path)
{
    (void)ctx;
    return xstrdup(path);
}

static int many_repos(void *ctx, const char *root, unsigned depth, unsigned max, void (*each)(void *, const char *),
                      void *arg)
{
    const unsigned *n = ctx;
    (void)depth;
    (void)max;
    for (unsigned i = 0; i < *n; i++) {
        _cleanup_free_ char *dir = xasprintf("%s/r%u", root, i);
        each(arg, dir);
    }
    return 0;
}

static int no_entries(void *ctx, void (*each)(void *, const char *), void *arg)
{
    (void)ctx;
    (void)each;
    (void)arg;
    return 0;
}

static int no_git_dirs(void *ctx, const char *git, unsigned max, void (*each)(void *, const char *), void *arg)
{
    (void)ctx;
    (void)git;
    (void)max;
    (void)each;
    (void)arg;
    return 0;
}

/* Whatever an earlier command left in the tree, a plan can be made, covers what is nearest, and says what it left out. */
static void repositories_by_the_hundred_do_not_break_a_plan(void **state)
{
    (void)state;
    static const struct {
        unsigned repos, names;
        bool truncated, last;
    } cases[] = {{PLAN_REPOS, 0, false, true}, {PLAN_REPOS + 1, 0, true, true}, {10000, 100, true, false}};
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        unsigned repos = cases[i].repos;
        struct plan_facts facts = {.ctx = &repos,
                                   .look = many_look,
                                   .real = many_real,
                                   .find_repos = many_repos,
                                   .expand = fake_expand,
                                   .sockets = no_entries,
                                   .git_dirs = no_git_dirs};
        struct plan_caller who = {.uid = 1000, .gid = 1000, .cwd = "/w"};
        struct policy_where where = {.cwd = "/w"};
        struct err err = {0};
        struct plan *plan = NULL;
        _cleanup_policy_ struct policy *p = policy_new();
        _cleanup_buf_ struct buf text = {0};
        buf_adds(&text, "files: {allow_write: [/w], protect: [.git/config");
        for (unsigned k = 0; k < cases[i].names; k++)
            buf_addf(&text, ", n%u", k);
        buf_adds(&text, "]}");
        assert_int_equal(policy_parse(text.p, text.n, "p.yaml", LEVEL_FLAGS, &where, p, &err), 0);
        if (plan_make(p, &who, &facts, &plan, &err) < 0)
            fail_msg("%s", err.msg);
        assert_int_equal(plan->repos_truncated, cases[i].truncated);
        assert_int_equal(plan->notes.n, cases[i].truncated);
        if (cases[i].truncated)
            assert_non_null(strstr(plan->notes.v[0], "files.search_depth"));
        assert_int_equal(plan_op_for(plan, "/w/r0/.git/config")->kind, OP_PROTECT);
        assert_int_equal(plan_op_for(plan, "/w/r255/.git/config")->kind, cases[i].last ? OP_PROTECT : OP_BIND_RW);
        plan_free(plan);
    }
}

static void a_writable_home_and_hard_links_are_noted(void **state)
{
    (void)state;
    static const struct row row = {"home", "d /home/u\nh /home/u/.bashrc",
                                   "files: {allow_write: [/home/u], protect: [.bashrc]}", .want = ""};
    struct host h;
    struct err err = {0};
    struct plan *plan = NULL;
    _cleanup_policy_ struct policy *p = policy_new();
    assert_int_equal(make(&row, &h, p, &plan, &err), 0);
    assert_int_equal(plan->notes.n, 2);
    assert_non_null(strstr(plan->notes.v[0], "your home directory"));
    assert_non_null(strstr(plan->notes.v[1], "hard links"));
    assert_non_null(strstr(plan->notes.v[1], "/home/u/.bashrc"));
    plan_free(plan);
}

/* The built-in rules, with the home directory as the workspace and with a project in it. */
static void absent_keys_are_kept_absent_in_a_writable_home(void **state)
{
    (void)state;
    for (int home = 0; home < 2; home++) {
        struct host h;
        struct err err = {0};
        struct plan *plan = NULL;
        struct plan_facts facts = FACTS(&h, fake_sockets);
        const char *cwd = home ? "/home/u" : "/home/u/project";
        struct plan_caller who = {.uid = 1000, .gid = 1000, .cwd = cwd, .home = "/home/u"};
        struct policy_where where = {.cwd = cwd, .home = "/home/u"};
        _cleanup_policy_ struct policy *p = policy_new();
        host_parse(&h, "d /home/u/project\nd /tmp");
        policy_add_defaults(&where, p);
        if (plan_make(p, &who, &facts, &plan, &err) < 0)
            fail_msg("%s", err.msg);
        static const char *const keys[] = {"/home/u/.ssh", "/home/u/.netrc", "/home/u/.gnupg", "/home/u/.vimrc"};
        for (size_t i = 0; i < ARRAY_LEN(keys); i++) {
            const struct plan_op *op = plan_op_for(plan, keys[i]);
            assert_int_equal(op && op->kind == OP_STUB, home);
        }
        if (!home) /* commands make it from a template */
            assert_int_equal(plan_op_for(plan, "/home/u/project/.env")->kind, OP_BIND_RW);
        else
            assert_non_null(strstr(plan->notes.v[0], "the current directory is your home directory"));
        assert_int_equal(plan_check(plan, &err), 0);
        plan_free(plan);
    }
}

static void the_check_sees_a_missing_pin_and_a_wrong_order(void **state)
{
    (void)state;
    struct err err = {0};
    char w[] = "/w", hooks[] = "/w/.git/hooks", git[] = "/w/.git";
    struct plan_op ops[] = {
        {.kind = OP_BIND_RW, .path = w}, {.kind = OP_PROTECT, .path = hooks}, {.kind = OP_PIN, .path = git}};
    struct plan plan = {.ops = ops, .nops = 2};
    assert_int_equal(plan_check(&plan, &err), -1);
    assert_non_null(strstr(err.msg, "/w/.git above it is not pinned"));
    plan.nops = 3;
    assert_int_equal(plan_check(&plan, &err), -1);
    assert_non_null(strstr(err.msg, "comes after"));
    ops[1] = (struct plan_op){.kind = OP_PIN, .path = git};
    ops[2] = (struct plan_op){.kind = OP_PROTECT, .path = hooks};
    assert_int_equal(plan_check(&plan, &err), 0);
}

static void the_deepest_operation_decides(void **state)
{
    (void)state;
    static const struct row row = {"lookup", "d /w/.git/hooks\nf /w/.env",
                                   "files: {allow_write: [/w], deny_read: [/w/.env], protect: [.git/hooks/]}",
                                   .want = ""};
    struct host h;
    struct err err = {0};
    struct plan *plan = NULL;
    _cleanup_policy_ struct policy *p = policy_new();
    assert_int_equal(make(&row, &h, p, &plan, &err), 0);
    assert_int_equal(plan_op_for(plan, "/w/.git/hooks/pre-commit")->kind, OP_PROTECT);
    assert_int_equal(plan_op_for(plan, "/w/.git/index")->kind, OP_BIND_RW); /* a pin decides nothing */
    assert_int_equal(plan_op_for(plan, "/w/.env")->kind, OP_MASK);
    assert_null(plan_op_for(plan, "/wx"));
    plan_free(plan);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(binds_come_parents_first_and_where_links_lead),
        cmocka_unit_test(what_cannot_be_done_is_refused),
        cmocka_unit_test(masks_hide_and_their_exceptions_show),
        cmocka_unit_test(host_sockets_are_hidden_wherever_they_are_shown),
        cmocka_unit_test(protected_names_stay_as_they_are),
        cmocka_unit_test(repositories_are_found_and_pinned),
        cmocka_unit_test(what_root_gives_can_be_reached),
        cmocka_unit_test(a_root_of_its_own_is_layers_and_binds),
        cmocka_unit_test(a_plan_has_an_end),
        cmocka_unit_test(repositories_by_the_hundred_do_not_break_a_plan),
        cmocka_unit_test(a_writable_home_and_hard_links_are_noted),
        cmocka_unit_test(absent_keys_are_kept_absent_in_a_writable_home),
        cmocka_unit_test(the_check_sees_a_missing_pin_and_a_wrong_order),
        cmocka_unit_test(the_deepest_operation_decides),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
