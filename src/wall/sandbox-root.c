/* sandbox-root.c - keeper's side of a root of its own: an overlay over its layers, and the volumes that will hang in it.
 *
 * The parts of an overlay hang at SANDBOX_SCRATCH for the moment in which it is made: a copy of the mount of
 * SANDBOX_SKEL, whose directories they are attached to, so that one call takes all of them down again. The overlay
 * keeps what it needs.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/fsuid.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "os/mount.h"
#include "wall/sandbox-int.h"

enum { PATH_ROOM = 40, DB_IDS = 65536 };

static int attach_at(int mount, int scratch, const char *name)
{
    _cleanup_close_ int at = openat(scratch, name, O_PATH | O_DIRECTORY | O_CLOEXEC);
    return at < 0 || mount_attach(mount, at) < 0 ? -1 : 0;
}

static int root_add_layer(int scratch, const char *name, int dir, int userns, struct err *err)
{
    _cleanup_close_ int layer = mount_clone(dir, "", 0);
    if (layer < 0)
        return err_set(err, ERR_SETUP, errno, "set-up failed at mounts: take a layer of the root");
    if (userns >= 0 && mount_idmap(layer, userns, 0) < 0)
        return err_set(err, ERR_HOST, errno, "the file system of the templates cannot map ids");
    if (mount_set(layer, "", MOUNT_RO | MOUNT_NODEV) < 0 || attach_at(layer, scratch, name) < 0)
        return err_set(err, ERR_SETUP, errno, "set-up failed at mounts: attach a layer of the root");
    return 0;
}

/* Makes the upper's root directory look like that of the uppermost layer. */
static int make_upper_dirs(const struct wall_sandbox_spec *s, struct wall_sandbox *b)
{
    struct stat st, u;
    uid_t base = s->range && !s->upper_shifted ? s->range->base : 0;
    if (fstatat(s->layers[0], "", &st, AT_EMPTY_PATH) < 0 || mkdirat(s->upper, "u", 0755) < 0 ||
        mkdirat(s->upper, "w", 0755) < 0)
        return -1;
    bool known = st.st_uid < DB_IDS && st.st_gid < DB_IDS;
    if (fchownat(s->upper, "u", base + (known ? st.st_uid : 0), base + (known ? st.st_gid : 0), 0) < 0 ||
        fchmodat(s->upper, "u", (st.st_mode & 07777) | 0555, 0) < 0 || fstatat(s->upper, "u", &u, 0) < 0)
        return -1;
    b->upper_dev = u.st_dev;
    b->upper_ino = u.st_ino;
    return 0;
}

/* init keeps a read-only view of the upper with the ids as stored. */
static int add_upper(const struct wall_sandbox_spec *s, int scratch, int userns, struct wall_sandbox *b, int *keep,
                     struct err *err)
{
    _cleanup_close_ int dir = s->upper_mounted ? -1 : mount_clone(s->upper, "", 0);
    if (attach_at(s->upper_mounted ? s->upper : dir, scratch, "u") < 0)
        return err_set(err, ERR_SETUP, errno, "set-up failed at mounts: attach the upper layer");
    if (make_upper_dirs(s, b) < 0)
        return err_set(err, ERR_SETUP, errno, "set-up failed at mounts: make the upper layer");
    *keep = mount_clone(AT_FDCWD, SANDBOX_SCRATCH "/u", 0);
    if (*keep < 0 || mount_set(*keep, "", MOUNT_RO | MOUNT_NOSUID | MOUNT_NODEV | MOUNT_NOEXEC) < 0)
        return err_set(err, ERR_SETUP, errno, "set-up failed at mounts: keep the upper layer");
    if (!s->upper_shifted || userns < 0)
        return 0;
    _cleanup_close_ int mapped = mount_clone(AT_FDCWD, SANDBOX_SCRATCH "/u", 0);
    if (mapped < 0)
        return err_set(err, ERR_SETUP, errno, "set-up failed at mounts: copy the upper layer");
    if (mount_idmap(mapped, userns, 0) < 0)
        return err_set(err, ERR_HOST, errno, "the file system of the upper layers cannot map ids");
    return attach_at(mapped, scratch, "u") < 0
               ? err_set(err, ERR_SETUP, errno, "set-up failed at mounts: attach the upper layer")
               : 0;
}

/* The overlay belongs to the initial user namespace, so renames of directories work as anywhere, and acts with the ids
 * of its maker: in an idmapped upper only ids of the sandbox exist. Capabilities stay (SECBIT_NO_SETUID_FIXUP). */
