#include "wall/sandbox-trust.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"

enum { PATH_BYTES = 4096 };
enum kind {
    BUNDLE, /* PEM, if it is there */
    JAVA,   /* trust store, if it is there */
    ALONE,  /* ours alone: from here the tools of the system make the bundle anew */
};

static const struct place {
    const char *dir, *name;
    enum kind kind;
    const char *needs; /* ALONE: directory that must be there */
} places[] = {
    /* clang-format off */
    {"etc/ssl/certs", "ca-certificates.crt", BUNDLE, NULL}, /* Debian, Alpine, Arch */
    {"etc/pki/tls/certs", "ca-bundle.crt", BUNDLE, NULL}, /* Fedora */
    {"etc/pki/ca-trust/extracted/pem", "tls-ca-bundle.pem", BUNDLE, NULL},
    {"etc/ssl", "ca-bundle.pem", BUNDLE, NULL}, /* SUSE */
    {"etc/ssl", "cert.pem", BUNDLE, NULL}, /* Alpine */
    {"etc/ssl/certs/java", "cacerts", JAVA, NULL},
    {"etc/pki/java", "cacerts", JAVA, NULL},
    {"etc/pki/ca-trust/extracted/java", "cacerts", JAVA, NULL},
    {"opt/java/openjdk/lib/security", "cacerts", JAVA, NULL},
    {"usr/lib/jvm/default-java/lib/security", "cacerts", JAVA, NULL},
    {"usr/lib/jvm/default-jvm/lib/security", "cacerts", JAVA, NULL},
    {"usr/local/share/ca-certificates", "hutch.crt", ALONE, "usr/local"},
    {"etc/pki/ca-trust/source/anchors", "hutch.pem", ALONE, "etc/pki/ca-trust/source/anchors"},
    /* clang-format on */
};

static int trust_open_in(int root, const char *path, int flags)
{
    return fd_open_in_root(root, path, (uint64_t)flags, 0);
}

/* A regular file; -1 if it is anything else. */
static int trust_open_file(int root, const struct place *p, struct stat *st)
{
    char path[128];
    (void)snprintf(path, sizeof path, "%s/%s", p->dir, p->name);
    _cleanup_close_ int fd = trust_open_in(root, path, O_RDONLY | O_NONBLOCK | O_NOCTTY);
    if (fd < 0 || fstat(fd, st) < 0 || !S_ISREG(st->st_mode))
        return -1;
    return TAKE_FD(fd);
}

/* Decides by sizes alone what to copy from a root, so that the stamp agrees. A Java store may be made from the bundle,
 * so it counts as the larger of the two. */
struct taken {
    off_t all, bundle; /* bytes; of the first bundle */
    unsigned left;     /* files that are too large */
};
static bool trust_take_size(struct taken *t, const struct place *p, const struct stat *st)
{
    off_t size = p->kind == JAVA && t->bundle > st->st_size ? t->bundle : st->st_size;
    if (st->st_size > TRUST_FILE_MAX || t->all + size > TRUST_ALL_MAX) {
        t->left++;
        return false;
    }
    t->all += size;
    if (p->kind == BUNDLE && t->bundle == 0)
        t->bundle = st->st_size;
    return true;
}

/* 1: read, 0: it is not there, or too large. */
static int trust_read_file(int root, const struct place *p, struct taken *t, struct buf *ret)
{
    struct stat st;
    char path[64];
    _cleanup_close_ int fd = trust_open_file(root, p, &st);
    if (fd < 0 || !trust_take_size(t, p, &st))
        return 0;
    (void)snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    return fd_read_file(AT_FDCWD, path, TRUST_FILE_MAX, ret) == 0;
}

static bool trust_path_of_fd(int fd, char ret[PATH_BYTES])
{
    char link[64];
    (void)snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, ret, PATH_BYTES - 1);
    if (n <= 0)
        return false;
    ret[n] = '\0';
    return true;
}

/* Where the directory really is, without links, as "/etc/ssl"; "" is the root. False if it is not there. */
static bool real_dir(int root, const char *dir, char ret[PATH_BYTES])
{
    char base[PATH_BYTES], path[PATH_BYTES];
    _cleanup_close_ int fd = trust_open_in(root, dir, O_PATH | O_DIRECTORY);
    if (fd < 0 || !trust_path_of_fd(root, base) || !trust_path_of_fd(fd, path))
        return false;
    size_t n = strcmp(base, "/") == 0 ? 0 : strlen(base);
    if (strncmp(path, base, n) != 0 || (path[n] != '/' && path[n] != '\0'))
        return false;
    (void)snprintf(ret, PATH_BYTES, "%s", strcmp(path + n, "/") == 0 ? "" : path + n);
    return true;
}

/* The same for a directory that may exist only in part. */
static bool future_dir(int root, const char *dir, char ret[PATH_BYTES])
{
    char part[128];
    for (size_t n = strlen(dir);; n--) {
        while (n > 0 && dir[n] != '/' && dir[n] != '\0')
            n--;
        (void)snprintf(part, sizeof part, "%.*s", (int)n, dir);
        if (real_dir(root, n > 0 ? part : ".", ret)) {
            size_t have = strlen(ret);
            (void)snprintf(ret + have, PATH_BYTES - have, "%s%s", dir[n] == '/' || dir[n] == '\0' ? "" : "/", dir + n);
            return true;
        }
        if (n == 0)
            return false;
    }
}

