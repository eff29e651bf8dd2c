/* Idempotency keys: a create that is asked for twice with the same key is done once. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/mem.h"
#include "base/sha256.h"
#include "front/boxes-int.h"
#include "front/net-doc.h"

/* Keys of one tenant; stays when it has none left. */
struct idem_share {
    char tenant[40];
    struct idem *first, **last; /* oldest first */
    size_t n;
};

static struct idem_share *idem_share_of(struct boxes *bs, const char *tenant)
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

static void idem_drop(struct boxes *bs, struct idem *i)
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

/* From memory and from the store. */
static void idem_drop_stored(struct front *f, struct idem *i)
{
    store_idem_del(f->store, i->share->tenant, i->name + strlen(i->share->tenant) + 1);
    idem_drop(f->boxes, i);
}

/* Makes room for one more: the tenant that has the most keys gives its oldest, so that no tenant pushes out those of one
 * that has fewer. */
static void idem_make_room(struct front *f)
{
    const struct idem_share *most = NULL;
    size_t at = 0;
    if (f->boxes->idems.n < IDEMS_MAX)
        return;
    for (const struct idem_share *s; (s = map_next(&f->boxes->idem_shares, &at));)
        if (!most || s->n > most->n)
            most = s;
    if (most)
        idem_drop_stored(f, most->first);
}

uint64_t idem_now(const struct front *f) { return (f->boxes->boot_unix_ms + boxes_boot_ms()) / 1000; }

static struct idem *idem_get(struct front *f, const char *tenant, const char *key)
{
    _cleanup_free_ char *name = xasprintf("%s/%s", tenant, key);
    return map_get(&f->boxes->idems, name);
}

struct idem *idem_find(struct front *f, const char *tenant, const char *key)
{
    struct idem *i = idem_get(f, tenant, key);
    return i && i->created_unix + STORE_IDEM_HOURS * 3600 > idem_now(f) ? i : NULL;
}

void idem_add(struct front *f, const char *tenant, const char *key, const char *digest, const char *sandbox,
              uint64_t created_unix)
{
    struct boxes *bs = f->boxes;
    struct idem *old = idem_get(f, tenant, key);
    if (old)
        idem_drop(bs, old);
    idem_make_room(f);
    struct idem_share *s = idem_share_of(bs, tenant);
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
    (void)map_put(&bs->idems, i->name, i);
}

void idem_forget(struct front *f, const char *tenant, const char *key)
{
    struct idem *i = idem_get(f, tenant, key);
    if (i)
        idem_drop_stored(f, i);
}

void idem_forget_box(struct front *f, const char *sandbox)
{
    size_t at = 0;
    for (struct idem *i; (i = map_next(&f->boxes->idems, &at));)
        if (strcmp(i->sandbox, sandbox) == 0) {
            idem_drop_stored(f, i);
            return;
        }
}

static void load_one(void *arg, const struct store_idem *i)
{
    uint64_t now = idem_now(arg); /* one of the future: the clock was set back, and nobody knows its age */
    idem_add(arg, i->tenant, i->key, i->digest, i->sandbox, i->created_unix < now ? i->created_unix : now);
}

int idems_load(struct front *f, struct err *err) { return store_idems(f->store, load_one, f, err); }

void idems_expire(struct front *f)
{
    uint64_t before = idem_now(f) - STORE_IDEM_HOURS * 3600;
    size_t at = 0;
    for (struct idem_share *s; (s = map_next(&f->boxes->idem_shares, &at));)
        while (s->first && s->first->created_unix < before)
            idem_drop(f->boxes, s->first);
    store_idem_expire(f->store, before);
}

void idems_free(struct front *f)
{
    size_t at = 0;
    for (struct idem_share *s; (s = map_next(&f->boxes->idem_shares, &at)); free(s))
        while (s->first)
            idem_drop(f->boxes, s->first);
    map_done(&f->boxes->idems);
    map_done(&f->boxes->idem_shares);
}

static void add_text(struct sha256 *h, const char *s) { sha256_add(h, s ? s : "", s ? strlen(s) + 1 : 1); }

/* Nothing, if nothing was said: keys that an earlier version wrote stay good. */
static void add_life(struct sha256 *h, const struct box_spec *s)
{
    const uint32_t life[] = {s->auto_pause, s->auto_pause_files, s->auto_resume, s->history | (s->no_history ? 2U : 0U),
                             s->idle_s,     (uint32_t)s->nmounts};
    static const uint32_t none[ARRAY_LEN(life)];
    if (memcmp(life, none, sizeof life) == 0)
        return;
    sha256_add(h, life, sizeof life);
    for (size_t i = 0; i < s->nmounts; i++) {
        add_text(h, s->mounts[i].volume);
        add_text(h, s->mounts[i].place);
    }
}

void idem_digest(const struct box_spec *s, char ret[72])
{
    struct sha256 h;
    uint8_t digest[SHA256_BYTES];
    sha256_start(&h);
    add_text(&h, s->template);
    add_text(&h, s->mask_host);
    add_text(&h, s->net ? s->net->document : NULL);
    for (size_t i = 0; i < s->metadata.n; i++)
        add_text(&h, s->metadata.v[i]);
    add_text(&h, NULL);
    for (size_t i = 0; i < s->env.n; i++)
        add_text(&h, s->env.v[i]);
    add_text(&h, NULL);
    const uint32_t numbers[] = {s->timeout_s, s->secure, s->allow_public_traffic, s->allow_internet,
                                (uint32_t)s->nhttps_ports};
    sha256_add(&h, numbers, sizeof numbers);
    if (s->nhttps_ports)
        sha256_add(&h, s->https_ports, s->nhttps_ports * sizeof *s->https_ports);
    for (size_t i = 0; i < s->ports.n; i++)
        sha256_add(&h, &s->ports.v[i], sizeof s->ports.v[i]);
    add_life(&h, s);
    sha256_end(&h, digest);
    for (size_t i = 0; i < sizeof digest; i++)
        (void)snprintf(ret + 2 * i, 3, "%02x", digest[i]);
}
