/* sandboxes.c - hutch create, ls, info, kill, stop. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/fields.h"
#include "base/json.h"
#include "base/num.h"
#include "cli/client/netdoc.h"
#include "cli/client/node.h"

static int add_pairs(struct json *j, const char *key, const char *option, const struct strv *pairs, struct err *err)
{
    if (pairs->n == 0)
        return 0;
    json_obj(j, key);
    for (size_t i = 0; i < pairs->n; i++) {
        char *eq = strchr(pairs->v[i], '=');
        if (!eq || eq == pairs->v[i])
            return err_set(err, ERR_USAGE, 0, "create: --%s wants NAME=VALUE, not '%.80s'", option, pairs->v[i]);
        if (!json_may_hold(pairs->v[i]))
            return err_set(err, ERR_USAGE, 0, "create: --%s '%.*s' is not UTF-8, and only text can be passed", option,
                           (int)(eq - pairs->v[i]), pairs->v[i]);
        *eq = '\0';
        json_str(j, pairs->v[i], eq + 1);
        *eq = '=';
    }
    json_end_obj(j);
    return 0;
}

/* The first sandbox of a template that is still being built waits for it; say so on a terminal. */
static void say_building(const struct api *a, const char *template)
{
    _cleanup_json_ json_t *list = NULL;
    struct err ignored;
    if (!isatty(STDERR_FILENO) || api_call(a, "GET", "/templates", NULL, &list, NULL, &ignored) < 0)
        return;
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *t = json_array_get(list, i);
        if (strcmp(field_text(t, "templateID"), template) == 0 && strcmp(field_text(t, "buildStatus"), "building") == 0)
            (void)fprintf(stderr, "hutch: %s is being built, once; this takes a minute or two\n", template);
    }
}

struct creating {
    const char *timeout, *network, *refusals, *template;
    struct strv env, metadata, allow, secrets, volumes;
    bool history;
};

static void add_names(struct json *j, const char *key, const struct strv *names)
{
    json_arr(j, key);
    for (size_t i = 0; i < names->n; i++)
        json_str(j, NULL, names->v[i]);
    json_end_arr(j);
}

/* NAME:PATH[:ro] */
static int add_volumes(struct json *j, const char *key, const struct strv *volumes, struct err *err)
{
    if (volumes->n == 0)
        return 0;
    json_arr(j, key);
    for (size_t i = 0; i < volumes->n; i++) {
        char *text = volumes->v[i], *colon = strchr(text, ':'), *end = colon ? strrchr(colon + 1, ':') : NULL;
        bool ro = end && strcmp(end, ":ro") == 0;
        if (!colon || colon == text || colon[1] != '/')
            return err_set(err, ERR_USAGE, 0, "create: --volume wants NAME:PATH or NAME:PATH:ro, not '%.80s'", text);
        *colon = '\0';
        if (ro)
            *end = '\0';
        json_obj(j, NULL);
        json_str(j, "name", text);
        json_str(j, "path", colon + 1);
        if (ro)
            json_bool(j, "readOnly", true);
        json_end_obj(j);
    }
    json_end_arr(j);
    return 0;
}

/* Without network options use E2B's route and the node's default; with them our own API. */
static int create_body(const struct creating *c, bool network, struct buf *body, struct err *err)
{
    struct json j;
    uint64_t ms;
    if (!num_duration(c->timeout, &ms) || ms < 1000)
        return err_set(err, ERR_USAGE, 0, "create: --timeout wants a time of at least 1s, like 10m, not '%.40s'",
                       c->timeout);
    json_start(&j, body);
    json_obj(&j, NULL);
    json_str(&j, network ? "template" : "templateID", c->template);
    json_u64(&j, "timeout", (ms + 999) / 1000);
    if (add_pairs(&j, network ? "env" : "envVars", "env", &c->env, err) < 0 ||
        add_pairs(&j, "metadata", "metadata", &c->metadata, err) < 0 ||
        add_volumes(&j, network ? "volumes" : "volumeMounts", &c->volumes, err) < 0)
        return -1;
    if (c->history)
        json_bool(&j, "history", true);
    if (network) {
        json_bool(&j, "publicTraffic", true);
        add_names(&j, "secrets", &c->secrets);
        json_t *doc = netdoc_read(c->network, &c->allow, c->refusals, err);
        if (!doc)
            return -1;
        char *text = json_dumps(doc, JSON_COMPACT | JSON_ENCODE_ANY);
        buf_addf(body, ",\"network\":%s", text ? text : "null");
        free(text);
        json_decref(doc);
    } else if (c->refusals) {
        json_obj(&j, "network");
        json_str(&j, "refusals", c->refusals);
        json_end_obj(&j);
    }
    json_end_obj(&j);
    return 0;
}

