/* builds.h - template builds: a request of a few steps becomes a stack of layers and a row that names it (templates.h).
 *
 * Each step that changes files runs in a sandbox of its own (sandbox_spec.build), whose writable layer is captured
 * afterwards. The cache of steps remembers the resulting stack under the digest of all inputs, so a tenant's step is
 * not run twice. Steps that only change the environment of later ones run nothing.
 *
 * Builds live in memory. Their ids carry a checksum that only this node can compute: if front does not know a build but
 * its id is genuine, a restart of front has interrupted that build, and the answer says so. Sandboxes and stacks of
 * interrupted builds have no row and are removed when front compares its rows with keeper and the layer store.
 */
#ifndef HUTCH_BUILDS_BUILDS_H
#define HUTCH_BUILDS_BUILDS_H

#include <jansson.h>

#include "base/sha256.h"
#include "sandboxes/sandboxes.h"

enum {
    BUILD_STEPS_MAX = 200,
    BUILD_STAGES_MAX = 32,       /* before the last one */
    BUILD_ARGS_MAX = 256,        /* of one step */
    BUILD_ARG_BYTES_MAX = 32768, /* of all arguments of one step: they travel to init in one message */
    BUILD_ENV_BYTES_MAX = 32768, /* of all variables together, likewise */
    BUILD_COMMAND_MAX = 16384,   /* of a RUN, startCmd, readyCmd */
    BUILD_USER_MAX = 64,
    BUILD_PATH_MAX = 4095,
    BUILD_LOG_LINES = 10000,     /* of one build; then one line says that further output is not kept */
    BUILD_LOG_BYTES = 1 << 20,   /* likewise */
    BUILD_LOGS_BYTES = 16 << 20, /* of all builds of a tenant; beyond it the oldest logs of ended builds are removed */
    BUILD_LINE_MAX = 4096,       /* longer ones are cut into several */
    BUILD_PAGE_MAX = 100,        /* entries of one answer */
    BUILD_RUN_MS = 3600 * 1000,  /* of one RUN or COPY */
    BUILD_READY_MS = 600 * 1000, /* until readyCmd must have succeeded */
    BUILD_READY_EVERY_MS = 2000, /* between two tries */
    BUILD_ALIVE_MS = 3000,       /* a start command without a readyCmd must run that long, or exit with 0 */
    BUILDS_MAX = 2000, /* remembered in all, ended ones included; beyond it the oldest ended one is forgotten */
    BUILDS_WAITING_PER_TENANT = 20,
    BUILDS_PROMISED_PER_TENANT = 32, /* made and not started */
    BUILDS_KEPT_S = 3600,            /* how long an ended one is remembered */
    BUILD_CACHE_PER_TENANT = 1000,   /* steps; beyond it the least recently used is removed */
    BUILD_TAGS_MAX = 16,
    BUILD_FLATTEN_AFTER = 24,   /* layers made by one build before they are made into one */
    BUILD_MEMORY_MIN = 128,     /* MiB */
    BUILD_MEMORY_MAX = 1 << 20, /* MiB */
    BUILD_CPU_MAX = 256,
};

/* --- log.c: the log of a build ----------------------------------------------------------------------------- */

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
/* Memory that it uses, in bytes. */
size_t build_log_size(const struct build_log *l);
/* Output of a command: whole lines become entries. which: 0 stdout, 1 stderr. */
void build_log_output(struct build_log *l, const char *step, unsigned which, const void *p, size_t n);
/* The command has ended: adds the unfinished last lines. */
void build_log_flush(struct build_log *l, const char *step);
const char *build_level_name(enum build_level level);
bool build_level_of(const char *name, enum build_level *ret);

/* --- steps.c: the plan of a build. Pure. ------------------------------------------------------------------- */

