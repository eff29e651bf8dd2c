/* volume.c - directories that outlive sandboxes: made, measured, taken away.
 *
 * A volume is a place of os/upper.h in STATE/stock/volumes: a directory, a subvolume, or an image where nothing else has a
 * quota. keeper finds out by itself which of them it is (keeper/volumes.c).
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/log.h"
#include "os/upper.h"
#include "stock/refs.h"

enum { END_TRIES = 20, END_WAIT_US = 100000 };
enum { ENTRY_BYTES_MIN = 512 }; /* of an image: half of them are tables then */
enum { COUNT_MAX = 1 << 24 };   /* files of one without a quota; who moves them about would have us count for ever */
enum { VOLUME_MODE = 0777 };    /* whoever runs in a sandbox of the owner may use it */

static bool is_there(const struct job *j, bool image)
{
    char file[STOCK_BOX_MAX + 8];
    (void)snprintf(file, sizeof file, "%s%s", j->ask->volume, image ? ".img" : "");
    return faccessat(j->place.volumes, file, F_OK, AT_SYMLINK_NOFOLLOW) == 0;
}

/* The driver for a new one. */
static int choose(struct job *j, struct upper_info *ret, struct err *err)
{
    bool quota = j->ask->bytes || j->ask->entries;
    if (upper_probe(j->place.volumes, "auto", quota, ret, err) < 0)
        return -1;
    if (ret->quota == UPPER_QUOTA_QGROUP && j->ask->entries && /* it limits bytes only */
        upper_probe(j->place.volumes, "image", true, ret, err) < 0)
        return err_wrap(err, "a limit on the number of files");
    if (ret->kind == UPPER_IMAGE && j->ask->bytes && j->ask->entries > j->ask->bytes / ENTRY_BYTES_MIN)
        return job_fail(j, STOCK_BAD_REQUEST, err, "in %llu bytes there is room for at most %llu files and directories",
                        (unsigned long long)j->ask->bytes, (unsigned long long)(j->ask->bytes / ENTRY_BYTES_MIN));
    return 0;
}

/* How one that is there was made. */
static int find(struct job *j, struct upper_info *ret, struct err *err)
{
    if (is_there(j, true)) {
        *ret = (struct upper_info){.kind = UPPER_IMAGE, .quota = UPPER_QUOTA_IMAGE};
        return 0;
    }
    if (!is_there(j, false))
        return job_fail(j, STOCK_NOT_FOUND, err, "there is no volume %s", j->ask->volume);
    return upper_probe(j->place.volumes, "auto", false, ret, err);
}

/* Empty files cost no bytes, so that a quota of bytes alone would let a volume use up the inodes of the store. */
static uint64_t entries_at_least(const struct job *j, const struct upper_info *info, uint64_t entries)
{
    return entries || info->quota != UPPER_QUOTA_PROJECT ? entries : stock_volume_entries(j->ask->bytes);
}

