#include "egress/secrets/lockmem.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/mem.h"

enum { CLASSES = 11 /* 32 bytes ... 32 KiB */ };
_Static_assert(LOCKMEM_SMALL << (CLASSES - 1) == LOCKMEM_LARGE, "one class per power of two");

struct piece {
    struct piece *next;
};

/* Chunks are kept for the life of the process, so locked memory is used again; there are at most SECRETS_BYTES_MAX of
 * it. */
static struct {
    struct piece *idle[CLASSES];
    char *rest; /* of the newest chunk, not cut yet */
    size_t nrest, used;
    bool unlocked;
} mem;

static void *lockmem_map(size_t n)
{
    void *p = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        return xmalloc(SIZE_MAX / 2); /* fails, and ends the process like any failed allocation */
    (void)madvise(p, n, MADV_DONTDUMP);
    (void)madvise(p, n, MADV_WIPEONFORK);
    if (mlock(p, n) < 0)
        mem.unlocked = true;
    return p;
}

static size_t lockmem_page_up(size_t n)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    return (n + page - 1) / page * page;
}

static unsigned lockmem_class(size_t n)
{
    unsigned c = 0;
    while ((size_t)LOCKMEM_SMALL << c < n)
        c++;
    return c;
}

/* Cuts the rest of a chunk, too small for the next piece, into pieces of smaller classes. */
static void lockmem_use_rest(void)
{
    while (mem.nrest >= LOCKMEM_SMALL) {
        unsigned c = CLASSES - 1;
        while ((size_t)LOCKMEM_SMALL << c > mem.nrest)
            c--;
        struct piece *p = (void *)mem.rest;
        p->next = mem.idle[c];
        mem.idle[c] = p;
        mem.rest += LOCKMEM_SMALL << c;
        mem.nrest -= (size_t)LOCKMEM_SMALL << c;
    }
}

void *lockmem_new(size_t n)
{
    if (n > LOCKMEM_LARGE) {
        mem.used += lockmem_page_up(n);
        return lockmem_map(lockmem_page_up(n));
    }
    unsigned c = lockmem_class(n);
    size_t size = (size_t)LOCKMEM_SMALL << c;
    struct piece *p = mem.idle[c];
    mem.used += size;
    if (p) {
        mem.idle[c] = p->next;
        p->next = NULL;
        return p;
    }
    if (mem.nrest < size) {
        lockmem_use_rest();
        mem.rest = lockmem_map(LOCKMEM_CHUNK);
        mem.nrest = LOCKMEM_CHUNK;
    }
    void *ret = mem.rest;
    mem.rest += size;
    mem.nrest -= size;
    return ret;
}

void lockmem_free(void *p, size_t n)
{
    if (!p)
        return;
    if (n > LOCKMEM_LARGE) {
        explicit_bzero(p, lockmem_page_up(n));
        (void)munmap(p, lockmem_page_up(n));
        mem.used -= lockmem_page_up(n);
        return;
    }
    unsigned c = lockmem_class(n);
    struct piece *piece = p;
    explicit_bzero(p, (size_t)LOCKMEM_SMALL << c);
    piece->next = mem.idle[c];
    mem.idle[c] = piece;
    mem.used -= (size_t)LOCKMEM_SMALL << c;
}

size_t lockmem_used(void) { return mem.used; }
bool lockmem_unlocked(void) { return mem.unlocked; }
