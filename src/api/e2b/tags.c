/* tags.c - adds and removes tags of templates and makes templates public. */
#include <stdlib.h>
#include <string.h>

#include "api/e2b/e2b.h"
#include "api/reply.h"
#include "base/cleanup.h"
#include "base/fields.h"
#include "base/json.h"
#include "base/mem.h"
#include "builds/builds.h"
#include "http/body.h"

/* Changes several tags one after the other; r is NULL once the client left. */
struct changing {
    struct http_req *r;
    struct api *api;
    struct strv tags;
    size_t at;
    bool removing;
    char build[40];
};

static void e2b_tags_change_free(struct changing *c)
{
    strv_done(&c->tags);
    free(c);
}

static void e2b_tags_on_client_left(struct http_req *r) { ((struct changing *)r->user)->r = NULL; }

static struct changing *e2b_tags_change_new(struct api_call *c)
{
    struct changing *w = xcalloc(1, sizeof *w);
    w->r = c->req;
    w->api = c->api;
    return w;
}

static void e2b_tags_wait(struct changing *w)
{
    w->r->user = w;
    api_on_closed(w->r, e2b_tags_on_client_left);
}

static void e2b_tags_answer(struct changing *w)
{
    _cleanup_buf_ struct buf out = {0};
    struct json j;
    if (w->removing) {
        reply_empty(w->r, 204);
        return;
    }
    json_start(&j, &out);
    json_obj(&j, NULL);
    json_str(&j, "buildID", w->build);
    json_arr(&j, "tags");
    for (size_t i = 0; i < w->tags.n; i++)
        json_str(&j, NULL, w->tags.v[i]);
    json_end_arr(&j);
    json_end_obj(&j);
    reply_json(w->r, 201, &out);
}

static void e2b_tags_on_changed(void *arg, const struct template *t, const struct state_failure *failure);

static void e2b_tags_next(struct changing *w, const struct template *t)
{
    const struct template_tag *from = NULL;
    if (w->removing) {
        w->api->domain->templates.remove(w->api->templates, t, w->tags.v[w->at], e2b_tags_on_changed, w);
        return;
    }
    for (size_t i = 0; i < t->ntags && !from; i++)
        if (strcmp(t->tags[i].build, w->build) == 0)
            from = &t->tags[i];
    w->api->domain->templates.tag(w->api->templates, t, from, w->tags.v[w->at], e2b_tags_on_changed, w);
}

static void e2b_tags_on_changed(void *arg, const struct template *t, const struct state_failure *failure)
{
    struct changing *w = arg;
    if (!failure && t && ++w->at < w->tags.n) {
        e2b_tags_next(w, t);
        return;
    }
    if (w->r) {
        api_on_closed(w->r, NULL);
        if (failure)
            reply_error(w->r, failure->status, "%s", failure->text);
        else
            e2b_tags_answer(w);
    }
    e2b_tags_change_free(w);
}

static int e2b_tags_read(json_t *root, struct strv *ret, struct err *err)
{
    json_t *list = NULL;
    if (field_arr(root, "tags", &list, err) < 0)
        return -1;
    if (json_array_size(list) == 0 || json_array_size(list) > BUILD_TAGS_MAX)
        return err_set(err, ERR_USAGE, 0, "field 'tags' must be an array of 1 to %d tags", BUILD_TAGS_MAX);
    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *tag = json_string_value(json_array_get(list, i));
        if (!tag || !build_tag_ok(tag))
            return err_set(err, ERR_USAGE, 0,
                           "field 'tags[%zu]' must be a tag: letters, digits, '-', '_' and '.', and no UUID", i);
        if (!strv_has(ret, tag))
            strv_add(ret, tag);
    }
    return 0;
}

static bool e2b_tags_has(const struct template *t, const char *tag)
{
    for (size_t i = 0; i < t->ntags; i++)
        if (strcmp(t->tags[i].tag, tag) == 0)
            return true;
    return false;
}

