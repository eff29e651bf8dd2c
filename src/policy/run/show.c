/* show.c - the merged policy, for people (a document with the origin of each line) and for programs. */
#include <inttypes.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/json.h"
#include "base/mem.h"
#include "policy/net/netpol.h"
#include "policy/run/doc.h"

/* Ends a line with "# origin". */
static void end_line(struct buf *out, const struct origin *o)
{
    buf_adds(out, "  # ");
    origin_add(out, o);
    buf_addc(out, '\n');
}

/* The text of a rule in a document: globs as they are, special characters of other names escaped. */
static char *rule_text(const struct file_rule *r)
{
    struct buf b = {0};
    const char *parts[2] = {r->src ? r->src : r->path, r->src ? r->path : NULL};
    for (size_t i = 0; i < 2 && parts[i]; i++) {
        if (i > 0)
            buf_addc(&b, ':');
        for (const char *s = parts[i]; *s; s++) {
            if (!r->is_glob && strchr("*?[\\", *s))
                buf_addc(&b, '\\');
            buf_addc(&b, *s);
        }
    }
    return b.p;
}

static void show_file_rule(const struct file_rule *r, struct buf *out)
{
    _cleanup_free_ char *text = rule_text(r);
    buf_adds(out, "    - ");
    node_add_scalar(out, text);
    buf_addf(out, "  # %s, ", r->id);
    origin_add(out, &r->origin);
    if (r->flags & FILE_TRY)
        buf_adds(out, ", if it exists");
    buf_addc(out, '\n');
}

static void show_file_rules(const struct policy *p, int verb, unsigned make, const char *key, struct buf *out)
{
    bool any = false;
    for (size_t i = 0; i < p->nfiles; i++) {
        if ((int)p->files[i].verb != verb || (p->files[i].flags & FILE_MAKE) != make)
            continue;
        if (!any)
            buf_addf(out, "  %s:\n", key);
        any = true;
        show_file_rule(&p->files[i], out);
    }
}

static void show_files(const struct policy *p, struct buf *out)
{
    buf_adds(out, "files:\n");
    for (int verb = 0; verb < FILE_VERB_MAX; verb++) {
        show_file_rules(p, verb, 0, file_verb_name((enum file_verb)verb), out);
        if (verb == FILE_ALLOW_WRITE)
            show_file_rules(p, verb, FILE_MAKE, "make_write", out);
    }
    buf_adds(out, "  protect_builtin: false  # the names that are left, and those of the home directory, are listed\n");
    if (p->nnames > 0)
        buf_adds(out, "  protect:\n");
    for (size_t i = 0; i < p->nnames; i++) {
        _cleanup_free_ char *text = xasprintf("%s%s%s", p->names[i].place == NAME_IN_HOME ? "~/" : "", p->names[i].name,
                                              p->names[i].is_dir ? "/" : "");
        buf_adds(out, "    - ");
        node_add_scalar(out, text);
        buf_addf(out, "  # %s, ", p->names[i].id);
        origin_add(out, &p->names[i].origin);
        buf_addc(out, '\n');
    }
    buf_addf(out, "  search_depth: %u", p->search_depth);
    end_line(out, &p->search_depth_origin);
}

/* As a number that reads back exactly; the rounded form for people stands in the comment. */
static void show_policy_limits(const struct policy *p, struct buf *out)
{
    buf_adds(out, "limits:\n");
    for (int i = 0; i < LIMIT_MAX; i++) {
        const struct limit *l = &p->limits[i];
        enum limit_id id = (enum limit_id)i;
        buf_addf(out, "  %s: ", limit_id_name(id));
        if (!l->set)
            buf_adds(out, "unlimited");
        else if (id == LIMIT_CPU)
            limit_add_value(out, id, l->value);
        else
            buf_addf(out, "%" PRIu64 "%s", l->value, id == LIMIT_WALL_TIME || id == LIMIT_CPU_TIME ? "ms" : "");
        buf_adds(out, "  # ");
        if (l->set) {
            limit_add_value(out, id, l->value);
            buf_adds(out, ", ");
        }
        origin_add(out, &l->origin);
        buf_addc(out, '\n');
    }
}

