/* What keeper and front say, and what they are told. */
#include "egress-world.h"

#include <sched.h>
#include <sys/wait.h>

#include "base/fd.h"
#include "egress/control.h"
#include "egress/secrets/seal.h"
#include "egress/secrets/secrets.h"
#include "os/netns.h"

#define KEY "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

static int front_fd = -1, keeper_fd = -1;
static struct buf heard;

static int start(void **state)
{
    int f[2], k[2];
    struct err err = {0};
    (void)world_start(state);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, f), 0);
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, k), 0);
    world.g.ca_pem = xstrdup("-----BEGIN");
    assert_int_equal(control_start(&world.g, k[0], f[0], KEY, &err), 0);
    front_fd = f[1];
    keeper_fd = k[1];
    return 0;
}

static int stop(void **state)
{
    if (front_fd >= 0)
        (void)close(front_fd);
    if (keeper_fd >= 0)
        (void)close(keeper_fd);
    buf_done(&heard);
    esb_drop_all(&world.g);
    control_stop(&world.g);
    secrets_free(world.g.vault);
    free(world.g.ca_pem);
    return world_stop(state);
}

static void tell(const char *json)
{
    uint32_t n = (uint32_t)strlen(json);
    const unsigned char length[] = {(unsigned char)n, (unsigned char)(n >> 8), (unsigned char)(n >> 16),
                                    (unsigned char)(n >> 24)};
    says(front_fd, length, 4);
    says(front_fd, json, n);
}

/* The next message of this type; others are passed over. */
static json_t *told(const char *type)
{
    for (;;) {
        hears_bytes(front_fd, &heard, 4);
        const unsigned char *p = (const unsigned char *)heard.p;
        size_t n = p[0] | (size_t)p[1] << 8 | (size_t)p[2] << 16 | (size_t)p[3] << 24;
        hears_bytes(front_fd, &heard, 4 + n);
        json_t *m = json_loadb(heard.p + 4, n, 0, NULL);
        memmove(heard.p, heard.p + 4 + n, heard.n - 4 - n);
        heard.n -= 4 + n;
        assert_non_null(m);
        if (!type || strcmp(json_string_value(json_object_get(m, "type")), type) == 0)
            return m;
        json_decref(m);
    }
}

static const char *text_of(json_t *m, const char *key)
{
    const char *s = json_string_value(json_object_get(m, key));
    return s ? s : "";
}

static void greet(void)
{
    tell("{\"type\":\"hello\",\"version\":1}");
    json_t *m = told("hello");
    assert_int_equal(json_integer_value(json_object_get(m, "version")), 1);
    assert_string_equal(text_of(m, "ca"), "-----BEGIN");
    assert_string_equal(text_of(m, "key"), KEY);
    json_decref(m);
}

#define POLICY(id, epoch, doc) \
    "{\"type\":\"policy\",\"sandbox\":\"" id "\",\"tenant\":\"t\",\"epoch\":" #epoch ",\"policy\":" doc "}"

static void test_a_policy_is_applied_and_a_wrong_one_is_named(void **state)
{
    (void)state;
    greet();
    tell(POLICY("one", 7, "{\"rules\":[{\"hosts\":[\"api.example\"]}]}"));
    json_t *m = told("applied");
    assert_string_equal(text_of(m, "sandbox"), "one");
    assert_int_equal(json_integer_value(json_object_get(m, "epoch")), 7);
    assert_null(json_object_get(m, "error"));
    json_decref(m);
    struct esb *s = esb_find(&world.g, "one");
    assert_true(s && s->policy && s->epoch == 7 && s->named);
    tell(POLICY("one", 8, "{\"rules\":[{\"hosts\":[]}]}"));
    m = told("applied");
    assert_string_equal(text_of(json_object_get(m, "error"), "path"), "rules[0].hosts");
    json_decref(m);
    assert_int_equal(s->epoch, 7); /* the old one stays */
}

