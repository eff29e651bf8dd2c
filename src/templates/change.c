/* Changes of templates and snapshots. A queue makes them one after another, each based on the result of the one before.
 * Memory changes after the disk, so no client sees a row that a power cut could undo.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "templates/templates-int.h"

enum { ROWS_MAX = 100000, CHANGES_MAX = 10000 };

static void template_change_next(struct templates *tp);

static void template_change_free(struct template_change *c)
{
    template_config_done(&c->config);
    template_origin_drop(c->made.origin);
    free(c);
}

/* Takes the first change out of the queue and calls its `done`. */
static void template_change_finish(struct templates *tp, const struct template *t)
{
    struct template_change *c = tp->first;
    tp->first = c->next;
    if (!tp->first)
        tp->last = &tp->first;
    tp->nchanges--;
    tp->writing = false;
    if (c->holds) {
        state_release(tp->stacks, c->made.stack);
        if (c->failure.status)
            state_drop(tp->stacks, c->made.stack); /* no row may name it any more */
    }
    if (c->done)
        c->done(c->arg, c->failure.status ? NULL : t, c->failure.status ? &c->failure : NULL);
    template_change_free(c);
}

/* Stacks that `before` names and `after` does not. */
void template_drop_unnamed(struct templates *tp, const struct template_tag *before, size_t n,
                           const struct template *after)
{
    for (size_t i = 0; i < n; i++) {
        bool still = false;
        for (size_t k = 0; after && k < after->ntags; k++)
            still |= strcmp(before[i].stack, after->tags[k].stack) == 0;
        if (!still)
            state_drop(tp->stacks, before[i].stack);
    }
}

static void template_change_fail(struct templates *tp, struct template_change *c)
{
    template_tags_free(c->after.tags, c->after.ntags);
    c->after.tags = NULL;
    template_change_finish(tp, NULL);
}

/* Whether its tenant was removed meanwhile; a new tenant may have the same id. */
static bool template_change_is_orphan(const struct templates *tp, const struct template_change *c)
{
    return c->tenant && tenants_find(tp->tenants, c->tenant->id) != c->tenant;
}

/* The tenant was removed during the write: deletes the row that was written after its removal. */
static void template_change_undo(struct templates *tp, struct template_change *c)
{
    state_fail(&c->failure, 404, "the template is gone");
    if (c->del)
        return;
    db_template_del(tp->db, c->id, NULL, NULL);
    template_drop_unnamed(tp, c->after.tags, c->after.ntags, NULL);
}

static void template_change_on_row_stored(void *arg, const struct err *err)
{
    struct templates *tp = arg;
    struct template_change *c = tp->first;
    struct template_db_row *r = map_get(&tp->by_id, c->id);
    if (err)
        state_fail_write(&c->failure, err, "the node cannot record the template");
    else if (template_change_is_orphan(tp, c) || (!r && !c->is_new))
        template_change_undo(tp, c);
    if (c->failure.status) {
        template_change_fail(tp, c);
        template_change_next(tp);
        return;
    }
    struct template_tag *before = r ? r->t.tags : NULL;
    size_t nbefore = r ? r->t.ntags : 0;
    if (c->del && r) {
        r->t.tags = NULL;
        r->t.ntags = 0;
        template_row_remove(tp, r);
        r = NULL;
    } else if (r) {
        struct template_config config = c->with_config ? c->config : r->t.config;
        if (c->with_config)
            template_config_done(&r->t.config);
        config.history = c->after.config.history;
        uint64_t spawned = r->t.spawned, last = r->t.last_spawned_unix_ms; /* may have grown meanwhile */
        r->t = c->after;
        r->t.config = config;
        r->t.spawned = spawned;
        r->t.last_spawned_unix_ms = last;
    } else if (!c->del)
        r = template_row_add(tp, &c->after);
    if (c->with_config)
        c->config = (struct template_config){0}; /* the row's now */
    template_drop_unnamed(tp, before, nbefore, r ? &r->t : NULL);
    template_tags_free(before, nbefore);
    template_change_finish(tp, r ? &r->t : NULL);
    template_change_next(tp);
}

static size_t template_config_bytes(const struct template *t)
{
    size_t bytes = 0;
    for (size_t i = 0; i < t->ntags; i++)
        bytes += t->tags[i].origin ? t->tags[i].origin->bytes : 0;
    return bytes;
}

/* Limits the configurations of a tenant, which are kept in memory and counted by no other quota. */
static bool template_configs_fit(const struct templates *tp, const struct template_change *c)
{
    size_t at = 0, bytes = template_config_bytes(&c->after);
    for (struct template_db_row *r; c->tenant && (r = map_next(&tp->by_id, &at));)
        if (r->t.tenant == c->tenant && strcmp(r->t.id, c->after.id) != 0)
            bytes += template_config_bytes(&r->t);
    return !c->tenant || bytes <= TEMPLATE_CONFIGS_TENANT_MAX;
}

