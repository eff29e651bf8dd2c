#include "front-world.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "await.h"
#include "base/fd.h"
#include "base/json.h"
#include "base/log.h"
#include "base/mem.h"
#include "front/events.h"
#include "front/metrics.h"

struct world world;

/* ---- requests ---- */

static struct asked *of(const struct http_req *r) { return (struct asked *)r; }
static void op_set(struct http_req *r, const char *name, const char *value)
{
    strv_add(&of(r)->fields, name);
    strv_add(&of(r)->fields, value);
}
static void op_head(struct http_req *r, unsigned status, uint64_t length)
{
    (void)length;
    if (of(r)->status)
        abort();
    of(r)->status = status;
}
static bool op_write(struct http_req *r, const void *p, size_t n)
{
    if (!of(r)->status || of(r)->ended)
        abort();
    buf_add(&of(r)->body, p, n);
    return !of(r)->queue_limit || of(r)->body.n < of(r)->queue_limit;
}
static void op_end(struct http_req *r)
{
    if (of(r)->ended)
        abort();
    of(r)->ended = true;
}
static void closed_later(void *arg)
{
    struct asked *a = arg;
    a->closed = true;
    if (a->r.on_closed)
        a->r.on_closed(&a->r);
}
static void op_abort(struct http_req *r)
{
    of(r)->aborted = true;
    loop_defer(world.loop, closed_later, r);
}
static void op_pause(struct http_req *r, bool on) { of(r)->paused = on; }
static bool op_upgrade(struct http_req *r)
{
    (void)r;
    return false;
}
static size_t op_queued(const struct http_req *r) { return of(r)->body.n; }
static void op_trailer(struct http_req *r, const char *name, const char *value) { op_set(r, name, value); }
static const struct http_stream_ops ops = {.set = op_set,
                                           .head = op_head,
                                           .write = op_write,
                                           .trailer = op_trailer,
                                           .end = op_end,
                                           .abort = op_abort,
                                           .pause = op_pause,
                                           .upgrade = op_upgrade,
                                           .queued = op_queued};

void asked_run(struct asked *a)
{
    struct err err;
    size_t held = world.nheld;
    for (int i = 0; i < 400 && !a->ended && !a->closed && world.nheld == held; i++)
        if (loop_step(world.loop, i < 20 ? 0 : 5, &err) < 0)
            abort();
}

void asked_end(struct asked *a)
{
    struct err err;
    AWAIT (a->ended || a->closed)
        if (loop_step(world.loop, 5, &err) < 0)
            abort();
}

struct asked *ask(const char *method, const char *target, const char *const *fields, const char *body, size_t n)
{
    struct asked *a = xcalloc(1, sizeof *a);
    size_t nf = 0;
    uint64_t length = HTTP_UNKNOWN;
    a->path = xstrdup(target);
    char *mark = strchr(a->path, '?');
    if (mark)
        *mark++ = 0;
    a->r.method = method;
    a->r.path = a->path;
    a->r.query = mark;
    a->r.authority = "localhost:7070";
    for (; fields && fields[0]; fields += 2) {
        if (strcmp(fields[0], "host") == 0)
            a->r.authority = fields[1];
        if (strcmp(fields[0], "content-length") == 0)
            length = strtoull(fields[1], NULL, 10);
        a->field[nf++] = (struct http_field){fields[0], fields[1]};
    }
    a->r.fields = (struct http_fields){a->field, nf};
    a->r.length = body ? length : 0;
    a->r.version = 11;
    (void)snprintf(a->r.peer, sizeof a->r.peer, "%s", "127.0.0.1");
    (void)snprintf(a->r.id, sizeof a->r.id, "%s", "req1");
    a->r.loop = world.loop;
    a->r.ops = &ops;
    front_handle(&world.front, &a->r);
    for (size_t at = 0; at < n && !a->ended && a->r.on_data;) {
        struct err err;
        size_t piece = n - at < 7000 ? n - at : 7000;
        AWAIT (!a->paused || a->ended)
            if (loop_step(world.loop, 1, &err) < 0)
                abort();
        if (a->ended || !a->r.on_data)
            break;
        a->r.on_data(&a->r, body + at, piece);
        at += piece;
    }
    if (!a->ended && a->r.on_end)
        a->r.on_end(&a->r);
    asked_run(a);
    return a;
}

