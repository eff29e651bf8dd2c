/* usage.c - what the sandboxes of a tenant have sent and received together: those that live, and those that ended since this
 * process began. Of ended ones only sums are kept.
 */
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/json.h"
#include "base/mem.h"
#include "egress/egress.h"

enum { TENANTS_KEPT = 4096, HOSTS_KEPT = 512 };

struct host {
    struct host_counts counts;
    char name[];
};
struct tenant {
    uint64_t ended; /* sandboxes */
    struct esb_counts counts;
    struct map hosts; /* name -> struct host */
    char name[];
};

static void add_counts(struct esb_counts *to, const struct esb_counts *c)
{
    to->connections += c->connections;
    to->requests += c->requests;
    to->denied += c->denied;
    to->bytes_up += c->bytes_up;
    to->bytes_down += c->bytes_down;
    to->dns += c->dns;
    to->injections += c->injections;
    to->redactions += c->redactions;
    to->violations += c->violations;
}

static struct host_counts *host_of(struct map *hosts, const char *name)
{
    struct host *h = map_get(hosts, name);
    if (!h && hosts->n >= HOSTS_KEPT - 1) {
        name = "other";
        h = map_get(hosts, name);
    }
    if (!h) {
        size_t n = strlen(name) + 1;
        h = xcalloc(1, sizeof *h + n);
        memcpy(h->name, name, n);
        (void)map_put(hosts, h->name, h);
    }
    return &h->counts;
}

static void add_host(struct map *to, const char *name, const struct host_counts *c)
{
    struct host_counts *h = host_of(to, name);
    h->requests += c->requests;
    h->denied += c->denied;
    h->bytes_up += c->bytes_up;
    h->bytes_down += c->bytes_down;
}

/* The values of either map begin with the counts. */
static void add_hosts(struct map *to, const struct map *from)
{
    for (size_t i = 0; i < from->cap; i++)
        if (from->slots[i].key)
            add_host(to, from->slots[i].key, from->slots[i].value);
}

static void free_hosts(struct map *hosts)
{
    size_t at = 0;
    for (struct host *h; (h = map_next(hosts, &at));)
        free(h);
    map_done(hosts);
}

static struct tenant *tenant_of(struct egress *g, const char *name)
{
    struct tenant *t = map_get(&g->tenants, name);
    if (t || g->tenants.n >= TENANTS_KEPT)
        return t;
    size_t n = strlen(name) + 1;
    t = xcalloc(1, sizeof *t + n);
    memcpy(t->name, name, n);
    (void)map_put(&g->tenants, t->name, t);
    return t;
}

void usage_ended(const struct esb *s)
{
    struct tenant *t = s->tenant[0] ? tenant_of(s->g, s->tenant) : NULL;
    if (!t)
        return;
    t->ended++;
    add_counts(&t->counts, &s->counts);
    add_hosts(&t->hosts, &s->hosts);
}

void usage_free(struct egress *g)
{
    size_t at = 0;
    for (struct tenant *t; (t = map_next(&g->tenants, &at));) {
        free_hosts(&t->hosts);
        free(t);
    }
    map_done(&g->tenants);
}

void usage_add_counts(struct json *j, const struct esb_counts *c)
{
    json_u64(j, "connections", c->connections);
    json_u64(j, "requests", c->requests);
    json_u64(j, "denied", c->denied);
    json_u64(j, "bytes_up", c->bytes_up);
    json_u64(j, "bytes_down", c->bytes_down);
}

void usage_add_hosts(struct json *j, const struct map *hosts, size_t max)
{
    json_obj(j, "hosts");
    for (size_t i = 0; i < hosts->cap; i++) {
        const struct host_counts *h = hosts->slots[i].value;
        if (!hosts->slots[i].key || j->out->n > max)
            continue;
        json_obj(j, hosts->slots[i].key);
        json_u64(j, "requests", h->requests);
        json_u64(j, "denied", h->denied);
        json_u64(j, "bytes_up", h->bytes_up);
        json_u64(j, "bytes_down", h->bytes_down);
        json_end_obj(j);
    }
    json_end_obj(j);
}

void usage_tenant(struct egress *g, const char *tenant, size_t max, struct buf *out)
{
    const struct tenant *t = map_get(&g->tenants, tenant);
    struct esb_counts sum = {0};
    struct map hosts = {0};
    uint64_t live = 0;
    size_t at = 0;
    struct json j;
    if (t) {
        add_counts(&sum, &t->counts);
        add_hosts(&hosts, &t->hosts);
    }
    for (struct esb *s; (s = map_next(&g->sandboxes, &at));)
        if (strcmp(s->tenant, tenant) == 0) {
            live++;
            add_counts(&sum, &s->counts);
            add_hosts(&hosts, &s->hosts);
        }
    json_start(&j, out);
    json_obj(&j, NULL);
    json_str(&j, "tenant", tenant);
    json_u64(&j, "sandboxes", live);
    json_u64(&j, "sandboxes_ended", t ? t->ended : 0);
    usage_add_counts(&j, &sum);
    json_u64(&j, "dns", sum.dns);
    json_u64(&j, "injections", sum.injections);
    json_u64(&j, "redactions", sum.redactions);
    json_u64(&j, "violations", sum.violations);
    usage_add_hosts(&j, &hosts, max);
    json_end_obj(&j);
    free_hosts(&hosts);
}
