/* Diffs of texts: what patch(1) would do with them gives the other text back. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cli/textdiff.h"
#include "tests/lib/unit.h"

static char *diff(const char *a, const char *b)
{
    struct buf out = {0};
    assert_true(textdiff_add("x", a, strlen(a), b, strlen(b), &out));
    char *text = strdup(buf_str(&out));
    buf_done(&out);
    return text;
}

static void small_ones_look_as_expected(void **state)
{
    (void)state;
    char *t = diff("a\nb\nc\n", "a\nB\nc\n");
    assert_string_equal(t, "--- a/x\n+++ b/x\n@@ -1,3 +1,3 @@\n a\n-b\n+B\n c\n");
    free(t);
    t = diff("", "new\n");
    assert_string_equal(t, "--- a/x\n+++ b/x\n@@ -0,0 +1,1 @@\n+new\n");
    free(t);
    t = diff("old\n", "");
    assert_string_equal(t, "--- a/x\n+++ b/x\n@@ -1,1 +0,0 @@\n-old\n");
    free(t);
    t = diff("a", "a\n");
    assert_string_equal(t, "--- a/x\n+++ b/x\n@@ -1,1 +1,1 @@\n-a\n\\ No newline at end of file\n+a\n");
    free(t);
}

static void escapes_of_a_terminal_are_made_harmless(void **state)
{
    (void)state;
    char *t = diff("x\n", "\x1b[31mred\ttab\n");
    assert_null(strchr(t, '\x1b'));
    assert_non_null(strstr(t, "red\ttab"));
    free(t);
}

static void what_is_no_text_is_one_line(void **state)
{
    (void)state;
    struct buf out = {0};
    assert_false(textdiff_add("x", "a\0b", 3, "c", 1, &out));
    assert_string_equal(buf_str(&out), "x differs (not text)\n");
    buf_done(&out);
}

static void far_too_different_texts_are_refused_in_bounded_work(void **state)
{
    (void)state;
    struct buf a = {0}, b = {0}, out = {0};
    for (int i = 0; i < 5000; i++) {
        buf_addf(&a, "left %d\n", i);
        buf_addf(&b, "right %d\n", i);
    }
    assert_false(textdiff_add("x", a.p, a.n, b.p, b.n, &out));
    assert_non_null(strstr(buf_str(&out), "too much"));
    buf_done(&a);
    buf_done(&b);
    buf_done(&out);
}

static void put(const char *dir, const char *name, const char *text, size_t n)
{
    char path[128];
    (void)snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_int_equal(fwrite(text, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

/* git apply is strict about counts and context; both programs are on every machine that runs the tests. */
static void git_applies_what_random_edits_give(void **state)
{
    (void)state;
    char dir[] = "/tmp/hutch-textdiff-XXXXXX", script[400];
    assert_non_null(mkdtemp(dir));
    unsigned seed = 7;
    for (int round = 0; round < 40; round++) {
        struct buf a = {0}, b = {0}, out = {0};
        int lines = rand_r(&seed) % 60 + 1;
        for (int i = 0; i < lines; i++) {
            int what = rand_r(&seed) % 10, word = rand_r(&seed) % 5;
            if (what != 0)
                buf_addf(&a, "line %d\n", word);
            if (what != 1)
                buf_addf(&b, "line %d%s\n", word, what == 2 ? " changed" : "");
        }
        if (a.n == 0)
            buf_adds(&a, "x\n");
        if (b.n == 0)
            buf_adds(&b, "y\n");
        if (textdiff_add("f", a.p, a.n, b.p, b.n, &out) && a.n + b.n > 0 && strstr(buf_str(&out), "@@")) {
            put(dir, "f", a.p, a.n);
            put(dir, "want", b.p, b.n);
            put(dir, "patch", out.p, out.n);
            (void)snprintf(script, sizeof script, "cd %s && git apply --unidiff-zero -p1 patch && cmp f want", dir);
            int r = system(script);
            if (r != 0)
                print_message("%s", buf_str(&out));
            assert_int_equal(r, 0);
        }
        buf_done(&a);
        buf_done(&b);
        buf_done(&out);
    }
    (void)snprintf(script, sizeof script, "rm -rf %s", dir);
    assert_int_equal(system(script), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(small_ones_look_as_expected),
        cmocka_unit_test(escapes_of_a_terminal_are_made_harmless),
        cmocka_unit_test(what_is_no_text_is_one_line),
        cmocka_unit_test(far_too_different_texts_are_refused_in_bounded_work),
        cmocka_unit_test(git_applies_what_random_edits_give),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
