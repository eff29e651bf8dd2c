#include "policy/run/seen.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

size_t seen_add(struct seen *s, const char *name, const struct stat *st)
{
    MEM_GROW(s->dirs, s->n, s->cap);
    s->dirs[s->n] = (struct seen_dir){.name = xstrdup(name)};
    if (st) {
        s->dirs[s->n].dev = st->st_dev;
        s->dirs[s->n].ino = st->st_ino;
        s->dirs[s->n].changed = st->st_ctim;
    }
    return s->n++;
}

size_t seen_add_root(struct seen *s, const char *path, const struct stat *st)
{
    MEM_GROW(s->roots, s->nroots, s->roots_cap);
    return s->roots[s->nroots++] = seen_add(s, path, st);
}

const struct seen_dir *seen_root(const struct seen *s, const char *path)
{
    for (size_t i = s ? s->nroots : 0; i > 0; i--)
        if (strcmp(s->dirs[s->roots[i - 1]].name, path) == 0)
            return &s->dirs[s->roots[i - 1]];
    return NULL;
}

const struct seen_dir *seen_sub(const struct seen *s, const struct seen_dir *dir, const char *name, size_t *guess)
{
    for (size_t i = 0; dir && dir->read && i < dir->n; i++) {
        size_t at = (*guess + i) % dir->n;
        if (strcmp(s->dirs[dir->first + at].name, name) == 0) {
            *guess = at + 1;
            return &s->dirs[dir->first + at];
        }
    }
    return NULL;
}

bool seen_is(const struct seen_dir *dir, const struct stat *st)
{
    return dir && dir->ino != 0 && S_ISDIR(st->st_mode) && dir->dev == st->st_dev && dir->ino == st->st_ino;
}

static bool before(const struct timespec *a, const struct timespec *b)
{
    return a->tv_sec < b->tv_sec || (a->tv_sec == b->tv_sec && a->tv_nsec < b->tv_nsec);
}

bool seen_unchanged(const struct seen *s, const struct seen_dir *dir, const struct stat *st)
{
    return seen_is(dir, st) && dir->read && dir->changed.tv_sec == st->st_ctim.tv_sec &&
           dir->changed.tv_nsec == st->st_ctim.tv_nsec && before(&dir->changed, &s->since);
}

void seen_done(struct seen *s)
{
    for (size_t i = 0; i < s->n; i++) {
        free(s->dirs[i].name);
        strv_done(&s->dirs[i].names);
    }
    free(s->dirs);
    free(s->roots);
    *s = (struct seen){0};
}
