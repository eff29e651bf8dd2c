/* front-world.h - a world for front's HTTP side: requests without a network, sandboxes without a keeper. What stands behind
 * front_handle() is answered by front-world.c, at once and from memory; files are those of a temporary directory. */
#ifndef FRONT_WORLD_H
#define FRONT_WORLD_H

#include <jansson.h>

#include "base/strv.h"
#include "front/boxes.h"
#include "front/front.h"
#include "front/nets.h"
#include "front/state.h"
#include "front/tenants.h"
#include "front/vault.h"
#include "sandbox/exec.h"
#include "sandbox/files.h"

/* One request and what came back. */
struct asked {
    struct http_req r;
    struct http_field field[32];
    char *path;
    unsigned status;
    struct strv fields; /* name, value, ... */
    struct buf body;
    bool ended, aborted, paused, closed;
    size_t queue_limit; /* http_write() says "stop" above this; 0: never */
};

struct world {
    struct loop *loop;
    struct front front;
    struct config config;
    struct tenant tenant[2];
    struct box *box[300];
    size_t nbox;
    char dir[64]; /* where files live */
    /* the last command, and the callbacks of who follows it */
    const struct exec_ops *ops;
    void *ops_arg;
    char *cmd, *cwd, *user;
    struct strv args, env;
    bool pty, stdin_open, detached;
    uint64_t from[4];
    int signal;
    struct buf input;
    /* the last watch */
    const struct file_watch_ops *watch;
    void *watch_arg;
    bool unwatched;
    unsigned settled;         /* calls of files_settle() */
    enum link_code next_code; /* what the next call of a link answers with */
    char next_text[128];
    enum link_code sink_code; /* what a file that is being written answers with */
    bool no_room;             /* for what is kept */
    bool no_disk;             /* changes of ports are not stored */
    /* the network */
    bool no_egress;
    unsigned net_status; /* what the next change of a network answers with; 0: it is done */
    json_t *net_asked;   /* the last request to egress */
    json_t *net_answer;  /* what it answers; NULL: it does not */
    char decided[40];    /* the last decision: its id */
    int decision;
    unsigned minutes;
    char *sealed[8]; /* values of secrets as they came */
    struct vault_secret *secret[8];
    size_t nsecrets;
    /* what outlives a sandbox */
    unsigned state_status; /* what the next pause, resume, snapshot answers with; 0: it is done */
    int pauses, resumes, unloads, wakes, in_use;
    bool memory;        /* of the last pause */
    uint64_t timeout_s; /* of the last resume */
    unsigned kid_fails; /* which one of a fork */
    bool dial_paused;   /* a pause comes between the next dial and its answer */
    bool copied_before; /* the files that are forked: stock was asked a second time, and it costs nothing */
    struct tmpl tmpl[8];
    size_t ntmpls;
    char stock_owner[40]; /* for whom stock was asked last */
    bool stock_holds;     /* conversions are answered by world_stock_answer() */
    size_t nheld;
    struct box_spec spec; /* of the last create; its pointers are stale */
    struct box_mount mounts[BOX_MOUNTS_MAX];
};
extern struct world world;

#define KEY_A    "e2b_aa"
#define KEY_B    "e2b_bb"
#define KEY_READ "e2b_cc" /* of tenant a, reading only */
#define KEY_ROOT "e2b_dd" /* of tenant a, admin */
/* of tenant a, reading only: with sandboxes and templates, with admin, with files */
#define KEY_READ_ALL   "e2b_ee"
#define KEY_READ_ROOT  "e2b_ff"
#define KEY_READ_FILES "e2b_00"

int world_start(void **state);
int world_end(void **state);
/* A snapshot that is there. */
const struct tmpl *world_tmpl(const char *id, const char *name, unsigned tenant);
struct box *world_box(const char *id, unsigned tenant, uint64_t started_ms);

/* fields: name, value, ..., NULL. body NULL: none. Runs until the answer has ended, was cut, or nothing happens any more. */
struct asked *ask(const char *method, const char *target, const char *const *fields, const char *body, size_t n);
/* The same with one key and a JSON body on the API's own host. */
struct asked *ask_api(const char *key, const char *method, const char *target, const char *body);
/* A request to envd of a box, by header, with its token. */
struct asked *ask_envd(const struct box *b, const char *method, const char *target, const char *type, const char *body,
                       size_t n);
void asked_run(struct asked *a);
void asked_end(struct asked *a);   /* of one that must end, or be cut; however long it takes */
void asked_leave(struct asked *a); /* the client goes away */
void asked_free(struct asked *a);
const char *asked_field(const struct asked *a, const char *name);
json_t *asked_json(const struct asked *a);

#endif
