/* settings.c - a settings file of sandbox-runtime (`srt`), read as what it asks of Linux.
 *
 * Every key its schema knows has a row in a table here: either it is mapped, or its harmless value is accepted and any
 * other is an error that names the key. Nothing is skipped.
 */
#include <stdio.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/mem.h"
#include "base/num.h"
#include "policy/net/netpol.h"
#include "policy/run/doc.h"

struct settings {
    struct doc doc; /* first: the readers get a struct doc and look around it */
    bool network_off;
    bool all_sockets;
    const struct node *sockets;
    const struct node *allowed, *denied, *denied_addresses; /* domains and addresses; borrowed, NULL if not given */
};

static struct settings *settings_of(struct doc *d) { return (struct settings *)(void *)d; }

/* --- readers that several keys share ------------------------------------------------------------------------------ */

/* Accepts any boolean: both values mean the same here. */
static int settings_take_bool(struct doc *d, const struct node *value, unsigned arg)
{
    bool ignored;
    (void)arg;
    return doc_bool(d, value, d->key, &ignored);
}

enum refusal { WEAKENS, MACOS, PROGRAM, WINDOWS, PROXY, GIT, QUIET };

static const char *const refusals[] = {
    [WEAKENS] = "it would open the sandbox; hutch has no such mode",
    [MACOS] = "it is a permission of macOS",
    [PROGRAM] = "it names a program that sandbox-runtime starts and hutch does not have",
    [WINDOWS] = "it configures Windows",
    [PROXY] = "it configures sandbox-runtime's own proxy; hutch has another, described in docs/network.md. Give "
              "--network off to "
              "run without network",
    [GIT] = "git configuration is not injected; use env.set in a policy document",
    [QUIET] = "denials are always recorded",
};

static int fail_refused(struct doc *d, const struct node *value, unsigned arg)
{
    return doc_fail(d, value->line, "%s cannot be enforced: %s", d->key, refusals[arg]);
}

/* false and nothing else. */
static int settings_take_false(struct doc *d, const struct node *value, unsigned arg)
{
    bool yes;
    if (doc_bool(d, value, d->key, &yes) < 0)
        return -1;
    return yes ? fail_refused(d, value, arg) : 0;
}

/* An empty list or mapping and nothing else. */
static int settings_take_empty(struct doc *d, const struct node *value, unsigned arg)
{
    if (value->kind == NODE_SCALAR)
        return doc_fail(d, value->line, "%s must be a list or a mapping", d->key);
    return value->n == 0 ? 0 : fail_refused(d, value, arg);
}

static int settings_refuse(struct doc *d, const struct node *value, unsigned arg)
{
    return fail_refused(d, value, arg);
}

/* Keys of the proxy have no effect without a network. */
static int settings_take_proxy(struct doc *d, const struct node *value, unsigned arg)
{
    return settings_of(d)->network_off ? 0 : fail_refused(d, value, arg);
}

/* --- strings ------------------------------------------------------------------------------------------------------ */

static int check_string(struct doc *d, const struct node *node)
{
    if (node->kind != NODE_SCALAR || !node->quoted || node->text[0] == '\0')
        return doc_fail(d, node->line, "%s: expected a string that is not empty", d->key);
    return 0;
}

static int check_strings(struct doc *d, const struct node *value)
{
    if (value->kind != NODE_LIST)
        return doc_fail(d, value->line, "%s must be a list of strings", d->key);
    for (size_t i = 0; i < value->n; i++)
        if (check_string(d, value->items[i]) < 0)
            return -1;
    return 0;
}

/* --- filesystem --------------------------------------------------------------------------------------------------- */

/* "path", or {"path": "path", "literal": true}. */
static int settings_entry_path(struct doc *d, const struct node *entry, const char **ret, bool *ret_literal)
{
    *ret_literal = entry->kind == NODE_MAP;
    *ret = NULL;
    for (size_t i = 0; entry->kind == NODE_MAP && i < entry->n; i += 2) {
        const struct node *value = entry->items[i + 1];
        if (strcmp(entry->items[i]->text, "path") == 0 && check_string(d, value) == 0)
            *ret = value->text;
        else if (strcmp(entry->items[i]->text, "literal") != 0 || value->kind != NODE_SCALAR || value->quoted ||
                 strcmp(value->text, "true") != 0)
            return doc_fail(d, entry->line, "expected a path, or {\"path\": \"...\", \"literal\": true}");
    }
    if (entry->kind == NODE_MAP)
        return *ret && entry->n == 4 ? 0 : doc_fail(d, entry->line, "expected \"path\" and \"literal\": true");
    *ret = entry->text;
    return check_string(d, entry);
}

