/* test_layers_lay.c - lay streams: what is made of them, and what is refused. */
#include "tree-world.h"

static struct lay_out out;
static struct lay_record plain(enum lay_type type, uint32_t mode)
{
    return (struct lay_record){
        .type = type, .mode = mode, .uid = 7, .gid = 8, .mtime_sec = 1000000000, .mtime_nsec = 123456789};
}

static int begin(void)
{
    int fd = stream_new();
    lay_out_start(&out, fd);
    return fd;
}

static void put(enum lay_type type, uint32_t mode, const char *path, const char *target)
{
    struct lay_record r = plain(type, mode);
    WORKS(lay_out_record(&out, &r, path, target, NULL, 0));
}

static void put_file(const char *path, const char *text)
{
    struct lay_record r = plain(LAY_FILE, 0644);
    r.size = strlen(text);
    WORKS(lay_out_record(&out, &r, path, NULL, NULL, 0));
    WORKS(lay_out_bytes(&out, text, strlen(text)));
}

static void pack(struct buf *b, const char *name, const void *value, size_t n)
{
    uint16_t head[2] = {(uint16_t)strlen(name), 0};
    uint32_t size = (uint32_t)n;
    buf_add(b, head, sizeof head);
    buf_add(b, &size, sizeof size);
    buf_adds(b, name);
    buf_add(b, value, n);
}

/* Ends the stream and reads it into the directory `name` of the world. */
static int finish(int stream, const char *name, unsigned flags, struct lay_done *done, struct err *err)
{
    WORKS(lay_out_end(&out));
    _cleanup_close_ int root = dir_at(name);
    return read_back(stream, root, flags, done, err);
}

static void refused(int stream, enum err_code code, const char *says)
{
    struct err err = {0};
    struct lay_done done;
    assert_int_equal(finish(stream, "t", 0, &done, &err), -1);
    if (!strstr(err.msg, says))
        fail_msg("\"%s\" does not say \"%s\"", err.msg, says);
    assert_int_equal(err.code, code);
    (void)close(stream);
}

static void paths_that_could_lead_astray_are_told_apart(void **state)
{
    static const struct {
        const char *path, *wrong;
    } cases[] = {{"a", NULL},
                 {"a/b c/\xff", NULL},
                 {"...", NULL},
                 {".a/..b", NULL},
                 {"", "is empty"},
                 {"/a", "is absolute"},
                 {"a/", "has an empty part"},
                 {"a//b", "has an empty part"},
                 {".", "has a part \".\""},
                 {"a/.", "has a part \".\""},
                 {"..", "has a part \"..\""},
                 {"a/../b", "has a part \"..\""}};
    char deep[2 * LAY_DEPTH_MAX + 2], name[LAY_NAME_MAX + 2];
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        const char *wrong = lay_path_wrong(cases[i].path, strlen(cases[i].path));
        if (cases[i].wrong)
            assert_string_equal(wrong, cases[i].wrong);
        else
            assert_null(wrong);
    }
    assert_string_equal(lay_path_wrong("a\0b", 3), "has a NUL in it");
    for (size_t i = 0; i < sizeof deep; i++)
        deep[i] = i % 2 ? '/' : 'x';
    assert_null(lay_path_wrong(deep, 2 * LAY_DEPTH_MAX - 1));
    assert_string_equal(lay_path_wrong(deep, 2 * LAY_DEPTH_MAX + 1), "has more than 128 parts");
    memset(name, 'n', sizeof name);
    assert_null(lay_path_wrong(name, LAY_NAME_MAX));
    assert_string_equal(lay_path_wrong(name, LAY_NAME_MAX + 1), "has a part longer than 255 bytes");
}

static void a_stream_becomes_what_it_says(void **state)
{
    struct err err = {0};
    struct lay_done done;
    struct stat st;
    char target[64] = "";
    (void)state;
    _cleanup_close_ int s = begin();
    put(LAY_META, 0711, "", NULL);
    put(LAY_DIR, 0555, "d", NULL);
    put_file("d/f", "hello");
    put(LAY_HARDLINK, 0, "d/g", "d/f");
    put(LAY_SYMLINK, 0777, "d/l", "../../nowhere");
    put(LAY_FIFO, 0620, "p", NULL);
    put(LAY_WHITEOUT, 0, "w", NULL);
    put(LAY_OPAQUE, 0, "d", NULL);
    struct lay_record r = plain(LAY_FILE, 06755);
    WORKS(lay_out_record(&out, &r, "s", NULL, NULL, 0));
    if (finish(s, "t", 0, &done, &err) < 0)
        fail_msg("%s", err.msg);
    _cleanup_close_ int t = dir_at("t");
    st = stat_of(t, ".");
    assert_int_equal(st.st_mode & 07777, 0711);
    assert_int_equal(st.st_mtim.tv_sec, 1000000000);
    st = stat_of(t, "d");
    assert_int_equal(st.st_mode & 07777, 0555);
    assert_int_equal(st.st_uid, 7);
    assert_int_equal(st.st_gid, 8);
    assert_int_equal(st.st_mtim.tv_sec, 1000000000);
    assert_int_equal(st.st_mtim.tv_nsec, 123456789);
    holds(t, "d/g", "hello");
    assert_int_equal(stat_of(t, "d/f").st_ino, stat_of(t, "d/g").st_ino);
    assert_true(readlinkat(t, "d/l", target, sizeof target) > 0);
    assert_string_equal(target, "../../nowhere");
    assert_int_equal(stat_of(t, "d/l").st_mtim.tv_nsec, 123456789);
    assert_int_equal(stat_of(t, "p").st_mode, S_IFIFO | 0620);
    assert_int_equal(stat_of(t, "s").st_mode, S_IFREG | 06755);
    assert_true(is_whiteout(t, "w"));
    _cleanup_close_ int d = openat(t, "d", O_RDONLY | O_CLOEXEC);
    assert_int_equal(fgetxattr(d, "trusted.overlay.opaque", target, sizeof target), 1);
    assert_int_equal(done.entries, 9);
    assert_int_equal(done.files, 2);
    assert_int_equal(done.bytes, 5);
    assert_int_equal(done.dropped, 0);
}

