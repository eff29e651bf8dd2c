/* test_layers_tree.c - whole trees: copies of uppers, digests, removal. */
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>

#include "tree-world.h"

#include "trees/diff.h"

static struct tree_copy copied(int from, int to)
{
    struct tree_copy c = {.from = from, .to = to, .prev = -1};
    struct err err = {0};
    if (tree_copy(&c, &err) < 0)
        fail_msg("%s", err.msg);
    return c;
}

static void digest_of(int root, uint8_t ret[SHA256_BYTES])
{
    struct err err = {0};
    if (tree_digest(root, 0, ret, NULL, &err) < 0)
        fail_msg("%s", err.msg);
}

static bool same_digest(int a, int b)
{
    uint8_t da[SHA256_BYTES], db[SHA256_BYTES];
    digest_of(a, da);
    digest_of(b, db);
    return memcmp(da, db, sizeof da) == 0;
}

/* A tree with one of everything that a layer can hold. */
static int full_tree(const char *name)
{
    int t = dir_at(name);
    WORKS(mkdirat(t, "d", 0750));
    file_at(t, "d/f", "content");
    WORKS(linkat(t, "d/f", t, "d/g", 0));
    WORKS(linkat(t, "d/f", t, "z", 0));
    WORKS(symlinkat("d/f", t, "l"));
    WORKS(mkfifoat(t, "p", 0620));
    WORKS(mknodat(t, "w", S_IFCHR, makedev(0, 0)));
    WORKS(linkat(t, "w", t, "w2", 0)); /* as overlay makes them */
    file_at(t, "suid", "x");
    WORKS(fchmodat(t, "suid", 04755, 0));
    WORKS(fchownat(t, "l", 33, 44, AT_SYMLINK_NOFOLLOW));
    WORKS(fchownat(t, "d", 33, 44, 0));
    _cleanup_close_ int d = openat(t, "d", O_RDONLY | O_CLOEXEC), f = openat(t, "d/f", O_RDONLY | O_CLOEXEC);
    WORKS(fsetxattr(d, "trusted.overlay.opaque", "y", 1, 0));
    WORKS(fsetxattr(d, "user.a", "1", 1, 0));
    WORKS(fsetxattr(f, "user.b", "22", 2, 0));
    return t;
}

static void a_copy_holds_everything_the_tree_held(void **state)
{
    char value[8];
    (void)state;
    _cleanup_close_ int from = full_tree("from"), to = dir_at("to");
    struct tree_copy c = copied(from, to);
    assert_true(same_digest(from, to));
    assert_int_equal(c.done.entries, 10);
    struct stat a = stat_of(from, "d"), b = stat_of(to, "d");
    assert_int_equal(a.st_mode, b.st_mode);
    assert_int_equal(b.st_uid, 33);
    assert_int_equal(a.st_mtim.tv_nsec, b.st_mtim.tv_nsec);
    assert_int_equal(stat_of(to, "d/f").st_ino, stat_of(to, "z").st_ino);
    assert_int_equal(stat_of(to, "d/f").st_nlink, 3);
    assert_int_equal(stat_of(to, "suid").st_mode, S_IFREG | 04755);
    assert_int_equal(stat_of(to, "l").st_gid, 44);
    assert_true(is_whiteout(to, "w") && is_whiteout(to, "w2"));
    holds(to, "d/g", "content");
    _cleanup_close_ int d = openat(to, "d", O_RDONLY | O_CLOEXEC);
    assert_int_equal(fgetxattr(d, "trusted.overlay.opaque", value, sizeof value), 1);
    assert_int_equal(fgetxattr(d, "user.a", value, sizeof value), 1);
}

