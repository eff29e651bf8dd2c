/* serve.c - `hutch serve` and `hutch cluster`: executes hutch-node. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/mem.h"
#include "cli/cli.h"

int cmd_serve(int argc, char **argv)
{
    struct err err = {0};
    _cleanup_free_ char *path = NULL;
    _cleanup_free_ char **args = xcalloc((size_t)argc + 2, sizeof *args);
    char name[] = "hutch-node";
    args[0] = name;
    memcpy(args + 1, argv, (size_t)argc * sizeof *argv);
    if (cli_find_program("hutch-node", &path, &err) == 0) {
        (void)execv(path, args);
        (void)err_set(&err, ERR_SETUP, errno, "cannot execute %s", path);
    }
    (void)err_wrap(&err, "%s", argv[0]);
    return cli_fail(&err);
}
