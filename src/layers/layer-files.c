#include "layers/layer-files.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "base/random.h"
#include "layers/numbers.h"
#include "os/upper.h"

_Static_assert(sizeof(struct layer_meta) == 40 + 3 * SHA256_BYTES, "the struct has no padding");

#define META_NEW "meta.new" /* in a layer that is a subvolume */

static const char magic[8] = "hlayer1";

static int rename_flags(int from_dir, const char *from, int to_dir, const char *to, unsigned flags)
{
    return (int)syscall(SYS_renameat2, from_dir, from, to_dir, to, flags);
}

/* Writes a new file and syncs it. */
static int layers_put_file(int dir, const char *name, const void *p, size_t n)
{
    _cleanup_close_ int fd = openat(dir, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0)
        return -1;
    if (fd_write_all(fd, p, n) == 0 && fsync(fd) == 0)
        return 0;
    int saved = errno;
    (void)unlinkat(dir, name, 0);
    errno = saved;
    return -1;
}

/* --- stacks ------------------------------------------------------------------------------------------------------- */

/* Makes sure that all layers of the stack exist. A layer that gc.c has just set aside, because no stack named it, is
 * renamed back. */
static int stack_hold_layers(const struct layers_place *p, const char *id, const struct stack_file *f, struct err *err)
{
    char name[LAYER_NAME], gone[LAYER_NAME + 8];
    for (uint32_t i = 0; i < f->n; i++) {
        sha256_text(f->layer[i], name);
        (void)snprintf(gone, sizeof gone, ".gone-%s", name);
        if (faccessat(p->layers, name, F_OK, AT_SYMLINK_NOFOLLOW) == 0 ||
            rename_flags(p->layers, gone, p->layers, name, RENAME_NOREPLACE) == 0 || errno == EEXIST)
            continue;
        return err_set(err, ERR_SETUP, errno, "the stack %s needs the layer %.12s, which is not there", id, name);
    }
    return 0;
}

int stack_write(const struct layers_place *p, const char *id, struct stack_file *f, struct err *err)
{
    char tmp[48] = "stack-";
    random_hex(tmp + 6, 16);
    stack_file_seal(f);
    if (!stack_id_valid(id) || !stack_file_valid(f))
        return err_set(err, ERR_INTERNAL, 0, "what would be written as stack %s is none", id);
    bool replaces = faccessat(p->stacks, id, F_OK, AT_SYMLINK_NOFOLLOW) == 0;
    if (stack_hold_layers(p, id, f, err) < 0)
        return -1;
    if (layers_put_file(p->tmp, tmp, f, sizeof *f) < 0)
        return err_set(err, ERR_SETUP, errno, "write the stack %s", id);
    if (renameat(p->tmp, tmp, p->stacks, id) < 0 || fsync(p->stacks) < 0) {
        int saved = errno;
        (void)unlinkat(p->tmp, tmp, 0);
        return err_set(err, ERR_SETUP, saved, "put the stack %s in its place", id);
    }
    /* Check again: gc may have set a layer aside before the stack file was in place; from now on it cannot. */
    if (stack_hold_layers(p, id, f, err) == 0)
        return 0;
    if (!replaces)
        (void)unlinkat(p->stacks, id, 0);
    return -1;
}

/* --- layers ------------------------------------------------------------------------------------------------------- */

static void layer_meta_sum(const struct layer_meta *m, const char *name, uint8_t ret[SHA256_BYTES])
{
    struct sha256 h;
    sha256_start(&h);
    sha256_add(&h, m, offsetof(struct layer_meta, sum));
    if (m->naming != LAYER_BY_DIGEST)
        sha256_add(&h, name, strlen(name));
    sha256_end(&h, ret);
}

bool layer_has_digest(const struct layer_meta *m)
{
    static const uint8_t none[SHA256_BYTES];
    return memcmp(m->digest, none, sizeof none) != 0;
}

