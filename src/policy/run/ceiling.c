/* ceiling.c - applies the limits that the system or user document sets for every document below it.
 *
 * An explicit value that exceeds the ceiling is an error if it stands at or below the ceiling's own level: silently
 * getting less than asked would be a puzzle. Defaults and values of an earlier level are lowered to the ceiling
 * instead.
 */
#include <string.h>

#include "base/cleanup.h"
#include "base/mem.h"
#include "base/path.h"
#include "base/text.h"
#include "policy/run/doc.h"

static int fail_exceeds(const struct origin *asked, const struct origin *bound, const char *what, struct err *err)
{
    _cleanup_buf_ struct buf here = {0}, there = {0}, safe = {0};
    origin_add(&here, asked);
    origin_add(&there, bound);
    text_add_safe(&safe, what, 400);
    return err_set(err, ERR_POLICY, 0, "%s: %s exceeds the ceiling in %s", buf_str(&here), buf_str(&safe),
                   buf_str(&there));
}

static bool is_set(const struct origin *o) { return o->file != NULL; }

static int apply_limits(struct policy *p, const struct policy *c, enum policy_level level, struct err *err)
{
    for (int i = 0; i < LIMIT_MAX; i++) {
        const struct limit *bound = &c->limits[i];
        struct limit *limit = &p->limits[i];
        if (!bound->set || (limit->set && limit->value <= bound->value))
            continue;
        bool asked = is_set(&limit->origin) && limit->origin.level >= level;
        if (!asked) {
            *limit = *bound;
            continue;
        }
        _cleanup_buf_ struct buf what = {0};
        buf_addf(&what, "%s: ", limit_id_name((enum limit_id)i));
        if (limit->set)
            limit_add_value(&what, (enum limit_id)i, limit->value);
        else
            buf_adds(&what, "unlimited");
        return fail_exceeds(&limit->origin, &bound->origin, buf_str(&what), err);
    }
    return 0;
}

/* --- files -------------------------------------------------------------------------------------------------------- */

/* The ceiling's deny_read rule that covers `path`, or NULL. */
static const struct file_rule *deny_over(const struct policy *c, const char *path)
{
    for (size_t i = 0; i < c->nfiles; i++) {
        const struct file_rule *r = &c->files[i];
        if (r->verb != FILE_DENY_READ)
            continue;
        if (!r->is_glob && path_under(path, r->path))
            return r;
        if (!r->is_glob)
            continue;
        _cleanup_free_ char *below = xasprintf("%s/**", r->path);
        if (path_match(r->path, path) || path_match(below, path))
            return r;
    }
    return NULL;
}

static bool inside_write_bound(const struct policy *c, const char *path)
{
    for (size_t i = 0; i < c->nfiles; i++)
        if (c->files[i].verb == FILE_ALLOW_WRITE && path_under(path, c->files[i].path))
            return true;
    return false;
}

/* The host path that a rule is about: its source, or what another rule's SRC:DEST shows at its place. New string. */
static char *host_path(const struct policy *p, const struct file_rule *rule)
{
    if (rule->src)
        return xstrdup(rule->src);
    const struct file_rule *alias = NULL;
    for (size_t i = 0; i < p->nfiles; i++) {
        const struct file_rule *r = &p->files[i];
        if (r->src && path_under(rule->path, r->path) && (!alias || strlen(r->path) > strlen(alias->path)))
            alias = r;
    }
    return alias ? xasprintf("%s%s", alias->src, rule->path + strlen(alias->path)) : xstrdup(rule->path);
}

static bool grants_read(enum file_verb verb)
{
    return verb != FILE_DENY_READ && verb != FILE_DENY_WRITE && verb != FILE_TMPFS;
}

/* The origin of the ceiling that a rule exceeds, or NULL. */
static const struct origin *rule_exceeds(const struct policy *p, const struct policy *c, const struct file_rule *rule)
{
    _cleanup_free_ char *host = host_path(p, rule);
    if (rule->verb == FILE_ALLOW_WRITE && is_set(&c->write_ceiling) && !inside_write_bound(c, host))
        return &c->write_ceiling;
    if (!grants_read(rule->verb))
        return NULL;
    const struct file_rule *deny = deny_over(c, host);
    if (!deny)
        deny = deny_over(c, rule->path);
    return deny ? &deny->origin : NULL;
}

static int apply_file_rules(struct policy *p, const struct policy *c, enum policy_level level, struct err *err)
{
    for (size_t i = p->nfiles; i-- > 0;) {
        struct file_rule *rule = &p->files[i];
        const struct origin *bound = rule_exceeds(p, c, rule);
        if (!bound)
            continue;
        if (is_set(&rule->origin) && rule->origin.level >= level) {
            _cleanup_buf_ struct buf what = {0};
            buf_addf(&what, "%s %s", file_verb_name(rule->verb), rule->src ? rule->src : rule->path);
            return fail_exceeds(&rule->origin, bound, buf_str(&what), err);
        }
        merge_remove_file_rule(p, i);
    }
    return 0;
}

