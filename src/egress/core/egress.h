/* egress.h - shared by the files of egress/: the process through which every connection leaves a sandbox.
 *
 * One loop, no threads but the loop's workers. The process has its own user, no capability, no file but the audit log,
 * and a system call filter. It trusts nothing that comes from a sandbox, trusts keeper, and lets front set policies and
 * secrets of any sandbox.
 *
 *   main.c drop.c          process, privileges                           table.c        sandboxes
 *   control*.c             messages from keeper and front                hello.c        ClientHello
 *   flow.c sniff.c guard.c a connection until its protocol is known      dns*.c         resolver with synthetic addresses
 *   proxy.c socks.c        explicit proxies                              names.c        name <-> synthetic address
 *   dial.c resolve.c       the way out: resolve, check, connect          relay.c        opaque streams
 *   limits.c usage.c       rates, quotas, counters                       http*.c        requests: judge, inject, forward
 *   mint.c tls.c           certificates, both legs of TLS                h2up.c         HTTP/2 to upstreams
 *   deny.c internal.c      refusals in every form, sandbox.internal      ask.c learn.c  approvals, learn mode
 *   seal.c secrets.c inject*.c redact.c           secrets                audit.c        the log
 */
#ifndef HUTCH_EGRESS_CORE_EGRESS_H
#define HUTCH_EGRESS_CORE_EGRESS_H

#include <netinet/in.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/map.h"
#include "egress/core/proto.h"
#include "loop/loop.h"
#include "policy/net/netpol.h"

struct audit;
struct deny;
struct dial;
struct esb;
struct flow;
struct mint;
struct names;
struct secrets;

struct egress_config {
    uint32_t connections; /* of the process; default 20000 or what RLIMIT_NOFILE allows */
    char
        resolv_conf[64]; /* path for c-ares; "" = the system's. Tests give "127.0.0.1:5353"-like servers in `servers` */
    char servers[256];   /* "ADDR:PORT,ADDR:PORT"; "" = resolv.conf */
    struct netpol_cidr
        infra[NETPOL_INFRA_MAX]; /* never reached (control plane ...), besides the machine's own addresses */
    size_t ninfra;
    struct netpol_cidr
        loopback_ok[8]; /* tests only (environment of the test daemon, never the documented configuration):
                                          addresses that are otherwise `never` but count as public. Empty in production. */
    size_t nloopback_ok;
    bool run; /* for one `hutch run`: ends with its control connection; makes its own root if none is given */
    bool no_interception; /* no CA was given */
    bool audit_file;      /* the audit log is one file */
    bool audit_drop;      /* a full audit log loses lines instead of refusing requests */
    int audit_sync;       /* enum audit_sync */
    char log_level[8];    /* "info" */
};
/* config.c: the JSON on EGRESS_FD_CONFIG, an object with members of the same names; "audit_on_full" is "block" or "drop",
 * "audit_sync" "off", "interval" or "each". */
int egress_config_parse(const char *text, size_t n, struct egress_config *ret, struct err *err);
/* main.c: the process `hutch-node egress`; returns its exit status. */
int egress_main(int argc, char **argv);
/* drop.c: gives up rights and verifies it. Afterwards files can only be opened below audit_dir (-1: none at all). */
int egress_drop(int audit_dir, struct err *err);

struct egress {
    struct loop *loop;
    struct egress_config config;
    struct map sandboxes; /* id -> struct esb */
    struct map tenants;   /* usage.c: of sandboxes that ended */
    size_t nflows;
    struct mint *mint;
    struct audit *audit; /* NULL: none */
    struct secrets *vault;
    struct buf trust; /* PEM bundle of roots for upstreams; empty: none was given */
    char *ca_pem;     /* the installation's root, for hello and /ca.pem; NULL: no interception */
    void *control;    /* control.c */
    void *http;       /* http.c: the servers, upstream contexts */
    void *resolver;   /* resolve.c */
    void *dialer;     /* dial.c */
    uint64_t flow_ids;
    bool draining; /* ending: no new connection is accepted */
};

