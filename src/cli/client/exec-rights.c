/* exec-rights.c - hutch exec --no-network, --ro, --write, --timeout, --output-limit, --memory, --own-user: what one command
 * may less than its sandbox. */
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/num.h"
#include "cli/client/exec.h"
#include "cli/client/node.h"

static const char *rights_who(const struct exec_rights_options *o) { return o->who ? o->who : "exec"; }

static int rights_add_limits(const struct exec_rights_options *o, json_t *j, struct err *err)
{
    uint64_t ms = 0, bytes = 0;
    uint64_t memory = 0;
    if (o->memory && (!num_size(o->memory, &memory) || memory < (8U << 20) || memory % (1U << 20)))
        return err_set(err, ERR_USAGE, 0,
                       "exec: --memory '%.40s' is not a size of whole MiB from 8M on, like 512M or 2G", o->memory);
    if (o->timeout && (!num_duration(o->timeout, &ms) || ms < 1000 || ms % 1000))
        return err_set(err, ERR_USAGE, 0, "exec: --timeout '%.40s' is not a duration of whole seconds like 30s or 5m",
                       o->timeout);
    if (o->output_limit && (!num_size(o->output_limit, &bytes) || bytes == 0 || bytes > INT64_MAX))
        return err_set(err, ERR_USAGE, 0, "%s: --output-limit '%.40s' is not a size like 64k or 1M", rights_who(o),
                       o->output_limit);
    if (ms)
        (void)json_object_set_new(j, "timeoutSeconds", json_integer((json_int_t)(ms / 1000)));
    if (memory)
        (void)json_object_set_new(j, "memoryMB", json_integer((json_int_t)(memory >> 20)));
    if (bytes)
        (void)json_object_set_new(j, "outputBytes", json_integer((json_int_t)bytes));
    return 0;
}

static int rights_add_paths(const struct exec_rights_options *o, json_t *j, struct err *err)
{
    if (o->read_only && o->write.n)
        return err_set(err, ERR_USAGE, 0, "%s: --ro excludes --write, which says where it may write", rights_who(o));
    if (o->read_only)
        (void)json_object_set_new(j, "write", json_string("none"));
    if (!o->write.n)
        return 0;
    json_t *paths = node_json_strings(&o->write);
    if (json_array_size(paths) != o->write.n) {
        json_decref(paths);
        return err_set(err, ERR_USAGE, 0, "%s: --write wants paths in UTF-8", rights_who(o));
    }
    (void)json_object_set_new(j, "write", paths);
    return 0;
}

/* A node that does not know them would run the command with all the rights of the sandbox. */
static int rights_ask_node(const struct api *api, struct err *err)
{
    _cleanup_json_ json_t *answer = NULL;
    struct api node = *api;
    node.sandbox[0] = '\0';
    if (api_call(&node, "GET", "/v1/capabilities", NULL, &answer, NULL, err) < 0)
        return -1;
    if (json_is_true(json_object_get(json_object_get(answer, "features"), "command_rights")))
        return 0;
    return err_set(err, ERR_HOST, 0, "this node is too old for rights of one command");
}

int exec_rights_text(const struct api *api, const struct exec_rights_options *o, char **ret, struct err *err)
{
    _cleanup_json_ json_t *j = json_object();
    *ret = NULL;
    if (o->no_network)
        (void)json_object_set_new(j, "network", json_string("off"));
    if (o->own_user)
        (void)json_object_set_new(j, "user", json_string("own"));
    if (rights_add_paths(o, j, err) < 0 || rights_add_limits(o, j, err) < 0)
        return -1;
    if (json_object_size(j) == 0)
        return 0;
    if (rights_ask_node(api, err) < 0)
        return -1;
    *ret = json_dumps(j, JSON_COMPACT);
    return 0;
}

void exec_rights_explain(const struct exec_rights_options *o)
{
    _cleanup_buf_ struct buf text = {0};
    if (o->no_network)
        buf_adds(&text, " --no-network");
    if (o->read_only)
        buf_adds(&text, " --ro");
    for (size_t i = 0; i < o->write.n; i++)
        buf_addf(&text, " --write %s", o->write.v[i]);
    if (text.n)
        (void)fprintf(stderr, "hutch: it ran with%s: a refusal for that is \"Permission denied\"\n", buf_str(&text));
}
