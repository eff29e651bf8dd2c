/* http-int.h - the HTTP engine, shared by http.c (connections of sandboxes), http-identify.c (what a request asks for),
 * http-request.c (until it may go), http-body.c (from then on), http-tunnel.c (WebSockets), http-upstream.c (making
 * connections) and http-pool.c (keeping them).
 *
 * An exchange is one request and its answer. It belongs to its flow and ends with exchange_end(), which writes the audit line
 * and releases everything; no request leaves before exchange_judge() has allowed it. Its states, in order:
 *
 *   judging     head known; canonical, judged, counted against limits; may wait in ask.c for approval
 *   gathering   only if a secret goes into the body: up to SECRET_BODY_MAX of it are read first
 *   connecting  an idle connection was taken, or one is being made; the client is paused
 *   forwarding  both directions move; each is stopped by the other's queue and by the bandwidth limit
 *   tunnel      after 101: bytes
 */
#ifndef HUTCH_EGRESS_HTTP_INT_H
#define HUTCH_EGRESS_HTTP_INT_H

#include "base/strv.h"
#include "egress/audit/audit.h"
#include "egress/core/egress.h"
#include "egress/deny.h"
#include "egress/etls.h"
#include "egress/h2up.h"
#include "egress/secrets/secrets.h"
#include "http/server.h"

enum {
    HTTP_FRONT_HEAD_MS = 10 * 1000, /* handshake and head of a sandbox's connection */
    HTTP_FRONT_IDLE_MS = 60 * 1000,
    HTTP_HANDSHAKE_MS = 10 * 1000, /* with an upstream */
    HTTP_BODY_MS = 60 * 1000,      /* silence of a client that owes body */
    HTTP_ANSWER_MS = 300 * 1000,   /* until the first byte of an answer */
    HTTP_STREAM_MS = 900 * 1000,   /* silence of an answer or a tunnel */
    HTTP_TICK_MS = 15 * 1000,      /* how often these are looked at */
    HTTP_ASKS = 4,                 /* times that one request waits for a decision */
    POOL_IDLE_MS = 30 * 1000,
    POOL_IDLE_PER_HOST = 64,
    POOL_CONNECTIONS = 512, /* of one sandbox, idle ones included */
    POOL_EXCHANGES = 512,   /* requests of one sandbox at a time: each may hold a head and two queues */
};

struct http_engine {
    struct egress *g;
    struct http_server *server;
    struct etls *tls;
};

/* A sandbox's connection. */
struct hflow {
    struct http_owner owner; /* first */
    struct flow *f;
    struct etls_front front;
    int fd; /* the transport's */
    struct exchange *exchanges;
};

/* ---- http-pool.c: connections to upstreams of one sandbox ---- */

struct upkey {
    bool tls;
    char host[NETPOL_NAME_MAX]; /* "": literal */
    struct in6_addr literal;
    uint16_t port;
    enum etls_alpn need;
};

struct upconn {
    struct upconn *prev, *next;
    struct pool *pool;
    struct upkey key;
    uint64_t epoch;
    struct in6_addr addr; /* that was dialled */
    struct client *h1;    /* one of the two */
    struct h2up *h2;
    int fd;       /* the transport's, to see whether it is still alive */
    size_t users; /* exchanges */
    bool reused;
    bool stale; /* not to be used for another request */
    loop_id idle;
    uint64_t idle_since;
};

/* Takes a connection that is free for this request under this rule, and counts the user. NULL: none. */
struct upconn *pool_take_conn(struct esb *s, const struct upkey *k, const struct netpol_rule *rule);
/* Room for one more connection; makes some by closing an idle one. */
bool pool_room(struct esb *s);
/* A new connection for one user: takes the transport, whose handshake is done. `epoch`: of the policy it was dialled under.
 * NULL: it cannot be watched. */
struct upconn *pool_add(struct esb *s, const struct upkey *k, uint64_t epoch, struct transport *t,
                        const struct in6_addr *addr);
/* The user is done. `keep`: its exchange was complete, so the connection can be used again. */
void pool_release(struct upconn *c, bool keep);
/* Counts a request of the sandbox; false: it has too many. */
bool pool_enter(struct esb *s);
void pool_leave(struct esb *s);
void pool_policy_changed(struct esb *s);
void pool_free(struct esb *s);         /* only when no connection is in use */
size_t pool_size(const struct esb *s); /* for tests */
bool pool_same_host(const struct upkey *a, const struct upkey *b);
/* A connection to this host is open that carries one request at a time. */
bool pool_speaks_http1(struct esb *s, const struct upkey *k);
/* Attempts that are under way; the list belongs to http-upstream.c. */
struct flight;
struct flight **pool_flights(struct esb *s);

/* ---- http-upstream.c: a new connection ---- */

struct connecting;
struct connected {
    enum netpol_reason reason; /* NONE, or why not */
    const char *text;          /* more about that */
    struct upconn *conn;       /* counted for this user */
    bool shared;               /* with other requests, so it may fail like a reused one */
    struct in6_addr addr;
    uint64_t dial_us;
};
typedef void connected_fn(void *arg, const struct connected *c);
/* Never calls back from inside the call. Joins an attempt under way to the same host. `policy` owns the rule. */
struct connecting *upstream_connect(struct http_engine *e, struct esb *s, const struct upkey *k, struct netpol *policy,
                                    const struct netpol_rule *rule, connected_fn *done, void *arg);
