#include "db/db.h"

#include <signal.h>
#include <sys/resource.h>

#include "db-world.h"

static void put_sandbox(const char *id, const struct db_idem *idem, struct result *r)
{
    struct db_sandbox b = {.id = id,
                           .tenant = "t",
                           .template = "base",
                           .token = "tok",
                           .state = DB_SANDBOX_RUNNING,
                           .flags = DB_SANDBOX_PUBLIC,
                           .https_ports = {8443, 9443},
                           .nhttps_ports = 2,
                           .started_unix_ms = 11,
                           .end_unix_ms = 22,
                           .cpu_milli = 2000,
                           .pids = 512,
                           .memory = 1ULL << 40,
                           .disk = 7};
    strv_add(&b.metadata, "key");
    strv_add(&b.metadata, "");
    strv_add(&b.env, "A=1");
    db_sandbox_put(db, &b, idem, done, r);
    strv_done(&b.metadata);
    strv_done(&b.env);
}

static void see_sandbox(void *arg, const struct db_sandbox *b)
{
    int *n = arg;
    ++*n;
    assert_string_equal(b->tenant, "t");
    assert_string_equal(b->token, "tok");
    assert_string_equal(b->mask_host, "");
    assert_int_equal(b->nhttps_ports, 2);
    assert_int_equal(b->https_ports[1], 9443);
    assert_int_equal(b->metadata.n, 2);
    assert_string_equal(b->metadata.v[1], "");
    assert_string_equal(b->env.v[0], "A=1");
    assert_true(b->memory == 1ULL << 40);
    assert_int_equal(b->pids, 512);
    if (strcmp(b->id, "b1") == 0)
        assert_int_equal(b->end_unix_ms, 99);
}

static int count_sandboxes(void)
{
    struct err err;
    int n = 0;
    assert_int_equal(db_sandboxes(db, see_sandbox, &n, &err), 0);
    return n;
}

static void see_idem(void *arg, const struct db_idem *i)
{
    int *n = arg;
    ++*n;
    assert_string_equal(i->sandbox, "b2");
}

static void test_sandboxes(void **state)
{
    (void)state;
    struct result r = {0};
    struct err err;
    struct db_idem idem = {.tenant = "t", .key = "k", .digest = "d", .sandbox = "b2", .created_unix = 5};
    put_sandbox("b1", NULL, &r);
    put_sandbox("b2", &idem, &r);
    put_sandbox("b3", NULL, &r);
    db_sandbox_end_at(db, "b1", 99, done, &r);
    db_sandbox_del(db, "b3", done, &r);
    wait_for(&r, 5);
    assert_int_equal(r.failures, 0);
    reopen();
    assert_int_equal(count_sandboxes(), 2);
    int n = 0;
    assert_int_equal(db_idems(db, see_idem, &n, &err), 0);
    assert_int_equal(n, 1);
    db_idem_expire(db, 6);
    db_close(db);
    open_it();
    n = 0;
    assert_int_equal(db_idems(db, see_idem, &n, &err), 0);
    assert_int_equal(n, 0);
}

static void see_tenant(void *arg, const struct db_tenant *t)
{
    int *n = arg;
    ++*n;
    assert_string_equal(t->name, "new name");
    assert_int_equal(t->burst, 9);
}
static void see_key(void *arg, const struct db_key *k)
{
    int *n = arg;
    ++*n;
    assert_int_equal(k->used_unix, 77);
    assert_string_equal(k->digest, "dd");
}

