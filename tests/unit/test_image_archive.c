#include "tests/lib/unit.h"

#include <archive_entry.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "base/fd.h"
#include "base/mem.h"
#include "image/image-int.h"

struct item {
    const char *name;
    char type;        /* f d l h c p */
    const char *text; /* content or target */
    int64_t uid;
};

static ssize_t on_write(struct archive *a, void *arg, const void *p, size_t n)
{
    (void)a;
    buf_add(arg, p, n);
    return (ssize_t)n;
}

static void make_tar(const struct item *v, size_t n, struct buf *ret)
{
    struct archive *a = archive_write_new();
    (void)archive_write_set_format_pax_restricted(a);
    assert_int_equal(archive_write_open(a, ret, NULL, on_write, NULL), ARCHIVE_OK);
    for (size_t i = 0; i < n; i++) {
        struct archive_entry *e = archive_entry_new();
        const char *text = v[i].text ? v[i].text : "";
        archive_entry_copy_pathname(e, v[i].name);
        archive_entry_set_perm(e, 0640);
        archive_entry_set_mtime(e, 77, 0);
        archive_entry_set_uid(e, v[i].uid);
        archive_entry_set_filetype(e, v[i].type == 'd'   ? AE_IFDIR
                                      : v[i].type == 'l' ? AE_IFLNK
                                      : v[i].type == 'c' ? AE_IFCHR
                                      : v[i].type == 'p' ? AE_IFIFO
                                                         : AE_IFREG);
        if (v[i].type == 'l')
            archive_entry_copy_symlink(e, text);
        if (v[i].type == 'h')
            archive_entry_copy_hardlink(e, text);
        if (v[i].type == 'f')
            archive_entry_set_size(e, (int64_t)strlen(text));
        assert_true(archive_write_header(a, e) >= ARCHIVE_WARN);
        if (v[i].type == 'f')
            assert_int_equal(archive_write_data(a, text, strlen(text)), strlen(text));
        archive_entry_free(e);
    }
    assert_int_equal(archive_write_free(a), ARCHIVE_OK);
}

