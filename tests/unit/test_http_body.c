/* How long a body may take, on a real connection, with the test's own clock. */
#include "tests/lib/unit.h"

#include "base/cleanup.h"
#include "http/body.h"
#include "unit/http-world.h"

static const struct http_limits limits = {.connections = 10, .head_ms = 10000, .idle_ms = 60000};
static int answers, left;

static void done(struct http_req *r, json_t *root, unsigned status, const char *error)
{
    answers++;
    if (status)
        http_reply(r, status, "text/plain", error, strlen(error));
    else
        http_reply(r, 200, "text/plain", root ? "whole" : "empty", 5);
}

static void gone(struct http_req *r)
{
    (void)r;
    left++;
}

static void upload_end(struct http_req *r) { http_reply(r, 201, NULL, NULL, 0); }

static void handle(void *ctx, struct http_req *r)
{
    (void)ctx;
    r->on_closed = gone;
    if (strcmp(r->path, "/upload") == 0)
        r->on_end = upload_end; /* its bytes are dropped as they come */
    else
        body_json(r, 0, done);
}

static int setup(void **state)
{
    (void)state;
    answers = left = 0;
    world_start(&limits, handle);
    return 0;
}
static int teardown(void **state)
{
    (void)state;
    world_stop();
    return 0;
}

/* One byte of the body every `ms`, `n` times. */
static void trickle(int fd, int n, uint64_t ms)
{
    for (int i = 0; i < n; i++) {
        say(fd, " ");
        pass(ms);
    }
}

static void a_trickled_body_is_refused_after_a_minute(void **state)
{
    (void)state;
    int fd = client();
    say(fd, "POST /json HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n");
    trickle(fd, 59, 1000);
    assert_int_equal(answers, 0);
    trickle(fd, 1, 1000);
    assert_int_equal(answers, 1);
    expect(fd, "HTTP/1.1 408 ", false);
    pass(2000); /* what still comes is dropped for a moment, so that the answer is read */
    pass(2000);
    expect(fd, "", true);
    assert_int_equal(left, 0);
    close(fd);
}

static void a_trickled_body_in_chunks_is_refused_too(void **state)
{
    (void)state;
    int fd = client();
    say(fd, "POST /json HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n");
    for (int i = 0; i < 30; i++) {
        say(fd, "1\r\n \r\n");
        pass(2000);
    }
    expect(fd, "the body did not come whole within 60 s: 30 bytes came", false);
    close(fd);
}

static void a_slow_body_that_ends_in_time_is_read(void **state)
{
    (void)state;
    int fd = client();
    say(fd, "POST /json HTTP/1.1\r\nHost: x\r\nContent-Length: 60\r\n\r\n");
    trickle(fd, 58, 1000);
    say(fd, "{}");
    expect(fd, "whole", false);
    pass(BODY_MS); /* its deadline is gone with it: the connection is idle */
    assert_int_equal(answers, 1);
    close(fd);
}

static void a_client_that_leaves_takes_the_deadline_along(void **state)
{
    (void)state;
    int fd = client();
    say(fd, "POST /json HTTP/1.1\r\nHost: x\r\nContent-Length: 60\r\n\r\n{");
    close(fd);
    turn();
    pass(2 * BODY_MS);
    assert_int_equal(answers, 0);
    assert_int_equal(left, 1);
}

static void an_upload_may_take_as_long_as_it_moves(void **state)
{
    (void)state;
    int fd = client();
    say(fd, "PUT /upload HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n");
    trickle(fd, 100, 10000);
    expect(fd, "HTTP/1.1 201 ", false);
    close(fd);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_trickled_body_is_refused_after_a_minute, setup, teardown),
        cmocka_unit_test_setup_teardown(a_trickled_body_in_chunks_is_refused_too, setup, teardown),
        cmocka_unit_test_setup_teardown(a_slow_body_that_ends_in_time_is_read, setup, teardown),
        cmocka_unit_test_setup_teardown(a_client_that_leaves_takes_the_deadline_along, setup, teardown),
        cmocka_unit_test_setup_teardown(an_upload_may_take_as_long_as_it_moves, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
