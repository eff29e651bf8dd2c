/* parse.c - the top of the document, and the sections that are too small for a file of their own. */
#include <string.h>

#include "base/cleanup.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/num.h"
#include "base/path.h"
#include "base/text.h"
#include "policy/net/netpol.h"
#include "policy/run/doc.h"
#include "policy/run/filter.h"
#include "policy/run/syscalls.h"

const char *const policy_profiles[] = {"no-unix", "default", "debugger", NULL};
static const char *const network_words[] = {"off", "rules", "host", NULL}; /* from narrow to wide */
static const char *const privilege_words[] = {"strict", "computer", NULL};
static const char *const enforcement_words[] = {"required", "best-effort", NULL};
static const char *const action_words[] = {"report", "freeze", "kill", NULL};

const char *privilege_name(enum privilege privilege) { return privilege_words[privilege]; }
const char *enforcement_name(enum enforcement enforcement) { return enforcement_words[enforcement]; }
const char *denial_action_name(enum denial_action action) { return action_words[action]; }

const char *network_name(enum network_mode mode)
{
    return mode == NETWORK_OFF ? "off" : mode == NETWORK_HOST ? "host" : "rules";
}

static int rank_of(const char *const *words, const char *word)
{
    int i = 0;
    while (words[i] && strcmp(words[i], word) != 0)
        i++;
    return i;
}

/* --- syscalls ----------------------------------------------------------------------------------------------------- */

static int policy_read_profile(struct doc *d, const struct node *value, unsigned arg)
{
    (void)arg;
    int i = doc_word(d, value, "syscalls.profile", policy_profiles);
    if (i < 0)
        return -1;
    if (!d->may_widen && i > rank_of(policy_profiles, d->p->profile))
        return doc_fail_widens(d, value->line, "this syscalls.profile");
    d->p->profile = policy_profiles[i];
    d->p->profile_origin = doc_origin(d, value->line);
    return 0;
}

static int fail_call_contradiction(struct doc *d, unsigned line, const struct syscall_rule *old)
{
    _cleanup_buf_ struct buf other = {0};
    origin_add(&other, &old->origin);
    (void)doc_fail(d, line, "syscall %s is both allowed and denied; the other line is %s", old->name, buf_str(&other));
    d->err->code = ERR_POLICY;
    return -1;
}

static int policy_read_call(struct doc *d, const struct node *item, unsigned index, unsigned allow)
{
    struct policy *p = d->p;
    (void)index;
    if (allow && !d->may_widen)
        return doc_fail_widens(d, item->line, "syscalls.allow");
    if (syscall_number(item->text) < 0 && !filter_is_word(item->text)) {
        const char *near = text_nearest(item->text, filter_words);
        near = near ? near : text_nearest(item->text, syscall_names);
        return doc_fail(d, item->line, "unknown syscall \"%s\"%s%s%s", doc_safe(item->text),
                        near ? "; did you mean \"" : "", near ? near : "", near ? "\"?" : "");
    }
    struct origin origin = doc_origin(d, item->line);
    for (size_t i = 0; i < p->nsyscalls; i++) {
        struct syscall_rule *old = &p->syscalls[i];
        if (strcmp(old->name, item->text) != 0)
            continue;
        if (old->allow != (bool)allow && old->origin.level == d->level)
            return fail_call_contradiction(d, item->line, old);
        old->allow = allow;
        old->origin = origin;
        return 0;
    }
    MEM_GROW(p->syscalls, p->nsyscalls, p->syscalls_cap);
    p->syscalls[p->nsyscalls++] = (struct syscall_rule){.name = xstrdup(item->text), .allow = allow, .origin = origin};
    return 0;
}

static int policy_read_calls(struct doc *d, const struct node *value, unsigned allow)
{
    return doc_list(d, value, allow ? "syscalls.allow" : "syscalls.deny", policy_read_call, allow);
}

