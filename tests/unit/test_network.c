/* Networks, secrets and approvals of sandboxes with a real database and a real connection to an egress that the test plays. */
#include "await.h"
#include "network/networks.h"

#include "network-world.h"
#include "network/networks-int.h"

/* --- tests ---------------------------------------------------------------------------------------------------------- */

static void test_a_create_waits_until_its_network_is_in_force(void **state)
{
    const json_t *m = NULL;
    (void)state;
    struct answer a = make(ONE_HOST);
    assert_int_equal(a.status, 201);
    assert_int_equal(e_count("policy", &m), 1);
    assert_string_equal(json_string_value(json_object_get(m, "sandbox")), a.id);
    assert_string_equal(json_string_value(json_object_get(m, "tenant")), TENANT_DEFAULT);
    assert_int_equal(json_integer_value(json_object_get(m, "epoch")), 1);
    assert_non_null(strstr(bound_env, "SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt\n"));
    assert_non_null(strstr(bound_env, "NODE_EXTRA_CA_CERTS=/etc/hutch/ca.pem\n"));
    sandbox_kill(rooms.sandboxes, sandbox_find(rooms.sandboxes, a.id), "api", NULL, NULL);
    until_message("forget", 1);
}

static void test_a_create_fails_when_egress_does_not_answer(void **state)
{
    (void)state;
    e.silent = true;
    struct answer a = make(ONE_HOST);
    assert_int_equal(a.status, 503);
    assert_non_null(strstr(a.text, "egress does not answer"));
    assert_int_equal(sandboxes_count(rooms.sandboxes), 0);
    until_message("forget", 1);
}

/* A machine that has no time for egress for a while is no reason to refuse. */
static void test_a_create_waits_for_an_egress_that_is_slow(void **state)
{
    struct answer a = {0};
    const json_t *m = NULL;
    (void)state;
    e.silent = true;
    begin_make(ONE_HOST, &a);
    until_message("policy", 1);
    clock_add += 5000;
    step(3);
    assert_int_equal(a.calls, 0);
    e.silent = false;
    (void)e_count("policy", &m);
    e_answer(m);
    wait_for(&a);
    assert_int_equal(a.status, 201);
}

/* One that is not there is waited for as long as it takes to start it again, and no longer. */
static void test_a_create_fails_soon_when_there_is_no_egress(void **state)
{
    struct answer a = {0};
    (void)state;
    (void)close(e.listener);
    e.listener = -1;
    e_hang_up();
    AWAIT (!egressc_is_up(rooms.network->client))
        step(1);
    begin_make(ONE_HOST, &a);
    step(3);
    assert_int_equal(a.calls, 0);
    clock_add += EGRESSC_AWAY_MS;
    step(3);
    assert_int_equal(a.calls, 1);
    assert_int_equal(a.status, 503);
    assert_non_null(strstr(a.text, "egress is not there"));
}

static void test_a_network_survives_front_and_egress(void **state)
{
    const json_t *m = NULL;
    (void)state;
    struct answer a = make(ONE_HOST);
    assert_int_equal(set(sandbox_find(rooms.sandboxes, a.id), OTHER, 1).status, 0);
    e_hang_up();
    until_message("synced", 1);
    assert_int_equal(e_count("policy", &m), 1);
    assert_int_equal(json_integer_value(json_object_get(m, "epoch")), 2);
    stop();
    start();
    assert_int_equal(e_count("policy", &m), 1);
    assert_int_equal(json_integer_value(json_object_get(m, "epoch")), 2);
    assert_non_null(strstr(sandbox_find(rooms.sandboxes, a.id)->net->doc.effective, "b.test"));
    sandbox_kill(rooms.sandboxes, sandbox_find(rooms.sandboxes, a.id), "api", NULL, NULL);
    stop();
    start();
    assert_int_equal(e_count("policy", NULL), 0);
}

static void resumed(void *arg, const struct state_failure *failure)
{
    struct answer *a = arg;
    a->calls++;
    a->status = failure ? failure->status : 0;
    (void)snprintf(a->text, sizeof a->text, "%s", failure ? failure->text : "");
}

