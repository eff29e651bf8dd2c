/* Handles what egress reports: refusals, requests that need approval, used-up grants, counters. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/fields.h"
#include "base/json.h"
#include "base/log.h"
#include "base/mem.h"
#include "network/networks-int.h"
#include "network/webhook.h"
#include "sandboxes/events.h"

struct approval_item {
    struct approval_item *next;
    struct approval a;
};

/* Publishes the message as an event, without its type and sandbox. */
static void approval_publish(struct networks *nw, const struct sandbox *b, const char *type, json_t *message)
{
    json_t *copy = json_copy(message);
    (void)json_object_del(copy, "type");
    (void)json_object_del(copy, "sandbox");
    char *text = json_dumps(copy, JSON_COMPACT);
    events_publish(nw->events, b->id, b->tenant->id, type, text ? text : "{}");
    free(text);
    json_decref(copy);
}

/* --- refusals ----------------------------------------------------------------------------------------------------- */

static void approval_on_denied(struct networks *nw, struct sandbox *b, json_t *message)
{
    struct sandbox_net *n = b->net;
    struct net_denial *slot = &n->denials[n->ndenials++ % NET_DENIALS_KEPT];
    json_decref(slot->record);
    *slot = (struct net_denial){.at_ms = loop_now(nw->loop), .record = json_incref(message)};
    approval_publish(nw, b, "network.denied", message);
}

static void approval_add_denial(struct json *j, const json_t *m)
{
    _cleanup_buf_ struct buf subject = {0};
    const char *method = field_text(m, "method"), *path = field_text(m, "path");
    unsigned port = (unsigned)json_integer_value(json_object_get(m, "port"));
    if (*method)
        buf_addf(&subject, "%s ", method);
    buf_adds(&subject, field_text(m, "host"));
    if (port)
        buf_addf(&subject, ":%u", port);
    buf_adds(&subject, path);
    json_obj(j, NULL);
    json_str(j, "kind", "network");
    json_str(j, "subject", buf_str(&subject));
    json_u64(j, "count", 1);
    json_str(j, "layer", field_text(m, "layer"));
    json_str(j, "reason", field_text(m, "reason"));
    if (*field_text(m, "rule"))
        json_str(j, "rule", field_text(m, "rule"));
    if (*field_text(m, "approval"))
        json_str(j, "approval", field_text(m, "approval"));
    json_str(j, "id", field_text(m, "id"));
    json_str(j, "hint", "see the sandbox's network policy: PATCH /v1/sandboxes/{id}/network, or hutch network allow");
    json_end_obj(j);
}

size_t net_denials_since(const struct sandbox *b, uint64_t since_ms, struct json *j)
{
    const struct sandbox_net *n = b->net;
    size_t count = 0;
    uint64_t from = !n ? 0 : n->ndenials > NET_DENIALS_KEPT ? n->ndenials - NET_DENIALS_KEPT : 0;
    for (uint64_t i = from; n && i < n->ndenials; i++) {
        const struct net_denial *d = &n->denials[i % NET_DENIALS_KEPT];
        if (d->at_ms < since_ms)
            continue;
        count++;
        if (j)
            approval_add_denial(j, d->record);
    }
    return count;
}

/* --- questions ---------------------------------------------------------------------------------------------------- */

static void approval_free_item(struct approval_item *i)
{
    json_decref(i->a.request);
    free(i);
}

/* Removes all questions of `sandbox`; NULL: all that are older than older_than_ms. */
static void approvals_sweep(struct networks *n, const char *sandbox, uint64_t older_than_ms)
{
    for (struct approval_item **at = &n->approvals; *at;) {
        struct approval_item *i = *at;
        if (sandbox ? strcmp(i->a.sandbox, sandbox) != 0 : i->a.asked_unix_ms >= older_than_ms) {
            at = &i->next;
            continue;
        }
        *at = i->next;
        n->napprovals--;
        approval_free_item(i);
    }
}

void approvals_forget(struct networks *nw, const char *sandbox) { approvals_sweep(nw, sandbox, 0); }

void approvals_free(struct networks *nw)
{
    while (nw->approvals) {
        struct approval_item *i = nw->approvals;
        nw->approvals = i->next;
        approval_free_item(i);
    }
    nw->napprovals = 0;
}

