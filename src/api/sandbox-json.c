/* sandbox-json.c - the JSON of a sandbox. */
#include "api/sandbox-json.h"

#include "base/json.h"
#include "network/networks.h"

void api_add_isolation(struct json *j, const struct sandbox *b)
{
    json_obj(j, "hutch");
    json_str(j, "tier", b->desc.tier);
    if (b->degraded[0])
        json_str(j, "degraded", b->degraded);
    if (sandbox_is_paused(b)) {
        json_bool(j, "memory", b->state != SANDBOX_STORED);
        json_u64(j, "bytes", b->state_bytes);
    }
    if (b->desc.parent[0])
        json_str(j, "parent", b->desc.parent);
    if (b->desc.life.idle_s)
        json_u64(j, "idleTimeout", b->desc.life.idle_s);
    json_str(j, "internet", !b->net || b->net->doc.nothing ? "off" : b->net->doc.open ? "public" : "rules");
    json_str(j, "ports", b->desc.allow_public_traffic ? "public" : "private");
    if (b->net)
        json_str(j, "refusals", b->net->doc.closed ? "closed" : "readable");
    json_end_obj(j);
}

void api_add_or_null(struct json *j, const char *key, const char *value)
{
    if (value && value[0])
        json_str(j, key, value);
    else
        json_none(j, key);
}

const char *api_template_alias(const struct api_call *c, const struct sandbox *b)
{
    const struct template *t = c->api->domain->templates.find(c->api->templates, b->tenant, b->desc.template, NULL);
    return t && t->name[0] ? t->name : b->desc.template;
}

void api_add_sandbox(struct json *j, const struct api_call *c, const struct sandbox *b)
{
    api_add_sandbox_as(j, NULL, c, b);
}

void api_add_sandbox_as(struct json *j, const char *key, const struct api_call *c, const struct sandbox *b)
{
    json_obj(j, key);
    json_str(j, "sandboxID", b->id);
    json_str(j, "templateID", b->desc.template);
    json_str(j, "alias", api_template_alias(c, b));
    json_str(j, "clientID", API_CLIENT_ID);
    json_str(j, "envdVersion", API_ENVD_VERSION);
    if (b->token[0])
        json_str(j, "envdAccessToken", b->token);
    api_add_or_null(j, "trafficAccessToken", b->traffic_token);
    api_add_or_null(j, "domain", c->api->config->domain);
    api_add_isolation(j, b);
    json_end_obj(j);
}