static void test_tenants_and_keys(void **state)
{
    (void)state;
    struct result r = {0};
    struct err err;
    struct db_tenant t = {.id = "t", .name = "old"};
    struct db_key k = {.id = "k", .tenant = "t", .name = "n", .hint = "h", .digest = "dd", .scopes = 3};
    db_tenant_put(db, &t, done, &r);
    db_key_put(db, &k, done, &r);
    t.name = "new name";
    t.burst = 9;
    db_tenant_put(db, &t, done, &r); /* must not take the key with it */
    db_key_used(db, "k", 77);
    k.id = "orphan";
    k.digest = "ee";
    k.tenant = "nobody";
    db_key_put(db, &k, done, &r);
    wait_for(&r, 4);
    assert_int_equal(r.failures, 1); /* the tenant must exist; the others are not touched by that */
    reopen();
    int tenants = 0, keys = 0;
    assert_int_equal(db_tenants(db, see_tenant, &tenants, &err), 0);
    assert_int_equal(db_keys(db, see_key, &keys, &err), 0);
    assert_int_equal(tenants, 1);
    assert_int_equal(keys, 1);
    db_tenant_del(db, "t", done, &r);
    wait_for(&r, 5);
    keys = 0;
    assert_int_equal(db_keys(db, see_key, &keys, &err), 0);
    assert_int_equal(keys, 0);
}

static void see_event(void *arg, const struct db_event *e)
{
    uint64_t *last = arg;
    assert_true(e->seq == *last + 1);
    *last = e->seq;
}

struct events_of {
    uint64_t loud, quiet, newest;
};
static void count_event(void *arg, const struct db_event *e)
{
    struct events_of *c = arg;
    c->loud += strcmp(e->tenant, "loud") == 0;
    c->quiet += strcmp(e->tenant, "quiet") == 0;
    if (strcmp(e->tenant, "loud") == 0)
        c->newest = e->seq;
}

/* The oldest rows are the quiet one's. */
static void test_a_tenant_pushes_out_its_own_events(void **state)
{
    (void)state;
    struct err err;
    struct result r = {0};
    struct events_of c = {0};
    for (uint64_t i = 1; i <= DB_EVENTS_MAX + DB_EVENTS_MAX / 10; i++) {
        const char *tenant = i <= 100 ? "quiet" : "loud";
        struct db_event e = {.sandbox = "b", .tenant = tenant, .type = "x", .json = "{}", .seq = i};
        db_event_add(db, &e);
        if (i % 5000 == 0) { /* more than half a queue at once would be dropped */
            db_key_del(db, "none", done, &r);
            wait_for(&r, (int)(i / 5000));
        }
    }
    reopen();
    assert_int_equal(db_events(db, 2 * DB_EVENTS_MAX, count_event, &c, &err), 0);
    assert_int_equal(c.quiet, 100);
    assert_in_range(c.loud, DB_EVENTS_MAX - 1100, DB_EVENTS_MAX + 1000);
    assert_int_equal(c.newest, DB_EVENTS_MAX + DB_EVENTS_MAX / 10);
    c = (struct events_of){0};
    assert_int_equal(db_events(db, 200, count_event, &c, &err), 0);
    assert_int_equal(c.quiet, 100);
    assert_int_equal(c.loud, 100);
}

static void test_events_are_bounded(void **state)
{
    (void)state;
    struct err err;
    struct result r = {0};
    for (uint64_t i = 1; i <= DB_EVENTS_MAX + 3000; i++) {
        struct db_event e = {.sandbox = "b", .tenant = "t", .type = "x", .json = "{}", .seq = i};
        db_event_add(db, &e);
        if (i % 5000 == 0) { /* more than half a queue at once would be dropped */
            db_key_del(db, "none", done, &r);
            wait_for(&r, (int)(i / 5000));
        }
    }
    reopen();
    uint64_t last = DB_EVENTS_MAX + 3000 - 100;
    assert_int_equal(db_events(db, 100, see_event, &last, &err), 0);
    assert_int_equal(last, DB_EVENTS_MAX + 3000);
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    assert_true(st.st_size < 4 << 20);
    assert_int_equal(st.st_mode & 0777, 0600);
}

static void test_many_writes_share_commits(void **state)
{
    (void)state;
    struct result r = {0};
    char id[16];
    for (int i = 0; i < 3000; i++) {
        (void)snprintf(id, sizeof id, "x%d", i);
        put_sandbox(id, NULL, &r);
    }
    wait_for(&r, 3000);
    assert_int_equal(r.failures, 0);
    assert_int_equal(db_queued(db), 0);
    assert_int_equal(count_sandboxes(), 3000);
}

