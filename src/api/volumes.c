/* volumes.c - what the dialects answer alike about volumes. */
#include "api/volumes.h"

#include "api/reply.h"
#include "volumes/volumes.h"

void api_no_volume(struct api_call *c)
{
    /* The same message whether it never existed, was removed or belongs to another tenant. */
    reply_error(c->req, 404, "volume '%.64s' not found", c->param[0]);
}

static void api_volume_on_removed(void *arg, const struct volume *v, const struct state_failure *failure)
{
    struct http_req *r = api_wait_over(arg);
    (void)v;
    if (!r)
        return;
    if (failure)
        reply_state_failure(r, failure);
    else
        reply_empty(r, 204);
}

void api_volume_remove(struct api_call *c)
{
    struct volume *v = c->api->domain->volumes.find(c->api->volumes, c->who.tenant, c->param[0]);
    if (v)
        c->api->domain->volumes.remove(c->api->volumes, v, api_volume_on_removed,
                                       api_wait_for(c->req, sizeof(struct api_wait)));
    else
        api_no_volume(c);
}
