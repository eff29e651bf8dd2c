/* The transport between our own processes: the same tests over packets and over a byte stream. */
#include <errno.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/mem.h"
#include "rpc/caller.h"
#include "tests/lib/unit.h"

enum { MESSAGE = 20000, QUEUE = 400000, FDS = 2 };

static const struct channel_limits limits_of[] = {
    [CHANNEL_PACKET] = {.kind = CHANNEL_PACKET, .message_max = MESSAGE, .queue_max = QUEUE, .fds_max = FDS},
    [CHANNEL_STREAM] = {.kind = CHANNEL_STREAM, .message_max = MESSAGE, .queue_max = QUEUE},
};

/* --- two channels ------------------------------------------------------------------------------------------------- */

struct pair {
    enum channel_kind kind;
    struct channel a, b;
    unsigned char *out, *in; /* rooms of b */
};

static int pair_setup(void **state, enum channel_kind kind)
{
    struct pair *t = xcalloc(1, sizeof *t);
    int fds[2];
    int type = kind == CHANNEL_STREAM ? SOCK_STREAM : SOCK_SEQPACKET;
    assert_int_equal(socketpair(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds), 0);
    t->kind = kind;
    t->out = xmalloc(QUEUE);
    t->in = xmalloc(MESSAGE + FRAME_HEAD);
    channel_init(&t->a, &limits_of[kind], NULL, NULL);
    channel_init(&t->b, &limits_of[kind], t->out, t->in);
    channel_open(&t->a, fds[0]);
    channel_open(&t->b, fds[1]);
    *state = t;
    return 0;
}
static int packet_setup(void **state) { return pair_setup(state, CHANNEL_PACKET); }
static int stream_setup(void **state) { return pair_setup(state, CHANNEL_STREAM); }

static int pair_teardown(void **state)
{
    struct pair *t = *state;
    channel_close(&t->a);
    channel_close(&t->b);
    free(t->out);
    free(t->in);
    free(t);
    return 0;
}

static unsigned descriptors(void)
{
    unsigned n = 0;
    for (int fd = 0; fd < 1024; fd++)
        n += fcntl(fd, F_GETFD) >= 0;
    return n;
}

/* A message that says which one it is. */
static void fill(unsigned char *p, size_t n, unsigned which)
{
    for (size_t i = 0; i < n; i++)
        p[i] = (unsigned char)(which + i * 7);
}

/* Receives a message; a stream may need several reads. */
static enum channel_got get(struct channel *c, struct channel_message *m)
{
    enum channel_got got = CHANNEL_NONE;
    for (int i = 0; i < 100 && got == CHANNEL_NONE; i++)
        got = channel_recv(c, m);
    return got;
}

static void expect(struct channel *c, size_t n, unsigned which)
{
    static unsigned char want[MESSAGE];
    struct channel_message m;
    assert_int_equal(get(c, &m), CHANNEL_MESSAGE);
    assert_int_equal(m.n, n);
    fill(want, n, which);
    assert_memory_equal(m.p, want, n);
    channel_message_done(&m);
}

static void put(struct channel *c, size_t n, unsigned which)
{
    static unsigned char bytes[MESSAGE];
    fill(bytes, n, which);
    assert_int_equal(channel_send(c, bytes, n, NULL, 0), 0);
}

static void test_messages_arrive_whole_and_in_order(void **state)
{
    struct pair *t = *state;
    struct channel_message m;
    assert_int_equal(channel_recv(&t->a, &m), CHANNEL_NONE);
    put(&t->a, 1, 1);
    put(&t->a, MESSAGE, 2);
    put(&t->a, 77, 3);
    put(&t->b, 5, 4);
    expect(&t->b, 1, 1);
    expect(&t->b, MESSAGE, 2);
    expect(&t->b, 77, 3);
    expect(&t->a, 5, 4);
    assert_int_equal(channel_recv(&t->a, &m), CHANNEL_NONE);
    assert_int_equal(channel_recv(&t->b, &m), CHANNEL_NONE);
}

