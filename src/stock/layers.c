#include "stock/layers.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "base/random.h"
#include "stock/tree.h"

_Static_assert(sizeof(struct layer_meta) == 40 + 3 * SHA256_BYTES, "no bytes between the fields that nobody sets");

static const char magic[8] = "hlayer1";
enum { VERSION = 1 };

static int rename_flags(int from_dir, const char *from, int to_dir, const char *to, unsigned flags)
{
    return (int)syscall(SYS_renameat2, from_dir, from, to_dir, to, flags);
}

/* A new file with these bytes, on the disk when this returns. */
static int put_file(int dir, const char *name, const void *p, size_t n)
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

static void hex_of(const uint8_t digest[SHA256_BYTES], char ret[LAYER_NAME])
{
    for (size_t i = 0; i < SHA256_BYTES; i++)
        (void)snprintf(ret + 2 * i, 3, "%02x", digest[i]);
}

/* A layer that a collection had just put away, because no stack named it then, comes back before anybody misses it
 * (gc.c). One that is not there at all must not be named. */
static int hold_layers(const struct stock_place *p, const char *id, const struct stack_file *f, struct err *err)
{
    char name[LAYER_NAME], gone[LAYER_NAME + 8];
    for (uint32_t i = 0; i < f->n; i++) {
        hex_of(f->layer[i], name);
        (void)snprintf(gone, sizeof gone, ".gone-%s", name);
        if (faccessat(p->layers, name, F_OK, AT_SYMLINK_NOFOLLOW) == 0 ||
            rename_flags(p->layers, gone, p->layers, name, RENAME_NOREPLACE) == 0 || errno == EEXIST)
            continue;
        return err_set(err, ERR_SETUP, errno, "the stack %s needs the layer %.12s, which is not there", id, name);
    }
    return 0;
}

int stack_write(const struct stock_place *p, const char *id, struct stack_file *f, struct err *err)
{
    char tmp[48] = "stack-";
    random_hex(tmp + 6, 16);
    stack_file_seal(f);
    if (!stack_id_valid(id) || !stack_file_valid(f))
        return err_set(err, ERR_INTERNAL, 0, "what would be written as stack %s is none", id);
    bool replaces = faccessat(p->stacks, id, F_OK, AT_SYMLINK_NOFOLLOW) == 0;
    if (hold_layers(p, id, f, err) < 0)
        return -1;
    if (put_file(p->tmp, tmp, f, sizeof *f) < 0)
        return err_set(err, ERR_SETUP, errno, "write the stack %s", id);
    if (renameat(p->tmp, tmp, p->stacks, id) < 0 || fsync(p->stacks) < 0) {
        int saved = errno;
        (void)unlinkat(p->tmp, tmp, 0);
        return err_set(err, ERR_SETUP, saved, "put the stack %s in its place", id);
    }
    /* Once more: from now on nobody takes them, but somebody may have done so until now. */
    if (hold_layers(p, id, f, err) == 0)
        return 0;
    if (!replaces)
        (void)unlinkat(p->stacks, id, 0);
    return -1;
}

/* --- layers ------------------------------------------------------------------------------------------------------- */

static void sum_of(const struct layer_meta *m, uint8_t ret[SHA256_BYTES])
{
    struct sha256 h;
    sha256_start(&h);
    sha256_add(&h, m, offsetof(struct layer_meta, sum));
    sha256_end(&h, ret);
}

static bool meta_valid(const struct layer_meta *m, const char *name)
{
    uint8_t sum[SHA256_BYTES];
    char hex[LAYER_NAME];
    if (memcmp(m->magic, magic, sizeof magic) != 0 || m->version != VERSION || m->kind < LAYER_CAPTURE ||
        m->kind > LAYER_FLAT)
        return false;
    hex_of(m->digest, hex);
    sum_of(m, sum);
    return memcmp(sum, m->sum, sizeof sum) == 0 && strcmp(hex, name) == 0;
}

int layer_meta_read(const struct stock_place *p, const char *name, struct layer_meta *ret, struct err *err)
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
    if (n != sizeof m || after != 0 || !meta_valid(&m, name))
        return err_set(err, ERR_SETUP, EBADMSG, "the layer %.12s is damaged", name);
    *ret = m;
    return 0;
}

/* Into its place. One that is there already stays, if it is whole: others may be using it. */
static int put_layer(const struct stock_place *p, const char *tmp_name, const char *name, struct layer_meta *m,
                     struct err *err)
{
    struct err whole = {0};
    struct layer_meta there;
    unsigned flags = RENAME_NOREPLACE;
    if (rename_flags(p->tmp, tmp_name, p->layers, name, flags) == 0)
        return fsync(p->layers) < 0 ? err_set(err, ERR_SETUP, errno, "sync the directory of layers") : 0;
    if (errno != EEXIST)
        return err_set(err, ERR_SETUP, errno, "put the layer %.12s in its place", name);
    if (layer_meta_read(p, name, &there, &whole) == 0)
        *m = there;
    else if (rename_flags(p->tmp, tmp_name, p->layers, name, RENAME_EXCHANGE) < 0 || fsync(p->layers) < 0)
        return err_set(err, ERR_SETUP, errno, "put the layer %.12s in the place of a damaged one", name);
    return tree_remove(p->tmp, tmp_name, err);
}

int layer_commit(const struct stock_place *p, const char *tmp_name, enum layer_kind kind, const uint8_t *diff_id,
                 unsigned tree_flags, struct layer_meta *ret, struct err *err)
{
    struct layer_meta m = {.version = VERSION, .kind = (uint32_t)kind, .created_unix = (int64_t)time(NULL)};
    struct tree_size size = {0};
    char name[LAYER_NAME];
    _cleanup_close_ int dir = openat(p->tmp, tmp_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    _cleanup_close_ int root = dir < 0 ? -1 : openat(dir, "root", O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (root < 0)
        return err_set(err, ERR_SETUP, errno, "open the new layer");
    if (tree_digest(root, tree_flags, m.digest, &size, err) < 0)
        return err_wrap(err, "the new layer");
    memcpy(m.magic, magic, sizeof magic);
    m.bytes = size.bytes;
    m.entries = size.entries;
    if (diff_id)
        memcpy(m.diff_id, diff_id, sizeof m.diff_id);
    sum_of(&m, m.sum);
    hex_of(m.digest, name);
    /* Everything is on the disk before the name says that it is whole. */
    if (put_file(dir, "meta", &m, sizeof m) < 0 || fchmod(dir, 0755) < 0)
        return err_set(err, ERR_SETUP, errno, "write what is known of the layer %.12s", name);
    if (tree_sync(root, err) < 0 || put_layer(p, tmp_name, name, &m, err) < 0)
        return -1;
    *ret = m;
    return 0;
}
