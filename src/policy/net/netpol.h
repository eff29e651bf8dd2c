/* netpol.h - the rules of the network: which host, port, method and path a sandbox may reach, and what is done on the way.
 *
 * A document (the `network` part of a policy, or the body of an API call) becomes a struct netpol, which is immutable
 * and counted. Everything is decided from canonical forms: names by netpol_name(), targets by netpol_target(); egress
 * dials and forwards exactly what was judged. No I/O, no clock of its own: `now` is given. The document and the order
 * of evaluation are described in docs/network.md.
 */
#ifndef HUTCH_POLICY_NET_NETPOL_H
#define HUTCH_POLICY_NET_NETPOL_H

#include <netinet/in.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "policy/node.h"

enum {
    NETPOL_RULES_MAX = 1024,
    NETPOL_HOSTS_MAX = 256,  /* per rule */
    NETPOL_ENTRIES_MAX = 64, /* http or deny entries per rule */
    NETPOL_LIST_MAX = 64,    /* methods, paths, ports ... per entry */
    NETPOL_NAME_MAX = 254,   /* canonical host name with its NUL */
    NETPOL_ID_MAX = 64,
    NETPOL_PATTERN_MAX = 512,
    NETPOL_SECRETS_MAX = 32,       /* per rule */
    NETPOL_PRESETS_MAX = 32,       /* per document */
    NETPOL_PRESET_NAME = 33,       /* with its NUL */
    NETPOL_PRESET_FILES_MAX = 256, /* of a directory */
    NETPOL_TARGET_MAX = 16384,
};

enum netpol_mode { NETPOL_ENFORCE, NETPOL_AUDIT, NETPOL_LEARN };
enum netpol_default { NETPOL_DENY_ALL, NETPOL_ALLOW_PUBLIC };
enum netpol_verdict { NETPOL_ALLOW, NETPOL_DENY, NETPOL_ASK };
enum netpol_tls { NETPOL_TLS_AUTO, NETPOL_TLS_INTERCEPT, NETPOL_TLS_PASSTHROUGH };

/* One list of reasons for everything that refuses; the names (netpol_reason_name) are what users see. */
/* clang-format off */
#define NETPOL_REASONS(X) \
    X(NONE, none) X(HOST, host_not_allowed) X(PORT, port_not_allowed) X(METHOD, method_not_allowed) \
    X(PATH, path_not_allowed) X(HEADER, header_not_allowed) X(BODY, body_too_large) X(RESPONSE, response_too_large) \
    X(CONTENT_TYPE, content_type) X(LITERAL, ip_literal) X(PRIVATE, private_address) \
    X(RESOLVED_PRIVATE, resolved_private) X(NO_SNI, sni_missing) X(SNI_MISMATCH, sni_mismatch) \
    X(HOST_MISMATCH, host_mismatch) X(ECH, ech_not_allowed) X(PROTOCOL, protocol_not_allowed) \
    X(TLS_VERSION, tls_version) X(UPSTREAM_CERT, upstream_cert) X(QUOTA, quota_bytes) X(RATE, rate_limited) \
    X(CONNECTIONS, too_many_connections) X(SECRET_VIOLATION, secret_violation) X(SECRET_UNBOUND, secret_unbound) \
    X(APPROVAL_PENDING, approval_pending) X(APPROVAL_DENIED, approval_denied) X(EXPIRED, policy_expired) \
    X(STALE_DNS, stale_dns) X(MALFORMED, malformed_request) X(UNREACHABLE, upstream_unreachable) \
    X(TIMEOUT, upstream_timeout) X(DENY_RULE, denied_by_rule) X(CLEARTEXT, cleartext_not_allowed) \
    X(CODED, coded_response) X(AUDIT, audit_unavailable) X(NAMES, too_many_new_names)
/* clang-format on */
#define X(a, b) NETPOL_R_##a,
enum netpol_reason { NETPOL_REASONS(X) NETPOL_R_COUNT };
#undef X
const char *netpol_reason_name(enum netpol_reason r);

struct netpol_cidr {
    struct in6_addr addr; /* IPv4 as ::ffff:a.b.c.d */
    unsigned bits;        /* of 128 */
};

