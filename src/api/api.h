/* api.h - one request as front's handlers see it: the caller, the route, the sandbox, and how the request ended.
 *
 * api_handle() makes a call for every request; its memory lives exactly as long as the request's. It stands between
 * the handler and the carrier (it is the request's `ops`), so it sees the answer's status and its end and writes one
 * log line.
 *
 * Rules for handlers: set on_closed only through api_on_closed(); keep your state in req->user. Never use a call after
 * its answer: a helper that answers on failure says so by its result, and its caller checks that result first. In a
 * sanitizer build every member of an answered call is poisoned, and a second answer aborts. In other builds reading an
 * answered call is harmless, and a second answer is dropped and logged.
 */
#ifndef HUTCH_API_API_H
#define HUTCH_API_API_H

#include "api/domain.h"
#include "config/config.h"
#include "http/http.h"
#include "loop/loop.h"
#include "peers/peers.h"
#include "sandboxes/sandboxes.h"
#include "snapshots/snapshots.h"
#include "tenants/tenants.h"

struct api_call;
typedef void api_fn(struct api_call *c);

enum {
    API_OPEN = 1,    /* no key needed, or the handler checks the caller itself */
    API_CHANGES = 2, /* refused for keys with SCOPE_READ */
    API_TOKENS = 8,  /* tokens of the configured issuer will do, too (oauth/oauth.h) */
    API_CONTENTS = 4 /* files, output, logs: a key with SCOPE_READ needs SCOPE_FILES, too */
};

struct api_route {
    const char *method;
    const char *pattern; /* "/sandboxes/{id}/timeout"; a parameter is one whole segment */
    api_fn *fn;
    unsigned scope; /* one of SCOPE_*; keys with SCOPE_ADMIN may use every route */
    unsigned flags;
};

/* The ports of sandboxes that a dialect serves. */
enum { API_NO_PORT = 0, API_OTHER_PORTS = 65536 /* all that no other dialect names */ };
struct api;
struct api_plane {
    uint32_t port;
    /* A request for c->port of b, which runs. b NULL: there is no sandbox c->sandbox, or the request may not wake it; only
     * the dialect of API_OTHER_PORTS is asked then, whichever port it is. */
    void (*handle)(struct api_call *c, struct sandbox *b);
    /* Whether this request may wake b, which is paused. */
    bool (*may_wake)(const struct api_call *c, const struct sandbox *b);
    /* A signed file URL that names no sandbox; NULL: not served by this dialect. */
    api_fn *handle_signed;
};
/* What a dialect (api/e2b, api/native, api/gateway) exports, and all that api knows of it. Dialects never use each other. */
struct api_dialect {
    const struct api_route *routes;
    size_t nroutes;
    struct api_plane plane;
    /* A dialect with errors of its own form: requests whose path begins with `prefix` and that reach no handler are refused by
     * this. retry_after 0: none. */
    const char *prefix;
    void (*refuse)(struct http_req *r, unsigned status, unsigned retry_after, const char *text);
    /* What the dialect wants to be told; may be NULL. */
    void (*sandbox_ended)(struct api *api, struct sandbox *b);
    void (*sandbox_pausing)(struct api *api, struct sandbox *b);
    void (*sandbox_changed)(struct api *api, const struct sandbox *b,
                            enum sandbox_state was); /* sandboxes_on_change() */
};

/* The rooms that handlers ask. The process (node/front-main.c) makes one and owns what it points at; so does a test. */
enum { API_LINK_KEY = 32 };
struct api {
    struct loop *loop;
    const struct config *config;
    const struct api_domain *domain; /* domain.h: operations that can span nodes */
    struct db *db;
    const struct peers *peers;
    struct tenants *tenants;
    struct oauth *oauth; /* NULL: no other issuer is trusted */
    struct stacks *stacks;
    struct templates *templates;
    struct events *events;
    struct sandboxes *sandboxes;
    struct networks *network;
    struct snapshots *snapshots;
    struct builds *builds;
    struct volumes *volumes;
    const struct net_doc *default_net, *default_net_e2b; /* of creates that name none; NULL: the dialect decides */
    uint64_t started_ms;
    const char *files_driver, *files_why; /* where sandboxes write, as supervisor found it; NULL in tests */
    bool no_freezer;                      /* sandboxes cannot be stopped for a moment on this host */
    int own_dir;                          /* uploads become files without a name in it */
    unsigned char link_key[API_LINK_KEY]; /* signs links to ports (port-link.h) */
    /* Set by api_open(). */
    const struct api_dialect *const *dialects; /* borrowed */
    size_t ndialects;
    const struct api_route **routes; /* of all dialects, in their order */
    struct route *patterns;          /* the same routes in the form that the router takes */
    size_t nroutes;
};
/* Joins the dialects to an api whose rooms are set; the first route that fits a request wins. The list must outlive api. */
void api_open(struct api *api, const struct api_dialect *const *dialects, size_t n);
/* Frees what api_open() made; the rooms are the caller's. */
void api_close(struct api *api);
/* The handler of every request; ctx is a struct api. */
void api_handle(void *ctx, struct http_req *r);

