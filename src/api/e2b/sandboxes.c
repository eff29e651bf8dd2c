/* sandboxes.c - the JSON of a sandbox, and E2B's routes that show, kill and prolong one. */
#include <string.h>

#include "api/e2b/e2b.h"
#include "api/reply.h"
#include "api/sandbox-json.h"
#include "base/cleanup.h"
#include "base/fields.h"
#include "base/json.h"
#include "http/body.h"
#include "network/networks.h"
#include "snapshots/snapshots.h"

uint64_t e2b_cpu_count(uint32_t milli) { return milli ? (milli + 999) / 1000 : 1; }

/* Keys that may only read get no access token, because it allows to run commands. */
static void e2b_sandbox_add_detail(struct json *j, const struct api_call *c, const struct sandbox *b)
{
    if (b->token[0] && !(c->who.scopes & SCOPE_READ))
        json_str(j, "envdAccessToken", b->token);
    api_add_or_null(j, "domain", c->api->config->domain);
    json_bool(j, "allowInternetAccess", b->net && b->net->doc.open);
    e2b_add_network(j, b);
    json_obj(j, "lifecycle");
    json_bool(j, "autoResume", b->desc.life.auto_resume);
    json_str(j, "onTimeout", b->desc.life.auto_pause ? "pause" : "kill");
    json_end_obj(j);
    api_add_isolation(j, b);
}

void e2b_add_listed(struct json *j, const char *key, const struct api_call *c, const struct sandbox *b, bool detail)
{
    char t[REPLY_TIME_MAX];
    json_obj(j, key);
    json_str(j, "sandboxID", b->id);
    json_str(j, "templateID", b->desc.template);
    json_str(j, "alias", api_template_alias(c, b));
    json_str(j, "clientID", API_CLIENT_ID);
    reply_time(b->started_unix_ms, t);
    json_str(j, "startedAt", t);
    reply_time(c->api->domain->sandboxes.end_unix_ms(b), t);
    json_str(j, "endAt", t);
    json_u64(j, "cpuCount", e2b_cpu_count(b->desc.cpu_milli));
    json_u64(j, "memoryMB", b->desc.memory >> 20);
    json_u64(j, "diskSizeMB", b->desc.disk >> 20);
    json_str(j, "state", sandbox_is_paused(b) ? "paused" : "running");
    json_str(j, "envdVersion", API_ENVD_VERSION);
    json_obj(j, "metadata");
    for (size_t i = 0; i + 1 < b->desc.metadata.n; i += 2)
        json_str(j, b->desc.metadata.v[i], b->desc.metadata.v[i + 1]);
    json_end_obj(j);
    json_arr(j, "volumeMounts");
    for (size_t i = 0; i < b->desc.nmounts; i++) {
        json_obj(j, NULL);
        json_str(j, "name", b->desc.mounts[i].name);
        json_str(j, "path", b->desc.mounts[i].place);
        if (b->desc.mounts[i].flags & KEEPER_VOLUME_RO)
            json_bool(j, "readOnly", true);
        json_end_obj(j);
    }
    json_end_arr(j);
    if (detail)
        e2b_sandbox_add_detail(j, c, b);
    json_end_obj(j);
}

void e2b_get(struct api_call *c)
{
    _cleanup_buf_ struct buf out = {0};
    struct json j;
    struct sandbox *b = api_sandbox_of(c);
    if (!b)
        return;
    json_start(&j, &out);
    e2b_add_listed(&j, NULL, c, b, true);
    reply_json(c->req, 200, &out);
}

static void e2b_sandbox_on_killed(void *arg, bool ok)
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
    struct sandbox *b = api_sandbox_of(c);
    if (b)
        sandbox_kill(c->api->sandboxes, b, "api", e2b_sandbox_on_killed, api_wait_for(c->req, sizeof(struct api_wait)));
}

static uint64_t e2b_sandbox_cap_timeout(const struct api_call *c, uint64_t s)
{
    uint32_t max = api_longest_life(c);
    return max && s > max ? UINT64_MAX : s;
}

static void e2b_sandbox_refuse_timeout(struct api_call *c)
{
    reply_error(c->req, 400, "field 'timeout' must be at most %u seconds here", api_longest_life(c));
}

/* Reads a number of seconds from the body. 1: there, 0: absent, -1: it answered with 400. */
static int e2b_sandbox_read_seconds(struct api_call *c, json_t *root, const char *field, int64_t min, int64_t max,
                                    int64_t *ret)
{
    struct err err;
    json_t *tmp = NULL;
    json_t *o = fields_root(root, &tmp, &err);
    int have = o ? field_int(o, field, min, max, ret, &err) : -1;
    json_decref(tmp);
    if (have < 0)
        reply_error(c->req, 400, "%s", err.msg);
    return have;
}

static void e2b_sandbox_on_prolonged(void *arg, bool ok)
{
    struct http_req *r = api_wait_over(arg);
    if (!r)
        return;
    if (ok)
        reply_empty(r, 204);
    else
        api_no_sandbox(api_call_of(r));
}

static bool e2b_sandbox_body_is_good(struct http_req *r, unsigned status, const char *error)
{
    if (status)
        reply_error(r, status, "%s", error);
    return status == 0;
}

static void e2b_sandbox_prolong(struct api_call *c, uint64_t wanted, bool extend_only)
{
    struct sandbox *b = api_sandbox_of(c);
    if (!b)
        return;
    uint64_t seconds = e2b_sandbox_cap_timeout(c, wanted);
    if (sandbox_is_paused(b))
        reply_error(c->req, 409, "the sandbox is paused: its time does not run; resume it, with a timeout");
    else if (seconds == UINT64_MAX)
        e2b_sandbox_refuse_timeout(c);
    else
        sandbox_set_timeout(c->api->sandboxes, b, seconds, extend_only, e2b_sandbox_on_prolonged,
                            api_wait_for(c->req, sizeof(struct api_wait)));
}

static void e2b_sandbox_on_timeout_body(struct http_req *r, json_t *root, unsigned status, const char *error)
{
    struct api_call *c = api_call_of(r);
    int64_t s = 0;
    if (!e2b_sandbox_body_is_good(r, status, error))
        return;
    int have = e2b_sandbox_read_seconds(c, root, "timeout", INT64_MIN, INT64_MAX, &s);
    if (have < 0)
        return;
    if (have == 0) {
        reply_error(r, 400, "field 'timeout' is required: seconds from now");
        return;
    }
    e2b_sandbox_prolong(c, s < 0 ? 0 : (uint64_t)s, false);
}
void e2b_timeout(struct api_call *c) { body_json(c->req, 0, e2b_sandbox_on_timeout_body); }

static void e2b_sandbox_on_refresh_body(struct http_req *r, json_t *root, unsigned status, const char *error)
{
    struct api_call *c = api_call_of(r);
    int64_t s = 15;
    if (!e2b_sandbox_body_is_good(r, status, error) || e2b_sandbox_read_seconds(c, root, "duration", 0, 3600, &s) < 0)
        return;
    e2b_sandbox_prolong(c, s < 15 ? 15 : (uint64_t)s, true);
}
void e2b_refresh(struct api_call *c) { body_json(c->req, 0, e2b_sandbox_on_refresh_body); }
