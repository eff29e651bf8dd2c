/* native-state.c - what happens to a sandbox automatically: at its timeout, when it is idle, when traffic comes
 * again. */
#include <string.h>

#include "api/native/native.h"
#include "api/reply.h"
#include "base/cleanup.h"
#include "base/fields.h"
#include "base/json.h"
#include "http/body.h"
#include "snapshots/snapshots.h"

enum { IDLE_S_MAX = 31536000 };

int native_read_life(json_t *root, struct sandbox_life *life, struct err *err)
{
    const char *end = NULL;
    int64_t idle = life->idle_s;
    int have = field_str(root, "onTimeout", &end, err);
    if (have < 0)
        return -1;
    if (have) {
        life->auto_pause = strcmp(end, "pause") == 0 || strcmp(end, "pause-files") == 0;
        life->auto_pause_files = strcmp(end, "pause-files") == 0;
        if (!life->auto_pause && strcmp(end, "kill") != 0)
            return err_set(err, ERR_USAGE, 0, "field 'onTimeout' must be \"kill\", \"pause\" or \"pause-files\"");
    }
    have = field_int(root, "idleTimeout", 0, IDLE_S_MAX, &idle, err);
    if (have < 0)
        return -1;
    if (have && idle > 0)
        life->auto_resume =
            true; /* default: a sandbox paused for lack of traffic resumes with it; autoResume overrides */
    life->idle_s = (uint32_t)idle;
    return field_bool(root, "autoResume", &life->auto_resume, err) < 0 ? -1 : 0;
}

static void native_life_add(struct json *j, const struct sandbox *b)
{
    json_obj(j, NULL);
    json_str(j, "state",
             b->state == SANDBOX_RUNNING  ? "running"
             : sandbox_is_pausing(b)      ? "pausing"
             : sandbox_is_resuming(b)     ? "resuming"
             : b->state == SANDBOX_FROZEN ? "frozen"
                                          : "stored");
    json_str(j, "onTimeout",
             !b->desc.life.auto_pause        ? "kill"
             : b->desc.life.auto_pause_files ? "pause-files"
                                             : "pause");
    json_bool(j, "autoResume", b->desc.life.auto_resume);
    json_u64(j, "idleTimeout", b->desc.life.idle_s);
    json_u64(j, "timeout", b->desc.timeout_s);
    if (b->state == SANDBOX_STORED)
        json_u64(j, "bytes", b->state_bytes);
    if (b->desc.stack[0])
        json_str(j, "stack", b->desc.stack);
    if (b->desc.parent[0])
        json_str(j, "parent", b->desc.parent);
    json_end_obj(j);
}

static void native_life_answer(struct http_req *r, const struct sandbox *b)
{
    _cleanup_buf_ struct buf out = {0};
    struct json j;
    json_start(&j, &out);
    native_life_add(&j, b);
    reply_json(r, 200, &out);
}

void native_life(struct api_call *c)
{
    const struct sandbox *b = api_sandbox_of(c);
    if (b)
        native_life_answer(c->req, b);
}

struct changing {
    struct api_wait wait;
    char id[SANDBOX_ID_MAX];
};

static void native_life_on_changed(void *arg, bool ok)
{
    struct changing w = *(struct changing *)arg;
    struct http_req *r = api_wait_over(arg);
    if (!r)
        return;
    struct api_call *c = api_call_of(r);
    const struct sandbox *b = sandbox_of(c->api->sandboxes, &c->who, w.id);
    if (!b)
        api_no_sandbox(c);
    else if (!ok)
        reply_not_stored(r, c->api->db);
    else
        native_life_answer(r, b);
}

static void native_life_on_patch_body(struct http_req *r, json_t *root, unsigned status, const char *error)
{
    static const char *const known[] = {"onTimeout", "autoResume", "idleTimeout", NULL};
    struct api_call *c = api_call_of(r);
    struct err err;
    if (status) {
        reply_error(r, status, "%s", error);
        return;
    }
    struct sandbox *b = api_sandbox_of(c);
    if (!b)
        return;
    struct sandbox_life life = b->desc.life;
    json_t *tmp = NULL, *o = fields_root(root, &tmp, &err);
    int rc = o && fields_check_known(o, "this route", known, &err) == 0 ? native_read_life(o, &life, &err) : -1;
    json_decref(tmp);
    if (rc < 0) {
        reply_error(r, 400, "%s", err.msg);
        return;
    }
    struct state_failure full = {0};
    if (!sandbox_life_room(c->api->sandboxes, b, &life, &full)) {
        reply_state_failure(r, &full);
        return;
    }
    struct changing *w = api_wait_for(r, sizeof *w);
    memcpy(w->id, b->id, sizeof w->id);
    sandbox_set_life(c->api->sandboxes, b, &life, native_life_on_changed, w);
}
void native_life_patch(struct api_call *c) { body_json(c->req, 0, native_life_on_patch_body); }

bool native_crowded(struct api_call *c)
{
    struct state_failure why = {0};
    if (!state_crowded(c->api->stacks, c->who.tenant, &why))
        return false;
    reply_refuse(c->req, why.status, why.error_code, 1, why.text);
    return true;
}

void native_add_state(struct json *j, struct api_call *c)
{
    struct state_ability a = state_ability(c->api->sandboxes);
    struct state_kept kept = state_kept(c->api->stacks, c->who.tenant);
    const struct quota *q = &c->who.tenant->quota;
    const struct config *cfg = c->api->config;
    struct state_size most = state_limit(c->api->stacks, c->who.tenant);
    json_obj(j, "state");
    if (a.freeze < 0)
        json_none(j, "freeze"); /* not tried yet */
    else
        json_bool(j, "freeze", a.freeze);
    if (a.driver[0]) {
        json_str(j, "driver", a.driver);
        json_str(j, "quota", a.quota[0] ? a.quota : "none");
    }
    json_bool(j, "memoryInSnapshots", false);
    json_u64(j, "kept", kept.count);
    json_u64(j, "keptBytes", kept.size.bytes);
    json_u64(j, "maxKept", q->snapshots ? q->snapshots : cfg->state_snapshots);
    json_u64(j, "maxKeptBytes", most.bytes);
    json_u64(j, "keptEntries", kept.size.entries);
    json_u64(j, "maxKeptEntries", most.entries);
    json_end_obj(j);
}
