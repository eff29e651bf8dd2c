/* create.c - hutch create: a sandbox through the node's own API, which is closed unless an option opens it, and perhaps a
 * command in it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fields.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/num.h"
#include "cli/client/commands.h"
#include "cli/client/exec.h"
#include "cli/client/netdoc.h"
#include "cli/client/node.h"
#include "config/config.h"

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
    const char *timeout, *network, *refusals, *template, *name, *memory, *cpus, *disk;
    struct strv env, metadata, allow, presets, secrets, volumes, publish;
    bool history, remove, input, tty;
    char *const *command; /* after --; NULL: none */
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

/* "network": what the options say. Without any of them it is left to the node: closed, or what its operator set. */
static int create_add_network(const struct creating *c, struct json *j, struct buf *body, struct err *err)
{
    json_t *doc = NULL;
    if (c->secrets.n)
        add_names(j, "secrets", &c->secrets);
    if (c->network || c->allow.n || c->presets.n || (c->secrets.n && c->refusals))
        doc = netdoc_read(c->network, &c->allow, &c->presets, c->refusals, err);
    else if (c->refusals)
        doc = json_pack("{s:s}", "refusals", c->refusals);
    else
        return 0;
    if (!doc)
        return -1;
    char *text = json_dumps(doc, JSON_COMPACT | JSON_ENCODE_ANY);
    buf_addf(body, ",\"network\":%s", text ? text : "null");
    free(text);
    json_decref(doc);
    return 0;
}

/* --publish PORT opens that port, --publish all every port. */
static int create_add_ports(struct json *j, const struct strv *ports, struct err *err)
{
    bool all = false;
    int port;
    if (ports->n == 0)
        return 0;
    json_arr(j, "publicPorts");
    for (size_t i = 0; i < ports->n; i++) {
        bool is_all = strcmp(ports->v[i], "all") == 0;
        all |= is_all;
        if (!is_all && !num_int(ports->v[i], 1, 65535, &port))
            return err_set(err, ERR_USAGE, 0, "create: --publish wants a port inside, 1 to 65535, or all, not '%.40s'",
                           ports->v[i]);
        if (!is_all)
            json_i64(j, NULL, port);
    }
    json_end_arr(j);
    if (all)
        json_bool(j, "publicTraffic", true);
    return 0;
}

/* A size in whole MiB. */
static int create_add_size(struct json *j, const char *key, const char *option, const char *text, struct err *err)
{
    uint64_t bytes;
    if (!text)
        return 0;
    if (!num_size(text, &bytes) || bytes < 1 << 20)
        return err_set(err, ERR_USAGE, 0, "create: --%s wants a size of at least 1M, like 4G, not '%.40s'", option,
                       text);
    json_u64(j, key, (bytes + (1 << 20) - 1) >> 20);
    return 0;
}

static int create_add_limits(struct json *j, struct buf *body, const struct creating *c, struct err *err)
{
    uint64_t milli;
    if (create_add_size(j, "memoryMB", "memory", c->memory, err) < 0 ||
        create_add_size(j, "diskSizeMB", "disk", c->disk, err) < 0)
        return -1;
    if (!c->cpus)
        return 0;
    if (!num_cpus(c->cpus, &milli) || milli == 0)
        return err_set(err, ERR_USAGE, 0, "create: --cpus wants a number like 0.5 or 2, not '%.40s'", c->cpus);
    buf_addf(body, ",\"cpus\":%llu.%03llu", (unsigned long long)milli / 1000, (unsigned long long)milli % 1000);
    return 0;
}

static int create_body(const struct creating *c, struct buf *body, struct err *err)
{
    struct json j;
    uint64_t seconds = 0;
    if (c->timeout && node_read_timeout("create", c->timeout, &seconds, err) < 0)
        return -1;
    json_start(&j, body);
    json_obj(&j, NULL);
    json_str(&j, "template", c->template);
    if (c->timeout)
        json_u64(&j, "timeout", seconds == CONFIG_UNTIL_KILLED_S ? 0 : seconds);
    if (add_pairs(&j, "env", "env", &c->env, err) < 0 || add_pairs(&j, "metadata", "metadata", &c->metadata, err) < 0 ||
        add_volumes(&j, "volumes", &c->volumes, err) < 0 || create_add_ports(&j, &c->publish, err) < 0)
        return -1;
    if (c->history)
        json_bool(&j, "history", true);
    if (c->name)
        json_str(&j, "name", c->name);
    if (create_add_limits(&j, body, c, err) < 0 || create_add_network(c, &j, body, err) < 0)
        return -1;
    json_end_obj(&j);
    return 0;
}

