/* The templates of this node, as they lie in the directory: nothing is remembered but how often each was used. */
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
#include "front/boxes.h"
#include "front/template-build.h"

enum { TEMPLATES_MAX = 1024, COUNTS_MAX = 256 };

struct templates {
    int dir;
    struct {
        char name[72];
        uint64_t n;
    } spawned[COUNTS_MAX];
    size_t nspawned;
    uint64_t opened_unix;
};

static bool is_name(const char *name)
{
    size_t n = strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789-_");
    return n > 0 && n < 72 && name[n] == '\0';
}

void templates_open(struct front *f, int dir)
{
    f->templates = xcalloc(1, sizeof *f->templates);
    f->templates->dir = dir;
    f->templates->opened_unix = (uint64_t)time(NULL);
}

void templates_free(struct front *f)
{
    free(f->templates);
    f->templates = NULL;
}

static uint64_t *count_of(struct templates *t, const char *name)
{
    for (size_t i = 0; i < t->nspawned; i++)
        if (strcmp(t->spawned[i].name, name) == 0)
            return &t->spawned[i].n;
    return NULL;
}

void template_spawned(struct front *f, const char *name)
{
    struct templates *t = f->templates;
    uint64_t *n = count_of(t, name);
    if (n)
        ++*n;
    else if (t->nspawned < COUNTS_MAX) {
        (void)snprintf(t->spawned[t->nspawned].name, sizeof t->spawned[0].name, "%s", name);
        t->spawned[t->nspawned++].n = 1;
    }
}

/* What the builder says about `base`. */
static bool read_progress(struct front *f, struct template_info *t)
{
    _cleanup_buf_ struct buf line = {0};
    if (fd_read_file(f->templates->dir, TEMPLATE_PROGRESS, 4096, &line) < 0) {
        (void)snprintf(t->state, sizeof t->state, "%s", f->config->build_base ? "building" : "missing");
        (void)snprintf(t->text, sizeof t->text, "%s",
                       f->config->build_base ? "waiting for the builder"
                                             : "templates.base is off and nobody imported it");
        return true;
    }
    const char *text = buf_str(&line), *space = strchr(text, ' ');
    bool failed = strncmp(text, "error ", 6) == 0;
    (void)snprintf(t->state, sizeof t->state, "%s", failed ? "error" : "building");
    (void)snprintf(t->text, sizeof t->text, "%.*s", space ? (int)strcspn(space + 1, "\n") : 0, space ? space + 1 : "");
    return true;
}

static bool inspect(struct front *f, const char *name, struct template_info *ret)
{
    struct stat st;
    *ret = (struct template_info){.cpu_milli = f->config->default_cpu_milli,
                                  .memory = f->config->default_memory,
                                  .disk = f->config->default_disk};
    (void)snprintf(ret->name, sizeof ret->name, "%s", name);
    (void)snprintf(ret->state, sizeof ret->state, "ready");
    const uint64_t *n = count_of(f->templates, name);
    ret->spawned = n ? *n : 0;
    ret->created_unix = f->templates->opened_unix; /* of what has no directory (yet) */
    if (strcmp(name, TEMPLATE_HOST) == 0)
        return true;
    if (fstatat(f->templates->dir, name, &st, 0) == 0 && S_ISDIR(st.st_mode)) {
        ret->created_unix = (uint64_t)st.st_mtime;
        return true;
    }
    return strcmp(name, TEMPLATE_BASE) == 0 && read_progress(f, ret);
}

bool template_resolve(struct front *f, const char *name, struct template_info *ret)
{
    char plain[72];
    const char *slash = strrchr(name, '/'), *base = slash ? slash + 1 : name;
    const char *colon = strchr(base, ':');
    size_t n = colon ? (size_t)(colon - base) : strlen(base);
    if (n == 0 || n >= sizeof plain || (colon && strcmp(colon, ":default") != 0 && strcmp(colon, ":latest") != 0))
        return false;
    (void)snprintf(plain, sizeof plain, "%.*s", (int)n, base);
    return is_name(plain) && inspect(f, plain, ret);
}

void templates_each(struct front *f, void (*each)(void *arg, const struct template_info *t), void *arg)
{
    struct template_info t;
    static const char *const always[] = {TEMPLATE_BASE, TEMPLATE_HOST};
    for (size_t i = 0; i < ARRAY_LEN(always); i++)
        if (inspect(f, always[i], &t))
            each(arg, &t);
    int fd = openat(f->templates->dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    _cleanup_closedir_ DIR *d = fd < 0 ? NULL : fdopendir(fd);
    if (!d) {
        if (fd >= 0)
            (void)close(fd);
        return;
    }
    struct dirent *e;
    for (size_t n = 0; n < TEMPLATES_MAX && (e = readdir(d));)
        if (is_name(e->d_name) && strcmp(e->d_name, TEMPLATE_BASE) != 0 && strcmp(e->d_name, TEMPLATE_HOST) != 0 &&
            inspect(f, e->d_name, &t)) {
            each(arg, &t);
            n++;
        }
}
