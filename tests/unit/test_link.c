/* Links against an init that lies: every nonsense drops the connection, fails what was pending, leaks nothing. */
#include <errno.h>
#include <fcntl.h>
#include <linux/memfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "await.h"
#include "base/fd.h"
#include "init-world.h"
#include "init/wire.h"
#include "tests/lib/unit.h"

static struct world w;
static int listener, peer = -1;

static int up(void **state)
{
    (void)state;
    struct err err;
    struct sockaddr_un sa = {.sun_family = AF_UNIX};
    memset(&w, 0, sizeof w);
    (void)snprintf(w.dir, sizeof w.dir, "/tmp/hutch-link-XXXXXX");
    if (!mkdtemp(w.dir))
        return -1;
    w.run_dir = open(w.dir, O_PATH | O_DIRECTORY | O_CLOEXEC);
    listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    (void)snprintf(sa.sun_path, sizeof sa.sun_path, "%s/%s.sock", w.dir, WORLD_ID);
    if (bind(listener, (struct sockaddr *)&sa, sizeof sa) < 0 || listen(listener, 4) < 0)
        return -1;
    return loop_new(&w.loop, &err) < 0 || links_new(w.loop, w.run_dir, &w.links, &err) < 0;
}

static int down(void **state)
{
    (void)state;
    links_free(w.links);
    loop_free(w.loop);
    (void)close(listener);
    if (peer >= 0)
        (void)close(peer);
    peer = -1;
    (void)unlinkat(w.run_dir, WORLD_ID ".sock", 0);
    (void)close(w.run_dir);
    (void)rmdir(w.dir);
    return 0;
}

static unsigned open_fds(void)
{
    unsigned n = 0;
    for (int fd = 0; fd < 256; fd++)
        n += fcntl(fd, F_GETFD) >= 0;
    return n;
}

static void turn(int times)
{
    struct err err;
    for (int i = 0; i < times; i++)
        (void)loop_step(w.loop, 2, &err);
}

/* Takes the connection and the next request. */
static struct init_head next_request(void)
{
    static unsigned char buf[INIT_MSG_MAX];
    struct init_head h = {0};
    for (int64_t end = await_now() + AWAIT_S; await_now() <= end;) {
        turn(1);
        if (peer < 0)
            peer = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        ssize_t n = peer >= 0 ? recv(peer, buf, sizeof buf, 0) : -1;
        if (n >= (ssize_t)sizeof h) {
            memcpy(&h, buf, sizeof h);
            return h;
        }
    }
    fail_msg("no request came");
    return h;
}

static void hang_up(void)
{
    (void)close(peer);
    peer = -1;
}

struct lie {
    const char *what;
    uint16_t version, type;
    uint32_t flags, zero;
    int length;       /* added to the right one */
    uint64_t request; /* added */
    const char *body;
    size_t n;
};
#define OK_BODY "\0\0\0\0\0\0\0\0\0"

