/* Rows of volumes: makes, finds and deletes volumes, and compares the rows with what the layer store has. */
#include "volumes/volumes.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/random.h"
#include "db/db.h"
#include "peers/layersc.h"
#include "volumes/volumes-int.h"

enum { UNNAMED_S = 60, ID_LETTERS = 20 };

/* --- finding ------------------------------------------------------------------------------------------------------ */

bool volume_name_valid(const char *name)
{
    size_t n = strnlen(name, SANDBOX_MOUNT_NAME_MAX);
    return n > 0 && n < SANDBOX_MOUNT_NAME_MAX &&
           strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-") == n;
}

static struct volume_own *volume_by_name(const struct volumes *vs, const struct tenant *t, const char *name)
{
    char key[sizeof((struct volume_own *)NULL)->key];
    if (!volume_name_valid(name))
        return NULL;
    (void)snprintf(key, sizeof key, "%s/%s", t->id, name);
    return map_get(&vs->by_name, key);
}

struct volume *volume_by_id(struct volumes *vs, const char *id)
{
    struct volume_own *o = map_get(&vs->by_id, id);
    return o && o->state == VOLUME_THERE ? &o->v : NULL;
}

struct volume *volume_find(struct volumes *vs, const struct tenant *t, const char *id_or_name)
{
    struct volume *v = volume_by_id(vs, id_or_name);
    if (v && v->tenant == t)
        return v;
    struct volume_own *o = volume_by_name(vs, t, id_or_name);
    return o && o->state == VOLUME_THERE ? &o->v : NULL;
}

void volumes_each(struct volumes *vs, const struct tenant *t, volume_each_fn *fn, void *arg)
{
    size_t at = 0;
    for (struct volume_own *o; (o = map_next(&vs->by_id, &at));)
        if (o->state == VOLUME_THERE && o->v.tenant == t)
            fn(arg, &o->v);
}

struct state_size volume_size_of(uint64_t bytes, uint64_t entries)
{
    return (struct state_size){.bytes = bytes, .entries = entries ? entries : layers_volume_entries(bytes)};
}

/* The sum of the quotas of a tenant's volumes. A volume without a limit of entries counts as many as an image of its
 * size. */
static struct state_size volumes_size(void *ctx, const struct tenant *t)
{
    struct volumes *vs = ctx;
    size_t at = 0;
    struct state_size sum = {0};
    for (struct volume_own *o; (o = map_next(&vs->by_id, &at));) {
        struct state_size one = volume_size_of(o->v.bytes, o->v.entries);
        if (o->v.tenant != t || o->state == VOLUME_GOING)
            continue;
        sum.bytes += one.bytes;
        sum.entries += one.entries;
    }
    return sum;
}

bool volume_find_mount(struct volumes *vs, const struct tenant *t, struct sandbox_mount *m)
{
    const struct volume *v = volume_find(vs, t, m->name);
    if (!v)
        return false;
    (void)snprintf(m->volume, sizeof m->volume, "%s", v->id);
    (void)snprintf(m->name, sizeof m->name, "%s", v->name);
    return true;
}

static bool volume_mount_exists(void *arg, const struct sandbox_mount *m)
{
    struct volumes *vs = arg;
    return strncmp(m->volume, "vol-", 4) != 0 || volume_by_id(vs, m->volume);
}

struct users {
    const char *volume;
    char (*ret)[SANDBOX_ID_MAX];
    size_t n, max;
};

static void volume_note_user(void *arg, struct sandbox *b)
{
    struct users *u = arg;
    for (size_t i = 0; i < b->desc.nmounts && !b->desc.hidden; i++)
        if (strcmp(b->desc.mounts[i].volume, u->volume) == 0) {
            if (u->n < u->max)
                (void)snprintf(u->ret[u->n], SANDBOX_ID_MAX, "%s", b->id);
            u->n++;
            return;
        }
}

size_t volume_users(struct volumes *vs, const struct volume *v, char (*ret)[SANDBOX_ID_MAX], size_t max)
{
    struct users u = {.volume = v->id, .ret = ret, .max = max};
    sandboxes_each(vs->sandboxes, volume_note_user, &u);
    return u.n;
}

