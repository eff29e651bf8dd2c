/* Commands with rights of their own in a real sandbox, through the API that front uses, over packets and over a stream. */
#include <fcntl.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "init-scene.h"
#include "init/init-int.h"
#include "os/landlock.h"
#include "tests/lib/unit.h"

static void narrow(const char *script, const struct exec_rights *rights, bool pty, struct capture *ret)
{
    const char *const args[] = {"-c", script, NULL};
    struct exec_spec s = {.cmd = "sh", .args = args, .rights = rights, .pty = pty};
    memset(ret, 0, sizeof *ret);
    ret->x = exec_start(w.links, WORLD_ID, &s, &capture_ops, ret);
    assert_true(world_wait(&w, &ret->over, 20000));
}

static void expect(const char *script, const struct exec_rights *rights, int code, const char *out)
{
    struct capture c;
    narrow(script, rights, false, &c);
    if (!c.ended || c.end.code != code || strcmp(c.text[1], out) != 0)
        print_message("%s: ended %d code %d out '%s' err '%s' %s\n", script, c.ended, c.end.code, c.text[1], c.text[2],
                      c.st.text);
    assert_true(c.ended && c.end.exited && c.end.limit == EXEC_LIMIT_NONE);
    assert_int_equal(c.end.code, code);
    assert_string_equal(c.text[1], out);
}

static void writing(void **state)
{
    (void)state;
    const char *const paths[] = {"/tmp/w", NULL};
    const struct exec_rights none = {.limit_write = true}, some = {.limit_write = true, .write = paths};
    expect("mkdir -p /tmp/w && echo old > /tmp/f && chmod 644 /tmp/f", NULL, 0, "");
    expect("cat /tmp/f; echo x > /dev/null; echo y > /proc/self/fd/1", &none, 0, "old\ny\n");
    expect("echo x > /tmp/f", &none, 2, "");
    expect("chmod 600 /tmp/f", &none, 1, "");
    expect("touch /tmp/w/n || touch /tmp/f", &none, 1, "");
    expect("echo x > /tmp/w/n && chmod 600 /tmp/w/n && cat /tmp/w/n && rm /tmp/w/n", &some, 0, "x\n");
    expect("echo x > /tmp/f", &some, 2, "");
    expect("mv /tmp/f /tmp/w/f", &some, 1, "");
    expect("cat /tmp/f", NULL, 0, "old\n");
    expect("(echo x > /tmp/g) 2>/dev/null; sh -c 'echo x > /tmp/g' 2>/dev/null; test -e /tmp/g", &none, 1, "");
}

static void terminal(void **state)
{
    (void)state;
    const struct exec_rights none = {.limit_write = true};
    struct capture c;
    narrow("echo by-name > /dev/tty; echo own > $(tty); echo x > /tmp/t", &none, true, &c);
    assert_true(c.ended && c.end.code == 2);
    assert_non_null(strstr(c.text[3], "by-name\r\nown\r\n"));
}

static void refused(void **state)
{
    (void)state;
    const char *const absent[] = {"/nowhere", NULL}, *const magic[] = {"/proc/self/fd/3", NULL};
    const struct exec_rights a = {.limit_write = true, .write = absent}, m = {.limit_write = true, .write = magic};
    struct capture c;
    narrow("true", &a, false, &c);
    assert_true(c.failed && c.st.code == LINK_INVALID);
    assert_non_null(strstr(c.st.text, "'/nowhere' does not exist"));
    narrow("true", &m, false, &c);
    assert_true(c.failed && (c.st.code == LINK_DENIED || c.st.code == LINK_INVALID));
    /* "~x" is a name like others, and begins at the working directory (the home, /). */
    const char *const tilde[] = {"~nobody", NULL};
    const struct exec_rights n = {.limit_write = true, .write = tilde};
    narrow("true", &n, false, &c);
    assert_true(c.failed && c.st.code == LINK_INVALID);
    assert_non_null(strstr(c.st.text, "'~nobody' does not exist"));
    const char *many[EXEC_WRITE_MAX + 2] = {0};
    for (size_t i = 0; i <= EXEC_WRITE_MAX; i++)
        many[i] = "/tmp";
    const struct exec_rights t = {.limit_write = true, .write = many};
    narrow("true", &t, false, &c);
    assert_true(c.failed && c.st.code == LINK_INVALID);
}

