/* kept.c - see kept.h. */
#include "layers/kept.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "layers/numbers.h"
#include "os/upper.h"
#include "trees/walk.h"

/* That of the job is O_PATH. */
static int kept_open_place(const struct job_sandbox *b)
{
    return openat(b->place, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
}

int kept_possible(const struct job *j, const struct job_sandbox *b, const struct stack_file *f, struct err *err)
{
    _cleanup_close_ int place = kept_open_place(b);
    if (j->rootless || place < 0 || !upper_keeps_snapshots(place) || !upper_can_snapshot(place, j->place.tmp))
        return 0;
    return numbers_are_apart(&j->place, f, place, err);
}

void kept_write_out(const struct job_sandbox *b)
{
    _cleanup_close_ int place = kept_open_place(b);
    if (place >= 0)
        (void)syncfs(place);
}

int kept_take(const struct job *j, const struct job_sandbox *b, const char *name, struct kept *ret, struct err *err)
{
    static const struct upper_info info = {.kind = UPPER_BTRFS, .quota = UPPER_QUOTA_QGROUP};
    struct upper_usage usage;
    _cleanup_close_ int place = kept_open_place(b);
    int r = upper_snapshot(place, j->place.tmp, name, false, err);
    if (r != 0)
        return r < 0 ? -1 : err_set(err, ERR_SETUP, EXDEV, "take a snapshot of the sandbox %s", b->record.id);
    const struct upper u = {UPPER_BTRFS, place};
    if (upper_stat(&info, -1, "", &u, &usage, err) < 0)
        return -1;
    ret->bytes = usage.used;
    return 0;
}

bool kept_is_related(const struct job *j, const struct job_sandbox *b, const uint8_t layer[SHA256_BYTES],
                     struct timespec *ret_at, uint64_t *ret_shared)
{
    struct upper_origin now, then;
    struct layer_meta m;
    struct err ignored = {0};
    char name[LAYER_NAME];
    _cleanup_close_ int dir = numbers_layer_subvolume(&j->place, layer);
    _cleanup_close_ int place = kept_open_place(b);
    if (dir < 0 || place < 0 || upper_origin(place, &now) < 0 || upper_origin(dir, &then) < 0 ||
        memcmp(then.parent, now.uuid, sizeof now.uuid) != 0)
        return false;
    *ret_at = then.made_at;
    sha256_text(layer, name);
    if (layer_meta_read(&j->place, name, &m, &ignored) == 0)
        *ret_shared = m.bytes;
    return true;
}

/* --- the tree ----------------------------------------------------------------------------------------------------- */

struct kept_walk {
    struct walk_path path;
    uint64_t entries;
};

static int kept_fail(const struct kept_walk *w, const char *what, struct err *err)
{
    return walk_fail(err, ERR_SETUP, errno, w->path.text, "%s", what);
}

/* A file of lower layers that the socket may hide stays hidden. */
static int kept_drop_socket(const struct kept_walk *w, int dir, const char *name, bool merged, struct err *err)
{
    struct stat st;
    if (fstat(dir, &st) < 0 || unlinkat(dir, name, 0) < 0 || (merged && mknodat(dir, name, S_IFCHR, makedev(0, 0)) < 0))
        return kept_fail(w, "the socket cannot be left out", err);
    struct timespec times[2] = {{.tv_nsec = UTIME_OMIT}, st.st_mtim};
    return futimens(dir, times) < 0 ? kept_fail(w, "its time cannot be set", err) : 0;
}

static bool kept_is_merged(const struct kept_walk *w, int dir)
{
    char value;
    return !(fgetxattr(dir, "trusted.overlay.opaque", &value, 1) == 1 && value == 'y') &&
           (w->path.n == 0 || fgetxattr(dir, "trusted.overlay.origin", NULL, 0) >= 0);
}

static int kept_walk_dir(struct kept_walk *w, int dir, struct err *err);

static int kept_walk_entry(struct kept_walk *w, int dir, const struct dirent *e, struct err *err)
{
    struct stat st;
    size_t old;
    unsigned char type = e->d_type;
    if (type == DT_UNKNOWN && fstatat(dir, e->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0)
        type = (unsigned char)IFTODT(st.st_mode);
    bool merged = type == DT_SOCK && kept_is_merged(w, dir);
    w->entries += type != DT_SOCK || merged;
    if (type != DT_DIR && type != DT_SOCK)
        return 0;
    if (walk_push(&w->path, e->d_name, &old, err) < 0)
        return -1;
    int r = 0;
    if (type == DT_SOCK) {
        r = kept_drop_socket(w, dir, e->d_name, merged, err);
    } else {
        _cleanup_close_ int below = walk_open_dir(dir, e->d_name);
        r = below < 0 ? kept_fail(w, "cannot be opened", err) : kept_walk_dir(w, below, err);
    }
    walk_pop(&w->path, old);
    return r;
}

/* Counts names: that reads no inode, and so takes a tenth of looking at each file. */
static int kept_walk_dir(struct kept_walk *w, int dir, struct err *err)
{
    int copy = openat(dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    _cleanup_closedir_ DIR *d = copy < 0 ? NULL : fdopendir(copy);
    const struct dirent *e;
    if (!d) {
        if (copy >= 0)
            (void)close(copy);
        return kept_fail(w, "cannot be listed", err);
    }
    for (errno = 0; (e = readdir(d)) != NULL; errno = 0)
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0 && kept_walk_entry(w, dir, e, err) < 0)
            return -1;
    return errno ? kept_fail(w, "cannot be listed", err) : 0;
}

int kept_finish(const struct job *j, const struct job_sandbox *b, const char *name, const struct kept *k,
                struct tree_size *ret, struct err *err)
{
    struct stat st;
    struct kept_walk w = {.entries = 1};
    _cleanup_close_ int top = openat(j->place.tmp, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (top < 0 || fstatat(top, "u", &st, AT_SYMLINK_NOFOLLOW) < 0)
        return err_set(err, ERR_SETUP, errno, "open the snapshot of the sandbox %s", b->record.id);
    if (st.st_ino != b->record.upper_ino)
        return err_set(err, ERR_SETUP, ESTALE, "the snapshot of the sandbox %s holds something else", b->record.id);
    if (renameat(top, "u", top, UPPER_LAYER_ROOT) < 0)
        return err_set(err, ERR_SETUP, errno, "make the snapshot of the sandbox %s a layer", b->record.id);
    if (tree_remove(top, "w", err) < 0)
        return -1;
    _cleanup_close_ int root = openat(top, UPPER_LAYER_ROOT, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (root < 0)
        return err_set(err, ERR_SETUP, errno, "open the snapshot of the sandbox %s", b->record.id);
    if (kept_walk_dir(&w, root, err) < 0)
        return -1;
    *ret = (struct tree_size){.bytes = k->bytes, .entries = w.entries};
    return TAKE_FD(root);
}

int kept_trim(const struct job *j, const char *name, struct err *err)
{
    _cleanup_close_ int dir = openat(j->place.layers, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (dir < 0 || !upper_is_subvolume(dir) || faccessat(dir, UPPER_BELOW, F_OK, AT_SYMLINK_NOFOLLOW) < 0)
        return 0;
    if (upper_mark_number(dir) < 0)
        return err_set(err, ERR_SETUP, errno, "note the highest number of the layer %.12s", name);
    return tree_remove(dir, UPPER_BELOW, err);
}
