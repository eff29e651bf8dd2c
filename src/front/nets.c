/* The networks of boxes: attaching, changing, telling egress. */
#include "front/nets.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/cleanup.h"
#include "base/log.h"
#include "base/mem.h"
#include "front/boxes-int.h"
#include "front/events.h"
#include "front/nets-int.h"
#include "front/vault.h"

enum { TELL_SECRETS, TELL_HEADERS, TELL_BOXES };

/* --- what egress is told ------------------------------------------------------------------------------------------ */

json_t *net_message(const struct box *b)
{
    const struct box_net *n = b->net;
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

void net_send(struct nets *n, json_t *message)
{
    if (n->client)
        egressc_send(n->client, message);
    else
        json_decref(message);
}

void net_headers_take(struct nets *n, const char *tenant, const struct net_doc *doc)
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
            net_send(n, vault_header_message(tenant, &k->h));
        }
        k->uses++;
    }
}

static void free_headers(struct net_headers *k)
{
    free(k->key);
    free(k->tenant);
    free(k->h.name);
    free(k->h.host);
    free(k->h.headers);
    strv_done(&k->h.secrets);
    free(k);
}

void net_headers_drop(struct nets *n, const char *tenant, const struct net_doc *doc)
{
    for (size_t i = 0; i < doc->nheaders; i++) {
        _cleanup_free_ char *key = xasprintf("%s/%s", tenant, doc->headers[i].name);
        struct net_headers *k = map_get(&n->headers, key);
        if (!k || --k->uses > 0)
            continue;
        (void)map_del(&n->headers, key);
        net_send(n, vault_gone_message(tenant, k->h.name));
        free_headers(k);
    }
}

static void list_secret(void *arg, const struct vault_secret *s)
{
    strv_take(arg, xasprintf("%s/%s", s->tenant, s->name));
}

static void list_box(void *arg, struct box *b)
{
    if (b->net)
        strv_add(arg, b->id);
}

static void egress_up(void *arg)
{
    struct front *f = arg;
    struct nets *n = f->nets;
    size_t at = 0;
    n->connection++;
    for (size_t i = 0; i < ARRAY_LEN(n->to_tell); i++) {
        strv_done(&n->to_tell[i]);
        n->told[i] = 0;
    }
    vault_each(f, NULL, list_secret, &n->to_tell[TELL_SECRETS]);
    for (const struct net_headers *k; (k = map_next(&n->headers, &at));)
        strv_add(&n->to_tell[TELL_HEADERS], k->key);
    boxes_each(f, list_box, &n->to_tell[TELL_BOXES]);
    struct log_line l;
    if (log_start(&l, LOG_LEVEL_INFO, "met egress")) {
        log_u64(&l, "secrets", n->to_tell[TELL_SECRETS].n);
        log_u64(&l, "sandboxes", n->to_tell[TELL_BOXES].n);
        log_end(&l);
    }
}

static void tell_one(struct front *f, size_t kind, const char *what)
{
    struct nets *n = f->nets;
    if (kind == TELL_SECRETS) {
        const char *slash = strchr(what, '/');
        _cleanup_free_ char *tenant = xstrndup(what, (size_t)(slash - what));
        const struct vault_secret *s = vault_find(f, tenant, slash + 1);
        if (s)
            net_send(n, vault_message(s));
    } else if (kind == TELL_HEADERS) {
        const struct net_headers *k = map_get(&n->headers, what);
        if (k)
            net_send(n, vault_header_message(k->tenant, &k->h));
    } else {
        struct box *b = map_get(&f->boxes->by_id, what);
        if (b && b->net) {
            net_usage_tell(f, b->tenant->id, b);
            net_send(n, net_message(b));
        }
    }
}

static bool egress_next(void *arg)
{
    struct front *f = arg;
    struct nets *n = f->nets;
    for (size_t kind = 0; kind < ARRAY_LEN(n->to_tell); kind++)
        if (n->told[kind] < n->to_tell[kind].n) {
            tell_one(f, kind, n->to_tell[kind].v[n->told[kind]++]);
            return true;
        }
    return false;
}

static void egress_down(void *arg) { (void)arg; }

static const struct egressc_ops egress_ops = {
    .up = egress_up, .next = egress_next, .down = egress_down, .event = net_event};

void nets_secret_changed(struct front *f, const struct vault_secret *s)
{
    if (f->nets)
        net_send(f->nets, vault_message(s));
}

void nets_secret_gone(struct front *f, const char *tenant, const char *name)
{
    if (f->nets)
        net_send(f->nets, vault_gone_message(tenant, name));
}

/* --- life --------------------------------------------------------------------------------------------------------- */

