/* Descriptions of sandboxes, and the codec of their rows. */
#include "sandboxes/desc.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/json.h"
#include "base/log.h"
#include "base/mem.h"
#include "sandboxes/sandboxes-int.h"

static void desc_copy_strv(struct strv *ret, const struct strv *from)
{
    *ret = (struct strv){0};
    for (size_t i = 0; i < from->n; i++)
        strv_add(ret, from->v[i]);
}

void sandbox_desc_copy(struct sandbox_desc *ret, const struct sandbox_desc *from)
{
    *ret = *from;
    ret->image = from->image ? xstrdup(from->image) : NULL;
    if (from->config) {
        ret->config = xcalloc(1, sizeof *ret->config);
        template_config_copy(ret->config, from->config);
    }
    ret->mounts = from->nmounts ? xcalloc(from->nmounts, sizeof *ret->mounts) : NULL;
    if (from->nmounts)
        memcpy(ret->mounts, from->mounts, from->nmounts * sizeof *ret->mounts);
    desc_copy_strv(&ret->metadata, &from->metadata);
    desc_copy_strv(&ret->env, &from->env);
}

void sandbox_desc_set_config(struct sandbox_desc *d, struct template_config *config)
{
    if (d->config)
        template_config_done(d->config);
    free(d->config);
    d->config = config;
}

void sandbox_desc_done(struct sandbox_desc *d)
{
    sandbox_desc_set_config(d, NULL);
    free(d->image);
    free(d->mounts);
    strv_done(&d->metadata);
    strv_done(&d->env);
    d->image = NULL;
    d->mounts = NULL;
    d->nmounts = 0;
}

const char *sandbox_desc_label(const struct sandbox_desc *d, const char *key)
{
    for (size_t i = 0; i + 1 < d->metadata.n; i += 2)
        if (strcmp(d->metadata.v[i], key) == 0)
            return d->metadata.v[i + 1];
    return NULL;
}

/* --- the row ------------------------------------------------------------------------------------------------------ */

/* Settings of one bit: where they stand in the description, and in the row's flags. */
static const struct {
    size_t at;
    uint32_t flag;
} desc_flags[] = {
    {offsetof(struct sandbox_desc, allow_public_traffic), DB_SANDBOX_PUBLIC},
    {offsetof(struct sandbox_desc, allow_internet), DB_SANDBOX_INTERNET},
    {offsetof(struct sandbox_desc, life.auto_pause), DB_SANDBOX_AUTO_PAUSE},
    {offsetof(struct sandbox_desc, life.auto_pause_files), DB_SANDBOX_AUTO_PAUSE_FILES},
    {offsetof(struct sandbox_desc, life.auto_resume), DB_SANDBOX_AUTO_RESUME},
    {offsetof(struct sandbox_desc, history), DB_SANDBOX_HISTORY},
};

/* Fields without a column of their own are one JSON object. A field that has its default is left out, and a field that
 * an older version did not write is absent: both are read as the default. "": all have theirs. */
static char *row_write_more(const struct sandbox_desc *d)
{
    struct buf text = {0};
    struct json j;
    if (!d->image && !d->generation)
        return xstrdup("");
    json_start(&j, &text);
    json_obj(&j, NULL);
    if (d->image)
        json_str(&j, "image", d->image);
    if (d->generation)
        json_u64(&j, "generation", d->generation);
    json_end_obj(&j);
    return text.p;
}

static void row_read_more(const char *id, const char *text, struct sandbox_desc *d)
{
    json_error_t why;
    json_t *more = *text ? json_loads(text, 0, &why) : NULL;
    if (*text && !more)
        log_text(LOG_LEVEL_ERROR, "the row of sandbox %s cannot be read in full: %s", id, why.text);
    const char *image = json_string_value(json_object_get(more, "image"));
    d->image = image ? xstrdup(image) : NULL;
    d->generation = (uint64_t)json_integer_value(json_object_get(more, "generation"));
    json_decref(more);
}