static int memfd_of(const struct buf *b)
{
    int fd = memfd_create("test", MFD_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(fd_write_all(fd, b->p, b->n), 0);
    return fd;
}

/* The records of a stream as lines: "file a 640 5:hello". */
static void show(int fd, struct buf *ret)
{
    static const char *const types[] = {"?",    "dir",      "file",   "symlink", "hardlink",
                                        "fifo", "whiteout", "opaque", "meta",    "end"};
    struct stat st;
    assert_int_equal(fstat(fd, &st), 0);
    _cleanup_free_ char *all = xmalloc((size_t)st.st_size + 1);
    assert_int_equal(pread(fd, all, (size_t)st.st_size, 0), st.st_size);
    for (size_t at = 0; at < (size_t)st.st_size;) {
        struct lay_record r;
        memcpy(&r, all + at, sizeof r);
        at += sizeof r;
        assert_int_equal(r.magic, LAY_MAGIC);
        buf_addf(ret, "%s %.*s", types[r.type], (int)r.path_len, all + at);
        at += r.path_len;
        if (r.target_len)
            buf_addf(ret, " > %.*s", (int)r.target_len, all + at);
        at += r.target_len + r.xattrs_len;
        if (r.type == LAY_FILE) {
            buf_addf(ret, " %.*s", (int)(r.size < 20 ? r.size : 20), all + at);
            at += r.size;
        }
        buf_addc(ret, '\n');
    }
}

/* 0 and the records in `ret`, or -1 and the error in it. */
static int lay_next(const struct buf *tar, struct tar_lay *l, struct buf *ret)
{
    static struct lay_out o;
    struct source src;
    struct stream s;
    struct err err = {0};
    _cleanup_close_ int in = memfd_of(tar), out = memfd_create("out", MFD_CLOEXEC);
    lay_out_start(&o, out);
    source_range(&src, in, 0, tar->n);
    int rc = stream_open(&s, &src, UINT64_MAX, "it", &err);
    if (rc == 0)
        rc = tar_to_lay(&s, &o, l, &err);
    stream_close(&s);
    source_done(&src);
    ret->n = 0;
    if (rc == 0) {
        assert_int_equal(lay_out_end(&o), 0);
        show(out, ret);
    } else {
        buf_adds(ret, err.msg);
    }
    return rc;
}

static int lay_of(const struct buf *tar, struct tar_lay *l, struct buf *ret)
{
    int rc = lay_next(tar, l, ret);
    dirs_done(&l->dirs);
    return rc;
}

#define CHECK_LAY(oci_, expected, ...)                    \
    do {                                                  \
        static const struct item items[] = {__VA_ARGS__}; \
        _cleanup_buf_ struct buf tar_ = {0}, got_ = {0};  \
        struct tar_lay l_ = {.oci = (oci_)};              \
        make_tar(items, ARRAY_LEN(items), &tar_);         \
        assert_int_equal(lay_of(&tar_, &l_, &got_), 0);   \
        assert_string_equal(buf_str(&got_), expected);    \
    } while (0)

#define CHECK_REFUSED(part, ...)                          \
    do {                                                  \
        static const struct item items[] = {__VA_ARGS__}; \
        _cleanup_buf_ struct buf tar_ = {0}, got_ = {0};  \
        struct tar_lay l_ = {.oci = true};                \
        make_tar(items, ARRAY_LEN(items), &tar_);         \
        assert_int_equal(lay_of(&tar_, &l_, &got_), -1);  \
        if (!strstr(buf_str(&got_), part))                \
            fail_msg("%s", buf_str(&got_));               \
    } while (0)

static void names_are_taken_as_tar_writes_them(void **state)
{
    static const char *const good[][2] = {
        {"a", "a"}, {"./a", "a"}, {"././a", "a"}, {".//a", "a"},  {"a/", "a"},    {"a//", "a"},
        {"./", ""}, {".", ""},    {"a/b", "a/b"}, {"..a", "..a"}, {"a..", "a.."}, {".a", ".a"},
        {"/", ""},  {"/a", "a"},  {"//./a", "a"}, {"/.", ""},     {".//", ""},
    };
    static const char *const bad[] = {"",      "..",   "../a", "a/..",    "a/../b", "a//b",
                                      "a/./b", "./..", "/..",  ".//../a", "/../a",  "//../a"};
    char name[LAY_PATH_MAX];
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(good); i++) {
        const char *wrong = tar_name(good[i][0], name);
        if (wrong)
            fail_msg("%s: %s", good[i][0], wrong);
        assert_string_equal(name, good[i][1]);
    }
    for (size_t i = 0; i < ARRAY_LEN(bad); i++)
        if (!tar_name(bad[i], name))
            fail_msg("%s was taken as %s", bad[i], name);
}

static void entries_become_records(void **state)
{
    (void)state;
    CHECK_LAY(true, "meta \ndir d\nfile d/f hello\nhardlink d/g > d/f\nsymlink s > /etc/x\nfifo p\nend \n",
              {"./", 'd', NULL, 0}, {"./d", 'd', NULL, 0}, {"d/f", 'f', "hello", 0}, {"d/g", 'h', "./d/f", 0},
              {"s", 'l', "/etc/x", 0}, {"p", 'p', NULL, 0});
}

/* As nix writes images. */
static void names_from_the_root_on_are_names_in_the_image(void **state)
{
    (void)state;
    CHECK_LAY(true, "meta \ndir nix\nfile nix/f hello\nhardlink nix/g > nix/f\nwhiteout nix/h\nend \n",
              {"/", 'd', NULL, 0}, {"/nix", 'd', NULL, 0}, {"/nix/f", 'f', "hello", 0}, {"/nix/g", 'h', "/nix/f", 0},
              {"/nix/.wh.h", 'f', "", 0});
}

static void devices_are_left_out_and_counted(void **state)
{
    static const struct item items[] = {{"dev/null", 'c', NULL, 0}, {"x", 'f', "", 0}};
    _cleanup_buf_ struct buf tar = {0}, got = {0};
    struct tar_lay l = {.oci = true};
    char note[100];
    (void)state;
    make_tar(items, ARRAY_LEN(items), &tar);
    assert_int_equal(lay_of(&tar, &l, &got), 0);
    assert_string_equal(buf_str(&got), "file x \nend \n");
    assert_int_equal(l.devices, 1);
    tar_lay_note(&l, note, sizeof note);
    assert_string_equal(note, "1 device nodes and sockets left out");
}

