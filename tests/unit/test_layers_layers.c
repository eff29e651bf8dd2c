/* Layers and stacks as they are written: under their digest, once, whole, and what happens to damaged ones. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fd.h"
#include "layers/layer-files.h"
#include "tests/lib/unit.h"
#include "trees/tree.h"

struct scene {
    char dir[40];
    int state;
    unsigned flags;
    struct layers_place place;
};

static int setup(void **state)
{
    struct err err = {0};
    struct scene *s = calloc(1, sizeof *s);
    (void)snprintf(s->dir, sizeof s->dir, "/tmp/hutch-layers.XXXXXX");
    assert_non_null(mkdtemp(s->dir));
    s->state = open(s->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    s->flags = geteuid() == 0 ? 0 : TREE_USERXATTR;
    assert_int_equal(layers_place_open(s->state, -1, &s->place, &err), 0);
    *state = s;
    return 0;
}

static int teardown(void **state)
{
    struct scene *s = *state;
    char command[80];
    layers_place_close(&s->place);
    (void)close(s->state);
    (void)snprintf(command, sizeof command, "rm -rf %s", s->dir);
    assert_int_equal(system(command), 0);
    free(s);
    return 0;
}

static void put(int dir, const char *path, const char *text)
{
    _cleanup_close_ int fd = openat(dir, path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    assert_true(fd >= 0);
    assert_int_equal(fd_write_all(fd, text, strlen(text)), 0);
    static const struct timespec times[2] = {{.tv_sec = 1000}, {.tv_sec = 1000}};
    assert_int_equal(futimens(fd, times), 0);
}

/* tmp/NAME/root with two files. The same text makes the same layer. */
static void make_tree(const struct scene *s, const char *name, const char *text)
{
    char path[80];
    static const struct timespec times[2] = {{.tv_sec = 1000}, {.tv_sec = 1000}};
    assert_int_equal(mkdirat(s->place.tmp, name, 0700), 0);
    (void)snprintf(path, sizeof path, "%s/root", name);
    assert_int_equal(mkdirat(s->place.tmp, path, 0755), 0);
    (void)snprintf(path, sizeof path, "%s/root/file", name);
    put(s->place.tmp, path, text);
    (void)snprintf(path, sizeof path, "%s/root/other", name);
    put(s->place.tmp, path, "always the same");
    (void)snprintf(path, sizeof path, "%s/root", name);
    assert_int_equal(utimensat(s->place.tmp, path, times, 0), 0);
}

