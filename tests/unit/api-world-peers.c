/* api-world-peers.c - the processes beside front, as their clients see them: a keeper and a layer store that do at once what
 * they are asked, or fail as the test says, an egress that answers what the test says, and ids that a test can spell. */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "api-world.h"
#include "base/base64.h"
#include "base/cleanup.h"
#include "base/mem.h"
#include "egress/secrets/seal.h"
#include "layers-wire.h"
#include "peers/layersc.h"
#include "sandboxes/idseal.h"
#include "tests/lib/unit.h"

/* ---- keeper ---- */

static void keeper_answer(keeperc_done *done, void *arg, uint32_t *error)
{
    struct keeper_reply r = {
        .error = *error, .text = "because", .tier = "container", .driver = "tmpfs", .quota = "size"};
    *error = KEEPER_OK;
    if (done)
        done(arg, &r);
}
void keeperc_create(struct keeperc *k, const struct keeper_create *c, keeperc_done *done, void *arg)
{
    (void)k, (void)c;
    world.creates++;
    if (world.hold_creates)
        return;
    keeper_answer(done, arg, world.creates == world.create_fails ? &world.create_error : &(uint32_t){KEEPER_OK});
}
void keeperc_kill(struct keeperc *k, const char *id, keeperc_done *done, void *arg)
{
    (void)k, (void)id;
    keeper_answer(done, arg, &(uint32_t){KEEPER_OK});
}
void keeperc_deadline(struct keeperc *k, const char *id, uint64_t at, keeperc_done *done, void *arg)
{
    (void)k, (void)id, (void)at;
    keeper_answer(done, arg, &(uint32_t){KEEPER_OK});
}
void keeperc_limit(struct keeperc *k, const char *id, uint64_t number, uint64_t memory, keeperc_done *done, void *arg)
{
    (void)k, (void)id, (void)number, (void)memory;
    keeper_answer(done, arg, &(uint32_t){KEEPER_OK});
}
void keeperc_pause(struct keeperc *k, const char *id, keeperc_done *done, void *arg)
{
    (void)k, (void)id;
    world.pauses++;
    keeper_answer(done, arg, &world.pause_error);
}
void keeperc_resume(struct keeperc *k, const char *id, keeperc_done *done, void *arg)
{
    (void)k, (void)id;
    world.resumes++;
    keeper_answer(done, arg, &world.resume_error);
}
void keeperc_usage(struct keeperc *k, const char *id, keeperc_done *done, void *arg)
{
    (void)k, (void)id;
    struct keeper_reply r = {.usage = {.cpu_user_us = loop_now(world.loop) * 500, .memory = 1 << 20}};
    world.usages++;
    done(arg, &r);
}
void keeperc_forget(struct keeperc *k, const char *id) { (void)k, (void)id; }
void keeperc_list(struct keeperc *k, keeperc_listed *done, void *arg)
{
    (void)k;
    done(arg, NULL, 0);
}

/* ---- the layer store ---- */

/* It has what was converted last. */
static char kept[SHA256_HEX];
static struct {
    layersc_done *done;
    void *arg;
} held[4];

static void layers_convert(const struct layers_request *q, int fd, struct layers_reply *r)
{
    char text[16] = "";
    if (fd >= 0 && read(fd, text, sizeof text - 1) >= 0 && strcmp(text, "a tar") == 0)
        (void)snprintf(kept, sizeof kept, "%s", q->blob);
    else
        r->error = LAYERS_BAD_DATA;
}

layersc_call layersc_ask(struct layersc *s, const struct layersc_to *to, const struct layers_head *m, size_t size,
                         int fd)
{
    struct layers_reply r = {.bytes = 4096, .frozen_us = 1500};
    const struct layers_request request = layers_wire_read(m, size), *q = &request;
    (void)s;
    if (to->owner)
        (void)snprintf(world.layers_owner, sizeof world.layers_owner, "%s", to->owner);
    if (q->type == LAYERS_CONVERT && world.layers_holds) {
        assert_true(world.nheld < ARRAY_LEN(held));
        held[world.nheld].done = to->done;
        held[world.nheld++].arg = to->arg;
    } else if (q->type == LAYERS_CONVERT) {
        layers_convert(q, fd, &r);
    } else if (q->type == LAYERS_BLOB && strcmp(q->blob, kept) != 0) {
        r.error = LAYERS_NOT_FOUND;
    } else if (q->type == LAYERS_CAPTURE) {
        world.captures++;
        r.error = world.capture_error;
        world.capture_error = LAYERS_OK;
    } else if (q->type == LAYERS_IMPORT) {
        r.error = LAYERS_BAD_DATA;
    }
    (void)snprintf(r.text, sizeof r.text, "%s", r.error ? "because" : "");
    if (fd >= 0)
        (void)close(fd);
    if (q->type == LAYERS_CONVERT && world.layers_holds)
        return 1;
    to->done(to->arg, &r, -1);
    return 1;
}
void layersc_cancel(struct layersc *s, layersc_call c) { (void)s, (void)c; }
size_t layersc_waiting(const struct layersc *s, const char *owner)
{
    (void)s, (void)owner;
    return 0;
}
bool layersc_is_up(const struct layersc *s)
{
    (void)s;
    return true;
}
void layersc_list(struct layersc *s, layersc_listed *done, void *arg)
{
    (void)s;
    done(arg, NULL, 0, NULL);
}
void world_layers_answer(void)
{
    static const struct layers_reply ok;
    for (size_t i = 0; i < world.nheld; i++)
        held[i].done(held[i].arg, &ok, -1);
    world.nheld = 0;
}

