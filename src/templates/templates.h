/* templates.h - what sandboxes are made from: rows (built, imported, snapshots), their tags and configurations, and
 * the template directories of the node (`base`, `host`).
 *
 * May never: build a template (builds.h), or make a sandbox.
 */
#ifndef HUTCH_TEMPLATES_TEMPLATES_H
#define HUTCH_TEMPLATES_TEMPLATES_H

#include <string.h>

#include "base/ids.h"
#include "base/sha256.h"
#include "stacks/stacks.h"

struct templates;
struct templates_deps { /* borrowed, for as long as the templates */
    struct loop *loop;
    const struct config *config;
    struct db *db;
    struct stacks *stacks;
    struct tenants *tenants;
    int dir; /* of the template directories; -1: none */
};
struct templates *templates_new(const struct templates_deps *d);
int templates_load(struct templates *tp, struct err *err); /* the rows; tenants are loaded by then */
void templates_free(struct templates *tp);

enum template_kind { TEMPLATE_BUILT = 1, TEMPLATE_IMPORTED, TEMPLATE_SNAPSHOT };
enum { TEMPLATE_TAGS_MAX = 64, TEMPLATE_TAG_MAX = 64, TEMPLATE_NAME_MAX = 64, TEMPLATE_CONFIG_MAX = 256 << 10 };
enum {
    TEMPLATE_CONFIGS_MAX = 4 << 20,
    TEMPLATE_CONFIGS_TENANT_MAX = 64 << 20
}; /* bytes of JSON of all tags: of one template, of one tenant */
/* What a sandbox made from the template starts with. Owned by the row. */
struct template_config {
    char *user, *workdir; /* NULL: "user" if there is one, else root; its home */
    struct strv env;      /* "K=V" */
    char *start, *ready;  /* commands; NULL */
    uint32_t cpu_milli;   /* 0: the node's default */
    uint64_t memory, disk;
    bool history; /* every exec opens a generation */
};
/* Where a build comes from. Immutable; its tags share it and count their references. */
struct template_origin {
    unsigned holders;
    char *image; /* reference it was fetched by, in full (struct build_image); NULL: it was built, or came as a file */
    char manifest[SHA256_HEX]; /* digest of the image's manifest; "": not known */
    enum template_kind kind;   /* 0: not known */
    bool with_config;
    struct template_config config; /* but for `history`, which is a setting of the template */
    size_t bytes;                  /* of the configuration, as text */
};
struct template_tag {
    char tag[TEMPLATE_TAG_MAX];
    char build[40];
    char stack[STACK_ID_MAX];
    uint64_t created_unix_ms;
    uint64_t bytes;                 /* of its own layers; 0: not known */
    bool given;                     /* a user chose the tag: it does not stand for the image it was fetched as */
    struct template_origin *origin; /* held; NULL: not known */
};
struct template
{
    char id[40];                  /* what the API calls templateID */
    char name[TEMPLATE_NAME_MAX]; /* "" for a snapshot without a name */
    struct tenant *tenant;        /* owner; NULL: the node's own (imported by the operator), for all tenants */
    enum template_kind kind;      /* of the newest build; template_kind_of() has that of a tag */
    bool public;
    char source[SANDBOX_ID_MAX];   /* of the newest snapshot: the sandbox */
    struct template_config config; /* of the newest build; sandboxes get that of their tag, template_config_of() */
    struct template_tag *tags;     /* at most TEMPLATE_TAGS_MAX; the first is the newest. Owned */
    size_t ntags;
    uint64_t created_unix_ms, updated_unix_ms, spawned, builds, last_spawned_unix_ms;
    uint64_t bytes; /* of its own layers, of the newest build */
};
/* Finds a template that the tenant may see by id, name, name:tag or team/name[:tag]. A name without a team means the
 * tenant's own template, else the node's; public ones of others are found by id and team/name only. NULL: none
 * (template_resolve() may find a directory). *tag (may be NULL) gets the named tag, else "default"; NULL: the row
 * has no such tag. */
const struct template *template_find(struct templates *tp, const struct tenant *t, const char *name,
                                     const struct template_tag **tag);
/* Adds a build under a tag, in a new row if there is none of that name. Drops the stack that the tag named before if
 * no other tag has it. done when the row is on disk. */
