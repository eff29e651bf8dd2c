/* link-int.h - calls over a link, for link.c, exec.c, files.c and watch.c. */
#ifndef HUTCH_SANDBOX_LINK_INT_H
#define HUTCH_SANDBOX_LINK_INT_H

#include "init/wire.h"
#include "sandbox/link.h"

struct link_msg {
    uint16_t type;
    struct wire_in in; /* the body */
    int fds[3];        /* whoever wants to keep one takes it (TAKE_FD); the rest is closed */
    size_t nfds;
};

enum call_next { CALL_DONE, CALL_KEEP, CALL_BROKEN /* nonsense: the connection goes, and this call fails with it */ };

struct call;
typedef enum call_next call_message(struct call *c, struct link_msg *m);
typedef void call_failed(struct call *c, const struct link_status *st); /* the call is gone afterwards */
/* Called twice: to count, then to write. */
typedef void call_put(struct wire_out *o, const void *arg);

struct call {
    struct links *ls;
    struct link *link; /* NULL: it could not even be sent */
    struct call *prev, *next;
    uint64_t id; /* also the number of the request */
    uint16_t type;
    bool zombie;           /* nobody waits any more, but init may still answer */
    bool working;          /* counts as a helper inside */
    bool sinking;          /* INIT_CREATE: counts as a file being written, for as long as the call is kept */
    bool in_message, lost; /* inside its own callback; its link was dropped there */
    bool stream;           /* goes on after its reply, until INIT_CLOSED */
    loop_id timer;
    struct link_status st; /* of a call that fails at once */
    call_message *message;
    call_failed *failed;
    void (*fn)(void); /* the user's callback, cast back by whoever made the call */
    void *arg;
    void *object;
    void *owned; /* freed with the call */
};

#define CALL_FN(f) ((void (*)(void))(f))

/* Never NULL. The request is on its way, or `failed` will be called from the loop. */
struct call *call_new(struct links *ls, const char *id, uint16_t type, call_put *put, const void *arg);
/* A call that fails from the loop with this status; for arguments that the protocol cannot carry. */
struct call *call_refused(struct links *ls, uint16_t type, enum link_code code, const char *text);
/* The end of a call that was kept although nothing more comes for it. */
void call_end(struct call *c);
/* Sends another request under the same number, after its answer came. */
void call_again(struct call *c, uint16_t type, call_put *put, const void *arg);
/* A message that is not answered. */
void call_note(struct call *c, uint16_t type, call_put *put, const void *arg);
/* No more callbacks. A stream is closed with INIT_DETACH or INIT_UNWATCH. */
void call_drop(struct call *c, uint16_t closing, call_put *put, const void *arg);

/* Reads code and text of a reply. False: malformed. */
bool call_status(struct wire_in *in, struct link_status *ret);
/* Ready-made handlers for calls answered by a status alone; fn is a link_done. */
call_message call_message_done;
call_failed call_failed_done;
void link_status_set(struct link_status *st, enum link_code code, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

struct loop *links_loop(const struct links *ls);
/* A sealed memfd of exactly this size. */
bool link_fd_is_memory(int fd, uint64_t size);

#endif