static void test_placeholders_replace_those_before(void **state)
{
    (void)state;
    greet();
    tell("{\"type\":\"policy\",\"sandbox\":\"one\",\"tenant\":\"t\",\"epoch\":1,\"policy\":\"off\",\"placeholders\":{"
         "\"key\":\"ph-1\"}}");
    json_decref(told("applied"));
    struct esb *s = esb_find(&world.g, "one");
    assert_string_equal(map_get(&s->placeholders, "ph-1"), "key");
    tell("{\"type\":\"policy\",\"sandbox\":\"one\",\"tenant\":\"t\",\"epoch\":2,\"policy\":\"off\",\"placeholders\":{"
         "\"key\":\"ph-2\"}}");
    json_decref(told("applied"));
    assert_null(map_get(&s->placeholders, "ph-1"));
    assert_string_equal(map_get(&s->placeholders, "ph-2"), "key");
}

static void test_what_is_not_named_again_is_dropped(void **state)
{
    (void)state;
    greet();
    tell(POLICY("one", 1, "\"off\""));
    tell(POLICY("two", 1, "\"off\""));
    json_decref(told("applied"));
    json_decref(told("applied"));
    tell("{\"type\":\"hello\",\"version\":1}");
    tell(POLICY("two", 1, "\"off\""));
    tell("{\"type\":\"synced\"}");
    UNTIL(!esb_find(&world.g, "one"));
    assert_non_null(esb_find(&world.g, "two"));
    tell("{\"type\":\"forget\",\"sandbox\":\"two\"}");
    UNTIL(!esb_find(&world.g, "two"));
}

static void refused(const char *json)
{
    tell(json);
    json_t *m = told("error");
    assert_true(strlen(text_of(m, "text")) > 10);
    json_decref(m);
    assert_int_equal(hears_end(front_fd, &heard), 1);
}

static void test_the_first_message_must_be_hello(void **state)
{
    struct err err = {0};
    bool hello = false;
    static const char m[] = "{\"type\":\"synced\"}";
    (void)state;
    assert_int_equal(control_message(&world.g, KEY, &hello, m, sizeof m - 1, &err), -1);
    assert_non_null(strstr(err.msg, "must be \"hello\""));
}

static void test_malformed_messages_end_the_connection(void **state)
{
    (void)state;
    greet();
    refused("{\"type\":\"policy\",\"sandbox\":\"one\"}");
}

static void test_each_kind_of_nonsense_is_refused(void **state)
{
    static const char *const bad[] = {
        "",
        "[]",
        "{",
        "{\"type\":1}",
        "{\"type\":\"nothing\"}",
        "{\"type\":\"synced\",\"more\":1}",
        "{\"type\":\"synced\",\"type\":\"synced\"}",
        "{\"type\":\"stats\",\"request\":[]}",
        "{\"type\":\"forget\"}",
        "{\"type\":\"policy\",\"sandbox\":\"../x\",\"tenant\":\"t\",\"epoch\":1,\"policy\":\"off\"}",
        "{\"type\":\"policy\",\"sandbox\":\"x\",\"tenant\":\"t\",\"epoch\":-1,\"policy\":\"off\"}",
        ("{\"type\":\"policy\",\"sandbox\":\"x\",\"tenant\":\"t\",\"epoch\":1,\"policy\":\"off\",\"placeholders\":{"
         "\"a\":\"\"}}"),
        "{\"type\":\"hello\",\"version\":2}",
        "{\"type\":\"seed\",\"tenant\":\"\",\"usage\":{}}",
        "{\"type\":\"forget\",\"sandbox\":\"x\",\"tenant\":\"t\"}",
        "{\"type\":\"seed\",\"tenant\":\"t\",\"sandbox\":\"../x\",\"usage\":{}}",
        "{\"type\":\"seed\",\"tenant\":\"t\"}",
    };
    bool hello = true;
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        struct err err = {0};
        if (control_message(&world.g, KEY, &hello, bad[i], strlen(bad[i]), &err) == 0)
            fail_msg("%s", bad[i]);
        assert_true(err.msg[0] != '\0');
    }
}

