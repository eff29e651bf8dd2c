/* tools.c - the table of tools: finds one, checks the caller's scope and the arguments, and writes results. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/mcp/mcp.h"
#include "api/mcp/tools-json.h"
#include "base/cleanup.h"
#include "base/fields.h"

/* In the order of tools.json. */
static const struct mcp_tool tools[] = {
    {"create_sandbox", mcp_create_sandbox, API_CHANGES, false},
    {"list_sandboxes", mcp_list_sandboxes, 0, false},
    {"kill_sandbox", mcp_kill_sandbox, API_CHANGES, false},
    {"run", mcp_run, API_CHANGES, false},
    {"run_code", mcp_run_code, API_CHANGES, false},
    {"read_output", mcp_read_output, API_CONTENTS, false},
    {"read_file", mcp_read_file, API_CONTENTS, false},
    {"write_file", mcp_write_file, API_CHANGES, false},
    {"edit_file", mcp_edit_file, API_CHANGES, false},
    {"list_files", mcp_list_files, API_CONTENTS, false},
    {"search", mcp_search, API_CONTENTS, false},
    {"fork", mcp_fork, API_CHANGES, false},
    {"snapshot", mcp_snapshot, API_CHANGES, false},
    {"history", mcp_history, 0, false},
    {"undo", mcp_undo, API_CHANGES, false},
    {"try", mcp_try, API_CHANGES, false},
    {"commit", mcp_commit, API_CHANGES, false},
    {"expose_port", mcp_expose_port, API_CHANGES, false},
    {"request_grant", mcp_request_grant, API_CHANGES, true},
};
const struct mcp_set mcp_own = {.json = mcp_tools_json,
                                .json_size = &mcp_tools_json_size,
                                .tools = tools,
                                .ntools = ARRAY_LEN(tools),
                                .prompt = mcp_own_prompt};

/* Those that stop a sandbox for a moment while its files are looked at. */
static const char *const freezing[] = {"fork", "snapshot", "undo", "try", "commit"};

static const struct mcp_tool *mcp_tool_find(const char *name)
{
    const struct mcp_set *const sets[] = {&mcp_own, &mcp_more};
    for (size_t s = 0; s < ARRAY_LEN(sets); s++)
        for (size_t i = 0; i < sets[s]->ntools; i++)
            if (strcmp(sets[s]->tools[i].name, name) == 0)
                return &sets[s]->tools[i];
    return NULL;
}

const char *mcp_tool_lacking(const struct mcp_call *k, const char *name)
{
    const struct mcp_tool *t = mcp_tool_find(name);
    if (t && t->network && !k->api->domain->sandboxes.have_network(k->api->network))
        return "this node has no network";
    for (size_t i = 0; t && k->api->no_freezer && i < ARRAY_LEN(freezing); i++)
        if (strcmp(freezing[i], name) == 0)
            return "this host has no cgroup with a freezer (hutch doctor says what is missing)";
    return NULL;
}

static bool mcp_schema_fits(const json_t *schema, const json_t *v)
{
    const char *type = json_string_value(json_object_get(schema, "type"));
    return !type || (strcmp(type, "string") == 0 && json_is_string(v)) ||
           (strcmp(type, "integer") == 0 && json_is_integer(v)) || (strcmp(type, "number") == 0 && json_is_number(v)) ||
           (strcmp(type, "boolean") == 0 && json_is_boolean(v)) || (strcmp(type, "object") == 0 && json_is_object(v)) ||
           (strcmp(type, "array") == 0 && json_is_array(v));
}

static int mcp_schema_check_value(const char *name, const json_t *schema, const json_t *v, struct err *err)
{
    json_t *min = json_object_get(schema, "minimum"), *max = json_object_get(schema, "maximum"),
           *most = json_object_get(schema, "maxLength");
    if (!mcp_schema_fits(schema, v))
        return err_set(err, ERR_USAGE, 0, "argument '%s' must be of type %s, not %s", name,
                       json_string_value(json_object_get(schema, "type")), field_type_name(v));
    if (json_is_integer(v) && min && max &&
        (json_integer_value(v) < json_integer_value(min) || json_integer_value(v) > json_integer_value(max)))
        return err_set(err, ERR_USAGE, 0, "argument '%s' must be from %lld to %lld", name,
                       (long long)json_integer_value(min), (long long)json_integer_value(max));
    if (json_is_string(v) && most && json_string_length(v) > (size_t)json_integer_value(most))
        return err_set(err, ERR_USAGE, 0, "argument '%s' must have at most %lld bytes", name,
                       (long long)json_integer_value(most));
    if (json_is_string(v) && strlen(json_string_value(v)) != json_string_length(v))
        return err_set(err, ERR_USAGE, 0, "argument '%s' must not contain NUL", name);
    return 0;
}

/* Checks what our schemas use: type, required, minimum, maximum, maxLength, and that there is nothing else. */
static int mcp_schema_check(const json_t *schema, json_t *args, struct err *err)
{
    json_t *properties = json_object_get(schema, "properties"), *required = json_object_get(schema, "required"), *v;
    const char *name;
    json_object_foreach(args, name, v)
    {
        json_t *one = json_object_get(properties, name);
        if (!one)
            return err_set(err, ERR_USAGE, 0, "there is no argument '%.64s'", name);
        if (mcp_schema_check_value(name, one, v, err) < 0)
            return -1;
    }
    for (size_t i = 0; i < json_array_size(required); i++) {
        const char *need = json_string_value(json_array_get(required, i));
        if (!json_object_get(args, need))
            return err_set(err, ERR_USAGE, 0, "argument '%s' is missing", need);
    }
    return 0;
}