static void show_syscalls(const struct policy *p, struct buf *out)
{
    buf_addf(out, "syscalls:\n  profile: %s", p->profile);
    end_line(out, &p->profile_origin);
    for (int allow = 1; allow >= 0; allow--) {
        bool any = false;
        for (size_t i = 0; i < p->nsyscalls; i++) {
            if (p->syscalls[i].allow != (bool)allow)
                continue;
            if (!any)
                buf_addf(out, "  %s:\n", allow ? "allow" : "deny");
            any = true;
            buf_addf(out, "    - %s", p->syscalls[i].name);
            end_line(out, &p->syscalls[i].origin);
        }
    }
}

static void show_network(const struct policy *p, struct buf *out)
{
    if (p->network != NETWORK_RULES) {
        buf_addf(out, "network: %s", network_name(p->network));
        end_line(out, &p->network_origin);
        return;
    }
    buf_adds(out, "network:");
    end_line(out, &p->network_origin);
    netpol_show_lines(p->netpol, "  ", out);
}

static void show_env(const struct policy *p, struct buf *out)
{
    static const char *const keys[] = {[ENV_PASS] = "pass", [ENV_SET] = "set", [ENV_DENY] = "deny"};
    bool started = false;
    for (int verb = 0; verb < 3; verb++) {
        bool any = false;
        for (size_t i = 0; i < p->nenv; i++) {
            const struct env_rule *r = &p->env[i];
            if ((int)r->verb != verb)
                continue;
            if (!started)
                buf_adds(out, "env:\n");
            if (!any)
                buf_addf(out, "  %s:\n", keys[verb]);
            started = any = true;
            buf_adds(out, verb == ENV_SET ? "    " : "    - ");
            node_add_scalar(out, r->name);
            if (verb == ENV_SET) {
                buf_adds(out, ": ");
                node_add_scalar(out, r->value);
            }
            end_line(out, &r->origin);
        }
    }
}

static void show_ceiling(const struct policy *c, struct buf *out)
{
    buf_adds(out, "# ceiling:\n");
    for (int i = 0; i < LIMIT_MAX; i++) {
        if (!c->limits[i].set)
            continue;
        buf_addf(out, "#   limits.%s: ", limit_id_name((enum limit_id)i));
        limit_add_value(out, (enum limit_id)i, c->limits[i].value);
        end_line(out, &c->limits[i].origin);
    }
    for (size_t i = 0; i < c->nfiles; i++) {
        buf_addf(out, "#   files.%s: ", file_verb_name(c->files[i].verb));
        node_add_scalar(out, c->files[i].path);
        end_line(out, &c->files[i].origin);
    }
    if (c->network_origin.file) {
        buf_addf(out, "#   network: %s", network_name(c->network));
        end_line(out, &c->network_origin);
    }
    if (c->privilege_origin.file) {
        buf_addf(out, "#   privilege: %s", privilege_name(c->privilege));
        end_line(out, &c->privilege_origin);
    }
    if (c->enforcement_origin.file) {
        buf_addf(out, "#   enforcement: %s", enforcement_name(c->enforcement));
        end_line(out, &c->enforcement_origin);
    }
    if (c->syscall_ceiling.file) {
        buf_addf(out, "#   syscalls: profile %s, %zu more calls", c->profile, c->nsyscalls);
        end_line(out, &c->syscall_ceiling);
    }
}

void policy_show(const struct policy *p, struct buf *out)
{
    buf_adds(out, "# merged from: built-in");
    for (size_t i = 0; i < p->sources.n; i++) {
        struct origin o = {.file = p->sources.v[i]};
        buf_adds(out, ", ");
        origin_add(out, &o);
    }
    buf_adds(out, "\nversion: 1\n");
    show_files(p, out);
    show_policy_limits(p, out);
    show_syscalls(p, out);
    show_network(p, out);
    buf_addf(out, "privilege: %s", privilege_name(p->privilege));
    end_line(out, &p->privilege_origin);
    show_env(p, out);
    buf_addf(out, "enforcement: %s", enforcement_name(p->enforcement));
    end_line(out, &p->enforcement_origin);
    buf_addf(out, "on_denial: {after: %" PRIu64 ", do: %s}", p->on_denial.after,
             denial_action_name(p->on_denial.action));
    end_line(out, &p->on_denial.origin);
    for (size_t i = 0; i < ARRAY_LEN(p->ceiling); i++)
        if (p->ceiling[i])
            show_ceiling(p->ceiling[i], out);
}

/* --- JSON --------------------------------------------------------------------------------------------------------- */

static void json_origin(struct json *j, const struct origin *o)
{
    _cleanup_buf_ struct buf b = {0};
    origin_add(&b, o);
    json_str(j, "origin", buf_str(&b));
}

