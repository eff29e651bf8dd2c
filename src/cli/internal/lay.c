/* lay.c - `hutch lay`, run by a build inside a sandbox: one COPY. With --pack SRC it writes the files that COPY --from names
 * as a lay stream (lay-pack.c). Else it reads a lay stream (files with paths relative to the context) and puts them at the
 * destination as an ordinary program would: links in the destination are followed.
 *
 * A source that is a directory means what is in it. With a pattern, that is the directory before its first special
 * character, and what lies below that one keeps its place below the destination. A destination that ends with a slash,
 * is a directory, or gets several things is a directory; else it is the name of the one file. Directories are merged:
 * those that are there keep their owner and mode. Files and links are replaced; a directory is never replaced by a
 * file, nor a file by a directory.
 */
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "base/mem.h"
#include "base/num.h"
#include "base/path.h"
#include "cli/cli.h"
#include "cli/internal/lay.h"
#include "init/users.h"
#include "trees/tree.h"
#include "trees/walk.h"

static const struct option options[] = {
    {"src", required_argument, NULL, 's'},
    {"dest", required_argument, NULL, 'd'},
    {"owner", required_argument, NULL, 'o'},
    {"mode", required_argument, NULL, 'm'},
    {"workdir", required_argument, NULL, 'w'},
    {"pack", required_argument, NULL, 'p'},
    {NULL, 0, NULL, 0},
};

struct laying {
    const char *src, *dest, *workdir, *pack;
    uid_t uid;
    gid_t gid;
    bool set_mode;
    mode_t mode;
};

/* "name:password:gid:members" of the sandbox's own /etc/group. */
static bool find_group(const char *name, gid_t *ret)
{
    struct users_file f = users_read("/etc/group");
    size_t len = strlen(name);
    for (const char *p = f.p, *end = f.p ? f.p + f.n : NULL; p && p < end;) {
        const char *nl = memchr(p, '\n', (size_t)(end - p));
        size_t n = nl ? (size_t)(nl - p) : (size_t)(end - p);
        _cleanup_free_ char *line = xstrndup(p, n);
        char *password = strncmp(line, name, len) == 0 && line[len] == ':' ? strchr(line + len + 1, ':') : NULL;
        int id;
        if (password) {
            password[1 + strcspn(password + 1, ":")] = '\0';
            if (num_int(password + 1, 0, LAY_ID_MAX, &id)) {
                *ret = (gid_t)id;
                return true;
            }
        }
        p += n + 1;
    }
    return false;
}

static int lay_take_owner(struct laying *l, const char *text, struct err *err)
{
    static struct user known; /* large */
    _cleanup_free_ char *user = xstrdup(text);
    char *group = strchr(user, ':');
    int id;
    if (group)
        *group++ = '\0';
    const char *name = group && *group ? group : user; /* "u" is "u:u" */
    bool found = users_find(user, &known);
    if (found)
        l->uid = known.uid;
    else if (num_int(user, 0, LAY_ID_MAX, &id))
        l->uid = (uid_t)id;
    else
        return err_set(err, ERR_USAGE, 0, "owner %s: there is no user %s in /etc/passwd", text, user);
    if (find_group(name, &l->gid))
        return 0;
    if (num_int(name, 0, LAY_ID_MAX, &id))
        l->gid = (gid_t)id;
    else if (found && name == user)
        l->gid = known.gid;
    else
        return err_set(err, ERR_USAGE, 0, "owner %s: there is no group %s in /etc/group", text, name);
    return 0;
}

static int take_mode(struct laying *l, const char *text, struct err *err)
{
    size_t n = strlen(text);
    unsigned v = 0;
    for (size_t i = 0; i < n && i < 6 && text[i] >= '0' && text[i] <= '7'; i++)
        v = v * 8 + (unsigned)(text[i] - '0');
    if (n == 0 || n > 6 || strspn(text, "01234567") != n || v > 07777)
        return err_set(err, ERR_USAGE, 0, "mode %s is not an octal number up to 7777", text);
    l->mode = (mode_t)v;
    l->set_mode = true;
    return 0;
}