struct asked *ask_api(const char *key, const char *method, const char *target, const char *body)
{
    const char *fields[] = {"content-type", "application/json", key ? "x-api-key" : NULL, key, NULL};
    return ask(method, target, fields, body, body ? strlen(body) : 0);
}

struct asked *ask_envd(const struct box *b, const char *method, const char *target, const char *type, const char *body,
                       size_t n)
{
    const char *fields[] = {"e2b-sandbox-id",
                            b->id,
                            "e2b-sandbox-port",
                            "49983",
                            "x-access-token",
                            b->token,
                            type ? "content-type" : NULL,
                            type,
                            NULL};
    return ask(method, target, fields, body, n);
}

void asked_leave(struct asked *a)
{
    a->closed = true;
    if (a->r.on_closed)
        a->r.on_closed(&a->r);
}

void asked_free(struct asked *a)
{
    if (!a->ended && !a->closed)
        asked_leave(a);
    if (a->r.on_freed)
        a->r.on_freed(&a->r);
    free(a->path);
    strv_done(&a->fields);
    buf_done(&a->body);
    free(a);
}

const char *asked_field(const struct asked *a, const char *name)
{
    for (size_t i = 0; i + 1 < a->fields.n; i += 2)
        if (strcmp(a->fields.v[i], name) == 0)
            return a->fields.v[i + 1];
    return NULL;
}

json_t *asked_json(const struct asked *a) { return json_loadb(buf_str(&a->body), a->body.n, 0, NULL); }

/* ---- the world ---- */

int world_start(void **state)
{
    struct err err;
    (void)state;
    memset(&world, 0, sizeof world);
    log_open("test", LOG_LEVEL_ERROR, 2);
    if (loop_new(&world.loop, &err) < 0)
        return -1;
    world.config.domain = (char *)"hutch.test:7443";
    world.config.max_timeout_s = 3600;
    world.kid_fails = 1;
    world.front.loop = world.loop;
    world.front.config = &world.config;
    (void)snprintf(world.tenant[0].id, sizeof world.tenant[0].id, "%s", "a");
    (void)snprintf(world.tenant[0].name, sizeof world.tenant[0].name, "%s", "A");
    (void)snprintf(world.tenant[1].id, sizeof world.tenant[1].id, "%s", "b");
    (void)snprintf(world.dir, sizeof world.dir, "%s", "/tmp/hutch-front-XXXXXX");
    return mkdtemp(world.dir) ? 0 : -1;
}

static void world_net(struct box *b, const struct net_doc *doc)
{
    struct err err;
    struct net_doc off = {0};
    if (!doc && net_doc_text("\"off\"", 5, &off, &err) < 0)
        abort();
    uint64_t epoch = b->net ? b->net->epoch : 0;
    if (b->net)
        net_doc_done(&b->net->doc);
    else
        b->net = xcalloc(1, sizeof *b->net);
    if (doc)
        net_doc_copy(&b->net->doc, doc);
    else
        b->net->doc = off;
    b->net->epoch = epoch + 1;
}
static void world_unnet(struct box *b)
{
    if (!b->net)
        return;
    net_doc_done(&b->net->doc);
    json_decref(b->net->denials[0].record);
    free(b->net);
}

int world_end(void **state)
{
    char cmd[128];
    (void)state;
    for (size_t i = 0; i < world.nbox; i++) {
        strv_done(&world.box[i]->metadata);
        strv_done(&world.box[i]->env);
        free(world.box[i]->procs);
        world_unnet(world.box[i]);
        free(world.box[i]);
    }
    for (size_t i = 0; i < world.nsecrets; i++) {
        free(world.secret[i]->spec);
        free(world.secret[i]->metadata);
        free(world.secret[i]);
        free(world.sealed[i]);
    }
    json_decref(world.net_asked);
    json_decref(world.net_answer);
    free(world.cmd);
    free(world.cwd);
    free(world.user);
    strv_done(&world.args);
    strv_done(&world.env);
    buf_done(&world.input);
    loop_free(world.loop);
    (void)snprintf(cmd, sizeof cmd, "rm -rf %s", world.dir);
    return system(cmd);
}

