/* builds.h - template builds: a request of a few steps becomes a stack of layers and a row that names it (state.h).
 *
 * Each step that changes files runs in a sandbox of its own (box_spec.build), whose writable layer is captured afterwards; the
 * stack that results is remembered under the digest of everything that went into it, so that the same step is not run twice for
 * the same tenant. Steps that only change the environment of later ones run nothing.
 *
 * Builds live in memory. Their ids carry a sum that only this node can make: after a restart of front a build that it does
 * not know but gave the id of was interrupted, and is answered so. What such a build left behind goes when front meets keeper
 * (sandboxes without a row) and stock (stacks without a row).
 */
#ifndef HUTCH_FRONT_BUILDS_H
#define HUTCH_FRONT_BUILDS_H

#include <jansson.h>

#include "base/sha256.h"
#include "front/front.h"
#include "front/state.h"

enum {
    BUILD_STEPS_MAX = 200,
    BUILD_STAGES_MAX = 32,       /* before the last one */
    BUILD_ARGS_MAX = 256,        /* of one step */
    BUILD_ARG_BYTES_MAX = 32768, /* of all arguments of one step: they travel to init in one message */
    BUILD_ENV_BYTES_MAX = 32768, /* of all variables together, likewise */
    BUILD_COMMAND_MAX = 16384,   /* of a RUN, startCmd, readyCmd */
    BUILD_USER_MAX = 64,
    BUILD_PATH_MAX = 4095,
    BUILD_LOG_LINES = 10000,     /* of one build; then one line says that there is more */
    BUILD_LOG_BYTES = 1 << 20,   /* likewise */
    BUILD_LOGS_BYTES = 16 << 20, /* of all builds of a tenant; the logs of those that ended first go */
    BUILD_LINE_MAX = 4096,       /* longer ones are cut into several */
    BUILD_PAGE_MAX = 100,        /* entries of one answer */
    BUILD_RUN_MS = 3600 * 1000,  /* of one RUN or COPY */
    BUILD_READY_MS = 600 * 1000, /* until readyCmd must have succeeded */
    BUILD_READY_EVERY_MS = 2000, /* between two tries */
    BUILD_ALIVE_MS = 3000,       /* a start command without a readyCmd must live that long, or end well */
    BUILDS_MAX = 2000,           /* remembered in all, ended ones included: the oldest ended one is forgotten */
    BUILDS_WAITING_PER_TENANT = 20,
    BUILDS_PROMISED_PER_TENANT = 32, /* made and not started */
    BUILDS_KEPT_S = 3600,            /* how long an ended one is remembered */
    BUILD_CACHE_PER_TENANT = 1000,   /* steps; the least recently used goes */
    BUILD_TAGS_MAX = 16,
    BUILD_FLATTEN_AFTER = 24,   /* layers made by one build before they are made into one */
    BUILD_MEMORY_MIN = 128,     /* MiB */
    BUILD_MEMORY_MAX = 1 << 20, /* MiB */
    BUILD_CPU_MAX = 256,
};

/* --- builds-log.c: what a build said ------------------------------------------------------------------------------ */

