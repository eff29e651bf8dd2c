/* verify.c - checks stacks and layers against their sums and digests. It reads all of them, and notes the digest of a layer
 * that had none yet. */
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "layers/digest-later.h"
#include "layers/merged.h"
#include "layers/refs.h"

enum { LINES_MAX = 4 << 20 };

struct verify {
    struct job *j;
    struct buf lines;
    uint64_t problems, done, total;
    uint64_t digested; /* layers that had no digest */
};

static void verify_problem(struct verify *v, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void verify_problem(struct verify *v, const char *fmt, ...)
{
    char text[1400];
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    v->problems++;
    if (v->lines.n < LINES_MAX)
        buf_addf(&v->lines, "%s\n", text);
}

static void verify_stack(struct verify *v, const char *id)
{
    struct stack_file f;
    struct err err = {0};
    char path[STACK_BASE_MAX + 8], name[LAYER_NAME];
    if (refs_read_file(&v->j->place, id, &f, &err) < 0) {
        if (err.eno != ENOENT)
            verify_problem(v, "stack %s: %s", id, err.msg);
        return;
    }
    (void)snprintf(path, sizeof path, "%s/root", f.base);
    if (f.base[0] && (v->j->place.templates < 0 || faccessat(v->j->place.templates, path, F_OK, 0) < 0))
        verify_problem(v, "stack %s: the template %s below it is missing", id, f.base);
    for (uint32_t i = 0; i < f.n; i++) {
        sha256_text(f.layer[i], name);
        if (faccessat(v->j->place.layers, name, F_OK, AT_SYMLINK_NOFOLLOW) < 0)
            verify_problem(v, "stack %s: its layer %s is missing", id, name);
    }
}

static int verify_on_stack(void *arg, const char *name, struct err *err)
{
    (void)err;
    if (stack_name_parse(name).kind == STACK_NAME_STACK)
        verify_stack(arg, name);
    return 0;
}

static void verify_first_digest(struct verify *v, const char *name, struct layer_meta *m)
{
    struct err err = {0};
    if (layer_digest(v->j, name, m, &err) < 0) {
        verify_problem(v, "layer %s: has no digest yet, and gets none: %s", name, err.msg);
        return;
    }
    v->digested++;
    v->done += m->bytes;
}

static void verify_layer(struct verify *v, const char *name)
{
    struct layer_meta m;
    struct tree_size size;
    struct err err = {0};
    uint8_t digest[SHA256_BYTES];
    char path[LAYER_NAME + 8], got[LAYER_NAME];
    bool meta = layer_meta_read(&v->j->place, name, &m, &err) == 0;
    (void)snprintf(path, sizeof path, "%s/root", name);
    _cleanup_close_ int root = openat(v->j->place.layers, path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (root < 0 && errno == ENOENT && faccessat(v->j->place.layers, name, F_OK, AT_SYMLINK_NOFOLLOW) < 0)
        return; /* removed meanwhile; if a stack still names it, verify_stack() has reported that */
    if (!meta)
        verify_problem(v, "layer %s: %s", name, err.msg);
    if (root < 0) {
        verify_problem(v, "layer %s: its tree cannot be opened: %s", name, strerror(errno));
        return;
    }
    if (meta && !layer_has_digest(&m)) {
        verify_first_digest(v, name, &m);
        return;
    }
    if (tree_digest(root, v->j->tree_flags, digest, &size, &err) < 0) {
        verify_problem(v, "layer %s: %s", name, err.msg);
        return;
    }
    sha256_text(digest, got);
    if (meta && memcmp(digest, m.digest, sizeof digest) != 0)
        verify_problem(v, "layer %s: something in it was changed: its digest is now %s", name, got);
    else if (meta && m.entries != size.entries)
        verify_problem(v, "layer %s: has %llu entries and should have %llu", name, (unsigned long long)size.entries,
                       (unsigned long long)m.entries);
    v->done += meta ? m.bytes : size.bytes;
}

static int verify_add_size(void *arg, const char *name, struct err *err)
{
    struct verify *v = arg;
    struct layer_meta m;
    struct err ignored = {0};
    (void)err;
    if (layer_name_valid(name) && layer_meta_read(&v->j->place, name, &m, &ignored) == 0)
        v->total += m.bytes;
    return 0;
}

static int verify_on_layer(void *arg, const char *name, struct err *err)
{
    struct verify *v = arg;
    (void)err;
    if (!layer_name_valid(name))
        return 0;
    job_progress(v->j, v->done, v->total, name);
    verify_layer(v, name);
    return 0;
}

static int verify_one(struct verify *v, struct err *err)
{
    struct stack_file f;
    char name[LAYER_NAME];
    const char *id = v->j->ask->stack;
    if (faccessat(v->j->place.stacks, id, F_OK, AT_SYMLINK_NOFOLLOW) < 0)
        return job_fail(v->j, LAYERS_NOT_FOUND, err, "there is no stack %s", id);
    verify_stack(v, id);
    struct err damaged = {0};
    if (refs_read_file(&v->j->place, id, &f, &damaged) < 0)
        return 0; /* verify_stack() has reported it */
    for (uint32_t i = 0; i < f.n; i++) {
        sha256_text(f.layer[i], name);
        (void)verify_add_size(v, name, err);
    }
    for (uint32_t i = 0; i < f.n; i++) {
        sha256_text(f.layer[i], name);
        (void)verify_on_layer(v, name, err);
    }
    return 0;
}

static int verify_all(struct verify *v, struct err *err)
{
    const struct layers_place *p = &v->j->place;
    return refs_each_name(p->stacks, verify_on_stack, v, err) < 0 ||
                   refs_each_name(p->layers, verify_add_size, v, err) < 0
               ? -1
               : refs_each_name(p->layers, verify_on_layer, v, err);
}

int job_verify(struct job *j, struct err *err)
{
    static struct verify v; /* for the life of this process */
    v = (struct verify){.j = j};
    _cleanup_close_ int fd = job_memfd("verify", err);
    if (fd < 0 || (j->ask->stack[0] ? verify_one(&v, err) : verify_all(&v, err)) < 0)
        return -1;
    if (fd_write_all(fd, buf_str(&v.lines), v.lines.n) < 0)
        return err_set(err, ERR_SETUP, errno, "write the answer");
    if (job_memfd_seal(fd, err) < 0)
        return -1;
    j->reply.bytes = v.done;
    j->reply.entries = v.problems;
    j->reply.entries2 = v.digested;
    j->reply_fd = TAKE_FD(fd);
    return 0;
}