static int policy_read_syscalls(struct doc *d, const struct node *value, unsigned arg)
{
    static const struct doc_key keys[] = {{"profile", policy_read_profile, 0},
                                          {"allow", policy_read_calls, true},
                                          {"deny", policy_read_calls, false},
                                          {NULL, NULL, 0}};
    (void)arg;
    return doc_map(d, value, "syscalls", keys);
}

static int policy_read_ceiling_syscalls(struct doc *d, const struct node *value, unsigned arg)
{
    static const struct doc_key keys[] = {
        {"profile", policy_read_profile, 0}, {"allow", policy_read_calls, true}, {NULL, NULL, 0}};
    (void)arg;
    d->p->syscall_ceiling = doc_origin(d, value->line);
    return doc_map(d, value, "ceiling.syscalls", keys);
}

/* --- network ------------------------------------------------------------------------------------------------------ */

static int rank_of_network(enum network_mode mode) { return rank_of(network_words, network_name(mode)); }

static int policy_set_network(struct doc *d, unsigned line, enum network_mode mode)
{
    if (!d->may_widen && rank_of_network(mode) > rank_of_network(d->p->network))
        return doc_fail_widens(d, line, "network");
    merge_network(d->p, mode, NULL);
    d->p->network_origin = doc_origin(d, line);
    return 0;
}

struct netpol *doc_no_network(void)
{
    _cleanup_node_ struct node *word = node_new(NODE_SCALAR, "off", 0);
    struct netpol_error e;
    struct netpol *netpol = NULL;
    (void)netpol_parse(word, NULL, NULL, &netpol, &e);
    return netpol;
}

/* For netpol_preset_of_user(), which only reads it. */
static void *doc_home(const struct doc *d) { return (void *)(uintptr_t)d->where->home; }

static int fail_netpol(struct doc *d, const struct node *value, const struct netpol_error *e)
{
    /* A list from the command line is one value: its index says nothing. */
    bool flag = value->line == 0;
    return doc_fail(d, e->line && !flag ? e->line : value->line, "network%s%s: %s", e->path[0] && !flag ? "." : "",
                    flag ? "" : e->path, e->text);
}

/* Inserts a rule before the others of the shown document, whose last key is "rules": it decides first. */
static void add_first_rule(const char *base, const char *rule, struct buf *out)
{
    const char *rules = strstr(base, "\"rules\":[");
    size_t head = rules ? (size_t)(rules - base) + strlen("\"rules\":[") : strlen(base) - 1;
    buf_add(out, base, head);
    buf_addf(out, rules ? "%s" : ",\"rules\":[%s]", rule);
    buf_addf(out, "%s%s", rules && base[head] != ']' ? "," : "", base + head);
}

/* --allow-private changes rules that are there, so it reads the document as a tree. */
static int add_private_flag(struct doc *d, const char *said)
{
    _cleanup_node_ struct node *root = NULL;
    struct err why = {0};
    struct netpol *netpol = NULL;
    struct netpol_error e;
    const char *base = d->p->network_text ? d->p->network_text : "{\"version\":1}";
    if (node_read(base, strlen(base), "network", NODE_JSON, &root, d->err) < 0)
        return -1;
    if (netpol_open_private(root, said, &why) < 0)
        return doc_fail(d, 0, "%s", why.msg);
    if (netpol_parse(root, NULL, NULL, &netpol, &e) < 0)
        return doc_fail(d, 0, "network: %s", e.text);
    merge_network(d->p, NETWORK_RULES, netpol);
    d->p->network_origin = doc_origin(d, 0);
    return 0;
}

