/* native-approvals.c - lists and decides requests of sandboxes that need approval. */
#include <stdlib.h>
#include <string.h>

#include "api/native/native.h"
#include "api/reply.h"
#include "base/cleanup.h"
#include "base/fields.h"
#include "base/json.h"
#include "base/mem.h"
#include "http/body.h"
#include "network/networks.h"

/* In the order of enum approval_decision. */
static const char *const words[] = {"allow_once", "allow_minutes", "allow_sandbox", "deny"};

static void native_approval_add(void *arg, const struct approval *a)
{
    struct json *j = arg;
    char t[REPLY_TIME_MAX];
    const char *name;
    json_t *v;
    json_obj(j, NULL);
    json_str(j, "id", a->id);
    json_str(j, "sandbox", a->sandbox);
    reply_time(a->asked_unix_ms, t);
    json_str(j, "askedAt", t);
    json_object_foreach(a->request, name, v) reply_add(j, name, v);
    json_end_obj(j);
}

void native_approvals(struct api_call *c)
{
    _cleanup_buf_ struct buf out = {0};
    struct json j;
    json_start(&j, &out);
    json_obj(&j, NULL);
    json_arr(&j, "approvals");
    approvals_each(c->api->network, c->who.tenant->id, native_approval_add, &j);
    json_end_arr(&j);
    json_end_obj(&j);
    reply_json(c->req, 200, &out);
}

struct deciding {
    struct api_wait wait;
    size_t decision;
};

static void native_approval_on_decided(void *arg, unsigned status, const char *text)
{
    size_t decision = ((struct deciding *)arg)->decision;
    struct http_req *r = api_wait_over(arg);
    if (!r)
        return;
    if (status)
        reply_error(r, status, "%s", text);
    else {
        _cleanup_buf_ struct buf out = {0};
        struct json j;
        json_start(&j, &out);
        json_obj(&j, NULL);
        json_str(&j, "id", api_call_of(r)->param[0]);
        json_str(&j, "decision", words[decision]);
        json_end_obj(&j);
        reply_json(r, 200, &out);
    }
}

static void native_approval_on_body(struct http_req *r, json_t *root, unsigned status, const char *error)
{
    struct api_call *c = api_call_of(r);
    const char *word = NULL;
    int64_t minutes = 0;
    struct err err;
    size_t d = 0;
    if (status || !json_is_object(root)) {
        reply_error(r, status ? status : 400, "%s", status ? error : "the body must be an object with 'decision'");
        return;
    }
    if (field_str(root, "decision", &word, &err) < 0 ||
        field_int(root, "minutes", 1, NET_APPROVAL_MINUTES_MAX, &minutes, &err) < 0) {
        reply_error(r, 400, "%s", err.msg);
        return;
    }
    while (word && d < ARRAY_LEN(words) && strcmp(words[d], word) != 0)
        d++;
    if (!word || d == ARRAY_LEN(words))
        reply_error(r, 400, "field 'decision' must be allow_once, allow_minutes, allow_sandbox or deny");
    else if ((d == APPROVAL_MINUTES) != (minutes > 0))
        reply_error(r, 400, "field 'minutes' belongs to the decision allow_minutes, and only to it");
    else {
        struct deciding *w = api_wait_for(r, sizeof *w);
        w->decision = d;
        approval_decide(c->api->network, c->who.tenant->id, c->param[0], (enum approval_decision)d, (unsigned)minutes,
                        native_approval_on_decided, w);
    }
}
void native_approval_decide(struct api_call *c) { body_json(c->req, 0, native_approval_on_body); }
