/* native-network.c - shows and changes the network document of a sandbox, and asks egress what it counted. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "api/native/native.h"
#include "api/reply.h"
#include "base/cleanup.h"
#include "base/fields.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/num.h"
#include "http/body.h"
#include "http/url.h"
#include "network/networks.h"
#include "network/secrets.h"

/* --- documents ---------------------------------------------------------------------------------------------------- */

static int native_network_add_secret_rules(struct api_call *c, json_t *names, json_t *patch, struct err *err)
{
    json_t *rules = json_object_get(patch, "add");
    for (size_t i = 0; i < json_array_size(names); i++) {
        const char *name = json_string_value(json_array_get(names, i));
        const struct sealed_secret *s =
            name ? c->api->domain->secrets.find(c->api->network, c->who.tenant->id, name) : NULL;
        if (!s)
            return err_set(err, ERR_USAGE, 0, "secrets[%zu]: there is no secret '%.64s'", i, name ? name : "?");
        json_t *list = sealed_rules(s);
        size_t n = json_array_size(list);
        (void)json_array_extend(rules, list);
        json_decref(list);
        if (n == 0)
            return err_set(err, ERR_USAGE, 0, "secrets[%zu]: '%s' is bound to no host; set it with a spec", i, s->name);
    }
    return 0;
}

int native_read_network(struct api_call *c, json_t *value, json_t *secrets, struct net_doc *ret, struct err *err)
{
    if (secrets && !json_is_array(secrets))
        return err_set(err, ERR_USAGE, 0, "field 'secrets' must be a list of names");
    if (value && !json_is_object(value) && !json_is_string(value))
        return err_set(err, ERR_USAGE, 0, "a network is an object, or the word \"public\" or \"off\"");
    json_t *off = json_string("off"), *doc = net_doc_standard(value ? value : off, NET_NATIVE);
    int rc;
    if (!json_array_size(secrets)) {
        rc = net_doc_read(doc, ret, err);
    } else {
        /* Each secret adds rules that allow the hosts it is bound to. */
        char *text = json_dumps(doc, JSON_COMPACT | JSON_ENCODE_ANY);
        json_t *patch = json_pack("{s:[]}", "add");
        rc = native_network_add_secret_rules(c, secrets, patch, err);
        if (rc == 0)
            rc = net_doc_patch(text ? text : "\"off\"", NULL, NULL, patch, ret, err);
        json_decref(patch);
        free(text);
    }
    json_decref(doc);
    json_decref(off);
    return rc;
}

/* --- showing ------------------------------------------------------------------------------------------------------ */

static void native_network_add(struct json *j, const struct api *api, const struct sandbox *b)
{
    const struct sandbox_net *n = b->net;
    json_obj(j, NULL);
    json_str(j, "sandbox", b->id);
    json_u64(j, "epoch", n->epoch);
    json_bool(j, "enforced", nets_on(api->network)); /* false: this node has no network at all */
    json_str(j, "refusals", n->doc.closed ? "closed" : "readable");
    reply_add_text(j, "policy", n->doc.document);
    reply_add_text(j, "effective", n->doc.effective);
    if (n->doc.e2b)
        reply_add_text(j, "e2b", n->doc.e2b);
    json_obj(j, "placeholders");
    for (size_t i = 0; i + 1 < n->placeholders.n; i += 2)
        json_str(j, n->placeholders.v[i], n->placeholders.v[i + 1]);
    json_end_obj(j);
    if (n->usage) {
        json_obj(j, "usage");
        static const char *const counters[] = {"requests", "denied", "bytes_up", "bytes_down", "connections"};
        for (size_t i = 0; i < ARRAY_LEN(counters); i++)
            json_i64(j, counters[i], json_integer_value(json_object_get(n->usage, counters[i])));
        json_end_obj(j);
    }
    json_end_obj(j);
}

static void native_network_reply(struct http_req *r, const struct api *api, const struct sandbox *b)
{
    _cleanup_buf_ struct buf out = {0};
    struct json j;
    json_start(&j, &out);
    native_network_add(&j, api, b);
    reply_json(r, 200, &out);
}