static struct approval_item *approval_find_item(struct networks *n, const char *tenant, const char *id)
{
    for (struct approval_item *i = n->approvals; i; i = i->next)
        if (strcmp(i->a.id, id) == 0 && (!tenant || strcmp(i->a.tenant, tenant) == 0))
            return i;
    return NULL;
}

const struct approval *approval_find(struct networks *nw, const char *tenant, const char *id)
{
    const struct approval_item *i = approval_find_item(nw, tenant, id);
    return i ? &i->a : NULL;
}

/* Checks the limits of pending questions: per sandbox, per tenant, and in all. */
static bool approvals_have_room(const struct networks *n, const struct sandbox *b)
{
    size_t of_sandbox = 0, of_tenant = 0;
    for (const struct approval_item *i = n->approvals; i; i = i->next) {
        of_sandbox += strcmp(i->a.sandbox, b->id) == 0;
        of_tenant += strcmp(i->a.tenant, b->tenant->id) == 0;
    }
    return of_sandbox < NET_APPROVALS_OF_SANDBOX_MAX && of_tenant < NET_APPROVALS_TENANT_MAX &&
           n->napprovals < NET_APPROVALS_MAX;
}

static void approval_on_asked(struct networks *nw, struct sandbox *b, json_t *message)
{
    const char *id = field_text(message, "id");
    uint64_t now = clock_unix_ms();
    approvals_sweep(nw, NULL, now - NET_APPROVAL_LIFE_S * 1000ULL);
    if (!*id || strlen(id) >= sizeof nw->approvals->a.id || approval_find_item(nw, NULL, id))
        return;
    if (!approvals_have_room(nw, b)) { /* egress ends the wait of the sandbox at once */
        net_send(nw, json_pack("{s:s, s:s, s:s}", "type", "unask", "sandbox", b->id, "id", id));
        return;
    }
    struct approval_item *i = xcalloc(1, sizeof *i), **end = &nw->approvals;
    (void)snprintf(i->a.id, sizeof i->a.id, "%s", id);
    memcpy(i->a.sandbox, b->id, sizeof i->a.sandbox);
    memcpy(i->a.tenant, b->tenant->id, sizeof i->a.tenant);
    i->a.asked_unix_ms = now;
    i->a.request = json_copy(message);
    (void)json_object_del(i->a.request, "type");
    (void)json_object_del(i->a.request, "sandbox");
    (void)json_object_del(i->a.request, "id");
    while (*end)
        end = &(*end)->next;
    *end = i;
    nw->napprovals++;
    approval_publish(nw, b, "network.approval_requested", message);
    webhook_ask(nw, &i->a);
}

void approvals_each(struct networks *nw, const char *tenant, approval_fn *fn, void *arg)
{
    approvals_sweep(nw, NULL, clock_unix_ms() - NET_APPROVAL_LIFE_S * 1000ULL);
    for (const struct approval_item *i = nw->approvals; i; i = i->next)
        if (strcmp(i->a.tenant, tenant) == 0)
            fn(arg, &i->a);
}

/* The smallest rule that allows what was asked for. */
static json_t *approval_grant_rule(const struct approval *a, enum approval_decision d, unsigned minutes)
{
    const char *method = field_text(a->request, "method"), *path = field_text(a->request, "path");
    _cleanup_free_ char *id = xasprintf("grant-%s", a->id);
    _cleanup_buf_ struct buf exact = {0}; /* a '*' in the requested path is that letter, not a pattern */
    for (const char *p = path; *p; p++)
        buf_add(&exact, *p == '*' ? "%2A" : p, *p == '*' ? 3 : 1);
    json_t *rule = json_pack("{s:s, s:[s], s:[I]}", "id", id, "hosts", field_text(a->request, "host"), "ports",
                             (json_int_t)json_integer_value(json_object_get(a->request, "port")));
    if (*method) {
        json_t *http = json_pack("{s:[s]}", "methods", method);
        if (*path)
            (void)json_object_set_new(http, "paths", json_pack("[s]", buf_str(&exact)));
        (void)json_object_set_new(rule, "http", json_pack("[o]", http));
    } else if (!json_is_string(json_object_get(
                   a->request, "why"))) { /* a stream; a request with `why` is for the host as a whole */
        (void)json_object_set_new(rule, "proto", json_string("tcp"));
    }
    if (d == APPROVAL_ONCE)
        (void)json_object_set_new(rule, "uses", json_integer(1));
    if (d == APPROVAL_MINUTES) {
        char when[32];
        time_t end = time(NULL) + (time_t)minutes * 60;
        struct tm tm;
        (void)strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&end, &tm));
        (void)json_object_set_new(rule, "expires", json_string(when));
    }
    return rule;
}

