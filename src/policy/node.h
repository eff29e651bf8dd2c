/* node.h - a YAML or JSON text as a tree whose every value knows its line.
 *
 * The tree is built from libyaml's events. Scalars stay text: what "off", "~" or "010" means is decided by the key they
 * stand under, never by YAML's guessing. Anchors, aliases, tags, merge keys, duplicate keys and further documents are
 * errors, so that what a reader sees is what there is.
 */
#ifndef HUTCH_POLICY_NODE_H
#define HUTCH_POLICY_NODE_H

#include <stdbool.h>
#include <stddef.h>

#include "base/buf.h"
#include "base/err.h"

enum {
    NODE_TEXT_MAX = 1 << 20, /* bytes of a document */
    NODE_DEPTH_MAX = 8,      /* lists and mappings inside one another */
    NODE_ITEMS_MAX = 4096,   /* entries of one list or mapping */
    NODE_TOTAL_MAX = 32768,  /* values in a document */
    NODE_SCALAR_MAX = 32768, /* bytes of one value */
};

enum node_kind { NODE_SCALAR, NODE_LIST, NODE_MAP };

struct node {
    enum node_kind kind;
    bool quoted;         /* scalar in quotes, or a block scalar */
    unsigned line;       /* 1-based; 0 for a value from the command line */
    char *text;          /* NODE_SCALAR; owned */
    struct node **items; /* NODE_LIST: values. NODE_MAP: key, value, key, value ... Owned. */
    size_t n, cap;       /* of items */
};

enum { NODE_JSON = 1 << 0 /* only what JSON can spell: braces, brackets, double quotes, numbers, true, false, null */ };

/* Reads a whole document. `name` stands before ":LINE:" in messages. An empty document is an empty mapping.
 * Errors: ERR_POLICY. Never blocks. */
int node_read(const char *text, size_t n, const char *name, unsigned flags, struct node **ret, struct err *err);
void node_free(struct node *node);
static inline void node_free_p(struct node **node) { node_free(*node); }
#define _cleanup_node_ __attribute__((cleanup(node_free_p)))

/* For values from elsewhere: a scalar copy, an empty list or mapping, and appending (takes `child`). */
struct node *node_new(enum node_kind kind, const char *text, unsigned line);
void node_take(struct node *parent, struct node *child);

/* An empty plain scalar: what "key:" with nothing behind it gives. */
bool node_is_empty(const struct node *node);

/* Appends `s` as a YAML scalar that reads back as exactly `s`: plain if that is safe, else in double quotes. */
void node_add_scalar(struct buf *b, const char *s);

#endif