static void test_length_is_limited(void **state)
{
    struct pair *t = *state;
    static unsigned char long_one[MESSAGE + 1];
    assert_int_equal(channel_send(&t->a, long_one, sizeof long_one, NULL, 0), -1);
    assert_int_equal(errno, EMSGSIZE);
    assert_int_equal(channel_send(&t->a, "", 0, NULL, 0), -1);
    assert_int_equal(errno, EINVAL);
    put(&t->a, 3, 1);
    expect(&t->b, 3, 1);
}

/* From a peer with other limits than ours. */
static void test_a_message_too_long_breaks_the_channel(void **state)
{
    struct pair *t = *state;
    struct channel_message m;
    static const unsigned char more[2 * MESSAGE];
    struct channel_limits wide = limits_of[t->kind];
    wide.message_max = sizeof more;
    t->a.limits = &wide;
    assert_int_equal(channel_send(&t->a, more, MESSAGE + 1, NULL, 0), 0);
    assert_int_equal(get(&t->b, &m), CHANNEL_BROKEN);
    assert_int_equal(errno, EMSGSIZE);
    if (t->kind == CHANNEL_STREAM) { /* where would the next one begin? */
        assert_int_equal(channel_send(&t->a, "x", 1, NULL, 0), 0);
        assert_int_equal(get(&t->b, &m), CHANNEL_BROKEN);
    }
}

static void test_descriptors_go_along_with_packets_only(void **state)
{
    struct pair *t = *state;
    struct channel_message m;
    struct stat of, got;
    unsigned before = descriptors();
    int fds[FDS] = {open("/dev/null", O_RDONLY | O_CLOEXEC), open("/dev/zero", O_RDONLY | O_CLOEXEC)};
    int r = channel_send(&t->a, "two", 3, fds, FDS);
    if (t->kind == CHANNEL_STREAM) {
        assert_int_equal(r, -1);
        assert_int_equal(errno, EINVAL);
    } else {
        assert_int_equal(r, 0);
        assert_int_equal(get(&t->b, &m), CHANNEL_MESSAGE);
        assert_int_equal(m.nfds, FDS);
        assert_int_equal(fstat(fds[1], &of), 0);
        assert_int_equal(fstat(m.fds[1], &got), 0);
        assert_int_equal(of.st_rdev, got.st_rdev);
        assert_true(fcntl(m.fds[0], F_GETFD) & FD_CLOEXEC);
        (void)close(TAKE_FD(m.fds[0]));
        channel_message_done(&m);
    }
    (void)close(fds[0]);
    (void)close(fds[1]);
    assert_int_equal(descriptors(), before);
}

/* More than the receiver has room for, or any over a stream: control data is cut off, and nothing leaks. */
static void test_too_many_descriptors_break_the_channel(void **state)
{
    struct pair *t = *state;
    struct channel_message m;
    int fds[FDS + 1];
    for (int i = 0; i <= FDS; i++)
        fds[i] = open("/dev/null", O_RDONLY | O_CLOEXEC);
    unsigned before = descriptors();
    assert_int_equal(fd_send(t->a.fd, "\1\0\0\0x", 5, fds, t->kind == CHANNEL_STREAM ? 1 : FDS + 1), 0);
    assert_int_equal(get(&t->b, &m), CHANNEL_BROKEN);
    assert_int_equal(errno, EBADMSG);
    assert_int_equal(m.nfds, 0);
    assert_int_equal(descriptors(), before);
    for (int i = 0; i <= FDS; i++)
        (void)close(fds[i]);
}

static void shrink(int fd)
{
    int small = 12000; /* the kernel doubles it: one message fits */
    assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &small, sizeof small), 0);
}

