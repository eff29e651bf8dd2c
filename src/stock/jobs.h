/* jobs.h - what stock does, one forked child per request.
 *
 * The daemon (loop.c) reads and checks a request, forks, and the child calls the function of its type with a struct
 * job. The child dies with the daemon, holds no descriptors but those of the job, has no network unless its table entry
 * says so, and is in the daemon's mount namespace, where it may mount what it likes after an unshare(CLONE_NEWNS) of
 * its own. When the function returns, `reply` and `reply_fd` are sent to front and the child ends; memory, descriptors
 * and detached mounts need no clean-up then. What it made with job_tmp() and did not rename away, and a sandbox it left
 * frozen, are put in order by the daemon, however it ended.
 */
#ifndef HUTCH_STOCK_JOBS_H
#define HUTCH_STOCK_JOBS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/err.h"
#include "keeper/journal.h"
#include "keeper/place.h"
#include "os/cgroup.h"
#include "stock/layers.h"
#include "stock/proto.h"
#include "stock/tree.h"

/* Descriptors that the supervisor hands over. */
enum { STOCK_FD_SOCKET = 3, STOCK_FD_RUN = 4, STOCK_FD_STATE = 5 };
enum { STOCK_FDS_MAX = 4, STOCK_TMP_NAME = 32 };

struct stock_config {
    const char *templates;    /* directory; NULL: STATE/templates */
    const char *node_program; /* hutch-node, absolute: image workers are `hutch-node image ...`; NULL: there are none */
    uid_t image_uid;          /* whom image workers become; (uid_t)-1: nobody else (without root) */
    gid_t image_gid;
    const char *infra;      /* egress.infra, "ADDR/BITS,...": images are fetched from there only if listed; or NULL */
    const char *registries; /* images.registries, "HOST[:PORT],...", or NULL */
    gid_t front_gid;        /* may connect to sockets in RUN; (gid_t)-1: the owner only */
};

struct job {
    const struct stock_config *config;
    struct stock_place place;        /* descriptors of our own mount namespace, mountable */
    const struct stock_request *ask; /* checked: ids, names and descriptors are as proto.h says */
    int fds[STOCK_FDS_MAX];          /* that came with it, the job's */
    size_t nfds;
    int run_dir;
    bool rootless;
    unsigned tree_flags;      /* TREE_USERXATTR if rootless; LAY_USERXATTR is the same bit */
    struct stock_reply reply; /* version, type and request are filled in already */
    int reply_fd;             /* -1: none */
    int sock;                 /* to the daemon */
    uint64_t serial;          /* of this job, in the names of its temporary files */
    unsigned ntmp;
};

/* 0: answered with j->reply (reply.error may be set, e.g. STOCK_CONFLICT with a descriptor). -1: reply.text becomes
 * err->msg, and reply.error, if the function has not set it, follows from err: eno ENOSPC or EDQUOT STOCK_NO_SPACE,
 * ERR_LIMIT STOCK_TOO_LARGE, ERR_USAGE STOCK_BAD_DATA, ERR_HOST STOCK_HOST, everything else STOCK_FAILED. */
typedef int job_fn(struct job *j, struct err *err);

job_fn job_capture, job_list, job_blob;                  /* capture.c, list.c */
job_fn job_import, job_convert, job_export, job_restore; /* import.c ... */
job_fn job_diff, job_open, job_apply, job_flatten, job_verify, job_gc, job_df, job_usage,
    job_layers;                                                              /* diff-job.c ... */
job_fn job_drop;                                                             /* gc.c */
job_fn job_volume_make, job_volume_drop, job_volume_stat, job_volume_resize; /* volume.c */

/* apply.c: the stack whose name what is known of an STOCK_APPLY has. */
const char *job_apply_key(const struct stock_request *q);
/* apply.c, before a stack goes: nothing is known of its being taken over any more. What a sandbox that lives took over in
 * part is put back; STOCK_BUSY if that cannot be done. */
int job_apply_forget(struct job *j, struct err *err);

/* The answer's descriptor lists the layers of the stack `f`, under the id that was asked for; NULL: of all. */
int job_layers_of(struct job *j, const struct stack_file *f, struct err *err);

/* The inner part of job_flatten: a stack file whose layers were made into one. *f is changed, nothing is
 * written to stacks/. */
