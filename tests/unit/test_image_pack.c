#include "tests/lib/unit.h"

#include <fcntl.h>
#include <locale.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "base/fd.h"
#include "base/mem.h"
#include "image/image-int.h"

/* A command of the worker in a process of its own, not confined: what it read is `in`, what it said last is told. */
static int run(int (*command)(const struct image_options *o, struct err *err), const struct image_options *o, int in,
               int out, struct image_message *ret)
{
    int pair[2], status;
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
    pid_t pid = fork();
    if (pid == 0) {
        struct err err = {0};
        int high[] = {fcntl(in, F_DUPFD, 50), fcntl(out, F_DUPFD, 50), fcntl(pair[1], F_DUPFD, 50)};
        for (int i = 0; i < 3; i++)
            (void)dup2(high[i], IMAGE_FD_IN + i);
        int rc = command(o, &err);
        if (rc < 0)
            say_failed(&err);
        _exit(rc < 0);
    }
    (void)close(pair[1]);
    do
        assert_int_equal(read(pair[0], ret, sizeof *ret), sizeof *ret);
    while (ret->type == IMAGE_PROGRESS);
    (void)close(pair[0]);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static int new_file(void)
{
    int fd = memfd_create("test", MFD_CLOEXEC);
    assert_true(fd >= 0);
    return fd;
}

static struct lay_out o;

static void put(uint32_t type, const char *path, const char *target, const char *content)
{
    struct lay_record r = {.type = type};
    if (type <= LAY_FIFO && type != LAY_HARDLINK)
        r.mode = 04751, r.uid = 1000, r.gid = 65535, r.mtime_sec = -5, r.mtime_nsec = 123456789;
    unsigned char xattr[] = {6, 0, 0, 0, 3, 0, 0, 0, 'u', 's', 'e', 'r', '.', 'x', 0, 255, '='};
    bool keep = type == LAY_FILE || type == LAY_DIR;
    r.size = content ? strlen(content) : 0;
    assert_int_equal(lay_out_record(&o, &r, path, target, keep ? xattr : NULL, keep ? sizeof xattr : 0), 0);
    if (content)
        assert_int_equal(lay_out_bytes(&o, content, strlen(content)), 0);
}

static void compare(int a, int b)
{
    struct stat sa, sb;
    assert_int_equal(fstat(a, &sa), 0);
    assert_int_equal(fstat(b, &sb), 0);
    assert_int_equal(sa.st_size, sb.st_size);
    _cleanup_free_ char *ta = xmalloc((size_t)sa.st_size), *tb = xmalloc((size_t)sa.st_size);
    assert_int_equal(pread(a, ta, (size_t)sa.st_size, 0), sa.st_size);
    assert_int_equal(pread(b, tb, (size_t)sa.st_size, 0), sa.st_size);
    assert_memory_equal(ta, tb, (size_t)sa.st_size);
}

static void a_layer_comes_back_as_it_was(void **state)
{
    const struct image_options plain = {0}, oci = {.oci = true};
    struct image_message packed, unpacked;
    char deep[900];
    _cleanup_close_ int in = new_file(), tar = new_file(), back = new_file();
    (void)state;
    memset(deep, 'a', sizeof deep);
    for (size_t i = 199; i < sizeof deep; i += 200)
        deep[i] = '/';
    deep[sizeof deep - 1] = '\0';
    deep[sizeof deep - 2] = 'b';
    lay_out_start(&o, in);
    put(LAY_DIR, "d", "", NULL);
    put(LAY_OPAQUE, "d", "", NULL);
    put(LAY_FILE, "d/f", "", "hello\n");
    put(LAY_FILE, "d/\xc3\xa9 \n", "", "");
    put(LAY_HARDLINK, "d/h", "d/f", NULL);
    put(LAY_SYMLINK, "d/s", "/\xc3\xbc", NULL);
    put(LAY_FIFO, "d/p", "", NULL);
    put(LAY_WHITEOUT, "d/w", "", NULL);
    put(LAY_WHITEOUT, "w", "", NULL);
    put(LAY_FILE, deep, "", "x");
    assert_int_equal(lay_out_end(&o), 0);
    assert_int_equal(lseek(in, 0, SEEK_SET), 0);
    assert_int_equal(run(image_pack, &plain, in, tar, &packed), 0);
    assert_int_equal(packed.type, IMAGE_DONE);
    assert_int_equal(run(image_layer, &oci, tar, back, &unpacked), 0);
    compare(in, back);
    /* Both say the same of the tar and of its compressed form. */
    assert_memory_equal(packed.diff_id, unpacked.diff_id, SHA256_BYTES);
    assert_memory_equal(packed.digest, unpacked.digest, SHA256_BYTES);
    struct stat st;
    assert_int_equal(fstat(tar, &st), 0);
    assert_int_equal(packed.done, st.st_size);
}

static void names_of_attributes_come_back_as_they_were(void **state)
{
    static const char *const names[] = {"user.a=b",    "user.100%25", "user.two words",    "user.\xc3\xa9",
                                        "user.\xff\n", "user.%",      "user.an.overlay.of"};
    const struct image_options plain = {0}, ours = {.oci = true, .hutch = true};
    struct image_message packed, unpacked;
    _cleanup_close_ int in = new_file(), tar = new_file(), back = new_file();
    (void)state;
    lay_out_start(&o, in);
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        _cleanup_buf_ struct buf x = {0};
        struct lay_record r = {.type = LAY_FILE, .mode = 0644};
        const uint16_t head[] = {(uint16_t)strlen(names[i]), 0, 3, 0};
        char file[8];
        (void)snprintf(file, sizeof file, "f%zu", i);
        buf_add(&x, head, sizeof head);
        buf_adds(&x, names[i]);
        buf_adds(&x, "v=1");
        assert_int_equal(lay_out_record(&o, &r, file, "", x.p, x.n), 0);
    }
    assert_int_equal(lay_out_end(&o), 0);
    assert_int_equal(lseek(in, 0, SEEK_SET), 0);
    assert_int_equal(run(image_pack, &plain, in, tar, &packed), 0);
    assert_int_equal(run(image_layer, &ours, tar, back, &unpacked), 0);
    compare(in, back);
}

