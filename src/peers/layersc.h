/* layersc.h - front's client of the layer store: asynchronous, over one SEQPACKET connection. When the layer store
 * restarts, it connects again and repeats pending calls with their descriptors, which it keeps until the answer (each
 * is idempotent, see layers/proto.h). It shares the layer store fairly between tenants.
 */
#ifndef HUTCH_PEERS_LAYERSC_H
#define HUTCH_PEERS_LAYERSC_H

#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"
#include "layers/proto.h"
#include "loop/loop.h"

struct layersc;
typedef uint64_t layersc_call; /* 0: none */

/* run_dir (borrowed) holds LAYERS_SOCKET. up: connected (again); time to compare the list of stacks with the database. */
int layersc_new(struct loop *l, int run_dir, void (*up)(void *arg), void *arg, struct layersc **ret, struct err *err);
void layersc_free(struct layersc *s);
bool layersc_is_up(const struct layersc *s); /* for tests */

/* Once, from the loop. fd: the answer's descriptor, the callee's, or -1. */
typedef void layersc_done(void *arg, const struct layers_reply *r, int fd);
typedef void layersc_progress(void *arg, const struct layers_reply *r); /* may be NULL */
/* Fills in version and request number. fds are taken over. */
layersc_call layersc_ask(struct layersc *s, const struct layers_request *r, const int *fds, size_t nfds,
                         layersc_progress *progress, layersc_done *done, void *arg);
/* On behalf of a tenant, by its id: at most one of its transfers (import, convert, export, restore) is under way at a
 * time, and a few of its other calls; further ones wait. Once half of all places are taken, a tenant may hold only a
 * sixteenth of them. */
layersc_call layersc_ask_for(struct layersc *s, const char *owner, const struct layers_request *r, const int *fds,
                             size_t nfds, layersc_progress *progress, layersc_done *done, void *arg);
/* The number of the owner's calls, without transfers, that were not sent yet. */
size_t layersc_waiting(const struct layersc *s, const char *owner);
/* Tells the layer store to end the job; `done` is not called any more. */
void layersc_cancel(struct layersc *s, layersc_call c);
typedef void layersc_listed(void *arg, const struct layers_item *v, size_t n, const struct layers_reply *failed);
void layersc_list(struct layersc *s, layersc_listed *done, void *arg);

/* A request of that type with everything empty. */
struct layers_request layersc_request(enum layers_type type);

#endif
