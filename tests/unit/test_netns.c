/* What happens to each kind of packet inside a namespace of os/netns.h. Needs root, or a user namespace for the last ones. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/netfilter.h>
#include <linux/netfilter/nf_tables.h>
#include <linux/netfilter/nfnetlink.h>
#include <linux/netlink.h>
#include <netinet/icmp6.h>
#include <netinet/ip_icmp.h>
#include <poll.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/fd.h"
#include "os/netlink.h"
#include "os/netns.h"
#include "os/rtnl.h"
#include "tests/lib/unit.h"

static struct netns net = NETNS_INIT;

static int make(void **state)
{
    struct err err = {0};
    (void)state;
    if (geteuid() != 0)
        return 0;
    if (netns_make(&net, &err) < 0) {
        print_error("%s\n", err.msg);
        return -1;
    }
    return 0;
}

static int drop(void **state)
{
    (void)state;
    netns_close(&net);
    return 0;
}

#define NEEDS_ROOT()                                                        \
    do {                                                                    \
        if (geteuid() != 0) {                                               \
            print_message("not root: see the cases in a user namespace\n"); \
            skip();                                                         \
        }                                                                   \
    } while (0)

/* --- the sandbox's side --------------------------------------------------------------------------------------------- */

static int enter(int ns)
{
    int home = open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC);
    assert_true(home >= 0);
    assert_int_equal(setns(ns, CLONE_NEWNET), 0);
    return home;
}

static void leave(int home)
{
    assert_int_equal(setns(home, CLONE_NEWNET), 0);
    (void)close(home);
}

/* A socket stays in the namespace in which it was made. */
static int socket_inside(int family, int type, int protocol)
{
    int home = enter(net.ns), fd = socket(family, type | SOCK_CLOEXEC, protocol), saved = errno;
    leave(home);
    errno = saved;
    return fd;
}

static void put_inside(const char *path, const char *value)
{
    int home = enter(net.ns), r = fd_put(AT_FDCWD, path, value);
    leave(home);
    assert_int_equal(r, 0);
}

struct address {
    struct sockaddr_storage s;
    socklen_t n;
};

static struct address address(const char *text, uint16_t port)
{
    struct address a = {0};
    struct sockaddr_in *v4 = (struct sockaddr_in *)(void *)&a.s;
    struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)(void *)&a.s;
    if (inet_pton(AF_INET, text, &v4->sin_addr) == 1) {
        v4->sin_family = AF_INET;
        v4->sin_port = htons(port);
        a.n = sizeof *v4;
    } else {
        assert_int_equal(inet_pton(AF_INET6, text, &v6->sin6_addr), 1);
        v6->sin6_family = AF_INET6;
        v6->sin6_port = htons(port);
        a.n = sizeof *v6;
    }
    return a;
}

/* A descriptor, or -1 with errno. */
static int connect_inside(int type, const char *text, uint16_t port)
{
    struct address a = address(text, port);
    int fd = socket_inside(a.s.ss_family, type, 0);
    assert_true(fd >= 0);
    struct timeval limit = {.tv_sec = 5}; /* never reached: a packet that is lost would hang the test */
    (void)setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
    (void)setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    if (connect(fd, (const struct sockaddr *)&a.s, a.n) == 0)
        return fd;
    int saved = errno;
    (void)close(fd);
    errno = saved;
    return -1;
}

/* --- the owner's side ----------------------------------------------------------------------------------------------- */

static bool readable(int fd)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    return poll(&p, 1, 60000) == 1;
}

static bool silent(int fd)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    return poll(&p, 1, 0) == 0;
}

/* What a client connected to, as the accepted socket sees it: "ADDRESS PORT". IPv4 is shown as such. */
static void accept_and_name(int listener, char ret[64])
{
    struct sockaddr_in6 here;
    socklen_t n = sizeof here;
    char text[INET6_ADDRSTRLEN];
    assert_true(readable(listener));
    int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&here, &n), 0);
    assert_int_equal(here.sin6_family, AF_INET6);
    (void)inet_ntop(AF_INET6, &here.sin6_addr, text, sizeof text);
    (void)snprintf(ret, 64, "%s %u", strncmp(text, "::ffff:", 7) == 0 ? text + 7 : text, ntohs(here.sin6_port));
    (void)close(fd);
}