enum build_level { BUILD_DEBUG, BUILD_INFO, BUILD_WARN, BUILD_ERROR };
struct build_entry {
    uint64_t at_unix_ms;
    enum build_level level;
    char step[12]; /* "base", "1".."200", "finalize" */
    char *text;    /* owned */
};
struct build_log {
    struct build_entry *v;
    size_t n, cap, bytes;
    bool full;
    struct buf part[2]; /* an unfinished line of stdout, stderr */
};
void build_log_done(struct build_log *l);
void build_log_add(struct build_log *l, const char *step, enum build_level level, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
/* What it takes of memory. */
size_t build_log_size(const struct build_log *l);
/* Output of a command: whole lines become entries. which: 0 stdout, 1 stderr. */
void build_log_output(struct build_log *l, const char *step, unsigned which, const void *p, size_t n);
/* The command has ended: what is left of its last line. */
void build_log_flush(struct build_log *l, const char *step);
const char *build_level_name(enum build_level level);
bool build_level_of(const char *name, enum build_level *ret);

/* --- builds-steps.c: what was asked for. Pure. -------------------------------------------------------------------- */

enum build_type { BUILD_COPY, BUILD_RUN, BUILD_ENV, BUILD_WORKDIR, BUILD_USER };
struct build_step {
    enum build_type type;
    struct strv args;
    char hash[SHA256_HEX]; /* COPY: filesHash, as the client named its upload; from a stage: the key of that one */
    int from;              /* COPY: the stage whose files it takes; -1: an upload */
    bool force;
};
struct build_stage {
    char *from_image, *from_template; /* one of them, or */
    int from_stage;                   /* one before; -1 */
    size_t end;                       /* its steps end before this one */
};
struct build_registry {    /* credentials; wiped when they were used */
    char *user, *password; /* of AWS: the id of the access key, and the secret one */
    char *region;          /* of AWS; NULL: none of theirs */
};
struct build_plan {
    struct build_stage *stages; /* all but `last`, whose files the template has */
    size_t nstages;
    struct build_stage last;
    struct build_registry registry; /* for the image of the last stage */
    char *start, *ready;            /* NULL: none */
    struct build_step *steps;       /* of all stages, one after the other */
    size_t nsteps;
    bool force;
};
/* The body of the request that starts a build. Errors (ERR_USAGE) name the field. */
int build_plan_parse(json_t *root, struct build_plan *ret, struct err *err);
void build_plan_done(struct build_plan *p);
const char *build_type_name(enum build_type t);
/* One line that shows the step: "RUN apt-get update". */
void build_step_text(const struct build_step *s, struct buf *out);

/* What later steps run with. */
struct build_context {
    char *user, *workdir;
    struct strv env; /* "K=V" */
};
void build_context_done(struct build_context *c);
void build_context_set(struct build_context *c, const char *name, const char *value);
const char *build_context_get(const struct build_context *c, const char *name, size_t n);
/* $VAR and ${VAR} by the context, \$ a dollar; nothing else means anything. New string; NULL: longer than all variables may
 * be. */
char *build_expand(const struct build_context *c, const char *text);
/* The path of WORKDIR or COPY, with its variables: relative ones start at the working directory; a '/' at the end stays. New
 * string; NULL: too long for a path. */
char *build_path(const struct build_context *c, const char *text);
/* ENV: 0, or -1 with what is wrong. */
int build_env_step(struct build_context *c, const struct build_step *s, struct err *err);
/* The key of what a step makes. parent: key of what it starts from. */
void build_step_key(const char *parent, const struct build_step *s, const struct build_context *c,
                    char ret[SHA256_HEX]);
/* "name[:tag]" of a build request. False with a text: not one. */
bool build_name_parse(const char *text, char name[TMPL_NAME_MAX], char tag[TMPL_TAG_MAX], struct err *err);
bool build_tag_ok(const char *tag);
/* A reference of an image, and the row that it lies under. "docker.io/library/ubuntu:22.04" is ubuntu, 22.04. Where a name or
 * tag must be changed to be one of ours, "--" and 12 digits of a SHA-256 of the whole are added: "ghcr.io/a/b" is
 * ghcr-io-a-b--DIGITS, latest. No two images share a row. */
struct build_image {
    char ref[STOCK_REF_MAX]; /* in full: NAME:TAG or NAME@sha256:DIGEST, with no more of a registry than is needed */
    size_t repo;             /* so much of it is the name */
    char digest[SHA256_HEX]; /* "": it has none */
    bool plain;              /* neither a tag nor a digest was named */
    char name[TMPL_NAME_MAX], tag[TMPL_TAG_MAX];
    /* Without the digits, which others may have too: somebody's own name for it, or one of before; "": none. */
    char loose_name[TMPL_NAME_MAX], loose_tag[TMPL_TAG_MAX];
};
bool build_image_parse(const char *text, struct build_image *ret);
/* Whether what was fetched as `ref` (in full), with this digest of its manifest ("": not known), is this image. */
bool build_image_is(const struct build_image *i, const char *ref, const char *manifest);
bool build_image_same_repo(const struct build_image *i, const char *ref);
/* Whether the registry of this reference stands in a list "HOST[:PORT],..." (NULL: it does not), with its port. */
bool build_registry_listed(const char *list, const char *ref);
/* The configuration of an image (OCI) as that of a template: Env, User, WorkingDir. What is not as it should be is left out. */
void build_image_config(const char *json, size_t n, struct tmpl_config *ret);
/* What a build may ask for, applied to a configuration that somebody uploaded: no disk of its own, memory and CPUs in range.
 * -1: more than the words of a build may have. */
int build_config_limit(struct tmpl_config *c, struct err *err);

/* --- builds.c: those of this node --------------------------------------------------------------------------------- */

enum build_status { BUILD_WAITING, BUILD_BUILDING, BUILD_READY, BUILD_FAILED };
struct build {
    char id[40];       /* a UUID */
    char template[40]; /* id of the template that it makes, as it was promised: a row of the same name may come first */
    char name[TMPL_NAME_MAX];
    struct strv tags;
    struct tenant *tenant;
    uint32_t cpu_milli;
    uint64_t memory;
    enum build_status status;
    char *reason; /* BUILD_FAILED */
    char reason_step[12];
    struct build_log log;
    uint64_t made_unix_ms, ended_unix_ms;
};

int builds_open(struct front *f, struct err *err); /* reads the cache of steps; the store is open */
void builds_free(struct front *f);

struct build_new {
    const char *name; /* "name[:tag]" */
    const struct strv *tags;
    uint32_t cpu_milli; /* 0: the default */
    uint64_t memory;
};
/* Promises a build; it waits for build_start(). NULL with *status and a text to answer with. */
const struct build *build_make(struct front *f, struct tenant *t, const struct build_new *n, unsigned *status,
                               struct err *err);
const struct build *build_find(struct front *f, const struct tenant *t, const char *template, const char *id);
/* Takes the plan over, also on failure: 404, 409 (it was started already), 429. */
int build_start(struct front *f, struct tenant *t, const char *template, const char *id, struct build_plan *plan,
                unsigned *status, struct err *err);
/* Ends a build that is under way, waits or was promised; what runs for it is killed. 404, 409 (it has ended). */
int build_cancel(struct front *f, const struct tenant *t, const char *template, const char *id, unsigned *status,
                 struct err *err);
/* Of a build that is not known any more: whether this node gave it its id. */
bool build_id_ours(const struct front *f, const struct tenant *t, const char *template, const char *id);
/* A template id that somebody was promised a build of. */
bool build_template_known(struct front *f, const struct tenant *t, const char *template);

/* --- builds-copy.c: uploads --------------------------------------------------------------------------------------- */

/* The name under which an upload lies in stock: the client's hash, kept apart per tenant; those of a tenant begin with the same
 * STOCK_BLOB_OWNER digits. */
void build_blob_name(const struct tenant *t, const char *hash, char ret[SHA256_HEX]);

/* --- builds-images.c: images and archives into the store ---------------------------------------------------------- */

struct image_import {
    const char *name, *tag;
    struct tenant *tenant; /* NULL: the node's */
    int archive;           /* taken over; -1: from the registry, by ref */
    const char *ref;
    const char *image;           /* the same in full; NULL: not known */
    bool given;                  /* name and tag are not those of the image but somebody's own */
    const char *user, *password; /* of the registry; NULL: none */
    const char *region;          /* of AWS, which gives user and password for these; NULL */
    bool restore;                /* the archive is an export of ours; `config` comes with it */
    const struct tmpl_config *config;
};
typedef void image_imported(void *arg, const struct tmpl *t, const struct state_failure *failure);
typedef void image_progress(void *arg, uint64_t done, uint64_t total, const char *text);
struct image_call;
/* The call can be given up; its end is told once otherwise. */
struct image_call *image_import(struct front *f, const struct image_import *i, image_progress *progress,
                                image_imported *done, void *arg);
void image_cancel(struct image_call *c);
/* What a failure of stock is to a client. */
unsigned stock_http_status(uint32_t error);

#endif