/* Counters. Egress reports them to front, which stores them and gives them back to the next egress process
 * (usage_seed()). */
struct esb_counts {
    uint64_t connections, requests, denied, bytes_up, bytes_down, dns, injections, redactions, violations;
};

/* A sandbox. Lives while keeper has attached it or front has given it a policy. */
struct esb {
    struct egress *g;
    char id[EGRESS_ID_MAX];
    char tenant[64];
    int tcp, udp; /* -1: not attached */
    loop_id tcp_watch, udp_watch;
    struct netpol *policy;    /* NULL: not served */
    uint64_t epoch, replaced; /* of the policy; when it was given as a whole */
    bool named;               /* front named it since the last hello */
    char *proxy_password;     /* of the policy's upstream proxy, sealed, base64; NULL: none */
    struct names *names;
    struct map placeholders; /* text -> secret name (owned strings) */
    struct flow *flows;      /* every open connection, a list */
    size_t nflows;
    struct esb_counts counts;
    struct map hosts; /* name -> struct usage_host, at most 512, then "other" */
    void *limits;     /* limits.c */
    void *denials;    /* deny.c: the last 256 */
    void *asks;       /* ask.c: requests that wait for approval */
    void *learned;    /* learn.c */
    void *upstreams;  /* http-pool.c: idle connections, of this sandbox only */
    void *dns;        /* dns.c: questions the node's resolver has not answered yet */
    uint64_t audit_seq;
    uint64_t keeper;          /* the connection of keeper that attached it */
    loop_id accept_timer;     /* when accepting resumes */
    loop_id expiry_timer;     /* when the next rule expires */
    struct esb_counts told;   /* the part of `counts` that front knows */
    struct esb_counts folded; /* the part of `counts` that is in the tenant's sums */
    bool seeded;              /* counting began: earlier counts are not accepted any more */
};

/* table.c */
struct esb *esb_find(struct egress *g, const char *id);
struct esb *esb_get(struct egress *g, const char *id); /* makes it if there is none */
/* Takes over both sockets, which keeper gave; closes those it had before. */
void esb_attach(struct esb *s, int tcp, int udp);
void esb_detach(struct esb *s);
/* Watches the sockets if there is a policy, else stops watching them. */
void esb_watch(struct esb *s);
/* Judges every open connection anew and cuts those that are no longer allowed. */
void esb_judge(struct esb *s);
/* text -> name; both are copied. */
void esb_placeholder(struct esb *s, const char *text, const char *name);
void esb_placeholders_clear(struct esb *s);
/* Drops every sandbox, even those that keeper or front still knows. */
void esb_drop_all(struct egress *g);
/* If neither keeper nor front knows it any more: closes every connection and frees it. */
void esb_drop_if_unused(struct esb *s);
/* Takes the policy over (NULL: stops serving the sandbox). Judges every open connection anew and cuts those that are no
 * longer allowed. */
void esb_set_policy(struct esb *s, struct netpol *p, uint64_t epoch);
/* Whether a connection that began at that epoch under a rule with a use count may continue after the rule has ended
 * (used up, or it would need approval again). False if a deny rule forbids it now, or if the whole document was
 * replaced since. */
bool esb_grant_holds(const struct esb *s, const struct netpol_rule *rule, uint64_t epoch,
                     const struct netpol_decision *now);
struct host_counts {
    uint64_t requests, denied, bytes_up, bytes_down;
};
struct host_counts *esb_host(struct esb *s, const char *host);

/* usage.c: counters of hosts and tenants. The sums of a tenant are those of its sandboxes, also of the ended ones. */
struct usage_host {
    struct host_counts counts; /* first: esb_host() gives it out */
    struct host_counts told, folded;
    char name[];
};
void usage_free_hosts(struct map *hosts);
void usage_ended(struct esb *s); /* adds its counts to the tenant's */
void usage_forget_all(struct egress *g);
void usage_forget_tenant(struct egress *g, const char *tenant);
/* Counts from before this process began: of a sandbox (s), or of a tenant (s NULL). Only once, before its first
 * policy. */