static void test_what_dies_while_its_network_is_set_up_again_is_not_resumed(void **state)
{
    const json_t *m = NULL;
    (void)state;
    struct answer a = make(ONE_HOST), r = {0};
    struct sandbox *b = sandbox_find(rooms.sandboxes, a.id);
    struct tenant_need need = sandbox_need(b);
    tenant_give_back(rooms.tenants, b->tenant, &need, true);
    sandbox_count_stored(rooms.sandboxes, b, true);
    sandbox_own(b)->row_state = DB_SANDBOX_STORED;
    b->state = SANDBOX_STORED;
    e.silent = true;
    sandbox_resume(rooms.sandboxes, b, 1, resumed, &r);
    until_message("policy", 2);
    step(3);
    assert_int_equal(b->state, SANDBOX_RESTORE_BOUND); /* init has it: its death is told by keeper only */
    struct keeper_death d = {.cause = KEEPER_DIED_TTL};
    memcpy(d.id, b->id, sizeof d.id);
    sandboxes_keeper_died(rooms.sandboxes, &d);
    e.silent = false;
    (void)e_count("policy", &m);
    e_answer(m);
    wait_for(&r);
    assert_int_equal(r.status, 503);
    assert_int_equal(b->state, SANDBOX_STORED);
    r = (struct answer){0};
    sandbox_resume(rooms.sandboxes, b, 60, resumed, &r);
    wait_for(&r);
    assert_int_equal(r.status, 0);
    assert_int_equal(b->state, SANDBOX_RUNNING);
}

static void e_usage(const char *type, const char *what, const char *name, int requests, const char *host, int down)
{
    e_send(json_pack("{s:s, s:s, s:i, s:i, s:{s:{s:i, s:i}}}", "type", type, what, name, "requests", requests,
                     "bytes_down", down, "hosts", host, "requests", requests, "bytes_down", down));
}
static json_int_t counted(const json_t *m, const char *host, const char *counter)
{
    const json_t *u = json_object_get(m, "usage");
    return json_integer_value(json_object_get(host ? json_object_get(json_object_get(u, "hosts"), host) : u, counter));
}
/* The seed of the sandbox, or ("") of the tenant; how many there were. */
static size_t seeds(const char *sandbox, const json_t **last)
{
    size_t n = 0;
    for (size_t i = 0; i < json_array_size(e.got); i++) {
        const json_t *m = json_array_get(e.got, i);
        const char *of = json_string_value(json_object_get(m, "sandbox"));
        if (strcmp(json_string_value(json_object_get(m, "type")), "seed") != 0 || strcmp(of ? of : "", sandbox) != 0)
            continue;
        assert_int_equal(
            e_count("policy", NULL) > 0 && i > 0 &&
                !strcmp(json_string_value(json_object_get(json_array_get(e.got, i - 1), "type")), "policy"),
            0); /* before the policy */
        n++;
        *last = m;
    }
    return n;
}

static void test_counters_survive_front_and_egress(void **state)
{
    const json_t *m = NULL;
    (void)state;
    struct answer a = make(ONE_HOST);
    assert_int_equal(e_count("seed", NULL), 0); /* nothing was counted */
    step(3);
    for (int i = 1; i <= 30; i++) {
        e_usage("usage", "sandbox", a.id, i, "a.test", 2 * i);
        e_usage("tenant_usage", "tenant", TENANT_DEFAULT, 10 * i, "a.test", 20 * i);
        if (i % 10 == 0)
            step(1);
        assert_true(db_queued(rooms.db) <= 2); /* one of the tenant's at a time, whatever egress says */
    }
    e_usage("usage", "sandbox", a.id, 31, "b.test", 7);
    step(20);
    e_hang_up();
    until_message("synced", 1);
    assert_int_equal(seeds(a.id, &m), 1);
    assert_int_equal(counted(m, NULL, "requests"), 31);
    assert_int_equal(counted(m, "a.test", "bytes_down"), 60);
    assert_int_equal(counted(m, "b.test", "bytes_down"), 7);
    assert_int_equal(seeds("", &m), 1);
    assert_int_equal(counted(m, NULL, "requests"), 300);
    assert_int_equal(set(sandbox_find(rooms.sandboxes, a.id), OTHER, 1).status, 0);
    assert_int_equal(e_count("seed", NULL), 2); /* once is enough */
    stop();
    start();
    assert_int_equal(seeds(a.id, &m), 1);
    assert_int_equal(counted(m, NULL, "requests"), 31);
    assert_int_equal(counted(m, "a.test", "bytes_down"), 60);
    assert_int_equal(seeds("", &m), 1);
    assert_int_equal(counted(m, "a.test", "bytes_down"), 600);
    sandbox_kill(rooms.sandboxes, sandbox_find(rooms.sandboxes, a.id), "api", NULL, NULL);
    stop();
    start();
    assert_int_equal(e_count("seed", NULL), 0); /* nobody of this tenant is there */
    assert_int_equal(make(ONE_HOST).status, 201);
    assert_int_equal(seeds("", &m), 1);
    assert_int_equal(counted(m, NULL, "requests"), 300);
}