/* --allow-host, --deny-host and --secret come one by one, and each adds to what the documents and the others said. */
static int add_host_flag(struct doc *d, const struct node *value)
{
    _cleanup_buf_ struct buf text = {0}, list = {0};
    struct netpol *netpol = NULL;
    struct netpol_error e;
    struct json j;
    const char *said = value->items[1]->items[0]->text; /* made by flag_tree() */
    const char *base = d->p->network_text ? d->p->network_text : "{\"version\":1}";
    if (strcmp(value->items[0]->text, "private") == 0)
        return add_private_flag(d, said);
    json_start(&j, &list);
    json_arr(&j, NULL);
    json_str(&j, NULL, said);
    json_end_arr(&j);
    if (strcmp(value->items[0]->text, "rule") == 0) {
        add_first_rule(base, said, &text);
    } else { /* the shown document has rules, never these shorthands: one more key may stand at its end */
        buf_add(&text, base, strlen(base) - 1);
        buf_addf(&text, ",\"%s\":%s}", value->items[0]->text, buf_str(&list));
    }
    if (netpol_parse_json(buf_str(&text), text.n, netpol_preset_of_user, doc_home(d), &netpol, &e) < 0)
        return fail_netpol(d, value, &e);
    merge_network(d->p, NETWORK_RULES, netpol);
    d->p->network_origin = doc_origin(d, 0);
    return 0;
}

int doc_add_network_preset(struct doc *d, const char *name)
{
    _cleanup_free_ char *had = xasprintf("\"id\":\"%s/", name); /* a document names it too */
    if (d->p->network_text && strstr(d->p->network_text, had))
        return 0;
    _cleanup_node_ struct node *map = node_new(NODE_MAP, NULL, 0);
    struct node *list = node_new(NODE_LIST, NULL, 0);
    node_take(list, node_new(NODE_SCALAR, name, 0));
    node_take(map, node_new(NODE_SCALAR, "presets", 0));
    node_take(map, list);
    return add_host_flag(d, map);
}

/* Reads a network document (docs/network.md), which replaces what earlier levels said. An untrusted project may only
 * switch the network off: we cannot tell whether other rules are narrower. */
static int policy_read_netpol(struct doc *d, const struct node *value)
{
    struct netpol *netpol = NULL;
    struct netpol_error e;
    if (!d->may_widen)
        return doc_fail_widens(d, value->line, "network");
    if (d->level == LEVEL_FLAGS && value->line == 0 && value->kind == NODE_MAP)
        return add_host_flag(d, value);
    if (netpol_parse(value, netpol_preset_of_user, doc_home(d), &netpol, &e) < 0)
        return fail_netpol(d, value, &e);
    merge_network(d->p, NETWORK_RULES, netpol);
    d->p->network_origin = doc_origin(d, value->line);
    return 0;
}

static int policy_read_network(struct doc *d, const struct node *value, unsigned arg)
{
    static const char *const modes[] = {"off", "host", "public", NULL};
    (void)arg;
    if (value->kind == NODE_MAP)
        return policy_read_netpol(d, value);
    if (value->kind == NODE_LIST)
        return doc_fail(d, value->line, "network must be off, host, public, or a mapping with rules");
    int i = doc_word(d, value, "network", modes);
    if (i == 2)
        return policy_read_netpol(d, value);
    return i < 0 ? -1 : policy_set_network(d, value->line, i == 0 ? NETWORK_OFF : NETWORK_HOST);
}

static int policy_read_ceiling_network(struct doc *d, const struct node *value, unsigned arg)
{
    (void)arg;
    int i = doc_word(d, value, "ceiling.network", network_words);
    return i < 0 ? -1
                 : policy_set_network(d, value->line,
                                      i == 0   ? NETWORK_OFF
                                      : i == 1 ? NETWORK_RULES
                                               : NETWORK_HOST);
}

/* --- single values ------------------------------------------------------------------------------------------------ */

static int policy_read_privilege(struct doc *d, const struct node *value, unsigned arg)
{
    (void)arg;
    int i = doc_word(d, value, "privilege", privilege_words);
    if (i < 0)
        return -1;
    if (!d->may_widen && i > (int)d->p->privilege)
        return doc_fail_widens(d, value->line, "privilege");
    d->p->privilege = i == 0 ? PRIVILEGE_STRICT : PRIVILEGE_COMPUTER;
    d->p->privilege_origin = doc_origin(d, value->line);
    return 0;
}

