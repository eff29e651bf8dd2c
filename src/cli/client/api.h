/* api.h - the CLI's way to a node: blocking HTTP/1.1 over TCP or TLS. Which node, which key and which authorities:
 * choose.c. */
#ifndef HUTCH_CLI_CLIENT_API_H
#define HUTCH_CLI_CLIENT_API_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/fields.h"
#include "base/strv.h"
#include "http/blocking-via.h"
#include "http/blocking.h"

enum { API_BODY_MAX = 64 * 1024 * 1024 };

struct api {
    char host[256], port[8], url[300];
    char dial[64]; /* the address to connect to; "": that of host */
    bool tls;
    char *ca;              /* PEM of the only authorities; NULL: the system's. Owned, until the program ends */
    char ca_from[208];     /* where they are from, for messages */
    char *cert, *cert_key; /* PEM of a client certificate and its key; NULL: none. Owned, until the program ends */
    char cert_from[440];
    struct blocking_via via; /* a proxy; host "": none */
    char via_from[16];       /* the variable that names it */
    char profile[64];        /* that named the node; "" if none did */
    char key[128];           /* "" if none was found */
    /* Set by api_sandbox(): further calls go to this sandbox's own agent. */
    char sandbox[64], token[128];
    unsigned long memory_mb; /* what that sandbox may use; 0: unknown */
    char user[64];           /* who acts inside; "": the template's user */
};

/* Notes where the node is. ERR_USAGE for a URL that is not http(s)://HOST[:PORT]. */
int api_reach(struct api *a, const char *url, struct err *err);
/* Whether the URL means this machine: a loopback address, localhost or a name below it. */
bool api_is_here(const struct api *a);
/* Whether `other`, at a loopback address, is what the URL means. A name of this machine then leads to that address, and to
 * no other that has it, too. */
bool api_lead_to(struct api *a, const struct api *other);
/* Finds the proxy of HTTPS_PROXY or HTTP_PROXY, and NO_PROXY. This machine is never reached through one. */
int api_choose_via(struct api *a, struct err *err);
/* Connects, over TLS if the URL says so. The caller ends *ret with blocking_close(), also after an error. */
int api_connect(const struct api *a, struct blocking *ret, struct err *err);
void api_set_key(struct api *a, const char *key);

/* Sends a request. body_fd >= 0: the body is read from there (length bytes, or HTTP_UNKNOWN: until its end, chunked);
 * else it is body/length. extra: "name: value" lines, NULL-terminated, may be NULL. Returns when the head of the answer
 * is there; the caller ends it with blocking_close(). ERR_HOST if no node listens. */
struct api_request {
    const char *method, *path, *type;
    const char *const *extra;
    const void *body;
    uint64_t length;
    int body_fd; /* -1: none */
    void (*progress)(const char *what, uint64_t done, uint64_t all,
                     bool last); /* of a body from body_fd; may be NULL */
    const char *progress_what;
    bool keep; /* the caller reads the whole answer and gives the connection to api_end() */
};
int api_send(const struct api *a, const struct api_request *q, struct blocking *ret, struct err *err);
/* Closes the connection, or keeps it for the next call if its answer was read to the end. */
void api_end(const struct api *a, struct blocking *s);
/* Takes the connection that was kept, if it leads to this node and is still open. For api_send() only. */
bool api_take_kept(const struct api *a, struct blocking *ret);
/* Body bytes: >0, 0 at the proper end, -1 with *err. wait_fd >= 0: also returns, with *ret_woken, when that is readable. */
ssize_t api_read(struct blocking *s, void *p, size_t n, int wait_fd, bool *ret_woken, struct err *err);
/* The whole body, at most API_BODY_MAX bytes. */
int api_read_all(struct blocking *s, struct buf *ret, struct err *err);

/* A whole call with a JSON answer (NULL for an empty one; freed by the caller). A status of 400 and above becomes *err with
 * the node's own words; *ret_status may be NULL. body: JSON text or NULL. */
int api_call(const struct api *a, const char *method, const char *path, const char *body, json_t **ret,
             unsigned *ret_status, struct err *err);
/* The id of the sandbox that a word means: an id, a name (metadata `name`), or the only id that begins so. */
int api_find_id(const struct api *a, const char *word, char ret[64], struct err *err);
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

#endif
