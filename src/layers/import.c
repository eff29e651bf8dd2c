/* import.c - turns images into stacks. The job never reads an archive: a worker does and hands over lay streams, which
 * lay_read() checks and unpacks here.
 *
 * A worker that a malicious archive has taken over may report any diff_id. So the job never looks up layers by diff_id,
 * which would let one tenant's worker choose the content of another's image: every import unpacks its own layers, and
 * layer_commit(), which computes the digest itself, drops a layer that is there already.
 */
#include "layers/import.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "base/mem.h"
#include "base/text.h"
#include "layers/worker.h"

enum { COPY_BYTES = 256 << 10, NUMBER_ROOM = 24 };

struct import_pace import_pace = {.silence_ms = 60 * 1000, .total_ms = 3600 * 1000};

#define SPOOL_MAX (UINT64_C(64) << 30)

struct import {
    struct job *job;
    struct worker worker;
    int pipe;                                      /* its output */
    uint32_t count;                                /* of the layers, as the worker said first */
    uint8_t layer[IMAGE_LAYERS_MAX][SHA256_BYTES]; /* bottom first */
    size_t n;
    struct lay_limits left;
    bool alone; /* the layer that was read last hides all below it */
    /* If the image has more layers than a stack holds: so many of the lowest become one. */
    uint32_t squash;
    int squash_root;
    char squash_tmp[LAYERS_TMP_NAME];
    uint64_t dropped;
    char note[200];
};

int import_file(struct job *j, struct err *err)
{
    char name[LAYERS_TMP_NAME];
    job_tmp_name(j, name);
    int fd = openat(j->place.tmp, name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0)
        return err_set(err, ERR_SETUP, errno, "make a file for work under way");
    (void)unlinkat(j->place.tmp, name, 0);
    return fd;
}

bool import_done(const struct job *j)
{
    struct stack_file f;
    struct err ignored;
    return stack_read(&j->place, j->ask->stack, &f, &ignored) == 0;
}

int import_seekable(struct job *j, int fd, struct err *err)
{
    struct stat st;
    uint64_t done = 0;
    if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode))
        return fcntl(fd, F_DUPFD_CLOEXEC, 3);
    _cleanup_free_ char *block = xmalloc(COPY_BYTES);
    _cleanup_close_ int out = import_file(j, err);
    ssize_t n = -1;
    for (uint64_t began = job_now_ms(); out >= 0; job_progress(j, done, 0, "receiving")) {
        struct pollfd p = {.fd = fd, .events = POLLIN};
        if (job_now_ms() - began > import_pace.total_ms || poll(&p, 1, (int)import_pace.silence_ms) == 0)
            return job_fail(j, LAYERS_BAD_DATA, err, "the archive does not come: nothing for %u s, or not all in %u s",
                            import_pace.silence_ms / 1000, import_pace.total_ms / 1000);
        if ((n = read(fd, block, COPY_BYTES)) == 0)
            break;
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 || fd_write_all(out, block, (size_t)n) < 0)
            return err_set(err, ERR_SETUP, errno, "take the archive in");
        done += (uint64_t)n;
        if (done > SPOOL_MAX)
            return err_set(err, ERR_LIMIT, 0, "the archive is larger than 64 GiB");
    }
    return n < 0 ? -1 : TAKE_FD(out);
}

/* --- layers ------------------------------------------------------------------------------------------------------- */

static void import_add_layer(struct import *m, const uint8_t digest[SHA256_BYTES], uint64_t bytes, uint64_t entries)
{
    /* Overlay accepts a directory only once. If the layer comes again, as empty ones do, the upper one hides the
     * lower. */
    for (size_t i = 0; i < m->n; i++) {
        if (memcmp(m->layer[i], digest, SHA256_BYTES) != 0)
            continue;
        memmove(m->layer[i], m->layer[i + 1], (m->n - i - 1) * SHA256_BYTES);
        m->n--;
        break;
    }
    memcpy(m->layer[m->n++], digest, SHA256_BYTES);
    m->job->reply.bytes += bytes;
    m->job->reply.entries += entries;
}

static bool import_on_progress(void *arg, const struct lay_done *d)
{
    const struct import *m = arg;
    worker_waits(true);
    job_progress(m->job, m->job->reply.bytes + d->bytes, 0, "unpacking");
    return true;
}

