/* plan-look.c - looks up host paths without a system call for most of the missing ones.
 *
 * The tables name more than a hundred files of a home directory, of which few exist. So the home and the working
 * directory are read once, and so is a directory in the home when a second name in it is asked for. A bit filter
 * remembers the names and only decides about absence: possible hits are looked up. File systems may ignore case, so
 * letters are folded, and a directory with non-ASCII names is not relied on.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/mem.h"
#include "base/path.h"
#include "policy/run/plan-int.h"

enum {
    LISTING_NAMES = 1024, /* entries read of a directory; one with more is asked about each name */
    LISTING_ASKED = 2,    /* from this question on a directory in the home is read */
};

static unsigned name_bit(const char *name, size_t n)
{
    unsigned hash = 2166136261U;
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)name[i];
        hash = (hash ^ (c >= 'A' && c <= 'Z' ? c + ('a' - 'A') : c)) * 16777619U;
    }
    return (hash ^ hash >> 15) % PLAN_LISTING_BITS;
}

static void note_name(void *arg, const char *name)
{
    struct plan_listing *l = arg;
    for (const char *s = name; *s; s++)
        if ((unsigned char)*s >= 0x80)
            l->state = LISTING_UNKNOWN;
    unsigned bit = name_bit(name, strlen(name));
    l->bits[bit / 64] |= 1ULL << bit % 64;
}

static void listing_read(const struct planner *pl, struct plan_listing *l)
{
    l->state = LISTING_WHOLE;
    if (pl->facts->list(pl->facts->ctx, l->dir, LISTING_NAMES, note_name, l) != 0)
        l->state = LISTING_UNKNOWN;
}

/* The listing of the directory that is the first `n` bytes of path, or NULL if there is no room for one more. */
static struct plan_listing *listing_of(struct planner *pl, const char *path, size_t n)
{
    for (size_t i = 0; i < pl->nlistings; i++)
        if (strncmp(pl->listings[i].dir, path, n) == 0 && pl->listings[i].dir[n] == '\0')
            return &pl->listings[i];
    if (pl->nlistings == PLAN_LISTINGS)
        return NULL;
    struct plan_listing *l = &pl->listings[pl->nlistings++];
    *l = (struct plan_listing){.dir = xstrndup(path, n)};
    return l;
}

/* Whether the directory, the first `n` bytes of path, lacks the name of `len` bytes behind it. */
static bool listing_lacks(struct planner *pl, const char *path, size_t n, size_t len, unsigned from)
{
    struct plan_listing *l = listing_of(pl, path, n);
    if (!l || ++l->asked < from)
        return false;
    if (l->state == LISTING_UNREAD)
        listing_read(pl, l);
    unsigned bit = name_bit(path + n + 1, len);
    return l->state == LISTING_WHOLE && !(l->bits[bit / 64] >> bit % 64 & 1);
}

static bool is_surely_absent(struct planner *pl, const char *path)
{
    const char *bases[] = {pl->who->cwd, pl->who->home}; /* the first may lie in the second */
    for (size_t i = 0; i < ARRAY_LEN(bases); i++) {
        size_t n = bases[i] ? strlen(bases[i]) : 0;
        if (n < 2 || !path_under(path, bases[i]) || path[n] == '\0')
            continue;
        size_t first = strcspn(path + n + 1, "/");
        const char *last = strrchr(path, '/');
        return listing_lacks(pl, path, n, first, 1) ||
               (last > path + n && listing_lacks(pl, path, (size_t)(last - path), strlen(last + 1), LISTING_ASKED));
    }
    return false;
}

int plan_look(struct planner *pl, const char *path, struct plan_fact *ret)
{
    if (pl->facts->list && is_surely_absent(pl, path)) {
        *ret = (struct plan_fact){0};
        return 0;
    }
    return pl->facts->look(pl->facts->ctx, path, ret);
}

void plan_look_done(struct planner *pl)
{
    for (size_t i = 0; i < pl->nlistings; i++)
        free(pl->listings[i].dir);
}
