/* misc.c - health, teams, and routes that are not supported. */
#include <string.h>
#include <strings.h>

#include "api/e2b/e2b.h"
#include "api/reply.h"
#include "base/cleanup.h"
#include "base/json.h"

void e2b_health(struct api_call *c) { reply_empty(c->req, 204); }

void e2b_not_yet(struct api_call *c)
{
    reply_error(c->req, 501, "%s %s is not supported by this version of Hutch", c->route->method, c->route->pattern);
}

/* The CLI asks which teams its login may use and stores the key in the answer. The node keeps only hashes of keys,
 * so it can only return the key of this request. */
void e2b_teams(struct api_call *c)
{
    const char *key = http_field(&c->req->fields, "x-api-key");
    const char *bearer = http_field(&c->req->fields, "authorization");
    if (!key && bearer && strncasecmp(bearer, "Bearer ", 7) == 0)
        key = bearer + 7;
    _cleanup_buf_ struct buf out = {0};
    struct json j;
    json_start(&j, &out);
    json_arr(&j, NULL);
    json_obj(&j, NULL);
    json_str(&j, "teamID", c->who.tenant->id);
    json_str(&j, "name", c->who.tenant->name);
    json_str(&j, "apiKey", key ? key : "");
    json_bool(&j, "isDefault", true);
    json_end_obj(&j);
    json_end_arr(&j);
    reply_json(c->req, 200, &out);
}
