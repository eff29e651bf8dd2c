/* Templates made here and snapshots: rows in memory and in the store. Changes are made one after another, each from what the
 * one before left; memory follows the disk, so nobody sees a row that a power cut could take back.
 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/log.h"
#include "base/map.h"
#include "base/mem.h"
#include "base/num.h"
#include "base/random.h"
#include "front/boxes-int.h"
#include "front/state.h"

enum { COUNTS_EVERY_MS = 60 * 1000, ROWS_MAX = 100000, CHANGES_MAX = 10000 };
#define TAG_DEFAULT "default"

struct row {
    struct tmpl t; /* first */
    char *key;     /* "tenant/name", or NULL */
    bool counted;  /* `spawned` is newer than the store's */
};
struct change {
    struct change *next;
    enum { PUT, REMOVE, TAG, PUBLIC } kind;
    char id[40], tag[TMPL_TAG_MAX], name[TMPL_NAME_MAX], source[SANDBOX_ID_MAX];
    bool whole; /* REMOVE: all of it */
    bool on;
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
    struct change *first, **last;
    size_t nchanges;
    bool writing;
    loop_id timer;
};

void state_fail(struct state_failure *ret, unsigned status, const char *fmt, ...)
{
    va_list ap;
    ret->status = status;
    ret->error_code = NULL;
    va_start(ap, fmt);
    (void)vsnprintf(ret->text, sizeof ret->text, fmt, ap);
    va_end(ap);
}

void tmpl_id_new(char ret[40])
{
    static const char digits[] = "abcdefghijklmnopqrstuvwxyz0123456789";
    unsigned char r[TMPL_ID_CHARS];
    random_bytes(r, sizeof r);
    for (size_t i = 0; i < sizeof r; i++)
        ret[i] = digits[r[i] % 36];
    ret[sizeof r] = 0;
}

void tmpl_build_new(char ret[40])
{
    char hex[33];
    random_hex(hex, 16);
    (void)snprintf(ret, 40, "%.8s-%.4s-4%.3s-8%.3s-%.12s", hex, hex + 8, hex + 13, hex + 17, hex + 20);
}

/* --- finding ------------------------------------------------------------------------------------------------------- */

static const char *owner_of(const struct tmpl *t) { return t->tenant ? t->tenant->id : ""; }

static struct row *by_name(const struct tmpls *ts, const char *tenant, const char *name)
{
    char key[40 + TMPL_NAME_MAX + 2];
    (void)snprintf(key, sizeof key, "%s/%s", tenant, name);
    return map_get(&ts->by_name, key);
}

static bool visible(const struct tmpl *t, const struct tenant *who)
{
    return t->tenant == who || t->public || !t->tenant;
}

/* By its id, then one's own by name, then the node's. A plain name never means what another tenant made, public or not:
 * that is TENANT/NAME. */
static const struct tmpl *lookup(struct front *f, const struct tenant *who, const char *team, const char *name)
{
    const struct tmpls *ts = f->tmpls;
    struct row *r = NULL;
    if (team) {
        r = by_name(ts, team, name);
        return r && visible(&r->t, who) ? &r->t : NULL;
    }
    r = map_get(&ts->by_id, name);
    if (r && visible(&r->t, who))
        return &r->t;
    if (who && (r = by_name(ts, who->id, name)))
        return &r->t;
    r = by_name(ts, "", name);
    return r ? &r->t : NULL;
}

static const struct tmpl_tag *tag_of(const struct tmpl *t, const char *tag)
{
    for (size_t i = 0; i < t->ntags; i++)
        if (strcmp(t->tags[i].tag, tag) == 0)
            return &t->tags[i];
    return NULL;
}

