/* What a box is made from and with, for the first time or again: its template, the request to keeper, and what init is told. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "front/boxes-int.h"
#include "front/nets.h"

static void set_name(struct box_source *s, const char *name)
{
    (void)snprintf(s->info.name, sizeof s->info.name, "%s", name);
    (void)snprintf(s->info.state, sizeof s->info.state, "ready");
}

static void set_config(struct box_source *s, const struct tmpl_config *from)
{
    s->config = xcalloc(1, sizeof *s->config);
    tmpl_config_copy(s->config, from);
}

static void set_limits(struct box_source *s, const struct config *cfg, const struct tmpl_config *t)
{
    s->info.cpu_milli = t && t->cpu_milli ? t->cpu_milli : cfg->default_cpu_milli;
    s->info.memory = t && t->memory ? t->memory : cfg->default_memory;
    s->info.disk = t && t->disk ? t->disk : cfg->default_disk;
}

bool box_source_find(struct front *f, const struct tenant *who, const char *name, bool build, struct box_source *ret)
{
    const struct tmpl_tag *tag = NULL;
    const struct tmpl *t;
    *ret = (struct box_source){0};
    if (build && stack_id_valid(name)) { /* what an earlier step left */
        (void)snprintf(ret->stack, sizeof ret->stack, "%s", name);
        set_limits(ret, f->config, NULL);
        set_name(ret, name);
        return true;
    }
    t = tmpl_find(f, who, name, &tag);
    if (!t || !tag)
        return template_resolve(f, name, &ret->info);
    memcpy(ret->stack, tag->stack, sizeof ret->stack);
    set_limits(ret, f->config, tmpl_config_of(t, tag));
    set_config(ret, tmpl_config_of(t, tag));
    /* It is kept at the cost of whoever has the sandbox. */
    ret->config->history = t->config.history && (!t->tenant || t->tenant == who);
    set_name(ret, t->id);
    return true;
}

void box_source_fork(const struct box *from, const char *stack, struct box_source *ret)
{
    *ret = (struct box_source){
        .info = {.cpu_milli = from->cpu_milli, .memory = from->memory, .disk = from->disk},
    };
    set_name(ret, from->template);
    (void)snprintf(ret->stack, sizeof ret->stack, "%s", stack);
    if (from->config)
        set_config(ret, from->config);
}

void box_source_done(struct box_source *s)
{
    if (s->config)
        tmpl_config_done(s->config);
    free(s->config);
    s->config = NULL;
}

void box_keeper_request(struct front *f, const struct box *b, struct keeper_create *ret)
{
    const struct config *cfg = f->config;
    const struct tmpl_config *t = b->config;
    bool empty = strcmp(b->stack, STACK_EMPTY) == 0; /* nothing runs there but our own program, which sets owners */
    bool cpu = config_given(cfg, "sandboxes.cpu"), memory = config_given(cfg, "sandboxes.memory");
    /* What nobody chose goes as 0, keeper's default: it may be dropped, and named, where a host cannot enforce it. */
    *ret = (struct keeper_create){
        .flags = (cfg->strict && !empty ? KEEPER_STRICT : 0U) | (cfg->best_effort ? KEEPER_BEST_EFFORT : 0U) |
                 (b->hidden ? KEEPER_BUILD : 0U) | (b->wished && !cpu && !memory ? KEEPER_WISH : 0U),
        .cpu_milli = cpu || b->wished || (t && t->cpu_milli) ? b->cpu_milli : 0,
        .memory = memory || b->wished || (t && t->memory) ? b->memory : 0,
        .disk = config_given(cfg, "sandboxes.disk") || (t && t->disk) ? b->disk : 0,
        .inodes = config_given(cfg, "sandboxes.inodes") ? cfg->default_inodes : 0,
        .pids = config_given(cfg, "sandboxes.pids") ? b->pids : 0,
        .open_files = config_given(cfg, "sandboxes.open_files") ? cfg->default_open_files : 0,
        .deadline_ms = box_deadline(b),
        .nvolumes = (uint32_t)b->nmounts,
    };
    (void)snprintf(ret->id, sizeof ret->id, "%s", b->id);
    (void)snprintf(ret->template, sizeof ret->template, "%s", b->stack[0] ? b->stack : b->template);
    (void)snprintf(ret->hostname, sizeof ret->hostname, "%s", b->id);
    for (size_t i = 0; i < b->nmounts; i++) {
        (void)snprintf(ret->volume[i].id, sizeof ret->volume[i].id, "%s", b->mounts[i].volume);
        (void)snprintf(ret->volume[i].place, sizeof ret->volume[i].place, "%s", b->mounts[i].place);
        ret->volume[i].flags = b->mounts[i].flags;
    }
}

void box_kept(struct front *f, struct box *b, const struct keeper_reply *r)
{
    struct state_ability *a = &f->boxes->ability;
    (void)snprintf(b->tier, sizeof b->tier, "%.*s", (int)sizeof r->tier - 1, r->tier);
    (void)snprintf(b->degraded, sizeof b->degraded, "%.*s", (int)sizeof r->degraded - 1, r->degraded);
    if (!r->driver[0])
        return; /* of the template "host": it has no upper */
    (void)snprintf(a->driver, sizeof a->driver, "%.*s", (int)sizeof r->driver - 1, r->driver);
    (void)snprintf(a->quota, sizeof a->quota, "%.*s", (int)sizeof r->quota - 1, r->quota);
}

static bool has_name(const struct strv *env, const char *variable)
{
    size_t n = strcspn(variable, "=") + 1;
    for (size_t i = 0; i < env->n; i++)
        if (strncmp(env->v[i], variable, n) == 0)
            return true;
    return false;
}

void box_variables(const struct box *b, struct strv *env)
{
    const struct tmpl_config *config = b->config;
    for (size_t i = 0; config && i < config->env.n; i++)
        if (!has_name(&b->env, config->env.v[i]) && !has_name(env, config->env.v[i]))
            strv_add(env, config->env.v[i]);
    for (size_t i = 0; i < b->env.n; i++)
        strv_add(env, b->env.v[i]);
}

void box_binding(struct front *f, const struct box *b, struct strv *env, struct link_bind *ret)
{
    const struct tmpl_config *config = b->config;
    strv_add(env, "E2B_SANDBOX=true");
    strv_take(env, xasprintf("E2B_SANDBOX_ID=%s", b->id));
    strv_take(env, xasprintf("E2B_TEMPLATE_ID=%s", b->template));
    box_variables(b, env);
    net_environment(f, b, env);
    *ret = (struct link_bind){.hostname = b->id, .env = (const char *const *)env->v};
    ret->user = b->hidden ? "root" : config && config->user ? config->user : "user";
    ret->workdir = config && !b->hidden ? config->workdir : NULL;
}
