/* transactions.h - a command on a private copy of a sandbox's files, looked at before it counts.
 *
 * The copy is a hidden sandbox made from a capture (files only: processes and ports of the original are not there).
 * What the command left is captured too, and the two stacks are the transaction: their difference is shown, committing
 * applies it to the original, discarding drops both. Several may stand side by side. They are rows: a restart of front changes
 * nothing, the end of the sandbox ends them. A commit is written down before it begins, and whatever dies meanwhile, it is
 * asked for again until stock says that all or nothing of it was done; until then nobody else may touch the sandbox's files
 * as a whole. Going back to a generation (generations.h) is done in the same way, as a commit of what that changes.
 */
#ifndef HUTCH_FRONT_TRANSACTIONS_H
#define HUTCH_FRONT_TRANSACTIONS_H

#include "base/strv.h"
#include "front/state.h"

enum {
    TRANSACTIONS_PER_BOX = 16,
    TRANSACTIONS_PER_TENANT = 64,
    TRANSACTION_OUTPUT_MAX = 1 << 20,  /* of each stream; what comes later is counted, not kept */
    TRANSACTION_STORED_MAX = 64 << 10, /* of each stream, beyond the life of this front */
    TRANSACTION_KEPT_S = 3600,
    TRANSACTION_TIME_S = 60,
    TRANSACTION_TIME_MAX_S = 600,
};

#define TRANSACTION_COMMIT "the commit of a transaction" /* box->busy */
#define TRANSACTION_UNDO   "an undo"

struct committing;
struct transaction {
    char id[24]; /* "tx-..." */
    char box[SANDBOX_ID_MAX], tenant[40];
    char base[STACK_ID_MAX], result[STACK_ID_MAX];
    char command[200];
    uint64_t at_unix_ms;
    bool exited;
    int code; /* exit status, or the signal */
    uint64_t wall_ms, omitted[3];
    struct buf out[3]; /* 1 stdout, 2 stderr */
    bool undo;         /* from the generation `base` to the generation `result`; nobody sees it as a transaction */
    bool open;         /* it waits for a decision */
    bool busy;         /* being committed */
    bool written;      /* there is a row */
    struct committing *commit;
};

struct transaction_spec {
    const char *command;    /* for a shell */
    const char *user, *cwd; /* NULL: the sandbox's */
    struct strv env;
    uint64_t timeout_s;
};

int transactions_load(struct front *f, struct err *err); /* after boxes_load() */
/* Commits and undos that were under way go on; stock may be asked by now, and nobody else has asked for anything. */
void transactions_resume(struct front *f);
uint64_t transactions_bytes(struct front *f, const struct tenant *t); /* of what their commands wrote */
void transactions_free(struct front *f);
/* t is borrowed for the call; NULL with a failure. */
typedef void transaction_done(void *arg, const struct transaction *t, const struct state_failure *failure);
void transaction_start(struct front *f, struct box *b, const struct transaction_spec *spec, transaction_done *done,
                       void *arg);
struct transaction *transaction_find(struct front *f, const char *box, const char *id);
typedef void transaction_each_fn(void *arg, const struct transaction *t);
void transactions_each(struct front *f, const char *box, transaction_each_fn *fn, void *arg);
/* conflicts: a descriptor with paths, one per line, or -1; the callee's. */
typedef void transaction_committed(void *arg, const struct stock_reply *r, const struct state_failure *failure,
                                   int conflicts);
void transaction_commit(struct front *f, struct box *b, struct transaction *t, transaction_committed *done, void *arg);
/* All of the sandbox's files become those of the stack `to`, whatever they are; `from` is a stack of what they were, of this
 * undo alone. */
void transaction_undo(struct front *f, struct box *b, const char *from, const char *to, transaction_committed *done,
                      void *arg);
void transaction_discard(struct front *f, struct transaction *t);

#endif