/* Puts the new tag first; it replaces one of the same name. */
static bool template_change_put_tag(const struct templates *tp, struct template_change *c)
{
    struct template *t = &c->after;
    size_t n = 0;
    struct template_tag *v = template_tags_without(t->tags, t->ntags, c->made.tag, &n);
    memmove(v + 1, v, n * sizeof *v);
    v[0] = c->made;
    (void)template_origin_hold(v[0].origin);
    t->tags = v;
    t->ntags = n + 1;
    if (t->ntags > TEMPLATE_TAGS_MAX)
        state_fail(&c->failure, 400, "a template has at most %d tags; remove one first", TEMPLATE_TAGS_MAX);
    else if (template_config_bytes(t) > TEMPLATE_CONFIGS_MAX)
        state_fail(&c->failure, 400,
                   "the variables and commands of all tags of a template have at most %d bytes together; remove a tag",
                   TEMPLATE_CONFIGS_MAX);
    else if (!template_configs_fit(tp, c))
        state_fail(&c->failure, 429,
                   "the variables and commands of all templates and snapshots of a tenant have at most %d bytes "
                   "together; remove some",
                   TEMPLATE_CONFIGS_TENANT_MAX);
    return c->failure.status == 0;
}

static void template_change_take_tag(struct template_change *c)
{
    struct template *t = &c->after;
    size_t n = 0;
    struct template_tag *v = template_tags_without(t->tags, t->ntags, c->tag, &n);
    if (n == t->ntags)
        state_fail(&c->failure, 404, "the template has no tag '%s'", c->tag);
    t->tags = v;
    t->ntags = n;
    c->del = n == 0;
}

static void template_copy_tags(struct template *t)
{
    t->tags = template_tags_without(t->tags, t->ntags, NULL, &t->ntags);
}

static void template_change_put_build(struct templates *tp, struct template_change *c, struct template_db_row *r)
{
    struct template *t = &c->after;
    if (!r) {
        (void)snprintf(t->id, sizeof t->id, "%s", c->id);
        (void)snprintf(t->name, sizeof t->name, "%s", c->name);
        t->tenant = c->tenant;
        t->public = !c->tenant;
        t->created_unix_ms = c->made.created_unix_ms;
        if (tp->by_id.n >= ROWS_MAX)
            state_fail(&c->failure, 503, "this node is full: it has %d templates and snapshots", ROWS_MAX);
    }
    if (r && c->row_kind == TEMPLATE_SNAPSHOT &&
        !template_only_snapshots(t)) /* a template of that name was built during the snapshot */
        state_fail(&c->failure, 409, "'%s' is the name of a template; give the snapshot another one", c->name);
    if (c->row_kind != TEMPLATE_SNAPSHOT)
        (void)template_room(tp, c->tenant, c->name, &c->failure);
    else if (!r && c->tenant) /* check again: other snapshots may have been made during this one */
        (void)state_room_count(tp->stacks, c->tenant, 1, &c->failure);
    t->kind = c->row_kind;
    if (c->row_kind == TEMPLATE_SNAPSHOT)
        (void)snprintf(t->source, sizeof t->source, "%s", c->source);
    if (c->with_config) {
        if (r)
            c->config.history = r->t.config.history;
        t->config = c->config;
    }
    t->bytes = c->bytes;
    t->builds++;
    t->updated_unix_ms = c->made.created_unix_ms;
    (void)template_change_put_tag(tp, c);
}

/* Computes the new row. False: c->failure says why it cannot be. */
static bool template_change_prepare(struct templates *tp, struct template_change *c)
{
    if (template_change_is_orphan(tp, c)) {
        state_fail(&c->failure, 404, "the tenant of the template is gone");
        return false;
    }
    if (c->kind == PUT && c->name[0]) { /* an earlier PUT in the queue may have made the row */
        struct template_db_row *same = template_by_name(tp, c->tenant ? c->tenant->id : "", c->name);
        if (same)
            memcpy(c->id, same->t.id, sizeof c->id);
    }
    struct template_db_row *r = map_get(&tp->by_id, c->id);
    if (!r && c->kind != PUT) {
        state_fail(&c->failure, 404, "the template is gone");
        return false;
    }
    c->after = r ? r->t : (struct template){0};
    c->is_new = !r;
    switch (c->kind) {
    case PUT:
        template_change_put_build(tp, c, r);
        break;
    case REMOVE:
        if (c->whole) {
            c->del = true;
            template_copy_tags(&c->after);
        } else
            template_change_take_tag(c);
        break;
    case TAG:
        (void)template_change_put_tag(tp, c);
        break;
    case SET:
        template_copy_tags(&c->after);
        if (c->set.public)
            c->after.public = c->set.public == TEMPLATE_ON;
        if (c->set.history)
            c->after.config.history = c->set.history == TEMPLATE_ON;
        break;
    }
    c->after.updated_unix_ms = clock_unix_ms();
    return c->failure.status == 0;
}

