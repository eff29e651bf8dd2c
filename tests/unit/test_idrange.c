/* uid ranges (os/idrange.h) and maps (os/idmap.h). Needs root, as their callers do. */
#include "tests/lib/unit.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "os/idmap.h"
#include "os/idrange.h"

static char dir[] = "/tmp/idrange-test-XXXXXX";

static int set_up(void **state)
{
    (void)state;
    return mkdtemp(dir) ? 0 : -1;
}

static int tear_down(void **state)
{
    (void)state;
    char path[64];
    (void)snprintf(path, sizeof path, "%s/ranges", dir);
    (void)unlink(path);
    return rmdir(dir);
}

/* Whether someone holds the range, asked through a description of its own. */
static bool is_taken(uint32_t base)
{
    char path[64];
    (void)snprintf(path, sizeof path, "%s/ranges", dir);
    _cleanup_close_ int fd = open(path, O_RDWR | O_CLOEXEC);
    struct flock fl = {.l_type = F_WRLCK, .l_start = (off_t)((base - IDRANGE_FIRST) / IDRANGE_COUNT), .l_len = 1};
    assert_int_equal(fcntl(fd, F_OFD_GETLK, &fl), 0);
    return fl.l_type != F_UNLCK;
}

static void end(pid_t pid)
{
    int status;
    assert_int_equal(kill(pid, SIGKILL), 0);
    assert_int_equal(waitpid(pid, &status, 0), pid);
}

static void fifty_takers_at_once_get_fifty_ranges_and_kill_frees_them(void **state)
{
    (void)state;
    enum { TAKERS = 50 };
    uint32_t *base = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pid_t pid[TAKERS];
    int go[2];
    char c;
    assert_int_equal(pipe2(go, O_CLOEXEC), 0);
    for (int i = 0; i < TAKERS; i++) {
        pid[i] = fork();
        if (pid[i] == 0) {
            struct idrange r;
            struct err err;
            (void)close(go[1]);
            (void)!read(go[0], &c, 1); /* all start together when the writer closes */
            base[i] = idrange_take_in(dir, &r, &err) == 0 ? r.base : 1;
            (void)pause();
            _exit(0);
        }
    }
    (void)close(go[1]);
    (void)close(go[0]);
    for (int i = 0; i < TAKERS; i++) {
        while (((volatile uint32_t *)base)[i] == 0)
            (void)usleep(1000);
        assert_true(base[i] >= IDRANGE_FIRST);
        assert_int_equal((base[i] - IDRANGE_FIRST) % IDRANGE_COUNT, 0);
        assert_true((base[i] - IDRANGE_FIRST) / IDRANGE_COUNT < IDRANGE_MAX);
        assert_true(is_taken(base[i]));
        for (int k = 0; k < i; k++)
            assert_int_not_equal(base[i], base[k]);
    }
    for (int i = 0; i < TAKERS; i++)
        end(pid[i]);
    for (int i = 0; i < TAKERS; i++)
        assert_false(is_taken(base[i]));
    (void)munmap(base, 4096);
}

static void a_range_stays_taken_while_any_heir_lives(void **state)
{
    (void)state;
    struct idrange r;
    struct err err = {0};
    assert_int_equal(idrange_take_in(dir, &r, &err), 0);
    uint32_t base = r.base;
    pid_t pid = fork();
    if (pid == 0) {
        (void)pause();
        _exit(0);
    }
    idrange_release(&r);
    assert_int_equal(r.fd, -1);
    assert_true(is_taken(base));
    end(pid);
    assert_false(is_taken(base));
}

static void a_pinned_range_needs_no_descriptor_and_ends_with_the_process(void **state)
{
    (void)state;
    struct idrange r;
    struct err err = {0};
    int ready[2];
    char c;
    assert_int_equal(idrange_take_in(dir, &r, &err), 0);
    assert_int_equal(pipe2(ready, O_CLOEXEC), 0);
    pid_t pid = fork();
    if (pid == 0) {
        if (idrange_pin(&r) < 0)
            _exit(1);
        (void)close(r.fd);
        (void)!write(ready[1], "x", 1);
        (void)pause();
        _exit(0);
    }
    assert_int_equal(read(ready[0], &c, 1), 1);
    idrange_release(&r);
    assert_true(is_taken(r.base));
    end(pid);
    assert_false(is_taken(r.base));
    (void)close(ready[0]);
    (void)close(ready[1]);
}