void sandbox_row_encode(const struct sandbox *b, uint32_t state, struct strv *texts, struct db_sandbox *ret)
{
    const struct sandbox_desc *d = &b->desc;
    char *config = d->config ? template_config_json(d->config) : xstrdup(""), *more = row_write_more(d);
    strv_take(texts, config);
    strv_take(texts, more);
    *ret = (struct db_sandbox){.id = b->id,
                               .tenant = b->tenant->id,
                               .template = d->template,
                               .token = b->token,
                               .traffic_token = b->traffic_token,
                               .mask_host = d->mask_host,
                               .tier = d->tier,
                               .degraded = b->degraded,
                               .state = state,
                               .nhttps_ports = d->nhttps_ports,
                               .nports = d->ports.n,
                               .links = d->ports.links,
                               .metadata = d->metadata,
                               .env = d->env,
                               .started_unix_ms = b->started_unix_ms,
                               .end_unix_ms = b->end_unix_ms,
                               .cpu_milli = d->cpu_milli,
                               .pids = d->pids,
                               .memory = d->memory,
                               .disk = d->disk,
                               .stack = d->stack,
                               .parent = d->parent,
                               .idle_s = d->life.idle_s,
                               .timeout_s = d->timeout_s,
                               .nmounts = d->nmounts,
                               .config = config,
                               .state_bytes = b->state_bytes,
                               .more = more};
    for (size_t i = 0; i < ARRAY_LEN(desc_flags); i++)
        ret->flags |= *(const bool *)((const char *)d + desc_flags[i].at) ? desc_flags[i].flag : 0;
    _Static_assert((int)DB_VOLUMES_MAX == (int)SANDBOX_MOUNTS_MAX, "all of them fit");
    for (size_t i = 0; i < d->nmounts; i++)
        ret->mounts[i] = (struct db_mount){.volume = d->mounts[i].volume,
                                           .name = d->mounts[i].name,
                                           .place = d->mounts[i].place,
                                           .flags = d->mounts[i].flags};
    _Static_assert(sizeof ret->https_ports == sizeof d->https_ports, "copied as a whole");
    _Static_assert(sizeof ret->ports == sizeof d->ports.v, "copied as a whole");
    memcpy(ret->https_ports, d->https_ports, sizeof ret->https_ports);
    memcpy(ret->ports, d->ports.v, sizeof ret->ports);
}

static void row_read_config(const char *id, const char *json, struct sandbox_desc *d)
{
    struct err err;
    if (!*json)
        return;
    d->config = xcalloc(1, sizeof *d->config);
    if (template_config_parse(json, d->config, &err) < 0)
        log_text(LOG_LEVEL_ERROR, "sandbox %s: %s; it is resumed as one without", id, err.msg);
}

static void row_read_mounts(const struct db_sandbox *row, struct sandbox_desc *d)
{
    d->nmounts = row->nmounts;
    d->mounts = row->nmounts ? xcalloc(row->nmounts, sizeof *d->mounts) : NULL;
    for (size_t i = 0; i < row->nmounts; i++) {
        struct sandbox_mount *m = &d->mounts[i];
        (void)snprintf(m->volume, sizeof m->volume, "%s", row->mounts[i].volume);
        (void)snprintf(m->name, sizeof m->name, "%s", row->mounts[i].name);
        (void)snprintf(m->place, sizeof m->place, "%s", row->mounts[i].place);
        m->flags = row->mounts[i].flags;
    }
}

static void row_read_desc(const struct db_sandbox *row, struct sandbox_desc *d)
{
    *d = (struct sandbox_desc){.cpu_milli = row->cpu_milli,
                               .pids = row->pids,
                               .memory = row->memory,
                               .disk = row->disk,
                               .timeout_s = (uint32_t)row->timeout_s,
                               .life.idle_s = row->idle_s,
                               .secure = *row->token,
                               .nhttps_ports = row->nhttps_ports,
                               .ports = {.n = row->nports, .links = row->links}};
    for (size_t i = 0; i < ARRAY_LEN(desc_flags); i++)
        *(bool *)((char *)d + desc_flags[i].at) = row->flags & desc_flags[i].flag;
    (void)snprintf(d->template, sizeof d->template, "%s", row->template);
    (void)snprintf(d->stack, sizeof d->stack, "%s", row->stack);
    (void)snprintf(d->parent, sizeof d->parent, "%s", row->parent);
    (void)snprintf(d->tier, sizeof d->tier, "%s", row->tier);
    (void)snprintf(d->mask_host, sizeof d->mask_host, "%s", row->mask_host);
    memcpy(d->https_ports, row->https_ports, sizeof d->https_ports);
    memcpy(d->ports.v, row->ports, sizeof d->ports.v);
    desc_copy_strv(&d->metadata, &row->metadata);
    desc_copy_strv(&d->env, &row->env);
    row_read_config(row->id, row->config, d);
    row_read_mounts(row, d);
    row_read_more(row->id, row->more, d);
}

void sandbox_row_decode(const struct db_sandbox *row, struct sandbox *b)
{
    row_read_desc(row, &b->desc);
    (void)snprintf(b->token, sizeof b->token, "%s", row->token);
    (void)snprintf(b->traffic_token, sizeof b->traffic_token, "%s", row->traffic_token);
    (void)snprintf(b->degraded, sizeof b->degraded, "%s", row->degraded);
    b->started_unix_ms = row->started_unix_ms;
    b->end_unix_ms = row->end_unix_ms;
    b->state_bytes = row->state_bytes;
}