static const char *const fs_names[FILE_VERB_MAX] = {[FILE_DENY_READ] = "denyRead",
                                                    [FILE_ALLOW_READ] = "allowRead",
                                                    [FILE_ALLOW_WRITE] = "allowWrite",
                                                    [FILE_DENY_WRITE] = "denyWrite"};

static int settings_add_entry(struct doc *d, const struct node *entry, enum file_verb verb, size_t index)
{
    const char *text;
    bool literal;
    if (settings_entry_path(d, entry, &text, &literal) < 0)
        return -1;
    size_t n = strlen(text);
    bool deep = !literal && n > 3 && strcmp(text + n - 3, "/**") == 0;
    /* A trailing "**" is how srt's users write "all of this directory": the directory itself, outside of denyRead. */
    bool whole = deep && (verb == FILE_ALLOW_WRITE || verb == FILE_ALLOW_READ || verb == FILE_DENY_WRITE);
    _cleanup_free_ char *path = xstrndup(text, whole ? n - 3 : n);
    _cleanup_free_ char *id = xasprintf("filesystem.%s[%zu]", fs_names[verb], index);
    /* srt skips what may be allowed but does not exist. */
    d->file_flags = verb == FILE_ALLOW_WRITE || verb == FILE_ALLOW_READ ? FILE_TRY : 0;
    return doc_add_path(d, entry->line, verb, path, literal, id);
}

static int settings_take_paths(struct doc *d, const struct node *value, unsigned verb)
{
    if (value->kind != NODE_LIST)
        return doc_fail(d, value->line, "%s must be a list of paths", fs_names[verb]);
    for (size_t i = 0; i < value->n; i++)
        if (settings_add_entry(d, value->items[i], (enum file_verb)verb, i) < 0)
            return -1;
    return 0;
}

static int settings_take_git_config(struct doc *d, const struct node *value, unsigned arg)
{
    bool yes;
    (void)arg;
    if (doc_bool(d, value, "allowGitConfig", &yes) < 0)
        return -1;
    if (yes) {
        merge_remove_name(d->p, ".git/config");
        merge_remove_name(d->p, ".git/config.worktree");
    }
    return 0;
}

static int settings_take_filesystem(struct doc *d, const struct node *value, unsigned arg)
{
    static const struct doc_key keys[] = {
        {"denyRead", settings_take_paths, FILE_DENY_READ},
        {"allowRead", settings_take_paths, FILE_ALLOW_READ},
        {"allowWrite", settings_take_paths, FILE_ALLOW_WRITE},
        {"denyWrite", settings_take_paths, FILE_DENY_WRITE},
        {"disabled", settings_take_false, WEAKENS},
        {"allowGitConfig", settings_take_git_config, 0},
        {NULL, NULL, 0},
    };
    (void)arg;
    return doc_map(d, value, "filesystem", keys);
}

/* --- network ------------------------------------------------------------------------------------------------------ */

enum { ALLOWED, DENIED, DENIED_ADDRESSES };

static int settings_take_domains(struct doc *d, const struct node *value, unsigned which)
{
    struct settings *s = settings_of(d);
    *(which == ALLOWED ? &s->allowed : which == DENIED ? &s->denied : &s->denied_addresses) = value;
    return check_strings(d, value);
}

static size_t add_texts(const char **to, const struct node *list)
{
    for (size_t i = 0; list && i < list->n; i++)
        to[i] = list->items[i]->text;
    return list ? list->n : 0;
}

static int fail_domains(struct settings *s, const char *const *allow, const struct netpol_error *e)
{
    unsigned rule = 0, host = 0;
    size_t names = 0;
    /* The rule's own host, if it is one of the list: lists of names come first, in pieces of the same size. */
    if (sscanf(e->path, "rules[%u].hosts[%u]", &rule, &host) == 2)
        for (size_t i = 0; i < s->allowed->n; i++) {
            struct netpol_cidr c;
            if (!netpol_cidr_parse(allow[i], &c) && names++ == (size_t)rule * NETPOL_HOSTS_MAX + host)
                return doc_fail(&s->doc, s->allowed->items[i]->line, "network.allowedDomains[%zu]: %s", i, e->text);
        }
    return doc_fail(&s->doc, s->allowed->line, "network: %s", e->text);
}

/* Without a list of allowed domains nothing is reachable, and there is no network at all. */
static int finish_domains(struct settings *s)
{
    struct netpol *netpol = NULL;
    struct netpol_error e;
    if (!s->allowed || s->allowed->n == 0 || s->network_off)
        return 0;
    size_t ndeny = (s->denied ? s->denied->n : 0) + (s->denied_addresses ? s->denied_addresses->n : 0);
    _cleanup_free_ const char **allow = xcalloc(s->allowed->n + 1, sizeof *allow),
                              **deny = xcalloc(ndeny + 1, sizeof *deny);
    _cleanup_buf_ struct buf doc = {0};
    (void)add_texts(allow, s->allowed);
    (void)add_texts(deny + add_texts(deny, s->denied), s->denied_addresses);
    netpol_from_domains(allow, s->allowed->n, deny, ndeny, &doc);
    if (netpol_parse_json(doc.p, doc.n, NULL, NULL, &netpol, &e) < 0)
        return fail_domains(s, allow, &e);
    merge_network(s->doc.p, NETWORK_RULES, netpol);
    s->doc.p->network_origin = doc_origin(&s->doc, s->allowed->line);
    return 0;
}