enum build_type { BUILD_COPY, BUILD_RUN, BUILD_ENV, BUILD_WORKDIR, BUILD_USER };
struct build_step {
    enum build_type type;
    struct strv args;
    char hash[SHA256_HEX]; /* COPY: filesHash, the client's name for its upload; COPY from a stage: that stage's key */
    int from;              /* COPY: the stage it reads from; -1: an upload */
    bool force;
};
struct build_stage {
    char *from_image, *from_template; /* one of these two, or: */
    int from_stage;                   /* an earlier stage; -1: none */
    size_t end;                       /* number of the first step after its own */
};
struct build_registry {    /* credentials; wiped after use */
    char *user, *password; /* AWS: the id of the access key, and the secret access key */
    char *region;          /* AWS only; else NULL */
};
struct build_plan {
    struct build_stage *stages; /* all but `last`, whose files become the template */
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
/* Expands $VAR and ${VAR} from the context; \$ is a dollar; all else stays. New string; NULL: longer than
 * BUILD_ENV_BYTES_MAX. */
char *build_expand(const struct build_context *c, const char *text);
/* The path of WORKDIR or COPY with its variables expanded; relative to the working directory; keeps a '/' at the
 * end. New string; NULL: too long for a path. */
char *build_path(const struct build_context *c, const char *text);
/* Applies ENV to the context. -1: *err says what is wrong. */
int build_env_step(struct build_context *c, const struct build_step *s, struct err *err);
/* The cache key of a step's result. parent: key of the stack that the step starts from. */
void build_step_key(const char *parent, const struct build_step *s, const struct build_context *c,
                    char ret[SHA256_HEX]);
/* "name[:tag]" of a build request. False: *err says why it is none. */
bool build_name_parse(const char *text, char name[TEMPLATE_NAME_MAX], char tag[TEMPLATE_TAG_MAX], struct err *err);
bool build_tag_ok(const char *tag);
/* A reference of an image, and the name and tag of its row. "docker.io/library/ubuntu:22.04" is ubuntu, 22.04. Where
 * a name or tag has characters that ours may not have, "--" and 12 digits of a SHA-256 of the whole are added:
 * "ghcr.io/a/b" is ghcr-io-a-b--DIGITS, latest. So no two images share a row. */
struct build_image {
    char ref[LAYERS_REF_MAX]; /* NAME:TAG or NAME@sha256:DIGEST; without the registry if that is Docker Hub */
    size_t repo;              /* length of NAME in it */
    char digest[SHA256_HEX];  /* "": it has none */
    bool plain;               /* neither a tag nor a digest was named */
    char name[TEMPLATE_NAME_MAX], tag[TEMPLATE_TAG_MAX];
    /* The same without the digits, so not unique: rows that users named, or that an earlier version wrote; "": none. */
    char loose_name[TEMPLATE_NAME_MAX], loose_tag[TEMPLATE_TAG_MAX];
};
bool build_image_parse(const char *text, struct build_image *ret);
/* Whether an image that was fetched as `ref` (in full), with this digest of its manifest ("": not known), is this
 * one. */
bool build_image_is(const struct build_image *i, const char *ref, const char *manifest);
bool build_image_same_repo(const struct build_image *i, const char *ref);
/* Whether a list "HOST[:PORT],..." (NULL: empty) has the registry of this reference, with its port. */
bool build_registry_listed(const char *list, const char *ref);
/* The configuration of an image (OCI) as that of a template: Env, User, WorkingDir. Leaves out what is invalid. */
void build_image_config(const char *json, size_t n, struct template_config *ret);
/* Applies the limits of builds to an uploaded configuration: removes its disk size and clamps memory and CPUs. -1:
 * its texts are longer than those of a build may be. */
int build_config_limit(struct template_config *c, struct err *err);

/* --- builds.c: the builds of this node ---------------------------------------------------------------------------- */

enum build_status { BUILD_WAITING, BUILD_BUILDING, BUILD_READY, BUILD_FAILED };
struct build {
    char id[40]; /* a UUID */
    char template
        [40]; /* the template id that the client was given; the template gets another if a row of that name exists */
    char name[TEMPLATE_NAME_MAX];
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

struct builds;
enum { BUILDS_KEY = 32 };
struct builds_deps { /* borrowed, for as long as the builds */
    struct loop *loop;
    const struct config *config;
    struct db *db;
    const struct peers *peers;
    struct tenants *tenants;
    struct stacks *stacks;
    struct templates *templates;
    struct sandboxes *sandboxes;
    bool network;                /* steps may have one */
    int own_dir;                 /* files without a name are made in it */
    const unsigned char *id_key; /* BUILDS_KEY bytes: ids of builds are made with it */
};
/* Reads the cache of steps; on failure *ret is to be freed all the same. */
int builds_open(const struct builds_deps *d, struct builds **ret, struct err *err);
void builds_free(struct builds *bs);

struct build_new {
    const char *name; /* "name[:tag]" */
    const struct strv *tags;
    uint32_t cpu_milli; /* 0: the default */
    uint64_t memory;
};
/* Makes a build, which waits for build_start(). NULL: *status and *err are the answer. */
const struct build *build_make(struct builds *bs, struct tenant *t, const struct build_new *n, unsigned *status,
                               struct err *err);
const struct build *build_find(struct builds *bs, const struct tenant *t, const char *template, const char *id);
/* Takes the plan over, also on failure: 404, 409 (already started), 429. */
int build_start(struct builds *bs, struct tenant *t, const char *template, const char *id, struct build_plan *plan,
                unsigned *status, struct err *err);
/* Ends a build that runs, waits or was not started, and kills its sandbox. 404, 409 (it has ended). */
int build_cancel(struct builds *bs, const struct tenant *t, const char *template, const char *id, unsigned *status,
                 struct err *err);
/* For a build that front does not know: whether this node made its id. */
bool build_id_ours(const struct builds *bs, const struct tenant *t, const char *template, const char *id);
/* Whether a build of this tenant has this template id. */
bool build_template_known(struct builds *bs, const struct tenant *t, const char *template);

/* --- copy.c: uploads --------------------------------------------------------------------------------------- */

/* The name of an upload in the layer store: made of the client's hash and the tenant; a tenant's names all begin
 * with the same LAYERS_BLOB_OWNER digits. */
void build_blob_name(const struct tenant *t, const char *hash, char ret[SHA256_HEX]);

/* --- images.c: images and archives into the database ---------------------------------------------------------- */

struct image_import {
    const char *name, *tag;
    struct tenant *tenant; /* NULL: the node's */
    int archive;           /* taken over; -1: from the registry, by ref */
    const char *ref;
    const char *image;           /* the same in full; NULL: not known */
    bool given;                  /* a user chose name and tag; they are not those of the image */
    const char *user, *password; /* of the registry; NULL: none */
    const char *region;          /* AWS, which exchanges these for user and password of the registry; else NULL */
    bool restore;                /* the archive is one of our exports, with `config` */
    const struct template_config *config;
};
typedef void image_imported(void *arg, const struct template *t, const struct state_failure *failure);
typedef void image_progress(void *arg, uint64_t done, uint64_t total, const char *text);
struct image_call;
/* done: once, unless image_cancel() came before. */
struct image_call *image_import(struct builds *bs, const struct image_import *i, image_progress *progress,
                                image_imported *done, void *arg);
void image_cancel(struct image_call *c);
/* The HTTP status for an error of the layer store; 0: LAYERS_OK. */
unsigned layers_http_status(uint32_t error);

#endif
