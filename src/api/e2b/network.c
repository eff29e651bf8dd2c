/* network.c - shows and replaces the network document of a sandbox in E2B's form. */
#include <errno.h>
#include <string.h>

#include "api/e2b/e2b.h"
#include "api/reply.h"
#include "base/cleanup.h"
#include "base/fields.h"
#include "base/json.h"
#include "base/mem.h"
#include "http/body.h"
#include "network/networks.h"

void e2b_add_network(struct json *j, const struct sandbox *b)
{
    static const char *const fields[] = {"allowOut", "denyOut", "rules", "egressProxy"};
    json_t *e2b = b->net && b->net->doc.e2b ? json_loads(b->net->doc.e2b, 0, NULL) : NULL;
    json_obj(j, "network");
    for (size_t i = 0; i < ARRAY_LEN(fields); i++) {
        const json_t *v = json_object_get(e2b, fields[i]);
        if (v)
            reply_add(j, fields[i], v);
    }
    json_str(j, "refusals", b->net && b->net->doc.closed ? "closed" : "readable");
    json_bool(j, "allowPublicTraffic", b->desc.allow_public_traffic);
    if (b->desc.mask_host[0])
        json_str(j, "maskRequestHost", b->desc.mask_host);
    if (b->desc.nhttps_ports) {
        json_arr(j, "httpsPorts");
        for (size_t i = 0; i < b->desc.nhttps_ports; i++)
            json_u64(j, NULL, b->desc.https_ports[i]);
        json_end_arr(j);
    }
    json_end_obj(j);
    json_decref(e2b);
}

static void e2b_network_on_changed(void *arg, unsigned status, const char *text)
{
    struct http_req *r = api_wait_over(arg);
    if (!r)
        return;
    if (status)
        reply_error(r, status, "%s", text);
    else
        reply_empty(r, 204);
}

/* Refuse unknown fields: a misspelled rule that is ignored would leave the network more open than intended. */
static int e2b_network_check_names(json_t *o, struct err *err)
{
    static const char *const known[] = {"allowOut", "denyOut", "rules", "egressProxy", "allow_internet_access",
                                        "refusals"};
    const char *name;
    json_t *v;
    json_object_foreach(o, name, v)
    {
        size_t i = 0;
        while (i < ARRAY_LEN(known) && strcmp(known[i], name) != 0)
            i++;
        if (i == ARRAY_LEN(known))
            return err_set(err, ERR_USAGE, 0,
                           "field '%.64s' is not supported: this route takes allowOut, denyOut, rules, "
                           "egressProxy, allow_internet_access and refusals",
                           name);
    }
    return 0;
}

static void e2b_network_on_put_body(struct http_req *r, json_t *root, unsigned status, const char *error)
{
    struct api_call *c = api_call_of(r);
    _cleanup_net_doc_ struct net_doc doc = {0};
    struct err err = {0};
    json_t *tmp = NULL;
    bool internet = true;
    if (status) {
        reply_error(r, status, "%s", error);
        return;
    }
    json_t *o = fields_root(root, &tmp, &err);
    int have =
        o && e2b_network_check_names(o, &err) == 0 ? field_bool(o, "allow_internet_access", &internet, &err) : -1;
    struct sandbox *b = have < 0 ? NULL : api_sandbox_of(c);
    if (have >= 0 && !b) {
        json_decref(tmp);
        return;
    }
    if (have < 0 || net_doc_e2b(o, have ? internet : -1, b->net ? &b->net->doc : NULL, &doc, &err) < 0) {
        reply_error(r, err.eno == EAGAIN ? 503 : 400, "%s", err.msg);
        json_decref(tmp);
        return;
    }
    json_decref(tmp);
    b->desc.allow_internet = internet;
    net_set(c->api->network, b, &doc, NET_WHOLE, 0, e2b_network_on_changed, api_wait_for(r, sizeof(struct api_wait)));
}
void e2b_network_put(struct api_call *c) { body_json(c->req, 0, e2b_network_on_put_body); }
