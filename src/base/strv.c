#include "base/strv.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

void strv_take(struct strv *s, char *str)
{
    if (s->n + 2 > s->cap) {
        s->cap = s->cap ? s->cap * 2 : 8;
        s->v = xreallocarray(s->v, s->cap, sizeof *s->v);
    }
    s->v[s->n++] = str;
    s->v[s->n] = NULL;
}

void strv_add(struct strv *s, const char *str) { strv_take(s, xstrdup(str)); }

bool strv_has(const struct strv *s, const char *str)
{
    for (size_t i = 0; i < s->n; i++)
        if (strcmp(s->v[i], str) == 0)
            return true;
    return false;
}

int strv_compare(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

void strv_sort(struct strv *s)
{
    if (s->n)
        qsort(s->v, s->n, sizeof *s->v, strv_compare);
}

void strv_done(struct strv *s)
{
    for (size_t i = 0; i < s->n; i++)
        free(s->v[i]);
    free(s->v);
    *s = (struct strv){0};
}