static void assert_captured(const char *text, uint16_t port)
{
    char got[64], want[64];
    int fd = connect_inside(SOCK_STREAM, text, port);
    if (fd < 0)
        fail_msg("connect to %s: %s", text, strerror(errno));
    accept_and_name(net.tcp, got);
    (void)snprintf(want, sizeof want, "%s %u", text, port);
    assert_string_equal(got, want);
    (void)close(fd);
}

static void a_connection_to_any_address_arrives_with_its_destination(void **state)
{
    (void)state;
    NEEDS_ROOT();
    assert_captured("93.184.216.34", 443);
    assert_captured("192.168.1.1", 22);
    assert_captured("169.254.169.254", 80);
    assert_captured("255.1.2.3", 1);
    assert_captured("2606:2800:220:1::1", 443);
    assert_captured("fd12::1234", 65535);
}

static void the_gate_and_its_proxy_ports_are_ordinary_destinations(void **state)
{
    (void)state;
    NEEDS_ROOT();
    assert_captured(NETNS_GATE4, NETNS_HTTP_PROXY_PORT);
    assert_captured(NETNS_GATE4, NETNS_SOCKS_PORT);
    assert_captured(NETNS_GATE6, 80);
}

static void the_client_has_the_sandbox_s_own_address(void **state)
{
    (void)state;
    NEEDS_ROOT();
    struct sockaddr_in here;
    socklen_t n = sizeof here;
    char text[INET_ADDRSTRLEN], ignored[64];
    int fd = connect_inside(SOCK_STREAM, "1.1.1.1", 80);
    assert_true(fd >= 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&here, &n), 0);
    (void)inet_ntop(AF_INET, &here.sin_addr, text, sizeof text);
    assert_string_equal(text, NETNS_OWN4);
    accept_and_name(net.tcp, ignored);
    (void)close(fd);
}

/* Nothing listens there, then something does: each time the owner of the namespace hears nothing. */
static void loopback_and_own_addresses_are_left_alone(void **state)
{
    static const char *const own[] = {"127.0.0.1", "127.9.9.9", NETNS_OWN4, "::1", NETNS_OWN6};
    (void)state;
    NEEDS_ROOT();
    for (size_t i = 0; i < ARRAY_LEN(own); i++) {
        struct address a = address(own[i], 8080);
        assert_int_equal(connect_inside(SOCK_STREAM, own[i], 8080), -1);
        assert_int_equal(errno, ECONNREFUSED);
        int server = socket_inside(a.s.ss_family, SOCK_STREAM, 0), on = 1;
        assert_int_equal(setsockopt(server, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on), 0);
        assert_int_equal(bind(server, (const struct sockaddr *)&a.s, a.n), 0);
        assert_int_equal(listen(server, 4), 0);
        int fd = connect_inside(SOCK_STREAM, own[i], 8080);
        assert_true(fd >= 0);
        assert_true(readable(server));
        assert_true(silent(net.tcp));
        (void)close(fd);
        (void)close(server);
    }
}