static void test_what_one_tenant_asks_for_does_not_end_the_connection_of_all(void **state)
{
    _cleanup_buf_ struct buf text = {0};
    (void)state;
    greet();
    tell(POLICY("one", 1, "{\"rules\":[{\"hosts\":[\"api.example\"]}]}"));
    json_decref(told("applied"));
    tell("{\"type\":\"denials\",\"request\":5,\"sandbox\":\"one\",\"since\":-1}");
    json_t *m = told("denials");
    assert_string_equal(text_of(m, "error"), "a number is negative");
    json_decref(m);
    buf_adds(
        &text,
        "{\"type\":\"policy\",\"sandbox\":\"one\",\"tenant\":\"t\",\"epoch\":2,\"policy\":\"off\",\"placeholders\":{");
    for (int i = 0; i < 1025; i++)
        buf_addf(&text, "%s\"s%d\":\"placeholder-%d\"", i ? "," : "", i, i);
    buf_adds(&text, "}}");
    tell(buf_str(&text));
    m = told("applied");
    assert_non_null(strstr(text_of(json_object_get(m, "error"), "text"), "more than 1024 secrets"));
    json_decref(m);
    assert_int_equal(esb_find(&world.g, "one")->epoch, 1); /* the old one stays */
    tell(POLICY("two", 1, "\"off\""));
    m = told("applied");
    assert_string_equal(text_of(m, "sandbox"), "two");
    json_decref(m);
}

static void test_nobody_is_asked_when_front_says_so(void **state)
{
    (void)state;
    greet();
    tell(POLICY("one", 1, "{\"on_miss\":\"ask\"}"));
    json_decref(told("applied"));
    struct esb *s = esb_find(&world.g, "one");
    struct netpol_flow f = {.host = "a.example", .port = 443, .tls = true};
    _cleanup_buf_ struct buf out = {0}, status = {0};
    assert_int_equal(ask_from_inside(s, &f, NULL, "please", &out), 202);
    json_t *m = told("ask");
    char text[120], id[40];
    (void)snprintf(id, sizeof id, "%s", text_of(m, "id"));
    json_decref(m);
    (void)snprintf(text, sizeof text, "{\"type\":\"unask\",\"sandbox\":\"one\",\"id\":\"%s\"}", id);
    tell(text);
    tell("{\"type\":\"unask\",\"sandbox\":\"nobody\",\"id\":\"x\"}");
    tell("{\"type\":\"stats\",\"request\":1,\"sandbox\":\"one\"}");
    json_decref(told("stats"));
    assert_true(ask_status(s, id, &status));
    assert_non_null(strstr(buf_str(&status), "\"too_many\""));
}

static uint64_t number_of(const json_t *m, const char *name)
{
    return (uint64_t)json_integer_value(json_object_get(m, name));
}

static void test_what_a_tenant_used_is_that_of_all_its_sandboxes_also_of_those_that_ended(void **state)
{
    (void)state;
    greet();
    for (int i = 0; i < 3; i++) {
        char text[200];
        (void)snprintf(text, sizeof text,
                       "{\"type\":\"policy\",\"sandbox\":\"s%d\",\"tenant\":\"%s\",\"epoch\":1,\"policy\":\"off\"}", i,
                       i < 2 ? "acme" : "other");
        tell(text);
        json_decref(told("applied"));
        (void)snprintf(text, sizeof text, "s%d", i);
        struct esb *s = esb_find(&world.g, text);
        s->counts.requests = 10;
        (void)limit_bytes(s, "api.example", 5, 7);
        (void)limit_bytes(s, i == 0 ? "zero.example" : "one.example", 1, 0);
    }
    tell("{\"type\":\"forget\",\"sandbox\":\"s0\"}");
    tell("{\"type\":\"tenant\",\"request\":7,\"tenant\":\"acme\"}");
    json_t *m = told("tenant"), *hosts = json_object_get(m, "hosts");
    assert_int_equal(number_of(m, "request"), 7);
    assert_string_equal(text_of(m, "tenant"), "acme");
    assert_int_equal(number_of(m, "sandboxes"), 1);
    assert_int_equal(number_of(m, "sandboxes_ended"), 1);
    assert_int_equal(number_of(m, "requests"), 20);
    assert_int_equal(number_of(m, "bytes_up"), 12);
    assert_int_equal(number_of(m, "bytes_down"), 14);
    assert_int_equal(number_of(json_object_get(hosts, "api.example"), "bytes_down"), 14);
    assert_int_equal(number_of(json_object_get(hosts, "zero.example"), "bytes_up"), 1);
    assert_int_equal(json_object_size(hosts), 3);
    json_decref(m);
    tell("{\"type\":\"tenant\",\"request\":8,\"tenant\":\"nobody\"}");
    m = told("tenant");
    assert_int_equal(number_of(m, "requests") + number_of(m, "sandboxes"), 0);
    json_decref(m);
}

static json_t *ask_tenant(void)
{
    tell("{\"type\":\"tenant\",\"request\":9,\"tenant\":\"acme\"}");
    return told("tenant");
}

