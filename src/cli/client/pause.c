/* pause.c - hutch pause, resume. */
#include <stdio.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/mem.h"
#include "cli/client/commands.h"
#include "cli/client/node.h"

static int pause_one(const struct node_call *call, const char *id, bool files, struct err *err)
{
    _cleanup_free_ char *path = xasprintf("/sandboxes/%s/pause", id);
    _cleanup_json_ json_t *answer = NULL;
    return api_call(&call->api, "POST", path, files ? "{\"memory\":false}" : "{}", &answer, NULL, err);
}

int cmd_pause(int argc, char **argv)
{
    static const char usage[] =
        "usage: hutch pause [--files] ID...\n\n"
        "Stops sandboxes until they are resumed; their timeout stands still meanwhile.\n\n"
        "      --files  keep only the files: the processes end, their memory is freed, and the sandbox survives\n"
        "               a restart of the machine. Without it processes and memory stay as they are\n"
        "      --json   an object per line: sandboxID, state\n"
        "      --url URL  the node (docs/remote.md)\n\n"
        "examples:\n"
        "  hutch pause $id\n"
        "  hutch pause --files $id && hutch resume $id\n";
    bool files = false;
    const struct node_option options[] = {{"files", 0, &files, NULL, NULL}, {0}};
    const struct node_command c = {"pause", usage, options, 1, -1, false};
    struct node_call call;
    struct err err;
    int code = 0;
    if (node_begin(&c, argc, argv, &call, &code))
        return code;
    for (int i = 0; i < call.nargs; i++)
        if (node_take_id(&call, i, &err) < 0 || pause_one(&call, call.args[i], files, &err) < 0)
            code = cli_fail(&err);
        else
            node_print_state(&call, call.args[i], "paused");
    return code;
}

static int resume_one(const struct node_call *call, const char *id, uint64_t seconds, bool files, struct err *err)
{
    _cleanup_free_ char *path = xasprintf("/v2/sandboxes/%s/connect", id);
    _cleanup_free_ char *body =
        xasprintf("{\"timeout\":%llu%s}", (unsigned long long)seconds, files ? ",\"memory\":false" : "");
    _cleanup_json_ json_t *answer = NULL;
    if (api_call(&call->api, "POST", path, body, &answer, NULL, err) < 0)
        return -1;
    if (call->json)
        node_print_json(answer);
    else
        (void)printf("%s\n", id);
    return 0;
}

int cmd_resume(int argc, char **argv)
{
    static const char usage[] =
        "usage: hutch resume [options] ID...\n\n"
        "Resumes paused sandboxes. One paused with --files starts anew from its files.\n\n"
        "      --timeout TIME  how long it lives from now (as it was made for); 0: until killed\n"
        "      --files         start anew from its files even if its memory was kept\n"
        "      --json          the node's whole answer\n"
        "      --url URL       the node (docs/remote.md)\n\n"
        "example: hutch resume --timeout 1h $id\n";
    const char *timeout = NULL;
    bool files = false;
    const struct node_option options[] = {{"timeout", 0, NULL, &timeout, NULL}, {"files", 0, &files, NULL, NULL}, {0}};
    const struct node_command c = {"resume", usage, options, 1, -1, false};
    struct node_call call;
    struct err err;
    uint64_t seconds = 0; /* the node takes the time that it was made with */
    int code = 0;
    if (node_begin(&c, argc, argv, &call, &code))
        return code;
    if (timeout && node_read_timeout("resume", timeout, &seconds, &err) < 0)
        return cli_fail(&err);
    for (int i = 0; i < call.nargs; i++)
        if (node_take_id(&call, i, &err) < 0 || resume_one(&call, call.args[i], seconds, files, &err) < 0)
            code = cli_fail(&err);
    return code;
}
