/* volume-op.c - `hutch volume-op OP PATH ...`, run by front in the hidden sandbox of a volume
 * (volumes/files.c): performs one operation on the volume's tree and answers with one JSON document. A failure is
 * {"error": WORD, "message": TEXT} with exit status 1.
 *
 * Every path is resolved as if the volume were the root: no link, not even an absolute one, leads out of it.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/num.h"
#include "base/path.h"
#include "base/random.h"
#include "base/strv.h"
#include "cli/cli.h"

#define VOLUME      "/volume"
#define UNREADY     ".hutch-upload-"
#define REMOVED     " (deleted)"
#define UNCHANGED   ((uint64_t)-1)
#define FILE_MODE   0644
#define DIR_MODE    0755
#define ENTRIES_MAX 10000

enum {
    DEPTH_MAX = 64,
    CHUNK = 1 << 16,
    LIST_MAX = 15 << 20, /* bytes of a list; front takes 16 MiB */
    FIND_TRIES = 100,
};

struct op {
    int root;         /* of the volume */
    const char *base; /* its path here */
    const char *path; /* clean and absolute, as seen in the volume */
    uint64_t uid, gid, mode, depth;
    bool force;
    struct buf out;
    struct json j;
};

/* --- answers ------------------------------------------------------------------------------------------------------- */

static int op_fail(struct op *o, const char *word, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
static int op_fail(struct op *o, const char *word, const char *fmt, ...)
{
    char text[600];
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    o->out.n = 0;
    json_start(&o->j, &o->out);
    json_obj(&o->j, NULL);
    json_str(&o->j, "error", word);
    json_str(&o->j, "message", text);
    json_end_obj(&o->j);
    return -1;
}

static int op_fail_errno(struct op *o, const char *what)
{
    static const struct {
        int eno;
        const char *word, *text;
    } known[] = {{ENOENT, "not_found", "does not exist"},
                 {ENOTDIR, "not_dir", "is not a directory"},
                 {EISDIR, "is_dir", "is a directory"},
                 {EEXIST, "exists", "exists already"},
                 {ENOTEMPTY, "exists", "is not empty"},
                 {ENOSPC, "no_space", "does not fit: the volume is full"},
                 {EDQUOT, "no_space", "does not fit: the volume's quota is used up"},
                 {ENAMETOOLONG, "invalid", "has a name that is too long"},
                 {ELOOP, "invalid", "leads through too many links"},
                 {EXDEV, "invalid", "leads out of the volume"},
                 {EINVAL, "invalid", "cannot be a path here"},
                 {EILSEQ, "invalid", "cannot be a path here"},
                 {EACCES, "denied", "may not be touched"},
                 {EPERM, "denied", "may not be touched"},
                 {EROFS, "denied", "is on a read-only file system"}};
    int eno = errno;
    for (size_t i = 0; i < ARRAY_LEN(known); i++)
        if (known[i].eno == eno)
            return op_fail(o, known[i].word, "%.400s %s", what, known[i].text);
    return op_fail(o, "io", "%.400s: %s", what, strerror(eno));
}

static void add_time(struct json *j, const char *key, const struct timespec *t)
{
    char text[40] = "1970-01-01T00:00:00";
    struct tm tm;
    if (gmtime_r(&t->tv_sec, &tm))
        (void)strftime(text, sizeof text - 8, "%Y-%m-%dT%H:%M:%S", &tm);
    size_t n = strlen(text);
    (void)snprintf(text + n, sizeof text - n, ".%03ldZ", t->tv_nsec / 1000000);
    json_str(j, key, text);
}

/* fd: O_PATH, of the entry itself and not of a link's target. */
static void add_entry(struct json *j, int fd, const char *path, const struct stat *st)
{
    char target[4096];
    json_obj(j, NULL);
    json_str(j, "name", *path_name(path) ? path_name(path) : "/");
    json_str(j, "type",
             S_ISREG(st->st_mode)   ? "file"
             : S_ISDIR(st->st_mode) ? "directory"
             : S_ISLNK(st->st_mode) ? "symlink"
                                    : "unknown");
    json_str(j, "path", path);
    json_u64(j, "size", (uint64_t)st->st_size);
    json_u64(j, "mode", st->st_mode & 07777);
    json_u64(j, "uid", st->st_uid);
    json_u64(j, "gid", st->st_gid);
    add_time(j, "atime", &st->st_atim);
    add_time(j, "mtime", &st->st_mtim);
    add_time(j, "ctime", &st->st_ctim);
    if (S_ISLNK(st->st_mode)) {
        ssize_t n = readlinkat(fd, "", target, sizeof target - 1);
        target[n > 0 ? n : 0] = '\0';
        json_str(j, "target", target);
    }
    json_end_obj(j);
}

static int answer_entry(struct op *o, int fd, const char *path)
{
    struct stat st;
    if (fstatat(fd, "", &st, AT_EMPTY_PATH) < 0)
        return op_fail_errno(o, path);
    add_entry(&o->j, fd, path, &st);
    return 0;
}

/* --- finding ------------------------------------------------------------------------------------------------------- */

static int open_in(const struct op *o, const char *path, uint64_t flags)
{
    return fd_open_in_root(o->root, path, flags, 0);
}

/* Opens the entry itself; does not follow a link. */
static int open_entry(const struct op *o, const char *path) { return open_in(o, path, O_PATH | O_NOFOLLOW); }

static int open_parent(const struct op *o, const char *path)
{
    _cleanup_free_ char *parent = path_parent(path);
    return open_in(o, parent, O_PATH | O_DIRECTORY);
}

/* The path of a descriptor in the volume; NULL: it lies outside. The kernel adds REMOVED to the path of a removed file. */
static char *real_path(const struct op *o, int fd)
{
    char link[40], at[4096 + 16];
    (void)snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, at, sizeof at - 1);
    if (n <= 0)
        return NULL;
    at[n] = '\0';
    errno = ESTALE;
    if (!path_under(at, o->base))
        return NULL;
    return xstrdup(at[strlen(o->base)] ? at + strlen(o->base) : "/");
}

