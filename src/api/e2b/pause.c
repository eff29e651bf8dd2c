/* pause.c - E2B's routes that pause, connect to and resume a sandbox. */
#include <string.h>

#include "api/e2b/e2b.h"
#include "api/reply.h"
#include "api/sandbox-json.h"
#include "base/cleanup.h"
#include "base/fields.h"
#include "base/json.h"
#include "http/body.h"
#include "snapshots/snapshots.h"

enum { CONNECT_S = 300, RESUME_S = 15 };

/* A request that waits for its sandbox. The sandbox may end meanwhile, so it keeps the id and looks the sandbox up again. */
struct waiting {
    struct api_wait wait;
    char id[SANDBOX_ID_MAX];
    uint64_t seconds; /* 0: do not change the timeout */
    unsigned status;  /* HTTP status of success */
    bool auto_pause, set_auto_pause;
};

static struct waiting *e2b_pause_wait_new(struct api_call *c, const struct sandbox *b, uint64_t seconds)
{
    struct waiting *w = api_wait_for(c->req, sizeof *w);
    w->seconds = seconds;
    w->status = 201;
    memcpy(w->id, b->id, SANDBOX_ID_MAX);
    return w;
}

/* --- pause --------------------------------------------------------------------------------------------------------- */

static void e2b_pause_on_paused(void *arg, const struct state_failure *failure)
{
    struct http_req *r = api_wait_over(arg);
    if (!r)
        return;
    if (failure)
        reply_state_failure(r, failure);
    else
        reply_empty(r, 204);
}

static void e2b_pause_on_body(struct http_req *r, json_t *root, unsigned status, const char *error)
{
    struct api_call *c = api_call_of(r);
    bool memory = true;
    struct err err;
    json_t *tmp = NULL;
    if (status) {
        reply_error(r, status, "%s", error);
        return;
    }
    json_t *o = fields_root(root, &tmp, &err);
    int have = o ? field_bool(o, "memory", &memory, &err) : -1;
    json_decref(tmp);
    if (have < 0) {
        reply_error(r, 400, "%s", err.msg);
        return;
    }
    struct sandbox *b = api_sandbox_of(c);
    if (b)
        sandbox_pause(c->api->sandboxes, b, memory, e2b_pause_on_paused, e2b_pause_wait_new(c, b, 0));
}
void e2b_pause(struct api_call *c) { body_json(c->req, 0, e2b_pause_on_body); }

/* --- connect, resume ----------------------------------------------------------------------------------------------- */

/* True if the sandbox is being killed: it answered with 409. */
static bool e2b_connect_refuse_killed(struct api_call *c, const char *id)
{
    const struct sandbox *b = sandbox_find(c->api->sandboxes, id);
    if (!b || b->tenant != c->who.tenant || b->desc.hidden || b->state != SANDBOX_KILLING)
        return false;
    api_note_sandbox(c->req, id);
    reply_error(c->req, 409, "the sandbox is being killed");
    return true;
}

/* The sandbox that the path names. NULL: it has answered. */
static struct sandbox *e2b_connect_find_sandbox(struct api_call *c)
{
    char id[SANDBOX_ID_MAX];
    bool named = api_sandbox_id(c->param[0], strlen(c->param[0]), id);
    return named && e2b_connect_refuse_killed(c, id) ? NULL : api_sandbox_of(c);
}

/* Answers: the sandbox runs and its timeout is set. */
static void e2b_connect_on_timeout_set(void *arg, bool ok)
{
    struct waiting w = *(struct waiting *)arg;
    struct http_req *r = api_wait_over(arg);
    if (!r)
        return;
    struct api_call *c = api_call_of(r);
    struct sandbox *b = ok ? sandbox_of(c->api->sandboxes, &c->who, w.id) : NULL;
    if (!b) {
        if (!e2b_connect_refuse_killed(c, w.id))
            api_no_sandbox(c);
        return;
    }
    _cleanup_buf_ struct buf out = {0};
    struct json j;
    json_start(&j, &out);
    api_add_sandbox(&j, c, b);
    reply_json(r, w.status, &out);
}

static void e2b_connect_on_resumed(void *arg, const struct state_failure *failure)
{
    struct waiting *w = arg;
    if (!w->wait.r || failure) {
        struct http_req *r = api_wait_over(w);
        if (r)
            reply_state_failure(r, failure);
        return;
    }
    struct api_call *c = api_call_of(w->wait.r);
    struct sandbox *b = sandbox_of(c->api->sandboxes, &c->who, w->id);
    if (!b) {
        e2b_connect_on_timeout_set(w, false);
        return;
    }
    if (w->set_auto_pause) {
        struct sandbox_life life = b->desc.life;
        life.auto_pause = w->auto_pause;
        sandbox_set_life(c->api->sandboxes, b, &life, NULL, NULL);
    }
    /* Others may have asked for less while it was under way. */
    sandbox_set_timeout(c->api->sandboxes, b, w->seconds, true, e2b_connect_on_timeout_set, w);
}