/* Does not refuse SRC:DEST rules for a directory that contains a forbidden one: merge_aliases() denies that at DEST. */
static int add_denies(struct policy *p, const struct policy *c, struct err *err)
{
    for (size_t i = 0; i < c->nfiles; i++) {
        const struct file_rule *r = &c->files[i];
        if (r->verb != FILE_DENY_READ)
            continue;
        struct file_rule copy = *r;
        copy.path = xstrdup(r->path);
        copy.src = NULL;
        copy.id = xstrdup(r->id);
        /* Overrides any other rule for this path. */
        copy.origin.level = LEVEL_MAX;
        if (merge_file_rule(p, &copy, err) < 0)
            return -1;
        p->files[p->nfiles - 1].origin.level = r->origin.level;
    }
    return 0;
}

/* --- the rest ----------------------------------------------------------------------------------------------------- */

static int profile_rank(const char *profile)
{
    int i = 0;
    while (policy_profiles[i] && strcmp(policy_profiles[i], profile) != 0)
        i++;
    return i;
}

static int apply_syscalls(struct policy *p, const struct policy *c, enum policy_level level, struct err *err)
{
    if (!is_set(&c->syscall_ceiling))
        return 0;
    if (profile_rank(p->profile) > profile_rank(c->profile)) {
        _cleanup_buf_ struct buf what = {0};
        buf_addf(&what, "syscalls.profile %s", p->profile);
        if (is_set(&p->profile_origin) && p->profile_origin.level >= level)
            return fail_exceeds(&p->profile_origin, &c->syscall_ceiling, buf_str(&what), err);
        p->profile = c->profile;
        p->profile_origin = c->syscall_ceiling;
    }
    for (size_t i = 0; i < p->nsyscalls; i++) {
        struct syscall_rule *rule = &p->syscalls[i];
        const struct origin *bound =
            rule->allow && rule->origin.level >= level ? ceiling_on_syscall(p, rule->name) : NULL;
        if (!bound)
            continue;
        _cleanup_buf_ struct buf what = {0};
        buf_addf(&what, "syscalls.allow %s", rule->name);
        return fail_exceeds(&rule->origin, bound, buf_str(&what), err);
    }
    return 0;
}

static int network_rank(enum network_mode mode) { return mode == NETWORK_OFF ? 0 : mode == NETWORK_RULES ? 1 : 2; }

static int apply_modes(struct policy *p, const struct policy *c, enum policy_level level, struct err *err)
{
    if (is_set(&c->network_origin) && network_rank(p->network) > network_rank(c->network)) {
        if (is_set(&p->network_origin) && p->network_origin.level >= level)
            return fail_exceeds(&p->network_origin, &c->network_origin, "network", err);
        merge_network(p, c->network, c->network == NETWORK_RULES ? doc_no_network() : NULL);
        p->network_origin = c->network_origin;
    }
    if (is_set(&c->privilege_origin) && p->privilege > c->privilege) {
        if (is_set(&p->privilege_origin) && p->privilege_origin.level >= level)
            return fail_exceeds(&p->privilege_origin, &c->privilege_origin, "privilege: computer", err);
        p->privilege = c->privilege;
        p->privilege_origin = c->privilege_origin;
    }
    if (is_set(&c->enforcement_origin) && p->enforcement > c->enforcement) {
        if (is_set(&p->enforcement_origin) && p->enforcement_origin.level >= level)
            return fail_exceeds(&p->enforcement_origin, &c->enforcement_origin, "enforcement: best-effort", err);
        p->enforcement = c->enforcement;
        p->enforcement_origin = c->enforcement_origin;
    }
    return 0;
}

int ceiling_apply(struct policy *p, struct err *err)
{
    for (size_t i = 0; i < ARRAY_LEN(p->ceiling); i++) {
        const struct policy *c = p->ceiling[i];
        enum policy_level level = i == 0 ? LEVEL_SYSTEM : LEVEL_USER;
        if (!c)
            continue;
        if (apply_limits(p, c, level, err) < 0 || apply_file_rules(p, c, level, err) < 0 || add_denies(p, c, err) < 0 ||
            apply_syscalls(p, c, level, err) < 0 || apply_modes(p, c, level, err) < 0)
            return -1;
    }
    return 0;
}

/* --- for explain -------------------------------------------------------------------------------------------------- */

const struct origin *ceiling_on_path(const struct policy *p, const char *path, bool write)
{
    for (size_t i = 0; i < ARRAY_LEN(p->ceiling); i++) {
        const struct policy *c = p->ceiling[i];
        const struct file_rule *deny = c ? deny_over(c, path) : NULL;
        if (deny)
            return &deny->origin;
        if (c && write && is_set(&c->write_ceiling) && !inside_write_bound(c, path))
            return &c->write_ceiling;
    }
    return NULL;
}

const struct origin *ceiling_on_syscall(const struct policy *p, const char *name)
{
    for (size_t i = 0; i < ARRAY_LEN(p->ceiling); i++) {
        const struct policy *c = p->ceiling[i];
        bool found = !c || !is_set(&c->syscall_ceiling);
        for (size_t k = 0; !found && k < c->nsyscalls; k++)
            found = strcmp(c->syscalls[k].name, name) == 0;
        if (!found)
            return &c->syscall_ceiling;
    }
    return NULL;
}

const struct origin *ceiling_on_network(const struct policy *p, enum network_mode mode)
{
    for (size_t i = 0; i < ARRAY_LEN(p->ceiling); i++) {
        const struct policy *c = p->ceiling[i];
        if (c && is_set(&c->network_origin) && network_rank(mode) > network_rank(c->network))
            return &c->network_origin;
    }
    return NULL;
}
