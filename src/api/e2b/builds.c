/* builds.c - E2B's routes for template builds: one announces a build, the next starts it. */
#include <string.h>

#include "api/e2b/e2b.h"
#include "api/reply.h"
#include "base/cleanup.h"
#include "base/fields.h"
#include "base/json.h"
#include "base/mem.h"
#include "builds/builds.h"
#include "http/body.h"

enum { PLAN_MAX = 8 << 20 /* bytes of a request: 200 steps with long commands */ };

static int e2b_build_read_tags(json_t *root, struct strv *ret, struct err *err)
{
    json_t *list = NULL;
    int have = field_arr(root, "tags", &list, err);
    if (have <= 0)
        return have;
    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *tag = json_string_value(json_array_get(list, i));
        if (!tag)
            return err_set(err, ERR_USAGE, 0, "field 'tags[%zu]' must be a string", i);
        strv_add(ret, tag);
    }
    return 0;
}

/* Older clients call the field alias, newer ones name. */
static int e2b_build_read_request(json_t *root, struct build_new *n, struct strv *tags, struct err *err)
{
    int64_t cpus = 0, memory = 0;
    if (e2b_build_read_tags(root, tags, err) < 0 || field_str(root, "name", &n->name, err) < 0 ||
        (!n->name && field_str(root, "alias", &n->name, err) < 0) ||
        field_int(root, "cpuCount", 1, BUILD_CPU_MAX, &cpus, err) < 0 ||
        field_int(root, "memoryMB", BUILD_MEMORY_MIN, BUILD_MEMORY_MAX, &memory, err) < 0)
        return -1;
    if (!n->name || !*n->name)
        return err_set(err, ERR_USAGE, 0, "field 'name' is required: NAME or NAME:TAG of the template");
    n->tags = tags;
    n->cpu_milli = (uint32_t)cpus * 1000;
    n->memory = (uint64_t)memory << 20;
    return 0;
}

static void e2b_build_add_names(struct json *j, const char *key, const char *name)
{
    json_arr(j, key);
    json_str(j, NULL, name);
    json_end_arr(j);
}

static void e2b_build_answer_made(struct http_req *r, const struct build *b)
{
    _cleanup_buf_ struct buf out = {0};
    struct json j;
    const struct template *t =
        api_call_of(r)->api->domain->templates.find(api_call_of(r)->api->templates, b->tenant, b->template, NULL);
    json_start(&j, &out);
    json_obj(&j, NULL);
    json_str(&j, "templateID", b->template);
    json_str(&j, "buildID", b->id);
    e2b_build_add_names(&j, "names", b->name);
    e2b_build_add_names(&j, "aliases", b->name);
    json_arr(&j, "tags");
    for (size_t i = 0; i < b->tags.n; i++)
        json_str(&j, NULL, b->tags.v[i]);
    json_end_arr(&j);
    json_bool(&j, "public", t && t->public);
    json_end_obj(&j);
    reply_json(r, 202, &out);
}

/* Whether the tenant may have one more template, if the build makes a new one. build_make() refuses invalid names. */
static bool e2b_build_has_room(struct api_call *c, const char *full, struct state_failure *ret)
{
    char name[TEMPLATE_NAME_MAX], tag[TEMPLATE_TAG_MAX];
    struct err err;
    return !build_name_parse(full, name, tag, &err) ||
           c->api->domain->templates.room(c->api->templates, c->who.tenant, name, ret);
}

static void e2b_build_on_make_body(struct http_req *r, json_t *root, unsigned status, const char *error)
{
    struct api_call *c = api_call_of(r);
    struct build_new n = {0};
    struct state_failure full = {0};
    _cleanup_strv_ struct strv tags = {0};
    struct err err;
    if (status) {
        reply_error(r, status, "%s", error);
        return;
    }
    json_t *tmp = NULL, *o = fields_root(root, &tmp, &err);
    const struct build *b = NULL;
    status = 400;
    if (o && e2b_build_read_request(o, &n, &tags, &err) == 0 && e2b_build_has_room(c, n.name, &full))
        b = build_make(c->api->builds, c->who.tenant, &n, &status, &err);
    json_decref(tmp);
    if (b)
        e2b_build_answer_made(r, b);
    else if (full.status)
        reply_state_failure(r, &full);
    else
        reply_error(r, status, "%s", err.msg);
}

void e2b_build_make(struct api_call *c) { body_json(c->req, 0, e2b_build_on_make_body); }

static void e2b_build_on_start_body(struct http_req *r, json_t *root, unsigned status, const char *error)
{
    struct api_call *c = api_call_of(r);
    struct build_plan plan = {0};
    struct state_failure full = {0};
    struct err err;
    if (status) {
        reply_error(r, status, "%s", error);
        return;
    }
    if (build_plan_parse(root, &plan, &err) < 0) {
        build_plan_done(&plan);
        reply_error(r, 400, "%s", err.msg);
    } else if (!state_room(c->api->stacks, c->who.tenant, 0, STATE_SOME, &full)) {
        build_plan_done(&plan);
        reply_state_failure(r, &full);
    } else if (build_start(c->api->builds, c->who.tenant, c->param[0], c->param[1], &plan, &status, &err) < 0)
        reply_error(r, status, "%s", err.msg);
    else
        reply_empty(r, 202);
}

void e2b_build_start(struct api_call *c) { body_json(c->req, PLAN_MAX, e2b_build_on_start_body); }

/* The routes of E2B's first builder, which took a Docker image from a registry of its own. */
void e2b_build_old(struct api_call *c)
{
    api_refuse_body(c->req, 400,
                    "this node builds templates from steps, as the SDKs since 2.0 and `hutch template build` do: "
                    "POST /v3/templates, then POST /v2/templates/{id}/builds/{id}");
}
