/* fuzz_lay.c - any bytes as a lay stream: nothing is made outside of its directory, nothing above its limits, and a
 * path that is let through cannot lead out. The first byte chooses the flags. */
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "base/mem.h"
#include "base/path.h"
#include "trees/tree.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static char place[] = "/tmp/hutch-fuzz-lay.XXXXXX";

static void take_away(void)
{
    struct err err = {0};
    (void)tree_remove(AT_FDCWD, place, &err);
}

/* What lies beside the directory stays as it is. */
static int begin(void)
{
    static int dir = -1;
    if (dir < 0) {
        if (!mkdtemp(place))
            abort();
        (void)atexit(take_away);
        dir = open(place, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (dir < 0 || mkdirat(dir, "beside", 0700) < 0)
            abort();
    }
    return dir;
}

static void try_path(const uint8_t *data, size_t size)
{
    if (lay_path_wrong((const char *)data, size))
        return;
    _cleanup_free_ char *text = xstrndup((const char *)data, size), *whole = path_join("/root", text);
    _cleanup_free_ char *clean = path_clean("/", whole);
    if (strlen(text) != size || strcmp(whole, clean) != 0 || !path_under(clean, "/root"))
        abort();
}

static uint64_t sizes(int root)
{
    uint8_t digest[SHA256_BYTES];
    struct tree_size size = {0};
    struct err err = {0};
    (void)tree_digest(root, 0, digest, &size, &err);
    return size.bytes;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const struct lay_limits limits = {.bytes = 1 << 20, .entries = 300, .file = 600 << 10};
    struct lay_done done;
    struct err err = {0};
    struct stat before, after;
    if (size == 0)
        return 0;
    int dir = begin();
    try_path(data, size);
    unsigned flags = data[0] & (LAY_USERXATTR | LAY_PLAIN);
    if (geteuid() != 0)
        flags |= LAY_NO_CHOWN;
    _cleanup_close_ int stream = memfd_create("stream", MFD_CLOEXEC);
    if (stream < 0 || fd_write_all(stream, data + 1, size - 1) < 0 || lseek(stream, 0, SEEK_SET) != 0 ||
        mkdirat(dir, "root", 0700) < 0 || fstatat(dir, "beside", &before, 0) < 0)
        abort();
    _cleanup_close_ int root = openat(dir, "root", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int r = lay_read(stream, root, flags, &limits, NULL, NULL, &done, &err);
    if (done.entries > limits.entries || done.bytes > limits.bytes || (r < 0) != (err.msg[0] != '\0'))
        abort();
    if (sizes(root) > 300 * (64 << 10) + (2 << 20))
        abort();
    if (fstatat(dir, "beside", &after, 0) < 0 || before.st_ctim.tv_nsec != after.st_ctim.tv_nsec)
        abort();
    struct err clean = {0};
    if (tree_remove(dir, "root", &clean) < 0)
        abort();
    return 0;
}
