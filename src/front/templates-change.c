/* Changes of templates and snapshots: made one after another, each from what the one before left; memory follows the disk, so
 * nobody sees a row that a power cut could take back.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "front/templates-int.h"

enum { ROWS_MAX = 100000, CHANGES_MAX = 10000 };

static void next_change(struct tmpls *ts);

static void free_change(struct tmpl_change *c)
{
    tmpl_config_done(&c->config);
    tmpl_origin_drop(c->made.origin);
    free(c);
}

/* Takes the first change out of the queue and tells. */
static void change_over(struct tmpls *ts, const struct tmpl *t)
{
    struct tmpl_change *c = ts->first;
    ts->first = c->next;
    if (!ts->first)
        ts->last = &ts->first;
    ts->nchanges--;
    ts->writing = false;
    if (c->holds) {
        state_release(ts->front, c->made.stack);
        if (c->failure.status)
            state_drop(ts->front, c->made.stack); /* its row may have gone meanwhile */
    }
    if (c->done)
        c->done(c->arg, c->failure.status ? NULL : t, c->failure.status ? &c->failure : NULL);
    free_change(c);
}

/* Stacks that `before` names and `after` does not. */
void tmpl_drop_unnamed(struct front *f, const struct tmpl_tag *before, size_t n, const struct tmpl *after)
{
    for (size_t i = 0; i < n; i++) {
        bool still = false;
        for (size_t k = 0; after && k < after->ntags; k++)
            still |= strcmp(before[i].stack, after->tags[k].stack) == 0;
        if (!still)
            state_drop(f, before[i].stack);
    }
}

static void change_failed(struct tmpls *ts, struct tmpl_change *c)
{
    tmpl_tags_free(c->after.tags, c->after.ntags);
    c->after.tags = NULL;
    change_over(ts, NULL);
}

/* Whether its tenant was removed meanwhile; another one may have the id by now. */
static bool orphan(const struct tmpls *ts, const struct tmpl_change *c)
{
    return c->tenant && tenants_find(ts->front, c->tenant->id) != c->tenant;
}

/* The tenant went while the row was being written: its row, if it came after the tenant's end, goes too. */
static void undo_written(struct tmpls *ts, struct tmpl_change *c)
{
    state_fail(&c->failure, 404, "the template is gone");
    if (c->del)
        return;
    store_template_del(ts->front->store, c->id, NULL, NULL);
    tmpl_drop_unnamed(ts->front, c->after.tags, c->after.ntags, NULL);
}

static void change_written(void *arg, const struct err *err)
{
    struct tmpls *ts = arg;
    struct tmpl_change *c = ts->first;
    struct tmpl_row *r = map_get(&ts->by_id, c->id);
    if (err)
        state_fail_write(&c->failure, err, "the node cannot record the template");
    else if (orphan(ts, c) || (!r && !c->is_new))
        undo_written(ts, c);
    if (c->failure.status) {
        change_failed(ts, c);
        next_change(ts);
        return;
    }
    struct tmpl_tag *before = r ? r->t.tags : NULL;
    size_t nbefore = r ? r->t.ntags : 0;
    if (c->del && r) {
        r->t.tags = NULL;
        r->t.ntags = 0;
        tmpl_row_remove(ts, r);
        r = NULL;
    } else if (r) {
        struct tmpl_config config = c->with_config ? c->config : r->t.config;
        if (c->with_config)
            tmpl_config_done(&r->t.config);
        config.history = c->after.config.history;
        uint64_t spawned = r->t.spawned, last = r->t.last_spawned_unix_ms; /* may have grown meanwhile */
        r->t = c->after;
        r->t.config = config;
        r->t.spawned = spawned;
        r->t.last_spawned_unix_ms = last;
    } else if (!c->del)
        r = tmpl_row_add(ts, &c->after);
    if (c->with_config)
        c->config = (struct tmpl_config){0}; /* the row's now */
    tmpl_drop_unnamed(ts->front, before, nbefore, r ? &r->t : NULL);
    tmpl_tags_free(before, nbefore);
    change_over(ts, r ? &r->t : NULL);
    next_change(ts);
}

static size_t configs_of(const struct tmpl *t)
{
    size_t bytes = 0;
    for (size_t i = 0; i < t->ntags; i++)
        bytes += t->tags[i].origin ? t->tags[i].origin->bytes : 0;
    return bytes;
}

/* They are held in memory, and nothing else counts them. */
static bool configs_fit(const struct tmpls *ts, const struct tmpl_change *c)
{
    size_t at = 0, bytes = configs_of(&c->after);
    for (struct tmpl_row *r; c->tenant && (r = map_next(&ts->by_id, &at));)
        if (r->t.tenant == c->tenant && strcmp(r->t.id, c->after.id) != 0)
            bytes += configs_of(&r->t);
    return !c->tenant || bytes <= TMPL_CONFIGS_TENANT_MAX;
}

