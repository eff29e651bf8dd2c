/* Messages of supervisor for users and systemd. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/mem.h"
#include "node/procs.h"

void node_notify(const char *state)
{
    const char *path = getenv("NOTIFY_SOCKET");
    struct sockaddr_un sa = {.sun_family = AF_UNIX};
    size_t n = path ? strlen(path) : 0;
    if (n == 0 || n >= sizeof sa.sun_path || (path[0] != '/' && path[0] != '@'))
        return;
    memcpy(sa.sun_path, path, n);
    if (path[0] == '@')
        sa.sun_path[0] = '\0';
    _cleanup_close_ int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd >= 0)
        (void)sendto(fd, state, strlen(state), MSG_NOSIGNAL, (struct sockaddr *)&sa,
                     (socklen_t)(offsetof(struct sockaddr_un, sun_path) + n));
}

static bool address_is_loopback(const char *address)
{
    char host[64];
    uint16_t port;
    return config_address(address, host, &port) &&
           (strncmp(host, "127.", 4) == 0 || strcmp(host, "::1") == 0 || strcmp(host, "localhost") == 0);
}

static void address_url(const char *address, const char *scheme, char ret[128])
{
    char host[64];
    uint16_t port;
    (void)config_address(address, host, &port);
    if (strcmp(host, "0.0.0.0") == 0)
        (void)snprintf(host, sizeof host, "127.0.0.1");
    else if (strcmp(host, "::") == 0)
        (void)snprintf(host, sizeof host, "::1");
    (void)snprintf(ret, 128, strchr(host, ':') ? "%s://[%s]:%u" : "%s://%s:%u", scheme, host, port);
}

/* One URL per address; a socket for all of them is reached at the loopback ones. */
static void address_add_socket(struct buf *out, int fd, const char *scheme)
{
    struct sockaddr_storage sa;
    socklen_t n = sizeof sa;
    char host[INET6_ADDRSTRLEN] = "";
    if (fd < 0 || getsockname(fd, (struct sockaddr *)&sa, &n) < 0)
        return;
    const struct sockaddr_in *v4 = (const struct sockaddr_in *)&sa;
    const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)&sa;
    unsigned port = ntohs(sa.ss_family == AF_INET ? v4->sin_port : v6->sin6_port);
    bool all = sa.ss_family == AF_INET ? v4->sin_addr.s_addr == INADDR_ANY : IN6_IS_ADDR_UNSPECIFIED(&v6->sin6_addr);
    if (all)
        buf_addf(out, "%s://127.0.0.1:%u\n", scheme, port);
    if (all && sa.ss_family == AF_INET6)
        buf_addf(out, "%s://[::1]:%u\n", scheme, port);
    if (all || !inet_ntop(sa.ss_family, sa.ss_family == AF_INET ? (const void *)&v4->sin_addr : &v6->sin6_addr, host,
                          sizeof host))
        return;
    buf_addf(out, sa.ss_family == AF_INET ? "%s://%s:%u\n" : "%s://[%s]:%u\n", scheme, host, port);
}

void node_record_listen(const struct config *c, const struct node_files *n)
{
    static const char part[] = LISTEN_FILE ".tmp";
    _cleanup_buf_ struct buf text = {0}, before = {0};
    address_add_socket(&text, n->listen, "http");
    address_add_socket(&text, n->listen_tls, "https");
    if (fd_read_file(n->state, LISTEN_FILE, 4096, &before) >= 0 && strcmp(buf_str(&before), buf_str(&text)) == 0)
        return;
    _cleanup_close_ int fd = openat(n->state, part, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0644);
    if (fd >= 0 && fchmod(fd, 0644) == 0 && fd_write_all(fd, buf_str(&text), text.n) == 0 &&
        renameat(n->state, part, n->state, LISTEN_FILE) == 0)
        return;
    log_text(LOG_LEVEL_WARN, "cannot write %s/" LISTEN_FILE ": %s; commands on this machine need HUTCH_API_KEY",
             c->state, strerror(errno));
    (void)unlinkat(n->state, part, 0);
    (void)unlinkat(n->state, LISTEN_FILE, 0); /* it names an address that is not ours any more */
}

/* Never print the key into the journal, which keeps it: name its file there. */
static bool key_may_be_shown(const struct node_files *n) { return n->first_start && !getenv("JOURNAL_STREAM"); }

static void say_variables(const struct config *c, const struct node_files *n, const char *key)
{
    char url[128];
    address_url(c->listen, "http", url);
    if (c->listen_tls) {
        printf("  export E2B_DOMAIN=%s E2B_API_KEY=%s\n", c->domain, key);
        if (c->tls_dev)
            printf("  export NODE_EXTRA_CA_CERTS=%s/tls/ca.crt SSL_CERT_FILE=%s/tls/ca.crt\n", c->state, c->state);
    } else
        printf("  export E2B_API_URL=%s E2B_SANDBOX_URL=%s E2B_API_KEY=%s\n", url, url, key);
    (void)n;
}