struct box *world_box(const char *id, unsigned tenant, uint64_t started_ms)
{
    struct box *b = xcalloc(1, sizeof *b);
    (void)snprintf(b->id, sizeof b->id, "%s", id);
    b->tenant = &world.tenant[tenant];
    b->state = BOX_RUNNING;
    (void)snprintf(b->template, sizeof b->template, "%s", "base");
    (void)snprintf(b->token, sizeof b->token, "%s", "0tQG31xiMp0IOQfaz9dcwi72L1CPo8e0");
    (void)snprintf(b->tier, sizeof b->tier, "%s", "container");
    b->allow_public_traffic = true;
    b->started_unix_ms = started_ms;
    b->end_unix_ms = started_ms + 300000;
    b->cpu_milli = 2000;
    b->memory = 512 << 20;
    world_net(b, NULL);
    world.box[world.nbox++] = b;
    return b;
}

/* ---- tenants ---- */

bool tenants_auth(struct front *f, const struct http_req *r, struct principal *ret)
{
    const char *key = http_field(&r->fields, "x-api-key");
    static const struct {
        const char *key;
        unsigned tenant, scopes;
    } keys[] = {{KEY_A, 0, SCOPE_SANDBOXES | SCOPE_TEMPLATES},
                {KEY_B, 1, SCOPE_SANDBOXES},
                {KEY_READ, 0, SCOPE_READ},
                {KEY_ROOT, 0, SCOPE_ADMIN},
                {KEY_READ_ALL, 0, SCOPE_SANDBOXES | SCOPE_TEMPLATES | SCOPE_READ},
                {KEY_READ_ROOT, 0, SCOPE_ADMIN | SCOPE_READ},
                {KEY_READ_FILES, 0, SCOPE_READ | SCOPE_FILES}};
    (void)f;
    for (size_t i = 0; key && i < sizeof keys / sizeof *keys; i++)
        if (strcmp(key, keys[i].key) == 0) {
            ret->tenant = &world.tenant[keys[i].tenant];
            ret->scopes = keys[i].scopes;
            return true;
        }
    return false;
}
unsigned tenants_throttle(struct front *f, struct tenant *t)
{
    (void)f;
    return t->quota.burst; /* what the test says */
}
void tenant_put(struct front *f, const char *id, const char *name, const struct quota *q, tenants_done *done, void *arg)
{
    (void)f, (void)id, (void)name;
    world.tenant[1].quota = *q;
    done(arg, NULL);
}
struct tenant *tenants_find(struct front *f, const char *id)
{
    (void)f;
    for (size_t i = 0; i < sizeof world.tenant / sizeof world.tenant[0]; i++)
        if (strcmp(world.tenant[i].id, id) == 0)
            return &world.tenant[i];
    return NULL;
}
void tenant_remove(struct front *f, const char *id, tenants_done *done, void *arg)
{
    (void)f, (void)id;
    done(arg, NULL);
}

struct told {
    tenants_done *done;
    void *arg;
};
static void tell(void *arg)
{
    struct told *t = arg;
    t->done(t->arg, NULL);
    free(t);
}
void key_create(struct front *f, const char *tenant, const char *name, unsigned scopes, uint64_t expires_unix,
                char ret_secret[64], char ret_id[24], tenants_done *done, void *arg)
{
    (void)f, (void)tenant, (void)name, (void)scopes, (void)expires_unix;
    (void)snprintf(ret_secret, 64, "%s", "e2b_0123");
    (void)snprintf(ret_id, 24, "%s", "key_1");
    struct told *t = xcalloc(1, sizeof *t);
    *t = (struct told){done, arg};
    loop_defer(world.loop, tell, t);
}
void key_remove(struct front *f, const char *id, tenants_done *done, void *arg)
{
    (void)f, (void)id;
    done(arg, NULL);
}
void tenants_each(struct front *f, void (*each)(void *arg, const struct tenant *t), void *arg)
{
    (void)f;
    each(arg, &world.tenant[0]);
    each(arg, &world.tenant[1]);
}
void keys_each(struct front *f, void (*each)(void *arg, const struct key_info *k), void *arg)
{
    (void)f, (void)each, (void)arg;
}

/* ---- boxes ---- */

