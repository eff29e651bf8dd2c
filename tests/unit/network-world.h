/* network-world.h - the rooms of rooms-world.h with a keeper, an init and an egress that do what the test says. */
#ifndef NETWORK_WORLD_H
#define NETWORK_WORLD_H

#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>

#include "base/base64.h"
#include "base/cleanup.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/mem.h"
#include "egress/core/proto.h"
#include "egress/secrets/seal.h"
#include "egress/secrets/secrets.h"
#include "network/secrets.h"
#include "peers/exec.h"
#include "rooms-world.h"
#include "sandboxes/sandboxes-int.h"

/* --- keeper and init do whatever they are asked ------------------------------------------------------------------- */

static char bound_env[8192];

void keeperc_create(struct keeperc *kc, const struct keeper_create *c, keeperc_done *done, void *arg)
{
    (void)kc, (void)c;
    done(arg, &(struct keeper_reply){.tier = "container"});
}
void keeperc_kill(struct keeperc *kc, const char *id, keeperc_done *done, void *arg)
{
    (void)kc, (void)id;
    if (done)
        done(arg, &(struct keeper_reply){0});
}
void keeperc_deadline(struct keeperc *kc, const char *id, uint64_t at, keeperc_done *done, void *arg)
{
    (void)kc, (void)id, (void)at;
    done(arg, &(struct keeper_reply){0});
}
void keeperc_usage(struct keeperc *kc, const char *id, keeperc_done *done, void *arg)
{
    (void)kc, (void)id;
    done(arg, &(struct keeper_reply){0});
}
void keeperc_forget(struct keeperc *kc, const char *id) { (void)kc, (void)id; }
void keeperc_list(struct keeperc *kc, keeperc_listed *done, void *arg)
{
    (void)kc;
    done(arg, NULL, 0);
}
void keeperc_limit(struct keeperc *k, const char *id, uint64_t number, uint64_t memory, keeperc_done *done, void *arg)
{
    (void)k, (void)id, (void)number, (void)memory, (void)done, (void)arg;
}
void keeperc_pause(struct keeperc *kc, const char *id, keeperc_done *done, void *arg)
{
    (void)kc, (void)id;
    done(arg, &(struct keeper_reply){0});
}
void keeperc_resume(struct keeperc *kc, const char *id, keeperc_done *done, void *arg)
{
    (void)kc, (void)id;
    done(arg, &(struct keeper_reply){0});
}
void links_gone(struct links *ls, const char *id) { (void)ls, (void)id; }
void links_paused(struct links *ls, const char *id) { (void)ls, (void)id; }
/* No template here has a command to start with. */
struct exec *exec_start(struct links *ls, const char *id, const struct exec_spec *spec, const struct exec_ops *ops,
                        void *arg)
{
    (void)ls, (void)id, (void)spec, (void)ops, (void)arg;
    return NULL;
}
void exec_detach(struct exec *x) { (void)x; }
void exec_resume(struct exec *x) { (void)x; }
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
link_call link_bind(struct links *ls, const char *id, const struct link_bind *b, link_done *done, void *arg)
{
    (void)ls, (void)id;
    size_t n = 0;
    for (size_t i = 0; b->env[i] && n < sizeof bound_env; i++)
        n += (size_t)snprintf(bound_env + n, sizeof bound_env - n, "%s\n", b->env[i]);
    done(arg, &(struct link_status){.code = LINK_OK});
    return 1;
}
link_call link_hello(struct links *ls, const char *id, link_done *done, void *arg)
{
    (void)ls, (void)id;
    done(arg, &(struct link_status){.code = LINK_OK});
    return 1;
}

/* --- egress ------------------------------------------------------------------------------------------------------- */

static uint64_t clock_add;
static struct principal who;

static struct {
    int listener, fd;
    struct buf in;
    unsigned char private_key[SEAL_KEY];
    char key[2 * SEAL_KEY + 1];
    json_t *got;        /* every message since e_forget() */
    const char *refuse; /* the text with which policies are refused */
    bool silent;        /* policies are not answered */
} e;

