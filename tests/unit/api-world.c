#include "api-world.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "api/e2b/e2b.h"
#include "api/gateway/gateway.h"
#include "api/mcp/mcp.h"
#include "api/native/native.h"
#include "await.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/sha256.h"
#include "builds/builds.h"
#include "network/networks-int.h"
#include "rooms-world.h"
#include "sandboxes/metrics.h"
#include "sandboxes/sandboxes-int.h"
#include "templates/templates-int.h"

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
    api_handle(&world.api, &a->r);
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

struct asked *ask_envd(const struct sandbox *b, const char *method, const char *target, const char *type,
                       const char *body, size_t n)
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

static const struct api_dialect *const dialects[] = {&e2b_dialect, &native_dialect, &mcp_dialect, &gateway_dialect};

static void world_put_keys(struct db *db)
{
    static const struct {
        const char *id, *key, *tenant;
        unsigned scopes;
    } v[] = {{"key_a", KEY_A, "a", SCOPE_SANDBOXES | SCOPE_TEMPLATES},
             {"key_b", KEY_B, "b", SCOPE_SANDBOXES},
             {"key_c", KEY_READ, "a", SCOPE_READ},
             {"key_d", KEY_ROOT, "a", SCOPE_ADMIN},
             {"key_e", KEY_READ_ALL, "a", SCOPE_SANDBOXES | SCOPE_TEMPLATES | SCOPE_READ},
             {"key_f", KEY_READ_ROOT, "a", SCOPE_ADMIN | SCOPE_READ},
             {"key_g", KEY_READ_FILES, "a", SCOPE_READ | SCOPE_FILES}};
    for (size_t i = 0; i < ARRAY_LEN(v); i++) {
        char digest[SHA256_HEX];
        sha256_hex(v[i].key, strlen(v[i].key), digest);
        db_key_put(
            db,
            &(struct db_key){
                .id = v[i].id, .tenant = v[i].tenant, .name = "", .hint = "", .digest = digest, .scopes = v[i].scopes},
            NULL, NULL);
    }
}

/* What an earlier front left in the database: two tenants, their keys, and a volume of the first. */
static void world_put_rows(void)
{
    struct err err = {0};
    struct db *db = NULL;
    struct loop *own = NULL;
    if (loop_new(&own, &err) < 0 || db_open(own, rooms.dir_fd, rooms.dir, &db, &err) < 0)
        fail_msg("%s", err.msg);
    db_tenant_put(db, &(struct db_tenant){.id = "a", .name = "A"}, NULL, NULL);
    db_tenant_put(db, &(struct db_tenant){.id = "b", .name = ""}, NULL, NULL);
    world_put_keys(db);
    db_volume_put(db,
                  &(struct db_volume){.id = WORLD_VOLUME, .name = "data", .tenant = "a", .token = WORLD_VOLUME_TOKEN},
                  NULL, NULL);
    loop_settle(own);
    db_close(db);
    loop_free(own);
}

static void world_open_builds(void)
{
    struct err err = {0};
    if (builds_open(&(struct builds_deps){.loop = rooms.loop,
                                          .config = &rooms.config,
                                          .db = rooms.db,
                                          .peers = &rooms.peers,
                                          .tenants = rooms.tenants,
                                          .stacks = rooms.stacks,
                                          .templates = rooms.templates,
                                          .sandboxes = rooms.sandboxes,
                                          .network = nets_on(rooms.network),
                                          .own_dir = rooms.dir_fd,
                                          .id_key = world.api.link_key},
                    &world.api.builds, &err) < 0)
        fail_msg("%s", err.msg);
}

void world_restart_builds(void)
{
    builds_free(world.api.builds);
    world_open_builds();
}

static void world_open_api(void)
{
    world.api = (struct api){.loop = rooms.loop,
                             .config = &rooms.config,
                             .domain = &api_domain_local,
                             .db = rooms.db,
                             .peers = &rooms.peers,
                             .tenants = rooms.tenants,
                             .stacks = rooms.stacks,
                             .templates = rooms.templates,
                             .events = rooms.events,
                             .sandboxes = rooms.sandboxes,
                             .network = rooms.network,
                             .snapshots = rooms.snapshots,
                             .volumes = rooms.volumes,
                             .own_dir = rooms.dir_fd};
    world_open_builds();
    api_open(&world.api, dialects, ARRAY_LEN(dialects));
}

