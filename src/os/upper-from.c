/* upper-from.c - uppers that start as a snapshot, so that no two layers of an overlay show the same inode number.
 *
 * An overlay shows the inode numbers of its layers, and each btrfs subvolume numbers its files from the beginning. Two
 * different files with one number are one file for cp, diff and find. A snapshot goes on with the numbers of what it was
 * made from: an upper that starts as a snapshot of the layer below it, or of a subvolume whose numbers are as high as
 * those of the store, repeats none of them.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/btrfs.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "os/btrfs.h"
#include "os/statx.h"
#include "os/upper-int.h"

#define MARK     "mark" /* a file that is there for its number */
#define MARK_NEW "mark.new"
#define OLD      "old" /* becomes UPPER_BELOW when it is complete */

enum { SUBVOL_MASK = 0x8000, SUBVOL_AT = 0xa0 }; /* STATX_SUBVOL, stx_subvol (Linux 6.10) */

uint64_t upper_subvolume_at(int dir, const char *name)
{
    struct statx x;
    uint64_t id;
    if (statx(dir, name, AT_SYMLINK_NOFOLLOW | AT_NO_AUTOMOUNT | (*name ? 0 : AT_EMPTY_PATH), SUBVOL_MASK, &x) < 0 ||
        !(x.stx_mask & SUBVOL_MASK))
        return 0;
    memcpy(&id, (const char *)&x + SUBVOL_AT, sizeof id);
    return id;
}

bool upper_is_subvolume(int fd) { return upper_btrfs_is_subvolume(fd); }

bool upper_keeps_snapshots(int place)
{
    return upper_btrfs_is_subvolume(place) && upper_subvolume_at(place, "") > 0 &&
           btrfs_quota_mode(place) == BTRFS_QUOTA_SIMPLE;
}

int upper_origin(int place, struct upper_origin *ret)
{
    struct btrfs_ioctl_get_subvol_info_args a;
    memset(&a, 0, sizeof a);
    if (ioctl(place, BTRFS_IOC_GET_SUBVOL_INFO, &a) < 0)
        return -1;
    *ret = (struct upper_origin){.made_at = {(time_t)a.otime.sec, (long)a.otime.nsec}};
    memcpy(ret->uuid, a.uuid, sizeof ret->uuid);
    memcpy(ret->parent, a.parent_uuid, sizeof ret->parent);
    return 0;
}

/* --- numbers ------------------------------------------------------------------------------------------------------ */

int upper_next_number(int dir, uint64_t *ret)
{
    struct stat st;
    _cleanup_close_ int fd = openat(dir, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (fd < 0 || fstat(fd, &st) < 0)
        return -1;
    *ret = st.st_ino;
    return 0;
}

int upper_raise_numbers(int dir, uint64_t to)
{
    uint64_t n = 0;
    while (n < to)
        if (upper_next_number(dir, &n) < 0)
            return -1;
    return 0;
}

int upper_mark_number(int dir)
{
    (void)unlinkat(dir, MARK_NEW, 0);
    _cleanup_close_ int fd = openat(dir, MARK_NEW, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    return fd < 0 || fsync(fd) < 0 ? -1 : renameat(dir, MARK_NEW, dir, MARK);
}

uint64_t upper_marked_number(int dir)
{
    struct stat st;
    return fstatat(dir, MARK, &st, AT_SYMLINK_NOFOLLOW) == 0 ? st.st_ino : 0;
}

int upper_make_seed(int dir, const char *name)
{
    struct btrfs_ioctl_vol_args_v2 a;
    memset(&a, 0, sizeof a);
    memcpy(a.name, name, strnlen(name, UPPER_NAME_MAX));
    return ioctl(dir, BTRFS_IOC_SUBVOL_CREATE_V2, &a) < 0 && errno != EEXIST ? -1 : 0;
}

/* --- the start of an upper ---------------------------------------------------------------------------------------- */

static int upper_move(int place, const char *from, const char *to)
{
    return renameat(place, from, place, to) < 0 && errno != ENOENT ? -1 : 0;
}

/* What the layer holds stays as UPPER_BELOW: its files keep their numbers from being given again, and cost nothing. No name
 * is looked up in the layer's tree, where a tenant chose them. Goes on where an interrupted call stopped. */
int upper_from_tidy(int place)
{
    struct stat st;
    if (fstatat(place, UPPER_LAYER_ROOT, &st, AT_SYMLINK_NOFOLLOW) == 0) {
        if ((mkdirat(place, OLD, 0700) < 0 && errno != EEXIST) ||
            upper_move(place, UPPER_BELOW, OLD "/" UPPER_BELOW) < 0 ||
            upper_move(place, UPPER_LAYER_ROOT, OLD "/" UPPER_LAYER_ROOT) < 0)
            return -1;
    } else if (errno != ENOENT) {
        return -1;
    }
    if (upper_move(place, OLD, UPPER_BELOW) < 0)
        return -1;
    static const char *const notes[] = {"meta", "meta.new", "no-digest"}; /* about the layer */
    for (size_t i = 0; i < ARRAY_LEN(notes); i++)
        if (unlinkat(place, notes[i], 0) < 0 && errno != ENOENT)
            return -1;
    return 0;
}

int upper_commit(int fd)
{
    uint64_t transid = 0;
    if (ioctl(fd, BTRFS_IOC_START_SYNC, &transid) < 0)
        return -1;
    return ioctl(fd, BTRFS_IOC_WAIT_SYNC, &transid) < 0 ? -1 : 0;
}