static void whiteouts_are_marks_only_in_images(void **state)
{
    (void)state;
    CHECK_LAY(true, "whiteout a/b\nopaque c\nend \n", {"a/.wh.b", 'f', "", 0}, {"c/.wh..wh..opq", 'f', "", 0},
              {".wh..wh.plnk", 'f', "", 0});
    CHECK_LAY(false, "file a/.wh.b \nend \n", {"a/.wh.b", 'f', "", 0});
}

static void a_whiteout_never_hides_what_its_own_layer_brings(void **state)
{
    (void)state;
    /* In either order: the directory is new, what was in it is gone. */
    CHECK_LAY(true, "whiteout d\ndir d\nopaque d\nfile d/x 1\nend \n", {".wh.d", 'f', "", 0}, {"d", 'd', NULL, 0},
              {"d/x", 'f', "1", 0});
    CHECK_LAY(true, "dir d\nfile d/x 1\nopaque d\nend \n", {"d", 'd', NULL, 0}, {"d/x", 'f', "1", 0},
              {".wh.d", 'f', "", 0});
    /* Directories that are only there because of what is in them. */
    CHECK_LAY(true, "whiteout d\ndir d\nopaque d\nfile d/x 1\nend \n", {".wh.d", 'f', "", 0}, {"d/x", 'f', "1", 0});
    CHECK_LAY(true, "file d/x 1\nopaque d\nend \n", {"d/x", 'f', "1", 0}, {".wh.d", 'f', "", 0});
    CHECK_LAY(true, "file f 1\nend \n", {"f", 'f', "1", 0}, {".wh.f", 'f', "", 0});
    /* Marks in it alone bring no directory. */
    CHECK_LAY(true, "whiteout d/e/x\nwhiteout d\nend \n", {"d/e/.wh.x", 'f', "", 0}, {".wh.d", 'f', "", 0});
    CHECK_LAY(true, "whiteout d/x\nfile d/y 1\nopaque d\nend \n", {"d/.wh.x", 'f', "", 0}, {"d/y", 'f', "1", 0},
              {".wh.d", 'f', "", 0});
    CHECK_LAY(true, "whiteout f\nfile f 1\nend \n", {".wh.f", 'f', "", 0}, {"f", 'f', "1", 0});
}

static void directories_keep_their_attributes_up_to_a_limit(void **state)
{
    struct dirs d = {0};
    struct lay_record r = {.mode = 0700}, got;
    _cleanup_buf_ struct buf none = {0}, half = {0}, back = {0};
    _cleanup_free_ char *bytes = xcalloc(1, DIRS_XATTRS_MAX / 2);
    (void)state;
    buf_add(&half, bytes, DIRS_XATTRS_MAX / 2);
    assert_true(dirs_put(&d, "a", &r, &half));
    assert_true(dirs_put(&d, "b", &r, &half));
    assert_true(dirs_put(&d, "b", &r, &half)); /* in place of what it had */
    buf_adds(&back, "x");
    assert_false(dirs_put(&d, "c", &r, &back));
    assert_false(dirs_get(&d, "c", &got, &back));
    assert_true(dirs_put(&d, "b", &r, &none));
    assert_true(dirs_put(&d, "c", &r, &back));
    assert_true(dirs_get(&d, "b", &got, &back));
    assert_int_equal(back.n, 0);
    assert_true(dirs_get(&d, "c", &got, &back));
    assert_string_equal(buf_str(&back), "x");
    assert_true(dirs_get(&d, "a", &got, &back));
    assert_int_equal(back.n, half.n);
    assert_int_equal(got.mode, 0700);
    dirs_done(&d);
}