json_t *approval_grant(const struct approval *a)
{
    json_t *rule = approval_grant_rule(a, APPROVAL_SANDBOX, 0);
    (void)json_object_del(rule, "id");
    return rule;
}

static void approval_allow(struct networks *nw, struct sandbox *b, const struct approval *a, enum approval_decision d,
                           unsigned minutes, net_done *done, void *arg)
{
    struct net_doc doc __attribute__((cleanup(net_doc_done))) = {0};
    struct err err;
    json_t *patch = json_pack("{s:[o]}", "add", approval_grant_rule(a, d, minutes));
    int rc = net_doc_patch(b->net->doc.document, b->net->doc.e2b, b->net->doc.proxy_password, patch, &doc, &err);
    json_decref(patch);
    if (rc < 0)
        net_refuse(nw, 400, err.msg, done, arg);
    else
        net_set(nw, b, &doc, NET_PART, 0, done, arg);
}

static void approval_deny(struct networks *nw, struct sandbox *b, const char *id, net_done *done, void *arg)
{
    if (b->net->denied.n >= NET_APPROVALS_OF_SANDBOX_MAX) { /* drop the oldest: egress has forgotten it too */
        free(b->net->denied.v[0]);
        memmove(b->net->denied.v, b->net->denied.v + 1, b->net->denied.n * sizeof *b->net->denied.v);
        b->net->denied.n--;
    }
    strv_add(&b->net->denied, id);
    net_write(nw, b);
    if (nets_on(nw))
        net_tell(nw, b, NULL, NULL);
    net_refuse(nw, 0, "", done, arg);
}

void approval_decide(struct networks *nw, const char *tenant, const char *id, enum approval_decision d,
                     unsigned minutes, net_done *done, void *arg)
{
    struct approval_item *i = approval_find_item(nw, tenant, id);
    struct sandbox *b = i ? sandbox_lookup(nw->sandboxes, i->a.sandbox) : NULL;
    if (!b || !b->net) {
        net_refuse(nw, 404, "there is no such question: it was answered already, or its request has ended", done, arg);
        return;
    }
    struct log_line l;
    if (log_start(&l, LOG_LEVEL_INFO, "approval decided")) {
        log_str(&l, "sandbox", b->id);
        log_str(&l, "approval", id);
        log_str(&l, "decision", d == APPROVAL_DENY ? "deny" : "allow");
        log_end(&l);
    }
    if (d == APPROVAL_DENY)
        approval_deny(nw, b, id, done, arg);
    else
        approval_allow(nw, b, &i->a, d, minutes, done, arg);
    for (struct approval_item **at = &nw->approvals; *at; at = &(*at)->next)
        if (*at == i) {
            *at = i->next;
            nw->napprovals--;
            approval_free_item(i);
            break;
        }
}

/* --- the rest ----------------------------------------------------------------------------------------------------- */

/* Removes the rule of a grant whose number of requests is used up. */
static void approval_on_grant_used(struct networks *nw, struct sandbox *b, const json_t *message)
{
    struct net_doc doc __attribute__((cleanup(net_doc_done))) = {0};
    struct err err;
    const char *rule = field_text(message, "rule");
    if (strncmp(rule, "grant-", 6) != 0)
        return;
    json_t *patch = json_pack("{s:[s]}", "remove", rule);
    if (net_doc_patch(b->net->doc.document, b->net->doc.e2b, b->net->doc.proxy_password, patch, &doc, &err) == 0)
        net_set(nw, b, &doc, NET_PART, 0, NULL, NULL);
    json_decref(patch);
}

void net_event(void *arg, const char *type, json_t *message)
{
    struct networks *nw = arg;
    struct sandbox *b = sandbox_lookup(nw->sandboxes, field_text(message, "sandbox"));
    if (strcmp(type, "tenant_usage") == 0)
        net_usage_event(nw, NULL, message);
    if (!b || !b->net)
        return;
    if (strcmp(type, "denied") == 0)
        approval_on_denied(nw, b, message);
    else if (strcmp(type, "ask") == 0)
        approval_on_asked(nw, b, message);
    else if (strcmp(type, "used") == 0)
        approval_on_grant_used(nw, b, message);
    else if (strcmp(type, "usage") == 0)
        net_usage_event(nw, b, message);
}
