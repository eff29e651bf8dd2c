#include <string.h>

#include "base/cleanup.h"
#include "base/json.h"
#include "front/e2b/e2b.h"
#include "front/nets.h"
#include "front/reply.h"
#include "front/state.h"
#include "http/body.h"

static void add_isolation(struct json *j, const struct box *b)
{
    json_obj(j, "hutch");
    json_str(j, "tier", b->tier);
    if (b->degraded[0])
        json_str(j, "degraded", b->degraded);
    if (box_is_paused(b)) {
        json_bool(j, "memory", b->state != BOX_STORED);
        json_u64(j, "bytes", b->state_bytes);
    }
    if (b->parent[0])
        json_str(j, "parent", b->parent);
    if (b->idle_s)
        json_u64(j, "idleTimeout", b->idle_s);
    if (b->net)
        json_str(j, "refusals", b->net->doc.closed ? "closed" : "readable");
    json_end_obj(j);
}

static void add_or_null(struct json *j, const char *key, const char *value)
{
    if (value && value[0])
        json_str(j, key, value);
    else
        json_none(j, key);
}

/* What people call its template. */
static const char *alias_of(const struct api_call *c, const struct box *b)
{
    const struct tmpl *t = tmpl_find(c->front, b->tenant, b->template, NULL);
    return t && t->name[0] ? t->name : b->template;
}

void e2b_add_sandbox(struct json *j, const struct api_call *c, const struct box *b)
{
    e2b_add_sandbox_as(j, NULL, c, b);
}

void e2b_add_sandbox_as(struct json *j, const char *key, const struct api_call *c, const struct box *b)
{
    json_obj(j, key);
    json_str(j, "sandboxID", b->id);
    json_str(j, "templateID", b->template);
    json_str(j, "alias", alias_of(c, b));
    json_str(j, "clientID", E2B_CLIENT_ID);
    json_str(j, "envdVersion", E2B_ENVD_VERSION);
    if (b->token[0])
        json_str(j, "envdAccessToken", b->token);
    add_or_null(j, "trafficAccessToken", b->traffic_token);
    add_or_null(j, "domain", c->front->config->domain);
    add_isolation(j, b);
    json_end_obj(j);
}

/* A key that may only read gets no token: it runs commands. */
static void add_detail(struct json *j, const struct api_call *c, const struct box *b)
{
    if (b->token[0] && !(c->who.scopes & SCOPE_READ))
        json_str(j, "envdAccessToken", b->token);
    add_or_null(j, "domain", c->front->config->domain);
    json_bool(j, "allowInternetAccess", b->net && b->net->doc.open);
    e2b_add_network(j, b);
    json_obj(j, "lifecycle");
    json_bool(j, "autoResume", b->auto_resume);
    json_str(j, "onTimeout", b->auto_pause ? "pause" : "kill");
    json_end_obj(j);
    add_isolation(j, b);
}

void e2b_add_listed(struct json *j, const char *key, const struct api_call *c, const struct box *b, bool detail)
{
    char t[REPLY_TIME_MAX];
    json_obj(j, key);
    json_str(j, "sandboxID", b->id);
    json_str(j, "templateID", b->template);
    json_str(j, "alias", alias_of(c, b));
    json_str(j, "clientID", E2B_CLIENT_ID);
    reply_time(b->started_unix_ms, t);
    json_str(j, "startedAt", t);
    reply_time(box_end_unix_ms(b), t);
    json_str(j, "endAt", t);
    json_u64(j, "cpuCount", b->cpu_milli ? (b->cpu_milli + 999) / 1000 : 1);
    json_u64(j, "memoryMB", b->memory >> 20);
    json_u64(j, "diskSizeMB", b->disk >> 20);
    json_str(j, "state", box_is_paused(b) ? "paused" : "running");
    json_str(j, "envdVersion", E2B_ENVD_VERSION);
    json_obj(j, "metadata");
    for (size_t i = 0; i + 1 < b->metadata.n; i += 2)
        json_str(j, b->metadata.v[i], b->metadata.v[i + 1]);
    json_end_obj(j);
    json_arr(j, "volumeMounts");
    for (size_t i = 0; i < b->nmounts; i++) {
        json_obj(j, NULL);
        json_str(j, "name", b->mounts[i].name);
        json_str(j, "path", b->mounts[i].place);
        if (b->mounts[i].flags & KEEPER_VOLUME_RO)
            json_bool(j, "readOnly", true);
        json_end_obj(j);
    }
    json_end_arr(j);
    if (detail)
        add_detail(j, c, b);
    json_end_obj(j);
}

