/* control-front.c - reads and executes front's messages. Every message is a JSON object with exactly the members it
 * should have; anything else ends the connection: its sender is not a front of this version.
 */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/fields.h"
#include "base/json.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/text.h"
#include "egress/control.h"
#include "egress/deny.h"
#include "egress/secrets/secrets.h"

enum {
    TENANT_MAX = 64,
    PLACEHOLDERS_MAX = 1024,
    DENIED_MAX = 1024,
    PASSWORD_MAX = 1024,
    DENIALS_DEFAULT = DENIALS_KEPT
};

struct message {
    struct egress *g;
    const char *key;
    bool *said_hello;
    json_t *json;
    const char *type;
};

static void message_answer_start(struct json *j, struct buf *out, const char *type)
{
    json_start(j, out);
    json_obj(j, NULL);
    json_str(j, "type", type);
}

static int message_malformed(const struct message *m, const json_error_t *e, struct err *err)
{
    _cleanup_buf_ struct buf safe = {0};
    text_add_safe(&safe, e->text, 200);
    return err_set(err, ERR_INTERNAL, 0, "the message \"%s\" is not as it should be: %s", m->type, buf_str(&safe));
}

static int message_bad_id(const struct message *m, struct err *err)
{
    return err_set(err, ERR_INTERNAL, 0,
                   "the message \"%s\" names no sandbox: an id has 1 to %d letters, digits, '-', '_', '.'", m->type,
                   EGRESS_ID_MAX - 1);
}

/* --- the list of everything --------------------------------------------------------------------------------------- */

static int message_on_hello(struct message *m, struct err *err)
{
    json_error_t e;
    json_int_t version;
    const char *type;
    if (json_unpack_ex(m->json, &e, 0, "{s:s,s:I!}", "type", &type, "version", &version) < 0)
        return message_malformed(m, &e, err);
    if (version != EGRESS_VERSION)
        return err_set(err, ERR_INTERNAL, 0, "front speaks version %lld, egress %d", (long long)version,
                       EGRESS_VERSION);
    size_t at = 0;
    for (struct esb *s; (s = map_next(&m->g->sandboxes, &at));)
        s->named = false;
    usage_forget_told(m->g);
    if (m->g->vault)
        secrets_hello(m->g->vault);
    *m->said_hello = true;
    struct buf out = {0};
    struct json j;
    message_answer_start(&j, &out, "hello");
    json_u64(&j, "version", EGRESS_VERSION);
    json_str(&j, "ca", m->g->ca_pem);
    json_str(&j, "key", m->key);
    json_end_obj(&j);
    control_tell(m->g, &out);
    return 0;
}

/* Front does not know the sandbox any more. If the keeper that attached it is gone too, closes its sockets: the next
 * keeper attaches the sandboxes that still exist. */
static void esb_drop_policy(struct esb *s)
{
    if (s->policy)
        esb_set_policy(s, NULL, 0);
    if (s->tcp >= 0 && !control_keeper_there(s->g, s->keeper))
        esb_detach(s);
    esb_drop_if_unused(s);
}

static int message_on_synced(struct message *m, struct err *err)
{
    json_error_t e;
    const char *type;
    if (json_unpack_ex(m->json, &e, 0, "{s:s!}", "type", &type) < 0)
        return message_malformed(m, &e, err);
    struct esb **gone = xcalloc(m->g->sandboxes.n + 1, sizeof *gone);
    size_t at = 0, n = 0;
    for (struct esb *s; (s = map_next(&m->g->sandboxes, &at));) {
        if (!s->named)
            gone[n++] = s;
        else
            asks_tell(s);
    }
    for (size_t i = 0; i < n; i++)
        esb_drop_policy(gone[i]);
    free(gone);
    if (m->g->vault)
        secrets_synced(m->g->vault);
    return 0;
}

/* --- policies and secrets ----------------------------------------------------------------------------------------- */