static void see_usage(void *arg, const char *tenant, const char *sandbox, const char *counters)
{
    (void)sandbox, (void)counters;
    *(int *)arg += strcmp(tenant, "acme") == 0;
}
static int rows_of_acme(void)
{
    struct err err;
    int n = 0;
    step(3);
    assert_int_equal(db_usages(rooms.db, see_usage, &n, &err), 0);
    return n;
}
static void put_acme(void)
{
    struct answer a = {0};
    tenant_put(rooms.tenants, "acme", "acme", &(struct quota){0}, sealed, &a);
    wait_for(&a);
    assert_int_equal(a.status, 0);
    who.tenant = tenants_find(rooms.tenants, "acme");
}

static void test_counters_go_with_their_tenant(void **state)
{
    const json_t *m = NULL;
    (void)state;
    put_acme();
    e_usage("tenant_usage", "tenant", "acme", 3, "a.test", 30);
    step(20);
    assert_int_equal(rows_of_acme(), 1);
    struct answer a = {0};
    tenant_remove(rooms.tenants, "acme", sealed, &a);
    e_usage("tenant_usage", "tenant", "acme", 4, "b.test", 40); /* on its way while the row goes */
    wait_for(&a);
    assert_int_equal(a.status, 0);
    until_message("forget", 1);
    (void)e_count("forget", &m);
    assert_string_equal(json_string_value(json_object_get(m, "tenant")), "acme");
    e_usage("tenant_usage", "tenant", "acme", 5, "c.test", 50); /* and late */
    step(20);
    assert_int_equal(rows_of_acme(), 0);
    put_acme();
    assert_int_equal(make(ONE_HOST).status, 201);
    assert_int_equal(e_count("seed", NULL), 0); /* it is another one */
}

#define PROXY "{\"upstream_proxy\":{\"address\":\"P.test:1080\",\"username\":\"joe\"%s}}"

/* What egress was told last opens with its key, for this address and user only. */
static void expect_password(const char *wanted)
{
    const json_t *m = NULL;
    struct err err;
    char got[SECRET_PROXY_PASSWORD_MAX + 1] = "";
    assert_true(e_count("policy", &m) > 0);
    const char *text = json_string_value(json_object_get(m, "proxy_password"));
    if (!wanted) {
        assert_null(text);
        return;
    }
    assert_non_null(text);
    struct secrets *vault = secrets_new(e.private_key);
    assert_int_equal(secrets_proxy_password(vault, text, "p.test:1080", "joe", got, &err), 0);
    assert_string_equal(got, wanted);
    assert_int_equal(secrets_proxy_password(vault, text, "q.test:1080", "joe", got, &err), -1);
    assert_int_equal(secrets_proxy_password(vault, text, "p.test:1080", "eve", got, &err), -1);
    assert_int_equal(secrets_proxy_password(NULL, text, "p.test:1080", "joe", got, &err), -1);
    secrets_free(vault);
}
static struct answer change(struct sandbox *b, const char *patch)
{
    static struct answer a;
    _cleanup_net_doc_ struct net_doc doc = {0};
    struct err err;
    json_t *json = json_loads(patch, 0, NULL);
    a = (struct answer){0};
    if (net_doc_patch(b->net->doc.document, b->net->doc.e2b, b->net->doc.proxy_password, json, &doc, &err) < 0)
        fail_msg("%s", err.msg);
    json_decref(json);
    net_set(rooms.network, b, &doc, NET_PART, 0, decided, &a);
    wait_for(&a);
    return a;
}
static void expect_nowhere(const char *text)
{
    static const char *const files[] = {DB_FILE, DB_FILE "-wal"};
    for (size_t i = 0; i < 2; i++) {
        _cleanup_buf_ struct buf all = {0};
        if (fd_read_file(rooms.dir_fd, files[i], 64 << 20, &all) == 0)
            assert_null(memmem(all.p, all.n, text, strlen(text)));
    }
}

