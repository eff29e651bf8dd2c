#include "base/map.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/random.h"

static inline uint64_t map_rotl(uint64_t x, unsigned b) { return x << b | x >> (64 - b); }

static inline void sip_round(uint64_t v[4])
{
    v[0] += v[1];
    v[1] = map_rotl(v[1], 13) ^ v[0];
    v[0] = map_rotl(v[0], 32);
    v[2] += v[3];
    v[3] = map_rotl(v[3], 16) ^ v[2];
    v[0] += v[3];
    v[3] = map_rotl(v[3], 21) ^ v[0];
    v[2] += v[1];
    v[1] = map_rotl(v[1], 17) ^ v[2];
    v[2] = map_rotl(v[2], 32);
}

/* SipHash-1-3. */
static uint64_t map_hash(const uint64_t seed[2], const char *key)
{
    size_t n = strlen(key), i = 0;
    uint64_t v[4] = {seed[0] ^ 0x736f6d6570736575, seed[1] ^ 0x646f72616e646f6d, seed[0] ^ 0x6c7967656e657261,
                     seed[1] ^ 0x7465646279746573};
    for (; i + 8 <= n; i += 8) {
        uint64_t word;
        memcpy(&word, key + i, 8);
        v[3] ^= word;
        sip_round(v);
        v[0] ^= word;
    }
    uint64_t last = (uint64_t)n << 56;
    for (unsigned shift = 0; i < n; i++, shift += 8)
        last |= (uint64_t)(unsigned char)key[i] << shift;
    v[3] ^= last;
    sip_round(v);
    v[0] ^= last;
    v[2] ^= 0xff;
    for (int k = 0; k < 3; k++)
        sip_round(v);
    return v[0] ^ v[1] ^ v[2] ^ v[3];
}

/* The slot that holds the key, or the free one where it belongs. */
static struct map_slot *map_seek(const struct map *m, const char *key, uint64_t hash)
{
    for (size_t i = hash & (m->cap - 1);; i = (i + 1) & (m->cap - 1)) {
        struct map_slot *s = &m->slots[i];
        if (!s->key || (s->hash == hash && strcmp(s->key, key) == 0))
            return s;
    }
}

void *map_get(const struct map *m, const char *key)
{
    return m->n == 0 ? NULL : map_seek(m, key, map_hash(m->seed, key))->value;
}

static void map_grow(struct map *m)
{
    struct map old = *m;
    if (!m->cap)
        random_bytes(m->seed, sizeof m->seed);
    m->cap = old.cap ? old.cap * 2 : 16;
    m->slots = xcalloc(m->cap, sizeof *m->slots);
    for (size_t i = 0; i < old.cap; i++)
        if (old.slots[i].key)
            *map_seek(m, old.slots[i].key, old.slots[i].hash) = old.slots[i];
    free(old.slots);
}

void *map_put(struct map *m, const char *key, void *value)
{
    if (m->n >= m->cap - m->cap / 4)
        map_grow(m);
    uint64_t hash = map_hash(m->seed, key);
    struct map_slot *s = map_seek(m, key, hash);
    void *was = s->value;
    m->n += !s->key;
    *s = (struct map_slot){.key = key, .value = value, .hash = hash};
    return was;
}

void *map_del(struct map *m, const char *key)
{
    if (m->n == 0)
        return NULL;
    struct map_slot *s = map_seek(m, key, map_hash(m->seed, key));
    if (!s->key)
        return NULL;
    void *was = s->value;
    m->n--;
    /* Move up entries behind the hole that would no longer be found. */
    size_t hole = (size_t)(s - m->slots);
    for (size_t i = (hole + 1) & (m->cap - 1); m->slots[i].key; i = (i + 1) & (m->cap - 1)) {
        size_t home = m->slots[i].hash & (m->cap - 1);
        if (((i - home) & (m->cap - 1)) >= ((i - hole) & (m->cap - 1))) {
            m->slots[hole] = m->slots[i];
            hole = i;
        }
    }
    m->slots[hole] = (struct map_slot){0};
    return was;
}

void *map_next(const struct map *m, size_t *at)
{
    while (*at < m->cap) {
        struct map_slot *s = &m->slots[(*at)++];
        if (s->key)
            return s->value;
    }
    return NULL;
}

void map_done(struct map *m)
{
    free(m->slots);
    *m = (struct map){0};
}
