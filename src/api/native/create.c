/* native-create.c - creates a sandbox through Hutch's own API: without network and public traffic unless the body
 * asks. */
#include <errno.h>
#include <string.h>

#include "api/create.h"
#include "api/native/native.h"
#include "api/reply.h"
#include "base/cleanup.h"
#include "base/fields.h"
#include "base/json.h"
#include "http/body.h"
#include "network/networks.h"

enum { STANDARD_TIMEOUT_S = 300 };

static int native_create_read_life(json_t *root, struct api_create *ret, struct err *err)
{
    struct sandbox_desc *d = &ret->spec.desc;
    return native_read_life(root, &d->life, err) < 0 || api_read_history(root, d, err) < 0 ||
                   api_read_mounts(root, "volumes", ret, err) < 0 || api_read_host_dirs(root, "hostDirs", ret, err) < 0
               ? -1
               : 0;
}

static int native_create_read_body(struct api_call *c, json_t *root, struct api_create *ret, struct err *err)
{
    const char *template = "base";
    json_t *network = json_object_get(root, "network"), *secrets = json_object_get(root, "secrets");
    int64_t standard = c->api->config->default_timeout_s ? c->api->config->default_timeout_s : STANDARD_TIMEOUT_S;
    struct sandbox_desc *d = &ret->spec.desc;
    d->secure = true;
    if (field_str(root, "template", &template, err) < 0 ||
        api_read_timeout(root, standard, api_longest_life(c), &d->timeout_s, err) < 0 ||
        field_bool(root, "publicTraffic", &d->allow_public_traffic, err) < 0 ||
        native_read_ports(root, &d->ports, err) < 0 || api_read_metadata(root, &d->metadata, err) < 0 ||
        api_read_env(root, "env", &d->env, err) < 0 || native_create_read_life(root, ret, err) < 0)
        return -1;
    if (!*template || strlen(template) >= sizeof d->template)
        return err_set(err, ERR_USAGE, 0, "field 'template' must be the name of a template, e.g. \"base\"");
    memcpy(d->template, template, strlen(template) + 1);
    network = json_is_null(network) ? NULL : network;
    secrets = json_is_null(secrets) ? NULL : secrets;
    ret->net_given = network || json_array_size(secrets);
    if (native_read_network(c, network, secrets, &ret->net, err) < 0)
        return err_wrap(err, "network");
    ret->spec.net = &ret->net;
    d->allow_internet = ret->net_given && !(json_is_string(network) && strcmp(json_string_value(network), "off") == 0);
    return 0;
}

static void native_create_on_body(struct http_req *r, json_t *root, unsigned status, const char *error)
{
    static const char *const known[] = {"template",  "timeout", "metadata", "env",       "publicTraffic", "publicPorts",
                                        "portHosts", "network", "secrets",  "onTimeout", "autoResume",    "idleTimeout",
                                        "volumes",   "history", "hostDirs", NULL};
    struct api_call *c = api_call_of(r);
    struct api_create what = {0};
    struct err err;
    if (status) {
        reply_error(r, status, "%s", error);
        return;
    }
    json_t *tmp = NULL, *o = fields_root(root, &tmp, &err);
    int rc =
        o && fields_check_known(o, "this route", known, &err) == 0 ? native_create_read_body(c, o, &what, &err) : -1;
    json_decref(tmp);
    if (rc < 0) {
        reply_error(r, err.eno == EAGAIN ? 503 : 400, "%s", err.msg);
        api_create_done(&what);
        return;
    }
    api_create_sandbox(c, &what, api_answer_created);
}
void native_create(struct api_call *c) { body_json(c->req, 0, native_create_on_body); }
