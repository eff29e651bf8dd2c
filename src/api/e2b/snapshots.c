/* snapshots.c - E2B's routes for snapshots and forks, and the removal of templates: its clients remove snapshots
 * that way. */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/e2b/e2b.h"
#include "api/reply.h"
#include "api/sandbox-json.h"
#include "base/cleanup.h"
#include "base/fields.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/num.h"
#include "http/body.h"
#include "http/url.h"
#include "snapshots/snapshots.h"

enum { FORK_S = 300 };

static void e2b_snapshot_id(const struct template *t, const char *tag, struct buf *out)
{
    if (t->name[0])
        buf_addf(out, "%s/%s:%s", t->tenant ? t->tenant->id : "", t->name, tag);
    else
        buf_addf(out, "%s:%s", t->id, tag);
}

static void e2b_snapshot_add(struct json *j, const struct template *t, const char *tag)
{
    _cleanup_buf_ struct buf id = {0};
    e2b_snapshot_id(t, tag, &id);
    json_str(j, "snapshotID", buf_str(&id));
    json_arr(j, "names");
    if (t->name[0])
        json_str(j, NULL, buf_str(&id));
    json_end_arr(j);
}

/* Snapshots hold files but no memory, which E2B's clients do not expect: the answer says so. */
static void e2b_snapshot_add_cost(struct json *j, const struct state_cost *cost)
{
    json_obj(j, "hutch");
    json_bool(j, "memory", false);
    json_u64(j, "frozenUs", cost->frozen_us);
    json_u64(j, "bytes", cost->bytes);
    json_end_obj(j);
}

/* --- making -------------------------------------------------------------------------------------------------------- */

static void e2b_snapshot_on_made(void *arg, const struct template *t, const struct state_cost *cost,
                                 const struct state_failure *failure)
{
    struct http_req *r = api_wait_over(arg);
    if (!r)
        return;
    if (failure) {
        reply_state_failure(r, failure);
        return;
    }
    _cleanup_buf_ struct buf out = {0};
    struct json j;
    json_start(&j, &out);
    json_obj(&j, NULL);
    e2b_snapshot_add(&j, t, t->tags[0].tag);
    e2b_snapshot_add_cost(&j, cost);
    json_end_obj(&j);
    reply_json(r, 201, &out);
}

/* Reads the name in lower case; "" if there is none. */
static int e2b_snapshot_read_name(json_t *root, char ret[TEMPLATE_NAME_MAX], struct err *err)
{
    const char *name = NULL;
    json_t *tmp = NULL, *o = fields_root(root, &tmp, err);
    int rc = o ? field_str(o, "name", &name, err) : -1;
    ret[0] = 0;
    if (rc > 0 && *name) {
        size_t n = strlen(name), i = 0;
        for (; i < n && n < TEMPLATE_NAME_MAX; i++) {
            ret[i] = (char)tolower((unsigned char)name[i]);
            if (!isalnum((unsigned char)ret[i]) && ret[i] != '-' && ret[i] != '_')
                break;
        }
        if (i < n)
            rc = err_set(err, ERR_USAGE, 0, "field 'name' must be 1 to %d of a-z, 0-9, - and _", TEMPLATE_NAME_MAX - 1);
        else {
            ret[n] = 0;
            if (template_id_shaped(ret))
                rc = err_set(err, ERR_USAGE, 0, "field 'name': " TEMPLATE_ID_SHAPED_TEXT, ret);
        }
    }
    json_decref(tmp);
    return rc < 0 ? -1 : 0;
}

/* Refuses a name that would hide or replace a template. False: it answered with 409. */
static bool e2b_snapshot_name_is_free(struct api_call *c, const char *name)
{
    const struct template *t = c->api->domain->templates.find(c->api->templates, c->who.tenant, name, NULL);
    bool own = t && t->tenant == c->who.tenant;
    if ((own && !template_only_snapshots(t)) ||
        c->api->domain->templates.find_directory(c->api->templates, name, &(struct template_info){0})) {
        reply_error(c->req, 409, "'%s' is the name of a template; give the snapshot another one", name);
        return false;
    }
    return true;
}

