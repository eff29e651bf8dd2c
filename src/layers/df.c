/* df.c - how much disk each stack uses. Sizes come from the layers' meta files; no tree is walked. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "base/mem.h"
#include "layers/merged.h"
#include "layers/refs.h"
#include "pool/diskpool.h"

enum { RECORDS_MAX = 1 << 20, AT_ONCE = 256 };

struct df {
    struct job *j;
    struct refs refs;
    struct layers_usage *v;
    size_t n, cap;
    struct layers_usage whole, unused, blobs;
};

static struct layer_meta df_layer_meta(const struct job *j, const char *layer)
{
    static struct map known; /* for the life of this process: related stacks name mostly the same layers */
    struct meta {
        char name[LAYER_NAME];
        struct layer_meta m;
    } *k = map_get(&known, layer);
    struct err err = {0};
    if (k)
        return k->m;
    k = xcalloc(1, sizeof *k);
    (void)snprintf(k->name, sizeof k->name, "%s", layer);
    if (layer_meta_read(&j->place, layer, &k->m, &err) < 0)
        k->m = (struct layer_meta){0};
    (void)map_put(&known, k->name, k);
    return k->m;
}

/* Adds up the layers that only this stack names, and those that others name too. A layer that it names twice counts
 * once. */
static void df_add_layers(const struct job *j, const struct refs *r, const struct stack_file *f, struct layers_usage *u)
{
    char name[LAYER_NAME];
    for (uint32_t i = 0; i < f->n; i++) {
        bool before = false;
        for (uint32_t k = 0; k < i; k++)
            before |= memcmp(f->layer[i], f->layer[k], SHA256_BYTES) == 0;
        if (before)
            continue;
        sha256_text(f->layer[i], name);
        struct layer_meta m = df_layer_meta(j, name);
        const struct refs_layer *l = refs_get(r, name);
        bool shared = l && l->stacks > 1;
        *(shared ? &u->shared_bytes : &u->own_bytes) += m.bytes;
        *(shared ? &u->shared_entries : &u->own_entries) += m.entries;
    }
}

static int df_on_stack(void *arg, const char *name, struct err *err)
{
    struct df *d = arg;
    struct stack_file f;
    struct err damaged = {0};
    if (stack_name_parse(name).kind != STACK_NAME_STACK || refs_read_file(&d->j->place, name, &f, &damaged) < 0)
        return 0;
    if (d->n == RECORDS_MAX)
        return err_set(err, ERR_LIMIT, 0, "more than %d stacks", (int)RECORDS_MAX);
    MEM_GROW(d->v, d->n, d->cap);
    struct layers_usage *u = &d->v[d->n++];
    *u = (struct layers_usage){0};
    (void)snprintf(u->id, sizeof u->id, "%s", name);
    df_add_layers(d->j, &d->refs, &f, u);
    return 0;
}

static int df_on_layer(void *arg, const char *name, struct err *err)
{
    struct df *d = arg;
    (void)err;
    if (!layer_name_valid(name))
        return 0;
    struct layer_meta m = df_layer_meta(d->j, name);
    const struct refs_layer *l = refs_get(&d->refs, name);
    d->whole.own_bytes += m.bytes;
    d->whole.own_entries += m.entries;
    if (l && l->stacks > 1) {
        d->whole.shared_bytes += m.bytes;
        d->whole.shared_entries += m.entries;
    }
    if (!l) {
        d->unused.own_bytes += m.bytes;
        d->unused.own_entries += m.entries;
    }
    return 0;
}

