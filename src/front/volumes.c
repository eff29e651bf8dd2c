/* Volumes as rows: made, found, taken away, compared with what stock has. */
#include "front/volumes.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/random.h"
#include "front/volumes-int.h"
#include "sandbox/stockc.h"
#include "store/store.h"

enum { UNNAMED_S = 60, ID_LETTERS = 20 };

/* --- finding ------------------------------------------------------------------------------------------------------- */

bool volume_name_valid(const char *name)
{
    size_t n = strnlen(name, BOX_MOUNT_NAME_MAX);
    return n > 0 && n < BOX_MOUNT_NAME_MAX &&
           strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-") == n;
}

static struct volume_own *by_name(const struct front *f, const struct tenant *t, const char *name)
{
    char key[sizeof((struct volume_own *)NULL)->key];
    if (!volume_name_valid(name))
        return NULL;
    (void)snprintf(key, sizeof key, "%s/%s", t->id, name);
    return map_get(&f->volumes->by_name, key);
}

struct volume *volume_by_id(struct front *f, const char *id)
{
    struct volume_own *o = f->volumes ? map_get(&f->volumes->by_id, id) : NULL;
    return o && o->state == VOLUME_THERE ? &o->v : NULL;
}

struct volume *volume_find(struct front *f, const struct tenant *t, const char *id_or_name)
{
    struct volume *v = volume_by_id(f, id_or_name);
    if (v && v->tenant == t)
        return v;
    struct volume_own *o = f->volumes ? by_name(f, t, id_or_name) : NULL;
    return o && o->state == VOLUME_THERE ? &o->v : NULL;
}

void volumes_each(struct front *f, const struct tenant *t, volume_each_fn *fn, void *arg)
{
    size_t at = 0;
    if (!f->volumes)
        return;
    for (struct volume_own *o; (o = map_next(&f->volumes->by_id, &at));)
        if (o->state == VOLUME_THERE && o->v.tenant == t)
            fn(arg, &o->v);
}

struct state_size volume_size_of(uint64_t bytes, uint64_t entries)
{
    return (struct state_size){.bytes = bytes, .entries = entries ? entries : stock_volume_entries(bytes)};
}

struct state_size volumes_size(const struct front *f, const struct tenant *t)
{
    size_t at = 0;
    struct state_size sum = {0};
    for (struct volume_own *o; f->volumes && (o = map_next(&f->volumes->by_id, &at));) {
        struct state_size one = volume_size_of(o->v.bytes, o->v.entries);
        if (o->v.tenant != t || o->state == VOLUME_GOING)
            continue;
        sum.bytes += one.bytes;
        sum.entries += one.entries;
    }
    return sum;
}

bool box_mount_find(struct front *f, const struct tenant *t, struct box_mount *m)
{
    const struct volume *v = volume_find(f, t, m->name);
    if (!v)
        return false;
    (void)snprintf(m->volume, sizeof m->volume, "%s", v->id);
    (void)snprintf(m->name, sizeof m->name, "%s", v->name);
    return true;
}

bool box_mount_there(struct front *f, const struct box_mount *m)
{
    return strncmp(m->volume, "vol-", 4) != 0 || volume_by_id(f, m->volume);
}

struct users {
    const char *volume;
    char (*ret)[SANDBOX_ID_MAX];
    size_t n, max;
};

static void look_at(void *arg, struct box *b)
{
    struct users *u = arg;
    for (size_t i = 0; i < b->nmounts && !b->hidden; i++)
        if (strcmp(b->mounts[i].volume, u->volume) == 0) {
            if (u->n < u->max)
                (void)snprintf(u->ret[u->n], SANDBOX_ID_MAX, "%s", b->id);
            u->n++;
            return;
        }
}

size_t volume_users(struct front *f, const struct volume *v, char (*ret)[SANDBOX_ID_MAX], size_t max)
{
    struct users u = {.volume = v->id, .ret = ret, .max = max};
    boxes_each(f, look_at, &u);
    return u.n;
}

/* --- rows in memory ------------------------------------------------------------------------------------------------ */

static struct volume_own *add(struct volumes *vs, struct tenant *t, const char *id, const char *name)
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

static void forget(struct volumes *vs, struct volume_own *o)
{
    (void)map_del(&vs->by_id, o->v.id);
    (void)map_del(&vs->by_name, o->key);
    explicit_bzero(o->v.token, sizeof o->v.token);
    free(o);
}