static int mcp_tool_check(const char *name, json_t *args, struct err *err)
{
    json_t *all = mcp_entries("tools"), *one;
    int rc = 0;
    size_t i;
    json_array_foreach(all, i, one) if (strcmp(json_string_value(json_object_get(one, "name")), name) == 0)
    {
        rc = mcp_schema_check(json_object_get(one, "inputSchema"), args, err);
        break;
    }
    json_decref(all);
    return rc;
}

void mcp_tools_call(struct mcp_call *k)
{
    const char *name = json_string_value(json_object_get(k->m.params, "name"));
    json_t *args = json_object_get(k->m.params, "arguments");
    struct err err;
    k->tool = name && !mcp_tool_lacking(k, name) ? mcp_tool_find(name) : NULL;
    if (!k->tool || (args && !json_is_object(args))) {
        mcp_refuse(k, 200, MCP_BAD_PARAMS, NULL, "%s",
                   !name      ? "params.name must be the name of a tool"
                   : !k->tool ? "there is no such tool; tools/list shows those there are"
                              : "params.arguments must be an object");
        return;
    }
    k->args = args;
    const char *why = api_scope_lacking(k->who.scopes, SCOPE_SANDBOXES, k->tool->flags);
    if (why)
        mcp_fail(k, "%s: %s", name, why);
    else if (mcp_tool_check(name, args, &err) < 0)
        mcp_fail(k, "%s: %s", name, err.msg);
    else
        k->tool->fn(k);
}

const char *mcp_arg(const struct mcp_call *k, const char *name)
{
    return json_string_value(json_object_get(k->args, name));
}
int64_t mcp_arg_int(const struct mcp_call *k, const char *name, int64_t otherwise)
{
    json_t *v = json_object_get(k->args, name);
    return v ? json_integer_value(v) : otherwise;
}
bool mcp_arg_bool(const struct mcp_call *k, const char *name) { return json_is_true(json_object_get(k->args, name)); }

/* --- results -------------------------------------------------------------------------------------------------------- */

struct json *mcp_data(struct mcp_call *k)
{
    if (!k->data.n) {
        json_start(&k->j, &k->data);
        json_obj(&k->j, NULL);
    }
    return &k->j;
}

void mcp_done_with(struct mcp_call *k, json_t *content, bool is_error)
{
    json_t *result = json_pack("{s:o,s:b}", "content", content, "isError", is_error);
    if (k->data.n) {
        json_end_obj(&k->j);
        json_t *data = json_loadb(k->data.p, k->data.n, JSON_ALLOW_NUL, NULL);
        if (data)
            (void)json_object_set_new(result, "structuredContent", data);
    }
    mcp_answer(k, result);
}

void mcp_done(struct mcp_call *k, const char *text)
{
    _cleanup_buf_ struct buf shown = {0};
    buf_adds(&shown, text ? text : buf_str(&k->data));
    if (!text)
        buf_addc(&shown, '}'); /* mcp_done_with() closes the object itself */
    mcp_done_with(k, json_pack("[{s:s,s:o}]", "type", "text", "text", mcp_text(buf_str(&shown), shown.n)), false);
}

void mcp_fail(struct mcp_call *k, const char *fmt, ...)
{
    char text[900];
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    buf_done(&k->data);
    mcp_done_with(k, json_pack("[{s:s,s:o}]", "type", "text", "text", mcp_text(text, strlen(text))), true);
}

/* --- the sandbox ---------------------------------------------------------------------------------------------------- */

struct sandbox *mcp_sandbox_of(struct mcp_call *k, const char *named)
{
    char id[SANDBOX_ID_MAX];
    struct sandbox *b =
        k->r && named && api_sandbox_id(named, strlen(named), id) ? sandbox_of(k->api->sandboxes, &k->who, id) : NULL;
    if (b)
        api_note_sandbox(k->r, b->id);
    return b;
}

struct sandbox *mcp_sandbox(struct mcp_call *k)
{
    struct sandbox *b = mcp_sandbox_of(k, mcp_arg(k, "sandbox"));
    if (!b)
        mcp_fail(k, "there is no sandbox '%.40s': it ended, or never was; make one with create_sandbox",
                 mcp_arg(k, "sandbox"));
    return b;
}

static void mcp_on_woken(void *arg, const struct state_failure *failure)
{
    struct mcp_call *k = arg;
    struct sandbox *b = k->r ? mcp_sandbox_of(k, k->used) : NULL;
    char id[SANDBOX_ID_MAX];
    memcpy(id, k->used, sizeof id);
    k->used[0] = 0;
    if (failure || !b || b->state != SANDBOX_RUNNING) {
        mcp_fail(k, "sandbox %s cannot be used: %s", id, failure ? failure->text : "it has ended");
        return;
    }
    memcpy(k->used, b->id, sizeof k->used);
    sandbox_in_use(k->api->sandboxes, b);
    k->then(k, b);
}

void mcp_awake(struct mcp_call *k, struct sandbox *b, void (*then)(struct mcp_call *k, struct sandbox *b))
{
    k->then = then;
    memcpy(k->used, b->id, sizeof k->used);
    sandbox_awake(k->api->sandboxes, b, false, mcp_on_woken, k);
}
