/* sandbox-json.h - the JSON of one sandbox as create and connect answer it, in the words of E2B's API, which Hutch's own API
 * shares; and the members of it that other answers about a sandbox have, too.
 */
#ifndef HUTCH_API_SANDBOX_JSON_H
#define HUTCH_API_SANDBOX_JSON_H

#include "api/api.h"

#define API_ENVD_VERSION "0.6.13" /* of E2B's agent whose protocol we speak */
#define API_CLIENT_ID    "hutch"

struct json;
void api_add_sandbox(struct json *j, const struct api_call *c, const struct sandbox *b);
void api_add_sandbox_as(struct json *j, const char *key, const struct api_call *c, const struct sandbox *b);
/* "hutch": tier, what a paused sandbox costs, its parent, how refusals are worded. */
void api_add_isolation(struct json *j, const struct sandbox *b);
/* An absent or empty value becomes null. */
void api_add_or_null(struct json *j, const char *key, const char *value);
/* The name of the sandbox's template, or the template's id. */
const char *api_template_alias(const struct api_call *c, const struct sandbox *b);

#endif
