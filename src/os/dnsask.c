#include "os/dnsask.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/fd.h"
#include "base/random.h"

enum {
    SERVERS_MAX = 3,
    MESSAGE_MAX = 1500,
    HEAD = 12,
    TYPE_A = 1,
    TYPE_AAAA = 28,
    CONF_MAX = 65536,
};

/* Name servers. */
struct servers {
    struct sockaddr_storage v[SERVERS_MAX];
    size_t n;
};

static void servers_add(struct servers *s, const char *text, unsigned port)
{
    struct sockaddr_in v4 = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    struct sockaddr_in6 v6 = {.sin6_family = AF_INET6, .sin6_port = htons((uint16_t)port)};
    if (s->n == SERVERS_MAX)
        return;
    if (inet_pton(AF_INET, text, &v4.sin_addr) == 1)
        memcpy(&s->v[s->n++], &v4, sizeof v4);
    else if (inet_pton(AF_INET6, text, &v6.sin6_addr) == 1)
        memcpy(&s->v[s->n++], &v6, sizeof v6);
}

static void servers_read(struct servers *s, const char *given)
{
    _cleanup_buf_ struct buf text = {0};
    char *save = NULL;
    if (given)
        buf_adds(&text, given);
    else if (fd_read_file(AT_FDCWD, "/etc/resolv.conf", CONF_MAX, &text) < 0)
        return;
    buf_addc(&text, '\0');
    for (char *line = strtok_r(text.p, given ? "," : "\n", &save); line;
         line = strtok_r(NULL, given ? "," : "\n", &save)) {
        char address[64];
        unsigned port = 53;
        if (given ? sscanf(line, "%63[0-9.]:%u", address, &port) >= 1 : sscanf(line, " nameserver %63s", address) == 1)
            servers_add(s, address, port);
    }
}

/* Returns the length of the question, 0: the name is none. */
static size_t question_write(const char *name, unsigned type, uint16_t id, unsigned char out[MESSAGE_MAX])
{
    size_t n = HEAD;
    memset(out, 0, HEAD);
    out[0] = (unsigned char)(id >> 8);
    out[1] = (unsigned char)id;
    out[2] = 1; /* recursion */
    out[5] = 1; /* one question */
    for (const char *s = name; *s;) {
        size_t label = strcspn(s, ".");
        if (label == 0 || label > 63 || n + label > HEAD + 254)
            return 0;
        out[n++] = (unsigned char)label;
        memcpy(out + n, s, label);
        n += label;
        s += label + (s[label] == '.');
    }
    const unsigned char tail[] = {0, 0, (unsigned char)type, 0, 1};
    memcpy(out + n, tail, sizeof tail);
    return n + sizeof tail;
}

/* The end of a name in a message, 0: it is cut off. */
static size_t name_skip(const unsigned char *m, size_t n, size_t at)
{
    while (at < n && m[at] != 0) {
        if ((m[at] & 0xc0) == 0xc0)
            return at + 2;
        at += 1U + m[at];
    }
    return at < n ? at + 1 : 0;
}

static void answer_take(const unsigned char *m, size_t n, unsigned type, struct in6_addr *ret, int *count)
{
    unsigned answers = (unsigned)m[6] << 8 | m[7];
    size_t at = name_skip(m, n, HEAD);
    at = at ? at + 4 : n;
    while (answers-- > 0 && *count < DNSASK_MAX && (at = name_skip(m, n, at)) != 0 && at + 10 <= n) {
        unsigned kind = (unsigned)m[at] << 8 | m[at + 1], size = (unsigned)m[at + 8] << 8 | m[at + 9];
        at += 10;
        if (at + size > n)
            return;
        struct in6_addr *to = &ret[*count];
        memset(to, 0, sizeof *to);
        to->s6_addr[10] = to->s6_addr[11] = 0xff;
        if (kind == type && size == (type == TYPE_A ? 4 : 16)) {
            memcpy(to->s6_addr + 16 - size, m + at, size);
            (*count)++;
        }
        at += size;
    }
}

static uint64_t dnsask_now(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000U + (uint64_t)t.tv_nsec / 1000000U;
}

/* One question to one server. 0: it answered. */
static int server_ask(const struct sockaddr_storage *to, const char *name, unsigned type, int ms, struct in6_addr *ret,
                      int *count)
{
    unsigned char m[MESSAGE_MAX];
    uint16_t id = 0;
    random_bytes(&id, sizeof id);
    size_t n = question_write(name, type, id, m);
    _cleanup_close_ int fd = socket(to->ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (n == 0 || fd < 0 ||
        connect(fd, (const struct sockaddr *)to,
                to->ss_family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6)) < 0 ||
        send(fd, m, n, 0) < 0)
        return -1;
    for (uint64_t now = dnsask_now(), end = now + (uint64_t)ms; now < end; now = dnsask_now()) {
        struct pollfd p = {.fd = fd, .events = POLLIN};
        if (poll(&p, 1, (int)(end - now)) <= 0)
            continue;
        ssize_t got = recv(fd, m, sizeof m, 0);
        if (got < 0)
            return -1;
        if (got < HEAD || m[0] != id >> 8 || m[1] != (id & 0xff) || !(m[2] & 0x80))
            continue;
        unsigned code = m[3] & 0xf;
        if (code == 0)
            answer_take(m, (size_t)got, type, ret, count);
        return code == 0 || code == 3 ? 0 : -1;
    }
    errno = ETIMEDOUT;
    return -1;
}

int dnsask(const char *name, const char *servers, struct in6_addr ret[DNSASK_MAX])
{
    static const unsigned types[] = {TYPE_A, TYPE_AAAA};
    struct servers s = {0};
    int count = 0;
    bool answered = false;
    servers_read(&s, servers);
    errno = ENOENT;
    for (size_t t = 0; t < 2; t++)
        for (size_t i = 0; i < s.n; i++)
            if (server_ask(&s.v[i], name, types[t], DNSASK_MS / (int)s.n, ret, &count) == 0) {
                answered = true;
                break;
            }
    return answered ? count : -1;
}