/* What callers may look at of a rule; everything else stays inside. */
struct netpol_rule {
    char id[NETPOL_ID_MAX];
    bool deny;
    bool ask; /* approval: ask */
    bool tcp; /* proto: tcp */
    enum netpol_tls tls;
    bool has_http;                     /* conditions on requests */
    const struct netpol_cidr *private; /* may be reached although not public */
    size_t nprivate;
    const char *const *secrets; /* names */
    size_t nsecrets;
    uint32_t rps, burst, concurrent;                /* 0: none */
    uint64_t max_request_bytes, max_response_bytes; /* 0: none */
    uint64_t expires;                               /* unix seconds; 0: never */
    uint32_t uses;                                  /* a grant for so many requests; 0: no such limit */
    unsigned index;                                 /* in the document, for per-rule state kept elsewhere */
    struct netpol_inside *inside;
};

/* The parts of a document that hold for the sandbox as a whole. */
struct netpol_settings {
    char id[128];
    enum netpol_mode mode;
    enum netpol_default otherwise;
    bool ask_on_miss;
    uint32_t ask_hold_s; /* 0..180, default 20 */
    bool dns_real, dns_aaaa;
    enum { NETPOL_DNS_SYNTHETIC, NETPOL_DNS_NXDOMAIN, NETPOL_DNS_REFUSED } dns_denied;
    enum netpol_tls intercept; /* AUTO; INTERCEPT = always; PASSTHROUGH = never */
    bool require_sni;          /* default true */
    bool tls13_only;
    uint32_t connections, new_per_s, rps, burst; /* 256, 50, 200, 400 */
    uint32_t new_names;                          /* under wildcards, per minute; 60 */
    uint64_t bytes_out, bytes_in;                /* 0: unlimited; default 10 GiB, 0 */
    uint64_t rate_out, rate_in;                  /* bytes per second; 0: unlimited */
    char deny_message[512];                      /* appended to refusals; "" */
    bool refusals_closed; /* refusals: closed. A host that no request may reach gets a closed connection, no answer */
    bool refusals_given;  /* the document has the key */
    char proxy[280], proxy_user[128]; /* SOCKS5 upstream "host:port"; "" none. The password is kept apart. */
};

struct netpol;
struct netpol_error {
    char path[160]; /* "rules[2].hosts[0]" */
    unsigned line;  /* 0: none */
    char text[480]; /* what is wrong and what would be right */
};

/* `doc` is a mapping (or the words "off"/"none", "public"); presets are looked up through `preset`, which may be NULL (then
 * naming one is an error). Strict: unknown keys, empty lists, rules nothing can reach are errors. */
typedef int netpol_preset_fn(void *arg, const char *name, struct node **ret, struct err *err);
int netpol_parse(const struct node *doc, netpol_preset_fn *preset, void *arg, struct netpol **ret,
                 struct netpol_error *e);
/* The same from JSON text. */
int netpol_parse_json(const char *text, size_t n, netpol_preset_fn *preset, void *arg, struct netpol **ret,
                      struct netpol_error *e);
struct netpol *netpol_ref(struct netpol *p);
void netpol_unref(struct netpol *p); /* NULL is fine */
static inline void netpol_unref_p(struct netpol **p) { netpol_unref(*p); }
#define _cleanup_netpol_ __attribute__((cleanup(netpol_unref_p)))
const struct netpol_settings *netpol_settings(const struct netpol *p);
size_t netpol_rules(const struct netpol *p);
const struct netpol_rule *netpol_rule_at(const struct netpol *p, size_t i);
/* The effective document, canonical and with presets resolved, as JSON that parses to the same policy. */
void netpol_show(const struct netpol *p, struct buf *out);
/* Presets that come with hutch (data files in share/hutch/presets, or next to the sources), by name or alias. Each is a
 * netpol_preset_fn; arg: int *, a directory; NULL: /etc/hutch/presets, then those that came with the running program. */
