/* session.h - one command in a sandbox, from its start or attachment to what its end means. Dialects, transactions,
 * builds and start commands all run commands through it, so that limits, history, refusals and events are the same for
 * each.
 *
 * A session follows one command in a sandbox that runs: sandbox_awake() wakes it and sandbox_in_use() keeps it awake; for
 * requests api_awake() does both. It ends exactly once, by `ended` or `failed`, and is freed after that call. Input,
 * signals and lists of commands need no session: peers/exec.h.
 */
#ifndef HUTCH_SANDBOXES_SESSION_H
#define HUTCH_SANDBOXES_SESSION_H

#include "base/buf.h"
#include "peers/exec.h"
#include "sandboxes/sandboxes.h"

struct generation;
struct json;

/* Collected output: the first `max` bytes of each stream, and how many bytes followed them. Output of a terminal counts as
 * EXEC_STDOUT. The caller owns it. */
struct session_output {
    size_t max;
    struct buf kept[3]; /* [EXEC_STDOUT], [EXEC_STDERR] */
    uint64_t omitted[3];
};
void session_output_done(struct session_output *o);

struct session_spec {
    struct exec_spec exec; /* copied; args may be NULL */
    /* A client's command: its end opens a generation if the sandbox keeps history, and is published as an event if the
     * command was killed or calls of it were refused. False: a command of the node itself. */
    bool recorded;
    bool generation; /* with `recorded`: its end opens a generation in any case */
    /* The session fails with LINK_TIMEOUT after this time and kills its command; 0: never. init's own limit
     * (exec.timeout_ms) follows a little later, for the case that front has ended. */
    uint64_t deadline_ms;
    struct session_output *collect; /* NULL: output is delivered, or dropped if ops->output is NULL */
};

struct session_end {
    const struct exec_end *exec;
    const struct exec_rights
        *rights;       /* that the command had, without its paths; NULL: those of the sandbox, or not known */
    uint64_t begun_ms; /* loop time of the start */
    const struct generation *generation; /* the one that the command opened (snapshots/generations.h); NULL: none */
    const char *generation_error;        /* why it opened none although it had to; else NULL */
};

/* Makes a generation of a sandbox's files; the room snapshots has it. */
struct snapshots;
typedef void session_generation_done(void *arg, const struct generation *g, const struct state_failure *failure);
typedef void session_generation_fn(struct snapshots *sn, struct sandbox *b, const char *command,
                                   session_generation_done *done, void *arg);
void sandboxes_set_generations(struct sandboxes *sb, session_generation_fn *make, struct snapshots *sn);

/* Only `ended` and `failed` are required. Pointers are borrowed for the call. */
struct session_ops {
    void (*started)(void *arg, uint32_t pid);
    bool (*output)(void *arg, enum exec_stream s, uint64_t offset, const void *p, size_t n); /* as in exec_ops */
    void (*ended)(void *arg, const struct session_end *end);
    void (*failed)(void *arg, const struct link_status *st);
};

struct session;
struct session *session_start(struct sandboxes *sb, const char *id, const struct session_spec *spec,
                              const struct session_ops *ops, void *arg);
/* Follows a command that runs already, from these offsets on (exec_attach()). deadline_ms ends only the session. */
struct session *session_attach(struct sandboxes *sb, const char *id, const struct exec_select *who,
                               const uint64_t from[4], uint64_t deadline_ms, const struct session_ops *ops, void *arg);
/* After `output` returned false. */
void session_resume(struct session *s);
/* Ends the session without a callback; the command runs on. A generation that is being made is still kept. NULL is fine. */
void session_detach(struct session *s);

/* "exit status 3", "signal: killed (core dumped)": the words of Go's standard library, which clients compare. */
enum { SESSION_STATUS_MAX = 80 };
void session_status_text(const struct exec_end *end, char ret[SESSION_STATUS_MAX]);
/* Whether a signal or the memory limit ended it. */
static inline bool session_was_killed(const struct exec_end *end) { return !end->exited || end->oom; }

/* session-denials.c: adds "denials" if there are any: system calls that the filter refused to the command, what the
 * network refused to the sandbox since the command began, and, if it failed, which of its own rights may be why. */
void session_add_denials(struct sandboxes *sb, const char *id, const struct session_end *end, struct json *j);
/* The same of system calls alone, as an array; each refusal of the network is an event already. */
void session_add_denied_calls(const struct sandboxes *sb, const struct exec_end *end, struct json *j);

#endif