static void parents_nobody_described_are_the_same_each_time(void **state)
{
    uint8_t one[SHA256_BYTES], two[SHA256_BYTES];
    struct err err = {0};
    struct stat st;
    (void)state;
    for (int i = 0; i < 2; i++) {
        _cleanup_close_ int s = begin();
        put_file("a/b/f", "x");
        put(LAY_OPAQUE, 0, "o/p", NULL);
        assert_int_equal(finish(s, i ? "t" : "u", 0, NULL, &err), 0);
        _cleanup_close_ int t = dir_at(i ? "t" : "u");
        assert_int_equal(tree_digest(t, 0, i ? one : two, NULL, &err), 0);
        st = stat_of(t, "a/b");
        assert_int_equal(st.st_mode, S_IFDIR | 0755);
        assert_int_equal(st.st_uid, 0);
        assert_int_equal(st.st_mtim.tv_sec, 0);
        usleep(20000);
    }
    assert_memory_equal(one, two, sizeof one);
}

static void an_entry_below_a_link_is_refused_and_both_are_named(void **state)
{
    (void)state;
    int s = begin();
    put(LAY_SYMLINK, 0777, "a", "/etc");
    put_file("a/passwd", "x");
    refused(s, ERR_USAGE, "'a/passwd': lies below 'a', which is a symbolic link to '/etc'");
    assert_int_equal(world_clean(NULL), 0);
    s = begin();
    put(LAY_SYMLINK, 0777, "a", ".");
    put(LAY_META, 0777, "a", NULL);
    refused(s, ERR_USAGE, "'a': lies below 'a', which is a symbolic link to '.'");
    assert_int_equal(world_clean(NULL), 0);
    s = begin();
    put_file("f", "x");
    put_file("f/g", "x");
    refused(s, ERR_USAGE, "'f/g': lies below 'f', which is not a directory");
}

static void the_parent_that_is_kept_open_is_not_used_once_it_is_gone(void **state)
{
    struct err err = {0};
    (void)state;
    _cleanup_close_ int s = begin();
    put_file("a/b/f", "x");
    put(LAY_SYMLINK, 0777, "a", "/tmp");
    put_file("a/b/g", "x");
    WORKS(lay_out_end(&out));
    _cleanup_close_ int root = dir_at("t");
    assert_int_equal(read_back(s, root, 0, NULL, &err), -1);
    assert_non_null(strstr(err.msg, "lies below 'a'"));
}

static void what_is_mounted_below_the_root_is_not_entered(void **state)
{
    struct err err = {0};
    (void)state;
    _cleanup_close_ int root = dir_at("t");
    _cleanup_close_ int m = dir_at("t/m");
    _cleanup_free_ char *place = xasprintf("%s/t/m", world_dir);
    WORKS(mount("none", place, "tmpfs", 0, NULL));
    _cleanup_close_ int s = begin();
    put_file("m/f", "x");
    WORKS(lay_out_end(&out));
    assert_int_equal(read_back(s, root, 0, NULL, &err), -1);
    assert_non_null(strstr(err.msg, "mounted on the way"));
    WORKS(umount2(place, 0));
    assert_int_equal(faccessat(m, "f", F_OK, 0), -1);
}