static int df_on_blob(void *arg, const char *name, struct err *err)
{
    struct df *d = arg;
    struct stat st;
    (void)err;
    if (fstatat(d->j->place.blobs, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
        return 0;
    d->blobs.own_bytes += (uint64_t)st.st_blocks * 512;
    d->blobs.own_entries++;
    return 0;
}

static int df_write_pool(const struct layers_place *p, int fd)
{
    struct diskpool_stat s;
    _cleanup_close_ int state = openat(p->root, "..", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (state < 0 || !diskpool_stat(state, &s))
        return 0;
    struct layers_usage pool = {.id = LAYERS_DF_POOL,
                                .own_bytes = s.used,
                                .shared_bytes = s.avail,
                                .own_entries = s.held,
                                .shared_entries = s.read_only},
                        file = {.id = LAYERS_DF_POOL_FILE, .own_bytes = s.on_host, .shared_bytes = s.size};
    return fd_write_all(fd, &pool, sizeof pool) < 0 ? -1 : fd_write_all(fd, &file, sizeof file);
}

int job_df(struct job *j, struct err *err)
{
    static struct df d = {.unused.id = LAYERS_DF_UNUSED,
                          .blobs.id = LAYERS_DF_BLOBS}; /* for the life of this process */
    d.j = j;
    _cleanup_close_ int fd = job_memfd("df", err);
    if (fd < 0 || refs_read(&j->place, &d.refs, err) < 0 || refs_each_name(j->place.stacks, df_on_stack, &d, err) < 0 ||
        refs_each_name(j->place.layers, df_on_layer, &d, err) < 0 ||
        refs_each_name(j->place.blobs, df_on_blob, &d, err) < 0)
        return -1;
    if (fd_write_all(fd, &d.whole, sizeof d.whole) < 0 || fd_write_all(fd, &d.unused, sizeof d.unused) < 0 ||
        fd_write_all(fd, &d.blobs, sizeof d.blobs) < 0 || df_write_pool(&j->place, fd) < 0 ||
        fd_write_all(fd, d.v, d.n * sizeof *d.v) < 0)
        return err_set(err, ERR_SETUP, errno, "write the answer");
    if (job_memfd_seal(fd, err) < 0)
        return -1;
    j->reply.bytes = d.whole.own_bytes;
    j->reply.entries = d.n;
    j->reply_fd = TAKE_FD(fd);
    return 0;
}

int job_usage(struct job *j, struct err *err)
{
    struct stack_file f;
    struct refs r;
    struct layers_usage u = {0};
    const char *id = j->ask->stack;
    if (stack_read(&j->place, id, &f, err) < 0)
        return err->eno == ENOENT ? job_fail(j, LAYERS_NOT_FOUND, err, "there is no stack %s", id) : -1;
    if (refs_read(&j->place, &r, err) < 0)
        return -1;
    df_add_layers(j, &r, &f, &u);
    j->reply.bytes = u.own_bytes;
    j->reply.entries = u.own_entries;
    j->reply.bytes2 = u.own_bytes + u.shared_bytes;
    j->reply.entries2 = u.own_entries + u.shared_entries;
    return 0;
}

/* --- list of layers ----------------------------------------------------------------------------------------------- */

struct layer_list {
    struct job *j;
    int fd;
    size_t total, n;
    struct stack_layer v[AT_ONCE]; /* not written yet */
};

static int layer_list_write(struct layer_list *l, struct err *err)
{
    if (l->n && fd_write_all(l->fd, l->v, l->n * sizeof l->v[0]) < 0)
        return err_set(err, ERR_SETUP, errno, "write the answer");
    l->n = 0;
    return 0;
}

static int layer_list_add(struct layer_list *l, const char *id, const struct stack_file *f, struct err *err)
{
    char name[LAYER_NAME];
    for (uint32_t i = 0; i < f->n || i == 0; i++) {
        struct stack_layer *r = &l->v[l->n++];
        *r = (struct stack_layer){0};
        (void)snprintf(r->stack, sizeof r->stack, "%s", id);
        if (f->n) {
            sha256_text(f->layer[i], name);
            struct layer_meta m = df_layer_meta(l->j, name);
            memcpy(r->name, f->layer[i], sizeof r->name);
            r->bytes = m.bytes;
            r->entries = m.entries;
        }
        if (++l->total > RECORDS_MAX)
            return err_set(err, ERR_LIMIT, 0, "more than %d layers of stacks", (int)RECORDS_MAX);
        if (l->n == AT_ONCE && layer_list_write(l, err) < 0)
            return -1;
    }
    return 0;
}

static int layer_list_on_stack(void *arg, const char *name, struct err *err)
{
    struct layer_list *l = arg;
    struct stack_file f;
    struct err damaged = {0};
    if (stack_name_parse(name).kind != STACK_NAME_STACK || refs_read_file(&l->j->place, name, &f, &damaged) < 0)
        return 0;
    return layer_list_add(l, name, &f, err);
}

int job_layers_of(struct job *j, const struct stack_file *f, struct err *err)
{
    static struct layer_list l; /* for the life of this process */
    _cleanup_close_ int fd = job_memfd("layers", err);
    l.j = j;
    l.fd = fd;
    if (fd < 0 ||
        (f ? layer_list_add(&l, j->ask->stack, f, err)
           : refs_each_name(j->place.stacks, layer_list_on_stack, &l, err)) < 0 ||
        layer_list_write(&l, err) < 0 || job_memfd_seal(fd, err) < 0)
        return -1;
    j->reply_fd = TAKE_FD(fd);
    return 0;
}

int job_layers(struct job *j, struct err *err)
{
    struct stack_file f;
    const char *id = j->ask->stack;
    if (id[0] && stack_read(&j->place, id, &f, err) < 0)
        return err->eno == ENOENT ? job_fail(j, LAYERS_NOT_FOUND, err, "there is no stack %s", id) : -1;
    return job_layers_of(j, id[0] ? &f : NULL, err);
}
