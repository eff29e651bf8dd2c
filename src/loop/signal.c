/* signal.c - signals as events of the loop, through one signalfd. */
#include <errno.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "loop/loop-int.h"

static void loop_on_signal_fd(void *arg, int fd, unsigned events)
{
    struct loop *l = arg;
    (void)events;
    for (struct signalfd_siginfo info; read(fd, &info, sizeof info) == (ssize_t)sizeof info;) {
        unsigned signo = info.ssi_signo;
        if (signo < _NSIG && l->on_signal[signo].fn)
            l->on_signal[signo].fn(l->on_signal[signo].arg, (int)signo);
    }
}

int loop_signal(struct loop *l, int signo, loop_signal_fn *fn, void *arg, struct err *err)
{
    if (signo <= 0 || signo >= _NSIG || sigaddset(&l->signals, signo) < 0)
        return err_set(err, ERR_INTERNAL, EINVAL, "signal %d", signo);
    l->on_signal[signo].fn = fn;
    l->on_signal[signo].arg = arg;
    if (pthread_sigmask(SIG_BLOCK, &l->signals, NULL) != 0)
        return err_set(err, ERR_INTERNAL, EINVAL, "block signal %d", signo);
    int fd = signalfd(l->signal_fd, &l->signals, SFD_CLOEXEC | SFD_NONBLOCK);
    if (fd < 0)
        return err_set(err, ERR_INTERNAL, errno, "signalfd");
    l->signal_fd = fd;
    if (l->signal_watch == 0 && (l->signal_watch = loop_fd_add(l, fd, LOOP_IN, loop_on_signal_fd, l)) == 0)
        return err_set(err, ERR_INTERNAL, errno, "watch signalfd");
    return 0;
}
