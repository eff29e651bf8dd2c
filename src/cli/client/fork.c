/* fork.c - hutch fork: more sandboxes with the same files. */
#include <stdio.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/fields.h"
#include "base/mem.h"
#include "base/num.h"
#include "cli/client/commands.h"
#include "cli/client/node.h"

/* Prints one line per child, failures to stderr. Returns the number of failures. */
static unsigned print_children(const json_t *list)
{
    unsigned failed = 0;
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *one = json_array_get(list, i), *sandbox = json_object_get(one, "sandbox");
        if (sandbox) {
            (void)printf("%s\n", field_text(sandbox, "sandboxID"));
            continue;
        }
        failed++;
        (void)fprintf(stderr, "hutch: fork %zu failed: %s\n", i + 1,
                      field_text(json_object_get(one, "error"), "message"));
    }
    return failed;
}

int cmd_fork(int argc, char **argv)
{
    static const char usage[] =
        "usage: hutch fork [options] ID\n\n"
        "Makes sandboxes that start with the files of a running one, and prints their ids. The original is paused\n"
        "during the copy only. Processes and memory are not copied: a template's start command runs again.\n\n"
        "  -n, --count N       how many (1), at most 100; each succeeds or fails alone\n"
        "      --timeout TIME  how long they live (300s); 0: until killed\n"
        "      --json          the node's whole answer\n"
        "      --url URL       the node (docs/remote.md)\n\n"
        "example: for id in $(hutch fork -n 4 $id); do hutch exec $id -- ./try-something; done\n";
    const char *count = "1", *timeout = "300s";
    const struct node_option options[] = {
        {"count", 'n', NULL, &count, NULL}, {"timeout", 0, NULL, &timeout, NULL}, {0}};
    const struct node_command c = {"fork", usage, options, 1, 1, false};
    struct node_call call;
    struct err err;
    uint64_t seconds;
    int code = 0, n;
    if (node_begin(&c, argc, argv, &call, &code))
        return code;
    if (!num_int(count, 1, 100, &n))
        return err_set(&err, ERR_USAGE, 0, "fork: --count wants a number from 1 to 100, not '%.40s'", count),
               cli_fail(&err);
    if (node_read_timeout("fork", timeout, &seconds, &err) < 0 || node_take_id(&call, 0, &err) < 0)
        return cli_fail(&err);
    _cleanup_free_ char *path = xasprintf("/sandboxes/%s/fork", call.args[0]);
    _cleanup_free_ char *body = xasprintf("{\"count\":%d,\"timeout\":%llu}", n, (unsigned long long)seconds);
    _cleanup_json_ json_t *answer = NULL;
    if (api_call(&call.api, "POST", path, body, &answer, NULL, &err) < 0)
        return cli_fail(&err);
    if (call.json) {
        node_print_json(answer);
        return 0;
    }
    return print_children(answer) ? ERR_INTERNAL : 0;
}
