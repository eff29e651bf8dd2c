/* exec.h - starts commands inside a sandbox and follows their output. It trusts no byte that init sends.
 *
 * init reads the output of every command into one bounded ring per stream, numbered by byte offsets that never wrap. An
 * attachment reads from an offset on and acknowledges what it delivered. Several attachments may follow one command.
 * A command outlives its attachments; init keeps its end until it was delivered and for 30 s after that.
 */
#ifndef HUTCH_PEERS_EXEC_H
#define HUTCH_PEERS_EXEC_H

#include <sys/resource.h>

#include "peers/link.h"

enum exec_stream { EXEC_STDOUT = 1, EXEC_STDERR = 2, EXEC_PTY = 3 };
enum { EXEC_CHUNK_MAX = 32 * 1024, EXEC_ARGS_MAX = 1024, EXEC_TAG_MAX = 128, EXEC_WRITE_MAX = 32 };

/* What a command and its children may less than others in the sandbox. It has no way back: setuid programs do not work. */
struct exec_rights {
    bool no_network;          /* no sockets but connected pairs */
    bool limit_write;         /* it changes files below `write` only */
    const char *const *write; /* paths inside, NULL-terminated; NULL: none */
    bool own_user;            /* a uid of its own; exec_spec.user is not looked at */
    uint64_t time_ms;         /* after which it is ended with all that it started; 0: never */
    uint64_t output_max;      /* bytes of output, after which the same happens; 0: no end */
    uint64_t memory;          /* bytes, within the sandbox's limit; needs exec_spec.group. 0: no limit of its own */
};

struct exec_spec {
    const char *cmd;         /* looked up in the PATH of the command's environment */
    const char *const *args; /* without argv[0]; NULL-terminated */
    const char *const *env;  /* "K=V", on top of the sandbox's own; NULL-terminated; may be NULL */
    const char *cwd; /* NULL: the default working directory; must exist, else LINK_INVALID "cwd '<p>' does not exist" */
    const char *user; /* NULL: the default user */
    const char *tag;  /* may be NULL */
    bool pty;
    uint16_t cols, rows;
    bool stdin_open;     /* false: /dev/null */
    uint64_t timeout_ms; /* init kills the command after this time, attached or not; 0: never */
    uint64_t group;      /* number of a cgroup that keeper gave to init (keeperc_limit()) for this command; 0: none */
    const struct exec_rights *rights; /* NULL: those of the sandbox. An init that is older than them: LINK_STATE */
    bool keep_output; /* a full ring stops the command (back-pressure) instead of dropping the oldest bytes */
};

/* A call that the sandbox's filter refused; the arguments are those of the first time. */
enum { EXEC_DENIED_MAX = 16 };
struct exec_denied {
    uint32_t nr, count;
    uint64_t args[3];
};

enum exec_limit { EXEC_LIMIT_NONE, EXEC_LIMIT_TIME, EXEC_LIMIT_OUTPUT, EXEC_LIMIT_MEMORY };

struct exec_end {
    bool exited; /* false: killed by a signal */
    int code;    /* exit status or signal number */
    bool core;
    struct rusage usage;
    uint64_t wall_ms;
    uint64_t omitted[4];   /* bytes per stream that were dropped because no attachment read them in time */
    enum exec_limit limit; /* of its rights, that ended it */
    bool oom;              /* the sandbox's memory limit killed something during this command */
    struct exec_denied denied[EXEC_DENIED_MAX];
    size_t ndenied;
};

struct exec_ops {
    void (*started)(void *arg, uint32_t pid, const char *tag);
    /* offset: of the first byte. False: stop until exec_resume(). At most EXEC_CHUNK_MAX bytes. */
    bool (*output)(void *arg, enum exec_stream s, uint64_t offset, const void *p, size_t n);
    void (*ended)(void *arg, const struct exec_end *end);    /* after the last output; the attachment is gone */
    void (*failed)(void *arg, const struct link_status *st); /* instead of, or after, started; the attachment is gone */
};

struct exec; /* one attachment */

/* Which process: by pid (as seen inside) or by tag. */
struct exec_select {
    uint32_t pid; /* 0: by tag */
    const char *tag;
};

struct exec *exec_start(struct links *ls, const char *id, const struct exec_spec *spec, const struct exec_ops *ops,
                        void *arg);
/* from: offsets per stream ([EXEC_STDOUT]..[EXEC_PTY]); UINT64_MAX = only what comes from now on. An offset that the
 * ring no longer has continues at its oldest byte (output's offset shows the gap). */
struct exec *exec_attach(struct links *ls, const char *id, const struct exec_select *who, const uint64_t from[4],
                         const struct exec_ops *ops, void *arg);
void exec_resume(struct exec *x);
/* Ends the attachment; no more callbacks. The command runs on. */
void exec_detach(struct exec *x);

link_call exec_signal(struct links *ls, const char *id, const struct exec_select *who, int sig, link_done *done,
                      void *arg);
link_call exec_input(struct links *ls, const char *id, const struct exec_select *who, const void *p, size_t n,
                     link_done *done, void *arg); /* done when init took all of it */
link_call exec_close_input(struct links *ls, const char *id, const struct exec_select *who, link_done *done, void *arg);
link_call exec_resize(struct links *ls, const char *id, const struct exec_select *who, uint16_t cols, uint16_t rows,
                      link_done *done, void *arg);

struct exec_info {
    uint32_t pid;
    bool pty;
    const char *cmd, *cwd, *tag; /* tag NULL if none; borrowed for the time of the callback */
    const char *const *args, *const *env;
};
typedef void exec_listed(void *arg, const struct link_status *st, const struct exec_info *v, size_t n);
link_call exec_list(struct links *ls, const char *id, exec_listed *done, void *arg);

#endif