struct usage_seed {
    struct esb_counts counts;
    uint64_t ended;
    struct map hosts; /* name -> struct usage_host; of the caller */
};
void usage_seed(struct egress *g, struct esb *s, const char *tenant, const struct usage_seed *seed);
struct usage_host *usage_host(struct map *hosts, const char *name); /* makes it if there is none */
/* The first policy came: this process counts from now on. */
void usage_begins(struct esb *s);
/* A new front has connected and knows no counts. */
void usage_forget_told(struct egress *g);
/* Tells front what it does not know yet, about a sandbox or about one tenant (NULL: all). */
void usage_tell(struct esb *s);
void usage_tell_tenants(struct egress *g, const char *tenant);
/* {tenant, sandboxes, sandboxes_ended, counters, hosts}; hosts are left out beyond max bytes. */
void usage_tenant(struct egress *g, const char *tenant, size_t max, struct buf *out);
struct json;
void usage_add_counts(struct json *j, const struct esb_counts *c);
void usage_add_rest(struct json *j, const struct esb_counts *c);
void usage_add_hosts(struct json *j, const struct map *hosts, size_t max);

/* One connection of a sandbox, from accept to close. Its current driver (sniff.c, relay.c, http.c ...) sets `ops`. */
struct flow_ops {
    /* Whether it is still allowed under the new policy. false: cut() follows. */
    bool (*still)(struct flow *f);
    void (*cut)(struct flow *f); /* closes at once, frees the driver's part, calls flow_end() */
};
struct flow {
    struct esb *sb;
    struct flow *next, **prev; /* of sb->flows */
    uint64_t id;               /* of the process; in the audit as conn */
    int fd;                    /* the sandbox's side; owned until flow_take_fd() */
    struct in6_addr dst;       /* what the client connected to */
    uint16_t port;
    bool gate;           /* dst is the platform's own address, or no foreign one: explicit proxy, sandbox.internal */
    bool explicit_proxy; /* CONNECT or SOCKS gave host and port below */
    /* Its destination: a name (from the resolver's map, CONNECT or SOCKS), or a literal. */
    char host[NETPOL_NAME_MAX]; /* "" : literal */
    struct in6_addr literal;
    char sni[NETPOL_NAME_MAX]; /* "" : none, or no TLS */
    bool tls, ech;
    bool stale;      /* dst is a synthetic address whose name was forgotten */
    bool doomed;     /* table.c: to be cut */
    struct buf head; /* bytes read so far, to be replayed */
    uint64_t started_ms;
    uint64_t bytes_up, bytes_down;
    const struct flow_ops *ops;
    void *driver;
};
/* flow.c */
void flow_accept(struct esb *s); /* the listener is readable */
void flow_end(struct flow *f);   /* frees it; fd closed if still owned */
int flow_take_fd(struct flow *f);
/* Makes close() send a RST instead of a FIN, for opaque refusals and cuts. flow_end() (or close) follows. */
void flow_reset(struct flow *f);
/* The flow as policy sees it. */
struct netpol_flow flow_target(const struct flow *f);
/* Its policy has `refusals: closed`: connections to a refused destination fail without an answer. */
bool flow_closes(const struct flow *f);

/* http.c: the bytes of this flow are HTTP (plain, f->tls false) or TLS to be intercepted; f->head is replayed. In proxy
 * mode (f->gate && !f->explicit_proxy on a proxy port) targets are absolute. Takes the flow over. */
int http_start(struct egress *g, struct err *err);
void http_stop(struct egress *g);
void http_flow(struct flow *f);
/* After a policy change: idle upstream connections are closed, waiting requests are judged again. */
void http_policy_changed(struct esb *s);
void http_forget(struct esb *s);

