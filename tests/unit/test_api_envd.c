/* The agent of E2B's sandboxes as front plays it: signatures, auth, commands, files, watches, and the gateway's errors. */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <cmocka.h>

#include "api-world.h"
#include "api/api.h"
#include "api/e2b/envd.h"
#include "api/gateway/gateway-int.h"
#include "api/gateway/gateway.h"
#include "base/base64.h"
#include "base/mem.h"

#define TOKEN "0tQG31xiMp0IOQfaz9dcwi72L1CPo8e0"

static void expect(struct asked *a, unsigned status, const char *body)
{
    asked_end(a);
    if (!a->ended || a->status != status || (body && strcmp(buf_str(&a->body), body) != 0))
        fail_msg("%s: ended %d, status %u, body %s; wanted %u %s", a->path, a->ended, a->status, buf_str(&a->body),
                 status, body ? body : "");
    asked_free(a);
}

/* The n-th envelope of a stream as JSON; *flags gets its flags. NULL: there are not so many. */
static json_t *envelope(const struct asked *a, size_t n, unsigned *flags)
{
    const uint8_t *p = (const uint8_t *)a->body.p;
    size_t left = a->body.n;
    for (size_t i = 0; left >= 5; i++) {
        size_t size = (size_t)p[1] << 24 | (size_t)p[2] << 16 | (size_t)p[3] << 8 | p[4];
        if (size + 5 > left)
            return NULL;
        if (i == n) {
            *flags = p[0];
            return json_loadb((const char *)p + 5, size, 0, NULL);
        }
        p += 5 + size;
        left -= 5 + size;
    }
    return NULL;
}

static json_t *down(json_t *v, const char *path)
{
    char copy[64], *save = NULL;
    (void)snprintf(copy, sizeof copy, "%s", path);
    for (char *s = strtok_r(copy, ".", &save); s; s = strtok_r(NULL, ".", &save))
        v = json_object_get(v, s);
    return v;
}

static struct asked *stream(const struct sandbox *b, const char *method, const char *json)
{
    struct buf body = {0};
    uint32_t n = (uint32_t)strlen(json);
    char head[5] = {0, (char)(n >> 24), (char)(n >> 16), (char)(n >> 8), (char)n};
    buf_add(&body, head, 5);
    buf_adds(&body, json);
    struct asked *a = ask_envd(b, "POST", method, "application/connect+json", body.p, body.n);
    buf_done(&body);
    return a;
}

static struct asked *unary(const struct sandbox *b, const char *method, const char *json)
{
    return ask_envd(b, "POST", method, "application/json", json, strlen(json));
}

static void test_signature(void **state)
{
    struct buf s = {0};
    (void)state;
    sign_make("hello.txt", "read", "user", TOKEN, NULL, &s);
    assert_string_equal(s.p, "v1_gUtH/s9YCJWgCizjfUxuWfhFE4QSydOWEIIvfLwDr6E");
    buf_done(&s);
    struct sign_query q;
    struct err err;
    assert_int_equal(
        sign_query_read("path=hello.txt&username=user&signature=v1_gUtH%2Fs9YCJWgCizjfUxuWfhFE4QSydOWEIIvfLwDr6E", &q,
                        &err),
        0);
    assert_null(sign_check(&q, "read", TOKEN, 5));
    assert_string_equal(sign_check(&q, "write", TOKEN, 5), "invalid signature");
    assert_string_equal(sign_check(&q, "read", "other", 5), "invalid signature");
    sign_query_done(&q);
    assert_true(sha256_equal_text("abc", "abc"));
    assert_false(sha256_equal_text("abc", "abd"));
    assert_false(sha256_equal_text("abc", "abcd"));
}

static void put_file(const char *name, const char *text, size_t n)
{
    char path[200];
    (void)snprintf(path, sizeof path, "%s/%s", world.dir, name);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(text, 1, n, f), n);
    (void)fclose(f);
}

static size_t get_file(const char *name, char *ret, size_t n)
{
    char path[200];
    (void)snprintf(path, sizeof path, "%s/%s", world.dir, name);
    FILE *f = fopen(path, "rb");
    if (!f)
        return SIZE_MAX;
    n = fread(ret, 1, n, f);
    (void)fclose(f);
    return n;
}

static void signed_url(struct buf *out, const char *path, const char *op, const char *expiry)
{
    struct buf s = {0};
    sign_make(path, op, "user", TOKEN, expiry, &s);
    buf_addf(out, "/files?path=%s&username=user&signature=", path);
    for (size_t i = 0; i < s.n; i++)
        buf_addf(out, s.p[i] == '/' ? "%%2F" : s.p[i] == '+' ? "%%2B" : "%c", s.p[i]);
    if (expiry)
        buf_addf(out, "&signature_expiration=%s", expiry);
    buf_done(&s);
}

