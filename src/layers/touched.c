/* touched.c - finds whether a sandbox, or a capture of it, has changed a path at all.
 *
 * Between the layers of its stack and its own upper a living sandbox has one more layer, with the node's certificates;
 * a stack has none. So if neither the upper nor the captures above the common layers hold a path, a difference there
 * comes from that layer and does not count.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "layers/merged.h"
#include "layers/refs.h"

/* An opaque or redirected directory: nothing in it comes from the same path of lower layers. */
static bool is_apart(int dir, bool userxattr)
{
    static const char *const names[2][2] = {{"trusted.overlay.opaque", "trusted.overlay.redirect"},
                                            {"user.overlay.opaque", "user.overlay.redirect"}};
    return fgetxattr(dir, names[userxattr][0], NULL, 0) > 0 || fgetxattr(dir, names[userxattr][1], NULL, 0) > 0;
}

static bool layer_touches(int root, const char *path, bool userxattr)
{
    char name[LAY_NAME_MAX + 1];
    struct stat st;
    _cleanup_close_ int dir = openat(root, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    for (const char *p = path; dir >= 0 && *p;) {
        size_t n = strcspn(p, "/");
        if (n > LAY_NAME_MAX)
            return true;
        memcpy(name, p, n);
        name[n] = '\0';
        p += n + (p[n] == '/');
        if (fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
            return errno != ENOENT;
        if (!S_ISDIR(st.st_mode) || !*p)
            return true;
        int next = openat(dir, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (next < 0 || is_apart(next, userxattr)) {
            if (next >= 0)
                (void)close(next);
            return true;
        }
        (void)close(dir);
        dir = next;
    }
    return true;
}

bool merged_touched(void *arg, const char *path)
{
    const struct merged_touch *t = arg;
    for (size_t i = 0; i < t->n; i++)
        if (layer_touches(t->fds[i], path, t->userxattr))
            return true;
    return t->n == 0;
}

/* Adds the layers of `f` above those of `own`; 1 if `own` is not the bottom of `f`. */
static int touch_add_own_layers(struct job *j, const struct stack_file *own, const struct stack_file *f,
                                struct merged_touch *t, struct err *err)
{
    if (f->n < own->n || strcmp(f->base, own->base) != 0 ||
        memcmp(f->layer[f->n - own->n], own->layer[0], own->n * sizeof own->layer[0]) != 0)
        return 1;
    for (size_t i = 0; i < f->n - own->n; i++) {
        int fd = layer_open(&j->place, f->layer[i], err);
        if (fd < 0)
            return -1;
        t->fds[t->n++] = fd;
    }
    return 0;
}

struct former {
    struct job *j;
    const char *id;
    const struct stack_file *f;
    struct merged_touch *t;
    int result; /* 1: none fits */
};

static int touch_on_stack_file(void *arg, const char *name, struct err *err)
{
    struct former *x = arg;
    struct stack_file was;
    struct err damaged = {0};
    struct stack_name n = stack_name_parse(name);
    if (x->result <= 0 || n.kind != STACK_NAME_WAS || strcmp(n.id, x->id) != 0 ||
        refs_read_file(&x->j->place, name, &was, &damaged) < 0)
        return 0;
    x->result = touch_add_own_layers(x->j, &was, x->f, x->t, err);
    return x->result < 0 ? -1 : 0;
}

/* The stack that the sandbox was made from may have been flattened since, and `f` was captured before that. */
static int touch_add_layers(struct job *j, const char *id, const struct stack_file *own, const struct stack_file *f,
                            struct merged_touch *t, struct err *err)
{
    int r = touch_add_own_layers(j, own, f, t, err);
    struct former x = {j, id, f, t, 1};
    if (r <= 0 || !stack_id_valid(id))
        return r;
    return refs_each_name(j->place.stacks, touch_on_stack_file, &x, err) < 0 ? -1 : x.result;
}

static bool names_layer(const struct stack_file *f, const uint8_t layer[SHA256_BYTES])
{
    for (size_t i = 0; i < f->n; i++)
        if (memcmp(f->layer[i], layer, SHA256_BYTES) == 0)
            return true;
    return false;
}

/* Adds the layers of `f` that `without` does not have. */
static int touch_add_others(struct job *j, const struct stack_file *f, const struct stack_file *without,
                            struct merged_touch *t, struct err *err)
{
    for (size_t i = 0; i < f->n && t->n + 1 < ARRAY_LEN(t->fds); i++) {
        if (names_layer(without, f->layer[i]))
            continue;
        int fd = layer_open(&j->place, f->layer[i], err);
        if (fd < 0)
            return -1;
        t->fds[t->n++] = fd;
    }
    return 0;
}

int merged_touch_open(struct job *j, const struct job_sandbox *b, const struct stack_file *own,
                      const char *const *stacks, struct merged_touch *ret, struct err *err)
{
    *ret = (struct merged_touch){.userxattr = j->tree_flags & TREE_USERXATTR};
    for (; *stacks; stacks++) {
        struct stack_file f;
        if (stack_read(&j->place, *stacks, &f, err) < 0)
            return -1;
        int r = touch_add_layers(j, b->record.template, own, &f, ret, err);
        if (r < 0)
            return -1;
        if (r > 0 && strcmp(f.base, own->base) != 0) { /* of another template: compare all paths */
            ret->n = 0;
            return 0;
        }
        /* One of them was flattened: add the layers that only one of them has. */
        if (r > 0 && (touch_add_others(j, &f, own, ret, err) < 0 || touch_add_others(j, own, &f, ret, err) < 0))
            return -1;
    }
    ret->fds[ret->n++] = b->upper;
    return 0;
}
