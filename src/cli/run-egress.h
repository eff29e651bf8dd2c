/* run-egress.h - the network of one `hutch run` with rules: a short-lived egress process beside it, and what it tells.
 *
 * The process is hutch-node, with an authority of its own that lives as long as it does. It gets the policy
 * first; the sandbox's
 * two sockets follow when init has made them. It ends when the run lets go of its control connection, however the run ends.
 */
#ifndef HUTCH_CLI_RUN_EGRESS_H
#define HUTCH_CLI_RUN_EGRESS_H

#include <jansson.h>
#include <sys/types.h>

#include "base/buf.h"
#include "base/json.h"
#include "base/strv.h"
#include "cli/denials.h"
#include "cli/run-secrets.h"
#include "policy/policy.h"
#include "wall/wall.h"

enum { RUN_EGRESS_FILES = 8, RUN_EGRESS_REQUESTS = 256 /* kept for the record */, RUN_EGRESS_WANTED = 500 };

struct run_egress {
    pid_t pid;   /* 0: none */
    int attach;  /* SEQPACKET; -1 */
    int control; /* STREAM; -1. Readable: run_egress_event() */
    struct buf in;
    struct denials *denials; /* set by the caller once it has them; borrowed */
    bool applied, answered;
    char error[400];
    struct buf bundle, ca; /* the roots inside: the host's and the run's own */
    struct wall_file files[RUN_EGRESS_FILES];
    size_t nfiles;
    json_t *stats; /* of the sandbox, at the end; NULL */
    json_t *log;   /* what left it, the first RUN_EGRESS_REQUESTS; NULL: nothing */
    uint64_t left_out;
    struct strv wanted;  /* --learn: HOST or HOST:PORT, reached or refused for want of a rule */
    struct strv missing; /* those of them that were refused */
};
/* clang-format off */
#define RUN_EGRESS_INIT {.attach = -1, .control = -1}
/* clang-format on */

/* Starts the process and waits until it has taken the secrets and the policy. Adds variables to `env` that are not set
 * there. audit: the file of --audit, or -1; borrowed. */
int run_egress_start(struct run_egress *r, const struct policy *policy, const struct run_secrets *secrets, int audit,
                     struct strv *env, struct err *err);
/* The sockets of the sandbox, from WALL_MSG_NETWORK; closes them. */
void run_egress_attach(struct run_egress *r, const int fds[2]);
/* Takes what is there to read, without blocking. False: the process is gone; nothing leaves the sandbox any more. */
bool run_egress_event(struct run_egress *r);
/* Everything inside is dead: collects what was still to be told, and ends the process. */
void run_egress_finish(struct run_egress *r);
/* The object "network" of the record, if there were rules. */
void run_egress_json(const struct run_egress *r, struct json *j);

#endif
