/* Tickets of init over a byte stream, against a front that lies, waits too long or wants too much. */
#include <errno.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "await.h"
#include "init-world.h"
#include "init/wire.h"
#include "rpc/frame.h"
#include "tests/lib/unit.h"

static struct world w;

static int up(void **state)
{
    (void)state;
    world_socket_type = SOCK_STREAM;
    return world_up(&w, false);
}

static int down(void **state)
{
    (void)state;
    world_stop(&w);
    return 0;
}

static int raw_connect(void)
{
    struct sockaddr_un sa = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct timeval t = {.tv_sec = AWAIT_S};
    (void)setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof t);
    (void)snprintf(sa.sun_path, sizeof sa.sun_path, "%s/%s.sock", w.dir, WORLD_ID);
    assert_int_equal(connect(fd, (struct sockaddr *)&sa, sizeof sa), 0);
    return fd;
}

static void raw_send(int fd, uint16_t type, uint64_t request, const void *body, size_t n)
{
    unsigned char msg[512];
    struct init_head h = {.version = INIT_VERSION, .type = type, .request = request, .length = (uint32_t)n};
    frame_put_head(msg, sizeof h + n);
    memcpy(msg + FRAME_HEAD, &h, sizeof h);
    if (n)
        memcpy(msg + FRAME_HEAD + sizeof h, body, n);
    assert_int_equal(send(fd, msg, FRAME_HEAD + sizeof h + n, MSG_NOSIGNAL), FRAME_HEAD + sizeof h + n);
}

/* One answer: its code, or -1 at the end of the connection. */
static int raw_answer(int fd, struct init_head *ret, struct init_ticket *ticket)
{
    static unsigned char msg[INIT_MSG_MAX];
    uint32_t n, code;
    if (recv(fd, &n, sizeof n, MSG_WAITALL) != sizeof n)
        return -1;
    assert_true(n >= sizeof *ret + sizeof code && n <= sizeof msg);
    assert_int_equal(recv(fd, msg, n, MSG_WAITALL), n);
    memcpy(ret, msg, sizeof *ret);
    memcpy(&code, msg + sizeof *ret, sizeof code);
    if (ret->flags & INIT_F_TICKET) {
        assert_true(n >= sizeof *ret + sizeof *ticket);
        memcpy(ticket, msg + n - sizeof *ticket, sizeof *ticket);
    }
    return (int)code;
}

/* Asks for a file: the code of the answer. */
static int raw_open(int fd, uint64_t request, const char *path, struct init_ticket *ret)
{
    unsigned char body[256];
    struct wire_out o = {.p = body, .cap = sizeof body};
    struct init_head h;
    wire_put_str(&o, "");
    wire_put_str(&o, path);
    raw_send(fd, INIT_OPEN, request, body, o.n);
    int code = raw_answer(fd, &h, ret);
    assert_true(code != INIT_OK || (h.flags == INIT_F_TICKET && h.request == request));
    return code;
}

/* A connection that asks to be what the ticket stands for, and the code of the answer. */
static int raw_take(uint64_t request, const struct init_ticket *t, int *ret_fd)
{
    struct init_head h;
    int fd = raw_connect();
    raw_send(fd, INIT_TAKE, request, t->secret, sizeof t->secret);
    int code = raw_answer(fd, &h, NULL);
    assert_int_equal(h.flags, 0);
    if (ret_fd)
        *ret_fd = fd;
    else
        (void)close(fd);
    return code;
}

static void taken_once(void **state)
{
    (void)state;
    struct init_ticket t, wrong;
    char text[64] = "", c;
    int fd, front = raw_connect();
    assert_int_equal(raw_open(front, 7, "/etc/group", &t), INIT_OK);
    assert_int_equal(t.kind, INIT_TICKET_FILE);
    wrong = t;
    wrong.secret[INIT_SECRET_BYTES - 1] ^= 1;
    assert_int_equal(raw_take(7, &wrong, &fd), INIT_NOT_FOUND);
    assert_int_equal(recv(fd, &c, 1, 0), 0); /* one try for a connection */
    (void)close(fd);
    wrong = (struct init_ticket){0}; /* what a free place holds */
    assert_int_equal(raw_take(0x7, &wrong, NULL), INIT_NOT_FOUND);
    assert_int_equal(raw_take(8, &t, NULL), INIT_NOT_FOUND); /* that of another answer */
    assert_int_equal(raw_take(7, &t, &fd), INIT_OK);
    assert_int_equal(raw_take(7, &t, NULL), INIT_NOT_FOUND); /* used */
    assert_true(recv(fd, text, sizeof text - 1, MSG_WAITALL) > 0);
    assert_int_equal(strncmp(text, "root:x:0:\n", 10), 0);
    (void)close(fd);
    (void)close(front);
}

