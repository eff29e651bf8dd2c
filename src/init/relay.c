/* relay.c - what stands for descriptors on a byte stream: tickets, and helpers that pass bytes on.
 *
 * A ticket keeps a descriptor until a connection of its own asks for it. A helper then copies between the two until either
 * ends: a file of the tenant may block for ever (FUSE), so init itself never reads one. The helper has no capability and no
 * descriptor but these two.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "init/init-int.h"
#include "os/caps.h"

enum { RELAY_PIECE = 64 * 1024, RELAY_LINGER_MS = 10000 };
enum { RELAY_CONN = 3, RELAY_OBJECT = 4 }; /* descriptors of the helper */

/* --- tickets ------------------------------------------------------------------------------------------------------ */

static uint32_t ticket_kind_of(int fd)
{
    struct stat st;
    if (fstat(fd, &st) < 0)
        return 0;
    return S_ISREG(st.st_mode)    ? INIT_TICKET_FILE
           : S_ISFIFO(st.st_mode) ? INIT_TICKET_PIPE
           : S_ISSOCK(st.st_mode) ? INIT_TICKET_SOCKET
                                  : 0;
}

bool ticket_new(struct init *g, const struct asker *who, int fd, bool memory, struct init_ticket *ret)
{
    struct ticket *t = NULL;
    for (uint32_t i = 0; i < INIT_TICKETS_MAX && !t; i++)
        if (!g->ticket[i].used)
            t = &g->ticket[i];
    *ret = (struct init_ticket){.kind = memory ? INIT_TICKET_MEMORY : ticket_kind_of(fd)};
    if (!t || ret->kind == 0 || getrandom(ret->secret, sizeof ret->secret, 0) != sizeof ret->secret)
        return false;
    int copy = fcntl(fd, F_DUPFD_CLOEXEC, INIT_FD_NEXT);
    if (copy < 0)
        return false;
    *t = (struct ticket){
        .used = true, .fd = copy, .kind = ret->kind, .who = *who, .until_ms = init_clock_ms() + INIT_TICKET_MS};
    memcpy(t->secret, ret->secret, sizeof t->secret);
    return true;
}

static void ticket_free(struct ticket *t)
{
    (void)close(t->fd);
    explicit_bzero(t, sizeof *t);
}

void ticket_drop_conn(struct init *g, uint32_t conn, uint32_t gen)
{
    for (uint32_t i = 0; i < INIT_TICKETS_MAX; i++)
        if (g->ticket[i].used && g->ticket[i].who.conn == conn && g->ticket[i].who.gen == gen)
            ticket_free(&g->ticket[i]);
}

/* Compares all bytes of all tickets, whatever they are: how long it takes says nothing. */
static struct ticket *ticket_find(struct init *g, uint64_t request, const unsigned char *secret)
{
    struct ticket *found = NULL;
    for (uint32_t i = 0; i < INIT_TICKETS_MAX; i++) {
        struct ticket *t = &g->ticket[i];
        unsigned char differs = 0;
        for (size_t k = 0; k < INIT_SECRET_BYTES; k++)
            differs |= t->secret[k] ^ secret[k];
        if (differs == 0 && t->used && t->who.request == request && g->now_ms < t->until_ms)
            found = t;
    }
    return found;
}

/* --- the helper ---------------------------------------------------------------------------------------------------- */

/* Bytes on their way in one direction. */
struct way {
    int from, to;
    size_t at, n;
    bool ended, told; /* nothing more comes; the other side knows */
    unsigned char bytes[RELAY_PIECE];
};

static bool relay_is_later(int eno) { return eno == EAGAIN || eno == EINTR; }

/* False: it cannot go on. */
static bool way_read(struct way *w)
{
    ssize_t n = read(w->from, w->bytes, sizeof w->bytes);
    if (n < 0)
        return relay_is_later(errno);
    w->at = 0;
    w->n = (size_t)n;
    w->ended = n == 0;
    return true;
}

