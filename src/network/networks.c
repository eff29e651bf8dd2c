/* The networks of sandboxes: attaches and changes documents, and sends them to egress. */
#include "network/networks.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/cleanup.h"
#include "base/log.h"
#include "base/mem.h"
#include "db/db.h"
#include "network/networks-int.h"
#include "network/secrets.h"
#include "sandboxes/events.h"

enum { TELL_SECRETS, TELL_HEADERS, TELL_SANDBOXES };

/* --- what egress is told ------------------------------------------------------------------------------------------ */

json_t *net_message(const struct sandbox *b)
{
    const struct sandbox_net *n = b->net;
    json_t *placeholders = json_object(), *denied = json_array();
    for (size_t i = 0; i + 1 < n->placeholders.n; i += 2)
        (void)json_object_set_new(placeholders, n->placeholders.v[i], json_string(n->placeholders.v[i + 1]));
    for (size_t i = 0; i < n->denied.n; i++)
        (void)json_array_append_new(denied, json_string(n->denied.v[i]));
    return json_pack("{s:s, s:s, s:s, s:I, s:I, s:o, s:o, s:o, s:s*}", "type", "policy", "sandbox", b->id, "tenant",
                     b->tenant->id, "epoch", (json_int_t)n->epoch, "replaced", (json_int_t)n->replaced, "policy",
                     json_loads(n->doc.effective, JSON_DECODE_ANY, NULL), "placeholders", placeholders,
                     "denied_approvals", denied, "proxy_password", n->doc.proxy_password);
}

void net_send(struct networks *n, json_t *message)
{
    if (n->client)
        egressc_send(n->client, message);
    else
        json_decref(message);
}

void net_headers_take(struct networks *n, const char *tenant, const struct net_doc *doc)
{
    for (size_t i = 0; i < doc->nheaders; i++) {
        const struct net_header *h = &doc->headers[i];
        _cleanup_free_ char *key = xasprintf("%s/%s", tenant, h->name);
        struct net_headers *k = map_get(&n->headers, key);
        if (!k) {
            k = xcalloc(1, sizeof *k);
            k->key = TAKE_PTR(key);
            k->tenant = xstrdup(tenant);
            k->h =
                (struct net_header){.name = xstrdup(h->name), .host = xstrdup(h->host), .headers = xstrdup(h->headers)};
            for (size_t s = 0; s < h->secrets.n; s++)
                strv_add(&k->h.secrets, h->secrets.v[s]);
            (void)map_put(&n->headers, k->key, k);
            net_send(n, sealed_header_message(tenant, &k->h));
        }
        k->uses++;
    }
}

static void net_headers_free(struct net_headers *k)
{
    free(k->key);
    free(k->tenant);
    free(k->h.name);
    free(k->h.host);
    free(k->h.headers);
    strv_done(&k->h.secrets);
    free(k);
}

void net_headers_drop(struct networks *n, const char *tenant, const struct net_doc *doc)
{
    for (size_t i = 0; i < doc->nheaders; i++) {
        _cleanup_free_ char *key = xasprintf("%s/%s", tenant, doc->headers[i].name);
        struct net_headers *k = map_get(&n->headers, key);
        if (!k || --k->uses > 0)
            continue;
        (void)map_del(&n->headers, key);
        net_send(n, sealed_gone_message(tenant, k->h.name));
        net_headers_free(k);
    }
}

static void nets_list_secret(void *arg, const struct sealed_secret *s)
{
    strv_take(arg, xasprintf("%s/%s", s->tenant, s->name));
}

static void nets_list_sandbox(void *arg, struct sandbox *b)
{
    if (b->net)
        strv_add(arg, b->id);
}

static void nets_on_egress_up(void *arg)
{
    struct networks *nw = arg;
    size_t at = 0;
    nw->connection++;
    for (size_t i = 0; i < ARRAY_LEN(nw->to_tell); i++) {
        strv_done(&nw->to_tell[i]);
        nw->told[i] = 0;
    }
    sealed_each(nw, NULL, nets_list_secret, &nw->to_tell[TELL_SECRETS]);
    for (const struct net_headers *k; (k = map_next(&nw->headers, &at));)
        strv_add(&nw->to_tell[TELL_HEADERS], k->key);
    sandboxes_each(nw->sandboxes, nets_list_sandbox, &nw->to_tell[TELL_SANDBOXES]);
    struct log_line l;
    if (log_start(&l, LOG_LEVEL_INFO, "met egress")) {
        log_u64(&l, "secrets", nw->to_tell[TELL_SECRETS].n);
        log_u64(&l, "sandboxes", nw->to_tell[TELL_SANDBOXES].n);
        log_end(&l);
    }
}

