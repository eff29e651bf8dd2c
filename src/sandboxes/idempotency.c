/* Idempotency keys: a create that is requested twice with the same key is done once. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/sha256.h"
#include "network/doc/documents.h"
#include "sandboxes/sandboxes-int.h"

/* The keys of one tenant. Not freed when the last key goes. */
struct idem_share {
    char tenant[40];
    struct idem *first, **last; /* oldest first */
    size_t n;
};

static struct idem_share *idem_share_of(struct sandboxes *bs, const char *tenant)
{
    struct idem_share *s = map_get(&bs->idem_shares, tenant);
    if (s)
        return s;
    s = xcalloc(1, sizeof *s);
    (void)snprintf(s->tenant, sizeof s->tenant, "%s", tenant);
    s->last = &s->first;
    (void)map_put(&bs->idem_shares, s->tenant, s);
    return s;
}

static void idem_drop(struct sandboxes *bs, struct idem *i)
{
    struct idem_share *s = i->share;
    *i->link = i->next;
    if (i->next)
        i->next->link = i->link;
    else
        s->last = i->link;
    (void)map_del(&bs->idems, i->name);
    s->n--;
    free(i->name);
    free(i);
}

/* Drops it from memory and from the database. */
static void idem_drop_stored(struct sandboxes *sb, struct idem *i)
{
    db_idem_del(sb->db, i->share->tenant, i->name + strlen(i->share->tenant) + 1);
    idem_drop(sb, i);
}

/* Makes room for one more: drops the oldest key of the tenant with the most keys, so that no tenant can push out the
 * keys of tenants with fewer. */
static void idem_make_room(struct sandboxes *sb)
{
    const struct idem_share *most = NULL;
    size_t at = 0;
    if (sb->idems.n < IDEMS_MAX)
        return;
    for (const struct idem_share *s; (s = map_next(&sb->idem_shares, &at));)
        if (!most || s->n > most->n)
            most = s;
    if (most)
        idem_drop_stored(sb, most->first);
}

uint64_t idem_now(const struct sandboxes *sb) { return (sb->boot_unix_ms + clock_boot_ms()) / 1000; }

static struct idem *idem_get(struct sandboxes *sb, const char *tenant, const char *key)
{
    _cleanup_free_ char *name = xasprintf("%s/%s", tenant, key);
    return map_get(&sb->idems, name);
}

struct idem *idem_find(struct sandboxes *sb, const char *tenant, const char *key)
{
    struct idem *i = idem_get(sb, tenant, key);
    return i && i->created_unix + DB_IDEM_HOURS * 3600 > idem_now(sb) ? i : NULL;
}

void idem_add(struct sandboxes *sb, const char *tenant, const char *key, const char *digest, const char *sandbox,
              uint64_t created_unix)
{
    struct idem *old = idem_get(sb, tenant, key);
    if (old)
        idem_drop(sb, old);
    idem_make_room(sb);
    struct idem_share *s = idem_share_of(sb, tenant);
    struct idem *i = xcalloc(1, sizeof *i);
    i->share = s;
    i->name = xasprintf("%s/%s", tenant, key);
    (void)snprintf(i->digest, sizeof i->digest, "%s", digest);
    (void)snprintf(i->sandbox, sizeof i->sandbox, "%s", sandbox);
    i->created_unix = created_unix;
    i->link = s->last;
    *s->last = i;
    s->last = &i->next;
    s->n++;
    (void)map_put(&sb->idems, i->name, i);
}

void idem_forget(struct sandboxes *sb, const char *tenant, const char *key)
{
    struct idem *i = idem_get(sb, tenant, key);
    if (i)
        idem_drop_stored(sb, i);
}

void idem_forget_sandbox(struct sandboxes *sb, const char *sandbox)
{
    size_t at = 0;
    for (struct idem *i; (i = map_next(&sb->idems, &at));)
        if (strcmp(i->sandbox, sandbox) == 0) {
            idem_drop_stored(sb, i);
            return;
        }
}

static void idem_load(void *arg, const struct db_idem *i)
{
    uint64_t now = idem_now(arg); /* a time in the future: the clock was set back; count its age from now */
    idem_add(arg, i->tenant, i->key, i->digest, i->sandbox, i->created_unix < now ? i->created_unix : now);
}

int idems_load(struct sandboxes *sb, struct err *err) { return db_idems(sb->db, idem_load, sb, err); }

void idems_expire(struct sandboxes *sb)
{
    uint64_t before = idem_now(sb) - DB_IDEM_HOURS * 3600;
    size_t at = 0;
    for (struct idem_share *s; (s = map_next(&sb->idem_shares, &at));)
        while (s->first && s->first->created_unix < before)
            idem_drop(sb, s->first);
    db_idem_expire(sb->db, before);
}

void idems_free(struct sandboxes *sb)
{
    size_t at = 0;
    for (struct idem_share *s; (s = map_next(&sb->idem_shares, &at)); free(s))
        while (s->first)
            idem_drop(sb, s->first);
    map_done(&sb->idems);
    map_done(&sb->idem_shares);
}

static void idem_hash_text(struct sha256 *h, const char *s) { sha256_add(h, s ? s : "", s ? strlen(s) + 1 : 1); }

/* Adds nothing if all are defaults, so that digests of earlier versions, which did not have these fields, still
 * match. */
static void idem_hash_life(struct sha256 *h, const struct sandbox_desc *d)
{
    const uint32_t life[] = {d->life.auto_pause,  d->life.auto_pause_files,
                             d->life.auto_resume, d->history | (d->no_history ? 2U : 0U),
                             d->life.idle_s,      (uint32_t)d->nmounts};
    static const uint32_t none[ARRAY_LEN(life)];
    if (memcmp(life, none, sizeof life) == 0)
        return;
    sha256_add(h, life, sizeof life);
    for (size_t i = 0; i < d->nmounts; i++) {
        idem_hash_text(h, d->mounts[i].volume);
        idem_hash_text(h, d->mounts[i].place);
    }
}

void idem_digest(const struct sandbox_spec *s, char ret[72])
{
    const struct sandbox_desc *d = &s->desc;
    struct sha256 h;
    uint8_t digest[SHA256_BYTES];
    sha256_start(&h);
    idem_hash_text(&h, d->template);
    idem_hash_text(&h, d->mask_host);
    idem_hash_text(&h, s->net ? s->net->document : NULL);
    for (size_t i = 0; i < d->metadata.n; i++)
        idem_hash_text(&h, d->metadata.v[i]);
    idem_hash_text(&h, NULL);
    for (size_t i = 0; i < d->env.n; i++)
        idem_hash_text(&h, d->env.v[i]);
    idem_hash_text(&h, NULL);
    const uint32_t numbers[] = {d->timeout_s, d->secure, d->allow_public_traffic, d->allow_internet,
                                (uint32_t)d->nhttps_ports};
    sha256_add(&h, numbers, sizeof numbers);
    if (d->nhttps_ports)
        sha256_add(&h, d->https_ports, d->nhttps_ports * sizeof *d->https_ports);
    for (size_t i = 0; i < d->ports.n; i++)
        sha256_add(&h, &d->ports.v[i], sizeof d->ports.v[i]);
    idem_hash_life(&h, d);
    const uint64_t limits[] = {d->cpu_milli, d->memory, d->disk};
    if (limits[0] || limits[1] || limits[2]) /* else the digest is that of versions without them */
        sha256_add(&h, limits, sizeof limits);
    sha256_end(&h, digest);
    for (size_t i = 0; i < sizeof digest; i++)
        (void)snprintf(ret + 2 * i, 3, "%02x", digest[i]);
}
