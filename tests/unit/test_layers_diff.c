/* test_layers_diff.c - what differs between two trees, and the stream that turns one into the other. */
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>

#include "tree-world.h"

#include "trees/diff.h"

/* "+path" added, "-path" removed, "path:what" changed; one line each. */
static int tell(void *arg, const struct diff_entry *e, struct err *err)
{
    static const struct {
        unsigned bit;
        char letter;
    } letters[] = {{DIFF_TYPE, 'y'},  {DIFF_CONTENT, 'c'}, {DIFF_MODE, 'm'},
                   {DIFF_OWNER, 'o'}, {DIFF_TIME, 't'},    {DIFF_XATTRS, 'x'}};
    struct buf *b = arg;
    (void)err;
    assert_true((e->kind == DIFF_ADDED) == !e->a);
    assert_true((e->kind == DIFF_REMOVED) == !e->b);
    if (e->kind != DIFF_CHANGED) {
        buf_addf(b, "%c%s\n", e->kind == DIFF_ADDED ? '+' : '-', e->path);
        return 0;
    }
    buf_addf(b, "%s:", e->path);
    for (size_t i = 0; i < ARRAY_LEN(letters); i++)
        if (e->what & letters[i].bit)
            buf_addc(b, letters[i].letter);
    buf_addc(b, '\n');
    return 0;
}

static void differ(int a, int b, unsigned flags, const char *expected)
{
    _cleanup_buf_ struct buf said = {0};
    struct err err = {0};
    struct diff d = {.a = a, .b = b, .flags = flags, .each = tell, .arg = &said};
    if (diff_trees(&d, &err) < 0)
        fail_msg("%s", err.msg);
    assert_string_equal(buf_str(&said), expected);
}

static void set_time(int dir, const char *path, time_t sec)
{
    WORKS(utimensat(dir, path, (struct timespec[]){{.tv_nsec = UTIME_OMIT}, {sec, 5}}, AT_SYMLINK_NOFOLLOW));
}

static void every_kind_of_change_is_told_in_order(void **state)
{
    (void)state;
    _cleanup_close_ int a = dir_at("a"), b = dir_at("b");
    for (int i = 0; i < 2; i++) {
        int t = i ? b : a;
        static const char *const same[] = {"content", "mode", "owner", "time", "xattrs"};
        for (size_t k = 0; k < ARRAY_LEN(same); k++) {
            file_at(t, same[k], "x");
            set_time(t, same[k], 1);
        }
        WORKS(symlinkat(i ? "new" : "old", t, "link"));
        set_time(t, "link", 1);
        WORKS(mkdirat(t, "dir", 0755));
        file_at(t, "dir/in", "x");
        set_time(t, "dir/in", 1);
    }
    file_at(b, "content", "y");
    set_time(b, "content", 1);
    WORKS(fchmodat(b, "mode", 0600, 0));
    WORKS(fchownat(b, "owner", 1, 0, 0));
    set_time(b, "time", 2);
    _cleanup_close_ int x = openat(b, "xattrs", O_RDONLY | O_CLOEXEC);
    WORKS(fsetxattr(x, "user.x", "1", 1, 0));
    WORKS(mkdirat(a, "gone", 0755));
    file_at(a, "gone/in", "x");
    WORKS(mkdirat(b, "new", 0755));
    file_at(b, "new/in", "x");
    WORKS(mkdirat(a, "type1", 0755));
    file_at(a, "type1/in", "x");
    file_at(b, "type1", "x");
    file_at(a, "type2", "x");
    WORKS(mkdirat(b, "type2", 0755));
    file_at(b, "type2/in", "x");
    for (int i = 0; i < 2; i++) {
        set_time(i ? b : a, "type1", 1);
        set_time(i ? b : a, "type2", 1);
        WORKS(fchmodat(i ? b : a, "type1", 0700, 0));
        WORKS(fchmodat(i ? b : a, "type2", 0700, 0));
        set_time(i ? b : a, "dir", 1);
        set_time(i ? b : a, ".", 1);
    }
    static const char expected[] = "content:c\n-gone\n-gone/in\nlink:c\nmode:m\n+new\n+new/in\nowner:o\n%s"
                                   "type1:y\n-type1/in\ntype2:y\n+type2/in\nxattrs:x\n";
    char text[400];
    (void)snprintf(text, sizeof text, expected, "");
    differ(a, b, 0, text);
    (void)snprintf(text, sizeof text, expected, "time:t\n");
    differ(a, b, DIFF_WITH_TIMES, text);
    differ(a, a, DIFF_WITH_TIMES, "");
    WORKS(fchmod(b, 0711));
    differ(b, a, 0,
           ":m\ncontent:c\n+gone\n+gone/in\nlink:c\nmode:m\n-new\n-new/in\nowner:o\ntype1:y\n+type1/in\ntype2:y\n"
           "-type2/in\nxattrs:x\n");
}

