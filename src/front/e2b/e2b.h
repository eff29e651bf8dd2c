/* e2b.h - the E2B dialect: its control plane (REST) and its agent "envd", which here is no program inside the sandbox but
 * part of front, reached under port 49983 of every sandbox. See docs/e2b.md for what is answered how.
 */
#ifndef HUTCH_FRONT_E2B_E2B_H
#define HUTCH_FRONT_E2B_E2B_H

#include <jansson.h>

#include "front/api.h"
#include "front/net-doc.h"

#define E2B_ENVD_VERSION "0.6.13"
#define E2B_CLIENT_ID    "hutch"

/* Control plane, one function per route (api-routes.c). */
api_fn e2b_create_v1, e2b_create_v2;                                                      /* create.c */
api_fn e2b_get, e2b_kill, e2b_timeout, e2b_refresh;                                       /* sandboxes.c */
api_fn e2b_pause, e2b_resume, e2b_connect_v1, e2b_connect_v2;                             /* pause.c */
api_fn e2b_snapshot, e2b_snapshots, e2b_template_remove, e2b_fork;                        /* snapshots.c */
api_fn e2b_network_put;                                                                   /* network.c */
api_fn e2b_secrets, e2b_secret_create, e2b_secret, e2b_secret_version, e2b_secret_remove; /* secrets.c */
api_fn e2b_list_v1, e2b_list_v2;                                                          /* list.c */
api_fn e2b_metrics, e2b_metrics_many, e2b_logs, e2b_logs_v2;                              /* observe.c */
api_fn e2b_templates, e2b_template, e2b_template_alias, e2b_template_tags;                /* templates.c */
api_fn e2b_build_make, e2b_build_start, e2b_build_old;                                    /* builds.c */
api_fn e2b_build_status, e2b_build_logs;                                                  /* builds-status.c */
api_fn e2b_build_files, e2b_build_upload;                                                 /* builds-upload.c */
api_fn e2b_tags_add, e2b_tags_remove, e2b_template_patch;                                 /* tags.c */
api_fn e2b_volumes, e2b_volume, e2b_volume_create, e2b_volume_remove;                     /* volumes.c */
api_fn e2b_content_stat, e2b_content_list, e2b_content_read, e2b_content_write, e2b_content_mkdir, e2b_content_set,
    e2b_content_remove;                    /* volume-content.c */
api_fn e2b_teams, e2b_health, e2b_not_yet; /* misc.c */

/* The JSON of one sandbox: what create and connect answer, and what list and info answer. */
struct json;
void e2b_add_sandbox(struct json *j, const struct api_call *c, const struct box *b);
void e2b_add_sandbox_as(struct json *j, const char *key, const struct api_call *c, const struct box *b);
void e2b_add_listed(struct json *j, const char *key, const struct api_call *c, const struct box *b, bool detail);

/* pause.c: answers with what went wrong. */
struct state_failure;
void e2b_refuse_state(struct http_req *r, const struct state_failure *failure);

