/* etcd-json.c - bodies of calls and their answers, in the JSON of etcd's gateway: keys and values in base64, numbers of 64
 * bits as texts. What lies below our prefix and cannot be a fact comes from another program, and is passed over. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base64.h"
#include "base/cleanup.h"
#include "base/json.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/num.h"
#include "facts/etcd-int.h"

enum { TOKEN_MAX = 4096 };

/* --- writing -------------------------------------------------------------------------------------------------------- */

static void etcd_add_bytes(struct json *j, const char *name, const void *p, size_t n)
{
    _cleanup_buf_ struct buf text = {0};
    base64_encode(&text, p, n);
    json_str(j, name, buf_str(&text));
}

static void etcd_add_key(struct json *j, const char *name, const struct etcd *e, const char *key)
{
    _cleanup_free_ char *whole = xasprintf("%s%s", e->prefix, key);
    etcd_add_bytes(j, name, whole, strlen(whole));
}

static void etcd_add_number(struct json *j, const char *name, uint64_t n)
{
    char text[24];
    (void)snprintf(text, sizeof text, "%llu", (unsigned long long)n);
    json_str(j, name, text);
}

static void etcd_add_prefix(struct json *j, const struct etcd *e, const char *prefix)
{
    _cleanup_free_ char *whole = xasprintf("%s%s", e->prefix, prefix);
    char end[FACTS_KEY_MAX * 2 + 2];
    facts_prefix_end(whole, end);
    etcd_add_bytes(j, "key", whole, strlen(whole));
    etcd_add_bytes(j, "range_end", end, strlen(end));
}

void etcd_json_range(struct etcd *e, struct etcd_call *c)
{
    struct json j;
    const struct facts_page *p = &c->page;
    c->body.n = 0;
    json_start(&j, &c->body);
    json_obj(&j, NULL);
    if (p->after) {
        /* The first key behind it ends with the smallest character that a key cannot have. */
        _cleanup_free_ char *whole = xasprintf("%s%s", e->prefix, p->after);
        _cleanup_free_ char *prefix = xasprintf("%s%s", e->prefix, p->prefix);
        char end[FACTS_KEY_MAX * 2 + 2];
        facts_prefix_end(prefix, end);
        etcd_add_bytes(&j, "key", whole, strlen(whole) + 1);
        etcd_add_bytes(&j, "range_end", end, strlen(end));
    } else if (c->limit)
        etcd_add_prefix(&j, e, p->prefix);
    else
        etcd_add_key(&j, "key", e, p->prefix); /* one fact */
    if (c->limit)
        etcd_add_number(&j, "limit", c->limit);
    if (p->revision)
        etcd_add_number(&j, "revision", p->revision);
    if (p->flags & FACTS_MAY_BE_OLD)
        json_bool(&j, "serializable", true);
    json_end_obj(&j);
}

static void etcd_add_write(struct json *j, const struct etcd *e, const struct facts_write *w)
{
    json_obj(j, NULL);
    json_obj(j, w->value ? "request_put" : "request_delete_range");
    etcd_add_key(j, "key", e, w->key);
    if (w->value)
        etcd_add_bytes(j, "value", w->value, w->n);
    if (w->value && w->lease)
        etcd_add_number(j, "lease", w->lease);
    json_end_obj(j);
    json_end_obj(j);
}

void etcd_json_change(struct etcd *e, const struct facts_test *tests, size_t ntests, const struct facts_write *writes,
                      size_t nwrites, struct buf *out)
{
    struct json j;
    json_start(&j, out);
    json_obj(&j, NULL);
    json_arr(&j, "compare");
    for (size_t i = 0; i < ntests; i++) {
        json_obj(&j, NULL);
        etcd_add_key(&j, "key", e, tests[i].key);
        json_str(&j, "target", "MOD");
        json_str(&j, "result", "EQUAL");
        etcd_add_number(&j, "mod_revision", tests[i].revision);
        json_end_obj(&j);
    }
    json_end_arr(&j);
    json_arr(&j, "success");
    for (size_t i = 0; i < nwrites; i++)
        etcd_add_write(&j, e, &writes[i]);
    json_end_arr(&j);
    json_end_obj(&j);
}

