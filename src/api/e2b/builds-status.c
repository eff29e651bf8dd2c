/* builds-status.c - GET the status of a template build, and its log. */
#include <string.h>

#include "api/e2b/e2b.h"
#include "api/reply.h"
#include "base/cleanup.h"
#include "base/json.h"
#include "base/num.h"
#include "builds/builds.h"
#include "http/url.h"

static const char *const states[] = {"waiting", "building", "ready", "error"};

static void e2b_build_add_log_entry(struct json *j, const struct build_entry *e)
{
    char when[REPLY_TIME_MAX];
    reply_time(e->at_unix_ms, when);
    json_obj(j, NULL);
    json_str(j, "timestamp", when);
    json_str(j, "level", build_level_name(e->level));
    json_str(j, "message", e->text);
    json_str(j, "step", e->step);
    json_end_obj(j);
}

/* Reads a number of the query, if it is there. False: it answered with 400. */
static bool e2b_build_query_number(struct api_call *c, const char *name, uint64_t max, uint64_t *ret)
{
    _cleanup_buf_ struct buf text = {0};
    struct err err;
    int have = url_query_get(c->req->query, name, URL_PLUS_SPACE, &text, &err);
    if (have == 0)
        return true;
    if (have < 0 || !num_u64(buf_str(&text), ret) || *ret > max) {
        reply_error(c->req, 400, "query parameter '%s' must be a number from 0 to %llu", name, (unsigned long long)max);
        return false;
    }
    return true;
}

static bool e2b_build_query_level(struct api_call *c, enum build_level *ret)
{
    _cleanup_buf_ struct buf text = {0};
    struct err err;
    if (url_query_get(c->req->query, "level", URL_PLUS_SPACE, &text, &err) == 0 || build_level_of(buf_str(&text), ret))
        return true;
    reply_error(c->req, 400, "query parameter 'level' must be debug, info, warn or error");
    return false;
}

/* The outcome of a build that is no longer in memory: ready if a template names it, failed if a restart interrupted
 * it. */
struct known {
    enum build_status status;
    const char *reason;
};
struct search {
    const char *build;
    bool found;
};

static bool template_has_build(const struct template *t, const char *build)
{
    for (size_t i = 0; t && i < t->ntags; i++)
        if (strcmp(t->tags[i].build, build) == 0)
            return true;
    return false;
}

static void e2b_build_look_in_template(void *arg, const struct template *t)
{
    struct search *s = arg;
    s->found |= template_has_build(t, s->build);
}

static bool e2b_build_find_old(struct api_call *c, struct known *ret)
{
    struct search s = {.build = c->param[1]};
    bool ours = build_id_ours(c->api->builds, c->who.tenant, c->param[0], c->param[1]);
    if (ours) /* its template may have another id than was promised */
        c->api->domain->templates.each(c->api->templates, c->who.tenant, e2b_build_look_in_template, &s);
    else
        s.found = template_has_build(
            c->api->domain->templates.find(c->api->templates, c->who.tenant, c->param[0], NULL), s.build);
    if (s.found) {
        *ret = (struct known){.status = BUILD_READY};
        return true;
    }
    if (ours) {
        *ret = (struct known){.status = BUILD_FAILED, .reason = "interrupted by a restart of the node"};
        return true;
    }
    reply_error(c->req, 404, "build '%.40s' of template '%.40s' not found", c->param[1], c->param[0]);
    return false;
}

static void e2b_build_add_reason(struct json *j, const struct build *b, const char *reason)
{
    json_obj(j, "reason");
    json_str(j, "message", reason);
    if (b && b->reason_step[0])
        json_str(j, "step", b->reason_step);
    json_end_obj(j);
}

void e2b_build_status(struct api_call *c)
{
    const struct build *b = build_find(c->api->builds, c->who.tenant, c->param[0], c->param[1]);
    struct known old = {0};
    uint64_t offset = 0, limit = BUILD_PAGE_MAX;
    enum build_level level = BUILD_DEBUG;
    if (!e2b_build_query_number(c, "logsOffset", UINT32_MAX, &offset) ||
        !e2b_build_query_number(c, "limit", BUILD_PAGE_MAX, &limit) || !e2b_build_query_level(c, &level) ||
        (!b && !e2b_build_find_old(c, &old)))
        return;
    _cleanup_buf_ struct buf out = {0};
    struct json j;
    size_t n = b && api_sees_contents(c) ? b->log.n : 0, first = offset < n ? (size_t)offset : n;
    size_t end = n - first > limit ? first + (size_t)limit : n;
    json_start(&j, &out);
    json_obj(&j, NULL);
    json_str(&j, "templateID", c->param[0]);
    json_str(&j, "buildID", c->param[1]);
    json_str(&j, "status", states[b ? b->status : old.status]);
    json_arr(&j, "logs");
    for (size_t i = first; i < end; i++)
        if (b->log.v[i].level >= level)
            json_str(&j, NULL, b->log.v[i].text);
    json_end_arr(&j);
    json_arr(&j, "logEntries");
    for (size_t i = first; i < end; i++)
        if (b->log.v[i].level >= level)
            e2b_build_add_log_entry(&j, &b->log.v[i]);
    json_end_arr(&j);
    if (b && b->status == BUILD_FAILED)
        e2b_build_add_reason(&j, b, b->reason);
    else if (old.reason)
        e2b_build_add_reason(&j, NULL, old.reason);
    json_end_obj(&j);
    reply_json(c->req, 200, &out);
}

void e2b_build_logs(struct api_call *c)
{
    const struct build *b = build_find(c->api->builds, c->who.tenant, c->param[0], c->param[1]);
    struct known old = {0};
    uint64_t cursor = 0, limit = BUILD_PAGE_MAX;
    enum build_level level = BUILD_DEBUG;
    _cleanup_buf_ struct buf out = {0}, way = {0};
    struct err err;
    struct json j;
    if (!e2b_build_query_number(c, "cursor", UINT64_MAX, &cursor) ||
        !e2b_build_query_number(c, "limit", BUILD_PAGE_MAX, &limit) || !e2b_build_query_level(c, &level) ||
        (!b && !e2b_build_find_old(c, &old)))
        return;
    (void)url_query_get(c->req->query, "direction", URL_PLUS_SPACE, &way, &err);
    bool back = strcmp(buf_str(&way), "backward") == 0;
    json_start(&j, &out);
    json_obj(&j, NULL);
    json_arr(&j, "logs");
    for (size_t i = 0; b && i < b->log.n && limit > 0; i++) {
        const struct build_entry *e = &b->log.v[back ? b->log.n - 1 - i : i];
        if (e->level < level || (cursor && (back ? e->at_unix_ms > cursor : e->at_unix_ms < cursor)))
            continue;
        e2b_build_add_log_entry(&j, e);
        limit--;
    }
    json_end_arr(&j);
    json_end_obj(&j);
    reply_json(c->req, 200, &out);
}
