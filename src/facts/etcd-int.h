/* etcd-int.h - facts in etcd: what etcd.c (the calls), etcd-net.c (connections), etcd-json.c (bodies and answers) and
 * etcd-watch.c share.
 *
 * etcd is spoken to through its JSON gateway, over HTTP/1.1 connections that each carry one call at a time. A call that
 * changes nothing is tried again at the next endpoint until its time is over. One that does is sent once: when its answer is
 * lost, it is FACTS_UNKNOWN.
 */
#ifndef HUTCH_FACTS_ETCD_INT_H
#define HUTCH_FACTS_ETCD_INT_H

#include <jansson.h>

#include "config/config.h"
#include "facts/facts-int.h"
#include "http/client.h"
#include "http/connecting.h"
#include "http/tls-peer.h"

enum {
    ETCD_ENDPOINTS_MAX = 16,
    ETCD_CONNS_MAX = 16, /* at once, without those of watches */
    ETCD_ANSWER_MAX = 64 * 1024 * 1024,
    ETCD_PAGE = 100, /* facts that are asked for at once: their values may be large */
    ETCD_DIAL_MS = 2000,
    ETCD_READ_MS = 1500,   /* one try of a call that changes nothing */
    ETCD_CHANGE_MS = 5000, /* a change, which is sent once */
    ETCD_TOTAL_MS = 4000,  /* a call that was not sent, with all its tries */
    ETCD_DOWN_MS = 2000,   /* without an endpoint that can be reached, a call waits so long only */
    ETCD_AGAIN_MS = 200,   /* after an endpoint failed */
    ETCD_PULSE_MS = 5000,  /* how often the member that watches hang on shows that it follows the others */
};

struct etcd;
struct etcd_call;
struct etcd_conn;
/* Reads the answer: the parsed body, or NULL when the result is set already. Appends facts to rows. */
typedef void etcd_parse_fn(struct etcd *e, struct etcd_call *c, json_t *body);

struct etcd_call {
    struct etcd_call *next;
    const char *path; /* static */
    struct buf body;
    bool changes;           /* its answer must not be lost: it is sent once */
    bool auth;              /* asks for the token, and needs none */
    bool again;             /* set by parse: the body was changed, and it is to be sent anew */
    uint64_t until;         /* loop time: given up then, unless it was sent and changes something */
    uint64_t failures;      /* of endpoints, when it began */
    size_t limit;           /* range: facts asked for */
    struct facts_page page; /* range; key and prefix owned */
    etcd_parse_fn *parse;
    struct facts_call_in in; /* done NULL: of our own */
    void (*own)(struct etcd *e, const struct facts_answer *a);
    /* the answer */
    enum facts_result result;
    struct buf why; /* without the engine's name */
    struct facts_rows rows;
    uint64_t revision, lease;
    unsigned ttl_s;
    bool more;
};

struct etcd {
    struct facts head; /* first */
    char *prefix;      /* before each key */
    struct config_url endpoint[ETCD_ENDPOINTS_MAX];
    size_t nendpoints, current;
    uint64_t failures; /* of endpoints */
    struct tls_peer *tls;
    char *user, *password;           /* NULL: none */
    char *token;                     /* "": none was asked for; NULL: to be asked for */
    bool asking;                     /* for the token */
    uint64_t cluster;                /* its id; 0: not known yet */
    struct etcd_call *first, **last; /* calls that no connection has */
    size_t ncalls;                   /* all of them */
    uint64_t swept_ms;               /* when those that wait were last looked at */
    char *trouble;                   /* why the last connection failed; NULL: none did since one was good */
    struct etcd_conn *conns;
    size_t nconns;
    loop_id timer; /* looks at waiting calls */
    struct etcd_follow *follows;
    loop_id pulse_timer;
    bool pulsing;
};

/* etcd-net.c */
/* Takes the call over; its parse and done come later. */
void etcd_send(struct etcd *e, struct etcd_call *c);
struct etcd_call *etcd_call_new(const char *path, bool changes, struct facts_call_in in, etcd_parse_fn *parse);
void etcd_net_close(struct etcd *e);
/* Another endpoint from now on, because this one failed. */
void etcd_next_endpoint(struct etcd *e, size_t failed);
/* Fields of each request, and their number; v has room for 3. */
size_t etcd_fields(const struct etcd *e, struct http_field *v);
/* A connected transport, with TLS if the endpoint wants it; fd is taken over. NULL: it cannot be. */
struct transport *etcd_transport(struct etcd *e, size_t endpoint, int fd);

/* etcd-json.c */
void etcd_json_range(struct etcd *e, struct etcd_call *c);
void etcd_json_change(struct etcd *e, const struct facts_test *tests, size_t ntests, const struct facts_write *writes,
                      size_t nwrites, struct buf *out);
void etcd_json_watch(struct etcd *e, const char *prefix, uint64_t from, struct buf *out);
etcd_parse_fn etcd_parse_rows, etcd_parse_change, etcd_parse_lease, etcd_parse_kept, etcd_parse_nothing,
    etcd_parse_token;
/* A number that etcd writes as a text; 0 if there is none, or more than etcd can have. */
uint64_t etcd_number(const json_t *o, const char *name);
/* The same for an id, which may have all 64 bits. */
uint64_t etcd_id(const json_t *o, const char *name);
/* Sets result and why from a refusal of etcd's. */
void etcd_parse_error(struct etcd_call *c, const json_t *body, unsigned status);
/* A fact of an answer, if it is one of ours. removed: of an event. */
void etcd_add_fact(struct etcd *e, struct facts_rows *rows, const json_t *kv, bool removed);

/* etcd-watch.c */
void *etcd_follow(struct facts *f, const char *prefix, uint64_t from, const struct facts_follow_events *events,
                  void *arg);
void etcd_unfollow(struct facts *f, void *follow);
/* The endpoint failed or was left: all follows begin anew where they stand. */
void etcd_follows_move(struct etcd *e);

#endif
