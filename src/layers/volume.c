/* volume.c - makes, measures, resizes and removes volumes: directories that outlive sandboxes.
 *
 * A volume is a place of os/upper.h in STATE/stock/volumes: a directory, a subvolume, or an image where nothing else
 * has a quota. keeper detects the kind by itself (keeper/volumes.c).
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/log.h"
#include "layers/refs.h"
#include "os/upper.h"

enum { END_TRIES = 20, END_WAIT_US = 100000 };
enum { ENTRY_BYTES_MIN = 512 }; /* of an image: half of them are tables then */
enum { COUNT_MAX = 1 << 24 }; /* files to count without a quota; a process that moves them could prolong it for ever */
enum { VOLUME_MODE = 0777 };  /* all users in the owner's sandboxes may use it */

static bool volume_exists(const struct job *j, bool image)
{
    char file[LAYERS_SANDBOX_MAX + 8];
    (void)snprintf(file, sizeof file, "%s%s", j->ask->volume, image ? ".img" : "");
    return faccessat(j->place.volumes, file, F_OK, AT_SYMLINK_NOFOLLOW) == 0;
}

/* The driver for a new one. */
static int volume_choose_driver(struct job *j, struct upper_info *ret, struct err *err)
{
    bool quota = j->ask->bytes || j->ask->entries;
    if (upper_probe(j->place.volumes, "auto", quota, ret, err) < 0) {
        struct err plain = *err;
        if (!quota || upper_probe(j->place.volumes, "image", true, ret, err) < 0)
            return err_wrap(err, "%.200s", plain.msg);
    }
    if (ret->quota == UPPER_QUOTA_QGROUP && j->ask->entries && /* it limits bytes only */
        upper_probe(j->place.volumes, "image", true, ret, err) < 0)
        return err_wrap(err, "a limit on the number of files");
    if (ret->kind == UPPER_IMAGE && j->ask->bytes && j->ask->entries > j->ask->bytes / ENTRY_BYTES_MIN)
        return job_fail(j, LAYERS_BAD_REQUEST, err,
                        "in %llu bytes there is room for at most %llu files and directories",
                        (unsigned long long)j->ask->bytes, (unsigned long long)(j->ask->bytes / ENTRY_BYTES_MIN));
    return 0;
}

/* The driver of an existing volume. */
static int volume_find_driver(struct job *j, struct upper_info *ret, struct err *err)
{
    if (volume_exists(j, true)) {
        *ret = (struct upper_info){.kind = UPPER_IMAGE, .quota = UPPER_QUOTA_IMAGE};
        return 0;
    }
    if (!volume_exists(j, false))
        return job_fail(j, LAYERS_NOT_FOUND, err, "there is no volume %s", j->ask->volume);
    return upper_probe(j->place.volumes, "auto", false, ret, err);
}

/* Empty files cost no bytes, so that a quota of bytes alone would let a volume use up the inodes of the store. */
static uint64_t volume_entries_least(const struct job *j, const struct upper_info *info, uint64_t entries)
{
    return entries || info->quota != UPPER_QUOTA_PROJECT ? entries : layers_volume_entries(j->ask->bytes);
}

int job_volume_make(struct job *j, struct err *err)
{
    struct upper_info info;
    struct upper u = UPPER_INIT;
    if (volume_exists(j, true) || volume_exists(j, false)) {
        if (volume_find_driver(j, &info, err) < 0)
            return -1;
    } else if (volume_choose_driver(j, &info, err) < 0)
        return -1;
    if (upper_open(&info, j->place.volumes, j->ask->volume, j->ask->bytes,
                   volume_entries_least(j, &info, j->ask->entries), &u, err) < 0)
        return -1;
    _cleanup_close_ int root = openat(u.root, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int rc = root < 0 || fchmod(root, VOLUME_MODE) < 0 || syncfs(root) < 0 || fsync(j->place.volumes) < 0
                 ? err_set(err, ERR_SETUP, errno, "volume %s", j->ask->volume)
                 : 0;
    upper_close(&u);
    (void)snprintf(j->reply.text, sizeof j->reply.text, "%s", upper_quota_text(&info));
    return rc;
}

static int volume_reply_usage(struct job *j, const struct upper_info *info, struct err *err)
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
                   used.limit || used.inodes_limit ? upper_quota_text(info) : upper_quota_name(UPPER_QUOTA_NONE));
    return 0;
}

int job_volume_stat(struct job *j, struct err *err)
{
    struct upper_info info;
    return volume_find_driver(j, &info, err) < 0 ? -1 : volume_reply_usage(j, &info, err);
}

/* Fails if a living sandbox has the volume mounted: it could go on writing. Waits for sandboxes that are just
 * ending. */
