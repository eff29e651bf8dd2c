/* copies.c - forks of a sandbox and snapshots of its files. A snapshot is a template from then on. */
#include <string.h>

#include "api/create.h"
#include "api/daytona/daytona.h"
#include "api/reply.h"
#include "base/cleanup.h"
#include "base/fields.h"
#include "config/config.h"
#include "snapshots/snapshots.h"

/* --- forks ---------------------------------------------------------------------------------------------------------- */

static void daytona_copies_on_forked(void *arg, unsigned index, struct sandbox *b, const struct state_cost *cost,
                                     const struct sandbox_failure *failure)
{
    struct http_req *r = api_wait_over(arg);
    (void)index, (void)cost;
    if (r && b)
        daytona_answer_sandbox(r, b);
    else if (r)
        daytona_create_refuse(r, failure);
}

static void daytona_fork_on_body(struct api_call *c, json_t *body)
{
    const char *name = NULL;
    struct err err;
    uint32_t longest = api_longest_life(c);
    struct sandbox *b = daytona_same_sandbox(c);
    if (!b)
        return;
    int have = field_str(body, "name", &name, &err);
    if (have < 0 || (have > 0 && daytona_check_name(name, &err) < 0)) {
        daytona_error(c->req, 400, NULL, "%s", err.msg);
        return;
    }
    const struct fork_spec spec = {.count = 1,
                                   .timeout_s =
                                       longest && longest < CONFIG_UNTIL_KILLED_S ? longest : CONFIG_UNTIL_KILLED_S,
                                   .name = name ? name : ""};
    sandbox_fork(c->api->snapshots, b, &spec, daytona_copies_on_forked, api_wait_for(c->req, sizeof(struct api_wait)));
}
void daytona_fork(struct api_call *c)
{
    if (daytona_sandbox(c))
        daytona_body(c, daytona_fork_on_body);
}

struct family {
    const struct api_call *call;
    const char *parent;
    struct json j;
};

static void daytona_copies_add_fork(void *arg, struct sandbox *b)
{
    struct family *f = arg;
    if (b->tenant == f->call->who.tenant && !b->desc.hidden && sandbox_is_there(b) &&
        strcmp(b->desc.parent, f->parent) == 0)
        daytona_add_sandbox(&f->j, f->call, b, NULL);
}

void daytona_forks(struct api_call *c)
{
    _cleanup_buf_ struct buf out = {0};
    const struct sandbox *b = daytona_sandbox(c);
    if (!b)
        return;
    struct family f = {.call = c, .parent = b->id};
    json_start(&f.j, &out);
    json_arr(&f.j, NULL);
    c->api->domain->sandboxes.each(c->api->sandboxes, daytona_copies_add_fork, &f);
    json_end_arr(&f.j);
    reply_json(c->req, 200, &out);
}

/* The sandbox it was forked from, if that still is there. */
static struct sandbox *daytona_copies_parent_of(struct api_call *c, const struct sandbox *b)
{
    return b->desc.parent[0] ? sandbox_of(c->api->sandboxes, &c->who, b->desc.parent) : NULL;
}

void daytona_parent(struct api_call *c)
{
    const struct sandbox *b = daytona_sandbox(c);
    if (!b)
        return;
    struct sandbox *parent = daytona_copies_parent_of(c, b);
    if (parent)
        daytona_answer_sandbox(c->req, parent);
    else if (b->desc.parent[0])
        daytona_error(c->req, 404, NULL, "the sandbox '%s' that it was forked from has ended", b->desc.parent);
    else
        daytona_error(c->req, 404, NULL, "the sandbox is not a fork");
}