static void all_ranges_can_be_taken_and_then_none(void **state)
{
    (void)state;
    struct err err = {0};
    char path[64];
    struct idrange r;
    (void)snprintf(path, sizeof path, "%s/ranges", dir);
    _cleanup_close_ int fd = open(path, O_RDWR | O_CLOEXEC);
    struct flock most = {.l_type = F_WRLCK, .l_start = 0, .l_len = IDRANGE_MAX - 1};
    assert_int_equal(fcntl(fd, F_OFD_SETLK, &most), 0);
    assert_int_equal(idrange_take_in(dir, &r, &err), 0);
    assert_int_equal(r.base, IDRANGE_FIRST + (IDRANGE_MAX - 1) * (uint32_t)IDRANGE_COUNT);
    struct idrange more;
    assert_int_equal(idrange_take_in(dir, &more, &err), -1);
    assert_int_equal(err.code, ERR_HOST);
    idrange_release(&r);
}

/* A child in a user namespace with this range, as a sandbox has it. */
static pid_t child_in_user_namespace(void);
static pid_t user_of(uint32_t base)
{
    struct idmap m = {0};
    struct err err = {0};
    assert_true(idmap_add(&m, 0, base, IDRANGE_COUNT));
    pid_t pid = child_in_user_namespace();
    if (idmap_write(pid, &m, &m, false, &err) < 0)
        fail_msg("%s", err.msg);
    return pid;
}

/* Everything but the range of this number is locked by the returned description. */
static int lock_all_but(uint32_t n)
{
    char path[64];
    (void)snprintf(path, sizeof path, "%s/ranges", dir);
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    struct flock below = {.l_type = F_WRLCK, .l_start = 0, .l_len = n},
                 above = {.l_type = F_WRLCK, .l_start = n + 1, .l_len = IDRANGE_MAX - n - 1};
    assert_int_equal(fcntl(fd, F_OFD_SETLK, &below), 0);
    assert_int_equal(fcntl(fd, F_OFD_SETLK, &above), 0);
    return fd;
}

static void a_range_in_use_is_not_taken_again_after_the_lock_file_was_removed(void **state)
{
    (void)state;
    struct idrange r, again;
    struct err err = {0};
    char path[64];
    (void)snprintf(path, sizeof path, "%s/ranges", dir);
    assert_int_equal(idrange_take_in(dir, &r, &err), 0);
    pid_t pid = user_of(r.base);
    assert_false(idrange_lost(&r));
    assert_int_equal(unlink(path), 0);
    assert_true(idrange_lost(&r));
    int others = lock_all_but((r.base - IDRANGE_FIRST) / IDRANGE_COUNT);
    /* A new lock file, and the only range that is not locked in it is the one in use. */
    assert_int_equal(idrange_take_in(dir, &again, &err), -1);
    assert_int_equal(err.code, ERR_HOST);
    end(pid);
    err = (struct err){0};
    assert_int_equal(idrange_take_in(dir, &again, &err), 0); /* its user is gone, and every other is taken */
    assert_int_equal(again.base, r.base);
    idrange_release(&again);
    idrange_release(&r);
    (void)close(others);
}

static void a_mark_goes_with_the_sandbox_it_stood_for(void **state)
{
    (void)state;
    struct idrange r;
    struct err err = {0};
    char path[64], mark = 1;
    (void)snprintf(path, sizeof path, "%s/ranges", dir);
    assert_int_equal(idrange_take_in(dir, &r, &err), 0);
    _cleanup_close_ int fd = open(path, O_RDWR | O_CLOEXEC);
    off_t at = (r.base - IDRANGE_FIRST) / IDRANGE_COUNT;
    assert_int_equal(pwrite(fd, &mark, 1, at), 1);
    idrange_unmark(fd, r.base);
    assert_int_equal(pread(fd, &mark, 1, at), 1);
    assert_int_equal(mark, 0);
    idrange_release(&r);
}

static void a_directory_others_may_write_is_refused(void **state)
{
    (void)state;
    struct idrange r;
    struct err err = {0};
    assert_int_equal(idrange_take_in("/tmp", &r, &err), -1);
    assert_int_equal(err.code, ERR_SETUP);
    assert_int_equal(idrange_take_in("/nonexistent", &r, &err), -1);
    assert_int_equal(r.fd, -1);
}

/* --- maps --------------------------------------------------------------------------------------------------------- */