static void test_signed_urls(void **state)
{
    struct buf url = {0};
    (void)state;
    world_sandbox("i0", 0, 1000);
    put_file("hello.txt", "hello", 5);
    signed_url(&url, "hello.txt", "read", NULL);
    expect(ask("GET", url.p, NULL, NULL, 0), 200, "hello");
    const char *host[] = {"host", "49983-i0.hutch.test", NULL};
    expect(ask("GET", url.p, host, NULL, 0), 200, "hello");
    expect(ask("POST", url.p, NULL, "x", 1), 401, "{\"code\":401,\"message\":\"invalid signature\"}");
    buf_done(&url);
    signed_url(&url, "hello.txt", "read", "1");
    expect(ask("GET", url.p, NULL, NULL, 0), 401, "{\"code\":401,\"message\":\"signature is already expired\"}");
    expect(ask("GET", url.p, host, NULL, 0), 401, "{\"code\":401,\"message\":\"signature is already expired\"}");
    buf_done(&url);
    signed_url(&url, "hello.txt", "read", "99999999999");
    expect(ask("GET", url.p, NULL, NULL, 0), 200, "hello");
    world_find("i0")->state = SANDBOX_KILLING;
    expect(ask("GET", url.p, NULL, NULL, 0), 401, "{\"code\":401,\"message\":\"invalid signature\"}");
    buf_done(&url);
}

static void test_edges(void **state)
{
    (void)state;
    struct sandbox *b = world_sandbox("i0", 0, 1000);
    const char *no_token[] = {"e2b-sandbox-id", "i0", "e2b-sandbox-port", "49983", NULL};
    const char *bad_token[] = {"e2b-sandbox-id", "i0", "e2b-sandbox-port", "49983", "x-access-token", "x", NULL};
    const char *gone[] = {"e2b-sandbox-id", "i0gone", "e2b-sandbox-port", "49983", NULL};
    struct asked *a = ask("GET", "/health", no_token, NULL, 0);
    assert_string_equal(asked_field(a, "access-control-allow-origin"), "*");
    expect(a, 204, "");
    expect(ask("GET", "/health", gone, NULL, 0), 502,
           "{\"sandboxId\":\"i0gone\",\"message\":\"The sandbox was not found\",\"code\":502}");
    world.next_code = LINK_GONE;
    expect(ask("GET", "/health", no_token, NULL, 0), 502,
           "{\"sandboxId\":\"i0\",\"message\":\"The sandbox was not found\",\"code\":502}");
    expect(ask("GET", "/metrics", no_token, NULL, 0), 401, NULL);
    expect(ask("GET", "/envs", bad_token, NULL, 0), 401, NULL);
    expect(ask("GET", "/files?path=a", no_token, NULL, 0), 401, NULL);
    expect(ask("GET", "/files?path=a", bad_token, NULL, 0), 401, NULL);
    strv_add(&b->desc.env, "A=b=c");
    expect(ask_envd(b, "GET", "/envs", NULL, NULL, 0), 200, "{\"A\":\"b=c\"}");
    expect(ask_envd(b, "GET", "/metrics", NULL, NULL, 0), 200, NULL);
    expect(ask_envd(b, "POST", "/init", "application/json", "{}", 2), 404,
           "{\"message\":\"this path is not available from outside\",\"path\":\"/init\",\"code\":404}");
    a = ask("OPTIONS", "/process.Process/Start", no_token, NULL, 0);
    assert_non_null(asked_field(a, "access-control-allow-methods"));
    expect(a, 204, "");
    expect(ask_envd(b, "POST", "/process.Process/List", "text/plain", "{}", 2), 415, NULL);
    expect(ask_envd(b, "GET", "/process.Process/List", "application/json", NULL, 0), 405, NULL);
    expect(unary(b, "/process.Process/List", "[]"), 400, NULL);
    expect(unary(b, "/process.Process/List", "{}"), 200,
           "{\"processes\":[{\"config\":{\"cmd\":\"/bin/"
           "sh\",\"args\":[\"-c\",\"x\"],\"envs\":{\"A\":\"b=c\"},\"cwd\":\"/\"},"
           "\"pid\":7,\"tag\":\"t\"}]}");
}

