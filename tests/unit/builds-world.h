/* builds-world.h - builds with a store, sandboxes and commands that do what the test says. */
#ifndef BUILDS_WORLD_H
#define BUILDS_WORLD_H

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include "await.h"
#include "base/log.h"
#include "base/mem.h"
#include "front/nets.h"
#include "http/body.h"
#include "sandbox/exec.h"
#include "sandbox/stockc.h"
#include "store/store.h"
#include "tests/lib/unit.h"

/* --- a world ------------------------------------------------------------------------------------------------------ */

struct ran {
    char *cmd, *args, *user, *cwd, *env;
};
static struct {
    struct front front;
    struct config config;
    char limits[64]; /* of the last box */
    struct loop *loop;
    struct tenant tenant[2];
    struct box box;
    bool alive;
    int creates, kills, captures, holds, puts, tags, drops;
    bool full;                          /* the tenant's quota */
    uint64_t limit;                     /* of it, in stacks; 0: none */
    int forgotten;                      /* steps */
    char made_from[16][STACK_BASE_MAX]; /* each sandbox */
    struct ran ran[32];
    size_t nran;
    const char *fail;            /* a command whose text has this in it exits with 7 */
    const char *no_create;       /* why no sandbox can be made */
    bool no_blob, gone;          /* the upload is missing; stacks of the cache are gone */
    const struct exec_ops *held; /* of a command that does not end: one with "serve" in it */
    void *held_arg;
    struct buf input;
    size_t much, sent, resumes; /* pieces that a packing command says, in place of its few words */
    bool hold_layers;           /* stock does not tell them */
    struct tmpl row;
    struct tmpl_tag tag[8];
    bool has_row;
    const char *other_id; /* of the row, which somebody else made first */
    char image[72];       /* an imported image of that name is there */
    struct tenant *image_owner;
    bool image_given;
    struct tmpl_origin *image_origin; /* how it came; NULL: somebody named it so */
} w;

static void later(loop_fn *fn, void *arg) { loop_defer(w.loop, fn, arg); }

struct created {
    box_created *done;
    void *arg;
};
static void give_box(void *arg)
{
    struct created c = *(struct created *)arg;
    free(arg);
    struct box_failure no = {.status = 500};
    if (w.no_create) {
        (void)snprintf(no.text, sizeof no.text, "%s", w.no_create);
        c.done(c.arg, NULL, &no);
        return;
    }
    w.alive = true;
    (void)snprintf(w.box.id, sizeof w.box.id, "box%d", w.creates);
    c.done(c.arg, &w.box, NULL);
}
void box_create(struct front *f, const struct principal *p, const struct box_spec *spec, box_created *done, void *arg)
{
    (void)f;
    struct created *c = xcalloc(1, sizeof *c);
    *c = (struct created){done, arg};
    assert_true(spec->build);
    assert_ptr_equal(p->tenant, &w.tenant[0]);
    assert_false(w.alive);
    (void)snprintf(w.limits, sizeof w.limits, "%u %llu%s", spec->cpu_milli, (unsigned long long)spec->memory >> 20,
                   spec->counted ? " counted" : "");
    (void)snprintf(w.made_from[w.creates++ % 16], STACK_BASE_MAX, "%s", spec->template);
    later(give_box, c);
}
void box_kill(struct front *f, struct box *b, const char *why, box_done *done, void *arg)
{
    (void)f;
    (void)why;
    assert_ptr_equal(b, &w.box);
    w.kills++;
    w.alive = false;
    if (done)
        done(arg, true);
}
struct box *box_find(struct front *f, const char *id)
{
    (void)f;
    return w.alive && strcmp(id, w.box.id) == 0 ? &w.box : NULL;
}
bool box_begin(struct box *b, const char *what)
{
    b->busy = what;
    return true;
}
void box_finish(struct front *f, const char *id)
{
    (void)f;
    (void)id;
    w.box.busy = NULL;
}

