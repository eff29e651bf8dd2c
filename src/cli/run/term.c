#include "cli/run/term.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#include "base/mem.h"
#include "os/pty.h"

enum { SLOT_IN, SLOT_OUT, SLOT_MASTER, SLOT_TIMER };

/* Bytes of output that one call of term_handle() moves before it lets the caller handle signals and other descriptors. */
enum { TURN_BYTES = 4 * TERM_BUF_BYTES };

enum io { IO_MOVED, IO_AGAIN, IO_CLOSED };

/* Read by term_restore(), also in signal handlers. */
static struct term *volatile active;

/* --- buffers --------------------------------------------------------------------------------------------------- */

static bool buf_empty(const struct term_buf *b) { return b->head == b->tail; }
static bool buf_full(const struct term_buf *b) { return b->tail - b->head == TERM_BUF_BYTES; }

static enum io buf_fill(struct term_buf *b, int fd)
{
    if (b->head > 0) {
        memmove(b->p, b->p + b->head, b->tail - b->head);
        b->tail -= b->head;
        b->head = 0;
    }
    ssize_t n;
    do
        n = read(fd, b->p + b->tail, TERM_BUF_BYTES - b->tail);
    while (n < 0 && errno == EINTR);
    if (n <= 0)
        return n < 0 && errno == EAGAIN ? IO_AGAIN : IO_CLOSED;
    b->tail += (size_t)n;
    return IO_MOVED;
}

static enum io buf_flush(struct term_buf *b, int fd)
{
    while (!buf_empty(b)) {
        ssize_t n = write(fd, b->p + b->head, b->tail - b->head);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return errno == EAGAIN ? IO_AGAIN : IO_CLOSED;
        b->head += (size_t)n;
    }
    b->head = b->tail = 0;
    return IO_MOVED;
}

/* --- the outer terminal ------------------------------------------------------------------------------------------ */

/* Only a controlling terminal has a background; any other is always ours. */
static bool in_foreground(const struct term *t)
{
    pid_t group = tcgetpgrp(t->in);
    return group < 0 ? errno == ENOTTY : group == getpgrp();
}

/* Setting modes from the background stops the process, unless SIGTTOU is blocked; we may lose the foreground between
 * our check and the call. */
static int term_set_modes(int fd, const struct termios *modes)
{
    sigset_t ttou, old;
    int r;
    (void)sigemptyset(&ttou);
    (void)sigaddset(&ttou, SIGTTOU);
    (void)sigprocmask(SIG_BLOCK, &ttou, &old);
    do
        r = tcsetattr(fd, TCSANOW, modes);
    while (r < 0 && errno == EINTR);
    (void)sigprocmask(SIG_SETMASK, &old, NULL);
    return r;
}

/* Descriptions shared with the shell are non-blocking only while we are in the foreground. */
static void set_shared_nonblocking(const struct term *t, bool on)
{
    if (!t->in_is_ours)
        (void)fcntl(t->in, F_SETFL, on ? t->in_flags | O_NONBLOCK : t->in_flags);
    if (!t->out_is_ours)
        (void)fcntl(t->out, F_SETFL, on ? t->out_flags | O_NONBLOCK : t->out_flags);
}

static bool same_modes(const struct termios *a, const struct termios *b)
{
    return a->c_iflag == b->c_iflag && a->c_oflag == b->c_oflag && a->c_cflag == b->c_cflag &&
           a->c_lflag == b->c_lflag && memcmp(a->c_cc, b->c_cc, sizeof a->c_cc) == 0;
}

/* Copies the outer modes to the inner terminal, once. A command started in the background gets them when it first comes to the
 * foreground (before, the outer modes are those of the shell's line editor), unless it has set its own by then. */
static void inherit_modes(struct term *t)
{
    struct termios now;
    if (t->inherited || t->master < 0)
        return;
    t->inherited = true;
    if (tcgetattr(t->master, &now) == 0 && same_modes(&now, &t->fresh))
        (void)tcsetattr(t->master, TCSANOW, &t->saved);
}