static int settings_take_sockets(struct doc *d, const struct node *value, unsigned arg)
{
    (void)arg;
    if (check_strings(d, value) < 0)
        return -1;
    settings_of(d)->sockets = value;
    return 0;
}

static int settings_take_all_sockets(struct doc *d, const struct node *value, unsigned arg)
{
    (void)arg;
    return doc_bool(d, value, "network.allowAllUnixSockets", &settings_of(d)->all_sockets);
}

static int settings_take_network(struct doc *d, const struct node *value, unsigned arg)
{
    static const struct doc_key keys[] = {
        {"allowedDomains", settings_take_domains, ALLOWED},
        {"deniedDomains", settings_take_domains, DENIED},
        {"deniedResolvedAddresses", settings_take_domains, DENIED_ADDRESSES},
        {"deniedDomainReasons", settings_take_proxy, PROXY},
        {"strictAllowlist", settings_take_bool, 0}, /* no prompts here: always strict */
        {"allowUnixSockets", settings_take_sockets, 0},
        {"allowAllUnixSockets", settings_take_all_sockets, 0},
        {"allowLocalBinding", settings_take_bool, 0}, /* the sandbox's loopback is its own, as in srt on Linux */
        {"allowMachLookup", settings_take_empty, MACOS},
        {"httpProxyPort", settings_take_proxy, PROXY},
        {"socksProxyPort", settings_take_proxy, PROXY},
        {"mitmProxy", settings_take_proxy, PROXY},
        {"parentProxy", settings_take_proxy, PROXY},
        {"tlsTerminate", settings_take_proxy, PROXY},
        {"filterRequest", settings_take_proxy, PROXY},
        {"allowPlaintextHeaderSet", settings_take_proxy, PROXY},
        {"stripResponseHeaders", settings_take_proxy, PROXY},
        {"refuseOpaqueTunnels", settings_take_proxy, PROXY},
        {"requireHostMatch", settings_take_proxy, PROXY},
        {"ambiguousRequestTarget", settings_take_proxy, PROXY},
        {NULL, NULL, 0},
    };
    (void)arg;
    return doc_map(d, value, "network", keys);
}

/* On Linux srt blocks unix sockets completely or not at all. A filter cannot see paths, so a list counts only where
 * sockets are allowed; then each listed one is made reachable. */
static int finish_sockets(struct settings *s)
{
    struct doc *d = &s->doc;
    if (!s->all_sockets && s->sockets && s->sockets->n > 0)
        return doc_fail(
            d, s->sockets->line,
            "network.allowUnixSockets cannot be enforced: unix sockets are blocked as a whole or not at all; "
            "set \"allowAllUnixSockets\": true to reach these, or empty the list");
    for (size_t i = 0; s->all_sockets && s->sockets && i < s->sockets->n; i++) {
        const struct node *item = s->sockets->items[i];
        _cleanup_free_ char *id = xasprintf("network.allowUnixSockets[%zu]", i);
        d->file_flags = FILE_TRY;
        if (doc_add_path(d, item->line, FILE_SOCKET, item->text, false, id) < 0)
            return -1;
    }
    if (!s->all_sockets) {
        d->p->profile = "no-unix";
        d->p->profile_origin = doc_origin(d, 1);
    }
    return 0;
}

/* --- credentials -------------------------------------------------------------------------------------------------- */

struct credential {
    const char *subject, *mode;
};

/* One entry: its subject under `key`, its mode; everything else belongs to masking. */
static int credential_entry(struct doc *d, const struct node *entry, const char *key, struct credential *ret)
{
    *ret = (struct credential){0};
    for (size_t i = 0; entry->kind == NODE_MAP && i < entry->n; i += 2) {
        const struct node *value = entry->items[i + 1];
        const char **slot = strcmp(entry->items[i]->text, key) == 0      ? &ret->subject
                            : strcmp(entry->items[i]->text, "mode") == 0 ? &ret->mode
                                                                         : NULL;
        if (!slot)
            return doc_fail(d, entry->items[i]->line, "\"%s\" belongs to masking, which needs a network proxy",
                            doc_safe(entry->items[i]->text));
        if (check_string(d, value) < 0)
            return -1;
        *slot = value->text;
    }
    if (!ret->subject || !ret->mode)
        return doc_fail(d, entry->line, "expected {\"%s\": \"...\", \"mode\": \"deny\"}", key);
    if (strcmp(ret->mode, "deny") != 0)
        return doc_fail(d, entry->line, "mode \"%s\" cannot be enforced: masking needs a network proxy; use \"deny\"",
                        doc_safe(ret->mode));
    return 0;
}

