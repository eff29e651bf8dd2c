/* creation.h - a sandbox that is being made: ask.c checks the request and waits for the template,
 * create.c makes the sandbox. A creation is in the list sandboxes.creations from sandbox_create() on. It
 * is freed after all askers were answered and the last call to the database, keeper, egress and init has returned.
 */
#ifndef HUTCH_SANDBOXES_CREATION_H
#define HUTCH_SANDBOXES_CREATION_H

#include "network/doc/documents.h"
#include "sandboxes/sandboxes-int.h"

struct asker {
    struct asker *next;
    sandbox_created *done;
    void *arg;
};
struct creation {
    struct creation *next, **link; /* of the list sandboxes.creations */
    struct sandboxes *sandboxes;
    struct tenant *tenant;
    struct sandbox_own *sandbox; /* NULL until quotas have admitted it */
    struct sandbox_desc desc;    /* moves to the sandbox when that is made */
    struct template_info info;   /* of its template */
    char *template, *idem_key;   /* as asked for */
    const char *unique;          /* sandbox_spec.unique */
    struct start_run *start;
    struct net_doc net; /* document NULL: off */
    char digest[72];
    struct asker *askers;
    uint64_t wait_until;
    loop_id timer;
    unsigned awaits; /* SANDBOX_AWAITS_*: calls under way, and what the sandbox still needs */
    bool over, freeing;
    bool started;                   /* the start command has been run */
    struct sandbox_failure failure; /* status 0: none */
};

/* Called when the template is ready: checks quotas, makes the sandbox and its rows, and asks keeper. */
void creation_start(struct creation *c);

/* Answers all askers. Frees nothing. */
void creation_tell(struct creation *c, struct sandbox *b, const struct sandbox_failure *failure);
void creation_maybe_free(struct creation *c);

/* Sets the failure. creation_fail() then undoes what was done and answers with that failure; it is also a loop
 * callback. */
__attribute__((format(printf, 5, 6))) void creation_refuse(struct creation *c, unsigned status, unsigned retry,
                                                           const char *code, const char *fmt, ...);
void creation_fail(void *c);

#endif