static void owners_are_compared_after_their_shifts(void **state)
{
    _cleanup_buf_ struct buf said = {0};
    struct err err = {0};
    (void)state;
    _cleanup_close_ int a = dir_at("a"), b = dir_at("b");
    file_at(a, "f", "x");
    file_at(b, "f", "x");
    WORKS(fchown(b, 100000, 100000));
    WORKS(fchownat(b, "f", 100000, 100000, 0));
    for (int i = 0; i < 2; i++) {
        set_time(i ? b : a, "f", 1);
        set_time(i ? b : a, ".", 1);
    }
    struct diff d = {.a = a, .b = b, .shift_b = 100000, .each = tell, .arg = &said};
    assert_int_equal(diff_trees(&d, &err), 0);
    assert_string_equal(buf_str(&said), "");
    differ(a, b, 0, ":o\nf:o\n");
}

static void content_that_changed_behind_the_times_is_found(void **state)
{
    (void)state;
    _cleanup_close_ int a = dir_at("a"), b = dir_at("b");
    file_at(a, "f", "abc");
    file_at(b, "f", "abd");
    set_time(a, "f", 1);
    set_time(b, "f", 1);
    differ(a, b, 0, "f:c\n");
    /* Holes are zeros. */
    _cleanup_close_ int fa = openat(a, "h", O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    _cleanup_close_ int fb = openat(b, "h", O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    static char zeros[200000];
    WORKS(ftruncate(fa, (off_t)4 << 40)); /* not read, or this takes hours */
    WORKS(ftruncate(fb, (off_t)4 << 40));
    WORKS(fd_write_all(fb, zeros, sizeof zeros));
    differ(a, b, 0, "f:c\n");
    assert_int_equal(pwrite(fb, "x", 1, (off_t)3 << 40), 1);
    set_time(a, "h", 1);
    set_time(b, "h", 1);
    differ(a, b, 0, "f:c\nh:c\n");
}

static void nothing_is_said_about_what_is_mounted(void **state)
{
    (void)state;
    _cleanup_close_ int a = dir_at("a"), b = dir_at("b");
    WORKS(mkdirat(b, "m", 0755));
    _cleanup_free_ char *place = xasprintf("%s/b/m", world_dir);
    WORKS(mount("none", place, "tmpfs", 0, NULL));
    file_at(b, "m/f", "x");
    differ(a, b, 0, "");
    WORKS(umount2(place, 0));
    differ(a, b, 0, "+m\n");
}

static void too_many_differences_are_a_limit(void **state)
{
    _cleanup_buf_ struct buf said = {0};
    struct err err = {0};
    (void)state;
    _cleanup_close_ int a = dir_at("a"), b = dir_at("b");
    file_at(b, "1", "");
    file_at(b, "2", "");
    struct diff d = {.a = a, .b = b, .max_entries = 1, .each = tell, .arg = &said};
    assert_int_equal(diff_trees(&d, &err), -1);
    assert_int_equal(err.code, ERR_LIMIT);
    assert_string_equal(buf_str(&said), "+1\n");
}

static void an_overlay_directory_that_kept_its_inode_is_entered(void **state)
{
    (void)state;
    _cleanup_close_ int lower = dir_at("lower");
    (void)close(dir_at("empty"));
    (void)close(dir_at("upper"));
    WORKS(mkdirat(lower, "d", 0755));
    WORKS(mkdirat(lower, "d/e", 0755));
    file_at(lower, "d/e/f", "one");
    set_time(lower, "d/e/f", 1);
    int before = overlay_at("before", "empty:lower", NULL, ""), now = overlay_at("now", "lower", "upper", "");
    differ(before, now, 0, "");
    usleep(30000);                /* times of change are as coarse as the kernel's clock */
    file_at(now, "d/e/f", "two"); /* same size; time and inode as before */
    set_time(now, "d/e/f", 1);
    file_at(now, "d/e/g", "x");
    differ(before, now, 0, "d/e/f:c\n+d/e/g\n");
    unmount_at("before", before);
    unmount_at("now", now);
}

static void records_for_others_end_with_their_number(void **state)
{
    struct diff_record r;
    struct err err = {0};
    char path[8] = "";
    (void)state;
    _cleanup_close_ int a = dir_at("a"), b = dir_at("b"), s = stream_new();
    file_at(b, "f", "hello");
    struct diff d = {.a = a, .b = b};
    assert_int_equal(diff_to_records(&d, s, &err), 0);
    assert_int_equal(lseek(s, 0, SEEK_SET), 0);
    assert_int_equal(read(s, &r, sizeof r), sizeof r);
    assert_int_equal(r.magic, DIFF_MAGIC);
    assert_int_equal(r.kind, DIFF_ADDED);
    assert_int_equal(r.size_b, 5);
    assert_int_equal(r.mode_b, S_IFREG | 0644);
    assert_int_equal(r.path_len, 1);
    assert_int_equal(read(s, path, 1), 1);
    assert_string_equal(path, "f");
    assert_int_equal(read(s, &r, sizeof r), sizeof r);
    assert_int_equal(r.kind, 0);
    assert_int_equal(r.size_b, 1);
    assert_int_equal(read(s, path, 1), 0);
}

/* Lays the difference of a and b into `upper`. */
static struct lay_done lay_difference(int a, int b, int upper)
{
    static struct lay_out o;
    struct err err = {0};
    struct lay_done done = {0};
    _cleanup_close_ int s = stream_new();
    struct diff d = {.a = a, .b = b};
    lay_out_start(&o, s);
    if (diff_to_lay(&d, &o, &err) < 0 || read_back(s, upper, 0, &done, &err) < 0)
        fail_msg("%s", err.msg);
    return done;
}

static void a_stream_holds_no_more_than_the_difference(void **state)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    char mark;
    (void)state;
    _cleanup_close_ int a = dir_at("a"), b = dir_at("b"), upper = dir_at("upper");
    for (int i = 0; i < 2; i++) {
        int t = i ? b : a;
        WORKS(mkdirat(t, "d", 0750));
        WORKS(fchownat(t, "d", 5, 6, 0));
        file_at(t, "d/same", "x");
        set_time(t, "d/same", 1);
    }
    WORKS(mkdirat(a, "gone", 0755));
    WORKS(mkdirat(a, "gone/deep", 0755));
    file_at(b, "d/new", "x");
    WORKS(linkat(b, "d/new", b, "new2", 0));
    WORKS(mkdirat(a, "tofile", 0755));
    file_at(a, "tofile/in", "x");
    file_at(b, "tofile", "x");
    file_at(a, "todir", "x");
    WORKS(mkdirat(b, "todir", 0755));
    file_at(a, "tosocket", "x");
    static const char *const sockets[] = {"socket", "tosocket"};
    for (int i = 0; i < 2; i++) {
        _cleanup_close_ int s = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        (void)snprintf(at.sun_path, sizeof at.sun_path, "%s/b/%s", world_dir, sockets[i]);
        WORKS(bind(s, (struct sockaddr *)&at, sizeof at));
    }
    struct lay_done done = lay_difference(a, b, upper);
    /* root, d, d/new, gone, new2, todir and its mark, tofile, tosocket */
    assert_int_equal(done.entries, 9);
    assert_int_equal(faccessat(upper, "d/same", F_OK, 0), -1);
    assert_int_equal(stat_of(upper, "d").st_mode, S_IFDIR | 0750);
    assert_int_equal(stat_of(upper, "d").st_gid, 6);
    assert_true(is_whiteout(upper, "gone") && is_whiteout(upper, "tosocket"));
    assert_int_equal(stat_of(upper, "d/new").st_ino, stat_of(upper, "new2").st_ino);
    assert_int_equal(stat_of(upper, "tofile").st_mode, S_IFREG | 0644);
    _cleanup_close_ int todir = openat(upper, "todir", O_RDONLY | O_CLOEXEC);
    assert_int_equal(fgetxattr(todir, "trusted.overlay.opaque", &mark, 1), 1);
    assert_int_equal(faccessat(upper, "socket", F_OK, AT_SYMLINK_NOFOLLOW), -1);
}

static void laid_over_the_first_tree_the_difference_gives_the_second(void **state)
{
    struct err err = {0};
    time_t end = time(NULL) + 40;
    int round;
    (void)state;
    for (round = 0; round < 300 && time(NULL) < end; round++) {
        assert_int_equal(world_clean(NULL), 0);
        dice_state = 5000 + (uint64_t)round;
        _cleanup_close_ int a = dir_at("a"), b = dir_at("b"), upper = dir_at("upper");
        for (int i = 0; i < 60; i++)
            random_change(a);
        struct tree_copy c = {.from = a, .to = b, .prev = -1};
        if (tree_copy(&c, &err) < 0)
            fail_msg("round %d: %s", round, err.msg);
        for (int i = 0; i < (round % 3 ? 30 : 3); i++)
            random_change(b);
        (void)lay_difference(a, b, upper);
        int m = overlay_at("m", "upper:a", NULL, "");
        _cleanup_buf_ struct buf said = {0};
        struct diff d = {.a = m, .b = b, .flags = DIFF_WITH_TIMES, .each = tell, .arg = &said};
        if (diff_trees(&d, &err) < 0)
            fail_msg("round %d: %s", round, err.msg);
        if (said.n)
            fail_msg("round %d: %s", round, said.p);
        unmount_at("m", m);
    }
    assert_true(round > 20);
}

static int note_path(void *arg, const struct diff_entry *e, struct err *err)
{
    (void)err;
    strv_add(arg, e->path);
    return 0;
}

/* The stream from a to b, the one that puts `living` back, and what `living` was. */
struct both_ways {
    int to, back, was, living;
};

static struct both_ways both_ways(int a, int b, int living)
{
    static struct lay_out o;
    struct err err = {0};
    _cleanup_strv_ struct strv paths = {0};
    struct both_ways w = {stream_new(), stream_new(), dir_at("was"), living};
    struct tree_copy c = {.from = living, .to = w.was, .prev = -1};
    struct diff all = {.a = a, .b = b, .flags = DIFF_WITH_TIMES, .each = note_path, .arg = &paths};
    struct diff to = {.a = a, .b = b}, back = {.a = b, .b = living};
    lay_out_start(&o, w.to);
    if (tree_copy(&c, &err) < 0 || diff_trees(&all, &err) < 0 || diff_to_lay(&to, &o, &err) < 0)
        fail_msg("%s", err.msg);
    lay_out_start(&o, w.back);
    if (diff_back_to_lay(&back, &paths, &o, &err) < 0)
        fail_msg("%s", err.msg);
    return w;
}

/* So many bytes of the stream are laid before it fails. */
static void cut_and_go_back(const struct both_ways *w, size_t n)
{
    static char bytes[8 << 20];
    struct err err = {0};
    _cleanup_close_ int part = stream_new();
    assert_true(n <= sizeof bytes);
    assert_int_equal(pread(w->to, bytes, n, 0), n);
    WORKS(fd_write_all(part, bytes, n));
    (void)read_back(part, w->living, LAY_PLAIN, NULL, &err);
    err = (struct err){0};
    if (read_back(w->back, w->living, LAY_PLAIN, NULL, &err) < 0)
        fail_msg("cut after %zu bytes: %s", n, err.msg);
    differ(w->was, w->living, DIFF_WITH_TIMES, "");
}

/* Both changed F alike, made the same directory and removed the same file; in that directory one has a file of its own. */
static void a_stream_that_is_cut_anywhere_is_taken_back(void **state)
{
    (void)state;
    _cleanup_close_ int a = dir_at("a"), b = dir_at("b"), living = dir_at("living");
    const int trees[] = {a, b, living};
    for (size_t i = 0; i < ARRAY_LEN(trees); i++) {
        int t = trees[i];
        bool old = t == a;
        file_at(t, "f", old ? "one" : "two");
        set_time(t, "f", old ? 1 : 2);
        if (old)
            file_at(t, "both-removed", "x");
        else
            WORKS(mkdirat(t, "modules", 0755));
        if (!old)
            file_at(t, "modules/x", "x");
        WORKS(mkdirat(t, "turns", 0755));
        file_at(t, "touched", "same");
        set_time(t, "touched", t == b ? 9 : 5);
        if (t == b)
            continue;
        WORKS(mkdirat(t, "goes", 0700));
        file_at(t, "goes/in", "x");
        file_at(t, "turns/in", "x");
        file_at(t, "to-dir", "x");
    }
    file_at(living, "modules/.cache", "their own");
    file_at(b, "added", "y");
    WORKS(mkdirat(b, "to-dir", 0755));
    file_at(b, "to-dir/in", "y");
    WORKS(unlinkat(b, "turns", AT_REMOVEDIR));
    file_at(b, "turns", "a file");
    struct both_ways w = both_ways(a, b, living);
    off_t n = lseek(w.to, 0, SEEK_END);
    for (off_t i = 0; i <= n; i += 41)
        cut_and_go_back(&w, (size_t)i);
    cut_and_go_back(&w, (size_t)n);
    (void)close(w.to), (void)close(w.back), (void)close(w.was);
}

/* Either has changed nothing, or all of it alike. */
static void random_streams_that_are_cut_are_taken_back(void **state)
{
    struct err err = {0};
    (void)state;
    for (int round = 0; round < 25; round++) {
        assert_int_equal(world_clean(NULL), 0);
        dice_state = 9000 + (uint64_t)round;
        _cleanup_close_ int a = dir_at("a"), b = dir_at("b"), living = dir_at("living");
        for (int i = 0; i < 60; i++)
            random_change(a);
        struct tree_copy c = {.from = a, .to = b, .prev = -1};
        assert_int_equal(tree_copy(&c, &err), 0);
        for (int i = 0; i < 30; i++)
            random_change(b);
        struct tree_copy l = {.from = round % 2 ? a : b, .to = living, .prev = -1};
        assert_int_equal(tree_copy(&l, &err), 0);
        struct both_ways w = both_ways(a, b, living);
        unsigned n = (unsigned)lseek(w.to, 0, SEEK_END);
        for (int i = 0; i < 20; i++)
            cut_and_go_back(&w, dice(n + 1));
        (void)close(w.to), (void)close(w.back), (void)close(w.was);
    }
}

/* Long paths make a long list of few differences. */
static void a_list_that_gets_too_long_is_a_limit(void **state)
{
    enum { PARTS = 15, NAME = 250, FILES = 20000 };
    char name[NAME + 1];
    struct err err = {0};
    (void)state;
    _cleanup_close_ int a = dir_at("a"), b = dir_at("b"), s = stream_new();
    memset(name, 'n', NAME);
    name[NAME] = '\0';
    int at = dup(b);
    for (int i = 0; i < PARTS; i++) {
        WORKS(mkdirat(at, name, 0755));
        int next = openat(at, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        (void)close(at);
        at = next;
    }
    for (int i = 0; i < FILES; i++) {
        char file[16];
        (void)snprintf(file, sizeof file, "%d", i);
        WORKS(symlinkat("x", at, file));
    }
    (void)close(at);
    const struct diff d = {.a = a, .b = b};
    assert_int_equal(diff_to_records(&d, s, &err), -1);
    assert_int_equal(err.code, ERR_LIMIT);
    assert_true(lseek(s, 0, SEEK_END) <= 64 << 20);
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup(f, world_clean)
    const struct CMUnitTest tests[] = {
        TEST(every_kind_of_change_is_told_in_order),
        TEST(owners_are_compared_after_their_shifts),
        TEST(content_that_changed_behind_the_times_is_found),
        TEST(nothing_is_said_about_what_is_mounted),
        TEST(too_many_differences_are_a_limit),
        TEST(an_overlay_directory_that_kept_its_inode_is_entered),
        TEST(records_for_others_end_with_their_number),
        TEST(a_list_that_gets_too_long_is_a_limit),
        TEST(a_stream_holds_no_more_than_the_difference),
        TEST(a_stream_that_is_cut_anywhere_is_taken_back),
        TEST(random_streams_that_are_cut_are_taken_back),
        TEST(laid_over_the_first_tree_the_difference_gives_the_second),
    };
    return cmocka_run_group_tests(tests, world_setup, world_teardown);
}
