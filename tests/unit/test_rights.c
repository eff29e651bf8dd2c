/* Rights of one command: the object that clients write, the message to init, and the filter as a program with every branch taken
 * both ways. What the kernel makes of them is in test_init_rights.c. */
#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#include "bpf-interp.h"
#include "init/request.h"
#include "policy/run/filter-command.h"
#include "sandboxes/rights.h"
#include "tests/lib/unit.h"

#define E(eno) (SECCOMP_RET_ERRNO | (uint32_t)(eno))
#define OK     SECCOMP_RET_ALLOW
#define KILL   SECCOMP_RET_KILL_PROCESS
#define DIRTY  0x9b7f35a100000000ULL /* what the kernel does not look at in an int */

enum {
    APART = FILTER_COMMAND_APART,
    OFF = APART | FILTER_COMMAND_NO_NETWORK,
    NONE = APART | FILTER_COMMAND_READ_ONLY,
    OLD = APART | FILTER_COMMAND_NO_TRUNCATE,
    GROUP = FILTER_COMMAND_ONE_GROUP,
};

struct row {
    int nr;
    uint64_t arg[3];
    uint32_t apart, off, none, old, group;
};

static const struct row rows[] = {
    {SYS_read, {0}, OK, OK, OK, OK, OK},
    {SYS_socket, {AF_UNIX | DIRTY, 1}, E(EACCES), E(EACCES), E(EACCES), E(EACCES), OK},
    {SYS_socket, {AF_INET, 1}, OK, E(EACCES), OK, OK, OK},
    {SYS_socket, {AF_INET6, 2}, OK, E(EACCES), OK, OK, OK},
    {SYS_socket, {AF_NETLINK, 3}, OK, E(EACCES), OK, OK, OK},
    {SYS_connect, {3}, OK, E(EACCES), OK, OK, OK},
    {SYS_bind, {3}, OK, E(EACCES), OK, OK, OK},
    {SYS_listen, {3}, OK, E(EACCES), OK, OK, OK},
    {SYS_socketpair, {AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | DIRTY}, OK, OK, OK, OK, OK},
    {SYS_socketpair, {AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK}, OK, OK, OK, OK, OK},
    {SYS_socketpair, {AF_UNIX, SOCK_DGRAM}, E(EACCES), E(EACCES), E(EACCES), E(EACCES), OK},
    {SYS_shmat, {0}, E(EACCES), E(EACCES), E(EACCES), E(EACCES), OK},
    {SYS_shmdt, {0}, OK, OK, OK, OK, OK},
    {SYS_msgsnd, {0}, E(EACCES), E(EACCES), E(EACCES), E(EACCES), OK},
    {SYS_semtimedop, {0}, E(EACCES), E(EACCES), E(EACCES), E(EACCES), OK},
    {SYS_mq_open, {0}, E(EACCES), E(EACCES), E(EACCES), E(EACCES), OK},
    {SYS_io_uring_setup, {0}, E(ENOSYS), E(ENOSYS), E(ENOSYS), E(ENOSYS), OK},
    {SYS_prlimit64, {DIRTY, 4, 1}, OK, OK, OK, OK, OK},
    {SYS_prlimit64, {7, 4, 0}, OK, OK, OK, OK, OK},
    {SYS_prlimit64, {7, 4, 1}, E(EPERM), E(EPERM), E(EPERM), E(EPERM), OK},
    {SYS_prlimit64, {7, 4, 1ULL << 32}, E(EPERM), E(EPERM), E(EPERM), E(EPERM), OK},
    {SYS_sched_setaffinity, {DIRTY}, OK, OK, OK, OK, OK},
    {SYS_sched_setaffinity, {7}, E(EPERM), E(EPERM), E(EPERM), E(EPERM), OK},
    {SYS_sched_setparam, {7}, E(EPERM), E(EPERM), E(EPERM), E(EPERM), OK},
    {SYS_sched_setscheduler, {7, 0}, OK, OK, OK, OK, OK}, /* the ordinary one */
    {SYS_sched_setscheduler, {7, 3}, E(EPERM), E(EPERM), E(EPERM), E(EPERM), OK},
    {SYS_sched_setattr, {7}, E(EPERM), E(EPERM), E(EPERM), E(EPERM), OK},
    {SYS_sched_getaffinity, {7}, OK, OK, OK, OK, OK},
    {SYS_setpriority, {0, DIRTY, 19}, OK, OK, OK, OK, OK},
    {SYS_setpriority, {0, 7, 19}, E(EPERM), E(EPERM), E(EPERM), E(EPERM), OK},
    {SYS_setpriority, {1, 0, 19}, E(EPERM), E(EPERM), E(EPERM), E(EPERM), OK}, /* its group */
    {SYS_setpriority, {2, 0, 19}, E(EPERM), E(EPERM), E(EPERM), E(EPERM), OK}, /* its user */
    {SYS_ioprio_set, {1, 0, 1}, OK, OK, OK, OK, OK},
    {SYS_ioprio_set, {1, 7, 1}, E(EPERM), E(EPERM), E(EPERM), E(EPERM), OK},
    {SYS_ioprio_set, {3, 0, 1}, E(EPERM), E(EPERM), E(EPERM), E(EPERM), OK},
    {SYS_chmod, {0}, OK, OK, E(EACCES), OK, OK},
    {SYS_fchmod, {0}, OK, OK, E(EACCES), OK, OK},
    {452, {0}, OK, OK, E(EACCES), OK, OK},
    {SYS_utimensat, {0}, OK, OK, E(EACCES), OK, OK},
    {469, {0}, OK, OK, E(EACCES), OK, OK},
    {SYS_truncate, {0}, OK, OK, OK, E(EACCES), OK},
    {SYS_openat2, {0}, OK, OK, OK, E(ENOSYS), OK},
    {SYS_open, {0, O_TRUNC | O_RDONLY | DIRTY}, OK, OK, OK, E(EACCES), OK},
    {SYS_open, {0, O_TRUNC | O_ACCMODE}, OK, OK, OK, E(EACCES), OK},
    {SYS_open, {0, O_TRUNC | O_WRONLY}, OK, OK, OK, OK, OK},
    {SYS_open, {0, O_TRUNC | O_RDWR}, OK, OK, OK, OK, OK},
    {SYS_openat, {0, 0, O_TRUNC | O_ACCMODE | O_CLOEXEC | DIRTY}, OK, OK, OK, E(EACCES), OK},
    {SYS_openat, {0, 0, O_ACCMODE}, OK, OK, OK, OK, OK},
    {SYS_openat, {0, 0, O_TRUNC | O_RDONLY}, OK, OK, OK, E(EACCES), OK},
    {SYS_openat, {0, 0, O_RDONLY | O_CREAT}, OK, OK, OK, OK, OK},
    {SYS_setsid, {0}, OK, OK, OK, OK, E(EPERM)},
    {SYS_setpgid, {0}, OK, OK, OK, OK, E(EPERM)},
    {0x40000001, {0}, KILL, KILL, KILL, KILL, KILL},
    {9999, {0}, OK, OK, OK, OK, OK}, /* the sandbox's own filter knows no such call */
};

