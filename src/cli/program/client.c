/* client.c - commands that talk to a node: executes hutch-client, which has TLS and a resolver. */
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/mem.h"
#include "cli/cli.h"

int cmd_client(int argc, char **argv)
{
    struct err err = {0};
    _cleanup_free_ char *path = NULL;
    _cleanup_free_ char **args = xcalloc((size_t)argc + 2, sizeof *args);
    char name[] = "hutch";
    args[0] = name;
    memcpy(args + 1, argv, (size_t)argc * sizeof *argv);
    if (cli_find_program("hutch-client", &path, &err) == 0) {
        (void)execv(path, args);
        (void)err_set(&err, ERR_SETUP, errno, "cannot execute %s", path);
    }
    return cli_fail(&err);
}