const struct tmpl *tmpl_find(struct front *f, const struct tenant *who, const char *name, const struct tmpl_tag **tag)
{
    char team[40], plain[TMPL_NAME_MAX];
    if (tag)
        *tag = NULL;
    if (!f->tmpls)
        return NULL;
    const char *slash = strchr(name, '/'), *rest = slash ? slash + 1 : name, *colon = strchr(rest, ':');
    size_t n = colon ? (size_t)(colon - rest) : strlen(rest), nteam = slash ? (size_t)(slash - name) : 0;
    if (n == 0 || n >= sizeof plain || nteam >= sizeof team || (slash && nteam == 0))
        return NULL;
    (void)snprintf(team, sizeof team, "%.*s", (int)nteam, name);
    (void)snprintf(plain, sizeof plain, "%.*s", (int)n, rest);
    const struct tmpl *t = lookup(f, who, slash ? team : NULL, plain);
    if (t && tag)
        *tag = tag_of(t, colon ? colon + 1 : TAG_DEFAULT);
    return t;
}

void tmpl_each(struct front *f, const struct tenant *who, tmpl_each_fn *fn, void *arg)
{
    size_t at = 0;
    if (!f->tmpls)
        return;
    for (struct row *r; (r = map_next(&f->tmpls->by_id, &at));)
        if (!who || visible(&r->t, who))
            fn(arg, &r->t);
}

/* --- the table ----------------------------------------------------------------------------------------------------- */

static struct row *add_row(struct tmpls *ts, const struct tmpl *t)
{
    struct row *r = xcalloc(1, sizeof *r);
    r->t = *t;
    (void)map_put(&ts->by_id, r->t.id, r);
    if (r->t.name[0]) {
        r->key = xasprintf("%s/%s", owner_of(&r->t), r->t.name);
        (void)map_put(&ts->by_name, r->key, r);
    }
    return r;
}

static void free_row(struct row *r)
{
    tmpl_config_done(&r->t.config);
    free(r->t.tags);
    free(r->key);
    free(r);
}

static void remove_row(struct tmpls *ts, struct row *r)
{
    (void)map_del(&ts->by_id, r->t.id);
    if (r->key && map_get(&ts->by_name, r->key) == r)
        (void)map_del(&ts->by_name, r->key);
    free_row(r);
}

static void write_row(struct front *f, const struct tmpl *t, store_done *done, void *arg)
{
    _cleanup_free_ char *config = tmpl_config_json(&t->config);
    struct store_template row = {.id = t->id,
                                 .name = t->name,
                                 .tenant = owner_of(t),
                                 .source = t->source,
                                 .config = config,
                                 .kind = (uint32_t)t->kind,
                                 .public = t->public,
                                 .created_unix_ms = t->created_unix_ms,
                                 .updated_unix_ms = t->updated_unix_ms,
                                 .spawned = t->spawned,
                                 .builds = t->builds,
                                 .last_spawned_unix_ms = t->last_spawned_unix_ms,
                                 .bytes = t->bytes};
    for (size_t i = 0; i < t->ntags; i++) {
        strv_add(&row.tags, t->tags[i].tag);
        strv_add(&row.tags, t->tags[i].build);
        strv_add(&row.tags, t->tags[i].stack);
        strv_take(&row.tags, xasprintf("%llu %llu", (unsigned long long)t->tags[i].created_unix_ms,
                                       (unsigned long long)t->tags[i].bytes));
    }
    store_template_put(f->store, &row, done, arg);
    strv_done(&row.tags);
}

/* --- changes ------------------------------------------------------------------------------------------------------- */

static void next_change(struct tmpls *ts);

static void free_change(struct change *c)
{
    tmpl_config_done(&c->config);
    free(c);
}