/* The template that `field` of the body names, if it belongs to the caller. NULL: it has answered. */
static const struct template *e2b_tags_own_template(struct api_call *c, json_t *root, const char *field,
                                                    const struct template_tag **tag)
{
    const char *name = NULL;
    struct err err;
    int have = field_str(root, field, &name, &err);
    if (have <= 0) {
        reply_error(c->req, 400, "%s", have ? err.msg : "the name of a template is missing");
        return NULL;
    }
    const struct template *t = c->api->domain->templates.find(c->api->templates, c->who.tenant, name, tag);
    if (t && t->tenant == c->who.tenant && (!tag || *tag))
        return t;
    reply_error(c->req, 404, "template '%.100s' not found", name);
    return NULL;
}

static void e2b_tags_from_body(struct http_req *r, json_t *root, unsigned status, const char *error, bool removing)
{
    struct api_call *c = api_call_of(r);
    struct err err;
    if (status) {
        reply_error(r, status, "%s", error);
        return;
    }
    json_t *tmp = NULL, *o = fields_root(root, &tmp, &err);
    struct changing *w = e2b_tags_change_new(c);
    const struct template_tag *tag = NULL;
    w->removing = removing;
    if (!o || e2b_tags_read(o, &w->tags, &err) < 0) {
        reply_error(r, 400, "%s", err.msg);
        e2b_tags_change_free(w);
        json_decref(tmp);
        return;
    }
    const struct template *t = e2b_tags_own_template(c, o, removing ? "name" : "target", removing ? NULL : &tag);
    const char *missing = NULL;
    for (size_t i = 0; t && removing && i < w->tags.n; i++)
        if (!e2b_tags_has(t, w->tags.v[i]))
            missing = w->tags.v[i];
    json_decref(tmp);
    if (missing)
        reply_error(r, 404, "template '%s' has no tag '%s'", t->name, missing);
    if (!t || missing) {
        e2b_tags_change_free(w);
        return;
    }
    if (tag)
        memcpy(w->build, tag->build, sizeof w->build);
    e2b_tags_wait(w);
    e2b_tags_next(w, t);
}

static void e2b_tags_on_add_body(struct http_req *r, json_t *root, unsigned status, const char *error)
{
    e2b_tags_from_body(r, root, status, error, false);
}
static void e2b_tags_on_remove_body(struct http_req *r, json_t *root, unsigned status, const char *error)
{
    e2b_tags_from_body(r, root, status, error, true);
}
void e2b_tags_add(struct api_call *c) { body_json(c->req, 0, e2b_tags_on_add_body); }
void e2b_tags_remove(struct api_call *c) { body_json(c->req, 0, e2b_tags_on_remove_body); }

/* --- public ------------------------------------------------------------------------------------------------------- */

static void e2b_template_on_published(void *arg, const struct template *t, const struct state_failure *failure)
{
    struct changing *w = arg;
    _cleanup_buf_ struct buf out = {0};
    struct json j;
    if (w->r) {
        api_on_closed(w->r, NULL);
        if (failure)
            reply_error(w->r, failure->status, "%s", failure->text);
        else {
            json_start(&j, &out);
            json_obj(&j, NULL);
            json_arr(&j, "names");
            json_str(&j, NULL, t->name);
            json_end_arr(&j);
            json_end_obj(&j);
            reply_json(w->r, 200, &out);
        }
    }
    e2b_tags_change_free(w);
}

static void e2b_template_on_patch_body(struct http_req *r, json_t *root, unsigned status, const char *error)
{
    struct api_call *c = api_call_of(r);
    bool on = false;
    struct err err;
    if (status) {
        reply_error(r, status, "%s", error);
        return;
    }
    const struct template *t = c->api->domain->templates.find(c->api->templates, c->who.tenant, c->param[0], NULL);
    int have = json_is_object(root) ? field_bool(root, "public", &on, &err) : 0;
    if (!t || t->tenant != c->who.tenant)
        reply_error(r, 404, "template '%.100s' not found", c->param[0]);
    else if (have <= 0)
        reply_error(r, 400, "%s", have ? err.msg : "field 'public' is required: true or false");
    else {
        struct changing *w = e2b_tags_change_new(c);
        e2b_tags_wait(w);
        c->api->domain->templates.set(c->api->templates, t,
                                      &(struct template_settings){.public = on ? TEMPLATE_ON : TEMPLATE_OFF},
                                      e2b_template_on_published, w);
    }
}

void e2b_template_patch(struct api_call *c) { body_json(c->req, 0, e2b_template_on_patch_body); }