static void overlays_bookkeeping_is_not_copied_and_its_redirects_are(void **state)
{
    char value[8];
    (void)state;
    _cleanup_close_ int from = dir_at("from"), to = dir_at("to");
    WORKS(mkdirat(from, "d", 0755));
    _cleanup_close_ int d = openat(from, "d", O_RDONLY | O_CLOEXEC);
    WORKS(fsetxattr(d, "trusted.overlay.origin", "x", 1, 0));
    WORKS(fsetxattr(d, "trusted.overlay.impure", "y", 1, 0));
    WORKS(fsetxattr(d, "trusted.overlay.redirect", "/e", 2, 0));
    WORKS(fsetxattr(d, "trusted.overlay.overlay.opaque", "y", 1, 0));
    (void)copied(from, to);
    _cleanup_close_ int c = openat(to, "d", O_RDONLY | O_CLOEXEC);
    assert_int_equal(fgetxattr(c, "trusted.overlay.origin", value, sizeof value), -1);
    assert_int_equal(fgetxattr(c, "trusted.overlay.impure", value, sizeof value), -1);
    assert_int_equal(fgetxattr(c, "trusted.overlay.redirect", value, sizeof value), 2);
    assert_int_equal(fgetxattr(c, "trusted.overlay.overlay.opaque", value, sizeof value), 1);
    assert_true(same_digest(from, to));
}

static void owners_are_shifted_and_those_outside_are_refused(void **state)
{
    /* revision 3 of file capabilities: for the user 100000, who is root there */
    static const unsigned char cap[24] = {0, 0, 0, 3, 0, 4, [20] = 0xa0, 0x86, 1, 0};
    static const unsigned char acl[] = {2,
                                        0,
                                        0,
                                        0,
                                        1,
                                        0,
                                        6,
                                        0,
                                        0xff,
                                        0xff,
                                        0xff,
                                        0xff,
                                        2,
                                        0,
                                        4,
                                        0,
                                        /* 101000 */ 0x88,
                                        0x8a,
                                        1,
                                        0,
                                        4,
                                        0,
                                        4,
                                        0,
                                        0xff,
                                        0xff,
                                        0xff,
                                        0xff,
                                        0x10,
                                        0,
                                        4,
                                        0,
                                        0xff,
                                        0xff,
                                        0xff,
                                        0xff,
                                        0x20,
                                        0,
                                        4,
                                        0,
                                        0xff,
                                        0xff,
                                        0xff,
                                        0xff};
    unsigned char got[64];
    struct err err = {0};
    (void)state;
    _cleanup_close_ int from = dir_at("from"), to = dir_at("to"), to2 = dir_at("to2");
    WORKS(fchown(from, 100000, 100000));
    file_at(from, "f", "x");
    WORKS(fchownat(from, "f", 100000 + 1000, 100000 + 65535, 0));
    _cleanup_close_ int f = openat(from, "f", O_RDWR | O_CLOEXEC);
    WORKS(fsetxattr(f, "security.capability", cap, sizeof cap, 0));
    WORKS(fsetxattr(f, "system.posix_acl_access", acl, sizeof acl, 0));
    struct tree_copy c = {.from = from, .to = to, .prev = -1, .shift = 100000};
    if (tree_copy(&c, &err) < 0)
        fail_msg("%s", err.msg);
    assert_int_equal(stat_of(to, "f").st_uid, 1000);
    assert_int_equal(stat_of(to, "f").st_gid, 65535);
    _cleanup_close_ int g = openat(to, "f", O_RDONLY | O_CLOEXEC);
    assert_int_equal(fgetxattr(g, "security.capability", got, sizeof got), 20);
    assert_int_equal(got[3], 2);
    assert_int_equal(fgetxattr(g, "system.posix_acl_access", got, sizeof got), sizeof acl);
    assert_int_equal(got[16] | got[17] << 8, 1000);
    WORKS(fchownat(from, "f", 99999, 100000, 0));
    c.to = to2;
    assert_int_equal(tree_copy(&c, &err), -1);
    assert_string_equal(err.msg, "'f': its owner 99999:100000 is outside 100000..165535");
}

