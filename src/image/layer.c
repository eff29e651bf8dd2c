/* layer.c - turns one tar that a client uploaded for a template build into one lay stream. */
#include <errno.h>
#include <string.h>
#include <sys/stat.h>

#include "image/image-int.h"

int image_layer(const struct image_options *o, struct err *err)
{
    static struct lay_out out;
    struct image_message done = {0};
    struct tar_lay t = {
        .oci = o->oci, .export = o->hutch, .limits = {.bytes = o->max_bytes, .entries = o->max_entries}};
    struct source src;
    struct stream s;
    struct stat st;
    uint64_t max = o->max_bytes ? o->max_bytes : IMAGE_BYTES_MAX;
    lay_out_start(&out, IMAGE_FD_OUT);
    if (fstat(IMAGE_FD_IN, &st) == 0 && S_ISREG(st.st_mode)) {
        source_range(&src, IMAGE_FD_IN, 0, (uint64_t)st.st_size);
        t.total = (uint64_t)st.st_size;
    } else {
        source_stream(&src, IMAGE_FD_IN);
    }
    int rc = stream_open(&s, &src, max + max / 2 + (UINT64_C(1) << 30), "the archive", err);
    if (rc == 0)
        rc = tar_to_lay(&s, &out, &t, err);
    if (rc == 0)
        rc = stream_finish(&s, done.diff_id, done.digest, err);
    dirs_done(&t.dirs);
    stream_close(&s);
    source_done(&src);
    if (rc == 0 && lay_out_end(&out) < 0)
        rc = image_fail(err, errno == ENOSPC ? IMAGE_TOO_LARGE : IMAGE_HOST, "cannot write the unpacked archive: %s",
                        strerror(errno));
    done.done = t.bytes;
    done.total = t.entries;
    tar_lay_note(&t, done.text, sizeof done.text);
    return rc < 0 ? -1 : say_done(&done, err);
}