static void a_question_to_any_resolver_is_answered_from_its_address(void **state)
{
    (void)state;
    NEEDS_ROOT();
    char bytes[64], ctl[256];
    int fd = connect_inside(SOCK_DGRAM, "8.8.8.8", 53); /* connected: an answer from elsewhere would not be seen */
    assert_true(fd >= 0);
    assert_int_equal(send(fd, "who?", 4, 0), 4);
    assert_true(readable(net.udp));
    struct sockaddr_in from;
    struct iovec iov = {.iov_base = bytes, .iov_len = sizeof bytes};
    struct msghdr m = {.msg_name = &from,
                       .msg_namelen = sizeof from,
                       .msg_iov = &iov,
                       .msg_iovlen = 1,
                       .msg_control = ctl,
                       .msg_controllen = sizeof ctl};
    assert_int_equal(recvmsg(net.udp, &m, 0), 4);
    struct cmsghdr *c = CMSG_FIRSTHDR(&m);
    assert_non_null(c);
    assert_int_equal(c->cmsg_type, IP_PKTINFO);
    struct in_pktinfo info;
    memcpy(&info, CMSG_DATA(c), sizeof info);
    char text[INET_ADDRSTRLEN];
    assert_string_equal(inet_ntop(AF_INET, &info.ipi_addr, text, sizeof text), "8.8.8.8");
    info = (struct in_pktinfo){.ipi_spec_dst = info.ipi_addr};
    memcpy(CMSG_DATA(c), &info, sizeof info);
    m.msg_controllen = CMSG_SPACE(sizeof info);
    iov.iov_len = 4;
    memcpy(bytes, "you!", 4);
    assert_int_equal(sendmsg(net.udp, &m, 0), 4);
    assert_int_equal(recv(fd, bytes, sizeof bytes, 0), 4);
    assert_memory_equal(bytes, "you!", 4);
    (void)close(fd);
}

static void a_datagram_to_anything_else_is_refused_at_once(void **state)
{
    static const struct {
        const char *address;
        uint16_t port;
    } to[] = {{"1.1.1.1", 443}, {"8.8.8.8", 123}, {"2001:db8::1", 443}, {"2001:db8::1", 53}};
    (void)state;
    NEEDS_ROOT();
    for (size_t i = 0; i < ARRAY_LEN(to); i++) {
        char byte;
        int fd = connect_inside(SOCK_DGRAM, to[i].address, to[i].port);
        assert_true(fd >= 0);
        assert_int_equal(send(fd, "x", 1, 0), 1);
        assert_int_equal(recv(fd, &byte, 1, 0), -1);
        assert_int_equal(errno, ECONNREFUSED);
        (void)close(fd);
    }
    assert_true(silent(net.udp));
}

static void a_ping_is_prohibited(void **state)
{
    (void)state;
    NEEDS_ROOT();
    char byte[64];
    struct timeval limit = {.tv_sec = 5};
    put_inside("/proc/sys/net/ipv4/ping_group_range", "0 2147483647");
    struct icmphdr four = {.type = ICMP_ECHO};
    struct icmp6_hdr six = {.icmp6_type = ICMP6_ECHO_REQUEST};
    for (int v = 0; v < 2; v++) {
        struct address a = address(v ? "2001:4860:4860::8888" : "8.8.8.8", 0);
        int fd = socket_inside(v ? AF_INET6 : AF_INET, SOCK_DGRAM, v ? IPPROTO_ICMPV6 : IPPROTO_ICMP);
        assert_true(fd >= 0);
        (void)setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
        assert_int_equal(connect(fd, (const struct sockaddr *)&a.s, a.n), 0);
        assert_int_equal(send(fd, v ? (const void *)&six : &four, 8, 0), 8);
        assert_int_equal(recv(fd, byte, sizeof byte, 0), -1);
        assert_int_equal(errno, v ? EACCES : EHOSTUNREACH);
        (void)close(fd);
    }
}

static void strict_checks_of_the_return_path_change_nothing(void **state)
{
    (void)state;
    NEEDS_ROOT();
    put_inside("/proc/sys/net/ipv4/conf/all/rp_filter", "1");
    put_inside("/proc/sys/net/ipv4/conf/lo/rp_filter", "1");
    assert_captured("93.184.216.34", 443);
}

/* Every rule goes: the namespace has no way out but its sockets. */
static int remove_rules(void)
{
    struct netlink b = {0};
    struct nfgenmsg batch = {.res_id = htons(NFNL_SUBSYS_NFTABLES)}, inet = {.nfgen_family = NFPROTO_INET};
    uint32_t refused;
    (void)netlink_begin(&b, NFNL_MSG_BATCH_BEGIN, 0, &batch, sizeof batch);
    (void)netlink_begin(&b, NFNL_SUBSYS_NFTABLES << 8 | NFT_MSG_DELTABLE, NLM_F_ACK, &inet, sizeof inet);
    netlink_put_str(&b, NFTA_TABLE_NAME, "hutch");
    (void)netlink_begin(&b, NFNL_MSG_BATCH_END, 0, &batch, sizeof batch);
    return netlink_ask(NETLINK_NETFILTER, &b, &refused);
}

