/* Names of templates, tags and images, and what an image or an upload says about itself. */
#include "base/mem.h"
#include "builds/builds.h"
#include "tests/lib/unit.h"

#define DIGEST "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

static struct build_image image(const char *ref)
{
    struct build_image i;
    if (!build_image_parse(ref, &i))
        fail_msg("'%s' is refused", ref);
    assert_true(build_tag_ok(i.tag) && !template_id_shaped(i.name));
    return i;
}

static void images_have_names_that_rows_can_have(void **state)
{
    (void)state;
    static const struct {
        const char *ref, *full, *name, *tag;
    } cases[] = {{"ubuntu", "ubuntu:latest", "ubuntu", "latest"},
                 {"ubuntu:22.04", "ubuntu:22.04", "ubuntu", "22.04"},
                 {"docker.io/library/python:3.12-slim", "python:3.12-slim", "python", "3.12-slim"},
                 {"docker://index.docker.io/debian:12", "debian:12", "debian", "12"}};
    for (size_t k = 0; k < ARRAY_LEN(cases); k++) {
        struct build_image i = image(cases[k].ref);
        assert_string_equal(i.ref, cases[k].full);
        assert_string_equal(i.name, cases[k].name);
        assert_string_equal(i.tag, cases[k].tag);
        assert_string_equal(i.loose_name, i.name);
        assert_string_equal(i.loose_tag, i.tag);
    }
    assert_string_equal(image("ghcr.io/a/b").loose_name, "ghcr-io-a-b");
    assert_string_equal(image("localhost:5000/x:Y").loose_tag, "y");
    assert_string_equal(image("a:1@sha256:" DIGEST).ref, "a@sha256:" DIGEST);
    assert_string_equal(image("a@sha256:" DIGEST).digest, DIGEST);
    assert_string_equal(image("a@sha256:" DIGEST).loose_tag, "");
    assert_true(image("ubuntu").plain && image("localhost:5000/x").plain);
    assert_false(image("ubuntu:1").plain || image("localhost:5000/x:1").plain || image("a@sha256:" DIGEST).plain);
    static const char *const wrong[] = {
        "", "a:", ":1", "a:b c", "a:b:c", "a@sha256:0", "a@md5:" DIGEST, "a@sha256:" DIGEST "0"};
    struct build_image i;
    for (size_t k = 0; k < ARRAY_LEN(wrong); k++)
        if (build_image_parse(wrong[k], &i))
            fail_msg("'%s' is taken", wrong[k]);
}

#define LONG "a-name-of-more-than-sixty-three-bytes-which-registries-have-no-objection-to"

/* Each is another image, some of them with names made to look like what others become. */
static void no_two_images_share_a_row(void **state)
{
    (void)state;
    char evil[TEMPLATE_NAME_MAX + 2], evil_tag[TEMPLATE_TAG_MAX + 2];
    struct build_image b = image("ghcr.io/a/b:1"), pin = image("a@sha256:" DIGEST);
    (void)snprintf(evil, sizeof evil, "%s:1", b.name);
    (void)snprintf(evil_tag, sizeof evil_tag, "a:%s", pin.tag);
    const char *const refs[] = {"ghcr.io/a/b:1",
                                "ghcr.io/a-b:1",
                                "ghcr.io/a.b:1",
                                "ghcr-io-a-b:1",
                                "docker.io/ghcr.io/a/b:1",
                                "library/a/b:1",
                                "a/b:1",
                                "a-b:1",
                                "localhost:5000/x",
                                "localhost/5000/x",
                                "x:Y",
                                "x:y",
                                "a@sha256:" DIGEST,
                                "a:0123456789ab",
                                "abcdefghij0123456789:1",
                                "base",
                                "host",
                                LONG "/1",
                                LONG "/2",
                                "x:" LONG "1",
                                "x:" LONG "2",
                                "x:01234567-89ab-4def-8123-456789abcdef",
                                evil,
                                evil_tag};
    for (size_t k = 0; k < ARRAY_LEN(refs); k++) {
        struct build_image i = image(refs[k]);
        for (size_t m = 0; m < k; m++) {
            struct build_image o = image(refs[m]);
            if (strcmp(i.ref, o.ref) == 0 || (strcmp(i.name, o.name) == 0 && strcmp(i.tag, o.tag) == 0))
                fail_msg("'%s' and '%s' are both %s:%s", refs[k], refs[m], i.name, i.tag);
        }
        assert_true(strcmp(i.name, "base") != 0 && strcmp(i.name, "host") != 0);
    }
}

