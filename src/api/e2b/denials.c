/* denials.c - describes the system calls that the filter refused to a command: in the command's end and as an event. */
#include <linux/audit.h>
#include <stdio.h>
#include <string.h>

#include "api/e2b/envd.h"
#include "base/json.h"
#include "network/networks.h"
#include "policy/run/filter.h"
#include "policy/run/syscalls.h"
#include "sandboxes/events.h"

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

static void denials_add_syscalls(struct json *j, const struct api *api, const struct exec_end *end)
{
    unsigned flags = FILTER_NOTIFY | (api->config->strict ? 0U : (unsigned)FILTER_COMPUTER);
    for (size_t i = 0; i < end->ndenied; i++)
        denials_add_syscall(j, &end->denied[i], flags);
}

void denials_add(struct json *j, struct api *api, const char *id, uint64_t since_ms, const struct exec_end *end)
{
    const struct sandbox *b = sandbox_find(api->sandboxes, id);
    if (end->ndenied == 0 && (!b || net_denials_since(b, since_ms, NULL) == 0))
        return;
    json_arr(j, "denials");
    denials_add_syscalls(j, api, end);
    if (b)
        (void)net_denials_since(b, since_ms, j);
    json_end_arr(j);
}

void denials_publish(struct api *api, const char *id, uint32_t pid, const struct exec_end *end)
{
    const struct sandbox *b = sandbox_find(api->sandboxes, id);
    _cleanup_buf_ struct buf out = {0};
    struct json j;
    if (!b || end->ndenied == 0)
        return;
    json_start(&j, &out);
    json_obj(&j, NULL);
    json_u64(&j, "pid", pid);
    json_arr(&j, "denials");
    denials_add_syscalls(&j, api, end);
    json_end_arr(&j);
    json_end_obj(&j);
    events_publish(api->events, b->id, b->tenant->id, "denial", buf_str(&out));
}