static bool way_write(struct way *w)
{
    ssize_t n = send(w->to, w->bytes + w->at, w->n - w->at, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0)
        return relay_is_later(errno);
    w->at += (size_t)n;
    if (w->at == w->n)
        w->at = w->n = 0;
    return true;
}

/* Passes an end on. False: everything is over. `gone`: front has closed both directions, so that an upload is cut off, and
 * not at its end. */
static bool way_pass_end(struct way *w, bool gone)
{
    if (!w->ended || w->n > 0 || w->told)
        return true;
    w->told = true;
    if (gone)
        return false;
    (void)shutdown(w->to, SHUT_WR);
    return true;
}

static short way_events(const struct way *in, const struct way *out)
{
    return (short)((!in->ended && in->n == 0 ? POLLIN : 0) | (out->n > 0 ? POLLOUT : 0));
}

static void relay_both_ways(bool one_way) __attribute__((noreturn));
static void relay_both_ways(bool one_way)
{
    static struct way in = {.from = RELAY_CONN, .to = RELAY_OBJECT}, out = {.from = RELAY_OBJECT, .to = RELAY_CONN};
    bool gone = false;
    in.ended = in.told = one_way;
    for (;;) {
        bool more = gone && !in.ended && in.n == 0; /* what front sent before it closed is still to be read */
        short want = gone ? (in.n > 0 ? POLLOUT : 0) : way_events(&out, &in);
        struct pollfd p[2] = {{.fd = gone ? -1 : RELAY_CONN, .events = way_events(&in, &out)},
                              {.fd = want ? RELAY_OBJECT : -1, .events = want}};
        int wait = more ? 0 : gone ? RELAY_LINGER_MS : -1, ready = poll(p, 2, wait);
        if ((ready == 0 && wait > 0) || (ready < 0 && errno != EINTR))
            _exit(0);
        gone = gone || (p[0].revents & (POLLHUP | POLLERR));
        if (gone && one_way)
            _exit(0);
        if ((p[0].revents & (POLLIN | POLLHUP | POLLERR) || gone) && !in.ended && in.n == 0 && !way_read(&in))
            _exit(0);
        if ((p[1].revents & (POLLIN | POLLHUP | POLLERR)) && !gone && !out.ended && out.n == 0 && !way_read(&out))
            _exit(0);
        if (in.n > 0 && !way_write(&in)) { /* it takes no more, but what it said is still to be passed on */
            in.n = 0;
            in.ended = in.told = true;
        }
        if (out.n > 0 && !gone && !way_write(&out))
            _exit(0);
        if (!way_pass_end(&in, gone) || !way_pass_end(&out, false) || (in.told && (out.told || gone)))
            _exit(0);
    }
}

static void relay_file(void) __attribute__((noreturn));
static void relay_file(void)
{
    static unsigned char bytes[RELAY_PIECE];
    for (off_t at = 0;;) {
        ssize_t n = pread(RELAY_OBJECT, bytes, sizeof bytes, at);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0) /* front knows how many bytes it was promised */
            _exit(0);
        at += n;
        for (ssize_t sent = 0, k; sent < n; sent += k) {
            k = send(RELAY_CONN, bytes + sent, (size_t)(n - sent), MSG_NOSIGNAL);
            if (k < 0 && errno != EINTR)
                _exit(0);
            k = k < 0 ? 0 : k;
        }
    }
}

static size_t relay_answer(unsigned char ret[INIT_TEXT_MAX * 2], uint64_t request, enum init_code code,
                           const char *text)
{
    struct init_head h = {.version = INIT_VERSION, .type = INIT_REPLY, .request = request};
    struct wire_out o = {.p = ret + FRAME_HEAD + sizeof h, .cap = INIT_TEXT_MAX * 2 - FRAME_HEAD - sizeof h};
    wire_put_u32(&o, code);
    wire_put_str(&o, text);
    h.length = (uint32_t)o.n;
    frame_put_head(ret, sizeof h + o.n);
    memcpy(ret + FRAME_HEAD, &h, sizeof h);
    return FRAME_HEAD + sizeof h + o.n;
}