struct box *box_find(struct front *f, const char *id)
{
    (void)f;
    for (size_t i = 0; i < world.nbox; i++)
        if (strcmp(world.box[i]->id, id) == 0)
            return world.box[i];
    return NULL;
}
struct box *box_of(struct front *f, const struct principal *p, const char *id)
{
    struct box *b = box_find(f, id);
    return b && b->tenant == p->tenant && box_is_there(b) && !b->hidden ? b : NULL;
}
void boxes_each(struct front *f, box_each_fn *fn, void *arg)
{
    (void)f;
    for (size_t i = 0; i < world.nbox; i++)
        fn(arg, world.box[i]);
}
void box_create(struct front *f, const struct principal *p, const struct box_spec *spec, box_created *done, void *arg)
{
    (void)f;
    if (strcmp(spec->template, "busy") == 0) {
        struct box_failure failure = {.status = 429, .retry_after = 7, .error_code = "sandbox_capacity_unavailable"};
        (void)snprintf(failure.text, sizeof failure.text, "%s", "no room");
        done(arg, NULL, &failure);
        return;
    }
    struct box *b = world_box("i0new", p->tenant == &world.tenant[1], 1000);
    world.spec = *spec;
    for (size_t i = 0; i < spec->nmounts; i++)
        world.mounts[i] = spec->mounts[i];
    b->auto_pause = spec->auto_pause;
    b->auto_resume = spec->auto_resume;
    b->idle_s = spec->idle_s;
    if (!spec->secure)
        b->token[0] = 0;
    for (size_t i = 0; i < spec->metadata.n; i++)
        strv_add(&b->metadata, spec->metadata.v[i]);
    for (size_t i = 0; i < spec->env.n; i++)
        strv_add(&b->env, spec->env.v[i]);
    b->allow_public_traffic = spec->allow_public_traffic;
    b->ports = spec->ports;
    if (!spec->allow_public_traffic)
        (void)snprintf(b->traffic_token, sizeof b->traffic_token, "%s", "traffic");
    b->end_unix_ms = b->started_unix_ms + spec->timeout_s * 1000ull;
    b->allow_internet = spec->allow_internet;
    world_net(b, spec->net);
    b->net->epoch = 1;
    done(arg, b, NULL);
}
void box_kill(struct front *f, struct box *b, const char *why, box_done *done, void *arg)
{
    (void)f, (void)why;
    b->state = BOX_KILLING;
    done(arg, true);
}
void box_set_timeout(struct front *f, struct box *b, uint64_t seconds, bool extend_only, box_done *done, void *arg)
{
    (void)f;
    uint64_t end = 5000000 + seconds * 1000;
    if (!extend_only || end > b->end_unix_ms)
        b->end_unix_ms = end;
    done(arg, true);
}
void box_set_ports(struct front *f, struct box *b, const struct box_ports *ports, bool public_traffic, box_done *done,
                   void *arg)
{
    (void)f;
    b->ports = *ports;
    b->allow_public_traffic = public_traffic;
    if (!public_traffic)
        (void)snprintf(b->traffic_token, sizeof b->traffic_token, "%s", "traffic");
    done(arg, !world.no_disk);
}
uint64_t box_end_unix_ms(const struct box *b) { return b->end_unix_ms; }
void boxes_on_end(struct front *f, box_ended_fn *fn, void *arg) { (void)f, (void)fn, (void)arg; }
bool template_resolve(struct front *f, const char *name, struct template_info *ret)
{
    (void)f;
    if (strcmp(name, "base") != 0 && strcmp(name, "busy") != 0 && strcmp(name, "team/base:default") != 0)
        return false;
    (void)snprintf(ret->name, sizeof ret->name, "%s", "base");
    (void)snprintf(ret->state, sizeof ret->state, "%s", "ready");
    return true;
}
void templates_each(struct front *f, void (*each)(void *arg, const struct template_info *t), void *arg)
{
    struct template_info t = {0};
    (void)template_resolve(f, "base", &t);
    each(arg, &t);
}

/* ---- networks and secrets ---- */

