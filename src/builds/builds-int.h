/* builds-int.h - a build under way: its state, and the functions that the files of this room share. Other
 * rooms see builds.h.
 */
#ifndef HUTCH_BUILDS_BUILDS_INT_H
#define HUTCH_BUILDS_BUILDS_INT_H

#include "base/map.h"
#include "builds/builds.h"
#include "db/db.h"
#include "network/doc/documents.h"
#include "peers/layersc.h"
#include "sandboxes/session.h"

struct build_own;
typedef void build_then(struct build_own *b, const char *error /* NULL: it went well */);

/* A command in the build's sandbox. */
struct build_command {
    const char *cmd;
    const char *const *args;
    const char *user, *cwd;
    bool env;   /* with the variables of the build */
    bool quiet; /* its output is not logged */
    int input;  /* its standard input, taken over; -1: none */
    uint64_t timeout_ms;
};
/* end NULL: the command could not be run; `failed` says why. */
typedef void build_ran(struct build_own *b, const struct exec_end *end, const struct link_status *failed);

enum { BUILD_INPUT_PIECE = 256 * 1024, BUILD_UNCHANGED = 3 /* exit code of our scripts: nothing had to be done */ };

/* The input of a command. It may outlive the command: a worker thread may be reading the next piece. */
struct build_input {
    struct build_own *build; /* NULL: the command is over; the worker's callback frees this */
    struct loop *loop;
    int fd;
    uint32_t pid;
    ssize_t n;
    bool reading;
    link_call call;
    char bytes[BUILD_INPUT_PIECE];
};

/* A stage that was built. */
struct build_made {
    char stack[STACK_BASE_MAX]; /* held */
    char key[SHA256_HEX];
    struct build_context ctx;
    char *start, *ready;
    bool missed;
};

struct build_own {
    struct build b; /* first */
    struct build_own *next;
    struct builds *builds;
    bool started, running, over;
    bool told_limits; /* the log says that limits are not enforced */
    bool missed;      /* a step was not in the cache: all steps after it are run too */
    struct build_plan plan;
    size_t stage;                  /* the stage under way; plan.nstages: the last one */
    struct build_made *stages;     /* finished stages */
    const char *read_stack;        /* stack of the stage that a COPY reads: the sandbox is made from it; NULL: none */
    struct build_reading *reading; /* stages.c: a COPY that reads from a stage */
    int read_fd;                   /* -1, or the file with the bytes that it read */
    struct build_context ctx;
    char *start, *ready;        /* of the result */
    char stack[STACK_BASE_MAX]; /* what the next sandbox is made from: a held stack, or a directory of the templates */
    char made[STACK_ID_MAX];    /* the stack that is being captured */
    char key[SHA256_HEX];       /* cache key of `stack` */
    char step_key[SHA256_HEX];  /* of the step under way */
    char step[12];              /* for the log */
    size_t at;                  /* step under way */
    size_t tag;                 /* tag that is being put */
    unsigned layers;            /* made since the last flattening */
    uint64_t bytes;             /* of the result */
    char sandbox[SANDBOX_ID_MAX]; /* "": none is open */
    layersc_call call;            /* pending; 0: none */
    bool capturing;               /* a capture is under way; it cannot be cancelled */
    bool opening;                 /* a sandbox is being made; that cannot be cancelled either */
    bool cancelled;               /* the build ends when the capture has ended */
    bool proving;                 /* the result is captured and not recorded yet: no other build uses its stack */
    bool recording;               /* too late to cancel */
    layersc_done *no_layers;      /* callback to call when there is no connection to the layer store */
    struct image_call *import;    /* pending */
    build_then *then;             /* waits for the sandbox, a capture or the layer store */
    build_then *base_then;        /* waits for what the build starts from */
    struct session *exec;         /* the command under way */
    build_ran *ran;               /* waits for it */
    bool quiet;
    struct build_input *in;          /* of it; NULL: none */
    struct build_starting *starting; /* start.c */
};

struct build_cached {
    char *name; /* "tenant/key" */
    char tenant[40], key[SHA256_HEX], stack[STACK_ID_MAX];
    uint64_t used_unix;
};

