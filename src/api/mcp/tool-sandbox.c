/* tool-sandbox.c - makes, lists and ends sandboxes; opens a port; asks a person for a way out. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/create.h"
#include "api/mcp/mcp.h"
#include "api/port-link.h"
#include "api/reply.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/sha256.h"
#include "network/networks.h"

enum { LIFE_S = 3600, LINK_S = 3600, LISTED_MAX = 200 };

static void mcp_add_sandbox(struct json *j, const struct sandbox *b)
{
    char when[REPLY_TIME_MAX];
    reply_time(sandbox_end_unix_ms(b), when);
    json_str(j, "sandbox", b->id);
    json_str(j, "state", b->state == SANDBOX_RUNNING ? "running" : "paused");
    json_str(j, "ends_at", when);
}

/* --- create --------------------------------------------------------------------------------------------------------- */

static void mcp_create_on_created(void *arg, struct sandbox *b, const struct sandbox_failure *failure)
{
    struct mcp_call *k = arg;
    if (!b) {
        mcp_fail(k, "no sandbox was made: %s", failure->text);
        return;
    }
    struct json *j = mcp_data(k);
    mcp_add_sandbox(j, b);
    json_str(j, "template", b->desc.template);
    json_str(j, "tier", b->desc.tier);
    mcp_done(k, NULL);
}

static bool mcp_template_is_there(const struct mcp_call *k, const char *name, bool usable)
{
    const struct template_tag *tag = NULL;
    struct template_info info = {0};
    if (k->api->domain->templates.find(k->api->templates, k->who.tenant, name, &tag) && tag)
        return true;
    return k->api->domain->templates.find_directory(k->api->templates, name, &info) &&
           (!usable || strcmp(info.state, "ready") == 0);
}

static int mcp_create_read(struct mcp_call *k, struct api_create *what, struct err *err)
{
    struct sandbox_desc *d = &what->spec.desc;
    const char *template = mcp_arg(k, "template"), *network = mcp_arg(k, "network");
    uint32_t node = k->api->config->max_timeout_s, tenant = k->who.tenant->quota.max_timeout_s;
    uint32_t most = tenant && (!node || tenant < node) ? tenant : node;
    int64_t life = mcp_arg_int(k, "timeout_s", most && most < LIFE_S ? most : LIFE_S);
    if (most && life > most)
        return err_set(err, ERR_USAGE, 0, "'timeout_s' must be at most %u here", most);
    /* Until base is built, and where it cannot be, there is this machine's root. */
    template = template ? template : mcp_template_is_there(k, "base", true) ? "base" : "host";
    if (!*template || strlen(template) >= sizeof d->template)
        return err_set(err, ERR_USAGE, 0, "'template' must be the name of a template, e.g. \"base\"");
    memcpy(d->template, template, strlen(template) + 1);
    d->secure = true;
    d->timeout_s = (uint32_t)life;
    d->history = mcp_arg_bool(k, "history");
    if (network && strcmp(network, "public") != 0 && strcmp(network, "off") != 0)
        return err_set(err, ERR_USAGE, 0, "'network' must be \"off\" or \"public\"");
    d->allow_internet = network && strcmp(network, "public") == 0;
    if (d->allow_internet && !k->api->domain->sandboxes.have_network(k->api->network))
        return err_set(err, ERR_USAGE, 0, "'network' must be \"off\": this node has no network");
    json_t *word = json_string(network ? network : "off"), *doc = net_doc_standard(word, NET_NATIVE);
    int rc = api_read_env(k->args, "env", &d->env, err) < 0 ? -1 : net_doc_read(doc, &what->net, err);
    what->spec.net = !network && k->api->default_net ? k->api->default_net : &what->net;
    json_decref(doc);
    json_decref(word);
    return rc;
}

void mcp_create_sandbox(struct mcp_call *k)
{
    struct api_create what = {0};
    struct err err;
    if (mcp_create_read(k, &what, &err) < 0)
        mcp_fail(k, "create_sandbox: %s", err.msg);
    else if (!mcp_template_is_there(k, what.spec.desc.template, false))
        mcp_fail(k, "create_sandbox: there is no template '%.64s'", what.spec.desc.template);
    else
        k->api->domain->sandboxes.create(k->api->sandboxes, &k->who, &what.spec, mcp_create_on_created, k);
    api_create_done(&what);
}

/* --- list and kill -------------------------------------------------------------------------------------------------- */

struct listing {
    struct mcp_call *k;
    size_t n;
};

static void mcp_list_add_sandbox(void *arg, struct sandbox *b)
{
    struct listing *l = arg;
    if (b->tenant != l->k->who.tenant || b->desc.hidden || !sandbox_is_there(b) || l->n++ >= LISTED_MAX)
        return;
    json_obj(&l->k->j, NULL);
    mcp_add_sandbox(&l->k->j, b);
    json_end_obj(&l->k->j);
}

void mcp_list_sandboxes(struct mcp_call *k)
{
    struct listing l = {.k = k};
    struct json *j = mcp_data(k);
    json_arr(j, "sandboxes");
    k->api->domain->sandboxes.each(k->api->sandboxes, mcp_list_add_sandbox, &l);
    json_end_arr(j);
    json_u64(j, "total", l.n);
    mcp_done(k, NULL);
}