bool nets_on(const struct front *f)
{
    (void)f;
    return !world.no_egress;
}
void net_set(struct front *f, struct box *b, const struct net_doc *doc, enum net_change change, uint64_t expected,
             net_done *done, void *arg)
{
    (void)change;
    (void)f;
    if (expected && expected != b->net->epoch)
        done(arg, 409, "the epoch is another one");
    else if (world.net_status)
        done(arg, world.net_status, "because");
    else {
        world_net(b, doc);
        done(arg, 0, "");
    }
}
void net_ask(struct front *f, const struct box *b, json_t *message, egressc_done *done, void *arg)
{
    (void)f, (void)b;
    json_decref(world.net_asked);
    world.net_asked = message;
    done(arg, world.net_answer, world.net_answer ? NULL : "egress does not answer");
}
void approvals_each(struct front *f, const char *tenant, approval_fn *fn, void *arg)
{
    (void)f;
    struct approval a = {.id = "ask1", .sandbox = "i0box", .asked_unix_ms = 1000};
    a.request = json_pack("{s:s, s:i}", "host", "a.test", "port", 443);
    if (strcmp(tenant, "a") == 0)
        fn(arg, &a);
    json_decref(a.request);
}
void approval_decide(struct front *f, const char *tenant, const char *id, enum approval_decision d, unsigned minutes,
                     net_done *done, void *arg)
{
    (void)f;
    bool known = strcmp(tenant, "a") == 0 && strcmp(id, "ask1") == 0;
    (void)snprintf(world.decided, sizeof world.decided, "%s", id);
    world.decision = (int)d;
    world.minutes = minutes;
    done(arg, known ? 0 : 404, known ? "" : "no such question");
}
size_t net_denials_since(const struct box *b, uint64_t since_ms, struct json *j)
{
    size_t n = b->net && b->net->ndenials && b->net->denials[0].at_ms >= since_ms;
    if (n && j) {
        json_obj(j, NULL);
        json_str(j, "kind", "network");
        json_end_obj(j);
    }
    return n;
}
const struct vault_secret *vault_find(struct front *f, const char *tenant, const char *name)
{
    (void)f;
    for (size_t i = 0; i < world.nsecrets; i++)
        if (strcmp(world.secret[i]->tenant, tenant) == 0 &&
            (strcmp(world.secret[i]->name, name) == 0 || strcmp(world.secret[i]->id, name) == 0))
            return world.secret[i];
    return NULL;
}
void vault_each(struct front *f, const char *tenant, vault_each_fn *fn, void *arg)
{
    (void)f;
    for (size_t i = 0; i < world.nsecrets; i++)
        if (strcmp(world.secret[i]->tenant, tenant) == 0 && world.secret[i]->name[0])
            fn(arg, world.secret[i]);
}
static char *text_of(const json_t *v, char *old, const char *otherwise)
{
    char *made = v ? json_dumps(v, JSON_COMPACT) : NULL;
    if (made) {
        free(old);
        return made;
    }
    return old ? old : xstrdup(otherwise);
}
void vault_put(struct front *f, const struct vault_change *c, vault_done *done, void *arg)
{
    struct err err;
    struct vault_secret *s = (struct vault_secret *)vault_find(f, c->tenant, c->name);
    if (s && c->how == VAULT_NEW) {
        (void)err_set(&err, ERR_USAGE, EEXIST, "there is one already");
        done(arg, &err);
        return;
    }
    if (!s) {
        s = world.secret[world.nsecrets] = xcalloc(1, sizeof *s);
        (void)snprintf(s->tenant, sizeof s->tenant, "%s", c->tenant);
        (void)snprintf(s->name, sizeof s->name, "%s", c->name);
        (void)snprintf(s->id, sizeof s->id, "sec_%zu", world.nsecrets);
        world.nsecrets++;
    }
    for (size_t i = 0; i < world.nsecrets && c->value; i++)
        if (world.secret[i] == s) {
            free(world.sealed[i]);
            world.sealed[i] = xstrndup(c->value, c->nvalue);
        }
    s->revision++;
    s->spec = text_of(c->spec, s->spec, "");
    s->metadata = text_of(c->metadata, s->metadata, "{}");
    done(arg, NULL);
}
void vault_remove(struct front *f, const char *tenant, const char *name, vault_done *done, void *arg)
{
    struct err err;
    struct vault_secret *s = (struct vault_secret *)vault_find(f, tenant, name);
    if (s)
        s->name[0] = s->id[0] = 0;
    else
        (void)err_set(&err, ERR_USAGE, ENOENT, "there is no such secret");
    done(arg, s ? NULL : &err);
}
json_t *vault_rules(const struct vault_secret *s)
{
    return *s->spec ? json_pack("[{s:s, s:[s], s:[s]}]", "id", "secret-0", "hosts", "bound.test", "secrets", s->name)
                    : json_array();
}

/* ---- events, metrics ---- */