void node_say_ready(const struct config *c, const struct node_files *n)
{
    char url[128], tls[128] = "";
    address_url(c->listen, "http", url);
    if (c->listen_tls)
        address_url(c->listen_tls, "https", tls);
    _cleanup_free_ char *from_file = xasprintf("$(cat %s/" ADMIN_KEY ")", c->state);
    bool show = key_may_be_shown(n);
    printf("hutch: serving %s%s%s, domain %s, state %s\n", url, *tls ? " and " : "", tls, c->domain, c->state);
    if (show)
        printf("hutch: API key (kept in %s/" ADMIN_KEY "): %s\n", c->state, n->admin_key);
    if (n->made_user)
        printf("hutch: there is no user %s; the HTTP process runs as the unused uid %u (`useradd --system %s` "
               "makes one)\n",
               c->user, n->uid, c->user);
    if (!address_is_loopback(c->listen))
        printf("hutch: warning: %s is plain HTTP beyond this machine: keys and data can be read on the way; use TLS\n",
               c->listen);
    if (n->first_start) {
        puts("hutch: point a client here:");
        say_variables(c, n, show ? n->admin_key : from_file);
        puts("  TypeScript (npm i e2b):");
        puts("    import { Sandbox } from 'e2b'");
        puts("    const sandbox = await Sandbox.create('host')");
        puts("    console.log((await sandbox.commands.run('echo hello')).stdout)");
        puts("  Python (pip install e2b):");
        puts("    from e2b import Sandbox");
        puts("    print(Sandbox.create('host').commands.run('echo hello').stdout)");
        printf("hutch: files of sandboxes: %s; %s\n", n->files_driver, n->files_why);
    }
    if (!n->egress.on)
        printf("hutch: sandboxes have no network: %s\n", n->egress.trouble);
    else if (n->egress.made_user && n->first_start)
        printf("hutch: there is no user %s; the process egress runs as the unused uid %u\n", c->egress_user,
               n->egress.uid);
    puts("ready");
    (void)fflush(stdout);
}

static bool address_is_ours(const struct sockaddr *sa, const struct ifaddrs *list)
{
    if (sa->sa_family == AF_INET && ntohl(((const struct sockaddr_in *)sa)->sin_addr.s_addr) >> 24 == 127)
        return true;
    if (sa->sa_family == AF_INET6 && IN6_IS_ADDR_LOOPBACK(&((const struct sockaddr_in6 *)sa)->sin6_addr))
        return true;
    for (; list; list = list->ifa_next) {
        if (!list->ifa_addr || list->ifa_addr->sa_family != sa->sa_family)
            continue;
        if (sa->sa_family == AF_INET && ((const struct sockaddr_in *)list->ifa_addr)->sin_addr.s_addr ==
                                            ((const struct sockaddr_in *)sa)->sin_addr.s_addr)
            return true;
        if (sa->sa_family == AF_INET6 && memcmp(&((const struct sockaddr_in6 *)list->ifa_addr)->sin6_addr,
                                                &((const struct sockaddr_in6 *)sa)->sin6_addr, 16) == 0)
            return true;
    }
    return false;
}

void node_check_domain(const char *domain, char ret[512])
{
    char name[256];
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *list = NULL;
    struct ifaddrs *own = NULL;
    size_t n = strcspn(domain, ":");
    (void)snprintf(name, sizeof name, "x.%.*s", (int)n, domain);
    ret[0] = '\0';
    int rc = getaddrinfo(name, NULL, &hints, &list);
    bool local_name = n >= 10 && strncmp(domain + n - 10, ".localhost", 10) == 0;
    if (rc != 0)
        (void)snprintf(ret, 512,
                       "%s does not resolve here (%s), so sandboxes cannot be reached by name: %s; or use the "
                       "variables of `hutch env`, which need no names",
                       name, gai_strerror(rc),
                       local_name ? "apt install libnss-myhostname"
                                  : "add a wildcard record for the domain to your DNS");
    else {
        (void)getifaddrs(&own);
        bool ours = false;
        for (const struct addrinfo *a = list; a && !ours; a = a->ai_next)
            ours = address_is_ours(a->ai_addr, own);
        if (!ours)
            (void)snprintf(ret, 512,
                           "%s resolves to another machine; if that is no load balancer of yours, correct the wildcard "
                           "record of the domain",
                           name);
        freeifaddrs(own);
    }
    if (list)
        freeaddrinfo(list);
}
