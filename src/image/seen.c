/* seen.c - remembers the paths of this layer and the directories of the layers below. Paths are kept as keyed hashes of
 * a few bytes, because there may be millions; the job checks the real paths again.
 */
#include <string.h>

#include "base/mem.h"
#include "base/random.h"
#include "image/image-int.h"

enum { START = 1024 /* a power of two */ };
#define KIND UINT64_C(7)

static uint64_t image_seen_sum(uint64_t key, const char *path, size_t n)
{
    uint64_t h = key;
    for (size_t i = 0; i < n; i++) {
        h = (h ^ (unsigned char)path[i]) * UINT64_C(0x9e3779b97f4a7c15);
        h ^= h >> 29;
    }
    h ^= h >> 32;
    return (h & ~KIND) | (KIND + 1); /* never 0, which is a free slot */
}

/* --- paths of a layer --------------------------------------------------------------------------------------------- */

void image_seen_start(struct seen *s)
{
    *s = (struct seen){0};
    random_bytes(&s->key, sizeof s->key);
}
void image_seen_done(struct seen *s)
{
    free(s->slot);
    *s = (struct seen){0};
}

static uint64_t *image_seen_slot(const struct seen *s, uint64_t sum)
{
    size_t at = (size_t)(sum >> 4) & (s->cap - 1);
    while (s->slot[at] && (s->slot[at] & ~KIND) != sum)
        at = (at + 1) & (s->cap - 1);
    return &s->slot[at];
}

enum seen_kind image_seen_get(const struct seen *s, const char *path, size_t n)
{
    return s->cap ? (enum seen_kind)(*image_seen_slot(s, image_seen_sum(s->key, path, n)) & KIND) : SEEN_NOTHING;
}

void image_seen_put(struct seen *s, const char *path, enum seen_kind kind)
{
    if (2 * s->n >= s->cap) {
        struct seen old = *s;
        s->cap = old.cap ? 2 * old.cap : START;
        s->slot = xcalloc(s->cap, sizeof *s->slot);
        for (size_t i = 0; i < old.cap; i++)
            if (old.slot[i])
                *image_seen_slot(s, old.slot[i] & ~KIND) = old.slot[i];
        free(old.slot);
    }
    uint64_t sum = image_seen_sum(s->key, path, strlen(path)), *slot = image_seen_slot(s, sum);
    s->n += *slot == 0;
    *slot = sum | (uint64_t)kind;
}

/* --- directories of the layers below ------------------------------------------------------------------------------ */

static struct dir_meta *dirs_slot(const struct dirs *d, uint64_t sum)
{
    size_t at = (size_t)(sum >> 4) & (d->cap - 1);
    while (d->slot[at].sum && d->slot[at].sum != sum)
        at = (at + 1) & (d->cap - 1);
    return &d->slot[at];
}

/* The slot for path, which may be a free one. */
static struct dir_meta *dirs_slot_for(struct dirs *d, const char *path, uint64_t *sum)
{
    if (d->cap == 0)
        random_bytes(&d->key, sizeof d->key);
    if (2 * d->n >= d->cap) {
        struct dirs old = *d;
        d->cap = old.cap ? 2 * old.cap : START;
        d->slot = xcalloc(d->cap, sizeof *d->slot);
        for (size_t i = 0; i < old.cap; i++)
            if (old.slot[i].sum)
                *dirs_slot(d, old.slot[i].sum) = old.slot[i];
        free(old.slot);
    }
    *sum = image_seen_sum(d->key, path, strlen(path));
    return dirs_slot(d, *sum);
}

bool dirs_put(struct dirs *d, const char *path, const struct lay_record *r, const struct buf *xattrs)
{
    uint64_t sum;
    struct dir_meta *m = dirs_slot_for(d, path, &sum);
    if (xattrs->n > DIRS_XATTRS_MAX - (d->bytes - m->nxattrs))
        return false;
    d->n += m->sum == 0;
    d->bytes += xattrs->n - m->nxattrs;
    free(m->xattrs);
    *m = (struct dir_meta){.sum = sum,
                           .layer = d->layer + 1,
                           .gone = m->gone,
                           .emptied = m->emptied,
                           .mode = r->mode,
                           .uid = r->uid,
                           .gid = r->gid,
                           .nsec = r->mtime_nsec,
                           .sec = r->mtime_sec};
    if (xattrs->n == 0)
        return true;
    m->nxattrs = xattrs->n;
    m->xattrs = memcpy(xmalloc(xattrs->n), xattrs->p, xattrs->n);
    return true;
}

void dirs_take(struct dirs *d, const char *path, bool emptied)
{
    uint64_t sum;
    struct dir_meta *m = dirs_slot_for(d, path, &sum);
    d->n += m->sum == 0;
    m->sum = sum;
    *(emptied ? &m->emptied : &m->gone) = d->layer + 1;
}

/* Records only paths that were directories: there may be millions of files. */
void dirs_replace(struct dirs *d, const char *path)
{
    if (d->cap && dirs_slot(d, image_seen_sum(d->key, path, strlen(path)))->sum)
        dirs_take(d, path, false);
}

/* Whether a layer above `layer` removed the directory or one of its parents. */
static bool dirs_is_gone(const struct dirs *d, const char *path, uint32_t layer)
{
    for (size_t n = 0;; n++) { /* "" is the root */
        const struct dir_meta *m =
            path[n] == '/' || path[n] == '\0' || n == 0 ? dirs_slot(d, image_seen_sum(d->key, path, n)) : NULL;
        if (m && (m->gone > layer || (path[n] != '\0' && m->emptied > layer)))
            return true;
        if (path[n] == '\0')
            return false;
    }
}

bool dirs_get(const struct dirs *d, const char *path, struct lay_record *ret, struct buf *xattrs)
{
    const struct dir_meta *m = d->cap ? dirs_slot(d, image_seen_sum(d->key, path, strlen(path))) : NULL;
    if (!m || !m->layer || dirs_is_gone(d, path, m->layer))
        return false;
    ret->mode = m->mode;
    ret->uid = m->uid;
    ret->gid = m->gid;
    ret->mtime_nsec = m->nsec;
    ret->mtime_sec = m->sec;
    xattrs->n = 0;
    buf_add(xattrs, m->xattrs, m->nxattrs);
    return true;
}

void dirs_done(struct dirs *d)
{
    for (size_t i = 0; i < d->cap; i++)
        free(d->slot[i].xattrs);
    free(d->slot);
    *d = (struct dirs){0};
}
