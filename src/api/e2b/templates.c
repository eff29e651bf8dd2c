/* templates.c - E2B's view of the templates that a caller can use: directories of the node, and rows of the database
 * (built, imported, or public templates of other tenants). Snapshots are rows, too, but snapshots.c lists them.
 */
#include <stdio.h>
#include <string.h>

#include "api/e2b/e2b.h"
#include "api/reply.h"
#include "api/sandbox-json.h"
#include "base/cleanup.h"
#include "base/json.h"
#include "base/sha256.h"
#include "snapshots/snapshots.h"

/* A template that is a directory has no build, but clients need a build id: a stable one in the form of a UUID. */
static void e2b_template_build_id(const struct template_info *t, char ret[40])
{
    char seed[128], hex[SHA256_HEX];
    int n = snprintf(seed, sizeof seed, "%s@%llu", t->name, (unsigned long long)t->created_unix);
    sha256_hex(seed, (size_t)n, hex);
    (void)snprintf(ret, 40, "%.8s-%.4s-4%.3s-8%.3s-%.12s", hex, hex + 8, hex + 12, hex + 15, hex + 18);
}

static const char *e2b_template_build_status(const struct template_info *t)
{
    return strcmp(t->state, "ready") == 0 || strcmp(t->state, "building") == 0 || strcmp(t->state, "error") == 0
               ? t->state
               : "waiting";
}

static void e2b_template_add_directory(struct json *j, const struct template_info *t)
{
    char id[40], when[REPLY_TIME_MAX];
    e2b_template_build_id(t, id);
    reply_time(t->created_unix * 1000, when);
    json_obj(j, NULL);
    json_str(j, "templateID", t->name);
    json_str(j, "buildID", id);
    json_u64(j, "cpuCount", e2b_cpu_count(t->cpu_milli));
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
    json_str(j, "envdVersion", API_ENVD_VERSION);
    json_str(j, "buildStatus", e2b_template_build_status(t));
    if (t->text[0])
        json_str(j, "message", t->text);
}

static void e2b_template_add_listed(void *arg, const struct template_info *t)
{
    e2b_template_add_directory(arg, t);
    json_end_obj(arg);
}

static uint64_t e2b_template_megabytes(uint64_t given, uint64_t standard) { return (given ? given : standard) >> 20; }

static void e2b_template_add_size(struct json *j, const struct api *api, const struct template_config *t)
{
    json_u64(j, "cpuCount", e2b_cpu_count(t->cpu_milli ? t->cpu_milli : api->config->default_cpu_milli));
    json_u64(j, "memoryMB", e2b_template_megabytes(t->memory, api->config->default_memory));
    json_u64(j, "diskSizeMB", e2b_template_megabytes(t->disk, api->config->default_disk));
}

static void e2b_template_add_name(struct json *j, const char *key, const struct template *t)
{
    json_arr(j, key);
    if (t->name[0])
        json_str(j, NULL, t->name);
    json_end_arr(j);
}

/* The object stays open. */
static void e2b_template_add_row(struct json *j, const struct api *api, const struct template *t)
{
    char created[REPLY_TIME_MAX], updated[REPLY_TIME_MAX], spawned[REPLY_TIME_MAX];
    reply_time(t->created_unix_ms, created);
    reply_time(t->updated_unix_ms, updated);
    reply_time(t->last_spawned_unix_ms, spawned);
    json_obj(j, NULL);
    json_str(j, "templateID", t->id);
    json_str(j, "buildID", t->ntags ? t->tags[0].build : "");
    e2b_template_add_size(j, api, t->ntags ? template_config_of(t, &t->tags[0]) : &t->config);
    json_bool(j, "public", t->public);
    e2b_template_add_name(j, "aliases", t);
    e2b_template_add_name(j, "names", t);
    json_str(j, "createdAt", created);
    json_str(j, "updatedAt", updated);
    json_none(j, "createdBy");
    json_str(j, "lastSpawnedAt", t->last_spawned_unix_ms ? spawned : NULL);
    json_u64(j, "spawnCount", t->spawned);
    json_u64(j, "buildCount", t->builds);
    json_str(j, "envdVersion", API_ENVD_VERSION);
    json_str(j, "buildStatus", "ready");
}

struct listing {
    struct json *j;
    const struct api *api;
};

static void e2b_template_add_listed_row(void *arg, const struct template *t)
{
    const struct listing *l = arg;
    if (template_only_snapshots(t))
        return;
    e2b_template_add_row(l->j, l->api, t);
    json_end_obj(l->j);
}