static int create_send_request(struct creating *c, const struct node_call *call, struct err *err)
{
    _cleanup_buf_ struct buf body = {0};
    _cleanup_json_ json_t *answer = NULL;
    bool network = c->network || c->allow.n || c->secrets.n;
    c->template = call->nargs ? call->args[0] : "base";
    if (netdoc_check_refusals("create", c->refusals, err) < 0 || create_body(c, network, &body, err) < 0)
        return -1;
    say_building(&call->api, c->template);
    if (api_call(&call->api, "POST", network ? "/v1/sandboxes" : "/v2/sandboxes", buf_str(&body), &answer, NULL, err) <
        0)
        return -1;
    const char *id = field_text(answer, "sandboxID");
    cli_if_lost("sandbox %.64s was made and runs until its timeout; `hutch kill %.64s` ends it", id, id);
    if (call->json)
        node_print_json(answer);
    else
        (void)printf("%s\n", id);
    return 0;
}

int cmd_create(int argc, char **argv)
{
    static const char usage[] =
        "usage: hutch create [options] [TEMPLATE]\n\n"
        "Makes a sandbox and prints its id. Without TEMPLATE: base.\n\n"
        "      --timeout TIME    end it after this time (300s), at most what the node allows (24h)\n"
        "  -e, --env NAME=VALUE  set a variable for every command inside\n"
        "  -m, --metadata K=V    a label to find it by\n"
        "      --network WHAT    public, off, or a document (docs/network.md); else the node's default\n"
        "      --allow HOST      allow this host; others only if they are given, too; may be repeated\n"
        "      --refusals WORD   how a refused connection looks inside: readable, closed (docs/network.md)\n"
        "      --secret NAME     use a secret, and allow what it is bound to; may be repeated\n"
        "      --volume NAME:PATH[:ro]\n"
        "                        a volume at that path, read-only or not; may be repeated\n"
        "      --history         keep a generation of its files after each command (hutch history)\n"
        "      --json            the node's whole answer\n"
        "      --url URL         the node (HUTCH_URL, " NODE_DEFAULT_URL ")\n\n"
        "`base` is the node's own Debian, with root and sudo; while it is still being built, this waits up to 55 s.\n"
        "`host` is the node's own root: readable without its secrets, writable in /home/user and "
        "/tmp.\n\n"
        "examples:\n"
        "  id=$(hutch create host) && hutch exec $id -- uname -a && hutch kill $id\n"
        "  hutch create --timeout 2h -e TOKEN=x -m job=42\n"
        "  hutch create --allow pypi.org --allow files.pythonhosted.org\n";
    struct creating what = {.timeout = "300s"};
    const struct node_option options[] = {
        {"timeout", 0, NULL, &what.timeout, NULL},     {"env", 'e', NULL, NULL, &what.env},
        {"metadata", 'm', NULL, NULL, &what.metadata}, {"network", 0, NULL, &what.network, NULL},
        {"refusals", 0, NULL, &what.refusals, NULL},   {"allow", 0, NULL, NULL, &what.allow},
        {"secret", 0, NULL, NULL, &what.secrets},      {"volume", 0, NULL, NULL, &what.volumes},
        {"history", 0, &what.history, NULL, NULL},     {0}};
    const struct node_command c = {"create", usage, options, 0, 1, false};
    struct node_call call;
    struct err err;
    int code = 0;
    if (!node_begin(&c, argc, argv, &call, &code) && create_send_request(&what, &call, &err) < 0)
        code = cli_fail(&err);
    struct strv *lists[] = {&what.env, &what.metadata, &what.allow, &what.secrets, &what.volumes};
    for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++)
        strv_done(lists[i]);
    return code;
}

