/* Changes the quota of a volume, in its row and in the layer store. If a number grows, the row first gets the larger
 * of the old and the new one; smaller numbers are written last. So if front dies in between, the quota in force is
 * never larger than what the row counts, and until the end the larger numbers count.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "db/db.h"
#include "peers/layersc.h"
#include "volumes/volumes-int.h"

struct resizing {
    struct volumes *volumes;
    char id[LAYERS_SANDBOX_MAX];
    uint64_t bytes, entries, old_bytes, old_entries;
    uint64_t most_bytes, most_entries; /* the larger of old and new */
    bool has_entries;                  /* the request names them */
    bool recorded;                     /* the row has the larger numbers */
    bool alone;                        /* only front's hidden sandbox used it, and that has ended */
    volume_done *done;
    void *arg;
    struct state_failure failure;
};

/* Finds it in any state: a volume that is being deleted stays if its row cannot be deleted. */
static struct volume_own *resize_find_any(const struct resizing *z)
{
    struct volumes *vs = z->volumes;
    return map_get(&vs->by_id, z->id);
}

static struct volume_own *resize_find(const struct resizing *z)
{
    struct volume_own *o = resize_find_any(z);
    return o && o->state == VOLUME_THERE ? o : NULL;
}

static void resize_tell(void *arg)
{
    struct resizing *z = arg;
    struct volume_own *o = resize_find(z);
    if (!o && !z->failure.status)
        state_fail(&z->failure, 404, "the volume was removed");
    z->done(z->arg, z->failure.status ? NULL : &o->v, z->failure.status ? &z->failure : NULL);
    free(z);
}

static void resize_finish(struct resizing *z)
{
    struct volume_own *o = resize_find_any(z);
    if (o) {
        o->resizing = false;
        if (!z->failure.status) {
            o->v.bytes = z->bytes;
            o->v.entries = z->entries;
        } else if (!z->recorded) { /* else the row still has the larger numbers, which keep counting */
            o->v.bytes = z->old_bytes;
            o->v.entries = z->old_entries;
        }
    }
    resize_tell(z);
}

static void resize_write_row(struct resizing *z, const struct volume_own *o, uint64_t bytes, uint64_t entries,
                             db_done *done)
{
    struct db_volume row = {.id = o->v.id,
                            .name = o->v.name,
                            .tenant = o->v.tenant->id,
                            .token = o->v.token,
                            .created_unix_ms = o->v.created_unix_ms,
                            .bytes = bytes,
                            .entries = entries};
    db_volume_put(z->volumes->db, &row, done, z);
}

static void resize_on_row_stored(void *arg, const struct err *err)
{
    struct resizing *z = arg;
    if (err)
        state_fail_write(&z->failure, err, "the new quota is in force but cannot be recorded; ask again");
    resize_finish(z);
}

static void resize_on_row_restored(void *arg, const struct err *err)
{
    struct resizing *z = arg;
    if (!err)
        z->recorded = false;
    resize_finish(z);
}

/* The layer store refused the quota: writes the old numbers back. */
static void resize_undo(struct resizing *z)
{
    const struct volume_own *o = resize_find(z);
    if (z->recorded && o)
        resize_write_row(z, o, z->old_bytes, z->old_entries, resize_on_row_restored);
    else
        resize_finish(z);
}

static void resize_ask(struct resizing *z);

static void resize_on_sandbox_closed(void *arg, bool ok)
{
    (void)ok;
    resize_ask(arg);
}

static void resize_on_refused(struct resizing *z, const struct layers_reply *r)
{
    char user[1][SANDBOX_ID_MAX] = {""};
    const struct volume_own *o = resize_find(z);
    size_t n = o ? volume_users(z->volumes, &o->v, user, 1) : 0;
    if (r->error == LAYERS_BUSY && o && n > 0) {
        state_fail(
            &z->failure, 409,
            "volume '%s' is a file system in an image, whose size cannot be changed while %zu sandbox%s, living or "
            "paused, %s it, e.g. %s",
            o->v.name, n, n == 1 ? "" : "es", n == 1 ? "has" : "have", user[0]);
        z->failure.error_code = "volume_in_use";
    } else {
        state_layers_failure(r, "the new quota", &z->failure);
        if (r->error == LAYERS_CONFLICT)
            z->failure.error_code = "quota_below_use";
        if (r->error == LAYERS_HOST)
            z->failure.error_code = "quota_unavailable";
    }
    resize_undo(z);
}