static void e_send(json_t *m)
{
    char *text = json_dumps(m, JSON_COMPACT);
    uint32_t n = (uint32_t)strlen(text);
    assert_int_equal(fd_write_all(e.fd, &n, 4), 0);
    assert_int_equal(fd_write_all(e.fd, text, n), 0);
    free(text);
    json_decref(m);
}

static void e_answer(const json_t *m)
{
    const char *type = json_string_value(json_object_get(m, "type"));
    if (strcmp(type, "hello") == 0)
        e_send(
            json_pack("{s:s, s:i, s:s, s:s}", "type", "hello", "version", EGRESS_VERSION, "ca", "PEM", "key", e.key));
    if (strcmp(type, "policy") == 0 && !e.silent) {
        json_t *a = json_pack("{s:s, s:O, s:O}", "type", "applied", "sandbox", json_object_get(m, "sandbox"), "epoch",
                              json_object_get(m, "epoch"));
        if (e.refuse)
            (void)json_object_set_new(a, "error", json_pack("{s:s, s:s}", "path", "rules[0]", "text", e.refuse));
        e_send(a);
    }
    if (strcmp(type, "stats") == 0)
        e_send(json_pack("{s:s, s:O, s:[]}", "type", "stats", "request", json_object_get(m, "request"), "sandboxes"));
}

/* Takes what is there. */
static void e_turn(void)
{
    char bytes[65536];
    ssize_t n;
    if (e.fd < 0 && e.listener >= 0)
        e.fd = accept4(e.listener, NULL, NULL, SOCK_CLOEXEC);
    while (e.fd >= 0 && (n = recv(e.fd, bytes, sizeof bytes, MSG_DONTWAIT)) > 0)
        buf_add(&e.in, bytes, (size_t)n);
    for (uint32_t size; e.in.n >= 4;) {
        memcpy(&size, e.in.p, 4);
        if (e.in.n < 4 + size)
            break;
        json_t *m = json_loadb(e.in.p + 4, size, 0, NULL);
        memmove(e.in.p, e.in.p + 4 + size, e.in.n - 4 - size);
        e.in.n -= 4 + size;
        e_answer(m);
        (void)json_array_append_new(e.got, m);
    }
}
static void e_hang_up(void)
{
    (void)close(e.fd);
    e.fd = -1;
    buf_done(&e.in);
    (void)json_array_clear(e.got);
}
/* How many messages of that type there were; *last: the newest. */
static size_t e_count(const char *type, const json_t **last)
{
    size_t n = 0;
    for (size_t i = 0; i < json_array_size(e.got); i++)
        if (strcmp(json_string_value(json_object_get(json_array_get(e.got, i), "type")), type) == 0) {
            n++;
            if (last)
                *last = json_array_get(e.got, i);
        }
    return n;
}

static void turn(void)
{
    struct err err;
    e_turn();
    assert_int_equal(loop_step(rooms.loop, 2, &err), 0);
}
static void step(int n) { rooms_step(n, turn); }
static void until_message(const char *type, size_t n)
{
    AWAIT (e_count(type, NULL) >= n)
        step(1);
    if (e_count(type, NULL) < n)
        fail_msg("%zu messages \"%s\", wanted %zu", e_count(type, NULL), type, n);
}

/* --- the world ---------------------------------------------------------------------------------------------------- */

static void start(void)
{
    rooms_start();
    who = (struct principal){.tenant = tenants_find(rooms.tenants, TENANT_DEFAULT), .scopes = SCOPE_SANDBOXES};
    until_message("synced", 1);
}
static void stop(void)
{
    step(3);
    rooms_stop();
    e_hang_up();
}
static int set_up(void **state)
{
    struct err err;
    struct sockaddr_un sa = {.sun_family = AF_UNIX};
    unsigned char public[SEAL_KEY];
    (void)state;
    memset(&e, 0, sizeof e);
    clock_add = 0;
    e.fd = -1;
    e.got = json_array();
    log_open("test", LOG_LEVEL_ERROR, open("/dev/null", O_WRONLY | O_CLOEXEC));
    if (rooms_prepare("network") < 0 || seal_new_key(e.private_key, &err) < 0 ||
        seal_public(e.private_key, public, &err) < 0)
        return -1;
    for (size_t i = 0; i < SEAL_KEY; i++)
        (void)snprintf(e.key + 2 * i, 3, "%02x", public[i]);
    loop_set_clock(rooms.loop, await_clock_ms, &clock_add);
    (void)snprintf(sa.sun_path, sizeof sa.sun_path, "%s/" EGRESS_SOCKET, rooms.dir);
    e.listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (bind(e.listener, (struct sockaddr *)&sa, sizeof sa) < 0 || listen(e.listener, 4) < 0)
        return -1;
    rooms.with_egress = true;
    start();
    return 0;
}
static int tear_down(void **state)
{
    (void)state;
    stop();
    json_decref(e.got);
    (void)close(e.listener);
    return rooms_done();
}