static void nets_tell_one(struct networks *nw, size_t kind, const char *what)
{
    if (kind == TELL_SECRETS) {
        const char *slash = strchr(what, '/');
        _cleanup_free_ char *tenant = xstrndup(what, (size_t)(slash - what));
        const struct sealed_secret *s = sealed_find(nw, tenant, slash + 1);
        if (s)
            net_send(nw, sealed_message(s));
    } else if (kind == TELL_HEADERS) {
        const struct net_headers *k = map_get(&nw->headers, what);
        if (k)
            net_send(nw, sealed_header_message(k->tenant, &k->h));
    } else {
        struct sandbox *b = sandbox_lookup(nw->sandboxes, what);
        if (b && b->net) {
            net_usage_tell(nw, b->tenant->id, b);
            net_send(nw, net_message(b));
        }
    }
}

static bool nets_on_egress_next(void *arg)
{
    struct networks *nw = arg;
    for (size_t kind = 0; kind < ARRAY_LEN(nw->to_tell); kind++)
        if (nw->told[kind] < nw->to_tell[kind].n) {
            nets_tell_one(nw, kind, nw->to_tell[kind].v[nw->told[kind]++]);
            return true;
        }
    return false;
}

static void nets_on_egress_down(void *arg) { (void)arg; }

static const struct egressc_ops egress_ops = {
    .up = nets_on_egress_up, .next = nets_on_egress_next, .down = nets_on_egress_down, .event = net_event};

void nets_secret_changed(struct networks *nw, const struct sealed_secret *s) { net_send(nw, sealed_message(s)); }

void nets_secret_gone(struct networks *nw, const char *tenant, const char *name)
{
    net_send(nw, sealed_gone_message(tenant, name));
}

/* --- life --------------------------------------------------------------------------------------------------------- */

static bool nets_password_key(void *arg, unsigned char ret[EGRESSC_KEY]) { return nets_key(arg, ret); }

static void nets_on_tenant_gone(void *arg, const struct tenant *t)
{
    sealed_tenant_gone(arg, t->id);
    nets_tenant_gone(arg, t->id);
}

static const struct sandbox_network network_of_sandboxes = {
    .is_on = nets_on,
    .attach = net_attach,
    .write = net_write,
    .tell = net_tell,
    .environment = net_environment,
    .gone = net_gone,
    .detach = net_detach,
    .denials = net_denials_since,
};

struct networks *nets_new(const struct nets_deps *d)
{
    struct networks *nw = xcalloc(1, sizeof *nw);
    nw->loop = d->loop;
    nw->config = d->config;
    nw->db = d->db;
    nw->tenants = d->tenants;
    nw->sandboxes = d->sandboxes;
    nw->events = d->events;
    sandboxes_set_network(nw->sandboxes, &network_of_sandboxes, nw);
    tenants_on_gone(d->tenants, nets_on_tenant_gone, nw);
    return nw;
}

int nets_open(struct networks *nw, int run_dir, bool without, struct err *err)
{
    net_doc_key(nets_password_key, nw);
    return without ? 0 : egressc_new(nw->loop, run_dir, &egress_ops, nw, &nw->client, err);
}

void nets_free(struct networks *nw)
{
    size_t at = 0;
    if (!nw)
        return;
    net_doc_key(NULL, NULL);
    egressc_free(nw->client);
    approvals_free(nw);
    for (struct net_headers *k; (k = map_next(&nw->headers, &at));)
        net_headers_free(k);
    map_done(&nw->headers);
    net_usage_free(nw);
    for (size_t i = 0; i < ARRAY_LEN(nw->to_tell); i++)
        strv_done(&nw->to_tell[i]);
    sealed_free(nw);
    free(nw);
}

bool nets_on(const struct networks *nw) { return nw->client; }

bool nets_key(const struct networks *nw, unsigned char ret[EGRESSC_KEY])
{
    return nets_on(nw) && egressc_key(nw->client, ret);
}

