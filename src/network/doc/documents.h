/* documents.h - reads, checks, completes and patches network documents. Pure: it knows no sandbox and no egress.
 * docs/network.md describes the language; policy/netpol.h decides what it means.
 */
#ifndef HUTCH_NETWORK_DOC_DOCUMENTS_H
#define HUTCH_NETWORK_DOC_DOCUMENTS_H

#include <jansson.h>

#include "base/err.h"
#include "base/strv.h"

enum { NET_DOC_MAX = 256 * 1024, NET_HEADER_HOSTS_MAX = 10, NET_HEADERS_MAX = 20 };

/* Request headers that egress sets for a host: E2B's transforms. egress treats them as a secret called `name`. */
struct net_header {
    char *name; /* derived from host and headers: equal headers have equal names */
    char *host;
    char *headers;       /* JSON: name -> value; ${e2b.secrets.NAME} stands for a secret's value */
    struct strv secrets; /* the names in them, in lower case as E2B does */
};
/* All strings owned. */
struct net_doc {
    char *document;      /* as given, JSON */
    char *effective;     /* canonical, presets resolved: what egress gets */
    char *e2b;           /* the document in E2B's form; NULL: it was given in ours */
    struct strv secrets; /* names of all secrets that rules use, without those of headers */
    struct net_header *headers;
    size_t nheaders;
    char *proxy_password; /* of its upstream_proxy, sealed to egress's key, base64; NULL: none. Never sent to clients */
    bool open;            /* the public internet is reachable without a rule */
    bool nothing;         /* not a single host is reachable, and none can be asked for */
    bool closed;          /* refusals: closed is in force */
};
void net_doc_done(struct net_doc *d);
void net_doc_copy(struct net_doc *to, const struct net_doc *from);
#define _cleanup_net_doc_ __attribute__((cleanup(net_doc_done)))

/* The API through which the document came: it decides the default of `refusals`. */
enum net_dialect { NET_NATIVE, NET_E2B };
/* sandboxes.refusals: "readable" or "closed" for all sandboxes; "auto" or NULL: closed for E2B's API, readable for
 * ours. */
void net_doc_refusals(const char *word);
/* The document (an object, or "public" or "off"), with the default of `refusals` written into it where that is
 * "closed"; a new reference. */
json_t *net_doc_standard(const json_t *value, enum net_dialect dialect);
/* Reads the value of `refusals`. -1: neither "readable" nor "closed". */
int net_doc_refusals_word(const char *word, const char *where, bool *ret_closed, struct err *err);

/* Reads one of our documents: an object, or "public" or "off". Errors name the place in it; eno EAGAIN: egress is
 * not there, so the proxy's password cannot be sealed. */
int net_doc_read(const json_t *value, struct net_doc *ret, struct err *err);
int net_doc_text(const char *text, size_t n, struct net_doc *ret, struct err *err);
/* Reads a file of the operator: YAML or JSON. */
int net_doc_file(const char *text, size_t n, const char *name, enum net_dialect dialect, struct net_doc *ret,
                 struct err *err);
/* Reads E2B's object of network settings (NULL: none) and allow_internet_access (-1: not given, 0, 1). Ignores
 * fields that are not about outgoing traffic. `before`: the network that it replaces (NULL: none); its refusals stay
 * unless the object sets them. */
int net_doc_e2b(json_t *network, int internet, const struct net_doc *before, struct net_doc *ret, struct err *err);
/* The same network with `refusals` set to closed or readable. */
int net_doc_reword(const struct net_doc *from, bool closed, struct net_doc *ret, struct err *err);
/* Reads a document from the database, with its E2B form ("" or NULL: none). */
int net_doc_again(const char *document, const char *e2b, struct net_doc *ret, struct err *err);

/* Sets the function that returns the key to seal passwords to; it returns false while the key is not known. NULL:
 * none. */
typedef bool net_doc_key_fn(void *arg, unsigned char ret[32]);
void net_doc_key(net_doc_key_fn *fn, void *arg);
/* net_doc_again() with the clear password of the proxy (NULL: none); errors name it `where`. */
int net_doc_with(const char *document, const char *e2b, const char *password, const char *where, struct net_doc *ret,
                 struct err *err);
/* Takes the password out of an object with address and username; *ret NULL: none. The caller wipes it. */
int net_doc_take_password(json_t *proxy, const char *where, char **ret, struct err *err);
void net_doc_wipe(char **password);
#define _cleanup_password_ __attribute__((cleanup(net_doc_wipe)))

/* Changes a document: {"add":[rule ...],"remove":[id ...],"set":{key: value}}. An added rule replaces one with the
 * same id. A document that is a word becomes an object. The password (sealed, or NULL) is kept if the proxy is. */
int net_doc_patch(const char *document, const char *e2b, const char *proxy_password, json_t *patch, struct net_doc *ret,
                  struct err *err);

/* The directory of presets; borrowed; -1: none. */
void net_doc_presets(int dirfd);
/* egress.private: the private networks that rules may open, "CIDR,..." or NULL for none. */
enum { NET_PRIVATE_MAX = 32 };
void net_doc_private(const char *list);

#endif
