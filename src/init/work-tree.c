/* work-tree.c - make, move, remove and list directories. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/memfd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "init/work.h"

void work_make_dir(struct work *w)
{
    struct init_info i;
    struct stat st;
    const char *name;
    bool rooted = w->root >= 0, force = rooted && (w->r->root.flags & INIT_ROOT_FORCE);
    _cleanup_close_ int dir = work_parent(w, w->path, force || !rooted, &name);
    if (dir < 0)
        work_fail_errno(w, errno, w->path);
    bool made = mkdirat(dir, name, 0755) == 0;
    if (!made && !(errno == EEXIST && force && strcmp(w->path, "/") != 0)) {
        int eno = errno;
        if (eno == EEXIST && !rooted && fstatat(dir, name, &st, 0) == 0 && !S_ISDIR(st.st_mode))
            work_fail(w, INIT_INVALID, "path '%.180s' already exists and is not a directory", w->path);
        work_fail_errno(w, eno, w->path);
    }
    _cleanup_close_ int fd = work_open(dir, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW, 0);
    if (rooted && (fd < 0 || work_rooted_own(w, fd) < 0))
        work_fail_errno(w, errno, w->path);
    if (fd >= 0)
        work_give(w, fd);
    if (work_info(w, dir, name, w->path, &i) < 0)
        work_fail_errno(w, errno, w->path);
    work_reply_info(w, &i, -1);
}

/* Moves across file systems: copies under a temporary name first, so that the destination appears complete. */
static int move_over(int from_dir, const char *from, int to_dir, const char *to)
{
    char temp[64];
    (void)snprintf(temp, sizeof temp, ".hutch-move-%d", (int)getpid());
    if (work_copy(from_dir, from, to_dir, temp, 0) < 0 || renameat(to_dir, temp, to_dir, to) < 0) {
        int eno = errno;
        (void)work_unlink(to_dir, temp);
        errno = eno;
        return -1;
    }
    return work_unlink(from_dir, from);
}

void work_move(struct work *w)
{
    struct init_info i;
    struct stat st;
    const char *from, *to;
    if (strcmp(w->path, "/") == 0 || strcmp(w->to, "/") == 0)
        work_fail(w, INIT_INVALID, "'/' cannot be moved or replaced");
    _cleanup_close_ int from_dir = work_parent(w, w->path, false, &from);
    if (from_dir < 0 || fstatat(from_dir, from, &st, AT_SYMLINK_NOFOLLOW) < 0)
        work_fail_errno(w, errno, w->path);
    _cleanup_close_ int to_dir = work_parent(w, w->to, true, &to);
    if (to_dir < 0)
        work_fail_errno(w, errno, w->to);
    int r = renameat(from_dir, from, to_dir, to);
    if (r < 0 && errno == EXDEV)
        r = move_over(from_dir, from, to_dir, to);
    if (r < 0 && errno == EINVAL)
        work_fail(w, INIT_INVALID, "'%.100s' cannot be moved into itself ('%.100s')", w->path, w->to);
    if (r < 0 && (errno == ENOTEMPTY || errno == EISDIR))
        errno = EEXIST;
    if (r < 0)
        work_fail_errno(w, errno, w->to);
    if (work_info(w, to_dir, to, w->to, &i) < 0)
        work_fail_errno(w, errno, w->to);
    work_reply_info(w, &i, -1);
}

void work_remove(struct work *w)
{
    const char *name;
    struct stat st;
    if (strcmp(w->path, "/") == 0)
        work_fail(w, INIT_INVALID, "'/' cannot be removed");
    _cleanup_close_ int dir = work_parent(w, w->path, false, &name);
    if (dir < 0 && (errno == ENOENT || errno == ENOTDIR) && w->root < 0) {
        work_reply_ok(w, -1);
        return;
    }
    if (dir >= 0 && w->root >= 0 && fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) < 0) /* it must be there */
        work_fail_errno(w, errno, w->path);
    if (dir < 0 || work_unlink(dir, name) < 0)
        work_fail_errno(w, errno, w->path);
    work_reply_ok(w, -1);
}

/* --- lists -------------------------------------------------------------------------------------------------------- */

enum { NAMES_MAX = 64 << 20 };
static struct {
    char *base; /* names and their order, freed level by level */
    size_t used;
    struct wire_out out;
    uint32_t n;
} listing;

static void *listing_alloc(struct work *w, size_t n)
{
    n = (n + 15) & ~(size_t)15;
    if (NAMES_MAX - listing.used < n)
        work_fail(w, INIT_LIMIT, "too many names for one answer under '%.160s'", w->path);
    void *p = listing.base + listing.used;
    listing.used += n;
    return p;
}