static int world_start_with(bool egress)
{
    memset(&world, 0, sizeof world);
    log_open("test", LOG_LEVEL_ERROR, 2);
    if (rooms_prepare("api") < 0 || mkdirat(rooms.dir_fd, "base", 0755) < 0 || mkdirat(rooms.dir_fd, "files", 0755) < 0)
        return -1;
    world.loop = rooms.loop;
    loop_set_clock(world.loop, await_clock_ms, &world.clock_add_ms);
    world.config = &rooms.config;
    world.config->domain = xstrdup("hutch.test:7443");
    world.config->max_timeout_s = 3600;
    rooms.peers = (struct peers){
        .keeper = (struct keeperc *)&world, .layers = (struct layersc *)&world, .links = (struct links *)&world};
    rooms.with_egress = egress;
    (void)snprintf(world.dir, sizeof world.dir, "%s/files", rooms.dir);
    world_put_rows();
    rooms_start();
    world_open_api();
    world.tenant[0] = tenants_find(rooms.tenants, "a");
    world.tenant[1] = tenants_find(rooms.tenants, "b");
    return 0;
}

int world_start(void **state)
{
    (void)state;
    return world_start_with(true);
}
int world_start_without_egress(void **state)
{
    (void)state;
    return world_start_with(false);
}

static void world_turn(void)
{
    struct err err;
    assert_int_equal(loop_step(world.loop, 5, &err), 0);
}

int world_end(void **state)
{
    (void)state;
    rooms_step(3, world_turn); /* who waits for a row is told */
    metrics_free(rooms.sandboxes);
    builds_free(world.api.builds);
    rooms_stop();
    api_close(&world.api);
    world_peers_end();
    return rooms_done();
}

struct sandbox *world_find(const char *id) { return sandbox_lookup(world.api.sandboxes, id); }

struct sandbox *world_sandbox(const char *id, unsigned tenant, uint64_t started_ms)
{
    struct err err;
    struct sandbox_own *o = sandbox_new(rooms.sandboxes, world.tenant[tenant], id);
    struct sandbox *b = &o->b;
    b->state = SANDBOX_RUNNING;
    o->row_state = DB_SANDBOX_RUNNING;
    o->started_boot_ms = clock_boot_ms();
    o->end_boot_ms = o->started_boot_ms + 300000;
    (void)snprintf(b->desc.template, sizeof b->desc.template, "%s", "base");
    (void)snprintf(b->token, sizeof b->token, "%s", "0tQG31xiMp0IOQfaz9dcwi72L1CPo8e0");
    (void)snprintf(b->desc.tier, sizeof b->desc.tier, "%s", "container");
    b->desc.allow_public_traffic = true;
    b->started_unix_ms = started_ms;
    b->end_unix_ms = started_ms + 300000;
    b->desc.cpu_milli = 2000;
    b->desc.memory = 512 << 20;
    struct tenant_need need = sandbox_need(b);
    tenant_count(b->tenant, &need);
    if (net_attach(rooms.network, b, NULL, &err) < 0)
        fail_msg("%s", err.msg);
    sandbox_write(rooms.sandboxes, b, NULL, NULL, NULL);
    events_publish(rooms.events, b->id, b->tenant->id, "created", "{}");
    return b;
}

const struct template *world_template(const char *id, const char *name, unsigned tenant)
{
    struct template t = {.tenant = world.tenant[tenant], .kind = TEMPLATE_SNAPSHOT, .ntags = 1};
    t.tags = xcalloc(1, sizeof *t.tags);
    (void)snprintf(t.tags[0].tag, sizeof t.tags[0].tag, "default");
    t.tags[0].created_unix_ms = 1000 + world.ntemplates++;
    (void)snprintf(t.id, sizeof t.id, "%s", id);
    (void)snprintf(t.name, sizeof t.name, "%s", name);
    return &template_row_add(rooms.templates, &t)->t;
}

void world_template_dir(const char *name, bool there)
{
    assert_int_equal(there ? mkdirat(rooms.dir_fd, name, 0755) : unlinkat(rooms.dir_fd, name, AT_REMOVEDIR), 0);
}

void world_measure(unsigned n)
{
    struct err err;
    unsigned all = n * (unsigned)sandboxes_count(rooms.sandboxes);
    metrics_start(rooms.sandboxes);
    AWAIT (world.usages >= all) {
        world.clock_add_ms += 1000;
        assert_int_equal(loop_step(world.loop, 1, &err), 0);
    }
}

void world_fail_writes(bool on)
{
    static struct rlimit before;
    struct rlimit none = {0};
    if (on) {
        (void)signal(SIGXFSZ, SIG_IGN);
        assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
        none.rlim_max = before.rlim_max;
    }
    assert_int_equal(setrlimit(RLIMIT_FSIZE, on ? &none : &before), 0);
}