/* Makes directories of the layer with owner and mode of the root's, which they cover. */
static int trust_make_dirs(int root, int to, const char *path)
{
    char part[PATH_BYTES];
    struct stat st;
    for (const char *p = path; *p;) {
        p += 1 + strcspn(p + 1, "/");
        (void)snprintf(part, sizeof part, "%.*s", (int)(p - path - 1), path + 1);
        if (mkdirat(to, part, 0755) < 0) {
            if (errno != EEXIST)
                return -1;
            continue;
        }
        if (fstatat(root, part, &st, AT_SYMLINK_NOFOLLOW) < 0 || !S_ISDIR(st.st_mode))
            continue;
        (void)fchownat(to, part, st.st_uid, st.st_gid, AT_SYMLINK_NOFOLLOW);
        if (fchmodat(to, part, st.st_mode & 07777, 0) < 0)
            return -1;
    }
    return 0;
}

static bool trust_is_below(const struct wall_trust *t, const char *dir)
{
    size_t n = strlen(t->below);
    return strncmp(dir, t->below, n) == 0 && (dir[n] == '/' || dir[n] == '\0');
}

/* Two places may be the same file through links: the first wins. */
static int trust_put_file(int root, const struct wall_trust *t, int to, const char *dir, const char *name,
                          const struct buf *b, struct err *err)
{
    char path[PATH_BYTES];
    if (!trust_is_below(t, dir))
        return 0;
    int n = snprintf(path, sizeof path, "%s/%s", dir, name);
    if (n < 0 || (size_t)n >= sizeof path)
        return 0;
    if (trust_make_dirs(root, to, dir) < 0)
        return err_set(err, ERR_SETUP, errno, "make %s of the trusted certificates", dir);
    _cleanup_close_ int fd = openat(to, path + 1, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
    if (fd < 0 && errno == EEXIST)
        return 0;
    if (fd < 0 || fchmod(fd, 0644) < 0 || fd_write_all(fd, buf_str(b), b->n) < 0)
        return err_set(err, ERR_SETUP, errno, "make %s of the trusted certificates", path);
    return 0;
}

static void add_ca(struct buf *b, const struct wall_trust *t)
{
    if (b->n > 0 && b->p[b->n - 1] != '\n')
        buf_addc(b, '\n');
    buf_add(b, t->ca, t->n);
}

struct made {
    struct buf bundle; /* the first that was found, as it was */
    struct taken taken;
    bool any; /* a bundle is there */
};

static int put_place(int root, const struct wall_trust *t, int to, const struct place *p, struct made *m,
                     struct err *err)
{
    char dir[PATH_BYTES];
    _cleanup_buf_ struct buf old = {0}, new = {0};
    if (p->kind == ALONE) {
        if (!real_dir(root, p->needs, dir) || !future_dir(root, p->dir, dir))
            return 0;
        add_ca(&new, t);
        return trust_put_file(root, t, to, dir, p->name, &new, err);
    }
    unsigned left = m->taken.left;
    if (!real_dir(root, p->dir, dir) || !trust_read_file(root, p, &m->taken, &old)) {
        m->any |= p->kind == BUNDLE && m->taken.left > left; /* not to be covered by ours alone */
        return 0;
    }
    if (p->kind == JAVA) {
        if (jks_make(old.p, old.n, m->bundle.p, m->bundle.n, t->ca, t->n, &new) < 0)
            return err_set(err, ERR_SETUP, 0, "the installation's root certificate is not PEM");
        return trust_put_file(root, t, to, dir, p->name, &new, err);
    }
    m->any |= trust_is_below(t, dir);
    if (m->bundle.n == 0)
        buf_add(&m->bundle, buf_str(&old), old.n);
    buf_add(&new, buf_str(&old), old.n);
    add_ca(&new, t);
    return trust_put_file(root, t, to, dir, p->name, &new, err);
}

int wall_trust_make(int root, const struct wall_trust *t, int to, struct err *err)
{
    char dir[PATH_BYTES];
    struct made m = {0};
    _cleanup_buf_ struct buf alone = {0};
    int r = 0;
    add_ca(&alone, t);
    for (size_t i = 0; i < ARRAY_LEN(places) && r == 0; i++)
        r = put_place(root, t, to, &places[i], &m, err);
    if (r == 0 && !m.any && future_dir(root, places[0].dir, dir))
        r = trust_put_file(root, t, to, dir, places[0].name, &alone, err);
    if (r == 0 && future_dir(root, "etc/hutch", dir))
        r = trust_put_file(root, t, to, dir, "ca.pem", &alone, err);
    buf_done(&m.bundle);
    return r;
}

/* Files are known by inode, size and times. */
static void stamp_stat(struct sha256 *h, const struct stat *st, bool merged)
{
    const uint64_t v[] = {merged ? 0 : st->st_dev,       st->st_ino,
                          (uint64_t)st->st_size,         (uint64_t)st->st_mtim.tv_sec,
                          (uint64_t)st->st_mtim.tv_nsec, (uint64_t)st->st_ctim.tv_sec,
                          (uint64_t)st->st_ctim.tv_nsec};
    sha256_add(h, v, sizeof v);
}

unsigned wall_trust_stamp(int root, const struct wall_trust *t, struct sha256 *h)
{
    struct taken taken = {0};
    sha256_add(h, t->ca, t->n);
    for (size_t i = 0; i < ARRAY_LEN(places); i++) {
        const unsigned char number = (unsigned char)i;
        struct stat st;
        _cleanup_close_ int dir = trust_open_in(root, places[i].dir, O_PATH | O_DIRECTORY);
        _cleanup_close_ int fd = dir < 0 || places[i].kind == ALONE ? -1 : trust_open_file(root, &places[i], &st);
        sha256_add(h, &number, 1);
        if (fd >= 0) {
            (void)trust_take_size(&taken, &places[i], &st);
            stamp_stat(h, &st, t->merged);
        }
        if (dir >= 0 && fstatat(dir, "", &st, AT_EMPTY_PATH) == 0)
            stamp_stat(h, &st, t->merged);
    }
    return taken.left;
}
