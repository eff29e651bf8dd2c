/* transactions.h - runs a command on a private copy of a sandbox's files; the client then commits or discards the
 * changes.
 *
 * The copy is a hidden sandbox made from a capture (files only, without processes and ports of the original).
 * After the command the copy is captured too. The two stacks are the transaction: clients see their difference, a
 * commit applies it to the original, discarding drops both. A sandbox may have several. Transactions are rows: they
 * survive a restart of front and end with their sandbox. A commit is recorded before it begins and repeated after a
 * crash until the layer store reports that all or nothing of it was applied; until then no other operation may read
 * or change all files of the sandbox. Going back to a generation (generations.h) is a commit of the difference to
 * it.
 */
#ifndef HUTCH_SNAPSHOTS_TRANSACTIONS_H
#define HUTCH_SNAPSHOTS_TRANSACTIONS_H

#include "base/strv.h"
#include "sandboxes/rights.h"
#include "sandboxes/session.h"
#include "snapshots/snapshots.h"

enum {
    TRANSACTIONS_PER_SANDBOX = 16,
    TRANSACTIONS_PER_TENANT = 64,
    TRANSACTION_OUTPUT_MAX = 1 << 20,  /* of each stream; the rest is counted, not kept */
    TRANSACTION_STORED_MAX = 64 << 10, /* of each stream, in the row */
    TRANSACTION_KEPT_S = 3600,
    TRANSACTION_TIME_S = 60,
    TRANSACTION_TIME_MAX_S = 600,
};

#define TRANSACTION_COMMIT "the commit of a transaction" /* sandbox->busy */
#define TRANSACTION_UNDO   "an undo"

struct committing;
struct transaction {
    char id[24]; /* "tx-..." */
    char sandbox[SANDBOX_ID_MAX], tenant[40];
    char base[STACK_ID_MAX], result[STACK_ID_MAX];
    char command[200];
    uint64_t at_unix_ms;
    bool exited;
    int code; /* exit status, or the signal */
    uint64_t wall_ms;
    struct session_output output;
    bool undo;    /* goes from generation `base` back to generation `result`; hidden from the API of transactions */
    bool open;    /* waits for commit or discard */
    bool busy;    /* being committed */
    bool written; /* there is a row */
    struct committing *commit;
};

struct transaction_spec {
    const char *command;    /* for a shell */
    const char *user, *cwd; /* NULL: the sandbox's */
    struct strv env;
    uint64_t timeout_s;
    struct rights *rights; /* taken from there; NULL: those of the sandbox */
};

int transactions_load(struct snapshots *sn, struct err *err); /* after sandboxes_load() */
/* Continues commits and undos that a restart interrupted. Call when the layer store can be asked, before any other
 * operation. */
void transactions_resume(struct snapshots *sn);
uint64_t transactions_bytes(struct snapshots *sn, const struct tenant *t); /* of the kept output of their commands */
void transactions_free(struct snapshots *sn);
/* t is borrowed for the call; NULL with a failure. */
typedef void transaction_done(void *arg, const struct transaction *t, const struct state_failure *failure);
void transaction_start(struct snapshots *sn, struct sandbox *b, const struct transaction_spec *spec,
                       transaction_done *done, void *arg);
struct transaction *transaction_find(struct snapshots *sn, const char *sandbox, const char *id);
typedef void transaction_each_fn(void *arg, const struct transaction *t);
void transactions_each(struct snapshots *sn, const char *sandbox, transaction_each_fn *fn, void *arg);
/* conflicts: a file with paths, one per line, which the callee closes; or -1. */
typedef void transaction_committed(void *arg, const struct layers_reply *r, const struct state_failure *failure,
                                   int conflicts);
void transaction_commit(struct snapshots *sn, struct sandbox *b, struct transaction *t, transaction_committed *done,
                        void *arg);
/* Replaces all of the sandbox's files by those of the stack `to`; `from` is a stack of the present files, made for
 * this undo. */
void transaction_undo(struct snapshots *sn, struct sandbox *b, const char *from, const char *to,
                      transaction_committed *done, void *arg);
void transaction_discard(struct snapshots *sn, struct transaction *t);

#endif
