/* sandboxes-world.h - the rooms of rooms-world.h with a keeper, an init and a layer store that do what the test
 * says. */
#ifndef SANDBOXES_WORLD_H
#define SANDBOXES_WORLD_H

#include <sys/mman.h>
#include <time.h>

#include "base/log.h"
#include "base/mem.h"
#include "layers-wire.h"
#include "peers/exec.h"
#include "peers/layersc.h"
#include "rooms-world.h"

/* --- keeper and init, as the test wants them ---------------------------------------------------------------------- */

static struct {
    uint32_t create_error, kill_error;
    enum link_code bind_code, hello_code;
    bool hold_create, hold_bind, hold_kill; /* answers come when the test says so */
    int creates, kills, binds, forgets, deadlines;
    char last_id[SANDBOX_ID_MAX], killed[SANDBOX_ID_MAX], env[256], user[32], workdir[64];
    char template[KEEPER_TEMPLATE_MAX];
    struct keeper_create last;
    uint64_t deadline;
    /* pauses */
    uint32_t pause_error, resume_error;
    int pauses, resumes;
    bool frozen, hold_pause, hold_resume;
    keeperc_done *held_pause, *held_resume;
    void *held_pause_arg, *held_resume_arg;
    int links_paused;
    /* the layer store */
    bool hold_list;
    layersc_listed *held_list;
    void *held_list_arg;
    uint32_t capture_error;
    bool hold_capture;
    int captures, drops, flattens;
    void (*on_drop)(void); /* may be NULL */
    size_t waiting;        /* of whoever asks */
    char owner[64];
    uint32_t capture_flags;
    char captured[STACK_ID_MAX], dropped[16][STACK_ID_MAX];
    layersc_done *held_capture;
    void *held_capture_arg;
    struct layers_item stacks[16];
    size_t nstacks;
    /* captures tell their layers: those of what the sandbox was made from, and one more of `layer_bytes` */
    bool layered;
    uint64_t layer_bytes;
    struct stack_layer layers[512];
    size_t nlayers;
    /* volumes: the error is for those with a quota, or for all */
    uint32_t quota_error, volume_error;
    int volume_makes, volume_resizes, volume_drops;
    uint64_t volume_bytes, volume_entries;
    uint32_t volume_flags;
    char volume[LAYERS_SANDBOX_MAX];
    bool hold_volume_make, hold_resize;
    layersc_done *held_volume_make, *held_resize;
    void *held_volume_make_arg, *held_resize_arg;
    /* commits and undos */
    uint32_t apply_error;
    int applies;
    uint32_t apply_flags;
    char apply_stack[STACK_ID_MAX], apply_other[STACK_ID_MAX];
    bool hold_apply;
    layersc_done *held_apply;
    void *held_apply_arg;
    /* commands */
    const struct exec_ops *exec_ops;
    void *exec_arg;
    int execs, detaches, signal;
    uint32_t signalled;
    uint64_t exec_limit_ms;
    char command[256]; /* the last argument */
    keeperc_done *held_create, *held_kill;
    link_done *held_bind;
    void *held_create_arg, *held_bind_arg, *held_kill_arg;
    struct keeper_item items[8];
    size_t nitems;
    uint64_t cpu_us;
} k;