static void test_start(void **state)
{
    unsigned flags;
    (void)state;
    struct sandbox *b = world_sandbox("i0", 0, 1000);
    struct asked *a =
        stream(b, "/process.Process/Start",
               "{\"process\":{\"cmd\":\"/bin/bash\",\"args\":[\"-l\",\"-c\",\"echo \\u00e4\"],\"envs\":{\"A\":\"b\"},"
               "\"cwd\":\"/tmp\"},\"stdin\":false}");
    assert_false(a->ended);
    assert_int_equal(a->status, 0);
    assert_string_equal(world.cmd, "/bin/bash");
    assert_string_equal(world.args.v[2], "echo \xc3\xa4");
    assert_string_equal(world.env.v[0], "A=b");
    assert_string_equal(world.cwd, "/tmp");
    assert_null(world.user);
    assert_false(world.stdin_open);
    world.ops->started(world.ops_arg, 42, NULL);
    assert_true(world.ops->output(world.ops_arg, EXEC_STDOUT, 0, "hi\n", 3));
    world.ops->ended(world.ops_arg, &(struct exec_end){.exited = true, .code = 3, .wall_ms = 5});
    assert_true(a->ended);
    assert_false(world.detached);
    assert_int_equal(a->status, 200);
    assert_string_equal(asked_field(a, "content-type"), "application/connect+json");
    json_t *v = envelope(a, 0, &flags);
    assert_int_equal(json_integer_value(down(v, "event.start.pid")), 42);
    json_decref(v);
    v = envelope(a, 1, &flags);
    assert_string_equal(json_string_value(down(v, "event.data.stdout")), "aGkK");
    assert_int_equal(json_integer_value(down(v, "event.data.offset")), 0);
    json_decref(v);
    v = envelope(a, 2, &flags);
    assert_int_equal(json_integer_value(down(v, "event.end.exitCode")), 3);
    assert_string_equal(json_string_value(down(v, "event.end.error")), "exit status 3");
    assert_int_equal(json_integer_value(down(v, "event.end.usage.wallMs")), 5);
    json_decref(v);
    v = envelope(a, 3, &flags);
    assert_int_equal(flags, 2);
    assert_int_equal(json_object_size(v), 0);
    json_decref(v);
    asked_free(a);
}

static void test_start_ends(void **state)
{
    unsigned flags;
    (void)state;
    struct sandbox *b = world_sandbox("i0", 0, 1000);
    static const char start[] = "{\"process\":{\"cmd\":\"x\"}}";
    /* refused by the sandbox: 200 and an error in the end envelope */
    struct asked *a = stream(b, "/process.Process/Start", start);
    world.ops->failed(world.ops_arg, &(struct link_status){.code = LINK_INVALID, .text = "cwd '/x' does not exist"});
    json_t *v = envelope(a, 0, &flags);
    assert_int_equal(a->status, 200);
    assert_int_equal(flags, 2);
    assert_string_equal(json_string_value(down(v, "error.code")), "invalid_argument");
    assert_string_equal(json_string_value(down(v, "error.message")), "cwd '/x' does not exist");
    json_decref(v);
    asked_free(a);
    /* bad requests too */
    a = stream(b, "/process.Process/Start", "{\"process\":{\"cmd\":5}}");
    v = envelope(a, 0, &flags);
    assert_string_equal(json_string_value(down(v, "error.code")), "invalid_argument");
    json_decref(v);
    asked_free(a);
    /* killed */
    a = stream(b, "/process.Process/Start", start);
    world.ops->started(world.ops_arg, 1, NULL);
    world.ops->ended(world.ops_arg, &(struct exec_end){.exited = false, .code = 9, .oom = true});
    v = envelope(a, 1, &flags);
    assert_int_equal(json_integer_value(down(v, "event.end.exitCode")), -1);
    assert_string_equal(json_string_value(down(v, "event.end.error")), "signal: killed");
    assert_string_equal(json_string_value(down(v, "event.end.death.cause")), "oom");
    json_decref(v);
    asked_free(a);
    /* the sandbox dies before and in the middle */
    a = stream(b, "/process.Process/Start", start);
    world.ops->failed(world.ops_arg, &(struct link_status){.code = LINK_GONE});
    expect(a, 502, "{\"sandboxId\":\"i0\",\"message\":\"The sandbox was not found\",\"code\":502}");
    a = stream(b, "/process.Process/Start", start);
    world.ops->started(world.ops_arg, 1, NULL);
    world.ops->failed(world.ops_arg, &(struct link_status){.code = LINK_GONE});
    assert_true(a->aborted);
    asked_run(a);
    assert_true(a->closed);
    asked_free(a);
    /* the client leaves; the command runs on */
    a = stream(b, "/process.Process/Start", start);
    world.ops->started(world.ops_arg, 1, NULL);
    asked_leave(a);
    assert_true(world.detached);
    assert_int_equal(world.signal, 0);
    asked_free(a);
}