#define SEED(requests, up, down)                                                                          \
    "\"usage\":{\"sandboxes_ended\":4,\"requests\":" requests ",\"bytes_up\":" up ",\"bytes_down\":" down \
    ",\"hosts\":{\"api.example\":{\"requests\":" requests ",\"bytes_up\":" up ",\"bytes_down\":" down "}}}}"

static void test_a_new_egress_goes_on_counting_where_the_one_before_ended(void **state)
{
    (void)state;
    greet();
    tell("{\"type\":\"seed\",\"tenant\":\"acme\"," SEED("100", "1000", "2000"));
    tell("{\"type\":\"seed\",\"tenant\":\"acme\",\"sandbox\":\"s\"," SEED("10", "20", "30"));
    tell("{\"type\":\"policy\",\"sandbox\":\"s\",\"tenant\":\"acme\",\"epoch\":1,"
         "\"policy\":{\"limits\":{\"bytes_out\":26}}}");
    json_decref(told("applied"));
    struct esb *s = esb_find(&world.g, "s");
    /* A second time, as after a restart of front: it is counted here by now. */
    tell("{\"type\":\"seed\",\"tenant\":\"acme\"," SEED("100", "1000", "2000"));
    tell("{\"type\":\"seed\",\"tenant\":\"acme\",\"sandbox\":\"s\"," SEED("10", "20", "30"));
    s->counts.requests++;
    assert_int_equal(limit_bytes(s, "api.example", 5, 7), NETPOL_R_NONE);
    /* A limit of the sandbox's life is one also if egress was begun anew meanwhile. */
    assert_int_equal(limit_bytes(s, "new.example", 2, 0), NETPOL_R_QUOTA);
    tell("{\"type\":\"tenant\",\"request\":9,\"tenant\":\"acme\"}");
    json_t *m = told("usage");
    assert_int_equal(number_of(m, "requests"), 11);
    assert_int_equal(number_of(m, "bytes_up"), 27);
    assert_int_equal(number_of(m, "bytes_down"), 37);
    json_t *hosts = json_object_get(m, "hosts");
    assert_int_equal(json_object_size(hosts), 2);
    assert_int_equal(number_of(json_object_get(hosts, "api.example"), "bytes_up"), 25);
    json_decref(m);
    m = told("tenant_usage");
    assert_int_equal(number_of(m, "requests"), 101);
    assert_int_equal(number_of(m, "bytes_up"), 1007);
    assert_int_equal(number_of(m, "sandboxes_ended"), 4);
    json_decref(m);
    m = told("tenant");
    assert_int_equal(number_of(m, "bytes_down"), 2007);
    assert_int_equal(number_of(json_object_get(json_object_get(m, "hosts"), "api.example"), "bytes_down"), 2007);
    json_decref(m);
    tell("{\"type\":\"forget\",\"sandbox\":\"s\"}");
    m = ask_tenant();
    assert_int_equal(number_of(m, "requests"), 101); /* once, although it ended */
    assert_int_equal(number_of(m, "bytes_up"), 1007);
    assert_int_equal(number_of(m, "sandboxes_ended"), 5);
    json_decref(m);
    tell("{\"type\":\"tenant\",\"request\":9,\"tenant\":\"acme\"}");
    m = told(NULL);
    assert_string_equal(text_of(m, "type"), "tenant"); /* nothing has changed: nothing to write */
    json_decref(m);
    greet(); /* a front that knows nothing is told everything */
    tell("{\"type\":\"tenant\",\"request\":9,\"tenant\":\"acme\"}");
    m = told("tenant_usage");
    assert_int_equal(json_object_size(json_object_get(m, "hosts")), 2);
    json_decref(m);
    json_decref(told("tenant"));
    tell("{\"type\":\"forget\",\"tenant\":\"acme\"}"); /* the next one of that name is another */
    tell("{\"type\":\"tenant\",\"request\":9,\"tenant\":\"acme\"}");
    m = told(NULL);
    assert_string_equal(text_of(m, "type"), "tenant");
    assert_int_equal(number_of(m, "requests"), 0);
    assert_int_equal(number_of(m, "sandboxes_ended"), 0);
    assert_int_equal(json_object_size(json_object_get(m, "hosts")), 0);
    json_decref(m);
}

