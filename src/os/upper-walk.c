/* upper-walk.c - what is in the tree of an upper, counted where the kernel does not count. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "os/upper-int.h"

static bool is_dots(const char *n) { return n[0] == '.' && (!n[1] || (n[1] == '.' && !n[2])); }

struct count {
    dev_t dev;
    uint64_t seen, max; /* entries, gone or not; 0: as many as there are */
    struct upper_usage *ret;
};

static int count_dir(struct count *c, int fd, unsigned depth, struct err *err)
{
    _cleanup_closedir_ DIR *d = fdopendir(fd);
    if (!d) {
        (void)close(fd);
        return err_set(err, ERR_SETUP, errno, "count files");
    }
    const struct dirent *e;
    while ((e = readdir(d))) {
        struct stat st;
        if (is_dots(e->d_name))
            continue;
        if (c->max && c->seen++ == c->max)
            return err_set(err, ERR_LIMIT, 0, "count files: there are more than %llu", (unsigned long long)c->max);
        if (fstatat(dirfd(d), e->d_name, &st, AT_SYMLINK_NOFOLLOW) < 0 || st.st_dev != c->dev)
            continue;
        c->ret->inodes++;
        /* A file with several names counts once; a file that is being removed may have none left. */
        bool several = !S_ISDIR(st.st_mode) && st.st_nlink > 1;
        c->ret->used += (uint64_t)st.st_blocks * 512 / (several ? st.st_nlink : 1);
        if (!S_ISDIR(st.st_mode))
            continue;
        if (depth == UPPER_DEPTH_MAX)
            return err_set(err, ERR_LIMIT, 0, "count files: directories are deeper than %d", (int)UPPER_DEPTH_MAX);
        int child = openat(dirfd(d), e->d_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (child >= 0 && count_dir(c, child, depth + 1, err) < 0)
            return -1;
    }
    return 0;
}

int upper_count(int root, uint64_t max, struct upper_usage *ret, struct err *err)
{
    struct stat st;
    int copy = openat(root, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (copy < 0 || fstat(copy, &st) < 0) {
        int eno = errno;
        if (copy >= 0)
            (void)close(copy);
        return err_set(err, ERR_SETUP, eno, "count files");
    }
    *ret = (struct upper_usage){.used = (uint64_t)st.st_blocks * 512, .inodes = 1};
    return count_dir(&(struct count){.dev = st.st_dev, .max = max, .ret = ret}, copy, 1, err);
}