void state_hold(struct front *f, const char *stack)
{
    (void)f;
    (void)stack;
    w.holds++;
}
void state_hold_for(struct front *f, const char *stack, const struct tenant *t)
{
    (void)t;
    state_hold(f, stack);
}
uint64_t state_layers_ask(struct front *f, const char *stack, void (*done)(void *arg), void *arg)
{
    (void)stack;
    if (!w.hold_layers)
        loop_defer(f->loop, done, arg);
    return 1;
}
bool state_fits(struct front *f, const struct tenant *t, const char *stack, struct state_failure *ret)
{
    (void)f, (void)t, (void)stack;
    if (w.full)
        *ret = (struct state_failure){.status = 429, .error_code = "quota_exceeded", .text = "no room"};
    return !w.full;
}
struct state_size state_limit(const struct front *f, const struct tenant *t)
{
    (void)f, (void)t;
    return (struct state_size){.bytes = w.limit};
}
bool state_within(struct state_size size, struct state_size limit) { return size.bytes <= limit.bytes; }
struct state_size state_kept_with(struct front *f, const struct tenant *t, const char *const *stacks, size_t n)
{
    (void)f, (void)t;
    for (size_t i = 0; i < n; i++)
        assert_true(stack_id_valid(stacks[i]));
    return (struct state_size){.bytes = n};
}
void state_release(struct front *f, const char *stack)
{
    (void)f;
    (void)stack;
    w.holds--;
}
void state_drop(struct front *f, const char *stack)
{
    (void)f;
    (void)stack;
    w.drops++;
}
struct capture {
    state_captured *done;
    void *arg;
};
static void give_capture(void *arg)
{
    struct capture c = *(struct capture *)arg;
    struct stock_reply r = {0};
    free(arg);
    c.done(c.arg, &r);
}
void state_capture(struct front *f, const char *box, const char stack[STACK_ID_MAX], bool freeze, state_captured *done,
                   void *arg)
{
    (void)freeze;
    struct capture *c = xcalloc(1, sizeof *c);
    *c = (struct capture){done, arg};
    assert_string_equal(box, w.box.id);
    state_hold(f, stack);
    w.captures++;
    later(give_capture, c);
}

