/* Builds with a store, sandboxes and commands that do what the test says. */
#include "front/builds.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

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
    char image[72]; /* an imported image of that name is there */
    struct tenant *image_owner;
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
uint64_t state_bytes_limit(const struct front *f, const struct tenant *t)
{
    (void)f, (void)t;
    return w.limit;
}
uint64_t state_kept_with(struct front *f, const struct tenant *t, const char *const *stacks, size_t n)
{
    (void)f, (void)t;
    for (size_t i = 0; i < n; i++)
        assert_true(stack_id_valid(stacks[i]));
    return n;
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
    if (w.image[0] && strcmp(name, w.image) == 0) {
        image.tags = &image_tag;
        if (tag)
            *tag = &image_tag;
        return &image;
    }
    if (!w.has_row || (strcmp(name, w.row.name) != 0 && strcmp(name, w.row.id) != 0))
        return NULL;
    if (tag)
        *tag = &w.tag[0];
    return &w.row;
}
void tmpl_put(struct front *f, const struct tmpl_new *n, tmpl_done *done, void *arg)
{
    (void)f;
    w.puts++;
    tmpl_config_done(&w.row.config);
    w.row = (struct tmpl){.tenant = n->tenant, .kind = n->kind, .bytes = n->bytes, .tags = w.tag, .ntags = 1};
    (void)snprintf(w.row.id, sizeof w.row.id, "%s", n->id);
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
    for (int i = 0; i < 4000 && b->status == BUILD_BUILDING; i++)
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

/* --- tests -------------------------------------------------------------------------------------------------------- */

#define STEPS                                                                                               \
    "{\"fromImage\":\"e2bdev/base\",\"steps\":[{\"type\":\"ENV\",\"args\":[\"A\",\"1\",\"B\",\"$HOME2\"]}," \
    "{\"type\":\"USER\",\"args\":[\"agent\"]},{\"type\":\"WORKDIR\",\"args\":[\"app\"]},"                   \
    "{\"type\":\"RUN\",\"args\":[\"make it\"]},{\"type\":\"RUN\",\"args\":[\"as root\",\"root\"]},"         \
    "{\"type\":\"COPY\",\"args\":[\"src\",\"dst/\",\"\",\"644\"],\"filesHash\":\"" HASH "\"}]}"

static void steps_run_one_after_the_other_and_the_template_gets_its_row(void **state)
{
    (void)state;
    const struct build *b = run("my-Agent:v1", STEPS);
    assert_int_equal(b->status, BUILD_READY);
    assert_string_equal(w.made_from[0], "base");
    assert_int_equal(w.creates, 6); /* one per step that changes files, and the last look */
    assert_int_equal(w.kills, 6);
    assert_int_equal(w.captures, 6);
    assert_string_equal(w.ran[1].user, "root");
    assert_non_null(strstr(w.ran[1].args, "/home/user/app"));
    assert_string_equal(w.ran[2].user, "agent");
    assert_string_equal(w.ran[2].cwd, "/home/user/app");
    assert_string_equal(w.ran[2].env, "A=1 B=");
    assert_string_equal(w.ran[3].user, "root");
    assert_string_equal(w.ran[4].cmd, "/.hutch/hutch");
    assert_string_equal(w.ran[4].args, "lay --src src --dest /home/user/app/dst/ --owner agent --mode 644");
    assert_string_equal(buf_str(&w.input), "lay stream");
    assert_int_equal(w.puts, 1);
    assert_string_equal(w.row.name, "my-agent");
    assert_string_equal(w.tag[0].tag, "v1");
    assert_string_equal(w.tag[0].build, b->id);
    assert_string_equal(w.row.config.user, "agent");
    assert_string_equal(w.row.config.workdir, "/home/user/app");
    assert_int_equal(w.row.config.cpu_milli, 2000);
    assert_int_equal(w.row.bytes, 4096);
    assert_int_equal(w.holds, 0);
}

static void the_same_steps_are_not_run_again(void **state)
{
    (void)state;
    (void)run("one", STEPS);
    int creates = w.creates;
    const struct build *b = run("two", STEPS);
    assert_int_equal(b->status, BUILD_READY);
    assert_int_equal(w.creates - creates, 1); /* the last look only */
    assert_true(said(b, "CACHED [builder 4/6] RUN make it"));
    assert_int_equal(w.holds, 0);
}

static void steps_are_remembered_as_far_as_the_quota_has_room(void **state)
{
    (void)state;
    w.limit = 3;
    assert_int_equal(run("one", STEPS)->status, BUILD_READY);
    assert_int_equal(w.captures, 6); /* the last is the template's own */
    assert_int_equal(w.forgotten, 2);
    assert_int_equal(w.drops, 2);
    assert_int_equal(w.holds, 0);
    w.limit = 1; /* less than the rows have: the step under way is kept */
    assert_int_equal(run("two", "{\"steps\":[{\"type\":\"RUN\",\"args\":[\"x\"]}]}")->status, BUILD_READY);
    assert_int_equal(w.forgotten, 5);
}

static void steps_have_the_limits_of_the_build(void **state)
{
    (void)state;
    w.config.default_cpu_milli = 2000;
    w.config.default_memory = 512 << 20;
    assert_int_equal(run("a", "{}")->status, BUILD_READY);
    assert_string_equal(w.limits, "2000 512");
    w.config.default_memory = 256 << 20; /* now it is more than others have */
    assert_int_equal(run("a", "{}")->status, BUILD_READY);
    assert_string_equal(w.limits, "2000 512 counted");
    assert_false(w.box.degraded[0]);
    (void)snprintf(w.box.degraded, sizeof w.box.degraded, "memory: not limited");
    const struct build *b = run("a", STEPS);
    assert_true(said(b, "this host cannot hold the commands of builds to their limits: memory: not limited"));
}

static void force_runs_everything_again(void **state)
{
    (void)state;
    static const char again[] = "{\"force\":true,\"steps\":[{\"type\":\"RUN\",\"args\":[\"x\"]}]}";
    (void)run("one", again);
    int creates = w.creates;
    const struct build *b = run("two", again);
    assert_int_equal(w.creates - creates, 2);
    assert_false(said(b, "CACHED"));
    assert_int_equal(w.drops, 1); /* of the stack that the step made before */
}

static void a_step_whose_stack_is_gone_is_run_again(void **state)
{
    (void)state;
    static const char plan[] = "{\"steps\":[{\"type\":\"RUN\",\"args\":[\"x\"]}]}";
    (void)run("one", plan);
    w.gone = true;
    const struct build *b = run("two", plan);
    assert_int_equal(b->status, BUILD_READY);
    assert_false(said(b, "CACHED"));
}

static void a_command_that_fails_is_named_with_its_step(void **state)
{
    (void)state;
    w.fail = "make it";
    const struct build *b = run("x", STEPS);
    assert_int_equal(b->status, BUILD_FAILED);
    assert_string_equal(b->reason, "failed to run command 'make it': exit status 7");
    assert_string_equal(b->reason_step, "4");
    assert_true(said(b, "said"));
    assert_int_equal(w.puts, 0);
    assert_int_equal(w.creates, w.kills);
    assert_int_equal(w.holds, 0);
}

static void an_unknown_user_is_named_as_e2b_names_it(void **state)
{
    (void)state;
    const struct build *b = run("x", "{\"steps\":[{\"type\":\"RUN\",\"args\":[\"id\",\"nobody123\"]}]}");
    assert_string_equal(b->reason, "failed to run command 'whoami': command failed: unauthenticated: invalid username: "
                                   "'nobody123'");
    assert_string_equal(b->reason_step, "1");
}

static void a_copy_without_its_upload_fails(void **state)
{
    (void)state;
    w.no_blob = true;
    const struct build *b =
        run("x", "{\"steps\":[{\"type\":\"COPY\",\"args\":[\"a\",\"b\",\"\",\"\"],\"filesHash\":\"" HASH "\"}]}");
    assert_string_equal(b->reason, "the files of this step were not uploaded: filesHash " HASH);
}

static void a_sandbox_that_cannot_be_made_fails_the_build(void **state)
{
    (void)state;
    w.no_create = "no room";
    const struct build *b = run("x", "{\"steps\":[{\"type\":\"RUN\",\"args\":[\"a\"]}]}");
    assert_string_equal(b->reason, "the sandbox of the build cannot be made: no room");
}

static void an_image_that_is_not_here_says_how_to_get_it(void **state)
{
    (void)state;
    const struct build *b = run("x", "{\"fromImage\":\"ubuntu:22.04\"}");
    assert_int_equal(b->status, BUILD_FAILED);
    assert_string_equal(b->reason_step, "base");
    assert_non_null(strstr(b->reason, "hutch template import ubuntu:22.04"));
}

static void an_image_gets_its_user_once(void **state)
{
    (void)state;
    static const char plan[] = "{\"fromImage\":\"docker.io/library/ubuntu:22.04\"}";
    (void)snprintf(w.image, sizeof w.image, "ubuntu:22.04");
    assert_int_equal(run("x", plan)->status, BUILD_READY);
    assert_string_equal(w.made_from[0], "st-imageimage");
    assert_int_equal(w.nran, 1);
    assert_int_equal(run("y", plan)->status, BUILD_READY);
    assert_int_equal(w.nran, 1);
    assert_int_equal(w.holds, 0);
}

static void an_image_of_another_tenant_is_not_taken(void **state)
{
    (void)state;
    (void)snprintf(w.image, sizeof w.image, "ubuntu:22.04");
    w.image_owner = &w.tenant[1];
    const struct build *b = run("x", "{\"fromImage\":\"ubuntu:22.04\"}");
    assert_int_equal(b->status, BUILD_FAILED);
    assert_non_null(strstr(b->reason, "is not in the store of this node"));
}

static void host_cannot_be_built_upon(void **state)
{
    (void)state;
    assert_non_null(strstr(run("x", "{\"fromTemplate\":\"host\"}")->reason, "cannot be built upon"));
    assert_non_null(strstr(run("y", "{\"fromTemplate\":\"nothing\"}")->reason, "template 'nothing' not found"));
}

static void a_template_starts_from_another_with_its_settings(void **state)
{
    (void)state;
    (void)run("parent", STEPS);
    char stack[STACK_ID_MAX];
    memcpy(stack, w.tag[0].stack, sizeof stack);
    forget_commands();
    int creates = w.creates;
    (void)run("child", "{\"fromTemplate\":\"parent\",\"steps\":[{\"type\":\"RUN\",\"args\":[\"x\"]}]}");
    assert_string_equal(w.made_from[creates % 16], stack);
    assert_string_equal(w.ran[0].user, "agent");
    assert_string_equal(w.ran[0].env, "A=1 B=");
    assert_string_not_equal(w.tag[0].stack, stack);
}

static void the_ready_command_decides_when_a_start_command_is_up(void **state)
{
    (void)state;
    const struct build *b = run("x", "{\"startCmd\":\"serve\",\"readyCmd\":\"probe\"}");
    assert_int_equal(b->status, BUILD_READY);
    assert_true(said(b, "the ready command succeeded"));
    assert_true(said(b, "memory is not part of a template here"));
    assert_string_equal(w.row.config.start, "serve");
    assert_string_equal(w.row.config.ready, "probe");
}

static void a_start_command_that_fails_fails_the_build(void **state)
{
    (void)state;
    w.fail = "broken";
    const struct build *b = run("x", "{\"startCmd\":\"broken\"}");
    assert_int_equal(b->status, BUILD_FAILED);
    assert_string_equal(b->reason, "the start command ended before the template was ready: exit status 7");
    assert_string_equal(b->reason_step, "finalize");
    assert_int_equal(w.drops, 1);
    assert_int_equal(w.holds, 0);
}

#define STAGES                                                                                  \
    "\"stages\":[{\"fromTemplate\":\"base\",\"steps\":[{\"type\":\"RUN\",\"args\":[\"x\"]}]}]," \
    "\"steps\":[{\"type\":\"COPY\",\"args\":[\"/a\",\"/b\",\"\",\"\"],\"fromStage\":0}]}"

static void files_of_a_stage_are_written_a_piece_at_a_time(void **state)
{
    (void)state;
    w.much = 20;
    w.config.build_upload_max = 1 << 20;
    w.front.own_dir = open("/tmp", O_DIRECTORY | O_CLOEXEC);
    const struct build *b = run("x", "{" STAGES);
    assert_int_equal(b->status, BUILD_READY);
    assert_int_equal(w.input.n, 20 * EXEC_CHUNK_MAX);
    assert_int_equal(w.resumes, 2);
    w.sent = 0;
    w.much = 33;
    b = run("y", "{\"force\":true," STAGES);
    assert_int_equal(b->status, BUILD_FAILED);
    assert_non_null(strstr(b->reason, "the files have more than 1048576 bytes (builds.upload_max)"));
    assert_int_equal(w.holds, 0);
    (void)close(w.front.own_dir);
}

static void nobody_told(void *arg, const struct tmpl *t, const struct state_failure *failure)
{
    (void)arg, (void)t, (void)failure;
    fail_msg("an import ended");
}

static void front_ends_while_an_import_is_recorded(void **state)
{
    (void)state;
    struct err err;
    struct image_import i = {.name = "x", .tag = "v1", .tenant = &w.tenant[0], .archive = -1, .ref = "x:v1"};
    w.hold_layers = true;
    (void)image_import(&w.front, &i, NULL, nobody_told, NULL);
    for (int k = 0; k < 5; k++)
        assert_int_equal(loop_step(w.loop, 10, &err), 0);
    builds_free(&w.front);
    assert_int_equal(w.holds, 0);
}

static void a_build_id_is_known_after_everything_was_forgotten(void **state)
{
    (void)state;
    const struct build *b = make("x");
    assert_true(build_id_ours(&w.front, &w.tenant[0], b->template, b->id));
    assert_false(build_id_ours(&w.front, &w.tenant[1], b->template, b->id));
    assert_false(build_id_ours(&w.front, &w.tenant[0], "other", b->id));
    assert_false(build_id_ours(&w.front, &w.tenant[0], b->template, "00000000-0000-4000-8000-000000000000"));
    assert_null(build_find(&w.front, &w.tenant[1], b->template, b->id));
}

static void a_build_starts_once(void **state)
{
    (void)state;
    struct build_plan plan;
    struct err err;
    unsigned status = 0;
    const struct build *b = run("x", "{}");
    assert_int_equal(plan_of("{}", &plan, &err), 0);
    assert_int_equal(build_start(&w.front, &w.tenant[0], b->template, b->id, &plan, &status, &err), -1);
    assert_int_equal(status, 409);
    assert_int_equal(plan_of("{}", &plan, &err), 0);
    assert_int_equal(build_start(&w.front, &w.tenant[1], b->template, b->id, &plan, &status, &err), -1);
    assert_int_equal(status, 404);
}

static void several_tags_name_one_build(void **state)
{
    (void)state;
    struct strv tags = {0};
    strv_add(&tags, "v2");
    strv_add(&tags, "stable");
    struct build_new n = {.name = "x", .tags = &tags};
    unsigned status;
    struct err err;
    const struct build *b = build_make(&w.front, &w.tenant[0], &n, &status, &err);
    start(b, "{}");
    finish(b);
    assert_int_equal(w.row.ntags, 2);
    assert_string_equal(w.tag[1].tag, "stable");
    assert_string_equal(w.tag[1].build, b->id);
    strv_done(&tags);
}

/* --- pure parts --------------------------------------------------------------------------------------------------- */

static void wrong_plans_are_refused_by_name(void **state)
{
    (void)state;
    static const struct {
        const char *json, *want;
    } wrong[] = {
        {"[]", "the body must be an object"},
        {"{\"fromImage\":5}", "field 'fromImage' must be a string"},
        {"{\"fromImage\":\"a\",\"fromTemplate\":\"b\"}", "give one of"},
        {"{\"steps\":5}", "field 'steps' must be an array"},
        {"{\"steps\":[{\"type\":\"FLY\"}]}", "steps[0]: type 'FLY' is not one of"},
        {"{\"steps\":[{\"type\":\"RUN\",\"args\":[5]}]}", "steps[0]: 'args[0]' must be a string"},
        {"{\"steps\":[{\"type\":\"RUN\",\"args\":[]}]}", "steps[0]: RUN has the arguments"},
        {"{\"steps\":[{\"type\":\"ENV\",\"args\":[\"a\"]}]}", "steps[0]: ENV has pairs"},
        {"{\"steps\":[{\"type\":\"USER\",\"args\":[\"a b\"]}]}", "steps[0]: USER has one argument"},
        {"{\"steps\":[{\"type\":\"USER\",\"args\":[\"-x\"]}]}", "steps[0]: USER has one argument"},
        {"{\"steps\":[{\"type\":\"COPY\",\"args\":[\"a\",\"b\",\"\",\"\"]}]}", "steps[0]: COPY needs 'filesHash'"},
        {"{\"steps\":[{\"type\":\"COPY\",\"args\":[\"a\",\"b\",\"\",\"u+x\"],\"filesHash\":\"" HASH "\"}]}",
         "steps[0]: the mode of a COPY must be octal"},
        {"{\"steps\":[{\"type\":\"COPY\",\"args\":[\"a\",\"b\",\"a b\",\"\"],\"filesHash\":\"" HASH "\"}]}",
         "steps[0]: the owner of a COPY"},
        {"{\"fromImageRegistry\":{\"type\":\"azure\"}}", "field 'fromImageRegistry'"},
        {"{\"fromImageRegistry\":{\"type\":\"registry\",\"username\":\"aws:a\"}}",
         "fromImageRegistry: field 'username'"},
        {"{\"fromImageRegistry\":{\"type\":\"gcp\",\"serviceAccountJson\":\"x\"}}",
         "fromImageRegistry: field 'serviceAccountJson'"},
        {"{\"fromImageRegistry\":{\"type\":\"aws\",\"awsAccessKeyId\":\"a\",\"awsSecretAccessKey\":\"b\"}}",
         "fromImageRegistry: field 'awsRegion'"},
        {"{\"fromImageRegistry\":{\"type\":\"aws\",\"awsAccessKeyId\":\"a\\nb\",\"awsSecretAccessKey\":\"b\"}}",
         "fromImageRegistry: field 'awsAccessKeyId'"},
        {"{\"fromImageRegistry\":{\"type\":\"aws\",\"awsAccessKeyId\":\"a\",\"awsSecretAccessKey\":\"b\","
         "\"awsRegion\":\"x.test/\"}}",
         "fromImageRegistry: field 'awsRegion'"},
        {"{\"stages\":{}}", "field 'stages' must be an array"},
        {"{\"stages\":[5]}", "stages[0]: must be an object"},
        {"{\"stages\":[{\"fromStage\":0}]}", "stages[0]: field 'fromStage' must be the number of a stage before"},
        {"{\"fromStage\":1,\"stages\":[{}]}", "field 'fromStage' must be the number of a stage before"},
        {"{\"fromStage\":0,\"fromImage\":\"a\",\"stages\":[{}]}", "give one of"},
        {"{\"stages\":[{\"steps\":[{\"type\":\"RUN\"}]}]}", "stages[0]: steps[0]: RUN has the arguments"},
        {"{\"stages\":[{}],\"steps\":[{\"type\":\"RUN\",\"args\":[\"a\"],\"fromStage\":0}]}",
         "steps[0]: field 'fromStage' is for COPY, not for RUN"},
        {"{\"force\":1}", "field 'force' must be true or false"},
    };
    for (size_t i = 0; i < ARRAY_LEN(wrong); i++) {
        struct build_plan plan;
        struct err err;
        assert_int_equal(plan_of(wrong[i].json, &plan, &err), -1);
        if (strncmp(err.msg, wrong[i].want, strlen(wrong[i].want)) != 0)
            fail_msg("%s gives '%s', not '%s'", wrong[i].json, err.msg, wrong[i].want);
        build_plan_done(&plan);
    }
}

static void variables_are_put_in_and_nothing_is_run(void **state)
{
    (void)state;
    struct build_context c = {0};
    static const struct {
        const char *text, *want;
    } cases[] = {{"$A", "1"},      {"${A}b", "1b"}, {"$AB", ""},    {"\\$A", "$A"}, {"$(id)", "$(id)"},
                 {"`id`", "`id`"}, {"$", "$"},      {"${A", "${A"}, {"$1", "$1"},   {"a$A-$B", "a1-x y"}};
    build_context_set(&c, "A", "0");
    build_context_set(&c, "A", "1");
    build_context_set(&c, "B", "x y");
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        _cleanup_free_ char *got = build_expand(&c, cases[i].text);
        assert_string_equal(got, cases[i].want);
    }
    build_context_done(&c);
}

