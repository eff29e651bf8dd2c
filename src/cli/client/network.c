/* network.c - hutch network: shows and changes what a sandbox may reach. Reads network documents for other commands, too. */
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "base/fields.h"
#include "base/mem.h"
#include "base/num.h"
#include "cli/client/commands.h"
#include "cli/client/netdoc.h"
#include "cli/client/node.h"
#include "policy/node.h"

enum { FILE_MAX = 256 * 1024 };

/* --- documents ---------------------------------------------------------------------------------------------------- */

static json_t *netdoc_scalar(const struct node *n)
{
    uint64_t v;
    if (!n->quoted && (strcmp(n->text, "true") == 0 || strcmp(n->text, "false") == 0))
        return json_boolean(n->text[0] == 't');
    if (!n->quoted && num_u64(n->text, &v) && v <= INT64_MAX)
        return json_integer((json_int_t)v);
    return json_string(n->text);
}

static json_t *to_json(const struct node *n)
{
    if (n->kind == NODE_SCALAR)
        return netdoc_scalar(n);
    json_t *ret = n->kind == NODE_LIST ? json_array() : json_object();
    for (size_t i = 0; n->kind == NODE_LIST && i < n->n; i++)
        (void)json_array_append_new(ret, to_json(n->items[i]));
    for (size_t i = 0; n->kind == NODE_MAP && i + 1 < n->n; i += 2)
        (void)json_object_set_new(ret, n->items[i]->text, to_json(n->items[i + 1]));
    return ret;
}

static json_t *read_document(const char *path, struct err *err)
{
    _cleanup_buf_ struct buf text = {0};
    _cleanup_node_ struct node *root = NULL;
    if (fd_read_file(AT_FDCWD, path, FILE_MAX, &text) < 0) {
        (void)err_set(err, ERR_USAGE, errno, "cannot read the network document %s (or say public or off)", path);
        return NULL;
    }
    if (node_read(buf_str(&text), text.n, path, 0, &root, err) < 0)
        return NULL;
    if (root->kind == NODE_MAP)
        return to_json(root);
    (void)err_set(err, ERR_POLICY, 0, "%s: a network document is a mapping; see docs/network.md", path);
    return NULL;
}

int netdoc_check_refusals(const char *command, const char *word, struct err *err)
{
    if (!word || strcmp(word, "readable") == 0 || strcmp(word, "closed") == 0)
        return 0;
    return err_set(err, ERR_USAGE, 0, "%s: --refusals wants readable or closed, not '%.40s'", command, word);
}

/* Adds to a list of the document; a word in its place becomes a list. */
static void netdoc_add_names(json_t *doc, const char *key, const struct strv *names)
{
    json_t *list = json_object_get(doc, key), *all = json_is_array(list) ? json_deep_copy(list) : json_array();
    if (json_is_string(list))
        (void)json_array_append(all, list);
    for (size_t i = 0; i < names->n; i++)
        (void)json_array_append_new(all, json_string(names->v[i]));
    (void)json_object_set_new(doc, key, all);
}

static json_t *read_words(const char *what, const struct strv *allow, const struct strv *presets, struct err *err)
{
    bool word = what && (strcmp(what, "public") == 0 || strcmp(what, "off") == 0);
    if (word && (allow->n + presets->n == 0 || what[0] == 'p'))
        return json_string(what); /* public allows every host anyway */
    json_t *doc = what && !word ? read_document(what, err) : json_pack("{s:i, s:s}", "version", 1, "default", "deny");
    if (doc && allow->n)
        netdoc_add_names(doc, "allow", allow);
    if (doc && presets->n)
        netdoc_add_names(doc, "presets", presets);
    return doc;
}

static void netdoc_split_names(const struct strv *from, struct strv *ret)
{
    for (size_t i = 0; from && i < from->n; i++)
        for (const char *p = from->v[i]; *p;) {
            size_t n = strcspn(p, ",");
            if (n)
                strv_take(ret, xasprintf("%.*s", (int)n, p));
            p += n + (p[n] == ',');
        }
}

json_t *netdoc_read(const char *what, const struct strv *allow, const struct strv *presets, const char *refusals,
                    struct err *err)
{
    struct strv names __attribute__((cleanup(strv_done))) = {0};
    netdoc_split_names(presets, &names);
    json_t *doc = read_words(what, allow, &names, err);
    if (!doc || !refusals)
        return doc;
    if (json_is_string(doc)) {
        bool is_public = json_string_value(doc)[0] == 'p';
        json_decref(doc);
        doc = json_pack("{s:i, s:s}", "version", 1, "default", is_public ? "public" : "deny");
    }
    (void)json_object_set_new(doc, "refusals", json_string(refusals));
    return doc;
}

/* --- commands ----------------------------------------------------------------------------------------------------- */

