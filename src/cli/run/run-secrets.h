/* run-secrets.h - `hutch run --secret`: values that the command uses and never holds.
 *
 * Inside, the variable holds a placeholder; the run's egress replaces it by the value in requests to the hosts it is bound
 * to, and nowhere else (docs/secrets.md). The value comes from the caller's variable of that name or from a file. This
 * process overwrites it, also in its environment, once egress has it and before anything is cloned.
 */
#ifndef HUTCH_CLI_RUN_RUN_SECRETS_H
#define HUTCH_CLI_RUN_RUN_SECRETS_H

#include "base/buf.h"
#include "cli/run/options.h"
#include "policy/run/plan.h"
#include "policy/run/policy.h"

enum {
    RUN_SECRETS_MAX = 16,
    RUN_SECRET_HOSTS_MAX = 32, /* of one secret */
    RUN_SECRET_NAME_MAX = 64,  /* with its NUL */
    RUN_SECRET_MIN = 8,        /* shorter values cannot be told from ordinary text in responses and variables */
    RUN_SECRET_MAX = 64 * 1024,
    RUN_SECRET_PLACEHOLDER = 40,
};

struct run_secret {
    char name[RUN_SECRET_NAME_MAX];
    struct strv hosts; /* HOST or HOST:PORT */
    char *file;        /* absolute; NULL: from the environment */
    bool hide;         /* the file must be hidden from the command */
    struct buf value;
    char placeholder[RUN_SECRET_PLACEHOLDER];
};
struct run_secrets {
    struct run_secret v[RUN_SECRETS_MAX];
    size_t n;
    struct strv rules; /* texts that the flags point to */
};

/* Reads the options; no value yet. */
int run_secrets_parse(const struct run_args *a, struct run_secrets *ret, struct err *err);
/* Appends to *flags the rules that allow the hosts and hide the files; it has room for run_secrets_nflags(). The texts live
 * as long as `s`. */
size_t run_secrets_nflags(const struct run_secrets *s);
void run_secrets_flags(struct run_secrets *s, struct policy_flag *flags, size_t *n);
/* Reads the values and puts the placeholders into `env`. Drops other variables of the caller that hold a value, with a line
 * in `notes`. A value in a policy, an option or the command's words is an error, as is a file that would be visible inside. */
int run_secrets_take(struct run_secrets *s, const struct policy *policy, const struct plan *plan, char *const *command,
                     struct strv *env, struct strv *notes, struct err *err);
/* Writes the message "secret" of egress/proto.h for one of them; the caller overwrites it after use. */
void run_secrets_message(const struct run_secret *s, const char *tenant, struct buf *out);
/* Overwrites the values here and in the environment of this process. */
void run_secrets_forget(struct run_secrets *s);

#endif