void native_network(struct api_call *c)
{
    const struct sandbox *b = api_sandbox_of(c);
    if (b)
        native_network_reply(c->req, c->api, b);
}

/* --- changing ----------------------------------------------------------------------------------------------------- */

struct waiting {
    struct api_wait wait;
    char id[SANDBOX_ID_MAX];
    bool pick; /* answer with the part about this sandbox only */
};

static struct waiting *native_network_wait_new(struct http_req *r, const struct sandbox *b)
{
    struct waiting *w = api_wait_for(r, sizeof *w);
    if (b)
        memcpy(w->id, b->id, sizeof w->id);
    return w;
}

static void native_network_on_changed(void *arg, unsigned status, const char *text)
{
    struct waiting w = *(struct waiting *)arg;
    struct http_req *r = api_wait_over(arg);
    if (!r)
        return;
    struct api_call *c = api_call_of(r);
    const struct sandbox *b = sandbox_of(c->api->sandboxes, &c->who, w.id);
    if (status)
        reply_error(r, status, "%s", text);
    else if (!b)
        api_no_sandbox(c);
    else
        native_network_reply(r, c->api, b);
}

static int native_network_read_expected(json_t *root, uint64_t *ret, struct err *err)
{
    int64_t v = 0;
    int have = field_int(root, "expected_epoch", 1, INT64_MAX, &v, err);
    *ret = (uint64_t)v;
    return have < 0 ? -1 : 0;
}

/* The body is the document, or {"policy": document, "secrets": [...], "expected_epoch": N}. */
static int native_network_read_put(struct api_call *c, json_t *root, struct net_doc *doc, uint64_t *expected,
                                   struct err *err)
{
    static const char *const known[] = {"policy", "secrets", "expected_epoch", NULL};
    *expected = 0;
    json_t *policy = json_object_get(root, "policy");
    if (!policy)
        return net_doc_read(root, doc, err);
    if (fields_check_known(root, "this route", known, err) < 0 || native_network_read_expected(root, expected, err) < 0)
        return -1;
    return native_read_network(c, policy, json_object_get(root, "secrets"), doc, err);
}

static void native_network_on_put_body(struct http_req *r, json_t *root, unsigned status, const char *error)
{
    struct api_call *c = api_call_of(r);
    _cleanup_net_doc_ struct net_doc doc = {0};
    uint64_t expected;
    struct err err;
    if (status) {
        reply_error(r, status, "%s", error);
        return;
    }
    if (native_network_read_put(c, root, &doc, &expected, &err) < 0) {
        reply_error(r, err.eno == EAGAIN ? 503 : 400, "%s", err.msg);
        return;
    }
    struct sandbox *b = api_sandbox_of(c);
    if (b)
        net_set(c->api->network, b, &doc, NET_WHOLE, expected, native_network_on_changed,
                native_network_wait_new(r, b));
}
void native_network_put(struct api_call *c) { body_json(c->req, 0, native_network_on_put_body); }

static void native_network_on_patch_body(struct http_req *r, json_t *root, unsigned status, const char *error)
{
    struct api_call *c = api_call_of(r);
    _cleanup_net_doc_ struct net_doc doc = {0};
    uint64_t expected = 0;
    struct err err;
    if (status || !json_is_object(root)) {
        reply_error(r, status ? status : 400, "%s",
                    status ? error : "the body must be an object with add, remove or set");
        return;
    }
    struct sandbox *b = api_sandbox_of(c);
    if (!b)
        return;
    if (native_network_read_expected(root, &expected, &err) < 0) {
        reply_error(r, 400, "%s", err.msg);
        return;
    }
    json_t *patch = json_copy(root);
    (void)json_object_del(patch, "expected_epoch");
    int rc = net_doc_patch(b->net->doc.document, b->net->doc.e2b, b->net->doc.proxy_password, patch, &doc, &err);
    json_decref(patch);
    if (rc < 0)
        reply_error(r, err.eno == EAGAIN ? 503 : 400, "%s", err.msg);
    else
        net_set(c->api->network, b, &doc, NET_PART, expected, native_network_on_changed, native_network_wait_new(r, b));
}
void native_network_patch(struct api_call *c) { body_json(c->req, 0, native_network_on_patch_body); }

