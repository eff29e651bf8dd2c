/* builds-world.h - builds in the rooms of rooms-world.h, with a keeper, an init and a layer store that do what the
 * test says. */
#ifndef BUILDS_WORLD_H
#define BUILDS_WORLD_H

#include <signal.h>

#include "base/log.h"
#include "base/mem.h"
#include "builds/builds.h"
#include "http/body.h"
#include "layers-wire.h"
#include "peers/exec.h"
#include "peers/layersc.h"
#include "rooms-world.h"
#include "stacks/stacks-int.h"

enum { STACK_BYTES = 4096 }; /* of what a step captures */

struct ran {
    char *cmd, *args, *user, *cwd, *env;
};
static struct {
    struct builds *builds;
    struct tenant *tenant[2];
    bool ended; /* the builds are gone: clients answer nobody any more */
    /* keeper */
    int creates, kills;
    char sandbox[SANDBOX_ID_MAX]; /* the last one made */
    char limits[64], degraded[64];
    char made_from[16][STACK_BASE_MAX]; /* each sandbox */
    const char *no_create;              /* why no sandbox can be made */
    /* the layer store */
    int captures;
    char dropped[64][STACK_ID_MAX]; /* each once: the end of a sandbox and that of a row may both drop a stack */
    int ndropped;
    uint64_t capture_bytes;
    bool no_blob, gone; /* the upload is missing; stacks of the cache are gone */
    bool hold_layers;   /* it does not tell the layers of a stack */
    void *held_layers_arg;
    /* commands */
    struct ran ran[32];
    size_t nran;
    const char *fail;  /* a command whose text has this in it exits with 7 */
    struct exec *held; /* a command that ends when its input does */
    struct buf input;
    size_t much, sent, resumes; /* pieces that a packing command says, in place of its few words */
} w;

static void later(loop_fn *fn, void *arg) { loop_defer(rooms.loop, fn, arg); }

/* --- keeper and init ---------------------------------------------------------------------------------------------- */

struct kept {
    keeperc_done *done;
    void *arg;
    struct keeper_reply r;
};
static void give_kept(void *arg)
{
    struct kept k = *(struct kept *)arg;
    free(arg);
    k.done(k.arg, &k.r);
}
static void keep(keeperc_done *done, void *arg, const struct keeper_reply *r)
{
    struct kept *k = xcalloc(1, sizeof *k);
    *k = (struct kept){done, arg, *r};
    later(give_kept, k);
}
void keeperc_create(struct keeperc *kc, const struct keeper_create *c, keeperc_done *done, void *arg)
{
    (void)kc;
    struct keeper_reply r = {.tier = "container", .error = w.no_create ? KEEPER_FAILED : KEEPER_OK};
    assert_true(c->flags & KEEPER_BUILD);
    assert_int_equal(w.creates, w.kills); /* a build has one at a time */
    (void)snprintf(r.text, sizeof r.text, "%s", w.no_create ? w.no_create : "");
    (void)snprintf(r.degraded, sizeof r.degraded, "%s", w.degraded);
    (void)snprintf(w.limits, sizeof w.limits, "%u %llu%s", c->cpu_milli, (unsigned long long)c->memory >> 20,
                   w.tenant[0]->sandboxes ? " counted" : "");
    (void)snprintf(w.sandbox, sizeof w.sandbox, "%s", c->id);
    (void)snprintf(w.made_from[w.creates++ % 16], STACK_BASE_MAX, "%s", c->template);
    keep(done, arg, &r);
}
void keeperc_kill(struct keeperc *kc, const char *id, keeperc_done *done, void *arg)
{
    (void)kc;
    assert_string_equal(id, w.sandbox);
    w.kills++;
    if (done)
        keep(done, arg, &(struct keeper_reply){0});
}
void keeperc_deadline(struct keeperc *kc, const char *id, uint64_t at, keeperc_done *done, void *arg)
{
    (void)kc, (void)id, (void)at;
    keep(done, arg, &(struct keeper_reply){0});
}
void keeperc_forget(struct keeperc *kc, const char *id) { (void)kc, (void)id; }
/* The sandboxes of builds are never paused, and no test here compares them with keeper's or measures them. */
void keeperc_limit(struct keeperc *k, const char *id, uint64_t number, uint64_t memory, keeperc_done *done, void *arg)
{
    (void)k, (void)id, (void)number, (void)memory, (void)done, (void)arg;
}
void keeperc_pause(struct keeperc *kc, const char *id, keeperc_done *done, void *arg)
{
    (void)kc, (void)id, (void)done, (void)arg;
    fail_msg("keeper was asked to pause %s", id);
}
void keeperc_resume(struct keeperc *kc, const char *id, keeperc_done *done, void *arg)
{
    (void)kc, (void)id, (void)done, (void)arg;
    fail_msg("keeper was asked to resume %s", id);
}
void keeperc_usage(struct keeperc *kc, const char *id, keeperc_done *done, void *arg)
{
    (void)kc, (void)done, (void)arg;
    fail_msg("keeper was asked about %s", id);
}
void keeperc_list(struct keeperc *kc, keeperc_listed *done, void *arg)
{
    (void)kc, (void)done, (void)arg;
    fail_msg("keeper was asked for its list");
}
void links_gone(struct links *ls, const char *id) { (void)ls, (void)id; }
void links_paused(struct links *ls, const char *id) { (void)ls, (void)id; }
link_call link_hello(struct links *ls, const char *id, link_done *done, void *arg)
{
    (void)ls, (void)done, (void)arg;
    fail_msg("the init of %s was asked whether it is bound", id);
    return 0;
}

