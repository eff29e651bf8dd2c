/* Tenants, their keys, quotas and rates. */
#include "tenants/tenants.h"

#include <time.h>

#include "base/sha256.h"
#include "rooms-world.h"

static uint64_t now_ms;

static uint64_t clock_ms(void *arg)
{
    (void)arg;
    return now_ms;
}

static const char admin[] = "e2b_0123456789abcdef0123456789abcdef01234567";

static int set_up(void **state)
{
    (void)state;
    if (rooms_prepare("tenants") < 0)
        return -1;
    now_ms = 1000000;
    loop_set_clock(rooms.loop, clock_ms, NULL);
    sha256_hex(admin, strlen(admin), rooms.admin_digest);
    rooms_start();
    return 0;
}
static int tear_down(void **state)
{
    (void)state;
    rooms_stop();
    return rooms_done();
}

static bool auth(const char *name, const char *value, struct principal *p)
{
    struct http_field field = {name, value};
    struct http_req r = {.fields = {&field, 1}};
    return tenants_auth(rooms.tenants, &r, p);
}

struct result {
    int calls, eno;
    char msg[256];
};
static void done(void *arg, const struct err *err)
{
    struct result *r = arg;
    r->calls++;
    r->eno = err ? err->eno : 0;
    (void)snprintf(r->msg, sizeof r->msg, "%.255s", err ? err->msg : "");
}
static void wait_for(struct result *r)
{
    struct err err;
    AWAIT (r->calls != 0)
        assert_int_equal(loop_step(rooms.loop, 20, &err), 0);
    assert_int_equal(r->calls, 1);
}

static void test_admin_key(void **state)
{
    (void)state;
    struct principal p;
    assert_true(auth("x-api-key", admin, &p));
    assert_string_equal(p.tenant->id, TENANT_DEFAULT);
    assert_true(p.scopes & SCOPE_ADMIN);
    assert_true(auth("authorization", "bearer e2b_0123456789abcdef0123456789abcdef01234567", &p));
    static const char *const bad[] = {"", "e2b_", "e2b_0123456789abcdef0123456789abcdef01234568",
                                      "e2b_0123456789abcdef0123456789abcdef012345678",
                                      "E2B_0123456789abcdef0123456789abcdef01234567"};
    for (size_t i = 0; i < ARRAY_LEN(bad); i++)
        assert_false(auth("x-api-key", bad[i], &p));
    assert_false(auth("authorization", admin, &p));
    assert_false(auth("cookie", admin, &p));
    /* A new admin.key replaces the old one. */
    rooms_stop();
    sha256_hex("e2b_ffffffffffffffffffffffffffffffffffffffff", 44, rooms.admin_digest);
    rooms_start();
    assert_false(auth("x-api-key", admin, &p));
    assert_true(auth("x-api-key", "e2b_ffffffffffffffffffffffffffffffffffffffff", &p));
}

static void test_keys(void **state)
{
    (void)state;
    struct principal p;
    struct result r = {0};
    char secret[64], id[24], other[64], other_id[24];
    struct quota q = {.sandboxes = 2};
    tenant_put(rooms.tenants, "acme", "Acme", &q, done, &r);
    assert_int_equal(r.calls, 0); /* never before it returns */
    wait_for(&r);
    r = (struct result){0};
    key_create(rooms.tenants, "acme", "ci", SCOPE_SANDBOXES, 0, secret, id, done, &r);
    wait_for(&r);
    assert_int_equal(r.eno, 0);
    assert_true(auth("x-api-key", secret, &p));
    assert_string_equal(p.tenant->id, "acme");
    assert_int_equal(p.scopes, SCOPE_SANDBOXES);
    assert_string_equal(p.key_id, id);
    bool good = false;
    for (uint64_t ahead = 2, end = 0; (uint64_t)time(NULL) >= end; ahead *= 4) { /* looked at before it is over */
        r = (struct result){0};
        end = (uint64_t)time(NULL) + ahead;
        key_create(rooms.tenants, "acme", "soon", SCOPE_READ, end, other, other_id, done, &r);
        wait_for(&r);
        good = auth("x-api-key", other, &p);
    }
    assert_true(good);
    AWAIT (!auth("x-api-key", other, &p))
        (void)usleep(20000);
    assert_false(auth("x-api-key", other, &p));
    rooms_stop();
    rooms_start();
    assert_true(auth("x-api-key", secret, &p));
    assert_int_equal(p.tenant->quota.sandboxes, 2);
    r = (struct result){0};
    key_remove(rooms.tenants, id, done, &r);
    assert_false(auth("x-api-key", secret, &p));
    wait_for(&r);
    rooms_stop();
    rooms_start();
    assert_false(auth("x-api-key", secret, &p));
}