static pid_t child_in_user_namespace(void)
{
    int ready[2];
    char c;
    assert_int_equal(pipe2(ready, O_CLOEXEC), 0);
    pid_t pid = fork();
    if (pid == 0) {
        if (unshare(CLONE_NEWUSER) < 0 || prctl(PR_SET_PDEATHSIG, SIGKILL) < 0) /* also if the test fails */
            _exit(1);
        (void)!write(ready[1], "x", 1);
        (void)pause();
        _exit(0);
    }
    assert_int_equal(read(ready[0], &c, 1), 1);
    (void)close(ready[0]);
    (void)close(ready[1]);
    return pid;
}

static void maps_are_written_and_read_back(void **state)
{
    (void)state;
    struct idmap m = {0};
    struct err err = {0};
    assert_true(idmap_add(&m, 0, IDRANGE_FIRST, 1000));
    assert_true(idmap_add(&m, 1000, IDRANGE_FIRST + 70000, 64536));
    pid_t pid = child_in_user_namespace();
    if (idmap_write(pid, &m, &m, true, &err) < 0)
        fail_msg("%s", err.msg);
    assert_int_equal(idmap_write(pid, &m, &m, false, &err), -1); /* a map can be written once */
    end(pid);
}

static void host_id_0_is_never_mapped(void **state)
{
    (void)state;
    struct idmap m = {0}, zero = {.e = {{0, 0, 1}}, .n = 1}, wraps = {.e = {{0, UINT32_MAX, 2}}, .n = 1}, none = {0};
    struct err err = {0};
    assert_false(idmap_add(&m, 0, 0, 1));
    assert_false(idmap_add(&m, 0, 5, 0));
    assert_false(idmap_add(&m, 0, UINT32_MAX - 1, 5));
    assert_true(idmap_add(&m, 0, IDRANGE_FIRST, 10));
    pid_t pid = child_in_user_namespace();
    assert_int_equal(idmap_write(pid, &zero, &m, false, &err), -1);
    assert_non_null(strstr(err.msg, "host id 0"));
    assert_int_equal(idmap_write(pid, &m, &zero, false, &err), -1);
    assert_int_equal(idmap_write(pid, &wraps, &m, false, &err), -1);
    assert_int_equal(idmap_write(pid, &none, &m, false, &err), -1);
    assert_int_equal(idmap_write_rootless(pid, &zero, &m, &err), -1);
    /* None of that was half done: the first write still works. */
    assert_int_equal(idmap_write(pid, &m, &m, false, &err), 0);
    end(pid);
}

static void subids_are_found_by_number_and_by_name(void **state)
{
    (void)state;
    static const char text[] = "# comment\nroot:0:65536\nann:100000:1000\nann:200000:65536\n1001:300000:65536\n"
                               "bob:4294967290:65536\nbroken\neve:1:\nlast:500000:65536";
    uint32_t base = 0, n = 0;
    assert_true(idmap_parse_subids(text, 1000, "ann", 65536, &base, &n) && base == 200000 && n == 65536);
    assert_true(idmap_parse_subids(text, 1000, "ann", 1000, &base, &n) && base == 100000 && n == 1000);
    assert_true(idmap_parse_subids(text, 1001, NULL, 65536, &base, &n) && base == 300000);
    assert_true(idmap_parse_subids(text, 9, "last", 1, &base, &n) && base == 500000);
    assert_false(idmap_parse_subids(text, 1002, "bob", 1, &base, &n));
    assert_false(idmap_parse_subids(text, 0, "root", 1, &base, &n));
    assert_false(idmap_parse_subids(text, 77, "eve", 1, &base, &n));
    assert_false(idmap_parse_subids(text, 77, "an", 1, &base, &n));
    assert_false(idmap_parse_subids("", 77, "an", 1, &base, &n));
}

static void user_names_come_from_passwd_text(void **state)
{
    (void)state;
    char name[8];
    static const char text[] =
        "root:x:0:0:r:/root:/bin/sh\n:x:5:5::/:\nann:x:1000:1000::/:/bin/sh\nfartoolong:x:6:6::/:";
    assert_true(idmap_parse_passwd(text, 1000, name, sizeof name));
    assert_string_equal(name, "ann");
    assert_false(idmap_parse_passwd(text, 5, name, sizeof name));
    assert_false(idmap_parse_passwd(text, 6, name, sizeof name));
    assert_false(idmap_parse_passwd(text, 42, name, sizeof name));
    assert_false(idmap_parse_passwd("", 0, name, sizeof name));
}

