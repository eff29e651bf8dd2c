/* parse-env.c - the section `env`, and the environment that follows from it. */
#include <errno.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/mem.h"
#include "policy/run/doc.h"

static bool is_pattern(const char *name) { return strchr(name, '*') != NULL; }

/* POSIX asks for letters, digits and "_"; programs use "." and "-" too. */
static bool env_is_name(const char *s, bool pattern_ok)
{
    size_t n = strlen(s);
    if (n == 0 || n > DOC_NAME_MAX || (s[0] >= '0' && s[0] <= '9'))
        return false;
    for (; *s; s++) {
        bool word =
            (*s >= 'a' && *s <= 'z') || (*s >= 'A' && *s <= 'Z') || (*s >= '0' && *s <= '9') || strchr("_.-", *s);
        if (!word && !(pattern_ok && *s == '*'))
            return false;
    }
    return true;
}

static const char *env_key(int verb)
{
    return verb == ENV_PASS ? "env.pass" : verb == ENV_DENY ? "env.deny" : "env.set";
}

static void env_rule_done(struct env_rule *rule)
{
    free(rule->name);
    free(rule->value);
}

static int fail_env_contradiction(struct doc *d, const struct env_rule *rule, const struct env_rule *old)
{
    _cleanup_buf_ struct buf other = {0};
    origin_add(&other, &old->origin);
    (void)doc_fail(d, rule->origin.line, "%s %s contradicts %s of %s", env_key((int)rule->verb), doc_safe(rule->name),
                   env_key((int)old->verb), buf_str(&other));
    d->err->code = ERR_POLICY;
    return -1;
}

/* A later level replaces what an earlier one said of the same name or pattern; at the same level to deny what is also
 * passed or set is a contradiction. Takes the rule's strings. */
static int merge_env(struct doc *d, struct env_rule *rule)
{
    struct policy *p = d->p;
    for (size_t i = 0; i < p->nenv; i++) {
        struct env_rule *old = &p->env[i];
        if (strcmp(old->name, rule->name) != 0)
            continue;
        bool same_level = old->origin.level == rule->origin.level;
        if (same_level && old->verb != rule->verb) {
            if (old->verb != ENV_DENY && rule->verb != ENV_DENY)
                continue;
            int r = fail_env_contradiction(d, rule, old);
            env_rule_done(rule);
            return r;
        }
        env_rule_done(old);
        *old = *rule;
        return 0;
    }
    MEM_GROW(p->env, p->nenv, p->env_cap);
    p->env[p->nenv++] = *rule;
    return 0;
}

int doc_add_env(struct doc *d, unsigned line, int verb, const char *name, const char *value)
{
    if (!d->may_widen && verb != ENV_DENY)
        return doc_fail_widens(d, line, env_key(verb));
    if (!env_is_name(name, verb != ENV_SET))
        return doc_fail(d, line, "%s: \"%s\" is not a variable's name%s", env_key(verb), doc_safe(name),
                        verb != ENV_SET ? ", or a pattern like LC_*" : "");
    if (d->p->nenv >= ENV_COUNT_MAX)
        return doc_fail(d, line, "more than %d rules for the environment in all", ENV_COUNT_MAX);
    struct env_rule rule = {
        .name = xstrdup(name), .value = value ? xstrdup(value) : NULL, .origin = doc_origin(d, line)};
    rule.verb = verb == ENV_PASS ? ENV_PASS : verb == ENV_SET ? ENV_SET : ENV_DENY;
    return merge_env(d, &rule);
}

static int read_env_name(struct doc *d, const struct node *item, unsigned index, unsigned arg)
{
    (void)index;
    return doc_add_env(d, item->line, (int)arg, item->text, NULL);
}

static int read_env_list(struct doc *d, const struct node *value, unsigned arg)
{
    return doc_list(d, value, env_key((int)arg), read_env_name, arg);
}

static int read_env_set(struct doc *d, const struct node *value, unsigned arg)
{
    (void)arg;
    if (node_is_empty(value))
        return 0;
    if (value->kind != NODE_MAP)
        return doc_fail(d, value->line, "env.set must be a mapping of names to values");
    for (size_t i = 0; i < value->n; i += 2) {
        const struct node *item = value->items[i + 1];
        if (item->kind != NODE_SCALAR)
            return doc_fail(d, item->line, "env.set: the value of \"%s\" must be text",
                            doc_safe(value->items[i]->text));
        if (doc_add_env(d, value->items[i]->line, ENV_SET, value->items[i]->text, item->text) < 0)
            return -1;
    }
    return 0;
}

