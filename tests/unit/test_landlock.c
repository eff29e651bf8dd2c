/* Landlock in the kernel, with every ABI up to its own forced once: each test restricts a child and looks at errno.
 *
 * The tree: ro/file (granted for reading), rw/a, rw/b (everything), out/secret (nothing). */
#include "os/landlock.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/cleanup.h"
#include "base/fd.h"

struct scene {
    int abi;
    unsigned flags;
    int listener; /* abstract socket of the parent */
    struct sockaddr_un name;
    socklen_t name_len;
};

static char top[] = "/tmp/hutch-test-XXXXXX";

static int setup(void **state)
{
    (void)state;
    if (!mkdtemp(top) || chdir(top) < 0)
        return -1;
    static const char *const dirs[] = {"ro", "rw", "rw/a", "rw/b", "out"};
    for (size_t i = 0; i < ARRAY_LEN(dirs); i++)
        if (mkdir(dirs[i], 0755) < 0)
            return -1;
    static const char *const files[] = {"ro/file", "rw/a/file", "out/secret"};
    for (size_t i = 0; i < ARRAY_LEN(files); i++) {
        _cleanup_close_ int fd = open(files[i], O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
        if (fd < 0 || fd_write_all(fd, "text", 4) < 0)
            return -1;
    }
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    static const char *const names[] = {"ro/file", "rw/a/file", "rw/b/file", "rw/x", "rw/link", "out/secret",
                                        "rw/a",    "rw/b",      "ro",        "rw",   "out"};
    for (size_t i = 0; i < ARRAY_LEN(names); i++)
        (void)remove(names[i]);
    return chdir("/") < 0 || rmdir(top) < 0 ? -1 : 0;
}

static int complain(const struct scene *s, const char *what, long got, long want)
{
    dprintf(2, "ABI %d: %s: got %ld, expected %ld\n", s->abi, what, got, want);
    return 1;
}

#define EXPECT(what, expr, want)                  \
    do {                                          \
        long got_ = (expr) < 0 ? errno : 0;       \
        if (got_ != (want))                       \
            return complain(s, what, got_, want); \
    } while (0)

static int run(int (*fn)(const struct scene *), const struct scene *s)
{
    fflush(NULL);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0)
        _exit(fn(s));
    int status = 0;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/* The tree's rules, plus one file rule with rights that only directories have. */
static int restrict_tree(const struct scene *s, struct err *err)
{
    struct landlock_rule rules[] = {
        {open("ro", O_PATH | O_CLOEXEC), LANDLOCK_READ},         {open("rw", O_PATH | O_CLOEXEC), LANDLOCK_WRITE},
        {open("/dev/zero", O_PATH | O_CLOEXEC), LANDLOCK_WRITE}, {open("/dev/full", O_PATH | O_CLOEXEC), LANDLOCK_READ},
        {open("out", O_PATH | O_CLOEXEC), LANDLOCK_CONNECT},
    };
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
        return -1;
    int r = landlock_apply_abi(rules, ARRAY_LEN(rules), s->flags, s->abi, err);
    for (size_t i = 0; i < ARRAY_LEN(rules); i++)
        (void)close(rules[i].fd);
    return r;
}

static int enter(const struct scene *s)
{
    struct err err = {0};
    if (restrict_tree(s, &err) == 0)
        return 0;
    dprintf(2, "%s\n", err.msg);
    return -1;
}

/* --- files -------------------------------------------------------------------------------------------------------- */

static int files_behave(const struct scene *s)
{
    int before = open("out/secret", O_WRONLY | O_CLOEXEC);
    if (before < 0 || enter(s) < 0)
        return 1;
    EXPECT("read in the readable tree", open("ro/file", O_RDONLY | O_CLOEXEC), 0);
    EXPECT("list the readable tree", open("ro", O_RDONLY | O_DIRECTORY | O_CLOEXEC), 0);
    EXPECT("write in the readable tree", open("ro/file", O_WRONLY | O_CLOEXEC), EACCES);
    EXPECT("create in the readable tree", open("ro/x", O_WRONLY | O_CREAT | O_CLOEXEC, 0600), EACCES);
    EXPECT("remove from the readable tree", unlink("ro/file"), EACCES);
    EXPECT("write in the writable tree", open("rw/x", O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600), 0);
    EXPECT("read elsewhere", open("out/secret", O_RDONLY | O_CLOEXEC), EACCES);
    EXPECT("list elsewhere", open("out", O_RDONLY | O_DIRECTORY | O_CLOEXEC), EACCES);
    EXPECT("write elsewhere", open("out/secret", O_WRONLY | O_CLOEXEC), EACCES);
    EXPECT("a device without a rule", open("/dev/null", O_RDWR | O_CLOEXEC), EACCES);
    EXPECT("a device with a rule", open("/dev/zero", O_RDWR | O_CLOEXEC), 0);
    EXPECT("a link that leads out", symlink("../out/secret", "rw/link"), 0);
    EXPECT("opening it", open("rw/link", O_RDONLY | O_CLOEXEC), EACCES);
    EXPECT("removing it", unlink("rw/link"), 0);
    /* Beyond Landlock: mounts must see to these. */
    struct stat st;
    EXPECT("stat elsewhere", stat("out/secret", &st), 0);
    EXPECT("a descriptor from before", write(before, "T", 1), 0);
    return 0;
}

static int links_behave(const struct scene *s)
{
    if (enter(s) < 0)
        return 1;
    EXPECT("hard link out of the readable tree", link("ro/file", "rw/x2"), EXDEV);
    EXPECT("rename out of the readable tree", rename("ro/file", "rw/x2"), EACCES);
    EXPECT("rename between directories", rename("rw/a/file", "rw/b/file"), s->abi >= 2 ? 0 : EXDEV);
    if (s->abi >= 2)
        EXPECT("rename back", rename("rw/b/file", "rw/a/file"), 0);
    EXPECT("truncate in the readable tree", truncate("ro/file", 4), s->abi >= 3 ? EACCES : 0);
    int device = open("/dev/full", O_RDONLY | O_CLOEXEC);
    struct termios t;
    EXPECT("a readable device", device, 0);
    EXPECT("ioctl on a readable device", ioctl(device, TCGETS, &t), s->abi >= 5 ? EACCES : ENOTTY);
    return 0;
}

static int reads_are_free(const struct scene *s)
{
    if (enter(s) < 0)
        return 1;
    EXPECT("read elsewhere", open("out/secret", O_RDONLY | O_CLOEXEC), 0);
    EXPECT("list elsewhere", open("out", O_RDONLY | O_DIRECTORY | O_CLOEXEC), 0);
    EXPECT("write elsewhere", open("out/secret", O_WRONLY | O_CLOEXEC), EACCES);
    EXPECT("create elsewhere", open("out/x", O_WRONLY | O_CREAT | O_CLOEXEC, 0600), EACCES);
    EXPECT("write in the writable tree", open("rw/x", O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600), 0);
    return 0;
}

static void for_every_abi(int (*fn)(const struct scene *), unsigned flags)
{
    for (int abi = 1; abi <= landlock_abi() && abi <= LANDLOCK_ABI_KNOWN; abi++) {
        struct scene s = {.abi = abi, .flags = flags};
        assert_int_equal(run(fn, &s), 0);
    }
}

static void paths_without_a_rule_are_refused_under_every_abi(void **state)
{
    (void)state;
    for_every_abi(files_behave, 0);
}

static void writes_are_refused_also_where_reads_are_free(void **state)
{
    (void)state;
    for_every_abi(reads_are_free, LANDLOCK_FREE_READS);
}

static void links_truncation_and_devices_follow_the_abi_that_brought_them(void **state)
{
    (void)state;
    for_every_abi(links_behave, 0);
}

static int exec_behaves(const struct scene *s)
{
    struct landlock_rule rules[] = {
        {open("/usr", O_PATH | O_CLOEXEC), LANDLOCK_READ},
        {open("/", O_PATH | O_CLOEXEC), LANDLOCK_ACCESS_FS_READ_FILE | LANDLOCK_ACCESS_FS_READ_DIR},
        {open("rw", O_PATH | O_CLOEXEC), LANDLOCK_ACCESS_FS_READ_FILE},
    };
    struct err err = {0};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 || landlock_apply_abi(rules, ARRAY_LEN(rules), 0, s->abi, &err) < 0)
        return complain(s, err.msg, 1, 0);
    char *argv[] = {(char *)"true", NULL};
    if (chmod("rw/a/file", 0755) < 0)
        return 1;
    EXPECT("exec of a file that is only readable", execv("rw/a/file", argv), EACCES);
    (void)execv("/usr/bin/true", argv);
    return complain(s, "exec of a program", errno, 0);
}

