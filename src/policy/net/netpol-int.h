/* netpol-int.h - inside of netpol*.c: what a compiled policy is made of.
 *
 * Everything hangs on struct netpol: memory comes from netpol_keep() and is released with the policy, never before. Nothing
 * changes after netpol_parse() returned, so any number of readers may share one.
 */
#ifndef HUTCH_POLICY_NET_NETPOL_INT_H
#define HUTCH_POLICY_NET_NETPOL_INT_H

#include "base/json.h"
#include "base/map.h"
#include "policy/net/netpol.h"

enum {
    NETPOL_LABELS_MAX = 128,  /* labels of a name */
    NETPOL_STAR = 1,          /* in a compiled pattern: any characters. Not in any canonical text. */
    NETPOL_OVERRIDES_MAX = 8, /* headers that name another method, per request */
    NETPOL_METHOD_MAX = 32,   /* bytes of a method with its NUL */
};

/* --- patterns ----------------------------------------------------------------------------------------------------- */

enum netpol_host_kind { NETPOL_HOST_EXACT, NETPOL_HOST_BELOW, NETPOL_HOST_BOTH, NETPOL_HOST_ANY };
struct netpol_host {
    enum netpol_host_kind kind; /* "a.b", "*.b", ".b", "*" */
    const char *name;           /* canonical, without the wildcard; "" for ANY */
};

struct netpol_port {
    uint16_t from, to;
};

struct netpol_segment {
    const char *text;
    uint16_t n;
    bool deep;  /* "**" */
    bool stars; /* text has NETPOL_STAR */
};
struct netpol_path {
    const char *source; /* as written */
    const char *text;   /* canonical; what is compared if there is no wildcard */
    size_t n;
    bool plain;
    struct netpol_segment *segments;
    size_t nsegments;
};

struct netpol_glob {
    const char *source; /* as written */
    const char *text;   /* with NETPOL_STAR */
};
/* A header or a query parameter and what its values may be. */
struct netpol_pair {
    const char *name;
    struct netpol_glob *values;
    size_t nvalues;
};

struct netpol_entry {
    const char **methods;
    size_t nmethods; /* 0: any */
    struct netpol_path *paths;
    size_t npaths; /* 0: any */
    struct netpol_pair *query;
    size_t nquery;
    struct netpol_pair *headers;
    size_t nheaders;
    struct netpol_glob *types;
    size_t ntypes;
    uint64_t max_request_bytes; /* 0: none */
};

/* --- rules -------------------------------------------------------------------------------------------------------- */

enum netpol_access { NETPOL_ACCESS_NONE, NETPOL_ACCESS_READ, NETPOL_ACCESS_WRITE, NETPOL_ACCESS_FULL };

struct netpol_inside {
    struct netpol_host *hosts;
    size_t nhosts;
    struct netpol_cidr *cidrs;
    size_t ncidrs;
    struct netpol_port *ports;
    size_t nports; /* 0: all, in deny rules only */
    struct netpol_entry *http;
    size_t nhttp; /* 0: any request */
    struct netpol_entry *deny;
    size_t ndeny;
    enum netpol_access access; /* how http was written, for show */
    bool broad;
    bool cleartext_given, cleartext;
    bool needs;             /* requests must be seen for this rule to hold */
    bool preset, shorthand; /* where it comes from */
    bool may_repeat;        /* it is no error if other rules leave it nothing to decide */
    bool repeats;           /* and they do */
    const char *where;      /* "rules[2]", for messages */
    unsigned line;
};

/* --- the index ---------------------------------------------------------------------------------------------------- */

struct netpol_list {
    uint16_t *v; /* rule indexes in document order */
    size_t n, cap;
};
/* One suffix of a name in some pattern. Suffixes of suffixes are there too, so that a walk from the right can stop. */
struct netpol_node {
    struct netpol_list exact[2], below[2]; /* [0] allow, [1] deny */
    bool inspect_exact, inspect_below;
    struct netpol_node *next; /* of all, to free them */
};
struct netpol_block { /* a cidr of a rule */
    struct netpol_cidr cidr;
    uint16_t rule;
};
struct netpol_blocks {
    struct netpol_block *v; /* by bits, longest first, then address, then document order */
    size_t n, cap;
    struct {
        unsigned bits;
        size_t from, to;
    } groups[129];
    size_t ngroups;
};

struct netpol {
    unsigned refs;
    struct netpol_settings settings;
    bool allow_first; /* order */
    bool subtracts;   /* some allow rule has deny entries */
    struct netpol_rule *rules;
    size_t nrules, rules_cap;
    struct map names; /* suffix -> struct netpol_node */
    struct netpol_node *nodes;
    struct netpol_list any[2];
    struct netpol_blocks blocks[2];
    struct netpol_host *inspect; /* tls.inspect, for show */
    size_t ninspect;
    void **kept;
    size_t nkept, kept_cap;
};

/* netpol.c */
/* Zeroed memory that lives as long as the policy. */
void *netpol_keep(struct netpol *p, size_t n, size_t size);
const char *netpol_keep_text(struct netpol *p, const char *text, size_t n);
/* Fills the index from the rules; once, after the last one. */
void netpol_index(struct netpol *p);

/* netpol-names.c */
/* NULL, or what is wrong with a host pattern. *ret->name is kept by the policy. */
const char *netpol_host_parse(struct netpol *p, const char *text, bool broad, struct netpol_host *ret);
void netpol_host_add(const struct netpol_host *h, struct buf *out);

