/* conn.c - connections of front. When a socket is full, one message is kept and nothing more is read from that
 * connection until it is sent; everything else that is due waits as state, so memory use is bounded. */
#include <fcntl.h>
#include <linux/memfd.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "init/init-int.h"

enum { FIRST_MESSAGE_MS = 10000 };

static const struct channel_limits packet_limits = {
    .message_max = INIT_MSG_MAX, .queue_max = CONN_ROOM, .fds_max = 1, .fd_min = INIT_FD_NEXT};
static const struct channel_limits stream_limits = {
    .kind = CHANNEL_STREAM, .message_max = CONN_IN - FRAME_HEAD, .queue_max = CONN_ROOM};

void conn_begin(struct init *g)
{
    for (size_t i = 0; i < CONNS_TABLE; i++)
        channel_init(&g->conn[i].channel, &packet_limits, g->conn_room[i], NULL);
}

bool conn_is_stream(const struct conn *c) { return c->channel.limits->kind == CHANNEL_STREAM; }

/* Takes the descriptor of a connection to a free place. False: it cannot. */
static bool conn_open(struct init *g, struct conn *c, int fd, enum channel_kind kind)
{
    bool stream = kind == CHANNEL_STREAM;
    c->gen++;
    c->in = NULL;
    if (stream) { /* only what really comes is ever touched */
        void *p = mmap(NULL, CONN_IN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (p == MAP_FAILED)
            return false;
        (void)madvise(p, CONN_IN, MADV_NOHUGEPAGE);
        c->in = p;
    }
    if (init_watch(g, fd, EPOLLIN, KIND_CONN, (uint32_t)(c - g->conn), c->gen) < 0) {
        if (c->in)
            (void)munmap(c->in, CONN_IN);
        return false;
    }
    channel_init(&c->channel, stream ? &stream_limits : &packet_limits, g->conn_room[c - g->conn], c->in);
    channel_open(&c->channel, fd);
    c->asks = !stream;
    c->drop_ms = stream ? g->now_ms + FIRST_MESSAGE_MS : 0;
    return true;
}

void conn_accept(struct init *g)
{
    enum channel_kind kind;
    int fd = accept4(INIT_FD_LISTENER, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0)
        return;
    uint32_t most = !channel_kind_of(fd, &kind) ? 0 : kind == CHANNEL_STREAM ? CONNS_TABLE : CONNS_MAX;
    for (uint32_t i = 0; i < most; i++)
        if (g->conn[i].channel.fd < 0) {
            if (conn_open(g, &g->conn[i], fd, kind))
                return;
            break;
        }
    (void)close(fd);
}

void conn_close(struct init *g, struct conn *c)
{
    if (c->channel.fd < 0)
        return;
    uint32_t index = (uint32_t)(c - g->conn);
    init_unwatch(g, c->channel.fd);
    channel_close(&c->channel);
    if (c->in)
        (void)munmap(c->in, CONN_IN);
    c->in = NULL;
    attach_drop_conn(g, index, c->gen);
    worker_drop_conn(g, index, c->gen);
    ticket_drop_conn(g, index, c->gen);
}

struct conn *conn_of(struct init *g, const struct asker *who)
{
    struct conn *c = &g->conn[who->conn];
    return c->channel.fd >= 0 && c->gen == who->gen ? c : NULL;
}

bool conn_send_message(struct init *g, struct conn *c, const void *msg, size_t n, const int *fds, size_t nfds)
{
    if (conn_is_blocked(c))
        return false;
    if (channel_send(&c->channel, msg, n, fds, nfds) < 0)
        conn_close(g, c);
    else if (conn_is_blocked(c))
        (void)init_watch(g, c->channel.fd, EPOLLOUT, KIND_CONN, (uint32_t)(c - g->conn), c->gen);
    return true;
}

static void conn_unblock(struct init *g, struct conn *c)
{
    if (channel_flush(&c->channel) < 0)
        conn_close(g, c);
    else if (!conn_is_blocked(c))
        (void)init_watch(g, c->channel.fd, EPOLLIN, KIND_CONN, (uint32_t)(c - g->conn), c->gen);
}

struct wire_out msg_begin(struct init *g)
{
    return (struct wire_out){.p = g->out + sizeof(struct init_head), .cap = sizeof g->out - sizeof(struct init_head)};
}

bool msg_send(struct init *g, struct conn *c, uint16_t type, uint64_t request, const struct wire_out *o, const int *fds,
              size_t nfds)
{
    struct init_head h = {.version = INIT_VERSION, .type = type, .request = request, .length = (uint32_t)o->n};
    memcpy(g->out, &h, sizeof h);
    return conn_send_message(g, c, g->out, sizeof h + o->n, fds, nfds);
}

bool conn_reply(struct init *g, const struct asker *who, enum init_code code, const char *text)
{
    struct conn *c = conn_of(g, who);
    if (!c)
        return true;
    struct wire_out o = msg_begin(g);
    wire_put_u32(&o, code);
    wire_put_bytes(&o, text, strnlen(text, INIT_TEXT_MAX - 1));
    return msg_send(g, c, INIT_REPLY, who->request, &o, NULL, 0);
}

void conn_closed(struct init *g, const struct asker *who)
{
    struct conn *c = conn_of(g, who);
    struct wire_out o = msg_begin(g);
    if (c)
        (void)msg_send(g, c, INIT_CLOSED, who->request, &o, NULL, 0);
}

bool conn_send_answer(struct init *g, struct conn *c, const struct asker *who, size_t n, int fd)
{
    struct init_head h;
    struct init_ticket t;
    if (!conn_is_stream(c))
        return conn_send_message(g, c, g->out, n, &fd, 1);
    if (conn_is_blocked(c))
        return false;
    memcpy(&h, g->out, sizeof h);
    bool memory = h.flags & INIT_F_MEMFD;
    if (n + sizeof t > sizeof g->out || !ticket_new(g, who, fd, memory, &t))
        return conn_reply(g, who, INIT_LIMIT, "more than 64 files or connections of this sandbox wait to be taken");
    t.size = memory ? h.length : 0;
    h.flags |= INIT_F_TICKET;
    h.length = (uint32_t)(n - sizeof h + sizeof t);
    memcpy(g->out, &h, sizeof h);
    memcpy(g->out + n, &t, sizeof t);
    return conn_send_message(g, c, g->out, n + sizeof t, NULL, 0);
}

static void fill_reply(struct init *g, struct wire_out *o, void (*fill)(struct init *g, struct wire_out *o))
{
    wire_put_u32(o, INIT_OK);
    wire_put_str(o, "");
    fill(g, o);
}

static bool reply_memfd(struct init *g, struct conn *c, const struct asker *who, size_t n,
                        void (*fill)(struct init *g, struct wire_out *o))
{
    struct init_head h = {.version = INIT_VERSION,
                          .type = INIT_REPLY,
                          .flags = INIT_F_MEMFD,
                          .request = who->request,
                          .length = (uint32_t)n};
    int fd = memfd_create("reply", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    unsigned char *p = MAP_FAILED;
    if (fd >= 0 && ftruncate(fd, (off_t)n) == 0)
        p = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    bool ok = p != MAP_FAILED;
    if (ok) {
        struct wire_out o = {.p = p, .cap = n};
        fill_reply(g, &o, fill);
        (void)munmap(p, n);
        ok = fcntl(fd, F_ADD_SEALS, F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_WRITE | F_SEAL_SEAL) == 0 && !o.bad;
    }
    if (ok) {
        memcpy(g->out, &h, sizeof h);
        (void)conn_send_answer(g, c, who, sizeof h, fd);
    }
    if (fd >= 0)
        (void)close(fd);
    return ok;
}

bool conn_reply_big(struct init *g, const struct asker *who, void (*fill)(struct init *g, struct wire_out *o))
{
    struct conn *c = conn_of(g, who);
    struct wire_out count = {0}, o;
    if (!c)
        return true;
    fill_reply(g, &count, fill);
    if (count.n <= INIT_MSG_MAX - sizeof(struct init_head)) {
        o = msg_begin(g);
        fill_reply(g, &o, fill);
        return msg_send(g, c, INIT_REPLY, who->request, &o, NULL, 0);
    }
    if (count.n > INIT_BIG_REPLY)
        return conn_reply(g, who, INIT_LIMIT, "the answer is longer than 64 MiB");
    if (!reply_memfd(g, c, who, count.n, fill))
        return conn_reply(g, who, INIT_IO, "no memory for the answer");
    return true;
}

static void put_hello(struct init *g, struct wire_out *o)
{
    wire_put_u32(o, g->bound);
    wire_put_u32(o, g->args->flags);
}

static bool hostname_ok(const char *s)
{
    size_t n = strlen(s);
    return n >= 1 && n <= 63 && strspn(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-.") == n &&
           s[0] != '-' && s[0] != '.';
}

/* Binds the sandbox, once. The request's texts are kept in memory of their own. */
static void bind_sandbox(struct init *g, const struct asker *who, const struct init_head *h, const void *body)
{
    char text[INIT_TEXT_MAX];
    if (g->bound) {
        (void)conn_reply(g, who, INIT_STATE, "the sandbox is bound already");
        return;
    }
    unsigned char *copy = mmap(NULL, h->length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (copy == MAP_FAILED) {
        (void)conn_reply(g, who, INIT_IO, "no memory for the environment");
        return;
    }
    memcpy(copy, body, h->length);
    struct init_request *r = &g->request;
    (void)init_request_parse(h, copy, h->length, r);
    const char *wrong = NULL;
    if (!hostname_ok(r->hostname))
        wrong = "hostname: 1 to 63 letters, digits, '-' and '.'";
    else if (r->user[0] == '\0')
        wrong = "bind needs a default user";
    else if (r->workdir[0] != '\0' && r->workdir[0] != '/')
        wrong = "workdir: an absolute path, or nothing";
    if (wrong) {
        (void)munmap(copy, h->length);
        (void)conn_reply(g, who, INIT_INVALID, wrong);
        return;
    }
    const char *failed = NULL;
    if (sethostname(r->hostname, strlen(r->hostname)) < 0)
        failed = "cannot set the host name";
    else if (lock_bound(g, text, sizeof text) < 0)
        failed = text;
    if (failed) {
        (void)conn_reply(g, who, INIT_IO, failed);
        g->stop = true; /* half locked is no state to be in */
        return;
    }
    g->bound_body = copy;
    g->user = r->user;
    g->workdir = r->workdir;
    g->nenv = r->nenv;
    memcpy(g->env, r->env, sizeof r->env);
    g->bound = true;
    (void)conn_reply(g, who, INIT_OK, "");
}

static void conn_dispatch(struct init *g, const struct asker *who, const struct init_head *h, const void *body)
{
    struct init_request *r = &g->request;
    if (init_request_parse(h, body, h->length, r) < 0) {
        (void)conn_reply(g, who, r->code, r->why);
        return;
    }
    if (r->type == INIT_HELLO) {
        (void)conn_reply_big(g, who, put_hello);
        return;
    }
    if (r->type == INIT_BIND) {
        bind_sandbox(g, who, h, body);
        return;
    }
    if (!g->bound) {
        if (r->type == INIT_DETACH || r->type == INIT_UNWATCH)
            conn_closed(g, who);
        else if (r->type != INIT_ACK)
            (void)conn_reply(g, who, INIT_STATE, "the sandbox is not bound yet");
        return;
    }
    switch (r->type) {
    case INIT_SPAWN:
    case INIT_SPAWN_RIGHTS:
    case INIT_SPAWN_LIMITED:
        command_spawn(g, who, r, h, body);
        break;
    case INIT_ATTACH:
        command_attach(g, who, r);
        break;
    case INIT_ACK:
        command_ack(g, who, r);
        break;
    case INIT_DETACH:
        command_detach(g, who, r->number);
        break;
    case INIT_SIGNAL:
        command_signal(g, who, r);
        break;
    case INIT_RESIZE:
        command_resize(g, who, r);
        break;
    case INIT_INPUT:
        command_input(g, who, r);
        break;
    case INIT_CLOSE_INPUT:
        command_close_input(g, who, r);
        break;
    case INIT_LIST:
        command_list(g, who);
        break;
    case INIT_UNWATCH:
        worker_unwatch(g, who);
        break;
    case INIT_SETTLE:
        settle_start(g, who);
        break;
    case INIT_SHUTDOWN:
        (void)conn_reply(g, who, INIT_OK, "");
        g->stop = true;
        break;
    default:
        worker_start(g, who, r);
        break;
    }
}

/* A body in a memfd is copied: nothing that front may still change is parsed. */
static void *read_big(int fd, size_t n)
{
    struct stat st;
    if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode) || st.st_size != (off_t)n)
        return NULL;
    unsigned char *p = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        return NULL;
    size_t got = 0;
    while (got < n) {
        ssize_t r = pread(fd, p + got, n - got, (off_t)got);
        if (r <= 0)
            break;
        got += (size_t)r;
    }
    if (got == n)
        return p;
    (void)munmap(p, n);
    return NULL;
}

/* The first message of a stream is a request: it counts from now on. False: there are too many. */
static bool conn_begin_asking(struct init *g, struct conn *c)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < CONNS_TABLE; i++)
        n += g->conn[i].channel.fd >= 0 && g->conn[i].asks;
    c->asks = n < CONNS_MAX;
    c->drop_ms = 0;
    return c->asks;
}