static void enter_raw(struct term *t)
{
    /* If we were stopped without having restored the modes (SIGSTOP), what is set now may be our own raw mode. */
    if (!t->saved_valid) {
        if (tcgetattr(t->in, &t->saved) < 0)
            return;
        t->saved_valid = true;
    }
    inherit_modes(t);
    struct termios raw = t->saved;
    cfmakeraw(&raw);
    t->raw = 1;
    set_shared_nonblocking(t, true);
    (void)term_set_modes(t->in, &raw);
}

/* Async-signal-safe. In the background it changes nothing: the modes belong to another job. */
static void leave_raw(struct term *t)
{
    if (!t->raw || t->owner != getpid())
        return;
    t->raw = 0;
    if (in_foreground(t))
        (void)term_set_modes(t->in, &t->saved);
    set_shared_nonblocking(t, false);
}

void term_restore(void)
{
    struct term *t = active;
    int eno = errno;
    if (t)
        leave_raw(t);
    errno = eno;
}

/* Compare the modes: a shell that has taken the terminal back has set its own. */
void term_after_death(int in, int out)
{
    const struct term *t = active;
    struct termios now, raw;
    if (!t || !t->raw)
        return;
    raw = t->saved;
    cfmakeraw(&raw);
    if (tcgetattr(in, &now) == 0 && same_modes(&now, &raw))
        (void)term_set_modes(in, &t->saved);
    if (!t->in_is_ours)
        (void)fcntl(in, F_SETFL, t->in_flags);
    if (!t->out_is_ours)
        (void)fcntl(out, F_SETFL, t->out_flags);
}

/* A description of our own for the terminal behind fd, so that O_NONBLOCK does not spread to the shell. By name it may
 * be out of reach (after su, in another mount namespace): /dev/tty is open to everyone if it is our controlling one. */
static bool term_reopen(int *fd, int flags)
{
    char path[sizeof "/proc/self/fd/" + 3 * sizeof(int)];
    (void)snprintf(path, sizeof path, "/proc/self/fd/%d", *fd);
    flags |= O_NONBLOCK | O_NOCTTY | O_CLOEXEC;
    int own = open(path, flags);
    if (own < 0 && tcgetsid(*fd) >= 0)
        own = open("/dev/tty", flags);
    if (own < 0)
        return false;
    *fd = own;
    return true;
}

bool term_wanted(int in, int out) { return isatty(in) && isatty(out); }

/* --- start and stop ---------------------------------------------------------------------------------------------- */

static void arm_timer(const struct term *t)
{
    struct itimerspec when = {0};
    if (t->background || t->inner_closed) {
        when.it_interval.tv_nsec = TERM_TICK_MS * 1000000L;
        when.it_value = when.it_interval;
    }
    (void)timerfd_settime(t->timer, 0, &when, NULL);
}

static int check_master(struct term *t, struct err *err)
{
    unsigned number;
    if (pty_number(t->master, &number) < 0)
        return err_set(err, ERR_SETUP, errno, "terminal: the descriptor from inside is not the master of a pty");
    int flags = fcntl(t->master, F_GETFL);
    if (flags < 0 || fcntl(t->master, F_SETFL, flags | O_NONBLOCK) < 0)
        return err_set(err, ERR_SETUP, errno, "terminal: cannot make the pty non-blocking");
    if (tcgetattr(t->master, &t->fresh) < 0)
        return err_set(err, ERR_SETUP, errno, "terminal: cannot read the modes of the pty");
    return 0;
}