static int settings_take_credentials_of(struct doc *d, const struct node *value, unsigned files)
{
    struct credential c;
    if (value->kind != NODE_LIST)
        return doc_fail(d, value->line, "credentials.%s must be a list", d->key);
    for (size_t i = 0; i < value->n; i++) {
        const struct node *entry = value->items[i];
        if (credential_entry(d, entry, files ? "path" : "name", &c) < 0)
            return -1;
        _cleanup_free_ char *id = xasprintf("credentials.files[%zu]", i);
        d->file_flags = 0;
        int r = files ? doc_add_path(d, entry->line, FILE_DENY_READ, c.subject, false, id)
                      : doc_add_env(d, entry->line, ENV_DENY, c.subject, NULL);
        if (r < 0)
            return -1;
    }
    return 0;
}

static int settings_take_credentials(struct doc *d, const struct node *value, unsigned arg)
{
    static const struct doc_key keys[] = {
        {"files", settings_take_credentials_of, true},
        {"envVars", settings_take_credentials_of, false},
        {"allowPlaintextInject", settings_take_false, PROXY},
        {"awsPairs", settings_take_empty, PROXY},
        {"sigv4", settings_take_empty, PROXY},
        {NULL, NULL, 0},
    };
    (void)arg;
    return doc_map(d, value, "credentials", keys);
}

/* --- top ---------------------------------------------------------------------------------------------------------- */

static int settings_take_depth(struct doc *d, const struct node *value, unsigned arg)
{
    int depth;
    (void)arg;
    if (value->kind != NODE_SCALAR || value->quoted || !num_int(value->text, 1, DOC_SEARCH_DEPTH_MAX, &depth))
        return doc_fail(d, value->line, "mandatoryDenySearchDepth must be a number from 1 to %d", DOC_SEARCH_DEPTH_MAX);
    d->p->search_depth = (unsigned)depth;
    d->p->search_depth_origin = doc_origin(d, value->line);
    return 0;
}

static const struct doc_key top_keys[] = {
    {"network", settings_take_network, 0},
    {"filesystem", settings_take_filesystem, 0},
    {"credentials", settings_take_credentials, 0},
    {"ignoreViolations", settings_take_empty, QUIET},
    {"enableWeakerNestedSandbox", settings_take_false, WEAKENS},
    {"allowNestedUserNamespaces", settings_take_false, WEAKENS},
    {"enableWeakerNetworkIsolation", settings_take_false, MACOS},
    {"allowAppleEvents", settings_take_false, MACOS},
    {"allowPty", settings_take_bool, 0}, /* macOS; on Linux a terminal works either way */
    {"mandatoryDenySearchDepth", settings_take_depth, 0},
    {"ripgrep", settings_refuse, PROGRAM},
    {"seccomp", settings_refuse, PROGRAM},
    {"bwrapPath", settings_refuse, PROGRAM},
    {"socatPath", settings_refuse, PROGRAM},
    {"javaAgentJarPath", settings_refuse, PROGRAM},
    {"windows", settings_refuse, WINDOWS},
    {"git", settings_refuse, GIT},
    {NULL, NULL, 0},
};

/* A settings file lists everything that may be written, so the default (the working directory) is removed. */
static void remove_workspace(struct policy *p)
{
    for (size_t i = p->nfiles; i-- > 0;)
        if (strcmp(p->files[i].id, "builtin.workspace") == 0)
            merge_remove_file_rule(p, i);
}

int settings_parse(const char *text, size_t n, const char *name, const struct policy_where *where, unsigned flags,
                   struct policy *p, struct err *err)
{
    _cleanup_node_ struct node *root = NULL;
    struct settings s = {.network_off = flags & SETTINGS_NETWORK_OFF};
    if (node_read(text, n, name, NODE_JSON, &root, err) < 0)
        return -1;
    s.doc = (struct doc){.where = where,
                         .level = LEVEL_SETTINGS,
                         .name = doc_keep(p, name),
                         .base = where->cwd,
                         .p = p,
                         .may_widen = true,
                         .err = err};
    strv_add(&p->sources, name);
    remove_workspace(p);
    return doc_map(&s.doc, root, "", top_keys) < 0 || finish_domains(&s) < 0 ? -1 : finish_sockets(&s);
}

int policy_parse_settings(const char *text, size_t n, const char *name, const struct policy_where *where,
                          struct policy *p, struct err *err)
{
    return settings_parse(text, n, name, where, 0, p, err);
}
