/* jobs.c - the table of job types, helpers for their functions, and how a job's process answers and ends. */
#include "layers/jobs.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"

_Static_assert((int)TREE_USERXATTR == (int)LAY_USERXATTR, "flags of trees and of lay streams are given on as they are");

enum { PROGRESS_MS = 100 };

static const struct job_type types[] = {
    [LAYERS_CAPTURE] = {.fn = job_capture, .goes_on = true, .writes = true, .adds = true, .urgent = true},
    [LAYERS_DROP] = {.fn = job_drop, .goes_on = true, .writes = true},
    [LAYERS_LIST] = {.fn = job_list},
    [LAYERS_IMPORT] = {.fn = job_import, .class = JOB_TRANSFER, .net = true, .writes = true, .adds = true},
    [LAYERS_CONVERT] = {.fn = job_convert, .class = JOB_TRANSFER, .writes = true},
    [LAYERS_BLOB] = {.fn = job_blob},
    [LAYERS_EXPORT] = {.fn = job_export, .class = JOB_TRANSFER, .reads = true},
    [LAYERS_RESTORE] = {.fn = job_restore, .class = JOB_TRANSFER, .writes = true, .adds = true},
    [LAYERS_DIFF] = {.fn = job_diff, .reads = true},
    [LAYERS_OPEN] = {.fn = job_open},
    [LAYERS_APPLY] = {.fn = job_apply, .goes_on = true, .reads = true},
    [LAYERS_FLATTEN] = {.fn = job_flatten, .class = JOB_UPKEEP, .goes_on = true, .writes = true, .adds = true},
    [LAYERS_VERIFY] = {.fn = job_verify, .class = JOB_UPKEEP, .reads = true},
    [LAYERS_GC] = {.fn = job_gc, .goes_on = true, .removes = true, .lingers = true},
    [LAYERS_DIGEST] = {.fn = job_digest, .class = JOB_UPKEEP},
    [LAYERS_DF] = {.fn = job_df},
    [LAYERS_USAGE] = {.fn = job_usage},
    [LAYERS_OF_STACKS] = {.fn = job_layers},
    [LAYERS_VOLUME_MAKE] = {.fn = job_volume_make, .goes_on = true},
    [LAYERS_VOLUME_DROP] = {.fn = job_volume_drop, .goes_on = true, .lingers = true},
    [LAYERS_VOLUME_STAT] = {.fn = job_volume_stat},
    [LAYERS_VOLUME_RESIZE] = {.fn = job_volume_resize, .goes_on = true},
};

const struct job_type *job_type_of(uint32_t type)
{
    static const struct job_type none;
    return type < ARRAY_LEN(types) ? &types[type] : &none;
}

enum job_class job_class_of(const struct layers_request *q)
{
    const struct job_type *t = job_type_of(q->type);
    return t->net && q->ref[0] ? JOB_PULL : t->class;
}

/* --- for the functions of jobs ------------------------------------------------------------------------------------ */

uint64_t job_now_ms(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

void job_progress(struct job *j, uint64_t done, uint64_t total, const char *text)
{
    static uint64_t last;
    uint64_t now = job_now_ms();
    if (last && now - last < PROGRESS_MS)
        return;
    last = now;
    struct layers_reply r = {
        .version = LAYERS_VERSION, .type = LAYERS_PROGRESS, .request = j->ask->request, .bytes = done, .bytes2 = total};
    (void)snprintf(r.text, sizeof r.text, "%s", text);
    /* If front is slow, drop the message: the next one replaces it. */
    (void)send(j->sock, &r, sizeof r, MSG_NOSIGNAL | MSG_DONTWAIT);
}

void job_tmp_name(struct job *j, char ret[LAYERS_TMP_NAME])
{
    (void)snprintf(ret, LAYERS_TMP_NAME, "t%llu-%u", (unsigned long long)j->serial, j->ntmp++);
}

int job_tmp(struct job *j, bool root, char ret[LAYERS_TMP_NAME], struct err *err)
{
    job_tmp_name(j, ret);
    if (mkdirat(j->place.tmp, ret, 0700) < 0)
        return err_set(err, ERR_SETUP, errno, "make a directory for work under way");
    int dir = openat(j->place.tmp, ret, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (dir < 0)
        return err_set(err, ERR_SETUP, errno, "open a directory for work under way");
    if (!root)
        return dir;
    int made = mkdirat(dir, "root", 0755);
    int fd = made < 0 ? -1 : openat(dir, "root", O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        (void)err_set(err, ERR_SETUP, errno, "make a directory for a new layer");
    (void)close(dir);
    return fd;
}

int job_fail(struct job *j, enum layers_error code, struct err *err, const char *fmt, ...)
{
    char text[sizeof err->msg];
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    j->reply.error = (uint32_t)code;
    return err_set(err, ERR_SETUP, 0, "%s", text);
}

void job_error(struct layers_reply *r, const struct err *err)
{
    if (r->error == LAYERS_OK)
        r->error = err->eno == ENOSPC || err->eno == EDQUOT ? LAYERS_NO_SPACE
                   : err->code == ERR_LIMIT                 ? LAYERS_TOO_LARGE
                   : err->code == ERR_USAGE                 ? LAYERS_BAD_DATA
                   : err->code == ERR_HOST                  ? LAYERS_HOST
                                                            : LAYERS_FAILED;
    (void)snprintf(r->text, sizeof r->text, "%.*s", (int)sizeof r->text - 1,
                   err->msg[0] ? err->msg : "no reason was given");
}

/* --- its process -------------------------------------------------------------------------------------------------- */

static int job_send_reply(struct job *j)
{
    return fd_send(j->sock, &j->reply, sizeof j->reply, &j->reply_fd, j->reply_fd >= 0 ? 1 : 0);
}

int job_answer(struct job *j, struct err *err)
{
    if (job_send_reply(j) < 0)
        return err_set(err, ERR_INTERNAL, errno, "answer");
    j->reply.type = 0; /* job_run() must not send it again */
    return 0;
}

void job_run(struct job *j, job_fn *fn)
{
    struct err err = {0};
    j->reply.version = LAYERS_VERSION;
    j->reply.type = LAYERS_REPLY;
    j->reply.request = j->ask->request;
    j->reply_fd = -1;
    if (fn(j, &err) < 0) {
        job_error(&j->reply, &err);
        j->reply_fd = -1; /* it may be incomplete */
    }
    if (j->reply.type != LAYERS_REPLY)
        _exit(0);
    _exit(job_send_reply(j) < 0 ? 1 : 0);
}