static const struct doc_key env_keys[] = {
    {"pass", read_env_list, ENV_PASS},
    {"set", read_env_set, 0},
    {"deny", read_env_list, ENV_DENY},
    {NULL, NULL, 0},
};

int doc_read_env(struct doc *d, const struct node *value, unsigned arg)
{
    (void)arg;
    return doc_map(d, value, "env", env_keys);
}

/* --- the environment ---------------------------------------------------------------------------------------------- */

/* "*" stands for any text, also none; nothing else is special. */
static bool env_pattern_matches(const char *pattern, const char *name)
{
    const char *star = NULL, *retry = NULL;
    while (*name) {
        if (*pattern == '*') {
            star = ++pattern;
            retry = name;
        } else if (*pattern == *name) {
            pattern++;
            name++;
        } else if (star) {
            pattern = star;
            name = ++retry;
        } else {
            return false;
        }
    }
    while (*pattern == '*')
        pattern++;
    return *pattern == '\0';
}

/* The pattern of that verb that decides about a variable: for DENY the highest level's, for PASS the last. */
static const struct env_rule *pattern_for(const struct policy *p, unsigned verb, const char *name)
{
    const struct env_rule *found = NULL;
    for (size_t i = 0; i < p->nenv; i++) {
        const struct env_rule *r = &p->env[i];
        bool maybe = r->verb == verb && (r->name[0] == '*' || r->name[0] == name[0]);
        if (maybe && (verb == ENV_PASS || !found || r->origin.level > found->origin.level) &&
            env_pattern_matches(r->name, name) && is_pattern(r->name))
            found = r;
    }
    return found;
}

/* The rule that passes a variable, or NULL. Most are not passed, so deny rules are checked last. */
static const struct env_rule *env_rule_for(const struct policy *p, const char *name)
{
    const struct env_rule *exact = NULL;
    for (size_t i = 0; i < p->nenv; i++) {
        const struct env_rule *r = &p->env[i];
        if (r->name[0] != name[0] || strcmp(r->name, name) != 0 || is_pattern(name))
            continue;
        if (!exact || r->origin.level > exact->origin.level ||
            (r->origin.level == exact->origin.level && (r->verb == ENV_DENY || exact->verb == ENV_PASS)))
            exact = r;
    }
    const struct env_rule *pass = exact ? exact : pattern_for(p, ENV_PASS, name);
    const struct env_rule *deny = pass && pass->verb != ENV_DENY ? pattern_for(p, ENV_DENY, name) : NULL;
    if (exact && deny && exact->origin.level >= deny->origin.level)
        deny = NULL;
    return deny || (pass && pass->verb == ENV_DENY) ? NULL : pass;
}

static bool env_fits_limits(const struct strv *s, size_t bytes, size_t more)
{
    return s->n < ENV_COUNT_MAX && bytes + more + 1 <= ENV_BYTES_MAX;
}

int policy_environment(const struct policy *p, char *const *environment, struct strv *ret, struct strv *ret_dropped)
{
    size_t bytes = 0;
    for (size_t i = 0; i < p->nenv; i++) {
        const struct env_rule *r = &p->env[i];
        if (r->verb != ENV_SET || env_rule_for(p, r->name) != r)
            continue;
        char *entry = xasprintf("%s=%s", r->name, r->value);
        size_t n = strlen(entry);
        if (!env_fits_limits(ret, bytes, n)) {
            free(entry);
            errno = E2BIG;
            return -1;
        }
        bytes += n + 1;
        strv_take(ret, entry);
    }
    for (; environment && *environment; environment++) {
        size_t n = strlen(*environment), len = strcspn(*environment, "=");
        _cleanup_free_ char *name = xstrndup(*environment, len);
        const struct env_rule *r = len > 0 && len < n ? env_rule_for(p, name) : NULL;
        if (r && r->verb == ENV_SET)
            continue;
        if (r && r->verb == ENV_PASS && env_fits_limits(ret, bytes, n)) {
            bytes += n + 1;
            strv_add(ret, *environment);
        } else if (ret_dropped) {
            strv_take(ret_dropped, TAKE_PTR(name));
        }
    }
    return 0;
}
