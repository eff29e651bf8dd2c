#include "policy/explain.h"

#include <fnmatch.h>
#include <string.h>
#include <sys/stat.h>

#include "base/cleanup.h"
#include "base/mem.h"
#include "base/path.h"
#include "base/text.h"
#include "policy/doc.h"
#include "policy/filter.h"
#include "policy/syscalls.h"

struct grant {
    struct buf line, flag, origin;
    const char *rule_id;
};

static void grant_done(struct grant *g)
{
    buf_done(&g->line);
    buf_done(&g->flag);
    buf_done(&g->origin);
}

static void put(struct buf *to, const struct buf *from)
{
    if (to)
        buf_add(to, buf_str(from), from->n);
}

static void hand_out(struct grant *g, struct buf *policy_line, struct buf *flag, const char **rule_id,
                     struct buf *origin)
{
    put(policy_line, &g->line);
    put(flag, &g->flag);
    put(origin, &g->origin);
    if (rule_id)
        *rule_id = g->rule_id;
    grant_done(g);
}

/* A word for a shell: quoted unless every byte is harmless. */
static void add_shell_word(struct buf *b, const char *s)
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/._-+=:@%,";
    if (*s && strspn(s, plain) == strlen(s)) {
        buf_adds(b, s);
        return;
    }
    buf_addc(b, '\'');
    for (; *s; s++) {
        if (*s == '\'')
            buf_adds(b, "'\\''");
        else
            buf_addc(b, *s);
    }
    buf_addc(b, '\'');
}

/* A name that contains glob characters must be written with "\" before them. */
static char *escape_path(const char *path)
{
    struct buf b = {0};
    for (; *path; path++) {
        if (strchr("*?[\\", *path))
            buf_addc(&b, '\\');
        buf_addc(&b, *path);
    }
    return b.p ? b.p : xstrdup("");
}

/* What a grant for writing must name. A mount needs something to show, so for a path that does not exist it is the
 * nearest directory above that does, as long as that is denied too. New string. */
static char *write_target(const struct policy *p, const char *path)
{
    struct stat st;
    char *target = xstrdup(path);
    while (lstat(target, &st) < 0) {
        _cleanup_free_ char *parent = path_parent(target);
        if (strcmp(parent, "/") == 0 || policy_may_write(p, parent, NULL, NULL))
            break;
        free(target);
        target = TAKE_PTR(parent);
    }
    return target;
}

static void grant_path(const struct policy *p, const char *path, bool write, struct grant *g)
{
    const struct file_rule *rule = NULL;
    const struct protected_name *name = NULL;
    bool allowed = write ? policy_may_write(p, path, &rule, &name) : policy_may_read(p, path, &rule);
    g->rule_id = name ? name->id : rule ? rule->id : "default";
    if (allowed)
        return;
    const struct origin *ceiling = ceiling_on_path(p, path, write);
    static const struct origin builtin;
    origin_add(&g->origin, ceiling ? ceiling : name ? &name->origin : rule ? &rule->origin : &builtin);
    /* A mount cannot be made for a path that cannot be written in a rule. */
    if (ceiling || strcmp(path, "/") == 0 || path_under(path, "/proc") || path_under(path, "/sys") ||
        strpbrk(path, "\n\r\t\x1b"))
        return;
    _cleanup_free_ char *target = write ? write_target(p, path) : xstrdup(path), *escaped = escape_path(target);
    buf_addf(&g->line, "files: {%s: [", file_verb_name(write ? FILE_ALLOW_WRITE : FILE_ALLOW_READ));
    node_add_scalar(&g->line, escaped);
    buf_adds(&g->line, "]}");
    buf_addf(&g->flag, "%s ", write ? "--rw" : "--allow-read");
    add_shell_word(&g->flag, escaped);
}

void policy_grant_for_path(const struct policy *p, const char *path, bool write, struct buf *policy_line,
                           struct buf *flag, const char **rule_id, struct buf *origin)
{
    struct grant g = {0};
    grant_path(p, path, write, &g);
    hand_out(&g, policy_line, flag, rule_id, origin);
}

/* --- system calls ------------------------------------------------------------------------------------------------- */