static void test_questions_are_answered_with_their_number(void **state)
{
    (void)state;
    greet();
    tell(POLICY("one", 1, "{\"rules\":[{\"hosts\":[\"api.example\"]}]}"));
    json_decref(told("applied"));
    struct esb *s = esb_find(&world.g, "one");
    (void)limit_bytes(s, "api.example", 5, 7);
    tell("{\"type\":\"stats\",\"request\":41,\"sandbox\":\"one\"}");
    json_t *m = told("stats"), *sandbox = json_array_get(json_object_get(m, "sandboxes"), 0);
    assert_int_equal(json_integer_value(json_object_get(m, "request")), 41);
    assert_int_equal(json_array_size(json_object_get(m, "sandboxes")), 1);
    json_t *host = json_object_get(json_object_get(sandbox, "hosts"), "api.example");
    assert_int_equal(json_integer_value(json_object_get(host, "bytes_down")), 7);
    json_decref(m);
    struct deny d = {.reason = NETPOL_R_HOST, .layer = "dns", .host = "evil.example"};
    deny_record(s, &d);
    tell("{\"type\":\"denials\",\"request\":\"x\",\"sandbox\":\"one\"}");
    m = told("denials");
    assert_string_equal(text_of(m, "request"), "x");
    assert_int_equal(json_array_size(json_object_get(m, "denials")), 1);
    json_decref(m);
    tell("{\"type\":\"check\",\"request\":1,\"sandbox\":\"one\",\"url\":\"https://api.example/\"}");
    m = told("check");
    assert_string_equal(text_of(m, "verdict"), "allow");
    json_decref(m);
    tell("{\"type\":\"check\",\"request\":1,\"sandbox\":\"one\",\"url\":\"\"}");
    m = told("check");
    assert_string_equal(text_of(m, "wrong"), "url must be http://HOST[:PORT]/PATH or https://HOST[:PORT]/PATH");
    assert_null(json_object_get(m, "error"));
    json_decref(m);
    tell("{\"type\":\"learned\",\"request\":1,\"sandbox\":\"one\"}");
    m = told("learned");
    assert_true(json_is_object(json_object_get(m, "policy")));
    json_decref(m);
    tell("{\"type\":\"learned\",\"request\":1,\"sandbox\":\"none\"}");
    m = told("learned");
    assert_string_equal(text_of(m, "error"), "no such sandbox");
    json_decref(m);
}

static void test_usage_is_told_when_it_has_changed(void **state)
{
    (void)state;
    greet();
    policy("\"off\"");
    (void)limit_bytes(world.s, "x", 100, 1);
    pass(CONTROL_USAGE_MS + 1);
    json_t *m = told("usage");
    assert_string_equal(text_of(m, "sandbox"), "box");
    assert_int_equal(json_integer_value(json_object_get(m, "bytes_up")), 100);
    json_decref(m);
    pass(CONTROL_USAGE_MS + 1);
    int end;
    hears(front_fd, &heard, &end);
    assert_int_equal(heard.n, 0);
}

static void test_a_secret_that_cannot_be_opened_ends_nothing(void **state)
{
    unsigned char key[SEAL_KEY];
    struct err err = {0};
    (void)state;
    assert_int_equal(seal_new_key(key, &err), 0);
    world.g.vault = secrets_new(key);
    greet();
    tell("{\"type\":\"secret\",\"tenant\":\"t\",\"name\":\"n\",\"revision\":1,\"sealed\":\"AAAA\",\"spec\":{}}");
    tell("{\"type\":\"unsecret\",\"tenant\":\"t\",\"name\":\"n\"}");
    tell(POLICY("one", 1, "\"off\""));
    json_decref(told("applied"));
    assert_int_equal(secrets_count(world.g.vault), 0);
}

static void test_a_front_that_does_not_read_is_dropped(void **state)
{
    (void)state;
    greet();
    for (int i = 0; i < 20; i++) {
        struct buf b = {0};
        char *big = xcalloc(1, 1 << 20);
        memset(big, ' ', 1 << 20);
        buf_add(&b, big, 1 << 20);
        free(big);
        control_tell(&world.g, &b);
    }
    (void)hears_end(front_fd, &heard);
}

/* --- keeper ------------------------------------------------------------------------------------------------------- */