static void test_deadline(void **state)
{
    unsigned flags;
    (void)state;
    struct sandbox *b = world_sandbox("i0", 0, 1000);
    static const char json[] = "\0\0\0\0\x17{\"process\":{\"cmd\":\"x\"}}";
    const char *fields[] = {"e2b-sandbox-id",
                            b->id,
                            "e2b-sandbox-port",
                            "49983",
                            "x-access-token",
                            TOKEN,
                            "content-type",
                            "application/connect+json",
                            "connect-timeout-ms",
                            "60",
                            "authorization",
                            "Basic cm9vdDo=",
                            NULL};
    struct asked *a = ask("POST", "/process.Process/Start", fields, json, 5);
    asked_free(a);
    struct buf body = {0};
    buf_add(&body, json, 5);
    body.p[4] = (char)strlen("{\"process\":{\"cmd\":\"x\"}}");
    buf_adds(&body, "{\"process\":{\"cmd\":\"x\"}}");
    fields[9] = "600000";
    a = ask("POST", "/process.Process/Start", fields, body.p, body.n);
    assert_string_equal(world.user, "root");
    assert_false(a->ended);
    asked_free(a);
    fields[9] = "1";
    a = ask("POST", "/process.Process/Start", fields, body.p, body.n);
    asked_run(a);
    json_t *v = envelope(a, 0, &flags);
    assert_string_equal(json_string_value(down(v, "error.code")), "deadline_exceeded");
    json_decref(v);
    asked_free(a);
    buf_done(&body);
}

static void test_rest_of_process(void **state)
{
    (void)state;
    struct sandbox *b = world_sandbox("i0", 0, 1000);
    expect(unary(b, "/process.Process/SendInput", "{\"process\":{\"pid\":7},\"input\":{\"stdin\":\"aGk=\"}}"), 200,
           "{}");
    assert_string_equal(buf_str(&world.input), "hi");
    world.next_code = LINK_STATE;
    (void)snprintf(world.next_text, sizeof world.next_text, "%s", "stdin is closed");
    expect(unary(b, "/process.Process/SendInput", "{\"process\":{\"pid\":7},\"input\":{\"pty\":\"aGk=\"}}"), 500,
           "{\"code\":\"internal\",\"message\":\"stdin is closed\"}");
    expect(unary(b, "/process.Process/SendInput", "{\"process\":{\"pid\":7},\"input\":{\"stdin\":\"!\"}}"), 400, NULL);
    expect(unary(b, "/process.Process/SendSignal", "{\"process\":{\"tag\":\"t\"},\"signal\":\"SIGNAL_SIGKILL\"}"), 200,
           "{}");
    assert_int_equal(world.signal, 9);
    expect(unary(b, "/process.Process/SendSignal", "{\"process\":{\"pid\":7},\"signal\":\"SIGNAL_SIGHUP\"}"), 200,
           NULL);
    assert_int_equal(world.signal, 1);
    expect(unary(b, "/process.Process/SendSignal", "{\"process\":{\"pid\":7},\"signal\":\"SIGNAL_SIGINT\"}"), 400,
           NULL);
    world.next_code = LINK_NOT_FOUND;
    (void)snprintf(world.next_text, sizeof world.next_text, "%s", "no process");
    expect(unary(b, "/process.Process/SendSignal", "{\"process\":{\"pid\":7},\"signal\":15}"), 404,
           "{\"code\":\"not_found\",\"message\":\"no process\"}");
    expect(unary(b, "/process.Process/CloseStdin", "{\"process\":{\"pid\":7}}"), 200, "{}");
    expect(unary(b, "/process.Process/CloseStdin", "{\"process\":{\"pid\":0}}"), 400, NULL);
    expect(
        unary(b, "/process.Process/Update", "{\"process\":{\"pid\":7},\"pty\":{\"size\":{\"cols\":80,\"rows\":24}}}"),
        200, "{}");
    struct asked *a =
        stream(b, "/process.Process/Connect", "{\"process\":{\"pid\":7},\"offsets\":{\"stdout\":5,\"pty\":0}}");
    assert_int_equal(world.from[EXEC_STDOUT], 5);
    assert_int_equal(world.from[EXEC_PTY], 0);
    assert_true(world.from[EXEC_STDERR] == UINT64_MAX);
    asked_free(a);
    /* StreamInput: three envelopes in one body */
    struct buf body = {0};
    static const char *const messages[] = {"{\"start\":{\"process\":{\"pid\":7}}}",
                                           "{\"data\":{\"input\":{\"stdin\":\"YWI=\"}}}", "{\"keepalive\":{}}",
                                           "{\"data\":{\"input\":{\"stdin\":\"Y2Q=\"}}}"};
    for (size_t i = 0; i < 4; i++) {
        buf_add(&body, (char[]){0, 0, 0, 0, (char)strlen(messages[i])}, 5);
        buf_adds(&body, messages[i]);
    }
    buf_done(&world.input);
    a = ask_envd(b, "POST", "/process.Process/StreamInput", "application/connect+json", body.p, body.n);
    assert_true(a->ended);
    assert_string_equal(buf_str(&world.input), "abcd");
    assert_memory_equal(a->body.p, "\0\0\0\0\2{}\2\0\0\0\2{}", 14);
    asked_free(a);
    buf_done(&body);
}