static void tell_applied(const struct esb *s, uint64_t epoch, const struct netpol_error *e)
{
    struct buf out = {0};
    struct json j;
    message_answer_start(&j, &out, "applied");
    json_str(&j, "sandbox", s->id);
    json_u64(&j, "epoch", epoch);
    if (e) {
        json_obj(&j, "error");
        json_str(&j, "path", e->path);
        json_str(&j, "text", e->text);
        json_end_obj(&j);
    }
    json_end_obj(&j);
    control_tell(s->g, &out);
}

/* {name: text} */
static int take_placeholders(struct esb *s, json_t *map, struct err *err)
{
    const char *name;
    json_t *text;
    if (map && (!json_is_object(map) || json_object_size(map) > PLACEHOLDERS_MAX))
        return err_set(err, ERR_INTERNAL, 0, "placeholders is not an object of at most %d strings", PLACEHOLDERS_MAX);
    json_object_foreach(map, name, text)
    {
        if (!json_string_length(text) || json_string_length(text) >= SECRET_PLACEHOLDER_MAX)
            return err_set(err, ERR_INTERNAL, 0, "a placeholder is not a string of 1 to %d bytes",
                           SECRET_PLACEHOLDER_MAX - 1);
    }
    esb_placeholders_clear(s);
    json_object_foreach(map, name, text) esb_placeholder(s, json_string_value(text), name);
    return 0;
}

static int take_denied(struct esb *s, json_t *list, struct err *err)
{
    if (list && (!json_is_array(list) || json_array_size(list) > DENIED_MAX))
        return err_set(err, ERR_INTERNAL, 0, "denied_approvals is not a list of at most %d ids", DENIED_MAX);
    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *id = json_string_value(json_array_get(list, i));
        if (!id)
            return err_set(err, ERR_INTERNAL, 0, "denied_approvals[%zu] is not a string", i);
        ask_denied(s, id);
    }
    return 0;
}

static int message_on_policy(struct message *m, struct err *err)
{
    json_error_t e;
    const char *type, *id, *tenant, *password = NULL;
    json_int_t epoch, replaced = 0;
    json_t *document, *placeholders = NULL, *denied = NULL;
    if (json_unpack_ex(m->json, &e, 0, "{s:s,s:s,s:s,s:I,s:o,s?o,s?o,s?I,s?s!}", "type", &type, "sandbox", &id,
                       "tenant", &tenant, "epoch", &epoch, "policy", &document, "placeholders", &placeholders,
                       "denied_approvals", &denied, "replaced", &replaced, "proxy_password", &password) < 0)
        return message_malformed(m, &e, err);
    if (!control_id_is_valid(id))
        return message_bad_id(m, err);
    if (strlen(tenant) >= TENANT_MAX || epoch < 0 || replaced < 0 || (password && strlen(password) > PASSWORD_MAX))
        return err_set(err, ERR_INTERNAL, 0, "the tenant, the epoch or the password of sandbox %s is not one", id);
    struct esb *s = esb_get(m->g, id);
    struct netpol *policy = NULL;
    struct netpol_error bad = {0};
    s->named = true;
    (void)snprintf(s->tenant, sizeof s->tenant, "%s", tenant);
    usage_begins(s);
    if (json_object_size(placeholders) >
        PLACEHOLDERS_MAX) { /* the tenant's fault: refuse this policy, keep the connection */
        (void)snprintf(bad.text, sizeof bad.text, "more than %d secrets have placeholders", PLACEHOLDERS_MAX);
        tell_applied(s, (uint64_t)epoch, &bad);
        return 0;
    }
    if (take_placeholders(s, placeholders, err) < 0 || take_denied(s, denied, err) < 0)
        return -1;
    char *text = json_dumps(document, JSON_COMPACT | JSON_ENCODE_ANY);
    int rc = text ? netpol_parse_json(text, strlen(text), NULL, NULL, &policy, &bad) : -1;
    free(text);
    if (rc == 0) {
        s->replaced = (uint64_t)replaced;
        free(s->proxy_password);
        s->proxy_password = password ? xstrdup(password) : NULL;
        esb_set_policy(s, policy, (uint64_t)epoch);
    }
    tell_applied(s, (uint64_t)epoch, rc == 0 ? NULL : &bad);
    return 0;
}