static int tree_compare_names(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

struct names {
    char *first; /* texts, one behind the other */
    size_t n;
};

static struct names tree_read_names(struct work *w, int fd)
{
    _Alignas(struct dirent64) static char buf[32 * 1024];
    struct names v = {.first = listing.base + listing.used};
    for (ssize_t n; (n = syscall(SYS_getdents64, fd, buf, sizeof buf)) > 0;) {
        for (ssize_t at = 0; at < n;) {
            const struct dirent64 *e = (const struct dirent64 *)(const void *)(buf + at);
            at += e->d_reclen;
            if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0)
                continue;
            if (++v.n + listing.n > INIT_LIST_MAX)
                work_fail(w, INIT_LIMIT, "more than %d entries under '%.160s'", INIT_LIST_MAX, w->path);
            size_t len = strlen(e->d_name) + 1;
            memcpy(listing_alloc(w, len), e->d_name, len);
        }
    }
    return v;
}

/* Sorts without qsort(), whose C library version allocates. */
static void sort_names(char **v, size_t n)
{
    for (size_t gap = n / 2; gap > 0; gap = gap == 2 ? 1 : gap * 5 / 11)
        for (size_t i = gap; i < n; i++) {
            char *x = v[i];
            size_t j = i;
            for (; j >= gap && tree_compare_names(&v[j - gap], &x) > 0; j -= gap)
                v[j] = v[j - gap];
            v[j] = x;
        }
}

static void list_dir(struct work *w, int fd, const char *path, unsigned depth)
{
    size_t mark = listing.used;
    struct names names = tree_read_names(w, fd);
    char **v = listing_alloc(w, (names.n + 1) * sizeof *v), *p = names.first;
    char *full = listing_alloc(w, INIT_LISTED_PATH_MAX);
    for (size_t i = 0; i < names.n; i++) {
        v[i] = p;
        p += (strlen(p) + 1 + 15) & ~(size_t)15;
    }
    sort_names(v, names.n);
    for (size_t i = 0; i < names.n; i++) {
        struct init_info info;
        int len = snprintf(full, INIT_LISTED_PATH_MAX, "%s%s%s", path, strcmp(path, "/") == 0 ? "" : "/", v[i]);
        if (len >= INIT_LISTED_PATH_MAX || work_info(w, fd, v[i], full, &info) < 0)
            continue; /* gone meanwhile */
        work_put_info(w, &listing.out, &info);
        if (listing.out.bad || ++listing.n > INIT_LIST_MAX)
            work_fail(w, INIT_LIMIT, "more than %d entries or 64 MiB under '%.160s'", INIT_LIST_MAX, w->path);
        if (depth <= 1 || !S_ISDIR(info.mode))
            continue;
        _cleanup_close_ int sub = work_open(fd, v[i], O_RDONLY | O_DIRECTORY | O_NOFOLLOW, 0);
        if (sub >= 0)
            list_dir(w, sub, full, depth - 1);
    }
    listing.used = mark;
}

static void send_listing(struct work *w, int memfd, const unsigned char *map)
{
    size_t n = listing.out.n;
    if (n <= INIT_MSG_MAX - sizeof(struct init_head)) {
        memcpy(w->out + sizeof(struct init_head), map, n);
        (void)work_send(w, INIT_REPLY, &listing.out, -1);
        return;
    }
    struct init_head h = {
        .version = INIT_VERSION, .type = INIT_REPLY, .flags = INIT_F_MEMFD, .request = w->r->id, .length = (uint32_t)n};
    if (ftruncate(memfd, (off_t)n) < 0 || fcntl(memfd, F_ADD_SEALS, F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL) < 0)
        work_fail_errno(w, errno, w->path);
    (void)fd_send(w->sock, &h, sizeof h, &memfd, 1);
}

void work_list(struct work *w)
{
    unsigned depth = w->r->number == 0 ? 1 : w->r->number;
    if (depth > INIT_DEPTH_MAX)
        depth = INIT_DEPTH_MAX;
    _cleanup_close_ int fd = work_open_path(w, w->path, O_RDONLY | O_DIRECTORY);
    if (fd < 0)
        work_fail_errno(w, errno, w->path);
    int memfd = memfd_create("list", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (memfd < 0 || ftruncate(memfd, INIT_BIG_REPLY) < 0)
        work_fail_errno(w, errno, w->path);
    unsigned char *map = mmap(NULL, INIT_BIG_REPLY, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, memfd, 0);
    listing.base = mmap(NULL, NAMES_MAX, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (map == MAP_FAILED || listing.base == MAP_FAILED)
        work_fail_errno(w, ENOMEM, w->path);
    listing.out = (struct wire_out){.p = map, .cap = INIT_BIG_REPLY};
    wire_put_u32(&listing.out, INIT_OK);
    wire_put_str(&listing.out, "");
    size_t count_at = listing.out.n;
    wire_put_u32(&listing.out, 0);
    list_dir(w, fd, w->path, depth);
    memcpy(map + count_at, &listing.n, sizeof listing.n);
    send_listing(w, memfd, map);
    (void)close(memfd);
}
