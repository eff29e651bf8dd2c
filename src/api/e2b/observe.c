/* observe.c - metrics and logs of sandboxes. */
#include <stdio.h>
#include <string.h>

#include "api/e2b/envd.h"
#include "api/reply.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/num.h"
#include "http/url.h"
#include "sandboxes/events.h"
#include "sandboxes/metrics.h"

/* Reads one query parameter as a number, if it is there. False: it answered with 400. */
static bool e2b_observe_query_u64(struct http_req *r, const char *name, uint64_t max, uint64_t *ret)
{
    _cleanup_buf_ struct buf text = {0};
    struct err err;
    uint64_t v;
    int have = url_query_get(r->query, name, URL_PLUS_SPACE, &text, &err);
    if (have == 0 || (have > 0 && text.n == 0))
        return true;
    if (have > 0 && num_u64(buf_str(&text), &v) && v <= max) {
        *ret = v;
        return true;
    }
    reply_error(r, 400, "query parameter '%s' must be a whole number up to %llu", name, (unsigned long long)max);
    return false;
}

/* Percent of what the sandbox may use, in hundredths. */
static uint64_t e2b_metric_cpu_hundredths(const struct sandbox *b, const struct metric *m)
{
    uint64_t limit = b->desc.cpu_milli ? b->desc.cpu_milli : 1000;
    return (uint64_t)m->cpu_milli_used * 10000 / limit;
}

static void e2b_metric_add(struct json *j, const char *key, const struct sandbox *b, const struct metric *m)
{
    char when[REPLY_TIME_MAX];
    reply_time(m->at_unix_ms, when);
    json_obj(j, key);
    json_str(j, "timestamp", when);
    json_u64(j, "timestampUnix", m->at_unix_ms / 1000);
    json_u64(j, "cpuCount", e2b_cpu_count(b->desc.cpu_milli));
    json_fixed(j, "cpuUsedPct", e2b_metric_cpu_hundredths(b, m), 2);
    json_u64(j, "memUsed", m->memory);
    json_u64(j, "memTotal", b->desc.memory);
    json_u64(j, "memCache", 0);
    json_u64(j, "diskUsed", m->disk);
    json_u64(j, "diskTotal", b->desc.disk);
    json_end_obj(j);
}

struct metrics_out {
    struct json j;
    const struct sandbox *b;
};

static void e2b_metric_on_each(void *arg, const struct metric *m)
{
    struct metrics_out *o = arg;
    e2b_metric_add(&o->j, NULL, o->b, m);
}

void e2b_metrics(struct api_call *c)
{
    uint64_t start = 0, end = UINT32_MAX;
    if (!e2b_observe_query_u64(c->req, "start", UINT32_MAX, &start) ||
        !e2b_observe_query_u64(c->req, "end", UINT32_MAX, &end))
        return;
    struct sandbox *b = api_sandbox_of(c);
    if (!b)
        return;
    _cleanup_buf_ struct buf out = {0};
    struct metrics_out o = {.b = b};
    json_start(&o.j, &out);
    json_arr(&o.j, NULL);
    metrics_each(b, start * 1000, end * 1000 + 999, e2b_metric_on_each, &o);
    json_end_arr(&o.j);
    reply_json(c->req, 200, &out);
}

void e2b_metrics_many(struct api_call *c)
{
    _cleanup_buf_ struct buf ids = {0}, out = {0};
    struct err err;
    struct json j;
    char id[SANDBOX_ID_MAX], *save = NULL;
    unsigned n = 0;
    int have = url_query_get(c->req->query, "sandbox_ids", URL_PLUS_SPACE, &ids, &err);
    if (have <= 0 || !ids.n) {
        reply_error(c->req, 400, "query parameter 'sandbox_ids' must be a list of sandbox ids, separated by commas");
        return;
    }
    json_start(&j, &out);
    json_obj(&j, NULL);
    json_obj(&j, "sandboxes");
    for (char *s = strtok_r(ids.p, ",", &save); s; s = strtok_r(NULL, ",", &save)) {
        struct metric m;
        if (++n > 100) {
            reply_error(c->req, 400, "query parameter 'sandbox_ids' must name at most 100 sandboxes");
            return;
        }
        struct sandbox *b = NULL;
        if (api_sandbox_id(s, strlen(s), id))
            b = c->api->domain->sandboxes.find(c->api->sandboxes, &c->who, id);
        if (b && c->api->domain->sandboxes.last_metric(b, &m))
            e2b_metric_add(&j, b->id, b, &m);
    }
    json_end_obj(&j);
    json_end_obj(&j);
    reply_json(c->req, 200, &out);
}

