/* Volumes get another quota: first in the store, then in the row. Until both are done the larger of the two counts. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "front/volumes-int.h"
#include "sandbox/stockc.h"
#include "store/store.h"

struct resizing {
    struct front *front;
    char id[STOCK_BOX_MAX];
    uint64_t bytes, entries, old_bytes;
    bool has_entries; /* the request names them */
    bool alone;       /* nobody but front had it, and that has ended */
    volume_done *done;
    void *arg;
    struct state_failure failure;
};

static struct volume_own *find(const struct resizing *z)
{
    struct volumes *vs = z->front->volumes;
    struct volume_own *o = vs ? map_get(&vs->by_id, z->id) : NULL;
    return o && o->state == VOLUME_THERE ? o : NULL;
}

static void tell(void *arg)
{
    struct resizing *z = arg;
    struct volume_own *o = find(z);
    if (!o && !z->failure.status)
        state_fail(&z->failure, 404, "the volume was removed");
    z->done(z->arg, z->failure.status ? NULL : &o->v, z->failure.status ? &z->failure : NULL);
    free(z);
}

static void finish(struct resizing *z)
{
    struct volume_own *o = find(z);
    if (o) {
        o->resizing = false;
        o->v.bytes = z->failure.status ? z->old_bytes : z->bytes;
        if (!z->failure.status)
            o->v.entries = z->entries;
    }
    tell(z);
}

static void row_written(void *arg, const struct err *err)
{
    struct resizing *z = arg;
    if (err)
        state_fail(&z->failure, 503, "the new quota is in force but cannot be recorded; ask again: %s", err->msg);
    finish(z);
}

static void ask(struct resizing *z);

static void closed(void *arg, bool ok)
{
    struct resizing *z = arg;
    (void)ok;
    if (z->front->stock) {
        ask(z);
        return;
    }
    state_fail(&z->failure, 503, "the process that keeps files is not there; try again");
    finish(z);
}

static void refused(struct resizing *z, const struct stock_reply *r)
{
    char user[1][SANDBOX_ID_MAX] = {""};
    const struct volume_own *o = find(z);
    size_t n = o ? volume_users(z->front, &o->v, user, 1) : 0;
    if (r->error == STOCK_BUSY && o && n > 0) {
        state_fail(
            &z->failure, 409,
            "volume '%s' is a file system in an image, whose size cannot be changed while %zu sandbox%s, living or "
            "paused, %s it, e.g. %s",
            o->v.name, n, n == 1 ? "" : "es", n == 1 ? "has" : "have", user[0]);
        z->failure.error_code = "volume_in_use";
    } else {
        state_stock_failure(r, "the new quota", &z->failure);
        if (r->error == STOCK_CONFLICT)
            z->failure.error_code = "quota_below_use";
        if (r->error == STOCK_HOST)
            z->failure.error_code = "quota_unavailable";
    }
    finish(z);
}

static void resized(void *arg, const struct stock_reply *r, int fd)
{
    struct resizing *z = arg;
    struct volume_own *o = find(z);
    if (fd >= 0)
        (void)close(fd);
    if (r->error == STOCK_BUSY && o && !z->alone && volume_users(z->front, &o->v, NULL, 0) == 0) {
        z->alone = true; /* one of our own, for its files */
        volume_box_close(z->front, z->id, false, closed, z);
        return;
    }
    if (r->error != STOCK_OK) {
        refused(z, r);
        return;
    }
    if (!o) {
        tell(z);
        return;
    }
    if (o->v.entries && !z->has_entries && z->entries) /* those of an image follow its size */
        z->entries = strcmp(r->text, "image") == 0 && r->entries2 ? r->entries2 : z->entries;
    struct store_volume row = {.id = o->v.id,
                               .name = o->v.name,
                               .tenant = o->v.tenant->id,
                               .token = o->v.token,
                               .created_unix_ms = o->v.created_unix_ms,
                               .bytes = z->bytes,
                               .entries = z->entries};
    store_volume_put(z->front->store, &row, row_written, z);
}

static void ask(struct resizing *z)
{
    struct stock_request q = stockc_request(STOCK_VOLUME_RESIZE);
    (void)memccpy(q.volume, z->id, 0, sizeof q.volume - 1);
    q.bytes = z->bytes;
    q.entries = z->has_entries ? z->entries : 0;
    (void)stockc_ask(z->front->stock, &q, NULL, 0, NULL, resized, z);
}

static bool admit(struct resizing *z, const struct volume_own *o, bool admin)
{
    const struct volume_quota q = {.given = true, .admin = admin, .bytes = z->bytes, .entries = z->entries};
    if (!z->front->stock)
        state_fail(&z->failure, 503, "the process that keeps files is not there; try again");
    else if (o->resizing)
        state_fail(&z->failure, 503, "the size of volume '%s' is being changed already; try again", o->v.name);
    else if (volume_quota_allowed(z->front, o->v.tenant, &q, &z->failure) && z->bytes > o->v.bytes)
        (void)state_room(z->front, o->v.tenant, 0, z->bytes - o->v.bytes, &z->failure);
    return z->failure.status == 0;
}

void volume_resize(struct front *f, struct volume *v, const struct volume_size *size, volume_done *done, void *arg)
{
    struct volume_own *o = (struct volume_own *)v;
    struct resizing *z = xcalloc(1, sizeof *z);
    *z = (struct resizing){.front = f,
                           .bytes = size->has_bytes ? size->bytes : v->bytes,
                           .entries = size->has_entries ? size->entries : v->entries,
                           .old_bytes = v->bytes,
                           .has_entries = size->has_entries,
                           .done = done,
                           .arg = arg};
    (void)snprintf(z->id, sizeof z->id, "%s", v->id);
    if (!admit(z, o, size->admin)) {
        loop_defer(f->loop, tell, z);
        return;
    }
    o->resizing = true;
    o->v.bytes = z->bytes > z->old_bytes ? z->bytes : z->old_bytes;
    ask(z);
}