int job_volume_make(struct job *j, struct err *err)
{
    struct upper_info info;
    struct upper u = UPPER_INIT;
    if (is_there(j, true) || is_there(j, false)) {
        if (find(j, &info, err) < 0)
            return -1;
    } else if (choose(j, &info, err) < 0)
        return -1;
    if (upper_open(&info, j->place.volumes, j->ask->volume, j->ask->bytes, entries_at_least(j, &info, j->ask->entries),
                   &u, err) < 0)
        return -1;
    _cleanup_close_ int root = openat(u.root, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int rc = root < 0 || fchmod(root, VOLUME_MODE) < 0 || syncfs(root) < 0 || fsync(j->place.volumes) < 0
                 ? err_set(err, ERR_SETUP, errno, "volume %s", j->ask->volume)
                 : 0;
    upper_close(&u);
    (void)snprintf(j->reply.text, sizeof j->reply.text, "%s", upper_quota_name(info.quota));
    return rc;
}

static int tell(struct job *j, const struct upper_info *info, struct err *err)
{
    struct upper_usage used = {0};
    struct upper_info bounded = *info;
    bounded.count_max = COUNT_MAX;
    if (upper_stat(&bounded, j->place.volumes, j->ask->volume, NULL, &used, err) < 0)
        return -1;
    j->reply.bytes = used.used;
    j->reply.entries = used.inodes;
    j->reply.bytes2 = used.limit;
    j->reply.entries2 = used.inodes_limit;
    (void)snprintf(j->reply.text, sizeof j->reply.text, "%s",
                   used.limit || used.inodes_limit ? upper_quota_name(info->quota)
                                                   : upper_quota_name(UPPER_QUOTA_NONE));
    return 0;
}

int job_volume_stat(struct job *j, struct err *err)
{
    struct upper_info info;
    return find(j, &info, err) < 0 ? -1 : tell(j, &info, err);
}

/* Whoever has it mounted would go on writing into what is being removed. One that is just ending is waited for. */
static int check_unused(struct job *j, struct err *err)
{
    const struct living *user = NULL;
    struct livings l;
    for (unsigned i = 0;; i++) {
        if (livings_read(j->run_dir, &l, err) < 0)
            return -1;
        user = livings_volume(&l, j->ask->volume);
        if ((!user && !l.damaged[0]) || i == END_TRIES)
            break;
        livings_done(&l);
        (void)usleep(END_WAIT_US);
    }
    if (user)
        return job_fail(j, STOCK_BUSY, err, "the sandbox %s uses the volume %s", user->id, j->ask->volume);
    if (l.damaged[0])
        return job_fail(j, STOCK_BUSY, err, "the record of the sandbox %s cannot be read: it may use the volume %s",
                        l.damaged, j->ask->volume);
    livings_done(&l);
    return 0;
}

/* Out of the way at once; what is in it goes after the answer. Not there: done before. */
int job_volume_drop(struct job *j, struct err *err)
{
    struct err late = {0};
    if (check_unused(j, err) < 0 || upper_remove(j->place.volumes, j->ask->volume, err) < 0)
        return -1;
    if (fsync(j->place.volumes) < 0)
        return err_set(err, ERR_SETUP, errno, "remove the volume %s", j->ask->volume);
    if (job_answer(j, err) < 0)
        return -1;
    if (upper_sweep(j->place.volumes, &late) < 0)
        log_text(LOG_LEVEL_WARN, "what is left of a volume is removed later: %s", late.msg);
    return 0;
}

/* Those of an image follow its size, btrfs has none, and a quota may be gone: what nobody asked for is no reason to refuse
 * the rest. */
static uint64_t entries_of(const struct job *j, const struct upper_info *info)
{
    bool none = info->kind == UPPER_IMAGE || info->quota == UPPER_QUOTA_QGROUP ||
                (info->quota == UPPER_QUOTA_NONE && j->ask->bytes == 0);
    return (j->ask->flags & STOCK_KEEP) && none ? 0 : entries_at_least(j, info, j->ask->entries);
}

/* What this kind of place cannot have as its quota. */
static int check_kind(struct job *j, struct upper_info *info, struct err *err)
{
    uint64_t bytes = j->ask->bytes, entries = entries_of(j, info);
    if (info->kind == UPPER_IMAGE && bytes == 0)
        return job_fail(j, STOCK_HOST, err, "the volume is an image, which is as large as its quota: it must have one");
    if (info->kind == UPPER_IMAGE && entries != 0)
        return job_fail(j, STOCK_HOST, err, "the volume is an image, whose number of files follows its bytes");
    if (info->kind == UPPER_IMAGE || (bytes == 0 && entries == 0))
        return 0;
    /* It may have been made before there were quotas, or they were switched off since. */
    if (info->quota == UPPER_QUOTA_NONE &&
        (upper_probe(j->place.volumes, upper_kind_name(info->kind), true, info, err) < 0))
        return -1;
    if (info->quota == UPPER_QUOTA_QGROUP && entries_of(j, info) != 0)
        return job_fail(j, STOCK_HOST, err, "btrfs limits bytes, not the number of files");
    return 0;
}

static int check_fits(struct job *j, const struct upper_info *info, struct err *err)
{
    uint64_t bytes = j->ask->bytes, entries = j->ask->entries;
    (void)syncfs(j->place.volumes); /* btrfs counts what is written */
    if (tell(j, info, err) < 0)
        return -1;
    if (bytes && j->reply.bytes > bytes)
        return job_fail(j, STOCK_CONFLICT, err, "it holds %llu bytes, more than the %llu that it shall have",
                        (unsigned long long)j->reply.bytes, (unsigned long long)bytes);
    if (entries && !(j->ask->flags & STOCK_KEEP) && j->reply.entries > entries)
        return job_fail(j, STOCK_CONFLICT, err,
                        "it holds %llu files and directories, more than the %llu that it shall have",
                        (unsigned long long)j->reply.entries, (unsigned long long)entries);
    return 0;
}

/* Nobody is using it, but whoever did, or we when we looked, may be a moment away from having let go of its device. */
static int resize_image(struct job *j, const struct upper_info *info, struct err *err)
{
    int r;
    for (unsigned i = 0;; i++) {
        *err = (struct err){0};
        r = upper_resize(info, j->place.volumes, j->ask->volume, j->ask->bytes, 0, err);
        if (r == 0 || (err->eno != EBUSY && err->eno != EPERM) || i == END_TRIES)
            break;
        (void)usleep(END_WAIT_US);
    }
    if (r < 0 && (err->eno == EBUSY || err->eno == EPERM))
        j->reply.error = STOCK_BUSY;
    else if (r < 0 && err->code == ERR_LIMIT)
        j->reply.error = STOCK_CONFLICT;
    return r;
}

int job_volume_resize(struct job *j, struct err *err)
{
    struct upper_info info;
    const struct stock_request *q = j->ask;
    if (find(j, &info, err) < 0 || check_kind(j, &info, err) < 0)
        return -1;
    bool image = info.kind == UPPER_IMAGE;
    if ((image && check_unused(j, err) < 0) || check_fits(j, &info, err) < 0)
        return -1;
    if ((image ? resize_image(j, &info, err)
               : upper_resize(&info, j->place.volumes, q->volume, q->bytes, entries_of(j, &info), err)) < 0)
        return -1;
    return tell(j, &info, err);
}