/* A peer that does not read: what the socket does not take waits, and arrives in order, with descriptors. */
static void full_socket(struct pair *t, struct channel *from, struct channel *to)
{
    struct channel_message m;
    unsigned sent = 0, got = 0, with_fd = 0, before = descriptors();
    int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
    shrink(from->fd);
    for (; sent < 30; sent++) {
        unsigned char bytes[3000];
        fill(bytes, sizeof bytes, sent);
        size_t nfds = t->kind == CHANNEL_PACKET && sent % 3 == 0;
        with_fd += nfds > 0;
        assert_int_equal(channel_send(from, bytes, sizeof bytes, &null, nfds), 0);
    }
    (void)close(null);
    assert_true(channel_waits(from));
    assert_true(channel_queued(from) > 3000);
    for (; got < sent; got++) {
        unsigned char want[3000];
        assert_int_equal(channel_flush(from), 0);
        enum channel_got g = channel_recv(to, &m);
        while (g == CHANNEL_NONE && channel_flush(from) == 0)
            g = channel_recv(to, &m);
        assert_int_equal(g, CHANNEL_MESSAGE);
        fill(want, sizeof want, got);
        assert_int_equal(m.n, sizeof want);
        assert_memory_equal(m.p, want, sizeof want);
        with_fd -= (unsigned)m.nfds;
        channel_message_done(&m);
    }
    assert_false(channel_waits(from));
    assert_int_equal(with_fd, 0);
    assert_int_equal(descriptors(), before);
}

static void test_a_full_socket_loses_nothing(void **state)
{
    struct pair *t = *state;
    full_socket(t, &t->a, &t->b);
    full_socket(t, &t->b, &t->a); /* with rooms of the owner */
    full_socket(t, &t->b, &t->a); /* round the ring */
}

static void test_the_queue_is_bounded(void **state)
{
    struct pair *t = *state;
    static const unsigned char bytes[MESSAGE];
    unsigned before = descriptors(), n = 0;
    int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
    shrink(t->b.fd);
    while (channel_send(&t->b, bytes, sizeof bytes, &null, t->kind == CHANNEL_PACKET) == 0)
        assert_true(++n < 1000);
    assert_int_equal(errno, ENOBUFS);
    assert_true(channel_queued(&t->b) <= QUEUE && channel_queued(&t->b) > QUEUE - 2 * MESSAGE);
    (void)close(null);
    channel_close(&t->b); /* with what waits, and its descriptors */
    assert_int_equal(descriptors(), before - 1);
    assert_false(channel_waits(&t->b));
}

static void test_messages_wait_for_the_connection(void **state)
{
    struct pair *t = *state;
    int fd = TAKE_FD(t->a.fd);
    put(&t->a, 10, 1);
    put(&t->a, 20, 2);
    assert_true(channel_waits(&t->a));
    assert_int_equal(channel_flush(&t->a), 0);
    assert_true(channel_waits(&t->a));
    channel_open(&t->a, fd);
    put(&t->a, 30, 3); /* behind them */
    assert_int_equal(channel_flush(&t->a), 0);
    expect(&t->b, 10, 1);
    expect(&t->b, 20, 2);
    expect(&t->b, 30, 3);
}

static void test_queued_messages_leave_with_the_next_flush(void **state)
{
    struct pair *t = *state;
    struct channel_message m;
    assert_int_equal(channel_queue(&t->a, "abc", 3, NULL, 0), 0);
    assert_int_equal(channel_recv(&t->b, &m), CHANNEL_NONE);
    assert_int_equal(channel_flush(&t->a), 0);
    assert_int_equal(get(&t->b, &m), CHANNEL_MESSAGE);
    assert_memory_equal(m.p, "abc", 3);
}

static void test_the_end_comes_after_what_was_sent(void **state)
{
    struct pair *t = *state;
    struct channel_message m;
    put(&t->a, 9, 1);
    channel_close(&t->a);
    expect(&t->b, 9, 1);
    assert_int_equal(get(&t->b, &m), CHANNEL_ENDED);
    assert_int_equal(errno, 0);
    assert_int_equal(channel_send(&t->b, "x", 1, NULL, 0), -1);
    assert_int_equal(errno, EPIPE);
}

/* --- what only a stream can do ------------------------------------------------------------------------------------ */