/* --- rows in memory ----------------------------------------------------------------------------------------------- */

static struct volume_own *volume_add(struct volumes *vs, struct tenant *t, const char *id, const char *name)
{
    struct volume_own *o = xcalloc(1, sizeof *o);
    o->v.tenant = t;
    (void)snprintf(o->v.id, sizeof o->v.id, "%s", id);
    (void)snprintf(o->v.name, sizeof o->v.name, "%s", name);
    (void)snprintf(o->key, sizeof o->key, "%s/%s", t->id, name);
    (void)map_put(&vs->by_id, o->v.id, o);
    (void)map_put(&vs->by_name, o->key, o);
    return o;
}

static void volume_forget(struct volumes *vs, struct volume_own *o)
{
    (void)map_del(&vs->by_id, o->v.id);
    (void)map_del(&vs->by_name, o->key);
    explicit_bzero(o->v.token, sizeof o->v.token);
    free(o);
}

static void volume_load(void *arg, const struct db_volume *row)
{
    struct volumes *vs = arg;
    struct tenant *t = tenants_find(vs->tenants, row->tenant);
    if (!t || !volume_name_valid(row->name)) { /* the tenant was removed just before a front died */
        db_volume_del(vs->db, row->id, NULL, NULL);
        return;
    }
    struct volume_own *o = volume_add(vs, t, row->id, row->name);
    o->state = VOLUME_THERE;
    (void)snprintf(o->v.token, sizeof o->v.token, "%s", row->token);
    o->v.created_unix_ms = row->created_unix_ms;
    o->v.bytes = row->bytes;
    o->v.entries = row->entries;
}

int volumes_load(struct volumes *vs, struct err *err)
{
    sandboxes_on_end(vs->sandboxes, volume_sandbox_ended, vs);
    return db_volumes(vs->db, volume_load, vs, err);
}

void volumes_free(struct volumes *vs)
{
    size_t at = 0;
    if (!vs)
        return;
    volume_sandboxes_free(vs);
    for (struct volume_own *o; (o = map_next(&vs->by_id, &at));) {
        explicit_bzero(o->v.token, sizeof o->v.token);
        free(o);
    }
    map_done(&vs->by_id);
    map_done(&vs->by_name);
    free(vs);
}

/* --- dropping ----------------------------------------------------------------------------------------------------- */

static void volume_on_dropped(void *arg, const struct layers_reply *r, int fd)
{
    (void)arg;
    if (fd >= 0)
        (void)close(fd);
    if (r->error != LAYERS_OK)
        log_text(LOG_LEVEL_WARN, "a volume could not be dropped (%s); it is tried again later", r->text);
}

static void volume_drop(struct volumes *vs, const char *volume)
{
    if (vs->peers->layers)
        (void)layersc_volume_drop(vs->peers->layers, &(struct layersc_to){.done = volume_on_dropped}, volume);
}

static void volume_drop_unnamed(struct volumes *vs, const char *volume)
{
    db_volume_del(vs->db, volume, NULL, NULL);
    volume_drop(vs, volume);
}

/* --- making ------------------------------------------------------------------------------------------------------- */

struct making {
    struct volumes *volumes;
    char id[LAYERS_SANDBOX_MAX];
    bool given;
    volume_done *done;
    void *arg;
    struct state_failure failure;
};

static void volume_make_tell(void *arg)
{
    struct making *m = arg;
    struct volume *v = m->failure.status ? NULL : volume_by_id(m->volumes, m->id);
    if (!v && !m->failure.status)
        state_fail(&m->failure, 503, "the volume was removed while it was made");
    m->done(m->arg, v, v ? NULL : &m->failure);
    free(m);
}

static void volume_make_on_row_stored(void *arg, const struct err *err)
{
    struct making *m = arg;
    struct volumes *vs = m->volumes;
    struct volume_own *o = map_get(&vs->by_id, m->id);
    if (err)
        state_fail_write(&m->failure, err, "the volume cannot be recorded");
    if (o && err) {
        volume_forget(vs, o);
        volume_drop(m->volumes, m->id);
    } else if (o && o->state == VOLUME_MAKING)
        o->state = VOLUME_THERE;
    else if (!o && !err) /* its tenant was removed; a new tenant with that id must not get it */
        volume_drop_unnamed(m->volumes, m->id);
    volume_make_tell(m);
}

