/* doc.h - inside of policy/: reading a document's tree into a struct policy.
 *
 * A reader walks tables of keys (struct doc_key); each key has one function that takes the value. All of them return 0,
 * or -1 with r->err filled by doc_fail(), which puts the place in front of the message.
 */
#ifndef HUTCH_POLICY_RUN_DOC_H
#define HUTCH_POLICY_RUN_DOC_H

#include "policy/node.h"
#include "policy/run/policy.h"

enum {
    DOC_PATH_MAX = 4095,    /* bytes of a path after "~" is resolved */
    DOC_GLOB_STARS_MAX = 2, /* "**" in one glob: matching time grows with the path's depth to this power */
    DOC_NAME_MAX = 255,     /* bytes of a variable's, host's or protected name */
    DOC_RULES_MAX = 4096,   /* file rules of all documents together */
    DOC_PROTECT_MAX = 256,  /* protected names of all documents together */
    DOC_SEARCH_DEPTH_MAX = 10,
    DOC_SEARCH_DEPTH = 3, /* if no document says otherwise */
};

struct doc {
    const struct policy_where *where; /* borrowed */
    enum policy_level level;
    const char *name;    /* for messages and origins; storage in policy->strings */
    const char *base;    /* relative paths start here; NULL: they are errors */
    struct policy *p;    /* where values go: the policy, or one of its ceilings */
    bool may_widen;      /* false: a project document that is not trusted */
    bool in_ceiling;     /* the values are bounds */
    const char *key;     /* the key whose value is being read; kept by doc_map */
    unsigned file_flags; /* for every file rule: FILE_TRY, FILE_LITERAL */
    struct err *err;
};

struct doc_key {
    const char *name;
    int (*read)(struct doc *d, const struct node *value, unsigned arg);
    unsigned arg;
};

/* doc.c */
/* Where a value stands, as an origin; and "policy.yaml:3" or "--rw x" as text. */
struct origin doc_origin(const struct doc *d, unsigned line);
/* Error with the place in front. Words from the document must have been made safe. Always -1. */
int doc_fail(struct doc *d, unsigned line, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* `text` made safe to stand in a message. Borrowed from a small ring of buffers: good for one message. */
const char *doc_safe(const char *text);
/* Reads a mapping by its table (ends with a NULL name); `section` is for messages, "" at the top. */
int doc_map(struct doc *d, const struct node *node, const char *section, const struct doc_key *keys);
/* Calls `each` for every scalar of a list, with its index; a single scalar counts as a list of one. */
int doc_list(struct doc *d, const struct node *node, const char *key,
             int (*each)(struct doc *d, const struct node *item, unsigned index, unsigned arg), unsigned arg);
/* The value's text if it is a scalar that is not empty, else NULL after doc_fail. */
const char *doc_scalar(struct doc *d, const struct node *node, const char *key);
int doc_bool(struct doc *d, const struct node *node, const char *key, bool *ret);
/* Index of the value in `words` (NULL-terminated), or -1 after doc_fail with a suggestion. */
int doc_word(struct doc *d, const struct node *node, const char *key, const char *const *words);
/* Error for what an untrusted project document may not do. Always -1. */
int doc_fail_widens(struct doc *d, unsigned line, const char *what);
/* Keeps a string for as long as the policy lives. */
const char *doc_keep(struct policy *p, const char *s);

/* parse.c */
int doc_read_tree(struct doc *d, const struct node *root);
extern const char *const policy_profiles[]; /* from narrow to wide */

/* Rules under which nothing is reachable. */
struct netpol *doc_no_network(void);

/* Adds the rules of a preset to the network. */
int doc_add_network_preset(struct doc *d, const char *name);

/* preset.c */
/* Applies --preset NAME: network rules, and the part `run`. */
int preset_apply(struct doc *d, const char *name);

/* parse-files.c */
int doc_read_files(struct doc *d, const struct node *value, unsigned arg);
int doc_read_ceiling_files(struct doc *d, const struct node *value, unsigned arg);
/* Adds one rule from text: resolves, checks, merges. `id` is copied. */
int doc_add_path(struct doc *d, unsigned line, enum file_verb verb, const char *text, bool literal, const char *id);

/* paths.c */
enum {
    DOC_PATH_LITERAL = 1 << 0, /* no character is special */
    DOC_PATH_GLOB = 1 << 1,    /* may be a glob; else that is an error */
};
/* "~", "$HOME" and relative paths made absolute and clean. A glob keeps its special characters; in anything else "\\"
 * before one is taken away. *ret is new. */
int doc_path(struct doc *d, unsigned line, const char *key, const char *text, unsigned flags, char **ret,
             bool *ret_glob);

/* parse-env.c */
int doc_read_env(struct doc *d, const struct node *value, unsigned arg);
int doc_add_env(struct doc *d, unsigned line, int verb, const char *name, const char *value);

/* parse-limits.c */
int doc_read_limits(struct doc *d, const struct node *value, unsigned arg);

/* merge.c */
/* Takes rule->path, ->src and ->id. A later level replaces what an earlier one said about the same path; at the same
 * level that is an error naming both places. */
int merge_file_rule(struct policy *p, struct file_rule *rule, struct err *err);
/* Takes name and id; an existing name is not added again. */
void merge_protected_name(struct policy *p, struct protected_name *name);
void merge_remove_file_rule(struct policy *p, size_t index);
void merge_remove_name_at(struct policy *p, size_t index);
void merge_remove_name(struct policy *p, const char *name);
/* Replaces the whole network part. Takes `netpol`, which is NULL unless the mode is NETWORK_RULES. */
void merge_network(struct policy *p, enum network_mode mode, struct netpol *netpol);
/* Makes deny rules below the source of a SRC:DEST rule hold at DEST too. Call once, after the last level. */
int merge_aliases(struct policy *p, struct err *err);

/* ceiling.c */
/* Refuses values that exceed a ceiling, naming both places, and lowers defaults to it. Call once, after the last
 * level. */
int ceiling_apply(struct policy *p, struct err *err);
/* Where the ceiling stands that forbids granting this, or NULL. Borrowed. */
const struct origin *ceiling_on_path(const struct policy *p, const char *path, bool write);
const struct origin *ceiling_on_syscall(const struct policy *p, const char *name);
const struct origin *ceiling_on_network(const struct policy *p, enum network_mode mode);

/* settings.c */
enum { SETTINGS_NETWORK_OFF = 1 << 0 /* --network off was given: what is said about domains is moot */ };
int settings_parse(const char *text, size_t n, const char *name, const struct policy_where *where, unsigned flags,
                   struct policy *p, struct err *err);

#endif