int cmd_ls(int argc, char **argv)
{
    static const char usage[] =
        "usage: hutch ls [--json] [-q]\n\nLists the sandboxes of your key's tenant, newest first.\n\n"
        "  -q, --quiet   only the ids\n"
        "      --json    the node's whole answer\n\n"
        "LEFT is the time until the node ends it.\n\n"
        "example: hutch ls -q | wc -l\n";
    bool quiet = false;
    const struct node_option options[] = {{"quiet", 'q', &quiet, NULL, NULL}, {0}};
    const struct node_command c = {"ls", usage, options, 0, 0, false};
    struct node_call call;
    struct err err;
    int code;
    if (node_begin(&c, argc, argv, &call, &code))
        return code;
    _cleanup_json_ json_t *all = NULL;
    if (node_pages(&call.api, "/v2/sandboxes?limit=100", &all, &err) < 0)
        return cli_fail(&err);
    if (call.json) {
        node_print_json(all);
        return 0;
    }
    struct node_table t = {.columns = 7};
    const char *const head[] = {"ID", "TEMPLATE", "STATE", "AGE", "LEFT", "CPUS", "MEMORY"};
    for (size_t i = 0; !quiet && i < 7; i++)
        node_cell(&t, "%s", head[i]);
    size_t i;
    json_t *s;
    json_array_foreach(all, i, s)
    {
        char age[24], left[24];
        if (quiet) {
            (void)printf("%s\n", field_text(s, "sandboxID"));
            continue;
        }
        node_age(field_text(s, "startedAt"), false, age);
        node_age(field_text(s, "endAt"), true, left);
        node_cell(&t, "%s", field_text(s, "sandboxID"));
        node_cell(&t, "%s", field_text(s, "templateID"));
        node_cell(&t, "%s", field_text(s, "state"));
        node_cell(&t, "%s", age);
        node_cell(&t, "%s", left);
        node_cell(&t, "%lld", (long long)json_integer_value(json_object_get(s, "cpuCount")));
        node_cell(&t, "%lld MiB", (long long)json_integer_value(json_object_get(s, "memoryMB")));
    }
    node_print_table(&t);
    return 0;
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
    if (api_sandbox(&call.api, call.args[0], &err) < 0)
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

static int kill_one(const struct api *a, const char *id, struct err *err)
{
    char path[128];
    struct api look = *a;
    if (api_sandbox(&look, id, err) < 0)
        return -1;
    (void)snprintf(path, sizeof path, "/sandboxes/%s", id);
    return api_call(a, "DELETE", path, NULL, NULL, NULL, err);
}

int cmd_kill(int argc, char **argv)
{
    static const char usage[] = "usage: hutch kill ID...\n       hutch kill --all\n\n"
                                "Ends sandboxes: their processes, files and limits are gone when this returns.\n"
                                "--all means those of your key's tenant.\n\n"
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
        const char *id = all ? field_text(json_array_get(list, i), "sandboxID") : call.args[i];
        if (kill_one(&call.api, id, &err) < 0)
            code = cli_fail(&err);
        else
            (void)printf("%s\n", id);
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
    (void)printf("%lld sandbox%s ended\n", stopped, stopped == 1 ? "" : "es");
    long long failed = (long long)json_integer_value(json_object_get(j, "failed"));
    if (failed > 0)
        return err_set(&err, ERR_SETUP, 0, "stop: %lld sandboxes could not be ended; the log of the node says why",
                       failed),
               cli_fail(&err);
    return 0;
}
