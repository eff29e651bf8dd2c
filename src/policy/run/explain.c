#include "policy/run/explain.h"

#include <arpa/inet.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "base/cleanup.h"
#include "base/mem.h"
#include "base/path.h"
#include "base/text.h"
#include "policy/net/netpol.h"
#include "policy/run/doc.h"
#include "policy/run/filter.h"
#include "policy/run/syscalls.h"

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

static void explain_copy_text(struct buf *to, const struct buf *from)
{
    if (to)
        buf_add(to, buf_str(from), from->n);
}

static void hand_out(struct grant *g, struct buf *policy_line, struct buf *flag, const char **rule_id,
                     struct buf *origin)
{
    explain_copy_text(policy_line, &g->line);
    explain_copy_text(flag, &g->flag);
    explain_copy_text(origin, &g->origin);
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

/* The path that a grant for writing must name. A mount needs an existing target, so for a missing path it is the
 * nearest existing directory above, as long as that is denied too. New string. */
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

bool policy_holds_home(const struct policy *p, const char *dir)
{
    for (size_t i = 0; i < p->homes.n; i++)
        if (path_under(p->homes.v[i], dir))
            return true;
    return false;
}

/* "files: {KEY: [PATH]}" and "FLAG PATH". */
static void add_file_grant(const char *key, const char *option, const char *path, struct buf *line, struct buf *flag)
{
    _cleanup_free_ char *escaped = escape_path(path);
    if (line) {
        buf_addf(line, "files: {%s: [", key);
        node_add_scalar(line, escaped);
        buf_adds(line, "]}");
    }
    if (flag) {
        buf_addf(flag, "%s ", option);
        add_shell_word(flag, escaped);
    }
}

static bool can_stand_in_rule(const char *path) { return strcmp(path, "/") != 0 && !strpbrk(path, "\n\r\t\x1b"); }

void policy_grant_as(const struct policy *p, const char *path, enum file_grant as, struct buf *policy_line,
                     struct buf *flag)
{
    static const char *const keys[] = {"allow_write", "make_write", "read_only"};
    static const char *const options[] = {"--rw", "--rw-make", "--ro"};
    if (!ceiling_on_path(p, path, as != FILE_GRANT_SHOW) && can_stand_in_rule(path))
        add_file_grant(keys[as], options[as], path, policy_line, flag);
}

/* `target` holds a home directory: what is missing right below it, instead. New string. */
static char *target_below_home(const char *target, const char *path)
{
    size_t n = strcmp(target, "/") == 0 ? 0 : strlen(target);
    return xstrndup(path, n + 1 + strcspn(path + n + 1, "/"));
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
    if (ceiling || path_under(path, "/proc") || path_under(path, "/sys") || !can_stand_in_rule(path))
        return;
    _cleanup_free_ char *target = write ? write_target(p, path) : xstrdup(path);
    if (write && strcmp(target, path) != 0 && policy_holds_home(p, target)) {
        _cleanup_free_ char *below = target_below_home(target, path);
        add_file_grant("make_write", "--rw-make", below, &g->line, &g->flag);
        return;
    }
    add_file_grant(file_verb_name(write ? FILE_ALLOW_WRITE : FILE_ALLOW_READ), write ? "--rw" : "--allow-read", target,
                   &g->line, &g->flag);
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

/* Whether adding the call to syscalls.allow would change the verdict. */
static bool allow_would_help(const struct policy *p, const char *name)
{
    struct err err;
    struct policy *copy = policy_new();
    copy->profile = p->profile;
    copy->privilege = p->privilege;
    MEM_GROW(copy->syscalls, copy->nsyscalls, copy->syscalls_cap);
    copy->syscalls[copy->nsyscalls++] = (struct syscall_rule){.name = xstrdup(name), .allow = true};
    struct filter f = {0};
    bool helps = filter_build(copy, filter_flags(copy), &f, &err) == 0;
    if (helps)
        filter_done(&f);
    policy_free(copy);
    return helps;
}

/* `word` stands for the part of the call that is refused; NULL: the whole call. */
static void grant_syscall(const struct policy *p, int nr, const char *word, struct grant *g)
{
    const struct syscall_rule *rule = NULL;
    enum filter_verdict v = filter_verdict_of(p, filter_flags(p), nr, NULL, NULL, &rule);
    const char *name = word ? word : syscall_name(nr);
    g->rule_id = rule ? (rule->allow ? "syscalls.allow" : "syscalls.deny") : "syscalls.profile";
    if (v == FILTER_ALLOWED || v == FILTER_UNKNOWN || !name)
        return;
    const struct origin *ceiling = ceiling_on_syscall(p, name);
    origin_add(&g->origin, ceiling ? ceiling : rule ? &rule->origin : &p->profile_origin);
    if (ceiling || !allow_would_help(p, name))
        return;
    buf_addf(&g->line, "syscalls: {allow: [%s]}", name);
    buf_addf(&g->flag, "--allow-syscall %s", name);
}

void policy_grant_for_syscall(const struct policy *p, int nr, const char *word, struct buf *policy_line,
                              struct buf *flag, const char **rule_id, struct buf *origin)
{
    struct grant g = {0};
    grant_syscall(p, nr, word, &g);
    hand_out(&g, policy_line, flag, rule_id, origin);
}

/* --- hosts -------------------------------------------------------------------------------------------------------- */

/* A host or a URL in the form that rules are matched against. */
struct ask {
    char host[NETPOL_NAME_MAX];
    struct netpol_flow flow;
    struct netpol_request request; /* only of a URL */
    struct netpol_target target;
    bool is_url;
};

static void ask_done(struct ask *a) { netpol_target_done(&a->target); }

/* "host", "host:port", an address, or "http[s]://host[:port]/path". NULL, or what is wrong. */
static const char *read_ask(const char *method, const char *text, struct ask *ret)
{
    const char *rest = strncmp(text, "https://", 8) == 0  ? text + 8
                       : strncmp(text, "http://", 7) == 0 ? text + 7
                                                          : NULL;
    bool literal = false;
    const char *why = NULL;
    *ret = (struct ask){.is_url = rest != NULL};
    ret->flow.tls = !rest || rest == text + 8;
    ret->flow.port = ret->flow.tls ? 443 : 80;
    size_t n = strcspn(rest ? rest : text, "/?#");
    _cleanup_free_ char *authority = rest ? xstrndup(rest, n) : xstrdup(text);
    if (!netpol_authority(authority, ret->host, &ret->flow.addr, &literal, &ret->flow.port) &&
        !(literal = netpol_literal(authority, strlen(authority), &ret->flow.addr)))
        return "not a host name, an address or a URL";
    ret->flow.host = literal ? NULL : ret->host;
    if (!rest)
        return NULL;
    size_t path = strcspn(rest + n, "?");
    _cleanup_free_ char *target = xstrndup(rest + n, path);
    const char *query = rest[n + path] == '?' ? rest + n + path + 1 : NULL;
    (void)netpol_target(target[0] ? target : "/", query, &ret->target, &why);
    ret->request = (struct netpol_request){.method = method, .target = &ret->target};
    return why;
}

static void explain_judge_network(const struct policy *p, const struct ask *a, struct netpol_decision *ret)
{
    *ret = (struct netpol_decision){.verdict = p->network == NETWORK_HOST ? NETPOL_ALLOW : NETPOL_DENY,
                                    .reason = p->network == NETWORK_HOST ? NETPOL_R_NONE : NETPOL_R_HOST};
    if (p->network == NETWORK_RULES && a->is_url)
        netpol_request(p->netpol, &a->flow, &a->request, (uint64_t)time(NULL), ret);
    else if (p->network == NETWORK_RULES)
        netpol_connect(p->netpol, &a->flow, (uint64_t)time(NULL), ret);
}

/* No grant opens an address that is never reached, or takes back what a deny rule says. */
static bool explain_is_grantable(const struct netpol_decision *d)
{
    return d->reason != NETPOL_R_PRIVATE && d->reason != NETPOL_R_DENY_RULE && d->reason != NETPOL_R_MALFORMED;
}

static void grant_ask(const struct policy *p, const struct ask *a, const char *text, struct grant *g)
{
    struct netpol_decision d;
    explain_judge_network(p, a, &d);
    g->rule_id = d.rule ? d.rule->id : "network";
    if (d.verdict == NETPOL_ALLOW)
        return;
    const struct origin *ceiling = ceiling_on_network(p, NETWORK_RULES);
    origin_add(&g->origin, ceiling ? ceiling : &p->network_origin);
    if (ceiling || !explain_is_grantable(&d))
        return;
    if (a->is_url || p->network == NETWORK_RULES) {
        buf_adds(&g->line, "network: {rules: [");
        netpol_grant(&a->flow, a->is_url ? &a->request : NULL, &g->line);
        buf_adds(&g->line, "]}");
    } else {
        buf_adds(&g->line, "network: {allow: [");
        node_add_scalar(&g->line, text);
        buf_adds(&g->line, "]}");
    }
    if (a->flow.host && a->flow.port != 80 && a->flow.port != 443)
        buf_addf(&g->flag, "--allow-host %s:%u", a->host, a->flow.port);
    else if (a->flow.host)
        buf_addf(&g->flag, "--allow-host %s", a->host);
}

static void grant_host(const struct policy *p, const char *host, struct grant *g)
{
    __attribute__((cleanup(ask_done))) struct ask a = {0};
    g->rule_id = "network";
    if (!read_ask("GET", host, &a))
        grant_ask(p, &a, host, g);
}

void policy_grant_for_host(const struct policy *p, const char *host, struct buf *policy_line, struct buf *flag,
                           const char **rule_id, struct buf *origin)
{
    struct grant g = {0};
    grant_host(p, host, &g);
    hand_out(&g, policy_line, flag, rule_id, origin);
}

/* --- for people --------------------------------------------------------------------------------------------------- */

static void explain_add_grant(struct buf *out, const struct grant *g)
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
        explain_add_grant(out, &g);
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
    grant_syscall(p, nr, NULL, &g);
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
        explain_add_grant(out, &g);
    return v == FILTER_ALLOWED || v == FILTER_CHECKED;
}

bool policy_explain_host(const struct policy *p, const char *host, struct buf *out)
{
    return policy_explain_request(p, "GET", host, NULL, out);
}

static void explain_add_reason(const struct policy *p, const struct netpol_decision *d, struct buf *out)
{
    buf_addf(out, "  rule    %s%s", p->network == NETWORK_RULES && d->rule ? "" : "network: ",
             p->network != NETWORK_RULES ? network_name(p->network)
             : d->rule                   ? d->rule->id
                                         : "default");
    if (d->verdict != NETPOL_ALLOW || d->would_deny)
        buf_addf(out, "\n  reason  %s", netpol_reason_name(d->reason));
    buf_adds(out, "\n  from    ");
    origin_add(out, &p->network_origin);
    buf_addc(out, '\n');
}

char *policy_explain_name(const struct policy *p, const char *method, const char *what)
{
    __attribute__((cleanup(ask_done))) struct ask a = {0};
    struct netpol_decision d;
    if (p->network != NETWORK_RULES || read_ask(method, what, &a) || !a.flow.host)
        return NULL;
    explain_judge_network(p, &a, &d);
    return d.verdict == NETPOL_ALLOW ? xstrdup(a.host) : NULL;
}

/* Judges the addresses of an allowed name as egress does: one that may be reached is enough. Changes the decision if there is
 * none; *ret is the address that decides. */
static void explain_judge_addresses(const struct policy *p, const struct ask *a, const struct policy_addresses *at,
                                    struct netpol_decision *d, struct in6_addr *ret, enum netpol_address *kind)
{
    const struct netpol_reach reach = {.own = at->own, .nown = at->nown};
    *kind = NETPOL_PUBLIC;
    for (size_t i = 0; i < at->n; i++) {
        enum netpol_address k = netpol_reach(&reach, &at->v[i]);
        bool open = k == NETPOL_PRIVATE && d->rule && netpol_cidrs_have(d->rule->private, d->rule->nprivate, &at->v[i]);
        k = netpol_resolved(p->netpol, &a->flow, &at->v[i], (uint64_t)time(NULL)) ? k : NETPOL_NEVER;
        if (*kind != NETPOL_NEVER) {
            *ret = at->v[i];
            *kind = k;
        }
        if (k == NETPOL_PUBLIC || (open && k != NETPOL_NEVER)) {
            *kind = NETPOL_PUBLIC;
            *ret = at->v[i];
            return;
        }
    }
    if (*kind == NETPOL_PUBLIC)
        return;
    d->verdict = NETPOL_DENY;
    d->reason = NETPOL_R_RESOLVED_PRIVATE;
}

static void explain_add_address(const struct in6_addr *a, struct buf *out)
{
    char text[INET6_ADDRSTRLEN] = "";
    bool v4 = IN6_IS_ADDR_V4MAPPED(a);
    (void)inet_ntop(v4 ? AF_INET : AF_INET6, v4 ? (const void *)(a->s6_addr + 12) : (const void *)a, text, sizeof text);
    buf_adds(out, text);
}

void policy_grant_for_private(const struct policy *p, const char *host, unsigned port, const char *address,
                              struct buf *policy_line, struct buf *flag)
{
    bool usual = port == 80 || port == 443;
    if (ceiling_on_network(p, NETWORK_RULES))
        return;
    if (policy_line) {
        buf_addf(policy_line, "network: {rules: [{\"hosts\":[\"%s\"],", host);
        if (!usual)
            buf_addf(policy_line, "\"ports\":[%u],", port);
        buf_addf(policy_line, "\"private\":[\"%s\"]}]}", address);
    }
    if (flag)
        buf_addf(flag, usual ? "--allow-private %s" : "--allow-private %s:%u", host, port);
}

/* The line about what the name stands for, and the grant if that is what refuses. */
static void explain_add_addresses(const struct policy *p, const struct ask *a, const struct policy_addresses *at,
                                  const struct netpol_decision *d, const struct in6_addr *decides,
                                  enum netpol_address kind, struct buf *out)
{
    _cleanup_buf_ struct buf text = {0}, line = {0}, flag = {0};
    if (at->n == 0) {
        buf_adds(out, "  address none: its name cannot be resolved here, so it is unreachable\n");
        return;
    }
    explain_add_address(decides, &text);
    buf_addf(out, "  address %s%s\n", buf_str(&text),
             d->verdict == NETPOL_ALLOW ? ""
             : kind == NETPOL_PRIVATE   ? ", which is not a public address"
                                        : ", which is never reached");
    if (d->verdict == NETPOL_ALLOW)
        return;
    if (kind == NETPOL_PRIVATE)
        policy_grant_for_private(p, a->host, a->flow.port, buf_str(&text), &line, &flag);
    if (line.n > 0)
        buf_addf(out, "  grant   %s\n  flag    %s\n", buf_str(&line), buf_str(&flag));
    else
        buf_adds(out, "  grant   no grant possible\n");
}

bool policy_explain_request(const struct policy *p, const char *method, const char *what,
                            const struct policy_addresses *addresses, struct buf *out)
{
    static const char *const words[] = {
        [NETPOL_ALLOW] = "allowed", [NETPOL_DENY] = "denied", [NETPOL_ASK] = "needs approval"};
    __attribute__((cleanup(grant_done))) struct grant g = {0};
    __attribute__((cleanup(ask_done))) struct ask a = {0};
    struct netpol_decision d = {.verdict = NETPOL_DENY};
    struct in6_addr decides;
    enum netpol_address kind = NETPOL_PUBLIC;
    const char *why = read_ask(method, what, &a);
    buf_addf(out, "%s ", a.is_url ? method : "host");
    text_add_safe(out, what, 1024);
    if (why) {
        buf_addf(out, ": denied\n  reason  malformed: %s\n", why);
        return false;
    }
    explain_judge_network(p, &a, &d);
    bool named = d.verdict == NETPOL_ALLOW && a.flow.host && addresses && p->network == NETWORK_RULES;
    if (named)
        explain_judge_addresses(p, &a, addresses, &d, &decides, &kind);
    buf_addf(out, ": %s\n", d.would_deny ? "allowed, and would be denied if the mode were enforce" : words[d.verdict]);
    explain_add_reason(p, &d, out);
    if (named) {
        explain_add_addresses(p, &a, addresses, &d, &decides, kind, out);
    } else if (d.verdict != NETPOL_ALLOW) {
        grant_ask(p, &a, what, &g);
        if (ceiling_on_network(p, NETWORK_RULES))
            buf_addf(out, "  grant   no grant possible: ceiling %s\n", buf_str(&g.origin));
        else
            explain_add_grant(out, &g);
    }
    return d.verdict == NETPOL_ALLOW;
}
