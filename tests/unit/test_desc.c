/* A sandbox's description: copied, and written into a row and read again. */
#include "sandboxes/desc.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "sandboxes/sandboxes-int.h"
#include "tests/lib/unit.h"

static struct tenant tenant = {.id = "t-1"};

/* Every field has a value of its own that is not its default. */
static void fill(struct sandbox *b)
{
    *b = (struct sandbox){.id = "i1",
                          .tenant = &tenant,
                          .token = "tok",
                          .traffic_token = "traffic",
                          .degraded = "no cpu limit",
                          .started_unix_ms = 11,
                          .end_unix_ms = 22,
                          .state_bytes = 33,
                          .desc = {.template = "tpl-1",
                                   .stack = "st-aaaaaaaa",
                                   .parent = "i0",
                                   .generation = 7,
                                   .cpu_milli = 1500,
                                   .pids = 99,
                                   .memory = 1ULL << 33,
                                   .disk = 1ULL << 34,
                                   .tier = "container",
                                   .timeout_s = 300,
                                   .life = {true, true, true, 60},
                                   .history = true,
                                   .secure = true,
                                   .allow_public_traffic = true,
                                   .allow_internet = true,
                                   .mask_host = "localhost:${PORT}",
                                   .https_ports = {8443, 9443},
                                   .nhttps_ports = 2,
                                   .ports = {.v = {{80, SANDBOX_PORT_PUBLIC}}, .n = 1, .links = 5},
                                   .nmounts = 1}};
    struct sandbox_desc *d = &b->desc;
    d->image = xstrdup("docker.io/library/ubuntu:22.04");
    d->config = xcalloc(1, sizeof *d->config);
    d->config->user = xstrdup("root");
    d->mounts = xcalloc(1, sizeof *d->mounts);
    d->mounts[0] = (struct sandbox_mount){.volume = "vol-1", .name = "data", .place = "/data", .flags = 1};
    strv_add(&d->metadata, "label");
    strv_add(&d->metadata, "");
    strv_add(&d->env, "A=1");
}

static void expect_all(const struct sandbox_desc *d)
{
    assert_string_equal(d->template, "tpl-1");
    assert_string_equal(d->stack, "st-aaaaaaaa");
    assert_string_equal(d->parent, "i0");
    assert_string_equal(d->image, "docker.io/library/ubuntu:22.04");
    assert_int_equal(d->generation, 7);
    assert_string_equal(d->config->user, "root");
    assert_int_equal(d->nmounts, 1);
    assert_string_equal(d->mounts[0].volume, "vol-1");
    assert_string_equal(d->mounts[0].name, "data");
    assert_string_equal(d->mounts[0].place, "/data");
    assert_int_equal(d->mounts[0].flags, 1);
    assert_int_equal(d->cpu_milli, 1500);
    assert_int_equal(d->pids, 99);
    assert_int_equal(d->memory, 1ULL << 33);
    assert_int_equal(d->disk, 1ULL << 34);
    assert_string_equal(d->tier, "container");
    assert_int_equal(d->timeout_s, 300);
    assert_true(d->life.auto_pause && d->life.auto_pause_files && d->life.auto_resume && d->life.idle_s == 60);
    assert_true(d->history && d->secure && d->allow_public_traffic && d->allow_internet);
    assert_string_equal(d->mask_host, "localhost:${PORT}");
    assert_int_equal(d->nhttps_ports, 2);
    assert_int_equal(d->https_ports[1], 9443);
    assert_int_equal(d->ports.n, 1);
    assert_int_equal(d->ports.v[0].port, 80);
    assert_int_equal(d->ports.v[0].flags, SANDBOX_PORT_PUBLIC);
    assert_int_equal(d->ports.links, 5);
    assert_int_equal(d->metadata.n, 2);
    assert_string_equal(d->metadata.v[0], "label");
    assert_int_equal(d->env.n, 1);
    assert_string_equal(d->env.v[0], "A=1");
}

static void test_a_row_keeps_every_field(void **state)
{
    (void)state;
    struct sandbox b, again = {.id = "i1", .tenant = &tenant};
    struct strv texts = {0};
    struct db_sandbox row;
    fill(&b);
    sandbox_row_encode(&b, DB_SANDBOX_STORED, &texts, &row);
    assert_string_equal(row.id, "i1");
    assert_string_equal(row.tenant, "t-1");
    assert_int_equal(row.state, DB_SANDBOX_STORED);
    sandbox_row_decode(&row, &again);
    strv_done(&texts);
    expect_all(&again.desc);
    assert_string_equal(again.token, "tok");
    assert_string_equal(again.traffic_token, "traffic");
    assert_string_equal(again.degraded, "no cpu limit");
    assert_int_equal(again.started_unix_ms, 11);
    assert_int_equal(again.end_unix_ms, 22);
    assert_int_equal(again.state_bytes, 33);
    sandbox_desc_done(&b.desc);
    sandbox_desc_done(&again.desc);
}

static void test_a_copy_owns_its_parts(void **state)
{
    (void)state;
    struct sandbox b;
    struct sandbox_desc copy;
    fill(&b);
    sandbox_desc_copy(&copy, &b.desc);
    sandbox_desc_done(&b.desc);
    expect_all(&copy);
    sandbox_desc_done(&copy);
}

static void test_what_has_its_default_is_not_written_and_is_read_as_the_default(void **state)
{
    (void)state;
    struct sandbox b = {.id = "i1", .tenant = &tenant}, again = {0};
    struct strv texts = {0};
    struct db_sandbox row;
    sandbox_row_encode(&b, DB_SANDBOX_RUNNING, &texts, &row);
    assert_string_equal(row.more, "");
    assert_string_equal(row.config, "");
    assert_int_equal(row.flags, 0);
    sandbox_row_decode(&row, &again);
    strv_done(&texts);
    struct sandbox_desc none = {0};
    assert_memory_equal(&again.desc, &none, sizeof none);
}

static void test_fields_of_a_later_version_and_damage_lose_nothing_else(void **state)
{
    (void)state;
    static const char *const more[] = {"{\"generation\":7,\"later\":[1]}", "{\"generation\":", "[]",
                                       "{\"generation\":\"x\"}"};
    for (size_t i = 0; i < sizeof more / sizeof more[0]; i++) {
        struct sandbox b = {.id = "i1", .tenant = &tenant, .desc = {.template = "base"}}, again = {0};
        struct strv texts = {0};
        struct db_sandbox row;
        sandbox_row_encode(&b, DB_SANDBOX_RUNNING, &texts, &row);
        row.more = more[i];
        sandbox_row_decode(&row, &again);
        strv_done(&texts);
        assert_string_equal(again.desc.template, "base");
        assert_int_equal(again.desc.generation, i == 0 ? 7 : 0);
        sandbox_desc_done(&again.desc);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_row_keeps_every_field),
        cmocka_unit_test(test_a_copy_owns_its_parts),
        cmocka_unit_test(test_what_has_its_default_is_not_written_and_is_read_as_the_default),
        cmocka_unit_test(test_fields_of_a_later_version_and_damage_lose_nothing_else),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