/* What may go out and come in, as the node says it, and the options that change it: on a terminal, one line. */
static void create_say_limits(const json_t *answer)
{
    const json_t *hutch = json_object_get(answer, "hutch");
    const char *internet = field_text(hutch, "internet"), *ports = field_text(hutch, "ports");
    if (!isatty(STDERR_FILENO) || !*internet || !*ports)
        return;
    (void)fprintf(stderr, "hutch: %s (--network public, --allow HOST, --preset NAME), %s ports (--publish PORT)\n",
                  strcmp(internet, "off") == 0      ? "no internet"
                  : strcmp(internet, "public") == 0 ? "public internet"
                                                    : "only the hosts that its rules allow",
                  strcmp(ports, "public") == 0 ? "public" : "private");
}

/* Runs the command, or a shell, in the new sandbox; with --rm the sandbox goes with it. Its code, or -1. */
static int create_run_command(const struct creating *c, const struct node_call *call, const char *id, struct err *err)
{
    struct api inside = call->api;
    const struct exec_request q = {.command = c->command, .pty = c->tty, .input = c->input || c->tty};
    int code = api_sandbox(&inside, id, err);
    if (code == 0)
        code = c->command ? exec_in_sandbox(&inside, &q, err) : exec_shell(&inside, err);
    if (code < 0)
        code = exec_fail_code(err);
    if (c->remove) {
        struct err kept;
        _cleanup_free_ char *path = xasprintf("/sandboxes/%s", id);
        unsigned status = 0;
        if (api_call(&call->api, "DELETE", path, NULL, NULL, &status, &kept) < 0 && status != 404)
            (void)cli_fail(&kept);
    } else
        (void)fprintf(stderr, "hutch: sandbox %s still runs; `hutch exec` and `hutch kill` take this id\n", id);
    return code;
}

/* The exit code, or -1. */
static int create_send_request(struct creating *c, const struct node_call *call, struct err *err)
{
    bool runs = c->command || c->tty;
    _cleanup_buf_ struct buf body = {0};
    _cleanup_json_ json_t *answer = NULL;
    c->template = call->nargs ? call->args[0] : "base";
    if (c->remove && !runs)
        return err_set(err, ERR_USAGE, 0, "create: --rm needs a command after --, or -it for a shell");
    if (c->tty && !isatty(STDIN_FILENO))
        return err_set(err, ERR_USAGE, 0, "create: --tty needs a terminal on standard input");
    if (netdoc_check_refusals("create", c->refusals, err) < 0 || create_body(c, &body, err) < 0)
        return -1;
    say_building(&call->api, c->template);
    if (api_call(&call->api, "POST", "/v1/sandboxes", buf_str(&body), &answer, NULL, err) < 0)
        return -1;
    const char *id = field_text(answer, "sandboxID");
    cli_if_lost("sandbox %.64s was made and runs; `hutch kill %.64s` ends it", id, id);
    create_say_limits(answer);
    if (runs)
        return create_run_command(c, call, id, err);
    if (call->json)
        node_print_json(answer);
    else
        (void)printf("%s\n", id);
    return 0;
}

/* Cuts the command line at "--"; what follows is the command. */
static int create_split_command(int argc, char **argv, struct creating *ret)
{
    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], "--") == 0) {
            argv[i] = NULL;
            ret->command = i + 1 < argc ? argv + i + 1 : NULL;
            return i;
        }
    return argc;
}

