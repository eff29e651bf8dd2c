/* fixtures.c - the entries that the conformance suite calls, in the place of src/api/mcp/more.c: a second set beside the product's
 * own, for the program hutch-node-mcp alone. What the suite checks of an answer is its form; the words are ours. */
#include <stdio.h>
#include <string.h>

#include "api/mcp/mcp.h"
#include "base/cleanup.h"
#include "base/mem.h"
#include "mcp/fixtures-json.h"

/* A picture of one white pixel, and a sound of no samples. */
#define PNG "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAEhQGAhKmMIQAAAABJRU5ErkJggg=="
#define WAV "UklGRiQAAABXQVZFZm10IBAAAAABAAEAQB8AAIA+AAACABAAZGF0YQAAAAA="

static json_t *fixture_text(const char *text) { return json_pack("{s:s,s:s}", "type", "text", "text", text); }
static json_t *fixture_image(void)
{
    return json_pack("{s:s,s:s,s:s}", "type", "image", "data", PNG, "mimeType", "image/png");
}
static json_t *fixture_resource(const char *uri)
{
    return json_pack("{s:s,s:{s:s,s:s,s:s}}", "type", "resource", "resource", "uri", uri, "mimeType", "text/plain",
                     "text", "This is an embedded resource.");
}
static void fixture_done(struct mcp_call *k, json_t *one) { mcp_done_with(k, json_pack("[o]", one), false); }

/* --- content --------------------------------------------------------------------------------------------------------- */

static void fixture_simple_text(struct mcp_call *k) { fixture_done(k, fixture_text("This is a simple text.")); }
static void fixture_image_content(struct mcp_call *k) { fixture_done(k, fixture_image()); }
static void fixture_audio_content(struct mcp_call *k)
{
    fixture_done(k, json_pack("{s:s,s:s,s:s}", "type", "audio", "data", WAV, "mimeType", "audio/wav"));
}
static void fixture_embedded(struct mcp_call *k) { fixture_done(k, fixture_resource("test://embedded-resource")); }
static void fixture_mixed(struct mcp_call *k)
{
    mcp_done_with(k,
                  json_pack("[o,o,o]", fixture_text("Several kinds of content:"), fixture_image(),
                            fixture_resource("test://mixed-content-resource")),
                  false);
}
static void fixture_error(struct mcp_call *k) { mcp_fail(k, "This tool always fails."); }

static void fixture_log(struct mcp_call *k)
{
    for (int i = 1; i <= 3; i++) {
        char text[40];
        (void)snprintf(text, sizeof text, "step %d of 3", i);
        mcp_notify(k, "notifications/message", json_pack("{s:s,s:s}", "level", "info", "data", text));
    }
    fixture_simple_text(k);
}
/* Modern: only callers that name a level get lines. */
static void fixture_log_if_wanted(struct mcp_call *k)
{
    if (json_object_get(k->m.meta, "io.modelcontextprotocol/logLevel"))
        fixture_log(k);
    else
        fixture_simple_text(k);
}
static void fixture_progress(struct mcp_call *k)
{
    mcp_progress(k, 0, 100, "begun");
    mcp_progress(k, 50, 100, "half");
    mcp_progress(k, 100, 100, "done");
    fixture_simple_text(k);
}

/* --- requests of the legacy era -------------------------------------------------------------------------------------- */

