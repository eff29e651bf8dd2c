/* trust.c - layers over templates that make programs inside trust the installation's root certificate.
 *
 * A layer stands in STATE/trust under the hash of what it was made from, so it never changes and a sandbox that lives
 * keeps the one it began with. keeper looks whether certificate or template have changed at most once a second; it
 * looks at names, sizes and times only. What is in a template's files, which a tenant may have written, is read by a
 * child that can do little.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <linux/openat2.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "base/mem.h"
#include "keeper/keeper-int.h"
#include "os/caps.h"
#include "wall/sandbox-trust.h"

/* There if the program is built with the address sanitizer, which reserves terabytes; this file need not be. */
extern void __asan_init(void) __attribute__((weak, visibility("default")));

#define CA_FILE "egress/trusted.crt"
#define UNREADY ".new"
#define USED    "trust" /* in RUN */

enum {
    CHECK_MS = 1000,
    DEPTH_MAX = 32,
    NAME_BYTES = 16,
    TRUST_LAYERS_MAX = 64, /* so many are kept, used or not */
    MAKE_MS = 2000,
    MAKE_CPU_S = 5,
    MAKE_FD = 64,
    MAKE_MEMORY = 256 << 20,
    MAKE_FILE_MAX = TRUST_CA_MAX + TRUST_FILE_MAX + 4096,
};

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

void keeper_remove_tree(int dir, const char *name) { remove_tree(dir, name, 0); }

void trust_sweep(void)
{
    int fd = openat(KEEPER_FD_STATE, "trust", O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    _cleanup_closedir_ DIR *d = fd < 0 ? NULL : fdopendir(fd);
    struct dirent *f;
    while (d && (f = readdir(d)) != NULL)
        if (strcmp(f->d_name, ".") != 0 && strcmp(f->d_name, "..") != 0)
            remove_tree(dirfd(d), f->d_name, 0);
}

/* --- making one --------------------------------------------------------------------------------------------------- */

/* Runs in a child with few capabilities and limits, because it reads bytes of a tenant. */
static void make_alone(int root, const struct wall_trust *t, int to, int said, pid_t parent)
{
    const uint64_t keep = UINT64_C(1) << CAP_CHOWN | UINT64_C(1) << CAP_DAC_OVERRIDE | UINT64_C(1) << CAP_FOWNER;
    const struct rlimit cpu = {MAKE_CPU_S, MAKE_CPU_S}, size = {MAKE_FILE_MAX, MAKE_FILE_MAX}, none = {0, 0},
                        memory = {MAKE_MEMORY, MAKE_MEMORY};
    struct err err = {0};
    int fds[] = {root, to, said};
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
    (void)prctl(PR_SET_NAME, "hutch-trust", 0, 0, 0);
    for (size_t i = 0; i < ARRAY_LEN(fds); i++) /* out of the way first */
        if ((fds[i] = fcntl(fds[i], F_DUPFD, MAKE_FD + (int)ARRAY_LEN(fds))) < 0)
            _exit(1);
    for (size_t i = 0; i < ARRAY_LEN(fds); i++)
        if ((fds[i] = dup2(fds[i], MAKE_FD + (int)i)) < 0)
            _exit(1);
    (void)fd_close_range(3, MAKE_FD - 1, 0);
    (void)fd_close_range(MAKE_FD + ARRAY_LEN(fds), ~0U, 0);
    bool ready = getppid() == parent && prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && caps_set(keep) == 0 &&
                 setrlimit(RLIMIT_CPU, &cpu) == 0 && setrlimit(RLIMIT_FSIZE, &size) == 0 &&
                 setrlimit(RLIMIT_NPROC, &none) == 0;
    if (!__asan_init)
        ready = ready && setrlimit(RLIMIT_AS, &memory) == 0;
    if (!ready)
        (void)err_set(&err, ERR_SETUP, errno, "confine the making of trusted certificates");
    if (ready && wall_trust_make(fds[0], t, fds[1], &err) == 0)
        _exit(0);
    (void)write(fds[2], err.msg, strlen(err.msg));
    _exit(1);
}

/* keeper waits for the child, because the sandbox cannot begin without the layer: some milliseconds, MAKE_MS at
 * most. */
static int wait_for(pid_t pid, int said, struct err *err)
{
    char text[sizeof err->msg] = "";
    int status = 0;
    struct pollfd p = {.fd = (int)syscall(SYS_pidfd_open, pid, 0), .events = POLLIN};
    int ended = p.fd < 0 ? -1 : poll(&p, 1, MAKE_MS);
    if (ended <= 0)
        (void)kill(pid, SIGKILL);
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
    }
    if (p.fd >= 0)
        (void)close(p.fd);
    if (ended > 0 && WIFEXITED(status) && WEXITSTATUS(status) == 0)
        return 0;
    ssize_t n = read(said, text, sizeof text - 1);
    return err_set(err, ERR_SETUP, 0, "make the layer of trusted certificates: %s",
                   n > 0        ? text
                   : ended == 0 ? "it takes too long"
                                : "its process was ended");
}