static void load_row(void *arg, const struct store_volume *row)
{
    struct front *f = arg;
    struct tenant *t = tenants_find(f, row->tenant);
    if (!t || !volume_name_valid(row->name)) { /* the tenant was removed in the last moment of a front */
        store_volume_del(f->store, row->id, NULL, NULL);
        return;
    }
    struct volume_own *o = add(f->volumes, t, row->id, row->name);
    o->state = VOLUME_THERE;
    (void)snprintf(o->v.token, sizeof o->v.token, "%s", row->token);
    o->v.created_unix_ms = row->created_unix_ms;
    o->v.bytes = row->bytes;
    o->v.entries = row->entries;
}

int volumes_load(struct front *f, struct err *err)
{
    f->volumes = xcalloc(1, sizeof *f->volumes);
    f->volumes->front = f;
    boxes_on_end(f, volume_box_ended, f);
    return store_volumes(f->store, load_row, f, err);
}

void volumes_free(struct front *f)
{
    struct volumes *vs = f->volumes;
    size_t at = 0;
    if (!vs)
        return;
    volume_boxes_free(f);
    for (struct volume_own *o; (o = map_next(&vs->by_id, &at));) {
        explicit_bzero(o->v.token, sizeof o->v.token);
        free(o);
    }
    map_done(&vs->by_id);
    map_done(&vs->by_name);
    free(vs);
    f->volumes = NULL;
}

/* --- dropping ------------------------------------------------------------------------------------------------------ */

static void dropped(void *arg, const struct stock_reply *r, int fd)
{
    (void)arg;
    if (fd >= 0)
        (void)close(fd);
    if (r->error != STOCK_OK)
        log_text(LOG_LEVEL_WARN, "a volume could not be dropped (%s); it is tried again later", r->text);
}

static struct stock_request request(enum stock_type type, const char *volume)
{
    struct stock_request q = stockc_request(type);
    (void)memccpy(q.volume, volume, 0, sizeof q.volume - 1);
    return q;
}

static void drop(struct front *f, const char *volume)
{
    struct stock_request q = request(STOCK_VOLUME_DROP, volume);
    if (f->stock)
        (void)stockc_ask(f->stock, &q, NULL, 0, NULL, dropped, NULL);
}

static void drop_unnamed(struct front *f, const char *volume)
{
    store_volume_del(f->store, volume, NULL, NULL);
    drop(f, volume);
}

/* --- making -------------------------------------------------------------------------------------------------------- */

struct making {
    struct front *front;
    char id[STOCK_BOX_MAX];
    bool given;
    volume_done *done;
    void *arg;
    struct state_failure failure;
};

static void tell_made(void *arg)
{
    struct making *m = arg;
    struct volume *v = m->failure.status ? NULL : volume_by_id(m->front, m->id);
    if (!v && !m->failure.status)
        state_fail(&m->failure, 503, "the volume was removed while it was made");
    m->done(m->arg, v, v ? NULL : &m->failure);
    free(m);
}

static void row_written(void *arg, const struct err *err)
{
    struct making *m = arg;
    struct volumes *vs = m->front->volumes;
    struct volume_own *o = vs ? map_get(&vs->by_id, m->id) : NULL;
    if (err)
        state_fail_write(&m->failure, err, "the volume cannot be recorded");
    if (o && err) {
        forget(vs, o);
        drop(m->front, m->id);
    } else if (o && o->state == VOLUME_MAKING)
        o->state = VOLUME_THERE;
    else if (vs && !o && !err) /* its tenant went meanwhile, and whoever is called so next must not find it */
        drop_unnamed(m->front, m->id);
    tell_made(m);
}

static void ask_make(struct making *m, const struct volume_own *o);

static void made(void *arg, const struct stock_reply *r, int fd)
{
    struct making *m = arg;
    struct volumes *vs = m->front->volumes;
    struct volume_own *o = vs ? map_get(&vs->by_id, m->id) : NULL;
    if (fd >= 0)
        (void)close(fd);
    if (!o) { /* its tenant is gone */
        drop(m->front, m->id);
        tell_made(m);
        return;
    }
    if (r->error == STOCK_HOST && !m->given && (o->v.bytes || o->v.entries)) {
        o->v.bytes = o->v.entries = 0; /* nobody asked for a quota; inspect says that there is none */
        ask_make(m, o);
        return;
    }
    if (r->error != STOCK_OK) {
        state_stock_failure(r, o->v.bytes || o->v.entries ? "a volume with a quota" : "the volume", &m->failure);
        if (r->error == STOCK_HOST)
            m->failure.error_code = "quota_unavailable";
        forget(vs, o);
        tell_made(m);
        return;
    }
    struct store_volume row = {.id = o->v.id,
                               .name = o->v.name,
                               .tenant = o->v.tenant->id,
                               .token = o->v.token,
                               .created_unix_ms = o->v.created_unix_ms,
                               .bytes = o->v.bytes,
                               .entries = o->v.entries};
    store_volume_put(m->front->store, &row, row_written, m);
}

