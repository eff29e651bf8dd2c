/* ports.c - hutch url: makes links to a sandbox's ports, and ports public or private. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/fields.h"
#include "base/mem.h"
#include "base/num.h"
#include "cli/client/commands.h"
#include "cli/client/node.h"

struct url_words {
    const char *expires, *path;
    bool public, private, localhost, revoke;
};

static int call_with(const struct node_call *call, const char *method, const char *path, json_t *body, json_t **ret,
                     struct err *err)
{
    char *text = body ? json_dumps(body, JSON_COMPACT) : NULL;
    int rc = api_call(&call->api, method, path, text, ret, NULL, err);
    free(text);
    json_decref(body);
    return rc;
}

/* The list of public ports with or without this one. */
static json_t *changed_list(const json_t *ports, int port, bool public)
{
    const json_t *old = json_object_get(ports, "publicPorts");
    json_t *list = json_array();
    for (size_t i = 0; i < json_array_size(old); i++)
        if (json_integer_value(json_array_get(old, i)) != port)
            (void)json_array_append(list, json_array_get(old, i));
    if (public)
        (void)json_array_append_new(list, json_integer(port));
    return list;
}

/* Makes the port public, private or localhost as the options say; *ret: the ports' settings afterwards. */
static int port_set_access(const struct node_call *call, const char *base, int port, const struct url_words *w,
                           json_t **ret, struct err *err)
{
    _cleanup_free_ char *path = xasprintf("%s/ports", base);
    _cleanup_json_ json_t *now = NULL;
    if (api_call(&call->api, "GET", path, NULL, &now, NULL, err) < 0)
        return -1;
    if (w->private && json_is_true(json_object_get(now, "publicTraffic")))
        return err_set(err, ERR_USAGE, 0,
                       "url: all ports of this sandbox are public; PUT %s with {\"publicTraffic\":false} makes it "
                       "private",
                       path);
    if (!w->public && !w->private && !w->localhost) {
        *ret = json_incref(now);
        return 0;
    }
    json_t *body = json_object();
    if (w->public || w->private)
        (void)json_object_set_new(body, "publicPorts", changed_list(now, port, w->public));
    if (w->localhost) {
        char name[16];
        json_t *hosts = json_deep_copy(json_object_get(now, "portHosts"));
        (void)snprintf(name, sizeof name, "%d", port);
        (void)json_object_set_new(hosts, name, json_string("localhost"));
        (void)json_object_set_new(body, "portHosts", hosts);
    }
    return call_with(call, "PUT", path, body, ret, err);
}

static bool is_public(const json_t *ports, int port)
{
    const json_t *list = json_object_get(ports, "publicPorts");
    for (size_t i = 0; i < json_array_size(list); i++)
        if (json_integer_value(json_array_get(list, i)) == port)
            return true;
    return json_is_true(json_object_get(ports, "publicTraffic"));
}

/* The address of a port that needs no link. */
static int print_plain(const struct node_call *call, const json_t *ports, int port, const char *path, struct err *err)
{
    const char *url = field_text(ports, "url"), *at = strstr(url, "{port}");
    if (!at)
        return err_set(err, ERR_INTERNAL, 0, "url: the node does not say how its ports are addressed");
    _cleanup_free_ char *plain = xasprintf("%.*s%d%s%s", (int)(at - url), url, port, at + 6, path);
    if (call->json) {
        _cleanup_json_ json_t *j = json_pack("{s:s, s:b}", "url", plain, "public", 1);
        node_print_json(j);
    } else
        (void)puts(plain);
    return 0;
}

static int print_url(const struct node_call *call, const char *base, int port, const struct url_words *w,
                     struct err *err)
{
    _cleanup_json_ json_t *ports = NULL, *link = NULL;
    uint64_t ms;
    if (!num_duration(w->expires, &ms) || ms < 1000)
        return err_set(err, ERR_USAGE, 0, "url: --expires wants a time of at least 1s, like 1h, not '%.40s'",
                       w->expires);
    if (port_set_access(call, base, port, w, &ports, err) < 0)
        return -1;
    if (is_public(ports, port))
        return print_plain(call, ports, port, w->path, err);
    if (w->private)
        return 0;
    _cleanup_free_ char *path = xasprintf("%s/ports/%d/link", base, port);
    json_t *body = json_pack("{s:I, s:s}", "expiresIn", (json_int_t)(ms / 1000), "path", w->path);
    if (!body)
        return err_set(err, ERR_USAGE, 0, "url: --path must be UTF-8");
    if (call_with(call, "POST", path, body, &link, err) < 0)
        return -1;
    if (call->json)
        node_print_json(link);
    else
        (void)puts(field_text(link, "url"));
    return 0;
}

int cmd_url(int argc, char **argv)
{
    static const char usage[] =
        "usage: hutch url ID PORT [--expires TIME] [--path PATH] [--localhost]\n"
        "       hutch url ID PORT --public | --private\n"
        "       hutch url ID --revoke\n\n"
        "Prints an address that opens a port of a sandbox in a browser. If the port is private it is a link that "
        "works\n"
        "for a while; a browser that opens it gets a cookie for as long. A public port's address needs no link.\n\n"
        "      --expires TIME  how long the link works (1h), at most 7d\n"
        "      --path PATH     where it leads (/)\n"
        "      --public        make the port public first: everyone who knows the address can open it\n"
        "      --private       make it private again; nothing is printed\n"
        "      --localhost     ask the service as localhost:PORT from now on: for dev servers that refuse other names\n"
        "      --revoke        invalidate all links to this sandbox's ports, and their cookies\n"
        "      --json          the node's whole answer\n\n"
        "examples:\n"
        "  xdg-open \"$(hutch url $id 5173)\"\n"
        "  hutch url $id 8000 --public\n";
    struct url_words w = {.expires = "1h", .path = "/"};
    const struct node_option options[] = {{"expires", 0, NULL, &w.expires, NULL},
                                          {"path", 0, NULL, &w.path, NULL},
                                          {"public", 0, &w.public, NULL, NULL},
                                          {"private", 0, &w.private, NULL, NULL},
                                          {"localhost", 0, &w.localhost, NULL, NULL},
                                          {"revoke", 0, &w.revoke, NULL, NULL},
                                          {0}};
    const struct node_command c = {"url", usage, options, 1, 2, false};
    struct node_call call;
    struct err err;
    int code, rc, port = 0;
    if (node_begin(&c, argc, argv, &call, &code))
        return code;
    if (w.revoke ? call.nargs != 1 : call.nargs != 2)
        rc = err_set(&err, ERR_USAGE, 0, "url: give an id and a port, or an id and --revoke");
    else if (!w.revoke && !num_int(call.args[1], 1, 65535, &port))
        rc = err_set(&err, ERR_USAGE, 0, "url: '%.40s' is not a port from 1 to 65535", call.args[1]);
    else if (w.public && w.private)
        rc = err_set(&err, ERR_USAGE, 0, "url: --public and --private exclude each other");
    else if ((rc = node_take_id(&call, 0, &err)) == 0) {
        _cleanup_free_ char *base = xasprintf("/v1/sandboxes/%s", call.args[0]), *links = xasprintf("%s/links", base);
        rc = w.revoke ? api_call(&call.api, "DELETE", links, NULL, NULL, NULL, &err)
                      : print_url(&call, base, port, &w, &err);
    }
    return rc < 0 ? cli_fail(&err) : 0;
}