static int send_json(const struct node_call *call, const char *method, const char *path, json_t *body, json_t **ret,
                     struct err *err)
{
    char *text = json_dumps(body, JSON_COMPACT);
    int rc = api_call(&call->api, method, path, text, ret, NULL, err);
    free(text);
    json_decref(body);
    return rc;
}

static int print_network(const struct node_call *call, const json_t *j)
{
    if (call->json)
        node_print_json(j);
    else {
        (void)printf("epoch %lld\n", (long long)json_integer_value(json_object_get(j, "epoch")));
        if (json_is_false(json_object_get(j, "enforced")))
            (void)puts("this node has no network: nothing below has any effect");
        node_print_json(json_object_get(j, "effective"));
    }
    return 0;
}

/* Rule ids have letters, digits, dots and dashes. */
static char *rule_id(const char *verb, const char *host)
{
    char *id = xasprintf("%s-%.50s", verb, host);
    for (char *p = id; *p; p++)
        if (!isalnum((unsigned char)*p) && *p != '.' && *p != '-')
            *p = '-';
    return id;
}

static bool has_rule(const json_t *network, const char *id)
{
    const json_t *rules = json_object_get(json_object_get(network, "policy"), "rules");
    for (size_t i = 0; i < json_array_size(rules); i++)
        if (strcmp(field_text(json_array_get(rules, i), "id"), id) == 0)
            return true;
    return false;
}

/* Adds one rule for each host and removes the opposite rule of an earlier call. */
static int change_hosts(const struct node_call *call, const char *path, bool allow, char **hosts, struct err *err)
{
    _cleanup_json_ json_t *now = NULL, *answer = NULL;
    json_t *add = json_array(), *remove = json_array();
    if (api_call(&call->api, "GET", path, NULL, &now, NULL, err) < 0) {
        json_decref(add);
        json_decref(remove);
        return -1;
    }
    for (; *hosts; hosts++) {
        _cleanup_free_ char *id = rule_id(allow ? "allow" : "deny", *hosts),
                            *other = rule_id(allow ? "deny" : "allow", *hosts);
        json_t *rule = json_pack("{s:s, s:[s]}", "id", id, "hosts", *hosts);
        if (!allow)
            (void)json_object_set_new(rule, "effect", json_string("deny"));
        (void)json_array_append_new(add, rule);
        if (has_rule(now, other))
            (void)json_array_append_new(remove, json_string(other));
    }
    json_t *body = json_pack("{s:o, s:o, s:I}", "add", add, "remove", remove, "expected_epoch",
                             (json_int_t)json_integer_value(json_object_get(now, "epoch")));
    if (send_json(call, "PATCH", path, body, &answer, err) < 0)
        return -1;
    if (call->json)
        return print_network(call, answer);
    (void)printf("%s:", allow ? "allowed" : "denied");
    for (int i = 1; i < call->nargs; i++)
        (void)printf(" %s", call->args[i]);
    (void)puts(json_is_false(json_object_get(answer, "enforced")) ? "; but this node has no network" : "");
    return 0;
}

/* Changes only how refusals look. */
static int set_refusals(const struct node_call *call, const char *path, const char *refusals, struct err *err)
{
    _cleanup_json_ json_t *answer = NULL;
    if (send_json(call, "PATCH", path, json_pack("{s:{s:s}}", "set", "refusals", refusals), &answer, err) < 0)
        return -1;
    return print_network(call, answer);
}

static int set_network(const struct node_call *call, const char *path, const struct strv *allow,
                       const struct strv *secrets, const char *refusals, struct err *err)
{
    _cleanup_json_ json_t *answer = NULL;
    if (netdoc_check_refusals("network", refusals, err) < 0)
        return -1;
    if (refusals && call->nargs == 1 && !allow->n && !secrets->n)
        return set_refusals(call, path, refusals, err);
    json_t *doc = netdoc_read(call->nargs > 1 ? call->args[1] : NULL, allow, NULL, refusals, err);
    if (!doc)
        return -1;
    json_t *body = json_pack("{s:o}", "policy", doc), *names = json_array();
    for (size_t i = 0; i < secrets->n; i++)
        (void)json_array_append_new(names, json_string(secrets->v[i]));
    (void)json_object_set_new(body, "secrets", names);
    if (send_json(call, "PUT", path, body, &answer, err) < 0)
        return -1;
    return print_network(call, answer);
}

static int get_part(const struct node_call *call, const char *path, const char *part, struct err *err)
{
    _cleanup_json_ json_t *j = NULL;
    _cleanup_free_ char *full = xasprintf("%s%s", path, part);
    if (api_call(&call->api, "GET", full, NULL, &j, NULL, err) < 0)
        return -1;
    if (!*part)
        return print_network(call, j);
    node_print_json(strcmp(part, "/learned") == 0 && !call->json ? json_object_get(j, "policy") : j);
    return 0;
}

