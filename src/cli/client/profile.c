/* profile.c - hutch profile: lists, chooses and shows the nodes that this user logged in to. Keys are never printed. */
#include <stdio.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/mem.h"
#include "cli/client/commands.h"
#include "cli/client/node.h"
#include "cli/client/profiles.h"

/* What may be shown of one. A new reference. */
static json_t *profile_public(const char *name, const json_t *p, bool current)
{
    return json_pack("{s:s, s:s, s:s, s:b, s:b}", "name", name, "url", field_text(p, "url"), "authority",
                     *field_text(p, "ca") ? "own" : "system", "current", current, "client_certificate",
                     *field_text(p, "cert") != '\0');
}

static int profile_list(const struct node_call *call, json_t *root)
{
    _cleanup_json_ json_t *list = json_array();
    const char *name;
    json_t *p;
    json_object_foreach(json_object_get(root, "profiles"), name, p)
    {
        (void)json_array_append_new(list, profile_public(name, p, strcmp(name, profiles_current(root)) == 0));
    }
    if (call->json) {
        node_print_json(list);
        return 0;
    }
    struct node_table t = node_table_with("NAME", "URL", "AUTHORITY", "IN USE", NULL);
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *one = json_array_get(list, i);
        node_cell(&t, "%s", field_text(one, "name"));
        node_cell(&t, "%s", field_text(one, "url"));
        node_cell(&t, "%s", field_text(one, "authority"));
        node_cell(&t, "%s", json_is_true(json_object_get(one, "current")) ? "yes" : "");
    }
    node_print_table(&t);
    return 0;
}

static int profile_show(const struct node_call *call, json_t *root, const char *name, struct err *err)
{
    if (!name)
        name = profiles_current(root);
    const json_t *p = profiles_find(root, name);
    if (!p)
        return err_set(err, ERR_USAGE, 0,
                       *name ? "profile: there is no profile '%.80s'; `hutch profile ls` lists them"
                             : "profile: none is in use%.0s; commands use the node of this machine",
                       name);
    _cleanup_json_ json_t *one = profile_public(name, p, strcmp(name, profiles_current(root)) == 0);
    const char *ca = field_text(p, "ca");
    if (*ca)
        (void)json_object_set_new(one, "ca", json_string(ca));
    if (call->json) {
        node_print_json(one);
        return 0;
    }
    _cleanup_free_ char *path = profiles_path();
    (void)printf("name       %s\nurl        %s\nin use     %s\nkey        kept in %s\n%sauthority  %s\n%s", name,
                 field_text(one, "url"), json_is_true(json_object_get(one, "current")) ? "yes" : "no", path ? path : "",
                 *field_text(p, "cert") ? "client     a certificate and its key are kept there\n" : "",
                 *ca ? "this one only:" : "the system's", ca);
    return 0;
}

struct profile_use {
    const char *name;
};

static int profile_use(void *arg, json_t *root, struct err *err)
{
    const struct profile_use *u = arg;
    if (strcmp(u->name, "-") == 0) {
        (void)json_object_del(root, "current");
        return 0;
    }
    if (!profiles_find(root, u->name))
        return err_set(err, ERR_USAGE, 0, "profile: there is no profile '%.80s'; `hutch profile ls` lists them",
                       u->name);
    (void)json_object_set_new(root, "current", json_string(u->name));
    return 0;
}

static int profile_dispatch(const char *verb, const struct node_call *call, struct err *err)
{
    _cleanup_json_ json_t *root = NULL;
    const char *name = call->nargs ? call->args[0] : NULL;
    bool use = strcmp(verb, "use") == 0, ls = strcmp(verb, "ls") == 0;
    if ((!use && !ls && strcmp(verb, "show") != 0) || (use && !name) || (ls && name) || call->nargs > 1)
        return err_set(err, ERR_USAGE, 0, "profile: one of ls, use NAME, show [NAME]; see hutch profile --help");
    if (use) {
        if (profiles_change(profile_use, &(struct profile_use){name}, err) < 0)
            return -1;
        if (call->json)
            (void)printf("{\"current\":\"%s\"}\n", strcmp(name, "-") == 0 ? "" : name);
        return 0;
    }
    if (profiles_load(&root, err) < 0)
        return -1;
    return ls ? profile_list(call, root) : profile_show(call, root, name, err);
}

int cmd_profile(int argc, char **argv)
{
    static const char usage[] =
        "usage: hutch profile ls           list the nodes that you logged in to\n"
        "       hutch profile use NAME     use this one from now on; `-`: the node of this machine\n"
        "       hutch profile show [NAME]  show URL and authority of one (the current one); never its key\n\n"
        "      --json   the same as JSON\n\n"
        "--profile NAME or HUTCH_PROFILE chooses one for a single command. Guide: docs/remote.md\n\n"
        "example: hutch profile use node.example\n";
    const struct node_command c = {"profile", usage, NULL, 0, 2, false};
    const char *verb = argc > 1 && argv[1][0] != '-' ? argv[1] : "";
    struct node_call call;
    struct err err;
    int code;
    if (node_begin_local(&c, *verb ? argc - 1 : argc, *verb ? argv + 1 : argv, &call, &code))
        return code;
    return profile_dispatch(verb, &call, &err) < 0 ? cli_fail(&err) : 0;
}