static void without_rules_everything_is_refused(void **state)
{
    (void)state;
    NEEDS_ROOT();
    int home = enter(net.ns), r = remove_rules();
    leave(home);
    assert_int_equal(r, 0);
    assert_int_equal(connect_inside(SOCK_STREAM, "93.184.216.34", 443), -1);
    assert_int_equal(errno, ECONNREFUSED);
    assert_int_equal(connect_inside(SOCK_STREAM, "2606:2800:220:1::1", 443), -1);
    assert_int_equal(errno, ECONNREFUSED);
    assert_true(silent(net.tcp));
}

static void low_ports_are_everybody_s(void **state)
{
    (void)state;
    NEEDS_ROOT();
    uint64_t first = 1;
    int home = enter(net.ns), r = fd_read_u64(AT_FDCWD, "/proc/sys/net/ipv4/ip_unprivileged_port_start", &first);
    leave(home);
    assert_int_equal(r, 0);
    assert_int_equal(first, 0);
}

static void sockets_from_elsewhere_are_told_apart(void **state)
{
    (void)state;
    NEEDS_ROOT();
    struct netns other = NETNS_INIT;
    struct err err = {0};
    int pipes[2];
    assert_true(netns_is_tcp(net.tcp, net.cookie, net.tcp_cookie));
    assert_true(netns_is_udp(net.udp, net.cookie, net.udp_cookie));
    assert_int_equal(netns_make(&other, &err), 0);
    assert_true(other.cookie != net.cookie);
    assert_false(netns_is_tcp(other.tcp, net.cookie, net.tcp_cookie));
    assert_false(netns_is_tcp(other.tcp, net.cookie, other.tcp_cookie));
    assert_false(netns_is_udp(other.udp, net.cookie, net.udp_cookie));
    netns_close(&other);
    assert_false(netns_is_tcp(net.udp, net.cookie, net.udp_cookie));
    assert_false(netns_is_udp(net.tcp, net.cookie, net.tcp_cookie));
    int plain = socket_inside(AF_INET6, SOCK_STREAM, 0); /* of that namespace, but not that socket */
    assert_false(netns_is_tcp(plain, net.cookie, net.tcp_cookie));
    (void)close(plain);
    assert_int_equal(pipe2(pipes, O_CLOEXEC), 0);
    assert_false(netns_is_tcp(pipes[0], net.cookie, net.tcp_cookie));
    assert_false(netns_is_udp(-1, net.cookie, net.udp_cookie));
    (void)close(pipes[0]);
    (void)close(pipes[1]);
}

static void the_maker_stays_where_it_was(void **state)
{
    (void)state;
    NEEDS_ROOT();
    struct netns other = NETNS_INIT;
    struct err err = {0};
    struct stat before, after, made;
    assert_int_equal(stat("/proc/self/ns/net", &before), 0);
    assert_int_equal(netns_make(&other, &err), 0);
    assert_int_equal(stat("/proc/self/ns/net", &after), 0);
    assert_int_equal(fstat(other.ns, &made), 0);
    assert_int_equal(before.st_ino, after.st_ino);
    assert_int_not_equal(before.st_ino, made.st_ino);
    netns_close(&other);
    assert_int_equal(other.ns, -1);
}

/* --- without root --------------------------------------------------------------------------------------------------- */

enum { FINE = 0, NO_USER_NAMESPACE = 99 };

static int be_nobody_in_a_user_namespace(void)
{
    char map[64];
    uid_t uid = geteuid() == 0 ? 65534 : geteuid();
    gid_t gid = geteuid() == 0 ? 65534 : getegid();
    if (geteuid() == 0 && (setresgid(gid, gid, gid) < 0 || setresuid(uid, uid, uid) < 0))
        return -1;
    (void)prctl(PR_SET_DUMPABLE, 1, 0, 0, 0); /* or the files below would be root's */
    if (unshare(CLONE_NEWUSER | CLONE_NEWNET) < 0)
        return -1;
    (void)snprintf(map, sizeof map, "0 %u 1\n", uid);
    if (fd_put(AT_FDCWD, "/proc/self/setgroups", "deny") < 0 || fd_put(AT_FDCWD, "/proc/self/uid_map", map) < 0)
        return -1;
    (void)snprintf(map, sizeof map, "0 %u 1\n", gid);
    return fd_put(AT_FDCWD, "/proc/self/gid_map", map);
}