/* Takes the first change out of the queue and tells. */
static void change_over(struct tmpls *ts, const struct tmpl *t)
{
    struct change *c = ts->first;
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
static void drop_unnamed(struct front *f, const struct tmpl_tag *before, size_t n, const struct tmpl *after)
{
    for (size_t i = 0; i < n; i++) {
        bool still = false;
        for (size_t k = 0; after && k < after->ntags; k++)
            still |= strcmp(before[i].stack, after->tags[k].stack) == 0;
        if (!still)
            state_drop(f, before[i].stack);
    }
}

static void change_failed(struct tmpls *ts, struct change *c)
{
    free(c->after.tags);
    c->after.tags = NULL;
    change_over(ts, NULL);
}

/* Whether its tenant was removed meanwhile; another one may have the id by now. */
static bool orphan(const struct tmpls *ts, const struct change *c)
{
    return c->tenant && tenants_find(ts->front, c->tenant->id) != c->tenant;
}

/* The tenant went while the row was being written: its row, if it came after the tenant's end, goes too. */
static void undo_written(struct tmpls *ts, struct change *c)
{
    state_fail(&c->failure, 404, "the template is gone");
    if (c->del)
        return;
    store_template_del(ts->front->store, c->id, NULL, NULL);
    drop_unnamed(ts->front, c->after.tags, c->after.ntags, NULL);
}

static void change_written(void *arg, const struct err *err)
{
    struct tmpls *ts = arg;
    struct change *c = ts->first;
    struct row *r = map_get(&ts->by_id, c->id);
    if (err)
        state_fail(&c->failure, 503, "the node cannot record the template: %s", err->msg);
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
        remove_row(ts, r);
        r = NULL;
    } else if (r) {
        struct tmpl_config config = c->with_config ? c->config : r->t.config;
        if (c->with_config)
            tmpl_config_done(&r->t.config);
        uint64_t spawned = r->t.spawned, last = r->t.last_spawned_unix_ms; /* may have grown meanwhile */
        r->t = c->after;
        r->t.config = config;
        r->t.spawned = spawned;
        r->t.last_spawned_unix_ms = last;
    } else if (!c->del)
        r = add_row(ts, &c->after);
    if (c->with_config)
        c->config = (struct tmpl_config){0}; /* the row's now */
    drop_unnamed(ts->front, before, nbefore, r ? &r->t : NULL);
    free(before);
    change_over(ts, r ? &r->t : NULL);
    next_change(ts);
}

/* The new tag goes to the front; one of the same name is replaced. */
static bool put_tag(struct change *c)
{
    struct tmpl *t = &c->after;
    struct tmpl_tag *v = xcalloc(t->ntags + 1, sizeof *v);
    size_t n = 1;
    v[0] = c->made;
    for (size_t i = 0; i < t->ntags; i++)
        if (strcmp(t->tags[i].tag, c->made.tag) != 0)
            v[n++] = t->tags[i];
    t->tags = v;
    t->ntags = n;
    if (n > TMPL_TAGS_MAX)
        state_fail(&c->failure, 400, "a template has at most %d tags; remove one first", TMPL_TAGS_MAX);
    return n <= TMPL_TAGS_MAX;
}

static void take_tag(struct change *c)
{
    struct tmpl *t = &c->after;
    struct tmpl_tag *v = xcalloc(t->ntags + 1, sizeof *v);
    size_t n = 0;
    for (size_t i = 0; i < t->ntags; i++)
        if (strcmp(t->tags[i].tag, c->tag) != 0)
            v[n++] = t->tags[i];
    if (n == t->ntags)
        state_fail(&c->failure, 404, "the template has no tag '%s'", c->tag);
    t->tags = v;
    t->ntags = n;
    c->del = n == 0;
}

static void copy_tags(struct tmpl *t)
{
    struct tmpl_tag *v = xcalloc(t->ntags + 1, sizeof *v);
    if (t->ntags)
        memcpy(v, t->tags, t->ntags * sizeof *v);
    t->tags = v;
}

static void build_put(struct tmpls *ts, struct change *c, struct row *r)
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
    t->kind = c->row_kind;
    (void)snprintf(t->source, sizeof t->source, "%s", c->source);
    if (c->with_config)
        t->config = c->config;
    t->bytes = c->bytes;
    t->builds++;
    t->updated_unix_ms = c->made.created_unix_ms;
    (void)put_tag(c);
}

/* What the row will be. False: c->failure says why not. */
static bool prepare(struct tmpls *ts, struct change *c)
{
    if (orphan(ts, c)) {
        state_fail(&c->failure, 404, "the tenant of the template is gone");
        return false;
    }
    if (c->kind == PUT && c->name[0]) { /* another put may have made the row meanwhile */
        struct row *same = by_name(ts, c->tenant ? c->tenant->id : "", c->name);
        if (same)
            memcpy(c->id, same->t.id, sizeof c->id);
    }
    struct row *r = map_get(&ts->by_id, c->id);
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
        (void)put_tag(c);
        break;
    case PUBLIC:
        copy_tags(&c->after);
        c->after.public = c->on;
        break;
    }
    c->after.updated_unix_ms = boxes_unix_ms();
    return c->failure.status == 0;
}

