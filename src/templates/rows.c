/* Rows of templates made here and of snapshots, in memory and in the database. change.c changes them. */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/random.h"
#include "templates/templates-int.h"

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

void template_id_new(char ret[40])
{
    static const char digits[] = "abcdefghijklmnopqrstuvwxyz0123456789";
    unsigned char r[TEMPLATE_ID_CHARS];
    random_bytes(r, sizeof r);
    for (size_t i = 0; i < sizeof r; i++)
        ret[i] = digits[r[i] % 36];
    ret[sizeof r] = 0;
}

void template_build_new(char ret[40])
{
    char hex[33];
    random_hex(hex, 16);
    (void)snprintf(ret, 40, "%.8s-%.4s-4%.3s-8%.3s-%.12s", hex, hex + 8, hex + 13, hex + 17, hex + 20);
}

/* --- finding ------------------------------------------------------------------------------------------------------ */

const char *template_owner(const struct template *t) { return t->tenant ? t->tenant->id : ""; }

struct template_db_row *template_by_name(const struct templates *tp, const char *tenant, const char *name)
{
    char key[40 + TEMPLATE_NAME_MAX + 2];
    (void)snprintf(key, sizeof key, "%s/%s", tenant, name);
    return map_get(&tp->by_name, key);
}

static bool template_is_visible(const struct template *t, const struct tenant *who)
{
    return t->tenant == who || t->public || !t->tenant;
}

/* Finds by id, then the tenant's own by name, then the node's. A plain name never means another tenant's template,
 * even a public one: that is TENANT/NAME. */
static const struct template *template_lookup(struct templates *tp, const struct tenant *who, const char *team,
                                              const char *name)
{
    struct template_db_row *r = NULL;
    if (team) {
        r = template_by_name(tp, team, name);
        return r && template_is_visible(&r->t, who) ? &r->t : NULL;
    }
    r = map_get(&tp->by_id, name);
    if (r && template_is_visible(&r->t, who))
        return &r->t;
    if (who && (r = template_by_name(tp, who->id, name)))
        return &r->t;
    r = template_by_name(tp, "", name);
    return r ? &r->t : NULL;
}

static const struct template_tag *template_find_tag(const struct template *t, const char *tag)
{
    for (size_t i = 0; i < t->ntags; i++)
        if (strcmp(t->tags[i].tag, tag) == 0)
            return &t->tags[i];
    return NULL;
}

const struct template *template_find(struct templates *tp, const struct tenant *who, const char *name,
                                     const struct template_tag **tag)
{
    char team[40], plain[TEMPLATE_NAME_MAX];
    if (tag)
        *tag = NULL;
    const char *slash = strchr(name, '/'), *rest = slash ? slash + 1 : name, *colon = strchr(rest, ':');
    size_t n = colon ? (size_t)(colon - rest) : strlen(rest), nteam = slash ? (size_t)(slash - name) : 0;
    if (n == 0 || n >= sizeof plain || nteam >= sizeof team || (slash && nteam == 0))
        return NULL;
    (void)snprintf(team, sizeof team, "%.*s", (int)nteam, name);
    (void)snprintf(plain, sizeof plain, "%.*s", (int)n, rest);
    const struct template *t = template_lookup(tp, who, slash ? team : NULL, plain);
    /* E2B's packages ask for the second name; people say the first. */
    if (!t && !slash && strcmp(plain, "code-interpreter") == 0)
        t = template_lookup(tp, who, NULL, "code-interpreter-v1");
    if (t && tag)
        *tag = template_find_tag(t, colon ? colon + 1 : TEMPLATE_TAG_DEFAULT);
    return t;
}

void template_each(struct templates *tp, const struct tenant *who, template_each_fn *fn, void *arg)
{
    size_t at = 0;
    for (struct template_db_row *r; (r = map_next(&tp->by_id, &at));)
        if (!who || template_is_visible(&r->t, who))
            fn(arg, &r->t);
}

bool template_room(struct templates *tp, const struct tenant *t, const char *name, struct state_failure *ret)
{
    const struct template_db_row *same = t && *name ? template_by_name(tp, t->id, name) : NULL;
    size_t at = 0, n = 0;
    if (!t || (same && !template_only_snapshots(&same->t)))
        return true;
    for (const struct template_db_row *r; (r = map_next(&tp->by_id, &at));)
        n += r->t.tenant == t && !template_only_snapshots(&r->t);
    if (n < tp->config->templates_per_tenant)
        return true;
    state_fail(ret, 429, "the tenant has %zu templates; the limit is %u (templates.per_tenant): remove one first", n,
               tp->config->templates_per_tenant);
    ret->error_code = "quota_exceeded";
    return false;
}

/* --- the table ---------------------------------------------------------------------------------------------------- */

struct template_db_row *template_row_add(struct templates *tp, const struct template *t)
{
    struct template_db_row *r = xcalloc(1, sizeof *r);
    r->t = *t;
    (void)map_put(&tp->by_id, r->t.id, r);
    if (r->t.name[0]) {
        r->key = xasprintf("%s/%s", template_owner(&r->t), r->t.name);
        (void)map_put(&tp->by_name, r->key, r);
    }
    return r;
}

static void template_row_free(struct template_db_row *r)
{
    template_config_done(&r->t.config);
    template_tags_free(r->t.tags, r->t.ntags);
    free(r->key);
    free(r);
}

void template_row_remove(struct templates *tp, struct template_db_row *r)
{
    (void)map_del(&tp->by_id, r->t.id);
    if (r->key && map_get(&tp->by_name, r->key) == r)
        (void)map_del(&tp->by_name, r->key);
    template_row_free(r);
}