static void volume_make_ask(struct making *m, const struct volume_own *o);

static void volume_make_on_reply(void *arg, const struct layers_reply *r, int fd)
{
    struct making *m = arg;
    struct volumes *vs = m->volumes;
    struct volume_own *o = map_get(&vs->by_id, m->id);
    if (fd >= 0)
        (void)close(fd);
    if (!o) { /* its tenant is gone */
        volume_drop(m->volumes, m->id);
        volume_make_tell(m);
        return;
    }
    if (r->error == LAYERS_HOST && !m->given && (o->v.bytes || o->v.entries)) {
        o->v.bytes = o->v.entries = 0; /* the default quota cannot be enforced; inspect shows that there is none */
        volume_make_ask(m, o);
        return;
    }
    if (r->error != LAYERS_OK) {
        state_layers_failure(r, o->v.bytes || o->v.entries ? "a volume with a quota" : "the volume", &m->failure);
        if (r->error == LAYERS_HOST)
            m->failure.error_code = "quota_unavailable";
        volume_forget(vs, o);
        volume_make_tell(m);
        return;
    }
    struct db_volume row = {.id = o->v.id,
                            .name = o->v.name,
                            .tenant = o->v.tenant->id,
                            .token = o->v.token,
                            .created_unix_ms = o->v.created_unix_ms,
                            .bytes = o->v.bytes,
                            .entries = o->v.entries};
    db_volume_put(m->volumes->db, &row, volume_make_on_row_stored, m);
}

static void volume_make_ask(struct making *m, const struct volume_own *o)
{
    const struct layersc_to to = {.owner = o->v.tenant->id, .done = volume_make_on_reply, .arg = m};
    (void)layersc_volume_make(m->volumes->peers->layers, &to, m->id, o->v.bytes, o->v.entries);
}

/* Includes volumes that are being made or deleted. */
static size_t volumes_count(const struct volumes *vs, const struct tenant *t)
{
    size_t at = 0, n = 0;
    for (struct volume_own *o; (o = map_next(&vs->by_id, &at));)
        n += o->v.tenant == t;
    return n;
}

bool volume_quota_allowed(const struct volumes *vs, const struct tenant *t, const struct volume_quota *q,
                          struct state_failure *why)
{
    uint64_t most = vs->config->volume_bytes;
    struct state_size limit = state_limit(vs->stacks, t);
    bool limited = most || limit.bytes || limit.entries;
    if (q->admin)
        return true;
    if (q->bytes == 0 && limited) {
        state_fail(
            why, 403,
            "a volume without a quota of bytes needs an admin key here: there is a limit (%s); name 'quota.bytes'",
            most ? "volumes.quota" : "the tenant's storage");
    } else if (most && q->bytes > most) {
        state_fail(why, 403, "a quota of more than %llu bytes (volumes.quota) needs an admin key",
                   (unsigned long long)most);
    }
    return why->status == 0;
}

static bool volume_admit(struct volumes *vs, struct tenant *t, const char *name, const struct volume_quota *q,
                         struct state_failure *why)
{
    size_t n = volumes_count(vs, t);
    if (!vs->peers->layers) {
        state_fail(why, 503, "the process that keeps files is not there; try again");
    } else if (t->closing) {
        state_fail(why, 409, "the tenant is being removed");
    } else if (!volume_name_valid(name)) {
        state_fail(why, 400, "a volume's name is 1 to %d letters, digits, '_' and '-'", SANDBOX_MOUNT_NAME_MAX - 1);
    } else if (volume_by_name(vs, t, name)) {
        state_fail(why, 409, "there is a volume '%s' already", name);
    } else if (n >= vs->config->volumes_per_tenant || vs->by_id.n >= VOLUMES_NODE_MAX) {
        state_fail(why, 429, "the tenant has %zu volumes; the limit is %u (volumes.per_tenant)", n,
                   vs->config->volumes_per_tenant);
        why->error_code = "quota_exceeded";
    } else if (volume_quota_allowed(vs, t, q, why) && (q->bytes || q->entries))
        (void)state_room(vs->stacks, t, 0, volume_size_of(q->bytes, q->entries), why);
    return why->status == 0;
}

