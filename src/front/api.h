/* api.h - one request as front's handlers see it: who asks, which route, which sandbox, and how it ended.
 *
 * front_handle() makes a call for every request; its memory lives exactly as long as the request's. It stands between the
 * handler and the carrier (it is the request's `ops`), so it sees the answer's status and its end and writes one log line.
 *
 * Rules for handlers: set on_closed only through api_on_closed(); hang your state on req->user as usual. Who answers lets go
 * of the call: a helper that answers on failure says so by its result, which is looked at before the call is used again.
 * In a sanitizer build every member of an answered call is poisoned, and a second answer aborts. Elsewhere reading one is
 * harmless, and a second answer is dropped and logged.
 */
#ifndef HUTCH_FRONT_API_H
#define HUTCH_FRONT_API_H

#include "front/boxes.h"
#include "front/front.h"
#include "front/tenants.h"

struct api_call;
typedef void api_fn(struct api_call *c);

enum {
    API_OPEN = 1,    /* no key needed, or the handler looks for what it needs */
    API_CHANGES = 2, /* refused for keys with SCOPE_READ */
    API_CONTENTS = 4 /* files, output, logs: a key with SCOPE_READ needs SCOPE_FILES, too */
};

struct api_route {
    const char *method;
    const char *pattern; /* "/sandboxes/{id}/timeout"; a parameter is one whole segment */
    api_fn *fn;
    unsigned scope; /* one of SCOPE_*; SCOPE_ADMIN keys may everything */
    unsigned flags;
};

enum { API_PARAMS_MAX = 3 };

struct api_call {
    struct http_stream_ops ops;            /* what the request's `ops` points at while it runs */
    const struct http_stream_ops *carrier; /* what it pointed at before */
    bool answered;                         /* or its client left; what follows is not to be used any more */
    struct http_req *req;
    struct front *front;
    const struct api_route *route; /* NULL on the data plane */
    struct principal who;          /* tenant NULL: no key was needed or given */
    char *param[API_PARAMS_MAX];   /* decoded path parameters, in order; owned */
    char tenant[40];               /* for the log: id, or "" */
    char sandbox[SANDBOX_ID_MAX];  /* for the log: the sandbox it is about, or "" */
    uint32_t port;                 /* for the log: of the sandbox; 0 on the control plane */
    void (*closed)(struct http_req *r);
    bool in_use;      /* the sandbox counts as in use while it runs */
    uint64_t started; /* loop time, ms */
    uint64_t bytes;   /* of the answer's body */
    unsigned status;
};

struct api_call *api_call_of(const struct http_req *r);
void api_on_closed(struct http_req *r, void (*fn)(struct http_req *r));
/* A request whose answer comes later: what a handler keeps until then begins with this. */
struct api_wait {
    struct http_req *r; /* NULL once the client left */
};
/* Such memory: `size` bytes, zero but for that member; on req->user until it is over. */
void *api_wait_for(struct http_req *r, size_t size);
/* The request to answer now, or NULL if its client left. Frees w. */
struct http_req *api_wait_over(void *w);
/* After code that knows nothing of calls took the request over (proxy): puts the call in front of its on_closed again. */
void api_rewrap(struct http_req *r);
void api_note_sandbox(struct http_req *r, const char *id);
/* Begins a call; front_handle() does, and tests. */
struct api_call *api_begin(struct front *f, struct http_req *r);

/* Why a key with these scopes may not use a route; NULL: it may. */
const char *api_scope_lacking(unsigned scopes, unsigned wanted, unsigned flags);
/* Whether the caller may see contents that the answer of a route for metadata has as well. */
bool api_sees_contents(const struct api_call *c);

/* api-host.c: what a request is for, by Host, routing headers and path. Pure. */
enum api_kind {
    API_CONTROL,     /* the REST API of this node */
    API_SANDBOX,     /* a port of a sandbox */
    API_SIGNED,      /* a signed file URL that names no sandbox */
    API_BAD_TARGET,  /* names a sandbox badly: 400, text says how */
    API_MISDIRECTED, /* a host that is not ours: 421 */
};
struct api_target {
    enum api_kind kind;
    char sandbox[SANDBOX_ID_MAX];
    uint32_t port;
    char text[200];
};
enum { API_ENVD_PORT = 49983 };
void api_classify(const char *domain, const struct http_req *r, struct api_target *ret);
/* True if the authority is ours: the domain, api.<domain>, sandbox.<domain>, localhost, an address. */
bool api_own_host(const char *domain, const char *authority);
/* The sandbox in "<port>-<id>.<domain>"; false: the authority is no such name. */
bool api_host_sandbox(const char *domain, const char *authority, char ret[SANDBOX_ID_MAX]);
/* A sandbox id as clients may write it: [a-z0-9]{1,39}, "-<anything>" behind it dropped. False: not one. */
bool api_sandbox_id(const char *s, size_t n, char ret[SANDBOX_ID_MAX]);

/* api-routes.c: all routes of the control plane. */
const struct api_route *api_routes(size_t *n);
enum api_match { API_NO_PATH, API_NO_METHOD, API_MATCHED, API_BAD_PATH };
/* On API_MATCHED fills params (owned by the caller); on API_NO_METHOD `allow` gets the methods there are. */
enum api_match api_match(const char *method, const char *path, const struct api_route **ret,
                         char *param[API_PARAMS_MAX], struct buf *allow);

/* The box a control-plane call is about (param 0), if it is the caller's own and alive; else NULL, and 404 was answered. */
struct box *api_box(struct api_call *c);
void api_no_box(struct api_call *c);
/* Traffic for a box: `then` at once if it runs, or when it is awake; if it cannot be woken the request is answered. */
void api_awake(struct api_call *c, struct box *b, void (*then)(struct api_call *c, struct box *b));
/* Its box was paused before anything was done for it: it is served from the beginning. */
void api_again(struct api_call *c);
/* Answers with an error once the body of the request, of which some is still to come, was read and dropped. */
void api_refuse_body(struct http_req *r, unsigned status, const char *text);
/* The same with a body of the caller's own: JSON. */
void api_drain_json(struct http_req *r, unsigned status, const struct buf *body);

#endif
