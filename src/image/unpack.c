/* unpack.c - turns an image archive into one lay stream per layer, bottom first. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "image/image-int.h"

static int check_sums(const struct layout_layer *y, const char *what, const uint8_t plain[SHA256_BYTES],
                      const uint8_t packed[SHA256_BYTES], struct err *err)
{
    char said[SHA256_HEX], real[SHA256_HEX];
    if (y->has_digest && memcmp(packed, y->digest, SHA256_BYTES) != 0) {
        hash_hex(y->digest, said);
        hash_hex(packed, real);
        return image_fail(err, IMAGE_BAD_DATA, "%s is not what its name says: sha256:%s is expected, it has sha256:%s",
                          what, said, real);
    }
    if (memcmp(plain, y->diff_id, SHA256_BYTES) != 0) {
        hash_hex(y->diff_id, said);
        hash_hex(plain, real);
        return image_fail(
            err, IMAGE_BAD_DATA,
            "%s is not the one that the image's configuration means: diff_id sha256:%s is expected, it has "
            "sha256:%s",
            what, said, real);
    }
    return 0;
}

static int unpack_layer(const struct layout *l, const struct layout_layer *y, const char *what, struct lay_out *out,
                        struct tar_lay *t, struct err *err)
{
    uint8_t plain[SHA256_BYTES], packed[SHA256_BYTES];
    struct source src;
    struct stream s;
    lay_out_start(out, IMAGE_FD_OUT);
    source_range(&src, l->fd, y->file->at, y->file->size);
    /* A tar also has headers and padding, which the limit does not count. */
    uint64_t max = t->limits.bytes ? t->limits.bytes : IMAGE_BYTES_MAX;
    int rc = stream_open(&s, &src, max + max / 2 + (UINT64_C(1) << 30), what, err);
    if (rc == 0)
        rc = tar_to_lay(&s, out, t, err);
    if (rc == 0)
        rc = stream_finish(&s, plain, packed, err);
    if (rc == 0)
        rc = check_sums(y, what, plain, packed, err);
    stream_close(&s);
    source_done(&src);
    if (rc == 0 && lay_out_end(out) < 0)
        rc = image_fail(err, IMAGE_HOST, "the job takes no more: %s", strerror(errno));
    return rc;
}

static int unpack_all(const struct layout *l, const struct layout_plan *p, const struct image_options *o,
                      struct err *err)
{
    static struct lay_out out;
    struct image_message done = {.count = (uint32_t)p->n};
    struct tar_lay t = {.oci = true, .export = o->hutch, .limits = {.bytes = o->max_bytes, .entries = o->max_entries}};
    char what[IMAGE_NAME_SHOWN + 80];
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < p->n; i++) {
        (void)snprintf(what, sizeof what, "layer %zu of %zu (%s)", i + 1, p->n, image_shown(p->layer[i].file->name));
        t.total = p->layer[i].file->size;
        rc = say_layer((uint32_t)i, (uint32_t)p->n, p->layer[i].diff_id, err);
        if (rc == 0)
            rc = unpack_layer(l, &p->layer[i], what, &out, &t, err);
    }
    dirs_done(&t.dirs);
    tar_lay_note(&t, done.text, sizeof done.text);
    if (rc < 0 || say_config(buf_str(&p->config), p->config.n, err) < 0)
        return -1;
    return say_done(&done, err);
}

int image_unpack(const struct image_options *o, struct err *err)
{
    static struct layout_plan plan;
    struct layout l;
    uint64_t max = o->max_bytes ? o->max_bytes : IMAGE_BYTES_MAX;
    int rc = layout_read(&l, IMAGE_FD_IN, IMAGE_FD_MORE, max + max / 2 + (UINT64_C(1) << 30), err);
    if (rc == 0)
        rc = layout_plan(&l, o->image, o->hutch, &plan, err);
    if (rc == 0)
        rc = unpack_all(&l, &plan, o, err);
    buf_done(&plan.config);
    layout_done(&l);
    return rc;
}