static void volume_new_id(char ret[LAYERS_SANDBOX_MAX])
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyz012345"; /* 32: every one of five bits */
    unsigned char bytes[ID_LETTERS];
    random_bytes(bytes, sizeof bytes);
    memcpy(ret, "vol-", 4);
    for (size_t i = 0; i < sizeof bytes; i++)
        ret[4 + i] = letters[bytes[i] & 31];
    ret[4 + sizeof bytes] = '\0';
}

void volume_create(struct volumes *vs, struct tenant *t, const char *name, const struct volume_quota *q,
                   volume_done *done, void *arg)
{
    struct making *m = xcalloc(1, sizeof *m);
    *m = (struct making){.volumes = vs, .given = q->given, .done = done, .arg = arg};
    if (!volume_admit(vs, t, name, q, &m->failure)) {
        loop_defer(vs->loop, volume_make_tell, m);
        return;
    }
    volume_new_id(m->id);
    struct volume_own *o = volume_add(vs, t, m->id, name);
    random_hex(o->v.token, VOLUME_TOKEN / 2);
    o->v.created_unix_ms = (uint64_t)time(NULL) * 1000;
    o->v.bytes = q->bytes;
    o->v.entries = q->entries;
    volume_make_ask(m, o);
}

/* --- deleting ----------------------------------------------------------------------------------------------------- */

struct going {
    struct volumes *volumes;
    char id[LAYERS_SANDBOX_MAX];
    volume_done *done;
    void *arg;
    struct state_failure failure;
};

static void volume_delete_tell(void *arg)
{
    struct going *g = arg;
    g->done(g->arg, NULL, g->failure.status ? &g->failure : NULL);
    free(g);
}

static void volume_delete_on_dropped(void *arg, const struct layers_reply *r, int fd)
{
    volume_on_dropped(NULL, r, fd);
    volume_delete_tell(arg);
}

static void volume_delete_on_sandbox_closed(void *arg, bool ok)
{
    struct going *g = arg;
    const struct layersc_to to = {.done = volume_delete_on_dropped, .arg = g};
    (void)ok;
    if (g->volumes->peers->layers)
        (void)layersc_volume_drop(g->volumes->peers->layers, &to, g->id);
    else
        volume_delete_tell(g); /* the next volumes_meet() drops the place */
}

static void volume_delete_on_row_removed(void *arg, const struct err *err)
{
    struct going *g = arg;
    struct volumes *vs = g->volumes;
    struct volume_own *o = map_get(&vs->by_id, g->id);
    if (err) {
        if (o)
            o->state = VOLUME_THERE;
        state_fail_write(&g->failure, err, "the volume cannot be removed now");
        volume_delete_tell(g);
        return;
    }
    if (o)
        volume_forget(vs, o);
    volume_sandbox_close(g->volumes, g->id, true, volume_delete_on_sandbox_closed, g);
}

void volume_delete(struct volumes *vs, struct volume *v, volume_done *done, void *arg)
{
    struct going *g = xcalloc(1, sizeof *g);
    char user[1][SANDBOX_ID_MAX] = {""};
    size_t n = volume_users(vs, v, user, 1);
    *g = (struct going){.volumes = vs, .done = done, .arg = arg};
    (void)snprintf(g->id, sizeof g->id, "%s", v->id);
    if (n > 0) {
        state_fail(&g->failure, 409, "volume '%s' is in use by %zu sandbox%s, living or paused, e.g. %s", v->name, n,
                   n == 1 ? "" : "es", user[0]);
        g->failure.error_code = "volume_in_use";
        loop_defer(vs->loop, volume_delete_tell, g);
        return;
    }
    ((struct volume_own *)v)->state = VOLUME_GOING;
    db_volume_del(vs->db, v->id, volume_delete_on_row_removed, g);
}

static void volume_delete_ignore(void *arg, const struct volume *v, const struct state_failure *failure)
{
    (void)arg, (void)v, (void)failure;
}