struct builds {
    struct loop *loop; /* these, up to id_key, are borrowed */
    const struct config *config;
    struct db *db;
    const struct peers *peers;
    struct tenants *tenants;
    struct stacks *stacks;
    struct templates *templates;
    struct sandboxes *sandboxes;
    int own_dir;
    const unsigned char *id_key; /* BUILDS_KEY bytes */
    struct build_own *first;     /* newest first */
    size_t n;
    unsigned running;
    struct map cache; /* build_cached by name */
    struct net_doc network;
    bool have_network;
    loop_id timer;
    struct image_call *imports;
};

/* builds.c */
void build_ended(struct build_own *b); /* frees its slot and starts the next build */

/* run.c */
loop_fn build_begin;
void build_fail(struct build_own *b, const char *step, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
void build_path_fail(struct build_own *b); /* fails the build: build_path() returned NULL */
void build_stop(struct build_own *b);      /* ends it as cancelled, now or when a capture under way has ended */

/* sandbox.c */
/* Makes a sandbox from b->stack, or uses the open one. */
void build_sandbox_open(struct build_own *b, build_then *then);
void build_sandbox_run(struct build_own *b, const struct build_command *c, build_ran *ran);
/* Captures its files as a new stack, which becomes b->stack. */
void build_sandbox_capture(struct build_own *b, build_then *then);
void build_sandbox_close(struct build_own *b);
/* Replaces b->stack; held: the new one is held already. */
void build_set_stack(struct build_own *b, const char *stack, bool held);
/* Cancels all calls; no callback comes after it. */
void build_sandbox_drop(struct build_own *b);
/* For /bin/sh -c: runs its argument in a login shell, bash where there is one. */
extern const char build_shell[];
/* The layer store, for a call that becomes b->call; NULL: it is not there, and `done` will be told LAYERS_BUSY. */
struct layersc *build_layers(struct build_own *b, layersc_done *done);
/* Asks it how large a stack is. */
void build_usage(struct build_own *b, const char *stack, layersc_done *done);
/* "exit status 1", "signal: killed" */
void build_end_text(const struct exec_end *end, uint64_t timeout_ms, struct buf *out);

/* stages.c */
const struct build_stage *build_stage_now(const struct build_own *b);
/* Finds what the stage starts from; passes `then` to build_base(). */
void build_stage_begin(struct build_own *b, build_then *then);
/* Ends the stage after its steps; b->stage is the next one. */
void build_stage_end(struct build_own *b);
/* COPY from a stage: reads the files in a sandbox of that stage, then opens the sandbox of the step for
 * build_copy(). */
void build_stage_read(struct build_own *b, const struct build_step *s, build_then *then);
/* Whether other stages only read files from this one, so that only our own program runs in it. */
bool build_stage_bare(const struct build_own *b);
/* Takes output of the reading command. False: stop sending until session_resume(). */
bool build_stage_output(struct build_own *b, const void *p, size_t n);
void build_stages_drop(struct build_own *b);

/* copy.c */
extern const char build_tool[]; /* our own program, inside a sandbox */
void build_copy(struct build_own *b, const struct build_step *s, build_ran *ran, build_then *failed);

/* find.c: the template that is this image, of the build's tenant or the node's. NULL: none. */
const struct template *build_image_find(struct build_own *b, const struct build_image *i,
                                        const struct template_tag **ret);

/* images.c: finds what the build starts from: sets stack, key, ctx, start, ready. */
void build_base(struct build_own *b, build_then *then);
/* Makes a user of that name if there is none; runs as root. */
void build_user(struct build_own *b, const char *name, bool sudo, build_ran *ran);
/* At the end of front: frees all calls, because layersc_free() and db_close() make no callbacks. */
void image_calls_free(struct builds *bs);

/* start.c: runs the start command until it is ready, and stops it. */
void build_try_start(struct build_own *b, build_then *then);
void build_start_drop(struct build_own *b);

/* cache.c */
int build_cache_load(struct builds *bs, struct err *err);
void build_cache_free(struct builds *bs);
const struct build_cached *build_cache_find(struct builds *bs, const struct tenant *t, const char *key);
void build_cache_put(struct builds *bs, const struct tenant *t, const char *key, const char *stack);
void build_cache_del(struct builds *bs, const struct tenant *t, const char *key);
void build_cache_sweep(struct builds *bs); /* steps of tenants that are gone */

#endif