static void the_later_record_wins(void **state)
{
    struct err err = {0};
    struct lay_done done;
    (void)state;
    _cleanup_close_ int s = begin();
    put_file("f", "first");
    put_file("f", "second");
    put_file("d/x/y", "gone");
    put_file("d", "a file now");
    put(LAY_SYMLINK, 0777, "l", "a");
    put(LAY_SYMLINK, 0777, "l", "b");
    put_file("e", "x");
    put(LAY_DIR, 0700, "e", NULL);
    put(LAY_DIR, 0750, "e", NULL);
    put(LAY_WHITEOUT, 0, "w", NULL);
    put_file("w/in", "x");
    put(LAY_WHITEOUT, 0, "v", NULL);
    put(LAY_DIR, 0755, "v", NULL);
    put_file("h", "h");
    put_file("i", "i");
    put(LAY_HARDLINK, 0, "h", "i");
    if (finish(s, "t", 0, &done, &err) < 0)
        fail_msg("%s", err.msg);
    _cleanup_close_ int t = dir_at("t");
    char target[8] = "", mark;
    holds(t, "f", "second");
    holds(t, "d", "a file now");
    assert_int_equal(readlinkat(t, "l", target, sizeof target), 1);
    assert_int_equal(target[0], 'b');
    assert_int_equal(stat_of(t, "e").st_mode, S_IFDIR | 0750);
    holds(t, "h", "i");
    for (int i = 0; i < 2; i++) { /* a directory where a whiteout was hides what the whiteout hid */
        _cleanup_close_ int w = openat(t, i ? "w" : "v", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        assert_true(w >= 0);
        assert_int_equal(fgetxattr(w, "trusted.overlay.opaque", &mark, 1), 1);
    }
    holds(t, "w/in", "x");
}

static void hard_links_reach_only_files_of_the_stream(void **state)
{
    (void)state;
    _cleanup_close_ int t = dir_at("t");
    file_at(t, "before", "not of the stream");
    int s = begin();
    put(LAY_HARDLINK, 0, "l", "before");
    refused(s, ERR_USAGE, "'l': is a hard link to 'before', which is not a file that came before it");
    s = begin();
    put(LAY_DIR, 0755, "d", NULL);
    put(LAY_HARDLINK, 0, "l", "d");
    refused(s, ERR_USAGE, "which is not a file");
    s = begin();
    put(LAY_SYMLINK, 0777, "up", "..");
    put(LAY_HARDLINK, 0, "l", "up/t/before");
    refused(s, ERR_USAGE, "lies below 'up'");
    s = begin();
    put_file("self", "x");
    put(LAY_HARDLINK, 0, "self", "self");
    refused(s, ERR_USAGE, "hard link to itself");
    s = begin();
    put(LAY_HARDLINK, 0, "l", "../outside");
    refused(s, ERR_USAGE, "has a part \"..\"");
}

static void links_and_pipes_may_have_several_names(void **state)
{
    struct err err = {0};
    char target[32] = "";
    (void)state;
    _cleanup_close_ int t = dir_at("t");
    WORKS(symlinkat("before", t, "old"));
    int s = begin();
    put(LAY_HARDLINK, 0, "l", "old");
    refused(s, ERR_USAGE, "'l': is a hard link to 'old', which is not a file that came before it");
    s = begin();
    put(LAY_SYMLINK, 0777, "l", "/etc/passwd");
    put(LAY_HARDLINK, 0, "d/again", "l");
    put(LAY_FIFO, 0620, "p", NULL);
    put(LAY_HARDLINK, 0, "d/pipe", "p");
    if (finish(s, "t", 0, NULL, &err) < 0)
        fail_msg("%s", err.msg);
    (void)close(s);
    assert_int_equal(stat_of(t, "l").st_ino, stat_of(t, "d/again").st_ino);
    assert_int_equal(readlinkat(t, "d/again", target, sizeof target - 1), 11);
    assert_string_equal(target, "/etc/passwd");
    assert_int_equal(stat_of(t, "d/pipe").st_mode, S_IFIFO | 0620);
    assert_int_equal(stat_of(t, "d/pipe").st_nlink, 2);
}

static void attributes_of_overlay_are_dropped_and_counted(void **state)
{
    static const unsigned char cap[20] = {0, 0, 0, 2, 0, 4};
    struct err err = {0};
    struct lay_done done;
    char value[64];
    (void)state;
    _cleanup_buf_ struct buf x = {0};
    pack(&x, "user.keep", "v", 1);
    pack(&x, "security.capability", cap, sizeof cap);
    pack(&x, "trusted.overlay.redirect", "/etc", 4);
    pack(&x, "user.overlay.opaque", "y", 1);
    pack(&x, "trusted.other", "v", 1);
    pack(&x, "security.selinux", "v", 1);
    _cleanup_close_ int s = begin();
    struct lay_record r = plain(LAY_FILE, 0644), d = plain(LAY_DIR, 0755);
    WORKS(lay_out_record(&out, &r, "f", NULL, x.p, x.n));
    x.n = 0;
    pack(&x, "trusted.overlay.opaque", "y", 1);
    d.uid = 1000700000;
    WORKS(lay_out_record(&out, &d, "d", NULL, x.p, x.n));
    if (finish(s, "t", 0, &done, &err) < 0)
        fail_msg("%s", err.msg);
    assert_int_equal(done.dropped, 6);
    assert_string_equal(done.note, "'f': trusted.overlay.redirect is left out");
    _cleanup_close_ int t = dir_at("t");
    _cleanup_close_ int f = openat(t, "f", O_RDONLY | O_CLOEXEC), dir = openat(t, "d", O_RDONLY | O_CLOEXEC);
    assert_int_equal(fgetxattr(f, "user.keep", value, sizeof value), 1);
    assert_int_equal(fgetxattr(f, "security.capability", value, sizeof value), sizeof cap);
    assert_int_equal(fgetxattr(f, "trusted.overlay.redirect", value, sizeof value), -1);
    assert_int_equal(fgetxattr(f, "user.overlay.opaque", value, sizeof value), -1);
    assert_int_equal(fgetxattr(f, "trusted.other", value, sizeof value), -1);
    assert_int_equal(fgetxattr(dir, "trusted.overlay.opaque", value, sizeof value), -1);
    assert_int_equal(stat_of(t, "d").st_uid, 65534);
}

static void a_default_acl_does_not_reach_into_the_files_of_the_stream(void **state)
{
    /* version 2: user::rwx, user:1000:rwx, group::r-x, mask::rwx, other::r-x */
    static const unsigned char acl[] = {2, 0,    0,    0,    1,    0,    7,    0, 0xff, 0xff, 0xff, 0xff, 2,    0,    7,
                                        0, 0xe8, 3,    0,    0,    4,    0,    5, 0,    0xff, 0xff, 0xff, 0xff, 0x10, 0,
                                        7, 0,    0xff, 0xff, 0xff, 0xff, 0x20, 0, 5,    0,    0xff, 0xff, 0xff, 0xff};
    struct err err = {0};
    struct lay_done done;
    (void)state;
    _cleanup_buf_ struct buf x = {0};
    pack(&x, "system.posix_acl_default", acl, sizeof acl);
    _cleanup_close_ int s = begin();
    struct lay_record d = plain(LAY_DIR, 0755);
    WORKS(lay_out_record(&out, &d, "d", NULL, x.p, x.n));
    put_file("d/f", "x");
    put(LAY_DIR, 0711, "d/e", NULL);
    if (finish(s, "t", 0, &done, &err) < 0)
        fail_msg("%s", err.msg);
    assert_int_equal(done.dropped, 0);
    _cleanup_close_ int t = dir_at("t");
    _cleanup_close_ int f = openat(t, "d/f", O_RDONLY | O_CLOEXEC), e = openat(t, "d/e", O_RDONLY | O_CLOEXEC);
    assert_int_equal(fgetxattr(f, "system.posix_acl_access", NULL, 0), -1);
    assert_int_equal(fgetxattr(e, "system.posix_acl_default", NULL, 0), -1);
    assert_int_equal(stat_of(t, "d/f").st_mode, S_IFREG | 0644);
    assert_int_equal(stat_of(t, "d/e").st_mode, S_IFDIR | 0711);
}

static void zeros_take_no_room_but_count(void **state)
{
    enum { SIZE = 64 << 20 };
    struct err err = {0};
    struct lay_limits limits = {.bytes = SIZE};
    struct lay_done done;
    _cleanup_free_ char *zeros = xcalloc(1, SIZE);
    (void)state;
    _cleanup_close_ int s = begin();
    struct lay_record r = plain(LAY_FILE, 0644);
    r.size = SIZE;
    WORKS(lay_out_record(&out, &r, "z", NULL, NULL, 0));
    WORKS(lay_out_bytes(&out, zeros, SIZE));
    put_file("more", "x");
    WORKS(lay_out_end(&out));
    _cleanup_close_ int t = dir_at("t");
    assert_int_equal(lseek(s, 0, SEEK_SET), 0);
    assert_int_equal(lay_read(s, t, 0, &limits, NULL, NULL, &done, &err), -1);
    assert_int_equal(err.code, ERR_LIMIT);
    assert_non_null(strstr(err.msg, "'more'"));
    assert_int_equal(done.bytes, SIZE);
    struct stat st = stat_of(t, "z");
    assert_int_equal(st.st_size, SIZE);
    assert_true(st.st_blocks * 512 < 1 << 20);
}

static void put_sparse(const char *path, uint64_t size)
{
    struct lay_record r = plain(LAY_SPARSE, 0644);
    r.size = size;
    WORKS(lay_out_record(&out, &r, path, NULL, NULL, 0));
}

static void raw_segment(int stream, uint64_t at, uint64_t n, const char *data)
{
    struct lay_segment s = {at, n};
    assert_int_equal(write(stream, &s, sizeof s), sizeof s);
    assert_int_equal(write(stream, data, strlen(data)), strlen(data));
}

static void a_file_with_holes_costs_what_is_in_it(void **state)
{
    static const uint64_t size = UINT64_C(4) << 40;
    struct err err = {0};
    struct lay_done done;
    char text[8] = "";
    _cleanup_free_ char *block = xcalloc(1, 64 << 10);
    (void)state;
    _cleanup_close_ int s = begin();
    put_sparse("z", size);
    WORKS(lay_out_zeros(&out, 64 << 10));
    memcpy(block + 8192, "data", 4);
    WORKS(lay_out_bytes(&out, block, 64 << 10));
    WORKS(lay_out_zeros(&out, size - (128 << 10)));
    put_sparse("none", 0);
    put_sparse("full", 5000);
    WORKS(lay_out_bytes(&out, memset(block, 'x', 5000), 5000));
    put_file("after", "a");
    if (finish(s, "t", 0, &done, &err) < 0)
        fail_msg("%s", err.msg);
    assert_true(lseek(s, 0, SEEK_END) < 16 << 10);
    assert_int_equal(done.bytes, LAY_PAGE + 5000 + 1);
    _cleanup_close_ int t = dir_at("t");
    _cleanup_close_ int z = openat(t, "z", O_RDONLY | O_CLOEXEC);
    struct stat st = stat_of(t, "z");
    assert_int_equal(st.st_size, size);
    assert_true(st.st_blocks * 512 < 64 << 10);
    assert_int_equal(pread(z, text, 5, (64 << 10) + 8192), 5);
    assert_string_equal(text, "data");
    assert_int_equal(stat_of(t, "none").st_size, 0);
    assert_int_equal(stat_of(t, "full").st_size, 5000);
    holds(t, "after", "a");
}

static void data_out_of_order_or_behind_the_end_is_refused(void **state)
{
    static const struct lay_segment wrong[][2] = {
        {{10, 5}, {12, 1}}, {{96, 5}, {0, 0}}, {{UINT64_MAX, 2}, {0, 0}}, {{10, UINT64_MAX}, {0, 0}}, {{50, 0}, {0, 0}},
    };
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(wrong); i++) {
        struct err err = {0};
        assert_int_equal(world_clean(NULL), 0);
        _cleanup_close_ int s = begin(), t = dir_at("t");
        struct lay_record r = {.magic = LAY_MAGIC, .type = LAY_SPARSE, .mode = 0644, .size = 100, .path_len = 1};
        assert_int_equal(write(s, &r, sizeof r), sizeof r);
        assert_int_equal(write(s, "f", 1), 1);
        raw_segment(s, wrong[i][0].at, wrong[i][0].n, "12345");
        raw_segment(s, wrong[i][1].at, wrong[i][1].n, "12345");
        assert_int_equal(read_back(s, t, 0, NULL, &err), -1);
        assert_int_equal(err.code, ERR_USAGE);
        assert_non_null(strstr(err.msg, "out of order or behind its end"));
    }
}

