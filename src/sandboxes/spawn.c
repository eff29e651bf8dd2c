/* What a sandbox is made from, at its create and at each restore: its template, the request to keeper and the binding
 * for init. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "sandboxes/sandboxes-int.h"

static void source_set_name(struct template_info *i, const char *name)
{
    (void)snprintf(i->name, sizeof i->name, "%.*s", (int)sizeof i->name - 1, name);
    (void)snprintf(i->state, sizeof i->state, "ready");
}

static void source_set_limits(struct template_info *i, const struct config *cfg, const struct template_config *t)
{
    i->cpu_milli = t && t->cpu_milli ? t->cpu_milli : cfg->default_cpu_milli;
    i->memory = t && t->memory ? t->memory : cfg->default_memory;
    i->disk = t && t->disk ? t->disk : cfg->default_disk;
}

/* What a row's tag decides. */
static void source_settle(struct sandbox_desc *d, const struct tenant *who, const struct template *t,
                          const struct template_tag *tag)
{
    struct template_config *config = xcalloc(1, sizeof *config);
    const char *image = template_fetched(tag);
    template_config_copy(config, template_config_of(t, tag));
    /* History counts in the quota of the sandbox's tenant, so another tenant's template cannot turn it on. */
    config->history = t->config.history && (!t->tenant || t->tenant == who);
    sandbox_desc_set_config(d, config);
    memcpy(d->stack, tag->stack, sizeof d->stack);
    free(d->image);
    d->image = *image ? xstrdup(image) : NULL;
}

bool sandbox_source_find(struct sandboxes *sb, const struct tenant *who, struct sandbox_desc *d,
                         struct template_info *ret)
{
    const struct template_tag *tag = NULL;
    const struct template *t;
    *ret = (struct template_info){0};
    if (d->parent[0]) { /* a fork: settled by its parent */
        source_set_name(ret, d->template);
        return true;
    }
    if (d->hidden && stack_id_valid(d->template)) { /* the stack of an earlier step */
        (void)snprintf(d->stack, sizeof d->stack, "%.*s", (int)sizeof d->stack - 1, d->template);
        source_set_limits(ret, sb->config, NULL);
        source_set_name(ret, d->template);
        return true;
    }
    t = template_find(sb->templates, who, d->template, &tag);
    if (!t || !tag)
        return template_resolve(sb->templates, d->template, ret);
    source_set_limits(ret, sb->config, template_config_of(t, tag));
    source_settle(d, who, t, tag);
    source_set_name(ret, t->id);
    return true;
}

void sandbox_keeper_request(struct sandboxes *sb, const struct sandbox *b, struct keeper_create *ret)
{
    const struct config *cfg = sb->config;
    const struct template_config *t = b->desc.config;
    bool empty = strcmp(b->desc.stack, STACK_EMPTY) == 0; /* only our own program runs there, and it must set owners */
    bool cpu = config_given(cfg, "sandboxes.cpu"), memory = config_given(cfg, "sandboxes.memory");
    /* Limits that neither operator nor template nor the request set are 0: keeper uses its default and may drop it, and
     * report that, where the host cannot enforce it. */
    *ret = (struct keeper_create){
        .flags = (cfg->strict && !empty ? KEEPER_STRICT : 0U) | (cfg->best_effort ? KEEPER_BEST_EFFORT : 0U) |
                 (b->desc.hidden ? KEEPER_BUILD : 0U) | (b->desc.wished && !cpu && !memory ? KEEPER_WISH : 0U),
        .cpu_milli = cpu || b->desc.wished || (t && t->cpu_milli) || b->desc.cpu_milli != cfg->default_cpu_milli
                         ? b->desc.cpu_milli
                         : 0,
        .memory =
            memory || b->desc.wished || (t && t->memory) || b->desc.memory != cfg->default_memory ? b->desc.memory : 0,
        .disk = config_given(cfg, "sandboxes.disk") || (t && t->disk) || b->desc.disk != cfg->default_disk
                    ? b->desc.disk
                    : 0,
        .inodes = config_given(cfg, "sandboxes.inodes") ? cfg->default_inodes : 0,
        .pids = config_given(cfg, "sandboxes.pids") ? b->desc.pids : 0,
        .open_files = config_given(cfg, "sandboxes.open_files") ? cfg->default_open_files : 0,
        .deadline_ms = sandbox_deadline(b),
        .nvolumes = (uint32_t)b->desc.nmounts,
    };
    (void)snprintf(ret->id, sizeof ret->id, "%s", b->id);
    (void)snprintf(ret->template, sizeof ret->template, "%.*s", (int)sizeof ret->template - 1,
                   b->desc.stack[0] ? b->desc.stack : b->desc.template);
    (void)snprintf(ret->hostname, sizeof ret->hostname, "%s", b->id);
    for (size_t i = 0; i < b->desc.nmounts; i++) {
        (void)snprintf(ret->volume[i].id, sizeof ret->volume[i].id, "%s", b->desc.mounts[i].volume);
        (void)snprintf(ret->volume[i].place, sizeof ret->volume[i].place, "%s", b->desc.mounts[i].place);
        ret->volume[i].flags = b->desc.mounts[i].flags;
    }
}

void sandbox_kept(struct sandboxes *sb, struct sandbox *b, const struct keeper_reply *r)
{
    struct state_ability *a = &sb->ability;
    (void)snprintf(b->desc.tier, sizeof b->desc.tier, "%.*s", (int)sizeof r->tier - 1, r->tier);
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
    const struct template_config *config = b->desc.config;
    for (size_t i = 0; config && i < config->env.n; i++)
        if (!sandbox_env_has(&b->desc.env, config->env.v[i]) && !sandbox_env_has(env, config->env.v[i]))
            strv_add(env, config->env.v[i]);
    for (size_t i = 0; i < b->desc.env.n; i++)
        strv_add(env, b->desc.env.v[i]);
}

void sandbox_binding(struct sandboxes *sb, const struct sandbox *b, struct strv *env, struct link_bind *ret)
{
    const struct template_config *config = b->desc.config;
    strv_add(env, "E2B_SANDBOX=true");
    strv_take(env, xasprintf("E2B_SANDBOX_ID=%s", b->id));
    strv_take(env, xasprintf("E2B_TEMPLATE_ID=%s", b->desc.template));
    sandbox_variables(b, env);
    sb->network->environment(sb->networks, b, env);
    *ret = (struct link_bind){.hostname = b->id, .env = (const char *const *)env->v};
    ret->user = b->desc.hidden ? "root" : config && config->user ? config->user : "user";
    ret->workdir = config && !b->desc.hidden ? config->workdir : NULL;
}
