/* e2b.h - the E2B dialect: it translates E2B's REST API and its agent "envd" into front's own functions. envd is not a
 * program inside the sandbox: front itself answers on port 49983 of every sandbox. The dialect keeps nothing of a sandbox and
 * changes it only through the domain rooms and the links to init. See docs/e2b.md.
 */
#ifndef HUTCH_API_E2B_E2B_H
#define HUTCH_API_E2B_E2B_H

#include <jansson.h>

#include "api/api.h"
#include "api/create.h"

extern const struct api_dialect e2b_dialect; /* routes.c */

/* Control plane, one function per route (routes.c). */
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
api_fn e2b_volumes, e2b_volume, e2b_volume_create;                                        /* volumes.c */
api_fn e2b_content_stat, e2b_content_list, e2b_content_read, e2b_content_write, e2b_content_mkdir, e2b_content_set,
    e2b_content_remove;                    /* volume-content.c */
api_fn e2b_teams, e2b_health, e2b_not_yet; /* misc.c */

/* The JSON of one sandbox: what list and info answer. */
struct json;
void e2b_add_listed(struct json *j, const char *key, const struct api_call *c, const struct sandbox *b, bool detail);

/* sandboxes.c: whole CPUs, as clients count them, of a share in thousandths (0: one). */
uint64_t e2b_cpu_count(uint32_t milli);

/* create.c: the checked body of a create. 0, or -1 with a text for a 400 that names the field and what it should be.
 * max_timeout 0: no limit. */
int e2b_create_parse(json_t *root, bool v2, uint32_t max_timeout, struct api_create *ret, struct err *err);
/* "autoPause", "autoPauseMemory", "autoResume" of a create; absent fields leave *life alone. */
int e2b_read_life(json_t *root, struct sandbox_life *life, struct err *err);

/* network.c: what GET shows, in E2B's words. */
void e2b_add_network(struct json *j, const struct sandbox *b);

/* list.c: where a page ends: its last sandbox. */
struct e2b_cursor {
    uint64_t started_ms;
    char id[SANDBOX_ID_MAX];
    bool asc;
};
void e2b_cursor_write(const struct e2b_cursor *c, struct buf *out);
bool e2b_cursor_read(const char *token, struct e2b_cursor *ret);

/* Data plane. */
/* envd.c: a request for port 49983 of a sandbox that runs. */
void envd_handle(struct api_call *c, struct sandbox *b);
/* Whether this request may wake a paused sandbox: its token or signature is good, and it is not a health check. */
bool envd_may_wake(const struct api_call *c, const struct sandbox *b);
/* A signed file URL that names no sandbox. */
void envd_handle_signed(struct api_call *c);

#endif