static struct nets *nets_of(struct front *f)
{
    if (!f->nets) {
        f->nets = xcalloc(1, sizeof *f->nets);
        f->nets->front = f;
    }
    return f->nets;
}

static bool password_key(void *arg, unsigned char ret[EGRESSC_KEY]) { return nets_key(arg, ret); }

int nets_open(struct front *f, int run_dir, bool without, struct err *err)
{
    struct nets *n = nets_of(f);
    net_doc_key(password_key, f);
    return without ? 0 : egressc_new(f->loop, run_dir, &egress_ops, f, &n->client, err);
}

void nets_free(struct front *f)
{
    struct nets *n = f->nets;
    size_t at = 0;
    if (!n)
        return;
    net_doc_key(NULL, NULL);
    egressc_free(n->client);
    approvals_free(f);
    for (struct net_headers *k; (k = map_next(&n->headers, &at));)
        free_headers(k);
    map_done(&n->headers);
    net_usage_free(n);
    for (size_t i = 0; i < ARRAY_LEN(n->to_tell); i++)
        strv_done(&n->to_tell[i]);
    free(n);
    f->nets = NULL;
}

bool nets_on(const struct front *f) { return f->nets && f->nets->client; }

bool nets_key(const struct front *f, unsigned char ret[EGRESSC_KEY])
{
    return nets_on(f) && egressc_key(f->nets->client, ret);
}

/* A network from the store. One that cannot be read any more (a preset is gone) stays, as a word that allows nothing. */
static void load_one(void *arg, const struct store_net *row)
{
    struct front *f = arg;
    struct box *b = map_get(&f->boxes->by_id, row->sandbox);
    struct err err;
    if (!b || b->net)
        return;
    b->net = xcalloc(1, sizeof *b->net);
    b->net->epoch = b->net->replaced = row->epoch; /* when that was is not stored: at the latest now */
    if (net_doc_again(row->document, row->e2b, &b->net->doc, &err) < 0) {
        log_text(LOG_LEVEL_ERROR, "the network of sandbox %s cannot be read (%s): it is off now", b->id, err.msg);
        if (net_doc_text("\"off\"", 5, &b->net->doc, &err) < 0)
            abort(); /* the shortest document there is */
    } else if (row->proxy_password[0]) {
        b->net->doc.proxy_password = xstrdup(row->proxy_password);
    }
    for (size_t i = 0; i < row->placeholders.n; i++)
        strv_add(&b->net->placeholders, row->placeholders.v[i]);
    for (size_t i = 0; i < row->denied.n; i++)
        strv_add(&b->net->denied, row->denied.v[i]);
    net_headers_take(f->nets, b->tenant->id, &b->net->doc);
}

static void make_missing(void *arg, struct box *b)
{
    struct err err;
    if (!b->net && net_attach(arg, b, NULL, &err) == 0)
        net_write(arg, b);
}

int nets_load(struct front *f, struct err *err)
{
    (void)nets_of(f);
    if (store_nets(f->store, load_one, f, err) < 0 || net_usage_load(f, err) < 0)
        return -1;
    store_net_sweep(f->store);
    boxes_each(f, make_missing, f); /* of a version that had none */
    return 0;
}

/* --- a box -------------------------------------------------------------------------------------------------------- */

static const char *placeholder_of(const struct box_net *n, const char *secret)
{
    for (size_t i = 0; i + 1 < n->placeholders.n; i += 2)
        if (strcmp(n->placeholders.v[i], secret) == 0)
            return n->placeholders.v[i + 1];
    return NULL;
}

/* Sets of headers that are not there yet, and whether there is room for them. */
static int check_headers(struct front *f, const char *tenant, const struct net_doc *doc, struct err *err)
{
    size_t added = 0, mine = 0, at = 0;
    for (size_t i = 0; i < doc->nheaders; i++) {
        _cleanup_free_ char *key = xasprintf("%s/%s", tenant, doc->headers[i].name);
        added += !map_get(&f->nets->headers, key);
    }
    if (!added)
        return 0;
    for (const struct net_headers *k; (k = map_next(&f->nets->headers, &at));)
        mine += strcmp(k->tenant, tenant) == 0;
    if (mine + added > NET_HEADERS_TENANT_MAX)
        return err_set(err, ERR_LIMIT, 0,
                       "network.rules: the sandboxes of this tenant have headers set on %zu hosts, with this one %zu; "
                       "they may on %d",
                       mine, mine + added, NET_HEADERS_TENANT_MAX);
    if (f->nets->headers.n + added > NET_HEADERS_KEPT_MAX)
        return err_set(err, ERR_LIMIT, 0,
                       "network.rules: this node sets as many headers for its sandboxes as it can: %d",
                       NET_HEADERS_KEPT_MAX);
    return 0;
}

