/* snapshot.c - hutch snapshot: files of a sandbox, kept under a name of their own. */
#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/fields.h"
#include "base/json.h"
#include "base/mem.h"
#include "cli/client/commands.h"
#include "cli/client/node.h"

static int snapshot_create(const struct node_call *call, const char *name, struct err *err)
{
    _cleanup_free_ char *path = xasprintf("/sandboxes/%s/snapshots", call->args[1]);
    _cleanup_buf_ struct buf body = {0};
    _cleanup_json_ json_t *answer = NULL;
    struct json j;
    json_start(&j, &body);
    json_obj(&j, NULL);
    if (name)
        json_str(&j, "name", name);
    json_end_obj(&j);
    if (api_call(&call->api, "POST", path, buf_str(&body), &answer, NULL, err) < 0)
        return -1;
    if (call->json)
        node_print_json(answer);
    else
        (void)printf("%s\n", field_text(answer, "snapshotID"));
    return 0;
}

static int snapshot_list(const struct node_call *call, const char *sandbox, struct err *err)
{
    char id[64] = "";
    if (sandbox && api_find_id(&call->api, sandbox, id, err) < 0)
        return -1;
    _cleanup_free_ char *path =
        sandbox ? xasprintf("/snapshots?limit=100&sandboxID=%s", id) : xstrdup("/snapshots?limit=100");
    _cleanup_json_ json_t *all = NULL;
    if (node_pages(&call->api, path, &all, err) < 0)
        return -1;
    if (call->json) {
        node_print_json(all);
        return 0;
    }
    for (size_t i = 0; i < json_array_size(all); i++)
        (void)printf("%s\n", field_text(json_array_get(all, i), "snapshotID"));
    return 0;
}

/* A snapshot's id has slashes and colons; in a path it is one segment. */
static void add_segment(struct buf *out, const char *s)
{
    for (; *s; s++)
        if (isalnum((unsigned char)*s) || strchr("-_.", *s))
            buf_addc(out, *s);
        else
            buf_addf(out, "%%%02X", (unsigned char)*s);
}

static int snapshot_remove(const struct node_call *call, const char *id, struct err *err)
{
    _cleanup_buf_ struct buf path = {0};
    _cleanup_json_ json_t *answer = NULL;
    buf_adds(&path, "/templates/");
    add_segment(&path, id);
    if (api_call(&call->api, "DELETE", buf_str(&path), NULL, &answer, NULL, err) < 0)
        return -1;
    (void)printf("%s\n", id);
    return 0;
}

static int snapshot_restore(const struct node_call *call, const char *timeout, struct err *err)
{
    _cleanup_buf_ struct buf body = {0};
    _cleanup_json_ json_t *answer = NULL;
    struct json j;
    uint64_t seconds;
    if (node_read_timeout("snapshot", timeout, &seconds, err) < 0)
        return -1;
    json_start(&j, &body);
    json_obj(&j, NULL);
    json_str(&j, "template", call->args[1]);
    json_u64(&j, "timeout", seconds);
    json_end_obj(&j);
    if (api_call(&call->api, "POST", "/v1/sandboxes", buf_str(&body), &answer, NULL, err) < 0)
        return -1;
    if (call->json)
        node_print_json(answer);
    else
        (void)printf("%s\n", field_text(answer, "sandboxID"));
    return 0;
}

static int snapshot_dispatch(struct node_call *call, const char *name, const char *sandbox, const char *timeout,
                             struct err *err)
{
    const char *what = call->args[0];
    if (strcmp(what, "ls") == 0 && call->nargs == 1)
        return snapshot_list(call, sandbox, err);
    if (strcmp(what, "create") == 0 && call->nargs == 2)
        return node_take_id(call, 1, err) < 0 ? -1 : snapshot_create(call, name, err);
    if (strcmp(what, "restore") == 0 && call->nargs == 2)
        return snapshot_restore(call, timeout, err);
    if (strcmp(what, "rm") == 0 && call->nargs >= 2) {
        for (int i = 1; i < call->nargs; i++)
            if (snapshot_remove(call, call->args[i], err) < 0)
                return -1;
        return 0;
    }
    return err_set(
        err, ERR_USAGE, 0,
        "snapshot: create ID, ls, rm SNAPSHOT... or restore SNAPSHOT; `hutch snapshot --help` explains them");
}

int cmd_snapshot(int argc, char **argv)
{
    static const char usage[] =
        "usage: hutch snapshot create [--name NAME] ID\n"
        "       hutch snapshot ls [--sandbox ID]\n"
        "       hutch snapshot restore [--timeout TIME] SNAPSHOT\n"
        "       hutch snapshot rm SNAPSHOT...\n\n"
        "create keeps the files of a sandbox, which is paused during the copy only, and prints the\n"
        "snapshot's id. restore makes a new sandbox from one and prints its id; so does `hutch create SNAPSHOT`.\n"
        "Processes and memory are not kept. With a name that exists, the new files replace the old ones.\n\n"
        "      --name NAME     a-z, 0-9, - and _\n"
        "      --sandbox ID    only those made of this one\n"
        "      --timeout TIME  how long the new sandbox lives (300s); 0: until killed\n"
        "      --json          the node's whole answer\n"
        "      --url URL       the node (docs/remote.md)\n\n"
        "example: hutch snapshot create --name ready $id && hutch create ready\n";
    const char *name = NULL, *sandbox = NULL, *timeout = "300s";
    const struct node_option options[] = {{"name", 0, NULL, &name, NULL},
                                          {"sandbox", 0, NULL, &sandbox, NULL},
                                          {"timeout", 0, NULL, &timeout, NULL},
                                          {0}};
    const struct node_command c = {"snapshot", usage, options, 1, -1, false};
    struct node_call call;
    struct err err;
    int code = 0;
    if (node_begin(&c, argc, argv, &call, &code))
        return code;
    return snapshot_dispatch(&call, name, sandbox, timeout, &err) < 0 ? cli_fail(&err) : 0;
}