/* As far as they are there. A fork is younger than its parent, so the chain ends. */
void daytona_ancestors(struct api_call *c)
{
    _cleanup_buf_ struct buf out = {0};
    struct json j;
    const struct sandbox *b = daytona_sandbox(c);
    if (!b)
        return;
    json_start(&j, &out);
    json_arr(&j, NULL);
    while ((b = daytona_copies_parent_of(c, b)))
        daytona_add_sandbox(&j, c, b, NULL);
    json_end_arr(&j);
    reply_json(c->req, 200, &out);
}

/* --- snapshots ------------------------------------------------------------------------------------------------------ */

static void daytona_copies_on_captured(void *arg, const struct template *t, const struct state_cost *cost,
                                       const struct state_failure *failure)
{
    (void)t, (void)cost;
    daytona_on_changed(arg, failure);
}

/* False: it answered. */
static bool daytona_snapshot_name_is_good(struct api_call *c, const char *name)
{
    size_t n = name ? strlen(name) : 0;
    const struct template *t = NULL;
    if (n == 0 || n >= TEMPLATE_NAME_MAX || strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789_-") != n ||
        template_id_shaped(name)) {
        daytona_error(c->req, 400, NULL,
                      "field 'name' is required: 1 to %d of a-z, 0-9, - and _, and not the form of an id",
                      TEMPLATE_NAME_MAX - 1);
        return false;
    }
    t = c->api->domain->templates.find(c->api->templates, c->who.tenant, name, NULL);
    if ((!t || t->tenant != c->who.tenant) &&
        !c->api->domain->templates.find_directory(c->api->templates, name, &(struct template_info){0}))
        return true;
    daytona_error(c->req, 409, NULL,
                  "a snapshot or template has the name '%s' already; remove it, or choose another name", name);
    return false;
}

static void daytona_snapshot_on_body(struct api_call *c, json_t *body)
{
    bool memory = false;
    struct err err;
    struct sandbox *b = daytona_same_sandbox(c);
    const char *name = daytona_text(body, "name");
    if (!b)
        return;
    if (field_bool(body, "includeMemory", &memory, &err) < 0)
        daytona_error(c->req, 400, NULL, "%s", err.msg);
    else if (memory)
        daytona_error(c->req, 501, NULL, "field 'includeMemory': snapshots of this node keep files, no memory");
    else if (daytona_snapshot_name_is_good(c, name))
        sandbox_snapshot(c->api->snapshots, b, name, daytona_copies_on_captured, daytona_change_wait(c, b));
}
void daytona_snapshot_make(struct api_call *c)
{
    if (daytona_sandbox(c))
        daytona_body(c, daytona_snapshot_on_body);
}

static void daytona_snapshot_on_removed(void *arg, const struct template *t, const struct state_failure *failure)
{
    struct http_req *r = api_wait_over(arg);
    (void)t;
    if (r && failure)
        daytona_state_error(r, failure);
    else if (r)
        reply_empty(r, 200);
}

/* Sandboxes that were made from it run on. */
void daytona_snapshot_remove(struct api_call *c)
{
    const char *name = c->param[0];
    const struct template *t = c->api->domain->templates.find(c->api->templates, c->who.tenant, name, NULL);
    if (!t && c->api->domain->templates.find_directory(c->api->templates, name, &(struct template_info){0}))
        daytona_error(c->req, 403, NULL, "snapshot '%.80s' is this node's own", name);
    else if (!t)
        daytona_error(c->req, 404, NULL, "snapshot '%.80s' not found", name);
    else if (t->tenant != c->who.tenant)
        daytona_error(c->req, 403, NULL, "snapshot '%.80s' belongs to another tenant", name);
    else if (!template_only_snapshots(t) && !(c->who.scopes & (SCOPE_TEMPLATES | SCOPE_ADMIN)))
        daytona_error(c->req, 403, NULL,
                      "this API key lacks the scope templates: it may remove snapshots of sandboxes only");
    else
        c->api->domain->templates.remove(c->api->templates, t, NULL, daytona_snapshot_on_removed,
                                         api_wait_for(c->req, sizeof(struct api_wait)));
}