static void e2b_snapshot_on_body(struct http_req *r, json_t *root, unsigned status, const char *error)
{
    struct api_call *c = api_call_of(r);
    char name[TEMPLATE_NAME_MAX];
    struct err err;
    if (status) {
        reply_error(r, status, "%s", error);
        return;
    }
    if (e2b_snapshot_read_name(root, name, &err) < 0) {
        reply_error(r, 400, "%s", err.msg);
        return;
    }
    struct sandbox *b = api_sandbox_of(c);
    if (!b || (name[0] && !e2b_snapshot_name_is_free(c, name)))
        return;
    sandbox_snapshot(c->api->snapshots, b, name[0] ? name : NULL, e2b_snapshot_on_made,
                     api_wait_for(r, sizeof(struct api_wait)));
}
void e2b_snapshot(struct api_call *c) { body_json(c->req, 0, e2b_snapshot_on_body); }

/* --- listing ------------------------------------------------------------------------------------------------------- */

struct entry {
    const struct template *t;
    const struct template_tag *tag;
};
struct query {
    struct buf sandbox, name;
    const struct template *row; /* of `name` */
    const char *tag;            /* in it; NULL: any */
    const struct tenant *tenant;
    size_t limit;
    bool paged;
    struct e2b_cursor from;
    struct entry *v;
    size_t n, cap;
};

static void e2b_snapshot_query_done(struct query *q)
{
    buf_done(&q->sandbox);
    buf_done(&q->name);
    free(q->v);
}

static int e2b_snapshot_read_query(struct api_call *c, struct query *q, struct err *err)
{
    _cleanup_buf_ struct buf limit = {0}, token = {0};
    const char *query = c->req->query;
    int n = 100;
    q->tenant = c->who.tenant;
    if (url_query_get(query, "sandboxID", URL_PLUS_SPACE, &q->sandbox, err) < 0 ||
        url_query_get(query, "name", URL_PLUS_SPACE, &q->name, err) < 0 ||
        url_query_get(query, "limit", URL_PLUS_SPACE, &limit, err) < 0 ||
        url_query_get(query, "nextToken", URL_PLUS_SPACE, &token, err) < 0)
        return -1;
    if (limit.n && !num_int(limit.p, 1, 100, &n))
        return err_set(err, ERR_USAGE, 0, "query parameter 'limit' must be from 1 to 100");
    q->limit = (size_t)n;
    q->paged = token.n > 0;
    if (q->paged && !e2b_cursor_read(token.p, &q->from))
        return err_set(err, ERR_USAGE, 0, "query parameter 'nextToken' is not one this node gave out");
    if (q->name.n) {
        const char *slash = strchr(buf_str(&q->name), '/');
        const char *colon = strchr(slash ? slash : buf_str(&q->name), ':');
        q->row = c->api->domain->templates.find(c->api->templates, c->who.tenant, buf_str(&q->name), NULL);
        q->tag = colon ? colon + 1 : NULL;
    }
    return 0;
}

static void e2b_snapshot_collect(void *arg, const struct template *t)
{
    struct query *q = arg;
    if (t->tenant != q->tenant || (q->name.n && t != q->row) || (q->sandbox.n && strcmp(t->source, q->sandbox.p) != 0))
        return;
    for (size_t i = 0; i < t->ntags; i++) {
        if (template_kind_of(t, &t->tags[i]) != TEMPLATE_SNAPSHOT || (q->tag && strcmp(t->tags[i].tag, q->tag) != 0))
            continue;
        MEM_GROW(q->v, q->n, q->cap);
        q->v[q->n++] = (struct entry){t, &t->tags[i]};
    }
}

static int e2b_snapshot_newest_first(const void *a, const void *b)
{
    const struct entry *x = a, *y = b;
    if (x->tag->created_unix_ms != y->tag->created_unix_ms)
        return x->tag->created_unix_ms > y->tag->created_unix_ms ? -1 : 1;
    return -strcmp(x->t->id, y->t->id);
}