static void filter_rows(void **state)
{
    (void)state;
    const unsigned flags[] = {APART, OFF, NONE, OLD, GROUP};
    for (size_t f = 0; f < ARRAY_LEN(flags); f++) {
        struct sock_filter v[FILTER_COMMAND_MAX];
        uint8_t cover[FILTER_COMMAND_MAX] = {0};
        size_t n = filter_command(flags[f], v), first = 0;
        struct bpf_trace t = {.cover = cover};
        for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
            const uint32_t want[] = {rows[i].apart, rows[i].off, rows[i].none, rows[i].old, rows[i].group};
            struct seccomp_data d = {.nr = rows[i].nr, .arch = AUDIT_ARCH_X86_64};
            memcpy(d.args, rows[i].arg, sizeof rows[i].arg);
            uint32_t got = bpf_run(v, n, &d, &t);
            if (got != want[f])
                fail_msg("flags %#x, row %zu (call %d): %#x, not %#x", flags[f], i, rows[i].nr, got, want[f]);
        }
        struct seccomp_data foreign = {.nr = SYS_read, .arch = AUDIT_ARCH_I386};
        assert_int_equal(bpf_run(v, n, &foreign, &t), KILL);
        for (int nr = 0; nr < 500; nr++) { /* what the rows name one of, all */
            struct seccomp_data d = {.nr = nr, .arch = AUDIT_ARCH_X86_64};
            uint32_t got = bpf_run(v, n, &d, &t);
            assert_true(got == OK || (got & SECCOMP_RET_ACTION_FULL) == SECCOMP_RET_ERRNO);
        }
        size_t missing = bpf_uncovered(v, n, cover, &first);
        if (missing)
            fail_msg("flags %#x: %zu of %zu instructions not fully covered, first %zu", flags[f], missing, n, first);
    }
    struct sock_filter most[FILTER_COMMAND_MAX];
    assert_true(filter_command(~0U, most) <= FILTER_COMMAND_MAX);
}