/* With what makes a mark of it the name, and in the end the path, is longer than any of a file. */
static void a_removed_file_may_have_the_longest_name(void **state)
{
    const struct image_options plain = {0}, oci = {.oci = true};
    struct image_message packed, unpacked;
    char name[LAY_NAME_MAX + 1], path[LAY_PATH_MAX];
    _cleanup_close_ int in = new_file(), tar = new_file(), back = new_file();
    (void)state;
    memset(name, 'n', sizeof name);
    memset(path, 'p', sizeof path);
    name[sizeof name - 1] = path[sizeof path - 1] = '\0';
    for (size_t i = LAY_NAME_MAX; i < sizeof path - 1; i += LAY_NAME_MAX + 1)
        path[i] = '/';
    lay_out_start(&o, in);
    put(LAY_WHITEOUT, name, "", NULL);
    put(LAY_WHITEOUT, name + 3, "", NULL);
    put(LAY_WHITEOUT, path, "", NULL);
    path[sizeof path - 2] = 'o';
    put(LAY_OPAQUE, path, "", NULL);
    assert_int_equal(lay_out_end(&o), 0);
    assert_int_equal(lseek(in, 0, SEEK_SET), 0);
    assert_int_equal(run(image_pack, &plain, in, tar, &packed), 0);
    assert_int_equal(run(image_layer, &oci, tar, back, &unpacked), 0);
    compare(in, back);
}

static void put_holes(uint64_t size)
{
    struct lay_record r = {.type = LAY_SPARSE, .mode = 0644, .size = size};
    assert_int_equal(lay_out_record(&o, &r, "f", "", NULL, 0), 0);
    assert_int_equal(lay_out_zeros(&o, 10000), 0);
    assert_int_equal(lay_out_bytes(&o, "data", 4), 0);
    assert_int_equal(lay_out_zeros(&o, size - 10004), 0);
    assert_int_equal(lay_out_end(&o), 0);
}