static int take_options(int argc, char **argv, struct laying *l, struct err *err)
{
    const char *owner = NULL, *mode = NULL;
    int opt;
    opterr = 0;
    optind = 1;
    while ((opt = getopt_long(argc, argv, "", options, NULL)) != -1)
        switch (opt) {
        case 's':
            l->src = optarg;
            break;
        case 'd':
            l->dest = optarg;
            break;
        case 'o':
            owner = optarg;
            break;
        case 'm':
            mode = optarg;
            break;
        case 'w':
            l->workdir = optarg;
            break;
        case 'p':
            l->pack = optarg;
            break;
        default:
            return err_set(err, ERR_USAGE, 0, "%s is not an option, or lacks its value", argv[optind - 1]);
        }
    if (l->pack && optind == argc)
        return 0;
    if (optind < argc || !l->src || !l->dest || !l->dest[0] || l->workdir[0] != '/')
        return err_set(
            err, ERR_USAGE, 0,
            "usage: hutch lay --src PATTERN --dest PATH [--owner USER[:GROUP]] [--mode OCTAL] [--workdir DIR]");
    if (owner && owner[0] && lay_take_owner(l, owner, err) < 0)
        return -1;
    return mode && mode[0] ? take_mode(l, mode, err) : 0;
}

static int lay_fail(const char *path, int eno, const char *what, struct err *err)
{
    return walk_fail(err, ERR_SETUP, eno, path, "%s", what);
}

/* Sets owner and mode of everything unpacked, before any of it is moved to its place. */
static int lay_set_owner(const struct laying *l, int dir, const char *name, struct err *err)
{
    struct stat st;
    if (fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) < 0 ||
        fchownat(dir, name, l->uid, l->gid, AT_SYMLINK_NOFOLLOW) < 0)
        return lay_fail(name, errno, "its owner cannot be set", err);
    if (S_ISDIR(st.st_mode)) {
        _cleanup_names_ struct walk_names names = {0};
        _cleanup_close_ int fd = walk_open_dir(dir, name);
        if (fd < 0)
            return lay_fail(name, errno, "cannot be opened", err);
        if (walk_names_read(fd, name, &names, err) < 0)
            return -1;
        for (size_t i = 0; i < names.n; i++)
            if (lay_set_owner(l, fd, names.v[i], err) < 0)
                return -1;
    }
    mode_t mode = l->set_mode ? l->mode : st.st_mode & 07777; /* again: fchown() cleared set-id bits */
    if (!S_ISLNK(st.st_mode) && fchmodat(dir, name, mode, 0) < 0)
        return lay_fail(name, errno, "its mode cannot be set", err);
    return 0;
}

/* Like mkdir -p; new directories get the owner. */
static int make_dirs(const struct laying *l, const char *path, struct err *err)
{
    _cleanup_free_ char *part = xstrdup(path);
    size_t n = 1;
    char kept;
    do {
        struct stat st;
        n += strcspn(part + n, "/");
        kept = part[n];
        part[n] = '\0';
        if (mkdir(part, 0755) == 0) {
            if (chown(part, l->uid, l->gid) < 0)
                return lay_fail(part, errno, "its owner cannot be set", err);
        } else if (stat(part, &st) < 0) {
            return lay_fail(part, errno, "cannot be made", err);
        } else if (!S_ISDIR(st.st_mode)) {
            return walk_fail(err, ERR_USAGE, 0, part, "is not a directory, and '%s' lies in it", path);
        }
        part[n++] = kept;
    } while (kept);
    return 0;
}

static int lay_place_entry(int from, const char *name, int to, const char *as, const char *path, struct err *err);

/* Moves all entries of one directory into another that exists. */
static int lay_merge_dir(int from, int to, const char *path, struct err *err)
{
    _cleanup_names_ struct walk_names names = {0};
    if (walk_names_read(from, path, &names, err) < 0)
        return -1;
    for (size_t i = 0; i < names.n; i++) {
        _cleanup_free_ char *below = path_join(path, names.v[i]);
        if (lay_place_entry(from, names.v[i], to, names.v[i], below, err) < 0)
            return -1;
    }
    return 0;
}

static int copy_bytes(int in, int out)
{
    char buf[32 << 10];
    ssize_t n;
    while ((n = read(in, buf, sizeof buf)) > 0)
        if (fd_write_all(out, buf, (size_t)n) < 0)
            return -1;
    return n < 0 ? -1 : 0;
}