/* A kernel of the code interpreter: it waits for connections, and makes none. */
static void unix_server(void **state)
{
    static const struct {
        int nr;
        uint64_t arg[3];
        uint32_t want;
    } tries[] = {
        {SYS_socket, {AF_UNIX | DIRTY, SOCK_STREAM | SOCK_CLOEXEC | DIRTY}, OK},
        {SYS_socket, {AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK}, OK},
        {SYS_socket, {AF_UNIX, SOCK_DGRAM}, E(EACCES)}, /* sends to any address */
        {SYS_socket, {AF_UNIX, SOCK_RAW}, E(EACCES)},   /* the kernel makes a datagram socket of it */
        {SYS_socket, {AF_UNIX, SOCK_SEQPACKET}, E(EACCES)},
        {SYS_socket, {AF_INET, SOCK_STREAM}, E(EACCES)},
        {SYS_socket, {AF_INET6, SOCK_DGRAM}, E(EACCES)},
        {SYS_socket, {AF_VSOCK, SOCK_STREAM}, E(EACCES)},
        {SYS_socket, {AF_NETLINK, SOCK_RAW}, E(EOPNOTSUPP)},
        {SYS_connect, {3}, E(EACCES)},
        {SYS_bind, {3}, OK},
        {SYS_listen, {3}, OK},
        {SYS_socketpair, {AF_UNIX, SOCK_DGRAM}, E(EACCES)},
        {SYS_io_uring_setup, {0}, E(ENOSYS)},
    };
    struct sock_filter v[FILTER_COMMAND_MAX];
    uint8_t cover[FILTER_COMMAND_MAX] = {0};
    struct bpf_trace t = {.cover = cover};
    size_t n = filter_command(FILTER_COMMAND_APART | FILTER_COMMAND_NO_NETWORK | FILTER_COMMAND_UNIX_SERVER, v);
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(tries); i++) {
        struct seccomp_data d = {.nr = tries[i].nr, .arch = AUDIT_ARCH_X86_64};
        memcpy(d.args, tries[i].arg, sizeof tries[i].arg);
        uint32_t got = bpf_run(v, n, &d, &t);
        if (got != tries[i].want)
            fail_msg("try %zu (call %d): %#x, not %#x", i, tries[i].nr, got, tries[i].want);
    }
}

/* --- the message -------------------------------------------------------------------------------------------------- */

static struct init_request request;

static int parse(uint16_t type, const struct init_rights *rights, const char *cmd)
{
    static unsigned char body[8192];
    const char *const none[] = {NULL};
    struct wire_out o = {.p = body, .cap = sizeof body};
    if (type == INIT_SPAWN_LIMITED)
        wire_put_u64(&o, 7);
    if (rights)
        init_put_rights(&o, rights);
    wire_put_str(&o, cmd);
    wire_put_strv(&o, none, 0);
    wire_put_strv(&o, none, 0);
    wire_put_u32(&o, 0);
    wire_put_str(&o, "");
    wire_put_str(&o, "");
    wire_put_u32(&o, 0);
    wire_put_u32(&o, 0);
    wire_put_u32(&o, 0);
    wire_put_u64(&o, 0);
    struct init_head h = {.version = INIT_VERSION, .type = type, .request = 1, .length = (uint32_t)o.n};
    return init_request_parse(&h, body, o.n, &request);
}

