/* The templates that are directories of this node. Looks at the directory each time; remembers only how often each
 * was used. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "base/mem.h"
#include "templates/templates-int.h"

enum { TEMPLATES_MAX = 1024 };

static bool template_name_valid(const char *name)
{
    size_t n = strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789-_");
    return n > 0 && n < 72 && name[n] == '\0';
}

static uint64_t *template_count_of(struct templates *t, const char *name)
{
    for (size_t i = 0; i < t->nspawned; i++)
        if (strcmp(t->spawned[i].name, name) == 0)
            return &t->spawned[i].n;
    return NULL;
}

void template_spawned(struct templates *tp, const char *name)
{
    uint64_t *n = template_count_of(tp, name);
    if (n)
        ++*n;
    else if (tp->nspawned < TEMPLATE_COUNTS_MAX) {
        (void)snprintf(tp->spawned[tp->nspawned].name, sizeof tp->spawned[0].name, "%s", name);
        tp->spawned[tp->nspawned++].n = 1;
    }
}

/* Whether the builder makes it. */
static bool template_wanted(const struct config *c, const char *name)
{
    return c->build_base && (strcmp(c->build_base, name) == 0 ||
                             (strcmp(c->build_base, "auto") == 0 &&
                              (strcmp(name, TEMPLATE_BASE) == 0 || strcmp(name, TEMPLATE_SLIM) == 0)));
}

/* Reads the builder's progress for `slim` or `base`. Without the file, `base` is known to be missing. */
static bool template_read_progress(struct templates *tp, struct template_info *t)
{
    _cleanup_buf_ struct buf line = {0};
    char file[80 + sizeof TEMPLATE_PROGRESS];
    bool wanted = template_wanted(tp->config, t->name);
    if (!wanted && strcmp(t->name, TEMPLATE_BASE) != 0)
        return false;
    (void)snprintf(file, sizeof file, "%s" TEMPLATE_PROGRESS, t->name);
    if (!wanted || fd_read_file(tp->dir, file, 4096, &line) < 0) {
        (void)snprintf(t->state, sizeof t->state, "%s", wanted ? "building" : "missing");
        (void)snprintf(t->text, sizeof t->text, "%s",
                       wanted ? "0 % waiting for the builder"
                              : "templates.base does not ask for it, and no template 'base' was put there");
        return true;
    }
    const char *text = buf_str(&line), *space = strchr(text, ' ');
    bool failed = strncmp(text, "error ", 6) == 0;
    (void)snprintf(t->state, sizeof t->state, "%s", failed ? "error" : "building");
    (void)snprintf(t->text, sizeof t->text, "%.*s", space ? (int)strcspn(space + 1, "\n") : 0, space ? space + 1 : "");
    return true;
}

static bool template_inspect(struct templates *tp, const char *name, struct template_info *ret)
{
    struct stat st;
    *ret = (struct template_info){.cpu_milli = tp->config->default_cpu_milli,
                                  .memory = tp->config->default_memory,
                                  .disk = tp->config->default_disk};
    (void)snprintf(ret->name, sizeof ret->name, "%s", name);
    (void)snprintf(ret->state, sizeof ret->state, "ready");
    const uint64_t *n = template_count_of(tp, name);
    ret->spawned = n ? *n : 0;
    ret->created_unix = tp->opened_unix; /* for templates without a directory */
    if (strcmp(name, TEMPLATE_HOST) == 0)
        return true;
    if (fstatat(tp->dir, name, &st, 0) == 0 && S_ISDIR(st.st_mode)) {
        ret->created_unix = (uint64_t)st.st_mtime;
        return true;
    }
    return template_read_progress(tp, ret);
}

bool template_resolve(struct templates *tp, const char *name, struct template_info *ret)
{
    char plain[72];
    const char *slash = strrchr(name, '/'), *base = slash ? slash + 1 : name;
    const char *colon = strchr(base, ':');
    size_t n = colon ? (size_t)(colon - base) : strlen(base);
    if (n == 0 || n >= sizeof plain || (colon && strcmp(colon, ":default") != 0 && strcmp(colon, ":latest") != 0))
        return false;
    (void)snprintf(plain, sizeof plain, "%.*s", (int)n, base);
    return template_name_valid(plain) && template_inspect(tp, plain, ret);
}

void templates_each(struct templates *tp, void (*each)(void *arg, const struct template_info *t), void *arg)
{
    struct template_info t;
    static const char *const always[] = {TEMPLATE_BASE, TEMPLATE_HOST, TEMPLATE_SLIM};
    for (size_t i = 0; i < ARRAY_LEN(always); i++)
        if (template_inspect(tp, always[i], &t))
            each(arg, &t);
    int fd = openat(tp->dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    _cleanup_closedir_ DIR *d = fd < 0 ? NULL : fdopendir(fd);
    if (!d) {
        if (fd >= 0)
            (void)close(fd);
        return;
    }
    struct dirent *e;
    for (size_t n = 0; n < TEMPLATES_MAX && (e = readdir(d));)
        if (template_name_valid(e->d_name) && strcmp(e->d_name, TEMPLATE_BASE) != 0 &&
            strcmp(e->d_name, TEMPLATE_HOST) != 0 && strcmp(e->d_name, TEMPLATE_SLIM) != 0 &&
            template_inspect(tp, e->d_name, &t)) {
            each(arg, &t);
            n++;
        }
}
