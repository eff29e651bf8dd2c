/* netpol-presets.c - lists of rules with a name: files NAME.yaml, the operator's before those that came with hutch. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "base/mem.h"
#include "policy/net/netpol.h"

/* Where presets are, seen from the directory of the running program: installed as bin/ or libexec/hutch/, or in a build
 * directory of the source tree. */
static const char *const beside[] = {"../share/hutch/presets", "../../share/hutch/presets", "../share/presets",
                                     "../../share/presets"};

static int read_preset(int dirfd, const char *file, struct node **ret, struct err *err)
{
    _cleanup_buf_ struct buf text = {0};
    if (fd_read_file(dirfd, file, NODE_TEXT_MAX, &text) < 0)
        return err_set(err, ERR_POLICY, errno, "cannot read preset %s", file);
    return node_read(buf_str(&text), text.n, file, 0, ret, err);
}

static int read_beside(const char *file, struct node **ret, struct err *err)
{
    char program[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", program, sizeof program - 1);
    if (n <= 0)
        return err_set(err, ERR_POLICY, errno, "cannot look for preset %s beside the program", file);
    program[n] = '\0';
    char *slash = strrchr(program, '/');
    if (slash)
        *slash = '\0';
    for (size_t i = 0; i < ARRAY_LEN(beside); i++) {
        _cleanup_free_ char *path = xasprintf("%s/%s/%s", program, beside[i], file);
        if (access(path, F_OK) == 0)
            return read_preset(AT_FDCWD, path, ret, err);
    }
    return err_set(err, ERR_POLICY, 0, "there is no preset \"%.*s\" in /etc/hutch/presets or among those of hutch",
                   (int)strcspn(file, "."), file);
}

int netpol_preset_file(void *dirfd, const char *name, struct node **ret, struct err *err)
{
    char file[64];
    size_t n = strlen(name);
    if (n == 0 || n > 32 || strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789-") != n)
        return err_set(err, ERR_POLICY, 0, "a preset's name has small letters, digits and -, at most 32");
    (void)snprintf(file, sizeof file, "%s.yaml", name);
    if (dirfd)
        return read_preset(*(const int *)dirfd, file, ret, err);
    _cleanup_free_ char *own = xasprintf("/etc/hutch/presets/%s", file);
    if (access(own, F_OK) == 0)
        return read_preset(AT_FDCWD, own, ret, err);
    return read_beside(file, ret, err);
}
