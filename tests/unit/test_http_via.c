#include "tests/lib/unit.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "http/blocking-via.h"

static struct err err;

static void proxies_are_read_as_they_are_written(void **state)
{
    static const struct {
        const char *text, *host, *port, *login;
    } good[] = {
        {"proxy", "proxy", "1080", NULL},
        {"http://proxy.example:3128", "proxy.example", "3128", NULL},
        {"HTTP://proxy.example:3128/", "proxy.example", "3128", NULL},
        {"http://[::1]:8080", "::1", "8080", NULL},
        {"[fd00::5]", "fd00::5", "1080", NULL},
        {"http://u:p@proxy:1", "proxy", "1", "Basic dTpw"},
        {"u@proxy:65535", "proxy", "65535", "Basic dTo="},
        {"http://u%40x:p%3Aq@[::1]:8080", "::1", "8080", "Basic dUB4OnA6cQ=="},
        {"http://u:a@b@proxy", "proxy", "1080", "Basic dTphQGI="},
    };
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(good); i++) {
        struct blocking_via v;
        if (blocking_via_read("HTTPS_PROXY", good[i].text, &v, &err) < 0)
            fail_msg("refused '%s': %s", good[i].text, err.msg);
        assert_string_equal(v.host, good[i].host);
        assert_string_equal(v.port, good[i].port);
        assert_string_equal(v.login ? v.login : "", good[i].login ? good[i].login : "");
        free(v.login);
    }
}

static void a_bad_proxy_is_refused_without_its_password(void **state)
{
    static const char *const bad[] = {
        "",
        "http://",
        "http://:80",
        "http://u:geheim@",
        "proxy:0",
        "proxy:65536",
        "proxy:",
        "proxy:8x",
        "http://[::1",
        "http://[::1]8",
        "http://[proxy]",
        "http://[::1]:",
        "pro xy:1",
        "proxy:123456789",
        "a\r\nb:1",
        "geheim%zz@proxy:1",
        "socks5://geheim@proxy:1",
        "https://u:geheim@proxy",
        "://x",
        "http:\r\n//x://y",
    };
    char huge[3000];
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        struct blocking_via v;
        if (blocking_via_read("HTTPS_PROXY", bad[i], &v, &err) == 0)
            fail_msg("accepted '%s'", bad[i]);
        assert_int_equal(err.code, ERR_USAGE);
        assert_null(strstr(err.msg, "geheim"));
        assert_null(strpbrk(err.msg, "\r\n"));
        free(v.login);
    }
    for (int at = 0; at < 2; at++) {
        struct blocking_via v;
        memset(huge, 'a', sizeof huge - 1);
        huge[sizeof huge - 1] = '\0';
        if (at)
            huge[2000] = '@';
        assert_int_equal(blocking_via_read("HTTPS_PROXY", huge, &v, &err), -1);
        free(v.login);
    }
}

static void exceptions_are_names_suffixes_addresses_and_blocks(void **state)
{
    static const struct {
        const char *list, *host;
        bool want;
    } cases[] = {
        {"", "a.example", false},
        {"*", "a.example", true},
        {"x,*", "::1", true},
        {"example", "a.example", true},
        {".example", "example", true},
        {"EXAMPLE.", "a.Example.", true},
        {"ample", "example", false},
        {"a.example", "example", false},
        {"a.example", "xa.example", false},
        {"b, a.example", "a.example", true},
        {"b a.example", "a.example", true},
        {".", "a.example", false},
        {",,", "a.example", false},
        {"10.1.2.3", "10.1.2.3", true},
        {"2.3", "10.1.2.3", false},
        {"10.0.0.0/8", "10.255.2.3", true},
        {"10.0.0.0/8", "11.0.0.1", false},
        {"10.0.0.0/31", "10.0.0.1", true},
        {"10.0.0.0/31", "10.0.0.2", false},
        {"10.0.0.0/32", "10.0.0.0", true},
        {"0.0.0.0/0", "10.0.0.2", true},
        {"10.0.0.0/33", "10.0.0.0", false},
        {"10.0.0.0/", "10.0.0.0", false},
        {"10.0.0.0/0008", "10.0.0.0", false},
        {"10.0.0.0/-1", "10.0.0.0", false},
        {"10.0.0.0/8", "a.10.0.0.1", false},
        {"::/0", "10.0.0.1", false},
        {"fd00::/8", "fd12::1", true},
        {"fd00::/8", "fe80::1", false},
        {"[fd00::1]", "fd00::1", true},
        {"FD00:0::1", "fd00::1", true},
        {"fd00::/129", "fd00::1", false},
    };
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++)
        if (blocking_via_excepts(cases[i].list, cases[i].host) != cases[i].want)
            fail_msg("'%s' and %s", cases[i].list, cases[i].host);
}

/* What the client makes of a proxy's answer; `ret_asked` is what the proxy saw. */
static int connected(const char *answer, const struct blocking_via *v, struct blocking *b, char ret_asked[1000])
{
    int pair[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    _cleanup_close_ int peer = pair[1];
    assert_int_equal(fcntl(pair[0], F_SETFL, O_NONBLOCK), 0);
    assert_int_equal(write(peer, answer, strlen(answer)), (ssize_t)strlen(answer));
    assert_int_equal(shutdown(peer, SHUT_WR), 0);
    blocking_start(b, pair[0], NULL);
    int r = blocking_via_connect(b, v, "node.example:443");
    ssize_t n = read(peer, ret_asked, 999);
    ret_asked[n > 0 ? n : 0] = '\0';
    return r;
}

static void a_proxy_is_asked_for_a_connection(void **state)
{
    struct blocking_via v = {.host = "p", .port = "1", .login = NULL};
    struct blocking b;
    char asked[1000], login[] = "Basic dTpw";
    (void)state;
    assert_int_equal(connected("HTTP/1.1 200 Connection established\r\nvia: x\r\n\r\n", &v, &b, asked), 0);
    assert_non_null(strstr(asked, "CONNECT node.example:443 HTTP/1.1\r\nhost: node.example:443\r\n"));
    assert_null(strstr(asked, "proxy-authorization"));
    assert_true(b.fd >= 0);
    blocking_close(&b);
    v.login = login;
    assert_int_equal(connected("HTTP/1.0 407 No\r\ncontent-length: 3\r\n\r\nno\n", &v, &b, asked), -1);
    assert_non_null(strstr(asked, "\r\nproxy-authorization: Basic dTpw\r\n"));
    assert_int_equal(b.failure, 0);
    assert_int_equal(b.answer.status, 407);
    blocking_close(&b);
    assert_int_equal(connected("HTTP/1.1 200 OK\r\n\r\n\x16\x03", &v, &b, asked), -1); /* not the target's bytes */
    assert_int_equal(b.failure, BLOCKING_NOT_HTTP);
    blocking_close(&b);
    assert_int_equal(connected("SSH-2.0-x\r\n\r\n", &v, &b, asked), -1);
    assert_int_equal(b.failure, BLOCKING_NOT_HTTP);
    blocking_close(&b);
    assert_int_equal(connected("", &v, &b, asked), -1);
    assert_int_equal(b.failure, BLOCKING_UNANSWERED);
    blocking_close(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(proxies_are_read_as_they_are_written),
        cmocka_unit_test(a_bad_proxy_is_refused_without_its_password),
        cmocka_unit_test(exceptions_are_names_suffixes_addresses_and_blocks),
        cmocka_unit_test(a_proxy_is_asked_for_a_connection),
    };
    return cmocka_run_group_tests_name("http/blocking-via", tests, NULL, NULL);
}