static void test_the_password_of_a_proxy_is_sealed_and_kept_apart(void **state)
{
    _cleanup_net_doc_ struct net_doc doc = {0};
    char text[400];
    struct err err;
    (void)state;
    struct answer a = make(ONE_HOST);
    struct sandbox *b = sandbox_find(rooms.sandboxes, a.id);
    (void)snprintf(text, sizeof text, PROXY, ",\"password\":\"s3cret-of-joe\"");
    json_t *json = json_loads(text, 0, NULL);
    assert_int_equal(net_doc_read(json, &doc, &err), 0);
    json_decref(json);
    assert_null(strstr(doc.document, "s3cret"));
    assert_null(strstr(doc.effective, "s3cret"));
    struct answer done = {0};
    net_set(rooms.network, b, &doc, NET_WHOLE, 0, decided, &done);
    wait_for(&done);
    assert_int_equal(done.status, 0);
    expect_password("s3cret-of-joe");
    assert_int_equal(change(b, "{\"add\":[{\"id\":\"x\",\"hosts\":[\"x.test\"]}]}").status, 0);
    expect_password("s3cret-of-joe");
    stop();
    start();
    expect_password("s3cret-of-joe");
    expect_nowhere("s3cret-of-joe");
    /* Another proxy has no password until somebody gives it one. */
    b = sandbox_find(rooms.sandboxes, a.id);
    (void)snprintf(text, sizeof text, "{\"set\":" PROXY "}", "");
    assert_int_equal(change(b, text).status, 0);
    expect_password(NULL);
    (void)snprintf(text, sizeof text, "{\"set\":" PROXY "}", ",\"password\":\"another\"");
    assert_int_equal(change(b, text).status, 0);
    expect_password("another");
    assert_int_equal(change(b, "{\"set\":{\"upstream_proxy\":null}}").status, 0);
    expect_password(NULL);
    json = json_pack("{s:{s:s, s:s, s:s}}", "egressProxy", "address", "p.test:1080", "username", "joe", "password",
                     "e2b!");
    net_doc_done(&doc);
    assert_int_equal(net_doc_e2b(json, -1, NULL, &doc, &err), 0);
    json_decref(json);
    assert_null(strstr(doc.e2b, "e2b!"));
    assert_non_null(strstr(doc.e2b, "joe"));
    assert_non_null(doc.proxy_password);
    assert_null(strstr(doc.proxy_password, "e2b!"));
}

static void test_a_change_is_refused_for_another_epoch_and_undone_when_egress_refuses(void **state)
{
    (void)state;
    struct answer a = make(ONE_HOST), r;
    struct sandbox *b = sandbox_find(rooms.sandboxes, a.id);
    r = set(b, OTHER, 7);
    assert_int_equal(r.status, 409);
    e.refuse = "cannot be";
    r = set(b, OTHER, 1);
    assert_int_equal(r.status, 400);
    assert_non_null(strstr(r.text, "rules[0]: cannot be"));
    assert_non_null(strstr(b->net->doc.effective, "a.test"));
    e.refuse = NULL;
    e.silent = true;
    r = set(b, OTHER, 0);
    assert_int_equal(r.status, 503);
    assert_non_null(strstr(b->net->doc.effective, "b.test"));
}

static void test_a_secret_is_sealed_and_nothing_else_is_kept(void **state)
{
    static const char spec[] = "{\"env\":\"KEY\",\"bind\":[{\"hosts\":[\"a.test\"]}],\"inject\":{\"type\":\"bearer\"}}";
    _cleanup_buf_ struct buf sealed_bytes = {0}, plain = {0}, file = {0};
    const json_t *m = NULL;
    struct err err;
    (void)state;
    assert_int_equal(put_secret("llm", "sk-very-secret", spec).status, 0);
    until_message("secret", 1);
    (void)e_count("secret", &m);
    const char *text = json_string_value(json_object_get(m, "sealed"));
    assert_true(base64_decode(&sealed_bytes, text, strlen(text)));
    _cleanup_free_ char *context = secret_context(TENANT_DEFAULT, "llm");
    assert_int_equal(seal_open(e.private_key, context, sealed_bytes.p, sealed_bytes.n, &plain, &err), 0);
    assert_string_equal(buf_str(&plain), "sk-very-secret");
    /* Inside there is a placeholder, and it stays the same for the next version. */
    struct answer a = make("{\"version\":1,\"rules\":[{\"id\":\"r\",\"hosts\":[\"a.test\"],\"secrets\":[\"llm\"]}]}");
    assert_int_equal(a.status, 201);
    const struct sandbox_net *net = sandbox_find(rooms.sandboxes, a.id)->net;
    assert_string_equal(net->placeholders.v[0], "llm");
    _cleanup_free_ char *variable = xasprintf("KEY=%s\n", net->placeholders.v[1]);
    assert_non_null(strstr(bound_env, variable));
    assert_int_equal(put_secret("llm", "sk-newer", spec).status, 0);
    assert_int_equal(sealed_find(rooms.network, TENANT_DEFAULT, "llm")->revision, 2);
    stop();
    assert_int_equal(fd_read_file(rooms.dir_fd, DB_FILE, 16 << 20, &file), 0);
    assert_null(memmem(file.p, file.n, "very-secret", 11));
    start();
    assert_int_equal(e_count("secret", NULL), 1);
    assert_non_null(strstr(variable, sandbox_find(rooms.sandboxes, a.id)->net->placeholders.v[1]));
}