enum { API_PARAMS_MAX = 3 };

struct api_call {
    struct http_stream_ops ops;            /* what the request's `ops` points at while it runs */
    const struct http_stream_ops *carrier; /* what `ops` pointed at before */
    bool answered;                         /* or its client left; never use the members below afterwards */
    struct http_req *req;
    struct api *api;
    const struct api_route *route; /* NULL on the data plane */
    struct principal who;          /* tenant NULL: no key was needed or given */
    char *param[API_PARAMS_MAX];   /* decoded path parameters, in order; owned */
    char tenant[40];               /* for the log: id, or "" */
    char sandbox[SANDBOX_ID_MAX];  /* for the log: the sandbox it is about, or "" */
    uint32_t port;                 /* for the log: of the sandbox; 0 on the control plane */
    void (*closed)(struct http_req *r);
    bool in_use;      /* the sandbox counts as in use while it runs */
    bool waited_keys; /* of the configured issuer were fetched for it */
    uint64_t started; /* loop time, ms */
    uint64_t bytes;   /* of the answer's body */
    unsigned status;
};

struct api_call *api_call_of(const struct http_req *r);
void api_on_closed(struct http_req *r, void (*fn)(struct http_req *r));
/* A request whose answer comes later: the struct that a handler keeps until then begins with this one. */
struct api_wait {
    struct http_req *r; /* NULL once the client left */
};
/* Allocates such a struct of `size` bytes, zeroed, and stores it in req->user until api_wait_over(). */
void *api_wait_for(struct http_req *r, size_t size);
/* The request to answer now, or NULL if its client left. Frees w. */
struct http_req *api_wait_over(void *w);
/* After the proxy took the request over and set its own on_closed: puts the call in front of that one again. */
void api_rewrap(struct http_req *r);
void api_note_sandbox(struct http_req *r, const char *id);
/* Begins a call; only api_handle() and tests use it. */
struct api_call *api_begin(struct api *api, struct http_req *r);

/* Why a key with these scopes may not use a route; NULL: it may. */
const char *api_scope_lacking(unsigned scopes, unsigned wanted, unsigned flags);
/* Whether the caller may also see contents (output, files) in the answer of a route for metadata. */
bool api_sees_contents(const struct api_call *c);

/* api-host.c: finds what a request is for from its Host, routing headers and path, without side effects. */
enum api_kind {
    API_CONTROL,     /* the REST API of this node */
    API_SANDBOX,     /* a port of a sandbox */
    API_SIGNED,      /* a signed file URL that names no sandbox */
    API_BAD_TARGET,  /* names a sandbox wrongly: 400, and `text` says what is wrong */
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
/* The sandbox in "<port>-<id>.<domain>"; false: the authority has another form. */
bool api_host_sandbox(const char *domain, const char *authority, char ret[SANDBOX_ID_MAX]);
/* A sandbox id as clients may write it: [a-z0-9]{1,39}, a "-<anything>" after it is dropped. False: not an id. */
bool api_sandbox_id(const char *s, size_t n, char ret[SANDBOX_ID_MAX]);

/* token.c: a caller without a key of this node. True: a token says who it is (c->who). False: the call was answered, or
 * api_go_on() comes when the issuer's keys are there. */
bool api_take_token(struct api_call *c);
/* Checks the caller of a matched call and hands the call to its route. */
void api_go_on(struct api_call *c);
/* Where clients learn which issuer there is; NULL: there is none. Appends a URL. */
bool api_token_metadata(const struct api *api, struct buf *out);

/* api-routes.c: the routes of the control plane. */
void api_routes_join(struct api *api);
enum api_match { API_NO_PATH, API_NO_METHOD, API_MATCHED, API_BAD_PATH };
/* On API_MATCHED fills params (owned by the caller); on API_NO_METHOD `allow` gets the methods there are. */
enum api_match api_match(const struct api *api, const char *method, const char *path, const struct api_route **ret,
                         char *param[API_PARAMS_MAX], struct buf *allow);

/* The sandbox that param 0 names, if it is alive and belongs to the caller's tenant. NULL: it answered with 404. */
struct sandbox *api_sandbox_of(struct api_call *c);
void api_no_sandbox(struct api_call *c);
/* Calls `then` at once if the sandbox runs, else wakes it first; if that fails, answers the request with the failure. */
void api_awake(struct api_call *c, struct sandbox *b, void (*then)(struct api_call *c, struct sandbox *b));
/* Handles the call from the beginning, because its sandbox was paused before anything was sent to it. */
void api_again(struct api_call *c);
/* Reads and drops the rest of the request's body, then answers with an error. */
void api_refuse_body(struct http_req *r, unsigned status, const char *text);
/* The same with a JSON body that the caller wrote. */
void api_drain_json(struct http_req *r, unsigned status, const struct buf *body);

#endif
