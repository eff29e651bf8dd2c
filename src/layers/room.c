#include "layers/room.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/num.h"
#include "layers/layers-int.h"
#include "layers/numbers.h"
#include "os/upper.h"

#define METADATA (UINT64_C(16) << 20) /* names and attributes of what is written again, and the blocks that hold them */

static void room_text(uint64_t bytes, char ret[32])
{
    _cleanup_buf_ struct buf text = {0};
    num_add_size(&text, bytes);
    (void)snprintf(ret, 32, "%s", buf_str(&text));
}

/* The place of a sandbox and its usage, if it is a subvolume with a limit. */
static int room_open(const struct job_sandbox *b, struct upper_usage *ret)
{
    static const struct upper_info info = {.kind = UPPER_BTRFS, .quota = UPPER_QUOTA_QGROUP};
    struct err ignored = {0};
    _cleanup_close_ int place = b->place < 0 ? -1 : openat(b->place, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (place < 0 || b->record.disk == 0 || !upper_is_subvolume(place))
        return -1;
    (void)upper_commit(place); /* which counts what was written and freed */
    struct upper u = {.kind = UPPER_BTRFS, .root = place};
    if (upper_stat(&info, -1, "", &u, ret, &ignored) < 0 || ret->limit == 0)
        return -1;
    return TAKE_FD(place);
}

/* Whether the capture is a snapshot of the sandbox, so that nothing it holds is freed. */
static bool room_is_held(struct job *j, const char *stack)
{
    struct stack_file f;
    struct err ignored = {0};
    if (stack_read(&j->place, stack, &f, &ignored) < 0 || f.n == 0)
        return false;
    _cleanup_close_ int layer = numbers_layer_subvolume(&j->place, f.layer[0]);
    return layer >= 0;
}

int room_check(struct job *j, const struct job_sandbox *b, const char *held, uint64_t bytes, uint64_t back,
               struct err *err)
{
    struct upper_usage usage;
    struct statvfs v;
    char needs[32], has[32], limit[32];
    _cleanup_close_ int place = room_open(b, &usage);
    if (place < 0 || !upper_keeps_snapshots(place) || !room_is_held(j, held))
        return 0;
    uint64_t own = usage.used < usage.limit ? usage.limit - usage.used : 0;
    uint64_t all = fstatvfs(place, &v) == 0 ? (uint64_t)v.f_bavail * v.f_frsize : UINT64_MAX;
    if (bytes <= own && bytes + back <= all)
        return 0;
    room_text(bytes <= own ? bytes + back : bytes, needs);
    room_text(bytes <= own ? all : own, has);
    room_text(usage.limit, limit);
    if (bytes <= own)
        return job_fail(j, LAYERS_NO_SPACE, err,
                        "the disk of the node is full: the change, and taking it back if it fails, need %s, and %s are "
                        "free. Nothing was changed. Remove snapshots, sandboxes or files, or make more room (`hutch "
                        "store df`)",
                        needs, has);
    return job_fail(
        j, LAYERS_NO_SPACE, err,
        "the disk of the sandbox is full: the change needs %s, and %s of %s are free, what its snapshots and "
        "generations hold counted. Nothing was changed. Remove files that it wrote after the last of them, "
        "or take a snapshot and make a sandbox with a larger disk from it",
        needs, has, limit);
}

void room_raise(const struct job_sandbox *b, uint64_t more)
{
    struct upper_usage usage;
    struct err ignored = {0}; /* it may fit all the same; else writing fails */
    _cleanup_close_ int place = room_open(b, &usage);
    uint64_t most = place >= 0 && usage.used > b->record.disk ? usage.used : b->record.disk;
    if (place >= 0)
        (void)upper_btrfs_limit(place, most + more + METADATA, &ignored);
}

int room_restore(const struct job_sandbox *b, struct err *err)
{
    struct upper_usage usage;
    _cleanup_close_ int place = room_open(b, &usage);
    return place < 0 || usage.limit == b->record.disk ? 0 : upper_btrfs_limit(place, b->record.disk, err);
}

const char *room_whose(const struct job_sandbox *b, int eno)
{
    _cleanup_close_ int place = b->place < 0 ? -1 : openat(b->place, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    return eno == ENOSPC && place >= 0 && upper_is_subvolume(place) ? "node" : "sandbox";
}