int netpol_preset_file(void *dirfd, const char *name, struct node **ret, struct err *err);
/* The same; arg: a home directory (or NULL), whose .config/hutch/presets comes first. */
int netpol_preset_of_user(void *home, const char *name, struct node **ret, struct err *err);
/* The same, and the name of its file. */
int netpol_preset_find(const char *home, const char *name, char real[NETPOL_PRESET_NAME], struct node **ret,
                       struct err *err);
/* Calls `visit` for each of them, in the order in which they are searched, until it says true; those that cannot be read are
 * left out. */
typedef bool netpol_preset_visit(void *arg, const char *name, const struct node *doc);
void netpol_presets_visit(const char *home, netpol_preset_visit *visit, void *arg);
/* Whether a key of the preset has this word, alone or in a list. */
bool netpol_preset_has_word(const struct node *doc, const char *key, const char *word);
/* The same document for people: a key or rule per line, each behind `indent`; YAML that says the same. */
void netpol_show_lines(const struct netpol *p, const char *indent, struct buf *out);

/* --- canonical forms ---------------------------------------------------------------------------------------------- */

/* A host name: lower case, one trailing dot removed, LDH and underscore labels, at most 253 bytes, last label not numeric.
 * false: not a name (an address, an odd spelling of one, something with a port ...). */
bool netpol_name(const char *text, size_t n, char ret[NETPOL_NAME_MAX]);
/* An address in its only accepted spellings (dotted quad without leading zeros; IPv6, brackets allowed, no scope). */
bool netpol_literal(const char *text, size_t n, struct in6_addr *ret);
/* "host", "host:port", "[v6]:port". host is canonical; *port stays as it was if none is given. false: malformed. */
bool netpol_authority(const char *text, char host[NETPOL_NAME_MAX], struct in6_addr *literal, bool *is_literal,
                      uint16_t *port);

/* A request target in the form that is judged and forwarded. */
struct netpol_target {
    char *text;      /* canonical path, and '?' query if there is one; owned. This is what is forwarded. */
    size_t path_len; /* of text */
    char *judged;    /* the path as it is judged: %40 as '@' and the like; NULL if the same. Owned. */
    char *decoded;   /* the same with %2f as '/': judged too; NULL if the same. Owned. */
    char *bare;      /* the same without ;parameters: judged too; NULL if the same. Owned. */
    char *both;      /* decoded and bare; NULL if one of them is. Owned. */
};
/* path begins with '/' (or is "*"); query without '?', or NULL. false: refused as malformed, *why says what. */
bool netpol_target(const char *path, const char *query, struct netpol_target *ret, const char **why);
void netpol_target_done(struct netpol_target *t);

/* --- decisions ---------------------------------------------------------------------------------------------------- */

struct netpol_flow {
    const char *host;     /* canonical name; NULL: a literal address */
    struct in6_addr addr; /* the literal, if host is NULL */
    uint16_t port;
    bool tls;
};
struct netpol_field {
    const char *name, *value; /* as struct http_field; policy/ does not know http/ */
};
struct netpol_request {
    const char *method;
    const struct netpol_target *target;
    const struct netpol_field *fields; /* names in lower case */
    size_t nfields;
    uint64_t length; /* of the body; UINT64_MAX: not known */
};
struct netpol_decision {
    enum netpol_verdict verdict;
    enum netpol_reason reason;      /* unless ALLOW */
    const struct netpol_rule *rule; /* that decided, or the nearest miss; NULL: the default */
    bool tcp;                       /* netpol_connect: an opaque stream is allowed now, before any byte */
    bool intercept;                 /* netpol_connect: look inside (also for every denied host) */
    bool would_deny;                /* ALLOW only because the mode is audit or learn */
    bool wildcard; /* ALLOW by a wildcard; one party may own all names below it, so new names are counted */
    uint64_t max_request_bytes; /* netpol_request: of the body, if its length is not known yet; 0: no such limit */
};
/* A connection, before its bytes are known. ALLOW with !tcp means: some request may be allowed. */
void netpol_connect(const struct netpol *p, const struct netpol_flow *f, uint64_t now, struct netpol_decision *ret);
/* An opaque TLS or other stream that is to be relayed as it is: only `tcp` rules and passthrough rules allow that. */
void netpol_relay(const struct netpol *p, const struct netpol_flow *f, uint64_t now, struct netpol_decision *ret);
void netpol_request(const struct netpol *p, const struct netpol_flow *f, const struct netpol_request *q, uint64_t now,
                    struct netpol_decision *ret);
