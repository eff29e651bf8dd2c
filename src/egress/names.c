/* names.c - maps names to synthetic addresses and back, inside one sandbox.
 *
 * Three tables, each with its own least recently used order: names that may be allowed (198.18.0.0/16), names that are
 * denied (198.19.0.0/16), and real addresses with the name that was asked for. An address is reused only after the
 * other 65,534 of its half: a client that keeps one for too long fails rather than reaches another host.
 */
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "egress/core/egress.h"

enum { ALLOWED_MAX = 4096, DENIED_MAX = 1024, LEARNED_MAX = 4096, KEY_MAX = 40 };
#define ALLOWED_NET 0xc6120000u /* 198.18.0.0 */
#define DENIED_NET  0xc6130000u /* 198.19.0.0 */
#define HALF_MASK   0xffff0000u

struct entry {
    struct entry *older, *newer;
    uint64_t told;     /* the minute in which its refusal was recorded, plus one; 0: never */
    char key[KEY_MAX]; /* the address as text */
    uint32_t v4;
    char name[];
};

struct table {
    struct map by_name, by_address; /* by_name: synthetic tables only */
    struct entry *oldest, *newest;
    size_t n, max;
    uint32_t net, next;
};

struct names {
    struct table allowed, denied, learned;
};

/* fd00:0:0:1::/96 and the IPv4 address. */
static const unsigned char prefix6[12] = {0xfd, 0, 0, 0, 0, 0, 0, 1};

struct names *names_new(void)
{
    struct names *n = xcalloc(1, sizeof *n);
    n->allowed = (struct table){.max = ALLOWED_MAX, .net = ALLOWED_NET};
    n->denied = (struct table){.max = DENIED_MAX, .net = DENIED_NET};
    n->learned = (struct table){.max = LEARNED_MAX};
    return n;
}

static void names_unlink(struct table *t, struct entry *e)
{
    *(e->older ? &e->older->newer : &t->oldest) = e->newer;
    *(e->newer ? &e->newer->older : &t->newest) = e->older;
}

static void names_link_newest(struct table *t, struct entry *e)
{
    e->older = t->newest;
    e->newer = NULL;
    *(t->newest ? &t->newest->newer : &t->oldest) = e;
    t->newest = e;
}

static void names_touch(struct table *t, struct entry *e)
{
    if (t->newest == e)
        return;
    names_unlink(t, e);
    names_link_newest(t, e);
}

static void names_drop(struct table *t, struct entry *e)
{
    names_unlink(t, e);
    (void)map_del(&t->by_address, e->key);
    if (t->net)
        (void)map_del(&t->by_name, e->name);
    t->n--;
    free(e);
}

static void table_done(struct table *t)
{
    while (t->oldest)
        names_drop(t, t->oldest);
    map_done(&t->by_name);
    map_done(&t->by_address);
}

void names_free(struct names *n)
{
    if (!n)
        return;
    table_done(&n->allowed);
    table_done(&n->denied);
    table_done(&n->learned);
    free(n);
}

static struct entry *names_add(struct table *t, const char *name)
{
    size_t len = strlen(name) + 1;
    struct entry *e = xcalloc(1, sizeof *e + len);
    memcpy(e->name, name, len);
    if (t->n == t->max)
        names_drop(t, t->oldest);
    t->n++;
    names_link_newest(t, e);
    return e;
}

static void key_of_v4(char key[KEY_MAX], uint32_t v4) { (void)snprintf(key, KEY_MAX, "%08x", v4); }

/* The next free address; there are sixteen times as many as entries. */
static void names_give_address(struct table *t, struct entry *e)
{
    do {
        t->next = t->next >= 0xfffe ? 1 : t->next + 1;
        e->v4 = t->net | t->next;
        key_of_v4(e->key, e->v4);
    } while (map_get(&t->by_address, e->key));
    (void)map_put(&t->by_address, e->key, e);
}

static struct entry *names_entry(struct table *t, const char *name)
{
    struct entry *e = map_get(&t->by_name, name);
    if (e) {
        names_touch(t, e);
        return e;
    }
    e = names_add(t, name);
    (void)map_put(&t->by_name, e->name, e);
    names_give_address(t, e);
    return e;
}

uint32_t names_address(struct names *n, const char *name, bool allowed)
{
    return names_entry(allowed ? &n->allowed : &n->denied, name)->v4;
}

bool names_tell(struct names *n, const char *name, uint64_t minute)
{
    struct entry *e = names_entry(&n->denied, name);
    bool first = e->told != minute + 1;
    e->told = minute + 1;
    return first;
}

struct in6_addr names_v6(uint32_t v4)
{
    struct in6_addr a;
    uint32_t net = htonl(v4);
    memcpy(a.s6_addr, prefix6, sizeof prefix6);
    memcpy(a.s6_addr + 12, &net, 4);
    return a;
}

/* The IPv4 form of a synthetic address of either family; 0: not synthetic. */
static uint32_t names_synthetic_v4(const struct in6_addr *a)
{
    uint32_t v4;
    if (!IN6_IS_ADDR_V4MAPPED(a) && memcmp(a->s6_addr, prefix6, sizeof prefix6) != 0)
        return 0;
    memcpy(&v4, a->s6_addr + 12, 4);
    v4 = ntohl(v4);
    return (v4 & HALF_MASK) == ALLOWED_NET || (v4 & HALF_MASK) == DENIED_NET ? v4 : 0;
}

bool names_synthetic(const struct in6_addr *a) { return names_synthetic_v4(a) != 0; }

const char *names_name(struct names *n, const struct in6_addr *a)
{
    char key[KEY_MAX];
    uint32_t v4 = names_synthetic_v4(a);
    struct table *t = &n->learned;
    if (v4) {
        t = (v4 & HALF_MASK) == ALLOWED_NET ? &n->allowed : &n->denied;
        key_of_v4(key, v4);
    } else {
        for (size_t i = 0; i < 16; i++)
            (void)snprintf(key + 2 * i, 3, "%02x", a->s6_addr[i]);
    }
    struct entry *e = map_get(&t->by_address, key);
    if (!e)
        return NULL;
    names_touch(t, e);
    return e->name;
}

void names_learn(struct names *n, const struct in6_addr *a, const char *name)
{
    char key[KEY_MAX];
    for (size_t i = 0; i < 16; i++)
        (void)snprintf(key + 2 * i, 3, "%02x", a->s6_addr[i]);
    struct entry *e = map_get(&n->learned.by_address, key);
    if (e && strcmp(e->name, name) == 0) {
        names_touch(&n->learned, e);
        return;
    }
    if (e)
        names_drop(&n->learned, e);
    e = names_add(&n->learned, name);
    memcpy(e->key, key, sizeof e->key);
    (void)map_put(&n->learned.by_address, e->key, e);
}