static void resize_on_reply(void *arg, const struct layers_reply *r, int fd)
{
    struct resizing *z = arg;
    struct volume_own *o = resize_find(z);
    if (fd >= 0)
        (void)close(fd);
    if (r->error == LAYERS_BUSY && o && !z->alone && volume_users(z->volumes, &o->v, NULL, 0) == 0) {
        z->alone = true; /* only our own hidden sandbox uses it: end that */
        volume_sandbox_close(z->volumes, z->id, false, resize_on_sandbox_closed, z);
        return;
    }
    if (r->error != LAYERS_OK) {
        resize_on_refused(z, r);
        return;
    }
    if (!o) {
        state_fail(&z->failure, 404, "the volume was removed");
        resize_finish(z);
        return;
    }
    if (z->old_entries && !z->has_entries && z->entries) /* the entries of an image depend on its size */
        z->entries = strcmp(r->text, "image") == 0 && r->entries2 ? r->entries2 : z->entries;
    if (z->recorded && z->bytes == z->most_bytes && z->entries == z->most_entries)
        resize_finish(z);
    else
        resize_write_row(z, o, z->bytes, z->entries, resize_on_row_stored);
}

static void resize_ask(struct resizing *z)
{
    const struct volume_own *o = resize_find_any(z);
    if (!z->volumes->peers->layers) {
        state_fail(&z->failure, 503, "the process that keeps files is not there; try again");
        resize_undo(z);
        return;
    }
    const struct layersc_to to = {.owner = o ? o->v.tenant->id : NULL, .done = resize_on_reply, .arg = z};
    (void)layersc_volume_resize(z->volumes->peers->layers, &to, z->id, z->bytes, z->entries, !z->has_entries);
}

static void resize_on_larger_row_stored(void *arg, const struct err *err)
{
    struct resizing *z = arg;
    if (err) {
        state_fail_write(&z->failure, err, "the new quota cannot be recorded");
        resize_finish(z);
        return;
    }
    z->recorded = true;
    resize_ask(z);
}

/* The new number of entries, assuming an image, whose entries grow with its size: front does not know the kind of
 * volume. */
static uint64_t resize_entries(const struct resizing *z)
{
    if (z->has_entries || !z->old_entries || !z->old_bytes || z->bytes <= z->old_bytes)
        return z->entries;
    double then = (double)z->old_entries * ((double)z->bytes / (double)z->old_bytes);
    return then < (double)VOLUME_ENTRIES_MAX ? (uint64_t)then : VOLUME_ENTRIES_MAX;
}

/* Entries 0 (no limit) count by the bytes. */
static void resize_set_most(struct resizing *z)
{
    uint64_t then = resize_entries(z), more = then > z->old_entries ? then : z->old_entries;
    z->most_bytes = z->bytes > z->old_bytes ? z->bytes : z->old_bytes;
    z->most_entries = then && z->old_entries ? more : more > layers_volume_entries(z->most_bytes) ? more : 0;
}

/* By how much its count grows at most. */
static struct state_size resize_growth(const struct resizing *z)
{
    struct state_size now = volume_size_of(z->old_bytes, z->old_entries),
                      most = volume_size_of(z->most_bytes, z->most_entries);
    return (struct state_size){.bytes = most.bytes - now.bytes,
                               .entries = most.entries > now.entries ? most.entries - now.entries : 0};
}

static bool resize_admit(struct resizing *z, const struct volume_own *o, bool admin)
{
    const struct volume_quota q = {.given = true, .admin = admin, .bytes = z->bytes, .entries = z->entries};
    struct state_size more = resize_growth(z);
    if (!z->volumes->peers->layers)
        state_fail(&z->failure, 503, "the process that keeps files is not there; try again");
    else if (o->resizing)
        state_fail(&z->failure, 503, "the size of volume '%s' is being changed already; try again", o->v.name);
    else if (volume_quota_allowed(z->volumes, o->v.tenant, &q, &z->failure) && (more.bytes || more.entries))
        (void)state_room(z->volumes->stacks, o->v.tenant, 0, more, &z->failure);
    return z->failure.status == 0;
}

void volume_resize(struct volumes *vs, struct volume *v, const struct volume_size *size, volume_done *done, void *arg)
{
    struct volume_own *o = (struct volume_own *)v;
    struct resizing *z = xcalloc(1, sizeof *z);
    *z = (struct resizing){.volumes = vs,
                           .bytes = size->has_bytes ? size->bytes : v->bytes,
                           .entries = size->has_entries ? size->entries : v->entries,
                           .old_bytes = v->bytes,
                           .old_entries = v->entries,
                           .has_entries = size->has_entries,
                           .done = done,
                           .arg = arg};
    (void)snprintf(z->id, sizeof z->id, "%s", v->id);
    resize_set_most(z);
    if (!resize_admit(z, o, size->admin)) {
        loop_defer(vs->loop, resize_tell, z);
        return;
    }
    o->resizing = true;
    if (z->most_bytes == z->old_bytes && z->most_entries == z->old_entries) {
        resize_ask(z);
        return;
    }
    o->v.bytes = z->most_bytes;
    o->v.entries = z->most_entries;
    resize_write_row(z, o, z->most_bytes, z->most_entries, resize_on_larger_row_stored);
}