static void mcp_kill_on_killed(void *arg, bool ok)
{
    struct mcp_call *k = arg;
    if (!ok) {
        mcp_fail(k, "kill_sandbox: the sandbox could not be ended; try again");
        return;
    }
    json_str(mcp_data(k), "killed", mcp_arg(k, "sandbox"));
    mcp_done(k, NULL);
}

void mcp_kill_sandbox(struct mcp_call *k)
{
    struct sandbox *b = mcp_sandbox(k);
    if (b)
        sandbox_kill(k->api->sandboxes, b, "request", mcp_kill_on_killed, k);
}

/* --- port ----------------------------------------------------------------------------------------------------------- */

void mcp_expose_port(struct mcp_call *k)
{
    struct sandbox *b = mcp_sandbox(k);
    uint32_t port = (uint32_t)mcp_arg_int(k, "port", 0);
    uint64_t expires = clock_unix_ms() / 1000 + (uint64_t)mcp_arg_int(k, "expires_s", LINK_S);
    _cleanup_buf_ struct buf url = {0};
    char when[REPLY_TIME_MAX];
    if (!b)
        return;
    if (port == API_ENVD_PORT) {
        mcp_fail(k, "expose_port: %d is the sandbox's own agent; name another port", API_ENVD_PORT);
        return;
    }
    port_link_url(k->api, b->id, port, &url);
    buf_adds(&url, "/?" PORT_LINK_PARAM "=");
    port_link_make(k->api, b, port, expires, &url);
    reply_time(expires * 1000, when);
    json_str(mcp_data(k), "url", buf_str(&url));
    json_str(mcp_data(k), "expires_at", when);
    mcp_done(k, NULL);
}

/* --- grant ---------------------------------------------------------------------------------------------------------- */

static void mcp_grant_on_set(void *arg, unsigned status, const char *text)
{
    struct mcp_call *k = arg;
    if (status) {
        mcp_fail(k, "request_grant: %s", text);
        return;
    }
    struct json *j = mcp_data(k);
    bool granted = k->confirmed;
    json_str(j, "host", mcp_arg(k, "host"));
    json_i64(j, "port", mcp_arg_int(k, "port", 443));
    json_str(j, "state", granted ? "granted" : "asked");
    json_str(j, "next",
             granted
                 ? "repeat the request from inside the sandbox"
                 : "repeat the request from inside the sandbox: it waits until a person decides (hutch approvals ls)");
    mcp_done(k, NULL);
}

/* Adds a rule: one that a person confirmed opens the host, any other asks about each request and opens nothing by itself. */
static void mcp_grant_set(struct mcp_call *k, struct sandbox *b, bool granted)
{
    _cleanup_net_doc_ struct net_doc doc = {0};
    struct err err;
    char digest[72];
    const char *host = mcp_arg(k, "host");
    sha256_hex(host, strlen(host), digest);
    /* Of the whole host: the beginnings of two long names may be the same. */
    _cleanup_free_ char *id = xasprintf("mcp-%.16s-%lld", digest, (long long)mcp_arg_int(k, "port", 443));
    json_t *patch = json_pack("{s:[{s:s,s:[s],s:[I],s:s}]}", "add", "id", id, "hosts", host, "ports",
                              (json_int_t)mcp_arg_int(k, "port", 443), "approval", "ask");
    if (!patch) {
        mcp_fail(k, "request_grant: argument 'host' must be the name of a host, as text in UTF-8");
        return;
    }
    k->confirmed = granted;
    if (granted)
        (void)json_object_del(json_array_get(json_object_get(patch, "add"), 0), "approval");
    int rc = net_doc_patch(b->net->doc.document, b->net->doc.e2b, b->net->doc.proxy_password, patch, &doc, &err);
    json_decref(patch);
    if (rc < 0)
        mcp_fail(k, "request_grant: %s", err.msg);
    else
        net_set(k->api->network, b, &doc, NET_PART, 0, mcp_grant_on_set, k);
}

static void mcp_grant_on_told(struct mcp_call *k, json_t *result)
{
    const char *action = json_string_value(json_object_get(result, "action"));
    struct sandbox *b = action && strcmp(action, "accept") == 0 ? mcp_sandbox(k) : NULL;
    if (b)
        mcp_grant_set(k, b, true);
    else if (!action || strcmp(action, "accept") != 0)
        mcp_fail(k, "request_grant: the person %s; do without this host", action ? "refused" : "did not answer");
}

void mcp_request_grant(struct mcp_call *k)
{
    struct sandbox *b = mcp_sandbox(k);
    if (!b)
        return;
    if (!nets_on(k->api->network) || !b->net) {
        mcp_fail(k, "request_grant: this node has no network");
    } else if (mcp_can(k, "elicitation")) {
        _cleanup_free_ char *text =
            xasprintf("Sandbox %s asks for a way to %.253s, port %lld, until it ends. Allow it?", b->id,
                      mcp_arg(k, "host"), (long long)mcp_arg_int(k, "port", 443));
        mcp_confirm(k, text, mcp_grant_on_told);
    } else {
        mcp_grant_set(k, b, false);
    }
}