static void a_key_depends_on_everything_that_goes_in(void **state)
{
    (void)state;
    char key[8][SHA256_HEX];
    struct build_context c = {.user = (char *)"u", .workdir = (char *)"/w"},
                         other = {.user = (char *)"v", .workdir = (char *)"/w"};
    struct build_step one = {.type = BUILD_RUN}, two = {.type = BUILD_RUN}, copy = {.type = BUILD_COPY};
    one.from = two.from = copy.from = -1;
    strv_add(&one.args, "ab");
    strv_add(&two.args, "a");
    strv_add(&two.args, "b");
    strv_add(&copy.args, "ab");
    build_step_key("p", &one, &c, key[0]);
    build_step_key("q", &one, &c, key[1]);
    build_step_key("p", &two, &c, key[2]);
    build_step_key("p", &one, &other, key[3]);
    build_step_key("p", &copy, &c, key[4]);
    (void)snprintf(copy.hash, sizeof copy.hash, "%s", HASH);
    build_step_key("p", &copy, &c, key[5]);
    build_context_set(&c, "A", "1");
    build_step_key("p", &one, &c, key[6]);
    strv_done(&c.env);
    build_step_key("p", &one, &c, key[7]);
    for (size_t i = 0; i < 7; i++)
        for (size_t k = 0; k < i; k++)
            assert_string_not_equal(key[i], key[k]);
    assert_string_equal(key[0], key[7]);
    strv_done(&one.args);
    strv_done(&two.args);
    strv_done(&copy.args);
}