/* On a connection that asks, and with bytes behind it. */
static void taken_in_wrong_places(void **state)
{
    (void)state;
    struct init_ticket t;
    struct init_head h;
    int front = raw_connect();
    assert_int_equal(raw_open(front, 7, "/etc/group", &t), INIT_OK);
    raw_send(front, INIT_TAKE, 7, t.secret, sizeof t.secret);
    assert_int_equal(raw_answer(front, &h, NULL), INIT_STATE);
    unsigned char two[2 * (FRAME_HEAD + sizeof h + INIT_SECRET_BYTES)];
    h = (struct init_head){.version = INIT_VERSION, .type = INIT_TAKE, .request = 7, .length = INIT_SECRET_BYTES};
    for (size_t i = 0; i < 2; i++) {
        unsigned char *p = two + i * sizeof two / 2;
        frame_put_head(p, sizeof h + INIT_SECRET_BYTES);
        memcpy(p + FRAME_HEAD, &h, sizeof h);
        memcpy(p + FRAME_HEAD + sizeof h, t.secret, INIT_SECRET_BYTES);
    }
    int fd = raw_connect();
    assert_int_equal(send(fd, two, sizeof two, MSG_NOSIGNAL), sizeof two);
    assert_int_equal(raw_answer(fd, &h, NULL), INIT_NOT_FOUND);
    (void)close(fd);
    fd = raw_connect();
    raw_send(fd, INIT_TAKE, 7, t.secret, 4);
    assert_int_equal(raw_answer(fd, &h, NULL), INIT_NOT_FOUND);
    (void)close(fd);
    (void)close(front);
}

/* A ticket ends with the connection that it came over. */
static void gone_with_its_connection(void **state)
{
    (void)state;
    struct init_ticket t, other;
    struct init_head h;
    int front = raw_connect(), second = raw_connect();
    assert_int_equal(raw_open(front, 7, "/etc/group", &t), INIT_OK);
    assert_int_equal(raw_open(second, 7, "/etc/group", &other), INIT_OK);
    (void)close(front);
    raw_send(second, INIT_HELLO, 8, NULL, 0); /* init has seen the end before it answers, or soon after */
    assert_int_equal(raw_answer(second, &h, NULL), INIT_OK);
    (void)usleep(100000);
    assert_int_equal(raw_take(7, &t, NULL), INIT_NOT_FOUND);
    assert_int_equal(raw_take(7, &other, NULL), INIT_OK);
    (void)close(second);
}

static void too_many_tickets(void **state)
{
    (void)state;
    static struct init_ticket t[INIT_TICKETS_MAX + 1];
    int front = raw_connect();
    for (uint64_t i = 0; i < INIT_TICKETS_MAX; i++)
        assert_int_equal(raw_open(front, i + 1, "/etc/group", &t[i]), INIT_OK);
    assert_int_equal(raw_open(front, 900, "/etc/group", &t[INIT_TICKETS_MAX]), INIT_LIMIT);
    assert_int_equal(raw_take(1, &t[0], NULL), INIT_OK); /* makes room */
    assert_int_equal(raw_open(front, 901, "/etc/group", &t[0]), INIT_OK);
    (void)close(front);
}

static void expired(void **state)
{
    (void)state;
    struct init_ticket t;
    int front = raw_connect(), silent = raw_connect();
    char c;
    assert_int_equal(raw_open(front, 7, "/etc/group", &t), INIT_OK);
    (void)usleep((INIT_TICKET_MS + 500) * 1000);
    assert_int_equal(raw_take(7, &t, NULL), INIT_NOT_FOUND);
    assert_int_equal(recv(silent, &c, 1, 0), 0); /* a connection that says nothing goes, too */
    (void)close(silent);
    (void)close(front);
}

/* Each of these is a file that is longer than what the socket holds, and is not read. */
static void too_many_relays(void **state)
{
    (void)state;
    static int fds[INIT_RELAYS_MAX];
    struct init_ticket t;
    struct capture c;
    int last;
    world_sh(&w, "head -c 4000000 /dev/zero > /tmp/long", &c);
    assert_true(c.ended && c.end.code == 0);
    int front = raw_connect();
    for (uint64_t i = 0; i < INIT_RELAYS_MAX; i++) {
        assert_int_equal(raw_open(front, i + 1, "/tmp/long", &t), INIT_OK);
        assert_int_equal(raw_take(i + 1, &t, &fds[i]), INIT_OK);
    }
    assert_int_equal(raw_open(front, 900, "/tmp/long", &t), INIT_OK);
    assert_int_equal(raw_take(900, &t, NULL), INIT_LIMIT);
    for (size_t i = 0; i < INIT_RELAYS_MAX; i++)
        (void)close(fds[i]);
    int code = -1;
    AWAIT (code == INIT_OK) { /* until the helpers have ended */
        assert_int_equal(raw_open(front, 901, "/tmp/long", &t), INIT_OK);
        code = raw_take(901, &t, &last);
        (void)close(last);
    }
    assert_int_equal(code, INIT_OK);
    (void)close(front);
}

int main(void)
{
    if (geteuid() != 0) {
        print_message("skipped: needs root\n");
        return 0;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(taken_once),
        cmocka_unit_test(taken_in_wrong_places),
        cmocka_unit_test(gone_with_its_connection),
        cmocka_unit_test(too_many_tickets),
        cmocka_unit_test(expired),
        cmocka_unit_test(too_many_relays),
    };
    return cmocka_run_group_tests(tests, up, down);
}
