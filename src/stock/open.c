/* open.c - reading what is in a stack: one file, or what is different between two. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "base/text.h"
#include "stock/diff.h"
#include "stock/merged.h"

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
        return job_fail(j, STOCK_NOT_FOUND, err, "there is no %s in %s", buf_str(&path), j->ask->stack);
    if (fd < 0 && (errno == ELOOP || errno == ENAMETOOLONG || errno == ENXIO || errno == EACCES))
        return job_fail(j, STOCK_BAD_REQUEST, err, "%s in %s cannot be opened: %s", buf_str(&path), j->ask->stack,
                        strerror(errno));
    if (fd < 0 || fstat(fd, &st) < 0)
        return err_set(err, ERR_SETUP, errno, "open %s in %s", buf_str(&path), j->ask->stack);
    if (!S_ISREG(st.st_mode))
        return job_fail(j, STOCK_BAD_REQUEST, err, "%s in %s is no regular file", buf_str(&path), j->ask->stack);
    j->reply.bytes = (uint64_t)st.st_size;
    j->reply_fd = TAKE_FD(fd);
    return 0;
}

static int records(struct job *j, const struct diff *d, struct err *err)
{
    _cleanup_close_ int fd = job_memfd("diff", err);
    if (fd < 0 || diff_to_records(d, fd, err) < 0 || job_memfd_seal(fd, err) < 0)
        return -1;
    j->reply_fd = TAKE_FD(fd);
    return 0;
}

/* It changes while it is read. If that goes wrong it has to stand still for a moment. */
static int diff_box(struct job *j, struct diff *d, struct err *err)
{
    struct stack_file f;
    struct job_box b = JOB_BOX_INIT;
    struct err first = {0};
    static struct merged_touch touch; /* for the life of this process, like what refers to it */
    const char *const stacks[] = {j->ask->stack, NULL};
    if (job_box_open(j, j->ask->box, true, &b, err) < 0 || job_box_stack(j, &b, &f, err) < 0 ||
        merged_touch_open(j, &b, &f, stacks, &touch, err) < 0)
        return -1;
    d->wanted = merged_touched;
    d->wanted_arg = &touch;
    _cleanup_close_ int root = merged_box(j, &b, err);
    if (root < 0)
        return -1;
    d->b = root;
    d->shift_b = b.record.range;
    if (records(j, d, &first) == 0)
        return 0;
    if (first.code == ERR_LIMIT) {
        *err = first;
        return -1;
    }
    j->reply.error = STOCK_OK;
    if (job_box_freeze(j, &b, err) < 0)
        return -1;
    int r = records(j, d, err);
    return job_box_thaw(j, &b, r < 0 ? &first : err) < 0 ? -1 : r;
}

int job_diff(struct job *j, struct err *err)
{
    struct diff d = {.a = -1, .b = -1, .skip = merged_own_files, .max_entries = DIFF_RECORDS_MAX};
    _cleanup_close_ int a = merged_stack_id(j, j->ask->stack, err);
    if (a < 0)
        return -1;
    d.a = a;
    if (j->ask->box[0])
        return diff_box(j, &d, err);
    _cleanup_close_ int b = merged_stack_id(j, j->ask->other, err);
    if (b < 0)
        return -1;
    d.b = b;
    return records(j, &d, err);
}