/* Loads a network from the database. One that cannot be read any more (e.g. a preset is gone) becomes "off". */
static void net_load(void *arg, const struct db_net *row)
{
    struct networks *nw = arg;
    struct sandbox *b = sandbox_lookup(nw->sandboxes, row->sandbox);
    struct err err;
    if (!b || b->net)
        return;
    b->net = xcalloc(1, sizeof *b->net);
    b->net->epoch = b->net->replaced = row->epoch; /* `replaced` is not stored: assume the latest possible */
    if (net_doc_again(row->document, row->e2b, &b->net->doc, &err) < 0) {
        log_text(LOG_LEVEL_ERROR, "the network of sandbox %s cannot be read (%s): it is off now", b->id, err.msg);
        if (net_doc_text("\"off\"", 5, &b->net->doc, &err) < 0)
            abort(); /* a constant document */
    } else if (row->proxy_password[0]) {
        b->net->doc.proxy_password = xstrdup(row->proxy_password);
    }
    for (size_t i = 0; i < row->placeholders.n; i++)
        strv_add(&b->net->placeholders, row->placeholders.v[i]);
    for (size_t i = 0; i < row->denied.n; i++)
        strv_add(&b->net->denied, row->denied.v[i]);
    net_headers_take(nw, b->tenant->id, &b->net->doc);
}

static void net_make_missing(void *arg, struct sandbox *b)
{
    struct err err;
    if (!b->net && net_attach(arg, b, NULL, &err) == 0)
        net_write(arg, b);
}

int nets_load(struct networks *nw, struct err *err)
{
    if (sealed_load(nw, err) < 0 || db_nets(nw->db, net_load, nw, err) < 0 || net_usage_load(nw, err) < 0)
        return -1;
    db_net_sweep(nw->db);
    sandboxes_each(nw->sandboxes, net_make_missing, nw); /* sandboxes of an older version have no row of a network */
    return 0;
}

/* --- a sandbox ---------------------------------------------------------------------------------------------------- */

static const char *net_placeholder_of(const struct sandbox_net *n, const char *secret)
{
    for (size_t i = 0; i + 1 < n->placeholders.n; i += 2)
        if (strcmp(n->placeholders.v[i], secret) == 0)
            return n->placeholders.v[i + 1];
    return NULL;
}

/* Checks that there is room for the sets of headers which are new. */
static int net_check_headers(struct networks *nw, const char *tenant, const struct net_doc *doc, struct err *err)
{
    size_t added = 0, mine = 0, at = 0;
    for (size_t i = 0; i < doc->nheaders; i++) {
        _cleanup_free_ char *key = xasprintf("%s/%s", tenant, doc->headers[i].name);
        added += !map_get(&nw->headers, key);
    }
    if (!added)
        return 0;
    for (const struct net_headers *k; (k = map_next(&nw->headers, &at));)
        mine += strcmp(k->tenant, tenant) == 0;
    if (mine + added > NET_HEADERS_TENANT_MAX)
        return err_set(err, ERR_LIMIT, 0,
                       "network.rules: the sandboxes of this tenant have headers set on %zu hosts, with this one %zu; "
                       "they may on %d",
                       mine, mine + added, NET_HEADERS_TENANT_MAX);
    if (nw->headers.n + added > NET_HEADERS_KEPT_MAX)
        return err_set(err, ERR_LIMIT, 0,
                       "network.rules: this node sets as many headers for its sandboxes as it can: %d",
                       NET_HEADERS_KEPT_MAX);
    return 0;
}

static int net_check_secrets(struct networks *nw, const struct sandbox *b, const struct net_doc *doc, struct err *err)
{
    for (size_t i = 0; i < doc->secrets.n; i++) {
        const struct sealed_secret *s = sealed_find(nw, b->tenant->id, doc->secrets.v[i]);
        if (!s || strcmp(s->name, doc->secrets.v[i]) != 0)
            return err_set(err, ERR_USAGE, 0, "the network uses the secret '%s', which this tenant has not",
                           doc->secrets.v[i]);
        if (strcmp(s->spec, "") == 0 || strcmp(s->spec, "{}") == 0)
            return err_set(err, ERR_USAGE, 0,
                           "the network uses the secret '%s', which is bound to no host: set it again with a spec",
                           doc->secrets.v[i]);
    }
    for (size_t i = 0; i < doc->nheaders; i++)
        for (size_t k = 0; k < doc->headers[i].secrets.n; k++)
            if (!sealed_find(nw, b->tenant->id, doc->headers[i].secrets.v[k]))
                return err_set(err, ERR_USAGE, 0, "network.rules: there is no secret '%s'; POST /secrets makes one",
                               doc->headers[i].secrets.v[k]);
    return net_check_headers(nw, b->tenant->id, doc, err);
}