static void data_and_what_a_file_seems_to_have_are_limited_apart(void **state)
{
    static const char block[8192] = {1, [4096] = 1};
    struct err err = {0};
    struct lay_limits limits = {.bytes = 8192, .sparse = 1 << 20};
    (void)state;
    _cleanup_close_ int s = begin(), t = dir_at("t");
    put_sparse("good", 1 << 20);
    WORKS(lay_out_bytes(&out, block, sizeof block));
    WORKS(lay_out_zeros(&out, (1 << 20) - sizeof block));
    put_sparse("more", 4096);
    WORKS(lay_out_bytes(&out, block, 4096));
    WORKS(lay_out_end(&out));
    assert_int_equal(lseek(s, 0, SEEK_SET), 0);
    assert_int_equal(lay_read(s, t, 0, &limits, NULL, NULL, NULL, &err), -1);
    assert_int_equal(err.code, ERR_LIMIT);
    assert_non_null(strstr(err.msg, "'more'"));
    limits.sparse--;
    assert_int_equal(lseek(s, 0, SEEK_SET), 0);
    assert_int_equal(lay_read(s, t, 0, &limits, NULL, NULL, NULL, &err), -1);
    assert_int_equal(err.code, ERR_LIMIT);
    assert_non_null(strstr(err.msg, "holes included"));
}