/* create.c: the checked body of a create. */
enum {
    E2B_METADATA_MAX = 64,          /* pairs */
    E2B_METADATA_KEY_MAX = 256,     /* bytes */
    E2B_METADATA_VALUE_MAX = 4096,  /* bytes */
    E2B_METADATA_TOTAL_MAX = 16384, /* bytes of all keys and values */
    E2B_ENV_MAX = 256,              /* variables */
    E2B_ENV_NAME_MAX = 256,
    E2B_ENV_TOTAL_MAX = 48 * 1024, /* bytes: they travel to init in one message */
    E2B_IDEMPOTENCY_KEY_MAX = 128,
};
struct e2b_create {
    struct box_spec spec;
    char template[256];
    char mask_host[256];
    uint32_t https_ports[8];
    struct strv ignored; /* names of fields nobody knows */
    struct net_doc net;
    bool net_given; /* something was said about the way out */
    bool refusals_given;
    enum net_dialect dialect;
    struct box_mount mounts[BOX_MOUNTS_MAX];
};
/* 0, or -1 with a text for a 400 that names the field and what it should be. max_timeout 0: no limit. */
int e2b_create_parse(json_t *root, bool v2, uint32_t max_timeout, struct e2b_create *ret, struct err *err);
void e2b_create_done(struct e2b_create *c);
/* Makes the box that is described and answers with it; what is freed. For creates in other words, too. */
void e2b_create_box(struct api_call *c, struct e2b_create *what, void (*answer)(struct http_req *r, struct box *b));
/* The members of an object of strings: metadata and variables, with the limits above. */
int e2b_read_metadata(json_t *root, struct strv *ret, struct err *err);
int e2b_read_env(json_t *root, const char *field, struct strv *ret, struct err *err);
/* "volumeMounts": names of volumes and absolute paths; what they stand for is looked up when the box is made. */
/* "history": true, false (whatever the template says), or as the template says. */
int e2b_read_history(json_t *root, struct box_spec *ret, struct err *err);
int e2b_read_mounts(json_t *root, const char *field, struct e2b_create *ret, struct err *err);
/* The same for directories that the operator offers. */
int e2b_read_host_dirs(json_t *root, const char *field, struct e2b_create *ret, struct err *err);
/* "autoPause", "autoPauseMemory", "autoResume", "idleTimeout" of a create: what they say when they are there. */
int e2b_read_life(json_t *root, struct box_life *life, struct err *err);
int e2b_read_timeout(json_t *root, int64_t otherwise, uint32_t max, uint32_t *ret, struct err *err);
uint32_t e2b_longest_life(const struct api_call *c);

/* network.c: what GET shows, in E2B's words. */
void e2b_add_network(struct json *j, const struct box *b);

/* list.c: the place a page ends. */
struct e2b_cursor {
    uint64_t started_ms;
    char id[SANDBOX_ID_MAX];
    bool asc;
};
void e2b_cursor_write(const struct e2b_cursor *c, struct buf *out);
bool e2b_cursor_read(const char *token, struct e2b_cursor *ret);

/* fields.c: strict readers of JSON members. `what` is the name the message uses. */
/* 1 there (and not null), 0 absent or null, -1 wrong type. */
int e2b_field_str(json_t *o, const char *name, const char **ret, struct err *err);
int e2b_field_bool(json_t *o, const char *name, bool *ret, struct err *err);
int e2b_field_int(json_t *o, const char *name, int64_t min, int64_t max, int64_t *ret, struct err *err);
int e2b_field_obj(json_t *o, const char *name, json_t **ret, struct err *err);
int e2b_field_arr(json_t *o, const char *name, json_t **ret, struct err *err);
const char *e2b_type_name(const json_t *v); /* "a string", "an array", ... */
/* -1 at a member whose name is not among `known`, which ends with NULL: "<where> knows no field". */
int e2b_only_fields(json_t *o, const char *where, const char *const *known, struct err *err);
/* The root as an object; an absent body is an empty one (borrowed from nobody: *tmp owns it). */
json_t *e2b_root(json_t *root, json_t **tmp, struct err *err);

/* Data plane. */
/* envd.c: a request for port 49983 of a box that runs. */
void envd_handle(struct api_call *c, struct box *b);
/* Whether this request may wake a box that is paused: its token or signature is good, and it is no mere look. */
bool envd_may_wake(const struct api_call *c, const struct box *b);
/* A signed file URL that names no sandbox. */
void envd_handle_signed(struct api_call *c);
/* What the data plane keeps for a box, made at first use (box->procs). */
struct watcher;
struct e2b_box {
    struct watcher *watchers; /* watch.c: polled ones */
    size_t nwatchers;
    unsigned connections; /* gateway.c: open now */
};
struct e2b_box *e2b_box_of(struct box *b);
/* The state of the dialect that hangs on a box (watchers) goes with it; called for every box that ends. */
void e2b_box_ended(void *arg, struct box *b, const char *cause, const struct keeper_usage *u);
/* Idle connections to services of a box that is about to be paused would be stale when it comes back. */
void e2b_box_pausing(void *arg, struct box *b);

#endif
