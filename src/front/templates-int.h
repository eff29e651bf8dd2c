/* templates-int.h - inside of templates-rows.c, -tags.c and -change.c: rows in memory, and changes of them under way. */
#ifndef HUTCH_FRONT_TEMPLATES_INT_H
#define HUTCH_FRONT_TEMPLATES_INT_H

#include <jansson.h>

#include "base/json.h"
#include "base/map.h"
#include "front/boxes-int.h"
#include "front/state.h"

#define TMPL_TAG_DEFAULT "default"

struct tmpl_row {
    struct tmpl t; /* first */
    char *key;     /* "tenant/name", or NULL */
    bool counted;  /* `spawned` is newer than the store's */
};
struct tmpl_change {
    struct tmpl_change *next;
    enum { PUT, REMOVE, TAG, SET } kind;
    char id[40], tag[TMPL_TAG_MAX], name[TMPL_NAME_MAX], source[SANDBOX_ID_MAX];
    bool whole; /* REMOVE: all of it */
    struct tmpl_settings set;
    struct tmpl_tag made;  /* PUT, TAG: the new one */
    struct tenant *tenant; /* whose row it is */
    bool holds;            /* the stack of `made` */
    enum tmpl_kind row_kind;
    struct tmpl_config config;
    bool with_config;
    uint64_t bytes;
    struct tmpl after; /* what the row will be; tags owned, config borrowed until it is written */
    bool del;          /* there will be none */
    bool is_new;
    tmpl_done *done;
    void *arg;
    struct state_failure failure;
};
struct tmpls {
    struct front *front;
    struct map by_id;
    struct map by_name; /* "tenant/name" */
    struct tmpl_change *first, **last;
    size_t nchanges;
    bool writing;
    loop_id timer;
};

/* templates-rows.c */
const char *tmpl_owner(const struct tmpl *t); /* the id of its tenant, or "" */
struct tmpl_row *tmpl_by_name(const struct tmpls *ts, const char *tenant, const char *name);
struct tmpl_row *tmpl_row_add(struct tmpls *ts, const struct tmpl *t); /* takes tags and configuration over */
void tmpl_row_remove(struct tmpls *ts, struct tmpl_row *r);
void tmpl_row_write(struct front *f, const struct tmpl *t, store_done *done, void *arg);

/* templates-config.c */
void tmpl_config_add(struct json *j, const char *key, const struct tmpl_config *c);
int tmpl_config_read(json_t *o, struct tmpl_config *ret, struct err *err);

/* templates-tags.c */
struct tmpl_origin *tmpl_origin_new(const struct tmpl_new *n); /* NULL: there is nothing to say */
struct tmpl_origin *tmpl_origin_hold(struct tmpl_origin *o);   /* may be NULL, here and below */
void tmpl_origin_drop(struct tmpl_origin *o);
void tmpl_tags_free(struct tmpl_tag *v, size_t n);
/* New: those but one, with room for one more in front of them; *ret_n of them. NULL: all. */
struct tmpl_tag *tmpl_tags_without(const struct tmpl_tag *v, size_t n, const char *tag, size_t *ret_n);
/* The last of the four texts of a tag in the store: "CREATED BYTES JSON". Of rows of before, "CREATED BYTES" or "CREATED". */
char *tmpl_tag_text(const struct tmpl_tag *g);
void tmpl_tag_parse(const char *text, struct tmpl_tag *g);
/* Tags of before, which name no configuration, keep the one that the template has now. */
void tmpl_tags_complete(struct tmpl *t);

/* templates-change.c */
/* Stacks that `before` names and `after` (NULL: nothing) does not. */
void tmpl_drop_unnamed(struct front *f, const struct tmpl_tag *before, size_t n, const struct tmpl *after);
/* Those that wait, when front ends. */
void tmpl_changes_free(struct tmpls *ts);

#endif