static int policy_read_enforcement(struct doc *d, const struct node *value, unsigned arg)
{
    (void)arg;
    int i = doc_word(d, value, "enforcement", enforcement_words);
    if (i < 0)
        return -1;
    if (!d->may_widen && i > (int)d->p->enforcement)
        return doc_fail_widens(d, value->line, "enforcement");
    d->p->enforcement = i == 0 ? ENFORCE_REQUIRED : ENFORCE_BEST_EFFORT;
    d->p->enforcement_origin = doc_origin(d, value->line);
    return 0;
}

static int policy_read_after(struct doc *d, const struct node *value, unsigned arg)
{
    uint64_t n;
    const char *text = doc_scalar(d, value, "on_denial.after");
    (void)arg;
    if (!text)
        return -1;
    if (!num_u64(text, &n) || n > 1000000)
        return doc_fail(d, value->line, "on_denial.after must be a number from 0 (never) to 1000000, not \"%s\"",
                        doc_safe(text));
    if (!d->may_widen && d->p->on_denial.after != 0 && (n == 0 || n > d->p->on_denial.after))
        return doc_fail_widens(d, value->line, "on_denial.after");
    d->p->on_denial.after = n;
    d->p->on_denial.origin = doc_origin(d, value->line);
    return 0;
}

static int policy_read_do(struct doc *d, const struct node *value, unsigned arg)
{
    (void)arg;
    int i = doc_word(d, value, "on_denial.do", action_words);
    if (i < 0)
        return -1;
    if (!d->may_widen && i < (int)d->p->on_denial.action)
        return doc_fail_widens(d, value->line, "on_denial.do");
    d->p->on_denial.action = (enum denial_action)i;
    d->p->on_denial.origin = doc_origin(d, value->line);
    return 0;
}

static int policy_read_on_denial(struct doc *d, const struct node *value, unsigned arg)
{
    static const struct doc_key keys[] = {{"after", policy_read_after, 0}, {"do", policy_read_do, 0}, {NULL, NULL, 0}};
    (void)arg;
    return doc_map(d, value, "on_denial", keys);
}

static int policy_read_version(struct doc *d, const struct node *value, unsigned arg)
{
    const char *text = doc_scalar(d, value, "version");
    (void)arg;
    if (!text)
        return -1;
    return strcmp(text, "1") == 0
               ? 0
               : doc_fail(d, value->line, "version must be 1, not \"%s\"; a newer hutch may read it", doc_safe(text));
}

/* --- ceiling and top ---------------------------------------------------------------------------------------------- */

static int policy_read_ceiling(struct doc *d, const struct node *value, unsigned arg)
{
    static const struct doc_key keys[] = {
        {"limits", doc_read_limits, 0},
        {"files", doc_read_ceiling_files, 0},
        {"network", policy_read_ceiling_network, 0},
        {"privilege", policy_read_privilege, 0},
        {"syscalls", policy_read_ceiling_syscalls, 0},
        {"enforcement", policy_read_enforcement, 0},
        {NULL, NULL, 0},
    };
    (void)arg;
    if (d->level != LEVEL_SYSTEM && d->level != LEVEL_USER)
        return doc_fail(d, value->line, "a ceiling may stand only in the system and the user document");
    struct policy **slot = &d->p->ceiling[d->level == LEVEL_USER];
    if (!*slot)
        *slot = policy_new();
    struct doc inner = *d;
    inner.p = *slot;
    inner.in_ceiling = true;
    return doc_map(&inner, value, "ceiling", keys);
}

int doc_read_tree(struct doc *d, const struct node *root)
{
    static const struct doc_key keys[] = {
        {"version", policy_read_version, 0},
        {"files", doc_read_files, 0},
        {"limits", doc_read_limits, 0},
        {"syscalls", policy_read_syscalls, 0},
        {"network", policy_read_network, 0},
        {"privilege", policy_read_privilege, 0},
        {"env", doc_read_env, 0},
        {"enforcement", policy_read_enforcement, 0},
        {"on_denial", policy_read_on_denial, 0},
        {"ceiling", policy_read_ceiling, 0},
        {NULL, NULL, 0},
    };
    return doc_map(d, root, "", keys);
}