/* The new tag goes to the front; one of the same name is replaced. */
static bool put_tag(const struct tmpls *ts, struct tmpl_change *c)
{
    struct tmpl *t = &c->after;
    size_t n = 0;
    struct tmpl_tag *v = tmpl_tags_without(t->tags, t->ntags, c->made.tag, &n);
    memmove(v + 1, v, n * sizeof *v);
    v[0] = c->made;
    (void)tmpl_origin_hold(v[0].origin);
    t->tags = v;
    t->ntags = n + 1;
    if (t->ntags > TMPL_TAGS_MAX)
        state_fail(&c->failure, 400, "a template has at most %d tags; remove one first", TMPL_TAGS_MAX);
    else if (configs_of(t) > TMPL_CONFIGS_MAX)
        state_fail(&c->failure, 400,
                   "the variables and commands of all tags of a template have at most %d bytes together; remove a tag",
                   TMPL_CONFIGS_MAX);
    else if (!configs_fit(ts, c))
        state_fail(&c->failure, 429,
                   "the variables and commands of all templates and snapshots of a tenant have at most %d bytes "
                   "together; remove some",
                   TMPL_CONFIGS_TENANT_MAX);
    return c->failure.status == 0;
}

static void take_tag(struct tmpl_change *c)
{
    struct tmpl *t = &c->after;
    size_t n = 0;
    struct tmpl_tag *v = tmpl_tags_without(t->tags, t->ntags, c->tag, &n);
    if (n == t->ntags)
        state_fail(&c->failure, 404, "the template has no tag '%s'", c->tag);
    t->tags = v;
    t->ntags = n;
    c->del = n == 0;
}

static void copy_tags(struct tmpl *t) { t->tags = tmpl_tags_without(t->tags, t->ntags, NULL, &t->ntags); }

static void build_put(struct tmpls *ts, struct tmpl_change *c, struct tmpl_row *r)
{
    struct tmpl *t = &c->after;
    if (!r) {
        (void)snprintf(t->id, sizeof t->id, "%s", c->id);
        (void)snprintf(t->name, sizeof t->name, "%s", c->name);
        t->tenant = c->tenant;
        t->public = !c->tenant;
        t->created_unix_ms = c->made.created_unix_ms;
        if (ts->by_id.n >= ROWS_MAX)
            state_fail(&c->failure, 503, "this node keeps its %d templates and snapshots", ROWS_MAX);
    }
    if (r && c->row_kind == TMPL_SNAPSHOT && !tmpl_only_snapshots(t)) /* it came after the snapshot had begun */
        state_fail(&c->failure, 409, "'%s' is the name of a template; give the snapshot another one", c->name);
    if (c->row_kind != TMPL_SNAPSHOT)
        (void)tmpl_room(ts->front, c->tenant, c->name, &c->failure);
    else if (!r && c->tenant) /* others may have come since it had begun */
        (void)state_room_count(ts->front, c->tenant, 1, &c->failure);
    t->kind = c->row_kind;
    if (c->row_kind == TMPL_SNAPSHOT)
        (void)snprintf(t->source, sizeof t->source, "%s", c->source);
    if (c->with_config) {
        if (r)
            c->config.history = r->t.config.history;
        t->config = c->config;
    }
    t->bytes = c->bytes;
    t->builds++;
    t->updated_unix_ms = c->made.created_unix_ms;
    (void)put_tag(ts, c);
}

/* What the row will be. False: c->failure says why not. */
static bool prepare(struct tmpls *ts, struct tmpl_change *c)
{
    if (orphan(ts, c)) {
        state_fail(&c->failure, 404, "the tenant of the template is gone");
        return false;
    }
    if (c->kind == PUT && c->name[0]) { /* another put may have made the row meanwhile */
        struct tmpl_row *same = tmpl_by_name(ts, c->tenant ? c->tenant->id : "", c->name);
        if (same)
            memcpy(c->id, same->t.id, sizeof c->id);
    }
    struct tmpl_row *r = map_get(&ts->by_id, c->id);
    if (!r && c->kind != PUT) {
        state_fail(&c->failure, 404, "the template is gone");
        return false;
    }
    c->after = r ? r->t : (struct tmpl){0};
    c->is_new = !r;
    switch (c->kind) {
    case PUT:
        build_put(ts, c, r);
        break;
    case REMOVE:
        if (c->whole) {
            c->del = true;
            copy_tags(&c->after);
        } else
            take_tag(c);
        break;
    case TAG:
        (void)put_tag(ts, c);
        break;
    case SET:
        copy_tags(&c->after);
        if (c->set.public)
            c->after.public = c->set.public == TMPL_ON;
        if (c->set.history)
            c->after.config.history = c->set.history == TMPL_ON;
        break;
    }
    c->after.updated_unix_ms = boxes_unix_ms();
    return c->failure.status == 0;
}