/* What a layer above those of `below` makes of "d/sub/x", whose directories it does not name. */
static void check_implied(const char *expected, const struct item *below, size_t n)
{
    static const struct item first[] = {{"d", 'd', NULL, 0}, {"d/sub", 'd', NULL, 0}, {"d/other", 'd', NULL, 0}},
                             last[] = {{"d/sub/x", 'f', "1", 0}};
    struct tar_lay l = {.oci = true};
    _cleanup_buf_ struct buf a = {0}, b = {0}, c = {0}, got = {0};
    make_tar(first, ARRAY_LEN(first), &a);
    make_tar(below, n, &b);
    make_tar(last, ARRAY_LEN(last), &c);
    assert_int_equal(lay_next(&a, &l, &got), 0);
    assert_int_equal(lay_next(&b, &l, &got), 0);
    assert_int_equal(lay_of(&c, &l, &got), 0);
    assert_string_equal(buf_str(&got), expected);
}
#define CHECK_IMPLIED(expected, ...)                      \
    do {                                                  \
        static const struct item items[] = {__VA_ARGS__}; \
        check_implied(expected, items, ARRAY_LEN(items)); \
    } while (0)

static void directories_that_were_removed_have_no_attributes(void **state)
{
    (void)state;
    CHECK_IMPLIED("dir d\ndir d/sub\nfile d/sub/x 1\nend \n", {"d/.wh.other", 'f', "", 0});
    CHECK_IMPLIED("file d/sub/x 1\nend \n", {".wh.d", 'f', "", 0});
    CHECK_IMPLIED("file d/sub/x 1\nend \n", {".wh..wh..opq", 'f', "", 0});
    CHECK_IMPLIED("file d/sub/x 1\nend \n", {"d", 'l', "e", 0}, {"e", 'd', NULL, 0});
    CHECK_IMPLIED("dir d\nfile d/sub/x 1\nend \n", {"d/.wh..wh..opq", 'f', "", 0});
    CHECK_IMPLIED("dir d\nfile d/sub/x 1\nend \n", {"d/.wh.sub", 'f', "", 0});
    CHECK_IMPLIED("dir d\nfile d/sub/x 1\nend \n", {"d/sub", 'f', "1", 0});
    /* And made anew. */
    CHECK_IMPLIED("dir d\nfile d/sub/x 1\nend \n", {".wh.d", 'f', "", 0}, {"d", 'd', NULL, 0});
    CHECK_IMPLIED("dir d\nfile d/sub/x 1\nend \n", {"d", 'd', NULL, 0}, {".wh.d", 'f', "", 0});
    CHECK_IMPLIED("dir d\ndir d/sub\nfile d/sub/x 1\nend \n", {"d", 'd', NULL, 0}, {"d/sub", 'd', NULL, 0},
                  {".wh.d", 'f', "", 0});
}

static void names_that_lead_out_are_refused_by_name(void **state)
{
    (void)state;
    CHECK_REFUSED("the entry \"../x\" is refused: its name has a part \"..\"", {"../x", 'f', "", 0});
    CHECK_REFUSED("the entry \"/../x\" is refused: its name has a part \"..\"", {"/../x", 'f', "", 0});
    CHECK_REFUSED("a hard link to \"../x\"", {"a", 'h', "../x", 0});
    CHECK_REFUSED("a hard link to \"b\", which is not a file before it", {"a", 'h', "b", 0}, {"b", 'f', "", 0});
    CHECK_REFUSED("its name has a part \"..\"", {"a/.wh...", 'f', "", 0});
    CHECK_REFUSED("its name has a part \".\"", {".wh..", 'f', "", 0});
    CHECK_REFUSED("its name stands for no file", {"a/.wh.", 'f', "", 0});
    CHECK_REFUSED("its name stands for no file", {"./.wh.//", 'f', "", 0});
    CHECK_REFUSED("its name has a part \"..\"", {"../.wh..wh..opq", 'f', "", 0});
    CHECK_REFUSED("its name has a part \"..\"", {"../.wh..wh.plnk", 'f', "", 0});
    CHECK_REFUSED("its name has an empty part", {"a//.wh.b", 'f', "", 0});
    CHECK_REFUSED("its owner is 70000:0", {"a", 'f', "", 70000});
}

static void limits_end_an_archive(void **state)
{
    static const struct item items[] = {{"a", 'f', "12345", 0}, {"b", 'f', "12345", 0}};
    _cleanup_buf_ struct buf tar = {0}, got = {0};
    struct tar_lay l = {.limits = {.bytes = 9}}, m = {.limits = {.entries = 1}};
    (void)state;
    make_tar(items, ARRAY_LEN(items), &tar);
    assert_int_equal(lay_of(&tar, &l, &got), -1);
    assert_non_null(strstr(buf_str(&got), "with \"b\" (5 bytes) it is larger than 9 bytes"));
    assert_int_equal(lay_of(&tar, &m, &got), -1);
    assert_non_null(strstr(buf_str(&got), "more than 1 entries"));
}

