/* link-int.h - calls over a link, for the files of this folder that implement the requests to init. */
#ifndef HUTCH_PEERS_LINK_INT_H
#define HUTCH_PEERS_LINK_INT_H

#include "init/wire.h"
#include "peers/link.h"

struct link_msg {
    uint16_t type;
    struct wire_in in; /* the body */
    int *fds;          /* a handler keeps one by TAKE_FD; the others are closed */
    size_t nfds;
    uint32_t
        relay; /* enum init_ticket_kind: the descriptor is a connection of our own to what it stands for; 0: none */
};

enum call_next { CALL_DONE, CALL_KEEP, CALL_BROKEN /* malformed: drop the connection, which fails this call too */ };

struct call;
typedef enum call_next call_message(struct call *c, struct link_msg *m);
typedef void call_failed(struct call *c, const struct link_status *st); /* the call is gone afterwards */
/* Called twice: to count, then to write. */
typedef void call_put(struct wire_out *o, const void *arg);

struct call {
    struct links *ls;
    struct link *link; /* NULL: it could not be sent */
    struct call *prev, *next;
    uint64_t id; /* also the number of the request */
    uint16_t type;
    bool zombie;           /* gets no callback any more, but init may still answer */
    bool working;          /* counts as a helper inside */
    bool sinking;          /* INIT_CREATE: counts as a file being written, for as long as the call is kept */
    bool in_message, lost; /* inside its own callback; its link was dropped there */
    bool stream;           /* goes on after its reply, until INIT_CLOSED */
    struct take *take;     /* link-take.c: its answer waits for what its ticket stands for; NULL: no */
    bool rooted;           /* files.c: a request with a root: it may take longer, and facts follow each info */
    loop_id timer;
    struct link_status st; /* of a call that fails at once */
    call_message *message;
    call_failed *failed;
    void (*fn)(void); /* the user's callback, cast back by the handlers */
    void *arg;
    void *object;
    void *owned; /* freed with the call */
};

enum { LINK_ROOTED_MS = 605 * 1000 }; /* a little longer than init gives a helper with a root */

#define CALL_FN(f) ((void (*)(void))(f))

/* Never NULL. Sends the request; if that is impossible, the loop calls `failed` later. */
struct call *link_call_new(struct links *ls, const char *id, uint16_t type, call_put *put, const void *arg);
/* A call that fails from the loop with this status; for arguments that the protocol cannot carry. */
struct call *link_call_refused(struct links *ls, uint16_t type, enum link_code code, const char *text);
/* Marks a call that was just made as one with a root. */
void link_call_set_rooted(struct call *c);
/* Whether its link is a byte stream. */
bool link_call_is_stream(const struct call *c);
/* Frees a call that CALL_KEEP kept and that gets no more messages. */
void link_call_end(struct call *c);
/* After its answer: sends another request under the same id. */
void link_call_again(struct call *c, uint16_t type, call_put *put, const void *arg);
/* Sends a message that has no answer. */
void link_call_note(struct call *c, uint16_t type, call_put *put, const void *arg);
/* No more callbacks. A stream is closed with INIT_DETACH or INIT_UNWATCH. */
void link_call_drop(struct call *c, uint16_t closing, call_put *put, const void *arg);

/* Reads code and text of a reply. False: malformed. */
bool link_call_status(struct wire_in *in, struct link_status *ret);
/* Ready-made handlers for calls answered by a status alone; fn is a link_done. */
call_message link_call_message_done;
call_failed link_call_failed_done;
void link_status_set(struct link_status *st, enum link_code code, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* Of a NULL-terminated vector, or of NULL. */
size_t link_count_strings(const char *const *v);
struct loop *links_loop(const struct links *ls);
/* A sealed memfd of exactly this size. */
bool link_fd_is_memory(int fd, uint64_t size);

#endif