struct event_log *events_find(struct front *f, const char *tenant, const char *sandbox)
{
    struct box *b = box_find(f, sandbox);
    return b && strcmp(b->tenant->id, tenant) == 0 ? (struct event_log *)b : NULL;
}
bool events_ended(const struct event_log *log) { return ((const struct box *)log)->state == BOX_KILLING; }
void events_replay(const struct event_log *log, uint64_t after, event_fn *fn, void *arg)
{
    static const struct event v[] = {{1, 1000, "created", "{}"}, {2, 2000, "died", "{\"cause\":\"oom\"}"}};
    (void)log;
    for (size_t i = 0; i < 2; i++)
        if (v[i].seq > after)
            fn(arg, &v[i]);
}
struct event_sub *events_subscribe(struct event_log *log, uint64_t after, event_fn *fn, void *arg)
{
    events_replay(log, after, fn, arg);
    return (struct event_sub *)log;
}
void events_unsubscribe(struct event_sub *s) { (void)s; }
void events_publish(struct front *f, const char *sandbox, const char *tenant, const char *type, const char *json)
{
    (void)f, (void)sandbox, (void)tenant, (void)type, (void)json;
}
void metrics_each(const struct box *b, uint64_t from, uint64_t to, void (*each)(void *arg, const struct metric *m),
                  void *arg)
{
    struct metric m = {.at_unix_ms = 5000, .memory = 1 << 20, .cpu_milli_used = 500};
    (void)b;
    if (from <= 5000 && to >= 5000)
        each(arg, &m);
}
bool metrics_last(const struct box *b, struct metric *ret)
{
    (void)b;
    *ret = (struct metric){.at_unix_ms = 5000, .memory = 1 << 20, .cpu_milli_used = 500};
    return true;
}

/* ---- links: commands ---- */

static struct link_status next_status(void)
{
    struct link_status st = {.code = world.next_code};
    (void)snprintf(st.text, sizeof st.text, "%s", world.next_text);
    world.next_code = LINK_OK;
    return st;
}

/* Answers come later, from the loop, as the real ones do, and can be cancelled. */
struct later {
    struct later *next;
    link_call id;
    enum { L_DONE, L_OPENED, L_CREATED, L_INFO, L_LISTED, L_PROCS, L_DIALED } kind;
    union {
        link_done *done;
        files_opened *opened;
        files_created *created;
        files_info *info;
        files_listed *listed;
        exec_listed *procs;
        link_dialed *dialed;
    } fn;
    void *arg;
    struct link_status st;
    int fd;
    char path[300];
};
static struct later *laters;
static link_call last_call;

static struct file_info info_of(const char *path);
static struct file_sink *sink_of(int fd);

static void call_later(struct later *l)
{
    static const char *const args[] = {"-c", "x", NULL}, *const env[] = {"A=b=c", NULL};
    struct exec_info one = {.pid = 7, .cmd = "/bin/sh", .cwd = "/", .tag = "t", .args = args, .env = env};
    struct file_info info = info_of(l->path);
    switch (l->kind) {
    case L_DONE:
        l->fn.done(l->arg, &l->st);
        break;
    case L_OPENED:
        l->fn.opened(l->arg, &l->st, l->fd, &info);
        break;
    case L_CREATED:
        l->fn.created(l->arg, &l->st, l->st.code == LINK_OK ? sink_of(l->fd) : NULL, &info);
        break;
    case L_INFO:
        l->fn.info(l->arg, &l->st, &info);
        break;
    case L_LISTED:
        l->fn.listed(l->arg, &l->st, &info, 1);
        break;
    case L_PROCS:
        l->fn.procs(l->arg, &l->st, &one, 1);
        break;
    case L_DIALED:
        l->fn.dialed(l->arg, &l->st, -1);
        break;
    }
}

static void run_later(void *arg)
{
    struct later *mine = arg;
    for (struct later **at = &laters; *at; at = &(*at)->next)
        if (*at == mine) {
            *at = mine->next;
            call_later(mine);
            break;
        }
    free(mine); /* cancelled or done */
}

static struct later *later(int kind, const char *path, void *arg)
{
    struct later *l = xcalloc(1, sizeof *l);
    l->kind = kind;
    l->id = ++last_call;
    l->arg = arg;
    l->st = next_status();
    l->fd = -1;
    (void)snprintf(l->path, sizeof l->path, "%s", path);
    l->next = laters;
    laters = l;
    loop_defer(world.loop, run_later, l);
    return l;
}

void link_cancel(struct links *ls, link_call c)
{
    (void)ls;
    for (struct later **at = &laters; *at; at = &(*at)->next)
        if ((*at)->id == c) {
            if ((*at)->fd >= 0)
                (void)close((*at)->fd);
            *at = (*at)->next;
            return;
        }
}

