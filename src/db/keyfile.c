#include "db/keyfile.h"

#include <errno.h>
#include <fcntl.h>
#include <openssl/crypto.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "base/random.h"

static int keyfile_make(int dir, const char *name, void *ret, size_t n, struct err *err)
{
    char part[64];
    (void)snprintf(part, sizeof part, "%s.tmp", name);
    _cleanup_close_ int fd = openat(dir, part, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
    random_bytes(ret, n);
    if (fd < 0 || fd_write_all(fd, ret, n) < 0 || fsync(fd) < 0 || renameat(dir, part, dir, name) < 0 || fsync(dir) < 0)
        return err_set(err, ERR_SETUP, errno, "cannot write the key %s", name);
    return 0;
}

int keyfile_open(int dir, const char *name, void *ret, size_t n, struct err *err)
{
    _cleanup_buf_ struct buf text = {0};
    if (fd_read_file(dir, name, n + 1, &text) < 0) {
        if (errno != ENOENT)
            return err_set(err, ERR_SETUP, errno, "cannot read the key %s", name);
        return keyfile_make(dir, name, ret, n, err);
    }
    if (text.n != n)
        return err_set(err, ERR_SETUP, 0, "the key %s must be %zu bytes, it has %zu; restore it from a copy", name, n,
                       text.n);
    memcpy(ret, text.p, n);
    OPENSSL_cleanse(text.p, text.n);
    return 0;
}
