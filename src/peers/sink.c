/* sink.c - writes a file inside a sandbox with bytes from here. The other end is a helper of init: it takes the
 * bytes until their end, answers with a status, and closes. It may answer earlier if it cannot go on; if it closes
 * without an answer it was killed. It may be hostile: every wait here has a limit. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/mem.h"
#include "peers/files-int.h"

enum { WAIT_MS = 60000 };

struct file_sink {
    struct links *ls;
    struct call *call; /* only counts this file; NULL: its link is gone, though fd may still work */
    char *id;
    int fd; /* -1: ended, `st` says how */
    loop_id watch, timer;
    link_call hello;
    const char *p; /* still to be sent; the caller's */
    size_t n;
    bool finished;
    bool rooted;           /* its end may take long: the helper waits for the disk */
    struct link_status st; /* once it is over */
    link_done *done;       /* NULL: no write or finish is pending */
    void *arg;
    size_t nanswer;
    unsigned char answer[INIT_TEXT_MAX + 16];
};

bool sink_socket_ok(int fd)
{
    int domain, type;
    socklen_t n = sizeof domain, m = sizeof type;
    return getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &n) == 0 && domain == AF_UNIX &&
           getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &m) == 0 && type == SOCK_STREAM;
}

/* Must be the last use of s in a function: the callback may free it. */
static void sink_tell(struct file_sink *s, const struct link_status *st)
{
    struct link_status copy = *st;
    link_done *done = s->done;
    struct loop *l = links_loop(s->ls);
    loop_timer_del(l, s->timer);
    s->timer = 0;
    s->done = NULL;
    if (done)
        done(s->arg, &copy);
}

static void sink_hang_up(struct file_sink *s)
{
    struct loop *l = links_loop(s->ls);
    loop_fd_del(l, s->watch);
    loop_timer_del(l, s->timer);
    s->watch = s->timer = 0;
    if (s->fd >= 0)
        (void)close(TAKE_FD(s->fd));
}

static void sink_end(struct file_sink *s, enum link_code code, const char *text)
{
    sink_hang_up(s);
    link_status_set(&s->st, code, "%s", text);
    sink_tell(s, &s->st);
}

static void sink_on_hello(void *arg, const struct link_status *st)
{
    struct file_sink *s = arg;
    s->hello = 0;
    if (st->code == LINK_GONE)
        sink_end(s, LINK_GONE, st->text);
    else
        sink_end(s, LINK_NO_SPACE,
                 "the process that writes the file inside the sandbox was killed, most likely because the sandbox's "
                 "memory is full");
}

/* The helper closed the connection: reads its answer; without one, asks init whether the sandbox still lives. */
static void sink_on_closed(struct file_sink *s)
{
    struct wire_in in = {.p = s->answer, .n = s->nanswer};
    struct link_status st;
    if (s->nanswer == 0) {
        sink_hang_up(s);
        s->hello = link_hello(s->ls, s->id, sink_on_hello, s);
    } else if (!link_call_status(&in, &st) || !wire_done(&in) || (st.code == LINK_OK && !s->finished)) {
        sink_end(s, LINK_BROKEN, "the sandbox sent a malformed answer");
    } else {
        sink_end(s, st.code, st.text);
    }
}

/* False: s has ended, and may be freed. */
static bool sink_take_answer(struct file_sink *s)
{
    for (;;) {
        size_t room = sizeof s->answer - s->nanswer;
        ssize_t n = recv(s->fd, s->answer + s->nanswer, room, MSG_DONTWAIT);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno == EAGAIN)
            return true;
        if (n <= 0) {
            sink_on_closed(s);
            return false;
        }
        s->nanswer += (size_t)n;
        if (s->nanswer == sizeof s->answer) {
            sink_end(s, LINK_BROKEN, "the sandbox sent a malformed answer");
            return false;
        }
    }
}

static void sink_on_timeout(void *arg)
{
    struct file_sink *s = arg;
    s->timer = 0;
    sink_end(s, LINK_TIMEOUT, "the sandbox accepted no bytes of the file for a minute");
}

static void sink_restart_timer(struct file_sink *s)
{
    struct loop *l = links_loop(s->ls);
    loop_timer_del(l, s->timer);
    s->timer = loop_timer(l, s->finished && s->rooted ? LINK_ROOTED_MS : WAIT_MS, sink_on_timeout, s);
}

static void sink_push(struct file_sink *s)
{
    while (s->n > 0) {
        ssize_t n = send(s->fd, s->p, s->n, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno == EAGAIN)
            return;
        if (n < 0) { /* the helper has closed: the next event brings its answer or the end */
            loop_fd_set(links_loop(s->ls), s->watch, LOOP_IN);
            return;
        }
        s->p += n;
        s->n -= (size_t)n;
        sink_restart_timer(s);
    }
    loop_fd_set(links_loop(s->ls), s->watch, LOOP_IN);
    sink_tell(s, &(struct link_status){.code = LINK_OK});
}

static void sink_on_event(void *arg, int fd, unsigned events)
{
    struct file_sink *s = arg;
    (void)fd;
    if ((events & (LOOP_IN | LOOP_HUP)) && !sink_take_answer(s))
        return;
    if ((events & LOOP_OUT) && s->done && !s->finished)
        sink_push(s);
}

static void sink_on_tell_end(void *arg)
{
    struct file_sink *s = arg;
    s->timer = 0;
    sink_tell(s, &s->st);
}

/* False: the sink has ended; the loop reports how. */
static bool sink_begin(struct file_sink *s, link_done *done, void *arg)
{
    s->done = done;
    s->arg = arg;
    if (s->hello)
        return false;
    if (s->fd < 0) {
        s->timer = loop_timer(links_loop(s->ls), 0, sink_on_tell_end, s);
        return false;
    }
    sink_restart_timer(s);
    return true;
}

void sink_write(struct file_sink *s, const void *p, size_t n, link_done *done, void *arg)
{
    if (!sink_begin(s, done, arg))
        return;
    s->p = p;
    s->n = n;
    loop_fd_set(links_loop(s->ls), s->watch, LOOP_IN | LOOP_OUT);
}

void sink_finish(struct file_sink *s, link_done *done, void *arg)
{
    s->finished = true;
    if (sink_begin(s, done, arg))
        (void)shutdown(s->fd, SHUT_WR);
}

void sink_free(struct file_sink *s)
{
    if (!s)
        return;
    link_cancel(s->ls, s->hello);
    sink_hang_up(s);
    if (s->call)
        link_call_end(s->call);
    free(s->id);
    free(s);
}

void sink_lost(struct file_sink *s) { s->call = NULL; }

struct file_sink *sink_new(struct call *c, const char *id, int fd)
{
    struct file_sink *s = xcalloc(1, sizeof *s);
    s->ls = c->ls;
    s->call = c;
    s->id = xstrdup(id);
    s->fd = fd;
    s->rooted = c->rooted;
    s->watch = loop_fd_add(links_loop(s->ls), fd, LOOP_IN, sink_on_event, s);
    if (!s->watch)
        sink_end(s, LINK_IO, "front cannot wait for one more descriptor");
    return s;
}
