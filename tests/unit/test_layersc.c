/* front's way to the layer store, against a the layer store played by the test: answers, descriptors, lists in pieces, a restart, silence.
 */
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/fd.h"
#include "layers-wire.h"
#include "peers/layersc.h"
#include "tests/lib/unit.h"

struct scene {
    char dir[40];
    int run, listener, conn;
    struct loop *loop;
    struct layersc *c;
    unsigned up, done, progress, listed;
    struct layers_reply last;
    int fd; /* that came with the answer */
    size_t nitems;
    bool list_failed;
    uint64_t now;
};

static void on_up(void *arg) { ((struct scene *)arg)->up++; }
static void on_done(void *arg, const struct layers_reply *r, int fd)
{
    struct scene *s = arg;
    s->done++;
    s->last = *r;
    s->fd = fd;
}
static void on_progress(void *arg, const struct layers_reply *r)
{
    struct scene *s = arg;
    s->progress++;
    s->last = *r;
}
static void on_listed(void *arg, const struct layers_item *v, size_t n, const struct layers_reply *failed)
{
    struct scene *s = arg;
    s->listed++;
    s->nitems = n;
    s->list_failed = failed != NULL;
    if (n > 0)
        assert_string_equal(v[n - 1].id, "st-lastlast");
}

static uint64_t clock_of(void *arg) { return ((struct scene *)arg)->now; }

static void listen_here(struct scene *s)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    (void)snprintf(a.sun_path, sizeof a.sun_path, "%s/" LAYERS_SOCKET, s->dir);
    (void)unlink(a.sun_path);
    s->listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
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