static void programs_run_only_where_execution_is_granted(void **state)
{
    (void)state;
    for_every_abi(exec_behaves, 0);
}

static int mount_behaves(const struct scene *s)
{
    if (unshare(CLONE_NEWNS) < 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0)
        return complain(s, "own mount namespace", errno, 0);
    EXPECT("mount without Landlock", mount("none", "rw", "tmpfs", 0, NULL), 0);
    if (enter(s) < 0)
        return 1;
    EXPECT("mount", mount("none", "rw", "tmpfs", 0, NULL), EPERM);
    EXPECT("umount", umount2("rw", MNT_DETACH), EPERM);
    return 0;
}

static void mounts_are_refused_even_to_root(void **state)
{
    (void)state;
    if (geteuid() != 0)
        skip();
    for_every_abi(mount_behaves, 0);
}

/* --- scopes and TCP ----------------------------------------------------------------------------------------------- */

static int reach_out(const struct scene *s, int want)
{
    _cleanup_close_ int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return complain(s, "socket", errno, 0);
    EXPECT("an abstract socket outside", connect(fd, (const struct sockaddr *)&s->name, s->name_len), want);
    EXPECT("a signal to a process outside", kill(getppid(), 0), want);
    EXPECT("a signal to itself", kill(getpid(), 0), 0);
    return 0;
}

