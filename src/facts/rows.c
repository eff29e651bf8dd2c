/* rows.c - facts of an answer; keys and prefixes as bytes. */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "facts/facts-int.h"

void facts_rows_add(struct facts_rows *r, const struct facts_fact *f)
{
    size_t k = strlen(f->key);
    char *block = xmalloc(k + 1 + f->n + 1);
    memcpy(block, f->key, k + 1);
    if (f->n > 0)
        memcpy(block + k + 1, f->value, f->n);
    block[k + 1 + f->n] = 0;
    MEM_GROW(r->v, r->n, r->cap);
    r->v[r->n] = *f;
    r->v[r->n].key = block;
    r->v[r->n++].value = f->value ? block + k + 1 : NULL;
    r->bytes += k + f->n;
}

void facts_rows_done(struct facts_rows *r)
{
    for (size_t i = 0; i < r->n; i++)
        free((char *)(uintptr_t)r->v[i].key);
    free(r->v);
    *r = (struct facts_rows){0};
}

bool facts_key_is_valid(const char *key, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (key[i] <= ' ' || key[i] > '~')
            return false;
    return n > 0 && n <= FACTS_KEY_MAX;
}

void facts_prefix_end(const char *prefix, char *ret)
{
    size_t n = strlen(prefix);
    memcpy(ret, prefix, n + 1);
    if (n > 0)
        ret[n - 1]++; /* '~' becomes DEL: a key has no such byte, so nothing lies between */
}