int stack_flatten(struct job *j, struct stack_file *f, struct err *err);

/* Long jobs: at most STOCK_HEAVY_MAX or STOCK_PULL_MAX of a class at once, so that what clients ask for, what keeps
 * the store in order, and what waits for a registry never wait for each other. */
enum job_class { JOB_LIGHT, JOB_TRANSFER, JOB_UPKEEP, JOB_PULL };

struct job_type {
    job_fn *fn;
    enum job_class class;
    bool net;     /* sees the host's network, if the request names a registry */
    bool goes_on; /* finishes although front is gone; others are ended then */
    bool lingers; /* may go on after job_answer() */
    bool writes;  /* the stack or blob that it names: alone with it */
    bool reads;   /* the stacks that it names, for long: nobody writes them meanwhile */
    bool adds;    /* layers, some time before the stack that names them */
    bool removes; /* layers that no stack names: not while one `adds` */
    bool urgent;  /* does not wait for one that `removes` and has not begun */
};
/* That of its type, but JOB_PULL if it asks a registry. */
enum job_class job_class_of(const struct stock_request *q);
/* fn is NULL if it is no type of a request, or one that needs no job. */
const struct job_type *job_type_of(uint32_t type);

/* Tells front how far it is; not more often than some ten times a second, the rest is left out. text "" or a few words.
 */
void job_progress(struct job *j, uint64_t done, uint64_t total, const char *text);
/* A new empty directory tmp/NAME for this job alone; returns O_RDONLY descriptor of it. With `root`, tmp/NAME/root is
 * made too (0755) and that descriptor is returned: what layer_commit() wants. */
int job_tmp(struct job *j, bool root, char ret[STOCK_TMP_NAME], struct err *err);
/* A name for a temporary file or directory of this job in tmp/, not made. */
void job_tmp_name(struct job *j, char ret[STOCK_TMP_NAME]);
/* Sets reply.error and err; always -1. */
int job_fail(struct job *j, enum stock_error code, struct err *err, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
/* Sends j->reply now; the job goes on without holding up anything. Only for types that linger. */
int job_answer(struct job *j, struct err *err);

/* A living sandbox. */
struct job_box {
    struct journal_record record;
    int pidfd;
    int place; /* what holds its upper, O_PATH; a subvolume of its own on btrfs. -1: not asked for */
    int upper; /* directory of its upper ("u"), taken from its first process and compared with the journal; -1: not
                  asked for */
    struct cgroup cgroup;
    bool frozen;       /* by job_box_freeze() */
    uint64_t since_us; /* when */
};
#define JOB_BOX_INIT                                           \
    {                                                          \
        .pidfd = -1, .place = -1, .upper = -1, .frozen = false \
    }
/* STOCK_NOT_FOUND if it does not live. */
int job_box_open(struct job *j, const char *box, bool upper, struct job_box *ret, struct err *err);
/* Everything in it stands still; a marker in RUN says so. One that keeper has paused is left alone, here and by
 * job_box_thaw(). */
int job_box_freeze(struct job *j, struct job_box *b, struct err *err);
/* Adds the time to j->reply.frozen_us. */
int job_box_thaw(struct job *j, struct job_box *b, struct err *err);
/* Whether it stands still at this moment, by whomever; with `wait`, one that keeper is pausing is waited for.
 * STOCK_BUSY with `doing` in the message if not. What is done to its files is right only if it did so before and after. */
int job_box_still(struct job *j, const struct job_box *b, bool wait, const char *doing, struct err *err);
void job_box_close(struct job_box *b);
/* The stack that a sandbox was made from: its own ("st-..."), or one without layers over its template.
 * STOCK_BAD_REQUEST for the template host. */
int job_box_stack(struct job *j, const struct job_box *b, struct stack_file *ret, struct err *err);

/* Thaws a sandbox that a job left frozen, if a marker says so; box NULL: all of them. */
int job_box_thaw_left(int run_dir, const char *box, struct err *err);

/* In the child: does the job, answers, ends. `sock` and everything else is in place. */
void job_run(struct job *j, job_fn *fn) __attribute__((noreturn));
/* What a job that failed is answered with. */
void job_error(struct stock_reply *r, const struct err *err);

/* The daemon: runs until told to stop (0) or until it cannot go on. */
int stock_run(const struct stock_config *c, struct err *err);

#endif
