/* uppers.c - the private writable layers of sandboxes: which driver makes them, what they use, and their end.
 *
 * In memory (tmpfs) one goes with its sandbox. On disk it is STATE/stock/uppers/ID, which is renamed out of the way
 * here and removed by the next sweep of the database.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "keeper/keeper-int.h"

enum { DRIVERS = 8 };

/* Probe results by driver; no secret, so every init may have a copy. */
static struct {
    char name[KEEPER_DRIVER_MAX]; /* "": free */
    struct upper_info info;
} known[DRIVERS];

static struct upper_info *uppers_remembered(const char *driver)
{
    for (size_t i = 0; i < DRIVERS; i++)
        if (known[i].name[0] && strcmp(known[i].name, driver) == 0)
            return &known[i].info;
    return NULL;
}

/* Prefers a quota; without one, ret->why says what is missing. */
static int uppers_probe_driver(int dir, const char *driver, struct upper_info *ret, struct err *err)
{
    const struct upper_info *old = uppers_remembered(driver);
    if (old) {
        *ret = *old;
        return 0;
    }
    struct err with = {0};
    if (upper_probe(dir, driver, true, ret, &with) < 0) {
        struct upper_info all = *ret; /* says for every driver why it has no quota */
        if (upper_probe(dir, driver, false, ret, err) < 0)
            return -1;
        memcpy(ret->why, all.why, sizeof ret->why);
    }
    for (size_t i = 0; i < DRIVERS; i++)
        if (!known[i].name[0]) {
            (void)snprintf(known[i].name, sizeof known[i].name, "%s", driver);
            known[i].info = *ret;
            break;
        }
    return 0;
}

int uppers_probe(const struct keeper *k, const char *driver, struct upper_info *ret, struct err *err)
{
    const char *name = driver[0] ? driver : k->config->driver ? k->config->driver : "tmpfs";
    if (strcmp(name, upper_kind_name(UPPER_IMAGE)) == 0)
        return err_set(err, ERR_USAGE, 0,
                       "driver: a sandbox has no image of its own any more: use pool, btrfs, layers or tmpfs");
    if (uppers_probe_driver(k->common->layers.uppers, name, ret, err) < 0)
        return err->code == ERR_USAGE ? err_wrap(err, "driver")
                                      : err_wrap(err, "the driver %s of the upper layer", name);
    return 0;
}

/* What a new upper starts from (os/upper.h): the uppermost layer of its root if that is a subvolume, else the seed of the
 * store. -1: nothing. */
static int uppers_from(const struct keeper *k, const struct root *root)
{
    const struct layers_place *p = &k->common->layers;
    struct stat above, layers;
    _cleanup_close_ int top = openat(root->layer[0], "..", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (top >= 0 && upper_is_subvolume(top) && fstatat(top, "..", &above, 0) == 0 && fstat(p->layers, &layers) == 0 &&
        above.st_dev == layers.st_dev && above.st_ino == layers.st_ino)
        return TAKE_FD(top);
    return openat(p->layers, "../" LAYERS_SEED, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
}

int uppers_take(const struct keeper *k, const struct upper_info *info, const struct keeper_create *c,
                const struct root *root, struct upper *ret, struct err *err)
{
    struct err ignored = {0};
    int dir = k->common->layers.uppers;
    if (info->kind != UPPER_TMPFS) /* left by a sandbox of that name from an earlier run of this node */
        (void)upper_remove(dir, c->id, &ignored);
    uint64_t disk = info->quota != UPPER_QUOTA_NONE ? c->disk : 0, inodes = disk ? c->inodes : 0;
    _cleanup_close_ int from = info->kind == UPPER_BTRFS ? uppers_from(k, root) : -1;
    if (upper_open_from(info, dir, c->id, from, disk, inodes, ret, err) < 0)
        return err_wrap(err, "set-up failed at mounts: make the upper layer");
    return 0;
}

static bool on_disk(const char *driver) { return driver[0] && strcmp(driver, upper_kind_name(UPPER_TMPFS)) != 0; }

void uppers_drop(const struct keeper *k, const char *id, const char *driver)
{
    struct err ignored = {0};
    if (on_disk(driver))
        (void)upper_remove(k->common->layers.uppers, id, &ignored); /* what stays is swept by the next keeper */
}

bool uppers_usage(const struct keeper_common *m, const struct journal_record *r, struct upper_usage *ret)
{
    struct err ignored = {0};
    struct upper_info info;
    if (!on_disk(r->driver) || uppers_probe_driver(m->layers.uppers, r->driver, &info, &ignored) < 0)
        return false;
    /* Counting files one by one would block all other requests. */
    if (info.quota != UPPER_QUOTA_QGROUP && info.quota != UPPER_QUOTA_PROJECT)
        return false;
    info.count_max = 1;
    return upper_stat(&info, m->layers.uppers, r->id, NULL, ret, &ignored) == 0;
}

/* Removes uppers without a record: the run directory does not survive a boot, the state directory does. */
void uppers_sweep(struct keeper *k)
{
    int copy = openat(k->common->layers.uppers, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    _cleanup_closedir_ DIR *d = copy < 0 ? NULL : fdopendir(copy);
    struct dirent *f;
    while (d && (f = readdir(d)) != NULL) {
        struct err ignored = {0};
        char id[KEEPER_ID_MAX] = "";
        size_t n = strcspn(f->d_name, "."); /* images, which older versions made, have a suffix */
        if (n == 0 || n >= sizeof id)
            continue;
        memcpy(id, f->d_name, n);
        struct entry *e = keeper_id_valid(id) ? entry_find(k, id) : NULL;
        if (!e || e->life == LIFE_DEAD)
            (void)upper_remove(k->common->layers.uppers, id, &ignored);
    }
}