static void limits(void **state)
{
    (void)state;
    const struct exec_rights time = {.time_ms = 300}, output = {.output_max = 5000};
    struct capture c;
    narrow("sleep 100 & (sleep 100 &) ; setsid sleep 100; echo; sleep 100", &time, false, &c);
    assert_true(c.ended && !c.end.exited && c.end.code == 9 && c.end.limit == EXEC_LIMIT_TIME);
    narrow("while :; do echo out; echo err >&2; done", &output, false, &c);
    assert_true(c.ended && c.end.limit == EXEC_LIMIT_OUTPUT);
    assert_int_equal(c.total[1] + c.total[2], 5000);
    narrow("while :; do echo out; done", &output, true, &c);
    assert_true(c.ended && c.end.limit == EXEC_LIMIT_OUTPUT);
    assert_in_range(c.total[3], 5000, 5001); /* a terminal cannot always tell that more waits */
    narrow("head -c 5000 /dev/zero; exit 3", &output, false, &c);
    assert_true(c.ended && c.end.exited && c.end.code == 3 && c.end.limit == EXEC_LIMIT_NONE && c.total[1] == 5000);
    /* What it leaves behind has no time any more; that of another command has. */
    const struct exec_rights minute = {.time_ms = 60000};
    expect("sleep 101 > /dev/null 2>&1 & echo", &minute, 0, "\n");
    expect("sleep 102 > /dev/null 2>&1 & echo", NULL, 0, "\n");
    expect("cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -o 'sleep 10[0-9]'", NULL, 0, "sleep 102\n");
}

static void own_user(void **state)
{
    (void)state;
    const struct exec_rights own = {.own_user = true};
    struct capture a, b;
    narrow("id -u; touch /tmp/own; stat -c %u /tmp/own; rm /tmp/own", &own, false, &a);
    narrow("id -u; touch /tmp/own; stat -c %u /tmp/own", &own, false, &b);
    assert_true(a.ended && b.ended && a.end.code == 0 && b.end.code == 0);
    assert_string_not_equal(a.text[1], b.text[1]);
    assert_int_equal(a.n[1], 12);
    assert_memory_equal(a.text[1], a.text[1] + 6, 6);
}

/* 4096 different ones in turn, except those of commands that live. */
static void own_uids(void **state)
{
    (void)state;
    static struct init g;
    static bool seen[4096];
    g = (struct init){.ncommands = 2};
    uid_t first = rights_new_uid(&g), second = rights_new_uid(&g);
    g.command[0] = (struct command){.state = COMMAND_RUNNING, .own_uid = first};
    g.command[1] = (struct command){.state = COMMAND_ENDED, .own_uid = second};
    for (int i = 0; i < 4095; i++) {
        uid_t uid = rights_new_uid(&g);
        assert_in_range(uid, 61184, 65279);
        assert_true(uid != first && !seen[uid - 61184]);
        seen[uid - 61184] = true;
    }
    assert_true(seen[second - 61184]);
}

static void relative_paths(void **state)
{
    (void)state;
    const struct init_rights r = {.nwrite = 3, .write = {"/a", "~", "~/b"}}, x = {.nwrite = 2, .write = {"~/b", "~c"}},
                             y = {.nwrite = 1, .write = {"out"}};
    assert_null(rights_relative_path(&r));
    assert_string_equal(rights_relative_path(&x), "~c");
    assert_string_equal(rights_relative_path(&y), "out");
}

