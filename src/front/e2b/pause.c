/* Pause, connect, resume: the lives of sandboxes in E2B's words. */
#include <string.h>

#include "base/cleanup.h"
#include "base/json.h"
#include "front/e2b/e2b.h"
#include "front/reply.h"
#include "front/state.h"
#include "http/body.h"

enum { CONNECT_S = 300, RESUME_S = 15 };

/* A request that waits for its sandbox. The box may be gone by then: it is looked up. */
struct waiting {
    struct api_wait wait;
    char id[SANDBOX_ID_MAX];
    uint64_t seconds; /* 0: as it was */
    unsigned status;  /* of success */
    bool auto_pause, set_auto_pause;
};

static struct waiting *wait_for(struct api_call *c, const struct box *b, uint64_t seconds)
{
    struct waiting *w = api_wait_for(c->req, sizeof *w);
    w->seconds = seconds;
    w->status = 201;
    memcpy(w->id, b->id, SANDBOX_ID_MAX);
    return w;
}

void e2b_refuse_state(struct http_req *r, const struct state_failure *failure)
{
    reply_refuse(r, failure->status, failure->error_code, failure->status == 503 ? 1 : 0, failure->text);
}

/* --- pause --------------------------------------------------------------------------------------------------------- */

static void paused(void *arg, const struct state_failure *failure)
{
    struct http_req *r = api_wait_over(arg);
    if (!r)
        return;
    if (failure)
        e2b_refuse_state(r, failure);
    else
        reply_empty(r, 204);
}

static void pause_body(struct http_req *r, json_t *root, unsigned status, const char *error)
{
    struct api_call *c = api_call_of(r);
    bool memory = true;
    struct err err;
    json_t *tmp = NULL;
    if (status) {
        reply_error(r, status, "%s", error);
        return;
    }
    json_t *o = e2b_root(root, &tmp, &err);
    int have = o ? e2b_field_bool(o, "memory", &memory, &err) : -1;
    json_decref(tmp);
    if (have < 0) {
        reply_error(r, 400, "%s", err.msg);
        return;
    }
    struct box *b = api_box(c);
    if (b)
        box_pause(c->front, b, memory, paused, wait_for(c, b, 0));
}
void e2b_pause(struct api_call *c) { body_json(c->req, 0, pause_body); }

/* --- connect, resume ----------------------------------------------------------------------------------------------- */

/* True, and answered: it is there, but not for long. */
static bool being_killed(struct api_call *c, const char *id)
{
    const struct box *b = box_find(c->front, id);
    if (!b || b->tenant != c->who.tenant || b->hidden || b->state != BOX_KILLING)
        return false;
    api_note_sandbox(c->req, id);
    reply_error(c->req, 409, "the sandbox is being killed");
    return true;
}

/* The one that the path names. NULL: answered. */
static struct box *named_box(struct api_call *c)
{
    char id[SANDBOX_ID_MAX];
    bool named = api_sandbox_id(c->param[0], strlen(c->param[0]), id);
    return named && being_killed(c, id) ? NULL : api_box(c);
}

/* It runs, and its end is set. */
static void connected(void *arg, bool ok)
{
    struct waiting w = *(struct waiting *)arg;
    struct http_req *r = api_wait_over(arg);
    if (!r)
        return;
    struct api_call *c = api_call_of(r);
    struct box *b = ok ? box_of(c->front, &c->who, w.id) : NULL;
    if (!b) {
        if (!being_killed(c, w.id))
            api_no_box(c);
        return;
    }
    _cleanup_buf_ struct buf out = {0};
    struct json j;
    json_start(&j, &out);
    e2b_add_sandbox(&j, c, b);
    reply_json(r, w.status, &out);
}

static void resumed(void *arg, const struct state_failure *failure)
{
    struct waiting *w = arg;
    if (!w->wait.r || failure) {
        struct http_req *r = api_wait_over(w);
        if (r)
            e2b_refuse_state(r, failure);
        return;
    }
    struct api_call *c = api_call_of(w->wait.r);
    struct box *b = box_of(c->front, &c->who, w->id);
    if (!b) {
        connected(w, false);
        return;
    }
    if (w->set_auto_pause) {
        struct box_life life = box_life(b);
        life.auto_pause = w->auto_pause;
        box_set_life(c->front, b, &life, NULL, NULL);
    }
    /* Others may have asked for less while it was under way. */
    box_set_timeout(c->front, b, w->seconds, true, connected, w);
}