static int scopes_behave(const struct scene *s)
{
    if (enter(s) < 0)
        return 1;
    return reach_out(s, s->abi >= 6 && !(s->flags & LANDLOCK_UNSCOPED) ? EPERM : 0);
}

static void abstract_sockets_and_signals_are_cut_off_from_abi_6_on(void **state)
{
    (void)state;
    struct scene s = {.name = {.sun_family = AF_UNIX}};
    int n = snprintf(s.name.sun_path + 1, sizeof s.name.sun_path - 1, "hutch-test-%d", (int)getpid());
    s.name_len = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);
    _cleanup_close_ int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(listener, (struct sockaddr *)&s.name, s.name_len), 0);
    assert_int_equal(listen(listener, 64), 0);
    for (s.abi = 1; s.abi <= landlock_abi() && s.abi <= LANDLOCK_ABI_KNOWN; s.abi++) {
        s.flags = 0;
        assert_int_equal(run(scopes_behave, &s), 0);
        s.flags = LANDLOCK_UNSCOPED;
        assert_int_equal(run(scopes_behave, &s), 0);
    }
}

static int tcp_behaves(const struct scene *s)
{
    bool denied = s->flags & LANDLOCK_DENY_TCP;
    struct err err = {0};
    int r = restrict_tree(s, &err);
    if (denied && s->abi < 4)
        return r == -1 && err.code == ERR_HOST ? 0 : complain(s, "TCP rules before ABI 4", err.code, ERR_HOST);
    if (r < 0)
        return complain(s, err.msg, r, 0);
    struct sockaddr_in any = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}}, closed = any;
    closed.sin_port = htons(1);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), other = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    EXPECT("TCP bind", bind(fd, (struct sockaddr *)&any, sizeof any), denied ? EACCES : 0);
    EXPECT("TCP connect", connect(other, (struct sockaddr *)&closed, sizeof closed), denied ? EACCES : ECONNREFUSED);
    return 0;
}

