/* tx-put.c - copies a file, link or pipe from a layer to the host, under a temporary name. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/sendfile.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "cli/run/tx.h"

enum { AT_ONCE = 1 << 30 };

const char *tx_fd_path(int fd, char ret[TX_FD_PATH])
{
    (void)snprintf(ret, TX_FD_PATH, "/proc/self/fd/%d", fd);
    return ret;
}

int tx_set_mode(int fd, mode_t mode)
{
    char path[TX_FD_PATH];
    return chmod(tx_fd_path(fd, path), mode);
}

/* By descriptor: in another user's directory the name may lead elsewhere by now, and root must not give that file away. */
int tx_set_owner(const struct tx *tx, int fd, const struct stat *l)
{
    if (!tx->root)
        return 0;
    return fchownat(fd, "", l->st_uid - tx->shift, l->st_gid - tx->shift, AT_EMPTY_PATH);
}

/* --- files -------------------------------------------------------------------------------------------------------- */

static int copy_run(int from, int to, off_t at, off_t end)
{
    if (lseek(to, at, SEEK_SET) < 0)
        return -1;
    while (at < end) {
        ssize_t n = sendfile(to, from, &at, (size_t)(end - at > AT_ONCE ? AT_ONCE : end - at));
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0) {
            errno = n == 0 ? EIO : errno;
            return -1;
        }
    }
    return 0;
}

/* Copies data and skips holes: a sparse file of a terabyte costs the command nothing to make. */
static int copy_content(int from, int to, off_t size)
{
    for (off_t at = 0; at < size;) {
        off_t data = lseek(from, at, SEEK_DATA);
        if (data < 0 && errno == ENXIO)
            break;
        data = data < 0 ? at : data; /* the file system does not report holes */
        off_t hole = lseek(from, data, SEEK_HOLE), end = hole > data && hole < size ? hole : size;
        if (data < size && copy_run(from, to, data, end) < 0)
            return -1;
        if (data < size && end == size)
            return 0;
        at = end;
    }
    return ftruncate(to, size);
}

static int put_regular_file(const struct tx_put *p)
{
    const int how = O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC;
    const struct timespec times[2] = {p->l->st_atim, p->l->st_mtim};
    _cleanup_close_ int in = openat(p->layer, p->from, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
    _cleanup_close_ int out = in < 0 ? -1 : openat(p->dir, p->temp, how, 0600);
    if (out < 0 || copy_content(in, out, p->l->st_size) < 0 || tx_set_owner(p->tx, out, p->l) < 0)
        return -1;
    tx_attrs_bare(out);
    if (tx_attrs_keep(p->dir, p->name, p->attrs ? tx_attrs_kinds_of(p->attrs) : 0, out) < 0)
        return -1;
    mode_t mode = tx_attrs_set(out, p->attrs, p->l->st_mode & 0777, p->name, p->left);
    return fchmod(out, mode) < 0 ? -1 : futimens(out, times);
}

/* --- the rest ----------------------------------------------------------------------------------------------------- */

/* Opens the entry just made as `temp`; -1 with errno if another has its name by now. */
static int open_made(const struct tx_put *p)
{
    struct stat st;
    _cleanup_close_ int fd = openat(p->dir, p->temp, O_PATH | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &st) < 0)
        return -1;
    if ((st.st_mode & S_IFMT) != (p->l->st_mode & S_IFMT)) {
        errno = ESTALE;
        return -1;
    }
    return TAKE_FD(fd);
}

static int put_link(const struct tx_put *p)
{
    char target[PATH_MAX];
    ssize_t n = readlinkat(p->layer, p->from, target, sizeof target - 1);
    if (n < 0)
        return -1;
    target[n] = '\0';
    if (symlinkat(target, p->dir, p->temp) < 0)
        return -1;
    _cleanup_close_ int fd = open_made(p);
    return fd < 0 ? -1 : tx_set_owner(p->tx, fd, p->l);
}

static int put_pipe(const struct tx_put *p)
{
    if (mkfifoat(p->dir, p->temp, 0600) < 0)
        return -1;
    _cleanup_close_ int fd = open_made(p);
    return fd < 0 || tx_set_owner(p->tx, fd, p->l) < 0 ? -1 : tx_set_mode(fd, p->l->st_mode & 0777);
}

int tx_put(const struct tx_put *p)
{
    return S_ISREG(p->l->st_mode) ? put_regular_file(p) : S_ISLNK(p->l->st_mode) ? put_link(p) : put_pipe(p);
}