static void message(void **state)
{
    (void)state;
    struct init_rights r = {.flags = INIT_RIGHTS_NO_NETWORK | INIT_RIGHTS_WRITE,
                            .time_ms = 5000,
                            .output_max = 77,
                            .nwrite = 2,
                            .write = {"/a", "~/b"}};
    assert_int_equal(parse(INIT_SPAWN_RIGHTS, &r, "x"), 0);
    assert_true(request.has_rights && request.rights.flags == r.flags && request.rights.time_ms == 5000);
    assert_true(request.rights.output_max == 77 && request.rights.nwrite == 2);
    assert_string_equal(request.rights.write[1], "~/b");
    assert_string_equal(request.cmd, "x");
    assert_int_equal(parse(INIT_SPAWN, NULL, "x"), 0);
    assert_false(request.has_rights);
    /* The bodies are not each other's. */
    assert_int_equal(parse(INIT_SPAWN, &r, "x"), -1);
    assert_int_equal(parse(INIT_SPAWN_RIGHTS, NULL, "x"), -1);
    const struct init_rights wrong[] = {
        {.flags = 8},
        {.nwrite = 1, .write = {"/a"}}, /* paths without the right */
        {.flags = INIT_RIGHTS_WRITE, .nwrite = 1, .write = {""}},
        {.time_ms = INIT_TIMEOUT_MAX_MS + 1},
        {.output_max = UINT64_MAX},
    };
    for (size_t i = 0; i < ARRAY_LEN(wrong); i++) {
        assert_int_equal(parse(INIT_SPAWN_RIGHTS, &wrong[i], "x"), -1);
        assert_int_equal(request.code, INIT_INVALID);
    }
    assert_int_equal(parse(INIT_SPAWN_LIMITED, &r, "x"), 0); /* its cgroup's number comes first */
    assert_true(request.has_rights && request.group == 7 && request.rights.nwrite == 2);
    assert_int_equal(parse(INIT_SPAWN_LIMITED, NULL, "x"), -1);
    /* What an init says of a request that it is too old for: so does one from before INIT_SPAWN_RIGHTS. */
    assert_int_equal(parse(INIT_TYPE_MAX, NULL, "x"), -1);
    assert_int_equal(request.code, INIT_STATE);
    assert_non_null(strstr(request.why, "speaks version 1"));
}

/* --- what clients write ------------------------------------------------------------------------------------------- */

static void read_right(void **state)
{
    (void)state;
    struct rights r;
    struct err err;
    assert_int_equal(rights_read_text("x",
                                      "{\"network\":\"off\",\"write\":[\"/w\",\"out\"],\"user\":\"own\","
                                      "\"timeoutSeconds\":3,\"outputBytes\":9,\"memoryMB\":8}",
                                      &r, &err),
                     0);
    const struct exec_rights *e = rights_of(&r);
    assert_true(e && e->no_network && e->limit_write && e->own_user && e->time_ms == 3000 && e->output_max == 9);
    assert_true(e->memory == 8U << 20);
    assert_string_equal(e->write[1], "out");
    assert_null(e->write[2]);
    rights_done(&r);
    const char *const nothing[] = {"{}", "null", "{\"network\":\"on\",\"write\":\"all\",\"user\":\"same\"}",
                                   "{\"network\":null,\"write\":null,\"memoryMB\":null}"};
    for (size_t i = 0; i < ARRAY_LEN(nothing); i++) {
        assert_int_equal(rights_read_text("x", nothing[i], &r, &err), 0);
        assert_null(rights_of(&r));
        rights_done(&r);
    }
    assert_int_equal(rights_read_text("x", "{\"write\":[]}", &r, &err), 0); /* no path at all is none */
    assert_true(rights_of(&r)->limit_write && !rights_of(&r)->write[0]);
    rights_done(&r);
}

static void read_wrong(void **state)
{
    (void)state;
    static const char *const texts[][2] = {
        {"", "must be JSON"},
        {"7", "must be an object"},
        {"{\"a\":1}", "knows no field 'a'"},
        {"{\"network\":\"Off\"}", "must be \"off\" or \"on\""},
        {"{\"user\":7}", "user"},
        {"{\"write\":{}}", "\"none\", \"all\" or an array"},
        {"{\"write\":[\"\"]}", "1 to 4095"},
        {"{\"timeoutSeconds\":1.5}", "timeoutSeconds"},
        {"{\"outputBytes\":0}", "outputBytes"},
        {"{\"memoryMB\":7}", "memoryMB"},
        {"{\"memoryMB\":1.5}", "memoryMB"},
        {"{\"memoryMB\":1073741825}", "memoryMB"},
    };
    for (size_t i = 0; i < ARRAY_LEN(texts); i++) {
        struct rights r;
        struct err err;
        assert_int_equal(rights_read_text("the header", texts[i][0], &r, &err), -1);
        if (!strstr(err.msg, texts[i][1]) || !strstr(err.msg, "the header"))
            fail_msg("%s: %s", texts[i][0], err.msg);
        rights_done(&r);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(filter_rows), cmocka_unit_test(unix_server), cmocka_unit_test(message),
        cmocka_unit_test(read_right),  cmocka_unit_test(read_wrong),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