static int message_on_forget(struct message *m, struct err *err)
{
    json_error_t e;
    const char *type, *id = NULL, *tenant = NULL;
    if (json_unpack_ex(m->json, &e, 0, "{s:s,s?s,s?s!}", "type", &type, "sandbox", &id, "tenant", &tenant) < 0)
        return message_malformed(m, &e, err);
    if (!id == !tenant)
        return err_set(err, ERR_INTERNAL, 0, "\"forget\" is of a sandbox or of a tenant");
    if (tenant)
        usage_forget_tenant(m->g, tenant);
    struct esb *s = id && control_id_is_valid(id) ? esb_find(m->g, id) : NULL;
    if (!s)
        return 0;
    usage_tell(s);
    esb_placeholders_clear(s);
    esb_drop_policy(s);
    return 0;
}

static int message_on_unask(struct message *m, struct err *err)
{
    json_error_t e;
    const char *type, *id, *ask;
    if (json_unpack_ex(m->json, &e, 0, "{s:s,s:s,s:s!}", "type", &type, "sandbox", &id, "id", &ask) < 0)
        return message_malformed(m, &e, err);
    struct esb *s = control_id_is_valid(id) ? esb_find(m->g, id) : NULL;
    if (s)
        ask_dropped(s, ask);
    return 0;
}

/* An unusable secret does not end the connection: only requests that need the secret are refused. */
static int message_on_secret(struct message *m, struct err *err)
{
    struct err bad = {0};
    if (m->g->config.run) /* the run waits for the error */
        return secrets_put(m->g->vault, m->json, err);
    if (!m->g->vault || secrets_put(m->g->vault, m->json, &bad) < 0) {
        struct log_line l;
        const char *name = json_string_value(json_object_get(m->json, "name"));
        if (log_start(&l, LOG_LEVEL_WARN, "a secret cannot be used")) {
            log_str(&l, "name", name);
            log_str(&l, "why", m->g->vault ? bad.msg : "this process was given no key");
            log_end(&l);
        }
    }
    return 0;
}

static int message_on_unsecret(struct message *m, struct err *err)
{
    json_error_t e;
    const char *type, *tenant, *name;
    if (json_unpack_ex(m->json, &e, 0, "{s:s,s:s,s:s!}", "type", &type, "tenant", &tenant, "name", &name) < 0)
        return message_malformed(m, &e, err);
    if (m->g->vault)
        secrets_remove(m->g->vault, tenant, name);
    return 0;
}

/* --- what was counted before ---------------------------------------------------------------------------------------- */

static uint64_t seed_count(const json_t *o, const char *name)
{
    int64_t n = field_number(o, name);
    return n > 0 ? (uint64_t)n : 0;
}

static void seed_read(const json_t *o, struct usage_seed *ret)
{
    const char *name;
    json_t *h;
    ret->ended = seed_count(o, "sandboxes_ended");
    ret->counts = (struct esb_counts){.connections = seed_count(o, "connections"),
                                      .requests = seed_count(o, "requests"),
                                      .denied = seed_count(o, "denied"),
                                      .bytes_up = seed_count(o, "bytes_up"),
                                      .bytes_down = seed_count(o, "bytes_down"),
                                      .dns = seed_count(o, "dns"),
                                      .injections = seed_count(o, "injections"),
                                      .redactions = seed_count(o, "redactions"),
                                      .violations = seed_count(o, "violations")};
    json_object_foreach(json_object_get(o, "hosts"), name, h)
    {
        if (strlen(name) >= NETPOL_NAME_MAX)
            continue;
        usage_host(&ret->hosts, name)->counts = (struct host_counts){.requests = seed_count(h, "requests"),
                                                                     .denied = seed_count(h, "denied"),
                                                                     .bytes_up = seed_count(h, "bytes_up"),
                                                                     .bytes_down = seed_count(h, "bytes_down")};
    }
}