static void holes_are_packed_as_zeros(void **state)
{
    enum { SIZE = 3 << 20 };
    const struct image_options plain = {0}, oci = {.oci = true};
    struct image_message packed, unpacked;
    _cleanup_free_ char *zeros = xcalloc(1, SIZE);
    _cleanup_close_ int in = new_file(), tar = new_file(), back = new_file(), want = new_file();
    (void)state;
    lay_out_start(&o, in);
    put_holes(SIZE);
    assert_int_equal(lseek(in, 0, SEEK_SET), 0);
    assert_int_equal(run(image_pack, &plain, in, tar, &packed), 0);
    assert_int_equal(run(image_layer, &oci, tar, back, &unpacked), 0);
    lay_out_start(&o, want);
    struct lay_record r = {.type = LAY_FILE, .mode = 0644, .size = SIZE};
    memcpy(zeros + 10000, "data", 4);
    assert_int_equal(lay_out_record(&o, &r, "f", "", NULL, 0), 0);
    assert_int_equal(lay_out_bytes(&o, zeros, SIZE), 0);
    assert_int_equal(lay_out_end(&o), 0);
    compare(want, back);
}

static void more_holes_than_can_be_written_out_are_refused(void **state)
{
    const struct image_options plain = {0};
    struct image_message m;
    _cleanup_close_ int in = new_file(), tar = new_file();
    (void)state;
    lay_out_start(&o, in);
    put_holes(UINT64_C(15) << 40);
    assert_int_equal(lseek(in, 0, SEEK_SET), 0);
    assert_int_equal(run(image_pack, &plain, in, tar, &m), 1);
    assert_int_equal(m.failure, IMAGE_TOO_LARGE);
    assert_non_null(strstr(m.text, "\"f\" has holes"));
}

static void names_that_would_read_as_whiteouts_are_not_packed(void **state)
{
    const struct image_options plain = {0};
    struct image_message m;
    _cleanup_close_ int in = new_file(), out = new_file();
    (void)state;
    lay_out_start(&o, in);
    put(LAY_FILE, "a/.wh.b", "", "");
    assert_int_equal(lay_out_end(&o), 0);
    assert_int_equal(lseek(in, 0, SEEK_SET), 0);
    assert_int_equal(run(image_pack, &plain, in, out, &m), 1);
    assert_int_equal(m.type, IMAGE_FAILED);
    assert_non_null(strstr(m.text, "\"a/.wh.b\" cannot be exported"));
}

static void a_stream_without_its_end_is_not_packed(void **state)
{
    const struct image_options plain = {0};
    struct image_message m;
    struct stat st;
    _cleanup_close_ int in = new_file(), out = new_file();
    (void)state;
    lay_out_start(&o, in);
    put(LAY_FILE, "a", "", "12345");
    assert_int_equal(lay_out_end(&o), 0);
    assert_int_equal(fstat(in, &st), 0);
    assert_int_equal(ftruncate(in, st.st_size - 1), 0);
    assert_int_equal(lseek(in, 0, SEEK_SET), 0);
    assert_int_equal(run(image_pack, &plain, in, out, &m), 1);
    assert_non_null(strstr(m.text, "cut off"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_layer_comes_back_as_it_was),
        cmocka_unit_test(names_of_attributes_come_back_as_they_were),
        cmocka_unit_test(a_removed_file_may_have_the_longest_name),
        cmocka_unit_test(holes_are_packed_as_zeros),
        cmocka_unit_test(more_holes_than_can_be_written_out_are_refused),
        cmocka_unit_test(names_that_would_read_as_whiteouts_are_not_packed),
        cmocka_unit_test(a_stream_without_its_end_is_not_packed),
    };
    (void)setlocale(LC_CTYPE, "C.UTF-8"); /* as the worker does: names are UTF-8 */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