void template_row_write(struct templates *tp, const struct template *t, db_done *done, void *arg)
{
    _cleanup_free_ char *config = template_config_json(&t->config);
    struct db_template row = {.id = t->id,
                              .name = t->name,
                              .tenant = template_owner(t),
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
        strv_take(&row.tags, template_tag_text(&t->tags[i]));
    }
    db_template_put(tp->db, &row, done, arg);
    strv_done(&row.tags);
}

/* --- counting, loading -------------------------------------------------------------------------------------------- */

static void template_rows_write_counts(void *arg)
{
    struct templates *tp = arg;
    size_t at = 0;
    for (struct template_db_row *r; (r = map_next(&tp->by_id, &at));)
        if (r->counted && !tp->first) { /* pending changes write the counts too */
            template_row_write(tp, &r->t, NULL, NULL);
            r->counted = false;
        }
    tp->timer = loop_timer(tp->loop, COUNTS_EVERY_MS, template_rows_write_counts, tp);
}

void template_row_spawned(struct templates *tp, const char *id)
{
    struct template_db_row *r = map_get(&tp->by_id, id);
    if (!r)
        return;
    r->t.spawned++;
    r->t.last_spawned_unix_ms = clock_unix_ms();
    r->counted = true;
}

static void template_load(void *arg, const struct db_template *row)
{
    struct templates *tp = arg;
    struct err err;
    struct template t = {.kind = (enum template_kind)row->kind,
                         .tenant = *row->tenant ? tenants_find(tp->tenants, row->tenant) : NULL,
                         .public = row->public,
                         .created_unix_ms = row->created_unix_ms,
                         .updated_unix_ms = row->updated_unix_ms,
                         .spawned = row->spawned,
                         .builds = row->builds,
                         .last_spawned_unix_ms = row->last_spawned_unix_ms,
                         .bytes = row->bytes};
    if (*row->tenant && !t.tenant) {
        db_template_del(tp->db, row->id, NULL, NULL);
        return;
    }
    (void)snprintf(t.id, sizeof t.id, "%s", row->id);
    (void)snprintf(t.name, sizeof t.name, "%s", row->name);
    (void)snprintf(t.source, sizeof t.source, "%s", row->source);
    if (template_config_parse(row->config, &t.config, &err) < 0)
        log_text(LOG_LEVEL_ERROR, "template %s: %s; it starts as one without", t.id, err.msg);
    t.tags = xcalloc(row->tags.n / 4 + 1, sizeof *t.tags);
    for (size_t i = 0; i + 3 < row->tags.n && t.ntags < TEMPLATE_TAGS_MAX; i += 4) {
        struct template_tag *g = &t.tags[t.ntags++];
        (void)snprintf(g->tag, sizeof g->tag, "%s", row->tags.v[i]);
        (void)snprintf(g->build, sizeof g->build, "%s", row->tags.v[i + 1]);
        (void)snprintf(g->stack, sizeof g->stack, "%s", row->tags.v[i + 2]);
        template_tag_parse(row->tags.v[i + 3], g);
    }
    template_tags_complete(&t);
    (void)template_row_add(tp, &t);
}

static void template_on_tenant_gone(void *arg, const struct tenant *t)
{
    struct templates *tp = arg;
    for (bool again = true; again;) {
        size_t at = 0;
        again = false;
        for (struct template_db_row *r; !again && (r = map_next(&tp->by_id, &at));)
            if (r->t.tenant == t) {
                struct template_tag *tags = r->t.tags;
                size_t n = r->t.ntags;
                r->t.tags = NULL;
                r->t.ntags = 0;
                template_row_remove(tp, r); /* its row in the database went with the tenant's */
                template_drop_unnamed(tp, tags, n, NULL);
                template_tags_free(tags, n);
                again = true; /* the map has changed */
            }
    }
}

/* Every tag names a stack; those of snapshots count as kept. */
static void template_each_use(void *ctx, stack_use_fn *fn, void *arg)
{
    struct templates *tp = ctx;
    size_t at = 0;
    for (const struct template_db_row *r; (r = map_next(&tp->by_id, &at));)
        for (size_t i = 0; i < r->t.ntags; i++) {
            const struct template_tag *g = &r->t.tags[i];
            fn(arg, &(struct stack_use){.stack = g->stack,
                                        .bytes = g->bytes,
                                        .tenant = r->t.tenant,
                                        .public = r->t.public,
                                        .kept = template_kind_of(&r->t, g) == TEMPLATE_SNAPSHOT,
                                        .created_unix_ms = r->t.created_unix_ms,
                                        .id = r->t.id});
        }
}

static const struct stack_owner template_stacks = {.each = template_each_use};

struct templates *templates_new(const struct templates_deps *d)
{
    struct templates *tp = xcalloc(1, sizeof *tp);
    tp->loop = d->loop;
    tp->config = d->config;
    tp->db = d->db;
    tp->stacks = d->stacks;
    tp->tenants = d->tenants;
    tp->dir = d->dir;
    tp->opened_unix = clock_unix_ms() / 1000;
    tp->last = &tp->first;
    stacks_add_owner(tp->stacks, &template_stacks, tp);
    tenants_on_gone(tp->tenants, template_on_tenant_gone, tp);
    return tp;
}

int templates_load(struct templates *tp, struct err *err)
{
    tp->timer = loop_timer(tp->loop, COUNTS_EVERY_MS, template_rows_write_counts, tp);
    return db_templates(tp->db, template_load, tp, err);
}

void templates_free(struct templates *tp)
{
    size_t at = 0;
    if (!tp)
        return;
    loop_timer_del(tp->loop, tp->timer);
    for (struct template_db_row *r; (r = map_next(&tp->by_id, &at));)
        template_row_free(r);
    template_changes_free(tp);
    map_done(&tp->by_id);
    map_done(&tp->by_name);
    free(tp);
}