static link_call later_done(link_done *done, void *arg)
{
    struct later *l = later(L_DONE, "", arg);
    l->fn.done = done;
    return l->id;
}
link_call link_hello(struct links *ls, const char *id, link_done *done, void *arg)
{
    (void)ls, (void)id;
    return later_done(done, arg);
}
link_call link_dial(struct links *ls, const char *id, uint16_t port, link_dialed *done, void *arg)
{
    (void)ls, (void)port;
    struct later *l = later(L_DIALED, "", arg);
    l->fn.dialed = done;
    l->st.code = world.dial_paused ? LINK_PAUSED : LINK_NOT_FOUND;
    if (world.dial_paused)
        box_find(&world.front, id)->state = BOX_FROZEN;
    world.dial_paused = false;
    return l->id;
}
static struct exec *remember(const struct exec_ops *o, void *arg)
{
    world.ops = o;
    world.ops_arg = arg;
    world.detached = false;
    return (struct exec *)&world;
}
struct exec *exec_start(struct links *ls, const char *id, const struct exec_spec *spec, const struct exec_ops *o,
                        void *arg)
{
    (void)ls, (void)id;
    free(world.cmd);
    world.cmd = xstrdup(spec->cmd);
    free(world.cwd);
    world.cwd = spec->cwd ? xstrdup(spec->cwd) : NULL;
    free(world.user);
    world.user = spec->user ? xstrdup(spec->user) : NULL;
    strv_done(&world.args);
    strv_done(&world.env);
    for (size_t i = 0; spec->args[i]; i++)
        strv_add(&world.args, spec->args[i]);
    for (size_t i = 0; spec->env[i]; i++)
        strv_add(&world.env, spec->env[i]);
    world.pty = spec->pty;
    world.stdin_open = spec->stdin_open;
    return remember(o, arg);
}
struct exec *exec_attach(struct links *ls, const char *id, const struct exec_select *who, const uint64_t from[4],
                         const struct exec_ops *o, void *arg)
{
    (void)ls, (void)id, (void)who;
    memcpy(world.from, from, sizeof world.from);
    return remember(o, arg);
}
void exec_resume(struct exec *x) { (void)x; }
void exec_detach(struct exec *x)
{
    (void)x;
    world.detached = true;
}
link_call exec_signal(struct links *ls, const char *id, const struct exec_select *who, int sig, link_done *done,
                      void *arg)
{
    (void)ls, (void)id, (void)who;
    world.signal = sig;
    return later_done(done, arg);
}
link_call exec_input(struct links *ls, const char *id, const struct exec_select *who, const void *p, size_t n,
                     link_done *done, void *arg)
{
    (void)ls, (void)id, (void)who;
    buf_add(&world.input, p, n);
    return later_done(done, arg);
}
link_call exec_close_input(struct links *ls, const char *id, const struct exec_select *who, link_done *done, void *arg)
{
    return exec_input(ls, id, who, "", 0, done, arg);
}
link_call exec_resize(struct links *ls, const char *id, const struct exec_select *who, uint16_t cols, uint16_t rows,
                      link_done *done, void *arg)
{
    (void)cols, (void)rows;
    return exec_input(ls, id, who, "", 0, done, arg);
}
link_call exec_list(struct links *ls, const char *id, exec_listed *done, void *arg)
{
    (void)ls, (void)id;
    struct later *l = later(L_PROCS, "", arg);
    l->fn.procs = done;
    return l->id;
}

/* ---- links: files ---- */