static void test_a_secret_that_is_not_there_refuses_the_create(void **state)
{
    (void)state;
    struct answer a = make("{\"version\":1,\"rules\":[{\"id\":\"r\",\"hosts\":[\"a.test\"],\"secrets\":[\"none\"]}]}");
    assert_int_equal(a.status, 400);
    assert_non_null(strstr(a.text, "secret 'none'"));
    assert_int_equal(sandboxes_count(rooms.sandboxes), 0);
}

static void test_headers_are_told_once_and_taken_back_with_the_last_user(void **state)
{
    _cleanup_net_doc_ struct net_doc doc = {0};
    struct answer a = {0}, b = {0};
    struct err err;
    (void)state;
    json_t *net = json_loads("{\"rules\":{\"a.test\":[{\"transform\":{\"headers\":{\"X-One\":\"1\"}}}]}}", 0, NULL);
    assert_int_equal(net_doc_e2b(net, -1, NULL, &doc, &err), 0);
    json_decref(net);
    struct sandbox_spec spec = {.desc.template = "host", .desc.timeout_s = 60, .desc.secure = true, .net = &doc};
    sandbox_create(rooms.sandboxes, &who, &spec, created, &a);
    wait_for(&a);
    sandbox_create(rooms.sandboxes, &who, &spec, created, &b);
    wait_for(&b);
    assert_int_equal(e_count("secret", NULL), 1);
    sandbox_kill(rooms.sandboxes, sandbox_find(rooms.sandboxes, a.id), "api", NULL, NULL);
    until_message("forget", 1);
    assert_int_equal(e_count("unsecret", NULL), 0);
    sandbox_kill(rooms.sandboxes, sandbox_find(rooms.sandboxes, b.id), "api", NULL, NULL);
    until_message("unsecret", 1);
}

static void ask_for(const char *sandbox, const char *id)
{
    e_send(json_pack("{s:s, s:s, s:s, s:s, s:i, s:s, s:s, s:b}", "type", "ask", "sandbox", sandbox, "id", id, "host",
                     "b.test", "port", 443, "method", "GET", "path", "/x", "tls", 1));
    step(5);
}
static void count_approval(void *arg, const struct approval *x)
{
    (void)x;
    ++*(int *)arg;
}
static struct answer decide(const char *tenant, const char *id, enum approval_decision d, unsigned minutes)
{
    static struct answer a;
    a = (struct answer){0};
    approval_decide(rooms.network, tenant, id, d, minutes, decided, &a);
    wait_for(&a);
    return a;
}