static void send_attach(uint32_t type, const char *id, const struct netns *n, const int *fds, size_t nfds)
{
    struct egress_attach a = {.version = EGRESS_VERSION, .type = type};
    (void)snprintf(a.id, sizeof a.id, "%s", id);
    if (n) {
        a.ns_cookie = n->cookie;
        a.tcp_cookie = n->tcp_cookie;
        a.udp_cookie = n->udp_cookie;
    }
    assert_int_equal(fd_send(keeper_fd, &a, sizeof a, fds, nfds), 0);
}

static void test_sockets_of_another_kind_are_not_taken(void **state)
{
    uint16_t port;
    (void)state;
    int fds[2] = {listener(&port), bound(SOCK_DGRAM, &port)};
    send_attach(EGRESS_ATTACH, "one", NULL, fds, 2);
    turn();
    assert_null(esb_find(&world.g, "one"));
    (void)close(fds[0]);
    (void)close(fds[1]);
}

static void test_a_message_of_another_version_ends_the_connection(void **state)
{
    struct egress_attach a = {.version = 99, .type = EGRESS_DETACH, .id = "one"};
    char c;
    (void)state;
    assert_int_equal(fd_send(keeper_fd, &a, sizeof a, NULL, 0), 0);
    ssize_t n = -1;
    UNTIL((n = recv(keeper_fd, &c, 1, MSG_DONTWAIT)) == 0);
}

/* A real namespace: attached, served once there is a policy, detached. */
static void test_a_namespace_is_served_from_its_policy_on(void **state)
{
    struct netns n = NETNS_INIT;
    struct err err = {0};
    (void)state;
    if (netns_make(&n, &err) < 0) {
        print_message("no namespace here: %s\n", err.msg);
        skip();
    }
    int fds[2] = {n.tcp, n.udp};
    send_attach(EGRESS_ATTACH, "one", &n, fds, 2);
    UNTIL(esb_find(&world.g, "one"));
    struct esb *s = esb_find(&world.g, "one");
    assert_true(s->tcp >= 0 && s->udp >= 0 && !s->tcp_watch);
    greet();
    tell(POLICY("one", 1, "{\"rules\":[{\"hosts\":[\"api.example\"]}]}"));
    json_decref(told("applied"));
    assert_true(s->tcp_watch && s->udp_watch);
    pid_t child = fork();
    if (child == 0) {
        struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(80)};
        a.sin_addr.s_addr = htonl(0x08080808);
        if (setns(n.ns, CLONE_NEWNET) < 0)
            _exit(1);
        int fd = socket(AF_INET, SOCK_STREAM, 0);
        if (fd < 0 || connect(fd, (struct sockaddr *)&a, sizeof a) < 0 || write(fd, "GET / HTTP/1.1\r\n", 16) != 16)
            _exit(2);
        _exit(0);
    }
    UNTIL(world.http);
    assert_int_equal(world.http->port, 80);
    assert_int_equal(world.http->literal.s6_addr[12], 8);
    assert_true(world.http->sb == s);
    int status = -1;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    send_attach(EGRESS_DETACH, "one", NULL, NULL, 0);
    UNTIL(s->tcp < 0);
    assert_int_equal(s->nflows, 0);
    netns_close(&n);
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, start, stop)
    const struct CMUnitTest tests[] = {
        T(test_a_policy_is_applied_and_a_wrong_one_is_named),
        T(test_placeholders_replace_those_before),
        T(test_what_is_not_named_again_is_dropped),
        T(test_the_first_message_must_be_hello),
        T(test_malformed_messages_end_the_connection),
        T(test_each_kind_of_nonsense_is_refused),
        T(test_what_a_tenant_used_is_that_of_all_its_sandboxes_also_of_those_that_ended),
        T(test_usage_is_told_when_it_has_changed),
        T(test_what_one_tenant_asks_for_does_not_end_the_connection_of_all),
        T(test_nobody_is_asked_when_front_says_so),
        T(test_a_new_egress_goes_on_counting_where_the_one_before_ended),
        T(test_questions_are_answered_with_their_number),
        T(test_usage_is_told_when_it_has_changed),
        T(test_a_secret_that_cannot_be_opened_ends_nothing),
        T(test_a_front_that_does_not_read_is_dropped),
        T(test_sockets_of_another_kind_are_not_taken),
        T(test_a_message_of_another_version_ends_the_connection),
        T(test_a_namespace_is_served_from_its_policy_on),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