int term_start(struct term *t, int in, int out, int master, struct err *err)
{
    static bool at_exit_set;
    *t = (struct term){.in = in, .out = out, .master = master, .timer = -1, .owner = getpid()};
    t->in_flags = fcntl(in, F_GETFL);
    t->out_flags = fcntl(out, F_GETFL);
    if (check_master(t, err) < 0)
        goto fail;
    t->timer = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    if (t->timer < 0) {
        (void)err_set(err, ERR_SETUP, errno, "terminal: timerfd_create");
        goto fail;
    }
    t->in_is_ours = term_reopen(&t->in, O_RDONLY);
    t->out_is_ours = term_reopen(&t->out, O_WRONLY);
    t->up.p = xmalloc(TERM_BUF_BYTES);
    t->down.p = xmalloc(TERM_BUF_BYTES);
    active = t;
    if (!at_exit_set)
        at_exit_set = atexit(term_restore) == 0;
    term_resume(t);
    return 0;
fail:
    term_stop(t);
    return -1;
}

static void close_fd(int *fd)
{
    if (*fd >= 0)
        (void)close(*fd);
    *fd = -1;
}

void term_stop(struct term *t)
{
    if (t->owner == 0)
        return;
    leave_raw(t);
    if (active == t)
        active = NULL;
    if (t->in_is_ours)
        close_fd(&t->in);
    if (t->out_is_ours)
        close_fd(&t->out);
    close_fd(&t->master);
    close_fd(&t->timer);
    free(t->up.p);
    free(t->down.p);
    *t = (struct term){.in = -1, .out = -1, .master = -1, .timer = -1};
}

/* --- events ------------------------------------------------------------------------------------------------------ */

void term_resize(struct term *t)
{
    struct winsize size;
    if (t->master >= 0 && pty_get_size(t->out, &size) == 0)
        (void)pty_set_size(t->master, &size);
}

void term_resume(struct term *t)
{
    if (t->owner == 0 || t->hung_up)
        return;
    t->background = !in_foreground(t);
    if (!t->background)
        enter_raw(t);
    else
        t->raw = 0; /* the shell that put us here has set its modes; set ours again in the foreground */
    arm_timer(t);
    term_resize(t);
}

/* SIGTSTP stops us before kill() returns; if our group is orphaned, the kernel discards it. SIGSTOP would then freeze us for
 * ever, because no shell could continue us. */
static void stop_process_group(void)
{
    struct sigaction dfl = {.sa_handler = SIG_DFL}, old_action;
    sigset_t tstp, old_mask;
    (void)sigemptyset(&tstp);
    (void)sigaddset(&tstp, SIGTSTP);
    (void)sigaction(SIGTSTP, &dfl, &old_action);
    (void)sigprocmask(SIG_UNBLOCK, &tstp, &old_mask);
    (void)kill(0, SIGTSTP);
    (void)sigprocmask(SIG_SETMASK, &old_mask, NULL);
    (void)sigaction(SIGTSTP, &old_action, NULL);
}

void term_suspend(struct term *t)
{
    if (t->owner == 0 || t->hung_up)
        return;
    term_drain(t, TERM_TICK_MS);
    leave_raw(t);
    t->saved_valid = false;
    stop_process_group();
    term_resume(t);
}

void term_hangup(struct term *t)
{
    if (t->owner == 0 || t->hung_up)
        return;
    t->hung_up = true;
    close_fd(&t->master);
    t->up.head = t->up.tail = 0;
    t->down.head = t->down.tail = 0;
    t->background = t->inner_closed = false;
    arm_timer(t);
}

static void inner_closed(struct term *t)
{
    t->inner_closed = true;
    t->up.head = t->up.tail = 0;
    arm_timer(t);
}

/* --- the relay --------------------------------------------------------------------------------------------------- */

/* Command to screen. IO_AGAIN with an empty buffer: the pty is empty. IO_AGAIN otherwise: the screen takes no more. */
static enum io pump_down(struct term *t, size_t max)
{
    size_t moved = 0;
    while (moved < max) {
        enum io got = IO_MOVED;
        while (got == IO_MOVED && !buf_full(&t->down))
            got = buf_fill(&t->down, t->master);
        moved += t->down.tail - t->down.head;
        enum io put = buf_flush(&t->down, t->out);
        if (put == IO_CLOSED) {
            term_hangup(t);
            return IO_CLOSED;
        }
        if (put == IO_AGAIN || got != IO_MOVED)
            return put == IO_AGAIN ? IO_AGAIN : got;
    }
    return IO_MOVED;
}

