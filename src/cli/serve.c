/* serve.c - `hutch serve`: hands over to hutch-node, which carries the libraries a daemon needs. */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/mem.h"
#include "cli/cli.h"

int cmd_serve(int argc, char **argv)
{
    static const char *const places[] = {"hutch-node", "../libexec/hutch/hutch-node"};
    struct err err = {0};
    char own[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", own, sizeof own - 1);
    if (n < 0) {
        (void)err_set(&err, ERR_SETUP, errno, "serve: cannot find our own program; is /proc mounted?");
        return cli_fail(&err);
    }
    own[n] = '\0';
    *strrchr(own, '/') = '\0';
    _cleanup_free_ char **args = xcalloc((size_t)argc + 2, sizeof *args);
    char name[] = "hutch-node";
    args[0] = name;
    memcpy(args + 1, argv, (size_t)argc * sizeof *argv);
    for (size_t i = 0; i < ARRAY_LEN(places); i++) {
        _cleanup_free_ char *path = xasprintf("%s/%s", own, places[i]);
        if (access(path, X_OK) != 0)
            continue;
        (void)execv(path, args);
        (void)err_set(&err, ERR_SETUP, errno, "serve: cannot execute %s", path);
        return cli_fail(&err);
    }
    (void)err_set(&err, ERR_SETUP, 0, "serve: hutch-node is neither in %s nor in %s/../libexec/hutch", own, own);
    return cli_fail(&err);
}