struct fed {
    link_done *done;
    void *arg;
};
static void give_fed(void *arg)
{
    struct fed f = *(struct fed *)arg;
    free(arg);
    f.done(f.arg, &(struct link_status){.code = LINK_OK});
}
static link_call feed(link_done *done, void *arg)
{
    struct fed *f = xcalloc(1, sizeof *f);
    *f = (struct fed){done, arg};
    later(give_fed, f);
    return 1;
}
link_call link_bind(struct links *ls, const char *id, const struct link_bind *b, link_done *done, void *arg)
{
    (void)ls, (void)b;
    assert_string_equal(id, w.sandbox);
    return feed(done, arg);
}

/* --- the layer store ---------------------------------------------------------------------------------------------- */

struct asked {
    layersc_done *done;
    void *arg;
    struct layers_reply r;
    int fd;
};
static void give_layers(void *arg)
{
    struct asked a = *(struct asked *)arg;
    free(arg);
    if (!w.ended)
        a.done(a.arg, &a.r, a.fd);
}
static void give_capture(void *arg, const struct err *err)
{
    (void)err;
    give_layers(arg);
}
static void note_drop(const char *stack)
{
    for (int i = 0; i < w.ndropped; i++)
        if (strcmp(w.dropped[i], stack) == 0)
            return;
    assert_true(w.ndropped < 64);
    (void)snprintf(w.dropped[w.ndropped++], STACK_ID_MAX, "%s", stack);
}
static int blob(void)
{
    int fd = open("/tmp", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    assert_int_equal(write(fd, "lay stream", 10), 10);
    assert_int_equal(lseek(fd, 0, SEEK_SET), 0);
    return fd;
}
layersc_call layersc_ask(struct layersc *s, const struct layersc_to *to, const struct layers_head *m, size_t size,
                         int fd)
{
    const struct layers_request request = layers_wire_read(m, size), *q = &request;
    (void)s;
    struct asked *a = xcalloc(1, sizeof *a);
    *a = (struct asked){.done = to->done, .arg = to->arg, .r.bytes = STACK_BYTES, .fd = -1};
    if (fd >= 0)
        (void)close(fd);
    switch (q->type) {
    case LAYERS_BLOB:
        if (w.no_blob)
            a->r.error = LAYERS_NOT_FOUND;
        else
            a->fd = blob();
        break;
    case LAYERS_USAGE:
        a->r.error = w.gone ? LAYERS_NOT_FOUND : LAYERS_OK;
        break;
    case LAYERS_CAPTURE:
        assert_string_equal(q->sandbox, w.sandbox);
        w.captures++;
        a->r.bytes = w.capture_bytes;
        db_barrier(rooms.db, give_capture, a); /* it takes longer than the rows of the step before */
        return 1;
    case LAYERS_DROP:
        note_drop(q->stack);
        break;
    case LAYERS_OF_STACKS:
        if (w.hold_layers) {
            w.held_layers_arg = to->arg;
            free(a);
            return 1;
        }
        break;
    case LAYERS_IMPORT:
        break;
    default:
        fail_msg("the layer store was asked for %u", q->type);
    }
    later(give_layers, a);
    return 1;
}
size_t layersc_waiting(const struct layersc *s, const char *owner)
{
    (void)s, (void)owner;
    return 0;
}
void layersc_cancel(struct layersc *s, layersc_call c) { (void)s, (void)c; }
void layersc_list(struct layersc *s, layersc_listed *done, void *arg)
{
    (void)s, (void)done, (void)arg;
    fail_msg("the layer store was asked for its list");
}

/* --- commands ----------------------------------------------------------------------------------------------------- */

/* One that was started; ops NULL: it was detached, or has ended. */
struct exec {
    const struct exec_ops *ops;
    void *arg;
    int code;
    bool no_user, packs;
};
static struct exec execs[32];
/* As long as it may. False: there is more. */
static bool give_pack(struct exec *x)
{
    static const char piece[EXEC_CHUNK_MAX];
    while (w.sent < w.much)
        if (!x->ops->output(x->arg, EXEC_STDOUT, w.sent++ * sizeof piece, piece, sizeof piece))
            break;
    return w.sent == w.much;
}
static void end_exec(struct exec *x)
{
    const struct exec_ops *ops = x->ops;
    x->ops = NULL;
    if (ops)
        ops->ended(x->arg, &(struct exec_end){.exited = true, .code = x->code});
}
static void give_exec(void *arg)
{
    struct exec *x = arg;
    struct link_status no = {.code = LINK_NO_USER, .text = "invalid username: 'nobody123'"};
    if (!x->ops)
        return;
    if (x->no_user) {
        x->ops->failed(x->arg, &no);
        return;
    }
    x->ops->started(x->arg, 42, NULL);
    if (x->packs && w.much) {
        if (give_pack(x))
            end_exec(x);
        return;
    }
    (void)x->ops->output(x->arg, EXEC_STDOUT, 0, "said\nmore", 9);
    if (w.held != x)
        end_exec(x);
}
struct exec *exec_start(struct links *ls, const char *id, const struct exec_spec *spec, const struct exec_ops *ops,
                        void *arg)
{
    (void)ls;
    assert_string_equal(id, w.sandbox);
    struct exec *e = &execs[w.nran % ARRAY_LEN(execs)];
    struct ran *x = &w.ran[w.nran++ % 32];
    _cleanup_buf_ struct buf args = {0}, env = {0};
    for (size_t i = 0; spec->args && spec->args[i]; i++)
        buf_addf(&args, "%s%s", i ? " " : "", spec->args[i]);
    for (size_t i = 0; spec->env && spec->env[i]; i++)
        buf_addf(&env, "%s%s", i ? " " : "", spec->env[i]);
    *x = (struct ran){xstrdup(spec->cmd), xstrdup(buf_str(&args)), xstrdup(spec->user), xstrdup(spec->cwd),
                      xstrdup(buf_str(&env))};
    *e = (struct exec){.ops = ops, .arg = arg};
    e->packs = strstr(x->args, "--pack");
    e->no_user = strcmp(spec->user, "nobody123") == 0;
    if (w.fail && strstr(x->args, w.fail))
        e->code = 7;
    if (spec->stdin_open) /* ends when its input does */
        w.held = e;
    if (!strstr(x->args, "serve")) /* never ends */
        later(give_exec, e);
    return e;
}
void exec_detach(struct exec *x) { x->ops = NULL; }
struct exec *exec_attach(struct links *ls, const char *id, const struct exec_select *who, const uint64_t from[4],
                         const struct exec_ops *ops, void *arg)
{
    (void)ls, (void)id, (void)who, (void)from, (void)ops, (void)arg;
    fail_msg("a command was attached to");
    return NULL;
}
link_call exec_signal(struct links *ls, const char *id, const struct exec_select *who, int sig, link_done *done,
                      void *arg)
{
    (void)ls, (void)id, (void)who, (void)sig, (void)done, (void)arg;
    fail_msg("a command was signalled");
    return 0;
}
static void give_rest(void *arg)
{
    if (give_pack(arg))
        end_exec(arg);
}
void exec_resume(struct exec *x)
{
    w.resumes++;
    later(give_rest, x);
}
link_call exec_input(struct links *ls, const char *id, const struct exec_select *who, const void *p, size_t n,
                     link_done *done, void *arg)
{
    (void)ls;
    (void)id;
    assert_int_equal(who->pid, 42);
    buf_add(&w.input, p, n);
    return feed(done, arg);
}
static void end_held(void *arg)
{
    w.held = NULL;
    end_exec(arg);
}
link_call exec_close_input(struct links *ls, const char *id, const struct exec_select *who, link_done *done, void *arg)
{
    (void)ls;
    (void)id;
    (void)who;
    (void)done;
    (void)arg;
    later(end_held, w.held);
    return 1;
}
void link_cancel(struct links *ls, link_call c)
{
    (void)ls;
    (void)c;
}

/* --- the world ---------------------------------------------------------------------------------------------------- */

static inline void turn(void)
{
    struct err err;
    assert_int_equal(loop_step(rooms.loop, 10, &err), 0);
}
static void step(int n) { rooms_step(n, turn); }
static struct tenant *new_tenant(const char *id)
{
    tenant_put(rooms.tenants, id, id, &(struct quota){0}, NULL, NULL);
    AWAIT (tenants_find(rooms.tenants, id))
        turn();
    return tenants_find(rooms.tenants, id);
}
static int start_world(void **state)
{
    static const unsigned char key[BUILDS_KEY] = "of ids";
    (void)state;
    struct err err;
    memset(&w, 0, sizeof w);
    w.capture_bytes = STACK_BYTES;
    log_open("test", LOG_LEVEL_ERROR, STDERR_FILENO);
    if (rooms_prepare("builds") < 0 || mkdirat(rooms.dir_fd, "base", 0755) < 0)
        return -1;
    rooms.peers.layers = (struct layersc *)&w;
    rooms_start();
    w.tenant[0] = new_tenant("a");
    w.tenant[1] = new_tenant("b");
    return builds_open(&(struct builds_deps){.loop = rooms.loop,
                                             .config = &rooms.config,
                                             .db = rooms.db,
                                             .peers = &rooms.peers,
                                             .tenants = rooms.tenants,
                                             .stacks = rooms.stacks,
                                             .templates = rooms.templates,
                                             .sandboxes = rooms.sandboxes,
                                             .own_dir = rooms.dir_fd,
                                             .id_key = key},
                       &w.builds, &err);
}
static void forget_commands(void)
{
    for (size_t i = 0; i < w.nran && i < 32; i++) {
        free(w.ran[i].cmd);
        free(w.ran[i].args);
        free(w.ran[i].user);
        free(w.ran[i].cwd);
        free(w.ran[i].env);
    }
    w.nran = 0;
}
static void end_builds(void)
{
    builds_free(w.builds);
    w.builds = NULL;
    w.ended = true;
}
static int end_world(void **state)
{
    (void)state;
    step(3);
    end_builds();
    rooms_stop();
    forget_commands();
    buf_done(&w.input);
    free(w.held_layers_arg);
    return rooms_done();
}

/* --- helpers ------------------------------------------------------------------------------------------------------ */

#define HASH "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"

/* Stacks that are held when all rows are written. */
static size_t holds(void)
{
    step(3);
    return rooms.stacks->held.n;
}
static int drops(void)
{
    step(3);
    return w.ndropped;
}
static void count_step(void *arg, const struct db_step *s)
{
    (void)s;
    ++*(int *)arg;
}
static int steps_kept(void)
{
    struct err err;
    int n = 0;
    step(3);
    assert_int_equal(db_steps(rooms.db, count_step, &n, &err), 0);
    return n;
}
/* The template of the first tenant, or the node's. */
static const struct template *row(const char *name)
{
    const struct template *t = template_find(rooms.templates, w.tenant[0], name, NULL);
    if (!t)
        fail_msg("there is no template %s", name);
    return t;
}
static const struct template_tag *tag(const char *name)
{
    const struct template_tag *tag = NULL;
    if (!template_find(rooms.templates, w.tenant[0], name, &tag) || !tag)
        fail_msg("there is no template %s", name);
    return tag;
}
static void was_put(void *arg, const struct template *t, const struct state_failure *failure)
{
    (void)t;
    if (failure)
        fail_msg("%s", failure->text);
    *(bool *)arg = true;
}
static void put(const struct template_new *n)
{
    bool done = false;
    template_put(rooms.templates, n, was_put, &done);
    AWAIT (done)
        turn();
    assert_true(done);
}

static const struct build *make(const char *name)
{
    struct build_new n = {.name = name, .cpu_milli = 2000, .memory = 512 << 20};
    unsigned status;
    struct err err;
    const struct build *b = build_make(w.builds, w.tenant[0], &n, &status, &err);
    assert_non_null(b);
    return b;
}
static int plan_of(const char *json, struct build_plan *plan, struct err *err)
{
    json_t *root = body_parse(json, strlen(json), err);
    assert_non_null(root);
    int rc = build_plan_parse(root, plan, err);
    json_decref(root);
    return rc;
}
static void start(const struct build *b, const char *json)
{
    struct build_plan plan;
    unsigned status;
    struct err err = {0};
    if (plan_of(json, &plan, &err) < 0)
        fail_msg("%s", err.msg);
    assert_int_equal(build_start(w.builds, w.tenant[0], b->template, b->id, &plan, &status, &err), 0);
    assert_int_equal(b->status, BUILD_BUILDING);
}
static void finish(const struct build *b)
{
    AWAIT (b->status != BUILD_BUILDING)
        turn();
}
static const struct build *run(const char *name, const char *json)
{
    const struct build *b = make(name);
    start(b, json);
    finish(b);
    return b;
}
static bool said(const struct build *b, const char *text)
{
    for (size_t i = 0; i < b->log.n; i++)
        if (strstr(b->log.v[i].text, text))
            return true;
    return false;
}

#endif
