/* Tags of templates, and who may use them: changes of rows. */
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/json.h"
#include "base/mem.h"
#include "front/builds.h"
#include "front/e2b/e2b.h"
#include "front/reply.h"
#include "http/body.h"

/* Several changes, one after the other; r is NULL once the client left. */
struct changing {
    struct http_req *r;
    struct front *front;
    struct strv tags;
    size_t at;
    bool removing;
    char build[40];
};

static void changing_free(struct changing *c)
{
    strv_done(&c->tags);
    free(c);
}

static void left(struct http_req *r) { ((struct changing *)r->user)->r = NULL; }

static struct changing *changing(struct api_call *c)
{
    struct changing *w = xcalloc(1, sizeof *w);
    w->r = c->req;
    w->front = c->front;
    return w;
}

static void wait_for(struct changing *w)
{
    w->r->user = w;
    api_on_closed(w->r, left);
}

static void answer_tags(struct changing *w)
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

static void changed(void *arg, const struct tmpl *t, const struct state_failure *failure);

static void next(struct changing *w, const struct tmpl *t)
{
    const struct tmpl_tag *from = NULL;
    if (w->removing) {
        tmpl_remove(w->front, t, w->tags.v[w->at], changed, w);
        return;
    }
    for (size_t i = 0; i < t->ntags && !from; i++)
        if (strcmp(t->tags[i].build, w->build) == 0)
            from = &t->tags[i];
    tmpl_tag(w->front, t, from, w->tags.v[w->at], changed, w);
}

static void changed(void *arg, const struct tmpl *t, const struct state_failure *failure)
{
    struct changing *w = arg;
    if (!failure && t && ++w->at < w->tags.n) {
        next(w, t);
        return;
    }
    if (w->r) {
        api_on_closed(w->r, NULL);
        if (failure)
            reply_error(w->r, failure->status, "%s", failure->text);
        else
            answer_tags(w);
    }
    changing_free(w);
}

static int read_tags(json_t *root, struct strv *ret, struct err *err)
{
    json_t *list = NULL;
    if (e2b_field_arr(root, "tags", &list, err) < 0)
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

static bool has_tag(const struct tmpl *t, const char *tag)
{
    for (size_t i = 0; i < t->ntags; i++)
        if (strcmp(t->tags[i].tag, tag) == 0)
            return true;
    return false;
}

/* The row that `field` of the body names, if it is the caller's own. NULL: answered. */
static const struct tmpl *own_row(struct api_call *c, json_t *root, const char *field, const struct tmpl_tag **tag)
{
    const char *name = NULL;
    struct err err;
    int have = e2b_field_str(root, field, &name, &err);
    if (have <= 0) {
        reply_error(c->req, 400, "%s", have ? err.msg : "the name of a template is missing");
        return NULL;
    }
    const struct tmpl *t = tmpl_find(c->front, c->who.tenant, name, tag);
    if (t && t->tenant == c->who.tenant && (!tag || *tag))
        return t;
    reply_error(c->req, 404, "template '%.100s' not found", name);
    return NULL;
}

static void tags_body(struct http_req *r, json_t *root, unsigned status, const char *error, bool removing)
{
    struct api_call *c = api_call_of(r);
    struct err err;
    if (status) {
        reply_error(r, status, "%s", error);
        return;
    }
    json_t *tmp = NULL, *o = e2b_root(root, &tmp, &err);
    struct changing *w = changing(c);
    const struct tmpl_tag *tag = NULL;
    w->removing = removing;
    if (!o || read_tags(o, &w->tags, &err) < 0) {
        reply_error(r, 400, "%s", err.msg);
        changing_free(w);
        json_decref(tmp);
        return;
    }
    const struct tmpl *t = own_row(c, o, removing ? "name" : "target", removing ? NULL : &tag);
    const char *missing = NULL;
    for (size_t i = 0; t && removing && i < w->tags.n; i++)
        if (!has_tag(t, w->tags.v[i]))
            missing = w->tags.v[i];
    json_decref(tmp);
    if (missing)
        reply_error(r, 404, "template '%s' has no tag '%s'", t->name, missing);
    if (!t || missing) {
        changing_free(w);
        return;
    }
    if (tag)
        memcpy(w->build, tag->build, sizeof w->build);
    wait_for(w);
    next(w, t);
}

static void tags_add(struct http_req *r, json_t *root, unsigned status, const char *error)
{
    tags_body(r, root, status, error, false);
}
static void tags_remove(struct http_req *r, json_t *root, unsigned status, const char *error)
{
    tags_body(r, root, status, error, true);
}
void e2b_tags_add(struct api_call *c) { body_json(c->req, 0, tags_add); }
void e2b_tags_remove(struct api_call *c) { body_json(c->req, 0, tags_remove); }

/* --- public ------------------------------------------------------------------------------------------------------- */

static void published(void *arg, const struct tmpl *t, const struct state_failure *failure)
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
    changing_free(w);
}

static void patch_body(struct http_req *r, json_t *root, unsigned status, const char *error)
{
    struct api_call *c = api_call_of(r);
    bool on = false;
    struct err err;
    if (status) {
        reply_error(r, status, "%s", error);
        return;
    }
    const struct tmpl *t = tmpl_find(c->front, c->who.tenant, c->param[0], NULL);
    int have = json_is_object(root) ? e2b_field_bool(root, "public", &on, &err) : 0;
    if (!t || t->tenant != c->who.tenant)
        reply_error(r, 404, "template '%.100s' not found", c->param[0]);
    else if (have <= 0)
        reply_error(r, 400, "%s", have ? err.msg : "field 'public' is required: true or false");
    else {
        struct changing *w = changing(c);
        wait_for(w);
        tmpl_set(c->front, t, &(struct tmpl_settings){.public = on ? TMPL_ON : TMPL_OFF}, published, w);
    }
}

void e2b_template_patch(struct api_call *c) { body_json(c->req, 0, patch_body); }