static void relay_main(const struct ticket *t, int conn, uint64_t request) __attribute__((noreturn));
static void relay_main(const struct ticket *t, int conn, uint64_t request)
{
    unsigned char msg[INIT_TEXT_MAX * 2];
    bool file = t->kind == INIT_TICKET_FILE || t->kind == INIT_TICKET_MEMORY, pipe = t->kind == INIT_TICKET_PIPE;
    /* Both have numbers above the fixed ones. */
    if (dup3(conn, RELAY_CONN, O_CLOEXEC) < 0 || dup3(t->fd, RELAY_OBJECT, O_CLOEXEC) < 0)
        _exit(1);
    (void)fd_close_range(RELAY_OBJECT + 1, ~0U, 0);
    if (caps_set(CAPS_NONE) < 0 || fcntl(RELAY_CONN, F_SETFL, file ? 0 : O_NONBLOCK) < 0 ||
        (!file && fcntl(RELAY_OBJECT, F_SETFL, O_NONBLOCK) < 0))
        _exit(1);
    size_t n = relay_answer(msg, request, INIT_OK, "");
    if (send(RELAY_CONN, msg, n, MSG_NOSIGNAL) != (ssize_t)n)
        _exit(1);
    if (file)
        relay_file();
    relay_both_ways(pipe);
}

/* --- taking -------------------------------------------------------------------------------------------------------- */

static void relay_refuse(const struct conn *c, uint64_t request, enum init_code code, const char *text)
{
    unsigned char msg[INIT_TEXT_MAX * 2];
    size_t n = relay_answer(msg, request, code, text);
    (void)send(c->channel.fd, msg, n, MSG_NOSIGNAL | MSG_DONTWAIT); /* the first bytes on it: there is room */
}

void relay_take(struct init *g, struct conn *c, const struct init_head *h, const unsigned char *body)
{
    pid_t *place = NULL;
    for (uint32_t i = 0; i < INIT_RELAYS_MAX && !place; i++)
        if (g->relay[i] == 0)
            place = &g->relay[i];
    struct ticket *t = h->length == INIT_SECRET_BYTES ? ticket_find(g, h->request, body) : NULL;
    pid_t pid = -1;
    /* Nothing may follow before the answer: it would be lost in the reader. */
    if (!t || c->channel.in.n != c->channel.in.at)
        relay_refuse(c, h->request, INIT_NOT_FOUND, "no such ticket: it was taken, its time is over, or it never was");
    else if (!place)
        relay_refuse(c, h->request, INIT_LIMIT, "more than 256 files and connections of this sandbox are passed on");
    else {
        pid = _Fork();
        if (pid == 0)
            relay_main(t, c->channel.fd, h->request);
        if (pid < 0)
            relay_refuse(c, h->request, errno == EAGAIN ? INIT_LIMIT : INIT_IO, "cannot start a helper");
    }
    if (pid > 0)
        *place = pid;
    if (t)
        ticket_free(t);
    conn_close(g, c);
}

void relay_reaped(struct init *g, pid_t pid)
{
    for (uint32_t i = 0; i < INIT_RELAYS_MAX; i++)
        if (g->relay[i] == pid)
            g->relay[i] = 0;
}

void relay_tick(struct init *g)
{
    for (uint32_t i = 0; i < INIT_TICKETS_MAX; i++)
        if (g->ticket[i].used && g->now_ms >= g->ticket[i].until_ms)
            ticket_free(&g->ticket[i]);
}

uint64_t relay_deadline(const struct init *g)
{
    uint64_t at = UINT64_MAX;
    for (uint32_t i = 0; i < INIT_TICKETS_MAX; i++)
        if (g->ticket[i].used && g->ticket[i].until_ms < at)
            at = g->ticket[i].until_ms;
    return at;
}
