/* worker.h - image workers: the messages between a job of the layer store and a `hutch-node image` process, and the
 * job's side of it.
 *
 * What a worker does and may do: image/image.h. The job never trusts a worker: messages have one size, their text is
 * cut and escaped, and nothing in them is used as a path.
 */
#ifndef HUTCH_LAYERS_WORKER_H
#define HUTCH_LAYERS_WORKER_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/err.h"
#include "base/sha256.h"

enum { IMAGE_VERSION = 1, IMAGE_TEXT_MAX = 400, IMAGE_CONFIG_MAX = 256 << 10, IMAGE_LAYERS_MAX = 128 };
/* MORE: a scratch file; ROOT: a directory that becomes the worker's root. */
enum { IMAGE_FD_IN = 3, IMAGE_FD_OUT, IMAGE_FD_CONTROL, IMAGE_FD_MORE, IMAGE_FD_ROOT, IMAGE_FDS };

enum image_type {
    IMAGE_LAYER = 1, /* worker -> job */
    IMAGE_CONFIG,    /* worker -> job; a sealed memfd with the image's configuration (JSON) comes along */
    IMAGE_PROGRESS,
    IMAGE_FAILED,
    IMAGE_DONE,
    IMAGE_GO, /* job -> worker */
};
enum image_failure { IMAGE_BAD_DATA = 1, IMAGE_TOO_LARGE, IMAGE_NOT_FOUND, IMAGE_DENIED, IMAGE_NETWORK, IMAGE_HOST };

struct image_message {
    uint32_t version, type;
    uint32_t index, count; /* LAYER: which of how many, from 0 */
    uint32_t failure, zero;
    uint8_t diff_id[SHA256_BYTES], digest[SHA256_BYTES];
    uint64_t done, total; /* PROGRESS: bytes. DONE of pack: bytes written, and before compression */
    char text[IMAGE_TEXT_MAX];
};

struct job;

struct worker {
    struct job *job;
    pid_t pid;
    int control;
};
#define WORKER_INIT               \
    {                             \
        .pid = -1, .control = -1, \
    }

struct worker_plan {
    const char *args[12]; /* behind `hutch-node image`; NULL ends them */
    int in, out, more;    /* borrowed; -1: closed */
    bool net;             /* sees the network of the host, and the files that tell how to find names in it */
};

enum { WORKER_STALL_S = 300 /* a worker that sends nothing for so long is killed */ };

int worker_begin(struct job *j, const struct worker_plan *p, struct worker *ret, struct err *err);
/* The next message; passes IMAGE_PROGRESS on to front. -1 with the job's reply.error set for IMAGE_FAILED, a malformed
 * message, and a worker that ended. ret_fd (may be NULL): the descriptor that came along, or -1. */
int worker_next(struct worker *w, struct image_message *ret, int *ret_fd, struct err *err);
int worker_answer(struct worker *w, enum image_type type, struct err *err);
/* Starts or stops the WORKER_STALL_S timer. It runs while the job waits for the worker, not while the worker waits
 * for the job, which may take long (syncing a layer of many gigabytes). */
void worker_waits(bool now);
/* After a failure that shows elsewhere (a stream that broke off): replaces *err by the worker's own report, if it
 * sends one. Always -1. */
int worker_blame(struct worker *w, struct err *err);
/* Ends it if it has not ended. */
void worker_close(struct worker *w);
#define _cleanup_worker_ __attribute__((cleanup(worker_close)))

#endif