/* Of all sandboxes of the caller's tenant. */
static int show_usage(const struct node_call *call, struct err *err)
{
    _cleanup_json_ json_t *j = NULL;
    if (api_call(&call->api, "GET", "/v1/network/usage", NULL, &j, NULL, err) < 0)
        return -1;
    node_print_json(j);
    return 0;
}

static int check_url(const struct node_call *call, const char *path, const char *method, struct err *err)
{
    _cleanup_json_ json_t *j = NULL;
    _cleanup_free_ char *full = xasprintf("%s/check", path);
    json_t *body = json_pack("{s:s, s:s}", "url", call->args[1], "method", method);
    if (send_json(call, "POST", full, body, &j, err) < 0)
        return -1;
    node_print_json(j);
    return 0;
}

int cmd_network(int argc, char **argv)
{
    static const char usage[] =
        "usage: hutch network show ID\n"
        "       hutch network set ID FILE|public|off [--allow HOST]... [--secret NAME]... [--refusals WORD]\n"
        "       hutch network set ID --refusals WORD\n"
        "       hutch network allow|deny ID HOST...\n"
        "       hutch network denials|stats|learned ID\n"
        "       hutch network usage\n"
        "       hutch network check ID URL [--method M]\n\n"
        "What a sandbox may reach. A change is in force when the command returns: connections it no longer allows are\n"
        "cut. A denial beats every rule that allows. `allow` and `deny` print one line, `show` the whole network.\n\n"
        "      --allow HOST    besides what the document says\n"
        "      --secret NAME   allow what the secret is bound to, and use it there\n"
        "      --refusals WORD how a refused connection looks inside: readable, closed. Alone it changes nothing else\n"
        "      --method M      of the request that is tried (GET)\n"
        "      --json          the node's whole answer\n\n"
        "The document's language: docs/network.md. `learned` is the smallest document for what was seen while its "
        "mode\n"
        "was learn.\n\n"
        "examples:\n"
        "  hutch network set $id off --allow pypi.org --allow files.pythonhosted.org\n"
        "  hutch network deny $id paste.example\n"
        "  hutch network check $id https://pypi.org/simple/\n";
    struct strv allow __attribute__((cleanup(strv_done))) = {0};
    struct strv secrets __attribute__((cleanup(strv_done))) = {0};
    const char *method = "GET", *refusals = NULL;
    const struct node_option options[] = {{"allow", 0, NULL, NULL, &allow},
                                          {"secret", 0, NULL, NULL, &secrets},
                                          {"refusals", 0, NULL, &refusals, NULL},
                                          {"method", 'X', NULL, &method, NULL},
                                          {0}};
    const struct node_command c = {"network", usage, options, 0, -1, false};
    const char *verb = argc > 1 && argv[1][0] != '-' ? argv[1] : "";
    struct node_call call;
    struct err err;
    int code, rc;
    if (node_begin(&c, *verb ? argc - 1 : argc, *verb ? argv + 1 : argv, &call, &code))
        return code;
    if (strcmp(verb, "usage") == 0 && call.nargs == 0)
        return show_usage(&call, &err) < 0 ? cli_fail(&err) : 0;
    if (call.nargs == 0)
        (void)err_set(&err, ERR_USAGE, 0, "network: the id of a sandbox is missing; see hutch network --help");
    if (call.nargs == 0 || node_take_id(&call, 0, &err) < 0)
        return cli_fail(&err);
    _cleanup_free_ char *path = xasprintf("/v1/sandboxes/%s/network", call.args[0]);
    if (refusals && strcmp(verb, "set") != 0)
        rc = err_set(&err, ERR_USAGE, 0, "network: --refusals belongs to hutch network set");
    else if (strcmp(verb, "show") == 0 && call.nargs == 1)
        rc = get_part(&call, path, "", &err);
    else if (strcmp(verb, "set") == 0 && (call.nargs == 2 || (call.nargs == 1 && (allow.n || secrets.n || refusals))))
        rc = set_network(&call, path, &allow, &secrets, refusals, &err);
    else if ((strcmp(verb, "allow") == 0 || strcmp(verb, "deny") == 0) && call.nargs > 1)
        rc = change_hosts(&call, path, verb[0] == 'a', call.args + 1, &err);
    else if (strcmp(verb, "denials") == 0 && call.nargs == 1)
        rc = get_part(&call, path, "/denials", &err);
    else if (strcmp(verb, "stats") == 0 && call.nargs == 1)
        rc = get_part(&call, path, "/stats", &err);
    else if (strcmp(verb, "learned") == 0 && call.nargs == 1)
        rc = get_part(&call, path, "/learned", &err);
    else if (strcmp(verb, "check") == 0 && call.nargs == 2)
        rc = check_url(&call, path, method, &err);
    else
        rc = err_set(
            &err, ERR_USAGE, 0,
            "network: say show, set, allow, deny, denials, stats, usage, learned or check, and what they need; see "
            "hutch network --help");
    return rc < 0 ? cli_fail(&err) : 0;
}
