/* The templates a caller can use: those of the node, which are directories, and rows: built here, imported, public ones of
 * others. Snapshots are rows too, but listed elsewhere.
 */
#include <stdio.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/json.h"
#include "base/sha256.h"
#include "front/e2b/e2b.h"
#include "front/reply.h"
#include "front/state.h"

/* What lies in a directory was built by nobody here; clients want an id that looks like a UUID and stays the same. */
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

static uint64_t megabytes(uint64_t given, uint64_t standard) { return (given ? given : standard) >> 20; }

static uint64_t cpus(const struct front *f, const struct tmpl_config *t)
{
    uint32_t milli = t->cpu_milli ? t->cpu_milli : f->config->default_cpu_milli;
    return milli ? (milli + 999) / 1000 : 1;
}

static void add_size(struct json *j, const struct front *f, const struct tmpl_config *t)
{
    json_u64(j, "cpuCount", cpus(f, t));
    json_u64(j, "memoryMB", megabytes(t->memory, f->config->default_memory));
    json_u64(j, "diskSizeMB", megabytes(t->disk, f->config->default_disk));
}

static void add_name(struct json *j, const char *key, const struct tmpl *t)
{
    json_arr(j, key);
    if (t->name[0])
        json_str(j, NULL, t->name);
    json_end_arr(j);
}

/* The object stays open. */
static void add_row(struct json *j, const struct front *f, const struct tmpl *t)
{
    char created[REPLY_TIME_MAX], updated[REPLY_TIME_MAX], spawned[REPLY_TIME_MAX];
    reply_time(t->created_unix_ms, created);
    reply_time(t->updated_unix_ms, updated);
    reply_time(t->last_spawned_unix_ms, spawned);
    json_obj(j, NULL);
    json_str(j, "templateID", t->id);
    json_str(j, "buildID", t->ntags ? t->tags[0].build : "");
    add_size(j, f, t->ntags ? tmpl_config_of(t, &t->tags[0]) : &t->config);
    json_bool(j, "public", t->public);
    add_name(j, "aliases", t);
    add_name(j, "names", t);
    json_str(j, "createdAt", created);
    json_str(j, "updatedAt", updated);
    json_none(j, "createdBy");
    json_str(j, "lastSpawnedAt", t->last_spawned_unix_ms ? spawned : NULL);
    json_u64(j, "spawnCount", t->spawned);
    json_u64(j, "buildCount", t->builds);
    json_str(j, "envdVersion", E2B_ENVD_VERSION);
    json_str(j, "buildStatus", "ready");
}

struct listing {
    struct json *j;
    const struct front *front;
};

static void add_listed_row(void *arg, const struct tmpl *t)
{
    const struct listing *l = arg;
    if (tmpl_only_snapshots(t))
        return;
    add_row(l->j, l->front, t);
    json_end_obj(l->j);
}

void e2b_templates(struct api_call *c)
{
    _cleanup_buf_ struct buf out = {0};
    struct json j;
    struct listing l = {&j, c->front};
    json_start(&j, &out);
    json_arr(&j, NULL);
    templates_each(c->front, add_listed, &j);
    tmpl_each(c->front, c->who.tenant, add_listed_row, &l);
    json_end_arr(&j);
    reply_json(c->req, 200, &out);
}

/* What param 0 names: a row, or a directory of the templates. False: 404 was answered. */
static bool find(struct api_call *c, const struct tmpl **row, struct template_info *t)
{
    memset(t, 0, sizeof *t);
    if ((*row = tmpl_find(c->front, c->who.tenant, c->param[0], NULL)) || template_resolve(c->front, c->param[0], t))
        return true;
    reply_error(c->req, 404, "template '%.80s' not found", c->param[0]);
    return false;
}

static void add_row_builds(struct json *j, const struct front *f, const struct tmpl *t)
{
    char when[REPLY_TIME_MAX];
    json_arr(j, "builds");
    for (size_t i = 0; i < t->ntags; i++) {
        bool again = false; /* a build has one entry, however many tags it has */
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
        add_size(j, f, tmpl_config_of(t, &t->tags[i]));
        json_str(j, "envdVersion", E2B_ENVD_VERSION);
        json_end_obj(j);
    }
    json_end_arr(j);
}

static void add_directory_build(struct json *j, const struct template_info *t)
{
    char id[40], when[REPLY_TIME_MAX];
    build_id(t, id);
    reply_time(t->created_unix * 1000, when);
    json_arr(j, "builds");
    json_obj(j, NULL);
    json_str(j, "buildID", id);
    json_str(j, "status", build_status(t));
    json_str(j, "createdAt", when);
    json_str(j, "updatedAt", when);
    json_u64(j, "cpuCount", t->cpu_milli ? (t->cpu_milli + 999) / 1000 : 1);
    json_u64(j, "memoryMB", t->memory >> 20);
    json_u64(j, "diskSizeMB", t->disk >> 20);
    json_str(j, "envdVersion", E2B_ENVD_VERSION);
    json_end_obj(j);
    json_end_arr(j);
}

void e2b_template(struct api_call *c)
{
    const struct tmpl *row;
    struct template_info t;
    if (!find(c, &row, &t))
        return;
    _cleanup_buf_ struct buf out = {0};
    struct json j;
    json_start(&j, &out);
    if (row) {
        add_row(&j, c->front, row);
        add_row_builds(&j, c->front, row);
    } else {
        add_template(&j, &t);
        add_directory_build(&j, &t);
    }
    json_end_obj(&j);
    reply_json(c->req, 200, &out);
}

void e2b_template_alias(struct api_call *c)
{
    const struct tmpl *row;
    struct template_info t;
    if (!find(c, &row, &t))
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

static void add_tag(struct json *j, const char *tag, const char *build, uint64_t created_unix_ms)
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
    const struct tmpl *row;
    struct template_info t;
    char id[40];
    if (!find(c, &row, &t))
        return;
    _cleanup_buf_ struct buf out = {0};
    struct json j;
    json_start(&j, &out);
    json_arr(&j, NULL);
    for (size_t i = 0; row && i < row->ntags; i++)
        add_tag(&j, row->tags[i].tag, row->tags[i].build, row->tags[i].created_unix_ms);
    if (!row) {
        build_id(&t, id);
        add_tag(&j, "default", id, t.created_unix * 1000);
    }
    json_end_arr(&j);
    reply_json(c->req, 200, &out);
}
