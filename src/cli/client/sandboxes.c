/* sandboxes.c - hutch ls, info, timeout, kill, stop. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fields.h"
#include "base/json.h"
#include "base/mem.h"
#include "cli/client/commands.h"
#include "cli/client/node.h"

enum { LS_WATCH_S = 2 };

struct ls_words {
    bool quiet, watch;
    const char *state, *template;
    struct strv labels;
};

static bool ls_is_wanted(const struct ls_words *w, const json_t *s)
{
    const json_t *metadata = json_object_get(s, "metadata");
    if (w->state && strcmp(w->state, field_text(s, "state")) != 0)
        return false;
    if (w->template && strcmp(w->template, field_text(s, "templateID")) != 0 &&
        strcmp(w->template, field_text(s, "alias")) != 0)
        return false;
    for (size_t i = 0; i < w->labels.n; i++) {
        const char *label = w->labels.v[i], *eq = strchr(label, '=');
        _cleanup_free_ char *key = eq ? xasprintf("%.*s", (int)(eq - label), label) : xstrdup(label);
        const char *value = json_string_value(json_object_get(metadata, key));
        if (!value || (eq && strcmp(value, eq + 1) != 0))
            return false;
    }
    return true;
}

static void ls_add_row(struct node_table *t, const json_t *s)
{
    char age[24], left[24];
    const char *name = field_text(json_object_get(s, "metadata"), "name");
    node_age(field_text(s, "startedAt"), false, age);
    node_age(field_text(s, "endAt"), true, left);
    node_cell(t, "%s", field_text(s, "sandboxID"));
    node_cell(t, "%.40s", *name ? name : "-");
    node_cell(t, "%s", field_text(s, "templateID"));
    node_cell(t, "%s", field_text(s, "state"));
    node_cell(t, "%s", age);
    node_cell(t, "%s", left);
    node_cell(t, "%lld", (long long)json_integer_value(json_object_get(s, "cpuCount")));
    node_cell(t, "%lld MiB", (long long)json_integer_value(json_object_get(s, "memoryMB")));
}

static int ls_once(const struct node_call *call, const struct ls_words *w, struct err *err)
{
    _cleanup_json_ json_t *all = NULL, *wanted = json_array();
    size_t i;
    json_t *s;
    if (node_pages(&call->api, "/v2/sandboxes?limit=100", &all, err) < 0)
        return -1;
    json_array_foreach(all, i, s)
    {
        if (ls_is_wanted(w, s))
            (void)json_array_append(wanted, s);
    }
    if (w->watch && isatty(STDOUT_FILENO))
        (void)fputs("\033[H\033[2J", stdout);
    if (call->json) {
        node_print_json(wanted);
        return 0;
    }
    struct node_table t = node_table_with("ID", "NAME", "TEMPLATE", "STATE", "AGE", "LEFT", "CPUS", "MEMORY", NULL);
    json_array_foreach(wanted, i, s)
    {
        if (w->quiet)
            (void)printf("%s\n", field_text(s, "sandboxID"));
        else
            ls_add_row(&t, s);
    }
    if (w->quiet)
        strv_done(&t.cells);
    else
        node_print_table(&t);
    return 0;
}

int cmd_ls(int argc, char **argv)
{
    static const char usage[] =
        "usage: hutch ls [options]\n\nLists the sandboxes of your key's tenant, newest first.\n\n"
        "  -q, --quiet          only the ids\n"
        "      --state STATE    only those that are running, or paused\n"
        "      --template NAME  only those made from it\n"
        "  -l, --label K[=V]    only those with this label (create -m); may be repeated\n"
        "  -w, --watch          again every 2 seconds, until Ctrl-C\n"
        "      --json           the node's whole answer\n\n"
        "LEFT is the time until the node ends it.\n\n"
        "examples:\n  hutch ls -q | wc -l\n  hutch kill $(hutch ls -q -l job=42)\n";
    struct ls_words w = {0};
    const struct node_option options[] = {
        {"quiet", 'q', &w.quiet, NULL, NULL},     {"state", 0, NULL, &w.state, NULL},
        {"template", 0, NULL, &w.template, NULL}, {"label", 'l', NULL, NULL, &w.labels},
        {"watch", 'w', &w.watch, NULL, NULL},     {0}};
    const struct node_command c = {"ls", usage, options, 0, 0, false};
    struct node_call call;
    struct err err;
    int code, r = -1;
    if (node_begin(&c, argc, argv, &call, &code))
        return code;
    if (w.state && strcmp(w.state, "running") != 0 && strcmp(w.state, "paused") != 0)
        (void)err_set(&err, ERR_USAGE, 0, "ls: --state wants running or paused, not '%.40s'", w.state);
    else
        while ((r = ls_once(&call, &w, &err)) == 0 && w.watch && fflush(stdout) == 0)
            (void)sleep(LS_WATCH_S);
    strv_done(&w.labels);
    return r < 0 ? cli_fail(&err) : 0;
}

int cmd_info(int argc, char **argv)
{
    static const char usage[] = "usage: hutch info ID [--json]\n\nEverything the node knows about one sandbox, "
                                "without its tokens. The line `hutch` names "
                                "the\nisolation that is in force, and what this host could not enforce.\n\n"
                                "example: hutch info $id --json | jq .endAt\n";
    const struct node_command c = {"info", usage, NULL, 1, 1, false};
    struct node_call call;
    struct err err;
    int code;
    char path[128];
    if (node_begin(&c, argc, argv, &call, &code))
        return code;
    if (node_take_id(&call, 0, &err) < 0 || api_sandbox(&call.api, call.args[0], &err) < 0)
        return cli_fail(&err);
    call.api.sandbox[0] = '\0';
    (void)snprintf(path, sizeof path, "/sandboxes/%s", call.args[0]);
    _cleanup_json_ json_t *j = NULL;
    if (api_call(&call.api, "GET", path, NULL, &j, NULL, &err) < 0)
        return cli_fail(&err);
    (void)json_object_del(j, "envdAccessToken");
    (void)json_object_del(j, "trafficAccessToken");
    if (call.json) {
        node_print_json(j);
        return 0;
    }
    const char *key;
    json_t *v;
    struct node_table t = {.columns = 2};
    json_object_foreach(j, key, v)
    {
        _cleanup_buf_ struct buf b = {0};
        char *text = json_is_string(v) ? NULL : json_dumps(v, JSON_ENCODE_ANY | JSON_COMPACT);
        buf_adds(&b, text ? text : json_string_value(v));
        free(text);
        node_cell_whole(&t, key);
        node_cell_whole(&t, buf_str(&b));
    }
    node_print_table(&t);
    return 0;
}

int cmd_timeout(int argc, char **argv)
{
    static const char usage[] = "usage: hutch timeout ID TIME\n\n"
                                "Sets how long a sandbox lives from now: 1h, 30m, or 0 (until it is killed). A paused "
                                "one gets its\ntime when it is resumed.\n\n"
                                "      --url URL  the node (docs/remote.md)\n\n"
                                "example: hutch timeout $id 2h\n";
    const struct node_command c = {"timeout", usage, NULL, 2, 2, false};
    struct node_call call;
    struct err err;
    int code;
    uint64_t seconds;
    char path[128], body[64];
    if (node_begin(&c, argc, argv, &call, &code))
        return code;
    if (node_read_timeout("timeout", call.args[1], &seconds, &err) < 0 || node_take_id(&call, 0, &err) < 0)
        return cli_fail(&err);
    (void)snprintf(path, sizeof path, "/sandboxes/%s/timeout", call.args[0]);
    (void)snprintf(body, sizeof body, "{\"timeout\":%llu}", (unsigned long long)seconds);
    return api_call(&call.api, "POST", path, body, NULL, NULL, &err) < 0 ? cli_fail(&err) : 0;
}

static int kill_one(const struct api *a, const char *id, struct err *err)
{
    char path[128];
    (void)snprintf(path, sizeof path, "/sandboxes/%s", id);
    return api_call(a, "DELETE", path, NULL, NULL, NULL, err);
}

int cmd_kill(int argc, char **argv)
{
    static const char usage[] = "usage: hutch kill ID...\n       hutch kill --all\n\n"
                                "Ends sandboxes: their processes, files and limits are gone when this returns.\n"
                                "--all means those of your key's tenant. `hutch rm` is the same.\n\n"
                                "      --json   an object per line: sandboxID, state\n\n"
                                "example: hutch kill $id\n";
    bool all = false;
    const struct node_option options[] = {{"all", 'a', &all, NULL, NULL}, {0}};
    const struct node_command c = {"kill", usage, options, 0, -1, false};
    struct node_call call;
    struct err err;
    int code = 0;
    if (node_begin(&c, argc, argv, &call, &code))
        return code;
    if (all == (call.nargs > 0))
        return err_set(&err, ERR_USAGE, 0, "kill: give ids, or --all"), cli_fail(&err);
    _cleanup_json_ json_t *list = NULL;
    if (all && node_pages(&call.api, "/v2/sandboxes?limit=100", &list, &err) < 0)
        return cli_fail(&err);
    size_t n = all ? json_array_size(list) : (size_t)call.nargs;
    for (size_t i = 0; i < n; i++) {
        const char *id = all ? field_text(json_array_get(list, i), "sandboxID") : NULL;
        if ((!all && node_take_id(&call, (int)i, &err) < 0) || kill_one(&call.api, all ? id : call.args[i], &err) < 0)
            code = cli_fail(&err);
        else
            node_print_state(&call, all ? id : call.args[i], "ended");
    }
    return code;
}

int cmd_stop(int argc, char **argv)
{
    static const char usage[] =
        "usage: hutch stop --all\n\n"
        "Ends every sandbox of this node, of all tenants (needs an administrator's key). The node\n"
        "itself is stopped by SIGTERM or `systemctl stop hutch`, which leaves sandboxes running.\n\n"
        "example, before a machine is switched off: hutch stop --all && systemctl stop hutch\n";
    bool all = false;
    const struct node_option options[] = {{"all", 'a', &all, NULL, NULL}, {0}};
    const struct node_command c = {"stop", usage, options, 0, 0, false};
    struct node_call call;
    struct err err;
    int code;
    if (node_begin(&c, argc, argv, &call, &code))
        return code;
    if (!all)
        return err_set(&err, ERR_USAGE, 0, "stop: say --all; a single sandbox is ended by hutch kill ID"),
               cli_fail(&err);
    _cleanup_json_ json_t *j = NULL;
    if (api_call(&call.api, "POST", "/v1/stop-all", "{}", &j, NULL, &err) < 0)
        return cli_fail(&err);
    long long stopped = (long long)json_integer_value(json_object_get(j, "stopped"));
    if (call.json)
        node_print_json(j);
    else
        (void)printf("%lld sandbox%s ended\n", stopped, stopped == 1 ? "" : "es");
    long long failed = (long long)json_integer_value(json_object_get(j, "failed"));
    if (failed > 0)
        return err_set(&err, ERR_SETUP, 0, "stop: %lld sandboxes could not be ended; the log of the node says why",
                       failed),
               cli_fail(&err);
    return 0;
}