/* The file system refuses: the write fails with a reason, leaves nothing, and the next one works again. */
static void test_no_space(void **state)
{
    (void)state;
    struct result r = {0};
    struct rlimit was, small;
    char id[16];
    put_sandbox("before", NULL, &r);
    wait_for(&r, 1);
    (void)signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &was), 0);
    small = was;
    small.rlim_cur = 96 * 1024;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    for (int i = 0; i < 2000; i++) {
        (void)snprintf(id, sizeof id, "f%d", i);
        put_sandbox(id, NULL, &r);
    }
    wait_for(&r, 2001);
    assert_true(r.failures > 0);
    assert_non_null(strstr(r.msg, path));
    int kept = 2001 - r.failures;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &was), 0);
    struct result after = {0};
    put_sandbox("after", NULL, &after);
    wait_for(&after, 1);
    assert_int_equal(after.failures, 0);
    assert_int_equal(count_sandboxes(), kept + 1);
    reopen();
    assert_int_equal(count_sandboxes(), kept + 1);
}

static void write_file(const char *text, size_t at)
{
    int fd = open(path, O_RDWR | O_CREAT, 0600);
    assert_true(fd >= 0);
    assert_int_equal(pwrite(fd, text, strlen(text), (off_t)at), (ssize_t)strlen(text));
    (void)close(fd);
}

static void expect_refusal(const char *part)
{
    struct err err = {0};
    db = NULL;
    assert_int_equal(db_open(loop, dir_fd, dir, &db, &err), -1);
    if (!strstr(err.msg, part) || !strstr(err.msg, path))
        fail_msg("expected \"%s\" in: %s", part, err.msg);
    db = NULL;
}

static void test_bad_files(void **state)
{
    (void)state;
    struct result r = {0};
    char id[16], junk[4097];
    for (int i = 0; i < 500; i++) {
        (void)snprintf(id, sizeof id, "x%d", i);
        put_sandbox(id, NULL, &r);
    }
    wait_for(&r, 500);
    db_close(db);
    memset(junk, 'J', sizeof junk - 1);
    junk[sizeof junk - 1] = '\0';
    write_file(junk, 3 * 4096);
    write_file(junk, 5 * 4096);
    expect_refusal("move the file away");
    assert_int_equal(unlink(path), 0);
    write_file(
        "this is a letter, not a database; it goes on for a while so that there is a header's worth of it. Dear ...",
        0);
    expect_refusal("move the file away");
    assert_int_equal(unlink(path), 0);
    assert_int_equal(mkdir(path, 0700), 0);
    expect_refusal("cannot be opened");
    assert_int_equal(rmdir(path), 0);
    open_it();
}

static void run_sql(const char *sql)
{
    char command[256];
    (void)snprintf(command, sizeof command, "sqlite3 %s '%s' >/dev/null", path, sql);
    assert_int_equal(system(command), 0);
}

/* Who looks at the database while it is in use, say for a backup, must not end up with the log: what is written later would be
 * in a file without a name. */
static void test_others_read_it(void **state)
{
    (void)state;
    struct result r = {0};
    char log[128];
    (void)snprintf(log, sizeof log, "%s-wal", path);
    run_sql("SELECT count(*) FROM boxes");
    assert_int_equal(access(log, F_OK), 0);
    put_sandbox("b1", NULL, &r);
    wait_for(&r, 1);
    run_sql("SELECT CASE count(*) WHEN 1 THEN 1 ELSE abs(-9223372036854775807 - 1) END FROM boxes");
    assert_int_equal(access(log, F_OK), 0);
}

