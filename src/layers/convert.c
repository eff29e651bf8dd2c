/* convert.c - converts an uploaded tar to a lay stream in blobs/, which template builds can unpack any number of
 * times. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/text.h"
#include "layers/jobs.h"
#include "layers/refs.h"
#include "layers/worker.h"

#define BYTES_MAX (UINT64_C(64) << 30) /* a worker's maximum, and its default */

/* Sums the bytes of all blobs whose names begin with the same LAYERS_BLOB_OWNER digits as the request's. */
struct owned {
    const struct job *job;
    uint64_t bytes;
};
static int convert_count_owned(void *arg, const char *name, struct err *err)
{
    struct owned *o = arg;
    struct stat st;
    (void)err;
    if (strncmp(name, o->job->ask->blob, LAYERS_BLOB_OWNER) == 0 &&
        fstatat(o->job->place.blobs, name, &st, AT_SYMLINK_NOFOLLOW) == 0)
        o->bytes += (uint64_t)st.st_size;
    return 0;
}

static int convert_refuse_size(struct job *j, uint64_t have, struct err *err)
{
    return job_fail(j, LAYERS_TOO_LARGE, err,
                    "uploads may take %" PRIu64 " bytes together (builds.uploads_bytes), and earlier ones take %" PRIu64
                    "; they are removed after a week",
                    j->ask->bytes, have);
}

static int convert_run(struct job *j, uint64_t max, int out, struct image_message *msg, struct err *err)
{
    char bytes[24], entries[24];
    (void)snprintf(bytes, sizeof bytes, "%" PRIu64, max < BYTES_MAX ? max : 0);
    (void)snprintf(entries, sizeof entries, "%" PRIu64, j->ask->entries);
    const struct worker_plan plan = {
        .args = {"layer", "--max-bytes", bytes, "--max-entries", entries}, .in = j->fds[0], .out = out, .more = -1};
    _cleanup_worker_ struct worker w = WORKER_INIT;
    if (worker_begin(j, &plan, &w, err) < 0 || worker_next(&w, msg, NULL, err) < 0)
        return -1;
    return msg->type == IMAGE_DONE ? 0
                                   : job_fail(j, LAYERS_BAD_DATA, err, "the image worker said something out of turn");
}

int job_convert(struct job *j, struct err *err)
{
    char name[LAYERS_TMP_NAME];
    struct image_message msg;
    struct stat st;
    struct owned owned = {.job = j};
    _cleanup_buf_ struct buf note = {0};
    if (faccessat(j->place.blobs, j->ask->blob, F_OK, AT_SYMLINK_NOFOLLOW) == 0)
        return 0;
    if (refs_each_name(j->place.blobs, convert_count_owned, &owned, err) < 0)
        return -1;
    uint64_t left = j->ask->bytes > owned.bytes ? j->ask->bytes - owned.bytes : 0;
    if (j->ask->bytes && left == 0)
        return convert_refuse_size(j, owned.bytes, err);
    job_tmp_name(j, name);
    _cleanup_close_ int out = openat(j->place.tmp, name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (out < 0)
        return err_set(err, ERR_SETUP, errno, "make a file for work under way");
    if (convert_run(j, left, out, &msg, err) < 0)
        return owned.bytes && j->reply.error == LAYERS_TOO_LARGE ? convert_refuse_size(j, owned.bytes, err) : -1;
    if (fstat(out, &st) < 0 || (j->ask->bytes && (uint64_t)st.st_size > left))
        return convert_refuse_size(j, owned.bytes, err);
    if (fsync(out) < 0 || renameat(j->place.tmp, name, j->place.blobs, j->ask->blob) < 0 || fsync(j->place.blobs) < 0)
        return err_set(err, ERR_SETUP, errno, "put the upload in its place");
    j->reply.bytes = msg.done;
    j->reply.entries = msg.total;
    msg.text[IMAGE_TEXT_MAX - 1] = '\0';
    text_add_safe(&note, msg.text, IMAGE_TEXT_MAX);
    (void)snprintf(j->reply.text, sizeof j->reply.text, "%.*s", (int)sizeof j->reply.text - 1, buf_str(&note));
    return 0;
}