struct template_new {
    const char *id, *name, *tag, *build, *stack, *source;
    struct tenant *tenant;
    enum template_kind kind;
    const struct template_config *config;
    const char *image, *manifest; /* as in struct template_origin; NULL: none */
    bool given;                   /* as in struct template_tag */
    uint64_t bytes;
};
typedef void template_done(void *arg, const struct template *t, const struct state_failure *failure);
/* May the tenant (NULL: the node) have a template of this name? If not, *ret is a 429. template_put() checks it
 * again. */
bool template_room(struct templates *tp, const struct tenant *t, const char *name, struct state_failure *ret);
void template_put(struct templates *tp, const struct template_new *n, template_done *done, void *arg);
void template_remove(struct templates *tp, const struct template *t, const char *tag /* NULL: all of it */,
                     template_done *done, void *arg);
/* The reference it was fetched by, in full; "": it was built, or came as a file. */
static inline const char *template_fetched(const struct template_tag *tag)
{
    return tag->origin && tag->origin->image ? tag->origin->image : "";
}
/* The image that the tag stands for, in full; "": none, or a user chose the tag. */
static inline const char *template_image(const struct template_tag *tag)
{
    return tag->given ? "" : template_fetched(tag);
}
static inline enum template_kind template_kind_of(const struct template *t, const struct template_tag *tag)
{
    return tag->origin && tag->origin->kind ? tag->origin->kind : t->kind;
}
/* Whether all tags are snapshots. A build under another tag makes the row a template; the snapshot's tag stays one. */
static inline bool template_only_snapshots(const struct template *t)
{
    bool only = t->ntags || t->kind == TEMPLATE_SNAPSHOT;
    for (size_t i = 0; i < t->ntags; i++)
        only &= template_kind_of(t, &t->tags[i]) == TEMPLATE_SNAPSHOT;
    return only;
}
/* The configuration of this tag, except for `history`, which is a setting of the template. */
static inline const struct template_config *template_config_of(const struct template *t, const struct template_tag *tag)
{
    return tag->origin && tag->origin->with_config ? &tag->origin->config : &t->config;
}
/* The same as JSON, with `history`. */
char *template_config_text(const struct template *t, const struct template_tag *tag);
void template_tag(struct templates *tp, const struct template *t, const struct template_tag *from, const char *tag,
                  template_done *done, void *arg);
void template_row_spawned(struct templates *tp, const char *id); /* a sandbox was made from it */
/* Settings of a template, which builds do not change. TEMPLATE_AS_IT_IS: keep. */
enum template_switch { TEMPLATE_AS_IT_IS = 0, TEMPLATE_OFF, TEMPLATE_ON };
struct template_settings {
    enum template_switch public, history;
};
void template_set(struct templates *tp, const struct template *t, const struct template_settings *s,
                  template_done *done, void *arg);
typedef void template_each_fn(void *arg, const struct template *t);
void template_each(struct templates *tp, const struct tenant *t /* NULL: all */, template_each_fn *fn, void *arg);
void template_config_copy(struct template_config *to, const struct template_config *from);
void template_config_done(struct template_config *c);
/* JSON as it stands in the row, and back. */
char *template_config_json(const struct template_config *c);
int template_config_parse(const char *json, struct template_config *ret, struct err *err);
/* Random ids as clients expect them: of a template, of a build (a UUID). */
void template_id_new(char ret[40]);
/* A name must not have the form of an id: it could hide the template with that id. */
enum { TEMPLATE_ID_CHARS = 20 };
#define TEMPLATE_ID_SHAPED_TEXT "'%.40s' looks like the id of a template (20 letters and digits); take another name"
static inline bool template_id_shaped(const char *name)
{
    return strlen(name) == TEMPLATE_ID_CHARS &&
           strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789") == TEMPLATE_ID_CHARS;
}
void template_build_new(char ret[40]);

/* --- template directories: directories.c -------------------------------------------------------------------------- */
/* Templates that are directories of this node. */
struct template_info {
    char name[72];
    char state[16]; /* "ready", "building", "error", "missing" */
    char text[200]; /* progress or error */
    uint32_t cpu_milli;
    uint64_t memory, disk, created_unix;
    uint64_t spawned; /* sandboxes made from it */
};
void templates_each(struct templates *tp, void (*each)(void *arg, const struct template_info *t), void *arg);
/* Accepts "name", "name:default", "team/name", "e2bdev/base". False: no such template. */
bool template_resolve(struct templates *tp, const char *name, struct template_info *ret);
void template_spawned(struct templates *tp, const char *name);

#endif