static void lies(void **state)
{
    (void)state;
    static const struct lie v[] = {
        {.what = "version", .version = 2, .type = INIT_REPLY, .body = OK_BODY, .n = 9},
        {.what = "type", .version = 1, .type = INIT_HELLO, .body = OK_BODY, .n = 9},
        {.what = "unknown type", .version = 1, .type = 999, .body = OK_BODY, .n = 9},
        {.what = "output for a call", .version = 1, .type = INIT_OUTPUT, .body = OK_BODY, .n = 9},
        {.what = "closed for a call", .version = 1, .type = INIT_CLOSED},
        {.what = "flags", .version = 1, .type = INIT_REPLY, .flags = 2, .body = OK_BODY, .n = 9},
        {.what = "zero", .version = 1, .type = INIT_REPLY, .zero = 1, .body = OK_BODY, .n = 9},
        {.what = "long", .version = 1, .type = INIT_REPLY, .length = 1, .body = OK_BODY, .n = 9},
        {.what = "short", .version = 1, .type = INIT_REPLY, .length = -1, .body = OK_BODY, .n = 9},
        {.what = "foreign request", .version = 1, .type = INIT_REPLY, .request = 7, .body = OK_BODY, .n = 9},
        {.what = "more", .version = 1, .type = INIT_REPLY, .body = OK_BODY "x", .n = 10},
        {.what = "no text", .version = 1, .type = INIT_REPLY, .body = OK_BODY, .n = 4},
        {.what = "code", .version = 1, .type = INIT_REPLY, .body = "\xff\0\0\0\0\0\0\0\0", .n = 9},
        {.what = "gone", .version = 1, .type = INIT_REPLY, .body = "\1\0\0\0\0\0\0\0\0", .n = 9},
        {.what = "endless text", .version = 1, .type = INIT_REPLY, .body = "\0\0\0\0\xff\xff\xff\xff\0", .n = 9},
        {.what = "no NUL", .version = 1, .type = INIT_REPLY, .body = "\4\0\0\0\1\0\0\0ab", .n = 10},
        {.what = "memfd without one", .version = 1, .type = INIT_REPLY, .flags = INIT_F_MEMFD, .n = 0},
        {.what = "empty", .version = 1, .n = 0},
    };
    unsigned before = open_fds();
    for (size_t i = 0; i < ARRAY_LEN(v); i++) {
        struct status_sandbox b = {0}, other = {0};
        unsigned char msg[256];
        struct exec_select who = {.pid = 1};
        (void)exec_signal(w.links, WORLD_ID, &who, 9, status_done, &b);
        (void)link_hello(w.links, WORLD_ID, status_done, &other);
        struct init_head h = next_request();
        h = (struct init_head){.version = v[i].version,
                               .type = v[i].type,
                               .flags = v[i].flags,
                               .zero = v[i].zero,
                               .request = h.request + v[i].request,
                               .length = (uint32_t)((int)v[i].n + v[i].length)};
        memcpy(msg, &h, sizeof h);
        if (v[i].n)
            memcpy(msg + sizeof h, v[i].body, v[i].n);
        assert_int_equal(fd_send(peer, msg, sizeof h + v[i].n, NULL, 0), 0);
        assert_true(world_wait(&w, &b.done, AWAIT_MS));
        if (b.st.code != LINK_BROKEN)
            print_message("%s: %d\n", v[i].what, (int)b.st.code);
        assert_int_equal(b.st.code, LINK_BROKEN);
        assert_true(world_wait(&w, &other.done, AWAIT_MS));
        assert_int_equal(other.st.code, LINK_BROKEN);
        hang_up();
    }
    assert_int_equal(open_fds(), before);
}

