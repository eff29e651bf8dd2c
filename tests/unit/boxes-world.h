/* boxes-world.h - the lives of boxes with a real store, and a keeper, an init and a stock that do what the test says. */
#ifndef BOXES_WORLD_H
#define BOXES_WORLD_H

#include <fcntl.h>
#include <ftw.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "await.h"
#include "base/log.h"
#include "base/mem.h"
#include "front/events.h"
#include "front/idseal.h"
#include "front/state.h"
#include "sandbox/exec.h"
#include "sandbox/stockc.h"
#include "store/store.h"
#include "tests/lib/unit.h"

/* --- keeper and init, as the test wants them ----------------------------------------------------------------------- */

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
    /* stock */
    bool hold_list;
    stockc_listed *held_list;
    void *held_list_arg;
    uint32_t capture_error;
    bool hold_capture;
    int captures, drops, flattens;
    void (*on_drop)(void); /* may be NULL */
    size_t waiting;        /* of whoever asks */
    char owner[64];
    uint32_t capture_flags;
    char captured[STACK_ID_MAX], dropped[16][STACK_ID_MAX];
    stockc_done *held_capture;
    void *held_capture_arg;
    struct stock_item stacks[16];
    size_t nstacks;
    struct front *front;
    bool layered; /* captures tell their layers: those of what the box was made from, and one more of `layer_bytes` */
    uint64_t layer_bytes;
    struct stock_layer layers[512];
    size_t nlayers;
    /* volumes: the error is for those with a quota, or for all */
    uint32_t quota_error, volume_error;
    int volume_makes, volume_resizes, volume_drops;
    uint64_t volume_bytes, volume_entries;
    uint32_t volume_flags;
    char volume[STOCK_BOX_MAX];
    bool hold_resize;
    stockc_done *held_resize;
    void *held_resize_arg;
    /* commits and undos */
    uint32_t apply_error;
    int applies;
    uint32_t apply_flags;
    char apply_stack[STACK_ID_MAX], apply_other[STACK_ID_MAX];
    bool hold_apply;
    stockc_done *held_apply;
    void *held_apply_arg;
    /* commands */
    const struct exec_ops *exec_ops;
    void *exec_arg;
    int execs;
    char command[256];
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
    (void)snprintf(k.command, sizeof k.command, "%s", spec->args[3]);
    return (struct exec *)&k;
}
void exec_detach(struct exec *x) { (void)x; }

static inline void world_layer(const char *stack, const uint8_t digest[SHA256_BYTES], uint64_t bytes)
{
    assert_true(k.nlayers < 512);
    struct stock_layer *l = &k.layers[k.nlayers++];
    *l = (struct stock_layer){.bytes = bytes, .entries = bytes / 100};
    (void)snprintf(l->stack, sizeof l->stack, "%s", stack);
    memcpy(l->digest, digest, SHA256_BYTES);
}
static inline void world_capture(const char *from, const char *stack)
{
    uint8_t digest[SHA256_BYTES] = {0};
    size_t n = k.nlayers;
    for (size_t i = 0; i < n; i++)
        if (strcmp(k.layers[i].stack, from) == 0)
            world_layer(stack, k.layers[i].digest, k.layers[i].bytes);
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

struct stock_request stockc_request(enum stock_type type) { return (struct stock_request){.type = (uint32_t)type}; }
stockc_call stockc_ask(struct stockc *s, const struct stock_request *q, const int *fds, size_t nfds,
                       stockc_progress *progress, stockc_done *done, void *arg)
{
    struct stock_reply r = {.bytes = 4096, .frozen_us = 1500};
    int fd = -1;
    (void)s, (void)fds, (void)nfds, (void)progress;
    switch (q->type) {
    case STOCK_CAPTURE:
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
            world_capture(box_find(k.front, q->box)->stack, q->stack);
            fd = world_layers(q->stack);
        }
        break;
    case STOCK_APPLY:
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
    case STOCK_LAYERS:
        fd = world_layers(q->stack);
        break;
    case STOCK_DROP:
        if (k.on_drop)
            k.on_drop();
        (void)snprintf(k.dropped[k.drops++ % 16], STACK_ID_MAX, "%s", q->stack);
        break;
    case STOCK_FLATTEN:
        k.flattens++;
        break;
    case STOCK_VOLUME_MAKE:
        k.volume_makes++;
        k.volume_bytes = q->bytes;
        r.error = k.volume_error ? k.volume_error : q->bytes || q->entries ? k.quota_error : 0;
        (void)snprintf(r.text, sizeof r.text, "because");
        break;
    case STOCK_VOLUME_RESIZE:
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
    case STOCK_VOLUME_STAT:
        break;
    case STOCK_VOLUME_DROP:
        k.volume_drops++;
        (void)snprintf(k.volume, sizeof k.volume, "%s", q->volume);
        break;
    default:
        fail_msg("stock was asked for %u", q->type);
    }
    done(arg, &r, fd);
    return 1;
}
stockc_call stockc_ask_for(struct stockc *s, const char *owner, const struct stock_request *q, const int *fds,
                           size_t nfds, stockc_progress *progress, stockc_done *done, void *arg)
{
    (void)snprintf(k.owner, sizeof k.owner, "%s", owner);
    return stockc_ask(s, q, fds, nfds, progress, done, arg);
}
size_t stockc_waiting(const struct stockc *s, const char *owner)
{
    (void)s, (void)owner;
    return k.waiting;
}
void stockc_cancel(struct stockc *s, stockc_call c) { (void)s, (void)c; }
void stockc_list(struct stockc *s, stockc_listed *done, void *arg)
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

