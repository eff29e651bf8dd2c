/* What egress reports: refusals, questions that somebody has to answer, grants that are used up, counters. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/cleanup.h"
#include "base/json.h"
#include "base/log.h"
#include "base/mem.h"
#include "front/boxes-int.h"
#include "front/events.h"
#include "front/nets-int.h"
#include "front/webhook.h"

struct approval_item {
    struct approval_item *next;
    struct approval a;
};

static const char *text_of(const json_t *m, const char *name)
{
    const char *s = json_string_value(json_object_get(m, name));
    return s ? s : "";
}

/* The message without what is known anyway, as the text of an event. */
static void publish(struct front *f, const struct box *b, const char *type, json_t *message)
{
    json_t *copy = json_copy(message);
    (void)json_object_del(copy, "type");
    (void)json_object_del(copy, "sandbox");
    char *text = json_dumps(copy, JSON_COMPACT);
    events_publish(f, b->id, b->tenant->id, type, text ? text : "{}");
    free(text);
    json_decref(copy);
}

/* --- refusals ----------------------------------------------------------------------------------------------------- */

static void denied(struct front *f, struct box *b, json_t *message)
{
    struct box_net *n = b->net;
    struct net_denial *slot = &n->denials[n->ndenials++ % NET_DENIALS_KEPT];
    json_decref(slot->record);
    *slot = (struct net_denial){.at_ms = loop_now(f->loop), .record = json_incref(message)};
    publish(f, b, "network.denied", message);
}

static void add_denial(struct json *j, const json_t *m)
{
    _cleanup_buf_ struct buf subject = {0};
    const char *method = text_of(m, "method"), *path = text_of(m, "path");
    unsigned port = (unsigned)json_integer_value(json_object_get(m, "port"));
    if (*method)
        buf_addf(&subject, "%s ", method);
    buf_adds(&subject, text_of(m, "host"));
    if (port)
        buf_addf(&subject, ":%u", port);
    buf_adds(&subject, path);
    json_obj(j, NULL);
    json_str(j, "kind", "network");
    json_str(j, "subject", buf_str(&subject));
    json_u64(j, "count", 1);
    json_str(j, "layer", text_of(m, "layer"));
    json_str(j, "reason", text_of(m, "reason"));
    if (*text_of(m, "rule"))
        json_str(j, "rule", text_of(m, "rule"));
    if (*text_of(m, "approval"))
        json_str(j, "approval", text_of(m, "approval"));
    json_str(j, "id", text_of(m, "id"));
    json_str(j, "hint", "see the sandbox's network policy: PATCH /v1/sandboxes/{id}/network, or hutch network allow");
    json_end_obj(j);
}

size_t net_denials_since(const struct box *b, uint64_t since_ms, struct json *j)
{
    const struct box_net *n = b->net;
    size_t count = 0;
    uint64_t from = !n ? 0 : n->ndenials > NET_DENIALS_KEPT ? n->ndenials - NET_DENIALS_KEPT : 0;
    for (uint64_t i = from; n && i < n->ndenials; i++) {
        const struct net_denial *d = &n->denials[i % NET_DENIALS_KEPT];
        if (d->at_ms < since_ms)
            continue;
        count++;
        if (j)
            add_denial(j, d->record);
    }
    return count;
}

/* --- questions ---------------------------------------------------------------------------------------------------- */

static void free_item(struct approval_item *i)
{
    json_decref(i->a.request);
    free(i);
}

/* Takes out everything that `sandbox` asked (NULL: whatever is too old). */
static void sweep(struct nets *n, const char *sandbox, uint64_t older_than_ms)
{
    for (struct approval_item **at = &n->approvals; *at;) {
        struct approval_item *i = *at;
        if (sandbox ? strcmp(i->a.sandbox, sandbox) != 0 : i->a.asked_unix_ms >= older_than_ms) {
            at = &i->next;
            continue;
        }
        *at = i->next;
        n->napprovals--;
        free_item(i);
    }
}

void approvals_forget(struct front *f, const char *sandbox) { sweep(f->nets, sandbox, 0); }

void approvals_free(struct front *f)
{
    while (f->nets->approvals) {
        struct approval_item *i = f->nets->approvals;
        f->nets->approvals = i->next;
        free_item(i);
    }
    f->nets->napprovals = 0;
}

static struct approval_item *find(struct nets *n, const char *tenant, const char *id)
{
    for (struct approval_item *i = n->approvals; i; i = i->next)
        if (strcmp(i->a.id, id) == 0 && (!tenant || strcmp(i->a.tenant, tenant) == 0))
            return i;
    return NULL;
}

const struct approval *approval_find(struct front *f, const char *tenant, const char *id)
{
    const struct approval_item *i = f->nets ? find(f->nets, tenant, id) : NULL;
    return i ? &i->a : NULL;
}

/* A sandbox may have so many, the sandboxes of a tenant together, and all. */
static bool has_room(const struct nets *n, const struct box *b)
{
    size_t of_box = 0, of_tenant = 0;
    for (const struct approval_item *i = n->approvals; i; i = i->next) {
        of_box += strcmp(i->a.sandbox, b->id) == 0;
        of_tenant += strcmp(i->a.tenant, b->tenant->id) == 0;
    }
    return of_box < NET_APPROVALS_OF_BOX_MAX && of_tenant < NET_APPROVALS_TENANT_MAX &&
           n->napprovals < NET_APPROVALS_MAX;
}