/* Where a flow's host stands in the index. */
struct netpol_hit {
    const struct netpol_node *nodes[NETPOL_LABELS_MAX]; /* from the right: least special first */
    unsigned n;
    bool whole; /* the last node is the whole name */
    bool inspect;
};
void netpol_find(const struct netpol *p, const struct netpol_flow *f, struct netpol_hit *ret);
/* Calls `visit` for every rule of that effect that names the host, the most special first, until it says true. */
typedef bool netpol_visit(void *arg, const struct netpol_rule *r);
bool netpol_each(const struct netpol *p, const struct netpol_flow *f, const struct netpol_hit *hit, bool deny,
                 netpol_visit *visit, void *arg);
/* The same for every rule whose cidrs hold the address. */
bool netpol_each_block(const struct netpol *p, const struct in6_addr *a, bool deny, netpol_visit *visit, void *arg);

/* netpol-target.c */
/* NULL, or what is wrong with a path pattern. */
const char *netpol_path_parse(struct netpol *p, const char *text, struct netpol_path *ret);
bool netpol_path_match(const struct netpol_path *pattern, const char *path, size_t n);
/* `pattern` has NETPOL_STAR for any characters. */
bool netpol_glob_match(const char *pattern, size_t pn, const char *text, size_t n);

/* netpol-http.c */
bool netpol_is_token(const char *text, size_t max);
struct netpol_reader;
struct netpol_at;
int netpol_read_http(struct netpol_reader *r, const struct node *value, const struct netpol_at *at, bool deny,
                     struct netpol_entry **ret, size_t *n);
void netpol_access_entry(struct netpol *p, enum netpol_access access, struct netpol_inside *in);
extern const char *const netpol_access_words[]; /* by enum netpol_access, NULL at the end */

/* netpol-entry.c */
struct netpol_form {
    const char *path;
    size_t n;
};
/* A request in all its interpretations. */
struct netpol_reading {
    const struct netpol_request *q;
    const char *methods[1 + NETPOL_OVERRIDES_MAX];
    size_t nmethods;
    char db[NETPOL_OVERRIDES_MAX][NETPOL_METHOD_MAX];
    struct netpol_form forms[4];
    size_t nforms;
    bool bad_override; /* a header names an invalid method, or there are too many such headers */
};
/* How far a request matched an entry: the stage that stopped it gives the reason. Later is nearer. */
enum netpol_stage {
    NETPOL_AT_HOST,
    NETPOL_AT_PORT,
    NETPOL_AT_CLEARTEXT,
    NETPOL_AT_PATH,
    NETPOL_AT_METHOD,
    NETPOL_AT_HEADER,
    NETPOL_AT_TYPE,
    NETPOL_AT_BODY,
    NETPOL_AT_EXPIRED,
    NETPOL_AT_END
};
void netpol_read_request(const struct netpol_request *q, struct netpol_reading *ret);
/* Whether any interpretation of the request matches any entry: then it is denied. */
bool netpol_any_reading(const struct netpol_entry *entries, size_t n, const struct netpol_reading *rd);
/* NETPOL_AT_END if every interpretation of the request matches some entry: then it is allowed. Otherwise how near the
 * worst one came. *max becomes the smallest body limit of the matching entries. */
enum netpol_stage netpol_every_reading(const struct netpol_entry *entries, size_t n, const struct netpol_reading *rd,
                                       uint64_t *max);

/* netpol-match.c */
bool netpol_rule_port(const struct netpol_rule *r, uint16_t port);

/* netpol-check.c */
/* Rules that contradict each other or can never decide anything. */
int netpol_check(struct netpol_reader *r);

/* netpol-read.c */
/* A document being read. Failing fills *e and returns -1. */
struct netpol_at { /* where a value stands; on the stack of its readers */
    const struct netpol_at *up;
    const char *key; /* NULL: an index */
    size_t index;
};
struct netpol_reader {
    struct netpol *p;
    netpol_preset_fn *preset;
    void *arg;
    const char *preset_name; /* while a preset is read */
    struct netpol_error *e;
    struct map ids; /* of the rules so far */
    char safe[2][100];
    unsigned nsafe;
};
typedef int netpol_key_fn(struct netpol_reader *r, const struct node *value, const struct netpol_at *at, void *into);
struct netpol_key {
    const char *name;
    netpol_key_fn *read;
};
int netpol_fail(struct netpol_reader *r, const struct netpol_at *at, unsigned line, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
/* "rules[2].hosts[0]" */
void netpol_at_add(struct buf *b, const struct netpol_at *at);
/* Untrusted text for one message. */
const char *netpol_safe(struct netpol_reader *r, const char *text);
int netpol_map(struct netpol_reader *r, const struct node *node, const struct netpol_at *at,
               const struct netpol_key *keys, void *into);
/* The number of values of a list of scalars (a scalar is a list of one), 1..max; 0: failed. netpol_item() gives them. */
size_t netpol_scalars(struct netpol_reader *r, const struct node *node, const struct netpol_at *at, size_t max);
const struct node *netpol_item(const struct node *list, size_t i);
const char *netpol_text(struct netpol_reader *r, const struct node *node, const struct netpol_at *at, size_t max);
int netpol_word(struct netpol_reader *r, const struct node *node, const struct netpol_at *at, const char *const *words);
int netpol_bool(struct netpol_reader *r, const struct node *node, const struct netpol_at *at, bool *ret);
int netpol_number(struct netpol_reader *r, const struct node *node, const struct netpol_at *at, uint64_t min,
                  uint64_t max, uint64_t *ret);
int netpol_size(struct netpol_reader *r, const struct node *node, const struct netpol_at *at, uint64_t *ret);

/* netpol-parse.c */
int netpol_read_rules(struct netpol_reader *r, const struct node *value, const struct netpol_at *at);
int netpol_read_short(struct netpol_reader *r, const struct node *value, const struct netpol_at *at, bool deny);

#endif