static void owners_that_are_not_copied_may_be_any(void **state)
{
    struct err err = {0};
    (void)state;
    _cleanup_close_ int from = dir_at("from"), to = dir_at("to"), to2 = dir_at("to2");
    WORKS(mkdirat(from, "d", 0755));
    file_at(from, "d/f", "x");
    WORKS(symlinkat("f", from, "d/l"));
    static const char *const names[] = {".", "d", "d/f", "d/l"};
    for (size_t i = 0; i < ARRAY_LEN(names); i++)
        WORKS(fchownat(from, names[i], 200001, 200002, AT_SYMLINK_NOFOLLOW));
    struct tree_copy c = {.from = from, .to = to, .prev = -1, .flags = TREE_NO_CHOWN | TREE_USERXATTR};
    if (tree_copy(&c, &err) < 0)
        fail_msg("%s", err.msg);
    holds(to, "d/f", "x");
    for (size_t i = 0; i < ARRAY_LEN(names); i++)
        assert_int_equal(stat_of(to, names[i]).st_uid, 0);
    c.to = to2;
    c.flags = TREE_USERXATTR; /* where they count, they are checked */
    assert_int_equal(tree_copy(&c, &err), -1);
    assert_non_null(strstr(err.msg, "its owner 200001:200002 is outside 0..65535"));
}

static void devices_are_refused_by_name(void **state)
{
    struct err err = {0};
    (void)state;
    _cleanup_close_ int from = dir_at("from"), to = dir_at("to");
    WORKS(mkdirat(from, "dev", 0755));
    WORKS(mknodat(from, "dev/null", S_IFCHR | 0666, makedev(1, 3)));
    struct tree_copy c = {.from = from, .to = to, .prev = -1};
    assert_int_equal(tree_copy(&c, &err), -1);
    assert_string_equal(err.msg, "'dev/null': is a device (1:3), which no layer holds");
}

static void a_copy_stops_at_its_limits(void **state)
{
    struct err err = {0};
    (void)state;
    _cleanup_close_ int from = full_tree("from"), to = dir_at("to"), to2 = dir_at("to2");
    struct tree_copy c = {.from = from, .to = to, .prev = -1, .max = {.entries = 5}};
    assert_int_equal(tree_copy(&c, &err), -1);
    assert_int_equal(err.code, ERR_LIMIT);
    c.to = to2;
    c.max = (struct tree_size){.bytes = 4096};
    assert_int_equal(tree_copy(&c, &err), -1);
    assert_int_equal(err.code, ERR_LIMIT);
    assert_non_null(strstr(err.msg, "more than 4096 bytes"));
}

