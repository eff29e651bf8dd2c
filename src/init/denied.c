/* denied.c - answers the calls that the commands' filter sends to init. Most are refused anyway: init records them for
 * the command and gives the answer that the filter's tables fix by number and arguments. Two calls init performs for
 * the command (os/notified.h).
 *
 * init is behind the same filter. It must never make one of these calls without the filter's key: it would wait for its
 * own answer.
 */
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "init/init-int.h"
#include "os/seccomp.h"
#include "policy/run/filter.h"

/* Finds the command by its session. A process that started its own session belongs to no command any more. */
static struct command *command_of(struct init *g, pid_t pid)
{
    pid_t session = pid > 0 ? getsid(pid) : -1;
    for (uint32_t i = 0; session > 0 && i < COMMANDS_TABLE; i++) {
        struct command *c = &g->command[i];
        if ((c->state == COMMAND_STARTING || c->state == COMMAND_RUNNING) && c->pid == session)
            return c;
    }
    return NULL;
}

/* Whether both calls were refused for the same reason: for sockets compare the family, not the protocol. */
static bool denied_alike(unsigned flags, const struct init_denied *n, const struct seccomp_data *d)
{
    struct seccomp_data old = {.nr = (int)n->nr, .arch = d->arch};
    struct filter_denial was = {0}, is = {0};
    memcpy(old.args, n->args, sizeof old.args);
    return n->nr == (uint32_t)d->nr && filter_denial_of(flags, &old, &was) == filter_denial_of(flags, d, &is) &&
           was.reason == is.reason;
}

static void denied_note_call(struct command *c, unsigned flags, const struct seccomp_data *d)
{
    for (uint32_t i = 0; i < c->ndenied; i++)
        if (denied_alike(flags, &c->denied[i], d)) {
            if (c->denied[i].count < UINT32_MAX)
                c->denied[i].count++;
            return;
        }
    if (c->ndenied == INIT_DENIED_MAX)
        return;
    struct init_denied *n = &c->denied[c->ndenied++];
    *n = (struct init_denied){.nr = (uint32_t)d->nr, .count = 1};
    memcpy(n->args, d->args, sizeof n->args);
}

void denied_event(struct init *g)
{
    struct seccomp_notif n;
    memset(&n, 0, sizeof n);
    if (seccomp_receive(g->notify, &n) != 1)
        return;
    int eno = filter_answer(g->args->filter_flags, &n.data);
    if (eno == FILTER_SET_BUFFER) {
        notified_set_buffer(&g->notified, g->notify, &n);
        return;
    }
    _cleanup_close_ int fd = eno == FILTER_MAKE_NETLINK ? notified_make_netlink(&g->notified, &n.data) : -1;
    if (eno == FILTER_MAKE_NETLINK)
        eno = fd < 0 ? errno : 0;
    struct command *c = fd < 0 ? command_of(g, (pid_t)n.pid) : NULL;
    if (c)
        denied_note_call(c, g->args->filter_flags, &n.data);
    notified_give(g->notify, &n, fd, eno > 0 ? eno : EPERM);
}