static void fixture_on_told(struct mcp_call *k, json_t *result)
{
    _cleanup_free_ char *text = result ? json_dumps(result, JSON_COMPACT) : NULL;
    _cleanup_free_ char *said = xasprintf("The client answered: %s", text ? text : "an error");
    fixture_done(k, fixture_text(said));
}
static json_t *fixture_string(const char *description)
{
    return json_pack("{s:s,s:s}", "type", "string", "description", description);
}
static json_t *fixture_messages(const char *text, int tokens)
{
    return json_pack("{s:[{s:s,s:o}],s:i}", "messages", "role", "user", "content", fixture_text(text), "maxTokens",
                     tokens);
}
static void fixture_sampling(struct mcp_call *k)
{
    mcp_ask(k, "sampling/createMessage", fixture_messages(mcp_arg(k, "prompt"), 100), fixture_on_told);
}
static void fixture_elicitation(struct mcp_call *k)
{
    mcp_ask(
        k, "elicitation/create",
        mcp_form(mcp_arg(k, "message"),
                 json_pack("{s:o,s:o}", "username", fixture_string("your name"), "email", fixture_string("address")),
                 json_pack("[s,s]", "username", "email")),
        fixture_on_told);
}
static void fixture_defaults(struct mcp_call *k)
{
    json_t *p = json_pack("{s:{s:s,s:s},s:{s:s,s:i},s:{s:s,s:f},s:{s:s,s:[s,s,s],s:s},s:{s:s,s:b}}", "name", "type",
                          "string", "default", "John Doe", "age", "type", "integer", "default", 30, "score", "type",
                          "number", "default", 95.5, "status", "type", "string", "enum", "active", "inactive",
                          "pending", "default", "active", "verified", "type", "boolean", "default", 1);
    mcp_ask(k, "elicitation/create", mcp_form("Is this right?", p, json_array()), fixture_on_told);
}
static json_t *fixture_titled(const char *key)
{
    return json_pack("{s:[{s:s,s:s},{s:s,s:s},{s:s,s:s}]}", key, "const", "value1", "title", "First", "const", "value2",
                     "title", "Second", "const", "value3", "title", "Third");
}
static void fixture_enums(struct mcp_call *k)
{
    json_t *single = fixture_titled("oneOf");
    (void)json_object_set_new(single, "type", json_string("string"));
    json_t *p =
        json_pack("{s:{s:s,s:[s,s,s]},s:o,s:{s:s,s:[s,s,s],s:[s,s,s]},s:{s:s,s:{s:s,s:[s,s,s]}},s:{s:s,s:o}}",
                  "untitledSingle", "type", "string", "enum", "option1", "option2", "option3", "titledSingle", single,
                  "legacyEnum", "type", "string", "enum", "opt1", "opt2", "opt3", "enumNames", "One", "Two", "Three",
                  "untitledMulti", "type", "array", "items", "type", "string", "enum", "option1", "option2", "option3",
                  "titledMulti", "type", "array", "items", fixture_titled("anyOf"));
    mcp_ask(k, "elicitation/create", mcp_form("Choose.", p, json_array()), fixture_on_told);
}

/* --- what the modern era asks for ------------------------------------------------------------------------------------ */

static json_t *fixture_ask(const char *method, json_t *params)
{
    return json_pack("{s:s,s:o}", "method", method, "params", params);
}
static json_t *fixture_ask_string(const char *message, const char *key)
{
    return fixture_ask("elicitation/create",
                       mcp_form(message, json_pack("{s:{s:s}}", key, "type", "string"), json_pack("[s]", key)));
}
static json_t *fixture_ask_ok(void)
{
    return fixture_ask("elicitation/create", mcp_form("Please confirm", json_pack("{s:{s:s}}", "ok", "type", "boolean"),
                                                      json_pack("[s]", "ok")));
}
/* The string that a person entered, or NULL: it was no answer of that form. */
static const char *fixture_entered(const struct mcp_call *k, const char *key, const char *member)
{
    return json_string_value(json_object_get(json_object_get(mcp_input(k, key), "content"), member));
}

