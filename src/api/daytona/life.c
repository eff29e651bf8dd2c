/* life.c - start, stop, pause and delete of a sandbox, and the settings of its life. */
#include <string.h>

#include "api/daytona/daytona.h"
#include "api/reply.h"
#include "base/num.h"

enum { AUTO_STOP_MAX = 7 * 24 * 60, MINUTE_S = 60 };

/* A request that answers with the sandbox once something has been done to it. */
struct changing {
    struct api_wait wait;
    char id[SANDBOX_ID_MAX];
};

static struct changing *daytona_life_wait(struct api_call *c, const struct sandbox *b)
{
    struct changing *w = api_wait_for(c->req, sizeof *w);
    memcpy(w->id, b->id, sizeof w->id);
    return w;
}

static void daytona_life_on_changed(void *arg, const struct state_failure *failure)
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

static void daytona_life_on_set(void *arg, bool ok)
{
    (void)ok; /* what is not stored is in force until the node restarts */
    daytona_life_on_changed(arg, NULL);
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
        sandbox_resume(c->api->sandboxes, b, 0, daytona_life_on_changed, daytona_life_wait(c, b));
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
        sandbox_unload(c->api->sandboxes, b, daytona_life_on_changed, daytona_life_wait(c, b));
    else
        sandbox_pause(c->api->sandboxes, b, false, daytona_life_on_changed, daytona_life_wait(c, b));
}

/* Memory and processes stay. */
void daytona_pause(struct api_call *c)
{
    struct sandbox *b = daytona_sandbox(c);
    if (b && b->state == SANDBOX_FROZEN)
        daytona_answer_sandbox(c->req, b);
    else if (b)
        sandbox_pause(c->api->sandboxes, b, true, daytona_life_on_changed, daytona_life_wait(c, b));
}

/* --- settings ------------------------------------------------------------------------------------------------------- */

void daytona_touch(struct api_call *c)
{
    struct sandbox *b = daytona_sandbox(c);
    if (!b)
        return;
    sandbox_in_use(c->api->sandboxes, b);
    sandbox_unused(c->api->sandboxes, b->id);
    reply_empty(c->req, 201);
}

void daytona_autostop(struct api_call *c)
{
    uint64_t minutes;
    if (!num_u64(c->param[1], &minutes) || minutes > AUTO_STOP_MAX) {
        daytona_error(c->req, 400, NULL, "the interval must be 0 (never) to %d minutes", AUTO_STOP_MAX);
        return;
    }
    struct sandbox *b = daytona_sandbox(c);
    struct state_failure full = {0};
    if (!b)
        return;
    struct sandbox_life life = b->desc.life;
    life.idle_s = (uint32_t)minutes * MINUTE_S;
    life.auto_pause_files = true;
    if (sandbox_life_room(c->api->sandboxes, b, &life, &full))
        sandbox_set_life(c->api->sandboxes, b, &life, daytona_life_on_set, daytona_life_wait(c, b));
    else
        daytona_state_error(c->req, &full);
}

void daytona_public(struct api_call *c)
{
    bool on = strcmp(c->param[1], "true") == 0;
    if (!on && strcmp(c->param[1], "false") != 0) {
        daytona_error(c->req, 400, NULL, "the path must end with true or false");
        return;
    }
    struct sandbox *b = daytona_sandbox(c);
    if (b)
        sandbox_set_ports(c->api->sandboxes, b, &b->desc.ports, on, daytona_life_on_set, daytona_life_wait(c, b));
}
