/* create.c - reads and checks the body of a create and starts the sandbox. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "api/e2b/e2b.h"
#include "api/reply.h"
#include "base/cleanup.h"
#include "base/fields.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/path.h"
#include "base/text.h"
#include "http/body.h"
#include "network/networks.h"
#include "snapshots/snapshots.h"
#include "volumes/volumes.h"

/* How a create treats a field. */
enum kind {
    KNOWN,       /* read below */
    UNSUPPORTED, /* refused unless its value asks for nothing (null, false, empty) */
};
static const struct {
    const char *name;
    enum kind kind;
} fields[] =
    {
        {"templateID", KNOWN},   {"timeout", KNOWN},   {"metadata", KNOWN},
        {"envVars", KNOWN},      {"secure", KNOWN},    {"allow_internet_access", KNOWN},
        {"network", KNOWN},      {"autoPause", KNOWN}, {"autoPauseMemory", KNOWN},
        {"autoResume", KNOWN},   {"iam", UNSUPPORTED}, {"mcp", KNOWN},
        {"volumeMounts", KNOWN},
},
  network_fields[] = {
      {"allowPublicTraffic", KNOWN}, {"maskRequestHost", KNOWN}, {"httpsPorts", KNOWN},
      {"allowOut", KNOWN},           {"denyOut", KNOWN},         {"rules", KNOWN},
      {"egressProxy", KNOWN},        {"refusals", KNOWN},
};

static bool e2b_create_field_is_empty(const json_t *v)
{
    return !v || json_is_null(v) || json_is_false(v) || (json_is_array(v) && json_array_size(v) == 0) ||
           (json_is_object(v) && json_object_size(v) == 0);
}

static int e2b_create_err_unsupported(const char *name, struct err *err)
{
    return err_set(err, ERR_USAGE, 0, "field '%s' is not supported by this node", name);
}

/* Checks the names of all members: refuses unsupported ones with a value, collects unknown ones in `ignored`. */
static int e2b_create_check_names(json_t *o, bool network, struct strv *ignored, struct err *err)
{
    const char *name;
    json_t *v;
    size_t n = network ? ARRAY_LEN(network_fields) : ARRAY_LEN(fields);
    json_object_foreach(o, name, v)
    {
        size_t i = 0;
        while (i < n && strcmp(name, network ? network_fields[i].name : fields[i].name) != 0)
            i++;
        _cleanup_free_ char *full = network ? xasprintf("network.%s", name) : xstrdup(name);
        if (i == n)
            strv_add(ignored, full);
        else if ((network ? network_fields[i].kind : fields[i].kind) == UNSUPPORTED && !e2b_create_field_is_empty(v))
            return e2b_create_err_unsupported(full, err);
    }
    return 0;
}

static int e2b_create_read_https_ports(json_t *net, struct api_create *ret, struct err *err)
{
    json_t *ports;
    int have = field_arr(net, "httpsPorts", &ports, err);
    if (have <= 0)
        return have < 0 ? err_wrap(err, "network") : 0;
    if (json_array_size(ports) > ARRAY_LEN(ret->spec.desc.https_ports))
        return err_set(err, ERR_USAGE, 0, "field 'network.httpsPorts' has %zu entries; at most %zu are allowed",
                       json_array_size(ports), ARRAY_LEN(ret->spec.desc.https_ports));
    for (size_t i = 0; i < json_array_size(ports); i++) {
        const json_t *p = json_array_get(ports, i);
        if (!json_is_integer(p) || json_integer_value(p) < 1 || json_integer_value(p) > 65535)
            return err_set(err, ERR_USAGE, 0, "field 'network.httpsPorts[%zu]' must be a port from 1 to 65535", i);
        ret->spec.desc.https_ports[i] = (uint32_t)json_integer_value(p);
    }
    ret->spec.desc.nhttps_ports = json_array_size(ports);
    return 0;
}

static int e2b_create_read_mask_host(json_t *net, struct api_create *ret, struct err *err)
{
    const char *mask = NULL;
    int have = field_str(net, "maskRequestHost", &mask, err);
    if (have <= 0)
        return have < 0 ? err_wrap(err, "network") : 0;
    size_t n = strlen(mask);
    if (n >= sizeof ret->spec.desc.mask_host)
        return err_set(err, ERR_USAGE, 0, "field 'network.maskRequestHost' has %zu bytes; at most %zu are allowed", n,
                       sizeof ret->spec.desc.mask_host - 1);
    for (size_t i = 0; i < n; i++)
        if (mask[i] <= ' ' || mask[i] > '~' || strchr("/\\@\"<>,;", mask[i]))
            return err_set(
                err, ERR_USAGE, 0,
                "field 'network.maskRequestHost' must be a host with an optional port, e.g. localhost:${PORT}");
    memcpy(ret->spec.desc.mask_host, mask, n + 1);
    return 0;
}

/* What the sandbox may connect to: everything public unless the body restricts it. */
static int e2b_create_read_egress(json_t *root, json_t *net, struct api_create *ret, struct err *err)
{
    static const char *const ways[] = {"allowOut", "denyOut", "rules", "egressProxy"};
    int have = field_bool(root, "allow_internet_access", &ret->spec.desc.allow_internet, err);
    if (have < 0)
        return -1;
    ret->net_given = have > 0;
    for (size_t i = 0; net && i < ARRAY_LEN(ways); i++)
        ret->net_given |= !e2b_create_field_is_empty(json_object_get(net, ways[i]));
    if (net_doc_e2b(net, have ? ret->spec.desc.allow_internet : -1, NULL, &ret->net, err) < 0)
        return -1;
    ret->spec.net = &ret->net;
    ret->dialect = NET_E2B;
    ret->refusals_given = net && !e2b_create_field_is_empty(json_object_get(net, "refusals"));
    return 0;
}