void e2b_templates(struct api_call *c)
{
    _cleanup_buf_ struct buf out = {0};
    struct json j;
    struct listing l = {&j, c->api};
    json_start(&j, &out);
    json_arr(&j, NULL);
    c->api->domain->templates.each_directory(c->api->templates, e2b_template_add_listed, &j);
    c->api->domain->templates.each(c->api->templates, c->who.tenant, e2b_template_add_listed_row, &l);
    json_end_arr(&j);
    reply_json(c->req, 200, &out);
}

/* Finds what param 0 names: a row, or a directory. False: it answered with 404. */
static bool e2b_template_find(struct api_call *c, const struct template **row, struct template_info *t)
{
    memset(t, 0, sizeof *t);
    if ((*row = c->api->domain->templates.find(c->api->templates, c->who.tenant, c->param[0], NULL)) ||
        c->api->domain->templates.find_directory(c->api->templates, c->param[0], t))
        return true;
    reply_error(c->req, 404, "template '%.80s' not found", c->param[0]);
    return false;
}

static void e2b_template_add_builds(struct json *j, const struct api *api, const struct template *t)
{
    char when[REPLY_TIME_MAX];
    json_arr(j, "builds");
    for (size_t i = 0; i < t->ntags; i++) {
        bool again = false; /* a build with several tags has one entry */
        for (size_t k = 0; k < i; k++)
            again |= strcmp(t->tags[k].build, t->tags[i].build) == 0;
        if (again)
            continue;
        reply_time(t->tags[i].created_unix_ms, when);
        json_obj(j, NULL);
        json_str(j, "buildID", t->tags[i].build);
        json_str(j, "status", "ready");
        json_str(j, "createdAt", when);
        json_str(j, "updatedAt", when);
        json_str(j, "finishedAt", when);
        e2b_template_add_size(j, api, template_config_of(t, &t->tags[i]));
        json_str(j, "envdVersion", API_ENVD_VERSION);
        json_end_obj(j);
    }
    json_end_arr(j);
}

static void e2b_template_add_directory_build(struct json *j, const struct template_info *t)
{
    char id[40], when[REPLY_TIME_MAX];
    e2b_template_build_id(t, id);
    reply_time(t->created_unix * 1000, when);
    json_arr(j, "builds");
    json_obj(j, NULL);
    json_str(j, "buildID", id);
    json_str(j, "status", e2b_template_build_status(t));
    json_str(j, "createdAt", when);
    json_str(j, "updatedAt", when);
    json_u64(j, "cpuCount", e2b_cpu_count(t->cpu_milli));
    json_u64(j, "memoryMB", t->memory >> 20);
    json_u64(j, "diskSizeMB", t->disk >> 20);
    json_str(j, "envdVersion", API_ENVD_VERSION);
    json_end_obj(j);
    json_end_arr(j);
}

void e2b_template(struct api_call *c)
{
    const struct template *row;
    struct template_info t;
    if (!e2b_template_find(c, &row, &t))
        return;
    _cleanup_buf_ struct buf out = {0};
    struct json j;
    json_start(&j, &out);
    if (row) {
        e2b_template_add_row(&j, c->api, row);
        e2b_template_add_builds(&j, c->api, row);
    } else {
        e2b_template_add_directory(&j, &t);
        e2b_template_add_directory_build(&j, &t);
    }
    json_end_obj(&j);
    reply_json(c->req, 200, &out);
}

void e2b_template_alias(struct api_call *c)
{
    const struct template *row;
    struct template_info t;
    if (!e2b_template_find(c, &row, &t))
        return;
    _cleanup_buf_ struct buf out = {0};
    struct json j;
    json_start(&j, &out);
    json_obj(&j, NULL);
    json_str(&j, "templateID", row ? row->id : t.name);
    json_bool(&j, "public", row ? row->public : true);
    json_end_obj(&j);
    reply_json(c->req, 200, &out);
}

static void e2b_template_add_tag(struct json *j, const char *tag, const char *build, uint64_t created_unix_ms)
{
    char when[REPLY_TIME_MAX];
    reply_time(created_unix_ms, when);
    json_obj(j, NULL);
    json_str(j, "tag", tag);
    json_str(j, "buildID", build);
    json_str(j, "createdAt", when);
    json_end_obj(j);
}

void e2b_template_tags(struct api_call *c)
{
    const struct template *row;
    struct template_info t;
    char id[40];
    if (!e2b_template_find(c, &row, &t))
        return;
    _cleanup_buf_ struct buf out = {0};
    struct json j;
    json_start(&j, &out);
    json_arr(&j, NULL);
    for (size_t i = 0; row && i < row->ntags; i++)
        e2b_template_add_tag(&j, row->tags[i].tag, row->tags[i].build, row->tags[i].created_unix_ms);
    if (!row) {
        e2b_template_build_id(&t, id);
        e2b_template_add_tag(&j, "default", id, t.created_unix * 1000);
    }
    json_end_arr(&j);
    reply_json(c->req, 200, &out);
}