static void json_value(struct json *j, const char *key, const char *value, const struct origin *o)
{
    json_obj(j, key);
    json_str(j, "value", value);
    json_origin(j, o);
    json_end_obj(j);
}

static void json_files(const struct policy *p, struct json *j)
{
    json_arr(j, "files");
    for (size_t i = 0; i < p->nfiles; i++) {
        const struct file_rule *r = &p->files[i];
        json_obj(j, NULL);
        json_str(j, "rule", file_verb_name(r->verb));
        json_str(j, "path", r->path);
        if (r->src)
            json_str(j, "source", r->src);
        json_bool(j, "glob", r->is_glob);
        json_bool(j, "try", r->flags & FILE_TRY);
        json_bool(j, "make", r->flags & FILE_MAKE);
        json_str(j, "id", r->id);
        json_origin(j, &r->origin);
        json_end_obj(j);
    }
    json_end_arr(j);
    json_arr(j, "protected");
    for (size_t i = 0; i < p->nnames; i++) {
        json_obj(j, NULL);
        json_str(j, "name", p->names[i].name);
        json_bool(j, "home", p->names[i].place == NAME_IN_HOME);
        json_str(j, "reason", p->names[i].reason);
        json_bool(j, "directory", p->names[i].is_dir);
        json_str(j, "id", p->names[i].id);
        json_origin(j, &p->names[i].origin);
        json_end_obj(j);
    }
    json_end_arr(j);
    json_u64(j, "search_depth", p->search_depth);
}

/* cpu in thousandths, times in ms, sizes in bytes: the units stand in docs/policy.md. */
static void json_limits(const struct policy *p, struct json *j)
{
    json_obj(j, "limits");
    for (int i = 0; i < LIMIT_MAX; i++) {
        const struct limit *l = &p->limits[i];
        json_obj(j, limit_id_name((enum limit_id)i));
        if (!l->set)
            json_none(j, "value");
        else if (i == LIMIT_CPU)
            json_fixed(j, "value", l->value, 3);
        else
            json_u64(j, "value", l->value);
        json_origin(j, &l->origin);
        json_end_obj(j);
    }
    json_end_obj(j);
}

static void json_lists(const struct policy *p, struct json *j)
{
    static const char *const verbs[] = {[ENV_PASS] = "pass", [ENV_SET] = "set", [ENV_DENY] = "deny"};
    json_arr(j, "syscalls");
    for (size_t i = 0; i < p->nsyscalls; i++) {
        json_obj(j, NULL);
        json_str(j, "name", p->syscalls[i].name);
        json_str(j, "rule", p->syscalls[i].allow ? "allow" : "deny");
        json_origin(j, &p->syscalls[i].origin);
        json_end_obj(j);
    }
    json_end_arr(j);
    json_arr(j, "env");
    for (size_t i = 0; i < p->nenv; i++) {
        json_obj(j, NULL);
        json_str(j, "rule", verbs[p->env[i].verb]);
        json_str(j, "name", p->env[i].name);
        if (p->env[i].value)
            json_str(j, "value", p->env[i].value);
        json_origin(j, &p->env[i].origin);
        json_end_obj(j);
    }
    json_end_arr(j);
    json_none(j, "network_rules");
    if (p->network_text) {
        j->out->n -= strlen("null"); /* it is JSON already */
        buf_adds(j->out, p->network_text);
    }
}

void policy_show_json(const struct policy *p, struct buf *out)
{
    struct json j;
    json_start(&j, out);
    json_obj(&j, NULL);
    json_arr(&j, "sources");
    for (size_t i = 0; i < p->sources.n; i++)
        json_str(&j, NULL, p->sources.v[i]);
    json_end_arr(&j);
    json_files(p, &j);
    json_limits(p, &j);
    json_lists(p, &j);
    json_value(&j, "profile", p->profile, &p->profile_origin);
    json_value(&j, "network", network_name(p->network), &p->network_origin);
    json_value(&j, "privilege", privilege_name(p->privilege), &p->privilege_origin);
    json_value(&j, "enforcement", enforcement_name(p->enforcement), &p->enforcement_origin);
    json_obj(&j, "on_denial");
    json_u64(&j, "after", p->on_denial.after);
    json_str(&j, "do", denial_action_name(p->on_denial.action));
    json_origin(&j, &p->on_denial.origin);
    json_end_obj(&j);
    json_end_obj(&j);
    buf_addc(out, '\n');
}