static void test_an_approval_becomes_a_rule_and_goes_when_used(void **state)
{
    (void)state;
    struct answer a = make(ONE_HOST);
    const struct sandbox_net *net = sandbox_find(rooms.sandboxes, a.id)->net;
    int n = 0;
    ask_for(a.id, "q1");
    ask_for(a.id, "q1"); /* told again after a reconnect */
    approvals_each(rooms.network, TENANT_DEFAULT, count_approval, &n);
    assert_int_equal(n, 1);
    assert_int_equal(decide("stranger", "q1", APPROVAL_ONCE, 0).status, 404);
    assert_int_equal(decide(TENANT_DEFAULT, "q1", APPROVAL_ONCE, 0).status, 0);
    assert_non_null(strstr(net->doc.effective, "grant-q1"));
    assert_non_null(strstr(net->doc.effective, "\"uses\":1"));
    assert_int_equal(decide(TENANT_DEFAULT, "q1", APPROVAL_ONCE, 0).status, 404);
    e_send(json_pack("{s:s, s:s, s:s}", "type", "used", "sandbox", a.id, "rule", "grant-q1"));
    step(10);
    assert_null(strstr(net->doc.effective, "grant-q1"));
    const json_t *told = NULL;
    (void)e_count("policy", &told); /* only parts of it were changed since the create */
    assert_int_equal(json_integer_value(json_object_get(told, "epoch")), 3);
    assert_int_equal(json_integer_value(json_object_get(told, "replaced")), 1);
    assert_int_equal(set(sandbox_find(rooms.sandboxes, a.id), OTHER, 0).status, 0);
    (void)e_count("policy", &told);
    assert_int_equal(json_integer_value(json_object_get(told, "replaced")), 4);
    ask_for(a.id, "q2");
    assert_int_equal(decide(TENANT_DEFAULT, "q2", APPROVAL_MINUTES, 5).status, 0);
    assert_non_null(strstr(net->doc.effective, "\"expires\""));
    ask_for(a.id, "q3");
    assert_int_equal(decide(TENANT_DEFAULT, "q3", APPROVAL_DENY, 0).status, 0);
    step(10);
    const json_t *m = NULL;
    (void)e_count("policy", &m);
    assert_string_equal(json_string_value(json_array_get(json_object_get(m, "denied_approvals"), 0)), "q3");
}

static void test_what_was_asked_for_is_allowed_and_no_pattern(void **state)
{
    (void)state;
    struct answer a = make(ONE_HOST);
    e_send(json_pack("{s:s, s:s, s:s, s:s, s:i, s:s, s:s, s:b}", "type", "ask", "sandbox", a.id, "id", "q", "host",
                     "b.test", "port", 443, "method", "GET", "path", "/a*/**", "tls", 1));
    step(5);
    assert_int_equal(decide(TENANT_DEFAULT, "q", APPROVAL_SANDBOX, 0).status, 0);
    assert_non_null(strstr(sandbox_find(rooms.sandboxes, a.id)->net->doc.effective, "\"/a%2A/%2A%2A\""));
}

static void test_placeholders_of_secrets_that_are_gone_go_too(void **state)
{
    (void)state;
    struct answer a = make(ONE_HOST);
    struct sandbox *b = sandbox_find(rooms.sandboxes, a.id);
    for (int i = 0; i < 5; i++) {
        char name[16], text[200];
        struct answer gone = {0};
        (void)snprintf(name, sizeof name, "s%d", i);
        assert_int_equal(put_secret(name, "value-of-it", BOUND).status, 0);
        (void)snprintf(text, sizeof text, "{\"rules\":[{\"hosts\":[\"a.test\"],\"secrets\":[\"%s\"]}]}", name);
        assert_int_equal(set(b, text, 0).status, 0);
        assert_int_equal(b->net->placeholders.n, 2);
        assert_string_equal(b->net->placeholders.v[0], name);
        sealed_remove(rooms.network, TENANT_DEFAULT, name, sealed, &gone);
        wait_for(&gone);
    }
}

/* --- shares --------------------------------------------------------------------------------------------------------- */

static void become(const char *tenant)
{
    struct answer a = {0};
    struct quota none = {0};
    if (!tenants_find(rooms.tenants, tenant)) {
        tenant_put(rooms.tenants, tenant, tenant, &none, sealed, &a);
        wait_for(&a);
    }
    who.tenant = tenants_find(rooms.tenants, tenant);
    assert_non_null(who.tenant);
}

static void test_one_tenant_cannot_use_up_the_bytes_of_secrets(void **state)
{
    static char value[VAULT_VALUE_MAX + 1];
    char name[32];
    (void)state;
    memset(value, 'v', VAULT_VALUE_MAX);
    enum { FULL = VAULT_TENANT_BYTES_MAX / VAULT_VALUE_MAX };
    become("greedy");
    for (int i = 0; i < FULL; i++) {
        (void)snprintf(name, sizeof name, "s%d", i);
        assert_int_equal(put_secret(name, value, BOUND).status, 0);
    }
    struct answer a = put_secret("more", "x", BOUND);
    assert_int_equal(a.status, 1);
    assert_non_null(strstr(a.text, "would have 4194305 bytes, and may have 4194304"));
    assert_int_equal(put_secret("s0", value, BOUND).status, 0); /* a new version takes the place of the old one */
    become("modest");
    assert_int_equal(put_secret("mine", value, BOUND).status, 0);
    become("greedy");
    struct answer gone = {0};
    sealed_remove(rooms.network, "greedy", "s1", sealed, &gone);
    wait_for(&gone);
    assert_int_equal(put_secret("more", "x", BOUND).status, 0);
}

