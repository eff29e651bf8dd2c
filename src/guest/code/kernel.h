/* kernel.h - one kernel: its process, its connection file, its three sockets in the loop.
 *
 * A kernel is ready when it has answered on the shell socket and was heard on iopub: what it publishes before a subscriber is
 * there is lost, so kernel_info_request is repeated until both happened. A kernel that is killed says nothing on its sockets;
 * its pidfd does.
 */
#ifndef HUTCH_GUEST_CODE_KERNEL_H
#define HUTCH_GUEST_CODE_KERNEL_H

#include <stdbool.h>

#include "base/err.h"
#include "guest/code/languages.h"
#include "guest/code/rights.h"
#include "guest/code/wire.h"
#include "loop/loop.h"

enum { KERNEL_START_MS = 60 * 1000, KERNEL_WHY = 512 };

struct kernel_world {
    struct loop *loop;
    void *zmq;        /* context of libzmq */
    const char *dir;  /* for connection files and sockets; ours alone */
    const char *path; /* directories with kernelspecs */
    unsigned made;
    unsigned processes; /* of the user, that kernels may make; 0: no limit */
    bool ending;        /* the loop does not run any more: processes that were killed are waited for at once */
};

struct kernel_events {
    void (*ready)(void *arg);
    /* The id of the request whose output is of interest, or NULL; what else is published is dropped unread. */
    const char *(*wanted)(void *arg);
    /* A message of shell or iopub, borrowed. `content` is NULL if it was too large; then `why` says so. */
    void (*message)(void *arg, const struct wire_msg *m, const char *why);
    /* It ended, or did not become ready in time. The callee frees it. `why` is one line. */
    void (*gone)(void *arg, bool was_ready, const char *why);
};

struct kernel;
/* Cells of a language can have these rights. ERR_USAGE. */
int kernel_may_have(const struct language *l, const struct kernel_rights *r, struct err *err);
/* `rights` stay until kernel_free(). */
int kernel_start(struct kernel_world *w, const struct language *l, const char *cwd, const struct kernel_rights *rights,
                 const struct kernel_events *events, void *arg, struct kernel **ret, struct err *err);
/* Sends code; its messages have `id` as their parent's. */
void kernel_execute(struct kernel *k, const char *id, const char *code, bool silent);
/* False: this kernel cannot be interrupted, only freed. */
bool kernel_interrupt(struct kernel *k);
/* Kills its process group and makes no call any more. Allowed inside its callbacks. NULL is ignored. */
void kernel_free(struct kernel *k);

#endif
