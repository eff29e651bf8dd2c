/* run-egress.h - the network of one `hutch run` with rules: starts a short-lived egress process and collects its reports.
 *
 * The process is hutch-node, with a certificate authority that lives as long as it does. It gets the policy first, and the
 * sandbox's two sockets when init has made them. It ends when its control connection closes, however the run ends.
 */
#ifndef HUTCH_CLI_RUN_RUN_EGRESS_H
#define HUTCH_CLI_RUN_RUN_EGRESS_H

#include <jansson.h>
#include <sys/types.h>

#include "base/buf.h"
#include "base/json.h"
#include "base/strv.h"
#include "cli/run/denials.h"
#include "cli/run/run-java.h"
#include "cli/run/run-secrets.h"
#include "policy/run/policy.h"
#include "wall/wall.h"

enum {
    RUN_EGRESS_FILES = 8 + RUN_JAVA_STORES + 1,
    RUN_EGRESS_REQUESTS = 256 /* kept for the record */,
    RUN_EGRESS_WANTED = 500
};

struct run_egress {
    pid_t pid;   /* 0: none */
    int attach;  /* SEQPACKET; -1 */
    int control; /* STREAM; -1. Readable: run_egress_event() */
    struct buf in;
    struct denials *denials; /* set by the caller later; borrowed */
    bool applied, answered;
    char error[400];
    struct buf bundle, ca; /* certificates trusted inside: the host's and the run's own */
    struct run_java java;
    struct wall_file files[RUN_EGRESS_FILES];
    size_t nfiles;
    json_t *stats; /* of the sandbox, at the end; NULL */
    json_t *log;   /* the first RUN_EGRESS_REQUESTS requests; NULL: none */
    uint64_t left_out;
    struct strv wanted;  /* --learn: HOST or HOST:PORT, reached or refused because no rule allows it */
    struct strv missing; /* those of them that were refused */
};
/* clang-format off */
#define RUN_EGRESS_INIT {.attach = -1, .control = -1}
/* clang-format on */

/* Starts the process and waits until it has taken the secrets and the policy. Adds variables to `env` that are not set
 * there. audit: the file of --audit, or -1; borrowed. */
int run_egress_start(struct run_egress *r, const struct policy *policy, const struct run_secrets *secrets, int audit,
                     struct strv *env, struct err *err);
/* Hands over the sockets of the sandbox, from WALL_MSG_NETWORK, and closes them here. */
void run_egress_attach(struct run_egress *r, const int fds[2]);
/* Reads reports without blocking. False: the process is gone, and nothing can leave the sandbox any more. */
bool run_egress_event(struct run_egress *r);
/* After the sandbox has ended: collects the last reports and ends the process. */
void run_egress_finish(struct run_egress *r);
/* Writes the object "network" of the record, if there were rules. */
void run_egress_json(const struct run_egress *r, struct json *j);

#endif