void keeperc_create(struct keeperc *kc, const struct keeper_create *c, keeperc_done *done, void *arg)
{
    (void)kc;
    struct keeper_reply r = {.error = k.create_error, .text = "because", .tier = "container"};
    k.creates++;
    (void)snprintf(k.last_id, sizeof k.last_id, "%s", c->id);
    (void)snprintf(k.template, sizeof k.template, "%s", c->template);
    k.last = *c;
    (void)snprintf(r.driver, sizeof r.driver, "tmpfs");
    if (k.hold_create) {
        k.held_create = done;
        k.held_create_arg = arg;
    } else
        done(arg, &r);
}
void keeperc_kill(struct keeperc *kc, const char *id, keeperc_done *done, void *arg)
{
    (void)kc;
    struct keeper_reply r = {.error = k.kill_error, .text = "because"};
    k.kills++;
    (void)snprintf(k.killed, sizeof k.killed, "%s", id);
    if (done && k.hold_kill) {
        k.held_kill = done;
        k.held_kill_arg = arg;
    } else if (done)
        done(arg, &r);
}
void keeperc_deadline(struct keeperc *kc, const char *id, uint64_t at, keeperc_done *done, void *arg)
{
    (void)kc;
    (void)id;
    struct keeper_reply r = {0};
    k.deadlines++;
    k.deadline = at;
    done(arg, &r);
}
void keeperc_limit(struct keeperc *k, const char *id, uint64_t number, uint64_t memory, keeperc_done *done, void *arg)
{
    (void)k, (void)id, (void)number, (void)memory, (void)done, (void)arg;
}
void keeperc_pause(struct keeperc *kc, const char *id, keeperc_done *done, void *arg)
{
    (void)kc;
    (void)id;
    struct keeper_reply r = {.error = k.pause_error, .text = "because"};
    k.pauses++;
    if (k.hold_pause) {
        k.held_pause = done;
        k.held_pause_arg = arg;
        return;
    }
    k.frozen |= k.pause_error == KEEPER_OK;
    done(arg, &r);
}
void keeperc_resume(struct keeperc *kc, const char *id, keeperc_done *done, void *arg)
{
    (void)kc;
    (void)id;
    struct keeper_reply r = {.error = k.resume_error, .text = "because"};
    k.resumes++;
    if (k.hold_resume) {
        k.held_resume = done;
        k.held_resume_arg = arg;
        return;
    }
    k.frozen = false;
    done(arg, &r);
}
void keeperc_usage(struct keeperc *kc, const char *id, keeperc_done *done, void *arg)
{
    (void)kc;
    (void)id;
    struct keeper_reply r = {.usage = {.cpu_user_us = k.cpu_us += 500000, .memory = 1000, .disk_used = 10, .pids = 3}};
    done(arg, &r);
}
void keeperc_forget(struct keeperc *kc, const char *id)
{
    (void)kc;
    (void)id;
    k.forgets++;
}
void keeperc_list(struct keeperc *kc, keeperc_listed *done, void *arg)
{
    (void)kc;
    done(arg, k.items, k.nitems);
}
void links_paused(struct links *ls, const char *id)
{
    (void)ls;
    (void)id;
    k.links_paused++;
}
void links_gone(struct links *ls, const char *id)
{
    (void)ls;
    (void)id;
    /* Whatever waits for that sandbox fails now, from inside. */
    struct link_status st = {.code = LINK_GONE, .text = "gone"};
    link_done *done = k.held_bind;
    k.held_bind = NULL;
    if (done)
        done(k.held_bind_arg, &st);
}
link_call link_bind(struct links *ls, const char *id, const struct link_bind *b, link_done *done, void *arg)
{
    (void)ls;
    (void)id;
    struct link_status st = {.code = k.bind_code, .text = "because"};
    k.binds++;
    (void)snprintf(k.user, sizeof k.user, "%s", b->user ? b->user : "");
    (void)snprintf(k.workdir, sizeof k.workdir, "%s", b->workdir ? b->workdir : "");
    size_t n = 0;
    for (size_t i = 0; b->env[i] && n < sizeof k.env; i++)
        n += (size_t)snprintf(k.env + n, sizeof k.env - n, "%s ", b->env[i]);
    if (k.hold_bind) {
        k.held_bind = done;
        k.held_bind_arg = arg;
    } else
        done(arg, &st);
    return 1;
}
link_call link_hello(struct links *ls, const char *id, link_done *done, void *arg)
{
    (void)ls;
    (void)id;
    struct link_status st = {.code = k.hello_code};
    done(arg, &st);
    return 1;
}

struct exec *exec_start(struct links *ls, const char *id, const struct exec_spec *spec, const struct exec_ops *ops,
                        void *arg)
{
    (void)ls, (void)id;
    k.execs++;
    k.exec_ops = ops;
    k.exec_arg = arg;
    size_t last = 0;
    while (spec->args[last + 1])
        last++;
    (void)snprintf(k.command, sizeof k.command, "%s", spec->args[last]);
    k.exec_limit_ms = spec->timeout_ms;
    return (struct exec *)&k;
}
struct exec *exec_attach(struct links *ls, const char *id, const struct exec_select *who, const uint64_t from[4],
                         const struct exec_ops *ops, void *arg)
{
    (void)ls, (void)id, (void)who, (void)from;
    k.exec_ops = ops;
    k.exec_arg = arg;
    return (struct exec *)&k;
}
void exec_resume(struct exec *x) { (void)x; }
void exec_detach(struct exec *x)
{
    (void)x;
    k.detaches++;
}
link_call exec_signal(struct links *ls, const char *id, const struct exec_select *who, int sig, link_done *done,
                      void *arg)
{
    (void)ls, (void)id, (void)done, (void)arg;
    k.signalled = who->pid;
    k.signal = sig;
    return 1;
}