static void test_read(void **state)
{
    (void)state;
    struct sandbox *b = world_sandbox("i0", 0, 1000);
    const char *fields[] = {
        "e2b-sandbox-id", "i0", "e2b-sandbox-port", "49983", "x-access-token", TOKEN, "range", "", NULL};
    static const struct {
        const char *range;
        unsigned status;
        const char *body;
    } v[] = {{"bytes=0-4", 206, "01234"},      {"bytes=5-", 206, "56789"},
             {"bytes=-3", 206, "789"},         {"bytes=-30", 206, "0123456789"},
             {"bytes=9-100", 206, "9"},        {"bytes=10-", 416, NULL},
             {"bytes=5-4", 200, "0123456789"}, {"bytes=0-1,3-4", 200, "0123456789"},
             {"lines=1", 200, "0123456789"}};
    put_file("a b", "0123456789", 10);
    for (size_t i = 0; i < 2 * (sizeof v / sizeof *v); i++) {
        size_t k = i / 2;
        world.relayed = i % 2; /* over a byte stream there is no file to seek in */
        fields[7] = v[k].range;
        expect(ask("GET", "/files?path=a%20b", fields, NULL, 0), v[k].status, v[k].body);
    }
    world.missing = 1;
    struct asked *cut = ask_envd(b, "GET", "/files?path=a%20b", NULL, NULL, 0);
    assert_false(cut->ended); /* an answer that is too short is never a complete one */
    asked_free(cut);
    world.missing = 0;
    world.relayed = false;
    expect(ask_envd(b, "GET", "/files?path=none", NULL, NULL, 0), 404,
           "{\"code\":404,\"message\":\"path 'none' does not exist\"}");
    world.next_code = LINK_NO_USER;
    (void)snprintf(world.next_text, sizeof world.next_text, "%s", "invalid username: 'x'");
    expect(ask_envd(b, "GET", "/files?path=a&username=x", NULL, NULL, 0), 401,
           "{\"code\":401,\"message\":\"invalid username: 'x'\"}");
    world.next_code = LINK_PAUSED; /* between the wake and the answer */
    (void)snprintf(world.next_text, sizeof world.next_text, "%s", "the sandbox was paused");
    expect(ask_envd(b, "GET", "/files?path=a", NULL, NULL, 0), 503,
           "{\"code\":503,\"message\":\"the sandbox was paused\"}");
    put_file("empty", "", 0);
    expect(ask_envd(b, "GET", "/files?path=empty", NULL, NULL, 0), 200, "");
    /* larger than one chunk, and a client that is slow */
    char *big = malloc(3000000);
    for (size_t i = 0; i < 3000000; i++)
        big[i] = (char)(i * 7 + i / 251);
    put_file("big", big, 3000000);
    struct asked *a = ask_envd(b, "GET", "/files?path=big", NULL, NULL, 0);
    assert_true(a->ended);
    assert_int_equal(a->body.n, 3000000);
    assert_memory_equal(a->body.p, big, 3000000);
    asked_free(a);
    free(big);
}

