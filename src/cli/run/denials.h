/* denials.h - collects what was refused while a command runs. It never decides what is refused.
 *
 * Sources: the seccomp listener (rare calls that the filter refuses, and with --explain the calls that mean to write to
 * a path), cgroup counters and limits. Refused calls get the errno that filter_answer() names; netlink sockets are made
 * up to a number (os/notified.h). Path calls are always continued and the kernel decides; their record is `probable`, found
 * by looking the path up in the plan. Equal refusals are counted in one entry; the list is bounded and counts what it
 * leaves out. Strings come from the sandbox: they are capped, and escaped when printed.
 */
#ifndef HUTCH_CLI_RUN_DENIALS_H
#define HUTCH_CLI_RUN_DENIALS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/buf.h"
#include "base/json.h"
#include "policy/run/plan.h"
#include "policy/run/policy.h"

enum {
    DENIALS_MAX = 256,        /* different refusals kept */
    DENIALS_SUBJECT_MAX = 512 /* bytes of a path or argument kept */
};

struct denials;

/* Callbacks for --learn: every existing path that a call names, and every call that the filter reports. Paths are resolved
 * inside and not capped. */
struct denials_watch {
    void *ctx;
    void (*path)(void *ctx, const char *path, bool write);
    void (*move)(void *ctx, const char *to);
    /* name: as syscalls.allow takes it; NULL: no policy can allow it */
    void (*call)(void *ctx, const char *name, const char *subject, bool grantable);
};

/* policy, plan: borrowed until denials_free. filter_flags: struct filter.flags. explain: the caller asked for
 * --explain. */
struct denials *denials_new(const struct policy *policy, const struct plan *plan, unsigned filter_flags);
void denials_free(struct denials *d);
/* With FILTER_LEARN, lets refused calls pass that a policy could grant, and records them. */
void denials_set_watch(struct denials *d, const struct denials_watch *watch);

/* Sets the network namespace in which netlink sockets are made for the sandbox; the default is our own. Takes the
 * descriptor. */
void denials_set_network(struct denials *d, int netns);
/* Handles one notification that poll() announced on `listener`: records and answers it. `init` is the sandbox's pid
 * 1 as seen outside. Does not block longer than it takes to read a path from the caller's memory. */
void denials_notified(struct denials *d, int listener, pid_t init);
/* Records a limit that was hit: "pids", 12 times, value 100. */
void denials_limit(struct denials *d, enum limit_id limit, uint64_t count);

/* A refusal by the network's rules, as egress tells it. Strings may be empty; all of them come from the sandbox. */
struct denials_net {
    const char *host, *method, *path, *reason, *rule, *text;
    unsigned port;
};
void denials_network(struct denials *d, const struct denials_net *n, uint64_t count);

/* The flags that would allow what was refused, each once, at most `max`; borrowed. */
size_t denials_grants(const struct denials *d, const char **ret, size_t max);
/* Number of refusals so far, repeats included; what on_denial counts. */
uint64_t denials_total(const struct denials *d);

void denials_json(const struct denials *d, struct json *j); /* writes the array "denials" and "denials_omitted" */
/* A few lines for people: what, why, the smallest grant. Nothing if nothing was refused. */
void denials_tail(const struct denials *d, struct buf *out);

#endif
