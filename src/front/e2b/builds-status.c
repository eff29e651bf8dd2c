/* What a build has come to, and what it said meanwhile. */
#include <string.h>

#include "base/cleanup.h"
#include "base/json.h"
#include "base/num.h"
#include "front/builds.h"
#include "front/e2b/e2b.h"
#include "front/reply.h"
#include "http/url.h"

static const char *const states[] = {"waiting", "building", "ready", "error"};

static void add_entry(struct json *j, const struct build_entry *e)
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

/* A number of the query; false: 400 was answered. */
static bool number(struct api_call *c, const char *name, uint64_t max, uint64_t *ret)
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

static bool level_of(struct api_call *c, enum build_level *ret)
{
    _cleanup_buf_ struct buf text = {0};
    struct err err;
    if (url_query_get(c->req->query, "level", URL_PLUS_SPACE, &text, &err) == 0 || build_level_of(buf_str(&text), ret))
        return true;
    reply_error(c->req, 400, "query parameter 'level' must be debug, info, warn or error");
    return false;
}

/* One that is not in memory: a row may name it, or it was interrupted. 404 was answered if neither. */
struct known {
    enum build_status status;
    const char *reason;
};
struct search {
    const char *build;
    bool found;
};

static bool has_build(const struct tmpl *t, const char *build)
{
    for (size_t i = 0; t && i < t->ntags; i++)
        if (strcmp(t->tags[i].build, build) == 0)
            return true;
    return false;
}

static void look_into(void *arg, const struct tmpl *t)
{
    struct search *s = arg;
    s->found |= has_build(t, s->build);
}

static bool find_old(struct api_call *c, struct known *ret)
{
    struct search s = {.build = c->param[1]};
    bool ours = build_id_ours(c->front, c->who.tenant, c->param[0], c->param[1]);
    if (ours) /* its template may have another id than was promised */
        tmpl_each(c->front, c->who.tenant, look_into, &s);
    else
        s.found = has_build(tmpl_find(c->front, c->who.tenant, c->param[0], NULL), s.build);
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

static void add_reason(struct json *j, const struct build *b, const char *reason)
{
    json_obj(j, "reason");
    json_str(j, "message", reason);
    if (b && b->reason_step[0])
        json_str(j, "step", b->reason_step);
    json_end_obj(j);
}

void e2b_build_status(struct api_call *c)
{
    const struct build *b = build_find(c->front, c->who.tenant, c->param[0], c->param[1]);
    struct known old = {0};
    uint64_t offset = 0, limit = BUILD_PAGE_MAX;
    enum build_level level = BUILD_DEBUG;
    if (!number(c, "logsOffset", UINT32_MAX, &offset) || !number(c, "limit", BUILD_PAGE_MAX, &limit) ||
        !level_of(c, &level) || (!b && !find_old(c, &old)))
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
            add_entry(&j, &b->log.v[i]);
    json_end_arr(&j);
    if (b && b->status == BUILD_FAILED)
        add_reason(&j, b, b->reason);
    else if (old.reason)
        add_reason(&j, NULL, old.reason);
    json_end_obj(&j);
    reply_json(c->req, 200, &out);
}

void e2b_build_logs(struct api_call *c)
{
    const struct build *b = build_find(c->front, c->who.tenant, c->param[0], c->param[1]);
    struct known old = {0};
    uint64_t cursor = 0, limit = BUILD_PAGE_MAX;
    enum build_level level = BUILD_DEBUG;
    _cleanup_buf_ struct buf out = {0}, way = {0};
    struct err err;
    struct json j;
    if (!number(c, "cursor", UINT64_MAX, &cursor) || !number(c, "limit", BUILD_PAGE_MAX, &limit) ||
        !level_of(c, &level) || (!b && !find_old(c, &old)))
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
        add_entry(&j, e);
        limit--;
    }
    json_end_arr(&j);
    json_end_obj(&j);
    reply_json(c->req, 200, &out);
}