static void test_write(void **state)
{
    char got[64] = "";
    (void)state;
    struct sandbox *b = world_sandbox("i0", 0, 1000);
    expect(ask_envd(b, "POST", "/files?path=x.txt", "application/octet-stream", "hello", 5), 200,
           "[{\"name\":\"x.txt\",\"path\":\"/home/user/x.txt\",\"type\":\"file\"}]");
    assert_int_equal(get_file("x.txt", got, sizeof got), 5);
    expect(ask_envd(b, "POST", "/files?path=empty", "application/octet-stream", NULL, 0), 200, NULL);
    assert_int_equal(get_file("empty", got, sizeof got), 0);
    static const char form[] =
        "--B\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a%22b\"\r\n\r\none\r\n"
        "--B\r\nContent-Disposition: form-data; name=\"other\"\r\n\r\nskipped\r\n"
        "--B\r\nContent-Disposition: form-data; name=\"file\"; filename=\"two\"\r\n\r\nTWO\r\n--B--\r\n";
    expect(ask_envd(b, "POST", "/files", "multipart/form-data; boundary=B", form, sizeof form - 1), 200,
           "[{\"name\":\"a\\\"b\",\"path\":\"/home/user/a\\\"b\",\"type\":\"file\"},{\"name\":\"two\",\"path\":\"/home/"
           "user/"
           "two\",\"type\":\"file\"}]");
    assert_int_equal(get_file("two", got, sizeof got), 3);
    assert_memory_equal(got, "TWO", 3);
    expect(ask_envd(b, "POST", "/files?path=same", "multipart/form-data; boundary=B", form, sizeof form - 1), 400,
           "{\"code\":400,\"message\":\"two parts of the upload have the same path\"}");
    expect(ask_envd(b, "POST", "/files", "multipart/form-data; boundary=B", form, 60), 400, NULL);
    expect(ask_envd(b, "POST", "/files", "multipart/form-data; boundary=B", "--B--\r\n", 7), 400, NULL);
    expect(ask_envd(b, "POST", "/files", "application/octet-stream", "x", 1), 400, NULL);
    expect(ask_envd(b, "POST", "/files?path=x", "text/plain", "x", 1), 400, NULL);
    world.next_code = LINK_NO_SPACE;
    (void)snprintf(world.next_text, sizeof world.next_text, "%s", "no space");
    expect(ask_envd(b, "POST", "/files?path=x", "application/octet-stream", "x", 1), 507,
           "{\"code\":507,\"message\":\"no space\"}");
    world.sink_code = LINK_NO_SPACE;
    expect(ask_envd(b, "POST", "/files?path=x", "application/octet-stream", "x", 1), 507,
           "{\"code\":507,\"message\":\"the sink says no\"}");
    expect(ask_envd(b, "POST", "/files?path=x", "application/octet-stream", NULL, 0), 507, NULL);
    world.sink_code = LINK_GONE;
    expect(ask_envd(b, "POST", "/files?path=x", "application/octet-stream", "x", 1), 502, NULL);
    world.sink_code = LINK_OK;
    world.config->max_upload = 3;
    expect(ask_envd(b, "POST", "/files?path=x", "application/octet-stream", "12345", 5), 413, NULL);
}

static void test_write_gzip(void **state)
{
    enum { N = 2000000 };
    (void)state;
    struct sandbox *b = world_sandbox("i0", 0, 1000);
    char *text = calloc(1, N), *zip = malloc(N), *got = malloc(N + 1);
    for (size_t i = 0; i < N; i += 100)
        text[i] = (char)i;
    z_stream z = {.next_in = (Bytef *)text, .avail_in = N, .next_out = (Bytef *)zip, .avail_out = N};
    assert_int_equal(deflateInit2(&z, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY), Z_OK);
    assert_int_equal(deflate(&z, Z_FINISH), Z_STREAM_END);
    const char *fields[] = {"e2b-sandbox-id",
                            "i0",
                            "e2b-sandbox-port",
                            "49983",
                            "x-access-token",
                            TOKEN,
                            "content-type",
                            "application/octet-stream",
                            "content-encoding",
                            "gzip",
                            "x-metadata-k",
                            "v",
                            NULL};
    expect(ask("POST", "/files?path=z", fields, zip, z.total_out), 200,
           "[{\"name\":\"z\",\"path\":\"/home/user/z\",\"type\":\"file\",\"metadata\":{\"k\":\"v\"}}]");
    assert_int_equal(get_file("z", got, N + 1), N);
    assert_memory_equal(got, text, N);
    expect(ask("POST", "/files?path=z", fields, zip, z.total_out - 20), 400, NULL);
    expect(ask("POST", "/files?path=z", fields, "plain", 5), 400, NULL);
    fields[9] = "br";
    expect(ask("POST", "/files?path=z", fields, "x", 1), 400, NULL);
    fields[9] = "identity";
    fields[11] = "\xc3\xa4";
    expect(ask("POST", "/files?path=z", fields, "x", 1), 400, NULL);
    (void)deflateEnd(&z);
    (void)b;
    free(text);
    free(zip);
    free(got);
}