static bool layer_meta_valid(const struct layer_meta *m, const char *name)
{
    uint8_t sum[SHA256_BYTES];
    char hex[LAYER_NAME];
    if (memcmp(m->magic, magic, sizeof magic) != 0 || m->naming < LAYER_BY_DIGEST || m->naming > LAYER_BY_CHANCE ||
        m->kind < LAYER_CAPTURE || m->kind > LAYER_FLAT)
        return false;
    sha256_text(m->digest, hex);
    layer_meta_sum(m, name, sum);
    return memcmp(sum, m->sum, sizeof sum) == 0 && (m->naming != LAYER_BY_DIGEST || strcmp(hex, name) == 0);
}

int layer_meta_read(const struct layers_place *p, const char *name, struct layer_meta *ret, struct err *err)
{
    char path[LAYER_NAME + 8];
    if (strnlen(name, LAYER_NAME) != LAYER_NAME - 1 || strspn(name, "0123456789abcdef") != LAYER_NAME - 1)
        return err_set(err, ERR_USAGE, 0, "a layer's name is 64 hexadecimal digits");
    (void)snprintf(path, sizeof path, "%s/meta", name);
    _cleanup_close_ int fd = openat(p->layers, path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0)
        return err_set(err, ERR_SETUP, errno, "open what is known of the layer %.12s", name);
    struct layer_meta m;
    char more;
    ssize_t n = pread(fd, &m, sizeof m, 0), after = pread(fd, &more, 1, sizeof m);
    if (n < 0 || after < 0)
        return err_set(err, ERR_SETUP, errno, "read what is known of the layer %.12s", name);
    if (n != sizeof m || after != 0 || !layer_meta_valid(&m, name))
        return err_set(err, ERR_SETUP, EBADMSG, "the layer %.12s is damaged", name);
    *ret = m;
    return 0;
}

/* A subvolume was renamed: with it, one transaction writes what was changed in it before. */
static int layers_sync_names(int layers, bool subvolume) { return subvolume ? upper_commit(layers) : fsync(layers); }

/* Renames the new layer into its place. An existing undamaged one stays, because sandboxes may be using it. */
static int layer_put_in_place(const struct layers_place *p, const char *tmp_name, const char *name, bool subvolume,
                              struct layer_meta *m, struct err *err)
{
    struct err whole = {0};
    struct layer_meta there;
    unsigned flags = RENAME_NOREPLACE;
    if (rename_flags(p->tmp, tmp_name, p->layers, name, flags) == 0)
        return layers_sync_names(p->layers, subvolume) < 0
                   ? err_set(err, ERR_SETUP, errno, "sync the directory of layers")
                   : 0;
    if (errno != EEXIST)
        return err_set(err, ERR_SETUP, errno, "put the layer %.12s in its place", name);
    if (layer_meta_read(p, name, &there, &whole) == 0)
        *m = there;
    else if (rename_flags(p->tmp, tmp_name, p->layers, name, RENAME_EXCHANGE) < 0 || fsync(p->layers) < 0)
        return err_set(err, ERR_SETUP, errno, "put the layer %.12s in the place of a damaged one", name);
    return tree_remove(p->tmp, tmp_name, err);
}

/* A new layer in tmp/. */
struct layer_new {
    int dir, root;
};
#define LAYER_NEW_INIT        \
    {                         \
        .dir = -1, .root = -1 \
    }

static void layer_new_done(struct layer_new *l)
{
    if (l->root >= 0)
        (void)close(l->root);
    if (l->dir >= 0)
        (void)close(l->dir);
}