static int make_layer(int root, const struct wall_trust *t, int to, struct err *err)
{
    int said[2];
    if (pipe2(said, O_CLOEXEC | O_NONBLOCK) < 0)
        return err_set(err, ERR_SETUP, errno, "make a pipe");
    pid_t parent = getpid(), pid = fork();
    if (pid == 0)
        make_alone(root, t, to, said[1], parent);
    int r = pid < 0 ? err_set(err, ERR_SETUP, errno, "start a process for trusted certificates")
                    : wait_for(pid, said[0], err);
    (void)close(said[0]);
    (void)close(said[1]);
    return r;
}

/* --- unused layers ------------------------------------------------------------------------------------------------ */

/* RUN/trust/ID is a link that names the layer a sandbox has. It outlives keeper, as the sandbox does. */
static int open_used(void)
{
    if (mkdirat(KEEPER_FD_RUN, USED, 0700) < 0 && errno != EEXIST)
        return -1;
    return openat(KEEPER_FD_RUN, USED, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
}

static int note_use(const char *id, const char *name, struct err *err)
{
    _cleanup_close_ int dir = open_used();
    if (dir >= 0)
        (void)unlinkat(dir, id, 0);
    if (dir < 0 || symlinkat(name, dir, id) < 0)
        return err_set(err, ERR_SETUP, errno, "note the layer of trusted certificates in the run directory");
    return 0;
}

void trust_unuse(const char *id)
{
    char path[sizeof USED + 1 + KEEPER_ID_MAX];
    (void)snprintf(path, sizeof path, USED "/%s", id);
    (void)unlinkat(KEEPER_FD_RUN, path, 0);
    (void)unlinkat(KEEPER_FD_RUN, USED, AT_REMOVEDIR); /* if it was the last one */
}

struct made_layer {
    char name[2 * NAME_BYTES + 1];
    struct timespec made;
    bool used;
};

static int older_first(const void *a, const void *b)
{
    const struct made_layer *x = a, *y = b;
    if (x->made.tv_sec != y->made.tv_sec)
        return x->made.tv_sec < y->made.tv_sec ? -1 : 1;
    return x->made.tv_nsec < y->made.tv_nsec ? -1 : x->made.tv_nsec > y->made.tv_nsec;
}

static struct made_layer *list_layers(int dir, size_t *ret)
{
    struct made_layer *v = NULL;
    size_t n = 0, cap = 0;
    int fd = openat(dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    _cleanup_closedir_ DIR *d = fd < 0 ? NULL : fdopendir(fd);
    struct dirent *f;
    struct stat st;
    while (d && (f = readdir(d)) != NULL) {
        if (strlen(f->d_name) != (size_t)2 * NAME_BYTES || fstatat(dir, f->d_name, &st, AT_SYMLINK_NOFOLLOW) < 0)
            continue;
        MEM_GROW(v, n, cap);
        v[n] = (struct made_layer){.made = st.st_ctim};
        memcpy(v[n++].name, f->d_name, sizeof v->name);
    }
    *ret = n;
    return v;
}

/* False if unknown: some sandbox was made by a version without such links. */
static bool mark_used(const struct keeper *k, struct made_layer *v, size_t n)
{
    _cleanup_close_ int used = open_used();
    for (uint32_t i = 0; i < k->nentries; i++) {
        const struct entry *e = &k->entries[i];
        char name[2 * NAME_BYTES + 1] = "";
        if ((e->life != LIFE_STARTING && e->life != LIFE_LIVE && e->life != LIFE_ENDING) || !e->own_root)
            continue;
        if (used < 0 || readlinkat(used, e->id, name, sizeof name - 1) < 0) {
            if (e->adopted)
                return false;
            continue; /* it has not come that far */
        }
        for (size_t l = 0; l < n; l++)
            v[l].used |= strcmp(v[l].name, name) == 0;
    }
    return true;
}

static void collect(const struct keeper *k, int dir, const char *keep)
{
    size_t n, left;
    _cleanup_free_ struct made_layer *v = list_layers(dir, &n);
    if (n <= TRUST_LAYERS_MAX || !mark_used(k, v, n))
        return;
    qsort(v, n, sizeof *v, older_first);
    left = n;
    for (size_t i = 0; i < n && left > TRUST_LAYERS_MAX; i++)
        if (!v[i].used && strcmp(v[i].name, keep) != 0) {
            remove_tree(dir, v[i].name, 0);
            left--;
        }
}

static int build(const struct keeper *k, const char *name, int root, const struct wall_trust *t, struct err *err)
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
    if (make_layer(root, t, to, err) < 0) {
        remove_tree(dir, UNREADY, 0);
        return -1;
    }
    if (renameat(dir, UNREADY, dir, name) < 0)
        return err_set(err, ERR_SETUP, errno, "make a layer in the directory trust of the state directory");
    collect(k, dir, name);
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

/* Equal files in two stacks share one layer: the hash covers contents, not names. */
static int renew(const struct keeper *k, struct trust *t, const char *template, const struct root *of,
                 const uint64_t ca[4], struct err *err)
{
    bool merged = of->n > 1;
    _cleanup_close_ int root = root_merged(k, of, err);
    if (root < 0)
        return -1;
    _cleanup_buf_ struct buf pem = {0};
    struct sha256 h;
    uint8_t sum[SHA256_BYTES];
    if (trust_ca(&pem, err) < 0)
        return -1;
    const struct wall_trust trust = {.ca = buf_str(&pem), .n = pem.n, .below = "", .merged = merged};
    t->name[0] = '\0'; /* until it is known again */
    sha256_start(&h);
    sha256_add(&h, merged ? "" : template, merged ? 1 : strlen(template) + 1);
    t->left = wall_trust_stamp(root, &trust, &h);
    sha256_end(&h, sum);
    char name[2 * NAME_BYTES + 1];
    for (unsigned i = 0; i < NAME_BYTES; i++)
        (void)snprintf(name + (size_t)2 * i, 3, "%02x", sum[i]);
    if (build(k, name, root, &trust, err) < 0)
        return err_wrap(err, "template %s", template);
    (void)snprintf(t->template, sizeof t->template, "%s", template);
    (void)snprintf(t->name, sizeof t->name, "%s", name);
    memcpy(t->ca, ca, sizeof t->ca);
    t->checked_ms = keeper_now_ms();
    return 0;
}

static int open_layer(const struct keeper *k, const struct trust *t)
{
    return t->name[0] ? openat(k->common->world.trust, t->name, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC) : -1;
}

int trust_layer(struct keeper *k, const char *id, const char *template, const struct root *root, struct trust_made *ret,
                struct err *err)
{
    uint64_t ca[4];
    *ret = (struct trust_made){.fd = -1};
    if (!ca_stamp(ca))
        return note_use(id, "none", err);
    struct trust *t = remembered(k, template);
    bool fresh =
        t->name[0] && memcmp(t->ca, ca, sizeof ca) == 0 && (root->fixed || keeper_now_ms() < t->checked_ms + CHECK_MS);
    if (fresh)
        ret->fd = open_layer(k, t); /* it may have been collected */
    if (ret->fd < 0 && (renew(k, t, template, root, ca, err) < 0 || (ret->fd = open_layer(k, t)) < 0)) {
        t->name[0] = '\0';
        return err->code
                   ? -1
                   : err_set(err, ERR_SETUP, errno, "open the layer of trusted certificates of template %s", template);
    }
    ret->left = t->left;
    return note_use(id, t->name, err);
}
