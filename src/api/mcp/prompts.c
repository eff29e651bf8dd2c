/* prompts.c - prompts that a person picks in a client, and completion of the ids of sandboxes in what a person types. */
#include <stdio.h>
#include <string.h>

#include "api/mcp/mcp.h"
#include "base/cleanup.h"

enum { ARGUMENT_MAX = 16 << 10, COMPLETED_MAX = 100 };

/* "{name}" stands for an argument; without one, for what is said here of it. The arguments themselves are in tools.json. */
struct prompt {
    const char *name, *text;
    const char *absent; /* for "sandbox" */
};
static const char new_box[] = "one that you make with create_sandbox";
static const struct prompt prompts[] = {
    {"run_untrusted",
     "Run the following in a sandbox and tell me what it does. Do not trust it.\n\nSandbox: {sandbox}.\nUse the tool "
     "`run` with "
     "`rights` {\"network\":\"off\",\"write\":\"none\",\"timeoutSeconds\":60,\"memoryMB\":512}. If it fails because of "
     "a right, say which "
     "one and ask me before you run it again with more. Report exit code, output and denials.\n\n{command}",
     new_box},
    {"try_change",
     "Do the following in the sandbox {sandbox}, without keeping anything that I have not seen.\n\nUse the tool `try`, "
     "show me the "
     "changed files and what surprised you, and wait for my answer. Then use `commit`, or `commit` with `discard` "
     "true.\n\n{task}",
     NULL},
    {"explain_denials",
     "Find out what was refused in the sandbox {sandbox}: read the resource hutch://sandboxes/{sandbox}/log and look "
     "for events of "
     "type denial. For each, say what was tried and why it was refused, and name the smallest rule that would allow "
     "it. Do not ask "
     "for a grant before I say so.",
     NULL},
};

static const struct prompt *prompt_find(const char *name)
{
    for (size_t i = 0; name && i < ARRAY_LEN(prompts); i++)
        if (strcmp(prompts[i].name, name) == 0)
            return &prompts[i];
    return NULL;
}

/* What tools/list and prompts/list say of it; NULL: there is none. The caller frees it. */
static json_t *prompt_entry(const char *name)
{
    json_t *all = mcp_entries("prompts"), *one, *found = NULL;
    size_t i;
    json_array_foreach(all, i, one) if (name && strcmp(json_string_value(json_object_get(one, "name")), name) == 0)
        found = json_incref(one);
    json_decref(all);
    return found;
}

/* Names the first argument that is wrong; NULL: all are right. */
static const char *prompt_check(const json_t *entry, json_t *args, char ret[200])
{
    json_t *known = json_object_get(entry, "arguments"), *one, *v;
    const char *name;
    size_t i;
    json_object_foreach(args, name, v)
    {
        bool is_known = false;
        json_array_foreach(known, i, one) is_known |=
            strcmp(json_string_value(json_object_get(one, "name")), name) == 0;
        if (!is_known || !json_is_string(v) || json_string_length(v) > ARGUMENT_MAX ||
            strlen(json_string_value(v)) != json_string_length(v)) {
            (void)snprintf(ret, 200, "%s '%.64s'%s", is_known ? "argument" : "there is no argument", name,
                           is_known ? " must be a string of at most 16 KiB without NUL" : "");
            return ret;
        }
    }
    json_array_foreach(known, i, one)
    {
        name = json_string_value(json_object_get(one, "name"));
        if (json_is_true(json_object_get(one, "required")) && !json_object_get(args, name)) {
            (void)snprintf(ret, 200, "argument '%.64s' is missing", name);
            return ret;
        }
    }
    return NULL;
}