static void next_change(struct tmpls *ts)
{
    while (ts->first && !ts->writing) {
        struct tmpl_change *c = ts->first;
        ts->writing = true;
        if (!prepare(ts, c))
            change_failed(ts, c);
        else if (c->del) {
            tmpl_tags_free(c->after.tags, c->after.ntags);
            c->after.tags = NULL;
            store_template_del(ts->front->store, c->id, change_written, ts);
        } else
            tmpl_row_write(ts->front, &c->after, change_written, ts);
    }
}

static void begin_changes(void *arg) { next_change(arg); }

static struct tmpl_change *change_new(struct front *f, const char *id, tmpl_done *done, void *arg)
{
    struct tmpl_change *c = xcalloc(1, sizeof *c);
    (void)snprintf(c->id, sizeof c->id, "%s", id);
    c->done = done;
    c->arg = arg;
    c->made.created_unix_ms = boxes_unix_ms();
    if (f->tmpls->nchanges >= CHANGES_MAX)
        state_fail(&c->failure, 503, "too many changes of templates wait; try again later");
    return c;
}

/* Nobody is told before the caller has returned. */
static void change_send(struct front *f, struct tmpl_change *c)
{
    struct tmpls *ts = f->tmpls;
    *ts->last = c;
    ts->last = &c->next;
    ts->nchanges++;
    loop_defer(f->loop, begin_changes, ts);
}

void tmpl_put(struct front *f, const struct tmpl_new *n, tmpl_done *done, void *arg)
{
    char id[40];
    const struct tmpl_row *same =
        n->name && *n->name ? tmpl_by_name(f->tmpls, n->tenant ? n->tenant->id : "", n->name) : NULL;
    if (same)
        (void)snprintf(id, sizeof id, "%s", same->t.id);
    else if (n->id && *n->id)
        (void)snprintf(id, sizeof id, "%s", n->id);
    else
        tmpl_id_new(id);
    struct tmpl_change *c = change_new(f, id, done, arg);
    c->kind = PUT;
    (void)snprintf(c->name, sizeof c->name, "%s", n->name ? n->name : "");
    (void)snprintf(c->source, sizeof c->source, "%s", n->source ? n->source : "");
    (void)snprintf(c->made.tag, sizeof c->made.tag, "%s", n->tag && *n->tag ? n->tag : TMPL_TAG_DEFAULT);
    (void)snprintf(c->made.build, sizeof c->made.build, "%s", n->build ? n->build : "");
    (void)snprintf(c->made.stack, sizeof c->made.stack, "%s", n->stack);
    if (!c->made.build[0])
        tmpl_build_new(c->made.build);
    if (!same && tmpl_id_shaped(c->name))
        state_fail(&c->failure, 400, TMPL_ID_SHAPED_TEXT, c->name);
    c->made.bytes = n->bytes;
    c->made.origin = tmpl_origin_new(n);
    c->made.given = n->given;
    c->tenant = n->tenant;
    c->row_kind = n->kind;
    c->bytes = n->bytes;
    if (n->config) {
        tmpl_config_copy(&c->config, n->config);
        c->with_config = true;
    }
    change_send(f, c);
}

void tmpl_remove(struct front *f, const struct tmpl *t, const char *tag, tmpl_done *done, void *arg)
{
    struct tmpl_change *c = change_new(f, t->id, done, arg);
    c->kind = REMOVE;
    c->tenant = t->tenant;
    c->whole = !tag;
    (void)snprintf(c->tag, sizeof c->tag, "%s", tag ? tag : "");
    change_send(f, c);
}

void tmpl_tag(struct front *f, const struct tmpl *t, const struct tmpl_tag *from, const char *tag, tmpl_done *done,
              void *arg)
{
    struct tmpl_change *c = change_new(f, t->id, done, arg);
    c->kind = TAG;
    c->tenant = t->tenant;
    c->made = *from;
    (void)tmpl_origin_hold(c->made.origin);
    c->made.created_unix_ms = boxes_unix_ms();
    (void)snprintf(c->made.tag, sizeof c->made.tag, "%s", tag);
    c->made.given = from->given || strcmp(tag, TMPL_TAG_DEFAULT) != 0; /* what a name alone means stays what it is */
    c->holds = true; /* the tag it comes from may go before this is its turn */
    state_hold(f, c->made.stack);
    change_send(f, c);
}

void tmpl_set(struct front *f, const struct tmpl *t, const struct tmpl_settings *s, tmpl_done *done, void *arg)
{
    struct tmpl_change *c = change_new(f, t->id, done, arg);
    c->kind = SET;
    c->tenant = t->tenant;
    c->set = *s;
    change_send(f, c);
}

void tmpl_changes_free(struct tmpls *ts)
{
    for (struct tmpl_change *c = ts->first, *next; c; c = next) {
        next = c->next;
        if (c == ts->first && ts->writing && !c->del)
            tmpl_tags_free(c->after.tags, c->after.ntags);
        free_change(c);
    }
}