static void test_refusals(void **state)
{
    (void)state;
    struct result r;
    char secret[64], id[24];
    struct quota q = {0};
    static const char *const bad[] = {"", "A", "a b", "../x", "a/b", "0123456789012345678901234567890123456789", "-x"};
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        r = (struct result){0};
        tenant_put(rooms.tenants, bad[i], "x", &q, done, &r);
        wait_for(&r);
        assert_non_null(strstr(r.msg, "1 to 39"));
    }
    r = (struct result){0};
    tenant_remove(rooms.tenants, TENANT_DEFAULT, done, &r);
    wait_for(&r);
    assert_int_not_equal(r.eno, 0);
    r = (struct result){0};
    tenant_remove(rooms.tenants, "nobody", done, &r);
    wait_for(&r);
    assert_non_null(strstr(r.msg, "no such tenant"));
    r = (struct result){0};
    key_create(rooms.tenants, "nobody", "x", SCOPE_READ, 0, secret, id, done, &r);
    wait_for(&r);
    assert_non_null(strstr(r.msg, "no such tenant"));
    r = (struct result){0};
    key_create(rooms.tenants, TENANT_DEFAULT, "x", 0, 0, secret, id, done, &r);
    wait_for(&r);
    assert_non_null(strstr(r.msg, "scope"));
    r = (struct result){0};
    key_create(rooms.tenants, TENANT_DEFAULT, "x", SCOPE_READ, 1, secret, id, done, &r);
    wait_for(&r);
    assert_non_null(strstr(r.msg, "past"));
    r = (struct result){0};
    key_remove(rooms.tenants, KEY_ADMIN, done, &r);
    wait_for(&r);
    assert_non_null(strstr(r.msg, "stays"));
}

static void test_rate(void **state)
{
    (void)state;
    struct tenant t = {.quota = {.requests_per_second = 10, .burst = 5}};
    unsigned admitted = 0, wait = 0;
    while (admitted < 100 && (wait = tenants_throttle(rooms.tenants, &t)) == 0)
        admitted++;
    assert_int_equal(admitted, 6); /* the burst and the one that is due */
    assert_int_equal(wait, 1);
    struct err err;
    /* Over ten seconds of steady asking, ten a second pass. */
    admitted = 0;
    for (int i = 0; i < 1000; i++) {
        now_ms += 10;
        assert_int_equal(loop_step(rooms.loop, 0, &err), 0);
        admitted += tenants_throttle(rooms.tenants, &t) == 0;
    }
    assert_in_range(admitted, 99, 101);
    t.quota.requests_per_second = 0;
    for (int i = 0; i < 1000; i++)
        assert_int_equal(tenants_throttle(rooms.tenants, &t), 0);
}

static void test_quota(void **state)
{
    (void)state;
    struct tenant t = {.quota = {.sandboxes = 3, .cpu_milli = 5000, .memory = 4ULL << 30, .disk = 10ULL << 30}};
    struct tenant_need small = {.cpu_milli = 500, .memory = 1ULL << 30, .disk = 1 << 20},
                       huge = {.cpu_milli = 500, .memory = UINT64_MAX, .disk = 1};
    char why[200] = "";
    assert_int_equal(tenant_take(rooms.tenants, &t, &small, why), 0);
    assert_true(tenant_take(rooms.tenants, &t, &huge, why) > 0);
    assert_non_null(strstr(why, "memory is used up: 1 GiB of 4 GiB"));
    assert_int_equal(tenant_take(rooms.tenants, &t, &small, why), 0);
    assert_int_equal(tenant_take(rooms.tenants, &t, &small, why), 0);
    assert_in_range(tenant_take(rooms.tenants, &t, &small, why), 1, 30);
    assert_non_null(strstr(why, "3 of 3 are running"));
    tenant_give_back(rooms.tenants, &t, &small, true);
    assert_int_equal(t.sandboxes, 2);
    struct tenant_need cpus = {.cpu_milli = 4001};
    assert_true(tenant_take(rooms.tenants, &t, &cpus, why) > 0);
    assert_non_null(strstr(why, "CPUs"));
    assert_int_equal(tenant_take(rooms.tenants, &t, &small, why), 0);
    for (int i = 0; i < 3; i++)
        tenant_give_back(rooms.tenants, &t, &small, true);
    assert_int_equal(t.sandboxes, 0);
    assert_int_equal(t.cpu_milli, 0);
    assert_true(t.memory == 0 && t.disk == 0);
}

static void test_removal(void **state)
{
    (void)state;
    struct principal p;
    struct result r = {0};
    char secret[64], id[24], why[200];
    struct quota q = {0};
    struct tenant_need need = {.cpu_milli = 1};
    tenant_put(rooms.tenants, "gone", "x", &q, done, &r);
    wait_for(&r);
    r = (struct result){0};
    key_create(rooms.tenants, "gone", "x", SCOPE_SANDBOXES, 0, secret, id, done, &r);
    wait_for(&r);
    struct tenant *t = tenants_find(rooms.tenants, "gone");
    assert_int_equal(tenant_take(rooms.tenants, t, &need, why), 0);
    r = (struct result){0};
    tenant_remove(rooms.tenants, "gone", done, &r);
    wait_for(&r);
    assert_non_null(strstr(r.msg, "1 sandboxes"));
    tenant_give_back(rooms.tenants, t, &need, true);
    r = (struct result){0};
    tenant_remove(rooms.tenants, "gone", done, &r);
    assert_true(tenant_take(rooms.tenants, t, &need, why) > 0); /* nothing begins while it goes */
    assert_false(auth("x-api-key", secret, &p));
    wait_for(&r);
    assert_null(tenants_find(rooms.tenants, "gone"));
    assert_false(auth("x-api-key", secret, &p));
    rooms_stop();
    rooms_start();
    assert_null(tenants_find(rooms.tenants, "gone"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_admin_key, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_keys, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_refusals, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_rate, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_quota, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_removal, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
