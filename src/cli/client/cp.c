/* cp.c - hutch cp: a file into or out of a sandbox, or from standard input and to standard output. */
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "base/mem.h"
#include "base/num.h"
#include "cli/client/commands.h"
#include "cli/client/cp.h"
#include "cli/client/node.h"
#include "cli/client/progress.h"
#include "http/url.h"

/* Splits "ID:PATH" at the first colon, if what precedes it can be an id or a name. */
static bool cp_parse_remote(const char *arg, char id[64], const char **path)
{
    size_t n = strspn(arg, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-");
    if (arg[n] != ':' || n == 0 || n >= 64)
        return false;
    (void)snprintf(id, 64, "%.*s", (int)n, arg);
    *path = arg + n + 1;
    return true;
}

static void files_path(struct buf *out, const struct api *a, const char *path)
{
    buf_adds(out, "/files?path=");
    url_encode(out, path, strlen(path), "/");
    if (a->user[0]) {
        buf_adds(out, "&username=");
        url_encode(out, a->user, strlen(a->user), "");
    }
}

static int cp_upload(const struct api *a, const char *from, const char *to, struct err *err)
{
    struct stat st;
    bool is_stdin = strcmp(from, "-") == 0;
    _cleanup_close_ int opened = is_stdin ? -1 : open(from, O_RDONLY | O_CLOEXEC);
    int fd = is_stdin ? STDIN_FILENO : opened;
    if (fd < 0 || fstat(fd, &st) < 0)
        return err_set(err, ERR_USAGE, errno, "cp: open %s", from);
    if (S_ISDIR(st.st_mode))
        return err_set(err, ERR_USAGE, 0, "cp: %s is a directory; hutch cp -r copies it", from);
    _cleanup_buf_ struct buf path = {0}, target = {0};
    _cleanup_free_ char *copy = xstrdup(from);
    buf_adds(&target, to);
    if (target.n == 0 || target.p[target.n - 1] == '/')
        buf_adds(&target, is_stdin ? "stdin" : basename(copy));
    files_path(&path, a, buf_str(&target));
    struct api_request q = {.method = "POST",
                            .path = buf_str(&path),
                            .type = "application/octet-stream",
                            .body_fd = fd,
                            .progress = progress_bytes,
                            .progress_what = is_stdin ? "standard input" : from};
    q.length = S_ISREG(st.st_mode) ? (uint64_t)st.st_size : HTTP_UNKNOWN;
    struct blocking s;
    if (api_send(a, &q, &s, err) < 0)
        return -1;
    int r = s.answer.status == 200 ? 0 : api_refused(&s, err);
    blocking_close(&s);
    return r;
}

static int cp_receive(struct blocking *s, int fd, const char *what, struct err *err)
{
    char room[64 * 1024];
    ssize_t n;
    uint64_t done = 0;
    while ((n = api_read(s, room, sizeof room, -1, NULL, err)) > 0) {
        if (fd_write_all(fd, room, (size_t)n) < 0)
            return err_set(err, ERR_USAGE, errno, "cp: write %s", what);
        done += (uint64_t)n;
        progress_bytes(what, done, s->answer.length, false);
    }
    if (n == 0)
        progress_bytes(what, done, s->answer.length, true);
    return n < 0 ? -1 : 0;
}

/* Where a download goes: into the existing file, or into a temporary file beside it until it is complete. */
struct cp_target {
    struct buf name, part; /* part "": the existing file is written to directly */
    struct stat st;        /* of the file that is replaced */
    bool replaces;
    int fd;
};

static bool cp_has_acl(const char *path) { return getxattr(path, "system.posix_acl_access", NULL, 0) >= 0; }

/* Devices, pipes, links, files with hard links or an access list are written to in place, as cp(1) does: replacing them would
 * lose these. So is a file in a directory that cannot be written. */
static int cp_open_target(struct cp_target *t, struct err *err)
{
    const char *name = buf_str(&t->name);
    bool there = lstat(name, &t->st) == 0;
    bool plain = there && S_ISREG(t->st.st_mode);
    if (plain) { /* do not replace a file that the caller may not write */
        _cleanup_close_ int probe = open(name, O_WRONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
        if (probe < 0)
            return err_set(err, ERR_USAGE, errno, "cp: open %s for writing", name);
    }
    t->replaces = plain && t->st.st_nlink == 1 && !cp_has_acl(name);
    t->fd = -1;
    if (!there || t->replaces) {
        buf_addf(&t->part, "%s.part-%d", name, (int)getpid());
        t->fd = open(buf_str(&t->part), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, t->replaces ? 0600 : 0666);
        if (t->fd < 0 && !(t->replaces && (errno == EACCES || errno == EPERM || errno == EROFS)))
            return err_set(err, ERR_USAGE, errno, "cp: create %s", buf_str(&t->part));
    }
    if (t->fd < 0) {
        buf_done(&t->part);
        t->fd = open(name, O_WRONLY | O_CREAT | O_TRUNC | O_NOCTTY | O_CLOEXEC, 0666);
    }
    return t->fd < 0 ? err_set(err, ERR_USAGE, errno, "cp: open %s for writing", name) : 0;
}

/* Renames the complete file into place, with owner and mode of the old one; without set-id bits if the owner cannot be set. */
static int cp_finish_target(struct cp_target *t, struct err *err)
{
    const char *name = buf_str(&t->name);
    if (t->replaces && t->part.n) {
        mode_t mode = fchown(t->fd, t->st.st_uid, t->st.st_gid) == 0 ? 07777 : 0777;
        if (fchmod(t->fd, t->st.st_mode & mode) < 0)
            return err_set(err, ERR_USAGE, errno, "cp: set the mode of %s", buf_str(&t->part));
    }
    if (close(TAKE_FD(t->fd)) < 0)
        return err_set(err, ERR_USAGE, errno, "cp: write %s", name);
    if (t->part.n && rename(buf_str(&t->part), name) < 0)
        return err_set(err, ERR_USAGE, errno, "cp: rename to %s", name);
    return 0;
}

static int cp_receive_file(struct blocking *s, const char *from, const char *to, struct err *err)
{
    struct stat st;
    struct cp_target t = {.fd = -1};
    _cleanup_free_ char *copy = xstrdup(from);
    buf_adds(&t.name, to);
    if (stat(to, &st) == 0 && S_ISDIR(st.st_mode))
        buf_addf(&t.name, "/%s", basename(copy));
    int r = cp_open_target(&t, err);
    if (r == 0)
        r = cp_receive(s, t.fd, buf_str(&t.name), err);
    if (r == 0)
        r = cp_finish_target(&t, err);
    if (r < 0 && t.part.n)
        (void)unlink(buf_str(&t.part));
    if (t.fd >= 0)
        (void)close(t.fd);
    buf_done(&t.name);
    buf_done(&t.part);
    return r;
}

static int cp_download(const struct api *a, const char *from, const char *to, struct err *err)
{
    struct blocking s;
    int r;
    _cleanup_buf_ struct buf path = {0};
    files_path(&path, a, from);
    const struct api_request q = {.method = "GET", .path = buf_str(&path), .body_fd = -1};
    if (api_send(a, &q, &s, err) < 0)
        return -1;
    if (s.answer.status != 200)
        r = api_refused(&s, err);
    else if (strcmp(to, "-") == 0)
        r = cp_receive(&s, STDOUT_FILENO, "standard output", err);
    else
        r = cp_receive_file(&s, from, to, err);
    blocking_close(&s);
    return r;
}

static int cp_copy(const struct node_call *call, const char *path, bool out, bool tree, struct err *err)
{
    struct stat st;
    if (!out && tree && stat(call->args[0], &st) == 0 && S_ISDIR(st.st_mode))
        return cp_tree_upload(&call->api, call->args[0], path, err);
    if (out && tree) {
        if (cp_tree_is_directory(&call->api, path, &tree, err) < 0)
            return -1;
        if (tree)
            return cp_tree_download(&call->api, path, call->args[1], err);
    }
    return out ? cp_download(&call->api, path, call->args[1], err) : cp_upload(&call->api, call->args[0], path, err);
}

int cmd_cp(int argc, char **argv)
{
    static const char usage[] =
        "usage: hutch cp [-r] FILE ID:PATH\n       hutch cp [-r] ID:PATH FILE\n\n"
        "Copies a file, or with -r a directory, into or out of a sandbox. FILE may be - for standard input or output.\n"
        "A relative PATH starts at the user's home. Missing directories inside are made. An existing file\n"
        "is replaced when the copy is complete, and keeps its mode; devices, pipes and links are written to.\n\n"
        "  -r, --recursive   copy a directory: into an existing one, else as a new one. Owners and set-id bits are "
        "not\n"
        "                    kept, devices and pipes are left out; the sandbox needs tar\n"
        "  -u, --user NAME   write or read the file as this user\n\n"
        "examples:\n"
        "  hutch cp job.py $id:           to the user's home\n"
        "  hutch cp $id:out/result.json .\n"
        "  hutch cp -r src $id:           a directory\n";
    const char *user = NULL, *path;
    bool tree = false;
    const struct node_option options[] = {{"user", 'u', NULL, &user, NULL}, {"recursive", 'r', &tree, NULL, NULL}, {0}};
    const struct node_command c = {"cp", usage, options, 2, 2, false};
    struct node_call call;
    struct err err;
    int code;
    char word[64], id[64];
    if (node_begin(&c, argc, argv, &call, &code))
        return code;
    /* A file of this machine may have a colon in its name, too. */
    bool out = cp_parse_remote(call.args[0], word, &path) &&
               !(access(call.args[0], F_OK) == 0 && cp_parse_remote(call.args[1], word, &path));
    if (!out && !cp_parse_remote(call.args[1], word, &path))
        return err_set(&err, ERR_USAGE, 0, "cp: one side must be ID:PATH; `hutch ls` lists ids and names"),
               cli_fail(&err);
    if (api_find_id(&call.api, word, id, &err) < 0 || api_sandbox(&call.api, id, &err) < 0 ||
        (user && api_user(&call.api, user, &err) < 0))
        return cli_fail(&err);
    return cp_copy(&call, path, out, tree, &err) < 0 ? cli_fail(&err) : 0;
}