static int message_on_seed(struct message *m, struct err *err)
{
    json_error_t e;
    const char *type, *tenant, *id = NULL;
    json_t *counted;
    if (json_unpack_ex(m->json, &e, 0, "{s:s,s:s,s?s,s:o!}", "type", &type, "tenant", &tenant, "sandbox", &id, "usage",
                       &counted) < 0)
        return message_malformed(m, &e, err);
    if (id && !control_id_is_valid(id))
        return message_bad_id(m, err);
    if (!*tenant || strlen(tenant) >= TENANT_MAX)
        return err_set(err, ERR_INTERNAL, 0, "the tenant of \"seed\" is not one");
    struct usage_seed seed = {0};
    seed_read(counted, &seed);
    usage_seed(m->g, id ? esb_get(m->g, id) : NULL, tenant, &seed);
    usage_free_hosts(&seed.hosts);
    return 0;
}

/* --- questions ---------------------------------------------------------------------------------------------------- */

static bool request_valid(const json_t *r)
{
    return json_is_integer(r) || (json_is_string(r) && json_string_length(r) <= 128);
}

/* {"type":"T","request":R, and the text (members, without braces) after it */
static void message_answer(const struct message *m, const json_t *request, const char *members)
{
    struct buf out = {0};
    char *r = json_dumps(request, JSON_ENCODE_ANY | JSON_COMPACT);
    buf_addf(&out, "{\"type\":\"%s\",\"request\":%s,%s}", m->type, r ? r : "null", members);
    free(r);
    control_tell(m->g, &out);
}

static void message_answer_error(const struct message *m, const json_t *request, const char *text)
{
    _cleanup_buf_ struct buf b = {0};
    struct json j;
    json_start(&j, &b);
    json_obj(&j, NULL);
    json_str(&j, "error", text);
    json_end_obj(&j);
    b.p[b.n - 1] = '\0';
    message_answer(m, request, b.p + 1);
}

/* Answers with the members of a complete JSON object. */
static void message_answer_object(const struct message *m, const json_t *request, struct buf *object)
{
    if (object->n < 2 || object->p[0] != '{' || object->p[object->n - 1] != '}') {
        message_answer_error(m, request, object->n ? object->p : "there is no answer");
        return;
    }
    object->p[object->n - 1] = '\0';
    message_answer(m, request, object->p + 1);
}

static void add_stats(struct json *j, const struct esb *s)
{
    json_obj(j, NULL);
    json_str(j, "sandbox", s->id);
    usage_add_counts(j, &s->counts);
    json_u64(j, "open", s->nflows);
    usage_add_rest(j, &s->counts);
    usage_add_hosts(j, &s->hosts, CONTROL_STATS_MAX);
    json_end_obj(j);
}

static int message_on_stats(struct message *m, struct err *err)
{
    json_error_t e;
    const char *type, *id = NULL;
    json_t *request;
    if (json_unpack_ex(m->json, &e, 0, "{s:s,s:o,s?s!}", "type", &type, "request", &request, "sandbox", &id) < 0)
        return message_malformed(m, &e, err);
    if (!request_valid(request))
        return err_set(err, ERR_INTERNAL, 0, "the request of \"stats\" is neither a number nor a short string");
    _cleanup_buf_ struct buf b = {0};
    struct json j;
    size_t at = 0;
    json_start(&j, &b);
    json_obj(&j, NULL);
    json_arr(&j, "sandboxes");
    for (struct esb *s; (s = map_next(&m->g->sandboxes, &at));)
        if (!id || strcmp(s->id, id) == 0)
            add_stats(&j, s);
    json_end_arr(&j);
    json_end_obj(&j);
    message_answer_object(m, request, &b);
    return 0;
}

static int message_on_tenant(struct message *m, struct err *err)
{
    json_error_t e;
    const char *type, *tenant;
    json_t *request;
    if (json_unpack_ex(m->json, &e, 0, "{s:s,s:o,s:s!}", "type", &type, "request", &request, "tenant", &tenant) < 0)
        return message_malformed(m, &e, err);
    if (!request_valid(request))
        return err_set(err, ERR_INTERNAL, 0, "the request of \"tenant\" is neither a number nor a short string");
    /* Told before the answer, so that front has stored these numbers even if this process ends right after it. */
    size_t at = 0;
    for (struct esb *s; !control_busy(m->g) && (s = map_next(&m->g->sandboxes, &at));)
        if (strcmp(s->tenant, tenant) == 0)
            usage_tell(s);
    usage_tell_tenants(m->g, tenant);
    _cleanup_buf_ struct buf b = {0};
    usage_tenant(m->g, tenant, CONTROL_STATS_MAX, &b);
    message_answer_object(m, request, &b);
    return 0;
}