static int root_make_overlay(const struct wall_sandbox_spec *s, const char *const *lower, size_t n)
{
    uid_t base = s->range && s->upper_shifted ? s->range->base : 0;
    if (base) {
        (void)setfsgid(base);
        (void)setfsuid(base);
    }
    int fd =
        mount_new_overlay(lower, n, SANDBOX_SCRATCH "/u/u", SANDBOX_SCRATCH "/u/w", s->world->rootless, MOUNT_NODEV);
    int saved = errno;
    if (base) {
        (void)setfsuid(0);
        (void)setfsgid(0);
        if (setfsuid((uid_t)-1) != 0 || setfsgid((gid_t)-1) != 0) /* keeper must not go on with foreign ids */
            abort();
    }
    errno = saved;
    return fd;
}

static int root_fill(const struct wall_sandbox_spec *s, int scratch, int userns, struct wall_sandbox *b, int *upper,
                     struct err *err)
{
    char paths[WALL_SANDBOX_LAYERS_MAX + 1][PATH_ROOM];
    const char *lower[WALL_SANDBOX_LAYERS_MAX + 1];
    size_t n = 0, skip = strlen(SANDBOX_SCRATCH "/");
    if (s->trust >= 0) {
        (void)snprintf(paths[n], PATH_ROOM, SANDBOX_SCRATCH "/t");
        if (root_add_layer(scratch, paths[n] + skip, s->trust, userns, err) < 0)
            return -1;
        n++;
    }
    for (size_t i = 0; i < s->nlayers; i++, n++) {
        (void)snprintf(paths[n], PATH_ROOM, SANDBOX_SCRATCH "/l%zu", i);
        if (root_add_layer(scratch, paths[n] + skip, s->layers[i], userns, err) < 0)
            return -1;
    }
    for (size_t i = 0; i < n; i++)
        lower[i] = paths[i];
    if (add_upper(s, scratch, userns, b, upper, err) < 0)
        return -1;
    int fd = root_make_overlay(s, lower, n);
    if (fd < 0)
        (void)err_set(err, errno == EINVAL && s->upper_shifted ? ERR_HOST : ERR_SETUP, errno,
                      "set-up failed at mounts: make the overlay");
    return fd;
}

int sandbox_root_make(const struct wall_sandbox_spec *s, int userns, struct wall_sandbox *b, int *upper,
                      struct err *err)
{
    *upper = -1;
    if (s->nlayers > WALL_SANDBOX_LAYERS_MAX)
        return err_set(err, ERR_INTERNAL, 0, "a root of %zu layers", s->nlayers);
    _cleanup_close_ int scratch = mount_clone(AT_FDCWD, SANDBOX_SKEL, 0);
    _cleanup_close_ int at = open(SANDBOX_SCRATCH, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (scratch < 0 || at < 0 || mount_attach(scratch, at) < 0)
        return err_set(err, ERR_SETUP, errno, "set-up failed at mounts: make room for the layers");
    int overlay = root_fill(s, scratch, userns, b, upper, err);
    if (overlay < 0 && *upper >= 0)
        (void)close(TAKE_FD(*upper));
    if (umount2(SANDBOX_SCRATCH, MNT_DETACH) < 0)
        abort();
    return overlay;
}

/* Set-uid files and devices in a volume have no effect, regardless of who created them. */
static int take_volume(const struct wall_sandbox_volume *v, int userns, struct err *err)
{
    int fd = v->mounted ? fcntl(v->dir, F_DUPFD_CLOEXEC, 3) : mount_clone(v->dir, "", 0);
    unsigned flags = MOUNT_NOSUID | MOUNT_NODEV | (v->ro ? MOUNT_RO : 0U);
    if (fd < 0 || mount_set(fd, "", flags) < 0)
        (void)err_set(err, ERR_SETUP, errno, "set-up failed at mounts: take the volume for %s", v->place);
    else if (userns >= 0 && !v->host_ids && mount_idmap(fd, userns, 0) < 0)
        (void)err_set(err, ERR_HOST, errno, "the file system of the volume for %s cannot map ids", v->place);
    else
        return fd;
    if (fd >= 0)
        (void)close(fd);
    return -1;
}

int sandbox_root_volumes(const struct wall_sandbox_spec *s, int userns, int *ret, struct err *err)
{
    for (size_t i = 0; i < s->nvolumes; i++) {
        ret[i] = take_volume(&s->volumes[i], userns, err);
        for (size_t k = i; ret[i] < 0 && k-- > 0;)
            (void)close(ret[k]);
        if (ret[i] < 0)
            return -1;
    }
    return 0;
}
