/* find.c - finds the programs that belong to this one: hutch-client, the commands that talk to a node, and hutch-
 * node, the node and the network proxy. Only places relative to our own file are looked at, so that two installations
 * never mix. */
#include <errno.h>
#include <limits.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/mem.h"
#include "cli/cli.h"

int cli_find_program(const char *name, char **ret, struct err *err)
{
    static const char *const places[] = {"", "../libexec/hutch/"};
    char own[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", own, sizeof own - 1);
    if (n < 0)
        return err_set(err, ERR_SETUP, errno, "cannot find our own program; is /proc mounted?");
    own[n] = '\0';
    *strrchr(own, '/') = '\0';
    for (size_t i = 0; i < ARRAY_LEN(places); i++) {
        _cleanup_free_ char *path = xasprintf("%s/%s%s", own, places[i], name);
        if (access(path, X_OK) != 0)
            continue;
        *ret = TAKE_PTR(path);
        return 0;
    }
    return err_set(err, ERR_SETUP, 0,
                   "%s, which is a part of Hutch, is neither in %s nor in %s/../libexec/hutch; install it again", name,
                   own, own);
}