static void test_secrets_that_are_being_stored_count_already(void **state)
{
    static char value[VAULT_VALUE_MAX + 1];
    static struct answer a[80];
    char name[32];
    int taken = 0, refused = 0;
    (void)state;
    memset(value, 'v', VAULT_VALUE_MAX);
    become("greedy");
    json_t *spec = json_loads(BOUND, 0, NULL);
    for (int i = 0; i < 80; i++) { /* all at once */
        (void)snprintf(name, sizeof name, "s%d", i);
        sealed_put(rooms.network,
                   &(struct sealed_change){.tenant = "greedy",
                                           .name = name,
                                           .value = value,
                                           .nvalue = VAULT_VALUE_MAX,
                                           .spec = spec,
                                           .how = VAULT_EITHER},
                   sealed, &a[i]);
    }
    for (int i = 0; i < 80; i++) {
        AWAIT (a[i].calls)
            step(1);
        taken += a[i].status == 0;
        refused += a[i].status != 0;
    }
    json_decref(spec);
    assert_int_equal(taken, VAULT_TENANT_BYTES_MAX / VAULT_VALUE_MAX);
    assert_int_equal(refused, 80 - taken);
}

static struct answer make_with_headers(int number)
{
    static struct answer a;
    _cleanup_net_doc_ struct net_doc doc = {0};
    _cleanup_buf_ struct buf text = {0};
    struct err err;
    a = (struct answer){0};
    buf_adds(&text, "{\"rules\":{");
    for (int i = 0; i < 10; i++)
        buf_addf(&text, "%s\"h%d.a.test\":[{\"transform\":{\"headers\":{\"X-N\":\"%d\"}}}]", i ? "," : "", i, number);
    buf_adds(&text, "}}");
    json_t *net = json_loads(buf_str(&text), 0, NULL);
    if (net_doc_e2b(net, -1, NULL, &doc, &err) < 0)
        fail_msg("%s", err.msg);
    json_decref(net);
    struct sandbox_spec spec = {.desc.template = "host", .desc.timeout_s = 60, .desc.secure = true, .net = &doc};
    sandbox_create(rooms.sandboxes, &who, &spec, created, &a);
    wait_for(&a);
    return a;
}

static void test_one_tenant_cannot_use_up_the_headers_of_the_node(void **state)
{
    (void)state;
    become("greedy");
    for (int i = 0; i < NET_HEADERS_TENANT_MAX / 10; i++)
        assert_int_equal(make_with_headers(i).status, 201);
    struct answer a = make_with_headers(9999);
    assert_int_equal(a.status, 429);
    assert_non_null(strstr(a.text, "have headers set on 200 hosts, with this one 210; they may on 200"));
    assert_int_equal(make_with_headers(0).status, 201); /* those are there already */
    become("modest");
    assert_int_equal(make_with_headers(1).status, 201);
}

static void test_one_tenant_cannot_use_up_the_questions_of_the_node(void **state)
{
    char id[32];
    int n = 0;
    const json_t *m = NULL;
    (void)state;
    become("greedy");
    for (int i = 0; i < NET_APPROVALS_TENANT_MAX / NET_APPROVALS_OF_SANDBOX_MAX; i++) {
        struct answer a = make(ONE_HOST);
        for (int k = 0; k < NET_APPROVALS_OF_SANDBOX_MAX; k++) {
            (void)snprintf(id, sizeof id, "q%d-%d", i, k);
            ask_for(a.id, id);
        }
    }
    struct answer last = make(ONE_HOST);
    assert_int_equal(e_count("unask", NULL), 0);
    ask_for(last.id, "one-more");
    until_message("unask", 1);
    (void)e_count("unask", &m);
    assert_string_equal(json_string_value(json_object_get(m, "id")), "one-more");
    assert_string_equal(json_string_value(json_object_get(m, "sandbox")), last.id);
    approvals_each(rooms.network, "greedy", count_approval, &n);
    assert_int_equal(n, NET_APPROVALS_TENANT_MAX);
    become("modest");
    struct answer b = make(ONE_HOST);
    ask_for(b.id, "mine");
    n = 0;
    approvals_each(rooms.network, "modest", count_approval, &n);
    assert_int_equal(n, 1);
    assert_int_equal(decide("greedy", "q0-0", APPROVAL_DENY, 0).status, 0);
    ask_for(last.id, "again"); /* there is room again */
    n = 0;
    approvals_each(rooms.network, "greedy", count_approval, &n);
    assert_int_equal(n, NET_APPROVALS_TENANT_MAX);
    assert_int_equal(e_count("unask", NULL), 1);
}

