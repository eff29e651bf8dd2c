/* jobs.h - the work of the layer store: one forked child (a job) per request.
 *
 * The daemon (loop.c) reads and checks a request, forks, and the child calls the function of its type with a struct
 * job. The child dies with the daemon, holds only the job's descriptors, has no network unless its table entry says so,
 * and is in the daemon's mount namespace, where it may mount only after an unshare(CLONE_NEWNS) of its own. When the
 * function returns, the child sends `reply` and `reply_fd` to front and ends; memory, descriptors and detached mounts
 * need no clean-up. However it ends, the daemon removes what it left in tmp/ (job_tmp()), and keeper thaws a sandbox that
 * it held.
 */
#ifndef HUTCH_LAYERS_JOBS_H
#define HUTCH_LAYERS_JOBS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/err.h"
#include "keeper/journal.h"
#include "keeper/place.h"
#include "layers/layer-files.h"
#include "layers/proto.h"
#include "layers/request.h"
#include "os/cgroup.h"
#include "trees/tree.h"

/* Descriptors that the supervisor hands over. */
enum { LAYERS_FD_SOCKET = 3, LAYERS_FD_RUN = 4, LAYERS_FD_STATE = 5 };
enum { LAYERS_FDS_MAX = 4, LAYERS_TMP_NAME = 32 };

struct layers_config {
    const char *templates;    /* directory; NULL: STATE/templates */
    const char *node_program; /* hutch-node, absolute: image workers are `hutch-node image ...`; NULL: there are none */
    uid_t image_uid;          /* user of image workers; (uid_t)-1: do not change it (without root) */
    gid_t image_gid;
    const char *infra;      /* egress.infra, "ADDR/BITS,...": images are fetched from there only if listed; or NULL */
    const char *registries; /* images.registries, "HOST[:PORT],...", or NULL */
    gid_t front_gid;        /* may connect to sockets in RUN; (gid_t)-1: the owner only */
};

struct job {
    const struct layers_config *config;
    struct layers_place place;        /* descriptors of our own mount namespace, mountable */
    const struct layers_request *ask; /* checked: ids, names and descriptors are as proto.h says */
    int fds[LAYERS_FDS_MAX];          /* that came with it, the job's */
    size_t nfds;
    int run_dir;
    bool rootless;
    unsigned tree_flags;       /* TREE_USERXATTR if rootless; LAY_USERXATTR is the same bit */
    struct layers_reply reply; /* version, type and request are filled in already */
    int reply_fd;              /* -1: none */
    int sock;                  /* to the daemon */
    uint64_t serial;           /* of this job, in the names of its temporary files */
    unsigned ntmp;
};

/* 0: answered with j->reply (reply.error may be set, e.g. LAYERS_CONFLICT with a descriptor). -1: reply.text becomes
 * err->msg, and reply.error, if the function has not set it, follows from err: eno ENOSPC or EDQUOT LAYERS_NO_SPACE,
 * ERR_LIMIT LAYERS_TOO_LARGE, ERR_USAGE LAYERS_BAD_DATA, ERR_HOST LAYERS_HOST, everything else LAYERS_FAILED. */
typedef int job_fn(struct job *j, struct err *err);

job_fn job_capture, job_list, job_blob;                  /* capture.c, list.c */
job_fn job_import, job_convert, job_export, job_restore; /* import.c ... */
job_fn job_diff, job_open, job_apply, job_flatten, job_verify, job_gc, job_df, job_usage, job_layers,
    job_digest;                                                              /* diff-job.c ... */
job_fn job_drop;                                                             /* gc.c */
job_fn job_volume_make, job_volume_drop, job_volume_stat, job_volume_resize; /* volume.c */

/* hold.c: a test program waits here if its test wants it to. */
void job_hold(const struct job *j, const char *stage);

/* apply.c: the stack whose id names the files that record the progress of a LAYERS_APPLY. */
const char *job_apply_key(const struct layers_request *q);
/* apply.c, before a stack is dropped: removes the record of its LAYERS_APPLY. If a living sandbox has half of the
 * change, it is undone first; LAYERS_BUSY if that fails. */
int job_apply_forget(struct job *j, struct err *err);

/* Makes the reply's descriptor list the layers of the stack `f`, under the request's id; NULL: of all stacks. */
int job_layers_of(struct job *j, const struct stack_file *f, struct err *err);

/* The inner part of job_flatten: merges the layers of *f into a new one and changes *f; stacks/ stays as it is. */
int stack_flatten(struct job *j, struct stack_file *f, struct err *err);