void e2b_get(struct api_call *c)
{
    _cleanup_buf_ struct buf out = {0};
    struct json j;
    struct box *b = api_box(c);
    if (!b)
        return;
    json_start(&j, &out);
    e2b_add_listed(&j, NULL, c, b, true);
    reply_json(c->req, 200, &out);
}

static void killed(void *arg, bool ok)
{
    struct http_req *r = api_wait_over(arg);
    if (!r)
        return;
    if (ok)
        reply_empty(r, 204);
    else
        reply_error(r, 500, "the sandbox could not be killed now; the node keeps trying");
}

void e2b_kill(struct api_call *c)
{
    struct box *b = api_box(c);
    if (b)
        box_kill(c->front, b, "api", killed, api_wait_for(c->req, sizeof(struct api_wait)));
}

static uint64_t cap_timeout(const struct api_call *c, uint64_t s)
{
    uint32_t max = e2b_longest_life(c);
    return max && s > max ? UINT64_MAX : s;
}

static void too_long(struct api_call *c)
{
    reply_error(c->req, 400, "field 'timeout' must be at most %u seconds here", e2b_longest_life(c));
}

/* Reads one number of seconds from the body. 1 there, 0 absent, -1 answered. */
static int read_seconds(struct api_call *c, json_t *root, const char *field, int64_t min, int64_t max, int64_t *ret)
{
    struct err err;
    json_t *tmp = NULL;
    json_t *o = e2b_root(root, &tmp, &err);
    int have = o ? e2b_field_int(o, field, min, max, ret, &err) : -1;
    json_decref(tmp);
    if (have < 0)
        reply_error(c->req, 400, "%s", err.msg);
    return have;
}

static void prolonged(void *arg, bool ok)
{
    struct http_req *r = api_wait_over(arg);
    if (!r)
        return;
    if (ok)
        reply_empty(r, 204);
    else
        api_no_box(api_call_of(r));
}

/* The sandbox may have ended while the body came. */
static bool body_ok(struct http_req *r, unsigned status, const char *error)
{
    if (status)
        reply_error(r, status, "%s", error);
    return status == 0;
}

static void prolong(struct api_call *c, uint64_t wanted, bool extend_only)
{
    struct box *b = api_box(c);
    if (!b)
        return;
    uint64_t seconds = cap_timeout(c, wanted);
    if (box_is_paused(b))
        reply_error(c->req, 409, "the sandbox is paused: its time does not run; resume it, with a timeout");
    else if (seconds == UINT64_MAX)
        too_long(c);
    else
        box_set_timeout(c->front, b, seconds, extend_only, prolonged, api_wait_for(c->req, sizeof(struct api_wait)));
}

static void timeout_body(struct http_req *r, json_t *root, unsigned status, const char *error)
{
    struct api_call *c = api_call_of(r);
    int64_t s = 0;
    if (!body_ok(r, status, error))
        return;
    int have = read_seconds(c, root, "timeout", INT64_MIN, INT64_MAX, &s);
    if (have < 0)
        return;
    if (have == 0) {
        reply_error(r, 400, "field 'timeout' is required: seconds from now");
        return;
    }
    prolong(c, s < 0 ? 0 : (uint64_t)s, false);
}
void e2b_timeout(struct api_call *c) { body_json(c->req, 0, timeout_body); }

static void refresh_body(struct http_req *r, json_t *root, unsigned status, const char *error)
{
    struct api_call *c = api_call_of(r);
    int64_t s = 15;
    if (!body_ok(r, status, error) || read_seconds(c, root, "duration", 0, 3600, &s) < 0)
        return;
    prolong(c, s < 15 ? 15 : (uint64_t)s, true);
}
void e2b_refresh(struct api_call *c) { body_json(c->req, 0, refresh_body); }