static void an_image_is_what_was_fetched_as_it(void **state)
{
    (void)state;
    struct build_image b = image("ghcr.io/a/b:1"), pin = image("a@sha256:" DIGEST), x = image("localhost");
    assert_true(build_image_is(&b, "ghcr.io/a/b:1", ""));
    assert_false(build_image_is(&b, "ghcr.io/a-b:1", "") || build_image_is(&b, "ghcr.io/a/b:2", DIGEST) ||
                 build_image_is(&b, "", ""));
    assert_true(build_image_is(&pin, "a@sha256:" DIGEST, "") && build_image_is(&pin, "a:1", DIGEST));
    assert_false(build_image_is(&pin, "a:0123456789ab", "") || build_image_is(&pin, "b:1", DIGEST) ||
                 build_image_is(&pin, "a/b:1", DIGEST) || build_image_is(&pin, "", DIGEST));
    assert_true(build_image_same_repo(&x, "localhost:1"));
    assert_false(build_image_same_repo(&x, "localhost:5000/x:1"));
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
    struct err err;
    struct template_config c = {.memory = INT64_MAX, .disk = INT64_MAX, .cpu_milli = 1000 * 1000};
    assert_int_equal(build_config_limit(&c, &err), 0);
    assert_int_equal(c.memory, (uint64_t)BUILD_MEMORY_MAX << 20);
    assert_int_equal(c.disk, 0);
    assert_int_equal(c.cpu_milli, BUILD_CPU_MAX * 1000);
    c.memory = 1;
    assert_int_equal(build_config_limit(&c, &err), 0);
    assert_int_equal(c.memory, (uint64_t)BUILD_MEMORY_MIN << 20);
    c = (struct template_config){0};
    assert_int_equal(build_config_limit(&c, &err), 0);
    assert_true(c.memory == 0 && c.cpu_milli == 0);
    /* More words than a build may have. */
    char *words = xcalloc(1, BUILD_ENV_BYTES_MAX + 1);
    memset(words, 'x', BUILD_ENV_BYTES_MAX);
    words[1] = '=';
    c.start = words;
    assert_int_equal(build_config_limit(&c, &err), -1);
    c = (struct template_config){.ready = words};
    assert_int_equal(build_config_limit(&c, &err), -1);
    c = (struct template_config){.user = words};
    assert_int_equal(build_config_limit(&c, &err), -1);
    c = (struct template_config){.workdir = words};
    assert_int_equal(build_config_limit(&c, &err), -1);
    c = (struct template_config){0};
    strv_add(&c.env, words);
    assert_int_equal(build_config_limit(&c, &err), -1);
    c.env.v[0][100] = '\0';
    assert_int_equal(build_config_limit(&c, &err), 0);
    strv_done(&c.env);
    free(words);
}

static void names_and_tags_of_templates_are_checked(void **state)
{
    (void)state;
    char name[TEMPLATE_NAME_MAX], tag[TEMPLATE_TAG_MAX];
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
    struct template_config c;
    build_image_config(json, sizeof json - 1, &c);
    assert_int_equal(c.env.n, 2);
    assert_string_equal(c.env.v[1], "A=b=c");
    assert_string_equal(c.user, "www");
    assert_string_equal(c.workdir, "/srv");
    assert_null(c.start);
    template_config_done(&c);
    build_image_config("not json", 8, &c);
    assert_int_equal(c.env.n, 0);
    assert_string_equal(c.user, "root");
    template_config_done(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(images_have_names_that_rows_can_have),
        cmocka_unit_test(no_two_images_share_a_row),
        cmocka_unit_test(an_image_is_what_was_fetched_as_it),
        cmocka_unit_test(a_registry_is_listed_by_its_host_and_port),
        cmocka_unit_test(an_uploaded_configuration_is_held_to_the_limits_of_builds),
        cmocka_unit_test(names_and_tags_of_templates_are_checked),
        cmocka_unit_test(an_image_says_what_commands_run_with),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