void usage_route(struct api_call *c, const struct sandbox *b)
{
    struct metric m = {.at_unix_ms = clock_unix_ms()};
    _cleanup_buf_ struct buf out = {0};
    struct json j;
    (void)metrics_last(b, &m);
    json_start(&j, &out);
    json_obj(&j, NULL);
    json_u64(&j, "ts", m.at_unix_ms / 1000);
    json_u64(&j, "cpu_count", e2b_cpu_count(b->desc.cpu_milli));
    json_fixed(&j, "cpu_used_pct", e2b_metric_cpu_hundredths(b, &m), 2);
    json_u64(&j, "mem_total", b->desc.memory);
    json_u64(&j, "mem_used", m.memory);
    json_u64(&j, "mem_cache", 0);
    json_u64(&j, "mem_total_mib", b->desc.memory >> 20);
    json_u64(&j, "mem_used_mib", m.memory >> 20);
    json_u64(&j, "disk_used", m.disk);
    json_u64(&j, "disk_total", b->desc.disk);
    json_end_obj(&j);
    reply_json(c->req, 200, &out);
}

/* E2B's log of a sandbox is made from its events. */
struct log_entry {
    uint64_t at;
    char *type, *json;
};
struct log_query {
    uint64_t start;
    size_t limit;
    bool backward;
    int level; /* lowest level to show: 0 debug, 1 info, 2 warn, 3 error */
    struct buf search;
    struct log_entry *v;
    size_t n;
};

static const char *const levels[] = {"debug", "info", "warn", "error"};

static int e2b_log_level_of(const char *type)
{
    return strcmp(type, "died") == 0 ? 3 : strcmp(type, "denial") == 0 ? 2 : 1;
}

static void e2b_log_collect(void *arg, const struct event *e)
{
    struct log_query *q = arg;
    if (!e || q->n == EVENTS_KEPT || e2b_log_level_of(e->type) < q->level ||
        (q->backward ? q->start && e->at_unix_ms > q->start : e->at_unix_ms < q->start))
        return;
    if (q->search.n && !strstr(e->type, q->search.p) && !strstr(e->json, q->search.p))
        return;
    q->v[q->n].at = e->at_unix_ms;
    q->v[q->n].type = xstrdup(e->type);
    q->v[q->n++].json = xstrdup(e->json);
}

static void e2b_log_add_entry(struct json *j, const struct log_entry *e)
{
    char when[REPLY_TIME_MAX];
    reply_time(e->at, when);
    json_obj(j, NULL);
    json_str(j, "timestamp", when);
    json_str(j, "level", levels[e2b_log_level_of(e->type)]);
    json_str(j, "message", e->type);
    json_obj(j, "fields");
    json_str(j, "logger", "hutch");
    json_str(j, "event", e->json);
    json_end_obj(j);
    json_end_obj(j);
}

/* The CLI parses each line as JSON and requires a level in it. */
static void e2b_log_add_line(struct json *j, const struct log_entry *e)
{
    char when[REPLY_TIME_MAX];
    _cleanup_buf_ struct buf line = {0};
    struct json in;
    reply_time(e->at, when);
    json_start(&in, &line);
    json_obj(&in, NULL);
    json_str(&in, "level", levels[e2b_log_level_of(e->type)]);
    json_str(&in, "message", e->type);
    json_str(&in, "logger", "hutch");
    json_str(&in, "event", e->json);
    json_end_obj(&in);
    json_obj(j, NULL);
    json_str(j, "timestamp", when);
    json_str(j, "line", buf_str(&line));
    json_end_obj(j);
}

