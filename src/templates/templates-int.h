/* templates-int.h - rows of templates in memory and their pending changes. Private to this room: other rooms use
 * templates.h, and change rows through template_put() and its neighbours only.
 */
#ifndef HUTCH_TEMPLATES_TEMPLATES_INT_H
#define HUTCH_TEMPLATES_TEMPLATES_INT_H

#include <jansson.h>

#include "base/json.h"
#include "base/map.h"
#include "config/names.h"
#include "db/db.h"
#include "templates/templates.h"

#define TEMPLATE_TAG_DEFAULT "default"

struct template_db_row {
    struct template t; /* first */
    char *key;         /* "tenant/name", or NULL */
    bool counted;      /* `spawned` has grown since the row was written */
};
struct template_change {
    struct template_change *next;
    enum { PUT, REMOVE, TAG, SET } kind;
    char id[40], tag[TEMPLATE_TAG_MAX], name[TEMPLATE_NAME_MAX], source[SANDBOX_ID_MAX];
    bool whole; /* REMOVE: all of it */
    struct template_settings set;
    struct template_tag made; /* PUT, TAG: the new one */
    struct tenant *tenant;    /* whose row it is */
    bool holds;               /* the stack of `made` is held */
    enum template_kind row_kind;
    struct template_config config;
    bool with_config;
    uint64_t bytes;
    struct template after; /* the new row; tags owned, config borrowed until it is written */
    bool del;              /* the row is deleted */
    bool is_new;
    template_done *done;
    void *arg;
    struct state_failure failure;
};
enum { TEMPLATE_COUNTS_MAX = 256 };

struct templates {
    struct loop *loop; /* these five are borrowed, and so is dir */
    const struct config *config;
    struct db *db;
    struct stacks *stacks;
    struct tenants *tenants;
    /* directories.c: nothing is remembered but how often each was used */
    int dir;
    uint64_t opened_unix;
    struct {
        char name[72];
        uint64_t n;
    } spawned[TEMPLATE_COUNTS_MAX];
    size_t nspawned;
    /* rows.c */
    struct map by_id;
    struct map by_name; /* "tenant/name" */
    struct template_change *first, **last;
    size_t nchanges;
    bool writing;
    loop_id timer;
};

/* rows.c */
const char *template_owner(const struct template *t); /* the id of its tenant, or "" */
struct template_db_row *template_by_name(const struct templates *tp, const char *tenant, const char *name);
struct template_db_row *template_row_add(struct templates *tp,
                                         const struct template *t); /* takes tags and configuration over */
void template_row_remove(struct templates *tp, struct template_db_row *r);
void template_row_write(struct templates *tp, const struct template *t, db_done *done, void *arg);

/* config.c */
void template_config_add(struct json *j, const char *key, const struct template_config *c);
int template_config_read(json_t *o, struct template_config *ret, struct err *err);

/* tags.c */
struct template_origin *template_origin_new(const struct template_new *n); /* NULL: neither image nor configuration */
struct template_origin *template_origin_hold(struct template_origin *o);   /* may be NULL, here and below */
void template_origin_drop(struct template_origin *o);
void template_tags_free(struct template_tag *v, size_t n);
/* A new array of all tags except `tag` (NULL: of all), with room for one more; *ret_n: how many. */
struct template_tag *template_tags_without(const struct template_tag *v, size_t n, const char *tag, size_t *ret_n);
/* The last of the four texts of a tag in the database: "CREATED BYTES JSON". Older versions wrote "CREATED BYTES" or
 * "CREATED". */
char *template_tag_text(const struct template_tag *g);
void template_tag_parse(const char *text, struct template_tag *g);
/* Gives tags that an older version wrote without a configuration the present one of the template. */
void template_tags_complete(struct template *t);

/* change.c */
/* Drops stacks that `before` names and `after` (NULL: nothing) does not. */
void template_drop_unnamed(struct templates *tp, const struct template_tag *before, size_t n,
                           const struct template *after);
/* Frees pending changes when front ends. */
void template_changes_free(struct templates *tp);

#endif
