/* roots.c - opens the directories that make a sandbox's root: a template's, or the layers of a stack and its base. */
#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "keeper/keeper-int.h"
#include "os/mount.h"

#define TOOLS   "tools" /* in the database: directories to be the lowest layer, each with our program as /.hutch/hutch */
#define UNREADY ".new"

enum { HASH_BYTES = 8, FD_PATH = 32, CHUNK = 1 << 16 };

_Static_assert((int)WALL_SANDBOX_LAYERS_MAX >= (int)STACK_LAYERS_MAX + 2, "a stack, its base and our tools");

static int open_template(const struct keeper *k, const char *name, int *ret, struct err *err)
{
    char path[KEEPER_TEMPLATE_MAX + 8];
    struct open_how how = {.flags = O_PATH | O_DIRECTORY | O_CLOEXEC,
                           .resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS};
    (void)snprintf(path, sizeof path, "%s/root", name);
    *ret = (int)syscall(SYS_openat2, k->common->world.templates, path, &how, sizeof how);
    if (*ret < 0)
        return err_set(err, ERR_POLICY, errno == ENOENT ? 0 : errno, "there is no template %s", name);
    return 0;
}

static int open_stack(const struct keeper *k, const char *id, struct root *r, struct err *err)
{
    struct stack_file f;
    size_t n = WALL_SANDBOX_LAYERS_MAX;
    if (stack_read(&k->common->layers, id, &f, err) < 0)
        return err->eno == ENOENT ? err_set(err, ERR_POLICY, 0, "there is no template %s", id) : -1;
    if (stack_open(&k->common->layers, &f, r->layer, &n, err) < 0)
        return err_wrap(err, "template %s", id);
    r->n = n;
    r->fixed = f.base[0] == '\0';
    return 0;
}

/* --- our own tools ------------------------------------------------------------------------------------------------ */

static int hash_self(int self, char ret[2 * HASH_BYTES + 1], struct err *err)
{
    static unsigned char chunk[CHUNK];
    struct sha256 h;
    uint8_t sum[SHA256_BYTES];
    ssize_t n;
    sha256_start(&h);
    for (off_t at = 0; (n = pread(self, chunk, sizeof chunk, at)) > 0; at += n)
        sha256_add(&h, chunk, (size_t)n);
    if (n < 0)
        return err_set(err, ERR_SETUP, errno, "read keeper's own program");
    sha256_end(&h, sum);
    for (unsigned i = 0; i < HASH_BYTES; i++)
        (void)snprintf(ret + (size_t)2 * i, 3, "%02x", sum[i]);
    return 0;
}

static int copy_self(int self, int to)
{
    struct stat st;
    _cleanup_close_ int fd = openat(to, "hutch", O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0555);
    if (fd < 0 || fstat(self, &st) < 0)
        return -1;
    off_t at = 0;
    while (at < st.st_size)
        if (sendfile(fd, self, &at, (size_t)(st.st_size - at)) <= 0)
            return -1;
    return fchmod(fd, 0555);
}

