/* object.c - a sandbox as Daytona's clients see it; looking one up, and lists of them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/daytona/daytona.h"
#include "api/reply.h"
#include "api/sandbox-json.h"
#include "base/cleanup.h"
#include "base/mem.h"
#include "base/num.h"
#include "network/networks.h"

enum { LIST_STANDARD = 100, LIST_MAX = 200, MINUTE_S = 60 };
#define LANGUAGE_LABEL "code-toolbox-language"

const char *daytona_state_word(enum sandbox_state state)
{
    const struct sandbox b = {.state = state};
    if (state == SANDBOX_RUNNING)
        return "started";
    if (sandbox_is_being_made(&b))
        return "creating";
    if (state == SANDBOX_STORED)
        return "stopped";
    if (state == SANDBOX_FROZEN)
        return "paused";
    if (sandbox_is_resuming(&b))
        return "starting";
    if (state == SANDBOX_ENDED)
        return "destroyed";
    return sandbox_is_pausing(&b) ? "stopping" : "destroying";
}

void daytona_base_url(const struct api_call *c, struct buf *out)
{
    buf_addf(out, "%s://%s", c->req->tls ? "https" : "http", c->req->authority ? c->req->authority : "localhost");
}

bool daytona_label_is_own(const char *key)
{
    return strncmp(key, DAYTONA_OWN, strlen(DAYTONA_OWN)) == 0 || strcmp(key, "name") == 0;
}

void daytona_add_labels(struct json *j, const struct sandbox *b)
{
    json_obj(j, "labels");
    for (size_t i = 0; i + 1 < b->desc.metadata.n; i += 2)
        if (!daytona_label_is_own(b->desc.metadata.v[i]))
            json_str(j, b->desc.metadata.v[i], b->desc.metadata.v[i + 1]);
    json_end_obj(j);
}

/* Values may be secrets: for a key that reads metadata alone there are none. */
static void daytona_add_env(struct json *j, const struct api_call *c, const struct sandbox *b)
{
    json_obj(j, "env");
    for (size_t i = 0; api_sees_contents(c) && i < b->desc.env.n; i++) {
        const char *is = strchr(b->desc.env.v[i], '=');
        _cleanup_free_ char *name = is ? xstrndup(b->desc.env.v[i], (size_t)(is - b->desc.env.v[i])) : NULL;
        if (name)
            json_str(j, name, is + 1);
    }
    json_end_obj(j);
}

static uint64_t daytona_gib(uint64_t bytes) { return bytes ? (bytes + (1ULL << 30) - 1) >> 30 : 0; }

static void daytona_add_mounts(struct json *j, const struct sandbox *b)
{
    json_arr(j, "volumes");
    for (size_t i = 0; i < b->desc.nmounts; i++) {
        json_obj(j, NULL);
        json_str(j, "volumeId", b->desc.mounts[i].volume);
        json_str(j, "mountPath", b->desc.mounts[i].place);
        json_end_obj(j);
    }
    json_end_arr(j);
}

void daytona_add_sandbox(struct json *j, const struct api_call *c, const struct sandbox *b, const char *state)
{
    daytona_add_sandbox_as(j, NULL, c, b, state);
}