static void prompt_write(const struct prompt *p, const json_t *args, struct buf *out)
{
    for (const char *s = p->text; *s;) {
        size_t n = strcspn(s, "{");
        buf_add(out, s, n);
        s += n;
        size_t name = *s ? strspn(s + 1, "abcdefghijklmnopqrstuvwxyz") : 0;
        if (name == 0 || s[name + 1] != '}') { /* not a place: the texts hold JSON, too */
            buf_add(out, s, *s ? 1 : 0);
            s += *s ? 1 : 0;
            continue;
        }
        char key[32];
        (void)snprintf(key, sizeof key, "%.*s", (int)name, s + 1);
        const char *value = json_string_value(json_object_get(args, key));
        buf_adds(out, value ? value : p->absent ? p->absent : "");
        s += name + 2;
    }
}

bool mcp_own_prompt(struct mcp_call *k, const char *name, json_t *args)
{
    const struct prompt *p = prompt_find(name);
    char why[200];
    if (!p)
        return false;
    json_t *entry = prompt_entry(name);
    if ((args && !json_is_object(args)) || prompt_check(entry, args, why)) {
        mcp_refuse(k, 200, MCP_BAD_PARAMS, NULL, "prompt %s: %s", name,
                   args && !json_is_object(args) ? "arguments must be an object" : why);
    } else {
        _cleanup_buf_ struct buf text = {0};
        prompt_write(p, args, &text);
        mcp_answer(k, json_pack("{s:O,s:[{s:s,s:{s:s,s:o}}]}", "description", json_object_get(entry, "description"),
                                "messages", "role", "user", "content", "type", "text", "text",
                                mcp_text(buf_str(&text), text.n)));
    }
    json_decref(entry);
    return true;
}

/* --- completion ---------------------------------------------------------------------------------------------------- */

struct completion {
    const struct mcp_call *k;
    const char *typed;
    json_t *values;
    size_t total;
};

static void complete_sandbox(void *arg, struct sandbox *b)
{
    struct completion *c = arg;
    if (b->tenant != c->k->who.tenant || b->desc.hidden || !sandbox_is_there(b) ||
        strncmp(b->id, c->typed, strlen(c->typed)) != 0)
        return;
    c->total++;
    if (json_array_size(c->values) < COMPLETED_MAX)
        (void)json_array_append_new(c->values, json_string(b->id));
}

/* Whether params.ref names a prompt or a template of addresses that there is. */
static bool complete_ref_is_known(json_t *ref)
{
    const char *type = json_string_value(json_object_get(ref, "type")),
               *uri = json_string_value(json_object_get(ref, "uri"));
    bool found = false;
    if (type && strcmp(type, "ref/prompt") == 0) {
        json_t *entry = prompt_entry(json_string_value(json_object_get(ref, "name")));
        found = entry != NULL;
        json_decref(entry);
        return found;
    }
    if (!type || !uri || strcmp(type, "ref/resource") != 0)
        return false;
    json_t *all = mcp_entries("resourceTemplates"), *one;
    size_t i;
    json_array_foreach(all, i, one) found |= strcmp(json_string_value(json_object_get(one, "uriTemplate")), uri) == 0;
    json_decref(all);
    return found;
}

void mcp_complete(struct mcp_call *k)
{
    json_t *argument = json_object_get(k->m.params, "argument");
    const char *name = json_string_value(json_object_get(argument, "name")),
               *typed = json_string_value(json_object_get(argument, "value"));
    if (!name || !typed || !complete_ref_is_known(json_object_get(k->m.params, "ref"))) {
        mcp_refuse(
            k, 200, MCP_BAD_PARAMS, NULL,
            "params must have ref ({\"type\":\"ref/prompt\",\"name\"} or {\"type\":\"ref/resource\",\"uri\"}) of "
            "prompts/list or resources/templates/list, and argument ({\"name\",\"value\"})");
        return;
    }
    struct completion c = {.k = k, .typed = typed, .values = json_array()};
    if (strcmp(name, "sandbox") == 0 && !api_scope_lacking(k->who.scopes, SCOPE_SANDBOXES, 0))
        k->api->domain->sandboxes.each(k->api->sandboxes, complete_sandbox, &c);
    bool more = c.total > json_array_size(c.values);
    mcp_answer(k, json_pack("{s:{s:o,s:I,s:b}}", "completion", "values", c.values, "total", (json_int_t)c.total,
                            "hasMore", more));
}
