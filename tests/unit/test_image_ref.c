#include "tests/lib/unit.h"

#include "image/ref.h"

static void a_name_alone_is_an_official_image_of_docker_hub(void **state)
{
    struct image_ref r;
    struct err err = {0};
    (void)state;
    assert_int_equal(ref_parse("debian", &r, &err), 0);
    assert_string_equal(r.host, "registry-1.docker.io");
    assert_string_equal(r.name, "library/debian");
    assert_string_equal(r.tag, "latest");
    assert_string_equal(r.digest, "");
    assert_false(r.plain);
}

#define HEX "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

static void every_spelling_means_what_it_says(void **state)
{
    static const struct {
        const char *text, *host, *name, *tag, *digest;
        bool plain, loopback;
    } cases[] = {
        {"debian:12", "registry-1.docker.io", "library/debian", "12", "", false, false},
        {"user/app", "registry-1.docker.io", "user/app", "latest", "", false, false},
        {"docker.io/debian", "registry-1.docker.io", "library/debian", "latest", "", false, false},
        {"index.docker.io/a/b:c", "registry-1.docker.io", "a/b", "c", "", false, false},
        {"docker://ghcr.io/a/b/c:v1.0-x_y", "ghcr.io", "a/b/c", "v1.0-x_y", "", false, false},
        {"https://ghcr.io/a", "ghcr.io", "a", "latest", "", false, false},
        {"http://reg.example:5000/a", "reg.example:5000", "a", "latest", "", true, false},
        {"reg:5000/a", "reg:5000", "a", "latest", "", false, false},
        {"reg/a", "registry-1.docker.io", "reg/a", "latest", "", false, false},
        {"localhost/a", "localhost", "a", "latest", "", true, true},
        {"localhost:5000/a:b", "localhost:5000", "a", "b", "", true, true},
        {"127.0.0.1:5000/a", "127.0.0.1:5000", "a", "latest", "", true, true},
        {"127.1.evil.example/a", "127.1.evil.example", "a", "latest", "", false, false},
        {"localhost.example/a", "localhost.example", "a", "latest", "", false, false},
        {"https://localhost:5000/a", "localhost:5000", "a", "latest", "", false, true},
        {"[::1]:5000/a", "[::1]:5000", "a", "latest", "", true, true},
        {"[2001:db8::1]/a", "[2001:db8::1]", "a", "latest", "", false, false},
        {"debian@sha256:" HEX, "registry-1.docker.io", "library/debian", "", "sha256:" HEX, false, false},
        {"h.x/a:t@sha256:" HEX, "h.x", "a", "t", "sha256:" HEX, false, false},
        {"a.b/c__d/e--f/g.h_i", "a.b", "c__d/e--f/g.h_i", "latest", "", false, false},
    };
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct image_ref r;
        struct err err = {0};
        if (ref_parse(cases[i].text, &r, &err) < 0)
            fail_msg("%s: %s", cases[i].text, err.msg);
        assert_string_equal(r.host, cases[i].host);
        assert_string_equal(r.name, cases[i].name);
        assert_string_equal(r.tag, cases[i].tag);
        assert_string_equal(r.digest, cases[i].digest);
        if (r.plain != cases[i].plain || r.loopback != cases[i].loopback)
            fail_msg("%s: plain %d, loopback %d", cases[i].text, r.plain, r.loopback);
    }
}

static void what_is_no_name_is_refused_with_the_reason(void **state)
{
    static const char *const cases[][2] = {
        {"", "no name"},
        {"Debian", "lower case"},
        {"aB", "lower case"},
        {"a/", "begin"},
        {"/a", "begin"},
        {"a//b", "begin"},
        {"a..b", "stands where"},
        {"a___b", "stands where"},
        {"a-", "stands where"},
        {"-a", "begin"},
        {"a/../b", "begin"},
        {"a b", "made of"},
        {"a:", "tag"},
        {"a:.b", "tag"},
        {"a:b c", "tag"},
        {"a@", "sha256"},
        {"a@sha512:" HEX, "sha256"},
        {"a@sha256:" HEX "0", "sha256"},
        {"a@sha256:ABCD", "sha256"},
        {"h.x:0/a", "port"},
        {"h.x:65536/a", "port"},
        {"h.x:12x/a", "port"},
        {"h..x/a", "host name"},
        {".x/a", "host name"},
        {"u@h.x/a", "host name"},
        {"[::1/a", "address"},
        {"h.x\r\nx: y/a", "host name"},
        {"a\r\nx", "made of"},
        {"ftp://h.x/a", "port"},
    };
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct image_ref r;
        struct err err = {0};
        assert_int_equal(ref_parse(cases[i][0], &r, &err), -1);
        if (!strstr(err.msg, cases[i][1]))
            fail_msg("%s: %s", cases[i][0], err.msg);
    }
}

static void the_longest_names_fit_and_one_more_byte_does_not(void **state)
{
    char text[600], name[300], tag[200];
    struct image_ref r;
    struct err err = {0};
    (void)state;
    memset(name, 'a', sizeof name);
    memset(tag, 't', sizeof tag);
    (void)snprintf(text, sizeof text, "h.x/%.255s:%.128s", name, tag);
    assert_int_equal(ref_parse(text, &r, &err), 0);
    assert_int_equal(strlen(r.name), 255);
    assert_int_equal(strlen(r.tag), 128);
    (void)snprintf(text, sizeof text, "h.x/%.256s", name);
    assert_int_equal(ref_parse(text, &r, &err), -1);
    (void)snprintf(text, sizeof text, "h.x/a:%.129s", tag);
    assert_int_equal(ref_parse(text, &r, &err), -1);
    (void)snprintf(text, sizeof text, "%.256s.x/a", name);
    assert_int_equal(ref_parse(text, &r, &err), -1);
    (void)snprintf(text, sizeof text, "h.x/%.299s:%.128s@sha256:" HEX, name, tag);
    assert_int_equal(ref_parse(text, &r, &err), -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_name_alone_is_an_official_image_of_docker_hub),
        cmocka_unit_test(every_spelling_means_what_it_says),
        cmocka_unit_test(what_is_no_name_is_refused_with_the_reason),
        cmocka_unit_test(the_longest_names_fit_and_one_more_byte_does_not),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