static void take_conn(struct scene *s)
{
    s->conn = accept4(s->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    assert_true(s->conn >= 0);
}

static int setup(void **state)
{
    struct err err = {0};
    struct scene *s = calloc(1, sizeof *s);
    (void)snprintf(s->dir, sizeof s->dir, "/tmp/hutch-stockc.XXXXXX");
    assert_non_null(mkdtemp(s->dir));
    s->run = open(s->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    s->now = 1000;
    s->fd = -1;
    assert_int_equal(loop_new(&s->loop, &err), 0);
    loop_set_clock(s->loop, clock_of, s);
    listen_here(s);
    assert_int_equal(layersc_new(s->loop, s->run, on_up, s, &s->c, &err), 0);
    assert_false(layersc_is_up(s->c));
    steps(s, 3);
    assert_int_equal(s->up, 1);
    assert_true(layersc_is_up(s->c));
    take_conn(s);
    *state = s;
    return 0;
}

static int teardown(void **state)
{
    struct scene *s = *state;
    layersc_free(s->c);
    loop_free(s->loop);
    (void)close(s->listener);
    if (s->conn >= 0)
        (void)close(s->conn);
    if (s->fd >= 0)
        (void)close(s->fd);
    (void)unlinkat(s->run, LAYERS_SOCKET, 0);
    (void)close(s->run);
    (void)rmdir(s->dir);
    free(s);
    return 0;
}

/* What the layer store gets; *fd: the first descriptor, or -1. */
static struct layers_request asked(struct scene *s, uint32_t type, int *fd)
{
    struct layers_wire w;
    int fds[4] = {-1, -1, -1, -1};
    size_t n = 4;
    ssize_t size = fd_recv(s->conn, &w.m, sizeof w.m, fds, &n);
    assert_true(size > 0);
    struct layers_request q;
    struct err err = {0};
    assert_int_equal(layers_request_read(&w.m, (size_t)size, &q, &err), 0);
    assert_int_equal(q.type, type);
    assert_int_equal(q.version, LAYERS_VERSION);
    assert_true(n <= 1);
    if (fd)
        *fd = n ? fds[0] : -1;
    else
        assert_int_equal(n, 0);
    return q;
}

/* What front asks for. */
static layersc_call ask(struct scene *s, const char *owner, const struct layers_request *q, int fd,
                        layersc_progress *progress)
{
    const struct layersc_to to = {.owner = owner, .progress = progress, .done = on_done, .arg = s, .trace = q->trace};
    const struct layers_wire w = layers_wire_of(q);
    return layersc_ask(s->c, &to, &w.m.head, w.n, fd);
}

static layersc_call ask_for(struct scene *s, const char *owner, const struct layers_request *q)
{
    return ask(s, owner, q, -1, NULL);
}

static void nothing_asked(struct scene *s)
{
    char c;
    assert_int_equal(recv(s->conn, &c, 1, MSG_DONTWAIT), -1);
}

static void reply(struct scene *s, uint64_t request, uint32_t type, uint32_t error, int fd)
{
    struct layers_reply r = {.version = LAYERS_VERSION,
                             .type = type,
                             .request = request,
                             .error = error,
                             .text = "words",
                             .bytes = 5,
                             .frozen_us = 9};
    assert_int_equal(fd_send(s->conn, &r, sizeof r, &fd, fd >= 0), 0);
    steps(s, 2);
}

static void restart(struct scene *s)
{
    (void)close(s->conn);
    steps(s, 4);
    take_conn(s);
    steps(s, 2);
}

static void test_an_answer_reaches_its_asker_once(void **state)
{
    struct scene *s = *state;
    struct layers_request q = {.type = LAYERS_DROP};
    (void)snprintf(q.stack, sizeof q.stack, "st-abcdefgh");
    layersc_call a = ask_for(s, NULL, &q);
    layersc_call b = ask_for(s, NULL, &q);
    assert_true(a != 0 && b != 0 && a != b);
    assert_int_equal(s->done, 0);
    struct layers_request first = asked(s, LAYERS_DROP, NULL), second = asked(s, LAYERS_DROP, NULL);
    assert_string_equal(first.stack, "st-abcdefgh");
    reply(s, second.request, LAYERS_REPLY, LAYERS_BUSY, -1);
    assert_int_equal(s->done, 1);
    assert_int_equal(s->last.error, LAYERS_BUSY);
    assert_string_equal(s->last.text, "words");
    assert_int_equal(s->last.frozen_us, 9);
    assert_int_equal(s->fd, -1);
    reply(s, first.request, LAYERS_REPLY, 0, -1);
    reply(s, first.request, LAYERS_REPLY, 0, -1);
    assert_int_equal(s->done, 2);
}

static void test_progress_comes_before_the_answer(void **state)
{
    struct scene *s = *state;
    struct layers_request q = {.type = LAYERS_IMPORT};
    ask(s, NULL, &q, -1, on_progress);
    uint64_t request = asked(s, LAYERS_IMPORT, NULL).request;
    reply(s, request, LAYERS_PROGRESS, 0, -1);
    reply(s, request, LAYERS_PROGRESS, 0, -1);
    assert_int_equal(s->progress, 2);
    assert_int_equal(s->last.bytes, 5);
    assert_int_equal(s->done, 0);
    reply(s, request, LAYERS_REPLY, 0, -1);
    assert_int_equal(s->done, 1);
}

static void test_an_answers_descriptor_is_the_callees(void **state)
{
    struct scene *s = *state;
    struct layers_request q = {.type = LAYERS_BLOB};
    ask_for(s, NULL, &q);
    _cleanup_close_ int memory = memfd_create("blob", MFD_CLOEXEC);
    assert_int_equal(write(memory, "data", 4), 4);
    reply(s, asked(s, LAYERS_BLOB, NULL).request, LAYERS_REPLY, 0, memory);
    char got[8] = "";
    assert_true(s->fd >= 0);
    assert_int_equal(pread(s->fd, got, sizeof got, 0), 4);
    assert_string_equal(got, "data");
}

static void test_a_call_is_sent_again_with_its_descriptor_after_a_restart(void **state)
{
    struct scene *s = *state;
    struct layers_request q = {.type = LAYERS_CONVERT};
    int memory = memfd_create("archive", MFD_CLOEXEC), first = -1, second = -1;
    char got[8] = "";
    assert_int_equal(write(memory, "archive", 7), 7);
    assert_int_equal(lseek(memory, 0, SEEK_SET), 0);
    ask(s, NULL, &q, memory, NULL);
    uint64_t request = asked(s, LAYERS_CONVERT, &first).request;
    assert_int_equal(read(first, got, 4), 4); /* half of it, then the layer store dies */
    (void)close(first);
    restart(s);
    assert_int_equal(s->up, 2);
    assert_int_equal(asked(s, LAYERS_CONVERT, &second).request, request);
    assert_int_equal(read(second, got, sizeof got), 7);
    assert_memory_equal(got, "archive", 7);
    (void)close(second);
    reply(s, request, LAYERS_REPLY, 0, -1);
    assert_int_equal(s->done, 1);
    assert_int_equal(fcntl(memory, F_GETFD), -1); /* let go of with the answer */
}

static void test_what_went_through_a_pipe_is_not_sent_again(void **state)
{
    struct scene *s = *state;
    struct layers_request q = {.type = LAYERS_CONVERT};
    int ends[2], got = -1;
    assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
    ask(s, NULL, &q, ends[0], NULL);
    (void)asked(s, LAYERS_CONVERT, &got);
    (void)close(got);
    restart(s);
    assert_int_equal(s->done, 1);
    assert_int_equal(s->last.error, LAYERS_FAILED);
    nothing_asked(s);
    (void)close(ends[1]);
}

static void test_a_pipe_that_was_not_sent_yet_is_sent_after_the_restart(void **state)
{
    struct scene *s = *state;
    struct layers_request q = {.type = LAYERS_CONVERT};
    int ends[2], got = -1;
    assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
    (void)close(s->conn);
    steps(s, 1);
    assert_false(layersc_is_up(s->c));
    ask(s, NULL, &q, ends[0], NULL);
    steps(s, 4);
    take_conn(s);
    steps(s, 2);
    (void)asked(s, LAYERS_CONVERT, &got);
    assert_int_equal(s->done, 0);
    (void)close(got);
    (void)close(ends[1]);
}

static void test_a_tenant_has_one_transfer_under_way_and_does_not_hold_others_up(void **state)
{
    struct scene *s = *state;
    struct layers_request q = {.type = LAYERS_EXPORT};
    (void)snprintf(q.stack, sizeof q.stack, "st-first000");
    ask_for(s, "a", &q);
    uint64_t first = asked(s, LAYERS_EXPORT, NULL).request;
    (void)snprintf(q.stack, sizeof q.stack, "st-second00");
    ask_for(s, "a", &q);
    nothing_asked(s);
    (void)snprintf(q.stack, sizeof q.stack, "st-other000");
    ask_for(s, "b", &q);
    assert_string_equal(asked(s, LAYERS_EXPORT, NULL).stack, "st-other000");
    reply(s, first, LAYERS_REPLY, 0, -1);
    assert_string_equal(asked(s, LAYERS_EXPORT, NULL).stack, "st-second00");
}

static void test_a_tenant_has_a_few_calls_under_way_and_the_others_wait(void **state)
{
    struct scene *s = *state;
    struct layers_request q = {.type = LAYERS_DIFF};
    uint64_t first = 0;
    for (int i = 0; i < 10; i++)
        ask_for(s, "a", &q);
    for (int i = 0; i < 4; i++) {
        uint64_t request = asked(s, LAYERS_DIFF, NULL).request;
        first = first ? first : request;
    }
    nothing_asked(s);
    assert_int_equal(layersc_waiting(s->c, "a"), 6);
    assert_int_equal(layersc_waiting(s->c, "b"), 0);
    q.type = LAYERS_OPEN;
    ask_for(s, "b", &q);
    (void)asked(s, LAYERS_OPEN, NULL);
    q.type = LAYERS_EXPORT; /* those have a turn of their own */
    ask_for(s, "a", &q);
    (void)asked(s, LAYERS_EXPORT, NULL);
    reply(s, first, LAYERS_REPLY, 0, -1);
    (void)asked(s, LAYERS_DIFF, NULL);
    nothing_asked(s);
    assert_int_equal(layersc_waiting(s->c, "a"), 5);
}

static void test_a_cancelled_call_is_not_answered_any_more(void **state)
{
    struct scene *s = *state;
    struct layers_request q = {.type = LAYERS_VERIFY};
    layersc_call c = ask(s, NULL, &q, -1, on_progress);
    uint64_t request = asked(s, LAYERS_VERIFY, NULL).request;
    layersc_cancel(s->c, c);
    struct layers_request cancel = asked(s, LAYERS_CANCEL, NULL);
    assert_int_equal(cancel.cancel, request);
    reply(s, cancel.request, LAYERS_REPLY, 0, -1);
    reply(s, request, LAYERS_PROGRESS, 0, -1);
    reply(s, request, LAYERS_REPLY, LAYERS_CANCELLED, -1);
    assert_int_equal(s->done, 0);
    assert_int_equal(s->progress, 0);
    layersc_cancel(s->c, c);
    layersc_cancel(s->c, 0);
    nothing_asked(s);
}

static void test_a_list_in_pieces_is_put_together(void **state)
{
    struct scene *s = *state;
    layersc_list(s->c, on_listed, s);
    struct layers_items *m = calloc(1, sizeof *m);
    *m = (struct layers_items){.version = LAYERS_VERSION,
                               .type = LAYERS_ITEMS,
                               .request = asked(s, LAYERS_LIST, NULL).request,
                               .n = 200,
                               .more = 1};
    assert_int_equal(send(s->conn, m, sizeof *m, 0), sizeof *m);
    m->n = 3;
    m->more = 0;
    (void)snprintf(m->item[2].id, sizeof m->item[2].id, "st-lastlast");
    assert_int_equal(send(s->conn, m, sizeof *m, 0), sizeof *m);
    steps(s, 2);
    assert_int_equal(s->listed, 1);
    assert_int_equal(s->nitems, 203);
    free(m);
}

static void test_a_list_that_a_restart_cut_begins_anew(void **state)
{
    struct scene *s = *state;
    struct layers_items *m = calloc(1, sizeof *m);
    layersc_list(s->c, on_listed, s);
    *m = (struct layers_items){.version = LAYERS_VERSION,
                               .type = LAYERS_ITEMS,
                               .request = asked(s, LAYERS_LIST, NULL).request,
                               .n = 5,
                               .more = 1};
    assert_int_equal(send(s->conn, m, sizeof *m, 0), sizeof *m);
    steps(s, 1);
    restart(s);
    m->request = asked(s, LAYERS_LIST, NULL).request;
    m->n = 1;
    m->more = 0;
    (void)snprintf(m->item[0].id, sizeof m->item[0].id, "st-lastlast");
    assert_int_equal(send(s->conn, m, sizeof *m, 0), sizeof *m);
    steps(s, 2);
    assert_int_equal(s->nitems, 1);
    layersc_list(s->c, on_listed, s);
    reply(s, asked(s, LAYERS_LIST, NULL).request, LAYERS_REPLY, LAYERS_FAILED, -1);
    assert_int_equal(s->listed, 2);
    assert_true(s->list_failed);
    free(m);
}

static void test_calls_fail_when_layers_stays_away(void **state)
{
    struct scene *s = *state;
    struct layers_request q = {.type = LAYERS_DF};
    (void)close(s->listener);
    (void)close(s->conn);
    s->conn = s->listener = -1;
    ask_for(s, NULL, &q);
    steps(s, 20);
    assert_int_equal(s->done, 0);
    s->now += 60000;
    steps(s, 30);
    assert_int_equal(s->done, 1);
    assert_int_equal(s->last.error, LAYERS_BUSY);
}

static void test_long_jobs_leave_room_for_others(void **state)
{
    struct scene *s = *state;
    struct layers_request heavy = {.type = LAYERS_FLATTEN}, light = {.type = LAYERS_DF};
    uint64_t first = 0;
    for (int i = 0; i < 40; i++)
        ask_for(s, NULL, &heavy);
    ask_for(s, NULL, &light);
    steps(s, 2);
    for (int i = 0; i < 16; i++) {
        uint64_t request = asked(s, LAYERS_FLATTEN, NULL).request;
        first = first ? first : request;
    }
    (void)asked(s, LAYERS_DF, NULL);
    nothing_asked(s);
    reply(s, first, LAYERS_REPLY, 0, -1); /* the next one may go */
    (void)asked(s, LAYERS_FLATTEN, NULL);
    nothing_asked(s);
}

static void test_more_calls_than_there_is_room_for_fail(void **state)
{
    struct scene *s = *state;
    struct layers_request q = {.type = LAYERS_DF};
    for (int i = 0; i < 1030; i++)
        ask_for(s, NULL, &q);
    assert_int_equal(s->done, 0);
    steps(s, 3);
    assert_int_equal(s->done, 6);
    assert_int_equal(s->last.error, LAYERS_BUSY);
}

static void test_calls_of_one_tenant_leave_room_for_those_of_others(void **state)
{
    struct scene *s = *state;
    struct layers_request q = {.type = LAYERS_IMPORT};
    for (int i = 0; i < 600; i++)
        ask_for(s, "a", &q);
    steps(s, 3);
    assert_int_equal(s->done, 88);
    assert_int_equal(s->last.error, LAYERS_BUSY);
    q.type = LAYERS_CAPTURE;
    for (int i = 0; i < 65; i++)
        ask_for(s, "b", &q);
    steps(s, 3);
    assert_int_equal(s->done, 89);
    for (int i = 0; i < 20; i++) /* the node's own */
        ask_for(s, NULL, &q);
    steps(s, 3);
    assert_int_equal(s->done, 89);
}

static void test_words_of_another_protocol_end_the_connection(void **state)
{
    struct scene *s = *state;
    struct layers_request q = {.type = LAYERS_DF};
    ask_for(s, NULL, &q);
    struct layers_reply r = {.version = 9, .type = LAYERS_REPLY, .request = asked(s, LAYERS_DF, NULL).request};
    assert_int_equal(send(s->conn, &r, sizeof r, 0), sizeof r);
    steps(s, 1);
    assert_false(layersc_is_up(s->c));
    assert_int_equal(s->done, 0);
}

int main(void)
{
#define TEST(t) cmocka_unit_test_setup_teardown(t, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_an_answer_reaches_its_asker_once),
        TEST(test_progress_comes_before_the_answer),
        TEST(test_an_answers_descriptor_is_the_callees),
        TEST(test_a_call_is_sent_again_with_its_descriptor_after_a_restart),
        TEST(test_what_went_through_a_pipe_is_not_sent_again),
        TEST(test_a_pipe_that_was_not_sent_yet_is_sent_after_the_restart),
        TEST(test_a_tenant_has_one_transfer_under_way_and_does_not_hold_others_up),
        TEST(test_a_tenant_has_a_few_calls_under_way_and_the_others_wait),
        TEST(test_a_cancelled_call_is_not_answered_any_more),
        TEST(test_a_list_in_pieces_is_put_together),
        TEST(test_a_list_that_a_restart_cut_begins_anew),
        TEST(test_calls_fail_when_layers_stays_away),
        TEST(test_long_jobs_leave_room_for_others),
        TEST(test_more_calls_than_there_is_room_for_fail),
        TEST(test_calls_of_one_tenant_leave_room_for_those_of_others),
        TEST(test_words_of_another_protocol_end_the_connection),
    };
    return cmocka_run_group_tests_name("stockc", tests, NULL, NULL);
}