/* As root of a sandbox is to its keeper: all capabilities, in a user namespace below the one that owns the network. */
static int nested(void)
{
    static const unsigned char own[16] = {10, 0, 0, 1};
    struct err err = {0};
    if (setns(net.ns, CLONE_NEWNET) < 0 || unshare(CLONE_NEWUSER) < 0)
        return 20;
    if (remove_rules() == 0 || errno != EPERM)
        return 21;
    if (rtnl_all_local(own, own, &err) == 0 || err.eno != EPERM)
        return 22;
    return FINE;
}

static int without_root(void)
{
    struct err err = {0};
    struct address to = address("93.184.216.34", 443), six = address("2001:db8::5", 443);
    int status;
    if (be_nobody_in_a_user_namespace() < 0)
        return NO_USER_NAMESPACE;
    if (netns_make(&net, &err) < 0) {
        (void)fprintf(stderr, "%s\n", err.msg);
        return 1;
    }
    pid_t pid = fork();
    if (pid == 0)
        _exit(nested());
    if (pid < 0 || waitpid(pid, &status, 0) != pid || status != 0)
        return pid < 0 ? 2 : WEXITSTATUS(status);
    int home = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
    if (home < 0 || setns(net.ns, CLONE_NEWNET) < 0)
        return 3;
    int a = socket(AF_INET, SOCK_STREAM, 0), b = socket(AF_INET6, SOCK_STREAM, 0);
    if (setns(home, CLONE_NEWNET) < 0)
        return 4;
    if (connect(a, (struct sockaddr *)&to.s, to.n) < 0 || connect(b, (struct sockaddr *)&six.s, six.n) < 0)
        return 5;
    for (int i = 0; i < 2; i++) {
        struct sockaddr_in6 here;
        socklen_t n = sizeof here;
        int fd = readable(net.tcp) ? accept(net.tcp, NULL, NULL) : -1;
        if (fd < 0 || getsockname(fd, (struct sockaddr *)&here, &n) < 0 || here.sin6_port != htons(443))
            return 6;
    }
    return FINE;
}

static void an_ordinary_user_can_make_one_in_a_user_namespace(void **state)
{
    (void)state;
    int status;
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0)
        _exit(without_root());
    assert_int_equal(waitpid(pid, &status, 0), pid);
    if (WIFEXITED(status) && WEXITSTATUS(status) == NO_USER_NAMESPACE) {
        print_message("this host refuses user namespaces\n");
        skip();
    }
    assert_int_equal(status, 0);
}

int main(void)
{
#define NET_TEST(f) cmocka_unit_test_setup_teardown(f, make, drop)
    const struct CMUnitTest tests[] = {
        NET_TEST(a_connection_to_any_address_arrives_with_its_destination),
        NET_TEST(the_gate_and_its_proxy_ports_are_ordinary_destinations),
        NET_TEST(the_client_has_the_sandbox_s_own_address),
        NET_TEST(loopback_and_own_addresses_are_left_alone),
        NET_TEST(a_question_to_any_resolver_is_answered_from_its_address),
        NET_TEST(a_datagram_to_anything_else_is_refused_at_once),
        NET_TEST(a_ping_is_prohibited),
        NET_TEST(strict_checks_of_the_return_path_change_nothing),
        NET_TEST(without_rules_everything_is_refused),
        NET_TEST(low_ports_are_everybody_s),
        NET_TEST(sockets_from_elsewhere_are_told_apart),
        NET_TEST(the_maker_stays_where_it_was),
        cmocka_unit_test(an_ordinary_user_can_make_one_in_a_user_namespace),
    };
    return cmocka_run_group_tests_name("netns", tests, NULL, NULL);
}