/* Whether the file is still at the path; a file whose real name ends with REMOVED is told apart by its inode. */
static bool op_path_exists(const struct op *o, const char *path, const struct stat *st)
{
    struct stat there;
    size_t n = strlen(path), end = strlen(REMOVED);
    if (n < end || strcmp(path + n - end, REMOVED) != 0)
        return true;
    _cleanup_close_ int fd = open_entry(o, path);
    return fd >= 0 && fstatat(fd, "", &there, AT_EMPTY_PATH) == 0 && there.st_dev == st->st_dev &&
           there.st_ino == st->st_ino;
}

/* Follows links and finds the file and its real path. If another process keeps replacing the file, any of the versions will
 * do. -1 with errno. */
static int find_file(const struct op *o, struct stat *ret, char **real)
{
    for (int i = 0; i < FIND_TRIES; i++) {
        struct stat st;
        _cleanup_close_ int fd = open_in(o, o->path, O_PATH);
        if (fd < 0 || fstatat(fd, "", &st, AT_EMPTY_PATH) < 0)
            return -1;
        _cleanup_free_ char *path = real_path(o, fd);
        if (!path && errno == ENAMETOOLONG)
            return -1;
        if (path && op_path_exists(o, path, &st)) {
            *ret = st;
            *real = TAKE_PTR(path);
            return 0;
        }
    }
    errno = ESTALE;
    return -1;
}

static int op_stat(struct op *o)
{
    _cleanup_close_ int fd = open_entry(o, o->path);
    return fd < 0 ? op_fail_errno(o, o->path) : answer_entry(o, fd, o->path);
}

/* Answers with the real path of the file, which the caller opens next. */
static int op_open(struct op *o)
{
    struct stat st;
    _cleanup_free_ char *real = NULL;
    if (find_file(o, &st, &real) < 0)
        return op_fail_errno(o, o->path);
    if (S_ISDIR(st.st_mode))
        return op_fail(o, "is_dir", "%.400s is a directory", o->path);
    if (!S_ISREG(st.st_mode))
        return op_fail(o, "invalid", "%.400s is not a regular file", o->path);
    _cleanup_free_ char *here = xasprintf("%s%s", o->base, real);
    json_obj(&o->j, NULL);
    json_str(&o->j, "path", here);
    json_end_obj(&o->j);
    return 0;
}

/* --- listing ------------------------------------------------------------------------------------------------------- */

static int list_into(struct op *o, int dir, const char *path, uint64_t depth, size_t *count);