static bool e2b_snapshot_is_after_cursor(const struct query *q, const struct entry *e)
{
    if (e->tag->created_unix_ms != q->from.started_ms)
        return e->tag->created_unix_ms < q->from.started_ms;
    return strcmp(e->t->id, q->from.id) < 0;
}

void e2b_snapshots(struct api_call *c)
{
    struct query q = {0};
    struct err err;
    if (e2b_snapshot_read_query(c, &q, &err) < 0) {
        reply_error(c->req, 400, "%s", err.msg);
        e2b_snapshot_query_done(&q);
        return;
    }
    c->api->domain->templates.each(c->api->templates, c->who.tenant, e2b_snapshot_collect, &q);
    if (q.n)
        qsort(q.v, q.n, sizeof *q.v, e2b_snapshot_newest_first);
    size_t i = 0, shown = 0;
    while (q.paged && i < q.n && !e2b_snapshot_is_after_cursor(&q, &q.v[i]))
        i++;
    _cleanup_buf_ struct buf out = {0}, token = {0};
    struct json j;
    json_start(&j, &out);
    json_arr(&j, NULL);
    for (; i < q.n && shown < q.limit; i++, shown++) {
        json_obj(&j, NULL);
        e2b_snapshot_add(&j, q.v[i].t, q.v[i].tag->tag);
        json_end_obj(&j);
    }
    json_end_arr(&j);
    if (i < q.n && shown > 0) {
        struct e2b_cursor last = {.started_ms = q.v[i - 1].tag->created_unix_ms};
        (void)snprintf(last.id, sizeof last.id, "%s", q.v[i - 1].t->id);
        e2b_cursor_write(&last, &token);
        http_set(c->req, "x-next-token", buf_str(&token));
    }
    e2b_snapshot_query_done(&q);
    reply_json(c->req, 200, &out);
}

/* --- removing ------------------------------------------------------------------------------------------------------ */

static void e2b_template_on_removed(void *arg, const struct template *t, const struct state_failure *failure)
{
    struct http_req *r = api_wait_over(arg);
    (void)t;
    if (!r)
        return;
    if (failure)
        reply_state_failure(r, failure);
    else
        reply_empty(r, 204);
}

/* DELETE /templates/{id} removes a template or a snapshot, or with ":tag" one build of it. Its sandboxes keep
 * running. */
void e2b_template_remove(struct api_call *c)
{
    const char *name = c->param[0], *slash = strchr(name, '/'), *colon = strchr(slash ? slash : name, ':');
    const struct template_tag *tag = NULL;
    const struct template *t = c->api->domain->templates.find(c->api->templates, c->who.tenant, name, &tag);
    bool may = t && (t->tenant == c->who.tenant || (!t->tenant && (c->who.scopes & SCOPE_ADMIN)));
    if (!t && c->api->domain->templates.find_directory(c->api->templates, name, &(struct template_info){0})) {
        reply_error(c->req, 403, "template '%.80s' is this node's own", name);
        return;
    }
    if (!t || (colon && !tag)) {
        reply_error(c->req, 404, "template '%.80s' not found", name);
        return;
    }
    if (!may) {
        reply_error(c->req, 403, "template '%.80s' belongs to another tenant", name);
        return;
    }
    bool snapshot = colon ? template_kind_of(t, tag) == TEMPLATE_SNAPSHOT : template_only_snapshots(t);
    if (!snapshot && !(c->who.scopes & (SCOPE_TEMPLATES | SCOPE_ADMIN))) {
        reply_error(c->req, 403, "this API key lacks the scope templates: it may remove snapshots only");
        return;
    }
    c->api->domain->templates.remove(c->api->templates, t, colon ? tag->tag : NULL, e2b_template_on_removed,
                                     api_wait_for(c->req, sizeof(struct api_wait)));
}

/* --- forks --------------------------------------------------------------------------------------------------------- */