struct answer {
    int calls;
    unsigned status;
    char id[SANDBOX_ID_MAX], text[600];
};
static void created(void *arg, struct sandbox *b, const struct sandbox_failure *failure)
{
    struct answer *a = arg;
    a->calls++;
    a->status = failure ? failure->status : 201;
    (void)snprintf(a->id, sizeof a->id, "%s", b ? b->id : "");
    (void)snprintf(a->text, sizeof a->text, "%s", failure ? failure->text : "");
}
static void decided(void *arg, unsigned status, const char *text)
{
    struct answer *a = arg;
    a->calls++;
    a->status = status;
    (void)snprintf(a->text, sizeof a->text, "%s", text);
}
static void sealed(void *arg, const struct err *err)
{
    struct answer *a = arg;
    a->calls++;
    a->status = err ? 1 : 0;
    (void)snprintf(a->text, sizeof a->text, "%.599s", err ? err->msg : "");
}
/* For what egress does not answer nobody waits as long as front does. */
static void wait_for(const struct answer *a)
{
    AWAIT (a->calls != 0) {
        step(1);
        clock_add += e.silent ? 500 : 0;
    }
    assert_int_equal(a->calls, 1);
}
static void begin_make(const char *document, struct answer *a)
{
    _cleanup_net_doc_ struct net_doc doc = {0};
    struct err err;
    struct sandbox_spec spec = {.desc.template = "host", .desc.timeout_s = 60, .desc.secure = true};
    if (net_doc_text(document, strlen(document), &doc, &err) < 0)
        fail_msg("%s", err.msg);
    spec.net = &doc;
    sandbox_create(rooms.sandboxes, &who, &spec, created, a);
}
static struct answer make(const char *document)
{
    static struct answer a;
    a = (struct answer){0};
    begin_make(document, &a);
    wait_for(&a);
    return a;
}
static struct answer set(struct sandbox *b, const char *document, uint64_t expected)
{
    static struct answer a;
    _cleanup_net_doc_ struct net_doc doc = {0};
    struct err err;
    a = (struct answer){0};
    if (net_doc_text(document, strlen(document), &doc, &err) < 0)
        fail_msg("%s", err.msg);
    net_set(rooms.network, b, &doc, NET_WHOLE, expected, decided, &a);
    wait_for(&a);
    return a;
}
static struct answer put_secret(const char *name, const char *value, const char *spec)
{
    static struct answer a;
    json_t *json = json_loads(spec, 0, NULL);
    struct sealed_change c = {.tenant = who.tenant->id,
                              .name = name,
                              .value = value,
                              .nvalue = strlen(value),
                              .spec = json,
                              .how = VAULT_EITHER};
    a = (struct answer){0};
    sealed_put(rooms.network, &c, sealed, &a);
    wait_for(&a);
    json_decref(json);
    return a;
}

#define BOUND    "{\"bind\":[{\"hosts\":[\"a.test\"]}],\"inject\":{\"type\":\"bearer\"}}"
#define ONE_HOST "{\"version\":1,\"default\":\"deny\",\"rules\":[{\"id\":\"r\",\"hosts\":[\"a.test\"]}]}"
#define OTHER    "{\"version\":1,\"default\":\"deny\",\"rules\":[{\"id\":\"r\",\"hosts\":[\"b.test\"]}]}"

#endif