static void test_frames_arrive_byte_by_byte(void **state)
{
    struct pair *t = *state;
    static const unsigned char bytes[] = "\3\0\0\0abc\1\0\0\0d";
    struct channel_message m;
    unsigned n = 0;
    for (size_t i = 0; i < sizeof bytes - 1; i++) {
        assert_int_equal(send(t->a.fd, bytes + i, 1, 0), 1);
        if (channel_recv(&t->b, &m) == CHANNEL_MESSAGE)
            assert_int_equal(m.n, n++ == 0 ? 3 : 1);
    }
    assert_int_equal(n, 2);
}

static void test_several_frames_in_one_read(void **state)
{
    struct pair *t = *state;
    struct channel_message m;
    assert_int_equal(send(t->a.fd, "\1\0\0\0a\1\0\0\0b\1\0", 12, 0), 12);
    assert_int_equal(channel_recv(&t->b, &m), CHANNEL_MESSAGE);
    assert_true(channel_is_ready(&t->b)); /* though the socket is empty */
    assert_int_equal(channel_recv(&t->b, &m), CHANNEL_MESSAGE);
    assert_int_equal(m.p[0], 'b');
    assert_false(channel_is_ready(&t->b));
}

static void test_a_frame_of_nothing_breaks_the_channel(void **state)
{
    struct pair *t = *state;
    struct channel_message m;
    assert_int_equal(send(t->a.fd, "\0\0\0\0\1\0\0\0x", 9, 0), 9);
    assert_int_equal(get(&t->b, &m), CHANNEL_BROKEN);
    assert_int_equal(errno, EBADMSG);
    assert_int_equal(get(&t->b, &m), CHANNEL_BROKEN);
}

/* --- a caller ----------------------------------------------------------------------------------------------------- */

struct scene {
    enum channel_kind kind;
    char dir[32];
    int run, listener;
    struct channel conn; /* of the played server */
    struct loop *loop;
    struct caller *caller;
    struct caller_spec spec;
    unsigned up, down, messages, failed, drained;
    enum caller_why why;
    bool hold, spent, refuse;
    char last[16];
    uint64_t now;
};

static void on_up(void *arg) { ((struct scene *)arg)->up++; }
static void on_down(void *arg, const char *why)
{
    assert_true(why[0] != '\0');
    ((struct scene *)arg)->down++;
}
static bool on_message(void *arg, struct channel_message *m)
{
    struct scene *s = arg;
    s->messages++;
    (void)snprintf(s->last, sizeof s->last, "%.*s", (int)m->n, (const char *)m->p);
    return !s->refuse;
}
static void on_failed(void *arg, struct caller_call *c)
{
    struct scene *s = arg;
    s->failed++;
    s->why = c->why;
    free(c);
}
static bool may_send(void *arg, const struct caller_call *c)
{
    (void)c;
    return !((struct scene *)arg)->hold;
}
static bool may_repeat(void *arg, const struct caller_call *c)
{
    (void)c;
    return !((struct scene *)arg)->spent;
}
static uint64_t clock_of(void *arg) { return ((struct scene *)arg)->now; }

static void listen_here(struct scene *s)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    int type = s->kind == CHANNEL_STREAM ? SOCK_STREAM : SOCK_SEQPACKET;
    (void)snprintf(a.sun_path, sizeof a.sun_path, "%s/x.sock", s->dir);
    (void)unlink(a.sun_path);
    s->listener = socket(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    assert_int_equal(bind(s->listener, (const struct sockaddr *)&a, sizeof a), 0);
    assert_int_equal(listen(s->listener, 4), 0);
}

static void steps(struct scene *s, int n)
{
    struct err err = {0};
    while (n-- > 0) {
        s->now += 50;
        assert_int_equal(loop_step(s->loop, 0, &err), 0);
    }
}