static void next_change(struct tmpls *ts)
{
    while (ts->first && !ts->writing) {
        struct change *c = ts->first;
        ts->writing = true;
        if (!prepare(ts, c))
            change_failed(ts, c);
        else if (c->del) {
            free(c->after.tags);
            c->after.tags = NULL;
            store_template_del(ts->front->store, c->id, change_written, ts);
        } else
            write_row(ts->front, &c->after, change_written, ts);
    }
}

static void begin_changes(void *arg) { next_change(arg); }

static struct change *change_new(struct front *f, const char *id, tmpl_done *done, void *arg)
{
    struct change *c = xcalloc(1, sizeof *c);
    (void)snprintf(c->id, sizeof c->id, "%s", id);
    c->done = done;
    c->arg = arg;
    c->made.created_unix_ms = boxes_unix_ms();
    if (f->tmpls->nchanges >= CHANGES_MAX)
        state_fail(&c->failure, 503, "too many changes of templates wait; try again later");
    return c;
}

/* Nobody is told before the caller has returned. */
static void change_send(struct front *f, struct change *c)
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
    const struct row *same = n->name && *n->name ? by_name(f->tmpls, n->tenant ? n->tenant->id : "", n->name) : NULL;
    if (same)
        (void)snprintf(id, sizeof id, "%s", same->t.id);
    else if (n->id && *n->id)
        (void)snprintf(id, sizeof id, "%s", n->id);
    else
        tmpl_id_new(id);
    struct change *c = change_new(f, id, done, arg);
    c->kind = PUT;
    (void)snprintf(c->name, sizeof c->name, "%s", n->name ? n->name : "");
    (void)snprintf(c->source, sizeof c->source, "%s", n->source ? n->source : "");
    (void)snprintf(c->made.tag, sizeof c->made.tag, "%s", n->tag && *n->tag ? n->tag : TAG_DEFAULT);
    (void)snprintf(c->made.build, sizeof c->made.build, "%s", n->build ? n->build : "");
    (void)snprintf(c->made.stack, sizeof c->made.stack, "%s", n->stack);
    if (!c->made.build[0])
        tmpl_build_new(c->made.build);
    if (!same && tmpl_id_shaped(c->name))
        state_fail(&c->failure, 400, TMPL_ID_SHAPED_TEXT, c->name);
    c->made.bytes = n->bytes;
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
    struct change *c = change_new(f, t->id, done, arg);
    c->kind = REMOVE;
    c->tenant = t->tenant;
    c->whole = !tag;
    (void)snprintf(c->tag, sizeof c->tag, "%s", tag ? tag : "");
    change_send(f, c);
}

void tmpl_tag(struct front *f, const struct tmpl *t, const struct tmpl_tag *from, const char *tag, tmpl_done *done,
              void *arg)
{
    struct change *c = change_new(f, t->id, done, arg);
    c->kind = TAG;
    c->tenant = t->tenant;
    c->made = *from;
    c->made.created_unix_ms = boxes_unix_ms();
    (void)snprintf(c->made.tag, sizeof c->made.tag, "%s", tag);
    c->holds = true; /* the tag it comes from may go before this is its turn */
    state_hold(f, c->made.stack);
    change_send(f, c);
}

void tmpl_set_public(struct front *f, const struct tmpl *t, bool on, tmpl_done *done, void *arg)
{
    struct change *c = change_new(f, t->id, done, arg);
    c->kind = PUBLIC;
    c->tenant = t->tenant;
    c->on = on;
    change_send(f, c);
}

/* --- counting, loading --------------------------------------------------------------------------------------------- */

static void write_counts(void *arg)
{
    struct front *f = arg;
    size_t at = 0;
    for (struct row *r; (r = map_next(&f->tmpls->by_id, &at));)
        if (r->counted && !f->tmpls->first) { /* a change under way writes them, too */
            write_row(f, &r->t, NULL, NULL);
            r->counted = false;
        }
    f->tmpls->timer = loop_timer(f->loop, COUNTS_EVERY_MS, write_counts, f);
}