static void ask_make(struct making *m, const struct volume_own *o)
{
    struct stock_request q = request(STOCK_VOLUME_MAKE, m->id);
    q.bytes = o->v.bytes;
    q.entries = o->v.entries;
    (void)stockc_ask_for(m->front->stock, o->v.tenant->id, &q, NULL, 0, NULL, made, m);
}

/* With those that are being made or taken away. */
static size_t count_of(const struct front *f, const struct tenant *t)
{
    size_t at = 0, n = 0;
    for (struct volume_own *o; (o = map_next(&f->volumes->by_id, &at));)
        n += o->v.tenant == t;
    return n;
}

bool volume_quota_allowed(const struct front *f, const struct tenant *t, const struct volume_quota *q,
                          struct state_failure *why)
{
    uint64_t most = f->config->volume_bytes;
    struct state_size limit = state_limit(f, t);
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

static bool admit(struct front *f, struct tenant *t, const char *name, const struct volume_quota *q,
                  struct state_failure *why)
{
    size_t n = count_of(f, t);
    if (!f->stock) {
        state_fail(why, 503, "the process that keeps files is not there; try again");
    } else if (t->closing) {
        state_fail(why, 409, "the tenant is being removed");
    } else if (!volume_name_valid(name)) {
        state_fail(why, 400, "a volume's name is 1 to %d letters, digits, '_' and '-'", BOX_MOUNT_NAME_MAX - 1);
    } else if (by_name(f, t, name)) {
        state_fail(why, 409, "there is a volume '%s' already", name);
    } else if (n >= f->config->volumes_per_tenant || f->volumes->by_id.n >= VOLUMES_NODE_MAX) {
        state_fail(why, 429, "the tenant has its %zu volumes; the limit is %u (volumes.per_tenant)", n,
                   f->config->volumes_per_tenant);
        why->error_code = "quota_exceeded";
    } else if (volume_quota_allowed(f, t, q, why) && (q->bytes || q->entries))
        (void)state_room(f, t, 0, volume_size_of(q->bytes, q->entries), why);
    return why->status == 0;
}

static void new_id(char ret[STOCK_BOX_MAX])
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyz012345"; /* 32: every one of five bits */
    unsigned char bytes[ID_LETTERS];
    random_bytes(bytes, sizeof bytes);
    memcpy(ret, "vol-", 4);
    for (size_t i = 0; i < sizeof bytes; i++)
        ret[4 + i] = letters[bytes[i] & 31];
    ret[4 + sizeof bytes] = '\0';
}

void volume_create(struct front *f, struct tenant *t, const char *name, const struct volume_quota *q, volume_done *done,
                   void *arg)
{
    struct making *m = xcalloc(1, sizeof *m);
    *m = (struct making){.front = f, .given = q->given, .done = done, .arg = arg};
    if (!admit(f, t, name, q, &m->failure)) {
        loop_defer(f->loop, tell_made, m);
        return;
    }
    new_id(m->id);
    struct volume_own *o = add(f->volumes, t, m->id, name);
    random_hex(o->v.token, VOLUME_TOKEN / 2);
    o->v.created_unix_ms = (uint64_t)time(NULL) * 1000;
    o->v.bytes = q->bytes;
    o->v.entries = q->entries;
    ask_make(m, o);
}

/* --- taking away --------------------------------------------------------------------------------------------------- */

struct going {
    struct front *front;
    char id[STOCK_BOX_MAX];
    volume_done *done;
    void *arg;
    struct state_failure failure;
};

static void tell_gone(void *arg)
{
    struct going *g = arg;
    g->done(g->arg, NULL, g->failure.status ? &g->failure : NULL);
    free(g);
}

static void place_gone(void *arg, const struct stock_reply *r, int fd)
{
    dropped(NULL, r, fd);
    tell_gone(arg);
}

static void unused(void *arg, bool ok)
{
    struct going *g = arg;
    struct stock_request q = request(STOCK_VOLUME_DROP, g->id);
    (void)ok;
    if (g->front->stock)
        (void)stockc_ask(g->front->stock, &q, NULL, 0, NULL, place_gone, g);
    else
        tell_gone(g); /* the next comparison drops it */
}