static void template_change_next(struct templates *tp)
{
    while (tp->first && !tp->writing) {
        struct template_change *c = tp->first;
        tp->writing = true;
        if (!template_change_prepare(tp, c))
            template_change_fail(tp, c);
        else if (c->del) {
            template_tags_free(c->after.tags, c->after.ntags);
            c->after.tags = NULL;
            db_template_del(tp->db, c->id, template_change_on_row_stored, tp);
        } else
            template_row_write(tp, &c->after, template_change_on_row_stored, tp);
    }
}

static void template_changes_on_loop(void *arg) { template_change_next(arg); }

static struct template_change *template_change_new(struct templates *tp, const char *id, template_done *done, void *arg)
{
    struct template_change *c = xcalloc(1, sizeof *c);
    (void)snprintf(c->id, sizeof c->id, "%s", id);
    c->done = done;
    c->arg = arg;
    c->made.created_unix_ms = clock_unix_ms();
    if (tp->nchanges >= CHANGES_MAX)
        state_fail(&c->failure, 503, "too many changes of templates wait; try again later");
    return c;
}

/* Begins from the loop, so that `done` is not called before the caller has returned. */
static void template_change_send(struct templates *tp, struct template_change *c)
{
    *tp->last = c;
    tp->last = &c->next;
    tp->nchanges++;
    loop_defer(tp->loop, template_changes_on_loop, tp);
}

void template_put(struct templates *tp, const struct template_new *n, template_done *done, void *arg)
{
    char id[40];
    const struct template_db_row *same =
        n->name && *n->name ? template_by_name(tp, n->tenant ? n->tenant->id : "", n->name) : NULL;
    if (same)
        (void)snprintf(id, sizeof id, "%s", same->t.id);
    else if (n->id && *n->id)
        (void)snprintf(id, sizeof id, "%s", n->id);
    else
        template_id_new(id);
    struct template_change *c = template_change_new(tp, id, done, arg);
    c->kind = PUT;
    (void)snprintf(c->name, sizeof c->name, "%s", n->name ? n->name : "");
    (void)snprintf(c->source, sizeof c->source, "%s", n->source ? n->source : "");
    (void)snprintf(c->made.tag, sizeof c->made.tag, "%s", n->tag && *n->tag ? n->tag : TEMPLATE_TAG_DEFAULT);
    (void)snprintf(c->made.build, sizeof c->made.build, "%s", n->build ? n->build : "");
    (void)snprintf(c->made.stack, sizeof c->made.stack, "%s", n->stack);
    if (!c->made.build[0])
        template_build_new(c->made.build);
    if (!same && template_id_shaped(c->name))
        state_fail(&c->failure, 400, TEMPLATE_ID_SHAPED_TEXT, c->name);
    c->made.bytes = n->bytes;
    c->made.origin = template_origin_new(n);
    c->made.given = n->given;
    c->tenant = n->tenant;
    c->row_kind = n->kind;
    c->bytes = n->bytes;
    if (n->config) {
        template_config_copy(&c->config, n->config);
        c->with_config = true;
    }
    template_change_send(tp, c);
}

void template_remove(struct templates *tp, const struct template *t, const char *tag, template_done *done, void *arg)
{
    struct template_change *c = template_change_new(tp, t->id, done, arg);
    c->kind = REMOVE;
    c->tenant = t->tenant;
    c->whole = !tag;
    (void)snprintf(c->tag, sizeof c->tag, "%s", tag ? tag : "");
    template_change_send(tp, c);
}

void template_tag(struct templates *tp, const struct template *t, const struct template_tag *from, const char *tag,
                  template_done *done, void *arg)
{
    struct template_change *c = template_change_new(tp, t->id, done, arg);
    c->kind = TAG;
    c->tenant = t->tenant;
    c->made = *from;
    (void)template_origin_hold(c->made.origin);
    c->made.created_unix_ms = clock_unix_ms();
    (void)snprintf(c->made.tag, sizeof c->made.tag, "%s", tag);
    c->made.given = from->given || strcmp(tag, TEMPLATE_TAG_DEFAULT) != 0; /* the tag `default` keeps its kind */
    c->holds = true; /* `from` may be removed before this change is its turn */
    state_hold(tp->stacks, c->made.stack);
    template_change_send(tp, c);
}

void template_set(struct templates *tp, const struct template *t, const struct template_settings *s,
                  template_done *done, void *arg)
{
    struct template_change *c = template_change_new(tp, t->id, done, arg);
    c->kind = SET;
    c->tenant = t->tenant;
    c->set = *s;
    template_change_send(tp, c);
}

void template_changes_free(struct templates *tp)
{
    for (struct template_change *c = tp->first, *next; c; c = next) {
        next = c->next;
        if (c == tp->first && tp->writing && !c->del)
            template_tags_free(c->after.tags, c->after.ntags);
        template_change_free(c);
    }
}
