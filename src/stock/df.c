/* df.c - who uses how much. Sizes are those noted when a layer was made; nothing is walked. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "base/mem.h"
#include "stock/merged.h"
#include "stock/refs.h"

enum { RECORDS_MAX = 1 << 20, AT_ONCE = 256 };

struct df {
    struct job *j;
    struct refs refs;
    struct stock_usage *v;
    size_t n, cap;
    struct stock_usage whole, unused, blobs;
};

static struct layer_meta meta_of(const struct job *j, const char *layer)
{
    static struct map known; /* for the life of this process: most stacks of one line name the same layers */
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

/* Layers of a stack that nobody else names, and the others. A layer that stands in it twice counts once. */
static void add_layers(const struct job *j, const struct refs *r, const struct stack_file *f, struct stock_usage *u)
{
    char name[LAYER_NAME];
    for (uint32_t i = 0; i < f->n; i++) {
        bool before = false;
        for (uint32_t k = 0; k < i; k++)
            before |= memcmp(f->layer[i], f->layer[k], SHA256_BYTES) == 0;
        if (before)
            continue;
        layer_hex(f->layer[i], name);
        struct layer_meta m = meta_of(j, name);
        const struct refs_layer *l = refs_get(r, name);
        bool shared = l && l->stacks > 1;
        *(shared ? &u->shared_bytes : &u->own_bytes) += m.bytes;
        *(shared ? &u->shared_entries : &u->own_entries) += m.entries;
    }
}

static int stack_step(void *arg, const char *name, struct err *err)
{
    struct df *d = arg;
    struct stack_file f;
    struct err damaged = {0};
    if (stack_name_parse(name).kind != STACK_NAME_STACK || refs_read_file(&d->j->place, name, &f, &damaged) < 0)
        return 0;
    if (d->n == RECORDS_MAX)
        return err_set(err, ERR_LIMIT, 0, "more than %d stacks", (int)RECORDS_MAX);
    MEM_GROW(d->v, d->n, d->cap);
    struct stock_usage *u = &d->v[d->n++];
    *u = (struct stock_usage){0};
    (void)snprintf(u->id, sizeof u->id, "%s", name);
    add_layers(d->j, &d->refs, &f, u);
    return 0;
}

static int layer_step(void *arg, const char *name, struct err *err)
{
    struct df *d = arg;
    (void)err;
    if (!layer_name_valid(name))
        return 0;
    struct layer_meta m = meta_of(d->j, name);
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

static int blob_step(void *arg, const char *name, struct err *err)
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

int job_df(struct job *j, struct err *err)
{
    static struct df d = {.unused.id = STOCK_DF_UNUSED, .blobs.id = STOCK_DF_BLOBS}; /* for the life of this process */
    d.j = j;
    _cleanup_close_ int fd = job_memfd("df", err);
    if (fd < 0 || refs_read(&j->place, &d.refs, err) < 0 || refs_each_name(j->place.stacks, stack_step, &d, err) < 0 ||
        refs_each_name(j->place.layers, layer_step, &d, err) < 0 ||
        refs_each_name(j->place.blobs, blob_step, &d, err) < 0)
        return -1;
    if (fd_write_all(fd, &d.whole, sizeof d.whole) < 0 || fd_write_all(fd, &d.unused, sizeof d.unused) < 0 ||
        fd_write_all(fd, &d.blobs, sizeof d.blobs) < 0 || fd_write_all(fd, d.v, d.n * sizeof *d.v) < 0)
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
    struct stock_usage u = {0};
    const char *id = j->ask->stack;
    if (stack_read(&j->place, id, &f, err) < 0)
        return err->eno == ENOENT ? job_fail(j, STOCK_NOT_FOUND, err, "there is no stack %s", id) : -1;
    if (refs_read(&j->place, &r, err) < 0)
        return -1;
    add_layers(j, &r, &f, &u);
    j->reply.bytes = u.own_bytes;
    j->reply.entries = u.own_entries;
    j->reply.bytes2 = u.own_bytes + u.shared_bytes;
    j->reply.entries2 = u.own_entries + u.shared_entries;
    return 0;
}

/* --- which layers ------------------------------------------------------------------------------------------------- */

struct layer_list {
    struct job *j;
    int fd;
    size_t total, n;
    struct stock_layer v[AT_ONCE]; /* not written yet */
};

static int list_write(struct layer_list *l, struct err *err)
{
    if (l->n && fd_write_all(l->fd, l->v, l->n * sizeof l->v[0]) < 0)
        return err_set(err, ERR_SETUP, errno, "write the answer");
    l->n = 0;
    return 0;
}

static int list_stack(struct layer_list *l, const char *id, const struct stack_file *f, struct err *err)
{
    char name[LAYER_NAME];
    for (uint32_t i = 0; i < f->n || i == 0; i++) {
        struct stock_layer *r = &l->v[l->n++];
        *r = (struct stock_layer){0};
        (void)snprintf(r->stack, sizeof r->stack, "%s", id);
        if (f->n) {
            layer_hex(f->layer[i], name);
            struct layer_meta m = meta_of(l->j, name);
            memcpy(r->digest, f->layer[i], sizeof r->digest);
            r->bytes = m.bytes;
            r->entries = m.entries;
        }
        if (++l->total > RECORDS_MAX)
            return err_set(err, ERR_LIMIT, 0, "more than %d layers of stacks", (int)RECORDS_MAX);
        if (l->n == AT_ONCE && list_write(l, err) < 0)
            return -1;
    }
    return 0;
}

static int list_step(void *arg, const char *name, struct err *err)
{
    struct layer_list *l = arg;
    struct stack_file f;
    struct err damaged = {0};
    if (stack_name_parse(name).kind != STACK_NAME_STACK || refs_read_file(&l->j->place, name, &f, &damaged) < 0)
        return 0;
    return list_stack(l, name, &f, err);
}

int job_layers_of(struct job *j, const struct stack_file *f, struct err *err)
{
    static struct layer_list l; /* for the life of this process */
    _cleanup_close_ int fd = job_memfd("layers", err);
    l.j = j;
    l.fd = fd;
    if (fd < 0 ||
        (f ? list_stack(&l, j->ask->stack, f, err) : refs_each_name(j->place.stacks, list_step, &l, err)) < 0 ||
        list_write(&l, err) < 0 || job_memfd_seal(fd, err) < 0)
        return -1;
    j->reply_fd = TAKE_FD(fd);
    return 0;
}

int job_layers(struct job *j, struct err *err)
{
    struct stack_file f;
    const char *id = j->ask->stack;
    if (id[0] && stack_read(&j->place, id, &f, err) < 0)
        return err->eno == ENOENT ? job_fail(j, STOCK_NOT_FOUND, err, "there is no stack %s", id) : -1;
    return job_layers_of(j, id[0] ? &f : NULL, err);
}