/* ---- egress ---- */

static const struct egressc_ops *egress_ops;
static void *egress_arg;
static unsigned char egress_private[SEAL_KEY];

int egressc_new(struct loop *l, int run_dir, const struct egressc_ops *ops, void *arg, struct egressc **ret,
                struct err *err)
{
    (void)l, (void)run_dir, (void)err;
    egress_ops = ops;
    egress_arg = arg;
    *ret = (struct egressc *)&world;
    return 0;
}
void egressc_free(struct egressc *e) { (void)e; }
bool egressc_key(const struct egressc *e, unsigned char ret[EGRESSC_KEY])
{
    (void)e;
    memcpy(ret, world.egress_key, EGRESSC_KEY);
    return world.egress_has_key;
}
bool egressc_is_up(const struct egressc *e)
{
    (void)e;
    return true;
}
void egressc_send(struct egressc *e, json_t *message)
{
    (void)e;
    (void)json_array_append_new(world.egress_told ? world.egress_told : (world.egress_told = json_array()), message);
}
void egressc_policy(struct egressc *e, json_t *message, uint64_t wait_ms, egressc_done *done, void *arg)
{
    (void)e, (void)wait_ms;
    json_decref(message);
    const char *error = world.net_error;
    world.net_error = NULL;
    done(arg, NULL, error);
}
void egressc_ask(struct egressc *e, json_t *message, uint64_t wait_ms, egressc_done *done, void *arg)
{
    (void)e, (void)wait_ms;
    json_decref(world.net_asked);
    world.net_asked = message;
    done(arg, world.net_answer, world.net_answer ? NULL : "egress does not answer");
}
void world_egress_event(const char *type, json_t *message)
{
    egress_ops->event(egress_arg, type, message);
    json_decref(message);
}
void world_egress_make_key(void)
{
    struct err err;
    assert_int_equal(seal_new_key(egress_private, &err), 0);
    assert_int_equal(seal_public(egress_private, world.egress_key, &err), 0);
    world.egress_has_key = true;
}
void world_egress_open(const char *context, const char *sealed, struct buf *out)
{
    _cleanup_buf_ struct buf raw = {0};
    struct err err;
    assert_true(base64_decode(&raw, sealed, strlen(sealed)));
    assert_int_equal(seal_open(egress_private, context, raw.p, raw.n, out, &err), 0);
}

void world_peers_end(void)
{
    json_decref(world.net_asked);
    json_decref(world.net_answer);
    json_decref(world.egress_told);
    free(world.cmd);
    free(world.cwd);
    free(world.user);
    strv_done(&world.args);
    strv_done(&world.env);
    buf_done(&world.input);
    kept[0] = 0;
}

/* ---- ids ---- */

/* Real ids are sealed: a test could not spell them. These are "i0new", "i0new2", ..., and any other text is an id, too. */
int idseal_open(int dir, uint32_t node, uint16_t epoch, struct idseal **ret, struct err *err)
{
    (void)dir, (void)node, (void)epoch, (void)err;
    *ret = (struct idseal *)&world;
    return 0;
}
void idseal_free(struct idseal *s) { (void)s; }
void idseal_make(struct idseal *s, char ret[ID_TEXT + 1])
{
    (void)s;
    world.nmade++;
    (void)snprintf(ret, ID_TEXT + 1, world.nmade == 1 ? "i0new" : "i0new%u", world.nmade);
}
bool idseal_check(const struct idseal *s, const char *id, struct id_fields *ret)
{
    (void)s, (void)ret;
    return *id;
}
