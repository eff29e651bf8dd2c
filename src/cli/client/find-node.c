/* find-node.c - finds hutch-node, the program of the node and of the network proxy. */
#include <errno.h>
#include <limits.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/mem.h"
#include "cli/cli.h"

int cli_find_node(char **ret, struct err *err)
{
    static const char *const places[] = {"hutch-node", "../libexec/hutch/hutch-node"};
    char own[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", own, sizeof own - 1);
    if (n < 0)
        return err_set(err, ERR_SETUP, errno, "cannot find our own program; is /proc mounted?");
    own[n] = '\0';
    *strrchr(own, '/') = '\0';
    for (size_t i = 0; i < ARRAY_LEN(places); i++) {
        _cleanup_free_ char *path = xasprintf("%s/%s", own, places[i]);
        if (access(path, X_OK) != 0)
            continue;
        *ret = TAKE_PTR(path);
        return 0;
    }
    return err_set(err, ERR_SETUP, 0, "hutch-node is neither in %s nor in %s/../libexec/hutch", own, own);
}