static void a_user_without_subids_is_told_the_command(void **state)
{
    (void)state;
    struct idmap_subids ids;
    struct err err = {0};
    assert_int_equal(idmap_subids(3999999999u, 65536, &ids, &err), -1);
    assert_int_equal(err.code, ERR_HOST);
    assert_true(strstr(err.msg, "usermod --add-subuids") || strstr(err.msg, "apt-get install uidmap"));
}

static int put_over(const char *target, const char *text)
{
    char path[] = "/tmp/idmap-test-XXXXXX";
    int fd = mkstemp(path);
    if (fd < 0 || write(fd, text, strlen(text)) != (ssize_t)strlen(text) || fchmod(fd, 0644) < 0)
        return -1;
    (void)close(fd);
    int r = mount(path, target, NULL, MS_BIND, NULL);
    (void)unlink(path); /* the mount keeps it */
    return r;
}

/* In a child with its own mounts: an ordinary user "hutch-user" with subids maps root inside to the own id. */
static int map_as_user(void)
{
    enum { USER = 54321 };
    struct idmap uids = {0}, gids = {0}, foreign = {0};
    struct idmap_subids ids;
    struct err err = {0};
    if (unshare(CLONE_NEWNS) < 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0 ||
        put_over("/etc/passwd", "root:x:0:0::/root:/bin/sh\nhutch-user:x:54321:54321::/:/bin/sh\n") < 0 ||
        put_over("/etc/subuid", "hutch-user:700000:65536\n") < 0 || put_over("/etc/subgid", "54321:800000:65536\n") < 0)
        return 1;
    if (setresgid(USER, USER, USER) < 0 || setresuid(USER, USER, USER) < 0 || prctl(PR_SET_DUMPABLE, 1) < 0)
        return 2;
    if (idmap_subids(USER, 65536, &ids, &err) < 0 || ids.uid_base != 700000 || ids.gid_base != 800000)
        return 3;
    pid_t pid = child_in_user_namespace();
    if (!idmap_add(&uids, 0, USER, 1) || !idmap_add(&uids, 1, ids.uid_base, 65535) || !idmap_add(&gids, 0, USER, 1) ||
        !idmap_add(&gids, 1, ids.gid_base, 65535) || !idmap_add(&foreign, 0, 900000, 10))
        return 4;
    if (idmap_write_rootless(pid, &foreign, &gids, &err) == 0 || !strstr(err.msg, "newuidmap refused"))
        return 5;
    int r = idmap_write_rootless(pid, &uids, &gids, &err) < 0 ? 6 : 0;
    if (r)
        print_message("%s\n", err.msg);
    end(pid);
    return r;
}

static void an_ordinary_user_maps_subids_through_newuidmap(void **state)
{
    (void)state;
    int status;
    if (access("/usr/bin/newuidmap", X_OK) < 0) {
        print_message("newuidmap is not installed\n");
        skip();
        return;
    }
    pid_t pid = fork();
    if (pid == 0)
        _exit(map_as_user());
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
}

static void ranges_given_to_users_are_recognised(void **state)
{
    (void)state;
    struct idmap_extent e[] = {{0, 100000, 65536}};
    struct idmap_reserved r = {.v = e, .n = 1};
    assert_true(idmap_reserved_overlaps(&r, 165535, 1));
    assert_false(idmap_reserved_overlaps(&r, 165536, 1));
    assert_true(idmap_reserved_overlaps(&r, 99999, 2));
    assert_false(idmap_reserved_overlaps(&r, 99999, 1));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fifty_takers_at_once_get_fifty_ranges_and_kill_frees_them),
        cmocka_unit_test(a_range_stays_taken_while_any_heir_lives),
        cmocka_unit_test(a_pinned_range_needs_no_descriptor_and_ends_with_the_process),
        cmocka_unit_test(all_ranges_can_be_taken_and_then_none),
        cmocka_unit_test(a_range_in_use_is_not_taken_again_after_the_lock_file_was_removed),
        cmocka_unit_test(a_mark_goes_with_the_sandbox_it_stood_for),
        cmocka_unit_test(a_directory_others_may_write_is_refused),
        cmocka_unit_test(maps_are_written_and_read_back),
        cmocka_unit_test(host_id_0_is_never_mapped),
        cmocka_unit_test(subids_are_found_by_number_and_by_name),
        cmocka_unit_test(user_names_come_from_passwd_text),
        cmocka_unit_test(a_user_without_subids_is_told_the_command),
        cmocka_unit_test(an_ordinary_user_maps_subids_through_newuidmap),
        cmocka_unit_test(ranges_given_to_users_are_recognised),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