struct child {
    char id[SANDBOX_ID_MAX]; /* "": failed */
    struct state_cost cost;
    unsigned status;
    char text[512];
};
struct forking {
    struct api_wait wait;
    unsigned left, count;
    struct child child[];
};

static void e2b_fork_add_child(struct json *j, struct api_call *c, const struct child *k)
{
    struct sandbox *b = k->id[0] ? sandbox_of(c->api->sandboxes, &c->who, k->id) : NULL;
    json_obj(j, NULL);
    if (b) {
        api_add_sandbox_as(j, "sandbox", c, b);
        e2b_snapshot_add_cost(j, &k->cost);
    } else {
        json_obj(j, "error");
        json_u64(j, "code", k->id[0] ? 410 : k->status);
        json_str(j, "message", k->id[0] ? "the sandbox has ended already" : k->text);
        json_end_obj(j);
    }
    json_end_obj(j);
}

static void e2b_fork_answer(struct forking *k)
{
    struct http_req *r = k->wait.r;
    if (!r) {
        free(k);
        return;
    }
    api_on_closed(r, NULL);
    bool any = k->child[0].cost.bytes || k->child[0].cost.frozen_us;
    for (unsigned i = 0; i < k->count; i++)
        any |= k->child[i].id[0] != 0;
    if (!any) {
        /* The copy itself failed, so there are no children. */
        reply_refuse(r, k->child[0].status, NULL, k->child[0].status == 503 ? 1 : 0, k->child[0].text);
        free(k);
        return;
    }
    _cleanup_buf_ struct buf out = {0};
    struct json j;
    json_start(&j, &out);
    json_arr(&j, NULL);
    for (unsigned i = 0; i < k->count; i++)
        e2b_fork_add_child(&j, api_call_of(r), &k->child[i]);
    json_end_arr(&j);
    free(k);
    reply_json(r, 201, &out);
}

static void e2b_fork_on_child_made(void *arg, unsigned index, struct sandbox *b, const struct state_cost *cost,
                                   const struct sandbox_failure *failure)
{
    struct forking *k = arg;
    struct child *one = &k->child[index];
    one->cost = *cost;
    if (b)
        memcpy(one->id, b->id, sizeof one->id);
    else {
        one->status = failure->status;
        (void)snprintf(one->text, sizeof one->text, "%s", failure->text);
    }
    if (--k->left == 0)
        e2b_fork_answer(k);
}

static int e2b_fork_read(struct api_call *c, json_t *root, int64_t *count, uint32_t *seconds, struct err *err)
{
    json_t *tmp = NULL, *o = fields_root(root, &tmp, err);
    int rc = o && field_int(o, "count", 1, FORK_MAX, count, err) >= 0 &&
                     api_read_timeout(o, FORK_S, api_longest_life(c), seconds, err) >= 0
                 ? 0
                 : -1;
    json_decref(tmp);
    return rc;
}

static void e2b_fork_on_body(struct http_req *r, json_t *root, unsigned status, const char *error)
{
    struct api_call *c = api_call_of(r);
    int64_t count = 1;
    uint32_t seconds = 0;
    struct err err;
    if (status) {
        reply_error(r, status, "%s", error);
        return;
    }
    if (e2b_fork_read(c, root, &count, &seconds, &err) < 0) {
        reply_error(r, 400, "%s", err.msg);
        return;
    }
    struct sandbox *b = api_sandbox_of(c);
    if (!b)
        return;
    if (b->state != SANDBOX_RUNNING) {
        reply_error(r, 409, "the sandbox is paused; resume it first");
        return;
    }
    struct forking *k = api_wait_for(r, sizeof *k + (size_t)count * sizeof k->child[0]);
    k->left = k->count = (unsigned)count;
    const struct fork_spec spec = {.count = k->count, .timeout_s = seconds};
    sandbox_fork(c->api->snapshots, b, &spec, e2b_fork_on_child_made, k);
}
void e2b_fork(struct api_call *c) { body_json(c->req, 0, e2b_fork_on_body); }