static char dir[64];
static struct front f;
static struct config config;
static struct principal who;
static int dirfd_, ends;
static char end_cause[32];
static uint64_t clock_add;

static int rm_one(const char *p, const struct stat *st, int flag, struct FTW *ftw)
{
    (void)st;
    (void)flag;
    (void)ftw;
    return remove(p);
}
static void on_end(void *arg, struct box *b, const char *cause, const struct keeper_usage *u)
{
    (void)arg;
    (void)b;
    (void)u;
    ends++;
    (void)snprintf(end_cause, sizeof end_cause, "%s", cause);
}
static void start(void)
{
    struct err err = {0};
    uint64_t epoch;
    if (store_open(f.loop, dirfd_, dir, &f.store, &err) < 0 || store_count_up(f.store, "epoch", &epoch, &err) < 0 ||
        idseal_open(dirfd_, 0, (uint16_t)epoch, &f.ids, &err) < 0 || events_load(&f, &err) < 0 ||
        tenants_load(&f, &err) < 0 || boxes_load(&f, &err) < 0)
        fail_msg("%s", err.msg);
    templates_open(&f, dirfd_);
    boxes_on_end(&f, on_end, NULL);
    who = (struct principal){.tenant = tenants_find(&f, TENANT_DEFAULT), .scopes = SCOPE_SANDBOXES};
}
static void store_did(void *arg, const struct err *err)
{
    (void)err;
    ++*(int *)arg;
}
/* With more than two, what the store was given is decided after each of them, however long that takes. */
static inline void step(int n)
{
    static int asked, told_of;
    struct err err;
    for (int i = 0; i < n; i++)
        assert_int_equal(loop_step(f.loop, 5, &err), 0);
    for (int i = 0; n > 2 && i < n; i++) {
        store_barrier(f.store, store_did, &told_of);
        asked++;
        AWAIT (told_of == asked)
            assert_int_equal(loop_step(f.loop, 5, &err), 0);
        assert_int_equal(told_of, asked);
    }
}
/* As kill -9 would leave it: the store holds what was committed. */
static void stop(void)
{
    step(3);
    loop_settle(f.loop);
    store_close(f.store);
    boxes_free(&f);
    tenants_free(&f);
    events_free(&f);
    templates_free(&f);
    idseal_free(f.ids);
}
static int set_up(void **state)
{
    struct err err;
    (void)state;
    memset(&k, 0, sizeof k);
    k.front = &f;
    k.layer_bytes = 1000;
    clock_add = 0;
    ends = 0;
    log_open("test", LOG_LEVEL_ERROR, 2);
    (void)snprintf(dir, sizeof dir, FAST_DIR "/hutch-boxes-XXXXXX");
    if (!mkdtemp(dir) || loop_new(&f.loop, &err) < 0)
        return -1;
    loop_set_clock(f.loop, await_clock_ms, &clock_add);
    dirfd_ = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    config_start(&config);
    f.config = &config;
    f.stock = (struct stockc *)&k;
    start();
    return 0;
}
static int tear_down(void **state)
{
    (void)state;
    stop();
    loop_free(f.loop);
    config_done(&config);
    (void)close(dirfd_);
    return nftw(dir, rm_one, 8, FTW_DEPTH | FTW_PHYS);
}

struct answer {
    int calls;
    char id[SANDBOX_ID_MAX], text[512], code[64];
    unsigned status, retry;
};
static inline void created(void *arg, struct box *b, const struct box_failure *failure)
{
    struct answer *a = arg;
    a->calls++;
    assert_true(!b != !failure);
    if (b) {
        assert_int_equal(b->state, BOX_RUNNING);
        (void)snprintf(a->id, sizeof a->id, "%s", b->id);
        return;
    }
    a->status = failure->status;
    a->retry = failure->retry_after;
    (void)snprintf(a->text, sizeof a->text, "%s", failure->text);
    (void)snprintf(a->code, sizeof a->code, "%s", failure->error_code ? failure->error_code : "");
}
static inline struct box_spec host_spec(void)
{
    return (struct box_spec){.template = "host", .timeout_s = 60, .secure = true, .allow_public_traffic = true};
}
static inline void wait_for(struct answer *a)
{
    AWAIT (a->calls != 0)
        step(1);
    assert_int_equal(a->calls, 1);
}
static inline struct answer make(const struct box_spec *spec)
{
    struct answer *a = calloc(1, sizeof *a), copy;
    box_create(&f, &who, spec, created, a);
    assert_int_equal(a->calls, 0);
    wait_for(a);
    copy = *a;
    free(a);
    return copy;
}

#endif
