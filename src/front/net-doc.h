/* net-doc.h - network documents before they are in force: read, checked, made complete, changed rule by rule. Pure: no box, no
 * egress. The language is that of docs/network.md; its meaning is policy/netpol.h's business.
 */
#ifndef HUTCH_FRONT_NET_DOC_H
#define HUTCH_FRONT_NET_DOC_H

#include <jansson.h>

#include "base/err.h"
#include "base/strv.h"

enum { NET_DOC_MAX = 256 * 1024, NET_HEADER_HOSTS_MAX = 10, NET_HEADERS_MAX = 20 };

/* Request headers that are set on the way to a host: E2B's transforms. To egress they are a secret of their own, `name`. */
struct net_header {
    char *name; /* made of what follows, so that the same headers have the same name */
    char *host;
    char *headers;       /* JSON: name -> value; ${e2b.secrets.NAME} stands for a secret's value */
    struct strv secrets; /* the names in them, in lower case as E2B keeps them */
};
/* All strings owned. */
struct net_doc {
    char *document;      /* as given, JSON */
    char *effective;     /* canonical, presets resolved: what egress gets */
    char *e2b;           /* the same in E2B's words; NULL: it was given in ours */
    struct strv secrets; /* names of all secrets that rules use, without those of headers */
    struct net_header *headers;
    size_t nheaders;
    char *proxy_password; /* of its upstream_proxy, sealed to egress's key, base64; NULL: none. No answer tells it */
    bool open;            /* the public internet can be reached without a rule */
    bool closed;          /* refusals: closed is in force */
};
void net_doc_done(struct net_doc *d);
void net_doc_copy(struct net_doc *to, const struct net_doc *from);
#define _cleanup_net_doc_ __attribute__((cleanup(net_doc_done)))

/* In which words a sandbox was asked for: what a document that does not say `refusals` gets. */
enum net_dialect { NET_NATIVE, NET_E2B };
/* sandboxes.refusals: "readable" or "closed" for all of them; "auto" or NULL: closed in E2B's words, readable in ours. */
void net_doc_refusals(const char *word);
/* The document (an object, or "public" or "off") with `refusals` in it if that differs from what is said without; a new
 * reference. */
json_t *net_doc_standard(const json_t *value, enum net_dialect dialect);
/* A word for `refusals`: 0 and whether it is closed; -1: it is none. */
int net_doc_refusals_word(const char *word, const char *where, bool *ret_closed, struct err *err);

/* Reads one of our documents: an object, or "public" or "off". Errors name the place in it; with eno EAGAIN it is egress that
 * is not there to seal the proxy's password for. */
int net_doc_read(const json_t *value, struct net_doc *ret, struct err *err);
int net_doc_text(const char *text, size_t n, struct net_doc *ret, struct err *err);
/* A file of the operator's: YAML or JSON. */
int net_doc_file(const char *text, size_t n, const char *name, enum net_dialect dialect, struct net_doc *ret,
                 struct err *err);
/* E2B's object of network settings (NULL: none), with allow_internet_access (-1: not given, 0, 1). Fields that are not about
 * the way out are not looked at. `before`: the network that it replaces (NULL: none), whose refusals stay unless the object
 * names others. */
int net_doc_e2b(json_t *network, int internet, const struct net_doc *before, struct net_doc *ret, struct err *err);
/* The same network with the other word for `refusals`. */
int net_doc_reword(const struct net_doc *from, bool closed, struct net_doc *ret, struct err *err);
/* A document together with what net_doc_e2b() made of E2B's words ("" or NULL: nothing): from the store. */
int net_doc_again(const char *document, const char *e2b, struct net_doc *ret, struct err *err);

/* What gives the key to which passwords are sealed; false: it is not known (yet). NULL: nothing does. */
typedef bool net_doc_key_fn(void *arg, unsigned char ret[32]);
void net_doc_key(net_doc_key_fn *fn, void *arg);
/* The same with the clear password of its proxy (NULL: none); `where` names that in errors. */
int net_doc_with(const char *document, const char *e2b, const char *password, const char *where, struct net_doc *ret,
                 struct err *err);
/* Takes the password out of an object with address and username; *ret is NULL if there is none. To be wiped. */
int net_doc_take_password(json_t *proxy, const char *where, char **ret, struct err *err);
void net_doc_wipe(char **password);
#define _cleanup_password_ __attribute__((cleanup(net_doc_wipe)))

/* Changes of a document: {"add":[rule ...],"remove":[id ...],"set":{key: value}}. A rule whose id is there already replaces it.
 * A document that is a word becomes one with rules. The password (sealed, or NULL) stays if the proxy does. */
int net_doc_patch(const char *document, const char *e2b, const char *proxy_password, json_t *patch, struct net_doc *ret,
                  struct err *err);

/* Where presets lie; borrowed, -1: nowhere. */
void net_doc_presets(int dirfd);
/* egress.private: the private networks that rules may open, "CIDR,..." or NULL for none. */
enum { NET_PRIVATE_MAX = 32 };
void net_doc_private(const char *list);

#endif
