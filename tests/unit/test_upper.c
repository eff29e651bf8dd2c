/* Places with a quota on real file systems: btrfs and xfs are made in files here and mounted in a mount namespace of
 * this test alone.
 */
#include "tests/lib/unit.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/btrfs.h>
#include <linux/capability.h>
#include <linux/fs.h>
#include <sched.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "await.h"
#include "os/loopdev.h"
#include "os/mount.h"
#include "os/upper-int.h"
#include "os/wipe.h"

enum { MIB = 1 << 20, CHUNK = 64 << 10, DEEP = 700 };

static char base[] = "/tmp/hutch-upper-XXXXXX";

struct world {
    char at[128], file[128];
    int dir;
    bool mounted;
};

static bool have(const char *program)
{
    char path[64];
    (void)snprintf(path, sizeof path, "/usr/sbin/%s", program);
    if (access(path, X_OK) == 0)
        return true;
    print_message("%s is not installed\n", program);
    return false;
}

static void world_plain(struct world *w, const char *name)
{
    *w = (struct world){.dir = -1};
    (void)snprintf(w->at, sizeof w->at, "%s/%s", base, name);
    assert_int_equal(mkdir(w->at, 0755), 0);
    w->dir = open(w->at, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    assert_true(w->dir >= 0);
}

/* A file system of that kind in a file, mounted. False: it cannot be made here. */
static bool world_fs(struct world *w, const char *type, const char *mkfs, const char *options)
{
    char line[400];
    struct err err = {0};
    *w = (struct world){.dir = -1};
    if (!have(mkfs))
        return false;
    (void)snprintf(w->at, sizeof w->at, "%s/%s", base, type);
    (void)snprintf(w->file, sizeof w->file, "%s/%s.file", base, type);
    (void)snprintf(line, sizeof line, "truncate -s 512M %s && %s -q %s >/dev/null", w->file, mkfs, w->file);
    assert_int_equal(mkdir(w->at, 0755), 0);
    assert_int_equal(system(line), 0);
    int img = open(w->file, O_RDWR | O_CLOEXEC);
    struct loopdev dev;
    if (loopdev_attach(img, 0, &dev, &err) < 0)
        fail_msg("%s", err.msg);
    (void)close(img);
    if (mount(dev.path, w->at, type, 0, options) < 0) {
        print_message("mount %s: %s\n", type, strerror(errno));
        loopdev_close(&dev);
        return false;
    }
    loopdev_close(&dev);
    w->mounted = true;
    w->dir = open(w->at, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    assert_true(w->dir >= 0);
    return true;
}

static void world_end(struct world *w)
{
    if (w->dir >= 0)
        (void)close(w->dir);
    if (w->mounted)
        assert_int_equal(umount2(w->at, 0), 0);
    if (*w->file)
        assert_int_equal(unlink(w->file), 0);
    struct err err = {0};
    if (*w->at && wipe_tree(AT_FDCWD, w->at, &err) < 0)
        fail_msg("%s", err.msg);
}

static void probe(const struct world *w, const char *want, bool quota, struct upper_info *ret)
{
    struct err err = {0};
    if (upper_probe(w->dir, want, quota, ret, &err) < 0)
        fail_msg("%s", err.msg);
}

static void place(const struct upper_info *i, const struct world *w, const char *name, uint64_t disk, uint64_t inodes,
                  struct upper *ret)
{
    struct err err = {0};
    if (upper_open(i, w->dir, name, disk, inodes, ret, &err) < 0)
        fail_msg("%s", err.msg);
}

static struct upper_usage usage(const struct upper_info *i, const struct world *w, const char *name,
                                const struct upper *u)
{
    struct err err = {0};
    struct upper_usage ret;
    if (upper_stat(i, w->dir, name, u, &ret, &err) < 0)
        fail_msg("%s", err.msg);
    return ret;
}

/* Writes until it fails or `max` is reached; returns the bytes, errno says why. Nothing compresses it. */
static uint64_t fill(int root, const char *name, uint64_t max)
{
    static unsigned char chunk[CHUNK];
    unsigned seed = 1;
    int fd = openat(root, name, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
    if (fd < 0)
        return 0;
    uint64_t done = 0;
    errno = 0;
    while (done < max) {
        for (size_t i = 0; i < sizeof chunk; i++)
            chunk[i] = (unsigned char)((seed = seed * 1103515245 + 12345) >> 16);
        ssize_t n = write(fd, chunk, sizeof chunk);
        if (n <= 0)
            break;
        done += (uint64_t)n;
    }
    int eno = errno;
    if (fsync(fd) < 0 && eno == 0)
        eno = errno;
    (void)close(fd);
    errno = eno;
    return done;
}

static void put(int root, const char *name, const char *text)
{
    int fd = openat(root, name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), strlen(text));
    (void)close(fd);
}

static void assert_holds(int root, const char *name, const char *text)
{
    char buf[64] = "";
    int fd = openat(root, name, O_RDONLY | O_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(read(fd, buf, sizeof buf - 1), strlen(text));
    (void)close(fd);
    assert_string_equal(buf, text);
}

static void assert_quota_holds(const struct upper_info *i, const struct world *w, const char *name, uint64_t disk)
{
    struct upper u;
    place(i, w, name, disk, 0, &u);
    uint64_t n = fill(u.root, "big", 4 * disk);
    assert_true(errno == ENOSPC || errno == EDQUOT);
    assert_in_range(n, disk / 2, disk + CHUNK);
    upper_close(&u);
}

static void a_tmpfs_ends_at_its_size_and_its_number_of_files(void **state)
{
    (void)state;
    struct upper_info i;
    struct err err = {0};
    struct upper u;
    assert_int_equal(upper_probe(-1, "", true, &i, &err), 0);
    assert_int_equal(i.kind, UPPER_TMPFS);
    assert_string_equal(upper_quota_name(i.quota), "tmpfs");
    assert_int_equal(upper_open(&i, -1, NULL, 2 * MIB, 8, &u, &err), 0);
    assert_int_equal(fill(u.root, "big", 8 * MIB), 2 * MIB);
    assert_int_equal(errno, ENOSPC);
    struct world none = {.dir = -1};
    assert_int_equal(usage(&i, &none, NULL, &u).limit, 2 * MIB);
    assert_int_equal(usage(&i, &none, NULL, &u).used, 2 * MIB);
    char name[8] = "a";
    while (mkdirat(u.root, name, 0755) == 0)
        name[0]++;
    assert_int_equal(errno, ENOSPC);
    assert_in_range(name[0], 'b', 'i');
    upper_close(&u);
}

static void drivers_that_are_not_here_are_refused_with_the_reason(void **state)
{
    (void)state;
    struct world w;
    struct upper_info i;
    struct err err = {0};
    world_plain(&w, "plain");
    int tmpfs = mount_new_tmpfs(MIB, 0, 0755, 0);
    assert_true(tmpfs >= 0);
    assert_int_equal(upper_probe(tmpfs, "btrfs", false, &i, &err), -1);
    assert_int_equal(err.code, ERR_HOST);
    assert_non_null(strstr(err.msg, "no btrfs"));
    assert_int_equal(upper_probe(tmpfs, "layers", true, &i, &err), -1);
    assert_non_null(strstr(err.msg, "no project quota"));
    assert_int_equal(upper_probe(tmpfs, "auto", true, &i, &err), -1); /* never an image */
    assert_non_null(strstr(err.msg, "no btrfs; no project quota"));
    assert_int_equal(upper_probe(tmpfs, "reflink", false, &i, &err), 0); /* what older records and configurations say */
    assert_int_equal(i.kind, UPPER_LAYERS);
    assert_false(i.reflinks);
    assert_int_equal(upper_probe(tmpfs, "floppy", false, &i, &err), -1);
    assert_int_equal(err.code, ERR_USAGE);
    (void)close(tmpfs);
    world_end(&w);
}

static void names_that_lead_elsewhere_are_refused(void **state)
{
    (void)state;
    static const char *const names[] = {"", ".", "..", "../x", "a/b", ".gone-1", "a b", "a.img"};
    struct world w;
    struct upper u;
    struct err err = {0};
    const struct upper_info i = {.kind = UPPER_LAYERS};
    world_plain(&w, "plain");
    for (size_t k = 0; k < ARRAY_LEN(names); k++) {
        assert_int_equal(upper_open(&i, w.dir, names[k], 0, 0, &u, &err), -1);
        assert_int_equal(err.code, ERR_USAGE);
        assert_int_equal(upper_remove(w.dir, names[k], &err), -1);
    }
    world_end(&w);
}

static void a_plain_directory_stays_and_is_counted(void **state)
{
    (void)state;
    struct world w;
    struct upper_info i;
    struct upper u;
    struct stat st;
    world_plain(&w, "plain");
    mode_t mask = umask(077);
    probe(&w, "layers", false, &i);
    place(&i, &w, "one", 0, 0, &u);
    (void)umask(mask);
    assert_int_equal(fstat(u.root, &st), 0);
    assert_int_equal(st.st_mode & 07777, 0755);
    put(u.root, "a", "first");
    (void)fill(u.root, "b", MIB);
    assert_int_equal(linkat(u.root, "b", u.root, "c", 0), 0);
    upper_close(&u);
    place(&i, &w, "one", 0, 0, &u);
    assert_holds(u.root, "a", "first");
    struct upper_usage n = usage(&i, &w, "one", NULL);
    assert_in_range(n.used, MIB, MIB + MIB / 4);
    assert_int_equal(n.inodes, 4);
    upper_close(&u);
    world_end(&w);
}

static void what_is_removed_is_gone_at_once_and_swept_whatever_its_depth(void **state)
{
    (void)state;
    struct world w;
    struct upper u;
    struct err err = {0};
    const struct upper_info i = {.kind = UPPER_LAYERS};
    world_plain(&w, "plain");
    place(&i, &w, "one", 0, 0, &u);
    int at = dup(u.root);
    for (int k = 0; k < DEEP; k++) {
        put(at, "file", "x");
        assert_int_equal(mkdirat(at, "a-long-name-for-a-directory", 0), 0);
        int next = openat(at, "a-long-name-for-a-directory", O_RDONLY | O_DIRECTORY);
        assert_true(next >= 0);
        (void)close(at);
        at = next;
    }
    (void)close(at);
    struct upper_usage n;
    assert_int_equal(upper_stat(&i, w.dir, "one", &u, &n, &err), -1);
    assert_int_equal(err.code, ERR_LIMIT);
    upper_close(&u);
    assert_int_equal(upper_remove(w.dir, "one", &err), 0);
    assert_int_equal(faccessat(w.dir, "one", F_OK, 0), -1);
    assert_int_equal(upper_remove(w.dir, "one", &err), 0);
    if (upper_sweep(w.dir, &err) < 0)
        fail_msg("%s", err.msg);
    assert_int_equal(unlinkat(AT_FDCWD, w.at, AT_REMOVEDIR), 0);
    (void)close(w.dir);
}

/* The tenant: waits until the removal has come some way down, and then moves the middle of the tree to its top. */
static _Noreturn void move_the_middle(int top, int middle, int watched)
{
    struct stat before, now;
    (void)fstat(watched, &before);
    do
        (void)fstat(watched, &now);
    while (now.st_atim.tv_sec == before.st_atim.tv_sec && now.st_atim.tv_nsec == before.st_atim.tv_nsec &&
           now.st_nlink != 0);
    for (int i = 0; i < 2000 && renameat(middle, "a", top, "x") < 0; i++)
        (void)usleep(50);
    _exit(0);
}

static int chain(int top, int n, int at_middle, int *middle, int at_watched, int *watched)
{
    int at = dup(top);
    for (int i = 0; i < n; i++) {
        if (mkdirat(at, "a", 0755) < 0)
            return -1;
        if (i == at_middle)
            *middle = dup(at);
        int next = openat(at, "a", O_RDONLY | O_DIRECTORY);
        if (i == at_watched)
            *watched = dup(next);
        (void)close(at);
        at = next;
    }
    return close(at);
}

/* In a child whose root is the test's directory, so that a removal that goes astray empties nothing else. 0: nothing
 * beside the tree is missing. */
static _Noreturn void race(const char *root)
{
    enum { ROUNDS = 6, CHAIN = 3000 };
    struct err err = {0};
    if (chroot(root) < 0 || chdir("/") < 0 || mkdir("/v", 0755) < 0 || mkdir("/v/other", 0755) < 0 ||
        mkdir("/other", 0755) < 0)
        _exit(2);
    int dir = open("/v", O_RDONLY | O_DIRECTORY);
    for (int i = 0; i < ROUNDS; i++) {
        int middle = -1, watched = -1;
        if (mkdirat(dir, "one", 0755) < 0)
            _exit(3);
        int top = openat(dir, "one", O_RDONLY | O_DIRECTORY);
        /* Not all of the way down: what lies below a bound may be moved up before it is read. */
        if (chain(top, CHAIN, i % 2 ? 20 : CHAIN / 2, &middle, i % 2 ? 40 : CHAIN - 500, &watched) < 0)
            _exit(4);
        pid_t tenant = fork();
        if (tenant == 0)
            move_the_middle(top, middle, watched);
        int r = upper_remove(dir, "one", &err) < 0 || upper_sweep(dir, &err) < 0;
        (void)kill(tenant, SIGKILL);
        (void)waitpid(tenant, NULL, 0);
        if (access("/v/other", F_OK) < 0 || access("/other", F_OK) < 0)
            _exit(5);
        if (r && upper_sweep(dir, &err) < 0) /* it may have been disturbed once */
            _exit(6);
        (void)close(top);
        (void)close(middle);
        (void)close(watched);
    }
    _exit(rmdir("/v/other") < 0 || rmdir("/v") < 0 || rmdir("/other") < 0 ? 7 : 0);
}

static void removal_never_leaves_a_tree_in_which_others_rename(void **state)
{
    (void)state;
    struct world w;
    int status = 0;
    world_plain(&w, "root");
    pid_t pid = fork();
    if (pid == 0)
        race(w.at);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    assert_int_equal(rmdir(w.at), 0);
    (void)close(w.dir);
}

static int subvolume(int dir, const char *name)
{
    struct btrfs_ioctl_vol_args a = {0};
    (void)snprintf(a.name, sizeof a.name, "%s", name);
    assert_int_equal(ioctl(dir, BTRFS_IOC_SUBVOL_CREATE, &a), 0);
    int fd = openat(dir, name, O_RDONLY | O_DIRECTORY);
    assert_true(fd >= 0);
    return fd;
}

/* Whoever may write to a directory of a btrfs may make subvolumes in it, and in those. */
static void subvolumes_in_subvolumes_are_removed_whatever_their_depth(void **state)
{
    enum { NESTED = 100, BETWEEN = 3, BELOW = 150 };
    (void)state;
    struct world w;
    struct err err = {0};
    if (world_fs(&w, "btrfs", "mkfs.btrfs", NULL)) {
        int at = subvolume(w.dir, "one"), middle = -1, watched = -1;
        for (int i = 0; i < NESTED; i++) {
            int sub = subvolume(at, "sub");
            assert_int_equal(chain(sub, BETWEEN, BETWEEN - 1, &middle, 0, &watched), 0);
            (void)close(at);
            (void)close(watched);
            (void)close(sub);
            at = openat(middle, "a", O_RDONLY | O_DIRECTORY);
            (void)close(middle);
            put(at, "file", "x");
        }
        int none;
        assert_int_equal(chain(at, BELOW, BELOW, &none, BELOW, &none), 0);
        (void)close(at);
        if (wipe_tree(w.dir, "one", &err) < 0)
            fail_msg("%s", err.msg);
        assert_int_equal(faccessat(w.dir, "one", F_OK, 0), -1);
    }
    world_end(&w);
}

static void a_btrfs_subvolume_ends_at_its_limit(void **state)
{
    (void)state;
    struct world w;
    struct upper_info i;
    if (world_fs(&w, "btrfs", "mkfs.btrfs", NULL)) {
        probe(&w, "auto", false, &i);
        assert_int_equal(i.kind, UPPER_BTRFS);
        assert_int_equal(i.quota, UPPER_QUOTA_NONE);
        assert_non_null(strstr(i.why, "they are off"));
        probe(&w, "auto", true, &i);
        assert_int_equal(i.kind, UPPER_BTRFS);
        assert_int_equal(i.quota, UPPER_QUOTA_QGROUP);
        assert_true(i.snapshots);
        assert_non_null(strstr(i.why, "not the number of files"));
        assert_quota_holds(&i, &w, "one", 16 * MIB);
        (void)syncfs(w.dir);
        struct upper_usage n = usage(&i, &w, "one", NULL);
        assert_int_equal(n.limit, 16 * MIB);
        assert_in_range(n.used, 8 * MIB, 16 * MIB);
    }
    world_end(&w);
}

static void a_larger_limit_gives_more_room(void **state)
{
    (void)state;
    struct world w;
    struct upper_info i;
    struct upper u;
    struct err err = {0};
    if (world_fs(&w, "btrfs", "mkfs.btrfs", NULL)) {
        probe(&w, "btrfs", true, &i);
        assert_quota_holds(&i, &w, "one", 16 * MIB);
        assert_int_equal(upper_resize(&i, w.dir, "one", 64 * MIB, 0, &err), 0);
        place(&i, &w, "one", 64 * MIB, 0, &u);
        assert_int_equal(fill(u.root, "more", 24 * MIB), 24 * MIB);
        assert_int_equal(errno, 0);
        upper_close(&u);
    }
    world_end(&w);
}

static void a_snapshot_does_not_follow_what_it_was_taken_from(void **state)
{
    (void)state;
    struct world w;
    struct upper_info i;
    struct upper u;
    struct err err = {0};
    if (world_fs(&w, "btrfs", "mkfs.btrfs", NULL)) {
        probe(&w, "btrfs", true, &i);
        place(&i, &w, "one", 64 * MIB, 0, &u);
        put(u.root, "a", "before");
        assert_int_equal(upper_snapshot(u.root, w.dir, "copy", false, &err), 0);
        put(u.root, "a", "after");
        int copy = openat(w.dir, "copy", O_RDONLY | O_DIRECTORY);
        assert_holds(copy, "a", "before");
        put(copy, "a", "own");
        assert_holds(u.root, "a", "after");
        (void)close(copy);
        assert_int_equal(mkdirat(u.root, "sub", 0755), 0);
        int sub = openat(u.root, "sub", O_RDONLY | O_DIRECTORY);
        assert_int_equal(upper_snapshot(sub, w.dir, "none", false, &err), 1);
        (void)close(sub);
        /* A subvolume in a subvolume: neither keeps the other. */
        assert_int_equal(upper_snapshot(u.root, u.root, "inner", false, &err), 0);
        /* One that nobody can write to goes as well. */
        assert_int_equal(upper_snapshot(u.root, w.dir, "still", true, &err), 0);
        int still = openat(w.dir, "still", O_RDONLY | O_DIRECTORY);
        assert_holds(still, "a", "after");
        assert_int_equal(openat(still, "new", O_WRONLY | O_CREAT, 0600), -1);
        assert_int_equal(errno, EROFS);
        (void)close(still);
        assert_int_equal(upper_remove(w.dir, "still", &err), 0);
        upper_close(&u);
        assert_int_equal(upper_remove(w.dir, "one", &err), 0);
        assert_int_equal(upper_remove(w.dir, "copy", &err), 0);
        if (upper_sweep(w.dir, &err) < 0)
            fail_msg("%s", err.msg);
        struct upper_usage n;
        assert_int_equal(upper_count(w.dir, 0, &n, &err), 0);
        assert_int_equal(n.inodes, 1);
    }
    world_end(&w);
}

/* A file whose name is just being removed can still be looked at, and has no name then. */
static void files_that_go_while_they_are_counted_do_no_harm(void **state)
{
    (void)state;
    struct upper_usage n;
    struct err err = {0};
    int mnt = mount_new_tmpfs(MIB, 100, 0755, 0);
    assert_true(mnt >= 0);
    pid_t child = fork();
    while (child == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        put(mnt, "a", "a");
        (void)unlinkat(mnt, "a", 0);
    }
    for (int64_t end = await_now() + 2; await_now() <= end;)
        assert_int_equal(upper_count(mnt, 0, &n, &err), 0);
    (void)kill(child, SIGKILL);
    assert_int_equal(waitpid(child, NULL, 0), child);
    (void)close(mnt);
}

static void counting_ends_where_it_is_told_to(void **state)
{
    (void)state;
    struct world w;
    struct upper_usage n;
    struct err err = {0};
    world_plain(&w, "plain");
    put(w.dir, "a", "a");
    assert_int_equal(mkdirat(w.dir, "sub", 0755), 0);
    put(w.dir, "sub/b", "b");
    assert_int_equal(upper_count(w.dir, 3, &n, &err), 0);
    assert_int_equal(n.inodes, 4); /* with the root */
    assert_int_equal(upper_count(w.dir, 2, &n, &err), -1);
    assert_int_equal(err.code, ERR_LIMIT);
    const struct upper_info i = {.kind = UPPER_LAYERS, .count_max = 1};
    err = (struct err){0};
    assert_int_equal(upper_stat(&i, w.dir, "sub", NULL, &n, &err), 0);
    put(w.dir, "sub/c", "c");
    assert_int_equal(upper_stat(&i, w.dir, "sub", NULL, &n, &err), -1);
    assert_int_equal(err.code, ERR_LIMIT);
    world_end(&w);
}

static void xfs_has_reflinks_and_says_what_it_lacks(void **state)
{
    (void)state;
    struct world w;
    struct upper_info i;
    if (world_fs(&w, "xfs", "mkfs.xfs", NULL)) {
        struct upper u;
        probe(&w, "layers", false, &i);
        assert_true(i.reflinks);
        assert_int_equal(i.quota, UPPER_QUOTA_NONE);
        assert_non_null(strstr(i.why, "no project quota"));
        place(&i, &w, "one", 0, 0, &u);
        assert_int_equal(u.kind, UPPER_LAYERS);
        upper_close(&u);
    }
    world_end(&w);
}

static void project_quotas_are_used_where_the_kernel_has_them(void **state)
{
    (void)state;
    struct world w;
    struct upper_info i;
    if (world_fs(&w, "xfs", "mkfs.xfs", "prjquota")) {
        probe(&w, "layers", true, &i);
        assert_int_equal(i.quota, UPPER_QUOTA_PROJECT);
        assert_quota_holds(&i, &w, "one", 16 * MIB);
        assert_quota_holds(&i, &w, "two", 16 * MIB);
    }
    world_end(&w);
}

/* In whose project it lies, or whether there are quotas at all: what is made or renamed there belongs to no other. */
static void the_directory_of_the_places_leaves_a_project_of_somebody_else(void **state)
{
    (void)state;
    struct world w;
    struct upper u = UPPER_INIT;
    struct err err = {0};
    struct fsxattr x = {.fsx_projid = 77, .fsx_xflags = FS_XFLAG_PROJINHERIT};
    const struct upper_info i = {.kind = UPPER_LAYERS, .quota = UPPER_QUOTA_PROJECT};
    if (world_fs(&w, "xfs", "mkfs.xfs", NULL)) {
        assert_int_equal(ioctl(w.dir, FS_IOC_FSSETXATTR, &x), 0);
        (void)upper_open(&i, w.dir, "one", 16 * MIB, 0, &u, &err);
        upper_close(&u);
        assert_int_equal(ioctl(w.dir, FS_IOC_FSGETXATTR, &x), 0);
        assert_int_equal(x.fsx_xflags & FS_XFLAG_PROJINHERIT, 0);
    }
    world_end(&w);
}

/* The administrator has a quota on the tree in which the node keeps its files. */
static void a_place_in_a_project_of_somebody_else_has_its_own(void **state)
{
    enum { THEIRS = 77 };
    (void)state;
    struct world w;
    struct upper_info i;
    struct err err = {0};
    struct fsxattr x = {.fsx_projid = THEIRS, .fsx_xflags = FS_XFLAG_PROJINHERIT};
    if (world_fs(&w, "xfs", "mkfs.xfs", "prjquota")) {
        probe(&w, "layers", true, &i);
        assert_int_equal(ioctl(w.dir, FS_IOC_FSSETXATTR, &x), 0);
        assert_quota_holds(&i, &w, "one", 16 * MIB);
        assert_quota_holds(&i, &w, "two", 16 * MIB);
        int fd = openat(w.dir, "one", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        assert_int_equal(ioctl(fd, FS_IOC_FSGETXATTR, &x), 0);
        assert_int_not_equal(x.fsx_projid, THEIRS);
        (void)close(fd);
        assert_int_equal(upper_resize(&i, w.dir, "two", 64 * MIB, 0, &err), 0);
        assert_in_range(usage(&i, &w, "one", NULL).used, 8 * MIB, 16 * MIB);
        assert_int_equal(usage(&i, &w, "one", NULL).limit, 16 * MIB);
        /* What is renamed must belong to the project of where it goes. */
        if (upper_remove(w.dir, "one", &err) < 0)
            fail_msg("%s", err.msg);
        assert_int_equal(upper_sweep(w.dir, &err), 0);
    }
    world_end(&w);
}

static void an_image_ends_at_its_size_and_its_number_of_files(void **state)
{
    (void)state;
    struct world w;
    struct upper_info i;
    struct upper u;
    world_plain(&w, "plain");
    probe(&w, "image", true, &i);
    assert_quota_holds(&i, &w, "one", 16 * MIB);
    struct upper_usage n = usage(&i, &w, "one", NULL);
    assert_in_range(n.used, 8 * MIB, 16 * MIB);
    assert_in_range(n.limit, 12 * MIB, 16 * MIB);
    place(&i, &w, "few", 16 * MIB, 64, &u);
    int made = 0;
    char name[16];
    do
        (void)snprintf(name, sizeof name, "f%d", made);
    while (made < 1000 && mknodat(u.root, name, S_IFREG | 0644, 0) == 0 && ++made);
    assert_int_equal(errno, ENOSPC);
    assert_in_range(made, 32, 128);
    upper_close(&u);
    world_end(&w);
}

static void an_image_opened_twice_is_one_file_system(void **state)
{
    (void)state;
    struct world w;
    struct upper_info i;
    struct upper a, b;
    struct stat sa, sb;
    world_plain(&w, "plain");
    probe(&w, "image", true, &i);
    place(&i, &w, "one", 16 * MIB, 0, &a);
    assert_int_equal(faccessat(a.root, "lost+found", F_OK, 0), -1);
    pid_t child = fork();
    if (child == 0) {
        struct err err = {0};
        if (upper_open(&i, w.dir, "one", 16 * MIB, 0, &b, &err) < 0)
            _exit(2);
        int fd = openat(b.root, "from-child", O_WRONLY | O_CREAT, 0644);
        (void)!write(fd, "here", 4);
        (void)kill(getpid(), SIGKILL);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status));
    assert_holds(a.root, "from-child", "here");
    place(&i, &w, "one", 16 * MIB, 0, &b);
    assert_int_equal(fstat(a.root, &sa), 0);
    assert_int_equal(fstat(b.root, &sb), 0);
    assert_true(sa.st_dev == sb.st_dev);
    upper_close(&a);
    assert_holds(b.root, "from-child", "here");
    upper_close(&b);
    place(&i, &w, "one", 16 * MIB, 0, &a);
    assert_holds(a.root, "from-child", "here");
    upper_close(&a);
    world_end(&w);
}

static void an_image_grows_and_shrinks(void **state)
{
    (void)state;
    struct world w;
    struct upper_info i;
    struct upper u;
    struct err err = {0};
    world_plain(&w, "plain");
    probe(&w, "image", true, &i);
    place(&i, &w, "one", 16 * MIB, 0, &u);
    put(u.root, "a", "kept");
    (void)fill(u.root, "big", 64 * MIB);
    assert_int_equal(errno, ENOSPC);
    upper_close(&u);
    if (upper_resize(&i, w.dir, "one", 64 * MIB, 0, &err) < 0)
        fail_msg("%s", err.msg);
    place(&i, &w, "one", 64 * MIB, 0, &u);
    assert_int_equal(fill(u.root, "more", 32 * MIB), 32 * MIB);
    assert_holds(u.root, "a", "kept");
    assert_int_equal(upper_resize(&i, w.dir, "one", 16 * MIB, 0, &err), -1);
    assert_int_equal(err.eno, EBUSY);
    upper_close(&u);
    /* More is in it than that. */
    err = (struct err){0};
    assert_int_equal(upper_resize(&i, w.dir, "one", 16 * MIB, 0, &err), -1);
    assert_int_equal(err.code, ERR_LIMIT);
    place(&i, &w, "one", 0, 0, &u);
    assert_holds(u.root, "a", "kept");
    assert_int_equal(unlinkat(u.root, "more", 0), 0);
    assert_int_equal(unlinkat(u.root, "big", 0), 0);
    upper_close(&u);
    if (upper_resize(&i, w.dir, "one", 16 * MIB, 0, &err) < 0)
        fail_msg("%s", err.msg);
    place(&i, &w, "one", 0, 0, &u);
    assert_holds(u.root, "a", "kept");
    assert_in_range(fill(u.root, "big", 64 * MIB), 8 * MIB, 16 * MIB);
    assert_int_equal(errno, ENOSPC);
    upper_close(&u);
    assert_int_equal(upper_image_unready(w.dir, "one"), false);
    world_end(&w);
}

/* Whatever ends us in between, the old one is as it was until the new one is whole; the kernel is not ended in between. */
static void an_image_grows_in_a_copy_or_by_the_kernel(void **state)
{
    (void)state;
    struct world w;
    struct upper_info i;
    struct upper u;
    struct stat was, is;
    struct err err = {0};
    uint32_t blocks = 0;
    world_plain(&w, "plain");
    probe(&w, "image", true, &i);
    place(&i, &w, "one", 16 * MIB, 0, &u);
    put(u.root, "a", "kept");
    upper_close(&u);
    int old = openat(w.dir, "one.img", O_RDONLY | O_CLOEXEC);
    if (upper_resize(&i, w.dir, "one", 64 * MIB, 0, &err) < 0)
        fail_msg("%s", err.msg);
    assert_int_equal(fstat(old, &was), 0);
    assert_int_equal(fstatat(w.dir, "one.img", &is, 0), 0);
    assert_int_equal(is.st_size, 64 * MIB);
    if (was.st_ino == is.st_ino) {
        assert_int_equal(prctl(PR_CAPBSET_READ, CAP_SYS_RESOURCE), 1);
    } else {
        assert_int_equal(was.st_size, 16 * MIB);
        assert_int_equal(pread(old, &blocks, sizeof blocks, 1024 + 4), sizeof blocks);
        assert_int_equal(blocks, 16 * MIB / 4096);
    }
    (void)close(old);
    place(&i, &w, "one", 0, 0, &u);
    assert_holds(u.root, "a", "kept");
    assert_int_equal(fill(u.root, "big", 40 * MIB), 40 * MIB);
    upper_close(&u);
    world_end(&w);
}

/* Not a failure of mkfs or a volume that holds too much. */
static void an_image_for_which_the_disk_has_no_room_says_so(void **state)
{
    (void)state;
    struct upper u;
    struct err err = {0};
    const struct upper_info i = {.kind = UPPER_IMAGE, .quota = UPPER_QUOTA_IMAGE};
    int disk = mount_new_tmpfs(16 << 10, 0, 0755, 0);
    assert_true(disk >= 0);
    assert_int_equal(upper_open(&i, disk, "one", 64 * MIB, 0, &u, &err), -1);
    assert_int_equal(err.eno, ENOSPC);
    assert_int_equal(faccessat(disk, "one.img", F_OK, 0), -1);
    (void)close(disk);
}

/* Whoever made the file larger was killed before the file system was. */
static void an_image_that_was_half_grown_grows(void **state)
{
    (void)state;
    struct world w;
    struct upper_info i;
    struct upper u;
    struct stat st;
    struct err err = {0};
    world_plain(&w, "plain");
    probe(&w, "image", true, &i);
    place(&i, &w, "one", 16 * MIB, 0, &u);
    put(u.root, "a", "kept");
    upper_close(&u);
    int img = openat(w.dir, "one.img", O_RDWR | O_CLOEXEC);
    assert_int_equal(ftruncate(img, 64 * MIB), 0);
    if (upper_resize(&i, w.dir, "one", 64 * MIB, 0, &err) < 0)
        fail_msg("%s", err.msg);
    place(&i, &w, "one", 0, 0, &u);
    assert_int_equal(fill(u.root, "big", 32 * MIB), 32 * MIB);
    assert_holds(u.root, "a", "kept");
    upper_close(&u);
    /* Or asked for less then. */
    (void)close(img);
    img = openat(w.dir, "one.img", O_RDWR | O_CLOEXEC);
    assert_int_equal(ftruncate(img, 128 * MIB), 0);
    if (upper_resize(&i, w.dir, "one", 64 * MIB, 0, &err) < 0)
        fail_msg("%s", err.msg);
    assert_int_equal(fstat(img, &st), 0);
    assert_int_equal(st.st_size, 64 * MIB);
    place(&i, &w, "one", 0, 0, &u);
    assert_holds(u.root, "a", "kept");
    upper_close(&u);
    (void)close(img);
    world_end(&w);
}

/* The kernel wants CAP_SYS_RESOURCE for it; without, nothing must change. */
static void an_image_in_use_grows_or_stays_as_it_is(void **state)
{
    (void)state;
    struct world w;
    struct upper_info i;
    struct upper u;
    struct err err = {0};
    world_plain(&w, "plain");
    probe(&w, "image", true, &i);
    place(&i, &w, "one", 16 * MIB, 0, &u);
    put(u.root, "a", "kept");
    bool grown = upper_resize(&i, w.dir, "one", 64 * MIB, 0, &err) == 0;
    if (!grown) {
        assert_int_equal(err.code, ERR_HOST);
        assert_non_null(strstr(err.msg, "CAP_SYS_RESOURCE"));
    }
    uint64_t n = fill(u.root, "big", 128 * MIB);
    assert_int_equal(errno, ENOSPC);
    assert_in_range(n, grown ? 48 * MIB : 8 * MIB, grown ? 64 * MIB : 16 * MIB);
    upper_close(&u);
    place(&i, &w, "one", 0, 0, &u);
    assert_holds(u.root, "a", "kept");
    upper_close(&u);
    world_end(&w);
}

/* Of "one", which is mounted and has a file "a": "two". */
static void copy_as_after_a_crash(const struct world *w, const struct upper *u)
{
    char line[300];
    int sync = openat(u->root, "a", O_RDONLY);
    assert_int_equal(syncfs(sync), 0);
    (void)close(sync);
    (void)snprintf(line, sizeof line, "cp --sparse=always %s/one.img %s/two.img", w->at, w->at);
    assert_int_equal(system(line), 0);
}

static void an_image_that_was_not_closed_is_checked_first(void **state)
{
    (void)state;
    struct world w;
    struct upper_info i;
    struct upper u;
    struct err err = {0};
    uint16_t on_disk = 1;
    world_plain(&w, "plain");
    probe(&w, "image", true, &i);
    place(&i, &w, "one", 16 * MIB, 0, &u);
    put(u.root, "a", "kept");
    copy_as_after_a_crash(&w, &u);
    upper_close(&u);
    int fd = openat(w.dir, "two.img", O_RDWR);
    assert_int_equal(pread(fd, &on_disk, sizeof on_disk, 1024 + 0x3a), sizeof on_disk);
    assert_int_equal(on_disk & 1, 0);
    place(&i, &w, "two", 16 * MIB, 0, &u);
    assert_holds(u.root, "a", "kept");
    upper_close(&u);
    assert_int_equal(pread(fd, &on_disk, sizeof on_disk, 1024 + 0x3a), sizeof on_disk);
    assert_int_equal(on_disk & 1, 1);
    static const char zeros[64 << 10];
    assert_int_equal(pwrite(fd, zeros, sizeof zeros, 0), sizeof zeros);
    assert_int_equal(upper_open(&i, w.dir, "two", 0, 0, &u, &err), -1);
    assert_non_null(strstr(err.msg, "is damaged"));
    (void)close(fd);
    world_end(&w);
}

/* A check makes none and waits for nobody. */
static void an_image_is_checked_only_where_it_is_and_free(void **state)
{
    (void)state;
    struct world w;
    struct upper_info i;
    struct upper u;
    struct err err = {0};
    world_plain(&w, "plain");
    probe(&w, "image", true, &i);
    assert_int_equal(upper_image_check(w.dir, "two", &err), 0);
    assert_int_equal(faccessat(w.dir, "two.img", F_OK, 0), -1);
    place(&i, &w, "one", 16 * MIB, 0, &u);
    put(u.root, "a", "kept");
    copy_as_after_a_crash(&w, &u);
    upper_close(&u);
    int held = openat(w.dir, "two.img", O_RDWR | O_CLOEXEC);
    assert_false(upper_image_locked(w.dir, "two"));
    assert_int_equal(flock(held, LOCK_EX), 0);
    assert_true(upper_image_locked(w.dir, "two"));
    assert_int_equal(upper_image_check(w.dir, "two", &err), 1);
    assert_int_equal(flock(held, LOCK_UN), 0);
    assert_true(upper_image_unready(w.dir, "two"));
    if (upper_image_check(w.dir, "two", &err) < 0)
        fail_msg("%s", err.msg);
    assert_false(upper_image_unready(w.dir, "two"));
    (void)close(held);
    world_end(&w);
}

static void an_image_that_is_removed_goes_with_its_last_user(void **state)
{
    (void)state;
    struct world w;
    struct upper_info i;
    struct upper u;
    struct err err = {0};
    struct loopdev dev = LOOPDEV_INIT;
    world_plain(&w, "plain");
    probe(&w, "image", true, &i);
    place(&i, &w, "one", 16 * MIB, 0, &u);
    int img = openat(w.dir, "one.img", O_RDONLY | O_CLOEXEC);
    assert_int_equal(loopdev_find(img, &dev, &err), 0);
    loopdev_close(&dev);
    assert_int_equal(upper_remove(w.dir, "one", &err), 0);
    assert_int_equal(upper_sweep(w.dir, &err), 0);
    put(u.root, "a", "still here");
    assert_holds(u.root, "a", "still here");
    upper_close(&u);
    assert_int_equal(loopdev_find(img, &dev, &err), 1);
    (void)close(img);
    world_end(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_tmpfs_ends_at_its_size_and_its_number_of_files),
        cmocka_unit_test(drivers_that_are_not_here_are_refused_with_the_reason),
        cmocka_unit_test(names_that_lead_elsewhere_are_refused),
        cmocka_unit_test(a_plain_directory_stays_and_is_counted),
        cmocka_unit_test(what_is_removed_is_gone_at_once_and_swept_whatever_its_depth),
        cmocka_unit_test(removal_never_leaves_a_tree_in_which_others_rename),
        cmocka_unit_test(subvolumes_in_subvolumes_are_removed_whatever_their_depth),
        cmocka_unit_test(a_btrfs_subvolume_ends_at_its_limit),
        cmocka_unit_test(a_larger_limit_gives_more_room),
        cmocka_unit_test(a_snapshot_does_not_follow_what_it_was_taken_from),
        cmocka_unit_test(files_that_go_while_they_are_counted_do_no_harm),
        cmocka_unit_test(counting_ends_where_it_is_told_to),
        cmocka_unit_test(xfs_has_reflinks_and_says_what_it_lacks),
        cmocka_unit_test(project_quotas_are_used_where_the_kernel_has_them),
        cmocka_unit_test(the_directory_of_the_places_leaves_a_project_of_somebody_else),
        cmocka_unit_test(a_place_in_a_project_of_somebody_else_has_its_own),
        cmocka_unit_test(an_image_ends_at_its_size_and_its_number_of_files),
        cmocka_unit_test(an_image_opened_twice_is_one_file_system),
        cmocka_unit_test(an_image_grows_and_shrinks),
        cmocka_unit_test(an_image_grows_in_a_copy_or_by_the_kernel),
        cmocka_unit_test(an_image_for_which_the_disk_has_no_room_says_so),
        cmocka_unit_test(an_image_that_was_half_grown_grows),
        cmocka_unit_test(an_image_in_use_grows_or_stays_as_it_is),
        cmocka_unit_test(an_image_that_was_not_closed_is_checked_first),
        cmocka_unit_test(an_image_is_checked_only_where_it_is_and_free),
        cmocka_unit_test(an_image_that_is_removed_goes_with_its_last_user),
    };
    if (geteuid() != 0) {
        print_message("needs root: mounts and loop devices\n");
        return 0;
    }
    if (unshare(CLONE_NEWNS) < 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0 || !mkdtemp(base)) {
        perror("test_upper");
        return 1;
    }
    int r = cmocka_run_group_tests(tests, NULL, NULL);
    (void)rmdir(base);
    return r;
}