static void holes_stay_holes(void **state)
{
    (void)state;
    _cleanup_close_ int from = dir_at("from"), to = dir_at("to");
    _cleanup_close_ int f = openat(from, "s", O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    assert_int_equal(pwrite(f, "middle", 6, 500 << 20), 6);
    WORKS(ftruncate(f, (off_t)1 << 30));
    (void)copied(from, to);
    struct stat st = stat_of(to, "s");
    assert_int_equal(st.st_size, (off_t)1 << 30);
    assert_true(st.st_blocks * 512 < 1 << 20);
    assert_true(same_digest(from, to));
    char got[7] = "";
    _cleanup_close_ int g = openat(to, "s", O_RDONLY | O_CLOEXEC);
    assert_int_equal(pread(g, got, 6, 500 << 20), 6);
    assert_string_equal(got, "middle");
}

static void files_that_did_not_change_are_linked_to_the_earlier_copy(void **state)
{
    struct err err = {0};
    (void)state;
    _cleanup_close_ int from = dir_at("from"), one = dir_at("one"), two = dir_at("two");
    file_at(from, "same", "same");
    file_at(from, "changed", "before");
    file_at(from, "twin1", "twin");
    WORKS(linkat(from, "twin1", from, "twin2", 0));
    (void)copied(from, one);
    /* As a mapping would: other content, the same size and time. */
    struct stat st = stat_of(from, "changed");
    file_at(from, "changed", "behind");
    WORKS(utimensat(from, "changed", (struct timespec[]){st.st_atim, st.st_mtim}, 0));
    /* One file with two names becomes two. */
    st = stat_of(from, "twin2");
    WORKS(unlinkat(from, "twin2", 0));
    file_at(from, "twin2", "twin");
    WORKS(utimensat(from, "twin2", (struct timespec[]){st.st_atim, st.st_mtim}, 0));
    struct tree_copy c = {.from = from, .to = two, .prev = one};
    if (tree_copy(&c, &err) < 0)
        fail_msg("%s", err.msg);
    assert_int_equal(stat_of(two, "same").st_ino, stat_of(one, "same").st_ino);
    assert_true(stat_of(two, "changed").st_ino != stat_of(one, "changed").st_ino);
    holds(two, "changed", "behind");
    assert_true(stat_of(two, "twin1").st_ino != stat_of(two, "twin2").st_ino);
    assert_true(c.linked > 0);
    assert_true(same_digest(from, two));
    assert_int_equal(tree_same(two, one, 0, NULL, &err), 0);
    /* A copy of what has not changed since holds the same, until something in it differs. */
    _cleanup_close_ int three = dir_at("three");
    c = (struct tree_copy){.from = from, .to = three, .prev = two};
    if (tree_copy(&c, &err) < 0)
        fail_msg("%s", err.msg);
    assert_int_equal(tree_same(three, two, 0, NULL, &err), 1);
    /* Snapshots: what was changed in the last moment before the earlier one may have changed again since. */
    struct timespec at;
    WORKS(nanosleep(&(struct timespec){.tv_nsec = 50000000}, NULL));
    WORKS(clock_gettime(CLOCK_REALTIME, &at));
    assert_int_equal(tree_same(three, three, 0, &at, &err), 1);
    file_at(three, "late", "content");
    WORKS(clock_gettime(CLOCK_REALTIME, &at));
    assert_int_equal(tree_same(three, three, 0, &at, &err), 1);
    _cleanup_close_ int late = openat(three, "late", O_WRONLY | O_CLOEXEC);
    WORKS(ftruncate(late, 0));
    WORKS(ftruncate(late, 5 << 20)); /* too large to be read, and a hole has no blocks */
    WORKS(clock_gettime(CLOCK_REALTIME, &at));
    assert_int_equal(tree_same(three, three, 0, &at, &err), 0);
    at.tv_nsec = 0; /* at the edge of a second */
    at.tv_sec += 2;
    assert_int_equal(tree_same(three, three, 0, &at, &err), 1);
    WORKS(unlinkat(three, "late", 0));
    WORKS(fchmod(three, 0711));
    assert_int_equal(tree_same(three, two, 0, NULL, &err), 0);
}

static void a_socket_does_not_bring_back_what_it_stood_for(void **state)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    (void)state;
    _cleanup_close_ int lower = dir_at("lower"), upper = dir_at("upper"), to = dir_at("to");
    WORKS(mkdirat(lower, "run", 0755));
    file_at(lower, "run/x", "was a file");
    int m = overlay_at("m", "lower", "upper", "");
    WORKS(unlinkat(m, "run/x", 0));
    WORKS(mkdirat(m, "new", 0755));
    static const char *const names[] = {"run/x", "new/y"};
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        _cleanup_close_ int s = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        (void)snprintf(at.sun_path, sizeof at.sun_path, "%s/m/%s", world_dir, names[i]);
        WORKS(bind(s, (struct sockaddr *)&at, sizeof at));
    }
    unmount_at("m", m);
    struct tree_copy c = copied(upper, to);
    assert_int_equal(c.skipped, 2);
    assert_true(is_whiteout(to, "run/x"));
    assert_int_equal(faccessat(to, "new/y", F_OK, AT_SYMLINK_NOFOLLOW), -1);
    m = overlay_at("m", "to:lower", NULL, "");
    assert_int_equal(faccessat(m, "run/x", F_OK, AT_SYMLINK_NOFOLLOW), -1);
    unmount_at("m", m);
}