static void an_archive_that_is_cut_off_is_refused(void **state)
{
    static const struct item items[] = {{"a", 'f', "12345", 0}};
    _cleanup_buf_ struct buf tar = {0}, got = {0};
    struct tar_lay l = {0};
    (void)state;
    make_tar(items, 1, &tar);
    tar.n = 514;
    assert_int_equal(lay_of(&tar, &l, &got), -1);
    assert_non_null(strstr(buf_str(&got), "not a whole tar"));
    tar.n = 0;
    assert_int_equal(lay_of(&tar, &l, &got), 0);
    assert_string_equal(buf_str(&got), "end \n");
}

/* Old GNU sparse: 4 bytes of data at offset 3 of 10. */
static void holes_are_zeros(void **state)
{
    _cleanup_buf_ struct buf tar = {0}, got = {0};
    struct tar_lay l = {0};
    char h[512] = {0}, data[512] = "DATA";
    unsigned sum = 0;
    (void)state;
    memcpy(h, "sparse", 6);
    memcpy(h + 100,
           "0000644\0"
           "0000000\0"
           "0000000\0"
           "00000000004\0"
           "00000000000\0"
           "        S",
           57);
    memcpy(h + 257, "ustar  ", 8);
    memcpy(h + 386,
           "00000000003\0"
           "00000000004\0",
           24);
    memcpy(h + 483, "00000000012", 12);
    for (size_t i = 0; i < sizeof h; i++)
        sum += (unsigned char)h[i];
    (void)snprintf(h + 148, 8, "%06o", sum);
    buf_add(&tar, h, sizeof h);
    buf_add(&tar, data, sizeof data);
    memset(h, 0, sizeof h);
    buf_add(&tar, h, sizeof h);
    buf_add(&tar, h, sizeof h);
    assert_int_equal(lay_of(&tar, &l, &got), 0);
    assert_int_equal(l.bytes, 10);
    static const char expected[] = "file sparse ";
    assert_memory_equal(got.p, expected, sizeof expected - 1);
}

/* --- the archive around ------------------------------------------------------------------------------------------- */

#define DIFF_ID "sha256:5f70bf18a086007016e948b04aed3b82103a36bea41755b6cddfaf10ace3c6ef" /* of 1024 zeros */

static int plan_of(const struct item *v, size_t n, const char *select, bool hutch, struct layout_plan *ret,
                   struct err *err)
{
    _cleanup_buf_ struct buf tar = {0};
    struct layout l;
    make_tar(v, n, &tar);
    _cleanup_close_ int in = memfd_of(&tar), scratch = memfd_create("scratch", MFD_CLOEXEC);
    int rc = layout_read(&l, in, scratch, UINT64_MAX, err);
    if (rc == 0)
        rc = layout_plan(&l, select, hutch, ret, err);
    buf_done(&ret->config);
    layout_done(&l);
    return rc;
}

static void a_docker_archive_is_found_out(void **state)
{
    static const struct item items[] = {
        {"x/layer.tar", 'f', "not looked at yet", 0},
        {"y/layer.tar", 'l', "../x/layer.tar", 0},
        {"c.json", 'f', "{\"rootfs\":{\"diff_ids\":[\"" DIFF_ID "\",\"" DIFF_ID "\"]}}", 0},
        {"manifest.json", 'f', "[{\"Config\":\"c.json\",\"Layers\":[\"x/layer.tar\",\"y/layer.tar\"]}]", 0},
    };
    static struct layout_plan p;
    struct err err = {0};
    (void)state;
    assert_int_equal(plan_of(items, ARRAY_LEN(items), "", false, &p, &err), 0);
    assert_int_equal(p.n, 2);
    assert_false(p.layer[0].has_digest);
    assert_int_equal(p.layer[1].diff_id[0], 0x5f);
}

