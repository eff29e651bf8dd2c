/* pool.c - `hutch pool attach | detach | watch`: what `hutch serve` has done to the file with the layer store. The state
 * directory is descriptor 3, the run directory descriptor 4; the answer goes to descriptor 5. attach answers with two lines:
 * the driver of sandboxes' files ("+" before it if there is a pool), and why. A failure is answered with its message. */
#include <getopt.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "base/num.h"
#include "cli/cli.h"
#include "pool/diskpool.h"

enum { POOL_FD_STATE = 3, POOL_FD_RUN, POOL_FD_ANSWER };

static const struct option options[] = {
    {"files", required_argument, NULL, 'f'},
    {"size", required_argument, NULL, 's'},
    {"given", no_argument, NULL, 'g'},
    {NULL, 0, NULL, 0},
};

static int pool_attach_main(int argc, char **argv, struct err *err)
{
    struct diskpool_want w = {.files = "auto", .run = POOL_FD_RUN};
    struct diskpool_found found;
    int opt;
    opterr = 0;
    while ((opt = getopt_long(argc, argv, "", options, NULL)) != -1) {
        if (opt == '?' || (opt == 's' && !num_u64(optarg, &w.size)))
            return err_set(err, ERR_USAGE, 0, "pool attach: %s is not valid", argv[optind - 1]);
        w.files = opt == 'f' ? optarg : w.files;
        w.given |= opt == 'g';
    }
    if (diskpool_attach(POOL_FD_STATE, &w, &found, err) < 0)
        return -1;
    dprintf(POOL_FD_ANSWER, "%s%s\n%s\n", found.on ? "+" : "", found.driver, found.why);
    return 0;
}

int cmd_pool(int argc, char **argv)
{
    struct err err = {0};
    const char *verb = argc > 1 ? argv[1] : "";
    int r = 0;
    log_open("pool", LOG_LEVEL_INFO, STDERR_FILENO);
    if (strcmp(verb, "attach") == 0)
        r = pool_attach_main(argc - 1, argv + 1, &err);
    else if (strcmp(verb, "detach") == 0)
        r = diskpool_detach(POOL_FD_STATE, &err);
    else if (strcmp(verb, "watch") == 0)
        r = diskpool_watch(POOL_FD_STATE, &err);
    else
        r = err_set(&err, ERR_USAGE, 0, "pool is started by `hutch serve`; for users there is `hutch store`");
    if (r >= 0)
        return r;
    if (strcmp(verb, "watch") == 0)
        return cli_fail(&err);
    dprintf(POOL_FD_ANSWER, "%s\n", err.msg);
    return err.code;
}
