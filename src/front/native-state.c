/* What happens to a sandbox by itself, in our own words: at its end, when nobody uses it, when somebody does again. */
#include <string.h>

#include "base/cleanup.h"
#include "base/json.h"
#include "front/e2b/e2b.h"
#include "front/native.h"
#include "front/reply.h"
#include "front/state.h"
#include "http/body.h"

enum { IDLE_S_MAX = 31536000 };

int native_read_life(json_t *root, struct box_life *life, struct err *err)
{
    const char *end = NULL;
    int64_t idle = life->idle_s;
    int have = e2b_field_str(root, "onTimeout", &end, err);
    if (have < 0)
        return -1;
    if (have) {
        life->auto_pause = strcmp(end, "pause") == 0 || strcmp(end, "pause-files") == 0;
        life->auto_pause_files = strcmp(end, "pause-files") == 0;
        if (!life->auto_pause && strcmp(end, "kill") != 0)
            return err_set(err, ERR_USAGE, 0, "field 'onTimeout' must be \"kill\", \"pause\" or \"pause-files\"");
    }
    have = e2b_field_int(root, "idleTimeout", 0, IDLE_S_MAX, &idle, err);
    if (have < 0)
        return -1;
    if (have && idle > 0)
        life->auto_resume =
            true; /* unless the next says otherwise: who is paused for want of traffic comes back with it */
    life->idle_s = (uint32_t)idle;
    return e2b_field_bool(root, "autoResume", &life->auto_resume, err) < 0 ? -1 : 0;
}

static void add_life(struct json *j, const struct box *b)
{
    json_obj(j, NULL);
    json_str(j, "state",
             b->state == BOX_RUNNING    ? "running"
             : b->state == BOX_PAUSING  ? "pausing"
             : b->state == BOX_RESUMING ? "resuming"
             : b->state == BOX_FROZEN   ? "frozen"
                                        : "stored");
    json_str(j, "onTimeout", !b->auto_pause ? "kill" : b->auto_pause_files ? "pause-files" : "pause");
    json_bool(j, "autoResume", b->auto_resume);
    json_u64(j, "idleTimeout", b->idle_s);
    json_u64(j, "timeout", b->timeout_s);
    if (b->state == BOX_STORED)
        json_u64(j, "bytes", b->state_bytes);
    if (b->stack[0])
        json_str(j, "stack", b->stack);
    if (b->parent[0])
        json_str(j, "parent", b->parent);
    json_end_obj(j);
}

static void answer_life(struct http_req *r, const struct box *b)
{
    _cleanup_buf_ struct buf out = {0};
    struct json j;
    json_start(&j, &out);
    add_life(&j, b);
    reply_json(r, 200, &out);
}

void native_life(struct api_call *c)
{
    const struct box *b = api_box(c);
    if (b)
        answer_life(c->req, b);
}

struct changing {
    struct api_wait wait;
    char id[SANDBOX_ID_MAX];
};

static void changed(void *arg, bool ok)
{
    struct changing w = *(struct changing *)arg;
    struct http_req *r = api_wait_over(arg);
    if (!r)
        return;
    struct api_call *c = api_call_of(r);
    const struct box *b = box_of(c->front, &c->who, w.id);
    if (!b)
        api_no_box(c);
    else if (!ok)
        reply_not_stored(r, c->front->store);
    else
        answer_life(r, b);
}

static void patch_body(struct http_req *r, json_t *root, unsigned status, const char *error)
{
    static const char *const known[] = {"onTimeout", "autoResume", "idleTimeout", NULL};
    struct api_call *c = api_call_of(r);
    struct err err;
    if (status) {
        reply_error(r, status, "%s", error);
        return;
    }
    struct box *b = api_box(c);
    if (!b)
        return;
    struct box_life life = box_life(b);
    json_t *tmp = NULL, *o = e2b_root(root, &tmp, &err);
    int rc = o && e2b_only_fields(o, "this route", known, &err) == 0 ? native_read_life(o, &life, &err) : -1;
    json_decref(tmp);
    if (rc < 0) {
        reply_error(r, 400, "%s", err.msg);
        return;
    }
    struct state_failure full = {0};
    if (!box_life_room(c->front, b, &life, &full)) {
        e2b_refuse_state(r, &full);
        return;
    }
    struct changing *w = api_wait_for(r, sizeof *w);
    memcpy(w->id, b->id, sizeof w->id);
    box_set_life(c->front, b, &life, changed, w);
}
void native_life_patch(struct api_call *c) { body_json(c->req, 0, patch_body); }

bool native_crowded(struct api_call *c)
{
    struct state_failure why = {0};
    if (!state_crowded(c->front, c->who.tenant, &why))
        return false;
    reply_refuse(c->req, why.status, why.error_code, 1, why.text);
    return true;
}

void native_add_state(struct json *j, struct api_call *c)
{
    struct state_ability a = state_ability(c->front);
    struct state_kept kept = state_kept(c->front, c->who.tenant);
    const struct quota *q = &c->who.tenant->quota;
    const struct config *cfg = c->front->config;
    struct state_size most = state_limit(c->front, c->who.tenant);
    json_obj(j, "state");
    if (a.freeze < 0)
        json_none(j, "freeze"); /* nobody has tried yet */
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