/* Reads and handles one message. False: none is there, or the connection is gone. */
static bool conn_receive(struct init *g, struct conn *c)
{
    struct channel_message m;
    struct init_head h;
    enum channel_got got = channel_recv(&c->channel, &m);
    if (got == CHANNEL_NONE)
        return false;
    bool ok = got == CHANNEL_MESSAGE && m.n >= sizeof h;
    if (ok) {
        memcpy(&h, m.p, sizeof h);
        ok = init_head_ok(&h, m.n, m.nfds);
    }
    void *big = ok && m.nfds ? read_big(m.fds[0], h.length) : NULL;
    if (m.nfds)
        (void)close(m.fds[0]);
    if (!ok || (m.nfds && !big)) {
        conn_close(g, c);
        return false;
    }
    if (!c->asks && h.type == INIT_TAKE) {
        relay_take(g, c, &h, m.p + sizeof h);
        return false;
    }
    if (!c->asks && !conn_begin_asking(g, c)) {
        conn_close(g, c);
        return false;
    }
    struct asker who = {.conn = (uint32_t)(c - g->conn), .gen = c->gen, .request = h.request};
    conn_dispatch(g, &who, &h, big ? big : m.p + sizeof h);
    if (big)
        (void)munmap(big, h.length);
    return c->channel.fd >= 0 && c->gen == who.gen;
}

