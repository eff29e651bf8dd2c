/* numbers.c - see numbers.h. */
#include "layers/numbers.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/log.h"
#include "os/statx.h"
#include "os/upper.h"

enum {
    SLACK = 1024,     /* of the seed above the store: keeper puts a few files of its own there */
    AT_ONCE = 100000, /* numbers that the start of the store waits for, about a second */
};

static bool numbers_matter(const struct layers_place *p) { return upper_is_subvolume(p->root); }

int numbers_raise_seed(const struct layers_place *p, struct err *err)
{
    uint64_t store;
    if (!numbers_matter(p))
        return 0;
    int made = upper_make_seed(p->root, LAYERS_SEED);
    _cleanup_close_ int dir =
        made < 0 ? -1 : openat(p->root, LAYERS_SEED, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (dir < 0 || upper_next_number(p->tmp, &store) < 0)
        return err_set(err, ERR_SETUP, errno, "look at the inode numbers of the store");
    if (upper_marked_number(dir) > store) /* what the seed counted without a mark is forgotten when the node ends */
        return 0;
    if (upper_raise_numbers(dir, store + SLACK) < 0 || upper_mark_number(dir) < 0)
        return err_set(err, ERR_SETUP, errno, "raise the inode numbers of new sandboxes");
    return 0;
}

void numbers_begin(const struct layers_place *p)
{
    uint64_t store;
    struct err err = {0};
    if (!numbers_matter(p) || upper_next_number(p->tmp, &store) < 0 || store > AT_ONCE)
        return;
    if (numbers_raise_seed(p, &err) < 0) /* a full disk: the store starts in any case */
        log_text(LOG_LEVEL_WARN, "%s", err.msg);
}

int numbers_layer_subvolume(const struct layers_place *p, const uint8_t layer[SHA256_BYTES])
{
    char name[LAYER_NAME];
    sha256_text(layer, name);
    _cleanup_close_ int dir = openat(p->layers, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    return dir >= 0 && upper_is_subvolume(dir) ? TAKE_FD(dir) : -1;
}

int numbers_raise_store(const struct layers_place *p, const struct stack_file *f, struct err *err)
{
    uint64_t next;
    if (!numbers_matter(p))
        return 0;
    for (uint32_t i = 0; i < f->n; i++) {
        _cleanup_close_ int dir = numbers_layer_subvolume(p, f->layer[i]);
        if (dir < 0)
            continue;
        if (upper_next_number(dir, &next) < 0 || upper_raise_numbers(p->tmp, next) < 0)
            return err_set(err, ERR_SETUP, errno, "raise the inode numbers of the store");
        return 0; /* subvolumes below it have lower ones */
    }
    return 0;
}

/* A plain layer got its meta file when it was whole. If that is older than the upper, so are all its files, and the seed was
 * above them when the upper was made. */
static int numbers_is_older(const struct layers_place *p, const uint8_t layer[SHA256_BYTES],
                            const struct timespec *than, struct err *err)
{
    char path[LAYER_NAME + 8];
    struct statx x;
    sha256_text(layer, path);
    (void)snprintf(path + LAYER_NAME - 1, sizeof path - LAYER_NAME + 1, "/meta");
    if (statx(p->layers, path, AT_SYMLINK_NOFOLLOW, STATX_BTIME, &x) < 0)
        return err_set(err, ERR_SETUP, errno, "look at the layer %.12s", path);
    return (x.stx_mask & STATX_BTIME) &&
           (x.stx_btime.tv_sec < than->tv_sec ||
            (x.stx_btime.tv_sec == than->tv_sec && (long)x.stx_btime.tv_nsec < than->tv_nsec));
}

int numbers_are_apart(const struct layers_place *p, const struct stack_file *f, int place, struct err *err)
{
    static const uint8_t none[16];
    struct upper_origin own, top;
    int older = 1;
    if (!numbers_matter(p) || upper_origin(place, &own) < 0 || memcmp(own.parent, none, sizeof none) == 0)
        return 0;
    for (uint32_t i = 0; i < f->n && older > 0; i++) {
        _cleanup_close_ int dir = numbers_layer_subvolume(p, f->layer[i]);
        if (dir < 0)
            older = numbers_is_older(p, f->layer[i], &own.made_at, err);
        else if (i == 0 && (upper_origin(dir, &top) < 0 || memcmp(top.uuid, own.parent, sizeof own.parent) != 0))
            return 0;
    }
    return older;
}