static int volume_check_unused(struct job *j, struct err *err)
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
        return job_fail(j, LAYERS_BUSY, err, "the sandbox %s uses the volume %s", user->id, j->ask->volume);
    if (l.damaged[0])
        return job_fail(j, LAYERS_BUSY, err, "the record of the sandbox %s cannot be read: it may use the volume %s",
                        l.damaged, j->ask->volume);
    livings_done(&l);
    return 0;
}

/* Renames the volume away at once and removes its files after the answer. A missing volume is success. */
int job_volume_drop(struct job *j, struct err *err)
{
    struct err late = {0};
    if (volume_check_unused(j, err) < 0 || upper_remove(j->place.volumes, j->ask->volume, err) < 0)
        return -1;
    if (fsync(j->place.volumes) < 0)
        return err_set(err, ERR_SETUP, errno, "remove the volume %s", j->ask->volume);
    if (job_answer(j, err) < 0)
        return -1;
    if (upper_sweep(j->place.volumes, &late) < 0)
        log_text(LOG_LEVEL_WARN, "what is left of a volume is removed later: %s", late.msg);
    return 0;
}

/* The limit of entries to set. With LAYERS_KEEP it is not what the client asked for, so ignore it where it cannot be
 * set: an image's follows its size, btrfs has none, and quotas may be switched off. */
static uint64_t volume_entries_quota(const struct job *j, const struct upper_info *info)
{
    bool none = info->kind == UPPER_IMAGE || info->quota == UPPER_QUOTA_QGROUP ||
                (info->quota == UPPER_QUOTA_NONE && j->ask->bytes == 0);
    return (j->ask->flags & LAYERS_KEEP) && none ? 0 : volume_entries_least(j, info, j->ask->entries);
}

/* Refuses a quota that this kind of volume cannot have. */
static int volume_check_kind(struct job *j, struct upper_info *info, struct err *err)
{
    uint64_t bytes = j->ask->bytes, entries = volume_entries_quota(j, info);
    if (info->kind == UPPER_IMAGE && bytes == 0)
        return job_fail(j, LAYERS_HOST, err,
                        "the volume is an image, which is as large as its quota: it must have one");
    if (info->kind == UPPER_IMAGE && entries != 0)
        return job_fail(j, LAYERS_HOST, err, "the volume is an image, whose number of files follows its bytes");
    if (info->kind == UPPER_IMAGE || (bytes == 0 && entries == 0))
        return 0;
    /* The volume may be older than the file system's quotas, or they were switched off since. */
    if (info->quota == UPPER_QUOTA_NONE &&
        (upper_probe(j->place.volumes, upper_kind_name(info->kind), true, info, err) < 0))
        return -1;
    if (info->quota == UPPER_QUOTA_QGROUP && volume_entries_quota(j, info) != 0)
        return job_fail(j, LAYERS_HOST, err, "btrfs limits bytes, not the number of files");
    return 0;
}

static int volume_check_fits(struct job *j, const struct upper_info *info, struct err *err)
{
    uint64_t bytes = j->ask->bytes, entries = j->ask->entries;
    (void)syncfs(j->place.volumes); /* btrfs counts what is written */
    if (volume_reply_usage(j, info, err) < 0)
        return -1;
    if (bytes && j->reply.bytes > bytes)
        return job_fail(j, LAYERS_CONFLICT, err, "it holds %llu bytes, more than the %llu that it shall have",
                        (unsigned long long)j->reply.bytes, (unsigned long long)bytes);
    if (entries && !(j->ask->flags & LAYERS_KEEP) && j->reply.entries > entries)
        return job_fail(j, LAYERS_CONFLICT, err,
                        "it holds %llu files and directories, more than the %llu that it shall have",
                        (unsigned long long)j->reply.entries, (unsigned long long)entries);
    return 0;
}

/* The loop device may stay busy for a moment after its last user, a sandbox or our own look at it, has ended: try
 * again. */
static int volume_resize_image(struct job *j, const struct upper_info *info, struct err *err)
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
        j->reply.error = LAYERS_BUSY;
    else if (r < 0 && err->code == ERR_LIMIT)
        j->reply.error = LAYERS_CONFLICT;
    return r;
}

int job_volume_resize(struct job *j, struct err *err)
{
    struct upper_info info;
    const struct layers_request *q = j->ask;
    if (volume_find_driver(j, &info, err) < 0 || volume_check_kind(j, &info, err) < 0)
        return -1;
    bool image = info.kind == UPPER_IMAGE;
    if ((image && volume_check_unused(j, err) < 0) || volume_check_fits(j, &info, err) < 0)
        return -1;
    if ((image ? volume_resize_image(j, &info, err)
               : upper_resize(&info, j->place.volumes, q->volume, q->bytes, volume_entries_quota(j, &info), err)) < 0)
        return -1;
    return volume_reply_usage(j, &info, err);
}