static void capabilities_of_another_namespace_are_left_out(void **state)
{
    unsigned char cap[24] = {1, 0, 0, 3, 0, 4};
    struct err err = {0};
    struct lay_done done;
    unsigned char value[64];
    (void)state;
    _cleanup_buf_ struct buf x = {0};
    _cleanup_close_ int s = begin();
    struct lay_record r = plain(LAY_FILE, 0644), r2 = r;
    pack(&x, "security.capability", cap, sizeof cap);
    WORKS(lay_out_record(&out, &r, "ours", NULL, x.p, x.n));
    x.n = 0;
    cap[21] = 9; /* root is 2304 there */
    pack(&x, "security.capability", cap, sizeof cap);
    WORKS(lay_out_record(&out, &r2, "theirs", NULL, x.p, x.n));
    if (finish(s, "t", 0, &done, &err) < 0)
        fail_msg("%s", err.msg);
    assert_int_equal(done.dropped, 1);
    _cleanup_close_ int t = dir_at("t");
    _cleanup_close_ int ours = openat(t, "ours", O_RDONLY | O_CLOEXEC);
    _cleanup_close_ int theirs = openat(t, "theirs", O_RDONLY | O_CLOEXEC);
    assert_int_equal(fgetxattr(ours, "security.capability", value, sizeof value), 20);
    assert_int_equal(value[3], 2);
    assert_int_equal(fgetxattr(theirs, "security.capability", value, sizeof value), -1);
}

static bool stop_soon(void *arg, const struct lay_done *d)
{
    (void)d;
    return ++*(int *)arg < 2;
}

static void progress_can_stop_it(void **state)
{
    struct err err = {0};
    int calls = 0;
    char name[32];
    (void)state;
    _cleanup_close_ int s = begin();
    for (int i = 0; i < 20000; i++) {
        (void)snprintf(name, sizeof name, "w%d", i);
        put(LAY_WHITEOUT, 0, name, NULL);
    }
    WORKS(lay_out_end(&out));
    _cleanup_close_ int t = dir_at("t");
    assert_int_equal(lseek(s, 0, SEEK_SET), 0);
    assert_int_equal(lay_read(s, t, LAY_PLAIN, NULL, stop_soon, &calls, NULL, &err), -1);
    assert_int_equal(err.eno, ECANCELED);
    assert_int_equal(calls, 2);
}

static void limits_on_files_and_entries_are_kept(void **state)
{
    struct err err = {0};
    struct lay_limits few = {.entries = 2}, small = {.file = 4};
    struct lay_done done;
    (void)state;
    _cleanup_close_ int s = begin();
    put_file("a", "1234");
    put_file("b", "12345");
    put_file("c", "");
    WORKS(lay_out_end(&out));
    _cleanup_close_ int t = dir_at("t");
    assert_int_equal(lseek(s, 0, SEEK_SET), 0);
    assert_int_equal(lay_read(s, t, 0, &few, NULL, NULL, &done, &err), -1);
    assert_int_equal(err.code, ERR_LIMIT);
    assert_string_equal(err.msg, "'c': more than 2 entries, the limit");
    assert_int_equal(lseek(s, 0, SEEK_SET), 0);
    assert_int_equal(lay_read(s, t, 0, &small, NULL, NULL, &done, &err), -1);
    assert_int_equal(err.code, ERR_LIMIT);
    assert_string_equal(err.msg, "'b': 5 bytes; the limit for a file is 4");
}

