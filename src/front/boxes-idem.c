/* Idempotency keys: a create that is asked for twice with the same key is done once. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/mem.h"
#include "base/sha256.h"
#include "front/boxes-int.h"
#include "front/net-doc.h"

enum { IDEMS_MAX = 100000 };

static struct idem *unlink_first(struct boxes *bs)
{
    struct idem *i = bs->first_idem;
    bs->first_idem = i->next;
    if (!i->next)
        bs->last_idem = &bs->first_idem;
    if (i->name && map_get(&bs->idems, i->name) == i)
        (void)map_del(&bs->idems, i->name);
    return i;
}

static void drop_first(struct boxes *bs)
{
    struct idem *i = unlink_first(bs);
    free(i->name);
    free(i);
}

uint64_t idem_now(const struct front *f) { return (f->boxes->boot_unix_ms + boxes_boot_ms()) / 1000; }

struct idem *idem_find(struct front *f, const char *tenant, const char *key)
{
    _cleanup_free_ char *name = xasprintf("%s/%s", tenant, key);
    struct idem *i = map_get(&f->boxes->idems, name);
    return i && i->created_unix + STORE_IDEM_HOURS * 3600 > idem_now(f) ? i : NULL;
}

void idem_add(struct front *f, const char *tenant, const char *key, const char *digest, const char *sandbox,
              uint64_t created_unix)
{
    struct boxes *bs = f->boxes;
    idem_forget(f, tenant, key);
    if (bs->idems.n >= IDEMS_MAX)
        drop_first(bs);
    struct idem *i = xcalloc(1, sizeof *i);
    i->name = xasprintf("%s/%s", tenant, key);
    (void)snprintf(i->digest, sizeof i->digest, "%s", digest);
    (void)snprintf(i->sandbox, sizeof i->sandbox, "%s", sandbox);
    i->created_unix = created_unix;
    *bs->last_idem = i;
    bs->last_idem = &i->next;
    (void)map_put(&bs->idems, i->name, i);
}

void idem_forget(struct front *f, const char *tenant, const char *key)
{
    _cleanup_free_ char *name = xasprintf("%s/%s", tenant, key);
    struct idem *i = map_del(&f->boxes->idems, name);
    if (i) /* stays in the list, without a name, until it is the oldest */
        i->name[0] = '\0';
}

static void load_one(void *arg, const struct store_idem *i)
{
    uint64_t now = idem_now(arg); /* one of the future: the clock was set back, and nobody knows its age */
    idem_add(arg, i->tenant, i->key, i->digest, i->sandbox, i->created_unix < now ? i->created_unix : now);
}

int idems_load(struct front *f, struct err *err)
{
    f->boxes->last_idem = &f->boxes->first_idem;
    return store_idems(f->store, load_one, f, err);
}

void idems_expire(struct front *f)
{
    uint64_t before = idem_now(f) - STORE_IDEM_HOURS * 3600;
    while (f->boxes->first_idem && f->boxes->first_idem->created_unix < before)
        drop_first(f->boxes);
    store_idem_expire(f->store, before);
}

void idems_free(struct front *f)
{
    while (f->boxes->first_idem)
        drop_first(f->boxes);
    map_done(&f->boxes->idems);
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
