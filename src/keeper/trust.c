/* trust.c - layers over templates that make programs inside trust the installation's root certificate.
 *
 * A layer stands in STATE/trust under the hash of what it was made from, so it never changes and a sandbox that lives keeps
 * the one it began with. keeper looks whether certificate or template have changed at most once a second.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "keeper/keeper-int.h"
#include "wall/box-trust.h"

#define CA_FILE "egress/trusted.crt"
#define UNREADY ".new"

enum { CHECK_MS = 1000, DEPTH_MAX = 32, NAME_BYTES = 16 };

static int open_ca(void)
{
    struct open_how how = {.flags = O_RDONLY | O_NONBLOCK | O_CLOEXEC,
                           .resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS};
    return (int)syscall(SYS_openat2, KEEPER_FD_STATE, CA_FILE, &how, sizeof how);
}

int trust_ca(struct buf *ret, struct err *err)
{
    char path[64];
    _cleanup_close_ int fd = open_ca();
    if (fd < 0 && errno == ENOENT)
        return 0;
    (void)snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    if (fd < 0 || fd_read_file(AT_FDCWD, path, TRUST_CA_MAX, ret) < 0)
        return err_set(err, ERR_SETUP, errno, "read %s in the state directory", CA_FILE);
    return 0;
}

/* False: there is none. */
static bool ca_stamp(uint64_t ret[4])
{
    struct stat st;
    _cleanup_close_ int fd = open_ca();
    if (fd < 0 || fstat(fd, &st) < 0)
        return false;
    ret[0] = st.st_ino;
    ret[1] = (uint64_t)st.st_size;
    ret[2] = (uint64_t)st.st_mtim.tv_sec;
    ret[3] = (uint64_t)st.st_mtim.tv_nsec;
    return true;
}

static void remove_tree(int dir, const char *name, unsigned depth)
{
    int fd = openat(dir, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    _cleanup_closedir_ DIR *d = fd < 0 ? NULL : fdopendir(fd);
    struct dirent *f;
    while (d && depth < DEPTH_MAX && (f = readdir(d)) != NULL)
        if (strcmp(f->d_name, ".") != 0 && strcmp(f->d_name, "..") != 0 && unlinkat(dirfd(d), f->d_name, 0) < 0)
            remove_tree(dirfd(d), f->d_name, depth + 1);
    if (unlinkat(dir, name, AT_REMOVEDIR) < 0)
        (void)unlinkat(dir, name, 0);
}

void trust_sweep(void)
{
    int fd = openat(KEEPER_FD_STATE, "trust", O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    _cleanup_closedir_ DIR *d = fd < 0 ? NULL : fdopendir(fd);
    struct dirent *f;
    while (d && (f = readdir(d)) != NULL)
        if (strcmp(f->d_name, ".") != 0 && strcmp(f->d_name, "..") != 0)
            remove_tree(dirfd(d), f->d_name, 0);
}

static int build(const char *name, int root, const struct wall_trust *t, struct err *err)
{
    _cleanup_close_ int dir = openat(KEEPER_FD_STATE, "trust", O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (dir < 0)
        return err_set(err, ERR_SETUP, errno, "open the directory trust in the state directory");
    if (faccessat(dir, name, F_OK, AT_SYMLINK_NOFOLLOW) == 0)
        return 0;
    remove_tree(dir, UNREADY, 0);
    _cleanup_close_ int to =
        mkdirat(dir, UNREADY, 0755) < 0 ? -1 : openat(dir, UNREADY, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (to < 0)
        return err_set(err, ERR_SETUP, errno, "make a layer in the directory trust of the state directory");
    if (wall_trust_make(root, t, to, err) < 0)
        return -1;
    if (renameat(dir, UNREADY, dir, name) < 0)
        return err_set(err, ERR_SETUP, errno, "make a layer in the directory trust of the state directory");
    return 0;
}

static struct trust *remembered(struct keeper *k, const char *template)
{
    for (uint32_t i = 0; i < KEEPER_TRUST_MAX; i++)
        if (k->trust[i].name[0] && strcmp(k->trust[i].template, template) == 0)
            return &k->trust[i];
    struct trust *t = &k->trust[k->ntrust++ % KEEPER_TRUST_MAX];
    *t = (struct trust){0};
    return t;
}

static int renew(struct trust *t, const char *template, int root, const uint64_t ca[4], struct err *err)
{
    _cleanup_buf_ struct buf pem = {0};
    struct sha256 h;
    uint8_t sum[SHA256_BYTES];
    if (trust_ca(&pem, err) < 0)
        return -1;
    const struct wall_trust trust = {.ca = buf_str(&pem), .n = pem.n, .below = ""};
    t->name[0] = '\0'; /* until it is known again */
    sha256_start(&h);
    sha256_add(&h, template, strlen(template) + 1);
    wall_trust_stamp(root, &trust, &h);
    sha256_end(&h, sum);
    char name[2 * NAME_BYTES + 1];
    for (unsigned i = 0; i < NAME_BYTES; i++)
        (void)snprintf(name + (size_t)2 * i, 3, "%02x", sum[i]);
    if (build(name, root, &trust, err) < 0)
        return err_wrap(err, "template %s", template);
    (void)snprintf(t->template, sizeof t->template, "%s", template);
    (void)snprintf(t->name, sizeof t->name, "%s", name);
    memcpy(t->ca, ca, sizeof t->ca);
    t->checked_ms = keeper_now_ms();
    return 0;
}

int trust_layer(struct keeper *k, const char *template, int root, int *ret, struct err *err)
{
    uint64_t ca[4];
    *ret = -1;
    if (!ca_stamp(ca))
        return 0;
    struct trust *t = remembered(k, template);
    bool fresh = t->name[0] && memcmp(t->ca, ca, sizeof ca) == 0 && keeper_now_ms() < t->checked_ms + CHECK_MS;
    if (!fresh && renew(t, template, root, ca, err) < 0)
        return -1;
    *ret = openat(k->common->world.trust, t->name, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (*ret >= 0)
        return 0;
    t->name[0] = '\0';
    return err_set(err, ERR_SETUP, errno, "open the layer of trusted certificates of template %s", template);
}
