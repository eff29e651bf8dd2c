/* table.c - all sandboxes this keeper knows, by id. */
#include <string.h>

#include "keeper/keeper-int.h"

static uint32_t *table_bucket(struct keeper *k, const char *id)
{
    uint32_t h = 2166136261U;
    for (size_t i = 0; i < KEEPER_ID_MAX && id[i]; i++)
        h = (h ^ (unsigned char)id[i]) * 16777619U;
    return &k->buckets[h % KEEPER_BUCKETS];
}

struct entry *entry_find(struct keeper *k, const char *id)
{
    for (uint32_t i = *table_bucket(k, id); i; i = k->entries[i - 1].next)
        if (strncmp(k->entries[i - 1].id, id, KEEPER_ID_MAX) == 0)
            return &k->entries[i - 1];
    return NULL;
}

struct entry *entry_new(struct keeper *k, const char *id)
{
    struct entry *e;
    if (k->free_list) {
        e = &k->entries[k->free_list - 1];
        k->free_list = e->next;
    } else if (k->nentries < 2 * KEEPER_SANDBOXES_MAX) {
        e = &k->entries[k->nentries++];
    } else {
        return NULL;
    }
    uint32_t gen = e->gen + 1;
    *e = (struct entry){.gen = gen & 0xffffff, .pid = -1, .pidfd = -1, .status = -1, .sandbox = WALL_SANDBOX_INIT};
    for (unsigned i = 0; i < KEEPER_HOLDERS; i++)
        e->holders[i].pidfd = -1;
    memcpy(e->id, id, strnlen(id, KEEPER_ID_MAX - 1));
    uint32_t *b = table_bucket(k, e->id);
    e->next = *b;
    *b = entry_index(k, e) + 1;
    return e;
}

static uint32_t *table_count_of(struct keeper *k, enum life life)
{
    switch (life) {
    case LIFE_STARTING:
        return &k->nstarting;
    case LIFE_LIVE:
        return &k->nlive;
    case LIFE_ENDING:
        return &k->nending;
    case LIFE_DEAD:
        return &k->ndead;
    default:
        return NULL;
    }
}

void entry_set(struct keeper *k, struct entry *e, enum life life)
{
    uint32_t *from = table_count_of(k, e->life), *to = table_count_of(k, life);
    if (from)
        --*from;
    if (to)
        ++*to;
    e->life = life;
    e->since_ms = keeper_now_ms();
}

void entry_free(struct keeper *k, struct entry *e)
{
    uint32_t self = entry_index(k, e) + 1;
    entry_set(k, e, LIFE_NONE);
    for (uint32_t *p = table_bucket(k, e->id); *p; p = &k->entries[*p - 1].next) {
        if (*p == self) {
            *p = e->next;
            break;
        }
    }
    e->gen = (e->gen + 1) & 0xffffff;
    e->id[0] = '\0';
    e->next = k->free_list;
    k->free_list = self;
}