int cmd_create(int argc, char **argv)
{
    static const char usage[] =
        "usage: hutch create [options] [TEMPLATE]\n"
        "       hutch create [options] [TEMPLATE] -- COMMAND [ARG...]\n\n"
        "Makes a sandbox and prints its id, or runs the command in it and ends with its code. Without TEMPLATE: base.\n"
        "It has no internet and its ports are private unless an option below, or the node's operator, says "
        "otherwise.\n\n"
        "      --name NAME       a name that every command takes in place of the id\n"
        "      --timeout TIME    end it after this time (300s); 0: it lives until it is killed\n"
        "  -e, --env NAME=VALUE  set a variable for every command inside\n"
        "  -m, --metadata K=V    a label to find it by; -l and --label are the same\n"
        "      --memory SIZE     memory, like 4G (the template's, or 2G)\n"
        "      --cpus N          processors, like 0.5 (the template's, or 2)\n"
        "      --disk SIZE       what it may write (the template's, or 1G)\n"
        "      --rm              end it when the command has ended\n"
        "  -i, --stdin           pass standard input on to the command\n"
        "  -t, --tty             give the command a terminal; without a command: a shell\n"
        "      --network WHAT    public, off, or a document (docs/network.md)\n"
        "      --allow HOST      allow this host; others only if they are given, too; may be repeated\n"
        "      --preset NAME,... allow the hosts of a preset: debian, python, node ... (docs/network.md); may be "
        "repeated\n"
        "  -p, --publish PORT    open this port to all who know its address (all: every port); may be repeated\n"
        "      --refusals WORD   how a refused connection looks inside: readable, closed (docs/network.md)\n"
        "      --secret NAME     use a secret, and allow what it is bound to; may be repeated\n"
        "      --volume NAME:PATH[:ro]\n"
        "                        a volume at that path, read-only or not; may be repeated\n"
        "      --history         keep a generation of its files after each command (hutch history)\n"
        "      --json            the node's whole answer\n"
        "      --url URL         the node (docs/remote.md)\n\n"
        "`base` is the node's own Debian, with root and sudo; while it is still being built, this waits up to 55 s.\n"
        "`host` is the node's own root: readable without its secrets, writable in /home/user and "
        "/tmp.\n\n"
        "examples:\n"
        "  id=$(hutch create host) && hutch exec $id -- uname -a && hutch kill $id\n"
        "  hutch create --timeout 2h -e TOKEN=x -m job=42\n"
        "  hutch create --preset debian,python,node\n"
        "  hutch create --network public -p 8000\n"
        "  hutch create --name web --timeout 0 --memory 4G && hutch exec web -- python3 -V && hutch kill web\n"
        "  hutch create --rm -it host\n"
        "  hutch create --rm host -- python3 -c 'print(6 * 7)'\n";
    struct creating what = {0};
    const struct node_option options[] = {
        {"timeout", 0, NULL, &what.timeout, NULL},     {"env", 'e', NULL, NULL, &what.env},
        {"metadata", 'm', NULL, NULL, &what.metadata}, {"network", 0, NULL, &what.network, NULL},
        {"refusals", 0, NULL, &what.refusals, NULL},   {"allow", 0, NULL, NULL, &what.allow},
        {"secret", 0, NULL, NULL, &what.secrets},      {"volume", 0, NULL, NULL, &what.volumes},
        {"history", 0, &what.history, NULL, NULL},     {"preset", 0, NULL, NULL, &what.presets},
        {"publish", 'p', NULL, NULL, &what.publish},   {"name", 0, NULL, &what.name, NULL},
        {"memory", 0, NULL, &what.memory, NULL},       {"cpus", 0, NULL, &what.cpus, NULL},
        {"disk", 0, NULL, &what.disk, NULL},           {"label", 'l', NULL, NULL, &what.metadata},
        {"rm", 0, &what.remove, NULL, NULL},           {"stdin", 'i', &what.input, NULL, NULL},
        {"tty", 't', &what.tty, NULL, NULL},           {0}};
    const struct node_command c = {"create", usage, options, 0, 1, false};
    struct node_call call;
    struct err err;
    int code = 0;
    argc = create_split_command(argc, argv, &what);
    if (!node_begin(&c, argc, argv, &call, &code) && (code = create_send_request(&what, &call, &err)) < 0)
        code = cli_fail(&err);
    struct strv *lists[] = {&what.env,     &what.metadata, &what.allow,  &what.presets,
                            &what.secrets, &what.volumes,  &what.publish};
    for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++)
        strv_done(lists[i]);
    return code;
}
