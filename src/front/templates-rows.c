/* Templates made here and snapshots: rows in memory and in the store; how they change is in templates-change.c. */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/random.h"
#include "front/templates-int.h"

enum { COUNTS_EVERY_MS = 60 * 1000 };
void state_fail(struct state_failure *ret, unsigned status, const char *fmt, ...)
{
    va_list ap;
    ret->status = status;
    ret->error_code = NULL;
    va_start(ap, fmt);
    (void)vsnprintf(ret->text, sizeof ret->text, fmt, ap);
    va_end(ap);
}

void state_fail_write(struct state_failure *ret, const struct err *err, const char *what)
{
    bool full = err->eno == ENOSPC || err->eno == EDQUOT;
    state_fail(ret, full ? 507 : 503, "%s: %s", what, full ? "the node's disk is full" : err->msg);
    ret->error_code = full ? STATE_DISK_FULL : NULL;
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

const char *tmpl_owner(const struct tmpl *t) { return t->tenant ? t->tenant->id : ""; }

struct tmpl_row *tmpl_by_name(const struct tmpls *ts, const char *tenant, const char *name)
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
    struct tmpl_row *r = NULL;
    if (team) {
        r = tmpl_by_name(ts, team, name);
        return r && visible(&r->t, who) ? &r->t : NULL;
    }
    r = map_get(&ts->by_id, name);
    if (r && visible(&r->t, who))
        return &r->t;
    if (who && (r = tmpl_by_name(ts, who->id, name)))
        return &r->t;
    r = tmpl_by_name(ts, "", name);
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
        *tag = tag_of(t, colon ? colon + 1 : TMPL_TAG_DEFAULT);
    return t;
}

void tmpl_each(struct front *f, const struct tenant *who, tmpl_each_fn *fn, void *arg)
{
    size_t at = 0;
    if (!f->tmpls)
        return;
    for (struct tmpl_row *r; (r = map_next(&f->tmpls->by_id, &at));)
        if (!who || visible(&r->t, who))
            fn(arg, &r->t);
}

bool tmpl_room(struct front *f, const struct tenant *t, const char *name, struct state_failure *ret)
{
    const struct tmpl_row *same = t && *name ? tmpl_by_name(f->tmpls, t->id, name) : NULL;
    size_t at = 0, n = 0;
    if (!t || (same && !tmpl_only_snapshots(&same->t)))
        return true;
    for (const struct tmpl_row *r; (r = map_next(&f->tmpls->by_id, &at));)
        n += r->t.tenant == t && !tmpl_only_snapshots(&r->t);
    if (n < f->config->templates_per_tenant)
        return true;
    state_fail(ret, 429, "the tenant has its %zu templates; the limit is %u (templates.per_tenant): remove one first",
               n, f->config->templates_per_tenant);
    ret->error_code = "quota_exceeded";
    return false;
}

/* --- the table ----------------------------------------------------------------------------------------------------- */

struct tmpl_row *tmpl_row_add(struct tmpls *ts, const struct tmpl *t)
{
    struct tmpl_row *r = xcalloc(1, sizeof *r);
    r->t = *t;
    (void)map_put(&ts->by_id, r->t.id, r);
    if (r->t.name[0]) {
        r->key = xasprintf("%s/%s", tmpl_owner(&r->t), r->t.name);
        (void)map_put(&ts->by_name, r->key, r);
    }
    return r;
}

static void free_row(struct tmpl_row *r)
{
    tmpl_config_done(&r->t.config);
    tmpl_tags_free(r->t.tags, r->t.ntags);
    free(r->key);
    free(r);
}

void tmpl_row_remove(struct tmpls *ts, struct tmpl_row *r)
{
    (void)map_del(&ts->by_id, r->t.id);
    if (r->key && map_get(&ts->by_name, r->key) == r)
        (void)map_del(&ts->by_name, r->key);
    free_row(r);
}

void tmpl_row_write(struct front *f, const struct tmpl *t, store_done *done, void *arg)
{
    _cleanup_free_ char *config = tmpl_config_json(&t->config);
    struct store_template row = {.id = t->id,
                                 .name = t->name,
                                 .tenant = tmpl_owner(t),
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
        strv_take(&row.tags, tmpl_tag_text(&t->tags[i]));
    }
    store_template_put(f->store, &row, done, arg);
    strv_done(&row.tags);
}

/* --- counting, loading --------------------------------------------------------------------------------------------- */

static void write_counts(void *arg)
{
    struct front *f = arg;
    size_t at = 0;
    for (struct tmpl_row *r; (r = map_next(&f->tmpls->by_id, &at));)
        if (r->counted && !f->tmpls->first) { /* a change under way writes them, too */
            tmpl_row_write(f, &r->t, NULL, NULL);
            r->counted = false;
        }
    f->tmpls->timer = loop_timer(f->loop, COUNTS_EVERY_MS, write_counts, f);
}

void tmpl_spawned(struct front *f, const char *id)
{
    struct tmpl_row *r = f->tmpls ? map_get(&f->tmpls->by_id, id) : NULL;
    if (!r)
        return;
    r->t.spawned++;
    r->t.last_spawned_unix_ms = boxes_unix_ms();
    r->counted = true;
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
        tmpl_tag_parse(row->tags.v[i + 3], g);
    }
    tmpl_tags_complete(&t);
    (void)tmpl_row_add(f->tmpls, &t);
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
        for (struct tmpl_row *r; !again && (r = map_next(&f->tmpls->by_id, &at));)
            if (r->t.tenant == t) {
                struct tmpl_tag *tags = r->t.tags;
                size_t n = r->t.ntags;
                r->t.tags = NULL;
                r->t.ntags = 0;
                tmpl_row_remove(f->tmpls, r); /* its row in the store went with the tenant's */
                tmpl_drop_unnamed(f, tags, n, NULL);
                tmpl_tags_free(tags, n);
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
    for (struct tmpl_row *r; (r = map_next(&ts->by_id, &at));)
        free_row(r);
    tmpl_changes_free(ts);
    map_done(&ts->by_id);
    map_done(&ts->by_name);
    free(ts);
    f->tmpls = NULL;
}
