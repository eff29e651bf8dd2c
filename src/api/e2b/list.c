/* list.c - lists of sandboxes: filters, order and pages. */
#include <stdio.h>
#include <string.h>

#include "api/e2b/e2b.h"
#include "api/reply.h"
#include "base/base64.h"
#include "base/cleanup.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/num.h"
#include "http/url.h"
#include "snapshots/snapshots.h"

/* A cursor is base64url of "<ms>_<id>_<a|d>": the last sandbox of the page before. It holds no secret, and a forged
 * cursor only changes where the caller's own list continues. */
void e2b_cursor_write(const struct e2b_cursor *c, struct buf *out)
{
    char text[96];
    int n = snprintf(text, sizeof text, "%llu_%s_%c", (unsigned long long)c->started_ms, c->id, c->asc ? 'a' : 'd');
    base64_encode(out, text, (size_t)n);
    while (out->n && out->p[out->n - 1] == '=')
        out->p[--out->n] = 0;
    for (size_t i = 0; i < out->n; i++)
        out->p[i] = out->p[i] == '+' ? '-' : out->p[i] == '/' ? '_' : out->p[i];
}

bool e2b_cursor_read(const char *token, struct e2b_cursor *ret)
{
    _cleanup_buf_ struct buf text = {0};
    if (strlen(token) > 128 || !base64_decode(&text, token, strlen(token)) || strlen(buf_str(&text)) != text.n ||
        !text.n)
        return false;
    char *first = strchr(text.p, '_'), *last = strrchr(text.p, '_');
    if (!first || first == last || last[1] == 0 || last[2] != 0 || (last[1] != 'a' && last[1] != 'd'))
        return false;
    *first = *last = 0;
    ret->asc = last[1] == 'a';
    return num_u64(text.p, &ret->started_ms) &&
           strlen(first + 1) == strspn(first + 1, "abcdefghijklmnopqrstuvwxyz0123456789") &&
           api_sandbox_id(first + 1, strlen(first + 1), ret->id);
}

struct query {
    struct strv metadata;
    bool running, paused; /* states to list */
    bool asc, no_template;
    uint64_t started_after;
    char template[72];
    size_t limit;
    bool paged;
    struct e2b_cursor from;
    const struct tenant *tenant;
    /* result */
    const struct sandbox **v;
    size_t n, cap;
    size_t nrunning; /* running ones that match, on all pages */
};

static void e2b_list_query_done(struct query *q)
{
    strv_done(&q->metadata);
    free(q->v);
}

/* The decoded value of one query parameter. 1 there, 0 absent, -1 with err. */
static int e2b_list_param(const struct http_req *r, const char *name, struct buf *out, struct err *err)
{
    return url_query_get(r->query, name, URL_PLUS_SPACE, out, err);
}

/* url_metadata() removes the three layers of encoding of this filter itself, so it gets the raw value. */
static int e2b_list_read_metadata(const struct http_req *r, struct query *q, struct err *err)
{
    const char *rest = r->query;
    struct url_pair p;
    while (url_query_next(&rest, &p))
        if (p.key_n == 8 && memcmp(p.key, "metadata", 8) == 0)
            return url_metadata(p.value, p.value_n, &q->metadata, err) < 0 ? err_wrap(err, "query parameter 'metadata'")
                                                                           : 0;
    return 0;
}

static int e2b_list_read_state(const struct http_req *r, struct query *q, struct err *err)
{
    const char *rest = r->query;
    struct url_pair p;
    bool given = false, running = false, paused = false;
    while (url_query_next(&rest, &p)) {
        if (p.key_n != 5 || memcmp(p.key, "state", 5) != 0)
            continue;
        _cleanup_buf_ struct buf list = {0};
        if (url_decode(p.value, p.value_n, URL_PLUS_SPACE, &list, err) < 0)
            return -1;
        given = true;
        char *save = NULL;
        for (char *s = list.p ? strtok_r(list.p, ",", &save) : NULL; s; s = strtok_r(NULL, ",", &save)) {
            if (strcmp(s, "running") == 0)
                running = true;
            else if (strcmp(s, "paused") == 0)
                paused = true;
            else
                return err_set(err, ERR_USAGE, 0, "query parameter 'state' knows 'running' and 'paused'");
        }
    }
    q->running = running || !given;
    q->paused = paused || !given;
    return 0;
}

static int e2b_list_read_paging(const struct http_req *r, struct query *q, struct err *err)
{
    _cleanup_buf_ struct buf limit = {0}, token = {0}, order = {0};
    int n = 100;
    if (e2b_list_param(r, "limit", &limit, err) < 0 || e2b_list_param(r, "nextToken", &token, err) < 0 ||
        e2b_list_param(r, "order", &order, err) < 0)
        return -1;
    if (limit.n && !num_int(limit.p, 1, 100, &n))
        return err_set(err, ERR_USAGE, 0, "query parameter 'limit' must be from 1 to 100");
    if (order.n && strcmp(order.p, "asc") != 0 && strcmp(order.p, "desc") != 0)
        return err_set(err, ERR_USAGE, 0, "query parameter 'order' must be 'asc' or 'desc'");
    q->limit = (size_t)n;
    q->asc = order.n && strcmp(order.p, "asc") == 0;
    if (token.n) {
        if (!e2b_cursor_read(token.p, &q->from))
            return err_set(err, ERR_USAGE, 0, "query parameter 'nextToken' is not one this node gave out");
        if (!order.n)
            q->asc = q->from.asc;
        q->paged = true;
    }
    return 0;
}

