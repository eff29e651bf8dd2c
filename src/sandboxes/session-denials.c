/* Describes what was refused to a command: system calls, with the reason and what would allow them, and network. */
#include <linux/audit.h>
#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "config/config.h"
#include "policy/run/filter.h"
#include "policy/run/syscalls.h"
#include "sandboxes/sandboxes-int.h"

static void denials_add_hint(struct json *j, const struct filter_denial *why, const char *name)
{
    char text[160] = "";
    switch (why->grant) {
    case GRANT_NEVER:
        (void)snprintf(text, sizeof text, "cannot be allowed: the wall depends on it");
        break;
    case GRANT_ALLOW:
        (void)snprintf(text, sizeof text, "an operator can allow it: syscalls.allow: [%s] in /etc/hutch/policy.yaml",
                       why->word ? why->word : name);
        break;
    case GRANT_DEBUGGER:
        (void)snprintf(text, sizeof text,
                       "an operator can allow it: syscalls.profile: debugger in /etc/hutch/policy.yaml");
        break;
    case GRANT_COMPUTER:
        (void)snprintf(text, sizeof text, "allowed where sandboxes.privilege is computer");
        break;
    }
    json_str(j, "hint", text);
}

static void denials_add_syscall(struct json *j, const struct exec_denied *d, unsigned flags)
{
    struct seccomp_data data = {.nr = (int)d->nr, .arch = AUDIT_ARCH_X86_64};
    struct filter_denial why = {0};
    const char *name = syscall_name((int)d->nr);
    memcpy(data.args, d->args, sizeof d->args);
    json_obj(j, NULL);
    json_str(j, "kind", "syscall");
    json_str(j, "subject", name ? name : "unknown");
    json_u64(j, "count", d->count);
    if (filter_denial_of(flags, &data, &why)) {
        const char *eno = strerrorname_np(why.eno);
        json_str(j, "errno", eno ? eno : "?");
        json_str(j, "category", why.category);
        json_str(j, "reason", why.reason);
        denials_add_hint(j, &why, name ? name : "?");
    }
    json_end_obj(j);
}

static void denials_add_syscalls(struct json *j, const struct sandboxes *sb, const struct exec_end *end)
{
    unsigned flags = FILTER_NOTIFY | (sb->config->strict ? 0U : (unsigned)FILTER_COMPUTER);
    for (size_t i = 0; i < end->ndenied; i++)
        denials_add_syscall(j, &end->denied[i], flags);
}

void session_add_denied_calls(const struct sandboxes *sb, const struct exec_end *end, struct json *j)
{
    json_arr(j, "denials");
    denials_add_syscalls(j, sb, end);
    json_end_arr(j);
}

static void denials_add_right(struct json *j, const char *subject, const char *reason, const char *hint)
{
    json_obj(j, NULL);
    json_str(j, "kind", "right");
    json_str(j, "subject", subject);
    json_bool(j, "certain", false);
    json_str(j, "errno", "EACCES");
    json_str(j, "reason", reason);
    json_str(j, "hint", hint);
    json_end_obj(j);
}

/* The kernel refuses for these layers without a word to us: that the command failed is all there is to see. */
static bool denials_of_rights(const struct session_end *end)
{
    const struct exec_rights *r = end->rights;
    return r && (r->no_network || r->limit_write) && !end->exec->limit && (!end->exec->exited || end->exec->code != 0);
}

static void denials_add_rights(struct json *j, const struct session_end *end)
{
    if (end->rights->no_network)
        denials_add_right(j, "network", "this command may have no sockets but connected pairs",
                          "if it failed for that: rights.network: on (hutch exec without --no-network)");
    if (end->rights->limit_write)
        denials_add_right(j, "write", "this command may change files below the paths in rights.write only",
                          "if it failed for that: name the path in rights.write (hutch exec --write PATH)");
}

void session_add_denials(struct sandboxes *sb, const char *id, const struct session_end *end, struct json *j)
{
    const struct sandbox *b = sandbox_lookup(sb, id);
    if (end->exec->ndenied == 0 && !denials_of_rights(end) && (!b || sb->network->denials(b, end->begun_ms, NULL) == 0))
        return;
    json_arr(j, "denials");
    denials_add_syscalls(j, sb, end->exec);
    if (denials_of_rights(end))
        denials_add_rights(j, end);
    if (b)
        (void)sb->network->denials(b, end->begun_ms, j);
    json_end_arr(j);
}