void etcd_json_watch(struct etcd *e, const char *prefix, uint64_t from, struct buf *out)
{
    struct json j;
    json_start(&j, out);
    json_obj(&j, NULL);
    json_obj(&j, "create_request");
    etcd_add_prefix(&j, e, prefix);
    etcd_add_number(&j, "start_revision", from);
    json_bool(&j, "progress_notify", true);
    json_end_obj(&j);
    json_end_obj(&j);
}

/* --- reading -------------------------------------------------------------------------------------------------------- */

uint64_t etcd_id(const json_t *o, const char *name)
{
    uint64_t n = 0;
    const json_t *v = json_object_get(o, name);
    if (json_is_integer(v) && json_integer_value(v) > 0)
        return (uint64_t)json_integer_value(v);
    if (json_is_string(v))
        (void)num_u64(json_string_value(v), &n);
    return n;
}

uint64_t etcd_number(const json_t *o, const char *name)
{
    uint64_t n = etcd_id(o, name);
    return n < INT64_MAX ? n : 0; /* one more still is a number */
}

void etcd_add_fact(struct etcd *e, struct facts_rows *rows, const json_t *kv, bool removed)
{
    _cleanup_buf_ struct buf key = {0}, value = {0};
    const char *k = json_string_value(json_object_get(kv, "key")), *v = json_string_value(json_object_get(kv, "value"));
    size_t n = strlen(e->prefix);
    bool read = k && base64_decode(&key, k, strlen(k)) && (!v || base64_decode(&value, v, strlen(v)));
    if (!read || key.n < n || memcmp(key.p, e->prefix, n) != 0 || !facts_key_is_valid(key.p + n, key.n - n) ||
        value.n > FACTS_VALUE_MAX) {
        log_text(LOG_LEVEL_WARN, "%s: passed over a key of %zu bytes that is no fact of ours", e->head.engine, key.n);
        return;
    }
    const struct facts_fact f = {.key = buf_str(&key) + n,
                                 .value = removed ? NULL : buf_str(&value),
                                 .n = value.n,
                                 .revision = etcd_number(kv, "mod_revision"),
                                 .created = etcd_number(kv, "create_revision"),
                                 .lease = etcd_number(kv, "lease")};
    facts_rows_add(rows, &f);
}

/* Every answer says at which revision it was true. One that does not is not etcd's. */
static bool etcd_has_revision(struct etcd_call *c)
{
    if (c->revision)
        return true;
    c->result = c->changes ? FACTS_UNKNOWN : FACTS_DOWN;
    buf_adds(&c->why, "its answer has no revision");
    return false;
}

/* Whether the last row is one that was asked for, and behind the one before: pages would not come to an end else. */
static bool etcd_row_fits(const struct etcd_call *c)
{
    const struct facts_rows *r = &c->rows;
    const char *key = r->v[r->n - 1].key, *before = r->n > 1 ? r->v[r->n - 2].key : c->page.after;
    if (!c->limit)
        return r->n == 1 && strcmp(key, c->page.prefix) == 0;
    return r->n <= c->limit && strncmp(key, c->page.prefix, strlen(c->page.prefix)) == 0 &&
           (!before || strcmp(key, before) > 0);
}

void etcd_parse_rows(struct etcd *e, struct etcd_call *c, json_t *body)
{
    json_t *list = json_object_get(body, "kvs"), *kv;
    size_t i;
    if (!etcd_has_revision(c))
        return;
    json_array_foreach(list, i, kv)
    {
        size_t had = c->rows.n;
        etcd_add_fact(e, &c->rows, kv, false);
        if (c->rows.n == had || etcd_row_fits(c))
            continue;
        c->result = FACTS_DOWN;
        buf_adds(&c->why, "its answer has facts that were not asked for, or in no order");
        return;
    }
    c->more = json_is_true(json_object_get(body, "more"));
    if (!c->more || c->rows.n > 0 || json_array_size(list) == 0)
        return;
    /* Nothing but keys of others in this page: go on behind them. */
    _cleanup_buf_ struct buf last = {0};
    const char *k = json_string_value(json_object_get(json_array_get(list, json_array_size(list) - 1), "key"));
    size_t n = strlen(e->prefix);
    if (k && base64_decode(&last, k, strlen(k)) && last.n > n && !memchr(last.p, 0, last.n)) {
        free((char *)(uintptr_t)c->page.after);
        c->page.after = xstrdup(buf_str(&last) + n);
        etcd_json_range(e, c);
        c->again = true;
    } else
        c->more = false;
}