static int import_read_stream(struct import *m, int root, unsigned flags, struct err *err)
{
    struct lay_done done = {0};
    worker_waits(true);
    int rc = lay_read(m->pipe, root, flags, &m->left, import_on_progress, m, &done, err);
    worker_waits(false);
    /* If the stream ended early, the worker knows the reason. */
    if (rc < 0)
        return err->eno == 0 && err->code == ERR_USAGE ? worker_blame(&m->worker, err) : -1;
    m->left.bytes -= done.bytes < m->left.bytes ? done.bytes : m->left.bytes - 1;
    m->left.entries -= done.entries < m->left.entries ? done.entries : m->left.entries - 1;
    m->left.file = m->left.bytes;
    m->alone = done.alone;
    m->dropped += done.dropped;
    if (done.dropped && !m->note[0])
        memcpy(m->note, done.note, sizeof m->note);
    return 0;
}

static int import_new_layer(struct import *m, const uint8_t diff_id[SHA256_BYTES], struct err *err)
{
    struct job *j = m->job;
    char tmp[LAYERS_TMP_NAME];
    struct layer_meta meta;
    _cleanup_close_ int root = job_tmp(j, true, tmp, err);
    if (root < 0 || worker_answer(&m->worker, IMAGE_GO, err) < 0 ||
        import_read_stream(m, root, j->tree_flags, err) < 0 ||
        layer_commit(&j->place, tmp, LAYER_IMPORT, diff_id, j->tree_flags, &meta, err) < 0)
        return -1;
    if (m->alone)
        m->n = m->job->reply.bytes = m->job->reply.entries = 0;
    import_add_layer(m, meta.digest, meta.bytes, meta.entries);
    return 0;
}

static int import_squash_layer(struct import *m, uint32_t index, struct err *err)
{
    struct job *j = m->job;
    struct layer_meta meta;
    if (index == 0 && (m->squash_root = job_tmp(j, true, m->squash_tmp, err)) < 0)
        return -1;
    if (worker_answer(&m->worker, IMAGE_GO, err) < 0 ||
        import_read_stream(m, m->squash_root, j->tree_flags | LAY_PLAIN, err) < 0)
        return -1;
    if (index + 1 < m->squash)
        return 0;
    (void)close(m->squash_root);
    if (layer_commit(&j->place, m->squash_tmp, LAYER_FLAT, NULL, j->tree_flags, &meta, err) < 0)
        return -1;
    import_add_layer(m, meta.digest, meta.bytes, meta.entries);
    return 0;
}

static int import_one_layer(struct import *m, const struct image_message *msg, uint32_t expected, struct err *err)
{
    if (expected == 0)
        m->count = msg->count;
    /* The count must not change between messages: it decides how many layers are squashed. */
    if (msg->index != expected || msg->count != m->count || msg->count > IMAGE_LAYERS_MAX || msg->index >= msg->count)
        return job_fail(m->job, LAYERS_BAD_DATA, err, "the image worker lost count of the layers");
    m->squash = msg->count > STACK_LAYERS_MAX ? msg->count - STACK_LAYERS_MAX + 1 : 0;
    return msg->index < m->squash ? import_squash_layer(m, msg->index, err) : import_new_layer(m, msg->diff_id, err);
}

/* --- the whole ---------------------------------------------------------------------------------------------------- */

/* front reads this file: it must be sealed, so that the worker cannot cut it short meanwhile. */
static int import_check_config(struct job *j, int fd, struct err *err)
{
    const int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE;
    struct stat st;
    int have = fd >= 0 ? fcntl(fd, F_GET_SEALS) : -1;
    if (have < 0 || (have & seals) != seals || fstat(fd, &st) < 0 || st.st_size > IMAGE_CONFIG_MAX)
        return job_fail(j, LAYERS_BAD_DATA, err, "the image worker gave no configuration");
    j->reply_fd = fd;
    return 0;
}

static int import_take_layers(struct import *m, struct err *err)
{
    struct job *j = m->job;
    struct image_message msg;
    for (uint32_t layers = 0;;) {
        int fd = -1;
        if (worker_next(&m->worker, &msg, &fd, err) < 0)
            return -1;
        if (msg.type == IMAGE_LAYER) {
            if (import_one_layer(m, &msg, layers++, err) < 0)
                return -1;
        } else if (msg.type == IMAGE_CONFIG && j->reply_fd < 0) {
            if (import_check_config(j, fd, err) < 0)
                return -1;
        } else if (msg.type == IMAGE_DONE && j->reply_fd >= 0 && layers > 0 && layers == m->count) {
            break;
        } else {
            return job_fail(j, LAYERS_BAD_DATA, err, "the image worker said something out of turn");
        }
    }
    _cleanup_buf_ struct buf note = {0};
    msg.text[IMAGE_TEXT_MAX - 1] = '\0';
    text_add_safe(&note, msg.text, IMAGE_TEXT_MAX);
    if (m->dropped)
        buf_addf(&note, "%s%" PRIu64 " things that this host cannot hold: %s", note.n ? "; " : "", m->dropped, m->note);
    (void)snprintf(j->reply.text, sizeof j->reply.text, "%.*s", (int)sizeof j->reply.text - 1, buf_str(&note));
    return 0;
}