/* --- what egress knows -------------------------------------------------------------------------------------------- */

/* The part about one sandbox; NULL if egress has counted nothing for it yet. */
static const json_t *native_network_part_of(const json_t *answer, const char *id)
{
    const json_t *list = json_object_get(answer, "sandboxes");
    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *name = json_string_value(json_object_get(json_array_get(list, i), "sandbox"));
        if (name && strcmp(name, id) == 0)
            return json_array_get(list, i);
    }
    return NULL;
}

static void native_network_on_answer(void *arg, json_t *answer, const char *error)
{
    struct waiting w = *(struct waiting *)arg;
    struct http_req *r = api_wait_over(arg);
    if (!r)
        return;
    if (error) {
        reply_refuse(r, 503, NULL, 1, error);
        return;
    }
    const char *wrong = json_string_value(json_object_get(answer, "wrong")); /* egress refused the question */
    if (wrong) {
        reply_error(r, 400, "%s", wrong);
        return;
    }
    _cleanup_buf_ struct buf out = {0};
    struct json j;
    json_start(&j, &out);
    if (w.pick) {
        json_t *none = json_pack("{s:s, s:[]}", "sandbox", w.id, "hosts");
        const json_t *part = native_network_part_of(answer, w.id);
        reply_add(&j, NULL, part ? part : none);
        json_decref(none);
    } else {
        json_t *copy = json_copy(answer);
        (void)json_object_del(copy, "type");
        (void)json_object_del(copy, "request");
        reply_add(&j, NULL, copy);
        json_decref(copy);
    }
    reply_json(r, 200, &out);
}

static void native_network_ask_egress(struct api_call *c, struct sandbox *b, json_t *message, bool pick)
{
    struct waiting *w = native_network_wait_new(c->req, b);
    w->pick = pick;
    net_ask(c->api->network, b, message, native_network_on_answer, w);
}

void native_network_denials(struct api_call *c)
{
    _cleanup_buf_ struct buf text = {0};
    uint64_t since = 0;
    struct err err;
    if (url_query_get(c->req->query, "since", URL_PLUS_SPACE, &text, &err) > 0 &&
        (!num_u64(buf_str(&text), &since) || since > INT64_MAX)) {
        reply_error(c->req, 400, "query parameter 'since' must be the number 'next' of an earlier answer");
        return;
    }
    struct sandbox *b = api_sandbox_of(c);
    if (b)
        native_network_ask_egress(c, b, json_pack("{s:s, s:I}", "type", "denials", "since", (json_int_t)since), false);
}

void native_network_stats(struct api_call *c)
{
    struct sandbox *b = api_sandbox_of(c);
    if (b)
        native_network_ask_egress(c, b, json_pack("{s:s}", "type", "stats"), true);
}

void native_network_usage(struct api_call *c)
{
    native_network_ask_egress(c, NULL, json_pack("{s:s, s:s}", "type", "tenant", "tenant", c->who.tenant->id), false);
}

void native_network_learned(struct api_call *c)
{
    struct sandbox *b = api_sandbox_of(c);
    if (b)
        native_network_ask_egress(c, b, json_pack("{s:s}", "type", "learned"), false);
}

static void native_network_on_check_body(struct http_req *r, json_t *root, unsigned status, const char *error)
{
    struct api_call *c = api_call_of(r);
    const char *url = NULL, *method = "GET";
    struct err err;
    struct sandbox *b = api_sandbox_of(c);
    if (!b)
        return;
    if (status || !json_is_object(root)) {
        reply_error(r, status ? status : 400, "%s", status ? error : "the body must be an object with 'url'");
        return;
    }
    if (field_str(root, "url", &url, &err) < 0 || field_str(root, "method", &method, &err) < 0) {
        reply_error(r, 400, "%s", err.msg);
        return;
    }
    if (!url) {
        reply_error(r, 400, "field 'url' is required, such as https://example.com/path");
        return;
    }
    native_network_ask_egress(c, b, json_pack("{s:s, s:s, s:s}", "type", "check", "url", url, "method", method), false);
}
void native_network_check(struct api_call *c) { body_json(c->req, 0, native_network_on_check_body); }