static void tcp_is_refused_only_when_asked_for(void **state)
{
    (void)state;
    for_every_abi(tcp_behaves, 0);
    for_every_abi(tcp_behaves, LANDLOCK_DENY_TCP);
}

/* --- errors ------------------------------------------------------------------------------------------------------- */

static int layers_run_out(const struct scene *s)
{
    struct err err = {0};
    for (int i = 0; i < 16; i++)
        if (enter(s) < 0)
            return complain(s, "layers", i, 16);
    if (restrict_tree(s, &err) != -1 || err.code != ERR_HOST || err.eno != E2BIG)
        return complain(s, "the 17th layer", err.eno, E2BIG);
    return 0;
}

static int errors_have_classes(const struct scene *s)
{
    struct err err = {0};
    if (landlock_apply_abi(NULL, 0, 0, 0, &err) != -1 || err.code != ERR_HOST)
        return complain(s, "no Landlock", err.code, ERR_HOST);
    struct landlock_rule bad = {999, LANDLOCK_READ};
    if (landlock_apply(&bad, 1, 0, &err) != -1 || err.code != ERR_SETUP || err.eno != EBADF)
        return complain(s, "a bad descriptor", err.eno, EBADF);
    if (landlock_abi() < LANDLOCK_ABI_KNOWN &&
        (landlock_apply_abi(NULL, 0, 0, LANDLOCK_ABI_KNOWN, &err) != -1 || err.eno != EINVAL))
        return complain(s, "an ABI the kernel lacks", err.eno, EINVAL);
    if (setresuid(65534, 65534, 65534) == 0 && (landlock_apply(NULL, 0, 0, &err) != -1 || err.eno != EPERM))
        return complain(s, "without no_new_privs", err.eno, EPERM);
    return 0;
}

static void errors_name_the_host_or_the_set_up(void **state)
{
    (void)state;
    struct scene s = {.abi = landlock_abi()};
    assert_int_equal(run(layers_run_out, &s), 0);
    assert_int_equal(run(errors_have_classes, &s), 0);
}

static void this_kernel_is_at_or_above_the_floor(void **state)
{
    (void)state;
    print_message("Landlock ABI %d\n", landlock_abi());
    assert_true(landlock_abi() >= LANDLOCK_ABI_FLOOR);
}

static int logs_are_accepted(const struct scene *s) { return enter(s) < 0; }

static void audit_flags_are_accepted_under_every_abi(void **state)
{
    (void)state;
    for_every_abi(logs_are_accepted, LANDLOCK_LOG);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(this_kernel_is_at_or_above_the_floor),
        cmocka_unit_test(paths_without_a_rule_are_refused_under_every_abi),
        cmocka_unit_test(writes_are_refused_also_where_reads_are_free),
        cmocka_unit_test(links_truncation_and_devices_follow_the_abi_that_brought_them),
        cmocka_unit_test(programs_run_only_where_execution_is_granted),
        cmocka_unit_test(mounts_are_refused_even_to_root),
        cmocka_unit_test(abstract_sockets_and_signals_are_cut_off_from_abi_6_on),
        cmocka_unit_test(tcp_is_refused_only_when_asked_for),
        cmocka_unit_test(errors_name_the_host_or_the_set_up),
        cmocka_unit_test(audit_flags_are_accepted_under_every_abi),
    };
    return cmocka_run_group_tests_name("landlock", tests, setup, teardown);
}
