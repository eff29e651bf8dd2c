/* cp-tree.c - hutch cp -r: directories into and out of a sandbox, as archives that its own tar reads and writes. */
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fields.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/num.h"
#include "cli/client/cp.h"
#include "cli/client/exec.h"
#include "cli/client/node.h"
#include "cli/client/template.h"
#include "cli/files/context.h"
#include "cli/files/untar.h"

static int cp_tree_code(int code, const char *what, struct err *err)
{
    if (code <= 0)
        return code;
    return err_set(err, ERR_USAGE, 0, "cp: tar in the sandbox could not %s: it ended with code %d%s", what, code,
                   code == 127 ? " (there is no tar inside)" : "");
}

/* The archive of a directory, at its beginning. An empty directory has an empty archive. */
static int cp_tree_pack(int dir, struct err *err)
{
    struct context c = {.dir = dir}; /* borrowed */
    _cleanup_strv_ struct strv files = {0};
    _cleanup_close_ int fd = template_temp(err);
    if (fd < 0)
        return -1;
    if (context_files(&c, ".", &files, err) < 0 && !(files.n == 0 && strstr(err->msg, "matches no file")))
        return -1;
    if (context_tar(&c, &files, fd, err) < 0)
        return -1;
    if (lseek(fd, 0, SEEK_SET) < 0)
        return err_set(err, ERR_SETUP, errno, "cp: read the archive");
    return TAKE_FD(fd);
}

int cp_tree_upload(const struct api *a, const char *from, const char *to, struct err *err)
{
    /* Into an existing directory, else as a new one: like cp -r. */
    static const char script[] = "d=$1; case $d in */) d=$d$2 ;; *) [ ! -d \"$d\" ] || d=$d/$2 ;; esac; "
                                 "mkdir -p -- \"$d\" && exec tar -xof - -C \"$d\"";
    _cleanup_free_ char *whole = realpath(from, NULL);
    _cleanup_close_ int dir = whole ? open(whole, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
    if (dir < 0)
        return err_set(err, ERR_USAGE, errno, "cp: open the directory %s", from);
    _cleanup_close_ int archive = cp_tree_pack(dir, err);
    if (archive < 0)
        return -1;
    if (dup2(archive, STDIN_FILENO) < 0)
        return err_set(err, ERR_SETUP, errno, "cp: pass the archive on");
    char *const command[] = {(char *)"/bin/sh", (char *)"-c", (char *)script, (char *)"sh", (char *)(*to ? to : "."),
                             basename(whole),   NULL};
    const struct exec_request q = {.command = command, .input = true};
    return cp_tree_code(exec_in_sandbox(a, &q, err), "unpack the directory", err);
}

static int cp_tree_on_output(void *arg, const void *p, size_t n, struct err *err) { return untar_feed(arg, p, n, err); }

/* Where the copy goes: into an existing directory, else a new one of that name. */
static int cp_tree_open_target(const char *from, const char *to, struct err *err)
{
    struct stat st;
    _cleanup_free_ char *copy = xstrdup(from);
    char *last = basename(copy);
    bool into = stat(to, &st) == 0 && S_ISDIR(st.st_mode) && strcmp(last, ".") != 0 && strcmp(last, "/") != 0;
    _cleanup_free_ char *path = into ? xasprintf("%s/%s", to, last) : xstrdup(to);
    if (strcmp(last, "..") == 0)
        return err_set(err, ERR_USAGE, 0, "cp: name the directory; %s does not", from);
    if (mkdir(path, 0777) < 0 && errno != EEXIST)
        return err_set(err, ERR_USAGE, errno, "cp: make %s", path);
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    return fd < 0 ? err_set(err, ERR_USAGE, errno, "cp: open %s", path) : fd;
}

int cp_tree_download(const struct api *a, const char *from, const char *to, struct err *err)
{
    static const char script[] = "cd -- \"$1\" && exec tar -cf - .";
    struct untar u;
    from = *from ? from : ".";
    _cleanup_close_ int dir = cp_tree_open_target(from, to, err);
    if (dir < 0)
        return -1;
    char *const command[] = {(char *)"/bin/sh", (char *)"-c", (char *)script, (char *)"sh", (char *)from, NULL};
    const struct exec_request q = {.command = command, .output = cp_tree_on_output, .arg = &u};
    untar_start(&u, dir);
    int r = cp_tree_code(exec_in_sandbox(a, &q, err), "read the directory", err);
    if (r == 0)
        r = untar_end(&u, err);
    if (u.left_out)
        (void)fprintf(stderr, "hutch: %llu devices, pipes or sockets were left out\n", (unsigned long long)u.left_out);
    if (r == 0 && isatty(STDERR_FILENO)) {
        _cleanup_buf_ struct buf size = {0};
        num_add_size(&size, u.bytes);
        (void)fprintf(stderr, "%llu files, %s\n", (unsigned long long)u.files, buf_str(&size));
    }
    untar_done(&u);
    return r;
}

int cp_tree_is_directory(const struct api *a, const char *path, bool *ret, struct err *err)
{
    _cleanup_buf_ struct buf body = {0};
    _cleanup_json_ json_t *answer = NULL;
    struct json j;
    json_start(&j, &body);
    json_obj(&j, NULL);
    json_str(&j, "path", *path ? path : ".");
    json_end_obj(&j);
    if (api_rpc(a, "filesystem.Filesystem/Stat", buf_str(&body), &answer, err) < 0)
        return -1;
    *ret = strcmp(field_text(json_object_get(answer, "entry"), "type"), "FILE_TYPE_DIRECTORY") == 0;
    return 0;
}