void etcd_parse_change(struct etcd *e, struct etcd_call *c, json_t *body)
{
    (void)e;
    if (!etcd_has_revision(c) || json_is_true(json_object_get(body, "succeeded")))
        return;
    c->result = FACTS_DIFFERS;
    buf_adds(&c->why, "a fact is not as the change expects");
}

void etcd_parse_lease(struct etcd *e, struct etcd_call *c, json_t *body)
{
    (void)e;
    c->lease = etcd_number(body, "ID");
    c->ttl_s = (unsigned)etcd_number(body, "TTL");
    if (c->lease && c->ttl_s)
        return;
    c->result = FACTS_UNKNOWN; /* 0 would mean facts that never end */
    buf_adds(&c->why, "its answer has no lease");
}

/* A stream of one answer. Without a TTL there is no such lease. */
void etcd_parse_kept(struct etcd *e, struct etcd_call *c, json_t *body)
{
    const json_t *result = json_object_get(body, "result");
    (void)e;
    c->ttl_s = (unsigned)etcd_number(result, "TTL");
    c->lease = etcd_number(result, "ID");
    c->revision = etcd_number(json_object_get(result, "header"), "revision");
    if (c->ttl_s)
        return;
    c->result = FACTS_GONE;
    buf_adds(&c->why, "there is no such lease");
}

void etcd_parse_nothing(struct etcd *e, struct etcd_call *c, json_t *body) { (void)e, (void)c, (void)body; }

void etcd_parse_token(struct etcd *e, struct etcd_call *c, json_t *body)
{
    const char *token = json_string_value(json_object_get(body, "token"));
    size_t n = token ? strlen(token) : 0;
    bool is_right = n > 0 && n <= TOKEN_MAX;
    for (size_t i = 0; i < n && is_right; i++)
        is_right = token[i] >= ' ' && token[i] <= '~';
    if (is_right) {
        free(e->token);
        e->token = xstrdup(token);
        return;
    }
    c->result = FACTS_DENIED;
    buf_adds(&c->why, "it gave no token");
}

/* Codes of gRPC. What is not named here leaves open whether a change was made. */
static enum facts_result etcd_result_of(unsigned code, const char *text, bool changes)
{
    switch (code) {
    case 3: /* invalid argument */
        return strstr(text, "authentication failed") || strstr(text, "user name is empty") ? FACTS_DENIED
                                                                                           : FACTS_REFUSED;
    case 5: /* not found */
        return FACTS_GONE;
    case 7:  /* permission denied */
    case 9:  /* precondition: authentication is not enabled */
    case 16: /* unauthenticated */
        return FACTS_DENIED;
    case 8: /* resource exhausted */
        return strstr(text, "space exceeded") ? FACTS_FULL : FACTS_DOWN;
    case 11: /* out of range */
        return FACTS_COMPACTED;
    default:
        return changes ? FACTS_UNKNOWN : FACTS_DOWN;
    }
}

void etcd_parse_error(struct etcd_call *c, const json_t *body, unsigned status)
{
    const json_t *inner = json_object_get(body, "error"), *o = json_is_object(inner) ? inner : body;
    const char *text = json_string_value(json_object_get(o, "message"));
    uint64_t code = etcd_number(o, "code");
    code = code ? code : etcd_number(o, "grpc_code");
    text = text ? text : "";
    c->result = etcd_result_of(code < 17 ? (unsigned)code : 2, text, c->changes);
    c->why.n = 0;
    buf_addf(&c->why, "it answered %u: %.400s", status, text[0] ? text : "no reason");
    if (c->result == FACTS_DENIED && code == 9)
        buf_adds(&c->why, "; leave the user away");
}
