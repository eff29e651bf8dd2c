/* work-info.c - describes one directory entry for front. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "init/work.h"

#define META_PREFIX "user.e2b."

/* Caches names, which repeat in a listing. */
struct name_cache {
    struct {
        uint32_t id;
        char name[INIT_USER_MAX + 1];
    } v[16];
    unsigned n, next;
};

static const char *info_cached_name(struct name_cache *c, struct users_file f, uint32_t id,
                                    bool (*find)(struct users_file f, uint32_t id, char *ret, size_t size))
{
    for (unsigned i = 0; i < c->n; i++)
        if (c->v[i].id == id)
            return c->v[i].name;
    unsigned at = c->next++ % ARRAY_LEN(c->v);
    if (c->n < ARRAY_LEN(c->v))
        c->n++;
    c->v[at].id = id;
    if (!find(f, id, c->v[at].name, sizeof c->v[at].name))
        (void)snprintf(c->v[at].name, sizeof c->v[at].name, "%u", id);
    return c->v[at].name;
}

static uint32_t info_type_of_mode(mode_t mode)
{
    if (S_ISREG(mode))
        return INIT_FILE_REGULAR;
    if (S_ISDIR(mode))
        return INIT_FILE_DIRECTORY;
    return S_ISLNK(mode) ? INIT_FILE_SYMLINK : INIT_FILE_OTHER;
}

/* Type, mode and size of what a link leads to, and where that is. */
static void info_follow_link(int dir, const char *name, struct init_info *i)
{
    static char target[INIT_PATH_MAX];
    char self[64];
    struct stat st;
    i->type = INIT_FILE_OTHER;
    _cleanup_close_ int fd = work_open(dir, name, O_PATH, 0);
    if (fd < 0 || fstat(fd, &st) < 0)
        return;
    i->type = info_type_of_mode(st.st_mode);
    i->mode = S_IFLNK | (st.st_mode & 07777);
    i->size = st.st_size < 0 ? 0 : (uint64_t)st.st_size;
    (void)snprintf(self, sizeof self, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(self, target, sizeof target - 1);
    if (n <= 0 || target[0] != '/')
        return;
    target[n] = '\0';
    i->target = target;
}

/* The text of a link. */
static void info_read_link(int dir, const char *name, struct init_info *i)
{
    static char target[INIT_PATH_MAX];
    ssize_t n = readlinkat(dir, name, target, sizeof target - 1);
    target[n > 0 ? n : 0] = '\0';
    i->target = target;
}

static void read_meta(int dir, const char *name, struct init_info *i)
{
    static char text[INIT_META_MAX * 256 + INIT_META_BYTES + INIT_META_MAX];
    char path[64 + 256], names[4096];
    size_t used = 0;
    (void)snprintf(path, sizeof path, "/proc/self/fd/%d/%s", dir, name);
    ssize_t n = llistxattr(path, names, sizeof names);
    for (ssize_t at = 0; at < n && i->nmeta < INIT_META_MAX;) {
        const char *key = names + at;
        size_t len = strnlen(key, (size_t)(n - at));
        at += (ssize_t)len + 1;
        if (strncmp(key, META_PREFIX, sizeof META_PREFIX - 1) != 0 || len > 255)
            continue;
        size_t klen = len - (sizeof META_PREFIX - 1) + 1;
        if (klen < 2 || used + klen >= sizeof text)
            continue;
        ssize_t v = lgetxattr(path, key, text + used + klen, sizeof text - used - klen - 1);
        if (v < 0 || v > INIT_META_BYTES)
            continue;
        memcpy(text + used, key + sizeof META_PREFIX - 1, klen);
        text[used + klen + (size_t)v] = '\0';
        i->meta[i->nmeta++] = (struct init_meta){.key = text + used, .value = text + used + klen};
        used += klen + (size_t)v + 1;
    }
}

int work_info(struct work *w, int dir, const char *name, const char *path, struct init_info *ret)
{
    static struct name_cache users, groups;
    struct stat st;
    if (fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
        return -1;
    const char *slash = strrchr(path, '/');
    *ret = (struct init_info){
        .name = slash && slash[1] ? slash + 1 : path,
        .path = path,
        .type = info_type_of_mode(st.st_mode),
        .mode = st.st_mode & 0177777,
        .size = st.st_size < 0 ? 0 : (uint64_t)st.st_size,
        .mtime_s = st.st_mtim.tv_sec,
        .mtime_ns = (uint32_t)st.st_mtim.tv_nsec,
        .owner = info_cached_name(&users, w->passwd, st.st_uid, users_name_of),
        .group = info_cached_name(&groups, w->group, st.st_gid, users_group_of),
    };
    ret->facts = (struct init_facts){.uid = st.st_uid,
                                     .gid = st.st_gid,
                                     .atime_s = st.st_atim.tv_sec,
                                     .atime_ns = (uint32_t)st.st_atim.tv_nsec,
                                     .ctime_s = st.st_ctim.tv_sec,
                                     .ctime_ns = (uint32_t)st.st_ctim.tv_nsec};
    if (S_ISLNK(st.st_mode) && w->root >= 0)
        info_read_link(dir, name, ret);
    else if (S_ISLNK(st.st_mode))
        info_follow_link(dir, name, ret);
    else if (S_ISREG(st.st_mode) || S_ISDIR(st.st_mode))
        read_meta(dir, name, ret);
    return 0;
}

int work_info_path(struct work *w, const char *path, struct init_info *ret)
{
    const char *name;
    _cleanup_close_ int dir = work_parent(w, path, false, &name);
    return dir < 0 ? -1 : work_info(w, dir, name, path, ret);
}