static void row_gone(void *arg, const struct err *err)
{
    struct going *g = arg;
    struct volumes *vs = g->front->volumes;
    struct volume_own *o = vs ? map_get(&vs->by_id, g->id) : NULL;
    if (err) {
        if (o)
            o->state = VOLUME_THERE;
        state_fail_write(&g->failure, err, "the volume cannot be removed now");
        tell_gone(g);
        return;
    }
    if (o)
        forget(vs, o);
    volume_box_close(g->front, g->id, true, unused, g);
}

void volume_delete(struct front *f, struct volume *v, volume_done *done, void *arg)
{
    struct going *g = xcalloc(1, sizeof *g);
    char user[1][SANDBOX_ID_MAX] = {""};
    size_t n = volume_users(f, v, user, 1);
    *g = (struct going){.front = f, .done = done, .arg = arg};
    (void)snprintf(g->id, sizeof g->id, "%s", v->id);
    if (n > 0) {
        state_fail(&g->failure, 409, "volume '%s' is in use by %zu sandbox%s, living or paused, e.g. %s", v->name, n,
                   n == 1 ? "" : "es", user[0]);
        g->failure.error_code = "volume_in_use";
        loop_defer(f->loop, tell_gone, g);
        return;
    }
    ((struct volume_own *)v)->state = VOLUME_GOING;
    store_volume_del(f->store, v->id, row_gone, g);
}

static void nobody_told(void *arg, const struct volume *v, const struct state_failure *failure)
{
    (void)arg, (void)v, (void)failure;
}

/* Its sandboxes have ended. */
void volumes_tenant_gone(struct front *f, const struct tenant *t)
{
    struct volumes *vs = f->volumes;
    size_t at = 0;
    if (!vs)
        return;
    for (struct volume_own *o; (o = map_next(&vs->by_id, &at));) {
        if (o->v.tenant != t)
            continue;
        if (o->state == VOLUME_THERE) {
            struct going *g = xcalloc(1, sizeof *g);
            *g = (struct going){.front = f, .done = nobody_told};
            (void)snprintf(g->id, sizeof g->id, "%s", o->v.id);
            o->state = VOLUME_GOING;
            store_volume_del(f->store, o->v.id, row_gone, g);
        } else if (o->state == VOLUME_MAKING) {
            forget(vs, o);
            at = 0;
        }
    }
}

/* --- measuring ----------------------------------------------------------------------------------------------------- */

struct measuring {
    volume_measured *done;
    void *arg;
};

static void measured(void *arg, const struct stock_reply *r, int fd)
{
    struct measuring *m = arg;
    if (fd >= 0)
        (void)close(fd);
    m->done(m->arg, r);
    free(m);
}

static void cannot_measure(void *arg)
{
    struct stock_reply r = {.error = STOCK_BUSY, .text = "the process that keeps files is not there"};
    measured(arg, &r, -1);
}

void volume_measure(struct front *f, const struct volume *v, volume_measured *done, void *arg)
{
    struct measuring *m = xcalloc(1, sizeof *m);
    struct stock_request q = request(STOCK_VOLUME_STAT, v->id);
    *m = (struct measuring){.done = done, .arg = arg};
    if (f->stock)
        (void)stockc_ask_for(f->stock, v->tenant->id, &q, NULL, 0, NULL, measured, m);
    else
        loop_defer(f->loop, cannot_measure, m);
}

/* --- front and stock meet ------------------------------------------------------------------------------------------ */

size_t volumes_meet(struct front *f, const struct stock_item *v, size_t n, int64_t born, struct strv *foreign)
{
    struct map there = {0};
    int64_t now = (int64_t)time(NULL);
    size_t at = 0, young = 0;
    if (!f->volumes)
        return 0;
    for (size_t i = 0; i < n; i++) {
        if (strncmp(v[i].id, "vol-", 4) != 0)
            continue;
        (void)map_put(&there, v[i].id, (void *)&v[i]);
        if (map_get(&f->volumes->by_id, v[i].id))
            continue;
        if (v[i].created_unix + UNNAMED_S >= now)
            young++;
        else if (v[i].created_unix < born)
            strv_add(foreign, v[i].id); /* what somebody stored is not thrown away because a database was lost */
        else
            drop(f, v[i].id);
    }
    for (struct volume_own *o; (o = map_next(&f->volumes->by_id, &at));)
        if (o->state == VOLUME_THERE && o->v.created_unix_ms / 1000 + UNNAMED_S < (uint64_t)now &&
            !map_get(&there, o->v.id))
            log_text(LOG_LEVEL_ERROR, "the files of the volume %s (%s of %s) are not in the store", o->v.id, o->v.name,
                     o->v.tenant->id);
    map_done(&there);
    return young;
}