/* Bytes that this process has read so far. */
static unsigned long long bytes_read(void)
{
    unsigned long long n = 0;
    FILE *f = fopen("/proc/self/io", "re");
    assert_non_null(f);
    assert_int_equal(fscanf(f, "rchar: %llu", &n), 1);
    (void)fclose(f);
    return n;
}

/* An archive of 50 GiB takes minutes to read, in which nobody would hear of it. */
static void layers_are_not_read_to_find_out_where_they_are(void **state)
{
    enum { LARGE = 16 << 20 };
    _cleanup_free_ char *text = xcalloc(1, LARGE + 1);
    const struct item items[] = {{"large", 'f', memset(text, 'x', LARGE), 0}, {"b", 'f', "12345", 0}};
    _cleanup_buf_ struct buf tar = {0};
    struct layout l;
    struct err err = {0};
    (void)state;
    make_tar(items, ARRAY_LEN(items), &tar);
    _cleanup_close_ int in = memfd_of(&tar);
    unsigned long long before = bytes_read();
    assert_int_equal(layout_read(&l, in, -1, UINT64_MAX, &err), 0);
    assert_true(bytes_read() - before < LARGE / 8);
    assert_int_equal(l.n, 2);
    assert_int_equal(l.v[0].size, LARGE);
    assert_memory_equal(tar.p + l.v[0].at, text, LARGE);
    assert_memory_equal(tar.p + l.v[1].at, "12345", 5);
    layout_done(&l);
    assert_int_equal(ftruncate(in, LARGE / 2), 0);
    assert_int_equal(layout_read(&l, in, -1, UINT64_MAX, &err), -1);
    assert_non_null(strstr(err.msg, "not a whole tar"));
    layout_done(&l);
}

static void archives_without_an_image_say_so(void **state)
{
    static const struct item none[] = {{"x", 'f', "", 0}};
    static const struct item lacks[] = {{"manifest.json", 'f', "[{\"Config\":\"c.json\",\"Layers\":[\"x\"]}]", 0}};
    static const struct item renamed[] = {
        {"5f70bf18a086007016e948b04aed3b82103a36bea41755b6cddfaf10ace3c6ef.json", 'f', "{}", 0},
        {"manifest.json", 'f',
         "[{\"Config\":\"5f70bf18a086007016e948b04aed3b82103a36bea41755b6cddfaf10ace3c6ef.json\",\"Layers\":[\"x\"]}]",
         0}};
    static const struct item out[] = {{"../manifest.json", 'f', "[]", 0}};
    static struct layout_plan p;
    struct err err = {0};
    (void)state;
    assert_int_equal(plan_of(none, 1, "", false, &p, &err), -1);
    assert_non_null(strstr(err.msg, "holds no image"));
    assert_int_equal(plan_of(lacks, 1, "", false, &p, &err), -1);
    assert_non_null(strstr(err.msg, "lacks the configuration c.json"));
    assert_int_equal(plan_of(renamed, 2, "", false, &p, &err), -1);
    assert_non_null(strstr(err.msg, "is not what its name says"));
    assert_int_equal(plan_of(out, 1, "", false, &p, &err), -1);
    assert_non_null(strstr(err.msg, "\"../manifest.json\" is refused"));
    assert_int_equal(plan_of(none, 1, "", true, &p, &err), -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_are_taken_as_tar_writes_them),
        cmocka_unit_test(entries_become_records),
        cmocka_unit_test(names_from_the_root_on_are_names_in_the_image),
        cmocka_unit_test(devices_are_left_out_and_counted),
        cmocka_unit_test(whiteouts_are_marks_only_in_images),
        cmocka_unit_test(a_whiteout_never_hides_what_its_own_layer_brings),
        cmocka_unit_test(directories_keep_their_attributes_up_to_a_limit),
        cmocka_unit_test(directories_that_were_removed_have_no_attributes),
        cmocka_unit_test(names_that_lead_out_are_refused_by_name),
        cmocka_unit_test(limits_end_an_archive),
        cmocka_unit_test(an_archive_that_is_cut_off_is_refused),
        cmocka_unit_test(holes_are_zeros),
        cmocka_unit_test(a_docker_archive_is_found_out),
        cmocka_unit_test(layers_are_not_read_to_find_out_where_they_are),
        cmocka_unit_test(archives_without_an_image_say_so),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