/* Copies to another file system. The caller has removed the old entry. */
static int lay_copy_entry(int from, const char *name, int to, const char *as, const struct stat *st, const char *path,
                          struct err *err)
{
    struct timespec times[2] = {st->st_atim, st->st_mtim};
    char target[LAY_PATH_MAX];
    if (S_ISREG(st->st_mode)) {
        _cleanup_close_ int in = walk_open_file(from, name);
        _cleanup_close_ int out = openat(to, as, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
        if (in < 0 || out < 0 || copy_bytes(in, out) < 0)
            return lay_fail(path, errno, "cannot be copied", err);
    } else if (S_ISLNK(st->st_mode)) {
        ssize_t n = readlinkat(from, name, target, sizeof target - 1);
        target[n > 0 ? n : 0] = '\0';
        if (symlinkat(target, to, as) < 0)
            return lay_fail(path, errno, "cannot be made", err);
    } else if (S_ISDIR(st->st_mode)) {
        if (mkdirat(to, as, 0700) < 0)
            return lay_fail(path, errno, "cannot be made", err);
        _cleanup_close_ int in = walk_open_dir(from, name), out = walk_open_dir(to, as);
        if (in < 0 || out < 0)
            return lay_fail(path, errno, "cannot be opened", err);
        if (lay_merge_dir(in, out, path, err) < 0)
            return -1;
    } else if (mknodat(to, as, S_IFIFO | 0600, 0) < 0) {
        return lay_fail(path, errno, "cannot be made", err);
    }
    if (fchownat(to, as, st->st_uid, st->st_gid, AT_SYMLINK_NOFOLLOW) < 0 ||
        (!S_ISLNK(st->st_mode) && fchmodat(to, as, st->st_mode & 07777, 0) < 0) ||
        utimensat(to, as, times, AT_SYMLINK_NOFOLLOW) < 0)
        return lay_fail(path, errno, "its owner, mode or time cannot be set", err);
    return 0;
}

/* Moves one entry to `to` under the name `as`. */
static int lay_place_entry(int from, const char *name, int to, const char *as, const char *path, struct err *err)
{
    struct stat st, there, behind;
    if (fstatat(from, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
        return lay_fail(path, errno, "cannot be looked at", err);
    bool is = fstatat(to, as, &there, AT_SYMLINK_NOFOLLOW) == 0;
    bool dir = is && fstatat(to, as, &behind, 0) == 0 && S_ISDIR(behind.st_mode); /* a directory, or a link to one */
    if (S_ISDIR(st.st_mode) && dir) {
        _cleanup_close_ int in = walk_open_dir(from, name);
        _cleanup_close_ int out = openat(to, as, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        return in < 0 || out < 0 ? lay_fail(path, errno, "cannot be opened", err) : lay_merge_dir(in, out, path, err);
    }
    if (is && S_ISDIR(st.st_mode))
        return walk_fail(err, ERR_USAGE, 0, path, "is a directory to be copied, and a file is there");
    if (is && S_ISDIR(there.st_mode))
        return walk_fail(err, ERR_USAGE, 0, path, "is a file to be copied, and a directory is there");
    if (renameat(from, name, to, as) == 0)
        return 0;
    if (errno != EXDEV)
        return lay_fail(path, errno, "cannot be moved to its place", err);
    if (is && unlinkat(to, as, 0) < 0)
        return lay_fail(path, errno, "cannot be replaced", err);
    return lay_copy_entry(from, name, to, as, &st, path, err);
}

/* The source up to its first pattern character: the directory whose content is copied, or the one entry. */
static char *plain_source(const char *src, bool *pattern)
{
    size_t n = strcspn(src, "*?[{");
    *pattern = src[n] != '\0';
    while (*pattern && n > 0 && src[n - 1] != '/')
        n--;
    _cleanup_free_ char *start = xstrndup(src, n);
    return path_clean("/", start); /* ".." stops at the root of the context */
}

static bool names_directory(const char *dest)
{
    size_t n = strlen(dest);
    return dest[n - 1] == '/' || strcmp(dest, ".") == 0 || strcmp(dest, "..") == 0 ||
           (n > 1 && strcmp(dest + n - 2, "/.") == 0) || (n > 2 && strcmp(dest + n - 3, "/..") == 0);
}

static int into_directory(const struct laying *l, int from, const char *name, const char *dest, struct err *err)
{
    if (make_dirs(l, dest, err) < 0)
        return -1;
    _cleanup_close_ int to = open(dest, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (to < 0)
        return lay_fail(dest, errno, "cannot be opened", err);
    if (!name)
        return lay_merge_dir(from, to, dest, err);
    _cleanup_free_ char *path = path_join(dest, name);
    return lay_place_entry(from, name, to, name, path, err);
}

static int one_file(const struct laying *l, int from, const char *name, const char *dest, struct err *err)
{
    struct stat st;
    if (names_directory(l->dest) || (stat(dest, &st) == 0 && S_ISDIR(st.st_mode)))
        return into_directory(l, from, name, dest, err);
    _cleanup_free_ char *parent = path_parent(dest);
    if (make_dirs(l, parent, err) < 0)
        return -1;
    _cleanup_close_ int to = open(parent, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    return to < 0 ? lay_fail(parent, errno, "cannot be opened", err)
                  : lay_place_entry(from, name, to, path_name(dest), dest, err);
}

/* Moves everything unpacked below `root` to the destination. */
static int lay_place_all(const struct laying *l, int root, struct err *err)
{
    bool pattern = false;
    struct stat st;
    _cleanup_names_ struct walk_names names = {0};
    _cleanup_free_ char *source = plain_source(l->src, &pattern), *dest = path_clean(l->workdir, l->dest);
    const char *in = source[1] ? source + 1 : ".";
    if (fstatat(root, in, &st, AT_SYMLINK_NOFOLLOW) < 0)
        return walk_fail(err, ERR_USAGE, 0, l->src, "is not among the files that were sent");
    if (!S_ISDIR(st.st_mode)) {
        _cleanup_free_ char *up = path_parent(source);
        _cleanup_close_ int from = openat(root, up[1] ? up + 1 : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        return from < 0 ? lay_fail(l->src, errno, "cannot be opened", err)
                        : one_file(l, from, path_name(source), dest, err);
    }
    _cleanup_close_ int from = walk_open_dir(root, in);
    if (from < 0)
        return lay_fail(l->src, errno, "cannot be opened", err);
    if (!pattern)
        return into_directory(l, from, NULL, dest, err);
    if (walk_names_read(from, in, &names, err) < 0)
        return -1;
    if (names.n == 0)
        return walk_fail(err, ERR_USAGE, 0, l->src, "matches none of the files that were sent");
    if (names.n == 1 && fstatat(from, names.v[0], &st, AT_SYMLINK_NOFOLLOW) == 0 && !S_ISDIR(st.st_mode))
        return one_file(l, from, names.v[0], dest, err);
    return into_directory(l, from, NULL, dest, err);
}

static int lay_copy(const struct laying *l, struct err *err)
{
    char temporary[] = "/.hutch-copy.XXXXXX";
    if (!mkdtemp(temporary))
        return err_set(err, ERR_SETUP, errno, "cannot make a temporary directory in /");
    int r = -1;
    _cleanup_close_ int top = open(temporary, O_RDONLY | O_DIRECTORY | O_CLOEXEC), root = -1;
    if (top < 0 || mkdirat(top, "root", 0755) < 0 || (root = walk_open_dir(top, "root")) < 0)
        (void)err_set(err, ERR_SETUP, errno, "cannot use the temporary directory %s", temporary);
    else if (lay_read(STDIN_FILENO, root, LAY_PLAIN | LAY_NO_CHOWN, NULL, NULL, NULL, NULL, err) == 0 &&
             lay_set_owner(l, top, "root", err) == 0)
        r = lay_place_all(l, root, err);
    struct err left = {0};
    if (tree_remove(AT_FDCWD, temporary, &left) < 0 && r == 0) {
        *err = left;
        return -1;
    }
    return r;
}

int cmd_lay(int argc, char **argv)
{
    struct err err = {0};
    struct laying l = {.workdir = "/", .uid = geteuid(), .gid = getegid()};
    (void)umask(022);
    if (take_options(argc, argv, &l, &err) < 0 || (l.pack ? lay_pack(l.pack, 1, &err) : lay_copy(&l, &err)) < 0) {
        (void)err_wrap(&err, "copy");
        return cli_fail(&err);
    }
    return 0;
}