static int count(int dir)
{
    int n = 0;
    DIR *d = fdopendir(openat(dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    assert_non_null(d);
    for (const struct dirent *e; (e = readdir(d)) != NULL;)
        n += e->d_name[0] != '.';
    (void)closedir(d);
    return n;
}

static void name_of(const struct layer_meta *m, char ret[LAYER_NAME])
{
    for (size_t i = 0; i < SHA256_BYTES; i++)
        (void)snprintf(ret + 2 * i, 3, "%02x", m->digest[i]);
}

static void commit(const struct scene *s, const char *name, enum layer_kind kind, struct layer_meta *ret)
{
    struct err err = {0};
    if (layer_commit(&s->place, name, kind, NULL, s->flags, ret, &err) < 0)
        fail_msg("%s", err.msg);
}

static void test_a_layer_lies_under_its_digest(void **state)
{
    struct scene *s = *state;
    struct layer_meta m, got;
    struct err err = {0};
    struct stat st;
    char name[LAYER_NAME];
    uint8_t digest[SHA256_BYTES];
    struct tree_size size;
    make_tree(s, "a", "one");
    commit(s, "a", LAYER_CAPTURE, &m);
    assert_int_equal(count(s->place.tmp), 0);
    assert_int_equal(m.kind, LAYER_CAPTURE);
    assert_true(m.entries >= 2);
    name_of(&m, name);
    assert_int_equal(fstatat(s->place.layers, name, &st, 0), 0);
    assert_int_equal(st.st_mode, S_IFDIR | 0755);
    assert_int_equal(layer_meta_read(&s->place, name, &got, &err), 0);
    assert_memory_equal(&m, &got, sizeof m);
    _cleanup_close_ int path = layer_open(&s->place, m.digest, &err);
    _cleanup_close_ int root = openat(path, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    assert_int_equal(tree_digest(root, s->flags, digest, &size, &err), 0);
    assert_memory_equal(digest, m.digest, sizeof digest);
}

static void test_the_same_content_twice_is_one_layer(void **state)
{
    struct scene *s = *state;
    struct layer_meta a, b, c;
    make_tree(s, "a", "one");
    commit(s, "a", LAYER_CAPTURE, &a);
    make_tree(s, "b", "one");
    commit(s, "b", LAYER_FLAT, &b);
    assert_int_equal(count(s->place.layers), 1);
    assert_int_equal(count(s->place.tmp), 0);
    assert_memory_equal(&a, &b, sizeof a); /* what is known is what was there */
    make_tree(s, "c", "two");
    commit(s, "c", LAYER_CAPTURE, &c);
    assert_int_equal(count(s->place.layers), 2);
    assert_memory_not_equal(a.digest, c.digest, sizeof a.digest);
}

static void test_the_digest_of_the_archive_is_kept(void **state)
{
    struct scene *s = *state;
    struct layer_meta m;
    struct err err = {0};
    uint8_t diff_id[SHA256_BYTES];
    memset(diff_id, 0x5a, sizeof diff_id);
    make_tree(s, "a", "one");
    assert_int_equal(layer_commit(&s->place, "a", LAYER_IMPORT, diff_id, s->flags, &m, &err), 0);
    assert_memory_equal(m.diff_id, diff_id, sizeof diff_id);
}

static void test_a_damaged_layer_is_replaced_by_a_whole_one(void **state)
{
    struct scene *s = *state;
    struct layer_meta m, got;
    struct err err = {0};
    char name[LAYER_NAME], path[LAYER_NAME + 16];
    make_tree(s, "a", "one");
    commit(s, "a", LAYER_CAPTURE, &m);
    name_of(&m, name);
    (void)snprintf(path, sizeof path, "%s/meta", name);
    put(s->place.layers, path, "nonsense");
    assert_int_equal(layer_meta_read(&s->place, name, &got, &err), -1);
    assert_non_null(strstr(err.msg, "damaged"));
    make_tree(s, "b", "one");
    commit(s, "b", LAYER_CAPTURE, &m);
    assert_int_equal(layer_meta_read(&s->place, name, &got, &err), 0);
    assert_int_equal(count(s->place.tmp), 0);
    assert_int_equal(count(s->place.layers), 1);
}

static void test_every_flipped_byte_of_what_is_known_is_noticed(void **state)
{
    struct scene *s = *state;
    struct layer_meta m, got;
    char name[LAYER_NAME], path[LAYER_NAME + 16];
    make_tree(s, "a", "one");
    commit(s, "a", LAYER_CAPTURE, &m);
    name_of(&m, name);
    (void)snprintf(path, sizeof path, "%s/meta", name);
    _cleanup_close_ int fd = openat(s->place.layers, path, O_RDWR | O_CLOEXEC);
    for (size_t i = 0; i < sizeof m; i++) {
        struct err err = {0};
        unsigned char byte = ((unsigned char *)&m)[i], wrong = byte ^ 0x10;
        assert_int_equal(pwrite(fd, &wrong, 1, (off_t)i), 1);
        assert_int_equal(layer_meta_read(&s->place, name, &got, &err), -1);
        assert_int_equal(err.eno, EBADMSG);
        assert_int_equal(pwrite(fd, &byte, 1, (off_t)i), 1);
    }
    struct err err = {0};
    assert_int_equal(layer_meta_read(&s->place, name, &got, &err), 0);
}

static void test_a_layer_has_a_name_before_it_has_a_digest(void **state)
{
    struct scene *s = *state;
    struct layer_meta m, got;
    struct err err = {0};
    uint8_t one[SHA256_BYTES], two[SHA256_BYTES];
    char name[LAYER_NAME], other[LAYER_NAME];
    const struct tree_size size = {.bytes = 4096, .entries = 3};
    make_tree(s, "a", "one");
    make_tree(s, "b", "one");
    assert_int_equal(layer_commit_named(&s->place, "a", LAYER_CAPTURE, size, one, &m, &err), 0);
    assert_int_equal(layer_commit_named(&s->place, "b", LAYER_CAPTURE, size, two, &m, &err), 0);
    assert_memory_not_equal(one, two, sizeof one); /* the same content: both are kept */
    assert_int_equal(count(s->place.layers), 2);
    sha256_text(one, name);
    sha256_text(two, other);
    assert_int_equal(layer_meta_read(&s->place, name, &got, &err), 0);
    assert_false(layer_has_digest(&got));
    assert_int_equal(got.entries, 3);
    memset(got.digest, 0xab, sizeof got.digest);
    assert_int_equal(layer_note_digest(&s->place, name, "note", &got, &err), 0);
    assert_int_equal(count(s->place.tmp), 0);
    assert_int_equal(layer_meta_read(&s->place, name, &m, &err), 0);
    assert_true(layer_has_digest(&m));
    assert_memory_equal(&m, &got, sizeof m);
    /* What is known of one layer is nothing that is known of another. */
    char from[LAYER_NAME + 8], to[LAYER_NAME + 8];
    (void)snprintf(from, sizeof from, "%s/meta", name);
    (void)snprintf(to, sizeof to, "%s/meta", other);
    assert_int_equal(renameat(s->place.layers, from, s->place.layers, to), 0);
    assert_int_equal(layer_meta_read(&s->place, other, &m, &err), -1);
    assert_int_equal(err.eno, EBADMSG);
    memset(name, 'a', sizeof name - 1);
    assert_int_equal(layer_note_digest(&s->place, name, "note", &got, &err), -1);
    assert_int_equal(count(s->place.tmp), 0);
}

static void test_a_layer_that_is_not_there_is_told_by_errno(void **state)
{
    struct scene *s = *state;
    struct layer_meta m;
    struct err err = {0};
    char name[LAYER_NAME];
    memset(name, 'a', sizeof name - 1);
    name[sizeof name - 1] = '\0';
    assert_int_equal(layer_meta_read(&s->place, name, &m, &err), -1);
    assert_int_equal(err.eno, ENOENT);
    assert_int_equal(layer_meta_read(&s->place, "../stacks", &m, &err), -1);
    assert_int_equal(err.code, ERR_USAGE);
    assert_int_equal(layer_commit(&s->place, "nothing", LAYER_CAPTURE, NULL, s->flags, &m, &err), -1);
    assert_int_equal(err.eno, ENOENT);
}

static const char zero_layer[] = "0000000000000000000000000000000000000000000000000000000000000000";

static void test_a_stack_names_no_layer_that_is_not_there(void **state)
{
    struct scene *s = *state;
    struct stack_file f = {.n = 1, .base = "base"};
    struct err err = {0};
    char gone[LAYER_NAME + 8];
    assert_int_equal(stack_write(&s->place, "st-abcdefgh", &f, &err), -1);
    assert_int_equal(err.eno, ENOENT);
    assert_non_null(strstr(err.msg, "000000000000"));
    assert_int_equal(count(s->place.stacks), 0);
    assert_int_equal(count(s->place.tmp), 0);
    /* One that a collection is about to take comes back. */
    (void)snprintf(gone, sizeof gone, ".gone-%s", zero_layer);
    assert_int_equal(mkdirat(s->place.layers, gone, 0755), 0);
    assert_int_equal(stack_write(&s->place, "st-abcdefgh", &f, &err), 0);
    assert_int_equal(faccessat(s->place.layers, zero_layer, F_OK, 0), 0);
}

static void test_a_stack_is_replaced_as_a_whole(void **state)
{
    struct scene *s = *state;
    struct stack_file f = {.n = 1, .base = "base"}, got;
    struct err err = {0};
    assert_int_equal(mkdirat(s->place.layers, zero_layer, 0755), 0);
    assert_int_equal(stack_write(&s->place, "st-abcdefgh", &f, &err), 0);
    assert_int_equal(stack_read(&s->place, "st-abcdefgh", &got, &err), 0);
    assert_memory_equal(&f, &got, sizeof f);
    f.n = 2;
    assert_int_equal(stack_write(&s->place, "st-abcdefgh", &f, &err), 0);
    assert_int_equal(stack_read(&s->place, "st-abcdefgh", &got, &err), 0);
    assert_int_equal(got.n, 2);
    assert_int_equal(count(s->place.stacks), 1);
    assert_int_equal(count(s->place.tmp), 0);
}

static void test_what_is_no_stack_is_not_written(void **state)
{
    struct scene *s = *state;
    struct stack_file nothing = {0}, f = {.n = 1};
    struct err err = {0};
    assert_int_equal(stack_write(&s->place, "st-abcdefgh", &nothing, &err), -1);
    assert_int_equal(stack_write(&s->place, "../abcdefgh", &f, &err), -1);
    assert_int_equal(count(s->place.stacks), 0);
}

int main(void)
{
#define TEST(t) cmocka_unit_test_setup_teardown(t, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_a_layer_lies_under_its_digest),
        TEST(test_the_same_content_twice_is_one_layer),
        TEST(test_the_digest_of_the_archive_is_kept),
        TEST(test_a_damaged_layer_is_replaced_by_a_whole_one),
        TEST(test_every_flipped_byte_of_what_is_known_is_noticed),
        TEST(test_a_layer_has_a_name_before_it_has_a_digest),
        TEST(test_a_layer_that_is_not_there_is_told_by_errno),
        TEST(test_a_stack_names_no_layer_that_is_not_there),
        TEST(test_a_stack_is_replaced_as_a_whole),
        TEST(test_what_is_no_stack_is_not_written),
    };
    return cmocka_run_group_tests_name("stock layers", tests, NULL, NULL);
}