void daytona_add_sandbox_as(struct json *j, const char *key, const struct api_call *c, const struct sandbox *b,
                            const char *state)
{
    _cleanup_buf_ struct buf url = {0};
    char t[REPLY_TIME_MAX];
    const char *name = sandbox_desc_label(&b->desc, "name");
    daytona_base_url(c, &url);
    buf_adds(&url, "/daytona/toolbox");
    reply_time(b->started_unix_ms, t);
    json_obj(j, key);
    json_str(j, "id", b->id);
    json_str(j, "organizationId", b->tenant->id);
    json_str(j, "name", name ? name : b->id);
    json_str(j, "user", "user");
    json_str(j, "target", "hutch");
    json_str(j, "toolboxProxyUrl", buf_str(&url));
    json_str(j, "snapshot", api_template_alias(c, b));
    daytona_add_env(j, c, b);
    daytona_add_labels(j, b);
    json_bool(j, "public", b->desc.allow_public_traffic);
    json_bool(j, "networkBlockAll", !b->net || b->net->doc.nothing);
    json_bool(j, "kvm", false);
    json_u64(j, "cpu", b->desc.cpu_milli ? (b->desc.cpu_milli + 999) / 1000 : 1);
    json_u64(j, "gpu", 0);
    json_u64(j, "memory", daytona_gib(b->desc.memory));
    json_u64(j, "disk", daytona_gib(b->desc.disk));
    json_str(j, "state", state ? state : daytona_state_word(b->state));
    json_u64(j, "autoStopInterval", b->desc.life.auto_pause_files ? b->desc.life.idle_s / MINUTE_S : 0);
    json_u64(j, "autoPauseInterval", b->desc.life.auto_pause_files ? 0 : b->desc.life.idle_s / MINUTE_S);
    json_i64(j, "autoArchiveInterval", 0);
    json_i64(j, "autoDeleteInterval", sandbox_desc_label(&b->desc, DAYTONA_EPHEMERAL) ? 0 : -1);
    daytona_add_mounts(j, b);
    json_str(j, "createdAt", t);
    json_str(j, "updatedAt", t);
    api_add_isolation(j, b);
    json_end_obj(j);
}

void daytona_answer_sandbox(struct http_req *r, struct sandbox *b)
{
    _cleanup_buf_ struct buf out = {0};
    struct json j;
    json_start(&j, &out);
    daytona_add_sandbox(&j, api_call_of(r), b, NULL);
    reply_json(r, 200, &out);
}

/* --- one ------------------------------------------------------------------------------------------------------------ */

struct name_search {
    const struct tenant *tenant;
    const char *name;
    struct sandbox *found;
    size_t n;
};

static void daytona_compare_name(void *arg, struct sandbox *b)
{
    struct name_search *s = arg;
    bool counts = b->tenant == s->tenant && !b->desc.hidden && sandbox_is_there(b);
    const char *name = counts ? sandbox_desc_label(&b->desc, "name") : NULL;
    if (name && strcmp(name, s->name) == 0) {
        s->found = b;
        s->n++;
    }
}

struct sandbox *daytona_sandbox(struct api_call *c)
{
    struct name_search s = {.tenant = c->who.tenant, .name = c->param[0]};
    struct sandbox *b = c->api->domain->sandboxes.find(c->api->sandboxes, &c->who, c->param[0]);
    if (!b)
        c->api->domain->sandboxes.each(c->api->sandboxes, daytona_compare_name, &s);
    if (s.n > 1) {
        daytona_error(c->req, 409, NULL, "%zu sandboxes have the name '%.80s'; use the id of one", s.n, c->param[0]);
        return NULL;
    }
    b = b ? b : s.found;
    if (b)
        api_note_sandbox(c->req, b->id);
    else
        daytona_error(c->req, 404, NULL, "sandbox '%.80s' not found", c->param[0]);
    return b;
}

struct sandbox *daytona_same_sandbox(struct api_call *c)
{
    struct sandbox *b = sandbox_of(c->api->sandboxes, &c->who, c->sandbox);
    if (!b)
        daytona_error(c->req, 404, NULL, "sandbox '%.80s' not found", c->param[0]);
    return b;
}

void daytona_get(struct api_call *c)
{
    struct sandbox *b = daytona_sandbox(c);
    if (b)
        daytona_answer_sandbox(c->req, b);
}

/* --- many ----------------------------------------------------------------------------------------------------------- */

struct listing {
    const struct tenant *tenant;
    json_t *labels; /* NULL: any */
    struct sandbox **v;
    size_t n, cap;
};

static void daytona_list_collect(void *arg, struct sandbox *b)
{
    struct listing *l = arg;
    const char *key, *has;
    json_t *want;
    if (b->tenant != l->tenant || b->desc.hidden || !sandbox_is_there(b))
        return;
    json_object_foreach(l->labels, key, want)
    {
        has = sandbox_desc_label(&b->desc, key);
        if (!has || !json_is_string(want) || strcmp(has, json_string_value(want)) != 0)
            return;
    }
    MEM_GROW(l->v, l->n, l->cap);
    l->v[l->n++] = b;
}