static void a_digest_says_everything_that_counts_and_nothing_else(void **state)
{
    uint8_t before[SHA256_BYTES], now[SHA256_BYTES];
    (void)state;
    _cleanup_close_ int a = dir_at("a"), b = dir_at("b");
    char name[16];
    /* The same names, made in two orders, and a directory that was large once. */
    for (int i = 0; i < 300; i++) {
        (void)snprintf(name, sizeof name, "f%d", i);
        file_at(a, name, "x");
        (void)snprintf(name, sizeof name, "f%d", 299 - i);
        file_at(b, name, "x");
    }
    for (int i = 0; i < 2000; i++) {
        (void)snprintf(name, sizeof name, "long%d", i);
        file_at(b, name, "");
    }
    for (int i = 0; i < 2000; i++) {
        (void)snprintf(name, sizeof name, "long%d", i);
        WORKS(unlinkat(b, name, 0));
    }
    struct timespec t[2] = {{.tv_nsec = UTIME_OMIT}, {5, 6}};
    for (int i = 0; i < 300; i++) {
        (void)snprintf(name, sizeof name, "f%d", i);
        WORKS(utimensat(a, name, t, 0));
        WORKS(utimensat(b, name, t, 0));
    }
    WORKS(futimens(a, t));
    WORKS(futimens(b, t));
    assert_true(same_digest(a, b));
    digest_of(a, before);
    t[1].tv_nsec = 7;
    WORKS(utimensat(a, "f7", t, 0));
    digest_of(a, now);
    assert_memory_not_equal(before, now, sizeof now);
    t[1].tv_nsec = 6;
    WORKS(utimensat(a, "f7", t, 0));
    digest_of(a, now);
    assert_memory_equal(before, now, sizeof now);
    WORKS(fchownat(a, "f7", 0, 1, 0));
    digest_of(a, now);
    assert_memory_not_equal(before, now, sizeof now);
    WORKS(fchownat(a, "f7", 0, 0, 0));
    WORKS(fchmod(a, 0700));
    digest_of(a, now);
    assert_memory_not_equal(before, now, sizeof now);
}