static void fixture_need_name(struct mcp_call *k)
{
    const char *name = fixture_entered(k, "user_name", "name");
    _cleanup_free_ char *text = xasprintf("Hello, %s!", name ? name : "");
    if (name)
        fixture_done(k, fixture_text(text));
    else
        mcp_require(k, json_pack("{s:o}", "user_name", fixture_ask_string("What is your name?", "name")), "name");
}
static void fixture_need_sampling(struct mcp_call *k)
{
    json_t *said = json_object_get(json_object_get(mcp_input(k, "capital_question"), "content"), "text");
    if (json_is_string(said))
        fixture_done(k, fixture_text(json_string_value(said)));
    else
        mcp_require(
            k,
            json_pack("{s:o}", "capital_question",
                      fixture_ask("sampling/createMessage", fixture_messages("What is the capital of France?", 100))),
            "capital");
}
static void fixture_need_roots(struct mcp_call *k)
{
    json_t *roots = json_object_get(mcp_input(k, "client_roots"), "roots");
    char text[40];
    (void)snprintf(text, sizeof text, "%zu roots", json_array_size(roots));
    if (json_is_array(roots))
        fixture_done(k, fixture_text(text));
    else
        mcp_require(k, json_pack("{s:o}", "client_roots", fixture_ask("roots/list", json_object())), "roots");
}
static void fixture_need_state(struct mcp_call *k)
{
    if (k->state[0] && mcp_input(k, "confirm"))
        fixture_done(k, fixture_text("state-ok"));
    else
        mcp_require(k, json_pack("{s:o}", "confirm", fixture_ask_ok()), "first");
}
static void fixture_need_several(struct mcp_call *k)
{
    if (k->state[0] && mcp_input(k, "user_name") && mcp_input(k, "greeting") && mcp_input(k, "client_roots"))
        fixture_simple_text(k);
    else
        mcp_require(k,
                    json_pack("{s:o,s:o,s:o}", "user_name", fixture_ask_string("What is your name?", "name"),
                              "greeting",
                              fixture_ask("sampling/createMessage", fixture_messages("Generate a greeting", 50)),
                              "client_roots", fixture_ask("roots/list", json_object())),
                    "several");
}
static void fixture_need_rounds(struct mcp_call *k)
{
    if (strcmp(k->state, "two") == 0 && mcp_input(k, "step2"))
        fixture_simple_text(k);
    else if (k->state[0] && mcp_input(k, "step1"))
        mcp_require(k, json_pack("{s:o}", "step2", fixture_ask_string("Step 2: your favorite color?", "color")), "two");
    else
        mcp_require(k, json_pack("{s:o}", "step1", fixture_ask_string("Step 1: your name?", "name")), "one");
}
static void fixture_refuse_lacking(struct mcp_call *k, const char *capability)
{
    mcp_refuse(k, k->m.era == MCP_MODERN ? 400 : 200, MCP_NO_CAPABILITY,
               json_pack("{s:{s:{}}}", "requiredCapabilities", capability),
               "this tool needs a client with the capability %s", capability);
}

static void fixture_need_allowed(struct mcp_call *k)
{
    json_t *requests = json_object();
    if (mcp_can(k, "elicitation"))
        (void)json_object_set_new(requests, "user_name", fixture_ask_string("What is your name?", "name"));
    if (mcp_can(k, "sampling"))
        (void)json_object_set_new(requests, "greeting",
                                  fixture_ask("sampling/createMessage", fixture_messages("Generate a greeting", 50)));
    if (json_object_size(requests)) {
        mcp_require(k, requests, "allowed");
        return;
    }
    json_decref(requests);
    fixture_refuse_lacking(k, "elicitation");
}
static void fixture_missing_capability(struct mcp_call *k)
{
    if (mcp_can(k, "sampling"))
        fixture_simple_text(k);
    else
        fixture_refuse_lacking(k, "sampling");
}
static void fixture_streaming(struct mcp_call *k)
{
    mcp_keep_alive(k);
    fixture_need_name(k);
}
static void fixture_change_tools(struct mcp_call *k)
{
    mcp_tell_listeners(k->who.tenant, "toolsListChanged", "notifications/tools/list_changed");
    fixture_simple_text(k);
}
static void fixture_change_prompts(struct mcp_call *k)
{
    mcp_tell_listeners(k->who.tenant, "promptsListChanged", "notifications/prompts/list_changed");
    fixture_simple_text(k);
}

/* --- resources and prompts ------------------------------------------------------------------------------------------- */

static bool fixture_read(struct mcp_call *k, const char *uri)
{
    static const char begin[] = "test://template/", end[] = "/data";
    size_t n = strlen(uri), b = sizeof begin - 1, e = sizeof end - 1;
    json_t *one = NULL;
    if (strcmp(uri, "test://static-text") == 0 || strcmp(uri, "test://watched-resource") == 0) {
        one = json_pack("{s:s,s:s,s:s}", "uri", uri, "mimeType", "text/plain", "text", "A static text.");
    } else if (strcmp(uri, "test://static-binary") == 0) {
        one = json_pack("{s:s,s:s,s:s}", "uri", uri, "mimeType", "image/png", "blob", PNG);
    } else if (n > b + e && strncmp(uri, begin, b) == 0 && strcmp(uri + n - e, end) == 0) {
        _cleanup_free_ char *text = xasprintf("{\"id\":\"%.*s\"}", (int)(n - b - e), uri + b);
        one = json_pack("{s:s,s:s,s:s}", "uri", uri, "mimeType", "application/json", "text", text);
    }
    if (one)
        mcp_answer(k, json_pack("{s:[o],s:i,s:s}", "contents", one, "ttlMs", 0, "cacheScope", "private"));
    return one;
}

