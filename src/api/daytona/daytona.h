/* daytona.h - Daytona's dialect below /daytona: it translates the sandbox API and the toolbox of Daytona's SDKs into the domain
 * rooms and the links to init. It keeps nothing in memory but open channels and terminals:
 * what a toolbox session must remember is in files of the sandbox.
 * Operations of Daytona's that a node does not have answer 501 (absent.c). See docs/daytona.md.
 */
#ifndef HUTCH_API_DAYTONA_DAYTONA_H
#define HUTCH_API_DAYTONA_DAYTONA_H

#include <jansson.h>

#include "api/api.h"
#include "base/buf.h"
#include "base/json.h"
#include "sandboxes/session.h"

extern const struct api_dialect daytona_dialect; /* routes.c */
extern const struct api_dialect
    daytona_absent_dialect; /* absent.c: comes first, because it has literals where that has ids */

/* Control plane. */
api_fn daytona_create;                                                         /* create.c */
api_fn daytona_get, daytona_list, daytona_list_paginated;                      /* object.c */
api_fn daytona_start, daytona_stop, daytona_pause, daytona_kill;               /* life.c */
api_fn daytona_touch, daytona_autostop, daytona_autopause, daytona_autodelete; /* settings.c */
api_fn daytona_public, daytona_labels, daytona_network;                        /* settings.c */
api_fn daytona_fork, daytona_forks, daytona_parent, daytona_ancestors;         /* copies.c */
api_fn daytona_snapshot_make, daytona_snapshot_remove;                         /* copies.c */
api_fn daytona_toolbox_url, daytona_preview, daytona_preview_signed;           /* preview.c */
api_fn daytona_volumes, daytona_volume, daytona_volume_by_name, daytona_volume_create, daytona_volume_remove;
api_fn daytona_snapshots, daytona_snapshot; /* keep.c: volumes and templates */
api_fn daytona_config, daytona_health;      /* keep.c */

/* The event channel: channel.c. */
api_fn daytona_channel;
void daytona_channel_sandbox_changed(struct api *api, const struct sandbox *b, enum sandbox_state was);

/* Toolbox. */
api_fn daytona_execute, daytona_code_run;                                   /* process.c */
api_fn daytona_sessions, daytona_session, daytona_session_make;             /* shell.c */
api_fn daytona_session_remove, daytona_session_exec;                        /* shell.c */
api_fn daytona_command, daytona_command_logs, daytona_command_input;        /* shell.c */
api_fn daytona_ptys, daytona_pty_info, daytona_pty_resize, daytona_pty_end; /* pty.c */
api_fn daytona_pty_create, daytona_pty_connect, daytona_pty_create_connect; /* pty-connect.c */
api_fn daytona_files, daytona_file_info, daytona_file_remove;               /* files.c */
api_fn daytona_file_download, daytona_folder, daytona_file_move;            /* files.c */
api_fn daytona_permissions, daytona_find, daytona_search, daytona_replace;  /* files.c */
api_fn daytona_upload, daytona_download;                                    /* transfer.c */
api_fn daytona_work_dir, daytona_version;                                   /* files.c */
api_fn daytona_git_status, daytona_git_history, daytona_git_branches;       /* git.c */
api_fn daytona_git_do;