static void domain(void **state)
{
    (void)state;
    const struct exec_rights off = {.no_network = true};
    struct capture c;
    expect("sleep 103 > /dev/null 2>&1 & echo $! > /tmp/sleeper", NULL, 0, "");
    expect("ls /proc/$(cat /tmp/sleeper)/root/ > /dev/null 2>&1", &off, 2, "");
    world_sh(&w, "kill -0 $(cat /tmp/sleeper)", &c);
    assert_true(c.ended && c.end.code == 0);
    narrow("kill -0 $(cat /tmp/sleeper)", &off, false, &c);
    assert_true(c.ended && c.end.code == 1); /* Landlock ABI 6 */
    expect("grep NoNewPrivs /proc/self/status", &off, 0, "NoNewPrivs:\t1\n");
}

/* --- older kernels ------------------------------------------------------------------------------------------------ */

/* In a process of its own: the bits of what got through behind these rights, or 128 if they were refused. */
enum {
    TRUNCATED = 1,
    OPEN_TRUNCATED = 2,
    WRITTEN = 4,
    SOCKET = 8,
    SIGNALLED = 16,
    NAMED = 32,
    MODE_TRUNCATED = 64,
    REFUSED = 128
};
static int attempt_behind(const struct init_rights *r, int abi, const char *file)
{
    int status = 0;
    pid_t parent = getpid(), pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        struct spawn_report why = {0};
        int got = 0;
        if (rights_apply_abi(r, "/", -1, abi, &why) < 0)
            _exit(why.code == INIT_STATE && strstr(why.text, "Landlock") ? REFUSED : 127);
        got |= truncate(file, 1) == 0 ? TRUNCATED : 0;
        got |= open(file, O_RDONLY | O_TRUNC | O_CLOEXEC) >= 0 ? OPEN_TRUNCATED : 0;
        got |= open(file, O_ACCMODE | O_TRUNC | O_CLOEXEC) >= 0 ? MODE_TRUNCATED : 0;
        got |= open(file, O_WRONLY | O_CLOEXEC) >= 0 ? WRITTEN : 0;
        got |= socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0) >= 0 ? SOCKET : 0;
        got |= kill(parent, 0) == 0 ? SIGNALLED : 0;
        got |= socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0) >= 0 ? NAMED : 0;
        _exit(got);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void older_kernels(void **state)
{
    (void)state;
    char file[] = "/tmp/hutch-rights-XXXXXX";
    int fd = mkstemp(file);
    assert_true(fd >= 0 && write(fd, "long", 4) == 4);
    (void)close(fd);
    const struct init_rights all = {0}, none = {.flags = INIT_RIGHTS_WRITE}, off = {.flags = INIT_RIGHTS_NO_NETWORK};
    const int files = TRUNCATED | OPEN_TRUNCATED | MODE_TRUNCATED | WRITTEN;
    for (int abi = 2; abi <= landlock_abi(); abi++) {
        int signalled = abi < 6 ? SIGNALLED : 0; /* scopes are of ABI 6 */
        assert_int_equal(attempt_behind(&none, abi, file), SOCKET | signalled);
        assert_int_equal(attempt_behind(&off, abi, file), files | signalled);
        assert_int_equal(attempt_behind(&all, abi, file), files | SOCKET | SIGNALLED | NAMED);
    }
    assert_int_equal(attempt_behind(&none, 0, file), REFUSED);
    (void)unlink(file);
}

static int run_all(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(writing), cmocka_unit_test(terminal), cmocka_unit_test(refused),
        cmocka_unit_test(limits),  cmocka_unit_test(own_user), cmocka_unit_test(domain),
    };
    int r = cmocka_run_group_tests_name("computer", tests, up, down);
    const struct CMUnitTest older[] = {cmocka_unit_test(older_kernels), cmocka_unit_test(own_uids),
                                       cmocka_unit_test(relative_paths)};
    r += cmocka_run_group_tests_name("strict", tests, up_strict, down);
    return r + cmocka_run_group_tests_name("older kernels", older, NULL, NULL);
}

/* The same over packets and over a byte stream. */
int main(void)
{
    if (geteuid() != 0) {
        print_message("skipped: needs root\n");
        return 0;
    }
    return world_run_twice(run_all);
}
