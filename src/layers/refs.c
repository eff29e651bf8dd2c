/* refs.c - see refs.h. */
#include "layers/refs.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/mem.h"
#include "base/num.h"
#include "keeper/outer.h"
#include "keeper/request.h"

/* --- names -------------------------------------------------------------------------------------------------------- */

static uint64_t ticks_per_second(void)
{
    long n = sysconf(_SC_CLK_TCK);
    return n > 0 ? (uint64_t)n : 100;
}

uint64_t refs_grace_ticks(void) { return REFS_GRACE_S * ticks_per_second(); }

uint64_t refs_now(char boot[REFS_BOOT])
{
    struct timespec t;
    char whole[JOURNAL_BOOT];
    journal_boot_id(whole);
    (void)snprintf(boot, REFS_BOOT, "%.*s", REFS_BOOT - 1, whole);
    (void)clock_gettime(CLOCK_BOOTTIME, &t);
    return (uint64_t)t.tv_sec * ticks_per_second() + (uint64_t)t.tv_nsec * ticks_per_second() / 1000000000;
}

struct stack_name stack_name_parse(const char *name)
{
    struct stack_name r = {.kind = STACK_NAME_OTHER};
    size_t n = strcspn(name, ".");
    if (n >= sizeof r.id)
        return r;
    memcpy(r.id, name, n);
    if (!stack_id_valid(r.id))
        return r;
    const char *rest = name + n;
    if (!*rest)
        r.kind = STACK_NAME_STACK;
    else if (strcmp(rest, ".drop") == 0)
        r.kind = STACK_NAME_DROP;
    size_t head = strncmp(rest, ".gone-", 6) == 0 ? 6 : strncmp(rest, ".was-", 5) == 0 ? 5 : 0;
    const char *dash = head ? strchr(rest + head, '-') : NULL;
    if (!dash || dash - rest - (long)head != REFS_BOOT - 1 || !num_u64(dash + 1, &r.ticks))
        return r;
    memcpy(r.boot, rest + head, REFS_BOOT - 1);
    r.kind = head == 6 ? STACK_NAME_GONE : STACK_NAME_WAS;
    return r;
}

void stack_name_now(enum stack_name_kind kind, const char *id, char ret[REFS_NAME_MAX])
{
    char boot[REFS_BOOT];
    uint64_t now = refs_now(boot);
    (void)snprintf(ret, REFS_NAME_MAX, "%s.%s-%s-%llu", id, kind == STACK_NAME_GONE ? "gone" : "was", boot,
                   (unsigned long long)now);
}

bool layer_name_valid(const char *name)
{
    return strlen(name) == LAYER_NAME - 1 && strspn(name, "0123456789abcdef") == LAYER_NAME - 1;
}

int refs_each_name(int dir, int (*each)(void *arg, const char *name, struct err *err), void *arg, struct err *err)
{
    int copy = openat(dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    _cleanup_closedir_ DIR *d = copy < 0 ? NULL : fdopendir(copy);
    const struct dirent *e;
    if (!d) {
        int eno = errno;
        if (copy >= 0)
            (void)close(copy);
        return err_set(err, ERR_SETUP, eno, "read a directory of the store");
    }
    errno = 0;
    while ((e = readdir(d))) {
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0 && each(arg, e->d_name, err) < 0)
            return -1;
        errno = 0;
    }
    /* A failed readdir() is not the end of the directory. */
    return errno ? err_set(err, ERR_SETUP, errno, "read a directory of the store") : 0;
}

/* --- layers ------------------------------------------------------------------------------------------------------- */

int refs_read_file(const struct layers_place *p, const char *name, struct stack_file *ret, struct err *err)
{
    struct stack_file f;
    char more;
    _cleanup_close_ int fd = openat(p->stacks, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0)
        return err_set(err, ERR_SETUP, errno, "open stacks/%s", name);
    ssize_t n = pread(fd, &f, sizeof f, 0), after = pread(fd, &more, 1, sizeof f);
    if (n < 0 || after < 0)
        return err_set(err, ERR_SETUP, errno, "read stacks/%s", name);
    if (n != sizeof f || after != 0 || !stack_file_valid(&f))
        return err_set(err, ERR_SETUP, 0, "stacks/%s is damaged", name);
    *ret = f;
    return 0;
}

static struct refs_layer *refs_layer_of(struct refs *r, const uint8_t digest[SHA256_BYTES])
{
    char hex[LAYER_NAME];
    sha256_text(digest, hex);
    struct refs_layer *l = map_get(&r->layers, hex);
    if (l)
        return l;
    l = xcalloc(1, sizeof *l);
    memcpy(l->name, hex, sizeof hex);
    MEM_GROW(r->v, r->n, r->cap); /* NOLINT(bugprone-sizeof-expression): pointers */
    r->v[r->n++] = l;
    (void)map_put(&r->layers, l->name, l);
    return l;
}