static void a_stream_that_is_not_right_is_refused(void **state)
{
    struct lay_record r = plain(LAY_FILE, 0644);
    (void)state;
    int s = begin();
    r.mode = 0100644;
    WORKS(lay_out_record(&out, &r, "f", NULL, NULL, 0));
    refused(s, ERR_USAGE, "record 1 of the stream has a mode or time out of range");
    s = begin();
    r = plain(LAY_DIR, 0755);
    r.size = 5;
    WORKS(lay_out_record(&out, &r, "d", NULL, NULL, 0));
    refused(s, ERR_USAGE, "has content and is no file");
    s = begin();
    put(LAY_SYMLINK, 0777, "l", "");
    refused(s, ERR_USAGE, "is a link without a target");
    s = begin();
    put((enum lay_type)77, 0777, "l", "");
    refused(s, ERR_USAGE, "has an unknown type");
    s = begin();
    put(LAY_DIR, 0777, "", NULL);
    refused(s, ERR_USAGE, "its path is empty");
    s = begin();
    put_file("f", "ok");
    out.records = 5;
    refused(s, ERR_USAGE, "says it has 5 records and has 1");
    s = begin();
    r = plain(LAY_FILE, 0644);
    r.size = 1000000;
    WORKS(lay_out_record(&out, &r, "short", NULL, NULL, 0));
    refused(s, ERR_USAGE, "'short': the stream ends early");
    s = begin();
    r = plain(LAY_FILE, 0644);
    WORKS(lay_out_record(&out, &r, "x", NULL, "\x05\0\0\0\xff\0\0\0user.", 13));
    refused(s, ERR_USAGE, "its block of attributes is not right");
    s = begin();
    WORKS(lay_out_bytes(&out, "nonsense nonsense nonsense nonsense nonsense nonsense nonsense", 60));
    refused(s, ERR_USAGE, "does not begin with the mark of a record");
    s = stream_new();
    _cleanup_close_ int t = dir_at("t");
    struct err err = {0};
    assert_int_equal(read_back(s, t, 0, NULL, &err), -1);
    assert_string_equal(err.msg, "the stream ends before its first entry");
    (void)close(s);
}

static void into_an_ordinary_directory_whiteouts_remove(void **state)
{
    struct err err = {0};
    (void)state;
    _cleanup_close_ int t = dir_at("t");
    _cleanup_close_ int d = dir_at("t/d");
    file_at(t, "gone", "x");
    file_at(t, "d/old", "x");
    file_at(t, "kept", "x");
    _cleanup_close_ int s = begin();
    put(LAY_WHITEOUT, 0, "gone", NULL);
    put(LAY_OPAQUE, 0, "d", NULL);
    put_file("d/new", "x");
    if (finish(s, "t", LAY_PLAIN, NULL, &err) < 0)
        fail_msg("%s", err.msg);
    assert_int_equal(faccessat(t, "gone", F_OK, AT_SYMLINK_NOFOLLOW), -1);
    assert_int_equal(faccessat(t, "d/old", F_OK, AT_SYMLINK_NOFOLLOW), -1);
    assert_int_equal(faccessat(t, "d/new", F_OK, AT_SYMLINK_NOFOLLOW), 0);
    assert_int_equal(faccessat(t, "kept", F_OK, AT_SYMLINK_NOFOLLOW), 0);
    assert_int_equal(fgetxattr(d, "trusted.overlay.opaque", NULL, 0), -1);
}

static void mount_tmpfs(const char *at, const char *options)
{
    _cleanup_free_ char *place = xasprintf("%s/%s", world_dir, at);
    (void)close(dir_at(at));
    WORKS(mount("none", place, "tmpfs", 0, options));
}

/* What the kernel does on its own when memory is short. */
static bool forget_inodes(void *arg, const struct lay_done *d)
{
    (void)arg;
    (void)d;
    for (int i = 0; i < 3; i++) { /* the first time those that were used lately stay */
        int fd = open("/proc/sys/vm/drop_caches", O_WRONLY | O_CLOEXEC);
        if (fd < 0 || write(fd, "2", 1) != 1)
            print_message("the kernel cannot be made to forget: %s\n", strerror(errno));
        (void)close(fd);
    }
    return true;
}

static void directories_that_the_kernel_forgot_meanwhile_get_their_mode(void **state)
{
    enum { OTHERS = 5000 }; /* enough for a call of progress() */
    struct err err = {0};
    static const char *const dirs[] = {"m/u", "lower", "lower/old"};
    char name[32];
    (void)state;
    mount_tmpfs("m", NULL);
    for (size_t i = 0; i < ARRAY_LEN(dirs); i++)
        (void)close(dir_at(dirs[i]));
    int t = overlay_at("now", "lower", "m/u", "xino=off");
    WORKS(mkdirat(t, "probe", 0755));
    ino_t before = stat_of(t, "probe").st_ino;
    (void)forget_inodes(NULL, NULL);
    if (stat_of(t, "probe").st_ino == before) {
        unmount_at("now", t);
        print_message("this kernel keeps the inode numbers of directories\n");
        skip();
    }
    _cleanup_close_ int s = begin();
    put(LAY_DIR, 0711, "new", NULL);
    put(LAY_DIR, 0705, "new/er", NULL);
    put(LAY_DIR, 0511, "old", NULL);
    put_file("made/f", "x");
    for (int i = 0; i < OTHERS; i++) {
        (void)snprintf(name, sizeof name, "w%d", i);
        put(LAY_WHITEOUT, 0, name, NULL);
    }
    WORKS(lay_out_end(&out));
    assert_int_equal(lseek(s, 0, SEEK_SET), 0);
    if (lay_read(s, t, LAY_PLAIN, NULL, forget_inodes, NULL, NULL, &err) < 0)
        fail_msg("%s", err.msg);
    assert_int_equal(stat_of(t, "new").st_mode, S_IFDIR | 0711);
    assert_int_equal(stat_of(t, "new").st_mtim.tv_sec, 1000000000);
    assert_int_equal(stat_of(t, "new/er").st_mode, S_IFDIR | 0705);
    assert_int_equal(stat_of(t, "old").st_mode, S_IFDIR | 0511);
    assert_int_equal(stat_of(t, "old").st_mtim.tv_nsec, 123456789);
    assert_int_equal(stat_of(t, "made").st_mode, S_IFDIR | 0755);
    assert_int_equal(stat_of(t, "made").st_mtim.tv_sec, 0);
    unmount_at("now", t);
}