static const struct build *promise(struct tenant *t, unsigned *status)
{
    struct build_new n = {.name = "x"};
    struct err err;
    return build_make(&w.front, t, &n, status, &err);
}

static void promises_of_one_tenant_do_not_take_the_room_of_others(void **state)
{
    (void)state;
    enum { OTHERS = BUILDS_MAX / BUILDS_PROMISED_PER_TENANT };
    static struct tenant many[OTHERS];
    char first[40], mine[40];
    unsigned status = 0;
    for (int i = 0; i < OTHERS; i++) {
        (void)snprintf(many[i].id, sizeof many[i].id, "t%d", i);
        for (int k = 0; k < BUILDS_PROMISED_PER_TENANT; k++) {
            const struct build *b = promise(&many[i], &status);
            assert_non_null(b);
            if (i == 0 && k == 0)
                (void)snprintf(first, sizeof first, "%s", b->id);
        }
    }
    assert_null(promise(&many[0], &status));
    assert_int_equal(status, 429);
    for (int i = 0; i < BUILDS_MAX % BUILDS_PROMISED_PER_TENANT; i++) {
        const struct build *b = promise(&w.tenant[0], &status);
        assert_non_null(b);
        if (i == 0)
            (void)snprintf(mine, sizeof mine, "%s", b->id);
    }
    assert_non_null(promise(&w.tenant[0], &status)); /* in place of its own oldest */
    assert_null(build_find(&w.front, &w.tenant[0], "newtemplate", mine));
    assert_non_null(build_find(&w.front, &many[0], "newtemplate", first));
}