static void unloaded(void *arg, const struct state_failure *failure)
{
    struct waiting *w = arg;
    struct api_call *c = w->wait.r ? api_call_of(w->wait.r) : NULL;
    struct box *b = c ? box_of(c->front, &c->who, w->id) : NULL;
    if (failure || !b)
        resumed(w, failure);
    else
        box_resume(c->front, b, w->seconds, resumed, w);
}

/* What a connect and a resume ask for. */
struct wish {
    int64_t seconds;
    bool timeout, memory, auto_pause, auto_given;
};

static int read_wish(json_t *root, struct wish *ret, struct err *err)
{
    json_t *tmp = NULL, *o = e2b_root(root, &tmp, err);
    int have = o ? e2b_field_int(o, "timeout", 0, UINT32_MAX, &ret->seconds, err) : -1;
    int given = have < 0 ? -1 : e2b_field_bool(o, "autoPause", &ret->auto_pause, err);
    int rc = given < 0 ? -1 : e2b_field_bool(o, "memory", &ret->memory, err);
    json_decref(tmp);
    ret->timeout = have > 0;
    ret->auto_given = given > 0;
    return rc < 0 ? -1 : 0;
}

static void go_on(struct api_call *c, struct box *b, const struct wish *wish)
{
    uint32_t longest = e2b_longest_life(c);
    uint64_t s = (uint64_t)wish->seconds;
    if (longest && s > longest && wish->timeout) {
        reply_error(c->req, 400, "field 'timeout' must be at most %u seconds here", longest);
        return;
    }
    if (longest && s > longest)
        s = 0; /* the default is above this tenant's limit: nothing is prolonged */
    struct box_life life = box_life(b);
    struct state_failure full = {0};
    life.auto_pause = wish->auto_given ? wish->auto_pause : life.auto_pause;
    if (!box_life_room(c->front, b, &life, &full)) {
        e2b_refuse_state(c->req, &full);
        return;
    }
    struct waiting *w = wait_for(c, b, s);
    w->auto_pause = wish->auto_pause;
    w->set_auto_pause = wish->auto_given;
    if (b->state == BOX_RUNNING) {
        w->status = 200;
        box_set_timeout(c->front, b, s, true, connected, w);
    } else if (!wish->memory && b->state == BOX_FROZEN)
        box_unload(c->front, b, unloaded, w);
    else
        box_resume(c->front, b, s, resumed, w);
}

static void connect_body(struct http_req *r, json_t *root, bool v2)
{
    struct api_call *c = api_call_of(r);
    struct wish wish = {.seconds = CONNECT_S, .memory = true};
    struct err err;
    if (read_wish(root, &wish, &err) < 0) {
        reply_error(r, 400, "%s", err.msg);
        return;
    }
    if (!wish.timeout && !v2) {
        reply_error(r, 400, "field 'timeout' is required: seconds from now");
        return;
    }
    struct box *b = named_box(c);
    wish.auto_given = false; /* of a resume only */
    if (b)
        go_on(c, b, &wish);
}
static void connect_v1(struct http_req *r, json_t *root, unsigned status, const char *error)
{
    if (status)
        reply_error(r, status, "%s", error);
    else
        connect_body(r, root, false);
}
static void connect_v2(struct http_req *r, json_t *root, unsigned status, const char *error)
{
    if (status)
        reply_error(r, status, "%s", error);
    else
        connect_body(r, root, true);
}
void e2b_connect_v1(struct api_call *c) { body_json(c->req, 0, connect_v1); }
void e2b_connect_v2(struct api_call *c) { body_json(c->req, 0, connect_v2); }

static void resume_body(struct http_req *r, json_t *root, unsigned status, const char *error)
{
    struct api_call *c = api_call_of(r);
    struct wish wish = {.seconds = RESUME_S, .memory = true};
    struct err err;
    if (status) {
        reply_error(r, status, "%s", error);
        return;
    }
    if (read_wish(root, &wish, &err) < 0) {
        reply_error(r, 400, "%s", err.msg);
        return;
    }
    struct box *b = named_box(c);
    if (b && b->state == BOX_RUNNING)
        reply_error(r, 409, "the sandbox is running already");
    else if (b)
        go_on(c, b, &wish);
}
void e2b_resume(struct api_call *c) { body_json(c->req, 0, resume_body); }