/* Keyboard to command. One read per turn: a description shared with the shell may block on a second one. */
static void read_keyboard(struct term *t)
{
    if (buf_full(&t->up) || buf_fill(&t->up, t->in) != IO_CLOSED)
        return;
    /* EIO also means a read from the background that cannot stop us; then the terminal still exists. */
    if (tcgetpgrp(t->in) >= 0 && !in_foreground(t))
        term_resume(t);
    else
        term_hangup(t);
}

static void term_on_timer(struct term *t)
{
    uint64_t times;
    (void)!read(t->timer, &times, sizeof times);
    t->inner_closed = false;
    if (t->background && in_foreground(t))
        term_resume(t);
    else
        term_resize(t);
    arm_timer(t);
}

void term_pollfds(const struct term *t, struct pollfd out[TERM_POLLFDS])
{
    for (size_t i = 0; i < TERM_POLLFDS; i++)
        out[i] = (struct pollfd){.fd = -1};
    if (t->owner == 0 || t->hung_up)
        return;
    if (!t->background && !buf_full(&t->up))
        out[SLOT_IN] = (struct pollfd){.fd = t->in, .events = POLLIN};
    if (!buf_empty(&t->down))
        out[SLOT_OUT] = (struct pollfd){.fd = t->out, .events = POLLOUT};
    short wanted = 0;
    if (!buf_full(&t->down))
        wanted |= POLLIN;
    if (!buf_empty(&t->up))
        wanted |= POLLOUT;
    if (wanted && !t->inner_closed)
        out[SLOT_MASTER] = (struct pollfd){.fd = t->master, .events = wanted};
    out[SLOT_TIMER] = (struct pollfd){.fd = t->timer, .events = POLLIN};
}

void term_handle(struct term *t, const struct pollfd fds[TERM_POLLFDS])
{
    if (t->owner == 0 || t->hung_up)
        return;
    if (fds[SLOT_TIMER].revents)
        term_on_timer(t);
    if (fds[SLOT_IN].revents)
        read_keyboard(t);
    if (!t->hung_up && !buf_empty(&t->up) && !t->inner_closed && buf_flush(&t->up, t->master) == IO_CLOSED)
        inner_closed(t);
    if (!t->hung_up && (fds[SLOT_OUT].revents || fds[SLOT_MASTER].revents) && pump_down(t, TURN_BYTES) == IO_CLOSED &&
        !t->hung_up)
        inner_closed(t);
}

static int ms_until(const struct timespec *deadline)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    int64_t ms = (deadline->tv_sec - now.tv_sec) * 1000 + (deadline->tv_nsec - now.tv_nsec) / 1000000;
    return ms > 0 ? (int)ms : 0;
}

void term_drain(struct term *t, unsigned max_ms)
{
    struct timespec deadline;
    if (t->owner == 0 || t->hung_up)
        return;
    (void)clock_gettime(CLOCK_MONOTONIC, &deadline);
    deadline.tv_sec += max_ms / 1000;
    deadline.tv_nsec += (long)(max_ms % 1000) * 1000000L;
    /* The kernel flushes its queue before it reports an empty pty, so one empty read is enough. */
    for (;;) {
        enum io r = pump_down(t, TURN_BYTES);
        if (t->hung_up || (r != IO_MOVED && buf_empty(&t->down)))
            return;
        int left = ms_until(&deadline);
        if (left == 0)
            return;
        struct pollfd room = {.fd = t->out, .events = POLLOUT};
        if (r == IO_AGAIN)
            (void)poll(&room, 1, left);
    }
}