static void e2b_connect_on_unloaded(void *arg, const struct state_failure *failure)
{
    struct waiting *w = arg;
    struct api_call *c = w->wait.r ? api_call_of(w->wait.r) : NULL;
    struct sandbox *b = c ? sandbox_of(c->api->sandboxes, &c->who, w->id) : NULL;
    if (failure || !b)
        e2b_connect_on_resumed(w, failure);
    else
        sandbox_resume(c->api->sandboxes, b, w->seconds, e2b_connect_on_resumed, w);
}

/* What a connect and a resume ask for. */
struct wish {
    int64_t seconds;
    bool timeout, memory, auto_pause, auto_given;
};

static int e2b_connect_read_wish(json_t *root, struct wish *ret, struct err *err)
{
    json_t *tmp = NULL, *o = fields_root(root, &tmp, err);
    int have = o ? field_int(o, "timeout", 0, UINT32_MAX, &ret->seconds, err) : -1;
    int given = have < 0 ? -1 : field_bool(o, "autoPause", &ret->auto_pause, err);
    int rc = given < 0 ? -1 : field_bool(o, "memory", &ret->memory, err);
    json_decref(tmp);
    ret->timeout = have > 0;
    ret->auto_given = given > 0;
    return rc < 0 ? -1 : 0;
}

static void e2b_connect_start(struct api_call *c, struct sandbox *b, const struct wish *wish)
{
    uint32_t longest = api_longest_life(c);
    uint64_t s = (uint64_t)wish->seconds;
    if (longest && s > longest && wish->timeout) {
        reply_error(c->req, 400, "field 'timeout' must be at most %u seconds here", longest);
        return;
    }
    if (longest && s > longest)
        s = 0; /* the default exceeds the tenant's limit: do not extend */
    struct sandbox_life life = b->desc.life;
    struct state_failure full = {0};
    life.auto_pause = wish->auto_given ? wish->auto_pause : life.auto_pause;
    if (!sandbox_life_room(c->api->sandboxes, b, &life, &full)) {
        reply_state_failure(c->req, &full);
        return;
    }
    struct waiting *w = e2b_pause_wait_new(c, b, s);
    w->auto_pause = wish->auto_pause;
    w->set_auto_pause = wish->auto_given;
    if (b->state == SANDBOX_RUNNING) {
        w->status = 200;
        sandbox_set_timeout(c->api->sandboxes, b, s, true, e2b_connect_on_timeout_set, w);
    } else if (!wish->memory && b->state == SANDBOX_FROZEN)
        sandbox_unload(c->api->sandboxes, b, e2b_connect_on_unloaded, w);
    else
        sandbox_resume(c->api->sandboxes, b, s, e2b_connect_on_resumed, w);
}

static void e2b_connect_from_body(struct http_req *r, json_t *root, bool v2)
{
    struct api_call *c = api_call_of(r);
    struct wish wish = {.seconds = CONNECT_S, .memory = true};
    struct err err;
    if (e2b_connect_read_wish(root, &wish, &err) < 0) {
        reply_error(r, 400, "%s", err.msg);
        return;
    }
    if (!wish.timeout && !v2) {
        reply_error(r, 400, "field 'timeout' is required: seconds from now");
        return;
    }
    struct sandbox *b = e2b_connect_find_sandbox(c);
    wish.auto_given = false; /* only a resume may set it */
    if (b)
        e2b_connect_start(c, b, &wish);
}
static void e2b_connect_on_body_v1(struct http_req *r, json_t *root, unsigned status, const char *error)
{
    if (status)
        reply_error(r, status, "%s", error);
    else
        e2b_connect_from_body(r, root, false);
}
static void e2b_connect_on_body_v2(struct http_req *r, json_t *root, unsigned status, const char *error)
{
    if (status)
        reply_error(r, status, "%s", error);
    else
        e2b_connect_from_body(r, root, true);
}
void e2b_connect_v1(struct api_call *c) { body_json(c->req, 0, e2b_connect_on_body_v1); }
void e2b_connect_v2(struct api_call *c) { body_json(c->req, 0, e2b_connect_on_body_v2); }

static void e2b_resume_on_body(struct http_req *r, json_t *root, unsigned status, const char *error)
{
    struct api_call *c = api_call_of(r);
    struct wish wish = {.seconds = RESUME_S, .memory = true};
    struct err err;
    if (status) {
        reply_error(r, status, "%s", error);
        return;
    }
    if (e2b_connect_read_wish(root, &wish, &err) < 0) {
        reply_error(r, 400, "%s", err.msg);
        return;
    }
    struct sandbox *b = e2b_connect_find_sandbox(c);
    if (b && b->state == SANDBOX_RUNNING)
        reply_error(r, 409, "the sandbox is running already");
    else if (b)
        e2b_connect_start(c, b, &wish);
}
void e2b_resume(struct api_call *c) { body_json(c->req, 0, e2b_resume_on_body); }