static inline void world_layer(const char *stack, const uint8_t name[SHA256_BYTES], uint64_t bytes)
{
    assert_true(k.nlayers < 512);
    struct stack_layer *l = &k.layers[k.nlayers++];
    *l = (struct stack_layer){.bytes = bytes, .entries = bytes / 100};
    (void)snprintf(l->stack, sizeof l->stack, "%s", stack);
    memcpy(l->name, name, SHA256_BYTES);
}
static inline void world_capture(const char *from, const char *stack)
{
    uint8_t digest[SHA256_BYTES] = {0};
    size_t n = k.nlayers;
    for (size_t i = 0; i < n; i++)
        if (strcmp(k.layers[i].stack, from) == 0)
            world_layer(stack, k.layers[i].name, k.layers[i].bytes);
    memcpy(digest, &(uint64_t){++n}, sizeof n);
    digest[31] = 1;
    world_layer(stack, digest, k.layer_bytes);
}
/* stack "": of all. */
static inline int world_layers(const char *stack)
{
    int fd = memfd_create("layers", MFD_CLOEXEC);
    for (size_t i = 0; i < k.nlayers; i++)
        if (!*stack || strcmp(k.layers[i].stack, stack) == 0)
            assert_int_equal(write(fd, &k.layers[i], sizeof k.layers[i]), sizeof k.layers[i]);
    assert_int_equal(lseek(fd, 0, SEEK_SET), 0);
    return fd;
}

layersc_call layersc_ask(struct layersc *s, const struct layersc_to *to, const struct layers_head *m, size_t size,
                         int sent)
{
    struct layers_reply r = {.bytes = 4096, .frozen_us = 1500};
    const struct layers_request request = layers_wire_read(m, size), *q = &request;
    layersc_done *done = to->done;
    void *arg = to->arg;
    int fd = -1;
    (void)s, (void)sent;
    if (to->owner)
        (void)snprintf(k.owner, sizeof k.owner, "%s", to->owner);
    switch (q->type) {
    case LAYERS_CAPTURE:
        k.captures++;
        k.capture_flags = q->flags;
        (void)snprintf(k.captured, sizeof k.captured, "%s", q->stack);
        if (k.hold_capture) {
            k.held_capture = done;
            k.held_capture_arg = arg;
            return 1;
        }
        r.error = k.capture_error;
        (void)snprintf(r.text, sizeof r.text, "because");
        if (k.layered && !r.error) {
            world_capture(sandbox_lookup(rooms.sandboxes, q->sandbox)->desc.stack, q->stack);
            fd = world_layers(q->stack);
        }
        break;
    case LAYERS_APPLY:
        k.applies++;
        k.apply_flags = q->flags;
        memcpy(k.apply_stack, q->stack, sizeof k.apply_stack);
        memcpy(k.apply_other, q->other, sizeof k.apply_other);
        k.held_apply = done;
        k.held_apply_arg = arg;
        if (k.hold_apply)
            return 1;
        r.error = k.apply_error;
        (void)snprintf(r.text, sizeof r.text, "because");
        break;
    case LAYERS_OF_STACKS:
        fd = world_layers(q->stack);
        break;
    case LAYERS_DROP:
        if (k.on_drop)
            k.on_drop();
        (void)snprintf(k.dropped[k.drops++ % 16], STACK_ID_MAX, "%s", q->stack);
        break;
    case LAYERS_FLATTEN:
        k.flattens++;
        break;
    case LAYERS_VOLUME_MAKE:
        k.volume_makes++;
        k.volume_bytes = q->bytes;
        if (k.hold_volume_make) {
            k.held_volume_make = done;
            k.held_volume_make_arg = arg;
            return 1;
        }
        r.error = k.volume_error ? k.volume_error : q->bytes || q->entries ? k.quota_error : 0;
        (void)snprintf(r.text, sizeof r.text, "because");
        break;
    case LAYERS_VOLUME_RESIZE:
        k.volume_bytes = q->bytes;
        k.volume_entries = q->entries;
        k.volume_flags = q->flags;
        k.volume_resizes++;
        if (k.hold_resize) {
            k.held_resize = done;
            k.held_resize_arg = arg;
            return 1;
        }
        r.error = k.volume_error;
        (void)snprintf(r.text, sizeof r.text, "because");
        break;
    case LAYERS_VOLUME_STAT:
        break;
    case LAYERS_VOLUME_DROP:
        k.volume_drops++;
        (void)snprintf(k.volume, sizeof k.volume, "%s", q->volume);
        break;
    default:
        fail_msg("the layer store was asked for %u", q->type);
    }
    done(arg, &r, fd);
    return 1;
}
size_t layersc_waiting(const struct layersc *s, const char *owner)
{
    (void)s, (void)owner;
    return k.waiting;
}
void layersc_cancel(struct layersc *s, layersc_call c) { (void)s, (void)c; }
void layersc_list(struct layersc *s, layersc_listed *done, void *arg)
{
    (void)s;
    if (k.hold_list) {
        k.held_list = done;
        k.held_list_arg = arg;
    } else
        done(arg, k.stacks, k.nstacks, NULL);
}
static inline bool was_dropped(const char *stack)
{
    for (int i = 0; i < k.drops && i < 16; i++)
        if (strcmp(k.dropped[i], stack) == 0)
            return true;
    return false;
}

