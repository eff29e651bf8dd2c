/* test_cli_code.c - hutch code: pictures that come out of a sandbox, sixels, and whether a typed cell is whole. */
#include "tests/lib/unit.h"

#include <fcntl.h>
#include <unistd.h>

#include "base/mem.h"
#include "cli/code/code.h"

enum { WIDTH = 24, HEIGHT = 20 };

/* Pixel (x, y) is (10 x, 12 y, x y); made by Pillow: dynamic codes, filters. */
static const char picture[] =
    "89504e470d0a1a0a0000000d494844520000001800000014080200000018d76ad40000007f4944415478daadd2490e83300c"
    "40d14f8142cb9c54dcffa86c0a8a0883ed20bd85bdf9f2c219f07d42410b64e9b6d02b5118ca53ec4285591c2a6d0e436f83"
    "b350a57511aa55ae431fb9db90f4b725a14642186a6fc943ddb9193a55a88ffcb6591b1a023e5c0da1114670ebf0670b4d31"
    "43c8c1046e471bf2eb450e7c6801aeff0ed1096c0d0b0000000049454e44ae426082";

static size_t picture_read(unsigned char *ret)
{
    size_t n = strlen(picture) / 2;
    for (size_t i = 0; i < n; i++)
        assert_int_equal(sscanf(picture + 2 * i, "%2hhx", &ret[i]), 1);
    return n;
}

static void a_png_is_read(void **state)
{
    unsigned char bytes[sizeof picture];
    unsigned width = 0, height = 0;
    size_t n = picture_read(bytes);
    unsigned char *rgb = code_png_read(bytes, n, &width, &height);
    (void)state;
    assert_non_null(rgb);
    assert_int_equal(width, WIDTH);
    assert_int_equal(height, HEIGHT);
    for (unsigned y = 0; y < HEIGHT; y++)
        for (unsigned x = 0; x < WIDTH; x++) {
            const unsigned char *p = rgb + (y * WIDTH + x) * 3;
            assert_int_equal(p[0], x * 10);
            assert_int_equal(p[1], y * 12);
            assert_int_equal(p[2], x * y % 256);
        }
    free(rgb);
}

/* Every prefix, and every byte with every bit turned: read or refused, never beyond a buffer. */
static void a_damaged_png_harms_nothing(void **state)
{
    unsigned char bytes[sizeof picture];
    unsigned width, height;
    size_t n = picture_read(bytes);
    (void)state;
    for (size_t i = 0; i < n; i++) {
        unsigned char *copy = xmalloc(i + 1); /* its end is watched */
        memcpy(copy, bytes, i);
        free(code_png_read(copy, i, &width, &height));
        free(copy);
    }
    for (size_t i = 0; i < n; i++)
        for (int bit = 0; bit < 8; bit++) {
            bytes[i] ^= (unsigned char)(1 << bit);
            free(code_png_read(bytes, n, &width, &height));
            bytes[i] ^= (unsigned char)(1 << bit);
        }
}

static void sixels_have_every_row(void **state)
{
    unsigned char bytes[sizeof picture];
    _cleanup_buf_ struct buf out = {0};
    size_t n = picture_read(bytes), bands = 0;
    (void)state;
    assert_true(code_image_add(CODE_IMAGES_SIXEL, bytes, n, true, &out));
    for (const char *p = buf_str(&out); (p = strchr(p, '-')); p++)
        bands++;
    assert_int_equal(bands, (HEIGHT + 5) / 6);
    assert_false(code_image_add(CODE_IMAGES_SIXEL, "no picture", 10, true, &out));
}

static void cells_are_whole_or_go_on(void **state)
{
    static const struct {
        const char *language, *text;
        bool whole;
    } v[] = {
        {"python", "1 + 1", true},
        {"python", "f(1,", false},
        {"python", "for i in x:", false},
        {"python", "for i in x:\n    print(i)", false},
        {"python", "for i in x:\n  f\n", true},
        {"python", "s = '''a", false},
        {"python", "s = 'a(' # (", true},
        {"python", "x = \\", false},
        {"python", "@d", false},
        {"python", "f(\n1)", true},
        {"bash", "echo 'a", false},
        {"bash", "echo a # (", true},
        {"javascript", "f(() => {", false},
        {"javascript", "`a", false},
        {"java", "// (", true},
        {"r", "x <- c(1,", false},
    };
    (void)state;
    for (size_t i = 0; i < sizeof v / sizeof v[0]; i++)
        if (code_is_whole(v[i].language, v[i].text) != v[i].whole)
            fail_msg("case %zu: %s", i, v[i].text);
}

/* Shows a cell of n pictures; what is printed goes nowhere. */
static void pictures_show(struct code_view *v, unsigned n)
{
    static const char line[] = "{\"type\":\"result\",\"svg\":\"<svg/>\"}";
    struct err err;
    int out = dup(STDOUT_FILENO), errors = dup(STDERR_FILENO), null = open("/dev/null", O_WRONLY | O_CLOEXEC);
    assert_true(dup2(null, STDOUT_FILENO) >= 0 && dup2(null, STDERR_FILENO) >= 0);
    int rc = 0;
    code_view_begin(v);
    for (unsigned i = 0; i < n && rc == 0; i++)
        rc = code_view_line(v, line, strlen(line), &err);
    (void)dup2(out, STDOUT_FILENO);
    (void)dup2(errors, STDERR_FILENO);
    (void)close(out);
    (void)close(errors);
    (void)close(null);
    assert_int_equal(rc, 0);
}

static void a_cell_saves_so_many_pictures(void **state)
{
    char dir[] = "/tmp/hutch-pictures-XXXXXX";
    struct code_view v = {.images = CODE_IMAGES_FILES, .dir = mkdtemp(dir)};
    (void)state;
    assert_non_null(v.dir);
    pictures_show(&v, 100);
    assert_false(v.left_out);
    pictures_show(&v, 102);
    assert_true(v.left_out);
    assert_int_equal(v.saved, 200);
    for (unsigned i = 1; i <= v.saved; i++) {
        _cleanup_free_ char *path = xasprintf("%s/result-%u.svg", dir, i);
        assert_int_equal(unlink(path), 0);
    }
    assert_int_equal(rmdir(dir), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_png_is_read),
        cmocka_unit_test(a_damaged_png_harms_nothing),
        cmocka_unit_test(sixels_have_every_row),
        cmocka_unit_test(a_cell_saves_so_many_pictures),
        cmocka_unit_test(cells_are_whole_or_go_on),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