static void a_log_is_made_of_lines_and_bounded(void **state)
{
    (void)state;
    struct build_log l = {0};
    build_log_output(&l, "1", 0, "a\nb", 3);
    build_log_output(&l, "1", 1, "err\n", 4);
    build_log_output(&l, "1", 0, "c\n10%\r20%\r\n", 11);
    build_log_flush(&l, "1");
    assert_int_equal(l.n, 4);
    assert_string_equal(l.v[0].text, "a");
    assert_int_equal(l.v[1].level, BUILD_WARN);
    assert_string_equal(l.v[2].text, "bc");
    assert_string_equal(l.v[3].text, "20%");
    build_log_done(&l);
    char wide[3 * BUILD_LINE_MAX];
    memset(wide, 'x', sizeof wide);
    build_log_output(&l, "1", 0, wide, sizeof wide);
    build_log_output(&l, "1", 0, "\n", 1);
    assert_int_equal(l.n, 3);
    assert_int_equal(strlen(l.v[0].text), BUILD_LINE_MAX);
    for (int i = 0; i < 2 * BUILD_LOG_LINES; i++)
        build_log_output(&l, "1", 0, "y\n", 2);
    assert_true(l.n <= BUILD_LOG_LINES + 1);
    assert_non_null(strstr(l.v[l.n - 1].text, "the log of this build is full"));
    build_log_done(&l);
}