/* In an otherwise empty root these files are the only source of user names. */
static int write_accounts(int dir)
{
    static const struct {
        const char *name, *text;
    } files[] = {{UNREADY "/etc/passwd", "root:x:0:0:root:/:/bin/sh\n"}, {UNREADY "/etc/group", "root:x:0:\n"}};
    if (mkdirat(dir, UNREADY "/etc", 0755) < 0)
        return -1;
    for (size_t i = 0; i < ARRAY_LEN(files); i++) {
        _cleanup_close_ int fd = openat(dir, files[i].name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
        if (fd < 0 || fd_write_all(fd, files[i].text, strlen(files[i].text)) < 0 || fchmod(fd, 0644) < 0)
            return -1;
    }
    return 0;
}

/* The directory's name is the hash of its contents: an existing one is never changed. */
static int make_tools(int self, const char *name, struct err *err)
{
    static const char dir_path[] = LAYERS_DIR "/" TOOLS;
    if (mkdirat(KEEPER_FD_STATE, dir_path, 0755) < 0 && errno != EEXIST)
        return err_set(err, ERR_SETUP, errno, "make the directory " TOOLS " of the store");
    _cleanup_close_ int dir = openat(KEEPER_FD_STATE, dir_path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (dir >= 0 && faccessat(dir, name, F_OK, AT_SYMLINK_NOFOLLOW) == 0)
        return 0;
    if (dir >= 0)
        keeper_remove_tree(dir, UNREADY);
    _cleanup_close_ int to = dir < 0 || mkdirat(dir, UNREADY, 0755) < 0 || mkdirat(dir, UNREADY "/.hutch", 0755) < 0
                                 ? -1
                                 : openat(dir, UNREADY "/.hutch", O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (to < 0 || copy_self(self, to) < 0 || write_accounts(dir) < 0 || renameat(dir, UNREADY, dir, name) < 0)
        return err_set(err, ERR_SETUP, errno, "put our own program into the store");
    return 0;
}

static int open_tools(const struct keeper *k, int *ret, struct err *err)
{
    static char name[2 * HASH_BYTES + 1]; /* of the program that runs: it does not change */
    char path[sizeof LAYERS_DIR + sizeof TOOLS + sizeof name];
    if (!name[0]) {
        char hash[sizeof name];
        _cleanup_close_ int self = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
        if (self < 0)
            return err_set(err, ERR_SETUP, errno, "open keeper's own program");
        if (hash_self(self, hash, err) < 0 || make_tools(self, hash, err) < 0)
            return -1;
        memcpy(name, hash, sizeof name);
    }
    (void)snprintf(path, sizeof path, "%s/%s/%s", LAYERS_DIR, TOOLS, name);
    *ret = openat(k->common->world.root, path, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (*ret >= 0)
        return 0;
    name[0] = '\0'; /* it was removed: the next create makes it again */
    return err_set(err, ERR_SETUP, errno, "open our own tools in the store");
}

void root_sweep_tools(void)
{
    _cleanup_close_ int dir = openat(KEEPER_FD_STATE, LAYERS_DIR, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (dir >= 0)
        keeper_remove_tree(dir, TOOLS);
}

/* --- all together ------------------------------------------------------------------------------------------------- */

int root_open(const struct keeper *k, const char *template, bool tools, struct root *ret, struct err *err)
{
    ret->n = 0;
    if (strcmp(template, "host") == 0)
        return tools ? err_set(err, ERR_USAGE, 0, "flags: the host template has no tools for builds") : 0;
    if (tools && strcmp(template, STACK_EMPTY) == 0) {
        ret->fixed = true;
    } else if (strncmp(template, "st-", 3) == 0) {
        if (!stack_id_valid(template))
            return err_set(err, ERR_POLICY, 0, "there is no template %s", template);
        if (open_stack(k, template, ret, err) < 0)
            return -1;
    } else {
        if (open_template(k, template, &ret->layer[0], err) < 0)
            return -1;
        ret->n = 1;
    }
    if (tools && open_tools(k, &ret->layer[ret->n], err) < 0)
        return -1;
    ret->n += tools;
    return 0;
}

void root_close(struct root *r)
{
    while (r->n > 0)
        (void)close(r->layer[--r->n]);
}

int root_merged(const struct keeper *k, const struct root *r, struct err *err)
{
    char paths[WALL_SANDBOX_LAYERS_MAX][FD_PATH];
    const char *lower[WALL_SANDBOX_LAYERS_MAX];
    if (r->n == 1) {
        int fd = fcntl(r->layer[0], F_DUPFD_CLOEXEC, 3);
        return fd < 0 ? err_set(err, ERR_SETUP, errno, "keep a descriptor") : fd;
    }
    for (size_t i = 0; i < r->n; i++) {
        (void)snprintf(paths[i], FD_PATH, "/proc/self/fd/%d", r->layer[i]);
        lower[i] = paths[i];
    }
    int fd = mount_new_overlay(lower, r->n, NULL, NULL, k->common->world.rootless, MOUNT_NOSUID | MOUNT_NODEV);
    return fd < 0 ? err_set(err, ERR_SETUP, errno, "set-up failed at mounts: look at the layers of the root") : fd;
}