void upstream_cancel(struct connecting *c); /* NULL is fine */

/* ---- http-request.c, http-body.c ---- */

struct exchange {
    struct exchange *prev, *next; /* of the flow */
    struct http_engine *e;
    struct hflow *hf;
    struct esb *sb;
    struct http_req *r; /* NULL once it may not be touched */
    char id[24], method[40];
    uint64_t length;
    unsigned version;

    /* What is asked, in canonical form. */
    struct upkey key;
    char host_text[NETPOL_NAME_MAX];     /* name or address, for messages */
    char authority[NETPOL_NAME_MAX + 8]; /* as it is sent on */
    struct netpol_target target;
    struct netpol_field *judged;
    size_t njudged;
    bool grpc, websocket, te_trailers;

    /* What was decided. */
    struct netpol *policy; /* that `rule` belongs to */
    const struct netpol_rule *rule;
    uint64_t max_up; /* bytes of the body that rule and entry allow; 0: as many as come */
    bool would_deny;
    bool wildcard;              /* only a wildcard allows the name: it is counted */
    uint64_t epoch;             /* under which it was admitted */
    bool refused;               /* deny.c has the record */
    bool admitted;              /* allowed, and within limits */
    enum netpol_reason revoked; /* why a later policy does not allow it any more */
    bool limited;               /* limit_request_end() must follow */
    bool entered;               /* pool_leave() must follow */
    uint64_t waiter;
    unsigned asked;
    bool asking;

    /* The request as it is sent. */
    struct http_field *storage;
    size_t cap;
    struct http_fields fields;
    char *own;        /* strings of the fields: the client's ... */
    struct strv keep; /* ... and those of secrets */
    struct buf path;
    struct buf body; /* gathered */
    bool gathering, gathered;
    bool injecting; /* inject_secrets() has run: values may have to be wiped */
    struct inject_result injected;

    /* The way out. */
    struct connecting *connecting;
    struct upconn *conn;
    struct h2up_stream *stream; /* on conn->h2 */
    struct in6_addr addr;
    bool retried, reused;

    /* Forwarding. */
    bool body_ended;           /* the request's body is complete */
    bool body_told;            /* the client has ended the body */
    bool head;                 /* the head of the answer was sent */
    bool answered;             /* the last byte of the answer has come */
    bool tunnel;               /* 101 */
    bool up_ended, down_ended; /* tunnel */
    bool up_full, up_slow;     /* the client is paused: by the upstream's queue, by the bandwidth */
    bool down_full, down_slow;
    bool redact_body;
    struct ws_client *ws_up;   /* tunnel: messages that secrets go into */
    struct ws_server *ws_down; /* and those that are searched for them */
    loop_id up_timer, down_timer, tick;
    uint64_t moved_ms; /* when the last byte went either way */

    /* For the record. */
    unsigned status;
    uint64_t up, down;
    uint64_t started_us, policy_us, dial_us, first_us;
};

/* The handler: a request of a sandbox. */
void exchange_start(struct http_engine *e, struct hflow *hf, struct http_req *r);
/* http-identify.c: finds host, target and fields in canonical form. false: it was refused, x is gone. */
bool exchange_identify(struct exchange *x);
/* Refuses: records, answers if nothing was sent yet, else cuts; ends the exchange. */
void exchange_refuse(struct exchange *x, enum netpol_reason reason, const char *layer, const char *text);
/* Writes the audit line, releases everything, frees x. Aborts the request if it was not ended. */
void exchange_end(struct exchange *x);
/* Cuts the client off in the middle of an answer, and ends. */
void exchange_abort(struct exchange *x);
/* Detaches the request: removes our callbacks and returns it. */
struct http_req *exchange_let_go(struct exchange *x);
/* The exchange as policy sees it. */
struct netpol_flow exchange_flow(const struct exchange *x);
struct netpol_request exchange_question(const struct exchange *x);
/* Whether a new policy still allows it. */
bool exchange_still(struct exchange *x);
/* Finds a connection, then forwards. Also for a second try. */
void exchange_connect(struct exchange *x);

/* For inject_secrets(); `f` is exchange_flow()'s. */
struct inject_request exchange_injection(struct exchange *x, const struct netpol_flow *f);

/* http-tunnel.c */
/* Before the upgrade request is sent: removes extensions that would encode messages, if egress has to read them. */
void tunnel_prepare(struct exchange *x);
/* The server has answered 101. */
void tunnel_open(struct exchange *x, const struct http_fields *f);

/* http-body.c: sends the request on x->conn and moves both bodies. */
void exchange_forward(struct exchange *x);
/* Reads the whole body, then calls back through exchange_gathered(). */
void exchange_gather(struct exchange *x);
void exchange_gathered(struct exchange *x);
/* Copies the fields of an answer that are passed on. */
void exchange_copy_fields(struct exchange *x, const struct http_fields *f);
/* Releases the upstream connection, cancelling what is under way. */
void exchange_drop_upstream(struct exchange *x, bool keep);

#endif