static int list_one(struct op *o, int dir, const char *path, const char *name, uint64_t depth, size_t *count)
{
    struct stat st;
    _cleanup_close_ int fd = openat(dir, name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0 || fstatat(fd, "", &st, AT_EMPTY_PATH) < 0)
        return errno == ENOENT ? 0 : op_fail_errno(o, name); /* removed meanwhile */
    if (++*count > ENTRIES_MAX)
        return op_fail(o, "limit", "%.400s has more than %d entries; list parts of it", o->path, ENTRIES_MAX);
    _cleanup_free_ char *full = path_join(path, name);
    add_entry(&o->j, fd, full, &st);
    if (o->out.n > LIST_MAX)
        return op_fail(o, "limit", "the paths below %.400s are too long for one list; list parts of it", o->path);
    if (!S_ISDIR(st.st_mode) || depth <= 1)
        return 0;
    _cleanup_close_ int sub = openat(dir, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    return sub < 0 ? 0 : list_into(o, sub, full, depth - 1, count);
}

static int list_into(struct op *o, int dir, const char *path, uint64_t depth, size_t *count)
{
    _cleanup_strv_ struct strv all = {0};
    int copy = openat(dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    _cleanup_closedir_ DIR *d = copy < 0 ? NULL : fdopendir(copy);
    const struct dirent *e;
    if (!d)
        return op_fail_errno(o, path);
    while ((e = readdir(d))) {
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0)
            continue;
        if (*count + all.n >= ENTRIES_MAX)
            return op_fail(o, "limit", "%.400s has more than %d entries; list parts of it", o->path, ENTRIES_MAX);
        strv_add(&all, e->d_name);
    }
    strv_sort(&all);
    for (size_t i = 0; i < all.n; i++)
        if (list_one(o, dir, path, all.v[i], depth, count) < 0)
            return -1;
    return 0;
}

static int op_list(struct op *o)
{
    size_t count = 0;
    _cleanup_close_ int dir = open_in(o, o->path, O_RDONLY | O_DIRECTORY);
    if (dir < 0)
        return op_fail_errno(o, o->path);
    json_arr(&o->j, NULL);
    if (list_into(o, dir, o->path, o->depth, &count) < 0)
        return -1;
    json_end_arr(&o->j);
    return 0;
}

/* --- changing ------------------------------------------------------------------------------------------------------ */

/* Through /proc, because the descriptor is O_PATH; no link can get in between. Owner first: chown clears set-id bits. */
static int set_owner_mode(struct op *o, int fd, const char *path)
{
    char here[40];
    (void)snprintf(here, sizeof here, "/proc/self/fd/%d", fd);
    uid_t uid = o->uid == UNCHANGED ? (uid_t)-1 : (uid_t)o->uid;
    gid_t gid = o->gid == UNCHANGED ? (gid_t)-1 : (gid_t)o->gid;
    if ((uid != (uid_t)-1 || gid != (gid_t)-1) && fchownat(fd, "", uid, gid, AT_EMPTY_PATH) < 0)
        return op_fail_errno(o, path);
    if (o->mode != UNCHANGED && chmod(here, (mode_t)o->mode) < 0)
        return op_fail_errno(o, path);
    return 0;
}

static int op_set(struct op *o)
{
    struct stat st;
    _cleanup_close_ int fd = open_entry(o, o->path);
    if (fd < 0 || fstatat(fd, "", &st, AT_EMPTY_PATH) < 0)
        return op_fail_errno(o, o->path);
    if (S_ISLNK(st.st_mode) && o->mode != UNCHANGED)
        return op_fail(o, "invalid", "%.400s is a link, which has no mode of its own", o->path);
    return set_owner_mode(o, fd, o->path) < 0 ? -1 : answer_entry(o, fd, o->path);
}

/* dir: O_PATH. */
static int sync_dir(int dir)
{
    _cleanup_close_ int fd = openat(dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    return fd < 0 ? -1 : fsync(fd);
}

/* Makes missing parents, from the top down. */
static int make_parents(struct op *o)
{
    for (const char *p = strchr(o->path + 1, '/'); p; p = strchr(p + 1, '/')) {
        _cleanup_free_ char *part = xstrndup(o->path, (size_t)(p - o->path));
        _cleanup_close_ int there = open_in(o, part, O_PATH | O_DIRECTORY);
        if (there >= 0)
            continue;
        _cleanup_close_ int parent = errno == ENOENT ? open_parent(o, part) : -1;
        if (parent < 0 || (mkdirat(parent, path_name(part), DIR_MODE) < 0 && errno != EEXIST) || sync_dir(parent) < 0)
            return op_fail_errno(o, part);
    }
    return 0;
}

static int op_mkdir(struct op *o)
{
    if (strcmp(o->path, "/") == 0)
        return op_fail(o, "exists", "/ exists already");
    if (o->force && make_parents(o) < 0)
        return -1;
    _cleanup_close_ int parent = open_parent(o, o->path);
    if (parent < 0)
        return op_fail_errno(o, o->path);
    const char *name = path_name(o->path);
    bool made = mkdirat(parent, name, DIR_MODE) == 0;
    if (!made && !(errno == EEXIST && o->force))
        return op_fail_errno(o, o->path);
    _cleanup_close_ int fd = openat(parent, name, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return op_fail_errno(o, o->path);
    if (o->mode == UNCHANGED && made)
        o->mode = DIR_MODE;
    return set_owner_mode(o, fd, o->path) < 0 ? -1 : answer_entry(o, fd, o->path);
}

static int op_rm(struct op *o)
{
    if (strcmp(o->path, "/") == 0)
        return op_fail(o, "invalid", "the root of a volume cannot be removed; remove the volume");
    _cleanup_close_ int parent = open_parent(o, o->path);
    if (parent < 0 || volume_remove_tree(parent, path_name(o->path)) < 0)
        return op_fail_errno(o, o->path);
    json_obj(&o->j, NULL);
    json_end_obj(&o->j);
    return 0;
}

/* --- writing ------------------------------------------------------------------------------------------------------- */

static int take_input(struct op *o, int to)
{
    _cleanup_free_ char *chunk = xmalloc(CHUNK);
    for (;;) {
        ssize_t n = read(STDIN_FILENO, chunk, CHUNK);
        if (n == 0)
            return 0;
        if ((n < 0 && errno != EINTR) || (n > 0 && fd_write_all(to, chunk, (size_t)n) < 0))
            return op_fail_errno(o, o->path);
    }
}

/* Follows links and finds what is at the path now. *ret: the real path. 1: it exists; 0: it does not. */
static int look_for(struct op *o, char **ret, struct stat *st)
{
    if (find_file(o, st, ret) < 0) {
        if (errno != ENOENT)
            return op_fail_errno(o, o->path);
        _cleanup_close_ int link = open_entry(o, o->path);
        bool leads_nowhere = link >= 0 && fstatat(link, "", st, AT_EMPTY_PATH) == 0 && S_ISLNK(st->st_mode);
        *st = (struct stat){.st_mode = FILE_MODE};
        *ret = xstrdup(o->path);
        return leads_nowhere ? op_fail(o, "invalid", "%.400s is a link to nothing", o->path) : 0;
    }
    if (S_ISDIR(st->st_mode))
        return op_fail(o, "is_dir", "%.400s is a directory", o->path);
    if (!S_ISREG(st->st_mode))
        return op_fail(o, "invalid", "%.400s is not a regular file", o->path);
    return o->force ? 1 : op_fail(o, "exists", "%.400s exists already", o->path);
}

/* Gives the complete new file its name; until then the old one stays. */
static int give_name(struct op *o, int fd, int parent, const char *name)
{
    char from[40], tmp[sizeof UNREADY + 16];
    (void)snprintf(from, sizeof from, "/proc/self/fd/%d", fd);
    if (linkat(AT_FDCWD, from, parent, name, AT_SYMLINK_FOLLOW) == 0)
        return 0;
    if (errno != EEXIST || !o->force)
        return op_fail_errno(o, o->path);
    memcpy(tmp, UNREADY, sizeof UNREADY);
    random_hex(tmp + strlen(UNREADY), 8);
    if (linkat(AT_FDCWD, from, parent, tmp, AT_SYMLINK_FOLLOW) < 0)
        return op_fail_errno(o, o->path);
    if (renameat(parent, tmp, parent, name) == 0)
        return 0;
    (void)op_fail_errno(o, o->path);
    (void)unlinkat(parent, tmp, 0);
    return -1;
}

static int op_write(struct op *o)
{
    struct stat st = {0};
    _cleanup_free_ char *real = NULL;
    if (strcmp(o->path, "/") == 0)
        return op_fail(o, "is_dir", "/ is a directory");
    if (o->force && make_parents(o) < 0)
        return -1;
    int there = look_for(o, &real, &st);
    if (there < 0)
        return -1;
    _cleanup_close_ int parent = open_parent(o, real);
    _cleanup_close_ int fd = parent < 0 ? -1 : openat(parent, ".", O_WRONLY | O_TMPFILE | O_CLOEXEC, 0600);
    if (fd < 0)
        return op_fail_errno(o, o->path);
    if (take_input(o, fd) < 0)
        return -1;
    /* A replaced file keeps its owner and mode unless the call sets others. */
    o->uid = o->uid == UNCHANGED ? st.st_uid : o->uid;
    o->gid = o->gid == UNCHANGED ? st.st_gid : o->gid;
    o->mode = o->mode == UNCHANGED ? st.st_mode & 07777 : o->mode;
    if (set_owner_mode(o, fd, o->path) < 0)
        return -1;
    if (fsync(fd) < 0)
        return op_fail_errno(o, o->path);
    if (give_name(o, fd, parent, path_name(real)) < 0)
        return -1;
    /* Sync the link count and the directory, too: after the answer the file must survive a power cut. */
    return fsync(fd) < 0 || sync_dir(parent) < 0 ? op_fail_errno(o, o->path) : answer_entry(o, fd, o->path);
}

/* --- the command --------------------------------------------------------------------------------------------------- */

static const struct {
    const char *name;
    int (*run)(struct op *o);
    const char *args; /* after the path: u uid, g gid, m mode, f force, d depth */
} ops[] = {{"stat", op_stat, ""},  {"open", op_open, ""}, {"list", op_list, "d"},     {"mkdir", op_mkdir, "ugmf"},
           {"set", op_set, "ugm"}, {"rm", op_rm, ""},     {"write", op_write, "ugmf"}};

static bool read_arg(struct op *o, char what, const char *text)
{
    uint64_t *to = what == 'u' ? &o->uid : what == 'g' ? &o->gid : what == 'm' ? &o->mode : &o->depth;
    uint64_t max = what == 'm' ? 07777 : what == 'd' ? DEPTH_MAX : UINT16_MAX;
    if (what == 'f') {
        o->force = strcmp(text, "1") == 0;
        return o->force || strcmp(text, "0") == 0;
    }
    if (strcmp(text, "-") == 0)
        return true;
    return num_u64(text, to) && *to <= max;
}

static int op_run(struct op *o, int argc, char **argv)
{
    size_t i = 0;
    while (i < ARRAY_LEN(ops) && (argc < 2 || strcmp(argv[0], ops[i].name) != 0))
        i++;
    if (i == ARRAY_LEN(ops) || (size_t)argc != 2 + strlen(ops[i].args))
        return op_fail(o, "invalid", "no such operation");
    _cleanup_free_ char *path = path_clean("/", argv[1]);
    o->path = path;
    for (size_t k = 0; ops[i].args[k]; k++)
        if (!read_arg(o, ops[i].args[k], argv[2 + k]))
            return op_fail(o, "invalid", "an argument of %s is not valid", ops[i].name);
    o->root = open(o->base, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (o->root < 0)
        return op_fail(o, "io", "the volume is not there: %s", strerror(errno));
    return ops[i].run(o);
}

int cmd_volume_op(int argc, char **argv)
{
    struct op o = {.root = -1, .base = VOLUME, .uid = UNCHANGED, .gid = UNCHANGED, .mode = UNCHANGED, .depth = 1};
    json_start(&o.j, &o.out);
    (void)umask(0);
    argc--, argv++;
    if (argc > 1 && strcmp(argv[0], "--root") == 0) { /* for tests */
        o.base = argv[1];
        argc -= 2, argv += 2;
    }
    int rc = op_run(&o, argc, argv);
    if (o.root >= 0)
        (void)close(o.root);
    buf_addc(&o.out, '\n');
    bool told = fd_write_all(STDOUT_FILENO, o.out.p, o.out.n) == 0;
    buf_done(&o.out);
    return rc < 0 || !told ? 1 : 0;
}
