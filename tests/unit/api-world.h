/* api-world.h - a world for the API: requests without a network, and the real rooms of front behind api_handle(), with a
 * database in a temporary directory. Only the processes beside front are made up: keeper, the layer store, egress and the
 * inits of sandboxes (api-world-peers.c, api-world-init.c). */
#ifndef API_WORLD_H
#define API_WORLD_H

#include <jansson.h>

#include "api/api.h"
#include "base/strv.h"
#include "network/networks.h"
#include "network/secrets.h"
#include "peers/exec.h"
#include "peers/files.h"
#include "sandboxes/sandboxes.h"
#include "snapshots/snapshots.h"
#include "tenants/tenants.h"

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
    uint64_t clock_add_ms; /* added to the loop's clock */
    struct api api;
    struct config *config;
    struct tenant *tenant[2]; /* "a" and "b" */
    char dir[80];             /* where the files of sandboxes live */
    unsigned nmade, ntemplates;
    /* init: the last command, and the callbacks of who follows it */
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
    bool relayed;             /* opened files come over sockets, as from an init over a byte stream */
    uint64_t missing;         /* and end so many bytes before their size */
    enum link_code next_code; /* what the next call of a link answers with */
    char next_text[128];
    enum link_code sink_code; /* what a file that is being written answers with */
    bool dial_paused;         /* a pause comes between the next dial and its answer */
    /* keeper: errors are those of the next answer */
    unsigned creates, pauses, resumes;
    unsigned create_fails; /* the number of the create that fails with create_error */
    uint32_t create_error, pause_error, resume_error;
    bool hold_creates; /* they are never answered */
    unsigned usages;   /* each sandbox uses half a CPU all the time */
    /* the layer store */
    unsigned captures;
    uint32_t capture_error; /* of the next capture */
    char layers_owner[40];  /* for whom it was asked last */
    bool layers_holds;      /* conversions are answered by world_layers_answer() */
    size_t nheld;
    /* egress */
    const char *net_error; /* what the next change of a network is refused with */
    json_t *net_asked;     /* the last request */
    json_t *net_answer;    /* what it answers; NULL: it does not */
    json_t *egress_told;   /* everything else that it was told, in order */
    bool egress_has_key;   /* world_egress_make_key() */
    unsigned char egress_key[EGRESSC_KEY];
};
extern struct world world;

#define KEY_A    "e2b_aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
#define KEY_B    "e2b_bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"
#define KEY_READ "e2b_cccccccccccccccccccccccccccccccccccccccc" /* of tenant a, reading only */
#define KEY_ROOT "e2b_dddddddddddddddddddddddddddddddddddddddd" /* of tenant a, admin */
/* of tenant a, reading only: with sandboxes and templates, with admin, with files */
#define KEY_READ_ALL   "e2b_eeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeee"
#define KEY_READ_ROOT  "e2b_ffffffffffffffffffffffffffffffffffffffff"
#define KEY_READ_FILES "e2b_0000000000000000000000000000000000000000"

/* The volume "data" of tenant a. */
#define WORLD_VOLUME       "vol-1"
#define WORLD_VOLUME_TOKEN "vol-token-0123456789"

int world_start(void **state);
int world_start_without_egress(void **state);
int world_end(void **state);
/* Until the next call the database can write nothing. */
void world_fail_writes(bool on);
void world_peers_end(void);
void world_layers_answer(void);
/* Takes the message. */
void world_egress_event(const char *type, json_t *message);
void world_egress_make_key(void);
/* Opens what was sealed for egress into out. */
void world_egress_open(const char *context, const char *sealed, struct buf *out);
/* A template that is a directory of the node is there from now on, or no longer. */
void world_template_dir(const char *name, bool there);
/* As a restart of front: promised builds are forgotten. */
void world_restart_builds(void);
/* Waits until every sandbox has n samples of what it uses. */
void world_measure(unsigned n);
/* Any sandbox; NULL: there is none. */
struct sandbox *world_find(const char *id);
/* A snapshot that is there. */
const struct template *world_template(const char *id, const char *name, unsigned tenant);
struct sandbox *world_sandbox(const char *id, unsigned tenant, uint64_t started_ms);

/* fields: name, value, ..., NULL. body NULL: none. Runs until the answer has ended, was cut, or nothing happens any more. */
struct asked *ask(const char *method, const char *target, const char *const *fields, const char *body, size_t n);
/* The same with one key and a JSON body on the API's own host. */
struct asked *ask_api(const char *key, const char *method, const char *target, const char *body);
/* A request to envd of a sandbox, by header, with its token. */
struct asked *ask_envd(const struct sandbox *b, const char *method, const char *target, const char *type,
                       const char *body, size_t n);
void asked_run(struct asked *a);
void asked_end(struct asked *a);   /* of one that must end, or be cut; however long it takes */
void asked_leave(struct asked *a); /* the client goes away */
void asked_free(struct asked *a);
const char *asked_field(const struct asked *a, const char *name);
json_t *asked_json(const struct asked *a);

#endif
