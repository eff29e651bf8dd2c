/* link-basics.c - the calls bind, hello and dial. */
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>

#include "base/cleanup.h"
#include "peers/link-int.h"

size_t link_count_strings(const char *const *v)
{
    size_t n = 0;
    while (v && v[n])
        n++;
    return n;
}

static void link_put_bind(struct wire_out *o, const void *arg)
{
    const struct link_bind *b = arg;
    wire_put_str(o, b->hostname);
    wire_put_strv(o, b->env, link_count_strings(b->env));
    wire_put_str(o, b->user);
    wire_put_str(o, b->workdir);
}

link_call link_bind(struct links *ls, const char *id, const struct link_bind *b, link_done *done, void *arg)
{
    struct call *c = link_call_new(ls, id, INIT_BIND, link_put_bind, b);
    c->message = link_call_message_done;
    c->failed = link_call_failed_done;
    c->fn = CALL_FN(done);
    c->arg = arg;
    return c->id;
}

static enum call_next link_on_hello(struct call *c, struct link_msg *m)
{
    struct link_status st;
    if (m->nfds || m->type != INIT_REPLY || !link_call_status(&m->in, &st))
        return CALL_BROKEN;
    if (st.code == LINK_OK) {
        bool bound = wire_bool(&m->in);
        (void)wire_u32(&m->in);
        if (!bound)
            link_status_set(&st, LINK_STATE, "the sandbox is not bound yet");
    }
    if (!wire_done(&m->in))
        return CALL_BROKEN;
    ((link_done *)c->fn)(c->arg, &st);
    return CALL_DONE;
}

link_call link_hello(struct links *ls, const char *id, link_done *done, void *arg)
{
    struct call *c = link_call_new(ls, id, INIT_HELLO, NULL, NULL);
    c->message = link_on_hello;
    c->failed = link_call_failed_done;
    c->fn = CALL_FN(done);
    c->arg = arg;
    return c->id;
}

static bool link_option_is(int fd, int option, int a, int b)
{
    int v = -1;
    socklen_t n = sizeof v;
    return getsockopt(fd, SOL_SOCKET, option, &v, &n) == 0 && (v == a || v == b);
}

static bool link_fd_is_tcp(int fd)
{
    return link_option_is(fd, SO_DOMAIN, AF_INET, AF_INET6) && link_option_is(fd, SO_TYPE, SOCK_STREAM, SOCK_STREAM) &&
           link_option_is(fd, SO_PROTOCOL, IPPROTO_TCP, IPPROTO_TCP) && link_option_is(fd, SO_ACCEPTCONN, 0, 0);
}

static enum call_next link_on_dialed(struct call *c, struct link_msg *m)
{
    struct link_status st;
    if (m->type != INIT_REPLY || !link_call_status(&m->in, &st) || !wire_done(&m->in))
        return CALL_BROKEN;
    if (m->nfds != (st.code == LINK_OK ? 1U : 0U) ||
        (m->nfds && m->relay != INIT_TICKET_SOCKET && !link_fd_is_tcp(m->fds[0])))
        return CALL_BROKEN;
    ((link_dialed *)c->fn)(c->arg, &st, m->nfds ? TAKE_FD(m->fds[0]) : -1);
    return CALL_DONE;
}

static void link_on_dial_failed(struct call *c, const struct link_status *st)
{
    ((link_dialed *)c->fn)(c->arg, st, -1);
}

static void link_put_port(struct wire_out *o, const void *arg) { wire_put_u32(o, *(const uint16_t *)arg); }

link_call link_dial(struct links *ls, const char *id, uint16_t port, link_dialed *done, void *arg)
{
    struct call *c = link_call_new(ls, id, INIT_DIAL, link_put_port, &port);
    c->message = link_on_dialed;
    c->failed = link_on_dial_failed;
    c->fn = CALL_FN(done);
    c->arg = arg;
    return c->id;
}
