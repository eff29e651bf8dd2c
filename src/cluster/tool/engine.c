/* engine.c - which engine a command is about. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "cluster/tool/tool.h"

const char engine_usage[] =
    "  --engine sqlite:DIR  the facts are in a file in this directory: one machine, one process\n";

int engine_take_options(struct engine *e, int argc, char **argv, struct err *err)
{
    int left = 1;
    for (int i = 1; i < argc; i++) {
        const char *value = strncmp(argv[i], "--engine=", 9) == 0 ? argv[i] + 9 : NULL;
        if (strcmp(argv[i], "--engine") == 0 && ++i == argc)
            return err_set(err, ERR_USAGE, 0,
                           "--engine lacks its value, for example " ENGINE_SQLITE "/var/lib/hutch/cluster");
        if (!value && strcmp(argv[i - 1], "--engine") == 0)
            value = argv[i];
        if (!value)
            argv[left++] = argv[i];
        else if (e->url)
            return err_set(err, ERR_USAGE, 0, "--engine is given twice");
        else
            e->url = value;
    }
    return left - 1;
}

int engine_open(struct engine *e, struct loop *l, struct facts **ret, struct err *err)
{
    if (!e->url)
        return err_set(err, ERR_USAGE, 0,
                       "--engine is missing, for example --engine " ENGINE_SQLITE "/var/lib/hutch/cluster");
    if (strncmp(e->url, ENGINE_SQLITE, strlen(ENGINE_SQLITE)) != 0)
        return err_set(err, ERR_USAGE, 0, "--engine %.200s: not an engine; expected " ENGINE_SQLITE "DIR", e->url);
    const char *dir = e->url + strlen(ENGINE_SQLITE);
    e->dir = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (e->dir < 0)
        return err_set(err, ERR_USAGE, errno, "--engine: the directory %.200s cannot be opened", dir);
    return facts_sqlite_open(l, e->dir, dir, ret, err);
}

void engine_done(struct engine *e)
{
    if (e->dir >= 0)
        (void)close(e->dir);
    e->dir = -1;
}