static int check_secrets(struct front *f, const struct box *b, const struct net_doc *doc, struct err *err)
{
    for (size_t i = 0; i < doc->secrets.n; i++) {
        const struct vault_secret *s = vault_find(f, b->tenant->id, doc->secrets.v[i]);
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
            if (!vault_find(f, b->tenant->id, doc->headers[i].secrets.v[k]))
                return err_set(err, ERR_USAGE, 0, "network.rules: there is no secret '%s'; POST /secrets makes one",
                               doc->headers[i].secrets.v[k]);
    return check_headers(f, b->tenant->id, doc, err);
}

/* Those of secrets that are gone: the list must not grow with every secret that ever was. */
static void drop_placeholders(struct front *f, struct box *b)
{
    struct strv *p = &b->net->placeholders, kept = {0};
    for (size_t i = 0; i + 1 < p->n; i += 2)
        if (vault_find(f, b->tenant->id, p->v[i])) {
            strv_add(&kept, p->v[i]);
            strv_add(&kept, p->v[i + 1]);
        }
    strv_done(p);
    *p = kept;
}

static void add_placeholders(struct front *f, struct box *b, const struct net_doc *doc)
{
    drop_placeholders(f, b);
    for (size_t i = 0; i < doc->secrets.n; i++)
        if (!placeholder_of(b->net, doc->secrets.v[i])) {
            strv_add(&b->net->placeholders, doc->secrets.v[i]);
            strv_take(&b->net->placeholders, vault_placeholder(vault_find(f, b->tenant->id, doc->secrets.v[i])));
        }
}

int net_attach(struct front *f, struct box *b, const struct net_doc *doc, struct err *err)
{
    struct net_doc off __attribute__((cleanup(net_doc_done))) = {0};
    (void)nets_of(f);
    if (!doc) {
        if (net_doc_text("\"off\"", 5, &off, err) < 0)
            return -1;
        doc = &off;
    }
    if (check_secrets(f, b, doc, err) < 0)
        return -1;
    b->net = xcalloc(1, sizeof *b->net);
    b->net->epoch = b->net->replaced = 1;
    net_doc_copy(&b->net->doc, doc);
    add_placeholders(f, b, doc);
    net_headers_take(f->nets, b->tenant->id, doc);
    return 0;
}

static void write_row(struct front *f, const struct box *b, store_done *done, void *arg)
{
    const struct box_net *n = b->net;
    struct store_net row = {.sandbox = b->id,
                            .epoch = n->epoch,
                            .document = n->doc.document,
                            .e2b = n->doc.e2b,
                            .proxy_password = n->doc.proxy_password,
                            .placeholders = n->placeholders,
                            .denied = n->denied};
    store_net_put(f->store, &row, done, arg);
}

void net_write(struct front *f, const struct box *b) { write_row(f, b, NULL, NULL); }

void net_tell(struct front *f, struct box *b, egressc_done *done, void *arg)
{
    net_usage_tell(f, b->tenant->id, b);
    egressc_policy(f->nets->client, net_message(b), NET_APPLY_MS, done, arg);
}

void net_gone(struct front *f, struct box *b)
{
    if (!b->net || !f->nets)
        return;
    net_send(f->nets, json_pack("{s:s, s:s}", "type", "forget", "sandbox", b->id));
    net_headers_drop(f->nets, b->tenant->id, &b->net->doc);
    approvals_forget(f, b->id);
}

void net_detach(struct box *b)
{
    struct box_net *n = b->net;
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

/* A change on its way: it is over when the row is written and egress has said something. */
struct setting {
    struct front *front;
    char id[SANDBOX_ID_MAX];
    uint64_t epoch;
    struct net_doc before;
    net_done *done;
    void *arg;
    unsigned left;
    unsigned status;
    char text[600];
};

static void setting_over(struct setting *s)
{
    if (--s->left > 0)
        return;
    struct box *b = map_get(&s->front->boxes->by_id, s->id);
    if (s->status == 0 && b) {
        char text[48];
        (void)snprintf(text, sizeof text, "{\"epoch\":%llu}", (unsigned long long)s->epoch);
        events_publish(s->front, b->id, b->tenant->id, "network.changed", text);
    }
    if (s->done)
        s->done(s->arg, s->status, s->text);
    net_doc_done(&s->before);
    free(s);
}

/* The document that was there before is there again, unless somebody has changed it since. */
static void put_back(struct setting *s)
{
    struct box *b = map_get(&s->front->boxes->by_id, s->id);
    if (!b || !b->net || b->net->epoch != s->epoch)
        return;
    net_headers_take(s->front->nets, b->tenant->id, &s->before);
    net_headers_drop(s->front->nets, b->tenant->id, &b->net->doc);
    net_doc_done(&b->net->doc);
    b->net->doc = s->before;
    s->before = (struct net_doc){0};
    b->net->epoch++;
    net_write(s->front, b);
    egressc_policy(s->front->nets->client, net_message(b), NET_APPLY_MS, NULL, NULL);
}

static void setting_applied(void *arg, json_t *answer, const char *error)
{
    struct setting *s = arg;
    if (error && answer) { /* its own word; else nobody knows */
        s->status = 400;
        (void)snprintf(s->text, sizeof s->text, "%s", error);
        put_back(s);
    } else if (error && s->status == 0) {
        s->status = 503;
        (void)snprintf(
            s->text, sizeof s->text,
            "the network is stored, but egress has not confirmed it yet: until it does, the one before may still be in "
            "force; end the sandbox if that cannot wait");
    }
    setting_over(s);
}

static void setting_written(void *arg, const struct err *err)
{
    struct setting *s = arg;
    if (err && s->status == 0) {
        struct state_failure why = {0};
        state_fail_write(&why, err, "the network cannot be stored");
        s->status = why.status;
        (void)snprintf(s->text, sizeof s->text, "%s", why.text);
    }
    setting_over(s);
}

struct refusal {
    net_done *done;
    void *arg;
    unsigned status;
    char text[600];
};
static void refuse_now(void *arg)
{
    struct refusal *r = arg;
    if (r->done)
        r->done(r->arg, r->status, r->text);
    free(r);
}
void net_refuse(struct front *f, unsigned status, const char *text, net_done *done, void *arg)
{
    struct refusal *r = xcalloc(1, sizeof *r);
    *r = (struct refusal){.done = done, .arg = arg, .status = status};
    (void)snprintf(r->text, sizeof r->text, "%s", text);
    loop_defer(f->loop, refuse_now, r);
}

void net_set(struct front *f, struct box *b, const struct net_doc *doc, enum net_change change, uint64_t expected,
             net_done *done, void *arg)
{
    struct err err;
    struct box_net *n = b->net;
    if (expected && expected != n->epoch) {
        char text[160];
        (void)snprintf(text, sizeof text, "the network was changed meanwhile: its epoch is %llu, not %llu",
                       (unsigned long long)n->epoch, (unsigned long long)expected);
        net_refuse(f, 409, text, done, arg);
        return;
    }
    if (check_secrets(f, b, doc, &err) < 0) {
        net_refuse(f, err.code == ERR_LIMIT ? 429 : 400, err.msg, done, arg);
        return;
    }
    struct setting *s = xcalloc(1, sizeof *s);
    *s = (struct setting){.front = f, .epoch = ++n->epoch, .before = n->doc, .done = done, .arg = arg, .left = 1};
    memcpy(s->id, b->id, sizeof s->id);
    if (change == NET_WHOLE)
        n->replaced = n->epoch;
    net_doc_copy(&n->doc, doc);
    net_headers_take(f->nets, b->tenant->id, &n->doc);
    net_headers_drop(f->nets, b->tenant->id, &s->before);
    add_placeholders(f, b, doc);
    s->left += nets_on(f);
    write_row(f, b, setting_written, s);
    if (nets_on(f))
        net_tell(f, b, setting_applied, s);
}

/* --- requests ----------------------------------------------------------------------------------------------------- */

struct no_egress {
    egressc_done *done;
    void *arg;
};
static void say_no_egress(void *arg)
{
    struct no_egress *x = arg;
    x->done(x->arg, NULL, "this node has no network");
    free(x);
}

void net_ask(struct front *f, const struct box *b, json_t *message, egressc_done *done, void *arg)
{
    if (nets_on(f)) {
        const char *type = json_string_value(json_object_get(message, "type"));
        if (b && strcmp(type, "stats") != 0) /* those are of all; the asker picks */
            (void)json_object_set_new(message, "sandbox", json_string(b->id));
        const char *tenant = json_string_value(json_object_get(message, "tenant"));
        if (tenant)
            net_usage_tell(f, tenant, NULL);
        egressc_ask(f->nets->client, message, NET_ASK_MS, done, arg);
        return;
    }
    struct no_egress *x = xcalloc(1, sizeof *x);
    *x = (struct no_egress){done, arg};
    json_decref(message);
    loop_defer(f->loop, say_no_egress, x);
}
