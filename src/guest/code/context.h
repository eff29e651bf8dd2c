/* context.h - contexts: a kernel each, its variables, and the cells that wait for it. One cell runs at a time.
 *
 *     STARTING --ready--> READY --the kernel ended--> STARTING
 *        `--did not start--> FAILED --the next cell--> STARTING
 */
#ifndef HUTCH_GUEST_CODE_CONTEXT_H
#define HUTCH_GUEST_CODE_CONTEXT_H

#include <jansson.h>

#include "guest/code/kernel.h"
#include "http/http.h"

enum {
    CONTEXTS_MAX = 32,
    CONTEXT_CELLS_MAX = 64, /* running and waiting, per context */
    CONTEXT_ID = 36,
    KEEPALIVE_MS = 2000,       /* a client that has gone is noticed when a line cannot be written */
    INTERRUPT_GRACE_MS = 4000, /* then the kernel is killed and started again */
    OUTPUT_GRACE_MS = 20000,   /* the same for one that has to get rid of much output first */
};

enum context_state { CONTEXT_STARTING, CONTEXT_READY, CONTEXT_FAILED };

struct cell;
struct waiter;
struct context {
    struct context *next;
    struct contexts *all;
    char id[CONTEXT_ID + 1];
    const struct language *language;
    char *cwd;
    struct kernel_rights rights; /* of its kernels */
    bool is_default;             /* of its language and rights */
    enum context_state state;
    char why[KERNEL_WHY];        /* FAILED */
    char notice[KERNEL_WHY + 1]; /* variables are lost, and no cell ran that could have said so: for the next one */
    struct kernel *kernel;
    struct cell *cells; /* the first one runs */
    size_t ncells;
    struct waiter *waiters;
};
struct contexts {
    struct kernel_world world;
    const char *cwd;             /* of contexts that name none */
    const struct language *warm; /* its default context starts with the service */
    char why[KERNEL_WHY];        /* it could not be made: the reason */
    struct context *first;
    size_t n;
};

/* ERR_HOST: the language is not installed; ERR_USAGE: the directory, the rights; ERR_LIMIT: too many. */
int context_new(struct contexts *all, const struct language *l, const char *cwd, const struct kernel_rights *rights,
                struct context **ret, struct err *err);
/* The default one of a language and these rights, made if needed. */
int context_default(struct contexts *all, const struct language *l, const struct kernel_rights *rights,
                    struct context **ret, struct err *err);
struct context *context_find(struct contexts *all, const char *id);
void context_free(struct context *c);
/* A new kernel; the running cell ends with an error that says `why`, one line. */
void context_restart(struct context *c, const char *why);
/* Answers r with the context (or null) once its kernel is ready, or with 500. */
void context_reply_when_ready(struct context *c, struct http_req *r, bool with_body);
void context_add_json(const struct context *c, struct buf *b);
/* Runs code and answers r line by line. `env` is an object of strings, or NULL. timeout_ms 0: none; output_max 0: as much as
 * any cell. False: too many cells wait. */
bool context_run(struct context *c, struct http_req *r, const char *code, json_t *env, uint64_t timeout_ms,
                 uint64_t output_max);

#endif