void tmpl_spawned(struct front *f, const char *id)
{
    struct row *r = f->tmpls ? map_get(&f->tmpls->by_id, id) : NULL;
    if (!r)
        return;
    r->t.spawned++;
    r->t.last_spawned_unix_ms = boxes_unix_ms();
    r->counted = true;
}

/* "CREATED BYTES"; of rows of before, "CREATED". */
static void load_numbers(const char *text, struct tmpl_tag *g)
{
    char created[24];
    size_t n = strcspn(text, " ");
    (void)snprintf(created, sizeof created, "%.*s", (int)(n < sizeof created ? n : 0), text);
    (void)num_u64(created, &g->created_unix_ms);
    if (text[n])
        (void)num_u64(text + n + 1, &g->bytes);
}

static void load_one(void *arg, const struct store_template *row)
{
    struct front *f = arg;
    struct err err;
    struct tmpl t = {.kind = (enum tmpl_kind)row->kind,
                     .tenant = *row->tenant ? tenants_find(f, row->tenant) : NULL,
                     .public = row->public,
                     .created_unix_ms = row->created_unix_ms,
                     .updated_unix_ms = row->updated_unix_ms,
                     .spawned = row->spawned,
                     .builds = row->builds,
                     .last_spawned_unix_ms = row->last_spawned_unix_ms,
                     .bytes = row->bytes};
    if (*row->tenant && !t.tenant) {
        store_template_del(f->store, row->id, NULL, NULL);
        return;
    }
    (void)snprintf(t.id, sizeof t.id, "%s", row->id);
    (void)snprintf(t.name, sizeof t.name, "%s", row->name);
    (void)snprintf(t.source, sizeof t.source, "%s", row->source);
    if (tmpl_config_parse(row->config, &t.config, &err) < 0)
        log_text(LOG_LEVEL_ERROR, "template %s: %s; it starts as one without", t.id, err.msg);
    t.tags = xcalloc(row->tags.n / 4 + 1, sizeof *t.tags);
    for (size_t i = 0; i + 3 < row->tags.n && t.ntags < TMPL_TAGS_MAX; i += 4) {
        struct tmpl_tag *g = &t.tags[t.ntags++];
        (void)snprintf(g->tag, sizeof g->tag, "%s", row->tags.v[i]);
        (void)snprintf(g->build, sizeof g->build, "%s", row->tags.v[i + 1]);
        (void)snprintf(g->stack, sizeof g->stack, "%s", row->tags.v[i + 2]);
        load_numbers(row->tags.v[i + 3], g);
    }
    (void)add_row(f->tmpls, &t);
}

int tmpls_load(struct front *f, struct err *err)
{
    f->tmpls = xcalloc(1, sizeof *f->tmpls);
    f->tmpls->front = f;
    f->tmpls->last = &f->tmpls->first;
    f->tmpls->timer = loop_timer(f->loop, COUNTS_EVERY_MS, write_counts, f);
    return store_templates(f->store, load_one, f, err);
}

void tmpls_tenant_gone(struct front *f, const struct tenant *t)
{
    for (bool again = f->tmpls != NULL; again;) {
        size_t at = 0;
        again = false;
        for (struct row *r; !again && (r = map_next(&f->tmpls->by_id, &at));)
            if (r->t.tenant == t) {
                struct tmpl_tag *tags = r->t.tags;
                size_t n = r->t.ntags;
                r->t.tags = NULL;
                r->t.ntags = 0;
                remove_row(f->tmpls, r); /* its row in the store went with the tenant's */
                drop_unnamed(f, tags, n, NULL);
                free(tags);
                again = true; /* the map has changed */
            }
    }
}

void tmpls_free(struct front *f)
{
    struct tmpls *ts = f->tmpls;
    size_t at = 0;
    if (!ts)
        return;
    loop_timer_del(f->loop, ts->timer);
    for (struct row *r; (r = map_next(&ts->by_id, &at));)
        free_row(r);
    for (struct change *c = ts->first, *next; c; c = next) {
        next = c->next;
        if (c == ts->first && ts->writing && !c->del)
            free(c->after.tags);
        free_change(c);
    }
    map_done(&ts->by_id);
    map_done(&ts->by_name);
    free(ts);
    f->tmpls = NULL;
}
