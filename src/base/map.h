/* map.h - a hash map from strings to pointers. Open addressing; the hash is keyed with random bytes, so that the author
 * of the keys cannot choose the collisions. Keys are borrowed: they must stay as they are while they are in the map.
 */
#ifndef HUTCH_BASE_MAP_H
#define HUTCH_BASE_MAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct map_slot {
    const char *key; /* NULL: free */
    void *value;
    uint64_t hash;
};
struct map {
    struct map_slot *slots; /* owned */
    size_t n, cap;          /* cap is a power of two, or 0 */
    uint64_t seed[2];
};

/* A zeroed struct map is an empty map. */
void *map_get(const struct map *m, const char *key);
/* Puts or replaces; the value that was there, or NULL. */
void *map_put(struct map *m, const char *key, void *value);
/* Takes out; the value that was there, or NULL. */
void *map_del(struct map *m, const char *key);
/* Goes through the map: *at starts at 0. The map must not change meanwhile. NULL at the end. */
void *map_next(const struct map *m, size_t *at);
void map_done(struct map *m);

#endif