struct reading {
    const struct layers_place *p;
    struct refs *r;
};

static int refs_on_stack_file(void *arg, const char *name, struct err *err)
{
    struct reading *x = arg;
    struct stack_file f = {.n = 0};
    struct err one = {0};
    (void)err;
    struct stack_name n = stack_name_parse(name);
    if (n.kind == STACK_NAME_OTHER || n.kind == STACK_NAME_DROP)
        return 0;
    if (refs_read_file(x->p, name, &f, &one) < 0) {
        if (one.eno != ENOENT)
            (void)snprintf(x->r->damaged, sizeof x->r->damaged, "%s", name);
        return 0;
    }
    for (uint32_t i = 0; i < f.n; i++) {
        struct refs_layer *l = refs_layer_of(x->r, f.layer[i]);
        bool twice = n.kind == STACK_NAME_STACK && strcmp(l->by, n.id) == 0;
        l->held = true;
        if (n.kind == STACK_NAME_STACK && !twice) {
            l->stacks++;
            (void)snprintf(l->by, sizeof l->by, "%s", n.id);
        }
    }
    return 0;
}

int refs_read(const struct layers_place *p, struct refs *ret, struct err *err)
{
    *ret = (struct refs){0};
    return refs_each_name(p->stacks, refs_on_stack_file, &(struct reading){p, ret}, err);
}

const struct refs_layer *refs_get(const struct refs *r, const char *layer) { return map_get(&r->layers, layer); }

void refs_done(struct refs *r)
{
    for (size_t i = 0; i < r->n; i++)
        free(r->v[i]);
    free(r->v);
    map_done(&r->layers);
    *r = (struct refs){0};
}

/* --- sandboxes ---------------------------------------------------------------------------------------------------- */

struct looking {
    int journal;
    char boot[JOURNAL_BOOT];
    struct livings *l;
};

/* Not journal_each(): that belongs to keeper, which is writing while we read. */
static int livings_on_record(void *arg, const char *name, struct err *err)
{
    struct looking *x = arg;
    struct journal_record r;
    (void)err;
    if (!keeper_id_valid(name))
        return 0;
    if (journal_read_beside(x->journal, name, &r) < 0) {
        if (errno != ENOENT)
            (void)snprintf(x->l->damaged, sizeof x->l->damaged, "%s", name);
        return 0;
    }
    MEM_GROW(x->l->v, x->l->n, x->l->cap);
    struct living *l = &x->l->v[x->l->n++];
    *l = (struct living){.start = r.start};
    (void)snprintf(l->id, sizeof l->id, "%s", r.id);
    (void)snprintf(l->template, sizeof l->template, "%s", r.template);
    memcpy(l->volume, r.volume, sizeof l->volume);
    if (r.state == JOURNAL_DEAD || strcmp(r.boot, x->boot) != 0)
        return 0;
    _cleanup_close_ int pidfd = adopt_pidfd(&r, x->boot);
    l->alive = pidfd >= 0 || r.pid == 0;
    return 0;
}

int livings_read(int run_dir, struct livings *ret, struct err *err)
{
    struct looking x = {.l = ret};
    *ret = (struct livings){0};
    journal_boot_id(x.boot);
    _cleanup_close_ int journal = journal_open(run_dir, err);
    if (journal < 0)
        return -1;
    x.journal = journal;
    int r = refs_each_name(journal, livings_on_record, &x, err);
    for (size_t i = 0; i < ret->n; i++) {
        struct living *l = &ret->v[i];
        l->same = map_put(&ret->by_stack, l->template, l);
        (void)map_put(&ret->by_id, l->id, l);
    }
    return r;
}

const struct living *livings_get(const struct livings *l, const char *id) { return map_get(&l->by_id, id); }

const struct living *livings_find(const struct livings *l, const char *stack, uint64_t ticks)
{
    for (const struct living *one = map_get(&l->by_stack, stack); one; one = one->same)
        if (one->alive && (ticks == 0 || one->start <= ticks))
            return one;
    return NULL;
}

const struct living *livings_volume(const struct livings *l, const char *volume)
{
    for (size_t i = 0; i < l->n; i++)
        for (size_t k = 0; l->v[i].alive && k < KEEPER_VOLUMES_MAX; k++)
            if (strcmp(l->v[i].volume[k], volume) == 0)
                return &l->v[i];
    return NULL;
}

void livings_done(struct livings *l)
{
    map_done(&l->by_stack);
    map_done(&l->by_id);
    free(l->v);
    *l = (struct livings){0};
}