static void logs_of_a_tenant_together_are_bounded(void **state)
{
    (void)state;
    static char line[BUILD_LINE_MAX];
    enum { N = BUILD_LOGS_BYTES / BUILD_LOG_BYTES + 2 };
    const struct build *b[N];
    memset(line, 'x', sizeof line);
    line[sizeof line - 1] = '\n';
    for (int i = 0; i < N; i++) {
        b[i] = run("a", "{}");
        assert_int_equal(b[i]->status, BUILD_READY);
        for (int k = 0; k < BUILD_LOG_BYTES / BUILD_LINE_MAX; k++)
            build_log_output((struct build_log *)&b[i]->log, "1", 0, line, sizeof line);
        assert_true(build_log_size(&b[i]->log) > BUILD_LOG_BYTES / 2);
    }
    size_t bytes = 0;
    (void)run("a", "{}");
    for (int i = 0; i < N; i++)
        bytes += build_log_size(&b[i]->log);
    assert_true(bytes <= BUILD_LOGS_BYTES);
    assert_int_equal(b[0]->log.n, 1);
    assert_true(said(b[0], "the log of this build is gone"));
    assert_true(b[N - 1]->log.n > 100);
}

static void uploads_of_two_tenants_have_two_names(void **state)
{
    (void)state;
    char a[SHA256_HEX], b[SHA256_HEX];
    build_blob_name(&w.tenant[0], HASH, a);
    build_blob_name(&w.tenant[1], HASH, b);
    assert_string_not_equal(a, b);
    assert_string_not_equal(a, HASH);
}