static void test_refusals_are_kept_for_commands_and_told_as_events(void **state)
{
    (void)state;
    struct answer a = make(ONE_HOST);
    struct sandbox *b = sandbox_find(rooms.sandboxes, a.id);
    uint64_t before = loop_now(rooms.loop);
    assert_int_equal(net_denials_since(b, before, NULL), 0);
    for (int i = 0; i < NET_DENIALS_KEPT + 5; i++)
        e_send(json_pack("{s:s, s:s, s:s, s:s, s:i}", "type", "denied", "sandbox", a.id, "reason", "host_not_allowed",
                         "host", "b.test", "port", 443));
    step(10);
    assert_int_equal(net_denials_since(b, before, NULL), NET_DENIALS_KEPT);
    assert_int_equal(net_denials_since(b, loop_now(rooms.loop) + 1, NULL), 0);
    assert_non_null(events_find(rooms.events, TENANT_DEFAULT, a.id));
}

static void answered(void *arg, json_t *answer, const char *error)
{
    struct answer *a = arg;
    a->calls++;
    a->status = answer ? 200 : 0;
    (void)snprintf(a->text, sizeof a->text, "%s", error ? error : "");
}

static void test_a_request_is_answered_or_fails_with_the_connection(void **state)
{
    struct answer a = {0}, made;
    (void)state;
    made = make(ONE_HOST);
    net_ask(rooms.network, sandbox_find(rooms.sandboxes, made.id), json_pack("{s:s}", "type", "stats"), answered, &a);
    wait_for(&a);
    assert_int_equal(a.status, 200);
    a = (struct answer){0};
    net_ask(rooms.network, sandbox_find(rooms.sandboxes, made.id), json_pack("{s:s}", "type", "learned"), answered, &a);
    until_message("learned", 1);
    e_hang_up();
    wait_for(&a);
    assert_non_null(strstr(a.text, "started again"));
}

static void test_nonsense_from_egress_ends_the_connection(void **state)
{
    (void)state;
    static const char junk[] = {5, 0, 0, 0, '[', '1', ']', ' ', ' '};
    assert_int_equal(fd_write_all(e.fd, junk, sizeof junk), 0);
    for (int i = 0; i < 20; i++)
        step(1);
    char byte;
    assert_int_equal(recv(e.fd, &byte, 1, MSG_DONTWAIT), 0);
    e_hang_up();
    until_message("synced", 1);
}

int main(void)
{
#define NET(t) cmocka_unit_test_setup_teardown(t, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        NET(test_a_create_waits_until_its_network_is_in_force),
        NET(test_a_create_fails_when_egress_does_not_answer),
        NET(test_a_create_waits_for_an_egress_that_is_slow),
        NET(test_a_create_fails_soon_when_there_is_no_egress),
        NET(test_what_dies_while_its_network_is_set_up_again_is_not_resumed),
        NET(test_counters_survive_front_and_egress),
        NET(test_counters_go_with_their_tenant),
        NET(test_the_password_of_a_proxy_is_sealed_and_kept_apart),
        NET(test_a_network_survives_front_and_egress),
        NET(test_a_change_is_refused_for_another_epoch_and_undone_when_egress_refuses),
        NET(test_a_secret_is_sealed_and_nothing_else_is_kept),
        NET(test_a_secret_that_is_not_there_refuses_the_create),
        NET(test_headers_are_told_once_and_taken_back_with_the_last_user),
        NET(test_an_approval_becomes_a_rule_and_goes_when_used),
        NET(test_secrets_that_are_being_stored_count_already),
        NET(test_one_tenant_cannot_use_up_the_bytes_of_secrets),
        NET(test_what_was_asked_for_is_allowed_and_no_pattern),
        NET(test_placeholders_of_secrets_that_are_gone_go_too),
        NET(test_one_tenant_cannot_use_up_the_headers_of_the_node),
        NET(test_one_tenant_cannot_use_up_the_questions_of_the_node),
        NET(test_refusals_are_kept_for_commands_and_told_as_events),
        NET(test_a_request_is_answered_or_fails_with_the_connection),
        NET(test_nonsense_from_egress_ends_the_connection),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
