#include "tests/lib/unit.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "guest/code/languages.h"

static void languages_have_aliases(void **state)
{
    (void)state;
    assert_string_equal(language_find("PYTHON")->name, "python");
    assert_string_equal(language_find("js")->name, "javascript");
    assert_string_equal(language_find("ts")->name, "typescript");
    assert_null(language_find("cobol"));
    assert_null(language_find(""));
}

static void a_language_without_a_kernel_says_how_to_add_it(void **state)
{
    (void)state;
    struct err err;
    assert_null(language_spec(language_find("java"), "/nowhere:/no/place", &err));
    assert_int_equal(err.code, ERR_HOST);
    assert_non_null(strstr(err.msg, "language java is not installed"));
    assert_non_null(strstr(err.msg, "jjava"));
}

static void a_kernelspec_must_have_a_command(void **state)
{
    (void)state;
    char dir[] = "/tmp/test-code-XXXXXX", at[80], file[100];
    struct err err;
    assert_non_null(mkdtemp(dir));
    (void)snprintf(at, sizeof at, "%s/bash", dir);
    (void)snprintf(file, sizeof file, "%s/kernel.json", at);
    assert_int_equal(mkdir(at, 0700), 0);
    static const struct {
        const char *text;
        bool good;
    } cases[] = {{"{}", false},
                 {"{\"argv\":[]}", false},
                 {"{\"argv\":[1]}", false},
                 {"{", false},
                 {"{\"argv\":[\"sh\"]}", true}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        FILE *f = fopen(file, "w");
        assert_non_null(f);
        (void)fputs(cases[i].text, f);
        (void)fclose(f);
        json_t *spec = language_spec(language_find("bash"), dir, &err);
        assert_int_equal(spec != NULL, cases[i].good);
        if (spec)
            assert_string_equal(json_string_value(json_object_get(spec, "resource_dir")), at);
        json_decref(spec);
    }
    (void)unlink(file);
    (void)rmdir(at);
    (void)rmdir(dir);
}

static void a_value_stays_a_value(void **state)
{
    (void)state;
    static const struct {
        const char *language, *value, *code;
    } cases[] = {
        {"python", "'\n", "__import__('os').environ['A'] = bytes.fromhex('270a').decode('utf-8', 'surrogateescape')\n"},
        {"python", NULL, "__import__('os').environ.pop('A', None)\n"},
        {"bash", "'$", "export A=$'\\x27\\x24'\n"},
        {"bash", NULL, "unset A\n"},
        {"r", "\")", "Sys.setenv(\"A\"=rawToChar(as.raw(c(34,41))))\n"},
        {"js", "\"\\\n", "process.env[\"A\"] = (\"\\\"\\\\\\n\");\n"},
        {"java", "\"", "System.setProperty(\"A\", \"\\\"\");\n"},
        {"java", NULL, "System.clearProperty(\"A\");\n"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        _cleanup_buf_ struct buf b = {0};
        language_add_variable(language_find(cases[i].language), "A", cases[i].value, &b);
        assert_string_equal(buf_str(&b), cases[i].code);
    }
    assert_true(language_is_variable("_a1") && language_is_variable("PATH"));
    assert_false(language_is_variable("") || language_is_variable("1a") || language_is_variable("a b") ||
                 language_is_variable("a\"") || language_is_variable("a="));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(languages_have_aliases),
        cmocka_unit_test(a_language_without_a_kernel_says_how_to_add_it),
        cmocka_unit_test(a_kernelspec_must_have_a_command),
        cmocka_unit_test(a_value_stays_a_value),
    };
    return cmocka_run_group_tests_name("code/languages", tests, NULL, NULL);
}
