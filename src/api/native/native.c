/* native.c - what the node is and can do, and the route that stops all sandboxes. */
#include "api/native/native.h"
#include "api/create.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/native/openapi.h"
#include "api/reply.h"
#include "api/sandbox-json.h"
#include "base/cleanup.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/num.h"
#include "network/networks.h"
#include "sandboxes/events.h"

void native_openapi(struct api_call *c)
{
    http_reply(c->req, 200, "application/json; charset=utf-8", openapi_json, openapi_json_size);
}

void native_capabilities(struct api_call *c)
{
    static const char *const on[] = {
        "commands",    "command_rights", "pty",       "stdin",   "output_offsets", "files",           "watch",
        "signed_urls", "ports",          "websocket", "metrics", "events",         "idempotency_keys"};
    static const char *const network[] = {"internet", "network_policies", "secrets", "approvals", "audit"};
    static const char *const kept[] = {"pause", "snapshots", "fork", "template_builds", "volumes"};
    _cleanup_buf_ struct buf out = {0}, ca = {0};
    struct json j;
    json_start(&j, &out);
    json_obj(&j, NULL);
    json_str(&j, "version", HUTCH_VERSION);
    json_str(&j, "dialect", "e2b");
    json_str(&j, "domain", c->api->config->domain);
    json_bool(&j, "tls", c->api->config->tls_dev || c->api->config->tls_cert);
    if (c->api->config->tls_dev) {
        buf_addf(&ca, "%s/tls/ca.crt", c->api->config->state);
        json_str(&j, "ca", buf_str(&ca)); /* for clients on this machine: what to trust */
    }
    json_str(&j, "envdVersion", API_ENVD_VERSION);
    json_arr(&j, "tiers"); /* of the template "host" and of all others; each sandbox shows its own */
    json_str(&j, NULL, "process");
    json_str(&j, NULL, "container");
    json_end_arr(&j);
    json_str(&j, "privilege", c->api->config->strict ? "strict" : "computer");
    json_str(&j, "enforcement", c->api->config->best_effort ? "best-effort" : "required");
    json_arr(&j, "layers");
    static const char *const layers[] = {"user-namespace", "namespaces", "own-root", "cgroup",
                                         "capabilities",   "landlock",   "seccomp"};
    for (size_t i = 0; i < ARRAY_LEN(layers); i++)
        json_str(&j, NULL, layers[i]);
    json_end_arr(&j);
    json_obj(&j, "features");
    for (size_t i = 0; i < ARRAY_LEN(on); i++)
        json_bool(&j, on[i], true);
    for (size_t i = 0; i < ARRAY_LEN(network); i++)
        json_bool(&j, network[i], nets_on(c->api->network));
    for (size_t i = 0; i < ARRAY_LEN(kept); i++)
        json_bool(&j, kept[i], true);
    json_end_obj(&j);
    native_add_state(&j, c);
    json_obj(&j, "limits");
    json_u64(&j, "maxTimeoutSeconds", c->api->config->max_timeout_s);
    json_u64(&j, "metadataPairs", API_METADATA_MAX);
    json_u64(&j, "metadataBytes", API_METADATA_TOTAL_MAX);
    json_u64(&j, "envVars", API_ENV_MAX);
    json_u64(&j, "envVarsBytes", API_ENV_TOTAL_MAX);
    json_u64(&j, "maxUploadBytes", c->api->config->max_upload);
    json_end_obj(&j);
    json_end_obj(&j);
    reply_json(c->req, 200, &out);
}

struct counts {
    uint64_t creating, running, paused, killing;
};

static void native_node_count(void *arg, struct sandbox *b)
{
    struct counts *n = arg;
    n->creating += sandbox_is_being_made(b);
    n->running += b->state == SANDBOX_RUNNING;
    n->paused += sandbox_is_paused(b);
    n->killing += b->state == SANDBOX_KILLING;
}

static void native_node_add_template(void *arg, const struct template_info *t)
{
    struct json *j = arg;
    json_obj(j, NULL);
    json_str(j, "name", t->name);
    json_str(j, "state", t->state);
    if (t->text[0])
        json_str(j, "text", t->text);
    json_u64(j, "spawned", t->spawned);
    json_end_obj(j);
}

void native_node(struct api_call *c)
{
    struct counts n = {0};
    _cleanup_buf_ struct buf out = {0};
    struct json j;
    sandboxes_each(c->api->sandboxes, native_node_count, &n);
    json_start(&j, &out);
    json_obj(&j, NULL);
    json_str(&j, "version", HUTCH_VERSION);
    json_str(&j, "domain", c->api->config->domain);
    json_u64(&j, "uptimeMs", loop_now(c->api->loop) - c->api->started_ms);
    json_obj(&j, "sandboxes");
    json_u64(&j, "creating", n.creating);
    json_u64(&j, "running", n.running);
    json_u64(&j, "paused", n.paused);
    json_u64(&j, "killing", n.killing);
    json_u64(&j, "max", c->api->config->max_sandboxes);
    json_end_obj(&j);
    json_arr(&j, "templates");
    templates_each(c->api->templates, native_node_add_template, &j);
    json_end_arr(&j);
    json_end_obj(&j);
    reply_json(c->req, 200, &out);
}

/* Stops all sandboxes of the node; answers when the last one has ended. */
struct stopping {
    struct api_wait wait;
    size_t left, stopped, failed;
    bool all_asked;
};

static void native_stop_check(struct stopping *s)
{
    if (s->left > 0 || !s->all_asked)
        return;
    _cleanup_buf_ struct buf out = {0};
    buf_addf(&out, "{\"stopped\":%zu,\"failed\":%zu}", s->stopped, s->failed);
    struct http_req *r = api_wait_over(s);
    if (r)
        reply_json(r, 200, &out);
}

static void native_stop_on_killed(void *arg, bool ok)
{
    struct stopping *s = arg;
    s->left--;
    if (ok)
        s->stopped++;
    else
        s->failed++;
    native_stop_check(s);
}

struct ids {
    char (*v)[SANDBOX_ID_MAX];
    size_t n, cap;
};

static void native_stop_add_id(void *arg, struct sandbox *b)
{
    struct ids *ids = arg;
    MEM_GROW(ids->v, ids->n, ids->cap);
    memcpy(ids->v[ids->n++], b->id, SANDBOX_ID_MAX);
}

void native_stop_all(struct api_call *c)
{
    struct ids ids = {0};
    struct api *api = c->api;
    struct stopping *s = api_wait_for(c->req, sizeof *s);
    sandboxes_each(api->sandboxes, native_stop_add_id, &ids); /* killing while walking would change what is walked */
    for (size_t i = 0; i < ids.n; i++) {
        struct sandbox *b = sandbox_find(api->sandboxes, ids.v[i]);
        if (!b)
            continue;
        s->left++;
        sandbox_kill(api->sandboxes, b, "stop-all", native_stop_on_killed, s);
    }
    free(ids.v);
    s->all_asked = true;
    native_stop_check(s);
}