/* --- answers: reply.c ----------------------------------------------------------------------------------------------- */
/* {"statusCode","message","code","source","path","timestamp"}. code NULL: the status alone decides the client's error. */
void daytona_error(struct http_req *r, unsigned status, const char *code, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
/* What was refused before a handler, and creates. retry_after 0: none. */
void daytona_refuse(struct http_req *r, unsigned status, unsigned retry_after, const char *text);
/* The same after the rest of the body has been read and dropped. */
void daytona_refuse_body(struct http_req *r, unsigned status, const char *text);
/* Of files and commands, in words that Daytona's clients and their users look for. `path` may be NULL. */
void daytona_link_error(struct http_req *r, const struct link_status *st, const char *path);
/* The same as status, code and text, for one part of an answer. */
struct daytona_fault {
    unsigned status;
    const char *code;
    char text[400];
};
void daytona_fault_of(const struct link_status *st, const char *path, struct daytona_fault *ret);
void daytona_state_error(struct http_req *r, const struct state_failure *failure);

/* --- sandboxes: object.c -------------------------------------------------------------------------------------------- */
#define DAYTONA_HOME "/home/user"
/* Labels that the dialect keeps for itself among the metadata; clients do not see them. */
#define DAYTONA_OWN       "hutch.daytona."
#define DAYTONA_EPHEMERAL DAYTONA_OWN "ephemeral"
/* The caller's sandbox that param 0 names by id or name. NULL: it answered with 404. */
struct sandbox *daytona_sandbox(struct api_call *c);
/* The one that daytona_sandbox() found before a body was read: a name may mean another one by now. NULL: it answered. */
struct sandbox *daytona_same_sandbox(struct api_call *c);
const char *daytona_state_word(enum sandbox_state state);
/* state NULL: the one it has. */
void daytona_add_sandbox_as(struct json *j, const char *key, const struct api_call *c, const struct sandbox *b,
                            const char *state);
void daytona_add_sandbox(struct json *j, const struct api_call *c, const struct sandbox *b, const char *state);
void daytona_answer_sandbox(struct http_req *r, struct sandbox *b); /* 200 */
void daytona_add_labels(struct json *j, const struct sandbox *b);
/* A label that clients do not see among the labels: one of ours, or the name. */
bool daytona_label_is_own(const char *key);
/* "http://HOST" as the client wrote it. */
void daytona_base_url(const struct api_call *c, struct buf *out);

/* --- a request that answers with the sandbox once something has been done to it: life.c ------------------------------- */
void *daytona_change_wait(struct api_call *c, const struct sandbox *b);
void daytona_change_id(const void *wait, char ret[SANDBOX_ID_MAX]);      /* of the sandbox that it is about */
void daytona_on_changed(void *arg, const struct state_failure *failure); /* a sandbox_paused */
void daytona_on_set(void *arg, bool ok);                                 /* a sandbox_done */

/* --- parts of a create that other requests have, too: create.c -------------------------------------------------------- */
/* Adds the body's labels. */
int daytona_read_labels(json_t *body, struct strv *ret, struct err *err);
int daytona_check_name(const char *name, struct err *err);
void daytona_create_refuse(struct http_req *r, const struct sandbox_failure *failure);
/* networkBlockAll, networkAllowList, domainAllowList. *ret_given: it asks for a network of its own, or for none. */
int daytona_read_network(json_t *body, const struct net_doc *before, struct net_doc *ret, bool *ret_internet,
                         bool *ret_given, struct err *err);

/* --- requests: reply.c ---------------------------------------------------------------------------------------------- */
/* Calls `then` with the JSON body, an object (empty if there is none); answers a wrong one with 400. */
typedef void daytona_with_body(struct api_call *c, json_t *body);
void daytona_body(struct api_call *c, daytona_with_body *then);
/* The decoded query parameter, appended to ret. False: it is not there or not decodable, and a required one is answered. */
bool daytona_query(struct api_call *c, const char *name, bool required, struct buf *ret);
/* A string of the body; NULL if there is none or it has another type. Borrowed. */
const char *daytona_text(json_t *body, const char *name);

/* --- the toolbox: run.c --------------------------------------------------------------------------------------------- */
enum { DAYTONA_OUTPUT_MAX = 1 << 20, DAYTONA_SCRIPT_S = 60 };
/* Linux takes no longer text as one argument of a program. */
enum { DAYTONA_TEXT_MAX = 128 * 1024 - 1 };
/* Wakes the sandbox that param 0 names and calls `then`; what fails is answered. */
void daytona_toolbox(struct api_call *c, void (*then)(struct api_call *c, struct sandbox *b));

/* One command whose output is collected for the answer. Strings are copied. */
struct daytona_run {
    const char *const *argv; /* NULL-terminated */
    const char *const *env;  /* "K=V", NULL-terminated; may be NULL */
    const char *cwd;
    uint64_t timeout_ms; /* 0: none */
    bool recorded;       /* the client's own command */
};
struct daytona_ran {
    int code; /* exit status; 128 + N after signal N */
    bool late;
    const struct buf *out, *err;       /* the first DAYTONA_OUTPUT_MAX bytes of each stream */
    uint64_t omitted_out, omitted_err; /* bytes that followed them */
};
/* `then` is called once with the request that still waits, and answers it. If the client leaves, or the time is over, the
 * command is killed with its process group. */
typedef void daytona_ran_fn(struct http_req *r, const struct daytona_ran *ran);
void daytona_run(struct api_call *c, struct sandbox *b, const struct daytona_run *what, daytona_ran_fn *then);
/* The same for one of our scripts: sh -c SCRIPT hutch ARG... */
void daytona_script(struct api_call *c, struct sandbox *b, const char *script, const char *const *args,
                    daytona_ran_fn *then);
/* The next text of an output of texts that each end with NUL; NULL: there is none, or it was cut. */
const char *daytona_next_text(const struct buf *b, size_t *at);
/* Ends a stream of which bytes were dropped with a line that says so. */
void daytona_add_omitted(struct buf *out, uint64_t omitted);
/* Begins a script whose arguments have paths, which mean what they mean to the links to init: relative ones begin in the home
 * directory, and so does ~. `path X` sets $p to X in a form that no program takes for an option. */
#define DAYTONA_PATHS             \
    "cd \"${HOME:-/}\" || cd /\n" \
    "path() { case $1 in '~') p=$HOME;; '~/'*) p=$HOME/${1#??};; -*) p=./$1;; *) p=$1;; esac; }\n"
/* Whether a script failed; then it answers with the failure: the script's standard error is the message, a first word [A-Z_]+
 * the code ("FILE_NOT_FOUND x"). */
bool daytona_script_failed(struct http_req *r, const struct daytona_ran *ran);
/* Kills a command of the sandbox and its process group, and waits for nothing. pid 0: nothing. */
void daytona_kill_group(struct sandboxes *sb, const char *sandbox, uint32_t pid);

#endif