static void test_filesystem(void **state)
{
    (void)state;
    struct sandbox *b = world_sandbox("i0", 0, 1000);
    expect(
        unary(b, "/filesystem.Filesystem/Stat", "{\"path\":\"x\"}"), 200,
        "{\"entry\":{\"name\":\"x\",\"type\":\"FILE_TYPE_FILE\",\"path\":\"/home/user/x\",\"size\":\"0\",\"mode\":420,"
        "\"permissions\":\"-rw-r--r--\",\"owner\":\"user\",\"group\":\"user\",\"modifiedTime\":\"1970-01-01T00:00:00."
        "000Z\"}}");
    world.next_code = LINK_EXISTS;
    (void)snprintf(world.next_text, sizeof world.next_text, "%s", "exists");
    expect(unary(b, "/filesystem.Filesystem/MakeDir", "{\"path\":\"x\"}"), 409,
           "{\"code\":\"already_exists\",\"message\":\"exists\"}");
    expect(unary(b, "/filesystem.Filesystem/Move", "{\"source\":\"x\"}"), 400, NULL);
    expect(unary(b, "/filesystem.Filesystem/Remove", "{\"path\":\"x\"}"), 200, "{}");
    expect(unary(b, "/filesystem.Filesystem/ListDir", "{\"path\":\"x\",\"depth\":65}"), 400, NULL);
    expect(unary(b, "/filesystem.Filesystem/ListDir", "{\"path\":\"x\"}"), 200, NULL);
    expect(ask_envd(b, "POST", "/files/compose", "application/json", "{\"source_paths\":[\"a\"],\"destination\":\"b\"}",
                    40),
           200, NULL);
    char perms[16];
    fs_permissions(&(struct file_info){.type = FILE_DIRECTORY, .mode = 041777}, perms);
    assert_string_equal(perms, "dtrwxrwxrwx");
    fs_permissions(&(struct file_info){.type = FILE_REGULAR, .mode = 0100640, .target = "/x"}, perms);
    assert_string_equal(perms, "Lrwxrwxrwx");
}

static void test_watch(void **state)
{
    unsigned flags;
    (void)state;
    struct sandbox *b = world_sandbox("i0", 0, 1000);
    struct asked *a = stream(b, "/filesystem.Filesystem/WatchDir", "{\"path\":\"/d\",\"recursive\":true}");
    world.watch->started(world.watch_arg);
    world.watch->event(world.watch_arg, FILE_CREATED, "new", NULL);
    json_t *v = envelope(a, 0, &flags);
    assert_non_null(json_object_get(v, "start"));
    json_decref(v);
    v = envelope(a, 1, &flags);
    assert_string_equal(json_string_value(down(v, "filesystem.type")), "EVENT_TYPE_CREATE");
    json_decref(v);
    asked_leave(a);
    assert_true(world.unwatched);
    asked_free(a);
    a = stream(b, "/filesystem.Filesystem/WatchDir", "{\"path\":\"/none\"}");
    world.watch->failed(world.watch_arg, &(struct link_status){.code = LINK_NOT_FOUND, .text = "no"});
    v = envelope(a, 0, &flags);
    assert_string_equal(json_string_value(down(v, "error.code")), "not_found");
    json_decref(v);
    asked_free(a);
    /* polled */
    a = unary(b, "/filesystem.Filesystem/CreateWatcher", "{\"path\":\"/d\"}");
    world.watch->started(world.watch_arg);
    assert_true(a->ended);
    /* an upload is answered after what it did is told, and so is who asks */
    assert_int_equal(world.settled, 0);
    expect(ask_envd(b, "POST", "/files?path=x.txt", "application/octet-stream", "hello", 5), 200, NULL);
    assert_int_equal(world.settled, 1);
    char request[80], *id = xstrndup(a->body.p + 14, 16);
    asked_free(a);
    (void)snprintf(request, sizeof request, "{\"watcherId\":\"%s\"}", id);
    world.watch->event(world.watch_arg, FILE_WRITTEN, "f", NULL);
    world.watch->event(world.watch_arg, FILE_REMOVED, "f", NULL);
    expect(unary(b, "/filesystem.Filesystem/GetWatcherEvents", request), 200,
           "{\"events\":[{\"name\":\"f\",\"type\":\"EVENT_TYPE_WRITE\"},{\"name\":\"f\",\"type\":\"EVENT_TYPE_REMOVE\"}"
           "]}");
    assert_int_equal(world.settled, 2);
    expect(unary(b, "/filesystem.Filesystem/GetWatcherEvents", request), 200, "{\"events\":[]}");
    expect(unary(b, "/filesystem.Filesystem/RemoveWatcher", request), 200, "{}");
    expect(unary(b, "/filesystem.Filesystem/GetWatcherEvents", request), 404, NULL);
    free(id);
    /* it goes with its sandbox, also while somebody waits for it */
    a = unary(b, "/filesystem.Filesystem/CreateWatcher", "{\"path\":\"/d\"}");
    sandbox_kill(world.api.sandboxes, b, "test", NULL, NULL);
    expect(a, 502, NULL);
}