static json_t *fixture_message(json_t *content) { return json_pack("{s:s,s:o}", "role", "user", "content", content); }

static bool fixture_prompt(struct mcp_call *k, const char *name, json_t *args)
{
    const char *one = json_string_value(json_object_get(args, "arg1")),
               *two = json_string_value(json_object_get(args, "arg2")),
               *uri = json_string_value(json_object_get(args, "resourceUri"));
    json_t *messages = NULL;
    if (strcmp(name, "test_input_required_result_prompt") == 0 && !fixture_entered(k, "user_context", "context")) {
        mcp_require(k, json_pack("{s:o}", "user_context", fixture_ask_string("Which context?", "context")), "context");
        return true;
    }
    if (strcmp(name, "test_simple_prompt") == 0 || strcmp(name, "test_input_required_result_prompt") == 0) {
        messages = json_pack("[o]", fixture_message(fixture_text("A simple prompt.")));
    } else if (strcmp(name, "test_prompt_with_arguments") == 0) {
        _cleanup_free_ char *text = xasprintf("arg1=%s, arg2=%s", one ? one : "", two ? two : "");
        messages = json_pack("[o]", fixture_message(fixture_text(text)));
    } else if (strcmp(name, "test_prompt_with_embedded_resource") == 0) {
        messages = json_pack("[o,o]", fixture_message(fixture_resource(uri ? uri : "test://static-text")),
                             fixture_message(fixture_text("Look at it.")));
    } else if (strcmp(name, "test_prompt_with_image") == 0) {
        messages = json_pack("[o,o]", fixture_message(fixture_image()), fixture_message(fixture_text("Look at it.")));
    }
    if (messages)
        mcp_answer(k, json_pack("{s:o}", "messages", messages));
    return messages;
}

static const struct mcp_tool tools[] = {
    {"test_simple_text", fixture_simple_text, 0, false},
    {"test_image_content", fixture_image_content, 0, false},
    {"test_audio_content", fixture_audio_content, 0, false},
    {"test_embedded_resource", fixture_embedded, 0, false},
    {"test_multiple_content_types", fixture_mixed, 0, false},
    {"test_tool_with_logging", fixture_log, 0, false},
    {"test_tool_with_progress", fixture_progress, 0, false},
    {"test_error_handling", fixture_error, 0, false},
    {"test_sampling", fixture_sampling, 0, false},
    {"test_elicitation", fixture_elicitation, 0, false},
    {"test_elicitation_sep1034_defaults", fixture_defaults, 0, false},
    {"test_elicitation_sep1330_enums", fixture_enums, 0, false},
    {"test_missing_capability", fixture_missing_capability, 0, false},
    {"test_streaming_elicitation", fixture_streaming, 0, false},
    {"test_logging_tool", fixture_log_if_wanted, 0, false},
    {"test_trigger_tool_change", fixture_change_tools, 0, false},
    {"test_trigger_prompt_change", fixture_change_prompts, 0, false},
    {"test_input_required_result_elicitation", fixture_need_name, 0, false},
    {"test_input_required_result_sampling", fixture_need_sampling, 0, false},
    {"test_input_required_result_list_roots", fixture_need_roots, 0, false},
    {"test_input_required_result_request_state", fixture_need_state, 0, false},
    {"test_input_required_result_multiple_inputs", fixture_need_several, 0, false},
    {"test_input_required_result_multi_round", fixture_need_rounds, 0, false},
    {"test_input_required_result_tampered_state", fixture_need_state, 0, false},
    {"test_input_required_result_capabilities", fixture_need_allowed, 0, false},
};
static const char *const methods[] = {"logging/setLevel", "resources/subscribe", "resources/unsubscribe", NULL};
static const char *const capabilities[] = {"logging", NULL};

const struct mcp_set mcp_more = {.json = mcp_fixtures_json,
                                 .json_size = &mcp_fixtures_json_size,
                                 .tools = tools,
                                 .ntools = sizeof tools / sizeof *tools,
                                 .read = fixture_read,
                                 .prompt = fixture_prompt,
                                 .methods = methods,
                                 .capabilities = capabilities};