static int e2b_list_read_query(struct api_call *c, struct query *q, struct err *err)
{
    _cleanup_buf_ struct buf after = {0}, template = {0};
    const struct http_req *r = c->req;
    q->tenant = c->who.tenant;
    if (e2b_list_read_metadata(r, q, err) < 0 || e2b_list_read_state(r, q, err) < 0 ||
        e2b_list_read_paging(r, q, err) < 0 || e2b_list_param(r, "startedAfter", &after, err) < 0 ||
        e2b_list_param(r, "template", &template, err) < 0)
        return -1;
    if (after.n && !reply_time_parse(after.p, &q->started_after))
        return err_set(err, ERR_USAGE, 0, "query parameter 'startedAfter' must be a time such as 2026-01-02T03:04:05Z");
    if (template.n) {
        struct template_info t = {0};
        const struct template *row = c->api->domain->templates.find(c->api->templates, c->who.tenant, template.p, NULL);
        if (row)
            (void)snprintf(q->template, sizeof q->template, "%s", row->id);
        else if (c->api->domain->templates.find_directory(c->api->templates, template.p, &t))
            (void)snprintf(q->template, sizeof q->template, "%s", t.name);
        else
            q->no_template = true; /* an unknown template gives an empty list, not an error */
    }
    return 0;
}

static bool e2b_list_metadata_matches(const struct sandbox *b, const struct strv *want)
{
    for (size_t i = 0; i + 1 < want->n; i += 2) {
        size_t k = 0;
        while (k + 1 < b->desc.metadata.n && (strcmp(b->desc.metadata.v[k], want->v[i]) != 0 ||
                                              strcmp(b->desc.metadata.v[k + 1], want->v[i + 1]) != 0))
            k += 2;
        if (k + 1 >= b->desc.metadata.n)
            return false;
    }
    return true;
}

static void e2b_list_collect(void *arg, struct sandbox *b)
{
    struct query *q = arg;
    if (b->tenant != q->tenant || !sandbox_is_there(b) || b->desc.hidden || q->no_template ||
        b->started_unix_ms < q->started_after || (q->template[0] && strcmp(q->template, b->desc.template) != 0) ||
        !e2b_list_metadata_matches(b, &q->metadata))
        return;
    q->nrunning += b->state == SANDBOX_RUNNING;
    if (!(sandbox_is_paused(b) ? q->paused : q->running))
        return;
    MEM_GROW(q->v, q->n, q->cap);
    q->v[q->n++] = b;
}

static int e2b_list_oldest_first(const void *a, const void *b)
{
    const struct sandbox *x = *(const struct sandbox *const *)a, *y = *(const struct sandbox *const *)b;
    if (x->started_unix_ms != y->started_unix_ms)
        return x->started_unix_ms < y->started_unix_ms ? -1 : 1;
    return strcmp(x->id, y->id);
}

static int e2b_list_newest_first(const void *a, const void *b) { return -e2b_list_oldest_first(a, b); }

/* Whether b comes after the cursor in the requested order. */
static bool e2b_list_is_after_cursor(const struct query *q, const struct sandbox *b)
{
    int cmp = b->started_unix_ms != q->from.started_ms ? (b->started_unix_ms < q->from.started_ms ? -1 : 1)
                                                       : strcmp(b->id, q->from.id);
    return q->asc ? cmp > 0 : cmp < 0;
}

static void e2b_list_answer(struct api_call *c, bool paging)
{
    struct query q = {.running = true, .limit = SIZE_MAX};
    struct err err;
    struct http_req *r = c->req;
    int ok = paging ? e2b_list_read_query(c, &q, &err) : e2b_list_read_metadata(r, &q, &err);
    q.tenant = c->who.tenant;
    if (ok < 0) {
        reply_error(r, 400, "%s", err.msg);
        e2b_list_query_done(&q);
        return;
    }
    c->api->domain->sandboxes.each(c->api->sandboxes, e2b_list_collect, &q);
    if (q.n)
        qsort(q.v, q.n, sizeof *q.v, q.asc ? e2b_list_oldest_first : e2b_list_newest_first);
    size_t i = 0, shown = 0;
    while (q.paged && i < q.n && !e2b_list_is_after_cursor(&q, q.v[i]))
        i++;
    _cleanup_buf_ struct buf out = {0}, token = {0};
    struct json j;
    json_start(&j, &out);
    json_arr(&j, NULL);
    for (; i < q.n && shown < q.limit; i++, shown++)
        e2b_add_listed(&j, NULL, c, q.v[i], false);
    json_end_arr(&j);
    if (i < q.n && shown > 0) {
        struct e2b_cursor last = {.started_ms = q.v[i - 1]->started_unix_ms, .asc = q.asc};
        memcpy(last.id, q.v[i - 1]->id, SANDBOX_ID_MAX);
        e2b_cursor_write(&last, &token);
        http_set(r, "x-next-token", buf_str(&token));
    }
    if (paging && q.running) {
        char total[24];
        (void)snprintf(total, sizeof total, "%zu", q.nrunning);
        http_set(r, "x-total-running", total);
    }
    e2b_list_query_done(&q);
    reply_json(r, 200, &out);
}

void e2b_list_v1(struct api_call *c) { e2b_list_answer(c, false); }
void e2b_list_v2(struct api_call *c) { e2b_list_answer(c, true); }