void conn_event(struct init *g, uint32_t index, uint32_t gen, uint32_t events)
{
    struct conn *c = &g->conn[index];
    if (c->channel.fd < 0 || c->gen != gen)
        return;
    if (events & EPOLLOUT)
        conn_unblock(g, c);
    bool readable = events & (EPOLLIN | EPOLLHUP | EPOLLERR);
    for (int i = 0; i < 16 && c->channel.fd >= 0 && !conn_is_blocked(c) && readable; i++)
        if (!conn_receive(g, c))
            return;
    if (c->channel.fd >= 0 && conn_is_blocked(c) && (events & (EPOLLHUP | EPOLLERR)))
        conn_close(g, c);
}

/* No event tells of a message that lies in the reader of a stream: conn_event() stops after some, or when it is blocked. */
static bool conn_has_message(const struct conn *c)
{
    return conn_is_stream(c) && channel_is_ready(&c->channel) && !conn_is_blocked(c);
}

void conn_tick(struct init *g)
{
    for (uint32_t i = 0; i < CONNS_TABLE; i++) {
        struct conn *c = &g->conn[i];
        if (c->channel.fd < 0)
            continue;
        if (conn_has_message(c))
            conn_event(g, i, c->gen, EPOLLIN);
        else if (c->drop_ms && g->now_ms >= c->drop_ms)
            conn_close(g, c);
    }
}

uint64_t conn_deadline(const struct init *g)
{
    uint64_t at = UINT64_MAX;
    for (uint32_t i = 0; i < CONNS_TABLE; i++) {
        const struct conn *c = &g->conn[i];
        if (c->channel.fd < 0)
            continue;
        if (conn_has_message(c))
            return 0;
        if (c->drop_ms && c->drop_ms < at)
            at = c->drop_ms;
    }
    return at;
}