#define WORLD(fn) cmocka_unit_test_setup_teardown(fn, start_world, end_world)

int main(void)
{
    const struct CMUnitTest tests[] = {
        WORLD(steps_run_one_after_the_other_and_the_template_gets_its_row),
        WORLD(the_same_steps_are_not_run_again),
        WORLD(steps_are_remembered_as_far_as_the_quota_has_room),
        WORLD(steps_have_the_limits_of_the_build),
        WORLD(force_runs_everything_again),
        WORLD(a_step_whose_stack_is_gone_is_run_again),
        WORLD(a_command_that_fails_is_named_with_its_step),
        WORLD(an_unknown_user_is_named_as_e2b_names_it),
        WORLD(a_copy_without_its_upload_fails),
        WORLD(a_sandbox_that_cannot_be_made_fails_the_build),
        WORLD(an_image_that_is_not_here_says_how_to_get_it),
        WORLD(an_image_gets_its_user_once),
        WORLD(host_cannot_be_built_upon),
        WORLD(a_template_starts_from_another_with_its_settings),
        WORLD(the_ready_command_decides_when_a_start_command_is_up),
        WORLD(a_start_command_that_fails_fails_the_build),
        WORLD(files_of_a_stage_are_written_a_piece_at_a_time),
        WORLD(front_ends_while_an_import_is_recorded),
        WORLD(a_build_id_is_known_after_everything_was_forgotten),
        WORLD(a_build_starts_once),
        WORLD(several_tags_name_one_build),
        cmocka_unit_test(wrong_plans_are_refused_by_name),
        cmocka_unit_test(variables_are_put_in_and_nothing_is_run),
        cmocka_unit_test(a_key_depends_on_everything_that_goes_in),
        WORLD(promises_of_one_tenant_do_not_take_the_room_of_others),
        WORLD(an_image_of_another_tenant_is_not_taken),
        cmocka_unit_test(a_log_is_made_of_lines_and_bounded),
        WORLD(logs_of_a_tenant_together_are_bounded),
        WORLD(uploads_of_two_tenants_have_two_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
