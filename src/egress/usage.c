/* usage.c - counts what sandboxes sent and received, by host, and the sums of each tenant over its live and ended
 * sandboxes. Front is told of changes and stores them. It seeds the next egress process with the stored counts, so that
 * counting goes on after a restart of either process.
 *
 * A tenant's sums grow by what each sandbox has counted since the last time (`folded`); they are not computed from the
 * sandboxes' totals. So they are right whichever of the two front stored last.
 */
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/json.h"
#include "base/mem.h"
#include "egress/core/egress.h"

enum { TENANTS_KEPT = 4096, HOSTS_KEPT = 512 };

struct tenant {
    uint64_t ended, ended_told; /* sandboxes */
    struct esb_counts counts, told;
    bool seeded;
    struct map hosts; /* name -> struct usage_host */
    char name[];
};

/* --- adding ------------------------------------------------------------------------------------------------------- */

static void add_counts(struct esb_counts *to, const struct esb_counts *c, const struct esb_counts *minus)
{
    to->connections += c->connections - minus->connections;
    to->requests += c->requests - minus->requests;
    to->denied += c->denied - minus->denied;
    to->bytes_up += c->bytes_up - minus->bytes_up;
    to->bytes_down += c->bytes_down - minus->bytes_down;
    to->dns += c->dns - minus->dns;
    to->injections += c->injections - minus->injections;
    to->redactions += c->redactions - minus->redactions;
    to->violations += c->violations - minus->violations;
}

static void add_host(struct host_counts *to, const struct host_counts *c, const struct host_counts *minus)
{
    to->requests += c->requests - minus->requests;
    to->denied += c->denied - minus->denied;
    to->bytes_up += c->bytes_up - minus->bytes_up;
    to->bytes_down += c->bytes_down - minus->bytes_down;
}

struct usage_host *usage_host(struct map *hosts, const char *name)
{
    struct usage_host *h = map_get(hosts, name);
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
    return h;
}

void usage_free_hosts(struct map *hosts)
{
    size_t at = 0;
    for (struct usage_host *h; (h = map_next(hosts, &at));)
        free(h);
    map_done(hosts);
}

static struct tenant *tenant_of(struct egress *g, const char *name)
{
    struct tenant *t = map_get(&g->tenants, name);
    if (t || !name[0] || g->tenants.n >= TENANTS_KEPT)
        return t;
    size_t n = strlen(name) + 1;
    t = xcalloc(1, sizeof *t + n);
    memcpy(t->name, name, n);
    (void)map_put(&g->tenants, t->name, t);
    return t;
}

/* Adds what the sandbox counted since the last time to its tenant's sums. */
static void usage_fold(struct esb *s)
{
    struct tenant *t = memcmp(&s->folded, &s->counts, sizeof s->folded) ? tenant_of(s->g, s->tenant) : NULL;
    size_t at = 0;
    if (!t)
        return;
    add_counts(&t->counts, &s->counts, &s->folded);
    s->folded = s->counts;
    for (struct usage_host *h; (h = map_next(&s->hosts, &at));)
        if (memcmp(&h->folded, &h->counts, sizeof h->folded) != 0) {
            add_host(&usage_host(&t->hosts, h->name)->counts, &h->counts, &h->folded);
            h->folded = h->counts;
        }
}

static void usage_fold_all(struct egress *g, const char *tenant)
{
    size_t at = 0;
    for (struct esb *s; (s = map_next(&g->sandboxes, &at));)
        if (!tenant || strcmp(s->tenant, tenant) == 0)
            usage_fold(s);
}

void usage_ended(struct esb *s)
{
    struct tenant *t = tenant_of(s->g, s->tenant);
    usage_fold(s);
    if (t)
        t->ended++;
}

static void tenant_free(struct tenant *t)
{
    usage_free_hosts(&t->hosts);
    free(t);
}

void usage_forget_all(struct egress *g)
{
    size_t at = 0;
    for (struct tenant *t; (t = map_next(&g->tenants, &at));)
        tenant_free(t);
    map_done(&g->tenants);
}

void usage_forget_tenant(struct egress *g, const char *tenant)
{
    struct tenant *t = map_del(&g->tenants, tenant);
    size_t at = 0;
    if (t)
        tenant_free(t);
    /* Sandboxes that front has forgotten and keeper has not: their further counts belong to no tenant. */
    for (struct esb *s; (s = map_next(&g->sandboxes, &at));)
        if (!s->policy && strcmp(s->tenant, tenant) == 0)
            s->tenant[0] = '\0';
}

/* --- what was counted before -------------------------------------------------------------------------------------- */

static void seed_hosts(struct map *to, const struct map *from, bool folded)
{
    static const struct host_counts none;
    size_t at = 0;
    for (const struct usage_host *f; (f = map_next(from, &at));) {
        struct usage_host *h = usage_host(to, f->name);
        add_host(&h->counts, &f->counts, &none);
        add_host(&h->told, &f->counts, &none);
        if (folded)
            add_host(&h->folded, &f->counts, &none);
    }
}

void usage_seed(struct egress *g, struct esb *s, const char *tenant, const struct usage_seed *seed)
{
    static const struct esb_counts none;
    struct tenant *t = s ? NULL : tenant_of(g, tenant);
    if (s && !s->seeded) {
        s->seeded = true;
        add_counts(&s->counts, &seed->counts, &none);
        add_counts(&s->told, &seed->counts, &none);
        add_counts(&s->folded, &seed->counts, &none); /* the tenant's sums contain it already */
        seed_hosts(&s->hosts, &seed->hosts, true);
    } else if (t && !t->seeded) {
        t->seeded = true;
        t->ended += seed->ended;
        t->ended_told += seed->ended;
        add_counts(&t->counts, &seed->counts, &none);
        add_counts(&t->told, &seed->counts, &none);
        seed_hosts(&t->hosts, &seed->hosts, false);
    }
}

