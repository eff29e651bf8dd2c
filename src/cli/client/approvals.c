/* approvals.c - hutch approvals: lists what sandboxes ask to reach, and allows or denies it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/fields.h"
#include "base/mem.h"
#include "base/num.h"
#include "cli/client/commands.h"
#include "cli/client/node.h"

static int approvals_list(const struct node_call *call, struct err *err)
{
    _cleanup_json_ json_t *j = NULL;
    int rc = node_get(call, "/v1/approvals", &j, err);
    if (rc <= 0)
        return rc;
    struct node_table t = node_table_with("ID", "SANDBOX", "AGE", "REQUEST", "WHY", NULL);
    const json_t *all = json_object_get(j, "approvals");
    for (size_t i = 0; i < json_array_size(all); i++) {
        const json_t *a = json_array_get(all, i);
        char age[24];
        node_age(field_text(a, "askedAt"), false, age);
        node_cell(&t, "%s", field_text(a, "id"));
        node_cell(&t, "%s", field_text(a, "sandbox"));
        node_cell(&t, "%s", age);
        node_cell(&t, "%s%s%s:%lld%s", field_text(a, "method"), *field_text(a, "method") ? " " : "",
                  field_text(a, "host"), (long long)json_integer_value(json_object_get(a, "port")),
                  field_text(a, "path"));
        node_cell(&t, "%s", field_text(a, "why"));
    }
    node_print_table(&t);
    return 0;
}

static int approvals_answer(const struct node_call *call, const char *decision, unsigned minutes, struct err *err)
{
    const char *id = call->args[0];
    if (!*id || strlen(id) > 64 ||
        strspn(id, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_") != strlen(id))
        return err_set(err, ERR_USAGE, 0, "'%.80s' is not an id; hutch approvals ls shows them", id);
    _cleanup_free_ char *path = xasprintf("/v1/approvals/%s", id);
    _cleanup_free_ char *body = minutes ? xasprintf("{\"decision\":\"%s\",\"minutes\":%u}", decision, minutes)
                                        : xasprintf("{\"decision\":\"%s\"}", decision);
    return api_call(&call->api, "POST", path, body, NULL, NULL, err);
}

int cmd_approvals(int argc, char **argv)
{
    static const char usage[] =
        "usage: hutch approvals ls\n"
        "       hutch approvals allow ID [--for TIME | --always]\n"
        "       hutch approvals deny ID\n\n"
        "Sandboxes whose network asks (on_miss: ask, or a rule with approval: ask) wait here for a decision.\n\n"
        "      --for TIME   allow it that long, like 30m\n"
        "      --always     as long as the sandbox lives\n"
        "      --json       the node's whole answer\n\n"
        "Without either, one request is let through. Allowed is exactly what was asked for: host, port, "
        "method,\n"
        "path.\n\n"
        "example: hutch approvals ls && hutch approvals allow 3f9c --for 30m\n";
    const char *how_long = NULL;
    bool always = false;
    const struct node_option options[] = {{"for", 0, NULL, &how_long, NULL}, {"always", 0, &always, NULL, NULL}, {0}};
    const struct node_command c = {"approvals", usage, options, 0, 1, false};
    const char *verb = argc > 1 && argv[1][0] != '-' ? argv[1] : "";
    struct node_call call;
    struct err err;
    uint64_t ms = 0;
    int code, rc;
    if (node_begin(&c, *verb ? argc - 1 : argc, *verb ? argv + 1 : argv, &call, &code))
        return code;
    if (how_long && (!num_duration(how_long, &ms) || ms < 60000 || ms > 7ULL * 24 * 3600 * 1000))
        return err_set(&err, ERR_USAGE, 0, "approvals: --for wants a time from 1m to 7d, not '%.40s'", how_long),
               cli_fail(&err);
    if (strcmp(verb, "ls") == 0 && call.nargs == 0)
        rc = approvals_list(&call, &err);
    else if (strcmp(verb, "allow") == 0 && call.nargs == 1 && !(how_long && always))
        rc = approvals_answer(&call,
                              how_long ? "allow_minutes"
                              : always ? "allow_sandbox"
                                       : "allow_once",
                              (unsigned)((ms + 59999) / 60000), &err);
    else if (strcmp(verb, "deny") == 0 && call.nargs == 1 && !how_long && !always)
        rc = approvals_answer(&call, "deny", 0, &err);
    else
        rc = err_set(&err, ERR_USAGE, 0, "approvals: say ls, allow ID or deny ID; see hutch approvals --help");
    return rc < 0 ? cli_fail(&err) : 0;
}