static void e2b_log_add_all(struct json *j, const struct log_query *q,
                            void (*add)(struct json *j, const struct log_entry *e))
{
    size_t n = q->n < q->limit ? q->n : q->limit;
    for (size_t i = 0; i < n; i++)
        add(j, &q->v[q->backward ? q->n - 1 - i : i]);
}

static void e2b_log_answer(struct api_call *c, struct log_query *q, bool v2)
{
    char id[SANDBOX_ID_MAX];
    _cleanup_buf_ struct buf out = {0};
    struct json j;
    struct event_log *log = api_sandbox_id(c->param[0], strlen(c->param[0]), id)
                                ? events_find(c->api->events, c->who.tenant->id, id)
                                : NULL;
    if (!log) {
        if (api_sandbox_of(c)) /* alive, but without an event so far */
            reply_json(c->req, 200, (buf_adds(&out, v2 ? "{\"logs\":[]}" : "{\"logs\":[],\"logEntries\":[]}"), &out));
        return;
    }
    struct log_entry kept[EVENTS_KEPT];
    api_note_sandbox(c->req, id);
    q->v = kept;
    events_replay(log, 0, e2b_log_collect, q);
    json_start(&j, &out);
    json_obj(&j, NULL);
    json_arr(&j, "logs");
    e2b_log_add_all(&j, q, v2 ? e2b_log_add_entry : e2b_log_add_line);
    json_end_arr(&j);
    if (!v2) {
        json_arr(&j, "logEntries");
        e2b_log_add_all(&j, q, e2b_log_add_entry);
        json_end_arr(&j);
    }
    json_end_obj(&j);
    for (size_t i = 0; i < q->n; i++)
        free(kept[i].type), free(kept[i].json);
    reply_json(c->req, 200, &out);
}

void e2b_logs(struct api_call *c)
{
    struct log_query q = {0};
    uint64_t limit = 1000;
    if (e2b_observe_query_u64(c->req, "start", INT64_MAX, &q.start) &&
        e2b_observe_query_u64(c->req, "limit", 1000, &limit)) {
        q.limit = limit;
        e2b_log_answer(c, &q, false);
    }
}

void e2b_logs_v2(struct api_call *c)
{
    struct log_query q = {.backward = true};
    struct http_req *r = c->req;
    _cleanup_buf_ struct buf direction = {0}, level = {0};
    struct err err;
    uint64_t limit = 1000;
    if (!e2b_observe_query_u64(r, "cursor", INT64_MAX, &q.start) || !e2b_observe_query_u64(r, "limit", 1000, &limit))
        return;
    q.limit = limit;
    if (url_query_get(r->query, "direction", URL_PLUS_SPACE, &direction, &err) < 0 ||
        url_query_get(r->query, "level", URL_PLUS_SPACE, &level, &err) < 0 ||
        url_query_get(r->query, "search", URL_PLUS_SPACE, &q.search, &err) < 0) {
        reply_error(r, 400, "%s", err.msg);
    } else if (direction.n && strcmp(direction.p, "forward") != 0 && strcmp(direction.p, "backward") != 0) {
        reply_error(r, 400, "query parameter 'direction' must be 'forward' or 'backward'");
    } else if (q.search.n > 256) {
        reply_error(r, 400, "query parameter 'search' must be at most 256 bytes");
    } else {
        q.backward = !direction.n || strcmp(direction.p, "backward") == 0;
        while (level.n && q.level < 4 && strcmp(level.p, levels[q.level]) != 0)
            q.level++;
        if (q.level == 4)
            reply_error(r, 400, "query parameter 'level' must be debug, info, warn or error");
        else
            e2b_log_answer(c, &q, true);
    }
    buf_done(&q.search);
}