static void test_other_schemas(void **state)
{
    (void)state;
    db_close(db);
    run_sql("PRAGMA user_version=99");
    expect_refusal("newer Hutch (schema 99");
    assert_int_equal(unlink(path), 0);
    run_sql("CREATE TABLE mine(x); ");
    expect_refusal("not a Hutch store");
    assert_int_equal(unlink(path), 0);
    open_it();
}

static void test_counter(void **state)
{
    (void)state;
    struct err err;
    uint64_t a, b;
    assert_int_equal(db_count_up(db, "epoch", &a, &err), 0);
    reopen();
    assert_int_equal(db_count_up(db, "epoch", &b, &err), 0);
    assert_int_equal(a, 1);
    assert_int_equal(b, 2);
}

static struct {
    int nets, secrets;
    uint64_t epoch, revision;
    char document[32], placeholder[32], sealed[8];
} seen;
static void saw_net(void *arg, const struct db_net *n)
{
    (void)arg;
    seen.nets++;
    seen.epoch = n->epoch;
    (void)snprintf(seen.document, sizeof seen.document, "%s", n->document);
    (void)snprintf(seen.placeholder, sizeof seen.placeholder, "%s", n->placeholders.n == 2 ? n->placeholders.v[1] : "");
}
static void saw_secret(void *arg, const struct db_secret *x)
{
    (void)arg;
    seen.secrets++;
    seen.revision = x->revision;
    (void)snprintf(seen.sealed, sizeof seen.sealed, "%.*s", (int)x->nsealed, (const char *)x->sealed);
}
static void look(void)
{
    struct err err;
    memset(&seen, 0, sizeof seen);
    assert_int_equal(db_nets(db, saw_net, NULL, &err), 0);
    assert_int_equal(db_secrets(db, saw_secret, NULL, &err), 0);
}

static void test_networks_go_with_their_sandboxes_and_secrets_with_their_tenants(void **state)
{
    (void)state;
    struct result r = {0};
    struct db_tenant t = {.id = "t", .name = "T"};
    struct db_net n = {.sandbox = "i0a", .epoch = 3, .document = "{}"};
    struct db_secret x = {.tenant = "t",
                          .name = "n",
                          .id = "sec_1",
                          .revision = 2,
                          .sealed = "\x01\x02",
                          .nsealed = 2,
                          .spec = "{}",
                          .metadata = "{}"};
    strv_add(&n.placeholders, "n");
    strv_add(&n.placeholders, "sbx-1");
    db_tenant_put(db, &t, done, &r);
    db_net_put(db, &n, done, &r);
    n.sandbox = "i0orphan";
    db_net_put(db, &n, done, &r);
    strv_done(&n.placeholders);
    put_sandbox("i0a", NULL, &r);
    db_secret_put(db, &x, done, &r);
    wait_for(&r, 5);
    assert_int_equal(r.failures, 0);
    db_net_sweep(db);
    db_tenant_put(db, &t, done, &r); /* told after it: nothing is on its way to the loop when the database closes */
    wait_for(&r, 6);
    reopen();
    look();
    assert_int_equal(seen.nets, 1);
    assert_int_equal(seen.epoch, 3);
    assert_string_equal(seen.placeholder, "sbx-1");
    assert_int_equal(seen.secrets, 1);
    assert_int_equal(seen.revision, 2);
    assert_string_equal(seen.sealed, "\x01\x02");
    put_sandbox("i0a", NULL, &r); /* written again, it keeps its network */
    wait_for(&r, 7);
    look();
    assert_int_equal(seen.nets, 1);
    db_sandbox_del(db, "i0a", done, &r);
    db_tenant_del(db, "t", done, &r);
    wait_for(&r, 9);
    look();
    assert_int_equal(seen.nets, 0);
    assert_int_equal(seen.secrets, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_sandboxes, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_tenants_and_keys, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_events_are_bounded, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_a_tenant_pushes_out_its_own_events, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_many_writes_share_commits, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_no_space, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_bad_files, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_others_read_it, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_other_schemas, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_counter, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_networks_go_with_their_sandboxes_and_secrets_with_their_tenants, set_up,
                                        tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
