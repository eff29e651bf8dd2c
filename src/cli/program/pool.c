/* pool.c - `hutch store grow | shrink | check`: the file that the node keeps its layer store in. These work on this machine's
 * disk, with the node running or not, so they need root and no key. */
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/num.h"
#include "cli/cli.h"
#include "pool/diskpool.h"

static const char usage[] =
    "usage: hutch store grow SIZE | shrink SIZE | check [--state DIR]\n\n"
    "The pool, STATE/" POOL_FILE ": the file in which root's node keeps layers, volumes and what sandboxes write.\n\n"
    "grow     let it become as large as SIZE; the host's disk gives blocks when they are written\n"
    "shrink   make it as small as SIZE; moves what lies beyond first, sandboxes go on meanwhile\n"
    "check    look for damage: with the node running reads everything and compares checksums, else `btrfs check`;\n"
    "         changes nothing. Exit code 1: there is damage\n\n"
    "  --state DIR  state directory of the node (default $HUTCH_STATE, or /var/lib/hutch)\n\n"
    "examples:\n"
    "  hutch store grow 200GiB\n"
    "  hutch store check || echo damaged\n";

static int store_pool_fail(struct err *err, const char *what, const char *detail)
{
    (void)err_set(err, ERR_USAGE, 0, "store: %s%s; see `hutch store check --help`", what, detail);
    return cli_fail(err);
}

static int store_pool_check(int state, struct err *err)
{
    _cleanup_buf_ struct buf out = {0};
    int r = diskpool_check(state, &out, err);
    if (r < 0)
        return cli_fail(err);
    (void)fputs(buf_str(&out), stdout);
    puts(r == 0 ? "the pool is in order" : "the pool is damaged, or `btrfs` is too old for it");
    return r;
}

int cmd_store_pool(int argc, char **argv)
{
    static const struct option options[] = {
        {"state", required_argument, NULL, 's'}, {"help", no_argument, NULL, 'h'}, {NULL, 0, NULL, 0}};
    const char *verb = argv[1], *path = getenv("HUTCH_STATE");
    bool check = strcmp(verb, "check") == 0, grow = strcmp(verb, "grow") == 0;
    struct err err = {0};
    uint64_t size = 0;
    int opt;
    opterr = 0;
    argc--, argv++;
    while ((opt = getopt_long(argc, argv, "h", options, NULL)) != -1) {
        if (opt == 'h') {
            (void)fputs(usage, stdout);
            return 0;
        }
        if (opt == '?')
            return store_pool_fail(&err, "not an option, or lacks its value: ", argv[optind - 1]);
        path = optarg;
    }
    if (argc - optind != (check ? 0 : 1))
        return store_pool_fail(&err, verb, check ? " takes no argument" : " takes one SIZE");
    if (!check && !num_size(argv[optind], &size))
        return store_pool_fail(&err, "not a size like 200GiB: ", argv[optind]);
    if (geteuid() != 0)
        return err_set(&err, ERR_USAGE, 0, "store %s: needs root; the pool is a file of root's node", verb),
               cli_fail(&err);
    path = path && *path ? path : "/var/lib/hutch";
    _cleanup_close_ int state = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (state < 0)
        return err_set(&err, ERR_USAGE, errno, "store %s: %s", verb, path), cli_fail(&err);
    if (check)
        return store_pool_check(state, &err);
    return (grow ? diskpool_grow : diskpool_shrink)(state, size, &err) < 0 ? cli_fail(&err) : 0;
}