static void accept_one(struct scene *s)
{
    steps(s, 3);
    int fd = accept4(s->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    assert_true(fd >= 0);
    channel_open(&s->conn, fd);
}

static int scene_setup(void **state, enum channel_kind kind)
{
    struct err err = {0};
    struct scene *s = xcalloc(1, sizeof *s);
    s->kind = kind;
    (void)snprintf(s->dir, sizeof s->dir, "/tmp/hutch-rpc.XXXXXX");
    assert_non_null(mkdtemp(s->dir));
    s->run = open(s->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    s->now = 1000;
    assert_int_equal(loop_new(&s->loop, &err), 0);
    loop_set_clock(s->loop, clock_of, s);
    listen_here(s);
    s->spec = (struct caller_spec){.socket = "x.sock",
                                   .limits = limits_of[kind],
                                   .calls_max = 3,
                                   .away_ms = 5000,
                                   .ops = {.up = on_up,
                                           .down = on_down,
                                           .message = on_message,
                                           .failed = on_failed,
                                           .may_send = may_send,
                                           .may_repeat = may_repeat}};
    channel_init(&s->conn, &limits_of[kind], NULL, NULL);
    s->caller = caller_new(s->loop, &s->spec, s->run, s);
    accept_one(s);
    assert_int_equal(s->up, 1);
    *state = s;
    return 0;
}
static int packet_scene(void **state) { return scene_setup(state, CHANNEL_PACKET); }
static int stream_scene(void **state) { return scene_setup(state, CHANNEL_STREAM); }

static int scene_teardown(void **state)
{
    struct scene *s = *state;
    for (struct caller_call *c; (c = caller_first(s->caller));)
        free(caller_take(s->caller, c->request));
    caller_free(s->caller);
    loop_free(s->loop);
    channel_close(&s->conn);
    (void)close(s->listener);
    (void)unlinkat(s->run, "x.sock", 0);
    (void)close(s->run);
    (void)rmdir(s->dir);
    free(s);
    return 0;
}

static uint64_t ask(struct scene *s, const char *text, uint64_t due_ms)
{
    struct caller_call *c = xcalloc(1, sizeof *c);
    *c = (struct caller_call){
        .message = text, .size = strlen(text), .due_ms = due_ms, .request = caller_number(s->caller)};
    caller_add(s->caller, c);
    return c->request;
}

static void asked(struct scene *s, const char *text)
{
    struct channel_message m;
    steps(s, 1);
    assert_int_equal(get(&s->conn, &m), CHANNEL_MESSAGE);
    assert_int_equal(m.n, strlen(text));
    assert_memory_equal(m.p, text, m.n);
}

static void test_caller_sends_and_receives(void **state)
{
    struct scene *s = *state;
    uint64_t one = ask(s, "one", 0), two = ask(s, "two", 0);
    assert_true(one != 0 && two != one);
    asked(s, "one");
    asked(s, "two");
    assert_int_equal(channel_send(&s->conn, "yes", 3, NULL, 0), 0);
    steps(s, 2);
    assert_int_equal(s->messages, 1);
    assert_string_equal(s->last, "yes");
    assert_null(caller_find(s->caller, 77));
    struct caller_call *c = caller_take(s->caller, one);
    assert_ptr_equal(caller_first(s->caller), caller_find(s->caller, two));
    assert_int_equal(caller_count(s->caller), 1);
    free(c);
}

static void test_caller_repeats_over_the_next_connection(void **state)
{
    struct scene *s = *state;
    (void)ask(s, "one", 0);
    asked(s, "one");
    channel_close(&s->conn);
    steps(s, 1);
    assert_int_equal(s->down, 1);
    (void)ask(s, "two", 0); /* while nothing is connected */
    accept_one(s);
    assert_int_equal(s->up, 2);
    asked(s, "one");
    asked(s, "two");
}

static void test_caller_does_not_repeat_what_is_spent(void **state)
{
    struct scene *s = *state;
    s->spent = true;
    (void)ask(s, "one", 0);
    asked(s, "one");
    channel_close(&s->conn);
    steps(s, 3);
    assert_int_equal(s->failed, 1);
    assert_int_equal(s->why, CALLER_SPENT);
}

static void test_caller_calls_fail_in_time(void **state)
{
    struct scene *s = *state;
    (void)ask(s, "late", s->now + 2000);
    (void)ask(s, "patient", 0);
    steps(s, 30);
    assert_int_equal(s->failed, 0);
    steps(s, 40);
    assert_int_equal(s->failed, 1);
    assert_int_equal(s->why, CALLER_LATE);
    (void)close(s->listener);
    channel_close(&s->conn);
    steps(s, 60);
    assert_int_equal(s->failed, 1);
    steps(s, 80);
    assert_int_equal(s->failed, 2);
    assert_int_equal(s->why, CALLER_AWAY);
}

static void test_caller_has_room_for_so_many(void **state)
{
    struct scene *s = *state;
    s->hold = true;
    for (int i = 0; i < 4; i++)
        (void)ask(s, "held", 0);
    assert_int_equal(s->failed, 0); /* never inside a call of its user */
    steps(s, 1);
    assert_int_equal(s->failed, 1);
    assert_int_equal(s->why, CALLER_FULL);
    s->hold = false;
    (void)channel_send(&s->conn, "go", 2, NULL, 0);
    steps(s, 2);
    asked(s, "held");
    asked(s, "held");
    asked(s, "held");
}

static void test_caller_leaves_a_peer_that_speaks_nonsense(void **state)
{
    struct scene *s = *state;
    s->refuse = true;
    assert_int_equal(channel_send(&s->conn, "?", 1, NULL, 0), 0);
    steps(s, 1);
    assert_int_equal(s->down, 1);
    channel_close(&s->conn);
    accept_one(s);
    assert_int_equal(s->up, 2);
}

static void test_caller_posts(void **state)
{
    struct scene *s = *state;
    caller_post(s->caller, "a", 1);
    caller_post(s->caller, "b", 1);
    assert_int_equal(caller_queued(s->caller) > 0, s->kind == CHANNEL_STREAM);
    asked(s, "a");
    asked(s, "b");
    caller_drop(s->caller, "for fun");
    assert_false(caller_is_up(s->caller));
    caller_post(s->caller, "lost", 4);
    assert_int_equal(caller_queued(s->caller), 0);
}

#define BOTH(fn) \
    {"packet_" #fn, fn, packet_setup, pair_teardown, NULL}, { "stream_" #fn, fn, stream_setup, pair_teardown, NULL }
#define STREAM(fn) cmocka_unit_test_setup_teardown(fn, stream_setup, pair_teardown)
#define CALLER(fn) \
    {"packet_" #fn, fn, packet_scene, scene_teardown, NULL}, { "stream_" #fn, fn, stream_scene, scene_teardown, NULL }

int main(void)
{
    const struct CMUnitTest tests[] = {
        BOTH(test_messages_arrive_whole_and_in_order),
        BOTH(test_length_is_limited),
        BOTH(test_a_message_too_long_breaks_the_channel),
        BOTH(test_descriptors_go_along_with_packets_only),
        BOTH(test_too_many_descriptors_break_the_channel),
        BOTH(test_a_full_socket_loses_nothing),
        BOTH(test_the_queue_is_bounded),
        BOTH(test_messages_wait_for_the_connection),
        BOTH(test_queued_messages_leave_with_the_next_flush),
        BOTH(test_the_end_comes_after_what_was_sent),
        STREAM(test_frames_arrive_byte_by_byte),
        STREAM(test_several_frames_in_one_read),
        STREAM(test_a_frame_of_nothing_breaks_the_channel),
        CALLER(test_caller_sends_and_receives),
        CALLER(test_caller_repeats_over_the_next_connection),
        CALLER(test_caller_does_not_repeat_what_is_spent),
        CALLER(test_caller_calls_fail_in_time),
        CALLER(test_caller_has_room_for_so_many),
        CALLER(test_caller_leaves_a_peer_that_speaks_nonsense),
        CALLER(test_caller_posts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