/* relay.c: dials, then copies both ways until both sides have ended; takes the flow over. */
void relay_flow(struct flow *f, const struct netpol_rule *rule);

/* Name of the tenant's secret with the upstream proxy's password, used if the policy came without one. */
#define DIAL_PROXY_SECRET "upstream-proxy"
/* dial.c: resolves, checks every address, connects to exactly what was checked. */
enum dial_failure { DIAL_OK, DIAL_NO_NAME, DIAL_PRIVATE, DIAL_NEVER, DIAL_UNREACHABLE, DIAL_TIMEOUT };
struct dial_result {
    enum dial_failure failure;
    int fd; /* connected, taken over by the callee */
    struct in6_addr addr;
    uint64_t took_us;
    char text[200];
};
typedef void dial_done(void *arg, struct dial_result *r);
/* host: canonical name, or NULL with a literal. rule may be NULL (default allow-public). The callback is never called from
 * inside dial_start(). Goes through the policy's SOCKS5 proxy if it has one. */
struct dial *dial_start(struct esb *s, const char *host, const struct in6_addr *literal, uint16_t port,
                        const struct netpol_rule *rule, dial_done *done, void *arg);
void dial_cancel(struct dial *d);
int dial_setup(struct egress *g, struct err *err);
void dial_teardown(struct egress *g);
/* Whether `a` may be dialled: its kind, the rule's private list, the machine's own addresses, infra. */
enum dial_failure dial_check(const struct egress *g, const struct in6_addr *a, const struct netpol_rule *rule);

/* names.c: the synthetic addresses of one sandbox. */
struct names *names_new(void);
void names_free(struct names *n);
/* The IPv4 address (host order) that stands for the name; LRU. */
uint32_t names_address(struct names *n, const char *name, bool allowed);
bool names_synthetic(const struct in6_addr *a);
/* The name an address stands for; NULL: not (any more) known. */
const char *names_name(struct names *n, const struct in6_addr *a);
/* Real mode: remembers that `name` resolved to `a`. */
void names_learn(struct names *n, const struct in6_addr *a, const char *name);
/* The IPv6 address that means the same as a synthetic IPv4 address. */
struct in6_addr names_v6(uint32_t v4);
/* A denied name was asked for: true the first time in that minute. */
bool names_tell(struct names *n, const char *name, uint64_t minute);
/* dns.c: answers the queries that wait on the sandbox's UDP socket. Asks no resolver in synthetic mode. */
void dns_readable(struct esb *s);
void dns_forget(struct esb *s);

/* limits.c */
bool limit_connection(struct esb *s); /* false: too many are open */
/* How long to leave new connections in the backlog (ms); 0: accept one, the budget was charged for it. */
unsigned limit_accept(struct esb *s);
enum netpol_reason limit_request(struct esb *s, const struct netpol_rule *rule, unsigned *retry_s); /* NONE: go on */
/* For a name that only a wildcard allows. false: too many names were new in this minute. */
bool limit_new_name(struct esb *s, const char *name, unsigned *retry_s);
void limit_request_end(struct esb *s, const struct netpol_rule *rule);
/* Counts; NONE or QUOTA. */
enum netpol_reason limit_bytes(struct esb *s, const char *host, uint64_t up, uint64_t down);
/* Bandwidth: how long to wait before more bytes (ms), 0: none. */
unsigned limit_wait(struct esb *s, bool up);
void limits_free(struct esb *s);
/* One more query, or (denied) one more name that is denied and new in this minute. false: too many. */
bool limit_dns(struct esb *s, bool denied);

/* control.c */
void control_tell(struct egress *g, struct buf *json); /* to front, if there is one; takes the bytes */
/* Front is not connected, or so much waits for it that messages that are not urgent should wait. */
bool control_busy(const struct egress *g);

uint64_t egress_now(void);      /* unix seconds */
uint64_t egress_clock_us(void); /* CLOCK_MONOTONIC, for durations */

#endif