/* The address that the name of an allowed flow resolved to: false if a deny rule's cidrs hold it. Private and other
 * addresses that are no matter of rules are the caller's (netpol_address_kind, rule->private). True for literals: they
 * have been judged. */
bool netpol_resolved(const struct netpol *p, const struct netpol_flow *f, const struct in6_addr *a, uint64_t now);
/* A name that some rule may allow: for DNS. */
bool netpol_name_possible(const struct netpol *p, const char *name, uint64_t now);
/* True if only a wildcard allows the name (or approval would be needed). Such new names are limited (new_names),
 * because each lookup is a message to the operator of the zone. False if every name is allowed anyway, or nothing is
 * enforced. */
bool netpol_name_wildcard(const struct netpol *p, const char *name);
/* The smallest rule that would allow it, as a JSON object: {"hosts":["x"],"http":[{"methods":["GET"],"paths":["/y"]}]}. */
void netpol_grant(const struct netpol_flow *f, const struct netpol_request *q, struct buf *out);

/* --- addresses ---------------------------------------------------------------------------------------------------- */

enum netpol_address { NETPOL_PUBLIC, NETPOL_PRIVATE, NETPOL_NEVER };
/* What kind of destination it is, mapped, NAT64, 6to4 and Teredo forms unwrapped. */
enum netpol_address netpol_address_kind(const struct in6_addr *a);
/* All of NETPOL_PRIVATE, as texts, NULL at the end: what `private` of a rule may open (but for single addresses of metadata
 * services inside, which are NETPOL_NEVER). */
extern const char *const netpol_private_ranges[];
bool netpol_cidr_parse(const char *text, struct netpol_cidr *ret);
bool netpol_cidr_has(const struct netpol_cidr *c, const struct in6_addr *a);
bool netpol_cidrs_have(const struct netpol_cidr *v, size_t n, const struct in6_addr *a);

enum { NETPOL_INFRA_MAX = 32 };
/* What the operator and this machine's interfaces say about addresses. All borrowed. */
struct netpol_reach {
    const struct in6_addr *own; /* this machine's: never reached */
    size_t nown;
    const struct netpol_cidr *infra; /* egress.infra: never reached */
    size_t ninfra;
    const struct netpol_cidr *open; /* tests only: count as public */
    size_t nopen;
};
/* netpol_address_kind() as this machine sees it: its own addresses and infra are NETPOL_NEVER, in every form that leads
 * there. Whether a NETPOL_PRIVATE one may be reached is the caller's question. */
enum netpol_address netpol_reach(const struct netpol_reach *r, const struct in6_addr *a);

/* --- names behind a proxy, a VPN or split DNS --------------------------------------------------------------------- */

/* Lets a host have private addresses: `text` is HOST[:PORT][=RANGE,...], without ranges all of netpol_private_ranges. Rules of
 * the document (as netpol_show() writes it) that allow the host keep their conditions and get `private`; where there is none, a
 * rule that allows the host comes first. "*" needs ranges and means the hosts that are allowed anyway. -1: *err says what is
 * wrong with the text. */
int netpol_open_private(struct node *doc, const char *text, struct err *err);

/* --- other people's documents ------------------------------------------------------------------------------------- */

/* E2B: allowOut, denyOut, allow_internet_access (-1 not given, 0, 1), as one of our documents (JSON). E2B's order: allow beats
 * deny, an empty allow list means everything public unless internet is off. header_rules: hosts whose requests must be looked
 * into, because headers are set on them. */
void netpol_from_e2b(const char *const *allow, size_t nallow, const char *const *deny, size_t ndeny, int internet,
                     const char *const *header_hosts, size_t nheader_hosts, struct buf *out);
/* sandbox-runtime: allowedDomains and deniedDomains. */
void netpol_from_domains(const char *const *allow, size_t nallow, const char *const *deny, size_t ndeny,
                         struct buf *out);

#endif