static void at(const char *path, char ret[300])
{
    (void)snprintf(ret, 300, "%s/%s", world.dir, path[0] == '/' ? path + 1 : path);
}
static struct file_info info_of(const char *path)
{
    static char absolute[320];
    const char *slash = strrchr(path, '/');
    (void)snprintf(absolute, sizeof absolute, "%s%s", path[0] == '/' ? "" : "/home/user/", path);
    return (struct file_info){.name = slash ? slash + 1 : path,
                              .path = absolute,
                              .type = FILE_REGULAR,
                              .mode = S_IFREG | 0644,
                              .owner = "user",
                              .group = "user"};
}
static struct later *open_at(int kind, const char *path, int flags, void *arg)
{
    char full[300];
    struct later *l = later(kind, path, arg);
    at(path, full);
    if (l->st.code == LINK_OK && (l->fd = open(full, flags | O_CLOEXEC, 0644)) < 0) {
        l->st.code = LINK_NOT_FOUND;
        (void)snprintf(l->st.text, sizeof l->st.text, "path '%.100s' does not exist", path);
    }
    return l;
}
link_call files_open(struct links *ls, const char *id, const char *user, const char *path, files_opened *done,
                     void *arg)
{
    (void)ls, (void)id, (void)user;
    struct later *l = open_at(L_OPENED, path, O_RDONLY, arg);
    l->fn.opened = done;
    return l->id;
}
link_call files_create(struct links *ls, const char *id, const char *user, const char *path,
                       const struct file_meta *meta, size_t nmeta, files_created *done, void *arg)
{
    (void)ls, (void)id, (void)user, (void)meta, (void)nmeta;
    struct later *l = open_at(L_CREATED, path, O_WRONLY | O_CREAT | O_TRUNC, arg);
    l->fn.created = done;
    return l->id;
}
struct file_sink {
    int fd;
    link_call call;
};
static struct file_sink *sink_of(int fd)
{
    struct file_sink *s = xcalloc(1, sizeof *s);
    s->fd = fd;
    return s;
}
/* world.sink_code: what the next writes and finishes answer. */
static void sink_answer(struct file_sink *s, link_done *done, void *arg)
{
    if (world.sink_code != LINK_OK) {
        world.next_code = world.sink_code;
        (void)snprintf(world.next_text, sizeof world.next_text, "%s", "the sink says no");
    }
    s->call = later_done(done, arg);
}
void sink_write(struct file_sink *s, const void *p, size_t n, link_done *done, void *arg)
{
    if (fd_write_all(s->fd, p, n) < 0)
        abort();
    sink_answer(s, done, arg);
}
void sink_finish(struct file_sink *s, link_done *done, void *arg) { sink_answer(s, done, arg); }
void sink_free(struct file_sink *s)
{
    if (!s)
        return;
    link_cancel(NULL, s->call);
    (void)close(s->fd);
    free(s);
}
static link_call answer_info(const char *path, files_info *done, void *arg)
{
    struct later *l = later(L_INFO, path, arg);
    l->fn.info = done;
    return l->id;
}
link_call files_stat(struct links *ls, const char *id, const char *user, const char *path, files_info *done, void *arg)
{
    (void)ls, (void)id, (void)user;
    return answer_info(path, done, arg);
}
link_call files_mkdir(struct links *ls, const char *id, const char *user, const char *path, files_info *done, void *arg)
{
    return files_stat(ls, id, user, path, done, arg);
}
link_call files_move(struct links *ls, const char *id, const char *user, const char *from, const char *to,
                     files_info *done, void *arg)
{
    (void)from;
    return files_stat(ls, id, user, to, done, arg);
}
link_call files_compose(struct links *ls, const char *id, const char *user, const char *const *from, size_t n,
                        const char *to, files_info *done, void *arg)
{
    (void)from, (void)n;
    return files_stat(ls, id, user, to, done, arg);
}
link_call files_remove(struct links *ls, const char *id, const char *user, const char *path, link_done *done, void *arg)
{
    (void)ls, (void)id, (void)user, (void)path;
    return later_done(done, arg);
}
link_call files_list(struct links *ls, const char *id, const char *user, const char *path, unsigned depth,
                     files_listed *done, void *arg)
{
    (void)ls, (void)id, (void)user, (void)depth;
    struct later *l = later(L_LISTED, path, arg);
    l->fn.listed = done;
    return l->id;
}
struct file_watch *files_watch(struct links *ls, const char *id, const char *user, const char *path, bool recursive,
                               bool with_info, bool network_mounts, const struct file_watch_ops *o, void *arg)
{
    (void)ls, (void)id, (void)user, (void)path, (void)recursive, (void)with_info, (void)network_mounts;
    world.watch = o;
    world.watch_arg = arg;
    world.unwatched = false;
    return (struct file_watch *)&world;
}
bool files_are_watched(struct links *ls, const char *id)
{
    (void)ls, (void)id;
    return world.watch && !world.unwatched;
}
link_call files_settle(struct links *ls, const char *id, link_done *done, void *arg)
{
    (void)ls, (void)id;
    world.settled++;
    return later_done(done, arg);
}
void files_unwatch(struct file_watch *w)
{
    (void)w;
    world.unwatched = true;
}
