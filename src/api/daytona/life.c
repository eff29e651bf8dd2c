/* life.c - start, stop, pause and delete of a sandbox. */
#include <string.h>

#include "api/daytona/daytona.h"
#include "api/reply.h"

/* A request that answers with the sandbox once something has been done to it. */
struct changing {
    struct api_wait wait;
    char id[SANDBOX_ID_MAX];
};

void *daytona_change_wait(struct api_call *c, const struct sandbox *b)
{
    struct changing *w = api_wait_for(c->req, sizeof *w);
    memcpy(w->id, b->id, sizeof w->id);
    return w;
}

void daytona_change_id(const void *w, char ret[SANDBOX_ID_MAX])
{
    memcpy(ret, ((const struct changing *)w)->id, SANDBOX_ID_MAX);
}

void daytona_on_changed(void *arg, const struct state_failure *failure)
{
    struct changing w = *(struct changing *)arg;
    struct http_req *r = api_wait_over(arg);
    if (!r)
        return;
    struct api_call *c = api_call_of(r);
    struct sandbox *b = failure ? NULL : sandbox_of(c->api->sandboxes, &c->who, w.id);
    if (failure)
        daytona_state_error(r, failure);
    else if (!b)
        daytona_error(r, 404, NULL, "sandbox '%s' not found", w.id);
    else
        daytona_answer_sandbox(r, b);
}

void daytona_on_set(void *arg, bool ok)
{
    (void)ok; /* what is not stored is in force until the node restarts */
    daytona_on_changed(arg, NULL);
}

/* --- the end -------------------------------------------------------------------------------------------------------- */

/* The answer is written while the sandbox is still there. */
struct ending {
    struct api_wait wait;
    struct buf out;
};

static void daytona_life_on_killed(void *arg, bool ok)
{
    struct buf out = ((struct ending *)arg)->out;
    struct http_req *r = api_wait_over(arg);
    if (r && ok)
        reply_json(r, 200, &out);
    else if (r)
        daytona_error(r, 500, NULL, "the sandbox could not be ended now; the node keeps trying");
    buf_done(&out);
}

static void daytona_life_end(struct api_call *c, struct sandbox *b)
{
    struct ending *w = api_wait_for(c->req, sizeof *w);
    struct json j;
    json_start(&j, &w->out);
    daytona_add_sandbox(&j, c, b, "destroyed");
    sandbox_kill(c->api->sandboxes, b, "api", daytona_life_on_killed, w);
}

void daytona_kill(struct api_call *c)
{
    struct sandbox *b = daytona_sandbox(c);
    if (b)
        daytona_life_end(c, b);
}

/* --- start and stop ------------------------------------------------------------------------------------------------- */

void daytona_start(struct api_call *c)
{
    struct sandbox *b = daytona_sandbox(c);
    if (b && b->state == SANDBOX_RUNNING)
        daytona_answer_sandbox(c->req, b);
    else if (b)
        sandbox_resume(c->api->sandboxes, b, 0, daytona_on_changed, daytona_change_wait(c, b));
}

/* A stopped sandbox is files: its processes end. An ephemeral one is deleted. */
void daytona_stop(struct api_call *c)
{
    struct sandbox *b = daytona_sandbox(c);
    if (!b)
        return;
    if (sandbox_desc_label(&b->desc, DAYTONA_EPHEMERAL))
        daytona_life_end(c, b);
    else if (b->state == SANDBOX_STORED)
        daytona_answer_sandbox(c->req, b);
    else if (b->state == SANDBOX_FROZEN)
        sandbox_unload(c->api->sandboxes, b, daytona_on_changed, daytona_change_wait(c, b));
    else
        sandbox_pause(c->api->sandboxes, b, false, daytona_on_changed, daytona_change_wait(c, b));
}

/* Memory and processes stay. */
void daytona_pause(struct api_call *c)
{
    struct sandbox *b = daytona_sandbox(c);
    if (b && b->state == SANDBOX_FROZEN)
        daytona_answer_sandbox(c->req, b);
    else if (b)
        sandbox_pause(c->api->sandboxes, b, true, daytona_on_changed, daytona_change_wait(c, b));
}
