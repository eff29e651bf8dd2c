/* Volumes get another quota, in the row and in the store. If anything of it becomes larger, the row gets the larger of both
 * numbers first; what becomes smaller is in the row last. Whatever ends us in between, no more is in force than counts, and
 * until both are done the larger numbers count.
 */
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
    uint64_t bytes, entries, old_bytes, old_entries;
    uint64_t most_bytes, most_entries; /* the larger of both */
    bool has_entries;                  /* the request names them */
    bool recorded;                     /* the row has the larger numbers */
    bool alone;                        /* nobody but front had it, and that has ended */
    volume_done *done;
    void *arg;
    struct state_failure failure;
};

/* In whatever state: one that is being taken away stays, if its row cannot be deleted. */
static struct volume_own *find_any(const struct resizing *z)
{
    struct volumes *vs = z->front->volumes;
    return vs ? map_get(&vs->by_id, z->id) : NULL;
}

static struct volume_own *find(const struct resizing *z)
{
    struct volume_own *o = find_any(z);
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
    struct volume_own *o = find_any(z);
    if (o) {
        o->resizing = false;
        if (!z->failure.status) {
            o->v.bytes = z->bytes;
            o->v.entries = z->entries;
        } else if (!z->recorded) { /* else the row still has what counts already */
            o->v.bytes = z->old_bytes;
            o->v.entries = z->old_entries;
        }
    }
    tell(z);
}

static void write_row(struct resizing *z, const struct volume_own *o, uint64_t bytes, uint64_t entries,
                      store_done *done)
{
    struct store_volume row = {.id = o->v.id,
                               .name = o->v.name,
                               .tenant = o->v.tenant->id,
                               .token = o->v.token,
                               .created_unix_ms = o->v.created_unix_ms,
                               .bytes = bytes,
                               .entries = entries};
    store_volume_put(z->front->store, &row, done, z);
}

static void row_written(void *arg, const struct err *err)
{
    struct resizing *z = arg;
    if (err)
        state_fail_write(&z->failure, err, "the new quota is in force but cannot be recorded; ask again");
    finish(z);
}

static void row_put_back(void *arg, const struct err *err)
{
    struct resizing *z = arg;
    if (!err)
        z->recorded = false;
    finish(z);
}

/* The store did not take it. */
static void undo(struct resizing *z)
{
    const struct volume_own *o = find(z);
    if (z->recorded && o)
        write_row(z, o, z->old_bytes, z->old_entries, row_put_back);
    else
        finish(z);
}

static void ask(struct resizing *z);

static void closed(void *arg, bool ok)
{
    (void)ok;
    ask(arg);
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
    undo(z);
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
        state_fail(&z->failure, 404, "the volume was removed");
        finish(z);
        return;
    }
    if (z->old_entries && !z->has_entries && z->entries) /* those of an image follow its size */
        z->entries = strcmp(r->text, "image") == 0 && r->entries2 ? r->entries2 : z->entries;
    if (z->recorded && z->bytes == z->most_bytes && z->entries == z->most_entries)
        finish(z);
    else
        write_row(z, o, z->bytes, z->entries, row_written);
}

static void ask(struct resizing *z)
{
    struct stock_request q = stockc_request(STOCK_VOLUME_RESIZE);
    const struct volume_own *o = find_any(z);
    if (!z->front->stock) {
        state_fail(&z->failure, 503, "the process that keeps files is not there; try again");
        undo(z);
        return;
    }
    (void)memccpy(q.volume, z->id, 0, sizeof q.volume - 1);
    q.bytes = z->bytes;
    q.entries = z->entries;
    q.flags = z->has_entries ? 0 : STOCK_KEEP;
    (void)stockc_ask_for(z->front->stock, o ? o->v.tenant->id : "", &q, NULL, 0, NULL, resized, z);
}

static void row_first(void *arg, const struct err *err)
{
    struct resizing *z = arg;
    if (err) {
        state_fail_write(&z->failure, err, "the new quota cannot be recorded");
        finish(z);
        return;
    }
    z->recorded = true;
    ask(z);
}

/* Those of an image follow its size, and front does not know what is one. */
static uint64_t entries_then(const struct resizing *z)
{
    if (z->has_entries || !z->old_entries || !z->old_bytes || z->bytes <= z->old_bytes)
        return z->entries;
    double then = (double)z->old_entries * ((double)z->bytes / (double)z->old_bytes);
    return then < (double)VOLUME_ENTRIES_MAX ? (uint64_t)then : VOLUME_ENTRIES_MAX;
}

/* None (0) counts by the bytes. */
static void set_most(struct resizing *z)
{
    uint64_t then = entries_then(z), more = then > z->old_entries ? then : z->old_entries;
    z->most_bytes = z->bytes > z->old_bytes ? z->bytes : z->old_bytes;
    z->most_entries = then && z->old_entries ? more : more > stock_volume_entries(z->most_bytes) ? more : 0;
}

/* By how much it will count more at most. */
static struct state_size growth(const struct resizing *z)
{
    struct state_size now = volume_size_of(z->old_bytes, z->old_entries),
                      most = volume_size_of(z->most_bytes, z->most_entries);
    return (struct state_size){.bytes = most.bytes - now.bytes,
                               .entries = most.entries > now.entries ? most.entries - now.entries : 0};
}

static bool admit(struct resizing *z, const struct volume_own *o, bool admin)
{
    const struct volume_quota q = {.given = true, .admin = admin, .bytes = z->bytes, .entries = z->entries};
    struct state_size more = growth(z);
    if (!z->front->stock)
        state_fail(&z->failure, 503, "the process that keeps files is not there; try again");
    else if (o->resizing)
        state_fail(&z->failure, 503, "the size of volume '%s' is being changed already; try again", o->v.name);
    else if (volume_quota_allowed(z->front, o->v.tenant, &q, &z->failure) && (more.bytes || more.entries))
        (void)state_room(z->front, o->v.tenant, 0, more, &z->failure);
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
                           .old_entries = v->entries,
                           .has_entries = size->has_entries,
                           .done = done,
                           .arg = arg};
    (void)snprintf(z->id, sizeof z->id, "%s", v->id);
    set_most(z);
    if (!admit(z, o, size->admin)) {
        loop_defer(f->loop, tell, z);
        return;
    }
    o->resizing = true;
    if (z->most_bytes == z->old_bytes && z->most_entries == z->old_entries) {
        ask(z);
        return;
    }
    o->v.bytes = z->most_bytes;
    o->v.entries = z->most_entries;
    write_row(z, o, z->most_bytes, z->most_entries, row_first);
}
