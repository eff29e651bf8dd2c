/* kernel-int.h - what the two halves of a kernel share: its process (kernel-process.c) and its sockets (kernel.c). */
#ifndef HUTCH_GUEST_CODE_KERNEL_INT_H
#define HUTCH_GUEST_CODE_KERNEL_INT_H

#include <sys/types.h>

#include "guest/code/kernel.h"

enum { SHELL, IOPUB, CONTROL, STDIN, HEARTBEAT, PORTS, SOCKETS = 3 /* of them we use the first three */ };
enum { TAIL = 2048 };

struct kernel {
    struct kernel_world *world;
    const struct language *language;
    const struct kernel_events *events;
    void *arg;
    bool by_message; /* the kernelspec asks for interrupt_request */
    bool dead;       /* kernel_free() was called */
    bool heard, answered, ready;

    char key[WIRE_KEY + 1], session[WIRE_ID + 1], *file; /* owned: the connection file */
    const struct kernel_rights *rights;                  /* of the context; said NULL: those of the service */
    char *own; /* owned: with rights, the directory that holds its files; else NULL */
    unsigned port[PORTS];
    void *socket[SOCKETS];
    loop_id watch[SOCKETS], ask, deadline, last;
    bool again; /* a pump is deferred */

    pid_t pid;
    int pidfd, said; /* said: what it writes to its own stdout and stderr */
    loop_id watch_pid, watch_said;
    char tail[TAIL + 1];
    size_t ntail;
};

/* Its sockets are files, not ports. */
bool kernel_uses_ipc(const struct kernel *k);
/* Chooses ports, writes the connection file. */
int kernel_write_file(struct kernel *k, struct err *err);
/* Starts the process in `cwd`; fills pid, pidfd and said. */
int kernel_spawn(struct kernel *k, json_t *spec, const char *cwd, struct err *err);
/* Where a socket of the kernel is. */
void kernel_add_address(const struct kernel *k, int which, struct buf *b);
/* Removes its own directory. A process that the kernel left may still write there, so this does not wait. */
void kernel_remove_own(struct kernel *k);
/* Kills the group and has the process reaped when it has ended; closes the descriptors. */
void kernel_end_process(struct kernel *k);

#endif