static void a_file_of_nothing_has_its_digest_at_once_and_zeros_are_zeros(void **state)
{
    uint8_t d[SHA256_BYTES];
    struct timespec t[2] = {{.tv_nsec = UTIME_OMIT}, {5, 6}};
    (void)state;
    _cleanup_close_ int a = dir_at("a"), b = dir_at("b"), c = dir_at("c");
    _cleanup_close_ int fa = openat(a, "z", O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    _cleanup_close_ int fb = openat(b, "z", O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    _cleanup_free_ char *zeros = xcalloc(1, 300000);
    WORKS(ftruncate(fa, 300000));
    WORKS(fd_write_all(fb, zeros, 300000));
    WORKS(futimens(fa, t));
    WORKS(futimens(fb, t));
    WORKS(futimens(a, t));
    WORKS(futimens(b, t));
    assert_true(same_digest(a, b));
    _cleanup_close_ int fc = openat(c, "z", O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    WORKS(ftruncate(fc, (off_t)8 << 40)); /* would take hours */
    digest_of(c, d);
}

static void a_tree_written_out_and_read_again_has_its_digest(void **state)
{
    static struct lay_out o;
    struct err err = {0};
    (void)state;
    _cleanup_close_ int from = full_tree("from"), to = dir_at("to"), s = stream_new();
    lay_out_start(&o, s);
    if (tree_write(from, 0, &o, NULL, &err) < 0 || read_back(s, to, 0, NULL, &err) < 0)
        fail_msg("%s", err.msg);
    assert_true(same_digest(from, to));
}

static void a_stream_of_holes_is_short_and_keeps_the_digest(void **state)
{
    static struct lay_out o;
    struct err err = {0};
    (void)state;
    _cleanup_close_ int from = dir_at("from"), to = dir_at("to"), s = stream_new();
    _cleanup_close_ int f = openat(from, "z", O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    WORKS(ftruncate(f, (off_t)8 << 40));
    assert_int_equal(pwrite(f, "middle", 6, (off_t)3 << 40), 6);
    assert_int_equal(pwrite(f, "end", 3, ((off_t)8 << 40) - 3), 3);
    lay_out_start(&o, s);
    if (tree_write(from, 0, &o, NULL, &err) < 0)
        fail_msg("%s", err.msg);
    assert_true(lseek(s, 0, SEEK_END) < 64 << 10);
    if (read_back(s, to, 0, NULL, &err) < 0)
        fail_msg("%s", err.msg);
    assert_true(stat_of(to, "z").st_blocks * 512 < 64 << 10);
    assert_true(same_digest(from, to));
}

static void a_stream_ends_at_its_limit(void **state)
{
    static struct lay_out o;
    struct err err = {0};
    _cleanup_free_ char *block = memset(xmalloc(1 << 20), 'x', 1 << 20);
    (void)state;
    _cleanup_close_ int from = dir_at("from"), s = stream_new();
    _cleanup_close_ int f = openat(from, "large", O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    WORKS(fd_write_all(f, block, 1 << 20));
    lay_out_start(&o, s);
    o.max = 512 << 10;
    assert_int_equal(tree_write(from, 0, &o, NULL, &err), -1);
    assert_int_equal(err.code, ERR_LIMIT);
    assert_non_null(strstr(err.msg, "'large'"));
    assert_true(lseek(s, 0, SEEK_END) <= 512 << 10);
}

static void devices_are_left_out_of_a_stream_that_may(void **state)
{
    static struct lay_out o;
    struct err err = {0};
    uint64_t devices = 0;
    (void)state;
    _cleanup_close_ int from = dir_at("from"), s = stream_new(), to = dir_at("to");
    WORKS(mkdirat(from, "dev", 0755));
    WORKS(mknodat(from, "dev/null", S_IFCHR | 0666, makedev(1, 3)));
    WORKS(mknodat(from, "dev/disk", S_IFBLK | 0600, makedev(254, 0)));
    WORKS(mknodat(from, "dev/fifo", S_IFIFO | 0600, 0));
    lay_out_start(&o, s);
    assert_int_equal(tree_write(from, 0, &o, NULL, &err), -1);
    assert_string_equal(err.msg, "'dev/disk': is a device, which no layer holds");
    _cleanup_close_ int again = stream_new();
    lay_out_start(&o, again);
    WORKS(tree_write(from, 0, &o, &devices, &err));
    assert_int_equal(devices, 2);
    WORKS(read_back(again, to, 0, NULL, &err));
    assert_int_equal(faccessat(to, "dev/fifo", F_OK, 0), 0);
    assert_int_equal(faccessat(to, "dev/null", F_OK, 0), -1);
}

static void a_digest_says_what_sockets_there_are(void **state)
{
    const struct timespec t[2] = {{0}, {0}};
    (void)state;
    _cleanup_close_ int a = dir_at("a"), b = dir_at("b");
    WORKS(mknodat(b, "s", S_IFSOCK | 0600, 0));
    WORKS(futimens(a, t));
    WORKS(futimens(b, t));
    assert_false(same_digest(a, b));
}

static void attributes_that_no_digest_tells_of_are_refused(void **state)
{
    struct err err = {0};
    uint8_t d[SHA256_BYTES];
    (void)state;
    _cleanup_close_ int t = dir_at("t");
    file_at(t, "f", "x");
    _cleanup_close_ int f = openat(t, "f", O_RDONLY | O_CLOEXEC);
    WORKS(fsetxattr(t, "trusted.overlay.origin", "o", 1, 0)); /* as overlay leaves it */
    WORKS(fsetxattr(f, "user.mine", "v", 1, 0));
    digest_of(t, d);
    WORKS(fsetxattr(f, "trusted.other", "v", 1, 0));
    assert_int_equal(tree_digest(t, 0, d, NULL, &err), -1);
    assert_non_null(strstr(err.msg, "'f': has the attribute trusted.other"));
}

static void removal_takes_everything_however_deep(void **state)
{
    struct err err = {0};
    (void)state;
    _cleanup_close_ int t = dir_at("t");
    int at = dup(t);
    for (int i = 0; i < 3000; i++) {
        WORKS(mkdirat(at, "deep", 0755));
        int next = openat(at, "deep", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        file_at(next, "f", "x");
        (void)close(at);
        at = next;
    }
    (void)close(at);
    WORKS(symlinkat("/etc", t, "link"));
    WORKS(mkdirat(t, "closed", 0));
    if (tree_remove(world, "t", &err) < 0)
        fail_msg("%s", err.msg);
    assert_int_equal(faccessat(world, "t", F_OK, 0), -1);
    assert_int_equal(faccessat(AT_FDCWD, "/etc/passwd", F_OK, 0), 0);
    assert_int_equal(tree_remove(world, "t", &err), 0); /* not there */
}

static void removal_does_not_enter_what_is_mounted(void **state)
{
    struct err err = {0};
    (void)state;
    _cleanup_close_ int kept = dir_at("kept");
    (void)close(dir_at("t"));
    (void)close(dir_at("t/m"));
    _cleanup_free_ char *place = xasprintf("%s/t/m", world_dir), *source = xasprintf("%s/kept", world_dir);
    file_at(kept, "f", "x");
    WORKS(mount(source, place, NULL, MS_BIND, NULL));
    assert_int_equal(tree_remove(world, "t", &err), -1);
    assert_int_equal(err.eno, EBUSY);
    WORKS(umount2(place, 0));
    holds(kept, "f", "x");
}

static int count_one(void *arg, const struct diff_entry *e, struct err *err)
{
    (void)err;
    print_message("differs: %s (%d, %#x)\n", e->path, (int)e->kind, e->what);
    ++*(int *)arg;
    return 0;
}

/* An upper as a sandbox leaves it, copied and mounted again, shows what the sandbox saw. */
static void copies_of_uppers_show_the_same_merged_tree(void **state)
{
    struct err err = {0};
    time_t end = time(NULL) + 20;
    (void)state;
    for (int round = 0; round < 100 && time(NULL) < end; round++) {
        assert_int_equal(world_clean(NULL), 0);
        dice_state = 1000 + (uint64_t)round;
        _cleanup_close_ int lower = dir_at("lower"), upper = dir_at("upper"), to = dir_at("to");
        for (int i = 0; i < 60; i++)
            random_change(lower);
        int m = overlay_at("m", "lower", "upper", "redirect_dir=on,index=off,metacopy=off");
        for (int i = 0; i < 40; i++)
            random_change(m);
        (void)copied(upper, to);
        assert_true(same_digest(upper, to));
        int again = overlay_at("again", "to:lower", NULL, "redirect_dir=on,index=off,metacopy=off"), differences = 0;
        struct diff d = {.a = m, .b = again, .flags = DIFF_WITH_TIMES, .each = count_one, .arg = &differences};
        if (diff_trees(&d, &err) < 0)
            fail_msg("round %d: %s", round, err.msg);
        if (differences)
            fail_msg("round %d: %d differences", round, differences);
        unmount_at("again", again);
        unmount_at("m", m);
    }
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup(f, world_clean)
    const struct CMUnitTest tests[] = {
        TEST(a_copy_holds_everything_the_tree_held),
        TEST(overlays_bookkeeping_is_not_copied_and_its_redirects_are),
        TEST(owners_are_shifted_and_those_outside_are_refused),
        TEST(owners_that_are_not_copied_may_be_any),
        TEST(devices_are_refused_by_name),
        TEST(devices_are_left_out_of_a_stream_that_may),
        TEST(a_copy_stops_at_its_limits),
        TEST(holes_stay_holes),
        TEST(files_that_did_not_change_are_linked_to_the_earlier_copy),
        TEST(a_socket_does_not_bring_back_what_it_stood_for),
        TEST(a_digest_says_everything_that_counts_and_nothing_else),
        TEST(a_file_of_nothing_has_its_digest_at_once_and_zeros_are_zeros),
        TEST(a_tree_written_out_and_read_again_has_its_digest),
        TEST(a_stream_of_holes_is_short_and_keeps_the_digest),
        TEST(a_stream_ends_at_its_limit),
        TEST(a_digest_says_what_sockets_there_are),
        TEST(attributes_that_no_digest_tells_of_are_refused),
        TEST(removal_takes_everything_however_deep),
        TEST(removal_does_not_enter_what_is_mounted),
        TEST(copies_of_uppers_show_the_same_merged_tree),
    };
    return cmocka_run_group_tests(tests, world_setup, world_teardown);
}