static void test_gateway(void **state)
{
    (void)state;
    struct sandbox *b = world_sandbox("i0", 0, 1000);
    const char *to[] = {"host",     "3000-i0.hutch.test",       "accept", "text/html", "sec-fetch-mode",
                        "navigate", "e2b-traffic-access-token", "x",      NULL};
    struct asked *a = ask("GET", "/", to, NULL, 0);
    assert_string_equal(asked_field(a, "content-type"), "text/html; charset=utf-8");
    expect(a, 502, NULL);
    to[5] = "cors";
    expect(ask("GET", "/", to, NULL, 0), 502,
           "{\"sandboxId\":\"i0\",\"message\":\"The sandbox is running but port is not "
           "open\",\"port\":3000,\"code\":502}");
    assert_int_equal(gateway_count(b->id), 0);
    b->desc.allow_public_traffic = false;
    (void)snprintf(b->traffic_token, sizeof b->traffic_token, "%s", "secret");
    expect(ask("GET", "/", to, NULL, 0), 403, NULL);
    to[7] = "secret";
    expect(ask("GET", "/", to, NULL, 0), 502, NULL);
    for (unsigned i = 0; i < GATEWAY_CONNECTIONS_MAX; i++)
        gateway_count_up(b->id);
    expect(ask("GET", "/", to, NULL, 0), 429,
           "{\"sandboxId\":\"i0\",\"message\":\"Too many connections to this sandbox at once\",\"connectionLimit\":200,"
           "\"code\":429}");
    for (unsigned i = 0; i < GATEWAY_CONNECTIONS_MAX; i++)
        gateway_count_down(b->id);
    to[1] = "3000-i1.hutch.test";
    expect(ask("GET", "/", to, NULL, 0), 502,
           "{\"sandboxId\":\"i1\",\"message\":\"The sandbox was not found\",\"code\":502}");
    to[1] = "99999-i1.hutch.test";
    expect(ask("GET", "/", to, NULL, 0), 400, NULL);
}

/* What an init that was taken over does with a pipe that it handed over: the flags of the open file are its own, too. */
static void make_blocking(ino_t pipe)
{
    struct stat st;
    for (int fd = 3; fd < 256; fd++)
        if (fstat(fd, &st) == 0 && S_ISFIFO(st.st_mode) && st.st_ino == pipe)
            assert_int_equal(fcntl(fd, F_SETFL, 0), 0);
}

/* Two are told of the same byte; one gets it, and the other must not wait for the next. */
static void test_read_blocking_pipe(void **state)
{
    char path[200];
    struct stat st;
    struct err err;
    (void)state;
    struct sandbox *b = world_sandbox("i0", 0, 1000);
    (void)snprintf(path, sizeof path, "%s/fifo", world.dir);
    assert_int_equal(mkfifo(path, 0600), 0);
    int both = open(path, O_RDWR | O_CLOEXEC);
    assert_true(both >= 0 && fstat(both, &st) == 0);
    (void)alarm(20);
    struct asked *one = ask_envd(b, "GET", "/files?path=fifo", NULL, NULL, 0);
    struct asked *two = ask_envd(b, "GET", "/files?path=fifo", NULL, NULL, 0);
    make_blocking(st.st_ino);
    assert_int_equal(write(both, "x", 1), 1);
    for (int i = 0; i < 20; i++)
        assert_int_equal(loop_step(world.loop, 1, &err), 0);
    assert_int_equal(one->body.n + two->body.n, 1);
    (void)close(both);
    asked_run(one);
    asked_run(two);
    expect(one, 200, NULL);
    expect(two, 200, NULL);
    (void)alarm(0);
}

int main(void)
{
#define WORLD(f) cmocka_unit_test_setup_teardown(f, world_start, world_end)
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_signature),
        WORLD(test_signed_urls),
        WORLD(test_edges),
        WORLD(test_start),
        WORLD(test_start_ends),
        WORLD(test_deadline),
        WORLD(test_rest_of_process),
        WORLD(test_read),
        WORLD(test_read_blocking_pipe),
        WORLD(test_write),
        WORLD(test_write_gzip),
        WORLD(test_filesystem),
        WORLD(test_watch),
        WORLD(test_gateway),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
