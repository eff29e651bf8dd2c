/* The directories of the database and its stacks, as keeper reads them: whole, damaged, missing. */
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fd.h"
#include "keeper/place.h"
#include "tests/lib/unit.h"

struct scene {
    char dir[40];
    int state, templates;
    struct layers_place place;
};

static int setup(void **state)
{
    struct err err = {0};
    struct scene *s = calloc(1, sizeof *s);
    (void)snprintf(s->dir, sizeof s->dir, "/tmp/hutch-place.XXXXXX");
    assert_non_null(mkdtemp(s->dir));
    s->state = open(s->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    assert_int_equal(mkdirat(s->state, "templates", 0755), 0);
    s->templates = openat(s->state, "templates", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    assert_int_equal(layers_place_open(s->state, s->templates, &s->place, &err), 0);
    *state = s;
    return 0;
}

static int teardown(void **state)
{
    struct scene *s = *state;
    char command[80];
    layers_place_close(&s->place);
    (void)close(s->templates);
    (void)close(s->state);
    (void)snprintf(command, sizeof command, "rm -rf %s", s->dir);
    assert_int_equal(system(command), 0);
    free(s);
    return 0;
}

static void put(const struct scene *s, const char *id, const void *p, size_t n)
{
    _cleanup_close_ int fd = openat(s->place.stacks, id, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    assert_int_equal(fd_write_all(fd, p, n), 0);
}

static struct stack_file example(void)
{
    struct stack_file f = {.n = 2, .base = "base"};
    memset(f.layer[0], 0xab, SHA256_BYTES);
    memset(f.layer[1], 0x01, SHA256_BYTES);
    stack_file_seal(&f);
    return f;
}

static void test_missing_directories_are_made_and_opened_again(void **state)
{
    struct scene *s = *state;
    struct layers_place again = LAYERS_PLACE_INIT;
    struct err err = {0};
    struct stat st;
    static const struct {
        const char *path;
        mode_t mode;
    } want[] = {{"stock", 0700},        {"stock/layers", 0755},  {"stock/stacks", 0700}, {"stock/tmp", 0700},
                {"stock/uppers", 0700}, {"stock/volumes", 0700}, {"stock/blobs", 0700}};
    for (size_t i = 0; i < ARRAY_LEN(want); i++) {
        assert_int_equal(fstatat(s->state, want[i].path, &st, 0), 0);
        assert_int_equal(st.st_mode, S_IFDIR | want[i].mode);
    }
    assert_int_equal(layers_place_open(s->state, -1, &again, &err), 0);
    assert_int_equal(again.templates, -1);
    layers_place_close(&again);
    assert_int_equal(again.layers, -1);
}

static void test_a_link_in_the_place_of_a_directory_is_refused(void **state)
{
    struct scene *s = *state;
    struct layers_place again = LAYERS_PLACE_INIT;
    struct err err = {0};
    assert_int_equal(unlinkat(s->place.root, "blobs", AT_REMOVEDIR), 0);
    assert_int_equal(symlinkat("/tmp", s->place.root, "blobs"), 0);
    assert_int_equal(layers_place_open(s->state, -1, &again, &err), -1);
    assert_non_null(strstr(err.msg, "blobs"));
    assert_int_equal(again.root, -1);
}

static void test_ids_are_new_and_valid(void **state)
{
    char a[STACK_ID_MAX], b[STACK_ID_MAX];
    (void)state;
    stack_id_new(a);
    stack_id_new(b);
    assert_int_equal(strlen(a), 27);
    assert_true(stack_id_valid(a));
    assert_string_not_equal(a, b);
    static const char *const bad[] = {"",
                                      "st-",
                                      "st-1234567",
                                      "ST-12345678",
                                      "st-1234567A",
                                      "st-12/45678",
                                      "st-..345678",
                                      "xst-12345678",
                                      "st-12345678901234567890123456789012x",
                                      "st-1234567\n"};
    for (size_t i = 0; i < ARRAY_LEN(bad); i++)
        assert_false(stack_id_valid(bad[i]));
    assert_true(stack_id_valid("st-12345678"));
    assert_true(stack_id_valid("st-12345678901234567890123456789012"));
}

static void test_a_stack_is_read_as_it_was_written(void **state)
{
    struct scene *s = *state;
    struct stack_file f = example(), got;
    struct err err = {0};
    put(s, "st-aaaaaaaa", &f, sizeof f);
    assert_int_equal(stack_read(&s->place, "st-aaaaaaaa", &got, &err), 0);
    assert_memory_equal(&f, &got, sizeof f);
}

static void test_a_stack_that_is_not_there_is_told_by_errno(void **state)
{
    struct scene *s = *state;
    struct stack_file got;
    struct err err = {0};
    assert_int_equal(stack_read(&s->place, "st-aaaaaaaa", &got, &err), -1);
    assert_int_equal(err.eno, ENOENT);
    err = (struct err){0};
    assert_int_equal(stack_read(&s->place, "../stacks", &got, &err), -1);
    assert_int_equal(err.code, ERR_USAGE);
}

static void test_every_flipped_byte_is_noticed(void **state)
{
    struct scene *s = *state;
    struct stack_file f = example(), got;
    unsigned char *bytes = (unsigned char *)&f;
    for (size_t i = 0; i < sizeof f; i++) {
        bytes[i] ^= 0x40;
        assert_false(stack_file_valid(&f));
        bytes[i] ^= 0x40;
    }
    assert_true(stack_file_valid(&f));
    static const size_t places[] = {0, 9, 13, 20, 200, sizeof f - 1};
    for (size_t i = 0; i < ARRAY_LEN(places); i++) {
        struct err err = {0};
        bytes[places[i]] ^= 1;
        put(s, "st-aaaaaaaa", &f, sizeof f);
        bytes[places[i]] ^= 1;
        assert_int_equal(stack_read(&s->place, "st-aaaaaaaa", &got, &err), -1);
        assert_non_null(strstr(err.msg, "damaged"));
    }
}

static void test_a_stack_that_is_cut_or_longer_is_damaged(void **state)
{
    struct scene *s = *state;
    struct {
        struct stack_file f;
        char more;
    } longer = {.f = example()};
    struct stack_file got;
    static const size_t sizes[] = {0, 1, sizeof got - 1, sizeof longer};
    for (size_t i = 0; i < ARRAY_LEN(sizes); i++) {
        struct err err = {0};
        put(s, "st-aaaaaaaa", &longer, sizes[i]);
        assert_int_equal(stack_read(&s->place, "st-aaaaaaaa", &got, &err), -1);
        assert_non_null(strstr(err.msg, "damaged"));
    }
}

static void test_a_right_sum_over_wrong_content_is_no_stack(void **state)
{
    (void)state;
    static const char *const bases[] = {"host", "../x", "a/b", "Base", "-x", "st-12345678"};
    for (size_t i = 0; i < ARRAY_LEN(bases); i++) {
        struct stack_file f = example();
        (void)snprintf(f.base, sizeof f.base, "%s", bases[i]);
        stack_file_seal(&f);
        assert_false(stack_file_valid(&f));
    }
    struct stack_file many = example(), open_end = example(), nothing = {0};
    many.n = STACK_LAYERS_MAX + 1;
    stack_file_seal(&many);
    assert_false(stack_file_valid(&many));
    memset(open_end.base, 'a', sizeof open_end.base);
    stack_file_seal(&open_end);
    assert_false(stack_file_valid(&open_end));
    stack_file_seal(&nothing);
    assert_false(stack_file_valid(&nothing));
}

static void make_layer(const struct scene *s, unsigned char byte, bool root)
{
    char name[LAYER_NAME + 8];
    for (size_t i = 0; i < SHA256_BYTES; i++)
        (void)snprintf(name + 2 * i, 3, "%02x", byte);
    assert_int_equal(mkdirat(s->place.layers, name, 0755), 0);
    memcpy(name + 2 * SHA256_BYTES, "/root", 6);
    if (root)
        assert_int_equal(mkdirat(s->place.layers, name, 0755), 0);
    else
        assert_int_equal(symlinkat("/", s->place.layers, name), 0);
}

static void test_a_stack_opens_from_the_top_down_to_its_template(void **state)
{
    struct scene *s = *state;
    struct stack_file f = example();
    struct stat got, want;
    struct err err = {0};
    int fds[STACK_LAYERS_MAX + 1];
    size_t n = ARRAY_LEN(fds);
    make_layer(s, 0xab, true);
    make_layer(s, 0x01, true);
    assert_int_equal(mkdirat(s->templates, "base", 0755), 0);
    assert_int_equal(mkdirat(s->templates, "base/root", 0755), 0);
    assert_int_equal(stack_open(&s->place, &f, fds, &n, &err), 0);
    assert_int_equal(n, 3);
    assert_int_equal(fstatat(s->templates, "base/root", &want, 0), 0);
    assert_int_equal(fstat(fds[2], &got), 0);
    assert_int_equal(got.st_ino, want.st_ino);
    _cleanup_close_ int top = layer_open(&s->place, f.layer[0], &err);
    assert_int_equal(fstat(top, &want), 0);
    assert_int_equal(fstat(fds[0], &got), 0);
    assert_int_equal(got.st_ino, want.st_ino);
    for (size_t i = 0; i < n; i++)
        (void)close(fds[i]);
    n = 2;
    assert_int_equal(stack_open(&s->place, &f, fds, &n, &err), -1);
    assert_int_equal(n, 0);
}

static void test_a_missing_layer_or_template_is_named(void **state)
{
    struct scene *s = *state;
    struct stack_file f = example();
    struct err err = {0};
    int fds[STACK_LAYERS_MAX + 1];
    size_t n = ARRAY_LEN(fds);
    make_layer(s, 0xab, true);
    assert_int_equal(stack_open(&s->place, &f, fds, &n, &err), -1);
    assert_int_equal(err.eno, ENOENT);
    assert_non_null(strstr(err.msg, "010101"));
    make_layer(s, 0x01, true);
    n = ARRAY_LEN(fds);
    assert_int_equal(stack_open(&s->place, &f, fds, &n, &err), -1);
    assert_non_null(strstr(err.msg, "template base"));
}

static void test_a_link_in_the_place_of_a_layer_is_not_followed(void **state)
{
    struct scene *s = *state;
    struct stack_file f = example();
    struct err err = {0};
    make_layer(s, 0xab, false);
    assert_int_equal(layer_open(&s->place, f.layer[0], &err), -1);
    assert_int_equal(err.eno, ELOOP);
}

int main(void)
{
#define TEST(t) cmocka_unit_test_setup_teardown(t, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_missing_directories_are_made_and_opened_again),
        TEST(test_a_link_in_the_place_of_a_directory_is_refused),
        cmocka_unit_test(test_ids_are_new_and_valid),
        TEST(test_a_stack_is_read_as_it_was_written),
        TEST(test_a_stack_that_is_not_there_is_told_by_errno),
        TEST(test_every_flipped_byte_is_noticed),
        TEST(test_a_stack_that_is_cut_or_longer_is_damaged),
        cmocka_unit_test(test_a_right_sum_over_wrong_content_is_no_stack),
        TEST(test_a_stack_opens_from_the_top_down_to_its_template),
        TEST(test_a_missing_layer_or_template_is_named),
        TEST(test_a_link_in_the_place_of_a_layer_is_not_followed),
    };
    return cmocka_run_group_tests_name("place", tests, NULL, NULL);
}
