#include "base/alloc.h"

#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <unistd.h>

enum {
    UNIT = 16,
    FINE_MAX = 1024,    /* up to here sizes are multiples of UNIT, above they double */
    COARSE_MAX = 32768, /* what is bigger gets a mapping of its own */
    CLASSES = FINE_MAX / UNIT + 5,
    CHUNK = 256 << 10,
};

/* In front of every block. */
struct head {
    uint64_t size; /* of the block behind it */
    uint64_t seal;
};
_Static_assert(sizeof(struct head) == UNIT, "blocks are aligned to the header's size");

static const uint64_t in_use = 0x5ea1ed5ea1ed0001, is_free = 0x5ea1ed5ea1ed0002;

static struct {
    uint64_t secret; /* 0 until the first block */
    struct head *freed[CLASSES];
    char *at, *end; /* never used so far */
} heap;

static char first_chunk[CHUNK] __attribute__((aligned(UNIT))); /* costs nothing until it is touched */

static __attribute__((noreturn)) void corrupted(void)
{
    static const char msg[] = "hutch: memory is corrupted\n";
    (void)!write(2, msg, sizeof msg - 1);
    abort();
}

static uint64_t seal_of(const struct head *h, uint64_t state)
{
    return (((uintptr_t)h ^ heap.secret) + h->size) * 0x9e3779b97f4a7c15 ^ state;
}

static void heap_begin(void)
{
    const char *random = (const char *)getauxval(AT_RANDOM); /* its first half is the stack's canary */
    if (random)
        memcpy(&heap.secret, random + 8, sizeof heap.secret);
    heap.secret |= 1;
    heap.at = first_chunk;
    heap.end = first_chunk + sizeof first_chunk;
}

/* Rounds up to the size of a class and says which. */
static unsigned alloc_class_of(size_t n, size_t *ret_size)
{
    if (n <= FINE_MAX) {
        unsigned units = n ? (unsigned)((n + UNIT - 1) / UNIT) : 1;
        *ret_size = (size_t)units * UNIT;
        return units - 1;
    }
    unsigned class = FINE_MAX / UNIT;
    for (*ret_size = 2 * FINE_MAX; *ret_size < n; *ret_size *= 2)
        class ++;
    return class;
}

static void *alloc_map(size_t n)
{
    void *p = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p != MAP_FAILED)
        return p;
    errno = ENOMEM;
    return NULL;
}

static struct head *get_big(size_t n)
{
    if (n > PTRDIFF_MAX - 2 * CHUNK) {
        errno = ENOMEM;
        return NULL;
    }
    size_t all = (n + sizeof(struct head) + 4095) & ~(size_t)4095;
    struct head *h = alloc_map(all);
    if (h)
        h->size = all - sizeof *h;
    return h;
}

static struct head *get_new(size_t size)
{
    size_t all = size + sizeof(struct head);
    if ((size_t)(heap.end - heap.at) < all) {
        char *chunk = alloc_map(CHUNK);
        if (!chunk)
            return NULL;
        heap.at = chunk;
        heap.end = chunk + CHUNK;
    }
    struct head *h = (struct head *)(void *)heap.at;
    heap.at += all;
    h->size = size;
    return h;
}

/* A free block holds the next one of its class in its first bytes, encrypted with the secret. */
static struct head *get_freed(unsigned class)
{
    struct head *h = heap.freed[class];
    uint64_t next;
    if (!h)
        return NULL;
    if (h->seal != seal_of(h, is_free))
        corrupted();
    memcpy(&next, h + 1, sizeof next);
    heap.freed[class] = (struct head *)(uintptr_t)(next ^ heap.secret);
    return h;
}

void *alloc_get(size_t n)
{
    size_t size;
    struct head *h;
    if (!heap.secret)
        heap_begin();
    if (n > COARSE_MAX) {
        h = get_big(n);
    } else {
        unsigned class = alloc_class_of(n, &size);
        h = get_freed(class);
        h = h ? h : get_new(size);
    }
    if (!h)
        return NULL;
    h->seal = seal_of(h, in_use);
    return h + 1;
}

static struct head *head_of(const void *p)
{
    struct head *h = (struct head *)(uintptr_t)p - 1;
    if ((uintptr_t)p % UNIT != 0 || h->seal != seal_of(h, in_use))
        corrupted();
    return h;
}

void alloc_put(void *p)
{
    size_t size;
    if (!p)
        return;
    struct head *h = head_of(p);
    if (h->size > COARSE_MAX) {
        int saved = errno;
        (void)munmap(h, h->size + sizeof *h);
        errno = saved;
        return;
    }
    unsigned class = alloc_class_of(h->size, &size);
    uint64_t next = (uintptr_t)heap.freed[class] ^ heap.secret;
    memcpy(p, &next, sizeof next);
    h->seal = seal_of(h, is_free);
    heap.freed[class] = h;
}

size_t alloc_room(const void *p) { return p ? head_of(p)->size : 0; }

void *alloc_resize(void *p, size_t n)
{
    size_t room = alloc_room(p);
    if (p && n <= room && (room <= COARSE_MAX || n > room / 2))
        return p;
    void *new = alloc_get(n);
    if (new &&p) {
        memcpy(new, p, n < room ? n : room);
        alloc_put(p);
    }
    return new;
}

#ifdef HUTCH_OWN_MALLOC
#include <malloc.h>

void *malloc(size_t n) { return alloc_get(n); }
void free(void *p) { alloc_put(p); }
void *realloc(void *p, size_t n) { return alloc_resize(p, n); }
size_t malloc_usable_size(void *p) { return alloc_room(p); }

void *calloc(size_t n, size_t size)
{
    size_t all;
    if (__builtin_mul_overflow(n, size, &all)) {
        errno = ENOMEM;
        return NULL;
    }
    void *p = alloc_get(all);
    return p ? memset(p, 0, all) : NULL;
}

/* Our code needs only the natural alignment; more is refused with an error. */
void *aligned_alloc(size_t align, size_t n)
{
    if (align <= UNIT)
        return alloc_get(n);
    errno = align & (align - 1) ? EINVAL : ENOMEM;
    return NULL;
}
#endif
