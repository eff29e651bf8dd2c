#include "http/peers.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "base/mem.h"

enum { BUCKETS = 1024 };

struct peer {
    struct peer *next;
    unsigned count;
    char address[];
};
struct peers {
    uint64_t seed; /* a client that owns a network must not choose its bucket */
    struct peer *bucket[BUCKETS];
};

struct peers *peers_new(void)
{
    struct peers *p = xcalloc(1, sizeof *p);
    (void)!getrandom(&p->seed, sizeof p->seed, GRND_NONBLOCK);
    return p;
}

void peers_free(struct peers *p)
{
    if (!p)
        return;
    for (size_t i = 0; i < BUCKETS; i++)
        for (struct peer *e = p->bucket[i], *next; e; e = next) {
            next = e->next;
            free(e);
        }
    free(p);
}

static struct peer **peers_find(const struct peers *p, const char *address)
{
    uint64_t h = p->seed;
    for (const char *s = address; *s; s++) {
        h = (h ^ (unsigned char)*s) * 0x9e3779b97f4a7c15U;
        h ^= h >> 29;
    }
    struct peer *const *at = &p->bucket[h % BUCKETS];
    while (*at && strcmp((*at)->address, address) != 0)
        at = &(*at)->next;
    return (struct peer **)(uintptr_t)at;
}

unsigned peers_count(const struct peers *p, const char *address)
{
    struct peer *e = *peers_find(p, address);
    return e ? e->count : 0;
}

void peers_add(struct peers *p, const char *address)
{
    struct peer **at = peers_find(p, address);
    if (!*at) {
        size_t n = strlen(address) + 1;
        *at = xcalloc(1, sizeof **at + n);
        memcpy((*at)->address, address, n);
    }
    (*at)->count++;
}

void peers_remove(struct peers *p, const char *address)
{
    struct peer **at = peers_find(p, address), *e = *at;
    if (!e || --e->count > 0)
        return;
    *at = e->next;
    free(e);
}