static unsigned filter_flags(const struct policy *p)
{
    unsigned flags = p->privilege == PRIVILEGE_COMPUTER ? FILTER_COMPUTER : FILTER_HOST_IDS;
    if (strcmp(p->profile, "debugger") == 0)
        flags |= FILTER_DEBUGGER;
    if (strcmp(p->profile, "no-unix") == 0)
        flags |= FILTER_NO_UNIX;
    return flags;
}

/* What the profile says about the call once it is in syscalls.allow: whether that would help. */
static bool allow_would_help(const struct policy *p, int nr)
{
    struct err err;
    struct policy *copy = policy_new();
    copy->profile = p->profile;
    copy->privilege = p->privilege;
    MEM_GROW(copy->syscalls, copy->nsyscalls, copy->syscalls_cap);
    copy->syscalls[copy->nsyscalls++] = (struct syscall_rule){.name = xstrdup(syscall_name(nr)), .allow = true};
    struct filter f = {0};
    bool helps = filter_build(copy, filter_flags(copy), &f, &err) == 0;
    if (helps)
        filter_done(&f);
    policy_free(copy);
    return helps;
}

static void grant_syscall(const struct policy *p, int nr, struct grant *g)
{
    const struct syscall_rule *rule = NULL;
    enum filter_verdict v = filter_verdict_of(p, filter_flags(p), nr, NULL, NULL, &rule);
    const char *name = syscall_name(nr);
    g->rule_id = rule ? (rule->allow ? "syscalls.allow" : "syscalls.deny") : "syscalls.profile";
    if (v == FILTER_ALLOWED || v == FILTER_UNKNOWN || !name)
        return;
    const struct origin *ceiling = ceiling_on_syscall(p, name);
    origin_add(&g->origin, ceiling ? ceiling : rule ? &rule->origin : &p->profile_origin);
    if (ceiling || !allow_would_help(p, nr))
        return;
    buf_addf(&g->line, "syscalls: {allow: [%s]}", name);
    buf_addf(&g->flag, "--allow-syscall %s", name);
}

void policy_grant_for_syscall(const struct policy *p, int nr, struct buf *policy_line, struct buf *flag,
                              const char **rule_id, struct buf *origin)
{
    struct grant g = {0};
    grant_syscall(p, nr, &g);
    hand_out(&g, policy_line, flag, rule_id, origin);
}

/* --- hosts -------------------------------------------------------------------------------------------------------- */

/* "*.example.com" means names below it, "host:443" one port; deny wins. Without a proxy nothing enforces rules yet. */
static bool host_rule_matches(const char *rule, const char *host)
{
    const char *port = strrchr(rule, ':');
    _cleanup_free_ char *bare = port && !strchr(host, ':') ? xstrndup(rule, (size_t)(port - rule)) : xstrdup(rule);
    return fnmatch(bare, host, FNM_CASEFOLD) == 0;
}

static bool host_allowed(const struct policy *p, const char *host)
{
    bool allowed = false;
    if (p->network != NETWORK_RULES)
        return p->network == NETWORK_HOST;
    for (size_t i = 0; i < p->network_rules.n; i++) {
        const char *rule = p->network_rules.v[i];
        bool deny = strncmp(rule, "deny ", 5) == 0;
        if (!host_rule_matches(strchr(rule, ' ') + 1, host))
            continue;
        if (deny)
            return false;
        allowed = true;
    }
    return allowed;
}

static void grant_host(const struct policy *p, const char *host, struct grant *g)
{
    g->rule_id = "network";
    if (host_allowed(p, host))
        return;
    const struct origin *ceiling = ceiling_on_network(p, NETWORK_RULES);
    origin_add(&g->origin, ceiling ? ceiling : &p->network_origin);
    if (ceiling)
        return;
    buf_adds(&g->line, "network: {allow: [");
    node_add_scalar(&g->line, host);
    buf_adds(&g->line, "]}");
    /* No flag opens one host before there is a proxy; this one opens all of them. */
    if (!ceiling_on_network(p, NETWORK_HOST))
        buf_adds(&g->flag, "--network host");
}

void policy_grant_for_host(const struct policy *p, const char *host, struct buf *policy_line, struct buf *flag,
                           const char **rule_id, struct buf *origin)
{
    struct grant g = {0};
    grant_host(p, host, &g);
    hand_out(&g, policy_line, flag, rule_id, origin);
}

/* --- for people --------------------------------------------------------------------------------------------------- */

