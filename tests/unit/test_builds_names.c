/* Names of templates, tags and images, and what an image or an upload says about itself. */
#include "base/mem.h"
#include "front/builds.h"
#include "tests/lib/unit.h"

static void images_have_names_that_rows_can_have(void **state)
{
    (void)state;
    static const struct {
        const char *ref, *name, *tag;
    } cases[] = {{"ubuntu", "ubuntu", "latest"},
                 {"ubuntu:22.04", "ubuntu", "22.04"},
                 {"docker.io/library/python:3.12-slim", "python", "3.12-slim"},
                 {"oven/bun:1.2", "oven-bun", "1.2"},
                 {"ghcr.io/a/b", "ghcr-io-a-b", "latest"},
                 {"localhost:5000/x:Y", "localhost-5000-x", "y"},
                 {"a@sha256:0123456789abcdef0123", "a", "0123456789ab"}};
    char name[TMPL_NAME_MAX], tag[TMPL_TAG_MAX];
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        assert_true(build_image_name(cases[i].ref, name, tag));
        assert_string_equal(name, cases[i].name);
        assert_string_equal(tag, cases[i].tag);
    }
    assert_true(build_image_plain("ubuntu") && build_image_plain("localhost:5000/x"));
    assert_false(build_image_plain("ubuntu:1") || build_image_plain("localhost:5000/x:1") ||
                 build_image_plain("a@sha256:0"));
    assert_false(build_image_name("", name, tag));
    assert_false(build_image_name("a:", name, tag));
    assert_false(build_image_name("a:b c", name, tag));
    assert_false(build_image_name("abcdefghij0123456789:1", name, tag));
}

static void a_registry_is_listed_by_its_host_and_port(void **state)
{
    static const char list[] = "registry.local,10.0.0.5:5000,localhost:5000";
    (void)state;
    assert_true(build_registry_listed(list, "registry.local/a/b:1"));
    assert_true(build_registry_listed(list, "http://Registry.Local/a"));
    assert_true(build_registry_listed(list, "10.0.0.5:5000/x@sha256:00"));
    assert_true(build_registry_listed(list, "docker://localhost:5000/x"));
    assert_false(build_registry_listed(list, "10.0.0.5/x"));
    assert_false(build_registry_listed(list, "10.0.0.5:50001/x"));
    assert_false(build_registry_listed(list, "registry.local:80/x"));
    assert_false(build_registry_listed(list, "registry.local"));
    assert_false(build_registry_listed(list, "evil.test/registry.local/x"));
    assert_false(build_registry_listed(list, "http://https://registry.local/x"));
    assert_false(build_registry_listed(NULL, "registry.local/x"));
    assert_false(build_registry_listed("", "registry.local/x"));
}

static void an_uploaded_configuration_is_held_to_the_limits_of_builds(void **state)
{
    (void)state;
    struct tmpl_config c = {.memory = INT64_MAX, .disk = INT64_MAX, .cpu_milli = 1000 * 1000};
    build_config_limit(&c);
    assert_int_equal(c.memory, (uint64_t)BUILD_MEMORY_MAX << 20);
    assert_int_equal(c.disk, 0);
    assert_int_equal(c.cpu_milli, BUILD_CPU_MAX * 1000);
    c.memory = 1;
    build_config_limit(&c);
    assert_int_equal(c.memory, (uint64_t)BUILD_MEMORY_MIN << 20);
    c = (struct tmpl_config){0};
    build_config_limit(&c);
    assert_true(c.memory == 0 && c.cpu_milli == 0);
}

static void names_and_tags_of_templates_are_checked(void **state)
{
    (void)state;
    char name[TMPL_NAME_MAX], tag[TMPL_TAG_MAX];
    struct err err;
    assert_true(build_name_parse("My_Agent-1:V1.2", name, tag, &err));
    assert_string_equal(name, "my_agent-1");
    assert_string_equal(tag, "v1.2");
    assert_true(build_name_parse("team/x", name, tag, &err));
    assert_string_equal(tag, "");
    static const char *const wrong[] = {"",
                                        ":v",
                                        "a:",
                                        "a b",
                                        "a:b:c",
                                        "base",
                                        "host:x",
                                        "a:b/c",
                                        "a:01234567-89ab-4def-8123-456789abcdef",
                                        "Abcdefghij0123456789"};
    for (size_t i = 0; i < ARRAY_LEN(wrong); i++)
        if (build_name_parse(wrong[i], name, tag, &err))
            fail_msg("'%s' is taken", wrong[i]);
}

static void an_image_says_what_commands_run_with(void **state)
{
    (void)state;
    static const char json[] =
        "{\"config\":{\"Env\":[\"PATH=/bin\",\"=x\",5,\"A=b=c\"],\"User\":\"www:grp\",\"WorkingDir\":\"/srv\","
        "\"Cmd\":[\"x\"]}}";
    struct tmpl_config c;
    build_image_config(json, sizeof json - 1, &c);
    assert_int_equal(c.env.n, 2);
    assert_string_equal(c.env.v[1], "A=b=c");
    assert_string_equal(c.user, "www");
    assert_string_equal(c.workdir, "/srv");
    assert_null(c.start);
    tmpl_config_done(&c);
    build_image_config("not json", 8, &c);
    assert_int_equal(c.env.n, 0);
    assert_string_equal(c.user, "root");
    tmpl_config_done(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(images_have_names_that_rows_can_have),
        cmocka_unit_test(a_registry_is_listed_by_its_host_and_port),
        cmocka_unit_test(an_uploaded_configuration_is_held_to_the_limits_of_builds),
        cmocka_unit_test(names_and_tags_of_templates_are_checked),
        cmocka_unit_test(an_image_says_what_commands_run_with),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