/* Its sandboxes have ended. */
static void volumes_on_tenant_gone(void *arg, const struct tenant *t)
{
    struct volumes *vs = arg;
    size_t at = 0;
    for (struct volume_own *o; (o = map_next(&vs->by_id, &at));) {
        if (o->v.tenant != t)
            continue;
        if (o->state == VOLUME_THERE) {
            struct going *g = xcalloc(1, sizeof *g);
            *g = (struct going){.volumes = vs, .done = volume_delete_ignore};
            (void)snprintf(g->id, sizeof g->id, "%s", o->v.id);
            o->state = VOLUME_GOING;
            db_volume_del(vs->db, o->v.id, volume_delete_on_row_removed, g);
        } else if (o->state == VOLUME_MAKING) {
            volume_forget(vs, o);
            at = 0;
        }
    }
}

/* --- measuring ---------------------------------------------------------------------------------------------------- */

struct measuring {
    volume_measured *done;
    void *arg;
};

static void volume_measure_on_reply(void *arg, const struct layers_reply *r, int fd)
{
    struct measuring *m = arg;
    if (fd >= 0)
        (void)close(fd);
    m->done(m->arg, r);
    free(m);
}

static void volume_measure_on_no_layers(void *arg)
{
    struct layers_reply r = {.error = LAYERS_BUSY, .text = "the process that keeps files is not there"};
    volume_measure_on_reply(arg, &r, -1);
}

void volume_measure(struct volumes *vs, const struct volume *v, volume_measured *done, void *arg)
{
    struct measuring *m = xcalloc(1, sizeof *m);
    const struct layersc_to to = {.owner = v->tenant->id, .done = volume_measure_on_reply, .arg = m};
    *m = (struct measuring){.done = done, .arg = arg};
    if (vs->peers->layers)
        (void)layersc_volume_stat(vs->peers->layers, &to, v->id);
    else
        loop_defer(vs->loop, volume_measure_on_no_layers, m);
}

/* --- front and the layer store meet ------------------------------------------------------------------------------- */

/* Compares rows with places. Those that are older than the database are added to *foreign; returns how many are too
 * young to judge. */
static size_t volumes_meet(void *ctx, const struct layers_item *v, size_t n, int64_t born, struct strv *foreign)
{
    struct volumes *vs = ctx;
    struct map there = {0};
    int64_t now = (int64_t)time(NULL);
    size_t at = 0, young = 0;
    for (size_t i = 0; i < n; i++) {
        if (strncmp(v[i].id, "vol-", 4) != 0)
            continue;
        (void)map_put(&there, v[i].id, (void *)&v[i]);
        if (map_get(&vs->by_id, v[i].id))
            continue;
        if (v[i].created_unix + UNNAMED_S >= now)
            young++;
        else if (v[i].created_unix < born)
            strv_add(foreign, v[i].id); /* never delete users' files because a database was lost */
        else
            volume_drop(vs, v[i].id);
    }
    for (struct volume_own *o; (o = map_next(&vs->by_id, &at));)
        if (o->state == VOLUME_THERE && o->v.created_unix_ms / 1000 + UNNAMED_S < (uint64_t)now &&
            !map_get(&there, o->v.id))
            log_text(LOG_LEVEL_ERROR, "the files of the volume %s (%s of %s) are not in the store", o->v.id, o->v.name,
                     o->v.tenant->id);
    map_done(&there);
    return young;
}

struct volumes *volumes_new(const struct volumes_deps *d)
{
    static const struct stack_owner owner = {.size = volumes_size, .meet = volumes_meet};
    struct volumes *vs = xcalloc(1, sizeof *vs);
    vs->loop = d->loop;
    vs->config = d->config;
    vs->db = d->db;
    vs->peers = d->peers;
    vs->tenants = d->tenants;
    vs->stacks = d->stacks;
    vs->sandboxes = d->sandboxes;
    stacks_add_owner(vs->stacks, &owner, vs);
    tenants_on_gone(vs->tenants, volumes_on_tenant_gone, vs);
    sandboxes_set_mounts(vs->sandboxes, volume_mount_exists, vs);
    return vs;
}
