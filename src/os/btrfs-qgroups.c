/* btrfs-qgroups.c - removes qgroups that no subvolume has any more.
 *
 * With simple quotas a qgroup counts what its subvolume wrote as long as the data is there, also after the subvolume is gone
 * and only its snapshots hold the data. The kernel removes no qgroup that counts something, and does not come back to it.
 */
#include <errno.h>
#include <linux/btrfs.h>
#include <linux/btrfs_tree.h>
#include <stdbool.h>
#include <string.h>
#include <sys/ioctl.h>

#include "base/cleanup.h"
#include "base/mem.h"
#include "os/btrfs.h"
#include "os/upper.h"

enum { FOUND_MAX = 4096, SEARCH_BYTES = 16 << 10 };
#define LEVEL_1 (UINT64_C(1) << 48)

union search {
    struct btrfs_ioctl_search_args_v2 a;
    unsigned char room[sizeof(struct btrfs_ioctl_search_args_v2) + SEARCH_BYTES];
};

/* Items of one object and type, from `offset` on. Their number, or -1 with errno. */
static int qgroups_search(int fd, union search *s, uint64_t tree, uint64_t object, uint32_t type, uint64_t offset)
{
    memset(s, 0, sizeof *s);
    s->a.key = (struct btrfs_ioctl_search_key){.tree_id = tree,
                                               .min_objectid = object,
                                               .max_objectid = object,
                                               .min_type = type,
                                               .max_type = type,
                                               .min_offset = offset,
                                               .max_offset = UINT64_MAX,
                                               .max_transid = UINT64_MAX,
                                               .nr_items = UINT32_MAX};
    s->a.buf_size = SEARCH_BYTES;
    return ioctl(fd, BTRFS_IOC_TREE_SEARCH_V2, &s->a) < 0 ? -1 : (int)s->a.key.nr_items;
}

static bool qgroups_has_subvolume(int fd, union search *s, uint64_t id)
{
    return qgroups_search(fd, s, BTRFS_ROOT_TREE_OBJECTID, id, BTRFS_ROOT_ITEM_KEY, 0) != 0; /* a failure is no proof */
}

/* Adds the ids of subvolumes whose qgroups count nothing; returns where to go on, 0 at the end. */
static uint64_t qgroups_read(int fd, union search *s, uint64_t from, uint64_t ids[FOUND_MAX], size_t *n)
{
    struct btrfs_ioctl_search_header h;
    struct btrfs_qgroup_info_item info;
    const unsigned char *p = s->room + sizeof s->a;
    int items = qgroups_search(fd, s, BTRFS_QUOTA_TREE_OBJECTID, 0, BTRFS_QGROUP_INFO_KEY, from);
    for (int i = 0; i < items; i++) {
        memcpy(&h, p, sizeof h);
        p += sizeof h;
        from = h.offset + 1;
        if (h.len >= sizeof info && h.offset >= BTRFS_FIRST_FREE_OBJECTID && h.offset < LEVEL_1 && *n < FOUND_MAX) {
            memcpy(&info, p, sizeof info);
            if (info.rfer == 0 && info.excl == 0)
                ids[(*n)++] = h.offset;
        }
        p += h.len;
    }
    return items > 0 && *n < FOUND_MAX ? from : 0;
}

void btrfs_qgroups_sweep(int fd)
{
    size_t n = 0, gone = 0;
    if (btrfs_quota_mode(fd) != BTRFS_QUOTA_SIMPLE)
        return;
    _cleanup_free_ union search *s = xcalloc(1, sizeof *s);
    _cleanup_free_ uint64_t *ids = xcalloc(FOUND_MAX, sizeof *ids);
    for (uint64_t from = BTRFS_FIRST_FREE_OBJECTID; from > 0;)
        from = qgroups_read(fd, s, from, ids, &n);
    for (size_t i = 0; i < n; i++)
        if (!qgroups_has_subvolume(fd, s, ids[i]))
            ids[gone++] = ids[i];
    /* A new subvolume has its qgroup a moment before it is in the tree of subvolumes, within one transaction. */
    if (gone == 0 || upper_commit(fd) < 0)
        return;
    for (size_t i = 0; i < gone; i++) {
        struct btrfs_ioctl_qgroup_create_args q = {.create = 0, .qgroupid = ids[i]};
        if (!qgroups_has_subvolume(fd, s, ids[i]))
            (void)ioctl(fd, BTRFS_IOC_QGROUP_CREATE, &q);
    }
}
