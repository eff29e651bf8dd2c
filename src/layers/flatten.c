/* flatten.c - merges many layers into one: lookups are slow in overlays of many layers, and the number of layers is
 * limited. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "layers/merged.h"
#include "layers/numbers.h"
#include "layers/refs.h"
#include "trees/diff.h"

enum { KEEP_IMPORTS_MAX = STACK_FLATTEN_AT / 2 };

/* How many layers at the bottom stay, because other stacks share them: those of an image if they are few, else the
 * lowest one; none over a template's directory. */
static size_t flatten_keeps_below(const struct job *j, const struct stack_file *f)
{
    struct layer_meta m;
    struct err err = {0};
    char name[LAYER_NAME];
    size_t n = 0;
    if (f->base[0])
        return 0;
    for (; n < f->n; n++) {
        sha256_text(f->layer[f->n - 1 - n], name);
        if (layer_meta_read(&j->place, name, &m, &err) < 0 || m.kind != LAYER_IMPORT)
            break;
    }
    return n >= 1 && n <= KEEP_IMPORTS_MAX && f->n - n >= 2 ? n : f->n ? 1 : 0;
}

static void flatten_write_stream(const struct diff *d, int fd, struct err *err)
{
    static struct lay_out out; /* large */
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
    (void)signal(SIGPIPE, SIG_IGN);
    lay_out_start(&out, fd);
    _exit(diff_to_lay(d, &out, err) < 0 ? 1 : 0);
}

static bool flatten_on_progress(void *arg, const struct lay_done *d)
{
    job_progress(arg, d->bytes, 0, "making one layer");
    return true;
}

/* The sum of the layers plus 1 GiB: this file system may allocate in larger pieces. */
static struct lay_limits flatten_limits(const struct job *j, const struct stack_file *f, size_t n)
{
    struct lay_limits l = {.bytes = UINT64_C(64) << 30};
    uint64_t sum = UINT64_C(1) << 30;
    for (size_t i = 0; i < n; i++) {
        struct layer_meta m;
        struct err err = {0};
        char name[LAYER_NAME];
        sha256_text(f->layer[i], name);
        sum += layer_meta_read(&j->place, name, &m, &err) == 0 ? m.bytes : 0;
    }
    l.bytes = sum > l.bytes ? sum : l.bytes;
    return l;
}

/* If both sides fail, report the writer's error: the reader only saw a stream that broke off. A writer that failed with
 * EPIPE failed because of the reader, whose error then counts. */
static int flatten_stream_into(struct job *j, const struct diff *d, const struct lay_limits *limits, int root,
                               struct err *err)
{
    int fds[2], status = 0;
    struct err *said = mmap(NULL, sizeof *said, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (said == MAP_FAILED || pipe2(fds, O_CLOEXEC) < 0)
        return err_set(err, ERR_SETUP, errno, "prepare to make one layer of many");
    pid_t pid = fork();
    if (pid == 0) {
        (void)close(fds[0]);
        flatten_write_stream(d, fds[1], said);
    }
    (void)close(fds[1]);
    int r = pid < 0 ? err_set(err, ERR_SETUP, errno, "start a process")
                    : lay_read(fds[0], root, j->tree_flags | LAY_WHOLE, limits, flatten_on_progress, j, NULL, err);
    (void)close(fds[0]);
    while (pid > 0 && waitpid(pid, &status, 0) < 0 && errno == EINTR)
        ;
    if (pid > 0 && status != 0 && said->code && !(r < 0 && said->eno == EPIPE)) {
        *err = *said;
        r = -1;
    } else if (pid > 0 && status != 0 && r == 0) {
        r = err_set(err, ERR_SETUP, 0, "the process that reads the layers ended with status %d", status);
    }
    (void)munmap(said, sizeof *said);
    return r;
}

int stack_flatten(struct job *j, struct stack_file *f, struct err *err)
{
    char name[LAYERS_TMP_NAME];
    struct layer_meta m;
    size_t keep = flatten_keeps_below(j, f);
    if (f->n - keep < 2)
        return 0;
    if (numbers_raise_store(&j->place, f, err) < 0)
        return -1;
    _cleanup_close_ int below = merged_stack(j, f, f->n - keep, err);
    _cleanup_close_ int all = below < 0 ? -1 : merged_stack(j, f, 0, err);
    _cleanup_close_ int root = all < 0 ? -1 : job_tmp(j, true, name, err);
    if (root < 0)
        return -1;
    const struct diff d = {.a = below, .b = all, .flags = DIFF_WITH_TIMES};
    const struct lay_limits limits = flatten_limits(j, f, f->n - keep);
    if (flatten_stream_into(j, &d, &limits, root, err) < 0 ||
        layer_commit(&j->place, name, LAYER_FLAT, NULL, j->tree_flags, &m, err) < 0)
        return err_wrap(err, "make one layer of %zu", f->n - keep);
    memmove(f->layer[1], f->layer[f->n - keep], keep * sizeof f->layer[0]);
    memcpy(f->layer[0], m.digest, sizeof m.digest);
    memset(f->layer[keep + 1], 0, (STACK_LAYERS_MAX - keep - 1) * sizeof f->layer[0]);
    f->n = (uint32_t)keep + 1;
    stack_file_seal(f);
    j->reply.bytes = m.bytes;
    j->reply.entries = m.entries;
    return 0;
}

/* Keeps the former stack file under a second name until no sandbox uses its layers (refs.h). */
static int flatten_keep_former(struct job *j, const char *id, struct err *err)
{
    char was[REFS_NAME_MAX];
    stack_name_now(STACK_NAME_WAS, id, was);
    if (linkat(j->place.stacks, id, j->place.stacks, was, 0) < 0 && errno != EEXIST)
        return err_set(err, ERR_SETUP, errno, "keep the former state of %s", id);
    return fsync(j->place.stacks) < 0 ? err_set(err, ERR_SETUP, errno, "sync the directory of stacks") : 0;
}

int job_flatten(struct job *j, struct err *err)
{
    struct stack_file f;
    const char *id = j->ask->stack;
    if (stack_read(&j->place, id, &f, err) < 0)
        return err->eno == ENOENT ? job_fail(j, LAYERS_NOT_FOUND, err, "there is no stack %s", id) : -1;
    uint32_t before = f.n;
    if (stack_flatten(j, &f, err) < 0)
        return -1;
    if (f.n == before)
        return 0;
    return flatten_keep_former(j, id, err) < 0 ? -1 : stack_write(&j->place, id, &f, err);
}
