/* link.h - front's client of the init of each sandbox.
 *
 * Every sandbox's init listens on a socket in the runtime directory, which the sandbox cannot see. A link connects on
 * the first call and disconnects a few seconds after the last, so an idle sandbox costs front no descriptor. It never
 * trusts init: it checks lengths, fstat()s descriptors for their type, and drops the connection at the first malformed
 * message.
 *
 * All calls are asynchronous: the callback comes later from the loop, exactly once, also on failure and deadline. A
 * handle returned by a call can be cancelled; the callback is then not called. Strings in requests are copied.
 */
#ifndef HUTCH_PEERS_LINK_H
#define HUTCH_PEERS_LINK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/ids.h"
#include "loop/loop.h"

enum link_code {
    LINK_OK,
    LINK_GONE,      /* no such sandbox: its init cannot be reached or died */
    LINK_NOT_FOUND, /* path, process, watcher */
    LINK_EXISTS,
    LINK_INVALID, /* a wrong argument; text says which */
    LINK_DENIED,  /* permission */
    LINK_NO_USER, /* invalid username */
    LINK_NOT_DIR, /* a directory was expected */
    LINK_IS_DIR,  /* a file was expected */
    LINK_NO_SPACE,
    LINK_LIMIT, /* one of our limits; text names it */
    LINK_TIMEOUT,
    LINK_STATE,  /* not possible now (stdin closed, not a terminal, not bound) */
    LINK_IO,     /* anything else; text has the errno */
    LINK_BROKEN, /* init sent a malformed message */
    LINK_PAUSED, /* the sandbox is being paused; the same call may work a moment later */
};
struct link_status {
    enum link_code code;
    char text[256]; /* for the user; "" if LINK_OK */
};

struct links;               /* all links of this process */
typedef uint64_t link_call; /* handle of a pending call; 0 none */

/* run_dir: descriptor of the directory with the sockets "<id>.sock"; borrowed. */
int links_new(struct loop *l, int run_dir, struct links **ret, struct err *err);
/* Drops all pending calls without a callback; end attachments and watches before. */
void links_free(struct links *ls);
/* Call when this process is about to end: attachments that end from now on look to init as if the process had died, so
 * that it keeps their output for clients that come back to the next process. */
void links_leave(struct links *ls);
void link_cancel(struct links *ls, link_call c);
/* The sandbox is dead: fails its pending calls with LINK_GONE now. */
void links_gone(struct links *ls, const char *id);
/* The sandbox is about to be paused: fails its pending calls with LINK_PAUSED now. Its commands keep their output. */
void links_paused(struct links *ls, const char *id);

typedef void link_done(void *arg, const struct link_status *st);

/* Late binding, once, right after the create. NULL-terminated "K=V" list. */
struct link_bind {
    const char *hostname;
    const char *const *env;
    const char *user;    /* default user of commands and files */
    const char *workdir; /* default working directory; NULL: the user's home */
};
link_call link_bind(struct links *ls, const char *id, const struct link_bind *b, link_done *done, void *arg);
/* Is init alive and bound? */
link_call link_hello(struct links *ls, const char *id, link_done *done, void *arg);
/* Connects inside to 127.0.0.1:port (else ::1, else any address of the sandbox) by TCP. fd is the caller's, but init
 * may hold it too and change its flags and options at any time (see base/fd.h, http/transport.h). LINK_NOT_FOUND:
 * nothing listens there. */
typedef void link_dialed(void *arg, const struct link_status *st, int fd);
link_call link_dial(struct links *ls, const char *id, uint16_t port, link_dialed *done, void *arg);

#endif
