/* keeper.c - `hutch keeper`; started by `hutch serve`, which passes directories and sockets by descriptor. */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/num.h"
#include "cli/cli.h"
#include "keeper/keeper.h"
#include "keeper/request.h"

static const struct option options[] = {
    {"front-gid", required_argument, NULL, 'g'},    {"max-sandboxes", required_argument, NULL, 'n'},
    {"default-cpu", required_argument, NULL, 'c'},  {"default-memory", required_argument, NULL, 'm'},
    {"default-disk", required_argument, NULL, 'd'}, {"default-inodes", required_argument, NULL, 'i'},
    {"default-pids", required_argument, NULL, 'p'}, {"default-open-files", required_argument, NULL, 'f'},
    {"templates", required_argument, NULL, 't'},    {"driver", required_argument, NULL, 'D'},
    {"host-dir", required_argument, NULL, 'h'},     {"grace", required_argument, NULL, 'G'},
    {"attached", no_argument, NULL, 'a'},           {NULL, 0, NULL, 0},
};

static bool in_range(const char *text, uint64_t min, uint64_t max, uint64_t *ret)
{
    return num_u64(text, ret) && *ret >= min && *ret <= max;
}

/* NAME=PATH or NAME=PATH:ro */
static bool take_host_dir(struct keeper_config *c, const char *text)
{
    size_t name = strcspn(text, "="), n = strlen(text);
    if (c->nhost_dirs == KEEPER_HOST_DIRS_MAX || name == 0 || name >= KEEPER_HOST_DIR_NAME || text[name] != '=' ||
        text[name + 1] != '/')
        return false;
    struct keeper_host_dir *d = &c->host_dirs[c->nhost_dirs];
    memcpy(d->name, text, name);
    d->ro = n > 3 && strcmp(text + n - 3, ":ro") == 0;
    d->path = xstrndup(text + name + 1, n - name - 1 - (d->ro ? 3 : 0)); /* never freed */
    for (size_t i = 0; i < c->nhost_dirs; i++)
        if (strcmp(c->host_dirs[i].name, d->name) == 0)
            return false;
    c->nhost_dirs++;
    return keeper_id_valid(d->name);
}

static bool keeper_take_option(struct keeper_config *c, int opt, const char *text)
{
    uint64_t v = 0;
    bool ok = false;
    switch (opt) {
    case 'g':
        ok = in_range(text, 0, UINT32_MAX - 1, &v);
        c->front_gid = (gid_t)v;
        break;
    case 'n':
        ok = in_range(text, 1, KEEPER_SANDBOXES_MAX, &v);
        c->max_sandboxes = (uint32_t)v;
        break;
    case 'c':
        ok = in_range(text, 0, KEEPER_CPU_MILLI_MAX, &v);
        c->cpu_milli = (uint32_t)v;
        break;
    case 'm':
        ok = in_range(text, KEEPER_MEMORY_MIN, KEEPER_BYTES_MAX, &c->memory);
        break;
    case 'd':
        ok = in_range(text, KEEPER_DISK_MIN, KEEPER_BYTES_MAX, &c->disk);
        break;
    case 'i':
        ok = in_range(text, KEEPER_INODES_MIN, UINT32_MAX, &c->inodes);
        break;
    case 'p':
        ok = in_range(text, KEEPER_PIDS_MIN, KEEPER_PIDS_MAX, &v);
        c->pids = (uint32_t)v;
        break;
    case 'f':
        ok = in_range(text, KEEPER_FILES_MIN, KEEPER_FILES_MAX, &v);
        c->open_files = (uint32_t)v;
        break;
    case 'a':
        c->attached = ok = true;
        break;
    case 'G':
        ok = in_range(text, 1, KEEPER_GRACE_MS, &c->grace_ms);
        break;
    case 't':
        ok = text[0] == '/';
        c->templates = text;
        break;
    case 'D':
        ok = strlen(text) < KEEPER_DRIVER_MAX;
        c->driver = text;
        break;
    case 'h':
        ok = take_host_dir(c, text);
        break;
    default:
        break;
    }
    return ok;
}

int cmd_keeper(int argc, char **argv)
{
    struct err err = {0};
    struct keeper_config c = {.front_gid = (gid_t)-1,
                              .max_sandboxes = 1000,
                              .cpu_milli = 1000,
                              .memory = UINT64_C(512) << 20,
                              .disk = UINT64_C(1) << 30,
                              .inodes = 200000,
                              .pids = 512,
                              .open_files = 4096,
                              .grace_ms = KEEPER_GRACE_MS};
    int opt, which = 0;
    opterr = 0;
    while ((opt = getopt_long(argc, argv, "", options, &which)) != -1) {
        if (opt == '?' || !keeper_take_option(&c, opt, optarg)) {
            (void)err_set(&err, ERR_USAGE, 0, "keeper: %s is not valid%s%s",
                          opt == '?' ? argv[optind - 1] : options[which].name, opt == '?' ? "" : ": ",
                          opt == '?' ? "" : optarg);
            return cli_fail(&err);
        }
    }
    c.argv = argv - 1; /* the program's own name comes before the sub-command's; see main() */
    c.argc = (size_t)argc + 1;
    if (keeper_run(&c, &err) == 0)
        return 0; /* told to stop */
    (void)err_wrap(&err, "keeper");
    return cli_fail(&err);
}