static void add_grant(struct buf *out, const struct grant *g)
{
    if (g->line.n == 0) {
        buf_addf(out, "  grant   no grant possible: %s\n", buf_str(&g->origin));
        return;
    }
    buf_addf(out, "  grant   %s\n", buf_str(&g->line));
    if (g->flag.n > 0)
        buf_addf(out, "  flag    %s\n", buf_str(&g->flag));
}

bool policy_explain_path(const struct policy *p, const char *path, bool write, struct buf *out)
{
    __attribute__((cleanup(grant_done))) struct grant g = {0};
    const struct file_rule *rule = NULL;
    const struct protected_name *name = NULL;
    bool allowed = write ? policy_may_write(p, path, &rule, &name) : policy_may_read(p, path, &rule);
    grant_path(p, path, write, &g);
    buf_addf(out, "%s ", write ? "write" : "read");
    text_add_safe(out, path, DOC_PATH_MAX);
    buf_addf(out, ": %s\n", allowed ? "allowed" : "denied");
    if (name) {
        buf_addf(out, "  rule    %s: protected name %s\n  from    ", name->id, name->name);
        origin_add(out, &name->origin);
    } else if (rule) {
        buf_addf(out, "  rule    %s: %s ", rule->id, file_verb_name(rule->verb));
        text_add_safe(out, rule->path, DOC_PATH_MAX);
        buf_adds(out, "\n  from    ");
        origin_add(out, &rule->origin);
    } else {
        buf_addf(out, "  rule    default: %s\n  from    built-in",
                 write ? "nothing is writable" : "everything is readable");
    }
    buf_addc(out, '\n');
    if (!allowed && ceiling_on_path(p, path, write))
        buf_addf(out, "  grant   no grant possible: ceiling %s\n", buf_str(&g.origin));
    else if (!allowed)
        add_grant(out, &g);
    return allowed;
}

bool policy_explain_syscall(const struct policy *p, int nr, struct buf *out)
{
    static const char *const words[] = {[FILTER_UNKNOWN] = "unknown",
                                        [FILTER_ALLOWED] = "allowed",
                                        [FILTER_CHECKED] = "allowed or denied by its arguments",
                                        [FILTER_REFUSED] = "denied"};
    __attribute__((cleanup(grant_done))) struct grant g = {0};
    const struct syscall_rule *rule = NULL;
    const char *reason = NULL, *name = syscall_name(nr);
    int eno = 0;
    enum filter_verdict v = filter_verdict_of(p, filter_flags(p), nr, &reason, &eno, &rule);
    grant_syscall(p, nr, &g);
    buf_addf(out, "syscall %s: %s", name ? name : "?", words[v]);
    if (v == FILTER_REFUSED && eno != 0)
        buf_addf(out, " with %s", text_errno(eno));
    buf_addf(out, "\n  rule    %s%s%s\n  from    ", g.rule_id, reason ? ": " : "", reason ? reason : "");
    origin_add(out, rule ? &rule->origin : &p->profile_origin);
    buf_addc(out, '\n');
    if (v == FILTER_REFUSED && ceiling_on_syscall(p, name))
        buf_addf(out, "  grant   no grant possible: ceiling %s\n", buf_str(&g.origin));
    else if (v == FILTER_REFUSED && g.line.n == 0)
        buf_adds(out, "  grant   no grant possible: the wall depends on it\n");
    else if (v == FILTER_REFUSED)
        add_grant(out, &g);
    return v == FILTER_ALLOWED || v == FILTER_CHECKED;
}

bool policy_explain_host(const struct policy *p, const char *host, struct buf *out)
{
    __attribute__((cleanup(grant_done))) struct grant g = {0};
    bool allowed = host_allowed(p, host);
    grant_host(p, host, &g);
    buf_adds(out, "host ");
    text_add_safe(out, host, DOC_NAME_MAX);
    buf_addf(out, ": %s\n  rule    network: %s\n  from    ", allowed ? "allowed" : "denied", network_name(p->network));
    origin_add(out, &p->network_origin);
    buf_addc(out, '\n');
    if (!allowed && ceiling_on_network(p, NETWORK_RULES))
        buf_addf(out, "  grant   no grant possible: ceiling %s\n", buf_str(&g.origin));
    else if (!allowed)
        add_grant(out, &g);
    return allowed;
}