/* Drops placeholders of removed secrets, so that the list does not grow for ever. */
static void net_drop_placeholders(struct networks *nw, struct sandbox *b)
{
    struct strv *p = &b->net->placeholders, kept = {0};
    for (size_t i = 0; i + 1 < p->n; i += 2)
        if (sealed_find(nw, b->tenant->id, p->v[i])) {
            strv_add(&kept, p->v[i]);
            strv_add(&kept, p->v[i + 1]);
        }
    strv_done(p);
    *p = kept;
}

static void net_add_placeholders(struct networks *nw, struct sandbox *b, const struct net_doc *doc)
{
    net_drop_placeholders(nw, b);
    for (size_t i = 0; i < doc->secrets.n; i++)
        if (!net_placeholder_of(b->net, doc->secrets.v[i])) {
            strv_add(&b->net->placeholders, doc->secrets.v[i]);
            strv_take(&b->net->placeholders, sealed_placeholder(sealed_find(nw, b->tenant->id, doc->secrets.v[i])));
        }
}

int net_attach(struct networks *nw, struct sandbox *b, const struct net_doc *doc, struct err *err)
{
    struct net_doc off __attribute__((cleanup(net_doc_done))) = {0};
    if (!doc) {
        if (net_doc_text("\"off\"", 5, &off, err) < 0)
            return -1;
        doc = &off;
    }
    if (net_check_secrets(nw, b, doc, err) < 0)
        return -1;
    b->net = xcalloc(1, sizeof *b->net);
    b->net->epoch = b->net->replaced = 1;
    net_doc_copy(&b->net->doc, doc);
    net_add_placeholders(nw, b, doc);
    net_headers_take(nw, b->tenant->id, doc);
    return 0;
}

static void net_write_row(struct networks *nw, const struct sandbox *b, db_done *done, void *arg)
{
    const struct sandbox_net *n = b->net;
    struct db_net row = {.sandbox = b->id,
                         .epoch = n->epoch,
                         .document = n->doc.document,
                         .e2b = n->doc.e2b,
                         .proxy_password = n->doc.proxy_password,
                         .placeholders = n->placeholders,
                         .denied = n->denied};
    db_net_put(nw->db, &row, done, arg);
}

void net_write(struct networks *nw, const struct sandbox *b) { net_write_row(nw, b, NULL, NULL); }

void net_tell(struct networks *nw, struct sandbox *b, egressc_done *done, void *arg)
{
    net_usage_tell(nw, b->tenant->id, b);
    egressc_policy(nw->client, net_message(b), NET_APPLY_MS, done, arg);
}

void net_gone(struct networks *nw, struct sandbox *b)
{
    if (!b->net || !nw)
        return;
    net_send(nw, json_pack("{s:s, s:s}", "type", "forget", "sandbox", b->id));
    net_headers_drop(nw, b->tenant->id, &b->net->doc);
    approvals_forget(nw, b->id);
}

void net_detach(struct sandbox *b)
{
    struct sandbox_net *n = b->net;
    if (!n)
        return;
    net_doc_done(&n->doc);
    strv_done(&n->placeholders);
    strv_done(&n->denied);
    for (size_t i = 0; i < ARRAY_LEN(n->denials); i++)
        json_decref(n->denials[i].record);
    json_decref(n->usage);
    free(n);
    b->net = NULL;
}

/* --- changes ------------------------------------------------------------------------------------------------------ */

/* A change under way: finished when the row is written and egress has answered. */
struct setting {
    struct networks *networks;
    char id[SANDBOX_ID_MAX];
    uint64_t epoch;
    struct net_doc before;
    net_done *done;
    void *arg;
    unsigned left;
    unsigned status;
    char text[600];
};

static void net_setting_finish(struct setting *s)
{
    if (--s->left > 0)
        return;
    struct sandbox *b = sandbox_lookup(s->networks->sandboxes, s->id);
    if (s->status == 0 && b) {
        char text[48];
        (void)snprintf(text, sizeof text, "{\"epoch\":%llu}", (unsigned long long)s->epoch);
        events_publish(s->networks->events, b->id, b->tenant->id, "network.changed", text);
    }
    if (s->done)
        s->done(s->arg, s->status, s->text);
    net_doc_done(&s->before);
    free(s);
}

/* Restores the previous document, unless it has been changed again since. */
static void net_setting_put_back(struct setting *s)
{
    struct sandbox *b = sandbox_lookup(s->networks->sandboxes, s->id);
    if (!b || !b->net || b->net->epoch != s->epoch)
        return;
    net_headers_take(s->networks, b->tenant->id, &s->before);
    net_headers_drop(s->networks, b->tenant->id, &b->net->doc);
    net_doc_done(&b->net->doc);
    b->net->doc = s->before;
    s->before = (struct net_doc){0};
    b->net->epoch++;
    net_write(s->networks, b);
    egressc_policy(s->networks->client, net_message(b), NET_APPLY_MS, NULL, NULL);
}

