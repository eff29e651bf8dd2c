/* api.h - the CLI's way to a node: blocking HTTP/1.1 over TCP, one connection per call. No TLS here: on the machine itself
 * the node listens on loopback; a remote one is reached through a tunnel or its own SDK.
 *
 * Where: --url, HUTCH_URL, else http://127.0.0.1:7070. Key: HUTCH_API_KEY, E2B_API_KEY, else admin.key of the node's
 * state directory (HUTCH_STATE, else the default one), if it can be read.
 */
#ifndef HUTCH_CLI_CLIENT_API_H
#define HUTCH_CLI_CLIENT_API_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/strv.h"
#include "http/blocking.h"

enum { API_BODY_MAX = 64 * 1024 * 1024 };

struct api {
    char host[256], port[8], url[300];
    char key[128]; /* "" if none was found */
    /* Set by api_sandbox(): further calls go to this sandbox's own agent. */
    char sandbox[64], token[128];
    char user[64]; /* who acts inside; "": the template's user */
};

/* url may be NULL. ERR_USAGE for a URL that is not http://HOST[:PORT]. */
int api_reach(struct api *a, const char *url, struct err *err);

/* Sends a request. body_fd >= 0: the body is read from there (length bytes, or HTTP_UNKNOWN: until its end, chunked);
 * else it is body/length. extra: "name: value" lines, NULL-terminated, may be NULL. Returns when the head of the answer
 * is there; the caller ends it with blocking_close(). ERR_HOST if no node listens. */
struct api_request {
    const char *method, *path, *type;
    const char *const *extra;
    const void *body;
    uint64_t length;
    int body_fd; /* -1: none */
};
int api_send(const struct api *a, const struct api_request *q, struct blocking *ret, struct err *err);
/* Body bytes: >0, 0 at the proper end, -1 with *err. wait_fd >= 0: also returns, with *ret_woken, when that is readable. */
ssize_t api_read(struct blocking *s, void *p, size_t n, int wait_fd, bool *ret_woken, struct err *err);
/* The whole body, at most API_BODY_MAX bytes. */
int api_read_all(struct blocking *s, struct buf *ret, struct err *err);

/* A whole call with a JSON answer (NULL for an empty one; freed by the caller). A status of 400 and above becomes *err with
 * the node's own words; *ret_status may be NULL. body: JSON text or NULL. */
int api_call(const struct api *a, const char *method, const char *path, const char *body, json_t **ret,
             unsigned *ret_status, struct err *err);
/* Looks a sandbox up and directs further calls at it. */
int api_sandbox(struct api *a, const char *id, struct err *err);
/* Further calls act as this user inside. */
int api_user(struct api *a, const char *user, struct err *err);
/* Turns an error answer into *err. Returns -1. */
int api_refused(struct blocking *s, struct err *err);

/* Reads one Connect envelope: 1 with the parsed message (freed by the caller), 0 at the end frame, -1. */
int api_message(struct blocking *s, struct buf *pending, int wait_fd, bool *ret_woken, json_t **ret, struct err *err);
/* A unary call of a service of the sandbox. */
int api_rpc(const struct api *a, const char *method, const char *body, json_t **ret, struct err *err);
/* Starts a streaming one. */
int api_rpc_stream(const struct api *a, const char *method, const char *body, struct blocking *ret, struct err *err);

static inline void api_json_drop(json_t **j) { json_decref(*j); }
#define _cleanup_json_ __attribute__((cleanup(api_json_drop)))

#endif