static int message_on_question(struct message *m, struct err *err)
{
    json_error_t e;
    const char *type, *id, *url = NULL, *method = NULL;
    json_int_t since = 0, limit = DENIALS_DEFAULT;
    json_t *request;
    int rc;
    if (strcmp(m->type, "check") == 0)
        rc = json_unpack_ex(m->json, &e, 0, "{s:s,s:o,s:s,s:s,s?s!}", "type", &type, "request", &request, "sandbox",
                            &id, "url", &url, "method", &method);
    else if (strcmp(m->type, "denials") == 0)
        rc = json_unpack_ex(m->json, &e, 0, "{s:s,s:o,s:s,s?I,s?I!}", "type", &type, "request", &request, "sandbox",
                            &id, "since", &since, "limit", &limit);
    else
        rc = json_unpack_ex(m->json, &e, 0, "{s:s,s:o,s:s!}", "type", &type, "request", &request, "sandbox", &id);
    if (rc < 0)
        return message_malformed(m, &e, err);
    if (request_valid(request) && (since < 0 || limit < 0)) {
        message_answer_error(m, request, "a number is negative");
        return 0;
    }
    if (!request_valid(request))
        return err_set(err, ERR_INTERNAL, 0,
                       "a number in \"%s\" is none, or its request neither a number nor a short string", m->type);
    struct esb *s = control_id_is_valid(id) ? esb_find(m->g, id) : NULL;
    if (!s || !s->policy) {
        message_answer_error(m, request, "no such sandbox");
        return 0;
    }
    _cleanup_buf_ struct buf out = {0};
    if (url) {
        (void)internal_check(s, url, method, &out);
    } else if (strcmp(m->type, "denials") == 0) {
        deny_list(s, (uint64_t)since, limit > DENIALS_KEPT ? DENIALS_KEPT : (unsigned)limit, &out);
    } else {
        buf_adds(&out, "{\"policy\":");
        learn_write_document(s, &out);
        buf_addc(&out, '}');
    }
    message_answer_object(m, request, &out);
    return 0;
}

/* --- which ------------------------------------------------------------------------------------------------------------ */

static const struct {
    const char *type;
    int (*fn)(struct message *m, struct err *err);
} kinds[] = {
    {"hello", message_on_hello},       {"policy", message_on_policy},    {"secret", message_on_secret},
    {"unsecret", message_on_unsecret}, {"forget", message_on_forget},    {"synced", message_on_synced},
    {"stats", message_on_stats},       {"learned", message_on_question}, {"denials", message_on_question},
    {"check", message_on_question},    {"unask", message_on_unask},      {"tenant", message_on_tenant},
    {"seed", message_on_seed},
};

int control_message(struct egress *g, const char *key_hex, bool *said_hello, const char *p, size_t n, struct err *err)
{
    json_error_t e;
    _cleanup_json_ json_t *json = json_loadb(p, n, JSON_REJECT_DUPLICATES, &e);
    if (!json)
        return err_set(err, ERR_INTERNAL, 0, "a message of front is not JSON: line %d column %d", e.line, e.column);
    const char *type = json_string_value(json_object_get(json, "type"));
    for (size_t i = 0; type && i < ARRAY_LEN(kinds); i++) {
        if (strcmp(type, kinds[i].type) != 0)
            continue;
        if (!*said_hello && i != 0)
            return err_set(err, ERR_INTERNAL, 0, "the first message must be \"hello\", not \"%s\"", kinds[i].type);
        struct message m = {.g = g, .key = key_hex, .said_hello = said_hello, .json = json, .type = kinds[i].type};
        return kinds[i].fn(&m, err);
    }
    _cleanup_buf_ struct buf safe = {0};
    text_add_safe(&safe, type ? type : "(none)", 40);
    return err_set(err, ERR_INTERNAL, 0, "a message of front is of no known type: %s", buf_str(&safe));
}
