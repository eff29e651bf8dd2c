/* spec.c - hands a spec to an init that was cloned before it was complete.
 *
 * Both have the same memory mapped at the same address, so pointers into it hold in both. The caller writes it once, before it
 * says that the spec is there, and never reads it again: what init does to it afterwards can only harm init.
 */
#include <string.h>

#include "wall/inside.h"

struct room {
    char *at;
    size_t left;
    bool full;
};

/* NULL, and the room is full from then on, if there is not that much left. */
static void *room_take(struct room *r, size_t n)
{
    size_t rounded = (n + sizeof(max_align_t) - 1) & ~(sizeof(max_align_t) - 1);
    r->full = r->full || rounded < n || rounded > r->left;
    if (r->full)
        return NULL;
    char *p = r->at;
    r->at += rounded;
    r->left -= rounded;
    return p;
}

static void *room_copy(struct room *r, const void *from, size_t n)
{
    void *to = room_take(r, n);
    if (to && n > 0)
        memcpy(to, from, n);
    return to;
}

static char *room_text(struct room *r, const char *s) { return s ? room_copy(r, s, strlen(s) + 1) : NULL; }

/* A list that ends with NULL. */
static char **room_texts(struct room *r, const char *const *v)
{
    size_t n = 0;
    while (v[n])
        n++;
    char **to = room_take(r, (n + 1) * sizeof *to);
    for (size_t i = 0; to && i < n; i++)
        to[i] = room_text(r, v[i]);
    if (to)
        to[n] = NULL;
    return to;
}

/* As far as init looks at it: why there is an op is the caller's business. */
static const struct plan *room_plan(struct room *r, const struct plan *plan)
{
    struct plan to = {.nops = plan->nops, .cwd = room_text(r, plan->cwd)};
    to.ops = room_copy(r, plan->ops, plan->nops * sizeof *plan->ops);
    for (size_t i = 0; to.ops && i < to.nops; i++) {
        struct plan_op *op = &to.ops[i];
        op->path = room_text(r, op->path);
        op->src = room_text(r, op->src);
        op->rule = NULL;
        op->origin = NULL;
    }
    return room_copy(r, &to, sizeof to);
}

static const struct filter *room_filter(struct room *r, const struct filter *f)
{
    struct filter to = {.n = f->n, .flags = f->flags};
    to.insns = room_copy(r, f->insns, f->n * sizeof *f->insns);
    return room_copy(r, &to, sizeof to);
}

static const struct wall_file *room_files(struct room *r, const struct wall_file *files, size_t n)
{
    struct wall_file *to = room_copy(r, files, n * sizeof *files);
    for (size_t i = 0; to && i < n; i++) {
        to[i].path = room_text(r, files[i].path);
        to[i].bytes = room_copy(r, files[i].bytes, files[i].n);
    }
    return to;
}

const struct wall_spec *spec_copy(const struct wall_spec *s, void *at, size_t size)
{
    struct room r = {.at = at, .left = size};
    if (s->nested || s->cgroup || s->subids || s->learn || s->plan->layers.n > 0)
        return NULL; /* init would have begun in another way */
    struct wall_spec to = *s;
    to.who.cwd = to.who.home = to.who.chdir = to.who.rootdir = NULL;
    to.plan = room_plan(&r, s->plan);
    to.filter = room_filter(&r, s->filter);
    to.argv = room_texts(&r, (const char *const *)s->argv);
    to.env = room_texts(&r, (const char *const *)s->env);
    to.exec_paths = (const char *const *)room_texts(&r, s->exec_paths);
    to.hostname = room_text(&r, s->hostname);
    to.files = room_files(&r, s->files, s->nfiles);
    const struct wall_spec *ret = room_copy(&r, &to, sizeof to);
    return r.full ? NULL : ret;
}
