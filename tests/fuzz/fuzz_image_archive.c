/* fuzz_image_archive.c - any bytes as an image archive and as a layer: every record that comes out has a path that a lay stream may hold,
 * and the stream is whole.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "base/mem.h"
#include "image/image-int.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { BYTES_MAX = 1 << 20, ENTRIES_MAX = 1000 };

static void check_stream(int fd)
{
    struct stat st;
    uint64_t n = 0;
    if (fstat(fd, &st) < 0)
        abort();
    size_t size = (size_t)st.st_size;
    _cleanup_free_ char *all = xmalloc(size + 1);
    if (pread(fd, all, size, 0) != (ssize_t)size)
        abort();
    for (size_t at = 0;; n++) {
        struct lay_record r;
        if (size - at < sizeof r)
            abort();
        memcpy(&r, all + at, sizeof r);
        at += sizeof r;
        if (r.magic != LAY_MAGIC || r.type < LAY_DIR || r.type > LAY_END)
            abort();
        if (r.type == LAY_END) {
            if (r.size != n || at != size)
                abort();
            return;
        }
        if (size - at < (size_t)r.path_len + r.target_len + r.xattrs_len)
            abort();
        bool root = r.path_len == 0 && (r.type == LAY_META || r.type == LAY_OPAQUE);
        if ((!root && lay_path_wrong(all + at, r.path_len)) || r.uid > 65535 || r.gid > 65535 || r.mode > 07777 ||
            (r.type == LAY_HARDLINK && lay_path_wrong(all + at + r.path_len, r.target_len)))
            abort();
        at += (size_t)r.path_len + r.target_len + r.xattrs_len;
        if (r.type == LAY_FILE && r.size > size - at)
            abort();
        at += r.type == LAY_FILE ? (size_t)r.size : 0;
    }
}

static void as_layer(int in, size_t size, bool oci)
{
    static struct lay_out o;
    struct source src;
    struct stream s;
    struct err err = {0};
    struct tar_lay l = {.oci = oci, .limits = {.bytes = BYTES_MAX, .entries = ENTRIES_MAX}};
    _cleanup_close_ int out = memfd_create("lay", MFD_CLOEXEC);
    lay_out_start(&o, out);
    source_range(&src, in, 0, size);
    int rc = stream_open(&s, &src, 4 * BYTES_MAX, "it", &err);
    if (rc == 0)
        rc = tar_to_lay(&s, &o, &l, &err);
    if (rc == 0)
        rc = stream_finish(&s, NULL, NULL, &err);
    dirs_done(&l.dirs);
    stream_close(&s);
    source_done(&src);
    if (rc < 0 && !err.msg[0])
        abort();
    if (rc == 0 && lay_out_end(&o) == 0)
        check_stream(out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct layout_plan plan;
    struct layout l;
    struct err err = {0};
    _cleanup_close_ int in = memfd_create("in", MFD_CLOEXEC), scratch = memfd_create("scratch", MFD_CLOEXEC);
    if (in < 0 || scratch < 0 || fd_write_all(in, data, size) < 0)
        abort();
    as_layer(in, size, true);
    as_layer(in, size, false);
    int rc = layout_read(&l, in, scratch, 4 * BYTES_MAX, &err);
    if (rc == 0 && layout_plan(&l, "", false, &plan, &err) == 0 && (plan.n == 0 || plan.n > IMAGE_LAYERS_MAX))
        abort();
    buf_done(&plan.config);
    layout_done(&l);
    return 0;
}