static void asked(struct front *f, struct box *b, json_t *message)
{
    struct nets *n = f->nets;
    const char *id = text_of(message, "id");
    uint64_t now = boxes_unix_ms();
    sweep(n, NULL, now - NET_APPROVAL_LIFE_S * 1000ULL);
    if (!*id || strlen(id) >= sizeof n->approvals->a.id || find(n, NULL, id))
        return;
    if (!has_room(n, b)) { /* nobody will be asked: who waits is told so at once */
        net_send(n, json_pack("{s:s, s:s, s:s}", "type", "unask", "sandbox", b->id, "id", id));
        return;
    }
    struct approval_item *i = xcalloc(1, sizeof *i), **end = &n->approvals;
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
    n->napprovals++;
    publish(f, b, "network.approval_requested", message);
    webhook_ask(f, &i->a);
}

void approvals_each(struct front *f, const char *tenant, approval_fn *fn, void *arg)
{
    if (!f->nets)
        return;
    sweep(f->nets, NULL, boxes_unix_ms() - NET_APPROVAL_LIFE_S * 1000ULL);
    for (const struct approval_item *i = f->nets->approvals; i; i = i->next)
        if (strcmp(i->a.tenant, tenant) == 0)
            fn(arg, &i->a);
}

/* The smallest rule that allows what was asked for. */
static json_t *grant_rule(const struct approval *a, enum approval_decision d, unsigned minutes)
{
    const char *method = text_of(a->request, "method"), *path = text_of(a->request, "path");
    _cleanup_free_ char *id = xasprintf("grant-%s", a->id);
    _cleanup_buf_ struct buf exact = {0}; /* a '*' that was asked for is that letter, not a pattern */
    for (const char *p = path; *p; p++)
        buf_add(&exact, *p == '*' ? "%2A" : p, *p == '*' ? 3 : 1);
    json_t *rule = json_pack("{s:s, s:[s], s:[I]}", "id", id, "hosts", text_of(a->request, "host"), "ports",
                             (json_int_t)json_integer_value(json_object_get(a->request, "port")));
    if (*method) {
        json_t *http = json_pack("{s:[s]}", "methods", method);
        if (*path)
            (void)json_object_set_new(http, "paths", json_pack("[s]", buf_str(&exact)));
        (void)json_object_set_new(rule, "http", json_pack("[o]", http));
    } else if (!json_is_string(json_object_get(a->request, "why"))) { /* a stream; a wish is for the host as such */
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
    json_t *rule = grant_rule(a, APPROVAL_SANDBOX, 0);
    (void)json_object_del(rule, "id");
    return rule;
}

static void allow(struct front *f, struct box *b, const struct approval *a, enum approval_decision d, unsigned minutes,
                  net_done *done, void *arg)
{
    struct net_doc doc __attribute__((cleanup(net_doc_done))) = {0};
    struct err err;
    json_t *patch = json_pack("{s:[o]}", "add", grant_rule(a, d, minutes));
    int rc = net_doc_patch(b->net->doc.document, b->net->doc.e2b, b->net->doc.proxy_password, patch, &doc, &err);
    json_decref(patch);
    if (rc < 0)
        net_refuse(f, 400, err.msg, done, arg);
    else
        net_set(f, b, &doc, NET_PART, 0, done, arg);
}

static void deny(struct front *f, struct box *b, const char *id, net_done *done, void *arg)
{
    if (b->net->denied.n >= NET_APPROVALS_OF_BOX_MAX) { /* the oldest is forgotten by everybody by now */
        free(b->net->denied.v[0]);
        memmove(b->net->denied.v, b->net->denied.v + 1, b->net->denied.n * sizeof *b->net->denied.v);
        b->net->denied.n--;
    }
    strv_add(&b->net->denied, id);
    net_write(f, b);
    if (nets_on(f))
        net_tell(f, b, NULL, NULL);
    net_refuse(f, 0, "", done, arg);
}

void approval_decide(struct front *f, const char *tenant, const char *id, enum approval_decision d, unsigned minutes,
                     net_done *done, void *arg)
{
    struct nets *n = f->nets;
    struct approval_item *i = n ? find(n, tenant, id) : NULL;
    struct box *b = i ? map_get(&f->boxes->by_id, i->a.sandbox) : NULL;
    if (!b || !b->net) {
        net_refuse(f, 404, "there is no such question; it was answered, or nobody waits for it any more", done, arg);
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
        deny(f, b, id, done, arg);
    else
        allow(f, b, &i->a, d, minutes, done, arg);
    for (struct approval_item **at = &n->approvals; *at; at = &(*at)->next)
        if (*at == i) {
            *at = i->next;
            n->napprovals--;
            free_item(i);
            break;
        }
}

/* --- the rest ----------------------------------------------------------------------------------------------------- */

/* A grant for so many requests is used up: its rule goes. */
static void used(struct front *f, struct box *b, const json_t *message)
{
    struct net_doc doc __attribute__((cleanup(net_doc_done))) = {0};
    struct err err;
    const char *rule = text_of(message, "rule");
    if (strncmp(rule, "grant-", 6) != 0)
        return;
    json_t *patch = json_pack("{s:[s]}", "remove", rule);
    if (net_doc_patch(b->net->doc.document, b->net->doc.e2b, b->net->doc.proxy_password, patch, &doc, &err) == 0)
        net_set(f, b, &doc, NET_PART, 0, NULL, NULL);
    json_decref(patch);
}

void net_event(void *arg, const char *type, json_t *message)
{
    struct front *f = arg;
    struct box *b = map_get(&f->boxes->by_id, text_of(message, "sandbox"));
    if (strcmp(type, "tenant_usage") == 0)
        net_usage_event(f, NULL, message);
    if (!b || !b->net)
        return;
    if (strcmp(type, "denied") == 0)
        denied(f, b, message);
    else if (strcmp(type, "ask") == 0)
        asked(f, b, message);
    else if (strcmp(type, "used") == 0)
        used(f, b, message);
    else if (strcmp(type, "usage") == 0)
        net_usage_event(f, b, message);
}