static int daytona_list_compare(const void *a, const void *b)
{
    const struct sandbox *x = *(struct sandbox *const *)a, *y = *(struct sandbox *const *)b;
    if (x->started_unix_ms != y->started_unix_ms)
        return x->started_unix_ms < y->started_unix_ms ? 1 : -1;
    return strcmp(x->id, y->id);
}

/* A whole number of the query. False: it answered. */
static bool daytona_list_number(struct api_call *c, const char *name, uint64_t otherwise, uint64_t max, uint64_t *ret)
{
    _cleanup_buf_ struct buf text = {0};
    *ret = otherwise;
    if (!daytona_query(c, name, false, &text))
        return false;
    if (text.n && (!num_u64(buf_str(&text), ret) || *ret < 1 || *ret > max)) {
        daytona_error(c->req, 400, NULL, "query parameter '%s' must be a number from 1 to %llu", name,
                      (unsigned long long)max);
        return false;
    }
    return true;
}

static bool daytona_list_read(struct api_call *c, struct listing *l)
{
    _cleanup_buf_ struct buf labels = {0};
    if (!daytona_query(c, "labels", false, &labels))
        return false;
    l->tenant = c->who.tenant;
    l->labels = labels.n ? json_loadb(labels.p, labels.n, 0, NULL) : NULL;
    if (labels.n && !json_is_object(l->labels)) {
        json_decref(l->labels);
        l->labels = NULL;
        daytona_error(c->req, 400, NULL, "query parameter 'labels' must be a JSON object of strings");
        return false;
    }
    c->api->domain->sandboxes.each(c->api->sandboxes, daytona_list_collect, l);
    if (l->n)
        qsort(l->v, l->n, sizeof *l->v, daytona_list_compare);
    return true;
}

static void daytona_list_add(const struct api_call *c, struct json *j, const struct listing *l, size_t from, size_t n)
{
    json_arr(j, "items");
    for (size_t i = from; i < l->n && i - from < n; i++)
        daytona_add_sandbox(j, c, l->v[i], NULL);
    json_end_arr(j);
}

static void daytona_list_done(struct listing *l)
{
    json_decref(l->labels);
    free(l->v);
}

/* The cursor is the id of the last sandbox of the page before. */
void daytona_list(struct api_call *c)
{
    _cleanup_buf_ struct buf out = {0}, cursor = {0};
    struct listing l = {0};
    struct json j;
    uint64_t limit;
    if (!daytona_list_number(c, "limit", LIST_STANDARD, LIST_MAX, &limit) ||
        !daytona_query(c, "cursor", false, &cursor) || !daytona_list_read(c, &l))
        return;
    size_t from = 0;
    for (size_t i = 0; cursor.n && i < l.n; i++)
        if (strcmp(l.v[i]->id, buf_str(&cursor)) == 0)
            from = i + 1;
    json_start(&j, &out);
    json_obj(&j, NULL);
    daytona_list_add(c, &j, &l, from, limit);
    json_str(&j, "nextCursor", l.n - from > limit ? l.v[from + limit - 1]->id : NULL);
    json_end_obj(&j);
    reply_json(c->req, 200, &out);
    daytona_list_done(&l);
}

void daytona_list_paginated(struct api_call *c)
{
    _cleanup_buf_ struct buf out = {0};
    struct listing l = {0};
    struct json j;
    uint64_t limit, page;
    if (!daytona_list_number(c, "limit", LIST_STANDARD, LIST_MAX, &limit) ||
        !daytona_list_number(c, "page", 1, UINT32_MAX, &page) || !daytona_list_read(c, &l))
        return;
    json_start(&j, &out);
    json_obj(&j, NULL);
    daytona_list_add(c, &j, &l, (size_t)((page - 1) * limit), limit);
    json_u64(&j, "total", l.n);
    json_u64(&j, "page", page);
    json_u64(&j, "totalPages", (l.n + limit - 1) / limit);
    json_end_obj(&j);
    reply_json(c->req, 200, &out);
    daytona_list_done(&l);
}
