#include <stdio.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/json.h"
#include "base/sha256.h"
#include "front/e2b/e2b.h"
#include "front/reply.h"

/* Builds have no records of their own yet; clients want an id that looks like a UUID and stays the same. */
static void build_id(const struct template_info *t, char ret[40])
{
    char seed[128], hex[SHA256_HEX];
    int n = snprintf(seed, sizeof seed, "%s@%llu", t->name, (unsigned long long)t->created_unix);
    sha256_hex(seed, (size_t)n, hex);
    (void)snprintf(ret, 40, "%.8s-%.4s-4%.3s-8%.3s-%.12s", hex, hex + 8, hex + 12, hex + 15, hex + 18);
}

static const char *build_status(const struct template_info *t)
{
    return strcmp(t->state, "ready") == 0 || strcmp(t->state, "building") == 0 || strcmp(t->state, "error") == 0
               ? t->state
               : "waiting";
}

static void add_template(struct json *j, const struct template_info *t)
{
    char id[40], when[REPLY_TIME_MAX];
    build_id(t, id);
    reply_time(t->created_unix * 1000, when);
    json_obj(j, NULL);
    json_str(j, "templateID", t->name);
    json_str(j, "buildID", id);
    json_u64(j, "cpuCount", t->cpu_milli ? (t->cpu_milli + 999) / 1000 : 1);
    json_u64(j, "memoryMB", t->memory >> 20);
    json_u64(j, "diskSizeMB", t->disk >> 20);
    json_bool(j, "public", true);
    json_arr(j, "aliases");
    json_str(j, NULL, t->name);
    json_end_arr(j);
    json_arr(j, "names");
    json_str(j, NULL, t->name);
    json_end_arr(j);
    json_str(j, "createdAt", when);
    json_str(j, "updatedAt", when);
    json_none(j, "createdBy");
    json_none(j, "lastSpawnedAt");
    json_u64(j, "spawnCount", t->spawned);
    json_u64(j, "buildCount", 1);
    json_str(j, "envdVersion", E2B_ENVD_VERSION);
    json_str(j, "buildStatus", build_status(t));
    if (t->text[0])
        json_str(j, "message", t->text);
}

static void add_listed(void *arg, const struct template_info *t)
{
    add_template(arg, t);
    json_end_obj(arg);
}

void e2b_templates(struct api_call *c)
{
    _cleanup_buf_ struct buf out = {0};
    struct json j;
    json_start(&j, &out);
    json_arr(&j, NULL);
    templates_each(c->front, add_listed, &j);
    json_end_arr(&j);
    reply_json(c->req, 200, &out);
}

/* The template of param 0; answers 404 itself. */
static bool find(struct api_call *c, struct template_info *t)
{
    memset(t, 0, sizeof *t);
    if (template_resolve(c->front, c->param[0], t))
        return true;
    reply_error(c->req, 404, "template '%.80s' not found", c->param[0]);
    return false;
}

void e2b_template(struct api_call *c)
{
    struct template_info t;
    char id[40], when[REPLY_TIME_MAX];
    if (!find(c, &t))
        return;
    _cleanup_buf_ struct buf out = {0};
    struct json j;
    build_id(&t, id);
    reply_time(t.created_unix * 1000, when);
    json_start(&j, &out);
    add_template(&j, &t);
    json_arr(&j, "builds");
    json_obj(&j, NULL);
    json_str(&j, "buildID", id);
    json_str(&j, "status", build_status(&t));
    json_str(&j, "createdAt", when);
    json_str(&j, "updatedAt", when);
    json_u64(&j, "cpuCount", t.cpu_milli ? (t.cpu_milli + 999) / 1000 : 1);
    json_u64(&j, "memoryMB", t.memory >> 20);
    json_u64(&j, "diskSizeMB", t.disk >> 20);
    json_str(&j, "envdVersion", E2B_ENVD_VERSION);
    json_end_obj(&j);
    json_end_arr(&j);
    json_end_obj(&j);
    reply_json(c->req, 200, &out);
}

void e2b_template_alias(struct api_call *c)
{
    struct template_info t;
    if (!find(c, &t))
        return;
    _cleanup_buf_ struct buf out = {0};
    struct json j;
    json_start(&j, &out);
    json_obj(&j, NULL);
    json_str(&j, "templateID", t.name);
    json_bool(&j, "public", true);
    json_end_obj(&j);
    reply_json(c->req, 200, &out);
}

void e2b_template_tags(struct api_call *c)
{
    struct template_info t;
    char id[40], when[REPLY_TIME_MAX];
    if (!find(c, &t))
        return;
    _cleanup_buf_ struct buf out = {0};
    struct json j;
    build_id(&t, id);
    reply_time(t.created_unix * 1000, when);
    json_start(&j, &out);
    json_arr(&j, NULL);
    json_obj(&j, NULL);
    json_str(&j, "tag", "default");
    json_str(&j, "buildID", id);
    json_str(&j, "createdAt", when);
    json_end_obj(&j);
    json_end_arr(&j);
    reply_json(c->req, 200, &out);
}
