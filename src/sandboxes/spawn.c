/* What a sandbox is made from, at its create and at each restore: its template, the request to keeper and the binding
 * for init. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "sandboxes/sandboxes-int.h"

static void source_set_name(struct sandbox_source *s, const char *name)
{
    (void)snprintf(s->info.name, sizeof s->info.name, "%s", name);
    (void)snprintf(s->info.state, sizeof s->info.state, "ready");
}

static void source_set_config(struct sandbox_source *s, const struct template_config *from)
{
    s->config = xcalloc(1, sizeof *s->config);
    template_config_copy(s->config, from);
}

static void source_set_limits(struct sandbox_source *s, const struct config *cfg, const struct template_config *t)
{
    s->info.cpu_milli = t && t->cpu_milli ? t->cpu_milli : cfg->default_cpu_milli;
    s->info.memory = t && t->memory ? t->memory : cfg->default_memory;
    s->info.disk = t && t->disk ? t->disk : cfg->default_disk;
}

bool sandbox_source_find(struct sandboxes *sb, const struct tenant *who, const char *name, bool build,
                         struct sandbox_source *ret)
{
    const struct template_tag *tag = NULL;
    const struct template *t;
    *ret = (struct sandbox_source){0};
    if (build && stack_id_valid(name)) { /* the stack of an earlier step */
        (void)snprintf(ret->stack, sizeof ret->stack, "%s", name);
        source_set_limits(ret, sb->config, NULL);
        source_set_name(ret, name);
        return true;
    }
    t = template_find(sb->templates, who, name, &tag);
    if (!t || !tag)
        return template_resolve(sb->templates, name, &ret->info);
    memcpy(ret->stack, tag->stack, sizeof ret->stack);
    source_set_limits(ret, sb->config, template_config_of(t, tag));
    source_set_config(ret, template_config_of(t, tag));
    /* History counts in the quota of the sandbox's tenant, so another tenant's template cannot turn it on. */
    ret->config->history = t->config.history && (!t->tenant || t->tenant == who);
    source_set_name(ret, t->id);
    return true;
}

void sandbox_source_fork(const struct sandbox *from, const char *stack, struct sandbox_source *ret)
{
    *ret = (struct sandbox_source){
        .info = {.cpu_milli = from->cpu_milli, .memory = from->memory, .disk = from->disk},
    };
    source_set_name(ret, from->template);
    (void)snprintf(ret->stack, sizeof ret->stack, "%s", stack);
    if (from->config)
        source_set_config(ret, from->config);
}

void sandbox_source_done(struct sandbox_source *s)
{
    if (s->config)
        template_config_done(s->config);
    free(s->config);
    s->config = NULL;
}

void sandbox_keeper_request(struct sandboxes *sb, const struct sandbox *b, struct keeper_create *ret)
{
    const struct config *cfg = sb->config;
    const struct template_config *t = b->config;
    bool empty = strcmp(b->stack, STACK_EMPTY) == 0; /* only our own program runs there, and it must set owners */
    bool cpu = config_given(cfg, "sandboxes.cpu"), memory = config_given(cfg, "sandboxes.memory");
    /* Limits that neither operator nor template set are 0: keeper uses its default and may drop it, and report that,
     * where the host cannot enforce it. */
    *ret = (struct keeper_create){
        .flags = (cfg->strict && !empty ? KEEPER_STRICT : 0U) | (cfg->best_effort ? KEEPER_BEST_EFFORT : 0U) |
                 (b->hidden ? KEEPER_BUILD : 0U) | (b->wished && !cpu && !memory ? KEEPER_WISH : 0U),
        .cpu_milli = cpu || b->wished || (t && t->cpu_milli) ? b->cpu_milli : 0,
        .memory = memory || b->wished || (t && t->memory) ? b->memory : 0,
        .disk = config_given(cfg, "sandboxes.disk") || (t && t->disk) ? b->disk : 0,
        .inodes = config_given(cfg, "sandboxes.inodes") ? cfg->default_inodes : 0,
        .pids = config_given(cfg, "sandboxes.pids") ? b->pids : 0,
        .open_files = config_given(cfg, "sandboxes.open_files") ? cfg->default_open_files : 0,
        .deadline_ms = sandbox_deadline(b),
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

void sandbox_kept(struct sandboxes *sb, struct sandbox *b, const struct keeper_reply *r)
{
    struct state_ability *a = &sb->ability;
    (void)snprintf(b->tier, sizeof b->tier, "%.*s", (int)sizeof r->tier - 1, r->tier);
    (void)snprintf(b->degraded, sizeof b->degraded, "%.*s", (int)sizeof r->degraded - 1, r->degraded);
    if (!r->driver[0])
        return; /* template "host": it has no writable layer */
    (void)snprintf(a->driver, sizeof a->driver, "%.*s", (int)sizeof r->driver - 1, r->driver);
    (void)snprintf(a->quota, sizeof a->quota, "%.*s", (int)sizeof r->quota - 1, r->quota);
}

static bool sandbox_env_has(const struct strv *env, const char *variable)
{
    size_t n = strcspn(variable, "=") + 1;
    for (size_t i = 0; i < env->n; i++)
        if (strncmp(env->v[i], variable, n) == 0)
            return true;
    return false;
}

void sandbox_variables(const struct sandbox *b, struct strv *env)
{
    const struct template_config *config = b->config;
    for (size_t i = 0; config && i < config->env.n; i++)
        if (!sandbox_env_has(&b->env, config->env.v[i]) && !sandbox_env_has(env, config->env.v[i]))
            strv_add(env, config->env.v[i]);
    for (size_t i = 0; i < b->env.n; i++)
        strv_add(env, b->env.v[i]);
}

void sandbox_binding(struct sandboxes *sb, const struct sandbox *b, struct strv *env, struct link_bind *ret)
{
    const struct template_config *config = b->config;
    strv_add(env, "E2B_SANDBOX=true");
    strv_take(env, xasprintf("E2B_SANDBOX_ID=%s", b->id));
    strv_take(env, xasprintf("E2B_TEMPLATE_ID=%s", b->template));
    sandbox_variables(b, env);
    sb->network->environment(sb->networks, b, env);
    *ret = (struct link_bind){.hostname = b->id, .env = (const char *const *)env->v};
    ret->user = b->hidden ? "root" : config && config->user ? config->user : "user";
    ret->workdir = config && !b->hidden ? config->workdir : NULL;
}