/* Long jobs: at most LAYERS_HEAVY_MAX or LAYERS_PULL_MAX of a class at once, so that what clients ask for, what keeps
 * the store in order, and what waits for a registry never wait for each other. */
enum job_class { JOB_LIGHT, JOB_TRANSFER, JOB_UPKEEP, JOB_PULL };

struct job_type {
    job_fn *fn;
    enum job_class class;
    bool net;     /* sees the host's network, if the request names a registry */
    bool goes_on; /* finishes even if front disconnects; others are killed then */
    bool lingers; /* may go on after job_answer() */
    bool writes;  /* changes the stack or blob that it names: no other job may use it meanwhile */
    bool reads;   /* reads the stacks that it names for long: no other job may write them meanwhile */
    bool adds;    /* adds layers some time before the stack that names them */
    bool removes; /* removes layers that no stack names: never beside a job that `adds` */
    bool urgent;  /* goes before a job that `removes` and has not begun */
};
/* The class of the request's type, or JOB_PULL if it names a registry. */
enum job_class job_class_of(const struct layers_request *q);
/* fn is NULL if no request has this type, or if it needs no job. */
const struct job_type *job_type_of(uint32_t type);

/* The monotonic clock. */
uint64_t job_now_ms(void);
/* Tells front the progress, at most ten times a second; calls in between do nothing. text: "" or a few words. */
void job_progress(struct job *j, uint64_t done, uint64_t total, const char *text);
/* A new empty directory tmp/NAME for this job alone; returns O_RDONLY descriptor of it. With `root`, tmp/NAME/root is
 * made too (0755) and that descriptor is returned: what layer_commit() wants. */
int job_tmp(struct job *j, bool root, char ret[LAYERS_TMP_NAME], struct err *err);
/* A free name for a temporary file or directory of this job in tmp/; nothing is created. */
void job_tmp_name(struct job *j, char ret[LAYERS_TMP_NAME]);
/* Sets reply.error and err; always -1. */
int job_fail(struct job *j, enum layers_error code, struct err *err, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
/* Sends j->reply now; the job continues and blocks no other request. Only for types that linger. */
int job_answer(struct job *j, struct err *err);

/* A living sandbox. */
struct job_sandbox {
    struct journal_record record;
    int pidfd;
    int place; /* what holds its upper, O_PATH; a subvolume of its own on btrfs. -1: not asked for */
    int upper; /* directory of its upper ("u"), taken from its first process and compared with the journal; -1: not
                  asked for */
    struct cgroup cgroup;
    int keeper;        /* connection whose end ends the hold; -1: not connected */
    bool frozen;       /* held by job_sandbox_freeze() */
    uint64_t since_us; /* when keeper began to freeze it; 0: it stood still already */
};
#define JOB_SANDBOX_INIT                                                     \
    {                                                                        \
        .pidfd = -1, .place = -1, .upper = -1, .keeper = -1, .frozen = false \
    }
/* LAYERS_NOT_FOUND if it does not live. */
int job_sandbox_open(struct job *j, const char *sandbox, bool upper, struct job_sandbox *ret, struct err *err);
/* Has keeper freeze all its processes until job_sandbox_thaw(), or until this job ends. A sandbox that is paused is left as
 * it is, here and there. */
int job_sandbox_freeze(struct job *j, struct job_sandbox *b, struct err *err);
/* Adds the time to j->reply.frozen_us. */
int job_sandbox_thaw(struct job *j, struct job_sandbox *b, struct err *err);
/* Checks that the sandbox is frozen now, by us or by keeper; with `wait`, waits while keeper is pausing it. Else
 * fails with LAYERS_BUSY and `doing` in the message. A copy of its files is consistent only if this holds before and
 * after. */
int job_sandbox_still(struct job *j, const struct job_sandbox *b, bool wait, const char *doing, struct err *err);
void job_sandbox_close(struct job_sandbox *b);
/* The stack that a sandbox was made from: its own ("st-..."), or one without layers over its template.
 * LAYERS_BAD_REQUEST for the template host. */
int job_sandbox_stack(struct job *j, const struct job_sandbox *b, struct stack_file *ret, struct err *err);

/* In the child: runs the job, sends the reply, exits. All fields but reply and reply_fd are filled in. */
void job_run(struct job *j, job_fn *fn) __attribute__((noreturn));
/* Fills in the reply of a failed job. */
void job_error(struct layers_reply *r, const struct err *err);

/* The daemon: returns 0 after SIGTERM, -1 if it cannot go on. */
int layers_run(const struct layers_config *c, struct err *err);

#endif