static void what_took_the_place_of_a_directory_does_not_get_its_mode(void **state)
{
    static const unsigned flags[] = {0, LAY_PLAIN};
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(flags); i++) {
        struct err err = {0};
        assert_int_equal(world_clean(NULL), 0);
        _cleanup_close_ int t = dir_at("t"), target = dir_at("t/target");
        WORKS(fchmod(target, 0750));
        WORKS(mkdirat(t, "old", 0755));
        _cleanup_close_ int s = begin();
        put(LAY_DIR, 0777, "file/in", NULL);
        put(LAY_DIR, 0777, "file", NULL);
        put_file("file", "x");
        put(LAY_DIR, 0777, "link", NULL);
        put(LAY_SYMLINK, 0777, "link", "target");
        put(LAY_DIR, 0777, "gone", NULL);
        put(LAY_WHITEOUT, 0, "gone", NULL);
        put(LAY_DIR, 0777, "again/in", NULL); /* of the stream, then taken away, then made for what is in it */
        put(LAY_WHITEOUT, 0, "again", NULL);
        put_file("again/in/f", "x");
        put(LAY_DIR, 0777, "old", NULL); /* was there before, then made anew */
        put_file("old", "x");
        put(LAY_DIR, 0711, "old", NULL);
        put(LAY_DIR, 0777, "empty/in", NULL);
        put(LAY_OPAQUE, 0, "empty", NULL);
        put(LAY_DIR, 0701, "empty/in", NULL);
        if (finish(s, "t", flags[i], NULL, &err) < 0)
            fail_msg("%s", err.msg);
        assert_int_equal(stat_of(t, "file").st_mode, S_IFREG | 0644);
        assert_true(S_ISLNK(stat_of(t, "link").st_mode));
        assert_int_equal(stat_of(t, "target").st_mode, S_IFDIR | 0750);
        if (flags[i] & LAY_PLAIN)
            assert_int_equal(faccessat(t, "gone", F_OK, AT_SYMLINK_NOFOLLOW), -1);
        else
            assert_true(is_whiteout(t, "gone"));
        assert_int_equal(stat_of(t, "again").st_mode, S_IFDIR | 0755);
        assert_int_equal(stat_of(t, "again/in").st_mode, S_IFDIR | 0755);
        assert_int_equal(stat_of(t, "again/in").st_mtim.tv_sec, 0);
        assert_int_equal(stat_of(t, "old").st_mode, S_IFDIR | 0711);
        assert_int_equal(stat_of(t, "empty/in").st_mode, S_IFDIR | 0701);
    }
}

static void an_attribute_without_room_is_dropped_or_fails_as_asked(void **state)
{
    enum { SIZE = 20000 }; /* more than the attributes of 16 files may have */
    struct err err = {0};
    struct lay_done done;
    _cleanup_free_ char *value = xcalloc(1, SIZE);
    (void)state;
    mount_tmpfs("m", "nr_inodes=16");
    _cleanup_close_ int t = dir_at("m");
    if (fsetxattr(t, "user.probe", "x", 1, 0) < 0)
        skip(); /* tmpfs before Linux 6.6 */
    _cleanup_buf_ struct buf x = {0};
    pack(&x, "user.large", value, SIZE);
    _cleanup_close_ int s = begin();
    put_file("before", "x");
    struct lay_record r = plain(LAY_FILE, 0644);
    WORKS(lay_out_record(&out, &r, "f", NULL, x.p, x.n));
    if (finish(s, "m", LAY_PLAIN, &done, &err) < 0)
        fail_msg("%s", err.msg);
    assert_int_equal(done.dropped, 1);
    assert_non_null(strstr(done.note, "'f': user.large is left out"));
    assert_int_equal(read_back(s, t, LAY_PLAIN | LAY_WHOLE, NULL, &err), -1);
    assert_int_equal(err.code, ERR_SETUP);
    assert_int_equal(err.eno, ENOSPC);
    assert_non_null(strstr(err.msg, "'f': attribute user.large cannot be set"));
}

static void there(int dir, const char *path, bool expected)
{
    if ((faccessat(dir, path, F_OK, AT_SYMLINK_NOFOLLOW) == 0) != expected)
        fail_msg("%s is %s", path, expected ? "gone" : "still there");
}