static int import_write_stack(const struct import *m, struct err *err)
{
    struct stack_file f = {.n = (uint32_t)m->n};
    for (size_t i = 0; i < m->n; i++)
        memcpy(f.layer[i], m->layer[m->n - 1 - i], SHA256_BYTES);
    return stack_write(&m->job->place, m->job->ask->stack, &f, err);
}

static void import_print_limits(const struct job *j, char bytes[NUMBER_ROOM], char entries[NUMBER_ROOM])
{
    (void)snprintf(bytes, NUMBER_ROOM, "%" PRIu64, j->ask->bytes);
    (void)snprintf(entries, NUMBER_ROOM, "%" PRIu64, j->ask->entries);
}

int import_archive(struct job *j, int archive, const char *select, bool hutch, struct err *err)
{
    static struct import m;
    int ends[2];
    char bytes[NUMBER_ROOM], entries[NUMBER_ROOM];
    m = (struct import){.job = j, .worker = WORKER_INIT, .pipe = -1, .squash_root = -1};
    m.left = (struct lay_limits){.bytes = j->ask->bytes ? j->ask->bytes : UINT64_C(64) << 30,
                                 .entries = j->ask->entries ? j->ask->entries : 4000000};
    import_print_limits(j, bytes, entries);
    _cleanup_close_ int in = import_seekable(j, archive, err), scratch = in < 0 ? -1 : import_file(j, err);
    if (in < 0 || scratch < 0)
        return -1;
    if (pipe2(ends, O_CLOEXEC) < 0)
        return err_set(err, ERR_SETUP, errno, "make a pipe for an image worker");
    struct worker_plan plan = {
        .args = {"unpack", "--max-bytes", bytes, "--max-entries", entries, select[0] ? "--image" : NULL, select},
        .in = in,
        .out = ends[1],
        .more = scratch,
    };
    if (hutch)
        plan.args[5] = "--hutch", plan.args[6] = NULL;
    m.pipe = ends[0];
    int rc = worker_begin(j, &plan, &m.worker, err);
    (void)close(ends[1]);
    if (rc == 0)
        rc = import_take_layers(&m, err);
    worker_close(&m.worker);
    (void)close(m.pipe);
    return rc < 0 ? -1 : import_write_stack(&m, err);
}

/* From a registry: a worker with a network fetches the archive; one without unpacks it later. */
static int import_fetch(struct job *j, struct err *err)
{
    char bytes[NUMBER_ROOM], entries[NUMBER_ROOM];
    struct image_message msg;
    _cleanup_worker_ struct worker w = WORKER_INIT;
    _cleanup_close_ int out = import_file(j, err);
    if (out < 0)
        return -1;
    import_print_limits(j, bytes, entries);
    const struct layers_config *c = j->config;
    struct worker_plan plan = {.args = {"fetch", "--max-bytes", bytes, "--infra", c->infra ? c->infra : "",
                                        "--registries", c->registries ? c->registries : ""},
                               .in = j->nfds > 0 ? j->fds[0] : -1,
                               .out = out,
                               .more = -1,
                               .net = true};
    size_t n = 7;
    if (j->ask->flags & LAYERS_PRIVATE)
        plan.args[n++] = "--private";
    plan.args[n++] = "--";
    plan.args[n] = j->ask->ref;
    if (worker_begin(j, &plan, &w, err) < 0 || worker_next(&w, &msg, NULL, err) < 0)
        return -1;
    if (msg.type != IMAGE_DONE)
        return job_fail(j, LAYERS_BAD_DATA, err, "the image worker said something out of turn");
    /* The manifest's digest; passed on only if it looks like one. */
    if (strnlen(msg.text, sizeof msg.text) == SHA256_HEX - 1 && strspn(msg.text, "0123456789abcdef") == SHA256_HEX - 1)
        memcpy(j->reply.layer, msg.text, SHA256_HEX);
    return TAKE_FD(out);
}

int job_import(struct job *j, struct err *err)
{
    if (import_done(j))
        return 0;
    if (j->ask->ref[0] == '\0')
        return import_archive(j, j->fds[0], j->ask->path, false, err);
    if (j->ask->path[0] && strcmp(j->ask->path, "linux/amd64") != 0)
        return job_fail(j, LAYERS_BAD_REQUEST, err, "the platform of images on this node is linux/amd64");
    _cleanup_close_ int archive = import_fetch(j, err);
    return archive < 0 ? -1 : import_archive(j, archive, "", false, err);
}
