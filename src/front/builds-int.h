/* builds-int.h - inside of builds*.c: a build under way. */
#ifndef HUTCH_FRONT_BUILDS_INT_H
#define HUTCH_FRONT_BUILDS_INT_H

#include "base/map.h"
#include "front/builds.h"
#include "front/net-doc.h"
#include "sandbox/exec.h"
#include "sandbox/stockc.h"

struct build_own;
typedef void build_then(struct build_own *b, const char *error /* NULL: it went well */);

/* A command in the build's sandbox. */
struct build_command {
    const char *cmd;
    const char *const *args;
    const char *user, *cwd;
    bool env;   /* with the variables of the build */
    bool quiet; /* its output is not for the log */
    int input;  /* taken over: what it reads; -1: nothing */
    uint64_t timeout_ms;
};
/* end NULL: it could not be run, `failed` says why. */
typedef void build_ran(struct build_own *b, const struct exec_end *end, const struct link_status *failed);

enum { BUILD_INPUT_PIECE = 256 * 1024, BUILD_UNCHANGED = 3 /* exit code of our scripts: nothing had to be done */ };

/* What a command reads. It may outlive the command: a worker thread may be reading the next piece. */
struct build_input {
    struct build_own *build; /* NULL: nobody wants it any more */
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
    struct front *front;
    bool started, running, over;
    bool told_limits; /* that they are not enforced */
    bool missed;      /* a step was run: what follows is run too */
    struct build_plan plan;
    size_t stage;                  /* under way; plan.nstages: the last one */
    struct build_made *stages;     /* those before it */
    const char *read_stack;        /* of the stage that a COPY reads; NULL: none. The sandbox is made from it */
    struct build_reading *reading; /* builds-stages.c: they are on their way */
    int read_fd;                   /* -1, or the file with what was read */
    struct build_context ctx;
    char *start, *ready;        /* of the result */
    char stack[STACK_BASE_MAX]; /* what the next sandbox is made from: a stack, held, or a directory of the templates */
    char made[STACK_ID_MAX];    /* being captured */
    char key[SHA256_HEX];       /* of it */
    char step_key[SHA256_HEX];  /* of the step under way */
    char step[12];              /* for the log */
    size_t at;                  /* step under way */
    size_t tag;                 /* tag that is being put */
    unsigned layers;            /* made since the last flattening */
    uint64_t bytes;             /* of the result */
    char box[SANDBOX_ID_MAX];   /* "": none is open */
    stockc_call call;           /* pending; 0: none */
    bool capturing;             /* that call ends by itself */
    bool opening;               /* so does this: a sandbox is being made */
    bool cancelled;             /* ends when the capture has */
    bool proving;               /* the result is captured, and not recorded yet: it is this build's alone */
    bool recording;             /* too late to cancel */
    stockc_done *no_stock;      /* to be told that there is no stock */
    struct image_call *import;  /* pending */
    build_then *then;           /* waits for the box, a capture or stock */
    build_then *base_then;      /* waits for what the build starts from */
    struct exec *exec;          /* the command under way */
    build_ran *ran;             /* waits for it */
    bool quiet;
    struct build_input *in;          /* of it; NULL: none */
    struct build_starting *starting; /* builds-start.c */
};

struct build_cached {
    char *name; /* "tenant/key" */
    char tenant[40], key[SHA256_HEX], stack[STACK_ID_MAX];
    uint64_t used_unix;
};

struct builds {
    struct build_own *first; /* newest first */
    size_t n;
    unsigned running;
    struct map cache; /* build_cached by name */
    struct net_doc network;
    bool have_network;
    loop_id timer;
    struct image_call *imports;
};

/* builds.c */
uint64_t build_now_ms(void);
void build_ended(struct build_own *b); /* another one may run */

/* builds-run.c */
loop_fn build_begin;
void build_fail(struct build_own *b, const char *step, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
void build_path_fail(struct build_own *b); /* build_path() gave none */
void build_stop(struct build_own *b);      /* ends it as cancelled, now or when a capture under way has ended */

/* builds-box.c */
/* A sandbox made from b->stack; the one that is open, if one is. */
void build_box_open(struct build_own *b, build_then *then);
void build_box_run(struct build_own *b, const struct build_command *c, build_ran *ran);
/* Its files become a new stack, which is b->stack from then on. */
void build_box_capture(struct build_own *b, build_then *then);
void build_box_close(struct build_own *b);
/* Goes on from another stack; held: it is already. */
void build_set_stack(struct build_own *b, const char *stack, bool held);
/* No callback comes any more. */
void build_box_drop(struct build_own *b);
/* For /bin/sh -c: runs its argument in a login shell, bash where there is one. */
extern const char build_shell[];
/* Asks stock; the call is b->call. Without stock the answer is STOCK_BUSY. */
void build_stock(struct build_own *b, const struct stock_request *q, stockc_done *done);
/* "exit status 1", "signal: killed" */
void build_end_text(const struct exec_end *end, uint64_t timeout_ms, struct buf *out);

/* builds-stages.c */
const struct build_stage *build_stage_now(const struct build_own *b);
/* What a stage is made from; `then` is for build_base(). */
void build_stage_begin(struct build_own *b, build_then *then);
/* Its steps are done; b->stage is the next one. */
void build_stage_end(struct build_own *b);
/* Copies from a stage: reads its files and opens the sandbox of the step, for which build_copy() is. */
void build_stage_read(struct build_own *b, const struct build_step *s, build_then *then);
/* A stage that is only read from: nothing runs in it but our own program. */
bool build_stage_bare(const struct build_own *b);
/* Output of what reads. False: no more until exec_resume(). */
bool build_stage_output(struct build_own *b, const void *p, size_t n);
void build_stages_drop(struct build_own *b);

/* builds-copy.c */
extern const char build_tool[]; /* our own program, inside a sandbox */
void build_copy(struct build_own *b, const struct build_step *s, build_ran *ran, build_then *failed);

/* builds-find.c: the template that is this image, of the build's tenant or the node's. NULL: none. */
const struct tmpl *build_image_find(struct build_own *b, const struct build_image *i, const struct tmpl_tag **ret);

/* builds-images.c: finds what the build starts from: stack, key, ctx, start, ready. */
void build_base(struct build_own *b, build_then *then);
/* Makes a user if there is none of that name; root has it done. */
void build_user(struct build_own *b, const char *name, bool sudo, build_ran *ran);
/* Front ends: whatever they wait for, nobody answers any more (stockc_free() and store_close() call nobody). */
void image_calls_free(struct front *f);

/* builds-start.c: runs the start command until it is ready, and stops it. */
void build_try_start(struct build_own *b, build_then *then);
void build_start_drop(struct build_own *b);

/* builds-cache.c */
int build_cache_load(struct front *f, struct err *err);
void build_cache_free(struct front *f);
const struct build_cached *build_cache_find(struct front *f, const struct tenant *t, const char *key);
void build_cache_put(struct front *f, const struct tenant *t, const char *key, const char *stack);
void build_cache_del(struct front *f, const struct tenant *t, const char *key);
void build_cache_sweep(struct front *f); /* steps of tenants that are gone */

#endif