static int layer_new_open(const struct layers_place *p, const char *tmp_name, struct layer_new *l, struct err *err)
{
    l->dir = openat(p->tmp, tmp_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    l->root = l->dir < 0 ? -1 : openat(l->dir, "root", O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    return l->root < 0 ? err_set(err, ERR_SETUP, errno, "open the new layer") : 0;
}

/* Syncs everything before the rename: a layer under its final name is complete. What a snapshot holds is on the disk. */
static int layer_new_name(const struct layers_place *p, const struct layer_new *l, const char *tmp_name,
                          const char *name, struct layer_meta *m, struct err *err)
{
    bool subvolume = upper_is_subvolume(l->dir);
    if (!subvolume && numbers_raise_seed(p, err) < 0) /* before meta: numbers_are_apart() compares its time */
        return -1;
    memcpy(m->magic, magic, sizeof magic);
    m->created_unix = (int64_t)time(NULL);
    layer_meta_sum(m, name, m->sum);
    if (layers_put_file(l->dir, "meta", m, sizeof *m) < 0 || fchmod(l->dir, 0755) < 0)
        return err_set(err, ERR_SETUP, errno, "write what is known of the layer %.12s", name);
    if (!subvolume && tree_sync(l->root, err) < 0)
        return -1;
    return layer_put_in_place(p, tmp_name, name, subvolume, m, err);
}

int layer_commit(const struct layers_place *p, const char *tmp_name, enum layer_kind kind, const uint8_t *diff_id,
                 unsigned tree_flags, struct layer_meta *ret, struct err *err)
{
    struct layer_meta m = {.naming = LAYER_BY_DIGEST, .kind = (uint32_t)kind};
    struct tree_size size = {0};
    char name[LAYER_NAME];
    _cleanup_(layer_new_done) struct layer_new l = LAYER_NEW_INIT;
    if (layer_new_open(p, tmp_name, &l, err) < 0)
        return -1;
    if (tree_digest(l.root, tree_flags, m.digest, &size, err) < 0)
        return err_wrap(err, "the new layer");
    m.bytes = size.bytes;
    m.entries = size.entries;
    if (diff_id)
        memcpy(m.diff_id, diff_id, sizeof m.diff_id);
    sha256_text(m.digest, name);
    if (layer_new_name(p, &l, tmp_name, name, &m, err) < 0)
        return -1;
    *ret = m;
    return 0;
}

int layer_commit_named(const struct layers_place *p, const char *tmp_name, enum layer_kind kind, struct tree_size size,
                       uint8_t ret_name[SHA256_BYTES], struct layer_meta *ret, struct err *err)
{
    struct layer_meta m = {
        .naming = LAYER_BY_CHANCE, .kind = (uint32_t)kind, .bytes = size.bytes, .entries = size.entries};
    char name[LAYER_NAME];
    _cleanup_(layer_new_done) struct layer_new l = LAYER_NEW_INIT;
    if (layer_new_open(p, tmp_name, &l, err) < 0)
        return -1;
    random_bytes(ret_name, SHA256_BYTES);
    sha256_text(ret_name, name);
    if (layer_new_name(p, &l, tmp_name, name, &m, err) < 0)
        return -1;
    *ret = m;
    return 0;
}

int layer_note_digest(const struct layers_place *p, const char *name, const char *tmp_name, struct layer_meta *m,
                      struct err *err)
{
    /* By descriptor: a collection may give the directory another name meanwhile. */
    _cleanup_close_ int dir = openat(p->layers, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    int tmp = p->tmp;
    layer_meta_sum(m, name, m->sum);
    if (dir >= 0 && upper_is_subvolume(dir)) { /* no file is renamed into another subvolume, and none in it is swept */
        if (flock(dir, LOCK_EX) < 0)
            return err_set(err, ERR_SETUP, errno, "lock the layer %.12s", name);
        tmp = dir;
        tmp_name = META_NEW;
        (void)unlinkat(dir, META_NEW, 0); /* of one that was killed */
    }
    if (dir < 0 || layers_put_file(tmp, tmp_name, m, sizeof *m) < 0)
        return err_set(err, ERR_SETUP, errno, "write the digest of the layer %.12s", name);
    if (renameat(tmp, tmp_name, dir, "meta") == 0 && fsync(dir) == 0)
        return 0;
    int saved = errno;
    (void)unlinkat(tmp, tmp_name, 0);
    return err_set(err, ERR_SETUP, saved, "note the digest of the layer %.12s", name);
}
