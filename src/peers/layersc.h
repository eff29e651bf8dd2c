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
/* How a call goes, and where its answer goes to. */
struct layersc_to {
    /* The id of the tenant on whose behalf it is; NULL: the node itself. At most one transfer (import, convert, export,
     * restore) of a tenant is under way at a time, and a few of its other calls; further ones wait. Once half of all places
     * are taken, a tenant may hold only a sixteenth of them. */
    const char *owner;
    layersc_progress *progress;
    layersc_done *done;
    void *arg;
    uint64_t trace; /* of the API call that it belongs to; 0: none */
};

/* The requests, as layers/proto.h describes them. Texts are copied, descriptors taken over. */
layersc_call layersc_capture(struct layersc *s, const struct layersc_to *to, const char *sandbox, const char *stack,
                             const char *earlier, uint32_t flags);
layersc_call layersc_drop(struct layersc *s, const struct layersc_to *to, const char *stack);
/* archive: a descriptor, or -1. */
layersc_call layersc_import(struct layersc *s, const struct layersc_to *to, const char *stack, const char *ref,
                            bool private_registry, int archive);
layersc_call layersc_restore(struct layersc *s, const struct layersc_to *to, const char *stack, int archive);
layersc_call layersc_export(struct layersc *s, const struct layersc_to *to, const char *stack);
layersc_call layersc_convert(struct layersc *s, const struct layersc_to *to, const char *blob, uint64_t bytes, int tar);
layersc_call layersc_blob(struct layersc *s, const struct layersc_to *to, const char *blob);
/* Of two stacks, or, with other NULL, of a stack and the living sandbox. */
layersc_call layersc_diff(struct layersc *s, const struct layersc_to *to, const char *stack, const char *other,
                          const char *sandbox);
layersc_call layersc_open(struct layersc *s, const struct layersc_to *to, const char *stack, const char *path);
layersc_call layersc_apply(struct layersc *s, const struct layersc_to *to, const char *sandbox, const char *stack,
                           const char *other, bool back);
layersc_call layersc_flatten(struct layersc *s, const struct layersc_to *to, const char *stack);
layersc_call layersc_verify(struct layersc *s, const struct layersc_to *to, const char *stack); /* "": everything */
layersc_call layersc_gc(struct layersc *s, const struct layersc_to *to, bool dry);
layersc_call layersc_df(struct layersc *s, const struct layersc_to *to);
layersc_call layersc_usage(struct layersc *s, const struct layersc_to *to, const char *stack);
layersc_call layersc_of_stacks(struct layersc *s, const struct layersc_to *to, const char *stack); /* "": of all */
layersc_call layersc_volume_make(struct layersc *s, const struct layersc_to *to, const char *volume, uint64_t bytes,
                                 uint64_t entries);
layersc_call layersc_volume_drop(struct layersc *s, const struct layersc_to *to, const char *volume);
layersc_call layersc_volume_stat(struct layersc *s, const struct layersc_to *to, const char *volume);
/* keep: its present limit of entries stays, and is `entries`. */
layersc_call layersc_volume_resize(struct layersc *s, const struct layersc_to *to, const char *volume, uint64_t bytes,
                                   uint64_t entries, bool keep);

/* What all of these come down to: sends a message of `size` bytes, copied; fills in version, request number and trace. At most
 * one descriptor, taken over; -1: none. */
layersc_call layersc_ask(struct layersc *s, const struct layersc_to *to, const struct layers_head *m, size_t size,
                         int fd);

/* The number of the owner's calls, without transfers, that were not sent yet. */
size_t layersc_waiting(const struct layersc *s, const char *owner);
/* Tells the layer store to end the job; `done` is not called any more. */
void layersc_cancel(struct layersc *s, layersc_call c);
typedef void layersc_listed(void *arg, const struct layers_item *v, size_t n, const struct layers_reply *failed);
void layersc_list(struct layersc *s, layersc_listed *done, void *arg);

#endif