static void net_setting_on_applied(void *arg, json_t *answer, const char *error)
{
    struct setting *s = arg;
    if (error && answer) { /* egress refused it; without an answer the outcome is unknown */
        s->status = 400;
        (void)snprintf(s->text, sizeof s->text, "%s", error);
        net_setting_put_back(s);
    } else if (error && s->status == 0) {
        s->status = 503;
        (void)snprintf(
            s->text, sizeof s->text,
            "the network is stored, but egress has not confirmed it yet: until it does, the one before may still be in "
            "force; end the sandbox if that cannot wait");
    }
    net_setting_finish(s);
}

static void net_setting_on_row_stored(void *arg, const struct err *err)
{
    struct setting *s = arg;
    if (err && s->status == 0) {
        struct state_failure why = {0};
        state_fail_write(&why, err, "the network cannot be stored");
        s->status = why.status;
        (void)snprintf(s->text, sizeof s->text, "%s", why.text);
    }
    net_setting_finish(s);
}

struct refusal {
    net_done *done;
    void *arg;
    unsigned status;
    char text[600];
};
static void net_refusal_deliver(void *arg)
{
    struct refusal *r = arg;
    if (r->done)
        r->done(r->arg, r->status, r->text);
    free(r);
}
void net_refuse(struct networks *nw, unsigned status, const char *text, net_done *done, void *arg)
{
    struct refusal *r = xcalloc(1, sizeof *r);
    *r = (struct refusal){.done = done, .arg = arg, .status = status};
    (void)snprintf(r->text, sizeof r->text, "%s", text);
    loop_defer(nw->loop, net_refusal_deliver, r);
}

void net_set(struct networks *nw, struct sandbox *b, const struct net_doc *doc, enum net_change change,
             uint64_t expected, net_done *done, void *arg)
{
    struct err err;
    struct sandbox_net *n = b->net;
    if (expected && expected != n->epoch) {
        char text[160];
        (void)snprintf(text, sizeof text, "the network was changed meanwhile: its epoch is %llu, not %llu",
                       (unsigned long long)n->epoch, (unsigned long long)expected);
        net_refuse(nw, 409, text, done, arg);
        return;
    }
    if (net_check_secrets(nw, b, doc, &err) < 0) {
        net_refuse(nw, err.code == ERR_LIMIT ? 429 : 400, err.msg, done, arg);
        return;
    }
    struct setting *s = xcalloc(1, sizeof *s);
    *s = (struct setting){.networks = nw, .epoch = ++n->epoch, .before = n->doc, .done = done, .arg = arg, .left = 1};
    memcpy(s->id, b->id, sizeof s->id);
    if (change == NET_WHOLE)
        n->replaced = n->epoch;
    net_doc_copy(&n->doc, doc);
    net_headers_take(nw, b->tenant->id, &n->doc);
    net_headers_drop(nw, b->tenant->id, &s->before);
    net_add_placeholders(nw, b, doc);
    s->left += nets_on(nw);
    net_write_row(nw, b, net_setting_on_row_stored, s);
    if (nets_on(nw))
        net_tell(nw, b, net_setting_on_applied, s);
}

/* --- requests ----------------------------------------------------------------------------------------------------- */

struct no_egress {
    egressc_done *done;
    void *arg;
};
static void net_on_no_egress(void *arg)
{
    struct no_egress *x = arg;
    x->done(x->arg, NULL, "this node has no network");
    free(x);
}

void net_ask(struct networks *nw, const struct sandbox *b, json_t *message, egressc_done *done, void *arg)
{
    if (nets_on(nw)) {
        const char *type = json_string_value(json_object_get(message, "type"));
        if (b && strcmp(type, "stats") != 0) /* "stats" covers all sandboxes; the caller picks */
            (void)json_object_set_new(message, "sandbox", json_string(b->id));
        const char *tenant = json_string_value(json_object_get(message, "tenant"));
        if (tenant)
            net_usage_tell(nw, tenant, NULL);
        egressc_ask(nw->client, message, NET_ASK_MS, done, arg);
        return;
    }
    struct no_egress *x = xcalloc(1, sizeof *x);
    *x = (struct no_egress){done, arg};
    json_decref(message);
    loop_defer(nw->loop, net_on_no_egress, x);
}