static void a_mark_that_comes_last_spares_what_its_own_stream_made(void **state)
{
    static const char *const ours[] = {"d/.bashrc", "d/link",     "d/hard",          "d/pipe",
                                       "d/empty",   "d/both/new", "d/both/under/new"};
    static const char *const theirs[] = {"d/old", "d/dir", "d/both/old", "d/both/dir", "d/both/under/old"};
    struct err err = {0};
    (void)state;
    _cleanup_close_ int t = dir_at("t");
    static const char *const dirs[] = {"t/d", "t/d/dir", "t/d/both", "t/d/both/dir", "t/d/both/under"};
    for (size_t i = 0; i < ARRAY_LEN(dirs); i++)
        (void)close(dir_at(dirs[i]));
    static const char *const files[] = {"d/old", "d/dir/old", "d/both/old", "d/both/dir/old", "d/both/under/old"};
    for (size_t i = 0; i < ARRAY_LEN(files); i++)
        file_at(t, files[i], "x");
    _cleanup_close_ int s = begin();
    put(LAY_DIR, 0755, "d", NULL);
    put_file("d/.bashrc", "x");
    put(LAY_HARDLINK, 0, "d/hard", "d/.bashrc");
    put(LAY_SYMLINK, 0777, "d/link", "nowhere");
    put(LAY_FIFO, 0644, "d/pipe", NULL);
    put(LAY_DIR, 0755, "d/empty", NULL);
    put_file("d/both/new", "x"); /* in directories that no record describes */
    put_file("d/both/under/new", "x");
    put(LAY_OPAQUE, 0, "d", NULL);
    put_file("d/last", "x");
    put(LAY_OPAQUE, 0, "d", NULL);
    put(LAY_OPAQUE, 0, "", NULL);
    if (finish(s, "t", LAY_PLAIN, NULL, &err) < 0)
        fail_msg("%s", err.msg);
    for (size_t i = 0; i < ARRAY_LEN(ours); i++)
        there(t, ours[i], true);
    there(t, "d/last", true);
    for (size_t i = 0; i < ARRAY_LEN(theirs); i++)
        there(t, theirs[i], false);
}

static void without_root_marks_are_those_of_users(void **state)
{
    struct err err = {0};
    char mark;
    (void)state;
    _cleanup_close_ int s = begin();
    put(LAY_DIR, 0500, "d", NULL);
    put_file("d/f", "into a directory that is read-only in the end");
    put(LAY_OPAQUE, 0, "d", NULL);
    put(LAY_WHITEOUT, 0, "w", NULL);
    WORKS(lay_out_end(&out));
    _cleanup_close_ int t = dir_at("t");
    WORKS(fchown(t, 1234, 1234));
    WORKS(setegid(1234));
    WORKS(seteuid(1234));
    int r = read_back(s, t, LAY_USERXATTR | LAY_NO_CHOWN, NULL, &err);
    WORKS(seteuid(0));
    WORKS(setegid(0));
    if (r < 0)
        fail_msg("%s", err.msg);
    _cleanup_close_ int d = openat(t, "d", O_RDONLY | O_CLOEXEC);
    assert_int_equal(fgetxattr(d, "user.overlay.opaque", &mark, 1), 1);
    assert_int_equal(stat_of(t, "d").st_mode, S_IFDIR | 0500);
    assert_true(is_whiteout(t, "w"));
}

static unsigned began, over;
static void on_wait(bool now)
{
    began += now;
    over += !now;
    assert_int_equal(began, over + now);
}

static void every_write_is_told_before_and_after(void **state)
{
    static const char large[sizeof out.buf];
    struct lay_record r = plain(LAY_FILE, 0644);
    (void)state;
    int fd = begin();
    assert_null(out.waits);
    out.waits = on_wait;
    r.size = sizeof large;
    WORKS(lay_out_record(&out, &r, "f", NULL, NULL, 0));
    assert_int_equal(began, 0);
    WORKS(lay_out_bytes(&out, large, sizeof large));
    assert_int_equal(over, 2); /* what was in its buffer, and what it has no room for */
    WORKS(lay_out_end(&out));
    assert_int_equal(over, 3);
    (void)close(fd);
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup(f, world_clean)
    const struct CMUnitTest tests[] = {
        TEST(paths_that_could_lead_astray_are_told_apart),
        TEST(every_write_is_told_before_and_after),
        TEST(a_stream_becomes_what_it_says),
        TEST(parents_nobody_described_are_the_same_each_time),
        TEST(an_entry_below_a_link_is_refused_and_both_are_named),
        TEST(the_parent_that_is_kept_open_is_not_used_once_it_is_gone),
        TEST(what_is_mounted_below_the_root_is_not_entered),
        TEST(the_later_record_wins),
        TEST(hard_links_reach_only_files_of_the_stream),
        TEST(links_and_pipes_may_have_several_names),
        TEST(attributes_of_overlay_are_dropped_and_counted),
        TEST(a_default_acl_does_not_reach_into_the_files_of_the_stream),
        TEST(zeros_take_no_room_but_count),
        TEST(a_file_with_holes_costs_what_is_in_it),
        TEST(data_out_of_order_or_behind_the_end_is_refused),
        TEST(data_and_what_a_file_seems_to_have_are_limited_apart),
        TEST(capabilities_of_another_namespace_are_left_out),
        TEST(progress_can_stop_it),
        TEST(limits_on_files_and_entries_are_kept),
        TEST(a_stream_that_is_not_right_is_refused),
        TEST(into_an_ordinary_directory_whiteouts_remove),
        TEST(directories_that_the_kernel_forgot_meanwhile_get_their_mode),
        TEST(what_took_the_place_of_a_directory_does_not_get_its_mode),
        TEST(an_attribute_without_room_is_dropped_or_fails_as_asked),
        TEST(a_mark_that_comes_last_spares_what_its_own_stream_made),
        TEST(without_root_marks_are_those_of_users),
    };
    return cmocka_run_group_tests(tests, world_setup, world_teardown);
}
