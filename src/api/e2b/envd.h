/* envd.h - what the files behind port 49983 share: one request to envd, how it ends, and the RPC methods and plain HTTP
 * routes that answer it. Handlers reach the sandbox only through exec.h and files.h and never keep a pointer to a sandbox,
 * because a sandbox can end at any time.
 */
#ifndef HUTCH_API_E2B_ENVD_H
#define HUTCH_API_E2B_ENVD_H

#include "api/e2b/e2b.h"
#include "http/rpc.h"
#include "peers/exec.h"
#include "peers/files.h"

/* One request to envd, stored in the request's `user`. The handler calls envd_free() right before its last answer;
 * when the client leaves first, the call's on_closed frees it. Sandboxes may end at any time, so it keeps only the id. */
struct envd {
    struct http_req *r;
    struct api *api;
    char id[SANDBOX_ID_MAX];
    char *user;     /* NULL: the default user */
    link_call call; /* cancelled with the request */
    const struct envd_rpc *rpc;
    void *data;                   /* the handler's own */
    void (*drop)(struct envd *e); /* frees `data`; called by envd_free() */
};
struct envd *envd_new(struct api_call *c, const struct sandbox *b, const char *user);
void envd_free(struct envd *e);

typedef void envd_rpc_fn(struct envd *e, json_t *msg);
struct envd_rpc {
    const char *path;
    envd_rpc_fn *fn;
    bool stream;                 /* answers with envelopes */
    void (*raw)(struct envd *e); /* instead of fn: reads its body itself */
};

/* The end of an RPC: each frees e. */
void envd_ok(struct envd *e, const struct buf *json);
void envd_fail(struct envd *e, enum rpc_code code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* Answers with the status that the sandbox returned; for a sandbox that has ended, with the gateway's answer. */
void envd_fail_status(struct envd *e, const struct link_status *st);
enum rpc_code envd_code(const struct link_status *st);
/* A link_done for calls whose answer is {}. arg is the struct envd. */
void envd_done(void *arg, const struct link_status *st);
/* The same failures for the plain HTTP routes. Frees e. */
void envd_http_fail(struct envd *e, const struct link_status *st);
unsigned envd_http_status(const struct link_status *st);

/* process.c */
envd_rpc_fn process_start, process_connect, process_list, process_send_input, process_send_signal, process_close_stdin,
    process_update;
/* input.c */
void process_stream_input(struct envd *e);
/* {"process":{"pid"|"tag"}}; strings are borrowed from msg. */
int process_selector(json_t *msg, struct exec_select *ret, struct err *err);
/* {"input":{"stdin"|"pty": base64}}: appends the bytes. */
int process_input(json_t *msg, struct buf *ret, struct err *err);

/* filesystem.c */
envd_rpc_fn fs_stat, fs_make_dir, fs_move, fs_list_dir, fs_remove;
struct json;
void fs_add_entry(struct json *j, const char *key, const struct file_info *info);
/* "-rw-r--r--", "drwxr-xr-x", "Lrwxrwxrwx": the way Go writes it. */
void fs_permissions(const struct file_info *info, char ret[16]);
/* A path of a request; required unless `empty_ok`. Borrowed from msg. NULL: it answered with an error and freed e. */
const char *fs_path(struct envd *e, json_t *msg, const char *field, bool empty_ok);

/* watch.c */
envd_rpc_fn watch_dir, watch_create, watch_events, watch_remove;

/* files-read.c, files-write.c: /files. They own e and free it. */
void files_read(struct envd *e, const char *path);
void files_write(struct envd *e, const char *path /* NULL: none was given */);
void files_compose_route(struct envd *e);

/* observe.c: GET /metrics of the agent. */
void usage_route(struct api_call *c, const struct sandbox *b);

/* sign.c: signed URLs. */
/* "v1_" + base64 without padding of SHA-256 of path:operation:user:token[:expiry]; expiry NULL: none. */
void sign_make(const char *path, const char *operation, const char *user, const char *token, const char *expiry,
               struct buf *ret);
struct sign_query { /* decoded from the query */
    struct buf path, user, signature, expiry;
    bool has_path, has_user, has_signature, has_expiry;
};
int sign_query_read(const char *query, struct sign_query *ret, struct err *err);
void sign_query_done(struct sign_query *q);
/* NULL: good. Otherwise the text of a 401. */
const char *sign_check(const struct sign_query *q, const char *operation, const char *token, uint64_t now_unix);

#endif
