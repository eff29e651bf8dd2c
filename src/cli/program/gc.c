/* gc.c - `hutch gc`: shows what orphaned sandboxes left behind; --remove removes it. */
#include <dirent.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/mem.h"
#include "base/path.h"
#include "cli/cli.h"
#include "keeper/keeper.h"

struct counts {
    unsigned found, removed;
};

static void gc_on_found(void *arg, const char *what, const char *name, const char *why, bool removed)
{
    struct counts *n = arg;
    n->found++;
    n->removed += removed;
    printf("%-8s %s: %s%s\n", what, name, why, removed ? " (removed)" : "");
}

/* Layers that a node renamed in order to remove them, and then ended. */
static void show_store(const char *state, struct counts *n)
{
    static const char *const dirs[] = {"stock", "stock/layers", "stock/volumes"};
    for (size_t i = 0; i < ARRAY_LEN(dirs); i++) {
        _cleanup_free_ char *path = path_join(state, dirs[i]);
        _cleanup_closedir_ DIR *d = opendir(path);
        const struct dirent *e;
        while (d && (e = readdir(d))) {
            if (strncmp(e->d_name, ".gone-", 6) != 0 && strncmp(e->d_name, ".dead-", 6) != 0)
                continue;
            _cleanup_free_ char *name = path_join(dirs[i], e->d_name);
            gc_on_found(n, "store", name, "waits to be removed: by the node when it runs, or by `hutch store gc`",
                        false);
        }
    }
}

static void gc_print_help(void)
{
    fputs(
        "usage: hutch gc [--remove] [--run DIR] [--state DIR]\n\n"
        "Shows what sandboxes left behind that no keeper knows: cgroups, sockets, journal entries, layers on\n"
        "disk, processes, id ranges. Normally there is nothing, because keeper cleans up when it starts.\n\n"
        "  --remove     remove what is unused; a sandbox that runs and is known is never touched\n"
        "  --run DIR    run directory of the node (/run/hutch, or $XDG_RUNTIME_DIR/hutch, or run in the state "
        "directory)\n"
        "  --state DIR  state directory of the node (/var/lib/hutch, or ~/.local/state/hutch)\n\n"
        "Sandboxes of a node whose state directory is gone are shown as processes, and ended with --remove. Those of\n"
        "another node on this host, and of `hutch run`, show up as id ranges that no record here names, older ones as\n"
        "processes too; they are left alone.\n\n"
        "Layers and snapshots on disk are looked after by the node itself; see `hutch store --help`.\n\n"
        "example: hutch gc && hutch gc --remove\n",
        stdout);
}

int cmd_gc(int argc, char **argv)
{
    static const struct option options[] = {{"remove", no_argument, NULL, 'x'},
                                            {"run", required_argument, NULL, 'r'},
                                            {"state", required_argument, NULL, 's'},
                                            {"help", no_argument, NULL, 'h'},
                                            {NULL, 0, NULL, 0}};
    bool root = geteuid() == 0;
    const char *home = getenv("HOME"), *xdg = getenv("XDG_RUNTIME_DIR");
    _cleanup_free_ char *state = root || !home ? xstrdup("/var/lib/hutch") : xasprintf("%s/.local/state/hutch", home);
    _cleanup_free_ char *run = root  ? xstrdup("/run/hutch")
                               : xdg ? xasprintf("%s/hutch", xdg)
                                     : xasprintf("%s/run", state);
    struct counts n = {0};
    struct keeper_gc gc = {.run = run, .state = state, .found = gc_on_found, .arg = &n};
    struct err err = {0};
    int opt;
    opterr = 0;
    while ((opt = getopt_long(argc, argv, "h", options, NULL)) != -1) {
        if (opt == 'h') {
            gc_print_help();
            return 0;
        }
        if (opt == '?') {
            (void)err_set(&err, ERR_USAGE, 0, "gc: %s is not an option, or lacks its value; see `hutch gc --help`",
                          argv[optind - 1]);
            return cli_fail(&err);
        }
        gc.remove |= opt == 'x';
        gc.run = opt == 'r' ? optarg : gc.run;
        gc.state = opt == 's' ? optarg : gc.state;
    }
    if (optind < argc) {
        (void)err_set(&err, ERR_USAGE, 0, "gc: takes no argument (%s); see `hutch gc --help`", argv[optind]);
        return cli_fail(&err);
    }
    if (keeper_gc(&gc, &err) < 0)
        return cli_fail(&err);
    show_store(gc.state, &n);
    if (n.found == 0)
        puts("nothing is left behind");
    else if (!gc.remove)
        printf("%u found; `hutch gc --remove` removes what is unused\n", n.found);
    return 0;
}