/* Descriptors that are not what they must be. */
static int sealed(size_t size, int seals)
{
    int fd = memfd_create("t", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (ftruncate(fd, (off_t)size) < 0 || fcntl(fd, F_ADD_SEALS, seals) < 0)
        fail();
    return fd;
}

static void send_spawn_reply(uint64_t request, uint32_t size, uint64_t start, const int *fds, size_t nfds)
{
    unsigned char msg[512];
    struct wire_out o = {.p = msg + sizeof(struct init_head), .cap = 400};
    wire_put_u32(&o, 0);
    wire_put_str(&o, "");
    wire_put_u32(&o, 42);
    wire_put_u32(&o, 0);
    wire_put_str(&o, "");
    wire_put_u32(&o, size);
    for (int s = 1; s < 4; s++)
        wire_put_u64(&o, s < 3 ? start : 0);
    struct init_head h = {.version = 1, .type = INIT_REPLY, .request = request, .length = (uint32_t)o.n};
    memcpy(msg, &h, sizeof h);
    assert_int_equal(fd_send(peer, msg, sizeof h + o.n, fds, nfds), 0);
}

static void send_output(uint64_t request, uint64_t a, uint64_t b, uint64_t c)
{
    unsigned char msg[64];
    struct init_head h = {.version = 1, .type = INIT_OUTPUT, .request = request, .length = 24};
    uint64_t v[3] = {a, b, c};
    memcpy(msg, &h, sizeof h);
    memcpy(msg + sizeof h, v, sizeof v);
    assert_int_equal(fd_send(peer, msg, sizeof h + sizeof v, NULL, 0), 0);
}

static void bad_rings(void **state)
{
    (void)state;
    enum { GOOD = F_SEAL_GROW | F_SEAL_SHRINK };
    unsigned before = open_fds();
    for (int i = 0; i < 8; i++) {
        struct capture c = {0};
        struct exec_spec s = {.cmd = "x"};
        int fds[3] = {sealed(8192, GOOD), sealed(8192, GOOD), sealed(8192, GOOD)};
        uint32_t size = 8192;
        size_t n = 2;
        int odd = -1;
        c.x = exec_start(w.links, WORLD_ID, &s, &capture_ops, &c);
        struct init_head h = next_request();
        switch (i) {
        case 0:
            n = 1;
            break;
        case 1:
            n = 3;
            break;
        case 2:
            size = 4096; /* not its size */
            break;
        case 3:
            odd = open("/dev/zero", O_RDONLY | O_CLOEXEC);
            break;
        case 4:
            odd = sealed(8192, F_SEAL_GROW); /* can shrink: pread would run dry */
            break;
        case 5:
            odd = open("/etc/passwd", O_RDONLY | O_CLOEXEC);
            break;
        case 6:
            size = 0;
            break;
        case 7:
            size = 12288;
            break;
        }
        send_spawn_reply(h.request, size, 0, odd >= 0 ? (int[]){fds[0], odd} : fds, n);
        assert_true(world_wait(&w, &c.over, AWAIT_MS));
        assert_true(c.failed && !c.started);
        assert_int_equal(c.st.code, LINK_BROKEN);
        for (int k = 0; k < 3; k++)
            (void)close(fds[k]);
        if (odd >= 0)
            (void)close(odd);
        hang_up();
    }
    assert_int_equal(open_fds(), before);
}

static void bad_offsets(void **state)
{
    (void)state;
    static const uint64_t v[][3] = {{8193, 0, 0}, {UINT64_MAX, 0, 0}, {0, 0, 1}, {0, 1ULL << 40, 0}};
    unsigned before = open_fds();
    for (size_t i = 0; i < ARRAY_LEN(v) + 2; i++) {
        struct capture c = {0};
        struct exec_spec s = {.cmd = "x"};
        int fds[2] = {sealed(8192, F_SEAL_GROW | F_SEAL_SHRINK), sealed(8192, F_SEAL_GROW | F_SEAL_SHRINK)};
        c.x = exec_start(w.links, WORLD_ID, &s, &capture_ops, &c);
        struct init_head h = next_request();
        if (i == ARRAY_LEN(v)) /* output before the start */
            send_output(h.request, 1, 0, 0);
        else
            send_spawn_reply(h.request, 8192, 0, fds, 2);
        if (i < ARRAY_LEN(v)) {
            send_output(h.request, v[i][0], v[i][1], v[i][2]);
        } else if (i > ARRAY_LEN(v)) { /* backwards */
            send_output(h.request, 100, 0, 0);
            send_output(h.request, 99, 0, 0);
        }
        assert_true(world_wait(&w, &c.over, AWAIT_MS));
        assert_true(c.failed);
        assert_int_equal(c.st.code, LINK_BROKEN);
        (void)close(fds[0]);
        (void)close(fds[1]);
        hang_up();
    }
    assert_int_equal(open_fds(), before);
}

struct opened_sandbox {
    bool done;
    int fd;
    struct file_sink *sink;
    struct link_status st;
};
static void on_opened(void *arg, const struct link_status *st, int fd, const struct file_info *i)
{
    struct opened_sandbox *b = arg;
    (void)i;
    b->st = *st;
    b->fd = fd;
    b->done = true;
}
static void on_dialed(void *arg, const struct link_status *st, int fd) { on_opened(arg, st, fd, NULL); }

/* A file that is a device, a socket that is not TCP. */
static void bad_files(void **state)
{
    (void)state;
    unsigned before = open_fds();
    for (int i = 0; i < 5; i++) {
        struct opened_sandbox b = {.fd = -1};
        unsigned char msg[512];
        int pair[2], fd;
        if (i < 3)
            (void)files_open(w.links, WORLD_ID, NULL, "f", on_opened, &b);
        else
            (void)link_dial(w.links, WORLD_ID, 80, on_dialed, &b);
        struct init_head h = next_request();
        assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
        fd = i == 0   ? open("/dev/zero", O_RDONLY | O_CLOEXEC)
             : i == 1 ? open("/etc/passwd", O_PATH | O_CLOEXEC)
             : i == 4 ? open("/etc/passwd", O_RDONLY | O_CLOEXEC)
                      : dup(pair[0]);
        struct wire_out o = {.p = msg + sizeof h, .cap = 400};
        struct init_info info = {.name = "f", .path = "/f", .owner = "u", .group = "g", .type = 1};
        wire_put_u32(&o, 0);
        wire_put_str(&o, "");
        if (i < 3)
            init_put_info(&o, &info);
        h = (struct init_head){.version = 1, .type = INIT_REPLY, .request = h.request, .length = (uint32_t)o.n};
        memcpy(msg, &h, sizeof h);
        assert_int_equal(fd_send(peer, msg, sizeof h + o.n, &fd, 1), 0);
        assert_true(world_wait(&w, &b.done, AWAIT_MS));
        assert_int_equal(b.st.code, LINK_BROKEN);
        assert_int_equal(b.fd, -1);
        (void)close(fd);
        (void)close(pair[0]);
        (void)close(pair[1]);
        hang_up();
    }
    assert_int_equal(open_fds(), before);
}

static void on_created(void *arg, const struct link_status *st, struct file_sink *sink, const struct file_info *i)
{
    on_opened(arg, st, -1, i);
    ((struct opened_sandbox *)arg)->sink = sink;
}
static void on_sunk(void *arg, const struct link_status *st) { on_opened(arg, st, -1, NULL); }

/* The helper that takes a file's bytes: no socket, nonsense, too much, an early OK, no word at all. */
static void bad_sinks(void **state)
{
    (void)state;
    static const char zeros[4096];
    static const struct {
        const char *say;
        size_t n;
        bool finish;
        enum link_code code;
    } v[] = {{NULL, 0, false, LINK_BROKEN},    {"x", 1, true, LINK_BROKEN}, {OK_BODY "x", 10, true, LINK_BROKEN},
             {OK_BODY, 9, false, LINK_BROKEN}, {OK_BODY, 9, true, LINK_OK}, {zeros, sizeof zeros, true, LINK_BROKEN},
             {"", 0, true, LINK_GONE}};
    unsigned before = open_fds();
    for (size_t i = 0; i < ARRAY_LEN(v); i++) {
        struct opened_sandbox b = {.fd = -1};
        unsigned char msg[512];
        int pair[2];
        (void)files_create(w.links, WORLD_ID, NULL, "f", NULL, 0, on_created, &b);
        struct init_head h = next_request();
        assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
        if (!v[i].say) {
            (void)close(pair[0]);
            pair[0] = open("/etc/passwd", O_RDONLY | O_CLOEXEC);
        }
        struct wire_out o = {.p = msg + sizeof h, .cap = 400};
        struct init_info info = {.name = "f", .path = "/f", .owner = "u", .group = "g", .type = 1};
        wire_put_u32(&o, 0);
        wire_put_str(&o, "");
        init_put_info(&o, &info);
        h = (struct init_head){.version = 1, .type = INIT_REPLY, .request = h.request, .length = (uint32_t)o.n};
        memcpy(msg, &h, sizeof h);
        assert_int_equal(fd_send(peer, msg, sizeof h + o.n, pair, 1), 0);
        (void)close(pair[0]);
        assert_true(world_wait(&w, &b.done, AWAIT_MS));
        if (v[i].say) {
            assert_int_equal(b.st.code, LINK_OK);
            b.done = false;
            if (v[i].finish)
                sink_finish(b.sink, on_sunk, &b);
            assert_int_equal(send(pair[1], v[i].say, v[i].n, MSG_NOSIGNAL), v[i].n);
            (void)close(pair[1]);
            turn(5);
            if (v[i].code == LINK_GONE)
                hang_up(); /* it is asked whether it lives */
            if (!v[i].finish)
                sink_write(b.sink, "x", 1, on_sunk, &b);
            assert_true(world_wait(&w, &b.done, AWAIT_MS));
            sink_free(b.sink);
        } else {
            (void)close(pair[1]);
        }
        assert_int_equal(b.st.code, v[i].code);
        if (peer >= 0)
            hang_up();
        turn(5);
    }
    assert_int_equal(open_fds(), before);
}

/* Cancelled and detached calls: late answers are swallowed, their descriptors closed. */
static void late_answers(void **state)
{
    (void)state;
    unsigned before = open_fds();
    struct opened_sandbox b = {.fd = -1};
    struct capture c = {0};
    struct exec_spec s = {.cmd = "x"};
    link_call call = files_open(w.links, WORLD_ID, NULL, "f", on_opened, &b);
    struct init_head h = next_request();
    link_cancel(w.links, call);
    unsigned char msg[64];
    int fd = open("/etc/passwd", O_RDONLY | O_CLOEXEC);
    h = (struct init_head){.version = 1, .type = INIT_REPLY, .request = h.request, .length = 9};
    memcpy(msg, &h, sizeof h);
    memcpy(msg + sizeof h, OK_BODY, 9);
    assert_int_equal(fd_send(peer, msg, sizeof h + 9, &fd, 1), 0);
    turn(5);
    assert_false(b.done);
    (void)close(fd);
    int fds[2] = {sealed(8192, F_SEAL_GROW | F_SEAL_SHRINK), sealed(8192, F_SEAL_GROW | F_SEAL_SHRINK)};
    c.x = exec_start(w.links, WORLD_ID, &s, &capture_ops, &c);
    h = next_request();
    exec_detach(c.x);
    send_spawn_reply(h.request, 8192, 0, fds, 2);
    send_output(h.request, 10, 0, 0);
    turn(5);
    assert_false(c.started || c.over);
    struct init_head closed = {.version = 1, .type = INIT_CLOSED, .request = h.request};
    assert_int_equal(fd_send(peer, &closed, sizeof closed, NULL, 0), 0);
    turn(5);
    (void)close(fds[0]);
    (void)close(fds[1]);
    hang_up();
    turn(5);
    assert_int_equal(open_fds(), before);
}

static void nobody_there(void **state)
{
    (void)state;
    struct status_sandbox b = {0}, odd = {0};
    (void)link_hello(w.links, "no-such-box", status_done, &b);
    (void)link_hello(w.links, "../../etc/x", status_done, &odd);
    assert_false(b.done || odd.done);
    assert_true(world_wait(&w, &b.done, AWAIT_MS) && b.st.code == LINK_GONE);
    assert_true(world_wait(&w, &odd.done, AWAIT_MS) && odd.st.code == LINK_GONE);
    /* It accepts and says nothing. */
    b.done = false;
    (void)link_hello(w.links, WORLD_ID, status_done, &b);
    (void)next_request();
    assert_true(world_wait(&w, &b.done, AWAIT_MS));
    assert_int_equal(b.st.code, LINK_TIMEOUT);
    /* It dies. */
    b.done = false;
    (void)link_hello(w.links, WORLD_ID, status_done, &b);
    (void)next_request();
    hang_up();
    assert_true(world_wait(&w, &b.done, AWAIT_MS));
    assert_int_equal(b.st.code, LINK_GONE);
    b.done = false;
    (void)link_hello(w.links, WORLD_ID, status_done, &b);
    links_gone(w.links, WORLD_ID);
    assert_true(b.done);
    assert_int_equal(b.st.code, LINK_GONE);
}

/* A callback that ends everything must not be outlived by the link. */
static void gone_from_inside(void *arg, const struct link_status *st)
{
    status_done(arg, st);
    links_gone(w.links, WORLD_ID);
}
static void from_inside(void **state)
{
    (void)state;
    struct status_sandbox a = {0}, b = {0};
    unsigned char msg[64];
    struct exec_select who = {.pid = 1};
    (void)exec_signal(w.links, WORLD_ID, &who, 9, gone_from_inside, &a);
    (void)exec_signal(w.links, WORLD_ID, &who, 9, status_done, &b);
    struct init_head h = next_request();
    h = (struct init_head){.version = 1, .type = INIT_REPLY, .request = h.request, .length = 9};
    memcpy(msg, &h, sizeof h);
    memcpy(msg + sizeof h, OK_BODY, 9);
    assert_int_equal(fd_send(peer, msg, sizeof h + 9, NULL, 0), 0);
    assert_true(world_wait(&w, &b.done, AWAIT_MS));
    assert_int_equal(a.st.code, LINK_OK);
    assert_int_equal(b.st.code, LINK_GONE);
    hang_up();
}

/* An unused connection goes after five seconds. */
static void idle(void **state)
{
    (void)state;
    struct status_sandbox b = {0};
    unsigned char msg[64];
    struct exec_select who = {.pid = 1};
    int64_t since = await_now();
    (void)exec_signal(w.links, WORLD_ID, &who, 9, status_done, &b);
    struct init_head h = next_request();
    h = (struct init_head){.version = 1, .type = INIT_REPLY, .request = h.request, .length = 9};
    memcpy(msg, &h, sizeof h);
    memcpy(msg + sizeof h, OK_BODY, 9);
    assert_int_equal(fd_send(peer, msg, sizeof h + 9, NULL, 0), 0);
    assert_true(world_wait(&w, &b.done, AWAIT_MS));
    bool never = false;
    (void)world_wait(&w, &never, 3000);
    ssize_t n = recv(peer, msg, 1, 0);
    if (await_now() - since < 5) /* a machine that stood still says nothing */
        assert_true(n < 0 && errno == EAGAIN);
    AWAIT (n == 0) {
        (void)world_wait(&w, &never, 50);
        n = recv(peer, msg, 1, 0);
    }
    assert_int_equal(n, 0);
    hang_up();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lies),        cmocka_unit_test(bad_rings),    cmocka_unit_test(bad_offsets),
        cmocka_unit_test(bad_files),   cmocka_unit_test(late_answers), cmocka_unit_test(nobody_there),
        cmocka_unit_test(from_inside), cmocka_unit_test(idle),         cmocka_unit_test(bad_sinks),
    };
    return cmocka_run_group_tests(tests, up, down);
}
