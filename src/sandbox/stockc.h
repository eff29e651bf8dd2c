/* stockc.h - front's way to stock. Asynchronous, over one SEQPACKET connection that is made again when stock restarts;
 * calls that are pending then are sent again (each is idempotent, see stock/proto.h), descriptors included (they are
 * kept until the answer).
 */
#ifndef HUTCH_SANDBOX_STOCKC_H
#define HUTCH_SANDBOX_STOCKC_H

#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"
#include "loop/loop.h"
#include "stock/proto.h"

struct stockc;
typedef uint64_t stockc_call; /* 0: none */

/* run_dir (borrowed) holds STOCK_SOCKET. up: connected (again); time to compare the list of stacks with the store. */
int stockc_new(struct loop *l, int run_dir, void (*up)(void *arg), void *arg, struct stockc **ret, struct err *err);
void stockc_free(struct stockc *s);
bool stockc_is_up(const struct stockc *s);

/* Once, from the loop. fd: the answer's descriptor, the callee's, or -1. */
typedef void stockc_done(void *arg, const struct stock_reply *r, int fd);
typedef void stockc_progress(void *arg, const struct stock_reply *r); /* may be NULL */
/* Fills in version and request number. fds are taken over. */
stockc_call stockc_ask(struct stockc *s, const struct stock_request *r, const int *fds, size_t nfds,
                       stockc_progress *progress, stockc_done *done, void *arg);
/* On behalf of a tenant, by its id: of its transfers (import, convert, export, restore) one at a time is under way, of
 * everything else a few; the others wait. Of all that wait it has at most half, and little if others wait, too. */
stockc_call stockc_ask_for(struct stockc *s, const char *owner, const struct stock_request *r, const int *fds,
                           size_t nfds, stockc_progress *progress, stockc_done *done, void *arg);
/* Calls of that owner, but transfers, that are not under way yet. */
size_t stockc_waiting(const struct stockc *s, const char *owner);
/* The job is told to end; `done` is not called any more. */
void stockc_cancel(struct stockc *s, stockc_call c);
typedef void stockc_listed(void *arg, const struct stock_item *v, size_t n, const struct stock_reply *failed);
void stockc_list(struct stockc *s, stockc_listed *done, void *arg);

/* A request of that type with everything empty. */
struct stock_request stockc_request(enum stock_type type);

#endif
