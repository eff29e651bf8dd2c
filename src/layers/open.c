/* open.c - reads from stacks: opens one file, or lists the differences between two stacks or a stack and a sandbox. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "base/text.h"
#include "layers/merged.h"
#include "trees/diff.h"

enum { DIFF_RECORDS_MAX = 250000 };

/* Links are followed as a process with that root would follow them. */
int job_open(struct job *j, struct err *err)
{
    struct stat st;
    _cleanup_buf_ struct buf path = {0};
    _cleanup_close_ int root = merged_stack_id(j, j->ask->stack, err);
    if (root < 0)
        return -1;
    text_add_safe(&path, j->ask->path, 200);
    _cleanup_close_ int fd = fd_open_in_root(root, j->ask->path, O_RDONLY | O_NONBLOCK | O_NOCTTY, 0);
    if (fd < 0 && (errno == ENOENT || errno == ENOTDIR))
        return job_fail(j, LAYERS_NOT_FOUND, err, "there is no %s in %s", buf_str(&path), j->ask->stack);
    if (fd < 0 && (errno == ELOOP || errno == ENAMETOOLONG || errno == ENXIO || errno == EACCES))
        return job_fail(j, LAYERS_BAD_REQUEST, err, "%s in %s cannot be opened: %s", buf_str(&path), j->ask->stack,
                        strerror(errno));
    if (fd < 0 || fstat(fd, &st) < 0)
        return err_set(err, ERR_SETUP, errno, "open %s in %s", buf_str(&path), j->ask->stack);
    if (!S_ISREG(st.st_mode))
        return job_fail(j, LAYERS_BAD_REQUEST, err, "%s in %s is no regular file", buf_str(&path), j->ask->stack);
    j->reply.bytes = (uint64_t)st.st_size;
    j->reply_fd = TAKE_FD(fd);
    return 0;
}

static int diff_reply_records(struct job *j, const struct diff *d, struct err *err)
{
    _cleanup_close_ int fd = job_memfd("diff", err);
    if (fd < 0 || diff_to_records(d, fd, err) < 0 || job_memfd_seal(fd, err) < 0)
        return -1;
    j->reply_fd = TAKE_FD(fd);
    return 0;
}

/* Compares with the running sandbox first; if that fails because files change meanwhile, freezes it and tries again. */
static int diff_sandbox(struct job *j, struct diff *d, struct err *err)
{
    struct stack_file f;
    struct job_sandbox b = JOB_SANDBOX_INIT;
    struct err first = {0};
    static struct merged_touch touch; /* for the life of this process, like what refers to it */
    const char *const stacks[] = {j->ask->stack, NULL};
    if (job_sandbox_open(j, j->ask->sandbox, true, &b, err) < 0 || job_sandbox_stack(j, &b, &f, err) < 0 ||
        merged_touch_open(j, &b, &f, stacks, &touch, err) < 0)
        return -1;
    d->wanted = merged_touched;
    d->wanted_arg = &touch;
    _cleanup_close_ int root = merged_sandbox(j, &b, err);
    if (root < 0)
        return -1;
    d->b = root;
    d->shift_b = b.record.range;
    if (diff_reply_records(j, d, &first) == 0)
        return 0;
    if (first.code == ERR_LIMIT) {
        *err = first;
        return -1;
    }
    j->reply.error = LAYERS_OK;
    if (job_sandbox_freeze(j, &b, err) < 0)
        return -1;
    int r = diff_reply_records(j, d, err);
    return job_sandbox_thaw(j, &b, r < 0 ? &first : err) < 0 ? -1 : r;
}

int job_diff(struct job *j, struct err *err)
{
    struct diff d = {.a = -1, .b = -1, .skip = merged_own_files, .max_entries = DIFF_RECORDS_MAX};
    _cleanup_close_ int a = merged_stack_id(j, j->ask->stack, err);
    if (a < 0)
        return -1;
    d.a = a;
    if (j->ask->sandbox[0])
        return diff_sandbox(j, &d, err);
    _cleanup_close_ int b = merged_stack_id(j, j->ask->other, err);
    if (b < 0)
        return -1;
    d.b = b;
    return diff_reply_records(j, &d, err);
}
