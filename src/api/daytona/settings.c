/* settings.c - what a client changes in a sandbox that is there: automatic stops and pauses, labels, ports, network. */
#include <errno.h>
#include <string.h>

#include "api/daytona/daytona.h"
#include "api/reply.h"
#include "base/cleanup.h"
#include "base/num.h"
#include "network/networks.h"

enum { INTERVAL_MAX = 7 * 24 * 60, MINUTE_S = 60 };

void daytona_touch(struct api_call *c)
{
    struct sandbox *b = daytona_sandbox(c);
    if (!b)
        return;
    sandbox_in_use(c->api->sandboxes, b);
    sandbox_unused(c->api->sandboxes, b->id);
    reply_empty(c->req, 201);
}

/* --- automatic stops ------------------------------------------------------------------------------------------------ */

/* A sandbox has one of both, the one that was set last: it stops as files, or it pauses with its memory. 0 ends the one that it
 * names. */
static void daytona_settings_idle(struct api_call *c, bool as_files)
{
    uint64_t minutes;
    if (!num_u64(c->param[1], &minutes) || minutes > INTERVAL_MAX) {
        daytona_error(c->req, 400, NULL, "the interval must be 0 (never) to %d minutes", INTERVAL_MAX);
        return;
    }
    struct sandbox *b = daytona_sandbox(c);
    struct state_failure full = {0};
    if (!b)
        return;
    struct sandbox_life life = b->desc.life;
    if (minutes || life.auto_pause_files == as_files) {
        life.idle_s = (uint32_t)minutes * MINUTE_S;
        life.auto_pause_files = as_files;
    }
    if (sandbox_life_room(c->api->sandboxes, b, &life, &full))
        sandbox_set_life(c->api->sandboxes, b, &life, daytona_on_set, daytona_change_wait(c, b));
    else
        daytona_state_error(c->req, &full);
}
void daytona_autostop(struct api_call *c) { daytona_settings_idle(c, true); }
void daytona_autopause(struct api_call *c) { daytona_settings_idle(c, false); }

/* --- labels --------------------------------------------------------------------------------------------------------- */

/* Copies the labels that clients do not see (own_only), or all but the mark of ephemeral sandboxes. */
static void daytona_settings_copy(const struct sandbox *b, bool own_only, struct strv *ret)
{
    for (size_t i = 0; i + 1 < b->desc.metadata.n; i += 2) {
        const char *key = b->desc.metadata.v[i];
        if (own_only ? !daytona_label_is_own(key) : strcmp(key, DAYTONA_EPHEMERAL) == 0)
            continue;
        strv_add(ret, key);
        strv_add(ret, b->desc.metadata.v[i + 1]);
    }
}

void daytona_autodelete(struct api_call *c)
{
    bool at_stop = strcmp(c->param[1], "0") == 0;
    _cleanup_strv_ struct strv labels = {0};
    if (!at_stop && strcmp(c->param[1], "-1") != 0) {
        daytona_error(c->req, 501, NULL, "this node deletes a sandbox when it stops (0) or never by itself (-1)");
        return;
    }
    struct sandbox *b = daytona_sandbox(c);
    if (!b)
        return;
    daytona_settings_copy(b, false, &labels);
    if (at_stop) {
        strv_add(&labels, DAYTONA_EPHEMERAL);
        strv_add(&labels, "1");
    }
    sandbox_set_metadata(c->api->sandboxes, b, &labels, daytona_on_set, daytona_change_wait(c, b));
}

static void daytona_settings_on_labels_set(void *arg, bool ok)
{
    char id[SANDBOX_ID_MAX];
    (void)ok; /* what is not stored is in force until the node restarts */
    daytona_change_id(arg, id);
    struct http_req *r = api_wait_over(arg);
    if (!r)
        return;
    struct api_call *c = api_call_of(r);
    const struct sandbox *b = sandbox_of(c->api->sandboxes, &c->who, id);
    _cleanup_buf_ struct buf out = {0};
    struct json j;
    if (!b) {
        daytona_error(r, 404, NULL, "sandbox '%s' not found", id);
        return;
    }
    json_start(&j, &out);
    json_obj(&j, NULL);
    daytona_add_labels(&j, b);
    json_end_obj(&j);
    reply_json(r, 200, &out);
}

static void daytona_labels_on_body(struct api_call *c, json_t *body)
{
    _cleanup_strv_ struct strv labels = {0};
    struct err err;
    struct sandbox *b = daytona_same_sandbox(c);
    if (!b)
        return;
    if (!json_is_object(json_object_get(body, "labels"))) {
        daytona_error(c->req, 400, NULL, "field 'labels' is required: an object of texts, which replaces all labels");
        return;
    }
    if (daytona_read_labels(body, &labels, &err) < 0) {
        daytona_error(c->req, 400, NULL, "%s", err.msg);
        return;
    }
    daytona_settings_copy(b, true, &labels);
    sandbox_set_metadata(c->api->sandboxes, b, &labels, daytona_settings_on_labels_set, daytona_change_wait(c, b));
}
void daytona_labels(struct api_call *c)
{
    if (daytona_sandbox(c))
        daytona_body(c, daytona_labels_on_body);
}

/* --- ports and network ---------------------------------------------------------------------------------------------- */

void daytona_public(struct api_call *c)
{
    bool on = strcmp(c->param[1], "true") == 0;
    if (!on && strcmp(c->param[1], "false") != 0) {
        daytona_error(c->req, 400, NULL, "the path must end with true or false");
        return;
    }
    struct sandbox *b = daytona_sandbox(c);
    if (b)
        sandbox_set_ports(c->api->sandboxes, b, &b->desc.ports, on, daytona_on_set, daytona_change_wait(c, b));
}

static void daytona_settings_on_network_set(void *arg, unsigned status, const char *text)
{
    struct state_failure why = {0};
    if (status)
        state_fail(&why, status, "%s", text);
    daytona_on_changed(arg, status ? &why : NULL);
}

static void daytona_network_on_body(struct api_call *c, json_t *body)
{
    static const char *const fields[] = {"networkBlockAll", "networkAllowList", "domainAllowList"};
    _cleanup_net_doc_ struct net_doc doc = {0};
    struct err err;
    bool internet, given = false, named = false;
    struct sandbox *b = daytona_same_sandbox(c);
    if (!b)
        return;
    for (size_t i = 0; i < ARRAY_LEN(fields); i++)
        named |= json_object_get(body, fields[i]) && !json_is_null(json_object_get(body, fields[i]));
    if (!named) {
        daytona_error(c->req, 400, NULL,
                      "one of the fields networkBlockAll, networkAllowList and domainAllowList is required");
        return;
    }
    if (daytona_read_network(body, b->net ? &b->net->doc : NULL, &doc, &internet, &given, &err) < 0) {
        daytona_error(c->req, err.eno == EAGAIN ? 503 : 400, NULL, "%s", err.msg);
        return;
    }
    b->desc.allow_internet = internet;
    net_set(c->api->network, b, &doc, NET_WHOLE, 0, daytona_settings_on_network_set, daytona_change_wait(c, b));
}
void daytona_network(struct api_call *c)
{
    if (daytona_sandbox(c))
        daytona_body(c, daytona_network_on_body);
}