static int e2b_create_read_network(json_t *root, struct api_create *ret, struct err *err)
{
    json_t *net = NULL;
    int have = field_obj(root, "network", &net, err);
    if (have < 0 || (have && e2b_create_check_names(net, true, &ret->ignored, err) < 0))
        return -1;
    if (e2b_create_read_egress(root, net, ret, err) < 0)
        return -1;
    if (!have)
        return 0;
    if (field_bool(net, "allowPublicTraffic", &ret->spec.desc.allow_public_traffic, err) < 0)
        return err_wrap(err, "network");
    if (e2b_create_read_mask_host(net, ret, err) < 0)
        return -1;
    return e2b_create_read_https_ports(net, ret, err);
}

int e2b_read_life(json_t *root, struct sandbox_life *life, struct err *err)
{
    bool memory = !life->auto_pause_files;
    json_t *resume = NULL;
    if (field_bool(root, "autoPause", &life->auto_pause, err) < 0 ||
        field_bool(root, "autoPauseMemory", &memory, err) < 0 || field_obj(root, "autoResume", &resume, err) < 0)
        return -1;
    if (resume && field_bool(resume, "enabled", &life->auto_resume, err) < 0)
        return err_wrap(err, "autoResume");
    if (!memory && !life->auto_pause)
        return err_set(err, ERR_USAGE, 0, "field 'autoPauseMemory' must not be false without 'autoPause'");
    if (!memory && life->auto_resume)
        return err_set(err, ERR_USAGE, 0,
                       "field 'autoPauseMemory' must not be false together with 'autoResume': a sandbox that traffic "
                       "wakes must still run its server");
    life->auto_pause_files = !memory;
    return 0;
}

/* Only checks the type: the client itself runs `mcp-gateway` inside the sandbox, with its own token, and a gateway
 * started by the node would occupy its port. */
static int e2b_create_check_mcp(json_t *root, struct err *err)
{
    json_t *servers = NULL;
    return field_obj(root, "mcp", &servers, err) < 0 ? -1 : 0;
}

static int e2b_create_read_life(json_t *root, struct api_create *ret, struct err *err)
{
    if (e2b_read_life(root, &ret->spec.desc.life, err) < 0)
        return -1;
    return api_read_mounts(root, "volumeMounts", ret, err);
}

int e2b_create_parse(json_t *root, bool v2, uint32_t max_timeout, struct api_create *ret, struct err *err)
{
    const char *template = NULL;
    struct sandbox_desc *d = &ret->spec.desc;
    bool secure = v2;
    memset(ret, 0, sizeof *ret);
    ret->spec.desc.allow_public_traffic = true;
    ret->spec.desc.allow_internet = true;
    if (!json_is_object(root))
        return err_set(err, ERR_USAGE, 0, "the body must be an object with at least 'templateID'");
    if (e2b_create_check_names(root, false, &ret->ignored, err) < 0)
        return -1;
    int have = field_str(root, "templateID", &template, err);
    if (have < 0)
        return -1;
    if (have == 0 || !*template)
        return err_set(err, ERR_USAGE, 0, "field 'templateID' is required: the name of a template, e.g. \"base\"");
    if (strlen(template) >= sizeof d->template)
        return err_set(err, ERR_USAGE, 0, "field 'templateID' is longer than %zu bytes", sizeof d->template - 1);
    memcpy(d->template, template, strlen(template) + 1);
    if (api_read_timeout(root, v2 ? 300 : 15, max_timeout, &d->timeout_s, err) < 0 ||
        field_bool(root, "secure", &secure, err) < 0 || api_read_history(root, d, err) < 0 ||
        e2b_create_read_life(root, ret, err) < 0 || e2b_create_check_mcp(root, err) < 0 ||
        e2b_create_read_network(root, ret, err) < 0)
        return -1;
    if (v2 && !secure)
        strv_add(&ret->ignored, "secure");
    d->secure = v2 || secure;
    if (api_read_metadata(root, &d->metadata, err) < 0)
        return -1;
    return api_read_env(root, "envVars", &d->env, err);
}

static void e2b_create_from_body(struct http_req *r, json_t *root, unsigned status, const char *error, bool v2)
{
    struct api_call *c = api_call_of(r);
    struct api_create what;
    struct err err;
    if (status) {
        reply_error(r, status, "%s", error);
        return;
    }
    if (e2b_create_parse(root, v2, api_longest_life(c), &what, &err) < 0) {
        reply_error(r, err.eno == EAGAIN ? 503 : 400, "%s", err.msg);
        api_create_done(&what);
        return;
    }
    api_create_sandbox(c, &what, api_answer_created);
}

static void e2b_create_on_body_v1(struct http_req *r, json_t *root, unsigned status, const char *error)
{
    e2b_create_from_body(r, root, status, error, false);
}
static void e2b_create_on_body_v2(struct http_req *r, json_t *root, unsigned status, const char *error)
{
    e2b_create_from_body(r, root, status, error, true);
}

void e2b_create_v1(struct api_call *c) { body_json(c->req, 0, e2b_create_on_body_v1); }
void e2b_create_v2(struct api_call *c) { body_json(c->req, 0, e2b_create_on_body_v2); }