struct stock_request stockc_request(enum stock_type type) { return (struct stock_request){.type = type}; }
struct asked {
    stockc_done *done;
    void *arg;
    struct stock_reply r;
    int fd;
};
static void give_stock(void *arg)
{
    struct asked a = *(struct asked *)arg;
    free(arg);
    a.done(a.arg, &a.r, a.fd);
}
stockc_call stockc_ask(struct stockc *s, const struct stock_request *q, const int *fds, size_t nfds,
                       stockc_progress *progress, stockc_done *done, void *arg)
{
    (void)s;
    (void)progress;
    struct asked *a = xcalloc(1, sizeof *a);
    *a = (struct asked){.done = done, .arg = arg, .fd = -1};
    for (size_t i = 0; i < nfds; i++)
        (void)close(fds[i]);
    if (q->type == STOCK_BLOB && w.no_blob)
        a->r.error = STOCK_NOT_FOUND;
    else if (q->type == STOCK_BLOB) {
        a->fd = open("/tmp", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
        assert_int_equal(write(a->fd, "lay stream", 10), 10);
        assert_int_equal(lseek(a->fd, 0, SEEK_SET), 0);
    } else if (q->type == STOCK_USAGE && w.gone)
        a->r.error = STOCK_NOT_FOUND;
    a->r.bytes = 4096;
    later(give_stock, a);
    return 1;
}

stockc_call stockc_ask_for(struct stockc *s, const char *owner, const struct stock_request *q, const int *fds,
                           size_t nfds, stockc_progress *progress, stockc_done *done, void *arg)
{
    (void)owner;
    return stockc_ask(s, q, fds, nfds, progress, done, arg);
}
void stockc_cancel(struct stockc *s, stockc_call c)
{
    (void)s;
    (void)c;
}

struct running {
    const struct exec_ops *ops;
    void *arg;
    int code;
    bool no_user, packs;
};
/* As long as it may. False: there is more. */
static bool give_pack(struct running *r)
{
    static const char piece[EXEC_CHUNK_MAX];
    while (w.sent < w.much)
        if (!r->ops->output(r->arg, EXEC_STDOUT, w.sent++ * sizeof piece, piece, sizeof piece))
            break;
    return w.sent == w.much;
}
static struct running packing;
static void give_exec(void *arg)
{
    struct running r = *(struct running *)arg;
    struct exec_end end = {.exited = true, .code = r.code};
    struct link_status no = {.code = LINK_NO_USER, .text = "invalid username: 'nobody123'"};
    free(arg);
    if (r.no_user) {
        r.ops->failed(r.arg, &no);
        return;
    }
    if (r.ops->started)
        r.ops->started(r.arg, 42, NULL);
    if (r.packs && w.much) {
        packing = r;
        if (give_pack(&packing))
            r.ops->ended(r.arg, &end);
        return;
    }
    (void)r.ops->output(r.arg, EXEC_STDOUT, 0, "said\nmore", 9);
    if (!w.held || w.held_arg != r.arg)
        r.ops->ended(r.arg, &end);
}
struct exec *exec_start(struct links *ls, const char *id, const struct exec_spec *spec, const struct exec_ops *ops,
                        void *arg)
{
    (void)ls;
    assert_string_equal(id, w.box.id);
    struct running *r = xcalloc(1, sizeof *r);
    struct ran *x = &w.ran[w.nran++ % 32];
    _cleanup_buf_ struct buf args = {0}, env = {0};
    for (size_t i = 0; spec->args && spec->args[i]; i++)
        buf_addf(&args, "%s%s", i ? " " : "", spec->args[i]);
    for (size_t i = 0; spec->env && spec->env[i]; i++)
        buf_addf(&env, "%s%s", i ? " " : "", spec->env[i]);
    *x = (struct ran){xstrdup(spec->cmd), xstrdup(buf_str(&args)), xstrdup(spec->user), xstrdup(spec->cwd),
                      xstrdup(buf_str(&env))};
    *r = (struct running){.ops = ops, .arg = arg};
    r->packs = strstr(x->args, "--pack");
    r->no_user = strcmp(spec->user, "nobody123") == 0;
    if (w.fail && strstr(x->args, w.fail))
        r->code = 7;
    if (spec->stdin_open || strstr(x->args, "serve")) { /* ends when its input does, or never */
        if (spec->stdin_open) {
            w.held = ops;
            w.held_arg = arg;
        }
        if (strstr(x->args, "serve")) {
            free(r);
            return (struct exec *)&w;
        }
    }
    later(give_exec, r);
    return (struct exec *)&w;
}
void exec_detach(struct exec *x) { (void)x; }
static void give_rest(void *arg)
{
    struct exec_end end = {.exited = true};
    if (give_pack(arg))
        packing.ops->ended(packing.arg, &end);
}
void exec_resume(struct exec *x)
{
    (void)x;
    w.resumes++;
    later(give_rest, &packing);
}
struct fed {
    link_done *done;
    void *arg;
};
static void give_fed(void *arg)
{
    struct fed f = *(struct fed *)arg;
    struct link_status ok = {0};
    free(arg);
    f.done(f.arg, &ok);
}
link_call exec_input(struct links *ls, const char *id, const struct exec_select *who, const void *p, size_t n,
                     link_done *done, void *arg)
{
    (void)ls;
    (void)id;
    assert_int_equal(who->pid, 42);
    buf_add(&w.input, p, n);
    struct fed *f = xcalloc(1, sizeof *f);
    *f = (struct fed){done, arg};
    later(give_fed, f);
    return 1;
}
static void end_held(void *arg)
{
    struct exec_end end = {.exited = true};
    const struct exec_ops *ops = w.held;
    w.held = NULL;
    ops->ended(arg, &end);
}
link_call exec_close_input(struct links *ls, const char *id, const struct exec_select *who, link_done *done, void *arg)
{
    (void)ls;
    (void)id;
    (void)who;
    (void)done;
    (void)arg;
    later(end_held, w.held_arg);
    return 1;
}
void link_cancel(struct links *ls, link_call c)
{
    (void)ls;
    (void)c;
}

bool template_resolve(struct front *f, const char *name, struct template_info *ret)
{
    (void)f;
    if (strcmp(name, "base") != 0 && strcmp(name, "host") != 0)
        return false;
    (void)snprintf(ret->name, sizeof ret->name, "%s", name);
    (void)snprintf(ret->state, sizeof ret->state, "ready");
    return true;
}
const struct tmpl *tmpl_find(struct front *f, const struct tenant *t, const char *name, const struct tmpl_tag **tag)
{
    (void)f;
    (void)t;
    static struct tmpl image = {.id = "img", .kind = TMPL_IMPORTED, .ntags = 1};
    static struct tmpl_tag image_tag = {.stack = "st-imageimage", .build = "b"};
    image.tenant = w.image_owner;
    size_t n = strcspn(w.image, ":");
    if (n && strncmp(name, w.image, n) == 0 && name[n] == ':') { /* another tag of it is not there */
        image.tags = &image_tag;
        image_tag.origin = w.image_origin;
        image_tag.given = w.image_given;
        if (tag)
            *tag = strcmp(name, w.image) == 0 ? &image_tag : NULL;
        return &image;
    }
    if (!w.has_row || (strcmp(name, w.row.name) != 0 && strcmp(name, w.row.id) != 0))
        return NULL;
    if (tag)
        *tag = &w.tag[0];
    return &w.row;
}
bool tmpl_room(struct front *f, const struct tenant *t, const char *name, struct state_failure *ret)
{
    (void)f, (void)t;
    if (strcmp(name, "toomany") != 0)
        return true;
    *ret = (struct state_failure){.status = 429, .error_code = "quota_exceeded", .text = "so many templates"};
    return false;
}
void tmpl_put(struct front *f, const struct tmpl_new *n, tmpl_done *done, void *arg)
{
    (void)f;
    w.puts++;
    tmpl_config_done(&w.row.config);
    w.row = (struct tmpl){.tenant = n->tenant, .kind = n->kind, .bytes = n->bytes, .tags = w.tag, .ntags = 1};
    (void)snprintf(w.row.id, sizeof w.row.id, "%s", w.other_id ? w.other_id : n->id);
    (void)snprintf(w.row.name, sizeof w.row.name, "%s", n->name);
    (void)snprintf(w.tag[0].tag, sizeof w.tag[0].tag, "%s", n->tag);
    (void)snprintf(w.tag[0].build, sizeof w.tag[0].build, "%s", n->build);
    (void)snprintf(w.tag[0].stack, sizeof w.tag[0].stack, "%s", n->stack);
    tmpl_config_copy(&w.row.config, n->config);
    w.has_row = true;
    done(arg, &w.row, NULL);
}
void tmpl_tag(struct front *f, const struct tmpl *t, const struct tmpl_tag *from, const char *tag, tmpl_done *done,
              void *arg)
{
    (void)f;
    w.tags++;
    w.tag[w.row.ntags] = *from;
    (void)snprintf(w.tag[w.row.ntags++].tag, TMPL_TAG_MAX, "%s", tag);
    done(arg, t, NULL);
}
void tmpl_id_new(char ret[40]) { (void)snprintf(ret, 40, "newtemplate"); }
void tmpl_build_new(char ret[40]) { (void)snprintf(ret, 40, "newbuild"); }

static struct {
    store_done *done;
    void *arg;
} stored[64];
static size_t nstored;
static void give_stored(void *arg)
{
    size_t i = (size_t)(uintptr_t)arg;
    stored[i].done(stored[i].arg, NULL);
}
static void store_later(store_done *done, void *arg)
{
    stored[nstored % 64].done = done;
    stored[nstored % 64].arg = arg;
    later(give_stored, (void *)(uintptr_t)(nstored++ % 64));
}
void store_step_put(struct store *s, const struct store_step *x, store_done *done, void *arg)
{
    (void)s;
    (void)x;
    store_later(done, arg);
}
void store_step_del(struct store *s, const char *tenant, const char *key, store_done *done, void *arg)
{
    (void)s;
    (void)tenant;
    (void)key;
    w.forgotten++;
    store_later(done, arg);
}
int store_steps(struct store *s, void (*each)(void *arg, const struct store_step *x), void *arg, struct err *err)
{
    (void)s;
    (void)each;
    (void)arg;
    (void)err;
    return 0;
}
struct tenant *tenants_find(struct front *f, const char *id)
{
    (void)f;
    for (size_t i = 0; i < 2; i++)
        if (strcmp(w.tenant[i].id, id) == 0)
            return &w.tenant[i];
    return NULL;
}
bool nets_on(const struct front *f)
{
    (void)f;
    return false;
}

static int start_world(void **state)
{
    (void)state;
    struct err err;
    memset(&w, 0, sizeof w);
    log_open("test", LOG_LEVEL_ERROR, STDERR_FILENO);
    assert_int_equal(loop_new(&w.loop, &err), 0);
    w.config.build_max = 2;
    w.front.loop = w.loop;
    w.front.config = &w.config;
    w.front.stock = (struct stockc *)&w;
    (void)snprintf(w.tenant[0].id, sizeof w.tenant[0].id, "a");
    (void)snprintf(w.tenant[1].id, sizeof w.tenant[1].id, "b");
    assert_int_equal(builds_open(&w.front, &err), 0);
    return 0;
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
static int end_world(void **state)
{
    (void)state;
    builds_free(&w.front);
    loop_free(w.loop);
    forget_commands();
    tmpl_config_done(&w.row.config);
    buf_done(&w.input);
    return 0;
}

/* --- helpers ------------------------------------------------------------------------------------------------------ */

#define HASH "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"

static const struct build *make(const char *name)
{
    struct build_new n = {.name = name, .cpu_milli = 2000, .memory = 512 << 20};
    unsigned status;
    struct err err;
    const struct build *b = build_make(&w.front, &w.tenant[0], &n, &status, &err);
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
    assert_int_equal(build_start(&w.front, &w.tenant[0], b->template, b->id, &plan, &status, &err), 0);
    assert_int_equal(b->status, BUILD_BUILDING);
}
static void finish(const struct build *b)
{
    struct err err;
    AWAIT (b->status != BUILD_BUILDING)
        assert_int_equal(loop_step(w.loop, 10, &err), 0);
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