/* --- the world ---------------------------------------------------------------------------------------------------- */

static struct principal who;
static int ends;
static char end_cause[32];
static uint64_t clock_add;

static void on_end(void *arg, struct sandbox *b, const char *cause, const struct keeper_usage *u)
{
    (void)arg;
    (void)b;
    (void)u;
    ends++;
    (void)snprintf(end_cause, sizeof end_cause, "%s", cause);
}
static void start(void)
{
    rooms_start();
    sandboxes_on_end(rooms.sandboxes, on_end, NULL);
    who = (struct principal){.tenant = tenants_find(rooms.tenants, TENANT_DEFAULT), .scopes = SCOPE_SANDBOXES};
}
static inline void turn(void)
{
    struct err err;
    assert_int_equal(loop_step(rooms.loop, 5, &err), 0);
}
static inline void step(int n) { rooms_step(n, turn); }
static void stop(void)
{
    step(3);
    rooms_stop();
}
/* Without quotas of its own. */
static inline struct tenant *new_tenant(const char *id)
{
    tenant_put(rooms.tenants, id, id, &(struct quota){0}, NULL, NULL);
    AWAIT (tenants_find(rooms.tenants, id))
        step(1);
    return tenants_find(rooms.tenants, id);
}
static int set_up(void **state)
{
    (void)state;
    memset(&k, 0, sizeof k);
    k.layer_bytes = 1000;
    clock_add = 0;
    ends = 0;
    log_open("test", LOG_LEVEL_ERROR, 2);
    if (rooms_prepare("sandboxes") < 0)
        return -1;
    loop_set_clock(rooms.loop, await_clock_ms, &clock_add);
    rooms.peers.layers = (struct layersc *)&k;
    start();
    return 0;
}
static int tear_down(void **state)
{
    (void)state;
    stop();
    return rooms_done();
}

struct answer {
    int calls;
    char id[SANDBOX_ID_MAX], text[512], code[64];
    unsigned status, retry;
};
static inline void created(void *arg, struct sandbox *b, const struct sandbox_failure *failure)
{
    struct answer *a = arg;
    a->calls++;
    assert_true(!b != !failure);
    if (b) {
        assert_int_equal(b->state, SANDBOX_RUNNING);
        (void)snprintf(a->id, sizeof a->id, "%s", b->id);
        return;
    }
    a->status = failure->status;
    a->retry = failure->retry_after;
    (void)snprintf(a->text, sizeof a->text, "%s", failure->text);
    (void)snprintf(a->code, sizeof a->code, "%s", failure->error_code ? failure->error_code : "");
}
static inline struct sandbox_spec host_spec(void)
{
    return (struct sandbox_spec){
        .desc.template = "host", .desc.timeout_s = 60, .desc.secure = true, .desc.allow_public_traffic = true};
}
static inline void wait_for(struct answer *a)
{
    AWAIT (a->calls != 0)
        step(1);
    assert_int_equal(a->calls, 1);
}
static inline struct answer make(const struct sandbox_spec *spec)
{
    struct answer *a = calloc(1, sizeof *a), copy;
    sandbox_create(rooms.sandboxes, &who, spec, created, a);
    assert_int_equal(a->calls, 0);
    wait_for(a);
    copy = *a;
    free(a);
    return copy;
}

#endif