void usage_begins(struct esb *s)
{
    struct tenant *t = tenant_of(s->g, s->tenant);
    s->seeded = true;
    if (t)
        t->seeded = true;
}

/* --- telling ------------------------------------------------------------------------------------------------------ */

static void forget_hosts(struct map *hosts)
{
    size_t at = 0;
    for (struct usage_host *h; (h = map_next(hosts, &at));)
        h->told = (struct host_counts){0};
}

void usage_forget_told(struct egress *g)
{
    size_t at = 0;
    for (struct esb *s; (s = map_next(&g->sandboxes, &at));) {
        s->told = (struct esb_counts){0};
        forget_hosts(&s->hosts);
    }
    at = 0;
    for (struct tenant *t; (t = map_next(&g->tenants, &at));) {
        t->told = (struct esb_counts){0};
        t->ended_told = 0;
        forget_hosts(&t->hosts);
    }
}

void usage_add_counts(struct json *j, const struct esb_counts *c)
{
    json_u64(j, "connections", c->connections);
    json_u64(j, "requests", c->requests);
    json_u64(j, "denied", c->denied);
    json_u64(j, "bytes_up", c->bytes_up);
    json_u64(j, "bytes_down", c->bytes_down);
}

void usage_add_rest(struct json *j, const struct esb_counts *c)
{
    json_u64(j, "dns", c->dns);
    json_u64(j, "injections", c->injections);
    json_u64(j, "redactions", c->redactions);
    json_u64(j, "violations", c->violations);
}

static void add_one_host(struct json *j, const struct usage_host *h)
{
    json_obj(j, h->name);
    json_u64(j, "requests", h->counts.requests);
    json_u64(j, "denied", h->counts.denied);
    json_u64(j, "bytes_up", h->counts.bytes_up);
    json_u64(j, "bytes_down", h->counts.bytes_down);
    json_end_obj(j);
}

void usage_add_hosts(struct json *j, const struct map *hosts, size_t max)
{
    size_t at = 0;
    json_obj(j, "hosts");
    for (const struct usage_host *h; (h = map_next(hosts, &at));)
        if (j->out->n <= max)
            add_one_host(j, h);
    json_end_obj(j);
}

static void add_changed(struct json *j, const struct esb_counts *c, struct map *hosts)
{
    size_t at = 0;
    usage_add_counts(j, c);
    usage_add_rest(j, c);
    json_obj(j, "hosts");
    for (struct usage_host *h; (h = map_next(hosts, &at));)
        if (memcmp(&h->told, &h->counts, sizeof h->told) != 0) {
            add_one_host(j, h);
            h->told = h->counts;
        }
    json_end_obj(j);
    json_end_obj(j);
}

static void usage_start_message(struct json *j, struct buf *out, const char *type, const char *what, const char *name)
{
    json_start(j, out);
    json_obj(j, NULL);
    json_str(j, "type", type);
    json_str(j, what, name);
}

void usage_tell(struct esb *s)
{
    struct buf out = {0};
    struct json j;
    if (memcmp(&s->told, &s->counts, sizeof s->told) == 0 || control_busy(s->g))
        return;
    s->told = s->counts;
    usage_start_message(&j, &out, "usage", "sandbox", s->id);
    add_changed(&j, &s->counts, &s->hosts);
    control_tell(s->g, &out);
}

static void usage_tell_tenant(struct egress *g, struct tenant *t)
{
    struct buf out = {0};
    struct json j;
    if (t->ended == t->ended_told && memcmp(&t->told, &t->counts, sizeof t->told) == 0)
        return;
    t->told = t->counts;
    t->ended_told = t->ended;
    usage_start_message(&j, &out, "tenant_usage", "tenant", t->name);
    json_u64(&j, "sandboxes_ended", t->ended);
    add_changed(&j, &t->counts, &t->hosts);
    control_tell(g, &out);
}

void usage_tell_tenants(struct egress *g, const char *tenant)
{
    size_t at = 0;
    usage_fold_all(g, tenant);
    for (struct tenant *t; !control_busy(g) && (t = map_next(&g->tenants, &at));)
        if (!tenant || strcmp(t->name, tenant) == 0)
            usage_tell_tenant(g, t);
}

void usage_tenant(struct egress *g, const char *tenant, size_t max, struct buf *out)
{
    static const struct tenant none;
    uint64_t live = 0;
    size_t at = 0;
    struct json j;
    usage_fold_all(g, tenant);
    const struct tenant *t = map_get(&g->tenants, tenant);
    if (!t)
        t = &none;
    for (const struct esb *s; (s = map_next(&g->sandboxes, &at));)
        live += strcmp(s->tenant, tenant) == 0;
    json_start(&j, out);
    json_obj(&j, NULL);
    json_str(&j, "tenant", tenant);
    json_u64(&j, "sandboxes", live);
    json_u64(&j, "sandboxes_ended", t->ended);
    usage_add_counts(&j, &t->counts);
    usage_add_rest(&j, &t->counts);
    usage_add_hosts(&j, &t->hosts, max);
    json_end_obj(&j);
}
